"""Whether a capture shows a call that it does not keep: its output is verified, and nothing else is done."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..call.observed_call import ObservedCall
from ..verify.compared_output import compare_output
from .record import CONTRADICTED, UNVERIFIED
from .weights_record import weights_differ


def why_not_shown(call: ObservedCall, output: Any) -> str | None:
    """Return why a capture would not show a call with this output; None if it would.

    Args:
        call: the call.
        output: of the call, as `verification.sample_output` takes it.
    """
    try:
        if call.weights is not None:
            v = call.v if isinstance(output, Tensor) else None
            differs = None if v is None else weights_differ(call.weights, v, output)
        else:
            found = compare_output(call, output)
            differs = None if found is None else found.differs
    except (TypeError, ValueError, IndexError, RuntimeError):
        differs = None
    if differs is None:
        return UNVERIFIED
    return CONTRADICTED if bool(differs) else None
