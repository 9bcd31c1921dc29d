"""Why a weight is what it is: every step from q · k to its share of the output, in exact numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isnan
from typing import Any

import torch
from torch import Tensor

from .._engine.base import AttentionBase, Head
from .._engine.matmul import exact
from .._engine.softmax import exact_block, sink_weights, whole_rows
from .._engine.sources import CARRIED
from .._engine.stages import valued, values
from .._rules.rules import Bias, ScoreFunction, cut
from .._utils.indexing import Block, as_index
from .._utils.readable import Readable
from .._utils.validation import as_tensor

NAMES = {"value_norm": "value norm", "logit": "logit", "saliency": "saliency"}
FORMULAS = {"value_norm": "‖v W_O‖", "logit": "v W_O · d / s", "saliency": "∂L/∂O · v"}


@dataclass(frozen=True)
class RuleEffect:
    """The effect of one rule or bias on a pair.

    name: the rule in words, such as "causal: key ≤ query", or the argument, "mask" or "bias".
    blocks: whether it blocks the pair.
    adds: the number that it adds to the score; None for a rule, which only allows or blocks. It is the bias's own
        number if that is known: always for a tensor; for a function if it adds the same to a score of 0. Otherwise it
        is the difference of the scores.

    >>> import torch
    >>> from attnwidget import Attention
    >>> att = Attention(torch.eye(3), torch.eye(3), torch.eye(3), is_causal=True)
    >>> att.explain(0, 2).effects[0].blocks
    True
    """

    name: str
    blocks: bool
    adds: float | None


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(Readable):
    """One weight, step by step; steps before the given tensors are None, such as q · k before given scores.

    query, key: the pair.
    products: (D,) q_d · k_d, whose sum is the score.
    score, scale, scaled, softcap, capped, masked: the stages of the pair and the numbers between them.
    effects: of each rule and bias, in order.
    allowed: whether the query may attend to the key.
    maximum, log_normalizer: of the query's row of masked scores; weight = exp(masked − log_normalizer).
    sink, sink_weight: the logit of the head's learned sink, one more term of the log-normalizer, and its weight; None
        if there is none. For combined heads or words only the weight is known.
    weight: of the pair.
    value: (Dv,) weight · v. output: (Dv,) the sum of these over all keys.
    carried: by stage, what the weight contributes to it, if known: "value_norm", "logit", "saliency".
    per_weight: by stage, the factor that is multiplied by the weight.
    contribution: ‖weight · v‖, or ‖weight · v · W_O‖ if w_o was given (Kobayashi et al. 2020, §3).
    share: the contribution over the sum of all keys' contributions; None if that is 0.

    >>> import torch
    >>> from attnwidget import Attention
    >>> att = Attention(torch.eye(3), torch.eye(3), torch.eye(3), is_causal=True)
    >>> found = att.explain(2, 1)
    >>> round(found.score, 2), found.allowed, [effect.name for effect in found.effects]
    (0.0, True, ['causal: key ≤ query'])
    """

    query: int
    key: int
    products: Tensor | None
    score: float | None
    scale: float
    scaled: float | None
    softcap: float | None
    capped: float | None
    effects: tuple[RuleEffect, ...]
    masked: float | None
    allowed: bool
    maximum: float | None
    log_normalizer: float | None
    sink: float | None
    sink_weight: float | None
    weight: float
    value: Tensor | None
    output: Tensor | None
    contribution: float | None
    share: float | None
    carried: Mapping[str, float]
    per_weight: Mapping[str, float]

    def __str__(self) -> str:
        return spoken(self)


def explain(head: Head, query: Any, key: Any, w_o: Any) -> Explanation:
    """Explain one weight, step by step: see `Attention.explain`."""
    att = head.att
    query = as_index(query, att.shape.Q, "query", "queries")
    key = as_index(key, att.shape.K, "key", "keys")
    at = head.block(range(query, query + 1), range(key, key + 1))
    row = at._replace(keys=range(att.shape.K))
    with exact(att.device):
        steps = {stage: _number(att, at, stage) for stage in ("score", "scaled", "capped", "masked")}
        scored = att.source.gives == "scores"
        weights = whole_rows(att, row, "weights")[0] if scored else exact_block(att, row, "weights", None)[0]  # (K,)
        masked_row = exact_block(att, row, "masked", None)[0] if scored else None  # (K,)
        sink_weight, has_sink = sink_weights(head, at.queries), att.sinks is None or head.sink is not None
        effects = effects_on(att, at, steps["capped"])
        value = output = contribution = share = None
        if att.v is not None:
            v = values(head, range(att.shape.K))  # (K, Dv)
            parts = torch.where(weights[:, None] == 0, 0, weights[:, None] * v)  # (K, Dv)
            value, output = parts[key], parts.sum(0)
            lengths = torch.linalg.vector_norm(parts if w_o is None else parts @ _projection(att, w_o), dim=1)  # (K,)
            contribution, total = float(lengths[key]), float(lengths.sum())
            share = contribution / total if total > 0 else None
        return Explanation(
            query=query,
            key=key,
            products=_products(head, query, key),
            score=steps["score"],
            scale=att.scale,
            scaled=steps["scaled"],
            softcap=att.softcap,
            capped=steps["capped"],
            effects=effects,
            masked=steps["masked"],
            allowed=steps["masked"] != -inf and not any(effect.blocks for effect in effects),
            maximum=None if masked_row is None else float(masked_row.amax()),
            log_normalizer=None if masked_row is None else float(torch.logsumexp(_with_sink(masked_row, head), 0)),
            sink=head.sink,
            sink_weight=None if not has_sink or sink_weight is None else float(sink_weight[0]),
            weight=float(weights[key]),
            value=value,
            output=output,
            contribution=contribution,
            share=share,
            **_carried(head, at, float(weights[key])),
        )


def _carried(head: Head, at: Block, weight: float) -> dict[str, Mapping[str, float]]:
    """Return the contribution of a weight to each stage, and the factor for each unit of the weight."""
    att = head.att
    there = [stage for stage in CARRIED if stage in att.stages]
    one = torch.ones(1, 1, dtype=att.result_dtype, device=att.device)
    per_weight: dict[str, float] = {stage: float(valued(one, head, at.queries, at.keys, stage)) for stage in there}
    carried: dict[str, float] = {stage: 0.0 if weight == 0 else weight * number for stage, number in per_weight.items()}
    return {"carried": carried, "per_weight": per_weight}


def _with_sink(masked_row: Tensor, head: Head) -> Tensor:
    """Return the terms of a row's log-normalizer, (K,) or (K + 1,) float64: its masked scores, and the sink."""
    terms = masked_row.double()
    return terms if head.sink is None else torch.cat([terms, terms.new_tensor([head.sink])])


