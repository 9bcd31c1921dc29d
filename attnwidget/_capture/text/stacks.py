"""Named stacks: the attention of a forward pass, tower by tower, each with the labels of its positions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor

from ..._messages.codec.patches import LayerGrid
from ..._segments.reading import segments
from ..._segments.segments import Segments
from ..._tokens.unread import Unread
from ..._utils.choices import matches_name
from ..._utils.indexing import as_index
from ...attention import Attention
from ...stack import AttentionStack
from ..call.call_text import UNKNOWN, ImageTokens, RecordText
from ..call.patch_grid import PatchGrid
from ..modules.towers import Towers
from .labels import PADDING, Ids, Labels, can_spell, grid_of, ids_of, image_labels, labels_of, runs_of

ONLY = "self-attention"
CROSS = "cross-attention"


class TextedRecord(Protocol):
    """A record, recorded or loaded, with the text at its positions."""

    @property
    def cross(self) -> bool: ...
    @property
    def attention(self) -> Attention: ...
    @property
    def text(self) -> RecordText: ...


@dataclass(frozen=True)
class Side:
    """The text at the queries, or at the keys, of a stack.

    Attributes:
        batches: the number of samples.
        length: the number of positions shown.
        ids: (B, length); None if unknown.
        real: (B, length), False for padding; None if unknown.
        text: of a record of the stack.
        key: whether these are keys of another tower.
        rows: the kept queries, if only some are kept.
        total: the number of all queries.
        differs: whether layers have different patches, so that a label would be of one layer only.
    """

    batches: int
    length: int
    ids: Tensor | None
    real: Tensor | None
    text: RecordText
    key: bool = False
    rows: tuple[int, ...] | None = None
    total: int = 0
    differs: bool = False

    @property
    def patches(self) -> PatchGrid | None:
        """The patches of an image, if they and the tokens before them are all positions."""
        found = self.text.key_patches if self.key else self.text.patches
        fits = (
            self.ids is None
            and not self.differs
            and found is not None
            and found.block > 0
            and found.length == self.total
        )
        cut = None if found is None or found.windows is None else found.windows.many(found.rows, found.columns)
        return found if fits and not self.batches % (cut or 1) else None

    @property
    def _images(self) -> list[ImageTokens]:
        """The ids that stand for patches of images and of videos."""
        of_text = () if self.key else (self.text.images, self.text.videos)
        return [one for one in of_text if one is not None]

    def labels(self, tokenizer: Any) -> Labels | None:
        """Return a label for each position of each sample; None if the text is unknown or there is no tokenizer."""
        found: Labels | None = None
        if self.ids is not None and can_spell(tokenizer):
            found = labels_of(self.ids, self.real, tokenizer, self._images, self.rows)
        elif self.patches is not None:
            windows = [[own[row] for row in self.rows or range(len(own))] for own in self.patches.names()]
            found = windows * (self.batches // len(windows))
        elif self.rows is not None:
            found = [[f"{row:,}" for row in self.rows]] * self.batches
        return found

    def tokens(self, tokenizer: Any) -> Labels | Ids | None:
        """Return labels, or ids if there is no tokenizer."""
        if self.ids is not None and not can_spell(tokenizer):
            return ids_of(self.ids)
        return self.labels(tokenizer)

    def as_words(self, tokenizer: Any) -> Labels | None:
        """Return a string for each position, the same for the same id, to compare tokens by."""
        if self.ids is None or can_spell(tokenizer):
            return None if self.ids is None else self.labels(tokenizer)
        ids = ids_of(self.ids) or []
        words = [[Unread(i) if one is None else str(one) for i, one in enumerate(sample)] for sample in ids]
        if self.rows is None:
            for sample, named in zip(words, image_labels(self.ids, self._images), strict=True):
                for at, name in named.items():  # the same id stands for all patches
                    sample[at] = name
        return words

    def grid(self) -> LayerGrid | None:
        """Return the patches of the only image or video; None if there is none, or they are in another order."""
        if self.rows is not None:
            return None
        if self.ids is not None:
            found = None if self.key else grid_of(self.ids, self.text.images)
            return None if found is None else LayerGrid(*found[0], start=found[1])
        own = self.patches
        if own is None or own.block != 1 or own.seconds is not None:
            return None
        windows = None if own.windows is None else tuple(map(tuple, own.windows.cells(own.rows, own.columns)))
        return LayerGrid(own.rows, own.columns, own.frames, len(own.before), windows=windows)


@dataclass(frozen=True)
class NamedStack:
    """The self-attention of a tower, or its cross-attention, in a forward pass.

    Attributes:
        name: by which it is chosen, such as "decoder, cross-attention".
        label: the same within its forward pass.
        attention: its layers.
        queries: the text at its queries.
        keys: the text at its keys.
        tower: the name of its tower, such as "decoder".
        cross: whether it is cross-attention.
        forward: the number of its forward pass.
        tokenizer: spells its ids, or None.
        request: the name of its forward pass, if it is a request of an engine that serves.

    >>> import torch
    >>> from attnwidget import capture
    >>> model = torch.nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    >>> stack = capture(model).run(torch.randn(1, 3, 8), torch.randn(1, 2, 8)).stacks()["decoder, cross-attention"]
    >>> stack.tower, stack.cross, stack.attention[0].shape.K
    ('decoder', True, 3)
    """

    name: str
    label: str
    records: Mapping[str, TextedRecord] = field(repr=False)
    queries: Side = field(repr=False)
    keys: Side = field(repr=False)
    tower: str
    cross: bool
    forward: int = 0
    tokenizer: Any = field(default=None, repr=False)
    request: str | None = None

    @property
    def attention(self) -> AttentionStack:
        """Its layers."""
        return AttentionStack([record.attention for record in self.records.values()], self.records)

    @property
    def tokens(self) -> Labels | None:
        """The label of each query, of each sample; None if unknown, or if layers have other patches."""
        return self.queries.labels(self.tokenizer)

    @property
    def key_tokens(self) -> Labels | None:
        """The label of each key, of each sample; None if unknown, or if layers have other patches."""
        return self.keys.labels(self.tokenizer)

    @property
    def is_labeled(self) -> bool:
        """Whether its queries have labels."""
        side = self.queries
        return (side.ids is not None and can_spell(self.tokenizer)) or side.patches is not None or side.rows is not None

    def segments(self, source: Any = None, batch: int = 0, unit: str = "tokens") -> Segments:
        """Return the named parts of the text at its keys, for one sample: see `Forward.segments`.

        Raises:
            IndexError: there is no such sample.
            TypeError, ValueError: as in `attnwidget.segments`; or no source, and prompt and answer are not known.
        """
        side = self.keys
        at = as_index(batch, side.batches, "batch", "batches")
        source = self._known_parts(at) if source is None else source
        found = ids_of(side.ids)
        ids = None if found is None or None in found[at] else found[at]
        labels = side.labels(self.tokenizer)
        own: list[str] | None
        if labels is None and ids is not None and isinstance(source, Mapping):
            real = [True] * len(ids) if side.real is None else side.real[at].tolist()
            own = [str(one) if is_real else PADDING for one, is_real in zip(ids, real, strict=True)]
        else:
            own = None if labels is None else labels[at]
        known: dict[str, Any] = {} if own is None else {"tokens": own}
        return segments(source, tokenizer=self.tokenizer, ids=ids, **known, unit=unit, length=side.length)

    def _known_parts(self, batch: int) -> dict[str, Any]:
        """Return the spans of what is known about a sample's text: its sentences, or its images, prompt and answer."""
        found: dict[str, Any] | None = self._sentences(batch)
        if found is not None:
            return found
        images = self._images(batch)
        try:
            parts: dict[str, Any] = dict(self._prompt_and_answer())
        except ValueError:
            if not images:
                raise
            return images
        inside = [span for spans in images.values() for span in spans]
        return {**images, **{name: _without(span, inside) for name, span in parts.items()}} if images else parts

    def _images(self, batch: int) -> dict[str, list[tuple[int, int]]]:
        """Return the spans of the images and videos in a sample's text, by name; {} if there are none."""
        side, text = self.keys, self.queries.text
        found: dict[str, list[tuple[int, int]]] = {}
        if self.cross or side.ids is None:
            return found
        for name, tokens in (("image", text.images), ("video", text.videos)):
            runs = [] if tokens is None else [*runs_of(side.ids[batch].tolist(), tokens.token)]
            spans = [(start, start + length) for start, length in runs]
            for number, span in enumerate(spans):  # each frame of a video is a span of its own
                own = f"{name} {number}" if name == "image" and len(spans) > 1 else name
                found.setdefault(own, []).append(span)
        return found

    def _sentences(self, batch: int) -> dict[str, list[tuple[int, int]]] | None:
        """Return the spans of the sentences that `token_type_ids` told, of one sample; None if each has only one."""
        types = None if self.cross or self.keys.key else self.queries.text.types
        if types is None or types.shape[1] != self.keys.length:
            return None
        real = self.queries.text.real
        own = types[batch] if real is None else types[batch].masked_fill(~real[batch], -1)
        numbers = sorted({*own.tolist()} - {-1})
        found: dict[str, list[tuple[int, int]]] = {f"sentence {chr(65 + i)}": [] for i in range(len(numbers))}
        for name, number in zip(found, numbers, strict=True):
            is_own = (own == number).int()
            edges = torch.diff(is_own, prepend=is_own.new_zeros(1), append=is_own.new_zeros(1))
            starts, stops = ((edges == sign).nonzero().flatten().tolist() for sign in (1, -1))
            found[name] = list(zip(starts, stops, strict=True))
        return found

    def _prompt_and_answer(self) -> dict[str, tuple[int, int]]:
        prompt, before = self.queries.text.prompt, first_key_of(self)
        if self.cross:
            raise ValueError('the keys belong to another text, without an answer: give a source, such as "sentences"')
        if prompt is None or before is None:
            raise ValueError(
                "prompt and answer are not known, because the model did not read the prompt first and then "
                'each token of the answer: give the messages, spans, or "sentences"'
            )
        start = before + prompt
        return {"prompt": (0, start), "answer": (start, before + sum(self.queries.text.calls))}

    def grids(self) -> dict[str, Any]:
        """Return the keywords of a widget for an image's patches: one grid for all layers, or one for each."""
        if not self.queries.differs:
            found = _grid_of(self.queries, self.keys, cross=self.cross)
            if found is None or found.windows is not None:
                return {} if found is None else {"grid": [found] * len(self.records)}
            size = (found.frames, found.rows, found.columns) if found.frames > 1 else (found.rows, found.columns)
            return {"grid": size, "grid_start": found.start, "grid_side": found.side}
        grids = [_grid_of(*_sides(record), cross=self.cross) for record in self.records.values()]
        return {"grid": grids} if any(grids) else {}


