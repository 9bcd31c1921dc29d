"""What cannot be shown is refused with the next step, before a front-end hears of a widget."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import comm
import numpy as np
import pytest
import torch
import traitlets
from front_end import FrontEnd
from ipywidgets.widgets import widget as ipywidget

from attnwidget import Attention, AttentionStack, AttentionWidget
from attnwidget._engine import overview
from attnwidget._messages.pictures import heads_overview

q, k, v = torch.randn(3, 2, 4, 6, 8, generator=torch.Generator().manual_seed(0)).unbind(0)
WORDS = list("abcdef")

# Over the good widget of q, k and v: what is given, the error, and what it says.
BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "integers": ({"q": q.int(), "k": k.int()}, TypeError, "convert it to float32"),
    "complex": ({"q": q.to(torch.complex64)}, TypeError, "attention needs real numbers"),
    "a string": ({"q": "q"}, TypeError, "give a torch tensor or a numpy array"),
    "nothing": ({"q": None}, TypeError, "give a torch tensor or a numpy array"),
    "numbers in a list": ({"q": [[1.0, 2.0]], "k": [[1.0, 2.0]], "v": None}, TypeError, "q is a list"),
    "one axis": ({"q": q[0, 0, 0], "k": k[0, 0, 0], "v": None}, ValueError, "give 2 to 4 axes"),
    "six axes": ({"q": q[None, None], "k": k[None, None], "v": None}, ValueError, "give 2 to 4 axes"),
    "no query": ({"q": q[:, :, :0]}, ValueError, "is empty: give at least one"),
    "no layer": ({"q": [], "k": [], "v": None}, ValueError, "layers is empty: give at least one Attention"),
    "another head size": ({"k": k[..., :4]}, ValueError, "k has head size 4 but q has 8: project them"),
    "heads that do not divide": ({"k": k[:, :3], "v": v[:, :3]}, ValueError, "must be a multiple of those of k"),
    "another batch": ({"k": k[:1], "v": v[:1]}, ValueError, "k has batch size 1 but q has 2"),
    "another dtype": ({"k": k.double()}, TypeError, "convert them to one dtype"),
    "values of other keys": ({"v": v[:, :, :5]}, ValueError, "give each key its value"),
    "layers for q only": ({"q": q[None]}, ValueError, "k has 4 axes: give 5, layers first"),
    "dims of other axes": ({"dims": "bqd"}, ValueError, "give a letter per axis"),
    "a mask of integers": ({"mask": torch.ones(6, 6, dtype=torch.int64)}, ValueError, "say mask_means='keep'"),
    "a mask of another size": ({"mask": torch.ones(6, 5, dtype=torch.bool)}, ValueError, "mask"),
    "a scale that is none": ({"scale": "big"}, TypeError, "scale is 'big': give a number"),
    "a scale without end": ({"scale": float("inf")}, ValueError, "scale is inf: give a finite number"),
    "causal as a word": ({"is_causal": "yes"}, TypeError, "give True or False"),
    "a keyword that is none": ({"is_casual": True}, TypeError, "did you mean 'is_causal'"),
    "a keyword of looks": ({"colour_scale": "log"}, TypeError, "did you mean 'color_scale'"),
    "a trait of the kernel": ({"picture": {}}, TypeError, "no keyword is called 'picture'"),
    "a head too many": ({"head": 4}, IndexError, "head 4 is not there: this attention has heads 0 to 3"),
    "a head far away": ({"head": 99}, IndexError, "head 99 is not there"),
    "a head from the end": ({"head": -5}, IndexError, "head -5 is not there"),
    "a sample": ({"batch": 2}, IndexError, "batch 2 is not there: this attention has samples 0 to 1"),
    "a layer": ({"layer": 1}, IndexError, "layer 1 is not there: this attention has layer 0 only"),
    "a layer from the end": ({"layer": -2}, IndexError, "layer -2 is not there"),
    "a layer and a head": ({"head": 3, "layer": -99}, IndexError, "layer -99 is not there"),
    "tokens and a layer": ({"tokens": WORDS[::-1], "layer": 99}, IndexError, "layer 99 is not there"),
    "tokens and a layer from the end": ({"tokens": WORDS[::-1], "layer": -9}, IndexError, "layer -9 is not there"),
    "a query": ({"query": 6}, IndexError, "query 6 is not there: this attention has queries 0 to 5"),
    "a key": ({"key": 10**30}, IndexError, "is not there: this attention has keys 0 to 5"),
    "half a head": ({"head": 1.5}, TypeError, "head is 1.5: give a whole number"),
    "a head by name": ({"head": "1"}, TypeError, "head is '1': give a whole number"),
    "no head": ({"head": None}, TypeError, "head is None: give a whole number"),
    "True as a query": ({"query": True}, TypeError, "query is True: give a whole number or None"),
    "a stage": ({"stage": "weight"}, ValueError, "did you mean 'weights'"),
    "a pool": ({"pool": "maximum"}, ValueError, "give one of max, mean"),
    "a color scale": ({"color_scale": "lin"}, ValueError, "did you mean 'linear'"),
    "a color range": ({"color_range": "heads"}, ValueError, "did you mean 'head'"),
    "a color range upside down": ({"color_range": (1, 0)}, ValueError, "the first must be less than the second"),
    "a palette": ({"palette": "virdis"}, ValueError, "did you mean 'viridis'"),
    "a theme": ({"theme": "drak"}, ValueError, "did you mean 'dark'"),
    "a view": ({"view": "heat map"}, ValueError, "did you mean 'heatmap'"),
    "a title": ({"title": 3}, TypeError, "title is 3: give a string"),
    "too few tokens": ({"tokens": WORDS[:5]}, ValueError, "tokens has 5 strings but there are 6 positions"),
    "too many key tokens": ({"key_tokens": [*WORDS, "g"]}, ValueError, "key_tokens has 7 strings but there are 6"),
    "tokens of other samples": ({"tokens": [WORDS] * 3}, ValueError, "tokens has 3 lists but there are 2 samples"),
    "one sample too short": ({"tokens": [WORDS, WORDS[:2]]}, ValueError, r"tokens\[1\] has 2 strings"),
    "a text": ({"tokens": "abcdef"}, TypeError, "tokens is one string 'abcdef'"),
    "ids": ({"tokens": list(range(6))}, TypeError, r"tokens\[0\] is 0, of type int: give strings"),
    "ids in a tensor": ({"key_tokens": torch.arange(6)}, TypeError, r"key_tokens\[0\] is 0"),
    "bytes": ({"tokens": [b"a"] * 6}, TypeError, "of type bytes: give strings"),
    "good and bad": ({"head": 2, "stage": "scores", "tokens": WORDS, "theme": "x"}, ValueError, "theme"),
}


@pytest.fixture(autouse=True, scope="module")
def _only_what_is_new() -> Iterator[None]:
    """The collector looks at what these tests make, not at torch's many objects."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def widgets_alive() -> int:
    gc.collect()
    return sum(AttentionWidget in type(x).__mro__ for x in gc.get_objects())


