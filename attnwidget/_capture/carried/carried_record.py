"""Combine the facts of a record's calls into what its weights contribute downstream."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..._engine.carried import Carrying
from ...attention import Attention
from ..call.lineage import ENDED, RecordedCall
from .output_watcher import NO_GRADIENT, NOT_WHOLE, OTHER_PATH, CallFacts
from .projections import NOT_SEEN, Projection
from .readout import LogitReadout
from .residual_stream import NO_STREAM_PATH

NO_LIKELY = (
    "the most likely next token was not kept, because there were too many logits to search: choose a token, "
    "cap.target = … or att.with_target(id)"
)
OTHER_SIZE = "its output projection gives {} numbers, but the final norm reads {}: another map lies between them"
TRANSPOSED = (
    "it computes with positions before samples, or the model transposes them on the path to its logits, so the query "
    "of each row of the final norm and of the logits is unknown: give it by att.carrying(direction=…, scale=…)"
)
NO_PATH = (
    "what the attention adds does not reach the final norm by additions and norms alone: a gate, a layer or another "
    "function lies between, so there is no direct path to read"
)


def gradients_of(call: RecordedCall, name: str) -> list[Tensor | str]:
    """Return the gradient of a record's call in a list; the list is empty if none came back."""
    facts: CallFacts | None = call.step.facts
    return [facts.gradients[name]] if facts is not None and name in facts.gradients else []


def carrying_of(
    name: str,
    calls: Sequence[RecordedCall],
    heads: Sequence[int] | None,
    positions: Sequence[int] | None,
    real: Tensor | None,
) -> Carrying | None:
    """Return what the weights of a record contribute downstream; None if the model was not watched.

    Args:
        name: the name of the record.
        calls: the model's calls that the record consists of.
        heads: the model's heads that it has; None: all.
        positions: the queries of all calls that it has; None: all.
        real: (B, queries) bool, True where there is no padding; None if unknown.
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
    """Return how the model makes its logits from what an attention adds, or the reason why this is unknown."""
    last = facts[-1].readout
    failed = next((one.readout for one in facts if isinstance(one.readout, str)), None)
    if failed is not None or isinstance(last, str):
        return failed or NOT_WHOLE
    if any(name in one.not_followed for one in facts):
        return OTHER_PATH
    if any(one.terms.get(name) != facts[-1].terms.get(name, NO_STREAM_PATH) for one in facts):
        return NO_PATH
    if name in facts[-1].terms and facts[-1].terms[name].transposed:
        return TRANSPOSED
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
    """Return the factors of a token's logit: the scale at each query, and the most likely next tokens."""
    found: dict[str, Any] = {"readout": readout, "factor": facts[-1].terms[name].factor}
    found["is_before_cap"] = readout.unembedding.softcap
    if readout.norm is not None or readout.passes:
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
    """Return the product of the divisors of the norms in a readout, (B, Q); None if one is unknown."""
    scales = [facts.scales.get(one) for one in readout.passes] + ([] if readout.norm is None else [facts.norm_scale])
    found = [one for one in scales if one is not None]
    return functools.reduce(torch.mul, found) if len(found) == len(scales) else None


def _last_likely(likely: Tensor, call: RecordedCall, real: Tensor | None) -> tuple[tuple[int, ...], ...] | None:
    """Return the most likely tokens after each sample's last unpadded token; None if they were not kept."""
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
    """Return the rows and positions that a record has of a call, from (rows, positions, …); 1 where a sample ended.

    None if there are too few, which happens in layers with positions first, (positions, rows, …).
    """
    if x is None or x.shape[1] < call.queries or x.shape[0] <= max(call.rows):
        return None
    rows = torch.tensor([0 if row == ENDED else row for row in call.rows], device=x.device)
    found = x[rows][:, : call.queries]
    ended = [i for i, row in enumerate(call.rows) if row == ENDED]
    return found.index_fill(0, torch.tensor(ended, device=x.device), 1) if ended else found


def _joined(calls: Sequence[RecordedCall], given: Sequence[Tensor | str | None], heads: Any) -> Tensor | str:
    """Return ∂L/∂O of all calls, (B, H, Q, Dv), or the reason why it is unknown."""
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
    """Return the attention of a record with everything known about what its weights contribute downstream."""
    if att.v is None or not calls:
        return att
    found = carrying_of(name, calls, heads, positions, real())
    return att if found is None else att.as_carrying(found.on(att.device))
