"""Files that a front-end asks for: whole when their parts are put together, and bounded."""

from __future__ import annotations

import io
import tracemalloc
import zlib
from typing import Any

import pytest
import torch

from attnwidget import AttentionWidget
from attnwidget._engine import cost
from attnwidget._messages.answers import requests
from attnwidget._widget.front_end import requested_files

pytest.importorskip("matplotlib")


def widget(n: int = 8, **show: Any) -> AttentionWidget:
    q, k, v = torch.randn(3, 2, 1, 3, n, 8, generator=torch.Generator().manual_seed(1))
    return AttentionWidget(q, k, v, **show)


def ask(w: AttentionWidget, kind: Any, start: Any = 0) -> tuple[dict[str, Any], bytes]:
    """Ask for a part of a file, until there is one."""
    while True:
        reply, part = ask_once(w, kind, start)
        if not reply["ok"] or reply["share"] == 1:
            return reply, part
        assert (reply["total"], part) == (0, b"")


def ask_once(w: AttentionWidget, kind: Any, start: Any = 0) -> tuple[dict[str, Any], bytes]:
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
    assert "this file is no longer available: save it again" in ask(w, "png", 10)[0]["error"]
    ask(w, "html")
    assert "no longer available" in ask(w, "png", 10)[0]["error"]
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


@pytest.mark.parametrize("kind", ["png", "svg", "html"])
def test_a_file_is_made_in_as_many_messages_as_it_takes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    w = widget()
    _, at_once = whole(w, kind)
    monkeypatch.setattr(requested_files, "SLICE_SECONDS", 0)
    shares, reply, part = [], {"share": 0.0}, b""
    while reply["share"] < 1:
        reply, part = ask_once(w, kind)
        shares.append(reply["share"])
    assert len(shares) >= 4
    assert shares == sorted(shares)
    assert part == at_once[: len(part)] != b""


def test_many_files_asked_for_in_one_message_share_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    w, steps = widget(), []
    monkeypatch.setattr(requested_files, "SLICE_SECONDS", 0)
    making = requested_files._making

    def counted(*about: Any) -> Any:
        for share in making(*about):
            steps.append(share)
            yield share

    monkeypatch.setattr(requested_files, "_making", counted)
    asked = [{"id": str(at), "kind": "file", "format": "html", "start": 0} for at in range(64)]
    made = requests.answer(w._request_context(), {"requests": asked})
    assert made is not None
    assert all(reply["ok"] and reply["share"] < 1 for reply in made[0]["replies"])
    assert len(steps) == cost.MAX_CELLS // requested_files.SLICE_CELLS


def test_what_is_chosen_while_a_file_is_made_is_not_mixed_into_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requested_files, "SLICE_SECONDS", 0)
    others = widget().attention
    for change in ({"head": 1}, {"tokens": list("abcdefgh")}, {"what_if": {"scale": 2.0}}, {"theme": "dark"},
                   {"attention": others}):  # fmt: skip
        w = widget()
        assert ask_once(w, "html")[0]["share"] < 1
        for name, value in change.items():
            setattr(w, name, value)
        assert "the selection changed while this file was made: save it again" in ask_once(w, "html")[0]["error"]
        assert ask(w, "html")[0]["ok"]


@pytest.mark.filterwarnings("ignore:.*changed in place")
def test_tensors_that_are_changed_while_a_file_is_made_are_not_mixed_into_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requested_files, "SLICE_SECONDS", 0)
    q, k = torch.randn(2, 5, 3)
    w = AttentionWidget(q, k)
    assert ask_once(w, "html")[0]["share"] < 1
    q.mul_(-1)
    assert "the selection changed while this file was made" in ask_once(w, "html")[0]["error"]


def test_a_closed_widget_makes_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requested_files, "SLICE_SECONDS", 0)
    w = widget()
    assert ask_once(w, "html")[0]["share"] < 1
    files = w._files
    w.close()
    assert files._making is None


@pytest.mark.parametrize(
    ("n", "dpi"),
    [(30, 133.3), *(pytest.param(n, dpi, marks=pytest.mark.thorough) for n in (7, 300) for dpi in (72, 133.3, 200))],
)
def test_a_picture_made_in_strips_is_the_same(n: int, dpi: float, monkeypatch: pytest.MonkeyPatch) -> None:
    from attnwidget._export.figure import canvas

    w, found = widget(n), []
    for strip in (16, 256, 1 << 20):
        monkeypatch.setattr(canvas, "STRIP", strip)
        into = io.BytesIO()
        w.figure(dpi=dpi).savefig(into, format="png")
        found.append(into.getvalue())
    assert found[0] == found[1] == found[2]


@pytest.mark.thorough
def test_a_picture_is_scaled_without_many_times_its_size() -> None:
    figure = widget(512).figure(dpi=200)
    figure.savefig(io.BytesIO(), format="png")
    tracemalloc.start()
    try:
        figure.savefig(io.BytesIO(), format="png")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    width, height = (round(200 * size) for size in figure.get_size_inches())
    assert most < 24 * width * height  # 8 are the page and its file
