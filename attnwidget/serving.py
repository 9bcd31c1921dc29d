"""The side of the engine: what a worker of vLLM must have so that `capture(llm)` can record its attention.

See docs/serving.md. `capture` itself is the same as for any model.
"""

from __future__ import annotations

from typing import Any

__all__ = ["Extension", "release"]


class Extension:
    """Give its name to vLLM, so that `capture` reaches the workers of an engine in a process of its own.

    >>> from attnwidget import serving
    >>> f"{serving.Extension.__module__}.{serving.Extension.__qualname__}"
    'attnwidget.serving.Extension'

    That is the value of `worker_extension_cls` in `LLM(…)`, and of `--worker-extension-cls` in `vllm serve`. Nothing is
    imported or wrapped before a capture begins. A class of your own for this place inherits from it.
    """

    def attnwidget_answer(self, told: str, wants: Any = None) -> dict[str, Any]:
        """Carry a command of `capture` out in this worker, and return its answer.

        Args:
            told: the command, as JSON.
            wants: a function of a request, pickled; None: all requests. Text is not taken for code.
        """
        from ._capture.serving.worker import answer

        return answer(self, told, wants)


def release(model: Any) -> list[str]:
    """End recordings that were left open in an engine, as by a kernel that has died, and free their memory.

    Args:
        model: what `capture` takes: an `LLM` of vLLM, the address of a server, or a client of openai.

    Returns:
        The recordings that were ended.

    Raises:
        ValueError: this is not an engine, or it does not answer.

    >>> release("localhost")
    Traceback (most recent call last):
    ValueError: 'localhost' is not an engine: give an LLM of vLLM, or an address such as 'http://localhost:8000'
    """
    from ._capture.serving.answers import of_workers, sessions_of
    from ._capture.serving.command import command
    from ._capture.serving.engine_calls import engine_calls
    from ._capture.serving.worker_files import Ask

    engine = engine_calls(model)
    if engine is None:
        given = repr(model) if isinstance(model, str) else type(model).__name__
        raise ValueError(
            f"{given} is not an engine: give an LLM of vLLM, or an address such as 'http://localhost:8000'"
        )
    ended = [one for found in of_workers(engine.call(Ask(command("release", "")))) for one in sessions_of(found)]
    return list(dict.fromkeys(ended))
