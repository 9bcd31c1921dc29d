"""keep="overview": what is left of a call when q, k and v are dropped is exact, and small, and says what it is not."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from captured import DECODERS, GPT2, SEQUENCES, Kind, batch, build
from tolerance import approx, rounding
from torch import Tensor
from torch.testing import assert_close

from attnwidget import Attention, Capture, capture
from attnwidget._analysis.metrics import NAMES
from attnwidget._capture.call.observed_call import ObservedCall
from attnwidget._capture.records.forward_passes import RecordMatcher
from attnwidget._capture.records.kept_tensors import TensorKeeper
from attnwidget._capture.records.overview_record import ReducedAttention, ReducedRecord
from attnwidget._capture.records.record import CONTRADICTED
from attnwidget._engine.kept_levels import LARGEST_LEVEL, OnlyOverviewError, bin_width
from attnwidget._engine.level_cache import LevelCache
from attnwidget._engine.overview import TileAddress

transformers = pytest.importorskip("transformers")

SAYS = r"this capture kept only overviews, in bins of \d+ × \d+ cells \(keep='overview'\), so .* not known: capture"


def long_gpt2(positions: int) -> Kind:
    how = {"n_embd": 32, "n_head": 4, "n_layer": 2, "vocab_size": 50, "n_positions": positions}
    return Kind(transformers.GPT2LMHeadModel, transformers.GPT2Config(**how))


def ids(length: int, samples: int = 1) -> Tensor:
    return torch.randint(3, 50, (samples, length), generator=torch.Generator().manual_seed(length))


def both(model: Any, act: Any, **how: Any) -> tuple[Capture, Capture]:
    """All of a model's attention, and its overviews; the model computes the same."""
    outputs, captures = [], []
    for keep in ("tensors", "overview"):
        with torch.no_grad(), capture(model, keep=keep, **how) as cap:
            outputs.append(act()[0])
        captures.append(cap)
    assert torch.equal(*outputs)
    assert captures[1].skipped == {}
    assert list(captures[0].calls) == list(captures[1].calls)
    return captures[0], captures[1]


def largest(x: Tensor, rows: int, columns: int) -> Tensor:
    """The largest number of each bin, the last of them ragged."""
    return F.max_pool2d(x[None], (rows, columns), ceil_mode=True)[0]


def assert_reduced(kept: Attention, whole: Attention) -> None:
    """Every number that is kept is that of the whole."""
    assert isinstance(kept, ReducedAttention)
    assert (kept.shape.B, kept.shape.H, kept.shape.Q, kept.shape.K) == (
        whole.shape.B, whole.shape.H, whole.shape.Q, whole.shape.K)  # fmt: skip
    rows, columns = bin_width(whole.shape.Q), bin_width(whole.shape.K)
    for b in range(whole.shape.B):
        for h in range(whole.shape.H):
            weights, allowed = whole.block(batch=b, head=h), whole.block("allowed", batch=b, head=h)
            found = kept.overview(b, h)
            assert (found.query_bin, found.key_bin) == (rows, columns)
            wanted, reached = (largest(x, rows, columns) for x in (weights, allowed.to(weights.dtype)))
            assert_close(found.values, wanted, **rounding(whole).pooled("weights", rows * columns))
            assert torch.equal(found.allowed, reached > 0)
            assert_close(kept.log_normalizer(b, h), whole.log_normalizer(b, h), **rounding(whole).normalizer)
            ours, theirs = kept.metrics(b, h), whole.metrics(b, h)
            for name in (*(name for name in NAMES if name not in ("same_token", "induction")), "rows"):
                assert getattr(ours, name) == near(getattr(theirs, name), whole), name


def near(value: Any, att: Attention) -> Any:
    """A metric, up to rounding: that of the entropy is the largest."""
    return value if value is None or isinstance(value, str) else approx(value, rounding(att).entropy)


