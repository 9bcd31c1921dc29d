"""Where a tensor comes from that does not depend on the stream: parameters, counted positions, the model's inputs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

POSITION = re.compile(
    r"(?:^|[._])(?:abs|rel|embed|learned)?_?(?:pos(?![a-z])|pos(?:ition|_?emb|_?enc)|wpe(?![a-z])|pe(?![a-z]))"
)
TYPE = re.compile(r"(?:^|[._])(?:token_?)?(?:type|segment)(?![a-z])|token_?type|(?:type|segment)_?emb")
COUNTS = {torch.arange, torch.linspace, torch.range, torch.cumsum, Tensor.cumsum}
PICKS = {Tensor.__getitem__, torch.index_select, Tensor.index_select, torch.gather, Tensor.gather, torch.take_along_dim}
FROM_NUMBERS = {  # make a tensor of numbers that may have left torch before
    *(torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy, torch.full, torch.full_like, Tensor.new_tensor),
    *(Tensor.new_full, torch.frombuffer, torch.utils.dlpack.from_dlpack, torch.scalar_tensor),
}
LEAVES = {  # numbers leave torch
    *(Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__float__, Tensor.__int__, Tensor.__index__),
    *(Tensor.__complex__, Tensor.__dlpack__),
}
EMPTY = {  # whose numbers another function writes
    *(torch.empty, torch.empty_like, Tensor.new_empty, torch.empty_strided, Tensor.new_empty_strided),
}
NAMES = 4  # of parameters that are kept


class MadeOf(NamedTuple):
    """What a tensor is made of.

    names: of the parameters.
    counts: whether of positions that were counted.
    given: whether of the model's inputs.
    """

    names: tuple[str, ...] = ()
    counts: bool = False
    given: bool = False

    def plus(self, other: MadeOf) -> MadeOf:
        """Return what a tensor made of both is made of."""
        names = tuple(dict.fromkeys((*self.names, *other.names)))[:NAMES]
        return MadeOf(names, self.counts or other.counts, self.given or other.given)

    def kind(self) -> tuple[str, str] | None:
        """Return the kind of writer and the parameter that it is; None for an input of the model."""
        if self.names:
            picked = next((name for name in self.names if POSITION.search(name.lower())), self.names[0])
            own = kind_of(picked, "position" if self.counts else "parameter")
            return None if self.given and own == "parameter" else (own, picked)
        return ("position", "") if self.counts and not self.given else None


def kind_of(name: str, otherwise: Any) -> Any:
    """Return the kind of an embedding or a parameter, by its name."""
    own = name.lower()
    if TYPE.search(own):
        return "type"
    return "position" if POSITION.search(own) else otherwise


def origin_of_result(func: Any, given: list[MadeOf]) -> MadeOf:
    """Return what the result of a function is made of, from its tensors'."""
    if func in COUNTS:
        return MadeOf(counts=True)
    if func in PICKS and len(given) > 1 and given[0].names and not given[0].given:
        return MadeOf(given[0].names, counts=any(one.counts for one in given[1:]))
    found = MadeOf()
    for one in given:
        found = found.plus(one)
    return found


def names_by_memory(model: nn.Module) -> dict[int, str]:
    """Return the names of a model's parameters and buffers by their memory."""
    found = {}
    for name, x in [*model.named_parameters(), *model.named_buffers()]:
        place = memory_of(x)
        if place:
            found[place] = name.replace("_orig_mod.", "")  # of torch.compile
    return found


def memory_of(x: Tensor) -> int:
    """Return the address of a tensor's memory; 0 if it has none of its own."""
    try:
        return x.data_ptr() if x.numel() else 0
    except (RuntimeError, NotImplementedError, TypeError):  # a subclass that holds several tensors
        return 0


def tensors_in(x: Any, depth: int = 4) -> Iterator[Tensor]:
    """Yield the tensors in nested containers and simple objects."""
    if isinstance(x, Tensor):
        yield x
    elif depth and isinstance(x, Mapping):
        for one in x.values():
            yield from tensors_in(one, depth - 1)
    elif depth and isinstance(x, list | tuple | set | frozenset):
        for one in x:
            yield from tensors_in(one, depth - 1)
    elif depth and hasattr(x, "__dict__") and not isinstance(x, nn.Module | type):
        yield from tensors_in(vars(x), depth - 1)


def plain_attributes(model: nn.Module) -> Iterator[Tensor]:
    """Yield the tensors that modules and their code keep beside parameters and buffers."""
    seen: set[int] = set()
    for module in model.modules():
        for name, x in vars(module).items():
            if not name.startswith("_"):
                yield from tensors_in(x, 2)
        code = getattr(type(module).forward, "__globals__", {})
        if id(code) not in seen:
            seen.add(id(code))
            for x in [*code.values()]:
                if isinstance(x, Tensor | list | tuple | dict):
                    yield from tensors_in(x, 1)
