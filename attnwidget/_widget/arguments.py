"""Read the first arguments of a widget: q, k and v, weights, or a model's output.

Tensors count as weights only if they plainly are. Anything else is refused with the line to write instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from .._engine.base import read_as
from .._engine.step_weights import is_by_step, joined_steps
from .._tokens.inputs import is_encoding, is_tokens
from .._utils.validation import FLOATS, as_tensor, kind_of
from ..attention import Attention
from ..stack import AttentionStack, attention_from_weights, attention_of, is_missing
from .stores.named_stacks import Sources
from .traits.keywords import TensorsLike

ATTENTIONS = {  # fields of the outputs of transformers' models, and the names of their stacks in the widget
    "encoder_attentions": "encoder",
    "attentions": "self-attention",
    "decoder_attentions": "decoder",
    "cross_attentions": "cross-attention",
}
CROSS_OF_TWO = "decoder, cross-attention"  # the name in a capture, if there is an encoder too
TOWERS = {"text_model_output": "text", "vision_model_output": "vision"}  # of a model with two towers
CAPTURE = "with capture(model, tokenizer=tokenizer) as cap: model(**inputs); then cap.widget()"
TOLERANCE = torch.finfo(torch.bfloat16).eps  # for the sum of a row, which may once have been rounded to a half type
ROWS_AT_ONCE = 1 << 24  # cells summed at once


class HasAttentions(Protocol):
    """The output of a transformers model called with `output_attentions=True`."""

    @property
    def attentions(self) -> Any: ...


class HasCrossAttentions(Protocol):
    """The output of a transformers encoder–decoder called with `output_attentions=True`."""

    @property
    def cross_attentions(self) -> Any: ...


ModelOutput: TypeAlias = HasAttentions | HasCrossAttentions
Shown: TypeAlias = TensorsLike | ModelOutput | Attention | AttentionStack


class Arguments(NamedTuple):
    """The attention to show, and the widget's keywords including tokens."""

    attention: Attention | AttentionStack | Sources
    show: dict[str, Any]


def read_arguments(q: Any, k: Any, v: Any, rules: Mapping[str, Any], show: Mapping[str, Any]) -> Arguments:
    """Read the first arguments of a widget.

    Args:
        q, k, v: queries, keys and values; or q alone, or q with tokens in place of k: weights, a model's output, or an
            attention.
        rules: the keywords for tensors.
        show: the other keywords.

    Raises:
        TypeError, ValueError: the arguments have another form; the message has the line to write instead.
    """
    same_axes = getattr(k, "ndim", None) == getattr(q, "ndim", 0)  # tensors of integers are refused as tensors
    if k is not None and (same_axes or not is_tokens(k)):
        if not isinstance(q, str):
            _refuse_what_is_no_tensor(q)
        return Arguments(_of_three(q, k, v, rules), dict(show))
    read = _dims_by_tokens(q, show.get("tokens") if k is None else k, rules.get("dims"))
    found = _noted(_alone(q, v, {**rules, "dims": read or rules.get("dims")}), read)
    shown = _with_tokens(_generated_tokens(q, found, show) if k is None else k, show)
    return Arguments(found, _of_keys(shown) if read == "bhk" else shown)


def _of_keys(show: Mapping[str, Any]) -> dict[str, Any]:
    """Return the widget's keywords with the tokens as those of the keys."""
    return {**{name: value for name, value in show.items() if name != "tokens"}, "key_tokens": show["tokens"]}


def least_of(given: Any) -> float:
    """Return the smallest number of one matrix of any layout; 0 for anything else."""
    if not isinstance(given, Tensor | np.ndarray) or not 2 <= given.ndim <= 4 or not np.prod(given.shape):
        return 0.0
    least = float(given.min())
    return least if np.isfinite(least) else 0.0


def _noted(found: Any, read: str | None) -> Any:
    """Return an attention with the note that its tokens told its axes."""
    return read_as(found, read) if read is not None and isinstance(found, Attention) else found


def _dims_by_tokens(weights: Any, tokens: Any, dims: str | None) -> str | None:
    """Return the axes of weights with 3 axes, if one list of tokens tells them; None for the usual order.

    The first axis of (N, n, n) is heads: samples would have a text each. (B, H, K) has one query for each head.
    """
    if dims is not None or not isinstance(weights, Tensor | np.ndarray) or weights.ndim != 3:
        return None
    if not isinstance(tokens, list | tuple) or not tokens:
        return None
    (first, second, keys), one_text = weights.shape, all(isinstance(one, str) for one in tokens)
    if not one_text or len(tokens) != keys:
        return None
    return "hqk" if second == keys and first > 1 else "bhk" if second != keys and second > 1 == first else None


