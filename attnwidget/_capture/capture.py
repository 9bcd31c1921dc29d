"""The attention of any torch model, recorded while it computes what it would have computed: q, k, v and rules."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .._utils.validation import FLOATS, nearest
from ..attention import Attention
from ..stack import AttentionStack
from . import hooks, io
from .io import LoadedRecord, tensors_of
from .matching import Answer, RecordMatcher
from .records import EAGER, ObservedCall, Record, TensorKeeper, Unreadable

if TYPE_CHECKING:
    from .._widget.widget import AttentionWidget

Pages = Mapping[str, Record | LoadedRecord]  # of one forward pass

__all__ = ["Capture", "Forward", "capture"]

HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads", "nhead")
ADVICE = (
    "run the model inside the block; of a transformers model whose attention is written out in its own file, call it "
    "with output_attentions=True and give output.attentions to AttentionWidget.from_weights"
)

OTHERWISE = f"its output is not what its q, k, v, mask and scale come to, so it does more than they tell: {EAGER}"


def capture(
    model: Any = None,
    *,
    layers: Any = None,
    device: Any = None,
    dtype: torch.dtype | None = None,
    values: bool = True,
    clone: bool = True,
) -> Capture:
    """Record the attention of a model in a `with` block: q, k, v, masks and scales of every call, never the weights.

    Args:
        model: an `nn.Module`, or what has one as `.model`, such as a pipeline; only its calls are recorded. None:
            whatever torch's attention functions are called with in this thread.
        layers: which to record: an int, counted as `cap.attention` and `cap.cross` count them; a module's name or any
            dotted part of it ("decoder", "h.5"); or a list of these. None: all.
        device: where to keep the tensors, e.g. "cpu"; None: where they are.
        dtype: as what to keep them, e.g. torch.float16; None: as they are.
        values: whether to keep v, without which there are no outputs and contributions.
        clone: copy the tensors. False keeps the model's own, where that takes no more memory, and shows changes in
            place.

    Returns:
        `Capture`, to be entered; when the block ends it has `attention`, `cross`, `calls`, `widget()`, `save(path)`.

    Raises:
        TypeError, ValueError: an argument that is none of these; at the end of the block, that nothing was seen, or no
            such layer, with what to try.

    The model keeps its kernels (SDPA, FlashAttention, FlexAttention, eager) and computes the same, bit by bit, with two
    exceptions: torch's own `nn.MultiheadAttention` and `nn.TransformerEncoder` take no short cut for inference inside
    the block, and compiled models are run as they are written; both may change last bits.

    >>> import torch
    >>> model = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    >>> x = torch.randn(1, 5, 8)
    >>> with capture(model) as cap:
    ...     output, weights = model(x, x, x, average_attn_weights=False)
    >>> bool(torch.allclose(cap.attention[0].block(head=1), weights[0, 1]))
    True
    """
    return Capture(Recorder(model, layers, device, dtype, values, clone))


class Forward:
    """The attention of one forward pass, or of several that continue one another, as while a text is generated."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    @property
    def calls(self) -> dict[str, Attention]:
        """All attention calls, by the name of their module."""
        return {name: record.attention for name, record in self._pages.items()}

    @property
    def attention(self) -> AttentionStack:
        """Self-attention, in the order of layers.

        Raises:
            ValueError: there is none.
        """
        return self._stack(cross=False)

    @property
    def cross(self) -> AttentionStack:
        """Cross-attention, in the order of layers.

        Raises:
            ValueError: there is none.
        """
        return self._stack(cross=True)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors that are kept, each counted once."""
        kept = {id(x): x for record in self._pages.values() for x in tensors_of(record.attention).values()}
        return sum(x.numel() * x.element_size() for x in kept.values())

    def widget(self, tokens: Any = None, *, cross: bool = False, **show: Any) -> AttentionWidget:
        """A widget with the layers of self-attention, or of cross-attention.

        Args:
            tokens: as in `AttentionWidget`; layers of another length, as those of a decoder among an encoder's, show
                positions in their place. A part of the layers is shown by `AttentionWidget.from_attention`, see below.
            cross: the cross-attention, whose queries are `tokens` and whose keys `key_tokens`.
            show: the other keywords of `AttentionWidget.from_attention`.

        Raises:
            ValueError: nothing of this kind was recorded.

        >>> model = torch.nn.Transformer(8, 2, 1, 2, 16, batch_first=True)
        >>> with capture(model) as cap:
        ...     _ = model(torch.randn(1, 3, 8), torch.randn(1, 2, 8))
        >>> cap.widget(cross=True, tokens=["la", "banque"], key_tokens=["the", "bank", "."])
        AttentionWidget(layer 0 of 2, head 0 of 2, 2 queries × 3 keys)
        >>> from attnwidget import AttentionWidget
        >>> AttentionWidget.from_attention(cap.attention[1:], tokens=["la", "banque"])
        AttentionWidget(layer 0 of 2, head 0 of 2, 2 queries × 2 keys)
        """
        from .._widget.widget import AttentionWidget

        return AttentionWidget.from_attention(self.cross if cross else self.attention, tokens=tokens, **show)

    def _stack(self, *, cross: bool) -> AttentionStack:
        records = self._records(cross)
        if not self._pages:
            raise ValueError("nothing was recorded: enter the capture by `with`, and run the model inside the block")
        if not records:
            kinds = ("cross", "attention has the self") if cross else ("self", "cross has the cross")
            raise ValueError(f"no {kinds[0]}-attention was recorded: cap.{kinds[1]}-attention")
        return AttentionStack([record.attention for record in records.values()], records)

    def _records(self, cross: bool) -> Pages:
        return {name: record for name, record in self._pages.items() if record.cross == cross}

    def __repr__(self) -> str:
        size = self.nbytes
        kept = f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size / 1e3:,.1f} kB"
        return f"{type(self).__name__}({', '.join([*self._counted(), kept])})"

    def _counted(self) -> list[str]:
        counts = {"self": len(self._records(False)), "cross": len(self._records(True))}
        return [f"{n} × {kind}-attention" for kind, n in counts.items() if n] or ["nothing recorded"]


class Capture(Forward):
    """What `capture` recorded, and the block that records it; read it when the block has ended.

    One forward pass, or one generated text, is in `attention`, `cross` and `calls`. Of several, `cap[0]`, `cap[1]`, …
    are `Forward`s, each with the same names; `cap.attention` and the others then have all of them, told apart as
    "forward 1: …".
    """

    def __init__(
        self, recorder: Recorder | None, forwards: Sequence[Pages] = (), skipped: Mapping[str, str] | None = None
    ) -> None:
        self._recorder = recorder
        self._skipped = recorder.skipped if recorder is not None else skipped or {}
        self._forwards: Sequence[Pages] = forwards if recorder is None else recorder.book.forwards

    @property
    def skipped(self) -> dict[str, str]:
        """Calls that were seen but cannot be shown: the module's name, and why."""
        return dict(self._skipped)

    @property
    def _pages(self) -> Pages:  # type: ignore[override]
        forwards = self._forwards
        if len(forwards) == 1:
            return forwards[0]
        return {f"forward {i}: {name}": record for i, pages in enumerate(forwards) for name, record in pages.items()}

    def _counted(self) -> list[str]:
        return [*super()._counted(), *([f"{len(self._skipped)} skipped"] if self._skipped else [])]

    def __len__(self) -> int:
        return len(self._forwards)

    def __getitem__(self, forward: int) -> Forward:
        forwards = self._forwards
        try:
            return Forward(forwards[forward])
        except IndexError:
            last = len(forwards) - 1
            there = f"forwards 0 to {last}" if last > 0 else "forward 0 only" if last == 0 else "none"
            raise IndexError(f"forward {forward} is not there: this capture has {there}") from None

    def __iter__(self) -> Iterator[Forward]:
        return (Forward(pages) for pages in self._forwards)

    def __bool__(self) -> bool:
        return True

    def __reduce__(self) -> Any:
        raise TypeError("a capture is not copied or pickled: cap.save(path) writes it, and Capture.load(path) reads it")

    def save(self, path: str | Path) -> None:
        """Write all that was recorded to a file in the safetensors format: tensors and text, nothing that runs.

        Args:
            path: where; by custom it ends in .safetensors.

        Raises:
            ValueError: a mask or score function that has no form but its code.
            OSError: a directory that is not there, or anything else that keeps the file from being written. A file that
                is there is replaced at the end, so one that is loaded stays as it was.

        >>> import tempfile
        >>> with capture() as cap:
        ...     _ = torch.nn.functional.scaled_dot_product_attention(*torch.randn(3, 1, 2, 5, 8), is_causal=True)
        >>> path = Path(tempfile.mkdtemp()) / "five.safetensors"
        >>> cap.save(path)
        >>> Capture.load(path).attention[0].is_causal
        True
        """
        io.save(self._forwards, self._skipped, path)

    @classmethod
    def load(cls, path: str | Path) -> Capture:
        """Open what `save` wrote; neither the model nor its code is needed. The file is mapped into memory, and read as
        it is looked at, so it must stay where it is.

        Raises:
            ValueError: it is not such a file, or of a later version.
            FileNotFoundError: no such file.
        """
        return cls(None, *io.load(path))

    def __enter__(self) -> Capture:
        if self._recorder is None:
            raise ValueError("this capture was loaded from a file: enter a new one, capture(model), to record")
        self._recorder.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        assert self._recorder is not None
        self._recorder.end()
        if kind is None:
            self._recorder.check()


