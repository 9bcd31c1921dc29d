"""Masks of one's own and cache policies in edits: as `Attention` reads them, and as edited eager copies have them."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import edited_copies as copies
import pytest
import torch
from captured import DECODERS, batch, build
from left_to_thorough import left_to_thorough
from test_intervene_calls import B, D, E, H, Layers, Q, by_sdpa, text
from test_intervene_generate import HOW, TOLD, in_one_pass, text_of
from test_intervene_models import CASES, full_name, inputs_of, last_states, model_of, order_of_softmaxes
from tolerance import assert_as_near
from torch import Tensor
from torch.testing import assert_close

from attnwidget import Attention, capture, intervene
from attnwidget._capture.intercept.transformers_calls import length_of_cache
from attnwidget._capture.interventions.edits import PerSample
from attnwidget.masks import padding, sliding_window

transformers = pytest.importorskip("transformers")


def bools(*shape: int) -> Tensor:
    """Random bools; True on the diagonal, so that no row is empty."""
    found = torch.rand(shape, generator=torch.Generator().manual_seed(len(shape))) < 0.6
    return found | torch.eye(shape[-1], dtype=torch.bool) if len(shape) > 1 and shape[-2] == shape[-1] else found


def numbers(*shape: int) -> Tensor:
    found = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))
    return found.masked_fill(~bools(*shape), -torch.inf)


def documents(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    of = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 2, 2, 2], [0, 0, 1, 1, 1, 1, 2]])
    return (of[b, q_idx] == of[b, kv_idx]) | (kv_idx == h)


MASKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "queries and keys": (bools(Q, Q), {}),
    "a row for all": (bools(1, Q), {}),
    "samples": (bools(B, Q) | (torch.arange(Q) == 0), {}),
    "heads": (bools(H, Q, Q), {}),
    "samples and queries": (bools(B, Q, Q), {}),
    "all axes": (bools(B, H, Q, Q), {}),
    "all axes, heads alike": (bools(B, 1, Q, Q), {}),
    "numbers": (numbers(Q, Q), {}),
    "numbers of all axes": (numbers(B, H, Q, Q), {}),
    "the least number of a type": (numbers(Q, Q).clamp(min=torch.finfo(torch.float32).min), {}),
    "half numbers": (numbers(Q, Q).half(), {}),
    "numpy": (bools(Q, Q).numpy(), {}),
    "named axes": (bools(B, Q, Q), {"mask_dims": "bqk"}),
    "a function": (documents, {}),
    "a mask object": (sliding_window(3), {}),
    "padding": (padding(torch.tensor([7, 5, 6])), {}),
}


def outputs(att: Attention) -> Tensor:
    return torch.stack([torch.stack([att.output(batch=b, head=h) for h in range(H)]) for b in range(B)])


@pytest.mark.parametrize("cells", [None, Q * 3])
@pytest.mark.parametrize("name", MASKS)
def test_a_mask_is_read_as_attention_reads_it(name: str, cells: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    from attnwidget._capture.interventions import edited_heads

    if cells is not None:  # a few queries at a time
        monkeypatch.setattr(edited_heads, "CELLS_AT_ONCE", cells)
    mask, how = MASKS[name]
    model, x = Layers(by_sdpa), text()
    with torch.no_grad():
        cap = capture(model).run(x)
        with intervene(model, {(0, (1, 3)): {"mask": mask, **how}}) as run:
            model(x)
    found, att = model.layers[0].heads, cap.attention[0]
    wanted = outputs(Attention(att.q, att.k, att.v, mask=mask, is_causal=True, **how))
    assert run.edited == {"layers.0": (1, 3)}
    assert_close(found[:, [1, 3]], wanted[:, [1, 3]], rtol=1e-4, atol=1e-5)  # type: ignore[index]
    assert (wanted - outputs(att))[:, [1, 3]].abs().max() > 1e-3
    assert_close(found[:, [0, 2]], outputs(att)[:, [0, 2]], rtol=1e-4, atol=1e-5)  # type: ignore[index]


def test_a_mask_in_the_place_of_the_calls_own() -> None:
    model, x = Layers(by_sdpa), text()
    mask = bools(Q, Q)
    with torch.no_grad():
        att = capture(model).run(x).attention[0]
        with intervene(model, {0: {"causal": False}}), intervene(model, {0: {"mask": mask}}):
            model(x)
    assert_close(model.layers[0].heads, outputs(Attention(att.q, att.k, att.v, mask=mask)), rtol=1e-4, atol=1e-5)


def test_each_sample_has_a_mask_of_its_own() -> None:
    model, x = Layers(by_sdpa), text()
    with torch.no_grad():
        att = capture(model).run(x).attention[0]
        with intervene(
            model, {(0, 1): PerSample([{"mask": bools(Q, Q)}, {"mask": bools(H, Q, Q), "scale": 0.1}, None])}
        ):
            model(x)
    one = outputs(Attention(att.q, att.k, att.v, mask=bools(Q, Q), is_causal=True))
    other = outputs(Attention(att.q, att.k, att.v, mask=bools(H, Q, Q), is_causal=True, scale=0.1))
    found = model.layers[0].heads
    assert_close(found[0, 1], one[0, 1], rtol=1e-4, atol=1e-5)  # type: ignore[index]
    assert_close(found[1, 1], other[1, 1], rtol=1e-4, atol=1e-5)  # type: ignore[index]
    assert_close(found[2, 1], outputs(att)[2, 1], rtol=1e-4, atol=1e-5)  # type: ignore[index]


def test_gradients_flow_through_the_cells_that_are_left() -> None:
    model, other, x = Layers(by_sdpa), Layers(by_sdpa), text()
    keep = {"policy": "window", "budget": 3, "sinks": 1}
    with intervene(model, {0: {"mask": bools(Q, Q), "keep": keep}}):
        model(x).square().sum().backward()
    near = torch.arange(Q)[:, None] - torch.arange(Q) < 2
    cells = bools(Q, Q) & (near | (torch.arange(Q) == 0)) & torch.ones(Q, Q, dtype=torch.bool).tril()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT / D**0.5).masked_fill(~cells, -torch.inf).softmax(-1) @ v

    other.layers[0].way = attend  # type: ignore[assignment]
    other(x).square().sum().backward()
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert_close(one.grad, two.grad, rtol=1e-3, atol=1e-4 * float(two.grad.abs().max()))  # type: ignore[union-attr]


# Beside an eager copy that is edited.


def lengths(case: Any, inputs: dict[str, Tensor]) -> tuple[int, int]:
    """Queries and keys of the layer."""
    if "input_ids" not in inputs:
        return 17, 17
    decoder, cross = case.layer.startswith("decoder"), "encoder_attn" in case.layer or "EncDec" in case.layer
    queries = inputs["decoder_input_ids" if decoder or cross else "input_ids"].shape[1]
    return queries, inputs["input_ids"].shape[1] if cross or not decoder else queries


def compared(case: Any, inputs: dict[str, Tensor], edit: Any, own: Callable[[Tensor], Tensor], what: str) -> None:
    """Compare an edited run with an eager copy whose weights of head 1 a function makes of the scores."""
    model, eager = model_of(case, case.implementation), model_of(case, "eager")
    layer = full_name(model, case.layer)
    number = order_of_softmaxes(eager, inputs).index(full_name(eager, case.layer))
    with torch.no_grad():
        plain = last_states(model(**inputs))
        with intervene(model, {(layer, 1): edit}) as run:
            output = last_states(model(**inputs))
    theirs = last_states(copies.run(copy.deepcopy(eager), inputs, {(number, 1): own}, sinks=case.sinks))
    exact = last_states(copies.run_in_float64(eager, inputs, {(number, 1): own}, sinks=case.sinks))
    assert run.edited == {layer: (1,)}
    assert_as_near(output, theirs, exact, what=what)
    assert (output - plain).abs().max() > 1e-3 * plain.abs().max()


def masked(mask: Tensor) -> Callable[[Tensor], Tensor]:
    """Softmax of scores (B, Q, K, or K + 1 with a sink) under a mask that is added, (B or 1, Q, K)."""

    def weigh(scores: Tensor) -> Tensor:
        more = torch.nn.functional.pad(mask, (0, scores.shape[-1] - mask.shape[-1]))
        found = (scores + more.to(scores)).masked_fill(scores < torch.finfo(torch.float32).min / 2, -torch.inf)
        return found.softmax(-1).nan_to_num()

    return weigh


SOME = ("GPT-2 eager", "Gemma 2, softcap and window", "gpt-oss, sinks", "BART, cross-attention")


@pytest.mark.parametrize("name", left_to_thorough(CASES, SOME))
def test_a_mask_is_that_of_an_edited_eager_copy(name: str) -> None:
    case = CASES[name]
    inputs = inputs_of(case)
    queries, keys = lengths(case, inputs)
    allowed = bools(2, 1, queries, keys)
    allowed[..., 0] = True
    added = torch.randn(queries, keys, generator=torch.Generator().manual_seed(5))
    blocked = torch.zeros(2, queries, keys).masked_fill(~allowed[:, 0], -torch.inf)
    compared(case, inputs, {"mask": allowed}, masked(blocked), f"{name}, bools:")
    compared(case, inputs, {"mask": added}, masked(added), f"{name}, numbers:")


CAUSAL = [name for name, case in CASES.items() if not any(one in name for one in ("BERT", "ViT", "encoder", "cross"))]


PADDED = [
    (name, padded) for name in CAUSAL for padded in (None, "left")
    if not padded or not (CASES[name].kind.config.is_encoder_decoder or CASES[name].sinks)  # whose padding is another
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "padded"),
    left_to_thorough(PADDED, [("GPT-2", "left"), ("Mistral, window", "left"), ("gpt-oss, sinks", None)]),
)
def test_a_window_of_a_cache_is_that_of_an_edited_eager_copy(name: str, padded: str | None) -> None:
    case = CASES[name]
    inputs = inputs_of(case, padded)
    queries, _ = lengths(case, inputs)
    first = torch.tensor([0, 5 if padded else 0])[:, None, None]  # padding is no first key
    rows, keys = torch.arange(queries)[:, None], torch.arange(queries)
    kept = (rows - keys < 2) | ((keys >= first) & (keys < first + 1))
    own = masked(torch.zeros(kept.shape).masked_fill(~kept, -torch.inf))
    edit = {"keep": {"policy": "window", "budget": 3, "sinks": 1}}
    if not padded:
        return compared(case, inputs, edit, own, f"{name}:")
    model = model_of(case, case.implementation)
    layer, real = full_name(model, case.layer), inputs["attention_mask"][..., None] == 0
    eager = model_of(case, "eager")
    number = order_of_softmaxes(eager, inputs).index(full_name(eager, case.layer))
    with torch.no_grad(), intervene(model, {(layer, 1): edit}):
        output = last_states(model(**inputs))
    found = (
        copies.run(copy.deepcopy(eager), inputs, {(number, 1): own}),
        copies.run_in_float64(eager, inputs, {(number, 1): own}),
    )
    theirs, exact = (last_states(one).masked_fill(real, 0) for one in found)
    assert_as_near(output.masked_fill(real, 0), theirs, exact, what=f"{name}, padded:")
    return None


def greedy(policy: str, budget: int, recent: int, gaps: list[float]) -> Callable[[Tensor], Tensor]:
    """Softmax with a cache that evicts, query after query and key after key, as Zhang et al. and Oren et al. have it.

    Args:
        policy: "heavy_hitters" or "tova", of a layer with one head.
        budget, recent: of the cache.
        gaps: takes how clearly each key that is evicted is the least.
    """

    def weigh(scores: Tensor) -> Tensor:
        found = torch.zeros_like(scores)
        for sample, own in enumerate(scores):
            there: list[int] = []
            sums = torch.zeros(own.shape[-1], dtype=own.dtype)
            for row in range(len(own)):
                there.append(row)
                weights = own[row, there].softmax(-1)
                found[sample, row, there] = weights
                sums[there] = sums[there] + weights if policy == "heavy_hitters" else weights
                if len(there) >= budget:
                    some = sums[there[: len(there) - recent]]
                    order = some.sort()
                    gaps.append(float(order.values[1] - order.values[0]) if len(some) > 1 else 1.0)
                    del there[int(order.indices[0])]
        return found

    return weigh


@pytest.mark.parametrize(
    ("name", "policy"),
    left_to_thorough(
        itertools.product(["GPT-2", "Llama, grouped heads", "Gemma 2, softcap and window"], ["heavy_hitters", "tova"]),
        [("Gemma 2, softcap and window", "heavy_hitters"), ("Llama, grouped heads", "tova")],
    ),
)
def test_a_cache_that_evicts_is_that_of_an_edited_eager_copy(name: str, policy: str) -> None:
    case, gaps, recent = CASES[name], [], 2 if policy == "heavy_hitters" else 0
    if policy == "tova":  # whose heads evict together: a layer of one
        config = transformers.LlamaConfig(
            hidden_size=16, intermediate_size=32, num_attention_heads=1, num_hidden_layers=2, vocab_size=50,
            pad_token_id=0,
        )  # fmt: skip
        case = case._replace(
            kind=DECODERS["Llama"]._replace(config=config), layer="layers.1.self_attn", implementation="sdpa"
        )
    inputs = {"input_ids": batch()["input_ids"]}
    model, eager = model_of(case, case.implementation), model_of(case, "eager")
    layer = full_name(model, case.layer)
    number = order_of_softmaxes(eager, inputs).index(full_name(eager, case.layer))
    head = 0
    own = greedy(policy, 4, recent, gaps)
    edit = {"keep": {"policy": policy, "budget": 4} | ({"recent": recent} if recent else {})}
    with torch.no_grad(), intervene(model, {(layer, head): edit}):
        output = last_states(model(**inputs))
    theirs = last_states(copies.run(copy.deepcopy(eager), inputs, {(number, head): own}))
    exact = last_states(copies.run_in_float64(eager, inputs, {(number, head): own}))
    assert min(gaps) > 1e-4  # which key goes hangs on no last bit
    assert_as_near(output, theirs, exact, what=f"{name}, {policy}:")


# While a model generates.

WHOLE = bools(18, 18)


def odd(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return (kv_idx % 2 == 1) | (q_idx == kv_idx)


ROWS: dict[str, Any] = {
    "bools": {"mask": WHOLE},
    "numbers": {"mask": WHOLE.float()},
    "function": {"mask": odd},
    "keep": {"keep": {"policy": "window", "budget": 5, "sinks": 2}},
}


@pytest.mark.parametrize(
    ("kind", "name", "cache", "padded"),
    left_to_thorough(
        itertools.product(ROWS, ["GPT-2", "Mistral"], ["dynamic", "static"], [None, "left"]),
        [
            ("bools", "GPT-2", "static", "left"),
            ("numbers", "Mistral", "dynamic", None),
            ("function", "Mistral", "static", "left"),
            ("keep", "GPT-2", "static", None),
            ("keep", "Mistral", "dynamic", "left"),
        ],
    ),
)
def test_each_step_has_its_rows(kind: str, name: str, cache: str, padded: str | None) -> None:
    edit = ROWS[kind]
    model = copies.sharpened(build(DECODERS[name], "sdpa"), 3.0)
    edits = {(1, (0, 2)): edit}
    how = {**HOW, "max_new_tokens": 7, "min_new_tokens": 7}
    with torch.no_grad(), intervene(model, edits):
        found = model.generate(**text_of(padded), cache_implementation=cache, **how, **TOLD)
    if "mask" in edit and isinstance(edit["mask"], Tensor):  # the last token that is written asks nothing
        assert found.sequences.shape[1] == len(edit["mask"]) + 1
        edits = {(1, (0, 2)): {"mask": torch.nn.functional.pad(edit["mask"], (0, 1, 0, 1), value=1)}}
    ours = torch.stack(found.logits, 1)
    theirs = in_one_pass(model, found.sequences, padded, edits)
    exact = in_one_pass(copies.doubled(model), found.sequences, padded, edits)
    assert_as_near(ours, theirs, exact)


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (
            {"mask": bools(12, 12)},
            r"mask has shape \(12, 12\), which does not fit.*give a mask of the whole text, or a",
        ),
        ({"mask": bools(30, 30)}, r"mask has shape \(30, 30\), but .* had 17 queries and 17 keys"),
        ({"keep": {"policy": "tova", "budget": 4}}, "depends on all queries from the first key on"),
        ({"keep": {"policy": "heavy_hitters", "budget": 4}}, "or the policy 'window'"),
        (
            {"keep": {"policy": "snapkv", "budget": 4, "observe": 2, "prompt": 8}},
            "depends on all queries from the first key on",
        ),
        ({"keep": {"policy": "window", "budget": 0.5}}, "or a number of keys, such as budget=8"),
    ],
)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_what_a_generation_does_not_know_is_refused(edit: Any, why: str, cache: str) -> None:
    """A policy that is decided by all queries at once is refused before the first step computes anything."""
    model, steps = build(DECODERS["Llama"], "sdpa"), []
    model.model.embed_tokens.register_forward_pre_hook(lambda _, given: steps.append(given[0].shape[1]))
    with torch.no_grad(), pytest.raises(ValueError, match=why), intervene(model, {(1, 0): edit}):
        model.generate(**text_of(None), cache_implementation=cache, **HOW)
    assert "keep" not in edit or steps == [text_of(None)["input_ids"].shape[1]]


def test_a_text_that_was_begun_before_the_block_is_refused() -> None:
    model, ids = build(DECODERS["Llama"], "sdpa"), batch()["input_ids"]
    with torch.no_grad():
        cache = model(ids[:, :8]).past_key_values
        edits = {(1, 0): {"keep": {"policy": "window", "budget": 5}}}
        with pytest.raises(ValueError, match="these were read before the block"), intervene(model, edits):
            model(ids[:, 8:], past_key_values=cache)


@pytest.mark.parametrize("policy", ["window", "heavy_hitters", "tova"])
def test_a_budget_beyond_the_text_forgets_nothing(policy: str) -> None:
    model, x = Layers(by_sdpa), text()
    found = []
    for edit in ({"keep": {"policy": policy, "budget": 40}}, {"scale": 1.5}):
        with torch.no_grad(), intervene(model, {(0, (1, 2)): edit}) as run:
            model(x)
        found.append(model.layers[0].heads)
    assert run.edited == {"layers.0": (1, 2)}
    with torch.no_grad():
        model(x)
    assert_close(found[0], model.layers[0].heads)
    assert not torch.equal(found[1], found[0])


def test_a_cache_is_known_by_either_name_and_by_its_place() -> None:
    """Models of transformers up to 5.23 are given `past_key_values`, later ones `cache`."""
    cache = transformers.DynamicCache()
    cache.update(torch.zeros(1, 1, 5, 4), torch.zeros(1, 1, 5, 4), 0)
    given: list[tuple[Any, Any]] = [((), {"past_key_values": cache}), ((), {"cache": cache}), ((text(), cache), {})]
    assert [length_of_cache(*one) for one in given] == [5, 5, 5]
    others: list[tuple[Any, Any]] = [((), {}), ((text(),), {"cache": None}), ((), {"cache": {"keys": text()}})]
    assert [length_of_cache(*one) for one in others] == [None, None, None]


def test_cross_attention_has_no_cache_that_forgets() -> None:
    model = torch.nn.TransformerDecoderLayer(E, H, 32, dropout=0.0, batch_first=True).eval()
    edits = {0: {"keep": {"policy": "window", "budget": 5}}}
    with torch.no_grad(), pytest.raises(ValueError, match="needs the position of each query among the keys"):  # noqa: SIM117
        with intervene(model, edits, cross=True):
            model(text(5), text(7))
    mask = bools(5, 7)
    mask[:, 0] = True
    with torch.no_grad(), intervene(model, {(0, 1): {"mask": mask}}, cross=True) as run:
        model(text(5), text(7))
    assert run.edited == {"multihead_attn": (1,)}
