"""Files that a front-end asks for, to be saved by the browser: made whole, sent part by part."""

from __future__ import annotations

import io
from collections.abc import Callable

from .._export import snapshot
from .._export.html import page_of
from .._export.view import WidgetView

MOST_BYTES = 8 << 20  # of a file that is sent to a page; to_html writes larger ones
MOST_CELLS = 1 << 25  # of all heads of an HTML file together: of more it takes long
WAYS = {"html": 'w.to_html("attention.html")', "svg": 'w.figure().savefig("attention.svg")'}
WAYS["png"] = WAYS["svg"].replace("svg", "png")


class RequestedFiles:
    """The file that is being sent to a front-end.

    Args:
        view: returns the widget, as exports see it.
    """

    def __init__(self, view: Callable[[], WidgetView]) -> None:
        self._view = view
        self._kept: tuple[str, str, bytes] | None = None  # its format, its name, and all of it

    def part(self, kind: str, start: int, most: int) -> tuple[str, int, bytes]:
        """Return a part of a file, which is made when its first part is asked for and kept until its last.

        Args:
            kind: "png", "svg" or "html".
            start: how many bytes of it are known.
            most: bytes of the part, at most.

        Returns:
            The name of the file, its length in bytes, and the part.

        Raises:
            ValueError: it would be too large, or takes too long; or another one has been asked for since.
        """
        if start == 0:
            view = self._view()
            self._kept = kind, _name_of(view, kind), _made(view, kind)
        if self._kept is None or self._kept[0] != kind or start >= len(self._kept[2]):
            raise ValueError("this file is no longer kept: save it again")
        _, name, content = self._kept
        part = content[start : start + most]
        if start + len(part) >= len(content):
            self._kept = None
        return name, len(content), part


def _name_of(view: WidgetView, kind: str) -> str:
    traits = view.traits
    parts = [f"layer-{traits.layer}"] if len(view.shown.stack) > 1 else []
    parts += [f"head-{traits.head}"] if view.selected.shape.H > 1 and traits.view != "heads" else []
    return f"{'-'.join(['attention', *parts])}.{kind}"


def _made(view: WidgetView, kind: str) -> bytes:
    advice = f"{WAYS[kind]} in a cell writes it"
    if kind == "html":
        choices = snapshot.choices_of(view)
        shapes = [view.shown.stack[choice.layer].shape for choice in choices]
        if sum(shape.Q * shape.K for shape in shapes) > MOST_CELLS:
            raise ValueError(f"this file takes long to make: {advice}")
        content = page_of(view, choices, None)
    else:
        content = _drawn(view, kind)
    if len(content) > MOST_BYTES:
        raise ValueError(f"the file has {len(content) / (1 << 20):,.1f} MiB, too much to send to the page: {advice}")
    return content


def _drawn(view: WidgetView, kind: str) -> bytes:
    from .._export.figure import figure_of

    into = io.BytesIO()
    try:
        figure_of(view, width=6.5, dpi=200).savefig(into, format=kind)
    except ImportError as error:  # matplotlib is not there: no mistake of ours
        raise ValueError(str(error)) from error
    return into.getvalue()
