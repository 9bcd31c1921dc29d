"""The contents of a saved file, which works without a kernel.

It holds the traits of every possible selection, and answers to the front-end's requests.
Everything is computed when the file is saved; js/src/kernel/snapshot.ts only looks it up.
"""

from __future__ import annotations

import functools
import json
import struct
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import product, starmap
from typing import Any

import torch
from torch import Tensor

from ..._analysis.top_links import LINK_CELLS, LINKS, strongest
from ..._engine import overview
from ..._engine.cache_policies import kept_keys
from ..._engine.kept_levels import only_overviews
from ..._engine.level_cache import LevelKey
from ..._engine.softmax import sink_weights
from ..._engine.sources import Stage
from ..._engine.stages import MASKED
from ..._messages.codec import encoding
from ..._messages.pictures import heads_of_stage, heads_overview, picture, sinks, stage_pictures
from ...attention import Attention
from ..view import SavedHead, SavedTrait, TraitsView, WidgetView, linked_stage
from . import saved_segments

DEFAULT_LIMIT = 32 << 20  # bytes in a file, unless the user gives another limit
MAX_AUTOMATIC_BYTES = 4 << 20  # bytes; up to here all heads are saved by default
MAX_EXACT_LENGTH = 512  # tokens per side; up to here every number of a head is saved
MAX_PAIR_CELLS = 1024  # cells in a head; up to here each is saved with all its steps
MAX_RANKED_LENGTH = 4096  # queries and keys; up to here the strongest of each are saved
MAX_PEAK_CELLS = 1 << 28  # in a head; up to here the greatest number of every bin is saved
MAX_RECALL_CELLS = 1 << 28  # in a head; up to here its recall is computed for the file
MAX_JACOBIANS = 32  # one per query
MAX_SUMMED_CELLS = 1 << 24  # in all heads; up to here a stage's sums are saved for every query
MAX_SUMS_BYTES = 256 << 10  # for these sums, at most
SMALL_STAGES_BYTES = 6 * 128 * 128 * 4  # bytes for the small pictures of the stages view, at most

Known = dict[str, Any]


class Snapshot:
    """Everything that a saved file holds.

    Args:
        widget: the widget to save.
        choices: the heads that the file can select.
    """

    def __init__(self, widget: WidgetView, choices: Sequence[SavedHead]) -> None:
        self.widget = widget
        self.choices = choices
        self.derived: dict[str, Any] = {}
        self.links: Known = {}
        self.peaks: Known = {}
        self.replies: Known = {}

    def add(self, trait: SavedTrait, over: str | None = None) -> None:
        """Add a derived trait with its values.

        Args:
            trait: the trait.
            over: one of the traits it depends on; each value is merged, field by field, over the value for None there.
                None means that each value is complete.
        """
        known = {key_of(of): value for of, value in trait.values}
        self.derived[trait.name] = {"by": list(trait.by), "values": known, **({} if over is None else {"over": over})}

    def whole(self, script: str) -> Known:
        """Return the complete contents, with the script that draws them."""
        now = self.widget.state()  # includes derived traits that other derived traits depend on
        state = {name: value for name, value in now.items() if name not in self.derived}
        for name, known in self.derived.items():
            state[name] = _value(known, {**now, "stage": _stage_of(name, self.widget.traits)})
        return {
            "state": {**state, "uid": "saved", "progress": None},
            "derived": self.derived,
            "links": self.links,
            "peaks": self.peaks,
            "replies": self.replies,
            "script": script,
        }


def _stage_of(name: str, traits: TraitsView) -> str:
    """Return the stage that a derived trait shows: for most the one that is linked to the selected one."""
    if name in ("picture", "comparison"):
        return traits.stage
    by_weights = traits.view != "segments" or traits.segments_show == "effect"
    return "weights" if name in ("mass", "head_mass") and by_weights else linked_stage(traits)


