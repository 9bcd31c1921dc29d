"""`segments`: every source, what each token is in, and what is refused."""

from __future__ import annotations

import copy
import pickle
import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnwidget import segments
from attnwidget._segments.named import RESERVED, Named, entries_of
from attnwidget.results import Segment, Segments

NESTED = {"documents": {"doc 1": {"title": (2, 3), "body": (3, 6)}, "doc 2": (7, 9)}, "question": (9, 12)}
WORDS = ["<s>", "The", "key", "hangs", "there", ".", "Where", "is", "it", "?", "There", ".", "</s>"]


def texts_of(found: Segments, words: list[str]) -> dict[str, list[str]]:
    """What each entry of level 0 holds, by name."""
    held: dict[str, list[str]] = {}
    for one in found:
        if one.level == 0:
            held.setdefault(one.name, []).append(" ".join(words[one.start : one.stop]))
    return held


class TestNamesWithSpans:
    def test_each_token_is_in_one(self) -> None:
        found = segments({"document": (1, 6), "question": (6, 10), "answer": (10, 12)}, tokens=WORDS)
        assert found.names == ("first token", "document", "question", "answer", "template")
        assert found.spans == ((0, 1), (1, 6), (6, 10), (10, 12), (12, 13))
        assert found.levels == (0,) * 5
        assert found.sizes == (1, 5, 4, 2, 1)
        assert found.answer == "answer"
        assert (len(found), found[1], list(found)[1]) == (5, *[Segment("document", 1, 6)] * 2)

    def test_what_is_in_none_is_named(self) -> None:
        found = segments({"question": (6, 10)}, tokens=WORDS)
        assert found.distinct == ("first token", "other", "question", "template")
        assert found.labels().tolist() == [0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 3]
        assert found.positions("other").tolist() == [1, 2, 3, 4, 5, 10, 11]
        assert found.answer == "question"

    def test_first_token_and_special_ones_are_taken_out(self) -> None:
        found = segments({"all": (0, 6)}, tokens=["[CLS]", "a", "[SEP]", "b", "[MASK]", "[UNK]"])
        assert found.names == ("first token", "all", "template", "all")
        assert found.spans == ((0, 1), (1, 2), (2, 3), (3, 6))

    def test_a_segment_may_have_several_pieces(self) -> None:
        found = segments({"a": [(1, 2), (3, 4)], "b": range(4, 6), "c": slice(6, None)}, length=7)
        assert found.spans == ((0, 1), (1, 2), (2, 3), (3, 4), (4, 6), (6, 7))
        assert found.sizes == (1, 2, 1, 2, 1)

    def test_without_a_length_it_is_that_of_the_last(self) -> None:
        assert segments({"a": (1, 4), "b": (6, 8)}).length == 8
        assert segments({"a": slice(1, 4), "b": slice(6, 8)}).spans == ((0, 1), (1, 4), (4, 6), (6, 8))

    @pytest.mark.parametrize(
        ("source", "told"),
        [
            ({"a": (0, 4), "b": (3, 5)}, "'b' and 'a' both hold token 3"),
            ({"a": [(1, 3), (2, 4)]}, "'a' and 'a' both hold token 2"),
            ({"a": (3, 10)}, r"'a' is \(3, 10\), but there are tokens 0 to 8"),
            ({"a": (-2, 4)}, "give 0 ≤ start < stop ≤ 9"),
            ({"a": slice(2, 40)}, r"'a' is \(2, 40\), but there are tokens 0 to 8"),
            ({"a": slice(-12, 4)}, r"'a' is \(-3, 4\), but there are tokens 0 to 8"),
            (
                {"other": (2, 4)},
                "called 'other', the name of tokens in no segment, and tokens 1 to 1 are in no segment: rename it",
            ),
            ({"a": (4, 4)}, "which is empty"),
            ({"a": (5, 4)}, "which is empty"),
            ({"a": (0, 1)}, "only the first token"),
            ({"": (1, 2)}, "has no name"),
            ({"self": (1, 2)}, "means something else in by_segment"),
            ({"a": {"b": (1, 3), "c": (2, 4)}}, "'c' and 'b' both hold token 2"),
            ({"a": [(1, 4), {"b": (3, 6)}]}, r"'b' is \(3, 6\), which is not inside 'a', \(1, 4\)"),
            ({}, "give at least one"),
        ],
    )
    def test_what_cannot_be_is_told(self, source: Any, told: str) -> None:
        with pytest.raises(ValueError, match=told):
            segments(source, length=9)

    def test_a_slice_counts_from_the_end(self) -> None:
        found = segments({"a": slice(2, -5), "b": slice(-5, None), "c": slice(2)}, length=9)
        assert found.spans == ((0, 1), (1, 2), (2, 4), (4, 9))

    @pytest.mark.parametrize(
        ("source", "told"),
        [
            ({"a": (1, 4), "b": slice(4, None)}, "'b' is slice(4, None, None), which counts from the end"),
            ({"a": (1, 4), "b": slice(-3, 5)}, "'b' is slice(-3, 5, None), which counts from the end"),
            ({"a": (-5, -1)}, "'a' ends at -1, and the length of the text is unknown"),
        ],
    )
    def test_what_counts_from_an_end_that_is_not_known_is_refused(self, source: Any, told: str) -> None:
        with pytest.raises(ValueError, match=f"{re.escape(told)}.*: give length=, tokens= or ids="):
            segments(source)

    def test_all_that_is_in_none_may_be_called_other(self) -> None:
        found = segments({"a": (1, 4), "other": (4, 6)}, length=6)
        assert found.sizes == (1, 3, 2)

    @pytest.mark.parametrize(
        "source", [{3: (1, 2)}, {"a": 3}, {"a": (1, 2, 3)}, {"a": [[1, 3], [4, 5]]}, {"a": (True, 2)}, 7, None, [3]]
    )
    def test_what_is_nothing_is_refused(self, source: Any) -> None:
        with pytest.raises(TypeError, match="give"):
            segments(source, length=9)

    @pytest.mark.parametrize("places", [[3, 5], np.array([3, 5]), [-6, (5, 6)]])
    def test_a_list_of_numbers_names_single_tokens(self, places: Any) -> None:
        found = segments({"picked": places}, length=9)
        assert [(one.start, one.stop) for one in found.entries if one.name == "picked"] == [(3, 4), (5, 6)]
        with pytest.raises(IndexError, match="the position of 'picked' 9 is not there"):
            segments({"picked": [3, 9]}, length=9)


