"""The segments of a widget, made for the tokens of each sample, and their colors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from ..._messages.codec import encoding
from ..._messages.segments.segment_mass import MAX_SEGMENTS, Columns, Rows
from ..._segments.named import FIRST, PADDING, RESERVED, TEMPLATE, Segment
from ..._segments.reading import segments as read_segments
from ..._segments.segments import Segments, gathered, inside_counts
from ..._utils.failures import sentence_of
from ...attention import Attention
from .layers import ShownLayers

COLORS = 7  # in addition to the asking segment's color
ASKING_COLOR, GRAY = 7, -1
MAX_ENTRIES = 4096  # segments sent
MAX_NAMES = 48 * 1024  # bytes of their names
MAX_KEPT = 16  # texts whose segments are kept
TOGETHER = 128  # segments per level after grouping, if there are more than can be shown
BESIDE = 5  # columns next to those inside a segment: its rest, all else, and three special ones


SIDES = ("query", "key")


class GivenText(NamedTuple):
    """The tokens of a sample, as strings and, if they were given as ids, as ids; None if unknown."""

    tokens: list[str] | None
    ids: list[int] | None


class GivenSegments(NamedTuple):
    """Segments from the user, with the widget's tokens; see `AttentionWidget`."""

    segments: Any
    key_segments: Any
    tokenizer: Any = None

    def of(self, side: str) -> Any:
        return self.key_segments if side == "key" and self.key_segments is not None else self.segments


class SegmentStore:
    """The segments of a widget for any sample and layer.

    Args:
        given: returns the current segments and tokens from the user.
    """

    def __init__(self, given: Callable[[], GivenSegments]) -> None:
        self._given = given
        self._read: dict[tuple[Any, ...], tuple[Any, Segments]] = {}
        self._colors: dict[tuple[Any, ...], list[int]] = {}
        self._told: dict[str, Any] = {}

    def forget(self) -> None:
        """Forget all, because the segments or the tokens have changed."""
        self._read.clear()
        self._colors.clear()

    def of(self, side: str, shown: ShownLayers, layer: int, batch: int) -> Segments | None:
        """Return the segments of a sample's "query" or "key" side in a layer; None without segments.

        Raises:
            ValueError, TypeError: the segments do not fit the tokens.
        """
        source = self._given().of(side)
        if source is None:
            return None
        return self._read_source(source, side, shown, layer, batch)

    def check(self, source: Any, side: str, shown: ShownLayers, layer: int, batch: int) -> None:
        """Raise the error if segments do not fit the tokens of a sample in a layer."""
        self._read_source(source, side, shown, layer, batch)

    @property
    def are_given(self) -> bool:
        """Whether there are segments, fitting or not."""
        given = self._given()
        return given.segments is not None or given.key_segments is not None

    @property
    def has_told(self) -> bool:
        """Whether segments have been sent to the front-end."""
        return any(told != repr(None) for told in self._told.values())

    def both(self, shown: ShownLayers, layer: int, batch: int) -> tuple[Segments, Segments] | None:
        """Return the segments of the queries and of the keys; None without segments."""
        queries, keys = (self.of(side, shown, layer, batch) for side in ("query", "key"))
        return None if queries is None or keys is None else (queries, keys)

    def _read_source(self, source: Any, side: str, shown: ShownLayers, layer: int, batch: int) -> Segments:
        tokens = shown.given_tokens(side, layer, batch)
        att = shown.given[layer]
        own = of_sample(source, batch, att.shape.B)
        key = (id(own), id(tokens), side, att.shape, att.part, batch if shown.words else 0, shown.words)
        kept = self._read.get(key)
        if kept is None or kept[0] is not (own, tokens)[0]:
            texts = [
                GivenText(shown.given_tokens(one, layer, batch), shown.given_ids(one, layer, batch)) for one in SIDES
            ]
            made = _fitting(own, side, att, texts, self._given().tokenizer)
            if shown.words and (ends := shown.word_ends(side, layer, batch)) is not None:
                made = in_words(made, ends)
            made = _as_many_as_fit(made)
            if len(self._read) >= MAX_KEPT:
                self._read.clear()
            kept = self._read[key] = own, made
        return kept[1]

    # Colors.

    def colors(self, names: Sequence[str], asking: str, of: tuple[Any, ...]) -> list[int]:
        """Return the color of each segment, in order of appearance; gray if all are taken; the asking one has its own.

        Args:
            names: names of the segments.
            asking: the asking segment.
            of: identifies this set of segments.
        """
        known = self._colors.get((*of, asking))
        if known is not None and len(known) == len(names):
            return known
        return colors_of(names, asking)

    def choose(self, names: Sequence[str], asking: str, of: tuple[Any, ...], strongest: Sequence[int]) -> bool:
        """Color the segments with most mass, if there are more segments than colors; return whether any color changed.

        This is done once: then colors stay until the segments change.
        """
        key = (*of, asking)
        if key in self._colors:
            return False
        before = self.colors(names, asking, of)
        mine = [i for i in strongest if i < len(names) and names[i] not in RESERVED and names[i] != asking][:COLORS]
        found = colors_of(names, asking, set(mine))
        self._colors[key] = found
        return found != before

    # Messages.

    def message(self, side: str, shown: ShownLayers, layer: int, batch: int, asking: Asking) -> dict[str, Any] | None:
        """Return the segments of one side for the front-end; None for the keys if both sides share them."""
        try:
            found = self.of(side, shown, layer, batch)
            if side == "key" and found is not None and self.of("query", shown, layer, batch) == found:
                return None
            return None if found is None else encoded(found, self.colors_of_text(found, asking))
        except Exception as error:  # a source may raise anything; the page shows the error
            return {"error": sentence_of(error)}

    def colors_of_text(self, found: Segments, asking: Asking) -> list[int]:
        """Return the colors of the outermost segments."""
        outermost = (path_of(asking) or ("",))[0]
        wanted = outermost if outermost in found.distinct else found.answer
        return self.colors(found.distinct, wanted, (found.entries, ()))

    def is_new(self, name: str, message: Any) -> bool:
        """Return whether these differ from the front-end's, and record that it gets these."""
        told = repr(message)
        if self._told.get(name) == told:
            return False
        self._told[name] = told
        return True


