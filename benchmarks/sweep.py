"""Capture many models that were not tuned to, and compare every weight with what a spy of our own computes in float64.

    python benchmarks/sweep.py                          # all of them; the table is written to docs/models.md
    python benchmarks/sweep.py --only timm vit_pytorch  # some libraries, or names that hold these words
    python benchmarks/sweep.py --options default train  # some options
    python benchmarks/sweep.py --write                  # docs/models.md again, from the results that are there

README.md beside this file says what each line means, and how to make the environment that it needs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import random
import re
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # PYTHONPATH comes first

HERE = Path(__file__).parent
OPTIONS = ("default", "values", "clone", "bfloat16", "float16", "train", "threads", "generate", "beams")
SUPPORT = {
    "numpy",
    "anywidget",
    "ipywidgets",
    "psutil",
    "einops",
    "sentencepiece",
    "protobuf",
    "scipy",
    "tiktoken",
}  # that libraries need
MEMORY = 5.0  # GiB that a worker may take
SLOW = 0.4  # seconds of one call: such a model is tried with few options
SECONDS = 150.0  # for one configuration, all options


# One configuration, in a worker.


def try_case(name: str, options: list[str]) -> dict[str, Any]:
    """Return what became of a configuration under each option: `{"status": …}`, with what is needed to look into it."""
    import torch
    from sweep_check import check
    from sweep_libraries import NotHere
    from sweep_models import CASES

    torch.manual_seed(0)
    start = time.perf_counter()
    found: dict[str, Any] = {"name": name, "options": {}}
    try:
        case = CASES[name]()
        with torch.no_grad():
            case.run()
            before = time.perf_counter()
            case.run()
            slow = time.perf_counter() - before > SLOW
    except NotHere as error:
        return {**found, "left_out": str(error)[:600]}
    except Exception as error:  # a model that cannot be made says nothing of capture
        return {**found, "left_out": f"{type(error).__name__}: {error}"[:600]}
    for option in options:
        if slow and option not in ("default", "values"):
            continue
        try:
            result = check(case, option)
        except Exception as error:
            import traceback

            if "can't allocate memory" in str(error):  # of this sweep, which keeps every weight in float64
                return {**found, "left_out": "more memory than the sweep gives one configuration"}
            where = traceback.format_exc().strip().splitlines()[-3:-1]
            result = {
                "status": "broken",
                "why": f"{type(error).__name__}: {error}"[:300],
                "where": " ".join(where)[-200:],
            }
        if result is not None:
            found["options"][option] = result
    found["seconds"] = round(time.perf_counter() - start, 2)
    return found


def work(memory: float) -> None:
    """Read names and options from standard input, a line of JSON each, and answer each with a line."""
    warnings.filterwarnings("ignore")
    if sys.platform == "linux":
        import resource

        limit = int(memory * (1 << 30))
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for line in sys.stdin:
        name, options = json.loads(line)
        with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
            found = try_case(name, options)
        print(json.dumps(found), file=answers, flush=True)


# The pool.


def sweep(
    names: list[str], options: list[str], partial: Path, workers: int, memory: float = MEMORY, seconds: float = SECONDS
) -> dict[str, Any]:
    """Try all of these configurations in processes of their own, which are replaced where one takes too long."""
    done: dict[str, Any] = {}
    if partial.exists():
        for line in partial.read_text().splitlines():
            one = json.loads(line)
            done[one["name"]] = one
    waiting: queue.Queue[str] = queue.Queue()
    for name in random.Random(0).sample(names, len(names)):  # so that a part of a sweep is a sample of the whole
        if name not in done:
            waiting.put(name)
    lock = threading.Lock()

    def run() -> None:
        process = None
        while True:
            try:
                name = waiting.get_nowait()
            except queue.Empty:
                break
            if process is None or process.poll() is not None:
                process = start_worker(memory)
            timer = threading.Timer(seconds, process.kill)
            timer.start()
            try:
                process.stdin.write(json.dumps([name, options]) + "\n")
                process.stdin.flush()
                line = process.stdout.readline()
            except BrokenPipeError:
                line = ""
            timer.cancel()
            found = (
                json.loads(line)
                if line
                else {"name": name, "left_out": f"not done in {seconds:.0f} s, or it ended the process"}
            )
            if not line:
                process.kill()
                process = None
            with lock, partial.open("a") as out:
                done[name] = found
                out.write(json.dumps(found) + "\n")
                print(f"{len(done)} {name}: {summary(found)}", flush=True)
        if process is not None:
            process.stdin.close()
            process.wait()

    threads = [threading.Thread(target=run) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return done


def start_worker(memory: float) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return subprocess.Popen(
        [sys.executable, str(HERE / "sweep.py"), "--worker", "--memory", str(memory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )


def summary(found: dict[str, Any]) -> str:
    if "left_out" in found:
        return f"left out ({found['left_out'][:400]})"
    by_status: dict[str, list[str]] = {}
    for option, one in found["options"].items():
        by_status.setdefault(one["status"], []).append(option)
    bad = [
        f"{option}: {one.get('why', '')[:150]}"
        for option, one in found["options"].items()
        if one["status"] in ("wrong", "vanished", "broken")
    ]
    return "; ".join(f"{status} ({len(which)})" for status, which in by_status.items()) + (
        "  !! " + " | ".join(bad[:2]) if bad else ""
    )


def write(partial: list[Path]) -> None:
    """Write the results of these files (later ones replace earlier ones) and the tables of docs/models.md."""
    from sweep_table import RESULTS, condensed, write_document, write_results

    if partial:
        done = {}
        for path in partial:
            for line in path.read_text().splitlines():
                one = json.loads(line)
                done[one["name"]] = one
        write_results(condensed(done, versions()))
    write_document(json.loads(RESULTS.read_text(encoding="utf-8")))


def versions() -> dict[str, str]:
    """Return the versions of what was tried."""
    from importlib import metadata

    found = {}
    for line in (HERE / "sweep-requirements.txt").read_text().splitlines():
        name = re.split(r"[=<>#\s]", line)[0]
        if name and name not in SUPPORT:
            with contextlib.suppress(metadata.PackageNotFoundError):
                found[name] = metadata.version(name)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], help="libraries, or words of names")
    parser.add_argument("--options", nargs="+", default=list(OPTIONS), choices=OPTIONS)
    parser.add_argument("--partial", type=Path, default=HERE / ".sweep-partial.jsonl", help="where to go on from")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--memory", type=float, default=MEMORY, help="GiB that one configuration may take")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that one configuration may take")
    parser.add_argument("--list", action="store_true", help="the names of all configurations")
    parser.add_argument(
        "--write",
        nargs="*",
        type=Path,
        metavar="PARTIAL",
        help="write the results of these files, or, of none, the document of the results that are there",
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.memory)
        return
    if arguments.write is not None:
        write(arguments.write)
        return
    from sweep_models import CASES

    names = [name for name in CASES if not arguments.only or any(re.search(word, name) for word in arguments.only)]
    if arguments.list:
        print("\n".join(names))
        return
    limits = arguments.memory, arguments.seconds
    sweep(names, arguments.options, arguments.partial, arguments.workers, *limits)
    if not arguments.only:
        write([arguments.partial])


if __name__ == "__main__":
    main()
