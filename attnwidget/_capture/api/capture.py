"""The public side of a capture: `capture`, and `Capture`, which reads the calls that a `Recorder` has kept."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar, overload

import torch

from ..._utils.indexing import as_index
from ..._utils.interrupts import surely
from ..carried.target_token import token_of
from ..files import capture_file
from ..files.merge_processes import load_files
from ..modules.self_or_cross import CrossLike
from ..modules.towers import Towers
from ..records.record import Record
from ..serving.engine_calls import EngineCalls, engine_calls
from ..serving.served_recorder import ServedRecorder, find_request, rows_of_text
from ..session.options import Keep, read_options, read_tokenizer
from ..session.recorder import Recorder
from ..text.labels import Ids, Labels
from ..text.stacks import NamedStack
from .forward import Forward, RecordsByName
from .reducing import reduce_records

__all__ = ["Capture", "Forward", "capture"]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
NumbersLike = int | slice | range | Sequence[int]
HeadsLike = NumbersLike | Mapping[int | str | re.Pattern[str], NumbersLike]
NO_READOUT = "no unembedding is known, so no token can be chosen: cap.output_path says why"
NO_LOGITS_KEPT = (
    "there are no logits to run backwards from: run capture(model, gradients=True) on a model that gives logits, with "
    "gradients on, and call backward once"
)
OF_ENGINES = ("requests", "folder", "timeout")
RequestsLike = str | Sequence[str] | Callable[[Any], Any]
LayersLike = int | str | slice | re.Pattern[str] | Sequence[int | str | slice | re.Pattern[str]]


def capture(
    model: Any = None,
    *,
    tokenizer: Any = None,
    layers: LayersLike | None = None,
    queries: NumbersLike | None = None,
    heads: HeadsLike | None = None,
    cross: CrossLike | None = None,
    keep: Keep = "tensors",
    values: bool = True,
    gradients: bool = False,
    sources: bool = False,
    clone: bool = True,
    device: Any = None,
    dtype: torch.dtype | None = None,
    last: int | None = None,
    every: int | None = None,
    limit: int | str | None = None,
    strict: bool = True,
    requests: RequestsLike | None = None,
    folder: str | Path | None = None,
    timeout: float | None = None,
) -> Capture:
    """Record the attention of a model in a `with` block: q, k, v, masks and scales of every call, never the weights.

    Args:
        model: an `nn.Module`, or an object with one as `.model`, such as a pipeline; only its calls are recorded. Also
            an `LLM` or `AsyncLLM` of vLLM, or the address of its server: see docs/serving.md. None: all calls of
            torch's attention functions in this thread. Then there is no text, and lengths decide which calls are
            cross-attention; a warning says so.
        tokenizer: spells the ids that the model reads, as for `AttentionWidget`; the words label `widget()`. A saved
            file holds its name and its words for these ids; it is never loaded from there. None: the tokenizer of a
            pipeline. Without one, ids are kept; `cap.tokenizer = …` or `cap.widget(tokenizer=…)` names them later.
        layers: the layers to record. An int counts as `cap.attention` and `cap.cross` do, a negative one from the end.
            Also a slice; a module's name or any dotted part of it ("decoder", "h.5"); a glob of names ("encoder.*"); a
            compiled regular expression; or a list of these. Kept layers count from 0 in `cap.attention` and in the
            widget's `layer`, and `cap.attention.names` has their modules; edits count all layers. None: all.
        queries: the rows to keep, with all their keys: an int, a slice, a range or a list. They count over a whole
            generated text: slice(-512, None) keeps its last 512 tokens. Rows that may still be needed are kept until
            the end. `att.part.queries` has their positions. Of vLLM also "prompt" or "answer". None: all.
        heads: the heads to keep, of all layers or by layer: {0: [5, 7], "h.3": slice(4)}. Layers are named as for
            `layers`, with numbers from 0; layers that are not named keep all heads. Of grouped heads only the key heads
            in use are kept. Kept heads count from 0 in `att.block(head=0)` and in the widget's `head`;
            `att.part.heads` has their numbers in the model, which the widget shows: "head 0 (5 in the model)". None:
            all.
        cross: the modules that are cross-attention, if detection is wrong: True or False for all; one or several
            names, dotted parts or globs of modules that are; or a dict of names with True or False. None: decided by
            whether q and k come from the same tensor.
        keep: "tensors", or "overview": reduce each call at once to an exact picture of at most 128 × 128 bins a head,
            with log-normalizers and metrics, and drop q, k and v. Then rows, single cells of a long text, stages,
            what-if, and later calls of `generate` are not available.
        values: whether to keep v. Without v there are no outputs and contributions.
        gradients: whether to keep ∂L/∂O, the gradient of each head's output, from `loss.backward()` or
            `cap.backward()`. It takes as much memory as q, and gives the stage "saliency".
        sources: whether to keep what each attention and MLP writes into the residual stream, for `cap.why` and
            `cap.composition`. It takes two tensors of the size of the hidden states for each layer, within `limit`.
        clone: copy the tensors. False: keep the model's own tensors if that takes no more memory; changes in place
            then show.
        device: where to keep the tensors, e.g. "cpu"; None: where they are.
        dtype: the type in which to keep them, e.g. torch.float16; None: as they are.
        last: the number of forward passes to keep, counted from the end; all steps of `generate` are one. None: all.
        every: keep each n-th forward pass, from the first. The others are dropped once they have run.
        limit: the most bytes to keep, or a string such as "2GB"; None: half of the free memory. A warning comes when
            half of the limit is used. Calls beyond it are named in `cap.skipped`, and the model goes on.
        strict: whether to raise at the end of the block if nothing was recorded or a layer does not exist. False: only
            warn, and name it in `cap.skipped`.
        requests: of vLLM, which requests to record: an id, a pattern such as "chat-*" or several of these; or a
            function of a request with `id`, `prompt` (ids), `adapter` and `sampling`. None: all.
        folder: of vLLM, where its workers write their files and leave them, for `Capture.load`. None: they vanish.
        timeout: of a server, the most seconds that an answer may take. None: ten minutes.

    Returns:
        `Capture`, to be entered. After the block it has `attention`, `cross`, `calls`, `widget()` and `save(path)`.
        It can be called in place of the model, and decorates a function: see `Capture`.

    Raises:
        TypeError, ValueError: an argument is invalid; or, at the end of the block, nothing was recorded or a layer does
            not exist. The message says what to try.

    The model keeps its kernels (SDPA, FlashAttention, FlexAttention, eager) and computes the same bits, with two
    exceptions that may change last bits: inside the block torch's `nn.MultiheadAttention` and
    `nn.TransformerEncoder` do not take their fast path for inference, and compiled models run uncompiled.

    Every call is checked by its output: some rows are computed again from q, k, v, mask and scale. A call that
    contradicts its output is not shown; `skipped` names it with the reason, and any attention that could not be
    followed.

    Another thread than the one that entered the block records only calls of transformers' attention interface, each
    forward pass separately; `skipped` names other calls. Samples of beam search are the sequences that it returns.
    A warning names a search that is not followed, such as groups of beams, contrastive search (both
    `custom_generate` in transformers 5) or a custom one.

    >>> import torch
    >>> model = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    >>> x = torch.randn(1, 5, 8)
    >>> with capture(model) as cap:
    ...     output, weights = model(x, x, x, average_attn_weights=False)
    >>> bool(torch.allclose(cap.attention[0].block(head=1), weights[0, 1]))
    True
    """
    given = {name: value for name, value in locals().items() if name not in ("model", *OF_ENGINES)}
    engine = None if model is None else engine_calls(model, timeout)
    if timeout is not None and (engine is None or not engine.is_far):
        raise ValueError("timeout is for the address of a server: leave it out")
    if engine is not None:
        return Capture(_served(engine, given, requests, folder), model=model)
    if requests is not None or folder is not None:
        name = "requests" if requests is not None else "folder"
        raise ValueError(f"{name} is for an engine that serves, such as an LLM of vLLM: leave it out")
    return Capture(Recorder(model, read_options(**given)), model=model)


def _served(engine: EngineCalls, given: dict[str, Any], requests: Any, folder: Any) -> ServedRecorder:
    """Return the recorder of an engine, for the arguments of `capture`."""
    rows = rows_of_text(given)
    checked = read_options(**{**given, "queries": None if rows else given["queries"]})
    chosen = {name: given[name] for name in ("layers", "heads", "queries")}
    chosen |= {name: getattr(checked, name) for name in ("keep", "values", "dtype", "limit")}
    chosen["folder"] = None if folder is None else str(folder)
    return ServedRecorder(engine, chosen, strict=checked.strict, tokenizer=checked.tokenizer, requests=requests)


class RecordedFunction(Protocol[P, R_co]):
    """A function decorated by `@capture(model)`: it is called as before, and has its capture as an attribute."""

    capture: Capture

    def __call__(self, *arguments: P.args, **keywords: P.kwargs) -> R_co:
        """Call the function inside the block of its capture."""


class Capture(Forward):
    """The attention that `capture` recorded, and the block that records it; read it after the block.

    `attention`, `cross` and `calls` hold one forward pass, or one generated text. Of several, `cap[0]`, `cap[1]`, … are
    `Forward`s with the same names. `cap.attention` then has all of them, named "forward 1: …", and `cap.numbers` their
    numbers among all forward passes, if some were not kept.

    `capture(model).run(**inputs)` runs the block in one call and returns the capture; `cap(**inputs)` returns the
    model's output. As a decorator it records each call of a function, which has it as `.capture`:

    >>> model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> capture(model).run(torch.randn(1, 5, 8)).attention[0].shape.Q
    5
    >>> @capture(model, last=1)
    ... def step(x):
    ...     return model(x)
    >>> for n in (3, 4):
    ...     _ = step(torch.randn(1, n, 8))
    >>> step.capture.attention[0].shape.Q, step.capture.numbers
    (4, [1])
    """

    def __init__(
        self,
        recorder: Recorder | ServedRecorder | None,
        forwards: Sequence[RecordsByName] = (),
        skipped: Mapping[str, str] | None = None,
        *,
        model: Any = None,
        tokenizer: Any = None,
        towers: Sequence[str] = (),
        requests: Sequence[str] = (),
    ) -> None:
        self._recorder, self._model = recorder, model
        self._skipped = recorder.skipped if recorder is not None else skipped or {}
        self._forwards: Sequence[RecordsByName] = forwards if recorder is None else recorder.forwards
        self._requests: Sequence[str] = recorder.requests if isinstance(recorder, ServedRecorder) else requests
        self._tokenizer = tokenizer if recorder is None else recorder.tokenizer
        self._tower_names = tuple(towers)
        self._source, self._number = self, 0
        self._target: int | None = None

    @property
    def skipped(self) -> dict[str, str]:
        """The calls that were seen but cannot be shown: the reason by module name."""
        return dict(self._skipped)

    @property
    def requests(self) -> list[str]:
        """The requests of an engine that serves, one for each forward pass; empty for other models.

        `cap["7"]` is the forward pass of request "7".
        """
        return [*self._requests]

    def _request_names(self) -> Sequence[str]:
        return self._requests

    @property
    def files(self) -> list[str]:
        """The files that an engine's workers have left in the folder of `capture(folder=…)`."""
        return [*self._recorder.files] if isinstance(self._recorder, ServedRecorder) else []

    @property
    def _records(self) -> RecordsByName:  # type: ignore[override]
        forwards = self._forwards
        if len(forwards) == 1:
            return forwards[0]
        return {
            f"forward {number}: {name}": record
            for number, records in zip(self.numbers, forwards, strict=True)
            for name, record in records.items()
        }

    @property
    def numbers(self) -> list[int]:
        """The number of each kept forward pass: 0, 1, … unless `last` or `every` left some out."""
        return [getattr(records, "number", i) for i, records in enumerate(self._forwards)]

    def _nothing(self) -> str:
        for name, why in self._skipped.items():
            return f"nothing was recorded; cap.skipped has the reasons, the first of {name!r}: {why}"
        return super()._nothing()

    def _counts(self) -> list[str]:
        return [*super()._counts(), *([f"{len(self._skipped)} skipped"] if self._skipped else [])]

    def __len__(self) -> int:
        return len(self._forwards)

    @overload
    def __getitem__(self, which: int) -> Forward: ...
    @overload
    def __getitem__(self, which: str) -> Any: ...
    def __getitem__(self, which: int | str) -> Any:
        """Return a forward pass by number, a request's by its id, or a tower's self-attention by name.

        Raises:
            IndexError: there is no such forward pass.
            KeyError: there is no such tower or request.
            ValueError: a tower of several forward passes.
        """
        if isinstance(which, str) and self._requests:
            return self[find_request(which, self._requests)]
        if isinstance(which, str):
            if len(self) > 1 and which not in self.stacks():
                self._refuse_several(f"[{which!r}]")
            return super().__getitem__(which)
        forwards = self._forwards
        try:
            return Forward(forwards[which], self, self.numbers[which])
        except IndexError:
            last = len(forwards) - 1
            there = f"forwards 0 to {last}" if last > 0 else "forward 0 only" if last == 0 else "none"
            raise IndexError(f"forward {which} is not there: this capture has {there}") from None

    def __iter__(self) -> Iterator[Forward]:
        return (self[i] for i in range(len(self)))

    def _refuse_several(self, what: str) -> None:
        raise ValueError(f"this capture has {len(self)} forward passes: ask one of them, such as cap[0]{what}")

    # What weights carry.

    @property
    def target(self) -> int | None:
        """The id of the token for the stage "logit"; None: each sample's most likely next token.

        Assign a token's text, with the space before it, or its id. `att.with_target(id)` is for one attention alone.

        Raises:
            TypeError, ValueError, IndexError: there is no such token, or no known unembedding: see `output_path`.
        """
        return self._target

    @target.setter
    def target(self, target: str | int | None) -> None:
        records = [one for records in self._forwards for one in records.values()]
        found = None
        if target is not None:
            known = [one.attention.carries for one in records]
            readout = next((one.readout for one in known if one is not None and one.readout is not None), None)
            if readout is None:
                raise ValueError(
                    next((why for one in known if one and (why := one.refusals.get("target"))), NO_READOUT)
                )
            found = token_of(target, self.tokenizer, readout.vocabulary)
        self._target = found
        for record in records:
            if isinstance(record, Record):
                record.target = found

    def backward(self, target: str | int | None = None, at: int = -1) -> None:
        """Run the model backwards from the logit of one token a sample, for the stage "saliency".

        Args:
            target: its text, or its id; None: each sample's most likely token there.
            at: the position before the token; negative counts from the end.

        Raises:
            ValueError: gradients were not kept, there are no logits, or it was run before.
            TypeError, IndexError: there is no such token or position.

        >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        >>> cap = capture(torch.nn.Sequential(layer, torch.nn.Linear(8, 20)), gradients=True).run(torch.randn(1, 5, 8))
        >>> cap.backward(target=7)
        >>> cap.attention[0].block("saliency").shape
        torch.Size([5, 5])
        """
        steps = {id(call.step): call.step for record in self._kept_records() for call in record.calls[-1:]}
        facts = [step.facts for step in steps.values() if step.facts is not None and step.facts.logits is not None]
        if not facts:
            raise ValueError(NO_LOGITS_KEPT)
        for one in facts:
            logits, one.logits = one.logits, None  # with the graph, which is used up
            whole = logits if logits.ndim == 3 else logits[None]
            row = whole[:, as_index(at, whole.shape[1], "at", "positions")]
            chosen = None if target is None else token_of(target, self.tokenizer, row.shape[1])
            tokens = row.argmax(-1) if chosen is None else torch.full(row.shape[:1], chosen, device=row.device)
            row.gather(1, tokens[:, None]).sum().backward()

    def _kept_records(self) -> Iterator[Record]:
        for records in self._forwards:
            yield from (one for one in records.values() if isinstance(one, Record))

    # Its text, of all forward passes.

    @property
    def tokenizer(self) -> Any:
        """The tokenizer that spells the ids, or its name; None if unknown. Assign one to name the ids.

        >>> model = torch.nn.MultiheadAttention(8, 2)
        >>> capture(model, tokenizer="gpt2").tokenizer
        'gpt2'
        """
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Any) -> None:
        self._tokenizer = read_tokenizer(tokenizer)

    def stacks(self) -> dict[str, NamedStack]:
        """Return each tower's self-attention and cross-attention by name, of each forward pass separately.

        >>> model = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        >>> with capture(model) as cap:
        ...     for n in (3, 4):
        ...         x = torch.randn(1, n, 8)
        ...         _ = model(x, x, x)
        >>> [*cap.stacks()]
        ['forward 0', 'forward 1']
        """
        if len(self) == 1:
            return self[0].stacks()
        found = {}
        for forward in self:
            own = forward.stacks()
            for name, one in own.items():
                numbered = f"forward {one.forward}" + (f", {name}" if len(own) > 1 else "")
                found[numbered] = replace(one, name=numbered)
        return found

    def _towers(self) -> Towers:
        names = [name for records in self._forwards for name in records]
        watched = None if self._recorder is None or isinstance(self._recorder, ServedRecorder) else self._recorder.texts
        return Towers([*(self._tower_names if watched is None else watched.towers.given), *names])

    def _main_stack(self) -> NamedStack | None:
        if len(self) > 1:
            self._refuse_several("")
        return super()._main_stack()

    @property
    def cross_tokens(self) -> Labels | Ids | None:
        """The tokens of the keys of the cross-attention, such as the encoder's text; None if there are none."""
        if len(self) > 1:
            self._refuse_several(".cross_tokens")
        return super().cross_tokens

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        """The arguments of the model's call that are kept: ids and masks, by their names in transformers.

        After `generate` they hold the whole text that was read. Other arguments, such as images, are not kept.
        """
        if len(self) > 1:
            self._refuse_several(".inputs")
        return super().inputs

    def __bool__(self) -> bool:
        return True

    def __reduce__(self) -> Any:
        raise TypeError("a capture is not copied or pickled: cap.save(path) writes it, and Capture.load(path) reads it")

    def save(self, path: str | Path) -> None:
        """Write all recorded calls to a file in the safetensors format: tensors and text, no code.

        Args:
            path: of the file, usually *.safetensors. {rank} in it is the number of the process, if torch.distributed
                runs several, each of which saves its own part.

        Raises:
            ValueError: a mask or score function has no form but its code; or the path is a pipe or a device.
            OSError: the directory does not exist, the disk is full, or the file cannot be written. An existing file is
                replaced in the last step: a loaded file stays as it was, and a failed write leaves it whole.

        >>> import tempfile
        >>> with capture() as cap:
        ...     _ = torch.nn.functional.scaled_dot_product_attention(*torch.randn(3, 1, 2, 5, 8), is_causal=True)
        >>> path = Path(tempfile.mkdtemp()) / "five.safetensors"
        >>> cap.save(path)
        >>> Capture.load(path).attention[0].is_causal
        True
        """
        capture_file.save(
            self._forwards,
            self._skipped,
            path,
            tokenizer=self.tokenizer,
            towers=self._towers().given,
            requests=self._requests,
        )

    @classmethod
    def load(cls, path: str | Path) -> Capture:
        """Open a file that `save` wrote, or the files of several processes as one; the model's code is not needed.

        A pattern such as "run-*.safetensors" names the files of one model on several processes. They are merged by
        layer, by head (tensor parallel) and by query (`capture(queries=…)`), in this order.

        A file of more than 64 MiB is mapped into memory and read when needed. Replace it, as `save` does, or delete it,
        but do not shorten it or write into it: the system would end the process that reads it.

        Args:
            path: of the file, or a pattern.

        Returns:
            A `Capture` with the saved calls.

        Raises:
            ValueError: it is not such a file, is cut short, or has a later version; of several files: a part is missing
                or there twice, or they are not of one run. The message names the files.
            FileNotFoundError: there is no such file.

        >>> import tempfile
        >>> model, x = torch.nn.MultiheadAttention(8, 2, batch_first=True), torch.zeros(1, 5, 8)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     capture(model).run(x, x, x).save(f"{folder}/run.safetensors")
        ...     cap = Capture.load(f"{folder}/run.safetensors")
        ...     cap.attention[0].block(head=1, queries=0)
        tensor([[0.2000, 0.2000, 0.2000, 0.2000, 0.2000]])
        """
        loaded = load_files(path)
        known = {"towers": loaded.towers, "requests": loaded.requests}
        return cls(None, loaded.forwards, loaded.skipped, tokenizer=loaded.tokenizer, **known)

    def reduce(self, *, progress: bool = False, executor: Executor | None = None) -> Capture:
        """Reduce all calls as `capture(model, keep="overview")` does; this capture stays as it is.

        Args:
            progress: draw a bar with the time left, if tqdm is installed.
            executor: its workers compute: threads, processes, or a Dask cluster, `client.get_executor()`. A loaded
                capture sends them only its path; see docs/scale.md. The numbers are the same but for rounding.

        Returns:
            A capture of weights pooled by maximum to at most 128 × 128 bins, log-normalizers and metrics of all rows,
            without q, k and v. Calls of up to 128 tokens keep all weights.

        Raises:
            TypeError, RuntimeError: as `Attention.overview` does for an executor.

        >>> with capture() as cap:
        ...     _ = torch.nn.functional.scaled_dot_product_attention(*torch.randn(3, 1, 2, 300, 8), is_causal=True)
        >>> small = cap.reduce()
        >>> small.attention[0].overview(size=100).values.shape, small.nbytes < cap.nbytes
        (torch.Size([75, 75]), True)
        """
        found = reduce_records(self._forwards, executor, progress)
        tokenizer = self.tokenizer
        known = {"tokenizer": tokenizer, "towers": self._towers().given, "requests": self._requests}
        return Capture(None, found, self._skipped, **known)

    def run(self, *inputs: Any, **keywords: Any) -> Capture:
        """Call the model in a block, and return the capture.

        Args:
            inputs: of the model.
            keywords: of the model.

        Returns:
            This capture.

        Raises:
            TypeError: there is no model to call.
            ValueError: as at the end of a block.

        >>> model, x = torch.nn.MultiheadAttention(8, 2, batch_first=True), torch.zeros(1, 5, 8)
        >>> capture(model).run(x, x, x).attention[0].shape.H
        2
        """
        self(*inputs, **keywords)
        return self

    @overload
    def __call__(self, function: Callable[P, R], /) -> RecordedFunction[P, R]: ...
    @overload
    def __call__(self, *inputs: Any, **keywords: Any) -> Any: ...
    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        """Call the model in a block, and return its output; for a function, return it decorated.

        Raises:
            TypeError: there is no model to call; or the function is a generator, which runs after its call has ended.
            ValueError: as at the end of a block.
        """
        if len(inputs) == 1 and not keywords and callable(inputs[0]) and not isinstance(inputs[0], torch.nn.Module):
            return self._decorated(inputs[0])
        if not callable(self._model):
            what = (
                "capture() was given no model"
                if self._model is None
                else f"a {type(self._model).__name__} cannot be called"
            )
            raise TypeError(f"{what}: give capture(model) one, or run it in a block, with capture(…) as cap:")
        text = next((one for one in inputs if isinstance(one, str)), None)
        if text is not None and hasattr(self._model, "main_input_name"):  # a model of transformers
            raise TypeError(
                f"{text!r:.40} is text, and {type(self._model).__name__} takes {self._model.main_input_name}: give "
                "run(**tokenizer(text, return_tensors='pt'))"
            )
        with self:
            return self._model(*inputs, **keywords)

    def _decorated(self, function: Callable[..., Any]) -> Any:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{function.__name__} is a generator, which runs after its call has ended: put a block into it, with "
                "capture(…) as cap:"
            )

        @functools.wraps(function)
        def recorded(*arguments: Any, **keywords: Any) -> Any:
            with self:
                return function(*arguments, **keywords)

        @functools.wraps(function)
        async def awaited(*arguments: Any, **keywords: Any) -> Any:
            with self:
                return await function(*arguments, **keywords)

        found: Any = awaited if inspect.iscoroutinefunction(function) else recorded
        found.capture = self
        return found

    def __enter__(self) -> Capture:
        if self._recorder is None:
            raise ValueError("this capture was loaded from a file: enter a new one, capture(model), to record")
        before = self._recorder.open_blocks
        try:
            self._recorder.begin()
            return self
        except KeyboardInterrupt:
            if self._recorder.open_blocks > before:  # the interrupt came when all was open; Python skips `__exit__`
                surely(self._recorder.stop)
            raise

    async def __aenter__(self) -> Capture:
        """Enter the block from a running loop, as for an `AsyncLLM` of vLLM."""
        if not isinstance(self._recorder, ServedRecorder):
            return self.__enter__()
        await self._recorder.abegin()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if not isinstance(self._recorder, ServedRecorder):
            self.__exit__(kind, error, trace)
            return
        await self._recorder.astop()
        self._recorder.settle()
        if kind is None:
            self._recorder.check()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        assert self._recorder is not None
        if isinstance(self._recorder, ServedRecorder) and self._recorder.is_far:
            self._recorder.stop()  # a server may take minutes, so an interrupt must reach it
        else:
            surely(self._recorder.stop)
        self._recorder.settle()
        if kind is None:
            self._recorder.check()
