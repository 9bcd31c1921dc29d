"""Segments in the widget: what a user gives, what a front-end may set, what follows, and what is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from front_end import FrontEnd, decode
from tolerance import sums

from attnwidget import Attention, AttentionStack, AttentionWidget, compare, segments
from attnwidget._messages.segments import segment_mass
from attnwidget._widget.passes import masses

N = 14
NESTED = {"documents": {"doc 1": (1, 4), "doc 2": (4, 8)}, "question": (8, 10), "answer": (10, 14)}


def stack(layers: int = 2, heads: int = 3, n: int = N, batch: int = 1, **rules: Any) -> AttentionStack:
    source = torch.Generator().manual_seed(0)
    return AttentionStack(
        [
            Attention(*(torch.randn(batch, heads, n, 8, generator=source) for _ in range(3)), is_causal=True, **rules)
            for _ in range(layers)
        ]
    )


def widget(given: Any = NESTED, attention: Any = None, **show: Any) -> AttentionWidget:
    return AttentionWidget.from_attention(attention or stack(), segments=given, view="segments", **show)


def mass(w: AttentionWidget) -> dict[str, Any]:
    found: dict[str, Any] = w.mass
    assert found["error"] is None, found["error"]
    return found


# What follows.


def test_the_masses_of_a_head_and_of_all_heads_follow_the_selection() -> None:
    w = widget()
    assert mass(w)["keys"] == ["first token", "documents", "question", "answer"]
    assert (mass(w)["asking"], mass(w)["row"], mass(w)["share"]) == ("answer", 3, 1.0)
    for layer, head in ((0, 0), (1, 2)):
        w.layer, w.head = layer, head
        weights = w.attention[layer].block("weights", head=head)  # type: ignore[index]
        expected = weights[10:, 1:8].double().sum(1).mean()
        np.testing.assert_allclose(decode(mass(w)["mass"])[3, 1], expected, **sums(N))
        np.testing.assert_allclose(decode(w.head_mass["mass"])[3 * layer + head, 1], expected, **sums(N))
    w.asking = "question"
    assert (mass(w)["row"], mass(w)["total"], w.head_mass["asking"]) == (2, 2, "question")
    w.view = "heatmap"
    assert (w.mass, w.head_mass) == (None, None)
    w.segment = "documents"  # a block is pinned in the heatmap
    assert (mass(w)["head"], w.head_mass) == (2, None)


def test_going_down_shows_what_is_inside_and_all_else_as_one() -> None:
    w = widget(segment="documents")
    w.segment_path = ["documents"]
    assert mass(w)["keys"] == ["doc 1", "doc 2", "outside documents", "first token"]
    assert mass(w)["key_colors"] == [0, 1, -1, -1]
    assert mass(w)["rows"] == ["first token", "documents", "question", "answer"]
    assert w.segment is None, "it is not among the columns any longer"
    np.testing.assert_allclose(decode(mass(w)["mass"]).sum(1), 1, **sums(N))
    weights = w.attention[0].block("weights", head=0)  # type: ignore[index]
    np.testing.assert_allclose(decode(mass(w)["mass"])[3, 1], weights[10:, 4:8].double().sum(1).mean(), **sums(N))
    own = decode(mass(w)["columns"]["own"])
    assert own.tolist() == [2] * 4, "the answer's own keys are outside"
    with pytest.raises(ValueError, match="'doc 1' has no segments inside"):
        w.segment_path = ["documents", "doc 1"]
    with pytest.raises(ValueError, match="did you mean 'documents'"):
        w.segment_path = ["document"]


def test_several_heads_other_rules_and_words_have_masses_too() -> None:
    w = widget(tokens=[f"{'Ġ' if n % 2 else ''}t{n}" for n in range(N)])
    w.heads, w.combine = [0, 2], "max"
    assert mass(w)["head"] == "max 0 2"
    each = [w.attention[0].block("weights", head=head)[10:, 1:8].double().sum(1).mean() for head in (0, 2)]  # type: ignore[index]
    np.testing.assert_allclose(decode(mass(w)["mass"])[3, 1], max(each), **sums(N))
    w.combine = "none"
    before = decode(mass(w)["mass"]).copy()
    w.what_if = {"scale": 0.0}
    np.testing.assert_allclose(decode(mass(w)["mass"]), decode(mass(w)["even"]), **sums(N))
    w.what_if = {}
    np.testing.assert_array_equal(decode(mass(w)["mass"]), before)
    w.pieces = "words"
    assert sum(mass(w)["row_sizes"]) == w.facts["queries"] == 8
    np.testing.assert_allclose(decode(mass(w)["mass"]).sum(1), 1, **sums(N))


def test_words_are_in_the_segment_of_their_first_piece() -> None:
    w = widget({"a": (1, 4), "b": (4, 6)}, stack(1, 1, 6), tokens=["<s>", "Ġone", "Ġtw", "o", "x", "Ġthree"])
    w.pieces = "words"
    held = w.get_state(["segments"])["segments"]
    starts, stops = decode(held["starts"]).tolist(), decode(held["stops"]).tolist()
    assert [*zip(held["names"], starts, stops, strict=True)] == [("first token", 0, 1), ("a", 1, 3), ("b", 3, 4)]


def test_more_segments_than_colors_give_them_to_those_with_most_mass_once() -> None:
    n = 40
    w = widget({f"doc {i}": (1 + 3 * i, 4 + 3 * i) for i in range(12)} | {"answer": (37, n)}, stack(1, 2, n))
    colors = dict(zip(mass(w)["keys"], mass(w)["key_colors"], strict=True))
    assert sorted(color for color in colors.values() if color >= 0) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert colors["answer"] == 7
    means = decode(w.head_mass["mass"]).mean(0)
    documents = {name: means[at] for at, name in enumerate(w.head_mass["keys"]) if name.startswith("doc")}
    best = sorted(sorted(documents, key=lambda name: -documents[name])[:7], key=lambda name: int(name[4:]))
    assert [name for name in colors if 0 <= colors[name] < 7] == best
    assert [colors[name] for name in best] == [*range(7)], "in order of appearance"
    held = w.get_state(["segments"])["segments"]
    assert dict(zip(held["distinct"], held["colors"], strict=True)) == colors
    w.head = 1
    assert mass(w)["key_colors"] == [*colors.values()]


# What is given.


def test_each_sample_has_its_own_segments() -> None:
    one, two = segments({"a": (1, 4), "answer": (10, 14)}, length=N), segments({"b": (1, 9)}, length=N)
    w = widget([one, two], stack(batch=2))
    assert mass(w)["keys"] == ["first token", "a", "other", "answer"]
    w.batch = 1
    assert (mass(w)["keys"], mass(w)["asking"]) == (["first token", "b", "other"], "b")
    with pytest.raises(ValueError, match="segments are given for 1 samples, but there are 2"):
        w.segments = [one]


def test_sentences_are_found_in_the_tokens_of_each_stack() -> None:
    both = {"a": stack(n=6), "b": stack(n=4)}
    tokens = {"a": ["Hi", " there", ".", " It", " rains", "."], "b": ["No", ".", " Yes", "."]}
    w = widget("sentences", both, tokens=tokens)
    assert mass(w)["keys"] == ["first token", "sentence 1", "sentence 2"]
    w.stack = "b"
    assert sum(mass(w)["key_sizes"]) == 4
    w.stack = "a"
    w.segments = {"Hi": (0, 3), "rain": (3, 6)}
    w.stack = "b"
    assert w.segments == "sentences", "the others were of another text"
    w.stack = "a"
    assert "rain" in mass(w)["keys"]


def test_what_does_not_fit_another_layer_is_put_aside_with_a_word() -> None:
    q, k, v = torch.randn(3, 1, 2, N, 8)
    w = widget(NESTED, AttentionStack([Attention(q, k, v), Attention(q[:, :, :5], k[:, :, :5], v[:, :, :5])]))
    w.asking, w.segment, w.segment_path = "question", None, ["documents"]
    w.layer = 1
    assert "documents" in w.mass["error"] or "14 tokens" in w.mass["error"] or "5" in w.mass["error"]
    assert w.get_state(["segments"])["segments"]["error"] == w.mass["error"]
    assert (w.asking, w.segment_path) == (None, [])
    w.layer = 0
    assert mass(w)["asking"] == "answer"


def test_keys_of_another_text_have_segments_of_their_own() -> None:
    q, k, v = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8)
    w = widget({"answer": (1, 4)}, Attention(q, k, v), key_segments={"doc": (1, 6), "question": (6, 9)})
    assert (mass(w)["rows"], mass(w)["keys"]) == (["first token", "answer"], ["first token", "doc", "question"])
    assert decode(mass(w)["columns"]["own"]).tolist() == [3, 3, 3], "no key is a query's own"
    assert w.get_state(["key_segments"])["key_segments"]["distinct"] == ["first token", "doc", "question"]
    assert widget().get_state(["key_segments"])["key_segments"] is None


@pytest.mark.thorough
def test_six_hundred_lines_are_gathered_and_opened() -> None:
    lines = ["<s>", *(word for line in range(600) for word in ("line", str(line), "\n"))]
    q, k = torch.randn(2, 1, len(lines), 4)
    w = AttentionWidget(q, k, tokens=lines, segments="lines", view="segments", is_causal=True)
    names = mass(w)["keys"]
    assert (len(names), names[1], names[-1]) == (122, "line 1 – line 5", "line 600")
    w.segment_path = [names[2]]
    assert mass(w)["keys"][:5] == [f"line {i}" for i in range(6, 11)]
    each = segments("lines", tokens=lines)
    wanted = Attention(q, k, is_causal=True).by_segment("line 600", each, head=0).mass[0]
    found = decode(mass(w)["mass"])[mass(w)["row"], :5]
    at = each.distinct.index("line 6")
    np.testing.assert_allclose(found, wanted[at : at + 5], **sums(len(lines)))
    w.segment_path, w.segments = [], each
    assert mass(w)["keys"] == names, "also those that were made before"


def many(count: int, *, inside: str = "") -> AttentionWidget:
    """Return a widget of three queries of an answer, and of as many keys in segments of one key each."""
    own: Any = {f"doc {i}": (i, i + 1) for i in range(1, count + 1)}
    keys = segments({inside: own, "question": (count + 1, count + 3)} if inside else own, length=count + 3)
    draw = torch.Generator().manual_seed(count)
    q, k = (torch.randn(1, 2, n, 4, generator=draw) for n in (4, count + 3))
    return AttentionWidget(q, k, segments={"answer": (0, 4)}, key_segments=keys, view="segments")


MANY = [(257, 2, ""), (1000, 2, ""), (1000, 2, "docs")]


def leaves(w: AttentionWidget, path: list[str]) -> Iterator[tuple[list[str], float]]:
    """Go down everywhere: yield each segment that has none inside, with its mass; a level sums to the one above."""
    w.segment_path = path
    found = mass(w)
    values = decode(found["mass"])[found["row"]].astype(np.float64)
    np.testing.assert_allclose(values.sum(), 1, **sums(found["total"] * len(values)))
    assert len(found["keys"]) <= segment_mass.MAX_SEGMENTS
    named = dict(zip(found["keys"], zip(values, found["key_inside"], strict=True), strict=True))
    own = [name for name in named if name.startswith("doc ")]
    for name in own:
        value, inside = named[name]
        if not inside:
            yield [*path, name], value
            continue
        below = [*leaves(w, [*path, name])]
        np.testing.assert_allclose(sum(one for _, one in below), value, **sums(w.facts["keys"]))
        yield from below


@pytest.mark.parametrize(
    ("count", "depth", "inside"),
    [(257, 2, "docs"), *(pytest.param(*one, marks=pytest.mark.thorough) for one in MANY)],
)
def test_every_one_of_many_segments_is_reached_with_its_exact_mass(count: int, depth: int, inside: str) -> None:
    w = many(count, inside=inside)
    found = [*leaves(w, [inside] if inside else [])]
    assert [path[-1] for path, _ in found] == [f"doc {i}" for i in range(1, count + 1)]
    assert max(len(path) for path, _ in found) == depth + bool(inside)
    weights = w.attention.block("weights", head=0)[1:].double().mean(0)  # type: ignore[union-attr]
    np.testing.assert_allclose([value for _, value in found], weights[1 : count + 1], **sums(count))


@pytest.mark.thorough
def test_seventy_thousand_segments_are_three_levels_and_no_message_is_large(front_end: FrontEnd) -> None:
    count = 70_000
    w = many(count, inside="documents")
    assert sum(message.size for message in front_end.of(w)) < 1 << 20
    weights = w.attention.block("weights", head=0)[1:].double().mean(0)  # type: ignore[union-attr]
    held = w.get_state(["key_segments"])["key_segments"]
    assert (len(held["names"]), max(decode(held["levels"]))) == (131, 1), "whole levels, the outermost ones"
    assert held["more"] > count
    path = ["documents"]
    for group in (range(548, 1095), range(553, 558), range(555, 556)):
        before = len(front_end.of(w))
        w.set_state({"segment_path": path})
        assert sum(message.size for message in front_end.of(w)[before:]) < 256 << 10
        found = mass(w)
        name = " – ".join(f"doc {at}" for at in dict.fromkeys((group[0], group[-1])))
        at = found["keys"].index(name)
        wanted = weights[list(group)].sum()
        np.testing.assert_allclose(decode(found["mass"])[found["row"], at], wanted, **sums(count))
        assert decode(found["key_spans"])[at].tolist() == [group.start, group.stop]
        assert (found["key_inside"][at] > 0) == (len(group) > 1)
        path = [*path, name]
    with pytest.raises(ValueError, match="'doc 555' has no segments inside"):
        w.segment_path = path


def test_a_nested_segment_is_asked_about_on_its_own_level() -> None:
    w = widget()
    w.asking = ["documents", "doc 2"]
    assert (mass(w)["asking"], mass(w)["asking_path"]) == ("doc 2", ["documents"])
    assert mass(w)["rows"] == ["doc 1", "doc 2", "outside documents", "first token"]
    weights = w.attention[0].block("weights", head=0).double()  # type: ignore[index]
    columns = {"first token": slice(0, 1), "documents": slice(1, 8), "question": slice(8, 10), "answer": slice(10, 14)}
    for row, name in enumerate(mass(w)["rows"]):
        own = {"doc 1": [*range(1, 4)], "doc 2": [*range(4, 8)], "first token": [0]}.get(name, [*range(8, 14)])
        for column, held in enumerate(columns.values()):
            expected = weights[own, held].sum(1).mean()
            np.testing.assert_allclose(decode(mass(w)["mass"])[row, column], expected, atol=sums(N)["atol"], rtol=1e-5)
    assert decode(mass(w)["positions"]).tolist() == [4, 5, 6, 7]
    np.testing.assert_allclose(decode(w.head_mass["mass"])[0, 1], weights[4:8, 1:8].sum(1).mean(), **sums(N))
    assert w.head_mass["asking_path"] == ["documents"]

    colors = dict(zip(mass(w)["keys"], mass(w)["key_colors"], strict=True))
    assert (colors["documents"], colors["answer"]) == (7, 1), "the gray of the asking one is that of what it lies in"
    w.segment_path = ["documents"]
    colors = dict(zip(mass(w)["keys"], mass(w)["key_colors"], strict=True))
    assert (colors["doc 1"], colors["doc 2"]) == (0, 7)

    w.asking = ["question"]
    assert w.asking == "question", "one name is no path"
    with pytest.raises(ValueError, match="asking is 'doc 9'"):
        w.asking = ["documents", "doc 9"]
    with pytest.raises(ValueError, match="'answer' has no segments inside"):
        w.asking = ["answer", "doc 1"]
    for wrong in ([], 3, ["documents", 1], {"documents": "doc 1"}):
        with pytest.raises((ValueError, TypeError), match="asking"):
            w.asking = wrong  # type: ignore[assignment]
    w.set_state({"asking": ["documents", "doc 1"]})
    assert w.asking == ["documents", "doc 1"]
    w.set_state({"asking": ["documents", "doc 7"]})  # of another text: the page is told that it is not there
    assert w.asking == ["documents", "doc 1"]
    w.segments = {"question": (1, 5), "answer": (5, 14)}
    assert w.asking is None


def test_keys_of_another_text_are_no_querys_own_even_where_there_are_as_many() -> None:
    texts = {"tokens": [f"a{i}" for i in range(N)], "key_tokens": [f"b{i}" for i in range(N)]}
    w = widget(NESTED, key_segments={"doc": (1, 6), "question": (6, N)}, **texts)
    assert decode(mass(w)["columns"]["own"]).tolist() == [3] * len(decode(mass(w)["columns"]["own"])), "in no segment"
    assert not decode(mass(w)["self"]).any()
    assert not decode(w.head_mass["self"]).any()
    same = widget(NESTED, tokens=texts["tokens"])
    assert decode(mass(same)["self"]).any()
    assert decode(same.head_mass["self"]).any()


def test_queries_that_are_some_of_the_keys_are_in_the_segments_of_their_places() -> None:
    q, k, v = torch.randn(1, 2, 4, 8), torch.randn(1, 2, N, 8), torch.randn(1, 2, N, 8)
    w = widget(NESTED, Attention(q, k, v).as_part(None, (8, 9, 12, 13), 0))
    assert (mass(w)["rows"], mass(w)["row_sizes"]) == (["question", "answer"], [2, 2])
    assert mass(w)["keys"] == ["first token", "documents", "question", "answer"]
    assert decode(mass(w)["columns"]["own"]).tolist() == [3, 3]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (3, "segments are given as 3"),
        ({"a": (0, 99)}, "there are tokens 0 to 13"),
        ({"a": (1, 5), "b": (4, 6)}, "both hold token 4"),
        ("sentences", "the text is unknown"),
        (segments({"a": (0, 3)}, length=4), "the segments cover 4 tokens, but this layer has 14"),
    ],
)
def test_segments_that_cannot_be_are_refused_and_those_there_are_stay(given: Any, said: str) -> None:
    w = widget()
    with pytest.raises((ValueError, TypeError), match=said):
        w.segments = given
    assert w.segments == NESTED
    with pytest.raises((ValueError, TypeError), match=said):
        widget(given)


def test_words_of_segments_without_segments_are_refused() -> None:
    w = AttentionWidget.from_attention(stack())
    for name, value in (("asking", "answer"), ("segment", "a"), ("segment_path", ["a"])):
        with pytest.raises(ValueError, match="there are no segments: give segments="):
            setattr(w, name, value)
    with pytest.raises(TypeError, match="aside is 'self': give a list of names"):
        w.aside = "self"
    with pytest.raises(ValueError, match="measure"):
        w.measure = "weight"


def test_a_comparison_shows_the_segments_of_its_first_side() -> None:
    w = compare({"A": stack(1), "B": stack(1, 3, N)}, segments=NESTED, view="segments")
    assert mass(w)["keys"] == ["first token", "documents", "question", "answer"]


# The front-end.


def test_what_a_front_end_sets_is_taken_or_put_back_with_the_reason(front_end: FrontEnd) -> None:
    w = widget()
    w.set_state({"segment": "documents", "asking": "question", "measure": "lift", "aside": ["self", "sink"]})
    assert (w.segment, w.asking, w.measure, w.aside) == ("documents", "question", "lift", ["self", "sink"])
    for wrong in ({"segment": "doc 9"}, {"asking": 3}, {"segment_path": ["answer"]}, {"segment_path": "x"},
                  {"aside": [3]}, {"measure": "x"}, {"segments": None}, {"mass": None}):  # fmt: skip
        w.set_state(wrong)
        assert (w.segment, w.asking, w.segment_path) == ("documents", "question", [])
    assert len(front_end.refusals(w)) == 6, "what is no front-end's to set is not taken, silently"
    assert w.segments == NESTED
    w.set_state({"segment_path": ["documents"], "segment": "doc 2"})
    assert (w.segment, w.segment_path) == ("doc 2", ["documents"])


def test_of_segments_with_long_names_only_the_levels_that_fit_a_message_are_sent() -> None:
    parts = {f"{at} {'x' * 400}": {f"{at}a {'y' * 270}": (at, at + 1), "b": (at + 1, at + 2)} for at in range(1, 99, 2)}
    held = widget(parts, stack(1, 1, 100)).get_state(["segments"])["segments"]
    assert (len(held["distinct"]), set(decode(held["levels"]).tolist())) == (51, {0})
    assert held["more"] == 98, "those inside are asked for when one goes down"
    assert sum(len(name) for name in (*held["names"], *held["distinct"])) < 48 * 1024
    few = widget(dict([*parts.items()][:40]), stack(1, 1, 100)).get_state(["segments"])["segments"]
    assert (set(decode(few["levels"]).tolist()), few["more"]) == ({0, 1}, 0)


def test_a_front_end_asks_by_the_id_of_a_mass(front_end: FrontEnd) -> None:
    w = widget()
    of, of_heads = w.mass["id"], w.head_mass["id"]
    columns, keys, heads, gone = front_end.ask(
        w,
        {"id": "a", "kind": "segment_columns", "of": of, "start": 1, "stop": 3},
        {"id": "b", "kind": "segment_keys", "of": of, "query": 12, "column": 1, "count": 3},
        {"id": "c", "kind": "segment_heads", "of": of_heads, "columns": [1]},
        {"id": "d", "kind": "segment_block", "of": of + 50, "row": 0, "column": 0, "count": 1},
    )
    assert decode(columns["positions"]).tolist() == [11, 12]
    assert {*decode(keys["positions"]).tolist()} <= {*range(1, 8)}
    assert decode(heads["mass"]).shape == (6, 1)
    assert gone["error"] == "other segments are shown now: send the request again"
    w.head = 1
    assert w.mass["id"] != of
    (still,) = front_end.ask(w, {"id": "e", "kind": "segment_columns", "of": of, "start": 0, "stop": 1})
    assert still["ok"], "what was shown a moment ago is still known"


def test_a_front_end_can_have_segments_made_of_the_tokens(front_end: FrontEnd) -> None:
    w = AttentionWidget.from_attention(stack(n=6), tokens=["Hi", " there", ".", " It", " rains", "."], view="segments")
    assert w.mass is None
    (reply,) = front_end.ask(w, {"id": "a", "kind": "segment_by", "unit": "sentences"})
    assert reply["ok"]
    assert (w.segments, mass(w)["keys"]) == ("sentences", ["first token", "sentence 1", "sentence 2"])
    (refused,) = front_end.ask(widget(), {"id": "b", "kind": "segment_by", "unit": "chapters"})
    assert "give sentences, paragraphs or lines" in refused["error"]


def test_segments_are_sent_again_only_when_they_are_others(front_end: FrontEnd) -> None:
    w = widget()
    assert front_end.state(w)["segments"]["distinct"] == ["first token", "documents", "question", "answer"]
    before = len(front_end.of(w))
    w.head, w.layer = 1, 1
    sent = {name for message in front_end.of(w)[before:] for name in message.state}
    assert "mass" in sent
    assert not {"segments", "key_segments", "head_mass"} & sent
    w.segments = {"a": (1, 3)}
    assert front_end.state(w)["segments"]["distinct"] == ["first token", "a", "other"]
    w.segments = None
    assert front_end.state(w)["segments"] is None


def test_a_long_head_comes_sampled_and_then_exact_on_the_loop(
    front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masses, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(masses, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(segment_mass, "CELLS_AT_ONCE", 60)
    monkeypatch.setattr(segment_mass, "SAMPLED_ROWS", 5)
    whole = decode(widget({"a": (1, 30), "answer": (55, 60)}, stack(n=60)).mass["mass"])

    async def main() -> None:
        w = widget({"a": (1, 30), "answer": (55, 60)}, stack(n=60))
        assert 0 < w.mass["share"] < 1
        assert w.head_mass["share"] < 1
        of, share = w.mass["id"], w.mass["share"]
        w.head = 1
        assert w.mass["id"] != of
        w.head = 0
        assert w.mass["share"] >= share, "it goes on where it was"
        while w.mass["share"] < 1 or w.head_mass["share"] < 1:
            await asyncio.sleep(0.001)
        assert (w.mass["share"], w.head_mass["share"]) == (1.0, 1.0)
        np.testing.assert_array_equal(decode(w.mass["mass"]), whole)
        w.close()

    asyncio.run(main())


def test_in_a_script_a_very_long_head_is_exact_after_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masses, "MAX_AT_ONCE", 1000)
    monkeypatch.setattr(segment_mass, "CELLS_AT_ONCE", 60)
    monkeypatch.setattr(segment_mass, "SAMPLED_ROWS", 5)
    w = widget({"a": (1, 30), "answer": (55, 60)}, stack(n=60))
    assert 0 < w.mass["share"] < 1
    w.finish()
    assert w.mass["share"] == 1


def test_an_error_is_in_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    w = widget()
    monkeypatch.setattr(segment_mass, "MAX_SEGMENTS", 2)
    w.asking = "question"
    assert "the keys are in 4 segments, but at most 2 can be shown" in w.mass["error"]
    assert w.mass["error"] == w.head_mass["error"]


@pytest.mark.thorough
def test_opening_is_a_mebibyte_at_most_and_a_step_a_quarter(front_end: FrontEnd) -> None:
    """Of 200 segments and an answer of 2,000 tokens; what 1,024 heads take is in tests/messages."""
    n = 2 + 199 * 4 + 2000
    given = {f"document {i}": (1 + 4 * i, 5 + 4 * i) for i in range(199)} | {"answer": (n - 2000, n)}
    words = [f"w{i % 700}" for i in range(n)]
    w = widget(given, stack(1, 2, n), tokens=words)
    assert len(mass(w)["keys"]) == 202
    assert sum(message.size for message in front_end.of(w)) < 1 << 20
    for change in ({"head": 1}, {"segment": "document 7"}, {"asking": "document 90"}, {"measure": "lift"}):
        before = len(front_end.of(w))
        w.set_state(change)
        assert sum(message.size for message in front_end.of(w)[before:]) < 256 << 10, change
    before = len(front_end.of(w))
    w.set_state({"asking": None})
    front_end.ask(w, {"id": "a", "kind": "segment_columns", "of": w.mass["id"], "start": 1000, "stop": 1080})
    assert sum(message.size for message in front_end.of(w)[before:]) < 256 << 10
