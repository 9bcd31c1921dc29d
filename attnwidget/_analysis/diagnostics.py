"""Likely faults of an attention: findings with place and advice, and the difference from torch's own result."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .._engine.base import AttentionBase, Head
from .._engine.matmul import exactly
from .._engine.softmax import exact_block, run_to_end, sink_weights
from .._engine.stages import QUERIES, allowed_cells
from .._rules.rules import Bias, ByIndex, Keep, Rule, whole
from .._tokens.inputs import never_read
from .._utils.indexing import cuts
from .._utils.readable import Readable
from ..masks import causal
from .added_masks import finding_added_mask
from .mask_counts import MaskCounts, counting_allowed
from .parity import CELLS_AT_ONCE, MAX_ROWS, Parity, comparing, sampled_rows, weights_of
from .statistics import SATURATED as SATURATED_PEAK
from .statistics import UNIFORM as UNIFORM_PEAK
from .statistics import Statistics, computing_statistics

SINK = 0.95  # of the weight of each row, on the first key
ALIKE = 1e-6  # of the largest weight of a row, between identical heads
Severity = Literal["error", "warning", "note"]
MAX_CELLS = 1 << 26  # of a head; in a larger one only some rows are examined
FAR_BELOW = -1e4  # a masked score of −10,000 has weight 0 beside any other, in every dtype
UNIFORM_ROW = "masked row made uniform"
PADDING = re.compile(r"[\[<|]*(pad|padding|_pad_)[\]>|]*", re.IGNORECASE)
SATURATED, UNIFORM = 0.9, 0.9  # shares of the rows from which the whole head counts as such
ROW_SUM_TOLERANCES = {
    torch.float16: 5e-3,
    torch.bfloat16: 3e-2,
}  # how far the sums of given weights may be from 1; else 1e-3


@dataclass(frozen=True, repr=False)
class Finding(Readable):
    """One likely fault, or a fact worth knowing.

    kind: such as "inverted mask".
    severity: "error" (nobody wants this result), "warning" (likely a mistake) or "note".
    where: the places, in words; "" for the whole head.
    message: the finding, with its numbers.
    advice: what to do.
    query, key: the first of the places; None if it is not a query, or a key.

    >>> import torch
    >>> from attnwidget import Attention
    >>> att = Attention(torch.eye(3), torch.full((3, 3), float("nan")))
    >>> found = att.check()[0]
    >>> found.kind, found.severity
    ('NaN in k', 'error')
    """

    kind: str
    severity: Severity
    where: str
    message: str
    advice: str
    query: int | None = None
    key: int | None = None

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        return f"{self.severity}: {self.kind}{place}: {self.message}. {self.advice}"


Examination = tuple[list[Finding], Parity | None]


def check(head: Head, tokens: Sequence[str] | None) -> list[Finding]:
    """Return the likely faults of a head: see `Attention.check`."""
    return examine(head, tokens)[0]


def examine(head: Head, tokens: Sequence[str] | None) -> Examination:
    """Return the findings about a head, and its difference from torch's own result, if torch has one."""
    return run_to_end(exactly(head.att.device, examining(head, tokens)))


def examining(head: Head, tokens: Sequence[str] | None) -> Generator[None, None, Examination]:
    """Examine a head as `examine` does, in steps of some rows; yields after each."""
    att = head.att
    tokens = None if tokens is None else [str(token) for token in tokens]
    if tokens is not None and len(tokens) != att.shape.K:
        hint = never_read(len(tokens), att.shape.K)
        raise ValueError(f"there are {len(tokens):,} tokens but {att.shape.K:,} keys: give one for each key{hint}")
    counts = yield from counting_allowed(head)
    found = yield from _found(_added_masks(head))
    broken = yield from _found(_not_finite(head))
    added = [] if broken else (yield from _found(_biased_rows(head)))
    broken += [one for one in added if one.kind != UNIFORM_ROW]
    found += broken
    found += [one for one in added if one.kind == UNIFORM_ROW]
    for part in (_masks(head, counts), _given_weights(head), _to_padding(head, counts, tokens)):
        found += yield from _found(part)
    compared = None
    if not broken:
        compared = yield from comparing(head)
        found += yield from _found(_spread(head))
        found += yield from _found(_others(head))
        found += _parity_finding(compared)
        found += yield from _found(_of_capture(head))
    order = ("error", "warning", "note")
    return sorted(found, key=lambda finding: order.index(finding.severity)), compared


