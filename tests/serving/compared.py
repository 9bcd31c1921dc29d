"""Compare the attention of requests with that of the same model in transformers, eager."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

LONG = " ".join(f"w{(i * 37) % 400}" for i in range(300))
SHORT = "w9 w8 w7"
EXACT = 1e-6


def greedy(count: int, **more: Any) -> Any:
    """Return sampling that always takes the most likely token, so many times."""
    from vllm import SamplingParams

    return SamplingParams(max_tokens=count, temperature=0, ignore_eos=True, **more)


def largest_difference(forward: Any, ids: Sequence[int], model: Any) -> float:
    """Return the largest difference of a weight of a request from that of a model in transformers.

    Args:
        forward: of the request.
        ids: the tokens that the engine read and gave, of which the last may not have been read.
        model: in transformers, eager.
    """
    read = forward.attention[0].shape.K
    assert forward.inputs["input_ids"][0].tolist() == list(ids[:read])
    with torch.no_grad():
        expected = model(torch.tensor([list(ids[:read])]), output_attentions=True).attentions
    assert len(expected) == len(forward.attention)
    apart = 0.0
    for number, (att, weights) in enumerate(zip(forward.attention, expected, strict=True)):
        rows = range(att.shape.Q) if att.part is None or att.part.queries is None else att.part.queries
        heads = slice(None) if att.part is None or att.part.heads is None else list(att.part.heads)
        own = forward.attention.weights(number)[0]
        apart = max(apart, float((own - weights[0][heads][:, list(rows)]).abs().max()))
    return apart


def check(cap: Any, outputs: Sequence[Any], model: Any, name: str = "{}", *, drafts: bool = False) -> None:
    """Assert that all requests of a capture are those of a model, to the last digit that counts.

    With `drafts`, the last token of an answer may have been read, as a draft that was right.
    """
    for one in outputs:
        for i, answer in enumerate(one.outputs):
            own = one.request_id if len(one.outputs) == 1 else f"{one.request_id}, sample {i}"
            forward, ids = cap[name.format(own)], [*one.prompt_token_ids, *answer.token_ids]
            read = forward.attention[0].shape.K
            assert read == len(ids) - 1 or (drafts and read == len(ids))
            assert largest_difference(forward, ids, model) <= EXACT
