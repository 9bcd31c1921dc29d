"""`EffectRunner`: runs the model behind a widget, without and with edits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..._analysis.effect import log_probabilities, most_likely
from ..._widget.effect_source import EditedPart, Goal, PartEffect, PlainRun, TargetChoice
from ..intercept.output_edits import LayerRefused
from ..text.stacks import NamedStack
from .comparing import TargetLike
from .model_call import RepeatableCall
from .runs import EditedRuns, RunEffect
from .swept_part import SweptPart
from .targets import ComparedTarget, is_masked_model, read_target, text_before, texts_of

AFTER_THE_END = 8  # likely next tokens that are offered as targets
IN_THE_ANSWER = 40  # tokens of the text that are offered as targets
SLICE_SECONDS = 0.25  # the maximum time of a run of several samples, while the kernel waits
NAMED = 10  # tokens listed for one effect
EDITS = (
    ("zero", "without it", "set to zero"),
    ("cut", "weights to 0", "with weights of 0"),
    ("uniform", "even", "made even"),
)


@dataclass
class _SampleRuns:
    """One sample, run without edits."""

    runs: EditedRuns
    target: ComparedTarget
    version: int
    targets: dict[Goal, ComparedTarget] = field(default_factory=dict)


class EffectRunner:
    """The model and inputs behind the stack of layers that a widget shows.

    Args:
        call: the call of the model.
        stack: the stack that is shown.
        target: the default target, as in `attnwidget.effect`.
    """

    edits = EDITS

    def __init__(self, call: RepeatableCall, stack: NamedStack, target: TargetLike = None) -> None:
        self._call, self._target, self._cross = call, target, stack.cross
        self._names = list(stack.records)
        parts = [record.attention.part for record in stack.records.values()]
        self._heads = [None if part is None else part.heads for part in parts]
        self._queries = None if parts[0] is None else parts[0].queries
        self._shapes = [record.attention.shape for record in stack.records.values()]
        self._ids = stack.queries.ids
        self._samples: dict[int, _SampleRuns] = {}
        self._numbers: list[int] = []  # of the stack's layers, as interventions number them
        self._left_out: dict[tuple[str, bool], dict[str, str]] = {}  # by edit, and whether it is one of keys

    # Without edits.

    def begin(self, batch: int) -> PlainRun:
        """Run the model without edits: see `EffectSource`."""
        call = self._call
        if call.batches is not None and batch >= call.batches:
            raise ValueError(f"sample {batch} is shown, but inputs have {call.batches} samples: give inputs=cap.inputs")
        runs = EditedRuns(call, batch, cross=self._cross, whole=callable(self._target))
        runs.begin()
        self._check(runs, batch)
        target = runs.read(self._target, -1)
        self._samples[batch] = _SampleRuns(runs, target, self._version())
        return self._plain(runs, target, batch)

    def _version(self) -> int:
        """Return a number that changes with the model's weights."""
        return sum(0 if x.is_inference() else x._version for x in self._call.model.parameters())

    def _check(self, runs: EditedRuns, batch: int) -> None:
        """Raise ValueError if the model with these inputs does not run the layers that are shown."""
        names = [one.name for one in runs.layers]
        missing = [name for name in self._names if name not in names]
        if missing:
            raise ValueError(f"{missing[0]} is shown, but this model did not run it: give the model that was captured")
        self._numbers = [names.index(name) for name in self._names]
        for number, name, shape, heads in zip(self._numbers, self._names, self._shapes, self._heads, strict=True):
            ran = runs.layers[number]
            queries = shape.Q if self._queries is None else ran.queries
            if ran.keys < shape.K or ran.queries < queries or (heads is None and ran.heads != shape.H):
                raise ValueError(
                    f"{name} is shown with {shape.H} heads, {queries:,} queries and {shape.K:,} keys, but this model "
                    f"with these inputs has {ran.heads}, {ran.queries:,} and {ran.keys:,}: give the captured inputs, "
                    "inputs=cap.inputs"
                )
        ids, own = self._ids, self._call.ids
        if ids is None or own is None or self._cross or self._queries is not None or own.shape[1] < ids.shape[1]:
            return
        same = [torch.equal(x[batch, : ids.shape[1]].cpu(), ids[batch].cpu()) for x in self._all_ids()]
        if not any(same):
            raise ValueError("inputs are another text than the one that is shown: give inputs=cap.inputs")

    def _all_ids(self) -> list[torch.Tensor]:
        found = [x for name, x in self._call.kwargs.items() if name.endswith("input_ids")]
        own = self._call.ids
        ids = self._ids
        return [x for x in (*found, own) if x is not None and ids is not None and x.shape[1] >= ids.shape[1]]

    def _plain(self, runs: EditedRuns, target: ComparedTarget, batch: int) -> PlainRun:
        heads = tuple(
            runs.layers[number].heads if kept is None else len(kept)
            for number, kept in zip(self._numbers, self._heads, strict=True)
        )
        if target.token is None or target.at is None or runs.logits is None:
            only = (TargetChoice(None, None, target.name, "of the output"),)
            return PlainRun(heads, runs.seconds, None, only, "change")
        row = log_probabilities(runs.logits[target.at])
        likely = most_likely(row, row, target.token, AFTER_THE_END)
        named = zip(likely, texts_of(likely, self._call, len(row)), row[likely].exp().tolist(), strict=True)
        found = [TargetChoice(target.at, token, text, f"p {share:.4f}") for token, text, share in named]
        return PlainRun(
            heads, runs.seconds, (target.at, target.token), (*found, *self._in_the_text(runs, batch)), "nats"
        )

    def _in_the_text(self, runs: EditedRuns, batch: int) -> list[TargetChoice]:
        """Return the last tokens of the text as targets, each at the position that predicts it."""
        ids, real = self._call.ids, self._call.real(batch)
        if ids is None or runs.logits is None or ids.shape[1] != len(runs.logits) or is_masked_model(self._call.model):
            return []
        places = list(range(ids.shape[1])) if real is None else real.nonzero().flatten().tolist()
        some = places[1:][-IN_THE_ANSWER:]
        tokens = ids[batch, some].tolist()
        texts = texts_of(tokens, self._call, runs.logits.shape[1])
        named = zip(some, tokens, texts, strict=True)
        return [TargetChoice(at - 1, token, text, f"token {at}") for at, token, text in named]

    def choice(self, batch: int, goal: Goal) -> TargetChoice:
        """Return a target with its text: see `EffectSource`."""
        target = self._targeted(batch, goal)
        return TargetChoice(target.at, target.token, target.name, "")

    def _targeted(self, batch: int, goal: Goal | None) -> ComparedTarget:
        sample = self._samples[batch]
        if goal is None or goal == (sample.target.at, sample.target.token):
            return sample.target
        logits = sample.runs.logits
        assert logits is not None
        at, token = goal
        if at >= len(logits):
            raise IndexError(f"effect_target has position {at}: the output has 0 to {len(logits) - 1}")
        if goal not in sample.targets:
            sample.targets[goal] = read_target(token, self._call, logits[at], at, name="the token of effect_target")
        return sample.targets[goal]

    def text(self, batch: int, at: int) -> str:
        """Return the last words up to a position, inclusive."""
        return text_before(self._call, batch, at)

    # With edits.

    def room(self, batch: int, goal: Goal | None, answer: Sequence[int], total: int) -> int:
        """Return how many parts the next run takes: see `EffectSource`."""
        runs = self._samples[batch].runs
        size = runs.size(total, SLICE_SECONDS)
        return min(total, runs.room(self._targeted(batch, goal), self._before(batch, answer), size))

    def run(
        self, batch: int, parts: Sequence[EditedPart], edit: str, goal: Goal | None, answer: Sequence[int]
    ) -> list[PartEffect]:
        """Run the model once for each part with only that part edited: see `EffectSource`."""
        sample = self._samples[batch]
        if sample.version != self._version():
            raise RuntimeError("the model's weights have changed since its first run: run it again")
        target, more = self._targeted(batch, goal), self._before(batch, answer)
        of_keys = all(part.layer is None for part in parts)
        left_out = self._left_out.setdefault((edit, of_keys), {})
        size = 1 if len(parts) == 1 else sample.runs.size(len(parts), SLICE_SECONDS)
        while True:
            layers = sample.runs.layers_with(left_out)
            if of_keys and not set(self._numbers) & set(layers):
                raise ValueError(next(iter(left_out.values())))
            edits = [self._edits(part, edit, layers) for part in parts]
            try:
                found = sample.runs.run(edits, target, more, max(size, len(parts)))
            except LayerRefused as refused:
                is_known = refused.layer in left_out
                if of_keys or all(part.keys is None for part in parts):
                    left_out[refused.layer] = refused.reason
                if is_known or not of_keys:
                    raise
                continue
            return [self._part_effect(one, target) for one in found]

    def left_out(self, edit: str, *, keys: bool) -> dict[int, str]:
        """Return the layers that an edit cannot be made in, as far as known: see `EffectSource`."""
        known = self._left_out.get((edit, keys), {})
        return {layer: known[name] for layer, name in enumerate(self._names) if name in known}

    def _edits(self, part: EditedPart, edit: str, layers: Sequence[int]) -> dict[Any, Any]:
        if part.layer is not None and part.layer >= len(self._numbers):
            raise IndexError(f"layer {part.layer} does not exist: there are 0 to {len(self._numbers) - 1}")
        layer = None if part.layer is None else self._numbers[part.layer]
        head = part.head if part.layer is None or part.head is None else self._head(part.layer, part.head)
        queries = part.queries
        if queries is not None and self._queries is not None:
            queries = tuple(self._queries[query] for query in queries)
        if part.keys is not None and (wrong := [key for key in part.keys if key >= self._shapes[0].K]):
            raise IndexError(f"key {wrong[0]} does not exist: there are 0 to {self._shapes[0].K - 1}")
        return SweptPart(layer, head, queries, part.keys, tuple(self._numbers)).edits(edit, layers)

    def _head(self, layer: int, head: int) -> int:
        kept, count = self._heads[layer], self._shapes[layer].H
        if head >= count:
            raise IndexError(f"head {head} does not exist: there are 0 to {count - 1}")
        return head if kept is None else int(kept[head])

    def _before(self, batch: int, answer: Sequence[int]) -> list[int]:
        """Return the positions that predict the tokens of the answer."""
        logits, call = self._samples[batch].runs.logits, self._call
        if logits is None or self._cross or call.ids is None or call.ids.shape[1] != len(logits):
            return []
        if self._ids is None or call.ids.shape[1] < self._ids.shape[1]:
            return []
        own = [at if self._queries is None else self._queries[at] for at in answer]
        shift = 0 if is_masked_model(call.model) else 1
        return sorted({at - shift for at in own if 0 <= at - shift < len(logits)})

    def _part_effect(self, found: RunEffect, target: ComparedTarget) -> PartEffect:
        if found.rows is None or target.token is None:
            return PartEffect(found.before, found.after, None, None, 0, ())
        p, q = log_probabilities(found.rows[0]), log_probabilities(found.rows[1])
        named = most_likely(p, q, target.token, NAMED)
        texts = texts_of(named, self._call, len(p))
        tokens = tuple(zip(texts, p[named].exp().tolist(), q[named].exp().tolist(), strict=True))
        return PartEffect(found.before, found.after, found.kl, found.kl_more, len(p), tokens)
