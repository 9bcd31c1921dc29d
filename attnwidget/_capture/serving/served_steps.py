"""The steps of an engine while they are recorded: the tokens of each request, and what each layer computed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ..._utils.choices import Numbers
from ..call.memory_limit import SHARE, MemoryLimit, free_bytes
from ..call.observed_call import ObservedCall, ProcessHeads
from ..modules.selection import HeadSelection, LayerSelection
from .cache_reader import UNKNOWN_LAYOUT, CachedKeys, CacheReader
from .command import ServedOptions
from .vllm_names import (
    NewRequest,
    ServedLayer,
    StepPlaces,
    cache_blocks,
    drafted,
    image_token_of,
    is_causal,
    layers_of,
    new_requests,
    pipeline_size,
    requests_in_order,
    running_request,
    tokens_of,
    workers_of,
)

FEW_ROWS, CHECKED_ROWS = 4, 8  # all rows of a short piece are checked by its output, and some of a longer one
NUMBERS_OF_WORKERS = (
    "the layers are split over {} workers (pipeline parallelism), which do not know each other's numbers: name the "
    "layers, such as layers='layers.5'"
)
FEWER_TOKENS = (
    "it computes only some of the tokens of a step, as with kv_sharing_fast_prefill: start the engine without that"
)
UNSEEN = "its call was not seen in a step of the engine, as if a CUDA graph had replayed it"
RANDOM_END = 9  # the characters that the engine adds to a request's id: a hyphen and eight digits


def short_id(name: str) -> str:
    """Return a request's id as its user gave it."""
    return name[:-RANDOM_END] if len(name) > RANDOM_END and name[-RANDOM_END] == "-" else name


@dataclass
class RequestPiece:
    """Some tokens of a request in one step.

    Attributes:
        request: their text.
        row: of the request in the step.
        position: of the first token in its text.
        count: the number of tokens.
        drafts: how many of the last tokens are a draft, which the model may reject.
        length: of the text with these tokens.
        first: the place of the first token among the kept keys of the step.
        rows: the kept queries, counted from the first token.
        first_row: the place of the first kept query among those of the step.
        checked: the queries whose output is kept, counted among `rows`.
        first_checked: the place of the first of them among the kept outputs of the step.
    """

    request: ServedRequest
    row: int
    position: int
    count: int
    drafts: int
    length: int
    first: int = 0
    rows: list[int] = field(default_factory=list)
    first_row: int = 0
    checked: list[int] = field(default_factory=list)
    first_checked: int = 0

    @property
    def stop(self) -> int:
        """The position after the last token."""
        return self.position + self.count


@dataclass(eq=False)
class ServedRequest:
    """A request, and where its tokens were computed.

    Attributes:
        facts: what the engine knows of it.
        pieces: its tokens, each with the step that has them.
        cached: keys that were in the cache before the first recorded token, by layer.
        began_before: whether it was running before recording began, so that only a part of its answer is known.
        is_cut: whether the limit ended its recording.
    """

    facts: NewRequest
    pieces: list[tuple[EngineStep, RequestPiece]] = field(default_factory=list)
    cached: dict[str, list[tuple[int, CachedKeys]]] = field(default_factory=dict)
    began_before: bool = False
    is_cut: bool = False

    @property
    def prompt(self) -> int | None:
        """The length of its prompt; None if unknown."""
        return None if self.facts.prompt is None else len(self.facts.prompt)


@dataclass(eq=False)
class LayerStep:
    """What one layer computed in a step: q, k, v and some of its output, each (tokens, heads, size)."""

    q: Tensor
    k: Tensor | None
    v: Tensor | None
    output: Tensor
    is_causal: bool


@dataclass(eq=False)
class EngineStep:
    """One step of the engine.

    Attributes:
        places: of all requests in it.
        pieces: the tokens that are recorded.
        tokens: the ids of all tokens.
        keys, rows, checked: the places of the kept keys, queries and outputs among all tokens; None: all.
        layers: what each layer computed.
    """

    places: StepPlaces
    pieces: list[RequestPiece]
    tokens: Tensor
    keys: Tensor | None
    rows: Tensor | None
    checked: Tensor
    layers: dict[str, LayerStep] = field(default_factory=dict)


