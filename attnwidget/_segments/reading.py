"""`segments`: read a user's description of segments into `Segments`."""

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
        source: one of these:
            - `{"doc 1": (start, stop)}`, or a list of such tuples if a segment has several pieces;
            - `{"picked": [3, 5]}`, a list of numbers, for single tokens;
            - the text of a segment, `{"doc 1": "The key hangs …"}`, which must occur once;
            - nested names, `{"documents": {"doc 1": …}}`, or with their own span, `{"turn": [(3, 90), {"doc 1": …}]}`;
            - "sentences", "paragraphs" or "lines";
            - a regular expression; its named groups are the segments, or else its matches;
            - a list of such words, outermost first;
            - the messages of a chat, `[{"role": …, "content": …}]`; the tokenizer's template gives the turns;
            - a capture: its prompt and answer;
            - `Segments`, as they are.
        tokenizer: of transformers or tokenizers, for ids, texts and messages.
        ids: of the text, as the model read them: (n,) or (1, n).
        tokens: a string for each token; the output of a tokenizer; or the text itself, which is tokenized.
        unit: of spans: "tokens", or "characters" of the text in tokens=.
        length: the number of tokens, if no other argument gives it.

    Returns:
        `Segments`; each token is in one entry of level 0. The first token ("first token"), padding and the special
        tokens of a template ("template") are separate segments, taken out of any other: their weight would hide the
        rest. "other" holds all tokens in no segment.

    Raises:
        TypeError, ValueError: segments overlap, lie outside the text, are empty or not found; a token crosses a border
            of characters; ids are not those of the messages. The error says where, and what to give.

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
    """Raise ValueError if a user's segment has the name of the rest, and there is a rest."""
    held = [piece for one in named if one.name == OTHER for piece in one.pieces]
    more = [one for one in entries if one.level == 0 and one.name == OTHER]
    rest = [one for one in more if not any(piece.start <= one.start < piece.stop for piece in held)]
    if held and rest:
        raise ValueError(
            f"a segment is called {OTHER!r}, the name of tokens in no segment, and tokens {rest[0].start:,} to "
            f"{rest[0].stop - 1:,} are in no segment: rename it, or put these tokens into a segment"
        )


def _checked(found: Segments, text: TokenText | None) -> Segments:
    if text is not None and text.length != found.length:
        raise ValueError(
            f"the segments have {found.length:,} tokens, but there are {text.length:,}: make them from these"
        )
    return found


def _as_long_as(source: Any, unit: str) -> TokenText:
    """Return a text that is as long as its last segment, if no other argument gives the length."""
    found = named_in(source, TokenText(0), unit) if isinstance(source, Mapping) else named_in(source, TokenText(0))
    last = max(found, key=_last)
    if _last(last) < 1:
        raise ValueError(f"{last.name!r} ends at {_last(last)}, and the length of the text is unknown: {LENGTH}")
    return TokenText(_last(last))


def _last(one: Named) -> int:
    return max([piece.stop for piece in one.pieces] + [_last(part) for part in one.inside])
