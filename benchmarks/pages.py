"""Writes docs/accuracy.md and docs/performance.md from the figures that `make bench` has kept.

    python benchmarks/pages.py                     # from the latest result in results/
    python benchmarks/pages.py results/NAME.json   # from another machine's

Each page names processor, threads, versions, commit and date. A script that a page needs and that was never run on this
machine is an error.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from figures import Figure
from kept import FOLDER, Result, latest, said

DOCS = Path(__file__).parent.parent / "docs"
Kept = dict[str, Any]

# Of docs/performance.md: what one does, the script, its figure, and the words around its number.
EXPECTED = (
    ("open a widget of 4,096 tokens", "growth", ("opening a widget, tokens", "4096"), "{} in the kernel"),
    ("open one of 65,536 tokens", "growth", ("opening a widget, tokens", "65536"), "{} until the first picture"),
    ("choose another head of 65,536 tokens", "growth", ("another head, tokens", "65536"), "{}"),
    ("see the exact picture of 16,384 tokens", "growth", ("an exact overview, tokens", "16384"), "{}"),
    ("point at a cell", "acts", "hover", "{} until its number is there"),
    ("choose another head of 2,048 tokens", "acts", "another head", "{} until its picture is drawn"),
    ("choose another layer of 2,048 tokens", "acts", "another layer", "{}"),
    ("choose another color scale", "acts", "color scale", "{}"),
    ("open the view of all heads", "acts", "view: heads", "{}"),
    (
        "run a cell that shows 131,072 tokens",
        "browser",
        "131,072 tokens, cell to pixels",
        "{} until the picture is there",
    ),
    (
        "zoom in 131,072 tokens",
        "browser",
        "131,072 tokens, cold tile, median",
        "{} for a new tile",
    ),
    ("pool 16,384 tokens exactly", "engine", "16,384 tokens, max ÷ sdpa", "{} torch's own attention"),
    ("the same, causal", "engine", "16,384 tokens, causal ÷ sdpa causal", "{} torch's own causal attention"),
    ("capture GPT-2 on 512 tokens", "capture", "forward, 512 tokens", "{} the forward pass"),
    ("capture it on 2,048 tokens", "capture", "2,048 tokens, time over eager", "{} the eager model with all weights"),
    ("keep what was captured", "capture", "2,048 tokens, kept over eager", "{} the bytes of all weights"),
    (
        "record where the residual stream comes from",
        "why",
        "recording, 8 × 128 tokens, with sources ÷ without",
        "{} a capture",
    ),
    (
        "make an atlas, texts of 128 tokens",
        "atlas",
        "128 tokens, 12 heads, over forward",
        "{} the forward passes",
    ),
    ("send a widget of 12 heads × 2,048 tokens", "wire", "random, opening", "{}"),
    ("open a page of 128 tokens", "peers", "128 tokens, opens", "{}, Python included"),
    ("the same with BertViz", "peers", "128 tokens, bertviz head_view ÷ attnwidget", "{} as long"),
    ("the same with Treescope", "peers", "128 tokens, treescope ÷ attnwidget", "{} as long"),
)

PERFORMANCE = """# Performance

What to expect on two cores without a GPU. {machine}. Times are medians.

| you do | it takes | script |
|---|---|---|
{expected}

Ratios (×) compare runs that took turns in one process, so they carry over to other machines better than times do.
`make bench` measures all of it on yours, in half an hour. [What each figure means](../benchmarks/README.md).

## All figures

"Wanted" is the budget that a figure was given before it was measured. A figure that misses its budget is marked.

{figures}
"""

ACCURACY = """# Accuracy

attnwidget computes in float32, also from half types, and in float64 from float64. It is as close to the exact result as
torch is, and far closer in half types, which torch rounds at each step. {machine}.

| type | weights | torch's | output | torch's |
|---|--:|--:|--:|--:|
{worst}

These are the worst of all cases below: the largest difference from float64 in a row, divided by the largest number of
that row.

## What is compared

One head of size 64. q and k are normal. q is multiplied so that the scaled scores have the standard deviation σ.
128 queries spread evenly over the length are compared. "padding" blocks the last quarter of the keys. The reference is
the formula in float64, on the numbers that both were given after rounding to the type.

- **weights**: `Attention.block("weights")`, beside `torch.softmax(q @ k.mT / √D, -1)` in the type of the tensors. In
  float64 the latter is the reference.
- **output**: `Attention.output()`, beside `F.scaled_dot_product_attention`. torch rounds it to the type of the tensors.
  attnwidget rounds it to float32 for half types.

`python benchmarks/accuracy.py` measures it on your machine.

{cases}

## The check of captured outputs

A capture computes some rows of each recorded output again and compares them. A difference means that the model did
something that its arguments do not show. {checked}.

| type | honest calls | false alarms | hidden steps | found |
|---|--:|--:|--:|--:|
{alarms}

An honest call runs one of torch's fused kernels or code written out in one of four orders, with 5 to 600 tokens, and
scaled scores with a standard deviation of 0.3 to 4,000. A hidden step is a mask after the softmax, a window, a clamp, a
temperature of 1.1, a bias of 0.03 a position, a softcap, a sink, or a hidden first token. It counts if it moves a
weight of a checked row by 0.05 or more. Of the steps that only moved rows which were not drawn, {others} were found.

