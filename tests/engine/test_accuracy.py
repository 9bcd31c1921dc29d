"""Our numbers are not far from torch's own, by the script whose numbers docs/accuracy.md shows."""

import runpy
from pathlib import Path

import pytest
import torch

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "accuracy.py"))


@pytest.mark.parametrize("mask", SCRIPT["MASKS"])
@pytest.mark.parametrize("dtype", SCRIPT["DTYPES"])
def test_we_are_as_near_to_float64_as_torch_is(dtype: torch.dtype, mask: str) -> None:
    for spread in SCRIPT["SPREADS"]:
        found = SCRIPT["errors"](dtype, spread, 256, mask)
        rounding = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
        assert found["weights"] < 16 * rounding * (1 + spread * 4)
        assert found["output"] < 8 * found["output of torch"] + 64 * rounding
