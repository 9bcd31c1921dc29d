"""`compare`: two attentions next to each other, or more, each compared with the first."""

from __future__ import annotations

import logging
import string
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import cached_property
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, get_args, runtime_checkable

import traitlets

from ..._analysis.all_heads import numbers_of_heads
from ..._engine.base import find_head
from ..._engine.level_cache import LevelKey
from ..._engine.sources import STAGES
from ..._engine.what_if import WhatIfLayers, what_if
from ..._export.look.numbers import in_model
from ..._export.page.snapshot import MAX_PAIR_CELLS
from ..._export.view import SavedHead, SavedTrait
from ..._messages.pictures import comparison, picture
from ..._messages.pictures.comparison import Axis, ComparedPair
from ..._tokens.inputs import check_tokens, is_by_name
from ..._utils.failures import log_told, sentence_of
from ..._utils.indexing import as_index
from ..._utils.validation import nearest, refuse_unknown
from ..._utils.weak import weakly
from ...attention import Attention
from ...stack import AttentionStack
from ..derived.derived_trait import DerivedTrait
from ..derived.selection import Selection
from ..front_end.request_context import RequestContext
from ..parts.rules import as_in_json, try_rules
from ..passes.comparison_pass import ComparisonPass
from ..stores.token_store import GivenTokens
from ..traits.keywords import ComparisonKeywords, View, keywords_of, list_keywords
from ..traits.trait_types import Choice as OneOf
from ..traits.trait_types import HeadPlace, Place, Text, WrongValue, derived, refusing
from ..widget import AttentionWidget

if TYPE_CHECKING:
    from typing_extensions import Unpack

log = logging.getLogger(__name__)

Given = Attention | AttentionStack


class Captured(Protocol):
    """A capture, or one of its forward passes."""

    @property
    def attention(self) -> AttentionStack:
        """Its layers."""


Side = Attention | AttentionStack | AttentionWidget | Captured | tuple[Attention | AttentionStack, int, int]
TOKENS = ("tokens", "key_tokens")
PLACE = ("layer", "batch", "head")
OTHER_TOKENS = "the sides show logits of different tokens: choose the same token with att.with_target(id) on each side"
COMPARED = (*picture.OF, "against", "against_at")  # what identifies a comparison
CHANGED = (*picture.OF[:3], "against", "against_at", "query", "key")  # and the changes of a row or column


@runtime_checkable
class KnowsItsText(Protocol):
    """A capture, or one of its forward passes."""

    def labels_of_layer(self, layer: Any) -> tuple[Any, Any]:
        """Return the tokens of the queries and of the keys of a layer; None where they are not known."""


def compare(*sides: Side | Mapping[str, Side], **show: Unpack[ComparisonKeywords]) -> ComparisonWidget:
    """Show two attentions and their difference with one selection: exact and clickable, at any length.

    Args:
        sides: two or more of `Attention`, `AttentionStack`, `AttentionWidget` or a capture, or one dict of them by
            name. With more than two, each is compared with the first; `against` and a menu choose it. A widget brings
            its layer, sample and head. (stack, layer, head) is one head of a stack or a capture, so that two heads of
            one model can be compared.
        tokens: as for `AttentionWidget`, or a dict with a list for each side; widgets and captures bring their own.
            Sides of different lengths are compared at equal tokens.
        key_tokens: the same for the keys.
        against: the name of the side compared with the first.
        against_at: the layer, sample and head of that side; None: those of the first.
        show: layer, head, query, key, stage, title and all other keywords of `AttentionWidget`.

    Returns:
        An `AttentionWidget` with one more view, "compare", and the trait `against`. Its other views show the first
            side.

    Raises:
        TypeError, ValueError: there are fewer than two sides, or they cannot be compared; the message has the reason.
        IndexError: as for `AttentionWidget`.

    >>> import torch
    >>> q, k, v = torch.randn(3, 1, 2, 4, 8)
    >>> compare({"no mask": Attention(q, k, v), "causal": Attention(q, k, v, is_causal=True)}, head=1)
    ComparisonWidget('no mask' and 'causal', layer 0 of 1, head 1 of 2, 4 queries × 4 keys)

    Two heads of one model:

    >>> stack = AttentionStack([Attention(q, k, v), Attention(k, q, v)])
    >>> compare((stack, 0, 1), (stack, 1, 0))
    ComparisonWidget('A' and 'B', layer 0 of 2, head 1 of 2, 4 queries × 4 keys; 'B' at layer 1, head 0)
    """
    return ComparisonWidget(*sides, **show)


