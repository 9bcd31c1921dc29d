"""What a capture has to say of what it shows: searches that are not followed, guesses, other threads, padding."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from captured import DECODERS, GPT2, batch, build, generated, weights
from torch import Tensor, nn

from attnwidget import Capture, capture
from attnwidget._capture.modules import self_or_cross

transformers = pytest.importorskip("transformers")

PROMPT = torch.randint(3, 50, (3, 6), generator=torch.Generator().manual_seed(5))


def told(run: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run()
    return [str(one.message) for one in found if issubclass(one.category, UserWarning)]


def written_by_hand(change: Callable[[Any, Tensor], Tensor], kind: str = "GPT-2") -> Capture:
    """What was captured of a text whose cache is changed by somebody's own search after two tokens."""
    model = build(DECODERS[kind], "sdpa")
    cache, ids = transformers.DynamicCache(config=model.config), PROMPT
    with torch.no_grad(), capture(model) as cap:
        for step in range(4):
            ids = model(ids, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
            if step == 2:
                ids = change(cache, ids)
    return cap


def reordered(cache: Any, ids: Tensor) -> Tensor:
    order = torch.tensor([1, 0, 0])
    cache.reorder_cache(order)
    return ids[order]


def tried(cache: Any, ids: Tensor) -> Tensor:
    cache.batch_repeat_interleave(2)
    return ids.repeat_interleave(2, 0) + torch.arange(6)[:, None] % 2


# Searches.


def test_samples_that_change_places_in_a_search_of_ones_own_are_told() -> None:
    found: list[Capture] = []
    (word,) = told(lambda: found.append(written_by_hand(reordered)))
    assert word.startswith("samples changed places while a text was generated")
    read = found[0].tokens  # each sample has its own ids, from the row that it continues
    assert [one[:6] for one in read] == PROMPT[[1, 0, 0]].tolist()


def test_candidates_that_are_tried_as_samples_are_told() -> None:
    found: list[Capture] = []
    (word,) = told(lambda: found.append(written_by_hand(tried)))
    assert word.startswith("the number of samples changed while a text was generated")
    assert [forward.attention[0].shape.B for forward in found[0]] == [3, 6]


@pytest.mark.parametrize("how", [{}, {"num_beams": 3}, {"num_beams": 3, "num_return_sequences": 2}], ids=str)
def test_searches_that_are_followed_need_no_word(how: dict[str, Any]) -> None:
    model = build(GPT2, "sdpa")
    assert told(lambda: generated(model, capture(model), None, new=5, **how)) == []


def test_two_texts_of_unlike_numbers_of_samples_are_no_search() -> None:
    def run() -> None:
        model = build(GPT2, "sdpa")
        with torch.no_grad():
            cache = model(PROMPT[:1, :4]).past_key_values
            with capture(model):
                model(PROMPT[:2])
                model(PROMPT)
                model(PROMPT[:1, 4:], past_key_values=cache)  # a text of its own, with fewer keys than those before

    assert told(run) == []


# Guesses.


class Crossing(nn.Module):
    """Attention whose keys are its own, or of another text."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, y: Tensor, causal: bool = False) -> Tensor:
        q, k = (p(z).unflatten(-1, (2, 4)).transpose(1, 2) for p, z in ((self.to_q, x), (self.to_k, y)))
        return F.scaled_dot_product_attention(q, k, k, is_causal=causal)


def test_without_a_model_it_is_told_where_lengths_decide() -> None:
    x, model = torch.randn(1, 5, 8), Crossing()

    def run(*wanted: Any, causal: bool = False, **how: Any) -> Callable[[], Any]:
        def block() -> None:
            with torch.no_grad(), capture(*wanted, **how):
                model(x, x, causal)

        return block

    (word,) = told(run())
    assert word.startswith("capture() without a model does not see where q and k come from")
    assert "'Crossing' is self-attention" in word
    assert "capture(model)" in word
    for plain in (run(model), run(cross=False), run(causal=True)):
        assert told(plain) == []


# Threads.


def in_threads(*acts: Callable[[], Any]) -> None:
    threads = [threading.Thread(target=act) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_functions_of_torch_that_another_thread_has_called_are_told() -> None:
    model, x = Crossing(), torch.randn(1, 5, 8)
    why = r"called in another thread .* or enter another capture in each thread"
    with pytest.raises(ValueError, match=why), torch.no_grad(), capture(model):
        in_threads(lambda: model(x, x))
    with torch.no_grad(), capture(model) as cap:
        model(x, x)
        in_threads(lambda: model(x, x))
    assert len(cap) == 1
    assert "another thread" in cap.skipped["Crossing"]


@pytest.mark.parametrize("alone", [True, False], ids=["a model each", "one model"])
@pytest.mark.parametrize("kind", ["torch's function", "transformers"])
def test_each_of_two_threads_has_its_own_capture(kind: str, alone: bool) -> None:
    def make() -> Any:
        torch.manual_seed(0)
        return build(GPT2, "sdpa") if kind == "transformers" else Crossing().eval()

    own = make()
    models = [make(), make()] if alone else [own, own]
    texts = [(torch.randint(3, 50, (1, n)),) if kind == "transformers" else (torch.randn(1, n, 8),) * 2 for n in (5, 6)]
    expected = [single(model, text) for model, text in zip(models, texts, strict=True)]
    together, found = threading.Barrier(2, timeout=60), {}

    def work(i: int) -> None:
        with torch.no_grad(), capture(models[i]) as cap:
            together.wait()
            models[i](*texts[i])
            together.wait()
        found[i] = cap

    in_threads(lambda: work(0), lambda: work(1))
    for i, cap in found.items():
        there = [forward for forward in cap if 5 + i == forward.attention[0].shape.Q]
        assert len(there) == 1  # whole, and of this text alone
        assert list(there[0].calls) == list(expected[i].calls)
        for att, other in zip(there[0].attention, expected[i].attention, strict=True):
            assert torch.equal(weights(att), weights(other))
        elsewhere = len(cap) - 1 + ("another thread" in " ".join(cap.skipped.values()))
        assert elsewhere == (0 if alone else 1)  # the other thread's call is there as a forward pass, or told


def test_a_thread_waits_until_all_that_tells_self_from_cross_attention_is_watched(monkeypatch: Any) -> None:
    opened, begun, done = (threading.Event() for _ in range(3))
    children = self_or_cross._light_children

    def slowly(module: nn.Module) -> Any:
        for child in children(module):
            yield child
            begun.set()
            done.wait(timeout=0.3)  # here the other thread runs the model, if it may

    def first() -> None:
        opened.wait(timeout=60)
        model(x, x)

    def second() -> None:
        with torch.no_grad(), capture(model) as cap:
            opened.set()
            begun.wait(timeout=60)
            model(x, x)
            done.set()
        found.append(cap)

    monkeypatch.setattr(self_or_cross, "_light_children", slowly)
    model, x, found = Crossing(), torch.randn(1, 5, 8), []
    in_threads(first, second)
    assert [len(one.attention) for one in found] == [1]


def single(model: nn.Module, text: tuple[Tensor, ...]) -> Capture:
    with torch.no_grad(), capture(model) as cap:
        model(*text)
    return cap


# Padding.


class Words:
    """A tokenizer, as far as labels need one."""

    def convert_ids_to_tokens(self, one: int) -> str:
        return f"word{one}"


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_keeps_its_places_and_is_named_in_each_sample(side: str) -> None:
    model, inputs = build(DECODERS["Llama"], "sdpa"), batch(side)
    real = inputs["attention_mask"].bool()
    with torch.no_grad(), capture(model, tokenizer=Words()) as cap:
        model(**inputs)
    widget = cap.widget()
    for b in range(len(real)):
        expected = [
            f"word{one}" if there else "[PAD]"
            for one, there in zip(inputs["input_ids"][b].tolist(), real[b], strict=True)
        ]
        assert cap.tokens[b] == expected
        widget.batch = b
        assert (widget.facts["queries"], widget.facts["keys"]) == (real.shape[1], real.shape[1])
        kept = weights(cap.attention[0])[b][:, real[b]]
        assert not kept[..., ~real[b]].any()
    assert not real.all()
    widget.close()
