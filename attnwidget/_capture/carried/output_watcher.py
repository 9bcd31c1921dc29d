"""Watch a model while it runs: which modules read the outputs of its heads, what makes the logits, and gradients."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..._utils.quietly import keep_from_model, quietly
from ..call.memory_limit import MemoryLimit
from ..modules.module_walk import has_children, modules, own_parameters
from .next_tokens import LogitsOfSteps, note_likely
from .path_cache import RecalledPath, RowsOfProjections, hooks_so_far, path_of_model, recall, remember, state_of
from .projections import HeadOutputs, Projection, is_linear
from .readout import LogitReadout, NormFacts, Unembedding, read_norm
from .residual_stream import LinearMap, NormCall, StreamPath, StreamWatcher, Terms

NO_ROWS = torch.zeros(0, device="cpu")  # for an output whose path is known
NO_LOGITS = "the model gave no logits: capture the model with its head for them, such as AutoModelForCausalLM"
NO_PRODUCT = "the logits are not the result of one linear map of the residual stream"
NO_NORM = "the step between the residual stream and the logits is not a known LayerNorm or RMSNorm"
NOT_WHOLE = "only a part of the model was called, so it gave no logits: call the model itself"
NO_GRADIENT = (
    "no gradient came back to it: use capture(model, gradients=True), run the model with gradients on and without "
    "dropout, and then call loss.backward() on its loss, or cap.backward()"
)
DROPPED = "some weights were dropped before they met the values: run the model without dropout, after model.eval()"
OTHER_PATH = (
    "its output took another path than in an earlier forward pass of this model, although modules and settings are the "
    "same: capture the model again, which looks for the new path"
)
GRADIENT_FAILED = "its gradient could not be read, because attnwidget failed in it ({}): please report this"
NO_ROOM = "its gradient was not kept, because the capture has reached its limit: raise limit="


@dataclass(frozen=True, slots=True)
class UnreadScale:
    """The input of the final norm for one token of each sample; its scale is computed when it is needed."""

    norm: NormFacts
    given: Tensor  # (B, 1, d_model), a copy

    def read(self) -> Tensor:
        """Return the norm's divisor, (B, 1)."""
        with _unobserved():
            return self.norm.scale(self.given)


@dataclass
class CallFacts:
    """Facts from one call of the model beyond its attention.

    outputs: the module that reads each attention's output, by record name.
    gradients: ∂L/∂O (B, H, Q, Dv) of each attention, or the reason why it was not kept.
    readout: how the model makes its logits, or the reason why this is unknown.
    terms: the path of each attention's contribution to the readout's input; absent if it is not a term of a sum.
    not_followed: attentions without a known path.
    scale: (B, Q) divisors of the final norm, perhaps not computed yet: see `norm_scale`; None without a norm.
    scales: (B, Q) divisors of norms before it, by their calls.
    likely: (B, n, 8) the most likely next tokens at the last n positions, perhaps not found yet: see `next_tokens`.
    logits: (B, n, vocabulary) with their graph, if gradients are kept.
    """

    outputs: dict[str, HeadOutputs] = field(default_factory=dict)
    gradients: dict[str, Tensor | str] = field(default_factory=dict)
    readout: LogitReadout | str = NOT_WHOLE
    terms: Terms = field(default_factory=dict)
    not_followed: set[str] = field(default_factory=set)
    scale: Tensor | UnreadScale | None = None
    scales: dict[str, Tensor] = field(default_factory=dict)
    likely: Tensor | LogitsOfSteps | None = None
    logits: Tensor | None = None

    @property
    def next_tokens(self) -> Tensor | None:
        """The most likely next tokens at the last n positions, (B, n, 8), most likely first."""
        if isinstance(self.likely, LogitsOfSteps):
            with _unobserved():
                self.likely.find()
        assert not isinstance(self.likely, LogitsOfSteps)
        return self.likely

    @property
    def norm_scale(self) -> Tensor | None:
        """The divisors of the final norm, (B, Q); None without one."""
        if isinstance(self.scale, UnreadScale):
            self.scale = self.scale.read()
        return self.scale


