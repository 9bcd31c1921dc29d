"""`to_html`: what is in the file, what is refused, what a page may do."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from front_end import decode, decode_cells
from golden import check
from tolerance import approx, rounding

from attnwidget import Attention, AttentionWidget, compare
from attnwidget._engine import cost
from attnwidget._export.look import colors
from attnwidget._export.page import snapshot
from attnwidget._export.page.snapshot import SavedHead, choices_of
from attnwidget._messages.answers import long_answers
from attnwidget._messages.codec import encoding

EVIL = ["</script><script>alert(1)</script>", "<img src=x onerror=alert(2)>", "&amp;", "<!--"]


def tensors(n: int = 4, heads: int = 3, d: int = 8, seed: int = 0) -> list[torch.Tensor]:
    return list(torch.randn(3, 1, heads, n, d, generator=torch.Generator().manual_seed(seed)))


def unpacked(page: str) -> dict[str, Any]:
    """What the page's script reads, its bytes as bytes."""
    (data,) = re.findall(r'id="attnwidget-data">([^<]*)</script>', page)
    whole = zlib.decompress(base64.b64decode(data))
    (length,) = struct.unpack("<I", whole[:4])
    behind = whole[4 + length :]

    def attach(part: dict[str, Any]) -> Any:
        if "$bytes" in part:
            start, size = part["$bytes"]
            return behind[start : start + size]
        return part

    found: dict[str, Any] = json.loads(whole[4 : 4 + length], object_hook=attach)
    return found


def read(path: Path) -> dict[str, Any]:
    return unpacked(path.read_text(encoding="utf-8"))


def test_every_number_of_every_head_is_in_a_small_file(tmp_path: Path) -> None:
    q, k, v = tensors()
    w = AttentionWidget(q, k, v, is_causal=True, head=1)
    path = w.to_html(tmp_path / "a.html")
    assert path == tmp_path / "a.html"
    found = read(path)
    pictures = found["derived"]["picture"]
    assert pictures["by"] == ["layer", "batch", "head", "stage", "pool"]
    att = Attention(q, k, v, is_causal=True)
    for head in range(3):
        for stage in att.stages:
            message = pictures["values"][snapshot.key_of([0, 0, head, stage, "max"])]
            values, _ = decode_cells(message["values"], message["blocked"])
            exact = att.block(stage, head=head).numpy()
            allowed = att.block("allowed", head=head).numpy()
            there = allowed if stage in ("masked", "weights", "contribution") else np.ones_like(allowed)
            assert np.abs(values[there] - exact[there]).max() <= 2e-7 * np.abs(exact[there]).max(), (head, stage)
    assert found["state"]["head"] == 1
    assert found["state"]["picture"] == pictures["values"][snapshot.key_of([0, 0, 1, "weights", "max"])]
    assert found["state"]["facts"]["saved"] == {"layers": [0], "heads": [0, 1, 2], "samples": [0]}


def test_up_to_512_tokens_every_number_is_a_float(tmp_path: Path) -> None:
    q, k, _ = tensors(300, 1)
    w = AttentionWidget(q, k)
    assert w.picture["values"]["dtype"] == "uint8"  # what travels to a notebook is for the eye
    message = read(w.to_html(tmp_path / "a.html"))["state"]["picture"]
    assert message["values"]["dtype"] == "float32"
    assert message["values"]["shape"] == [300, 300]


def test_every_pair_of_a_small_head_has_its_steps(tmp_path: Path) -> None:
    w = AttentionWidget(*tensors(), query=1, key=2)
    found = read(w.to_html(tmp_path / "a.html"))
    pairs = found["derived"]["pair"]["values"]
    assert len(pairs) == 16
    weight = approx(float(w.weights(3)[1]), rounding(w.attention).weights)
    assert pairs[snapshot.key_of([0, 0, 0, 3, 1])]["weight"] == weight
    assert found["state"]["pair"]["query"] == 1  # also in views that do not show it: the reader may go there


