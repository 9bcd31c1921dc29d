"""What the model loses without segments and heads, as the page draws it: numbers by hand, so that each is known.

`test_effects_of_models.py` has those of a real model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from gallery import Gallery
from test_segments_view import story, text

from attnwidget import AttentionWidget

Show = Callable[..., Gallery]

LOST = {"system": 0.06, "doc 1": 0.04, "doc 2": 0.09, "doc 3": 2.38, "doc 4": -0.08, "question": 1.9, "answer": 0.41}
TOKENS: list[list[Any]] = [
    ["nail", 0.8124, 0.0752],
    ["hook", 0.0610, 0.2418],
    ["peg", 0.0212, 0.0907],
    ["chain", 0.0098, 0.0884],
    ["string", 0.0121, 0.0705],
    ["rope", 0.0054, 0.0612],
    ["wall", 0.0190, 0.0498],
    ["ring", 0.0077, 0.0431],
    ["door", 0.0031, 0.0301],
    ["hat", 0.0012, 0.0202],
]


def detail(of: dict[str, Any], lost: float = 2.38, **more: Any) -> dict[str, Any]:
    """One run without something."""
    rest = {"kl": 1.694, "kl_answer": 0.412, "vocabulary": 50_257, "tokens": TOKENS}
    return {
        "of": of,
        "at": 76,
        "token": 17,
        "target": " nail",
        "edit": "zero",
        "before": -0.207784,
        "after": -0.207784 - lost,
        **rest,
        **more,
    }


def with_effects(w: AttentionWidget, heads: list[float | None] | None = None, **more: Any) -> AttentionWidget:
    """A widget that has been told what each segment and each head does."""
    keys = ["first token", *LOST] if "first token" in w.mass["keys"] else w.mass["keys"]
    names = [*w.mass["keys"]]
    assert set(keys) >= set(LOST)
    counts = [w.facts["heads"]] * len(w.facts["layers"])
    lost = heads or [0.24, 0.03, -0.13, 0.0, 0.05, 0.61, None, None]
    done = len(LOST) + sum(one is not None for one in lost)
    effects = {
        "error": None,
        "at": 76,
        "text": " The key hangs on a",
        "target": {"token": 17, "text": " nail"},
        "targets": [
            {"at": 76, "token": 17, "text": " nail", "note": "p .8124"},
            {"at": 76, "token": 18, "text": " hook", "note": "p .0610"},
        ],
        "edit": "zero",
        "edits": [
            {"value": "zero", "name": "without it", "of": "set to zero"},
            {"value": "uniform", "name": "even", "of": "made even"},
        ],
        "unit": "nats",
        "segments": {
            "path": [],
            "names": names,
            "lost": [LOST.get(name, 0.01) for name in names],
            "dropped": "keys dropped in 2 layers",
        },
        "heads": {"counts": counts, "lost": lost},
        "done": done,
        "total": len(LOST) + len(lost),
        "run_seconds": 0.4,
        "seconds_left": 6.0,
        "state": "running",
        **more,
    }
    w.set_trait("effects", effects)
    w.set_trait("effect_details", [detail({"segment": name, "path": []}, LOST.get(name, 0.01)) for name in names])
    return w


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    AttentionWidget.close_all()


def shown_effects(**more: Any) -> AttentionWidget:
    more = {"segment": "doc 3", "layer": 1, "head": 1, "segments_show": "effect", **more}
    return with_effects(story(**more))


WIDTHS = [320, 360, 519, 600, 760, 900, 1250, 1600]
HOSTS = ["plain-dark", "jupyter-contrast", "vscode-contrast-light", "sepia", "jupyter-large"]


@pytest.mark.parametrize(
    ("width", "host"),
    [*((width, "plain-light") for width in WIDTHS), *((900, host) for host in HOSTS), (360, HOSTS[0])],
)
def test_nothing_is_amiss_at_any_width_and_in_any_theme(gallery: Show, width: int, host: str) -> None:
    shown = gallery(shown_effects(), host=host, width=width, height=2400)
    shown.wait_for_lines()
    shown.screenshot(f"effects-{width}-{host}")
    assert "Did it matter that the answer looked there" in text(shown, ".aw-seg-heading")
    shown.check()
