"""Changes of scores that every single row hides in its rounding, found over all rows of a call together.

The residual of an output is projected on what a change of the scores would do to it: another scale, a softcap, a bias
by distance, a first key that is hidden. Rounding moves the sum of these projections by chance; such a change moves it
in every row alike. Half types only: their scores are rounded so far that single rows can hide a change.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .noise import SHARE, SIGMAS, UNIFORM, UNIT, Precision

COARSE = UNIT[torch.float16]  # unit roundoff from which on rows are looked at together
TOGETHER = 3.0  # standard deviations of the sum of all rows; then rounding is tried out
CHANCE = 4.0  # the sum is at least so many times that of the roundings tried out
FEW = 3  # rows alone say nothing
LOST = 4.0  # variance of the scores of a row from which on rounding picks its keys, so that it tells nothing
SCALES = 2.0  # unit roundoffs by which a scale can be off in every row


@dataclass(frozen=True)
class RowsTogether:
    """Rows of one call, computed again, in float32.

    Attributes:
        precision: of the call.
        dtype: of its numbers.
        queries: (…, rows, D).
        keys, values: (…, K, D) and (…, K, Dv).
        scaled, scores: the scaled scores, and those after softcap, biases and masks, (…, rows, K).
        errors: `score_errors` of them.
        weights: of the values, (…, rows, K).
        output: the exact output, (…, rows, Dv).
        residual: the call's own output less it; 0 in rows that are not compared.
        noise: `output_noise` of it.
        distance: from each query to each key, (rows, K).
        factor: of the products.
    """

    precision: Precision
    dtype: torch.dtype
    queries: Tensor
    keys: Tensor
    values: Tensor
    scaled: Tensor
    scores: Tensor
    errors: Tensor
    weights: Tensor
    output: Tensor
    residual: Tensor
    noise: Tensor
    distance: Tensor
    factor: float

    def changes(self) -> Tensor:
        """Return changes of the scores that a model may hide, up to a factor, (changes, …, rows, K)."""
        largest = self.scaled.abs().amax().clamp_min(1e-30)
        relative = self.scaled / largest
        first = torch.zeros_like(relative)
        first[..., 0] = 1
        far = (self.distance / self.distance.amax().clamp_min(1)).expand_as(relative)
        return torch.stack([relative, relative**3, far, first])

    def moved(self, change: Tensor) -> Tensor:
        """Return what a small change of the scores does to the output, (…, rows, Dv)."""
        moved = self.weights * change
        return moved @ self.values - self.output * moved.sum(-1, keepdim=True)

    def alike(self) -> Tensor:
        """Return how many rows share the number that their output is rounded to, on average, a tensor ()."""
        numbers = self.output.to(self.dtype).float().movedim(1, 0).flatten(1, 2).sort(dim=1).values
        distinct = (numbers.diff(dim=1) != 0).sum(1) + 1
        return (numbers.shape[1] / distinct).mean()

    def rounded_outputs(self) -> list[Tensor]:
        """Return outputs with the roundings of several kernels, in which what is alike rounds alike."""
        kept, plain = self.dtype, self.values.dtype
        products = (self.scaled / self.factor).to(kept).to(plain) if self.factor else self.scaled
        once = (products * self.factor).to(kept).to(plain) - self.scaled
        earlier = (self.queries * self.factor).to(kept).to(plain) @ self.keys.mT - self.scaled
        after = self.scores + once
        found = []
        for scores in (after.to(kept).to(plain), self.scores + earlier, after + earlier):
            weights = scores.softmax(-1).nan_to_num() * self.weights.sum(-1, keepdim=True)
            found.append((weights.to(kept).to(plain) @ self.values).to(kept).to(plain))
        return found


def follow_a_change(rows: RowsTogether) -> Tensor:
    """Return whether the residuals follow one of the changes farther than rounding does, a tensor ()."""
    one, SD, kept = rows, TOGETHER * UNIFORM, rows.precision.kept
    spread = one.errors / (SHARE * SIGMAS)
    is_lost = (one.weights * spread**2).sum(-1, keepdim=True) >= LOST
    inverse = (one.noise / one.noise.amax().clamp_min(1e-30)).clamp_min(1e-6) ** -2 * ~is_lost
    along = one.moved(one.changes()) * inverse  # (changes, …, rows, Dv)
    along = along / along.abs().amax((1, 2, 3, 4), keepdim=True).clamp_min(1e-30)
    of_values = along @ one.values.mT
    pull = one.weights * (of_values - (one.output * along).sum(-1, keepdim=True))
    variance = (
        _sum((TOGETHER * pull * spread) ** 2)
        + 2 * (SD * one.precision.weights) ** 2 * _sum((one.weights * of_values) ** 2)
        + 2 * (SD * kept) ** 2 * _sum((one.output * along) ** 2)
        + (SD * kept * one.factor) ** 2 * _sum(((pull.mT @ one.queries) * one.keys) ** 2)
    )
    by_scale = SCALES * kept * _sum(along * one.moved(one.scaled)).abs()
    of_rows = (one.residual * along).sum(-1)
    largest = of_rows.abs().flatten(1).sort(dim=1, descending=True).values[:, :FEW].sum(1)
    found = _sum(of_rows).abs() - largest
    suspect = found > (one.alike() * variance).sqrt() + by_scale + one.precision.least * _sum(of_values.abs())
    if not suspect.any():  # nearly always
        return suspect.any()
    tried = [_sum((x - one.output) * along).abs() for x in one.rounded_outputs()]
    return (suspect & (found > CHANCE * torch.stack(tried).amax(0))).any()


def _sum(x: Tensor) -> Tensor:
    """Return the sums of all axes but the first."""
    return x.flatten(1).sum(1)
