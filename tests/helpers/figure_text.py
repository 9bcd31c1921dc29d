"""What a widget's figure has in it, as SVG."""

from __future__ import annotations

import io
import re
from typing import Any

from attnwidget import AttentionWidget


def page(w: AttentionWidget, **keywords: Any) -> str:
    """Return the figure as SVG."""
    into = io.StringIO()
    w.figure(**keywords).savefig(into, format="svg")
    return into.getvalue()


def texts(w: AttentionWidget, **keywords: Any) -> list[str]:
    """Return what is written in it, piece by piece."""
    return re.findall(r"<text [^>]*>([^<]*)</text>", page(w, **keywords))