def of_sample(source: Any, batch: int, batches: int) -> Any:
    """Return the segments given for one sample: its own from a list with one for each, else all.

    Raises:
        ValueError: the list has another number of samples.
    """
    if not is_by_sample(source):
        return source
    if len(source) != batches:
        raise ValueError(f"segments are given for {len(source)} samples, but there are {batches}: give one for each")
    return source[batch]


def is_by_sample(source: Any) -> bool:
    """Return whether the source is a list with segments for each sample, not a chat or nested units."""
    if not isinstance(source, list | tuple) or not source:
        return False
    return all(
        one is None or isinstance(one, Segments | list | tuple) or (isinstance(one, Mapping) and "role" not in one)
        for one in source
    )


def _fitting(own: Any, side: str, att: Attention, texts: Sequence[GivenText], tokenizer: Any) -> Segments:
    """Read the segments of a layer's queries or keys; if only the keys' text has segments, cut them to the queries.

    Args:
        own: the segments given for the sample.
        side: "query" or "key".
        att: the layer.
        texts: the texts of its queries and keys.
        tokenizer: the tokenizer of both.
    """
    if own is None:
        raise ValueError("this sample has no segments: give segments for each sample")
    of_queries, of_keys = texts
    many = att.shape.Q if side == "query" else att.shape.K
    places = att.own_keys(range(att.shape.Q)) if side == "query" and att.shape.Q != att.shape.K else None
    if places is None or (isinstance(own, Segments) and own.length == many):
        return _read(own, many, of_queries if side == "query" else of_keys, tokenizer)
    return at_places(_read(own, att.shape.K, of_keys, tokenizer), places, many)


def _read(own: Any, many: int, text: GivenText, tokenizer: Any) -> Segments:
    if isinstance(own, Segments):
        if own.length != many:
            raise ValueError(f"the segments cover {own.length:,} tokens, but this layer has {many:,}")
        return own
    length = None if text.tokens is not None else many
    found = read_segments(own, tokenizer=tokenizer, ids=text.ids, tokens=text.tokens, length=length)
    if found.length != many:
        raise ValueError(f"the segments cover {found.length:,} tokens, but this layer has {many:,}")
    return found


