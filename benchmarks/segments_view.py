"""The segments view of 2,000 answer tokens × 200 segments: script of a frame while one scrolls and points.

    python benchmarks/segments_view.py                  # a table; exits with 3 if a budget is exceeded
    python benchmarks/segments_view.py --json out.json  # and the same numbers as JSON

README.md beside this file says what each line means. It needs Chromium, the browser tests' packages and a bundle that
is built.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browser"))

import torch
from figures import Figure, finish
from frames import traced
from gallery import Gallery, show
from lab import OfflinePages, chromium

from attnwidget import AttentionWidget

FRAME = 8.0  # milliseconds of script, of 19 frames in 20
SEGMENTS, ANSWER, LAYERS, HEADS, SIZE = 200, 2000, 4, 12, 32
STEPS = 160
WORDS = ["river", "stone", "key", "mill", "and", "bread", "winter", ".", "door", "nail"]


def widget() -> AttentionWidget:
    """Documents of five tokens each and an answer, causal, 96 heads."""
    g = torch.Generator().manual_seed(0)
    count = SEGMENTS * 5 + ANSWER
    tokens = ["[CLS]", *(WORDS[at] for at in torch.randint(len(WORDS), (count,), generator=g))]
    spans = {f"passage {at}": (1 + 5 * at, 6 + 5 * at) for at in range(SEGMENTS)}
    q, k = torch.randn(2, LAYERS, 1, HEADS, len(tokens), SIZE, generator=g)
    segments = {**spans, "answer": (1 + 5 * SEGMENTS, len(tokens))}
    w = AttentionWidget(q, k, tokens=tokens, segments=segments, is_causal=True, view="segments", segment="passage 3")
    w.finish()
    return w


def acts(shown: Gallery) -> dict[str, Callable[[], None]]:
    """What a reader does, each in as many steps."""
    page = shown.page
    box = page.locator("[data-aw=picture]").bounding_box()
    matrix = page.locator("[data-aw=segment-matrix]").bounding_box()
    assert box is not None
    assert matrix is not None
    scroller = page.locator(".aw-seg-tokens > .aw-seg-scroller")

    def scroll() -> None:
        for at in range(STEPS):
            scroller.evaluate("(node, top) => { node.scrollTop = top; }", at * 40)
            page.evaluate("() => new Promise(requestAnimationFrame)")

    def move(x: float, y: float, width: float, height: float) -> None:
        for at in range(STEPS):
            share = at / STEPS
            page.mouse.move(x + share * width, y + height * (0.2 + 0.6 * (at % 7) / 7))

    def heads() -> None:
        table = page.locator(".aw-seg-heads > .aw-seg-scroller")
        for at in range(STEPS // 2):
            table.evaluate("(node, top) => { node.scrollTop = top; }", at * 20)
            page.evaluate("() => new Promise(requestAnimationFrame)")

    return {
        "scroll the tokens": scroll,
        "point at stacks": lambda: move(box["x"] + 40, box["y"] + 20, box["width"] - 60, 96),
        "point at the matrix": lambda: move(matrix["x"], matrix["y"], matrix["width"], matrix["height"]),
        "scroll the heads": heads,
    }


def measured() -> dict[str, dict[str, float]]:
    """Milliseconds of script by what is done: median, 95th percentile and the most of a frame."""
    found = {}
    with (
        chromium() as browser,
        tempfile.TemporaryDirectory() as folder,
        OfflinePages(browser, Path(folder)) as pages,
    ):
        shown = show(pages, widget(), width=900, height=1400)
        shown.wait_for_lines()
        for name, act in acts(shown).items():
            act()  # what comes into view for the first time is asked for
            shown.wait_for_lines()
            times = [time for time in traced(browser, act) if time > 0]
            found[name] = {"median": median(times), "p95": quantiles(times, n=20)[-1], "most": max(times)}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    found = measured()
    print(f"{ANSWER:,} tokens × {SEGMENTS} segments, {LAYERS * HEADS} heads: script of a frame, ms\n")
    print("| | median | 95 % | most |\n|---|--:|--:|--:|")
    for name, times in found.items():
        print(f"| {name} | {times['median']:.1f} | {times['p95']:.1f} | {times['most']:.1f} |")
    print()
    figures = [Figure(f"{name}, 95 % of frames", times["p95"], "ms", wanted=FRAME) for name, times in found.items()]
    return finish(asked.json, figures, found)


if __name__ == "__main__":
    raise SystemExit(main())
