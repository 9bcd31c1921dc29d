"""One call, compared with its output at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..call.call_rules import CallRules
from ..call.observed_call import ObservedCall
from .verification import OutputSample, differs, sample_output


@dataclass
class ComparedOutput:
    """Some rows of a call's output, and whether they differ from softmax(q, k, v, rules)."""

    sample: OutputSample
    differs: Tensor  # (), bool


def compare_output(call: ObservedCall, output: Any) -> ComparedOutput | None:
    """Compare a call's output, as `verification.sample_output` takes it, with q, k, v and rules; None if it cannot.

    Args:
        call: the call.
        output: of the call.
    """
    sample = None if call.v is None else sample_output(output, call.q, call.k, call.v)
    if sample is None or call.v is None:
        return None
    rules = CallRules(call.q.shape[2], call.k.shape[2], 0, call.is_causal, call.mask, call.bias)
    how: dict[str, Any] = {"scale": call.scale, "softcap": call.softcap, "rules": rules, "first": 0}
    with torch.no_grad():
        return ComparedOutput(sample, differs(sample, call.q, call.k, call.v, **how, sinks=call.sinks))
