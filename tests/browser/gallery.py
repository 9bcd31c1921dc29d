"""Widgets on a plain page, without Jupyter: the real front-end on states that the real `AttentionWidget` made.

The page's kernel is this process: requests are answered and traits taken by the widget itself, through Playwright. The
kernel can be made to wait (`hold`, `release`) and to end (`end_kernel`). It answers only: what a widget goes on to
compute by itself, as the masses of long texts, reaches the page with the answer to a trait, or by `finish`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab import SCREENSHOTS, SLOWER, OfflinePages, Page

from attnwidget import AttentionWidget
from attnwidget._messages.answers import requests
from attnwidget._utils.assets import STATIC, whole_script

HOST_BUNDLE = Path(__file__).parents[2] / "js" / "dist" / "host.js"
AUDIT = (Path(__file__).parent / "audit.js").read_text(encoding="utf-8")
MARGIN = 8  # of the page, on each side of a widget

# What each host says of its theme, and the colors that it puts behind and into a widget. Fonts differ on purpose: the
# plain hosts have the system's, the others Inter or a Helvetica if they are installed.
_FONTS = "Inter,&quot;Liberation Sans&quot;,sans-serif"
HOSTS = {
    "plain-light": '<body style="background:#fff;color:#222">',
    "plain-dark": '<body style="background:#111;color:#eee" class="dark-theme">',
    "jupyter-light": (
        '<body data-jp-theme-light="true" data-jp-theme-name="JupyterLab Light" '
        f'style="background:#fff;--jp-layout-color0:#fff;--jp-ui-font-size1:13px;--jp-ui-font-family:{_FONTS}">'
    ),
    "jupyter-dark": (
        '<body data-jp-theme-light="false" data-jp-theme-name="JupyterLab Dark" '
        f'style="background:#111;--jp-layout-color0:#111;--jp-ui-font-size1:13px;--jp-ui-font-family:{_FONTS}">'
    ),
    "jupyter-contrast": (
        '<body data-jp-theme-light="false" data-jp-theme-name="JupyterLab Dark High Contrast" '
        f'style="background:#000;--jp-layout-color0:#000;--jp-ui-font-size1:13px;--jp-ui-font-family:{_FONTS}">'
    ),
    "jupyter-large": (  # the reader has made everything larger
        '<body data-jp-theme-light="true" data-jp-theme-name="JupyterLab Light" '
        f'style="background:#fff;--jp-layout-color0:#fff;--jp-ui-font-size1:18px;--jp-ui-font-family:{_FONTS}">'
    ),
    "vscode-light": (
        '<body data-vscode-theme-kind="vscode-light" style="background:#fff;color:#333;--jp-layout-color0:#fff;'
        f'--vscode-editor-background:#fff;--vscode-font-family:{_FONTS};--vscode-focusBorder:#0090f1">'
    ),
    "vscode-dark": (  # a white panel behind pale text, and Jupyter's variables, always light
        '<body data-vscode-theme-kind="vscode-dark" style="background:#fff;color:#ccc;--jp-layout-color0:#fff;'
        f'--vscode-editor-background:#1f1f1f;--vscode-font-family:{_FONTS};--vscode-focusBorder:#0078d4">'
    ),
    "vscode-contrast": (
        '<body data-vscode-theme-kind="vscode-high-contrast" style="background:#fff;color:#fff;'
        f'--vscode-editor-background:#000;--vscode-font-family:{_FONTS};--vscode-focusBorder:#f38518">'
    ),
    "vscode-contrast-light": (
        '<body data-vscode-theme-kind="vscode-high-contrast-light" style="background:#fff;color:#000;'
        f'--vscode-editor-background:#fff;--vscode-font-family:{_FONTS};--vscode-focusBorder:#006bbd">'
    ),
    "sepia": '<body style="background:#f4ecd8;color:#433422">',
}

SCRIPT = """
import widget from "./widget.js";
const { mount, reviveState } = attnwidgetHost;
window.mounted = [];
window.pending = 0;
window.slower = $SLOWER;
let open = Promise.resolve();
let release = () => {};
window.taking = 0; // changes that Python has not taken yet
window.isHeld = false;
window.hold = () => { window.isHeld = true; open = new Promise((resolve) => { release = resolve; }); };
window.release = () => { window.isHeld = false; release(); };
window.endKernel = () => { for (const { host } of window.mounted) host.dead = true; };
window.bytesPerSecond = Infinity; // of all that Python says: one thing after the other
let free = 0;
const through = async (said) => {
  if (window.bytesPerSecond === Infinity) return;
  const now = performance.now();
  free = Math.max(now, free) + (1000 * JSON.stringify(said).length) / window.bytesPerSecond;
  await new Promise((resolve) => setTimeout(resolve, free - now));
};
let last = Promise.resolve();
const late = () => { // each after the one before
  const wait = () => new Promise((resolve) => setTimeout(resolve, 20 * window.slower * Math.random()));
  last = last.then(wait);
  return last;
};
const ask = async (question) => {
  window.pending++;
  try {
    await open;
    if (window.slower > 1) await late();
    const said = await question();
    await through(said);
    return reviveState(said);
  } finally {
    window.pending--;
  }
};
window.start = async (states, live, detached = false) => {
  for (const [index, el] of [...document.querySelectorAll(".mount")].entries()) {
    const kernel = {
      answer: (request) => ask(() => window.answer(index, request)),
      take: async (changes) => {
        window.taking++;
        try {
          return await ask(() => window.take(index, changes));
        } finally {
          window.taking--;
        }
      },
    };
    const place = el.parentElement;
    if (detached) el.remove();
    window.mounted.push(await mount(widget, el, reviveState(states[index]), live ? kernel : {}));
    if (detached) place.append(el);
  }
};
"""

SCRIPT = SCRIPT.replace("$SLOWER", f"{SLOWER:g}")

# In one question to the page: a settled page is asked for some ten thousand times.
SETTLED = """async (seconds) => {
  const frames = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())));
  const isTaken = () => window.isHeld || !window.taking;
  const isDrawn = (root) => {
    const picture = root.querySelector("[data-aw=picture]");
    const status = root.querySelector("[data-aw=status]");
    if (root.querySelector(".aw-stage[aria-busy=true]")) return false; // the view before is still there
    if (root.querySelector(".aw-why > .aw-prompt")) return status.textContent;
    const sized = picture?.style.width || picture?.matches(".aw-steps-row");
    return sized && picture.getAttribute("aria-label") && status.textContent;
  };
  const isSettled = () => {
    const roots = [...document.querySelectorAll(".mount")];
    return isTaken() && document.querySelectorAll(".aw-ghost").length === 0 && roots.every(isDrawn);
  };
  const last = performance.now() + 1000 * seconds;
  await frames();
  while (!isSettled()) {
    if (performance.now() > last) throw new Error(`not drawn after ${seconds} s`);
    await frames();
  }
  await frames();
}"""


def front_end_files() -> dict[str, str | Path]:
    """Return what a page needs to show widgets without Jupyter, by name; the script with all its parts."""
    return {"widget.js": whole_script(), "widget.css": STATIC / "widget.css", "host.js": HOST_BUNDLE}


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


class Gallery:
    """A page with widgets, one below the other."""

    def __init__(self, shown: Page, widgets: Sequence[AttentionWidget]) -> None:
        self.shown = shown
        self.page = shown.page
        self.widgets = widgets

    @property
    def faults(self) -> list[str]:
        """What a reader would complain about, and what the console and the network say: empty if all is well."""
        found: list[str] = self.page.evaluate(AUDIT)
        found += [f"console, {message.kind}: {message.text}" for message in self.shown.problems]
        return found + [f"fetched from outside: {url}" for url in self.shown.blocked]

    def check(self, also: Sequence[str] = ()) -> None:
        """Nothing is amiss, nor was before (`also`)."""
        faults = [*also, *self.faults]
        assert not faults, "\n".join([f"{len(faults)} faults", *faults])

    def place(self, query: int, key: int, index: int = 0) -> tuple[float, float]:
        """The middle of a cell on the page, as long as nothing is zoomed."""
        facts = self.widgets[index].facts
        box = self.page.locator("[data-aw=picture]").nth(index).bounding_box()
        assert box is not None
        across, down = (key + 0.5) / facts["keys"], (query + 0.5) / facts["queries"]
        return box["x"] + box["width"] * across, box["y"] + box["height"] * down

    def hover(self, query: int, key: int, index: int = 0) -> None:
        self.page.mouse.move(*self.place(query, key, index))

    def click(self, query: int, key: int, index: int = 0) -> None:
        self.page.mouse.click(*self.place(query, key, index))

    def leave(self) -> None:
        """Take the pointer off all widgets."""
        self.page.mouse.move(1, 1)

    def menu(self, name: str) -> None:
        """Open one of the toolbar's menus."""
        self.page.locator(f".aw-menu[aria-label='{name}'] > button").first.click()
        self.page.wait_for_selector(f".aw-popup[aria-label='{name}']")

    def choose(self, menu: str, item: str) -> None:
        self.menu(menu)
        self.page.get_by_role("menuitemradio", name=item).first.click()
        self.settle()

    def settle(self) -> None:
        """Wait until Python has taken what was set, unless the kernel is busy, and all that is due has been drawn."""
        self.page.evaluate(SETTLED, 30)

    def wait_for_lines(self) -> None:
        """Wait until all that the view has asked the kernel for has arrived and is drawn."""
        self.shown.rest()
        self.settle()

    def finish(self) -> None:
        """Have computed and shown what comes later of Python's own accord: the page hears of it by this alone."""
        for index, shown in enumerate(self.widgets):
            shown.finish()
            self.page.evaluate(
                "([index, state]) => window.mounted[index].host.fromPython(attnwidgetHost.reviveState(state))",
                [index, portable(state_of(shown))],
            )

    def pixels(self, index: int = 0) -> str:
        """The picture as a data URL: equal for equal pictures."""
        picture = self.page.locator("[data-aw=picture]").nth(index)
        url: str = picture.evaluate("(canvas) => canvas.toDataURL()")
        return url

    def zoom(self, query: int, key: int, by: float) -> None:
        """Ctrl + wheel over a cell, `by` > 0 is in."""
        self.hover(query, key)
        self.page.keyboard.down("Control")
        for _ in range(round(abs(by))):
            self.page.mouse.wheel(0, -50 if by > 0 else 50)
        self.page.keyboard.up("Control")
        self.settle()

    def hold(self) -> None:
        """From now on the kernel is busy."""
        self.page.evaluate("() => window.hold()")

    def release(self) -> None:
        self.page.evaluate("() => window.release()")

    def end_kernel(self) -> None:
        self.page.evaluate("() => window.endKernel()")

    def screenshot(self, name: str) -> None:
        """Save a picture of all widgets and of what floats over them."""
        if not Page.keeps_pictures:
            return
        width, height = self.page.evaluate(
            """() => {
              const nodes = [...document.querySelectorAll(".attnwidget, .attnwidget *")];
              const bottom = Math.max(...nodes.map((node) => node.getBoundingClientRect().bottom));
              return [innerWidth, Math.ceil(bottom + scrollY + 8)];
            }"""
        )
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        path = SCREENSHOTS / f"gallery-{name}.png"
        clip = {"x": 0, "y": 0, "width": width, "height": height}
        self.page.screenshot(path=path, full_page=True, clip=clip, animations="disabled")  # type: ignore[arg-type]


