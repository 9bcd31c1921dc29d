"""The last lines of `make test`: the share of lines that ran, and those of the engine that did not."""

from __future__ import annotations

import json
from pathlib import Path

import coverage
import pytest
import tested_lines
from tested_lines import Lines

ROOT = Path(__file__).parents[2]


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of two folders, of which a part was run, and what vitest would have written."""
    package = tmp_path / "attnwidget"
    for name, text in {
        "_engine/sums.py": "def total(x):\n    if not x:\n        return 0\n    return sum(x)\n",
        "_widget/view.py": "SHOWN = 1\n\n\ndef hide():\n    return 0\n",
    }.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    data = coverage.CoverageData(str(tmp_path / ".coverage"))
    data.add_lines({str(package / "_engine/sums.py"): {1, 2, 4}, str(package / "_widget/view.py"): {1, 4}})
    data.write()
    summary = tmp_path / "coverage-summary.json"
    summary.write_text(json.dumps({"total": {"lines": {"total": 8, "covered": 6}}}))
    (tmp_path / "pyproject.toml").write_text('[tool.coverage.run]\nomit = ["attnwidget/_engine/compiled.py"]\n')
    monkeypatch.setattr(tested_lines, "ROOT", tmp_path)
    monkeypatch.setattr(tested_lines, "PYTHON", tmp_path / ".coverage")
    monkeypatch.setattr(tested_lines, "FRONT_END", summary)
    return tmp_path


def test_a_line_of_the_engine_that_no_test_ran_is_named(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tested_lines.main([]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "attnwidget/_engine/sums.py: no test ran line 3",
        "lines run by pytest: 71.4 % of attnwidget; by package:",
        "  _widget 66.7, _engine 75.0",
        "lines run by vitest: 75.0 % of js/src, the pages in a browser not counted",
    ]


def test_lines_elsewhere_are_counted_and_excused(measured: Path) -> None:
    (measured / "attnwidget/_engine/sums.py").write_text("def total(x):\n    return sum(x)\n")
    assert tested_lines.main(["--strict"]) == 0


def test_a_file_that_is_omitted_is_not_missed(measured: Path) -> None:
    (measured / "attnwidget/_engine/sums.py").write_text("def total(x):\n    return sum(x)\n")
    (measured / "attnwidget/_engine/compiled.py").write_text("compiled = 1\n")
    assert tested_lines.main(["--strict"]) == 0
    (measured / "attnwidget/_engine/other.py").write_text("never = 1\n")
    assert tested_lines.main(["--strict"]) == 1


def test_what_pyproject_omits_is_there(tmp_path: Path) -> None:
    found = tested_lines.of_python(tmp_path / "none.coverage", ROOT / "attnwidget")
    assert "_engine/softmax.py" in found
    assert "_engine/fused_kernels.py" not in found
    assert (ROOT / "attnwidget/_engine/fused_kernels.py").is_file()


def test_lines_in_a_row_are_told_as_one() -> None:
    lines = {"_engine/a.py": Lines(9, (3, 4, 5, 9)), "_rules/b.py": Lines(4, (1,)), "_engine/c.py": Lines(5, ())}
    assert tested_lines.not_run(lines) == ["attnwidget/_engine/a.py: no test ran line 3-5, 9"]


def test_make_test_ends_with_them() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (steps,) = [part for part in makefile.split("\n\n") if "\ntest: " in f"\n{part}"]
    assert "$(if $(CI),,--cov --cov-report=)" in steps
    assert steps.splitlines()[-2].endswith("$(if $(CI),,$(PY) tools/tested_lines.py)")
    assert "--coverage" in makefile
