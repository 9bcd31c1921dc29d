"""The effects of edits on the model: one run after another on the event loop, the last request first."""

from __future__ import annotations

import json
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ..._utils.failures import log_told, sentence_of
from ..._utils.jsonable import as_json
from ..._utils.plain import sendable
from ..._utils.scheduler import Scheduler
from ..._utils.time_left import TimeLeft
from ..._utils.validation import told
from ..effect_source import EditedPart, EffectSource, Goal, PartEffect, PlainRun, TargetChoice

JOB = "effects"
URGENCY = 5.0  # after everything that is computed from tensors
TELL = 0.25  # seconds between two messages while it runs
SETTLE = 1.0  # seconds until the time left is shown
MAX_DETAILS = 64
MAX_KEPT = 8  # combinations of sample, target and edit whose results are kept
MAX_ASKED = 64
MAX_PATH = 16  # levels of segments
MOST = 2**31 - 1
DIGITS = 6  # sent for each number of many heads
NO_DETAIL: dict[str, Any] = {
    "before": None,
    "after": None,
    "kl": None,
    "kl_answer": None,
    "vocabulary": 0,
    "tokens": [],
}
WORDS_OF_EDITS = {"zero": "keys dropped", "cut": "weights set to 0", "uniform": "keys made even"}
NO_MODEL = "there is no model here: cap.widget(model=model, inputs=inputs)"

Made = dict[str, Any]
Of = dict[str, Any]

log = logging.getLogger(__name__)


class EffectWish(NamedTuple):
    """The requested effects.

    Attributes:
        batch: the sample.
        goal: the target; None: the default.
        edit: the edit.
        path: the path to the opened segment.
        shown: whether effects are on display.
        words: whether positions count words.
    """

    batch: int
    goal: Goal | None
    edit: str
    path: tuple[str, ...]
    shown: bool
    words: bool = False

    @property
    def of(self) -> tuple[int, Goal | None, str, bool]:
        """The sample, target and edit that all results share."""
        return self.batch, self.goal, self.edit, self.words


class Results:
    """The results of one edit for one sample and target."""

    def __init__(self) -> None:
        self.lost: dict[str, float | None] = {}  # by edited part; None: it cannot be edited
        self.details: OrderedDict[str, Made] = OrderedDict()


class SegmentColumns(NamedTuple):
    """The segments at a place, and the keys of each; segments that cannot be edited have none."""

    names: list[str]
    keys: list[tuple[int, ...]]