def _value(known: Known, now: Known) -> Any:
    """Return a derived trait's value for the current traits, with the lookup of js/src/kernel/snapshot.ts."""
    of = [now.get(by) for by in known["by"]]
    found, over = known["values"].get(key_of(of)), known.get("over")
    if over is None:
        return found
    rest = known["values"].get(key_of([None if by == over else one for by, one in zip(known["by"], of, strict=True)]))
    return rest and {**rest, **(found or {})}


def choices_of(
    widget: WidgetView, layers: Any = None, heads: Any = None, samples: Any = None, limit: int = DEFAULT_LIMIT
) -> list[SavedHead]:
    """Return the heads to save in a file, including those shown.

    Args:
        layers, heads, samples: "selected", "all" or a list of numbers; None for layers or heads saves as many as fit
            into 4 MiB.
        limit: the largest size of the file, in bytes.

    Raises:
        ValueError, TypeError, IndexError: something requested does not exist, or takes more than `limit`.
    """
    taken = _numbers(
        "samples", "selected" if samples is None else samples, [widget.traits.batch], widget.selected.shape.B
    )
    either = ["all", "selected"]
    wanted = [*product(either if layers is None else [layers], either if heads is None else [heads])]
    made: list[SavedHead] = []
    for some_layers, some_heads in wanted:
        made = _product(widget, some_layers, some_heads, taken)
        if layers is not None and heads is not None:
            break
        if _bytes(widget, made) <= MAX_AUTOMATIC_BYTES and not any(_is_long(widget, choice) for choice in made):
            break
    if (needed := _bytes(widget, made)) > limit:
        raise ValueError(
            f"{len(made):,} heads take about {needed / (1 << 20):,.0f} MiB, more than {limit / (1 << 20):,.0f} MiB: "
            "save fewer (layers=[…], heads=[…]), or give limit=… in bytes"
        )
    return made


def left_out(widget: WidgetView, choices: Sequence[SavedHead]) -> str:
    """Return a sentence on which heads are not in a file and how to save more; "" if all are."""
    stack = widget.shown.stack
    every = _product(widget, "all", "all", sorted({choice.batch for choice in choices}))
    if len(choices) >= len(every):
        return ""
    size, own = _bytes(widget, every), [choice for choice in every if choice.layer == widget.traits.layer]
    asked = 'layers="all", heads="all"' if len(stack) > 1 else 'heads="all"'
    limit = f", limit={-(-size // (1 << 20))} << 20" if size > DEFAULT_LIMIT else ""
    found = (
        f"{len(choices):,} of {len(every):,} heads {'is' if len(choices) == 1 else 'are'} in this file. To save all of "
        f'them (up to {_mebibytes(widget, every)}), call w.to_html("attention.html", {asked}{limit})'
    )
    if len(own) == len(every):
        return f"{found}."
    return f'{found}; to save this layer (up to {_mebibytes(widget, own)}), give layers="selected", heads="all".'


def _mebibytes(widget: WidgetView, choices: Sequence[SavedHead]) -> str:
    return f"{max(0.1, _bytes(widget, choices) / (1 << 20)):,.1f} MiB"


def _product(widget: WidgetView, layers: Any, heads: Any, samples: Sequence[int]) -> list[SavedHead]:
    found = []
    for layer in _numbers("layers", layers, [widget.traits.layer], len(widget.shown.stack)):
        shape = widget.shown.stack[layer].shape
        chosen = [head for head in widget.traits.heads if head < shape.H] or [0]
        own = heads if layer == widget.traits.layer or isinstance(heads, str) else [h for h in heads if h < shape.H]
        batches = [batch for batch in samples if batch < shape.B]
        found += [SavedHead(layer, *one) for one in product(batches, _numbers("heads", own, chosen, shape.H))]
    return found


