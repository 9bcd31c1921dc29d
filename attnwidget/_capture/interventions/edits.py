"""Read and check edits before the model runs: which heads are edited, and how."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..._engine.what_if import READERS
from ..._segments.segments import Segments
from ..._utils.choices import matches_name
from ..._utils.validation import nearest, told
from ..intercept.output_edits import EditRefused
from .added_mask import CustomMask
from .kept_keys import read_keep
from .named_positions import NamedPositions
from .patching import OtherRun

EVEN = ("mean", "uniform")
PLAIN = ("scale", "temperature", "softcap", "mask", "causal", "window", "sinks", "dtype")
KEYWORDS = (*PLAIN, "drop_keys", "keep", "block")
REFINING = {"renormalize": "block", "mask_dims": "mask"}  # keywords that refine another one
ALONE = ("from", "output")
TAKE = ("weights", "outputs")
EDIT_ADVICE = (
    "give 'zero', 'mean', 'uniform', a dict such as {'drop_keys': [3]} or {'block': (queries, keys)}, "
    "{'from': capture}, {'output': numbers}, a tensor of weights, or a function of a block"
)
KEY_ADVICE = "give a layer, (layer, head), (layer, (heads)), 'all', or a module name instead of the layer"

REMOVING = {"mask": False, "causal": False, "window": None, "softcap": None, "sinks": False}  # values that remove
REMOVED = {
    "mask": "a mask",
    "causal": "a causal rule of its own (it may be in its mask: 'mask': False)",
    "window": "a window of its own (it may be in its mask: 'mask': False)",
    "softcap": "a softcap",
    "sinks": "learned sinks",
}


@dataclass(frozen=True)
class BlockedKeys:
    """Keys that some queries must not attend to."""

    queries: NamedPositions
    keys: NamedPositions
    renormalize: bool


@dataclass(eq=False)
class HeadEdit:
    """One edit of a head: changed rules, replaced weights or a replaced output.

    Attributes:
        text: as it was given, for errors.
        changes: the keywords of `what_if`, checked.
        dropped: keys that no query attends to.
        blocks: keys that some queries do not attend to.
        mask: a custom mask on top of the call's rules.
        keep: which keys a cache keeps.
        even: whether all allowed keys get the same weight.
        weights: replace the head's own: a tensor, a function, or another run.
        output: replaces the head's own: a number, a tensor, or another run.
        changed: the keywords of `REMOVING` that have removed something.
        firsts: where the text of each sample begins, by layer, for `keep`.
    """

    text: str
    changes: dict[str, Any] = field(default_factory=dict)
    dropped: NamedPositions | None = None
    blocks: tuple[BlockedKeys, ...] = ()
    mask: CustomMask | None = None
    keep: Mapping[str, Any] | None = None
    even: bool = False
    weights: Tensor | Callable[[Any], Tensor] | OtherRun | None = None
    output: float | Tensor | OtherRun | None = None
    changed: set[str] = field(default_factory=set)
    firsts: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def is_differentiable(self) -> bool:
        """Whether gradients flow through the edit."""
        return "dtype" not in self.changes

    @property
    def needs_scores(self) -> bool:
        """Whether it needs q and k: not if it gives outputs or weights, or only makes some weights 0."""
        if self.output is not None or isinstance(self.weights, Tensor | OtherRun):
            return False
        others = self.changes or self.dropped or self.mask or self.keep or self.even or self.weights
        return bool(others) or not self.blocks or any(one.renormalize for one in self.blocks)

    def reset(self) -> None:
        """Forget the calls of an earlier run."""
        self.changed.clear()
        self.firsts.clear()
        for one in (self.weights, self.output):
            if isinstance(one, OtherRun):
                one.ends.clear()

    def unused_keyword(self) -> str | None:
        """Return "has …" for a rule that the edit removes but no call had; None if there is none."""
        given = (name for name, value in REMOVING.items() if name in self.changes and self.changes[name] is value)
        return next((f"has {REMOVED[name]}" for name in given if name not in self.changed), None)


class PerSample(Sequence[Any]):
    """Edits under one key, one for each sample of the batch; None leaves a sample unedited."""

    def __init__(self, edits: Iterable[Any]) -> None:
        self._edits = list(edits)

    def __getitem__(self, which: Any) -> Any:
        return self._edits[which]

    def __len__(self) -> int:
        return len(self._edits)

    def __repr__(self) -> str:
        return f"PerSample({self._edits!r})"


class Applied(NamedTuple):
    """An edit of a head, all heads that its key names, and its entry of `edits`."""

    edit: HeadEdit
    heads: tuple[int, ...]
    rule: EditRule


@dataclass(eq=False)
class EditRule:
    """One entry of `edits`.

    Attributes:
        key: as it was given.
        layer: a number, the name of a module, or None for all.
        heads: or None for all.
        edits: one for all samples, or one for each.
        met: the edited heads, by module name.
        number: the layer's number; None for a name, or for a number from the end while the count is unknown.
    """

    key: Any
    layer: int | str | re.Pattern[str] | None
    heads: tuple[int, ...] | None
    edits: list[HeadEdit | None]
    per_sample: bool = False
    met: dict[str, set[int]] = field(default_factory=dict)
    number: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.layer, int) and self.layer >= 0:
            self.number = self.layer

    @property
    def rank(self) -> tuple[bool, bool]:
        """How specifically the key names a head."""
        return self.layer is not None, self.heads is not None

    def names(self, name: str, number: int | None) -> bool:
        """Return whether this edit applies to a layer; `number` is None for a layer that is not numbered."""
        if self.layer is None:
            return True
        if isinstance(self.layer, int):
            return number is not None and self.number == number
        return matches_name(self.layer, name)

    def heads_of(self, name: str, count: int) -> tuple[int, ...]:
        """Return the heads that are edited in a layer of `count` heads."""
        missing = [head for head in self.heads or () if not -count <= head < count]
        if missing:
            raise EditRefused(
                f"edits has {self.key!r}, but {name} has heads 0 to {count - 1}, and no head {missing[0]}"
            )
        return tuple(range(count)) if self.heads is None else tuple(head % count for head in self.heads)


ByHead = dict[int, list[Applied | None]]  # by head, one entry for each sample


class EditPlan(Mapping[Any, str]):
    """All edits of an intervention: a mapping from their keys, as given, to the edits as text.

    Args:
        edits: as in `intervene`.
        segments: where names of segments are looked up.
        cross: True edits only cross-attention, numbered as in `cap.cross`; False only self-attention; None both,
            numbered as in `cap.attention`.
        layers: the names of a capture's layers of the kind that is counted, in order, if one was made of the same call.

    Raises:
        TypeError, ValueError: an invalid edit.
    """

    def __init__(
        self,
        edits: Any,
        segments: Segments | None = None,
        cross: bool | None = None,
        layers: Sequence[str] | None = None,
    ) -> None:
        if not isinstance(edits, Mapping):
            raise TypeError(f"edits is {told(edits)}: give a dict such as {{(5, 7): 'zero'}}")
        if segments is not None and not isinstance(segments, Segments):
            raise TypeError(f"segments is {told(segments)}: give the result of attnwidget.segments(…)")
        if cross is not None and not isinstance(cross, bool):
            raise TypeError(f"cross is {told(cross)}: give True, False or None")
        self.cross, self.layers = cross, layers
        self.rules = [_read_rule(key, value, segments) for key, value in edits.items()]

    def __getitem__(self, key: Any) -> str:
        return {rule.key: _text_of(rule) for rule in self.rules}[key]

    def __iter__(self) -> Iterator[Any]:
        return (rule.key for rule in self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{key!r}: {text}" for key, text in self.items()) + "}"

    def reset(self) -> None:
        """Forget the calls of an earlier run."""
        for rule in self.rules:
            rule.met.clear()
            for edit in rule.edits:
                if edit is not None:
                    edit.reset()

    def names(self, name: str) -> bool:
        """Return whether an entry names a module, or all of them; a number names none."""
        return any(rule.names(name, None) for rule in self.rules)

    def may_edit(self, name: str) -> bool:
        """Return whether a module of this name may be edited."""
        return self.names(name) or any(isinstance(rule.layer, int) for rule in self.rules)

    def numbers(self, cross: bool) -> set[int]:
        """Return the numbers of layers of a kind that the entries have."""
        return {rule.number for rule in self.rules if rule.number is not None and cross == bool(self.cross)}

    def last_number(self, cross: bool) -> int | None:
        """Return the largest number of a layer of a kind that an entry has; None if none counts this kind."""
        return max(self.numbers(cross), default=None)

    def edits_of(self, name: str, number: int | None, cross: bool, heads: int, samples: int) -> ByHead:
        """Return the edits of one call.

        Args:
            name: the name of its module.
            number: the number of its layer, within self- or cross-attention; None if it has none.
            cross: whether it is cross-attention.
            heads: how many heads it has.
            samples: how many samples it has.

        Returns:
            For each edited head, one `Applied` or None per sample.

        Raises:
            EditRefused: a head or sample does not exist, or two keys name a head equally specifically.
        """
        if self.cross is not None and cross != self.cross:
            return {}
        counted = number if cross == bool(self.cross) else None
        chosen: dict[int, tuple[EditRule, tuple[int, ...]]] = {}
        for rule in self.rules:
            named = rule.heads_of(name, heads) if rule.names(name, counted) else ()
            for head in named:
                other = chosen.get(head)
                if other is not None and other[0].rank == rule.rank:
                    raise EditRefused(
                        f"head {head} of {name} is named by {other[0].key!r} and by {rule.key!r}: use one key, or "
                        "enter one intervention inside the other"
                    )
                if other is None or rule.rank > other[0].rank:
                    chosen[head] = rule, named
        return {head: _of_samples(*chosen[head], samples) for head in sorted(chosen)}


def _of_samples(rule: EditRule, named: tuple[int, ...], samples: int) -> list[Applied | None]:
    if rule.per_sample and len(rule.edits) != samples:
        raise EditRefused(f"{rule.key!r} has edits for {len(rule.edits)} samples, but the batch has {samples}")
    edits = rule.edits if rule.per_sample else rule.edits * samples
    return [None if edit is None else Applied(edit, named, rule) for edit in edits]


def _text_of(rule: EditRule) -> str:
    texts = ["None" if edit is None else edit.text for edit in rule.edits]
    return f"PerSample([{', '.join(texts)}])" if rule.per_sample else texts[0]


# Reading.


def _read_rule(key: Any, value: Any, segments: Segments | None) -> EditRule:
    layer, heads = _read_key(key)
    if isinstance(value, PerSample):
        edits = [None if one is None else read_edit(one, segments) for one in value]
        return EditRule(key, layer, heads, edits, per_sample=True)
    return EditRule(key, layer, heads, [read_edit(value, segments)])


def _read_key(key: Any) -> tuple[Any, tuple[int, ...] | None]:
    """Return the layer and the heads that a key names; None means all."""
    layer, heads = key if isinstance(key, tuple) and len(key) == 2 else (key, None)
    if isinstance(layer, tuple):
        raise TypeError(f"edits has the key {key!r}: {KEY_ADVICE}")
    if layer == "all":
        layer = None
    elif not isinstance(layer, str | re.Pattern):
        layer = _integer(layer, key)
    if heads is None:
        return layer, None
    given = heads if isinstance(heads, Iterable) and not isinstance(heads, str) else [heads]
    found = tuple(dict.fromkeys(_integer(one, key) for one in given))
    if not found:
        raise ValueError(f"edits has the key {key!r}, which names no head: {KEY_ADVICE}")
    return layer, found


def _integer(given: Any, key: Any) -> int:
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise TypeError(f"edits has the key {key!r}: {KEY_ADVICE}")
    return int(given.__index__())


def read_edit(given: Any, segments: Segments | None = None) -> HeadEdit:
    """Read one edit.

    Raises:
        TypeError, ValueError: the edit is invalid.
    """
    if isinstance(given, str):
        if given != "zero" and given not in EVEN:
            raise ValueError(f"{given!r} is not an edit: {nearest(given, ('zero', *EVEN))}{EDIT_ADVICE}")
        return HeadEdit(repr(given), output=0.0) if given == "zero" else HeadEdit(repr(given), even=True)
    if isinstance(given, Mapping):
        return _read_keywords(given, segments)
    if isinstance(given, Tensor | np.ndarray):
        weights = _numbers(given, "weights")
        if weights.ndim not in (2, 3, 4):
            raise ValueError(
                f"weights have shape {tuple(weights.shape)}: give (Q, K), (heads, Q, K) or (B, heads, Q, K)"
            )
        return HeadEdit(f"weights {tuple(weights.shape)}", weights=weights)
    if callable(given):
        return HeadEdit(getattr(given, "__name__", type(given).__name__), weights=given)
    raise TypeError(f"{told(given)} is not an edit: {EDIT_ADVICE}")


def _numbers(given: Any, what: str) -> Tensor:
    try:
        if isinstance(given, np.ndarray):
            found = torch.from_numpy(given)
        else:
            found = torch.as_tensor(given, device=given.device if isinstance(given, Tensor) else "cpu")
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{what} is {told(given)}: give real numbers, as a tensor") from None
    if not (found.is_floating_point() or found.dtype in (torch.int64, torch.int32, torch.bool)):
        raise TypeError(f"{what} has dtype {found.dtype}: give real numbers")
    return found if found.is_floating_point() else found.float()


def _read_keywords(given: Mapping[str, Any], segments: Segments | None) -> HeadEdit:
    if "from" in given:
        return _read_from(given)
    if "output" in given:
        if len(given) > 1:
            raise ValueError("'output' replaces everything that other keywords would change: give it alone")
        output = _numbers(given["output"], "output")
        return HeadEdit(f"{{'output': {tuple(output.shape)}}}", output=output)
    alone = next((name for name, other in REFINING.items() if name in given and other not in given), None)
    if alone is not None:
        raise ValueError(f"{alone!r} only works together with {REFINING[alone]!r}: give both")
    words = {name: value for name, value in given.items() if name not in REFINING}
    if not words:
        raise ValueError(f"{dict(given)!r} is not an edit: {EDIT_ADVICE}")
    for name in words:
        if name not in KEYWORDS:
            raise ValueError(
                f"an edit has {told(name)}: {nearest(name, (*KEYWORDS, *ALONE))}there are {', '.join(KEYWORDS)}"
            )
    own = None
    if not isinstance(words.get("mask", True), bool):
        own = CustomMask(words["mask"], given.get("mask_dims"))
    elif "mask_dims" in given:
        raise ValueError(f"mask_dims names the axes of a mask, but mask is {words['mask']}: give a tensor")
    return HeadEdit(
        _text_of_keywords(given, own),
        {name: READERS[name](None, words[name]) for name in words if name in PLAIN and not (own and name == "mask")},
        NamedPositions(_keys(words["drop_keys"]), "drop_keys", segments) if "drop_keys" in words else None,
        _read_block(words["block"], given.get("renormalize", True), segments) if "block" in words else (),
        own,
        read_keep(words["keep"]) if "keep" in words else None,
    )


def _text_of_keywords(given: Mapping[str, Any], mask: CustomMask | None) -> str:
    """Return keywords as text, with the shape of a mask."""
    if mask is None:
        return repr(dict(given))
    return "{" + ", ".join(f"{name!r}: {mask if name == 'mask' else repr(one)}" for name, one in given.items()) + "}"


def _keys(given: Any) -> Any:
    if given is None:
        raise TypeError("drop_keys is None: give a list of keys")
    return given


def _read_block(given: Any, renormalize: Any, segments: Segments | None) -> tuple[BlockedKeys, ...]:
    if not isinstance(given, tuple) or len(given) != 2:
        raise TypeError(f"block is {told(given)}: give (queries, keys), as positions or names of segments")
    if not isinstance(renormalize, bool):
        raise TypeError(f"renormalize is {told(renormalize)}: give True or False")
    queries, keys = (
        NamedPositions(one, f"block's {side}", segments) for one, side in zip(given, ("queries", "keys"), strict=True)
    )
    return (BlockedKeys(queries, keys, renormalize),)


def _read_from(given: Mapping[str, Any]) -> HeadEdit:
    unknown = [name for name in given if name not in ("from", "take")]
    take = given.get("take", "weights")
    if unknown or take not in TAKE:
        what = f"'take': {take!r}" if not unknown else repr(unknown[0])
        raise ValueError(
            f"an edit from another run has {what}: give {{'from': capture, 'take': 'weights' or 'outputs'}}"
        )
    run = OtherRun(given["from"])
    text = f"{{'from': {run}, 'take': {take!r}}}"
    return HeadEdit(text, weights=run) if take == "weights" else HeadEdit(text, output=run)