class Effects:
    """Runs of the widget's model, and the traits `effects` and `effect_details`.

    Args:
        scheduler: makes the runs.
        put: sets a trait.
        wish: returns the requested effects.
        columns: returns the segments at a path; None if there are none.
        answer: returns the positions of the answer.
        pieces: returns the model's positions behind a position of a layer's "query" or "key" side; None means the
        selected layer.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        put: Callable[[str, Any], object],
        wish: Callable[[], EffectWish],
        columns: Callable[[tuple[str, ...]], SegmentColumns | None],
        answer: Callable[[], tuple[int, ...]],
        pieces: Callable[[str, int, int | None], tuple[int, ...]],
    ) -> None:
        self._scheduler, self._put, self._wish, self._columns = scheduler, put, wish, columns
        self._answer, self._pieces = answer, pieces
        self._source: EffectSource | None = None
        self.forget()

    def use(self, source: EffectSource | None) -> None:
        """Use this model from now on; None: no model."""
        if source is not self._source:
            self._source = source
            self.forget()

    def forget(self) -> None:
        """Forget all results, because the model, the tokens or the segments have changed."""
        self._scheduler.drop(JOB)
        self._plain: dict[int, PlainRun] = {}
        self._results: OrderedDict[Any, Results] = OrderedDict()
        self._asked: list[Of] = []
        self._state = "idle"  # also "running", "stopped", "done" and "failed"
        self._error: str | None = None
        self._sweeping = self._halted = False  # halted: stopped by the reader
        self._left: TimeLeft | None = None
        self._seconds_left: float | None = None
        self._wished: EffectWish | None = None

    # Requests.

    def bring(self) -> None:
        """Update the traits for the current request, and start running the model if effects are shown."""
        if self._source is None:
            self._put("effects", None)
            self._put("effect_details", None)
            return
        wish, before = self._wish(), self._wished
        if wish == before:
            if self._state == "running" and JOB not in self._scheduler.names:
                self._scheduler.start(JOB, self._steps(), URGENCY)  # another picture has ended the waiting job
            return
        self._wished = wish
        others = before is None or before.of != wish.of
        if others:
            self._asked, self._error = [], self._refused_goal()
            if self._error is not None:
                self._scheduler.drop(JOB)
                self._state, self._sweeping = "failed", False
                self.tell()
                return
        wanted = wish.shown and (before is None or not before.shown or others or before.path != wish.path)
        self._halted = self._halted and not others
        if (wanted and not self._halted) or (others and self._sweeping):
            self._run(sweeping=True)
            return
        if others:
            self._scheduler.drop(JOB)
            self._state = "idle"
        self.tell()

    def ask(self, of: Any) -> None:
        """Run the model with one edit soon.

        Raises:
            ValueError, TypeError: there is no model, or this part cannot be edited.
            IndexError: the part does not exist.
        """
        if self._source is None:
            raise ValueError(NO_MODEL)
        checked = _checked(of)
        self._part(checked)  # raises if it does not exist
        if len(self._asked) >= MAX_ASKED:
            raise ValueError("too many runs are requested at once: wait until some have finished")
        if checked not in self._asked and _key(checked) not in self._found.details:
            self._asked.append(checked)
            self._run(sweeping=self._sweeping)

    def steer(self, action: Any) -> None:
        """Run, stop or resume the sweep.

        Raises:
            ValueError: there is no model, or no such action.
        """
        if self._source is None:
            raise ValueError(NO_MODEL)
        if action not in ("run", "stop", "resume"):
            raise ValueError(f"action is {told(action)}: give run, stop or resume")
        self._halted = action == "stop"
        if self._state == "failed":  # earlier results may belong to another model
            self._plain.clear()
            self._results.clear()
        if not self._halted:
            self._run(sweeping=True)
            return
        self._sweeping = False
        if self._state == "running":
            self._state, self._seconds_left = "stopped", None
        self.tell()

    def finish(self) -> None:
        """Make all started runs now."""
        if self._source is not None and self._state == "running":
            self._scheduler.drop(JOB)
            for _ in self._work():
                pass

    def _run(self, *, sweeping: bool) -> None:
        self._sweeping, self._state, self._error = sweeping, "running", None
        self._left = TimeLeft(time.monotonic(), self._share, SETTLE)
        self._seconds_left = None
        self.tell()
        if not self._scheduler.start(JOB, self._steps(), URGENCY) and self._asked and not sweeping:
            self.finish()  # without an event loop nothing else would do it

    # Running.

    def _steps(self) -> Iterator[None]:
        due = 0.0
        for _ in self._work():
            now = time.monotonic()
            if now >= due:
                due = now + TELL
                self.tell()
            yield

    def _work(self) -> Iterator[None]:
        """Run the model step by step: requested edits first, then all segments, then all heads."""
        try:
            batch = self._of.batch
            if batch not in self._plain:
                self._plain[batch] = self._model.begin(batch)
                yield
            if self._of.goal is not None and self._plain[batch].goal is not None:
                self._model.choice(batch, self._of.goal)  # raises if there is no such token
            while self._asked or self._sweeping:
                some = [self._asked.pop(0)] if self._asked else None
                left = some or self._next()
                if not left:
                    break
                self._run_once(left, asked=some is not None)
                yield
            self._state = "done" if self._share >= 1 else "stopped" if self._halted else "idle"
        except Exception as error:
            log_told(log, "effects", error)
            self._state, self._error, self._asked = "failed", sendable(sentence_of(error)), []
        self._sweeping, self._seconds_left = False, None
        self.tell()

    def _next(self) -> list[Of]:
        """Return the parts to edit in the sweep's next run; empty when all are done."""
        left = self._left_over()
        return left[: max(1, self._model.room(self._of.batch, self._goal, self._answer(), len(left)))] if left else []

    def _left_over(self) -> list[Of]:
        """Return the parts that the sweep has not run yet: segments, then heads."""
        found = self._found.lost
        for of in (self._segments(), self._heads()):
            left = [one for one in of if _key(one) not in found]
            if left:
                return left
        return []

    def _run_once(self, some: list[Of], *, asked: bool) -> None:
        of = self._of
        try:
            parts = [self._part(one) for one in some]
            found = self._model.run(of.batch, parts, of.edit, self._goal, self._answer())
        except (ValueError, TypeError, IndexError) as error:
            self._mark_left_out()
            if len(some) > 1:
                for one in some:
                    if _key(one) not in self._found.lost:
                        self._run_once([one], asked=asked)
                return
            if not asked and "head" in some[0] and (_key(some[0]) not in self._found.lost or self._has_no_head):
                raise
            self._found.lost[_key(some[0])] = math.nan
            self._keep(some[0], NO_DETAIL | {"error": sendable(sentence_of(error))})
            return
        for one, effect in zip(some, found, strict=True):
            self._found.lost[_key(one)] = effect.before - effect.after
            if asked or "segment" in one:
                self._keep(one, _detail(effect))
        if self._left is not None:
            self._seconds_left = self._left.at(time.monotonic(), self._share)

    def _mark_left_out(self) -> None:
        """Note that the heads of layers that cannot be edited have no effect."""
        layers = self._model.left_out(self._of.edit, keys=False)
        for one in self._heads():
            if one["layer"] in layers:
                self._found.lost[_key(one)] = math.nan

    @property
    def _has_no_head(self) -> bool:
        """Whether no head of any layer can be edited."""
        found = self._found.lost
        return all(math.isnan(found.get(_key(one)) or 0.0) for one in self._heads())

    def _keep(self, of: Of, detail: Made) -> None:
        choice, details = self._choice, self._found.details
        target = {"at": choice.at, "token": choice.token, "target": choice.text}
        details[_key(of)] = {"of": of, "edit": self._of.edit, **target, "error": None, **detail}
        details.move_to_end(_key(of))
        while len(details) > MAX_DETAILS:
            details.popitem(last=False)

    # State.

    @property
    def _model(self) -> EffectSource:
        assert self._source is not None
        return self._source

    @property
    def _of(self) -> EffectWish:
        assert self._wished is not None
        return self._wished

    @property
    def _begun(self) -> PlainRun | None:
        return None if self._wished is None else self._plain.get(self._wished.batch)

    @property
    def _goal(self) -> Goal | None:
        begun = self._begun
        return None if begun is None or begun.goal is None else self._of.goal or begun.goal

    @property
    def _choice(self) -> TargetChoice:
        """The current target."""
        begun, goal = self._begun, self._goal
        assert begun is not None
        known = [one for one in begun.targets if goal is None or (one.at, one.token) == goal]
        return known[0] if known or goal is None else self._model.choice(self._of.batch, goal)

    def _refused_goal(self) -> str | None:
        """Return why the requested target is invalid; None if it is valid, or before the model has run."""
        begun, goal = self._begun, self._of.goal
        if begun is None or begun.goal is None or goal is None:
            return None
        try:
            self._model.choice(self._of.batch, goal)
        except (IndexError, ValueError) as error:
            return sendable(sentence_of(error))
        return None

    @property
    def _found(self) -> Results:
        key = self._of.of
        if key not in self._results:
            self._results[key] = Results()
            while len(self._results) > MAX_KEPT:
                self._results.popitem(last=False)
        self._results.move_to_end(key)
        return self._results[key]

    def _segments(self) -> list[Of]:
        columns = self._columns(self._of.path)
        path = list(self._of.path)
        return [] if columns is None else [{"segment": name, "path": path} for name in columns.names]

    def _heads(self) -> list[Of]:
        begun = self._begun
        counts: tuple[int, ...] = () if begun is None else begun.heads
        return [{"layer": layer, "head": head} for layer, count in enumerate(counts) for head in range(count)]

    @property
    def _total(self) -> int:
        return len(self._segments()) + len(self._heads())

    @property
    def _done(self) -> int:
        found = self._found.lost
        return sum(_key(one) in found for one in (*self._segments(), *self._heads()))

    @property
    def _share(self) -> float:
        return self._done / self._total if self._begun is not None and self._total else 0.0

    def _part(self, of: Of) -> EditedPart:
        """Return the part to edit.

        Raises:
            ValueError, IndexError: it does not exist.
        """
        if "segment" not in of:
            layer = of.get("layer")
            one, queries = (self._pieces(x, of[x], layer) if x in of else None for x in ("key", "query"))
            if self._of.edit == "uniform" and one is not None and (len(one) == 1 or queries is not None):
                raise ValueError("the weight on a single key is already even: choose another edit")
            return EditedPart(layer, of.get("head"), queries, one)
        columns = self._columns(tuple(of["path"]))
        if columns is None or of["segment"] not in columns.names:
            raise ValueError(f"there is no segment {told(of['segment'])} here")
        keys = columns.keys[columns.names.index(of["segment"])]
        if not keys:
            raise ValueError(f"{of['segment']} has no keys to remove")
        return EditedPart(keys=keys)

    # Sending.

    def tell(self) -> None:
        """Set the traits."""
        if self._source is None or self._wished is None:
            return
        self._put("effects", self._message())
        self._put("effect_details", list(self._found.details.values()))

    def _message(self) -> Made:
        of, begun, model = self._of, self._begun, self._model
        made: Made = {"error": self._error, "batch": of.batch, "edit": of.edit}
        made["edits"] = [{"value": value, "name": name, "of": done} for value, name, done in model.edits]
        choice = None if begun is None or self._error else self._choice
        at = None if choice is None else choice.at
        made |= {"at": at, "text": "" if at is None else sendable(model.text(of.batch, at))}
        made["target"] = None if choice is None else {"token": choice.token, "text": sendable(choice.text)}
        offered = [] if begun is None else [*begun.targets]
        if choice is not None and choice not in offered:
            offered.append(choice)
        made["targets"] = [{**one._asdict(), "text": sendable(one.text)} for one in offered]
        made |= {"unit": "nats" if begun is None else begun.unit, "segments": self._segments_message()}
        found = self._found.lost
        lost = [_figure(found.get(_key(one))) for one in self._heads()]
        made["heads"] = None if begun is None else {"counts": list(begun.heads), "lost": lost}
        made["left_out"] = self._left_out_words()
        made |= {"done": self._done if begun else 0, "total": self._total if begun else 0}
        seconds = None if begun is None else begun.seconds
        return made | {"run_seconds": seconds, "seconds_left": self._seconds_left, "state": self._state}

    def _left_out_words(self) -> str | None:
        """Return which layers cannot be edited, and why; None if all can."""
        found = {what: self._model.left_out(self._of.edit, keys=what == "keys") for what in ("keys", "heads")}
        if found["keys"] == found["heads"]:
            found = {"keys and heads": found["keys"]}
        told = []
        for what, layers in found.items():
            if layers:
                named = " and ".join([", ".join(map(str, [*layers][:-1])), f"{[*layers][-1]}"][len(layers) < 2 :])
                of = f"layer{'s' if len(layers) > 1 else ''} {named}"
                told.append(f"the {what} of {of} are left out: {next(iter(layers.values()))}")
        return sendable("; ".join(told)) if told else None

    def _segments_message(self) -> Made | None:
        columns = self._columns(self._of.path)
        if columns is None:
            return None
        found = self._found.lost
        lost = [_figure(found.get(_key(one))) for one in self._segments()]
        begun = self._begun
        count = 0 if begun is None else len(begun.heads)
        what, without = WORDS_OF_EDITS[self._of.edit], len(self._model.left_out(self._of.edit, keys=True))
        of = f"{count - without} of {count}" if without else f"{count}"
        where = f"{what} in {of} layer{'s' if count != 1 else ''}" if count else ""
        return {"path": list(self._of.path), "names": columns.names, "lost": lost, "dropped": where}


