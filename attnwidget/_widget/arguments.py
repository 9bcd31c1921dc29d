"""What the first arguments of a widget are: q, k and v, weights, what a model returned, or something to be refused.

Weights are taken for weights only where they are plainly so. All else gets the one line to write instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from .._tokens.inputs import is_encoding, is_tokens
from .._utils.validation import FLOATS, as_tensor, kind_of
from ..attention import Attention
from ..stack import AttentionStack, attention_from_weights, attention_of, is_missing
from .stores.named_stacks import Sources
from .traits.keywords import TensorsLike

ATTENTIONS = {  # the fields of what transformers' models return, and what each is called in the widget
    "encoder_attentions": "encoder",
    "attentions": "self-attention",
    "decoder_attentions": "decoder",
    "cross_attentions": "cross-attention",
}
CROSS_OF_TWO = "decoder, cross-attention"  # as a capture calls it, where there is an encoder too
TOWERS = {"text_model_output": "text", "vision_model_output": "vision"}  # of a model of two
CAPTURE = "with capture(model, tokenizer=tokenizer) as cap: model(**inputs); then cap.widget()"
TOLERANCE = torch.finfo(torch.bfloat16).eps  # of the sum of a row: a half type may have rounded it, whatever it is now
ROWS_AT_ONCE = 1 << 24  # cells whose sums are looked at together


class HasAttentions(Protocol):
    """What a model of transformers returns, with `output_attentions=True`."""

    @property
    def attentions(self) -> Any: ...


class HasCrossAttentions(Protocol):
    """What an encoder–decoder of transformers returns, with `output_attentions=True`."""

    @property
    def cross_attentions(self) -> Any: ...


ModelOutput: TypeAlias = HasAttentions | HasCrossAttentions
Shown: TypeAlias = TensorsLike | ModelOutput | Attention | AttentionStack


class Arguments(NamedTuple):
    """The first arguments, read: what is shown, and the keywords of the widget with the tokens among them."""

    attention: Attention | AttentionStack | Sources
    show: dict[str, Any]


def read_arguments(q: Any, k: Any, v: Any, rules: Mapping[str, Any], show: Mapping[str, Any]) -> Arguments:
    """Return what is to be shown.

    Args:
        q, k, v: queries, keys and values; or q alone, or with tokens in the place of k: weights, what a model returned,
            or an attention.
        rules: the keywords about tensors.
        show: the others.

    Raises:
        TypeError, ValueError: what is none of these, with the line to write instead.
    """
    same_axes = getattr(k, "ndim", None) == getattr(q, "ndim", 0)  # tensors of integers are refused as tensors
    if k is not None and (same_axes or not is_tokens(k)):
        if not isinstance(q, str):
            _refuse_what_is_no_tensor(q)
        return Arguments(_of_three(q, k, v, rules), dict(show))
    return Arguments(_alone(q, v, rules), _with_tokens(k, show))


def read_weights(weights: Any, v: Any, dims: str | None, show: Mapping[str, Any]) -> Arguments:
    """Return weights that are known to be weights; tokens may stand in the place of v."""
    tokens, v = (v, None) if is_tokens(v) else (None, v)
    if isinstance(weights, Attention | AttentionStack):
        raise TypeError(f"weights is {kind_of(weights)}: call AttentionWidget.from_attention(weights)")
    _refuse_what_is_no_tensor(weights)
    return Arguments(
        _of_output(weights, v, dims) or attention_from_weights(weights, v, dims), _with_tokens(tokens, show)
    )


def _with_tokens(tokens: Any, show: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of the widget with tokens that were given by position."""
    if tokens is None:
        return dict(show)
    if show.get("tokens") is not None:
        raise TypeError("tokens are given twice, by position and as tokens=: leave one out")
    return {**show, "tokens": tokens}


def _of_three(q: Any, k: Any, v: Any, rules: Mapping[str, Any]) -> Attention | AttentionStack:
    try:
        return attention_of(q, k, v, rules)
    except ValueError as error:
        if _reads_as_weights(q, k, rules.get("dims")):
            hint = "the rows of q sum to 1, so if it holds weights, give AttentionWidget.from_weights(q, v)"
            raise ValueError(f"{error}; {hint}") from None
        raise


def _reads_as_weights(q: Any, k: Any, dims: str | None) -> bool:
    """Return whether q could be weights of the values k: rows that sum to 1, a weight for each position of k."""
    if not isinstance(q, Tensor | np.ndarray) or not hasattr(k, "shape") or len(k.shape) < 2:
        return False
    at = dims.find("q") if dims else -2
    return tuple(q.shape)[-1:] == tuple(k.shape)[at : at + 1 or None] and why_not_weights(as_tensor(q, "q")) is None


# One argument alone.


def _alone(given: Any, v: Any, rules: Mapping[str, Any]) -> Attention | AttentionStack | Sources:
    """Return what one argument is an attention of."""
    if isinstance(given, Attention | AttentionStack):
        _refuse_rules(rules, (), "an attention, which has its own rules")
        return given
    _refuse_what_is_no_tensor(given)
    found = _of_output(given, v, rules.get("dims"))
    if found is None:
        _refuse_unless_weights(given)
        found = attention_from_weights(given, v, rules.get("dims"))
    _refuse_rules(rules, ("dims",), "weights, which are what they are after all rules")
    return found


def _refuse_rules(rules: Mapping[str, Any], taken: tuple[str, ...], what: str) -> None:
    for name, value in rules.items():
        if name not in taken and value is not None and value is not False:
            raise TypeError(f"{name} is given beside {what}: leave it out, or give AttentionWidget(q, k, v, {name}=…)")


