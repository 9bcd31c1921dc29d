"""Records: what a capture keeps of each attention of a model, growing while the model generates."""

from __future__ import annotations

import copy
import math
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from .._rules.row_spans import Spans, as_spans, merge_equal_ends, simplify
from .._utils.choices import Numbers
from .._utils.validation import FLOATS
from ..attention import Attention
from .limit import MemoryLimit
from .lineage import ENDED, ChosenRows, Lineage, ModelCall, RecordedCall, is_unchanged, take_rows
from .parts import QUERIES, part_of_rule, take_part
from .text import CallText, RecordText
from .verification import OutputSample, differs, is_changed_by_rounding, sample_output

KeptMask = Spans | Tensor | Callable[..., Any] | None
SLACK = 64  # queries that are kept beyond those that are wanted: some may be taken away again, as by an assistant
MASK_CELLS_AT_ONCE = 1 << 22  # of a mask function
EAGER = (
    "load the model with attn_implementation='eager', call it with output_attentions=True, and give "
    "output.attentions to AttentionWidget.from_weights"
)


CONTRADICTED = f"its output is not what its q, k, v, mask and scale come to, so it does more than they tell: {EAGER}"
UNVERIFIED = (
    "its output was not seen, or has not the shape (batch, heads, queries, size) of its q and v, so that it could not "
    f"be verified: {EAGER}"
)
CHANGED_IN_PLACE = (
    "its {} changed in place after the call, and clone=False keeps the model's own: capture with clone=True"
)

TOO_COARSE = (
    "its scores are so large that {} changes its weights to twice or half of what they are, or worse: capture it "
    "without dtype="
)


class Unreadable(Exception):
    """An attention call that cannot be expressed as q, k, v and rules; the message says why, and what to do."""


@dataclass
class ObservedCall:
    """One attention call as it was observed: the model's own tensors."""

    q: Tensor  # (B, H, Q, D)
    k: Tensor  # (B, G, K, D)
    v: Tensor | None  # (B, G, K, Dv)
    scale: float | None = None
    softcap: float | None = None
    mask: Any = None  # (B or 1, H or 1, Q or 1, K) bool or floats to add, or a function
    bias: Any = None  # the same, floats, or a function of the score
    is_causal: bool = False  # key ≤ query from the upper left
    cross: bool | None = None  # None: not known
    inputs: tuple[Tensor, Tensor] | None = None  # what q and k were projected from; None: not known
    cached: bool = False  # of a decoder: k may be a buffer that is longer than the text
    dropout: bool = False  # some of the weights were set to 0 before they met v
    sinks: Tensor | None = None  # (H,) learned sink logits
    text: CallText | None = None  # what stands at its positions, as far as it is known


@dataclass
class TensorKeeper:
    """How tensors are kept: where, in which type, copied or not, of which queries; masks that layers share once."""

    device: torch.device | None = None
    dtype: torch.dtype | None = None
    values: bool = True
    clone: bool = True
    queries: Numbers | None = None
    memory: MemoryLimit = field(default_factory=lambda: MemoryLimit(None))
    _masks: dict[tuple[Any, ...], tuple[weakref.ref[Tensor], int, KeptMask]] = field(default_factory=dict)

    def size_of(self, call: ObservedCall, positions: int | None = None) -> int:
        """Return how many bytes q, k and v of a call take as they are kept; `positions`: of so many new ones alone."""
        given = [call.k] + ([call.v] if self.values and call.v is not None else [])
        given += [call.q] if self.queries is None else []  # of some queries, which they are is not known yet
        return sum(
            x.numel()
            // x.shape[2]
            * (x.shape[2] if positions is None else positions)
            * (self.dtype or x.dtype).itemsize
            for x in given
            if x.numel()
        )

    def tensor(self, x: Tensor) -> Tensor:
        """Return x as it is kept: a contiguous copy; x itself if not `clone`, unless that keeps more memory alive."""
        x = x.detach()
        clone = self.clone or x.untyped_storage().nbytes() > x.numel() * x.element_size()
        if not clone:
            return x.to(self.device or x.device, self.dtype or x.dtype)
        return x.to(self.device or x.device, self.dtype or x.dtype, copy=True, memory_format=torch.contiguous_format)

    def growing(self, x: Tensor) -> GrowingTensor:
        """Return x as `tensor` keeps it, to grow."""
        kept = self.tensor(x)
        return GrowingTensor(kept, is_copy=kept.data_ptr() != x.data_ptr())

    def parameter(self, x: Tensor) -> Tensor:
        """Return a parameter of the model as it is kept: in its own type, for it is small."""
        return x.detach().to(self.device or x.device, copy=self.clone)

    def converted(self, x: Tensor) -> Tensor:
        """Return x on the device and in the type of kept tensors, to be compared with them or copied to them."""
        return x if self.device is None and self.dtype is None else x.to(self.device or x.device, self.dtype or x.dtype)

    def mask(self, mask: Any) -> KeptMask:
        """Return a mask in its smallest form, made once for all layers that share it."""
        if not isinstance(mask, Tensor):
            return mask
        version, base = (
            (0, mask) if mask.is_inference() else (mask._version, mask if mask._base is None else mask._base)
        )
        key = (id(base), mask.storage_offset(), mask.shape, mask.stride(), mask.dtype)
        known = self._masks.get(key)
        if known is None or known[0]() is not base or known[1] != version:
            known = (weakref.ref(base), version, self._smallest_form(mask.detach()))
            self._masks[key] = known
            self.memory.add(bytes_of_mask(known[2]))
        return known[2]

    def _smallest_form(self, mask: Tensor) -> Spans | Tensor:
        for axis, step in enumerate(mask.stride()):
            mask = mask.narrow(axis, 0, 1) if step == 0 and axis < 3 else mask  # expanded: one holds all
        blocked = mask <= torch.finfo(mask.dtype).min if mask.dtype in FLOATS else None
        allowed = mask if blocked is None else ~blocked
        plain = blocked is None or bool((blocked | (mask == 0)).all())
        spans = as_spans(allowed.bool()) if plain else None
        if spans is not None:
            return Spans(*(ends.to(self.device or mask.device) for ends in (spans.starts, spans.stops)))
        return mask.to(self.device or mask.device, copy=self.clone, memory_format=torch.contiguous_format)

    def forget_masks(self) -> None:
        """Drop the masks of forward passes that have ended."""
        self._masks = {key: known for key, known in self._masks.items() if known[0]() is not None}


