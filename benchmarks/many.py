"""Thirty widgets in one notebook, over a channel of 2 MB/s: the script sent once, beside the script with each widget.

    python benchmarks/many.py                  # a table, and the ratio
    python benchmarks/many.py --json out.json  # and the numbers as JSON

JupyterLab is loaded at full speed; then the channel is slow, and a cell that shows all is run. The time ends when all
are drawn, also those below the window. Both ways run in turn, each in a page that has seen no widget yet. Beside the
time stands what does not hang on what else the machine does: processor time of the kernel, of the page and of the rest
of the browser, and bytes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple
from urllib.parse import urlparse

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browser"))

import psutil
from channel import SlowChannel
from figures import Figure, figure_of, finish
from lab import Lab, LabServer, chromium

RATE = 2e6
BUDGET = 4.0  # seconds
MAKE = """
import torch
from IPython.display import display
from attnwidget import AttentionWidget
from attnwidget._widget.front_end import front_ends
if {alone}:
    front_ends.shares_models = lambda: False
text = "The bank refused to lend the man any money because it had lost its own on the bank of".split()
def make(seed):
    torch.manual_seed(seed)
    return AttentionWidget(*torch.randn(3, 1, 12, len(text), 64), tokens=text, is_causal=True)
make(0).close()
if front_ends.FrontEnd._shared is not None:
    front_ends.FrontEnd._shared.close()  # so that it is sent again
"""
SHOW = "for seed in range({count}): display(make(seed))"
DRAWN = """(count) => {
  const all = [...document.querySelectorAll(".attnwidget [data-aw=status]")];
  return all.length === count && all.every((one) => one.textContent.includes("float32"));
}"""


class Cost(NamedTuple):
    """What it took until all were drawn: seconds, processor seconds of each part, and bytes."""

    seconds: float
    kernel: float
    page: float
    browser: float
    bytes: int


@contextmanager
def counting(channel: SlowChannel) -> Iterator[list[int]]:
    """Count the bytes that go through a channel."""
    found = [0]
    wait = channel._wait

    def counted(size: int) -> None:
        found[0] += size
        wait(size)

    channel._wait = counted  # type: ignore[method-assign]
    try:
        yield found
    finally:
        channel._wait = wait  # type: ignore[method-assign]


def processor_seconds() -> Counter[str]:
    """Return the processor time of all processes below this one, by what they are."""
    found: Counter[str] = Counter()
    for process in psutil.Process().children(recursive=True):
        try:
            line, times = " ".join(process.cmdline()), process.cpu_times()
        except psutil.Error:  # it has ended
            continue
        is_browser = "chrom" in line
        part = "kernel" if "ipykernel" in line else "page" if "--type=renderer" in line else "browser"
        if is_browser or part == "kernel":
            found[part] += times.user + times.system
    return found


def measure(lab: Lab, channel: SlowChannel, *, alone: bool, count: int, rate: float) -> Cost:
    channel._rate = 1e12
    notebook = lab.open([MAKE.format(alone=alone), SHOW.format(count=count)])
    notebook.run_cell(0)
    channel._rate = rate
    with counting(channel) as sent:
        before, start = processor_seconds(), time.perf_counter()
        notebook.start_cell(1)
        notebook.page.wait_for_function(DRAWN, arg=count, timeout=120_000)
        taken, spent = time.perf_counter() - start, processor_seconds()
    lab.close()
    return Cost(taken, *(spent[part] - before[part] for part in Cost._fields[1:4]), sent[0])


def figures(costs: dict[str, list[Cost]], count: int) -> list[Figure]:
    once, each = costs["once"], costs["each"]
    ratios = [one.seconds / other.seconds for one, other in zip(once, each, strict=True)]
    parts = [
        figure_of(f"a widget, {part}", [getattr(one, part) / count for one in once], "s") for part in Cost._fields[1:4]
    ]
    return [
        figure_of("until all are drawn", [one.seconds for one in once], "s", wanted=BUDGET),
        figure_of("sent once ÷ with each", ratios, "×"),
        *parts,
        figure_of("a widget, sent", [one.bytes / count for one in once], "bytes"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rate", type=float, default=RATE, help="bytes a second")
    chosen = parser.parse_args()
    costs: dict[str, list[Cost]] = {"once": [], "each": []}
    with chromium() as browser, LabServer() as server:
        port = urlparse(server.base).port or 0
        with SlowChannel(port, bytes_per_second=1e12) as channel:
            server.base = channel.base
            lab = Lab(browser, server)
            for _ in range(chosen.runs):
                for name in costs:
                    one = measure(lab, channel, alone=name == "each", count=chosen.count, rate=chosen.rate)
                    costs[name].append(one)
    once, each = (Cost(*map(median, zip(*of, strict=True))) for of in costs.values())
    print(f"{chosen.count} widgets at {chosen.rate / 1e6:g} MB/s: sent once {once.seconds:.2f} s, with each", end=" ")
    print(f"{each.seconds:.2f} s, ratio {once.seconds / each.seconds:.2f}; the budget is {BUDGET:g} s")
    of_one = [1e3 * x / chosen.count for x in once[1:4]]
    print(
        "of each widget, sent once: {:.0f} ms of a core in the kernel, {:.0f} ms in the page,".format(*of_one), end=" "
    )
    print(f"{of_one[2]:.0f} ms in the rest of the browser, {once.bytes / chosen.count / 1e3:.0f} kB")
    made = {name: [one._asdict() for one in of] for name, of in costs.items()}
    return finish(chosen.json, figures(costs, chosen.count), {"costs": made, "rate": chosen.rate})


if __name__ == "__main__":
    raise SystemExit(main())
