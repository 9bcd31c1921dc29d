"""attnwidget beside other tools that draw attention: Python time, bytes, and time to the first complete drawing.

    make bench ARGS=peers                           # makes the peers' environment, then this
    python benchmarks/peers.py --json out.json
    python benchmarks/peers.py --lengths 64 128 --tools attnwidget treescope plotly

README.md beside this file says what is measured and how.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.server
import io
import json
import os
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browser"))

import numpy as np
import numpy.typing as npt
import psutil
import torch
from figures import Figure, figure_of, finish, machine
from lab import Browser, Page
from peer_pages import TOOLS
from PIL import Image
from playwright.sync_api import Error, Playwright, sync_playwright
from playwright.sync_api import TimeoutError as TookTooLong

HERE = Path(__file__).parent
PEERS = HERE.parent / ".peers"  # made by `make`: an environment, and what BertViz takes from a CDN
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
OURS = "attnwidget"
STATIC = ("seaborn",)  # a picture: nothing to click
SECONDS = 60  # a tool that takes longer in Python or in the browser has failed
SLOW = 6  # seconds; of what takes longer, one run is enough
FEW = 16  # tokens
FIRST_PAINT = 0.17  # seconds, wanted of up to 128 tokens
QUIET = 0.5  # seconds without a change of the page after which it is taken as complete
SIZE = (1200, 900)

# True when all that was asked for is in the page: whether it is on the screen too, the pictures say.
COMPLETE = {
    "attnwidget": "document.querySelector('[data-aw=picture]')?.getAttribute('aria-label')",
    "bertviz head_view": "document.querySelectorAll('#vis line').length === n * n",
    "bertviz model_view": "document.querySelectorAll('#vis line').length === n * n",
    "circuitsvis": "document.querySelector('canvas')",
    "inspectus": "document.querySelectorAll('rect').length >= n * n",
    "plotly": "document.querySelector('.heatmaplayer image')",
    "seaborn": "document.images[0]?.complete",
    "treescope": "document.querySelector('treescope-container')?.shadowRoot.querySelector('canvas')",
}

# The page itself says when that is so and two frames have been drawn since, and when its navigation began.
SAYS = "complete at "
WATCH = """
const watch = setInterval(() => {
  const n = LENGTH;
  if (!(COMPLETE)) return;
  clearInterval(watch);
  requestAnimationFrame(() => requestAnimationFrame(() => {
    const marks = performance.getEntriesByType("mark").map((mark) => [mark.name, mark.startTime]);
    console.debug("SAYS" + JSON.stringify([performance.timeOrigin / 1000, Object.fromEntries(marks)]));
  }));
}, 100);
"""

# What a tool takes from a CDN, and the file that stands for it here.
CDN = {
    "https://cdnjs.cloudflare.com/ajax/libs/require.js/2.3.6/require.min.js": "requirejs/require.js",
    "https://cdnjs.cloudflare.com/ajax/libs/d3/5.7.0/d3.min": "d3/dist/d3.min.js",
    "https://cdnjs.cloudflare.com/ajax/libs/jquery/2.0.0/jquery.min": "jquery/dist/jquery.min.js",
}


class Failed(Exception):
    """A tool cannot do this length; the text says why."""


class Worker:
    """A fresh process with one tool and one head, which makes pages on demand."""

    def __init__(self, tool: str, length: int, python: Path, threads: int) -> None:
        command = [os.fspath(python), str(HERE / "peer_pages.py"), tool, str(length), f"--threads={threads}"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.about = self._line(120)

    def page(self, path: Path) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()
        return self._line(SECONDS + 60)  # writing the page takes its time too, and is not counted

    def _line(self, seconds: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._process.stdout, selectors.EVENT_READ)
            if not waiting.select(seconds):
                self.close()
                raise Failed(f"Python: nothing after {SECONDS} s")
        said = self._process.stdout.readline()
        if said:
            found: dict[str, Any] = json.loads(said)
            return found
        _, errors = self._process.communicate()
        last = errors.strip().splitlines()[-1:] or [f"ended with status {self._process.returncode}"]
        raise Failed(f"Python: {last[0][:120]}")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Watched:
    """A page that is being opened, and what can be seen of it, frame by frame."""

    def __init__(self, browser: Browser) -> None:
        self._context = browser.context(width=SIZE[0], height=SIZE[1], device_scale_factor=1)
        self._page = self._context.new_page()
        self._frames: list[tuple[float, str]] = []
        self._session = self._context.new_cdp_session(self._page)
        self._session.on("Page.screencastFrame", self._take)
        size = {"maxWidth": SIZE[0] // 2, "maxHeight": SIZE[1] // 2}
        self._session.send("Page.startScreencast", {"format": "png", **size})
        self._page.wait_for_timeout(800)  # Chromium loads its own first page behind each new window

    def _take(self, event: dict[str, Any]) -> None:
        self._frames.append((event["metadata"]["timestamp"], event["data"]))
        self._session.send("Page.screencastFrameAck", {"sessionId": event["sessionId"]})

    def open(self, url: str, complete: str, n: int) -> dict[str, Any]:
        """Seconds from the start of the navigation until all was on the screen, as the browser dates its frames."""
        said: list[str] = []
        self._page.on("crash", lambda _: said.append("crashed"))
        self._page.on(
            "console", lambda line: said.append(line.text[len(SAYS) :]) if line.text.startswith(SAYS) else None
        )
        self._page.add_init_script(WATCH.replace("COMPLETE", complete).replace("SAYS", SAYS).replace("LENGTH", str(n)))
        try:
            self._page.goto(url, wait_until="commit", timeout=SECONDS * 1000)
            self._wait(lambda: bool(said), "not complete")
            if said[0] == "crashed":
                raise Failed("browser: the page crashed")
            self._page.screenshot(timeout=SECONDS * 1000)  # waits for what is still to be rastered
        except TookTooLong:
            raise Failed(f"browser: not complete after {SECONDS} s") from None
        except Error as error:
            raise Failed(f"browser: {error.message.splitlines()[0][:100]}") from None
        self._wait(lambda: time.time() - self._frames[-1][0] > QUIET, "still changing")
        started, marks = json.loads(said[0])
        frames = [(date, pixels(data)) for date, data in self._frames if date >= started]
        last = frames[-1][1]
        if blank(last):
            raise Failed("browser: blank")
        since = len(frames)
        while since and same(frames[since - 1][1], last):
            since -= 1
        return {"seconds": frames[since][0] - started, "marks": marks}

    def _wait(self, until: Callable[[], bool], otherwise: str) -> None:
        """Asks the page nothing: one that is busy would not answer in time, or ever."""
        end = time.monotonic() + SECONDS
        while not until():
            self._page.wait_for_timeout(50)
            if time.monotonic() > end:
                raise Failed(f"browser: {otherwise} after {SECONDS} s")

    def close(self) -> None:
        self._context.close()


Pixels = npt.NDArray[np.int16]


def pixels(png: str) -> Pixels:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB"), dtype=np.int16)


def same(one: Pixels, other: Pixels) -> bool:
    """But for a blinking caret."""
    return one.shape == other.shape and bool((np.abs(one - other).max(2) > 8).mean() < 0.0005)


def blank(picture: Pixels) -> bool:
    """Less than one pixel in a thousand differs from the page's most frequent color."""
    flat = picture.reshape(-1, 3)
    colors, counts = np.unique(flat, axis=0, return_counts=True)
    return bool(len(colors) < 4 or counts.max() > 0.999 * len(flat))