def _numbers(name: str, wanted: Any, selected: Sequence[int], count: int) -> list[int]:
    """Return which of `count` layers, heads or samples to save, always including the selected ones."""
    if wanted == "all":
        return list(range(count))
    if wanted == "selected":
        return sorted(selected)
    if isinstance(wanted, str) or not hasattr(wanted, "__iter__"):
        raise TypeError(f'{name} is {wanted!r}: give "selected", "all" or a list of numbers')
    found = set(selected)
    for number in wanted:
        if isinstance(number, bool) or not hasattr(number, "__index__"):
            raise TypeError(f"{name} has {number!r}: give integers")
        number = number.__index__()
        if not -count <= number < count:
            raise IndexError(f"{name} has {number}, which is out of range: give 0 to {count - 1}")
        found.add(number % count)
    return sorted(found)


def _stages_of(widget: WidgetView, choice: SavedHead, every: bool) -> list[Stage]:
    """Return the stages whose pictures are saved; heads that are not shown have only the current stage and the weights.

    If `every` is true, because all pictures are small, every head has all its stages.
    """
    if not every and choice != (widget.traits.layer, widget.traits.batch, widget.traits.head):
        return list(dict.fromkeys([widget.traits.stage, "weights"]))
    return list(dict.fromkeys([widget.traits.stage, *widget.shown.layers[choice.layer].stages]))


def _bytes(widget: WidgetView, choices: Sequence[SavedHead]) -> int:
    """Return an upper bound on the heads' bytes as base64, not deflated; it includes every stage if that is little."""
    most = _sum(widget, choices, every=True)
    return most if most <= MAX_AUTOMATIC_BYTES else _sum(widget, choices, every=False)


def _sum(widget: WidgetView, choices: Sequence[SavedHead], *, every: bool) -> int:
    total = 0
    for choice in choices:
        shape = widget.shown.stack[choice.layer].shape
        rows, columns = min(shape.Q, picture.PICTURE_SIZE), min(shape.K, picture.PICTURE_SIZE)
        each = 4 if max(shape.Q, shape.K) <= MAX_EXACT_LENGTH else 1
        pictures = len(_stages_of(widget, choice, every)) * (1 if each == 4 else 2)
        links = 2 * 8 * LINKS * max(shape.Q, shape.K) if shape.Q * shape.K <= LINK_CELLS else 0
        small = min(SMALL_STAGES_BYTES, 6 * 4 * rows * columns)
        total += pictures * rows * columns * each + links + small
    return total * 4 // 3


def _is_long(widget: WidgetView, choice: SavedHead) -> bool:
    att = widget.shown.layers[choice.layer]
    return picture.is_long(att, LevelKey(choice.batch, choice.head, "weights", "max"))


def saving(widget: WidgetView, choices: Sequence[SavedHead]) -> Generator[float, None, Snapshot]:
    """Compute everything that these heads can show without a kernel, in steps; yields the share done."""
    saved = Snapshot(widget, choices)
    parts = (_facts, _tokens, _pictures, _recalls, _peaks, _links, _stages, _survey, _segments, _answers, _more)
    for at, part in enumerate(parts):
        for _ in part(saved):
            yield at / len(parts)
    return saved


Steps = Iterator[None]


def _add(saved: Snapshot, name: str, by: Sequence[str], values: Iterable[tuple[Sequence[Any], Any]]) -> Steps:
    """Add a trait, one value per step."""
    found = []
    for value in values:
        found.append(value)
        yield
    saved.add(SavedTrait(name, by, found))


def _more(saved: Snapshot) -> Steps:
    for name, by, values in saved.widget.more_traits(saved.choices):
        yield from _add(saved, name, by, values)


def _facts(saved: Snapshot) -> Steps:
    widget = saved.widget
    layers: dict[int, list[SavedHead]] = {}
    for choice in saved.choices:
        layers.setdefault(choice.layer, []).append(choice)
    others = left_out(widget, saved.choices)
    there = {
        layer: {
            **({"others": others} if others else {}),
            "layers": sorted(layers),
            "heads": sorted({choice.head for choice in choices}),
            "samples": sorted({choice.batch for choice in choices}),
        }
        for layer, choices in layers.items()
    }
    of_layers = ((layer, widget.derived("facts", layer) | {"saved": known}) for layer, known in there.items())
    yield from _add(saved, "facts", ["layer"], (([layer], facts) for layer, facts in of_layers))
    samples = sorted({choice[:2] for choice in saved.choices})
    stages = dict.fromkeys((linked_stage(widget.traits), "weights"))
    each = [(*of, stage) for of in samples for stage in stages]
    small = ((of, widget.derived("thumbnails", *of)) for of in each)
    yield from _add(saved, "thumbnails", ["layer", "batch", "stage"], small)
    for name in ("findings", "deviation"):
        make = functools.partial(widget.derived, name)
        yield from _add(saved, name, SavedHead._fields, zip(saved.choices, starmap(make, saved.choices), strict=True))