def _found(steps: Iterator[Finding | None]) -> Generator[None, None, list[Finding]]:
    """Collect findings; yields after each step, which is a None among them."""
    found = []
    for one in steps:
        if one is None:
            yield
        else:
            found.append(one)
    return found


def _pieces(att: AttentionBase) -> list[range]:
    """Return the queries in pieces whose whole rows fit in memory: of long rows only a few."""
    return list(cuts(range(att.shape.Q), 1, max(1, min(QUERIES, CELLS_AT_ONCE // max(att.shape.K, 1)))))


def is_long(att: AttentionBase) -> bool:
    """Return whether scores and weights of only some rows are examined; masks are always counted whole."""
    return att.shape.Q * att.shape.K > MAX_CELLS


# Numbers that are not finite.


def _not_finite(head: Head) -> Iterator[Finding | None]:
    lost = [] if head.att.witness is None else head.att.witness.lost_rows(head.batch, head.head)
    broken = bool(lost)
    if lost:
        yield _beyond(
            torch.tensor(lost, device="cpu"),
            "the model's own weights are NaN there, as they are shown, and so is all that is computed from them",
        )
    for name, x, what in (("q", head.q, "query"), ("k", head.k, "key"), ("v", head.v, "key")):
        if x is None or _all_finite(x):
            continue
        for kind, test in (("NaN", torch.isnan), ("infinite", torch.isinf)):
            rows = test(x).any(1).nonzero()[:, 0]
            rows = rows[~torch.isin(rows, rows.new_tensor(lost))] if name == "q" else rows
            if len(rows):
                broken = True
                yield Finding(
                    f"{kind} in {name}",
                    "error",
                    _places(what, rows),
                    f"{name} holds {kind} at {_count(len(rows), what)}",
                    f"Look at what computes {name}: in training at the loss before, in float16 for more than 65,504.",
                    **_at(what, rows),
                )
    if not broken and head.att.source.gives == "scores":
        yield from _scores_not_finite(head)
    if not broken and head.q is not None and head.q.dtype is torch.float16:
        yield from _beyond_float16(head)


def _all_finite(x: Tensor) -> bool:
    """Return whether one sum shows that all numbers are finite, which is faster than testing each."""
    return bool(x.sum(dtype=torch.promote_types(x.dtype, torch.float32)).isfinite())


def _beyond_float16(head: Head) -> Iterator[Finding | None]:
    att, largest = head.att, torch.finfo(torch.float16).max
    if (
        head.q is None
        or not float(head.q.float().norm(dim=1).max()) * att.longest_key(head.batch, head.group) > largest
    ):
        return
    lost = yield from _sampled_where(head, "scores", lambda S: S.abs() > largest)
    if len(lost.places):
        yield _beyond(
            lost.places,
            "a model that computes them in float16 has NaN there. These weights are computed in float32",
            lost.of,
        )


class Sampled(NamedTuple):
    """Some of the queries that were looked at: their places, and ` of 250 that were looked at` if they are not all."""

    places: Tensor
    of: str


def _sampled_where(
    head: Head, stage: Literal["scores", "scaled"], test: Callable[[Tensor], Tensor]
) -> Generator[None, None, Sampled]:
    """Return the sampled queries of a head with a number that passes a test; yields after some of them."""
    places, count = [], 0
    for queries in sampled_rows(head.att):
        S = exact_block(head.att, head.block(queries), stage, None)
        places.append(test(S).any(1).nonzero()[:, 0] * queries.step + queries.start)
        count += len(queries)
        yield
    return Sampled(torch.cat(places), _looked_at(count, head.att.shape.Q))


def _looked_at(count: int, total: int) -> str:
    """Return words for a sample of the queries; "" if it is all of them."""
    return f" of {count:,} that were looked at" if count < total else ""


def _beyond(queries: Tensor, so: str, of: str = "") -> Finding:
    """Return the finding that products of these queries overflow in float16, and what that means."""
    count, largest = len(queries), torch.finfo(torch.float16).max
    return Finding(
        "scores beyond float16",
        "error",
        _places("query", queries),
        f"{_count(count, 'query')}{of} {'has' if count == 1 else 'have'} products of q and k beyond {largest:,.0f}, "
        f"the largest number of float16: {so}",
        "Scale q before the product, or compute the scores in float32 or bfloat16.",
        **_at("query", queries),
    )


def _scores_not_finite(head: Head) -> Iterator[Finding | None]:
    lost = yield from _sampled_where(head, "scaled", lambda S: ~S.isfinite())
    count, given = len(lost.places), head.att.q is None
    if count:
        yield Finding(
            "scores not finite",
            "error",
            _places("query", lost.places),
            f"{_count(count, 'query')}{lost.of} {'has' if count == 1 else 'have'} scores that are NaN or infinite"
            + ("" if given else " though q and k are finite: their products exceed float32"),
            "Look at what computes the scores." if given else "Normalize q and k, or lower the scale.",
            **_at("query", lost.places),
        )


# Masks.


def _masks(head: Head, counts: MaskCounts) -> Iterator[Finding | None]:
    att = head.att
    Q, K = att.shape.Q, att.shape.K
    if att.source.gives == "weights" or (not att.rules.rules and not att.rules.by_score):
        return
    empty = (counts.by_query == 0).nonzero()[:, 0]
    inverted = _inverted(counts, att)
    along = not inverted and _along_queries(counts, K)
    if inverted:
        yield inverted
    elif along:
        yield Finding(
            "mask along the wrong axis",
            "error",
            _places("query", empty),
            f"{_count(len(empty), 'query')} may attend to no key, and all others to every key",
            "A padding mask blocks keys, so it varies along the last axis: give it as (B, K), or transpose it.",
            **_at("query", empty),
        )
    elif len(empty) == Q and head.sink is None:
        yield from _all_blocked(head)
    elif len(empty):
        yield Finding(
            "nothing allowed",
            "warning",
            _places("query", empty),
            f"{_count(len(empty), 'query')} may attend to no key: "
            + (
                "weights and output are 0 here and in torch's SDPA. A softmax of −∞ alone gives NaN, and one of finite "
                "numbers spreads the weight evenly, also over empty places of a cache"
                if head.sink is None
                else "the learned sink has all the weight, and the output is 0"
            ),
            "Expected for padded queries; otherwise check the mask, or let each query see itself.",
            **_at("query", empty),
        )
    elif att.witness is None and counts.total == Q * K > Q > 1 and any(map(_is_all_alike, att.rules.rules)):
        yield Finding(
            "mask hides nothing",
            "note",
            "",
            f"a mask was given, but each of {_count(Q, 'query')} may attend to all {K:,} keys",
            "Expected for a text without padding; otherwise check how the mask was made.",
        )
    yield from _look_ahead(att, counts)
    yield from _upside_down(att, counts)
    yield from _alignment(att)


def _is_all_alike(rule: Rule) -> bool:
    """Return whether a rule is a mask of truth values that says the same of every cell, in every sample and head."""
    if not isinstance(rule, Keep) or rule.mask.dtype != torch.bool:
        return False
    return bool((rule.mask == rule.mask.flatten()[0]).all())


def _inverted(counts: MaskCounts, att: AttentionBase) -> Finding | None:
    """Find a mask whose opposite makes sense: no query may see itself, or may attend only to likely padding."""
    Q, K = att.shape.Q, att.shape.K
    if Q == K and Q > 1 and counts.diagonal == 0 and 0 < counts.total == counts.above:
        return Finding(
            "inverted mask",
            "error",
            "",
            "queries may attend only to keys after them, none to itself or to what came before",
            _way_to_invert(att),
        )
    keys = (counts.by_key > 0).nonzero()[:, 0]
    if len(keys) == 0 or len(keys) == K:
        return None
    first, same = int(keys[0]), bool((counts.by_query == len(keys)).all())
    if same and first > 0 and len(keys) == K - first and 2 * len(keys) < K:
        return Finding(
            "inverted mask",
            "warning",
            f"keys {first:,} to {K - 1:,}",
            f"all queries may attend to the last {len(keys):,} of {K:,} keys and to no earlier ones",
            _way_to_invert(att) + " With this much padding on the left, that is expected.",
            key=first,
        )
    return None


def _way_to_invert(att: AttentionBase) -> str:
    """Return how to give the opposite of a mask, in the form in which it was given."""
    options = att.options
    name, given = ("bias", options.bias) if options.mask is None else ("mask", options.mask)
    if att.witness is not None:
        return "The model gives it so: True must mean may attend, as in torch's scaled_dot_product_attention."
    if given is None:
        return "Check the rules that were changed."
    if any(isinstance(rule, Bias) and rule.name == name for rule in att.rules.rules):
        return f"Invert it: mask={name} < 0 is True, may attend, where it now blocks."
    if callable(given) and not hasattr(given, "__array__"):
        return "Invert it: let the function return the opposite."
    other = "keep" if options.mask_means == "hide" else "hide"
    return f"Invert it: mask_means={other!r}, since 1 or True {'blocks' if other == 'hide' else 'allows'}."


def _all_blocked(head: Head) -> Iterator[Finding | None]:
    """Say that no query may attend to any key, and which of several rules that is."""
    att, options = head.att, head.att.options
    advice = "Check the mask: True in a bool mask means may attend."
    others = [word for word, there in (("is_causal", options.is_causal), ("window", options.window)) if there]
    others += [name for name, _ in options.extra_masks]
    if options.mask is not None and others:
        alone = replace(options, is_causal=False, window=None, extra_masks=())
        one = att.replaced(alone, att.source, att.v).head(head.batch, head.head)
        counts = yield from counting_allowed(one)
        inverted = _inverted(counts, one.att)
        if inverted:
            advice = f"By the mask alone {inverted.message}. {inverted.advice}"
        elif counts.total:
            advice = f"The mask alone allows {counts.total:,} cells: it and {' and '.join(others)} exclude each other."
    yield Finding(
        "nothing allowed",
        "warning" if att.witness is not None else "error",
        "all queries",
        "no query may attend to any key: weights and output are 0 here and in torch's SDPA. A softmax of −∞ alone "
        "gives NaN, and one of finite numbers spreads the weight evenly",
        advice,
        query=0,
    )


def _upside_down(att: AttentionBase, counts: MaskCounts) -> Iterator[Finding]:
    Q, K = att.shape.Q, att.shape.K
    if Q != K or Q < 3 or not counts.diagonal or not counts.above or counts.total != counts.above + counts.diagonal:
        return
    yield Finding(
        "mask hides the past",
        "warning",
        "",
        "queries may attend only to themselves and to keys after them, none to what came before",
        "If the model is causal, the mask is upside down: torch.tril instead of torch.triu, or is_causal=True.",
    )


def _along_queries(counts: MaskCounts, K: int) -> bool:
    """Return whether each row is allowed as a whole or not at all, and several are not."""
    full_rows, empty_rows = int((counts.by_query == K).sum()), int((counts.by_query == 0).sum())
    return empty_rows > 0 and full_rows > 0 and full_rows + empty_rows == len(counts.by_query)


def _look_ahead(att: AttentionBase, counts: MaskCounts) -> Iterator[Finding]:
    Q, K = att.shape.Q, att.shape.K
    above, below = Q * (Q - 1) // 2, Q * (Q + 1) // 2
    nearly = 0 < counts.above <= max(0.1 * above, Q - 1) and counts.above < above
    if Q != K or not nearly or counts.total - counts.above < 0.9 * below:
        return
    query, key = counts.above_at or (None, None)
    yield Finding(
        "look-ahead",
        "warning",
        "" if query is None else f"query {query:,}, key {key:,} first",
        f"{counts.above:,} of {above:,} cells after the diagonal are allowed, the others blocked: nearly causal",
        "If the model is causal, block them (torch.tril, diagonal=0), or pass is_causal=True.",
        query=query,
        key=key,
    )


def _alignment(att: AttentionBase) -> Iterator[Finding]:
    Q, K = att.shape.Q, att.shape.K
    aligned = any(isinstance(rule, ByIndex) and rule.mask == causal for rule in att.rules.rules)
    if Q == K or not aligned:
        return
    if K > Q:
        yield Finding(
            "causal with Q ≠ K",
            "warning",
            f"keys {Q:,} to {K - 1:,}",
            f"is_causal counts from the upper left, as torch does: no query sees a key after the first {Q:,}",
            "While decoding with a cache give mask=masks.causal_lower_right(Q, K) instead.",
            key=Q,
        )
    else:
        yield Finding(
            "causal with Q ≠ K",
            "note",
            f"queries {K:,} to {Q - 1:,}",
            f"is_causal counts from the upper left: it hides no key from query {K - 1:,} and later ones",
            "If the queries are the last ones of a longer text, give masks.causal_lower_right(Q, K).",
            query=K,
        )


def _added_masks(head: Head) -> Iterator[Finding | None]:
    """Find masks and biases of numbers that hide nothing, such as a float mask of 0 and 1."""
    for bias in head.att.rules.biases:
        if isinstance(bias, Bias):
            found = yield from finding_added_mask(head, bias)
            if found is not None:
                yield Finding(found.kind, found.severity, "", found.message, found.advice)


def _biased_rows(head: Head) -> Iterator[Finding | None]:
    """Find rows that a mask or bias makes NaN, and rows masked entirely by a large finite number, such as −1e9."""
    att = head.att
    if not att.rules.biases:
        return
    tops = []
    rows = sampled_rows(att) if is_long(att) else _pieces(att)
    for queries in rows:
        tops.append(exact_block(att, head.block(queries), "masked", None).amax(1))
        yield None
    places, top = torch.cat([torch.tensor([*queries], device=att.device) for queries in rows]), torch.cat(tops)
    some = _looked_at(len(top), att.shape.Q)
    for what, lost in (("NaN", top.isnan()), ("infinite", top == inf)):
        found = places[lost]
        if len(found):
            yield Finding(
                f"{what} in masked scores",
                "error",
                _places("query", found),
                f"the mask or bias makes masked scores of {_count(len(found), 'query')}{some} "
                f"{'NaN' if what == 'NaN' else '+∞'}, and so are the weights NaN",
                "0 × −∞ is NaN: block with masked_fill(…, −∞), torch.where or a bool mask, not by a product."
                if what == "NaN"
                else "A mask hides by −∞, not by +∞: give -mask, or a bool mask.",
                **_at("query", found),
            )
    if head.sink is not None and head.sink > FAR_BELOW:
        return  # a learned sink takes the weight
    found = places[(top <= FAR_BELOW) & (top != -inf)]
    if len(found):
        yield Finding(
            UNIFORM_ROW,
            "error",
            _places("query", found),
            f"{_count(len(found), 'query')}{some} {'has' if len(found) == 1 else 'have'} every key masked by a finite "
            f"number below {FAR_BELOW:,.0f}: the softmax spreads the weight over blocked keys instead of giving none",
            "Block with a bool mask or with −∞, not with −1e9.",
            **_at("query", found),
        )


# Padding.


def _to_padding(head: Head, mask_counts: MaskCounts, tokens: list[str] | None) -> Iterator[Finding | None]:
    """Find padding keys that may be attended to."""
    att, pads = head.att, _pads(head, tokens)
    if tokens is None and len(pads) < 2:
        return
    counts, padded = mask_counts.by_key.tolist(), set(pads)
    open_pads = [key for key in pads if counts[key]]
    real = [query for query in range(att.shape.Q) if att.shape.Q != att.shape.K or query not in padded]
    if not open_pads or not real:
        return
    keys = torch.tensor(open_pads, device="cpu")
    share = yield from _weight_on(head, torch.tensor(real, device="cpu"), keys)
    if not share > 0:  # or NaN
        return
    same = "keys" if head.v is None else "keys and values"
    why = "by the tokens' names" if tokens is not None else f"the last {same} are all the same"
    part = f"{share:.1%}" if share >= 0.0005 else "less than 0.1%"
    some = ", from some of them" if len(real) > MAX_ROWS else ""
    yield Finding(
        "attention to padding",
        "warning" if tokens is not None else "note",
        _places("key", keys),
        f"{_count(len(open_pads), 'key')} of padding ({why}) may be attended to, with {part} of the weight of the "
        f"{'other ' if len(real) < att.shape.Q else ''}queries{some}",
        "Block them: mask=masks.padding(lengths), or attention_mask with mask_means='keep'.",
        key=open_pads[0],
    )


def _pads(head: Head, tokens: list[str] | None) -> list[int]:
    """Return the padding keys, by their tokens or by their numbers."""
    if tokens is not None:
        return [key for key, token in enumerate(tokens) if PADDING.fullmatch(token.strip())]
    k, v = head.k, head.v
    if k is None:
        return []
    same = (k == k[-1]).all(1)
    same &= True if v is None else (v == v[-1]).all(1)
    different = (~same).nonzero()[:, 0]
    return list(range(int(different[-1]) + 1, len(k))) if len(different) else []


def _weight_on(head: Head, queries: Tensor, keys: Tensor) -> Generator[None, None, float]:
    """Return the share of some queries' weight that is on some keys, over at most 256 queries."""
    queries = queries[:: -(-len(queries) // MAX_ROWS)]
    found = total = 0.0
    for at in cuts(range(len(queries)), 1, max(1, CELLS_AT_ONCE // max(head.att.shape.K, 1))):
        rows = queries[at.start : at.stop]
        weights, sink = weights_of(head.att, head.block(rows)), sink_weights(head, rows)
        found += float(weights[:, keys].sum())
        total += float(weights.sum()) + (0.0 if sink is None else float(sink.sum()))
        yield
    return found / total if total > 0 else 0.0


# Given weights.


def _of_capture(head: Head) -> Iterator[Finding | None]:
    """Compare each row with the output of the model's own call, and name what the capture lacks."""
    att = head.att
    if att.witness is None:
        return
    if att.witness.missing:
        what, *others = att.witness.missing
        advice = " ".join((*others, "cap.skipped has each module with its reason."))
        yield Finding("incomplete capture", "warning", "", what.rstrip("."), advice)
    rows: list[int] = []
    for some in att.witness.rows_that_differ(att, head.batch, head.head):
        rows += some
        yield None
    if rows:
        places = torch.tensor(rows, device="cpu")
        yield Finding(
            "another output",
            "error",
            _places("query", places),
            f"the output that the model computed is another in {_count(len(rows), 'query')} of this head",
            "The model does more than its q, k, v, mask and scale show. Give its own weights to "
            "AttentionWidget.from_weights.",
            **_at("query", places),
        )


def _given_weights(head: Head) -> Iterator[Finding | None]:
    att = head.att
    if att.source.gives != "weights":
        return
    by_row, by_column = [], torch.zeros(att.shape.K, dtype=att.result_dtype, device=att.device)
    for rows in _pieces(att):
        block = exact_block(att, head.block(rows), "weights", None)
        by_row.append(block.sum(1))
        by_column += block.sum(0)
        yield None
    sums, near = torch.cat(by_row), ROW_SUM_TOLERANCES.get(att.dtype, 1e-3)
    if bool(sums.isnan().any()):
        rows_of_nan = sums.isnan().nonzero()[:, 0]
        yield Finding(
            "NaN in weights",
            "error",
            _places("query", rows_of_nan),
            f"the weights of {_count(len(rows_of_nan), 'query')} are NaN",
            "A softmax over keys that are all −∞, or scores beyond the largest number of their type, give NaN: look at "
            "the mask and the scores of these rows.",
            **_at("query", rows_of_nan),
        )
    off = ((sums - 1).abs() > near) & (sums.abs() > near)  # a fully masked row sums to 0
    if not bool(off.any()):
        return
    if bool(((by_column - 1).abs() <= near).all()):
        yield Finding(
            "softmax over the wrong axis",
            "error",
            "",
            "all columns sum to 1, and not all rows do",
            "Take the softmax over the keys, the last axis (dim=-1), or transpose the weights.",
        )
        return
    worst = int(((sums - 1).abs() * off).nan_to_num().argmax())
    yield Finding(
        "rows do not sum to 1",
        "warning",
        _places("query", off.nonzero()[:, 0]),
        f"the row of query {worst:,} sums to {float(sums[worst]):.4g}",
        "Dropout in training does this: take the weights before it, or in eval(). So does a mask that multiplies the "
        "weights: let it set scores to −∞ before the softmax. So do learned sinks: capture(model), or "
        "Attention(q, k, v, sinks=…), shows their weight. Otherwise rows were cut or pooled.",
        query=worst,
    )


# The spread of weights.


def _spread(head: Head) -> Iterator[Finding | None]:
    att = head.att
    if att.source.gives == "weights":
        return
    found = yield from (_some_rows(head) if is_long(att) else _all_rows(head))
    if found.several < 2:
        return
    of = f"of the {found.several:,} queries with several keys" + (" that were looked at" if is_long(att) else "")
    if found.saturated >= SATURATED * found.several:
        spread = f", and scaled scores have variance {found.variance:,.3g}" if found.variance else ""
        unscaled = att.shape.D is not None and abs(att.scale) > 2 * att.shape.D**-0.5
        yield Finding(
            "saturation",
            "warning" if unscaled else "note",
            "",
            f"{found.saturated:,} {of} give one key at least 99 % of their weight{spread}",
            "Almost no gradient reaches q and k. "
            + ("Divide the scores by √D." if unscaled else "A trained head may do so; a new one should not."),
        )
    if found.uniform >= UNIFORM * found.several:
        yield Finding(
            "uniform rows",
            "note",
            "",
            f"{found.uniform:,} {of} weight their keys evenly: none has over 1.001 × the mean",
            "Usual before training; afterwards check that q and k are not all zero, and the scale.",
        )


def _others(head: Head) -> Iterator[Finding | None]:
    """Compare a few rows with those of the layer's other heads, and look for a sink that leaves nothing."""
    att, Q = head.att, head.att.shape.Q
    rows = sorted({Q // 3, 2 * Q // 3, Q - 1})
    own = _rows_of(head, rows)
    yield None
    queries = torch.tensor(rows, device="cpu")
    cells = head.block(queries)
    of_given = att.source.gives == "weights"
    open_keys = own > 0 if of_given else whole(allowed_cells(att, cells), queries, cells.keys, att.device)
    several = open_keys.sum(1).to(own.device) > 1
    sink = sink_weights(head, queries)
    total = own.sum(1) if sink is None else own.sum(1) + sink
    first = own[several, 0] / total[several]
    if Q > 1 and len(first) > 1 and float(first.min()) >= SINK:
        mean = 100 * float(first.mean())
        share = "over 99" if mean > 99 else f"{mean:.0f}"
        yield Finding(
            "attention sink",
            "note",
            "",
            f"the first key has {share} % of the weight of the {len(first)} queries looked at that have several keys",
            'Usual for some heads of a trained model, which then add little (Xiao et al. 2023, "Efficient Streaming '
            'Language Models with Attention Sinks"): set the first token aside to see the rest.',
            key=0,
        )
    is_even = bool((own.amax(1) <= own.sum(1) / (own > 0).sum(1).clamp_min(1) * (1 + UNIFORM_PEAK)).all())
    if att.shape.H < 2 or is_even:
        return
    alike = []
    for other in range(att.shape.H):
        beside = head._replace(head=other)
        differences = ((_rows_of(beside, [row]) - one).abs().max() for row, one in zip(rows, own, strict=True))
        if other != head.head and all(
            float(difference) <= ALIKE * float(one.max()) for difference, one in zip(differences, own, strict=True)
        ):
            alike.append(other)
        yield None
    if alike:
        named = ", ".join(map(str, alike[:8])) + (", …" if len(alike) > 8 else "")
        yield Finding(
            "identical heads",
            "note",
            "",
            f"head{'s' * (len(alike) > 1)} {named} ha{'ve' if len(alike) > 1 else 's'} the same weights in the "
            f"{len(rows)} queries that were compared",
            "Expected if heads were copied or begin alike; the heads of a trained layer differ.",
        )


def _rows_of(head: Head, rows: list[int]) -> Tensor:
    return torch.cat([weights_of(head.att, head.block(range(row, row + 1))) for row in rows]).double()


class RowCounts(NamedTuple):
    """The number of rows with several keys, of those that give one key nearly all, and of those that are uniform."""

    several: int
    saturated: int
    uniform: int
    variance: float | None  # of the scaled scores


def _all_rows(head: Head) -> Generator[None, None, RowCounts]:
    """Count all rows; yields after each block."""
    steps = computing_statistics(head, range(head.att.shape.Q))
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Statistics = end.value
            break
        yield
    several = int((found.allowed > 1).sum())
    return RowCounts(several, found.saturated_rows, found.uniform_rows, found.scaled_variance)


def _some_rows(head: Head) -> Generator[None, None, RowCounts]:
    """Count some rows of a long head, over all their keys; yields after some of them."""
    att = head.att
    several = saturated = uniform = 0
    for queries in sampled_rows(att):
        cells = head.block(queries)
        p = weights_of(att, cells)
        allowed = whole(allowed_cells(att, cells), queries, cells.keys, att.device).sum(1)
        peak, total, more = p.amax(1), p.sum(1), allowed > 1
        several += int(more.sum())
        saturated += int((more & (peak >= SATURATED_PEAK)).sum())
        uniform += int((more & (total > 0) & (peak * allowed <= total * (1 + UNIFORM_PEAK))).sum())
        del p
        yield
    return RowCounts(several, saturated, uniform, None)


# Parity with torch.


def _parity_finding(found: Parity | None) -> Iterator[Finding]:
    if found is None or found.equal:
        return
    yield Finding(
        "not torch's result",
        "warning",
        "",
        f"the output differs from torch's scaled_dot_product_attention by up to {found.difference:.2g} in the "
        f"{_count(found.queries, 'query')} that {'was' if found.queries == 1 else 'were'} compared",
        "In half types torch rounds between steps; otherwise please report it, with the shapes.",
    )


def _at(what: str, rows: Tensor) -> dict[str, int]:
    """Return the first of some places, for a finding."""
    return {what: int(rows[0])}


def _places(what: str, rows: Tensor) -> str:
    """Return the first few in words."""
    plural = {"query": "queries", "key": "keys"}[what]
    some = [f"{int(row):,}" for row in rows[:3]]
    if len(rows) == 1:
        return f"{what} {some[0]}"
    return f"{plural} {', '.join(some)}" + ("" if len(rows) <= 3 else f" and {len(rows) - 3:,} more")


def _count(n: int, what: str) -> str:
    return f"{n:,} {what if n == 1 else {'query': 'queries', 'key': 'keys'}[what]}"
