"""A name that goes away works for one minor version, and says at the caller's line what to write instead."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import attnwidget
from attnwidget._utils import deprecated as module
from attnwidget._utils.deprecated import Deprecation, declare, deprecated, release, renamed_keywords


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch) -> list[Deprecation]:
    """What these tests make up is not counted among what the package has declared."""
    found: list[Deprecation] = []
    monkeypatch.setattr(module, "DECLARED", found)
    return found


def made_up() -> Callable[..., tuple[int, int]]:
    @renamed_keywords({"bands": "ribbons", "dots": "points"}, since="0.2")
    def draw(ribbons: int = 1, *, points: int = 2) -> tuple[int, int]:
        """Draw."""
        return ribbons, points

    return draw


def test_an_old_keyword_works_and_warns_at_the_callers_line() -> None:
    draw = made_up()
    with pytest.warns(DeprecationWarning, match="bands") as caught:
        assert draw(bands=5, points=7) == (5, 7)
    (one,) = caught
    assert str(one.message) == (
        "bands= of draw is deprecated since attnwidget 0.2 and goes in 0.3: write ribbons= instead"
    )
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert (one.filename, lines[one.lineno - 1].strip()) == (__file__, "assert draw(bands=5, points=7) == (5, 7)")


def test_new_names_do_not_warn_and_the_function_is_still_itself() -> None:
    draw = made_up()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert draw(5, points=7) == (5, 7)
        assert draw() == (1, 2)
    assert (draw.__name__, draw.__doc__) == ("draw", "Draw.")
    assert list(inspect.signature(draw).parameters) == ["ribbons", "points"], "completion offers the new names alone"


def test_each_old_keyword_warns_for_itself() -> None:
    with pytest.warns(DeprecationWarning, match="is deprecated since") as caught:
        assert made_up()(bands=5, dots=7) == (5, 7)
    assert {str(one.message).split()[0] for one in caught} == {"bands=", "dots="}


def test_one_thing_by_two_names_is_refused() -> None:
    with pytest.raises(TypeError, match=r"draw got bands= and ribbons=, two names of one thing: give ribbons="):
        made_up()(bands=5, ribbons=5)


def test_other_wrong_keywords_are_refused_as_ever() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'bnds'"):
        made_up()(bnds=5)


def test_a_method_of_an_object_and_a_constructor_warn() -> None:
    class Picture:
        @renamed_keywords({"wide": "width"}, since="0.2")
        def __init__(self, width: int) -> None:
            self.width = width

        @deprecated("picture.paint()", instead="picture.draw()", since="0.4")
        def paint(self) -> int:
            """Paint."""
            return self.width

    with pytest.warns(DeprecationWarning, match=r"^wide= of Picture is deprecated since .* 0\.2 and goes in 0\.3"):
        picture = Picture(wide=3)  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match=r"^picture\.paint\(\) .* goes in 0\.5: write picture\.draw\(\) inst"):
        assert picture.paint() == 3


def test_a_name_passed_through_the_package_warns_at_the_line_outside_of_it() -> None:
    """As `cap.widget(old=…)`, which hands its keywords on: Python shows what `__main__` caused, and nothing else."""
    within = Path(attnwidget.__file__).parent / "_widget" / "made_up.py"
    names: dict[str, Callable[..., tuple[int, int]]] = {"draw": made_up()}
    exec(compile("def widget(**keywords):\n    return draw(**keywords)", str(within), "exec"), names)
    with pytest.warns(DeprecationWarning, match="bands") as caught:
        names["widget"](bands=5)
    assert [one.filename for one in caught] == [__file__]


def test_what_is_declared_is_known(declared: list[Deprecation]) -> None:
    made_up()
    declare("attnwidget.Old", instead="attnwidget.New", since="1.4")
    assert [one.name for one in declared] == ["bands= of draw", "dots= of draw", "attnwidget.Old"]


@pytest.mark.parametrize(
    ("since", "version", "outlives"),
    [
        ("0.2", "0.2.0.dev0", False),
        ("0.2", "0.2.9", False),
        ("0.2", "0.3.0.dev0", True),
        ("0.2", "0.10.0", True),
        ("0.9", "0.10.0", True),
        ("0.9", "1.0.0", True),
        ("1.4", "0.9.0", False),
    ],
)
def test_a_name_lives_for_one_minor_version(since: str, version: str, outlives: bool) -> None:
    assert Deprecation("f", "g", since).outlives(version) is outlives


def test_a_version_without_a_minor_number_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'2' is no version: write major and minor number"):
        declare("f", instead="g", since="2")
    assert release("12.34.5rc1") == (12, 34)
