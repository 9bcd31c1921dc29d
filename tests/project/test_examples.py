"""Every notebook in examples/ runs from top to bottom, is kept with its pictures, and does what docs/seeds.md says."""

from __future__ import annotations

import base64
import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import notebooks  # noqa: E402

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
LESSONS = sorted((ROOT / "examples" / "lessons").glob("*.ipynb"))
THEMES = ["scaling", "masks", "heads_and_cost", "meaning", "gradients", "projections"]


def cells_of(path: Path) -> list[dict[str, Any]]:
    """The cells of a notebook as they stand in the file."""
    cells: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return cells


@pytest.mark.thorough
def test_there_is_a_quickstart_and_a_notebook_for_each_theme() -> None:
    assert {"quickstart", *THEMES} <= {path.stem for path in NOTEBOOKS}


@pytest.mark.thorough
def test_the_quickstart_shows_what_there_is_and_where_to_go_on() -> None:
    cells = cells_of(ROOT / "examples" / "quickstart.ipynb")
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    wanted = [
        'view="graph"',
        'view="heads"',
        'view="stages"',
        "capture(model)",
        "from_weights(",
        "to_html(",
        "savefig(",
    ]
    assert [one for one in wanted if one not in code] == []
    last = "".join(cells[-1]["source"])
    assert last.startswith("## Where to go on")
    linked = set(re.findall(r"\((\w+)\.ipynb\)", last))
    assert linked == {path.stem for path in NOTEBOOKS} - {"quickstart"}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["generation", "vision"])
def test_a_notebook_of_a_model_so_small_that_threads_only_wait_has_one(name: str) -> None:
    """With two threads on a busy machine `generation` once took 249 s, and 20 s with one."""
    code = ["".join(cell["source"]) for cell in cells_of(ROOT / "examples" / f"{name}.ipynb")]
    assert "\ntorch.set_num_threads(1)" in next(one for one in code if "import torch" in one)


@pytest.mark.thorough
def test_the_readme_names_every_notebook() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in NOTEBOOKS if f"(examples/{path.name})" not in readme] == []


# The quickstart runs in JupyterLab: tests/browser/test_from_demo_to_click.py.
RUN_HERE = [
    pytest.param(path, marks=[pytest.mark.thorough] * (path.stem == "quickstart"), id=path.stem)
    for path in NOTEBOOKS
    if notebooks.lacks(path) is None
]


@pytest.mark.notebook
@pytest.mark.parametrize("path", RUN_HERE)
def test_notebook_runs_from_top_to_bottom(path: Path) -> None:
    import nbformat  # here, for it takes longer to import than all other tests of this file
    from nbclient import NotebookClient

    if path.stem == "cluster":
        pytest.importorskip("distributed", reason="Dask is not installed: pip install 'attnwidget[dask]'")
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": path.parent}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert [output for output in outputs if output.get("name") == "stderr"] == []
    assert any(notebooks.WIDGET in output.get("data", {}) for output in outputs)
    for cell, stored in zip(notebook.cells, cells_of(path), strict=True):
        now, kept = ([has_picture(output) for output in of.get("outputs", [])] for of in (cell, stored))
        assert now.count(True) == kept.count(True)


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_runs_and_its_answer_is_right(path: Path) -> None:
    """One idea, pictures, one exercise with its answer; the folded cell at the end checks the numbers of the text."""
    cells = cells_of(path)
    assert "".join(cells[0]["source"]).startswith(f"# {int(path.stem[:2])}. ")
    exercises = [one for one in map("".join, (cell["source"] for cell in cells)) if one.startswith("## Exercise")]
    assert len(exercises) == 1
    assert "<details><summary>Answer</summary>" in exercises[0]
    assert sum(len("".join(cell["source"]).split()) for cell in cells if cell["cell_type"] == "markdown") < 320
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert code[-1].startswith("# Checks\n")
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, source in enumerate(code):
        exec(compile(source, f"{path.name}, code cell {number}", "exec"), names)


