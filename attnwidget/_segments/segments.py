"""`Segments`: the named parts of a text, in tokens, in levels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, overload

import numpy as np

from .._utils.validation import as_size, nearest
from .grouping import in_groups, tree_of, walk
from .named import RESERVED, Labels, Named, Segment, entries_of
from .sources import named_in
from .token_text import TokenText

ANSWER = "answer"
MAX_KEPT = 8  # opened segments
BETWEEN = " › "  # between a segment and one inside it, if the name alone is ambiguous


@dataclass(frozen=True)
class Segments:
    """The named parts of a text, as `attnwidget.segments` finds them: immutable, in order, every token in one.

    An entry is one contiguous piece. Entries of one name on one level are one segment: "template" is between all turns,
    for example. On level 0 each token is in exactly one entry: the first token, padding and tokens of a template are
    separate segments, and "other" holds the rest. An entry of level n + 1 lies inside the last entry of level n before
    it.

    Attributes:
        entries: `Segment(name, start, stop, level)` each, in order of position.
        length: the number of tokens in the text.
        answer: the default segment for questions: the answer if there is one, else the last segment.

    >>> from attnwidget import segments
    >>> documents = {"doc 1": (4, 7), "doc 2": (7, 9)}
    >>> found = segments({"rules": (0, 4), "documents": documents, "answer": (9, 12)}, length=12)
    >>> found.distinct
    ('first token', 'rules', 'documents', 'answer')
    >>> found[1], found["documents"].distinct
    (Segment(name='rules', start=1, stop=4, level=0), ('doc 1', 'doc 2'))
    """

    entries: tuple[Segment, ...]
    length: int
    answer: str
    _text: TokenText | None = field(default=None, repr=False, compare=False)
    _inside: dict[str, Segments] = field(init=False, default_factory=dict, repr=False, compare=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each entry."""
        return tuple(one.name for one in self.entries)

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Start and stop of each entry, in tokens."""
        return tuple((one.start, one.stop) for one in self.entries)

    @property
    def levels(self) -> tuple[int, ...]:
        """The level of each entry, 0 outermost."""
        return tuple(one.level for one in self.entries)

    @property
    def depth(self) -> int:
        """The number of levels."""
        return max(self.levels) + 1

    @property
    def distinct(self) -> tuple[str, ...]:
        """The names of level 0, each once, in order of appearance: the segments."""
        return self._distinct

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of tokens in each of `distinct`."""
        counts = dict.fromkeys(self.distinct, 0)
        for one in self._outer():
            counts[one.name] += one.stop - one.start
        return tuple(counts.values())

    def labels(self) -> Labels:
        """Return each token's segment as its number in `distinct`, (length,) int64; -1 if it is in none.

        >>> from attnwidget import segments
        >>> segments({"answer": (2, 4)}, length=5).labels()
        array([0, 1, 2, 2, 1])
        """
        numbers = {name: i for i, name in enumerate(self.distinct)}
        labels = np.full(self.length, -1, np.int64)
        for one in self._outer():
            labels[one.start : one.stop] = numbers[one.name]
        return labels

    def positions(self, name: str) -> Labels:
        """Return the positions of the tokens of a segment of level 0, (n,) int64.

        Args:
            name: of the segment.

        Raises:
            KeyError: there is no such segment.

        >>> from attnwidget import segments
        >>> segments({"question": (2, 4), "answer": (6, 9)}, length=9).positions("answer").tolist()
        [6, 7, 8]
        """
        self._check(name)
        return np.flatnonzero(self.labels() == self.distinct.index(name))

    def flat(self, level: int = 0) -> Segments:
        """Return one level alone, of all tokens: segments without that level stay, and the rest of a segment is named.

        Args:
            level: 0 outermost. A name inside several segments gets theirs: "doc 1 › paragraph 1".

        >>> from attnwidget import segments
        >>> found = segments({"documents": {"doc 1": (2, 4), "doc 2": (4, 6)}, "question": (7, 9)}, length=9)
        >>> found.flat(1).distinct
        ('first token', 'other', 'doc 1', 'doc 2', 'question')
        """
        found = self
        for _ in range(min(level, self.depth - 1)):
            found = found._opened()
        return replace_entries(found, (one for one in found.entries if one.level == 0))

    def inside(self, name: str) -> Segments:
        """Return the parts of a segment of level 0 as level 0: positions stay, and other tokens are in none.

        Args:
            name: of the segment. Its tokens in no part are named "rest of" it; without parts, all of them are.

        Raises:
            KeyError: there is no such segment.

        >>> from attnwidget import segments
        >>> found = segments({"user": [(2, 8), {"document": (4, 7)}]}, length=9).inside("user")
        >>> found.names, found.spans
        (('rest of user', 'document', 'rest of user'), ((2, 4), (4, 7), (7, 8)))
        """
        if name in self._inside:
            return self._inside[name]
        self._check(name)
        inner, outer = [], ""
        for one in self.entries:
            outer = one.name if one.level == 0 else outer
            if outer == name and one.level:
                inner.append(one)
        if len(self._inside) >= MAX_KEPT:
            self._inside.clear()
        pieces = [one for one in self._outer() if one.name == name]
        found = self._inside[name] = replace_entries(self, _opened(name, pieces, inner))
        return found

    def divide(self, source: Any, inside: str | None = None, *, unit: str = "tokens") -> Segments:
        r"""Return the same with one more level: a source divides segments.

        Args:
            source: of the parts: "paragraphs", "sentences", "lines", a regular expression, or names with their spans or
                texts, as in `segments`.
            inside: the segment to divide, of level 0 or inside it; None: each segment without parts.
            unit: of spans, as in `segments`.

        Raises:
            KeyError: there is no such segment.
            ValueError: the text is unknown, or nothing is found.

        >>> from attnwidget import segments
        >>> words = ["<s>", "One", ".", "Two", ".", "\\n", "\\n", "Three", "."]
        >>> found = segments("paragraphs", tokens=words).divide("sentences")
        >>> found["paragraph 1"].distinct
        ('sentence 1', 'sentence 2')
        """
        if inside is not None and inside not in self.names:
            self._check(inside)
        tree = tree_of(self.entries)
        text = TokenText(self.length) if self._text is None else self._text
        divided = False
        for one in walk(tree):
            if one.name == inside or (inside is None and not one.inside and one.name not in RESERVED):
                found = named_in(source, text, unit, one.pieces)
                one.inside = [*one.inside, *found]
                divided |= bool(found)
        if not divided:
            raise ValueError(f"{source!r:.60} finds nothing: give another source")
        return _of_tree(self, tree)

    def gather(self, most: int = 128) -> Segments:
        """Return the same with more levels: neighbors are grouped, so that few enough are side by side.

        Args:
            most: the most segments on level 0, and inside each segment, not counting the answer and separate ones such
                as the first token. A group is named by its first and its last segment, and has them inside; too many
                are grouped again.

        >>> from attnwidget import segments
        >>> lines = segments({f"line {i}": (2 * i - 1, 2 * i + 1) for i in range(1, 7)}, length=13)
        >>> lines.gather(3).distinct
        ('first token', 'line 1 – line 2', 'line 3 – line 4', 'line 5', 'line 6')
        >>> lines.gather(2)["line 1 – line 3"].distinct
        ('line 1 – line 2', 'line 3')
        """
        most = as_size(most, "most")
        return gathered(self, most, most, most if most > 1 else self.length)

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.entries)

    @overload
    def __getitem__(self, which: int) -> Segment: ...
    @overload
    def __getitem__(self, which: str) -> Segments: ...
    def __getitem__(self, which: int | str) -> Segment | Segments:
        """Return an entry by number, or the parts of a segment by name: see `inside`.

        Raises:
            IndexError: there is no such entry.
            KeyError: there is no such segment.
        """
        if isinstance(which, str):
            return self.inside(which)
        try:
            return self.entries[which]
        except IndexError:
            raise IndexError(f"entry {which} is not there: there are entries 0 to {len(self) - 1}") from None

    def __contains__(self, name: object) -> bool:
        return name in self.distinct

    def __str__(self) -> str:
        parts = [f"{name} {size:,}" for name, size in zip(self.distinct, self.sizes, strict=True)]
        if len(parts) > 8:
            parts[6:-1] = [f"… {len(parts) - 7} more"]
        return f"Segments of {self.length:,} tokens: {', '.join(parts)}"

    # Inside.

    @cached_property
    def _distinct(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.name for one in self._outer()))

    def _outer(self) -> Iterator[Segment]:
        return (one for one in self.entries if one.level == 0)

    def _check(self, name: str) -> None:
        if name not in self.distinct:
            names = self.distinct
            raise KeyError(f"no segment is called {name!r}: {nearest(name, names)}give one of {', '.join(names)}")

    def _opened(self) -> Segments:
        """Return the segments with parts replaced by their parts, as whole entries."""
        pieces: dict[str, list[Segment]] = {name: [] for name in self.distinct}
        inner: dict[str, list[Segment]] = {name: [] for name in self.distinct}
        outer = ""
        for one in self.entries:
            outer = one.name if one.level == 0 else outer
            (inner if one.level else pieces)[outer].append(one)
        parts = {name: _opened(name, pieces[name], inner[name]) for name in pieces}
        holders = Counter(name for part in parts.values() for name in {one.name for one in part if one.level == 0})
        opened = []
        for outer, part in parts.items():
            for one in part:
                is_shared = one.level == 0 and outer != one.name and holders[one.name] > 1
                opened.append(one._replace(name=f"{outer}{BETWEEN}{one.name}") if is_shared else one)
        return replace_entries(self, opened)


