"""Several stacks of layers, one shown at a time: the towers of a model, and its forward passes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias, cast

from ..._utils.validation import nearest
from ...attention import Attention
from ...stack import AttentionStack, as_attention
from ..effect_source import EffectSource

LABELS = ("tokens", "key_tokens")


class StackKey(NamedTuple):
    """A stack: the number of its forward pass, and its name there ("" without one)."""

    forward: int
    name: str


class StackPlace(NamedTuple):
    """The shown stack and the others, for `facts`."""

    stack: str = ""
    stacks: tuple[str, ...] = ("",)
    forward: int = 0
    forwards: int = 1
    request: str | None = None  # the name of the forward pass, if it is a request of an engine that serves


@dataclass(frozen=True)
class LabeledStack:
    """Layers with their labels: keywords of `AttentionWidget` with the same names.

    Args:
        attention: the layers.
        tokens, key_tokens: tokens of the queries and keys; None: positions are shown.
        grid, grid_start, grid_side, image: image patches.
        segments, key_segments: the named parts of the texts.
        effects: the model, which can be run again with edits; None: no model.
        request: the name of the forward pass, if it is a request of an engine that serves.

    >>> import torch
    >>> from attnwidget import Attention, AttentionStack, AttentionWidget, LabeledStack
    >>> layers = AttentionStack([Attention(torch.randn(3, 4), torch.randn(3, 4))])
    >>> w = AttentionWidget.from_attention({"text": LabeledStack(layers, tokens=["a", "b", "c"])})
    >>> w.stack
    'text'
    """

    attention: Attention | AttentionStack
    tokens: Any = None
    key_tokens: Any = None
    grid: Any = None
    grid_start: int | None = None
    grid_side: str = "auto"
    image: Any = None
    segments: Any = None
    key_segments: Any = None
    effects: EffectSource | None = None
    request: str | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The values of the widget's traits of the same names, in an order in which each can be checked."""
        names = ("grid_side", "grid_start", "grid", "image", *LABELS, "segments", "key_segments")
        return {name: getattr(self, name) for name in names}


Found: TypeAlias = Attention | AttentionStack | LabeledStack
Source: TypeAlias = Found | Callable[[], Found]
Sources: TypeAlias = Mapping[Any, Source]  # by name, by number of a forward pass, or by both: (2, "decoder")


