"""Whether the queries and keys of a call are the positions of its module's input, in the same order."""

from __future__ import annotations

import functools
import re

from ..call.observed_call import ObservedCall
from ..tracing.traced_tensors import USE_RETURNED_WEIGHTS
from .self_or_cross import Invocation

CHANNELS = (
    "it attends over channels, not over positions: each query and key is a channel of all positions. To show "
    "it, record its weights yourself and give them to AttentionWidget.from_weights, with channel names as tokens"
)
PIECES = (
    "it chooses or sorts its queries and keys, or takes them in blocks, so they are not the text's positions: "
    f"{USE_RETURNED_WEIGHTS}"
)
ALWAYS_IN_PIECES = re.compile(r"ProbSparse|ProbAttention|BlockSparse|Routing|Sinkhorn")
MAY_BE_IN_PIECES = re.compile(r"LSH|LocalSelfAttention")  # with a short text, they attend to all of it


def why_not_positions(call: ObservedCall, running: Invocation | None) -> str | None:
    """Return why the queries and keys of a call are not positions; None if they are, as far as is known.

    Args:
        call: as read.
        running: the call of the module that makes it.
    """
    if running is None:
        return None
    always, sometimes = _takes_pieces(type(running.module).__name__)
    if always:
        return PIECES
    lengths = {call.q.shape[2], call.k.shape[2]}
    if not (sometimes or len(lengths) == 1) or not running.origins:
        return None
    given = running.origins[0].shape
    if sometimes and lengths != {given[-2]}:
        return PIECES
    sizes = (
        [(given[-2], given[-1])]
        if len(given) < 4
        else [(given[2] * given[3], given[1]), (given[1] * given[2], given[3])]
    )
    return CHANNELS if any(_are_channels(call, *one) for one in sizes) else None


def are_samples_of_input(count: int, running: Invocation) -> bool:
    """Return whether a module was given so many samples, first or after the positions; True if that is unknown."""
    return not running.origins or any(count in one.shape[:2] for one in running.origins)


@functools.cache
def _takes_pieces(kind: str) -> tuple[bool, bool]:
    """Return whether a class, by its name, always takes its queries and keys in pieces, and whether it may."""
    return ALWAYS_IN_PIECES.search(kind) is not None, MAY_BE_IN_PIECES.search(kind) is not None


def _are_channels(call: ObservedCall, positions: int, channels: int) -> bool:
    """Return whether the products of q and k are sums over so many positions, with channels as queries."""
    _, H, Q, D = call.q.shape
    D = D if call.weights is None or call.v is None else call.v.shape[3]  # values have positions as features too
    if call.k.shape[2] != Q or positions != D or channels != H * Q:
        return False
    if positions != Q or call.v is None:
        return positions != Q
    return call.v.stride(-2) == 1 < call.v.stride(-1)  # as many of both: channels are contiguous in memory
