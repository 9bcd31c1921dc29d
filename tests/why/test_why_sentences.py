"""What *why* says in words, on 500 random parts each, against its plain meaning; nothing here shares code with it."""

from __future__ import annotations

import functools
import math
import random
import re
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from attnwidget._analysis.why.contrasts import compared_with
from attnwidget._analysis.why.part_names import StreamPart
from attnwidget._export.figure.why import lines_of
from attnwidget.results import Composition, Why, WhyRow

TRIES = 500
NUMBER = r"[−-]?[\d.]+(?:e[−+-]?\d+)?"
SHARE = r"(over 99|under 1|\d+) %"
PHRASES = {  # what a sentence calls a part of each kind
    "token": "the token itself",
    "position": "the {}",
    "bias": "the {}",
    "parameter": "the {}",
    "head": "what head {} wrote there",
    "cross head": "what head {} wrote there",
    "MLP": "what {} wrote there",
    "attention": "what {} wrote there",
}
THAN = {
    "others": "the mean of the row's other keys",
    "mean": "the row's mean",
}


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def random_parts(source: random.Random, most: int = 14) -> tuple[StreamPart, ...]:
    kinds = [source.choice([*PHRASES][1:]) for _ in range(source.randint(1, most))]
    kinds[0] = source.choice([*PHRASES])  # one token at most: it has no name of its own
    return tuple(StreamPart(f"part{i}x", kind, f"m{i}") for i, kind in enumerate(kinds))


def random_values(source: random.Random, count: int) -> list[float]:
    """Numbers of one sign or both, that cancel, that are alike, that are tiny or huge, or all 0."""
    size = 10 ** source.uniform(-5, 3)
    values = [size * source.gauss(0.3, 1) for _ in range(count)]
    kind = source.randrange(7)
    if kind == 0:
        values = [abs(x) for x in values]
    elif kind == 1:
        values = [-abs(x) for x in values]
    elif kind == 2 and count > 1:  # they cancel, but for a little
        values[-1] = -sum(values[:-1]) + source.choice([0.0, 1e-3, -0.02]) * size
    elif kind == 3:
        values = [size] * count
    elif kind == 4:
        values = [source.choice([size, -size, 0.0]) for _ in range(count)]
    elif kind == 5:
        values = [size * 10 ** -source.uniform(0, 6) * source.choice([1, -1]) for _ in range(count)]
    return [0.0] * count if source.random() < 0.02 else values


def near(told: str, value: float) -> bool:
    """Whether a number is told to the digits that stand there, three at least or two where it has an exponent."""
    return abs(number(told) - value) <= max(0.06 * abs(value) if "e" in told else 0, 0.00051) + 1e-12 * abs(value)


def same(told: list[float], wanted: list[float], within: float) -> bool:
    """Whether numbers are alike; NaN is NaN."""
    return len(told) == len(wanted) and all(
        abs(a - b) <= within or (math.isnan(a) and math.isnan(b)) for a, b in zip(told, wanted, strict=True)
    )


