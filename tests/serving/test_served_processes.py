"""Engines in processes of their own: one, two tensor-parallel workers, an AsyncLLM, and a server."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from compared import EXACT, LONG, SHORT, check, greedy, largest_difference
from conftest import SMALL
from tiny_models import reference

from attnwidget import Capture, capture, serving
from attnwidget._capture.serving import served_recorder

EXTENSION = "attnwidget.serving.Extension"
LONGEST_START = 200  # seconds


@pytest.mark.own_process
def test_two_conversations_in_an_engine_of_its_own_process_are_those_of_eager(folder: Path) -> None:
    """The engine is compiled, batches two chats, and has the beginning of one of them in its cache."""
    from vllm import LLM

    llm = LLM(str(folder), worker_extension_cls=EXTENSION, enable_prefix_caching=True, **SMALL)
    ask = [[{"role": "user", "content": text}] for text in (f"{LONG} w1", SHORT)]
    llm.chat([[{"role": "user", "content": LONG}]], greedy(2), use_tqdm=False)
    with capture(llm) as cap:
        outputs = llm.chat(ask, greedy(6), use_tqdm=False)
    assert cap.skipped == {}
    check(cap, outputs, reference(folder))
    assert cap[0].attention[0].part.queries[0] >= 128  # read from the cache before
    widget = cap.widget(forward=1)
    assert widget.facts["forwards"] == 2
    assert widget.facts["request"] == outputs[1].request_id
    assert [one.name for one in cap[1].segments()][-2:] == ["prompt", "answer"]
    with capture(llm, requests=lambda request: len(request.prompt) > 100, layers=[-1]) as some:
        outputs = llm.chat(ask, greedy(3), use_tqdm=False)
    assert some.requests == [outputs[0].request_id]
    assert len(some[0].attention) == 1


@pytest.mark.own_process
def test_heads_of_two_workers_are_one_capture(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from vllm import LLM

    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    how: dict[str, Any] = {"tensor_parallel_size": 2, "worker_extension_cls": EXTENSION, "enforce_eager": True}
    llm = LLM(str(folder), **how, **SMALL)
    model = reference(folder)
    with capture(llm) as cap:
        outputs = llm.generate([LONG, SHORT], greedy(5), use_tqdm=False)
    check(cap, outputs, model)
    with capture(llm, heads=[0, 3], folder=tmp_path) as cap:
        outputs = llm.generate([SHORT], greedy(5), use_tqdm=False)
    assert cap[0].attention[0].part.heads == (0, 3)
    assert len(cap.files) == 2
    check(cap, outputs, model)
    assert Capture.load(tmp_path / "*.safetensors")[0].attention[0].part.heads == (0, 3)
    with capture(llm, keep="overview", layers=0) as cap:
        llm.generate([SHORT], greedy(5), use_tqdm=False)
    assert cap[0].attention[0].shape.H == 4
    with capture(llm, heads=[0]) as cap:  # one of the workers has none of them
        llm.generate([SHORT], greedy(2), use_tqdm=False)
    assert cap[0].attention[0].part.heads == (0,)


@pytest.mark.own_process
def test_an_async_engine_is_captured_within_its_loop(folder: Path) -> None:
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    async def serve() -> Any:
        engine = AsyncLLM.from_engine_args(
            AsyncEngineArgs(str(folder), enforce_eager=True, worker_extension_cls=EXTENSION, **SMALL)
        )

        async def ask(name: str, prompt: str) -> Any:
            last = None
            async for output in engine.generate(prompt, greedy(6), name):
                last = output
            return last

        try:
            with pytest.raises(ValueError, match="write async with capture"), capture(engine):
                pass
            async with capture(engine, requests=["a", "b*"]) as cap:
                outputs = await asyncio.gather(ask("a", LONG), ask("b1", SHORT), ask("c", SHORT))
            return cap, outputs
        finally:
            engine.shutdown()

    cap, outputs = asyncio.run(serve())
    assert sorted(cap.requests) == ["a", "b1"]
    check(cap, outputs[:2], reference(folder))


# A server.


@pytest.fixture(scope="module")
def address(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a server with the tiny model."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--worker-extension-cls", EXTENSION, "--enforce-eager", "--dtype", "float32"]
    command += ["--max-model-len", "512", "--kv-cache-memory-bytes", str(1 << 28)]
    found = f"http://127.0.0.1:{port}"
    with log.open("wb") as file:
        server = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, "VLLM_SERVER_DEV_MODE": "1"})
    try:
        for _ in range(LONGEST_START):
            try:
                urllib.request.urlopen(f"{found}/health", timeout=5)
                break
            except OSError:
                assert server.poll() is None, log.read_text()[-2000:]
                time.sleep(1)
        yield found
    finally:
        server.terminate()
        server.wait(60)


def post(address: str, path: str, body: dict[str, Any], **headers: str) -> Any:
    body = {"model": "tiny", "temperature": 0, "ignore_eos": True, "max_tokens": 5, **body}
    request = urllib.request.Request(
        address + path, json.dumps(body).encode(), {"Content-Type": "application/json", **headers}
    )
    with urllib.request.urlopen(request) as reply:
        return json.loads(reply.read())


def apart(cap: Any, name: str, folder: Path) -> float:
    """Return the largest difference of a request's weights from transformers, for the tokens that it read."""
    return largest_difference(cap[name], cap[name].inputs["input_ids"][0].tolist(), reference(folder))


def test_requests_of_a_server_are_captured_by_its_address(address: str, folder: Path) -> None:
    chat = {"messages": [{"role": "user", "content": SHORT}]}
    with capture(address) as cap:
        told = post(address, "/v1/completions", {"prompt": LONG})
        post(address, "/v1/chat/completions", chat, **{"X-Request-Id": "mine"})
    assert cap.skipped == {}
    assert len(cap) == 2
    assert told["id"] in cap.requests[0]
    assert apart(cap, "mine", folder) <= EXACT
    assert apart(cap, told["id"], folder) <= EXACT
    with capture(address, requests="chatcmpl-*", layers=1) as cap:
        post(address, "/v1/completions", {"prompt": SHORT})
        post(address, "/v1/chat/completions", chat)
    assert len(cap) == 1
    assert cap.requests[0].startswith("chatcmpl-")


def test_files_of_a_far_server_are_copied_or_stay(
    address: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_recorder, "own_file", lambda *_: None)  # as on another machine
    with capture(address) as cap:
        post(address, "/v1/completions", {"prompt": SHORT})
    assert apart(cap, cap.requests[0], folder) <= EXACT
    with pytest.warns(UserWarning, match="the files are on the server"), capture(address, folder=tmp_path) as cap:
        post(address, "/v1/completions", {"prompt": SHORT})
    (file,) = cap.files
    assert apart(Capture.load(file), "cmpl", folder) <= EXACT


def test_what_a_server_refuses_is_said(address: str) -> None:
    with pytest.raises(ValueError, match="a server's endpoint takes no code"):
        capture(address, requests=lambda request: True)
    cap = capture(address)
    cap.__enter__()
    assert len(serving.release(address)) == 1
    with pytest.raises(ValueError, match="no layer is 'h"), capture(address, layers="h.7"):
        pass
