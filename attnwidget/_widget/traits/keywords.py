"""The keywords of a widget: their types, for editors; and who may set which, by the traits' tags.

Each trait has a role, a tag for the front-end; js/src/contract/traits.ts has the same table, and
tests/contract/traits.json holds both to it:

* "given": an argument of the user, such as tokens; only Python sets it.
* "selection": where a person looks. The front-end sets it too.
* "look": how it is drawn; the front-end needs no kernel for it, and sets it too.
* "numbers": which numbers are shown; the front-end needs the kernel for it, and sets it too.
* "derived": it follows from the others; only the widget sets it.
* "identity": the kind of the widget; it never changes.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, Literal, SupportsIndex, TypedDict

import traitlets

from ..._analysis.head_kinds import KindsLike
from ..._engine.sources import Stage
from ..._rules.options import OPTIONS, LayeredKeywords, TensorLike
from ..._segments.segments import Segments

WRITABLE = ("selection", "look", "numbers")  # roles of traits that a front-end may set
SETTABLE = ("given", *WRITABLE)  # and a user

Pieces = Literal["pieces", "words"]
GridSide = Literal["auto", "query", "key", "both"]
Pool = Literal["max", "mean"]
ColorScale = Literal["linear", "log"]
Overlay = Literal["patches", "smooth"]
Palette = Literal["attnwidget", "viridis"]
Theme = Literal["auto", "light", "dark", "contrast"]
Direction = Literal["query", "key"]
Combine = Literal["none", "mean", "max"]
Measure = Literal["mass", "per_token", "lift"]
SegmentsShow = Literal["attention", "effect"]
EffectEdit = Literal["zero", "cut", "uniform"]
View = Literal["heatmap", "graph", "text", "image", "heads", "segments", "stages", "why"]

TensorsLike = TensorLike | Sequence[TensorLike]  # for all layers, or for each
Tokens = Sequence[str] | Sequence[Sequence[str]] | Sequence[int] | Sequence[Sequence[int]] | TensorLike
Pins = Iterable[Sequence[SupportsIndex | None]]
ColorRange = Literal["head", "row", "layer", "view", "unit"] | Sequence[float]
SegmentSource = Segments | str | Mapping[str, Any] | Sequence[Any] | None  # or an object with such a method: a capture
Metric = Literal[
    "entropy",
    "first_token",
    "previous_token",
    "itself",
    "same_token",
    "last_token",
    "induction",
    "mean_distance",
    "masked_share",
    "learned_sink",
    "sink",
    "streaming",
    "recall",
    "effect",
    "stage_sum",
    "stage_size",
]


class LooksBesideTarget(TypedDict, total=False):
    """`KeywordsOfLooks` for a function that takes a target in other ways too."""

    title: str | None
    tokenizer: Any
    pieces: Pieces
    words: Any
    grid: Sequence[int] | Sequence[Sequence[int] | None] | None
    grid_side: GridSide
    grid_start: SupportsIndex | None
    image: Any
    boxes: Any
    stack: str | None
    forward: SupportsIndex
    layer: SupportsIndex | Literal["mean", "max"]
    across: Literal["mean", "max"] | Mapping[str, Any] | None
    batch: SupportsIndex
    head: SupportsIndex
    query: SupportsIndex | None
    key: SupportsIndex | None
    heads: Iterable[SupportsIndex]
    pins: Pins
    stage: Stage
    pool: Pool
    color_scale: ColorScale
    color_range: ColorRange
    palette: Palette | str | Sequence[Any]
    theme: Theme
    top_k: SupportsIndex | None
    threshold: float
    overlay: Overlay
    opacity: float
    direction: Direction
    bar: Metric | str  # or one of `kinds`
    order: Literal["layer", "similar"] | Metric | str
    only_heads: Sequence[float | None] | None
    kinds: KindsLike | None
    combine: Combine
    what_if: dict[str, Any]
    segments: SegmentSource
    key_segments: SegmentSource
    measure: Measure
    aside: Iterable[str]
    asking: str | Sequence[str] | None
    segment: str | None
    segment_path: Iterable[str]
    segments_show: SegmentsShow
    effect_target: Sequence[SupportsIndex] | None
    effect_edit: EffectEdit
    layout: Any


class KeywordsOfLooks(LooksBesideTarget, total=False):
    """What a widget shows, and how: the keywords of every kind of widget."""

    target: SupportsIndex | None


class ViewKeywords(TypedDict, total=False):
    """Keywords of one attention that a comparison lacks."""

    view: View
    key_tokens: Tokens | Mapping[Any, Tokens | None] | None


class KeywordsBesideTokens(KeywordsOfLooks, ViewKeywords, total=False):
    """`ShowKeywords` for a function that takes tokens by position."""


class CaptureKeywords(LooksBesideTarget, ViewKeywords, total=False):
    """The same for `Capture.widget`."""


class ShowKeywords(KeywordsBesideTokens, total=False):
    """The keywords of `AttentionWidget` that are not about tensors: see there."""

    tokens: Tokens | Mapping[Any, Tokens | None] | None


class WidgetKeywords(ShowKeywords, LayeredKeywords, total=False):
    """All keywords of `AttentionWidget`."""


class ComparisonKeywords(KeywordsOfLooks, total=False):
    """The keywords of `compare`: those of `AttentionWidget`; tokens may be given for each side by its name."""

    view: Literal["compare"] | View
    tokens: Tokens | Mapping[str, Tokens] | None
    key_tokens: Tokens | Mapping[str, Tokens] | None
    against: str
    against_at: Sequence[SupportsIndex] | None


@functools.cache
def names_of(widget: type[traitlets.HasTraits], *roles: str) -> tuple[str, ...]:
    """Return the names of the traits with one of these roles, in the order in which they are defined."""
    defined = [name for one in reversed(widget.__mro__) for name in vars(one)]
    found = widget.class_traits(role=lambda role: role in roles)
    return tuple(name for name in dict.fromkeys(defined) if name in found)


def keywords_of(widget: type[traitlets.HasTraits]) -> tuple[str, ...]:
    """Return the names of all keywords of a widget's view."""
    return (*names_of(widget, *SETTABLE), "layout")


