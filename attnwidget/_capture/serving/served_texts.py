"""Whole texts from the pieces of an engine's steps: joined by position, checked by the output, as a capture keeps them.

A later piece counts, since a preempted request is computed again and a rejected draft is replaced. Where both have the
same tokens, they must agree.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._engine.base import witnessed
from ..._rules.row_spans import Spans, simplify
from ..._utils.choices import Numbers
from ...attention import Attention
from ..call.call_rules import CallRules
from ..call.call_text import UNKNOWN, CallText, ImageTokens, RecordText
from ..call.observed_call import ObservedCall, Unreadable
from ..files.capture_file import LoadedRecord
from ..modules.selection import with_heads
from ..records.overview_record import reduced
from ..records.record import CONTRADICTED, TOO_COARSE
from ..verify.noise import UNIT, Precision
from ..verify.verification import OutputSample, differs, is_changed_by_rounding
from ..verify.witness import CaptureLacks, Witness
from .served_steps import EngineStep, RequestPiece, ServedRequest, StepRecorder, short_id
from .vllm_names import NewRequest

CELLS_AT_ONCE = 1 << 22  # of weights that are computed to check outputs
DISAGREE = 64  # units of rounding by which two computations of one key may differ, relative to the largest number
HOLE = (
    "its tokens {} to {} were computed outside of the block, and their keys are not in the cache any more: run the "
    "whole request in it"
)
DISAGREEMENT = "its token {} was computed twice, and its keys differ by more than rounding"
NO_ROWS = "queries={!r} names none of its {:,} queries: ask for others"
LOST_KEYS = (
    "keys that its queries attend to are not in the cache any more: start the engine with enable_prefix_caching=False"
)
CUT = "the limit was reached after {:,} of its tokens: give a larger limit=, or keep less"


class UsedPiece(NamedTuple):
    """The part of a piece that counts: its tokens from one position to another."""

    step: EngineStep
    piece: RequestPiece
    start: int
    stop: int


@dataclass(frozen=True)
class TextPlan:
    """Which pieces a text consists of, for all layers.

    Attributes:
        request: the text's.
        first: the position of its first recorded token; keys before it come from the cache.
        used: the pieces, in the order of the text.
        rows: the positions of the kept queries.
        ids: of all its tokens, `UNKNOWN` for an unknown one.
    """

    request: ServedRequest
    first: int
    used: list[UsedPiece]
    rows: list[int]
    ids: list[int]

    @property
    def length(self) -> int:
        """The number of its tokens."""
        return self.used[-1].stop


def plan_of(request: ServedRequest, answer: Sequence[int] | None, queries: Any) -> TextPlan | None:
    """Return the pieces of a text; None if nothing of it was recorded.

    Args:
        request: with all its pieces.
        answer: the tokens of its answer, as the engine gave them to its user; None if they are not known: then the
            drafts of its last step are left out.
        queries: the rows to keep, as in `ServedOptions`.

    Raises:
        Unreadable: it has a hole, or none of the queries.
    """
    used: list[UsedPiece] = []
    for step, piece in request.pieces:
        while used and used[-1].stop > piece.position:
            last = used.pop()
            if last.start < piece.position:
                used.append(last._replace(stop=piece.position))
        if used and used[-1].stop < piece.position:
            raise Unreadable(HOLE.format(used[-1].stop, piece.position - 1))
        used.append(UsedPiece(step, piece, piece.position, piece.stop))
    used = _as_answered(used, request, answer)
    if not used:
        return None
    ids = _ids_of(request, used)
    rows = _rows_of(request, used, queries)
    return TextPlan(request, used[0].start, used, rows, ids)


def _tokens_of(one: UsedPiece) -> list[int]:
    place = _flat_start(one) + one.start - one.piece.position
    return [int(token) for token in one.step.tokens[place : place + one.stop - one.start]]


def _flat_start(one: UsedPiece) -> int:
    """Return the place of a piece's first token among all tokens of its step."""
    first = one.piece.first
    return first if one.step.keys is None else int(one.step.keys[first])


def _as_answered(used: list[UsedPiece], request: ServedRequest, answer: Sequence[int] | None) -> list[UsedPiece]:
    """Return the pieces without rejected drafts, and without tokens after the end of the answer."""
    prompt = request.prompt
    if answer is None or prompt is None:
        if used and used[-1].piece.drafts:
            last = used[-1]
            used[-1] = last._replace(stop=max(last.start, last.stop - last.piece.drafts))
    else:
        for i, one in enumerate(used):
            for at, token in zip(range(one.start, one.stop), _tokens_of(one), strict=True):
                if at >= prompt and (at - prompt >= len(answer) or token != answer[at - prompt]):
                    used = [*used[:i], one._replace(stop=at)]
                    break
            else:
                continue
            break
    return [one for one in used if one.stop > one.start]


