"""The work of one worker: run the model on a chunk of texts, and measure every head in each."""

from __future__ import annotations

import threading
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._capture.api.capture import capture
from .._capture.api.texts import TextSample, inputs_of, samples_of_forward
from .._capture.modules.module_walk import device_of
from .._capture.session.callers import module_of
from .._utils.indexing import cuts
from .._utils.validation import kind_of
from .corpus import Chunk
from .effects import NOT_CAUSAL, Loss, effects_of, next_token_loss, reads_ahead
from .failed_texts import reason_of
from .layer_of_texts import IndexCache, LayerOfTexts, Projected, layer_salts, measure_layer, texts_at_once
from .links import excerpt_places
from .token_kinds import KindsOfTokens, TextFacts
from .totals import LayerTotals

NO_TOKENS = "the text has no tokens"
MOST_BYTES = 1 << 28  # of q, k and v in one run of the model, unless one text has more
MOST_TOGETHER = 64  # texts in one run
SEEN = 64  # queries, to see whether a model reads ahead
MOST_TOKENS = 1024  # of a text that is kept whole; of a longer one only its excerpts


class TextRead(NamedTuple):
    """The tokens of a text that is shown with a link.

    length: the number of its tokens.
    tokens: those that are kept, by position.
    named: whether the tokens have names; else their ids or positions stand for them.
    """

    length: int
    tokens: dict[int, str]
    named: bool = True


@dataclass
class ChunkTotals:
    """The totals of some texts.

    layers: by name.
    texts: by number, those that a link shows.
    read, tokens: the number of texts measured, and of their tokens.
    named: the number of these texts whose tokens have names.
    skipped: the reason, by the number of a text that was left out.
    unseen: the reason, by the name of a layer that was not recorded.
    """

    layers: dict[str, LayerTotals] = field(default_factory=dict)
    texts: dict[int, TextRead] = field(default_factory=dict)
    read: int = 0
    tokens: int = 0
    named: int = 0
    skipped: dict[int, str] = field(default_factory=dict)
    unseen: dict[str, str] = field(default_factory=dict)

    def merge(self, other: ChunkTotals) -> None:
        """Add the totals of other, later texts."""
        for name, totals in other.layers.items():
            if name in self.layers:
                self.layers[name].merge(totals)
            else:
                self.layers[name] = totals
        self.read, self.tokens = self.read + other.read, self.tokens + other.tokens
        self.named += other.named
        self.skipped |= other.skipped
        self.unseen = {**other.unseen, **self.unseen}
        for number, text in other.texts.items():
            own = self.texts.get(number)
            self.texts[number] = text if own is None else own._replace(tokens={**own.tokens, **text.tokens})
        self.forget_texts()

    def forget_texts(self) -> None:
        """Keep only the texts that a link shows."""
        shown = {
            number
            for totals in self.layers.values()
            if totals.links is not None
            for number in totals.links.text[totals.links.order > -torch.inf].unique().tolist()
        }
        self.texts = {number: text for number, text in self.texts.items() if number in shown}


