"""`make bench`: what every script gives, what is kept of it, and the table beside the result before."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
HOST = {"processor": "Core 5", "cores": 4, "threads": 4, "memory": 16, "system": "Linux x86_64", "torch": "2.13.0"}


def module(name: str) -> Any:
    """Import a module of benchmarks/, which is no package."""
    if str(BENCHMARKS) not in sys.path:
        sys.path.append(str(BENCHMARKS))
    return importlib.import_module(name)


figures, kept, bench = module("figures"), module("kept"), module("all")
Figure = figures.Figure


def result(found: dict[str, list[Any]], **host: Any) -> dict[str, Any]:
    about = {"commit": "abc1234", "date": "2026-01-02T03:04:05+00:00", "load": 0.1, "versions": {"torch": "2.13.0"}}
    scripts = {
        name: {**about, "figures": [json.loads(json.dumps(figures.asdict(one))) for one in of]}
        for name, of in found.items()
    }
    return {"machine": {**HOST, **host}, "scripts": scripts}


def marks(now: list[Any], before: list[Any], *, same: bool = True) -> dict[str, tuple[float | None, str]]:
    rows = kept.rows(result({"engine": now}), result({"engine": before}), same=same)
    return {row.name: (row.ratio, row.mark) for row in rows}


# Every script.


def test_every_script_is_run_or_it_is_said_why_not() -> None:
    there = {path.stem for path in BENCHMARKS.glob("*.py")}
    assert there == set(bench.SCRIPTS) | set(bench.NOT_RUN)
    assert not set(bench.SCRIPTS) & set(bench.NOT_RUN)


@pytest.mark.parametrize("name", bench.SCRIPTS)
def test_a_script_gives_its_figures_by_the_shared_helper(name: str) -> None:
    tree = ast.parse((BENCHMARKS / f"{name}.py").read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "figures"
                for alias in node.names}  # fmt: skip
    assert "finish" in imported
    options = {node.args[0].value for node in ast.walk(tree) if isinstance(node, ast.Call)
               and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"
               and isinstance(node.args[0], ast.Constant)}  # fmt: skip
    given = {option for one in (bench.SCRIPTS[name].given, bench.SCRIPTS[name].quick) for option in one}
    assert {option for option in given if option.startswith("--")} | {"--json"} <= options
    ends = ast.unparse(tree.body[-1])
    assert "SystemExit(main())" in ends or "sys.exit(main())" in ends


def test_the_pages_of_other_tools_are_made_by_what_their_environment_has() -> None:
    """benchmarks/requirements.txt brings torch and numpy, and neither this package nor what it needs."""
    tree = ast.parse((BENCHMARKS / "peer_pages.py").read_text(encoding="utf-8"))
    modules = [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert {name.partition(".")[0] for name in modules} - sys.stdlib_module_names == {"torch"}


@pytest.mark.parametrize("name", bench.SCRIPTS)
def test_what_a_process_says_of_its_failure_is_seen(name: str) -> None:
    tree = ast.parse((BENCHMARKS / f"{name}.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        keywords = {one.arg for one in node.keywords} if isinstance(node, ast.Call) else set()
        assert not {"check", "capture_output"} <= keywords, f"line {node.lineno}: what it writes to stderr is lost"


def test_a_tool_that_was_measured_at_no_length_is_named() -> None:
    pytest.importorskip("playwright", reason="playwright is not installed: it is in the extra `dev`")
    rows = [
        {"tool": "plotly", "n": 64, "failed": None},
        {"tool": "plotly", "n": 4096, "failed": "Python: nothing after 60 s"},
        {"tool": "inspectus", "n": 64, "failed": "Python: no module named comm"},
        {"tool": "inspectus", "n": 128, "failed": "Python: another"},
    ]
    assert module("peers").not_measured(rows) == {"inspectus": "Python: no module named comm"}


# What a script gives.


def test_a_script_writes_its_figures_and_says_which_are_not_as_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [
        Figure("opens", 0.2, "s", wanted=0.17),
        Figure("redraws", 24, "a second", lower_is_better=False, wanted=20),
        figures.figure_of("rows", [3.0, 1.0, 2.0], "ms"),
    ]
    assert figures.finish(tmp_path / "out.json", found) == figures.MISSED == 3
    assert capsys.readouterr().out == "NOT AS WANTED opens: 0.2 s, wanted at most 0.17\n"
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["figures"][2] == {
        "name": "rows", "value": 2.0, "unit": "ms", "lower_is_better": True, "wanted": None, "quartiles": [1.5, 2.5],
    }  # fmt: skip
    assert figures.finish(None, found[1:]) == 0


def test_figures_with_one_name_or_without_a_number_are_refused() -> None:
    with pytest.raises(ValueError, match="two figures are called 'a'"):
        figures.finish(None, [Figure("a", 1, "s"), Figure("a", 2, "s")])
    with pytest.raises(ValueError, match="a is nan"):
        figures.finish(None, [Figure("a", float("nan"), "s")])


def test_the_machine_is_described_without_its_name_or_a_path() -> None:
    import platform

    about = figures.machine()
    assert {"processor", "cores", "threads", "memory", "system", "python", "torch", "numpy"} <= about.keys()
    assert platform.node() not in json.dumps(about) or not platform.node()
    assert str(Path.home()) not in json.dumps(about)
    assert kept.file_name(about).endswith(".json")
    assert "/" not in kept.file_name(about)


# The table.


def test_what_differs_by_more_than_its_noise_is_marked() -> None:
    before = [
        Figure("times", 1.0, "s", quartiles=(0.9, 1.1)),
        Figure("close", 1.0, "s", quartiles=(0.9, 1.1)),
        Figure("rate", 20, "a second", lower_is_better=False, quartiles=(19, 21)),
        Figure("size", 1000, "bytes"),
        Figure("once", 1.0, "s"),
        Figure("none", 0, "bytes"),
    ]
    now = [
        Figure("times", 1.5, "s", quartiles=(1.4, 1.6)),
        Figure("close", 1.15, "s", quartiles=(1.05, 1.3)),
        Figure("rate", 30, "a second", lower_is_better=False, quartiles=(29, 31)),
        Figure("size", 1020, "bytes"),
        Figure("once", 1.2, "s"),
        Figure("none", 4, "bytes"),
    ]
    assert marks(now, before) == {
        "times": (1.5, "**worse**"),
        "close": (1.15, ""),
        "rate": (1.5, "better"),
        "size": (1.02, "**worse**"),
        "once": (1.2, ""),
        "none": (None, "**worse**"),
    }
    assert {name: mark for name, (_, mark) in marks(before, now).items()} == {
        "times": "better", "close": "", "rate": "**worse**", "size": "better", "once": "", "none": "better",
    }  # fmt: skip


def test_figures_that_are_gone_new_or_of_another_unit_are_named() -> None:
    found = marks([Figure("a", 1, "s"), Figure("b", 1, "s")], [Figure("c", 1, "s"), Figure("b", 1000, "ms")])
    assert found == {"a": (None, "new"), "b": (None, "another unit"), "c": (None, "gone")}


def test_another_machine_is_called_so_and_nothing_is_marked(tmp_path: Path) -> None:
    kept.keep(result({"engine": [Figure("a", 1.0, "s")]}, processor="Other 7", memory=64), tmp_path)
    now = result({"engine": [Figure("a", 3.0, "s")]})
    before, same = kept.previous(now["machine"], tmp_path)
    assert not same
    said = kept.table(now, before, same=same)
    assert "Before: **another machine** (Other 7, 4 cores, 64 GB), abc1234 of 2026-01-02" in said
    assert "| engine: a | 3 s | 1 s | 3.00 |  |  |" in said
    kept.keep(result({"engine": [Figure("a", 2.0, "s")]}, torch="2.12.0"), tmp_path)
    before, same = kept.previous(now["machine"], tmp_path)
    assert same
    assert "| engine: a | 3 s | 2 s | 1.50 | **worse** |  |" in kept.table(now, before, same=same)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_part_of_the_scripts_leaves_the_others_results_as_they_were(tmp_path: Path) -> None:
    kept.keep(result({"engine": [Figure("a", 1.0, "s")], "wire": [Figure("b", 5, "bytes")]}), tmp_path)
    later = result({"wire": [Figure("b", 6, "bytes", wanted=4)]})
    before, same = kept.previous(later["machine"], tmp_path)
    said = kept.table(later, before, same=same)
    assert "engine" not in said
    assert "| wire: b | 0.0 kB | 0.0 kB | 1.20 | **worse** | **missed** |" in said
    later["scripts"]["wire"]["versions"] = {"torch": "2.14.0"}
    assert "Other versions than before: torch 2.13.0 → 2.14.0." in kept.table(later, before, same=same)
    (path,) = [kept.keep(later, tmp_path)]
    scripts = json.loads(path.read_text())["scripts"]
    assert [scripts[name]["figures"][0]["value"] for name in ("engine", "wire")] == [1.0, 6]


def test_nothing_kept_yet_is_said(tmp_path: Path) -> None:
    before, same = kept.previous(HOST, tmp_path)
    assert (before, same) == (None, False)
    said = kept.table(result({"wire": [Figure("b", 2e6, "bytes")]}), before, same=same)
    assert said.startswith("No result is kept yet")
    assert "| wire: b | 2.00 MB | – |  | new |  |" in said


# The run.


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Scripts that do nothing but end, in the place of the benchmarks."""
    head = f"import sys\nsys.path.append({str(BENCHMARKS)!r})\nfrom figures import Figure, finish\n"
    head += "from pathlib import Path\nout = Path(sys.argv[sys.argv.index('--json') + 1])\n"
    for name, ends in {
        "good": "raise SystemExit(finish(out, [Figure('a', 1, 's', wanted=2)]))",
        "slow": "raise SystemExit(finish(out, [Figure('a', 3, 's', wanted=2)]))",
        "broken": "raise ValueError('no')",
        "endless": "import time\ntime.sleep(600)",
    }.items():
        (tmp_path / f"{name}.py").write_text(head + ends)
    monkeypatch.setattr(bench, "HERE", tmp_path)
    monkeypatch.setattr(bench, "SCRIPTS", {name: bench.Script() for name in ("good", "slow", "broken", "endless")})
    return tmp_path


