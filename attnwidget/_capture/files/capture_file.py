"""A capture as a file: tensors in the safetensors format, rules as JSON in its header. Nothing in it is code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from reprlib import repr as short  # untrusted values may be long or deep
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor

from ..._engine.base import with_sources, witnessed
from ..._parallel import saved_tensors
from ..._rules.row_spans import as_spans
from ..._utils import files
from ..._utils.tensor_file import READ_BYTES, nbytes_of, read_tensors, write_tensors
from ..._utils.validation import as_tensor
from ...attention import Attention
from ...masks import Mask, mask_from_json, mask_to_json
from ..call.call_rules import CallRules, evaluate_mask
from ..call.call_text import RecordText
from ..carried.files import entry_of_carried, with_carried
from ..distributed.head_shards import named_by_process, process_of
from ..modules.advice import incomplete
from ..records import overview_record
from ..records.overview_record import ReducedAttention
from ..sources.files import entry_of_sources, saved_sources
from ..text.labels import SavedWords, saved_words
from ..text.stacks import TextedRecord
from ..verify.witness import CaptureLacks, Witness

VERSION = 1
HEADER = "attnwidget"
EXAMPLE = "run.safetensors"
ADVICE = "give a file that Capture.save wrote"
SCALAR_RULES = ("is_causal", "scale", "softcap")
# Errors of reading a file with wrong contents: any but a lack of memory or an interrupt.
WRONG_CONTENT = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class OtherFileError(ValueError):
    """A valid file that cannot be read here."""


@dataclass(frozen=True)
class LoadedRecord:
    """A record that was read from a file."""

    name: str
    cross: bool
    attention: Attention
    text: RecordText = field(default_factory=RecordText)


class LoadedCapture(NamedTuple):
    """The contents of a file."""

    forwards: list[dict[str, LoadedRecord]]
    skipped: dict[str, str]
    tokenizer: SavedWords | str | None = None
    towers: tuple[str, ...] = ()
    process: tuple[int, int] | None = None  # its number, and how many there are; None: a single process
    requests: tuple[str, ...] = ()  # the names of its forward passes, if they are requests of an engine


def tensors_of(att: Attention) -> dict[str, Tensor]:
    """Return all tensors of an attention by name, such as "q" or "mask.starts"."""
    if isinstance(att, ReducedAttention):
        return att.source.tensors()
    found = att.source.tensors()
    found |= {name: x for name, x in (("v", att.v), ("sinks", att.sinks)) if x is not None}
    for name in ("mask", "bias"):
        rule = getattr(att.options, name)
        if isinstance(rule, Mask):
            found |= {f"{name}.{part}": x for part, x in rule.tensors().items()}
        elif isinstance(rule, Tensor):
            found[name] = rule
    carries = att.carries
    kept = {} if carries is None else {"scale of the norm": carries.scale, "gradient": carries.grad_output}
    return found | {name: x for name, x in kept.items() if x is not None}


def save(
    forwards: Sequence[Mapping[str, TextedRecord]],
    skipped: Mapping[str, str],
    path: str | Path,
    *,
    tokenizer: Any = None,
    towers: Sequence[str] = (),
    requests: Sequence[str] = (),
) -> None:
    """Write all records, the skipped calls, and the text at the positions: see `Capture.save`."""
    table = _TensorTable()
    entries = [[_entry_of(name, record, table) for name, record in records.items()] for records in forwards]
    texts = [x for records in forwards for record in records.values() for x in record.text.all_ids()]
    metadata = {"version": VERSION, "forwards": entries, "skipped": dict(skipped), "towers": list(towers)}
    if requests:
        metadata["requests"] = list(requests)
    if tokenizer is not None:
        metadata["tokenizer"] = saved_words(tokenizer, texts)
    process = process_of()
    if process is not None:
        metadata["process"] = process
    _write(named_by_process(path, process), table.tensors, json.dumps(metadata))


def _write(path: str | Path, tensors: dict[str, Tensor], metadata: str) -> None:
    """Write a safetensors file with tensors aligned as torch's own, so that kernels give the same last bits."""
    target = files.writable(path, EXAMPLE)
    with files.replacing(target, nbytes_of(tensors)) as file:  # this very capture may have mapped the old file
        write_tensors(file, tensors, {HEADER: metadata})


