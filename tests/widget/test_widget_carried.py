"""What weights carry in the widget: chosen as a stage, with the token of its logits; in figures, files and requests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from captured import GPT2, GROUPED, Kind, batch, build, transformers
from carrying import carrying
from torch.testing import assert_close

from attnwidget import Attention, AttentionWidget, Capture, capture, compare
from attnwidget._export.still import preview
from attnwidget._export.still.glyphs import written
from attnwidget._messages.answers.ranking import line, rank
from attnwidget._messages.codec.decoding import BLOCKED, decode_cells, of_picture
from attnwidget._utils.assets import stage_names

CARRIED = ("value_norm", "logit", "saliency")


def shown(w: AttentionWidget) -> torch.Tensor:
    """The numbers of the picture, 0 where a cell is masked."""
    values, kinds = decode_cells(w.picture["values"], w.picture["blocked"])
    return torch.tensor(values).masked_fill(torch.tensor(kinds == BLOCKED), 0)


class Words:
    """A tokenizer of the model's ids."""

    spelling = "text"

    def convert_ids_to_tokens(self, one: int) -> str:
        return f"w{one}"

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [int(one[1:]) for one in text.split()]


@pytest.fixture(scope="module")
def cap() -> Capture:
    model = build(GPT2, "sdpa")
    found = capture(model, gradients=True, tokenizer=Words()).run(input_ids=batch()["input_ids"])
    found.backward()
    return found


def test_each_stage_is_drawn_as_it_is_computed(cap: Capture) -> None:
    w = cap.widget(layer=1, batch=1, head=3)
    assert w.facts["stages"][-3:] == list(CARRIED)
    for stage in CARRIED:
        w.stage = stage
        assert_close(shown(w), cap.attention[1].block(stage, batch=1, head=3), rtol=1e-6, atol=1e-9)
        assert not w.errors
    assert w.picture["low"] < 0


def test_the_token_is_chosen_and_named(cap: Capture) -> None:
    w = cap.widget(stage="logit", batch=1)
    likely = cap.attention[0].carries.targets[1]
    of = w.facts["targets"][1]
    assert (of["token"], of["text"]) == (likely, f"w{likely}")
    assert len(of["choices"]) == 8
    assert of["choices"][0] == [likely, f"w{likely}"]
    before = w.picture["values"]
    other = of["choices"][3][0]
    w.target = other
    assert w.facts["targets"][1]["token"] == other
    assert w.picture["values"] != before
    values = shown(w)
    wanted = cap.attention[0].with_target(other).block("logit", batch=1)
    assert_close(values, wanted, rtol=1e-6, atol=1e-9)
    w.what_if = {"causal": False}
    assert w.facts["targets"][1]["token"] == other
    assert "saliency" not in w.facts["stages"]
    w.target = None
    assert w.facts["targets"][1]["token"] == likely
    with pytest.raises(IndexError, match="token 50 is not there"):
        w.target = 50
    with pytest.raises(TypeError, match="give a whole number or None"):
        w.target = "w3"


def test_a_widget_without_a_model_has_no_token() -> None:
    w = AttentionWidget(*torch.randn(3, 4, 8))
    assert w.facts["targets"] is None
    with pytest.raises(ValueError, match="the direction of a token is not known"):
        w.target = 3
    with pytest.raises(ValueError, match="value_norm is not known"):
        w.stage = "value_norm"
    given = AttentionWidget(carrying(Attention(*torch.randn(3, 4, 8))), stage="logit")
    assert given.facts["targets"] is None
    assert given.picture["error"] is None if "error" in given.picture else True


def test_a_pair_says_what_its_weight_carries(cap: Capture) -> None:
    w = cap.widget(view="stages", query=5, key=2)
    found = cap.attention[0].explain(5, 2)
    assert {stage: one[0] for stage, one in w.pair["carried"].items()} == dict(found.carried)
    assert {stage: one[1] for stage, one in w.pair["carried"].items()} == dict(found.per_weight)


