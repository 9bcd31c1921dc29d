"""The system's Firefox for Playwright, by WebDriver BiDi: Playwright's own build of it cannot be had everywhere.

`python firefox.py FIREFOX …` is started by Playwright in the place of Firefox. It starts Firefox and stands between the
two, to answer the few commands of Playwright that this Firefox does not know and that no test here needs.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from tornado import netutil
from tornado.httpserver import HTTPServer
from tornado.web import Application
from tornado.websocket import WebSocketClosedError, WebSocketHandler, websocket_connect

# What Playwright sends for every page, and Firefox ESR 140 to 153 refuses.
NOT_KNOWN = {"emulation.setMediaFeaturesOverride", "emulation.setScreenSettingsOverride"}
LARGEST = 256 * 1024 * 1024  # a screenshot is one message


def find_firefox() -> str | None:
    """The system's Firefox; ATTNWIDGET_FIREFOX names another one. None where there is none."""
    return os.environ.get("ATTNWIDGET_FIREFOX") or shutil.which("firefox-esr") or shutil.which("firefox")


def launcher(firefox: str) -> str:
    """Return a program that Playwright can start as Firefox."""
    path = Path(tempfile.mkdtemp(prefix="attnwidget-firefox-")) / "firefox"
    path.write_text(
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(__file__)} {shlex.quote(firefox)} "$@"\n'
    )
    path.chmod(0o755)
    return str(path)


class Between(WebSocketHandler):
    """One connection of Playwright, and its own to Firefox."""

    address = ""

    async def open(self, *_: str, **__: str) -> None:
        self._held: list[str] = []
        self._far: Any = None
        self._far = await websocket_connect(self.address, on_message_callback=self._back, max_message_size=LARGEST)
        for message in self._held:
            self._far.write_message(message)

    def on_message(self, message: str | bytes) -> None:
        text = message if isinstance(message, str) else message.decode()
        asked = json.loads(text)
        if asked.get("method") in NOT_KNOWN:
            self.write_message(json.dumps({"type": "success", "id": asked["id"], "result": {}}))
        elif self._far is None:
            self._held.append(text)
        else:
            self._far.write_message(text)

    def on_close(self) -> None:
        if self._far is not None:
            self._far.close()

    def _back(self, message: str | bytes | None) -> None:
        if message is None:
            self.close()
            return
        try:
            self.write_message(message)
        except WebSocketClosedError:
            self._far.close()


async def main(firefox: str, *arguments: str) -> int:
    process = await asyncio.create_subprocess_exec(firefox, *arguments, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    async for line in process.stderr:
        said = line.decode(errors="replace").rstrip()
        found = re.search(r"WebDriver BiDi listening on (ws://.*)$", said)
        if not found:
            print(said, file=sys.stderr, flush=True)
            continue
        Between.address = f"{found[1]}/session"
        (listening,) = netutil.bind_sockets(0, "127.0.0.1")
        HTTPServer(Application([("/session", Between)], websocket_max_message_size=LARGEST)).add_socket(listening)
        print(f"WebDriver BiDi listening on ws://127.0.0.1:{listening.getsockname()[1]}", file=sys.stderr, flush=True)
    return await process.wait()


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main(*sys.argv[1:])))