class FollowedCall:
    """Receives the output of a call, for its record and to follow its path.

    Args:
        callback: takes the output for the record.
        note: takes the output (B, H, Q, Dv) to follow it.
        keep: takes ∂L/∂O when it arrives; None if gradients are not kept.
    """

    def __init__(
        self, callback: Callable[[Any], None], note: Callable[[Any], None], keep: Callable[[Any], None] | None
    ) -> None:
        self._callback, self._note, self._keep = callback, note, keep

    def __call__(self, output: Any) -> None:
        quietly(None, self._note_unobserved, output)  # what was not followed is named where it is asked for
        self._callback(output)

    def _note_unobserved(self, output: Any) -> None:
        with _unobserved():
            self._note(output)

    def keep_gradient(self, output: Any, to_heads: Callable[[Tensor], Tensor]) -> None:
        """Register a hook that keeps the gradient of an output.

        Args:
            output: the tensor that the model uses next.
            to_heads: turns a tensor of its shape into (B, H, Q, Dv).
        """
        keep = self._keep
        if keep is None or not isinstance(output, Tensor) or not torch.is_grad_enabled() or output.is_inference():
            return
        if not output.requires_grad and output.is_leaf:  # the model's parameters are frozen
            output.requires_grad_()

        def keep_quietly(gradient: Tensor) -> None:
            quietly(lambda error: keep(GRADIENT_FAILED.format(error)), lambda: keep(to_heads(gradient.detach())))

        output.register_hook(keep_quietly)


class _RunningPass(threading.local):
    def __init__(self) -> None:
        self.pending: list[tuple[HeadOutputs, Any]] = []  # outputs without a known reader, latest first, and readers
        self.facts: CallFacts | None = None
        self.stream: StreamWatcher | None = None
        self.normed: Any = None  # the last input of the known final norm
        self.recalled: RecalledPath | None = None  # the path of an earlier capture that this pass must confirm
        self.rows: RowsOfProjections | None = None  # the rows that confirm it
        self.norm_rows: tuple[Tensor, ...] = ()  # the last row of the final norm's input and output
        self.norms: dict[str, NormFacts] = {}  # on the paths of attention, by their calls
        self.waiting: LogitsOfSteps | None = None  # logits of earlier calls
        self.calls: Counter[int] = Counter()  # calls of each norm, by id


@dataclass
class _Structure:
    """The facts that are the same in each forward pass of a model."""

    readout: LogitReadout
    norm: nn.Module
    terms: Terms
    modules: frozenset[int]  # ids of all norms on the paths
    is_confirmed: bool = True  # whether a row of the logits equals the unembedding of the norm's output


