"""What few meet: tensors of two devices, many numbers in a name, a move to a device, levels alone, torch before 2.9."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from carrying import carrying
from torch import Tensor

from attnwidget import Attention
from attnwidget._capture.reduced import reduced
from attnwidget._engine import axes, matmul, overview
from attnwidget._engine.base import MAX_LISTED, Part
from attnwidget._engine.carried import CHANGED
from attnwidget._engine.kept_levels import KeptLevels
from attnwidget._engine.level_cache import LevelCache

META = torch.device("meta")  # as far from a CPU as any other


def qkv(length: int = 12) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = torch.randn(3, 1, 2, length, 4, generator=torch.Generator().manual_seed(6))
    return q, k, v


def test_tensors_of_two_devices_are_refused() -> None:
    q, k, _ = qkv()  # `Attention` itself refuses META before, for it holds no numbers
    with pytest.raises(ValueError, match="k is on meta but q is on cpu: move them to one device"):
        axes._check_alike({"q": q, "k": k.to(META)})
    axes._check_alike({"q": q, "k": k})


def test_of_many_numbers_the_first_ones_and_the_last_are_named() -> None:
    numbers = tuple(range(0, 3 * MAX_LISTED, 3))
    assert Part(numbers).describe() == "heads 0, 3, 6, 9, 12, 15, 18, 21"
    assert Part((*numbers, 5000)).describe() == "heads 0, 3, 6, 9, 12, 15, …, 5,000"


def test_what_weights_carry_moves_to_another_device_whole() -> None:
    known = carrying(Attention(*qkv())).carries
    assert known is not None
    assert known.on(torch.device("cpu")) is known
    moved = known.on(META)
    assert {x.device for x in moved.tensors().values()} == {META}
    assert moved.stages == known.stages == ("value_norm", "logit", "saliency")
    assert known.w_o is not None
    assert moved.w_o is not None
    known.w_o.add_(1)  # no longer what it was, and the one that was moved does not follow it
    assert known.refusal("value_norm") == CHANGED
    assert moved.refusal("value_norm") is None
    moved.w_o.add_(1)
    assert moved.refusal("value_norm") == CHANGED


def test_a_sampled_picture_of_levels_alone_is_in_whole_bins_of_them() -> None:
    att = Attention(*qkv(700), is_causal=True)
    kept = reduced(att, None)
    assert isinstance(kept.source, KeptLevels)
    assert min(kept.source.bins) > 1
    wide = 3 * kept.source.bins[0] - 1
    found = overview.sampled(kept, 0, 1, query_bin=wide, key_bin=wide)
    assert (found.query_bin, found.key_bin) == (3 * kept.source.bins[0], 3 * kept.source.bins[1])
    assert found.values.shape == tuple(-(-700 // width) for width in (found.query_bin, found.key_bin))
    largest = torch.nn.functional.max_pool2d(att.block(head=1)[None], (found.query_bin, found.key_bin), ceil_mode=True)[
        0
    ]
    torch.testing.assert_close(found.values, largest, rtol=1e-5, atol=1e-7)


def test_a_level_that_is_done_has_no_cells_left() -> None:
    levels = LevelCache(Attention(*qkv(300)), largest=100)
    build = levels.build(0, 0)
    assert build.cells_left > 0
    for _ in build:
        pass
    assert build.cells_left == 0
    assert levels.build(0, 0).cells_left == 0  # it is kept


class Queued:
    """Numbers on a device that queues its work: what was read of them."""

    def __init__(self) -> None:
        self.read: list[Any] = []

    def __getitem__(self, at: Any) -> Queued:
        self.read.append(at)
        return self

    def cpu(self) -> None:
        self.read.append("cpu")


@pytest.mark.parametrize(("device", "waits"), [("cpu", False), ("cuda", True)])
def test_a_slice_waits_for_a_device_that_queues_its_work(device: str, waits: bool) -> None:
    build = LevelCache(Attention(*qkv(300)), largest=100).build(0, 0)
    queued = Queued()
    build.att = SimpleNamespace(device=torch.device(device))  # type: ignore[assignment]
    build.level = SimpleNamespace(overview=SimpleNamespace(values=queued))  # type: ignore[assignment]
    build._catch_up()
    assert queued.read == ([(slice(1), slice(1)), "cpu"] if waits else [])  # one number is enough


def test_torch_before_2_9_has_one_setting_for_the_precision_of_products(monkeypatch: pytest.MonkeyPatch) -> None:
    now = ["medium"]
    monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace())
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: now[0])
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda to: now.__setitem__(0, to))
    with matmul.full(torch.device("cpu")):
        assert now == ["highest"]
        with matmul.full(torch.device("cpu")):
            assert now == ["highest"]
        assert now == ["highest"]
    assert now == ["medium"]