def _generated_tokens(output: Any, found: Any, show: Mapping[str, Any]) -> Any:
    """Return the ids that `generate` returned with the weights of one stack, if a tokenizer can spell them."""
    ids = getattr(output, "sequences", None)
    if not isinstance(ids, Tensor) or not isinstance(found, AttentionStack):
        return None
    (B, _, _, _, K, *_), given = found[0].shape, show.get("tokens")
    return None if given is not None or show.get("tokenizer") is None or len(ids) != B else ids[:, :K]


def read_weights(weights: Any, v: Any, dims: str | None, show: Mapping[str, Any]) -> Arguments:
    """Return the attention of tensors that the caller names weights; tokens may be given in place of v."""
    tokens, v = (v, None) if is_tokens(v) else (None, v)
    if isinstance(weights, Attention | AttentionStack):
        raise TypeError(f"weights is {kind_of(weights)}: call AttentionWidget.from_attention(weights)")
    _refuse_what_is_no_tensor(weights)
    read = _dims_by_tokens(weights, show.get("tokens") if tokens is None else tokens, dims)
    found = _of_output(weights, v, dims) or _noted(attention_from_weights(weights, v, read or dims), read)
    shown = _with_tokens(tokens, show)
    return Arguments(found, _of_keys(shown) if read == "bhk" else shown)


def _with_tokens(tokens: Any, show: Mapping[str, Any]) -> dict[str, Any]:
    """Return the widget's keywords with tokens that were given by position."""
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


# A single argument.


def _alone(given: Any, v: Any, rules: Mapping[str, Any]) -> Attention | AttentionStack | Sources:
    """Return the attention in a single argument."""
    if isinstance(given, Attention | AttentionStack):
        _refuse_rules(rules, (), "an attention, which has rules already")
        return given
    _refuse_what_is_no_tensor(given)
    found = _of_output(given, v, rules.get("dims"))
    if found is None:
        _refuse_unless_weights(given)
        found = attention_from_weights(given, v, rules.get("dims"))
    _refuse_rules(rules, ("dims",), "weights, to which all rules have been applied")
    return found


def _refuse_rules(rules: Mapping[str, Any], taken: tuple[str, ...], what: str) -> None:
    for name, value in rules.items():
        if name not in taken and value is not None and value is not False:
            raise TypeError(f"{name} is given with {what}: leave it out, or give AttentionWidget(q, k, v, {name}=…)")


def _refuse_what_is_no_tensor(given: Any) -> None:
    """Raise TypeError for a model, its name, or an object that is shown in another way; the message says how."""
    if isinstance(given, nn.Module) or (isinstance(given, type) and issubclass(given, nn.Module)):
        name = given.__name__ if isinstance(given, type) else type(given).__name__
        raise TypeError(f"{name} is a model, which computes attention only in a call: {CAPTURE}")
    if isinstance(given, str):
        load = f"model = transformers.AutoModel.from_pretrained({given!r:.60}); {CAPTURE}"
        raise TypeError(f"{given!r:.60} is text, and models are not loaded by name: {load}")
    if is_encoding(given):
        raise TypeError(f"{kind_of(given)} holds inputs of a model, not attention: {CAPTURE}")
    if callable(getattr(given, "widget", None)):
        raise TypeError(f"{kind_of(given)} was given: call its widget(), such as cap.widget()")
    if isinstance(given, Mapping) and not any(hasattr(given, name) for name in (*ATTENTIONS, *TOWERS)):
        advice = "give one of them, or AttentionWidget.from_attention({'encoder': Attention.from_weights(…), …})"
        raise TypeError(f"{kind_of(given)} of {', '.join(map(repr, given)):.80} was given: {advice}")


# The output of a model.


