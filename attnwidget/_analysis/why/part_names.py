"""Names of what wrote into the residual stream: each says what it is, and no two are alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from .layer_names import LayerName, tower_of
from .stream_graph import Writer, WriterKey


@dataclass(frozen=True)
class StreamPart:
    """A part of the residual stream.

    Attributes:
        label: its short name, which no other part of a result has: "1·4" for head 4 of layer 1, "MLP 1", "token",
            "position", "bias of …"; for other modules their own name, such as "0.conv".
        kind: "head", "cross head", "attention", "MLP", "module", "token", "position", "type", "input", "parameter",
            "bias"; with a dictionary also "feature" and "rest".
        module: the name of the module or the parameter that wrote it, with " #2" if it did so for the second time.
        layer: the number of its layer in `cap.attention`; for a module of a block without attention that of the last
            layer before it; None for what was written before the first, and for biases.
        head: the number of its head; None for others.

    >>> import torch
    >>> from attnwidget import capture
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    >>> cap = capture(model, sources=True).run(torch.randn(1, 5, 8))
    >>> [part.label for part in cap.why(1, 0, 4, 2).key_parts if part.kind in ("head", "MLP")]
    ['0·0', '0·1', 'MLP 0']
    """

    label: str
    kind: str
    module: str
    layer: int | None = None
    head: int | None = None


@dataclass(frozen=True)
class _Named:
    """A part, the names that it may have, the best first, and its rank; see `distinct`."""

    part: StreamPart
    labels: tuple[str, ...]
    rank: int = 0


def part_names(
    writers: Sequence[tuple[Writer, Sequence[str]]], layers: Mapping[str, LayerName]
) -> dict[WriterKey, StreamPart]:
    """Return a part with a name of its own for each writer but heads.

    Args:
        writers: each with the records of its forward pass, in the order of their calls.
        layers: the names of each record's layer.
    """
    blocks = _Blocks([writer.module for writer, _ in writers if writer.kind == "writer"], layers)
    found: dict[WriterKey, _Named] = {}
    for writer, records in writers:
        if writer.kind != "head" and writer.key not in found:
            found[writer.key] = _named(writer, blocks.record_of(writer, records), records, layers)
    labels = distinct([(one.labels, one.rank) for one in found.values()], [tower_of(key[1]) for key in found])
    return {key: replace(one.part, label=label) for (key, one), label in zip(found.items(), labels, strict=True)}


def distinct(given: Sequence[tuple[Sequence[str], int]], places: Sequence[str] | None = None) -> list[str]:
    """Return a name for each thing, no two alike.

    Args:
        given: the names that each may have, the best first, and its rank: of things with one name, the only one of
            the highest rank keeps it, and others take their next.
        places: of each; things at different places may have one name.

    >>> distinct([(("MLP 0", "0.mlp"), 2), (("MLP 0", "0.adapter"), 1), (("token", "emb"), 0)])
    ['MLP 0', '0.adapter', 'token']
    """
    at, there = [0] * len(given), places or [""] * len(given)
    most = max((len(labels) for labels, _ in given), default=1)
    while True:
        now = [labels[min(i, len(labels) - 1)] for (labels, _), i in zip(given, at, strict=True)]
        alike: dict[tuple[str, str], list[int]] = {}
        for i, label in enumerate(now):
            alike.setdefault((label, there[i]), []).append(i)
        moved = False
        for own in alike.values():
            best = [i for i in own if given[i][1] == max(given[j][1] for j in own)]
            for i in own if len(own) > 1 else []:
                if (len(best) > 1 or i != best[0]) and at[i] < most:
                    at[i], moved = at[i] + 1, True
        if not moved:
            break
    for (label, _), own in alike.items():
        for count, i in enumerate(own[1:], 2):  # the same name to the end: they are counted
            now[i] = f"{label} ({count})"
    return now


def told_apart(*sides: Iterable[StreamPart]) -> list[tuple[StreamPart, ...]]:
    """Return parts with a name of their own each: the door of every result.

    Args:
        sides: the parts of the query and those of the key, which may be the same.
    """
    given = [tuple(parts) for parts in sides]
    seen: dict[str, StreamPart] = {}
    places = [
        (part.module, part.head) for parts in given for part in parts for part in [seen.setdefault(part.label, part)]
    ]
    wanted = [(part.module, part.head) for parts in given for part in parts]
    if places == wanted and all(len({part.label for part in parts}) == len(parts) for parts in given):
        return given
    own = {(part.kind, part.module, part.head): part for parts in given for part in parts}
    labels = distinct([(_alternatives(part), int(part.head is not None)) for part in own.values()])
    names = dict(zip(own, labels, strict=True))
    found = [tuple(replace(part, label=names[part.kind, part.module, part.head]) for part in parts) for parts in given]
    return [_counted(parts) for parts in found]


def _alternatives(part: StreamPart) -> tuple[str, ...]:
    if not part.module:
        return (part.label, f"computed {part.label}") if part.kind in EMBEDDINGS else (part.label,)
    short = short_name(part.module)
    if part.kind in EMBEDDINGS:
        return part.label, f"{part.label} of {short}", f"{part.label} of {part.module}"
    return part.label, short, part.module


def _counted(parts: tuple[StreamPart, ...]) -> tuple[StreamPart, ...]:
    """Return parts with a number behind a name that an earlier one has, as only a damaged file could bring it."""
    labels = distinct([((part.label,), 0) for part in parts])
    return tuple(replace(part, label=label) for part, label in zip(parts, labels, strict=True))


EMBEDDINGS = ("token", "position", "type")


def short_name(module: str) -> str:
    """Return the end of a module's name, from its layer's number on, without "bias" and "weight".

    >>> short_name("transformer.h.3.attn.c_proj.bias"), short_name("layers.0.0")
    ('3.attn.c_proj', 'layers.0.0')
    """
    name, again, turn = module.partition(" #")
    parts = [part for part in name.split(".") if part not in ("bias", "weight")]
    numbers = [i for i, part in enumerate(parts) if part.isdigit()]
    first = numbers[0] if numbers else -2
    if numbers and all(part.isdigit() for part in parts[first:]):
        first = max(0, first - 1)
    found = ".".join(parts[first:]) or name
    return (f"module {found}" if found.replace(".", "").isdigit() else found) + again + turn


def _named(writer: Writer, record: str | None, records: Sequence[str], layers: Mapping[str, LayerName]) -> _Named:
    again = f" #{writer.turn + 1}" if writer.turn else ""
    module = writer.module + again
    short = short_name(module)
    if writer.kind == "attention" and writer.record is not None:
        name = layers[writer.record]
        return _Named(StreamPart("", "attention", module, name.number), (f"attention {name.label}", short, module), 3)
    if writer.kind in ("writer", "attention"):
        last = next((layers[one].number for one in reversed(records[: writer.layer]) if not layers[one].cross), None)
        part = StreamPart("", "MLP" if writer.mlp else "module", module, last)
        if writer.mlp and record is not None:
            name = layers[record]
            return _Named(replace(part, layer=name.number), (f"MLP {name.label}", short, module), writer.mlp)
        if writer.function and not writer.mlp:
            where = short if writer.module else f"the model{again}"
            return _Named(part, (f"{writer.function} in {where}", f"{writer.function} in {module}"))
        return _Named(part, (short or f"the model{again}", module))
    if writer.kind == "bias":
        return _Named(StreamPart("", "bias", module), (f"bias of {short}", f"bias of {module}"))
    part = StreamPart("", writer.kind, "" if writer.kind == "input" else module)
    if writer.kind == "parameter":
        return _Named(part, (short, module))
    base = {"type": "token type"}.get(writer.kind, writer.kind)
    if not writer.module:
        return _Named(part, (base, f"computed {base}{again}"))
    return _Named(part, (base, f"{base} of {short}", f"{base} of {module}"))


class _Blocks:
    """Finds the attention of a module's block by their names.

    The block is the smallest module, by its name, that holds the module and an attention. A list of blocks is none: an
    attention there lies in a block with other modules that write, or in one of several that are counted.

    Args:
        writers: the names of all modules that write and are not an attention.
        layers: the names of each record's layer.
    """

    def __init__(self, writers: Sequence[str], layers: Mapping[str, LayerName]) -> None:
        self._layers = layers
        self._writers = {above for name in writers for above in _above(name)}
        self._inside: dict[tuple[str, ...], dict[str, list[int]]] = {}

    def record_of(self, writer: Writer, records: Sequence[str]) -> str | None:
        """Return the record of the attention in a module's block, the last before it wrote; None if there is none."""
        inside = self._held(tuple(records))
        for block in _above(writer.module):
            if block in inside:
                numbers = [i for i in inside[block] if not self._layers[records[i]].cross] or inside[block]
                before = [i for i in numbers if i < writer.layer]
                chosen = records[before[-1] if before else numbers[0]]
                return chosen if self._is_block(block, writer.module, chosen.partition(" #")[0]) else None
        return None

    def _held(self, records: tuple[str, ...]) -> dict[str, list[int]]:
        if records not in self._inside:
            found: dict[str, list[int]] = {}
            for i, record in enumerate(records):
                for above in _above(record.partition(" #")[0]):
                    found.setdefault(above, []).append(i)
            self._inside[records] = found
        return self._inside[records]

    def _is_block(self, block: str, module: str, record: str) -> bool:
        rest, own = (_below(name, block) for name in (record, module))
        if rest and ".".join([*([block] if block else []), rest[0]]) in self._writers:
            return False
        is_counted = any(part.isdigit() for part in block.split("."))
        return is_counted or not any(part.isdigit() for part in (*rest, *own[:-1], *own[:1]))


def _above(module: str) -> list[str]:
    """Return a module's name and those of all that hold it, the innermost first."""
    parts = module.split(".") if module else []
    return [".".join(parts[:n]) for n in range(len(parts), -1, -1)]


def _below(name: str, block: str) -> list[str]:
    rest = name[len(block) :].lstrip(".")
    return rest.split(".") if rest else []
