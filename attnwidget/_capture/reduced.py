"""keep="overview": each call is reduced at once to pooled weights and numbers of each row; q, k and v are dropped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from .._analysis.gradients import Gradients
from .._analysis.head_sampling import HeadSampler
from .._analysis.metrics import NAMES
from .._engine.base import Shape
from .._engine.kept_levels import KeptLevels, bin_width
from .._engine.sources import STAGES
from .._rules.options import AttentionOptions
from .._rules.row_spans import Spans, simplify
from .._utils.validation import as_choice
from ..attention import Attention
from ..masks import Mask, mask_from_json, mask_to_json
from .records import (
    CONTRADICTED,
    UNVERIFIED,
    ComparedOutput,
    Continuation,
    ObservedCall,
    TensorKeeper,
    Unreadable,
    compare_output,
)

GROWS = (
    "only its first call is kept: keep='overview' drops the keys that a later call would go on with; capture the whole "
    "text in one forward pass, model(text), or with keep='tensors'"
)


class ReducedAttention(Attention):
    """An attention of which overviews, log-normalizers and metrics were kept; of a short text all weights.

    What can be asked: `overview` and all pictures in whole bins, `metrics`, `log_normalizer`, and which cells are
    allowed; whatever needs q, k or v raises `OnlyOverviewError`, which says so.
    """

    source: KeptLevels

    def check_stage(self, stage: str, *also: str) -> None:
        """Raise `OnlyOverviewError` unless the stage is "weights"."""
        if as_choice(stage, (*STAGES, *also), "stage") in STAGES and stage != "weights":
            raise self.source.refusal(f"the stage {stage!r} is")

    def log_normalizer(self, batch: int = 0, head: int = 0) -> Tensor:
        """Return log Σ exp(masked) over the keys for each query, (Q,): see `Attention.log_normalizer`."""
        at = self.find(batch, head)
        return self.source.log_normalizers[at].clone()

    def output(self, batch: int = 0, head: int = 0) -> NoReturn:
        """Raise `OnlyOverviewError`: there is no v."""
        raise self.source.refusal("the output is")

    def gradients(self, grad_output: Any = None, *, batch: int = 0, head: int = 0) -> Gradients:
        """Raise `OnlyOverviewError`: there are no q, k and v."""
        raise self.source.refusal("gradients are")

    def what_if(self, changes: Mapping[str, Any]) -> Attention:
        """Raise `OnlyOverviewError` for any change."""
        if changes:
            raise self.source.refusal("what it would be under other rules is")
        return self


def reduced(att: Attention, device: torch.device | None) -> ReducedAttention:
    """Compute of an attention what is kept of it.

    Args:
        att: of q and k.
        device: where to keep it; None: where q is.
    """
    B, H, _, Q, K, *_ = att.shape
    bins = (bin_width(Q), bin_width(K))
    samplers = [HeadSampler(att, b, range(H), range(Q), bins=bins) for b in range(B)]
    for sampler in samplers:
        for _ in sampler.steps():
            pass
    sums, counts = (torch.stack(parts) for parts in zip(*(one.means.state for one in samplers), strict=True))
    allowed = torch.stack([sampler.allowed for sampler in samplers])
    for axis in (0, 1):
        one = allowed.narrow(axis, 0, 1)
        allowed = one.clone() if torch.equal(one.expand_as(allowed), allowed) else allowed
    normalizers = torch.stack([torch.stack([att.log_normalizer(b, h) for h in range(H)]) for b in range(B)])
    values, where = torch.stack([one.values for one in samplers]), device or att.device
    levels = KeptLevels(values.to(where), allowed.to(where), normalizers.to(where), sums, counts, bins)
    return reduced_attention(levels, (Q, K), att.options.mask, att.is_causal)


def reduced_attention(levels: KeptLevels, sizes: tuple[int, int], mask: Any, is_causal: bool) -> ReducedAttention:
    """Return the attention of what was kept.

    Args:
        levels: what was kept.
        sizes: Q and K.
        mask: of the attention; kept where it is small.
        is_causal: whether it is.
    """
    options = AttentionOptions(mask=mask if isinstance(mask, Mask) else None, is_causal=is_causal)
    if levels.is_whole:
        options = AttentionOptions(mask=None if bool(levels.allowed.all()) else levels.allowed)
    B, H = levels.values.shape[:2]
    return ReducedAttention.of(levels, None, Shape(B, H, H, *sizes, None, None), options)


class ReducedRecord:
    """One attention call of a model, reduced: in the place of a `Record`."""

    def __init__(self, name: str, call: ObservedCall, keeper: TensorKeeper, heads: Sequence[int] | None = None) -> None:
        self.name, self.cross = name, bool(call.cross)
        self._like = (*call.k.shape[:2], call.k.shape[3])
        self._compared: ComparedOutput | None = None
        (B, _, Q, _), K = call.q.shape, call.k.shape[2]
        self._keys = K  # of its call, or of the last that would have gone on with it
        mask: Any = keeper.mask(call.mask)
        mask = simplify(mask, B, Q, K) if isinstance(mask, Spans) else mask
        how: dict[str, Any] = {name: getattr(call, name) for name in ("is_causal", "scale", "softcap", "sinks", "bias")}
        with torch._C.DisableTorchFunction():  # what is computed here is none of the model's steps
            att = Attention(call.q, call.k, mask=mask, **how)
            self.attention = reduced(att, keeper.device).as_part(heads, None)

    @staticmethod
    def needed(call: ObservedCall, keeper: TensorKeeper, how: Continuation | None) -> int:
        """Return how many bytes a call will take, at most."""
        (B, H, Q, _), K = call.q.shape, call.k.shape[2]
        return B * H * (-(-Q // bin_width(Q)) * -(-K // bin_width(K)) * 5 + 4 * Q)

    @property
    def queries(self) -> int:
        """Return how many queries its call had."""
        return self.attention.shape.Q

    @property
    def size(self) -> int:
        """Return how many bytes it takes."""
        return sum(x.nbytes for x in self.attention.source.tensors().values())

    nbytes = size

    def tensors(self) -> dict[str, Tensor]:
        """Return what is kept."""
        return self.attention.source.tensors()

    def continued_by(self, call: ObservedCall) -> None:
        """Raise Unreadable for a call that goes on with this one's keys, which are not there any more."""
        past = call.k.shape[2] - call.q.shape[2]
        like = (*call.k.shape[:2], call.k.shape[3])
        if not self.cross and 0 < past <= self._keys and like == self._like:
            self._keys = call.k.shape[2]
            raise Unreadable(GROWS)

    def extend(self, call: ObservedCall, how: Continuation) -> NoReturn:
        """Raise Unreadable: nothing continues this."""
        raise Unreadable(GROWS)

    def settle(self) -> None:
        """Do nothing: all queries are in it."""

    def add_output(self, call: ObservedCall, first: int, output: Any) -> None:
        """Verify the call by its output."""
        self._compared = compare_output(call, output)

    def fault(self) -> str | None:
        """Return why this record cannot be shown: it does not give the output of its call; None if it does."""
        if self._compared is None:
            return UNVERIFIED
        return CONTRADICTED if bool(self._compared.differs) else None


