"""Every sentence of a finding, tried on 500 random heads against its plain meaning, in dense float64 numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from attnwidget import Attention

Matrix = NDArray[Any]
LOWEST = float(np.finfo(np.float32).min)
NEAR = 1e-5  # a float32 weight may be on the other side of a threshold


class Naive(NamedTuple):
    """A head as dense float64 numbers: what was given, which cells are allowed, and the weights."""

    given: dict[str, Any]
    own: dict[str, Matrix]  # q, k and v
    scaled: Matrix
    masked: Matrix
    allowed: Matrix
    weights: Matrix
    sink: Matrix  # the learned sink's weights
    others: list[Matrix]  # the weights of the other heads

    @property
    def added(self) -> list[float]:
        """The different numbers of the float mask or the bias."""
        found = self.given.get("mask") if self.given.get("bias") is None else self.given["bias"]
        return sorted({float(x) for x in np.unique(np.asarray(found, dtype=float))})


def naive(given: dict[str, Any], q: Matrix, k: Matrix, v: Matrix | None, sink: float | None = None) -> Naive:
    """Compute a head as a textbook does; `sink` is the logit of one more column, without a key."""
    scaled = q @ k.T * given.get("scale", q.shape[1] ** -0.5)
    rows, columns = np.indices(scaled.shape)
    allowed, added = np.ones(scaled.shape, bool), np.zeros(scaled.shape)
    if given.get("is_causal"):
        allowed &= columns <= rows
    if given.get("window"):
        allowed &= abs(columns - rows) < given["window"]
    for numbers in (given.get("mask"), given.get("bias")):
        if numbers is None:
            continue
        numbers = np.broadcast_to(np.asarray(numbers), scaled.shape)
        if numbers.dtype.kind == "f":
            added = added + numbers
            allowed &= ~(numbers <= LOWEST)
        else:
            allowed &= (numbers != 0) != (given.get("mask_means") == "hide")
    with np.errstate(all="ignore"):
        masked = np.where(allowed, (scaled + added).astype(np.float32).astype(float), -np.inf)  # −1e9 rounds the scores
        most = np.where(allowed.any(1), masked.max(1), 0)
        exponentials, own = np.exp(masked - most[:, None]), np.zeros(len(most)) if sink is None else np.exp(sink - most)
        total = np.minimum(exponentials.sum(1) + own, 1e300)
        weights = np.where(allowed.any(1)[:, None], exponentials / total[:, None], 0.0)
        taken = np.nan_to_num(own / total) if sink is None else np.where(allowed.any(1), own / total, 1.0)
    weights = np.where(np.isfinite(masked).any(1)[:, None] | allowed.any(1)[:, None], weights, 0.0)
    given_own = {"q": q, "k": k} | ({} if v is None else {"v": v})
    return Naive(given, given_own, scaled, masked, allowed, weights, taken, [])


def number(text: str) -> float:
    return float(text.replace("−", "-").replace(",", ""))


def lies_between(count: str, surely: Matrix, perhaps: Matrix) -> bool:
    return bool(surely.sum() <= number(count) <= perhaps.sum())


def after(size: tuple[int, ...]) -> Matrix:
    rows, columns = np.indices(size)
    return np.asarray(columns > rows)


def several(head: Naive) -> Matrix:
    return np.asarray(head.allowed.sum(1) > 1)


def is_saturated(head: Naive, count: str, total: str) -> bool:
    peak = head.weights.max(1)
    rows = several(head)
    return number(total) == rows.sum() and lies_between(
        count, rows & (peak >= 0.99 + NEAR), rows & (peak >= 0.99 - NEAR)
    )


def is_even(head: Naive, count: str, total: str) -> bool:
    rows = several(head)
    over = head.weights.max(1) * head.allowed.sum(1) / np.maximum(head.weights.sum(1), 1e-300)
    some = rows & (head.weights.sum(1) > 0)  # a learned sink may take all
    return number(total) == rows.sum() and lies_between(
        count, some & (over < 1.001 - NEAR), some & (over < 1.001 + NEAR)
    )


def is_sink(head: Naive, share: str, count: str) -> bool:
    Q = len(head.weights)
    looked = [row for row in sorted({Q // 3, 2 * Q // 3, Q - 1}) if several(head)[row]]
    mean = 100 * float(np.mean([head.weights[row, 0] / (head.weights[row].sum() + head.sink[row]) for row in looked]))
    return len(looked) == number(count) and (
        mean > 99 - NEAR if share.startswith("over") else abs(mean - number(share)) < 0.51
    )


def is_padding(head: Naive, count: str, share: str, other: str | None) -> bool:
    k, v = head.own["k"], head.own["v"]
    same = [key for key in range(len(k)) if (k[key:] == k[-1]).all() and (v[key:] == v[-1]).all()]
    open_pads = [key for key in same if head.allowed[:, key].any()]
    real = [row for row in range(len(head.weights)) if head.weights.shape[0] != len(k) or row not in same]
    part = head.weights[real][:, open_pads].sum() / (head.weights[real].sum() + head.sink[real].sum())
    rounded = 0.0 <= part < 0.0006 if share.startswith("less") else abs(part - number(share) / 100) < 0.0006
    return len(open_pads) == number(count) and rounded and (other is not None) == (len(real) < len(head.weights))


def have_only(head: Naive, *texts: str) -> bool:
    return len(head.added) == len(texts) and all(
        abs(x - number(text)) <= 1e-2 * abs(x) for x, text in zip(head.added, texts, strict=True)
    )


def of_one_row(head: Naive) -> bool:
    found = head.given.get("mask") if head.given.get("bias") is None else head.given["bias"]
    numbers = np.broadcast_to(np.asarray(found), head.scaled.shape)
    return bool((numbers == numbers[:, :1]).all())


def columns_sum(head: Naive) -> bool:
    return bool((abs(head.weights.sum(0) - 1) < 2e-3).all() and not (abs(head.weights.sum(1) - 1) < 1e-3).all())


def alike(head: Naive, which: str, count: str) -> bool:
    Q = len(head.weights)
    rows = sorted({Q // 3, 2 * Q // 3, Q - 1})
    found = [
        str(at + 1) for at, other in enumerate(head.others) if np.allclose(other[rows], head.weights[rows], atol=1e-5)
    ]
    return which.split(", ") == found and int(count) == len(rows)


N = r"([\d,]+)"
X = r"([−\d.e+∞]+)"
MEANINGS: dict[str, Callable[..., bool]] = {
    rf"a (?:mask|bias) of only {X} and {X} was added to the scores; nothing is hidden by it": have_only,
    rf"a (?:mask|bias) of only {X} and {X} was added to the scores; numbers above 0 raise scores, and hide nothing": (
        lambda head, zero, more: have_only(head, zero, more) and number(zero) == 0 < number(more)
    ),
    rf"a (?:mask|bias) of only {X} was added to the scores: each key gets the same number, so nothing is hidden by "
    r"it": have_only,
    r"a (?:mask|bias) of 0 and 1 beside blocked cells was added to the scores; 0 and 1 hide nothing": (
        lambda head: {x for x in head.added if x > LOWEST} == {0, 1} and head.added[0] <= LOWEST
    ),
    r"a (?:mask|bias) of one number a query was added to the scores: all keys of a query get the same number, so "
    r"nothing is hidden by it": of_one_row,
    rf"the mask or bias makes masked scores of {N} quer(?:y|ies) NaN, and so are the weights NaN": (
        lambda head, count: np.isnan(head.masked).any(1).sum() == number(count)
    ),
    rf"the mask or bias makes masked scores of {N} quer(?:y|ies) \+∞, and so are the weights NaN": (
        lambda head, count: (head.masked == np.inf).any(1).sum() == number(count)
    ),
    rf"{N} quer(?:y has|ies have) every key masked by a finite number below −?-?10,000: the softmax spreads .*": (
        lambda head, count: (
            (head.allowed.any(1) & (np.where(head.allowed, head.masked, -np.inf).max(1) <= -1e4)).sum() == number(count)
        )
    ),
    r"queries may attend only to keys after them, none to itself or to what came before": (
        lambda head: head.allowed.any() and not (head.allowed & ~after(head.allowed.shape)).any()
    ),
    r"queries may attend only to themselves and to keys after them, none to what came before": (
        lambda head: not (head.allowed & after(head.allowed.T.shape).T).any() and head.allowed.diagonal().any()
    ),
    rf"all queries may attend to the last {N} of {N} keys and to no earlier ones": (
        lambda head, last, keys: (
            head.allowed.shape[1] == number(keys)
            and head.allowed[:, -int(last) :].all()
            and not head.allowed[:, : -int(last)].any()
        )
    ),
    rf"{N} quer(?:y|ies) may attend to no key, and all others to every key": (
        lambda head, count: (
            (~head.allowed.any(1)).sum() == number(count) == len(head.allowed) - head.allowed.all(1).sum()
        )
    ),
    rf"{N} quer(?:y|ies) may attend to no key: weights and output are 0 here and in torch's SDPA\. .*": (
        lambda head, count: (~head.allowed.any(1)).sum() == number(count) and not head.sink.any()
    ),
    rf"{N} quer(?:y|ies) may attend to no key: the learned sink has all the weight, and the output is 0": (
        lambda head, count: (
            (~head.allowed.any(1)).sum() == number(count) and (head.sink[~head.allowed.any(1)] == 1).all()
        )
    ),
    r"no query may attend to any key: weights and output are 0 here and in torch's SDPA\. .*": (
        lambda head: not head.allowed.any()
    ),
    rf"a mask was given, but each of {N} queries may attend to all {N} keys": (
        lambda head, queries, keys: head.allowed.all() and head.allowed.shape == (number(queries), number(keys))
    ),
    rf"{N} of {N} cells after the diagonal are allowed, the others blocked: nearly causal": (
        lambda head, some, every: (
            (head.allowed & after(head.allowed.shape)).sum() == number(some)
            and after(head.allowed.shape).sum() == number(every)
        )
    ),
    rf"is_causal counts from the upper left, as torch does: no query sees a key after the first {N}": (
        lambda head, first: not head.allowed[:, int(first) :].any()
    ),
    rf"is_causal counts from the upper left: it hides no key from query {N} and later ones": (
        lambda head, query: head.given["is_causal"] and int(query) == head.allowed.shape[1] - 1
    ),
    rf"{N} keys? of padding \(the last keys and values are all the same\) may be attended to, with "
    r"((?:less than )?[\d.]+)% of the weight of the (other )?queries": is_padding,
    rf"{N} of the {N} queries with several keys give one key at least 99 % of their weight.*": is_saturated,
    rf"{N} of the {N} queries with several keys weight their keys evenly: none has over 1\.001 × the mean": is_even,
    rf"the first key has (over 99|\d+) % of the weight of the {N} queries looked at that have several keys": is_sink,
    rf"heads? ([\d, ]+) ha(?:s|ve) the same weights in the {N} queries that were compared": alike,
    rf"([qkv]) holds NaN at {N} (?:quer(?:y|ies)|keys?)": (
        lambda head, name, count: np.isnan(head.own[name]).any(1).sum() == number(count)
    ),
    r"all columns sum to 1, and not all rows do": columns_sum,
    rf"the row of query {N} sums to {X}": (
        lambda head, row, total: abs(head.weights[int(row)].sum() - number(total)) < 1e-3 and number(total) > 0
    ),
    rf"the weights of {N} quer(?:y|ies) are NaN": (
        lambda head, count: np.isnan(head.weights).any(1).sum() == number(count)
    ),
}


def lower(Q: int, K: int, diagonal: int = 0) -> Matrix:
    return np.tril(np.ones((Q, K)), diagonal)


MASKS: list[Callable[[Random, int, int], dict[str, Any]]] = [
    lambda r, Q, K: {},
    lambda r, Q, K: {"is_causal": True},
    lambda r, Q, K: {"is_causal": True, "window": r.randint(1, 4)},
    lambda r, Q, K: {"mask": lower(Q, K)},
    lambda r, Q, K: {"mask": lower(Q, K).astype(np.float32) - 1},
    lambda r, Q, K: {"mask": (lower(Q, K) - 1) * r.choice([5, 1e2, 1e4, 1e9])},
    lambda r, Q, K: {"mask": (1 - lower(Q, K)) * r.choice([2, 1e4, 1e9])},
    lambda r, Q, K: {"mask": np.where(lower(Q, K) == 1, 0, -np.inf)},
    lambda r, Q, K: {"mask": np.where(lower(Q, K) == 1, np.nan, -np.inf)},
    lambda r, Q, K: {"mask": np.where(lower(Q, K) == 1, np.arange(K) < r.randint(1, K), -np.inf)},
    lambda r, Q, K: {"mask": np.where(lower(Q, K) == 1, 0, np.inf)},
    lambda r, Q, K: {"mask": np.full((Q, K), r.choice([0.0, 1.0, -3.0, -1e9]))},
    lambda r, Q, K: {"mask": np.full((Q, K), r.choice([True, False]))},
    lambda r, Q, K: {"mask": np.arange(Q)[:, None] * np.ones((Q, K)) / 7},
    lambda r, Q, K: {"mask": lower(Q, K, r.randint(-1, 1)) == r.choice([0, 1])},
    lambda r, Q, K: {"mask": lower(Q, K).T.copy() == 1 if Q == K else lower(Q, K) == 1, "is_causal": r.random() < 0.3},
    lambda r, Q, K: {
        "mask": (np.arange(K) < r.randint(1, K)) * np.ones((Q, 1), int),
        "mask_means": r.choice(["keep", "hide"]),
    },
    lambda r, Q, K: {"mask": (np.arange(Q) < r.randint(1, Q))[:, None] * np.ones((1, K)) == 1},
    lambda r, Q, K: {"mask": np.array([[r.random() < 0.9 for _ in range(K)] for _ in range(Q)])},
    lambda r, Q, K: {
        "mask": (lower(Q, K) == 1) | (np.array([[r.random() < 0.03 for _ in range(K)] for _ in range(Q)]))
    },
    lambda r, Q, K: {"bias": lower(Q, K)},
    lambda r, Q, K: {"bias": np.where(np.arange(Q)[:, None] == r.randrange(Q), -1e9, 0.0) * np.ones((Q, K))},
    lambda r, Q, K: {"bias": np.array([[r.gauss(0, 1) for _ in range(K)] for _ in range(Q)])},
]


def heads() -> Iterator[tuple[Attention, Naive]]:
    """Make 500 heads, each kind of mask with each kind of numbers by and by."""
    r = Random(0)
    numbers = np.random.default_rng(0)
    for at in range(500):
        Q = r.randint(2, 9)
        K = Q if r.random() < 0.7 else r.randint(2, 9)
        q, k, v = (numbers.standard_normal((2, n, 4)).astype(np.float32) for n in (Q, K, K))
        kind = at % 8
        if kind == 1:
            q *= 30
        elif kind == 2:
            q *= np.float32(1e-6)
        elif kind == 3:
            k[:, K // 2 :], v[:, K // 2 :] = k[:, -1:], v[:, -1:]
        elif kind == 4:
            q[1], k[1] = q[0], k[0]
        elif kind == 5:
            q[..., 0], k[:, 0, 0] = 9, 9
        elif kind == 6 and r.random() < 0.3:
            r.choice([q, k, v])[0, 0, 0] = np.nan
        given = MASKS[at % len(MASKS)](r, Q, K)
        if "mask" in given and given["mask"].dtype == np.float64:
            given["mask"] = given["mask"].astype(np.float32)
        sinks = np.float32([r.choice([-3, 0, 4]), 0]) if r.random() < 0.2 else None
        att = Attention(q, k, v, dims="hqd", sinks=sinks, **{"mask_dims": "qk"} | given if "mask" in given else given)
        logits = (None, None) if sinks is None else sinks.tolist()
        both = [naive(given, *(x[head].astype(np.float64) for x in (q, k, v)), logits[head]) for head in (0, 1)]
        yield att, both[0]._replace(others=[both[1].weights])
    for at in range(40):
        weights = numbers.random((6, 6)) ** 3
        weights /= weights.sum(at % 2, keepdims=True)
        if at % 4 == 1:
            weights[r.randrange(6)] *= (0, np.nan, 1.3)[at // 4 % 3]
        elif at % 4 == 3:
            weights[2], weights[4] = 0, weights[4] * 1.25
        att = Attention.from_weights(weights.astype(np.float32))
        empty = np.zeros((6, 6))
        yield att, Naive({}, {}, empty, empty, weights > 0, weights, np.zeros(6), [])


@pytest.mark.filterwarnings("ignore")
def test_each_sentence_means_what_it_says() -> None:
    said: dict[str, int] = dict.fromkeys(MEANINGS, 0)
    for att, head in heads():
        for finding in att.check():
            fitting = [(text, found) for text in MEANINGS if (found := re.fullmatch(text, finding.message))]
            assert len(fitting) == 1, finding
            text, found = fitting[0]
            assert MEANINGS[text](head, *found.groups()), (finding, head)
            said[text] += 1
    assert [text for text, times in said.items() if times == 0] == []
