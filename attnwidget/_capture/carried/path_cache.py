"""Cache where the outputs of a model's heads go, from one capture to the next while the model is unchanged.

Following tensors from a layer to the logits costs some work in every function that a model calls. If an earlier capture
found the path, the model's modules, settings, forward functions, hooks and parameters are compared with their earlier
state instead. In the first forward pass one row of each output projection, of the final norm and of the logits is
computed again. Wherever anything differs, the path is followed again.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.utils.hooks import RemovableHandle

from ..modules.module_walk import modules, named_modules
from .projections import LEAST, Projection, coarsest
from .readout import LogitReadout
from .residual_stream import Terms

PLAIN = {bool, int, float, str, type(None)}  # types of settings that are compared
PACKAGE = __package__.partition(".")[0] + "."
COLUMNS = 16  # adjacent columns of an output row that are computed again
HOOKS = ("_forward_hooks", "_forward_pre_hooks")


@dataclass(frozen=True)
class KnownProjection:
    """An output projection, by the numbers of modules in the model.

    called: the module that is called with the outputs of the heads, or to compute attention.
    holds: the module that has the weight.
    name: the name of that module.
    is_transposed: whether the weight is (out, in).
    """

    called: int
    holds: int
    name: str
    is_transposed: bool


@dataclass(frozen=True)
class KnownReadout:
    """How a model makes its logits.

    norm: the number of the final norm's module.
    kind: what the norm computes: `NormFacts.settings`.
    terms: the path of each attention's contribution to the norm's input.
    unembedding: the name of the parameter.
    factor: the factor of the logits.
    """

    norm: int
    kind: tuple[Any, ...]
    terms: Terms
    unembedding: str
    factor: float


@dataclass(frozen=True)
class KnownPath:
    """The paths of the outputs of a model's heads.

    state: the model's state: see `state_of`.
    projections: by record name.
    readout: how the logits are made; None if the model gives none.
    """

    state: tuple[Any, ...]
    projections: Mapping[str, KnownProjection]
    readout: KnownReadout | None


_known: weakref.WeakKeyDictionary[nn.Module, KnownPath] = weakref.WeakKeyDictionary()


def recall(model: nn.Module) -> RecalledPath | None:
    """Return the path that an earlier capture found, if the model is unchanged."""
    try:
        known = _known.get(model)
        return RecalledPath(model, known) if known is not None and known.state == state_of(model) else None
    except (TypeError, RuntimeError, AttributeError, IndexError, NotImplementedError):  # models without a hash
        return None


def remember(model: nn.Module, path: KnownPath | None) -> None:
    """Keep a path; None drops the model's path."""
    with contextlib.suppress(TypeError):
        if path is None:
            _known.pop(model, None)
        else:
            _known[model] = path


def state_of(model: nn.Module) -> tuple[Any, ...] | None:
    """Return a model's modules, settings, functions, parameters and hooks; None if they cannot be read.

    Hooks of captures are left out, because they change nothing.
    """
    try:
        return _state_of_modules(model)
    except (RuntimeError, AttributeError, NotImplementedError, TypeError, KeyError):  # scripted modules, or vmap
        return None


def _state_of_modules(model: nn.Module) -> tuple[Any, ...]:
    with torch._C.DisableTorchFunction():  # otherwise a watching mode is called for each access to a tensor
        config = getattr(model, "config", None)
        whole = tuple(_state_of_module(module) for module in modules(model))
        settings = tuple(x for x in vars(config).values() if type(x) in PLAIN) if hasattr(config, "__dict__") else ()
        everywhere = _others(chain(*(getattr(torch_module, f"_global{name}", {}).items() for name in HOOKS)))
    return whole, settings, everywhere


def _state_of_module(module: nn.Module) -> tuple[Any, ...]:
    own = vars(module)
    settings = tuple([x for x in own.values() if type(x) in PLAIN])
    held = tuple([(name, id(x), x.data_ptr(), x.dtype) for name, x in own["_parameters"].items() if x is not None])
    before, after = own[HOOKS[1]], own[HOOKS[0]]
    hooks = _others(chain(before.items(), after.items())) if before or after else ()
    forward = own.get("forward")
    functions = weakref.ref(type(module).forward), None if forward is None else weakref.ref(forward)
    return id(module), type(module), functions, settings, held, hooks


def _others(hooks: Iterator[tuple[int, Any]]) -> tuple[int, ...]:
    """Return the numbers of hooks that do not belong to a capture."""
    return tuple([number for number, one in hooks if not str(getattr(one, "__module__", "")).startswith(PACKAGE)])


def path_of_model(
    model: nn.Module,
    state: tuple[Any, ...],
    projections: Mapping[str, Projection],
    readout: tuple[LogitReadout, nn.Module, Terms] | None,
) -> KnownPath | None:
    """Return a path by numbers and names of modules; None if this is not possible.

    Args:
        model: the model.
        state: its state.
        projections: by record name.
        readout: how the model makes its logits, the final norm's module, and the paths of attention to it; None if the
            model gives no logits.
    """
    numbers = {name: i for i, (name, _) in enumerate(named_modules(model))}
    every, own = modules(model), type(model).__name__
    found: dict[str, KnownProjection] = {}
    for key, one in projections.items():
        number = numbers.get("" if one.name == own else one.name)
        holder = None if number is None else every[number]
        weight = getattr(holder, "weight", None)
        if number is None or not isinstance(weight, Tensor) or weight.data_ptr() != one.weight.data_ptr():
            return None
        outer = numbers.get(one.name.rpartition(".")[0])
        called = outer if outer is not None and isinstance(every[outer], nn.MultiheadAttention) else number
        is_transposed = one.weight.stride(2) == weight.stride(0) and one.weight.shape[2] == weight.shape[0]
        found[key] = KnownProjection(called, number, one.name, is_transposed)
    if readout is None:
        return KnownPath(state, found, None)
    known = _known_readout(model, *readout)
    return None if known is None else KnownPath(state, found, known)


