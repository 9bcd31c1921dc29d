"""The front-end's script and style: sent once per kernel, and found by every widget on a page."""

from __future__ import annotations

import sys
import threading
from typing import Any, ClassVar

import traitlets
from ipywidgets import Widget

from ..._utils.assets import bundled, parts, whole_script


class FrontEnd(Widget):  # type: ignore[misc]  # ipywidgets has no types
    """The script and the style sheet for all widgets, in a model that is saved with them, like their layouts."""

    code = traitlets.Unicode().tag(sync=True)
    parts = traitlets.Dict().tag(sync=True)  # of the script, by name; each is unpacked when its view is opened
    style = traitlets.Unicode().tag(sync=True)

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _shared: ClassVar[FrontEnd | None] = None

    @classmethod
    def shared(cls) -> FrontEnd:
        """Return this kernel's model; a new one if it was closed, for example by `Widget.close_all()`."""
        with cls._lock:
            if cls._shared is None or cls._shared.comm is None:
                cls._shared = cls(**_front_end())
            return cls._shared


class FrontEndTraits(traitlets.HasTraits):
    """The script and style that a widget sends: a loader that finds the shared model, or everything if none is shared.

    marimo has no other models than its widgets, and Colab shows each output in a separate page.
    """

    # These traits hold the text, not paths: anywidget would watch the files, and so keep every widget alive.
    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)
    _front_end = traitlets.Instance(FrontEnd, allow_none=True).tag(
        sync=True, to_json=lambda shared, widget: reference_to(shared)
    )

    @traitlets.default("_front_end")
    def _shared_front_end(self) -> FrontEnd | None:
        return FrontEnd.shared() if shares_models() else None

    @traitlets.default("_esm")
    def _script(self) -> str:
        return bundled("loader.js") if self._front_end is not None else whole_script()

    @traitlets.default("_css")
    def _style(self) -> str:
        return "" if self._front_end is not None else bundled("widget.css")


def is_of_marimo(comm: Any) -> bool:
    """Return whether a widget's channel belongs to marimo, whose element reads its value from the widget's state."""
    return type(comm).__module__.partition(".")[0] == "marimo"


def reference_to(shared: FrontEnd | None) -> str | None:
    """Return the reference to a model for the page, as ipywidgets writes it; None if it was closed."""
    return None if shared is None or shared.comm is None else f"IPY_MODEL_{shared.model_id}"


def shares_models() -> bool:
    """Return whether this host keeps models that several widgets share, as Jupyter does."""
    marimo: Any = sys.modules.get("marimo")
    in_marimo = marimo is not None and getattr(marimo, "running_in_notebook", bool)()
    return "google.colab" not in sys.modules and not in_marimo


def answer_script(content: Any) -> dict[str, Any] | None:
    """Return the answer to a loader that has not found the front-end; None for any other message."""
    if not isinstance(content, dict) or "script" not in content:
        return None
    return {"script": _front_end()}


def _front_end() -> dict[str, Any]:
    """Return the script, its parts and the style sheet."""
    return {"code": bundled("widget.js"), "parts": parts(), "style": bundled("widget.css")}
