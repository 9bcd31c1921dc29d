"""Check the tokens that a user gives for a capture against the text that the model read."""

from __future__ import annotations

import inspect
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from ..._tokens.tokenizers import is_special
from .labels import PADDING, Labels, can_spell, ids_of
from .stacks import NamedStack, Side, first_key_of

PAD_NAMES = ("pad", "|pad|", "|padding|", "|endofpad|")
MARKS = "Ġ▁Ċ#· \n\t"  # that a tokenizer or a user puts around a word

Sample = list[Any]  # strings or ids


class StackTokens(NamedTuple):
    """The tokens of a stack, as the widget takes them."""

    tokens: Any = None
    key_tokens: Any = None

    @property
    def of_keys(self) -> Any:
        """The tokens of the keys."""
        return self.tokens if self.key_tokens is None else self.key_tokens


class TokensOfStacks(Mapping[str, StackTokens]):
    """The tokens of each stack: given for one stack, found for the others when needed.

    Args:
        stacks: by name.
        shown: the stack of the given tokens, if they do not fit another better.
        tokens: as `AttentionWidget` takes them; None: none are given.
        key_tokens: the same for keys.
        tokenizer: of the ids, or None.

    Attributes:
        given_for: the name of the stack that the tokens belong to.

    Raises:
        ValueError: they contradict the text that the model read.
    """

    def __init__(
        self, stacks: Mapping[str, NamedStack], shown: str, tokens: Any, key_tokens: Any, tokenizer: Any
    ) -> None:
        self._stacks, self.given_for = stacks, shown
        self._placed: dict[str, StackTokens] = {}
        if tokens is None and key_tokens is None:
            return
        samples = _as_samples(tokens, tokenizer)
        if samples is not None:
            self.given_for = _whose(stacks, shown, samples, tokenizer)
        self._placed[self.given_for] = _placed(stacks[self.given_for], samples, tokens, key_tokens, tokenizer)
        if tokens is not None:
            self._label_the_same()
            self._tell_what_has_none()

    def __getitem__(self, name: str) -> StackTokens:
        stack = self._stacks[name]
        found = self._placed[name] if name in self._placed else _known(stack)
        if stack.cross and found.tokens is not None and found.key_tokens is None:
            # If there are as many keys as queries, a widget would give them the queries' tokens.
            return found._replace(key_tokens=[f"{i:,}" for i in range(stack.keys.length)])
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._stacks)

    def __len__(self) -> int:
        return len(self._stacks)

    def _label_the_same(self) -> None:
        """Give the tokens also to stacks of the same tower, and to those that read the same ids."""
        own = self._stacks[self.given_for]
        for other, stack in self._stacks.items():
            if other == self.given_for or stack.is_labeled or stack.queries.length != own.queries.length:
                continue
            if _are_same(own.queries, stack.queries) or (own.tower, own.forward) == (stack.tower, stack.forward):
                keys = None if stack.keys is stack.queries else _known(stack).key_tokens
                self._placed[other] = StackTokens(self._placed[self.given_for].tokens, keys)

    def _tell_what_has_none(self) -> None:
        """Warn that stacks of the same length show positions: the tokens may belong to another text."""
        name, length = self.given_for, self._stacks[self.given_for].queries.length
        alike = [
            other
            for other, stack in self._stacks.items()
            if other not in self._placed and not stack.is_labeled and not stack.cross
            if stack.queries.length == length
        ]
        if alike:
            others = f"{alike[0]!r}" + (f" and {len(alike) - 1} more" if len(alike) > 1 else "")
            _warn(
                f"tokens label {name!r}; {others}, as long, may have read another text and shows positions. Give its "
                f"tokens with stack={alike[0]!r}, or use capture(model, tokenizer=…), which knows them"
            )


def _are_same(side: Side, other: Side) -> bool:
    """Return whether two stacks read the same ids, as in two forward passes over the same text."""
    return side.ids is not None and other.ids is not None and torch.equal(side.ids, other.ids)


