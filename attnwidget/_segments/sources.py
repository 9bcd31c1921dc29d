"""Sources of segments: names with spans or texts, units of a text, regular expressions."""

from __future__ import annotations

import operator
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from .._utils.indexing import as_index
from .._utils.validation import as_choice, closest, told
from .named import Named, check_name, runs
from .splitting import UNITS, Part, matches, parts_of
from .token_text import Cores, TokenText

SOURCES = (
    '"sentences", "paragraphs", "lines", a regular expression, {"name": (start, stop)}, {"name": "its text"}, or the '
    "messages of a chat"
)
KINDS = ("tokens", "characters")
LENGTH = "give length=, tokens= or ids="


def named_in(source: Any, text: TokenText, unit: str = "tokens", within: Sequence[range] | None = None) -> list[Named]:
    """Return the pieces that a source finds.

    Args:
        source: a word of `UNITS`, a regular expression, a mapping of names, or a list of these, outermost first.
        text: to search.
        unit: of spans: "tokens" or "characters".
        within: the tokens to search; None for all.

    Raises:
        TypeError, ValueError: it cannot be read, or finds nothing.
    """
    as_choice(unit, KINDS, "unit")
    pieces = [range(text.length)] if within is None else list(within)
    if isinstance(source, Mapping):
        return [_of_mapping(name, value, text, unit, pieces) for name, value in _checked(source).items()]
    if isinstance(source, list | tuple) and source and all(isinstance(one, str | re.Pattern) for one in source):
        outer, *inner = source
        found = named_in(outer, text, unit, pieces)
        for one in found if inner else ():
            one.inside = named_in(inner, text, unit, one.pieces)
        return found
    if isinstance(source, str):
        source = _as_word(source)
    if isinstance(source, str | re.Pattern):
        return _by_text(source, text, pieces)
    raise TypeError(f"segments are given as {told(source)}: give {SOURCES}")


def _checked(source: Mapping[Any, Any]) -> Mapping[Any, Any]:
    if not source:
        raise ValueError('segments are given as {}: give at least one, {"name": (start, stop)}')
    return source


def _as_word(source: str) -> str | re.Pattern[str]:
    if source in UNITS:
        return source
    if re.fullmatch(r"\w+", source) and (close := closest(source, list(UNITS))) is not None:
        raise ValueError(f"there is no source called {source!r}: did you mean {close!r}? else give {SOURCES}")
    try:
        return re.compile(source)
    except re.error as error:
        raise ValueError(f"{source!r:.60} is not a regular expression ({error}): give {SOURCES}") from None


# Parts of the text.


def _by_text(source: str | re.Pattern[str], text: TokenText, within: Sequence[range]) -> list[Named]:
    if isinstance(source, str):
        found = parts_of(_stretches(text, within, apart=True), source)
    else:
        found = matches(_stretches(text, within, apart=False), source, _inside_special(text))
    if not found:
        what = source if isinstance(source, str) else f"{source.pattern!r:.60}"
        raise ValueError(f"{what} finds nothing in {text.text[:60]!r}…: give {SOURCES}")
    named = _as_tokens(found, text, within)
    if isinstance(source, re.Pattern) and len(named) < len(found):
        _refuse_without_tokens(found, {one.name for one in named}, text)
    return named


def _inside_special(text: TokenText) -> Callable[[int, int], bool]:
    """Return a function that says whether characters are part of a special token, such as the "s" of "<s>"."""
    starts, stops = text.offsets[text.is_special].T

    def is_inside(start: int, stop: int) -> bool:
        at = int(np.searchsorted(starts, start)) - 1  # the last token that begins before
        return at >= 0 and stop <= stops[at]

    return is_inside


def _refuse_without_tokens(parts: Sequence[Part], known: set[str], text: TokenText) -> None:
    """Raise ValueError for a match in which no token begins, so that it has none."""
    name, start, stop = next(one for one in parts if one[0] not in known)
    at = int(np.searchsorted(text.offsets[:, 0], start, "right")) - 1
    around = text.text[slice(*text.offsets[max(at, 0)].tolist())]
    raise ValueError(
        f"{name!r} of the regular expression, {text.text[start:stop]!r:.40}, is a part of token {at:,}, "
        f"{around!r:.40}, in which no other begins: let it match whole tokens, or give spans"
    )


