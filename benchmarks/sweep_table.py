"""The tables of docs/models.md, made of the results of `sweep.py`; nothing here needs a model."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "sweep-results.json"
DOCUMENT = HERE.parent / "docs" / "models.md"
BEGIN, END = "<!-- made by benchmarks/sweep.py -->", "<!-- end of what benchmarks/sweep.py has made -->"
STATUSES = ("right", "in part", "refused", "none", "wrong", "vanished", "broken")
FAULTS = ("wrong", "vanished", "broken")
COLUMNS = {
    "right": "right",
    "in part": "in part",
    "refused": "refused",
    "none": "no attention",
    "wrong": "wrong",
    "vanished": "vanished",
    "broken": "raises",
}
LIBRARIES = {
    "transformers": "transformers", "timm": "timm", "torchvision": "torchvision", "diffusers": "diffusers",
    "vit_pytorch": "vit-pytorch", "x_transformers": "x-transformers", "transformer_lens": "TransformerLens",
    "litgpt": "LitGPT", "torchtune": "torchtune", "speechbrain": "SpeechBrain", "fairseq": "fairseq", "esm": "ESM",
    "whisper": "Whisper", "open_clip": "OpenCLIP", "torch": "torch.nn", "teaching": "custom code",
    "wrapped": "PEFT, Accelerate, torchao, NNsight",
}  # fmt: skip
OPTIONS = {
    "default": "as it is", "values": "`values=False`", "clone": "`clone=False`", "bfloat16": "`dtype=torch.bfloat16`",
    "float16": "`dtype=torch.float16`", "train": "train mode, dropout in force", "threads": "in two other threads",
    "generate": "5 new tokens", "beams": "5 new tokens, 3 beams",
}  # fmt: skip


def condensed(done: dict[str, Any], versions: dict[str, str]) -> dict[str, Any]:
    """Return what is kept of the results of a sweep: by case, the status under each option, and the reason."""
    cases: dict[str, Any] = {}
    left_out = sorted(name for name, one in done.items() if not one.get("options"))
    for name, one in sorted(done.items()):
        if not one.get("options"):
            continue
        by_option = {option: found["status"] for option, found in one["options"].items() if found["status"] in STATUSES}
        kept: dict[str, Any] = {"options": by_option}
        first = next((found for found in one["options"].values() if "off" in found), {})
        if first.get("off"):
            kept["off"] = first["off"]
        default = next(iter(one["options"].values()))
        if default["status"] in ("in part", "refused"):
            kept["why"] = reason(default.get("why", ""))
        worst = [
            f"{option}: {found['why']}"
            for option, found in one["options"].items()
            if found["status"] in ("wrong", "vanished", "broken")
        ]
        if worst:
            kept["fault"] = worst[0][:200]
        cases[name] = kept
    return {"versions": versions, "cases": cases, "left out": left_out}


def reason(why: str) -> str:
    """Return the reason alone, without whose it is and what to do."""
    why = re.sub(r"^none of \d+ attention calls can be shown; the first is '.*?': ", "", why)
    why = re.sub(r"^only a part of it could be read; of the rest, ", "", why)
    why = re.sub(r"^no attention call was seen in .*", "no attention call was seen", why)
    return re.sub(r"\d{2,}", "…", why.partition(": ")[0])[:200]


def write_results(found: dict[str, Any], path: Path = RESULTS) -> None:
    """Write the results, a line for each case."""
    lines = [f"  {json.dumps(name)}: {json.dumps(one, ensure_ascii=False)}" for name, one in found["cases"].items()]
    head = [f' "{name}": {json.dumps(found[name], indent=2)},' for name in ("versions", "left out")]
    text = "\n".join(["{", *head, ' "cases": {', ",\n".join(lines), " }", "}"])
    path.write_text(f"{text}\n", encoding="utf-8")


def library_of(name: str) -> str:
    """Return the library of a case."""
    return re.split(r"[ ,]", name)[0]


def row(*cells: Any) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def table(found: dict[str, Any]) -> str:
    """Return the part of docs/models.md that the results make."""
    cases = found["cases"]
    status = {name: next(iter(one["options"].values()), "none") for name, one in cases.items()}
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    exact = [name for name in cases if status[name] in ("right", "in part") and "autocast" not in name]
    offs = sorted(cases[name].get("off", 0.0) for name in exact) or [0.0]
    runs = sum(len(one["options"]) for one in cases.values())
    lines = [
        f"{len(cases)} configurations, {runs:,} runs with one option or another, on a CPU, with random weights.",
        "Each weight that is shown was compared with the one that a spy of our own computes in float64,",
        "below torch's functions: 9 configurations in 10 are within",
        f"{offs[int(len(offs) * 0.9)]:.1g}, all within {offs[-1]:.1g}, but for",
        "those that compute in bfloat16 by autocast.",
        f"Versions: {versions}.",
        "",
        row("", *COLUMNS.values()),
        row("---", *["--:"] * len(COLUMNS)),
    ]
    by_library: dict[str, Counter[str]] = defaultdict(Counter)
    for name, one in status.items():
        by_library[library_of(name)][one] += 1
    for library, words in LIBRARIES.items():
        if by_library[library]:
            lines.append(row(words, *(by_library[library][one] or "" for one in COLUMNS)))
    total = Counter(status.values())
    lines.append(row("**together**", *(f"**{total[one]}**" for one in COLUMNS)))
    lines += ["", row("each with", "runs", *COLUMNS.values()), row("---", *["--:"] * (len(COLUMNS) + 1))]
    for option, words in OPTIONS.items():
        counts = Counter(one["options"][option] for one in cases.values() if option in one["options"])
        if counts:
            lines.append(row(words, sum(counts.values()), *(counts[one] or "" for one in COLUMNS)))
    lines += [
        "",
        "**Right**: all that ran is shown. **In part**: it is shown, or named in `cap.skipped` with the reason.",
        "**Refused**: nothing is shown, with a reason. **Wrong**: a map differs from the spy's, mixes samples",
        "and heads, shows channels as places, or calls cross-attention what is not. **Vanished**: it ran, and is",
        "neither shown nor named. **Raises**: the call, or the end of the block, raises another error than a refusal.",
        "",
        *reasons(cases, status),
        *faults(cases),
        *lists(status),
    ]
    return "\n".join(lines).rstrip() + "\n"


def faults(cases: dict[str, Any]) -> list[str]:
    """Return what is known to be wrong, if anything is."""
    known = {name: one["fault"] for name, one in cases.items() if "fault" in one}
    if not known:
        return []
    return ["Known faults, by configuration and option:", "", *(f"- {name}: {why}" for name, why in known.items()), ""]


def reasons(cases: dict[str, Any], status: dict[str, str]) -> list[str]:
    """Return a table of why something is not shown."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, one in cases.items():
        if "why" in one and status[name] in ("in part", "refused"):
            found[one["why"]].append(plain_name(name) + (" (in part)" if status[name] == "in part" else ""))
    ordered = sorted(found.items(), key=lambda pair: -len(pair[1]))
    return (
        [
            row("why not", "where"),
            row("---", "---"),
            *(row(why.replace("|", "\\|"), "; ".join(names)) for why, names in ordered),
            "",
        ]
        if found
        else []
    )


def plain_name(name: str) -> str:
    """Return the name of a case as it is written in the document."""
    library = library_of(name)
    rest = name.removeprefix(library).lstrip(" ,") or LIBRARIES.get(library, library)
    return f"{LIBRARIES.get(library, library)} {rest}" if library not in ("transformers", "timm") else f"`{rest}`"


def lists(status: dict[str, str]) -> list[str]:
    """Return the names of all that is right, by library."""
    lines = ["Right in all layers:", ""]
    for library, words in LIBRARIES.items():
        names = [
            name.removeprefix(library).lstrip(" ,") or words
            for name, one in status.items()
            if one == "right" and library_of(name) == library
        ]
        if names and library != "teaching":
            lines.append(f"- *{words}*: {', '.join(names)}")
    return [*lines, ""]


def write_document(found: dict[str, Any], path: Path = DOCUMENT) -> None:
    """Write the tables between their markers."""
    text = path.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n\n{table(found)}\n{END}{after}", encoding="utf-8")
