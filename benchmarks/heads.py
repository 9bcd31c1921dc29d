"""All heads at a glance: 32 layers × 32 heads × 8,192 tokens, 8 key/value heads of size 128.

    python benchmarks/heads.py                 # a table; exits with 3 if a budget is exceeded
    python benchmarks/heads.py --json out.json # and the same numbers as JSON
    python benchmarks/heads.py --no-browser

README.md beside this file says what each column means. The browser's part needs Chromium, the browser tests' packages
and a bundle that is built.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browser"))

import torch
from figures import Figure, finish

from attnwidget import Attention, AttentionStack, AttentionWidget

KERNEL, FIRST = 0.8, 2.0  # seconds, at most
FRAME = 8.0  # milliseconds of script, of 19 frames in 20
MOVES = 240  # of the pointer, over all heads
SENT = 256 * 1024  # bytes of the trait
LAYERS, HEADS, GROUPS, TOKENS, SIZE = 32, 32, 8, 8192, 128


def stack(causal: bool, count: int = LAYERS) -> AttentionStack:
    g = torch.Generator().manual_seed(0)

    def layer() -> Attention:
        q = torch.randn(1, HEADS, TOKENS, SIZE, generator=g)
        return Attention(q, torch.randn(1, GROUPS, TOKENS, SIZE, generator=g), is_causal=causal)

    return AttentionStack([layer() for _ in range(count)])


def seconds(run: Callable[[], Any], runs: int) -> list[float]:
    run()
    found = []
    for _ in range(runs):
        begun = time.perf_counter()
        run()
        found.append(time.perf_counter() - begun)
    return found


def sent(survey: dict[str, Any]) -> int:
    """Bytes of the trait: its envelopes, and the JSON around them."""
    envelopes = [part for part in (*survey["pictures"], *survey["metrics"].values()) if part is not None]
    data = sum(len(envelope["data"]) for envelope in envelopes)
    return data + len(json.dumps(survey, default=lambda _: ""))


def products(layers: AttentionStack, rows: int) -> None:
    """What none can do without: so many queries of each head times all its keys, those that share keys at once."""
    share = HEADS // GROUPS
    for att in layers:
        for group in range(GROUPS):
            q = att.q[0, group * share : (group + 1) * share, :: TOKENS // rows].flatten(0, 1)
            torch.mm(att.k[0, group], q.T)


def kernel(layers: AttentionStack, runs: int) -> dict[str, Any]:
    tokens = [f"t{i * i % 997}" for i in range(TOKENS)]
    w = AttentionWidget.from_attention(layers, tokens=tokens)

    def look() -> None:
        w._surveys.forget()
        w._token_store.forget_ids()
        w.view = "heatmap"
        w.view = "heads"

    times = seconds(look, runs)
    (rows,) = {layer["rows"] for layer in w.survey["layers"]}
    return {
        "products": median(seconds(lambda: products(layers, rows), runs)),
        "kernel": median(times),
        "quartiles": quantiles(times, method="inclusive")[::2] if len(times) > 2 else None,
        "least": min(times),
        "most": max(times),
        "bytes": sent(w.survey),
        "rows": rows,
    }


DRAWN = """() => {
  const canvas = document.querySelector("[data-aw=picture]");
  if (!canvas || !canvas.width) return false;
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const colors = new Set();
  for (let i = 0; i < data.length; i += 404) colors.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2]);
  return colors.size > 12;
}"""


def drawn(layers: AttentionStack, *, whole: bool) -> float:
    """Seconds from asking for the widget until the first heads, or all, are on the canvas of a plain page."""
    from gallery import HOSTS, SCRIPT, front_end_files, portable, state_of
    from lab import OfflinePages, chromium

    html = (
        '<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="widget.css">'
        f'{HOSTS["plain-light"]}<div class="mount"></div><script src="host.js"></script>'
        f'<script type="module">{SCRIPT}</script>'
    )
    files = front_end_files()
    with (
        chromium() as browser,
        tempfile.TemporaryDirectory() as folder,
        OfflinePages(browser, Path(folder)) as open_page,
    ):
        page = open_page(html, files=files, width=960, height=1200).page
        page.wait_for_function("() => typeof window.start === 'function'")
        begun = time.perf_counter()
        w = AttentionWidget.from_attention(layers, view="heads")
        if whole:
            w.finish()
        page.evaluate("([states, live]) => window.start(states, live)", [[portable(state_of(w))], False])
        page.wait_for_function(DRAWN, polling=10)
        return time.perf_counter() - begun


def frames(layers: AttentionStack) -> float:
    """Milliseconds of script in a frame while the pointer goes over all heads, row by row: 95 % of frames take less."""
    from frames import traced
    from gallery import show
    from lab import OfflinePages, chromium

    w = AttentionWidget.from_attention(layers, view="heads")
    w.finish()
    with (
        chromium() as browser,
        tempfile.TemporaryDirectory() as folder,
        OfflinePages(browser, Path(folder)) as open_page,
    ):
        shown = show(open_page, w, width=960)
        shown.wait_for_lines()
        box = shown.page.locator("[data-aw=picture]").bounding_box()
        assert box is not None

        def move() -> None:
            for step in range(MOVES):
                across, down = abs(step * 9 / MOVES % 2 - 1), step / MOVES
                shown.page.mouse.move(box["x"] + box["width"] * across, box["y"] + box["height"] * down)

        return quantiles(traced(browser, move), n=20)[-1]


def figures(found: dict[str, Any]) -> list[Figure]:
    budgets = {"kernel": ("s", KERNEL), "first": ("s", FIRST), "all": ("s", None)}
    budgets |= {"bytes": ("bytes", SENT), "frame": ("ms", FRAME)}
    return [
        Figure(
            f"{name}, {what}", one[what], unit, wanted=most, quartiles=one["quartiles"] if what == "kernel" else None
        )
        for name, one in found.items()
        for what, (unit, most) in budgets.items()
        if one[what] is not None
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--no-browser", action="store_true")
    parser.add_argument("--layers", type=int, default=LAYERS)
    asked = parser.parse_args()
    print(f"{asked.layers} layers × {HEADS} heads × {TOKENS:,} tokens, {GROUPS} key/value heads, D = {SIZE}, ", end="")
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}\n")
    print("| | rows | products alone | kernel | least to most | bytes | first picture | all heads | frame |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    found: dict[str, Any] = {}
    for name, causal in (("full", False), ("causal", True)):
        layers = stack(causal, asked.layers)
        one = kernel(layers, asked.runs)
        for what, whole in (("first", False), ("all", True)):
            one[what] = None if asked.no_browser else drawn(layers, whole=whole)
        one["frame"] = None if asked.no_browser else frames(layers)
        del layers  # 5 GB: before the next are made
        found[name] = one
        first, every = ("" if one[what] is None else f"{one[what]:.2f} s" for what in ("first", "all"))
        frame = "" if one["frame"] is None else f"{one['frame']:.1f} ms"
        spread = f"{one['least']:.2f} to {one['most']:.2f} s"
        bytes_sent = f"{one['bytes'] / 1024:.0f} KiB"
        print(
            f"| {name} | {one['rows']} | {one['products']:.2f} s | {one['kernel']:.2f} s | {spread} | {bytes_sent} "
            f"| {first} | {every} | {frame} |"
        )
    print()
    return finish(asked.json, figures(found), found)


if __name__ == "__main__":
    raise SystemExit(main())
