"""The traits of which stack is shown, where there are several, and the change from one to another."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import traitlets

from ..._engine.cache_policies import cells_to_evict, with_keys
from ..._engine.what_if import read as read_changes
from ..._engine.what_if import what_if
from ..._tokens.inputs import is_by_name
from ..._utils.indexing import as_index
from ...attention import Attention
from ...stack import AttentionStack, as_attention
from ..stores.named_stacks import LabeledStack, NamedStacks, StackKey
from .segment_traits import SegmentTraits
from .trait_types import Index, Text, Whole, refusing


class StackTraits(SegmentTraits):
    """The traits of a named stack and of a forward pass, one of those that there are."""

    _named_stacks: NamedStacks
    _chosen: StackKey  # the stack that is shown
    title: Any
    what_if: Any
    _is_changing = False  # while several traits become those of another stack: nothing follows from one alone

    stack = Text(help="The name of the stack that is shown, where there are several.").tag(sync=True, role="numbers")
    forward: Whole = Index(help="The number of the forward pass that is shown.").tag(sync=True, role="numbers")

    @property
    def stacks(self) -> tuple[str, ...]:
        """The names of the stacks of the forward pass that is shown: what `stack` can be."""
        return self._named_stacks.names(self._chosen.forward)

    @property
    def forwards(self) -> int:
        """How many forward passes there are: `forward` is one of 0 to `forwards` − 1."""
        return self._named_stacks.forwards

    @abstractmethod
    def _replace_layers(self, attention: Attention | AttentionStack) -> None:
        """Show other layers, and keep nothing of those before."""

    def _begin(self, source: Any, show: dict[str, Any]) -> dict[str, Any]:
        """Choose the first stack.

        Args:
            source: the stacks by name, or one attention.
            show: the keywords of the widget.

        Returns:
            The keywords with those of the stack among them.

        Raises:
            ValueError, TypeError, IndexError: a stack that is not there, or is none.
        """
        show, labels = dict(show), {}
        if isinstance(source, Mapping):
            labels = {name: show.pop(name) for name in ("tokens", "key_tokens") if is_by_name(show.get(name))}
            self._named_stacks = NamedStacks(source, labels)
        else:
            self._named_stacks = NamedStacks({0: as_attention(source, "AttentionWidget(q, k, v)")}, {})
        forward = as_index(show.get("forward") or 0, self._named_stacks.forwards, "forward", "forwards")
        name = show.get("stack") or ""
        if not isinstance(name, str):
            raise TypeError(f"stack is {name!r}: give the name of a stack")
        self._chosen = StackKey(forward, self._named_stacks.check_name(name, forward))
        own = {name: value for name, value in self._named_stacks.find(self._chosen).given.items() if value is not None}
        if "grid" in show:  # it is another, and stands elsewhere
            own = {name: value for name, value in own.items() if name not in ("grid_start", "grid_side")}
        return {**own, **show, "stack": self._chosen.name, "forward": forward}

    @traitlets.validate("stack")
    def _stack_is_there(self, proposal: Any) -> str:
        with refusing():
            forward = as_index(self.forward, self._named_stacks.forwards, "forward", "forwards")
            name = self._named_stacks.check_name(str(proposal["value"]), forward)
            self._check_labels(StackKey(forward, name))
        return name

    @traitlets.validate("forward")
    def _forward_is_there(self, proposal: Any) -> int:
        with refusing():
            forward = as_index(proposal["value"], self._named_stacks.forwards, "forward", "forwards")
            self._check_labels(self._named_stacks.near(self.stack, forward))
        return forward

    def _check_labels(self, key: StackKey) -> None:
        """Raise what the tokens of another stack would raise, while nothing has changed."""
        if key == self._chosen:
            return
        found = self._named_stacks.find(key)
        layers = found.attention if isinstance(found.attention, AttentionStack) else [found.attention]
        shape = layers[min(self.layer, len(layers) - 1)].shape
        self._token_store.check(found.tokens, shape.B, shape.Q, f"tokens[{key.name!r}]")
        self._token_store.check(found.key_tokens, shape.B, shape.K, f"key_tokens[{key.name!r}]")

    def _show_chosen(self) -> str | None:
        """Make everything that of the chosen stack: its layers, its labels, and of the selection what is there.

        Returns:
            Why `what_if` was taken back, where it cannot be of this stack; else None.
        """
        before, key = self._chosen, self._named_stacks.near(self.stack, self.forward)
        self._remember()
        found, words, titled_so = self._named_stacks.find(key), self.pieces == "words", self.title == self._shown.title
        self._chosen = key
        with self._changing():
            self.pieces = "pieces"
            self._replace_layers(found.attention)
            self.layer = min(self.layer, len(self._shown.stack) - 1)
            refused = self._keep_rules()
            given = found.given
            if given["segments"] is None and isinstance(self.segments, str):
                del given["segments"]  # such as sentences: of any text
            for name, value in [("grid", None), ("image", None), *given.items()]:
                setattr(self, name, value)
            if words and (found.tokens is not None or found.key_tokens is not None):
                self.pieces = "words"
                self._replace_layers(found.attention)
            if before.name != key.name:
                self.pins = []  # they are positions of another text
            self.title = self._shown.title if titled_so else self.title
            self.forward, self.stack = key
        return refused

    def _remember(self) -> None:
        """Keep the labels of the stack that is shown, as they are now."""
        given = {name: getattr(self, name) for name in LabeledStack(self._shown.attention).given}
        effects = self._named_stacks.find(self._chosen).effects
        self._named_stacks.keep(self._chosen, LabeledStack(self._shown.attention, **given, effects=effects))

    def _keep_rules(self) -> str | None:
        """Stay under other rules where the layers can be; else leave them, and return why."""
        try:
            self._find_under_rules()
        except (TypeError, ValueError, IndexError) as error:
            with self._changing():
                self.what_if = {}
            self._replace_layers(self._shown.attention)
            return str(error)
        return None

    def _find_under_rules(self) -> list[Attention]:
        """Return the selected layer as the other rules have it; raise what says that they cannot be there."""
        return [self._shown.layers[self.layer]]

    def _check_rules(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Return other rules as they are kept, after a row of the selected layer was computed under them.

        Raises:
            TypeError, ValueError, IndexError: rules that cannot be, or under which nothing can be computed.
        """
        layers = self._shown.given
        return as_in_json(try_rules(layers[self.layer], changes), layers)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Let nothing follow from the traits that are set within."""
        before, self._is_changing = self._is_changing, True
        try:
            yield
        finally:
            self._is_changing = before


def as_in_json(rules: dict[str, Any], layers: Iterable[Attention]) -> dict[str, Any]:
    """Return rules that mean the same in JSON, where 1.0 is 1: a budget of all keys as their number.

    >>> import torch
    >>> as_in_json({"keep": {"policy": "tova", "budget": 1.0}}, [Attention(*torch.zeros(2, 24, 8))])
    {'keep': {'policy': 'tova', 'budget': 24}}
    """
    keep = rules.get("keep")
    if keep and isinstance(keep["budget"], float) and keep["budget"] == 1:
        return {**rules, "keep": {**keep, "budget": max(att.shape.K for att in layers)}}
    return rules


def try_rules(att: Attention, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return other rules as they are kept, after a row was computed under them.

    Raises:
        TypeError, ValueError, IndexError: rules that cannot be, or under which nothing can be computed.
    """
    read = read_changes(att, changes)
    if read:
        try:
            found = what_if(att, read)
            if cells_to_evict(found, 0):  # found in steps, once the rules are shown
                found = with_keys(found, None)
            found.block("weights", queries=range(1))
        except (ArithmeticError, RuntimeError) as error:
            raise ValueError(f"nothing can be computed under these rules: {error}") from None
    if "drop_keys" in read:  # a negative one counts from the end of each layer
        read["drop_keys"] = [operator.index(key) for key in changes["drop_keys"]]
    return read