def _number(att: AttentionBase, at: Block, stage: str) -> float | None:
    if att.source.gives == "weights":
        return None
    return float(exact_block(att, at, "scores" if stage == "score" else stage, None)[0, 0])


def _products(head: Head, query: int, key: int) -> Tensor | None:
    """Return q_d · k_d of a pair, (D,); None without q and k."""
    if head.q is None or head.k is None:
        return None
    wide = head.att.result_dtype
    return head.q[query].to(wide) * head.k[key].to(wide)


def _projection(att: AttentionBase, w_o: Any) -> Tensor:
    found = as_tensor(w_o, "w_o").detach()
    if found.ndim != 2 or found.shape[0] != att.shape.Dv:
        raise ValueError(
            f"w_o has shape {tuple(found.shape)} but a value has {att.shape.Dv} numbers: give the "
            f"({att.shape.Dv}, d_model) part of the output projection that belongs to this head"
        )
    return found.to(att.device, att.result_dtype)


def effects_on(att: AttentionBase, at: Block, capped: float | None) -> tuple[RuleEffect, ...]:
    """Return the effect of each rule and each bias on one pair, in order."""
    effects = []
    for rule in att.rules.rules:
        allowed = rule.allowed(at)
        blocks = not (bool(allowed.all()) if isinstance(allowed, Tensor) else allowed)
        adds = float(cut(rule.added, at)[0, 0]) if isinstance(rule, Bias) else None
        effects.append(RuleEffect(rule.describe(at.batch), blocks, adds))
    score = capped
    for bias in att.rules.biases:
        if isinstance(bias, Bias):
            score = None if score is None else score + next(e.adds or 0.0 for e in effects if e.name == bias.name)
        elif score is not None:
            score, adds = _function_on(att, bias, at, score)
            effects.append(RuleEffect(bias.describe(at.batch), adds == -inf, adds))
    return tuple(effects)


def _function_on(att: AttentionBase, bias: ScoreFunction, at: Block, score: float) -> tuple[float, float]:
    """Return a function's result for a pair's score, and the number that it adds, −∞ if it blocks.

    The difference of two rounded scores is off by their last bits. So if the function adds a number to the score 0, and
    the score plus this number equals its result exactly, that number is returned.
    """
    before, zero = torch.tensor([score, 0.0], dtype=att.result_dtype, device=att.device).view(2, 1, 1)
    after, of_zero = (bias.apply(number.clone(), at) for number in (before, zero))
    if float(after) <= torch.finfo(att.result_dtype).min:
        return float(after), -inf
    adds = of_zero if torch.equal(before + of_zero, after) else after.double() - before.double()
    return float(after), float(adds) + 0.0  # not −0


def spoken(explanation: Explanation) -> str:
    """Return the steps as lines of text."""
    e, lines = explanation, []

    def line(name: str, formula: str, number: float | None) -> None:
        if number is not None:
            lines.append(f"{name:<12}{formula:<34}{number: .6g}")

    line("score", "q · k", e.score)
    line("scaled", f"score × {e.scale:.6g}", e.scaled)
    if e.softcap is not None:
        line("capped", f"{e.softcap:g} · tanh(scaled / {e.softcap:g})", e.capped)
    for effect in e.effects:
        did = "blocks" if effect.blocks else "allows" if effect.adds is None else f"adds {effect.adds:.6g}"
        lines.append(f"{'':<12}{effect.name}: {did}")
    line("masked", "", e.masked)
    line("sink", "learned, beside the keys", e.sink)
    if e.log_normalizer is not None and not isnan(e.log_normalizer):
        line("weight", f"exp(masked − {e.log_normalizer:.6g})", e.weight)
    else:
        line("weight", "", e.weight)
    line("sink weight", "" if e.sink is None else f"exp(sink − {e.log_normalizer:.6g})", e.sink_weight)
    line("share", "of all ‖weight · v‖", e.share)
    for stage, number in e.carried.items():
        line(NAMES[stage], f"weight × {FORMULAS[stage]} {e.per_weight[stage]:.6g}", number)
    return "\n".join(lines)
