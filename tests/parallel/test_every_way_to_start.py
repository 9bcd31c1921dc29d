"""Every function that takes an executor, with every way to start processes: results that torch copies in parallel."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from front_end import assert_same_picture
from hanging import killed_if_they_hang
from torch import Tensor

from attnwidget import Attention, AttentionStack, AttentionWidget, atlas, capture, segments
from attnwidget._engine import parts

pytestmark = [pytest.mark.processes, pytest.mark.thorough]

N, SPREAD = 2600, 400


@pytest.fixture(autouse=True)
def many_tasks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make tasks of few cells, in a process that has computed with several threads."""
    monkeypatch.setattr(parts, "LEAST_CELLS", 1 << 20)
    monkeypatch.setattr(parts, "MOST_CELLS", 1 << 21)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    x = torch.randn(700, 700)
    (x @ x.mT).sum()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=multiprocessing.get_all_start_methods())
def pool(request: pytest.FixtureRequest) -> Iterator[Executor]:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(request.param)) as executor:
        yield executor


def attention() -> Attention:
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 2, N, 16), torch.randn(1, 2, N, 16), torch.randn(1, 2, N, 24)
    return Attention(q, k, v, is_causal=True)


def parts_of_text() -> Any:
    return segments({f"s{i}": (i * N // SPREAD, (i + 1) * N // SPREAD) for i in range(SPREAD)}, length=N)


def numbers(records: list[dict[str, Any]]) -> Tensor:
    return torch.tensor([[value or 0.0 for value in one.values() if isinstance(value, float)] for one in records])


def overview(executor: Executor | None) -> Tensor:
    return attention().overview(size=500, head=1, executor=executor).values


def overviews(executor: Executor | None) -> Tensor:
    found = AttentionStack([attention(), attention()]).overviews(size=300, executor=executor)
    return torch.stack([one.values for of in found for one in of])


def by_segment(executor: Executor | None) -> Tensor:
    return attention().by_segment(parts_of_text(), executor=executor).values.nan_to_num()


def heads_by_segment(executor: Executor | None) -> Tensor:
    found = AttentionStack([attention(), attention()]).by_segment("s7", parts_of_text(), executor=executor)
    return found.mass.nan_to_num()


def metrics(executor: Executor | None) -> Tensor:
    return numbers(AttentionStack([attention()]).metrics(rows=300, kinds=["sink", "streaming"], executor=executor))


def reduced(executor: Executor | None) -> Tensor:
    torch.manual_seed(1)
    with capture() as cap:
        F.scaled_dot_product_attention(*torch.randn(3, 1, 12, 900, 16), is_causal=True)
    source = cap.reduce(executor=executor).attention[0].source
    assert source.values.numel() > 1 << 16
    values: Tensor = source.values
    return values


def atlas_of_tensors(executor: Executor | None) -> Tensor:
    torch.manual_seed(2)
    model = torch.nn.TransformerEncoderLayer(64, 4, 96, batch_first=True).eval()
    texts = [{"src": torch.randn(1, n, 64)} for n in (700, 600, 650)]
    return numbers(atlas(model, texts, executor=executor, progress=False).heads())


@pytest.mark.parametrize(
    "call", [overview, overviews, by_segment, heads_by_segment, metrics, reduced, atlas_of_tensors]
)
def test_large_results_arrive(call: Callable[[Executor | None], Tensor], pool: Executor) -> None:
    with killed_if_they_hang():
        found = call(pool)
    torch.testing.assert_close(found, call(None))


def test_the_picture_of_a_widget_arrives(pool: Executor) -> None:
    torch.manual_seed(3)
    x = torch.randn(2, 1, 2, 9000, 8)
    widgets = AttentionWidget(*x), AttentionWidget(*x)
    assert widgets[0].picture["sampled"] is not None
    with killed_if_they_hang():
        widgets[0].finish(executor=pool)
    widgets[1].finish()
    assert_same_picture(*(w.picture for w in widgets))