def _refuse_what_is_no_tensor(given: Any) -> None:
    """Raise TypeError for a model, its name, or what is shown in another way, with that way."""
    if isinstance(given, nn.Module) or (isinstance(given, type) and issubclass(given, nn.Module)):
        name = given.__name__ if isinstance(given, type) else type(given).__name__
        raise TypeError(f"{name} is a model, which attends only when it is called: {CAPTURE}")
    if isinstance(given, str):
        load = f"model = transformers.AutoModel.from_pretrained({given!r:.60}); {CAPTURE}"
        raise TypeError(f"{given!r:.60} is text, and no model is loaded by its name: {load}")
    if is_encoding(given):
        raise TypeError(f"{kind_of(given)} holds what a model reads, and no attention: {CAPTURE}")
    if callable(getattr(given, "widget", None)):
        raise TypeError(f"{kind_of(given)} was given: call its widget(), such as cap.widget()")
    if isinstance(given, Mapping) and not any(hasattr(given, name) for name in (*ATTENTIONS, *TOWERS)):
        advice = "give one of them, or AttentionWidget.from_attention({'encoder': Attention.from_weights(…), …})"
        raise TypeError(f"{kind_of(given)} of {', '.join(map(repr, given)):.80} was given: {advice}")


# What a model returned.


def _of_output(output: Any, v: Any, dims: str | None) -> Attention | AttentionStack | Sources | None:
    """Return the weights that a model returned, several stacks by name; None where it is no such thing."""
    if isinstance(output, Tensor | np.ndarray | list) or not any(
        hasattr(output, name) for name in (*ATTENTIONS, *TOWERS)
    ):
        return None
    found = {
        name: attention_from_weights(weights, v, dims)
        for name, field, weights in _weights_of(output)
        if not is_missing(weights)
    }
    if not found:
        fields = ", ".join(field for _, field, _ in _weights_of(output)) or "attentions"
        raise TypeError(
            f"there are no weights in {fields} of this {type(output).__name__}, as the model was not asked for them or "
            f"its attention is fused: record it as it is, {CAPTURE}; or load it with attn_implementation='eager', and "
            "call it with output_attentions=True"
        )
    return next(iter(found.values())) if len(found) == 1 else found


def _weights_of(output: Any) -> list[tuple[str, str, Any]]:
    """Return the name, the field and the weights of each stack that an output may have."""
    there = [(name, field, getattr(output, field)) for field, name in ATTENTIONS.items() if hasattr(output, field)]
    if any(field == "encoder_attentions" for _, field, _ in there):
        there = [(CROSS_OF_TWO if field == "cross_attentions" else name, field, x) for name, field, x in there]
    for tower, name in TOWERS.items():
        inner = getattr(output, tower, None)
        if inner is not None and hasattr(inner, "attentions"):
            there.append((name, f"{tower}.attentions", inner.attentions))
    return there


# Weights that are plainly weights.


def _refuse_unless_weights(given: Any) -> None:
    """Raise for tensors that are not plainly weights, with what to write instead."""
    layers = given if isinstance(given, list | tuple) else [given]
    for i, layer in enumerate(layers):
        if layer is None or isinstance(layer, list | tuple):
            return  # refused by the reader of weights, with what generate() and fused kernels give
        name = f"layer {i} of what was given" if isinstance(given, list | tuple) else "what was given"
        why = why_not_weights(as_tensor(layer, name))
        if why is not None:
            raise ValueError(_refusal(given, name, why))


def _refusal(given: Any, name: str, why: str) -> str:
    several = isinstance(given, list | tuple)
    if several and any(isinstance(one, list | tuple) for one in given):
        return f"{name} is not plainly weights: {why}; of a model called with return_dict=False give outputs[-1] alone"
    call = "AttentionWidget(*qkv)" if several and len(given) in (2, 3) else "AttentionWidget(q, k, v)"
    ways = f"give {call} for queries, keys and values"
    ways += ", AttentionWidget.from_attention(Attention.from_scores(scores)) for scores"
    ways += "" if "sums to" not in why else ", AttentionWidget.from_weights(weights) for weights as they are"
    return f"{name} is alone and not plainly weights: {why}; {ways}"


def why_not_weights(x: Tensor) -> str | None:
    """Return why numbers are not plainly weights; None where all are ≥ 0 and each row sums to 1, or is 0.

    Args:
        x: (…, Q, K).

    >>> why_not_weights(torch.tensor([[0.5, 0.5], [0.0, 0.0]])), why_not_weights(torch.tensor([[0.5, 0.6]]))
    (None, 'row 0 sums to 1.1')
    """
    if x.dtype not in FLOATS:
        return f"it holds {str(x.dtype).removeprefix('torch.')}, not floating point"
    if x.ndim < 2 or not x.numel():
        return f"its shape is {tuple(x.shape)}, not (queries, keys)"
    rows = x.detach().flatten(0, -2)  # (rows, K)
    for some in rows.split(max(1, ROWS_AT_ONCE // x.shape[-1])):
        if bool(some.isnan().any()):
            return "it holds NaN"
        if float(some.amin()) < 0:
            return f"its numbers go down to {float(some.amin()):.4g}, below 0"
        sums = some.sum(-1, dtype=torch.promote_types(x.dtype, torch.float32))
        wrong = ((sums - 1).abs() > TOLERANCE) & (sums != 0)
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0])
            return f"row {row % x.shape[-2]} sums to {float(sums[row]):.4g}"
    return None
