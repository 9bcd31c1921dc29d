"""Files that are no captures, or hostile ones: a clear error, and nothing else."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file

from attnwidget import Capture, capture
from attnwidget._capture.files import capture_file


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    with capture() as cap:
        F.scaled_dot_product_attention(*torch.randn(3, 1, 2, 9, 8), is_causal=True)
    path = tmp_path / "run.safetensors"
    cap.save(path)
    return path


def entry(**changes: Any) -> dict[str, Any]:
    return {"name": "a", "cross": False, "q": "0", "k": "0", "scale": 1.0, "softcap": None, "is_causal": False} | {
        "mask": None,
        "bias": None,
        **changes,
    }


def text(**changes: Any) -> str:
    return json.dumps({"version": 1, "forwards": [[entry(**changes)]], "skipped": {}, "towers": []})


HOSTILE = {
    "deeply nested": "[" * 200_000,
    "nested forwards": '{"version": 1, "forwards": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "a number that no float holds": text(scale="X").replace('"X"', "1" + "0" * 400),
    "a number that no int is read from": text(scale="X").replace('"X"', "1" + "0" * 5000),
    "no tensor of that name": text(q="none"),
    "a list for a tensor": text(q=["0"]),
    "a mask of no kind": text(mask={"kind": "none"}),
    "a mask that is a list": text(mask=[1]),
    "a negative part": text(part={"heads": [-1, 10**30]}),
    "an overview of nothing": text(overview={}),
    "a text of nothing": text(text={"ids": "none"}),
    "names that are lists": text(name=["a"]),
    "videos of more frames than can be": text(text={"images": {"token": 1, "grids": [[3, 3]], "frames": [10**12]}}),
    "a band of bools": text(mask={"kind": "band", "low": True, "high": True}),
    "spans of floats": text(mask={"kind": "spans", "starts": "0", "stops": "0"}),
    "a scale that float32 does not hold": text(scale=-1e308),
    "images of no size": text(text={"images": {"token": 1, "grids": [[0, 3]]}}),
    "images of a size that is no number": text(text={"images": {"token": 1, "each": [[True, 3]]}}),
    "no list": '{"version": 1, "forwards": 3}',
    "a version as deep as a well": '{"version": ' + "[" * 900 + "]" * 900 + "}",
    "null": "null",
}


@pytest.mark.parametrize("header", HOSTILE)
@pytest.mark.parametrize("mapped", [False, True])
def test_hostile_contents_are_told_in_one_sentence(
    tmp_path: Path, header: str, mapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bad.safetensors"
    save_file({"0": torch.randn(1, 2, 5, 8)}, path, metadata={"attnwidget": HOSTILE[header]})
    if mapped:
        monkeypatch.setattr(capture_file, "READ_BYTES", 0)
    with pytest.raises(ValueError, match=r"cannot be read|has version") as told:
        Capture.load(path)
    assert len(str(told.value)) < 600


@pytest.mark.parametrize(
    "change",
    [{"sizes": [0, 0]}, {"sizes": [-1, -1]}, {"sizes": [2**52, 2**52]}, {"bins": [-2, -2]}, {"bins": [1, 1]}]
    + [{name: "short"} for name in ("values", "allowed", "log_normalizers")]
    + [{"values": "metric_counts"}, {"allowed": "values"}],
    ids=str,
)
def test_an_overview_of_other_sizes_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    with capture(keep="overview") as cap:
        torch.nn.functional.scaled_dot_product_attention(*torch.randn(3, 1, 2, 300, 8))
    path = tmp_path / "overview.safetensors"
    cap.save(path)
    with safe_open(path, "pt") as file:
        header = json.loads(file.metadata()["attnwidget"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    told = header["forwards"][0][0]["overview"]
    told |= {name: told.get(one, one) if isinstance(one, str) else one for name, one in change.items()}
    save_file({**tensors, "short": torch.zeros(1, 2, 3, 3)}, path, metadata={"attnwidget": json.dumps(header)})
    with pytest.raises(ValueError, match="an overview of"):
        Capture.load(path)


def test_one_of_more_processes_than_can_be_is_refused_at_once(tmp_path: Path) -> None:
    header = json.loads(text())
    save_file({"0": torch.randn(1, 2, 5, 8)}, tmp_path / "run-1.safetensors", {
        "attnwidget": json.dumps(header | {"process": [1, 2**52]}),
    })  # fmt: skip
    with pytest.raises(ValueError, match=r"the part of processes 0, 2, .* 8, … of 4503599627370496 is missing"):
        Capture.load(tmp_path / "run-*.safetensors")


@pytest.mark.parametrize("mapped", [False, True])
def test_a_file_that_was_cut_anywhere_is_refused(saved: Path, mapped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = saved.read_bytes()
    if mapped:
        monkeypatch.setattr(capture_file, "READ_BYTES", 0)
    for kept in (0, 1, 7, 8, 9, 200, len(whole) // 2, len(whole) - 1):
        saved.write_bytes(whole[:kept])
        with pytest.raises(ValueError, match=r"is not a safetensors file .*: give a file that Capture\.save wrote"):
            Capture.load(saved)


@pytest.mark.parametrize("mapped", [False, True])
def test_foreign_and_huge_headed_files_are_refused(
    tmp_path: Path, mapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bad.safetensors"
    if mapped:
        monkeypatch.setattr(capture_file, "READ_BYTES", 0)
    for content in (
        b"\x89PNG\r\n\x1a\n" + bytes(99),
        b"PK\x03\x04" + bytes(99),
        (2**63).to_bytes(8, "little") + b"{}",
        (2**62).to_bytes(8, "little") + b"{}" * 99,
        (10).to_bytes(8, "little") + b"[[[[[[[[[[",
        (2).to_bytes(8, "little") + b"[]",
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="is not a safetensors file"):
            Capture.load(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, words in ((tmp_path, "is a directory"), (tmp_path / "pipe", "is not a file"), ("none", "is not there")):
        with pytest.raises(FileNotFoundError, match=words):
            Capture.load(path)
    with pytest.raises(ValueError, match="path holds a NUL character"):
        Capture.load("a\0b")


def test_every_byte_of_the_header_may_be_wrong(saved: Path) -> None:
    whole = bytearray(saved.read_bytes())
    size = int.from_bytes(whole[:8], "little")
    for at in range(0, 8 + size, 7):
        other = whole.copy()
        other[at] ^= 0x15
        saved.write_bytes(other)
        told = error_of(saved)
        assert told is None or "give a file that Capture.save wrote" in told or "update attnwidget" in told


def error_of(path: Path) -> str | None:
    """Return what an error said, if it is the one that may be."""
    try:
        Capture.load(path)
    except ValueError as error:
        return str(error)
    return None


def test_a_file_that_was_read_has_the_same_numbers_as_one_that_is_mapped(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Capture.load(saved).attention
    monkeypatch.setattr(capture_file, "READ_BYTES", 0)
    mapped = Capture.load(saved).attention
    for name in ("q", "k", "v"):
        assert torch.equal(getattr(read[0], name), getattr(mapped[0], name))
        assert getattr(read[0], name).data_ptr() % 16 == 0


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="this system does not tell what it maps")
def test_a_small_file_is_read_and_a_large_one_is_mapped(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is mapped is not read before it is looked at, and must not be cut; so a small file is not mapped."""
    for most, is_mapped in ((capture_file.READ_BYTES, False), (0, True), (saved.stat().st_size, False)):
        monkeypatch.setattr(capture_file, "READ_BYTES", most)
        cap = Capture.load(saved)
        assert (str(saved) in Path("/proc/self/maps").read_text()) == is_mapped
        assert cap.attention[0].shape.Q == 9
        del cap
        gc.collect()


CUT = """
import os, sys, torch
from attnwidget import Capture
path = sys.argv[1]
cap = Capture.load(path)
os.truncate(path, 100)
print(float(cap.attention[0].q.sum()), float(cap.attention[0].block('weights', batch=0, head=0).sum()))
"""


@pytest.mark.thorough
def test_a_small_file_may_be_cut_while_it_is_looked_at(saved: Path) -> None:
    with capture() as cap:  # q, k and v of many pages of memory: what follows within the last one would be read as 0
        F.scaled_dot_product_attention(*torch.randn(3, 1, 2, 2000, 8), is_causal=True)
    cap.save(saved)
    made = subprocess.run([sys.executable, "-c", CUT, saved], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made  # a file that is mapped would have ended the process by SIGBUS
    assert made.stdout.split()
