"""A server that is broken or hostile: each answer and each address ends in the recording, or in one short sentence."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import os
import pickle
import re
import signal
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest
import small_server
import torch
from safetensors.torch import save
from small_server import OK, SmallServer, plain
from torch import Tensor

from attnwidget import capture, serving
from attnwidget._capture.serving import server_calls, worker, worker_files

KEY = "a-secret-key"
BEGUN = {"layers": ["a"], "skipped": {}, "version": "0.32.0", "tried": "0.32.0"}
NOTHING: dict[str, Any] = {"path": None, "size": 0, "skipped": {}, "others": []}
DIFFERS = "the answer of a worker cannot be read"


def file_of(heads: list[int], tokens: int = 9, seed: int = 0, process: list[int] | None = None) -> tuple[bytes, Tensor]:
    """Return the file of a worker with some heads, and their queries."""
    make = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, 1, len(heads), tokens, 8, generator=make)
    entry = {"name": "a", "cross": False, "q": "0", "k": "1", "scale": 0.5, "softcap": None, "is_causal": True}
    entry |= {"mask": None, "bias": None} | ({} if process is None else {"part": {"heads": heads}})
    about = {"version": 1, "forwards": [[entry]], "skipped": {}, "towers": ["a"], "requests": ["r"]}
    about |= {} if process is None else {"process": process}
    return save({"0": q.clone(), "1": k.clone()}, {"attnwidget": json.dumps(about)}), q


FILE, QUERIES = file_of([0, 1])


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[SmallServer, SmallServer]]:
    with small_server.running() as one, small_server.running() as other:
        yield one, other


@pytest.fixture
def server(servers: tuple[SmallServer, SmallServer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SmallServer:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for one in servers:
        one.asked.clear()
        one.headers = {}
    return servers[0]


def piece(raw: bytes) -> dict[str, str]:
    return {"bytes": base64.b64encode(raw).decode()}


def far(**other: Any) -> dict[str, Any]:
    return {**NOTHING, "path": "/far/x.safetensors", "size": len(FILE), **other}


def flow(begin: Any = BEGUN, end: Any = None, fetch: Any = None, forget: Any = None) -> Callable[[Any], Any]:
    """Return the answers to a whole recording, a changed one among them: bytes, answers, or a function of the start."""

    def reply(told: dict[str, Any]) -> Any:
        found = {"begin": begin, "end": end or far(), "fetch": fetch or (lambda start: piece(FILE[start:]))}
        one = {**found, "forget": {} if forget is None else forget}[told["do"]]
        one = one(told["start"]) if callable(one) else one
        return [one] if isinstance(one, dict) else one

    return reply


def refused(server: SmallServer, reply: Callable[[Any], Any], **how: Any) -> str:
    """Return the sentence that refuses an answer."""
    server.reply = reply
    with pytest.raises(ValueError) as raised, capture(server.address, **how):
        pass
    told = str(raised.value)
    assert len(told) < 450
    assert "\n" not in told
    assert KEY not in told
    return told


def test_the_file_of_a_far_server_is_copied_and_vanishes(server: SmallServer, tmp_path: Path) -> None:
    server.reply = flow()
    with capture(server.address, timeout=70) as cap:
        pass
    assert torch.equal(cap.attention[0].q, QUERIES)
    assert [one["do"] for one in server.asked] == ["begin", "end", "fetch", "forget"]
    assert {(one["path"], one["timeout"]) for one in server.asked} == {("/collective_rpc", 70)}
    assert server.headers["Authorization"] == f"Bearer {KEY}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sizes", [(9, 9), (4, 60), (60, 4), (7, 40, 3), (30, 0, 30)])
def test_files_of_several_workers_are_copied_from_their_places(
    server: SmallServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sizes: tuple[int, ...]
) -> None:
    for module in (worker, worker_files):
        monkeypatch.setattr(module, "CHUNK", 700)
    workers, queries, first = [], [], 0
    for rank, heads in enumerate(sizes):
        raw, q = file_of([*range(first, first + heads)], 9, rank, [rank, len(sizes)])
        first += heads
        workers.append(worker.ServedWorker(None))
        if heads:
            queries.append(q)
            path = tmp_path / f"{rank}.safetensors"
            path.write_bytes(raw)
            workers[-1]._files["s"] = path

    def reply(told: dict[str, Any]) -> Any:
        if told["do"] == "end":
            files = [one._files.get("s") for one in workers]
            return [NOTHING if one is None else far(path=f"/far/{one.name}", size=one.stat().st_size) for one in files]
        how = {**told, "session": "s"}
        return [BEGUN if told["do"] == "begin" else one.answer(how, None) for one in workers]

    server.reply = reply
    with capture(server.address) as cap:
        pass
    assert torch.equal(cap.attention[0].q, torch.cat(queries, 1))
    assert list(tmp_path.iterdir()) == []


def changed(field: str, value: Any, of: dict[str, Any]) -> dict[str, Any]:
    return {**of, field: value}


def without(field: str, of: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in of.items() if name != field}


def chunked(*parts: bytes) -> bytes:
    return OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(parts)


GOOD = json.dumps({"results": [BEGUN]}).encode()
ANSWERS: dict[str, tuple[Any, str]] = {  # to the first question, and what is said of it
    "a page": (plain(b"<html>hello</html>"), "does not answer as a server of vLLM: start it with"),
    "nothing": (plain(b""), "does not answer as a server of vLLM"),
    "blanks": (plain(b" " * 1000), "does not answer as a server of vLLM"),
    "null": (plain(b"null"), "does not answer as a server of vLLM"),
    "another dict": (plain(b'{"detail": "hello"}'), "does not answer as a server of vLLM"),
    "cut json": (plain(b'{"results": ['), "not plain JSON"),
    "latin": (plain(b'{"results": ["\xff"]}'), "not plain JSON"),
    "deep": (plain(b'{"results":' + b"[" * 90_000 + b"]" * 90_000 + b"}"), "not plain JSON"),
    "wide": (plain(b'{"results":[' + b"[]," * 300_000 + b"[]]}"), "more than 500,000 parts"),
    "NaN": (plain(b'{"results": [NaN]}'), "not plain JSON"),
    "a name twice": (plain(b'{"results": [{"skipped": {}, "skipped": {}}]}'), "not plain JSON"),
    "digits": (plain(b'{"results": [' + b"9" * 5000 + b"]}"), "not plain JSON"),
    "results a number": (plain(b'{"results": 5}'), DIFFERS),
    "no worker": ([], DIFFERS),
    "many workers": ([BEGUN] * 1025, "1025 answers"),
    "None": ([None], "it sent None"),
    "a list": ([[BEGUN]], "it sent a list"),
    "an empty one": ([{}], "skipped is None"),
    "skipped a number": ([changed("skipped", 7, BEGUN)], "skipped is an int"),
    "a reason a number": ([changed("skipped", {"a": 1}, BEGUN)], "a reason is an int"),
    "an error that is no text": ([{"error": {"a": 1}}], "its error is a dict"),
    "an empty error": ([{"error": ""}], "its error is empty"),
    "a long error": ([{"error": "x" * 100_000}], "^x{300}…$"),
    "an error with the key": ([{"error": f"Bearer {KEY} \x1b[2J"}], r"^Bearer …  \[2J$"),
    "400": (b"HTTP/1.1 400 No\r\n\r\n", r"do not answer \(HTTP 400\)"),
    "401": (b"HTTP/1.1 401 No\r\n\r\n", "wants a key"),
    "404": (b"HTTP/1.1 404 No\r\n\r\n", "no endpoint for developers"),
    "500": (b"HTTP/1.1 500 No\r\n\r\n", r"do not answer \(HTTP 500\)"),
    "204": (b"HTTP/1.1 204 No\r\n\r\n", r"do not answer \(HTTP 204\)"),
    "101": (b"HTTP/1.1 101 No\r\n\r\n", r"do not answer \(HTTP 101\)"),
    "a redirect": (
        b"HTTP/1.1 302 No\r\nLocation: /" + KEY.encode() + b"\r\n\r\n",
        "redirects to '/…', which is not followed",
    ),
    "no HTTP": (b"HELLO\r\n\r\n", "does not answer in HTTP"),
    "HTTP 0.9": (GOOD, "does not answer in HTTP"),
    "closed": (b"", "closed the line without an answer"),
    "half a head": (b"HTTP/1.1 200 OK\r\nContent-Le", "cut|as a server of vLLM|no clear length"),
    "a long line": (OK + b"X: " + b"a" * 70_000 + b"\r\n\r\n", "does not answer in HTTP"),
    "many lines": (OK + b"X: y\r\n" * 200 + b"\r\n", "does not answer in HTTP"),
    "a cut text": (OK + b"Content-Length: 5000\r\n\r\n" + GOOD, "has cut its answer off"),
    "a negative length": (OK + b"Content-Length: -5\r\n\r\n" + GOOD, "no clear length"),
    "two lengths": (OK + b"Content-Length: 5\r\n" + plain(GOOD)[len(OK) :], "no clear length"),
    "a length in words": (OK + b"Content-Length: five\r\n\r\n" + GOOD, "no clear length"),
    "a large length": (OK + b"Content-Length: 1500000000\r\n\r\n{", "announces an answer of 1,500,000,000 bytes"),
    "compressed": (plain(gzip.compress(GOOD), b"Content-Encoding: gzip\r\n"), "has compressed its answer"),
    "a bad chunk": (chunked(b"zz\r\n"), "has cut its answer off"),
    "a cut chunk": (chunked(b"%x\r\n" % (len(GOOD) + 5), GOOD), "has cut its answer off"),
    "a chunk of a negative size": (chunked(b"-5\r\n", GOOD), "cut|HTTP|vLLM"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_is_none_is_refused_in_a_sentence(server: SmallServer, name: str) -> None:
    answer, says = ANSWERS[name]
    answer = [answer] if isinstance(answer, bytes) else answer
    raw = (part for part in answer) if isinstance(answer[0] if answer else None, bytes) else answer
    assert re.search(says, refused(server, lambda told: raw))


LATER: dict[str, tuple[dict[str, Any], str]] = {  # to later questions
    "another number of workers": ({"end": [far(), far()]}, "2 workers answer, and 1 began"),
    "without others": ({"end": without("others", far())}, "its requests are None"),
    "without a path": ({"end": without("path", far())}, "its path is an int"),
    "without a size": ({"end": without("size", far())}, "its size is None"),
    "others of numbers": ({"end": far(others=[1])}, "its requests are a list"),
    "a path with NUL": ({"end": far(path="/x/a\0b")}, "its path is not a path"),
    "a path that is a number": ({"end": far(path=5)}, "its path is an int"),
    "an empty path": ({"end": far(path="")}, "its path is not a path"),
    "a long path": ({"end": far(path="/" + "a" * 5000)}, "its path is not a path"),
    "a size in words": ({"end": far(size="5")}, "its size is a str"),
    "a size that is true": ({"end": far(size=True)}, "its size is a bool"),
    "a size with a point": ({"end": far(size=5.0)}, "its size is a float"),
    "a negative size": ({"end": far(size=-5)}, "its size is out of range"),
    "no size": ({"end": far(size=0)}, "its file has 0 bytes"),
    "a size without a path": ({"end": far(path=None)}, rf"its file has {len(FILE)} bytes"),
    "a size beyond all": ({"end": far(size=10**18)}, "its size is out of range"),
    "a size beyond the disk": (
        {"end": far(size=1 << 52)},
        r"announced with 4,503,.* are free in .*TMPDIR; the recording",
    ),
    "a piece of no base64": ({"fetch": {"bytes": "!!! <b>"}}, "not base64"),
    "a piece with blanks": ({"fetch": {"bytes": f"{piece(FILE)['bytes']}\n"}}, "not base64"),
    "a piece of other letters": ({"fetch": {"bytes": "é" * 8}}, "not base64"),
    "a piece that is a number": ({"fetch": {"bytes": 5}}, "a piece of its file"),
    "no piece": ({"fetch": [{}]}, "a piece of its file"),
    "pieces of two workers": ({"fetch": [piece(FILE), piece(FILE)]}, "2 workers answer, and 1 began"),
    "more than announced": ({"fetch": piece(FILE + b"x")}, "is longer than announced"),
    "less than announced": (
        {"end": far(size=len(FILE) + 10)},
        rf"ends after {len(FILE):,} of {len(FILE) + 10:,} bytes",
    ),
    "single bytes": ({"fetch": lambda start: piece(FILE[start : start + 1])}, "too many small pieces"),
    "zeros": ({"end": far(size=1 << 22), "fetch": piece(bytes(1 << 20))}, "is not one of a capture"),
    "another file": ({"fetch": piece(b"\x10" + bytes(len(FILE) - 1))}, "the file of a worker .*same attnwidget"),
    "a refusal": ({"fetch": {"error": "the disk is gone"}}, "^the disk is gone$"),
}


@pytest.mark.parametrize("name", LATER)
def test_an_answer_that_changes_or_lies_later_is_refused(server: SmallServer, tmp_path: Path, name: str) -> None:
    how, says = LATER[name]
    told = refused(server, flow(**how))
    assert re.search(says, told), told
    assert list(tmp_path.iterdir()) == [], "what was copied of a file is removed"


@pytest.mark.parametrize(
    "path", ["/", "/x/..", "..", "../../../climbed.safetensors", "C:\\x", "~", "a" * 300, "/dev/zero"]
)
def test_a_path_of_the_server_names_nothing_here(server: SmallServer, tmp_path: Path, path: str) -> None:
    server.reply = flow(end=far(path=path))
    with capture(server.address) as cap:
        pass
    assert torch.equal(cap.attention[0].q, QUERIES)
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_this_machine_is_opened_if_this_recording_has_written_it(server: SmallServer, tmp_path: Path) -> None:
    other, queries = file_of([0, 1], seed=5)
    assert len(other) == len(FILE)
    theirs = tmp_path / "theirs.safetensors"
    theirs.write_bytes(other)

    def recorded(make: Callable[[Path], Path], keep: Path | None = None) -> Any:
        def reply(told: dict[str, Any]) -> Any:
            if told["do"] == "end":
                name = (
                    f"{told['session']}.safetensors" if keep else f"attnwidget-{told['session']}-0123abcd.safetensors"
                )
                return [far(path=str(make((keep or tmp_path) / name)))]
            return flow()(told)

        server.reply = reply
        server.asked.clear()
        with capture(server.address, folder=keep) as cap:
            pass
        return cap

    def written(path: Path) -> Path:
        path.write_bytes(other)
        return path

    def linked(path: Path) -> Path:
        path.symlink_to(theirs)
        return path

    for make in (lambda path: theirs, linked, lambda path: path.with_name("attnwidget-0-0123abcd.safetensors")):
        assert torch.equal(recorded(make).attention[0].q, QUERIES), "copied from the server"
    own = recorded(written)
    assert torch.equal(own.attention[0].q, queries)
    assert [one["do"] for one in server.asked] == ["begin", "end", "forget"]
    folder = tmp_path / "maps"
    folder.mkdir()
    kept = recorded(written, folder)
    assert (torch.equal(kept.attention[0].q, queries), kept.files) == (True, [str(next(folder.iterdir()))])
    with pytest.warns(UserWarning, match=r"the files are on the server, as /.*theirs\.safetensors: copy them"):
        assert recorded(lambda path: theirs, folder).files == [str(theirs)]


def test_an_answer_that_drips_or_does_not_end_is_refused(server: SmallServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_calls, "WINDOW", 0.1)

    def endless(begin: bytes, again: bytes, wait: float = 0.0) -> Callable[[Any], Iterator[bytes]]:
        def reply(told: Any) -> Iterator[bytes]:
            yield begin
            while not server.ended.wait(wait):
                yield again

        return reply

    slow = "has begun an answer, and then sent too little for"
    for begin, again in (
        (OK, b"X"),
        (OK + b"\r\n", b" "),
        (OK + b"\r\n{", b" "),
        (b"HTTP/1.1 100 Go on\r\n\r\n", b"H"),
    ):
        assert slow in refused(server, endless(begin, again, 0.02))
    for begin, again in (
        (OK + b"\r\n{", b"a" * 100_000),
        (b"", b"HTTP/1.1 100 Go on\r\n\r\n" * 100),
        (OK, b"X: y\r\n" * 50),
        (chunked(b"1\r\n{\r\n"), b"1;" + b"e" * 60_000 + b"\r\n \r\n"),
        (chunked(b"1\r\n{\r\n0\r\n"), b"X: y\r\n" * 9000),
    ):
        assert re.search("has sent more than an answer may have|in HTTP", refused(server, endless(begin, again)))
    told = refused(server, endless(b"", b"", 0.02), timeout=0.2)
    assert "has not answered for 0 seconds: give a longer timeout=" in told


def test_the_key_goes_to_the_given_address_alone(
    servers: tuple[SmallServer, SmallServer], server: SmallServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = servers[1]
    for code in (301, 302, 303, 307, 308):
        head = f"HTTP/1.1 {code} Go\r\nLocation: {other.address}/stolen\r\n\r\n".encode()
        assert f"redirects to '{other.address}/stolen'" in refused(server, lambda told, head=head: iter([head]))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, other.address)
    server.reply = flow()
    with capture(server.address):
        pass
    assert (other.asked, other.headers) == ([], {})
    monkeypatch.setenv("VLLM_API_KEY", f" {KEY}\n")
    server.reply = lambda told: [{"ended": ["one", "two"]}, {"ended": ["one"]}]
    assert serving.release(server.address.replace("http", "HTTP") + "/v1") == ["one", "two"]
    assert server.headers["Authorization"] == f"Bearer {KEY}"
    monkeypatch.setenv("VLLM_API_KEY", f"{KEY}\nX: y")
    with pytest.raises(
        ValueError, match=r"^the key for http://127.* has characters that no header can have: check VLLM"
    ):
        capture(server.address)


def test_what_is_skipped_is_shown_short_and_without_the_key(server: SmallServer) -> None:
    server.reply = flow(begin=changed("skipped", {"a\x1b": f"{KEY} " + "x" * 9000}, BEGUN))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with capture(server.address) as cap:
            pass
    ((name, why),) = cap.skipped.items()
    assert (name, why[:3], len(why) < 1000) == ("a ", "… x", True)


class Elsewhere(Executor):
    """Does each task at once, after a trip through bytes, as to another process."""

    def submit(self, function: Any, *given: Any, **keywords: Any) -> Future[Any]:  # type: ignore[override]
        found: Future[Any] = Future()
        function, *given = pickle.loads(pickle.dumps((function, *given)))  # type: ignore[assignment]
        found.set_result(function(*given))
        return found


def test_workers_can_have_what_was_recorded_though_its_file_has_vanished(server: SmallServer) -> None:
    server.reply = flow()
    with capture(server.address) as cap:
        pass
    found = cap.attention[0].overview(head=1, executor=Elsewhere()).values
    torch.testing.assert_close(found, cap.attention[0].overview(head=1).values)


def test_an_interrupt_ends_the_wait_for_a_server(server: SmallServer) -> None:
    def reply(told: dict[str, Any]) -> Any:
        if told["do"] == "begin":
            return [BEGUN]
        os.kill(os.getpid(), signal.SIGINT)
        server.ended.wait()
        return []

    server.reply = reply
    with pytest.raises(KeyboardInterrupt), capture(server.address, timeout=100):
        pass


def test_a_short_key_is_not_cut_out_of_names(server: SmallServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "a")
    server.reply = flow(end=far(skipped={"layers.a": "a reason"}))
    with pytest.warns(UserWarning, match="cannot be shown|a reason"), capture(server.address) as cap:
        pass
    assert cap.skipped == {"layers.a": "a reason"}
    assert torch.equal(cap.attention[0].q, QUERIES)


def test_a_server_that_does_not_forget_loses_nothing(server: SmallServer) -> None:
    server.reply = flow(forget={"error": "no"})
    says = "^the recording was read, but its file may still be on the server: no$"
    with pytest.warns(UserWarning, match=says), capture(server.address) as cap:
        pass
    assert torch.equal(cap.attention[0].q, QUERIES)


ADDRESSES = {
    "http://localhost:80a": "is not the address",
    "http://localhost:99999": "is not the address",
    "http://localhost:0": "is not the address",
    "http://localhost:-1": "is not the address",
    "http://": "is not the address",
    "http:///v1": "is not the address",
    "http://:8000": "is not the address",
    "http://[::1": "is not the address",
    "http://[::g]": "is not the address",
    "http://a b": "is not the address",
    "http://a\nb": "is not the address",
    "http://a\0b": "is not the address",
    "http://a..b": "is not the address",
    "http://-a": "is not the address",
    "http://a%20b": "is not the address",
    "http://<b>": "is not the address",
    f"http://{'a' * 70}": "is not the address",
    f"http://{'a' * 100_000}": "is not the address",
    "http://user:pass@127.0.0.1:9": "has a name or a password in it",
    "http://user:pass@127.0.0.1:9x": "is not the address",
    "http://user:pa/ss@[::1": "is not the address",
    "http://user:pa/ss?a@host": "is not the address|has a name or a password",
    "http://user:pa/ss#@host:x": "is not the address|has a name or a password",
    "http://127.0.0.1:1?key=pass": "cannot be reached",
    "https://127.0.0.1:1": "cannot be reached",
    "HTTP://127.0.0.1:1": "cannot be reached",
    " http://127.0.0.1:1\n": "cannot be reached",
    "http://[::1]:1": "cannot be reached",
}


@pytest.mark.parametrize("text", ADDRESSES)
def test_an_address_that_is_none_is_refused_without_its_password(text: str) -> None:
    with pytest.raises(ValueError, match=ADDRESSES[text]) as raised, capture(text):
        pass
    told = str(raised.value)
    assert len(told) < 250
    assert "pass" not in told.replace("a password", "")
    assert "pa/ss" not in told


def test_a_secure_line_to_a_server_without_one_is_refused(server: SmallServer) -> None:
    with pytest.raises(ValueError, match=r"no secure line that can be trusted \(|cannot be reached"):
        capture(server.address.replace("http", "https")).__enter__()


def test_a_timeout_is_of_a_server() -> None:
    with pytest.raises(ValueError, match="timeout is for the address of a server: leave it out"):
        capture(torch.nn.Linear(1, 1), timeout=5)
    for seconds in (-1, float("nan"), 10**400):
        with pytest.raises(ValueError, match="timeout is "):
            capture("http://localhost:8000", timeout=seconds)
    with pytest.raises(ValueError, match="cannot be reached"):
        capture("http://127.0.0.1:1", timeout=1e300 / 1e270).__enter__()


JUNK: list[Any] = [None, True, -1, 10**17, "", [], {}, [None], {"a": None}, "é" * 5000]


def test_no_field_of_any_kind_ends_in_anything_but_a_sentence(server: SmallServer, tmp_path: Path) -> None:
    said = []
    for of, good in (("begin", BEGUN), ("end", far()), ("fetch", piece(FILE)), ("forget", {})):
        for junk in JUNK:
            for answer in (junk, [junk], *([changed(field, junk, good)] for field in good)):
                server.reply = flow(**{of: answer if isinstance(answer, list) else [answer]})
                with warnings.catch_warnings(), contextlib.ExitStack() as stack:
                    warnings.simplefilter("ignore")
                    try:
                        cap = stack.enter_context(capture(server.address, strict=False))
                        stack.close()
                    except ValueError as error:
                        said.append(str(error))
                    else:
                        said.append("" if cap.requests in ([], ["r"]) else "wrong" * 100)
    assert max(map(len, said)) < 450
    assert list(tmp_path.iterdir()) == []
