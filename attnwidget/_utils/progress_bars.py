"""Bars of tqdm, which is imported once a bar is drawn."""

from __future__ import annotations

from typing import Any


def progress_bar() -> Any:
    """Return tqdm's bar for these surroundings, which is a widget in a notebook and a line in a terminal."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ImportError("progress=True draws a bar with tqdm: pip install 'attnwidget[progress]'") from None
    return tqdm
