"""Why a text was left out, in words: what was wrong, what to do, and otherwise where the error came from."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

OURS = Path(__file__).parents[1]
REFUSALS = (TypeError, ValueError)  # that this package raises, with a sentence
LONGEST = 300  # characters
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")  # in a configuration


class _WrongIndex(Exception):
    """An index that an embedding does not have."""


def reason_of(error: Exception, module: nn.Module | None = None, inputs: Any = None) -> str:
    """Return why a text was left out.

    Args:
        error: was raised when the text was read, run or measured.
        module: the model, if it ran.
        inputs: its arguments.
    """
    frames = [one for one in traceback.walk_tb(error.__traceback__) if one[0].f_code.co_name != "__torch_function__"]
    within = None if module is None else _innermost(frames, module)
    is_ours = bool(frames) and OURS in Path(frames[-1][0].f_code.co_filename).parents
    words = " ".join(str(error).split())
    if is_ours and isinstance(error, REFUSALS):
        return _short(words or type(error).__name__)
    if module is not None and within is not None:
        known = _wrong_index(module, inputs)
        return _short(known or f"{_length_of(module, inputs)}the model raised {_named(error)} in {within}: {words}")
    place = "" if not frames else f" in {_line_of(*frames[-1])}"
    by = "attnwidget" if is_ours else "a function"
    return _short(f"{by} raised {_named(error)}{place}: {words}")


def _named(error: Exception) -> str:
    return type(error).__name__


def _short(words: str) -> str:
    return words if len(words) <= LONGEST else f"{words[: LONGEST - 1]}…"


def _line_of(frame: FrameType, line: int) -> str:
    return f"{frame.f_code.co_name}, {Path(frame.f_code.co_filename).name}:{line}"


def _innermost(frames: list[tuple[FrameType, int]], module: nn.Module) -> str | None:
    """Return the innermost module of a model whose code was running; None if none was."""
    names = {id(one): name for name, one in module.named_modules()}
    found = None
    for frame, line in frames:
        code = frame.f_code
        own = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if isinstance(own, nn.Module) and id(own) in names and not code.co_filename.endswith("nn/modules/module.py"):
            name = names[id(own)]
            found = f"{name or type(own).__name__} ({_line_of(frame, line)})"
    return found


def _ids_of(inputs: Any) -> Tensor | None:
    ids = inputs.get("input_ids") if isinstance(inputs, Mapping) else inputs
    return ids if isinstance(ids, Tensor) and ids.ndim == 2 and not ids.is_floating_point() else None


def _length_of(module: nn.Module, inputs: Any) -> str:
    """Return in words how many tokens a text has, and the positions of the model's configuration if these are fewer."""
    ids, config = _ids_of(inputs), getattr(module, "config", None)
    if ids is None:
        return ""
    limits = {name: most for name in POSITIONS if type(most := getattr(config, name, None)) is int}
    fewer = next(
        (f", and the model's configuration {most:,} ({name})" for name, most in limits.items() if most < ids.shape[1]),
        "",
    )
    return f"the text has {ids.shape[1]:,} tokens{fewer}; "


def _wrong_index(module: nn.Module, inputs: Any) -> str | None:
    """Run a model again until an embedding gets an index that it does not have; return this in words, or None."""
    names = {id(one): name for name, one in module.named_modules()}
    ids = _ids_of(inputs)

    def look(layer: nn.Module, args: tuple[Any, ...]) -> None:
        given = args[0] if args else None
        size = layer.num_embeddings
        if not isinstance(size, int) or not isinstance(given, Tensor) or given.is_floating_point() or not given.numel():
            return
        wrong = ((given < 0) | (given >= size)).flatten().nonzero()
        if len(wrong):
            raise _WrongIndex(_words_of(names[id(layer)], size, given.flatten(), int(wrong[0]), ids))

    with contextlib.ExitStack() as stack:
        for one in module.modules():
            if isinstance(one, nn.Embedding):
                stack.callback(one.register_forward_pre_hook(look).remove)
        try:
            with torch.no_grad():
                module(**inputs) if isinstance(inputs, Mapping) else module(inputs)
        except _WrongIndex as found:
            return str(found)
        except Exception:  # it is the error that is known already
            return None
    return None


def _words_of(name: str, size: int, given: Tensor, at: int, ids: Tensor | None) -> str:
    """Return in words that an embedding of some size was given an index that it does not have."""
    index = int(given[at])
    if ids is not None and torch.equal(given, ids.flatten()):
        return (
            f"position {at:,} has the token id {index:,}, and the model's vocabulary has {size:,} tokens ({name}): "
            "make ids with the model's own tokenizer"
        )
    tokens = ids.shape[1] if ids is not None else len(given)
    if len(given) == tokens and bool((given.diff() == 1).all()):
        return (
            f"the text has {tokens:,} tokens, and the model has {size:,} positions ({name}): give a shorter text, or "
            "parts of it as texts of their own"
        )
    return f"{name} was given the index {index:,}, and has {size:,} rows: give other arguments of the model"
