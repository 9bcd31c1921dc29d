"""The numbers of docs/accuracy.md come of its script, and ours are not far from torch's own."""

import itertools
import runpy
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "benchmarks" / "accuracy.py"))
PAGE = (ROOT / "docs" / "accuracy.md").read_text()


@pytest.mark.parametrize("mask", SCRIPT["MASKS"])
@pytest.mark.parametrize("dtype", SCRIPT["DTYPES"])
def test_we_are_as_near_to_float64_as_torch_is(dtype: torch.dtype, mask: str) -> None:
    for spread in SCRIPT["SPREADS"]:
        numbers = SCRIPT["row"](dtype, spread, 256, mask).strip("| ").split(" | ")[3:]
        weights, output, theirs = (float(numbers[i]) for i in (0, 2, 3))
        rounding = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
        assert weights < 16 * rounding * (1 + spread * 4)
        assert output < 8 * theirs + 64 * rounding


def test_the_page_has_a_number_for_each_dtype_scale_length_and_mask() -> None:
    for dtype, part in zip(SCRIPT["DTYPES"], PAGE.split("\n## ")[1:-1], strict=True):
        assert part.startswith(str(dtype).removeprefix("torch."))
        for spread, length, mask in itertools.product(SCRIPT["SPREADS"], SCRIPT["LENGTHS"], SCRIPT["MASKS"]):
            assert f"\n| {spread:g} | {length:,} | {mask} | " in part
