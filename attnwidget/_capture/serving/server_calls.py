"""One question to a server by HTTP, bounded in time and in size. It goes to the given address and nowhere else.

Redirects are refused and proxies of the environment are not used, because a key goes along.
"""

from __future__ import annotations

import io
import json
import re
import socket
import ssl
import time
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead, RemoteDisconnected
from ipaddress import ip_address
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

CONNECT = 10.0  # seconds until a server takes the question
TIMEOUT = 600.0  # seconds for a whole answer: it waits for the step that runs, and for texts that are put together
WINDOW, LEAST = 8.0, 1 << 15  # seconds in which an answer that has begun brings so many bytes, unless it ends
HEAD = 1 << 17  # bytes before the answer's text
NOT_VLLM = "does not answer as a server of vLLM"
SECURE = "give the name that its certificate has, and name the certificate by SSL_CERT_FILE if it is your own"
TOO_LONG = "has sent more than an answer may have"
BLANKS = 64  # before the text
PARTS = 500_000  # of an answer: what stands between commas and brackets
DIGITS = 19  # of a number
READ = 1 << 20  # bytes at once
START = "VLLM_SERVER_DEV_MODE=1 vllm serve … --worker-extension-cls attnwidget.serving.Extension"
EXAMPLE = "give one such as 'http://localhost:8000'"
NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_.])?")


class AnswerError(Exception):
    """An answer that is not taken. Its text goes on from the server's address: "… has sent more than …".

    Args:
        what: the server has done.
        advice: what to do.
    """

    def __init__(self, what: str, advice: str = "look into its log, and at proxies on the way to it") -> None:
        super().__init__(f"{what}: {advice}")


class OtherServerError(AnswerError):
    """What answers is not a server of vLLM, or nothing answers."""

    def __init__(self, what: str) -> None:
        super().__init__(what, f"start it with {START}")


class StatusError(AnswerError):
    """A server that answers with another status than 200."""

    def __init__(self, code: int, elsewhere: str | None) -> None:
        super().__init__(f"answers HTTP {code}")
        self.code, self.elsewhere = code, elsewhere


class ServerAddress(NamedTuple):
    """Where a server is."""

    is_secure: bool
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = self.port == (443 if self.is_secure else 80)
        return f"http{'s' if self.is_secure else ''}://{host}" + ("" if usual else f":{self.port}")

    @classmethod
    def of(cls, text: str) -> ServerAddress:
        """Return the address in a text, without its path.

        Raises:
            ValueError: it is none; or it holds a password, which the error does not repeat.

        >>> str(ServerAddress.of("http://LOCALHOST:8000/v1")), str(ServerAddress.of("https://[::1]"))
        ('http://localhost:8000', 'https://[::1]')
        """
        shown = re.sub(r"//.*@", "//…@", text, flags=re.DOTALL)  # a password may have any sign
        shown = re.split(r"[?#]", shown, maxsplit=1)[0]
        shown = repr(shown if len(shown) <= 80 else f"{shown[:80]}…")
        refused = ValueError(f"{shown} is not the address of a server: {EXAMPLE}")
        try:
            parts = urlsplit(text.strip())
            secure, host, port = parts.scheme == "https", parts.hostname or "", parts.port
        except ValueError:
            raise refused from None
        if "@" in parts.netloc:
            raise ValueError(
                f"{shown} has a name or a password in it, which is not sent: leave it out, and set VLLM_API_KEY if the "
                "server wants a key"
            )
        found = _host_of(host, parts)
        if parts.scheme not in ("http", "https") or found is None or port == 0 or not text.strip().isprintable():
            raise refused
        return cls(secure, found, port or (443 if secure else 80))


def _host_of(host: str, parts: SplitResult) -> str | None:
    """Return a host as it is looked up; None if no host has such a name."""
    if "[" in parts.netloc:
        try:
            ip_address(host.partition("%")[0])
        except ValueError:
            return None
        return host
    try:
        found = host.encode("idna").decode("ascii").lower()
    except UnicodeError:
        return None
    return found if NAME.fullmatch(found) else None


