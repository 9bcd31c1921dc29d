"""The effect of an edit on a model's next token: log-probabilities, divergences, and the tokens that change most."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

AT_ONCE = 1 << 22  # numbers in float64 at a time
MOVED = 10  # tokens in the report


class MovedToken(NamedTuple):
    """A token whose probability an edit has changed.

    token: its id, or the number of its class.
    text: its text, from the tokenizer; its number if there is none.
    before, after: its probability.

    >>> import torch
    >>> from attnwidget import effect
    >>> class Tiny(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.embed, self.attend = torch.nn.Embedding(5, 8), torch.nn.MultiheadAttention(8, 2, batch_first=True)
    ...     def forward(self, ids):
    ...         x = self.embed(ids)
    ...         return (x + self.attend(x, x, x, need_weights=False)[0]) @ self.embed.weight.T
    >>> found = effect(Tiny().eval(), torch.tensor([[0, 3, 1]]), {(0, 1): "zero"}, target=2)
    >>> moved = found.tokens[0]
    >>> round(moved.change, 6) == round(moved.after - moved.before, 6)
    True
    """

    token: int
    text: str
    before: float
    after: float

    @property
    def change(self) -> float:
        """Return after − before."""
        return self.after - self.before


@dataclass(frozen=True, eq=False)
class Effect:
    """The effect of edits on one token's log-probability, or on another number of a model's output.

    edits: the edits, in words.
    target: the token's text, or the name of the function that gives the number.
    token: its id; None for a function.
    at: the position of the output, from 0; None for a function.
    before, after: its log-probability there in nats, without and with the edits; or the function's number.
    kl: (n,) the Kullback-Leibler divergence of the next token's distribution with the edits from that without, in
        nats, at each position of the sample; None for a function.
    tokens: the ten tokens whose probability changes most there, the largest change first.
    text: the last words up to the position; "" if unknown.

    >>> import torch
    >>> from attnwidget import effect
    >>> class Tiny(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.embed, self.attend = torch.nn.Embedding(5, 8), torch.nn.MultiheadAttention(8, 2, batch_first=True)
    ...     def forward(self, ids):
    ...         x = self.embed(ids)
    ...         return (x + self.attend(x, x, x, need_weights=False)[0]) @ self.embed.weight.T
    >>> found = effect(Tiny().eval(), torch.tensor([[0, 3, 1]]), {(0, 1): "zero"}, target=2)
    >>> found.target, found.at, found.before.__class__.__name__
    ('2', 2, 'float')
    """

    edits: str
    target: str
    token: int | None
    at: int | None
    before: float
    after: float
    kl: Tensor | None = field(default=None, repr=False)
    tokens: tuple[MovedToken, ...] = ()
    text: str = ""

    @property
    def change(self) -> float:
        """Return after − before: negative if the edits make the token less likely."""
        return self.after - self.before

    def records(self) -> list[dict[str, Any]]:
        """Return the tokens that change most as records for `pandas.DataFrame`: probabilities and change."""
        return [{**one._asdict(), "change": one.change} for one in self.tokens]

    def __repr__(self) -> str:
        where = "" if self.at is None else f" at position {self.at}" + (f", after {self.text!r}" if self.text else "")
        what = "log-probability " if self.token is not None else ""
        unit = " nats" if self.token is not None else ""
        lines = [
            f"Effect of {self.edits} on {self.target!r}{where}:",
            f"  {what}{fixed(self.before)} → {fixed(self.after)}, change {fixed(self.change, signed=True)}{unit}",
        ]
        if self.kl is not None and self.at is not None:
            here = float(self.kl[self.at])
            lines.append(f"  KL {here:.4f} here, {float(self.kl.nanmean()):.4f} over {len(self.kl):,} positions")
        width = max((len(repr(one.text)) for one in self.tokens), default=0)
        lines += [f"  {one.text!r:<{width}}  {_share(one.before)} → {_share(one.after)}" for one in self.tokens]
        return "\n".join(lines)


def fixed(x: float, *, signed: bool = False) -> str:
    """Return a number with four decimals; without a sign if all decimals are 0.

    >>> fixed(0.25), fixed(-0.25), fixed(-0.00001), fixed(0.25, signed=True), fixed(float("-inf"))
    ('0.2500', '-0.2500', '0.0000', '+0.2500', '-inf')
    """
    text = f"{x:+.4f}" if signed else f"{x:.4f}"
    return text if float(text) else text.lstrip("+-")


def _share(x: float) -> str:
    return f"{x:.4f}" if x >= 0.01 or x == 0 else f"{x:.2e}"


def log_probabilities(logits: Tensor) -> Tensor:
    """Return the log-probabilities of a row of logits (V,), in float64."""
    return logits.to(torch.float64).log_softmax(-1)


def divergences(before: Tensor, after: Tensor) -> Tensor:
    """Compute KL(before ‖ after) of each row of logits: Σ p · (log p − log q), Kullback and Leibler 1951, eq. 2.4.

    Args:
        before, after: (n, V).

    Returns:
        (n,), float64, in nats.

    >>> divergences(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 0.0]]))
    tensor([0.], dtype=torch.float64)
    """
    return torch.cat([_divergence(p, q) for p, q in _parts(before, after)]) if len(before) else before.new_zeros(0)


def _divergence(before: Tensor, after: Tensor) -> Tensor:
    p, q = log_probabilities(before), log_probabilities(after)
    share = p.exp()
    return (
        torch.where(share > 0, share * (p - q), 0.0).sum(-1).clamp_min(0.0)
    )  # NaN stays; rounding must not be negative


def _parts(before: Tensor, after: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    rows = max(1, AT_ONCE // max(1, before.shape[-1]))
    return zip(before.split(rows), after.split(rows), strict=True)


def most_moved(before: Tensor, after: Tensor, count: int = MOVED) -> list[int]:
    """Return the tokens whose probability changes most between two rows of log-probabilities, largest first."""
    change = (after.exp() - before.exp()).abs().nan_to_num(nan=0.0)
    return [int(one) for one in change.topk(min(count, len(change))).indices]


def most_likely(before: Tensor, after: Tensor, first: int, count: int = MOVED) -> list[int]:
    """Return `first` and the tokens that are most probable in either of two rows of log-probabilities."""
    larger = torch.maximum(before, after).nan_to_num(nan=-torch.inf)
    found = [int(one) for one in larger.topk(min(count, len(larger))).indices]
    return [first, *(one for one in found if one != first)][:count]
