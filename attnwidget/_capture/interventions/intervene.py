"""`intervene`: edit a model's attention heads while it runs inside a `with` block."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, SupportsIndex

from torch import nn

from ..._analysis.effect import Effect
from ..._segments.segments import Segments
from ..._utils.interrupts import interrupts_put_off, surely
from ..._utils.validation import told
from ..session.callers import module_of
from .comparing import TargetArguments, TargetLike, compare_outputs, text_of_edits
from .editor import Editor
from .edits import EditPlan, EditRule, HeadEdit
from .model_call import call_again
from .patching import OtherRun
from .refusals import refuse

__all__ = ["Run", "intervene"]

CAPTURED = (
    "a capture that is open together with an intervention records each edited head as it was before the edit; later "
    "layers are recorded with the effect of the edit"
)


def intervene(
    model: Any, edits: Mapping[Any, Any], *, segments: Segments | None = None, cross: bool | None = None
) -> Run:
    """Edit attention heads of a model while it runs in a `with` block; its fused kernels stay on.

    Only the edited heads are computed here, block by block. Their outputs are written into the call's output before
    W_O, in the model's dtype. All other heads, samples and layers keep the kernel's numbers bit for bit. Each call is
    verified first: three rows of those heads are computed without the edit and compared with the kernel's output.

    Args:
        model: an `nn.Module`, or an object that has one as `.model`, such as a pipeline.
        edits: maps heads to edits. A key is a layer, numbered as in `cap.attention` of a capture of all layers;
            (layer, head) or (layer, (head, …)); or "all". A layer may also be the name of a module, a dotted part of
            the name, a glob or a compiled regular expression. If several keys match a head, the most specific one
            counts: a layer before "all", then heads before a whole layer. An edit is one of:

            - "zero": the head's output is 0.
            - "uniform" or its synonym "mean": all keys that a query may attend to get the same weight, so the output
              is the mean of their values. (For mean ablation over a data set, give the mean as {"output": mean}.)
            - {"scale", "temperature", "softcap", "mask", "causal", "window", "sinks", "drop_keys", "keep", "dtype": …}:
              one or more keywords of `Attention.what_if`, here with positions of the text. "keep" is decided for each
              head by its weights under the other keywords; while a model generates, only the policy "window" works.
            - {"mask": mask}: applied on top of the call's own rules. Give bools (True where a query may attend) or
              numbers that are added to scores, of a shape that `Attention` takes, with "mask_dims" if the shape is
              ambiguous; while a model generates, the mask covers the whole text. Or give a function of positions,
              f(b, h, q_idx, kv_idx) -> bool. To replace the call's own mask, enter this intervention inside another
              one with {"mask": False}.
            - {"block": (queries, keys)}: these queries do not attend to these keys. The other keys take over the
              weight; with "renormalize": False no key does.
            - {"from": other}: the weights of another run, applied to the values of this one. With "take": "outputs",
              the head's outputs. The other run is a `Capture` or `Forward`, whose calls are found by name, an
              `AttentionStack` or an `Attention`, with the same lengths.
            - {"output": numbers}: the output, of shape (Dv,), (heads, 1 or Q, Dv) or (B, heads, 1 or Q, Dv); heads are
              those of the key.
            - a tensor: weights (Q, K), (heads, Q, K) or (B, heads, Q, K), used as they are.
            - a function: takes an `attnwidget.results.WeightsBlock` and returns weights of the same shape.
        segments: where names of segments are looked up. Queries and keys are ints, slices, ranges, entries of
            `Segments`, names, or lists of these. Negative ints count from the end of the text that is read first. All
            positions must exist, except those of a slice beyond the end. While a model generates, positions refer to
            the whole text at every step, including padding, and a range may extend beyond the end.
        cross: True edits only cross-attention, with layers numbered as in `cap.cross`; False edits only
            self-attention. With None, "all" and names match both, and numbers refer to self-attention.

    Returns:
        `Run`, a context manager. Interventions may be nested. If two edit the same head, the outer one changes its
        rules first, then the inner one; then weights are replaced, then outputs. Entering the same one twice has no
        further effect.

    Raises:
        TypeError, ValueError: an invalid edit. On entering: the model is compiled or scripted; its names or config
            show that a module, layer or head does not exist. While the model runs: a head does not exist; a call
            cannot be edited, because its output depends on more than its arguments, it drops weights at random, it is
            computed in parts, or it is recomputed in the backward pass without `torch.utils.checkpoint`; a number means
            another layer than in an earlier forward pass. On leaving:
            an edit matched no call or changed nothing, or a position does not exist. In the backward pass: a call is
            recomputed differently than before.

    - Layers that a capture keeps as weights without q and k take "zero", {"output"}, {"from"}, weights as a tensor, and
      {"block"} with "renormalize": False. A layer that a capture skips has no number. If its output shows it, that is
      seen before the next layer runs.
    - Processes: if heads are sharded, each process edits its own heads, by their numbers in the model.
    - Gradients flow through every edit except "dtype". Calls that gradient checkpointing recomputes in the backward
      pass get the same edits, also after the block. Under torch 2.5, checkpointing that hooks start (as in
      `torch.distributed`) is not visible: turn it off there.
    - Threads: only calls in the thread that entered the block are edited.
    - Compilation: inside the block torch's own modules skip their inference fast path, and compiled functions run
      uncompiled. This may change last bits.
    - Weights that transformers' eager attention and torch's own module return with the output are edited too. They
      are 0 for "zero", and NaN where an edit gives the output itself. Weights that a model's own code returns, and
      heads that a `capture` records at the same time, stay as before the edit.

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


