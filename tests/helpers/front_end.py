"""A front-end for tests: it keeps what the kernel sends, and reads it as `docs/contract.md` says."""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np
import pytest
from comm.base_comm import BaseComm
from ipywidgets.widgets.widget import _put_buffers

from attnwidget import AttentionStack, AttentionWidget
from attnwidget._engine.cost import CostBudget
from attnwidget._engine.level_cache import LevelCache
from attnwidget._messages.answers.long_answers import FilePart, LongAnswers
from attnwidget._messages.pictures.tiles import TileQueue
from attnwidget._tokens.search import TokenSearch
from attnwidget._utils.scheduler import Scheduler

Array = np.ndarray[Any, Any]

NUMBER, BLOCKED, NAN, PLUS_INF, MINUS_INF = range(5)
MARKS = {252: (np.nan, BLOCKED), 253: (np.nan, NAN), 254: (np.inf, PLUS_INF), 255: (-np.inf, MINUS_INF)}


@dataclass
class Message:
    """One message of the kernel, after a trip through JSON."""

    comm: str
    kind: str  # comm_open, comm_msg or comm_close
    data: dict[str, Any]
    buffers: list[bytes]
    text: str

    @property
    def size(self) -> int:
        return len(self.text.encode()) + sum(len(memoryview(buffer).cast("B")) for buffer in self.buffers)

    @property
    def state(self) -> dict[str, Any]:
        """The traits in it, their buffers put back; none in a custom message."""
        if self.data.get("method") not in (None, "update", "echo_update"):
            return {}
        state: dict[str, Any] = json.loads(self.text).get("state", {})
        _put_buffers(state, self.data.get("buffer_paths", []), self.buffers)
        return state


