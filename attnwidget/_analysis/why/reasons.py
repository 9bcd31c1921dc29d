"""Why a head looked there: a pair, a row, and the parts that all heads of a text read, each exact.

score_ij · scale = Σ_a Σ_b q_i^a · k_j^b · scale, over the parts a of the query and b of the key (Elhage et al. 2021, "A
Mathematical Framework for Transformer Circuits"). The sum is compared with the model's own score each time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..._engine.base import AttentionBase
from ..._utils.indexing import as_index
from ..._utils.validation import FLOATS
from .contrasts import NO_OTHERS, NO_WEIGHT, NoMean, check_against
from .layer_names import layer_names
from .parts import Dictionary, PartIndex, Side, WaysOfHeads, vectors_at
from .pullback import Bundle, Reach
from .results import SIDES, Composition, DistanceProfile, Why, WhyRow, ordered
from .stream_graph import NotLinear

T = TypeVar("T")
ROWS = 1024  # positions at a time
NO_SOURCES = (
    "this attention has no sources: record it with capture(model, sources=True), which keeps what each attention and "
    "MLP writes into the residual stream"
)
NO_ROTATION = (
    "this attention has no rotation of positions (RoPE) on its way to k, so a score is not a function of distance: a "
    'model with learned positions has them as the part "position" of cap.why'
)
NOT_THE_SUM = (
    "the parts of {} at position {} do not add up to the model's own: they differ by {:.1e} of its size, and rounding "
    "explains {:.1e}. The model computes something on the way that was not followed, so no parts are shown"
)
FULL, HALF = 16.0, 8.0  # of a dtype's precision: how far a sum of parts may be from the model's own; 3 were seen


def run(steps: Generator[float, None, T], tell: Callable[[float], None] = lambda share: None) -> T:
    """Return the result of steps, which yield the share that is done."""
    while True:
        try:
            tell(next(steps))
        except StopIteration as end:
            found: T = end.value
            return found


def sources_of(att: AttentionBase) -> WaysOfHeads:
    """Return the ways to an attention's q and k.

    Raises:
        ValueError: they were not recorded.
    """
    if att.sources is None:
        raise ValueError(NO_SOURCES)
    found: WaysOfHeads = att.sources
    return found


def pair(
    att: AttentionBase,
    query: int,
    key: int,
    *,
    batch: int = 0,
    head: int = 0,
    against: int | str | None = None,
    features: Mapping[str, Any] | None = None,
    words: Sequence[str] = (),
) -> Generator[float, None, Why]:
    """Split a score into the parts of its query and its key: see `Forward.why`; yields the share that is done."""
    ways, (batch, head, query, key, against) = sources_of(att), _checked(att, batch, head, query, key, against)
    asked = "pair", batch, head, query, key, against
    if not features and asked in ways.answers:
        return replace(ways.answers[asked], words=tuple(words) or ways.answers[asked].words)
    named = {name: Dictionary.read(name, given) for name, given in (features or {}).items()}
    if named and isinstance(against, str):
        raise ValueError("features= names the features of one pair: give against=None or the position of a key")
    own, index, group = PartIndex(ways), PartIndex(ways), _group(att, head)
    queries, numbers = _stacked(_vectors(att, ways, "q", head, batch, query, own, named))
    q_parts = [own.parts[i] for i in numbers]
    keys, numbers = _stacked(_vectors(att, ways, "k", head, batch, key, index, named))
    terms = queries @ keys.mT * att.scale
    given = _given(att, "q", batch, head, query)
    score, subtracted = float(given @ _given(att, "k", batch, group, key)) * att.scale, 0.0
    if isinstance(against, int):
        other, others = _stacked(_vectors(att, ways, "k", head, batch, against, index, named))
        terms, numbers = _subtract(terms, numbers, queries @ other.mT * att.scale, others)
        subtracted = float(given @ _given(att, "k", batch, group, against)) * att.scale
    elif against is not None:
        weights = _compared_weights(att, batch, head, query, key, against)
        mean, others = yield from _mean_terms(att, ways, batch, head, queries, weights, index)
        terms, numbers = _subtract(terms, numbers, mean * att.scale, others)
        keep = weights.nonzero()[:, 0]
        subtracted = float((_all(att, "k", batch, group)[keep] @ given) @ weights[keep]) * att.scale
    k_parts = [index.parts[i] for i in numbers]
    rows, columns = ordered(q_parts, own.times), ordered(k_parts, index.times)
    terms = terms[rows][:, columns]
    found = Why(
        layer_names(ways.layers)[ways.name].label,
        head,
        query,
        key,
        against,
        tuple(q_parts[i] for i in rows),
        tuple(k_parts[i] for i in columns),
        terms,
        score - subtracted,
        score - subtracted - float(terms.sum()),
        float(_weights(att, batch, head, query)[key]),
        tuple(words),
        subtracted,
    )
    if not named:
        ways.answers[asked] = found
    return found


def row(att: AttentionBase, query: int, *, batch: int = 0, head: int = 0) -> Generator[float, None, WhyRow]:
    """Compute the scores of one query as sums over the parts of each key; yields the share that is done."""
    ways, (batch, head, query, _, _) = sources_of(att), _checked(att, batch, head, query, 0, None)
    asked = "row", batch, head, query
    if asked in ways.answers:
        known: WhyRow = ways.answers[asked]
        return known
    index, K = PartIndex(ways), att.shape.K
    given = _given(att, "q", batch, head, query)
    found: dict[int, Tensor] = {}
    done = 0
    for bundle in ways.bundles("k", [head], batch, torch.arange(K, device="cpu")):
        for chosen in torch.arange(len(bundle.rows), device="cpu").split(ROWS):
            moved = bundle.transported(given[None, None, None], chosen)[0]  # (m or 1, P)
            at = bundle.rows[chosen]
            pulled: dict[Any, Tensor] = {}
            for reach, part, _ in _within(bundle, chosen):
                values = reach.along(moved if len(moved) == 1 else moved[part], pulled)
                for number, own in zip(index.of(reach), values, strict=True):
                    if number not in found:
                        found[number] = torch.zeros(K, dtype=torch.float64, device="cpu")
                    found[number][at[part]] += own
            done += len(chosen)
            yield done / K
    numbers = [*found]
    terms = torch.stack([found[i] for i in numbers]) * att.scale
    keys = _all(att, "k", batch, _group(att, head))
    scores = keys @ given * att.scale
    rounding = (scores - terms.sum(0)).abs()
    # A score near 0 is a sum over dimensions that cancel: it is rounded as ‖q‖ ‖k‖ is, however small its parts are.
    least = keys.norm(dim=1) * given.norm() * abs(att.scale)
    size = terms.square().sum(0).sqrt().maximum(least).clamp_min(1e-30)
    _check_sum(
        att,
        float((rounding / size).nan_to_num().amax()),
        "the keys",
        query,
        len(numbers),
    )
    order = terms.abs().amax(1).argsort(descending=True, stable=True).tolist()
    weights = _weights(att, batch, head, query).nan_to_num()
    result = WhyRow(
        layer_names(ways.layers)[ways.name].label,
        head,
        query,
        tuple(index.parts[numbers[i]] for i in order),
        terms[order],
        scores,
        weights,
        float(rounding.amax()),
    )
    ways.answers[asked] = result
    return result


def distances(att: AttentionBase, query: int, key: int, *, batch: int = 0, head: int = 0) -> DistanceProfile:
    """Return the score of a pair as if the key were at other positions: see `Attention.distance_profile`."""
    ways, (batch, head, query, key, _) = sources_of(att), _checked(att, batch, head, query, key, None)
    for bundle in ways.bundles("k", [head], batch, torch.arange(att.shape.K, device="cpu")):
        own = (bundle.rows == key).nonzero()[:, 0]
        if not len(own):
            continue
        if not bundle.rotates:
            raise NotLinear(NO_ROTATION)
        vector = sum(
            _placed(reach.at((reach.rows == own).nonzero()[:, 0]), bundle)
            for reach in bundle.reaches
            if bool((reach.rows == own).any())
        )
        given = _given(att, "q", batch, head, query)[None, None, None]
        scores = [
            bundle.moved(given, int(own), chosen)[0] @ vector * att.scale
            for chosen in torch.arange(len(bundle.rows), device="cpu").split(ROWS)
        ]
        offset = 0 if att.part is None or att.part.keys_before is None else att.part.keys_before
        place = query + offset if att.part is None or att.part.queries is None else att.part.queries[query] + offset
        there = bundle.rows
        return DistanceProfile(
            place - there,
            torch.cat(scores),
            place - key,
            float(given.flatten() @ _given(att, "k", batch, _group(att, head), key)) * att.scale,
        )
    raise NotLinear(NO_ROTATION)


def _placed(reach: Reach, bundle: Bundle) -> Tensor:
    """Return the sum of a source's parts at one position, in the place of its covectors: (P,)."""
    found = torch.zeros(len(bundle.owners), dtype=torch.float64, device="cpu")
    found[reach.first : reach.first + len(reach.covectors)] = reach.reached()[:, 0].sum(0)
    return found