def _tokens(saved: Snapshot) -> Steps:
    widget = saved.widget
    samples = sorted({choice[:2] for choice in saved.choices})
    spelling = widget.shown.spelling
    for name, side in (("tokens", "query"), ("key_tokens", "key")):
        lists = [(of, widget.shown.tokens(side, *of)) for of in samples]
        encoded = ((of, encoding.encode_all_tokens(tokens, spelling)) for of, tokens in lists)
        yield from _add(saved, name, ["layer", "batch"], encoded)


def _pictures(saved: Snapshot) -> Steps:
    yield from _add(saved, "picture", picture.OF, _all_pictures(saved))


def _all_pictures(saved: Snapshot) -> Iterator[tuple[Sequence[Any], Known]]:
    widget = saved.widget
    every = _sum(widget, saved.choices, every=True) <= MAX_AUTOMATIC_BYTES
    for choice in saved.choices:
        att = widget.shown.layers[choice.layer]
        pooled = max(att.shape.Q, att.shape.K) > picture.PICTURE_SIZE
        for stage in _stages_of(widget, choice, every):
            for pool in _pools(att) if pooled else (widget.traits.pool,):
                of = (*choice, stage, pool)
                yield of, picture.labeled(_picture(widget, choice, stage, pool), of, att.shape)


def _pools(att: Attention) -> Sequence[str]:
    """Return the ways to pool pictures; kept overviews have only their own."""
    return overview.POOLS if only_overviews(att) is None else ("max",)


def _picture(widget: WidgetView, choice: SavedHead, stage: Stage, pool: str) -> Known:
    """Return every number if there are few, else the picture as drawn; for a long head, what is known so far."""
    att, key = widget.shown.layers[choice.layer], LevelKey(choice.batch, choice.head, stage, pool)
    if max(att.shape.Q, att.shape.K) <= MAX_EXACT_LENGTH:
        return exact_picture(att, key)
    if tuple(widget.traits.picture.get(name) for name in picture.OF) == (*choice, stage, pool):
        return widget.picture
    if not picture.is_long(att, key):
        return picture.exact_now(att, key)
    levels = widget.shown.levels(choice.layer)
    kept = levels.find(key)
    if kept is not None:
        return picture.from_level(levels, key, kept)
    return picture.sampled_picture(levels, key)


def exact_picture(att: Attention, key: LevelKey) -> Known:
    """Compute the picture of a short head with all its numbers as float32."""
    seen = overview.overview(att, key.batch, key.head, size=MAX_EXACT_LENGTH, pool=key.pool, stage=key.stage)
    made = picture.encoded(seen, key.stage, overview.own_keys(att, key.batch, key.head, seen))
    values, blocked = encoding.encode_numbers(seen.values, picture.blocked_bins(seen, key.stage))
    made |= {"padding": picture.padding_from(att, key.batch), "sink": sinks.column(att, key, seen.query_bin)}
    return made | {"values": values, "blocked": blocked}


def _recalls(saved: Snapshot) -> Steps:
    """Add each head's recall by row, if a cache is shown."""
    found = []
    for choice in saved.choices:
        found.append((choice, _recall(saved.widget, choice)))
        yield
    if any(recall is not None for _, recall in found):
        saved.add(SavedTrait("recall", SavedHead._fields, found))


