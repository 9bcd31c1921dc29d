"""A small HTTP server on this machine, whose answers a test decides, byte by byte if it likes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OK = b"HTTP/1.1 200 OK\r\n"


class SmallServer:
    """Answers questions to the endpoint of vLLM's workers.

    Attributes:
        reply: returns an answer, given the command: bytes as they are sent, or the answers of all workers.
        asked: the commands that came.
        headers: of the last question.
        ended: set when no more is sent: an answer that goes on for ever looks at it.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.reply: Callable[[dict[str, Any]], Any] = lambda told: []
        self.asked: list[dict[str, Any]] = []
        self.headers: dict[str, str] = {}
        self.ended = threading.Event()

    @property
    def address(self) -> str:
        """Return where it is."""
        return f"http://127.0.0.1:{self.port}"


def plain(body: bytes, head: bytes = b"") -> bytes:
    """Return an answer with a length, and more lines of a head."""
    return OK + head + b"Content-Length: %d\r\n\r\n" % len(body) + body


@contextmanager
def running() -> Iterator[SmallServer]:
    """Run a server."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

        def do_GET(self) -> None:
            small.asked.append({"do": "GET", "path": self.path})

        def do_POST(self) -> None:
            small.headers = dict(self.headers)
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            told = {**json.loads(body["args"][0]), "path": self.path, "timeout": body["timeout"]}
            small.asked.append(told)
            found = small.reply(told)
            self.close_connection = True
            try:
                for part in [plain(json.dumps({"results": found}).encode())] if isinstance(found, list) else found:
                    self.wfile.write(part)
            except OSError:  # the client has gone
                pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None: ...

    server = Quiet(("127.0.0.1", 0), Handler)
    small = SmallServer(server.server_port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield small
    finally:
        small.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