class OutputWatcher:
    """Watches the modules of a model to find where the outputs of its heads go.

    Args:
        gradients: whether ∂L/∂O is kept.
        memory: limits how much of it is kept.
        device: where it is kept; None: where it is computed.
        dtype: the dtype to keep it in; None: its own.
    """

    def __init__(
        self, *, gradients: bool, memory: MemoryLimit, device: torch.device | None, dtype: torch.dtype | None
    ) -> None:
        self._gradients, self._memory, self._device, self._dtype = gradients, memory, device, dtype
        self._running = _RunningPass()
        self._names: Mapping[int, str] = {}
        self._structure: _Structure | None = None
        self._model: nn.Module | None = None
        self._hooks: dict[int, Any] = {}  # by id of the module
        self._is_resting = True  # whether all is known, so that modules are not watched
        self._watches_all = False  # whether all relevant modules are watched
        self._recalled: RecalledPath | None = None  # the path of an earlier capture, until confirmed or dropped
        self._state: tuple[Any, ...] | None = None  # of the model when the block began
        self._hooks_then = 0  # hooks registered in this process when the model was last compared
        self._shows_all: bool | None = None  # whether all forward passes were fully followed; None: there were none
        self._passes = 0  # forward passes that are running, in all threads
        self._lock = threading.Lock()  # for the four above
        self._projections: dict[str, HeadOutputs] = {}  # by record name

    @contextlib.contextmanager
    def watching(self, model: nn.Module, names: Mapping[int, str]) -> Iterator[None]:
        """Watch a model inside the block; `names` maps ids of modules to names."""
        self._model, self._names, self._shows_all, self._state = model, names, None, None
        with contextlib.ExitStack() as stack:
            stack.callback(self._end_watching, model)
            stack.callback(model.register_forward_hook(_hook(self._model_ended)).remove)
            path = recall(model)
            if path is None:
                self._state = state_of(model)
                self._watch_modules()
            else:
                self._expect(path)
            yield

    def _end_watching(self, model: nn.Module) -> None:
        waiting, self._running.waiting = self._running.waiting, None
        if waiting is not None:
            with _unobserved():
                waiting.find()
        self._rest(whole=True)
        self._remember(model)
        self._model = self._recalled = None

    def _remember(self, model: nn.Module) -> None:
        """Keep the path for later captures of the model, if all of it was found."""
        known, state = self._structure, self._state
        found = {key: one.found for key, one in self._projections.items()}
        whole = {key: one for key, one in found.items() if isinstance(one, Projection)}
        if state is None or not self._shows_all or not whole or state != state_of(model):
            return
        readout = None if known is None else (known.readout, known.norm, known.terms)
        remember(model, path_of_model(model, state, whole, readout))

    # The path of an earlier capture.

    def is_ready(self) -> None:
        """Count hooks registered so far as this capture's own, so they do not require a new check of the model."""
        self._hooks_then = hooks_so_far()

    def _expect(self, path: RecalledPath) -> None:
        """Watch only the modules that show whether outputs take the path of an earlier capture."""
        with self._lock:
            self._recalled, self._hooks_then = path, 0
            self._is_resting = self._watches_all = False
            for module in (*path.called.values(), *([] if path.norm is None else [path.norm])):
                self._put_hook(module)

    def _forget(self) -> None:
        """Look for the path again, from the next forward pass on."""
        self._recalled = self._structure = self._state = None
        self._projections = {}
        if self._model is not None:
            remember(self._model, None)
            self._watch_modules()

    def _compare(self, path: RecalledPath, rows: RowsOfProjections, logits: Tensor | None, facts: CallFacts) -> None:
        """Confirm the path of an earlier capture by this forward pass, or drop it."""
        running = self._running
        running.recalled = running.rows = None
        rows.compare()
        for key in rows.unlike:
            facts.outputs[key] = HeadOutputs(key, (0, 0, 0, 0), torch.zeros(0, device="cpu"), OTHER_PATH)
        if logits is not None:
            structure = None if rows.unlike else self._structure_of(path, logits)
            facts.readout = OTHER_PATH if structure is None else structure.readout
            if structure is not None:
                facts.terms, facts.scale = structure.terms, _scale_of(structure, running.normed)
                self._structure, self._recalled = structure, None
                self._projections = {**facts.outputs}
        is_read = logits is None or not isinstance(facts.readout, str)
        if rows.unlike or not is_read or not facts.outputs.keys() <= path.projections.keys():
            self._forget()

    def _structure_of(self, path: RecalledPath, logits: Tensor) -> _Structure | None:
        """Return the facts of the model, if its last row of logits is made from the final norm's last row."""
        known, rows, model = path.readout, self._running.norm_rows, self._model
        if known is None or path.norm is None or not rows or model is None:
            return None
        norm = read_norm(path.norm, known.kind[0], *rows)
        weight = model.get_parameter(known.unembedding).detach()
        if norm is None or norm.settings != known.kind or weight.shape[0] != logits.shape[-1]:
            return None
        unembedding = Unembedding(known.unembedding, weight, known.factor)
        if not unembedding.gives(rows[1], logits):
            return None
        return _Structure(LogitReadout.of(norm, unembedding), path.norm, dict(known.terms), frozenset([id(path.norm)]))

    def _watch_modules(self) -> None:
        """Put hooks on the modules that have none yet."""
        with self._lock:
            if self._watches_all or self._model is None:
                return
            self._is_resting, self._watches_all = False, True
            for module in modules(self._model):
                self._put_hook(module)

    def _put_hook(self, module: nn.Module) -> None:
        note = self._note_for(module) if id(module) not in self._hooks else None
        if note is not None:
            self._hooks[id(module)] = module.register_forward_hook(note)

    def _note_for(self, module: nn.Module) -> Callable[..., None] | None:
        """Return the hook of a module; None if it needs none or cannot take one."""
        if isinstance(module, torch.jit.ScriptModule):
            return None
        if isinstance(module, nn.MultiheadAttention):
            return _hook(self._multi_head)
        if is_linear(module):
            return _hook(self._linear, self._has_pending)
        return _hook(self._norm, self._is_asked) if _may_be_norm(module) else None

    def _rest(self, *, whole: bool = False) -> None:
        """Remove the hooks that a known model no longer needs: all except those on norms on the paths, or all."""
        with self._lock:
            if not whole and (self._passes or self._is_resting):
                return  # another thread runs the model, or there is nothing to remove
            self._is_resting, self._watches_all = True, False
            norms = frozenset[int]() if whole or self._structure is None else self._structure.modules
            for key in [key for key in self._hooks if key not in norms]:
                self._hooks[key].remove()
                del self._hooks[key]

    def begin(self, facts: CallFacts) -> None:
        """Begin a forward pass of the model itself, and fill in its facts."""
        running = self._running
        if running.facts is not None:
            return
        running.facts, running.pending, running.normed, running.norms = facts, [], None, {}
        running.calls.clear()
        with self._lock:
            self._passes += 1
        if self._recalled is not None and self._hooks_then != (count := hooks_so_far()):
            self._hooks_then = count
            if self._model is None or state_of(self._model) != self._recalled.state:  # it changed inside the block
                self._forget()
        running.recalled, running.norm_rows = self._recalled, ()
        running.rows = None if running.recalled is None else RowsOfProjections(running.recalled)
        if self._structure is None and running.recalled is None:
            running.stream = StreamWatcher(self._understand)
            running.stream.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """End the forward pass, also if it failed."""
        running = self._running
        if running.facts is not None:
            with self._lock:
                self._passes -= 1
        if running.stream is not None and torch.overrides._get_current_function_mode() is running.stream:
            running.stream.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        facts, running.facts = running.facts, None
        running.stream = running.normed = running.recalled = running.rows = None
        running.pending, running.norms = [], {}
        if facts is not None and self._structure is not None and facts.outputs.keys() <= self._projections.keys():
            self._rest()

    def goes_as_before(self, key: str, facts: CallFacts | None) -> bool:
        """Record that a call's output takes the path of the forward pass before; return False if that is unknown.

        Args:
            key: the name of its record.
            facts: the facts of the model's call.
        """
        known = None if self._structure is None or self._gradients else self._projections.get(key)
        if known is None or facts is None:
            return False
        facts.outputs[key] = known
        return True

    def follow(self, key: str, facts: CallFacts, callback: Callable[[Any], None]) -> FollowedCall:
        """Follow the output of a call.

        Args:
            key: the name of its record.
            facts: the facts of the model's call.
            callback: takes its output for the record.
        """

        def note(output: Any) -> None:
            if not isinstance(output, Tensor) or output.ndim != 4:
                facts.outputs[key] = HeadOutputs(key, (0, 0, 0, 0), torch.zeros(0, device="cpu"), DROPPED)
                return
            known = self._projections.get(key)
            if known is not None and self._structure is not None:  # as in the forward pass before
                facts.outputs[key] = known
                return
            if self._is_recalled(key, facts, output):
                return
            self._watch_modules()
            if self._running.stream is None and self._running.facts is not None:
                facts.not_followed.add(key)
            known = facts.outputs[key] = HeadOutputs.of(key, output)
            self._running.pending = [(known, None), *self._running.pending[:1]]

        def keep(gradient: Tensor | str) -> None:
            facts.logits = None  # a backward pass is running, so they are no longer needed for one
            facts.gradients[key] = gradient if isinstance(gradient, str) else self._kept(gradient)

        return FollowedCall(callback, note, keep if self._gradients else None)

    def _is_recalled(self, key: str, facts: CallFacts, output: Tensor) -> bool:
        """Return whether an earlier capture knows an output's path; record the rows that confirm it."""
        path, rows = self._running.recalled, self._running.rows
        if path is None or rows is None or key not in path.projections:
            return False
        found = path.projection(key, output.shape[1])
        if found is None:
            return False
        rows.expect(key, output)
        facts.outputs[key] = HeadOutputs(key, (0, 0, 0, 0), NO_ROWS, found)
        return True

    def _kept(self, gradient: Tensor) -> Tensor | str:
        dtype = self._dtype or gradient.dtype
        if not self._memory.has_room(gradient.numel() * dtype.itemsize, self._device or gradient.device):
            return NO_ROOM
        self._memory.add(gradient.numel() * dtype.itemsize)
        return gradient.to(self._device or gradient.device, dtype)

    # Hooks of modules.

    def _has_pending(self, module: nn.Module) -> bool:
        """Return whether the reader of an attention's output is still unknown."""
        return bool(self._running.pending) or self._running.rows is not None

    def _is_asked(self, module: nn.Module) -> bool:
        """Return whether a norm's input is needed."""
        running, known = self._running, self._structure
        if running.recalled is not None:
            return module is running.recalled.norm
        return running.stream is not None or (known is not None and id(module) in known.modules)

    def _linear(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        given = args[0] if args else None
        if self._running.rows is not None:
            self._running.rows.called(module, output)
        for i, (known, reader) in enumerate(self._running.pending):
            if reader is None and known.are_read_as(given):
                known.read_by(module, self._names.get(id(module), "?"), output)
                self._running.pending[i] = known, given
                self._adds(known, output)
            elif reader is not None and given is reader:
                known.read_by(module, self._names.get(id(module), "?"), output)

    def _multi_head(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        given = output[0] if isinstance(output, tuple) else output
        if self._running.rows is not None:
            self._running.rows.called(module, output)
        name = self._names.get(id(module), "?")
        known = next((one for one, _ in self._running.pending if one.name.partition(" #")[0] == name), None)
        if known is not None and isinstance(module, nn.MultiheadAttention) and isinstance(given, Tensor):
            first = given.ndim == 3 and not module.batch_first
            known.read_by(module.out_proj, f"{name}.out_proj", given, sequence_first=first)
            self._adds(known, given, transposed=first)

    def _adds(self, known: HeadOutputs, output: Any, *, transposed: bool = False) -> None:
        if isinstance(known.found, Projection):
            self._projections[known.name] = known
        if isinstance(known.found, Projection) and self._running.stream is not None:
            self._running.stream.adds(output, {known.name: StreamPath(transposed=transposed)})

    def _norm(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        given = args[0] if args else None
        if not isinstance(given, Tensor) or not isinstance(output, Tensor) or given.shape != output.shape:
            return
        running, known = self._running, self._structure
        if running.recalled is not None:
            running.normed = given
            running.norm_rows = tuple(x.detach()[..., -1:, :].clone() for x in (given, output))
            return
        call = self._call_of_norm(module)
        if running.stream is not None:
            one, other = (x.detach()[..., -1:, :].clone() for x in (given, output))
            running.stream.is_normed(output, NormCall(call, module, given, (one, other)))
        elif known is not None and running.facts is not None:
            if call in known.readout.others:
                running.facts.scales[call] = _by_sample(known.readout.others[call].scale(given))
            if module is known.norm:
                running.normed = given

    def _call_of_norm(self, module: nn.Module) -> str:
        """Return the name of a norm's call: the norm's name, numbered from its second call in this pass."""
        name, calls = self._names.get(id(module), "?"), self._running.calls
        calls[id(module)] += 1
        return name if calls[id(module)] == 1 else f"{name} #{calls[id(module)]}"

    def _understand(self, call: NormCall) -> bool:
        """Record what a norm on the path computes, and its scale; return False if this is unknown."""
        running = self._running
        if call.call in running.norms:
            return True
        with contextlib.suppress(Exception), _unobserved():
            norm = self._norm_of(call)
            if norm is not None and running.facts is not None:
                running.norms[call.call] = norm
                running.facts.scales[call.call] = _by_sample(norm.scale(call.given))
                return True
        return False

    def _model_ended(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        running, facts = self._running, self._running.facts
        logits = logits_of(output)
        if facts is None or facts.likely is not None:
            return
        recalled, rows = running.recalled, running.rows
        facts.readout = NO_LOGITS if logits is None else facts.readout
        if recalled is not None and rows is not None:
            self._compare(recalled, rows, logits, facts)
        if logits is None:
            self._note_whole(facts)
            return
        facts.logits = logits if self._gradients and logits.requires_grad else None
        if running.stream is not None:
            self._read_stream(running.stream, logits, facts)
        elif recalled is None and self._structure is not None and running.normed is not None:
            known = self._structure
            facts.readout, facts.terms = known.readout, known.terms
            facts.scale = _scale_of(known, running.normed)
        whole = logits if logits.ndim == 3 else logits[None] if logits.ndim == 2 else None
        if whole is not None:
            running.waiting = note_likely(facts, whole.detach(), running.waiting)
        self._note_whole(facts, is_read=self._structure is not None and self._structure.is_confirmed)

    def _note_whole(self, facts: CallFacts, *, is_read: bool = True) -> None:
        """Record whether a forward pass has shown the paths of all attention that ran."""
        shows_all = is_read and all(type(one.found) is Projection for one in facts.outputs.values())
        self._shows_all = shows_all and self._shows_all is not False

    def _read_stream(self, stream: StreamWatcher, logits: Tensor, facts: CallFacts) -> None:
        """Find how the logits are made, going backwards from them."""
        product = stream.known(logits).product
        if product is None or product.weight.shape[0] != logits.shape[-1]:
            facts.readout = NO_PRODUCT
            return
        last = stream.known(product.given).norm
        norm = None if last is None else self._norm_of(last)
        terms = (
            {} if last is not None and norm is None else stream.terms_of(product.given if last is None else last.given)
        )
        if norm is None and not terms:
            facts.readout = NO_NORM
            return
        transposed = product.transposed != (last is not None and last.transposed)
        facts.terms = {
            name: path._replace(transposed=path.transposed or transposed) for name, path in terms.items() if path.is_one
        }
        passed = {call for path in facts.terms.values() for call in path.norms}
        facts.scales = {call: scale for call, scale in facts.scales.items() if call in passed}
        others = {call: facts_of for call, facts_of in self._running.norms.items() if call in passed}
        factor = 1.0 if last is None else last.factor
        facts.readout = LogitReadout.of(norm, self._unembedding(product, factor), others)
        if last is not None and norm is not None:
            facts.scale = _by_sample(norm.scale(last.given))
            watched = frozenset([id(last.module), *(id(module) for module in self._modules_of(others.values()))])
            is_confirmed = not others and facts.readout.unembedding.gives(last.rows[1], logits)
            self._structure = _Structure(facts.readout, last.module, facts.terms, watched, is_confirmed)

    def _modules_of(self, norms: Iterable[NormFacts]) -> Iterator[nn.Module]:
        """Yield the modules of some norms."""
        assert self._model is not None
        names = {norm.name for norm in norms}
        yield from (module for module in self._model.modules() if self._names.get(id(module), "?") in names)

    def _norm_of(self, call: NormCall) -> NormFacts | None:
        """Return what a norm computes, from its last row; None if its input has changed since."""
        (x, y), given = call.rows, call.given
        if given.ndim not in (2, 3) or not torch.equal(given[..., -1:, :], x):
            return None
        return read_norm(call.module, self._names.get(id(call.module), "?"), x, y)

    def _unembedding(self, product: LinearMap, before: float) -> Unembedding:
        """Return the unembedding after the final norm, whose output was multiplied by `before`."""
        names = {} if self._model is None else {p.data_ptr(): name for name, p in self._model.named_parameters()}
        name = names.get(product.weight.data_ptr(), "a tensor that is not a parameter")
        factor = before * product.factor
        nearest = round(factor)  # c · tanh(x / c) divides and multiplies by the same number
        factor = float(nearest) if math.isclose(factor, nearest, rel_tol=4 * sys.float_info.epsilon) else factor
        return Unembedding(name, product.weight, factor, product.softcap)


def logits_of(output: Any) -> Tensor | None:
    """Return the logits in a model's output: (B, n, vocabulary) or (n, vocabulary); None if there are none."""
    found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if found is None and isinstance(output, tuple | list) and output:
        found = output[0]
    found = output if found is None else found
    return found if isinstance(found, Tensor) and found.ndim in (2, 3) and found.is_floating_point() else None


def _scale_of(known: _Structure, given: Tensor) -> Tensor | UnreadScale | None:
    """Return the final norm's divisor at each position of its input; for one token it is computed later."""
    norm = known.readout.norm
    if norm is not None and given.ndim == 3 and given.shape[1] == 1:
        return UnreadScale(norm, given.detach().clone())
    return None if norm is None else _by_sample(norm.scale(given))


def _by_sample(scale: Tensor) -> Tensor:
    return scale if scale.ndim == 2 else scale[None]


def _may_be_norm(module: nn.Module) -> bool:
    """Return whether a module may be a norm: it has only vectors as parameters, or "norm" in its class name."""
    if has_children(module):
        return False
    own = own_parameters(module).values()
    if any(p.ndim != 1 for p in own):
        return False
    return bool(own) or "norm" in type(module).__name__.lower()


def _unobserved() -> contextlib.AbstractContextManager[Any]:
    """Compute without gradients, inference mode and watching modes."""
    if torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        return _switched_off()
    plain: contextlib.AbstractContextManager[Any] = torch._C.DisableTorchFunction()
    return plain


@contextlib.contextmanager
def _switched_off() -> Iterator[None]:
    with torch.inference_mode(False), torch.no_grad(), torch._C.DisableTorchFunction():
        yield


def _hook(
    note: Callable[[nn.Module, tuple[Any, ...], Any], None], wanted: Callable[[nn.Module], bool] = lambda _: True
) -> Callable[..., None]:
    """Return a hook that never raises, so the model always continues."""

    def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not wanted(module):
            return
        try:
            with _unobserved():
                note(module, args, output)
        except Exception as error:
            keep_from_model(error)

    return hook
