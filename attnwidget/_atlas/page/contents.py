"""What the front-end draws of an atlas: an index, and a card for each head; `js/src/atlas/contents.ts` reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..._analysis.head_card import AtlasLink, HeadCard
from ..bins import STARTS, distance_starts
from ..links import NAMES
from .atlas_view import AtlasView

METRICS = {
    "previous_token": ("Previous token", "The mean weight on the token before the query, where there is one."),
    "first_token": ("First token", "The mean weight on the first token."),
    "itself": ("Itself", "The mean weight on the query's own token."),
    "same_token": (
        "Same token elsewhere",
        "The mean weight on other places of the query's token, where it may attend to any.",
    ),
    "induction": (
        "Induction",
        "The mean weight on tokens after an earlier place of the query's token, where it may attend to any.",
    ),
    "last_token": ("Last token", "The mean weight on the last token of the text."),
    "entropy": ("Entropy", "The mean entropy of the weights, in bits."),
    "mean_distance": ("Mean distance", "The mean distance from query to key, in tokens."),
    "sink": ("Sink rows", "The share of queries with more than .30 on the first token, where they have a choice."),
    "streaming": (
        "Streaming",
        "The mean weight on the first 4 tokens and the 64 up to the query, where there are others.",
    ),
    "learned_sink": ("Learned sink", "The mean weight on the learned sink."),
    "masked_share": ("Masked", "The share of keys that a query may not attend to."),
    "set_aside": ("First or special", "The mean weight on first and special tokens."),
    "output": (
        "Output size",
        "The mean size of what the head adds to the residual stream; of its own output, if its projection is unknown.",
    ),
    "effect": ("Effect on the loss", "The change of the mean loss without the head, in nats."),
}


def index_of(atlas: AtlasView, other: AtlasView | None, title: str | None, *, live: bool) -> dict[str, Any]:
    """Return the index of an atlas, as JSON has it.

    Raises:
        ValueError: the other atlas is of other texts, or of a model of another shape.
    """
    if other is not None:
        atlas.compare(other)  # checks that they can be compared
    own = _side(atlas, title or atlas.model_name)
    plane = atlas.plane
    known = [name for name in METRICS if any(value is not None for value in own["values"][name])]
    facts = [
        _counted(len(atlas.layers), "layer"),
        _counted(len(own["sentences"]), "head"),
        _counted(atlas.texts, "text"),
        _counted(atlas.tokens, "token"),
    ]
    return {
        **own,
        "layers": atlas.layers,
        "counts": atlas.heads_of_layers,
        "metrics": [{"name": name, "label": METRICS[name][0], "about": METRICS[name][1]} for name in known],
        "facts": facts,
        "notes": _notes(atlas),
        "plane": plane.places.tolist(),
        "shown": plane.shown,
        "kinds": atlas.kinds,
        "texts": atlas.texts,
        "setAside": "first and special tokens" if atlas.named else "first tokens",
        "other": None if other is None else _side(other, _other_title(atlas, other)),
        "live": live,
    }


def _other_title(atlas: AtlasView, other: AtlasView) -> str:
    return other.model_name if other.model_name != atlas.model_name else f"{other.model_name}, the other"


def _side(atlas: AtlasView, title: str) -> dict[str, Any]:
    records = atlas.heads()
    names = [name for name in METRICS if name in atlas.metrics]
    curves = [[[_short(x) for x in head] for head in of_all] for of_all in atlas.curves.tolist()]
    return {
        "title": title,
        "values": {name: [_short(one[name]) for one in records] for name in names},
        "sentences": [one["sentence"] for one in records],
        "labels": [one["labels"] for one in records],
        "aside": [_short(one["set_aside"]) for one in records],
        "curves": curves[0],
        "contentCurves": curves[1],
    }


def _notes(atlas: AtlasView) -> list[str]:
    found = []
    if atlas.is_partial:
        found.append("This atlas is partial: the pass over the texts was stopped.")
    if atlas.skipped:
        number, why = next(iter(atlas.skipped.items()))
        found.append(f"{_counted(len(atlas.skipped), 'text')} left out, such as text {number:,}: {why}.")
    if atlas.named < atlas.texts:
        unnamed = _counted(atlas.texts - atlas.named, "text")
        found.append(f"In {unnamed} the tokens have no names: special tokens and punctuation are not known there.")
    if atlas.sampled:
        found.append(
            f"In {_counted(atlas.sampled, 'long text')} only evenly spread queries were computed, each exactly."
        )
    for name, why in list(atlas.unseen.items())[:3]:
        found.append(f"{name} is not in the atlas: {why}")
    return found


def card_of(atlas: AtlasView, layer: int, head: int) -> dict[str, Any]:
    """Return the card of a head, as JSON has it."""
    card = atlas.head(layer, head)
    places = _there(card.by_distance)
    keys = _there(card.by_position)
    return {
        "metrics": {name: _distribution(one) for name, one in card.metrics.items()},
        "distances": [_distance(*distance_starts()[at]) for at in places],
        "byDistance": [_short(float(card.by_distance[at])) for at in places],
        "contentByDistance": [_short(float(card.content_by_distance[at])) for at in places],
        "positions": [f"{STARTS[at]:,}" for at in keys],
        "byPosition": [_short(float(card.by_position[at])) for at in keys],
        "contentByPosition": [_short(float(card.content_by_position[at])) for at in keys],
        "byKind": [[_short(x) for x in row] for row in card.by_kind.tolist()],
        "links": {name: [_link(one) for one in _list_of(card, name)] for name in NAMES},
        "similar": [[one["layer"], one["head"]] for one in atlas.similar(layer, head)],
        "writes": card.writes,
        "copied": card.copied,
        "unwritten": card.unwritten,
    }


def _list_of(card: HeadCard, name: str) -> Sequence[AtlasLink]:
    found: Sequence[AtlasLink] = getattr(card, name.replace(" ", "_"))
    return found


def _there(values: Tensor) -> range:
    """Return the bins from the first to the last with pairs."""
    known = (~values.isnan()).nonzero()[:, 0].tolist()
    return range(known[0], known[-1] + 1) if known else range(0)


def _distribution(one: Any) -> dict[str, Any]:
    numbers = {name: _short(getattr(one, name)) for name in ("mean", "std", "least", "most")}
    return {**numbers, "n": one.n, "counts": one.counts.tolist(), "edges": [_short(x) for x in one.edges.tolist()]}


def _link(one: AtlasLink) -> dict[str, Any]:
    return {
        "text": one.text,
        "query": one.query,
        "key": one.key,
        "weight": _short(one.weight),
        "tokens": one.tokens,
        "places": one.places,
        "weights": [round(x, 3) for x in one.weights],
        "writes": one.writes,
    }


def _distance(low: int, high: int) -> str:
    """Return a bin of distances in words.

    >>> _distance(1, 1), _distance(-31, -24), _distance(0, 0)
    ('1 before', '24–31 after', 'itself')
    """
    if low == high == 0:
        return "itself"
    near, far = sorted((abs(low), abs(high)))
    return f"{near:,}{f'–{far:,}' if far > near else ''} {'before' if high > 0 else 'after'}"


def _short(value: float | None) -> float | None:
    """Return a number with four digits, for a small file; None for NaN."""
    return None if value is None or value != value else float(f"{value:.4g}")


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"
