"""A widget carries a loader; script and style are in one model for all widgets of a kernel, or come when asked."""

from __future__ import annotations

import json
import pathlib
import re
import sys
from types import SimpleNamespace

import pytest
import torch
from front_end import FrontEnd
from ipywidgets.embed import dependency_state, embed_data

from attnwidget import AttentionWidget
from attnwidget._utils import assets
from attnwidget._utils.assets import STATIC, bundled, parts, whole_script

LITTLE = 4096  # bytes of a loader
VIEWS = {"graph", "text", "heads", "segments", "stages", "why", "compare"}  # what is loaded when it is opened
WHOLE = {"code": bundled("widget.js"), "parts": parts(), "style": bundled("widget.css")}


def widget() -> AttentionWidget:
    return AttentionWidget(*torch.randn(3, 6, 4))


def test_all_widgets_refer_to_one_model_that_holds_the_script(front_end: FrontEnd) -> None:
    first, second = widget(), widget()
    carried = [front_end.state(one) for one in (first, second)]
    assert carried[0]["_front_end"] == carried[1]["_front_end"] == f"IPY_MODEL_{first._front_end.model_id}"
    assert all(len(state["_esm"]) + len(state["_css"]) < LITTLE for state in carried)
    assert first._front_end.get_state(list(WHOLE)) == WHOLE


def test_a_model_that_was_closed_is_made_anew_and_old_widgets_can_still_be_sent() -> None:
    first = widget()
    first._front_end.close()
    assert first.get_state("_front_end") == {"_front_end": None}
    second = widget()
    assert second._front_end is not first._front_end
    assert second._front_end.comm is not None


def test_what_embeds_a_widget_takes_the_script_along_once() -> None:
    made = [widget() for _ in range(3)]
    of_these = dependency_state(made, drop_defaults=False)  # without it, embed_data takes all widgets of the process
    state = embed_data(views=made, drop_defaults=False, state=of_these)["manager_state"]["state"]
    holding = [name for name, model in state.items() if "code" in model["state"]]
    assert holding == [made[0]._front_end.model_id]
    assert {name: state[holding[0]]["state"][name] for name in WHOLE} == WHOLE
    assert state[holding[0]]["model_module"] == "@jupyter-widgets/base"


def test_a_loader_that_finds_nothing_is_sent_the_script_once_for_each_message(front_end: FrontEnd) -> None:
    w = widget()
    content = {"script": "0", "requests": [{"id": "1", "kind": "ping"}] * 64}
    w.comm.handle_msg({"content": {"data": {"method": "custom", "content": content}}, "buffers": []})
    (answer,) = front_end.custom(w)
    assert answer.data["content"] == {"script": WHOLE}


@pytest.mark.parametrize("host", ["marimo", "google.colab"])
def test_where_no_model_is_shared_a_widget_carries_all_of_it(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, host, SimpleNamespace(running_in_notebook=lambda: True))  # type: ignore[arg-type]
    w = widget()
    assert (w._esm, w._css, w._front_end) == (whole_script(), bundled("widget.css"), None)


def test_marimo_that_is_only_imported_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = SimpleNamespace(running_in_notebook=lambda: False)
    monkeypatch.setitem(sys.modules, "marimo", absent)  # type: ignore[arg-type]
    assert len(widget()._esm) < LITTLE


def test_the_script_has_a_part_for_each_view_that_is_loaded_when_it_is_opened() -> None:
    (digest,) = re.findall(r"built from (\w+)", bundled("widget.js"))
    assert json.loads(bundled("parts.json"))["digest"] == digest
    assert parts().keys() == VIEWS
    assert all(text in whole_script() for text in (bundled("widget.js"), *parts().values()))


def test_parts_of_another_version_are_refused(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assets, "STATIC", tmp_path)
    (tmp_path / "widget.js").write_text((STATIC / "widget.js").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "parts.json").write_text('{"digest": "other", "parts": {}}')
    for cached in (bundled, parts):
        cached.cache_clear()
    try:
        with pytest.raises(RuntimeError, match="of two versions: restart the kernel"):
            parts()
    finally:
        bundled.cache_clear()