def check_sentence(
    said: str,
    names: tuple[str, str],
    weight: float,
    parts: tuple[StreamPart, ...],
    values: list[float],
    than: str,
    scale: float = 0,
) -> str:
    """Hold a sentence to its plain meaning; return which form it has.

    Args:
        said: the sentence.
        names, weight: of the pair.
        parts, values: what each part adds to the score, or to its difference.
        than: what the score is compared with, in words; "" for nothing.
        scale: the size of the scores compared.
    """
    total, size = math.fsum(values), max(map(abs, values))
    verb = "looks at" if weight >= 0.01 else "hardly looks at" if weight > 0 else "does not look at"
    opening = f"{names[0]} {verb} {names[1]}: "
    assert said.startswith(opening)
    assert said.endswith(".")
    body = said[len(opening) : -1]
    at = {PHRASES[part.kind].format(part.label): value for part, value in zip(parts, values, strict=True)}
    named: list[float] = []
    whole = re.escape(than.removeprefix("that of "))
    shares = re.fullmatch(
        rf"{SHARE} of (its score|what sets it (above|below) {whole}) is ([^;]+)(?:; {SHARE} of it is ([^;]+))?", body
    )
    if shares is not None:
        first, of, side, one, second, other = shares.groups()
        assert (of == "its score") == (than == "")
        assert side in ((None,) if than == "" else ("above",) if total > 0 else ("below",))
        for text, name in ((first, one), (second, other)):
            if text is None:
                continue
            percent = 100 * at[name] / total
            assert percent > 0
            if text == "over 99":
                assert 99.4 < percent < 100
            elif text == "under 1":
                assert percent < 0.51
            else:
                assert abs(percent - float(text)) <= 0.501
                assert 0 < float(text) <= 100
                assert (float(text) == 100) <= (abs(percent - 100) < 1e-3)
            named.append(at[name])
        assert sum(named) / total <= 1 + 1e-5  # slices of a whole
        assert len(named) == 1 or abs(named[0]) >= abs(named[1])
    else:
        height, *clauses = body.split("; ")
        told = [one for clause in clauses for one in clause.split(", ")]
        level = f"its score is as high as {than}" if than else "its score is 0"
        if height == level:
            assert abs(total) <= 1.1e-6 * max(size, scale)
        elif than == "":
            found = re.fullmatch(rf"its score is ({NUMBER})", height)
            assert found is not None
            assert near(found[1], total)
        else:
            found = re.fullmatch(rf"its score is ({NUMBER}) (above|below) {re.escape(than)}", height)
            assert found is not None
            assert near(found[1], abs(total))
            assert (found[2] == "above") == (total > 0)
        added = 0.0
        for clause in told:
            found = re.fullmatch(rf"(.+) (adds|takes) ({NUMBER})( away)?", clause)
            assert found is not None
            assert (found[2] == "takes") == (found[4] is not None)
            value = number(found[3]) * (-1 if found[2] == "takes" else 1)
            added += value
            if found[1] != "the rest":
                assert near(found[3], abs(at[found[1]]))
                assert (value > 0) == (at[found[1]] > 0)
                named.append(at[found[1]])
        assert abs(added - total) <= 0.011 * size + 0.002 + 0.15 * max(size * (size < 2e-3), 0)
        assert bool(told) or size <= 1.1e-6 * scale or size == 0
    if named:
        assert abs(named[0]) >= size * (1 - 1e-12)  # no part is larger
    return "shares" if shares is not None else "sums"


def pairs() -> Iterator[tuple[Why, Tensor, float, str]]:
    source, made = random.Random(8), torch.Generator().manual_seed(8)
    for _ in range(TRIES):
        keys, queries = random_parts(source), random_parts(source, 10)
        values = random_values(source, len(keys))
        split = torch.rand(len(queries), len(keys), dtype=torch.float64, generator=made) + 0.1
        terms = split / split.sum(0) * torch.tensor(values, dtype=torch.float64)
        against = source.choice([None, "others", "mean", 3])
        words = source.choice([(), ("bank", "bank", "of")])[: 2 if against != 3 else 3]
        weight = source.choice([0.0, 10 ** source.uniform(-9, 0)])
        less = 0.0 if against is None else source.gauss(0, 4)
        score = float(terms.sum()) + 1e-9
        yield (
            Why("2", 1, 12, 2, against, queries, keys, terms, score, 1e-9, weight, words, less),
            terms,
            less,
            (
                ""
                if against is None
                else THAN[against]
                if isinstance(against, str)
                else "'of' (3)"
                if words
                else "position 3"
            ),
        )


def test_a_pair_is_explained_by_its_largest_parts() -> None:
    forms = {"shares": 0, "sums": 0}
    for found, terms, less, than in pairs():
        names = ("'bank' (12)", "'bank' (2)") if found.words else ("position 12", "position 2")
        than = f"that of {than}" if than and isinstance(found.against, int) else than
        scale = max(abs(less), abs(found.score + less)) if than else 0
        values = terms.sum(0).tolist()
        forms[check_sentence(found.sentence, names, found.weight, found.key_parts, values, than, scale)] += 1
    assert min(forms.values()) > 50


