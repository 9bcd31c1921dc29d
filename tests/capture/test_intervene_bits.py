"""What an edit leaves as it was bit by bit, in every model of the capture tests: other heads, other layers, or all."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import test_tracing
import torch
from captured import COMMON, DECODERS, GROUPED, SEQUENCES, TEXT, Kind, batch, build, transformers
from left_to_thorough import left_to_thorough
from test_image_patches import LANGUAGE, VISION, llava, with_image
from test_intervene_models import MORE
from test_learned_sinks import model_of as model_with_sinks
from test_learned_sinks import other_models
from torch import Tensor
from torch.utils._pytree import tree_map

from attnwidget import capture, intervene
from attnwidget._capture.intercept.output_edits import OutputEdit
from attnwidget._capture.interventions.editor import Editor
from attnwidget._capture.interventions.edits import EditPlan
from attnwidget._capture.interventions.seen_call import SeenCall

IDS = batch()["input_ids"]


class Model(NamedTuple):
    """How a model is made, and with what it is called."""

    make: Callable[[], Any]
    inputs: Callable[[], dict[str, Any]]


def ids() -> dict[str, Any]:
    return {"input_ids": IDS}


def both_texts() -> dict[str, Any]:
    return {"input_ids": IDS, "decoder_input_ids": IDS[:, :5]}


def image(size: int) -> Callable[[], dict[str, Any]]:
    return lambda: {"pixel_values": torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))}


def of_kind(kind: Kind, implementation: str, inputs: Callable[[], dict[str, Any]] = ids) -> Model:
    return Model(lambda: build(kind, implementation), inputs)


def vision(name: str, size: int, **config: Any) -> Model:
    kind, own = (getattr(transformers, f"{name}{of}") for of in ("Model", "Config"))
    return of_kind(Kind(kind, own(**config)), "eager" if "Swin" in name else "sdpa", image(size))


def clip() -> Any:
    text = {**LANGUAGE, "eos_token_id": 2, "bos_token_id": 1}
    return transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=VISION)).eval()


SWIN = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 2}
ALBERT = transformers.AlbertConfig(**{**COMMON, "num_hidden_layers": 3}, vocab_size=50, embedding_size=16)
WAYS = ("sdpa", "eager")
# One of each way to compute attention, and of each kind of text: an image's, two texts', learned sinks, two towers.
EACH_COMMIT = ("GPT-2, sdpa", "Gemma 2, eager", "T5, sdpa", "BART, eager", "BLOOM", "gpt-oss", "Swin", "LLaVA")
MODELS: dict[str, Model] = {
    **{f"{name}, {how}": of_kind(kind, how) for name, kind in DECODERS.items() for how in kind.implementations},
    **{f"{name}, {how}": of_kind(one, how, both_texts) for name, one in SEQUENCES.items() for how in WAYS},
    **{name: of_kind(kind, "eager") for name, kind in test_tracing.MODELS.items()},
    **{name: of_kind(kind, "eager") for name, kind in MORE.items() if name not in ("ViT", "GPT-NeoX", "BERT")},
    **{name: of_kind(MORE[name], "sdpa") for name in ("GPT-NeoX", "BERT")},
    **{name: Model(lambda name=name: model_with_sinks(name), ids) for name in other_models()},  # type: ignore[misc]
    "ALBERT": of_kind(Kind(transformers.AlbertModel, ALBERT), "sdpa"),
    "Swin": vision("Swin", 32, **SWIN),
    "Swin 2": vision("Swinv2", 32, **SWIN),
    **{name: vision(name, 32, **VISION) for name in ("ViT", "DeiT", "SiglipVision")},
    "DINOv2": vision("Dinov2WithRegisters", 32, **VISION, num_register_tokens=3),
    "CLIP": Model(clip, lambda: {**image(32)(), "input_ids": IDS}),
    "LLaVA": Model(llava, lambda: {**image(32)(), "input_ids": with_image(2)}),
    "OPT": of_kind(
        Kind(transformers.OPTForCausalLM, transformers.OPTConfig(
            **TEXT, hidden_size=32, num_attention_heads=4, num_hidden_layers=2, ffn_dim=64, word_embed_proj_dim=32
        )), "sdpa",
    ),
    "OLMo 2": of_kind(Kind(transformers.Olmo2ForCausalLM, transformers.Olmo2Config(**{
        name: x for name, x in GROUPED.items() if name != "head_dim"
    })), "sdpa"),
}  # fmt: skip


class Watch(OutputEdit):
    """Notes the output of a call, after what was written into it."""

    def __init__(self, seen: SeenCall, found: dict[str, tuple[Tensor, ...]]) -> None:
        self._seen, self._found = seen, found

    @property
    def layer(self) -> str:
        """The name of its layer."""
        return self._seen.name

    def write(self, kernel: Any, output: Tensor, earlier: Any, weights: Any = None) -> None:
        call = self._seen.call
        self._found[self._seen.name] = tuple(x.clone() for x in (call.q, call.k, call.v, output) if x is not None)


class Watcher(Editor):
    """Has q, k, v and the output of every call of a model."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, EditPlan({"all": "zero"}))
        self.found: dict[str, tuple[Tensor, ...]] = {}

    def _edit_of(self, module: str, name: str, read: Any) -> Any:
        edit: Any = super()._edit_of(module, name, read)
        return None if edit is None else Watch(edit.seen, self.found)


