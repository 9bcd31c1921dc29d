"""Builds the wheel and the sdist into dist/, twice, and checks them: the same bytes, and what the index wants.

    python tools/dist.py            into dist/
    python tools/dist.py --to DIR   into another folder

It uploads nothing. docs/releasing.md says what comes before and after.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import native

ROOT = Path(__file__).resolve().parent.parent
# Seconds since 1970 that all files of an archive have: 1 January 2026. Another value gives other bytes.
EPOCH = "1767225600"


def build(folder: Path) -> dict[str, str]:
    """Build both into a folder; return the name and SHA-256 of each."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH, native.EVERYWHERE: "1"}
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--wheel",
        "--sdist",
        "--outdir",
        str(folder),
        str(ROOT),
    ]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"{done.stdout}\nthe build failed")
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def check(folder: Path) -> None:
    """End with what is wrong if the index would refuse a file or could not show its README."""
    files = [str(path) for path in sorted(folder.iterdir())]
    if subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files]).returncode:
        raise SystemExit("twine found fault with what was built")


def main(arguments: Sequence[str] | None = None) -> None:
    """Build twice, compare, check, and put the files into the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=ROOT / "dist")
    folder = parser.parse_args(arguments).to
    with tempfile.TemporaryDirectory() as scratch:
        first, second = Path(scratch, "first"), Path(scratch, "second")
        names = build(first)
        if names != build(second):
            raise SystemExit("two builds gave different bytes: what is not in git goes into them?")
        check(first)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(first, folder)
    for name, digest in names.items():
        print(f"{digest}  {folder / name}")


if __name__ == "__main__":
    main()
