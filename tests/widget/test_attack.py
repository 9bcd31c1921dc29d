"""The fuzzer of benchmarks/attack.py, at a size that fits: whatever a front-end sends, the widget stays whole."""

from __future__ import annotations

import asyncio
import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import ipywidgets
import pytest
from front_end import FrontEnd
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from attnwidget import AttentionWidget

ROOT = Path(__file__).parents[2]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("attack", ROOT / "benchmarks" / "attack.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["attack"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


ATTACK = load()


@pytest.mark.parametrize("messages", [20, pytest.param(300, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("target", ATTACK.SHORT)
def test_random_messages_and_states_leave_a_whole_widget(target: str, messages: int) -> None:
    make, _ = ATTACK.TARGETS[target]
    report = asyncio.run(ATTACK.attack(make, messages, random.Random(f"{target} {messages}")))
    assert report.sent == messages


class FrontEndOfAnyKind(RuleBasedStateMachine):
    """A front-end that sets traits and asks questions, by lot: what goes wrong is told in as few steps as possible."""

    def __init__(self) -> None:
        super().__init__()
        self.victim = ATTACK.Victim(ATTACK.layers_that_differ, random.Random(0))

    @rule(seed=st.integers(0, 2**32))
    def set_traits(self, seed: int) -> None:
        self.victim.sender.dice.seed(seed)
        self.victim.set_state(self.victim.sender.state())

    @rule(seed=st.integers(0, 2**32))
    def ask(self, seed: int) -> None:
        self.victim.sender.dice.seed(seed)
        self.victim.send(self.victim.sender.content())

    @rule(name=st.sampled_from(["layer", "head", "query", "key"]), value=st.integers(-2, 20))
    def click(self, name: str, value: int) -> None:
        self.victim.set_state({name: value})

    @rule()
    def ask_what_is_good(self) -> None:
        self.victim.ask()

    @invariant()
    def is_whole(self) -> None:
        self.victim.check()

    def teardown(self) -> None:
        self.victim.close()


@pytest.mark.thorough
def test_no_order_of_clicks_messages_and_questions_breaks_it() -> None:
    few = settings(
        max_examples=12,
        stateful_step_count=15,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    run_state_machine_as_test(FrontEndOfAnyKind, settings=few)


def test_every_odd_value_of_every_trait_is_taken_or_refused(front_end: FrontEnd) -> None:
    victim: Any = ATTACK.Victim(ATTACK.short, random.Random(0))
    for odd in ATTACK.ODD:
        for name in ATTACK.names_of(type(victim.w), *ATTACK.WRITABLE):
            victim.set_state({name: odd})
        victim.send({"what_if": odd, "requests": [odd, {"kind": "row", "query": odd}]})
        victim.check()
    victim.ask()
    victim.close()


@pytest.mark.parametrize("count", [12, pytest.param(240, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_what_is_stopped_at_any_line_leaves_a_whole_widget(error: type[BaseException], count: int) -> None:
    assert ATTACK.stop(count, 2, error) == []


def test_questions_of_four_threads_are_answered_right_while_the_selection_changes() -> None:
    assert ATTACK.ask_in_threads(40, 0) == []


def test_widgets_that_are_opened_and_closed_leave_nothing() -> None:
    early, late = ATTACK.open_and_close(12, ATTACK.short)
    assert late.widgets == early.widgets


def test_a_layout_that_was_given_stays_and_a_layout_of_its_own_goes() -> None:
    given = ipywidgets.Layout(width="300px")
    q, k, _ = ATTACK.tensors(1, 1, 4, 2)
    shown, plain = AttentionWidget(q, k, layout=given), AttentionWidget(q, k)
    own = plain.layout
    shown.close()
    plain.close()
    assert given.comm is not None
    assert own.comm is None
    given.close()


def test_changes_of_the_head_leave_nothing_that_listens() -> None:
    early, late = ATTACK.change_heads(30, ATTACK.short)
    assert (late.widgets, late.listeners) == (early.widgets, early.listeners)


@pytest.mark.thorough
def test_a_run_goes_on_where_it_was_stopped_and_tells_its_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log, rounds = tmp_path / "attack.jsonl", ATTACK.rounds_of(450, "short")
    assert [one.messages for one in rounds] == [200, 200, 50]
    run: list[int] = []

    def fails(one: Any, seed: int) -> dict[str, Any]:
        run.append(one.number)
        return {"seed": seed, **one._asdict(), **vars(ATTACK.Report()), "fault": "oh" if one.number else None}

    monkeypatch.setattr(ATTACK.Round, "run", fails)
    ATTACK.run_all(rounds[:2], 3, log)
    results = ATTACK.run_all(rounds, 3, log)
    assert run == [0, 1, 2]
    assert [one["fault"] for one in results] == [None, "oh", "oh"]
    assert "FAULT in short, --only 'short' --round 1 --messages" in capsys.readouterr().out
    ATTACK.run_all(rounds[:1], 4, log)  # another seed is another run
    assert run == [0, 1, 2, 0]


@pytest.mark.thorough
def test_every_kind_of_widget_is_attacked_from_the_start_and_as_often_as_its_share() -> None:
    rounds = ATTACK.rounds_of(100_000, None)
    assert sum(one.messages for one in rounds) >= 100_000 * sum(share for _, share in ATTACK.TARGETS.values()) - 1
    assert {one.target for one in rounds[: 3 * len(ATTACK.TARGETS)]} == set(ATTACK.TARGETS)