def _placed(
    stack: NamedStack, samples: list[Sample] | None, tokens: Any, key_tokens: Any, tokenizer: Any
) -> StackTokens:
    """Return the tokens of their stack."""
    known = _known(stack)
    found = StackTokens(
        known.tokens if tokens is None else tokens, known.key_tokens if key_tokens is None else key_tokens
    )
    if samples is not None:
        found = _place(stack, samples, tokenizer, found if key_tokens is not None else None, tokens)
    if key_tokens is not None and (keys := _as_samples(key_tokens, tokenizer)) is not None:
        held = _held_against(stack.keys, keys, tokenizer, "key_tokens")
        found = found._replace(key_tokens=key_tokens if held is None else held)
    return found


def _known(stack: NamedStack) -> StackTokens:
    own = _as_one(stack.tokens)
    return StackTokens(own, own if stack.keys is stack.queries else _as_one(stack.key_tokens))


def _as_one(labels: Labels | None) -> Any:
    """Return labels as one list if all samples have the same list."""
    return labels[0] if labels and all(one is labels[0] for one in labels) else labels


def _as_samples(tokens: Any, tokenizer: Any) -> list[Sample] | None:
    """Return a list of strings or ids for each sample, one if all share it; None if they are neither."""
    if isinstance(tokens, Mapping) and "input_ids" in tokens and can_spell(tokenizer):
        tokens = tokens["input_ids"]
    tokens = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    if isinstance(tokens, str | bytes | Mapping) or not isinstance(tokens, Iterable):
        return None  # refused by the widget, with advice
    given = [one.tolist() if hasattr(one, "tolist") else one for one in tokens]
    if given and all(isinstance(one, list | tuple) for one in given):
        return [list(one) for one in given]
    return [given] if given and not any(isinstance(one, list | tuple) for one in given) else None


def _are_ids(samples: Sequence[Sample]) -> bool:
    return all(isinstance(one, int | np.integer) and not isinstance(one, bool) for sample in samples for one in sample)


def _whose(stacks: Mapping[str, NamedStack], shown: str, samples: list[Sample], tokenizer: Any) -> str:
    """Return the stack of the tokens: the shown one, unless another stack read them."""
    first = stacks[shown]
    rivals = {
        name: one
        for name, one in stacks.items()
        if one.forward == first.forward and one.cross == first.cross and _fits(one, samples)
    }
    if shown in rivals and (not _known_words(first, samples, tokenizer) or _reads(first, samples, tokenizer)):
        return shown
    return next((name for name, one in rivals.items() if _reads(one, samples, tokenizer)), next(iter(rivals), shown))


def _fits(stack: NamedStack, samples: list[Sample]) -> bool:
    side, keys = stack.queries, stack.keys
    if len(samples) not in (1, side.batches):
        return False
    lengths = {len(sample) for sample in samples}
    fitting = ({side.length}, {keys.length}, {side.total}, {side.total + 1})
    return lengths in fitting or _counts(side) == [len(x) for x in samples]


def _counts(side: Side) -> list[int] | None:
    """Return the number of positions of each sample without padding; None if unknown."""
    return None if side.real is None else [int(n) for n in side.real.sum(1)]


def _known_words(stack: NamedStack, samples: list[Sample], tokenizer: Any) -> list[Sample] | None:
    """Return the text that a stack read, as ids or as words, as the tokens were given; None if unknown."""
    ids = ids_of(stack.queries.ids)
    if ids is None or _are_ids(samples):
        return None if ids is None else [list(one) for one in ids]
    return [list(one) for one in stack.queries.labels(tokenizer) or ()] or None if can_spell(tokenizer) else None