def intervene_in(model: nn.Module, edits: Mapping[Any, Any], layers: Sequence[str], *, cross: bool) -> Run:
    """Edit heads as `intervene` does, with the layers of a capture of the same call.

    Args:
        model: the model.
        edits: as in `intervene`; a number counts `layers`.
        layers: the names of the capture's layers of this kind, in order.
        cross: whether they are cross-attention.
    """
    return Run(model, EditPlan(edits, None, cross, layers))


class Run:
    """A model that runs with edits inside the block of `intervene`.

    Attributes:
        model: the model.
        inputs: positional and keyword arguments of the last call inside the block; None before.
        output: the output of that call; None before.

    >>> import torch
    >>> from attnwidget import intervene
    >>> model, x = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(1, 5, 8)
    >>> with intervene(model, {(0, 1): "zero"}) as run:
    ...     _ = model(x, x, x)
    >>> run.edited
    {'MultiheadAttention': (1,)}
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
        """Return each edit as text, by its key in `edits`."""
        return self._plan

    @property
    def edited(self) -> dict[str, tuple[int, ...]]:
        """Return the edited heads, by module name."""
        found = {} if self._editor is None else self._editor.edited
        return {name: tuple(sorted(heads)) for name, heads in found.items()}

    @property
    def skipped(self) -> dict[str, str]:
        """Return why attention that ran could not be captured, by module name."""
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
        """Run the model once more without the edits, and compare that output with the last one.

        Args:
            target, at, batch, tokenizer, first_piece: as in `attnwidget.effect`.

        Returns:
            `Effect`: the log-probability before and after, its change, the KL divergence at each position, and the
            ten tokens that change most.

        Raises:
            ValueError: the model has not run inside the block; it returned something other than its own output, as
                `generate` does; it is in training mode; or an error of `attnwidget.effect`.
            TypeError, IndexError: as in `attnwidget.effect`.

        Edits of other open interventions stay in effect.

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
        choice = TargetArguments(target, at, batch, first_piece)
        try:
            with contextlib.nullcontext() if self._editor is None else self._editor.paused():
                plain = call()
            return compare_outputs(call, plain, output, text_of_edits(self._plan), choice, self._sizes)
        finally:
            self.inputs, self.output = inputs, output

    @property
    def _sizes(self) -> set[tuple[int, int]]:
        """The numbers of samples and queries of self-attention calls."""
        return set() if self._editor is None else self._editor.sizes

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
            if len(self._open) > before:  # interrupted after opening: Python will not call `__exit__`
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
            if threading.get_ident() == thread:  # during removal another thread may call it without keywords
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
        """Return why an edit was not made; None if all were."""
        for rule in self._plan.rules:
            why = _why_unmet(rule, editor, self.model) or _why_no_change(rule, editor)
            if why is not None:
                return why
        for name, why in editor.skipped.items():
            if self._plan.names(name):
                return f"{name} was not edited: {why}"
            if name in editor.merged and any(name == edited.partition(" #")[0] for edited in editor.edited):
                return f"{name} was edited, but a capture gives it no number: {why}. Name the module that you mean"
        return None


def _why_unmet(rule: EditRule, editor: Editor, model: nn.Module) -> str | None:
    """Return why an entry edited nothing, or a different layer than it names; None if all is well."""
    cross = bool(editor.plan.cross)
    there = [name for name in editor.numbers.names(cross) if (name, cross) in editor.seen]
    if isinstance(rule.layer, int) and rule.layer < 0 and rule.number != len(there) + rule.layer and there:
        return (
            f"{rule.key!r} counts layers from the end, but {len(there)} layers with attention ran and the config has "
            f"{(rule.number or 0) - rule.layer}: count them from the first, 0"
        )
    if rule.met or not any(rule.edits):
        return None
    kind = type(model).__name__
    if editor.elsewhere and not editor.forward_count:
        return (
            f"{kind} was called in another thread, and only calls in the thread of the block are edited: call it there"
        )
    if not editor.seen and not editor.skipped and not editor.forward_count:
        return f"{rule.key!r} has edited nothing: {kind} was not called in the block: run the same object inside it"
    listed = ", ".join(f"{i} {name!r}" for i, name in enumerate(there[:6])) + (", …" if len(there) > 6 else "")
    unseen = next((f"; {name} was not captured: {why}" for name, why in editor.skipped.items()), "")
    return f"{rule.key!r} has edited nothing: the layers that ran are {listed or 'none'}{unseen}"


def _why_no_change(rule: EditRule, editor: Editor) -> str | None:
    """Return which part of an entry changed nothing in any call; None if each had an effect."""
    found = [edit for edit in rule.edits if edit is not None]
    for edit in found:
        unused = edit.unused_keyword()
        if unused is not None:
            return f"{rule.key!r}: {edit.text} changed nothing, because no matching call {unused}"
        missing = _missing_place(edit, rule, editor)
        if missing is not None:
            return missing
        for one in (edit.weights, edit.output):
            why = one.unmatched() if isinstance(one, OtherRun) else None
            if why is not None:
                return f"{rule.key!r}: {why}"
    return None


def _missing_place(edit: HeadEdit, rule: EditRule, editor: Editor) -> str | None:
    """Return which position of an edit no edited layer had; None if all exist."""
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
                return f"{given}, which is not one of the positions 0 to {last}"
            return f"{given}, but there are positions 0 to {last}"
    return None