def _ids_of(request: ServedRequest, used: Sequence[UsedPiece]) -> list[int]:
    known = request.facts.known[: used[0].start]
    ids = known + [UNKNOWN] * (used[0].start - len(known))
    for one in used:
        ids += _tokens_of(one)
    return ids


def _rows_of(request: ServedRequest, used: Sequence[UsedPiece], queries: Any) -> list[int]:
    """Return the positions of the queries to keep, among those that were recorded."""
    length, prompt = used[-1].stop, request.prompt or 0
    kept = [one.piece.position + row for one in used for row in one.piece.rows]
    there = {at for one, at in ((one, at) for one in used for at in _kept_positions(one))}
    if isinstance(queries, Numbers):
        wanted = set(queries.of(length))
        there &= wanted
    elif queries is not None:
        there = {at for at in there if (at < prompt) == (queries == "prompt")}
    if not there or not kept:
        raise Unreadable(NO_ROWS.format(queries, length))
    return sorted(there)


def _kept_positions(one: UsedPiece) -> list[int]:
    return [at for row in one.piece.rows if one.start <= (at := one.piece.position + row) < one.stop]


# The tensors of one layer.


def record_of(recorder: StepRecorder, plan: TextPlan, name: str, options: Any, lacks: CaptureLacks) -> LoadedRecord:
    """Return a layer's attention in a text, checked by its output.

    Args:
        recorder: of the steps.
        plan: of the text.
        name: of the layer.
        options: what is kept, `ServedOptions`.
        lacks: what the capture lacks, shared by all its records.

    Raises:
        Unreadable: it cannot be shown; the message has the reason.
    """
    layer = recorder.layers[name]
    source = layer.key_source or name
    for of in (name, source):
        if of in recorder.skipped:
            raise Unreadable(recorder.skipped[of])
    rules = layer.rules()
    keys, values, there = _keys_of(plan, source)
    q = _queries_of(plan, name)
    if q.dtype != keys.dtype:  # the cache rounded the keys
        q, keys, values = q.float(), keys.float(), values.float()
    spans = _spans_of(plan, name, rules.left, rules.right, is_encoder=layer.is_encoder)
    _refuse_lost(there, spans)
    call = ObservedCall(
        _as_heads(q),
        _as_heads(keys),
        _as_heads(values),
        rules.scale,
        rules.softcap,
        spans,
        _bias_of(rules.slopes, plan.length),
        cross=False,
        sinks=None if rules.sinks is None else rules.sinks.detach().float().cpu(),
        heads=layer.heads,
    )
    _check(plan, name, call)
    return _kept(recorder, plan, name, call, options, lacks)


def _as_heads(x: Tensor) -> Tensor:
    """Return tensors (tokens, heads, size) as (1, heads, tokens, size)."""
    return x.transpose(0, 1)[None].contiguous()