def _reads(stack: NamedStack, samples: list[Sample], tokenizer: Any) -> bool:
    """Return whether a stack has read these tokens."""
    known = _known_words(stack, samples, tokenizer)
    given = samples * stack.queries.batches if len(samples) == 1 else samples
    return known is not None and all(_alike(*pair) for pair in zip(given, known, strict=False))


def _alike(given: Sample, known: Sample) -> bool:
    return len(given) >= len(known) > 0 and all(_bare(a) == _bare(b) for a, b in zip(given, known, strict=False))


def _bare(token: Any) -> Any:
    return token.strip(MARKS).lower() if isinstance(token, str) else token


# Checks against one stack.


def _place(
    stack: NamedStack, samples: list[Sample], tokenizer: Any, keys: StackTokens | None, given: Any
) -> StackTokens:
    """Return the tokens of a stack; `given` itself if nothing changes."""
    side = stack.queries
    if side.rows is not None and (found := _of_kept_rows(stack, samples, tokenizer, keys)) is not None:
        return found
    own_keys = keys is None and not stack.cross and stack.keys.length > side.length
    before = first_key_of(stack)
    if own_keys and before is not None and {len(sample) for sample in samples} == {stack.keys.length}:
        queries = [sample[before : before + side.length] for sample in samples]
        _held_against(side, queries, tokenizer, "tokens")
        return StackTokens(queries if len(queries) > 1 else queries[0], samples if len(samples) > 1 else samples[0])
    held = _held_against(side, samples, tokenizer, "tokens")
    placed = StackTokens(given if held is None else held)
    if keys is not None:
        return placed._replace(key_tokens=keys.key_tokens)
    known = _known(stack)
    return placed._replace(key_tokens=None if stack.keys is side else known.key_tokens)


def _of_kept_rows(
    stack: NamedStack, samples: list[Sample], tokenizer: Any, keys: StackTokens | None
) -> StackTokens | None:
    """Return the tokens of the kept queries from the tokens of all; None if they are not the tokens of all."""
    side, rows = stack.queries, stack.queries.rows or ()
    length = min(map(len, samples))
    if length == side.length or length <= rows[-1]:
        return None
    samples = _without_last(samples, side.total, "tokens") or samples
    kept = [[sample[row] for row in rows] for sample in samples]
    _held_against(side, kept, tokenizer, "tokens")
    all_keys: Any = _known(stack).key_tokens
    if keys is not None:
        all_keys = keys.key_tokens
    elif not stack.cross and {len(sample) for sample in samples} == {stack.keys.length}:
        all_keys = samples if len(samples) > 1 else samples[0]
    return StackTokens(kept if len(kept) > 1 else kept[0], all_keys)


def _without_last(samples: list[Sample], length: int, name: str) -> list[Sample] | None:
    """Return tokens without the last one that generate() wrote, with a warning; None if there is not one too many."""
    if {len(sample) for sample in samples} != {length + 1}:
        return None
    _warn(
        f"{name} has {length + 1} tokens but the model read {length}: the last token that generate() writes is never "
        f"read, so it has no row, and the first {length} are shown"
    )
    return [sample[:length] for sample in samples]


def _held_against(side: Side, samples: list[Sample], tokenizer: Any, name: str) -> Any:
    """Return tokens as they are shown, if they change; None if they do not.

    Raises:
        ValueError: they contradict the text that the model read.
    """
    cut = None if side.rows is not None else _without_last(samples, side.length, name)
    changed, samples = cut is not None, cut or samples
    if len(samples) == 1 and side.batches > 1:
        _warn_of_one_list(side, name)
    elif len(samples) == side.batches and side.batches > 1:
        unpadded = any(len(sample) != side.length for sample in samples)
        if unpadded and side.real is not None:
            samples, changed = _with_padding(side, samples, name), True
        elif not unpadded:
            _check_padding(side, samples, tokenizer, name)
    if all(len(sample) == side.length for sample in samples):
        _check_order(side, samples, tokenizer, name)
    if not changed:
        return None
    return samples if len(samples) > 1 else samples[0]