@pytest.mark.parametrize(
    ("name", "padded"),
    [
        ("GPT-2", None),
        ("Llama", "right"),
        ("Mistral", "left"),
        ("Gemma 2", "right"),
        *(
            pytest.param(name, padded, marks=pytest.mark.thorough)
            for name in ("GPT-2", "Llama", "Mistral", "Gemma 2")
            for padded in (None, "left", "right")
        ),
    ],
)
def test_of_a_short_text_all_weights_are_kept(name: str, padded: str | None) -> None:
    model, inputs = build(DECODERS[name], DECODERS[name].implementations[0]), batch(padded)
    whole, kept = both(model, lambda: model(**inputs))
    for ours, theirs in zip(kept.attention, whole.attention, strict=True):
        assert_reduced(ours, theirs)
        assert_close(ours.block(head=2), theirs.block(head=2), **rounding(theirs).weights)
        assert torch.equal(ours.block("allowed", batch=1), theirs.block("allowed", batch=1))
        assert torch.equal(ours.top_keys(11)[0], theirs.top_keys(11)[0])
    assert_close(kept.pair(5, 2), whole.pair(5, 2), **rounding(whole.attention[0]).weights)


@pytest.mark.parametrize(
    ("length", "padded"),
    [
        (129, 40),
        (300, 0),
        *(pytest.param(length, padded, marks=pytest.mark.thorough) for length in (129, 200, 300) for padded in (0, 40)),
    ],
)
def test_of_a_longer_text_an_exact_overview_is_kept(length: int, padded: int) -> None:
    model, mask = build(long_gpt2(512), "sdpa"), torch.ones(2, length, dtype=torch.int64)
    mask[1, :padded] = 0
    whole, kept = both(model, lambda: model(ids(length, 2), attention_mask=mask))
    for ours, theirs in zip(kept.attention[:1], whole.attention[:1], strict=True):
        assert_reduced(ours, theirs)
        assert torch.equal(ours.block("allowed", batch=1), theirs.block("allowed", batch=1))


def test_encoder_decoder_and_cross_attention_are_reduced() -> None:
    model = build(SEQUENCES["T5"], "sdpa")
    inputs = {"input_ids": ids(12, 2), "decoder_input_ids": ids(7, 2), "use_cache": False}
    whole, kept = both(model, lambda: model(**inputs))
    for name, ours in kept.calls.items():
        assert_reduced(ours, whole.calls[name])
    assert len(kept.cross) == 2


def test_learned_sinks_stay_beside_the_weights_that_they_leave(tmp_path: Path) -> None:
    q = torch.randn(3, 1, 4, 9, 8)
    call = ObservedCall(*q, is_causal=True, sinks=torch.tensor([0.5, -1.0, 2.0, 0.0]))
    matcher = RecordMatcher(TensorKeeper(), lambda *_: True, lambda *_: [1, 2], new_record=ReducedRecord)
    matcher.add("attn", lambda: call)
    ((record,),) = (records.values() for records in matcher.forwards)
    kept, whole = record.attention, Attention(*q, is_causal=True, sinks=call.sinks)
    Capture(None, matcher.forwards).save(tmp_path / "sinks.safetensors")
    for ours in (kept, Capture.load(tmp_path / "sinks.safetensors").attention[0]):
        for i, head in enumerate((1, 2)):
            assert_close(ours.block(head=i), whole.block(head=head), **rounding(whole).weights)
            assert_close(ours.sink_weights(head=i), whole.sink_weights(head=head), **rounding(whole).weights)
            assert ours.metrics(head=i).learned_sink == near(whole.metrics(head=head).learned_sink, whole)


def test_some_heads_are_reduced() -> None:
    model = build(GPT2, "sdpa")
    whole, kept = both(model, lambda: model(ids(9)), heads=[1, 3])
    for ours, theirs in zip(kept.attention, whole.attention, strict=True):
        assert_reduced(ours, theirs)
        assert ours.part == theirs.part


def test_several_forward_passes_are_reduced_each() -> None:
    model = build(GPT2, "sdpa")
    with torch.no_grad(), capture(model, keep="overview", last=2) as cap:
        for n in (5, 6, 7):
            model(ids(n))
    assert (cap.numbers, [one.attention[0].shape.Q for one in cap]) == ([1, 2], [6, 7])


def test_memory_is_a_small_part_of_that_of_q_and_k() -> None:
    """Of a level at most 128 × 128, whatever the length: at 2,048 tokens a tenth, and it grows with the rows alone."""
    how = {"n_embd": 128, "n_head": 2, "n_layer": 1, "vocab_size": 50, "n_positions": 4096}
    model = build(Kind(transformers.GPT2LMHeadModel, transformers.GPT2Config(**how)), "sdpa")
    sizes = {}
    for length in (2048, 4096):
        with torch.no_grad():
            sizes[length] = capture(model, keep="overview").run(ids(length)).nbytes
            whole = capture(model, values=False).run(ids(length)).nbytes
        assert sizes[length] * 10 < whole
    level = 2 * LARGEST_LEVEL**2 * 4
    assert sizes[2048] < 2 * level
    assert sizes[4096] - sizes[2048] <= 2 * 2048 * 4