def gathered(found: Segments, most: int, outer: int, inner: int) -> Segments:
    """Return the same with neighbors grouped where too many are side by side: see `Segments.gather`.

    Args:
        found: the segments.
        most: the most of them.
        outer, inner: how many may stay as they are, on level 0 and inside a segment.
    """
    tree = tree_of(found.entries)
    alone = {*RESERVED, found.answer}
    several = [one for one in tree if one.name not in alone]
    wide = [one for one in walk(tree) if len(one.inside) > inner]
    if not wide and len(several) <= outer:
        return found
    for one in wide:
        one.inside = in_groups(one.inside, most, inner, set())
    if len(several) > outer:
        several = in_groups(several, most, inner, alone)
    return _of_tree(found, [*several, *(one for one in tree if one.name in alone)])


def inside_counts(found: Segments) -> list[int]:
    """Return the number of parts of each of `distinct`, with the rest of it; 0 if it is not divided.

    >>> from attnwidget import segments
    >>> inside_counts(segments({"user": [(2, 8), {"document": (4, 7)}], "answer": (8, 9)}, length=9))
    [0, 0, 2, 0]
    """
    below: dict[str, set[str]] = {name: set() for name in found.distinct}
    left = dict(zip(found.distinct, found.sizes, strict=True))
    outer = ""
    for one in found.entries:
        if one.level == 0:
            outer = one.name
        elif one.level == 1:
            below[outer].add(one.name)
            left[outer] -= one.stop - one.start
    counts = [len(names) + (left[name] > 0) for name, names in below.items()]
    return [count if count > 1 else 0 for count in counts]


