"""What of a model is kept: which layers and forward passes, within how many bytes; a capture called as the model."""

from __future__ import annotations

import asyncio
import re
import warnings
from typing import Any

import pytest
import torch
from captured import DECODERS, GPT2, GROUPED, SEQUENCES, Kind, batch, build
from torch import Tensor, nn

from attnwidget import AttentionStack, Capture, capture
from attnwidget._capture.call.memory_limit import MemoryLimit, read_limit
from attnwidget._utils.choices import Numbers, matches_name

transformers = pytest.importorskip("transformers")

FIVE = Kind(
    transformers.LlamaForCausalLM,
    transformers.LlamaConfig(**{**GROUPED, "num_hidden_layers": 5}),
)
LAYER = "model.layers.{}.self_attn"


def named(*numbers: int) -> list[str]:
    return [LAYER.format(i) for i in numbers]


def ids(length: int, seed: int = 0) -> Tensor:
    return torch.randint(3, 50, (1, length), generator=torch.Generator().manual_seed(seed))


def run(model: Any, *inputs: Tensor, **how: Any) -> Capture:
    with torch.no_grad(), capture(model, **how) as cap:
        for one in inputs:
            model(one)
    return cap


# Numbers and names.


@pytest.mark.parametrize(
    "given",
    [0, -1, slice(-2, None), slice(1, None, 2), slice(None, -1), slice(None, None, -2), range(1, 3), [0, -1, 9]],
)
def test_numbers_that_are_kept_early_hold_all_that_are_meant_in_the_end(given: Any) -> None:
    numbers = Numbers(given, "layers")
    for count in range(12):
        wanted = numbers.of(count)
        everything = list(range(count))
        chosen = everything[given] if isinstance(given, slice) else []
        if isinstance(given, slice):
            assert wanted == sorted(chosen)
        for seen in range(count + 1):
            assert all(numbers.may_hold(number, seen) for number in wanted if number < seen)


def test_last_numbers_are_not_held_for_long() -> None:
    numbers = Numbers(slice(-2, None), "queries")
    assert [n for n in range(10) if numbers.may_hold(n, 10)] == [8, 9]


@pytest.mark.parametrize("given", ["ab", 1.5, None, True, [0, "a"], slice("a", None), slice(None, None, 0)])
def test_what_is_no_number_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match=r"^layers .*: give integers, a slice, a range"):
        Numbers(given, "layers")


def test_names_match_by_dotted_parts() -> None:
    names = ["encoder.layer.1.attention", "encoder.layer.10.attention", "decoder.layer.1.cross_attention"]
    for wanted, found in {
        "layer.1": [0, 2],
        "encoder.*": [0, 1],
        "*.1*": [0, 1, 2],
        "layer.1?": [1],
        re.compile(r"cross|10"): [1, 2],
        "attention": [0, 1],
        "layer": [0, 1, 2],
        "ayer": [],
    }.items():
        assert [i for i, name in enumerate(names) if matches_name(wanted, name)] == found


# Layers.


@pytest.mark.parametrize(
    ("layers", "kept"),
    [
        (-1, [4]),
        (slice(-2, None), [3, 4]),
        (slice(None, None, 2), [0, 2, 4]),
        (slice(0, -3), [0, 1]),
        ([0, -1], [0, 4]),
        (range(1, 3), [1, 2]),
        ("layers.[13].*", [1, 3]),
        (re.compile(r"layers\.(0|4)\b"), [0, 4]),
        (["layers.2", -1], [2, 4]),
    ],
)
def test_layers_are_chosen_by_number_slice_glob_and_regex(layers: Any, kept: list[int]) -> None:
    model = build(FIVE, "sdpa")
    everything = run(model, ids(6))
    cap = run(model, ids(6), ids(7), layers=layers)
    assert [list(one.calls) for one in cap] == [named(*kept)] * 2
    for name in named(*kept):
        assert torch.equal(cap[0].calls[name].block(head=1), everything.calls[name].block(head=1))
    assert cap.nbytes < 2 * everything.nbytes