def _are_of_one_token(sides: Sequence[Attention]) -> bool:
    """Return whether all sides show the logits of the same tokens, if the tokens are known."""
    found = [None if one.carries is None else one.carries.targets for one in sides]
    return all(one is not None and one == found[0] for one in found)


class ComparisonWidget(AttentionWidget):
    """An `AttentionWidget` of several attentions, made by `compare`, which documents its arguments.

    Attributes:
        sides: the names of the sides; the first is A.
        against: the name of B, which is compared with A.
        against_at: the layer, sample and head of B; None: those of A.

    All other traits and methods are those of `AttentionWidget`, and belong to A.

    >>> import torch
    >>> from attnwidget import Attention, compare
    >>> q, k, v = torch.randn(3, 4, 8)
    >>> w = compare({"as it is": Attention(q, k, v), "causal": Attention(q, k, v, is_causal=True)}, query=0)
    >>> w.sides, w.against
    (['as it is', 'causal'], 'causal')
    """

    view: OneOf[Literal["compare"] | View] = OneOf(  # type: ignore[assignment]
        "compare", *get_args(View), help="How the attention is drawn."
    ).tag(sync=True, role="look")
    sides: Any = traitlets.List(help="The names of the sides; the first is A.").tag(sync=True, role="identity")
    against = Text(help="The name of B.").tag(sync=True, role="numbers")
    against_at = HeadPlace(help="The layer, sample and head of B; None: those of A.").tag(sync=True, role="numbers")
    comparison = derived("A, B and B − A.")
    changes = derived("The changes of the pinned query or key.")

    def __init__(self, *sides: Side | Mapping[str, Side], **keywords: Unpack[ComparisonKeywords]) -> None:
        refuse_unknown(keywords, keywords_of(type(self)))
        show: dict[str, Any] = {**keywords}
        given = _named(sides)
        self._given = {name: _attention_of(name, side) for name, side in given.items()}
        self._stacks = {name: _stack_of(side) for name, side in self._given.items()}
        _check_sizes(self._stacks)
        self._tokens = {name: _own_tokens(name, side, given, show) for name, side in given.items()}
        self._axes: dict[tuple[Any, ...], tuple[Any, Axis]] = {}
        names = list(given)
        first, self._own = _places_of(given, show)
        show = {**first, "against": names[1], **show}
        self._own[show["against"]] = show.setdefault("against_at", self._own.get(show["against"]))
        show |= {name: value for name, value in self._tokens[names[0]]._asdict().items() if value is not None}
        self._check_tokens(show.get("layer", 0), show.get("tokenizer"))
        self._open(self._given[names[0]], {**show, "sides": names}, {})

    @classmethod
    def from_attention(cls, attention: Any, **show: Any) -> NoReturn:
        """Raise TypeError: a comparison needs two attentions."""
        raise TypeError("one attention cannot be compared: call compare(a, b) with two")

    @property
    def attention(self) -> Given:
        """The first side."""
        return self._shown.attention

    @attention.setter
    def attention(self, attention: Given) -> NoReturn:
        raise TypeError("the sides of a comparison cannot change: call compare again")

    @property
    def attentions(self) -> dict[str, Given]:
        """All sides by name."""
        return dict(self._given)

    def __dir__(self) -> list[str]:
        """Return the names for users, without those that make a widget of one attention."""
        return [name for name in super().__dir__() if name not in ("from_weights", "from_scores")]

    def _described(self) -> str:
        *names, last = map(repr, self.sides)
        shape = self._selected.shape
        sample = f"sample {self.batch} of {shape.B}, " if shape.B > 1 else ""
        own = in_model([self.head], numbers_of_heads(self._selected))
        return (
            f"{', '.join(names)} and {last}, layer {self.layer} of {len(self._shown.stack)}, {sample}"
            f"head {self.head} of {shape.H}{own}, {shape.Q:,} queries × {shape.K:,} keys{self._place_in_words()}"
        )

    def _place_in_words(self) -> str:
        """Return the layer, sample and head of B, if they differ from A's."""
        if self.against_at is None:
            return ""
        layer, batch, head = self.against_at
        sample = f"sample {batch}, " if self._selected.shape.B > 1 else ""
        own = in_model([head], numbers_of_heads(self._all_layers[self.against][layer]))
        return f"; {self.against!r} at layer {layer}, {sample}head {head}{own}"

    def open(self) -> None:
        """Check that the sides can be compared, and open."""
        self._both(self.layer, self.batch)  # raises if nothing can be aligned
        super().open()

    def _watch(self) -> None:
        super()._watch()
        self.observe(self._when_changed(self._refresh), ["against", "against_at"])
        self.observe(self._when_changed(self._compare_anew), [*TOKENS])

    # All sides share the selection, except the layer, sample and head of B if it has its own.

    @traitlets.validate("against_at")
    def _place_is_there(self, proposal: Any) -> Place | None:
        if proposal["value"] is None:
            return None
        layer, batch, head = proposal["value"]
        stack = self._stacks[self.against]
        with refusing():
            layer = as_index(layer, len(stack), "layer", "layers")
            shape = stack[layer].shape
            return layer, as_index(batch, shape.B, "batch", "samples"), find_head(stack[layer], head)

    @traitlets.observe("against", "against_at")
    def _keep_own_place(self, change: Any) -> None:
        """Remember the place of a side while another one is shown."""
        if change["name"] == "against_at":
            self._own[self.against] = change["new"]
        else:
            self.against_at = self._own.get(change["new"])

    def _layer_of(self, name: str, layer: int) -> int:
        """Return the layer of a side for a layer of the first."""
        place = self.against_at if name == self.against else self._own.get(name)
        return layer if place is None else int(place[0])

    _merges = False

    def _show_layers(self, attention: Given) -> None:
        super()._show_layers(attention)
        self._pass.forget()
        self._all_layers = {name: WhatIfLayers(stack, self.what_if) for name, stack in self._stacks.items()}

    @traitlets.validate("against")
    def _is_a_side(self, proposal: Any) -> str:
        name, names = str(proposal["value"]), list(self._stacks)
        if name not in names[1:]:
            advice = f"give one of {', '.join(map(repr, names[1:]))}"
            raise WrongValue(f"{names[0]!r} is compared with others, not {name!r}: {nearest(name, names[1:])}{advice}")
        return name

    @traitlets.validate("combine")
    def _is_one_head(self, proposal: Any) -> str:
        if proposal["value"] != "none":
            advice = "compare(a.combine(), b.combine()) shows several heads as one"
            raise WrongValue(f"a comparison shows one head of each side: {advice}")
        return "none"

    @traitlets.validate("across")
    def _is_one_layer(self, proposal: Any) -> None:
        if proposal["value"] is not None:
            advice = "compare(a.combine(), b.combine()), of two stacks, shows several layers as one"
            raise WrongValue(f"a comparison shows one layer of each side: {advice}")

    @traitlets.validate("stage")
    def _stage_is_there(self, proposal: Any) -> str:
        with refusing():  # also refuses a missing layer that is set at the same time
            self._check_stage(str(proposal["value"]))
        return str(proposal["value"])

    def _check_rules(self, changes: dict[str, Any]) -> dict[str, Any]:
        for name, stack in self._stacks.items():
            try:
                read = try_rules(stack[self._layer_of(name, self.layer)], changes)
            except (IndexError, TypeError, ValueError) as error:
                raise type(error)(f"{name}: {error}") from None
        return as_in_json(read, (att for stack in self._stacks.values() for att in stack))

    def _find_under_rules(self) -> list[Attention]:
        found = []
        for name, layers in self._all_layers.items():
            try:
                found.append(layers[self._layer_of(name, self.layer)])
            except (IndexError, TypeError, ValueError) as error:
                raise ValueError(f"{name}: {error}") from None
        return found

    def _check_stage(self, stage: str) -> None:
        for name, layers in self._all_layers.items():
            try:
                layers[self._layer_of(name, self.layer)].check_stage(stage)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        if stage == "logit" and not _are_of_one_token(self._sides_of(self.layer)):
            raise ValueError(OTHER_TOKENS)

    def _common_stages(self, layer: int) -> list[str]:
        """Return the stages that all sides have."""
        sides = self._sides_of(layer)
        found = [stage for stage in STAGES if all(stage in one.stages for one in sides)]
        return [stage for stage in found if stage != "logit" or _are_of_one_token(sides)]

    def _sides_of(self, layer: int) -> list[Attention]:
        return [layers[self._layer_of(name, layer)] for name, layers in self._all_layers.items()]

    def _facts(self, layer: int) -> dict[str, Any]:
        return {**super()._facts(layer), "stages": self._common_stages(layer)}

    # Comparing.

    def _rules(self, at: Selection) -> dict[str, DerivedTrait]:
        rules = super()._rules(at)
        of = tuple(getattr(self, name) for name in picture.OF)
        shown = self.view == "compare"
        pinned = self.query is not None or self.key is not None
        side = self.against, self.against_at
        changes = (*of[:3], *side, self.query, self.key) if shown and pinned else ()
        compared = (*of, *side) if shown else ()
        return {
            "changes": DerivedTrait(changes, self._changes),
            **rules,
            "facts": rules["facts"]._replace(of=(self.layer, *side), make=lambda layer, *side: self._facts(layer)),
            # after the picture, which ends the waiting jobs
            "comparison": DerivedTrait(compared, self._comparison, self._no_comparison, leave=self._pass.leave),
        }

    def _compare_anew(self) -> None:
        """Compare again, because other tokens align the sides differently."""
        with self._lock:
            self._axes.clear()
            self._pass.forget()
            self._derived.forget("comparison", "changes")
            self._refresh()

    @cached_property
    def _pass(self) -> ComparisonPass:
        return ComparisonPass(self._scheduler, weakly(self._compared_again))

    def _compared_again(self, made: dict[str, Any]) -> None:
        """Show more exact rows; once all are exact, the changes of a key are known too."""
        with self.hold_sync():
            self.set_trait("comparison", made)
            if made["error"] is None and made["sampled"] is None and not self.changes:
                self._derived.forget("changes")
                self._derived.bring("changes")

    def _bring_what_is_missing(self) -> None:
        if (self.comparison or {}).get("sampled") is not None and not self._pass.under_way:
            self._derived.forget("comparison")
        super()._bring_what_is_missing()

    def _end(self) -> None:
        super()._end()
        self._pass.forget()

    def finish(self, progress: bool = False, *, executor: Executor | None = None) -> None:
        """Compute the exact picture and the exact comparison now; see `AttentionWidget.finish`.

        An executor computes the picture; this process computes the comparison.
        """
        super().finish(progress, executor=executor)
        self._pass.finish(self._lock)

    def _comparison(self, *of: Any) -> dict[str, Any]:
        layer, batch, head, stage, pool, against, against_at = of
        both, key = self._both(layer, batch, against, against_at), LevelKey(batch, head, stage, pool)
        return self._pass.look(both, key, self._place_of(*of))

    def _place_of(self, *of: Any) -> dict[str, Any]:
        """Return what identifies a comparison, and both heads' numbers in the model (None if a side has all heads)."""
        layer, _, head, *_, against, place = of
        layer_b, head_b = (layer, head) if place is None else (place[0], place[2])
        parts = self._all_layers[self.sides[0]][layer].part, self._all_layers[against][layer_b].part
        numbers = tuple(
            None if part is None or part.heads is None or not isinstance(at, int) else part.heads[at]
            for part, at in zip(parts, (head, head_b), strict=True)
        )
        return {**dict(zip(COMPARED, of, strict=True)), "head_numbers": numbers}

    def _no_comparison(self, error: Exception, *of: Any) -> dict[str, Any]:
        return {**dict(zip(COMPARED, of, strict=True)), "error": sentence_of(error)}

    def _changes(self, *of: Any) -> dict[str, Any] | None:
        layer, batch, head, against, against_at, query, key = of
        try:
            both = self._both(layer, batch, against, against_at)
        except ValueError:  # nothing can be aligned, as `comparison` reports
            return None
        rows, columns = (
            None if at is None or at not in axis.a else axis.a.index(at)
            for at, axis in ((query, both.queries), (key, both.keys))
        )
        side, place, other = ("query", rows, columns) if query is not None else ("key", columns, None)
        if place is None or (side == "key" and both.column_takes_long(LevelKey(batch, head, "weights", "max"))):
            return None
        where = dict(zip(CHANGED, of, strict=True))
        return {**where, "side": side, **comparison.changes(both, batch, head, side, place, other)}

    def _both(self, layer: int, batch: int, *side: Any) -> ComparedPair:
        """Return the first side, the side compared with it, and their aligned positions.

        Args:
            layer, batch: of the first side.
            side: the name of the other, and its own layer, sample and head or None; default: the selected side.
        """
        against, place = side or (self.against, self.against_at)
        of_b = (layer, batch) if place is None else place[:2]
        names = (self.sides[0], against)
        a, b = self._all_layers[names[0]][layer], self._all_layers[against][of_b[0]]
        queries, keys = (
            self._axis(names, (layer, batch), of_b, side, lengths)
            for side, lengths in (("query", (a.shape.Q, b.shape.Q)), ("key", (a.shape.K, b.shape.K)))
        )
        return ComparedPair(a, b, queries, keys, None if place is None else place[1:])

    def _axis(
        self,
        names: tuple[str, str],
        of_a: tuple[int, int],
        of_b: tuple[int, int],
        side: str,
        lengths: tuple[int, int],
    ) -> Axis:
        tokens = self._shown.tokens(side, *of_a), self._tokens_beside(names[1], side, *of_b)
        ids = (names, side, lengths, *map(id, tokens))
        if ids not in self._axes:  # kept with the tokens, so that their ids stay valid
            made = comparison.together(lengths, tokens, names, "queries" if side == "query" else "keys")
            self._axes[ids] = tokens, made
        return self._axes[ids][1]

    def _tokens_beside(self, name: str, side: str, layer: int, batch: int) -> list[str] | None:
        """Return the tokens of a sample of another side; None if their number does not fit."""
        shape = self._stacks[name][layer].shape
        samples = self._token_store.samples(side, shape, self._tokens[name], f"tokens[{name!r}]")
        return None if samples is None else samples[batch]

    def _check_tokens(self, layer: Any, tokenizer: Any) -> None:
        """Raise if tokens do not fit another side; tokens of the first are checked as the widget's own."""
        for name, own in list(self._tokens.items())[1:]:
            stack = self._stacks[name]
            shape = stack[layer if isinstance(layer, int) and -len(stack) <= layer < len(stack) else 0].shape
            check_tokens(own.tokens, shape.B, shape.Q, f"tokens[{name!r}]", tokenizer)
            check_tokens(own.key_tokens, shape.B, shape.K, f"key_tokens[{name!r}]", tokenizer)

    def _request_context(self) -> RequestContext:
        return replace(super()._request_context(), compared=self._compared)

    def _compared(self, layer: int, batch: int, against: str, against_at: tuple[int, ...] | None) -> ComparedPair:
        if (against, against_at) != (self.against, self.against_at):
            raise ValueError("another side, or another head of it, is selected")
        return self._both(layer, batch)

    def _more_traits(self, heads: Sequence[SavedHead]) -> Iterable[SavedTrait]:
        """Return for a file: the comparison of all sides, the changes at every possible pin, and each side's place."""
        places = {name: self.against_at if name == self.against else self._own.get(name) for name in self.sides[1:]}
        pairs = list(product(heads, places.items()))
        pictures = (
            (*head, stage, self.pool, *side)
            for head, side in pairs
            for stage in dict.fromkeys([self.stage, *self._common_stages(head.layer)])
        )
        pins = (of for head, side in pairs for of in self._pins_to_save(head, *side))
        yield SavedTrait("comparison", COMPARED, ((of, self._saved_comparison(*of)) for of in pictures))
        yield SavedTrait("changes", CHANGED, ((of, self._derived.value("changes", *of)) for of in pins))
        yield SavedTrait("against_at", ["against"], (([name], place) for name, place in places.items()))

    def _saved_comparison(self, *of: Any) -> dict[str, Any]:
        """Return the known part of a comparison; none is begun for a side that is not shown."""
        if self.comparison is not None and all(
            self.comparison[name] == at for name, at in zip(COMPARED, of, strict=True)
        ):
            return dict(self.comparison)
        layer, batch, head, stage, pool, *side = of
        try:
            both = self._both(layer, batch, *side)
            return self._pass.draw(both, LevelKey(batch, head, stage, pool), self._place_of(*of))
        except Exception as error:
            log_told(log, "comparison", error)
            return self._no_comparison(error, *of)

    def _pins_to_save(self, choice: SavedHead, against: str, place: Place | None) -> list[tuple[Any, ...]]:
        shape = self._shown.stack[choice.layer].shape
        is_shown = choice == (self.layer, self.batch, self.head)
        pins: set[tuple[int | None, int | None]] = {(self.query, self.key)} if is_shown else set()
        if shape.Q * shape.K <= MAX_PAIR_CELLS:
            cells = product([None, *range(shape.Q)], [None, *range(shape.K)])
            pins |= {(q, k) for q, k in cells if is_shown or q is None or k is None}
        return [(*choice, against, place, *pin) for pin in pins if pin != (None, None)]