class Outputs:
    """What modules of attention were given and gave, call after call."""

    def __init__(self, model: Any, names: list[str]) -> None:
        self.found: list[tuple[str, Any, Any]] = []
        modules = dict(model.named_modules())
        self.hooks = [
            modules[name].register_forward_hook(
                lambda _, args, kwargs, output, name=name: self._note(name, (args, kwargs), output), with_kwargs=True
            )
            for name in dict.fromkeys(one.partition(" #")[0] for one in names)
        ]

    def _note(self, name: str, given: Any, output: Any) -> None:
        kept = (tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, y) for y in (given, output))
        self.found.append((name, *kept))

    def remove(self) -> None:
        for hook in self.hooks:
            hook.remove()


def tensors(x: Any) -> list[Tensor]:
    """All tensors of an output."""
    found: list[Tensor] = []
    tree_map(lambda one: found.append(one) if isinstance(one, Tensor) else None, dict(x) if hasattr(x, "keys") else x)
    return found


def same(x: Any, y: Any) -> bool:
    one, other = tensors(x), tensors(y)
    return len(one) == len(other) > 0 and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@contextlib.contextmanager
def watched(model: Any) -> Iterator[Watcher]:
    watcher = Watcher(model)
    with watcher.open():
        yield watcher


class Runs(NamedTuple):
    """A model run without, with no and with an edit of one head of a call in its middle."""

    model: Any
    calls: list[str]  # in their order
    edited: str
    plain: Any
    empty: Any  # with no edits
    again: Any  # after the block
    output: Any
    run: Any
    before: dict[str, tuple[Tensor, ...]]  # q, k, v and output of each call
    after: dict[str, tuple[Tensor, ...]]
    modules: list[tuple[str, Any, Any]]  # what modules of attention were given and gave, with the edit


@pytest.fixture(scope="module", params=left_to_thorough(MODELS, EACH_COMMIT))
def runs(request: pytest.FixtureRequest) -> Runs:
    made = MODELS[request.param]
    torch.manual_seed(0)
    model, inputs = made.make().eval(), made.inputs()
    if "use_cache" in inspect.signature(model.forward).parameters:
        inputs["use_cache"] = False
    for config in {id(part.config): part.config for part in model.modules() if hasattr(part, "config")}.values():
        if hasattr(config, "use_cache"):  # of LLaVA up to 5.12 no argument says so; with a cache a call is no other's
            config.use_cache = False
    with torch.no_grad():
        plain = model(**inputs)
        calls = list(capture(model).run(**inputs).calls)
        edited = calls[len(calls) // 2]
        with intervene(model, {}):
            empty = model(**inputs)
        with watched(model) as before:
            model(**inputs)
        outputs = Outputs(model, calls)
        with intervene(model, {(edited, 1): "uniform"}) as run, watched(model) as after:
            output = model(**inputs)
        outputs.remove()
        again = model(**inputs)
    return Runs(model, calls, edited, plain, empty, again, output, run, before.found, after.found, outputs.found)


def test_no_edits_change_no_bit(runs: Runs) -> None:
    assert same(runs.empty, runs.plain)
    assert same(runs.again, runs.plain)


def test_heads_that_are_not_edited_have_the_kernels_numbers(runs: Runs) -> None:
    assert runs.run.edited == {runs.edited: (1,)}
    plain, edited = runs.before[runs.edited][-1], runs.after[runs.edited][-1]
    assert [torch.equal(plain[:, h], edited[:, h]) for h in range(plain.shape[1])] == [
        h != 1 for h in range(plain.shape[1])
    ]
    assert not same(runs.output, runs.plain)


def test_earlier_layers_and_what_the_call_itself_is_given_are_untouched(runs: Runs) -> None:
    assert list(runs.before) == list(runs.after) == runs.calls
    for name in runs.calls[: runs.calls.index(runs.edited)]:
        assert same(runs.before[name], runs.after[name]), name
    assert same(runs.before[runs.edited][:3], runs.after[runs.edited][:3])


def test_later_layers_are_run_by_their_own_kernels(runs: Runs) -> None:
    """Each module of attention that is given the edited stream, called alone without edits, gives the same bits."""
    later = runs.modules[runs.calls.index(runs.edited) + 1 :]
    assert len(runs.modules) == len(runs.calls)
    with torch.no_grad():
        for name, (args, kwargs), output in later:
            again = runs.model.get_submodule(name)(*args, **kwargs)
            assert same(again, output), name
