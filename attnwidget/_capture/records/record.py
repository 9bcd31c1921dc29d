"""Records: the attention that a capture keeps for each module, growing while the model generates."""

from __future__ import annotations

import copy
import functools
import itertools
import math
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, overload

import torch
from torch import Tensor

from ..._engine.base import with_sources, witnessed
from ..._rules.row_spans import Spans, simplify
from ...attention import Attention
from ..call.cache_growth import GrownKeys, SeenKeys, grown_keys
from ..call.call_rules import CallRules, join, rules_of_queries, rules_of_rows, shorten_rules
from ..call.call_text import CallText, RecordText
from ..call.lineage import ENDED, ChosenRows, Lineage, ModelCall, RecordedCall, is_unchanged, take_rows
from ..call.observed_call import EAGER, ObservedCall
from ..call.query_offset import keys_before
from ..call.rule_slices import QUERIES, take_part
from ..carried.carried_record import carry, gradients_of
from ..sources.record_sources import RecordSources
from ..verify.batched import WAITING, OutputCheck, verify
from ..verify.compared_output import compare_output
from ..verify.pending_outputs import AT_ONCE, KeptOutputs
from ..verify.verification import (
    ComparedRows,
    OutputSample,
    differs,
    is_changed_by_rounding,
    rows_to_compare,
    sample_output,
)
from ..verify.witness import Checked, Digest, Witness
from .decode_steps import NotedCall, RepeatedStep, kinds_of
from .kept_tensors import GrowingTensor, KeptQueries, TensorKeeper, bytes_of_mask

CONTRADICTED = f"its q, k, v, mask and scale do not give its output, so the model does more than they show: {EAGER}"
UNVERIFIED = (
    "its output was not seen, or does not have the shape (batch, heads, queries, size) of its q and v, so it could not "
    f"be verified: {EAGER}"
)
CHANGED_IN_PLACE = (
    "its {} changed in place after the call, and clone=False keeps the model's own tensors: capture with clone=True"
)
KEYS_CHANGED = (
    "keys in its cache changed between two calls in a way that torch does not count, such as .data: change "
    "them by operations of torch, or capture the whole text in one forward pass, without a cache"
)
TOO_COARSE = (
    "its scores are so large that {} makes its weights twice or half as large, or worse: capture it without dtype="
)


T = TypeVar("T")
OutputCallback = Callable[[Any], None]  # takes the output (B, H, Q, Dv) of a call that was recorded


# Keys (B, G, length or more, D) of a call that were not compared with the kept ones, their number of changes in place,
# and the number of filled keys.
UncomparedKeys = tuple[Tensor, int, int]


@dataclass
class Continuation:
    """How a call continues a record."""

    order: list[int]  # for each sample of the call, the sample of the record that it continues
    dropped: int = 0  # positions at the end of the record that it does not continue


