"""The same tensors under other rules: another scale, mask, window, number type and more."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from .._rules.options import AttentionOptions
from .._utils.indexing import Block, as_index, hull
from .._utils.validation import as_number, as_positive, told
from ..masks import LONGEST_WINDOW, NO_KEYS, KeyBounds, Mask, causal_lower_right
from .base import AttentionBase
from .cache_policies import policy_mask, read_policy, with_keys
from .kept_levels import KeptLevels
from .sources import Given, Products, Source

KEEP = ("policy", "budget", "sinks", "recent", "prompt", "observe")
OF_WEIGHTS = ("drop_keys", "causal", "window")  # what can be changed where only weights are known
CAUSAL = (False, True, "lower right")
A = TypeVar("A", bound=AttentionBase)
SMALLEST, LARGEST = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
NUMBERS = {"float16": torch.float16, "bfloat16": torch.bfloat16, "int8": torch.int8}


def what_if(att: A, changes: Mapping[str, Any]) -> A:
    """Return the attention under other rules: see `Attention.what_if`."""
    changes = read(att, changes)
    source, v = att.source, att.v
    if isinstance(source, Given) and source.gives == "weights" and changes:
        return att.replaced(att.options, Given(_renormalized(source.matrix, changes), "weights"), v)
    if "dtype" in changes:
        assert isinstance(source, Products | Given)  # `read` raises for other sources
        source, v = rounded(source, v, changes["dtype"])
    found = att.replaced(changed(att, changes), source, v)
    if changes and found.carries is not None:
        found = found.as_carrying(found.carries.without_gradient())
    policy = changes.get("keep")
    return found if policy is None else with_keys(found, policy_mask(found, read_policy(found, policy)))


def _renormalized(weights: Tensor, changes: Mapping[str, Any]) -> Tensor:
    """Return weights (B, H, Q, K) without some keys of each query; what is left of a row is brought to sum 1."""
    (Q, K), device = weights.shape[2:], weights.device
    queries, keys = torch.arange(Q, device=device)[:, None], torch.arange(K, device=device)
    hidden = torch.zeros(Q, K, dtype=torch.bool, device=device)
    if changes.get("drop_keys"):
        hidden[:, list(changes["drop_keys"])] = True
    if changes.get("causal"):
        hidden |= keys > queries + (K - Q if changes["causal"] == "lower right" else 0)
    if changes.get("window") is not None:
        hidden |= (keys - queries).abs() >= changes["window"]
    left = weights.masked_fill(hidden, 0.0)
    sums = left.sum(-1, keepdim=True)
    return torch.where(sums > 0, left / sums, left)


def changed(att: AttentionBase, changes: Mapping[str, Any]) -> AttentionOptions:
    """Return the options of an attention with checked changes."""
    new: dict[str, Any] = {name: changes[name] for name in ("softcap", "window") if name in changes}
    new |= {"sinks": None} if changes.get("sinks") is False else {}
    new["scale"] = changes.get("scale", att.scale) / changes.get("temperature", 1.0)
    if changes.get("mask") is False:
        new |= {"mask": None, "mask_means": None, "mask_dims": None}
    extra = dict(att.options.extra_masks)
    if "causal" in changes:
        new["is_causal"] = changes["causal"] is True
        extra.pop("causal", None)
    if changes.get("causal") == "lower right":
        extra["causal"] = causal_lower_right(att.shape.Q, att.shape.K)
    if "keep" in changes:
        extra.pop("keep", None)
    if "drop_keys" in changes:
        extra.pop("drop_keys", None)
    if changes.get("drop_keys"):
        extra["drop_keys"] = WithoutKeys(tuple(changes["drop_keys"]))
    return replace(att.options, **new, extra_masks=tuple(extra.items()))


class WhatIfLayers(Generic[A]):
    """The layers of a stack under other rules, each made on first use and cached.

    Args:
        stack: the layers.
        changes: as for `Attention.what_if`.
        then: takes the number and the changed attention of a layer, and returns its replacement.
    """

    def __init__(
        self,
        stack: Sequence[A],
        changes: Mapping[str, Any],
        then: Callable[[int, A], A] | None = None,
    ):
        self._stack, self._changes, self._then = stack, dict(changes), then
        self._made: dict[int, A] = {}

    def __len__(self) -> int:
        return len(self._stack)

    def __getitem__(self, layer: int) -> A:
        if not self._changes and self._then is None:
            return self._stack[layer]
        if layer not in self._made:
            found = what_if(self._stack[layer], self._changes) if self._changes else self._stack[layer]
            self._made[layer] = found if self._then is None else self._then(layer, found)
        return self._made[layer]


# What may be changed, checked.


def read(att: AttentionBase, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Check changes, and return each in one form.

    Raises:
        TypeError, ValueError, IndexError: a change is unknown, or its value is not valid.
    """
    if not isinstance(changes, Mapping):
        raise TypeError(f"what_if is {type(changes).__name__}: give a dict such as {{'scale': 1.0}}")
    unknown = [name for name in changes if name not in READERS]
    if unknown:
        raise ValueError(f"what_if has {told(unknown[0])}: there are {', '.join(READERS)}")
    if isinstance(att.source, KeptLevels) and changes:
        raise att.source.refusal("what it would be under other rules is")
    if att.source.gives == "weights" and changes:
        of_scores = [name for name in changes if name not in OF_WEIGHTS]
        if of_scores:
            raise ValueError(
                f"only weights were given, so {of_scores[0]} cannot be changed: give {', '.join(OF_WEIGHTS)}, after "
                "which each row sums to 1 again, or Attention(q, k)"
            )
    made = {name: READERS[name](att, value) for name, value in changes.items()}
    _held(made.get("scale", att.scale) / made.get("temperature", 1.0), "scale / temperature")
    return made