def _warn_of_one_list(side: Side, name: str) -> None:
    ids = side.ids
    if ids is not None and bool((ids != ids[0]).any()):
        _warn(
            f"{name} is one list but the {side.batches} samples have read different texts: give a list for each, "
            "or capture(model, tokenizer=…), which knows them"
        )


def _with_padding(side: Side, samples: list[Sample], name: str) -> list[Sample]:
    """Spread tokens without padding over the positions that are not padding."""
    assert side.real is not None
    counts = _counts(side)
    given = [len(sample) for sample in samples]
    if given != counts:
        order = (
            ", so the samples were read in another order"
            if Counter(given) == Counter(counts or ())
            else f", which is not one for each of {side.length} positions either"
        )
        raise ValueError(
            f"{name} has {given} tokens but the samples that the model read have {counts} without padding{order}: give "
            "them in the order that the model read, or use capture(model, tokenizer=…), which knows them"
        )
    placed = []
    for sample, real in zip(samples, side.real.tolist(), strict=True):
        rest = iter(sample)
        placed.append([next(rest) if one else PADDING for one in real])
    return placed


def _check_padding(side: Side, samples: list[Sample], tokenizer: Any, name: str) -> None:
    """Raise for tokens whose padding is not where the model's is, as after sorting sentences."""
    if side.real is None:
        return
    pad = getattr(tokenizer, "pad_token", None) if can_spell(tokenizer) else None
    for b, (sample, real) in enumerate(zip(samples, side.real.tolist(), strict=True)):
        named = [isinstance(one, str) and (one in (pad, PADDING) or _is_pad(one)) for one in sample]
        if any(named) and any(there and is_pad for there, is_pad in zip(real, named, strict=True)):
            i = next(i for i, (there, is_pad) in enumerate(zip(real, named, strict=True)) if there and is_pad)
            raise ValueError(
                f"{name}[{b}][{i}] is {sample[i]!r}, where sample {b} that the model read has no padding: a library "
                "may have sorted the samples; give them as they were read, or capture(model, tokenizer=…), which knows "
                "them"
            )


def _is_pad(token: str) -> bool:
    return is_special(token) and token.strip("<>[]").lower() in PAD_NAMES


def _check_order(side: Side, samples: list[Sample], tokenizer: Any, name: str) -> None:
    """Raise for ids that the model did not read, and for the words of other samples."""
    known: list[Sample] | None = None
    if _are_ids(samples):
        known = [list(one) for one in ids_of(side.ids) or ()] or None
    elif can_spell(tokenizer):
        known = [list(one) for one in side.labels(tokenizer) or ()] or None
    if known is None or len(samples) != len(known):
        return
    for b, sample in enumerate(samples):
        real = [True] * side.length if side.real is None else side.real[b].tolist()
        if _same_where(sample, known[b], real):
            continue
        others = [c for c in range(len(known)) if c != b and _same_where(sample, known[c], real)]
        if others:
            raise ValueError(
                f"{name}[{b}] is the text of sample {others[0]}: the samples are in another order. Give them in the "
                "model's order, or leave them out, because the capture knows them"
            )
        if _are_ids(samples):
            i = next(i for i in range(side.length) if real[i] and known[b][i] not in (None, sample[i]))
            raise ValueError(
                f"{name}[{b}][{i}] is id {sample[i]} but the model read {known[b][i]} there: give the ids that went "
                "in, or leave them out, because the capture knows them"
            )


def _same_where(given: Sample, known: Sample, real: Sequence[bool]) -> bool:
    """Return whether tokens equal the known ones, except in padding."""
    pairs = zip(given, known, real, strict=True)
    return all(not there or b is None or _bare(a) == _bare(b) for a, b, there in pairs)


def _warn(message: str) -> None:
    """Warn at a line of the user: the first outside this package."""
    package, level, frame = __name__.partition(".")[0], 0, inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == package:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level + 1)
