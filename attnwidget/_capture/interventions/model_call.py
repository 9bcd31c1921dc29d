"""A forward pass that can be repeated, also for several copies of one sample."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..._utils.validation import told
from ..modules.module_walk import device_of
from ..session.callers import module_of
from ..text.labels import can_spell

IDS = ("decoder_input_ids", "input_ids")  # if both are given, the output has the positions of the first
MASKS = {"input_ids": "attention_mask", "decoder_input_ids": "decoder_attention_mask"}
PER_SAMPLE = {  # arguments with samples on the first axis that are independent of each other
    *("input_ids", "attention_mask", "token_type_ids", "decoder_input_ids", "decoder_attention_mask", "inputs_embeds"),
    *("labels", "pixel_values", "input_values", "input_features", "position_ids"),
}
CACHES = ("past_key_values", "cache", "past", "encoder_cache")


@dataclass(frozen=True)
class RepeatableCall:
    """A forward pass that can be repeated.

    Attributes:
        model: the model.
        args, kwargs: the arguments of the call.
        function: runs the model instead of a call, if the user gave one.
        tokenizer: decodes the ids; None if there is none.
        batches: the number of samples; None if unknown.
        lean: whether arguments that save memory may be added; they change no numbers.
    """

    model: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = None  # type: ignore[assignment]
    function: Callable[[], Any] | None = None
    tokenizer: Any = None
    batches: int | None = None
    lean: bool = True

    def __call__(self, **more: Any) -> Any:
        """Run the model without gradients.

        Args:
            more: additional keyword arguments.
        """
        with torch.inference_mode(False), torch.no_grad():
            if self.function is not None:
                return self.function()
            saving = {"use_cache": False} if self.lean and self.takes("use_cache") else {}
            return self.model(*self.args, **{**saving, **self.kwargs, **more})

    @property
    def ids(self) -> Tensor | None:
        """The ids (B, n) of the text whose positions the output has; None if unknown."""
        return next((self.kwargs[name] for name in IDS if isinstance(self.kwargs.get(name), Tensor)), self._own_ids)

    @property
    def _own_ids(self) -> Tensor | None:
        found = self.args[0] if self.args else None
        is_ids = isinstance(found, Tensor) and found.dtype in (torch.int64, torch.int32) and found.ndim == 2
        return found if is_ids else None

    def real(self, batch: int) -> Tensor | None:
        """Return which positions of a sample are not padding (n,); None if there is no mask."""
        name = next((name for name in IDS if isinstance(self.kwargs.get(name), Tensor)), None)
        mask = None if name is None else self.kwargs.get(MASKS[name])
        return mask[batch] != 0 if isinstance(mask, Tensor) and mask.ndim == 2 else None

    def text(self, batch: int, length: int) -> tuple[Tensor | None, Tensor | None]:
        """Return the ids (n,) of a sample's only text of this length and where it is not padding; None if unknown."""
        found = {name: x for name in IDS if isinstance(x := self.kwargs.get(name), Tensor) and x.shape[-1] == length}
        if not found and self._own_ids is not None and self._own_ids.shape[1] == length:
            return self._own_ids[batch], None
        if len(found) != 1:
            return None, None
        ((name, ids),) = found.items()
        mask = self.kwargs.get(MASKS[name])
        fits = isinstance(mask, Tensor) and mask.shape == ids.shape
        return ids[batch], mask[batch] != 0 if fits and isinstance(mask, Tensor) else None

    @property
    def can_repeat(self) -> bool:
        """Whether the call can be made with several copies of one sample."""
        if self.function is not None or self.batches is None:
            return False
        if self.args:
            return len(self.args) == 1 and self._own_ids is not None and self._plain(self.kwargs)
        return self._plain(self.kwargs)

    def _plain(self, kwargs: Mapping[str, Any]) -> bool:
        tensors = {name: x for name, x in kwargs.items() if isinstance(x, Tensor) and x.ndim}
        fits = all(name in PER_SAMPLE and x.shape[0] in (1, self.batches) for name, x in tensors.items())
        plain = all(isinstance(x, Tensor | bool | int | float | str | None) for x in kwargs.values())
        return fits and plain and ("pixel_values" not in tensors or tensors["pixel_values"].ndim == 4)

    def copies(self, batch: int, count: int) -> RepeatableCall:
        """Return the call with `count` copies of one sample; the call itself if it cannot be split."""
        if not self.can_repeat:
            return self

        def taken(x: Any) -> Any:
            if not isinstance(x, Tensor) or not x.ndim:
                return x
            one = x[batch : batch + 1] if x.shape[0] == self.batches else x
            return one.expand(count, *one.shape[1:]).contiguous() if count > 1 else one

        kwargs = {name: taken(x) for name, x in self.kwargs.items()}
        return replace(self, args=tuple(map(taken, self.args)), kwargs=kwargs, batches=count)

    def takes(self, name: str) -> bool:
        """Return whether the model's forward has this argument."""
        try:
            return self.function is None and name in inspect.signature(self.model.forward).parameters
        except (TypeError, ValueError):
            return False


