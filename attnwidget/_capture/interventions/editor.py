"""Editor: listens to the attention calls of a model, and writes the edited heads into their outputs."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..._utils.quietly import keep_from_model
from ..call.observed_call import FAILED, ObservedCall, ProcessHeads, Unreadable
from ..call.pieces import Pieces, may_be_piece
from ..call.query_offset import keys_after, keys_before
from ..distributed.context_parallel import refuse_keys_of_others, refuse_spread_positions
from ..distributed.head_shards import heads_of_process
from ..intercept import hooks
from ..intercept.output_edits import EditRefused, LayerRefused, OutputEdit
from ..intercept.transformers_calls import length_of_cache, read_call
from ..intercept.watching import NOT_FOLLOWED, WatchedModules
from ..modules.advice import WRAPPED, under_transform, with_way_on
from ..modules.coverage import AttentionModules
from ..modules.layer_numbers import LayerOrder
from ..modules.self_or_cross import ToldCross
from ..records.forward_passes import RecordMatcher, as_autocast, in_backward, keep_what_is_filled
from ..records.kept_tensors import TensorKeeper
from ..records.record import OutputCallback
from ..records.shown import why_not_shown
from ..session.callers import ModelCalls, calls_running, forward_hooks, module_names, parts_of
from ..tracing.traced_tensors import MERGED, Caller
from ..verify.verification import DroppedWeights, RowsOfOutput
from .checkpoints import EditedCall, Repeated, checkpoints_around
from .edited_heads import Chain, EditedHeads, by_key_head
from .edits import ByHead, EditPlan
from .refusals import DROPS
from .seen_call import SeenCall

NOT_UNDERSTOOD = (
    "{} gives another output than its q, k, v, mask and scale alone would, so it does more than they tell, and an edit "
    "would undo that: leave this layer out, or load the model with attn_implementation='eager'"
)
NOT_SEEN = (
    "the output of {} does not have the shape (batch, heads, queries, size), so nothing can be written into it: leave "
    "this layer out"
)
CHECKPOINTED = (
    "{} runs under gradient checkpointing other than torch.utils.checkpoint.checkpoint, with a context_fn, or in a "
    "backward pass of another run, so its gradients would belong to another edit: call "
    "model.gradient_checkpointing_disable(), or model.eval()"
)
NOT_REPEATED = "{} is recomputed differently in the backward pass than before, so its edit cannot be repeated"
GROWS = (
    "{!r}: keep's {}, but this call continues after {:,} tokens that were read before: give the whole text in one "
    "call, or {}"
)
IN_PIECES = (
    "{} computes its attention in pieces, such as chunks of queries or one head after another, and an edit of one "
    "piece is not an edit of the whole: let it compute all queries, heads and samples in one call"
)
ONLY_WEIGHTS = "{} is known by its weights alone, without q and k"
NEEDS_SCORES = (
    "{}, so {} cannot be made in it: give 'zero', {{'output': …}}, {{'from': …}}, weights as a tensor or "
    "{{'block': …, 'renormalize': False}}, or leave this layer out"
)
OTHER_NUMBER = (
    "layer {} is {!r} in this forward pass and was {!r} in an earlier one, because other layers ran: name the module, "
    "such as {{({!r}, 0): …}}"
)
ONE_HEAD = "If {} computes one head after another, its heads cannot be edited: leave this layer out"
NO_GRADIENTS = "{} rounds numbers, and no gradients flow through rounding: run it under torch.no_grad()"


UNREADABLE = TypeError, ValueError, IndexError, RuntimeError  # of calls that are not those of q, k and v

_numbers = itertools.count()


class Editor(ModelCalls):
    """Edits the calls of a model in the thread that opened it.

    Args:
        model: the model.
        plan: the edits.

    Attributes:
        numbers: the numbers of its layers.
        skipped: why attention that ran could not be captured, by module name.
        edited: the edited heads, by module name.
        forward_count: the number of calls of the model.
    """

    def __init__(self, model: nn.Module, plan: EditPlan) -> None:
        super().__init__(model, ToldCross())
        self.plan = plan
        self.numbers = LayerOrder(plan.layers, cross=bool(plan.cross))
        self.skipped: dict[str, str] = {}
        self.edited: dict[str, set[int]] = {}
        self.seen: dict[tuple[str, bool], None] = {}  # the layers that ran, by name and kind
        self.merged: set[str] = set()  # names of modules that merge the outputs of their calls
        self.sizes: set[tuple[int, int]] = set()  # numbers of samples and queries of self-attention calls
        self.forward_count = 0
        self.order = next(_numbers)  # among all editors
        self.elsewhere = 0  # calls of the model in other threads
        self.was_captured = False  # whether a capture recorded a call before its edit
        self._checked: set[str] = set()  # layers whose output was compared, so that it is known whether they count
        self._begins_pass = True  # whether no self-attention has run in this forward pass
        self._is_whole = self._was_whole = False  # whether this pass, and the one before, are calls of the model
        self._keeper = TensorKeeper(clone=False)
        self._thread: int | None = None
        self._repeating: Counter[int] = Counter()  # threads in which a `RepeatingEditor` stands in for this one
        self._attention_modules: AttentionModules | None = None
        self._called: set[str] = set()
        self._begins: set[int] = set()  # ids of the model and its parts, whose calls begin a forward pass
        self._depth = 0  # of nested calls of the model and its parts
        self._counts: Counter[str] = Counter()  # calls by name in this forward pass
        self._past: int | None = None  # positions in the cache that was given to the model
        self._first_query: tuple[int, int] = (0, 0)  # start and number of queries of the last self-attention
        self._pieces: Pieces | None = None  # of the last call's attention
        self._edits_pieces = False  # whether its first piece is edited
        self._kinds: dict[str, bool] = {}  # whether each layer is cross-attention
        self.lengths: dict[str, tuple[int, int]] = {}  # queries and keys of the text that each layer read first
        self.ends: dict[str, tuple[int, int]] = {}  # queries and keys of each layer so far

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Listen to the calls of the model inside the block."""
        assert self.model is not None
        self._names = module_names(self.model)
        self._watched = WatchedModules(self.model)
        self._attention_modules = AttentionModules(self.model, self._names, self.reading_failed)
        self._thread = threading.get_ident()
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._provenance.watching(self.model))
            parts = self.model, *(part for _, part in parts_of(self.model))
            self._begins = {id(part) for part in parts}
            for part in parts:
                began = functools.partial(self._began, part)
                stack.enter_context(forward_hooks(part, began, self._ended, self.reading_failed))
            hooks.add_listener(self)
            stack.callback(hooks.remove_listener, self)
            stack.enter_context(self._attention_modules.watched())
            if self._watched:
                self._watcher = stack.enter_context(hooks.watch_functions(self))
            yield
        unseen = self._attention_modules.unseen([*{name for name, _ in self.seen}, *self._called, *self.skipped])
        self.skipped.update(unseen)
        self._advise()

    def _advise(self) -> None:
        assert self.model is not None
        by_name = dict(self.model.named_modules())
        for name, why in self.skipped.items():
            own = [by_name[name]] if name in by_name else []
            self.skipped[name] = with_way_on(why, [*own, self.model])

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Edit nothing inside the block."""
        thread, self._thread = self._thread, None
        try:
            yield
        finally:
            self._thread = thread

    # Forward passes.

    def _began(self, module: nn.Module, given: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        if threading.get_ident() != self._thread:
            self.elsewhere += module is self.model and self._thread is not None
            return
        if self._depth and calls_running(self._begins) == 1:
            self._forget_interrupted()
        self._pieces = None
        if not self._depth:
            self._begin_pass(whole=module is self.model)
        self._depth += 1
        self.forward_count += module is self.model
        if self._past is None:
            self._past = length_of_cache(given, keywords)
            self._refuse_what_must_see_all()

    def _begin_pass(self, *, whole: bool = False) -> None:
        self._counts.clear()
        self._was_whole, self._is_whole = self._is_whole, whole
        self._past, self._first_query, self._begins_pass = None, (0, 0), True

    def _refuse_what_must_see_all(self) -> None:
        """Refuse, before anything is computed, a decode step if an edit needs the whole text at once.

        Raises:
            EditRefused: an edit does.
        """
        if not self._past:
            return
        has_one_stack = not getattr(getattr(self.model, "config", None), "is_encoder_decoder", False)
        for rule in self.plan.rules:
            for edit in rule.edits:
                given = None if edit is None else edit.keep
                if given is None or not (rule.met or has_one_stack):
                    continue
                if given["policy"] != "window":
                    what = f"policy {given['policy']!r} depends on all queries from the first key on"
                    raise EditRefused(GROWS.format(rule.key, what, self._past, "the policy 'window'"))
                if isinstance(given["budget"], float):
                    what = f"budget {given['budget']} is a fraction of all keys"
                    raise EditRefused(GROWS.format(rule.key, what, self._past, "a number of keys, such as budget=8"))

    def _forget_interrupted(self) -> None:
        """Forget a call of the model that an interrupt ended without running torch's hooks."""
        hooks.forget_interrupted()
        self._depth = 0
        self._keeper.forget_masks()
        self._provenance.forget_running()

    def _ended(self) -> None:
        if threading.get_ident() != self._thread or not self._depth:
            return
        self._depth -= 1
        if self._depth:
            return
        self._keeper.forget_masks()
        for key in self._watched.missed(self._provenance.forward_ended()):
            self.report_unreadable(NOT_FOLLOWED, Caller(self._names[key], is_attention=True))
        if self._watcher is not None and not self._watched:
            self._watcher.exit_early()

    # Recomputation in a backward pass.

    is_repeating = False

    @property
    def root(self) -> Editor:
        """The editor that a user opened."""
        return self

    @contextlib.contextmanager
    def repeating(self, calls: Repeated) -> Iterator[None]:
        """Repeat the edits of a forward pass, in the thread that enters the block.

        Raises:
            EditRefused: on leaving: an edited call was not repeated.
        """
        thread = threading.get_ident()
        self._repeating[thread] += 1
        try:
            if any(one is not None for found in calls.values() for one in found):
                other = RepeatingEditor(self, calls)
                with other.open():
                    yield
                other.refuse_what_is_missing()
            else:
                yield
        finally:
            self._repeating[thread] -= 1

    # The methods of `hooks.Listener`.

    def name_of(self, module: nn.Module) -> str | None:
        """Return the name of a module whose calls are edited; None in other threads and for other models."""
        return super().name_of(module) if threading.get_ident() == self._thread else None

    def record_call(self, name: str | None, read: Callable[[], ObservedCall]) -> OutputEdit | OutputCallback | None:
        """Return the edit of a call's output, or a function that checks whether its layer counts; None if it has none.

        Raises:
            EditRefused: the call is to be edited, but cannot be.
        """
        if self._thread is None or self._repeating[threading.get_ident()]:
            return None
        in_one, name = name is not None, self._name_of_caller() if name is None else name
        if name is None:
            return None
        self._called.add(name)
        if not self._depth:  # a module called alone is its own forward pass
            self._begin_pass()
        if not in_one and not under_transform() and self._is_next_piece(name, read):
            if self._edits_pieces:
                raise LayerRefused(self._name_of_call(name), IN_PIECES.format(name))
            return None
        self._counts[name] += 1
        module, name = name, self._name_of_call(name)
        around = checkpoints_around()
        found = self._edit_or_refusal(module, name, read)
        edit = found if isinstance(found, CallEdit) else None
        self._edits_pieces = edit is not None
        if edit is not None and (around.is_unknown or (in_backward() and not self.is_repeating)):
            raise LayerRefused(name, CHECKPOINTED.format(name))
        for part in around.parts:
            part.note(self.root, module, None if edit is None else edit.again())
        return found

    def _name_of_call(self, module: str) -> str:
        """Return the name of a module's last call in this forward pass."""
        count = self._counts[module]
        return module if count == 1 else f"{module} #{count}"

    def _is_next_piece(self, name: str, read: Callable[[], ObservedCall]) -> bool:
        """Return whether a call is a further piece of the attention of the call before, which a capture shows whole."""
        call, before = None, self._pieces
        with torch._C.DisableTorchFunction(), contextlib.suppress(Exception):  # `_edit_or_refusal` tells them
            call = read()
        if call is None or before is None or before.name != name:
            self._pieces = None
        elif before.are_one_with(call, self._keeper.mask):
            return True
        self._pieces = None
        if call is not None and may_be_piece(call):
            self._pieces = Pieces(name, call)
            self._pieces.add(call)
        return False

    def _edit_or_refusal(
        self, module: str, name: str, read: Callable[[], ObservedCall]
    ) -> CallEdit | OutputCallback | None:
        try:
            with torch._C.DisableTorchFunction():
                return self._edit_of(module, name, read)
        except EditRefused:
            raise
        except (Unreadable, *UNREADABLE) as error:
            why = str(error) if isinstance(error, Unreadable) else f"its call cannot be read ({error})"
            if self.plan.names(name):
                told = self._with_advice(f"{name} cannot be edited: {why}", module)
                raise LayerRefused(name, told) from error
            if self.plan.may_edit(name):
                self.skipped.setdefault(name, why)  # a capture does not show it, so it has no number
            return None
        except Exception as error:
            keep_from_model(error, functools.partial(self._fail, name))
            return None

    def reading_failed(self, error: Exception, module: nn.Module | None = None) -> None:
        """End the model's call if our own reading failed in a module that may be edited; else only note it.

        Raises:
            EditRefused: it may be edited, or everything in it may.
        """
        self._fail(self.name_for_failure(module), error, is_whole=id(module) in self._begins)

    def _fail(self, name: str, error: Exception, *, is_whole: bool = False) -> None:
        why = FAILED.format(type(error).__name__, error)
        if self.plan.may_edit(name) or is_whole:
            raise EditRefused(self._with_advice(f"{name} cannot be edited: {why}", name)) from error
        self.skipped.setdefault(name, why)

    def record_weights(self, read: Callable[[], ObservedCall], why: str) -> OutputEdit | OutputCallback | None:
        """Return what `record_call` does for a layer whose q and k are unknown."""
        return self.record_call(None, read)

    def before(self, func: Any, args: Sequence[Any]) -> None:
        """Do nothing before a function of torch."""

    def report_merged(self) -> None:
        """Note that the calling module merges partial attentions, which a capture does not show, so none counts."""
        module = self.caller().name
        if module is not None:
            self.merged.add(module)
            self.numbers.drop_module(module)
        self.report_unreadable(MERGED, certain=True)

    def record_interface_call(
        self, name: str, module: nn.Module, implementation: Any, arguments: Sequence[Any], settings: Mapping[str, Any]
    ) -> OutputEdit | OutputCallback | None:
        """Return what `record_call` does for a call of transformers' interface."""
        return self.record_call(name, functools.partial(read_call, implementation, module, *arguments, **settings))

    def report_unreadable(
        self, why: str, caller: Caller | None = None, *, certain: bool = False, unused: bool = False
    ) -> None:
        """Record that a module, by default the calling one, may compute attention that cannot be read."""
        caller = self.caller() if caller is None else caller
        if caller.name is None or (unused and caller.name in self._called):
            return
        if (certain or caller.is_attention) and self.plan.may_edit(caller.name):
            self.skipped.setdefault(caller.name, why)

    def is_captured_by(self, listener: Any) -> bool:
        """Return whether a listener is a capture that records edited calls."""
        if isinstance(listener, Editor) or not isinstance(listener, ModelCalls):
            return False
        return listener.model is None or self.knows(listener.model) or listener.knows(self.model)

    def matcher_of(self, model: nn.Module) -> RecordMatcher | None:
        """Return None: an editor records nothing."""
        return None

    def _with_advice(self, why: str, module: str) -> str:
        assert self.model is not None
        by_name = dict(self.model.named_modules())
        return with_way_on(why, [by_name[module], self.model] if module in by_name else [self.model])

    # One call.

    def _edit_of(self, module: str, name: str, read: Callable[[], ObservedCall]) -> CallEdit | OutputCallback | None:
        if under_transform():
            raise Unreadable(WRAPPED)
        call = as_autocast(read())
        running = self._running(module)
        refuse_spread_positions(call, running)
        why = self._why_not_positions(call, running)
        if why is not None:
            raise Unreadable(why)
        found = self._is_cross(module, call)
        call.cross = self._kinds.get(name) if found is None else found
        given = call.k.shape[2]
        mask = self._keeper.mask(call.mask) if given > call.q.shape[2] else None
        continues = name in self.ends
        told = keep_what_is_filled(call, mask, continues=continues)
        if not continues:
            refuse_keys_of_others(call, call.k.shape[2] if call.cached else given, by_length=not told)
        self._kinds[name] = bool(call.cross)
        call.after = keys_after(None if running is None else running.module)
        seen = self._placed(name, call, self._heads_of_process(module, call), mask)
        if not seen.cross:
            self.sizes.add((seen.samples, call.q.shape[2]))
        return self._edit_of_seen(seen, continues)

    def _edit_of_seen(self, seen: SeenCall, continues: bool) -> CallEdit | OutputCallback | None:
        call, by_head = seen.call, self._own_heads(seen, seen.call.heads)
        made = [one for edits in by_head.values() for one in edits if one is not None]
        if made and not (call.q if call.weights is None else call.weights).numel():  # nothing can be edited
            for one in made:
                one.rule.met.setdefault(seen.name, set())
            return None
        for one in made if call.weights is not None else ():
            if one.edit.needs_scores:
                why = ONLY_WEIGHTS.format(seen.name)
                raise LayerRefused(seen.name, NEEDS_SCORES.format(why, one.edit.text), why)
        if made:
            return CallEdit(self, seen, by_head, continues)
        last = self.plan.last_number(seen.cross)
        if last is None or seen.number is None or seen.number > last or seen.name in self._checked:
            return None
        return functools.partial(self._count, seen)

    # Which layers count.

    def counts(self, seen: SeenCall, output: Any) -> bool:
        """Return whether a capture shows a layer, so that it has a number: its output is that of q, k, v and rules.

        Only its first call is compared.

        Args:
            seen: its call.
            output: of the call, as `verification.sample_output` takes it.
        """
        if self.is_repeating or seen.name in self._checked:
            return True
        self._checked.add(seen.name)
        why = why_not_shown(seen.call, output)
        if why is not None:
            self.numbers.drop(seen.name)
            self.skipped.setdefault(seen.name, why)
        return why is None

    def _count(self, seen: SeenCall, output: Any) -> None:
        """Take the output of a call that is not edited."""
        self.counts(seen, output)

    def _number_of(self, name: str, call: ObservedCall) -> int | None:
        """Return the number of a layer.

        Raises:
            EditRefused: an edit counts layers, and this number was another layer in an earlier forward pass.
        """
        cross = bool(call.cross)
        is_new = not cross and call.k.shape[2] <= call.q.shape[2]  # not a step of a text that goes on
        if self._begins_pass and is_new:
            self.numbers.begin_pass(name, cross, anew=self._is_whole and self._was_whole)
        self._begins_pass = self._begins_pass and cross
        number = self.numbers.of(name, cross)
        if number is not None:
            self.seen.setdefault((name, cross))
            now = self.numbers.in_pass(name, cross)
            if now != number and {now, number} & self.plan.numbers(cross):
                before = self.numbers.names(cross)[now]
                raise EditRefused(OTHER_NUMBER.format(now, name, before, name))
        return number

    def _heads_of_process(self, module: str, call: ObservedCall) -> int:
        """Record the heads of this process, if others have the rest; return the model's number of the first."""
        running = self._running(module)
        call.heads = heads_of_process(None if running is None else running.module, call)
        return 0 if call.heads is None else call.heads.first

    def _own_heads(self, seen: SeenCall, here: ProcessHeads | None) -> ByHead:
        """Return the edits of this process's heads."""
        B, H = seen.call.q.shape[:2]
        try:
            found = self.plan.edits_of(seen.name, seen.number, seen.cross, H if here is None else here.total, B)
        except EditRefused as error:
            if self._pieces is None or H > 1:
                raise
            raise LayerRefused(seen.name, f"{error}, in this call. {ONE_HEAD.format(seen.name)}") from None
        if here is None:
            return found
        for edits in found.values():
            for one in edits:
                if one is not None:  # heads of other processes are edited there
                    one.rule.met.setdefault(seen.name, set())
        return {head - here.first: edits for head, edits in found.items() if 0 <= head - here.first < H}

    def _placed(self, name: str, call: ObservedCall, first_head: int, mask: Any) -> SeenCall:
        """Return a call with its layer number and positions; by default its queries are the last ones."""
        Q, K, cross = call.q.shape[2], call.k.shape[2], bool(call.cross)
        number = self._number_of(name, call)
        if cross:
            start = self._first_query[0] if self._first_query[1] == Q else 0
            ends = start + Q, K
        else:
            if K > Q and self._past is None:
                before = keys_before(call, mask)
                ends = (K if before is None else before + Q), K
            else:
                ends = (K, K) if K == Q or self._past is None else (self._past + Q, self._past + Q)
            self._first_query = ends[0] - Q, Q
        if name not in self.lengths or ends[0] == Q:
            self.lengths[name] = ends
        self.ends[name] = ends
        queries, keys = range(ends[0] - Q, ends[0]), range(ends[1] - K, ends[1])
        return SeenCall(call, name, number, cross, queries, keys, *self.lengths[name], first_head)