def composing(
    layers: Sequence[AttentionBase], numbers: Sequence[int], *, batch: int = 0, at: Sequence[int] | None = None
) -> Generator[float, None, Composition]:
    """Compute which parts of the residual stream each head of some layers reads; yields the share that is done.

    Args:
        layers: the attention of each.
        numbers: their numbers.
        batch: the sample.
        at: queries; None: all without padding.
    """
    ways = sources_of(layers[0])
    asked = "composition", batch, tuple(numbers), None if at is None else tuple(at)
    if asked in ways.answers:
        known: Composition = ways.answers[asked]
        return known
    index = PartIndex(ways)
    heads: list[tuple[int, int]] = []
    found: list[dict[int, Tensor]] = []  # of each layer: (3, heads) by part
    noises: list[Tensor] = []  # of each layer: (heads,)
    queries = 0
    for done, (att, number) in enumerate(zip(layers, numbers, strict=True)):
        own = _queries(att, sources_of(att), batch, at)
        queries = max(queries, len(own))
        heads += [(number, head) for head in range(att.shape.H)]
        steps = _read_parts(att, number, batch, own, index)
        of_layer, noise = yield from _after(steps, done, len(layers))
        found.append(of_layer)
        noises.append(noise)
    order = ordered(index.parts, index.times)
    sums = torch.zeros(len(heads), 3, len(order), dtype=torch.float64, device="cpu")
    first = 0
    for att, by_part in zip(layers, found, strict=True):
        for number, values in by_part.items():
            sums[first : first + att.shape.H, :, order.index(number)] = values.mT
        first += att.shape.H
    totals = sums.sum(-1, keepdim=True)
    noise = torch.cat(noises)[:, None, None] * torch.tensor([1.0, 1.0, 0.0], device="cpu")[:, None]
    shares = torch.where(totals.abs() <= noise, 0.0, sums / totals)  # nothing has no shares
    scores = torch.cat([sums[:, :2] / max(1, queries), shares[:, 2:]], 1)
    labels = tuple(one.label for one in layer_names(ways.layers).values() if not one.cross)
    result = Composition(tuple(index.parts[i] for i in order), tuple(heads), shares, scores, labels, queries)
    ways.answers[asked] = result
    return result


