"""How long each act of a person takes until its picture is there: median and worst, in JupyterLab.

    python benchmarks/acts.py                     # 2,048 tokens × 12 layers × 12 heads, at full speed
    python benchmarks/acts.py --rate 2e6          # over VS Code's channel of 2 MB/s
    python benchmarks/acts.py --tokens 131072     # until the first picture, which is made of sampled rows
    python benchmarks/acts.py --runs 50 --json out.json

An act is a click or a movement in the page. Its picture is there with the last drawing of the picture's canvas, and
all is there with the last change in the widget's body, before 300 ms without any; at 131,072 tokens the first drawing
counts. Acts alternate between two states, such as two heads, so that each run changes something. Known answers are used
again, as they are for a person. Motion is off: the cross-fade of 120 ms, in which a finished picture appears elsewhere,
is not counted.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlparse

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browser"))

from channel import SlowChannel
from figures import figure_of, finish, machine
from lab import Lab, LabServer, chromium

BUDGET, HOVER = 0.1, 0.016  # seconds
LONG = 16_384  # tokens, from which on the first picture counts
MAKE = """
import torch
from attnwidget import AttentionWidget
source = torch.Generator().manual_seed(0)
q, k, v = (torch.randn({layers}, 1, {heads}, {tokens}, {size}, generator=source, dtype=torch.{dtype}) for _ in range(3))
w = AttentionWidget([*q], [*k], [*v], is_causal=True)
"""
# In the page: `acts.run(what)` does something and returns the milliseconds until the first and the last change.
WATCH = """() => {
  const root = document.querySelector(".attnwidget");
  const inBody = (node) => root.querySelector(".aw-body")?.contains(node);
  let first = 0, last = 0, picture = 0, wanted = "any";
  const changed = (what) => {
    last = performance.now();
    if (what === "picture") picture = last;
    if (wanted === "any" || wanted === what) first ||= last;
  };
  new MutationObserver((all) => {
    if (all.some(({ target }) => inBody(target))) changed("page");
  }).observe(root, { attributes: true, characterData: true, childList: true, subtree: true });
  for (const name of ["clearRect", "drawImage", "fill", "fillRect", "fillText", "putImageData", "stroke"]) {
    const draw = CanvasRenderingContext2D.prototype[name];
    CanvasRenderingContext2D.prototype[name] = function (...given) {
      if (inBody(this.canvas)) changed(this.canvas.dataset.aw === "picture" ? "picture" : "canvas");
      return draw.apply(this, given);
    };
  }
  const button = (text) => {
    const found = [...root.querySelectorAll("button, [role=radio]")].find((one) =>
      [one.textContent, one.getAttribute("aria-label")].some((name) => name === text || name?.startsWith(`${text} `)));
    if (!found) throw new Error(`no button ${text}`);
    return found;
  };
  const rest = (time) => new Promise((done) => setTimeout(done, time));
  const frame = () => new Promise(requestAnimationFrame);
  const quiet = async (time) => {
    while (performance.now() - last < time) await rest(20);
  };
  window.acts = {
    async run(kind, given, isLong) {
      const isView = kind === "click" && /^[A-Z]/.test(given[0]);
      const hasPicture = root.querySelector("[data-aw=picture]") !== null;
      wanted = isLong && kind !== "pin" && !isView && hasPicture ? "picture" : "any";
      if (kind === "menu") {
        button(given[0]).click();
        await rest(100);
      }
      if (!isLong) await quiet(300);
      const start = performance.now();
      [first, picture, last] = [0, 0, start];
      if (kind === "click") button(given[0]).click();
      else if (kind === "menu") {
        const items = [...root.querySelectorAll("[role^=menuitem]")];
        const item = items.find((one) => one.textContent.startsWith(given[1]));
        if (!item) throw new Error(`no item ${given[1]} in ${given[0]}: ${items.map((one) => one.textContent)}`);
        item.click();
      } else {
        const canvas = root.querySelector("[data-aw=picture]");
        const { left, top, width, height } = canvas.getBoundingClientRect();
        const place = { clientX: left + width * given[0], clientY: top + height * given[1] };
        const how = { ...place, bubbles: true, composed: true, pointerId: 1, pointerType: "mouse", isPrimary: true };
        canvas.dispatchEvent(new PointerEvent("pointermove", how));
        if (kind === "pin") {
          canvas.dispatchEvent(new PointerEvent("pointerdown", { ...how, button: 0, buttons: 1 }));
          canvas.dispatchEvent(new PointerEvent("pointerup", { ...how, button: 0 }));
          canvas.dispatchEvent(new MouseEvent("click", how));
        }
      }
      if (isLong) {
        while (!first && performance.now() - start < 10000) await rest(1);
        last = first;
      } else {
        do await rest(20); while (performance.now() - last < 300 && performance.now() - start < 30000);
      }
      const took = last - start;
      root.ownerDocument.body.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
      return [(first || last) - start, (picture || last) - start, took];
    },
  };
}"""

Act = tuple[str, str, list[list[Any]]]
# Name, kind, and what is given to it by turns; a view of its own before a name is opened first.
ACTS: dict[str, list[Act]] = {
    "Heatmap": [
        ("hover", "hover", [[0.31, 0.62], [0.44, 0.81]]),
        ("a pinned cell with its panel", "pin", [[0.25, 0.61], [0.35, 0.87]]),
        ("another head", "click", [["head 3"], ["head 7"]]),
        ("another layer", "click", [["layer 1"], ["layer 0"]]),
        ("stage", "menu", [["Show", "scores"], ["Show", "weights"]]),
        ("color scale", "menu", [["Color", "log"], ["Color", "linear"]]),
        ("color range", "menu", [["Color", "row"], ["Color", "head"]]),
        ("palette", "menu", [["More", "viridis"], ["More", "zero is"]]),
    ],
    "Stages": [("what if", "click", [["float16"], ["as they are"]])],
    "Graph": [("direction", "menu", [["Read", "what attends"], ["Read", "what it attends"]])],
    "": [
        ("view: graph", "click", [["Graph"], ["Heatmap"]]),
        ("view: heads", "click", [["Heads"], ["Heatmap"]]),
        ("view: segments", "click", [["Segments"], ["Heatmap"]]),
        ("view: stages", "click", [["Stages"], ["Heatmap"]]),
        # Last, since all heads stay chosen, and the graph then draws all of them.
        ("heads combined", "menu", [["Heads one", "mean of several"], ["Heads mean", "one"]]),
    ],
}


def measure(lab: Lab, channel: SlowChannel, asked: argparse.Namespace) -> dict[str, list[list[float]]]:
    is_long = asked.tokens >= LONG
    shape = {"layers": 2, "heads": 8, "size": 64, "dtype": "bfloat16"} if is_long else {}
    shape = {"layers": 12, "heads": 12, "size": 64, "dtype": "float32", "tokens": asked.tokens} | shape
    notebook = lab.open([MAKE.format(**shape), "w"], width=1400, height=1000, reduced_motion="reduce")
    notebook.run_cell(0)
    notebook.start_cell(1)
    page = notebook.page
    page.wait_for_selector("[data-aw=picture][aria-label]", timeout=120_000)
    page.wait_for_timeout(4000)  # thumbnails, findings
    page.evaluate(WATCH)
    channel._rate = asked.rate
    found: dict[str, list[list[float]]] = {}
    for view, acts in ACTS.items():
        if view:
            page.get_by_role("tab", name=view, exact=True).click()
            page.wait_for_timeout(1500)
        if view == "Stages":
            page.get_by_role("button", name="What if").click()
            page.wait_for_timeout(500)
        for name, kind, given in acts:
            if asked.only not in name or (is_long and (kind == "hover" or view in ("Graph", "Stages"))):
                continue
            try:
                for run in range(asked.runs + 2):
                    took = page.evaluate("(all) => acts.run(...all)", [kind, given[run % len(given)], is_long])
                    called = name if run > 1 else f"{name}, first time"  # the first two find what the rest know
                    found.setdefault(called, []).append([one / 1000 for one in took])
            except Exception as error:
                print(name, str(error)[:300], file=sys.stderr)
            if name.startswith("view"):
                page.get_by_role("tab", name="Heatmap", exact=True).click()
                page.wait_for_timeout(800)
    lab.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--rate", type=float, default=1e12, help="bytes a second")
    parser.add_argument("--only", default="", help="acts whose names contain this")
    asked = parser.parse_args()
    with chromium() as browser, LabServer() as server:
        port = urlparse(server.base).port or 0
        with SlowChannel(port, bytes_per_second=1e12) as channel:
            server.base = channel.base
            found = measure(Lab(browser, server), channel, asked)
    print(f"{machine()['processor']}, {asked.tokens:,} tokens, {asked.rate / 1e6:g} MB/s, {asked.runs} runs\n")
    print("| act | first change | worst | picture | worst | all | worst |\n|---|--:|--:|--:|--:|--:|--:|")
    for name, times in found.items():
        columns = [f"{1e3 * of(column):.0f} ms" for column in zip(*times, strict=True) for of in (median, max)]
        print(f"| {name} | {' | '.join(columns)} |")
    listed = []
    for name, times in found.items():
        firsts, pictures, all_of_it = zip(*times, strict=True)
        is_hover = name.startswith("hover")
        counts = firsts if is_hover else all_of_it if "pinned" in name else pictures
        listed.append(figure_of(name, list(counts), "s", wanted=HOVER if is_hover else BUDGET))
    return finish(asked.json, listed, found)


if __name__ == "__main__":
    raise SystemExit(main())
