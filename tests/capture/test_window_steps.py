"""Steps of a text whose cache has a window, or whose values are not kept: noted, and the same as read one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from captured import DECODERS, GPT2, build
from torch import Tensor

from attnwidget import Capture, capture
from attnwidget._capture.records.decode_steps import NotedCall
from attnwidget._capture.records.forward_passes import RecordMatcher
from attnwidget._capture.records.record import Record

transformers = pytest.importorskip("transformers")

WINDOW = 4
WINDOWED = ("Mistral", "Gemma 2")
CACHES = ("dynamic", "static")
PROMPTS = (2, WINDOW - 1, WINDOW, 7)
KEEPING: dict[str, dict[str, Any]] = {
    "all": {},
    "without values": {"values": False},
    "without copies": {"clone": False},
    "without either": {"values": False, "clone": False},
}


def ids(length: int, samples: int = 2) -> Tensor:
    return torch.randint(3, 50, (samples, length), generator=torch.Generator().manual_seed(length))


def generated(model: Any, cache: str, prompt: Tensor, new: int = 9, **keeping: Any) -> Capture:
    how = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "cache_implementation": cache}
    with torch.no_grad(), capture(model, **keeping) as cap:
        model.generate(prompt, attention_mask=torch.ones_like(prompt), **how)
    return cap


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the notes that are made."""
    found: list[str] = []
    make = NotedCall.__init__
    monkeypatch.setattr(NotedCall, "__init__", lambda *given: (found.append("noted"), make(*given))[1])
    return found


def read_one_by_one(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Capture]) -> Capture:
    """Return what an act captures where no call repeats another."""
    with monkeypatch.context() as patched:
        patched.setattr(RecordMatcher, "repeat", lambda *given: None)
        return act()


def assert_same(one: Capture, other: Capture) -> None:
    assert one.skipped == other.skipped == {}
    assert one.tokens == other.tokens
    for mine, theirs in zip(one.attention, other.attention, strict=True):
        assert torch.equal(mine.q, theirs.q)
        assert torch.equal(mine.k, theirs.k)
        assert (mine.v is None) == (theirs.v is None)
        assert mine.v is None or torch.equal(mine.v, theirs.v)
        for sample in range(mine.shape.B):
            assert torch.equal(mine.block(batch=sample, head=1), theirs.block(batch=sample, head=1))


