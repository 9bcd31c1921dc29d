"""What all tests share."""

import os
from collections.abc import Iterator
from pathlib import Path

import comm
import pytest
import torch
from front_end import FrontEnd
from hypothesis import settings
from left_behind import put_right, switched

# Examples of each property, unless it says another number (`examples`).
settings.register_profile("attnwidget", deadline=None, derandomize=bool(os.environ.get("CI")), max_examples=25)
settings.register_profile("quick", settings.get_profile("attnwidget"), max_examples=10)
settings.register_profile("thorough", settings.get_profile("attnwidget"), max_examples=250)
settings.load_profile("attnwidget")

# One thread: tensors are small, threads would only wait for one another. `make portable` asks for two as well,
# by the variable that torch reads in the notebooks' kernels too.
torch.set_num_threads(int(os.environ.setdefault("OMP_NUM_THREADS", "1")))

SLOW = frozenset((Path(__file__).parent / "slow.txt").read_text(encoding="utf-8").split("\n"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that took long when `tools/minutes.py keep after` was last run: `make quick` leaves them out."""
    for item in items:
        if item.nodeid.partition("[")[0] in SLOW:
            item.add_marker(pytest.mark.slow)


def pytest_report_header() -> str:
    """Say in a log what the numbers were computed with."""
    threads = torch.get_num_threads()
    return (
        f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {threads} thread{'s' * (threads > 1)}"
    )


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Draw the same numbers in a test whichever tests ran before it, in this process or beside it."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _leaves_nothing() -> Iterator[None]:
    """Fail the test that leaves something of the process switched, and put it right: not the thousands after it."""
    yield
    left = {name: state for name, (state, as_it_was) in switched().items() if state != as_it_was}
    if left:
        put_right()
        pytest.fail(f"this test has left behind: {left}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--screenshots",
        action="store_true",
        help="let the tests in a browser save pictures in test-artifacts/screenshots",
    )


@pytest.fixture
def front_end(monkeypatch: pytest.MonkeyPatch) -> FrontEnd:
    """Hears all that widgets made in this test send."""
    front_end = FrontEnd()
    monkeypatch.setattr(comm, "create_comm", front_end.create_comm)
    return front_end
