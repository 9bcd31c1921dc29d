"""Save in a file the answers about the residual stream that were asked for, without the stream itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..._analysis.why.parts import StreamPart
from ..._analysis.why.pullback import Bundle
from ..._analysis.why.results import Composition, Why, WhyRow
from ..._analysis.why.stream_graph import NotLinear
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

    def bundles(
        self, side: str, heads: Sequence[int], batch: int, positions: Tensor, cuts: Sequence[str] = ()
    ) -> Iterator[Bundle]:
        """Refuse: nothing can be computed.

        Raises:
            NotLinear: always.
        """
        raise NotLinear(NOT_SAVED.format(f"{len(self.answers)} of them"))


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
    ]
    return {"name": sources.name, "layers": dict(sources.layers), "answers": answers}


def saved_sources(entry: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> SavedSources:
    """Return the answers in a file's entry."""
    layers = {str(name): bool(cross) for name, cross in entry["layers"].items()}
    found = {_tupled(one["asked"]): _answer_of(one, tensors) for one in entry["answers"]}
    return SavedSources(str(entry["name"]), layers, found)


def _entry_of(answer: Any, add: Callable[[Tensor], str]) -> dict[str, Any]:
    if isinstance(answer, Why):
        own: dict[str, Any] = {name: getattr(answer, name) for name in WHY}
        parts = {"query_parts": _parts(answer.query_parts), "key_parts": _parts(answer.key_parts)}
        return {"kind": "pair", **own, **parts, "words": list(answer.words), "terms": add(answer.terms)}
    if isinstance(answer, WhyRow):
        own = {name: getattr(answer, name) for name in ("layer", "head", "query", "rounding")}
        tensors = {name: add(getattr(answer, name)) for name in ("terms", "scores", "weights")}
        return {"kind": "row", **own, "parts": _parts(answer.parts), **tensors}
    assert isinstance(answer, Composition)
    own = {"names": list(answer.names), "queries": answer.queries, "heads": [list(one) for one in answer.heads]}
    tensors = {name: add(getattr(answer, name)) for name in ("shares", "scores")}
    return {"kind": "composition", **own, "parts": _parts(answer.parts), **tensors}


WHY = ("layer", "head", "query", "key", "against", "score", "rounding", "weight")


def _answer_of(entry: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Why | WhyRow | Composition:
    if entry["kind"] == "pair":
        own: dict[str, Any] = {name: entry[name] for name in WHY}
        rows, columns = (_read_parts(entry[name]) for name in ("query_parts", "key_parts"))
        terms = _sized(tensors[entry["terms"]], len(rows), len(columns))
        words = tuple(str(word) for word in entry["words"])
        return Why(**own, query_parts=rows, key_parts=columns, terms=terms, words=words)
    parts_of = _read_parts(entry["parts"])
    if entry["kind"] == "row":
        scores = tensors[entry["scores"]]
        terms, weights = (
            _sized(tensors[entry[name]], *size, len(scores))
            for name, size in (("terms", [len(parts_of)]), ("weights", []))
        )
        own = {name: entry[name] for name in ("layer", "head", "query", "rounding")}
        return WhyRow(**own, parts=parts_of, terms=terms, scores=scores, weights=weights)
    heads = tuple((int(layer), int(head)) for layer, head in entry["heads"])
    shares, scores = (_sized(tensors[entry[name]], len(heads), 3, len(parts_of)) for name in ("shares", "scores"))
    names = tuple(str(name) for name in entry["names"])
    return Composition(parts_of, heads, shares, scores, names, int(entry["queries"]))


def _sized(x: Tensor, *shape: int) -> Tensor:
    """Return a tensor in float64; raise ValueError if its shape is another one."""
    if tuple(x.shape) != shape:
        raise ValueError(f"an answer has a tensor of shape {tuple(x.shape)} in place of {shape}")
    return x.to(torch.float64)


def _parts(parts: Sequence[StreamPart]) -> list[list[Any]]:
    return [list(astuple(part)) for part in parts]


def _read_parts(given: Sequence[Sequence[Any]]) -> tuple[StreamPart, ...]:
    return tuple(StreamPart(*one) for one in given)


def _listed(x: Any) -> Any:
    return [_listed(one) for one in x] if isinstance(x, tuple) else x


def _tupled(x: Any) -> Any:
    return tuple(_tupled(one) for one in x) if isinstance(x, list) else x
