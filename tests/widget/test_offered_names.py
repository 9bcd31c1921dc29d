"""What an editor offers after a dot: what is meant for users, and all of that."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import attnwidget
from attnwidget import Attention, AttentionWidget, ComparisonWidget, compare, masks, scaling

Q, K = torch.randn(2, 1, 2, 4, 8)
ATT = Attention(Q, K, K)
WIDGET, BOTH = AttentionWidget(Q, K), compare(ATT, ATT)
METHODS = {"close", "figure", "finish", "from_attention", "metrics", "observe", "to_html", "unobserve",
           "update", "weights"}  # fmt: skip


def keywords_of(function: Any) -> set[str]:
    """Return the keywords that `help()` lists."""
    listed = inspect.signature(function).parameters.items()
    return {name for name, one in listed if one.kind is inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize("module", [attnwidget, masks, scaling])
def test_a_module_offers_its_public_names_alone(module: Any) -> None:
    assert dir(module) == sorted(module.__all__)
    for name in dir(module):
        assert getattr(module, name) is not None


@pytest.mark.parametrize(("widget", "made_by"), [(WIDGET, AttentionWidget.from_attention), (BOTH, compare)])
def test_a_widget_offers_its_keywords_and_methods_and_nothing_of_ipywidgets(
    widget: AttentionWidget, made_by: Any
) -> None:
    offered = dir(widget)
    assert {*keywords_of(made_by), *METHODS, "attention", "stacks", "forwards"} <= {*offered}
    assert len(offered) < 74
    assert not [name for name in offered if name.startswith("_")]
    for name in ("comm", "keys", "model_id", "get_state", "send_state", "add_traits", "thumbnails", "open"):
        assert name not in offered
        assert hasattr(widget, name)  # and yet it is there, for ipywidgets
    for name in offered:
        getattr(widget, name)


def test_a_comparison_offers_its_own_too() -> None:
    assert {"against", "against_at", "attentions"} <= {*dir(BOTH)}
    assert not {"against", "against_at", "attentions"} & {*dir(WIDGET)}


def test_an_attention_offers_what_its_docstring_tells() -> None:
    offered = dir(ATT)
    for name in ("block", "overview", "explain", "from_weights", "shape", "q", "stages", "sinks", "options", "device"):
        assert name in offered
    for name in ("remember", "known_rows", "find", "replaced", "rules"):
        assert name not in offered
        assert hasattr(ATT, name)
    for name in offered:
        getattr(ATT, name)


@pytest.mark.parametrize(
    ("widget", "made_by"), [(AttentionWidget, AttentionWidget.from_attention), (ComparisonWidget, compare)]
)
def test_the_docstring_says_every_word_that_a_keyword_takes(widget: type[AttentionWidget], made_by: Any) -> None:
    said = (inspect.getdoc(AttentionWidget) or "") + (inspect.getdoc(compare) or "")
    for name in keywords_of(made_by):
        for word in getattr(widget.class_traits().get(name), "words", ()):
            assert f'"{word}"' in said, f"{name}: {word}"
