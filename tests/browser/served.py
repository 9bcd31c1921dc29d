"""Programs that serve a page of their own, as marimo and Voila do: on the loopback, ended with all they started."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
from lab import free_port


@contextlib.contextmanager
def served(module: str, arguments: Sequence[str], *, ready: str) -> Iterator[str]:
    """Run `python -m module`; `{port}` in the arguments is where it serves. Gives its address once `ready` answers."""
    port = free_port()
    command = [sys.executable, "-m", module, *(argument.format(port=port) for argument in arguments)]
    with tempfile.TemporaryDirectory(prefix=f"attnwidget-{module}-") as home:
        log = Path(home) / "log"
        environment = {**os.environ, "XDG_CONFIG_HOME": home, "JUPYTER_CONFIG_DIR": home, "IPYTHONDIR": home}
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment, cwd=home)
        base = f"http://127.0.0.1:{port}"
        try:
            _wait(process, base + ready, log)
            yield base
        finally:
            _end(process)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path, seconds: float = 90) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        try:
            urllib.request.urlopen(url, timeout=10).close()
        except urllib.error.HTTPError:  # it serves, if not this
            return
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise RuntimeError(f"nothing was served at {url}:\n{log.read_text(errors='replace')[-4000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    family: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for one in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.terminate()
    _, left = psutil.wait_procs(family, timeout=5)
    for one in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait(5)