class NamedStacks:
    """The stacks of a widget; each is read when it is first chosen.

    Args:
        sources: the stacks: by name, by the number of a forward pass, or by both.
        labels: `tokens` and `key_tokens`, if given for each stack: mappings by the same keys, or by name alone.

    Raises:
        TypeError, ValueError: the sources or labels are invalid.
    """

    def __init__(self, sources: Sources, labels: Mapping[str, Any]) -> None:
        if not sources:
            raise ValueError("there are no stacks: give one or more by name, such as {'encoder': stack}")
        self._sources = {_as_key(key): _as_source(key, source) for key, source in sources.items()}
        if len(self._sources) < len(sources):
            raise ValueError(f"two of the stacks {_listed(sources)} have the same name: give each its own name")
        numbers = sorted({key.forward for key in self._sources})
        if numbers != list(range(len(numbers))):
            raise ValueError(
                f"forwards are numbered {', '.join(map(str, numbers))}: number them from 0, as cap[0], cap[1], …"
            )
        self.forwards = len(numbers)
        self._labels = {name: self._by_key(name, given) for name, given in labels.items()}
        self._read: set[StackKey] = set()  # stacks from a `LabeledStack`, which has all labels

    @property
    def first(self) -> StackKey:
        """The stack that is shown first."""
        return next(key for key in self._sources if key.forward == 0)

    def names(self, forward: int) -> tuple[str, ...]:
        """Return the names of the stacks of a forward pass."""
        return tuple(key.name for key in self._sources if key.forward == forward)

    def place(self, key: StackKey) -> StackPlace:
        """Return the place of a stack among the others."""
        source = self._sources[key]
        request = source.request if isinstance(source, LabeledStack) else None
        return StackPlace(key.name, self.names(key.forward), key.forward, self.forwards, request)

    def check_name(self, name: str, forward: int) -> str:
        """Return the name of a stack in a forward pass; "" means the first.

        Raises:
            ValueError: there is no such stack.
        """
        names = self.names(forward)
        if name in names:
            return name
        if not name:
            return names[0]
        if names == ("",):
            raise ValueError(
                f"no stack is called {name!r}: this widget shows stacks without names; "
                "AttentionWidget.from_attention({'encoder': a, 'decoder': b}) shows several"
            )
        where = f"of forward {forward} " if self.forwards > 1 else ""
        raise ValueError(
            f"no stack {where}is called {name!r}: {nearest(name, names)}give one of {', '.join(map(repr, names))}"
        )

    def near(self, name: str, forward: int) -> StackKey:
        """Return the stack with this name in a forward pass; the first one if the pass has no such name."""
        names = self.names(forward)
        return StackKey(forward, name if name in names else names[0])

    def find(self, key: StackKey) -> LabeledStack:
        """Return a stack with its labels, reading it the first time.

        Raises:
            TypeError: it is not a stack.
        """
        source = self._sources[key]
        if key in self._read:
            return cast(LabeledStack, source)
        found = source() if callable(source) else source
        if not isinstance(found, LabeledStack):
            found = LabeledStack(as_attention(found, "AttentionWidget(q, k, v)"))
        labels = {name: by_key[key] for name, by_key in self._labels.items() if key in by_key}
        self.keep(key, replace(found, **labels))
        return self.find(key)

    def keep(self, key: StackKey, stack: LabeledStack) -> None:
        """Replace a stack or its labels."""
        self._sources[key] = stack
        self._read.add(key)

    def _by_key(self, name: str, given: Mapping[Any, Any]) -> dict[StackKey, Any]:
        """Return labels by stack."""
        found: dict[StackKey, Any] = {}
        for key, labels in given.items():
            same = [one for one in self._sources if key in ((*one,), one.forward, one.name)]
            if isinstance(key, int) and not isinstance(key, bool):
                same = [one for one in same if one.forward == key and one.name == ""]
            if not same:
                raise ValueError(f"{name} has {key!r}, which is not a stack: there are {_listed(self._sources)}")
            found |= {one: labels for one in same if one not in found or isinstance(key, tuple)}
        return found


def _as_key(key: Any) -> StackKey:
    if isinstance(key, StackKey):
        return key
    forward, name = key if isinstance(key, tuple) and len(key) == 2 else (0, key) if isinstance(key, str) else (key, "")
    is_named = isinstance(name, str) and (bool(name.strip()) or not isinstance(key, tuple | str))
    if isinstance(forward, bool) or not hasattr(forward, "__index__") or operator.index(forward) < 0 or not is_named:
        raise TypeError(
            f"a stack is called {key!r}: give a name, the number of a forward pass, or both, such as (2, 'decoder')"
        )
    return StackKey(operator.index(forward), name.encode("utf-8", "replace").decode())  # as the trait stores it


def _as_source(key: Any, source: Any) -> Source:
    if not callable(source) and not isinstance(source, Attention | AttentionStack | LabeledStack):
        raise TypeError(
            f"the stack {key!r} is {type(source).__name__}: give an Attention or an AttentionStack, such as the "
            "`attention` of a capture"
        )
    return cast(Source, source)


def _listed(keys: Iterable[Any]) -> str:
    """Return some names as text, a few at most."""
    names = [repr(_plain(key)) for key in keys]
    return ", ".join(names if len(names) <= 8 else [*names[:7], f"… {len(names) - 7} more"])


def _plain(key: Any) -> Any:
    """Return a key as a user writes it."""
    if not isinstance(key, StackKey):
        return key
    return key.forward if not key.name else key.name if key.forward == 0 else (*key,)