class Pages(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


class Bench:
    """All tools at all lengths, in turn within each run."""

    def __init__(self, chosen: argparse.Namespace, playwright: Playwright, folder: Path, address: str) -> None:
        self.chosen, self.playwright, self.folder, self.address = chosen, playwright, folder, address
        self._launch()
        self.rows: list[dict[str, Any]] = []
        self.versions: dict[str, str] = {}
        self.offline: dict[str, str] = {}  # what each tool draws without a network

    def length(self, n: int) -> None:
        failed = {row["tool"] for row in self.rows if row["failed"]}
        rows: dict[str, dict[str, Any]] = {
            tool: {"tool": tool, "n": n, "python": [], "browser": [], "marks": [], "failed": None}
            for tool in self.chosen.tools
            if tool not in failed
        }
        workers: dict[str, Worker] = {}
        try:
            for _ in range(self.chosen.runs):
                for tool, row in rows.items():
                    if row["failed"] or (row["python"] and row["python"][0] + row["browser"][0] > SLOW):
                        continue
                    try:
                        if tool not in workers:
                            workers[tool] = self._worker(tool, n)
                        self._run(tool, n, workers[tool], row)
                    except Failed as failure:
                        row["failed"] = str(failure)
                        self._renew()
                    print(f"n = {n:,}, {tool}: {said(row)}", file=sys.stderr, flush=True)
        finally:
            for worker in workers.values():
                worker.close()
        self.rows += rows.values()

    def _worker(self, tool: str, n: int) -> Worker:
        worker = Worker(tool, n, sys.executable if tool == OURS else self.chosen.python, self.chosen.threads)
        self.versions[tool] = worker.about["version"]
        return worker

    def _run(self, tool: str, n: int, worker: Worker, row: dict[str, Any]) -> None:
        path = self.folder / "page.html"
        made = worker.page(path)
        if made["seconds"] > SECONDS:
            raise Failed(f"Python: {made['seconds']:.0f} s")
        row["bytes"] = self._without_cdn(path)
        if "opening" in made:
            row["opening"] = made["opening"]
        late = threading.Timer(2 * SECONDS, self._kill)  # of a page that holds up the whole browser
        late.start()
        try:
            watched = Watched(self.browser)
            opened = watched.open(f"{self.address}/page.html", COMPLETE[tool], n)
            watched.close()
        except Error:
            raise Failed("browser: it stands still") from None
        finally:
            late.cancel()
        row["python"].append(made["seconds"])
        row["browser"].append(opened["seconds"])
        row["marks"].append(opened["marks"])

    def as_it_comes(self, tool: str) -> None:
        """Learns what a small page does where nothing outside can be reached."""
        worker = self._worker(tool, FEW)
        worker.page(self.folder / "page.html")
        worker.close()
        page = Page(self.browser.context(width=SIZE[0], height=SIZE[1], device_scale_factor=1))
        try:
            page.page.goto(f"{self.address}/page.html")
            page.page.wait_for_function(f"(n) => Boolean({COMPLETE[tool]})", arg=FEW, timeout=5000)
            self.offline[tool] = "draws"
        except TookTooLong:
            hosts = sorted({str(urlsplit(url).hostname) for url in page.blocked})
            self.offline[tool] = f"blank: wants {', '.join(hosts)}" if hosts else "blank"
        finally:
            page.close()

    def _without_cdn(self, path: Path) -> int:
        """Lets a page take from here what it takes from a CDN; returns the bytes of the page and of what it takes."""
        html = path.read_bytes()
        extra = 0
        for url, name in CDN.items():
            if url.encode() not in html:
                continue
            source = PEERS / "node_modules" / name
            if not source.exists():
                raise Failed(f"wants {url}: `make bench` installs what stands for it")
            ending = "" if url.endswith(".js") else ".js"  # require.js adds it
            local = self.folder / (url.rsplit("/", 1)[1] + ending)
            local.write_bytes(source.read_bytes())
            html = html.replace(url.encode(), local.name.removesuffix(ending or "\0").encode())
            extra += local.stat().st_size
        if extra:
            path.write_bytes(html)
        return len(html) + extra

    def _launch(self) -> None:
        before = set(psutil.Process().children(recursive=True))
        self.browser = Browser(self.playwright)
        self._processes = set(psutil.Process().children(recursive=True)) - before

    def _renew(self) -> None:
        """Another browser, in the place of one with a page that has crashed or answers no more, even to be closed."""
        self._kill()
        self._launch()

    def _kill(self) -> None:
        for process in self._processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


# The tables.


def opens(row: dict[str, Any]) -> float:
    """Seconds from the call in Python to the complete drawing, without the notebook between the two."""
    return median(row["python"]) + median(row["browser"])


def said(row: dict[str, Any]) -> str:
    if row["failed"]:
        return f"failed ({row['failed']})"
    python, browser = (1e3 * median(row[part]) for part in ("python", "browser"))
    return f"{python:,.0f} ms + {browser:,.0f} ms, {row['bytes'] / 1e6:,.1f} MB, {len(row['python'])} runs"


def verdicts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At each length the fastest tool that one can click in, beside attnwidget."""
    found = []
    for n in sorted({row["n"] for row in rows}):
        there = {row["tool"]: opens(row) for row in rows if row["n"] == n and not row["failed"]}
        peers = {tool: seconds for tool, seconds in there.items() if tool not in (OURS, *STATIC)}
        if OURS in there and peers:
            fastest = min(peers, key=lambda tool: peers[tool])
            found.append({"n": n, "ours": there[OURS], "fastest": fastest, "theirs": peers[fastest]})
    return [line | {"ratio": line["ours"] / line["theirs"], "met": line["ours"] <= line["theirs"]} for line in found]


def report(result: dict[str, Any]) -> None:
    rows = {(row["tool"], row["n"]): row for row in result["rows"]}
    lengths = sorted({n for _, n in rows})

    def table(title: str, cell: Any) -> None:
        print(f"\n| {title} | " + " | ".join(f"{n:,}" for n in lengths) + " |\n|---|" + "--:|" * len(lengths))
        for tool in result["tools"]:
            cells = []
            for n in lengths:
                row = rows.get((tool, n))
                cells.append("" if row is None else "failed" if row["failed"] else cell(row))
            print(f"| {tool} {result['versions'].get(tool, '')} | " + " | ".join(cells) + " |")

    def beside(row: dict[str, Any]) -> str:
        ours = rows.get((OURS, row["n"]))
        ratio = "" if ours is None or ours["failed"] or row is ours else f" ({opens(row) / opens(ours):.2g} ×)"
        few = "" if len(row["python"]) >= 5 else f" [{len(row['python'])}]"
        return f"{opens(row):.2f} s{ratio}{few}"

    host = result["machine"]
    print(f"{host['processor']}, {host['threads']} of {host['cores']} cores, torch {host['torch']}", end=", ")
    print(f"Python {host['python']}, Chromium {result['browser']}", end="; ")
    print(f"load {result['load'][0]:.1f} before and {result['load'][1]:.1f} after")
    print(f"medians of {result['runs']} interleaved runs, or of [as many]; {SECONDS} s at most")
    table("opens (× attnwidget)", beside)
    table("Python, ms", lambda row: f"{1e3 * median(row['python']):,.1f}")
    table("browser, ms", lambda row: f"{1e3 * median(row['browser']):,.0f}")
    table("page, KB", lambda row: f"{row['bytes'] / 1e3:,.0f}")
    ours = [rows[OURS, n] for n in lengths if "opening" in rows.get((OURS, n), {})]
    if ours:
        print("\nattnwidget's opening state, without the bundle: ", end="")
        print(", ".join(f"{row['opening'] / 1e3:,.0f} KB at {row['n']:,}" for row in ours))
    for tool, does in result["offline"].items():
        if does != "draws":
            print(f"{tool} without a network: {does}")
    for row in result["rows"]:
        if row["failed"]:
            print(f"{row['tool']} at {row['n']:,}: {row['failed']}")
    print()
    for line in result["verdicts"]:
        word = "met" if line["met"] else "MISSED"
        print(
            f"{word}: at {line['n']:,} attnwidget opens in {line['ours']:.2f} s, {line['ratio']:.2f} × the fastest "
            f"interactive peer, {line['fastest']} in {line['theirs']:.2f} s"
        )


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Pages, directory=os.fspath(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def figures(result: dict[str, Any]) -> list[Figure]:
    """Return what ours takes, and how many times ours each other tool takes."""
    done = [row for row in result["rows"] if not row["failed"]]
    ours = {row["n"]: row for row in done if row["tool"] == OURS}
    listed = []
    for n, row in ours.items():
        both = [sum(pair) for pair in zip(row["python"], row["browser"], strict=True)]
        listed.append(figure_of(f"{n:,} tokens, opens", both, "s", wanted=FIRST_PAINT if n <= 128 else None))
        listed.append(figure_of(f"{n:,} tokens, Python", row["python"], "s"))
        listed.append(Figure(f"{n:,} tokens, opening state", row["opening"], "bytes"))
    for row in done:
        if row["n"] in ours and row["tool"] != OURS:
            name = f"{row['n']:,} tokens, {row['tool']} ÷ attnwidget"
            listed.append(Figure(name, opens(row) / opens(ours[row["n"]]), "×", lower_is_better=False))
    return listed


def not_measured(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Return the tools that failed at every length, and why at the first: not slow, but not there."""
    found: dict[str, str] = {}
    for row in rows:
        if row["failed"]:
            found.setdefault(row["tool"], row["failed"])
    return {tool: why for tool, why in found.items() if all(row["failed"] for row in rows if row["tool"] == tool)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="of torch")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--python", type=Path, default=PEERS / "bin" / "python", help="that of the peers' environment")
    chosen = parser.parse_args()
    if chosen.tools != [OURS] and not chosen.python.exists():
        parser.error(f"{chosen.python} is not there: `make bench` makes it, or name another with --python")
    torch.set_num_threads(chosen.threads)
    before = os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory() as folder,
        served(Path(folder)) as address,
        sync_playwright() as playwright,
    ):
        bench = Bench(chosen, playwright, Path(folder), address)
        version = bench.browser.version
        for tool in chosen.tools:
            bench.as_it_comes(tool)
        for n in sorted(chosen.lengths):
            bench.length(n)
        bench.browser.close()
    result = {
        "machine": machine(),
        "load": [before, os.getloadavg()[0]],
        "browser": version,
        "runs": chosen.runs,
        "tools": chosen.tools,
        "versions": bench.versions,
        "offline": bench.offline,
        "rows": bench.rows,
        "verdicts": verdicts(bench.rows),
    }
    report(result)
    status = finish(chosen.json, figures(result), result)
    never = not_measured(bench.rows)
    for tool, why in never.items():
        print(f"NOT MEASURED {tool}: {why}")
    return 1 if never or any(row["failed"] for row in result["rows"] if row["tool"] == OURS) else status


if __name__ == "__main__":
    raise SystemExit(main())