def read_call(model: Any, inputs: Any, tokenizer: Any = None) -> RepeatableCall:
    """Read the forward pass that a user gives.

    Args:
        model: an `nn.Module`, or an object that has one as `.model`, such as a pipeline.
        inputs: the model's keyword arguments; a text or a list of texts, with a tokenizer; ids (n,) or (B, n), or
            another tensor as the first argument; a tuple of arguments; or a function without arguments that runs the
            model and returns its output.
        tokenizer: None uses the model's own, if it has one.

    Raises:
        TypeError, ValueError: the model or inputs are invalid; inputs hold a cache; the model is in training mode.
    """
    module = module_of(model)
    if module is None:
        raise TypeError(f"model is {told(model)}: give an nn.Module")
    tokenizer = tokenizer if tokenizer is not None else getattr(model, "tokenizer", None)
    _refuse_training(module)
    if callable(inputs) and not isinstance(inputs, Tensor | Mapping) and not hasattr(inputs, "keys"):
        return RepeatableCall(module, (), {}, inputs, tokenizer)
    args, kwargs = _arguments(inputs, tokenizer, module)
    return _of(RepeatableCall(module, args, kwargs, None, tokenizer))


def call_again(model: nn.Module, inputs: tuple[tuple[Any, ...], dict[str, Any]], tokenizer: Any) -> RepeatableCall:
    """Return an earlier call so that it can be repeated exactly.

    Raises:
        ValueError: it had a cache, which it has changed; or the model is in training mode.
    """
    _refuse_training(model)
    return replace(_of(RepeatableCall(model, *inputs, None, tokenizer)), lean=False)


def _of(call: RepeatableCall) -> RepeatableCall:
    """Return a call with its number of samples; raise ValueError if it holds a cache."""
    kwargs = call.kwargs
    cache = next((name for name in CACHES if kwargs.get(name) is not None), None)
    if cache is not None:
        raise ValueError(f"inputs hold a cache, {cache}, which every run would change: give the whole text instead")
    ids = call.ids
    named = [x.shape[0] for name, x in kwargs.items() if name in PER_SAMPLE and isinstance(x, Tensor) and x.ndim]
    return replace(call, batches=int(ids.shape[0]) if ids is not None else next(iter(named), None))


def _refuse_training(module: nn.Module) -> None:
    if module.training:
        raise ValueError("the model is in training mode, where dropout makes runs differ: call model.eval() first")


def _arguments(inputs: Any, tokenizer: Any, module: nn.Module) -> tuple[tuple[Any, ...], dict[str, Any]]:
    device = device_of(module)
    if isinstance(inputs, str) or (isinstance(inputs, list) and inputs and all(isinstance(x, str) for x in inputs)):
        inputs = _tokenized(inputs, tokenizer)
    if isinstance(inputs, Mapping) or hasattr(inputs, "keys"):
        return (), {name: x.to(device) if isinstance(x, Tensor) else x for name, x in dict(inputs).items()}
    if isinstance(inputs, tuple):
        return tuple(x.to(device) if isinstance(x, Tensor) else x for x in inputs), {}
    try:
        ids = torch.as_tensor(inputs, device=device)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"inputs are {told(inputs)}: give the model's keyword arguments, such as tokenizer(text, "
            'return_tensors="pt") or cap.inputs, a text, or ids'
        ) from None
    return (ids[None] if ids.ndim == 1 and not ids.is_floating_point() else ids,), {}


def _tokenized(texts: Any, tokenizer: Any) -> Any:
    if not can_spell(tokenizer):
        raise ValueError(f"inputs are a text, {told(texts)}: give its tokenizer too, as tokenizer=, or give ids")
    if callable(tokenizer):
        several = {"padding": True} if not isinstance(texts, str) and len(texts) > 1 else {}
        return tokenizer(texts, return_tensors="pt", **several)
    if not isinstance(texts, str):
        raise ValueError(f"inputs are {len(texts)} texts: this tokenizer takes one, so give one text, or ids")
    found = tokenizer.encode(texts)
    return list(getattr(found, "ids", found))