def _after(steps: Generator[float, None, T], done: int, of: int) -> Generator[float, None, T]:
    """Do the steps of one of several works; yields the share of all that is done."""
    while True:
        try:
            share = next(steps)
        except StopIteration as end:
            yield (done + 1) / of
            found: T = end.value
            return found
        yield (done + share) / of


def _queries(att: AttentionBase, ways: WaysOfHeads, batch: int, at: Sequence[int] | None) -> list[int]:
    if at is not None:
        return [as_index(one, att.shape.Q, "at", "queries") for one in at]
    real = ways.real
    return list(range(att.shape.Q)) if real is None else real[batch].nonzero()[:, 0].tolist()


def _read_parts(
    att: AttentionBase, layer: int, batch: int, queries: list[int], index: PartIndex
) -> Generator[float, None, tuple[dict[int, Tensor], Tensor]]:
    """Return what each part gives to the heads of a layer, (3, heads): to the query, key and value side.

    Also how large a sum of the query or key side can be by rounding alone, (heads,).
    """
    ways = sources_of(att)
    H, group = att.shape.H, att.shape.H // att.shape.G
    read = []
    for head in range(H):
        read.append(_read_by(att, batch, head, queries))
        yield (head + 1) / H / 4
    found: dict[int, Tensor] = {}
    of_keys = torch.arange(att.shape.K, device="cpu")
    sides: tuple[Side, ...] = ("q", "k", "v")
    for place, side in enumerate(sides):
        at = torch.tensor(queries, device="cpu") if side == "q" else of_keys
        for r in range(1 if side == "q" else group):  # query heads of different key heads at a time
            heads = list(range(H)) if side == "q" else list(range(r, H, group))
            covectors = torch.stack([read[h][side] for h in heads], 1)
            sums = _sums(ways, side, heads, batch, at, covectors, index)
            whole_sums = torch.stack([*sums.values()])
            for i, head in enumerate(heads):
                given = read[head]["size" if side == "v" else "total"]
                _check_total(att, given, whole_sums[:, i], layer, head, SIDES[place])
            for number, values in sums.items():
                found.setdefault(number, torch.zeros(3, H, dtype=torch.float64, device="cpu"))[place, heads] = values
        yield (place + 2) / 4
    return found, torch.tensor([one["noise"] for one in read], dtype=torch.float64, device="cpu")