class RepeatingEditor(Editor):
    """Repeats edits in calls that a backward pass recomputes.

    Args:
        root: the editor that made the edits.
        calls: the calls that it edited.
    """

    is_repeating = True

    def __init__(self, root: Editor, calls: Repeated) -> None:
        assert root.model is not None
        super().__init__(root.model, root.plan)
        self._root, self._calls = root, calls
        self._met: Counter[str] = Counter()

    @property
    def root(self) -> Editor:
        """The editor that a user opened."""
        return self._root

    def refuse_what_is_missing(self) -> None:
        """Refuse to continue if an edited call was not repeated."""
        for name, calls in self._calls.items():
            if any(one is not None for one in calls[self._met[name] :]):
                raise EditRefused(NOT_REPEATED.format(name))

    def _edit_of(self, module: str, name: str, read: Callable[[], ObservedCall]) -> CallEdit | OutputCallback | None:
        calls, at = self._calls.get(module, []), self._met[module]
        self._met[module] += 1
        if at >= len(calls):
            raise EditRefused(NOT_REPEATED.format(name))
        before = calls[at]
        if before is None:
            return None
        call = as_autocast(read())
        mask = self._keeper.mask(call.mask) if call.k.shape[2] > call.q.shape[2] else None
        keep_what_is_filled(call, mask, continues=before.continues)
        self._heads_of_process(module, call)
        seen = SeenCall(call, *before.place)
        call.cross = seen.cross
        if seen.shapes != before.shapes:
            raise EditRefused(NOT_REPEATED.format(name))
        return CallEdit(self, seen, before.by_head, before.continues)


