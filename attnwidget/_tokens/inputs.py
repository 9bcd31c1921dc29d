"""Tokens as a user gives them, checked: strings, or a tokenizer's ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .tokenizers import spell


def check_tokens(tokens: Any, batches: int, length: int, name: str, tokenizer: Any = None) -> list[list[str]] | None:
    """Return tokens as one list of strings for each sample; None where there are none.

    Args:
        tokens: one list with a string per position, shared by all samples, or such a list for each sample; lists,
            tuples or arrays. With a tokenizer, ids as well, or what it returns, with its "input_ids".
        batches, length: how many samples, and positions in each, there are.
        name: what the user calls them.
        tokenizer: what has words for ids, see `tokenizers.spell`.

    Raises:
        TypeError: a plain string, or anything in it that is neither a string nor an id.
        ValueError: too many or too few, or an id that the tokenizer has no word for.

    >>> check_tokens(["a", "cat"], batches=2, length=2, name="tokens")
    [['a', 'cat'], ['a', 'cat']]
    """
    if tokens is None:
        return None
    if isinstance(tokens, str):
        raise TypeError(f"{name} is one string {tokens[:20]!r}: give a list with one string per token")
    if isinstance(tokens, Mapping) and "input_ids" in tokens:
        if tokenizer is None:
            raise TypeError(f"{name} is what a tokenizer returns: give the tokenizer as well, as tokenizer=")
        tokens = tokens["input_ids"]
    tokens = _as_list(tokens, name)
    if not any(hasattr(sample, "__len__") and not isinstance(sample, str | bytes) for sample in tokens):
        return [_check_sample(tokens, length, name, tokenizer)] * batches
    if len(tokens) != batches:
        raise ValueError(
            f"{name} has {len(tokens)} lists but there are {batches} samples: give one list, or one for each"
        )
    return [_check_sample(_as_list(sample, name), length, f"{name}[{i}]", tokenizer) for i, sample in enumerate(tokens)]


def _as_list(tokens: Any, name: str) -> list[Any]:
    tokens = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    if isinstance(tokens, str | Mapping) or not isinstance(tokens, Iterable):
        raise TypeError(f"{name} is or holds {tokens!r:.40}: give a list of strings, or one such list for each sample")
    return list(tokens)


def _check_sample(tokens: list[Any], length: int, name: str, tokenizer: Any) -> list[str]:
    if tokenizer is not None and tokens and all(isinstance(token, int | np.integer) for token in tokens):
        tokens = spell([int(token) for token in tokens], tokenizer, name)
    for i, token in enumerate(tokens):
        if not isinstance(token, str):
            kind = type(token).__name__
            raise TypeError(
                f"{name}[{i}] is {token!r:.20}, of type {kind}: give strings, the tokenizer's own words for its ids"
                + (", or tokenizer= as well" if tokenizer is None and isinstance(token, int | np.integer) else "")
            )
    if len(tokens) != length:
        raise ValueError(f"{name} has {len(tokens)} strings but there are {length} positions: give one for each")
    return [str(token) for token in tokens]
