"""Stores of atlases that are forged, cut, written by two, or on a full disk: a sentence, and nothing else."""

from __future__ import annotations

import copy
import errno
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from attnwidget import Atlas, atlas
from attnwidget._atlas import storage

FILE = "atlas.safetensors"
Store = tuple[dict[str, Any], dict[str, torch.Tensor]]


def texts(count: int = 4) -> list[dict[str, Any]]:
    return [{"src": torch.randn(1, n, 8, generator=torch.Generator().manual_seed(n))} for n in (5, 70, 12, 9)[:count]]


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


@pytest.fixture(scope="module")
def made(model: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("atlas")
    atlas(model, texts(), store=folder, progress=False)
    with safe_open(folder / FILE, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return json.loads(file.metadata()["attnwidget.atlas"]), tensors


def tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any, Any], Any]:
    return lambda facts, tensors: tensors.update({name: change(tensors[name]).contiguous()})


def fact(**changes: Any) -> Callable[[Any, Any], Any]:
    return lambda facts, tensors: facts.update(changes)


def setting(**changes: Any) -> Callable[[Any, Any], Any]:
    return lambda facts, tensors: facts["settings"].update(changes)


FORGED: dict[str, Callable[[Any, Any], Any]] = {
    "heads of a layer is 1000000000": fact(heads=[10**9, 2]),
    "the shape": fact(heads=[3, 3]),
    "'2', not an integer": fact(heads=["2", 2]),
    "heads has 1 entries where 2 are": fact(heads=[2]),
    "heads is None, not a list": fact(heads=None),
    "two have the same name": fact(layers=["a", "a"]),
    "1,000,000 characters": fact(layers=["a" * 10**6, "b"]),
    "is 1, not a text": fact(layers=[1, "b"]),
    "the version is True": fact(version=True),
    "reads version 2: update": fact(version=10**6),
    "measure the texts again": fact(version=1),
    "the number 'texts' is -1": fact(texts=-1),
    "are not the 4 that were read": fact(texts=3),
    "has the number 'x'": fact(skipped={"x": "y"}, texts=3),
    "'digest' is missing": lambda facts, tensors: facts.pop("digest"),
    "neither true nor false": fact(done="yes"),
    "'unwritten' is missing": fact(extra={}),
    "does not say of each layer": fact(extra={"written": {}, "unwritten": {}}),
    "metrics are others": setting(metrics=["entropy"]),
    "kinds of tokens do not": setting(kinds=["a"]),
    "0.distance_sum is the tensor": lambda facts, tensors: tensors.pop("0.distance_sum"),
    "tensor evil has no meaning": lambda facts, tensors: tensors.update(evil=torch.zeros(1)),
    "holds float32": tensor("0.kind_sum", torch.Tensor.float),
    "numbers that are not finite": tensor("0.share_sum", lambda x: x * torch.nan),
    "numbers that are too large": tensor("1.metric_sum", lambda x: x + 1e300),
    "sum over no text": tensor("0.position_sum", lambda x: x + 1),
    "counts texts that are not there": tensor("0.counted", lambda x: x - 7),
    "does not have as many texts": tensor("0.metric_histogram", torch.zeros_like),
    "more bits of entropy": tensor("0.metric_sum", lambda x: x.where(x == 0, 1e9)),
    "cannot be sorted": tensor("0.link_order", lambda x: x * torch.nan),
    "a place, that is not in the file": tensor("0.link_query", lambda x: x + 500),
    "words around it that are not": lambda facts, tensors: forget_a_word(tensors),
    "does not go from 0": tensor("text.offsets", lambda x: x.flip(0)),
    "not places of their texts": tensor("text.places", lambda x: x * 0),
    "not numbers of texts": tensor("text.numbers", lambda x: x * 0),
    "shorter than its words": tensor("text.lengths", lambda x: x * 0),
    "text.first has 2 axes": tensor("text.first", lambda x: x[None]),
}


def forget_a_word(tensors: dict[str, torch.Tensor]) -> None:
    """Leave out the first word of the second text."""
    cut = int(tensors["text.first"][1])
    keep = torch.arange(len(tensors["text.places"])) != cut
    tensors["text.places"] = tensors["text.places"][keep]
    lengths = tensors["text.offsets"].diff()
    tensors["text.bytes"] = tensors["text.bytes"][
        torch.ones_like(keep).repeat_interleave(lengths) & keep.repeat_interleave(lengths)
    ]
    tensors["text.offsets"] = torch.cat([torch.zeros(1, dtype=torch.int64), lengths[keep].cumsum(0)])
    tensors["text.first"] = tensors["text.first"] - (torch.arange(len(tensors["text.first"])) > 1).long()


def test_forged_stores_are_refused_with_a_sentence(made: Store, tmp_path: Path) -> None:
    for words, change in FORGED.items():
        facts, tensors = copy.deepcopy(made[0]), dict(made[1])
        change(facts, tensors)
        save_file(
            {name: x.clone() for name, x in tensors.items()}, tmp_path / FILE, {"attnwidget.atlas": json.dumps(facts)}
        )
        with pytest.raises(ValueError, match=re.escape(words)) as error:
            Atlas.open(tmp_path)
        assert len(str(error.value)) < 600
        assert str(tmp_path) in str(error.value)


def test_a_store_that_was_cut_is_refused(made: Store, tmp_path: Path) -> None:
    save_file(made[1], tmp_path / FILE, {"attnwidget.atlas": json.dumps(made[0])})
    whole = (tmp_path / FILE).read_bytes()
    assert Atlas.open(tmp_path).texts == 4
    for kept in (0, 7, 8, 200, len(whole) // 2, len(whole) - 1):
        (tmp_path / FILE).write_bytes(whole[:kept])
        with pytest.raises(ValueError, match="is not an atlas, or damaged"):
            Atlas.open(tmp_path)
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).mkdir()
    with pytest.raises(FileNotFoundError, match=rf"{FILE} is not a file: give the folder"):
        Atlas.open(tmp_path)


def test_one_process_writes_a_store_at_a_time(model: torch.nn.Module, tmp_path: Path) -> None:
    """A lock that a dead process has left does not count: the file is there, and nobody holds it."""
    with storage.writing(tmp_path):
        for write in (
            lambda: atlas(model, texts(1), store=tmp_path, progress=False),
            lambda: atlas(model, texts(1), progress=False).save(tmp_path),
        ):
            with pytest.raises(RuntimeError, match=r"another process writes the atlas in .* now: wait"):
                write()
    assert [one.name for one in tmp_path.iterdir()] == [storage.LOCK]
    assert atlas(model, texts(1), store=tmp_path, progress=False).texts == 1
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="give the name of a folder"):
        atlas(model, texts(1), store=tmp_path / "file", progress=False)


def test_a_full_disk_leaves_the_store_as_it_was(
    model: torch.nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    atlas(model, texts(2), store=tmp_path, progress=False)
    before = (tmp_path / FILE).read_bytes()

    def full(file: Any, tensors: Any, metadata: Any) -> None:
        file.write(b"a part")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(storage, "write_tensors", full)
    said = (
        r"atlas\.safetensors was not written \(No space left on device: it needs [\d,]+ bytes, and [\d,]+ are free; the"
    )
    with pytest.raises(OSError, match=said):
        atlas(model, texts(4), store=tmp_path, progress=False)
    assert (tmp_path / FILE).read_bytes() == before
    assert {one.name for one in tmp_path.iterdir()} == {FILE, storage.LOCK}
    monkeypatch.undo()
    assert atlas(model, texts(4), store=tmp_path, progress=False).texts == 4