# Arguments.


def _named(sides: tuple[Any, ...]) -> dict[str, Any]:
    """Return the sides by name: A, B, … if they have none."""
    if len(sides) == 1 and isinstance(sides[0], Mapping):
        named = dict(sides[0])
        for name in named:
            if not isinstance(name, str) or not name.strip():
                raise TypeError(f"the name of a side is {name!r}: give strings as names")
    else:
        if len(sides) > len(string.ascii_uppercase):
            raise ValueError(f"{len(sides)} sides have no names: give a dict, such as {{'no mask': a, 'mask': b}}")
        named = dict(zip(string.ascii_uppercase, sides, strict=False))
    if len(named) < 2:
        there = "nothing" if not named else "one"
        raise ValueError(
            f"{there} was given to compare: give two, compare(a, b) or compare({{'no mask': a, 'mask': b}})"
        )
    return named


def _attention_of(name: str, side: Any) -> Given:
    """Return a side as an attention; a widget gives the one it shows, under its other rules."""
    if isinstance(side, tuple):
        if len(side) != 3:
            raise TypeError(
                f"{name} is a tuple of {len(side)}: give (stack, layer, head), such as (cap.attention, 5, 7)"
            )
        return _attention_of(name, side[0])
    if isinstance(side, AttentionWidget):
        if not side.what_if:
            return side.attention
        stack = _stack_of(side.attention)
        return AttentionStack([what_if(layer, side.what_if) for layer in stack], stack.names)
    if isinstance(side, Mapping):
        raise TypeError(
            f"{name} is a dict next to other sides: give one dict of all, such as {{'no mask': a, 'mask': b}}"
        )
    if isinstance(side, Attention | AttentionStack):
        return side
    held = getattr(side, "attention", None)  # of a capture
    if isinstance(held, Attention | AttentionStack):
        return held
    raise TypeError(
        f"{name} is {type(side).__name__}: give an Attention, an AttentionStack, an AttentionWidget or a capture, "
        "such as Attention(q, k, v)"
    )