def _scale(att: AttentionBase, value: Any) -> float:
    return _held(as_number(value, "scale"), "scale")


def _held(number: float, name: str) -> float:
    """Return a number; raise ValueError if it is outside the range of float32, in which scores are computed."""
    if number and not SMALLEST <= abs(number) <= LARGEST:
        raise ValueError(
            f"{name} is {number:g}, outside the range of float32: give 0, or {SMALLEST:.0e} to {LARGEST:.0e}"
        )
    return number


def _causal(att: AttentionBase, value: Any) -> bool | str:
    if not isinstance(value, bool | str) or value not in CAUSAL:
        raise ValueError(f"causal is {told(value)}: give True (upper left, as torch), 'lower right' or False")
    return value


def _mask(att: AttentionBase, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"mask is {told(value)}: give False to remove the mask, True to keep it")
    return value


def _sinks(att: AttentionBase, value: Any) -> bool:
    if value is not None and not isinstance(value, bool):
        raise TypeError(f"sinks is {told(value)}: give None or False to remove the learned sinks, True to keep them")
    return value is True


def _window(att: AttentionBase, value: Any) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 1 <= value <= LONGEST_WINDOW:
        raise ValueError(
            f"window is {told(value)}: give the number of keys, 1 or more and at most {LONGEST_WINDOW:,}, or None"
        )
    return value


def _softcap(att: AttentionBase, value: Any) -> float | None:
    return None if value is None else _held(as_positive(value, "softcap"), "softcap")


def _drop_keys(att: AttentionBase, value: Any) -> list[int]:
    if not isinstance(value, list | tuple | range):
        raise TypeError(f"drop_keys is {told(value)}: give a list of keys")
    return sorted({as_index(key, att.shape.K, "key", "keys") for key in value})


def _keep(att: AttentionBase, value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise TypeError(f"keep is {told(value)}: give {{'policy': 'window', 'budget': 64}}, or None to keep all keys")
    unknown = [name for name in value if name not in KEEP]
    if unknown:
        raise ValueError(f"keep has {told(unknown[0])}: there are {', '.join(KEEP)}")
    read_policy(att, value)
    return {name: _plain(value[name]) for name in KEEP if value.get(name) is not None}


def _plain(given: Any) -> Any:
    """Return a number as a Python number, for JSON."""
    return given if isinstance(given, str) else float(given) if isinstance(given, float) else operator.index(given)


def _dtype(att: AttentionBase, value: Any) -> str:
    name = str(value).removeprefix("torch.")
    if name not in NUMBERS:
        raise ValueError(f"dtype is {told(value)}: give one of {', '.join(NUMBERS)}")
    return name


READERS: dict[str, Callable[[Any, Any], Any]] = {
    "scale": _scale,
    "temperature": lambda att, value: _held(as_positive(value, "temperature"), "temperature"),
    "softcap": _softcap,
    "mask": _mask,
    "sinks": _sinks,
    "causal": _causal,
    "window": _window,
    "drop_keys": _drop_keys,
    "keep": _keep,
    "dtype": _dtype,
}


# Number types.


def rounded(source: Products | Given, v: Tensor | None, dtype: str) -> tuple[Source, Tensor | None]:
    """Return a source and values rounded to another number type, in their own dtype.

    int8 is symmetric, a scale for each token: round(x / s) · s with s = max |x| / 127 (Dettmers et al. 2022, §2.1).
    """
    return source.changed(lambda x: round_to(x, dtype)), None if v is None else round_to(v, dtype)


def round_to(x: Tensor, dtype: str) -> Tensor:
    """Return x rounded to `dtype`, in its own dtype."""
    with torch.no_grad():
        if dtype != "int8":
            return x.to(NUMBERS[dtype]).to(x.dtype)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        step = wide.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(wide.dtype).tiny) / 127
        return ((wide / step).round() * step).to(x.dtype)


@dataclass(frozen=True)
class WithoutKeys(Mask):
    """A mask of all keys but some."""

    keys: tuple[int, ...]
    by_key = True

    def describe(self, batch: int) -> str:
        return "dropped keys"

    def __str__(self) -> str:
        return f"without {len(self.keys)} {'key' if len(self.keys) == 1 else 'keys'}"

    def __call__(self, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return torch.isin(kv_idx, torch.tensor(self.keys, device=kv_idx.device), invert=True)

    def bounds(self, cells: Block) -> KeyBounds:
        columns = hull(cells.keys)
        dropped = any(key in columns for key in self.keys)
        return KeyBounds(columns, NO_KEYS if dropped else columns)
