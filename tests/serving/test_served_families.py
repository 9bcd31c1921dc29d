"""The attention of served models is that of the same models in transformers, eager, family by family."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from compared import EXACT, largest_difference
from tiny_models import FAMILIES, IMAGE_FAMILY, image_reference, reference

from attnwidget import Capture

HERE = Path(__file__).parent
FIRST = ("gemma2", "gpt_oss")  # windows and a softcap; sinks and experts
LOOSE = {"gemma3n": 1e-5}  # its sums over parallel streams are in another order there, layer by layer


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(one, marks=() if one in FIRST else pytest.mark.thorough)
        for one in sorted([*FAMILIES, IMAGE_FAMILY], key=lambda one: one not in FIRST)
    ],
)
def test_weights_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    served = subprocess.run(
        [sys.executable, str(HERE / "one_family.py"), family, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(HERE)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert served.returncode == 0, served.stderr[-2000:]
    cap = Capture.load(tmp_path / "served.safetensors")
    text_layers = [name for name in cap.skipped if "vision" not in name]
    assert text_layers == []
    model = (image_reference if family == IMAGE_FAMILY else reference)(tmp_path)
    answers = json.loads((tmp_path / "answers.json").read_text())
    assert cap.requests == [*answers]
    for name, ids in answers.items():
        apart = largest_difference(cap[name], ids, model)
        print(f"{family}, request {name}: {apart:.1e}")
        assert apart <= LOOSE.get(family, EXACT)
