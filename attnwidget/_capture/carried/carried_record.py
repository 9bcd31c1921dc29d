"""What the weights of a record carry, put together of what each call of the model has shown."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..._engine.carried import Carrying
from ...attention import Attention
from ..call.lineage import ENDED, RecordedCall
from .output_watcher import NO_GRADIENT, NOT_WHOLE, OTHER_WAY, CallFacts
from .projections import NOT_SEEN, Projection
from .readout import LogitReadout
from .residual_stream import NO_WAY

NO_LIKELY = (
    "the most likely next token was not kept, as there were too many logits to look through: choose a token, "
    "cap.target = … or att.with_target(id)"
)
OTHER_SIZE = "its output projection gives {} numbers, and the final norm reads {}: another map is between them"
TURNED = (
    "it computes with positions before samples, or the model lets them change places on the way to its logits, so that "
    "which row of the final norm and of the logits is a query's is not known: give it by att.carrying(direction=…, "
    "scale=…)"
)
NO_PATH = (
    "what the attention adds does not reach the final norm by additions and norms alone: a gate, a layer or another "
    "function is between, so that there is no direct path to read"
)


def gradients_of(call: RecordedCall, name: str) -> list[Tensor | str]:
    """Return the gradient that has come back to a record's call, if it has."""
    facts: CallFacts | None = call.step.facts
    return [facts.gradients[name]] if facts is not None and name in facts.gradients else []


def carrying_of(
    name: str,
    calls: Sequence[RecordedCall],
    heads: Sequence[int] | None,
    positions: Sequence[int] | None,
    real: Tensor | None,
) -> Carrying | None:
    """Return what the weights of a record carry; None where nothing was watched.

    Args:
        name: of the record.
        calls: of the model, of which it is made.
        heads: which heads of the model it has; None: all.
        positions: which queries of all calls it has; None: all.
        real: (B, queries) bool, which are no padding; None where that is not known.
    """
    facts = [call.step.facts for call in calls]
    if not facts or any(one is None or name not in one.outputs for one in facts):
        return None
    known: list[CallFacts] = [one for one in facts if one is not None]
    refusals: dict[str, str] = {}
    found: dict[str, Any] = {}
    projection = known[0].outputs[name].found
    failed = next((one.outputs[name].found for one in known if isinstance(one.outputs[name].found, str)), None)
    if isinstance(projection, Projection) and failed is None:
        found |= {"w_o": projection.weight, "heads": None if heads is None else tuple(heads)}
        found["projection"] = projection.name
    else:
        refusals |= dict.fromkeys(("value_norm", "logit"), str(failed or NOT_SEEN))
    readout = _readout_of(name, known, projection)
    if isinstance(readout, str):
        refusals.setdefault("logit", readout)
    else:
        of_logit = _logit_of(name, calls, known, readout, positions, real)
        refusals |= of_logit.pop("refusals", {}) if "logit" not in refusals else {}
        found |= of_logit
    gradient = _joined(calls, [one.gradients.get(name) for one in known], heads)
    if isinstance(gradient, str):
        refusals["saliency"] = gradient
    else:
        found["grad_output"] = gradient if positions is None else gradient[:, :, list(positions)]
    targets = found.pop("targets", None)
    made = Carrying(**found, refusals=refusals)
    return made if targets is None else made.with_targets(targets)


def _readout_of(name: str, facts: Sequence[CallFacts], projection: Projection | str) -> LogitReadout | str:
    """Return what the model reads in the end, where what an attention adds is in that; in words, why not."""
    last = facts[-1].readout
    failed = next((one.readout for one in facts if isinstance(one.readout, str)), None)
    if failed is not None or isinstance(last, str):
        return failed or NOT_WHOLE
    if any(name in one.not_followed for one in facts):
        return OTHER_WAY
    if any(one.terms.get(name) != facts[-1].terms.get(name, NO_WAY) for one in facts):
        return NO_PATH
    if name in facts[-1].terms and facts[-1].terms[name].turned:
        return TURNED
    sizes = (0 if isinstance(projection, str) else projection.weight.shape[2], last.unembedding.weight.shape[1])
    if sizes[0] != sizes[1] and not isinstance(projection, str):
        return OTHER_SIZE.format(*sizes)
    return last.through(facts[-1].terms[name].norms)


