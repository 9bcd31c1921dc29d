"""A new kind of mask is one class: explained, counted, saved and loaded, and no other module knows of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from attnwidget import Attention, Capture, masks
from attnwidget._analysis.mask_counts import cells_to_ask, count_allowed
from attnwidget._capture.files import capture_file
from attnwidget._utils.indexing import Block, hull
from attnwidget.masks import NO_KEYS, KeyBounds, Mask

B, H, G, Q, K, D, Dv = 2, 6, 3, 7, 9, 4, 5
q, k, v = (
    torch.randn(B, *shape, generator=torch.Generator().manual_seed(sum(shape)))
    for shape in ((H, Q, D), (G, K, D), (G, K, Dv))
)


@dataclass(frozen=True)
class Strided(Mask):
    """Every so-many-th key before the query: the pattern of Sparse Transformers (Child et al. 2019, §4.2)."""

    step: int
    kind: ClassVar[str] = "strided"

    def __call__(self, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (kv_idx <= q_idx) & ((q_idx - kv_idx) % self.step == 0)

    def bounds(self, cells: Block) -> KeyBounds:
        return KeyBounds(hull(cells.keys), NO_KEYS)

    def describe(self, batch: int) -> str:
        return f"every {self.step}rd key before"

    def to_json(self, add: Callable[[Tensor], str]) -> dict[str, Any]:
        return {"step": self.step}

    @classmethod
    def from_json(cls, told: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Strided:
        return cls(told["step"])


@dataclass(frozen=True, eq=False)
class Listed(Mask):
    """The keys that a tensor lists, for all queries."""

    keys: Tensor
    by_key = True
    kind: ClassVar[str] = "listed"

    def __call__(self, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return torch.isin(kv_idx, self.keys)

    def bounds(self, cells: Block) -> KeyBounds:
        return KeyBounds(hull(cells.keys), NO_KEYS)

    def tensors(self) -> dict[str, Tensor]:
        return {"keys": self.keys}

    def to_json(self, add: Callable[[Tensor], str]) -> dict[str, Any]:
        return {"keys": add(self.keys)}

    @classmethod
    def from_json(cls, told: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Listed:
        return cls(tensors[told["keys"]])


class Plain(Mask):
    """What a kind must have, and no more."""

    def __call__(self, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return kv_idx != q_idx

    def bounds(self, cells: Block) -> KeyBounds:
        return KeyBounds(hull(cells.keys), NO_KEYS)


KINDS: dict[str, Mask] = {
    "strided": Strided(3),
    "listed": Listed(torch.tensor([0, 4, 5])),
    "in and_masks": masks.and_masks(masks.causal, Strided(2), masks.padding([4, 9])),
    "in or_masks": masks.or_masks(Listed(torch.tensor([0])), Strided(3)),
}
NAMES = {
    "strided": "every 3rd key before",
    "listed": "listed",
    "in or_masks": "listed or every 3rd key before",
}


def saved_and_loaded(mask: Any, path: Path) -> Attention:
    record = capture_file.LoadedRecord("layer", False, Attention(q, k, v, mask=mask))
    capture_file.save([{"layer": record}], {}, path)
    return Capture.load(path).attention[0]


@pytest.mark.parametrize("name", NAMES)
def test_an_explanation_tells_it_in_its_words(name: str) -> None:
    found = Attention(q, k, v, mask=KINDS[name]).explain(6, 1)
    assert [(effect.name, effect.blocks) for effect in found.effects] == [(NAMES[name], True)]
    assert f"{NAMES[name]}: blocks" in str(found)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("batch", [0, 1])
def test_its_cells_are_counted(name: str, batch: int) -> None:
    att = Attention(q, k, v, mask=KINDS[name])
    cells = att.block("allowed", batch=batch, head=4)
    found = count_allowed(att.head(batch, 4))
    assert found.by_query.tolist() == cells.sum(1).tolist()
    assert found.by_key.tolist() == cells.sum(0).tolist()
    assert (found.above, found.diagonal) == (int(cells.triu(1).sum()), int(cells.diagonal().sum()))


def test_one_row_is_asked_where_all_queries_have_the_same_keys() -> None:
    assert cells_to_ask(Attention(q, k, v, mask=KINDS["listed"]).head(0, 0)) == 0
    assert cells_to_ask(Attention(q, k, v, mask=KINDS["strided"]).head(0, 0)) == Q * K


@pytest.mark.parametrize("name", KINDS)
def test_it_is_saved_and_loaded(name: str, tmp_path: Path) -> None:
    loaded = saved_and_loaded(KINDS[name], tmp_path / "one.safetensors")
    expected = Attention(q, k, v, mask=KINDS[name])
    assert type(loaded.options.mask) is type(KINDS[name])
    for batch in (0, 1):
        for stage in ("allowed", "contribution"):
            wanted = expected.block(stage, batch=batch, head=4)
            assert torch.equal(loaded.block(stage, batch=batch, head=4), wanted)


def test_its_tensors_are_counted_among_those_that_are_kept() -> None:
    kept = capture_file.tensors_of(Attention(q, k, v, mask=masks.and_masks(masks.causal, KINDS["listed"])))
    assert kept["mask.1.keys"] is KINDS["listed"].tensors()["keys"]


@pytest.mark.parametrize("mask", [Plain(), masks.and_masks(masks.causal, Plain())])
def test_a_kind_without_a_form_in_a_file_is_refused_with_what_it_takes(mask: Mask, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"mask of 'layer' cannot be saved: .* Plain .* give the class a kind, to_json and from_json"
    ):
        saved_and_loaded(mask, tmp_path / "one.safetensors")
    assert list(tmp_path.iterdir()) == []
    assert Attention(q, k, v, mask=Plain()).explain(1, 1).effects[0].name == "plain"


def test_a_function_among_masks_is_refused_not_lost(tmp_path: Path) -> None:
    mask = masks.and_masks(masks.causal, lambda b, h, q_idx, kv_idx: kv_idx % 2 == 0)
    with pytest.raises(ValueError, match="mask of 'layer' cannot be saved: a mask function is code"):
        saved_and_loaded(mask, tmp_path / "one.safetensors")


def test_an_unknown_kind_in_a_file_says_what_to_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "one.safetensors"
    saved_and_loaded(KINDS["strided"], path)
    monkeypatch.delitem(masks._KINDS, "strided")
    with pytest.raises(ValueError, match="no mask has the kind 'strided': import the module that defines it"):
        Capture.load(path)


def test_two_classes_are_not_of_one_kind() -> None:
    with pytest.raises(TypeError, match="Strided already has the kind 'strided': give Other another kind"):
        type("Other", (Plain,), {"kind": "strided"})
    again = type("Strided", (Plain,), {"kind": "strided", "__module__": __name__})  # as a notebook cell run twice
    assert masks._KINDS["strided"] is again
    masks._KINDS["strided"] = Strided