class Recorder:
    """What happens while a capture's block is open."""

    def __init__(
        self, model: Any, layers: Any, device: Any, dtype: torch.dtype | None, values: bool, clone: bool
    ) -> None:
        self.model = _module_of(model)
        self._layers = _read_layers(layers)
        if dtype is not None and dtype not in FLOATS:
            raise TypeError(f"dtype is {dtype!r}: give torch.float16, bfloat16, float32 or float64, or None")
        try:
            where = None if device is None else torch.empty(0, device=device).device
        except (AssertionError, NotImplementedError, RuntimeError, TypeError) as error:
            raise ValueError(
                f"device is {device!r}, which this torch has not: give one that it has, such as 'cpu' or 'cuda:0', or "
                "None"
            ) from error
        keeper = TensorKeeper(where, dtype, bool(values), bool(clone))
        self.book = RecordMatcher(keeper, self._wanted)
        self.skipped: dict[str, str] = {}
        self._missed: dict[str, str] = {}  # as `skipped`, of what may be a part of a module
        self._passed: dict[str, None] = {}  # names that `layers` left out
        self._found: set[Any] = set()
        self._names: dict[int, str] = {}
        self._roots: dict[int, tuple[nn.Module, dict[int, str]]] = {}  # without a model: those that were seen
        self._open: list[contextlib.ExitStack] = []
        self._watch: hooks.FunctionWatcher | None = None
        self._unheard: set[int] = set()  # modules for which it watches

    def begin(self) -> None:
        with contextlib.ExitStack() as stack:
            if self.model is not None:
                self._names = names_of(self.model)
                self._refuse_unknown_names(self.model)
                if not self._open:
                    stack.enter_context(_hooked(self.model, self.book.begin, self._passed_through))
            if not self._open:
                hooks.begin(self)
                stack.callback(hooks.end, self)
                self._unheard = set() if self.model is None else hooks.may_call(self.model)
                if self.model is None or self._unheard:
                    self._watch = stack.enter_context(hooks.watching(self))
            self._open.append(stack.pop_all())

    def _refuse_unknown_names(self, model: nn.Module) -> None:
        """Before the model has run, which may take long."""
        names = self._names.values()
        for one in self._layers or ():
            if isinstance(one, str) and not any(_is_part(re.sub(r" #\d+$", "", one), name) for name in names):
                advice = nearest(one, list(dict.fromkeys(part for name in names for part in (name, *name.split(".")))))
                raise ValueError(
                    f"no layer is {one!r}: {advice}no module of {type(model).__name__} has that name, or a part of it; "
                    "model.named_modules() lists them"
                )

    def _passed_through(self) -> None:
        """The model's forward pass has ended."""
        self.book.end()
        if self._watch is not None and not self._unheard:  # all of them go by way of transformers' interface
            self._watch.leave()

    def end(self) -> None:
        self._open.pop().close()
        if not self._open:
            self._roots.clear()
            for pages in self.book.forwards:
                for record in pages.values():
                    record.tensors()  # without the room for more
            self.skipped.update(dict.fromkeys(self.book.doubtful(), OTHERWISE))
            read = {name for pages in self.book.forwards for name in pages}
            for name, why in self._missed.items():
                self.skipped.setdefault(
                    name, f"only a part of it could be read; of the rest, {why}" if name in read else why
                )

    def check(self) -> None:
        """Raise where there is nothing to show, with what to try."""
        if self._open:
            return
        missed = [one for one in self._layers or () if one not in self._found]
        if missed and self._passed:
            names = [*self._passed, *(name for pages in self.book.forwards for name in pages)]
            parts = dict.fromkeys([*names, *(part for name in names for part in name.split("."))])
            advice = nearest(missed[0], list(parts)) if isinstance(missed[0], str) else ""
            raise ValueError(f"no layer is {missed[0]!r}: {advice}there are {', '.join(map(repr, names))}")
        if self.book.forwards:
            return
        if self.skipped:
            name, why = next(iter(self.skipped.items()))
            raise ValueError(f"none of {len(self.skipped)} attention calls can be shown; the first is {name!r}: {why}")
        if self.model is not None and not self.book.begun:
            kind = type(self.model).__name__
            raise ValueError(
                f"no attention call was seen in {kind}, whose forward was not called in the block: run the model "
                "inside it, the very object that capture was given"
            )
        raise ValueError(f"no attention call was seen{self._where()}: {ADVICE}")

    def _where(self) -> str:
        if self.model is None:
            return ""
        kinds = dict.fromkeys(type(m).__name__ for m in self.model.modules() if "attention" in type(m).__name__.lower())
        inside = f", whose {' and '.join(list(kinds)[:3])} may compute it without a function of torch" if kinds else ""
        return f" in {type(self.model).__name__}{inside}"

    # What `ways` asks and tells.

    def named(self, module: nn.Module) -> str | None:
        if self.model is None:
            return self._name_of(self._stack())
        self._unheard.discard(id(module))
        return self._names.get(id(module))

    def hear(self, name: str | None, read: Callable[[], ObservedCall]) -> Answer | None:
        name = self._name_of(self._stack()) if name is None else name
        if name is None:
            return None
        try:
            with _plainly():
                return self.book.add(name, read)
        except Unreadable as error:
            self.skipped[name] = str(error)
        except (TypeError, ValueError, IndexError, RuntimeError) as error:  # the model goes on
            self.skipped[name] = f"it cannot be read as q, k and v ({error})"
        return None

    def miss(self, why: str) -> None:
        modules = self._stack()
        name = self._name_of(modules)
        words = f"{name} {type(modules[0]).__name__}" if modules else ""
        wanted = self._layers is None or any(isinstance(one, str) and _is_part(one, str(name)) for one in self._layers)
        if name is not None and "att" in words.lower() and wanted:
            self._missed.setdefault(name, why)

    def heads(self) -> int | None:
        for module in self._stack()[:1]:
            for name in HEADS:
                if isinstance(found := getattr(module, name, None), int):
                    return found
        return None

    def _stack(self) -> list[nn.Module]:
        """The modules in whose methods this is, the innermost first: of the model, if there is one."""
        modules = [one for one in _modules(sys._getframe(2)) if not isinstance(one, nn.Softmax | nn.Dropout)]
        if self.model is None:
            return modules
        first = next((i for i, one in enumerate(modules) if id(one) in self._names), len(modules))
        return modules[first:]

    def _name_of(self, modules: list[nn.Module]) -> str | None:
        """The name of the first of such modules."""
        if self.model is not None:
            return self._names[id(modules[0])] if modules else None
        if not modules:
            return _caller()
        root = modules[-1]
        if id(root) not in self._roots:
            self._roots[id(root)] = (root, names_of(root))
        return self._roots[id(root)][1].get(id(modules[0]), type(modules[0]).__name__)

    def _wanted(self, name: str, number: int, cross: bool) -> bool:
        if self._layers is None:
            return True
        found = [one for one in self._layers if (number == one if isinstance(one, int) else _is_part(one, name))]
        self._found.update(found)
        if not found:
            self._passed[name] = None
        return bool(found)