def _logit_of(
    name: str,
    calls: Sequence[RecordedCall],
    facts: Sequence[CallFacts],
    readout: LogitReadout,
    positions: Sequence[int] | None,
    real: Tensor | None,
) -> dict[str, Any]:
    """Return what the logit of a token is made of: the scale at each query, and the token that is most likely next."""
    found: dict[str, Any] = {"readout": readout, "factor": facts[-1].terms[name].factor}
    found["is_before_cap"] = readout.unembedding.softcap
    if readout.norm is not None or readout.way:
        parts = [_of_rows(_scale_of(one, readout), call) for one, call in zip(facts, calls, strict=True)]
        if any(part is None for part in parts):
            return {}
        scale = torch.cat([part for part in parts if part is not None], 1)
        found["scale"] = scale if positions is None else scale[:, list(positions)]
    likely = facts[-1].next_tokens
    if likely is not None:
        choices = _last_likely(likely, calls[-1], real)
        if choices is None:
            return {**found, "refusals": {"logit": NO_LIKELY}}
        found |= {"choices": choices, "targets": tuple(row[0] for row in choices)}
    return found


def _scale_of(facts: CallFacts, readout: LogitReadout) -> Tensor | None:
    """Return what the norms that a readout goes through have divided by, (B, Q); None where that is not known."""
    scales = [facts.scales.get(one) for one in readout.way] + ([] if readout.norm is None else [facts.norm_scale])
    found = [one for one in scales if one is not None]
    return functools.reduce(torch.mul, found) if len(found) == len(scales) else None


def _last_likely(likely: Tensor, call: RecordedCall, real: Tensor | None) -> tuple[tuple[int, ...], ...] | None:
    """Return the most likely tokens after the last of each sample that is no padding; None where that was not kept."""
    B, n, _ = likely.shape
    found = []
    for sample, row in enumerate(call.rows):
        own = None if real is None else real[sample, -call.queries :].nonzero()
        last = call.queries - 1 if own is None or not len(own) else int(own[-1])
        at = n - call.queries + last
        if at < 0:
            return None
        found.append(tuple(likely[row if 0 <= row < B else 0, min(at, n - 1)].tolist()))
    return tuple(found)


def _of_rows(x: Tensor | None, call: RecordedCall) -> Tensor | None:
    """Return of (rows, positions, …) those that a record has of a call; 1 where a sample had ended.

    None where it has not so many: layers may compute with positions first, (positions, rows, …).
    """
    if x is None or x.shape[1] < call.queries or x.shape[0] <= max(call.rows):
        return None
    rows = torch.tensor([0 if row == ENDED else row for row in call.rows], device=x.device)
    found = x[rows][:, : call.queries]
    ended = [i for i, row in enumerate(call.rows) if row == ENDED]
    return found.index_fill(0, torch.tensor(ended, device=x.device), 1) if ended else found


def _joined(calls: Sequence[RecordedCall], given: Sequence[Tensor | str | None], heads: Any) -> Tensor | str:
    """Return ∂L/∂O of all calls, (B, H, Q, Dv); in words, why it is not known."""
    parts = []
    for call, gradient in zip(calls, given, strict=True):
        if gradient is None or isinstance(gradient, str):
            return NO_GRADIENT if gradient is None else gradient
        part = _of_rows(gradient.transpose(1, 2), call)
        if part is None:
            return NO_GRADIENT
        parts.append(part.transpose(1, 2))
    joined = parts[0] if len(parts) == 1 else torch.cat(parts, 2)
    return joined if heads is None else joined[:, list(heads)]


def carry(
    att: Attention,
    name: str,
    calls: Sequence[RecordedCall],
    heads: Sequence[int] | None,
    positions: Sequence[int] | None,
    real: Callable[[], Tensor | None],
) -> Attention:
    """Return the attention of a record with what its weights carry, as far as that is known."""
    if att.v is None or not calls:
        return att
    found = carrying_of(name, calls, heads, positions, real())
    return att if found is None else att.as_carrying(found.on(att.device))
