"""A slow way between a browser and a server: what the server sends passes at so many bytes a second, all together."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

PART = 16_384  # bytes that go at once


class SlowChannel:
    """A proxy of TCP on the loopback. Use it as a context manager; `base` is what a browser is given."""

    def __init__(self, port: int, *, bytes_per_second: float) -> None:
        self._port, self._rate = port, bytes_per_second
        self._free = 0.0  # when the channel has sent all that it was given
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []

    def __enter__(self) -> SlowChannel:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.base = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self._listening, *self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                self._open += [near, far]
                threading.Thread(target=self._pass_on, args=(near, far, False), daemon=True).start()
                threading.Thread(target=self._pass_on, args=(far, near, True), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, slow: bool) -> None:
        with contextlib.suppress(OSError):
            while part := source.recv(PART):
                if slow:
                    self._wait(len(part))
                target.sendall(part)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def _wait(self, size: int) -> None:
        """Return when these bytes have gone through: one part after the other, of whichever connection."""
        with self._lock:
            now = time.monotonic()
            self._free = max(now, self._free) + size / self._rate
            until = self._free
        time.sleep(max(0.0, until - now))