class TestLevels:
    def test_entries_of_a_level_lie_in_the_last_of_the_one_above(self) -> None:
        found = segments(NESTED, length=13)
        inner = [(one.name, one.level) for one in found]
        assert inner == [
            ("first token", 0), ("other", 0), ("documents", 0), ("doc 1", 1), ("title", 2), ("body", 2), ("other", 0),
            ("documents", 0), ("doc 2", 1), ("question", 0), ("other", 0),
        ]  # fmt: skip
        assert found.depth == 3

    def test_a_level_alone_has_all_tokens(self) -> None:
        found = segments(NESTED, length=13)
        assert found.flat(1).distinct == ("first token", "other", "doc 1", "doc 2", "question")
        assert found.flat(2).distinct == ("first token", "other", "title", "body", "doc 2", "question")
        assert found.flat(9) == found.flat(2)
        assert found.flat() == found.flat(0)
        assert all((found.flat(level).labels() >= 0).all() for level in range(4))

    def test_what_is_inside_keeps_its_positions(self) -> None:
        found = segments({"turn": [(2, 9), {"doc": [(3, 8), {"a": (4, 5)}]}]}, length=10)["turn"]
        assert [tuple(one) for one in found] == [
            ("rest of turn", 2, 3, 0), ("doc", 3, 8, 0), ("a", 4, 5, 1), ("rest of turn", 8, 9, 0),
        ]  # fmt: skip
        assert found.inside("doc").names == ("rest of doc", "a", "rest of doc")
        assert found.inside("doc").inside("a").names == ("a",)
        assert found.labels().tolist() == [-1, -1, 0, 1, 1, 1, 1, 1, 0, -1]

    def test_a_name_inside_several_is_told_with_theirs(self) -> None:
        found = segments({"doc 1": {"title": (1, 2), "body": (2, 3)}, "doc 2": {"title": (3, 4)}}, length=4)
        assert found.flat(1).distinct == ("first token", "doc 1 › title", "body", "doc 2 › title")

    def test_dividing_adds_a_level(self) -> None:
        words = ["<s>", "One", ".", "Two", ".", "\n\n", "Three", ".", "Why", "?"]
        found = segments({"document": (1, 8), "question": (8, 10)}, tokens=words)
        found = found.divide("paragraphs", "document").divide("sentences", "paragraph 1")
        inner = [(one.name, one.start, one.stop, one.level) for one in found if one.level]
        assert inner == [
            ("paragraph 1", 1, 6, 1), ("sentence 1", 1, 3, 2), ("sentence 2", 3, 6, 2), ("paragraph 2", 6, 8, 1),
        ]  # fmt: skip
        assert found.distinct == ("first token", "document", "question")
        with pytest.raises(KeyError, match="did you mean 'document'"):
            found.divide("lines", "documnt")

    def test_neighbors_are_gathered(self) -> None:
        spans = {"a": [(1, 3), (5, 6)], "b": (3, 5), "c": (6, 8), "answer": (8, 10)}
        whole = segments(spans, tokens=[*"0123456", "[SEP]", *"89"])
        assert whole.gather(3) is whole
        found = whole.gather(2)
        assert found.distinct == ("first token", "a – b", "c", "template", "answer")
        assert [found.positions(name).tolist() for name in ("a – b", "c")] == [[1, 2, 3, 4, 5], [6]]
        assert found["a – b"].spans == ((1, 3), (3, 5), (5, 6))
        assert (found.answer, found.flat(1).distinct) == ("answer", whole.distinct)
        with pytest.raises(ValueError, match="most is 0"):
            whole.gather(0)

    def test_a_list_of_words_is_levels(self) -> None:
        words = ["<s>", "One", ".", "Two", ".", "\n\n", "Three", "."]
        assert segments(["paragraphs", "sentences"], tokens=words) == segments("paragraphs", tokens=words).divide(
            "sentences"
        )

    def test_what_is_not_there_is_told(self) -> None:
        found = segments(NESTED, length=13)
        with pytest.raises(KeyError, match="did you mean 'documents'"):
            found.inside("document")
        with pytest.raises(IndexError, match="entries 0 to 10"):
            found[11]


