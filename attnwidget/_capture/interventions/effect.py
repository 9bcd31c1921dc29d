"""`effect`: what edits of a model do to what it says, by one run without and one with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsIndex

from ..._analysis.effect import Effect
from ..._segments.segments import Segments
from .comparing import TargetLike, compare_outputs, words_of_edits
from .intervene import intervene
from .model_call import read_call


def effect(
    model: Any,
    inputs: Any,
    edits: Mapping[Any, Any],
    target: TargetLike = None,
    at: SupportsIndex = -1,
    *,
    batch: SupportsIndex | None = None,
    tokenizer: Any = None,
    first_piece: bool = False,
    segments: Segments | None = None,
    cross: bool | None = None,
) -> Effect:
    """Run a model without and with edits of its attention, and compare what it says.

    Args:
        model: an `nn.Module`, or an object that has one as `.model`, such as a pipeline; in evaluation mode.
        inputs: its arguments by name, such as tokenizer(text, return_tensors="pt") or cap.inputs; a text, with a
            tokenizer; ids; a tuple of arguments; or a function without arguments that runs the model and returns its
            output.
        edits: as `intervene` takes them.
        target: the token whose log-probability is compared: its text, such as " Paris", which must be one token; its
            id; None for the one that is most likely without the edits. Or a function of the output that returns one
            number, such as a cosine of two sentences: of models without a language-model head.
        at: the position whose output is looked at, from 0; negative ones count from the end of the text, before its
            padding. The output there tells the next token; of a masked model the masked one, and −1 is its last mask.
            Of a model with an encoder and a decoder it is a position of the decoder.
        batch: the sample, where there are several.
        tokenizer: None: that of the model, where it has one.
        first_piece: whether a target of several tokens means the first of them.
        segments, cross: as `intervene` takes them.

    Returns:
        `Effect`: before, after and change of the log-probability in nats, KL divergence at each position, and the ten
        tokens that move most.

    Raises:
        TypeError, ValueError, IndexError: what `intervene` refuses; a target that is no token, or several, which are
            named; a position or sample that is not there; a model in training mode.

    Ablation by attention knock-out: Geva et al. 2023, "Dissecting Recall of Factual Associations", §5.

    >>> import torch
    >>> class Tiny(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.embed, self.attend = torch.nn.Embedding(5, 8), torch.nn.MultiheadAttention(8, 2, batch_first=True)
    ...     def forward(self, ids):
    ...         x = self.embed(ids)
    ...         return (x + self.attend(x, x, x, need_weights=False)[0]) @ self.embed.weight.T
    >>> found = effect(Tiny().eval(), torch.tensor([[0, 3, 1]]), {(0, 1): "zero"}, target=2)
    >>> found.at, found.token, found.kl.shape, len(found.tokens)
    (2, 2, torch.Size([3]), 5)
    """
    call = read_call(model, inputs, tokenizer)
    before = call()
    with intervene(call.model, edits, segments=segments, cross=cross) as run:
        after = call()
    text = words_of_edits(run.edits)
    sizes = run._sizes  # noqa: SLF001
    return compare_outputs(call, before, after, text, target, at, batch, first_piece=first_piece, sizes=sizes)