def _as_many_as_fit(found: Segments) -> Segments:
    """Group neighboring segments on every level with more segments than can be shown."""
    aside = sum(name in (*RESERVED, found.answer) for name in found.distinct)
    return gathered(found, TOGETHER, MAX_SEGMENTS - aside, MAX_SEGMENTS - BESIDE)


def at_places(found: Segments, places: Sequence[int], many: int) -> Segments:
    """Return segments for some places of a text, which become the positions."""
    chosen = np.array(places, np.int64)
    return _moved(found, np.where(chosen < found.length, chosen, -1), many)


def in_words(found: Segments, ends: Tensor) -> Segments:
    """Return segments of words instead of subwords: a word belongs to the segment of its first subword.

    Args:
        found: segments of subwords.
        ends: (words + 1,) the start of each word, and the end of the last one.
    """
    places = ends.cpu().numpy()
    first, some = np.minimum(places[:-1], found.length - 1), places[1:] > places[:-1]
    return _moved(found, np.where(some, first, -1), len(first))


def _moved(found: Segments, places: np.ndarray[Any, Any], many: int) -> Segments:
    """Return segments at other positions; each gives its place in `found`, negative if it has none."""
    order = np.argsort(places, kind="stable")
    ascending = places[order]
    entries, covered = [], np.zeros(many, bool)
    for one in found.entries:
        first, last = np.searchsorted(ascending, (one.start, one.stop)).tolist()
        held = np.sort(order[first:last])
        if one.level == 0:
            covered[held] = True
        entries += [one._replace(start=start, stop=stop) for start, stop in _stretches(held)]
    entries += [Segment(PADDING, start, stop) for start, stop in _stretches(np.flatnonzero(~covered))]
    entries.sort(key=lambda one: (one.start, one.level))
    names = [one.name for one in entries if one.level == 0]
    answer = found.answer if found.answer in names else (names or [""])[-1]
    return replace(found, entries=tuple(entries), length=many, answer=answer)


def _stretches(positions: np.ndarray[Any, Any]) -> list[tuple[int, int]]:
    """Return ascending positions as ranges without gaps."""
    if not len(positions):
        return []
    ends = np.flatnonzero(np.diff(positions) > 1)
    starts, stops = positions[np.r_[0, ends + 1]], positions[np.r_[ends, -1]] + 1
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def colors_of(names: Sequence[str], asking: str, chosen: set[int] | None = None) -> list[int]:
    """Return colors in order of appearance.

    >>> colors_of(["first token", "doc 1", "question", "answer"], "answer")
    [-1, 0, 1, 7]
    """
    found, left = [], iter(range(COLORS))
    for i, name in enumerate(names):
        gray = name in RESERVED or (chosen is not None and i not in chosen)
        found.append(ASKING_COLOR if name == asking else GRAY if gray else next(left, GRAY))
    return found


Colors = Callable[[Sequence[str], Sequence[str]], list[int]]
Asking = str | Sequence[str] | None  # a name, or the path to a nested segment


