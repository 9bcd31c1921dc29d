"""Names of the parts of the residual stream, and sums over them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from .layer_names import layer_names
from .part_names import StreamPart, part_names, short_name
from .pullback import Bundle, Cut, Reach
from .stream_graph import Writer

Side = Literal["q", "k", "v"]


class WaysOfHeads(Protocol):
    """The ways from the residual stream to q, k and v of an attention."""

    @property
    def name(self) -> str:
        """The name of its record."""

    @property
    def layers(self) -> Mapping[str, bool]:
        """Whether each attention of the forward pass is cross-attention, by the names of the records."""

    @property
    def writers(self) -> Sequence[tuple[Writer, Sequence[str]]]:
        """What wrote into the residual stream, with the records of its forward pass in the order of their calls."""

    @property
    def answers(self) -> dict[Any, Any]:
        """The answers so far, by what was asked."""

    @property
    def dtypes(self) -> Collection[torch.dtype]:
        """The dtypes of the tensors on the ways: the coarsest says how exact the model's own q, k and v are."""

    @property
    def real(self) -> Tensor | None:
        """Whether a query of a sample is a token and not padding, (B, Q) bool; None if unknown."""

    def bundles(
        self, side: Side, heads: Sequence[int], batch: int, positions: Tensor, cuts: Sequence[str] = ()
    ) -> Iterator[Bundle]:
        """Yield what reaches heads' vectors at some positions."""


class PartIndex:
    """Numbers for the parts, in the order in which they are met.

    Args:
        ways: of an attention, whose forward passes know all that wrote.
    """

    def __init__(self, ways: WaysOfHeads) -> None:
        self._layers = layer_names(ways.layers)
        self._names = part_names(ways.writers, self._layers)
        self._numbers: dict[tuple[str, str, int | None], int] = {}
        self.times = {(part.kind, part.module): time for time, part in enumerate(self._names.values())}
        self.parts: list[StreamPart] = []

    def of(self, reach: Reach) -> list[int]:
        """Return the numbers of a source's parts."""
        assert not isinstance(reach.source, Cut)
        writer = reach.source.writer
        if writer.kind != "head":
            return [self.number(self._names[writer.key])]
        name = self._layers[writer.record or ""]
        kind = "cross head" if name.cross else "head"
        heads = range(reach.count)
        return [self.number(StreamPart(f"{name.label}·{h}", kind, writer.module, name.number, h)) for h in heads]

    def number(self, part: StreamPart) -> int:
        """Return the number of a part."""
        key = part.kind, part.module, part.head
        if key not in self._numbers:
            self._numbers[key] = len(self.parts)
            self.parts.append(part)
        return self._numbers[key]


@dataclass(frozen=True, eq=False)
class Dictionary:
    """Names for the features of a module's output, such as those of a sparse autoencoder.

    Attributes:
        decoder: (features, size of the stream), what each feature writes.
        activations: (B, positions, features).
    """

    decoder: Tensor
    activations: Tensor

    @classmethod
    def read(cls, module: str, given: object) -> Dictionary:
        """Return a user's pair of decoder and activations.

        Raises:
            TypeError, ValueError: it is no such pair.
        """
        wanted = "give (decoder, activations), of shapes (features, model size) and (samples, positions, features)"
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise TypeError(f"features[{module!r}] is {type(given).__name__}: {wanted}")
        decoder, activations = (torch.as_tensor(x, device="cpu").detach().double().cpu() for x in given)
        activations = activations[None] if activations.ndim == 2 else activations
        if decoder.ndim != 2 or activations.ndim != 3 or activations.shape[2] != len(decoder):
            shapes = f"{tuple(decoder.shape)} and {tuple(activations.shape)}"
            raise ValueError(f"features[{module!r}] has shapes {shapes}: {wanted}")
        return cls(decoder, activations)


def vectors_at(
    ways: WaysOfHeads,
    side: Side,
    head: int,
    batch: int,
    position: int,
    index: PartIndex,
    features: Mapping[str, Dictionary] | None = None,
) -> dict[int, Tensor]:
    """Return each part of a head's vector at one position, (size,) float64, by its number.

    Args:
        ways: the ways to it.
        side, head, batch, position: the vector.
        index: numbers the parts.
        features: names for the features of what modules return; the rest of that is a part of its own.
    """
    found: dict[int, Tensor] = {}
    features = features or {}

    def add(number: int, vector: Tensor) -> None:
        found[number] = found[number] + vector if number in found else vector

    for bundle in ways.bundles(side, [head], batch, torch.tensor([position], device="cpu"), [*features]):
        basis = torch.eye(bundle.size, dtype=torch.float64, device="cpu")[:, None, None]
        moved = bundle.transported(basis, torch.zeros(1, dtype=torch.long, device="cpu"))[:, 0]  # (size, P)
        for reach in bundle.reaches:
            own = moved[:, reach.first : reach.first + len(reach.covectors)]
            if isinstance(reach.source, Cut):
                name = reach.source.module
                numbers, rows = _features_at(features[name], reach)
                rows = rows @ own.mT
                for number, vector in zip(numbers, rows, strict=True):
                    add(
                        index.number(StreamPart(f"{short_name(name)} feature {number}", "feature", name, None, number)),
                        vector,
                    )
                add(index.number(_rest_of(name)), -rows.sum(0))
                continue
            vectors = reach.reached()[:, 0] @ own.mT
            if reach.under is not None:
                add(index.number(_rest_of(reach.under)), vectors.sum(0))
                continue
            for number, vector in zip(index.of(reach), vectors, strict=True):
                add(number, vector)
    return found


def _rest_of(module: str) -> StreamPart:
    return StreamPart(f"{short_name(module)}, not in the dictionary", "rest", module)


def _features_at(dictionary: Dictionary, reach: Reach) -> tuple[list[int], Tensor]:
    """Return the active features at a position, and each at the fixed end, (features, P)."""
    place = reach.place
    samples, positions, _ = dictionary.activations.shape
    size = reach.covectors.shape[1:].numel()
    if dictionary.decoder.shape[1] != size:
        raise ValueError(f"the decoder writes {dictionary.decoder.shape[1]} numbers, but the stream has {size} there")
    if int(place.at[0]) >= positions or place.which >= samples:
        raise ValueError(
            f"the activations have {samples} samples and {positions} positions: give them for the whole text"
        )
    active = dictionary.activations[place.which, int(place.at[0])]
    numbers = active.nonzero()[:, 0]
    rows = active[numbers, None] * (dictionary.decoder[numbers] @ reach.covectors.flatten(1).mT) * reach.factor()
    return numbers.tolist(), rows