def test_the_printed_numbers_of_a_pair_are_of_what_the_lines_say() -> None:
    """The first line and that of the sum are equations; the lines between them add up to the sum, twice."""
    for found, terms, less, than in pairs():
        lines = str(found).split("\n")
        own = float(terms.sum()) + less
        if isinstance(found.against, int):
            than = f"the score of {than}"
        elif than:
            than += f" under {'their' if found.against == 'others' else 'its'} weights"
        given = (
            f"score ({NUMBER}) less ({NUMBER}), {re.escape(than)}: ([+-]?{NUMBER})"
            if than
            else f"score ([+-]?{NUMBER})"
        )
        first = re.fullmatch(rf"Head 2·1: .+ → .+, weight ({NUMBER}), {given}", lines[0])
        assert first is not None
        assert near(first[1], found.weight)
        assert (number(first[1]) == 0) == (found.weight == 0)
        last = re.fullmatch(rf" +([+-]?{NUMBER})  sum = (.+); not explained \(rounding\): \+1.0e-09", lines[-2])
        assert last is not None
        assert near(last[1], float(terms.sum()))
        if than:
            assert near(first[2], own)
            assert near(first[3], less)
            assert near(first[4], own - less)
            equation = re.fullmatch(rf"the score ({NUMBER}) less ({NUMBER}), {re.escape(than)}", last[2])
            assert equation is not None
            assert near(equation[1], own)
            assert near(equation[2], less)
        else:
            assert last[2] == "the model's score"
            assert near(first[2], own)
        start = {title: lines.index(f"  {title}") for title in ("parts of the key", "parts of the query")}
        tables = (
            lines[start["parts of the key"] + 1 : start["parts of the query"]],
            lines[start["parts of the query"] + 1 : -2],
        )
        for table, parts, sums in zip(
            tables, (found.key_parts, found.query_parts), (terms.sum(0), terms.sum(1)), strict=True
        ):
            told = [float(line.split()[0]) for line in table]
            assert same([sum(told)], [float(terms.sum())], 6e-5 * len(told))
            by_label = dict(zip([part.label for part in parts], sums.tolist(), strict=True))
            shown = [line.split(maxsplit=1)[1] for line in table if not line.endswith(" more")]
            assert same([by_label[label] for label in shown], told[: len(shown)], 6e-5)
            left = [abs(value) for label, value in by_label.items() if label not in shown]
            assert max(left, default=0) <= min(abs(by_label[label]) for label in shown) + 1e-12
            assert not left or table[-1].split(maxsplit=1)[1] == f"{len(left)} more"


@functools.cache
def rows() -> list[WhyRow]:
    """Rows with a key that takes almost all, masked keys, rows of one key and of equal weights."""
    source, made = random.Random(3), torch.Generator().manual_seed(3)
    found = []
    for _ in range(TRIES):
        parts, n = random_parts(source), source.randint(1, 9)
        terms = torch.tensor([random_values(source, n) for _ in parts], dtype=torch.float64)
        weights = (torch.randn(n, dtype=torch.float64, generator=made) * source.choice([0, 1, 8])).softmax(0)
        if source.random() < 0.3:
            weights[source.randrange(n)] = 0
        if source.random() < 0.3 and n > 1:
            weights = weights * 1e-9 / max(float(weights[1:].sum()), 1e-30)
            weights[0] = 1 - 1e-9
        found.append(WhyRow("2", 1, 12, parts, terms, terms.sum(0), weights, 1e-9))
    return found


def plain_zero(values: list[float], weights: list[float], against: int | str | None, key: int) -> float:
    """The score of another key, the mean of all, or that of the others, term by term."""
    if against is None:
        return 0.0
    if isinstance(against, int):
        return values[against]
    among = [i for i in range(len(values)) if against == "mean" or i != key]
    total = math.fsum(weights[i] for i in among)
    return math.fsum(values[i] * weights[i] for i in among) / total if total else math.nan


def test_a_row_is_compared_with_another_key_its_mean_or_the_other_keys_of_each() -> None:
    for row in rows():
        n, weights = len(row.scores), row.weights.tolist()
        if not any(weights):
            with pytest.raises(ValueError, match="gives no key a weight"):
                row.compared("others")
            continue
        scores, terms = row.scores.tolist(), row.terms.tolist()
        within = 1e-9 * (float(row.terms.abs().sum(0).max()) + 1e-300)
        for against in ("others", "mean", n - 1):
            found = row.compared(against)
            assert found.subtracted is not None
            less = [plain_zero(scores, weights, against, key) for key in range(n)]
            assert same(found.subtracted.tolist(), less, within)
            assert same(found.scores.tolist(), [own - zero for own, zero in zip(scores, less, strict=True)], within)
            for own, told in zip(terms, found.terms.tolist(), strict=True):
                wanted = [own[key] - plain_zero(own, weights, against, key) for key in range(n)]
                assert same(told, wanted, within)