class _TensorTable:
    """The tensors of a file, each once."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[tuple[Any, ...], str] = {}
        self._small: list[str] = []

    def add(self, x: Tensor) -> str:
        """Return the name of a tensor in the file."""
        key = (x.data_ptr(), x.shape, x.stride(), x.dtype, x.device)
        if key not in self._names:
            self._names[key] = name = f"{len(self._names)}"
            self.tensors[name] = x
        return self._names[key]

    def add_alike(self, x: Tensor) -> str:
        """Return the name of a small tensor in the file; one with the same numbers is reused."""
        same = next((name for name in self._small if _are_equal(self.tensors[name], x)), None)
        if same is None:
            same = self.add(x)
            self._small.append(same)
        return same


def _are_equal(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape and x.dtype == y.dtype and torch.equal(x, y)


def _entry_of(name: str, record: TextedRecord, table: _TensorTable) -> dict[str, Any]:
    att = record.attention
    found = {"name": name, "cross": record.cross, **_part_of(att), **_text_of(record, table)}
    if isinstance(att, ReducedAttention):
        return {**found, "overview": overview_record.entry_of(att, table.add)}
    given = att.source.tensors() | ({} if att.v is None else {"v": att.v})
    parts = {part: table.add(x) for part, x in given.items()}
    options = att.options
    entry = {**found, **parts}
    entry |= {} if not isinstance(att.witness, Witness) else {"witness": att.witness.to_json(table.add)}
    entry |= {"scale": att.scale, "softcap": att.softcap, "is_causal": att.is_causal}
    entry |= {} if att.sinks is None else {"sinks": table.add(att.sinks)}
    carried = entry_of_carried(att, table.add)
    entry |= {} if carried is None else {"carried": carried}
    asked = entry_of_sources(att, table.add)
    entry |= {} if asked is None else {"sources": asked}
    return entry | {"mask": _mask_entry(options.mask, att, name, table), "bias": _bias_entry(options.bias, name, table)}


def _text_of(record: TextedRecord, table: _TensorTable) -> dict[str, Any]:
    text = {part: table.add_alike(x) for part, x in record.text.tensors().items()}
    return {"text": {**text, **record.text.facts()}} if text or record.text.facts() else {}


def _part_of(att: Attention) -> dict[str, Any]:
    part = {} if att.part is None else att.part._asdict()
    given = {name: part[name] for name in ("heads", "queries", "keys_before") if part.get(name) is not None}
    return {"part": given} if given else {}


def _mask_entry(mask: Any, att: Attention, name: str, table: _TensorTable) -> Any:
    if callable(mask) and not isinstance(mask, Mask | Tensor):
        cells = evaluate_mask(mask, CallRules(att.shape.Q, att.shape.K, 0, False, None, None), att.device)
        mask = as_spans(cells)
        if mask is None:
            raise ValueError(
                f"the mask of {name!r} is a function whose rows are not runs of keys, and a file holds no code: run "
                "the model with attn_implementation='sdpa', whose masks are tensors, or give it a mask tensor"
            )
    if mask is None:
        return None
    if not isinstance(mask, Mask):
        return {"kind": "tensor", "tensor": table.add(as_tensor(mask, "mask"))}
    try:
        return mask_to_json(mask, table.add)
    except ValueError as error:
        raise ValueError(f"the mask of {name!r} cannot be saved: {error}") from error


def _bias_entry(bias: Any, name: str, table: _TensorTable) -> str | None:
    if bias is None or isinstance(bias, Tensor):
        return None if bias is None else table.add(bias)
    raise ValueError(
        f"the score_mod of {name!r} is a function, and a file holds no code: have the model add its numbers "
        "to the scores as a float mask, or leave it out with layers="
    )


# Reading.


def load(path: str | Path) -> LoadedCapture:
    """Read a whole file: see `Capture.load`."""
    found = files.as_path(path, EXAMPLE)
    if not found.is_file():
        what = "a directory" if found.is_dir() else "not a file" if found.exists() else "not there"
        raise FileNotFoundError(f"{path} is {what}: {ADVICE}")
    try:
        header, tensors = read_tensors(found, HEADER, READ_BYTES)
        saved_tensors.note(found, tensors)
        metadata = _checked(header, path)
        lacks, skipped = CaptureLacks(), dict(metadata.get("skipped", {}))
        forwards = [
            {one["name"]: _record_of(one, tensors, lacks) for one in entries} for entries in metadata["forwards"]
        ]
        lacks.lines[:] = incomplete(skipped, sum(map(len, forwards)))
        tokenizer = _tokenizer_of(metadata.get("tokenizer"))
        towers = tuple(str(one) for one in metadata.get("towers", ()))
        process = _process_in(metadata.get("process"))
        requests = tuple(str(one) for one in metadata.get("requests", ()))[: len(forwards)]
        return LoadedCapture(forwards, skipped, tokenizer, towers, process, requests)
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file ({error}): {ADVICE}") from error
    except OtherFileError:
        raise
    except PermissionError as error:
        raise PermissionError(f"{path} may not be read: change its permissions") from error
    except WRONG_CONTENT as error:
        raise ValueError(f"{path} cannot be read ({str(error)[:200]}): {ADVICE}") from error


def _checked(header: str | None, path: str | Path) -> dict[str, Any]:
    """Return the metadata of a file that this version can read."""
    if header is None:
        raise OtherFileError(f"{path} holds tensors, but no attention: {ADVICE}")
    metadata = json.loads(header)
    if metadata["version"] != VERSION:
        version = short(metadata["version"])
        raise OtherFileError(f"{path} has version {version}, and this attnwidget reads version {VERSION}: update it")
    return dict(metadata)


def _record_of(entry: dict[str, Any], tensors: dict[str, Tensor], lacks: CaptureLacks) -> LoadedRecord:
    att = _attention_of(entry, tensors)
    text = RecordText.loaded(entry.get("text", {}), tensors, att.shape.B, att.shape.Q)
    cross = bool(entry["cross"])
    att = _as_part(att, entry.get("part", {}), cross=cross)
    if "sources" in entry:
        att = with_sources(att, saved_sources(entry["sources"], tensors, att.shape))
    witness = Witness.from_json(entry["witness"], tensors, lacks, att.shape) if "witness" in entry else None
    return LoadedRecord(entry["name"], cross, att if witness is None else witnessed(att, witness), text)


def _as_part(att: Attention, part: Mapping[str, Any], *, cross: bool) -> Attention:
    heads, queries, before = (part.get(name) for name in ("heads", "queries", "keys_before"))
    given = [(heads, att.shape.H), (queries, att.shape.Q), (None if before is None else [before], 1)]
    for places, length in given:
        if places is not None and (len(places) != length or not all(_is_place(place) for place in places)):
            raise ValueError(f"a part of {short(places)}")
    return att.as_part(heads, queries, before, cross)


def _is_place(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 53


def _attention_of(entry: dict[str, Any], tensors: dict[str, Tensor]) -> Attention:
    if "overview" in entry:
        return overview_record.attention_from(entry["overview"], tensors)
    given: list[Any] = [tensors[entry[name]] if name in entry else None for name in ("q", "k", "v")]
    if "weights" in entry:
        att = Attention.from_weights(tensors[entry["weights"]], given[2])
        return with_carried(att, entry["carried"], tensors) if "carried" in entry else att
    rules = {name: entry[name] for name in SCALAR_RULES}
    bias = None if entry["bias"] is None else tensors[entry["bias"]]
    sinks = tensors[entry["sinks"]] if "sinks" in entry else None
    att = Attention(*given, **rules, sinks=sinks, mask=_mask_of(entry["mask"], tensors), bias=bias)
    return with_carried(att, entry["carried"], tensors) if "carried" in entry else att


def _tokenizer_of(entry: Any) -> SavedWords | str | None:
    """Return the file's words for its ids, or the tokenizer's name if it has no words."""
    if not isinstance(entry, dict):
        return None
    name = entry["name"] if isinstance(entry.get("name"), str) else None
    words = entry.get("words")
    if not words:
        return name
    return SavedWords(name, {int(one): str(word) for one, word in words.items()}, entry.get("spelling"))


def _process_in(entry: Any) -> tuple[int, int] | None:
    if entry is None:
        return None
    rank, size = entry
    if not (_is_place(rank) and _is_place(size) and rank < size):
        raise ValueError(f"a process {short(entry)}")
    return rank, size


def _mask_of(entry: Any, tensors: dict[str, Tensor]) -> Any:
    if entry is None or entry["kind"] == "tensor":
        return None if entry is None else tensors[entry["tensor"]]
    return mask_from_json(entry, tensors)
