"""What a worker of an engine does for captures: while one is open, it wraps the calls of the attention layers."""

from __future__ import annotations

import base64
import functools
import json
import secrets
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..call.observed_call import Unreadable
from ..distributed.head_shards import process_of
from ..files import capture_file
from .command import ServedOptions, options_of
from .served_steps import StepRecorder
from .served_texts import texts_of
from .vllm_names import TRIED, refusal, version

CHUNK = 16 << 20  # bytes of all workers' files that are sent at once
SERVED = "_attnwidget_served"  # the attribute of a worker that holds its recorders
NO_SESSION = "this recording is not known to the worker: the engine was started anew, or `serving.release` ended it"
FAILED = "recording failed inside the engine, which went on: {}: {}"


class Session(NamedTuple):
    """A recording that is open, and the file that it has written once it is closed."""

    recorder: StepRecorder
    options: ServedOptions


class ServedWorker:
    """The recorders of a worker, and the functions that they have wrapped."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._sessions: dict[str, Session] = {}
        self._files: dict[str, Path] = {}
        self._unwrap: list[Callable[[], None]] = []

    @classmethod
    def of(cls, worker: Any) -> ServedWorker:
        """Return the recorders of a worker."""
        found = vars(worker).get(SERVED)
        if found is None:
            found = cls(worker)
            setattr(worker, SERVED, found)
        return found

    def answer(self, told: Mapping[str, Any], wants: bytes | None) -> dict[str, Any]:
        """Carry a command out, and return the answer as JSON.

        Args:
            told: the command, as `command.command` wrote it.
            wants: a function of a request as bytes, which only the process that made the engine can send.
        """
        do, session = told["do"], told["session"]
        if do == "begin":
            return self._begin(session, options_of(told["options"]), wants)
        if do == "end":
            return self._end(session, told.get("answers"))
        if do == "fetch":
            return self._fetch(session, int(told["start"]))
        if do == "forget":
            return self._forget(session)
        return self._release()

    def _begin(self, session: str, options: ServedOptions, wants: bytes | None) -> dict[str, Any]:
        why = refusal(self._worker)
        if why is not None:
            return {"error": why}
        chosen = None
        if wants is not None:
            import cloudpickle

            chosen = cloudpickle.loads(wants)
        recorder = StepRecorder(self._worker, options, chosen)
        missing = recorder.missing_layer()
        if missing is not None:
            return {"error": missing}
        if not self._sessions:
            self._wrap(recorder)
        self._sessions[session] = Session(recorder, options)
        return {"layers": [*recorder.layers], "skipped": recorder.skipped, "version": version(), "tried": TRIED}

    def _end(self, session: str, answers: Mapping[str, list[int]] | None) -> dict[str, Any]:
        found = self._sessions.pop(session, None)
        self._unwrap_unused()
        if found is None:
            return {"error": NO_SESSION}
        recorder, options = found
        if recorder.failed is not None:
            return {"error": recorder.failed}
        with torch.inference_mode(False), torch.no_grad():
            forwards, skipped = texts_of(recorder, answers, options)
        told = {"path": None, "size": 0, "skipped": skipped, "others": recorder.others}
        if not forwards:
            return told
        path = self._path(session, options.folder)
        towers = list(dict.fromkeys(name for records in forwards.values() for name in records))
        capture_file.save([*forwards.values()], skipped, path, towers=towers, requests=[*forwards])
        self._files[session] = path
        return {**told, "path": str(path), "size": path.stat().st_size}

    def _path(self, session: str, folder: str | None) -> Path:
        """Return the path of this worker's file."""
        process = process_of()
        rank = "" if process is None else f"-{process[0]}"
        if folder is None:
            return (
                Path(tempfile.gettempdir()).absolute()
                / f"attnwidget-{session}{rank}-{secrets.token_hex(4)}.safetensors"
            )
        place = Path(folder).absolute()
        place.mkdir(parents=True, exist_ok=True)
        return place / f"{session}{rank}.safetensors"

    def _fetch(self, session: str, start: int) -> dict[str, Any]:
        """Return some bytes of a file as text: less than of a single worker if each of several sends some."""
        path = self._files.get(session)
        if path is None:
            return {"error": NO_SESSION}
        with path.open("rb") as file:
            file.seek(start)
            piece = file.read(CHUNK // (process_of() or (0, 1))[1])
            return {"bytes": base64.b64encode(piece).decode()}

    def _forget(self, session: str) -> dict[str, Any]:
        """Remove a file that has been read."""
        path = self._files.pop(session, None)
        if path is not None:
            path.unlink(missing_ok=True)
        return {}

    def _release(self) -> dict[str, Any]:
        """End all recordings, and remove their files."""
        ended = [*self._sessions]
        self._sessions.clear()
        self._unwrap_unused()
        for session in [*self._files]:
            self._forget(session)
        return {"ended": ended}

    # The wrapped functions.

    def _each(self, do: Callable[[StepRecorder], None]) -> None:
        """Do something with each recorder; one that fails records nothing more, and the engine goes on."""
        for session in [*self._sessions.values()]:
            recorder = session.recorder
            if recorder.failed is not None:
                continue
            try:
                do(recorder)
            except Exception as error:  # whatever it is: serving must not end because of it
                recorder.failed = FAILED.format(type(error).__name__, error)

    def _wrap(self, recorder: StepRecorder) -> None:
        """Wrap the runner's step, and the call of each attention layer that is read."""
        runner = self._worker.model_runner
        self._wrap_one(runner, "execute_model", self._step)
        if callable(getattr(runner, "prepare_inputs", None)):
            self._wrap_one(runner, "prepare_inputs", self._prepared)
        for name, layer in recorder.readable.items():
            self._wrap_one(layer.module.impl, "forward", functools.partial(self._call, name))

    def _wrap_one(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        inner = getattr(owner, name)
        had_own = name in vars(owner)

        @functools.wraps(inner)
        def wrapped(*arguments: Any, **keywords: Any) -> Any:
            return wrapper(inner, *arguments, **keywords)

        def unwrap() -> None:
            if had_own:
                setattr(owner, name, inner)
            else:
                delattr(owner, name)

        setattr(owner, name, wrapped)
        self._unwrap.append(unwrap)

    def _unwrap_unused(self) -> None:
        if self._sessions:
            return
        for unwrap in reversed(self._unwrap):
            unwrap()
        self._unwrap.clear()

    def _step(self, inner: Callable[..., Any], scheduled: Any, *more: Any, **keywords: Any) -> Any:
        self._each(lambda recorder: recorder.begin_step(scheduled))
        try:
            return inner(scheduled, *more, **keywords)
        finally:
            self._each(StepRecorder.end_step)

    def _prepared(self, inner: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        batch = inner(*arguments, **keywords)
        self._each(lambda recorder: recorder.take_batch(batch))
        return batch

    def _call(
        self,
        name: str,
        inner: Callable[..., Any],
        layer: Any,
        query: Any,
        key: Any,
        value: Any,
        cache: Any,
        metadata: Any,
        *more: Any,
        **keywords: Any,
    ) -> Any:
        found = inner(layer, query, key, value, cache, metadata, *more, **keywords)
        output = more[0] if more else keywords["output"]
        self._each(lambda recorder: recorder.record(name, (query, key, value), cache, metadata, output))
        return found


def answer(worker: Any, told: str, wants: bytes | None = None) -> dict[str, Any]:
    """Carry a command of a capture out in a worker of vLLM, and return its answer.

    Args:
        worker: of the engine.
        told: the command as JSON.
        wants: a function of a request, pickled; from a server's endpoint, which sends text only, it is refused.
    """
    try:
        return ServedWorker.of(worker).answer(json.loads(told), wants if isinstance(wants, bytes) else None)
    except (Unreadable, TypeError, ValueError) as error:
        return {"error": str(error)}
    except Exception as error:  # it would pass through the engine's own channels, and may end it
        return {"error": f"{type(error).__name__}: {error}"}
