"""Tokens written byte by byte: the alphabet of GPT-2 and its descendants, and `<0xE2>` of SentencePiece."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from .characters import WHITE
from .tokenizers import ALWAYS_SPECIAL

ALPHABET = re.compile(r"[!-~¡-¬®-ÿĀ-Ń]+")
"""Printable bytes stand for themselves; the others are the characters from U+0100 on, in order."""
ASCII_BYTES = re.compile(r"[!-~ĠĊĉ]*")
"""Byte-level text with only white space written differently."""
NAMED_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
NAMED_BYTES = re.compile(r"(?:<0x[0-9A-F]{2}>)+")
AROUND = 3  # tokens to either side that may hold the rest of a character, which has at most four bytes


def byte_of(character: str) -> int:
    """Return the byte that a character of the alphabet stands for."""
    code = ord(character)
    if code < 0x100:
        return code
    place = code - 0x100
    return place if place <= 0x20 else place - 0x21 + 0x7F if place <= 0x42 else 0xAD


def name_of(byte: int) -> str:
    """Return a byte as SentencePiece writes it: `<0xE2>`."""
    return f"<0x{byte:02X}>"


def has_strange_bytes(token: str) -> bool:
    """Return whether a byte-level token would hold control characters or invalid UTF-8, which no text does."""
    return any(
        byte in (0x7F, 0xC0, 0xC1) or byte > 0xF4 or (byte < 0x20 and byte not in (9, 10, 13))
        for byte in map(byte_of, token)
    )


def text_of(token: str) -> str:
    """Return the text of a byte-level token; bytes that do not form a whole character keep their names.

    >>> text_of("cafÃ©"), text_of("âĤ")
    ('café', '<0xE2><0x82>')
    """
    raw = bytes(map(byte_of, token))
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "".join(chr(byte) if byte < 0x80 else name_of(byte) for byte in raw)


def raw_bytes(token: str | None, is_byte_level: bool) -> bytes | None:
    """Return the bytes that a token stands for; None if it is not written in bytes."""
    if token is None:
        return None
    if NAMED_BYTES.fullmatch(token):
        return bytes(int(digits, 16) for digits in re.findall("[0-9A-F]{2}", token))
    if is_byte_level and ALPHABET.fullmatch(token) and not ALWAYS_SPECIAL.fullmatch(token):
        return bytes(map(byte_of, token))
    return None


def divided(tokens: Sequence[str], position: int, is_byte_level: bool) -> str | None:
    """Return the text of a token that holds part of a character: the character, and the number of the part.

    Args:
        tokens: all tokens of the sample, as the tokenizer writes them.
        position: of the token.
        is_byte_level: whether the vocabulary is GPT-2's.

    Returns:
        `€ 1/2` for the first of two parts; None if the token is not written in bytes.

    >>> divided(["âĤ", "¬"], 0, True)
    '€ 1/2'
    """

    def bytes_at(at: int) -> bytes | None:
        return raw_bytes(tokens[at], is_byte_level) if 0 <= at < len(tokens) else None

    if bytes_at(position) is None:
        return None
    first, last = _run(bytes_at, position)
    raw, owners = bytearray(), []
    for at in range(first, last + 1):
        part = bytes_at(at) or b""
        raw += part
        owners += [at] * len(part)
    found, at = "", 0
    while at < len(raw):
        length = _character_at(raw, at)
        sharing = list(dict.fromkeys(owners[at : at + max(1, length)]))
        if position in sharing:
            if length == 0:
                found += name_of(raw[at])
            else:
                character = raw[at : at + length].decode()
                which = f" {sharing.index(position) + 1}/{len(sharing)}"
                found += character + (which if len(sharing) > 1 else "")
        at += max(1, length)
    return found[1:] if found.startswith(" ") and found.strip(WHITE) else found


def _run(bytes_at: Callable[[int], bytes | None], position: int) -> tuple[int, int]:
    """The first and last neighbor of a token that are written in bytes too."""
    first = last = position
    while position - first < AROUND and bytes_at(first - 1) is not None:
        first -= 1
    while last - position < AROUND and bytes_at(last + 1) is not None:
        last += 1
    return first, last


def _character_at(raw: bytearray, at: int) -> int:
    """The number of bytes of the character that begins here; 0 if none does."""
    first = raw[at]
    length = 1 if first < 0x80 else 4 if first >= 0xF0 else 3 if first >= 0xE0 else 2 if first >= 0xC2 else 0
    try:
        raw[at : at + length].decode()
    except UnicodeDecodeError:
        return 0
    return length if at + length <= len(raw) else 0
