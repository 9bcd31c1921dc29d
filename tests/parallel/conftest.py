"""Pools of processes, which tests share: to start one takes longer than most of them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor

import pytest

QUICK = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"


@pytest.fixture
def fresh_pool() -> Iterator[ProcessPoolExecutor]:
    """Two processes, which a test may kill."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(QUICK)) as pool:
        yield pool


@pytest.fixture(scope="module")
def pools() -> Iterator[dict[str, Executor]]:
    """Two threads, and two processes."""
    context = multiprocessing.get_context(QUICK)
    with ThreadPoolExecutor(2) as threads, ProcessPoolExecutor(2, mp_context=context) as processes:
        yield {"threads": threads, "processes": processes}
