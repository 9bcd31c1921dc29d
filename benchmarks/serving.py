"""How much slower an engine of vLLM is while its attention is recorded, and the memory that this takes.

    .venv-serving/bin/python benchmarks/serving.py

Tokens per second of prompts and answers, each as the ratio to the same engine without a capture, measured in turns;
medians. It needs the environment of `make serving`, and prints one line for each choice of what is kept.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "serving"))

CHOICES: dict[str, dict[str, Any] | None] = {
    "no capture": None,
    "no capture, again": None,
    "one layer, rows of the prompt": {"layers": 0, "queries": "prompt"},
    "one layer": {"layers": 0},
    "all layers, rows of the prompt": {"queries": "prompt"},
    "all layers": {},
}


def model(layers: int, size: int, folder: Path) -> None:
    """Write a Llama with random weights, and its tokenizer."""
    import torch
    from tiny_models import GROUPED, write_tokenizer
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = size // 64
    torch.manual_seed(0)
    given = {**GROUPED, "num_hidden_layers": layers, "hidden_size": size, "intermediate_size": 3 * size}
    given |= {"num_attention_heads": heads, "num_key_value_heads": heads // 2, "head_dim": 64}
    LlamaForCausalLM(LlamaConfig(**given)).to(torch.bfloat16).save_pretrained(folder)
    write_tokenizer(folder)


def main() -> None:
    """Measure in turns, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--size", type=int, default=768)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=400)
    parser.add_argument("--answer", type=int, default=48)
    parser.add_argument("--turns", type=int, default=7)
    given = parser.parse_args()
    import torch
    from compared import greedy
    from vllm import LLM

    from attnwidget import capture

    prompts = [" ".join(f"w{(i * 37 + first) % 400}" for i in range(given.prompt)) for first in range(given.requests)]
    with tempfile.TemporaryDirectory() as folder:
        model(given.layers, given.size, Path(folder))
        how = {"dtype": "bfloat16", "max_model_len": 1024, "enable_prefix_caching": False, "enforce_eager": True}
        llm = LLM(folder, kv_cache_memory_bytes=1 << 30, max_num_seqs=given.requests, **how)
        seconds: dict[str, list[float]] = {name: [] for name in CHOICES}
        after: dict[str, list[float]] = {name: [] for name in CHOICES}
        memory: dict[str, int] = {}
        for turn in range(given.turns + 1):
            for name, choice in CHOICES.items():
                block: AbstractContextManager[Any] = nullcontext() if choice is None else capture(llm, **choice)
                begun = time.perf_counter()
                with block as cap:
                    start = time.perf_counter()
                    llm.generate(prompts, greedy(given.answer), use_tqdm=False)
                    taken = time.perf_counter() - start
                if turn:  # the first warms up
                    seconds[name].append(taken)
                    after[name].append(time.perf_counter() - begun - taken)
                memory[name] = 0 if cap is None else cap.nbytes
    tokens = given.requests * (given.prompt + 1 + given.answer)
    plain = statistics.median(seconds["no capture"])
    print(f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads, {tokens:,} tokens, ", end="")
    print(f"{given.layers} layers of {given.size // 64} heads, bfloat16; {tokens / plain:,.0f} tokens per second")
    for name in CHOICES:
        ratio = statistics.median(one / other for one, other in zip(seconds[name], seconds["no capture"], strict=True))
        told = f"{1 / ratio:5.1%} of its tokens per second, {memory[name] / 1e6:6.1f} MB"
        print(f"{name:32} {told}, {statistics.median(after[name]):.2f} s to put together and check")


if __name__ == "__main__":
    main()
