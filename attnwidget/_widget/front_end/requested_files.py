"""Files that a front-end asks for, to be saved by the browser: made in slices, and then sent part by part."""

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

MOST_BYTES = 8 << 20  # of a file that is sent to a page; to_html writes larger ones
MOST_CELLS = 1 << 25  # of all heads of an HTML file together: of more it takes long
SLICE_SECONDS = 0.15  # until the step ends with which a slice does
SLICE_CELLS = 1 << 27  # that a slice is worth, of what all answers of a message may cost
WAYS = {"html": 'w.to_html("attention.html")', "svg": 'w.figure().savefig("attention.svg")'}
WAYS["png"] = WAYS["svg"].replace("svg", "png")


class Chosen(NamedTuple):
    """All that a user has chosen, as plain values, and all that was given, as it is."""

    values: dict[str, Any]
    given: tuple[Any, ...]

    def is_the_same(self, other: Chosen) -> bool:
        """Return whether nothing else was chosen or given."""
        return self.values == other.values and all(a is b for a, b in zip(self.given, other.given, strict=True))


class FileInTheMaking(NamedTuple):
    """A file that is being made, of what was chosen when that began."""

    kind: str
    name: str
    chosen: Chosen
    steps: Generator[float, None, bytes]


class RequestedFiles:
    """The file that is being made, or sent to a front-end.

    Args:
        view: returns the widget, as exports see it.
        chosen: returns what a user has chosen: a file is all of one choice.
    """

    def __init__(self, view: Callable[[], WidgetView], chosen: Callable[[], Chosen]) -> None:
        self._view, self._chosen = view, chosen
        self._making: FileInTheMaking | None = None
        self._kept: tuple[str, str, bytes] | None = None  # its format, its name, and all of it

    def forget(self) -> None:
        """Make and keep no file."""
        self._making = self._kept = None

    def part(self, kind: str, start: int, most: int, budget: cost.CostBudget) -> FilePart:
        """Return a part of a file, which is made while its first part is asked for, and kept until its last is.

        Args:
            kind: "png", "svg" or "html".
            start: how many bytes of it are known.
            most: bytes of the part, at most.
            budget: what the message has left.

        Raises:
            ValueError: it would be too large, or takes too long; or another one has been asked for since, or something
                else chosen.
        """
        if start == 0:
            making, share = self._make(kind, budget)
            if share < 1:
                return FilePart(making.name, 0, b"", share)
        if self._kept is None or self._kept[0] != kind or start >= len(self._kept[2]):
            raise ValueError("this file is no longer kept: save it again")
        _, name, content = self._kept
        part = content[start : start + most]
        if start + len(part) >= len(content):
            self._kept = None
        return FilePart(name, len(content), part, 1.0)

    def _make(self, kind: str, budget: cost.CostBudget) -> tuple[FileInTheMaking, float]:
        """Make a slice more of a file, at least a step if the budget allows any; return which share of it is made."""
        making, self._making, share = self._making, None, 0.0
        if making is None or making.kind != kind:
            view = self._view()
            making = FileInTheMaking(kind, _name_of(view, kind), self._chosen(), _making(view, kind))
        elif not making.chosen.is_the_same(self._chosen()):
            raise ValueError("something else was chosen while this file was made: save it again")
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
    """Make a file in steps; yields the share that is done."""
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
    """Draw a figure in steps: importing matplotlib takes longer than to draw."""
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
    except ImportError as error:  # matplotlib is not there: no mistake of ours
        raise ValueError(str(error)) from error
    return into.getvalue()
