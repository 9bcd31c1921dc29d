"""The sentences that Python makes from the numbers of a head, on 500 random heads, against their plain meaning.

Those of findings are in test_sentences_of_findings.py, and those of *why* in tests/why.

What a sentence says is parsed. It is computed again in float64 with plain loops over rows, with none of the code that
makes it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import pytest
import torch

from attnwidget import Attention
from attnwidget._export.figure import legend, recall
from attnwidget._export.look.effects import bound_text
from attnwidget._messages.codec.decoding import BLOCKED, NUMBER, DecodedMatrix

HEADS = 500
Array = np.ndarray


class RandomHead(NamedTuple):
    """An attention of one head, and the same in float64: scores after mask and bias, and weights."""

    att: Attention
    masked: Array  # (Q, K), −∞ is blocked
    weights: Array  # (Q, K), without the sink
    sink: Array  # (Q,)
    tokens: list[str]


def made(seed: int) -> RandomHead:
    rng = np.random.default_rng(seed)
    Q = int(rng.integers(2, 13))
    K = Q if rng.random() < 0.6 else int(rng.integers(2, 13))
    spread = rng.choice([0.0, 1e-4, 0.02, 1.0, 4.0, 30.0])
    q, k = (rng.standard_normal((n, 4)).astype(np.float32) for n in (Q, K))
    k[0] *= rng.choice([1, 1, 20])
    scale = float(spread) / 2
    scores = np.float64(q) @ np.float64(k).T * scale
    if rng.random() < 0.2:
        scores[:, 0] = scores.max(1) + 12
        q, k, scale = None, None, 1.0
    allowed, keywords = _rules(rng, Q, K)
    softcap = float(rng.choice([2.0, 9.0])) if q is not None and rng.random() < 0.2 else None
    capped = scores if softcap is None else softcap * np.tanh(scores / softcap)
    sinks = torch.tensor([float(rng.choice([-2.0, 3.0]))]) if rng.random() < 0.2 else None
    if q is None or k is None:
        att = Attention.from_scores(torch.tensor(scores, dtype=torch.float32), sinks=sinks, **keywords)
    else:
        x, y = torch.tensor(q), torch.tensor(k)
        att = Attention(x, y, scale=scale, softcap=softcap, sinks=sinks, **keywords)
    bias = keywords.get("bias")
    added = np.zeros((Q, K), np.float32) if bias is None else bias.numpy()
    # −1e9 + a score is −1e9 in float32
    masked = np.where(allowed, capped if bias is None else np.float64(np.float32(capped) + added), -np.inf)
    weights, sink = _softmax(masked, None if sinks is None else float(sinks[0]))
    tokens = [str(rng.choice(["the", "bank", "[PAD]"])) for _ in range(K)]
    return RandomHead(att, masked, weights, sink, tokens)


def _rules(rng: np.random.Generator, Q: int, K: int) -> tuple[Array, dict]:
    rows, columns = np.arange(Q)[:, None], np.arange(K)
    kind = rng.choice(
        ["none", "causal", "padding", "random", "late", "leak", "rows", "all", "far", "is_causal", "last"]
    )
    if kind == "is_causal":
        keywords: dict = {"is_causal": True}
        if rng.random() < 0.4:
            keywords["window"] = 2
        near = rows - columns < 2 if "window" in keywords else True
        return (columns <= rows) & near, keywords
    if kind == "far":  # rows masked by a finite number only
        bias = np.where(rng.random((Q, 1)) < 0.4, -1e9, 0.0) * np.ones((1, K))
        return np.ones((Q, K), bool), {"bias": torch.tensor(bias, dtype=torch.float32)}
    allowed = {
        "none": np.ones((Q, K), bool),
        "all": np.ones((Q, K), bool),
        "causal": columns <= rows,
        "padding": (columns < max(1, K // 2)) & (rows >= 0),
        "random": rng.random((Q, K)) < 0.5,
        "late": columns > rows,
        "leak": (columns <= rows) | ((rows == 0) & (columns == K - 1)),
        "rows": (rows < max(1, Q // 2)) & (columns >= 0),
        "last": (columns >= K - max(1, K // 3)) & (rows >= 0),
    }[str(kind)]
    return allowed, {} if kind == "none" else {"mask": torch.tensor(allowed)}


def _softmax(masked: Array, sink: float | None) -> tuple[Array, Array]:
    weights, taken = np.zeros_like(masked), np.zeros(len(masked))
    for row, line in enumerate(masked):
        most = max(line.max(), -np.inf if sink is None else sink)
        if most == -np.inf:
            continue
        e = np.exp(line - most)
        own = 0.0 if sink is None else np.exp(sink - most)
        weights[row], taken[row] = e / (e.sum() + own), own / (e.sum() + own)
    return weights, taken


@pytest.fixture(scope="module")
def heads() -> list[RandomHead]:
    return [made(seed) for seed in range(HEADS)]


def number(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))


def rounded(text: str, value: float, slack: float = 1e-6) -> bool:
    """Return whether a number as text is a value, up to half of its last digit."""
    plain = text.replace(",", "").replace("−", "-")
    digits, _, exponent = plain.partition("e")
    last = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
    return abs(float(plain) - value) <= 0.5 * last + slack * max(1.0, abs(value))


# --- other texts ------------------------------------------------------------------------------------------------------


def test_the_steps_of_a_pair(heads: list[RandomHead]) -> None:
    for at, head in enumerate(heads):
        Q, K = head.masked.shape
        query, key = at % Q, at % K
        said = {
            line[:12].strip(): line[12:] for line in str(head.att.explain(query, key)).splitlines() if line[0] != " "
        }
        row = head.masked[query]
        for name, value in (
            ("masked", row[key]),
            ("weight", head.weights[query, key]),
            ("sink weight", head.sink[query]),
        ):
            if name in said:
                text = said[name].split()[-1]
                assert text == "-inf" if value == -np.inf else rounded(text, value, 2e-5)
        if "exp(masked" in said["weight"]:
            terms = [*row[row > -np.inf], *([float(said["sink"].split()[-1])] if "sink" in said else [])]
            found = re.search(r"exp\(masked − (\S+)\)", said["weight"])
            assert found
            if terms:
                most = max(terms)
                assert rounded(found[1], most + np.log(np.exp(np.array(terms) - most).sum()), 2e-5)


def test_what_a_cache_keeps(heads: list[RandomHead]) -> None:
    rng = np.random.default_rng(2)
    for head in heads:
        kept = rng.random(head.weights.shape[1]) < 0.6
        said = repr(head.att.keep(torch.tensor(kept)))
        found = re.fullmatch(r"Kept\(a mask: mean recall ([\d.e-]+) of ([\d,]+) rows that lose keys\)", said)
        assert found, said
        rows = np.flatnonzero(((head.masked > -np.inf) & ~kept).any(1))
        assert int(found[2]) == len(rows)
        whole = head.weights.sum(1) + head.sink  # the sink is always kept
        shares = (head.weights[:, kept].sum(1) + head.sink)[rows] / whole[rows]
        assert rounded(found[1], shares.mean() if len(rows) else 1.0, 1e-5)


def test_the_captions_of_figures(heads: list[RandomHead]) -> None:
    rng = np.random.default_rng(3)
    for head in heads:
        blocked = head.masked == -np.inf
        values, kinds = np.float32(head.weights), np.where(blocked, BLOCKED, NUMBER).astype(np.uint8)
        Q, K = values.shape
        matrix = DecodedMatrix(values, kinds, "weights", "max", Q, K, 1, 1, 0.0, 1.0, 1)
        low, high = sorted(rng.random(2) * values.max())
        texts = [text for _, text in legend.cell_kinds(matrix, "linear", (low, high), has_padding=False)]
        assert ("masked" in texts) == blocked.any()
        for sign, compare in (("above", np.greater), ("below", np.less)):
            found = [one for text in texts if (one := re.fullmatch(rf"{sign} (\S+): ([\d,]+) cells?", text))]
            outside = int((~blocked & compare(values, np.float32(low if sign == "below" else high))).sum())
            assert bool(found) == bool(outside)
            if found:
                end = number(found[0][1])
                assert (
                    int(found[0][2])
                    == (~blocked & compare(values, end * (1 + 1e-6 * (1 if sign == "above" else -1)))).sum()
                )
        shares = np.where((head.weights.sum(1) > 0), head.weights[:, : K // 2].sum(1), np.nan)
        words = recall._summary(shares, 1, 1.0)
        known = shares[~np.isnan(shares)]
        if not len(known):
            assert words == "every row is fully masked"
        else:
            found_ends = re.fullmatch(r"lowest (\S+), mean (\S+)", words)
            assert found_ends
            assert rounded(found_ends[1], known.min())
            assert rounded(found_ends[2], known.mean())
        losses = rng.standard_normal(5) * rng.choice([0.001, 0.1, 3, 150])
        bound = bound_text(losses.max())
        assert number(bound.lstrip("<>")) >= losses.max() - 1e-7
        assert number(bound.lstrip("<>")) <= losses.max() + (1 if abs(losses.max()) >= 99 else 0.011)