def test_a_printed_row_names_keys_by_weight_with_their_sums_and_largest_parts() -> None:
    for number_of, row in enumerate(rows()):
        against = [None, "others", "mean", len(row.scores) - 1][number_of % 4]
        if isinstance(against, str) and not bool(row.weights.any()):
            continue
        found = row.compared(against)
        first, _, *lines, last = str(found).split("\n")
        n = len(row.scores)
        what = {
            None: "score",
            "others": "score less the mean of the row's other keys under their weights",
            "mean": "score less the row's mean under its weights",
        }.get(against, f"score less the score of position {against}")
        assert first == f"Head 2·1: position 12 → {n} keys. Each key's parts sum to its {what}."
        assert last.startswith("  not explained (rounding): at most 1.0e-09. Held")
        assert lines[8:] == ([f"  {n - 8} more keys"] if n > 8 else [])
        weights = row.weights.tolist()
        for key, weight, total, parts in (line.split(maxsplit=3) for line in lines[:8]):
            values = found.terms[:, int(key)].tolist()
            assert near(weight, weights[int(key)])
            assert (number(weight) == 0) == (weights[int(key)] == 0)
            if math.isnan(sum(values)):
                assert total.strip("+-") == "nan"
                continue
            assert near(total, math.fsum(values))
            by_label = dict(zip([part.label for part in row.parts], values, strict=True))
            told = [one.split(maxsplit=1) for one in parts.split(", ")]
            assert same([by_label[label] for _, label in told], [float(x) for x, _ in told], 6e-5)
            assert abs(by_label[told[0][1]]) == max(map(abs, values))
        shown = [int(line.split()[0]) for line in lines[:8]]
        assert max((weights[i] for i in range(n) if i not in shown), default=0) <= min(weights[i] for i in shown)


def test_a_figure_says_what_its_bars_sum_to() -> None:
    forms = set()
    for row in rows():
        weights, key = row.weights.tolist(), len(row.scores) // 2
        scores, terms = row.scores.tolist(), row.terms.tolist()
        said, sums = lines_of(row, key, ("she", "bank (4)"))
        others = any(weight for i, weight in enumerate(weights) if i != key)
        against = "others" if others else None
        values = [own[key] - plain_zero(own, weights, against, key) for own in terms]
        names = "she", "bank (4)"
        scale = max(abs(scores[key]), abs(plain_zero(scores, weights, "others", key))) if others else 0
        than = THAN["others"] if others else ""
        forms.add(check_sentence(said, names, weights[key], row.parts, values, than, scale))
        equation = f"the score ({NUMBER}) less ({NUMBER}), the mean of the row's other keys under their weights"
        sum_of = re.fullmatch(f"sum ({NUMBER}) = {equation}" if others else f"sum ({NUMBER}) = the model's score", sums)
        assert sum_of is not None
        less = plain_zero(scores, weights, against, key)
        for text, value in zip(sum_of.groups(), (scores[key] - less, scores[key], less), strict=False):
            scale = max(abs(scores[key]), abs(less))
            assert near(text, value) or abs(number(text) - value) < 1e-9 * scale or abs(value) >= 1e5
    assert forms == {"shares", "sums"}


def test_a_printed_composition_names_the_largest_shares_and_what_they_are_of() -> None:
    source, made = random.Random(2), torch.Generator().manual_seed(2)
    for seed in range(TRIES):
        parts = random_parts(source, 5)
        heads = tuple((layer, head) for layer in range(source.randint(1, 2)) for head in range(source.randint(1, 2)))
        shares = torch.randn(len(heads), 3, len(parts), dtype=torch.float64, generator=made)
        shares = shares / shares.sum(-1, keepdim=True)
        found = Composition(parts, heads, shares, shares, ("0", "1", "2"), seed % 3 + 1)
        lines = str(found).split("\n")
        assert lines[0].startswith(f"What {len(heads)} heads read, over {found.queries} quer")
        assert (
            "the score by which a head prefers the keys that it looks at over the average of its allowed keys"
            in " ".join(lines[1:3]).replace("  ", " ")
        )
        told = []
        for line in lines[3:11]:
            if "% of the" not in line:
                break
            match = re.fullmatch(r" *(-?\d+)% of the (query|key|value) side of head (\d)·(\d) is (\S+)", line)
            assert match is not None
            place = heads.index((int(match[3]), int(match[4]))), ("query", "key", "value").index(match[2])
            share = float(shares[(*place, [part.label for part in parts].index(match[5]))])
            assert abs(100 * share - float(match[1])) <= 0.501
            told.append(abs(share))
        assert told == sorted(told, reverse=True)
        assert told[0] == float(shares.abs().max())
        assert len(told) == min(8, shares.numel())


def test_a_weight_of_one_has_the_mean_of_the_others_to_the_last_digits() -> None:
    """1 − weight is 1e-9, or rounds to 0: the difference of two means would have no digit left."""
    for rest in (1e-9, 1e-17, 1e-40):
        weights = torch.tensor([1.0, rest, 3 * rest], dtype=torch.float64)
        found = compared_with(torch.tensor([5.0, 1.0, 2.0], dtype=torch.float64), weights, "others")
        assert found.tolist() == pytest.approx([1.75, 5.0, 5.0], rel=1e-8)
