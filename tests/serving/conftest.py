"""Tests that need vLLM: `make serving` runs them in an environment of their own, and nothing else collects them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ALONE = "ATTNWIDGET_TEST_ALONE"
HAS_ENGINE = importlib.util.find_spec("vllm") is not None
collect_ignore_glob = [] if HAS_ENGINE else ["*.py"]

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
SMALL: dict[str, Any] = {"dtype": "float32", "max_model_len": 512, "max_num_seqs": 4, "kv_cache_memory_bytes": 1 << 28}


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is marked so in a process of its own: a process of vLLM can have few engines, one by one."""
    if pyfuncitem.get_closest_marker("own_process") is None or os.environ.get(ALONE):
        return None
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(pyfuncitem.config.inipath), pyfuncitem.nodeid]
    found = subprocess.run(
        command, env={**os.environ, ALONE: "yes"}, cwd=pyfuncitem.config.rootpath, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stdout[-4000:]
    return True


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny Llama."""
    from tiny_models import write_model

    return write_model("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let engines run in the process of the test."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
