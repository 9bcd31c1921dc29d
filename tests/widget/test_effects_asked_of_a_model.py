"""What a widget asks of a model that is at hand, run by run, and what it makes of the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from front_end import FrontEnd

from attnwidget import Attention, AttentionStack, AttentionWidget
from attnwidget._messages.segments.segment_mass import SINK
from attnwidget._widget.effect_source import EditedPart, Goal, PartEffect, PlainRun, TargetChoice
from attnwidget._widget.passes import effects as effects_module
from attnwidget._widget.stores.named_stacks import LabeledStack

N = 8
HEADS = (3, 2)  # of each layer
PARTS = {"docs": {"one": (1, 3), "two": (3, 4)}, "answer": (4, N)}
NAMES = ["first token", "docs", "answer"]
KEYS = [(0,), (1, 2, 3), (4, 5, 6, 7)]
BEST, NEXT = TargetChoice(7, 3, "three", "most likely"), TargetChoice(6, 2, "two", "")
OTHER = (5, 8)  # a target that nobody offers


class Model:
    """Answers with numbers that tell what was edited, and notes what it was asked."""

    edits = (("zero", "removed", "gives nothing"), ("cut", "cut", "is 0"), ("uniform", "even", "is even"))

    def __init__(self, most: int = 4, goal: Goal | None = BEST[:2]) -> None:  # type: ignore[assignment]
        self.most, self.goal = most, goal
        self.begun: list[int] = []
        self.runs: list[tuple[int, list[EditedPart], str, Goal | None, tuple[int, ...]]] = []
        self.rooms: list[tuple[int, Goal | None, tuple[int, ...], int]] = []
        self.refused: dict[EditedPart, Exception] = {}

    def begin(self, batch: int) -> PlainRun:
        self.begun.append(batch)
        targets = (BEST, NEXT) if self.goal else (TargetChoice(None, None, "size", ""),)
        return PlainRun(HEADS, 0.25, self.goal, targets, "nats" if self.goal else "change")

    def choice(self, batch: int, goal: Goal) -> TargetChoice:
        if goal[1] > 9:
            raise IndexError(f"token {goal[1]} is not there")
        return TargetChoice(*goal, f"t{goal[1]}", "chosen")

    def text(self, batch: int, at: int) -> str:
        return f"text of sample {batch} up to {at}"

    def left_out(self, edit: str, *, keys: bool) -> dict[int, str]:
        return {}

    def room(self, batch: int, goal: Goal | None, answer: Sequence[int], total: int) -> int:
        self.rooms.append((batch, goal, tuple(answer), total))
        return self.most

    def run(
        self, batch: int, parts: Sequence[EditedPart], edit: str, goal: Goal | None, answer: Sequence[int]
    ) -> list[PartEffect]:
        self.runs.append((batch, list(parts), edit, goal, tuple(answer)))
        for part in parts:
            if part in self.refused:
                raise self.refused[part]
        return [PartEffect(-1.0, -1.0 - lost(part), 0.5, 0.25, 97, (("three", 0.5, float("inf")),)) for part in parts]

    @property
    def asked(self) -> list[EditedPart]:
        return [part for _, parts, *_ in self.runs for part in parts]


def lost(part: EditedPart) -> float:
    """Return a number that is another one for each part that these tests edit."""
    keys = sum(2**key for key in part.keys or ())
    return 1 / 3 + keys + 1000 * (part.layer or 0) + 10_000 * (part.head or 0)


def attention(**rules: Any) -> AttentionStack:
    make = torch.Generator().manual_seed(0)
    return AttentionStack([Attention(*torch.randn(2, 2, heads, N, 4, generator=make), **rules) for heads in HEADS])


def widget(model: Model, **show: Any) -> AttentionWidget:
    source = LabeledStack(attention(**show.pop("rules", {})), effects=model)
    return AttentionWidget.from_attention({"one": source}, **{"segments": PARTS, **show})


def send(w: AttentionWidget, **request: Any) -> None:
    w._handle_custom_msg({"requests": [{"id": "1", **request}]}, [])


def rounded(number: float) -> float:
    return float(f"{number:.6g}")


ALL_HEADS = [EditedPart(layer, head) for layer, count in enumerate(HEADS) for head in range(count)]
ALL_SEGMENTS = [EditedPart(keys=keys) for keys in KEYS]


def test_a_sweep_asks_for_all_segments_then_for_all_heads_as_many_as_there_is_room_for() -> None:
    model = Model()
    w = widget(model, batch=1, segments_show="effect")
    assert (w.effects["state"], w.effects["heads"], w.effects["at"], model.runs) == ("running", None, None, [])
    assert (w.effects["done"], w.effects["total"], w.effects["targets"]) == (0, 0, [])
    w.finish()
    goal, answer = BEST[:2], KEYS[2]
    assert model.runs == [
        (1, ALL_SEGMENTS, "zero", goal, answer),
        (1, ALL_HEADS[:4], "zero", goal, answer),
        (1, ALL_HEADS[4:], "zero", goal, answer),
    ]
    assert model.rooms == [(1, goal, answer, left) for left in (3, 5, 1)]
    assert model.begun == [1]
    found = w.effects
    assert (found["state"], found["error"], found["batch"], found["edit"]) == ("done", None, 1, "zero")
    assert (found["done"], found["total"]) == (8, 8)
    assert found["heads"] == {"counts": [3, 2], "lost": [rounded(lost(part)) for part in ALL_HEADS]}
    assert found["segments"] == {
        "path": [], "names": NAMES, "lost": [rounded(lost(part)) for part in ALL_SEGMENTS],
        "dropped": "keys dropped in 2 layers",
    }  # fmt: skip
    assert (found["at"], found["text"], found["unit"]) == (7, "text of sample 1 up to 7", "nats")
    assert found["target"] == {"token": 3, "text": "three"}
    assert found["targets"] == [one._asdict() for one in (BEST, NEXT)]
    assert found["edits"][0] == {"value": "zero", "name": "removed", "of": "gives nothing"}
    assert (found["run_seconds"], found["seconds_left"]) == (0.25, None)
    first, *_ = w.effect_details
    assert first == {
        "of": {"segment": "first token", "path": []}, "edit": "zero", "at": 7, "token": 3, "target": "three",
        "error": None, "before": -1.0, "after": -1 - lost(ALL_SEGMENTS[0]), "kl": 0.5, "kl_answer": 0.25,
        "vocabulary": 97, "tokens": [["three", 0.5, "inf"]],
    }  # fmt: skip
    assert [one["of"]["segment"] for one in w.effect_details] == NAMES, "heads are too many to be told one by one"


@pytest.mark.parametrize(
    ("of", "part"),
    [
        ({"layer": 1, "head": 1}, EditedPart(1, 1)),
        ({"layer": 1}, EditedPart(1)),
        ({"key": 5}, EditedPart(keys=(5,))),
        ({"layer": 0, "head": 2, "query": 6, "key": 4}, EditedPart(0, 2, (6,), (4,))),
        ({"segment": "answer", "path": []}, EditedPart(keys=KEYS[2])),
        ({"segment": "two", "path": ["docs"]}, EditedPart(keys=(3,))),
    ],
)
def test_what_is_asked_for_is_run_alone_and_once(of: dict[str, Any], part: EditedPart) -> None:
    model = Model()
    w = widget(model, effect_edit="cut")
    assert (w.effects["state"], w.effects["done"]) == ("idle", 0)
    for _ in range(2):
        send(w, kind="effect", of=of)
    assert model.runs == [(0, [part], "cut", BEST[:2], KEYS[2])]
    (detail,) = w.effect_details
    assert (detail["of"], detail["edit"], detail["after"]) == (of, "cut", -1 - lost(part))
    assert w.effects["state"] == "idle"
    assert w.effects["segments"]["dropped"] == "weights set to 0 in 2 layers"


def test_only_what_is_looked_at_is_run() -> None:
    model = Model()
    w = widget(model)
    w.finish()
    w.head = 1
    assert (model.begun, w.effects["state"]) == ([], "idle")
    w.order = "effect"
    assert w.effects["state"] == "running"
    w.finish()
    assert len(model.asked) == 8
    w.order, w.bar = "layer", "effect"
    w.finish()
    assert len(model.asked) == 8, "they are known"


def test_inside_a_segment_its_own_are_run_and_heads_not_again() -> None:
    model = Model()
    w = widget(model, segments_show="effect")
    w.finish()
    w.segment_path = ["docs"]
    assert w.effects["state"] == "running"
    w.finish()
    inside = [(1, 2), (3,), (4, 5, 6, 7), (0,)]
    assert model.asked[8:] == [EditedPart(keys=keys) for keys in inside]
    assert w.effects["segments"]["names"] == ["one", "two", "outside docs", "first token"]
    assert w.effects["segments"]["lost"] == [rounded(lost(EditedPart(keys=keys))) for keys in inside]
    assert (w.effects["state"], w.effects["done"], w.effects["total"]) == ("done", 9, 9)
    w.segment_path = []
    w.finish()
    assert len(model.asked) == 12


def test_another_sample_target_or_edit_is_run_anew_and_the_last_ones_are_kept() -> None:
    model = Model(most=100)
    w = widget(model, segments_show="effect")
    w.finish()
    first = w.effects["heads"]
    for name, value in (("effect_target", OTHER), ("effect_edit", "uniform"), ("batch", 1)):
        setattr(w, name, value)
        assert w.effects["heads"] is None or None in w.effects["heads"]["lost"]
        w.finish()
        assert w.effects["state"] == "done"
    assert [run[0] for run in model.runs[::2]] == [0, 0, 0, 1]
    assert [run[2] for run in model.runs[::2]] == ["zero", "zero", "uniform", "uniform"]
    assert [run[3] for run in model.runs[::2]] == [BEST[:2], OTHER, OTHER, OTHER]
    assert model.begun == [0, 1]
    assert w.effects["target"] == {"token": 8, "text": "t8"}
    assert w.effects["targets"][-1] == {"at": 5, "token": 8, "text": "t8", "note": "chosen"}
    ran = len(model.runs)
    w.batch, w.effect_target, w.effect_edit = 0, None, "zero"
    w.finish()
    assert (w.effects["heads"], w.effects["state"], len(model.runs)) == (first, "done", ran)


def test_results_of_a_few_targets_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects_module, "MAX_KEPT", 2)
    model = Model()
    w = widget(model)

    def ask(token: int | None) -> int:
        w.effect_target = None if token is None else (5, token)
        before = len(model.runs)
        send(w, kind="effect", of={"layer": 0, "head": 0})
        return len(model.runs) - before

    assert [ask(token) for token in (None, 1, None, 2, None, 1)] == [1, 1, 0, 1, 0, 1], "those used last"


def test_details_of_a_few_edits_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects_module, "MAX_DETAILS", 2)
    w = widget(Model())
    for key in (1, 2, 3):
        send(w, kind="effect", of={"key": key})
    assert [one["of"] for one in w.effect_details] == [{"key": 2}, {"key": 3}]


def test_a_sweep_that_was_stopped_stays_so_until_it_is_resumed_or_something_else_is_asked() -> None:
    model = Model()
    w = widget(model, segments_show="effect")
    send(w, kind="effects", action="stop")
    w.finish()
    assert (w.effects["state"], model.runs) == ("stopped", [])
    w.segment_path = ["docs"]
    w.head = 1
    w.finish()
    assert (w.effects["state"], model.runs) == ("stopped", [])
    send(w, kind="effect", of={"layer": 0, "head": 1})
    assert (w.effects["state"], model.asked) == ("stopped", [EditedPart(0, 1)]), "what is asked for is run"
    send(w, kind="effects", action="resume")
    assert w.effects["state"] == "running"
    w.finish()
    assert (w.effects["state"], w.effects["done"]) == ("done", 9)
    send(w, kind="effects", action="stop")
    w.batch = 1
    assert w.effects["state"] == "running", "of another sample it is looked at anew"


def test_what_cannot_be_edited_is_said_in_its_place_and_the_others_are_run() -> None:
    model = Model()
    model.refused = {ALL_SEGMENTS[1]: ValueError("these keys hold all")}
    w = widget(model, segments_show="effect", rules={"sinks": 0.5})
    w.finish()
    assert w.effects["state"] == "done"
    assert w.effects["segments"]["names"] == [*NAMES, SINK]
    assert [isinstance(one, float) for one in w.effects["segments"]["lost"]] == [True, False, True, False]
    assert w.effects["segments"]["lost"][1] == "nan"
    told = {one["of"]["segment"]: one for one in w.effect_details}
    assert told["docs"]["error"] == "these keys hold all"
    assert (told["docs"]["before"], told["docs"]["tokens"]) == (None, [])
    assert f"{SINK} has no keys" in told[SINK]["error"]
    assert told["answer"]["error"] is None


def test_a_head_that_fails_ends_the_sweep_and_it_begins_anew_when_run_again() -> None:
    model = Model()
    model.refused = {EditedPart(1, 0): IndexError("layer 1 has no such head")}
    w = widget(model, segments_show="effect")
    w.finish()
    assert (w.effects["state"], w.effects["error"]) == ("failed", "layer 1 has no such head")
    assert w.effects["target"] is None
    model.refused = {}
    send(w, kind="effects", action="run")
    assert w.effects["error"] is None
    w.finish()
    assert (w.effects["state"], model.begun) == ("done", [0, 0])
    assert None not in w.effects["heads"]["lost"]


def test_a_model_that_fails_is_said() -> None:
    model = Model()
    model.refused = {ALL_SEGMENTS[0]: RuntimeError("out of memory")}
    w = widget(model, segments_show="effect")
    w.finish()
    assert (w.effects["state"], w.effects["error"]) == ("failed", "out of memory")
    assert w.effects["done"] == 0


def test_a_target_that_is_none_is_refused() -> None:
    model = Model()
    w = widget(model, effect_target=(2, 99), segments_show="effect")
    w.finish()
    assert (w.effects["state"], w.effects["error"]) == ("failed", "token 99 is not there")
    assert model.runs == []
    w.effect_target = OTHER
    w.finish()
    assert (w.effects["state"], w.effects["error"]) == ("done", None)
    w.effect_target = (2, 98)  # now that the model has run it is refused at once
    assert (w.effects["state"], w.effects["error"]) == ("failed", "token 98 is not there")


def test_of_a_function_of_the_output_there_is_no_target() -> None:
    model = Model(goal=None)
    w = widget(model, segments_show="effect", effect_target=OTHER)
    w.finish()
    assert {run[3] for run in model.runs} == {None}
    assert (w.effects["at"], w.effects["text"], w.effects["unit"]) == (None, "", "change")
    assert w.effects["target"] == {"token": None, "text": "size"}


def test_of_words_all_their_pieces_are_edited(front_end: FrontEnd) -> None:
    pieces = ["Ġa", "Ġb", "c", "Ġd", "Ġe", "f", "g", "Ġh"]  # words: 0, 1–2, 3, 4–6, 7
    model = Model()
    w = widget(model, tokens=[pieces, pieces], pieces="words", effect_edit="uniform")
    send(w, kind="effect", of={"key": 1})
    send(w, kind="effect", of={"key": 0})
    assert "choose another edit" in front_end.custom(w)[-1].data["content"]["replies"][0]["error"]
    send(w, kind="effect", of={"layer": 0, "head": 0, "query": 3, "key": 1})
    assert "choose another edit" in front_end.custom(w)[-1].data["content"]["replies"][0]["error"]
    w.effect_edit = "zero"
    send(w, kind="effect", of={"layer": 0, "head": 0, "query": 3, "key": 1})
    assert model.asked == [EditedPart(keys=(1, 2)), EditedPart(0, 0, (4, 5, 6), (1, 2))]
    assert model.runs[-1][4] == (4, 5, 6, 7), "the answer in the model's own positions"


def test_at_most_so_many_edits_wait(front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects_module, "MAX_ASKED", 2)

    async def main() -> None:
        w = widget(Model())
        for key in (1, 2, 3):
            send(w, kind="effect", of={"key": key})
        replies = [message.data["content"]["replies"][0] for message in front_end.custom(w)]
        assert [reply["ok"] for reply in replies] == [True, True, False]
        assert "too many runs are requested at once" in replies[-1]["error"]
        while w.effects["state"] == "running":
            await asyncio.sleep(0.001)
        assert [one["of"] for one in w.effect_details] == [{"key": 1}, {"key": 2}]

    asyncio.run(main())


def test_a_sweep_on_the_loop_goes_on_while_heads_are_looked_at_and_what_is_asked_for_comes_first() -> None:
    model = Model(most=1)

    async def main() -> None:
        w = widget(model, segments_show="effect")
        while len(model.asked) < 2:
            await asyncio.sleep(0.001)
        w.head = 1
        send(w, kind="effect", of={"layer": 1, "head": 1})
        before = len(model.asked)
        while w.effects["state"] == "running":
            await asyncio.sleep(0.001)
        assert w.effects["state"] == "done"
        assert model.asked[before] == EditedPart(1, 1)
        assert sorted(map(lost, model.asked)) == sorted(map(lost, [*ALL_SEGMENTS, *ALL_HEADS])), "each once"

    asyncio.run(main())


def test_another_stack_has_its_own_model_or_none() -> None:
    one, two = Model(), Model()
    stacks = {
        "one": LabeledStack(attention(), effects=one),
        "none": attention(),
        "two": LabeledStack(attention(), effects=two),
    }
    w = AttentionWidget.from_attention(stacks, segments=PARTS, segments_show="effect")
    w.finish()
    w.stack = "none"
    assert (w.effects, w.effect_details) == (None, None)
    w.stack = "two"
    w.segments = PARTS
    w.finish()
    assert (w.effects["state"], len(one.asked), len(two.asked)) == ("done", 8, 8)
    effects = w._effects
    w.close()
    assert effects._source is None


def test_other_segments_are_run_anew() -> None:
    model = Model()
    w = widget(model, segments_show="effect")
    w.finish()
    w.segments = {"question": (1, 4), "answer": (4, N)}
    assert w.effects["state"] == "running"
    w.finish()
    assert (w.effects["segments"]["names"], w.effects["done"]) == (["first token", "question", "answer"], 8)
    assert len(model.asked) == 16


def test_without_segments_heads_alone_are_run() -> None:
    model = Model()
    w = widget(model, segments=None, order="effect")
    w.finish()
    assert (w.effects["segments"], model.asked, w.effects["state"]) == (None, ALL_HEADS, "done")
    assert {run[4] for run in model.runs} == {()}


def test_the_time_that_is_left_is_told_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(effects_module, "SETTLE", 0.0)
    monkeypatch.setattr(effects_module, "TELL", 0.0)
    model = Model(most=1)

    async def main() -> None:
        w = widget(model, segments_show="effect")
        w.observe(lambda change: told.append((change.new["done"], change.new["seconds_left"])), "effects")
        while w.effects["state"] == "running":
            await asyncio.sleep(0.001)

    asyncio.run(main())
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (8, None)
    assert any(left is not None and left >= 0 for _, left in told[:-1])