class TestUnitsOfTheText:
    def test_sentences(self) -> None:
        found = segments("sentences", tokens=WORDS)
        assert texts_of(found, WORDS) == {
            "first token": ["<s>"],
            "sentence 1": ["The key hangs there ."],
            "sentence 2": ["Where is it ?"],
            "sentence 3": ["There ."],
            "template": ["</s>"],
        }

    @pytest.mark.parametrize(
        ("tokens", "spans"),
        [
            (["ĠOne", ".", "ĠTwo", ".Ċ", "Three"], ((0, 1), (1, 2), (2, 4), (4, 5))),
            (["▁One", ".", "▁Two", ".", "<0x0A>", "▁Three"], ((0, 1), (1, 2), (2, 5), (5, 6))),
            (["[CLS]", "one", ".", "Two", "##s", ".", "[SEP]", "Three"], ((0, 1), (1, 3), (3, 6), (6, 7), (7, 8))),
            (["One", " is", ".", " Two"], ((0, 1), (1, 3), (3, 4))),
            (list("A b. C d."), ((0, 1), (1, 5), (5, 9))),
        ],
    )  # fmt: skip
    def test_in_every_vocabulary(self, tokens: list[str], spans: Any) -> None:
        found = segments("sentences", tokens=tokens)
        assert found.spans[: len(spans)] == spans

    def test_paragraphs_and_lines(self) -> None:
        words = ["<s>", "a", "\n", "b", "\n\n", "c", "\n", "\n", "d"]
        assert segments("paragraphs", tokens=words).spans == ((0, 1), (1, 5), (5, 8), (8, 9))
        assert segments("lines", tokens=words).spans == ((0, 1), (1, 3), (3, 5), (5, 8), (8, 9))

    def test_a_regular_expression_names_its_groups(self) -> None:
        pattern = r"(?P<document>The.*?\.)|(?P<question>W.*\?)"
        for source in (pattern, re.compile(pattern)):
            found = segments(source, tokens=WORDS)
            assert found.names == ("first token", "document 1", "question", "document 2", "template")
        assert segments("key|it", tokens=WORDS).positions("match 2").tolist() == [8]

    def test_a_match_has_the_tokens_that_begin_in_it(self) -> None:
        found = segments("(?P<key>ey hangs ther)", tokens=WORDS)
        assert found.positions("key").tolist() == [3, 4]

    @pytest.mark.parametrize(
        ("pattern", "told"),
        [
            ("ang", "'match 1' of the regular expression, 'ang', is a part of token 3, ' hangs'"),
            ("(?P<a>key)|(?P<b>angs)", "'b' of the regular expression, 'angs', is a part of token 3, ' hangs'"),
            ("(?P<outer>The (?P<inner>key))", "'inner' and 'outer' both hold token 2"),
            ("(?P<outer>The (?P<inner>e))", "finds nothing"),
            ("x*", "finds nothing"),
            ("</s>", "holds only the first token, padding or tokens of a template"),
        ],
    )
    def test_a_match_without_a_token_of_its_own_is_told(self, pattern: str, told: str) -> None:
        with pytest.raises(ValueError, match=re.escape(told)):
            segments(pattern, tokens=WORDS)

    def test_a_part_of_a_special_token_is_no_match(self) -> None:
        found = segments(r"\w+", tokens=WORDS)  # the "s" of "<s>" is none
        assert found.positions("match 1").tolist() == [1]
        assert "match 9" not in found

    def test_a_text_is_found_where_it_stands(self) -> None:
        found = segments({"question": "Where is it?"}, tokens=WORDS)
        assert found.positions("question").tolist() == [6, 7, 8, 9]
        with pytest.raises(ValueError, match="is not in the text"):
            segments({"question": "When is it?"}, tokens=WORDS)
        with pytest.raises(ValueError, match="is 2 times in the text"):
            segments({"dot": "."}, tokens=["<s>", "a", ".", "b", "."])
        with pytest.raises(ValueError, match="lies across a border"):
            segments({"part": "ey hangs"}, tokens=WORDS)

    def test_a_text_is_found_as_an_uncased_tokenizer_leaves_it(self) -> None:
        """Case, accents and spaces are gone from what such a model reads: the letters tell, if they are there once."""
        words = ["[CLS]", "the", "cafe", "'", "s", "key", "[", "doc", "3", "]", ".", "where", "?", "[SEP]"]
        found = segments({"document": "The  Café's\n key [doc 3].", "question": "Where?"}, tokens=words)
        assert found.positions("document").tolist() == [*range(1, 11)]
        assert found.positions("question").tolist() == [11, 12]
        with pytest.raises(ValueError, match="is 2 times in the text"):
            segments({"part": "KEY"}, tokens=["a", "key", "b", "key"])
        found = segments({"part": "Key"}, tokens=["a", "key", "b", "Key"])  # as it is written comes first
        assert found.positions("part").tolist() == [3]

    def test_parts_of_one_character_stay_together(self) -> None:
        found = segments("lines", tokens=["Ġa", "âĤ", "¬", "Ċ", "Ġb"])  # a euro in two tokens
        assert found.spans == ((0, 1), (1, 4), (4, 5))

    @pytest.mark.parametrize(
        ("source", "told"),
        [("sentence", "did you mean 'sentences'"), ("(", "not a regular expression"), ("xyz", "finds nothing")],
    )
    def test_words_that_find_nothing(self, source: str, told: str) -> None:
        with pytest.raises(ValueError, match=told):
            segments(source, tokens=WORDS)

    def test_without_a_text_there_is_none_to_find(self) -> None:
        slow = {"input_ids": [[101, 7592, 1012, 102]], "attention_mask": [[1, 1, 1, 1]]}
        for known in ({"tokens": slow}, {"ids": [101, 7592, 1012, 102]}):
            with pytest.raises(ValueError, match=r"only its ids are known.*: give tokenizer= as well"):
                segments("sentences", **known)
        with pytest.raises(ValueError, match="the text is unknown"):
            segments("sentences", length=4)