def _keys_of(plan: TextPlan, name: str) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return keys and values of a text, (tokens, G, size), and which are still in the cache; None: all."""
    keys: list[Tensor] = []
    values: list[Tensor] = []
    there: Tensor | None = None
    if plan.first:
        found = next((one for count, one in plan.request.cached.get(name, ()) if count >= plan.first), None)
        if found is None:
            raise Unreadable(HOLE.format(0, plan.first - 1))
        keys.append(found.keys[: plan.first])
        values.append(found.values[: plan.first])
        if not bool(found.there[: plan.first].all()):
            there = torch.cat(
                [found.there[: plan.first], torch.ones(plan.length - plan.first, dtype=torch.bool, device="cpu")]
            )
    for one in plan.used:
        own = one.step.layers[name]
        assert own.k is not None
        assert own.v is not None
        at = one.piece.first + one.start - one.piece.position
        keys.append(own.k[at : at + one.stop - one.start])
        values.append(own.v[at : at + one.stop - one.start])
    found_keys = torch.cat([x.to(keys[-1].dtype) for x in keys])
    _refuse_disagreement(plan, name, found_keys)
    return found_keys, torch.cat([x.to(values[-1].dtype) for x in values]), there


def _refuse_disagreement(plan: TextPlan, name: str, keys: Tensor) -> None:
    """Raise if keys that were computed twice, of the same tokens, differ by more than rounding."""
    used = {id(one.piece) for one in plan.used if (one.start, one.stop) == (one.piece.position, one.piece.stop)}
    bound = DISAGREE * UNIT[keys.dtype] * float(keys.float().abs().max())
    for step, piece in plan.request.pieces:
        own = step.layers.get(name)
        if id(piece) in used or own is None or own.k is None:
            continue
        stop = min(piece.stop, plan.length)
        whole = UsedPiece(step, piece, piece.position, stop)
        same = [a == b for a, b in zip(_tokens_of(whole), plan.ids[piece.position : stop], strict=True)]
        count = same.index(False) if False in same else len(same)  # a key depends on the tokens before it
        apart = own.k[piece.first : piece.first + count].float() - keys[piece.position : piece.position + count].float()
        far = (apart.abs().amax((1, 2)) > bound).nonzero().flatten().tolist()
        if far:
            raise Unreadable(DISAGREEMENT.format(piece.position + far[0]))


def _queries_of(plan: TextPlan, name: str) -> Tensor:
    """Return the kept queries, (rows, H, D)."""
    wanted, found = set(plan.rows), []
    for one in plan.used:
        q = one.step.layers[name].q
        places = [one.piece.first_row + i for i, at in _rows_in(one) if at in wanted]
        found.append(q[places])
    return torch.cat(found)


def _rows_in(one: UsedPiece) -> Iterator[tuple[int, int]]:
    """Yield the number of each kept query of a piece, and its position in the text."""
    for i, row in enumerate(one.piece.rows):
        at = one.piece.position + row
        if one.start <= at < one.stop:
            yield i, at


def _spans_of(plan: TextPlan, name: str, left: int | None, right: int | None, *, is_encoder: bool) -> Spans:
    """Return the keys that each kept query may attend to."""
    wanted = set(plan.rows)
    starts: list[int] = []
    stops: list[int] = []
    for one in plan.used:
        causal = one.step.layers[name].is_causal
        for _, at in _rows_in(one):
            if at not in wanted:
                continue
            last = at if causal else min(one.piece.length, plan.length) - 1
            last = last if causal or right is None or not is_encoder else min(last, at + right)
            starts.append(0 if left is None else max(0, at - left))
            stops.append(last + 1)
    ends = torch.tensor([starts, stops], dtype=torch.int32, device="cpu")
    return Spans(ends[0][None, None], ends[1][None, None])


def _refuse_lost(there: Tensor | None, spans: Spans) -> None:
    """Raise if a query may attend to a key that the cache has lost."""
    if there is None:
        return
    lost = (~there).int().cumsum(0)
    before = torch.cat([lost.new_zeros(1), lost])
    starts, stops = spans.starts[0, 0].long(), spans.stops[0, 0].long()
    if bool((before[stops] > before[starts]).any()):
        raise Unreadable(LOST_KEYS)


def _bias_of(slopes: Tensor | None, keys: int) -> Tensor | None:
    """Return the bias of ALiBi (Press et al. 2022, "Train Short, Test Long"), but for a constant of each row."""
    if slopes is None:
        return None
    return (slopes.detach().float().cpu()[:, None] * torch.arange(keys, dtype=torch.float32, device="cpu"))[
        None, :, None
    ]


def _check(plan: TextPlan, name: str, call: ObservedCall) -> None:
    """Compute the rows whose outputs were kept again, and compare.

    Raises:
        Unreadable: some of them differ by more than rounding.
    """
    assert call.v is not None
    place = {at: i for i, at in enumerate(plan.rows)}
    rows: list[int] = []
    outputs: list[Tensor] = []
    for one in plan.used:
        positions = dict(_rows_in(one))
        own = one.step.layers[name].output
        for j, i in enumerate(one.piece.checked):
            if i in positions and positions[i] in place:
                rows.append(place[positions[i]])
                outputs.append(own[one.piece.first_checked + j])
    if not rows:
        return
    output = torch.stack(outputs).transpose(0, 1)[None]  # (1, H, rows, Dv)
    groups, share, keys = call.k.shape[1], call.q.shape[1] // call.k.shape[1], call.k.shape[2]
    rules = CallRules(call.q.shape[2], keys, 0, False, call.mask, call.bias)
    how: dict[str, Any] = {"scale": call.scale, "softcap": call.softcap, "sinks": call.sinks, "rules": rules}
    precision = Precision.of(output, call.q, call.v)
    step = max(1, CELLS_AT_ONCE // (keys * share * groups))
    for turn, first in enumerate(range(0, len(rows), step)):
        some = rows[first : first + step]
        own_groups = range(groups) if len(some) * keys * share * groups <= CELLS_AT_ONCE else [turn % groups]
        heads = [group * share + i for group in own_groups for i in range(share)]
        own = output[:, heads, first : first + step]
        sample = OutputSample(some, [0], heads, own, precision)
        if bool(differs(sample, call.q, call.k, call.v, first=0, **how)):
            raise Unreadable(CONTRADICTED)


def _kept(
    recorder: StepRecorder, plan: TextPlan, name: str, call: ObservedCall, options: Any, lacks: CaptureLacks
) -> LoadedRecord:
    """Return a checked call as it is kept: some heads, another type, or an overview."""
    heads = recorder.heads[name]
    if options.dtype is not None and is_changed_by_rounding(call.q, call.k, call.scale, options.dtype):
        raise Unreadable(TOO_COARSE.format(f"keeping it in {options.dtype}"))
    ids = torch.tensor([plan.ids], dtype=torch.int64, device="cpu")
    text = _text_of(plan, ids, recorder.image_token)
    numbers = call.numbers_of(heads)
    if call.heads is not None and numbers is not None and list(numbers) == list(range(call.heads.total)):
        numbers = None
    call = call if heads is None else with_heads(call, heads)
    rows = None if plan.rows == list(range(plan.length)) else tuple(plan.rows)
    mask = simplify(call.mask, 1, len(plan.rows), plan.length)
    how: dict[str, Any] = {"scale": call.scale, "softcap": call.softcap, "sinks": call.sinks, "bias": call.bias}
    given = (call.q, call.k, *(() if call.v is None or not options.values else (call.v,)))
    tensors = [x if options.dtype is None else x.to(options.dtype) for x in given]
    part = (None if numbers is None else tuple(numbers), rows, 0 if rows is not None else None, False)
    if options.keep == "overview":
        att: Attention = reduced(Attention(tensors[0], tensors[1], mask=mask, **how).as_part(*part), None, ids)
    else:
        att = Attention(*tensors, mask=mask, **how)
    return LoadedRecord(name, False, witnessed(att.as_part(*part), Witness("some", lacks)), text)


def _text_of(plan: TextPlan, ids: Tensor, image_token: int | None) -> RecordText:
    text = RecordText.of(CallText(ids=ids), 1, plan.length, cross=False)
    prompt = plan.request.prompt
    if prompt is not None and 0 < prompt < plan.length:
        text.calls = [prompt, *[1] * (plan.length - prompt)]
    if image_token is not None and image_token in plan.ids:
        text.images = ImageTokens(image_token)
    return text


SAMPLE = re.compile(r"(\d+)_(.+)")  # the id of one of several samples


def names_of(requests: Iterable[NewRequest]) -> dict[str, str]:
    """Return the names of requests as their users know them, by id.

    >>> request = NewRequest("7-0123abcd", [5], [5], None, None)
    >>> samples = [request._replace(id="0_8-0123abcd"), request._replace(id="1_8-4567cdef", adapter="poet")]
    >>> [*names_of([request, *samples]).values()]
    ['7', '8, sample 0', '8, sample 1 (poet)']
    """
    found = {one.id: SAMPLE.fullmatch(one.id) for one in requests}
    parents = Counter(short_id(sample[2]) for sample in found.values() if sample is not None)
    names = {}
    for one in requests:
        sample = found[one.id]
        name = short_id(one.id)
        if sample is not None and parents[short_id(sample[2])] > 1:
            name = f"{short_id(sample[2])}, sample {sample[1]}"
        names[one.id] = name if one.adapter is None else f"{name} ({one.adapter})"
    return names


class ServedTexts(NamedTuple):
    """The records of texts by request and layer, both by name, and why others are not there."""

    forwards: dict[str, dict[str, LoadedRecord]]
    skipped: dict[str, str]


def texts_of(recorder: StepRecorder, answers: Mapping[str, Sequence[int]] | None, options: Any) -> ServedTexts:
    """Return the texts that were recorded.

    Args:
        recorder: of the steps.
        answers: of the engine, by request; None if they are not known.
        options: what is kept, `ServedOptions`.
    """
    found: dict[str, dict[str, LoadedRecord]] = {}
    skipped = dict(recorder.skipped)
    lacks = CaptureLacks()
    names = names_of([request.facts for request in recorder.requests.values()])
    for request in recorder.requests.values():
        own = names[request.facts.id]
        answer = None if answers is None or request.began_before else answers.get(request.facts.id, ())
        try:
            plan = plan_of(request, answer, options.queries)
        except Unreadable as error:
            skipped[own] = str(error)
            continue
        if request.is_cut:
            skipped[own] = CUT.format(0 if plan is None else plan.length)
        records = {} if plan is None else _records_of(recorder, plan, options, lacks, skipped)
        if records:
            found[own] = records
    return ServedTexts(found, skipped)


def _records_of(
    recorder: StepRecorder, plan: TextPlan, options: Any, lacks: CaptureLacks, skipped: dict[str, str]
) -> dict[str, LoadedRecord]:
    """Return the records of a text by layer; add the reasons why others are not there."""
    found = {}
    for name in recorder.layers:
        try:
            found[name] = record_of(recorder, plan, name, options, lacks)
        except (Unreadable, ValueError) as error:
            skipped.setdefault(name, str(error))
    return found
