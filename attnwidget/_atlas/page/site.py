"""`to_html`: an atlas as a folder of pages, for a disk or a web server, without a kernel or a network."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from pathlib import Path
from typing import Any

from ..._export.look.colors import LOOKS
from ..._tokens.characters import one_line
from ..._utils import files
from ..._utils.assets import bundled
from .atlas_view import AtlasView
from .contents import card_of, index_of

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}
body {{ margin: 24px; font: 12px/16px system-ui, sans-serif; background: {light}; }}
@media (prefers-color-scheme: dark) {{ body {{ background: {dark}; }} }}
@media (max-width: 800px) {{ body {{ margin: 8px; }} }}
</style>
</head>
<body>
<main id="attnwidget-atlas"></main>
<noscript>{still}</noscript>
<script>{script}</script>
</body>
</html>
"""


def write_site(
    atlas: AtlasView, folder: str | os.PathLike[str], *, other: AtlasView | None = None, title: str | None = None
) -> Path:
    """Write an atlas as pages; see `Atlas.to_html`."""
    if title is not None and not isinstance(title, str):
        raise TypeError(f"title is {type(title).__name__}: give a string")
    target = files.as_path(folder, "atlas")
    if target.exists() and not target.is_dir():
        raise NotADirectoryError(f"{folder} is a file: give the name of a folder")
    index = index_of(atlas, other, title, live=False)
    heads = target / "heads"
    heads.mkdir(parents=True, exist_ok=True)
    for start, one in (("", atlas), *([] if other is None else [("other-", other)])):
        for layer, count in enumerate(one.heads_of_layers):
            for head in range(count):
                key = f"{start}{layer}-{head}"
                text = f"attnwidgetAtlas.card({_json(key)}, {_json(card_of(one, layer, head))});\n"
                files.write(heads / f"{key}.js", text.encode("utf-8", "replace"))
    made = target / "index.html"
    files.write(made, _page(index).encode("utf-8", "replace"))
    return made


def _page(index: dict[str, Any]) -> str:
    start = f'attnwidgetAtlas.page(document.getElementById("attnwidget-atlas"), {_json(index)}, "auto");'
    script = f"{bundled('atlas.js').replace('</script', chr(60) + chr(92) + '/script')}\n{start}"
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8", "replace")).digest()).decode()
    return PAGE.format(
        policy=f"default-src 'none'; script-src 'sha256-{digest}' 'self' file:; style-src 'unsafe-inline'; "
        "img-src data:; connect-src 'none'; base-uri 'none'; form-action 'none'",
        title=html.escape(one_line(index["title"]) or "Atlas"),
        style=bundled("atlas.css").replace("</style", "<\\/style"),
        light=LOOKS["light"].page,
        dark=LOOKS["dark"].page,
        still="".join(f"<p>{html.escape(one)}</p>" for one in (index["title"], *index["facts"])),
        script=script,
    )


def _json(value: Any) -> str:
    """Return JSON that can stand in a script: no token ends it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
