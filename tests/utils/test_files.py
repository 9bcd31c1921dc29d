"""Files that are written whole or not at all: by `to_html`, `figure().savefig` and `Capture.save`."""

from __future__ import annotations

import errno
import io
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from attnwidget import AttentionWidget, Capture, capture
from attnwidget._utils import files

WRITERS = ("html", "svg", *(pytest.param(kind, marks=pytest.mark.thorough) for kind in ("pdf", "png")), "safetensors")
BEFORE = b"what was there"


@cache
def writer(kind: str) -> Callable[[Any], Any]:
    """Return what writes a file of this kind, the same in all tests."""
    if kind == "safetensors":
        with capture() as cap:
            F.scaled_dot_product_attention(*torch.randn(3, 1, 2, 5, 8))
        return cap.save
    w = AttentionWidget(*torch.randn(3, 5, 8), tokens=list("abcde"))
    return w.to_html if kind == "html" else w.figure().savefig


@pytest.mark.parametrize("kind", WRITERS)
class TestEveryWriter:
    def test_a_file_that_is_there_is_replaced_and_keeps_its_mode(self, tmp_path: Path, kind: str) -> None:
        path = tmp_path / f"a.{kind}"
        path.write_bytes(BEFORE)
        path.chmod(0o600)
        writer(kind)(path)
        assert path.read_bytes() != BEFORE
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert os.listdir(tmp_path) == [path.name]

    def test_a_new_file_has_the_mode_of_any_new_file(self, tmp_path: Path, kind: str) -> None:
        (tmp_path / "other").write_bytes(b"")
        writer(kind)(tmp_path / f"a.{kind}")
        assert (tmp_path / f"a.{kind}").stat().st_mode == (tmp_path / "other").stat().st_mode

    def test_a_link_is_followed(self, tmp_path: Path, kind: str) -> None:
        (tmp_path / "real").mkdir()
        path, link = tmp_path / "real" / f"a.{kind}", tmp_path / f"link.{kind}"
        path.write_bytes(BEFORE)
        link.symlink_to(path)
        writer(kind)(link)
        assert link.is_symlink()
        assert path.read_bytes() != BEFORE

    @pytest.mark.parametrize("there", [True, False])
    def test_on_a_full_disk_what_was_there_stays(
        self, tmp_path: Path, kind: str, there: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / f"a.{kind}"
        if there:
            path.write_bytes(BEFORE)
        write = writer(kind)
        fill_up(monkeypatch)
        with pytest.raises(OSError, match=r"was not written \(No space left on device.*\): free space") as told:
            write(path)
        assert told.value.errno == errno.ENOSPC
        assert os.listdir(tmp_path) == ([path.name] if there else [])
        assert not there or path.read_bytes() == BEFORE

    def test_an_interrupt_leaves_what_was_there(
        self, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / f"a.{kind}"
        path.write_bytes(BEFORE)
        write = writer(kind)

        def interrupt(*_: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            write(path)
        assert (os.listdir(tmp_path), path.read_bytes()) == ([path.name], BEFORE)

    def test_what_no_file_can_replace_is_refused(self, tmp_path: Path, kind: str) -> None:
        write, pipe = writer(kind), tmp_path / f"pipe.{kind}"
        os.mkfifo(pipe)
        with pytest.raises(ValueError, match="is a pipe, which cannot be replaced by a file: give the name"):
            write(pipe)
        assert stat.S_ISFIFO(pipe.stat().st_mode)
        device = tmp_path / f"device.{kind}"
        device.symlink_to("/dev/null")
        with pytest.raises(ValueError, match="is a device"):
            write(device)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.relpath(tmp_path / f"s.{kind}"))
            with pytest.raises(ValueError, match="is a socket"):
                write(tmp_path / f"s.{kind}")
        (tmp_path / f"folder.{kind}").mkdir()
        with pytest.raises(IsADirectoryError, match="is a directory: give the name of a file"):
            write(tmp_path / f"folder.{kind}")

    def test_a_path_that_cannot_be_is_refused(self, tmp_path: Path, kind: str) -> None:
        write = writer(kind)
        with pytest.raises(ValueError, match="path holds a NUL character: give the name of a file"):
            write(f"{tmp_path}/a\0b.{kind}")
        with pytest.raises(FileNotFoundError, match="none is not there: make the directory first"):
            write(tmp_path / "none" / f"a.{kind}")
        with pytest.raises(OSError, match=r"was not written|too long"):
            write(tmp_path / f"{'a' * 300}.{kind}")
        assert os.listdir(tmp_path) == []


def fill_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every file that is opened for writing have space for 10 bytes."""

    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def opened(path: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
        return Full(path, mode.replace("b", "")) if "x" in mode else open(path, mode, *rest, **more)

    monkeypatch.setattr(files, "open", opened, raising=False)


RUN = """
import resource, sys, torch
from attnwidget import AttentionWidget, Capture, capture
w = AttentionWidget(*torch.randn(3, 64, 8))
with capture() as cap:
    torch.nn.functional.scaled_dot_product_attention(*torch.randn(3, 1, 2, 99, 8))
figure = w.figure()
figure.savefig(sys.argv[1] + "/warm.png")
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
for write, name in ((w.to_html, "a.html"), (figure.savefig, "a.svg"), (figure.savefig, "a.png"), (cap.save, "a.st")):
    try:
        write(f"{sys.argv[1]}/{name}")
    except OSError as error:
        print(error)
"""


@pytest.mark.thorough
def test_a_limit_of_the_system_leaves_nothing_half_written(tmp_path: Path) -> None:
    for name in ("a.html", "a.svg", "a.png", "a.st"):
        (tmp_path / name).write_bytes(BEFORE)
    made = subprocess.run([sys.executable, "-c", RUN, tmp_path], capture_output=True, text=True, check=True)
    assert made.stdout.count("was not written (File too large)") == 4, made
    (tmp_path / "warm.png").unlink()
    assert sorted(os.listdir(tmp_path)) == ["a.html", "a.png", "a.st", "a.svg"]
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {BEFORE}


def test_a_file_that_may_not_be_written_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.html"
    path.write_bytes(BEFORE)
    path.chmod(0o444)
    monkeypatch.setattr(os, "access", lambda *_: False)  # who runs the tests may be root, who may write anything
    with pytest.raises(PermissionError, match="may not be written: change its permissions"):
        AttentionWidget(*torch.randn(3, 5, 8)).to_html(path)
    assert path.read_bytes() == BEFORE


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(ValueError, match="leads nowhere"):
        AttentionWidget(*torch.randn(3, 5, 8)).to_html(tmp_path / "a")
    assert (tmp_path / "a").is_symlink()
    with pytest.raises(ValueError, match="leads nowhere"):
        files.writable("~nobody-of-this-name/a.html", "a.html")
    with pytest.raises(TypeError, match="path is int: give the name of a file"):
        Capture.load(3)  # type: ignore[arg-type]


def test_a_figure_goes_into_a_file_object_as_before() -> None:
    into = io.BytesIO()
    AttentionWidget(*torch.randn(3, 5, 8)).figure().savefig(into, format="svg")
    assert into.getvalue().startswith(b"<?xml")


def test_without_an_ending_a_figure_gets_that_of_matplotlib(tmp_path: Path) -> None:
    figure = AttentionWidget(*torch.randn(3, 5, 8)).figure()
    figure.savefig(tmp_path / "bank")
    figure.savefig(tmp_path / "bank.svg", format="pdf")
    assert (tmp_path / "bank.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "bank.svg").read_bytes().startswith(b"%PDF")
