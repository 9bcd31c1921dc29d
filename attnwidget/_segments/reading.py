"""`segments`: what a user gives, read into `Segments`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .chat import is_chat, turns_of
from .named import OTHER, Named, Segment, entries_of
from .segments import Segments, answer_among
from .sources import LENGTH, named_in
from .token_text import TokenText, read_text


def segments(
    source: Any,
    *,
    tokenizer: Any = None,
    ids: Any = None,
    tokens: Any = None,
    unit: str = "tokens",
    length: int | None = None,
) -> Segments:
    r"""Find the named parts of a text, such as its turns, documents, sentences and the answer, in tokens.

    Args:
        source: `{"doc 1": (start, stop)}`, with several pairs in a list where a segment has several pieces; the text
            of a segment, `{"doc 1": "The key hangs …"}`, which must be there once; names inside a name,
            `{"documents": {"doc 1": …, "doc 2": …}}`, beside a span of its own, `{"turn": [(3, 90), {"doc 1": …}]}`;
            "sentences", "paragraphs" or "lines"; a regular expression, whose named groups are the segments, or whose
            matches are; a list of such words, outermost first; the messages of a chat, `[{"role": …, "content": …}]`,
            whose turns are found by the tokenizer's template; a capture, whose prompt and answer are told apart; or
            `Segments`, as they are.
        tokenizer: of transformers or tokenizers, for ids, texts and messages.
        ids: of the text, as the model read them: (n,) or (1, n).
        tokens: a string for each token; what a tokenizer returned; or the text itself, which is tokenized.
        unit: of spans: "tokens", or "characters" of the text, as tokens= gives it.
        length: how many tokens there are, where nothing else tells.

    Returns:
        `Segments`, in which each token is in one entry of level 0. The first token ("first token"), padding and the
        special tokens of a template ("template") are segments of their own, taken out of whatever they are in: what
        attends to them would else swamp all others. "other" is what is in none.

    Raises:
        TypeError, ValueError: segments that overlap, lie outside, are empty or not found; a token across a border of
            characters; ids that are not those of the messages. Each tells where, and what to give.

    A sentence, paragraph, line or match of a regular expression has the tokens whose own characters begin in it.

    >>> words = ["<s>", "The", "key", "hangs", "there", ".", "Where", "is", "it", "?", "There", ".", "</s>"]
    >>> found = segments({"document": (1, 6), "question": "Where is it?", "answer": (10, 12)}, tokens=words)
    >>> print(found)
    Segments of 13 tokens: first token 1, document 5, question 4, answer 2, template 1
    >>> segments("sentences", tokens=words).spans[1:4]
    ((1, 6), (6, 10), (10, 12))
    """
    if isinstance(source, Segments):
        return _checked(source, read_text(tokenizer, ids, tokens, length))
    if callable(getattr(source, "segments", None)):  # a capture
        return _checked(source.segments(), read_text(tokenizer, ids, tokens, length))
    text = read_text(tokenizer, ids, tokens, length)
    if is_chat(source):
        text, named, own = turns_of(source, tokenizer, text)
    else:
        text = text or _as_long_as(source, unit)
        named, own = named_in(source, text, unit), text.own
    entries = entries_of(named, own)
    _check_other(named, entries)
    return Segments(tuple(entries), text.length, answer_among(named, entries), text)


def _check_other(named: list[Named], entries: list[Segment]) -> None:
    """Raise ValueError where a segment of the user's has the name of what is in none, and something is."""
    held = [piece for one in named if one.name == OTHER for piece in one.pieces]
    more = [one for one in entries if one.level == 0 and one.name == OTHER]
    rest = [one for one in more if not any(piece.start <= one.start < piece.stop for piece in held)]
    if held and rest:
        raise ValueError(
            f"a segment is called {OTHER!r}, as what is in none is, and tokens {rest[0].start:,} to "
            f"{rest[0].stop - 1:,} are in none: give it another name, or these tokens one"
        )


def _checked(found: Segments, text: TokenText | None) -> Segments:
    if text is not None and text.length != found.length:
        raise ValueError(
            f"the segments are of {found.length:,} tokens, but there are {text.length:,}: make them of these"
        )
    return found


def _as_long_as(source: Any, unit: str) -> TokenText:
    """Return a text that is as long as its last segment, where nothing else tells."""
    found = named_in(source, TokenText(0), unit) if isinstance(source, Mapping) else named_in(source, TokenText(0))
    last = max(found, key=_last)
    if _last(last) < 1:
        raise ValueError(f"{last.name!r} ends at {_last(last)}, and the length of the text is not known: {LENGTH}")
    return TokenText(_last(last))


def _last(one: Named) -> int:
    return max([piece.stop for piece in one.pieces] + [_last(part) for part in one.inside])
