"""`atlas`: one pass over the texts, shared out among workers, that goes on where it was stopped."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch

from .._capture.api.capture import capture
from .._capture.api.texts import inputs_of
from .._parallel.task import Subject, Task
from .._parallel.work import Work
from .._utils.files import as_path
from .._utils.mutation import levels_to_the_caller
from .._utils.progress_bars import progress_bar
from .._utils.validation import as_size, kind_of
from . import storage
from .atlas import Atlas
from .corpus import Chunk, Corpus, digest_of_model
from .effects import next_token_loss
from .layer_of_texts import METRICS
from .token_kinds import read_kinds
from .worker import AtlasWorker, ChunkTotals, measure_chunk
from .written import written_by

SAVE_EVERY = 20.0  # seconds; a killed process loses no more work than that of its unfinished chunks and this
MOST_REFUSED = 8  # texts from the first, before the pass ends with the reason
NOT_SENT = (
    "in place of a model with hooks or functions of its own, give a function at the top of a module that loads it, as "
    "in atlas(load, texts, executor=executor), and give other functions from the top of a module; threads need none of "
    "that: executor=ThreadPoolExecutor()"
)
AHEAD = 3  # chunks for each worker that are submitted, or wait for an earlier one
Effects = bool | int | Callable[[Any, Any], Any]


def atlas(
    model: Any,
    texts: Any,
    *,
    tokenizer: Any = None,
    executor: Executor | None = None,
    effects: Effects = False,
    kinds: Mapping[str, Any] | None = None,
    links: int = 16,
    rows: int | None = None,
    progress: bool = True,
    store: Any = None,
) -> Atlas:
    """Measure every head of a model over many texts, exactly: an atlas to search, to read and to publish.

    Args:
        model: an `nn.Module` in evaluation mode, or an object with one as `.model`. Or a function that returns one,
            alone or with its tokenizer: each worker then loads its own.
        texts: any iterable, read once: strings (with a tokenizer), lists of ids, or dicts of the model's arguments for
            one sample. Texts are never padded or cut; texts of the same length run together.
        tokenizer: for strings. It also names the tokens. None: the pipeline's.
        executor: whose workers share the texts: any `concurrent.futures.Executor`, or Dask's `client.get_executor()`.
            The model is loaded once in each. If a worker dies, its texts are measured again. None: this process.
        effects: True: each head's output is also set to zero in turn, in each text, and the change of the mean loss of
            the next token is measured, in nats. This takes a run of the model for each head. A number: only in so many
            texts, from the first. A function of the model's output and its arguments returns another loss.
        kinds: of tokens, besides "first token", "special", "punctuation" and "other": by name, a list of tokens, a
            regular expression that matches a whole token, or a function of a token. Subword marks are removed before.
        links: the number of links in each list: strongest and ordinary, any and among content tokens.
        rows: the most queries to compute in each head of a text, evenly spread, each exact. None: all in texts of up to
            4,096 tokens, and 2²⁴ ÷ tokens in longer ones. `Atlas.sampled` counts these texts.
        progress: whether to draw a bar, if tqdm is installed.
        store: a folder for the atlas. It is saved there during the pass, and a call with the same arguments goes on
            from there; more texts behind the same ones are added. One process writes it at a time. None: it stays in
            memory.

    Returns:
        `Atlas`. Each text counts the same in means over texts. Memory does not grow with the number of texts.

    Raises:
        TypeError, ValueError: an argument is invalid, or the store has another atlas.
        RuntimeError: no text could be measured, a worker was lost three times, or another process writes the store.
        OSError: the store cannot be written, with the reason; it has what was saved before.

    A text that the model cannot read, such as one that is too long for it, is left out: `Atlas.skipped` has the
    reasons, and a warning counts them.

    >>> import torch, attnwidget
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    >>> found = attnwidget.atlas(model, [{"src": torch.randn(1, n, 8)} for n in (5, 9)], progress=False)
    >>> found
    Atlas of TransformerEncoderLayer: 1 layer, 2 heads, 2 texts, 14 tokens
    """
    if isinstance(effects, int) and not isinstance(effects, bool):
        effects = as_size(effects, "effects")
    elif not isinstance(effects, bool) and not callable(effects):
        raise TypeError(f"effects is {kind_of(effects)}: give True, a number of texts, or a function")
    loss = (effects if callable(effects) else next_token_loss) if effects else None
    most = effects if type(effects) is int else None
    limit = None if rows is None else as_size(rows, "rows")
    worker = AtlasWorker(model, tokenizer, read_kinds(kinds), as_size(links, "links"), loss, most, limit)
    corpus = Corpus(texts)
    _, module, _ = worker.loaded()
    settings = {
        "model": type(module).__name__,
        "digest_of_model": digest_of_model(module),
        "kinds": list(worker.sorting().names),
        "metrics": list(METRICS),
        "links_of_a_list": worker.links,
        "rows": limit,
        "effects": "none" if loss is None else f"{most or 'all'} texts, {getattr(loss, '__name__', 'a function')}",
    }
    folder = None if store is None else as_path(store, "atlas")
    with nullcontext() if folder is None else storage.writing(folder):
        run = _Pass(worker, corpus, settings, folder)
        try:
            run.go(executor, progress=progress)
        finally:
            run.save()
        run.finish()
        return run.result(texts if isinstance(texts, list | tuple) else None)


class _Pass:
    """One pass: the totals so far, and where they are saved."""

    def __init__(self, worker: AtlasWorker, corpus: Corpus, settings: dict[str, Any], folder: Path | None) -> None:
        self.worker, self.corpus, self.settings, self.folder = worker, corpus, settings, folder
        self.totals = ChunkTotals()
        self.given, self.digest, self.done = 0, "", False
        self.extra: dict[str, Any] = {}
        self._saved, self._unsaved = time.monotonic(), False
        if folder is not None and (folder / storage.FILE).exists():
            self._resume(folder)

    def _resume(self, folder: Path) -> None:
        facts, tensors = storage.load(folder)
        before = facts["settings"]
        other = [name for name, value in self.settings.items() if before.get(name) != json.loads(json.dumps(value))]
        if other:
            names = {"digest_of_model": "the model's weights", "links_of_a_list": "links"}
            raise ValueError(
                f"{folder} has an atlas made with other arguments ({', '.join(names.get(x, x) for x in other)}): give "
                "the same ones, or another store"
            )
        self.given, self.digest = facts["given"], facts["digest"]
        if self.corpus.skip(self.given) != self.digest:
            raise ValueError(f"{folder} has an atlas of other texts: give the same ones first, or another store")
        self.totals = storage.totals_from(facts, tensors)
        self.done, self.extra = facts["done"], facts["extra"]

    def go(self, executor: Executor | None, *, progress: bool) -> None:
        """Measure the texts that are left, and add the chunks in their order."""
        subject = Subject(self.worker, "the model, its tokenizer, or a function in kinds= or effects=", advice=NOT_SENT)
        work = Work([], executor)
        chunks = self.corpus.chunks(self.given)
        asked: dict[int, tuple[Chunk, str]] = {}
        came: dict[int, ChunkTotals] = {}
        following, ended = 0, False
        with ExitStack() as stack:
            stack.callback(work.close)
            bar = _bar(self.corpus.total, self.given) if progress else None
            if bar is not None:
                stack.callback(bar.close)
            while not ended or work.left:
                while not ended and len(asked) < AHEAD * max(1, work.size):
                    given = next(chunks, None)
                    ended = given is None
                    if given is not None:
                        asked[given[0].number] = given
                        work.add(_task(subject, given[0]))
                for number, found in work.step() if work.left else ():
                    came[number] = found
                while following in came:
                    chunk, digest = asked.pop(following)
                    self._add(came.pop(following), chunk, digest)
                    following += 1
                    if bar is not None:
                        bar.update(len(chunk.texts))

    def _add(self, found: ChunkTotals, chunk: Chunk, digest: str) -> None:
        self.totals.merge(found)
        self.given, self.digest = chunk.first + len(chunk.texts), digest
        self.done, self._unsaved = False, True
        if not self.totals.read and self.given >= MOST_REFUSED:
            self._refuse()
        if time.monotonic() - self._saved > SAVE_EVERY:
            self.save()

    def _refuse(self) -> None:
        number, why = next(iter(self.totals.skipped.items()))
        raise RuntimeError(f"none of the first {self.given} texts could be measured; text {number}: {why}")

    def save(self) -> None:
        """Write what there is, if there is a folder and something new."""
        self._saved = time.monotonic()
        if self.folder is not None and self._unsaved and self.totals.read:
            storage.write(self.folder, storage.tensors_of(self.totals), self.facts())
            self._unsaved = False

    def facts(self) -> dict[str, Any]:
        """Return what the file says beside its tensors."""
        state = {"settings": self.settings, "given": self.given, "digest": self.digest, "done": self.done}
        return {**storage.facts_of(self.totals), **state, "extra": self.extra}

    def finish(self) -> None:
        """Find what the heads write, and write the whole atlas."""
        if not self.totals.read:
            if self.totals.skipped:
                self._refuse()
            raise ValueError("there are no texts: give one or more")
        if not self.done:
            self.extra = self._written()
            self.done = self._unsaved = True
            self.save()
        left_out = len(self.totals.skipped)
        if left_out:
            number, why = next(iter(self.totals.skipped.items()))
            warnings.warn(
                f"{left_out:,} of {self.given:,} texts were left out, such as text {number}: {why}. Atlas.skipped has "
                "all reasons",
                UserWarning,
                stacklevel=levels_to_the_caller(),
            )

    def _written(self) -> dict[str, Any]:
        model, module, tokenizer = self.worker.loaded()
        found, unknown = written_by(self._captured(model, module), self.totals, tokenizer)
        return {"written": {name: one.as_facts() for name, one in found.items()}, "unwritten": unknown}

    def _captured(self, model: Any, module: torch.nn.Module) -> Any:
        """Capture the model on one short text, for its projections and its unembedding."""
        cap = capture(model, strict=False)
        with torch.no_grad(), cap:
            text = next(one for number, one in enumerate(self.corpus.begin) if number not in self.totals.skipped)
            inputs = inputs_of(text, self.worker.loaded()[2], module)
            module(**inputs) if isinstance(inputs, Mapping) else module(inputs)
        return cap

    def result(self, texts: Any) -> Atlas:
        """Return the atlas."""
        model, _, tokenizer = self.worker.loaded()
        if self.folder is not None:
            return Atlas.open(self.folder, model=model, tokenizer=tokenizer, texts=texts)
        tensors = storage.InMemory(storage.tensors_of(self.totals))
        return Atlas(json.loads(json.dumps(self.facts())), tensors, model=model, tokenizer=tokenizer, texts=texts)


def _task(subject: Subject, chunk: Chunk) -> Task:
    last = chunk.first + len(chunk.texts) - 1
    return Task(measure_chunk, subject, (chunk,), f"texts {chunk.first:,}–{last:,}", float(len(chunk.texts)))


def _bar(total: int | None, done: int) -> Any:
    try:
        return progress_bar()(total=total, initial=done, unit="text", desc="atlas")
    except ImportError:
        return None