def _grid_of(queries: Side, keys: Side, *, cross: bool) -> LayerGrid | None:
    """Return the patches at the queries of a layer, and at its keys if they are the same; else those at its keys."""
    for name, side in (("query", queries), ("key", keys)):
        found = side.grid()
        if found is not None:
            same = name == "query" and not cross and queries.length == keys.length
            return found._replace(side="both" if same else name)
    return None


def _without(span: tuple[int, int], inside: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the parts of a span that lie in no other.

    >>> _without((0, 9), [(2, 4)])
    [(0, 2), (4, 9)]
    """
    edges = [span[0], *(edge for own in sorted(inside) for edge in own if span[0] < edge < span[1]), span[1]]
    parts = pairwise(edges)
    return [part for part in parts if not any(own[0] <= part[0] and part[1] <= own[1] for own in inside)]


def first_key_of(stack: NamedStack) -> int | None:
    """Return the key at the first query of a stack's text, after the keys of an earlier call; None if unknown."""
    att = next(iter(stack.records.values())).attention
    own = att.own_keys(range(1))
    first = 0 if att.part is None or att.part.queries is None else att.part.queries[0]
    return None if own is None else own[0] - first


def named_stacks(
    records: Mapping[str, TextedRecord], towers: Towers, tokenizer: Any = None, forward: int = 0
) -> dict[str, NamedStack]:
    """Return the stacks of a forward pass by name, in the order in which their towers ran, each self then cross.

    Args:
        records: of the forward pass, by module name.
        towers: of the model.
        tokenizer: spells ids, or None.
        forward: the number of the forward pass.
    """
    groups: dict[tuple[str, int, bool], dict[str, TextedRecord]] = {}
    for name, record in records.items():
        tower = towers.name_of(name)
        groups.setdefault((tower, _which(groups, tower, name, record), record.cross), {})[name] = record
    order = list(dict.fromkeys(tower for tower, _, _ in groups))
    keys = sorted(groups, key=lambda key: (order.index(key[0]), key[1], key[2]))
    only = len(keys) == 1
    found = {}
    for tower, which, cross in keys:
        held = groups[tower, which, cross]
        place = _own_place(groups, tower, which, cross)
        if place is None:
            name = _name(tower, which, cross, only=only, one_tower=len(order) == 1)
        else:
            name = f"{tower}, {place}{f', {CROSS}' if cross else ''}"
        differs = len({(one.text.patches, one.text.key_patches) for one in held.values()}) > 1
        queries, side = (replace(one, differs=differs) for one in _sides(next(iter(held.values()))))
        found[name] = NamedStack(name, name, held, queries, side, tower, cross, forward, tokenizer)
    return found


def _name(tower: str, which: int, cross: bool, *, only: bool, one_tower: bool) -> str:
    if only:
        return CROSS if cross else ONLY
    kind = CROSS if cross else ONLY
    if one_tower and not which:
        return kind
    numbered = f"{tower} #{which + 1}" if which else tower
    return f"{numbered}, {kind}" if cross else numbered


Groups = Mapping[tuple[str, int, bool], Mapping[str, TextedRecord]]  # by tower, which of its stacks, cross
LAST_NUMBER = re.compile(r"^(.*\.\d+\.)(.*)$")  # of a module's name: the layer, and its place in the layer


def _own_place(groups: Groups, tower: str, which: int, cross: bool) -> str | None:
    """Return the place in a layer that tells a stack from others of its tower; None if another thing tells them."""
    places = {
        number: _place(next(iter(held)))[1].partition(".")[0]
        for (of, number, kind), held in groups.items()
        if (of, kind) == (tower, cross)
    }
    own = places[which]
    return own if len(places) > 1 and own and list(places.values()).count(own) == 1 else None


def _place(name: str) -> tuple[str, str]:
    """Return the layer of a module, without numbers, and the module's place in it."""
    name = name.partition(" #")[0]
    found = LAST_NUMBER.match(name)
    return ("", name) if found is None else (re.sub(r"\d+", "*", found[1]), found[2])


def _are_apart(name: str, record: TextedRecord, other: str, first: TextedRecord) -> bool:
    """Return whether two records are of two places in a layer and other positions, such as time and space."""
    (layer, place), (theirs, another) = _place(name), _place(other)
    sizes = [(one.attention.shape.B, one.attention.shape.Q, one.attention.shape.K) for one in (record, first)]
    return bool(layer) and layer == theirs and place != another and sizes[0][0] != sizes[1][0] and sizes[0] != sizes[1]


def _which(groups: Groups, tower: str, name: str, record: TextedRecord) -> int:
    """Return which of a tower's texts or images a record has: a tower may read several in one forward pass."""
    patches = record.text.patches
    if patches is not None and patches.picture is not None:
        return patches.picture
    which = 0
    while (tower, which, record.cross) in groups:
        other, first = next(iter(groups[tower, which, record.cross].items()))
        if _may_join(record, first) and not _are_apart(name, record, other, first):
            return which
        which += 1
    return which


def _may_join(one: TextedRecord, first: TextedRecord) -> bool:
    """Return whether a record may join a stack, which has the labels of its first record: no label is wrong or lost."""
    for axis, mine, theirs in (("Q", one.text.ids, first.text.ids), ("K", one.text.key_ids, first.text.key_ids)):
        if mine is None:
            alike = getattr(one.attention.shape, axis) == getattr(first.attention.shape, axis)
            fits = theirs is None or not alike
        else:
            fits = theirs is not None and _begin_alike(mine, theirs)
        if not fits:
            return False
    return True


def _begin_alike(ids: Tensor, others: Tensor) -> bool:
    """Return whether ids are the same, or a beginning of them, as in a layer whose last calls were not kept."""
    n = min(ids.shape[1], others.shape[1])
    return len(ids) != len(others) or torch.equal(ids[:, :n], others[:, :n])


def _sides(record: TextedRecord) -> tuple[Side, Side]:
    """Return the text at the queries and at the keys of a record."""
    att, text = record.attention, record.text
    B, Q, K = att.shape.B, att.shape.Q, att.shape.K
    rows = None if att.part is None else att.part.queries
    ids, real = (x if x is not None and x.shape[0] == B else None for x in (text.ids, text.real))
    total = ids.shape[1] if ids is not None else Q if rows is None else K
    kept = [x if x is None or rows is None else x[:, list(rows)] for x in (ids, real)]
    own_ids, own_real = (x if x is not None and x.shape[1] == Q else None for x in kept)
    queries = Side(B, Q, own_ids, own_real, text, rows=rows, total=total)
    if record.cross:
        ids, real = (x if x is not None and x.shape == (B, K) else None for x in (text.key_ids, text.key_real))
        return queries, Side(B, K, ids, real, text, key=True, total=K)
    if Q == K and rows is None:
        return queries, queries
    if real is not None and real.shape[1] != K:
        real = None
    before = None if att.part is None else att.part.keys_before
    return queries, Side(B, K, None if before is None else _among_unknown(ids, before, K), real, text, total=K)


def _among_unknown(ids: Tensor | None, before: int, length: int) -> Tensor | None:
    """Return ids (B, n) among so many, after unknown ones, such as those of a cache."""
    if ids is None or before + ids.shape[1] > length:
        return None
    found = ids.new_full((ids.shape[0], length), UNKNOWN)
    found[:, before : before + ids.shape[1]] = ids
    return found


def find_stack(stacks: Mapping[str, NamedStack], name: str, towers: Towers, *, cross: bool = False) -> NamedStack:
    """Return a stack by its name, or by the name of its tower.

    Args:
        stacks: by name.
        name: of a stack; or of a tower, or a dotted part of its path, for its self-attention.
        towers: of the model.
        cross: whether to return the cross-attention of a tower.

    Raises:
        KeyError: there is no such stack.
    """
    if name in stacks and stacks[name].cross >= cross:
        return stacks[name]
    paths = {of: path for path, of in towers.names.items()}
    rules = (
        lambda one: one.label == name and one.cross >= cross,
        lambda one: one.tower == name,
        lambda one: matches_name(name, paths.get(one.tower, "")),
    )
    for fits in rules:
        found = [one for one in stacks.values() if fits(one)]
        found.sort(key=lambda one: one.cross != cross)
        if found:
            return found[0]
    there = [*stacks, *(one.tower for one in stacks.values())]
    raise KeyError(f"no tower or stack is called {name!r}: there are {', '.join(map(repr, dict.fromkeys(there)))}")


def inputs_of(stacks: Mapping[str, NamedStack]) -> dict[str, Tensor]:
    """Return ids and masks by the names of transformers' arguments, a decoder's apart from its encoder's."""
    attended = {one.tower for one in stacks.values() if one.cross}
    found: dict[str, Tensor] = {}
    for one in stacks.values():
        ids = one.queries.ids if one.queries.rows is None else one.queries.text.ids  # also those that are not kept
        if one.cross or ids is None or bool((ids == UNKNOWN).any()):
            continue
        prefix = "decoder_" if one.tower in attended and len({other.tower for other in stacks.values()}) > 1 else ""
        found.setdefault(f"{prefix}input_ids", ids)
        real = one.queries.real if one.queries.rows is None else one.queries.text.real
        if real is not None:
            found.setdefault(f"{prefix}attention_mask", real.to(torch.int64))
    return found
