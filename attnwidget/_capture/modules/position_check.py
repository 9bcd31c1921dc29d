"""Whether the queries and keys of a call are the positions of its module's input, in the same order."""

from __future__ import annotations

import functools
import math
import re

from torch import Tensor, nn

from ..call.observed_call import ObservedCall
from ..tracing.traced_tensors import USE_RETURNED_WEIGHTS
from .self_or_cross import KEY, QUERY, Invocation, span_of

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


def why_not_positions(call: ObservedCall, running: Invocation | None, maker: Invocation | None = None) -> str | None:
    """Return why the queries and keys of a call are not positions; None if they are, as far as is known.

    Args:
        call: as read.
        running: the call of the module that makes it.
        maker: the call of the module that made its q and k, if `running` was given them ready-made.
    """
    if running is None:
        return None
    always, sometimes = _takes_pieces(type(running.module).__name__)
    if always:
        return PIECES
    lengths = {call.q.shape[2], call.k.shape[2]}
    if sometimes and running.origins and lengths != {running.origins[0].shape[-2]}:
        return PIECES
    maker = maker or running
    if len(lengths) > 1 or not maker.origins or (maker is running and are_ready_made(call.q, call.k, running)):
        return None
    return CHANNELS if _are_channels(call, tuple(maker.origins[0].shape), maker.module) else None


def are_ready_made(q: Tensor, k: Tensor, running: Invocation) -> bool:
    """Return whether a module was given q and k, so that its own input does not show what their positions are."""
    origins = running.origins
    if len(origins) < 2:
        return False
    given = running.given(span_of(q)), running.given(span_of(k))
    if None not in given and given[0] != given[1]:
        return True
    if QUERY.match(origins[0].name) and KEY.match(origins[1].name) and origins[0].name != origins[1].name:
        return len(origins[0].shape) > 3 or not own_parameters_inside(running)
    return len(origins[0].shape) == 4 and sorted(origins[0].shape) == sorted(q.shape)


def own_parameters_inside(running: Invocation) -> bool:
    """Return whether a module may project its inputs to q and k: whether it has matrices."""
    return any(x.ndim > 1 for x in running.module.parameters())


def are_samples_of_input(count: int, running: Invocation) -> bool:
    """Return whether a module was given so many samples, first or after the positions; True if that is unknown."""
    return not running.origins or any(count in one.shape[:2] for one in running.origins)


@functools.cache
def _takes_pieces(kind: str) -> tuple[bool, bool]:
    """Return whether a class, by its name, always takes its queries and keys in pieces, and whether it may."""
    return ALWAYS_IN_PIECES.search(kind) is not None, MAY_BE_IN_PIECES.search(kind) is not None


def _are_channels(call: ObservedCall, given: tuple[int, ...], module: nn.Module) -> bool:
    """Return whether the products of q and k are sums over positions, with channels as queries.

    Args:
        call: as read, with as many keys as queries.
        given: the shape of what the module that made q and k was given.
        module: that module.
    """
    _, H, Q, D = call.q.shape
    D = D if call.weights is None or call.v is None else call.v.shape[3]  # values have positions as features too
    last = math.prod(given[1:-1]) if len(given) > 2 else given[0], given[-1]
    first = (math.prod(given[2:]), given[1]) if len(given) > 2 else last  # of convolutions
    sequence_first = (given[0], given[-1])
    convolves = any(isinstance(one, nn.Conv1d | nn.Conv2d | nn.Conv3d) for one in module.children())
    readings = (last, first) if len(given) > 3 or convolves else (last,)
    as_channels = [one for one in readings if one == (D, H * Q)]
    as_positions = [one for one in (last, first, sequence_first) if one == (Q, H * D)]
    if not as_channels or Q == D == 1:
        return False
    if not as_positions:
        return True
    if Q != D:  # it is the other of two orders of the axes
        return (first if convolves else last) in as_channels
    return call.v is not None and call.v.stride(-2) == 1 < call.v.stride(-1)  # channels are contiguous in memory