def test_a_logit_before_the_cap_is_called_so(tmp_path: Path) -> None:
    text_ = pytest.importorskip("matplotlib.text")
    config = transformers.Gemma2Config(**GROUPED, final_logit_softcapping=3.0)
    with torch.no_grad():
        model = build(Kind(transformers.Gemma2ForCausalLM, config), "eager")
        found = capture(model, tokenizer=Words()).run(input_ids=batch()["input_ids"])
    found.save(tmp_path / "one.safetensors")
    for cap in (found, Capture.load(tmp_path / "one.safetensors")):
        w = cap.widget(stage="logit", batch=1)
        target = w.facts["targets"][1]
        assert target["before_cap"] is True
        said = [one.get_text() for one in w.figure().findobj(text_.Text)]
        assert f"Logit of “{target['text']}” before the cap, direct path" in said
    plain = capture(build(GPT2, "sdpa")).run(input_ids=batch()["input_ids"]).widget(stage="logit")
    assert "before_cap" not in plain.facts["targets"][0]


def test_figures_and_files_name_the_token(cap: Capture, tmp_path: Path) -> None:
    text_ = pytest.importorskip("matplotlib.text")
    w = cap.widget(stage="logit", batch=1)
    text = w.facts["targets"][1]["text"]
    for view in ("heatmap", "text"):
        w.view, w.query = view, 6
        said = [one.get_text() for one in w.figure().findobj(text_.Text)]
        assert f"Logit of “{text}”, direct path" in said
    w.to_html(tmp_path / "one.html")
    assert (tmp_path / "one.html").stat().st_size > 0


def test_a_text_is_read_and_its_segments_keep_to_weights(cap: Capture) -> None:
    w = cap.widget(view="text", stage="saliency", query=6)
    assert w.picture["stage"] == "saliency"
    w.view = "segments"
    assert not w.errors


def test_rankings_put_the_largest_by_size_first(cap: Capture) -> None:
    att = cap.attention[0]
    w = cap.widget(stage="saliency", batch=1, query=11)
    row = att.block("saliency", batch=1, queries=11)[0]
    found = rank(*line(att, "saliency", 1, 0, "queries", [11], mean=True), 5, by_size=True)
    assert found.positions.tolist() == row.abs().argsort(descending=True, stable=True)[:5].tolist()
    assert w.stage == "saliency"


def test_a_comparison_shows_logits_of_one_token_only(cap: Capture) -> None:
    one = cap.attention[0]
    assert "logit" in compare(one, cap.attention[1]).facts["stages"]
    both = compare(one, one.with_target(9))
    assert both.facts["stages"][-2:] == ["value_norm", "saliency"]
    with pytest.raises(ValueError, match="the sides show logits of different tokens"):
        both.stage = "logit"


def test_the_small_picture_names_the_token_of_its_logits(cap: Capture) -> None:
    w = cap.widget(stage="logit", batch=1)
    names = []
    for stage in CARRIED:
        w.stage = stage
        words = preview._words_of(w._export_view(), of_picture(w._export_view().picture))
        assert written(words.ramp) is not None, "else nothing is written"
        names.append(words.ramp)
    likely = cap.attention[0].carries.targets[1]
    saliency = stage_names("saliency")["legend"]
    assert names == ["Value norm ‖weight · v W_O‖", f"Logit of “w{likely}”, direct path", saliency]


def test_where_the_small_picture_has_no_letters_for_a_token_it_has_its_id(cap: Capture) -> None:
    att = cap.attention[0]
    carries = att.carries
    foreign = att.as_carrying(replace(carries, words={carries.targets[0]: "日本"}))
    shown = AttentionWidget(foreign, stage="logit")
    assert preview._ramp_name(shown._export_view(), "logit") == f"Logit of “token {carries.targets[0]}”, direct path"
