"""Find the heads of one process in a model: tensor parallel layers split their projections by heads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch import nn

from ..call.observed_call import ObservedCall, ProcessHeads, Unreadable
from ..modules.self_or_cross import QUERY

ADVICE = (
    "split its projections by whole heads, as torch's ColwiseParallel does, or capture the model in one process with "
    "all heads"
)


def process_of() -> tuple[int, int] | None:
    """Return the number of this process and how many there are; None if there is only one."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    return dist.get_rank(), dist.get_world_size()


def named_by_process(path: Any, process: tuple[int, int] | None) -> Any:
    """Return a path with the number of this process for {rank}.

    Raises:
        ValueError: the path has {rank}, and there is only one process.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    if "{rank}" not in str(text):
        return path
    if process is None:
        raise ValueError(
            f"{path} has {{rank}} for the number of a process, and torch.distributed runs no others: "
            "leave it out, or call init_process_group first"
        )
    return str(text).replace("{rank}", str(process[0]))


def heads_of_process(module: nn.Module | None, call: ObservedCall) -> ProcessHeads | None:
    """Return the heads of a call in its module, if its projections are split over processes; None: all heads.

    Args:
        module: that calls, or the one around it.
        call: as observed in this process.

    Raises:
        Unreadable: they are split, and its heads in the model are not known.
    """
    if module is None or not dist.is_available() or not dist.is_initialized():
        return None
    H, D = call.q.shape[1], call.q.shape[3]
    splits = set(_splits(module))
    if not splits:
        _refuse_fewer(module, H)
        return None
    total = _rows_of_queries(module, D) or _of_config(module)
    if total == H:
        return None
    (size, place), *others = splits
    if others or total != H * size:
        known = f"of {total}" if total else "of an unknown number"
        sizes = " and ".join(str(size) for size, _ in sorted(splits))
        raise Unreadable(
            f"its projections are split over {sizes} processes, and this one has {H} head{'s' * (H > 1)} {known}, "
            f"so its heads in the model are not known: {ADVICE}"
        )
    return ProcessHeads(place * H, H, total)


def _splits(module: nn.Module) -> Iterator[tuple[int, int]]:
    """Yield, for each parameter, over how many processes its rows are split, and the number of this one's part."""
    from torch.distributed.tensor import DTensor, Shard  # imported here because it takes half a second

    for parameter in module.parameters():
        if isinstance(parameter, DTensor):
            mesh = parameter.device_mesh
            for axis, placement in enumerate(parameter.placements):
                if isinstance(placement, Shard) and placement.dim == 0 and mesh.size(axis) > 1:
                    yield mesh.size(axis), mesh.get_local_rank(axis)


def _rows_of_queries(module: nn.Module, D: int) -> int | None:
    """Return the number of query heads in all processes together."""
    for name, child in module.named_children():
        weight: Any = getattr(child, "weight", None)
        if QUERY.match(name) and getattr(weight, "ndim", 0) == 2 and hasattr(weight, "placements"):
            return int(weight.shape[0]) // D if weight.shape[0] % D == 0 else None
    return None


def _of_config(module: nn.Module) -> int | None:
    found = getattr(getattr(module, "config", None), "num_attention_heads", None)
    return found if isinstance(found, int) else None


def _refuse_fewer(module: nn.Module, H: int) -> None:
    """Raise for a call with exactly the share of the model's heads that each process would have."""
    total, size = _of_config(module), dist.get_world_size()
    if size > 1 and total == H * size:
        raise Unreadable(
            f"it has {H} of the {total} heads that its config names, in one of {size} processes. Its heads in the "
            f"model are not known, because torch did not split its parameters: {ADVICE}"
        )
