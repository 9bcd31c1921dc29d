"""Masses between segments, against the whole matrix in float64; what is sent of them, and answers about them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from front_end import Array, decode, decode_cells
from tolerance import sums

from attnwidget import Attention, AttentionStack
from attnwidget._engine.cost import CostBudget
from attnwidget._messages.segments import segment_answers, segment_mass
from attnwidget._messages.segments.segment_mass import Columns, HeadMasses, MassPass, Rows, Wanted
from attnwidget._messages.segments.segment_reading import read

NAMES = ["first token", "doc 1", "doc 2", "question", "answer"]
EDGES = [0, 1, 5, 9, 12, 16]
N = EDGES[-1]


def wanted(
    head: int | str = 0, edges: Sequence[int] = EDGES, asking: str = "answer", names: Sequence[str] = NAMES
) -> Wanted:
    labels = np.repeat(np.arange(len(names)), np.diff(edges))
    columns = Columns([*names], np.diff(edges).tolist(), [-1, 0, 1, 2, 7][: len(names)], labels, ())
    rows = Rows([*names], [np.arange(a, b) for a, b in pairwise(edges)])
    return Wanted(0, 0, head, (), asking, columns, rows)


def attention(seed: int = 0, heads: int = 3, **rules: Any) -> Attention:
    source = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, heads, N, 8, generator=source) for _ in range(3))
    return Attention(q, k, v, **rules)


CASES: dict[str, dict[str, Any]] = {
    "no mask": {},
    "causal": {"is_causal": True},
    "a window and a softcap": {"is_causal": True, "window": 5, "softcap": 2.0},
    "a learned sink": {"is_causal": True, "sinks": torch.tensor([0.5, -1.0, 2.0])},
    "queries that may attend to nothing": {"mask": torch.arange(N)[:, None] % 3 > 0},
    "a bias": {"bias": torch.linspace(-2, 2, N * N).view(N, N)},
}


def by_hand(att: Attention, head: int) -> dict[str, Array]:
    """Every mass from the whole matrix in float64, cell by cell."""
    weights = att.block("weights", head=head).double().numpy()
    allowed = att.block("allowed", head=head).numpy()
    some = allowed.any(1)
    even = allowed / np.maximum(allowed.sum(1, keepdims=True), 1)
    found = {name: np.full((len(NAMES), len(NAMES)), np.nan) for name in segment_mass.PARTS}
    for s in range(len(NAMES)):
        queries = [q for q in range(EDGES[s], EDGES[s + 1]) if some[q]]
        for t in range(len(NAMES) if queries else 0):
            keys = range(EDGES[t], EDGES[t + 1])
            both = [(q, k) for q in queries for k in keys]
            found["mass"][s, t] = sum(weights[q, k] for q, k in both) / len(queries)
            found["even"][s, t] = sum(even[q, k] for q, k in both) / len(queries)
            found["self"][s, t] = sum(weights[q, k] for q, k in both if q == k) / len(queries)
            found["self_even"][s, t] = sum(even[q, k] for q, k in both if q == k) / len(queries)
    return found


@pytest.mark.parametrize("case", CASES)
def test_every_mass_is_that_of_the_whole_matrix(case: str) -> None:
    att = attention(**CASES[case])
    one = MassPass(att, wanted(1), 1)
    for _ in one:
        pass
    expected, message = by_hand(att, 1), one.message()
    for name, values in expected.items():
        found = decode(message[name])[:, : len(NAMES)]
        np.testing.assert_allclose(found, values, **sums(N), err_msg=name)
    assert message["keys"] == [*NAMES, *(["learned sink"] if "sink" in case else [])]
    whole = decode(message["mass"]).sum(1)
    np.testing.assert_allclose(whole[decode(message["looked"]) > 0], 1, **sums(N))


def test_at_first_a_long_asking_segment_has_only_the_queries_that_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_mass, "MAX_COLUMNS", 3)
    one = MassPass(attention(), wanted(edges=[0, 2, 12, 16], asking="b", names=["a", "b", "c"]), 1)
    looked = next(decode(one.message()["looked"]).tolist() for _ in one if one.sampled)
    assert looked[1] == one.window == 3
    assert looked[0] > 0 < looked[2]


@pytest.mark.parametrize("case", CASES)
def test_the_columns_are_the_tokens_of_the_asking_segment(case: str) -> None:
    att = attention(**CASES[case])
    one = MassPass(att, wanted(2), 1)
    for _ in one:
        pass
    columns, weights = one.message()["columns"], att.block("weights", head=2).double().numpy()
    for at, query in enumerate(range(12, 16)):
        expected = [weights[query, a:b].sum() for a, b in pairwise(EDGES)]
        np.testing.assert_allclose(decode(columns["mass"])[at, : len(NAMES)], expected, **sums(N))
        np.testing.assert_allclose(decode(columns["self"])[at], weights[query, query], **sums(N))
    assert decode(columns["own"]).tolist() == [4] * 4
    assert decode(one.message()["positions"]).tolist() == [12, 13, 14, 15]
    again = segment_answers.columns(one, range(1, 3), CostBudget())
    np.testing.assert_array_equal(decode(again["mass"]), decode(columns["mass"])[1:3])


@pytest.mark.parametrize("how", ["mean", "max"])
def test_several_heads_are_the_mean_or_the_largest_of_their_masses(how: str) -> None:
    att = attention(is_causal=True)
    one = MassPass(att, wanted(f"{how} 0 2"), 1)
    for _ in one:
        pass
    each = np.stack([by_hand(att, head)["mass"] for head in (0, 2)])
    expected = each.mean(0) if how == "mean" else each.max(0)
    np.testing.assert_allclose(decode(one.message()["mass"]), expected, **sums(N))
    if how == "mean":
        mean = att.combine([0, 2], "mean").block("weights").double().numpy()
        np.testing.assert_allclose(expected[4, 1], mean[12:, 1:5].sum(1).mean(), **sums(N))


def test_all_heads_stand_layer_by_layer_and_those_of_another_length_are_not_there() -> None:
    short = Attention(*(x[:, :, :7] for x in (attention(3).q, attention(3).k)))  # type: ignore[index]
    stack = AttentionStack([attention(0, is_causal=True), short, attention(1, 2, sinks=0.5)])
    one = HeadMasses(stack, wanted(), 7)
    steps = iter(one)
    while one.share < 0.5:
        next(steps)
    assert not one.finished
    half = decode(one.message()["mass"])
    assert np.isnan(half[3:]).all()
    assert not np.isnan(half[:3]).any()
    for _ in steps:
        pass
    message = one.message()
    assert one.finished
    assert (message["heads"], message["keys"][-1], message["share"]) == ([3, 0, 2], "learned sink", 1.0)
    assert decode(message["looked"]).tolist() == [4, 0, 4]
    expected = [by_hand(stack[layer], head)["mass"][4] for layer, head in ((0, 0), (0, 1), (0, 2), (2, 0), (2, 1))]
    np.testing.assert_allclose(decode(message["mass"])[:, :5], expected, **sums(N))
    other = segment_answers.heads(one, [4, 1])
    np.testing.assert_array_equal(decode(other["mass"]), decode(message["mass"])[:, [4, 1]])


def test_a_long_head_is_sampled_first_the_asking_segment_whole_and_nothing_is_looked_at_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segment_mass, "CELLS_AT_ONCE", N)  # one query at a time
    monkeypatch.setattr(segment_mass, "SAMPLED_ROWS", 5)
    one = MassPass(attention(is_causal=True), wanted(), 1)
    steps = iter(one)
    while not one.sampled:
        next(steps)
    looked = decode(one.message()["looked"]).tolist()
    assert looked[4] == 4
    assert all(0 < some <= size for some, size in zip(looked, np.diff(EDGES), strict=True))
    assert looked[1] < 4
    assert 0 < one.share < 1
    for _ in steps:
        pass
    assert decode(one.message()["looked"]).tolist() == np.diff(EDGES).tolist()
    np.testing.assert_allclose(decode(one.message()["mass"]), by_hand(one.att, 0)["mass"], **sums(N))


def test_too_many_segments_are_refused_with_the_way_on() -> None:
    names = [f"line {i}" for i in range(300)]
    labels = np.arange(300)
    many = Wanted(
        0,
        0,
        0,
        (),
        "line 0",
        Columns(names, [1] * 300, [-1] * 300, labels, ()),
        Rows(names, [np.array([i]) for i in range(300)]),
    )
    with pytest.raises(ValueError, match="300 segments, but at most 256 can be shown: give longer segments"):
        MassPass(Attention(torch.zeros(300, 2), torch.zeros(300, 2)), many, 1)


def many_segments(count: int = 200, answer: int = 2000) -> Wanted:
    names = [f"document {i}" for i in range(count - 1)] + ["answer"]
    edges = [5 * i for i in range(count)] + [5 * (count - 1) + answer]
    labels = np.repeat(np.arange(count), np.diff(edges))
    columns = Columns(names, np.diff(edges).tolist(), [-1] * count, labels, ())
    return Wanted(0, 0, 0, (), "answer", columns, Rows(names, [np.arange(a, b) for a, b in pairwise(edges)]))


def size_of(part: Any) -> int:
    if isinstance(part, dict):
        return sum(size_of(one) + len(name) for name, one in part.items())
    if isinstance(part, list):
        return sum(map(size_of, part)) + len(part)
    return len(part) if isinstance(part, bytes | str) else 8


def test_200_segments_of_2000_answer_tokens_and_1024_heads_are_one_step_of_256_kib() -> None:
    of = many_segments()
    length = int(of.rows.positions[-1][-1]) + 1
    source = torch.Generator().manual_seed(0)
    att = Attention(*(torch.randn(length, 8, generator=source) for _ in range(2)), is_causal=True)
    one = MassPass(att, of, 1)
    for _ in one:
        pass
    message = one.message()
    assert message["mass"]["dtype"] == "uint8"
    assert decode(message["columns"]["mass"]).shape == (51, 200)
    all_heads = HeadMasses(AttentionStack([att]), of, 2)
    all_heads.heads, all_heads._ready = [32] * 32, 32
    noise, known = np.random.default_rng(0), {name: np.zeros((1024, 200)) for name in segment_mass.PARTS}
    known["mass"][:] = noise.random((1024, 200))
    known["even"][:] = noise.random((1, 200))  # the same for all heads
    known["self"][:, -1], known["self_even"][:, -1] = noise.random((2, 1024))
    all_heads._known = known
    assert len(all_heads.message()["keys"]) == 12
    assert size_of(message) + size_of(all_heads.message()) < 256 * 1024
    values, _ = decode_cells(message["mass"])
    exact = one.matrix()["mass"]
    np.testing.assert_allclose(values[exact > 1e-3], exact[exact > 1e-3], rtol=0.03)
    for name, whole in one.matrix().items():  # of the asking segment, and of each one that is asked for
        np.testing.assert_array_equal(decode(message["asking_row"][name]), whole[-1:].astype(np.float32))
        np.testing.assert_array_equal(decode(one.row(3)[name]), whole[3:4].astype(np.float32))


def test_the_tokens_of_one_answer_are_bounded() -> None:
    of = many_segments()
    one = MassPass(Attention(torch.zeros(2995, 2), torch.zeros(2995, 2)), of, 1)
    with pytest.raises(ValueError, match="82 tokens were requested: ask for at most 81 at once"):
        segment_answers.columns(one, range(82), CostBudget())
    assert decode(segment_answers.columns(one, range(1000, 1081), CostBudget())["mass"]).shape == (81, 200)


def test_the_line_of_one_segment_has_a_number_for_each_token_or_the_largest_of_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = MassPass(attention(is_causal=True), wanted(), 1)
    steps = iter(one)
    early = segment_answers.line(one, 1, "mass", [])
    assert (early["known"], np.isnan(decode(early["values"])).all()) == (0.0, True)
    for _ in steps:
        pass
    aside = ["sink", "self"]
    line = segment_answers.line(one, 1, "lift", aside)
    weights, expected = one.att.block("weights").double().numpy(), []
    for q in range(12, 16):
        mass, even = weights[q, 1:5].sum() / weights[q, 1:q].sum(), 4 / (q - 1)
        expected.append(mass / even)
    np.testing.assert_allclose(decode(line["values"]), expected, **sums(4 * N))
    monkeypatch.setattr(segment_answers, "MAX_LINE", 2)
    folded = segment_answers.line(one, 1, "lift", aside)
    np.testing.assert_allclose(decode(folded["values"]), [max(expected[:2]), max(expected[2:])], **sums(4 * N))
    assert folded["every"] == 2


def test_strongest_keys_of_a_segment_and_strongest_cells_of_two() -> None:
    one = MassPass(attention(is_causal=True), wanted(), 1)
    for _ in one:
        pass
    weights = one.att.block("weights").numpy()
    found = segment_answers.keys(one, 14, 2, 3, CostBudget())
    order = np.argsort(-weights[14, 5:9])[:3] + 5
    assert decode(found["positions"]).tolist() == order.tolist()
    assert found["rest"]["count"] == 1
    block = segment_answers.block(one, 4, 1, 64, CostBudget())
    assert len(decode(block["values"])) == 16
    best = np.unravel_index(weights[12:, 1:5].argmax(), (4, 4))
    assert (decode(block["queries"])[0], decode(block["keys"])[0]) == (12 + best[0], 1 + best[1])
    np.testing.assert_allclose(block["mass"], by_hand(one.att, 0)["mass"][4, 1], **sums(N))
    with pytest.raises(ValueError, match="open a smaller segment"):
        segment_answers.block(one, 4, 1, 4, CostBudget(10))


def test_a_reading_is_a_share_of_what_is_not_set_aside() -> None:
    parts = {
        "mass": np.array([[0.5, 0.3, 0.2]]),
        "even": np.array([[0.25, 0.5, 0.25]]),
        "self": np.array([[0.0, 0.0, 0.1]]),
        "self_even": np.array([[0.0, 0.0, 0.05]]),
    }
    names, sizes = ["first token", "doc", "answer"], [1, 4, 2]
    mass, even, aside = read(parts, names, sizes, ["sink", "self"], "mass")
    np.testing.assert_allclose(mass, [[np.nan, 0.75, 0.25]])
    np.testing.assert_allclose(even, [[np.nan, 0.5 / 0.7, 0.2 / 0.7]])
    np.testing.assert_allclose(aside, [0.6])
    np.testing.assert_allclose(read(parts, names, sizes, [], "per_token")[0], [[0.5, 0.075, 0.1]])
    np.testing.assert_allclose(read(parts, names, sizes, [], "lift")[0], [[2, 0.6, 0.8]])
    assert np.isnan(read(parts, names, sizes, names, "mass")[0]).all()
