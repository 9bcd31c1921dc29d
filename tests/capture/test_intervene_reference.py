"""Edits of one call beside attention written out in float64, at sizes that all differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from reference import dense
from torch import Tensor, nn
from torch.testing import assert_close

from attnwidget import Attention, intervene
from attnwidget._capture.interventions import edited_heads
from attnwidget._capture.interventions.edits import PerSample

B, H, G, Q, K, D, DV = 3, 10, 5, 4, 9, 7, 6
SHARE = H // G
HEADS = (9, 1, 4, 5)  # that are edited: two of one key head, and out of order
MAKE = torch.Generator().manual_seed(0)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=MAKE)


q, k, v = numbers(B, H, Q, D), numbers(B, G, K, D), numbers(B, G, K, DV)
other = numbers(B, H, Q, D), numbers(B, G, K, D), numbers(B, G, K, DV)
own_mask = numbers(B, H, Q, K) > -0.5
own_mask[..., 1] = True
own_weights, own_outputs, added = numbers(B, len(HEADS), Q, K), numbers(B, len(HEADS), Q, DV), numbers(H, Q, K)
allowed = numbers(B, H, Q, K) > 0.3
allowed[..., 1] = True
VECTOR = [0.5, 1, -2, 0, 3, 4]
ROWS, COLUMNS = torch.arange(Q)[:, None], torch.arange(K)


class Alone(nn.Module):
    """Cross-attention of queries, keys and values that it is given."""

    def __init__(self, mask: Tensor = allowed) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask, enable_gqa=True)


def weights(b: int, h: int, *, and_: Tensor | None = None, scale: float = D**-0.5, **how: Any) -> Tensor:
    """The weights (Q, K) of a head, under one more rule."""
    cells = allowed[b, h] if and_ is None else allowed[b, h] & and_
    found: Tensor = dense(q[b, h], k[b, h // SHARE], allowed=cells, scale=scale, **how)["weights"]
    return found


def even(b: int, h: int) -> Tensor:
    return allowed[b, h] / allowed[b, h].double().sum(-1, keepdim=True)


def without(keys: list[int], queries: list[int] | None = None) -> Tensor:
    """Which cells are left, (Q, K)."""
    found = torch.ones(Q, K, dtype=torch.bool)
    rows = torch.arange(Q) if queries is None else torch.tensor(queries)
    found[rows[:, None], torch.tensor(keys)] = False
    return found


def scaled_by_place(block: Any) -> Tensor:
    """Weights times a number that tells the sample, the head and the query."""
    b, h, rows = (torch.tensor([*x], dtype=torch.float64) + 1 for x in (block.samples, block.heads, block.queries))
    assert block.keys == range(K)
    found: Tensor = block.weights * b[:, None, None, None] * h[:, None, None] * rows[:, None]
    return found


def other_weights(b: int, h: int) -> Tensor:
    found: Tensor = dense(other[0][b, h], other[1][b, h // SHARE], scale=D**-0.5)["weights"]
    return found


def tells_heads(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return (kv_idx + q_idx + h + b) % 4 != 2


def told_heads(b: int, h: int) -> Tensor:
    return (COLUMNS + ROWS + h + b) % 4 != 2


# An edit; and the weights of head h of sample b, which is number i of its key, with it.
WEIGHTS: dict[str, tuple[Any, Callable[[int, int, int], Tensor]]] = {
    "even": ("uniform", lambda b, i, h: even(b, h)),
    "negative scale": ({"scale": -0.7}, lambda b, i, h: weights(b, h, scale=-0.7)),
    "scale and temperature": ({"scale": 0.9, "temperature": 3.0}, lambda b, i, h: weights(b, h, scale=0.3)),
    "softcap": ({"softcap": 0.6}, lambda b, i, h: weights(b, h, softcap=0.6)),
    "window": ({"window": 2}, lambda b, i, h: weights(b, h, and_=(ROWS - COLUMNS).abs() < 2)),
    "causal": ({"causal": True}, lambda b, i, h: weights(b, h, and_=COLUMNS <= ROWS)),
    "causal, lower right": ({"causal": "lower right"}, lambda b, i, h: weights(b, h, and_=COLUMNS <= ROWS + K - Q)),
    "keys": ({"drop_keys": [0, -2]}, lambda b, i, h: weights(b, h, and_=without([0, K - 2]))),
    "block": ({"block": ([1, -1], [0, 1, 6])}, lambda b, i, h: weights(b, h, and_=without([0, 1, 6], [1, Q - 1]))),
    "weight that goes nowhere": (
        {"block": ([1, -1], [0, 6]), "renormalize": False},
        lambda b, i, h: weights(b, h) * without([0, 6], [1, Q - 1]),
    ),
    "mask": ({"mask": own_mask}, lambda b, i, h: weights(b, h, and_=own_mask[b, h])),
    "mask of heads": ({"mask": own_mask[1]}, lambda b, i, h: weights(b, h, and_=own_mask[1, h])),
    "mask that is added": ({"mask": added}, lambda b, i, h: weights(b, h, bias=added[h])),
    "mask function": ({"mask": tells_heads}, lambda b, i, h: weights(b, h, and_=told_heads(b, h))),
    "weights": (own_weights, lambda b, i, h: own_weights[b, i]),
    "weights of all samples": (own_weights[0].numpy(), lambda b, i, h: own_weights[0, i]),
    "weights of all heads": (own_weights[0, 0] > 0, lambda b, i, h: (own_weights[0, 0] > 0).double()),
    "function": (scaled_by_place, lambda b, i, h: weights(b, h) * (b + 1) * (h + 1) * (ROWS + 1)),
    "another run": ({"from": Attention(*other)}, lambda b, i, h: other_weights(b, h)),
    "another run of one sample": (
        {"from": Attention(*(x[:1] for x in other))}, lambda b, i, h: other_weights(0, h),
    ),
    "samples apart": (
        PerSample([{"drop_keys": [0]}, None, own_weights]),
        lambda b, i, h: (weights(b, h, and_=without([0])), weights(b, h), own_weights[b, i])[b],
    ),
}  # fmt: skip
OUTPUTS: dict[str, tuple[Any, Callable[[int, int, int], Tensor]]] = {
    "zero": ("zero", lambda b, i, h: torch.zeros(Q, DV).double()),
    "numbers": ({"output": own_outputs}, lambda b, i, h: own_outputs[b, i]),
    "numbers of heads": ({"output": own_outputs[0, :, :1]}, lambda b, i, h: own_outputs[0, i, :1].expand(Q, DV)),
    "one vector": ({"output": VECTOR}, lambda b, i, h: torch.tensor([VECTOR] * Q).double()),
    "another run's": (
        {"from": Attention(*other), "take": "outputs"}, lambda b, i, h: other_weights(b, h) @ other[2][b, h // SHARE],
    ),
}  # fmt: skip


@pytest.mark.parametrize("cells", [None, 2 * B * K], ids=["at once", "block by block"])
@pytest.mark.parametrize("name", [*WEIGHTS, *OUTPUTS])
def test_an_edited_head_is_what_its_edit_says(name: str, cells: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if cells is not None:  # one or two queries at a time
        monkeypatch.setattr(edited_heads, "CELLS_AT_ONCE", cells)
    model = Alone()
    with torch.no_grad():
        plain = model(q, k, v)
        with intervene(
            model, {(0, HEADS): WEIGHTS[name][0] if name in WEIGHTS else OUTPUTS[name][0]}, cross=True
        ) as run:
            found = model(q, k, v)
    assert run.edited == {"Alone": tuple(sorted(HEADS))}
    for b in range(B):
        for h in range(H):
            if h not in HEADS:
                assert torch.equal(found[b, h], plain[b, h])
            elif name in WEIGHTS:
                own = WEIGHTS[name][1](b, HEADS.index(h), h)
                assert_close(found[b, h], own @ v[b, h // SHARE])
            else:
                assert_close(found[b, h], OUTPUTS[name][1](b, HEADS.index(h), h))


def test_numbers_that_a_model_adds_stay_and_the_least_of_their_type_blocks() -> None:
    least = torch.finfo(torch.float64).min
    model = Alone(added.expand(B, -1, -1, -1).masked_fill(~allowed, least))
    edits = {(0, 3): "uniform", (0, 8): {"temperature": 2.0}, (0, 7): {"mask": False}}
    with torch.no_grad(), intervene(model, edits, cross=True):
        found = model(q, k, v)
    for b in range(B):
        assert_close(found[b, 3], even(b, 3) @ v[b, 1])
        assert_close(found[b, 8], weights(b, 8, scale=D**-0.5 / 2, bias=added[8]) @ v[b, 4])
        plain = dense(q[b, 7], k[b, 3], scale=D**-0.5)["weights"]
        assert_close(found[b, 7], plain @ v[b, 3])