def test_links_answers_and_tokens(tmp_path: Path) -> None:
    w = AttentionWidget(*tensors(), tokens=["a", "b", "c", "d"])
    found = read(w.to_html(tmp_path / "a.html"))
    assert set(found["links"]) == {
        snapshot.key_of([0, 0, head, side, "weights"]) for head in range(3) for side in ("query", "key")
    }
    assert found["links"][snapshot.key_of([0, 0, 2, "key", "weights"])]["weights"]["shape"] == [4, 3]
    kinds = {json.loads(name)["kind"] for name in found["replies"]}
    assert kinds == {"spread", "gradients", "sweep", "jacobian"}
    assert found["state"]["tokens"]["text"] == b"abcd"


def test_what_a_reader_can_switch_to(tmp_path: Path) -> None:
    w = AttentionWidget(*torch.randn(3, 4, 2, 3, 5, 8), layer=1, batch=1, head=2)
    assert len(choices_of(w._export_view())) == 12  # 4 layers × 3 heads of the sample that is shown
    assert choices_of(w._export_view(), layers="selected", heads="selected") == [SavedHead(1, 1, 2)]
    assert choices_of(w._export_view(), layers=[3], heads=[0, -1]) == [
        SavedHead(1, 1, 0),
        SavedHead(1, 1, 2),
        SavedHead(3, 1, 0),
        SavedHead(3, 1, 2),
    ]
    assert len(choices_of(w._export_view(), samples="all")) == 24


def test_of_many_heads_those_that_fit_are_saved() -> None:
    w = AttentionWidget(*tensors(400, 8), head=5)
    assert choices_of(w._export_view()) == [SavedHead(0, 0, 5)]
    assert len(choices_of(w._export_view(), heads="all")) == 8


def test_of_other_large_heads_only_the_stage_in_view_and_the_weights(tmp_path: Path) -> None:
    w = AttentionWidget(*tensors(300, 3), head=1, stage="scaled")
    known = read(w.to_html(tmp_path / "a.html", heads="all"))["derived"]["picture"]["values"]
    stages: dict[int, list[str]] = {}
    for _, _, head, stage, _ in map(json.loads, known):
        stages.setdefault(head, []).append(stage)
    assert stages[0] == stages[2] == ["scaled", "weights"]
    assert len(stages[1]) > 3


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"heads": [7]}, IndexError, "heads has 7, which is out of range: give 0 to 2"),
        ({"layers": "both"}, TypeError, 'layers is .both.: give "selected", "all" or a list of numbers'),
        ({"heads": [True]}, TypeError, "heads has True: give integers"),
        ({"heads": ["0"]}, TypeError, "heads has '0': give integers"),
        ({"limit": 1000}, ValueError, r"more than 0 MiB: save fewer \(layers=\[…\], heads=\[…\]\), or give limit="),
        ({"limit": 0}, ValueError, "limit is 0: give a number of bytes"),
        ({"title": 3}, TypeError, "title is int: give a string"),
    ],
)
def test_what_cannot_be_saved_is_refused(tmp_path: Path, wrong: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        AttentionWidget(*tensors()).to_html(tmp_path / "a.html", **wrong)
    assert not (tmp_path / "a.html").exists()


def test_paths(tmp_path: Path) -> None:
    w = AttentionWidget(*tensors())
    with pytest.raises(FileNotFoundError, match="none is not there: make the directory first"):
        w.to_html(tmp_path / "none" / "a.html")
    with pytest.raises(IsADirectoryError, match="is a directory: give the name of a file"):
        w.to_html(tmp_path)
    with pytest.raises(TypeError, match="path is int"):
        w.to_html(3)  # type: ignore[arg-type]
    (tmp_path / "a.html").write_text("before")
    assert "<html" in w.to_html(str(tmp_path / "a.html")).read_text(encoding="utf-8")  # as savefig, written over


def test_tokens_and_titles_are_text(tmp_path: Path) -> None:
    w = AttentionWidget(*tensors(), tokens=EVIL, title=EVIL[0])
    page = w.to_html(tmp_path / "a.html").read_text(encoding="utf-8")
    assert "alert(" not in page.replace("&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;", "")
    assert page.count("</script>") == 2
    assert unpacked(page)["state"]["tokens"]["text"].decode() == "".join(EVIL)


def test_the_page_may_run_its_own_script_and_reach_nobody(tmp_path: Path) -> None:
    page = AttentionWidget(*tensors()).to_html(tmp_path / "a.html").read_text(encoding="utf-8")
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["connect-src"] == rules["form-action"] == "'none'"
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert rules["script-src"] == f"'sha256-{digest}' blob:"
    outside = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert all(url.startswith("data:image/png") for url in outside)


def test_the_same_widget_makes_the_same_file(tmp_path: Path) -> None:
    q, k, v = tensors()
    one, other = (AttentionWidget(q, k, v).to_html(tmp_path / f"{name}.html").read_bytes() for name in "ab")
    first, second = unpacked(one.decode()), unpacked(other.decode())
    for found in (first, second):
        found["replies"] = {name: body for name, body in found["replies"].items() if "sweep" not in name}  # drawn anew
    assert first == second


def test_theme_of_the_page(tmp_path: Path) -> None:
    w = AttentionWidget(*tensors())
    assert "prefers-color-scheme: dark" in w.to_html(tmp_path / "a.html").read_text(encoding="utf-8")
    w.theme = "dark"
    page = w.to_html(tmp_path / "a.html").read_text(encoding="utf-8")
    assert f"background: {colors.LOOKS['dark'].page}" in page
    assert 'name="color-scheme" content="dark"' in page


def test_a_long_head_is_saved_as_it_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "AT_ONCE", 1000)
    w = AttentionWidget(torch.randn(1300, 4), torch.randn(900, 4), query=1_100, key=3)
    found = read(w.to_html(tmp_path / "a.html"))
    assert found["state"]["picture"]["sampled"]["every"] == w.picture["sampled"]["every"] > 1
    assert found["state"]["progress"] is None
    asked = [json.loads(name) for name in found["replies"]]
    assert {"kind": "ranked", "queries": [1_100], "count": 12} | {
        "layer": 0,
        "batch": 0,
        "head": 0,
        "stage": "weights",
    } in asked
    assert len((tmp_path / "a.html").read_bytes()) < 4 << 20
    w.finish()
    assert read(w.to_html(tmp_path / "a.html"))["state"]["picture"]["sampled"] is None