def _places_of(sides: dict[str, Any], show: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Place | None]]:
    """Return the place of each side: a widget's selection, or the head in (stack, layer, head).

    Args:
        sides: the sides as given, by name.
        show: the keywords; a layer, batch or head in them applies to every side.

    Returns:
        The keywords of the first side, and the layer, sample and head of each other side (None: those of the first).
    """
    own: dict[str, tuple[Any, ...] | None] = {}
    for name, side in sides.items():
        of_tuple = (side[1], 0, side[2]) if isinstance(side, tuple) else None
        own[name] = (side.layer, side.batch, side.head) if isinstance(side, AttentionWidget) else of_tuple
    known = [place for place in own.values() if place is not None]
    if not known:
        return {}, {}
    places = {
        name: tuple(show.get(word, at) for word, at in zip(PLACE, place or known[0], strict=True))
        for name, place in own.items()
    }
    first, *others = places
    apart = {name: places[name] if places[name] != places[first] else None for name in others}
    return dict(zip(PLACE, places[first], strict=True)), apart


def _stack_of(side: Given) -> AttentionStack:
    return side if isinstance(side, AttentionStack) else AttentionStack([side])


def _check_sizes(stacks: dict[str, AttentionStack]) -> None:
    """Raise ValueError unless all sides have the same layers, samples and heads."""
    for (first, one), (name, other) in pairwise(stacks.items()):
        if len(one) != len(other):
            more, few = (first, len(other)) if len(one) > len(other) else (name, len(one))
            raise ValueError(
                f"{first} has {_of(len(one), 'layer')} but {name} has {len(other)}: give as many of both, such as "
                f"stack[:{few}] for {more}, or one layer of each, such as a[0] and b[0]"
            )
        for layer, (a, b) in enumerate(zip(one, other, strict=True)):
            where = f"layer {layer} of {first}" if len(one) > 1 else first
            if a.shape.H != b.shape.H:
                advice = "give as many of both, or one head of each, such as a[0].combine([3]) and b[0].combine([1])"
                raise ValueError(f"{where} has {_of(a.shape.H, 'head')} but {name} has {b.shape.H}: {advice}")
            if a.shape.B != b.shape.B:
                advice = "give the same samples of both, such as Attention(q[:1], k[:1], v[:1])"
                raise ValueError(f"{where} has {_of(a.shape.B, 'sample')} but {name} has {b.shape.B}: {advice}")


def _of(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _own_tokens(name: str, side: Any, sides: dict[str, Any], show: dict[str, Any]) -> GivenTokens:
    """Return the tokens of one side: given for it, given for all, or those of its widget or capture."""
    found: dict[str, Any] = {}
    source, layer = (side[0], side[1]) if isinstance(side, tuple) else (side, show.get("layer", 0))
    for keyword in TOKENS:
        given = show.get(keyword)
        if is_by_name(given):
            for other in given:
                if other not in sides:
                    advice = f"{nearest(other, list(sides))}give one of {', '.join(map(repr, sides))}"
                    raise ValueError(f"{keyword} has {other!r}, which is not a side: {advice}")
            given = given.get(name)
        if given is None and isinstance(source, AttentionWidget):
            given = source.as_strings(keyword)
        elif given is None and isinstance(source, KnowsItsText):
            given = source.labels_of_layer(layer)[TOKENS.index(keyword)]
        found[keyword] = given
    return GivenTokens(**found)


for _function in (compare, ComparisonWidget.__init__):
    list_keywords(_function, ComparisonKeywords, ComparisonWidget)
