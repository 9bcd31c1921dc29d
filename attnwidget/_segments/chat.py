"""The turns of a chat, found by the template that the tokenizer writes it with."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .named import PADDING, RESERVED, TEMPLATE, Labels, Named
from .token_text import Cores, TokenText, encoded, read_encoding

ANSWER = "answer"
MARK = re.compile("\ue0f0([0-9]+)\ue0f1")  # stands for a text while the template is written without any


class Turn(NamedTuple):
    """One text of a message: the name of the message, the name of the text if there are several, and the text."""

    name: str
    part: str | None
    text: str


class Chat(NamedTuple):
    """A chat as the template writes it: the whole text, and the characters of each turn's text."""

    text: str
    spans: list[tuple[int, int]]


def is_chat(source: Any) -> bool:
    """Return whether a value is the messages of a chat."""
    if not isinstance(source, list | tuple) or not source:
        return False
    return all(isinstance(one, Mapping) and "role" in one for one in source)


def turns_of(
    messages: Sequence[Mapping[str, Any]], tokenizer: Any, text: TokenText | None
) -> tuple[TokenText, list[Named], Labels]:
    """Return the turns of a chat in tokens.

    Args:
        messages: with their "role" and "content": a text, or parts; parts of "type" "text" have a "text" and may have a
            "name".
        tokenizer: with a chat template.
        text: the tokens that the model read, which may have an answer after the chat; None: the chat's tokens.

    Returns:
        The tokens; the turns, and the "answer" if tokens follow the chat; and the tokens that are separate segments, as
        in `TokenText.own`: all other tokens of the chat belong to the template.

    Raises:
        TypeError, ValueError: the template changes or leaves out a text; or the tokens belong to another text.
    """
    turns, marked = _marked(messages)
    if text is None:
        chat = _written(turns, messages, marked, tokenizer, prompts=messages[-1]["role"] != "assistant")
        found = _tokens_of(chat, tokenizer)
        return _placed(turns, chat, found, found.cores, found.length)
    for prompts in (True, False):
        chat = _written(turns, messages, marked, tokenizer, prompts=prompts)
        for find in (_by_ids, _by_characters):
            where = find(chat, tokenizer, text)
            if where is not None:
                return _placed(turns, chat, text, *where)
    raise ValueError(
        f"the tokens are not those of the messages: the template writes {chat.text[:60]!r}…, the tokens "
        f"{text.text[:60]!r}…: give the messages as they were when the text was tokenized, or spans"
    )


# The template.


def _marked(messages: Sequence[Mapping[str, Any]]) -> tuple[list[Turn], list[dict[str, Any]]]:
    """Return all texts of messages, and the messages with a mark for each text."""
    counts, seen = Counter(one["role"] for one in messages), Counter[str]()
    turns: list[Turn] = []
    marked = []
    for message in messages:
        role, content = str(message["role"]), message.get("content")
        seen[role] += 1
        name = f"{role} {seen[role]}" if counts[role] > 1 else role
        if isinstance(content, str) and content.strip():
            turns.append(Turn(name, None, content))
            content = _mark(len(turns) - 1)
        elif isinstance(content, list | tuple):
            content = [_marked_part(part, name, turns) for part in content]
        marked.append({**message, "content": content})
    if not turns:
        raise ValueError("the messages have no text: give at least one with a content that is not empty")
    return turns, marked


def _marked_part(part: Any, name: str, turns: list[Turn]) -> Any:
    if not isinstance(part, Mapping) or not isinstance(part.get("text"), str) or not part["text"].strip():
        return part
    number = 1 + sum(one.name == name for one in turns)
    turns.append(Turn(name, str(part.get("name", f"part {number}")), part["text"]))
    return {**part, "text": _mark(len(turns) - 1)}


def _mark(number: int) -> str:
    return f"\ue0f0{number}\ue0f1"


def _written(turns: Sequence[Turn], messages: Any, marked: Any, tokenizer: Any, *, prompts: bool) -> Chat:
    """Return the chat as the template writes it, and the exact place of each text in it.

    The template is written once with marks for the texts. The parts around a mark must be around its text too.
    """
    whole, pattern = (_render(tokenizer, one, prompts=prompts) for one in (messages, marked))
    pieces = MARK.split(pattern)  # template, number, template, number, …
    numbers = [int(one) for one in pieces[1::2]]
    for number, turn in enumerate(turns):
        if numbers.count(number) != 1:
            how = f"writes the text of {turn.name!r} {numbers.count(number)} times"
            how = how if number in numbers else f"leaves out the text of {turn.name!r}"
            raise ValueError(f"the chat template {how}: give spans instead of messages")
    spans = [(0, 0)] * len(turns)
    at = len(pieces[0]) if whole.startswith(pieces[0]) else -1
    for number, after in zip(numbers, pieces[2::2], strict=True):
        said = turns[number].text
        is_last = number == numbers[-1]
        fits = (
            one
            for one in dict.fromkeys((said, said.strip(), said.rstrip(), said.lstrip()))
            if at >= 0 and (whole[at:] == one + after if is_last else whole.startswith(one + after, at))
        )
        kept = next(fits, None)
        if kept is None:
            raise ValueError(
                f"the chat template changes the text of {turns[number].name!r}, {said[:40]!r}, or the words around it, "
                "so the text cannot be found: give spans instead of messages"
            )
        spans[number] = (at, at + len(kept))
        at += len(kept) + len(after)
    return Chat(whole, spans)


