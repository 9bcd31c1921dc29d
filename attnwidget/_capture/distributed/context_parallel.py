"""Detect calls with only a part of the positions: context parallel splits a text over processes, row by row."""

from __future__ import annotations

import sys

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from ..call.observed_call import ObservedCall, Unreadable
from ..modules.self_or_cross import Invocation

ONE_PROCESS = "capture the model in one process, which has all positions"
PARTS = "or keep its parts by position and merge them, as docs/scale.md shows"
OF_TORCH = (
    "it runs inside torch's context_parallel: this process has a part of the queries, and one part of the keys at a "
    f"time, which is not a whole attention: {ONE_PROCESS}, outside of context_parallel, {PARTS}"
)
SPREAD = (
    "its q, k and v are spread over {size} processes by position (a DTensor with Shard({axis})), so this "
    f"process has a part of the queries and of the keys: {ONE_PROCESS}, {PARTS}"
)
DISTRIBUTED = (
    "its q, k and v are DTensors, and this process may have only a part: let its projections give local tensors, as "
    "torch's ColwiseParallel does, or capture the model in one process"
)
EXCHANGED = (
    "its module was given {given} positions and attends with {queries}, in one of {size} processes, as when processes "
    "exchange positions for heads (all-to-all). Its heads in the model are not known: "
    f"{ONE_PROCESS}, and all heads"
)
GATHERED = (
    "it has {queries} queries and {keys} keys in one of {size} processes, and its other keys were not captured before. "
    "Earlier ones may be in a cache, or with other processes (context parallel), so the places of its queries are not "
    f"known: {ONE_PROCESS}; if there is a cache, capture the forward pass that filled it too"
)
RING = (
    "it attends with the same queries to one part of the keys after the other, in one of {size} processes, as ring "
    f"attention in context parallel does. No part is the model's whole attention: {ONE_PROCESS}, {PARTS}"
)
OLDER = "torch.distributed.tensor.experimental._attention"  # up to torch 2.8
SAMPLE = 256  # numbers that identify a tensor

Sample = tuple[tuple[int, ...], tuple[float, ...]]  # shape, and some of its numbers


def processes() -> int:
    """Return how many processes run the model; 1 if torch.distributed runs no others."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def refuse_spread_positions(call: ObservedCall, running: Invocation | None) -> None:
    """Raise for a call whose queries or keys are spread over processes by position.

    Args:
        call: as observed in this process.
        running: the call of the module that makes it.

    Raises:
        Unreadable: they are spread.
    """
    if not dist.is_available() or not dist.is_initialized():
        return
    for x in (call.q, call.k):
        _refuse_spread(x)
    if _is_in_context_parallel():
        raise Unreadable(OF_TORCH)
    size, queries = processes(), call.q.shape[2]
    if size == 1 or call.cross or queries != call.k.shape[2] or running is None or running.positions is None:
        return
    given = running.positions
    if queries == given * size:
        raise Unreadable(EXCHANGED.format(given=given, queries=queries, size=size))


def _refuse_spread(x: Tensor) -> None:
    placements, mesh = (getattr(x, name, None) for name in ("placements", "device_mesh"))
    if placements is None or mesh is None:  # a tensor of this process
        return
    for axis, placement in enumerate(placements):
        if placement.is_shard(2) and mesh.size(axis) > 1:
            raise Unreadable(SPREAD.format(size=mesh.size(axis), axis=placement.dim))
    raise Unreadable(DISTRIBUTED)


def _is_in_context_parallel() -> bool:
    """Return whether torch's context_parallel has replaced SDPA."""
    modules = ("torch.distributed.tensor.experimental._context_parallel._attention", OLDER)
    replaced = (getattr(sys.modules.get(name), "_replaced_functions", {}) for name in modules)
    return any(F.scaled_dot_product_attention in functions for functions in replaced)


def refuse_keys_of_others(call: ObservedCall, keys: int, *, by_length: bool) -> None:
    """Raise for a call that continues no other and has as many keys as several processes have queries of one text.

    Args:
        call: as observed in this process.
        keys: the number of given keys, with those that no query attends to.
        by_length: whether only its lengths show that it is cross-attention.

    Raises:
        Unreadable: it has.
    """
    size, queries = processes(), call.q.shape[2]
    if not queries:
        return
    parts, rest = divmod(keys, queries)
    if size > 1 and (by_length or not call.cross) and 1 < parts <= size and not rest and not size % parts:
        raise Unreadable(GATHERED.format(queries=queries, keys=keys, size=size))


def sample_of(x: Tensor) -> Sample:
    """Return the shape of a tensor and some of its numbers, which identify it."""
    flat = x.detach().reshape(-1)
    return tuple(x.shape), tuple(flat[:: max(1, len(flat) // SAMPLE)].double().tolist())


def refuse_keys_in_turn(call: ObservedCall, earlier: list[tuple[Sample, Sample]]) -> None:
    """Raise for a call with the queries of an earlier call of the same module, and as many other keys.

    Args:
        call: of a module within one forward pass.
        earlier: queries and keys of its calls so far; this call's are added.

    Raises:
        Unreadable: it has the same queries.
    """
    own = sample_of(call.q), sample_of(call.k)
    found = any(q == own[0] and k[0] == own[1][0] and k != own[1] for q, k in earlier)
    earlier.append(own)
    if found:
        raise Unreadable(RING.format(size=processes()))
