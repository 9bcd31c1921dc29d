"""Tokens as labels: a tokenizer's own marks are removed, and invisible characters are made visible.

The same rules as `js/src/text/tokens.ts`; `tests/contract/labels.json` holds both together.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from .byte_level import ALPHABET, ASCII_BYTES, NAMED_BYTE, divided, has_strange_bytes, text_of
from .characters import FLAG_TAGS, JOINERS, WHITE, clusters, is_invisible, is_mark, takes_joiners
from .tokenizers import Spelling, is_special

Style = Literal["text", "bytes", "spaced", "words"]
"""How tokens are written: as text with custom marks, each byte as a character (GPT-2 and its descendants), or with
real spaces before words. In "words" Ġ is an ordinary letter."""

NOTHING = "∅"  # stands for a token without any text
END = "</w>"  # ends a word in the vocabularies of CLIP and of the first GPT
PLAIN = re.compile(r"(?!##)[\x21-\x3b\x3d-\x5a\x5c-\x7e]+")  # tokens shown as they are, as most are
MARKED = re.compile(r"[ĠĊĉ]+[!-~¡-¬®-ÿ]")  # a word after a space, as a byte-level vocabulary writes it
MARKED_RUN = re.compile(r"[ĠĊĉ]{2}")  # a run of white space there
INSIDE = re.compile(rf"##[^#{WHITE}]")  # a subword that continues a word
LONGEST = 1 << 13  # characters of a token in its label; of a longer one, both ends


class Label(NamedTuple):
    """A token as shown; `subscript` is its position if other tokens look the same."""

    text: str
    subscript: str
    special: bool


def labels_of(tokens: Sequence[str] | None, length: int, spelling: Spelling | None = None) -> list[Label]:
    """Return a label for each position.

    Args:
        tokens: of one sample, as the tokenizer writes them; None: positions are their own labels.
        length: the number of positions.
        spelling: how the vocabulary is written, if the tokenizer reports it (`tokenizers.spelling_of`); None: judged by
            the tokens.

    >>> labels_of(["[CLS]", "a", "##b", "a"], 4)[1:3]
    [Label(text='a', subscript='1', special=False), Label(text='‐b', subscript='', special=False)]
    >>> [label.text for label in labels_of(["ĠcafÃ©", "ĠæĹ¥æľ¬"], 2)]
    ['café', '日本']
    """
    if tokens is None:
        return [Label(f"{position:,}", "", False) for position in range(length)]
    times = Counter(tokens)
    style: Style = style_of(times) if spelling is None else "words" if spelling == "text" else spelling
    shown = {token: (display(token, style), is_special(token)) for token in times}
    uses: Counter[str] = Counter()
    for token, count in times.items():
        uses[shown[token][0]] += count
    labels = []
    for position, token in enumerate(tokens):
        text, special = shown[token]
        subscript = f"{position:,}" if uses[text] > 1 and not special else ""
        labels.append(Label(in_parts(tokens, position, text, style), subscript, special))
    return labels


def place_text(labels: Sequence[Label], position: int, side: str) -> str:
    """Return a token of a sentence with its position, since a text can have a word twice.

    >>> [place_text(labels_of(words, 2), 1, "key") for words in (["a", "##b"], None)]
    ['‐b 1', 'key 1']
    """
    text = labels[position].text
    return f"{side} {position:,}" if text == f"{position:,}" else f"{text} {position:,}"


def patch_labels(labels: Sequence[Label], names: Sequence[str], start: int | None) -> list[Label]:
    """Return labels with names for image patches.

    Args:
        labels: of all positions.
        names: of the patches.
        start: the position of the first patch; None: there is none.
    """
    first = len(labels) if start is None else start
    own = [Label(name, "", False) for name in names[: max(0, len(labels) - first)]]
    return [*labels[:first], *own, *labels[first + len(own) :]]


def display(token: str, style: Style = "text") -> str:
    r"""Return the label of a token.

    >>> [display(token) for token in ("bank</w>", "▁bank", "##ing", "ĠĠ", "a\u200b", "")]
    ['bank', 'bank', '‐ing', '··', 'aU+200B', '∅']
    """
    if token == "":
        return NOTHING
    if PLAIN.fullmatch(token):
        return token
    text = token if is_special(token) else plain_text(token, style)
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]}…{text[-LONGEST // 2 :]}"
    return _visible(text)


def style_of(tokens: Iterable[str]) -> Style:
    """Return how a vocabulary is written, judged by some of its tokens.

    It is byte-level if words or runs begin with such a space or line break, and no token is impossible in a byte-level
    vocabulary or in any text. Ġ and Ċ alone, or among letters, are ordinary letters.
    """
    marked = strange = False
    for token in tokens:
        if PLAIN.fullmatch(token) or is_special(token):
            continue
        marked = marked or is_marked(token)
        if ALPHABET.fullmatch(token) is None:
            strange = True
        elif has_strange_bytes(token):
            return "words"
    return "words" if not marked else "text" if strange else "bytes"


def in_parts(tokens: Sequence[str], position: int, text: str, style: Style) -> str:
    """Return `é 1/2` for a token that holds the first of two parts of a character; `text` for any other token."""
    if "<0x" not in text:
        return text
    found = divided(tokens, position, style == "bytes")
    return text if found is None else _visible(found)


def is_marked(token: str) -> bool:
    """Return whether a token begins with a space or line break as a byte-level vocabulary writes it."""
    return MARKED.match(token) is not None or MARKED_RUN.search(token) is not None


def plain_text(token: str, style: Style) -> str:
    """Return a token without the tokenizer's marks; a space that remains was not written by the mark."""
    byte = NAMED_BYTE.fullmatch(token)
    if byte:
        code = int(byte[1], 16)
        return chr(code) if code < 0x80 else token
    if INSIDE.match(token):
        return f"\u2010{token[2:]}"
    spaced = spaced_text(token, style)
    is_mark_gone = style == "spaced" or not token.startswith(" ")
    return spaced[1:] if is_mark_gone and spaced.startswith(" ") and spaced.strip(WHITE) else spaced