def show(
    offline_page: OfflinePages,
    widgets: Sequence[AttentionWidget] | AttentionWidget,
    *,
    host: str = "plain-light",
    width: int = 900,
    height: int = 1400,
    live: bool = True,
    **context: Any,
) -> Gallery:
    """Open a page with these widgets, `width` pixels wide, and wait until each has drawn."""
    widgets = [widgets] if isinstance(widgets, AttentionWidget) else widgets
    mounts = '<div class="mount" style="margin:0 0 24px"></div>' * len(widgets)
    html = (
        f'<!doctype html><meta charset="utf-8"><title>attnwidget</title><link rel="stylesheet" href="widget.css">'
        f"<style>html{{scrollbar-width:none}}body{{margin:{MARGIN}px}}</style>{HOSTS[host]}{mounts}"
        f'<script src="host.js"></script><script type="module">{SCRIPT}</script>'
    )
    files = front_end_files()
    context = {"width": width + 2 * MARGIN, "height": height, "reduced_motion": "reduce", **context}
    page = offline_page(html, files=files, **context)
    page.expose("answer", answerer(widgets))
    page.expose("take", taker(widgets))
    page.page.wait_for_function("() => typeof window.start === 'function'")
    states = [portable(state_of(shown)) for shown in widgets]
    page.page.evaluate("([states, live]) => window.start(states, live)", [states, live])
    gallery = Gallery(page, widgets)
    gallery.settle()
    return gallery


def answerer(widgets: Sequence[AttentionWidget]) -> Any:
    """What answers the requests of a page's widgets."""

    def answer(index: int, request: dict[str, Any]) -> Any:
        shown = widgets[index]
        reply = requests.answer(shown._request_context(), {"requests": [request]})
        assert reply is not None
        body, buffers = reply
        (only,) = body["replies"]
        if not only["ok"]:
            raise RuntimeError(only["error"])
        return portable(_attached(only, buffers))

    return answer


def _attached(part: Any, buffers: Sequence[bytes]) -> Any:
    """With bytes in the place of the numbers of buffers, as the page takes them."""
    if isinstance(part, dict):
        if isinstance(part.get("data"), int):
            return {**part, "data": buffers[part["data"]]}
        return {name: _attached(inner, buffers) for name, inner in part.items()}
    return [_attached(inner, buffers) for inner in part] if isinstance(part, list) else part


def taker(widgets: Sequence[AttentionWidget]) -> Any:
    """What takes the traits that a page's widgets set."""

    def take(index: int, changes: dict[str, Any]) -> Any:
        widgets[index].set_state(changes)
        return portable(state_of(widgets[index]))

    return take