def _plainly() -> contextlib.AbstractContextManager[Any]:
    """Without gradients, and without the inference mode that what is kept is to outlive."""
    if torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        return _switched_off()
    return contextlib.nullcontext()


@contextlib.contextmanager
def _switched_off() -> Iterator[None]:
    with torch.inference_mode(False), torch.no_grad():
        yield


def _module_of(model: Any) -> nn.Module | None:
    if model is None or isinstance(model, nn.Module):
        return model
    inner = getattr(model, "model", None)
    if isinstance(inner, nn.Module):
        return inner
    if isinstance(model, type):
        raise TypeError(f"model is the class {model.__name__}: give a model of it, as it is called in the block")
    if callable(model):
        return None
    raise TypeError(f"model is a {type(model).__name__}: give an nn.Module, or None for all calls in the block")


def _read_layers(layers: Any) -> list[int | str] | None:
    if layers is None:
        return None
    given = list(layers) if isinstance(layers, Iterable) and not isinstance(layers, str) else [layers]
    for one in given:
        if not isinstance(one, int | str) or isinstance(one, bool):
            raise TypeError(f"layers holds {one!r}: give numbers, or names of modules or dotted parts of them")
        if isinstance(one, int) and one < 0:
            raise ValueError(f"layers holds {one}: count from 0, for how many there are is known only at the end")
    if not given:
        raise ValueError("layers is empty: name one or more, or leave it out for all")
    return given