def spaced_text(token: str, style: Style) -> str:
    """Return the text of a token, with the space before it."""
    bare = token[: -len(END)] if len(token) > len(END) and token.endswith(END) else token
    if style == "spaced":
        return bare
    if style == "words":
        return bare.replace("▁", " ")
    if style == "bytes" and not ASCII_BYTES.fullmatch(bare):
        return text_of(bare) if ALPHABET.fullmatch(bare) else bare
    return re.sub("[Ġ▁]", " ", bare.replace("Ċ", "\n").replace("ĉ", "\t"))


def _visible(text: str) -> str:
    """Make spaces at the ends and in runs, line breaks, tabs and all invisible characters visible."""
    text = re.sub(r"\A +| +\Z| {2,}", lambda spaces: "·" * len(spaces[0]), text)
    text = text.replace("\r\n", "↵").replace("\n", "↵").replace("\t", "⇥")
    if text.isascii() and text.isprintable():
        return text
    found = clusters(text)
    after = [True, *(is_invisible(cluster[0]) for cluster in found)]
    parts = (_visible_cluster(one, after[at], at == len(found) - 1) for at, one in enumerate(found))
    return "".join(parts)


def _visible_cluster(cluster: str, is_bare: bool, is_last: bool) -> str:
    """Make one cluster visible; `is_bare`: a mark at its beginning has no base character."""
    first = cluster[0]
    if is_invisible(first):
        return "".join(_code_point(one) if is_invisible(one) else one for one in cluster)
    if is_mark(first):
        return f"◌{cluster}" if is_bare else cluster
    if not takes_joiners(first):
        return "".join(_code_point(one) if one in JOINERS or FLAG_TAGS.match(one) else one for one in cluster)
    return cluster[:-1] + _code_point(cluster[-1]) if is_last and cluster[-1] in JOINERS else cluster


def _code_point(character: str) -> str:
    return f"U+{ord(character):04X}"
