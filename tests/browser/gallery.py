"""Widgets on a plain page, without Jupyter: the real front-end on states that the real `AttentionWidget` made.

The page's kernel is this process: requests are answered and traits taken by the widget itself, through Playwright.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab import OfflinePages, Page

from attnwidget import AttentionWidget, requests, widget

HOST_BUNDLE = Path(__file__).parents[2] / "js" / "dist" / "host.js"

# What each host says of its theme, and the colours that it puts behind and into a widget.
HOSTS = {
    "plain-light": '<body style="background:#fff;color:#222">',
    "plain-dark": '<body style="background:#111;color:#eee" class="dark-theme">',
    "jupyter-light": '<body data-jp-theme-light="true" style="background:#fff;--jp-layout-color0:#fff">',
    "jupyter-dark": '<body data-jp-theme-light="false" style="background:#111;--jp-layout-color0:#111">',
    "jupyter-contrast": '<body data-jp-theme-light="false" data-jp-theme-name="JupyterLab Dark High Contrast">',
    "vscode-dark": (  # a white panel behind pale text, and Jupyter's variables, always light
        '<body data-vscode-theme-kind="vscode-dark" style="background:#fff;color:#ccc;--jp-layout-color0:#fff;'
        '--vscode-editor-background:#1f1f1f;--vscode-font-family:sans-serif">'
    ),
    "vscode-contrast": (
        '<body data-vscode-theme-kind="vscode-high-contrast" style="background:#fff;color:#fff;'
        '--vscode-editor-background:#000;--vscode-font-family:sans-serif">'
    ),
    "vscode-contrast-light": (
        '<body data-vscode-theme-kind="vscode-high-contrast-light" style="background:#fff;color:#000;'
        '--vscode-editor-background:#fff;--vscode-font-family:sans-serif">'
    ),
}

SCRIPT = """
import widget from "./widget.js";
const { mount, reviveState } = attnwidgetHost;
window.mounted = [];
window.start = async (states, live) => {
  for (const [index, el] of [...document.querySelectorAll(".mount")].entries()) {
    const kernel = {
      answer: async (request) => reviveState(await window.answer(index, request)),
      take: async (changes) => reviveState(await window.take(index, changes)),
    };
    window.mounted.push(await mount(widget, el, reviveState(states[index]), live ? kernel : {}));
  }
};
"""


def portable(value: Any) -> Any:
    """A value for JSON, its bytes as base64: what `reviveState` reads."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {name: portable(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [portable(inner) for inner in value]
    return value


def state_of(shown: AttentionWidget) -> dict[str, Any]:
    """A widget's traits as they travel."""
    names = [name for name in shown.keys if not name.startswith("_") and name not in ("layout", "tabbable", "tooltip")]
    return dict(shown.get_state(names))


def show(
    offline_page: OfflinePages,
    widgets: Sequence[AttentionWidget],
    *,
    host: str = "plain-light",
    widths: Sequence[int] | int = 900,
    live: bool = True,
    **context: Any,
) -> Page:
    """Open a page with these widgets, one below the other, and wait until each has drawn."""
    widths = [widths] * len(widgets) if isinstance(widths, int) else widths
    mounts = "".join(f'<div class="mount" style="width:{width}px;margin:0 0 24px"></div>' for width in widths)
    html = (
        f'<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="widget.css">{HOSTS[host]}{mounts}'
        f'<script src="host.js"></script><script type="module">{SCRIPT}</script>'
    )
    files = {name: widget.STATIC / name for name in ("widget.js", "widget.css")} | {"host.js": HOST_BUNDLE}
    page = offline_page(html, files=files, **context)
    page.page.expose_function("answer", _answerer(widgets))
    page.page.expose_function("take", _taker(widgets))
    page.page.wait_for_function("() => typeof window.start === 'function'")
    states = [portable(state_of(shown)) for shown in widgets]
    page.page.evaluate("([states, live]) => window.start(states, live)", [states, live])
    page.page.wait_for_function(
        "() => [...document.querySelectorAll('[data-aw=picture]')].every((c) => c.width > 0) && "
        "document.querySelectorAll('.aw-ghost').length === 0"
    )
    return page


def _answerer(widgets: Sequence[AttentionWidget]) -> Any:
    def answer(index: int, request: dict[str, Any]) -> Any:
        shown = widgets[index]
        reply = requests.answer(shown._stack, {"requests": [request]}, lambda: None)
        assert reply is not None
        body, buffers = reply
        (only,) = body["replies"]
        if not only["ok"]:
            raise RuntimeError(only["error"])
        for name, value in only.items():
            if isinstance(value, dict) and isinstance(value.get("data"), int):
                only[name] = {**value, "data": buffers[value["data"]]}
        return portable(only)

    return answer


def _taker(widgets: Sequence[AttentionWidget]) -> Any:
    def take(index: int, changes: dict[str, Any]) -> Any:
        widgets[index].set_state(changes)
        return portable(state_of(widgets[index]))

    return take
