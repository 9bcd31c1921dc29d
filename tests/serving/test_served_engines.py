"""Engines with other memory: preempted requests, rejected drafts, windows whose first keys are lost, rounded caches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from compared import LONG, SHORT, check, greedy
from conftest import SMALL
from tiny_models import reference, write_model

from attnwidget import capture

pytestmark = [pytest.mark.usefixtures("in_this_process"), pytest.mark.own_process]


def engine(folder: Path, **how: Any) -> Any:
    from vllm import LLM

    return LLM(str(folder), enforce_eager=True, disable_log_stats=False, **{**SMALL, **how})


def metric(llm: Any, name: str) -> float:
    """Return a counter of an engine."""
    return sum(one.value for one in llm.get_metrics() if one.name == name)


def test_preempted_requests_are_computed_again_and_whole(folder: Path) -> None:
    llm = engine(folder, num_gpu_blocks_override=7, enable_prefix_caching=False)
    prompts = [" ".join(f"w{(i * 37 + first) % 400}" for i in range(120)) for first in range(4)]
    with capture(llm) as cap:
        outputs = llm.generate(prompts, greedy(140), use_tqdm=False)
    assert metric(llm, "vllm:num_preemptions") > 0
    assert cap.skipped == {}
    check(cap, outputs, reference(folder))


def test_rejected_drafts_are_not_in_the_map(folder: Path) -> None:
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2, "prompt_lookup_min": 1}
    llm = engine(folder, speculative_config=drafts)
    with capture(llm) as cap:
        outputs = llm.generate(["w1 w2 w3 w1 w2 w3 w1 w2", "w9 w8 w7 w9 w8 w7"], greedy(40), use_tqdm=False)
    drafted, taken = (metric(llm, f"vllm:spec_decode_num_{one}_tokens") for one in ("draft", "accepted"))
    assert 0 < taken < drafted
    check(cap, outputs, reference(folder), drafts=True)


def test_keys_that_a_window_has_left_need_not_be_in_the_cache(tmp_path: Path) -> None:
    llm = engine(write_model("gemma3", tmp_path), enable_prefix_caching=True)
    with capture(llm) as cap:
        outputs = llm.generate([LONG], greedy(5), use_tqdm=False)
    check(cap, outputs, reference(tmp_path))
    with capture(llm) as cap:
        outputs = llm.generate([f"{LONG} w5 w6"], greedy(5), use_tqdm=False)
    assert cap.skipped == {}
    assert cap[0].attention[0].part.queries[0] >= 128
    check(cap, outputs, reference(tmp_path))


@pytest.mark.skipif(not torch.cpu._is_avx512_supported(), reason="vLLM's caches of 8 bits need AVX-512")
def test_keys_are_those_of_a_rounded_cache(folder: Path) -> None:
    llm = engine(folder, kv_cache_dtype="fp8", enable_prefix_caching=True)
    with capture(llm) as cap:
        llm.generate([LONG, SHORT], greedy(5), use_tqdm=False)
    assert cap.skipped == {}
    for att in cap[0].attention:
        assert torch.equal(att.k.to(torch.float8_e4m3fn).float(), att.k)  # rounded, so rounding changes nothing
        assert torch.equal(att.v.to(torch.float8_e4m3fn).float(), att.v)
    with capture(llm) as cap:
        llm.generate([f"{LONG} w5 w6"], greedy(5), use_tqdm=False)
    assert cap.skipped == {}
    assert cap[0].attention[0].part.queries[0] >= 128
