"""Each call is verified when it is made, whatever is kept of it: what is shown wrongly without a word is a fault."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from captured import GPT2, batch, build
from torch import Tensor, nn

from attnwidget import capture
from attnwidget._capture.call.call_rules import CallRules
from attnwidget._capture.verify.verification import differ, rows_to_compare, sample_output

transformers = pytest.importorskip("transformers")
from transformers import AttentionInterface  # noqa: E402

KEEPING: dict[str, dict[str, Any]] = {
    "all": {},
    "without values": {"values": False},
    "without copies": {"clone": False},
    "neither": {"values": False, "clone": False},
    "in half": {"dtype": torch.float16},
}


@pytest.fixture(params=KEEPING)
def keeping(request: pytest.FixtureRequest) -> dict[str, Any]:
    return KEEPING[request.param]


class Block(nn.Module):
    """An attention of four heads whose scores and output are a subclass's."""

    def __init__(self, dropout: float = 0.25) -> None:
        super().__init__()
        self.qkv, self.num_heads, self.dropout = nn.Linear(32, 96), 4, dropout

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (4, 8)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        return self.attention(q, k, v).transpose(1, 2).flatten(2)

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        w = F.dropout(self.changed(q, q @ k.mT * 8**-0.5).softmax(-1), self.dropout, self.training)
        return w @ v

    def changed(self, q: Tensor, scores: Tensor) -> Tensor:
        return scores


class CausalThroughAnotherName(Block):
    """Blocks the future through memory that torch does not know to be that of the scores."""

    def changed(self, q: Tensor, scores: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            scores.detach().numpy()[..., ~torch.ones(7, 7).tril().bool().numpy()] = -torch.inf
        return scores


class Plain(Block):
    """What its arguments say."""

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)


