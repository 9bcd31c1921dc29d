"""A long head in a real JupyterLab: first picture, tiles while the exact pass runs, bytes, frames, heap.

    python benchmarks/browser.py                     # a table; takes some minutes
    python benchmarks/browser.py --json out.json     # the same numbers as JSON
    python benchmarks/browser.py --lengths 131072 --zooms 500

README.md beside this file says what each line means. It needs Chromium and the browser tests' packages.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browser"))

import torch
from figures import Figure, finish, machine
from frames import traced
from lab import Browser, Lab, LabNotebook, LabServer, chromium

KIB, MB = 1024, 1e6
LENGTHS = (131_072, 1_048_576)
HALF_FROM = 1_000_000  # tokens from which q and k are float16
TILE = 128
SIDE = 3  # tiles along a side of what is in view
AT = {"layer": 0, "batch": 0, "head": 0, "stage": "weights"}
PATIENCE = 120  # seconds
UNITS = {"s": ("s", 1), "ms": ("ms", 1), "KiB": ("bytes", KIB), "MB": ("bytes", MB), "relative": ("", 1)}

# At most so much, by the least length that it is asked for.
WANTED: dict[str, dict[int, float | None]] = {
    "kernel, first picture, s": {131_072: 0.15, 1_048_576: 2.0},
    "cell to pixels, s": {131_072: 0.6, 1_048_576: 2.0},
    "cold tile, median, s": {131_072: 0.1, 1_048_576: 0.6},
    "cold tile, p95, s": {131_072: 0.15, 1_048_576: None},
    "middle levels, one row for each bin, s": {1_048_576: 3.0},
    "a row's 100 largest beside float64, relative": {0: 1e-5},
    "exact pass, s": {131_072: 20.0},
    "memory over q and k, MB": {131_072: 96.0, 1_048_576: 160.0},
    "opening, KiB": {0: 1024.0},
    "pan, most of a step, KiB": {0: 256.0},
    "zoom, most of a step, KiB": {0: 256.0},
    "script of a frame, p95, ms": {131_072: 8.0},
    "heap, last third over first": {0: 1.1},
}

SETUP = """
import gc, os, resource, time
import torch
from attnwidget import AttentionWidget
torch.set_num_threads({threads})
warm = AttentionWidget(*torch.randn(2, 64, 64))
n, dtype = {length}, torch.{dtype}
source = torch.Generator().manual_seed(0)
q, k = torch.empty(2, n, 64, dtype=dtype)
for start in range(0, n, 65536):
    rows = torch.arange(start, min(start + 65536, n))
    angle = rows[:, None] * 0.5 ** torch.linspace(2, 15, 32)
    places = torch.cat([angle.cos(), angle.sin()], 1)
    for x, near in ((q, 1.5), (k, 1.0)):
        x[rows] = (0.7 * torch.randn(len(rows), 64, generator=source) + near * places).to(dtype)
w = None

def memory(name):
    text = open("/proc/self/status").read()
    return int(text.split(name + ":")[1].split()[0]) * 1024

