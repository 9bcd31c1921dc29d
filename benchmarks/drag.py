"""How fast the stages view follows a scale that is dragged, in JupyterLab: redraws a second, and where it ends.

    python benchmarks/drag.py                  # a table; exits with 3 if a budget is exceeded
    python benchmarks/drag.py --json out.json  # and the same numbers as JSON
    python benchmarks/drag.py --seconds 10

README.md beside this file says what each column means. It needs Chromium and the browser tests' packages.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browser"))

from figures import Figure, finish
from lab import Browser, Lab, LabNotebook, LabServer, chromium

LEAST_RATE = 20.0  # redraws a second
SIZES = ((128, 12), (512, 12))  # tokens, heads; the budget is for the last

CELL = """
import attnwidget as aw, torch
q, k, v = torch.randn(3, 1, {heads}, {tokens}, 64, generator=torch.Generator().manual_seed(0))
w = aw.AttentionWidget(q, k, v, is_causal=True, view="stages", query={tokens} // 2, key={tokens} // 4)
w
"""

# The pointer goes to and fro on the scale, one move in each frame of the screen; every drawing of the weights is noted.
DRAG = """
async ({ seconds }) => {
  const root = document.querySelector(".attnwidget");
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const canvasOf = () => [...root.querySelectorAll(".aw-small")]
    .find((small) => small.querySelector("b")?.textContent === "Weights").querySelector("canvas");
  const drawn = [];
  const { putImageData } = CanvasRenderingContext2D.prototype;
  CanvasRenderingContext2D.prototype.putImageData = function (...all) {
    if (this.canvas === canvasOf()) drawn.push(performance.now());
    return putImageData.apply(this, all);
  };
  const grip = root.querySelector(".aw-grip");
  const { left, width, top, height } = grip.ownerSVGElement.getBoundingClientRect();
  const place = (x) => ({ clientX: x, clientY: top + height / 2, bubbles: true, cancelable: true });
  const start = performance.now();
  grip.dispatchEvent(new PointerEvent("pointerdown", place(grip.getBoundingClientRect().left)));
  let moves = 0;
  let at = 0;
  while (performance.now() - start < seconds * 1000) {
    await frame();
    at = left + width * (0.5 + 0.4 * Math.sin((performance.now() - start) / 400));
    window.dispatchEvent(new PointerEvent("pointermove", place(at)));
    moves++;
  }
  window.dispatchEvent(new PointerEvent("pointerup", place(at)));
  const end = performance.now();
  const during = drawn.filter((time) => time <= end);
  let known = -1;
  while (known !== drawn.length) {
    known = drawn.length;
    await new Promise((done) => setTimeout(done, 1000));
  }
  CanvasRenderingContext2D.prototype.putImageData = putImageData;
  const gaps = during.slice(1).map((time, index) => time - during[index]);
  const settled = Math.max(0, (drawn.at(-1) ?? end) - end);
  const after = drawn.length - during.length;
  return { seconds: (end - start) / 1000, moves, redraws: during.length, gaps, after, settled };
}
"""

TIMED = """
import time
taken = []
for i in range(20):
    start = time.perf_counter()
    with w._waited_for(rules=True):
        w.what_if = {"scale": 0.1 + i / 1000}
    taken.append(time.perf_counter() - start)
w.what_if = {}
print(sorted(taken)[10])
"""


def drag(notebook: LabNotebook, seconds: float) -> dict[str, Any]:
    page = notebook.page
    page.locator(".attnwidget .aw-grip").wait_for(timeout=60_000)
    page.evaluate("() => document.querySelector('.attnwidget .aw-ladder').scrollIntoView({ block: 'center' })")
    page.wait_for_timeout(1000)
    alone = float(notebook.evaluate(TIMED))
    page.wait_for_timeout(1000)
    found: dict[str, Any] = page.evaluate(DRAG, {"seconds": seconds})
    notebook.wait_idle()
    gaps = sorted(found.pop("gaps")) or [float("nan")]
    page.wait_for_timeout(500)
    shown = page.locator(".attnwidget .aw-grip").get_attribute("aria-valuenow")
    kept = notebook.evaluate("print(w.what_if['scale'])")
    return {
        **found,
        "rate": found["redraws"] / found["seconds"],
        "gap": median(gaps),
        "gap_p95": gaps[int(0.95 * (len(gaps) - 1))],
        "kernel": 1000 * alone,
        "ends_on_last": shown is not None and abs(float(shown) - float(kept)) <= 1e-3 * abs(float(kept)),
    }


def measure(browser: Browser, seconds: float, threads: int | None) -> dict[str, Any]:
    rows = []
    with LabServer() as server:
        for tokens, heads in SIZES:
            opener = Lab(browser, server)
            try:
                limit = "" if threads is None else f"import torch; torch.set_num_threads({threads})"
                cells = [limit + CELL.format(tokens=tokens, heads=heads)]
                notebook = opener.open(cells, width=1400, height=1200)
                notebook.run_all()
                load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
                rows.append({"tokens": tokens, "heads": heads, "load": load, **drag(notebook, seconds)})
            finally:
                opener.close()
    return {"browser": browser.version, "cores": os.cpu_count(), "rows": rows}


def report(found: dict[str, Any]) -> None:
    print(f"Chromium {found['browser']}, {found['cores']} cores\n")
    columns = ("moves a second", "redraws a second", "gap, ms", "settles, ms", "kernel, ms", "last value", "load")
    print(f"| tokens × heads | {' | '.join(columns)} |")
    print("|---|--:|--:|--:|--:|--:|---|--:|")
    for row in found["rows"]:
        load = "" if row["load"] is None else f"{row['load']:.1f}"
        print(
            f"| {row['tokens']:,} × {row['heads']} | {row['moves'] / row['seconds']:.0f} | {row['rate']:.1f} "
            f"| {row['gap']:.0f} ({row['gap_p95']:.0f}) | {row['settled']:.0f} | {row['kernel']:.0f} "
            f"| {'yes' if row['ends_on_last'] else 'NO'} | {load} |"
        )


def figures(found: dict[str, Any]) -> list[Figure]:
    listed = []
    for row, last in zip(found["rows"], (False, True), strict=True):
        size = f"{row['tokens']:,} × {row['heads']}"
        wanted = LEAST_RATE if last else None
        listed += [
            Figure(f"{size}, redraws", row["rate"], "a second", lower_is_better=False, wanted=wanted),
            Figure(f"{size}, gap", row["gap"], "ms"),
            Figure(f"{size}, kernel", row["kernel"], "ms"),
            Figure(f"{size}, ends on the last value", row["ends_on_last"], "", lower_is_better=False, wanted=1),
        ]
    return listed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long is dragged")
    parser.add_argument("--threads", type=int, help="of torch in the kernel; its own choice if left out")
    chosen = parser.parse_args()
    with chromium() as browser:
        found = measure(browser, chosen.seconds, chosen.threads)
    report(found)
    return finish(chosen.json, figures(found), found)


if __name__ == "__main__":
    raise SystemExit(main())
