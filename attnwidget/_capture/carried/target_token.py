"""Read the tokens that a user names by text or id."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..._tokens.display import Style, spaced_text
from ..._tokens.tokenizers import ids_of_text, spell, spelling_of
from ..._utils.indexing import as_index
from ..._utils.validation import told
from ...stack import AttentionStack
from ..text.labels import SavedWords, can_spell


def token_of(target: Any, tokenizer: Any, vocabulary: int, name: str = "target") -> int:
    """Return the id of a token.

    Args:
        target: its text, including a leading space, or its id.
        tokenizer: encodes the text; its name, or None, if there is none.
        vocabulary: the number of tokens.
        name: the name used in errors.

    Raises:
        TypeError, ValueError, IndexError: not a token, or several.
    """
    if not isinstance(target, str):
        if isinstance(target, bool) or not hasattr(target, "__index__"):
            raise TypeError(f"{name} is {told(target)}: give a token's text, or its id")
        return as_index(target, vocabulary, "token", "tokens")
    if not can_spell(tokenizer) or isinstance(tokenizer, SavedWords):
        raise ValueError(f"{name} is a text, {target!r}, but there is no tokenizer: set cap.tokenizer, or give its id")
    pieces = ids_of_text(target, tokenizer)
    if len(pieces) != 1:
        words = [f"{word!r} ({one})" for word, one in zip(spell(pieces, tokenizer, "ids"), pieces, strict=True)]
        what = f"{len(pieces)} tokens, {', '.join(words)}: give one of them" if pieces else "not a token: give an id"
        raise ValueError(f"{name} is {target!r}, which is {what}")
    return as_index(pieces[0], vocabulary, "token", "tokens")


def with_words(stack: AttentionStack, tokenizer: Any) -> AttentionStack:
    """Return a stack in which the tokens that may be chosen have their texts from a tokenizer."""
    known = [att.carries for att in stack]
    ids = sorted({one for x in known if x is not None for row in (*x.choices, x.targets or ()) for one in row})
    if not ids or not can_spell(tokenizer) or isinstance(tokenizer, SavedWords):
        return stack
    try:
        spelling = spelling_of(tokenizer)
        style: Style = "words" if spelling in ("text", None) else spelling
        words = [spaced_text(one, style) for one in spell(ids, tokenizer, "ids")]
    except (TypeError, ValueError):  # the tokenizer of another model: the tokens stay numbers
        return stack
    named = dict(zip(ids, words, strict=True))
    layers = [
        att if carries is None else att.as_carrying(replace(carries, words=named))
        for att, carries in zip(stack, known, strict=True)
    ]
    return AttentionStack(layers, stack.names)
