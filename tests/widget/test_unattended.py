"""Kernels that nobody watches write the picture as an output of its own; others do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attnwidget import AttentionWidget
from attnwidget._widget.front_end import unattended

COMMANDS = [
    ("python -m nbconvert --to html --execute a.ipynb", True),
    ("/usr/bin/python3 /usr/bin/jupyter-nbconvert --execute a.ipynb", True),
    ("/usr/bin/python3 /usr/bin/papermill a.ipynb b.ipynb", True),
    ("/usr/bin/python3 /usr/bin/jupyter-lab", False),
    ("/usr/bin/python3 /usr/bin/voila a.ipynb", False),
    ("", False),
]


@pytest.mark.parametrize(("command", "is_so"), COMMANDS)
def test_only_kernels_that_nobody_watches_write_it(monkeypatch: Any, command: str, is_so: bool) -> None:
    written: list[dict[str, str]] = []
    monkeypatch.setenv("JPY_PARENT_PID", "12")
    monkeypatch.setattr(unattended, "_command", lambda pid: command)
    monkeypatch.setattr("IPython.display.publish_display_data", written.append)
    unattended.is_unattended.cache_clear()
    try:
        w = AttentionWidget(*torch.randn(2, 5, 4))
        made = w._repr_mimebundle_()
    finally:
        unattended.is_unattended.cache_clear()
    assert made is not None
    assert len(written) == is_so
    for one in written:
        assert made[0]["image/png"] in one["text/html"]
        assert w.uid in one["text/html"]


def test_a_kernel_without_a_parent_is_watched(monkeypatch: Any) -> None:
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    unattended.is_unattended.cache_clear()
    assert not unattended.is_unattended()
