"""No text becomes markup in a file, a figure or a still: no tag but those of the file's own, and no refresh."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from payloads import PAYLOADS

from attnwidget import Attention, AttentionStack, AttentionWidget, compare

VIEWS = ("heatmap", "graph", "text", "image", "heads", "segments", "stages", "compare")
OWN_TAGS = {"html", "head", "meta", "title", "style", "body", "div", "p", "script", "noscript", "img", "main", "footer"}


class Tags(HTMLParser):
    """The tags of a page with their attributes, as a browser finds them outside scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def widget(view: str) -> AttentionWidget:
    count = len(PAYLOADS)
    layers = AttentionStack([Attention(*torch.randn(3, 1, 2, count, 4)) for _ in range(2)], names=PAYLOADS[:2])
    named: dict[str, Any] = {}
    if view == "compare":
        sides = {PAYLOADS[0]: layers[0], PAYLOADS[12]: layers[1]}
        return compare(sides, tokens=PAYLOADS, title=PAYLOADS[12], view=view, query=3, key=5)
    if view == "image":
        named = {"grid": (8, 8), "grid_start": 1}
    elif view == "segments":
        inside = {PAYLOADS[2]: (1, 4), PAYLOADS[3]: (4, 9)}
        named = {"segments": {PAYLOADS[1]: inside, PAYLOADS[12]: (9, 20), PAYLOADS[24]: (20, count)}}
        named |= {"asking": PAYLOADS[24], "segment": PAYLOADS[12]}
    elif view == "heads":
        named = {"kinds": {PAYLOADS[4]: lambda rows: rows.weights.amax(-1)}, "bar": PAYLOADS[4]}
    return AttentionWidget.from_attention(
        {PAYLOADS[0]: layers, PAYLOADS[12]: layers}, tokens=PAYLOADS, title=PAYLOADS[12], view=view, query=3, key=5,
        **named,
    )  # fmt: skip


@pytest.mark.parametrize("title", ["</title>" + PAYLOADS[12], '"><meta http-equiv="refresh">' + PAYLOADS[0]])
def test_a_saved_page_has_no_tags_but_its_own(title: str, tmp_path: Path) -> None:
    w = widget("heatmap")
    plain, odd = (tags_of(w.to_html(tmp_path / "saved.html", title=one)) for one in ("plain", title))
    assert [tag for tag, _ in odd] == [tag for tag, _ in plain]
    assert {tag for tag, _ in odd} <= OWN_TAGS
    assert "refresh" not in [(told.get("http-equiv") or "").lower() for _, told in odd]
    assert not [name for _, told in odd for name in told if name.startswith("on")]


def tags_of(path: Path) -> list[tuple[str, dict[str, str | None]]]:
    tags = Tags()
    tags.feed(path.read_text(encoding="utf-8"))
    return tags.found


@pytest.mark.parametrize("view", VIEWS)
def test_a_figure_has_texts_and_nothing_that_runs(view: str, tmp_path: Path) -> None:
    path = tmp_path / "figure.svg"
    widget(view).figure().savefig(path)
    found = list(ElementTree.parse(path).iter())  # raises where it is no XML
    kinds = {element.tag.rpartition("}")[2].lower() for element in found}
    assert not kinds & {"script", "foreignobject", "iframe", "a", "animate", "set", "handler"}
    attributes = [name.rpartition("}")[2].lower() for element in found for name in element.attrib]
    assert not [name for name in attributes if name.startswith("on")]
    links = [value for element in found for name, value in element.attrib.items() if name.endswith("href")]
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in links)


@pytest.mark.parametrize("view", VIEWS)
def test_a_still_is_a_picture_and_no_markup(view: str) -> None:
    made = widget(view)._repr_mimebundle_()
    assert made is not None
    for kind, text in made[0].items():
        if kind == "text/html":
            tags = Tags()
            tags.feed(str(text))
            assert {tag for tag, _ in tags.found} <= OWN_TAGS
            assert not [name for _, told in tags.found for name in told if name.startswith("on")]
        assert kind in {"text/html", "text/plain", "image/png", "application/vnd.jupyter.widget-view+json"}


def test_a_drawn_text_is_one_line_that_every_file_can_hold() -> None:
    from attnwidget._export.figure.canvas import drawn_text

    drawn = drawn_text("a\x00b\n\x1bc\ud800")
    assert drawn.isprintable()
    assert drawn.encode("utf-8")
