"""`effect`: compare a model's output with and without edits, from one run each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsIndex

from ..._analysis.effect import Effect
from ..._segments.segments import Segments
from .comparing import TargetArguments, TargetLike, compare_outputs, text_of_edits
from .edits import EditPlan
from .intervene import Run
from .model_call import RepeatableCall, read_call
from .runs import recorded


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
    """Run a model without and with edits of its attention, and compare its outputs.

    Args:
        model: an `nn.Module`, or an object that has one as `.model`, such as a pipeline; in evaluation mode.
        inputs: keyword arguments, such as tokenizer(text, return_tensors="pt") or cap.inputs; a text, if there is a
            tokenizer; token ids; a tuple of positional arguments; or a function without arguments that runs the model
            and returns its output.
        edits: as in `intervene`.
        target: the token whose log-probability is compared: a text that is one token, such as " Paris"; a token id;
            or None for the most likely token without the edits. For models without a language-model head, give a
            function that takes the output and returns one number, such as the cosine of two sentences.
        at: the position whose output is compared, from 0. Negative positions count from the end of the text, before
            its padding. The output there predicts the next token; in a masked model it predicts the masked token, and
            −1 is the last mask. In an encoder-decoder model it is a position of the decoder.
        batch: the sample, if there are several.
        tokenizer: None uses the model's own, if it has one.
        first_piece: whether a target of several tokens means its first token.
        segments, cross: as in `intervene`.

    Returns:
        `Effect`: the log-probability before and after and its change in nats, the KL divergence at each position, and
        the ten tokens that change most.

    Raises:
        TypeError, ValueError, IndexError: `intervene` refuses the edits; the target is not one token
            (the error lists them); the position or sample does not exist; the model is in training mode.

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
    plan = EditPlan(edits, segments, cross)
    before = _run_plainly(call, plan)
    with Run(call.model, plan) as run:
        after = call()
    choice = TargetArguments(target, at, batch, first_piece)
    return compare_outputs(call, before, after, text_of_edits(run.edits), choice, run._sizes)  # noqa: SLF001


def _run_plainly(call: RepeatableCall, plan: EditPlan) -> Any:
    """Run the model without edits and return its output; if the edits count layers, a capture of it numbers them."""
    if not any(isinstance(rule.layer, int) for rule in plan.rules):
        return call()
    output, recorder = recorded(call)
    forwards = recorder.matcher.forwards
    if len(forwards) == 1:
        plan.layers = [name for name, one in forwards[0].items() if one.cross == bool(plan.cross)]
    return output
