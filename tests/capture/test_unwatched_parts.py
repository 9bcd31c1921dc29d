"""A model of one's own class around one of transformers: inside the latter nothing is watched, around it all is."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from captured import GPT2, build
from torch import Tensor, nn

from attnwidget import Capture, capture
from attnwidget._capture.intercept import hooks

transformers = pytest.importorskip("transformers")

IDS = torch.randint(3, 50, (1, 6), generator=torch.Generator().manual_seed(3))
LAYERS = ["inner.transformer.h.0.attn", "inner.transformer.h.1.attn"]


class Around(nn.Module):
    """A reader that attends to what a GPT-2 gives, with torch's function or written out, from some step on."""

    def __init__(self, written_out: bool = False, since: int = 0) -> None:
        super().__init__()
        self.inner = build(GPT2, "sdpa")
        self.written_out, self.since, self.steps = written_out, since, 0

    def forward(self, ids: Tensor) -> Tensor:
        x = self.inner.transformer(ids)[0].unflatten(-1, (2, -1)).transpose(1, 2)
        self.steps += 1
        if self.steps <= self.since:
            return x
        if self.written_out:
            return (x @ x.mT * x.shape[-1] ** -0.5).softmax(-1) @ x
        return F.scaled_dot_product_attention(x, x, x)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each matrix product of GPT-2's layers is added that is watched: 4 of each layer."""
    found: list[int] = []
    see = hooks.FunctionWatcher.__torch_function__

    def seeing(self: Any, func: Any, *given: Any) -> Any:
        if func is torch.addmm:
            found.append(1)
        return see(self, func, *given)

    monkeypatch.setattr(hooks.FunctionWatcher, "__torch_function__", seeing)
    return found


def run(model: Any, steps: int = 3) -> Capture:
    with torch.no_grad(), capture(model, strict=False) as cap:
        for _ in range(steps):
            model(IDS)
    assert torch.overrides._get_current_function_mode() is None
    assert not model.inner.transformer._forward_pre_hooks
    return cap


@pytest.mark.parametrize("written_out", [False, True])
@pytest.mark.parametrize("since", [0, 2])
def test_what_is_around_is_seen_in_each_call_whenever_it_begins(
    since: int, written_out: bool, watched: list[int]
) -> None:
    cap = run(Around(written_out, since), steps=4)
    assert len(watched) == 8  # in the first call of two layers
    assert cap.skipped == {}
    own = [[name for name in forward.calls if name not in LAYERS] for forward in cap]
    assert [len(names) for names in own] == [0] * since + [1] * (4 - since)
    assert all([*forward.calls][:2] == LAYERS for forward in cap)


class Subclass(transformers.GPT2LMHeadModel):  # type: ignore[misc]
    """A model of transformers in a class of one's own, which scores its own words."""

    def forward(self, *given: Any, **named: Any) -> Any:
        output = super().forward(*given, **named)
        output.logits = output.logits * 1.5
        return output


def test_a_text_of_a_class_of_ones_own_is_that_of_transformers(watched: list[int]) -> None:
    own, usual = build(GPT2, "sdpa"), build(GPT2, "sdpa")
    own.__class__ = Subclass
    caps = []
    for model in (own, usual):
        with torch.no_grad(), capture(model) as cap:
            cap_of = model.generate(IDS, max_new_tokens=6, min_new_tokens=6, do_sample=False)
        caps.append((cap, cap_of))
    assert 8 <= len(watched) < 16  # in the first call of the first model
    (one, text), (other, usual_text) = caps
    assert torch.equal(text, usual_text)
    for mine, theirs in zip(one.attention, other.attention, strict=True):
        assert torch.equal(mine.q, theirs.q)
        assert torch.equal(mine.k, theirs.k)
        assert torch.equal(mine.v, theirs.v)


class OwnAttention(nn.Module):
    """Attends without transformers' interface."""

    def forward(self, x: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        heads = x.unflatten(-1, (4, -1)).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads, heads, is_causal=True).transpose(1, 2).flatten(2), None


CHANGES: dict[str, Any] = {
    "forward": lambda block: setattr(block.attn, "forward", OwnAttention().forward),
    "module": lambda block: setattr(block, "attn", OwnAttention()),
    "class": lambda block: setattr(block.attn, "__class__", type("Own", (OwnAttention,), {})),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_layer_that_is_changed_inside_the_block_is_seen(change: str) -> None:
    model = Around()
    with torch.no_grad(), capture(model, strict=False) as cap:
        model(IDS)
        model(IDS)
        CHANGES[change](model.inner.transformer.h[1])
        model(IDS)
    seen = [*cap[2].calls, *cap.skipped]
    assert len(seen) == 3, seen
    assert seen[0] == LAYERS[0]


class Before(Around):
    """A reader that attends to its own words before GPT-2 reads them."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.inner.transformer.wte.weight[ids].unflatten(-1, (2, -1)).transpose(1, 2)
        F.scaled_dot_product_attention(x, x, x)
        return self.inner.transformer(ids)[0]


def run_and_interrupt(model: Around) -> None:
    """Run a model twice, and interrupt it in its second layer the third time."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    model(IDS)
    model(IDS)
    handle = model.inner.transformer.h[1].register_forward_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        model(IDS)
    handle.remove()


@pytest.mark.parametrize("kind", [Around, Before])
def test_a_model_that_is_interrupted_inside_is_watched_again(kind: type[Around], watched: list[int]) -> None:
    model = kind()
    with torch.no_grad(), capture(model, strict=False) as cap:
        run_and_interrupt(model)
        model(IDS)
    assert torch.overrides._get_current_function_mode() is None
    own = [name for name in cap[-1].calls if name.startswith(kind.__name__)]
    assert own == [kind.__name__]
    assert cap.skipped == {}


def test_a_block_that_goes_on_after_an_interrupt_says_so() -> None:
    model = Around()
    with torch.no_grad(), capture(model, strict=False) as cap:
        run_and_interrupt(model)
    assert "it was interrupted, and the block went on" in cap.skipped["Around"]


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_no_mode_is_left_where_an_error_ends_the_block(error: type[BaseException]) -> None:
    model, calls = Around(), []

    def stop(*_: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise error

    model.inner.transformer.h[1].register_forward_hook(stop)
    with pytest.raises(error):
        run(model)
    assert torch.overrides._get_current_function_mode() is None


def test_another_thread_neither_stops_nor_begins_to_watch(watched: list[int]) -> None:
    model, seen = Around(), []

    def elsewhere() -> None:
        with torch.no_grad():
            model(IDS)
        seen.append(torch.overrides._get_current_function_mode())

    with torch.no_grad(), capture(model, strict=False) as cap:
        model(IDS)
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert isinstance(torch.overrides._get_current_function_mode(), hooks.FunctionWatcher)
        model(IDS)
    assert seen == [None]
    assert torch.overrides._get_current_function_mode() is None
    assert len([name for name in cap[-1].calls if name not in LAYERS]) == 1


def test_two_captures_within_one_another_see_what_is_around() -> None:
    model = Around()
    with torch.no_grad(), capture(model) as outer, capture(model) as inner:
        for _ in range(3):
            model(IDS)
    assert torch.overrides._get_current_function_mode() is None
    for cap in (outer, inner):
        assert [len(forward.calls) for forward in cap] == [3, 3, 3]
        assert cap.skipped == {}
