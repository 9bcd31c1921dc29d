"""The notebook's side of a capture of an engine: it begins and ends the recording, and reads the workers' files."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..._parallel import saved_tensors
from ..files.capture_file import LoadedCapture, LoadedRecord
from ..modules.advice import incomplete
from . import answers
from .command import ROWS, as_json, command
from .engine_calls import NO_FUNCTION, EngineCalls
from .worker_files import Ask, Asking, copy_files, own_file, read_files

NOT_SERVED = "{} cannot be chosen for an engine that serves: leave it out"
NOTHING = "no request was recorded: call llm.generate, llm.chat or the server inside the block, and let it end there"
NONE_WANTED = "no request was recorded: requests={!r} wants none of those that ran, such as {!r}"
FAR = "the files are on the server, as {}: copy them, and read them with Capture.load"
NOT_FORGOTTEN = "the recording was read, but its file may still be on the server: {}"
SHOWN = 1000  # characters of the names of files
LEFT_OUT = {
    "cross": None,
    "gradients": False,
    "sources": False,
    "clone": True,
    "device": None,
    "last": None,
    "every": None,
}


class ServedRecorder:
    """Records the requests of an engine that serves, and holds their attention once its block has ended.

    Attributes:
        forwards: the records of each request.
        requests: the name of each, as its user gave it.
        skipped: what cannot be shown: the reason by module or by request.
        files: of the workers, if they stay in a folder.

    Args:
        engine: the line to the workers.
        given: the options of `capture` as given, checked.
        strict: whether to raise if nothing was recorded.
        tokenizer: given by the user; None: the engine's.
        requests: which requests: a function, ids or patterns; None: all.

    Raises:
        TypeError, ValueError: an option is not for an engine.
    """

    texts = None

    def __init__(
        self, engine: EngineCalls, given: Mapping[str, Any], *, strict: bool, tokenizer: Any, requests: Any
    ) -> None:
        self._engine, self._strict = engine, strict
        self._wants: bytes | None = None
        self._names: tuple[str, ...] | None = None
        self._read_requests(requests)
        self._given_requests = requests
        self._options = as_json(**given, requests=self._names)
        self.tokenizer = engine.tokenizer if tokenizer is None else tokenizer
        self.forwards: list[dict[str, LoadedRecord]] = []
        self.requests: list[str] = []
        self.skipped: dict[str, str] = {}
        self.files: list[str] = []
        self._session: str | None = None
        self._workers = 0  # that have begun
        self._depth = 0
        self._watching = contextlib.ExitStack()
        self._others: list[str] = []  # requests that ran and were not wanted

    def _read_requests(self, requests: Any) -> None:
        if requests is None:
            return
        if callable(requests):
            if not self._engine.takes_code:
                raise ValueError(NO_FUNCTION)
            self._wants = _as_bytes(requests)
            return
        names = [requests] if isinstance(requests, str) else requests
        if not isinstance(names, Sequence) or not names or not all(isinstance(one, str) for one in names):
            raise TypeError(
                f"requests is {requests!r}: give a function of a request, or ids of requests or patterns of ids, such "
                "as 'chat-*'"
            )
        self._names = tuple(names)

    @property
    def is_far(self) -> bool:
        """Whether the engine is a server, reached by its address."""
        return self._engine.is_far

    @property
    def open_blocks(self) -> int:
        """The number of nested open blocks."""
        return self._depth

    # The block.

    def begin(self) -> None:
        """Begin to record in all workers."""
        self._run(self._beginning())

    async def abegin(self) -> None:
        """Do the same from a running loop."""
        await self._arun(self._beginning())

    def stop(self) -> None:
        """End the recording, and read what the workers have kept, when the outermost block ends."""
        self._run(self._ending())

    async def astop(self) -> None:
        """Do the same from a running loop."""
        await self._arun(self._ending())

    def settle(self) -> None:
        """Tell what is missing."""
        if self._depth:
            return
        lines = incomplete(self.skipped, sum(map(len, self.forwards)))
        if lines and self.forwards:
            warnings.warn("\n".join((*lines, "cap.skipped has each with its reason.")), stacklevel=4)

    def check(self) -> None:
        """Refuse if there is nothing to show."""
        if self._depth or self.forwards or self.files:
            return
        if self.skipped:
            name, why = next(iter(self.skipped.items()))
            told = f"nothing of {len(self.skipped)} can be shown; the first is {name!r}: {why}"
        else:
            told = NONE_WANTED.format(self._given_requests, self._others[0]) if self._others else NOTHING
        if self._strict:
            raise ValueError(told)
        warnings.warn(told, stacklevel=4)

    def _run(self, asking: Asking) -> None:
        with contextlib.suppress(StopIteration):
            ask = next(asking)
            while True:
                ask = asking.send(self._engine.call(ask))

    async def _arun(self, asking: Asking) -> None:
        with contextlib.suppress(StopIteration):
            ask = next(asking)
            while True:
                ask = asking.send(await self._engine.acall(ask))

    def _beginning(self) -> Asking:
        if self._depth:
            self._depth += 1
            return
        session = secrets.token_hex(6)
        found = answers.of_workers((yield Ask(command("begin", session, options=self._options), self._wants)))
        skipped = [answers.skipped_of(one) for one in found]
        self._session, self._depth, self._workers = session, 1, len(found)
        for one in skipped:
            self.skipped.update(one)
        self._watching.enter_context(self._engine.watching())

    def _ending(self) -> Asking:
        self._depth -= 1
        session = self._session
        if self._depth or session is None:
            return
        self._session = None
        self._watching.close()
        found = yield Ask(command("end", session, answers=self._engine.answers()))
        told = [answers.ended_of(one) for one in answers.of_workers(found, self._workers)]
        for one in told:
            self.skipped.update(one.skipped)
        self._others = told[0].others
        if not any(one.size for one in told):
            return
        folder = self._options["folder"]
        paths = [own_file(one, session, folder) for one in told if one.size]
        with tempfile.TemporaryDirectory() as copies:
            own = [path for path in paths if path is not None]
            if len(own) < len(paths):
                if folder is not None:
                    self.files += [one.path for one in told if one.path]
                    warnings.warn(FAR.format(" and ".join(self.files)[:SHOWN]), stacklevel=6)
                    return
                own = yield from copy_files(session, told, Path(copies))
            self._take(read_files(own))
        if folder is not None:
            self.files += [str(path) for path in own]
            return
        for path in own:
            saved_tensors.forget(path)
        try:
            answers.of_workers((yield Ask(command("forget", session))), self._workers)
        except ValueError as error:  # nothing is lost by it
            warnings.warn(NOT_FORGOTTEN.format(error), stacklevel=6)

    def _take(self, found: LoadedCapture) -> None:
        """Add the requests of a block."""
        self.forwards += found.forwards
        self.requests += found.requests


def _as_bytes(function: Callable[..., Any]) -> bytes:
    import cloudpickle

    return bytes(cloudpickle.dumps(function))


def find_request(name: str, requests: Sequence[str]) -> int:
    """Return the number of a request by its name, or by a part of it that no other has.

    Raises:
        KeyError: there is no such request, or several have it.

    >>> find_request("9c", ["cmpl-77-0", "cmpl-9c-0"])
    1
    """
    found = [i for i, one in enumerate(requests) if one == name] or [i for i, one in enumerate(requests) if name in one]
    if len(found) == 1:
        return found[0]
    there = ", ".join(map(repr, requests[:8])) + (", …" if len(requests) > 8 else "")
    told = f"{len(found)} requests have" if found else "no request has"
    raise KeyError(f"{told} {name!r}: there are {there}")


def rows_of_text(given: Mapping[str, Any]) -> str | None:
    """Return `queries` if it is "prompt" or "answer"; refuse options that an engine cannot take.

    Raises:
        ValueError: an option is for models in this process only.
    """
    for name, default in LEFT_OUT.items():
        if given[name] is not default and given[name] != default:
            raise ValueError(NOT_SERVED.format(f"{name}={given[name]!r}"))
    queries = given["queries"]
    return queries if isinstance(queries, str) and queries in ROWS else None