def test_of_a_pooled_head_every_bin_has_its_greatest_number_and_every_token_its_strongest(tmp_path: Path) -> None:
    (q, _, _), (_, k, _) = tensors(601, 1), tensors(31, 1)
    w = AttentionWidget(q, k, is_causal=True)
    found = read(w.to_html(tmp_path / "a.html"))
    peaks = found["peaks"][snapshot.key_of([0, 0, 0, "weights"])]
    values, places = (decode(peaks[name]) for name in ("values", "places"))
    assert values.shape == places.shape == (301, 31)
    exact = w.attention.block().numpy()  # type: ignore[union-attr]
    for row, column in [(0, 0), (100, 3), (300, 30), (299, 10), (300, 7)]:
        inside = exact[2 * row : 2 * row + 2, column : column + 1]
        assert values[row, column] == approx(inside.max(), rounding(w.attention).weights)
        assert places[row, column] == inside.argmax()
    ranked = [json.loads(name) for name in found["replies"] if '"ranked"' in name]
    assert len(ranked) == 601 + 31
    body = {"kind": "ranked", "keys": [30], "count": 12, "layer": 0, "batch": 0, "head": 0, "stage": "weights"}
    assert body in ranked


def test_what_keys_receive_is_saved_whole_however_many_messages_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_answers, "SLICE", 1)  # cells: a block of queries at a time
    att = Attention(*tensors(1100, 1))
    w = AttentionWidget.from_attention(att)
    found = read(w.to_html(tmp_path / "a.html"))
    (reply,) = (body for name, body in found["replies"].items() if '"received"' in name)
    assert reply["share"] == 1
    np.testing.assert_allclose(decode(reply["values"]), att.received(head=0), rtol=1e-5)


def test_tokens_of_a_long_text_are_all_there(tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(70_000)]
    assert encoding.encode_tokens(words)["ends"]["shape"] == [4096]  # type: ignore[index]
    assert encoding.encode_all_tokens(words)["ends"]["shape"] == [70_000]  # type: ignore[index]


def test_other_rules_are_saved_as_they_are_in_force(tmp_path: Path) -> None:
    q, k, v = tensors()
    w = AttentionWidget(q, k, v)
    w.what_if = {"causal": True}
    message = read(w.to_html(tmp_path / "a.html"))["state"]["picture"]
    _, kinds = decode_cells(message["values"], message["blocked"])
    assert int((kinds != 0).sum()) == 6


