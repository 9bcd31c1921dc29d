"""Ids as a tokenizer's own words, special tokens, and the subwords of a word.

Tokens are kept as the tokenizer writes them; `display` returns their labels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any, Literal

from .unread import Unread

PADDING_FROM = 3  # tokens in a run
Spelling = Literal["bytes", "spaced", "text"]
"""How a vocabulary is written: each byte a character and Ġ for a space (GPT-2), with real spaces before words (as
`decode` returns them), or as text with custom marks, ▁, ## or none."""

ALWAYS_SPECIAL = re.compile(r"\[/?[A-Z][A-Z0-9_]*\]|\[unused\d+\]|<\|.+\|>|<｜.+｜>", re.DOTALL | re.ASCII)
SPECIAL_NAME = re.compile(
    r"</?(?:s|pad|unk|mask|bos|eos|bot|eot|eod|eop|cls|sep|think|tool_call|tool_response|mask_\d+|extra_id_\d+"
    r"|unused_?\d*|reserved\w*|special\w*|(?:start|end|begin)_(?:of|header)\w*|\w+_start|\w+_end|fim_\w+"
    r"|(?:image|audio|video)(?:_\w+)?|s_\w+)>",
    re.IGNORECASE | re.ASCII,
)


def is_special(token: str) -> bool:
    """Return whether the tokenizer added a token, rather than the author of the text.

    The same rule as `js/src/text/tokens.ts`: names in angle brackets are listed, because a text may contain `<b>`.

    >>> [is_special(token) for token in ("[CLS]", "<|endoftext|>", "<table>")]
    [True, True, False]
    """
    return bool(ALWAYS_SPECIAL.fullmatch(token) or SPECIAL_NAME.fullmatch(token))


def spell(ids: Sequence[int], tokenizer: Any, name: str) -> list[str]:
    """Return the tokenizer's own words for some ids.

    Args:
        ids: of one sample, in order.
        tokenizer: of transformers, of tokenizers, of sentencepiece, of tiktoken, or anything else with
            `convert_ids_to_tokens`, `id_to_token`, `id_to_piece`, `decode_single_token_bytes` or `decode`.
        name: of the ids, for errors.

    Raises:
        TypeError: the tokenizer has none of these methods.
        ValueError: the tokenizer cannot spell an id.

    >>> class Words:
    ...     def id_to_token(self, id):
    ...         return ["the", "bank"][id] if id < 2 else None
    >>> spell([1, 0, 1], Words(), "tokens")
    ['bank', 'the', 'bank']
    """
    of = _reader(tokenizer)
    known: dict[int, str] = {}
    for at, one in enumerate(ids):
        if one in known:
            continue
        try:
            word = of(one)
        except Exception as error:  # a custom tokenizer may raise anything
            raise ValueError(f"{name}[{at}] is {one}, which tokenizer does not take: {error or type(error)}") from error
        if not isinstance(word, str):
            raise ValueError(f"{name}[{at}] is {one}, for which tokenizer has no word: give the ids that went in")
        known[one] = word
    return [known[one] for one in ids]


def _reader(tokenizer: Any) -> Callable[[int], Any]:
    """Return the function that gives the word for one id."""
    for method in ("convert_ids_to_tokens", "id_to_token", "id_to_piece"):
        if callable(getattr(tokenizer, method, None)):
            return getattr(tokenizer, method)
    if callable(getattr(tokenizer, "decode_single_token_bytes", None)):
        return lambda one: _text_of(tokenizer.decode_single_token_bytes(one))
    if callable(getattr(tokenizer, "decode", None)):
        return lambda one: tokenizer.decode([one])
    raise TypeError(
        f"tokenizer is {type(tokenizer).__name__}: give one with convert_ids_to_tokens or decode, such as "
        "transformers.AutoTokenizer.from_pretrained(…), or tokens= as strings"
    )


