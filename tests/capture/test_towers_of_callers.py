"""The tower of a module that calls is known from the modules inside it, and is not worked out again for each layer."""

from __future__ import annotations

import pytest
import torch
from captured import GPT2, SEQUENCES, build

from attnwidget import capture
from attnwidget._capture.modules.towers import Towers

IDS = torch.randint(3, 50, (2, 12), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", ["GPT-2", "BART"])
def test_no_layer_is_added_to_the_towers_while_the_model_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[str] = []

    def adding(towers: Towers, name: str) -> Towers:
        added.append(name)
        return Towers([*towers.given, name])

    monkeypatch.setattr(Towers, "with_name", adding)
    with torch.no_grad():
        cap = capture(build(GPT2 if name == "GPT-2" else SEQUENCES[name], "sdpa")).run(IDS)
    assert added == []
    assert cap.towers == (("transformer",) if name == "GPT-2" else ("encoder", "decoder"))
    assert cap.tokens is not None


def test_a_module_is_of_the_tower_of_an_attention_inside_it() -> None:
    towers = Towers(["a.h.0.attn.c_attn", "a.h.1.attn.c_attn", "b.h.0.core.attn", "b.h.1.core.attn"])
    assert towers.given_inside("a.h.1.attn") == "a.h.1.attn.c_attn"
    assert towers.given_inside("a.h.1.attn #2") == "a.h.1.attn.c_attn"
    assert [towers.given_inside(name) for name in ("a.h.1", "a", "b.h.0.core", "b.h.0.core.attn")] == [None] * 4