@pytest.mark.parametrize(
    ("name", "cache", "length"),
    [
        ("Mistral", "dynamic", WINDOW - 1),
        ("Gemma 2", "static", 7),
        *(
            pytest.param(name, cache, length, marks=pytest.mark.thorough)
            for name in WINDOWED
            for cache in CACHES
            for length in PROMPTS
        ),
    ],
)
def test_steps_of_a_window_are_noted_and_the_same_as_read_one_by_one(
    name: str, cache: str, length: int, noted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(DECODERS[name], "eager")
    cap = generated(model, cache, ids(length))
    assert len(noted) >= 6 * len(cap.attention)  # all of 8 steps but the first ones
    other = read_one_by_one(monkeypatch, lambda: generated(model, cache, ids(length)))
    assert_same(cap, other)


@pytest.mark.parametrize(
    ("name", "cache", "keeping"),
    [
        ("GPT-2", "dynamic", "all"),
        ("Mistral", "dynamic", "without values"),
        ("Gemma 2", "static", "without copies"),
        ("Mistral", "static", "without either"),
        *(
            pytest.param(name, cache, keeping, marks=pytest.mark.thorough)
            for name in ("GPT-2", *WINDOWED)
            for cache in CACHES
            for keeping in KEEPING
        ),
    ],
)
def test_steps_are_noted_whatever_is_kept(
    name: str, cache: str, keeping: str, noted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(DECODERS[name], "eager")
    cap = generated(model, cache, ids(6), **KEEPING[keeping])
    assert len(noted) >= 6 * len(cap.attention)
    assert all((att.v is None) == ("values" in KEEPING[keeping]) for att in cap.attention)
    other = read_one_by_one(monkeypatch, lambda: generated(model, cache, ids(6), **KEEPING[keeping]))
    assert_same(cap, other)


def test_padded_samples_are_the_same_as_read_one_by_one(noted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompt = build(GPT2, "sdpa"), ids(6)
    real = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])

    def act(cache: str) -> Capture:
        how = {"max_new_tokens": 9, "min_new_tokens": 9, "do_sample": False, "cache_implementation": cache}
        with torch.no_grad(), capture(model) as cap:
            model.generate(prompt, attention_mask=real, pad_token_id=0, **how)
        return cap

    for cache in CACHES:
        noted.clear()
        cap = act(cache)
        assert len(noted) >= 6 * len(cap.attention)
        assert_same(cap, read_one_by_one(monkeypatch, lambda cache=cache: act(cache)))


def test_a_mask_that_leaves_out_the_first_key_from_some_step_on_is_read(
    noted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, prompt = build(GPT2, "sdpa"), ids(6)

    def act() -> Capture:
        cache, now = transformers.StaticCache(config=model.config, max_cache_len=20), prompt
        with torch.no_grad(), capture(model) as cap:
            for step in range(9):
                real = torch.ones(2, 6 + step, dtype=torch.int64)
                real[1, 0] = int(step < 5)
                where = torch.arange(6)[None] if step == 0 else torch.tensor([[5 + step]])
                output = model(now, attention_mask=real, past_key_values=cache, position_ids=where, use_cache=True)
                now = output.logits[:, -1:].argmax(-1)
        return cap

    cap = act()
    assert len(noted) >= 3 * len(cap.attention)
    assert_same(cap, read_one_by_one(monkeypatch, act))
    weights = cap.attention[0].block(batch=1, head=0)
    assert (weights[6:10, 0] > 0).all()
    assert (weights[10:, 0] == 0).all()


def steps_of(model: Any, change: Callable[[Any, int], None], steps: int = 12, **keeping: Any) -> Capture:
    """Read a text token by token, while something else changes its cache."""
    cache, prompt = transformers.DynamicCache(config=model.config), ids(6)
    with torch.no_grad(), capture(model, strict=False, **keeping) as cap:
        now = prompt
        for step in range(steps):
            now = model(now, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
            change(cache, step)
    return cap


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_key_that_changes_before_it_leaves_the_window_is_told(place: int, noted: list[str]) -> None:
    """By so little that no output tells of it: when all keys are compared in the end, it has left the window."""

    def change(cache: Any, step: int) -> None:
        if step == 4:
            cache.layers[1].keys.data[:, :, place] *= 1 + 2**-22

    cap = steps_of(build(DECODERS["Mistral"], "eager"), change)
    assert noted
    assert [*cap.attention.names] == ["model.layers.0.self_attn"]
    assert "in a way that torch does not count" in cap.skipped["model.layers.1.self_attn"]


def test_a_change_that_torch_counts_ends_the_notes_of_a_layer_with_a_window(noted: list[str]) -> None:
    def change(cache: Any, step: int) -> None:
        if step == 4:
            cache.layers[1].keys[:, :, 1] *= 2

    cap = steps_of(build(DECODERS["Mistral"], "eager"), change)
    assert noted
    assert "do not have the keys of the first" in cap.skipped["model.layers.1.self_attn"]


@pytest.mark.parametrize("name", ["GPT-2", "Mistral"])
def test_values_that_are_not_kept_are_let_go_when_the_models_call_ends(name: str, noted: list[str]) -> None:
    model = build(DECODERS[name], "eager")
    with torch.no_grad(), capture(model, values=False) as cap:
        cache, now = transformers.DynamicCache(config=model.config), ids(6)
        for _ in range(6):
            now = model(now, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
            records = [one for records in cap._recorder.matcher.forwards for one in records.values()]
            assert not any(one._checks for one in records)
            assert not any(call.verify for one in records for call in one._noted)
    assert noted
    assert cap.skipped == {}


def test_outputs_of_values_that_are_not_kept_are_verified_by_the_models_own(
    noted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[int] = []
    later = Record.check_later
    monkeypatch.setattr(Record, "check_later", lambda *given: (checked.append(1), later(*given))[1])
    cap = generated(build(GPT2, "sdpa"), "dynamic", ids(6), values=False)
    assert len(checked) == len(noted) > 0
    assert cap.skipped == {}


def read(model: Any, cap: Capture, steps: int = 8) -> None:
    cache, now = transformers.DynamicCache(config=model.config), ids(6)
    with torch.no_grad(), cap:
        for _ in range(steps):
            now = model(now, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)


def test_a_model_that_stops_in_a_step_keeps_what_was_whole(noted: list[str]) -> None:
    model, seen = build(GPT2, "sdpa"), []

    def stop(*_: Any) -> None:
        seen.append(1)
        if len(seen) == 5:
            raise KeyboardInterrupt

    model.transformer.h[1].attn.c_proj.register_forward_hook(stop)
    cap = capture(model, values=False)
    with pytest.raises(KeyboardInterrupt):
        read(model, cap)
    assert noted
    assert cap.skipped == {}
    assert {att.shape.Q for att in cap.attention} == {6 + 4}
