"""Results that are kept, one file for each machine, and the table of a new result beside the one before it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figures import Figure

FOLDER = Path(__file__).parent / "results"
SAME = ("processor", "cores", "threads", "memory", "system")  # what makes a machine the same
EXACT = ("bytes", "")  # units of what is counted, not timed
NOISE = {True: 0.01, False: 0.25}  # by how much a figure without quartiles may stray: counted, timed
LEAST_NOISE = 0.05  # of figures with quartiles: those of three runs may be close by chance

Result = dict[str, Any]  # {"machine": …, "scripts": {name: {"commit", "date", "load", "versions", "figures"}}}


@dataclass(frozen=True)
class Row:
    """A figure beside that of the result before: `ratio` is now over before."""

    script: str
    name: str
    unit: str
    now: float | None
    before: float | None
    ratio: float | None
    mark: str
    wanted: str


def same_machine(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Tell whether two descriptions are of one machine; versions may differ."""
    return all(one.get(name) == other.get(name) for name in SAME)


def file_name(machine: dict[str, Any]) -> str:
    """Return the name of the file that keeps this machine's results."""
    said = f"{machine['processor']} {machine['cores']} cores {machine['threads']} threads {machine['memory']} GB"
    return re.sub(r"[^a-z0-9]+", "-", f"{said} {machine['system']}".lower()).strip("-") + ".json"


def previous(machine: dict[str, Any], folder: Path = FOLDER) -> tuple[Result | None, bool]:
    """Return what is kept of this machine, else the latest of another one; and whether it is of this one."""
    kept = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    for result in kept:
        if same_machine(result["machine"], machine):
            return result, True
    return max(kept, key=_date, default=None), False


def latest(folder: Path = FOLDER) -> Result:
    """Return the latest result of any machine."""
    return max((json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")), key=_date)


def _date(result: Result) -> str:
    return max((script["date"] for script in result["scripts"].values()), default="")


def keep(now: Result, folder: Path = FOLDER) -> Path:
    """Keep a result in its machine's file; scripts that were not run stay as they were, with their own date."""
    folder.mkdir(exist_ok=True)
    path = folder / file_name(now["machine"])
    before, same = previous(now["machine"], folder)
    scripts = {**(before["scripts"] if before and same else {}), **now["scripts"]}
    result = {"machine": now["machine"], "scripts": dict(sorted(scripts.items()))}
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def rows(now: Result, before: Result | None, *, same: bool = True) -> list[Row]:
    """Compare the figures of the scripts that were run, in their order; of another machine nothing is marked."""
    found: list[Row] = []
    for script, result in now["scripts"].items():
        new = _figures(result)
        old = _figures((before or {"scripts": {}})["scripts"].get(script, {"figures": []}))
        found += [_row(script, name, new.get(name), old.get(name), same) for name in {**new, **old}]
    return found


def _figures(result: dict[str, Any]) -> dict[str, Figure]:
    return {one["name"]: Figure(**{**one, "quartiles": _pair(one["quartiles"])}) for one in result["figures"]}


def _pair(quartiles: list[float] | None) -> tuple[float, float] | None:
    return None if quartiles is None else (quartiles[0], quartiles[1])


def _row(script: str, name: str, now: Figure | None, before: Figure | None, same: bool) -> Row:
    if now is None or before is None or now.unit != before.unit:
        mark = "gone" if now is None else "new" if before is None else "another unit"
        ratio = None
    else:
        ratio = now.value / before.value if before.value else None
        mark = change(now, before) if same else ""
    wanted = "" if now is None or now.met is None else "met" if now.met else "**missed**"
    unit = (now or before or Figure("", 0, "")).unit
    values = [None if one is None else one.value for one in (now, before)]
    return Row(script, name, unit, *values, ratio, mark, wanted)


def change(now: Figure, before: Figure) -> str:
    """Say "**worse**" or "better" where a figure differs by more than its noise, else nothing."""
    (now_low, now_high), (old_low, old_high) = _range(now), _range(before)
    if now_low > old_high:
        return "**worse**" if now.lower_is_better else "better"
    if now_high < old_low:
        return "better" if now.lower_is_better else "**worse**"
    return ""


def _range(figure: Figure) -> tuple[float, float]:
    """Return the range of a figure by chance: each run has half of the noise."""
    noise = NOISE[figure.unit in EXACT] / 2 * abs(figure.value)
    if figure.quartiles is None:
        return figure.value - noise, figure.value + noise
    least = LEAST_NOISE / 2 * abs(figure.value)
    return min(figure.quartiles[0], figure.value - least), max(figure.quartiles[1], figure.value + least)


def table(now: Result, before: Result | None, *, same: bool) -> str:
    """Return the comparison as Markdown: what it is with, then a line for each figure."""
    lines = [*_heading(now, before, same), ""]
    lines += ["| | now | before | now ÷ before | | wanted |", "|---|--:|--:|--:|---|---|"]
    for row in rows(now, before, same=same):
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        cells = (f"{row.script}: {row.name}", said(row.now, row.unit), said(row.before, row.unit), ratio, row.mark)
        lines.append(f"| {' | '.join((*cells, row.wanted))} |")
    return "\n".join(lines)


def _heading(now: Result, before: Result | None, same: bool) -> list[str]:
    if before is None:
        return ["No result is kept yet: nothing to compare with."]
    about = before["machine"]
    compared = [one for name, one in before["scripts"].items() if name in now["scripts"]]
    when = sorted({f"{one['commit']} of {one['date'][:10]}" for one in compared}) or ["none of these scripts"]
    if not same:
        named = f"{about['processor']}, {about['cores']} cores, {about['memory']} GB"
        return [f"Before: **another machine** ({named}), {', '.join(when)}; the ratios say how the two differ."]
    lines = [f"Before: this machine, {', '.join(when)}."]
    loads = {name: (now["scripts"][name]["load"], one["load"]) for name, one in before["scripts"].items()
             if name in now["scripts"]}  # fmt: skip
    busy = [f"{name} {old:.1f} → {new:.1f}" for name, (new, old) in loads.items() if new and old]
    if busy:
        lines.append(f"Load of the machine, before → now: {', '.join(busy)}.")
    versions = {f"{name} {old} → {new}" for name in now["scripts"] if name in before["scripts"]
                for name, old, new in _other_versions(before["scripts"][name], now["scripts"][name])}  # fmt: skip
    if versions:
        lines.append(f"Other versions than before: {', '.join(sorted(versions))}.")
    return lines


def _other_versions(before: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, str, str]]:
    old, new = before["versions"], now["versions"]
    return [
        (name, old.get(name, "none"), new.get(name, "none"))
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]


def said(value: float | None, unit: str) -> str:
    """Return a value with its unit, to be read."""
    if value is None:
        return "–"
    if unit == "bytes":
        return f"{value / 1e6:,.2f} MB" if value >= 1e6 else f"{value / 1e3:,.1f} kB"
    if unit == "s" and abs(value) < 1:
        return f"{1e3 * value:,.3g} ms"
    return f"{value:,.4g} {unit}".strip() if abs(value) < 1e4 else f"{value:,.0f} {unit}".strip()
