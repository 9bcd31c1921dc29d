"""What few meet: tensors of two devices, many numbers in a name, a move to a device, levels alone, torch before 2.9."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from carrying import carrying
from torch import Tensor

from attnwidget import Attention, masks
from attnwidget._capture.records.overview_record import reduced
from attnwidget._engine import axes, kept_levels, matmul, overview, parts
from attnwidget._engine.base import MAX_LISTED, Part
from attnwidget._engine.carried import CHANGED
from attnwidget._engine.kept_levels import KeptLevels, OnlyOverviewError
from attnwidget._engine.level_cache import LevelCache
from attnwidget._engine.regions import TileAddress

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


B, H, G, Q, K = 2, 6, 3, 70, 150


def of_levels(monkeypatch: pytest.MonkeyPatch, **rules: Any) -> tuple[Attention, Any]:
    """Return an attention, and the same of which only levels of at most 16 bins were kept."""
    monkeypatch.setattr(kept_levels, "LARGEST_LEVEL", 16)
    make = torch.Generator().manual_seed(1)
    q, k = torch.randn(B, H, Q, 4, generator=make), torch.randn(B, G, K, 4, generator=make)
    att = Attention(q, k, **rules)
    kept = reduced(att, None)
    assert isinstance(kept.source, KeptLevels)
    assert kept.source.bins == (8, 16)
    return att, kept


@pytest.mark.parametrize(
    "rules", [{"is_causal": True}, {"mask": masks.padding([K, 40])}, {"window": 20, "sinks": torch.linspace(-1, 2, H)}]
)
def test_a_picture_of_levels_alone_is_in_whole_bins_of_them(
    rules: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    att, kept = of_levels(monkeypatch, **rules)
    for batch, head in ((1, 4), (0, 5)):
        weights, allowed = (att.block(stage, batch=batch, head=head) for stage in ("weights", "allowed"))
        for found, widths in (
            (overview.sampled(kept, batch, head, query_bin=23, key_bin=29), (24, 32)),
            (overview.sampled(kept, batch, head, rows=9, columns=5), (8, 32)),
            (kept.overview(batch, head, size=3), (24, 64)),
            (kept.overview(batch, head), (8, 16)),
        ):
            assert (found.query_bin, found.key_bin) == widths
            assert found.values.shape == (-(-Q // widths[0]), -(-K // widths[1]))
            largest = torch.nn.functional.max_pool2d(weights[None], widths, ceil_mode=True)[0]
            torch.testing.assert_close(found.values, largest, rtol=1e-5, atol=1e-7)
            opened = torch.nn.functional.max_pool2d(allowed.float()[None], widths, ceil_mode=True)[0] > 0
            assert torch.equal(found.allowed, opened)
        normalizers = kept.log_normalizer(batch, head)
        torch.testing.assert_close(normalizers, att.log_normalizer(batch, head), rtol=1e-5, atol=1e-5)
        if att.has_sinks:
            torch.testing.assert_close(kept.sink_weights(batch, head), att.sink_weights(batch, head), rtol=1e-4, atol=0)


def test_what_levels_alone_do_not_tell_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _, kept = of_levels(monkeypatch, is_causal=True)
    for ask, told in (
        (lambda: kept.overview(pool="mean"), "so the mean of weights is not known"),
        (lambda: kept.overview(stage="masked"), "so the stage 'masked' is not known"),
        (lambda: kept.block(queries=3), "so single rows, keys and tiles are not known"),
        (lambda: overview.tile(kept, 0, 0, TileAddress(2, 0, 0)), "so a finer picture is not known"),
        (lambda: overview.tile(kept, 0, 0, TileAddress((3, 3), 0, 0)), "so a finer picture is not known"),
        (lambda: kept.what_if({"scale": 2.0}), "so attention under other rules is not known"),
    ):
        with pytest.raises(OnlyOverviewError, match=rf"kept only overviews, in bins of 8 × 16 cells .*{told}"):
            ask()
    whole = overview.tile(kept, 1, 4, TileAddress((3, 4), 0, 0)).values
    assert torch.equal(whole, kept.overview(1, 4).values)


def test_workers_are_sent_values_only_where_they_have_use_for_them() -> None:
    att = carrying(Attention(*qkv()))
    for stage, has_values, has_carries in (
        ("masked", False, False), ("weights", False, False), ("contribution", True, False), ("logit", True, True),
    ):  # fmt: skip
        sent = parts.needed_for(att, stage)
        assert (sent.v is not None, sent.carries is not None) == (has_values, has_carries), stage
        assert att.v is not None


def test_a_bin_of_a_level_is_a_power_of_two() -> None:
    widths = {1: 1, 127: 1, 128: 1, 129: 2, 256: 2, 257: 4, 1000: 8, 1024: 8, 1025: 16}
    assert {positions: kept_levels.bin_width(positions) for positions in widths} == widths


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