def _is_part(part: str, name: str) -> bool:
    return f".{part}." in f".{name}."


def names_of(model: nn.Module) -> dict[int, str]:
    """The names of a model's modules, by identity; what `torch.compile` adds to them left out."""
    plain = ((id(module), name.replace("_orig_mod.", "")) for name, module in model.named_modules())
    own = type(getattr(model, "_orig_mod", model)).__name__
    return {key: name if name not in ("", "_orig_mod") else own for key, name in plain}


@contextlib.contextmanager
def _hooked(model: nn.Module, begins: Callable[[], None], ends: Callable[[], None]) -> Iterator[None]:
    """Tells when the model's forward passes begin and end."""
    before = model.register_forward_pre_hook(lambda *_: begins(), prepend=True)
    after = model.register_forward_hook(lambda *_: ends(), always_call=True)
    try:
        yield
    finally:
        before.remove()
        after.remove()


def _modules(frame: FrameType | None) -> Iterator[nn.Module]:
    """The modules in whose methods a call is, the innermost first."""
    while frame is not None:
        names = frame.f_code.co_varnames
        if names and names[0] == "self":
            found = frame.f_locals.get("self")
            if isinstance(found, nn.Module):
                yield found
        frame = frame.f_back


def _caller() -> str:
    """The function outside of torch and of this package that is being run."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if not module.startswith(("torch.", f"{__package__}.")):
            name = frame.f_code.co_name
            return "attention" if name.startswith("<") else name
        frame = frame.f_back
    return "attention"