# What can be asked.


@pytest.fixture(scope="module")
def long() -> tuple[Capture, Capture]:
    """A text of 300 tokens: in bins of 4 × 4."""
    model = build(long_gpt2(512), "sdpa")
    return both(model, lambda: model(ids(300)))


def test_an_overview_is_pooled_further_into_whole_bins(long: tuple[Capture, Capture]) -> None:
    whole, kept = (cap.attention[1] for cap in long)
    for size, width in ((512, 4), (75, 4), (74, 8), (30, 12), (1, 300)):
        found, wanted = kept.overview(0, 2, size=size), whole.overview(0, 2, size=-(-300 // width))
        assert (found.query_bin, found.key_bin) == (wanted.query_bin, wanted.key_bin) == (width, width)
        assert_close(found.values, wanted.values, **rounding(whole).pooled("weights", width * width))
        assert torch.equal(found.allowed, wanted.allowed)
    tile = LevelCache(kept).tile(0, 2, TileAddress(level=3, row=0, column=0, size=16))
    wanted = LevelCache(whole).tile(0, 2, TileAddress(level=3, row=0, column=0, size=16))
    assert_close(tile.values, wanted.values, **rounding(whole).pooled("weights", 64))


@pytest.mark.parametrize(
    "ask",
    [
        lambda att: att.block(),
        lambda att: att.block("scores"),
        lambda att: att.block("contribution", queries=3),
        lambda att: att.output(),
        lambda att: att.top_keys(3),
        lambda att: att.explain(3, 1),
        lambda att: att.gradients(),
        lambda att: att.jacobian(3),
        lambda att: att.check(),
        lambda att: att.statistics(),
        lambda att: att.what_if({"scale": 1.0}),
        lambda att: att.combine().block(),
        lambda att: att.merge(range(300)).block(),
        lambda att: att.overview(pool="mean"),
        lambda att: att.overview(stage="masked"),
        lambda att: LevelCache(att).tile(0, 0, TileAddress(level=0, row=0, column=0)),
    ],
)
def test_what_needs_q_or_k_is_refused_with_the_way_on(long: tuple[Capture, Capture], ask: Any) -> None:
    with pytest.raises(OnlyOverviewError, match=f"{SAYS} again with keep='tensors'$"):
        ask(long[1].attention[0])


def test_what_needs_rows_of_all_layers_is_refused(long: tuple[Capture, Capture]) -> None:
    for ask in (lambda cap: cap.pair(1, 0), lambda cap: cap.weights(0), lambda cap: cap.attention.rollout()):
        with pytest.raises(ValueError, match=SAYS):
            ask(long[1])


def test_metrics_of_all_heads_are_those_of_the_whole(long: tuple[Capture, Capture]) -> None:
    whole, kept = (cap.metrics() for cap in long)
    for ours, theirs in zip(kept, whole, strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            assert ours[name] == near(value, long[0].attention[0]), name


def test_the_widget_shows_it_and_says_what_it_is(long: tuple[Capture, Capture], tmp_path: Path) -> None:
    whole, kept = (cap.widget() for cap in long)
    assert kept.title == (
        "overviews only (keep='overview'): each cell is the largest of 4 × 4 weights; single rows and keys, "
        "other stages, segments and What if are not available"
    )
    assert (kept.picture["query_bin"], kept.picture["error"], kept.errors) == (4, None, {})
    assert kept.thumbnails["values"]["shape"][0] == 4
    assert kept.facts["stages"] == ["weights"]
    kept.view = "heads"
    assert kept.survey["error"] is None
    assert kept.survey["metrics"]["entropy"] is not None
    with pytest.raises(ValueError, match=SAYS):
        kept.weights(3)
    with pytest.raises(Exception, match=SAYS):
        kept.stage = "scores"
    with pytest.raises(Exception, match=SAYS):
        kept.what_if = {"temperature": 2.0}
    kept.view = "heatmap"
    kept.to_html(tmp_path / "kept.html")
    assert kept.figure().axes
    assert whole.title == ""


def test_a_widget_in_a_page_tells_why_a_view_is_empty(long: tuple[Capture, Capture], front_end: Any) -> None:
    w = long[1].widget()
    w.view, w.query, w.key = "graph", 5, 3
    assert "keep='tensors'" in w.errors["links"]
    w.view = "heatmap"
    assert w.errors == {}


def test_a_page_that_zooms_in_is_told_what_is_not_kept(long: tuple[Capture, Capture], front_end: Any) -> None:
    w = long[1].widget()
    of = {"layer": 0, "batch": 0, "head": 0, "stage": "weights", "pool": "max", "version": w.facts["version"]}
    for request in (
        {"kind": "tiles", "view": "main", "tiles": [[0, 0, 0, 0]]},
        {"kind": "ranked", "queries": [5], "count": 8},
        {"kind": "row", "query": 5},
        {"kind": "check"},
    ):
        (reply,) = front_end.ask(w, {"id": "a", **of, **request})
        assert reply["ok"] is False, request
        assert "keep='tensors'" in reply["error"], request
    (coarse,) = front_end.ask(w, {"id": "b", **of, "kind": "tiles", "view": "main", "tiles": [[2, 2, 0, 0]]})
    assert coarse["ok"]


# Files and copies.


def test_a_file_holds_the_same(long: tuple[Capture, Capture], tmp_path: Path) -> None:
    short_model = build(GPT2, "sdpa")
    with torch.no_grad():
        short = capture(short_model, keep="overview", heads=[0, 2]).run(**batch("left"))
    for i, cap in enumerate((long[1], short)):
        path = tmp_path / f"{i}.safetensors"
        cap.save(path)
        again = Capture.load(path)
        assert path.stat().st_size < 2 * cap.nbytes + 10_000
        for ours, theirs in zip(again.attention, cap.attention, strict=True):
            assert isinstance(ours, ReducedAttention)
            assert (ours.shape, ours.part, ours.is_causal) == (theirs.shape, theirs.part, theirs.is_causal)
            for name, x in theirs.source.tensors().items():
                assert torch.equal(ours.source.tensors()[name], x)
            assert torch.equal(ours.block("allowed"), theirs.block("allowed"))
        assert again.metrics() == cap.metrics()


def test_it_is_copied_and_pickled(long: tuple[Capture, Capture]) -> None:
    att = long[1].attention[0]
    for again in (copy.deepcopy(att), pickle.loads(pickle.dumps(att))):
        assert torch.equal(again.overview(head=1).values, att.overview(head=1).values)
        assert again.metrics(head=1) == att.metrics(head=1)
    assert "an overview in bins of 4 × 4" in repr(att)


# What cannot be reduced.


def test_a_text_that_goes_on_is_refused_with_the_way_on() -> None:
    model = build(DECODERS["Llama"], "sdpa")
    how = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    plain = model.generate(ids(7), **how)
    with torch.no_grad(), capture(model, keep="overview") as cap:
        assert torch.equal(model.generate(ids(7), **how), plain)
    assert len(cap) == 1
    assert cap.attention[0].shape.Q == 7
    assert list(cap.skipped) == list(cap.calls)
    for why in cap.skipped.values():
        assert "capture the whole text in one forward pass, model(text), or with keep='tensors'" in why


def test_a_text_of_encoder_and_decoder_that_goes_on_is_one_forward_pass() -> None:
    model = build(SEQUENCES["BART"], "sdpa")
    with torch.no_grad(), capture(model, keep="overview") as cap:
        model.generate(ids(7), max_new_tokens=4, min_new_tokens=4, num_beams=1)
    assert len(cap) == 1
    assert {att.shape.Q for att in cap.cross} == {1}
    assert all("one forward pass" in why for why in cap.skipped.values())
    assert "model.decoder.layers.0.encoder_attn" in cap.skipped


def test_an_output_that_contradicts_the_call_is_no_overview() -> None:
    q = torch.randn(3, 1, 4, 9, 8)
    matcher = RecordMatcher(TensorKeeper(), lambda *_: True, lambda *_: None, new_record=ReducedRecord)
    callback = matcher.add("attn", lambda: ObservedCall(*q))
    assert callback is not None
    callback(2 * torch.nn.functional.scaled_dot_product_attention(*q))
    assert matcher.remove_faulty() == {"attn": CONTRADICTED}


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"keep": "weights"}, "no keep is called 'weights': give one of tensors, overview"),
        ({"keep": "overview", "queries": -1}, "keep='overview' needs all queries: leave queries= out"),
    ],
)
def test_what_cannot_be_kept_is_refused(how: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        capture(torch.nn.Linear(2, 2), **how)