class AtlasWorker:
    """A model, and how to measure it; sent once to each worker.

    Args:
        model: a model, or a function that returns one, alone or with its tokenizer.
        tokenizer: for strings.
        kinds: of tokens.
        links: in each list of a head.
        loss: for effects; None for none.
        effects: the number of texts, from the first, whose effects are measured; None: all.
        rows: the most rows of a head in a text; None: as `measure_layer` decides.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        kinds: Mapping[str, Any],
        links: int,
        loss: Loss | None = None,
        effects: int | None = None,
        rows: int | None = None,
    ) -> None:
        self.model, self.tokenizer, self.given_kinds = model, tokenizer, kinds
        self.links, self.loss, self.effects, self.rows = links, loss, effects, rows
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._loaded: tuple[Any, Any] | None = None
        self._sorting: KindsOfTokens | None = None
        self._projected: dict[str, Projected] = {}
        self._bytes_of_token = 0

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    def loaded(self) -> tuple[Any, torch.nn.Module, Any]:
        """Return the model as given, its module, and its tokenizer.

        Raises:
            TypeError, ValueError: it is not a model, or in training mode.
        """
        with self._lock:
            if self._loaded is None:
                self._loaded = read_model(self.model, self.tokenizer)
        model, tokenizer = self._loaded
        module = module_of(model)
        assert module is not None
        return model, module, tokenizer

    def sorting(self) -> KindsOfTokens:
        """Return what sorts tokens into kinds."""
        if self._sorting is None:
            special = getattr(self.loaded()[2], "all_special_tokens", None) or ()
            self._sorting = KindsOfTokens(self.given_kinds, special)
        return self._sorting

    def measure(self, chunk: Chunk) -> ChunkTotals:
        """Measure the texts of a chunk."""
        found = ChunkTotals()
        _, module, tokenizer = self.loaded()
        texts: list[tuple[int, Any]] = []
        for number, text in enumerate(chunk.texts, chunk.first):
            try:
                if isinstance(text, list | tuple) and not text:
                    raise ValueError(NO_TOKENS)
                inputs = inputs_of(text, tokenizer, module)
                _check_one_text(inputs)
                texts.append((number, inputs))
            except Exception as error:  # of a tokenizer too, whatever it raises
                found.skipped[number] = reason_of(error)
        for together in self._batches(texts):
            self._run(together, found)
        found.forget_texts()
        return found

    def _batches(self, texts: Sequence[tuple[int, Any]]) -> Iterator[list[tuple[int, Any]]]:
        """Yield texts of equal shapes together: nothing is padded, so that no number depends on other texts."""
        alike: dict[Any, list[tuple[int, Any]]] = defaultdict(list)
        for number, inputs in texts:
            alike[_shapes(inputs, number)].append((number, inputs))
        for some in alike.values():
            while some:
                tokens = _length(some[0][1])
                room = MOST_BYTES // max(1, tokens * self._bytes_of_token) if self._bytes_of_token else 1
                size = max(1, min(MOST_TOGETHER, room))
                yield some[:size]
                del some[:size]

    def _run(self, together: Sequence[tuple[int, Any]], found: ChunkTotals) -> None:
        """Run the model on texts of equal shapes, and add their numbers; a text that fails is left out."""
        try:
            measured = self._measured(together)
        except MemoryError:
            raise
        except Exception as error:
            if len(together) == 1:
                number, inputs = together[0]
                found.skipped[number] = reason_of(error, self.loaded()[1], inputs)
                return
            for one in together:
                self._run([one], found)
            return
        self._add(found, measured)

    def _measured(self, together: Sequence[tuple[int, Any]]) -> _Measured:
        model, module, tokenizer = self.loaded()
        inputs = _joined([one for _, one in together])
        with self._lock, torch.no_grad(), warnings.catch_warnings():  # another thread's capture would see these calls
            warnings.filterwarnings("ignore", module="attnwidget")  # `unseen` and `skipped` have what they say
            device = "cpu" if device_of(module).type == "mps" else None  # which has no float64
            cap = capture(model, tokenizer=tokenizer, strict=False, device=device)
            with cap:
                module(**inputs) if isinstance(inputs, Mapping) else module(inputs)
        if not cap.attention:
            raise ValueError(next(iter(cap.skipped.values()), "the model made no attention that can be recorded"))
        self._bytes_of_token = self._bytes_of_token or _bytes_of_token(cap)
        ids = inputs.get("input_ids") if isinstance(inputs, Mapping) else inputs
        samples = [one for forward in cap for one in samples_of_forward(forward, main=False, ids=_ids(ids))]
        if len(samples) != len(together) or any(len(one.layers) != len(samples[0].layers) for one in samples):
            raise ValueError(
                f"{len(together)} texts gave {len(samples)} samples of attention: give one text at a time, and a model "
                "that keeps samples apart"
            )
        numbers = [number for number, _ in together]
        layers, facts = self._layers(samples, numbers)
        effects = [self._effects(one, number, own) for one, (number, own) in zip(samples, together, strict=True)]
        return _Measured(numbers, layers, effects, facts, dict(cap.skipped))

    def _layers(
        self, samples: Sequence[TextSample], numbers: Sequence[int]
    ) -> tuple[dict[str, list[LayerOfTexts]], list[TextFacts]]:
        """Return the numbers of each layer, by name, and the facts of each text."""
        sorting, cache = self.sorting(), IndexCache()
        found: dict[str, list[LayerOfTexts]] = {}
        known: dict[tuple[Any, ...], TextFacts] = {}
        texts: list[TextFacts] = []
        salts = layer_salts([name for _, name, _, _ in samples[0].layers])
        for at, (_, name, att, _) in enumerate(samples[0].layers):
            facts = [_facts_of(one, at, sorting, known) for one in samples]
            texts = facts if not texts or texts[0].words is None else texts
            if name not in self._projected:
                self._projected[name] = Projected.of(att)
            found[name] = []
            for some in cuts(range(len(samples)), 1, texts_at_once(att)):
                part = slice(some.start, some.stop)
                batches = range(samples[some.start].batch, samples[some.stop - 1].batch + 1)
                found[name] += measure_layer(
                    att,
                    batches,
                    facts[part],
                    numbers[part],
                    projected=self._projected[name],
                    cache=cache,
                    kinds=len(sorting.names),
                    salt=salts[at],
                    rows=self.rows,
                )
            if not all(bool(one.sums["on_kind_sum"].isfinite().all()) for one in found[name]):
                raise ValueError(f"the weights of {name} are not finite")
        return found, texts

    def _effects(self, sample: TextSample, number: int, inputs: Any) -> dict[tuple[str, int], float]:
        if self.loss is None or (self.effects is not None and number >= self.effects):
            return {}
        if self.loss is next_token_loss:
            att = sample.layers[0][2]
            if att.shape.K < 2:
                return {}  # there is no next token
            if reads_ahead(att.block("allowed", batch=sample.batch, queries=slice(SEEN))):
                raise ValueError(NOT_CAUSAL)
        with self._lock:
            return effects_of(self.loaded()[1], inputs, self.loss)

    def _add(self, found: ChunkTotals, one: _Measured) -> None:
        found.read += len(one.numbers)
        found.tokens += sum(len(own.kinds) for own in one.facts)
        has_names = self.loaded()[2] is not None  # else words are ids
        found.named += sum(own.words is not None and has_names for own in one.facts)
        found.unseen = {**one.unseen, **found.unseen}
        for name, parts in one.layers.items():
            first = 0
            for part in parts:
                _, count, heads = part.metrics.shape
                if name not in found.layers:
                    output = part.sums.get("output_sum")
                    found.layers[name] = LayerTotals(name, heads, 0 if output is None else output.shape[1], self.links)
                own = one.effects[first : first + count]
                found.layers[name].add(part, _effect_of(own, name, heads))
                first += count
        for number, facts in zip(one.numbers, one.facts, strict=True):
            found.texts[number] = _read_text(number, facts, one)._replace(named=facts.words is not None and has_names)


class _Measured(NamedTuple):
    """The numbers of some texts: of each layer, in parts."""

    numbers: list[int]
    layers: dict[str, list[LayerOfTexts]]
    effects: list[dict[tuple[str, int], float]]
    facts: list[TextFacts]
    unseen: dict[str, str]


def _facts_of(
    sample: TextSample, at: int, sorting: KindsOfTokens, known: dict[tuple[Any, ...], TextFacts]
) -> TextFacts:
    """Return the facts of a text at the keys of one layer; layers with the same words share them."""
    (_, _, att, ids), words = sample.layers[at], sample.words[at]
    key = sample.batch, None if words is None else id(words), att.shape.K
    if key not in known:
        known[key] = TextFacts.of(words, att.shape.K, sorting, ids)
    return known[key]


def _effect_of(own: Sequence[Mapping[tuple[str, int], float]], name: str, heads: int) -> Tensor | None:
    if not any(own):
        return None
    rows = [[one.get((name, head), torch.nan) for head in range(heads)] for one in own]
    return torch.tensor(rows, dtype=torch.float64, device="cpu")


def _read_text(number: int, facts: TextFacts, one: _Measured) -> TextRead:
    """Return a text's tokens: all of them, or in a long text those around its links."""
    length = len(facts.kinds)
    places: set[int] = set(range(length)) if length <= MOST_TOKENS else set()
    for part in (part for parts in one.layers.values() for part in parts) if length > MOST_TOKENS else ():
        links = part.links
        own = (links.order > -torch.inf) & (links.text == number)
        places.update(excerpt_places(links.query[own], links.key[own], length).flatten().tolist())
    words = facts.words
    return TextRead(length, {at: f"{at:,}" if words is None else words[at] for at in sorted(places - {-1})})


