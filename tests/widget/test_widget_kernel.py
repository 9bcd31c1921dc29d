"""A widget in a real kernel: cells and questions get in while the exact picture is computed, and in subshells."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from front_end import decode
from jupyter_client.manager import start_new_kernel
from tolerance import rounding

from attnwidget import Attention

OPEN = """
import torch
from attnwidget import AttentionWidget
torch.set_num_threads(1)
q, k = torch.randn(2, 40_000, 16)
w = AttentionWidget(q, k)
print(w.model_id)
"""
WAIT = 120  # seconds, at most
pytestmark = pytest.mark.thorough


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

    def subshells(self, count: int) -> list[str]:
        """Return so many threads of the kernel that take messages while a cell runs; none where there are no such."""
        self.client.kernel_info()
        info = self.client.get_shell_msg(timeout=WAIT)["content"]
        if "kernel subshells" not in info.get("supported_features", ()):
            return []
        made = []
        for _ in range(count):
            self.client.control_channel.send(self.client.session.msg("create_subshell_request"))
            made.append(self.client.get_control_msg(timeout=WAIT)["content"]["subshell_id"])
        return made

    def send(self, kind: str, content: dict[str, Any], subshell: str) -> None:
        """Send a message to one of these threads."""
        message = self.client.session.msg(kind, content)
        message["header"]["subshell_id"] = subshell
        self.client.shell_channel.send(message)


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    yield kernel
    kernel.close()


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


SUBSHELLS = 4
ASKED = 50  # questions of each of them, half of them by messages
SMALL = """
import torch
from attnwidget import AttentionWidget
q, k = torch.randn(2, 1, 3, 40, 8, generator=torch.Generator().manual_seed(0))
w = AttentionWidget(q, k, is_causal=True)

def question(n):
    where = {"layer": 0, "batch": 0, "head": n % 3, "query": n % 40, "stage": "weights"}
    return {"method": "custom", "content": {"requests": [{"id": str(n), "kind": "row", **where}]}}

print(w.model_id)
"""
CHANGES = """
import time
n = 0
while len(ended) < 4:
    n += 1
    w.head, w.query = n % 3, n % 40
    time.sleep(0.002)
w.head, w.query = 0, 39
"""
ASK = """
for n in range({0}, {1}):
    w.comm.handle_msg({{"content": {{"data": question(n)}}, "buffers": []}})
ended.append({0})
"""


def test_what_is_asked_in_subshells_while_a_cell_runs_is_answered_right(kernel: Kernel) -> None:
    """The cell runs until all subshells have asked. Where a message goes, ipykernel decides by its version."""
    comm = kernel.run(SMALL)
    shells = kernel.subshells(SUBSHELLS)
    if not shells:
        pytest.skip("this ipykernel has no subshells: they came with 7.0")
    client, half = kernel.client, ASKED // 2
    kernel.run("ended = []")
    cell = client.execute(CHANGES)
    for number, shell in enumerate(shells):
        asks = {"code": ASK.format(number * ASKED, number * ASKED + half), "silent": False, "store_history": False}
        kernel.send("execute_request", {**asks, "user_expressions": {}, "allow_stdin": False}, shell)
        for n in range(number * ASKED + half, (number + 1) * ASKED):
            where = {"layer": 0, "batch": 0, "head": n % 3, "query": n % 40, "stage": "weights"}
            content = {"requests": [{"id": str(n), "kind": "row", **where}]}
            data = {"comm_id": comm, "data": {"method": "custom", "content": content}}
            kernel.send("comm_msg", data, shell)
    replies: dict[int, np.ndarray] = {}
    has_ended = False
    while len(replies) < SUBSHELLS * ASKED or not has_ended:
        message = client.get_iopub_msg(timeout=WAIT)
        content = message["content"]
        assert message["msg_type"] not in ("error", "stream"), content
        if message["msg_type"] == "status" and message["parent_header"].get("msg_id") == cell:
            has_ended |= content["execution_state"] == "idle"
        data = content.get("data", {})
        for reply in data.get("content", {}).get("replies", []) if isinstance(data, dict) else []:
            assert reply["ok"], reply
            assert int(reply["id"]) not in replies, "each is answered once"
            replies[int(reply["id"])] = decode(reply["values"], message["buffers"])
    q, k = torch.randn(2, 1, 3, 40, 8, generator=torch.Generator().manual_seed(0))
    att = Attention(q, k, is_causal=True)
    for n, found in replies.items():
        wanted = att.block(head=n % 3, queries=[n % 40])[0]
        np.testing.assert_allclose(found.ravel(), wanted.numpy(), **rounding(att)["weights"])
    assert kernel.run("print(w.head, w.query, w.picture['head'], w.picture['error'])") == "0 39 0 None"
    assert kernel.errors == []
