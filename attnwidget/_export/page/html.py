"""`to_html`: write a widget as one file that works without Jupyter, a kernel, or a network."""

from __future__ import annotations

import base64
import hashlib
import html
import os
import pathlib
from collections.abc import Generator
from typing import Any

from ..._engine.softmax import run_to_end
from ..._tokens.characters import one_line
from ..._utils import files
from ..._utils.assets import bundled, whole_script
from ..look.colors import LOOKS, Look, look_of
from ..still.preview import preview_of
from ..view import SavedHead, WidgetView
from . import snapshot

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="{schemes}">
<title>{title}</title>
<style>
{style}
body {{ margin: 24px; font: 12px/16px system-ui, sans-serif; {colors} }}
{dark}
footer {{ margin: 24px 4px 0; font-size: 11px; opacity: .75; }}
img {{ max-width: 100%; }}
@media (max-width: 800px) {{ body {{ margin: 8px; }} }}
</style>
</head>
<body>
<main id="attnwidget"><p>Opening …</p></main>
<footer>{footer}</footer>
<noscript>{still}</noscript>
<script type="text/plain" id="attnwidget-data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def to_html(
    widget: WidgetView,
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    layers: Any = None,
    heads: Any = None,
    samples: Any = "selected",
    limit: int = snapshot.DEFAULT_LIMIT,
) -> pathlib.Path:
    """Write a widget as one HTML file; `AttentionWidget.to_html` says more."""
    target = files.writable(path, "attention.html")
    if isinstance(limit, bool) or not isinstance(limit, int) or limit <= 0:
        raise ValueError(f"limit is {limit!r}: give a number of bytes, such as {snapshot.DEFAULT_LIMIT} for 32 MiB")
    if title is not None and not isinstance(title, str):
        raise TypeError(f"title is {type(title).__name__}: give a string")
    choices = snapshot.choices_of(widget, layers, heads, samples, limit)
    page = run_to_end(making_page(widget, choices, title))
    if len(page) > limit:
        raise ValueError(
            f"the file would have {len(page) / (1 << 20):,.1f} MiB, more than {limit / (1 << 20):,.1f} MiB: "
            "save fewer (layers=[…], heads=[…]), or give limit=… in bytes"
        )
    files.write(target, page)
    return pathlib.Path(path).expanduser()


def making_page(widget: WidgetView, choices: list[SavedHead], title: str | None) -> Generator[float, None, bytes]:
    """Make the HTML page of a widget with some of its heads in steps, as UTF-8; yields the share done."""
    saved = yield from snapshot.saving(widget, choices)
    whole = saved.whole(whole_script())
    if title is not None:
        whole["state"]["title"] = title.encode("utf-8", "replace").decode()
    script = bundled("page.js").replace("</script", "<\\/script")
    look = look_of(widget.traits.theme)
    auto = widget.traits.theme == "auto"
    page = PAGE.format(
        policy=_policy(script),
        schemes="light dark" if auto else "dark" if look.dark else "light",
        title=html.escape(one_line(whole["state"]["title"]) or "Attention"),
        style=bundled("widget.css").replace("</style", "<\\/style"),
        colors=_colors(look),
        dark=_dark(auto) + _asked(),
        footer=html.escape(one_line(_footer(widget, choices))),
        still=_preview(widget),
        data=base64.b64encode(snapshot.packed(whole)).decode(),
        script=script,
    )
    return page.encode("utf-8")


def _policy(script: str) -> str:
    """Return the page's security policy: it runs only its one script and what that unpacks, with no network access."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}' blob:; style-src 'unsafe-inline'; img-src data: blob:; "
        "connect-src 'none'; base-uri 'none'; form-action 'none'"
    )


def _footer(widget: WidgetView, choices: list[SavedHead]) -> str:
    """Return a line that says what the file holds and omits."""
    layers, there = sorted({choice.layer for choice in choices}), len(widget.shown.stack)
    heads = {choice.head for choice in choices}
    shape = widget.selected.shape
    words = [f"forward pass {widget.traits.forward:,}"] if widget.traits.forwards > 1 else []
    words += [widget.traits.stack] if widget.traits.stack else []
    if there > 1:
        words.append("all layers" if len(layers) == there else f"layer{'s' * (len(layers) > 1)} {_listed(layers)}")
    if shape.H > 1:
        words.append("all heads" if len(heads) == shape.H else f"head{'s' * (len(heads) > 1)} {_listed(sorted(heads))}")
    saved = f": {', '.join(words)}" if words else ""
    others = snapshot.left_out(widget, choices)
    more = f" {others}" if others else ""
    return f"Saved from attnwidget{saved}. All numbers were computed then; anything else needs the notebook.{more}"


def _listed(numbers: list[int]) -> str:
    """Return numbers as text: 5, or 1 to 4, or 0, 2, 7."""
    first, last = numbers[0], numbers[-1]
    if len(numbers) > 2 and last - first + 1 == len(numbers):
        return f"{first} to {last}"
    return ", ".join(map(str, numbers))


def _dark(auto: bool) -> str:
    """Return the style of a page that follows the system's theme."""
    dark = LOOKS["dark"]
    return f"@media (prefers-color-scheme: dark) {{ body {{ {_colors(dark)} }} }}\n" if auto else ""


def _asked() -> str:
    """Return the style for a page whose address sets a theme, `#theme=dark`."""
    roots = {name: f":root[data-theme={name}]" for name in ("light", "dark")}
    return "\n".join(
        f"{root} {{ color-scheme: {name}; }} {root} body {{ {_colors(LOOKS[name])} }}" for name, root in roots.items()
    )


def _colors(look: Look) -> str:
    return f"background: {look.page}; color: {look.ink};"


def _preview(widget: WidgetView) -> str:
    made = preview_of(widget)
    if made is None:
        return ""
    name = html.escape(one_line(repr(widget.traits)))
    content = base64.b64encode(made.png).decode()
    return f'<img alt="{name}" width="{made.width}" src="data:image/png;base64,{content}">'