def _of_tree(found: Segments, tree: list[Named]) -> Segments:
    """Return the same text with other nested pieces."""
    outer = {one.name for one in tree} & set(RESERVED)
    own = np.full(found.length, -1, np.int64)
    for one in tree:
        if one.name in outer:
            for piece in one.pieces:
                own[piece.start : piece.stop] = RESERVED.index(one.name)
    return replace(found, entries=tuple(entries_of([one for one in tree if one.name not in outer], own)))


def replace_entries(found: Segments, entries: Iterable[Segment]) -> Segments:
    """Return the same text with other entries."""
    kept = tuple(sorted(entries, key=lambda one: (one.start, one.level)))
    names = [one.name for one in kept if one.level == 0]
    return replace(found, entries=kept, answer=found.answer if found.answer in names else names[-1])


def _opened(name: str, pieces: list[Segment], inner: list[Segment]) -> list[Segment]:
    """Return the parts of a segment as entries of level 0 and below, and its other tokens as the rest of it.

    Args:
        name: of the segment.
        pieces: its entries, in order.
        inner: the entries inside it, in order.
    """
    if not inner:
        return pieces
    found = [Segment(one.name, one.start, one.stop, one.level - 1) for one in inner]
    below = (one for one in found if one.level == 0)
    part = next(below, None)
    rest = []
    for piece in pieces:
        at = piece.start
        while part is not None and part.start < piece.stop:
            rest.append((at, part.start))
            at, part = part.stop, next(below, None)
        rest.append((at, piece.stop))
    return [*found, *(Segment(f"rest of {name}", start, stop) for start, stop in rest if start < stop)]


def answer_among(named: list[Named], entries: list[Segment]) -> str:
    """Return the name of the default segment for questions: the answer if there is one, else the last."""
    names = [one.name for one in named]
    if ANSWER in names:
        return ANSWER
    last = [one.name for one in entries if one.level == 0 and one.name not in RESERVED]
    return last[-1] if last else entries[-1].name