class TestPadding:
    def test_it_is_a_segment_and_the_first_token_comes_after(self) -> None:
        found = segments({"a": (3, 5)}, tokens=["[PAD]", "[PAD]", "[CLS]", "a", "b", "[SEP]", "[PAD]"])
        assert found.names == ("padding", "first token", "a", "template", "padding")
        assert found.spans == ((0, 2), (2, 3), (3, 5), (5, 6), (6, 7))


class TestItDoesNotChange:
    def test_it_is_equal_copied_and_pickled(self) -> None:
        found = segments("sentences", tokens=WORDS)
        assert found == segments("sentences", tokens=WORDS)
        assert pickle.loads(pickle.dumps(found)) == copy.deepcopy(found) == found
        assert pickle.loads(pickle.dumps(found)).divide("lines", "sentence 1").depth == 2
        with pytest.raises(AttributeError):
            found.length = 3  # type: ignore[misc]

    def test_segments_are_taken_as_they_are(self) -> None:
        found = segments("sentences", tokens=WORDS)
        assert segments(found, length=13) is found
        with pytest.raises(ValueError, match="have 13 tokens, but there are 12"):
            segments(found, tokens=WORDS[:-1])

    def test_ids_come_in_every_form(self) -> None:
        for ids in ([1, 2, 3], torch.tensor([[1, 2, 3]]), np.array([1, 2, 3])):
            assert segments({"a": (1, 3)}, ids=ids).length == 3
        with pytest.raises(ValueError, match="length has 4 tokens, tokens 3"):
            segments({"a": (1, 3)}, ids=[1, 2, 3], length=4)


