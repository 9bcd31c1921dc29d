"""The layers of a model, each its own `Attention`, by number and by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from ._analysis.rollout import rollout
from ._rules.options import LayeredKeywords
from ._utils.validation import as_tensor, closest
from .attention import Attention

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AttentionStack(Sequence[Attention]):
    """An immutable sequence of `Attention`, whose heads and lengths may differ from layer to layer.

    Args:
        layers: one `Attention` for each layer.
        names: a string for each; "layer 0", "layer 1", … where None.

    Raises:
        TypeError, ValueError: no layers, something else than layers, or names that do not fit them.

    >>> import torch
    >>> stack = AttentionStack([Attention(*torch.randn(2, 3, 4)) for _ in range(2)], names=["first", "second"])
    >>> stack["second"] is stack[-1]
    True
    """

    layers: tuple[Attention, ...]
    names: tuple[str, ...]

    def __init__(self, layers: Iterable[Attention], names: Iterable[str] | None = None) -> None:
        if isinstance(layers, Attention):
            raise TypeError("layers is one Attention: give a list of them")
        layers = tuple(layers)
        for i, layer in enumerate(layers):
            if not isinstance(layer, Attention):
                raise TypeError(f"layer {i} is a {type(layer).__name__}: give an Attention for each layer")
        if not layers:
            raise ValueError("a stack of no layers has nothing to show: give one Attention or more")
        names = _check_names(names, len(layers))
        self.__dict__.update(layers=layers, names=names)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"an AttentionStack does not change, so {name} cannot be set: make a new one")

    def __len__(self) -> int:
        return len(self.layers)

    @overload
    def __getitem__(self, where: int | str) -> Attention: ...
    @overload
    def __getitem__(self, where: slice) -> AttentionStack: ...
    def __getitem__(self, where: int | str | slice) -> Attention | AttentionStack:
        """Return a layer by number or name, or a stack of some.

        Raises:
            IndexError: there is no such layer.
            KeyError: no layer is called that.
        """
        if isinstance(where, slice):
            return AttentionStack(self.layers[where], self.names[where])
        if isinstance(where, str):
            return self.layers[self._find(where)]
        try:
            return self.layers[where]
        except IndexError:
            there = f"layers 0 to {len(self) - 1}" if len(self) > 1 else "layer 0 only"
            raise IndexError(f"layer {where} is not there: this stack has {there}") from None

    def rollout(
        self, batch: int = 0, heads: Literal["mean", "max"] | Sequence[int] = "mean", residual: float = 0.5
    ) -> Attention:
        """Compute how much each token reaches each other through all layers: rollout (Abnar & Zuidema 2020, §3).

        Each layer passes on A = residual · I + (1 − residual) · W, its rows brought to sum 1, and the layers are
        multiplied, the first on the right. A learned sink passes nothing on, so its share is divided among the keys.

        Args:
            batch: which sample.
            heads: W is the "mean" or the "max" over all heads, or the mean over those of a list. Rows of a maximum
                are brought to sum 1 first.
            residual: the share of the residual connection; 0.5 in the paper.

        Returns:
            An `Attention` of one head, from weights (n, n). A query that may attend to nothing passes on itself.

        Raises:
            ValueError: layers of other lengths than the first, or with other keys than queries, with their name; more
                than 4,096 tokens, for the product is dense.
            IndexError: a batch or head that is not there.

        >>> import torch
        >>> stack = AttentionStack([Attention.from_weights(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))] * 2)
        >>> stack.rollout().block()
        tensor([[1.0000, 0.0000],
                [0.7500, 0.2500]])
        """
        return Attention.from_weights(rollout(self.layers, self.names, batch, heads, residual))

    def _find(self, name: str) -> int:
        if name not in self.names:
            holding = [known for known in self.names if f".{name}." in f".{known}."]
            close = holding[0] if holding else closest(name, self.names) or self.names[0]
            raise KeyError(f"no layer is called {name!r}: the nearest is {close!r}, and .names has them all")
        return self.names.index(name)

    def __repr__(self) -> str:
        lines = [f"  {name}: {layer!r}" for name, layer in zip(self.names, self.layers, strict=True)]
        if len(lines) > 6:
            lines[3:-2] = [f"  … {len(lines) - 5} more"]
        return "\n".join([f"AttentionStack of {len(self)} layer{'s' * (len(self) > 1)}", *lines])


def _check_names(names: Iterable[str] | None, count: int) -> tuple[str, ...]:
    if names is None:
        return tuple(f"layer {i}" for i in range(count))
    if isinstance(names, str):
        raise TypeError(f"names is one string {names!r}: give a list with one string per layer")
    names = tuple(names)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"names holds {name!r}: give strings")
        if names.count(name) > 1:
            raise ValueError(f"names holds {name!r} twice: give each layer its own")
    if len(names) != count:
        raise ValueError(f"names has {len(names)} strings but there are {count} layers: give one for each")
    return names


def as_attention(given: Any, otherwise: str) -> Attention | AttentionStack:
    """Return what is given, if it is an attention; else raise TypeError, with what to call with tensors."""
    if isinstance(given, Attention | AttentionStack):
        return given
    raise TypeError(
        f"attention is {type(given).__name__}: give an Attention or an AttentionStack, such as the `attention` of a "
        f"capture, or call {otherwise} with tensors"
    )


def attention_of(q: Any, k: Any, v: Any, keywords: Mapping[str, Any]) -> Attention | AttentionStack:
    """Make one attention, or a stack of layers where there are five dimensions or a list.

    Args:
        q, k, v: as for `Attention`, or as for `stack_layers`.
        keywords: as for either.
    """
    if isinstance(q, list | tuple) or getattr(q, "ndim", 0) == 5:
        return stack_layers(q, k, v, **keywords)
    return Attention(q, k, v, **keywords)


def attention_from_weights(weights: Any, v: Any, dims: str | None) -> Attention | AttentionStack:
    """Make one attention of weights, or a stack of layers where there are five dimensions or a list."""
    nested = isinstance(weights, list | tuple) and len(weights) > 0 and isinstance(weights[0], list | tuple)
    if nested and any(hasattr(one, "shape") or one is None for one in weights[0]):
        raise TypeError(
            "weights holds a tuple for each token, as generate() returns them: give that of one, weights[0] for the "
            "prompt, or capture(model) around generate(), which has all of them as one map"
        )
    if weights is None or (isinstance(weights, list | tuple) and any(one is None for one in weights)):
        raise TypeError(
            "weights is or holds None, so the model returned none: load it with attn_implementation='eager' and call "
            "it with output_attentions=True, or record it as it is, with capture(model)"
        )
    if isinstance(weights, list | tuple) or getattr(weights, "ndim", 0) == 5:
        values = [None] * len(weights) if v is None else v
        if len(values) != len(weights):
            raise ValueError(f"v has {len(values)} layers but weights have {len(weights)}: give one for each layer")
        layers = zip(weights, values, strict=True)
        return AttentionStack([Attention.from_weights(w, v, dims=dims) for w, v in layers])
    return Attention.from_weights(weights, v, dims=dims)


def stack_layers(
    q: Any, k: Any, v: Any = None, *, names: Iterable[str] | None = None, **keywords: Unpack[LayeredKeywords]
) -> AttentionStack:
    """Make a stack of tensors with layers.

    Args:
        q, k, v: (L, B, H, Q, D), as for `Attention` with one more axis in front, or a list of tensors, one a layer.
        names: as for `AttentionStack`.
        keywords: as for `Attention`: one for all layers, or a list with one for each, None among them; sinks may be
            (L, H); dims names the axes after the first.

    Raises:
        TypeError, ValueError: as `Attention`, with the layer in front.

    >>> import torch
    >>> stack = stack_layers(*torch.randn(2, 6, 1, 12, 20, 32), is_causal=True, window=[None, 4] * 3)
    >>> [att.window for att in stack]
    [None, 4, None, 4, None, 4]
    """
    parts = {"q": _as_layers(q, "q"), "k": _as_layers(k, "k")}
    parts |= {} if v is None else {"v": _as_layers(v, "v")}
    parts |= {name: list(value) for name, value in keywords.items() if isinstance(value, list | tuple)}
    if getattr(keywords.get("sinks"), "ndim", 0) == 2:  # (L, H)
        parts["sinks"] = list(as_tensor(keywords["sinks"], "sinks"))
    count = len(parts["q"])
    for name, part in parts.items():
        if len(part) != count:
            raise ValueError(f"{name} has {len(part)} layers but q has {count}: give one for each")
    layers = []
    for i in range(count):
        try:
            layers.append(Attention(**{**keywords, **{name: part[i] for name, part in parts.items()}}))
        except (TypeError, ValueError) as error:
            raise type(error)(f"layer {i}: {error}") from error
    return AttentionStack(layers, names)


def _as_layers(x: Any, name: str) -> list[Any]:
    if isinstance(x, list | tuple):
        return list(x)
    x = as_tensor(x, name)
    if x.ndim != 5:
        raise ValueError(f"{name} has {x.ndim} axes: give 5, layers first, or a list with a tensor for each layer")
    return list(x.unbind(0))