# In a file.


def entry_of(att: ReducedAttention, add: Callable[[Tensor], str]) -> dict[str, Any]:
    """Return what `attention_from` makes the attention of again, as JSON; `add` puts a tensor into the file."""
    kept, mask = att.source, att.options.mask
    tensors = {name: add(x) for name, x in kept.tensors().items()}
    told = mask_to_json(mask, add) if isinstance(mask, Mask) else None
    sizes = [att.shape.Q, att.shape.K]
    return {**tensors, "bins": kept.bins, "sizes": sizes, "mask": told, "is_causal": att.is_causal, "metrics": NAMES}


def attention_from(entry: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> ReducedAttention:
    """Return the attention of which `entry_of` returned an entry."""
    parts = [tensors[entry[name]] for name in ("values", "allowed", "log_normalizers")]
    found = [_with_all_metrics(tensors[entry[name]], entry["metrics"]) for name in ("metric_sums", "metric_counts")]
    rows, columns = entry["bins"]
    mask = None if entry["mask"] is None else mask_from_json(entry["mask"], tensors)
    queries, keys = entry["sizes"]
    levels = KeptLevels(parts[0], parts[1], parts[2], found[0], found[1], (rows, columns))
    return reduced_attention(levels, (queries, keys), mask, bool(entry["is_causal"]))


def _with_all_metrics(x: Tensor, names: Sequence[str]) -> Tensor:
    """Return numbers by metric, (B, metrics, H), in today's order; 0 for those that the file does not have."""
    found = x.new_zeros(len(x), len(NAMES), x.shape[2])
    for i, name in enumerate(names):
        if name in NAMES:
            found[:, NAMES.index(name)] = x[:, i]
    return found
