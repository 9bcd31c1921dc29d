"""Runs the notebooks of examples/ and keeps what they print and a small picture of each widget in their files.

A notebook that is read where no kernel runs, as on a page of a repository, then shows its pictures. Of an output that
shows a widget only the picture is kept: without the widget's state, front-ends would draw an error in its place.

    python tools/notebooks.py            every notebook that has changed since it was last run
    python tools/notebooks.py masks lessons/04_mask …    these, changed or not
    python tools/notebooks.py --check    names those that have changed, and fails if there are any
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[1] / "examples"
WIDGET = "application/vnd.jupyter.widget-view+json"
KEY = "attnwidget"  # in the metadata of a notebook: "sources", the digest of its cells when it was run, and "needs"
MACHINE = re.compile(r"/(?:tmp|home|root|Users|work)/|0x[0-9a-f]{8,}")  # what is of one machine or one run


def digest(notebook: dict[str, Any]) -> str:
    """Return a digest of the code of a notebook's cells; text between them changes no output."""
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return hashlib.sha256(json.dumps(code).encode()).hexdigest()[:16]


def is_stale(path: Path) -> bool:
    """Return whether the code of a notebook has changed since its outputs were kept."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return bool(notebook["metadata"].get(KEY, {}).get("sources") != digest(notebook))


def lacks(path: Path) -> str | None:
    """Return the package that a notebook needs and that is not here; None if it can run."""
    needed = json.loads(path.read_text(encoding="utf-8"))["metadata"].get(KEY, {}).get("needs")
    return needed if needed is not None and importlib.util.find_spec(needed) is None else None


def reduced(output: dict[str, Any]) -> dict[str, Any] | None:
    """Return an output as it is kept: a widget as its picture, all else as it is; None for a box of widgets.

    Raises:
        ValueError: The output is an error or a warning, or names this machine.
    """
    data = output.get("data", {})
    if output["output_type"] == "error" or output.get("name") == "stderr":
        raise ValueError(f"a cell ended with {output.get('ename') or output.get('text')!r}")
    if WIDGET in data:
        if "image/png" not in data:
            return None
        kept = {"image/png": data["image/png"], "text/plain": data["text/plain"]}
        output = {"output_type": "display_data", "data": kept, "metadata": {}}
    elif output["output_type"] == "execute_result":
        output = {**output, "execution_count": None}
    words = json.dumps({**output, "data": {k: v for k, v in output.get("data", {}).items() if k != "image/png"}})
    if found := MACHINE.search(words):
        raise ValueError(f"an output holds {found[0]!r}, which another machine or run would not write")
    return output


def is_log(output: Any, notebook: dict[str, Any]) -> bool:
    """Return whether an output is what a program beside the notebook, such as an engine, writes into its log."""
    return bool(notebook["metadata"][KEY].get("needs")) and output.get("name") == "stderr"


def run(path: Path) -> None:
    """Run a notebook and write it back with its outputs."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=1800, kernel_name="python3", resources={"metadata": {"path": path.parent}}
    ).execute()
    kept = json.loads(path.read_text(encoding="utf-8"))
    kept["metadata"].setdefault(KEY, {})
    for cell, ran in zip(kept["cells"], notebook.cells, strict=True):
        if cell["cell_type"] == "code":
            outputs = (reduced(json.loads(json.dumps(output))) for output in ran.outputs if not is_log(output, kept))
            cell["outputs"] = [output for output in outputs if output is not None]
    kept["metadata"][KEY] |= {"sources": digest(kept)}
    path.write_text(json.dumps(kept, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Run the notebooks that were named, or that have changed; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="notebooks to run, without .ipynb (those that have changed)")
    parser.add_argument("--check", action="store_true", help="run none; name those that have changed")
    given = parser.parse_args()
    there = sorted(EXAMPLES.rglob("*.ipynb"))
    paths = [EXAMPLES / f"{name}.ipynb" for name in given.names] or [path for path in there if is_stale(path)]
    if missing := next((f"{path.name} needs {lacks(path)}" for path in paths if not given.check and lacks(path)), None):
        sys.exit(f"{missing}: run it with the Python of `make serving`")
    for path in paths:
        if given.check:
            print(f"{path.name} has changed since it was run: run `python tools/notebooks.py {path.stem}`")
        else:
            print(f"running {path.name}", flush=True)
            run(path)
    return 1 if given.check and paths else 0


if __name__ == "__main__":
    sys.exit(main())
