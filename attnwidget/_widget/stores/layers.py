"""The layers of a widget: as given, merged into words, under other rules; with their tokens and overviews."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from ..._analysis.all_heads import numbers_of_heads
from ..._analysis.head_kinds import HeadText
from ..._engine.base import Part
from ..._engine.combined_heads import CombinedHeads
from ..._engine.kept_levels import only_overviews
from ..._engine.level_cache import LevelCache, LevelStore
from ..._engine.what_if import WhatIfLayers
from ..._messages.answers.long_answers import LongAnswers
from ..._messages.pictures.heads_overview import OwnMetrics
from ..._segments.segments import Segments
from ..._tokens.tokenizers import Spelling
from ...attention import Attention
from ...stack import AttentionStack
from .across import AcrossLayers
from .named_stacks import StackPlace
from .token_store import TokenStore

# Takes a layer and a sample; returns the keys' segments (or None), and whether a rule such as "sentences" made them.
SegmentsOf = Callable[[int, int], tuple[Segments | None, bool]]

MAX_COMBINED_SETS = 4  # sets of combined heads whose levels are kept


class ShownLayers:
    """The layers on display: another object whenever the tensors, the rules or the words change.

    Args:
        attention: the layers as given.
        token_store: the tokens of their positions.
        words: whether subwords are merged into words.
        rules: the other rules, if any.
        target: the target token of the stage logit; None: each layer's own.
        version: a number that distinguishes these layers from earlier ones.
        place: the shown stack among the others.
        across: several layers as one, shown in place of the layers; None: the layers themselves.

    `every` holds all layers as given, and `given` those on display. `stack` merges subwords into words if requested,
    and `layers` also applies the other rules. Each is made when it is first used.
    """

    def __init__(
        self,
        attention: Attention | AttentionStack,
        token_store: TokenStore,
        *,
        words: bool = False,
        rules: Mapping[str, Any],
        target: int | None = None,
        version: int,
        place: StackPlace,
        across: AcrossLayers | None = None,
    ) -> None:
        self.attention, self.rules, self.version, self._token_store = attention, dict(rules), version, token_store
        self.place, self.words, self.target = place, words, target
        self.kinds: OwnMetrics = {}  # custom metrics
        self.segments_of: SegmentsOf = lambda layer, batch: (None, False)
        self.every = attention if isinstance(attention, AttentionStack) else AttentionStack([attention])
        self.as_one = across
        self.given = self.every if across is None else across.stack
        if target is not None:
            self.given = AttentionStack([_of_token(att, target) for att in self.given], self.given.names)
        self.stack = self.given
        merged = partial(_merged, token_store, self.given)
        if words:
            self.stack = AttentionStack([merged(*layer) for layer in enumerate(self.given)], self.given.names)
        self.layers = WhatIfLayers(self.given, rules, merged if words else None)
        self.long_answers = LongAnswers()
        self._level_store = LevelStore()
        self._levels: dict[int, LevelCache] = {}
        self._combined: dict[tuple[int, str], LevelCache] = {}  # combined heads, the last ones shown

    @property
    def labels(self) -> list[str]:
        """The name of each layer, with the kept heads and queries if it keeps only some."""
        parts = ["" if att.part is None else att.part.describe() for att in self.given]
        return [f"{name} ({part})" if part else name for name, part in zip(self.given.names, parts, strict=True)]

    @property
    def head_numbers(self) -> list[list[int] | None] | None:
        """The numbers in the model of each layer's heads; None for a layer with all, and None if all have all."""
        found = [None if (own := numbers_of_heads(att)) is None else list(own) for att in self.given]
        return found if any(found) else None

    @property
    def title(self) -> str:
        """The line above the picture of a part of a model, if all layers keep the same part; else empty."""
        parts = {att.part for att in self.given}
        part = parts.pop() if len(parts) == 1 else None
        kept = next((x for att in self.given if (x := only_overviews(att)) is not None), None)
        words = "" if part is None else part.describe()
        combined = [att.source.description[0] for att in self.given if isinstance(att.source, CombinedHeads)]
        said = [combined[0].capitalize()] if len(combined) == 1 == len(self.given) else []
        said += [f"of the model: {words}"] if words else []
        if kept is not None:
            said.append(
                f"overviews only (keep='overview'): each cell is the largest of {kept.size} weights; single rows and "
                "keys, other stages, segments and What if are not available"
            )
        return "; ".join(said)

    def versions(self) -> tuple[tuple[int, ...], ...]:
        """Return numbers that change whenever a tensor of any layer changes."""
        return tuple(self.layers[layer].versions() for layer in range(len(self.layers)))

    def before(self, layer: int) -> Attention | None:
        """Return a layer without the other rules; None if there are none."""
        return self.stack[layer] if self.rules else None

    def grid_layer(self, layer: int) -> int:
        """Return the layer of `every` whose patches a shown layer has."""
        return layer if self.as_one is None else self.as_one.largest

    # Tokens and words.

    @property
    def spelling(self) -> Spelling | None:
        """The spelling of the tokens' vocabulary, if the tokenizer shows it."""
        return self._token_store.spelling

    def tokens(self, side: str, layer: int, batch: int) -> list[str] | None:
        """Return the tokens of a sample's "query" or "key" side in a layer; None if their number does not fit."""
        if self.stack[layer] is not self.given[layer]:
            return self._token_store.words(side, self.given[layer], batch)
        samples = self._token_store.samples(side, self.given[layer].shape)
        return None if samples is None else samples[batch]

    def given_tokens(self, side: str, layer: int, batch: int) -> list[str] | None:
        """Return the tokens as given, before merging."""
        samples = self._token_store.samples(side, self.given[layer].shape)
        return None if samples is None else samples[batch]

    def of_own_text(self, layer: int, batch: int) -> Attention:
        """Return a layer; if its keys are another text than its queries, no key counts as a query's own."""
        att = self.layers[layer]
        if att.shape.Q != att.shape.K or att.own_keys(range(1)) is None:
            return att
        queries, keys = (self.given_tokens(side, layer, batch) for side in ("query", "key"))
        is_same = queries is keys or keys is None or queries is None or queries == keys
        part = att.part or Part()
        return att if is_same else att.as_part(part.heads, part.queries, elsewhere=True)

    def given_ids(self, side: str, layer: int, batch: int) -> list[int] | None:
        """Return the tokens as ids, if they were given as ids."""
        return self._token_store.given_ids(side, self.given[layer].shape, batch)

    def word_ends(self, side: str, layer: int, batch: int) -> Tensor | None:
        """Return the start of each word of a sample and the end of the last, (words + 1,); None without tokens."""
        found = self._token_store.bounds(side, self.given[layer])
        return None if found is None else found.of(batch)

    def pieces_of(self, side: str, position: int, layer: int, batch: int) -> tuple[int, ...]:
        """Return the model's positions behind a shown position: the subwords of a word, or the position itself.

        Raises:
            IndexError: there is no such word.
        """
        ends = self.word_ends(side, layer, batch) if self.words else None
        if ends is None:
            return (position,)
        bounds = ends.tolist()
        pieces = tuple(range(*bounds[position : position + 2])) if position < len(bounds) - 1 else ()
        if not pieces:
            raise IndexError(f"{side} {position} is not there: sample {batch} has {len(set(bounds)) - 1} words")
        return pieces

    def ids(self, layer: int, batch: int) -> Tensor | None:
        """Return the tokens of a layer's keys as numbers, (K,), equal for equal tokens; None if any is unknown."""
        tokens = self.tokens("key", layer, batch)
        if tokens is None:
            return None
        return self._token_store.ids(tokens)

    def text(self, layer: int, batch: int) -> HeadText:
        """Return the known text of a layer's keys, for custom metrics."""
        segments, guessed = self.segments_of(layer, batch)
        tokens = self.tokens("key", layer, batch)
        return HeadText.of(self.ids(layer, batch), tokens, segments, guessed=guessed)

    def has_pieces(self, layer: int) -> bool:
        """Return whether merging tokens into words changes a layer, judged by the first tokens."""
        return self._token_store.has_pieces(self.given[layer].shape)

    def across(self, side: str, index: int | None, layer: int, batch: int, *, to_words: bool) -> int | None:
        """Return the word of a subword, or a word's first subword; the same position without tokens."""
        words = self._token_store.bounds(side, self.given[layer])
        if index is None or words is None:
            return index
        return words.word_of(index, batch) if to_words else words.first_of(index, batch)

    # Kept overviews.

    def levels(self, layer: int) -> LevelCache:
        """Return the overviews of a layer."""
        return self._levels.setdefault(layer, LevelCache(self.layers[layer], store=self._level_store))

    def source(self, layer: int, head: int | str) -> tuple[LevelCache, int]:
        """Return the overviews of a head, or of combined heads.

        Args:
            layer: the layer's number.
            head: the head's number, or the name of combined heads, such as "mean 0 4".

        Returns:
            The cache, and the head's number in it: combined heads are head 0 of a separate cache.
        """
        if isinstance(head, int):
            return self.levels(layer), head
        found = self._combined.pop((layer, head), None)
        if found is None:
            how, *heads = head.split()
            att = self.layers[layer].combine([int(one) for one in heads], how)
            found = LevelCache(att, store=self._level_store)
        self._combined[layer, head] = found  # the last one used
        while len(self._combined) > MAX_COMBINED_SETS:
            self._combined.pop(next(iter(self._combined)))
        return found, 0


def takes(att: Attention, target: int) -> bool:
    """Return whether a layer can show the logit of a token."""
    known = None if att.carries is None else att.carries.readout
    return known is not None and known.refusal() is None and 0 <= target < known.vocabulary


def _of_token(att: Attention, target: int) -> Attention:
    return att.with_target(target) if takes(att, target) else att


def _merged(token_store: TokenStore, given: AttentionStack, layer: int, att: Attention) -> Attention:
    """Return a layer merged into words; unchanged if no tokens fit it."""
    words, key_words = (token_store.bounds(side, given[layer]) for side in ("query", "key"))
    if words is None and key_words is None:
        return att
    return att.merge(words or range(att.shape.Q), key_words or range(att.shape.K))
