"""Models that give q, k and v to the attention interface of transformers by name, as Parakeet does."""

from __future__ import annotations

import pytest
import torch
from tolerance import rounding
from torch import Tensor, nn

from attnwidget import capture, intervene

pytest.importorskip("transformers")
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

HEADS, SIZE = 3, 4


class NamedArguments(nn.Module):
    """Self-attention by transformers' interface, all of whose arguments are named."""

    is_causal = False
    num_key_value_groups = 1

    def __init__(self, implementation: str, dropout: float) -> None:
        super().__init__()
        self.qkv = nn.Linear(HEADS * SIZE, 3 * HEADS * SIZE)
        self.attend, self.dropout = ALL_ATTENTION_FUNCTIONS[implementation], dropout
        self.seen: tuple[Tensor, ...] = ()

    def forward(self, x: Tensor) -> Tensor:
        """Return what the heads give, (B, n, heads · size)."""
        q, k, v = self.seen = self.qkv(x).unflatten(-1, (3, HEADS, SIZE)).permute(2, 0, 3, 1, 4).unbind()
        dropout = self.dropout if self.training else 0.0
        found = self.attend(
            self, query=q, key=k, value=v, attention_mask=None, dropout=dropout, scaling=SIZE**-0.5, is_causal=False
        )[0]
        return found.flatten(2)


class NamedModel(nn.Module):
    def __init__(self, implementation: str, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = NamedArguments(implementation, dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return what its only layer gives."""
        return self.attention(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_such_a_model_runs_and_its_weights_are_right(gradients: bool, training: bool) -> None:
    torch.manual_seed(0)
    model = NamedModel("sdpa", dropout=0.1 if training else 0.0).train(training)
    x = torch.randn(2, 5, HEADS * SIZE)
    with torch.set_grad_enabled(gradients), capture(model) as cap:
        model(x)
    q, k, _ = (part.detach().double() for part in model.attention.seen)
    att = cap.attention[0]
    assert cap.skipped == {}
    for batch in range(2):
        for head in range(HEADS):
            expected = (q[batch, head] @ k[batch, head].mT * SIZE**-0.5).softmax(-1)
            shown = att.block(batch=batch, head=head)
            torch.testing.assert_close(shown.double(), expected, **rounding(att).weights)


def test_its_heads_are_edited() -> None:
    torch.manual_seed(0)
    model, x = NamedModel("sdpa").eval(), torch.randn(2, 5, HEADS * SIZE)
    with torch.no_grad():
        plain = model(x)
        with intervene(model, {(0, 1): "zero"}):
            edited = model(x)
    assert edited.unflatten(-1, (HEADS, SIZE))[:, :, 1].abs().max() == 0
    assert torch.equal(
        edited.unflatten(-1, (HEADS, SIZE))[:, :, [0, 2]], plain.unflatten(-1, (HEADS, SIZE))[:, :, [0, 2]]
    )