def bytes_of_mask(mask: Any) -> int:
    """Return how many bytes a mask or bias takes; 0 of a function."""
    if isinstance(mask, Spans):
        return mask.starts.nbytes + mask.stops.nbytes
    return mask.nbytes if isinstance(mask, Tensor) else 0


class GrowingTensor:
    """A tensor (B, heads, positions, size) that grows along its positions, in a larger buffer until it is trimmed."""

    def __init__(self, x: Tensor, *, is_copy: bool) -> None:
        self._buffer, self.length, self._is_copy = x, x.shape[2], is_copy

    @property
    def shape(self) -> tuple[int, ...]:
        """Return B, heads, positions and size."""
        B, heads, _, size = self._buffer.shape
        return B, heads, self.length, size

    @property
    def nbytes(self) -> int:
        """Return how many bytes its positions take."""
        return math.prod(self.shape) * self._buffer.element_size()

    @property
    def device(self) -> torch.device:
        """Return where it is."""
        return self._buffer.device

    def copy(self) -> GrowingTensor:
        """Return the same, to grow apart."""
        return GrowingTensor(self.view().clone(), is_copy=True)

    def view(self, start: int = 0) -> Tensor:
        """Return the positions from `start` on, without a copy."""
        return self._buffer.narrow(2, start, self.length - start)

    def version(self) -> int | None:
        """Return how often the model's own tensor was changed in place; None for a copy, or where torch counts none."""
        return None if self._is_copy or self._buffer.is_inference() else self._buffer._version

    def append(self, x: Tensor) -> None:
        """Append the positions of x (B, heads, positions, size)."""
        after = self.length + x.shape[2]
        if after > self._buffer.shape[2] or not self._is_copy:
            B, heads, _, size = self._buffer.shape
            larger = self._buffer.new_empty(B, heads, max(after, self.length * 3 // 2 + 16), size)
            larger.narrow(2, 0, self.length).copy_(self.view())
            self._buffer, self._is_copy = larger, True
        self._buffer.narrow(2, self.length, x.shape[2]).copy_(x)
        self.length = after

    def take(self, rows: Tensor) -> GrowingTensor:
        """Return of each position the rows that `rows` (samples, positions) names."""
        return GrowingTensor(take_rows(self.view(), rows), is_copy=True)

    def keep(self, positions: Sequence[int]) -> None:
        """Keep some positions alone, ascending."""
        self._buffer = take_part(self.view(), 2, positions).clone(memory_format=torch.contiguous_format)
        self._is_copy, self.length = True, len(positions)

    def trim(self) -> Tensor:
        """Return all positions in memory of just that size, which later growth leaves alone."""
        if self._buffer.shape[2] > self.length:
            self._buffer, self._is_copy = self.view().clone(memory_format=torch.contiguous_format), True
        return self._buffer


@dataclass
class Continuation:
    """How a call continues a record."""

    order: list[int]  # of each sample of the call, the sample of the record that it continues
    dropped: int = 0  # positions of the record, from its end, that it does not continue


@dataclass
class CallRules:
    """The rules of one call, which are those of some queries of a record."""

    queries: int
    keys: int  # of the call
    first: int  # where its keys begin among all keys of the record
    is_causal: bool
    mask: KeptMask
    bias: Any


class KeptQueries:
    """Which queries of a record are kept, while it is not known yet how many it will have.

    Those that may be among them are kept; where they are counted from the end, those that the record has grown past
    are dropped a few at a time.

    Args:
        wanted: which queries, of all.

    Attributes:
        positions: of the queries that are kept, among all.
        count: how many queries there are.
    """

    def __init__(self, wanted: Numbers) -> None:
        self.wanted = wanted
        self.positions: list[int] = []
        self.count = 0

    def add(self, queries: int) -> list[int]:
        """Count the queries of a call, and return those of them that may be kept."""
        first, self.count = self.count, self.count + queries
        rows = [i for i in range(queries) if self.wanted.may_hold(first + i, self.count)]
        self.positions += [first + i for i in rows]
        return rows

    def remove(self, queries: int) -> int:
        """Take the last queries away again, and return how many of them were kept."""
        self.count -= queries
        left = [position for position in self.positions if position < self.count]
        removed, self.positions = len(self.positions) - len(left), left
        return removed

    def passed(self) -> int:
        """Return how many of the first ones are kept that cannot be among them any more, if these are many."""
        least = max(0, self.count - SLACK)
        held = (i for i, position in enumerate(self.positions) if self.wanted.may_hold(position, least))
        count = next(held, len(self.positions))
        return count if count >= max(SLACK, (len(self.positions) - count) // 4) else 0

    def chosen(self) -> list[int]:
        """Return the places, among those that are kept, of the queries that are wanted in the end.

        Raises:
            Unreadable: there are none, or some are not kept any more.
        """
        wanted = self.wanted.of(self.count)
        found = [i for i, position in enumerate(self.positions) if position in set(wanted)]
        if not wanted:
            raise Unreadable(f"queries={self.wanted!r} are none of its {self.count:,} queries: ask for others")
        if len(found) < len(wanted):
            raise Unreadable(
                f"more than {SLACK} of its tokens were taken back, and queries={self.wanted!r} reaches before what is "
                "kept: ask for more queries"
            )
        return found


class Record:
    """One attention of a model over all calls that continue one another: the prompt, then each new token.

    Rows stay as the calls had them, whichever beam continues which: `settle` puts them in order when all is recorded.
    """

    def __init__(
        self, name: str, call: ObservedCall, keeper: TensorKeeper, step: ModelCall, heads: Sequence[int] | None = None
    ) -> None:
        self.name, self.cross, self._keeper = name, bool(call.cross), keeper
        self._heads, self._queries = heads, None if keeper.queries is None else KeptQueries(keeper.queries)
        self.scale, self.softcap = call.scale, call.softcap
        self.sinks = None if call.sinks is None else keeper.parameter(call.sinks)
        rows = None if self._queries is None else self._queries.add(call.q.shape[2])
        q = call.q if rows is None else take_part(call.q, QUERIES, rows)
        self.q, self.k = keeper.growing(q), keeper.growing(call.k)
        self.v = keeper.growing(call.v) if keeper.values and call.v is not None else None
        self.call_rules: list[CallRules] = []  # one for each call
        self._add_rules(call, 0, rows)
        self.text = RecordText.of(call.text, *call.q.shape[::2], cross=self.cross)
        self.calls: list[RecordedCall] = []
        self._lineage = Lineage(step, *call.q.shape[::2])
        self._key_rows: Tensor | None = None  # (B, K): of the running samples, in which row each key is; None: its own
        self._samples: list[tuple[int, OutputSample]] = []  # the query at which a call begins, some of its output
        self._differences: list[Tensor] = []  # of each call that was verified, whether its output is another
        self._rearranged = False  # whether rows of the calls have changed places
        self._is_too_coarse = False  # whether the type in which it is kept changes its weights
        self._unverified = True  # nothing of its output was seen yet
        self._versions = self._count_changes()
        self._changed: dict[str, None] = {}  # names of tensors that the model changed after the call
        self._attention: Attention | None = None

    @staticmethod
    def needed(call: ObservedCall, keeper: TensorKeeper, how: Continuation | None) -> int:
        """Return how many bytes a call will take."""
        return keeper.size_of(call, None if how is None else call.q.shape[2])

    @property
    def queries(self) -> int:
        """Return how many queries its calls had, those that are not kept too."""
        return self.q.length if self._queries is None else self._queries.count

    def _add_rules(self, call: ObservedCall, first: int, rows: Sequence[int] | None) -> None:
        """Add the rules of a call, or of some of its queries."""
        if rows is None:
            self.call_rules.append(self._rules_of(call, first))
        elif rows:
            self.call_rules.append(rules_of_queries(self._rules_of(call, first), rows, self.k.device))

    def _rules_of(self, call: ObservedCall, first: int) -> CallRules:
        bias = self._keeper.tensor(call.bias) if isinstance(call.bias, Tensor) else call.bias
        mask = self._keeper.mask(call.mask)
        return CallRules(call.q.shape[2], call.k.shape[2], first, call.is_causal, mask, bias)

    @property
    def last_step(self) -> ModelCall:
        """Return the model's call that it had last."""
        return self._lineage.last

    @property
    def size(self) -> int:
        """Return how many bytes q, k and v take."""
        return sum(x.nbytes for x in (self.q, self.k, self.v) if x is not None)

    @property
    def nbytes(self) -> int:
        """Return how many bytes it takes; a mask that layers share is counted by each."""
        return self.size + sum(bytes_of_mask(one) for rules in self.call_rules for one in (rules.mask, rules.bias))

    def continued_by(self, call: ObservedCall, wanted: Continuation | None = None) -> Continuation | None:
        """Return how a call continues this record; None if it does not.

        A decoder's keys are those of before and new ones, a cross-attention's are the same; beams change places; tokens
        that were tried and rejected leave the cache again.

        Args:
            call: the call.
            wanted: how the same forward pass continues another record.
        """
        (B, G, K, D), (_, H, Q, _) = call.k.shape, call.q.shape
        kept, total = self.k.shape, self.k.length
        if (kept[0], kept[1], kept[3], self.q.shape[1]) != (B, G, D, H) or call.scale != self.scale:
            return None
        dropped = 0 if wanted is None else wanted.dropped
        past, stop = (K, total) if self.cross else (K - Q, total - dropped)
        if not 0 < past <= stop or (self.cross and past != total) or dropped >= self.queries:
            return None
        now = self._keeper.converted(call.k.narrow(2, 0, past))
        order = _order_of(self._running_keys(stop - past, stop), now, None if wanted is None else wanted.order)
        return None if order is None else Continuation(order, dropped)

    def continued_earlier(self, call: ObservedCall) -> Continuation | None:
        """Return how a call continues this record from a place before its end; None if it does not."""
        (B, G, K, D), (_, H, Q, _) = call.k.shape, call.q.shape
        past, total = K - Q, self.k.length
        if self.cross or past <= 0 or (*self.k.shape[:2], self.k.shape[3], self.q.shape[1]) != (B, G, D, H):
            return None
        last, keys = self._keeper.converted(call.k.narrow(2, past - 1, 1)), self._running_keys(0, total)
        alike = (keys == last).all(-1).all(1).all(0).tolist()
        for stop in range(total - 1, max(past, total - self.queries + 1) - 1, -1):
            if alike[stop - 1] and (found := self.continued_by(call, Continuation(list(range(B)), total - stop))):
                return found
        return None

    def _running_keys(self, start: int, stop: int) -> Tensor:
        """Return keys as the samples that run now have them."""
        keys = self.k.view(start).narrow(2, 0, stop - start)
        return keys if self._key_rows is None else take_rows(keys, self._key_rows[:, start:stop])

    def extend(self, call: ObservedCall, how: Continuation, step: ModelCall) -> None:
        """Append a call that continues this record."""
        self._changed.update(dict.fromkeys(self._changed_in_place()))
        self.shorten(how.dropped)
        K, new = call.k.shape[2], call.q.shape[2]
        past = K if self.cross else K - new
        first = self.k.length - past
        rows = None if self._queries is None else self._queries.add(call.q.shape[2])
        self.q.append(self._keeper.converted(call.q if rows is None else take_part(call.q, QUERIES, rows)))
        if not self.cross:
            self._follow(how.order, new)
            self.k.append(self._keeper.converted(call.k.narrow(2, past, new)))
            if self.v is not None and call.v is not None:
                self.v.append(self._keeper.converted(call.v.narrow(2, past, new)))
        self.text.append(call.text, *call.q.shape[::2])
        self._add_rules(call, first, rows)
        self._lineage.append(step, new, how.order)
        self._drop_passed()
        self._versions = self._count_changes()
        self._attention = None

    def _drop_passed(self) -> None:
        """Drop the first queries that cannot be among those that are wanted any more."""
        passed = 0 if self._queries is None else self._queries.passed()
        if not passed or self._queries is None:
            return
        self.q.keep(range(passed, self.q.length))
        self._queries.positions = self._queries.positions[passed:]
        while passed and self.call_rules[0].queries <= passed:
            passed -= self.call_rules.pop(0).queries
        if passed:
            first = self.call_rules[0]
            self.call_rules[0] = rules_of_queries(first, range(passed, first.queries), self.k.device)

    def keep_queries(self) -> None:
        """Keep the queries alone that are wanted in the end, now that it is known how many there are.

        Raises:
            Unreadable: they are not there.
        """
        if self._queries is None:
            return
        chosen = self._queries.chosen()
        if len(chosen) == self.q.length:
            return
        rules = self._joined_rules()
        self.call_rules = [rules_of_queries(rules, chosen, self.k.device)]
        self.q.keep(chosen)
        self._queries.positions = [self._queries.positions[i] for i in chosen]
        self._attention = None

    def _follow(self, order: list[int], new: int) -> None:
        """Note in which rows the keys of the running samples are, when they have changed places and grow."""
        rows, B = self._key_rows, len(order)
        if rows is None and not is_unchanged(order):
            rows = torch.arange(B, device=self.k.device)[:, None].expand(B, self.k.length)
        if rows is not None:
            own = torch.arange(B, device=rows.device)[:, None].expand(B, new)
            self._key_rows = torch.cat([rows[order], own], 1)

    def branch(self, dropped: int) -> Record:
        """Return a record of all but the last positions, which goes on apart from this one."""
        other = copy.copy(self)
        for name, value in vars(self).items():
            if name == "_samples":
                setattr(other, name, [(first, copy.copy(sample)) for first, sample in value])
            elif isinstance(value, list | dict):
                setattr(other, name, {} if name == "_versions" else copy.copy(value))
            elif isinstance(value, KeptQueries):
                setattr(other, name, copy.deepcopy(value))
            elif isinstance(value, GrowingTensor | Lineage | RecordText):
                setattr(other, name, value.copy())
        other.shorten(dropped)
        return other

    def settle(self, chosen: Mapping[int, ChosenRows] | None = None) -> None:
        """Put the rows of all calls in order, such that each sample is one text.

        Args:
            chosen: as `Lineage.rows` takes it; without it samples are those that ran last.
        """
        rows = self._lineage.rows(chosen)
        while len(rows) > 1 and set(rows[-1]) == {ENDED}:  # no sample has these queries
            self.shorten(self._lineage.sizes[-1])
            rows.pop()
        self.calls, self._attention = self._lineage.calls(rows), None
        if all(is_own(own, self.k.shape[0]) for own in rows):
            return
        self._changed.update(dict.fromkeys(self._changed_in_place()))
        self._rearranged = True
        of_queries = torch.tensor(rows).T.repeat_interleave(torch.tensor(self._lineage.sizes), 1)
        self.text.take(of_queries)
        of_first = of_queries[:, :1].expand(-1, self.k.length - (0 if self.cross else self.queries))
        of_keys = of_first if self.cross else torch.cat([of_first, of_queries], 1)
        of_queries = of_queries if self._queries is None else of_queries[:, self._queries.positions]
        self.q, self.k = self.q.take(of_queries.clamp(min=0)), self.k.take(of_keys.clamp(min=0))
        self.v, self._key_rows = None if self.v is None else self.v.take(of_keys.clamp(min=0)), None
        first = 0
        for i, rules in enumerate(self.call_rules):
            own = of_queries[:, first].tolist()
            self.call_rules[i] = rules_of_rows(rules, own, self.k.device)
            for start, sample in self._samples:
                if first <= start < first + rules.queries:
                    sample.reorder(own)
            first += rules.queries
        self._lineage.merge(rows)

    def add_output(self, call: ObservedCall, first: int, output: Any) -> None:
        """Verify a call by some rows of its output, before anything of it can change.

        Args:
            call: the call.
            first: the query of the record at which it begins.
            output: as `verification.sample_output` takes it.
        """
        if first > 0 and call.q.shape[2] == 1:
            return  # of tokens that come one by one, the first says as much
        found = compare_output(call, output)
        if found is None:
            return
        self._differences.append(found.differs)
        self._unverified = False
        if (kept := self._keeper.dtype) is not None:
            self._is_too_coarse |= is_changed_by_rounding(call.q, call.k, call.scale, kept)
        whole = self._heads is None and self._queries is None
        if found.sample.dropout is None and self._keeper.dtype is None and whole:
            self._samples.append((first, found.sample))

    def fault(self) -> str | None:
        """Return why this record cannot be shown: it does not give the outputs of its calls; None if it does."""
        if self._unverified:
            return UNVERIFIED
        if any(map(bool, self._differences)) or self._kept_is_contradicted():
            return CONTRADICTED
        if self._is_too_coarse:
            return TOO_COARSE.format(f"keeping it in {self._keeper.dtype}")
        changed = [*self._changed, *self._changed_in_place()]
        return CHANGED_IN_PLACE.format(" and ".join(changed)) if changed else None

    def _kept(self) -> dict[str, GrowingTensor]:
        return {"q": self.q, "k": self.k} | ({} if self.v is None else {"v": self.v})

    def _count_changes(self) -> dict[str, int]:
        """Return how often each of the model's own tensors that are kept was changed in place, where torch counts."""
        if self._keeper.clone:
            return {}
        counts = {name: kept.version() for name, kept in self._kept().items()}
        return {name: count for name, count in counts.items() if count is not None}

    def _changed_in_place(self) -> list[str]:
        """Return the names of tensors that the model has changed since they were kept."""
        now = self._count_changes()
        return [name for name, count in self._versions.items() if now.get(name, count) != count]

    def _kept_is_contradicted(self) -> bool:
        """Return whether what was joined of several calls, or not copied, gives another output; drops the samples."""
        samples, self._samples = self._samples, []
        if self.v is None or (self._keeper.clone and not self._rearranged):
            return False
        q, k, v = (x.view() for x in (self.q, self.k, self.v))
        for first, sample in samples:
            row = 0
            for rules in self.call_rules:
                if first < row + rules.queries:
                    break
                row += rules.queries
            sample.rows = [i + first - row for i in sample.rows]
            how: dict[str, Any] = {"scale": self.scale, "softcap": self.softcap, "rules": rules, "first": row}
            if sample.samples and bool(differs(sample, q, k, v, **how, sinks=self.sinks)):
                return True
        return False

    def shorten(self, by: int) -> None:
        """Drop the last positions."""
        self._attention = None
        if not by:
            return
        self._lineage.shorten(by)
        for kept in () if self.cross else (self.k, self.v):
            if kept is not None:
                kept.length -= by
        self._key_rows = None if self._key_rows is None or self.cross else self._key_rows[:, : self.k.length]
        self.text.shorten(self.queries - by)
        by = by if self._queries is None else self._queries.remove(by)
        self.q.length -= by
        while by and self.call_rules[-1].queries <= by:
            by -= self.call_rules.pop().queries
        if by:
            last = self.call_rules[-1]
            self.call_rules[-1] = shorten_rules(last, last.queries - by, min(last.keys, self.k.length - last.first))
        self._samples = [(first, one) for first, one in self._samples if first + max(one.rows) < self.queries]

    @property
    def positions(self) -> list[int] | None:
        """Return the queries that are kept, among all; None where all are."""
        if self._queries is None or len(self._queries.positions) == self._queries.count:
            return None
        return self._queries.positions

    @property
    def _keys_before(self) -> int | None:
        """How many keys came before the first query, as of an earlier turn; None: of other places, or none."""
        before = self.k.length - self.queries
        return None if self.cross or before < 0 or (not before and self.positions is None) else before

    def tensors(self) -> dict[str, Tensor]:
        """Return q, k, and v if it is kept, each in memory of its own size."""
        return {name: kept.trim() for name, kept in self._kept().items()}

    def _joined_rules(self) -> CallRules:
        """Return the rules of all calls as those of one, from now on kept so."""
        if len(self.call_rules) > 1:
            self._lineage.merge(self._lineage.rows())
            self.call_rules = [join(self.call_rules, self.k.length, self.k.device)]
        return self.call_rules[0]

    def rules(self) -> dict[str, Any]:
        """Return the keywords of its `Attention` beside q, k and v."""
        rules = self._joined_rules()
        B, mask = self.k.shape[0], rules.mask
        return {
            "mask": simplify(mask, B, rules.queries, rules.keys) if isinstance(mask, Spans) else mask,
            "bias": rules.bias,
            "is_causal": rules.is_causal,
            "scale": self.scale,
            "softcap": self.softcap,
            "sinks": self.sinks,
        }

    @property
    def attention(self) -> Attention:
        """Return the attention of all calls so far."""
        if not self._lineage.in_place:  # while the model still runs
            so_far = self.branch(0)
            so_far.settle()
            return so_far.attention
        if self._attention is None:
            if changed := self._changed_in_place():
                warnings.warn(CHANGED_IN_PLACE.format(" and ".join(changed)), UserWarning, stacklevel=3)
            kept = self.tensors()
            att = Attention(kept["q"], kept["k"], kept.get("v"), **self.rules())
            self._attention = att.as_part(self._heads, self.positions, self._keys_before)
        return self._attention


@dataclass
class ComparedOutput:
    """Some rows of a call's output, and whether they are other than its q, k, v and rules come to."""

    sample: OutputSample
    differs: Tensor  # (), bool


def compare_output(call: ObservedCall, output: Any) -> ComparedOutput | None:
    """Compare a call's output, as `verification.sample_output` takes it, with its q, k, v and rules; None if it cannot.

    Args:
        call: the call.
        output: what it gave.
    """
    sample = None if call.v is None else sample_output(output, call.q, call.k, call.v)
    if sample is None or call.v is None:
        return None
    rules = CallRules(call.q.shape[2], call.k.shape[2], 0, call.is_causal, call.mask, call.bias)
    how: dict[str, Any] = {"scale": call.scale, "softcap": call.softcap, "rules": rules, "first": 0}
    with torch.no_grad():
        return ComparedOutput(sample, differs(sample, call.q, call.k, call.v, **how, sinks=call.sinks))


def _order_of(before: Tensor, now: Tensor, wanted: list[int] | None) -> list[int] | None:
    """Return of each sample the one of before with the same keys (B, G, K, D), itself if it has; None: not all have.

    `wanted` is taken where it fits: samples may be alike here and not in another layer.
    """
    B = len(now)
    for order in (wanted, list(range(B))):
        if order is not None and torch.equal(before if is_unchanged(order) else before[order], now):
            return order
    alike = (before[None, :, :, -1] == now[:, None, :, -1]).all(-1).all(-1).tolist()  # (now, before)
    found = []
    for b in range(B):
        one = next((p for p in (b, *range(B)) if alike[b][p] and torch.equal(now[b], before[p])), None)
        if one is None:
            return None
        found.append(one)
    return found


def is_own(rows: list[int], samples: int) -> bool:
    """Return whether the rows are all samples, each in its place."""
    return len(rows) == samples and is_unchanged(rows)


# The rules of several calls, as those of one.


def rules_of_rows(rules: CallRules, rows: list[int], device: torch.device) -> CallRules:
    """Return the rules of some rows of a call's batch; a sample that had ended may attend to nothing."""
    index = torch.tensor(rows).clamp(min=0)

    def taken(x: Any) -> Any:
        if isinstance(x, Spans):
            return Spans(taken(x.starts), taken(x.stops))
        return x[index.to(x.device)] if isinstance(x, Tensor) and x.shape[0] > 1 else x

    if callable(rules.mask) and not isinstance(rules.mask, Spans):
        rules = replace(rules, mask=allowed_by_mask(rules, device), is_causal=False)
    found = replace(rules, mask=taken(rules.mask), bias=taken(rules.bias))
    if ENDED not in rows:
        return found
    there = (torch.tensor(rows) != ENDED)[:, None, None].to(device)
    allowed = allowed_by_mask(found, device)
    mask: KeptMask = allowed
    if isinstance(allowed, Spans):
        mask = Spans(*(ends * there for ends in (allowed.starts, allowed.stops)))
    elif isinstance(allowed, Tensor):
        mask = allowed & there[..., None]
    return replace(found, is_causal=False, mask=mask, bias=added_numbers(found))


def shorten_rules(rules: CallRules, queries: int, keys: int) -> CallRules:
    """Return the rules of the first queries and keys."""

    def first(x: Any) -> Any:
        if isinstance(x, Spans):
            return Spans(*(ends[:, :, :queries].clamp(max=keys) for ends in (x.starts, x.stops)))
        return x[:, :, :queries, :keys] if isinstance(x, Tensor) else x

    return CallRules(queries, keys, rules.first, rules.is_causal, first(rules.mask), first(rules.bias))


def rules_of_queries(rules: CallRules, rows: Sequence[int], device: torch.device) -> CallRules:
    """Return the rules of some queries of a call."""
    mask: Any = rules.mask
    bias = rules.bias
    if rules.is_causal:
        own = replace(rules, mask=mask if isinstance(mask, Spans) else None)
        causal: Any = allowed_by_mask(own, device)
        bias = added_numbers(rules)
        is_bool = isinstance(mask, Tensor) and mask.dtype is torch.bool
        mask = evaluate_mask(causal, rules, device) & mask if is_bool else causal
    mask, bias = (part_of_rule(rule, QUERIES, rows) for rule in (mask, bias))
    return CallRules(len(rows), rules.keys, rules.first, False, mask, bias)


def join(calls: Sequence[CallRules], keys: int, device: torch.device) -> CallRules:
    """Return the rules of several calls as those of one, whose queries are theirs one after the other."""
    if any(callable(rules.bias) for rules in calls):
        raise ValueError(
            "a score_mod of several calls has no one form: capture the whole text in one forward pass, without a cache"
        )
    allowed = [allowed_by_mask(rules, device) for rules in calls]
    added = [added_numbers(rules) for rules in calls]
    bias = stack_cells(calls, added, keys, 0.0, device) if any(x is not None for x in added) else None
    spans = [shifted(rules, x) for rules, x in zip(calls, allowed, strict=True) if isinstance(x, Spans)]
    sizes = [rules.queries for rules in calls]
    mask: KeptMask
    if len(spans) == len(calls):
        B, H = (max(x.starts.shape[axis] for x in spans) for axis in (0, 1))
        starts, stops = (
            torch.cat([ends.expand(B, H, n) for ends, n in zip(all_ends, sizes, strict=True)], 2)
            for all_ends in zip(*((x.starts, x.stops) for x in spans), strict=True)
        )
        mask = merge_equal_ends(starts, stops)
    else:
        cells = [
            evaluate_mask(x, rules) if isinstance(x, Spans) else x for rules, x in zip(calls, allowed, strict=True)
        ]
        mask = stack_cells(calls, cells, keys, False, device)
    return CallRules(sum(sizes), keys, 0, False, mask, bias)


def allowed_by_mask(rules: CallRules, device: torch.device) -> Spans | Tensor:
    """Return which cells of a call are allowed, by the rules that are not added to the scores.

    Returns:
        Spans of the call's own keys, or a bool tensor (B or 1, H or 1, queries, keys).
    """
    if isinstance(rules.mask, Tensor) and rules.mask.dtype is torch.bool:
        return rules.mask
    mask = rules.mask if isinstance(rules.mask, Spans) else None
    if callable(rules.mask) and not isinstance(rules.mask, Spans):
        cells = evaluate_mask(rules.mask, rules, device)
        mask = as_spans(cells)
        if mask is None:
            return cells
    zero = torch.zeros(1, 1, 1, dtype=torch.int32, device=device)
    starts, stops = (zero, zero + rules.keys) if mask is None else (mask.starts, mask.stops)
    if rules.is_causal:
        stops = torch.minimum(stops, torch.arange(1, rules.queries + 1, dtype=torch.int32, device=device))
        starts = starts.expand_as(stops)
    return Spans(starts, stops)


def added_numbers(rules: CallRules) -> Tensor | None:
    """Return what is added to the scores of a call, (B or 1, H or 1, queries or 1, keys), or None."""
    mask = rules.mask if isinstance(rules.mask, Tensor) and rules.mask.dtype in FLOATS else None
    if mask is None or rules.bias is None:
        return rules.bias if mask is None else mask
    return rules.bias + mask


def shifted(rules: CallRules, spans: Spans) -> Spans:
    """Return spans of a call's keys as spans of all keys; an empty row stays 0, 0."""
    filled = (spans.stops > spans.starts).int()
    return Spans((spans.starts + rules.first) * filled, (spans.stops + rules.first) * filled)


def evaluate_mask(mask: Callable[..., Tensor], rules: CallRules, device: torch.device | None = None) -> Tensor:
    """Return a mask function of all cells of a call, (B or 1, H or 1, queries, keys)."""
    if isinstance(mask, Spans):
        (B, H, _), device = mask.starts.shape, mask.starts.device
    else:
        B, H = getattr(mask, "sizes", (1, 1))
    b, h, keys = (torch.arange(n, device=device) for n in (B, H, rules.keys))
    rows = torch.arange(rules.queries, device=device).split(max(1, MASK_CELLS_AT_ONCE // (B * H * rules.keys)))
    b, h = b[:, None, None, None], h[:, None, None]
    blocks = [mask(b, h, q_idx[:, None], keys).expand(B, H, len(q_idx), rules.keys) for q_idx in rows]
    return torch.cat(blocks, 2)


def stack_cells(
    calls: Sequence[CallRules], cells: Sequence[Tensor | None], keys: int, fill: float | bool, device: torch.device
) -> Tensor:
    """Write the cells of several calls into one tensor.

    Args:
        calls: one after the other, in the order of queries.
        cells: of each call, (B or 1, H or 1, queries or 1, keys), or None.
        keys: how many there are in all.
        fill: where a call has no cells.
        device: of the result.

    Returns:
        (B, H, Q, K), with Q the queries of all calls.
    """
    given = [x for x in cells if x is not None]
    B, H = (max(x.shape[axis] for x in given) for axis in (0, 1))
    queries = sum(rules.queries for rules in calls)
    stacked = torch.full((B, H, queries, keys), fill, dtype=given[0].dtype, device=device)
    row = 0
    for rules, x in zip(calls, cells, strict=True):
        if x is not None:
            stacked[:, :, row : row + rules.queries, rules.first : rules.first + rules.keys] = x
        row += rules.queries
    return stacked
