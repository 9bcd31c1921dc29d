"""Write tensors in the safetensors format one at a time, without a copy of them all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import IO, Any

import torch
from torch import Tensor

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