class Multi(nn.Module):
    """Torch's own, whose weights are asked for, so that it multiplies by itself."""

    def __init__(self, dropout: float = 0.25) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(32, 4, dropout, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        return self.inner(x, x, x)[0]


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("kind", [Block, Plain, Multi])
def test_what_is_right_is_shown(kind: type[nn.Module], training: bool, keeping: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model, x = kind().train(training), torch.randn(2, 7, 32)
    state = torch.get_rng_state()
    plain = model(x)
    torch.set_rng_state(state)
    with capture(model, **keeping) as cap:
        output = model(x)
    torch.testing.assert_close(output, plain, rtol=0, atol=0)
    assert (len(cap.attention), cap.skipped) == (1, {})


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("kind", [CausalThroughAnotherName])
def test_what_contradicts_its_output_is_refused_whatever_is_kept(
    kind: type[nn.Module], training: bool, keeping: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    model, x = kind().train(training), torch.randn(2, 7, 32)
    expected = pytest.raises(ValueError, match=r"1 attention call.* its q, k, v, mask and scale do not give its output")
    with torch.no_grad(), expected, capture(model, **keeping):
        model(x)


def causal_by_itself(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, **how: Any) -> tuple[Tensor, None]:
    dropout = how.get("dropout", 0.0)
    output = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
    return output.transpose(1, 2).contiguous(), None


def as_told(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, **how: Any) -> tuple[Tensor, None]:
    scores = q @ k.mT * how["scaling"]
    w = F.dropout((scores if mask is None else scores + mask).softmax(-1), 0.5, module.training)
    return (w @ v).transpose(1, 2).contiguous(), None


BERT = transformers.BertConfig(
    hidden_size=32, num_attention_heads=4, num_hidden_layers=2, intermediate_size=64, vocab_size=50
)


def bert_with(function: Any, training: bool) -> Any:
    AttentionInterface.register("of_ones_own", function)
    torch.manual_seed(0)
    return transformers.BertModel._from_config(BERT, attn_implementation="of_ones_own").train(training)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_an_attention_function_of_ones_own_that_masks_by_itself_is_refused(
    training: bool, keeping: dict[str, Any]
) -> None:
    model = bert_with(causal_by_itself, training)
    expected = pytest.raises(ValueError, match=r"none of 2 attention calls .*do not give its output")
    with torch.no_grad(), expected, capture(model, **keeping):
        model(batch()["input_ids"])


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_an_attention_function_of_ones_own_is_shown_and_random_numbers_stay(
    training: bool, keeping: dict[str, Any]
) -> None:
    model, ids = bert_with(as_told, training), batch()["input_ids"]
    state = torch.get_rng_state()
    with torch.no_grad():
        plain = model(ids)[0]
        torch.set_rng_state(state)
        with capture(model, **keeping) as cap:
            assert torch.equal(model(ids)[0], plain)
    assert (len(cap.attention), cap.skipped) == (2, {})


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_transformers_own_functions_under_dropout(implementation: str, keeping: dict[str, Any]) -> None:
    model, ids = build(GPT2, implementation).train(), batch()["input_ids"]
    torch.manual_seed(1)
    plain = model(ids)[0]
    torch.manual_seed(1)
    with capture(model, **keeping) as cap:
        assert torch.equal(model(ids)[0], plain)
    assert (len(cap.attention), cap.skipped) == (2, {})


class ChangesLater(Plain):
    """Writes into its own k after the call."""

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k = k.contiguous()
        output = super().attention(q, k, v)
        k.mul_(2)
        return output


@pytest.mark.parametrize("values", [True, False])
def test_a_change_after_the_call_is_told_where_nothing_was_copied(values: bool) -> None:
    model, x = ChangesLater().eval(), torch.randn(2, 7, 32)
    with torch.no_grad(), capture(model) as cap:
        model(x)
    assert cap.skipped == {}
    expected = pytest.raises(ValueError, match=r"changed in place .*clone=True|do not give its output")
    with torch.no_grad(), expected, capture(model, clone=False, values=values):
        model(x)


def test_a_change_after_the_block_warns() -> None:
    kept: list[Tensor] = []
    with capture(clone=False) as cap:
        kept += torch.randn(3, 1, 2, 5, 8).clone().unbind()
        kept[:] = [x.clone() for x in kept]
        F.scaled_dot_product_attention(kept[0], kept[1], kept[2])
    kept[0].zero_()
    with pytest.warns(UserWarning, match="its q changed in place"):
        _ = cap.attention[0]


def of_another_shape(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, **how: Any) -> tuple[Any, None]:
    output = F.scaled_dot_product_attention(q, k, v, scale=how["scaling"]).transpose(1, 2)
    return output.flatten(2).tanh().flatten(0, 1), None


def test_an_output_of_another_shape_is_not_shown_without_a_word() -> None:
    model = bert_with(of_another_shape, False)
    model.encoder.layer[0].attention.output = First()
    expected = pytest.raises(ValueError, match=r"was not seen, or does not have the shape")
    with torch.no_grad(), expected, capture(model.encoder.layer[0].attention):
        model.encoder.layer[0].attention(torch.randn(2, 5, 32))


class First(nn.Module):
    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return x.reshape(residual.shape)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("large", [False, True])
def test_a_type_that_changes_the_weights_is_refused_where_scores_are_large(dtype: torch.dtype, large: bool) -> None:
    """A half type rounds a score of a thousand by one or more; float16 ends at 65,504."""
    q, k, v = torch.randn(3, 1, 2, 6, 16)
    with capture(dtype=dtype, strict=False) as cap:
        F.scaled_dot_product_attention(q, k, v)
        if large:
            F.scaled_dot_product_attention(3e4 * q, k, v)
            F.scaled_dot_product_attention(1e5 * q, 1e-5 * k, v)
    kept = len(cap)
    coarse = [why for why in cap.skipped.values() if "twice or half" in why and str(dtype) in why]
    assert (kept >= 1, bool(coarse)) == (True, large)
    for one in cap:
        assert one.attention[0].block(head=1).isfinite().all()


# Layers whose outputs are computed again together.


def test_each_of_several_layers_is_held_to_its_own_size() -> None:
    sizes, rows = (1.0, 1e6), []
    for seed, size in enumerate(sizes):
        q, k, v = torch.randn(3, 2, 4, 5, 8, generator=torch.Generator().manual_seed(seed))
        output = F.scaled_dot_product_attention(q, k, size * v)
        output[:, :, 2] += 0.01 * (size == 1)
        sample = sample_output(output, q, k, size * v)
        assert sample is not None
        rows.append(rows_to_compare(sample, q, k, size * v))
    assert rows[0].kind == rows[1].kind
    rules = CallRules(5, 5, 0, False, None, None)
    assert differ(rows, scale=None, softcap=None, rules=rules).tolist() == [True, False]
    assert differ(rows[::-1], scale=None, softcap=None, rules=rules).tolist() == [False, True]


def test_layers_of_grouped_heads_are_compared_together_as_alone() -> None:
    rows, rules = [], CallRules(6, 6, 0, True, None, None)
    for seed in range(4):
        q = torch.randn(3, 4, 6, 8, generator=torch.Generator().manual_seed(seed))
        k, v = torch.randn(2, 3, 2, 6, 8, generator=torch.Generator().manual_seed(seed + 9))
        output = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        if seed == 2:
            output = output.flip(1)
        sample = sample_output(output, q, k, v)
        assert sample is not None
        rows.append(rows_to_compare(sample, q, k, v))
    together = differ(rows, scale=None, softcap=None, rules=rules).tolist()
    assert together == [bool(differ([one], scale=None, softcap=None, rules=rules)) for one in rows]
    assert together == [False, False, True, False]