def test_a_comparison_with_all_its_sides(tmp_path: Path) -> None:
    q, k, v = tensors()
    sides = {
        "none": Attention(q, k, v),
        "causal": Attention(q, k, v, is_causal=True),
        "two": Attention(q, k, v, window=2),
    }
    w = compare(sides, query=2, key=1)
    found = read(w.to_html(tmp_path / "a.html"))
    comparison, changes = found["derived"]["comparison"], found["derived"]["changes"]
    assert comparison["by"][-2:] == ["against", "against_at"]
    assert snapshot.key_of([0, 0, 2, "weights", "max", "two", None]) in comparison["values"]
    made = changes["values"][snapshot.key_of([0, 0, 0, "two", None, 1, None])]
    assert (made["against"], made["query"]) == ("two", 1)
    assert found["state"]["comparison"]["against"] == "causal"
    assert w.against == "causal"


def test_the_contract_of_files() -> None:
    made = snapshot.packed(
        {
            "some": b"\x07\x08\x09",
            "more": [b"", np.array([0.5], "<f4").tobytes()],
            "text": "</script> naïve 日本",
            "none": None,
        }
    )
    request = {"kind": "sweep", "own": True, "layer": 1, "batch": 0, "head": 3}
    name = json.dumps(request, sort_keys=True, separators=(",", ":"))
    check(
        "saved.json",
        {
            "packed": {"deflated": True, "data": {"$bytes": base64.b64encode(made).decode()}},
            "request": {"name": name, "key": snapshot.key_of([0, 2, "weights", None])},
        },
    )


def test_saving_leaves_the_widget_as_it_was(tmp_path: Path) -> None:
    w = AttentionWidget(*tensors(), query=1)
    before = {name: w.trait_values()[name] for name in ("head", "query", "pins", "view", "links", "stages", "pair")}
    picture = w.picture
    w.to_html(tmp_path / "a.html")
    assert {name: w.trait_values()[name] for name in before} == before
    assert w.picture is picture


def test_a_file_has_the_column_of_a_learned_sink(tmp_path: Path) -> None:
    q, k, v = tensors()
    att = Attention(q, k, v, sinks=torch.tensor([0.5, -2.0, 3.0]))
    found = read(AttentionWidget.from_attention(att, view="graph").to_html(tmp_path / "a.html"))
    pictures = found["derived"]["picture"]["values"].values()
    assert all(one["sink"] is not None for one in pictures if one["stage"] != "scores")
    assert all(one["sinks"] is not None for one in found["links"].values())
    own = next(one for one in pictures if (one["head"], one["stage"]) == (2, "weights"))
    wanted, within = att.sink_weights(0, 2).numpy(), rounding(att, added=3.0).weights
    np.testing.assert_allclose(decode(own["sink"]), wanted, **within)


def test_heads_that_were_left_out_are_explained_where_they_are_gray(tmp_path: Path) -> None:
    w = AttentionWidget(*tensors(400, 8))
    page = w.to_html(tmp_path / "a.html").read_text(encoding="utf-8")
    said = 'w.to_html("attention.html", heads="all").'
    assert "1 of 8 heads is in this file. To save all of them (up to" in page
    assert said in page.replace("&quot;", '"')
    saved = next(iter(unpacked(page)["derived"]["facts"]["values"].values()))["saved"]
    assert saved["others"].endswith(said)
    small = AttentionWidget(*torch.randn(3, 1, 2, 8, 4)).to_html(tmp_path / "b.html")
    assert "are in this file" not in small.read_text(encoding="utf-8")


@pytest.mark.parametrize("stage", ["scaled", "weights", "contribution"])
@pytest.mark.parametrize("view", ["heatmap", "segments"])
def test_a_file_opens_with_all_that_the_widget_shows(tmp_path: Path, view: str, stage: str) -> None:
    segments = {"one": slice(0, 2), "other": slice(2, 4)}
    w = AttentionWidget(*tensors(), view=view, stage=stage, query=1, key=0, segments=segments)
    w.to_html(tmp_path / "all.html")
    file = read(tmp_path / "all.html")
    state = w.get_state()
    gone = [name for name in file["derived"] if state.get(name) is not None and file["state"][name] is None]
    assert gone == []
