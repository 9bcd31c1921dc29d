"""Edits in the situations in which models run: half types, autocast, inference mode, wrappers, long texts."""

from __future__ import annotations

import copy
import threading
from typing import Any

import edited_copies as copies
import pytest
import torch
import torch.nn.functional as F
from allocations import PeakBytes
from captured import DECODERS, SEQUENCES, Kind, batch, build
from left_to_thorough import left_to_thorough
from test_intervene_calls import B, E, H, Layers, Q, by_hand, by_sdpa, text
from tolerance import assert_as_near
from torch import Tensor, nn
from torch.testing import assert_close

from attnwidget import intervene
from attnwidget._capture.interventions.edits import PerSample

transformers = pytest.importorskip("transformers")
EDIT = {(1, (0, 2)): {"drop_keys": [1, 3]}}
BY_WEIGHTS = copies.without(lambda rows, keys: (keys == 1) | (keys == 3))
SAME = {(1, 0): BY_WEIGHTS, (1, 2): BY_WEIGHTS}


def logits(model: Any, inputs: dict[str, Tensor], edits: Any = EDIT) -> Tensor:
    with torch.no_grad(), intervene(model, edits):
        found: Tensor = model(**inputs).logits
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("name", "implementation"), [("GPT-2", "sdpa"), ("Llama", "sdpa"), ("Gemma 2", "eager")])
def test_half_types(name: str, implementation: str, dtype: torch.dtype) -> None:
    inputs = batch()
    model = copies.sharpened(build(DECODERS[name], implementation), 3.0).to(dtype)
    eager = copies.sharpened(build(DECODERS[name], "eager"), 3.0).to(dtype)
    ours = logits(model, inputs)
    assert ours.dtype is dtype
    theirs = copies.run(copy.deepcopy(eager), inputs, SAME).logits
    assert_as_near(ours, theirs, copies.run_in_float64(eager, inputs, SAME).logits)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_autocast(implementation: str) -> None:
    inputs = batch()
    model = copies.sharpened(build(DECODERS["Llama"], implementation), 3.0)
    with torch.autocast("cpu", torch.bfloat16):
        ours = logits(model, inputs)
    eager = copies.sharpened(build(DECODERS["Llama"], "eager"), 3.0)
    with torch.autocast("cpu", torch.bfloat16):
        theirs = copies.run(copy.deepcopy(eager), inputs, SAME).logits
    assert_as_near(ours, theirs, copies.run_in_float64(eager, inputs, SAME).logits)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_flex_attention_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch runs it uncompiled: what its compiler makes needs a C++ compiler."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    from transformers import masking_utils
    from transformers.integrations import flex_attention as of_transformers

    def block_mask(*args: Any, _compile: bool, **how: Any) -> Any:
        return create_block_mask(*args, **how)

    monkeypatch.setattr(of_transformers, "WrappedFlexAttention", lambda training: lambda: flex_attention)
    monkeypatch.setattr(masking_utils, "create_block_mask", block_mask)
    eager = copies.sharpened(build(DECODERS["Llama"], "eager"))
    ours = logits(copies.sharpened(build(DECODERS["Llama"], "flex_attention")), batch())
    theirs = copies.run(copy.deepcopy(eager), batch(), SAME).logits
    assert_as_near(ours, theirs, copies.run_in_float64(eager, batch(), SAME).logits)


