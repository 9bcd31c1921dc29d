"""What all tests share."""

import os

import comm
import pytest
import torch
from front_end import FrontEnd
from hypothesis import settings

settings.register_profile("attnwidget", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("attnwidget")

torch.set_num_threads(1)  # small tensors: threads would only wait for one another


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
