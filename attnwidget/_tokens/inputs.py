"""A user's tokens, checked: strings, or a tokenizer's ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

import numpy as np

from .tokenizers import spell
from .unread import Unread


def check_tokens(tokens: Any, batches: int, length: int, name: str, tokenizer: Any = None) -> list[list[str]] | None:
    """Return tokens as one list of strings for each sample; None if there are none.

    Args:
        tokens: one list with a string per position, shared by all samples, or such a list for each sample; lists,
            tuples or arrays. With a tokenizer, also ids, or its output, with its "input_ids".
        batches, length: the number of samples, and of positions in each.
        name: of the argument, for errors.
        tokenizer: spells ids, see `tokenizers.spell`. The output of a fast tokenizer needs none.

    Raises:
        TypeError: it is a plain string, or has an element that is neither a string nor an id.
        ValueError: too many or too few, or an id that the tokenizer cannot spell.

    >>> check_tokens(["a", "cat"], batches=2, length=2, name="tokens")
    [['a', 'cat'], ['a', 'cat']]
    """
    if tokens is None:
        return None
    if isinstance(tokens, str):
        cut = tokens if len(tokens) <= 20 else f"{tokens[:19]}…"
        raise TypeError(f"{name} is one string {cut!r}: give a list with one string per token")
    written = _as_written(tokens)
    tokens = _as_list(_ids_of(tokens, name, tokenizer) if written is None else written, name)
    if not any(hasattr(sample, "__len__") and not isinstance(sample, str | bytes) for sample in tokens):
        return [_check_sample(tokens, length, name, tokenizer)] * batches
    if len(tokens) != batches:
        raise ValueError(
            f"{name} has {len(tokens)} lists but there are {batches} samples: give one list, or one for each"
        )
    return [_check_sample(_as_list(sample, name), length, f"{name}[{i}]", tokenizer) for i, sample in enumerate(tokens)]


def is_encoding(given: Any) -> bool:
    """Return whether a value is the output of a tokenizer: of transformers or of tokenizers, or its ids by name."""
    if isinstance(given, Mapping):
        return "input_ids" in given
    return not hasattr(given, "ndim") and isinstance(getattr(given, "tokens", None), list) and hasattr(given, "ids")


def is_by_name(given: Any) -> TypeGuard[Mapping[Any, Any]]:
    """Return whether a value is tokens by name, and not the output of a tokenizer."""
    return isinstance(given, Mapping) and not is_encoding(given)


def is_tokens(given: Any) -> bool:
    """Return whether a value is tokens and not numbers to compute with: strings, ids, or an encoding."""
    if given is None or isinstance(given, str) or is_encoding(given):
        return given is not None and not isinstance(given, str)
    if hasattr(given, "dtype"):
        kind = str(given.dtype).removeprefix("torch.")
        return kind.startswith(("int", "uint", "<U", "|S", "object"))
    if not isinstance(given, list | tuple) or not given:
        return False
    return isinstance(given[0], str | int | np.integer) or is_tokens(given[0])


def _as_written(given: Any) -> list[Any] | None:
    """Return the tokenizer's own words in an encoding; None if it is not one, or holds only ids."""
    if isinstance(given, list | tuple) and given and all(is_encoding(one) for one in given):
        each = [_as_written(one) for one in given]
        return None if any(one is None for one in each) else each
    if not is_encoding(given):
        return None
    if not isinstance(given, Mapping):
        return list(given.tokens)
    encodings = getattr(given, "encodings", None)  # of transformers' fast tokenizers
    if not encodings:
        return None
    texts = [list(one.tokens) for one in encodings]
    ids = given["input_ids"]
    is_one = len(texts) == 1 and not hasattr(ids, "ndim") and not hasattr(ids[0], "__len__")
    return texts[0] if is_one else texts


def _ids_of(given: Any, name: str, tokenizer: Any) -> Any:
    """Return the ids of encodings without words, as slow tokenizers return them; any other value unchanged."""
    is_several = isinstance(given, list | tuple) and bool(given) and all(is_encoding(one) for one in given)
    if not is_several and not is_encoding(given):
        return given
    if tokenizer is None:
        raise TypeError(
            f"{name} holds ids and no words, as a slow tokenizer of transformers returns them: write "
            f"{name}=encoding, tokenizer=tokenizer, with the tokenizer that made the encoding"
        )
    return [one["input_ids"] for one in given] if is_several else given["input_ids"]


def never_read(count: int, length: int) -> str:
    """Return a hint for one token too many: the last generated token was written, and never read."""
    if count != length + 1:
        return ""
    return " (if they are of generate(), the last token was never read: give tokens[:-1], or take cap.widget())"


def _as_list(tokens: Any, name: str) -> list[Any]:
    tokens = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    if callable(getattr(tokens, "decode", None)) and not isinstance(tokens, bytes):
        raise TypeError(
            f"{name} is a tokenizer, {type(tokens).__name__}: give it as tokenizer=, and the text's ids or strings as "
            f"{name}="
        )
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
        raise ValueError(
            f"{name} has {len(tokens)} string{'s' * (len(tokens) != 1)} but there are {length} positions: "
            "give one for each"
            f"{never_read(len(tokens), length)}"
        )
    return [token if isinstance(token, Unread) else str(token) for token in tokens]
