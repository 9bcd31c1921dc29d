"""Join the weights of a generation, which come token by token, into one matrix of each layer.

`model.generate(output_attentions=True)` returns a tuple for each step: the prompt, then each new token. A step has the
rows of its new queries, over all keys so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._utils.validation import as_tensor

ROLLED = (
    "step {} has {} keys after {} positions: the cache dropped keys, and their places are unknown. Record it with "
    "capture(model) around generate()"
)


def is_by_step(weights: Any) -> bool:
    """Return whether weights are nested as `generate` returns them: a tuple of layers for each step."""
    nested = isinstance(weights, list | tuple) and len(weights) > 0 and isinstance(weights[0], list | tuple)
    return nested and any(hasattr(one, "shape") or one is None for one in weights[0])


def joined_steps(steps: Sequence[Sequence[Any]], beams: Tensor | None = None) -> list[Tensor]:
    """Return the weights (B, H, Q, K) of each layer: the rows of the prompt, then one or more rows a step.

    Args:
        steps: of each step, the weights (B, H, Q of the step, K so far) of each layer.
        beams: (sequences, steps), the row of each returned sequence in the batch of each step, −1 after its end; None:
            sequences keep their rows.

    Raises:
        ValueError: steps have another number of layers, or keys whose places are unknown.
    """
    counts = {len(layers) for layers in steps}
    if len(counts) != 1:
        raise ValueError(f"steps have {' and '.join(map(str, sorted(counts)))} layers: give all layers of each step")
    return [_joined([as_tensor(layers[i], "weights") for layers in steps], beams) for i in range(counts.pop())]


def _joined(steps: Sequence[Tensor], beams: Tensor | None) -> Tensor:
    for number, one in enumerate(steps):
        if one.ndim != 4:
            raise ValueError(f"step {number} has weights {tuple(one.shape)}: give (batch, heads, queries, keys)")
    if beams is not None:
        steps = [_of_sequences(one, beams[:, min(i, beams.shape[1] - 1)]) for i, one in enumerate(steps)]
    sizes = [one.shape[3] for one in steps]
    if len(steps) > 1 and len(set(sizes)) == 1:  # of another text, or of a buffer that fills
        whole = torch.cat(list(steps), 2)
        used = whole.shape[2]
        is_buffer = used < whole.shape[3] and not bool(whole[..., used:].any())
        return whole[..., :used] if is_buffer else whole
    rows: list[Tensor] = []
    before = sizes[0] - steps[0].shape[2]  # keys of an earlier call
    for number, one in enumerate(steps):
        at = one.shape[3] - one.shape[2] - before  # the place of its first query
        length = sum(x.shape[2] for x in rows)
        if at > length or at < 0 or (number and at < steps[0].shape[2]):
            raise ValueError(ROLLED.format(number, one.shape[3], length + before))
        while length > at:  # tokens that were tried and taken back
            last = rows.pop()
            length -= last.shape[2]
            if length < at:
                rows.append(last[:, :, : at - length])
                length = at
        rows.append(one)
    return torch.cat([torch.nn.functional.pad(x, (0, sizes[-1] - x.shape[3])) for x in rows], 2)


def _of_sequences(x: Tensor, rows: Tensor) -> Tensor:
    """Return the rows of a batch that sequences have; 0 for a sequence that has ended."""
    taken = x[rows.clamp(min=0).to(x.device)]
    return taken * (rows >= 0).to(x.device)[:, None, None, None]
