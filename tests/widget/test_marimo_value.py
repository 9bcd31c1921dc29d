"""In marimo `.value` is what a reader can choose: small, plain, and without pictures."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import comm
import ipywidgets.widgets.widget as ipywidget
import pytest
import torch
from front_end import FrontEnd

from attnwidget import Attention, AttentionWidget, compare


class MarimoComm:
    """The channel of a widget as marimo makes it, as far as the widget sees it."""

    __module__ = "marimo._plugins.ui._impl.comm"
    kernel = "marimo"
    _numbers = itertools.count()

    def __init__(self, **_: Any) -> None:
        self.comm_id = f"marimo {next(self._numbers)}"
        self.sent: list[dict[str, Any]] = []

    def send(self, data: Any = None, buffers: Any = None, **_: Any) -> None:
        self.sent.append(data)

    def on_msg(self, *_: Any) -> None:
        pass

    def close(self, *_: Any, **__: Any) -> None:
        pass


@pytest.fixture
def marimo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Widgets are opened in marimo, and leave nothing behind."""
    before = set(ipywidget._instances)
    monkeypatch.setattr(comm, "create_comm", MarimoComm)
    host = SimpleNamespace(running_in_notebook=lambda: True)
    monkeypatch.setitem(sys.modules, "marimo", host)  # type: ignore[arg-type]
    yield
    left = [one for name, one in ipywidget._instances.items() if name not in before]
    assert not [one for one in left if isinstance(one, AttentionWidget) or one.comm is None]


def value(w: AttentionWidget) -> dict[str, Any]:
    """What `mo.ui.anywidget(w).value` reads."""
    return dict(w.get_state())


def test_it_is_the_selection(marimo: None) -> None:
    w = AttentionWidget(*torch.randn(3, 1, 2, 300, 8), tokens=["a"] * 300)
    whole = w.get_state(w.keys)
    sent = w.comm.sent
    w.head, w.query = 1, 7
    found = value(w)
    assert (found["layer"], found["head"], found["query"], found["key"]) == (0, 1, 7, None)
    assert list(map(list, found["pins"])) == [[7, None]]
    assert len(json.dumps(found)) < 2000
    assert not {"picture", "tokens", "facts", "thumbnails", "_esm", "uid"} & set(found)
    assert set(found) < set(whole)
    sent.clear()
    w.send_state()  # as a front-end that has come again asks
    assert set(sent[0]["state"]) == set(whole)
    w.set_state({"head": 0})
    assert value(w)["head"] == 0
    assert value(w) == {**found, "head": 0, "heads": [0]}
    w.close()


def test_elsewhere_all_is_sent(front_end: FrontEnd) -> None:
    w = AttentionWidget(*torch.randn(3, 4, 8))
    assert "picture" in w.get_state()
    assert "picture" in front_end.of(w)[0].state


def test_of_a_comparison_too(marimo: None) -> None:
    q, k, v = torch.randn(3, 4, 8)
    w = compare(Attention(q, k, v), Attention(q, k, v, is_causal=True))
    assert value(w)["against"] == "B"
    assert "comparison" not in value(w)
    w.close()
