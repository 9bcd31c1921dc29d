"""Tokens are found by what they say, without regard to case and marks, round from any place."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnwidget._tokens import search
from attnwidget._tokens.search import TokenSearch, bare

TOKENS = ["The", "Ġriver", "Ġbank", "##bank", "▁the", "bankers</w>", "then", "日本", "", "STRASSE", "straße"]


@pytest.mark.parametrize(
    ("text", "start", "positions", "total"),
    [
        ("the", 0, [0, 4, 6], 3),
        ("the", 1, [4, 0, 6], 3),
        ("the", 5, [0, 4, 6], 3),
        ("BANK", 0, [2, 3, 5], 3),
        ("Ġbank", 0, [2], 1),
        ("##", 0, [3], 1),
        ("bankers", 0, [5], 1),
        ("</w>", 0, [5], 1),
        ("本", 0, [7], 1),
        ("strasse", 0, [9, 10], 2),
        ("nowhere", 0, [], 0),
    ],
)
def test_what_is_found(text: str, start: int, positions: list[int], total: int) -> None:
    assert TokenSearch(TOKENS).find(text, start=start, count=20) == (positions, total)


def test_no_more_than_asked_for_and_all_are_counted() -> None:
    vocabulary = TokenSearch(["a", "b"] * 100_000)
    assert vocabulary.find("a", start=199_997, count=3) == ([199_998, 0, 2], 100_000)


@given(st.lists(st.sampled_from(["a", "A", "Ġa", "ab", "b", "Ġb"]), min_size=1, max_size=20), st.data())
def test_those_that_are_it_come_before_those_that_contain_it(tokens: list[str], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(tokens) - 1))
    turned = [*range(start, len(tokens)), *range(start)]
    same = [at for at in turned if tokens[at].lower() in ("a", "ġa")]
    others = [at for at in turned if tokens[at] == "ab"]
    assert TokenSearch(tokens).find("a", start=start, count=20) == (same + others, len(same) + len(others))


PIECES = st.text(st.sampled_from("aAbß▁Ġġ#</w>\x00\x01 日\ud800\U0010ffff"), max_size=6)


@given(st.lists(PIECES, min_size=1, max_size=30), PIECES.filter(bool), st.integers(1, 7), st.data())
def test_as_every_token_alone_would_be_found(tokens: list[str], text: str, many: int, data: st.DataObject) -> None:
    start, wanted = data.draw(st.integers(0, len(tokens) - 1)), text.casefold()
    turned = [*range(start, len(tokens)), *range(start)]
    containing = [at for at in turned if wanted in tokens[at].casefold()]
    same = [at for at in containing if wanted in (tokens[at].casefold(), bare(tokens[at]).casefold())]
    expected = same + [at for at in containing if at not in same]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "PIECE", many)  # as many pieces of a text as that makes
        assert TokenSearch(tokens).find(text, start=start, count=40) == (expected, len(expected))


def test_a_token_of_a_long_text_takes_few_bytes() -> None:
    tokens = [f"Ġtoken{n}" for n in range(200_000)]
    tracemalloc.start()
    try:
        assert TokenSearch(tokens).find("t", start=0, count=20)[1] == len(tokens)
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 8 * len(tokens)  # once nobody searches any more
    assert most < 64 * len(tokens)  # while they are searched: of a million 64 MB
