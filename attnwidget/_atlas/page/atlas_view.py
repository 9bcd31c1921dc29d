"""What the widget and the pages read of an atlas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from ..._analysis.head_card import HeadCard
from ..._analysis.plane import Plane


class AtlasView(Protocol):
    """The parts of an atlas that are drawn: see `Atlas`."""

    model_name: str
    layers: list[str]
    texts: int
    tokens: int
    named: int
    kinds: list[str]
    metrics: list[str]
    skipped: dict[int, str]
    unseen: dict[str, str]
    is_partial: bool

    @property
    def heads_of_layers(self) -> list[int]: ...
    @property
    def can_open_texts(self) -> bool: ...
    @property
    def sampled(self) -> int: ...
    @property
    def plane(self) -> Plane: ...
    @property
    def curves(self) -> Tensor: ...
    def heads(self) -> list[dict[str, Any]]: ...
    def head(self, layer: int, head: int) -> HeadCard: ...
    def similar(self, layer: int, head: int) -> Sequence[Mapping[str, Any]]: ...
    def compare(self, other: Any) -> Any: ...
    def open_text(self, number: int) -> Any: ...
