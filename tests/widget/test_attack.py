"""The fuzzer of benchmarks/attack.py, at a size that fits: whatever a front-end sends, the widget stays whole."""

from __future__ import annotations

import asyncio
import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from front_end import FrontEnd
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

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


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("target", ATTACK.SHORT)
def test_random_messages_and_states_leave_a_whole_widget(target: str, seed: int) -> None:
    make, _ = ATTACK.TARGETS[target]
    report = asyncio.run(ATTACK.attack(make, 150, random.Random(f"{target} {seed}")))
    assert report.sent == 150


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


@pytest.mark.slow
def test_no_order_of_clicks_messages_and_questions_breaks_it() -> None:
    few = settings(
        max_examples=12,
        stateful_step_count=15,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    run_state_machine_as_test(FrontEndOfAnyKind, settings=few)


@pytest.mark.parametrize("odd", range(len(ATTACK.ODD)))
def test_every_odd_value_of_every_trait_is_taken_or_refused(odd: int, front_end: FrontEnd) -> None:
    victim: Any = ATTACK.Victim(ATTACK.short, random.Random(odd))
    for name in ATTACK.names_of(type(victim.w), *ATTACK.WRITABLE):
        victim.set_state({name: ATTACK.ODD[odd]})
    victim.send({"what_if": ATTACK.ODD[odd], "requests": [ATTACK.ODD[odd], {"kind": "row", "query": ATTACK.ODD[odd]}]})
    victim.check()
    victim.ask()
    victim.close()
