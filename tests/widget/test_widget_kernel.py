"""A long head in a real kernel: cells and questions get in while the exact picture is computed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import start_new_kernel

OPEN = """
import torch
from attnwidget import AttentionWidget
torch.set_num_threads(1)
q, k = torch.randn(2, 40_000, 16)
w = AttentionWidget(q, k)
print(w.model_id)
"""
WAIT = 120  # seconds, at most


class Kernel:
    """Cells and comm messages, and what comes of them."""

    def __init__(self) -> None:
        root = str(Path(__file__).parents[2])
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        self.manager, self.client = start_new_kernel(env={**os.environ, "PYTHONPATH": path}, startup_timeout=WAIT)
        self.errors: list[str] = []

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def run(self, code: str) -> str:
        """What a cell prints."""
        said: list[str] = []

        def hear(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                (said if message["content"]["name"] == "stdout" else self.errors).append(message["content"]["text"])
            if message["msg_type"] == "error":
                self.errors.append("\n".join(message["content"]["traceback"]))

        self.client.execute_interactive(code, timeout=WAIT, output_hook=hear)
        return "".join(said).strip()

    def ask(self, comm: str, question: dict[str, Any]) -> dict[str, Any]:
        """The reply to a question of a front-end."""
        content = {"comm_id": comm, "data": {"method": "custom", "content": {"requests": [question]}}}
        self.client.shell_channel.send(self.client.session.msg("comm_msg", content))
        until = time.monotonic() + WAIT
        while time.monotonic() < until:
            message = self.client.get_iopub_msg(timeout=WAIT)
            if message["msg_type"] == "stream":
                self.errors.append(message["content"]["text"])
            data = message["content"].get("data", {})
            replies = data.get("content", {}).get("replies") if isinstance(data, dict) else None
            if replies:
                found: dict[str, Any] = replies[0]
                return found
        raise TimeoutError


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    yield kernel
    kernel.close()


@pytest.mark.slow
def test_cells_and_questions_get_in_while_a_pass_runs(kernel: Kernel) -> None:
    comm = kernel.run(OPEN)
    assert kernel.errors == []
    shares = [float(kernel.run("print(w.progress['share'] if w.progress else 2.0)")) for _ in range(3)]
    assert shares[0] < 1, "the first cell came before the end of the pass"
    at = {"layer": 0, "batch": 0, "head": 0, "stage": "weights"}
    reply = kernel.ask(comm, {"id": "1", "kind": "row", "query": 7, **at})
    assert (reply["id"], reply["ok"]) == ("1", True)
    assert kernel.run("print(w.picture['sampled'] is not None)") == "True", "nor was the answer kept waiting"
    before, until = shares[-1], time.monotonic() + WAIT
    while time.monotonic() < until:
        time.sleep(0.2)  # nobody asks for anything: the pass has the kernel to itself
        share = float(kernel.run("print(w.progress['share'] if w.progress else 2.0)"))
        assert share >= before
        before = share
        if share == 2:
            break
    assert kernel.run("print(w.picture['sampled'], w.picture['error'])") == "None None"
    assert kernel.errors == []
