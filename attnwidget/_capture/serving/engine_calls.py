"""The notebook's line to an engine: an `LLM` or an `AsyncLLM` of vLLM, or a server's address."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from ..._utils.validation import as_positive
from . import vllm_names
from .server_calls import (
    NOT_VLLM,
    START,
    TIMEOUT,
    AnswerError,
    OtherServerError,
    ServerAddress,
    StatusError,
    post,
    read_json,
)
from .worker import answer
from .worker_files import Ask

EXTENSION = "attnwidget.serving.Extension"
METHOD = "attnwidget_answer"
ADD_EXTENSION = f'start the engine with worker_extension_cls="{EXTENSION}"'
WATCHED = "_attnwidget_answers"  # the attribute of an engine's output processor with the answers of open captures
ENDPOINT = "/collective_rpc"
LONGEST = 1e6  # seconds that may be waited for an answer
SECRET = 8  # letters of a key at least, if it is one: servers without a key take any, such as "EMPTY"
NO_FUNCTION = (
    "requests is a function, and a server's endpoint takes no code: give ids of requests, or patterns such as 'chat-*'"
)
ASYNC = "an AsyncLLM answers within its own loop: write async with capture(engine) as cap:"
SEVERAL_ENGINES = "{} engines share the requests (data parallelism), which is not read: capture one engine at a time"


class EngineCalls(Protocol):
    """A line to all workers of an engine."""

    is_async: bool
    is_far: bool
    takes_code: bool
    tokenizer: Any

    def call(self, ask: Ask) -> Any:
        """Carry a command out in each worker, and return their answers, unchecked."""

    async def acall(self, ask: Ask) -> Any:
        """Do the same from a running loop."""

    def answers(self) -> dict[str, list[int]] | None:
        """Return the tokens that the engine has answered with, by request; None if they are not seen here."""

    def watching(self) -> Any:
        """Return a context in which these are seen."""


class _Answers:
    """The answers of an engine in this process or beside it."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._known: dict[str, list[int]] = {}
        self._sees = True

    def answers(self) -> dict[str, list[int]] | None:
        return self._known if self._sees else None

    @contextmanager
    def watching(self) -> Iterator[None]:
        processor = getattr(self._engine, "output_processor", None)
        inner = getattr(processor, "process_outputs", None)
        if processor is None or inner is None or not hasattr(processor, "request_states"):
            self._sees = False
            yield
            return

        watching: list[dict[str, list[int]]] = vars(processor).setdefault(WATCHED, [])

        def process_outputs(outputs: Sequence[Any], *more: Any, **keywords: Any) -> Any:
            for known in watching:
                vllm_names.finished_ids(processor, outputs, known)
            return inner(outputs, *more, **keywords)

        if not watching:
            processor.process_outputs = process_outputs
        watching.append(self._known)
        try:
            yield
        finally:
            watching[:] = [known for known in watching if known is not self._known]
            if not watching:
                del processor.process_outputs


class EngineOfProcess(_Answers):
    """An engine of vLLM that this process has made.

    Args:
        model: an `LLM`, `LLMEngine` or `AsyncLLM`.

    Raises:
        ValueError: its workers have no extension, or several engines share its requests.
    """

    is_far = False
    takes_code = True

    def __init__(self, model: Any) -> None:
        engine = vllm_names.engine_of(model)
        super().__init__(engine)
        self.tokenizer = vllm_names.tokenizer_of(model)
        self.is_async = inspect.iscoroutinefunction(engine.collective_rpc)
        size = vllm_names.data_parallel_size(engine)
        if size > 1:
            raise ValueError(SEVERAL_ENGINES.format(size))
        self._method: Any = METHOD
        if not vllm_names.extension_of(engine):
            if not vllm_names.in_this_process(engine):
                raise ValueError(f"the engine runs in a process of its own: {ADD_EXTENSION}")
            self._method = answer

    def call(self, ask: Ask) -> Any:
        if self.is_async:
            raise ValueError(ASYNC)
        try:
            return list(self._engine.collective_rpc(self._method, args=(ask.told, ask.wants)))
        except Exception as error:
            raise ValueError(self._unanswered(error)) from error

    async def acall(self, ask: Ask) -> Any:
        if not self.is_async:
            return self.call(ask)
        try:
            return list(await self._engine.collective_rpc(self._method, args=(ask.told, ask.wants)))
        except Exception as error:
            raise ValueError(self._unanswered(error)) from error

    def _unanswered(self, error: Exception) -> str:
        own = vllm_names.extension_of(self._engine)
        told = f"the workers did not answer ({str(error)[:200]})"
        return f"{told}: {own} must inherit from {EXTENSION}" if own not in ("", EXTENSION) else told


