"""Files that the browser saves: made in slices, then sent part by part."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from ..._engine import cost
from ..._export.page import snapshot
from ..._export.page.html import making_page
from ..._export.view import WidgetView
from ..._messages.answers.long_answers import FilePart

MOST_BYTES = 8 << 20  # of a file sent to a page; to_html writes larger ones
MOST_CELLS = 1 << 25  # of all heads of an HTML file together; more take long
SLICE_SECONDS = 0.15  # a slice ends after the step that passes this time
SLICE_CELLS = 1 << 27  # the cost of a slice within a message's budget
WAYS = {"html": 'w.to_html("attention.html")', "svg": 'w.figure().savefig("attention.svg")'}
WAYS["png"] = WAYS["svg"].replace("svg", "png")


class Chosen(NamedTuple):
    """The user's choices as plain values, and the given inputs as they are."""

    values: dict[str, Any]
    given: tuple[Any, ...]

    def is_the_same(self, other: Chosen) -> bool:
        """Return whether the choices and inputs are the same."""
        return self.values == other.values and all(a is b for a, b in zip(self.given, other.given, strict=True))


class FileInTheMaking(NamedTuple):
    """A file in the making, for the choices at its start."""

    kind: str
    name: str
    chosen: Chosen
    steps: Generator[float, None, bytes]


class RequestedFiles:
    """The file that is being made or sent.

    Args:
        view: returns the widget for exports.
        chosen: returns the user's choices; a whole file belongs to one choice.
    """

    def __init__(self, view: Callable[[], WidgetView], chosen: Callable[[], Chosen]) -> None:
        self._view, self._chosen = view, chosen
        self._making: FileInTheMaking | None = None
        self._kept: tuple[str, str, bytes] | None = None  # format, name and content

    def forget(self) -> None:
        """Drop the file."""
        self._making = self._kept = None

    def part(self, kind: str, start: int, most: int, budget: cost.CostBudget) -> FilePart:
        """Return a part of a file: it is made at the request for the first part, and kept until the last.

        Args:
            kind: "png", "svg" or "html".
            start: the number of bytes already received.
            most: the greatest size of the part, bytes.
            budget: the rest of the message's budget.

        Raises:
            ValueError: the file would be too large, or take too long; or another file or choice has replaced it.
        """
        if start == 0:
            making, share = self._make(kind, budget)
            if share < 1:
                return FilePart(making.name, 0, b"", share)
        if self._kept is None or self._kept[0] != kind or start >= len(self._kept[2]):
            raise ValueError("this file is no longer available: save it again")
        _, name, content = self._kept
        part = content[start : start + most]
        if start + len(part) >= len(content):
            self._kept = None
        return FilePart(name, len(content), part, 1.0)

    def _make(self, kind: str, budget: cost.CostBudget) -> tuple[FileInTheMaking, float]:
        """Make another slice of a file, at least one step if the budget allows any; return the finished share."""
        making, self._making, share = self._making, None, 0.0
        if making is None or making.kind != kind:
            view = self._view()
            making = FileInTheMaking(kind, _name_of(view, kind), self._chosen(), _making(view, kind))
        elif not making.chosen.is_the_same(self._chosen()):
            raise ValueError("the selection changed while this file was made: save it again")
        until = time.monotonic() + SLICE_SECONDS
        try:
            while budget.left > 0:
                share = next(making.steps)
                if time.monotonic() >= until:
                    budget.use(SLICE_CELLS)
                    break
        except StopIteration as end:
            budget.use(SLICE_CELLS)
            self._kept, share = (kind, making.name, end.value), 1.0
        else:
            self._making = making
        return making, min(share, 0.999) if self._making else share


def _name_of(view: WidgetView, kind: str) -> str:
    traits = view.traits
    parts = [f"layer-{traits.layer}"] if len(view.shown.stack) > 1 else []
    parts += [f"head-{traits.head}"] if view.selected.shape.H > 1 and traits.view != "heads" else []
    return f"{'-'.join(['attention', *parts])}.{kind}"


def _making(view: WidgetView, kind: str) -> Generator[float, None, bytes]:
    """Make a file in steps; yield the finished share."""
    advice = f"{WAYS[kind]} in a cell writes it"
    if kind == "html":
        choices = snapshot.choices_of(view)
        shapes = [view.shown.stack[choice.layer].shape for choice in choices]
        if sum(shape.Q * shape.K for shape in shapes) > MOST_CELLS:
            raise ValueError(f"this file takes long to make: {advice}")
        content = yield from making_page(view, choices, None)
    else:
        content = yield from _drawing(view, kind)
    if len(content) > MOST_BYTES:
        raise ValueError(f"the file has {len(content) / (1 << 20):,.1f} MiB, too much to send to the page: {advice}")
    return content


def _drawing(view: WidgetView, kind: str) -> Generator[float, None, bytes]:
    """Draw a figure in steps, because importing matplotlib takes longer than drawing."""
    into = io.BytesIO()
    try:
        import matplotlib

        yield 0.2
        import matplotlib.figure  # noqa: F401

        yield 0.4
        from ..._export.figure import figure_of

        figure = figure_of(view, width=6.5, dpi=200)
        yield 0.6
        figure.savefig(into, format=kind)
    except ImportError as error:  # matplotlib is missing; this is not a mistake of the widget
        raise ValueError(str(error)) from error
    return into.getvalue()
