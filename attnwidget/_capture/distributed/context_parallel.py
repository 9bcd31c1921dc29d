"""Whether a call has a part of the positions alone: context parallel splits a text over processes, row by row."""

from __future__ import annotations

import sys

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from ..call.observed_call import ObservedCall, Unreadable
from ..modules.self_or_cross import Invocation

ONE_PROCESS = "capture the model in one process, which has all positions"
PARTS = "or keep its parts by position and lay them together, as docs/scale.md shows"
OF_TORCH = (
    "it runs inside torch's context_parallel, where this process has a part of the queries, and a part of the keys at "
    f"a time, which are no attention of their own: {ONE_PROCESS}, outside of context_parallel, {PARTS}"
)
SPREAD = (
    "its q, k and v are spread over {size} processes by their positions (a DTensor with Shard({axis})), so that this "
    f"process has a part of the queries, and of the keys: {ONE_PROCESS}, {PARTS}"
)
DISTRIBUTED = (
    "its q, k and v are DTensors, of which this process may have a part: have its projections give local tensors, as "
    "torch's ColwiseParallel does, or capture the model in one process"
)
EXCHANGED = (
    "its module was given {given} positions and attends with {queries}, in one of {size} processes, as where these "
    "exchange positions for heads (all-to-all): which of the model's heads it has here is not known: "
    f"{ONE_PROCESS}, and all heads"
)
GATHERED = (
    "it has {queries} queries and {keys} keys in one of {size} processes, and nothing that was captured before has its "
    "other keys: whether these came before, as in a cache, or are those of other processes (context parallel), is not "
    f"known, nor the places of its queries: {ONE_PROCESS}; if it is a cache, capture what has filled it too"
)
RING = (
    "it attends with the same queries to one part of the keys after the other, in one of {size} processes, as context "
    f"parallel does with keys that go round in a ring: no part is what the model attends to: {ONE_PROCESS}, {PARTS}"
)
OLDER = "torch.distributed.tensor.experimental._attention"  # up to torch 2.8
SAMPLE = 256  # numbers by which tensors are told apart

Sample = tuple[tuple[int, ...], tuple[float, ...]]  # shape, and some of its numbers


def processes() -> int:
    """Return how many processes run the model; 1 where torch.distributed runs no others."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def refuse_spread_positions(call: ObservedCall, running: Invocation | None) -> None:
    """Refuse a call whose queries or keys are spread over processes by their positions.

    Args:
        call: as it was observed in this process.
        running: the call of the module that makes it.

    Raises:
        Unreadable: they are.
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
    """Return whether torch's context_parallel has put its own function in the place of SDPA."""
    modules = ("torch.distributed.tensor.experimental._context_parallel._attention", OLDER)
    replaced = (getattr(sys.modules.get(name), "_replaced_functions", {}) for name in modules)
    return any(F.scaled_dot_product_attention in functions for functions in replaced)


def refuse_keys_of_others(call: ObservedCall, keys: int, *, by_length: bool) -> None:
    """Refuse a call that continues no other, with as many keys as several processes have queries of one text.

    Args:
        call: as it was observed in this process.
        keys: how many it was given, those too that no query attends to.
        by_length: whether only its lengths tell that it is cross-attention.

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
    """Return the shape of a tensor and some of its numbers, by which it is known again."""
    flat = x.detach().reshape(-1)
    return tuple(x.shape), tuple(flat[:: max(1, len(flat) // SAMPLE)].double().tolist())


def refuse_keys_in_turn(call: ObservedCall, earlier: list[tuple[Sample, Sample]]) -> None:
    """Refuse a call with the queries of an earlier one of the same module, and as many other keys.

    Args:
        call: of a module within one forward pass.
        earlier: queries and keys of its calls so far; those of this call are added.

    Raises:
        Unreadable: it has the same queries.
    """
    own = sample_of(call.q), sample_of(call.k)
    found = any(q == own[0] and k[0] == own[1][0] and k != own[1] for q, k in earlier)
    earlier.append(own)
    if found:
        raise Unreadable(RING.format(size=processes()))