def measure_chunk(worker: AtlasWorker, chunk: Chunk) -> ChunkTotals:
    """Measure a chunk: the function of a task."""
    return worker.measure(chunk)


def read_model(model: Any, tokenizer: Any) -> tuple[Any, Any]:
    """Return a model and its tokenizer, from either or from a function that returns them.

    Raises:
        TypeError, ValueError: it is not a model, or in training mode.
    """
    if _module_in(model) is None and callable(model):
        given = model()
        model, tokenizer = given if isinstance(given, tuple) and len(given) == 2 else (given, tokenizer)
    module = _module_in(model)
    if module is None:
        raise TypeError(
            f"model is {kind_of(model)}: give an nn.Module, an object with one as .model, or a function that "
            "returns one, alone or with its tokenizer"
        )
    if module.training:
        raise ValueError("the model is in training mode, so dropout would change its numbers: call model.eval() first")
    return model, tokenizer if tokenizer is not None else getattr(model, "tokenizer", None)


def _module_in(model: Any) -> torch.nn.Module | None:
    try:
        return module_of(model)
    except TypeError:
        return None


def _check_one_text(inputs: Any) -> None:
    tensors = [x for x in inputs.values() if isinstance(x, Tensor)] if isinstance(inputs, Mapping) else [inputs]
    if any(x.numel() == 0 for x in tensors):
        raise ValueError(NO_TOKENS)
    if not tensors or any(x.ndim > 0 and len(x) != 1 for x in tensors):
        raise ValueError("a text has several samples: give each sample as a text of its own")


