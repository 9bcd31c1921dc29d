"""Merge subwords into words: sum weights over the subwords of a key word, average over those of a query word.

Clark et al. 2019, "What does BERT look at?", §4.1: "For attention to a split-up word, we sum up the attention weights
over its tokens. For attention from a split-up word, we take the mean of the attention weights over its tokens." So the
weights of a word sum to 1, like those of its subwords. `MergedWords` is a source that makes no (Q, K) tensor. In names
here, a piece is a subword.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from .. import masks
from .._rules.options import AttentionOptions
from .._rules.parsing import DerivedMask
from .._rules.rules import ByIndex, whole
from .._tokens.tokenizers import join_pieces, word_ids
from .._utils.indexing import Block, Indices, cuts, hull, positions
from . import softmax
from .base import AttentionBase, Head, Shape
from .matmul import Scratch
from .sources import SourceRows
from .stages import FEW_CELLS, allowed_cells, new, streamed

ROWS_AT_ONCE, KEYS_AT_ONCE = 1024, 4096  # subwords to compute at once
FEW_WORDS = 16  # the rows of so many words are computed at once
A = TypeVar("A", bound=AttentionBase)


@dataclass(frozen=True, eq=False)
class WordBounds:
    """Where the words of each sample begin and end among its subwords; words after the last are empty."""

    ends: Tensor  # (B or 1, words + 1) int64: word w has the subwords from ends[w] up to ends[w + 1]

    @property
    def words(self) -> int:
        """The number of words in the sample with the most words."""
        return self.ends.shape[1] - 1

    def of(self, batch: int) -> Tensor:
        """Return `ends` of one sample, (words + 1,)."""
        return self.ends[batch if len(self.ends) > 1 else 0]

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """The number of nonempty words of each sample."""
        return tuple(int((row[1:] > row[:-1]).sum()) for row in self.ends)

    def word_of(self, piece: int, batch: int) -> int:
        """Return the word of a subword."""
        return int(torch.searchsorted(self.of(batch), piece, right=True)) - 1

    def first_of(self, word: int, batch: int) -> int:
        """Return the first subword of a word; for an empty word, the last subword of the sample."""
        ends = self.of(batch)
        return min(int(ends[word]), int(ends[-1]) - 1)


@dataclass(frozen=True, eq=False)
class MergedWords:
    """Weights between words, computed from the weights between their subwords."""

    pieces: AttentionBase
    queries: WordBounds
    keys: WordBounds
    gives: Literal["weights"] = "weights"
    default_scale: float = 1.0
    description: tuple[str, ...] = ()  # the options of the merged attention describe it
    derived: bool = True

    def rows(self, batch: int, head: int, queries: Indices, scale: float) -> SourceRows:
        return WordRows(self, batch, head, queries, scale)

    def tensors(self) -> dict[str, Tensor]:
        base = self.pieces
        sinks = {} if base.sinks is None else {"sinks": base.sinks}
        tensors = {**base.source.tensors(), **sinks, **base.rules.tensors()}
        return {f"{name} of the pieces": x for name, x in tensors.items()}

    @property
    def zero_where_blocked(self) -> bool:
        return self.pieces.source.gives == "scores" or self.pieces.source.zero_where_blocked

    @property
    def has_sinks(self) -> bool:
        return self.pieces.has_sinks

    def sink_weights(self, batch: int, head: int, queries: Indices) -> Tensor | None:
        """Return the sink weights averaged over the subwords of each word; 0 for an empty word."""
        rows, of_row = pieces_of(self.queries.of(batch), positions(queries, self.pieces.device))
        if not len(rows):
            return new(self.pieces, len(queries)).zero_() if self.has_sinks else None
        found = softmax.sink_weights(Head(self.pieces, batch, head), compact(rows))
        if found is None:
            return None
        total = found.new_zeros(len(queries)).index_add_(0, of_row, found)
        return total / torch.bincount(of_row, minlength=len(queries)).clamp_min(1)

    def prepare(self, batch: int, queries: Indices) -> Generator[int, None, None]:
        yield from ()

    def heads_in_cells(self, batch: int, head: int) -> tuple[Head, ...]:
        return ()

    def rows_needed(self, batch: int, head: int, queries: range) -> tuple[tuple[Head, range], ...]:
        """Return the rows of all subwords; () for a few words, whose rows are computed at once."""
        one = Head(self.pieces, batch, head), range(self.pieces.shape.Q)
        return (one,) if len(queries) > FEW_WORDS else ()

    def __call__(self, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        """Return, as a mask function, which words may attend to which: if any subword may attend to any other."""
        queries, keys = q_idx.flatten(), kv_idx.flatten()
        rows, of_row = pieces_of(self.queries.of(int(b)), queries)
        columns, of_column = pieces_of(self.keys.of(int(b)), keys)
        found = torch.zeros(len(queries), len(keys), dtype=torch.int32, device=q_idx.device)
        for at in cuts(range(len(rows)), 1, ROWS_AT_ONCE):
            some = rows[at.start : at.stop]
            cells = Block(int(b), int(h), compact(some), compact(columns))
            allowed = whole(allowed_cells(self.pieces, cells), some, columns, q_idx.device).int()
            by_key = torch.zeros(len(some), len(keys), dtype=torch.int32, device=q_idx.device)
            found.index_add_(0, of_row[at.start : at.stop], by_key.index_add_(1, of_column, allowed))
        by_row = kv_idx.shape[-1] == len(keys) if len(keys) > 1 else q_idx.shape[-1] == 1
        return found > 0 if by_row else (found > 0).mT  # as the indices lie


@dataclass(frozen=True, eq=False)
class WordMask(DerivedMask):
    """Which words may attend to which, with bounds from those of their subwords."""

    words: MergedWords
    shared = False

    def __call__(self, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return self.words(b, h, q_idx, kv_idx)

    def bounds(self, cells: Block) -> masks.KeyBounds:
        queries, keys = (bounds.of(cells.batch) for bounds in (self.words.queries, self.words.keys))
        rows, columns = hull(cells.queries), hull(cells.keys)
        there = (range(int(ends[at.start]), int(ends[at.stop])) for ends, at in ((queries, rows), (keys, columns)))
        span = self.words.pieces.rules.span(Block(cells.batch, cells.head, *there))
        if not span:
            return masks.KeyBounds(masks.NO_KEYS, masks.NO_KEYS)
        first, last = (self.words.keys.word_of(piece, cells.batch) for piece in (span.start, span.stop - 1))
        return masks.KeyBounds(masks.overlap(range(first, last + 1), columns), masks.NO_KEYS)

    def describe(self, batch: int) -> str:
        return "mask"

    def to_json(self, add: Callable[[Tensor], str]) -> dict[str, Any]:
        raise ValueError("the mask of merged words cannot be saved: save the attention of the subword tokens")


class WordRows:
    """The rows of some words."""

    def __init__(self, words: MergedWords, batch: int, head: int, queries: Indices, scale: float):
        self.words, self.batch, self.head, self.scale, self.count = words, batch, head, scale, len(queries)
        ends, base = words.queries.of(batch), words.pieces
        self.rows, self.of_row = pieces_of(ends, positions(queries, base.device))  # (pieces,) each
        counts = torch.bincount(self.of_row, minlength=self.count).clamp_min(1)
        self.share = 1.0 / counts.to(base.result_dtype)

    def block(self, keys: Indices, scratch: Scratch | None) -> Tensor:
        base, batch, head = self.words.pieces, self.batch, self.head
        columns, of_column = pieces_of(self.words.keys.of(batch), positions(keys, base.device))
        found = torch.zeros(self.count, len(keys), dtype=base.result_dtype, device=base.device)
        for at in cuts(range(len(self.rows)), 1, ROWS_AT_ONCE):
            rows, of_row = compact(self.rows[at.start : at.stop]), self.of_row[at.start : at.stop]
            pair = softmax.normalizers(Head(base, batch, head), rows) if streamed(base, "weights") == "masked" else None
            for part in cuts(range(len(columns)), 1, max(KEYS_AT_ONCE, FEW_CELLS // max(1, len(of_row)))):
                cells = Block(batch, head, rows, compact(columns[part.start : part.stop]))
                weights = softmax.exact_block(base, cells, "weights", pair)  # (rows, columns)
                by_key = found.new_zeros(len(of_row), len(keys))
                by_key.index_add_(1, of_column[part.start : part.stop], weights)
                found.index_add_(0, of_row, by_key.mul_(self.share[of_row, None]))
        return found.mul_(self.scale).mT.contiguous()  # (keys, queries)


def pieces_of(ends: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """Return the subwords of some words, word by word, and the index into `words` for each subword.

    Args:
        ends: (words + 1,), as in `WordBounds.of`.
        words: (n,) int64.

    Returns:
        (pieces,) int64 each.
    """
    counts = ends[words + 1] - ends[words]
    of = torch.repeat_interleave(torch.arange(len(words), device=words.device), counts)
    before = counts.cumsum(0) - counts
    return torch.arange(len(of), device=words.device) - before[of] + ends[words][of], of


def compact(places: Tensor) -> Indices:
    """Return indices as a range if they have no gaps, so that slicing makes views."""
    span = hull(places)
    return span if len(span) == len(places) and bool((places[1:] > places[:-1]).all()) else places


def as_word_bounds(words: Any, batches: int, length: int, name: str, device: torch.device) -> WordBounds:
    """Read the words that a user gives, for all samples or for each; return `WordBounds` unchanged.

    Args:
        words: as in `Attention.merge`.
        batches, length: the number of samples, and of positions in each.
        name: of the argument, for errors.

    Raises:
        TypeError, ValueError: the words cannot be read, their number is wrong, or a word's subwords are not adjacent.
    """
    if isinstance(words, WordBounds):
        return words
    words = words.tolist() if hasattr(words, "tolist") else words
    if isinstance(words, str) or not isinstance(words, Sequence):
        raise TypeError(f"{name} is {words!r:.40}: give encoding.word_ids(), or the tokens as a list of strings")
    samples = words if words and isinstance(words[0], Sequence) and not isinstance(words[0], str) else [words]
    if len(samples) not in (1, batches):
        raise ValueError(f"{name} has {len(samples)} lists but there are {batches} samples: give one list, or one each")
    ends = [_ends(sample, length, name) for sample in samples]
    most = max(map(len, ends))
    return WordBounds(torch.tensor([row + [length] * (most - len(row)) for row in ends], device=device))


def _ends(words: Sequence[Any], length: int, name: str) -> list[int]:
    """Return the `ends` of one sample."""
    if len(words) != length:
        raise ValueError(f"{name} has {len(words)} entries but there are {length} positions: give one for each")
    if all(isinstance(word, str) for word in words):
        words = word_ids(words)
    starts: list[int] = []
    seen: set[int] = set()
    before: int | None = None
    for at, word in enumerate(words):
        if word is not None and (isinstance(word, bool) or not isinstance(word, int)):
            raise TypeError(
                f"{name}[{at}] is {word!r:.40}: give the number of its word, None, or all tokens as strings"
            )
        if word is None or word != before:
            if word in seen:
                raise ValueError(f"{name}[{at}] is word {word} again, after another: give each word its own number")
            starts.append(at)
        if word is not None:
            seen.add(word)
        before = word
    return [*starts, length]


def merged(att: A, words: Any, key_words: Any = None) -> A:
    """Return the attention between words: see `Attention.merge`."""
    B, H, _, Q, K, *_ = att.shape
    queries = as_word_bounds(words, B, Q, "words", att.device)
    if key_words is None and Q != K:
        raise ValueError(f"there are {Q} queries but {K} keys: give key_words= as well")
    keys = queries if key_words is None else as_word_bounds(key_words, B, K, "key_words", att.device)
    source = MergedWords(att, queries, keys)
    padded = len({*queries.lengths, queries.words}) + len({*keys.lengths, keys.words}) > 2
    causal = [rule.mask for rule in att.rules.rules if isinstance(rule, ByIndex)] == [masks.causal]
    causal &= queries is keys and len(att.rules.rules) == 1 and not att.rules.by_score and not padded
    limited = (att.rules.rules and not causal) or att.rules.by_score or padded
    shape = Shape(B, H, H, queries.words, keys.words, None, None)
    # If subwords are causal, so are words, and a band is faster than a mask function.
    options = AttentionOptions(is_causal=causal, mask=WordMask(source) if limited else None)
    same = queries is keys or torch.equal(queries.ends, keys.ends)
    is_own = same and att.own_keys(range(Q)) == range(Q)  # otherwise their positions differ
    elsewhere = queries.words == keys.words and not is_own
    heads = None if att.part is None else att.part.heads
    return att.of(source, None, shape, options).as_part(heads, None, elsewhere=elsewhere)


def merged_tokens(tokens: Sequence[str], words: WordBounds, batch: int) -> list[str]:
    """Return the text of each word of a sample; "[PAD]" for empty words."""
    ends = words.of(batch).tolist()
    return [join_pieces(tokens[start:stop]) if stop > start else "[PAD]" for start, stop in pairwise(ends)]
