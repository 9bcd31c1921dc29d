"""tools/matrix.py: which Pythons it finds, and which versions it tests with."""

from __future__ import annotations

import platform
import stat
import sys
from pathlib import Path

import matrix
import pytest

HERE = ".".join(platform.python_version_tuple()[:2])
posix = pytest.mark.skipif(sys.platform == "win32", reason="the stand-ins are shell scripts")


def stand_in(path: Path, does: str) -> Path:
    """Write a program that stands for a Python."""
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{does}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No Python is on the path, and the only folder with others is empty."""
    monkeypatch.setattr(matrix.shutil, "which", lambda name: None)
    monkeypatch.setattr(matrix, "KEPT", (str(tmp_path),))
    return tmp_path


@posix
def test_a_python_that_pyenv_has_installed_is_found(nothing_here: Path) -> None:
    kept = stand_in(nothing_here / "3.12.1" / "bin" / "python3.12", "echo 3.12")
    newer = stand_in(nothing_here / "3.12.10" / "bin" / "python3.12", "echo 3.12")
    assert matrix.pythons() == {"3.12": str(newer)}
    newer.unlink()
    assert matrix.pythons() == {"3.12": str(kept)}


@posix
def test_a_stand_in_that_only_says_where_others_are_is_no_python(
    nothing_here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pyenv puts it on the path for each version that is installed, whether or not it is switched on."""
    shim = stand_in(tmp_path / "shims" / "python", "echo 'python3.13: command not found' >&2; exit 127")
    monkeypatch.setattr(matrix.shutil, "which", lambda name: str(shim))
    assert matrix.pythons() == {}
    assert matrix.runs(HERE, sys.executable)
    assert not matrix.runs("3.9", sys.executable)


def test_bounds_are_those_of_the_package_for_each_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in matrix.PYTHONS:
        names = [one.partition("==")[0] for one in matrix.lower_bounds(version)]
        assert sorted(names) == ["anywidget", "ipywidgets", "numpy", "safetensors", "traitlets"]
    needs = '"torch>=2.5", "a>=1.2; python_version < \'3.13\'", "a>=2; python_version >= \'3.13\'", "b>=0.4.3"'
    (tmp_path / "pyproject.toml").write_text(f"[project]\ndependencies = [\n{needs}\n]\n")
    monkeypatch.setattr(matrix, "ROOT", tmp_path)
    assert matrix.lower_bounds("3.10") == ["a==1.2", "b==0.4.3"]
    assert matrix.lower_bounds("3.13") == ["a==2", "b==0.4.3"]


@pytest.mark.parametrize(
    ("names", "lanes"),
    [([], 4), (["oldest"], 2), (["newest-3.11"], 1), (["3.12"], 2), (["3.12", "oldest-3.11"], 3)],
)
def test_lanes_are_named_by_kind_by_python_or_by_both(names: list[str], lanes: int) -> None:
    every = [(kind, version) for kind in matrix.KINDS for version in ("3.11", "3.12")]
    assert sum(matrix.wanted(kind, version, names) for kind, version in every) == lanes