class Twice(nn.Module):
    """A layer that is used twice, and another."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleDict({"first": nn.MultiheadAttention(8, 2), "second": nn.MultiheadAttention(8, 2)})

    def forward(self, x: Tensor) -> Tensor:
        for name in ("first", "first", "second"):
            x = self.encoder[name](x, x, x)[0]  # type: ignore[index]
        return x


@pytest.mark.parametrize(
    "given",
    ["encoder.first", "encoder.first #2", "encoder.second", "second", "encoder.*", re.compile("#2|sec"), -1, 1,
     slice(-2, None), slice(None, None, 2), [0, "second"]],
)  # fmt: skip
def test_what_names_a_layer_of_a_capture_chooses_it(given: Any) -> None:
    x, model = torch.randn(3, 1, 8), Twice()
    everything = run(model, x)
    assert everything.attention.names == ("encoder.first", "encoder.first #2", "encoder.second")
    chosen = everything.attention[given]
    names = chosen.names if isinstance(chosen, AttentionStack) else [
        name for name, att in zip(everything.attention.names, everything.attention, strict=True) if att is chosen
    ]  # fmt: skip
    assert list(run(model, x, layers=given).attention.names) == list(names)


def test_layers_from_the_end_are_those_of_self_and_of_cross_attention() -> None:
    cap = run(build(SEQUENCES["BART"], "sdpa"), ids(6), layers=-1)
    assert list(cap.calls) == ["model.decoder.layers.1.self_attn", "model.decoder.layers.1.encoder_attn"]


def test_layers_from_the_end_hold_no_more_than_those_while_the_model_runs() -> None:
    model, most = build(FIVE, "sdpa"), []
    with torch.no_grad(), capture(model, layers=-1) as cap:
        for layer in model.model.layers:
            layer.register_forward_hook(lambda *_: most.append(len(cap.calls)))
        model(ids(6))
    assert most == [1, 1, 1, 1, 1]


def test_layers_of_a_generated_text_are_chosen_from_the_end() -> None:
    model = build(FIVE, "sdpa")
    with torch.no_grad(), capture(model, layers=slice(-2, None)) as cap:
        text = model.generate(ids(5), max_new_tokens=4, min_new_tokens=4, do_sample=False)
    assert list(cap.attention.names) == named(3, 4)
    assert text.shape[1] - 1 == cap.attention[-1].shape.Q


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (7, r"no layer is 7: there are 'model.layers.0.self_attn'"),
        (-6, r"no layer is -6: there are"),
        (slice(5, None), r"no layer is slice\(5, None, None\): there are"),
        ("layers.9", r"no layer is 'layers.9': .*no module of LlamaForCausalLM"),
        ("encoder.*", r"no layer is 'encoder\.\*': no module of LlamaForCausalLM"),
        (re.compile("cross"), r"no layer is 'cross': no module of LlamaForCausalLM"),
    ],
)
def test_layers_that_are_not_there_are_refused(layers: Any, message: str) -> None:
    model = build(FIVE, "sdpa")
    with pytest.raises(ValueError, match=message), torch.no_grad(), capture(model, layers=layers):
        model(ids(4))


# Forward passes.


def test_the_last_forward_passes_are_kept_with_their_numbers() -> None:
    model, inputs = build(GPT2, "sdpa"), [ids(n, seed=n) for n in (4, 5, 6, 7)]
    cap, everything = run(model, *inputs, last=2), run(model, *inputs)
    assert cap.numbers == [2, 3]
    assert [one.attention[0].shape.Q for one in cap] == [6, 7]
    assert cap.attention.names[0] == "forward 2: transformer.h.0.attn"
    assert torch.equal(cap[1].attention[1].block(), everything[3].attention[1].block())
    assert cap.nbytes == everything[2].nbytes + everything[3].nbytes


def test_no_more_than_the_last_forward_passes_are_ever_held() -> None:
    model, held = build(GPT2, "sdpa"), []
    with torch.no_grad(), capture(model, last=2) as cap:
        for n in range(4, 9):
            model(ids(n))
            held.append(len(cap))
    assert held == [1, 2, 2, 2, 2]


def test_every_nth_forward_pass_is_kept() -> None:
    model, inputs = build(GPT2, "sdpa"), [ids(n) for n in range(4, 12)]
    assert run(model, *inputs, every=3).numbers == [0, 3, 6]
    assert run(model, *inputs, every=3, last=2).numbers == [3, 6]
    assert run(model, inputs[0], every=3).attention[0].shape.Q == 4


def test_a_generated_text_is_one_forward_pass_of_those_that_are_counted() -> None:
    model, how = build(GPT2, "sdpa"), {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}
    with torch.no_grad(), capture(model, every=2) as cap:
        for n in range(4, 8):
            model.generate(ids(n, seed=n), **how)
    assert cap.numbers == [0, 2]
    assert [one.attention[0].shape.Q for one in cap] == [6, 8]


# Bytes.


def test_sizes_are_read() -> None:
    sizes = {"2GB": 2 * 10**9, "2 gb": 2 * 10**9, "1.5 MiB": 3 << 19, "10k": 10**4, "4096": 4096, 7: 7, "1_000 B": 1000}
    assert [read_limit(size) for size in sizes] == list(sizes.values())
    assert read_limit(None) is None


@pytest.mark.parametrize("limit", ["much", "2 XB", 0, -1, "", True, [1], float("inf"), float("nan")])
def test_sizes_that_are_none_are_refused(limit: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"limit is .*: give"):
        read_limit(limit)


def test_beyond_its_limit_a_capture_says_what_it_does_not_keep_and_the_model_goes_on() -> None:
    model, one = build(GPT2, "sdpa"), run(build(GPT2, "sdpa"), ids(8)).nbytes
    plain = [model(ids(8, seed)).logits for seed in range(3)]
    said = r"^the capture holds .*, half of its limit of .*: keep less: layers="
    limited = capture(model, limit=one + one // 4)
    with pytest.warns(UserWarning, match=said) as told, torch.no_grad(), limited as cap:
        outputs = [model(ids(8, seed)).logits for seed in range(3)]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(outputs, plain, strict=True))
    assert len(told) == 1
    assert cap.nbytes <= one + one // 4
    assert list(cap.skipped) == ["transformer.h.0.attn", "transformer.h.1.attn"]
    assert re.match(
        r"\d calls were not kept, because its limit of .* was reached: keep less: ", cap.skipped["transformer.h.0.attn"]
    )
    assert cap[0].attention[0].shape.Q == 8


def test_a_text_that_outgrows_the_limit_keeps_its_beginning() -> None:
    model = build(GPT2, "sdpa")
    how = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    with torch.no_grad(), capture(model) as whole:
        text = model.generate(ids(5), **how)
    limited = capture(model, limit=whole.nbytes // 2)
    with torch.no_grad(), pytest.warns(UserWarning, match="half of its limit"), limited as cap:
        assert torch.equal(model.generate(ids(5), **how), text)
    kept = cap.attention[0].shape.Q
    assert 5 <= kept < 16
    assert torch.equal(cap.attention[0].q, whole.attention[0].q[:, :, :kept])
    assert "transformer.h.0.attn" in cap.skipped


def test_a_text_that_grows_takes_no_more_of_the_limit_than_it_has() -> None:
    model = build(GPT2, "sdpa")
    how = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    with torch.no_grad(), capture(model) as whole:
        text = model.generate(ids(5), **how)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for share, is_all in ((1.2, True), (0.9, False)):
            with capture(model, limit=int(share * whole.nbytes)) as cap:
                assert torch.equal(model.generate(ids(5), **how), text)
            assert (cap.attention[0].shape.Q == 16) == (cap.skipped == {}) == is_all


def test_within_a_limit_the_last_forward_passes_make_room_for_others() -> None:
    one = run(build(GPT2, "sdpa"), ids(8)).nbytes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cap = run(build(GPT2, "sdpa"), *(ids(8, seed) for seed in range(6)), last=1, limit=3 * one)
    assert (cap.numbers, cap.skipped) == ([5], {})


def test_nothing_at_all_within_the_limit_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"the first is 'transformer.h.0.attn': this call was not kept, because its limit of"
    ):
        run(build(GPT2, "sdpa"), ids(8), limit=100)


def test_the_limit_is_a_share_of_free_memory_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnwidget._capture.call.memory_limit.free_bytes", lambda device: 1000)
    memory = MemoryLimit(None)
    assert memory.has_room(500, torch.device("cpu"))
    assert not memory.has_room(501, torch.device("cpu"))
    assert str(memory) == "its limit of 500 B, half of the memory that was free"
    monkeypatch.setattr("attnwidget._capture.call.memory_limit.free_bytes", lambda device: None)
    assert MemoryLimit(None).has_room(1 << 60, torch.device("cpu"))


def test_a_warning_that_is_an_error_does_not_stop_the_model() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cap = run(build(GPT2, "sdpa"), ids(8), limit=1 << 14)
    assert cap.skipped == {}


# Refusals as warnings.


def test_what_is_not_strict_warns_and_notes_what_is_missing() -> None:
    model = build(GPT2, "sdpa")
    with pytest.warns(UserWarning, match=r"no layer is 'h.7'.*cap.skipped has it"):
        cap = run(model, ids(4), layers=["h.7", "h.1"], strict=False)
    assert list(cap.calls) == ["transformer.h.1.attn"]
    assert cap.skipped["'h.7'"].startswith("no layer is 'h.7'")
    with pytest.warns(UserWarning, match="no layer is 5: there are"):
        assert list(run(model, ids(4), layers=[5, 0], strict=False).skipped) == ["5"]


def test_a_block_without_attention_only_warns_where_it_is_not_strict() -> None:
    model = nn.Linear(3, 3)
    with pytest.warns(UserWarning, match="no attention call was seen in Linear"):
        cap = run(model, torch.randn(2, 3), strict=False)
    assert list(cap.skipped) == ["Linear"]
    with pytest.raises(ValueError, match=r"nothing was recorded; .*'Linear': no attention"):
        _ = cap.attention
    with pytest.raises(ValueError, match="no attention call was seen in Linear"):
        run(model, torch.randn(2, 3))


# Without a block.


def test_a_capture_is_called_as_the_model_is() -> None:
    model, inputs = build(GPT2, "sdpa"), batch()
    expected = run(model, inputs["input_ids"])
    with torch.no_grad():
        cap = capture(model)
        output = cap(**inputs)
        assert torch.equal(output.logits, model(**inputs).logits)
        once = capture(model).run(inputs["input_ids"])
    for found in (cap, once):
        assert torch.equal(found.attention[1].block(head=2), expected.attention[1].block(head=2))
    with torch.no_grad():
        cap(ids(4))
    assert len(cap) == 2


def test_a_pipeline_is_called_as_itself() -> None:
    class Pipeline:
        def __init__(self, model: Any) -> None:
            self.model = model

        def __call__(self, length: int) -> str:
            self.model(ids(length))
            return "text"

    cap = capture(Pipeline(build(GPT2, "sdpa")))
    assert (cap(5), cap.attention[0].shape.Q) == ("text", 5)


def test_a_function_is_decorated_and_each_call_recorded() -> None:
    model = build(GPT2, "sdpa")

    @capture(model)
    def step(length: int, *, twice: bool = False) -> int:
        """ModelCall."""
        for _ in range(1 + twice):
            model(ids(length))
        return length

    assert (step(4), step(5, twice=True)) == (4, 5)
    assert (step.__name__, step.__doc__) == ("step", "ModelCall.")
    found: Any = step.capture  # type: ignore[attr-defined]
    assert [one.attention[0].shape.Q for one in found] == [4, 5, 5]


def test_a_function_that_is_awaited_is_recorded_and_a_generator_refused() -> None:
    model = build(GPT2, "sdpa")

    @capture(model)
    async def step(length: int) -> int:
        await asyncio.sleep(0)
        model(ids(length))
        return length

    assert asyncio.run(step(4)) == 4
    assert step.capture.attention[0].shape.Q == 4  # type: ignore[attr-defined]
    assert not model._forward_hooks

    def steps() -> Any:
        yield model(ids(4))

    with pytest.raises(TypeError, match="steps is a generator, which runs after its call has ended: put a block"):
        capture(model)(steps)


def test_a_function_that_raises_leaves_no_hook() -> None:
    model = build(GPT2, "sdpa")

    @capture(model)
    def step() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        step()
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


@pytest.mark.parametrize("model", [None, DECODERS["GPT-2"]])
def test_where_there_is_no_model_to_call_it_is_said(model: Any) -> None:
    class Holder:
        def __init__(self) -> None:
            self.model = build(GPT2, "sdpa")

    with pytest.raises(TypeError, match=r"(was given no model|a Holder cannot be called): give capture\(model\)"):
        capture(None if model is None else Holder())(ids(4))
