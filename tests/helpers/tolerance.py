"""How far apart two computations of the same numbers may be, on any machine: the one place where tests get bounds.

Which last bits a product, a sum or an exp has depends on the instruction set, the number of threads and the version of
a library: they add the terms in another order, round a · b + c once or twice, or approximate exp by another polynomial.
A bound that was only seen to be enough is therefore one machine's luck. The bounds here follow from three things:

- the dtype: `eps`, twice the largest relative error u of one rounding, and so what rounding puts between two results
  that each have an error of u;
- the length of sums: n roundings in a row are off by n · u at worst, and by 6 · √n · u with a probability of
  1 − 2 · exp(−6² / 2), all but one case in 30 million (Higham & Mary 2019, *A new approach to probabilistic rounding
  error analysis*, theorem 2.4; not if equal numbers are added one by one, which are all rounded alike);
- the size of what is added, since rounding errors are relative to that and not to what is left after cancellation.

Where another program computes the same, such as torch's fused kernel or a model's eager attention, its own error to
float64 is the measure: `assert_as_near`.

Numbers that the same thread computes twice by the same kernel are equal bit by bit, and tests compare them by
`torch.equal`: a model's output with and without capture, a result that was kept, a file that was read back.
Numbers that another thread or process computes are not: `assert_same_overview`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

import pytest
import torch
from carrying import largest
from torch import Tensor

from attnwidget._engine.overview import Overview
from attnwidget._engine.sources import CARRIED
from attnwidget.attention import Attention

OTHERS = 16  # roundings that no sum counts, at most: scale, softcap, bias, two exp of 2 ulps, division, on both sides
FEW = 4  # ulps: of the numbers themselves, beside the reference's own error


class Bound(TypedDict):
    """Keywords of torch's `assert_close` and NumPy's `assert_allclose`: |a − b| ≤ atol + rtol · |b|."""

    rtol: float
    atol: float


def eps(dtype: torch.dtype) -> float:
    """Return the distance of 1 to the next number, of the dtype that attnwidget computes in: half types in float32."""
    return torch.finfo(torch.promote_types(dtype, torch.float32)).eps


def roundings(terms: int) -> float:
    """Return how many times u a sum or product of `terms` numbers may be off, relative to the sum of their sizes."""
    return min(terms, 6 * math.sqrt(terms))


def sums(terms: int, size: float = 1.0, dtype: torch.dtype = torch.float32) -> Bound:
    """Return the bound for two sums of the same terms, computed in another order or by other instructions.

    Args:
        terms: how many numbers are added, at every step together.
        size: the largest sum of their absolute values; 0 where all have one sign, and the sum is as large itself.
        dtype: of the computation; half types count as float32.
    """
    relative = (roundings(terms) + OTHERS) * eps(dtype)
    return {"rtol": relative, "atol": relative * size}


def exponentials(spread: float, dtype: torch.dtype = torch.float32) -> Bound:
    """Return the bound for two softmaxes of the very same scores, which are at most `spread` apart.

    exp(x) is computed as 2 ** (x · log₂ e), and rounding the exponent, or the constant, changes the result by |x| · u.
    torch adds a row in pairs, so that the length of the sum hardly counts.
    """
    return {"rtol": (spread + OTHERS) * eps(dtype), "atol": torch.finfo(torch.promote_types(dtype, torch.float32)).tiny}


def together(*bounds: Bound, size: float = 1.0) -> Bound:
    """Return the bound for a sum or difference of numbers of at most `size` that have these bounds themselves."""
    return {"rtol": 0, "atol": sum(bound["atol"] + bound["rtol"] * size for bound in bounds)}


def approx(value: Any, bound: Bound) -> Any:
    """Return what `pytest.approx` makes of a number and a bound."""
    return pytest.approx(value, rel=bound["rtol"], abs=bound["atol"])


@dataclass(frozen=True)
class Rounding:
    """What rounding may change in the numbers of one attention, by stage, between any two ways to compute them.

    product: the largest possible Σ |q_d · k_d|. score: the same after the scale and with all that is added to it.
    features, keys: the lengths of the sums. value: the largest number of a value, and length that of a whole value.
    """

    product: float
    score: float
    features: int
    keys: int
    value: float
    length: float
    dtype: torch.dtype
    carried: Mapping[str, float] = field(default_factory=dict)  # by stage, the most that a weight of 1 carries

    @property
    def scores(self) -> Bound:
        return {"rtol": 0, "atol": self._of_scores(self.product)}

    @property
    def masked(self) -> Bound:
        """Of all stages from `scaled` to `masked`: neither tanh nor a bias makes an error larger."""
        return {"rtol": 0, "atol": self._of_scores(self.score)}

    @property
    def weights(self) -> Bound:
        """Relative: exp makes of an absolute error of a score a relative one of the weight, twice, since the sum that
        it is divided by has the same. What is below the normal range may be 0."""
        relative = math.expm1(2 * self._of_scores(self.score)) + (roundings(self.keys) + OTHERS) * eps(self.dtype)
        return {"rtol": relative, "atol": torch.finfo(torch.promote_types(self.dtype, torch.float32)).tiny}

    @property
    def contribution(self) -> Bound:
        """A weight times the length of a value, whose at most 2¹⁰ squares are a sum."""
        return {
            "rtol": self.weights["rtol"] + roundings(1024) * eps(self.dtype),
            "atol": self.weights["atol"] * max(1.0, self.length),
        }

    @property
    def normalizer(self) -> Bound:
        """The logarithm of the sum: its relative error becomes an absolute one, beside that of the largest score."""
        largest = self.score + math.log(self.keys)
        return {"rtol": 0, "atol": self.weights["rtol"] + self._of_scores(largest)}

    @property
    def output(self) -> Bound:
        """Values times weights, which sum to 1: relative to the largest value, for they may cancel."""
        relative = self.weights["rtol"] + (roundings(self.keys) + OTHERS) * eps(self.dtype)
        return {"rtol": 0, "atol": relative * self.value}

    @property
    def entropy(self) -> Bound:
        """−Σ p · log₂ p: an error of p by a part r changes −p · log₂ p by r · p · (log₂ 1/p + log₂ e)."""
        bits = math.log2(self.keys) + math.log2(math.e)
        return {"rtol": 0, "atol": bits * (self.weights["rtol"] + roundings(self.keys) * eps(self.dtype))}

    def __getitem__(self, stage: str) -> Bound:
        if stage in self.carried:
            relative = self.weights["rtol"] + (roundings(1024) + OTHERS) * eps(self.dtype)  # of sums that may cancel
            return {"rtol": 0, "atol": relative * self.carried[stage]}
        names = {"scaled": "masked", "capped": "masked"}
        found: Bound = getattr(self, names.get(stage, stage))
        return found

    def pooled(self, stage: str, cells: int) -> Bound:
        """Of the largest or the mean of up to so many cells of a stage."""
        bound, mean = self[stage], roundings(cells) * eps(self.dtype)
        sizes = {"scores": self.product, "weights": 0.0, "contribution": 0.0, **self.carried}
        size = sizes.get(stage, self.score)
        return {"rtol": bound["rtol"] + mean, "atol": bound["atol"] + mean * size}

    def _of_scores(self, size: float) -> float:
        return (roundings(self.features) + OTHERS) * eps(self.dtype) * size


def rounding(att: Attention, *, added: float = 0.0) -> Rounding:
    """Return what rounding may change in an attention's numbers.

    Args:
        att: of q and k, of any shape: no product of a query and a key is larger than that of their lengths.
        added: the largest number that a bias or a float mask adds to a score, in absolute value.
    """
    assert att.q is not None
    assert att.k is not None
    product = _longest(att.q) * _longest(att.k)
    v = torch.zeros(1) if att.v is None else att.v.detach().abs().nan_to_num(0, 0, 0)
    score = product * abs(att.scale) + added
    known = CARRIED if att.carries is not None and {*CARRIED} <= {*att.stages} else ()
    carried = {stage: largest(att, stage) for stage in known}
    return Rounding(product, score, att.shape.D, att.shape.K, float(v.max()), _longest(v), att.dtype, carried)


def assert_same_overview(found: Overview, expected: Overview, att: Attention, stage: str = "weights") -> None:
    """Check that two threads or processes computed the same overview of an attention.

    Last bits may differ: torch splits a product by the number of threads that its caller may use.
    """
    cells = found.query_bin * found.key_bin
    if att.q is None:
        bound = sums(cells, float(expected.values.nan_to_num(0, 0, 0).abs().max()))
    else:
        bound = rounding(att).pooled(stage, cells)
    torch.testing.assert_close(found.values, expected.values, equal_nan=True, **bound)
    assert torch.equal(found.allowed, expected.allowed)
    assert (found.query_bin, found.key_bin) == (expected.query_bin, expected.key_bin)


def _longest(x: Tensor) -> float:
    return float(x.detach().double().norm(dim=-1).nan_to_num(0, 0, 0).max())


def assert_as_near(ours: Tensor, theirs: Tensor, exact: Tensor, what: str = "", *, each: bool = False) -> None:
    """Check that ours is at most twice as far from float64 as another program's result, and a few ulps.

    Twice, because two programs that are equally good err in different places by different amounts; the largest error of
    one is not twice that of the other. A few ulps, because theirs may by chance be right to the last bit.

    Args:
        ours, theirs: the same numbers in one dtype, by two programs.
        exact: the same in float64.
        what: what they are, for the message.
        each: errors are relative to each number, and absolute where it is 0; else relative to the largest.
    """
    mine, most = nearness(ours, theirs, exact, each=each)
    assert mine <= most, f"{what} {mine:.2g} from float64, where at most {most:.2g} is rounding"


def nearness(ours: Tensor, theirs: Tensor, exact: Tensor, *, each: bool = False) -> tuple[float, float]:
    """Return how far ours is from float64, and how far it may be: see `assert_as_near`."""
    assert ours.shape == theirs.shape == exact.shape
    exact = exact.detach().double()
    size = exact.abs().masked_fill(exact == 0, 1) if each else exact.abs().max()
    mine, other = (((x.detach().double() - exact) / size).abs().max().item() for x in (ours, theirs))
    return mine, 2 * other + FEW * torch.finfo(theirs.dtype).eps