In half types rows are also looked at together, because a small change of all of them is hidden by rounding in each.
Most steps that are missed are a bias that is smaller than the rounding of the scores: in bfloat16 a score of 1,000 is
rounded by up to 2. `python benchmarks/verification.py` measures it, with 10,000 honest calls.
"""
TYPES = {"tf32": "float32, products in TF32"}


def made_on(result: Result, *scripts: str) -> str:
    """Return the sentence that names the machine and when its figures were made."""
    about, kept = result["machine"], [result["scripts"][name] for name in scripts or result["scripts"]]
    versions = {f"Python {one['versions']['python']}, torch {one['versions']['torch']}" for one in kept}
    days = sorted({one["date"][:10] for one in kept})
    when = [f"{', '.join(sorted({one['commit'] for one in kept if one['date'][:10] == day}))} of {day}" for day in days]
    machine = f"{about['processor']}, {about['cores']} cores, {about['threads']} threads, {about['memory']} GiB"
    return f"Measured on {machine}; {'; '.join(sorted(versions))}; commit {', '.join(when)}"


def performance(result: Result) -> str:
    """Return docs/performance.md."""
    scripts = result["scripts"]
    expected = [f"| {act} | {words.format(number(scripts, script, name))} | `{script}.py` |"
                for act, script, name, words in EXPECTED]  # fmt: skip
    parts = []
    for name, kept in scripts.items():
        if name in ("accuracy", "verification"):
            continue
        rows = [row(Figure(**{**one, "quartiles": None})) for one in kept["figures"]]
        head = [f"<details><summary>{name}.py</summary>", "", "| | found | wanted | |", "|---|--:|--:|---|"]
        parts.append("\n".join([*head, *rows, "", "</details>"]))
    return PERFORMANCE.format(machine=made_on(result), expected="\n".join(expected), figures="\n\n".join(parts))


def number(scripts: dict[str, Kept], script: str, name: str | tuple[str, str]) -> str:
    """Return one figure, to be read: of the figures by its name, of the details by two keys.

    Raises:
        SystemExit: it was not measured.
    """
    kept = scripts.get(script, {"figures": [], "details": {}})
    if isinstance(name, tuple):
        one = kept["details"].get(name[0], {}).get(name[1])
        found = one and (one["seconds"], "s")
    else:
        found = next(((one["value"], one["unit"]) for one in kept["figures"] if one["name"] == name), None)
    if not found:
        raise SystemExit(f"{script}.py has not measured {name}: run python benchmarks/all.py {script}")
    value, unit = found
    return f"{value:.2f} ×" if unit == "×" else said(value, unit)


def row(figure: Figure) -> str:
    """Return the line of one figure."""
    wanted = (
        "" if figure.wanted is None else f"{'≤' if figure.lower_is_better else '≥'} {said(figure.wanted, figure.unit)}"
    )
    missed = "**missed**" if figure.met is False else ""
    return f"| {figure.name} | {said(figure.value, figure.unit)} | {wanted} | {missed} |"


def accuracy(result: Result) -> str:
    """Return docs/accuracy.md."""
    cases, checks = (result["scripts"][name]["details"] for name in ("accuracy", "verification"))
    types = list(dict.fromkeys(case["dtype"] for case in cases))
    worst = [line(name, *(max(case.get(column, -1.0) for case in cases if case["dtype"] == name) for column in COLUMNS))
             for name in types]  # fmt: skip
    sections = []
    for name in types:
        rows = [
            line(
                f"{one['spread']:g} | {one['length']:,} | {one['mask']}", *(one.get(column, -1.0) for column in COLUMNS)
            )
            for one in cases
            if one["dtype"] == name
        ]
        sections.append("\n".join([f"### {name}", "", HEAD, "|--:|--:|---|--:|--:|--:|--:|", *rows]))
    alarms = [alarm(TYPES.get(one["dtype"], one["dtype"]), one) for one in checks]
    total = {key: sum(one[key] for one in checks) for key in checks[0] if key != "dtype"}
    return ACCURACY.format(
        machine=made_on(result, "accuracy"),
        checked=made_on(result, "verification"),
        worst="\n".join(worst),
        cases="\n\n".join(sections),
        alarms="\n".join([*alarms, alarm("all", total)]),
        others=f"{total['found in other rows']} of {total['in other rows']}",
    )


COLUMNS = ("weights", "weights of torch", "output", "output of torch")
HEAD = "| σ | length | mask | weights | torch's | output | torch's |"


def line(first: str, *errors: float) -> str:
    """Return a line of errors; one below 0 was not measured."""
    return " | ".join([f"| {first}", *("–" if one < 0 else f"{one:.1e}" for one in errors)]) + " |"


def alarm(name: str, one: dict[str, int]) -> str:
    """Return the line of one type in the table of the check."""
    share = 100 * one["found"] / max(1, one["hidden"])
    return f"| {name} | {one['calls']:,} | {one['false alarms']} | {one['hidden']:,} | {share:.1f} % |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", nargs="?", type=Path, help="the latest in results/, if none is named")
    asked = parser.parse_args()
    result = json.loads(asked.result.read_text(encoding="utf-8")) if asked.result else latest(FOLDER)
    for name, page in (("accuracy", accuracy), ("performance", performance)):
        (DOCS / f"{name}.md").write_text(page(result), encoding="utf-8")


if __name__ == "__main__":
    main()