def _of_output(output: Any, v: Any, dims: str | None) -> Attention | AttentionStack | Sources | None:
    """Return the weights in a model's output, by name if there are several stacks; None if it is no such output."""
    if isinstance(output, Tensor | np.ndarray | list) or not any(
        hasattr(output, name) for name in (*ATTENTIONS, *TOWERS)
    ):
        return None
    there = [(name, field, _by_step(output, x)) for name, field, x in _weights_of(output) if not is_missing(x)]
    found = {name: attention_from_weights(weights, v, dims) for name, _, weights in there}
    for name, field, _ in there:
        if name not in (ATTENTIONS["cross_attentions"], CROSS_OF_TWO):
            _refuse_bands(found[name], field)
    if not found:
        fields = ", ".join(field for _, field, _ in _weights_of(output)) or "attentions"
        raise TypeError(
            f"there are no weights in {fields} of this {type(output).__name__}: the model was not asked for them, or "
            f"its attention is fused. Record it unchanged, {CAPTURE}; or load it with attn_implementation='eager', and "
            "call it with output_attentions=True"
        )
    return next(iter(found.values())) if len(found) == 1 else found


def _by_step(output: Any, weights: Any) -> Any:
    """Return weights as one matrix of each layer, if `generate` has returned them step by step."""
    return joined_steps(weights, getattr(output, "beam_indices", None)) if is_by_step(weights) else weights


def _refuse_bands(found: Attention | AttentionStack, field: str) -> None:
    """Refuse self-attention with fewer keys than queries: its columns are relative places, as in Longformer."""
    for layer, att in enumerate([found] if isinstance(found, Attention) else found):
        if att.shape.K < att.shape.Q:
            raise ValueError(
                f"layer {layer} of {field} has {att.shape.Q} queries and {att.shape.K} keys, so its columns are not "
                "the keys of a text but a band of relative places, as in Longformer: column j of query i is key "
                "i + j − window // 2. Put the numbers at their keys in a matrix of queries × keys, and give that"
            )


def _weights_of(output: Any) -> list[tuple[str, str, Any]]:
    """Return the name, the field and the weights of each stack in an output."""
    there = [(name, field, getattr(output, field)) for field, name in ATTENTIONS.items() if hasattr(output, field)]
    if any(field == "encoder_attentions" for _, field, _ in there):
        there = [(CROSS_OF_TWO if field == "cross_attentions" else name, field, x) for name, field, x in there]
    for tower, name in TOWERS.items():
        inner = getattr(output, tower, None)
        if inner is not None and hasattr(inner, "attentions"):
            there.append((name, f"{tower}.attentions", inner.attentions))
    return there


# Tensors that plainly are weights.


def _refuse_unless_weights(given: Any) -> None:
    """Raise for tensors that are not plainly weights; the message has the line to write instead."""
    layers = given if isinstance(given, list | tuple) else [given]
    for i, layer in enumerate(layers):
        if layer is None or isinstance(layer, list | tuple):
            return  # refused by the reader of weights, which knows outputs of generate() and fused kernels
        name = f"layer {i} of what was given" if isinstance(given, list | tuple) else "what was given"
        why = why_not_weights(as_tensor(layer, name))
        if why is not None:
            raise ValueError(_refusal(given, name, why))


def _refusal(given: Any, name: str, why: str) -> str:
    several = isinstance(given, list | tuple)
    if several and any(isinstance(one, list | tuple) for one in given):
        return f"{name} is not plainly weights: {why}; of a model called with return_dict=False give outputs[-1] alone"
    call = "AttentionWidget(*qkv)" if several and len(given) in (2, 3) else "AttentionWidget(q, k, v)"
    scores = "AttentionStack([Attention.from_scores(one) for one in scores])"
    scores = f"AttentionWidget.from_attention({scores})" if several else "AttentionWidget.from_scores(scores)"
    ways = f"give {call} for queries, keys and values, {scores} for scores"
    if "sums to" in why or "NaN" in why:
        ways += ", AttentionWidget.from_weights(weights) for weights as they are"
    return f"{name} is alone and not plainly weights: {why}; {ways}"


def why_not_weights(x: Tensor) -> str | None:
    """Return why numbers are not plainly weights; None if all are ≥ 0 and each row sums to 1 or 0.

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
            return f"its smallest number is {float(some.amin()):.4g}, below 0"
        sums = some.sum(-1, dtype=torch.promote_types(x.dtype, torch.float32))
        wrong = ((sums - 1).abs() > TOLERANCE) & (sums != 0)
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0])
            return f"row {row % x.shape[-2]} sums to {float(sums[row]):.4g}"
    return None