def _sums(
    ways: WaysOfHeads, side: Side, heads: list[int], batch: int, at: Tensor, covectors: Tensor, index: PartIndex
) -> dict[int, Tensor]:
    """Return the products of each part with covectors (positions, heads, size), summed over positions: (heads,)."""
    found: dict[int, Tensor] = {}
    for bundle in ways.bundles(side, heads, batch, at):
        for chosen in torch.arange(len(bundle.rows), device="cpu").split(ROWS // 4):
            moved = bundle.transported(covectors[bundle.rows[chosen]][None], chosen)[0]
            for reach, part, _ in _within(bundle, chosen):
                values = reach.summed(moved[part])
                owners = bundle.owners[reach.first : reach.first + values.shape[1]]
                by_head = values.new_zeros(len(values), len(heads)).index_add_(1, owners, values)
                for number, own in zip(index.of(reach), by_head, strict=True):
                    found[number] = found[number] + own if number in found else own
    return found


def _read_by(att: AttentionBase, batch: int, head: int, queries: list[int]) -> dict[Side | str, Any]:
    """Return a head's covectors of q, k and v, whose products with them sum to its centered score and to its output.

    Σ_i Σ_j (w_ij − u_ij) q_i · k_j · scale, where u is even over the allowed keys; and Σ_i ‖o_i‖².
    """
    group = _group(att, head)
    q, k, v = _all(att, "q", batch, head), _all(att, "k", batch, group), _all(att, "v", batch, group)
    of_q = torch.zeros(len(queries), q.shape[1], dtype=torch.float64, device="cpu")
    of_k, of_v = torch.zeros_like(k), torch.zeros_like(v)
    size = looked = 0.0
    for rows in torch.arange(len(queries), device="cpu").split(ROWS // 4):
        own = [queries[i] for i in rows.tolist()]
        where: dict[str, Any] = {"batch": batch, "head": head, "queries": own}
        weights, allowed = (_block(att, stage, **where).double() for stage in ("weights", "allowed"))
        weights = weights.nan_to_num()
        even = allowed / allowed.sum(1, keepdim=True).clamp_min(1)
        centered = (weights - even) * att.scale
        out = weights @ v
        of_q[rows] = centered @ k
        of_k += centered.mT @ q[own]
        looked += float(((weights + even) * (q[own] @ k.mT)).abs().sum()) * abs(att.scale)
        of_v += weights.mT @ out
        size += float(out.square().sum())
    noise = 4 * looked * torch.finfo(torch.float64 if att.dtype == torch.float64 else torch.float32).eps
    return {"q": of_q, "k": of_k, "v": of_v, "total": float((of_q * q[queries]).sum()), "size": size, "noise": noise}


def _check_total(att: AttentionBase, given: float, parts: Tensor, layer: int, head: int, name: str) -> None:
    total = float(parts.sum())
    allowed = _tolerance(att) * float(parts.abs().sum())
    if not abs(total - given) <= allowed + 1e-12:
        raise NotLinear(
            f"the parts that the {name} side of head {head} in layer {layer} reads do not add up: {total:.6g} in "
            f"place of {given:.6g}. The model computes something on the way that was not followed, so no parts are "
            f"shown"
        )


def _within(bundle: Bundle, chosen: Tensor) -> Any:
    """Yield each source of a bundle at the chosen positions that it reaches, and their numbers among the chosen."""
    first, last = int(chosen[0]), int(chosen[-1])
    for reach in bundle.reaches:
        inside = ((reach.rows >= first) & (reach.rows <= last)).nonzero()[:, 0]
        if len(inside):
            yield reach.at(inside), reach.rows[inside] - first, inside


def _mean_terms(
    att: AttentionBase,
    ways: WaysOfHeads,
    batch: int,
    head: int,
    queries: Tensor,
    weights: Tensor,
    index: PartIndex,
) -> Generator[float, None, tuple[Tensor, list[int]]]:
    """Return the mean of a row's terms under its weights, (query parts, key parts), and the numbers of key parts."""
    keys = weights.nonzero()[:, 0]
    found: dict[int, Tensor] = {}
    done = 0
    for bundle in ways.bundles("k", [head], batch, keys):
        for chosen in torch.arange(len(bundle.rows), device="cpu").split(ROWS // 2):
            basis = torch.eye(bundle.size, dtype=torch.float64, device="cpu")[:, None, None]
            moved = bundle.transported(basis, chosen)  # (size, m or 1, P)
            own = weights[keys[bundle.rows[chosen]]]
            for reach, part, _ in _within(bundle, chosen):
                P = slice(reach.first, reach.first + len(reach.covectors))
                reached = reach.reached()
                reached = reached.expand(-1, len(part), -1) * own[part, None]
                maps = moved[..., P]
                if maps.shape[1] == 1:
                    vectors = reached.sum(1) @ maps[:, 0].mT
                else:
                    vectors = torch.einsum("kmp,dmp->kd", reached, maps[:, part])
                for number, vector in zip(index.of(reach), vectors, strict=True):
                    found[number] = found[number] + vector if number in found else vector
            done += len(chosen)
            yield done / len(keys)
    vectors, numbers = _stacked(found)
    return queries @ vectors.mT, numbers


def _subtract(terms: Tensor, numbers: list[int], other: Tensor, others: list[int]) -> tuple[Tensor, list[int]]:
    """Return the difference of terms (query parts, key parts) by the numbers of key parts."""
    both = list(dict.fromkeys([*numbers, *others]))
    found = terms.new_zeros(len(terms), len(both))
    places = {number: i for i, number in enumerate(both)}
    found[:, [places[i] for i in numbers]] += terms
    found[:, [places[i] for i in others]] -= other
    return found, both


def _stacked(vectors: Mapping[int, Tensor]) -> tuple[Tensor, list[int]]:
    return torch.stack([*vectors.values()]), [*vectors]


def _vectors(
    att: AttentionBase,
    ways: WaysOfHeads,
    side: Side,
    head: int,
    batch: int,
    position: int,
    index: PartIndex,
    features: Mapping[str, Dictionary],
) -> dict[int, Tensor]:
    """Return the parts of a head's vector, after a check of their sum."""
    found = vectors_at(ways, side, head, batch, position, index, features)
    parts = torch.stack([*found.values()])
    given = _given(att, side, batch, head if side == "q" else _group(att, head), position)
    size = parts.square().sum().sqrt().clamp_min(1e-30)
    name = {"q": "the query", "k": "the key", "v": "the value"}[side]
    _check_sum(att, float((parts.sum(0) - given).norm() / size), name, position, len(parts))
    return found


def _tolerance(att: AttentionBase) -> float:
    """Return how far a sum of parts may be from the model's own, relative to their root of squares."""
    on_way = () if att.sources is None else att.sources.dtypes
    coarsest = max((one for one in (att.dtype, *on_way) if one in FLOATS), key=lambda dtype: torch.finfo(dtype).eps)
    return torch.finfo(coarsest).eps * (HALF if coarsest.itemsize == 2 else FULL)


def _check_sum(att: AttentionBase, difference: float, name: str, position: int, parts: int) -> None:
    """Refuse parts whose sum is not the model's own vector."""
    allowed = _tolerance(att)
    if not difference <= allowed:
        raise NotLinear(NOT_THE_SUM.format(name, position, difference, allowed))


def _given(att: AttentionBase, side: Side, batch: int, head: int, position: int) -> Tensor:
    x = {"q": att.q, "k": att.k, "v": att.v}[side]
    assert x is not None
    return x[batch, head, position].detach().double().cpu()


def _all(att: AttentionBase, side: Side, batch: int, head: int) -> Tensor:
    x = {"q": att.q, "k": att.k, "v": att.v}[side]
    assert x is not None
    return x[batch, head].detach().double().cpu()


def _group(att: AttentionBase, head: int) -> int:
    return head // (att.shape.H // att.shape.G)


def _block(att: AttentionBase, stage: str, **where: Any) -> Tensor:
    found: Tensor = att.block(stage, **where)  # type: ignore[attr-defined]
    return found.cpu()


def _weights(att: AttentionBase, batch: int, head: int, query: int) -> Tensor:
    """Return the weights of a row, float64."""
    return _block(att, "weights", batch=batch, head=head, queries=query)[0].double()


def _compared_weights(att: AttentionBase, batch: int, head: int, query: int, key: int, against: str) -> Tensor:
    """Return the weights of a mean of the row's keys, with a sum of 1: of all keys, or of all others than one.

    Raises:
        ValueError: none of them has a weight.
    """
    weights = _weights(att, batch, head, query).nan_to_num()
    if against == "others" and bool(weights.any()):
        weights[key] = 0
    total = weights.sum()
    if not total > 0:
        raise NoMean((NO_OTHERS if against == "others" else NO_WEIGHT).format(query=query, key=key))
    return weights / total


def _checked(
    att: AttentionBase, batch: Any, head: Any, query: Any, key: Any, against: Any
) -> tuple[int, int, int, int, int | str | None]:
    B, H, _, Q, K = att.shape[:5]
    if isinstance(against, str):
        check_against(against)
    elif against is not None:
        against = as_index(against, K, "against", "keys")
    return (
        as_index(batch, B, "batch", "samples"),
        as_index(head, H, "head", "heads"),
        as_index(query, Q, "query", "queries"),
        as_index(key, K, "key", "keys"),
        against,
    )