@pytest.mark.parametrize("path", [*NOTEBOOKS, *LESSONS], ids=lambda path: path.stem)
def test_a_notebook_is_kept_as_it_was_last_run(path: Path) -> None:
    """`python tools/notebooks.py` mends what this finds."""
    assert not notebooks.is_stale(path)
    code = [cell for cell in cells_of(path) if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == [None] * len(code)
    outputs = [output for cell in code for output in cell["outputs"]]
    assert all(output == notebooks.reduced(output) for output in outputs)
    pictures = [base64.b64decode(output["data"]["image/png"]) for output in outputs if has_picture(output)]
    assert pictures
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    assert max(len(picture) for picture in pictures) <= 64 * 1024


@pytest.mark.thorough
@pytest.mark.parametrize("path", [*NOTEBOOKS, *LESSONS], ids=lambda path: path.stem)
def test_no_number_that_rounds_to_zero_has_a_minus(path: Path) -> None:
    """`-0.00 nats` reads as a loss that is not there: write `round(x, 2) + 0`, or another unit."""
    printed = "".join("".join(output.get("text", "")) for cell in cells_of(path) for output in cell.get("outputs", []))
    assert re.findall(r"(?<![\d.])-0\.0+(?![\d.]).*", printed) == []


def has_picture(output: dict[str, Any]) -> bool:
    """Return whether an output shows something in a notebook that is only read."""
    return "image/png" in output.get("data", {})


@pytest.mark.thorough
def test_a_changed_notebook_is_found(tmp_path: Path) -> None:
    notebook = json.loads(NOTEBOOKS[0].read_text(encoding="utf-8"))
    changed = tmp_path / "changed.ipynb"
    changed.write_text(json.dumps(notebook), encoding="utf-8")
    assert not notebooks.is_stale(changed)
    next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")["source"].append("\n1 + 1")
    changed.write_text(json.dumps(notebook), encoding="utf-8")
    assert notebooks.is_stale(changed)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ({"output_type": "stream", "name": "stderr", "text": "a warning"}, "a warning"),
        ({"output_type": "error", "ename": "KeyError"}, "KeyError"),
        ({"output_type": "stream", "name": "stdout", "text": "/" + "home/somebody/file"}, "another machine"),
    ],
)
def test_an_output_that_must_not_be_kept_is_refused(output: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        notebooks.reduced(output)


# docs/seeds.md: which cell does what the five seeds do.

# One name for each thing that they do, each of their mistakes and each of their numbers.
LINES = {
    "What the seeds do": [
        "000 call", "000 mask", "000 heatmap", "000 saved",
        "000 experiment 1", "000 experiment 1, other sizes",
        "000 experiment 2",
        "000 river",
        "000 experiment 3, variances", "000 experiment 3, rows", "000 experiment 3, pictures", "000 experiment 3, live",
        "000 experiment 4", "000 experiment 4, blocked",
        "000 experiment 5, heads", "000 experiment 5, overview", "000 experiment 5, n²",
        "001 arrays", "001 axes", "001 stable", "001 hidden", "001 sizes", "001 batch", "001 sentence",
        "002 module", "002 blocked rows", "002 row sums", "002 sizes of heads", "002 dV", "002 dA", "002 dQ, dK",
        "002 Jacobian", "002 autograd", "002 complexity",
        "003 variance", "003 probing", "003 n²",
        "004 projections", "004 printed",
    ],
    "Where the seeds are wrong": [
        "odd token", "shore and finance", "−1e9", "√d_model", "effect of scaling", "tokens × 10", "conventions",
    ],
    "The numbers that must come out": [
        "experiment 1, row 2", "experiment 3", "004, variances", "004, first row", "16,000 tokens",
    ],
}  # fmt: skip


class Line(NamedTuple):
    """One row of a table of docs/seeds.md."""

    section: str
    name: str
    heading: str
    cells: list[str]
    numbers: list[str]


def read_table() -> list[Line]:
    lines, section = [], ""
    for text in (ROOT / "docs" / "seeds.md").read_text(encoding="utf-8").splitlines():
        if text.startswith("## "):
            section = text.removeprefix("## ")
        elif text.startswith("| ") and not text.startswith("| line "):
            name, _, heading, cells, numbers = (part.strip() for part in text.strip("|").split("|"))
            lines.append(Line(section, name, heading, re.findall(r"`([^`]+)`", cells), numbers.split()))
    return lines


def read_cells() -> dict[str, tuple[str, str, str]]:
    """notebook#id -> what kind of cell it is, the heading above it, and its source with the next folded checks."""
    found: dict[str, tuple[str, str, str]] = {}
    for path in NOTEBOOKS:
        heading, unchecked = "", list[str]()
        for cell in cells_of(path):
            kind, source = cell["cell_type"], "".join(cell["source"])
            titles = re.findall(r"^#+ (.*)$", source, re.MULTILINE) if kind == "markdown" else []
            heading, unchecked = (titles[-1], []) if titles else (heading, unchecked)
            if is_folded(cell):
                found |= {name: (*found[name][:2], f"{found[name][2]}\n{source}") for name in unchecked}
                unchecked = []
            name = f"{path.stem}#{cell['id']}"
            found[name] = (kind, heading, source)
            unchecked += [name] if kind == "code" and not is_folded(cell) else []
    return found


def is_folded(cell: dict[str, Any]) -> bool:
    """Return whether a cell is closed: checks, and the training of small models, which few readers want to see."""
    return bool(cell["metadata"].get("jupyter", {}).get("source_hidden"))


@pytest.mark.thorough
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_checks_are_folded_away_from_the_lesson(path: Path) -> None:
    code = [cell for cell in cells_of(path) if cell["cell_type"] == "code"]
    for cell in code:
        source = "".join(cell["source"])
        assert is_folded(cell) or not source.startswith("# Checks")
        assert is_folded(cell) or "assert" not in source
    assert any(is_folded(cell) for cell in code)


TABLE, CELLS = read_table(), read_cells()


@pytest.mark.thorough
def test_no_line_of_the_seeds_is_missing() -> None:
    for section, names in LINES.items():
        assert [line.name for line in TABLE if line.section == section] == names
    assert {line.section for line in TABLE} == set(LINES)


@pytest.mark.thorough
@pytest.mark.parametrize("line", TABLE, ids=lambda line: line.name)
def test_the_cells_of_a_line_are_there_and_hold_its_numbers(line: Line) -> None:
    assert line.cells
    assert [cell for cell in line.cells if cell not in CELLS] == []
    kind, heading, source = CELLS[line.cells[0]]
    assert kind == "code"
    assert line.heading == heading
    there = re.findall(r"-?\d[\d_.]*(?:e-\d+)?", source)
    assert [number for number in line.numbers if number.replace(",", "_") not in there] == []
    assert not line.numbers or "assert" in source


@pytest.mark.thorough
def test_cells_named_beside_the_tables_are_there() -> None:
    text = (ROOT / "docs" / "seeds.md").read_text(encoding="utf-8")
    assert [cell for cell in re.findall(r"`(\w+#[\w-]+)`", text) if cell not in CELLS] == []
