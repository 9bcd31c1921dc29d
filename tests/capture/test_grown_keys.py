"""Keys that a cache has grown are known to continue those of the call before; what else is done to them is seen."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from captured import DECODERS, GPT2, SEQUENCES, build, weights
from torch import Tensor

from attnwidget import Capture, capture
from attnwidget._capture.records import record

transformers = pytest.importorskip("transformers")

PROMPT = torch.randint(3, 50, (2, 12), generator=torch.Generator().manual_seed(1))
NEW = 8


@pytest.fixture
def comparisons(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of keys that were compared."""
    found: list[int] = []
    compare = record._order_of

    def counting(before: Tensor, now: Tensor, wanted: Any) -> Any:
        found.append(now.shape[2])
        return compare(before, now, wanted)

    monkeypatch.setattr(record, "_order_of", counting)
    return found


def generated(model: Any, **how: Any) -> tuple[Capture, Tensor]:
    how = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "pad_token_id": 0, **how}
    with torch.no_grad(), capture(model) as cap:
        text = model.generate(PROMPT, attention_mask=torch.ones_like(PROMPT), **how)
    return cap, text


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_each_layer_is_compared_once(name: str, cache: str, comparisons: list[int]) -> None:
    model = build(DECODERS[name], "sdpa")
    cap, text = generated(model, cache_implementation=cache)
    assert comparisons == [12, 12]
    with torch.no_grad():
        whole = capture(model).run(text[:, :-1])
    for one, other in zip(cap.attention, whole.attention, strict=True):
        assert torch.allclose(weights(one), weights(other), atol=1e-5)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_cross_attention_is_compared_once(cache: str, comparisons: list[int]) -> None:
    cap, _ = generated(build(SEQUENCES["BART"], "sdpa"), cache_implementation=cache)
    assert [att.shape.Q for att in cap.cross] == [NEW, NEW]
    assert len(comparisons) == 4  # of two layers of either kind


def test_without_a_count_of_changes_each_step_is_compared(comparisons: list[int]) -> None:
    with torch.inference_mode():
        cap, _ = generated(build(GPT2, "sdpa"))
    assert [att.shape.Q for att in cap.attention] == [12 + NEW - 1] * 2
    assert len(comparisons) == 3 * (NEW - 1)


