"""The layers of an encoder–decoder in one widget: a click on one that has fewer keys than are pinned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from front_end import FrontEnd, decode
from torch import nn

from attnwidget import AttentionWidget, Capture, capture

READ, WRITTEN = 16, 7  # tokens of the encoder and of the decoder


def of_torch() -> Capture:
    model = nn.Transformer(16, 2, 1, 1, 16, batch_first=True).eval()
    with capture(model) as cap:
        model(torch.randn(1, READ, 16), torch.randn(1, WRITTEN, 16))
    return cap


def of_transformers() -> Capture:
    transformers = pytest.importorskip("transformers")
    few: dict[str, Any] = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in
                           (("layers", 1), ("attention_heads", 2), ("ffn_dim", 16))}  # fmt: skip
    model = transformers.BartModel(transformers.BartConfig(vocab_size=64, d_model=16, **few)).eval()
    ids = torch.arange(3, 3 + READ)[None]
    with capture(model) as cap:
        model(input_ids=ids, decoder_input_ids=ids[:, :WRITTEN])
    return cap


@pytest.mark.parametrize("make", [of_torch, of_transformers])
@pytest.mark.parametrize("view", ["heatmap", "graph", "stages", "text"])
@pytest.mark.parametrize("together", [False, True], ids=["one after the other", "in one message"])
def test_a_click_on_it_keeps_what_is_there_and_all_is_answered(
    make: Callable[[], Capture], view: str, together: bool, front_end: FrontEnd
) -> None:
    stack = make().attention
    assert [layer.shape.K for layer in stack] == [READ, WRITTEN]
    w = AttentionWidget.from_attention(stack, query=10, key=15, view=view)
    clicks = [{"layer": 1, "query": 3}] if together else [{"layer": 1}, {"query": 3}]
    for click in clicks:
        w.comm.handle_msg({"content": {"data": {"method": "update", "state": click}}, "buffers": []})
    assert (w.layer, w.query, w.key, w.pins) == (1, 3, None, [(3, None)])
    held = front_end.state(w)
    assert (held["layer"], held["query"], held["key"], held["pins"]) == (1, 3, None, [[3, None]])
    assert w.picture["error"] is None
    assert w.errors == {}
    where = {"layer": 1, "batch": 0, "head": 0, "stage": "weights"}
    asked = [{"id": str(at), "kind": "row", "query": at, **where} for at in range(WRITTEN)]
    w.comm.handle_msg({"content": {"data": {"method": "custom", "content": {"requests": asked}}}, "buffers": []})
    message = next(one for one in reversed(front_end.of(w)) if "replies" in one.data.get("content", {}))
    for at, reply in enumerate(message.data["content"]["replies"]):
        assert reply["ok"]
        row = torch.tensor(decode(reply["values"], message.buffers))
        assert torch.equal(row, stack[1].block(queries=at)[0])
    w.comm.handle_msg({"content": {"data": {"method": "update", "state": {"layer": 0, "key": 15}}}, "buffers": []})
    assert (w.layer, w.query, w.key) == (0, 3, 15)
