"""Requests of one engine in the process of the test: batches, chunks, cached prefixes, samples, choices, refusals."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from compared import EXACT, LONG, SHORT, check, greedy, largest_difference
from conftest import SMALL
from tiny_models import reference, write_adapter

from attnwidget import Capture, capture, serving

pytestmark = pytest.mark.usefixtures("in_this_process")


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return reference(folder)


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[Any]:
    """Return an engine that cuts prompts into chunks of 64 tokens, caches prefixes and takes adapters."""
    from vllm import LLM

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        yield LLM(
            str(folder),
            enforce_eager=True,
            enable_prefix_caching=True,
            max_num_batched_tokens=64,
            enable_lora=True,
            max_lora_rank=8,
            **SMALL,
        )


def serve(llm: Any, prompts: list[str], sampling: Any, more: dict[str, Any] | None = None, **how: Any) -> Any:
    """Return the capture of some prompts, and the answers."""
    llm.reset_prefix_cache()
    with capture(llm, **how) as cap:
        outputs = llm.generate(prompts, sampling, use_tqdm=False, **(more or {}))
    return cap, outputs


def test_a_batch_in_chunks_is_one_forward_pass_a_request(llm: Any, model: Any) -> None:
    cap, outputs = serve(llm, [LONG, SHORT], greedy(6))
    assert cap.skipped == {}
    assert cap.requests == [one.request_id for one in outputs]
    check(cap, outputs, model)
    assert "answer 5" in str(cap[1].segments())
    assert cap[1].tokens[0][1:4] == SHORT.split()
    assert "widget" in type(cap[1].widget()).__name__.lower()
    assert cap[outputs[0].request_id].attention[0].shape.Q > 256


def test_keys_of_a_cached_prefix_are_read_from_the_cache(llm: Any, model: Any) -> None:
    serve(llm, [LONG], greedy(2))
    with capture(llm) as cap:
        outputs = llm.generate([f"{LONG} w5 w6"], greedy(4), use_tqdm=False)
    att = cap[0].attention[0]
    assert att.part.queries[0] >= 128  # a block at least was not computed again
    assert att.part.queries[-1] + 1 == att.shape.K
    assert cap[0].key_tokens[0][1] == "w0"
    check(cap, outputs, model)


def test_samples_of_one_prompt_are_forward_passes_of_their_own(llm: Any, model: Any) -> None:
    from vllm import SamplingParams

    cap, outputs = serve(llm, [LONG], SamplingParams(n=3, temperature=1, max_tokens=6, ignore_eos=True))
    assert [re.sub(r"^\d+", "", name) for name in cap.requests] == [f", sample {i}" for i in range(3)]
    assert len({tuple(answer.token_ids) for answer in outputs[0].outputs}) > 1
    check(cap, outputs, model)


def test_an_answer_ends_at_its_stop_string(llm: Any, model: Any) -> None:
    _, outputs = serve(llm, [SHORT], greedy(12))
    words = outputs[0].outputs[0].text.split()
    cap, outputs = serve(llm, [SHORT], greedy(12, stop=[words[5]]))
    assert outputs[0].outputs[0].finish_reason == "stop"
    check(cap, outputs, model)


def test_an_adapter_is_in_the_weights_and_in_the_name(llm: Any, folder: Path, tmp_path: Path) -> None:
    from vllm.lora.request import LoRARequest

    merged = write_adapter(folder, tmp_path / "poet")
    request = LoRARequest("poet", 1, str(tmp_path / "poet"))
    cap, outputs = serve(llm, [SHORT], greedy(4), {"lora_request": request})
    check(cap, outputs, merged, "{} (poet)")


def test_only_what_was_asked_for_is_kept(llm: Any, model: Any) -> None:
    how: dict[str, Any] = {"layers": [1], "heads": [0, 3], "requests": lambda request: len(request.prompt) < 20}
    cap, outputs = serve(llm, [LONG, SHORT], greedy(5), queries="answer", **how)
    assert cap.requests == [outputs[1].request_id]
    assert cap[0].attention.names == ("model.layers.1.self_attn.attn",)
    part = cap[0].attention[0].part
    count = len(outputs[1].prompt_token_ids)
    assert (part.heads, part.queries) == ((0, 3), tuple(range(count, count + 4)))
    ids = [*outputs[1].prompt_token_ids, *outputs[1].outputs[0].token_ids]
    with torch.no_grad():
        expected = model(torch.tensor([ids[:-1]]), output_attentions=True).attentions[1][0, [0, 3], count:]
    assert float((cap[0].attention.weights(0)[0] - expected).abs().max()) <= EXACT
    cap, outputs = serve(llm, [SHORT], greedy(5), queries="prompt", values=False, dtype=torch.float16)
    att = cap[0].attention[0]
    assert (att.shape.Q, att.shape.K, att.v, att.dtype) == (4, 4, None, torch.float16)
    cap, outputs = serve(llm, [SHORT], greedy(5), queries=slice(-2, None), requests="*")
    assert cap[0].attention[0].part.queries == (6, 7)


def test_overviews_are_made_by_the_workers(llm: Any, model: Any) -> None:
    cap, outputs = serve(llm, [LONG], greedy(3), keep="overview")
    att = cap[0].attention[0]
    with pytest.raises(ValueError, match="kept only overviews"):
        att.block(queries=0)
    ids = torch.tensor([[*outputs[0].prompt_token_ids, *outputs[0].outputs[0].token_ids][: att.shape.K]])
    with torch.no_grad():
        weights = model(ids, output_attentions=True).attentions[0][0, 1]
    size = att.overview(head=1).values.shape[0]
    width = -(-att.shape.Q // size)
    expected = torch.nn.functional.max_pool2d(weights[None], width, ceil_mode=True)[0]
    assert torch.allclose(att.overview(head=1).values, expected, atol=EXACT)


def test_files_stay_in_a_folder(llm: Any, tmp_path: Path) -> None:
    cap, outputs = serve(llm, [SHORT], greedy(3), folder=tmp_path / "maps")
    (file,) = cap.files
    loaded = Capture.load(file)
    assert loaded.requests == cap.requests == [outputs[0].request_id]
    assert torch.equal(loaded[cap.requests[0]].attention.weights(0), cap[0].attention.weights(0))
    assert [*Path(tmp_path, "maps").iterdir()] == [Path(file)]
    cap.save(tmp_path / "own.safetensors")
    assert Capture.load(tmp_path / "own.safetensors").requests == cap.requests


def test_a_limit_ends_the_recording_of_a_text_and_says_so(llm: Any, model: Any) -> None:
    with pytest.warns(UserWarning, match="the limit was reached after"):
        cap, outputs = serve(llm, [SHORT], greedy(60), limit="40kB")
    (why,) = cap.skipped.values()
    assert why.startswith("the limit was reached after")
    forward = cap[0]
    assert 4 < forward.attention[0].shape.K < 60
    assert largest_difference(forward, [*outputs[0].prompt_token_ids, *outputs[0].outputs[0].token_ids], model) <= EXACT


def test_several_blocks_of_one_capture_add_up(llm: Any) -> None:
    cap = capture(llm, layers=0)
    for prompt in (SHORT, LONG):
        with cap:
            llm.generate([prompt], greedy(2), use_tqdm=False)
    assert len(cap.requests) == len(cap) == 2
    with capture(llm, layers=0) as outer, capture(llm, layers=1) as inner:
        llm.generate([SHORT], greedy(2), use_tqdm=False)
    assert (outer[0].attention.names, inner[0].attention.names) == (
        ("model.layers.0.self_attn.attn",),
        ("model.layers.1.self_attn.attn",),
    )


def test_an_engine_is_as_before_after_a_block(llm: Any) -> None:
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    layers = [one for one in runner.model.modules() if hasattr(one, "impl")]
    before = [dict(vars(one.impl)) for one in layers], set(vars(runner))
    serve(llm, [SHORT], greedy(2))
    assert ([dict(vars(one.impl)) for one in layers], set(vars(runner))) == before


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"layers": 7}, "no layer is 7: there are 'model.layers.0.self_attn.attn'"),
        ({"layers": "h.3"}, r"no layer is 'h\.3': there are"),
        ({"heads": [9]}, "head 9 is not there: it has heads 0 to 3"),
        ({"queries": [999]}, r"queries=\[999\] names none of its"),
        ({"requests": "chat-*"}, r"requests='chat-\*' wants none of those that ran, such as '\d+'"),
        ({"requests": lambda request: request.colour}, "recording failed inside the engine.*colour"),
        ({"gradients": True}, "gradients=True cannot be chosen for an engine that serves"),
        ({"sources": True}, "sources=True cannot be chosen for an engine that serves"),
        ({"cross": True}, "cross=True cannot be chosen for an engine that serves"),
    ],
)
def test_what_cannot_be_had_is_refused(llm: Any, how: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        serve(llm, [SHORT], greedy(2), **how)
    assert len(llm.generate([SHORT], greedy(2), use_tqdm=False)) == 1  # the engine goes on


def test_requests_must_be_named(llm: Any) -> None:
    with pytest.raises(TypeError, match="requests is 7: give a function of a request, or ids"):
        capture(llm, requests=7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"no request was recorded: call llm\.generate"), capture(llm):
        pass


def test_a_recording_that_was_left_open_can_be_ended(llm: Any) -> None:
    cap = capture(llm)
    cap.__enter__()
    assert len(serving.release(llm)) == 1
    with pytest.raises(ValueError, match="this recording is not known to the worker"):
        cap.__exit__(None, None, None)
    assert serving.release(llm) == []


def test_a_changed_output_is_not_shown(llm: Any) -> None:
    layer = llm.llm_engine.model_executor.driver_worker.worker.model_runner.model.model.layers[0].self_attn.attn
    inner = layer.impl.forward

    def forward(*given: Any, output: Any, **more: Any) -> Any:
        found = inner(*given, output=output, **more)
        output[:, 1] *= 1.01
        return found

    layer.impl.forward = forward
    try:
        with pytest.warns(UserWarning, match="do not give its output"):
            cap, _ = serve(llm, [LONG], greedy(3))
    finally:
        del layer.impl.forward
    assert [*cap.skipped] == ["model.layers.0.self_attn.attn"]
    assert cap[0].attention.names == ("model.layers.1.self_attn.attn",)