class Joined(Generic[T]):
    """An attribute of a record; calls that were only noted are joined before it is used."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, record: None, owner: type) -> Joined[T]: ...

    @overload
    def __get__(self, record: Record, owner: type) -> T: ...

    def __get__(self, record: Record | None, owner: type) -> Any:
        if record is None:
            return self
        own = vars(record)
        if own["_noted"]:
            record.join_noted()
        return own[self._name]

    def __set__(self, record: Record, x: T) -> None:
        vars(record)[self._name] = x


class Record:
    """One attention module over all calls that continue one another: the prompt, then each new token.

    Rows stay as the calls had them, whatever beams do; `settle` puts them in order after the block.
    """

    problem: str | None = None  # why it cannot be shown, once that is known

    q, k, v = Joined[GrowingTensor](), Joined[GrowingTensor](), Joined["GrowingTensor | None"]()
    call_rules = Joined[list[CallRules]]()  # one for each call
    text = Joined[RecordText]()
    _lineage = Joined[Lineage]()
    _outputs = Joined[KeptOutputs]()

    def __init__(
        self, name: str, call: ObservedCall, keeper: TensorKeeper, step: ModelCall, heads: Sequence[int] | None = None
    ) -> None:
        self.name, self.cross, self._keeper = name, bool(call.cross), keeper
        self._noted: list[NotedCall] = []  # calls that are not joined yet
        self._heads, self._queries = heads, None if keeper.queries is None else KeptQueries(keeper.queries)
        self._head_numbers = call.numbers_of(heads)
        self.scale, self.softcap = call.scale, call.softcap
        self.sinks = None if call.sinks is None else keeper.parameter(call.sinks)
        rows = None if self._queries is None else self._queries.add(call.q.shape[2])
        q = call.q if rows is None else take_part(call.q, QUERIES, rows)
        self.q, self.k = keeper.growing(q), keeper.growing(call.k)
        self.v = keeper.growing(call.v) if keeper.values and call.v is not None else None
        self.call_rules = []
        self._add_rules(call, 0, rows)
        more = not self.cross and call.k.shape[2] > call.q.shape[2]
        self._before = keys_before(call, keeper.mask(call.mask)) if more else None  # the keys before its first query
        self.text = RecordText.of(call.text, *call.q.shape[::2], cross=self.cross)
        self.calls: list[RecordedCall] = []
        self._lineage = Lineage(step, *call.q.shape[::2])
        self._key_rows: Tensor | None = None  # (B, K): the row of each key of the running samples; None: its own
        self._samples: list[tuple[int, OutputSample]] = []  # a call's first query, some of its output
        self._checks: list[OutputCheck] = []  # of outputs that are verified later, with those of other layers
        self._differences: list[Tensor | Exception] = []  # for each verified call, whether its output differs
        self._rearranged = False  # whether rows of the calls have changed places
        self._is_too_coarse = False  # whether the type in which it is kept changes its weights
        self._outputs = KeptOutputs()
        self._checked: Checked = "all"  # how many rows were compared with the model's output
        self._digest: Digest | None = None  # of the first call's output
        self._maps = call.maps
        self._lost: Tensor | None = None  # (B, H, Q) bool: queries of the first call whose weights are NaN in the model
        # Whether outputs of calls with one new token are kept until the end and verified there.
        self.keeps_outputs = _keeps_all(keeper) and keeper.values and heads is None
        self._repeats = _keeps_all(keeper) and heads is None  # whether its calls may repeat those of other layers
        self._versions = self._count_changes()
        self._changed: dict[str, None] = {}  # names of tensors that the model changed after the call
        self._grown = _cache_state(call)  # of the last call; calls that continue it are recognized by this
        self._is_confirmed = False  # whether keys were compared once after the cache reported their growth
        self._unconfirmed: UncomparedKeys | None = None  # the last ones
        self._lost_keys = False  # whether they turned out to be others
        self._attention: Attention | None = None
        self.target: int | None = None  # the token of its logits; None: the most likely next token
        self._carried: tuple[Attention, tuple[int | None, ...], Attention] | None = None

    @staticmethod
    def needed(call: ObservedCall, keeper: TensorKeeper, how: Continuation | None) -> int:
        """Return the bytes that a call will take."""
        return keeper.size_of(call, None if how is None else call.q.shape[2])

    @property
    def queries(self) -> int:
        """Return the number of queries in its calls, with those that are not kept."""
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
        """Return its last call of the model."""
        return self._noted[-1].step.recorded.step if self._noted else self._lineage.last

    @property
    def size(self) -> int:
        """Return the bytes of q, k and v."""
        return self.q.nbytes + self.k.nbytes + (0 if self.v is None else self.v.nbytes)

    @property
    def nbytes(self) -> int:
        """Return its bytes; a mask that layers share counts in each."""
        return self.size + sum(bytes_of_mask(one) for rules in self.call_rules for one in (rules.mask, rules.bias))

    def continued_by(self, call: ObservedCall, wanted: Continuation | None = None) -> Continuation | None:
        """Return how a call continues this record; None if it does not.

        A decoder's call has the earlier keys and new ones, a cross-attention's the same keys. Beams change places;
        rejected tokens leave the cache again.

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
        known = not dropped and self._holds_first_keys_of(call)
        if known and self._is_confirmed and past == total and not (call.grown and call.grown.cuts):
            return Continuation(list(range(B)))
        now = self._keeper.converted(call.k.narrow(2, 0, past))
        order = _order_of(self._running_keys(stop - past, stop), now, None if wanted is None else wanted.order)
        self._is_confirmed = known and order is not None and is_unchanged(order)
        return None if order is None else Continuation(order, dropped)

    def continues_but_for_samples(self, call: ObservedCall) -> bool:
        """Return whether a call has as many earlier keys as this record, but another number of samples."""
        (B, G, K, D), Q = call.k.shape, call.q.shape[2]
        kept = self.k.shape
        return not self.cross and kept[0] != B and (kept[1], K - Q, kept[3]) == (G, self.k.length, D) and Q < K

    def _holds_first_keys_of(self, call: ObservedCall) -> bool:
        """Return whether the cache only appended new keys since the last call."""
        last, now = self._grown, call.grown
        if not isinstance(last, GrownKeys):
            return last is not None and last.are(call.k)
        if now is None or now.length != call.k.shape[2] or now.before != last.number:
            return False
        return now.kept == call.k.shape[2] - call.q.shape[2]

    def confirm_keys(self) -> None:
        """Compare the last keys with the kept ones, if only the cache's report said that they continue.

        Torch does not count every change, such as one through `.data`.
        """
        last, self._unconfirmed = self._unconfirmed, None
        if last is None or last[0]._version != last[1]:
            return
        keys, _, length = last
        kept = self.k.trim() if self._key_rows is None else self._running_keys(0, self.k.length)
        kept = kept if length == self.k.length else kept.narrow(2, self.k.length - length, length)
        self._lost_keys |= not torch.equal(kept, self._keeper.converted(keys.narrow(2, 0, length)))

    def continued_earlier(self, call: ObservedCall) -> Continuation | None:
        """Return how a call continues this record from a position before its end; None if it does not."""
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
        """Return keys in the order of the samples that run now."""
        keys = self.k.view(start).narrow(2, 0, stop - start)
        return keys if self._key_rows is None else take_rows(keys, self._key_rows[:, start:stop])

    def extend(self, call: ObservedCall, how: Continuation, step: ModelCall) -> None:
        """Append a call that continues this record."""
        if not self._keeper.clone:
            self._changed.update(dict.fromkeys(self._changed_in_place()))
        self.shorten(how.dropped)
        K, new = call.k.shape[2], call.q.shape[2]
        past = K if self.cross else K - new
        first = self.k.length - past
        is_cut = call.grown is not None and call.grown.cuts  # then all keys were compared just now
        is_uncompared = self._is_confirmed and not is_cut and self._holds_first_keys_of(call)
        self._unconfirmed = (call.k, call.k._version, K) if is_uncompared else None
        self._grown = _cache_state(call)
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
        self._attention = None
        if self._queries is not None:
            self._drop_passed()
        if not self._keeper.clone:
            self._versions = self._count_changes()

    def repeated_step(
        self, implementation: Any, arguments: Sequence[Any], settings: Mapping[str, Any]
    ) -> RepeatedStep | None:
        """Return the last call for other layers to repeat; None if they may not.

        Args:
            implementation, arguments, settings: of the call of transformers' interface.
        """
        last = self._grown
        if not self._can_repeat or not isinstance(last, GrownKeys) or last.before is None or len(arguments) != 4:
            return None
        q, k, v, mask = arguments
        rules, keys = self.call_rules[-1], self.k.length
        told = mask is None or isinstance(mask, Tensor)
        if not told or rules.queries != 1 or rules.first + rules.keys != keys or settings.get("dropout"):
            return None
        if rules.keys != last.length or (rules.first and not last.cuts):
            return None
        shapes, kinds = (q.shape, k.shape, v.shape), kinds_of(q, k, v)
        how: tuple[Any, ...] = rules.first, rules.keys, self.queries - 1, self.scale, self.softcap, rules
        how = *how, self._lineage.last_call
        in_one = len(set(kinds)) == 2 and (q.shape[3] == v.shape[3] or self.v is None)  # one type, one device
        given = (q, k, v) if self._keeper.values else (q, k, None)
        kept = tuple(None if x is None else (*x.shape[:2], x.shape[3], x.dtype, x.device) for x in given)
        size = self._keeper.size_of_positions(given, 1)
        how = *how, kept, q.device.type, size, in_one, self._keeper.values, last.cuts
        return RepeatedStep(implementation, mask, settings, shapes, kinds, *how)

    @property
    def _can_repeat(self) -> bool:
        plain = self._repeats and self.sinks is None and not self.cross
        return plain and self._key_rows is None and self._is_confirmed

    def repeating(self, step: RepeatedStep, keys: Tensor) -> GrownKeys | None:
        """Return the cache's report on a call's keys, if the call continues this record as another layer's call did.

        Args:
            step: of the other layer.
            keys: of the call, whose arguments are like the step's.
        """
        last, now = self._grown, grown_keys(keys)
        if now is None or not isinstance(last, GrownKeys) or now.before != last.number or not self._can_repeat:
            return None
        own = vars(self)  # without joining the noted calls
        q, k, v, noted = own["q"], own["k"], own["v"], len(self._noted)
        continues = (
            now.length == step.keys
            and now.kept == step.keys - 1
            and k.length + noted == step.first + step.keys - 1
            and q.length + noted == step.queries
            and now.cuts is step.cuts
            and (self.scale, self.softcap) == (step.scale, step.softcap)
            and (q.kind, k.kind, None if v is None else v.kind) == step.kept
        )
        return now if continues else None

    def repeat(
        self, step: RepeatedStep, text: CallText | None, given: Sequence[Tensor], grown: GrownKeys
    ) -> OutputCallback:
        """Note a call that repeats another layer's; return a function that takes its output.

        Args:
            step: that it repeats.
            text: at its position.
            given: q, k and v, k and v with all keys.
            grown: as `repeating` returned it.
        """
        if len(self._noted) >= AT_ONCE:
            self.join_noted()
        call, keys = NotedCall(step, text, given), given[1]
        if not step.keeps_values:
            q = call.copies[0] if not step.in_one else call.copies[0][:, : step.shapes[0][1]]
            call.verify = functools.partial(self.check_later, step, q, *given[1:])
        self._grown, self._unconfirmed = grown, (keys, grown.version, grown.length)
        self._noted.append(call)
        self._attention = None
        return call

    def check_later(self, step: RepeatedStep, q: Tensor, k: Tensor, v: Tensor, output: Tensor) -> bool:
        """Queue the output of a call without kept values, to be verified with other layers; False if it cannot be.

        Args:
            step: of the call.
            q: (B, H, 1, D), a copy.
            k, v: the model's own, with all keys; they do not change before the model's call has ended.
            output: (B, H, 1, Dv).
        """
        sample = sample_output(output, q, k, v, [0])
        if sample is None:
            return False
        self._checks.append(self._check(rows_to_compare(sample, q, k, v, slice(0, step.keys)), step.rules))
        return True

    def join_noted(self) -> None:
        """Join the calls that were only noted."""
        if not self._noted:
            return
        noted, self._noted = self._noted, []
        first = self.queries
        parts = iter(NotedCall.joined(noted))
        for kept in (self.q, self.k, self.v):
            if kept is not None:
                kept.take_over(next(parts))
        text, rules, lineage, outputs = self.text, self.call_rules, self._lineage, self._outputs
        has_values = self.v is not None
        for query, one in enumerate(noted, first):
            text.append(one.text, one.step.shapes[0][0], 1)
            rules.append(one.step.rules)
            lineage.append_call(one.step.recorded)
            if has_values or not one.has_output:
                outputs.take_over(query, one.output)
        if noted[0].step.cuts:
            places = torch.tensor([one.step.first for one in noted], device=self.k.device)
            self._lost_keys |= not torch.equal(self.k.view().index_select(2, places), next(parts))
        if len(self._outputs) >= AT_ONCE and self._lineage.in_place:
            self._verify_outputs()

    def _drop_passed(self) -> None:
        """Drop the first queries that are certainly not wanted."""
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
        """Keep only the wanted queries, now that their number is known.

        Raises:
            Unreadable: they do not exist.
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
        """Note the rows of the running samples' keys, after they changed places and grew."""
        rows, B = self._key_rows, len(order)
        if rows is None and not is_unchanged(order):
            rows = torch.arange(B, device=self.k.device)[:, None].expand(B, self.k.length)
        if rows is not None:
            own = torch.arange(B, device=rows.device)[:, None].expand(B, new)
            self._key_rows = torch.cat([rows[order], own], 1)

    def branch(self, dropped: int) -> Record:
        """Return a record of all but the last positions, which continues separately."""
        self.join_noted()
        self._verify_checks()
        other = copy.copy(self)
        for name, value in vars(self).items():
            if name == "_samples":
                setattr(other, name, [(first, copy.copy(sample)) for first, sample in value])
            elif isinstance(value, list | dict):
                setattr(other, name, {} if name == "_versions" else copy.copy(value))
            elif isinstance(value, KeptQueries):
                setattr(other, name, copy.deepcopy(value))
            elif isinstance(value, GrowingTensor | Lineage | RecordText | KeptOutputs):
                setattr(other, name, value.copy())
        other.shorten(dropped)
        return other

    def settle(self, chosen: Mapping[int, ChosenRows] | None = None) -> None:
        """Put the rows of all calls in order, so that each sample is one text.

        Args:
            chosen: as `Lineage.rows` takes it; None: samples are those that ran last.
        """
        self.confirm_keys()
        self._drop_unfinished()
        rows = self._lineage.rows(chosen)
        while len(rows) > 1 and set(rows[-1]) == {ENDED}:  # no sample has these queries
            self.shorten(self._lineage.sizes[-1])
            rows.pop()
        self.calls, self._attention = self._lineage.calls(rows), None
        if rows.count(list(range(self.k.shape[0]))) == len(rows):
            self.tensors()  # of their own size, before they are read
            return
        self._changed.update(dict.fromkeys(self._changed_in_place()))
        self._rearranged = True
        sizes = torch.tensor(self._lineage.sizes, device="cpu")
        of_queries = torch.tensor(rows, device="cpu").T.repeat_interleave(sizes, 1)
        self.text.take(of_queries)
        self._outputs.take(of_queries.clamp(min=0))
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

    def _drop_unfinished(self) -> None:
        """Drop the last call if it gave no output, because the model was interrupted in it."""
        expected = self._outputs.expected
        if expected[:-1] or not expected or not expected[0]:
            return
        by = self.queries - expected[0]
        if by == self._lineage.last_call.queries:
            self.shorten(by)

    def output_callback(self, call: ObservedCall, first: int, *, in_step: bool = False) -> OutputCallback:
        """Return a function that takes a call's output and verifies it: at once, or with others if it has one query.

        Args:
            call: the call.
            first: the query of the record at which it begins.
            in_step: whether a call of the model is running. Its end verifies the queued outputs, and until then the
                keys and values of this call do not change.
        """
        self._outputs.expect(first)
        if not first or call.q.shape[2] > 1 or call.dropout:
            return functools.partial(self.add_output, call, first)
        if self.keeps_outputs:
            return functools.partial(self._keep_output, first)
        return functools.partial(self.add_output, call, first, in_step=in_step)

    def _keep_output(self, query: int, output: Any) -> None:
        B, H, _, _ = self.q.shape
        self._outputs.add(query, output, (B, H, 1, self.k.shape[3] if self.v is None else self.v.shape[3]))
        if len(self._outputs) >= AT_ONCE and self._lineage.in_place:
            self._verify_outputs()

    def take_checks(self) -> list[OutputCheck]:
        """Return the outputs that are not verified yet, and forget them."""
        checks, self._checks = self._checks, []
        found = self._outputs.pop()
        if found is None or self.v is None:
            return checks
        queries, output = found
        starts = itertools.accumulate((one.queries for one in self.call_rules), initial=0)
        of_query = dict(zip(starts, self.call_rules, strict=False))
        rules = self._keeper.joined([of_query[query] for query in queries], self.k.length, self.k.device)
        q, k, v = take_part(self.q.view(), QUERIES, queries), self.k.view(), self.v.view()
        sample = sample_output(output, q, k, v, range(len(queries)), copied=False)
        assert sample is not None
        return [*checks, self._check(rows_to_compare(sample, q, k, v, copied=False), rules)]

    def _check(self, rows: ComparedRows, rules: CallRules) -> OutputCheck:
        return OutputCheck(rows, rules, self.scale, self.softcap, self.sinks, self._differences)

    def pop_checks(self) -> list[OutputCheck]:
        """Return the checks that are queued to run with other layers, and forget them."""
        checks, self._checks = self._checks, []
        return checks

    def _verify_checks(self) -> None:
        """Run the queued checks."""
        with torch.no_grad():
            verify(self.pop_checks())

    def _verify_outputs(self) -> None:
        """Verify calls by their kept outputs, against the kept q, k, v and their rules."""
        with torch.no_grad():
            verify(self.take_checks())

    def add_output(self, call: ObservedCall, first: int, output: Any, *, in_step: bool = False) -> None:
        """Verify a call by some rows of its output before anything changes; or later, if the whole output is kept.

        Args:
            call: the call.
            first: the query of the record at which it begins.
            output: as `verification.sample_output` takes it.
            in_step: as `output_callback` takes it.
        """
        kept = self._as_kept(call)
        sample = self._verify_with_step(call, output) if in_step else None
        if kept is not call:
            sample = self._verify_later(kept, output)
        if sample is None:
            found = compare_output(kept, output)
            if found is None:
                return
            sample = found.sample
            self._differences.append(found.differs)
        self._outputs.has_seen(first)
        self._note_checked(call, first, sample, output)
        if (kept_type := self._keeper.dtype) is not None:
            self._is_too_coarse |= is_changed_by_rounding(call.q, call.k, call.scale, kept_type)
        whole = self._heads is None and self._queries is None
        if sample.dropout is None and self._keeper.dtype is None and whole:
            self._samples.append((first, sample))
            if not first and self._keeper.clone and self._keeper.device is None:
                self._mark_lost(call, output)

    def _mark_lost(self, call: ObservedCall, output: Any) -> None:
        """Make queries NaN whose outputs are, though q, k and v are finite: their products overflowed in float16."""
        if not isinstance(output, Tensor) or output.dtype is not torch.float16 or call.v is None:
            return
        lost = output.detach().isnan().all(-1) & call.q.isfinite().all(-1)
        finite = call.k.isfinite().flatten(2).all(-1) & call.v.isfinite().flatten(2).all(-1)
        lost &= finite.repeat_interleave(lost.shape[1] // finite.shape[1], 1)[..., None]
        self.q.view()[:, :, : lost.shape[2]].masked_fill_(lost[..., None], math.nan)
        self._lost = lost

    def _note_checked(self, call: ObservedCall, first: int, sample: OutputSample, output: Any) -> None:
        """Note whether all rows of a call are compared; else keep sums of its output, if it is the first."""
        (B, H, Q, _), v = call.q.shape, call.v
        if sample.dropout is None and (len(sample.samples), len(sample.heads), len(sample.rows)) == (B, H, Q):
            return
        whole = self._heads is None and self._queries is None and self._keeper.dtype is None
        self._checked = "some"
        if whole and not first and isinstance(output, Tensor) and v is not None and self._keeper.values:
            self._checked, self._digest = "rows", Digest.of(output, call.q, v)

    def _witness(self) -> Witness:
        digest, lost = (self._digest, self._lost) if self._keeper.clone and not self._rearranged else (None, None)
        checked: Checked = self._checked if digest or self._checked != "rows" else "some"
        lost = lost if lost is not None and bool(lost.any()) else None
        return Witness(checked, self._keeper.report, digest, lost, maps=self._maps)

    def _verify_later(self, kept: ObservedCall, output: Any) -> OutputSample | None:
        """Keep some rows of a short call's output, to be verified with other layers; None if they are not.

        Args:
            kept: the first call, with private copies of q, k and v.
            output: of the call.
        """
        if kept.v is None or not isinstance(output, Tensor) or max(kept.k.numel(), kept.v.numel()) > WAITING:
            return None
        sample = sample_output(output, kept.q, kept.k, kept.v)
        if sample is not None:
            rows = rows_to_compare(replace(sample), kept.q, kept.k, kept.v)  # samples follow reordered beams
            self._checks.append(self._check(rows, self.call_rules[0]))
        return sample

    def _verify_with_step(self, call: ObservedCall, output: Any) -> OutputSample | None:
        """Queue a call of one query, to be verified with other layers after the model's call; None if it cannot be.

        Args:
            call: the call; its keys and values are the model's own.
            output: of the call.
        """
        if call.v is None or not isinstance(output, Tensor) or isinstance(call.bias, Tensor):
            return None  # a bias of many layers would be held
        sample = sample_output(output, call.q, call.k, call.v)
        if sample is not None:
            rules = self._rules_of(call, 0)  # layers share the mask; their outputs are computed together by it
            self._checks.append(self._check(rows_to_compare(sample, call.q, call.k, call.v), rules))
        return sample

    def _as_kept(self, call: ObservedCall) -> ObservedCall:
        """Return a first call with the kept tensors, if they are the whole call: contiguous, so faster to read."""
        keeper, v = self._keeper, self.v
        as_it_is = keeper.clone and keeper.device is None and keeper.dtype is None
        whole = self._heads is None and self._queries is None and len(self.call_rules) == 1
        if not as_it_is or not whole or v is None:
            return call
        return replace(call, q=self.q.view(), k=self.k.view(), v=v.view())

    def fault(self) -> str | None:
        """Return why this record cannot be shown, such as a contradicted output; None if it can."""
        self._verify_outputs()
        if self._outputs.expected:
            return UNVERIFIED
        if self._lost_keys:
            return KEYS_CHANGED
        if changed := [*self._changed, *self._changed_in_place()]:  # its outputs may have changed too
            return CHANGED_IN_PLACE.format(" and ".join(changed))
        error = next((one for one in self._differences if isinstance(one, Exception)), None)
        if error is not None:
            raise error
        if any(map(bool, self._differences)) or self._kept_is_contradicted():
            return CONTRADICTED
        return TOO_COARSE.format(f"keeping it in {self._keeper.dtype}") if self._is_too_coarse else None

    def _kept(self) -> dict[str, GrowingTensor]:
        return {"q": self.q, "k": self.k} | ({} if self.v is None else {"v": self.v})

    def _count_changes(self) -> dict[str, int]:
        """Return the number of changes in place of each kept tensor of the model, as torch counts them."""
        if self._keeper.clone:
            return {}
        counts = {name: kept.version() for name, kept in self._kept().items()}
        return {name: count for name, count in counts.items() if count is not None}

    def _changed_in_place(self) -> list[str]:
        """Return the names of tensors that the model has changed since they were kept."""
        now = self._count_changes()
        return [name for name, count in self._versions.items() if now.get(name, count) != count]

    def _kept_is_contradicted(self) -> bool:
        """Return whether joined or uncopied calls give another output; drops the samples."""
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
        self._grown = self._unconfirmed = None
        self._verify_checks()  # before the memory that they read is overwritten
        if self._digest is not None and self.queries - by < self._digest.sums.shape[2]:
            self._digest = None  # other calls may have these rows later
        self._lineage.shorten(by)
        for kept in () if self.cross else (self.k, self.v):
            if kept is not None:
                kept.shorten(by)
        self._key_rows = None if self._key_rows is None or self.cross else self._key_rows[:, : self.k.length]
        self.text.shorten(self.queries - by)
        self._outputs.shorten(self.queries - by)
        by = by if self._queries is None else self._queries.remove(by)
        self.q.shorten(by)
        while by and self.call_rules[-1].queries <= by:
            by -= self.call_rules.pop().queries
        if by:
            last = self.call_rules[-1]
            self.call_rules[-1] = shorten_rules(last, last.queries - by, min(last.keys, self.k.length - last.first))
        self._samples = [(first, one) for first, one in self._samples if first + max(one.rows) < self.queries]

    @property
    def positions(self) -> list[int] | None:
        """Return the kept queries among all; None if all are kept."""
        if self._queries is None or len(self._queries.positions) == self._queries.count:
            return None
        return self._queries.positions

    @property
    def _keys_before(self) -> int | None:
        """The number of keys before the first query, as of an earlier turn; None: zero, or unknown."""
        more = self.k.length - self.queries
        if self.cross or more < 0:
            return None
        return self._before if more else None if self.positions is None else 0

    def tensors(self) -> dict[str, Tensor]:
        """Return q, k, and v if it is kept, each in memory of its own size."""
        return {name: kept.trim() for name, kept in self._kept().items()}

    def _joined_rules(self) -> CallRules:
        """Return the rules of all calls as one, and keep them so."""
        if len(self.call_rules) > 1:
            self._verify_outputs()
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

    def read(self) -> None:
        """Read it whole, as `attention` and `tokens` of a capture do; raise what they would."""
        if self._queries is not None:
            self._queries.chosen()  # or there are none to read
        self.attention  # noqa: B018 - it is kept
        self.text.facts()
        if not self._keeper.clone:
            self._attention = None  # it is made again, and the model's own tensors compared, when it is asked for

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
            att = att.as_part(self._head_numbers, self.positions, self._keys_before, self.cross)
            att = witnessed(att, self._witness())
            if any(call.step.stream is not None for call in self.calls):
                at = tuple(self.calls), self._heads, self.positions, self.k.length, self.cross, lambda: self.text.real
                att = with_sources(att, RecordSources(self.name, *at))
            self._attention = att
        return self._carrying(self._attention)

    def _carrying(self, att: Attention) -> Attention:
        """Return its attention with the carried parts, made again if a gradient has arrived."""
        known = (self.target, *(id(one) for call in self.calls for one in gradients_of(call, self.name)))
        if self._carried is None or self._carried[:2] != (att, known):
            found = carry(att, self.name, self.calls, self._heads, self.positions, lambda: self.text.real)
            chosen = self.target if found.carries is not None and found.carries.readout is not None else None
            found = found if chosen is None else found.with_target(chosen)
            self._carried = att, known, found
        return self._carried[2]


def _keeps_all(keeper: TensorKeeper) -> bool:
    """Return whether all positions are kept unchanged; the model's own first tensors are copied when they grow."""
    return keeper.device is None and keeper.dtype is None and keeper.queries is None


def _cache_state(call: ObservedCall) -> GrownKeys | SeenKeys | None:
    """Return the state of a call's keys: for cross-attention the tensor, otherwise the cache's report."""
    if call.cross:
        return None if call.k.is_inference() else SeenKeys(weakref.ref(call.k), call.k._version)
    return call.grown if call.grown is not None and call.grown.length == call.k.shape[2] else None


def _order_of(before: Tensor, now: Tensor, wanted: list[int] | None) -> list[int] | None:
    """Return each sample's earlier sample with the same keys (B, G, K, D), itself if possible; None: not all have one.

    `wanted` is used if it fits: samples may be alike in this layer and not in another.
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