def comms_and_widgets(front_end: FrontEnd) -> tuple[int, int]:
    return len(front_end.messages), len(ipywidget._instances)


def give(change: dict[str, Any]) -> None:
    keywords = {"q": q, "k": k, "v": v, **change}
    AttentionWidget(keywords.pop("q"), keywords.pop("k"), keywords.pop("v"), **keywords)


@pytest.fixture(scope="module")
def _script_is_made() -> None:
    """The script's model is made with a kernel's first widget, and stays."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comm, "create_comm", FrontEnd().create_comm)
        AttentionWidget(q, k, v).close()


@pytest.mark.usefixtures("_script_is_made")
@pytest.mark.parametrize("given", BAD)
def test_what_is_refused_leaves_no_half_made_widget(given: str, front_end: FrontEnd) -> None:
    change, error, said = BAD[given]
    before = comms_and_widgets(front_end)
    with pytest.raises(error, match=said) as refusal:
        give(change)
    sentence = str(refusal.value)
    assert len(sentence) < 400
    assert "\n" not in sentence
    assert comms_and_widgets(front_end) == before


@pytest.mark.usefixtures("_script_is_made")
def test_no_widget_that_was_refused_stays_in_memory(front_end: FrontEnd) -> None:
    before = widgets_alive()
    for change, error, _ in BAD.values():
        with pytest.raises(error):
            give(change)
    assert widgets_alive() == before
    assert not front_end.messages


@pytest.mark.parametrize("what", ["picture", "thumbnails"])
def test_what_cannot_be_computed_leaves_no_half_made_widget(
    what: str, front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_memory(*of: Any, **keywords: Any) -> Any:
        raise RuntimeError("CUDA out of memory. Tried to allocate 97 GiB")

    module, name = {"picture": (overview, "overview"), "thumbnails": (heads_overview, "HeadSampler")}[what]
    monkeypatch.setattr(module, name, out_of_memory)
    before = *comms_and_widgets(front_end), widgets_alive()
    with pytest.raises(RuntimeError, match="CUDA out of memory") as refusal:
        AttentionWidget(q, k)
    del refusal
    assert (*comms_and_widgets(front_end), widgets_alive()) == before


SETTABLE = {
    given: case
    for given, case in BAD.items()
    if set(case[0]) <= {"layer", "batch", "head", "query", "key", "stage", "pool", "color_scale", "color_range",
                        "palette", "theme", "view", "title", "tokens", "key_tokens"}
}  # fmt: skip


def set_at_once(w: AttentionWidget, traits: dict[str, Any]) -> None:
    with w.hold_trait_notifications():
        for name, value in traits.items():
            setattr(w, name, value)


@pytest.mark.parametrize("given", SETTABLE)
def test_what_is_refused_later_changes_nothing(given: str, front_end: FrontEnd) -> None:
    change, error, said = SETTABLE[given]
    w = AttentionWidget(q, k, v, head=1, query=2, tokens=WORDS, title="before")
    state, sent = w.get_state(), len(front_end.messages)
    with pytest.raises(error, match=said):
        set_at_once(w, change)
    assert w.get_state() == state
    assert len(front_end.messages) == sent
    if len(change) == 1:
        ((name, value),) = change.items()
        with pytest.raises(error, match=said):
            setattr(w, name, value)
        assert w.get_state() == state
        assert len(front_end.messages) == sent
    w.head = 3
    assert w.picture["head"] == 3, "it goes on working"


@pytest.mark.parametrize("wrong", [None, 3, torch.zeros(3, 4), [Attention(q, k)], np.zeros(3)])
def test_from_attention_takes_an_attention_and_says_so(wrong: Any, front_end: FrontEnd) -> None:
    with pytest.raises(TypeError, match=r"an AttentionStack, such as .* or call AttentionWidget\(q, k, v\)"):
        AttentionWidget.from_attention(wrong)
    assert not front_end.messages


def test_from_attention_knows_its_keywords(front_end: FrontEnd) -> None:
    att = Attention(q, k)
    with pytest.raises(TypeError, match="no keyword is called 'is_causal'"):
        AttentionWidget.from_attention(att, is_causal=True)
    with pytest.raises(TypeError, match="did you mean 'tokens'"):
        AttentionWidget.from_attention(att, token=WORDS)
    with pytest.raises(IndexError, match="layer 2 is not there: this attention has layers 0 to 1"):
        AttentionWidget.from_attention(AttentionStack([att, att]), layer=2)
    assert not front_end.messages


@pytest.mark.parametrize(("query", "error"), [(6, IndexError), (-7, IndexError), (None, TypeError), ([0, 1], TypeError),
                                              (slice(2), TypeError), ("0", TypeError), (True, TypeError)])  # fmt: skip
def test_weights_are_of_one_query_that_is_there(query: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="query"):
        AttentionWidget(q, k).weights(query)


def test_errors_are_pythons_and_traitlets() -> None:
    w = AttentionWidget(q, k)
    with pytest.raises(traitlets.TraitError):
        w.head = 99
    with pytest.raises(IndexError):
        w.head = 99