@pytest.mark.parametrize("padded", [False, True])
def test_layers_of_torchs_own_encoder(padded: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(E, H, 32, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    padding = torch.zeros(B, Q, dtype=torch.bool)
    padding[1, 5:] = padded
    how: dict[str, Any] = {"src_key_padding_mask": padding} if padded else {}
    seen: list[Tensor] = []
    model.layers[1].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        with intervene(model, {(1, 2): {"drop_keys": [6]}}) as run:
            edited = model(text(), **how)
        assert run.edited == {"layers.1.self_attn": (2,)}
        with intervene(model, {(0, 0): PerSample([None] * B), (1, 2): PerSample(["zero", None, "zero"])}):
            one = model(text(), **how)
    assert torch.equal(seen[0], seen[1])
    same = (one[1] - edited[1]).abs().max() < 1e-5
    assert bool(same) is padded  # there, the key that is dropped is padding
    assert not torch.equal(one[0], edited[0])


def test_inference_mode() -> None:
    model = copies.sharpened(build(DECODERS["Llama"], "sdpa"))
    wanted = logits(model, batch())
    with torch.inference_mode(), intervene(model, EDIT):
        assert_close(model(**batch()).logits, wanted, rtol=1e-4, atol=1e-5)
    plain = Layers(by_sdpa)
    with torch.inference_mode(), intervene(plain, {(1, 2): {"drop_keys": [1]}}):
        output = plain(text())
    with torch.no_grad():
        assert_close(output.clone(), by_hand(plain, 1, 2, 1)(text()), rtol=1e-4, atol=1e-5)


class Masked(copies.EditedWeights):
    """Makes the edit in the scores, through which gradients flow."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.softmax or args[0].ndim != 4:
            return func(*args, **(kwargs or {}))
        scores, self.count = args[0], self.count + 1
        if self.count < 2:
            return func(*args, **(kwargs or {}))
        cells = torch.zeros(scores.shape[1], 1, scores.shape[-1], dtype=torch.bool)
        cells[[[0], [2]], :, [1, 3]] = True
        return func(scores.masked_fill(cells, torch.finfo(scores.dtype).min), *args[1:], **(kwargs or {}))


def test_gradients_of_a_model_of_transformers() -> None:
    model = copies.sharpened(build(DECODERS["Llama"], "sdpa"), 3.0)
    eager = copies.sharpened(build(DECODERS["Llama"], "eager"), 3.0)
    with intervene(model, EDIT):
        model(**batch()).logits.square().mean().backward()
    with Masked({}):
        eager(**batch()).logits.square().mean().backward()
    for (name, one), two in zip(model.named_parameters(), eager.parameters(), strict=True):
        assert one.grad is not None
        assert two.grad is not None
        assert_close(one.grad, two.grad, rtol=1e-3, atol=1e-4 * float(two.grad.abs().max()), msg=name)


def test_heads_and_layers_from_the_end_that_a_config_does_not_have_are_refused_before_the_model_runs() -> None:
    model = build(DECODERS["Llama"], "sdpa")
    with pytest.raises(ValueError, match="heads 0 to 5, and no head 6"):
        intervene(model, {(0, (1, 6)): "zero"}).__enter__()
    with torch.no_grad(), intervene(model, {(-1, 2): "zero", (-2, -1): "uniform"}) as run:
        model(**batch())
    assert run.edited == {"model.layers.0.self_attn": (5,), "model.layers.1.self_attn": (2,)}
    with pytest.raises(ValueError, match="the model has 2 layers"):
        intervene(model, {-3: "zero"}).__enter__()
    model.config.num_hidden_layers = 3
    with torch.no_grad(), pytest.raises(ValueError, match="count them from the first"), intervene(model, {-2: "zero"}):
        model(**batch())
    sequences = build(SEQUENCES["BART"], "sdpa")
    inputs = {**batch(), "decoder_input_ids": batch()["input_ids"][:, :5]}
    del inputs["position_ids"]
    with torch.no_grad(), intervene(sequences, {3: "zero"}) as run:
        sequences(**inputs)
    assert list(run.edited) == ["model.decoder.layers.1.self_attn"]


def test_a_model_in_a_wrapper_is_edited_by_its_own_names() -> None:
    class Wrapper(nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.inner = model

        def forward(self, **inputs: Tensor) -> Any:
            return self.inner(**inputs)

    model = copies.sharpened(build(DECODERS["Llama"], "sdpa"))
    wanted = logits(model, batch())
    assert torch.equal(logits(Wrapper(model), batch()), wanted)
    assert torch.equal(logits(Wrapper(model), batch(), {("inner.model.layers.1", (0, 2)): EDIT[1, (0, 2)]}), wanted)


def test_another_model_beside_it_is_left_as_it_is() -> None:
    model, other = (copies.sharpened(build(DECODERS["Llama"], "sdpa")) for _ in range(2))
    with torch.no_grad():
        plain = other(**batch()).logits
        with intervene(model, EDIT):
            edited = model(**batch()).logits
            assert torch.equal(other(**batch()).logits, plain)
    assert not torch.equal(edited, plain)


def test_two_threads_edit_two_copies() -> None:
    models = [copies.sharpened(build(DECODERS["GPT-2"], "sdpa")) for _ in range(2)]
    edits: list[Any] = [{(0, 1): "zero"}, {(1, 2): {"drop_keys": [0]}}]
    wanted = [logits(model, batch(), edit) for model, edit in zip(models, edits, strict=True)]
    found: dict[int, list[Tensor]] = {0: [], 1: []}

    def run(which: int) -> None:
        for _ in range(5):
            found[which].append(logits(models[which], batch(), edits[which]))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(2):
        assert len(found[i]) == 5
        assert all(torch.equal(one, wanted[i]) for one in found[i])


def test_one_model_in_two_threads_is_edited_in_each_as_it_says() -> None:
    model = copies.sharpened(build(DECODERS["GPT-2"], "sdpa"))
    edits: list[Any] = [{(0, 1): "zero"}, {(1, 2): {"drop_keys": [0]}}]
    wanted = [logits(model, batch(), edit) for edit in edits]
    found: dict[int, list[Tensor]] = {0: [], 1: []}

    def run(which: int) -> None:
        for _ in range(5):
            found[which].append(logits(model, batch(), edits[which]))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(2):
        assert all(torch.equal(one, wanted[i]) for one in found[i])


def test_a_thread_that_runs_the_model_while_an_edit_ends_goes_on() -> None:
    """torch calls a hook that takes keywords without them, if another thread removes it at that moment."""
    model = copies.sharpened(build(DECODERS["GPT-2"], "sdpa"))
    errors: list[BaseException] = []
    with torch.no_grad(), intervene(model, {(0, 1): "zero"}) as run:
        output = model(**batch())
        (note,) = [hook for hook in model._forward_hooks.values() if "_begin" in hook.__qualname__]

        def call() -> None:
            try:
                note(model, (), "of another thread")
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert errors == []
    assert run.output is output


def test_positions_count_from_the_start_of_a_cache_that_was_given() -> None:
    model = copies.sharpened(build(DECODERS["Llama"], "sdpa"), 3.0)
    ids = batch()["input_ids"]
    edits = {(1, 2): {"drop_keys": [2, 10]}}
    with torch.no_grad(), intervene(model, edits):
        first = model(ids[:, :8], use_cache=True)
        found = model(ids[:, 8:], past_key_values=first.past_key_values).logits
    with torch.no_grad(), intervene(model, edits):
        wanted = model(ids).logits
    assert_close(found, wanted[:, 8:], rtol=1e-3, atol=1e-4)


LONG: dict[str, Any] = {
    "block": {"drop_keys": [5], "block": (slice(100, 200), slice(50))},
    "mask": {"mask": lambda b, h, q_idx, kv_idx: q_idx - kv_idx < 9},
    "window of a cache": {"keep": {"policy": "window", "budget": 64}},
    "heavy hitters": {"keep": {"policy": "heavy_hitters", "budget": 64}},
    "uniform": "uniform",
}


@pytest.mark.parametrize("name", left_to_thorough(LONG, ["block", "mask", "window of a cache"]))
def test_no_tensor_of_all_queries_and_keys_is_made(name: str) -> None:
    """Of 4,096 tokens, the weights of one head take 64 MiB in float32."""
    kind = Kind(
        transformers.GPT2LMHeadModel,
        transformers.GPT2Config(n_embd=32, n_head=2, n_layer=1, vocab_size=50, n_positions=4096),
    )
    model, ids = build(kind, "sdpa"), torch.randint(3, 50, (1, 4096))
    edits = {(0, 1): LONG[name]}

    def peak(changed: Any) -> int:
        with torch.no_grad(), PeakBytes() as bytes_, intervene(model, changed):
            model(ids, use_cache=False)
        return bytes_.peak

    share = 3 if name == "heavy hitters" else 1  # its own blocks are larger
    assert peak(edits) - peak({}) < share * 4096 * 4096  # at most so many quarters of the bytes of one head's weights


def training(**config: Any) -> Any:
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_embd=32, n_head=4, n_layer=2, vocab_size=50, n_positions=64, **config)
    ).train()


@pytest.mark.parametrize("key", [0, (1, 2), "all", "transformer.h.1.attn"])
@pytest.mark.parametrize("edit", ["uniform", {"drop_keys": [1]}])
def test_dropped_weights_are_refused_before_the_model_runs(key: Any, edit: Any) -> None:
    model, began = training(), []
    model.register_forward_pre_hook(lambda *_: began.append(1))
    with pytest.raises(
        ValueError,
        match=r"drops weights at random in training and does not report which.*model\.eval\(\), set its dropout to 0",
    ):
        intervene(model, {key: edit}).__enter__()
    with intervene(model, {key: "zero"}) as run:
        model(batch()["input_ids"])
    assert run.edited
    assert began == [1]


def test_a_model_in_training_without_dropout_of_weights_is_edited() -> None:
    model = training(attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0)
    again = copy.deepcopy(model).eval()
    for one in (model, again):
        with intervene(one, EDIT):
            one(batch()["input_ids"]).logits.square().sum().backward()
    for one, two in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one.grad, two.grad)  # type: ignore[arg-type]


def test_a_layer_that_drops_nothing_is_edited_beside_one_that_does() -> None:
    model = training(attn_pdrop=0.0)
    model.transformer.h[1].attn.attn_dropout.p = 0.5
    with intervene(model, {0: "uniform"}) as run:
        model(batch()["input_ids"])
    assert list(run.edited) == ["transformer.h.0.attn"]
    with pytest.raises(ValueError, match=r"h\.1\.attn drops weights"), intervene(model, {1: "uniform"}):
        model(batch()["input_ids"])
