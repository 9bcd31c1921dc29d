"""The traits that choose among several stacks and forward passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import traitlets

from ..._tokens.inputs import is_by_name
from ..._utils.indexing import as_index
from ...attention import Attention
from ...stack import AttentionStack, as_attention
from ..stores.across import Across, AcrossLayers, as_across, message_of
from ..stores.named_stacks import LabeledStack, NamedStacks, StackKey
from ..traits.trait_types import Index, Text, Whole, refusing
from .recall import RecallPart
from .segments import SegmentsPart


class AcrossTrait(traitlets.TraitType[Any, Any]):
    """Several layers as one; None: single layers."""

    def validate(self, obj: Any, value: Any) -> dict[str, Any] | None:
        with refusing():
            return message_of(as_across(value))


class StacksPart(SegmentsPart, RecallPart):
    """The stack on display: one of several, by name and forward pass."""

    _named_stacks: NamedStacks
    _chosen: StackKey  # the stack that is shown
    _layer_before: int = 0  # the layer shown before several became one

    across: Any = AcrossTrait(
        None, allow_none=True, help="Several layers and forward passes shown as one, or None."
    ).tag(sync=True, role="numbers")
    title = Text(help="A line above the picture.").tag(sync=True, role="given")
    stack = Text(help="The name of the stack on display, if there are several.").tag(sync=True, role="numbers")
    forward: Whole = Index(help="The number of the forward pass on display.").tag(sync=True, role="numbers")

    @property
    def stacks(self) -> tuple[str, ...]:
        """The names of the stacks in the selected forward pass: the values that `stack` can have."""
        return self._named_stacks.names(self._chosen.forward)

    @property
    def forwards(self) -> int:
        """The number of forward passes: `forward` is 0 to `forwards` − 1."""
        return self._named_stacks.forwards

    def _begin(self, source: Any, show: dict[str, Any]) -> dict[str, Any]:
        """Choose the first stack.

        Args:
            source: the stacks by name, or one attention.
            show: the keywords of the widget.

        Returns:
            The keywords, with the labels of the stack added.

        Raises:
            ValueError, TypeError, IndexError: there is no such stack, or it is not a stack.
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
        if "grid" in show:  # another grid, at other positions
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

    @traitlets.validate("across")
    def _can_be_one(self, proposal: Any) -> dict[str, Any] | None:
        found: dict[str, Any] | None = proposal["value"]
        with refusing():
            self._combined(found, self._named_stacks.find(self._chosen).attention)
        return found

    @traitlets.observe("across")
    def _on_across(self, change: Any) -> None:
        """Show several layers as one, or the layers again with the one that was shown."""
        if self._is_changing:
            return
        with self._lock, self.hold_sync():
            self._cancel()
            layer = self.layer
            with self._changing():
                titled_so = self.title == self._shown.title
                if change["new"] is not None:
                    self.set_trait("combine", "none")
                    self.what_if, self.stage = {}, "weights"
                    self._layer_before = layer if change["old"] is None else self._layer_before
                self._replace_layers(self._shown.attention)
                self.layer = 0 if change["new"] is not None else min(self._layer_before, len(self._shown.stack) - 1)
                self.title = self._shown.title if titled_so else self.title
            self._refresh()

    def _layers_across(self, attention: Attention | AttentionStack) -> AcrossLayers | None:
        """Return the layers as one, if they are shown so; the layers themselves if another stack cannot be."""
        try:
            return self._combined(self.across, attention)
        except (ValueError, IndexError, TypeError) as error:
            self._say_refused(error)
            with self._changing():
                self.across = None
            return None

    def _combined(self, given: Any, attention: Attention | AttentionStack) -> AcrossLayers | None:
        across = as_across(given)
        if across is None:
            return None
        layers = [*attention] if isinstance(attention, AttentionStack) else [attention]
        return across.combine(layers, self.grid, lambda: self._layers_of_passes(across))

    def _layers_of_passes(self, across: Across) -> list[Sequence[Attention]]:
        """Return the layers of each chosen forward pass, of the stack on display."""
        count = self._named_stacks.forwards
        numbers = range(count) if across.forwards in ("all", None) else across.forwards
        found: list[Sequence[Attention]] = []
        for number in numbers:
            forward = as_index(number, count, "forward", "forwards")
            key = StackKey(forward, self._chosen.name)
            if key.name not in self._named_stacks.names(forward):
                raise ValueError(f"forward {forward} has no stack {key.name!r}: choose forward passes that have it")
            layers = self._named_stacks.find(key).attention
            found.append([*layers] if isinstance(layers, AttentionStack) else [layers])
        return found

    def _check_labels(self, key: StackKey) -> None:
        """Raise if the tokens of another stack do not fit it; nothing has changed yet."""
        if key == self._chosen:
            return
        found = self._named_stacks.find(key)
        layers = found.attention if isinstance(found.attention, AttentionStack) else [found.attention]
        shape = layers[min(self.layer, len(layers) - 1)].shape
        self._token_store.check(found.tokens, shape.B, shape.Q, f"tokens[{key.name!r}]")
        self._token_store.check(found.key_tokens, shape.B, shape.K, f"key_tokens[{key.name!r}]")

    def _show_chosen(self) -> str | None:
        """Show the layers and labels of the chosen stack, and keep the part of the selection that it has.

        Returns:
            Why `what_if` was dropped, if it does not fit this stack; else None.
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
                del given["segments"]  # such as "sentences", which fits any text
            for name, value in [("grid", None), ("image", None), *given.items()]:
                setattr(self, name, value)
            if words and (found.tokens is not None or found.key_tokens is not None):
                self.pieces = "words"
                self._replace_layers(found.attention)
            if before.name != key.name:
                self.pins = []  # positions of another text
            self.title = self._shown.title if titled_so else self.title
            self.forward, self.stack = key
        return refused

    def _remember(self) -> None:
        """Keep the current labels of the stack on display."""
        given = {name: getattr(self, name) for name in LabeledStack(self._shown.attention).given}
        effects = self._named_stacks.find(self._chosen).effects
        self._named_stacks.keep(self._chosen, LabeledStack(self._shown.attention, **given, effects=effects))

    def _watch(self) -> None:
        super()._watch()
        self.observe(self._when_changed(self._send_soon, "grid"), ["across"])
        self.observe(self._when_changed(self._on_choice), ["stack", "forward"])

    def _on_choice(self) -> None:
        """Show another stack, all of it in one message."""
        if self._is_changing or (self.forward, self.stack) == self._chosen:
            return
        with self._lock, self.hold_sync():
            self._cancel()
            try:
                refused = self._show_chosen()
            finally:
                self._refresh()
        self._say_rules_are_off(refused)