def _stretches(text: TokenText, within: Sequence[range], *, apart: bool) -> list[tuple[str, int]]:
    """Return the parts of the text in some ranges of tokens, each with its first character.

    Args:
        text: the whole.
        within: the ranges.
        apart: whether special tokens divide them.
    """
    kept = np.zeros(text.length, np.int64)
    for piece in within:
        kept[piece.start : piece.stop] = 1
    if apart:
        kept[text.is_special] = 0
    spans = [text.span(range(start, stop)) for is_kept, start, stop in runs(kept) if is_kept]
    return [(text.text[start:stop], start) for start, stop in spans]


def _as_tokens(parts: Sequence[Part], text: TokenText, within: Sequence[range]) -> list[Named]:
    """Return parts of the text in tokens: a token belongs to the part in which its own characters begin.

    A token of white space belongs to the token before it; a part in which no token begins is left out.
    """
    places = text.cores.places[:, 0]
    kept = np.zeros(text.length, bool)
    for piece in within:
        kept[piece.start : piece.stop] = True
    if any(after[1] < before[2] for before, after in pairwise(parts)):  # they overlap, or are not in order
        each = [((places >= start) & (places < stop) & kept).astype(np.int64) for _, start, stop in parts]
        found = [[range(first, last) for is_mine, first, last in runs(mine) if is_mine] for mine in each]
    else:
        _, starts, stops = zip(*parts, strict=True)
        number = np.searchsorted(starts, places, "right") - 1
        ends = np.array(stops)
        found = [[] for _ in parts]
        for mine, first, last in runs(np.where(kept & (number >= 0) & (places < ends[number]), number, -1)):
            if mine >= 0:
                found[mine].append(range(first, last))
    return [Named(part[0], pieces) for part, pieces in zip(parts, found, strict=True) if pieces]


# Names with spans or texts.


def _of_mapping(name: Any, value: Any, text: TokenText, unit: str, within: Sequence[range]) -> Named:
    check_name(name)
    if isinstance(value, str):
        return Named(name, [_located(name, value, text, within)])
    if isinstance(value, Mapping):
        inside = named_in(value, text, unit, within)
        return Named(name, [piece for one in inside for piece in one.pieces], inside)
    span = _as_span(name, value, text.length)
    if span is not None:
        return Named(name, [_in_tokens(name, *span, text, unit)])
    if isinstance(value, np.ndarray) and value.ndim == 1:
        value = value.tolist()
    if not isinstance(value, list | tuple) or not value:
        raise TypeError(
            f"{name!r} is {told(value)}: give (start, stop), several of them, positions as a list such as [3, 5], its "
            "text, or names inside it"
        )
    places = [one for one in value if _is_place(one)]
    if places:
        return Named(name, _of_places(name, value, text, unit, within))
    inner = [one for one in value if isinstance(one, Mapping)]
    own = [one for one in value if not isinstance(one, Mapping)]
    if any(isinstance(one, list) and all(map(_is_place, one)) for one in own):
        raise TypeError(f"{name!r} is {told(value)}: give spans as tuples, [(0, 4), (6, 9)], or positions, [3, 5]")
    pieces = [piece for one in own for piece in _of_mapping(name, one, text, unit, within).pieces]
    inside = [one for given in inner for one in named_in(given, text, unit, pieces or within)]
    return Named(name, pieces or [piece for one in inside for piece in one.pieces], inside)


def _as_span(name: str, value: Any, length: int) -> tuple[int, int] | None:
    """Return start and stop of a tuple of two integers, a range or a slice; None for anything else."""
    if isinstance(value, slice):
        are_places = all(one is None or hasattr(one, "__index__") for one in (value.start, value.stop))
        return _of_slice(name, value, length) if are_places and value.step in (None, 1) else None
    if isinstance(value, range):
        return (value.start, value.stop) if value.step == 1 else None
    if isinstance(value, tuple) and len(value) == 2 and all(map(_is_place, value)):
        return int(value[0]), int(value[1])
    return None


def _is_place(one: Any) -> bool:
    return hasattr(one, "__index__") and not isinstance(one, bool) and not getattr(one, "ndim", 0)


def _of_places(name: str, value: Sequence[Any], text: TokenText, unit: str, within: Sequence[range]) -> list[range]:
    """Return the pieces of a list of positions, such as [3, 5], which may have spans among them."""
    if isinstance(value, tuple) and all(map(_is_place, value)):
        raise TypeError(
            f"{name!r} is {told(value)}: a span is (start, stop); give positions as a list, {[*map(int, value)]!r:.60}"
        )
    pieces: list[range] = []
    for one in value:
        if not _is_place(one):
            pieces += _of_mapping(name, one, text, unit, within).pieces
            continue
        at = as_index(int(one), text.length, f"the position of {name!r}", "positions") if text.length else int(one)
        if pieces and pieces[-1].stop == at and unit == "tokens":
            pieces[-1] = range(pieces[-1].start, at + 1)
        else:
            pieces.append(_in_tokens(name, at, at + 1, text, unit))
    return pieces


