"""`import attnwidget` imports next to nothing: each public name brings what it needs, when it is first used."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import attnwidget

LATE = {"matplotlib", "transformers", "dask", "distributed", "pandas", "safetensors", "PIL", "tokenizers"}
LATE |= {"scipy", "sklearn"}
NOTEBOOK = {"IPython", "ipywidgets", "anywidget", "traitlets"}

USES = {  # what a program does, and which libraries it may not have imported then
    "import attnwidget": LATE | NOTEBOOK | {"torch", "numpy"},
    "from attnwidget import Attention\nimport torch\nAttention(*torch.randn(3, 5, 4)).block('weights')": LATE
    | NOTEBOOK,
    "from attnwidget import AttentionStack, masks, scaling, segments": LATE | NOTEBOOK,
    "import torch\nfrom torch.nn import TransformerEncoderLayer\nfrom attnwidget import capture\n"
    "model = TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()\n"
    "with torch.no_grad(), capture(model) as cap:\n    model(torch.randn(1, 5, 8))\n"
    "cap.attention[0].block('weights')": LATE - {"safetensors"},  # in which captures are saved
    "import torch\nfrom attnwidget import AttentionWidget\nAttentionWidget(*torch.randn(3, 5, 4))": LATE,
    "import torch\nfrom tempfile import TemporaryDirectory\nfrom attnwidget import AttentionWidget\n"
    "w = AttentionWidget(*torch.randn(3, 5, 4))\nwith TemporaryDirectory() as folder:\n"
    "    w.to_html(f'{folder}/page.html')": LATE - {"PIL"},  # which draws the still picture
    "import torch\nfrom concurrent.futures import ThreadPoolExecutor\nfrom attnwidget import Attention\n"
    "with ThreadPoolExecutor(2) as pool:\n    Attention(*torch.randn(2, 700, 4)).overview(executor=pool)": LATE
    | NOTEBOOK,
    "import attnwidget\nprint(attnwidget.report())": LATE,
}


def imported_after(program: str) -> set[str]:
    """Return the names of all packages that a fresh process has imported after a program."""
    code = f"{program}\nimport json, sys\nprint(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    environment = {**os.environ, "PYTHONPATH": os.fspath(Path(attnwidget.__file__).parents[1])}
    said = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120, env=environment
    )
    return set(json.loads(said.stdout.splitlines()[-1]))


EVERY_DAY = ("import attnwidget", next(program for program in USES if "to_html" in program))
CASES = [pytest.param(program, marks=[pytest.mark.thorough] * (program not in EVERY_DAY)) for program in USES]


@pytest.mark.parametrize("program", CASES)
def test_what_is_not_used_is_not_imported(program: str) -> None:
    assert imported_after(program) & USES[program] == set()


def test_each_public_name_is_imported_from_where_editors_look_for_it() -> None:
    """The block for type checkers and the table for Python say the same."""
    tree = ast.parse(Path(attnwidget.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    written = {
        alias.name: node.module or alias.name
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert written == attnwidget._MODULES
    assert written.keys() == set(attnwidget.__all__) - {"__version__"}


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'attnwidget' has no attribute 'Atention'"):
        attnwidget.Atention  # noqa: B018  # type: ignore[attr-defined]
    assert set(dir(attnwidget)) == set(attnwidget.__all__)