def _known_readout(model: nn.Module, readout: LogitReadout, norm: nn.Module, terms: Terms) -> KnownReadout | None:
    weight, name = readout.unembedding.weight, readout.unembedding.name
    parameter = dict(model.named_parameters()).get(name)
    plain = parameter is not None and (parameter.data_ptr(), parameter.stride()) == (weight.data_ptr(), weight.stride())
    if readout.norm is None or readout.unembedding.softcap or not plain:
        return None
    number = next((i for i, one in enumerate(modules(model)) if one is norm), None)
    if number is None:
        return None
    return KnownReadout(number, readout.norm.settings, dict(terms), name, readout.unembedding.factor)


def hooks_so_far() -> int:
    """Return how many hooks have been registered on modules in this process."""
    return int(RemovableHandle.next_id)


class RecalledPath:
    """The path that an earlier capture found, with the modules of the model.

    Args:
        model: the model.
        path: the path.
    """

    def __init__(self, model: nn.Module, path: KnownPath) -> None:
        every = modules(model)
        self.state = path.state
        self.called = {key: every[one.called] for key, one in path.projections.items()}
        self.projections: dict[str, tuple[Tensor, Tensor | None, str]] = {}
        for key, one in path.projections.items():
            weight, bias = every[one.holds].weight, getattr(every[one.holds], "bias", None)
            assert isinstance(weight, Tensor)
            whole = weight.detach().mT if one.is_transposed else weight.detach()
            self.projections[key] = whole, bias.detach() if isinstance(bias, Tensor) else None, one.name
        self.readout = path.readout
        self.norm = None if path.readout is None else every[path.readout.norm]

    def projection(self, key: str, heads: int) -> Projection | None:
        """Return a record's output projection for this number of heads; None if it does not fit."""
        weight, _, name = self.projections[key]
        return None if weight.shape[0] % heads else Projection(weight.unflatten(0, (heads, -1)), name)


class RowsOfProjections:
    """One row of the outputs of heads and of their output projections; all are compared together at the end.

    Args:
        path: has the expected projections.
    """

    def __init__(self, path: RecalledPath) -> None:
        self._path = path
        self._waiting: dict[int, tuple[str, Tensor]] = {}  # by id of the module that is to be called
        self._seen: dict[str, tuple[Tensor, Tensor, int]] = {}
        self.unlike: set[str] = set()  # names of records whose projection differs

    def expect(self, key: str, output: Tensor) -> None:
        """Record the output (B, H, Q, Dv) of a call; its projection should read it next."""
        called = self._path.called[key]
        waits = self._waiting.get(id(called))
        if waits is not None:
            self.unlike.add(waits[0])
        self._waiting[id(called)] = key, output.select(0, -1).select(1, -1).clone()

    def called(self, module: nn.Module, output: Any) -> None:
        """Record the output of a module."""
        key, row = self._waiting.pop(id(module), (None, None))
        given = output[0] if isinstance(output, tuple) and output else output
        if key is None or row is None:
            return
        if not isinstance(given, Tensor) or given.shape[-1] != self._path.projections[key][0].shape[1]:
            self.unlike.add(key)
            return
        size = given.shape[-1]
        first = COLUMNS * len(self._seen) % max(1, size - COLUMNS + 1)
        for _ in range(given.ndim - 1):
            given = given.select(0, -1)
        self._seen[key] = row, given.narrow(0, first, min(COLUMNS, size)).clone(), first

    def compare(self) -> None:
        """Compare all recorded rows, and add the differing ones to `unlike`."""
        self.unlike.update(key for key, _ in self._waiting.values())
        alike: dict[Any, list[str]] = {}
        for key, (row, given, _) in self._seen.items():
            weight, bias, _ = self._path.projections[key]
            kind = row.shape, row.dtype, row.device, given.shape, given.dtype, weight.dtype, bias is None
            alike.setdefault(kind, []).append(key)
        for keys in alike.values():
            self.unlike.update(key for key, same in zip(keys, self._are_same(keys), strict=True) if not same)
        self._waiting, self._seen = {}, {}

    def _are_same(self, keys: Sequence[str]) -> list[bool]:
        rows = torch.stack([self._seen[key][0] for key in keys]).flatten(1).double()
        given = torch.stack([self._seen[key][1] for key in keys]).double()
        parts: list[Tensor] = []
        added: list[Tensor] = []
        least = coarsest(self._seen[keys[0]][0].dtype, self._seen[keys[0]][1].dtype)
        for key in keys:
            weight, bias, _ = self._path.projections[key]
            own = slice(self._seen[key][2], self._seen[key][2] + given.shape[1])
            parts.append(weight[:, own])
            added.append(bias[own] if bias is not None else given[0])
        least = max(least, coarsest(parts[0].dtype))
        columns = torch.stack(parts).double()
        bias_of = torch.zeros_like(given) if bias is None else torch.stack(added).double()
        again = (rows[:, None] @ columns)[:, 0] + bias_of
        size = (rows.abs()[:, None] @ columns.abs())[:, 0] + bias_of.abs()
        bound = LEAST * least * rows.shape[1] ** 0.5 * size
        same: list[bool] = ((again - given).abs() <= bound).all(1).tolist()
        return same