USED_BESIDE = ("facts", "findings", "picture", "progress", "close", "layout", "observe", "unobserve")  # not keywords


def offered_names(widget: type[traitlets.HasTraits]) -> list[str]:
    """Return the names that an editor offers on a widget: keywords, and our own methods and properties."""
    ours = [one for one in widget.__mro__ if one.__module__.startswith(__name__.partition(".")[0])]
    plain = {name for one in ours for name, found in vars(one).items() if isinstance(found, OFFERED)}
    inherited = {name for one in widget.__mro__ if one not in ours for name in vars(one)}  # some of it overridden
    named = {*(plain - inherited), "still", *keywords_of(widget), *USED_BESIDE} - {"as_strings"}
    return sorted(name for name in named if not name.startswith("_"))


OFFERED = (FunctionType, property, classmethod)


def list_keywords(function: Callable[..., Any], keywords: type, widget: type[traitlets.HasTraits]) -> None:
    """Make `help()` and editors list a function's keywords and defaults in place of **show.

    Args:
        function: whose signature ends with ** of a TypedDict.
        keywords: the TypedDict.
        widget: whose traits have the defaults.
    """
    inner: Any = getattr(function, "__func__", function)  # of a class method
    found = inspect.signature(inner)
    named = [one for one in found.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    inner.__signature__ = found.replace(
        parameters=[*named, *_parameters(keywords, widget, {one.name for one in named})]
    )


def _parameters(keywords: type, widget: type[traitlets.HasTraits], named: set[str]) -> Iterator[inspect.Parameter]:
    """Yield a parameter for each keyword that has no name in the signature, those of the tensors first."""
    of_tensors = {option.name: option.default for option in OPTIONS} | {"dims": None}
    defaults = {name: trait.default() for name, trait in widget.class_traits().items()} | {"layout": None} | of_tensors
    types = {name: hint for name, hint in keywords.__annotations__.items() if name not in named}
    for name in dict.fromkeys([*of_tensors, "tokens", "key_tokens", *types]):
        if name in types:
            annotation = getattr(types[name], "__forward_arg__", types[name])
            kind = inspect.Parameter.KEYWORD_ONLY
            yield inspect.Parameter(name, kind, default=defaults[name], annotation=annotation)