def _recall(widget: WidgetView, choice: SavedHead) -> Known | None:
    """Return a head's recall by row if known or quick to compute, else the reason why it is missing."""
    att = widget.shown.layers[choice.layer]
    if kept_keys(getattr(att.source, "pieces", att)) is None:
        return None
    known, of, shape = widget.traits.recall, choice._asdict(), att.shape
    is_known = known is not None and all(known[name] == value for name, value in of.items())
    if known is not None and is_known and known["share"] == 1:
        return known
    if shape.Q * shape.K <= MAX_RECALL_CELLS:
        return widget.recall(choice)
    if is_known:
        return known
    why = "this head is long and was not computed for this file: select it in the notebook, call w.finish(), save again"
    return {
        **of,
        "values": encoding.encode(encoding.to_numpy(torch.zeros(0, device="cpu"))),
        "every": 1,
        "share": 1.0,
        "error": why,
    }


def _peaks(saved: Snapshot) -> Steps:
    """Add the exact greatest number in each bin of a pooled picture, and its position."""
    widget = saved.widget
    att, key = widget.selected, LevelKey(widget.traits.batch, widget.traits.head, widget.traits.stage, "max")
    (Q, K), shown = (att.shape.Q, att.shape.K), widget.picture
    down, across = shown["query_bin"], shown["key_bin"]
    if only_overviews(att) is not None:
        return
    if shown["sampled"] is not None or down * across == 1 or Q * K > MAX_PEAK_CELLS:
        return
    found = []
    for at in range(0, Q, down):
        found.append(_greatest(att, key, range(at, min(at + down, Q)), across))
        yield
    values, places = (torch.stack(part) for part in zip(*found, strict=True))
    made = {"values": encoding.to_numpy(values), "places": places.cpu().numpy().astype("uint32")}
    of = (widget.traits.layer, *key[:3])
    saved.peaks[key_of(of)] = {name: encoding.encode(array) for name, array in made.items()}


def _greatest(att: Attention, key: LevelKey, queries: range, key_bin: int) -> tuple[Tensor, Tensor]:
    """Compute the greatest number for some queries in each bin of keys, and its position, row by row."""
    where: dict[str, Any] = {"batch": key.batch, "head": key.head, "queries": queries}
    values = att.block(key.stage, **where)
    if key.stage in MASKED:
        values = values.masked_fill(~att.block("allowed", **where), -torch.inf)
    K, whole = values.shape[1], values.shape[1] // key_bin * key_bin
    parts = [values[:, :whole].unflatten(1, (-1, key_bin))] if whole else []
    parts += [values[:, None, whole:]] if whole < K else []
    found = [part.swapaxes(0, 1).flatten(1).max(1) for part in parts]
    return torch.cat([one.values for one in found]), torch.cat([one.indices for one in found])


def _links(saved: Snapshot) -> Steps:
    for choice in saved.choices:
        att = saved.widget.shown.layers[choice.layer]
        if att.shape.Q * att.shape.K > LINK_CELLS or only_overviews(att) is not None:
            continue
        linked = linked_stage(saved.widget.traits)
        stages = dict.fromkeys(("weights", linked if linked in att.stages else "weights"))
        for side, stage in product(("query", "key"), stages):
            head = att.head(choice.batch, choice.head)
            found = strongest(head, count=LINKS, side=side, stage=stage)
            sinks_of = [sink_weights(head, range(att.shape.Q))] if stage == "weights" else []
            made = encoding.encode_links([found], sinks_of)
            parts = {
                name: None if envelope is None else {**envelope, "shape": envelope["shape"][1:]}
                for name, envelope in made.items()
            }
            saved.links[key_of([*choice, side, stage])] = parts
            yield


