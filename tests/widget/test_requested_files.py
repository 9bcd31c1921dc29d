"""Files that a front-end asks for: whole when their parts are put together, and bounded."""

from __future__ import annotations

import io
import zlib
from typing import Any

import pytest
import torch

from attnwidget import AttentionWidget
from attnwidget._messages import requests
from attnwidget._widget import requested_files

pytest.importorskip("matplotlib")


def widget(n: int = 8, **show: Any) -> AttentionWidget:
    q, k, v = torch.randn(3, 2, 1, 3, n, 8, generator=torch.Generator().manual_seed(1))
    return AttentionWidget(q, k, v, **show)


def ask(w: AttentionWidget, kind: Any, start: Any = 0) -> tuple[dict[str, Any], bytes]:
    made = requests.answer(
        w._request_context(),
        {"requests": [{"id": "a", "kind": "file", "format": kind}]}
        if start is None
        else {"requests": [{"id": "a", "kind": "file", "format": kind, "start": start}]},
    )
    assert made is not None
    (reply,), buffers = made[0]["replies"], made[1]
    return reply, buffers[reply["data"]] if reply["ok"] else b""


def whole(w: AttentionWidget, kind: str) -> tuple[str, bytes]:
    parts, total, reply = b"", 1, {}
    while len(parts) < total:
        reply, part = ask(w, kind, len(parts))
        assert 0 < len(part) <= requests.FILE_PART
        parts, total = parts + part, reply["total"]
    return reply["name"], parts


@pytest.mark.parametrize("kind", ["png", "svg", "html"])
def test_the_parts_are_the_file(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")  # matplotlib writes the time into an SVG
    monkeypatch.setattr(requests, "FILE_PART", 10_000)
    w = widget(layer=1, head=2)
    name, content = whole(w, kind)
    assert name == f"attention-layer-1-head-2.{kind}"
    if kind == "html":
        assert content == w.to_html(tmp_path / "a.html").read_bytes()
    else:
        into = io.BytesIO()
        w.figure().savefig(into, format=kind)
        assert (len(content), zlib.crc32(content)) == (len(into.getvalue()), zlib.crc32(into.getvalue()))


def test_what_is_not_kept_is_asked_for_again() -> None:
    w = widget()
    assert "no longer kept: save it again" in ask(w, "png", 10)[0]["error"]
    ask(w, "html")
    assert "no longer kept" in ask(w, "png", 10)[0]["error"]
    for kind, start in (("exe", 0), (None, 0), (["png"], 0), ("png", -1), ("png", "0"), ("png", 1 << 40)):
        reply, _ = ask(w, kind, start)
        assert not reply["ok"]


def test_what_is_too_large_or_takes_long_names_the_line_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requested_files, "MOST_BYTES", 1000)
    for kind, line in requested_files.WAYS.items():
        assert f"{line} in a cell writes it" in ask(widget(), kind)[0]["error"]
    monkeypatch.setattr(requested_files, "MOST_CELLS", 100)
    assert 'takes long to make: w.to_html("attention.html")' in ask(widget(), "html")[0]["error"]


def test_without_matplotlib_the_way_to_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnwidget._export import figure

    def missing(*_: Any, **__: Any) -> None:
        raise ImportError('figure() draws with matplotlib: pip install "attnwidget[figure]"')

    monkeypatch.setattr(figure, "figure_of", missing)
    assert "pip install" in ask(widget(), "svg")[0]["error"]
