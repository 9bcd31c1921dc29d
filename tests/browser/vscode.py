"""A page as VS Code shows a notebook's outputs: all in one frame of 12,000 px, scrolled by a page of another origin.

The frame's window says nothing of what can be seen of it; its body names the theme, Jupyter's variables exist and are
always light, a white panel is behind each widget, text inherits a pale color, and a widget is rendered before it is in
the page. What VS Code hears of a key is in `keys`: it has its own shortcuts on letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from gallery import AUDIT, SCRIPT, SETTLED, answerer, front_end_files, portable, state_of, taker
from lab import OfflinePages, Page
from playwright.sync_api import Frame, Locator

from attnwidget import AttentionWidget

VsCodeTheme = Literal["dark", "light", "contrast", "contrast-light"]

FRAME_HEIGHT = 12_000
FIRST = 3_000  # where the first widget begins in the frame
EDITOR = 700  # what of the frame can be seen

_KINDS = {
    "dark": ("vscode-dark", "Dark Modern", "#1f1f1f", "#cccccc", "#0078d4", "", ""),
    "light": ("vscode-light", "Light Modern", "#ffffff", "#3b3b3b", "#005fb8", "", ""),
    "contrast": (
        "vscode-high-contrast",
        "Default High Contrast",
        "#000000",
        "#ffffff",
        "#f38518",
        "#6fc3df",
        "#f38518",
    ),
    "contrast-light": (
        *("vscode-high-contrast-light", "Default High Contrast Light"),
        *("#ffffff", "#292929", "#006bbd", "#0f4a85", "#006bbd"),
    ),
}

_STYLE = """
  html { background: transparent; }
  body { margin: 0; padding: 0; color: var(--vscode-foreground); font-family: var(--vscode-font-family); }
  #container > .output { position: absolute; left: 0; right: 0; padding: 0 8px; box-sizing: border-box; }
  .cell-output-ipywidget-background { background: white !important; padding: 8px; }
  :root { --jp-layout-color0: white; --jp-ui-font-color1: rgba(0, 0, 0, .87); --jp-ui-font-size1: 13px;
          --jp-ui-font-family: Helvetica, Arial, sans-serif; --jp-widgets-inline-height: 28px; }
"""

_LISTEN = """
  window.keys = [];
  window.addEventListener("keydown", (event) => { if (!event.defaultPrevented) window.keys.push(event.key); });
"""

_EDITOR = """<!doctype html><meta charset="utf-8"><title>editor</title>
<style>
  body {{ margin: 0; background: {page}; }}
  #editor {{ height: {height}px; overflow: auto; scrollbar-width: none; }}
  iframe {{ display: block; border: 0; width: 100%; height: {frame}px; }}
</style>
<div id="editor"><iframe id="outputs" {sandbox}></iframe></div>
<script>
  const there = location.href.replace("127.0.0.1", "localhost").replace(/[^/]*$/, "outputs.html");
  document.querySelector("#outputs").src = there;
</script>"""


class VsCode:
    """Widgets in VS Code's frame, one below the other."""

    def __init__(self, shown: Page, frame: Frame, widgets: Sequence[AttentionWidget]) -> None:
        self.shown = shown
        self.page = shown.page
        self.frame = frame
        self.widgets = widgets

    @property
    def faults(self) -> list[str]:
        """What a reader would complain about, and what the console and the network say: empty if all is well."""
        found: list[str] = self.frame.evaluate(AUDIT)
        found += [f"console, {message.kind}: {message.text}" for message in self.shown.problems]
        return found + [f"fetched from outside: {url}" for url in self.shown.blocked]

    @property
    def keys(self) -> list[str]:
        """The keys that VS Code has heard of and that nobody has handled."""
        heard: list[str] = self.frame.evaluate("() => window.keys")
        return heard

    def root(self, index: int = 0) -> Locator:
        return self.frame.locator(".attnwidget").nth(index)

    def scroll_to(self, y: float) -> None:
        """Scroll the editor so that this height of the frame is at its upper edge."""
        self.page.evaluate("(y) => { document.querySelector('#editor').scrollTop = y; }", y)

    def top_of(self, locator: Locator) -> float:
        """How far from the frame's upper edge an element begins."""
        top: float = locator.evaluate("(element) => element.getBoundingClientRect().top")
        return top

    def settle(self) -> None:
        """Wait until all that is due has been drawn."""
        self.frame.evaluate(SETTLED, 30)

    def screenshot(self, name: str) -> None:
        """Save a picture of the editor."""
        self.shown.screenshot(f"vscode-{name}", of="#editor")


def show_in_vscode(
    offline_page: OfflinePages,
    widgets: Sequence[AttentionWidget] | AttentionWidget,
    *,
    theme: VsCodeTheme = "dark",
    width: int = 900,
    live: bool = True,
    sandbox: str | None = None,
    **context: Any,
) -> VsCode:
    """Open VS Code's frame with these widgets, scroll to the first, and wait until each has drawn.

    `sandbox` is what alone the frame may do, as a page says it.
    """
    widgets = [widgets] if isinstance(widgets, AttentionWidget) else widgets
    files = front_end_files()
    may = "" if sandbox is None else f'sandbox="{sandbox}"'
    html = _EDITOR.format(page=_KINDS[theme][2], height=EDITOR, frame=FRAME_HEIGHT, sandbox=may)
    outputs = {"outputs.html": _outputs(len(widgets), theme)}
    context = {"width": width, "height": EDITOR, "reduced_motion": "reduce", **context}
    page = offline_page(html, files={**files, **outputs}, **context)
    page.expose("answer", answerer(widgets))
    page.expose("take", taker(widgets))
    frame = page.page.locator("#outputs").element_handle().content_frame()
    assert frame is not None
    frame.wait_for_function("() => typeof window.start === 'function'")
    states = [portable(state_of(shown)) for shown in widgets]
    opened = VsCode(page, frame, widgets)
    opened.scroll_to(FIRST - 20)
    frame.evaluate("([states, live]) => window.start(states, live, true)", [states, live])
    opened.settle()
    return opened


def _outputs(count: int, theme: VsCodeTheme) -> str:
    """The frame: an output for each widget, and a last one of other widgets, whose panel stays white."""
    kind, name, background, color, focus, border, active = _KINDS[theme]
    variables = {
        "editor-background": background,
        "editor-foreground": color,
        "foreground": color,
        "focusBorder": focus,
        "font-family": 'system-ui, "Liberation Sans", sans-serif',
        "font-size": "13px",
        **({"contrastBorder": border, "contrastActiveBorder": active} if border else {}),
    }
    style = ";".join(f"--vscode-{name}:{value}" for name, value in variables.items()).replace('"', "&quot;")
    panel = '<div class="cell-output-ipywidget-background">{}</div>'
    inside = [panel.format('<div class="lm-Widget mount"></div>')] * count + [panel.format("another widget")]
    places = "".join(
        f'<div class="output" style="top:{FIRST + 1000 * index}px">{one}</div>' for index, one in enumerate(inside)
    )
    return (
        f'<!doctype html><html style="{style}"><meta charset="utf-8"><title>outputs</title>'
        f'<link rel="stylesheet" href="widget.css"><style>{_STYLE}</style>'
        f'<body class="{kind}" data-vscode-theme-kind="{kind}" data-vscode-theme-name="{name}">'
        f'<div id="container">{places}</div><script>{_LISTEN}</script>'
        f'<script src="host.js"></script><script type="module">{SCRIPT}</script>'
    )