@st.composite
def cuts_of(draw: st.DrawFn) -> tuple[int, dict[str, list[tuple[int, int]]]]:
    """A length, and names whose pieces share no token."""
    length = draw(st.integers(2, 30))
    borders = sorted(draw(st.sets(st.integers(1, length), max_size=10)))
    named: dict[str, list[tuple[int, int]]] = {}
    for start, stop in pairwise(borders):
        name = draw(st.sampled_from(["a", "b", "c", None]))
        if name:
            named.setdefault(name, []).append((start, stop))
    return length, named


@given(cuts_of(), st.data())
def test_every_partition_is_whole(cut: tuple[int, dict[str, list[tuple[int, int]]]], data: st.DataObject) -> None:
    length, named = cut
    own = np.full(length, -1)
    own[0] = RESERVED.index("first token")
    special = data.draw(st.sets(st.integers(1, length - 1), max_size=3))
    pieces = [Named(name, [range(*span) for span in spans]) for name, spans in named.items()]
    left = [one for one in pieces if any(at not in special for piece in one.pieces for at in piece)]
    own[list(special)] = RESERVED.index("template")
    found = Segments(tuple(entries_of(left, own)), length, "")
    expected = ["other"] * length
    for name, spans in named.items():
        for start, stop in spans:
            expected[start:stop] = [name] * (stop - start)
    for at in special:
        expected[at] = "template"
    expected[0] = "first token"
    assert [found.distinct[label] for label in found.labels()] == expected
    assert sum(found.sizes) == length
    assert [one.start for one in found] == [0, *[one.stop for one in found][:-1]]
