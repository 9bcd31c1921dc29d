"""Where the time of a first paint goes: processor time of the main thread, by what it does, beside a static page.

    python benchmarks/first_paint.py                  # a table: 16 to 512 tokens
    python benchmarks/first_paint.py --json out.json  # and the same numbers as JSON

From the start of the navigation until the second frame after the widget's picture is there, as Chromium's own trace has
it; pages take turns. README.md beside this file says what each column means. It needs Chromium, the browser tests'
packages and a bundle that is built; `treescope` is measured too where `make bench` has made the peers' environment.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browser"))

from figures import Figure, figure_of, finish
from lab import Browser
from peer_pages import attnwidget, head
from peers import COMPLETE, PEERS, served
from playwright.sync_api import sync_playwright

LENGTHS = (16, 64, 128, 512)
# The first picture, with its labels; what follows is the whole widget in its place.
PICTURE = "document.querySelector('.attnwidget .aw-plot canvas')?.style.width"
CATEGORIES = ["devtools.timeline", "disabled-by-default-v8.compile", "v8", "blink.user_timing", "toplevel"]
# What the events of a trace are; all others are the browser's own.
KINDS = {
    "script": ("FunctionCall", "BlinkScheduler_PerformMicrotaskCheckpoint", "v8.", "EvaluateScript", "Decompression"),
    "compile": ("V8.Compile", "V8.Parse", "V8.PreParse", "v8.compile", "V8.CollectSource"),
    "garbage": ("V8.GC", "MinorGC", "MajorGC"),
    "style": ("UpdateLayoutTree", "ParseAuthorStyleSheet"),
    "layout": ("Layout",),
    "parse": ("ParseHTML",),
    "paint": ("Paint", "PrePaint", "Commit", "Layerize"),
}
STATIC = """<p>{words}</p><canvas width="64" height="64"></canvas>
<script>document.querySelector("canvas").getContext("2d").fillRect(0, 0, 9, 9)</script>"""
# In the page: marks the second frame after all is there.
WATCH = """const watch = () => {
  if (!(COMPLETE)) return requestAnimationFrame(watch);
  requestAnimationFrame(() => requestAnimationFrame(() => {
    performance.mark("all is there");
    console.debug("all is there");
  }));
};
requestAnimationFrame(watch);"""
OF_PEER = """
import sys
sys.path.insert(0, {folder!r})
from peer_pages import head, treescope
made = treescope(head({length}, dense=True))
print(made.page(made.call()))
"""


def pages(lengths: list[int], folder: Path) -> dict[str, str]:
    """Write the pages; return by the name of each what is true when it is complete."""
    found = {"a static page": "document.querySelector('canvas')"}
    made = {"a static page": STATIC.format(words="word " * 5000)}
    for length in lengths:
        tool = attnwidget(head(length, dense=False))
        tool.call().close()
        made[f"{length} tokens"] = made[f"{length} tokens, until it answers"] = tool.page(tool.call())
        found[f"{length} tokens"] = PICTURE
        found[f"{length} tokens, until it answers"] = COMPLETE["attnwidget"]
        if (PEERS / "bin" / "python").exists():
            code = OF_PEER.format(folder=str(Path(__file__).parent), length=length)
            command = [PEERS / "bin" / "python", "-c", code]
            asked = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            made[f"{length} tokens, treescope"] = asked.stdout
            found[f"{length} tokens, treescope"] = COMPLETE["treescope"]
    for i, html in enumerate(made.values()):
        (folder / f"{i}.html").write_text(f'<!doctype html><meta charset="utf-8">\n{html}', encoding="utf-8")
    return {name: found[name] for name in made}


def traced(browser: Browser, url: str, complete: str) -> dict[str, float]:
    """Open a page once; return milliseconds of its main thread's processor time by kind, and of the clock."""
    context = browser.context(device_scale_factor=1)
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda line: said.append(line.text) if line.text == "all is there" else None)
    page.add_init_script(WATCH.replace("COMPLETE", complete))
    page.wait_for_timeout(300)
    browser._launched.start_tracing(page=page, categories=CATEGORIES)
    page.goto(url, wait_until="commit")
    for _ in range(3000):
        if said:
            break
        page.wait_for_timeout(20)
    events = json.loads(browser._launched.stop_tracing())["traceEvents"]
    context.close()
    return spent(events)


def spent(events: list[dict[str, Any]]) -> dict[str, float]:
    """Return milliseconds by kind: each event's own time, without that of the events inside it."""
    last = next(e for e in events if e["name"] == "all is there" and "user_timing" in e["cat"])
    begins = [e["ts"] for e in events if e["name"] == "navigationStart" and e["pid"] == last["pid"]]
    begin = max(time for time in begins if time <= last["ts"])
    thread = (last["pid"], last["tid"])
    own = [e for e in events if e.get("ph") == "X" and (e["pid"], e["tid"]) == thread and "tdur" in e]
    own = sorted((e for e in own if begin <= e["ts"] <= last["ts"]), key=lambda e: (e["tts"], -e["tdur"]))
    found = dict.fromkeys([*KINDS, "browser"], 0.0)
    around: list[dict[str, Any]] = []
    for event in own:
        while around and around[-1]["tts"] + around[-1]["tdur"] <= event["tts"]:
            around.pop()
        if around:
            found[kind_of(around[-1]["name"])] -= event["tdur"] / 1e3
        found[kind_of(event["name"])] += event["tdur"] / 1e3
        around.append(event)
    return {**found, "all": sum(found.values()), "clock": (last["ts"] - begin) / 1e3}


def kind_of(name: str) -> str:
    # The longest beginning counts: "v8.compile" is not a script.
    fitting = [(len(start), kind) for kind, starts in KINDS.items() for start in starts if name.startswith(start)]
    return max(fitting)[1] if fitting else "browser"


def figures(found: dict[str, list[dict[str, float]]]) -> list[Figure]:
    static = median(one["all"] for one in found["a static page"])
    listed = []
    for name, runs in found.items():
        listed.append(figure_of(f"{name}, main thread", [one["all"] for one in runs], "ms"))
        if name != "a static page":
            listed.append(figure_of(f"{name} ÷ a static page", [one["all"] / static for one in runs], "×"))
    return listed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--runs", type=int, default=9, help="after one to warm up")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    asked = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as address, sync_playwright() as playwright:
        complete = pages(asked.lengths, Path(folder))
        browser = Browser(playwright)
        for run in range(asked.runs + 1):
            for i, name in enumerate(complete):
                one = traced(browser, f"{address}/{i}.html", complete[name])
                if run:
                    found.setdefault(name, []).append(one)
        print(f"Chromium {browser.version}, {asked.runs} runs that take turns, medians, ms\n")
        browser.close()
    columns = [*KINDS, "browser", "all", "clock"]
    print(f"| page | {' | '.join(columns)} |\n|---|{'--:|' * len(columns)}")
    for name, runs in found.items():
        print(f"| {name} | {' | '.join(f'{median(one[kind] for one in runs):.1f}' for kind in columns)} |")
    return finish(asked.json, figures(found), found)


if __name__ == "__main__":
    raise SystemExit(main())