class FrontEnd:
    """All messages of the kernel, and what a front-end makes of them."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def create_comm(self, **keywords: Any) -> BaseComm:
        messages = self.messages

        class Recorder(BaseComm):
            def publish_msg(
                self, msg_type: str, data: Any = None, metadata: Any = None, buffers: Any = None, **_: Any
            ) -> None:
                text = json.dumps(data or {}, allow_nan=False, ensure_ascii=False)
                text.encode()  # raises on what cannot be sent
                messages.append(Message(self.comm_id, msg_type, json.loads(text), list(buffers or []), text))

        return Recorder(**keywords)

    def of(self, w: AttentionWidget) -> list[Message]:
        return [message for message in self.messages if message.comm == w.model_id]

    def state(self, w: AttentionWidget) -> dict[str, Any]:
        """The traits as a front-end has them by now."""
        state: dict[str, Any] = {}
        for message in self.of(w):
            state |= message.state
        return state

    def custom(self, w: AttentionWidget) -> list[Message]:
        return [message for message in self.of(w) if message.data.get("method") == "custom"]

    def refusals(self, w: AttentionWidget) -> list[str]:
        contents = [message.data["content"] for message in self.custom(w)]
        return [content["refused"] for content in contents if "refused" in content]

    def ask(self, w: AttentionWidget, *questions: Any) -> list[dict[str, Any]]:
        """The replies to some requests in one message, their envelopes with bytes."""
        before = len(self.custom(w))
        data = {"method": "custom", "content": {"requests": list(questions)}}
        w.comm.handle_msg({"content": {"data": data}, "buffers": []})
        (answer,) = self.custom(w)[before:]
        replies: list[dict[str, Any]] = answer.data["content"]["replies"]
        return [attached(reply, answer.buffers) for reply in replies]

    def bands(self, w: AttentionWidget) -> list[dict[str, Any]]:
        """The rows that have become exact, in the order in which they were sent."""
        found = [message for message in self.custom(w) if "band" in message.data["content"]]
        return [attached(message.data["content"]["band"], message.buffers) for message in found]

    def tiles(self, w: AttentionWidget) -> list[dict[str, Any]]:
        """The tiles that came of their own accord, each message with `tiles` and `of`."""
        found = [message for message in self.custom(w) if "tiles" in message.data["content"]]
        return [attached(message.data["content"], message.buffers) for message in found]


def attached(part: Any, buffers: Sequence[Any]) -> Any:
    """Part of a message with bytes in the place of the numbers of its buffers."""
    if isinstance(part, dict):
        made = {name: attached(inner, buffers) for name, inner in part.items()}
        if "dtype" in made:
            made["data"] = buffers[made["data"]]
        if isinstance(made.get("text"), int):
            made["text"] = buffers[made["text"]]
        return made
    return [attached(inner, buffers) for inner in part] if isinstance(part, list) else part


@dataclass
class Desk:
    """What `requests.answer` needs to know, without a widget."""

    stack: AttentionStack
    tokens: Sequence[str] | None = None
    retried: int = 0
    checked: list[tuple[int, int, int]] = field(default_factory=list)

    long_answers: LongAnswers = field(default_factory=LongAnswers)
    not_yet: str | None = None

    def __post_init__(self) -> None:
        self._levels = [LevelCache(att) for att in self.stack]
        self._tile_queue = TileQueue(Scheduler(threading.RLock()), lambda content, buffers: None)

    def levels(self, layer: int) -> LevelCache:
        return self._levels[layer]

    def vocabulary(self, side: str, layer: int, batch: int) -> TokenSearch | None:
        return None if self.tokens is None else TokenSearch(self.tokens)

    def tiles(self, layer: int, key: Any, view: str, addresses: Any, budget: Any) -> Any:
        of = {"layer": layer, **key._asdict(), "version": 0, "view": view}
        return self._tile_queue.ask(self._levels[layer], key, of, addresses, None, budget)

    def steer(self, layer: int, batch: int, head: int, stage: str, action: str) -> None:
        pass

    def ask_effect(self, of: Any) -> None:
        raise ValueError("no model")

    def steer_effects(self, action: Any) -> None:
        raise ValueError("no model")

    def check(self, layer: int, batch: int, head: int) -> None:
        self.checked.append((layer, batch, head))

    def file(self, kind: str, start: int, most: int, budget: CostBudget) -> FilePart:
        return FilePart(f"a.{kind}", 10, b"0123456789"[start : start + most], 1.0)

    def mass(self, number: int) -> NoReturn:
        raise ValueError("there are no segments")

    head_mass = mass

    def make_segments(self, unit: str) -> NoReturn:
        raise ValueError("there is no text")

    def retry(self) -> None:
        self.retried += 1

    def both(self, layer: int, batch: int, against: str) -> NoReturn:
        raise ValueError("this shows one attention")

    def together(self, layer: int, name: str) -> NoReturn:
        raise ValueError("other heads are selected now")


def decode(envelope: dict[str, Any], buffers: Sequence[Any] = ()) -> Array:
    """An envelope as an array: float32, uint8, uint32, or bool for bits."""
    data = buffers[envelope["data"]] if isinstance(envelope["data"], int) else envelope["data"]
    raw = zlib.decompress(data) if envelope["deflated"] else bytes(data)
    shape = envelope["shape"]
    if envelope["dtype"] == "bits":
        count = int(np.prod(shape))
        assert len(raw) == -(-count // 8)
        return np.unpackbits(np.frombuffer(raw, np.uint8), count=count).astype(bool).reshape(shape)
    return np.frombuffer(raw, np.dtype(envelope["dtype"]).newbyteorder("<")).reshape(shape)


def decode_cells(values: dict[str, Any], blocked: dict[str, Any] | None = None) -> tuple[Array, Array]:
    """Numbers and what they are, exact or from codes; NaN where blocked."""
    array = decode(values)
    if array.dtype == np.uint8:
        return _dequantise(array, values["scale"])
    kinds = np.select([np.isnan(array), np.isposinf(array), np.isneginf(array)], [NAN, PLUS_INF, MINUS_INF], NUMBER)
    if blocked is not None:
        kinds = np.where(decode(blocked), BLOCKED, kinds)
    return np.where(kinds == BLOCKED, np.nan, array), kinds


def assert_same_picture(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Check that two threads or processes computed the same picture: rounding may move a cell to the next code."""
    rounded = ("values", "low", "high")
    assert {name: x for name, x in found.items() if name not in rounded} == {
        name: x for name, x in expected.items() if name not in rounded
    }
    assert (found["low"], found["high"]) == pytest.approx((expected["low"], expected["high"]), rel=1e-5)
    codes, others = (decode(one["values"]).astype(int) for one in (found, expected))
    assert abs(codes - others).max() <= 1


def _dequantise(codes: Array, scale: dict[str, Any]) -> tuple[Array, Array]:
    number = np.full(256, np.nan)
    kind = np.full(256, -1)
    for code in range(251):
        if scale["kind"] == "log":
            number[code] = scale["high"] * 2 ** (-scale["octaves"] * (250 - code) / 249) if code else 0
        elif scale["kind"] == "linear":
            number[code] = scale["high"] * (code - 125) / 124
        else:
            number[code] = scale["high"] * code / 250
        kind[code] = NUMBER
    if scale["kind"] == "linear":
        kind[0] = kind[250] = -1
    for code, (value, meaning) in MARKS.items():
        number[code], kind[code] = value, meaning
    assert (kind[codes] >= 0).all(), "a code without a meaning"
    return number[codes], kind[codes]


def decode_tokens(message: dict[str, Any] | None) -> list[str] | None:
    if message is None:
        return None
    ends = [0, *decode(message["ends"]).tolist()]
    text = bytes(message["text"])
    return [text[a:b].decode("utf-8", "surrogatepass") for a, b in pairwise(ends)]
