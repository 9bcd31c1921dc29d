"""What an atlas costs: over the model's own forward passes, and how it grows with workers, lengths and heads.

    python benchmarks/atlas.py                     # a model of 6 layers, 12 heads and 384 numbers, as all-MiniLM-L6-v2
    python benchmarks/atlas.py --texts 10000       # also the largest memory of a process that measures so many
    python benchmarks/atlas.py --runs 1 --texts 40 # short

README.md beside this file says what each line means.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import transformers
from figures import Figure, figure_of, finish, peak_bytes

from attnwidget import atlas

TARGET = 3.0  # times the forward passes, at 128 tokens


def bert(heads: int = 12) -> Any:
    """A model of the size of all-MiniLM-L6-v2, with random weights; heads of 32 numbers."""
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 6, "num_attention_heads": heads, "hidden_size": 32 * heads}
    others = {"intermediate_size": 128 * heads, "vocab_size": 5000, "max_position_embeddings": 2048}
    return transformers.BertModel(transformers.BertConfig(**sizes, **others)).eval()


def texts(count: int, length: int) -> list[list[int]]:
    make = torch.Generator().manual_seed(1)
    return torch.randint(5, 5000, (count, length), generator=make).tolist()


def sentences(count: int) -> list[list[int]]:
    """Texts of 5 to 40 tokens."""
    lengths = torch.randint(5, 41, (count,), generator=torch.Generator().manual_seed(2)).tolist()
    return [ids[:n] for ids, n in zip(texts(count, 40), lengths, strict=True)]


def timed(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def forward(model: Any, given: list[list[int]], at_once: int) -> None:
    whole = torch.tensor(given)
    with torch.no_grad():
        for some in whole.split(at_once):
            model(input_ids=some)


def over_forward(length: int, heads: int, runs: int) -> Figure:
    """Return the time of an atlas over that of the forward passes, of batches as large as its own."""
    model, given = bert(heads), texts(max(4, 8192 // length), length)
    at_once = max(1, min(64, 8192 // length))
    ratios = []
    for _ in range(runs + 1):  # the first warms up
        alone = timed(lambda: forward(model, given, at_once))
        ratios.append(timed(lambda: atlas(model, given, progress=False)) / alone)
    target = TARGET if (length, heads) == (128, 12) else None
    return figure_of(f"{length} tokens, {heads} heads, over forward", ratios[1:], "×", wanted=target)


def by_workers(runs: int, count: int) -> list[Figure]:
    """Return the texts per second of 1 and 2 processes of one thread each, over that of this process."""
    model, given = bert(), sentences(count)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    here = [timed(lambda: atlas(model, given, progress=False)) for _ in range(runs)]
    found = [figure_of("texts a second, one thread", [count / one for one in here], "texts/s", lower_is_better=False)]
    for workers in (1, 2):
        rates = []
        for one in here:
            with ProcessPoolExecutor(workers) as executor:
                atlas(model, given[:8], executor=executor, progress=False)  # processes start, and load the model
                rates.append(one / timed(lambda: atlas(model, given, executor=executor, progress=False)))
        found.append(
            figure_of(
                f"{workers} process{'es' * (workers > 1)}, over one thread here", rates, "×", lower_is_better=False
            )
        )
    torch.set_num_threads(threads)
    return found


def memory(count: int) -> Figure:
    """Return the largest memory of a process that measures so many texts, in GiB."""
    command = [sys.executable, __file__, "--alone", str(count)]
    largest = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])
    return Figure(f"memory of {count:,} texts", largest, "GiB", wanted=2.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--texts", type=int, default=400, help="for the workers; and for the memory")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--alone", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        atlas(bert(), sentences(given.alone), progress=False)
        print(peak_bytes() / 2**30)
        return 0
    found = [over_forward(length, 12, given.runs) for length in (32, 128, 512, 2048)]
    found += [over_forward(128, heads, given.runs) for heads in (6, 24)]
    found += by_workers(min(given.runs, 3), min(given.texts, 400))
    found.append(memory(given.texts))
    for one in found:
        wanted = "" if one.wanted is None else f"   (wanted {one.wanted:g})"
        print(f"{one.name:44} {one.value:8.2f} {one.unit}{wanted}")
    return finish(given.json, found)


if __name__ == "__main__":
    sys.exit(main())
