"""Save in a file the answers about the residual stream that were asked for, without the stream itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..._analysis.why.part_names import StreamPart
from ..._analysis.why.pullback import Bundle
from ..._analysis.why.results import Composition, Why, WhyRow
from ..._analysis.why.stream_graph import NotLinear
from ..._engine.base import Shape
from ..._utils import untrusted
from ..._utils.untrusted import as_finite, as_list, as_text, as_texts, as_whole, part_of, tensor_of
from ..._utils.validation import told
from ...attention import Attention

NOT_SAVED = (
    "this file has only the answers that were asked for before it was saved, {} about this layer: ask this on the "
    "capture of the model, and save it again"
)


@dataclass(frozen=True, eq=False)
class SavedSources:
    """The answers in a file in place of the ways to q, k and v; see `WaysOfHeads`."""

    name: str
    layers: Mapping[str, bool]
    answers: dict[Any, Any] = field(default_factory=dict)
    real: Tensor | None = None
    dtypes: frozenset[torch.dtype] = frozenset()

    @property
    def writers(self) -> list[Any]:
        """Nothing: no part is computed."""
        return []

    def bundles(
        self, side: str, heads: Sequence[int], batch: int, positions: Tensor, cuts: Sequence[str] = ()
    ) -> Iterator[Bundle]:
        """Refuse: nothing can be computed.

        Raises:
            NotLinear: always.
        """
        about = sum(asked[0] != "composition" for asked in self.answers)
        raise NotLinear(NOT_SAVED.format(f"{about or 'none'} of them"))


def entry_of_sources(att: Attention, add: Callable[[Tensor], str]) -> dict[str, Any] | None:
    """Return a file's entry for the answers about an attention; None if it has no sources.

    Args:
        att: the attention.
        add: puts a tensor into the file and returns its name there.
    """
    sources = att.sources
    if sources is None:
        return None
    answers = [
        {"asked": _listed(asked), **_entry_of(answer, lambda x: add(x.contiguous()))}
        for asked, answer in sources.answers.items()
        if _is_finite(answer)
    ]
    return {"name": sources.name, "layers": dict(sources.layers), "answers": answers}


def _is_finite(answer: Any) -> bool:
    """Return whether all numbers of an answer are finite; others are not saved, because no file may hold them."""
    numbers = [x for x in vars(answer).values() if isinstance(x, float | Tensor)]
    return all(bool(torch.as_tensor(x, device="cpu").isfinite().all()) for x in numbers)


def saved_sources(entry: Any, tensors: Mapping[str, Tensor], shape: Shape) -> SavedSources:
    """Return the answers in a file's entry.

    Args:
        entry: as `entry_of_sources` made it, or anything.
        tensors: of the file.
        shape: of the attention that they are about.

    Raises:
        ValueError: something is missing, or is not what it should be.
    """
    name = as_text(part_of(entry, "name"), "the name of the sources")
    given = untrusted.as_object(part_of(entry, "layers"), "the layers of the sources", MOST)
    layers = {one: untrusted.as_flag(cross, f"the layer {told(one)}") for one, cross in given.items()}
    found: dict[Any, Any] = {}
    for one in as_list(part_of(entry, "answers"), "the answers", MOST):
        asked, answer = _answer_of(one, tensors, shape)
        if asked in found:
            raise ValueError(f"the question {told(asked)} has two answers")
        found[asked] = answer
    if found and name not in layers:
        raise ValueError(f"the layer {told(name)} is not among those of the sources")
    return SavedSources(name, layers, found)


def _entry_of(answer: Any, add: Callable[[Tensor], str]) -> dict[str, Any]:
    if isinstance(answer, Why):
        own: dict[str, Any] = {name: getattr(answer, name) for name in WHY}
        parts = {"query_parts": _parts(answer.query_parts), "key_parts": _parts(answer.key_parts)}
        more = {"words": list(answer.words), "subtracted": answer.subtracted}
        return {"kind": "pair", **own, **parts, **more, "terms": add(answer.terms)}
    if isinstance(answer, WhyRow):
        own = {name: getattr(answer, name) for name in ("layer", "head", "query", "rounding")}
        tensors = {name: add(getattr(answer, name)) for name in ("terms", "scores", "weights")}
        return {"kind": "row", **own, "parts": _parts(answer.parts), **tensors}
    assert isinstance(answer, Composition)
    own = {"names": list(answer.names), "queries": answer.queries, "heads": [list(one) for one in answer.heads]}
    tensors = {name: add(getattr(answer, name)) for name in ("shares", "scores")}
    return {"kind": "composition", **own, "parts": _parts(answer.parts), **tensors}


WHY = ("layer", "head", "query", "key", "against", "score", "rounding", "weight")
KINDS = ("pair", "row", "composition")
OTHERS = ("mean", "others")  # keys that a score is compared with, in a word
MOST = 1 << 20  # entries of a list


def _answer_of(entry: Any, tensors: Mapping[str, Tensor], shape: Shape) -> tuple[tuple[Any, ...], Any]:
    """Return what was asked and the answer; raise ValueError if they do not fit to one another or to the attention."""
    kind = untrusted.kind_named(part_of(entry, "kind"), KINDS, "the kind of an answer")
    asked = as_list(part_of(entry, "asked"), "what was asked", 6)
    if len(asked) < 4 or asked[0] != kind:
        raise ValueError(f"the question {told(asked)} has an answer of the kind {kind!r}")
    batch = as_whole(asked[1], "the sample", shape.B, -shape.B)
    if kind == "composition":
        numbers, at, answer = _composition_of(entry, asked, tensors, shape)
        return (kind, batch, numbers, at), answer
    if kind == "row":
        places = _places(entry, asked, ("head", "query"), shape)
        return (kind, batch, *places.values()), _row_of(entry, places, tensors, shape)
    places = _places(entry, asked, ("head", "query", "key", "against"), shape)
    return (kind, batch, *places.values()), _pair_of(entry, places, tensors)


def _places(entry: Any, asked: Sequence[Any], names: Sequence[str], shape: Shape) -> dict[str, Any]:
    """Return the head, the query and the keys of an answer, which are those that were asked for."""
    if asked[2:] != [part_of(entry, name) for name in names]:
        raise ValueError(f"the question {told(asked)} has the answer to another one")
    found = dict(zip(names, asked[2:], strict=True))
    stops = {"head": shape.H, "query": shape.Q, "key": shape.K, "against": shape.K}
    for name, value in found.items():
        if name != "against" or not (value is None or value in OTHERS):
            as_whole(value, name, stops[name])
    return found


def _pair_of(entry: Any, places: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Why:
    numbers: dict[str, Any] = {name: as_finite(part_of(entry, name), name) for name in ("score", "rounding", "weight")}
    rows, columns = (_read_parts(part_of(entry, name), name) for name in ("query_parts", "key_parts"))
    terms = _numbers_of(entry, "terms", tensors, len(rows), len(columns))
    words = tuple(as_texts(part_of(entry, "words"), "words", 3))
    layer = as_text(part_of(entry, "layer"), "the layer's name")
    less = entry.get("subtracted")  # files of 1.0.0rc1 do not have it
    numbers["subtracted"] = None if less is None else as_finite(less, "what is subtracted from the score")
    return Why(layer, **places, **numbers, query_parts=rows, key_parts=columns, terms=terms, words=words)


def _row_of(entry: Any, places: Mapping[str, Any], tensors: Mapping[str, Tensor], shape: Shape) -> WhyRow:
    parts = _read_parts(part_of(entry, "parts"), "parts")
    terms = _numbers_of(entry, "terms", tensors, len(parts), shape.K)
    scores, weights = (_numbers_of(entry, name, tensors, shape.K) for name in ("scores", "weights"))
    rounding = as_finite(part_of(entry, "rounding"), "rounding")
    layer = as_text(part_of(entry, "layer"), "the layer's name")
    return WhyRow(layer, **places, parts=parts, terms=terms, scores=scores, weights=weights, rounding=rounding)


def _composition_of(entry: Any, asked: Sequence[Any], tensors: Mapping[str, Tensor], shape: Shape) -> tuple[Any, ...]:
    """Return the layers and the queries of a composition, and itself."""
    if len(asked) != 4:
        raise ValueError(f"the question {told(asked)} does not ask for a composition")
    numbers = [as_whole(one, "a layer", MOST) for one in as_list(asked[2], "the layers asked for", MOST)]
    at = None if asked[3] is None else as_list(asked[3], "the queries asked for", MOST)
    queries = None if at is None else tuple(as_whole(one, "a query", least=-untrusted.LARGEST) for one in at)
    names = as_texts(part_of(entry, "names"), "the names of layers", MOST)
    heads: list[tuple[int, int]] = []
    for one in as_list(part_of(entry, "heads"), "the heads", MOST):
        layer, head = as_list(one, "a head", 2, 2)
        known = bool(heads) and heads[-1][0] == layer
        wanted = heads[-1][1] + 1 if known else 0  # a page makes room for all heads of a layer
        heads.append((as_whole(layer, "the layer of a head", len(names)), as_whole(head, "a head", wanted + 1, wanted)))
    if list(dict.fromkeys(layer for layer, _ in heads)) != numbers or len(set(heads)) != len(heads):
        raise ValueError("the heads of a composition are not those of the layers that were asked for")
    parts = _read_parts(part_of(entry, "parts"), "parts")
    shares, scores = (_numbers_of(entry, name, tensors, len(heads), 3, len(parts)) for name in ("shares", "scores"))
    count = as_whole(part_of(entry, "queries"), "the number of queries")
    return tuple(numbers), queries, Composition(parts, tuple(heads), shares, scores, tuple(names), count)


def _numbers_of(entry: Any, name: str, tensors: Mapping[str, Tensor], *shape: int) -> Tensor:
    """Return a tensor of an answer in float64."""
    return tensor_of(tensors, part_of(entry, name), f"{name!r} of an answer", shape).to(torch.float64)


def _parts(parts: Sequence[StreamPart]) -> list[list[Any]]:
    return [list(astuple(part)) for part in parts]


def _read_parts(given: Any, name: str) -> tuple[StreamPart, ...]:
    found = []
    for one in as_list(given, name, MOST):
        label, kind, module, layer, head = as_list(one, f"one of {name}", 5, 5)
        texts = [as_text(text, f"the name of one of {name}") for text in (label, kind, module)]
        numbers = [
            None if number is None else as_whole(number, f"the place of one of {name}") for number in (layer, head)
        ]
        found.append(StreamPart(*texts, *numbers))  # type: ignore[arg-type]
    return tuple(found)


def _listed(x: Any) -> Any:
    return [_listed(one) for one in x] if isinstance(x, tuple) else x