def _shapes(inputs: Any, number: int) -> Any:
    if isinstance(inputs, Tensor):
        return tuple(inputs.shape), inputs.dtype
    if all(isinstance(x, Tensor) and x.ndim > 0 for x in inputs.values()):
        return tuple((name, tuple(x.shape), x.dtype) for name, x in sorted(inputs.items()))
    return number


def _joined(inputs: Sequence[Any]) -> Any:
    if len(inputs) == 1:
        return inputs[0]
    if isinstance(inputs[0], Tensor):
        return torch.cat([*inputs])
    return {name: torch.cat([one[name] for one in inputs]) for name in inputs[0]}


def _length(inputs: Any) -> int:
    x = inputs if isinstance(inputs, Tensor) else inputs.get("input_ids", next(iter(inputs.values())))
    return int(x.shape[1]) if isinstance(x, Tensor) and x.ndim > 1 else 1


def _ids(ids: Any) -> Tensor | None:
    return ids if isinstance(ids, Tensor) and ids.ndim == 2 and not ids.is_floating_point() else None


def _bytes_of_token(cap: Any) -> int:
    """Return the bytes of q, k and v of all layers, for one token of one sample."""
    found = 0
    for att in cap.attention:
        tensors = [*att.source.tensors().values(), *([] if att.v is None else [att.v])]
        found += sum(x.nbytes for x in tensors) // max(1, att.shape.B * att.shape.Q)
    return max(1, found)
