"""Compile the exact pass of native/ into attnwidget/_engine/compiled, for this machine or for all systems.

    python tools/native.py here    for this machine, with zig from PyPI (ziglang) or the machine's C compiler
    python tools/native.py all     for every system that a wheel serves, with zig

Without a compiler, `here` compiles nothing and says so: the package then computes by torch alone, as exactly.
The build hook (hatch_build.py) and the Makefile both go through here. Standard library only.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "native"
COMPILED = ROOT / "attnwidget" / "_engine" / "compiled"
STAMP = COMPILED / "made-from.txt"

# The name of a library, and what zig calls its system. attnwidget/_engine/fused.py makes the same names.
SYSTEMS = {
    "linux-x86_64.so": "x86_64-linux-gnu.2.17",
    "linux-aarch64.so": "aarch64-linux-gnu.2.17",
    "darwin-x86_64.dylib": "x86_64-macos.11.0",
    "darwin-arm64.dylib": "aarch64-macos.11.0",
    "windows-amd64.dll": "x86_64-windows-gnu",
}
OPTIONS = "-O3 -ffp-contract=off -shared -fPIC -ffreestanding -fvisibility=hidden -nostdlib -s -Wall -Wextra"
ZIG = "ziglang>=0.13"
EVERYWHERE = "ATTNWIDGET_ALL_SYSTEMS"  # the environment variable with which a build compiles for all systems


class CompileError(RuntimeError):
    """The pass could not be compiled; the text says what was run and what to do."""


def here() -> list[str]:
    """The library of this machine; none for a system that it is not compiled for."""
    start = f"{platform.system()}-{platform.machine()}.".lower()
    return [name for name in SYSTEMS if name.startswith(start)]


def requirements() -> list[str]:
    """What a build environment needs from PyPI: zig, to compile for all systems."""
    return [ZIG] if os.environ.get(EVERYWHERE) and not is_fresh(SYSTEMS) and zig() is None else []


def build() -> None:
    """Compile what a package that is built now is to have; with only this machine's compiler, as far as it can."""
    if os.environ.get(EVERYWHERE):
        compile_all(list(SYSTEMS))
        return
    try:
        compile_all(here())
    except CompileError as error:
        print(f"attnwidget: {error}\nattnwidget: long pictures take up to twice the time without it", file=sys.stderr)


def compile_all(names: Sequence[str]) -> None:
    """Compile libraries, unless they are fresh."""
    if is_fresh(names):
        return
    COMPILED.mkdir(exist_ok=True)
    if not STAMP.is_file() or STAMP.read_text() != digest():
        for old in COMPILED.iterdir():
            old.unlink()
    for name in names:
        with tempfile.TemporaryDirectory(dir=COMPILED) as scratch:  # a library of macOS holds the path that it is given
            command = [*_compiler(name), *OPTIONS.split(), str(SOURCES / "pass.c"), "-o", name]
            done = subprocess.run(command, cwd=scratch, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if done.returncode:
                raise CompileError(f"`{' '.join(command)}` ended with status {done.returncode}: {done.stdout}")
            (Path(scratch) / name).replace(COMPILED / name)
    STAMP.write_text(digest())


def is_fresh(names: Iterable[str]) -> bool:
    """Whether these libraries are there, made from exactly these sources."""
    there = all((COMPILED / name).is_file() for name in names)
    return there and STAMP.is_file() and STAMP.read_text() == digest()


def digest() -> str:
    """A name for the sources and the way they are compiled."""
    total = hashlib.sha256()
    for path in (Path(__file__), *sorted(SOURCES.iterdir())):
        total.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()[:32]


def zig() -> list[str] | None:
    """The command that is zig's C compiler; None if this Python has none."""
    return [sys.executable, "-m", "ziglang", "cc"] if importlib.util.find_spec("ziglang") else None


def _compiler(name: str) -> list[str]:
    """The command that compiles a library."""
    own, command = next(filter(None, map(shutil.which, ("cc", "clang", "gcc"))), None), zig()
    if command is not None:
        return [*command, "-target", SYSTEMS[name]]
    if name in here() and own is not None:
        return [own]
    raise CompileError(f"{name} was not compiled, for want of a C compiler: `python -m pip install '{ZIG}'`")


def main(arguments: list[str]) -> int:
    """Run the command of the arguments, and return the exit status."""
    try:
        match arguments:
            case ["here"]:
                build()
            case ["all"]:
                compile_all(list(SYSTEMS))
            case _:
                print(__doc__)
                return 2
    except CompileError as error:
        print(f"attnwidget: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
