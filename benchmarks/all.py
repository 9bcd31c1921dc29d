"""All benchmarks, one after the other: engine, imports, wire, scale, capture, carried, interventions, graph, heads,
segments, segments_view, drag, peers, browser, many and attack.

    make bench                                     # with all that they need
    python benchmarks/all.py --json folder         # and the numbers as JSON, a file for each
    python benchmarks/all.py engine wire

README.md beside this file says what each of them means. It exits with 1 if one of them could not be run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
FEWER = {"attack": ["--messages", "8000"], "segments": ["--runs", "3"], "interventions": ["--runs", "3"]}
OF_MODELS = ("capture", "carried", "interventions")
OF_PAGES = ("graph", "heads", "segments", "segments_view", "drag", "peers", "browser", "many", "attack")
ALL = ("engine", "imports", "wire", "scale", *OF_MODELS, *OF_PAGES)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="*", metavar="|".join(ALL), help="all if none is named")
    parser.add_argument("--json", type=Path, metavar="FOLDER")
    asked = parser.parse_args()
    for name in asked.which:
        if name not in ALL:
            parser.error(f"there is no {name}: choose among {', '.join(ALL)}")
    if asked.json:
        asked.json.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in asked.which or ALL:
        print(f"\n## {name}\n", flush=True)
        out = ["--json", str(asked.json / f"{name}.json")] if asked.json else []
        if subprocess.run([sys.executable, str(HERE / f"{name}.py"), *FEWER.get(name, []), *out]).returncode:
            failed.append(name)
    if failed:
        print(f"\nexceeded a budget, or could not be run: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
