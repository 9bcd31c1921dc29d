"""`intervene`: a model's heads edited while it runs inside a `with` block."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Mapping
from types import TracebackType
from typing import Any, SupportsIndex

from torch import nn

from ..._analysis.effect import Effect
from ..._segments.segments import Segments
from ..._utils.interrupts import interrupts_put_off, surely
from ..._utils.validation import told
from ..session.callers import module_of
from .comparing import TargetLike, effect_of_run, words_of_edits
from .editor import Editor
from .edits import EditPlan, EditRule, HeadEdit
from .model_call import call_again
from .patching import OtherRun
from .refusals import refuse

__all__ = ["Run", "intervene"]

CAPTURED = (
    "a capture that is open beside an intervention records each edited head as it was before the edit; what it records "
    "of later layers follows from the edit"
)


def intervene(
    model: Any, edits: Mapping[Any, Any], *, segments: Segments | None = None, cross: bool | None = None
) -> Run:
    """Edit attention heads of a model while it runs in a `with` block, with its fused kernels left on.

    Only the heads that are edited are computed here, block by block, and written into the output of the call before W_O
    in the model's own type; other heads, samples and layers keep the kernel's numbers bit by bit. Each call is verified
    first: three rows of those heads are computed without the edit and compared with what the kernel gave.

    Args:
        model: an `nn.Module`, or an object that has one as `.model`, such as a pipeline.
        edits: what is done to which heads. A key is a layer, counted as `cap.attention` counts them; (layer, head) or
            (layer, (head, …)); "all"; or, in the place of the layer, the name of a module, a dotted part or a glob of
            it, or a compiled regular expression. Where several keys name a head, that counts which names it most
            closely: a layer before "all", and then heads before a whole layer. What is done is one of:

            - "zero": the head's output is 0.
            - "uniform" or "mean", two names of one thing: the keys that a query may attend to weigh the same, so that
              its output is the mean of their values. (The mean of a head's outputs over a data set, of mean ablation,
              is given as {"output": mean}.)
            - {"scale", "temperature", "softcap", "mask", "causal", "window", "sinks", "drop_keys", "keep", "dtype": …}:
              the words of `Attention.what_if`, one or several, here for positions of the text. "keep" is decided by the
              weights under the other words, head by head; while a model generates, only its policy "window" is.
            - {"mask": mask}: beside the rules of the call, bools, True where a query may attend, or numbers that are
              added to scores, of a shape that `Attention` takes (with "mask_dims" where it has two readings), of the
              whole text where a model generates; or a function f(b, h, q_idx, kv_idx) -> bool of positions. To have it
              in the place of the call's own mask, enter it inside another intervention with {"mask": False}.
            - {"block": (queries, keys)}: these queries do not attend to these keys, whose weight goes to the others;
              with "renormalize": False it goes to none.
            - {"from": other}: the weights of another run, for the values of this one; "take": "outputs" beside it: the
              head's outputs. The other is a `Capture` or `Forward`, whose calls are found by name, an `AttentionStack`
              or an `Attention`, of the same lengths.
            - {"output": numbers}: (Dv,), (heads, 1 or Q, Dv) or (B, heads, 1 or Q, Dv), heads those of the key.
            - a tensor: weights (Q, K), (heads, Q, K) or (B, heads, Q, K), used as they are.
            - a function: it takes an `attnwidget.results.WeightsBlock` and returns weights of the same shape.
        segments: in which names of segments are looked up. Queries and keys are ints, slices, ranges, lists of these,
            entries of `Segments` or names; negative ints count from the end of the text that is read first. All of
            them must be there, but for what a slice names after the end of the text. While a model generates, they are
            places of the whole text, padding counted, at each step, and a range may go on after its end.
        cross: True: cross-attention alone is edited, and layers are counted as `cap.cross` counts them; False:
            self-attention alone. None: "all" and names are both, and numbers those of self-attention.

    Returns:
        `Run`, to be entered. Blocks may stand inside one another: a head that both edit has its rules changed by the
        outer, then by the inner one; then weights are replaced, then outputs. To enter one twice changes nothing more.

    Raises:
        TypeError, ValueError: edits that are none. When the block is entered: a model that is compiled or
            scripted; a module, layer or head that is not there, as far as names and config tell. While it runs: a head
            that is not there; a call that cannot be edited, for it does more than its arguments tell,
            drops weights at random, is computed in parts, or again in the backward pass by other means than
            `torch.utils.checkpoint`. At its end: an edit that has met no call or changed nothing, a position that there
            was not. In the backward pass: a call that is computed again in another way than before.

    Where heads are split over processes, each process edits those that it has, by their numbers in the model. Gradients
    flow through edits, but for "dtype"; what gradient checkpointing computes again in the backward pass is edited as it
    was, also after the block (torch 2.5 does not tell of checkpointing that hooks have begun, as those of
    `torch.distributed`: leave it out there). Calls in the thread that entered the block are edited; in others the
    model runs as it is. torch's own modules take no short cut for inference inside the block, and functions that are
    compiled run as they are written, which may change last bits. Weights that transformers' eager attention
    and torch's own module return beside the output are edited too, NaN where an output of one's own has none; those
    that a model's own code returns, and heads that a `capture` records at the same time, stay as before the edit.

    >>> import torch
    >>> model = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    >>> x = torch.randn(1, 5, 8)
    >>> with intervene(model, {(0, 1): "zero"}) as run:
    ...     output, _ = model(x, x, x, need_weights=False)
    >>> run.edited
    {'MultiheadAttention': (1,)}
    """
    is_known = isinstance(model, nn.Module) or callable(model) or hasattr(model, "model")
    module = module_of(model) if is_known else None
    if module is None:
        raise TypeError(f"model is {'a function' if callable(model) else told(model)}: give an nn.Module")
    return Run(module, EditPlan(edits, segments, cross), getattr(model, "tokenizer", None))


class Run:
    """A model that runs with edits, inside the block of `intervene`.

    Attributes:
        model: the model.
        inputs: with what it was called last inside the block: positional arguments, and those with names.
        output: what it returned then; None before.
    """

    def __init__(self, model: nn.Module, plan: EditPlan, tokenizer: Any = None) -> None:
        self.model, self._tokenizer = model, tokenizer
        self.inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self.output: Any = None
        self._plan = plan
        self._editor: Editor | None = None
        self._open: list[contextlib.ExitStack] = []

    def __repr__(self) -> str:
        return f"Run({type(self.model).__name__}, {self._plan!r})"

    @property
    def edits(self) -> Mapping[Any, str]:
        """Return what is done, in words, by the keys of `edits`."""
        return self._plan

    @property
    def edited(self) -> dict[str, tuple[int, ...]]:
        """Return the heads that were edited, by the name of their module."""
        found = {} if self._editor is None else self._editor.edited
        return {name: tuple(sorted(heads)) for name, heads in found.items()}

    @property
    def skipped(self) -> dict[str, str]:
        """Return attention that has run and could not be seen, by the name of its module, with the reason."""
        return {} if self._editor is None else dict(self._editor.skipped)

    def effect(
        self,
        target: TargetLike = None,
        at: SupportsIndex = -1,
        *,
        batch: SupportsIndex | None = None,
        tokenizer: Any = None,
        first_piece: bool = False,
    ) -> Effect:
        """Run the model once more, without the edits, and compare what it says with its last output.

        Args:
            target, at, batch, tokenizer, first_piece: as `attnwidget.effect` takes them.

        Returns:
            `Effect`: log-probability before, after and change, KL at each position, the ten tokens that move most.

        Raises:
            ValueError: the model has not run inside the block, or returned something else than its own output, as
                `generate` does; it is in training mode; as `attnwidget.effect`.
            TypeError, IndexError: as `attnwidget.effect`.

        Edits of other blocks that are open around stay made.

        >>> import torch
        >>> model, x = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(1, 5, 8)
        >>> with intervene(model, {(0, 1): "zero"}) as run:
        ...     _ = model(x, x, x)
        >>> def size(output):
        ...     return output[0].norm()
        >>> run.effect(target=size).target
        'size'
        """
        if self.inputs is None:
            raise ValueError("the model has not run in the block: call it there, then ask for the effect")
        inputs, output = self.inputs, self.output
        call = call_again(self.model, inputs, self._tokenizer if tokenizer is None else tokenizer)
        try:
            return effect_of_run(
                call,
                output,
                self._without_edits(),
                words_of_edits(self._plan),
                target,
                at,
                batch,
                first_piece=first_piece,
                sizes=self._sizes,
            )
        finally:
            self.inputs, self.output = inputs, output

    @property
    def _sizes(self) -> set[tuple[int, int]]:
        """How many samples and queries calls of self-attention had."""
        return set() if self._editor is None else self._editor.sizes

    def _without_edits(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._editor is None else self._editor.paused()

    def __enter__(self) -> Run:
        before = len(self._open)
        try:
            with contextlib.ExitStack() as stack:
                if not self._open:
                    with interrupts_put_off():
                        self._begin(stack)
                self._open.append(stack.pop_all())
            return self
        except KeyboardInterrupt:
            if len(self._open) > before:  # it came when all was open, and Python will not call `__exit__`
                surely(lambda: self._open.pop().close())
            raise

    def _begin(self, stack: contextlib.ExitStack) -> None:
        self.inputs = self.output = self._editor = None
        if self._plan.rules:
            refuse(self.model, self._plan)
            self._plan.reset()
            self._editor = Editor(self.model, self._plan)
            stack.enter_context(self._editor.open())
        thread = threading.get_ident()

        def note(module: nn.Module, args: Any, *others: Any) -> None:
            if threading.get_ident() == thread:  # another may call it without keywords, while it is being removed
                kwargs, self.output = others
                self.inputs = args, kwargs

        stack.callback(self.model.register_forward_hook(note, with_kwargs=True).remove)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        surely(lambda: self._open.pop().close())
        if self._open or kind is not None or self._editor is None:
            return
        why = self._why_not_edited(self._editor)
        if why is not None:
            raise ValueError(why)
        if self._editor.was_captured:
            warnings.warn(CAPTURED, stacklevel=2)

    def _why_not_edited(self, editor: Editor) -> str | None:
        """Return what of the edits was not made; None if all was."""
        for rule in self._plan.rules:
            why = _why_unmet(rule, editor, self.model) or _why_no_change(rule, editor)
            if why is not None:
                return why
        named = {name: why for name, why in editor.skipped.items() if self._plan.may_edit(name)}
        if not named:
            return None
        name, why = next(iter(named.items()))
        if all(isinstance(rule.layer, int) for rule in self._plan.rules):
            return None
        return f"{name} was not edited: {why}"


def _why_unmet(rule: EditRule, editor: Editor, model: nn.Module) -> str | None:
    """Return why an entry has edited nothing, or another layer than it names; None if all is well."""
    there = [name for (name, cross), _ in editor.seen.items() if cross == bool(editor.plan.cross)]
    if isinstance(rule.layer, int) and rule.layer < 0 and rule.number != len(there) + rule.layer and there:
        return (
            f"{rule.key!r} counts layers from the end, and {len(there)} with attention have run, where the config "
            f"names {(rule.number or 0) - rule.layer}: count them from the first, 0"
        )
    if rule.met or not any(rule.edits):
        return None
    kind = type(model).__name__
    if editor.elsewhere and not editor.forward_count:
        return (
            f"{kind} was called in another thread than that of the block, whose calls are not edited: call it in this"
        )
    if not editor.seen and not editor.skipped and not editor.forward_count:
        return f"{rule.key!r} has edited nothing, for {kind} was not called in the block: run the very object inside it"
    listed = ", ".join(f"{i} {name!r}" for i, name in enumerate(there[:6])) + (", …" if len(there) > 6 else "")
    unseen = next((f"; {name} was not seen: {why}" for name, why in editor.skipped.items()), "")
    return f"{rule.key!r} has edited nothing: the layers that ran are {listed or 'none'}{unseen}"


def _why_no_change(rule: EditRule, editor: Editor) -> str | None:
    """Return what of an entry's words changed nothing in any call."""
    found = [edit for edit in rule.edits if edit is not None]
    for edit in found:
        unused = edit.unused_word()
        if unused is not None:
            return f"{rule.key!r}: {edit.text} changed nothing, for no call that it names {unused}"
        missing = _missing_place(edit, rule, editor)
        if missing is not None:
            return missing
        for one in (edit.weights, edit.output):
            why = one.unmatched() if isinstance(one, OtherRun) else None
            if why is not None:
                return f"{rule.key!r}: {why}"
    return None


def _missing_place(edit: HeadEdit, rule: EditRule, editor: Editor) -> str | None:
    """Return what an edit names that no layer that it has edited has had; None if there is nothing."""
    if edit.mask is not None:
        longer = [edit.mask.missing(name, *editor.ends[name]) for name in rule.met]
        if longer and None not in longer:
            return f"{rule.key!r}: {longer[0]}"
    of_keys = [edit.dropped, *(block.keys for block in edit.blocks)]
    sides = [(one, 1) for one in of_keys if one is not None] + [(block.queries, 0) for block in edit.blocks]
    for places, side in sides:
        ends = [(editor.ends[name][side], editor.lengths[name][side]) for name in rule.met]
        missing = [places.missing(*one) for one in ends]
        if missing and None not in missing:
            last = max(end for end, _ in ends) - 1
            given = f"{rule.key!r}: {places.what} has {missing[0]}"
            if isinstance(missing[0], slice):
                return f"{given}, which is none of the positions 0 to {last}"
            return f"{given}, but there are positions 0 to {last}"
    return None