def _of_slice(name: str, value: slice, length: int) -> tuple[int, int]:
    """Return start and stop of a slice as given: one that ends after the text is not shortened."""
    start, stop = (None if one is None else operator.index(one) for one in (value.start, value.stop))
    if not length and (stop is None or stop < 0 or (start is not None and start < 0)):
        raise ValueError(
            f"{name!r} is {value}, which counts from the end of the text, but its length is unknown: {LENGTH}"
        )
    ends = 0 if start is None else start, length if stop is None else stop
    first, last = (one + length if one < 0 else one for one in ends)
    return first, last


def _located(name: str, wanted: str, text: TokenText, within: Sequence[range]) -> range:
    """Return the tokens of a text inside the text; if it is not there as written, by its letters alone."""
    stretches = _stretches(text, within, apart=False)
    found = _exact_places(wanted.strip(), stretches) or _places_by_letters(wanted, stretches)
    if len(found) != 1:
        how = f"{len(found)} times" if found else "not"
        raise ValueError(
            f"the text of {name!r}, {wanted.strip()[:40]!r}, is {how} in the text: give all of it as the model read "
            "it, or its (start, stop)"
        )
    return between_characters(name, *found[0], text.cores)


def _exact_places(wanted: str, stretches: Sequence[tuple[str, int]]) -> list[tuple[int, int]]:
    places = [
        first + found.start()
        for part, first in stretches
        for found in (re.finditer(f"(?={re.escape(wanted)})", part) if wanted else ())
    ]
    return [(start, start + len(wanted)) for start in places]


def _places_by_letters(wanted: str, stretches: Sequence[tuple[str, int]]) -> list[tuple[int, int]]:
    """Find a text, ignoring case, accents and white space, which tokenizers may drop."""
    letters, _ = _letters(wanted)
    found: list[tuple[int, int]] = []
    for part, first in stretches:
        among, places = _letters(part)
        for match in re.finditer(f"(?={re.escape(letters)})", among) if letters else ():
            start, last = places[match.start()], places[match.start() + len(letters) - 1]
            found.append((first + start, first + last + 1))
    return found


def _letters(text: str) -> tuple[str, list[int]]:
    """Return a text in lower case without accents and white space, and the original place of each character.

    >>> _letters("Où est-il ?")
    ('ouest-il?', [0, 1, 3, 4, 5, 6, 7, 8, 10])
    """
    kept = [
        (letter, at)
        for at, one in enumerate(text)
        for letter in unicodedata.normalize("NFKD", one.casefold())
        if not letter.isspace() and not unicodedata.combining(letter)
    ]
    return "".join(letter for letter, _ in kept), [at for _, at in kept]


def _in_tokens(name: str, start: int, stop: int, text: TokenText, unit: str) -> range:
    if unit == "tokens":
        return range(start, stop)
    if text.given_offsets is None:
        raise ValueError(
            f"{name!r} is given in characters, but the places of the tokens in the text are unknown: give tokens=text "
            "with tokenizer=, or tokens=tokenizer(text) of a fast tokenizer"
        )
    size = int(text.given_offsets.max()) if text.given is None else len(text.given)
    if not 0 <= start < stop <= size:
        raise ValueError(f"{name!r} is ({start}, {stop}) in characters: give 0 ≤ start < stop ≤ {size:,}")
    return between_characters(name, start, stop, text.given_cores)


def between_characters(name: str, start: int, stop: int, cores: Cores) -> range:
    """Return the tokens of a range of characters.

    Args:
        name: of the segment.
        start, stop: characters.
        cores: the characters of each token without white space around them, and whether there are any.

    Raises:
        ValueError: a token crosses one of the borders, or none is inside.
    """
    places, is_blank = cores
    first, last = places[:, 0], places[:, 1]
    held = (first >= start) & (last <= stop) & (first < stop)
    across = np.flatnonzero((first < stop) & (last > start) & ~held & ~is_blank)
    if len(across):
        at, (a, b) = int(across[0]), places[across[0]].tolist()
        border = start if a < start else stop
        raise ValueError(
            f"token {at:,}, characters {a:,} to {b:,}, lies across a border of {name!r}, character {border:,}: give a "
            f"border at {a:,} or {b:,}"
        )
    found = np.flatnonzero(held)
    if not len(found):
        raise ValueError(f"{name!r} is ({start:,}, {stop:,}) in characters, where no token begins: give a longer range")
    return range(int(found[0]), int(found[-1]) + 1)
