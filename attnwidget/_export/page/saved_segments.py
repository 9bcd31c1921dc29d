"""The segments in a saved file: what they give each other in the saved heads, and answers about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from ..._engine.stages import NORMALIZED
from ..._messages.segments.segment_answers import MAX_HEAD_COLUMNS, MAX_WINDOW
from ..._messages.segments.segment_mass import MassPass
from ..._utils.failures import sentence_of
from ..view import SavedHead, SavedTrait, WidgetView

MAX_HEADS = 256  # with saved masses
MAX_PLACES = 24  # segments of the shown head that can be asked about or opened
MAX_TOKENS = 4096  # of the asking segment, saved with all columns
MAX_KEY_LISTS = 512  # each with a segment's strongest keys for one token
MAX_KEYS = 64  # in each list, as js/src/views/segments/list.tsx requests them

OF_PLACE = ["asking", "segment_path", "stage"]

Known = dict[str, Any]
Place = tuple[str | tuple[str, ...] | None, tuple[str, ...], str]  # as `_widget.masses.MassPlace`


def traits(widget: WidgetView, heads: Sequence[SavedHead]) -> Iterator[SavedTrait]:
    """Yield the segment traits for the heads and places that a file can select; none without segments.

    Each value is computed when it is iterated over.
    """
    shown = shown_of(widget)
    wanted = [(head, place) for head in heads[:MAX_HEADS] for place in _places(widget, head, head == shown)]
    if not wanted:
        return
    firsts = {head[:2]: head for head in reversed(heads)}
    samples = list(dict.fromkeys((firsts[head[:2]], place[0]) for head, place in wanted))
    for name, side in (("segments", "query"), ("key_segments", "key")):
        sent = [((*head[:2], _listed(asking)), widget.segments(side, head, asking)) for head, asking in samples]
        yield SavedTrait(name, ["layer", "batch", "asking"], sent)
    masses = (((*head, *_key(place)), _mass(widget, head, place)) for head, place in wanted)
    yield SavedTrait("mass", [*SavedHead._fields, *OF_PLACE], masses)
    places = list(dict.fromkeys((firsts[head[:2]], place) for head, place in wanted))
    of_heads = (((*head[:2], *_key(place)), _head_mass(widget, head, place)) for head, place in places)
    yield SavedTrait("head_mass", ["layer", "batch", *OF_PLACE], of_heads)


def _key(place: Place) -> tuple[Any, ...]:
    """Return a place as the values of `OF_PLACE`."""
    return _listed(place[0]), list(place[1]), place[2]


def _listed(asking: str | tuple[str, ...] | None) -> str | list[str] | None:
    """Return a path in the form of the trait."""
    return list(asking) if isinstance(asking, tuple) else asking


def shown_of(widget: WidgetView) -> SavedHead:
    """Return the shown head."""
    return SavedHead(widget.traits.layer, widget.traits.batch, widget.traits.head)


def _mass(widget: WidgetView, head: SavedHead, place: Place) -> Known:
    try:
        return widget.mass(head, place).message()
    except Exception as error:  # another layer may have another length: the file reports this
        return {"id": 0, **head._asdict(), **_of(place), "error": sentence_of(error)}


def _head_mass(widget: WidgetView, head: SavedHead, place: Place) -> Known:
    try:
        return widget.head_mass(head, place).message()
    except Exception as error:
        return {"id": 0, "batch": head.batch, **_of(place), "error": sentence_of(error)}


def _of(place: Place) -> Known:
    *outer, name = (place[0],) if isinstance(place[0], str) else place[0] or ("",)
    return {"path": [*place[1]], "asking": name, "asking_path": outer, "stage": place[2]}


def _places(widget: WidgetView, head: SavedHead, is_shown: bool) -> list[Place]:
    """Return the places of a head to save; the shown head has other places than the current one too."""
    own = place_of(widget)
    every = widget.places(head)
    if not every:
        return []
    chosen = widget.traits.stage
    stages = dict.fromkeys((own[2], chosen if chosen in NORMALIZED else "weights", "weights"))
    others = [
        (asking, path, stage) for asking, path in islice(every, MAX_PLACES if is_shown else 0) for stage in stages
    ]
    return list(dict.fromkeys([own, *((None, (), stage) for stage in stages), *others]))


def place_of(widget: WidgetView) -> Place:
    """Return the asking segment, the open path, and the stage that is summed."""
    traits = widget.traits
    is_summed = traits.view == "segments" and traits.segments_show != "effect" and traits.stage in NORMALIZED
    asking = tuple(traits.asking) if isinstance(traits.asking, list) else traits.asking
    return asking, tuple(traits.segment_path), traits.stage if is_summed else "weights"


def requests(widget: WidgetView) -> Iterator[Known]:
    """Yield the front-end's possible requests about the segments of the shown head."""
    shown = shown_of(widget)
    if not widget.places(shown):
        return
    try:
        found, heads = widget.mass(shown, place_of(widget)), widget.head_mass(shown, place_of(widget))
    except Exception:  # the masses report the reason
        return
    yield from _of_tokens(found)
    yield from _of_keys(found, widget)
    measure, aside = widget.traits.measure, [*widget.traits.aside]
    if len(found.asked) > found.window:
        for column in range(len(found.names)):
            yield {"kind": "segment_line", "of": found.number, "column": column, "measure": measure, "aside": aside}
    missing = [column for column in range(len(heads.names)) if column not in heads.sent()]
    for start in range(min(len(missing), 4 * MAX_HEAD_COLUMNS)):
        yield {"kind": "segment_heads", "of": heads.number, "columns": missing[start : start + 1]}


def _of_tokens(found: MassPass) -> Iterator[Known]:
    """Yield the windows of tokens after the first, as js/src/views/segments/model.ts cuts them."""
    many, last = max(1, MAX_WINDOW // len(found.names)), min(len(found.asked), MAX_TOKENS)
    for window in range(found.window // many, -(-last // many)):
        start, stop = max(window * many, found.window), min((window + 1) * many, len(found.asked))
        if start < stop:
            yield {"kind": "segment_columns", "of": found.number, "start": start, "stop": stop}


def _of_keys(found: MassPass, widget: WidgetView) -> Iterator[Known]:
    """Yield requests for the pinned segment's strongest keys for each token, or each segment's for the first token."""
    columns, many = len(found.wanted.columns.names), len(found.asked)
    chosen = [i for i, name in enumerate(found.wanted.columns.names) if name == widget.traits.segment]
    every = chosen or list(range(columns))
    for column in every if many * len(every) <= MAX_KEY_LISTS else every[: MAX_KEY_LISTS // max(1, many)]:
        for query in found.asked.tolist():
            yield {"kind": "segment_keys", "of": found.number, "query": query, "column": column, "count": MAX_KEYS}