def steps(change: Callable[[Any, int], None]) -> Capture:
    """What was captured of a text that is written by hand, while the cache is changed before each step."""
    model = build(GPT2, "sdpa")
    cache = transformers.DynamicCache(config=model.config)
    ids = PROMPT
    with torch.no_grad(), capture(model, strict=False) as cap:
        for step in range(5):
            ids = model(ids, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
            change(cache, step)
    return cap


def test_a_change_in_place_is_seen_at_once() -> None:
    def change(cache: Any, step: int) -> None:
        if step == 3:
            cache.layers[1].keys[:, :, 4] *= 2

    whole, cap = steps(lambda *_: None), steps(change)
    assert [att.shape.Q for att in whole.attention] == [16, 16]
    assert [att.shape.Q for att in cap[0].attention] == [16, 15]
    assert "its later calls do not have the keys of the first" in cap.skipped["transformer.h.1.attn"]


def test_a_tensor_in_the_place_of_the_keys_is_seen_at_once() -> None:
    def change(cache: Any, step: int) -> None:
        if step == 3:
            keys = cache.layers[1].keys.clone()
            keys[:, :, 4] *= 2
            cache.layers[1].keys = keys

    cap = steps(change)
    assert [att.shape.Q for att in cap[0].attention] == [16, 15]
    assert "its later calls do not have the keys of the first" in cap.skipped["transformer.h.1.attn"]


def test_keys_of_the_source_that_change_in_place_are_seen_at_once() -> None:
    model = build(SEQUENCES["BART"], "sdpa")
    cache = transformers.EncoderDecoderCache(*(transformers.DynamicCache() for _ in range(2)))
    with torch.no_grad(), capture(model, strict=False) as cap:
        source, ids = model.get_encoder()(PROMPT), PROMPT[:, :1]
        for step in range(5):
            how = {"encoder_outputs": source, "past_key_values": cache, "use_cache": True}
            ids = model(decoder_input_ids=ids, **how).logits[:, -1:].argmax(-1)
            if step == 2:
                cache.cross_attention_cache.layers[1].keys[:, 1, 4] *= 2
    assert [att.shape.Q for att in cap.cross] == [5, 3]
    assert "its later calls do not have the keys of the first" in cap.skipped["model.decoder.layers.1.encoder_attn"]


def test_a_change_that_torch_does_not_count_is_named() -> None:
    def change(cache: Any, step: int) -> None:
        if step == 2:
            cache.layers[1].keys.data[:, :, 4] *= 2

    cap = steps(change)
    assert list(cap.calls) == ["transformer.h.0.attn"]
    assert "in a way that torch does not count" in cap.skipped["transformer.h.1.attn"]


def test_such_a_change_is_named_also_where_another_text_follows() -> None:
    model = build(GPT2, "sdpa")
    with torch.no_grad(), capture(model, strict=False) as cap:
        cache = transformers.DynamicCache(config=model.config)
        ids = PROMPT
        for step in range(4):
            ids = model(ids, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
            if step == 1:
                cache.layers[1].keys.data[:, :, 4] *= 2
        model(PROMPT[:, :5])
    assert [list(one.calls) for one in cap] == [
        ["transformer.h.0.attn"],
        ["transformer.h.0.attn", "transformer.h.1.attn"],
    ]
    assert "in a way that torch does not count" in cap.skipped["transformer.h.1.attn"]


def test_a_cache_that_is_copied_or_cut_goes_on_from_there() -> None:
    model = build(GPT2, "sdpa")
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad(), capture(model) as cap:
        model(PROMPT, past_key_values=cache)
        model(PROMPT[:, :1], past_key_values=cache)
        twin = copy.deepcopy(cache)
        for step in range(3):
            model(PROMPT[:, step : step + 1], past_key_values=twin)
        cache.crop(-1)
        for step in range(3):
            model(PROMPT[:, 5 + step : 6 + step], past_key_values=cache)
    first = torch.cat([PROMPT, PROMPT[:, :1], PROMPT[:, :3]], 1)
    second = torch.cat([PROMPT, PROMPT[:, 5:8]], 1)
    assert [one.tokens for one in cap] == [first.tolist(), second.tolist()]
    with torch.no_grad():
        for forward, text in zip(cap, (first, second), strict=True):
            whole = capture(model).run(text)
            for one, other in zip(forward.attention, whole.attention, strict=True):
                assert torch.allclose(weights(one), weights(other), atol=1e-5)


def test_a_static_cache_that_is_used_again_begins_another_text(comparisons: list[int]) -> None:
    model = build(GPT2, "sdpa")
    cache = transformers.StaticCache(config=model.config, max_cache_len=32)
    with torch.no_grad(), capture(model) as cap:
        for text in (PROMPT, PROMPT.flip(1)):
            model(text, past_key_values=cache)
            for step in range(3):
                model(text[:, step : step + 1], past_key_values=cache)
            cache.reset()
    assert [one.tokens for one in cap] == [torch.cat([x, x[:, :3]], 1).tolist() for x in (PROMPT, PROMPT.flip(1))]
    assert comparisons == [12] * 4


def test_the_functions_of_caches_are_put_back() -> None:
    kinds = [transformers.cache_utils.DynamicLayer, transformers.cache_utils.StaticLayer]
    before = [kind.update for kind in kinds]
    model = build(GPT2, "sdpa")
    with capture(model), torch.no_grad():
        model(PROMPT)
        assert all(kind.update is not own for kind, own in zip(kinds, before, strict=True))
    assert [kind.update for kind in kinds] == before


@pytest.mark.parametrize("how", [{}, {"heads": [1, 3]}, {"queries": slice(-3, None)}, {"clone": False}])
def test_what_is_looked_at_while_a_text_grows_is_all_of_it_so_far(how: dict[str, Any]) -> None:
    model = build(GPT2, "sdpa")
    cache, ids, seen = transformers.DynamicCache(config=model.config), PROMPT, []
    with torch.no_grad(), capture(model, **how) as cap:
        for _ in range(5):
            ids = model(ids, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
            seen.append(cap.attention[1])
    assert [att.shape.K for att in seen] == [12, 13, 14, 15, 16]
    for att in seen[1:]:
        whole, own = cap.attention[1], att.shape.K
        assert torch.equal(att.k, whole.k[:, :, :own])
        if "queries" not in how:
            assert torch.allclose(weights(att), weights(whole)[:, :, :own, :own], atol=1e-6)


def test_a_text_that_goes_on_in_another_block_is_shown_to_its_end() -> None:
    """Also where it was looked at between the blocks."""
    model = build(GPT2, "sdpa")
    cache, ids, cap = transformers.DynamicCache(config=model.config), PROMPT, capture(model)
    for length in (12, 13, 14):
        with torch.no_grad(), cap:
            ids = model(ids, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
        assert [(att.shape.Q, att.shape.K) for att in cap.attention] == [(length, length)] * 2
        assert weights(cap.attention[1]).sum(-1).allclose(torch.ones(()))


def test_samples_are_known_again_by_all_of_their_keys() -> None:
    before = torch.randn(3, 2, 5, 4)
    before[2] = before[0]  # two that are alike
    other = torch.randn(3, 2, 5, 4)
    for now, wanted, order in (
        (before[[1, 0, 2]], None, [1, 0, 2]),
        (before, None, [0, 1, 2]),
        (before, [2, 1, 0], [2, 1, 0]),  # as in another layer, where they differ
        (before, [1, 0, 2], [0, 1, 2]),  # which does not fit here
        (before[[0, 0, 2]], None, [0, 0, 2]),
        (before[[1, 1, 0]], None, [1, 1, 2]),
        (before[[1, 1, 0]], [1, 1, 0], [1, 1, 0]),
        (other, None, None),
        (torch.cat([other[:, :, :-1], before[:, :, -1:]], 2), None, None),  # the last key alone is alike
        (torch.cat([before[:, :1], other[:, 1:]], 1), None, None),
    ):
        assert record._order_of(before, now, wanted) == order
