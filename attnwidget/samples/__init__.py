"""Bundled samples: q, k and v of a real model, to look at attention without loading one.

A sample is one `.npz` file beside this module, with three arrays:

- `planes` (4, 3, L, B, H, Q, D) uint8: q, k, v as little-endian float32, byte 0 of every number first, then byte 1 and
  so on. The grouped sign and exponent bytes compress well, without loss.
- `tokens` (B, Q) text
- `mask` (B, K) bool, True = may attend

`examples/make_samples.py` makes the files from the models.
"""

from importlib.resources import files
from typing import IO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._utils.readable import listed
from .._utils.validation import closest

__all__ = ["Sample", "load_sample"]

_NAMES = ("bank", "cat")


class Sample(NamedTuple):
    """The attention inputs of a model's layers; the field names are the keywords of `AttentionWidget`.

    Attributes:
        q, k, v: float32 (L, B, H, Q, D), after the split into heads and before the scale 1/√D.
        tokens: one list of strings for each text, padding included.
        mask: bool (B, K), True = may attend; padding is False.

    >>> from attnwidget import load_sample
    >>> sample = load_sample("cat")
    >>> sample.q.shape, sample.tokens[0][:3]
    (torch.Size([6, 1, 12, 10, 32]), ['[CLS]', 'i', 'have'])
    """

    q: Tensor
    k: Tensor
    v: Tensor
    tokens: list[list[str]]
    mask: Tensor

    def __repr__(self) -> str:
        return listed("Sample", self._asdict().items())


def load_sample(name: str = "bank") -> Sample:
    """Load q, k, v, tokens and mask of a real model, bit for bit as the model computed them.

    `"bank"`: all layers and heads of a sentence encoder, for two texts that use both senses of "bank"; the second text
    is shorter and padded. L = 6 layers, B = 2 texts, H = 12 heads, Q = K = 20 tokens, D = 32.

    1. She sat on the bank of the river and counted the money the bank had lent her.
    2. The bank will not lend money to build on the river bank.

    `"cat"`: the same for one short text; its last word refers to an earlier one. B = 1 text, Q = K = 10 tokens.

    1. I have a cat and i love her

    Args:
        name: the name of the sample.

    Returns:
        A `Sample`: q, k, v float32 (L, B, H, Q, D), tokens (B lists of Q strings), mask bool (B, K). Each call makes
        new tensors, so you may write into them.

    Raises:
        ValueError: there is no sample with that name.

    Source: sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0), fine-tuned from MiniLM: Wang et al. 2020, "MiniLM: Deep
    Self-Attention Distillation for Task-Agnostic Compression of Pre-Trained Transformers".

    >>> q, k, v, tokens, mask = load_sample("bank")
    >>> q.shape
    torch.Size([6, 2, 12, 20, 32])
    >>> tokens[0][14], tokens[0][16], tokens[0][8]
    ('bank', 'lent', 'river')
    >>> scaled = q[5, 0, 7] @ k[5, 0, 7].mT / 32**0.5  # (Q, K); the first text has no padding
    >>> weights = scaled.softmax(dim=-1)
    >>> [round(weights[14, key].item(), 4) for key in (16, 8)]
    [0.2283, 0.2242]
    """
    if name not in _NAMES:
        nearest = closest(name, _NAMES, cutoff=0)
        known = " and ".join(map(repr, _NAMES))
        raise ValueError(f"no sample is called {name!r}: there are {known}; try load_sample({nearest!r})")
    with files(__name__).joinpath(f"{name}.npz").open("rb") as file:
        return _read(file)


def _read(file: IO[bytes]) -> Sample:
    with np.load(file, allow_pickle=False) as data:
        planes, tokens, mask = data["planes"], data["tokens"], data["mask"]
    values = np.ascontiguousarray(np.moveaxis(planes, 0, -1)).view("<f4")[..., 0]  # (3, L, B, H, Q, D)
    q, k, v = (torch.from_numpy(part.astype(np.float32)) for part in values)  # astype copies: no storage is shared
    return Sample(q, k, v, tokens.tolist(), torch.from_numpy(mask))
