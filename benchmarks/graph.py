"""What the graph costs in the browser: script time of pointing and pinning, bytes of its links, pictures from a loop.

    python benchmarks/graph.py                 # a table
    python benchmarks/graph.py --json out.json # and the same numbers as JSON

README.md beside this file says what each column means. It needs Chromium and the browser tests' packages.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from pathlib import Path
from statistics import median, quantiles
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browser"))

import torch
from figures import Figure, finish
from gallery import Gallery, portable, show, state_of
from lab import Browser, OfflinePages, chromium

from attnwidget import AttentionWidget

SIZES = ((20, 1), (200, 4), (2000, 2))  # tokens, heads
RATES = (10, 30)  # updates a second
UPDATES = 60

# Moves the pointer over the picture and over labels, and pins, and takes the time of all script that runs for it: the
# handlers, and the frame that they asked for.
MEASURE = """
async ({ repeats }) => {
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
  const own = window.requestAnimationFrame;
  let spent = 0;
  window.requestAnimationFrame = (run) => own((now) => {
    const from = performance.now();
    run(now);
    spent += performance.now() - from;
  });
  const cost = async (act) => {
    await frame();
    spent = 0;
    const from = performance.now();
    act();
    const handled = performance.now() - from;
    await frame();
    return handled + spent;
  };
  const canvas = document.querySelector("[data-aw=picture]");
  const send = (node, type, x, y) => {
    const where = { clientX: x, clientY: y, bubbles: type !== "pointerenter" && type !== "pointerleave" };
    node.dispatchEvent(new PointerEvent(type, { pointerType: "mouse", ...where }));
  };
  const labels = () => [...document.querySelectorAll(".aw-graph-columns button.aw-label")];
  const found = { band: [], label: [], pin: [] };
  for (let i = 0; i < repeats; i++) {
    const box = canvas.getBoundingClientRect();
    const x = box.left + (0.1 + (0.8 * i) / repeats) * box.width;
    const y = box.top + (((i * 7) % repeats) / repeats) * box.height;
    found.band.push(await cost(() => send(canvas, "pointermove", x, y)));
    send(canvas, "pointerleave", x, y);
    const label = labels()[(i * 5) % Math.floor(labels().length / 2)];
    found.label.push(await cost(() => send(label, "pointerenter", 0, 0)));
    send(label, "pointerleave", 0, 0);
    await frame();
    found.pin.push(await cost(() => label.click()));
    await new Promise((done) => setTimeout(done, 150));
    canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
    await frame();
  }
  window.requestAnimationFrame = own;
  return found;
}
"""

# Sends pictures at a rate, as a kernel's messages do, and counts which of them are seen.
LOOP = """
async ({ states, rate }) => {
  const { host } = window.mounted[0];
  const canvas = document.querySelector("[data-aw=picture]");
  const { putImageData, drawImage, fill } = CanvasRenderingContext2D.prototype;
  const drawn = new Set();
  let current = -1;
  const note = (method) => function (...all) {
    if (this.canvas === canvas) drawn.add(current);
    return method.apply(this, all);
  };
  Object.assign(CanvasRenderingContext2D.prototype, {
    putImageData: note(putImageData), drawImage: note(drawImage), fill: note(fill),
  });
  const revived = states.map((state) => attnwidgetHost.reviveState(state));
  for (const [index, state] of revived.entries()) {
    current = index;
    host.fromPython(state);
    await new Promise((done) => setTimeout(done, 1000 / rate));
  }
  Object.assign(CanvasRenderingContext2D.prototype, { putImageData, drawImage, fill });
  return drawn.size;
}
"""


def widget(tokens: int, heads: int, **more: Any) -> AttentionWidget:
    generator = torch.Generator().manual_seed(tokens)
    q, k = torch.randn(2, 1, heads, tokens, 32, generator=generator) * 1.3
    return AttentionWidget(q, k, tokens=[f"t{i}" for i in range(tokens)], heads=list(range(heads)), **more)


def bytes_of(message: Any) -> int:
    if isinstance(message, bytes | bytearray | memoryview):
        return len(message)
    if isinstance(message, dict):
        return sum(map(bytes_of, message.values()))
    return 0


def pointing(pages: OfflinePages, tokens: int, heads: int, repeats: int) -> dict[str, Any]:
    shown = widget(tokens, heads, view="graph")
    page: Gallery = show(pages, shown, width=900)
    found = page.page.evaluate(MEASURE, {"repeats": repeats})
    row: dict[str, Any] = {"tokens": tokens, "heads": heads, "links": bytes_of(shown.links)}
    for what, times in found.items():
        row[what] = {"median": round(median(times), 2), "p95": round(quantiles(times, n=20)[-1], 2)}
    return row


def looping(pages: OfflinePages, view: str, rate: int) -> dict[str, Any]:
    shown = widget(20, 4, view=view)
    page = show(pages, shown, width=900)
    generator = torch.Generator().manual_seed(1)
    states = []
    for _ in range(UPDATES):
        shown._throttle._last = -math.inf  # each is sent: here the page is measured, not the kernel's own pace
        shown.update(*torch.randn(2, 1, 4, 20, 32, generator=generator))
        state = state_of(shown)
        states.append(portable({name: state[name] for name in ("facts", "picture", "thumbnails", "links")}))
    drawn = page.page.evaluate(LOOP, {"states": states, "rate": rate})
    return {"view": view, "rate": rate, "sent": UPDATES, "drawn": drawn, "ratio": round(drawn / UPDATES, 3)}


def measure(browser: Browser, repeats: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, OfflinePages(browser, Path(folder)) as pages:
        hover = [pointing(pages, tokens, heads, repeats) for tokens, heads in SIZES]
        loops = [looping(pages, view, rate) for view in ("heatmap", "graph") for rate in RATES]
    return {"browser": browser.version, "repeats": repeats, "pointing": hover, "loops": loops}


def report(found: dict[str, Any]) -> None:
    def cell(times: dict[str, float]) -> str:
        return f"{times['median']:.1f} ({times['p95']:.1f})"

    print(f"Chromium {found['browser']}, {found['repeats']} repeats, ms of script: median (95th percentile)\n")
    print("| tokens × heads | band | label | pin | links |\n|---|--:|--:|--:|--:|")
    for row in found["pointing"]:
        times = " | ".join(cell(row[what]) for what in ("band", "label", "pin"))
        print(f"| {row['tokens']:,} × {row['heads']} | {times} | {row['links'] / 1024:,.1f} KiB |")
    print("\n| view | sent a second | drawn of sent |\n|---|--:|--:|")
    for row in found["loops"]:
        print(f"| {row['view']} | {row['rate']} | {row['drawn']} of {row['sent']} |")


def figures(found: dict[str, Any]) -> list[Figure]:
    listed = []
    for row in found["pointing"]:
        size = f"{row['tokens']:,} × {row['heads']}"
        listed += [Figure(f"{size}, {what}", row[what]["median"], "ms") for what in ("band", "label", "pin")]
        listed.append(Figure(f"{size}, links", row["links"], "bytes"))
    for row in found["loops"]:
        name = f"{row['view']}, drawn of {row['sent']} at {row['rate']} a second"
        listed.append(Figure(name, row["drawn"], "", lower_is_better=False))
    return listed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    parser.add_argument("--repeats", type=int, default=20)
    chosen = parser.parse_args()
    if chosen.repeats < 5:
        parser.error("--repeats: at least 5")
    with chromium() as browser:
        found = measure(browser, chosen.repeats)
    report(found)
    return finish(chosen.json, figures(found), found)


if __name__ == "__main__":
    raise SystemExit(main())
