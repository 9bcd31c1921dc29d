"""keep="overview": each call is reduced at once to pooled weights and numbers of each row; q, k and v are dropped."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..._analysis.gradients import Gradients
from ..._analysis.head_sampling import HeadSampler
from ..._analysis.metrics import MEASURED, MetricMeans
from ..._analysis.sampled_parts import SampledPart, sampler_tasks
from ..._engine.base import Shape, witnessed
from ..._engine.kept_levels import KeptLevels, OnlyOverviewError, bin_width
from ..._engine.sources import STAGES
from ..._parallel.task import Task
from ..._rules.options import AttentionOptions
from ..._rules.row_spans import Spans, simplify
from ..._utils.validation import as_choice
from ...attention import Attention
from ...masks import Mask, mask_from_json, mask_to_json
from ..call.call_text import RecordText
from ..call.lineage import ChosenRows, ModelCall
from ..call.observed_call import ObservedCall, Unreadable
from ..call.query_offset import keys_before
from ..verify.batched import OutputCheck
from ..verify.witness import Witness
from .decode_steps import RepeatedStep
from .kept_tensors import TensorKeeper
from .record import UNVERIFIED, Continuation, OutputCallback, Record
from .shown import why_not_shown

GROWS = (
    "only its first call is kept: keep='overview' drops the keys that a later call needs; capture the whole "
    "text in one forward pass, model(text), or with keep='tensors'"
)


class ReducedAttention(Attention):
    """An attention of kept overviews, log-normalizers and metrics; a short text keeps all weights.

    Available: `overview` and all pictures in whole bins, `metrics`, `log_normalizer`, and which cells are allowed.
    Everything that needs q, k or v raises `OnlyOverviewError`, which says so.
    """

    source: KeptLevels

    def check_stage(self, stage: str, *also: str) -> None:
        """Raise `OnlyOverviewError` unless the stage is "weights"."""
        if as_choice(stage, (*STAGES, *also), "stage") in STAGES and stage != "weights":
            raise self.source.refusal(f"the stage {stage!r} is")

    def log_normalizer(self, batch: int = 0, head: int = 0) -> Tensor:
        """Return log Σ exp(masked) over the keys for each query, (Q,): see `Attention.log_normalizer`."""
        found = self.source.log_normalizers[self.find(batch, head)].clone()
        if len(found) and bool(found.isnan().all()):
            raise OnlyOverviewError("its weights came without scores, so it has no log-normalizer")
        return found

    def output(self, batch: int = 0, head: int = 0) -> NoReturn:
        """Raise `OnlyOverviewError`: there is no v."""
        raise self.source.refusal("the output is")

    def gradients(self, grad_output: Any = None, *, batch: int = 0, head: int = 0) -> Gradients:
        """Raise `OnlyOverviewError`: there are no q, k and v."""
        raise self.source.refusal("gradients are")

    def what_if(self, changes: Mapping[str, Any]) -> Attention:
        """Raise `OnlyOverviewError` for any change."""
        if changes:
            raise self.source.refusal("attention under other rules is")
        return self


def reduced(att: Attention, device: torch.device | None, ids: Tensor | None = None) -> ReducedAttention:
    """Reduce an attention.

    Args:
        att: of q and k.
        device: where to keep the results; None: where q is.
        ids: the token of each position, (B, K), if known.
    """
    B, H, _, Q, K, *_ = att.shape
    bins = (bin_width(Q), bin_width(K))
    of_sample = [None] * B if ids is None else [*ids.to(att.device)]
    samplers = [HeadSampler(att, b, range(H), range(Q), bins=bins, ids=of_sample[b]) for b in range(B)]
    for sampler in samplers:
        for _ in sampler.steps():
            pass
    sums, counts = (torch.stack(parts) for parts in zip(*(one.means.state for one in samplers), strict=True))
    allowed = _shared(torch.stack([sampler.allowed for sampler in samplers]))
    if att.source.gives == "weights":
        normalizers = no_log_normalizers(att)
    else:
        normalizers = torch.stack([torch.stack([att.log_normalizer(b, h) for h in range(H)]) for b in range(B)])
    values, where = torch.stack([one.values for one in samplers]), device or att.device
    sinks = None if att.sinks is None else att.sinks.detach().clone().to(where)
    levels = KeptLevels(values.to(where), allowed.to(where), normalizers.to(where), sums, counts, bins, sinks)
    return reduced_attention(levels, (Q, K), att.options.mask, att.is_causal)


def no_log_normalizers(att: Attention) -> Tensor:
    """Return the log-normalizers of weights without scores, NaN, (B, H, Q)."""
    return torch.full((att.shape.B, att.shape.H, att.shape.Q), torch.nan, dtype=att.result_dtype, device=att.device)


CELLS_OF_A_TASK = 1 << 28  # always the same, so that sums are too


def reducing_tasks(att: Attention, name: str, ids: Tensor | None) -> list[Task]:
    """Return the tasks whose results `reduced_by_tasks` merges."""
    bins = bin_width(att.shape.Q), bin_width(att.shape.K)
    how: dict[str, Any] = {"name": name, "bins": bins, "with_normalizers": True}
    found: list[Task] = []
    for batch in range(att.shape.B):
        own = None if ids is None else ids[batch]
        found += sampler_tasks(att, batch, range(att.shape.Q), CELLS_OF_A_TASK, ids=own, **how)
    return found


def reduced_by_tasks(att: Attention, tasks: Sequence[Task], found: Sequence[SampledPart]) -> ReducedAttention:
    """Return a reduced attention from the results of its tasks."""
    B, H, _, Q, K, *_ = att.shape
    bins = bin_width(Q), bin_width(K)
    rows, columns = -(-Q // bins[0]), -(-K // bins[1])
    values = torch.zeros(B, H, rows, columns, dtype=att.result_dtype, device="cpu")
    allowed, normalizers = torch.zeros_like(values, dtype=torch.bool), values.new_zeros(B, H, Q)
    means = [MetricMeans(H) for _ in range(B)]
    for task, one in zip(tasks, found, strict=True):
        batch, heads, queries = _place(task)
        at = slice(queries.start // bins[0], -(-queries.stop // bins[0]))
        of = slice(heads.start, heads.stop)
        values[batch, of, at], allowed[batch, of, at] = one.values.cpu(), one.allowed.cpu()
        assert one.normalizers is not None  # as requested
        normalizers[batch, of, queries.start : queries.stop] = one.normalizers.cpu()
        means[batch].add_sums(heads, one.sums, one.counts)
    sums, counts = (torch.stack(parts) for parts in zip(*(one.state for one in means), strict=True))
    sinks = None if att.sinks is None else att.sinks.detach().clone()
    normalizers = no_log_normalizers(att) if att.source.gives == "weights" else normalizers
    kept = [x.to(att.device) for x in (values, _shared(allowed), normalizers)]
    levels = KeptLevels(kept[0], kept[1], kept[2], sums, counts, bins, sinks)
    made = reduced_attention(levels, (Q, K), att.options.mask, att.is_causal)
    return made if att.part is None else made.as_part(*att.part)


def _place(task: Task) -> tuple[int, range, range]:
    batch, heads, queries, *_ = task.arguments
    return batch, heads, queries  # type: ignore[return-value]


def _shared(allowed: Tensor) -> Tensor:
    """Return whether each bin is allowed, (B, H, rows, columns), with one sample or head if all are the same."""
    for axis in (0, 1):
        one = allowed.narrow(axis, 0, 1)
        allowed = one.clone() if torch.equal(one.expand_as(allowed), allowed) else allowed
    return allowed


def reduced_attention(levels: KeptLevels, sizes: tuple[int, int], mask: Any, is_causal: bool) -> ReducedAttention:
    """Return the attention from what was kept.

    Args:
        levels: the kept overviews.
        sizes: Q and K.
        mask: of the attention; kept if it is small.
        is_causal: whether the attention is causal.
    """
    options = AttentionOptions(mask=mask if isinstance(mask, Mask) else None, is_causal=is_causal)
    if levels.is_whole:
        options = AttentionOptions(mask=None if bool(levels.allowed.all()) else levels.allowed)
    B, H = levels.values.shape[:2]
    return ReducedAttention.of(levels, None, Shape(B, H, H, *sizes, None, None), options)


class ReducedRecord(Record):
    """One reduced attention call of a model: it holds none of a `Record`'s tensors, and no call continues it."""

    def __init__(
        self, name: str, call: ObservedCall, keeper: TensorKeeper, step: ModelCall, heads: Sequence[int] | None = None
    ) -> None:
        self.name, self.cross, self._noted, self.call_rules = name, bool(call.cross), [], []
        self._step = step
        self._fault: str | None = UNVERIFIED
        (B, _, Q, _), K = call.q.shape, call.k.shape[2]
        self.text = RecordText.of(call.text, B, Q, cross=self.cross)
        self._last_key = call.k[:, :, -1].clone()  # (B, G, D), to recognize a call that would continue
        mask: Any = keeper.mask(call.mask)
        mask = simplify(mask, B, Q, K) if isinstance(mask, Spans) else mask
        how: dict[str, Any] = {name: getattr(call, name) for name in ("is_causal", "scale", "softcap", "sinks", "bias")}
        numbers = call.numbers_of(heads)
        with torch._C.DisableTorchFunction():  # these computations are not steps of the model
            before = keys_before(call, mask) if K > Q and not self.cross else None
            if call.weights is None:
                att = Attention(call.q, call.k, mask=mask, **how)
            else:
                att = Attention.from_weights(call.weights)
            att = att.as_part(numbers, None, before, self.cross)
            ids = None if call.text is None or self.cross else call.text.ids
            ids = ids if ids is not None and ids.shape == (B, K) else None
            self._reduced = reduced(att, keeper.device, ids).as_part(numbers, None, before, self.cross)
            self._reduced = witnessed(self._reduced, Witness("some", keeper.report, maps=call.maps))

    @staticmethod
    def needed(call: ObservedCall, keeper: TensorKeeper, how: Continuation | None) -> int:
        """Return the most bytes that a call will take."""
        (B, H, Q, _), K = call.q.shape, call.k.shape[2]
        return B * H * (-(-Q // bin_width(Q)) * -(-K // bin_width(K)) * 5 + 4 * Q)

    def read(self) -> None:
        """Do nothing: it was read when it was reduced."""

    @property
    def attention(self) -> ReducedAttention:
        """Return the kept parts of the attention."""
        return self._reduced

    @property
    def queries(self) -> int:
        """Return the number of queries of its call."""
        return self._reduced.shape.Q

    @property
    def last_step(self) -> ModelCall:
        """Return its call of the model."""
        return self._step

    @property
    def size(self) -> int:
        """Return its bytes."""
        return sum(x.nbytes for x in self.tensors().values())

    @property
    def nbytes(self) -> int:
        """Return its bytes."""
        return self.size

    def tensors(self) -> dict[str, Tensor]:
        """Return the kept parts."""
        return self._reduced.source.tensors()

    def continued_by(self, call: ObservedCall, wanted: Continuation | None = None) -> None:
        """Raise Unreadable for a call that continues this one, because its keys were dropped."""
        K, own = call.k.shape[2], self._reduced.shape.K
        past = K if self.cross else K - call.q.shape[2]
        if (
            past < own
            or not self._last_key.shape[2]
            or call.k.shape[1:2] + call.k.shape[3:] != self._last_key.shape[1:]
        ):
            return
        keys = call.k[0, :, :past]  # (G, past, D)
        if bool((keys[None] == self._last_key[:, :, None].to(keys)).all(-1).all(1).any()):
            raise Unreadable(GROWS)

    def continued_earlier(self, call: ObservedCall) -> None:
        """Return None: there are no keys."""

    def extend(self, call: ObservedCall, how: Continuation, step: ModelCall) -> NoReturn:
        """Raise Unreadable: nothing continues this."""
        raise Unreadable(GROWS)

    def confirm_keys(self) -> None:
        """Do nothing: no keys are kept."""

    def settle(self, chosen: Mapping[int, ChosenRows] | None = None) -> None:
        """Do nothing: there is one call."""

    def take_checks(self) -> list[OutputCheck]:
        """Return none: its call was verified at once."""
        return []

    def pop_checks(self) -> list[OutputCheck]:
        """Return none, as `take_checks` does."""
        return []

    def continues_but_for_samples(self, call: ObservedCall) -> bool:
        """Return False: nothing continues this."""
        return False

    def repeating(self, step: RepeatedStep, keys: Tensor) -> None:
        """Return None: nothing continues this."""

    def keep_queries(self) -> None:
        """Do nothing: all queries are in it."""

    def output_callback(self, call: ObservedCall, first: int, *, in_step: bool = False) -> OutputCallback:
        """Return a function that takes the output of the call."""
        return functools.partial(self.add_output, call, first)

    def add_output(self, call: ObservedCall, first: int, output: Any, *, in_step: bool = False) -> None:
        """Verify the call by its output."""
        self._fault = why_not_shown(call, output)

    def fault(self) -> str | None:
        """Return why this record cannot be shown, such as a contradicted output; None if it can."""
        return self._fault


# In a file.


def entry_of(att: ReducedAttention, add: Callable[[Tensor], str]) -> dict[str, Any]:
    """Return JSON from which `attention_from` restores the attention; `add` puts a tensor into the file."""
    kept, mask = att.source, att.options.mask
    tensors = {name: add(x) for name, x in kept.tensors().items()}
    told = mask_to_json(mask, add) if isinstance(mask, Mask) else None
    sizes = [att.shape.Q, att.shape.K]
    return {**tensors, "bins": kept.bins, "sizes": sizes, "mask": told, "is_causal": att.is_causal, "metrics": MEASURED}


def attention_from(entry: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> ReducedAttention:
    """Return the attention that `entry_of` described."""
    parts = [tensors[entry[name]] for name in ("values", "allowed", "log_normalizers")]
    found = [_with_all_metrics(tensors[entry[name]], entry["metrics"]) for name in ("metric_sums", "metric_counts")]
    (queries, keys), bins = entry["sizes"], tuple(entry["bins"])
    _check_sizes(parts, found, (queries, keys), bins)
    mask = None if entry["mask"] is None else mask_from_json(entry["mask"], tensors)
    sinks = tensors[entry["sinks"]] if "sinks" in entry else None
    levels = KeptLevels(parts[0], parts[1], parts[2], found[0], found[1], bins, sinks)
    return reduced_attention(levels, (queries, keys), mask, bool(entry["is_causal"]))


def _check_sizes(
    parts: Sequence[Tensor], of_metrics: Sequence[Tensor], sizes: tuple[Any, Any], bins: tuple[Any, ...]
) -> None:
    """Refuse tensors of a file that do not have the sizes, types and bins of an overview."""
    if not all(type(n) is int and n > 0 for n in (*sizes, *bins)) or bins != tuple(map(bin_width, sizes)):
        raise ValueError(f"an overview of {sizes!r:.80} in bins of {bins!r:.80}")
    (values, allowed, normalizers), floats = parts, (torch.float32, torch.float64)
    B, H = values.shape[:2]
    grid = tuple(-(-n // width) for n, width in zip(sizes, bins, strict=True))
    fits = tuple(values.shape) == (B, H, *grid) and values.dtype in floats
    fits &= allowed.dtype == torch.bool and allowed.shape[:2] in {(b, h) for b in (1, B) for h in (1, H)}
    fits &= tuple(allowed.shape[2:]) == grid and normalizers.dtype in floats
    fits &= tuple(normalizers.shape) == (B, H, sizes[0])
    fits &= all(x.ndim == 3 and (x.shape[0], x.shape[2]) == (B, H) for x in of_metrics)
    if not fits:
        raise ValueError(f"an overview of {sizes[0]} × {sizes[1]} whose tensors have other sizes or types")


def _with_all_metrics(x: Tensor, names: Sequence[str]) -> Tensor:
    """Return numbers by metric, (B, metrics, H), in today's order; 0 for metrics that the file lacks."""
    found = x.new_zeros(len(x), len(MEASURED), x.shape[2])
    for i, name in enumerate(names):
        if name in MEASURED:
            found[:, MEASURED.index(name)] = x[:, i]
    return found