def ran(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["all.py", *arguments])
    return int(bench.main())


def test_what_failed_and_what_is_not_as_wanted_are_told_apart(
    scripts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = scripts / "results"
    assert ran(monkeypatch, "good", "slow", "--results", str(results)) == 0
    said = capsys.readouterr().out
    assert "with every figure as wanted: 1 of 2" in said
    assert "ran, with a figure that is not as wanted: slow\n" in said
    assert "failed: none" in said
    assert ran(monkeypatch, "good", "broken", "--results", str(results)) == 1
    said = capsys.readouterr().out
    assert "ran, with a figure that is not as wanted: none\n" in said
    assert "failed: broken ended with status 1" in said
    assert "| good: a | 1 s | 1 s | 1.00 |  | met |" in said
    (path,) = results.iterdir()
    assert json.loads(path.read_text())["scripts"].keys() == {"good", "slow"}


def test_a_script_without_end_is_stopped_and_nothing_runs_after_the_time(
    scripts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ran(monkeypatch, "endless", "good", "--quick", "--minutes", "0.02", "--results", str(scripts / "kept")) == 1
    said = capsys.readouterr().out
    assert re.search(r"failed: endless was stopped after \d s; good was not run, for the 0.02 minutes were over", said)
    assert not (scripts / "kept").exists()


def test_a_benchmark_that_is_not_there_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "all.py"), "engines"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 2
    assert "there is no engines: choose among imports, accuracy" in done.stderr


def test_results_that_are_kept_can_be_read() -> None:
    for path in kept.FOLDER.glob("*.json"):
        one = json.loads(path.read_text(encoding="utf-8"))
        assert path.name == kept.file_name(one["machine"])
        assert kept.rows(one, one)
        assert set(one["scripts"]) <= set(bench.SCRIPTS)