FORMS = (("segment", "path"), ("layer", "head", "query", "key"), ("layer", "head"), ("layer",), ("key",))


def _checked(of: Any) -> Of:
    """Return the part that a front-end wants edited, its fields in order.

    Raises:
        TypeError, ValueError: the fields describe no part.
    """
    form = next((one for one in FORMS if isinstance(of, dict) and {*of} == {*one}), None)
    if form is None:
        raise TypeError(f"of is {told(of)}: give a segment and its path, a layer and head, an edge in one, or a key")
    for name in form:
        value = of[name]
        if name == "segment":
            fits = isinstance(value, str)
        elif name == "path":
            fits = isinstance(value, list) and len(value) <= MAX_PATH and all(isinstance(x, str) for x in value)
        else:
            fits = type(value) is int and 0 <= value < MOST
        if not fits:
            raise ValueError(f"{name} is {told(value)}, which does not exist: give an existing one")
    return {name: of[name] for name in form}


def _key(of: Of) -> str:
    return json.dumps(list(of.items()))


def _figure(lost: float | None) -> float | str | None:
    """Return a number as sent, with six digits; a run is not more exact."""
    return as_json(None if lost is None else float(f"{lost:.{DIGITS}g}"))


def _detail(found: PartEffect) -> Made:
    numbers = {"before": found.before, "after": found.after, "kl": found.kl, "kl_answer": found.kl_answer}
    tokens = [[sendable(text), as_json(before), as_json(after)] for text, before, after in found.tokens]
    return {**{name: as_json(x) for name, x in numbers.items()}, "vocabulary": found.vocabulary, "tokens": tokens}