class StepRecorder:
    """Records the steps of a worker for one capture.

    Args:
        worker: of the engine.
        options: what is kept.
        wants: decides for each request whether it is recorded; None: by its id.

    Raises:
        ValueError: the layers cannot be chosen by number.
    """

    def __init__(self, worker: Any, options: ServedOptions, wants: Callable[[NewRequest], Any] | None) -> None:
        self._runner, self._options, self._wants = worker.model_runner, options, wants
        every, self.skipped = layers_of(worker)
        self.readable = every
        self.image_token = image_token_of(worker)
        self._selection = LayerSelection(options.layers)
        self.every = [*every]
        for name in self.every:
            self._selection.numbers.of(name, cross=False)
        if pipeline_size(worker) > 1 and any(isinstance(one, Numbers) for one in options.layers or ()):
            raise ValueError(NUMBERS_OF_WORKERS.format(pipeline_size(worker)))
        heads = HeadSelection(options.heads, self._selection.numbers.of)
        chosen = {name: one for name, one in every.items() if self._selection.holds(name, cross=False)}
        self.heads = {name: found for name, one in chosen.items() if (found := _heads_here(heads, one)) != []}
        self.layers = {name: one for name, one in chosen.items() if name in self.heads}
        self.skipped = {name: why for name, why in self.skipped.items() if self._selection.wants(name)}
        sources = {one.key_source for one in self.layers.values() if one.key_source is not None}
        self.watched = {name: one for name, one in every.items() if name in self.layers or name in sources}
        self._readers = {name: CacheReader(one) for name, one in self.watched.items()}
        self.requests: dict[str, ServedRequest] = {}
        self._ignored: dict[str, None] = {}
        self._memory = MemoryLimit(_limit_of(worker, options))
        self._scheduled: Any = None
        self._batch: Any = None
        self._step: EngineStep | None = None
        self._metadata: Any = None  # of the layer before, whose places were those of the step
        self._is_read = False  # whether the running step has been looked at
        self.failed: str | None = None  # the first error of this recorder, after which it records nothing

    def missing_layer(self) -> str | None:
        """Return why a chosen layer is not there, with the layers that are; None if all are there."""
        found = self._selection.missing()
        if found is None or not self.every:
            return None
        return f"no layer is {found.layer}: {found.advice}there are {', '.join(map(repr, found.seen))}"

    @property
    def others(self) -> list[str]:
        """A few requests that ran and were not wanted, by their names."""
        return [short_id(name) for name in islice(self._ignored, 3)]

    # A step.

    def begin_step(self, scheduled: Any) -> None:
        """Take what the scheduler has planned."""
        self._scheduled, self._batch, self._step, self._is_read = scheduled, None, None, False
        self._metadata = None
        for one in new_requests(scheduled):
            self._note(one)

    def take_batch(self, batch: Any) -> None:
        """Take the batch that a model runner has prepared."""
        self._batch = batch

    def end_step(self) -> None:
        """Look for layers whose calls did not come; forget what no layer needs any more."""
        step, self._step, self._scheduled, self._batch = self._step, None, None, None
        if step is None:
            return
        for name in self.watched.keys() - step.layers.keys():
            self.skipped.setdefault(name, UNSEEN)
        step.tokens = step.tokens.cpu()

    def _note(self, one: NewRequest, *, began_before: bool = False) -> None:
        """Add a request, if it is wanted."""
        if one.id in self.requests or one.id in self._ignored:
            return
        globs = self._options.requests
        is_named = globs is None or any(fnmatchcase(short_id(one.id), glob) or one.id == glob for glob in globs)
        if is_named and (self._wants is None or self._wants(one._replace(id=short_id(one.id)))):
            self.requests[one.id] = ServedRequest(one, began_before=began_before)
        else:
            self._ignored[one.id] = None

    def record(self, name: str, given: Sequence[Tensor | None], cache: Tensor, metadata: Any, output: Tensor) -> None:
        """Record a layer's call in the running step.

        Args:
            name: of the layer.
            given: q, k and v of all tokens, (tokens, heads, size); k and v are None for a layer that uses another's.
            cache: of the layer.
            metadata: of the step, as the attention backend has it.
            output: of the call, (tokens, H, Dv).
        """
        if self._scheduled is None or metadata is None or name not in self.watched or name in self.skipped:
            return
        if not self._is_read:
            self._is_read, self._step = True, self._read_step(metadata)
        if self._step is None:
            return
        try:
            self._step.layers[name] = self._read_layer(self._step, self.watched[name], given, cache, metadata, output)
        except ValueError as error:
            self.skipped[name] = str(error)

    def _read_layer(
        self,
        step: EngineStep,
        layer: ServedLayer,
        given: Sequence[Tensor | None],
        cache: Tensor,
        metadata: Any,
        output: Tensor,
    ) -> LayerStep:
        """Return what is kept of a layer's call, as `record` takes it; ValueError if it cannot be read."""
        q, k, v = given
        assert q is not None
        causal = not layer.is_encoder and is_causal(metadata)
        if metadata is not self._metadata:  # layers share it, and to read it waits for an accelerator
            if StepPlaces.of(metadata, len(step.places.lengths)) != step.places:
                raise ValueError(FEWER_TOKENS)
            self._metadata = metadata
        total = step.places.edges[-1]
        keys: list[Tensor] = []
        if layer.key_source is None and k is not None and v is not None:
            seen = self._seen_keys(layer, cache, metadata, (k[:total], v[:total]))
            keys = [_kept(x, step.keys, total) for x in seen]
        output = output.view(output.shape[0], q.shape[1], -1)
        kept_k, kept_v = keys or (None, None)
        return LayerStep(
            _kept(q, step.rows, total), kept_k, kept_v, _kept(output, step.checked, total), is_causal=causal
        )

    def _seen_keys(
        self, layer: ServedLayer, cache: Tensor, metadata: Any, given: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the keys and values that the kernel attends to: as given, or as the cache has rounded them.

        Keys before the first recorded token of a text are read from the cache, and kept.
        """
        if layer.is_encoder:
            return given
        seen: tuple[Tensor, Tensor] | None = given
        if layer.cache_is_rounded:
            blocks = cache_blocks(metadata, 0)
            seen = None if blocks is None else self._readers[layer.name].written(cache, blocks.slots, given)
        if seen is None:
            raise ValueError(UNKNOWN_LAYOUT)
        self._read_prefixes(layer.name, cache, metadata, given)
        return seen

    def _read_prefixes(self, name: str, cache: Tensor, metadata: Any, keys: tuple[Tensor, Tensor]) -> None:
        """Read the keys before the first recorded token of each text from the cache.

        Raises:
            ValueError: the layout of the cache is not known.
        """
        step = self._step
        assert step is not None
        for piece in step.pieces:
            request = piece.request
            if piece.position <= _stop_before(request, step):
                continue
            blocks = cache_blocks(metadata, piece.row)
            found = None if blocks is None else self._readers[name].prefix(cache, blocks, piece.position, keys)
            if found is None:
                raise ValueError(UNKNOWN_LAYOUT)
            request.cached.setdefault(name, []).append((piece.position, CachedKeys(*(x.cpu() for x in found))))

    def _read_step(self, metadata: Any) -> EngineStep | None:
        """Return the running step with the tokens that are recorded; None if there are none."""
        names = requests_in_order(self._runner, self._batch)
        places = StepPlaces.of(metadata, len(names))
        drafts = drafted(self._scheduled)
        pieces: list[RequestPiece] = []
        for row, (name, start, stop, length) in enumerate(
            zip(names, places.edges, places.edges[1:], places.lengths, strict=False)
        ):
            if name not in self.requests and name not in self._ignored:
                self._note(running_request(self._runner, name), began_before=True)
            request = self.requests.get(name)
            if request is None or request.is_cut or stop == start or not self._needs(request, length - (stop - start)):
                continue
            count = stop - start
            pieces.append(RequestPiece(request, row, length - count, count, len(drafts.get(name, ())), length))
        if not pieces or not self._has_room(pieces):
            return None
        return self._planned(places, pieces)

    def _needs(self, request: ServedRequest, position: int) -> bool:
        """Return whether tokens from a position on may be needed: those after the prompt are not, if its rows are."""
        is_prompt = self._options.queries == "prompt"
        return not is_prompt or request.prompt is None or position < request.prompt

    def _has_room(self, pieces: Sequence[RequestPiece]) -> bool:
        """Count the bytes that these tokens will take; if there is no room, end the recording of their texts."""
        count, needed = sum(piece.count for piece in pieces), 0
        for layer in self.watched.values():
            H, G, D, Dv = layer.sizes
            size = torch.finfo(getattr(layer.module, "dtype", torch.float32)).bits // 8
            needed += count * size * (H * D + G * (D + Dv))
            first = sum(one.position for one in pieces if one.position and not one.request.pieces)
            needed += first * size * G * (D + Dv)
        if self._memory.has_room(needed, torch.device("cpu")):
            self._memory.add(needed)
            return True
        for piece in pieces:
            piece.request.is_cut = True
        return False

    def _planned(self, places: StepPlaces, pieces: list[RequestPiece]) -> EngineStep:
        """Return a step with the places of the kept queries, keys and outputs."""
        total = places.edges[-1]
        keys: list[int] = []
        rows: list[int] = []
        checked: list[int] = []
        for piece in pieces:
            start = places.edges[piece.row]
            piece.first, piece.first_row, piece.first_checked = len(keys), len(rows), len(checked)
            keys += range(start, start + piece.count)
            piece.rows = self._rows_of(piece)
            rows += (start + row for row in piece.rows)
            piece.checked = _drawn_rows(len(piece.rows))
            checked += (start + piece.rows[i] for i in piece.checked)
        tokens = tokens_of(self._runner, self._batch, total)
        whole = list(range(total))
        kept = [None if own == whole else torch.tensor(own, dtype=torch.int64, device="cpu") for own in (keys, rows)]
        step = EngineStep(
            places, pieces, tokens, kept[0], kept[1], torch.tensor(checked, dtype=torch.int64, device="cpu")
        )
        for piece in pieces:
            piece.request.pieces.append((step, piece))
        return step

    def _rows_of(self, piece: RequestPiece) -> list[int]:
        """Return the queries of a piece that may be kept, counted from its first token."""
        wanted, prompt = self._options.queries, piece.request.prompt or 0
        if wanted is None:
            return list(range(piece.count))
        if isinstance(wanted, Numbers):
            return [i for i in range(piece.count) if wanted.may_hold(piece.position + i, piece.stop)]
        own = range(piece.position, piece.stop)
        return [i for i, at in enumerate(own) if (at < prompt) == (wanted == "prompt")]


def _heads_here(wanted: HeadSelection, layer: ServedLayer) -> list[int] | None:
    """Return the heads to keep of a layer, counted in this worker; None: all that it has.

    Raises:
        Unreadable: the model lacks some of them.
    """
    total, here = layer.heads.total, layer.heads.numbers
    none = torch.empty(1, total, 0, 1, device="cpu")
    found = wanted.of(layer.name, ObservedCall(none, none, None, cross=False, heads=ProcessHeads(0, total, total)))
    own = None if found is None else [head - here.start for head in found if head in here]
    return None if own is not None and len(own) == layer.heads.count else own


def _limit_of(worker: Any, options: ServedOptions) -> int | None:
    """Return the most bytes of this worker: its share of half of the free memory, if nothing was given."""
    if options.limit is not None:
        return options.limit
    free = free_bytes(torch.device("cpu"))
    return None if free is None else max(1, int(SHARE * free) // workers_of(worker))


def _stop_before(request: ServedRequest, step: EngineStep) -> int:
    """Return the position after the last token of a request that was recorded before a step."""
    return max((piece.stop for one, piece in request.pieces if one is not step), default=0)


def _drawn_rows(count: int) -> list[int]:
    """Return the rows of a piece whose output is checked."""
    if count <= FEW_ROWS:
        return list(range(count))
    always = {0, count // 2, count - 1}
    others = random.Random(count).sample(range(count), min(count, CHECKED_ROWS))
    return sorted([*always, *[one for one in others if one not in always][: CHECKED_ROWS - len(always)]])


def _kept(x: Tensor, places: Tensor | None, total: int) -> Tensor:
    """Return a copy of some tokens in the memory of the processor, (tokens, heads, size)."""
    if places is None:
        return x[:total].to("cpu", copy=True, memory_format=torch.contiguous_format)
    return x[places.to(x.device)].cpu()
