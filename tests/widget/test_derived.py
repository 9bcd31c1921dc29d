"""Traits that follow from others are made once for what they are of, and what cannot be made is not in the way."""

from __future__ import annotations

from typing import Any

import pytest

from attnwidget._widget.derived.derived_trait import INTERRUPTED, Derived, DerivedTrait


class Box:
    """Two derived traits of one number: its square, and its inverse."""

    def __init__(self) -> None:
        self.number: int | None = 3
        self.made: list[str] = []
        self.left = 0
        self.strict = False
        self.put: dict[str, Any] = {}
        self.errors: dict[str, str | None] = {}
        self.derived = Derived(self.rules, self.put.__setitem__, self.errors.__setitem__, lambda: self.strict)

    def rules(self) -> dict[str, DerivedTrait]:
        of = () if self.number is None else (self.number,)
        return {
            "square": DerivedTrait(of, self.square, leave=self.leave),
            "inverse": DerivedTrait(of, lambda number: 1 / number, lambda error, number: f"{number}: {error}"),
            "untold": DerivedTrait(of, lambda number: 1 / number),
            "strictly": DerivedTrait(of, lambda number: 1 / number, required=True),
        }

    def square(self, number: int) -> int:
        self.made.append(f"square of {number}")
        return number * number

    def leave(self) -> None:
        self.left += 1


def test_it_is_made_once_for_what_it_is_of() -> None:
    box = Box()
    assert box.derived.bring("square")
    assert not box.derived.bring("square")
    box.number = 4
    assert box.derived.bring("square")
    assert (box.put, box.made) == ({"square": 16}, ["square of 3", "square of 4"])
    assert box.derived.is_of("square", (4,))
    assert not box.derived.is_of("square", (3,))


def test_what_is_forgotten_is_made_again() -> None:
    box = Box()
    for name in ("square", "inverse"):
        box.derived.bring(name)
    box.derived.forget("square", "unheard of")
    assert box.derived.bring("square")
    assert not box.derived.bring("inverse")
    box.derived.forget()
    assert box.derived.bring("inverse")


def test_what_nobody_wants_is_none_and_is_left_once() -> None:
    box = Box()
    box.derived.bring("square")
    box.number = None
    assert box.derived.bring("square")
    assert not box.derived.bring("square")
    assert (box.put["square"], box.left) == (None, 1)


def test_what_cannot_be_computed_raises_at_first_and_is_replaced_later() -> None:
    box = Box()
    box.number, box.strict = 0, True
    with pytest.raises(ZeroDivisionError):
        box.derived.bring("inverse")
    assert not box.derived.is_of("inverse", (0,))
    box.strict = False
    assert box.derived.bring("inverse")
    assert (box.put["inverse"], box.errors["inverse"]) == ("0: division by zero", None), "it says so itself"
    with pytest.raises(ZeroDivisionError):
        box.derived.bring("strictly")


def test_what_cannot_be_computed_and_does_not_say_so_is_told_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    box = Box()
    box.number = 0
    with caplog.at_level("INFO"):
        assert box.derived.bring("untold")
    assert (box.put["untold"], box.errors["untold"]) == (None, "ZeroDivisionError: division by zero")
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == ("WARNING", "untold could not be computed")
    assert record.exc_info is not None
    box.number = 2
    box.derived.bring("untold")
    assert (box.put["untold"], box.errors["untold"]) == (0.5, None)
    box.number = 0
    box.derived.bring("untold")
    box.number = None
    box.derived.bring("untold")
    assert box.errors["untold"] is None, "nobody wants it"


@pytest.mark.parametrize(("error", "logged"), [(RuntimeError("out of memory"), 0), (AttributeError("none"), 1)])
def test_what_says_so_itself_is_logged_where_it_is_a_mistake(
    error: Exception, logged: int, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(number: int) -> None:
        raise error

    box = Box()
    rules = {"fails": DerivedTrait((1,), fail, lambda error, number: str(error))}
    derived = Derived(lambda: rules, box.put.__setitem__, box.errors.__setitem__, lambda: False)
    with caplog.at_level("INFO"):
        derived.bring("fails")
    assert [record.levelname for record in caplog.records] == ["WARNING"] * logged
    assert box.put["fails"] == str(error)


def test_the_value_of_something_else_is_not_put() -> None:
    box = Box()
    assert box.derived.value("square", 5) == 25
    assert box.derived.value("square") is None
    assert box.put == {}


def test_an_interrupt_is_said_of_what_is_not_there_yet_and_it_is_made_when_next_brought() -> None:
    box = Box()
    for name in box.rules():
        box.derived.bring(name)
    box.number = 4
    box.derived.bring("square")
    box.derived.interrupt()
    assert box.put == {"square": 16, "inverse": f"4: {INTERRUPTED}", "untold": None, "strictly": 0.25}
    assert box.errors == {"square": None, "inverse": None, "untold": INTERRUPTED, "strictly": None}
    assert box.made == ["square of 3", "square of 4"]
    assert [name for name in box.rules() if box.derived.bring(name)] == ["inverse", "untold"]
    assert (box.put["inverse"], box.put["untold"], box.errors["untold"]) == (0.25, 0.25, None)
    box.number = None
    box.derived.interrupt("no memory")
    assert (set(box.put.values()), box.left) == ({None}, 1), "what nobody wants is not interrupted"


def test_the_reason_of_an_interrupt_can_be_another() -> None:
    box = Box()
    box.derived.interrupt("no memory")
    assert (box.put["inverse"], box.errors["square"]) == ("3: no memory", "no memory")


def test_what_is_held_back_is_still_to_come_and_what_is_required_is_there() -> None:
    box = Box()
    for name in box.rules():
        box.derived.bring(name)
    box.number = 4
    box.derived.hold_back("later")
    assert box.put == {"square": None, "inverse": "4: later", "untold": None, "strictly": 0.25}
    assert box.errors == dict.fromkeys(box.put)
    assert box.left == 1, "what makes it may stop"
    assert [name for name in box.rules() if box.derived.bring(name)] == ["square", "inverse", "untold"]
    box.number = None
    box.derived.hold_back("later")
    assert set(box.put.values()) == {None}
