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


def test_bounds_are_those_of_the_package_and_its_parts_for_each_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = ["anywidget", "ipywidgets", "numpy", "safetensors", "traitlets"]
    parts = ["distributed", "matplotlib", "numba", "tqdm", "transformers"]
    for version in matrix.PYTHONS:
        names = [one.partition("==")[0] for one in matrix.lower_bounds(version)]
        assert sorted(names) == sorted(package + parts)
    monkeypatch.setattr(matrix, "ROOT", tmp_path)
    needs = '"torch>=2.5", "a>=1.2; python_version < \'3.13\'", "a>=2; python_version >= \'3.13\'", "b>=0.4.3"'
    extras = 'demo = ["c[dask]", "lab>=4", "transformers>=5"]\n# Said.\ndask = ["d>=3"]\nfast = ["n>=1"]\n'
    extras += 'figure = ["m>=3"]\nprogress = ["t>=2"]\ndev = ["z>=9"]\n'
    (tmp_path / "pyproject.toml").write_text(
        f"[project]\ndependencies = [\n{needs}\n]\n[project.optional-dependencies]\n{extras}"
    )
    optional = ["d==3", "n==1", "m==3", "t==2", "transformers==5"]
    assert matrix.lower_bounds("3.10") == ["a==1.2", "b==0.4.3", *optional]
    assert matrix.lower_bounds("3.13") == ["a==2", "b==0.4.3", *optional]


def test_torch_is_the_one_of_the_constraints_or_the_one_that_is_named() -> None:
    pinned = matrix.torch_pin()
    assert pinned in (matrix.ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert matrix.torch_pin("2.5.0") == "torch==2.5.0"


@pytest.mark.parametrize(
    ("names", "lanes"),
    [([], 4), (["oldest"], 2), (["newest-3.11"], 1), (["3.12"], 2), (["3.12", "oldest-3.11"], 3)],
)
def test_lanes_are_named_by_kind_by_python_or_by_both(names: list[str], lanes: int) -> None:
    every = [(kind, version) for kind in matrix.KINDS for version in ("3.11", "3.12")]
    assert sum(matrix.wanted(kind, version, names) for kind, version in every) == lanes