class EngineOfServer:
    """A server of vLLM, reached by its endpoint for developers.

    Args:
        address: such as "http://localhost:8000".
        key: of the server, if it wants one; it goes to this address alone, and is in no error.
        timeout: seconds for a whole answer; None: ten minutes.

    Raises:
        ValueError: this is not an address, or no key.
    """

    is_async = False
    is_far = True
    takes_code = False
    tokenizer: Any = None

    def __init__(self, address: str, key: str | None = None, timeout: float | None = None) -> None:
        self._address = ServerAddress.of(address)
        self._key = (key or os.environ.get("VLLM_API_KEY") or "").strip()
        if not (self._key.isascii() and self._key.isprintable()):
            raise ValueError(f"the key for {self._address} has characters that no header can have: check VLLM_API_KEY")
        self._seconds = TIMEOUT if timeout is None else min(as_positive(timeout, "timeout"), LONGEST)

    def call(self, ask: Ask) -> Any:
        body = json.dumps({"method": METHOD, "args": [ask.told], "timeout": self._seconds}).encode()
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        try:
            text = post(self._address, ENDPOINT, body, headers, most=ask.most, seconds=self._seconds)
            found = read_json(text)
            if "results" not in found:
                raise OtherServerError(NOT_VLLM)
        except StatusError as error:
            raise ValueError(self._refused(error)) from None
        except AnswerError as error:
            raise ValueError(f"{self._address} {error}") from None
        results = found["results"]
        return [_without_key(one, self._key) for one in results] if isinstance(results, list) else results

    async def acall(self, ask: Ask) -> Any:
        return await asyncio.to_thread(self.call, ask)

    def _refused(self, error: StatusError) -> str:
        code = error.code
        if 300 <= code < 400:
            place = _hide(error.elsewhere or "another place", self._key)[:100]
            return (
                f"{self._address} redirects to {place!r}, which is not followed: give the address of the server itself"
            )
        if code == 404:
            return f"{self._address} has no endpoint for developers: start it with {START}"
        if code in (401, 403):
            return f"{self._address} wants a key: set VLLM_API_KEY, or give the client of openai that has it"
        return f"the workers of {self._address} do not answer (HTTP {code}): start it with {START}"

    def answers(self) -> dict[str, list[int]] | None:
        return None

    @contextmanager
    def watching(self) -> Iterator[None]:
        yield


def _without_key(answer: Any, key: str) -> Any:
    """Return an answer whose words do not repeat the key, which the server knows: they are shown, and saved."""
    if not isinstance(answer, dict):
        return answer
    found = {name: _hide(value, key) if name == "error" else value for name, value in answer.items()}
    if isinstance(found.get("skipped"), dict):
        found["skipped"] = {name: _hide(why, key) for name, why in found["skipped"].items()}
    return found


def _hide(text: Any, key: str) -> Any:
    return text.replace(key, "…") if isinstance(text, str) and len(key) >= SECRET else text


def engine_calls(model: Any, timeout: float | None = None) -> EngineCalls | None:
    """Return the line to an engine: of vLLM, by its address, or by a client of openai; None for anything else.

    Args:
        model: any.
        timeout: seconds for an answer of a server; None: ten minutes.

    Raises:
        ValueError: it cannot be recorded.
    """
    if isinstance(model, str):
        return EngineOfServer(model, None, timeout) if re.match(r"\s*https?://", model, re.IGNORECASE) else None
    if type(model).__module__.partition(".")[0] == "openai" and hasattr(model, "base_url"):
        key = getattr(model, "api_key", None)
        return EngineOfServer(str(model.base_url), key if isinstance(key, str) else None, timeout)
    if isinstance(model, type) or vllm_names.engine_of(model) is None:
        return None
    return EngineOfProcess(model)
