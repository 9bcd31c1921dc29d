"""The sentences of *why* are those of the front-end: `reasons.json` and js/tests/contract/reasons.test.ts.

`reasons.json` is made from here, `ATTNWIDGET_CONTRACT=write pytest tests/contract`.
"""

from __future__ import annotations

import json
import os
import random
from functools import partial
from pathlib import Path
from typing import Any

import torch

from attnwidget._analysis.why.part_names import StreamPart
from attnwidget._analysis.why.sentences import because, leading_parts, sum_of
from attnwidget._export.look.numbers import list_number

PATH = Path(__file__).parent / "reasons.json"
KINDS = ("token", "position", "type", "input", "bias", "parameter", "head", "cross head", "MLP", "attention", "feature")


def made() -> dict[str, Any]:
    """Sums of one part and of several, with one sign and with both, that cancel, and of nothing."""
    source, cases = random.Random(4), []
    number = partial(list_number, stage="scores")
    for place in range(60):
        count = 1 + place % 5
        values = [round(source.gauss(0.5, 2) * 64) / 64 * (8 if place % 9 == 0 else 1) for _ in range(count)]
        if place % 4 == 1:
            values = [abs(value) for value in values]
        if place % 10 == 7:
            values[-1] = -sum(values[:-1])
        terms = torch.tensor(values, dtype=torch.float64)
        parts = [StreamPart(f"p{i}", KINDS[(place + i) % len(KINDS)], "m") for i in range(count)]
        against = (None, "others", "mean", 5)[place // 2 % 4]
        weight = (0.5, 0.003, 0.0)[place % 3]
        less = 0.0 if against is None else source.randrange(-64, 64) / 16
        total = float(terms.sum())
        scale = 0.0 if against is None else max(abs(total + less), abs(less))
        named = ("of 3", "bank 4")
        said = because(named, weight, parts, terms, against, other="river 5", scale=scale, number=number)
        cases.append(
            {
                "parts": [[part.label, part.kind] for part in parts],
                "total": total,
                "leading": leading_parts(terms),
                "against": "none" if against is None else against,
                "scale": scale,
                "weight": weight,
                "less": less,
                "sentence": said,
                "sum": sum_of(total + less, less, against, "river 5", number),
            }
        )
    return json.loads(json.dumps({"cases": cases}))  # type: ignore[no-any-return]


if os.environ.get("ATTNWIDGET_CONTRACT") == "write":
    lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in made()["cases"])
    PATH.write_text(f'{{"cases": [\n{lines}\n]}}\n', encoding="utf-8")
GOLDEN: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))


def test_the_sentences_are_those_of_the_file() -> None:
    assert made() == GOLDEN