def _stages(saved: Snapshot) -> Steps:
    widget = saved.widget
    if any(only_overviews(widget.shown.layers[choice.layer]) is not None for choice in saved.choices):
        return
    shown = SavedHead(widget.traits.layer, widget.traits.batch, widget.traits.head)
    where = shown._asdict()
    of_heads = ((c, stage_pictures.stages(widget.shown.layers[c.layer], c.batch, c.head)) for c in saved.choices)
    messages = ((c, {**c._asdict(), **made}) for c, made in of_heads)
    yield from _add(saved, "stages", SavedHead._fields, messages)
    shape = widget.selected.shape
    pairs: list[tuple[int, int]] = []
    if shape.Q * shape.K <= MAX_PAIR_CELLS:
        pairs = list(product(range(shape.Q), range(shape.K)))
    elif widget.traits.query is not None and widget.traits.key is not None:
        pairs = [(widget.traits.query, widget.traits.key)]
    steps = (((*shown, *at), {**where, **(widget.derived("pair", *shown, *at) or {})}) for at in pairs)
    yield from _add(saved, "pair", [*SavedHead._fields, "query", "key"], steps)


def _survey(saved: Snapshot) -> Steps:
    """Add small pictures and metrics of all heads, including those that the file cannot open."""
    shown, whole = saved.widget.shown, []
    for batch in sorted({choice.batch for choice in saved.choices}):
        ids = functools.partial(shown.ids, batch=batch)
        survey = heads_overview.Survey(shown.layers, batch, ids, shown.kinds, shown.text)
        for _ in survey:
            yield
        whole.append(((batch,), survey.message()))
    saved.add(SavedTrait("survey", ["batch"], whole))
    yield from _stage_heads(saved)


def _stage_heads(saved: Snapshot) -> Steps:
    """Add small pictures and sums of all heads in the selected stage, if it is a stage after the weights.

    Sums are the mean over queries, and the sums of each query if there are few, else of the pinned queries.
    """
    stage, whole = linked_stage(saved.widget.traits), list[tuple[Sequence[Any], Any]]()
    for batch in sorted({choice.batch for choice in saved.choices}) if stage != "weights" else ():
        survey = heads_of_stage.StageSurvey(saved.widget.shown.layers, batch, stage)
        for _ in survey:
            yield
        whole.append(((batch, stage, None), survey.message()))
        bytes_ = heads_of_stage.NUMBER_BYTES * sum(survey.heads) * len(survey.queries)
        few = survey.cells <= MAX_SUMMED_CELLS and bytes_ <= MAX_SUMS_BYTES
        if few:
            yield from survey.look_at_each_query()
        pinned = (query for query, _ in saved.widget.traits.pins if query is not None)
        for query in sorted({*(survey.queries if few else ()), *pinned}):
            whole.append(((batch, stage, query), survey.numbers(query)))
            yield
    saved.add(SavedTrait("stage_heads", ["batch", "stage", "query"], whole), over="query")


def _segments(saved: Snapshot) -> Steps:
    for name, by, values in saved_segments.traits(saved.widget, saved.choices):
        yield from _add(saved, name, by, values)


IN_SLICES = (
    "received",
    "spread",
    "gradients",
    "why",
    "why_row",
    "why_heads",
)  # requests whose answer may take several messages


def _answers(saved: Snapshot) -> Steps:
    """Add the quick answers to the front-end's possible requests about the shown head."""
    widget, shape = saved.widget, saved.widget.selected.shape
    of = {"layer": widget.traits.layer, "batch": widget.traits.batch, "head": widget.traits.head}
    asked: list[Known] = []
    if max(shape.Q, shape.K) <= MAX_EXACT_LENGTH:
        asked += [{"kind": "spread", **of}, {"kind": "gradients", **of}]
        asked += [{"kind": "sweep", "own": own, **of} for own in (True, False)]
        asked += [{"kind": "jacobian", "query": query, **of} for query in range(shape.Q) if shape.Q <= MAX_JACOBIANS]
    else:
        weights = {**of, "stage": "weights"}
        asked += [{"kind": "strongest", "count": 8, "skip_first": True, **weights}, {"kind": "received", **of}]
        if shape.Q + shape.K <= MAX_RANKED_LENGTH:
            for side, count in (("queries", shape.Q), ("keys", shape.K)):
                asked += [{"kind": "ranked", side: [at], "count": 12, **weights} for at in range(count)]
        for query, key in widget.traits.pins:
            asked += [] if query is None else [{"kind": "ranked", "queries": [query], "count": 12, **weights}]
            asked += [] if key is None else [{"kind": "ranked", "keys": [key], "count": 12, **weights}]
            if query is not None and key is not None:
                cell = {"queries": [query, query + 1], "keys": [key, key + 1]}
                asked += [{"kind": "peak", **cell, **weights}]
    for request in (*asked, *_reasons_asked(saved), *saved_segments.requests(widget)):
        reply = answered(widget, request)
        while reply is not None and request["kind"] in IN_SLICES and reply["share"] < 1:
            yield
            reply = answered(widget, request)
        if reply is not None:
            saved.replies[json.dumps(request, sort_keys=True, separators=(",", ":"))] = reply
        yield


