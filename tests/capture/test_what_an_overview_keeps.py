"""What is kept of an attention in overviews: at once, by tasks, and in a file; sizes differ, bins are ragged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tolerance import approx, rounding
from torch import Tensor
from torch.testing import assert_close

from attnwidget import Attention, masks
from attnwidget._analysis.metrics import MEASURED
from attnwidget._capture.call.lineage import ModelCall
from attnwidget._capture.call.observed_call import ObservedCall, Unreadable
from attnwidget._capture.records.kept_tensors import TensorKeeper
from attnwidget._capture.records.overview_record import (
    ReducedRecord,
    attention_from,
    entry_of,
    reduced,
    reduced_by_tasks,
    reducing_tasks,
)
from attnwidget._parallel.work import gather

B, H, G, Q, K, D = 3, 4, 2, 131, 261, 5  # in bins of 2 × 4
PART = (None, None, K - Q, False)  # its queries are the last of its keys


def attention(kind: str) -> Attention:
    make = torch.Generator().manual_seed(3)
    q, k = torch.randn(B, H, Q, D, generator=make), torch.randn(B, G, K, D, generator=make)
    keep = torch.rand(B, H, Q, K, generator=make) > 0.9
    keep[..., 0] = True
    keep[:, :, [0, -1]] = True  # so that no key is taken for padding
    keep[1, 2, 7] = False  # a row without keys
    how: dict[str, dict[str, Any]] = {
        "plain": {"scale": -0.8},
        "cells": {"mask": keep, "softcap": 2.0},
        "cells of samples": {"mask": keep[:, :1]},
        "cells of heads": {"mask": keep[1:2], "sinks": torch.tensor([0.5, -1.0, 3.0, 0.0])},
        "causal": {"mask": masks.causal_lower_right(Q, K), "bias": torch.randn(1, H, Q, K, generator=make)},
        "padding": {"mask": masks.padding(torch.tensor([K, 200, 3]))},
    }
    return Attention(q, k, **how[kind]).as_part(*PART)


def written_out(att: Attention, b: int, h: int) -> tuple[Tensor, Tensor]:
    """Return the largest weight of each bin, and which bins have an allowed cell."""
    cells = torch.stack([att.block("weights", batch=b, head=h), att.block("allowed", batch=b, head=h).float()])
    values, allowed = F.max_pool2d(cells[:, None], (2, 4), ceil_mode=True)[:, 0]
    return values, allowed > 0


KINDS = ("plain", "cells", "cells of samples", "cells of heads", "causal", "padding")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by_tasks", [False, True])
def test_what_is_kept_is_what_the_whole_has(kind: str, by_tasks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    att = attention(kind)
    ids = torch.randint(0, 9, (B, K), generator=torch.Generator().manual_seed(4))
    if by_tasks:
        monkeypatch.setattr("attnwidget._capture.records.overview_record.CELLS_OF_A_TASK", 40 * K)
        tasks = reducing_tasks(att, "layer", ids)
        assert len(tasks) > B
        kept = reduced_by_tasks(att, tasks, gather(tasks, None))
    else:
        kept = reduced(att, None, ids).as_part(*PART)
    near = rounding(att, added=6.0)
    assert kept.shape[:5] == (B, H, H, Q, K)
    for b in range(B):
        for h in range(H):
            found, (values, allowed) = kept.overview(b, h), written_out(att, b, h)
            assert (found.query_bin, found.key_bin) == (2, 4)
            assert_close(found.values, values, **near.pooled("weights", 8))
            assert torch.equal(found.allowed, allowed)
            assert_close(kept.log_normalizer(b, h), att.log_normalizer(b, h), **near.normalizer)
            mine, theirs = kept.metrics(b, h), att.metrics(b, h, tokens=[str(i) for i in ids[b].tolist()])
            for name in ("entropy", "rows", "same_token", "induction", "previous_token", "learned_sink"):
                value = getattr(theirs, name)
                assert getattr(mine, name) == (value if value is None else approx(value, near.entropy)), name
            if att.sinks is not None:
                assert_close(kept.sink_weights(b, h), att.sink_weights(b, h), **near.weights)
    of_all = kept.source.tensors()["allowed"].shape[:2]
    assert of_all == {"cells": (B, H), "cells of samples": (B, 1), "cells of heads": (1, H), "padding": (B, 1)}.get(
        kind, (1, 1)
    )


@pytest.mark.parametrize("kind", ["plain", "cells of heads", "causal", "padding"])
def test_a_file_has_all_that_is_kept_and_an_old_one_less(kind: str) -> None:
    kept, tensors = reduced(attention(kind), None), {}

    def add(x: Tensor) -> str:
        tensors[str(len(tensors))] = x
        return str(len(tensors) - 1)

    entry = entry_of(kept, add)
    again = attention_from(entry, tensors)
    assert (again.shape, again.is_causal) == (kept.shape, kept.is_causal)
    assert torch.equal(again.block("allowed", batch=2, head=3), kept.block("allowed", batch=2, head=3))
    for name, x in kept.source.tensors().items():
        assert torch.equal(again.source.tensors()[name], x), name
    assert (again.sinks is None) == (kept.sinks is None)
    # A file of a version that measured less, in another order, and something that is measured no more.
    names = ["rows", "gone", *MEASURED[1:][::-1]] if "rows" not in MEASURED else [*MEASURED[1:][::-1], "gone"]
    names = [name for name in names if name == "gone" or name in MEASURED]
    for of in ("metric_sums", "metric_counts"):
        whole = tensors[entry[of]]
        parts = [whole[:, MEASURED.index(one)] if one in MEASURED else whole[:, 0] + 99 for one in names]
        tensors[entry[of]] = torch.stack(parts, 1)
    old = attention_from({**entry, "metrics": names}, tensors)
    for of in ("metric_sums", "metric_counts"):
        found, whole = old.source.tensors()[of], kept.source.tensors()[of]
        assert torch.equal(found[:, 1:], whole[:, 1:])
        assert not found[:, 0].any()


def observed(queries: int, keys: int, **how: Any) -> ObservedCall:
    q, k = (torch.randn(B, *sizes, D, generator=torch.Generator().manual_seed(5)) for sizes in ((H, queries), (G, 20)))
    return ObservedCall(q, k[:, :, :keys], k[:, :, :keys], **how)


def record(call: ObservedCall, **how: Any) -> ReducedRecord:
    return ReducedRecord("layer", call, TensorKeeper(**how), ModelCall(0, ""))


@pytest.mark.parametrize("cross", [False, True])
def test_a_call_with_the_keys_of_an_earlier_one_is_refused(cross: bool) -> None:
    first = record(observed(7, 7 if not cross else 9, cross=cross, is_causal=not cross))
    past = 9 if cross else 7
    for call in (observed(1, past if cross else 8, cross=cross), observed(2, past if cross else 9, cross=cross)):
        with pytest.raises(Unreadable, match="keep='tensors'"):
            first.continued_by(call)
    other = observed(1, past if cross else 8, cross=cross)
    other.k = other.k.clone()
    other.k[:, :, past - 1] += 1  # its keys are others where the earlier one's last stood
    first.continued_by(other)
    first.continued_by(observed(4, past if cross else 8, cross=cross) if not cross else observed(1, 8, cross=True))
    fewer = observed(1, past if cross else 8, cross=cross)
    fewer.k = fewer.k[:, :1]
    first.continued_by(fewer)


def test_an_output_of_another_call_contradicts_what_is_kept() -> None:
    call = observed(7, 9)
    right = F.scaled_dot_product_attention(call.q, call.k, call.v, enable_gqa=True)
    wrong = right.clone()
    wrong[B - 1, H - 1, 6] += 0.01
    for output, words in ((right, None), (wrong, "do not give its output"), (None, "was not seen")):
        kept = record(call)
        kept.output_callback(call, 0)(output)
        fault = kept.fault()
        assert fault is None if words is None else fault is not None and words in fault
    assert record(call).fault() is not None  # nothing has come


def test_room_for_what_is_kept_is_asked_for_before() -> None:
    for queries, keys in ((7, 9), (19, 20)):
        call = observed(queries, keys)
        assert record(call).nbytes <= ReducedRecord.needed(call, TensorKeeper(), None) + 4096
        assert ReducedRecord.needed(call, TensorKeeper(), None) == B * H * (5 * queries * keys + 4 * queries)