def _render(tokenizer: Any, messages: Any, *, prompts: bool) -> str:
    if not callable(getattr(tokenizer, "apply_chat_template", None)) or not getattr(tokenizer, "chat_template", None):
        given = "no tokenizer" if tokenizer is None else f"{type(tokenizer).__name__} without a chat template"
        raise ValueError(
            f"segments are given as messages, with {given}: give tokenizer= with a chat_template, or spans"
        )
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompts))
    except Exception as error:  # of the template, in its own words
        raise ValueError(f"the chat template refuses these messages: {error}") from error


# The tokens.


def _tokens_of(chat: Chat, tokenizer: Any) -> TokenText:
    return read_encoding(encoded(chat.text, tokenizer, with_special=False), tokenizer, chat.text)


def _by_ids(chat: Chat, tokenizer: Any, text: TokenText) -> tuple[Cores, int] | None:
    """Return the tokens' places in a chat, and the number of its tokens; None unless the ids are the chat's ids."""
    if text.ids is None or not getattr(tokenizer, "is_fast", False):
        return None
    found = _tokens_of(chat, tokenizer)
    for before in range(_leading(text) + 1):
        own = text.ids[before : before + found.length]
        if own and found.ids is not None and own == found.ids[: len(own)]:
            places = np.full((text.length, 2), -1)
            blank = np.ones(text.length, bool)
            places[before : before + len(own)] = found.cores.places[: len(own)]
            blank[before : before + len(own)] = found.cores.is_blank[: len(own)]
            return Cores(places, blank), before + len(own)
    return None


def _leading(text: TokenText) -> int:
    """Return the number of special or padding tokens before the text."""
    plain = np.flatnonzero(~text.is_special & (text.own != RESERVED.index(PADDING)))
    return int(plain[0]) if len(plain) else text.length


def _by_characters(chat: Chat, tokenizer: Any, text: TokenText) -> tuple[Cores, int] | None:
    """Return the same if the tokens spell the chat, except for white space; None if they do not.

    This happens if a model has generated an answer in other tokens than the tokenizer would use.
    """
    if text.tokens is None:
        return None
    written, said = (np.array([i for i, one in enumerate(x) if not one.isspace()]) for x in (chat.text, text.text))
    bare = "".join(chat.text.split())
    spoken = "".join(text.text.split())
    for before in range(_leading(text) + 1):
        at = int((said < text.offsets[before, 0]).sum()) if before < text.length else len(said)
        count = min(len(bare), len(spoken) - at)
        if count > 0 and spoken[at : at + count] == bare[:count]:
            break
    else:
        return None
    there = np.full(len(text.text) + 1, -1)
    there[said[at : at + count]] = written[:count]
    places, blank = text.cores.places, text.cores.is_blank.copy()
    first = there[np.minimum(places[:, 0], len(there) - 1)]
    last = there[np.maximum(places[:, 1] - 1, 0)]
    blank |= (first < 0) | (last < 0)
    found = np.where(blank[:, None], -1, np.stack([first, last + 1], 1))
    used = np.flatnonzero(~blank)
    return Cores(found, blank), int(used[-1]) + 1


def _placed(
    turns: Sequence[Turn], chat: Chat, text: TokenText, cores: Cores, end: int
) -> tuple[TokenText, list[Named], Labels]:
    """Return turns in tokens.

    Args:
        turns: of the chat.
        chat: their characters.
        text: the tokens.
        cores: the place of each token in the chat; blank if it is not in the chat.
        end: of the chat's tokens; the answer follows.
    """
    found: dict[str, Named] = {}
    for turn, (start, stop) in zip(turns, chat.spans, strict=True):
        held = (cores.places[:, 0] >= start) & (cores.places[:, 1] <= stop) & ~cores.is_blank
        tokens = np.flatnonzero(held)
        if not len(tokens):
            raise ValueError(f"the tokens end before the text of {turn.name!r}, or it has no token: give all tokens")
        piece = range(int(tokens[0]), int(tokens[-1]) + 1)
        own = found.setdefault(turn.name, Named(turn.name, []))
        if turn.part is not None:
            own.inside.append(Named(turn.part, [piece]))
        own.pieces = [range(min(own.pieces[0].start, piece.start), piece.stop)] if own.pieces else [piece]
    for one in found.values():
        one.inside = one.inside if len(one.inside) > 1 else []
    reserved = text.own.copy()
    rest = np.ones(text.length, bool)
    rest[end:] = False
    for one in found.values():
        rest[one.pieces[0].start : one.pieces[0].stop] = False
    reserved[rest & (reserved < 0)] = RESERVED.index(TEMPLATE)
    answer = [Named(ANSWER, [range(end, text.length)])] if (reserved[end:] < 0).any() else []
    return text, [*found.values(), *answer], reserved
