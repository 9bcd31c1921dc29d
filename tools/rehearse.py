"""Rehearses a release: an index of its own, an empty environment that installs from it, one cell without a network.

Then it takes the package out again, which must leave nothing.

    python tools/rehearse.py            builds first, into a folder of its own
    python tools/rehearse.py dist       with the wheel and sdist that are in dist/

The index is a folder that a server on this machine shows as the real one does (PEP 503: a page for each project, with
the SHA-256 of each file). attnwidget comes from there and from nowhere else; what it needs is borrowed from the
environment that runs this, as torch alone would be gigabytes.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import html
import http.server
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What asks for another machine's address, or for a connection, ends with an error.
OFFLINE = """
import sys
def refuse(event, details):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"):
        raise RuntimeError(f"there is no network here, and this asks for one: {event} {details[-1]}")
sys.addaudithook(refuse)
"""
CELL = """
import attnwidget, torch
q, k, v = torch.randn(3, 1, 4, 8, 16)
w = attnwidget.AttentionWidget(q, k, v, is_causal=True)
w.query, w.key = 3, 1
page = w.to_html("page.html")
print(attnwidget.__version__, w, float(w.weights(3).sum()), page.stat().st_size)
"""


def write_index(files: Sequence[Path], folder: Path) -> None:
    """Write the pages of an index with these files of one project."""
    project = folder / "simple" / "attnwidget"
    project.mkdir(parents=True)
    links = []
    for path in files:
        shutil.copy(path, project)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        links.append(f'<a href="{html.escape(path.name)}#sha256={digest}">{html.escape(path.name)}</a>')
    (project / "index.html").write_text("<!doctype html>\n" + "<br>\n".join(links), encoding="utf-8")


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Show files, and say nothing of it."""

    def log_message(self, *_: object) -> None:
        """Leave out what is asked for."""


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine; yield its address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command that must succeed, and return what it printed."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def borrowed() -> str:
    """Return the folders in which the packages lie that attnwidget needs."""
    specs = map(importlib.util.find_spec, ("torch", "anywidget"))
    return "\n".join(sorted({str(Path(spec.origin).parents[1]) for spec in specs if spec and spec.origin}))


def environment(folder: Path) -> tuple[Path, Path]:
    """Make an environment with Python alone; return its Python, and the folder of its packages."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder.parent)
    return python, Path(packages.strip())


def install(dist: Path, scratch: Path) -> Path:
    """Install from the index into an empty environment; return its Python."""
    files = sorted(dist.glob("attnwidget-*"))
    if [path.suffix for path in files] != [".whl", ".gz"]:
        raise SystemExit(f"{dist} should hold one wheel and one sdist, and has {[path.name for path in files]}")
    write_index(files, scratch / "index")
    python, packages = environment(scratch / "venv")
    pip = (sys.executable, "-m", "pip", "--isolated", "--python", python, "install", "--no-deps", "--no-cache-dir")
    with served(scratch / "index") as address:
        said = run(*pip, "--index-url", f"{address}/simple/", "attnwidget", cwd=scratch, NO_PROXY="127.0.0.1")
    if not re.search(r"Successfully installed attnwidget-\d", said):
        raise SystemExit(said)
    (packages / "borrowed.pth").write_text(borrowed(), encoding="utf-8")
    return python


def rehearse(dist: Path, scratch: Path) -> str:
    """Install as a user would, run the cell without a network, uninstall; return what the cell printed."""
    python = install(dist, scratch)
    (scratch / "cell.py").write_text(OFFLINE + CELL, encoding="utf-8")
    said = run(python, "-I", scratch / "cell.py", cwd=scratch, PATH=os.devnull)
    run(sys.executable, "-m", "pip", "--isolated", "--python", python, "uninstall", "--yes", "attnwidget", cwd=scratch)
    left = [str(path) for path in (scratch / "venv").rglob("*attnwidget*")]
    if left:
        raise SystemExit(f"the package was uninstalled and left {left}")
    return said


def main(arguments: Sequence[str]) -> None:
    """Rehearse with what was built, or build first."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        dist = Path(arguments[0]).resolve() if arguments else scratch / "dist"
        if not arguments:
            run(sys.executable, ROOT / "tools" / "dist.py", "--to", dist, cwd=ROOT)
        print(rehearse(dist, scratch), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