def _text_of(raw: bytes) -> str:
    """Return bytes as text; bytes that do not form a whole character by name, as SentencePiece writes them."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "".join(f"<0x{byte:02X}>" for byte in raw)


def spelling_of(tokenizer: Any) -> Spelling | None:
    """Return how a tokenizer's vocabulary is written, if it reports it; None: judged by the tokens.

    >>> from tokenizers import Tokenizer, decoders, models
    >>> one = Tokenizer(models.BPE())
    >>> one.decoder = decoders.ByteLevel()
    >>> spelling_of(one)
    'bytes'
    """
    if tokenizer is None:
        return None
    if hasattr(tokenizer, "spelling"):  # given or saved words: None if it is unknown
        found: Spelling | None = tokenizer.spelling
        return found
    inner = getattr(tokenizer, "backend_tokenizer", tokenizer)  # of transformers' fast tokenizers
    if callable(getattr(inner, "to_str", None)):
        try:
            parts = json.loads(inner.to_str())
        except Exception:
            return None
        kinds = set(_types(parts.get("decoder"))) | set(_types(parts.get("pre_tokenizer")))
        return "bytes" if "ByteLevel" in kinds else "text"
    if isinstance(getattr(tokenizer, "byte_decoder", None), dict):
        return "bytes"
    written = ("convert_ids_to_tokens", "id_to_token", "id_to_piece")
    return "text" if any(callable(getattr(tokenizer, method, None)) for method in written) else "spaced"


def _types(part: Any) -> Iterator[str]:
    """Yield the types of a tokenizer's part and of its own parts."""
    if isinstance(part, dict):
        if isinstance(part.get("type"), str):
            yield part["type"]
        for inner in part.values():
            yield from _types(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from _types(inner)


# Words.

BYTE_SPACE = ("Ġ", "Ċ", "ĉ")
STARTS_IDEOGRAPH = "ãäåæçèé"  # the first byte of kana and ideographs in UTF-8, as a byte-level vocabulary writes it
IDEOGRAPH = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
PUNCTUATION = re.compile(r"[!-/:-@\[-`{-~“”‘’«»„…–—。、，！？：；（）「」]+")


def word_ids(tokens: Sequence[str], spelling: Spelling | None = None) -> list[int]:
    """Return the word of each subword, by a tokenizer's marks: Ġ, ▁, ##, </w>, or spaces.

    Special tokens, punctuation, ideographs (no space divides them) and unknown tokens are single words. Padding, which
    is the same special token three times or more at either end, is one word. If no token has a mark, each is a word.

    Returns:
        (n,), from 0 up, as transformers' `encoding.word_ids()`.

    >>> word_ids(["[CLS]", "em", "##bed", "##ding", "s", ".", "[SEP]"])
    [0, 1, 1, 1, 2, 3, 4]
    >>> word_ids(["The", "Ġmill", "er", "'s", "Ġloan"])
    [0, 1, 1, 1, 2]
    """
    begins = _begins(tokens, spelling)

    def marks(token: str) -> tuple[bool, bool]:
        """Whether a token begins a word, and whether the next one does, as far as the token itself tells."""
        bare = token.lstrip("Ġ▁ ")
        own = is_special(token) or isinstance(token, Unread)
        own |= PUNCTUATION.fullmatch(bare) is not None and not token.startswith("##")
        ends = token.endswith("</w>") or bare == "" or token[-1:] in "\nĊĉ\t "
        return own or begins(token), own or ends

    known: dict[tuple[str, bool], tuple[bool, bool]] = {}  # of a text there are many, of its tokens few that differ
    found, word = [], -1
    after = True  # whether what is before ends a word
    for token in tokens:
        key = token, isinstance(token, Unread)
        marked = known.get(key)
        if marked is None:
            marked = known[key] = marks(token)
        word += marked[0] or after
        found.append(word)
        after = marked[1]
    return _with_padding_folded(tokens, found)


def _with_padding_folded(tokens: Sequence[str], words: list[int]) -> list[int]:
    """Return the words with each end's run of the same special token as one."""
    many = len(tokens)
    if many < PADDING_FROM:
        return words
    before = len(list(takewhile(tokens[0].__eq__, tokens)))
    after = len(list(takewhile(tokens[-1].__eq__, reversed(tokens))))
    for low, high in ((0, before), (many - after, many)):
        if high - low >= PADDING_FROM and is_special(tokens[low]):
            folded = words[high - 1] - words[low]
            words = [*words[:low], *[words[low]] * (high - low), *(word - folded for word in words[high:])]
    return words


def _begins(tokens: Sequence[str], spelling: Spelling | None) -> Callable[[str], bool]:
    """Return the function that tells whether a piece begins a word, in this vocabulary."""
    kinds = [token for token in dict.fromkeys(tokens) if not is_special(token)]

    def any_of(starts: str | tuple[str, ...]) -> bool:
        return any(token.startswith(starts) for token in kinds)

    if spelling == "bytes" or (spelling is None and any_of(BYTE_SPACE)):
        return lambda token: token.startswith((*BYTE_SPACE, *STARTS_IDEOGRAPH))
    if any_of("▁"):
        return lambda token: token.startswith("▁") or IDEOGRAPH.match(token) is not None
    if any(token.endswith("</w>") for token in kinds):
        return lambda token: False  # the end of one is the beginning of the next
    if spelling == "spaced" or any_of((" ", "\n")):
        return lambda token: token[:1].isspace() or IDEOGRAPH.match(token) is not None
    return lambda token: not token.startswith("##")


def join_pieces(pieces: Iterable[str]) -> str:
    """Return the pieces of one word as one token, with the marks of its beginning and end.

    >>> join_pieces(["em", "##bed", "##ding"]), join_pieces(["Ġmill", "er"])
    ('embedding', 'Ġmiller')
    """
    first, *others = pieces
    if not others or (is_special(first) and others[0] == first):
        return first
    return first + "".join(piece.removeprefix("##") for piece in others)


def ids_of_text(text: str, tokenizer: Any) -> list[int]:
    """Return the ids of a text within a text: a space before it may be written by the mark of a word.

    None of them where the tokenizer writes a part of it as its unknown token.
    """
    found = _encoded(text, tokenizer)
    unknown = getattr(tokenizer, "unk_token_id", None)
    if unknown is not None and unknown in found:
        return []
    if len(found) > 1 and text[:1] == " ":
        alone = _encoded(text[1:], tokenizer)
        if len(alone) < len(found) and spell(alone[:1], tokenizer, "ids")[0].startswith("▁"):
            return alone
    return found


def _encoded(text: str, tokenizer: Any) -> list[int]:
    if callable(getattr(tokenizer, "encode", None)):
        try:
            found = tokenizer.encode(text, add_special_tokens=False)
        except TypeError:  # of tiktoken, and others that add none
            found = tokenizer.encode(text)
        return [int(one) for one in getattr(found, "ids", found)]
    if callable(tokenizer):
        return [int(one) for one in tokenizer(text, add_special_tokens=False)["input_ids"]]
    raise TypeError(f"tokenizer is {type(tokenizer).__name__}, which encodes no text: give the token's id")