def columns_of(found: Segments, path: Sequence[str], colors: Colors) -> Columns:
    """Return the columns at a place: the outermost segments, or the parts of one segment and the rest of the text.

    Args:
        found: the segments of the keys.
        path: the path to the opened segment.
        colors: returns the colors of the names on a path.

    Raises:
        KeyError: there is no such segment.
        ValueError: it has no segments inside.
    """
    text = (found.entries, tuple(path))
    if not path:
        shades = colors(found.distinct, path)
        return Columns([*found.distinct], [*found.sizes], shades, found.labels(), text, inside_counts(found))
    inner = found
    for name in path:
        inner = inner.inside(name)
    if len(inner.distinct) < 2:
        raise ValueError(f"{path[-1]!r} has no segments inside: it is on the last level")
    labels, names = inner.labels().copy(), [*inner.distinct]
    outer = found.labels()
    kept = [name for name in (FIRST, TEMPLATE, PADDING) if name in found.distinct and name not in names]
    left = labels < 0
    own = {name: left & (outer == found.distinct.index(name)) for name in kept}
    rest = left & ~np.logical_or.reduce([np.zeros(len(left), bool), *own.values()])
    outside = f"outside {path[-1]}"
    for name, held in {outside: rest, **own}.items():
        if held.any():
            labels[held] = len(names)
            names.append(name)
    sizes = np.bincount(labels, minlength=len(names)).tolist()
    own_names = [name for name in inner.distinct if name != f"rest of {path[-1]}"]
    known = dict(zip(own_names, colors(own_names, path), strict=True))
    shades = [known.get(name, GRAY) for name in names]
    inside = [*inside_counts(inner), *[0] * (len(names) - len(inner.distinct))]
    return Columns(names, sizes, shades, labels, text, inside, outside)


def asked_in(found: Segments, asking: Asking) -> tuple[tuple[str, ...], str]:
    """Return the asking segment as its path and name; the answer by default.

    Args:
        found: the segments of the queries.
        asking: its name, or its path from the outermost segment; None: the answer.
    """
    *path, name = path_of(asking) or (found.answer,)
    try:
        there = name in rows_of(found, path).names
    except (KeyError, ValueError):
        there = False
    return (tuple(path), name) if there else ((), found.answer)


def path_of(asking: Asking) -> tuple[str, ...]:
    """Return the path of a segment from the outermost one; empty for None."""
    return () if asking is None else (asking,) if isinstance(asking, str) else tuple(asking)


def own_color_at(asked: Sequence[str], path: Sequence[str]) -> str:
    """Return the segment inside a path that contains the asking one, and so has its gray; "" if none does.

    >>> own_color_at(["documents", "doc 3"], []), own_color_at(["answer"], ["documents"])
    ('documents', '')
    """
    return asked[len(path)] if len(asked) > len(path) and [*asked[: len(path)]] == [*path] else ""


def rows_of(found: Segments, path: Sequence[str] = ()) -> Rows:
    """Return the segments of the queries at a place, in the form of `columns_of`.

    Raises:
        KeyError: there is no such segment.
        ValueError: it has no segments inside.
    """
    columns = columns_of(found, path, lambda names, _: [GRAY] * len(names))
    labels, names = columns.labels, columns.names
    order = np.argsort(labels, kind="stable")
    edges = np.searchsorted(labels[order], np.arange(len(names) + 1))
    return Rows([*names], [order[start:stop] for start, stop in pairwise(edges.tolist())])


def encoded(found: Segments, colors: list[int]) -> dict[str, Any]:
    """Return segments as sent: all levels, or the outermost levels that can be sent completely."""
    some = _entries_to_send(found)
    names = [one.name for one in some]
    if _bytes_of((*names, *found.distinct)) > MAX_NAMES:
        raise ValueError(f"the names of the segments take more than {MAX_NAMES // 1024} KiB: give shorter ones")
    return {
        "names": names,
        "starts": encoding.encode(np.array([one.start for one in some], np.uint32)),
        "stops": encoding.encode(np.array([one.stop for one in some], np.uint32)),
        "levels": encoding.encode(np.array([one.level for one in some], np.uint8)),
        "more": len(found.entries) - len(some),
        "length": found.length,
        "distinct": [*found.distinct],
        "sizes": [*found.sizes],
        "colors": colors,
        "answer": found.answer,
    }


def _entries_to_send(found: Segments) -> Sequence[Segment]:
    """Return the entries of as many levels as can be sent, outermost first, with at most 4,096 of level 0."""
    left = MAX_NAMES - _bytes_of(found.distinct)
    for depth in range(found.depth, 1, -1):
        some = [one for one in found.entries if one.level < depth]
        if len(some) <= MAX_ENTRIES and _bytes_of(one.name for one in some) <= left:
            return some
    return [one for one in found.entries if one.level == 0][:MAX_ENTRIES]


def _bytes_of(names: Iterable[str]) -> int:
    return sum(len(name.encode("utf-8", "replace")) for name in names)
