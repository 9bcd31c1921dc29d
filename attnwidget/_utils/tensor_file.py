"""Tensors in the safetensors format: written one at a time, without a copy of them all; read, or mapped into memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

READ_BYTES = 64 << 20  # a file up to this size is read whole; a longer one is mapped into memory
ALIGNED = 64  # bytes, like torch's own tensors, so that kernels give the same last bits
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_tensors(file: IO[bytes], tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors by name, with dtypes in `DTYPES`, ordered so that all are aligned.

    Args:
        file: opened for writing.
        tensors: on any device, of any strides.
        metadata: strings by name, for the header.
    """
    ordered = dict(sorted(tensors.items(), key=lambda item: (item[1].nbytes % ALIGNED != 0, -item[1].element_size())))
    entries: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    stop = 0
    for name, x in ordered.items():
        start, stop = stop, stop + x.nbytes
        entries[name] = {"dtype": DTYPES[x.dtype], "shape": list(x.shape), "data_offsets": [start, stop]}
    head = json.dumps(entries).encode()
    head += b" " * (-(8 + len(head)) % ALIGNED)
    file.write(len(head).to_bytes(8, "little") + head)
    for x in ordered.values():
        file.write(x.cpu().contiguous().flatten().view(torch.uint8).numpy().data)


def nbytes_of(tensors: Mapping[str, Tensor]) -> int:
    """Return the bytes of some tensors in a file."""
    return sum(x.nbytes for x in tensors.values())


def read_tensors(path: Path, entry: str, most: int = READ_BYTES) -> tuple[str | None, dict[str, Tensor]]:
    """Return an entry of a file's metadata, and its tensors by name; None and no tensors if there is no such entry.

    Args:
        path: of the file.
        entry: its name.
        most: the bytes of the longest file that is read whole. A longer one is mapped: its tensors are read when they
            are needed, and it must not be cut meanwhile.

    Raises:
        SafetensorError, OSError, and any error of wrong content, such as KeyError, RecursionError or ValueError.
    """
    return _read(path, entry) if path.stat().st_size <= most else _map(path, entry)


def _map(path: Path, entry: str) -> tuple[str | None, dict[str, Tensor]]:
    from safetensors import safe_open  # imported here: only reading needs it

    with safe_open(path, framework="pt") as file:
        header = (file.metadata() or {}).get(entry)
        return header, {} if header is None else {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def _read(path: Path, entry: str) -> tuple[str | None, dict[str, Tensor]]:
    from safetensors import deserialize  # imported here: only reading needs it

    raw = path.read_bytes()
    parts: dict[str, Any] = dict(deserialize(raw))  # type: ignore[no-untyped-call]
    size = int.from_bytes(raw[:8], "little")
    header = (json.loads(raw[8 : 8 + size]).get("__metadata__") or {}).get(entry)
    del raw
    return header, {} if header is None else {name: _tensor_of(parts.pop(name)) for name in list(parts)}


def _tensor_of(part: Mapping[str, Any]) -> Tensor:
    """Return one tensor, in memory aligned by torch."""
    dtype = {name: dtype for dtype, name in DTYPES.items()}[part["dtype"]]
    if not part["data"]:
        return torch.empty(part["shape"], dtype=dtype, device="cpu")
    return torch.frombuffer(part["data"], dtype=dtype).clone().view(part["shape"])
