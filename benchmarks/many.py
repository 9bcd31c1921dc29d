"""Thirty widgets in one notebook, over a channel of 2 MB/s: the script sent once, beside the script with each widget.

    python benchmarks/many.py                  # a table, and the ratio
    python benchmarks/many.py --json out.json  # and the numbers as JSON

JupyterLab is loaded at full speed; then the channel is slow, and a cell that shows all is run. The time ends when all
are drawn. Both ways run in turn, each in a page that has seen no widget yet.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median
from urllib.parse import urlparse

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browser"))

from channel import SlowChannel
from lab import Lab, LabServer, chromium

RATE = 2e6
BUDGET = 4.0  # seconds
MAKE = """
import torch
from IPython.display import display
from attnwidget import AttentionWidget
from attnwidget._widget import front_end
if {alone}:
    front_end.shares_models = lambda: False
text = "The bank refused to lend the man any money because it had lost its own on the bank of".split()
def make(seed):
    torch.manual_seed(seed)
    return AttentionWidget(*torch.randn(3, 1, 12, len(text), 64), tokens=text, is_causal=True)
make(0).close()
if front_end.FrontEnd._shared is not None:
    front_end.FrontEnd._shared.close()  # so that it is sent again
"""
SHOW = "for seed in range({count}): display(make(seed))"
DRAWN = """(count) => {
  const all = [...document.querySelectorAll(".attnwidget [data-aw=status]")];
  return all.length === count && all.every((one) => one.textContent.includes("float32"));
}"""


def measure(lab: Lab, channel: SlowChannel, *, alone: bool, count: int, rate: float) -> float:
    channel._rate = 1e12
    notebook = lab.open([MAKE.format(alone=alone), SHOW.format(count=count)])
    notebook.run_cell(0)
    channel._rate = rate
    start = time.perf_counter()
    notebook.start_cell(1)
    notebook.page.set_viewport_size({"width": 1200, "height": 30_000})  # all are in view, and so drawn
    notebook.page.wait_for_function(DRAWN, arg=count, timeout=120_000)
    taken = time.perf_counter() - start
    lab.close()
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rate", type=float, default=RATE, help="bytes a second")
    chosen = parser.parse_args()
    taken: dict[str, list[float]] = {"once": [], "each": []}
    with chromium() as browser, LabServer() as server:
        port = urlparse(server.base).port or 0
        with SlowChannel(port, bytes_per_second=1e12) as channel:
            server.base = channel.base
            lab = Lab(browser, server)
            for _ in range(chosen.runs):
                for name in taken:
                    one = measure(lab, channel, alone=name == "each", count=chosen.count, rate=chosen.rate)
                    taken[name].append(one)
    once, each = median(taken["once"]), median(taken["each"])
    print(f"{chosen.count} widgets at {chosen.rate / 1e6:g} MB/s: sent once {once:.2f} s, with each {each:.2f} s,")
    print(f"ratio {once / each:.2f}; the budget is {BUDGET:g} s")
    if chosen.json:
        chosen.json.write_text(json.dumps({"seconds": taken, "rate": chosen.rate}, indent=1) + "\n", encoding="utf-8")
    return 0 if once <= BUDGET else 1


if __name__ == "__main__":
    raise SystemExit(main())