class _Arriving(io.RawIOBase):
    """The bytes of an answer, as they arrive. If they come too late, too slowly or are too many, it is an error.

    Args:
        sock: the connection.
        most: bytes to begin with.
        seconds: until the last one.
    """

    def __init__(self, sock: socket.socket, most: int, seconds: float) -> None:
        self._sock, self._left = sock, most
        self._seconds, self._until = seconds, time.monotonic() + seconds
        self._due: float | None = None  # when the next LEAST bytes are due; None: nothing has arrived
        self._arrived = 0  # of these

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Wait for some bytes."""
        wait = min(self._until, self._due or self._until) - time.monotonic()
        try:
            if wait <= 0:
                raise TimeoutError
            self._sock.settimeout(wait)
            count = self._sock.recv_into(buffer)
        except TimeoutError:
            if self._due is not None and self._due < self._until:
                raise AnswerError(f"has begun an answer, and then sent too little for {WINDOW:.0f} seconds") from None
            raise AnswerError(f"has not answered for {self._seconds:,.0f} seconds", "give a longer timeout=") from None
        self._left -= count
        if self._left < 0:
            raise AnswerError(TOO_LONG)
        self._arrived += count
        if self._due is None or self._arrived >= LEAST:
            self._due, self._arrived = time.monotonic() + WINDOW, 0
        return count

    def allow(self, more: int) -> None:
        """Let more bytes come."""
        self._left += more

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return the file from which HTTPResponse reads."""
        return io.BufferedReader(self)


def post(
    where: ServerAddress, path: str, body: bytes, headers: Mapping[str, str], *, most: int, seconds: float
) -> bytes:
    """Send a question, and return the answer's text.

    Args:
        where: the server.
        path: of the endpoint.
        body: the question.
        headers: of HTTP.
        most: bytes of the answer.
        seconds: for the whole answer.

    Raises:
        AnswerError: the answer is not taken; StatusError if it is an error of the server.
    """
    wait = min(CONNECT, seconds)
    line = HTTPSConnection if where.is_secure else HTTPConnection
    connection = line(where.host, where.port, timeout=wait)
    try:
        connection.request("POST", path, body, {**headers, "Connection": "close"})
        arriving = _Arriving(connection.sock, HEAD, seconds)
        as_socket: Any = arriving  # a response asks it for a file and nothing else
        response = HTTPResponse(as_socket, method="POST")
        response.begin()
        return _text_of(response, arriving, most)
    except RemoteDisconnected:
        raise AnswerError("has closed the line without an answer") from None
    except IncompleteRead:
        raise AnswerError("has cut its answer off") from None
    except HTTPException:
        raise OtherServerError("does not answer in HTTP") from None
    except ssl.SSLError as error:
        raise AnswerError(f"has no secure line that can be trusted ({_reason(error)})", SECURE) from None
    except OSError as error:
        raise OtherServerError(f"cannot be reached ({_reason(error)})") from None
    except ValueError:  # of http.client, as for a chunk of a negative size
        raise OtherServerError("does not answer in HTTP") from None
    finally:
        connection.close()


def _reason(error: Exception) -> str:
    known = (getattr(error, name, None) for name in ("verify_message", "reason", "strerror"))
    return str(next(filter(None, known), None) or str(error) or type(error).__name__)[:120]


def _text_of(response: HTTPResponse, arriving: _Arriving, most: int) -> bytes:
    if response.status != 200:
        raise StatusError(response.status, response.getheader("Location"))
    lengths = set(response.headers.get_all("Content-Length", ()))
    if len(lengths) > 1 or not all(re.fullmatch(r"\s*[0-9]{1,18}\s*", one) for one in lengths):
        raise AnswerError("gives no clear length of its answer")
    if response.getheader("Content-Encoding", "identity").lower() != "identity":
        raise AnswerError("has compressed its answer, which was not asked for")
    if response.length is not None and response.length > most:
        raise AnswerError(f"announces an answer of {response.length:,} bytes, and {most:,} are the most")
    arriving.allow(2 * READ)
    first = next((one for one in (response.read(1) for _ in range(BLANKS)) if one not in b" \t\r\n" or not one), b"")
    if first != b"{":  # known at once, whatever follows
        raise OtherServerError(NOT_VLLM)
    found = [first]
    left = most - 1
    while part := response.read(READ):
        found.append(part)
        arriving.allow(len(part) + len(part) // 8)  # with the marks of chunks, which must not be more than the text
        left -= len(part)
        if left < 0:
            raise AnswerError(TOO_LONG)
    if response.length:
        raise AnswerError("has cut its answer off")
    return b"".join(found)


def read_json(text: bytes) -> Any:
    """Return what a text in JSON says.

    Raises:
        AnswerError: it is not JSON; or it has NaN, a name twice, a number of many digits, or too many parts.
    """
    if sum(text.count(sign) for sign in (b",", b"[", b"{")) > PARTS:
        raise AnswerError(f"has sent an answer of more than {PARTS:,} parts")
    try:
        return json.loads(
            text.decode(), parse_constant=_refused_constant, parse_int=_short_number, object_pairs_hook=_each_once
        )
    except (ValueError, RecursionError):
        raise AnswerError("has sent an answer that is not plain JSON") from None


def _refused_constant(name: str) -> Any:
    raise ValueError(name)


def _short_number(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError("too many digits")
    return int(digits)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name twice")
    return found