def _reasons_asked(saved: Snapshot) -> Iterator[Known]:
    """Yield requests for the answers about the residual stream that were asked for, and for the pinned pair."""
    widget = saved.widget
    first = widget.shown.layers[0].sources
    for asked in () if first is None else tuple(first.answers):
        if asked[0] == "composition" and asked[3] is None:
            yield {"kind": "why_heads", "batch": asked[1], "at": None}
    for choice in saved.choices:
        sources = widget.shown.layers[choice.layer].sources
        of = choice._asdict()
        pinned = [(query, key) for query, key in widget.traits.pins if query is not None]
        own = choice == SavedHead(widget.traits.layer, widget.traits.batch, widget.traits.head)
        for query, key in pinned if own and sources is not None else ():
            yield {"kind": "why_row", **of, "query": query, "keys": []}
            is_short = key is not None and max(widget.selected.shape.Q, widget.selected.shape.K) <= MAX_EXACT_LENGTH
            for against in () if key is None else ("others", "mean", None) if is_short else ("others",):
                yield {"kind": "why", **of, "query": query, "key": key, "against": against}
        for asked in () if sources is None else tuple(sources.answers):
            kind, batch, *rest = asked
            if kind == "row" and (batch, rest[0]) == (choice.batch, choice.head):
                yield {"kind": "why_row", **of, "query": rest[1], "keys": []}
            elif kind == "pair" and (batch, rest[0]) == (choice.batch, choice.head):
                yield {"kind": "why", **of, "query": rest[1], "key": rest[2], "against": rest[3]}


def answered(widget: WidgetView, request: Known) -> Known | None:
    """Return the reply to a request with its bytes included; None if the request is refused."""
    reply, buffers = widget.answer(request)
    if not reply.pop("ok"):
        return None
    del reply["id"]
    return {name: _attached(part, buffers) for name, part in reply.items()}


def _attached(part: Any, buffers: Sequence[bytes]) -> Any:
    if isinstance(part, dict):
        if isinstance(part.get("data"), int):
            return {**part, "data": buffers[part["data"]]}
        return {name: _attached(inner, buffers) for name, inner in part.items()}
    return [_attached(inner, buffers) for inner in part] if isinstance(part, list) else part


def key_of(values: Sequence[Any]) -> str:
    """Return a selection as a key, in the format of js/src/kernel/snapshot.ts."""
    return json.dumps(list(values), separators=(",", ":"))


def packed(value: Any) -> bytes:
    """Return a value as deflated JSON, followed by its bytes, to which `{"$bytes": [offset, length]}` points."""
    parts: list[bytes] = []
    at = 0

    def place(raw: bytes) -> Known:
        nonlocal at
        start = at
        parts.append(bytes(raw) + b"\0" * (-len(raw) % 4))
        at += len(parts[-1])
        return {"$bytes": [start, len(raw)]}

    text = json.dumps(_portable(value, place), separators=(",", ":"), allow_nan=False).encode("utf-8", "surrogatepass")
    text += b" " * (-len(text) % 4)
    return zlib.compress(b"".join([struct.pack("<I", len(text)), text, *parts]), 6)


def _portable(value: Any, place: Callable[[bytes], Known]) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return place(bytes(value))
    if isinstance(value, dict):
        return {name: _portable(inner, place) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_portable(inner, place) for inner in value]
    return value