gc.collect()
open("/proc/self/clear_refs", "w").write("5")
held = memory("VmRSS")
"""
OPEN = """
start = time.perf_counter()
w = AttentionWidget(q, k{keywords})
print(time.perf_counter() - start, w.model_id)
w
"""

ROW = """
query = n // 3
seen = k[: query + 1] if w.facts["is_causal"] else k
exact = torch.cat([part.double() @ q[query].double() for part in seen.split(65536)]) / 8
exact = torch.softmax(exact, 0)
largest = exact.topk(100).indices
print((w.weights(query)[largest] / exact[largest] - 1).abs().max().item())
"""

# Notes each message between the page and the kernel: when, what, how many bytes.
PROBE = """
() => {
  const { kernel } = window.jupyterapp.shell.currentWidget.sessionContext.session;
  const seen = (window.seen = []);
  kernel.anyMessage.connect((_, { msg, direction }) => {
    const { msg_type } = msg.header;
    if (!msg_type.startsWith("comm_")) return;
    const { data = {} } = msg.content;
    const custom = data.method === "custom" ? data.content : {};
    const what = data.method === "custom" ? Object.keys(custom)[0] : `${msg_type} ${data.method ?? ""}`.trim();
    const state = data.state ? { ...data.state, _esm: 0, _css: 0, code: 0, style: 0 } : null;
    const content = state ? { ...msg.content, data: { ...data, state } } : msg.content;
    let bytes = new TextEncoder().encode(JSON.stringify(content)).length;
    for (const buffer of msg.buffers ?? []) bytes += buffer.byteLength;
    const tiles = [custom.replies?.[0], custom].flatMap((one) => one?.tiles ?? []);
    const every = tiles.map((tile) => [String(tile.tile), tile.every, 2 ** tile.tile[0]]);
    const id = custom.replies?.[0]?.id ?? custom.of?.view ?? null;
    const error = custom.replies?.[0]?.error ?? null;
    seen.push({ at: performance.now(), direction, what, bytes, every, id, error });
  });
  window.ask = (model, request) => {
    const from = performance.now();
    kernel._comms.get(model).send({ method: "custom", content: { requests: [request] } });
    return from;
  };
}
"""

# Runs a cell and returns the milliseconds until the picture of the widget that it shows is on the canvas.
FIRST_PICTURE = """
async ([index, patience]) => {
  const { commands, shell } = window.jupyterapp;
  for (const old of document.querySelectorAll("[data-aw=picture]")) old.dataset.old = "";
  const small = new OffscreenCanvas(48, 48).getContext("2d", { willReadFrequently: true });
  const drawn = (canvas) => {
    if (!canvas || canvas.width < 2) return false;
    small.clearRect(0, 0, 48, 48);
    small.drawImage(canvas, 0, 0, 48, 48);
    return new Set(new Uint32Array(small.getImageData(0, 0, 48, 48).data.buffer)).size > 4;
  };
  shell.currentWidget.content.activeCellIndex = index;
  const start = performance.now();
  commands.execute("notebook:run-cell");
  while (performance.now() - start < patience * 1000) {
    const now = await new Promise(requestAnimationFrame);
    if (drawn(document.querySelector("[data-aw=picture]:not([data-old])"))) {
      await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
      return performance.now() - start;
    }
  }
  return null;
}
"""

# Asks for tiles and returns the milliseconds to the first answer, to one row for each bin of all, and to all exact.
TILES = """
async ([model, id, tiles, patience]) => {
  const already = window.seen.length;
  const request = { id, kind: "tiles", layer: 0, batch: 0, head: 0, stage: "weights", pool: "max", view: id, tiles };
  const from = window.ask(model, request);
  const found = {};
  while (performance.now() - from < patience * 1000 && found.exact === undefined) {
    await new Promise((done) => setTimeout(done, 1));
    const mine = window.seen.slice(already).filter((one) => one.direction === "recv" && one.id === id);
    if (mine.some((one) => one.error)) return { error: mine.find((one) => one.error).error };
    if (mine.length === 0) continue;
    const finest = new Map(mine.flatMap((one) => one.every).map(([tile, every, bin]) => [tile, [every, bin]]));
    const all = (test) => finest.size === tiles.length && [...finest.values()].every(test);
    found.first ??= mine[0].at - from;
    if (all(([every, bin]) => every <= bin)) found.refined ??= mine.at(-1).at - from;
    if (all(([every]) => every === 1)) found.exact = mine.at(-1).at - from;
  }
  return found;
}
"""

# Turns the wheel at random places, one step in each frame.
ZOOMS = """
async ([places]) => {
  const canvas = document.querySelector("[data-aw=picture]:not([data-old])");
  for (const [x, y, by] of places) {
    const box = canvas.getBoundingClientRect();
    const where = { clientX: box.left + x * box.width, clientY: box.top + y * box.height };
    const how = { deltaY: by, ctrlKey: true, bubbles: true, cancelable: true };
    canvas.dispatchEvent(new WheelEvent("wheel", { ...where, ...how }));
    await new Promise(requestAnimationFrame);
  }
}
"""


class Session:
    """A notebook with one long head, and what is measured of it."""

    def __init__(self, notebook: LabNotebook, length: int) -> None:
        self.notebook, self.page, self.length = notebook, notebook.page, length
        self.found: dict[str, float] = {}
        self.notes: list[str] = []
        self.model = ""
        self.chance = random.Random(length)
        self.asked = 0

    # Opening.

    def first_picture(self, runs: int) -> None:
        kernel, pixels = [], []
        for _ in range(runs):
            self.notebook.evaluate("w is not None and w.close()")
            self.page.evaluate("() => { window.seen.length = 0; }")
            taken = self.page.evaluate(FIRST_PICTURE, [0, PATIENCE])
            if taken is None:
                raise RuntimeError(f"no picture within {PATIENCE} s")
            pixels.append(taken / 1e3)
            self.notebook.wait_idle()
            self.page.wait_for_function("() => true")
            seconds, self.model = self.notebook.output(0).split()[:2]
            kernel.append(float(seconds))
        self.found["kernel, first picture, s"] = median(kernel)
        self.found["cell to pixels, s"] = median(pixels)
        opening = self._seen("comm_open")
        self.found["opening, KiB"] = sum(one["bytes"] for one in opening) / KIB

    def exact_pass(self) -> None:
        """Waits for the end of the pass that runs now; its time, from the widget that was opened last."""
        start = time.monotonic()
        while self.notebook.evaluate("print(w.progress is None)") != "True":
            self.page.wait_for_timeout(250)
            if time.monotonic() - start > PATIENCE:
                raise RuntimeError(f"the exact pass has not ended after {PATIENCE} s")
        self.found["exact pass, s"] = time.monotonic() - start

    def memory(self) -> None:
        grown = self.notebook.evaluate("print(memory('VmHWM') - held)")
        self.found["memory over q and k, MB"] = float(grown) / MB

    def exact_row(self) -> None:
        self.found["a row's 100 largest beside float64, relative"] = float(self.notebook.evaluate(ROW))

    # Tiles.

    def tiles(self, level: int, side: int, patience: float = 30) -> dict[str, Any]:
        """Asks for tiles that nobody has asked for, at a random place."""
        last = max(0, self.length // (TILE << level) - side)
        row, column = self.chance.randint(0, last), self.chance.randint(0, last)
        wanted = [[level, level, row + down, column + right] for down in range(side) for right in range(side)]
        self.asked += 1
        answer: dict[str, Any] = self.page.evaluate(TILES, [self.model, f"bench {self.asked}", wanted, patience])
        if "exact" not in answer and level == 0:
            answer.setdefault("error", f"not exact within {patience:.0f} s")
        if "error" in answer:
            self.notes.append(f"tiles of level {level} at row {row}, column {column}: {answer['error']}")
        return answer

    def cold_tiles(self, runs: int) -> None:
        """Tiles of single cells, while the pass runs."""
        running = self.notebook.evaluate("print(w.progress and w.progress['state'])")
        if running != "running":
            self.notes.append(f"the pass was not running when cold tiles were asked for: {running}")
        for side, name in ((1, "cold tile"), (SIDE, f"cold view of {SIDE} × {SIDE} tiles")):
            answers = [self.tiles(0, side) for _ in range(runs)]
            times = [answer["exact"] / 1e3 for answer in answers if "exact" in answer]
            if len(times) >= 2:
                self.found[f"{name}, median, s"] = median(times)
                self.found[f"{name}, p95, s"] = quantiles(times, n=20)[-1]
                self.found[f"{name}, first answer, s"] = median(a["first"] / 1e3 for a in answers if "first" in a)
            if len(times) < runs:
                self.notes.append(f"{name}: {runs - len(times)} of {runs} were not exact in time")
        still = self.notebook.evaluate("print(w.progress and round(w.progress['share'], 3))")
        self.notes.append(f"after the cold tiles the pass was at {still}")

    def middle_levels(self, levels: range) -> None:
        """What a reader has in view, in bins of several cells: the slowest of some levels."""
        answers = []
        for level in levels:
            answer = self.tiles(level, SIDE, 10)
            answers.append(answer)
            said = [f"{name} {answer[name] / 1e3:.2f} s" for name in ("first", "refined", "exact") if name in answer]
            self.notes.append(f"level {level}: {', '.join(said)}")
        for name, wanted in (("first answer", "first"), ("one row for each bin", "refined")):
            times = [answer[wanted] / 1e3 for answer in answers if wanted in answer]
            if len(times) == len(answers):
                self.found[f"middle levels, {name}, s"] = max(times)

    # Steps of a reader.

    def whole(self) -> tuple[float, float, float, float]:
        """The whole picture again; where on the page it is."""
        self._picture().focus()
        self.page.keyboard.press("0")
        self.settle()
        box = self._picture().bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < self.page.viewport_size["height"], "the picture is not in view"
        return box["x"], box["y"], box["width"], box["height"]

    def wheel(self, times: int, by: float = -120) -> None:
        self.page.keyboard.down("Control")
        for _ in range(times):
            self.page.mouse.wheel(0, by)
        self.page.keyboard.up("Control")

    def settle(self, quiet: float = 0.3) -> None:
        """Until no message about tiles or numbers has come for a while."""
        self.page.wait_for_function(
            """([quiet]) => {
              const mine = window.seen.filter(({ what }) => ["replies", "requests", "tiles"].includes(what));
              return mine.length === 0 || performance.now() - mine.at(-1).at > quiet * 1000;
            }""",
            arg=[quiet],
            timeout=PATIENCE * 1000,
        )

    def steps(self, runs: int) -> None:
        """Bytes of each step of zooming and panning, without what the pass sends of its own."""
        taken: dict[str, list[float]] = {"zoom": [], "pan": []}
        for _ in range(runs):
            x, y, width, height = self.whole()
            for _ in range(8):
                self.page.mouse.move(x + width * self.chance.random(), y + height * self.chance.random())
                self._clear()
                self.wheel(4)
                taken["zoom"].append(self._step())
                self._clear()
                self._drag(x + width * 0.9, y + height * 0.9, -width * 0.7, -height * 0.7, 6)
                taken["pan"].append(self._step())
        for name, sizes in taken.items():
            self.found[f"{name}, most of a step, KiB"] = max(sizes) / KIB
            self.found[f"{name}, median of a step, KiB"] = median(sizes) / KIB

    def frames(self, browser: Browser, seconds: float) -> None:
        """Script of each frame, as the browser's own trace has it, while a hand drags and turns the wheel."""
        pan: list[float] = []
        zoom: list[float] = []
        for depth in (8, 20, 60):
            box = self.whole()
            self.page.mouse.move(box[0] + box[2] / 2, box[1] + box[3] / 2)
            self.wheel(depth)
            self.settle()
            pan += traced(browser, partial(self._pan_for, seconds, *box))
        for _ in range(2):
            x, y, width, height = self.whole()
            self.page.mouse.move(x + width / 2, y + height / 2)
            zoom += traced(browser, lambda: self._zoom_for(seconds))
        for name, times in (("pan", pan), ("zoom", zoom)):
            self.found[f"frames, {name}"] = len(times)
            self.found[f"script of a frame, {name}, p50, ms"] = median(times)
            self.found[f"script of a frame, {name}, p95, ms"] = quantiles(times, n=20)[-1]
            self.found[f"script of a frame, {name}, most, ms"] = max(times)
        self.found["script of a frame, p95, ms"] = quantiles(pan + zoom, n=20)[-1]

    def heap(self, zooms: int, samples: int = 21) -> None:
        """Heap and buffers after each so many random zooms, once the rubbish is out."""
        session = self.page.context.new_cdp_session(self.page)
        self.whole()
        used = []
        for _ in range(samples):
            places = [
                [self.chance.random(), self.chance.random(), self.chance.choice((-240, -120, -60, 60, 120))]
                for _ in range(zooms // samples)
            ]
            self.page.evaluate(ZOOMS, [places])
            self.settle()
            self._clear()
            for _ in range(2):
                session.send("HeapProfiler.collectGarbage")
            now = session.send("Runtime.getHeapUsage")
            used.append((now["usedSize"] + now.get("backingStorageSize", 0)) / MB)
        session.detach()
        third = samples // 3
        first, last = median(used[:third]), median(used[-third:])
        self.found["heap, first third, MB"] = first
        self.found["heap, last third, MB"] = last
        self.found["heap, last third over first"] = last / first
        self.notes.append("heap after each part: " + ", ".join(f"{size:.0f}" for size in used) + " MB")

    def _pan_for(self, seconds: float, x: float, y: float, width: float, height: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            by = self.chance.uniform(-0.4, 0.4) * width, self.chance.uniform(-0.4, 0.4) * height
            self._drag(x + width / 2, y + height / 2, *by, 24)

    def _zoom_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self.page.keyboard.down("Control")
        for step in range(10_000):
            self.page.mouse.wheel(0, -40 if step % 60 < 40 else 80)
            if time.monotonic() > until:
                break
        self.page.keyboard.up("Control")

    def _drag(self, x: float, y: float, across: float, down: float, steps: int) -> None:
        self.page.mouse.move(x, y)
        self.page.mouse.down()
        self.page.mouse.move(x + across, y + down, steps=steps)
        self.page.mouse.up()

    def _step(self) -> float:
        self.page.wait_for_timeout(500)  # it asks once the wheel rests, if at all
        self.settle()
        return float(sum(one["bytes"] for what in ("replies", "tiles") for one in self._seen(what)))

    def _picture(self) -> Any:
        return self.page.locator("[data-aw=picture]:not([data-old])")

    def _clear(self) -> None:
        self.page.evaluate("() => { window.seen.length = 0; }")

    def _seen(self, what: str) -> list[dict[str, Any]]:
        seen: list[dict[str, Any]] = self.page.evaluate(
            "([what]) => window.seen.filter((one) => one.what.startsWith(what) && one.direction === 'recv')", [what]
        )
        return seen


def measure(browser: Browser, length: int, chosen: argparse.Namespace) -> dict[str, Any]:
    dtype = "float16" if length >= HALF_FROM else "float32"
    with LabServer() as server:
        lab = Lab(browser, server)
        keywords = ", is_causal=True" if chosen.causal else ""
        notebook = lab.open([OPEN.format(keywords=keywords)], width=1250, height=1100, device_scale_factor=1)
        session = Session(notebook, length)
        try:
            if said := notebook.evaluate(SETUP.format(threads=chosen.threads, length=length, dtype=dtype)):
                raise RuntimeError(said)
            notebook.page.evaluate(PROBE)
            parts = {
                "first picture": lambda: session.first_picture(chosen.runs),
                "cold tiles": lambda: session.cold_tiles(chosen.tiles),
                "middle levels": lambda: session.middle_levels(range(2, 10)),
                "steps": lambda: session.steps(3),
                "pass": session.exact_pass if length < HALF_FROM else lambda: None,
                "memory": session.memory,
                "exact row": session.exact_row,
                "frames": lambda: session.frames(browser, 4),
                "heap": lambda: session.heap(chosen.zooms),
            }
            for name, part in parts.items():
                print(f"n = {length:,}: {name}", file=sys.stderr, flush=True)
                try:
                    part()
                except Exception as error:
                    session.notes.append(f"{name} failed: {type(error).__name__}: {str(error).splitlines()[0][:200]}")
            session.notes += [f"console: {message.text[:200]}" for message in notebook.problems]
            if "Traceback" in server.log:
                session.notes.append("the kernel's log has a traceback: " + server.log.split("Traceback")[-1][-300:])
        finally:
            lab.close()
    return {"n": length, "dtype": dtype, "found": session.found, "notes": session.notes}


def limit(name: str, length: int) -> float | None:
    limits = WANTED.get(name, {})
    return next((limits[least] for least in sorted(limits, reverse=True) if length >= least), None)


def report(result: dict[str, Any]) -> None:
    host = result["machine"]
    print(f"{host['processor']}, {host['threads']} of {host['cores']} cores, torch {host['torch']}", end=", ")
    print(f"Python {host['python']}, Chromium {result['browser']}; load before it began {result['load']:.1f}")
    for session in result["sessions"]:
        print(f"\n| n = {session['n']:,}, {session['dtype']} | found | at most | |\n|---|--:|--:|---|")
        for name, value in session["found"].items():
            most = limit(name, session["n"])
            met = "" if most is None else "met" if value <= most else "**missed**"
            print(f"| {name} | {value:,.3g} | {'' if most is None else f'{most:g}'} | {met} |")
        print()
        for note in session["notes"]:
            print(f"- {note}")


def figures(result: dict[str, Any]) -> list[Figure]:
    listed = []
    for session in result["sessions"]:
        for name, value in session["found"].items():
            said, _, given = name.rpartition(", ")
            unit, times = UNITS.get(given, ("", 1))
            most = limit(name, session["n"])
            if not name.startswith("frames"):  # how many there were
                called = f"{session['n']:,} tokens, {said if given in UNITS else name}"
                wanted = None if most is None else most * times
                listed.append(Figure(called, value * times, unit, wanted=wanted))
    return listed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--threads", type=int, default=2, help="of torch")
    parser.add_argument("--runs", type=int, default=5, help="of opening")
    parser.add_argument("--tiles", type=int, default=40, help="cold ones")
    parser.add_argument("--zooms", type=int, default=2000)
    parser.add_argument("--causal", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    result: dict[str, Any] = {"machine": machine(), "load": os.getloadavg()[0], "causal": chosen.causal}
    with chromium() as browser:
        result["browser"] = browser.version
        result["sessions"] = [measure(browser, length, chosen) for length in chosen.lengths]
    report(result)
    status = finish(chosen.json, figures(result), result)
    return 1 if any(" failed: " in note for one in result["sessions"] for note in one["notes"]) else status


if __name__ == "__main__":
    raise SystemExit(main())