class CallEdit(OutputEdit):
    """The edit of one call's output: see `OutputEdit`.

    Args:
        editor: makes the edit.
        seen: the call.
        by_head: the edits by head and sample.
        continues: whether its cache was known before.
    """

    def __init__(self, editor: Editor, seen: SeenCall, by_head: ByHead, continues: bool) -> None:
        self._editor, self.seen, self.by_head, self._continues = editor, seen, by_head, continues

    @property
    def layer(self) -> str:
        """The name of its layer."""
        return self.seen.name

    def again(self) -> EditedCall:
        """Return this edit without tensors."""
        return EditedCall(self.by_head, self.seen.shapes, self.seen.place, self._continues)

    def write(
        self, kernel: Any, output: Tensor, earlier: tuple[OutputEdit, ...], weights: Tensor | None = None
    ) -> None:
        """Write the edited outputs, after verifying that the call is understood."""
        device = output.device.type
        if self._editor.plan.last_number(self.seen.cross) is not None and not self._editor.counts(self.seen, kernel):
            if self._are_numbered:
                return  # the next layer has its number
            raise LayerRefused(self.layer, NOT_UNDERSTOOD.format(self.layer))
        try:
            with torch._C.DisableTorchFunction(), torch.autocast(device, enabled=False):
                for samples, heads, chain in self._groups(earlier):
                    made = self._verified(kernel, samples, heads, chain)
                    made.write_output(output)
                    if weights is not None:
                        made.write_weights(weights)
        except EditRefused:
            raise
        except Unreadable as error:
            raise LayerRefused(self.layer, f"{self.layer} cannot be edited: {error}") from None
        self._editor.was_captured |= hooks.any_listener(self._editor.is_captured_by)
        for head, edits in self.by_head.items():
            for one in edits:
                if one is not None:
                    number = head + self.seen.first_head
                    one.rule.met.setdefault(self.seen.name, set()).add(number)
                    self._editor.edited.setdefault(self.seen.name, set()).add(number)

    @property
    def _are_numbered(self) -> bool:
        """Whether layers' numbers alone say that this call is edited."""
        made = (one for edits in self.by_head.values() for one in edits if one is not None)
        return all(isinstance(one.rule.layer, int) for one in made)

    def _groups(self, earlier: tuple[OutputEdit, ...]) -> Iterator[tuple[list[int], list[int], Chain]]:
        """Yield samples and heads with the same edits, and their edits of all interventions."""
        before = [one.by_head for one in earlier if isinstance(one, CallEdit)]
        chains: dict[tuple[int, ...], Chain] = {}
        of_head: dict[tuple[tuple[int, ...], int], list[int]] = {}
        for head, edits in self.by_head.items():
            for sample, own in enumerate(edits):
                if own is None:
                    continue
                others = (by_head[head][sample] for by_head in before if head in by_head)
                chain = (*(one for one in others if one is not None), own)
                key = tuple(id(one.edit) for one in chain)
                chains[key] = chain
                of_head.setdefault((key, head), []).append(sample)
        groups: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
        for (key, head), samples in of_head.items():
            groups.setdefault((key, tuple(samples)), []).append(head)
        share = self.seen.call.q.shape[1] // self.seen.call.k.shape[1]
        for (key, own_samples), heads in groups.items():
            for some in by_key_head(heads, share):
                yield list(own_samples), some, chains[key]

    def _verified(self, kernel: Any, samples: list[int], heads: list[int], chain: Chain) -> EditedHeads:
        """Return edited heads, after verifying that the call is understood."""
        name = self.layer
        differs = EditedHeads(self.seen, samples, heads, ()).differs(kernel)
        if differs is None:
            raise LayerRefused(name, NOT_SEEN.format(name))
        if differs:
            raise LayerRefused(name, NOT_UNDERSTOOD.format(name))
        fixed = any(one.edit.output is not None for one in chain)
        if (isinstance(kernel, RowsOfOutput | DroppedWeights) or self.seen.call.dropout) and not fixed:
            raise LayerRefused(name, DROPS.format(name))
        if torch.is_grad_enabled() and self.seen.call.q.requires_grad:
            for one in chain:
                if not one.edit.is_differentiable:
                    raise EditRefused(NO_GRADIENTS.format(one.edit.text))
        return EditedHeads(self.seen, samples, heads, chain)
