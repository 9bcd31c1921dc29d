"""A click on another head of 2,048 tokens × 12 heads, in JupyterLab, over VS Code's channel of 2 MB/s: until drawn.

    python benchmarks/head_change.py                    # the median of 36 changes, and what each costs
    python benchmarks/head_change.py --json out.json    # and the numbers as JSON
    python benchmarks/head_change.py --pause 0          # each as soon as the last is drawn

Each head comes three times, in an order that does not follow their numbers: when it is clicked first, its picture is
computed; later it is known. Time ends in the page, at the frame after the one in which the picture of that head is on
the canvas. Beside it stands what does not hang on what else the machine does: processor time of kernel and page.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlparse

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browser"))

from channel import SlowChannel
from figures import figure_of, finish
from lab import Lab, LabServer, chromium
from many import RATE, counting, processor_seconds

BUDGET = 0.2  # seconds, of the median
HEADS, TOKENS = 12, 2048
MAKE = f"""
import torch
from attnwidget import AttentionWidget
torch.set_num_threads({{threads}})
source = torch.Generator().manual_seed(0)
w = AttentionWidget(*torch.randn(3, 1, {HEADS}, {TOKENS}, 64, generator=source), is_causal=True)
"""
# Clicks a head, and returns the seconds until its picture is drawn.
CHANGE = """async (head) => {
  const canvas = document.querySelector("[data-aw=picture]");
  const start = performance.now();
  document.querySelector(`[role=radio][aria-label="head ${head}"]`).click();
  while (!canvas.getAttribute("aria-label").includes(`head ${head},`)) {
    if (performance.now() - start > 30_000) throw new Error(`head ${head} was not drawn`);
    await new Promise((done) => setTimeout(done, 1));
  }
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
  return (performance.now() - start) / 1000;
}"""


def measure(lab: Lab, channel: SlowChannel, *, threads: int, rounds: int, pause: float, rate: float) -> dict[str, Any]:
    """Change heads, and return the seconds of each change, and what they cost on average."""
    channel._rate = 1e12
    notebook = lab.open([MAKE.format(threads=threads), "w"])
    notebook.run_cell(0)
    notebook.start_cell(1)
    page = notebook.page
    page.wait_for_selector("[data-aw=picture][aria-label]", timeout=60_000)
    page.wait_for_timeout(3000)  # thumbnails, findings
    channel._rate = rate
    order = [(5 * at + 5) % HEADS for at in range(HEADS)] * rounds
    with counting(channel) as sent:
        before, found = processor_seconds(), []
        for head in order:
            found.append(page.evaluate(CHANGE, head))
            page.wait_for_timeout(1000 * pause)
        spent: Counter[str] = processor_seconds()
    lab.close()
    each = {part: (spent[part] - before[part]) / len(order) for part in ("kernel", "page", "browser")}
    return {"seconds": found, **each, "bytes": sent[0] / len(order)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=3, help="times that each head is clicked")
    parser.add_argument("--pause", type=float, default=0.5, help="seconds from a picture to the next click")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rate", type=float, default=RATE, help="bytes a second")
    asked = parser.parse_args()
    with chromium() as browser, LabServer() as server:
        port = urlparse(server.base).port or 0
        with SlowChannel(port, bytes_per_second=1e12) as channel:
            server.base = channel.base
            load = os.getloadavg()[0]
            how = {"threads": asked.threads, "rounds": asked.rounds, "pause": asked.pause, "rate": asked.rate}
            made = measure(Lab(browser, server), channel, **how)
    first, later = made["seconds"][:HEADS], made["seconds"][HEADS:]
    print(f"{TOKENS:,} × {HEADS} heads at {asked.rate / 1e6:g} MB/s, load {load:.1f} before it:", end=" ")
    print(f"median {1e3 * median(made['seconds']):.0f} ms, most {1e3 * max(made['seconds']):.0f} ms;", end=" ")
    print(f"first time {1e3 * median(first):.0f} ms" + (f", later {1e3 * median(later):.0f} ms" if later else ""))
    print(
        "of each: " + ", ".join(f"{1e3 * made[part]:.0f} ms of a core in the {part}" for part in made if part in PARTS)
    )
    figures = [
        figure_of("a head change, until drawn", made["seconds"], "s", wanted=BUDGET),
        *(figure_of(f"a head change, {part}", [made[part]], "s") for part in PARTS),
        figure_of("a head change, sent", [made["bytes"]], "bytes"),
    ]
    return finish(asked.json, figures, {**made, "load": load})


PARTS = ("kernel", "page", "browser")

if __name__ == "__main__":
    raise SystemExit(main())
