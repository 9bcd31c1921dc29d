"""Send random messages and states to widgets, and check what each of them leaves and costs.

    python benchmarks/attack.py                                  # 100,000 messages and states, most to short heads
    python benchmarks/attack.py --json out.json --messages 20000 --seed 3
    python benchmarks/attack.py --log attack.jsonl               # goes on where a run with this log was stopped
    python benchmarks/attack.py --only words --round 17          # one round again, by its number

What comes from a front-end is untrusted. Of every message is asked: nothing is raised; each request has exactly one
reply; all that is sent can be sent; the traits are such as their own definitions take; both sides hold the same; and,
now and then, that a good question is answered with the right numbers. Then some are interrupted at any line, or find
no more memory there; four threads ask one widget while its selection changes; 300 widgets are opened and closed, and
a head is changed 2,000 times: memory stays as it was, and nothing is left that listens. README.md beside this file
says what is measured. It exits with 1 where anything failed, and with 3 where a message took more than a second of one
core or 64 MB.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import gc
import json
import math
import random
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

import comm
import numpy as np
import torch
from figures import Figure, finish
from front_end import FrontEnd, attached, decode
from interrupting import stopped_at
from ipywidgets.widgets.widget import _instances

from attnwidget import Attention, AttentionStack, AttentionWidget, capture, compare
from attnwidget._messages.answers.requests import ANSWERS, FILES, MAX_NAME, MAX_REFUSED
from attnwidget._utils.validation import told
from attnwidget._widget.derived.selection import Selection
from attnwidget._widget.traits.keywords import WRITABLE, names_of

SECONDS, BYTES = 1.0, 64e6  # of one core, and of memory, that a message may take
GOOD_EVERY = 25  # messages from one good question to the next
ROUND = 200  # messages to one widget
RARE = 0.011  # share of messages; each takes long, so a tenth of it is a round
OPENED, CHANGED = 300, 2000  # widgets, and changes of a head
STOPPED = 1000  # messages and states that are interrupted, and as many that find no more memory
STOPPED_EACH = 20  # of them to one widget
DEEPEST = 20_000  # lines that a message runs before it is stopped, at most
THREADS, ASKED = 4, 8000  # and questions of all threads together
GROWTH = 8e6  # bytes that a process may grow in nine tenths of these

Target = Callable[[], AttentionWidget]
PARTS = {"documents": {"doc 1": (1, 6), "doc 2": (6, 12)}, "question": (12, 15), "answer": (15, 20)}  # of 20 tokens


def tensors(*shape: int, seed: int = 0) -> list[torch.Tensor]:
    return list(torch.randn(3, *shape, generator=torch.Generator().manual_seed(seed)))


def short() -> AttentionWidget:
    return AttentionWidget(*tensors(2, 4, 20, 8), is_causal=True, tokens=[f"t{n % 7}" for n in range(20)])


def layers_that_differ() -> AttentionWidget:
    """An encoder–decoder's: the second has fewer keys and heads, the third fewer queries, the last weights only."""
    q, k, v = tensors(1, 4, 16, 8)
    few = Attention(q[:, :2], k[:, :2, :7], v[:, :2, :7])
    return AttentionWidget.from_attention(
        AttentionStack(
            [
                Attention(q, k, v, sinks=0.5),
                few,
                Attention(q[:, :, :5], k, v),
                Attention.from_weights(torch.eye(9)[None, None]),
            ]
        )
    )


def stacks() -> AttentionWidget:
    q, k, v = tensors(1, 2, 12, 4)
    return AttentionWidget.from_attention(
        {(0, "encoder"): Attention(q, k, v), (0, "cross"): Attention(q, k[:, :, :5], v[:, :, :5]), (1, "encoder"):
         Attention(q[:, :, :9], k[:, :, :9])},
        tokens={"encoder": None, "cross": list("abcdefghijkl")},
    )  # fmt: skip


def words() -> AttentionWidget:
    pieces = ["the", "Ġbank", "Ġl", "ent", "Ġmo", "ney", "Ġto", "Ġthe", "Ġri", "ver"] * 2
    return AttentionWidget(*tensors(1, 3, 20, 8), tokens=pieces, pieces="words", is_causal=True)


def patches() -> AttentionWidget:
    return AttentionWidget(*tensors(1, 2, 17, 4), grid=(4, 4), grid_start=1, view="image")


def image() -> AttentionWidget:
    """Two samples of patches with their images: the heads differ in keys, so the grid is of one side in one of them."""
    q, k, v = tensors(2, 3, 25, 8)
    layers = AttentionStack([Attention(q, k, v), Attention(q, k[:, :, :9], v[:, :, :9])])
    images = [np.full((40, 60, 3), shade, np.uint8) for shade in (30, 200)]
    return AttentionWidget.from_attention(layers, grid=(5, 5), image=images)


def segmented() -> AttentionWidget:
    """Segments in segments, a learned sink, and a layer that they do not fit."""
    q, k, v = tensors(1, 3, 20, 8)
    layers = AttentionStack([Attention(q, k, v, is_causal=True, sinks=0.5), Attention(q[:, :, :9], k[:, :, :9])])
    words = [f"t{n}" if n % 4 else "." for n in range(20)]
    return AttentionWidget.from_attention(layers, segments=PARTS, tokens=words, view="segments")


def comparison() -> AttentionWidget:
    q, k, v = tensors(1, 3, 18, 8)
    return compare(
        {"no mask": Attention(q, k, v), "causal": Attention(q, k, v, is_causal=True), "<b>": Attention(k, q)}
    )


def carrying(*, seed: int = 0, **rules: Any) -> Attention:
    """An attention that knows what its weights carry on: the stages value_norm, logit and saliency."""
    q, k, v = tensors(1, 3, 20, 8, seed=seed)
    w_o, direction, gradient = torch.randn(3, 8, 6), torch.randn(6), torch.randn(1, 3, 20, 8)
    return Attention(q, k, v, is_causal=True, **rules).carrying(w_o=w_o, direction=direction, grad_output=gradient)


def carried() -> AttentionWidget:
    """Layers that carry everything, a norm alone and nothing; a cache that keeps few keys; custom metrics."""
    q, k, v = tensors(1, 3, 20, 8, seed=3)
    few = Attention(q, k, v, is_causal=True)
    layers = [
        carrying(sinks=0.5),
        few.carrying(w_o=torch.randn(3, 8, 6)),
        few.what_if({"keep": {"policy": "heavy_hitters", "budget": 6}}),
        few,
    ]
    kinds: Any = {"mine": lambda rows: rows.weights.amax(-1), "<b>": lambda rows: rows.weights.amin(-1)}
    return AttentionWidget.from_attention(AttentionStack(layers), segments=PARTS, kinds=kinds, view="heads")


def forwards() -> AttentionWidget:
    """Two towers in three forwards, of other lengths: one forward lacks one, and one has other layers and heads."""
    seen, read = tensors(1, 4, 16, 8, seed=1), tensors(1, 3, 20, 8, seed=2)
    vision, text = (Attention(*some, is_causal=some is read) for some in (seen, read))
    return AttentionWidget.from_attention(
        {
            (0, "vision"): AttentionStack([vision, vision]),
            (0, "text"): AttentionStack([text, text, text]),
            (1, "text"): Attention(*(x[:, :2, :7] for x in read), is_causal=True),
            (2, "vision"): Attention(*(x[..., :9, :] for x in seen)),
            (2, "text"): AttentionStack([carrying(), carrying()]),
        },
        tokens={"vision": None, (0, "text"): [f"t{n}" for n in range(20)]},
        stack="text",
    )


def comparison_of_parts() -> AttentionWidget:
    """Segments, and what the weights carry, of a text under two caches."""
    sides = {
        "all": carrying(),
        "few": carrying().what_if({"keep": {"policy": "tova", "budget": 5}}),
        "other": carrying(seed=4, sinks=0.5),
    }
    return compare(sides, segments=PARTS, tokens=[f"t{n}" for n in range(20)])


class SmallModel(torch.nn.Module):
    """Two layers of attention that tell the next of a few tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(11, 8)
        self.layers = torch.nn.ModuleList(torch.nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer(x, x, x, need_weights=False)[0]
        return x @ self.embed.weight.T


def with_a_model() -> AttentionWidget:
    model, ids = SmallModel().eval(), torch.randint(0, 11, (2, 12))
    parts = {"documents": {"doc 1": (1, 4), "doc 2": (4, 6)}, "question": (6, 8), "answer": (8, 12)}
    return capture(model).run(ids).widget(model=model, inputs=ids, segments=parts, segments_show="effect")


def long_comparison() -> AttentionWidget:
    q, k, v = tensors(1, 2, 12_000, 16)
    return compare(Attention(q, k, v, window=256), Attention(q, k, v, window=512, is_causal=True))


def middle() -> AttentionWidget:
    return AttentionWidget(*tensors(1, 4, 600, 16), is_causal=True, tokens=[f"t{n % 50}" for n in range(600)])


def wide() -> AttentionWidget:
    return AttentionWidget(*tensors(1, 32, 4096, 16), window=512, is_causal=True)


def long() -> AttentionWidget:
    return AttentionWidget(*tensors(1, 2, 20_000, 16), is_causal=True, tokens=[f"t{n % 99}" for n in range(20_000)])


# Of each target how it is made, and its share of all messages.
TARGETS: dict[str, tuple[Target, float]] = {
    "short": (short, 0.11),
    "layers that differ": (layers_that_differ, 0.14),
    "segments": (segmented, 0.1),
    "stacks": (stacks, 0.1),
    "words": (words, 0.1),
    "patches": (patches, 0.03),
    "image": (image, 0.04),
    "comparison": (comparison, 0.12),
    "carried": (carried, 0.05),
    "forwards": (forwards, 0.05),
    "comparison of parts": (comparison_of_parts, 0.05),
    "with a model": (with_a_model, 0.05),
    "middle": (middle, 0.04),
    "wide": (wide, 0.004),
    "long": (long, 0.01),
    "long comparison": (long_comparison, 0.006),
}
SHORT = tuple(list(TARGETS)[:12])  # those that tests have time for


# What is sent.

DEEP: list[Any] = []
for _ in range(1200):
    DEEP = [DEEP]
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 0.5, -0.0, 1.5, 1e300, -1e-320, math.inf, -math.inf, math.nan, 2**31, 2**53, 2**63,
    10**300, -(10**300), 10**400, "", "x", "0", "nan", "\ud800", "a\udfff b", "\x00", "\u202e", "x" * 100_000,
    "<img src=x onerror=alert(1)>", "__class__", "mean 0 1", "max 0 99", "mean", [], {}, [[]], [None], [{}], {"a": 1},
    {"\ud800": 1}, {"length": 10**9}, {1: 2}, {None: None}, [0] * 5000, [[0, 0]] * 3000, DEEP, b"bytes", bytearray(8),
    memoryview(b"view"), (1, 2), range(3), [math.nan, math.inf], ["\ud800"], [10**300, 1], [True], [[1, 2, 3]],
    "constructor", "weights", "max", "query", "heatmap", [0, 1], [1, 0], [0.0, 1.0], "unit", 10**5000,
]  # fmt: skip
OURS = re.compile(r"[A-Z]\w*(Error|Exception)\b")  # names of errors that show a mistake of the package
NAMES = (
    *("weights", "scores", "scaled", "capped", "masked", "contribution", "value_norm", "logit", "saliency", "allowed"),
)
DEAR = ("cost", "sweep", "jacobian", "gradients", "file")  # asked for less often: these measure, or compute a lot
KINDS = [kind for kind in ANSWERS for _ in range(1 if kind in DEAR else 8)]
RULES = ("scale", "temperature", "softcap", "mask", "sinks", "causal", "window", "drop_keys", "keep", "dtype")


class Sender:
    """Makes random messages and states for a widget: some that could be, some that could not, many that nearly could.

    Args:
        dice: what is random.
        w: whom they are for.
        odd: the share of values that are anything.
    """

    def __init__(self, dice: random.Random, w: AttentionWidget, odd: float = 0.08) -> None:
        self.dice, self.w, self.share = dice, w, odd
        att = w._shown.layers[w.layer]
        self.most = max(att.shape.Q, att.shape.K)

    def state(self) -> dict[str, Any]:
        names = names_of(type(self.w), *WRITABLE)
        few = self.dice.sample(names, self.dice.choice([1, 1, 1, 2, 3, 5]))
        return {name: self._odd_or(lambda name=name: self._trait(name)) for name in few}

    def content(self) -> Any:
        if self.dice.random() < self.share / 4:
            return self._odd()
        content: dict[str, Any] = {}
        if self.dice.random() < 0.2:
            content["what_if"] = self._odd_or(self._rules)
        if self.dice.random() < 0.9:
            content["requests"] = self._odd_or(lambda: [self._odd_or(self._request) for _ in range(self._few())])
        return content

    def _few(self) -> int:
        return self.dice.choice([0, 1, 1, 1, 2, 3, 8])

    def _odd(self) -> Any:
        return self.dice.choice(ODD)

    def _odd_or(self, make: Callable[[], Any]) -> Any:
        return self._odd() if self.dice.random() < self.share else make()

    def _place(self) -> int:
        return self.dice.choice([0, 1, self.dice.randrange(self.most), self.most - 1, self.dice.randrange(-2, 24)])

    def _span(self) -> list[int]:
        first, second = sorted([self._place(), self._place()])
        return [first, second + 1] if self.dice.random() < 0.7 else [first, min(self.most, first + 20)]

    def _small(self) -> int:
        return self.dice.choice([0, 0, 0, 1, 1, 2, 3, 7])

    def _mass(self) -> int:
        known = [found["id"] for found in (self.w.mass, self.w.head_mass) if found is not None]
        return self.dice.choice([*known, *known, *known, self.dice.randrange(40)])

    def _edited(self) -> dict[str, Any]:
        """Return what is to be taken away from the model."""
        dice = self.dice
        layer, head = {"layer": self._small()}, {"head": self._small()}
        edge = {"query": self._place(), "key": self._place()}
        name = dice.choice(["answer", "documents", "doc 1", "x"])
        segment = {"segment": name, "path": dice.choice([[], ["documents"], ["x"] * 20])}
        return dice.choice([segment, layer, layer | head, layer | head | edge, {"key": self._place()}, edge, {}])

    def _kept(self) -> dict[str, Any] | None:
        """Return what a cache is to keep of the keys."""
        dice = self.dice
        counts: dict[str, Callable[[], Any]] = {
            "budget": lambda: dice.choice([0.25, 0.5, 1, 4, 8, self._place()]),
            "sinks": lambda: dice.choice([0, 1, 4]), "recent": lambda: dice.choice([0, 2, 64]), "prompt": self._place,
            "observe": lambda: dice.choice([1, 4, 64]),
        }  # fmt: skip
        policy = dice.choice(["window", "heavy_hitters", "snapkv", "tova"])
        names = {"budget", *dice.sample(list(counts), dice.choice([0, 0, 1, 2]))}
        if policy == "snapkv":
            names |= {"prompt", "observe"}
        return dice.choice(
            [None, *[{"policy": policy} | {name: self._odd_or(counts[name]) for name in sorted(names)}] * 4]
        )

    def _metric(self, name: str) -> str:
        return str(self.dice.choice([*self.w.traits()[name].words, *(self.w.kinds or ())]))

    def _limit(self) -> int | None:
        return self.dice.choice([None, 0, 1, self._small()])

    def _pin(self) -> list[int | None]:
        return [self.dice.choice([None, self._place()]), self.dice.choice([None, self._place(), self._place()])]

    def _trait(self, name: str) -> Any:
        dice = self.dice
        traits: dict[str, Callable[[], Any]] = {
            "layer": self._small, "batch": self._small, "head": self._small, "forward": self._small,
            "query": lambda: dice.choice([None, self._place(), self._place()]),
            "key": lambda: dice.choice([None, self._place(), self._place()]),
            "heads": lambda: [self._small() for _ in range(dice.choice([1, 2, 2, 3]))],
            "pins": lambda: [self._pin() for _ in range(self._few())],
            "top_k": lambda: dice.choice([None, 1, 5, 10**6]),
            "threshold": dice.random,
            "color_range": lambda: dice.choice(["head", "row", "unit", [0, 1], [-1.5, 2.5]]),
            "what_if": self._rules,
            "stack": lambda: dice.choice(["", *self.w.stacks, *self.w.stacks, "decoder"]),
            "asking": lambda: dice.choice(
                [None, "answer", "documents", "doc 1", "x", ["documents", "doc 1"], ["answer"], ["documents", "x"], []]
            ),
            "bar": lambda: self._metric("bar"), "order": lambda: self._metric("order"),
            "only_heads": lambda: [self._limit(), self._limit(), dice.choice([None, 0, 0.2, -3, 1.5])],
            "against_at": lambda: dice.choice([None, [self._small(), 0, self._small()]]),
            "target": lambda: dice.choice([None, self._small(), 10**6]),
            "segment": lambda: dice.choice([None, "answer", "documents", "doc 2", "learned sink", "outside documents"]),
            "segment_path": lambda: dice.choice([[], ["documents"], ["documents", "doc 1"], ["answer"], "documents"]),
            "aside": lambda: dice.choice([[], ["self", "sink"], ["first token", "x"], ["self"] * 2000]),
            "against": lambda: dice.choice(["causal", "B", "<b>", "no mask"]),
            "effect_target": lambda: dice.choice([None, [self._place(), self._small()], [3, 10**6], [2**31, 0], [1]]),
        }  # fmt: skip
        if name in traits:
            return traits[name]()
        trait = self.w.traits()[name]
        return dice.choice(getattr(trait, "words", ODD))

    def _rules(self) -> dict[str, Any]:
        dice = self.dice
        rules: dict[str, Callable[[], Any]] = {
            "scale": lambda: dice.choice([0.1, 1, 0, -2.5, 1e30, 1e-30]),
            "temperature": lambda: dice.choice([0.1, 1, 20, 1e-30]),
            "softcap": lambda: dice.choice([None, 0.5, 50]),
            "mask": lambda: dice.choice([True, False]), "sinks": lambda: dice.choice([None, True, False]),
            "causal": lambda: dice.choice([True, False, "lower right"]),
            "window": lambda: dice.choice([None, 1, 3, 512, 10**6]),
            "drop_keys": lambda: [self._place() for _ in range(self._few())], "keep": self._kept,
            "dtype": lambda: dice.choice(["float16", "bfloat16", "int8"]),
        }  # fmt: skip
        names = dice.sample(RULES, dice.choice([0, 1, 1, 1, 2, 3]))
        return {name: self._odd_or(rules[name]) for name in names}

    def _request(self) -> dict[str, Any]:
        dice = self.dice
        at = self.w if dice.random() < 0.7 else None
        fields: dict[str, Callable[[], Any]] = {
            "id": lambda: str(dice.randrange(10**6)), "kind": lambda: dice.choice(KINDS),
            "layer": lambda: at.layer if at else self._small(), "batch": lambda: at.batch if at else self._small(),
            "head": lambda: at.head if at else dice.choice([0, 1, "mean 0 1", "max 0 1 2"]),
            "against_at": lambda: dice.choice([None, [self._small(), 0, self._small()]]),
            "stage": lambda: dice.choice(NAMES), "pool": lambda: dice.choice(["max", "mean"]),
            "query": self._place, "key": self._place, "start": self._place, "stop": self._place,
            "count": lambda: dice.choice([1, 8, 64]), "over": lambda: dice.choice(["sum", "mean"]),
            "side": lambda: dice.choice(["query", "key"]), "text": lambda: dice.choice(["t1", "a", "zz"]),
            "format": lambda: dice.choice(FILES),
            "action": lambda: dice.choice(["stop", "resume", "run"]), "own": lambda: dice.choice([True, False]),
            "skip_first": lambda: dice.choice([True, False]), "view": lambda: f"v{dice.randrange(12)}",
            "heads": lambda: [0, dice.choice([1, 2])], "against": lambda: getattr(self.w, "against", ""),
            "of": lambda: dice.choice([self._mass, self._edited])(), "column": self._small, "row": self._small,
            "columns": lambda: [self._small() for _ in range(dice.choice([1, 2, 20]))],
            "measure": lambda: dice.choice(["mass", "per_token", "lift"]),
            "aside": lambda: dice.choice([[], ["self"], ["sink"]]),
            "unit": lambda: dice.choice(["sentences", "paragraphs", "lines", "chapters"]),
            "tiles": lambda: [[dice.randrange(8), dice.randrange(8), 0, 0] for _ in range(1 + self._few())],
        }  # fmt: skip
        made = {name: self._odd_or(field) for name, field in fields.items()}
        made["queries"] = self._odd_or(dice.choice([self._span, lambda: [self._place()]]))
        made["keys"] = self._odd_or(self._span)
        if made["kind"] == "ranked":
            made.pop(dice.choice(["queries", "keys"]))
        if made["kind"] == "file":
            made["start"] = self._odd_or(lambda: dice.choice([0, 0, 0, self._place(), 1 << 18]))
        for name in dice.sample(list(made), dice.choice([0, 0, 0, 0, 1])):
            made.pop(name)
        return made


# What is checked.


class Fault(AssertionError):
    """Raised for what a message may not leave."""


@dataclass
class Victim:
    """A widget under attack, with what its front-end holds.

    Args:
        make: makes the widget.
        dice: what is random.
    """

    make: Target
    dice: random.Random
    front_end: FrontEnd = field(default_factory=FrontEnd)

    def __post_init__(self) -> None:
        with replaced(comm, "create_comm", self.front_end.create_comm):
            self.w = self.make()
        self.sender = Sender(self.dice, self.w)
        self.held: dict[str, Any] = {}
        self._take()

    def _take(self) -> list[dict[str, Any]]:
        """Take in what was sent; return the custom messages."""
        told = []
        for message in self.front_end.messages:
            self.held |= message.state
            if message.data.get("method") == "custom":
                told.append(message.data["content"])
        self.front_end.messages.clear()
        return told

    def set_state(self, state: dict[str, Any]) -> None:
        self.w.set_state(state)  # as ipywidgets calls it; an exception would escape into the kernel's log
        for name, value in state.items():
            self.held.setdefault(name, value)
        sent = {name for message in self.front_end.messages for name in message.state}
        self.held |= {name: value for name, value in state.items() if name not in sent}
        told = self._take()
        if any("replies" in one for one in told):
            raise Fault("a state was answered with replies")

    def send(self, content: Any) -> None:
        self.w._receive(self.w, content, [])
        replies = [one["replies"] for one in self._take() if "replies" in one]
        requests = content.get("requests") if isinstance(content, dict) else None
        wanted = [len(requests)] if isinstance(requests, list) and len(requests) <= MAX_REFUSED else []
        if [len(one) for one in replies] != wanted:
            raise Fault(f"{wanted} requests have {[len(one) for one in replies]} replies")
        for reply, request in zip(*replies, requests, strict=True) if wanted else ():
            name = request.get("id") if isinstance(request, dict) else None
            if isinstance(name, str) and name.isprintable() and len(name) <= MAX_NAME and reply["id"] != name:
                raise Fault(f"request {name} has reply {reply['id']}")
            if not reply["ok"] and (OURS.match(reply["error"]) or not 0 < len(reply["error"]) <= 500):
                raise Fault(f"an error that tells nobody what to do: {reply['error']!r}")

    def come_to_rest(self) -> None:
        """Have computed what was stopped, and take in all that was sent."""
        self.w.finish()
        self._take()

    def check(self) -> None:
        """Raise Fault where the widget is not whole."""
        w = self.w
        for name in names_of(type(w), *WRITABLE):
            value, trait = getattr(w, name), w.traits()[name]
            if plain(trait._validate(w, value)) != plain(value):
                raise Fault(f"{name} is {value!r}, which its own definition does not take")
            if json.dumps(plain(w.get_state([name])[name])) != json.dumps(plain(self.held.get(name))):
                raise Fault(f"{name} is {w.get_state([name])[name]!r:.200} here and {self.held.get(name)!r:.200} there")
        if w.head not in w.heads:
            raise Fault(f"head {w.head} is not one of {w.heads}")
        if (w.query, w.key) != (tuple(w.pins[-1]) if w.pins else (None, None)):
            raise Fault(f"{w.query, w.key} is not the last of {w.pins}")
        if w.top_k is not None and w.top_k < 1:
            raise Fault(f"top_k is {w.top_k}")
        if OURS.match(w.picture["error"] or "") or any(OURS.match(said) for said in w.errors.values()):
            raise Fault(f"what is shown failed: {w.picture['error']}, {w.errors}")
        shown = Selection.of(w)
        of = {"layer": w.layer, "batch": w.batch, "head": shown.shown_head, "stage": w.stage, "pool": w.pool}
        wrong = {name: w.picture[name] for name in of if w.picture[name] != of[name]}
        if wrong and not (w.view == "stages" and w._scheduler.find_loop()):
            raise Fault(f"the picture is of another selection: {wrong}")

    def ask(self) -> None:
        """Raise Fault unless a good question is answered with the right numbers; it waits for what a cache holds."""
        self.w._evictions.finish()
        self._take()
        w, att = self.w, self.w._shown.layers[self.w.layer]
        if w._evictions.under_way:  # the front-end asks when it is known what the cache holds
            w._evictions.finish()
            self._take()
        query = self.dice.randrange(att.shape.Q)
        keys = range(min(att.shape.K, 64))
        where = {"layer": w.layer, "batch": w.batch, "head": w.head, "stage": w.stage}
        request = {"id": "good", "kind": "cells", "queries": [query, query + 1], "keys": [0, len(keys)], **where}
        w._receive(w, {"requests": [request]}, [])
        (message,) = [one for one in self.front_end.messages if "replies" in (one.data.get("content") or {})]
        (reply,) = message.data["content"]["replies"]
        buffers = message.buffers
        self._take()
        if not reply["ok"]:
            raise Fault(f"a good question was refused: {reply['error']}")
        found = decode(reply["values"], buffers).ravel()
        block = att.block(w.stage, batch=w.batch, head=w.head, queries=range(query, query + 1), keys=keys)
        if not torch.equal(torch.tensor(found).nan_to_num(), block[0].to(torch.float32).nan_to_num()):
            raise Fault("a good question was answered with wrong numbers")

    def close(self) -> None:
        self.w.close()


@contextlib.contextmanager
def replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def plain(value: Any) -> Any:
    """Return a value as JSON holds it, whichever side wrote it: there 1 and 1.0 are one number."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, dict):
        return {str(name): plain(value[name]) for name in sorted(value, key=str)}
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


# The attack.


@dataclass
class Report:
    """What was sent to one target, and what the dearest of it cost."""

    sent: int = 0
    seconds: list[tuple[float, str]] = field(default_factory=list)
    memory: list[tuple[float, str]] = field(default_factory=list)

    def note(self, spent: Spent, what: str) -> None:
        self.sent += 1
        self._keep((spent.seconds, what), (spent.memory, what))

    def add(self, other: Report) -> None:
        """Add what was sent in another round."""
        self.sent += other.sent
        for seconds, memory in zip(other.seconds, other.memory, strict=True):
            self._keep(seconds, memory)

    def _keep(self, seconds: tuple[float, str], memory: tuple[float, str]) -> None:
        for kept, new in ((self.seconds, seconds), (self.memory, memory)):
            kept.append((new[0], new[1]))
            kept.sort(key=lambda one: -one[0])
            del kept[5:]


class Spent(NamedTuple):
    """What one message took."""

    seconds: float = 0.0
    memory: float = 0.0


Meter = Callable[[Callable[[], None]], Spent]


def unmeasured(act: Callable[[], None]) -> Spent:
    """Run something, whatever it takes."""
    act()
    return Spent()


async def attack(
    make: Target, messages: int, dice: random.Random, *, meter: Meter = unmeasured, report: Report | None = None
) -> Report:
    """Send random messages and states to a widget whose kernel's loop runs, and check it after each.

    Args:
        make: makes the widget.
        messages: how many.
        dice: what is random.
        meter: runs one, and measures it.
        report: what is sent is noted there.

    Raises:
        Fault: what a message may not leave, with the message.
    """
    victim, report = Victim(make, dice), Report() if report is None else report
    try:
        for n in range(messages):
            await _attack_once(victim, n, dice, meter, report)
    finally:
        victim.close()
    return report


async def _attack_once(victim: Victim, n: int, dice: random.Random, meter: Meter, report: Report) -> None:
    is_state = dice.random() < 0.45
    sent = victim.sender.state() if is_state else victim.sender.content()
    act: Callable[[Any], None] = victim.set_state if is_state else victim.send
    what = f"{'state' if is_state else 'message'} {n}: {in_short(sent)}"
    try:
        report.note(meter(lambda: act(sent)), what)
        if dice.random() < 0.3:
            await asyncio.sleep(dice.choice([0, 0.003]))  # what can wait comes between messages
        victim.check()
        if n % GOOD_EVERY == 0:
            victim.ask()
    except BaseException as error:
        raise Fault(f"{what}: {error!r}") from error


def in_short(sent: Any, depth: int = 4) -> str:
    """Return what was sent, short enough to be read, whatever it is: some numbers have no repr."""
    if isinstance(sent, dict) and depth:
        return "{" + ", ".join(f"{in_short(name, 0)}: {in_short(sent[name], depth - 1)}" for name in sent) + "}"
    if isinstance(sent, list) and depth:
        return "[" + ", ".join(in_short(one, depth - 1) for one in sent[:20]) + "]"
    return told(sent)


# What it costs.


def measured(act: Callable[[], None]) -> Spent:
    """Run something, and return its processor time and by how much the process grew at its height."""
    Path("/proc/self/clear_refs").write_text("5")  # the height begins anew
    before, begun = status("VmRSS"), time.process_time()
    act()
    return Spent(time.process_time() - begun, max(0.0, status("VmHWM") - before))


def status(name: str) -> float:
    """Return a number of bytes that Linux tells of this process."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return 1024.0 * int(found[1]) if found else math.nan


def give_back_at_once() -> None:
    """Let freed memory leave the process, so that what is used again is seen again."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD: larger blocks are the system's own
        libc.mallopt(-1, 1 << 16)  # M_TRIM_THRESHOLD


# Rounds: each with a widget and a seed of its own, so that one can be run again, and a run that was stopped goes on.


class Round(NamedTuple):
    """Some messages to a widget of one kind."""

    target: str
    number: int
    messages: int

    def run(self, seed: int) -> dict[str, Any]:
        """Send them, and return what is logged of it."""
        make, report, fault = TARGETS[self.target][0], Report(), None
        dice = random.Random(f"{seed} {self.target} {self.number}")
        try:
            asyncio.run(attack(make, self.messages, dice, meter=measured, report=report))
        except Fault as error:
            fault = str(error)
        return {"seed": seed, **self._asdict(), **vars(report), "fault": fault}


def rounds_of(messages: int, only: str | None) -> list[Round]:
    """Return all rounds, those of all kinds of widgets side by side: a run that is stopped has been to each."""
    found = []
    for name, (_, share) in TARGETS.items():
        if only in (None, name):
            left = messages if only else round(share * messages)
            size = ROUND if share > RARE else ROUND // 10
            sizes = [min(size, left - done) for done in range(0, left, size)]
            found += [(n / len(sizes), Round(name, n, many)) for n, many in enumerate(sizes)]
    return [one for _, one in sorted(found)]


def known_of(log: Path | None) -> dict[tuple[int, Round], dict[str, Any]]:
    """Return what a log tells of rounds that were run before."""
    lines = log.read_text(encoding="utf-8").splitlines() if log is not None and log.exists() else []
    told = [json.loads(line) for line in lines]
    return {(one["seed"], Round(one["target"], one["number"], one["messages"])): one for one in told}


def run_all(rounds: list[Round], seed: int, log: Path | None) -> list[dict[str, Any]]:
    """Run rounds that the log does not have yet; tell of faults at once, and of all of them in the log."""
    known, results = known_of(log), []
    for at, one in enumerate(rounds):
        result = known.get((seed, one))
        if result is None:
            result = one.run(seed)
            if log is not None:
                with log.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(result) + "\n")
        results.append(result)
        if result["fault"]:
            repeat = f"--only {one.target!r} --round {one.number} --messages {one.messages} --seed {seed}"
            print(f"FAULT in {one.target}, {repeat}\n    {result['fault']}", flush=True)
        if at % 50 == 49:
            print(f"{at + 1} of {len(rounds)} rounds", flush=True)
    return results


def tell(results: list[dict[str, Any]]) -> list[Figure]:
    """Print what was dearest in each kind of widget, and return it."""
    found: list[Figure] = []
    for name in dict.fromkeys(one["target"] for one in results):
        report = Report()
        for one in results:
            if one["target"] == name:
                marked = [
                    [(x, f"round {one['number']}, {what}") for x, what in one[of]] for of in ("seconds", "memory")
                ]
                report.add(Report(one["sent"], *marked))
        if not report.sent:
            continue
        (seconds, slowest), (memory, largest) = report.seconds[0], report.memory[0]
        print(f"{name:18} {report.sent:7,} sent, at most {seconds:6.3f} s, {memory / 1e6:6.1f} MB", flush=True)
        for is_over, said in (
            (seconds > SECONDS, f"    over {SECONDS} s: {slowest}"),
            (memory > BYTES, f"    over {BYTES / 1e6:.0f} MB: {largest}"),
        ):
            if is_over:
                print(said, flush=True)
        found.append(Figure(f"{name}, dearest message", seconds, "s", wanted=SECONDS))
        found.append(Figure(f"{name}, most memory of a message", memory, "bytes", wanted=BYTES))
    return found


# What is stopped on the way, and threads.


def stop(count: int, seed: int, error: type[BaseException]) -> list[str]:
    """Have messages and states stopped at any line, by an interrupt or for want of memory; return what went wrong."""
    faults, names = [], list(SHORT)
    for number in range(-(-count // STOPPED_EACH)):
        name = names[number % len(names)]
        dice = random.Random(f"{seed} {name} {number} {error.__name__}")
        loop = asyncio.new_event_loop()  # `asyncio.run` would take an interrupt for itself, which a kernel does not
        try:
            some = min(STOPPED_EACH, count - number * STOPPED_EACH)
            loop.run_until_complete(_stop_some(TARGETS[name][0], some, dice, error))
        except Fault as fault:
            faults.append(f"{name}, {number}, by {error.__name__}: {fault}")
        finally:
            loop.close()
    return faults


async def _stop_some(make: Target, count: int, dice: random.Random, error: type[BaseException]) -> None:
    victim = Victim(make, dice)
    try:
        for _ in range(count):
            is_state, line = dice.random() < 0.6, round(DEEPEST ** dice.random())
            sent = victim.sender.state() if is_state else victim.sender.content()
            try:
                with stopped_at(line, error):
                    (victim.set_state if is_state else victim.send)(sent)
                await asyncio.sleep(0)
                victim.come_to_rest()
                victim.check()
                victim.ask()
            except BaseException as wrong:
                raise Fault(f"at line {line} of {in_short(sent)}: {wrong!r}") from wrong
    finally:
        victim.close()


def ask_in_threads(count: int, seed: int, threads: int = THREADS) -> list[str]:
    """Have threads ask one widget while its selection changes; return which replies were missing, or wrong."""
    front_end = FrontEnd()
    with replaced(comm, "create_comm", front_end.create_comm):
        w = short()
    att = w._shown.layers[0]
    start, faults = threading.Barrier(threads + 1), []

    def run(thread: int) -> None:
        dice = random.Random(f"{seed} {thread}")
        start.wait()
        for n in range(thread, count, threads):
            at = {"head": dice.randrange(4), "batch": dice.randrange(2), "query": dice.randrange(20)}
            request = {
                "id": f"{n} {' '.join(map(str, at.values()))}",
                "kind": "row",
                "layer": 0,
                "stage": "weights",
                **at,
            }
            try:
                w._receive(w, {"requests": [request]}, [])
            except BaseException as error:
                faults.append(f"{request}: {error!r}")

    running = [threading.Thread(target=run, args=(thread,)) for thread in range(threads)]
    for thread in running:
        thread.start()
    start.wait()
    turn = 0
    while any(thread.is_alive() for thread in running):
        w.set_state({"head": turn % 4, "query": turn % 19, "view": ("heatmap", "stages", "graph")[turn % 3]})
        turn += 1
    replies = [
        attached(reply, message.buffers)
        for message in front_end.custom(w)
        for reply in message.data["content"].get("replies", [])
    ]
    w.close()
    if len({reply["id"] for reply in replies}) != count or len(replies) != count:
        faults.append(f"{count:,} questions have {len(replies):,} replies")
    for reply in replies:
        _, head, batch, query = map(int, reply["id"].split())
        wanted = att.block(head=head, batch=batch, queries=[query])[0]
        if not reply["ok"] or not np.allclose(decode(reply["values"]).ravel(), wanted.numpy(), rtol=1e-5, atol=1e-7):
            faults.append(f"{reply['id']} was answered wrong: {reply.get('error')}")
    return faults


# Many widgets, and many changes.


class Kept(NamedTuple):
    """What a process keeps: bytes, widgets that ipywidgets knows, and what listens to the widget that is there."""

    memory: float
    widgets: int
    listeners: int


def kept(w: AttentionWidget | None = None) -> Kept:
    gc.collect()
    listeners = [] if w is None else [*w._trait_notifiers.values(), {"msg": w._msg_callbacks.callbacks}]
    return Kept(status("VmRSS"), len(_instances), sum(len(some) for one in listeners for some in one.values()))


def open_and_close(count: int, make: Target = middle) -> tuple[Kept, Kept]:
    """Open and close widgets in turn; return the memory kept after a tenth of them, and at the end.

    Raises:
        Fault: a widget is still there.
    """
    early = Kept(0, 0, 0)
    for n in range(count):
        w = make()
        w.head, w.query, w.view = 1, 3, ("stages", "graph", "heads", "text")[n % 4]
        gone, _ = weakref.ref(w), w.close()
        del w
        if n == count // 10:
            early = kept()
    if gone() is not None and gc.collect() is not None and gone() is not None:
        raise Fault("the last widget is still there, though it was closed and nobody has it")
    return early, kept()


def change_heads(count: int, make: Target = middle) -> tuple[Kept, Kept]:
    """Change the head of a widget; return what was kept after a tenth of the changes, and at the end."""
    w = make()
    early = Kept(0, 0, 0)
    for n in range(count):
        w.set_state({"head": n % 4, "query": n % 19})
        if n == count // 10:
            early = kept(w)
    late = kept(w)
    w.close()
    return early, late


def tell_kept(what: str, early: Kept, late: Kept) -> list[Figure]:
    """Print what was kept more than before, and return it."""
    grown = late.memory - early.memory
    widgets, listeners = late.widgets - early.widgets, late.listeners - early.listeners
    print(f"{what}: {grown / 1e6:+.1f} MB, {widgets:+} widgets, {listeners:+} listeners", flush=True)
    return [
        Figure(f"{what}, grown", max(0.0, grown), "bytes", wanted=GROWTH),
        Figure(f"{what}, widgets left", max(0, widgets), "", wanted=0),
        Figure(f"{what}, listeners left", max(0, listeners), "", wanted=0),
    ]


def tell_faults(what: str, faults: list[str]) -> list[Figure]:
    """Print what went wrong, and return how much."""
    print(f"{what}: {len(faults) or 'no'} faults", flush=True)
    for fault in faults[:20]:
        print(f"    {fault}", flush=True)
    return [Figure(f"{what}, faults", len(faults), "", wanted=0)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=list(TARGETS))
    parser.add_argument("--round", type=int, help="only this one, of --only")
    parser.add_argument("--log", type=Path, help="a line of JSON for each round; rounds that it has are not run again")
    parser.add_argument("--stopped", type=int, default=STOPPED, help="messages that are interrupted, at the end")
    parser.add_argument("--asked", type=int, default=ASKED, help="questions of four threads, at the end")
    parser.add_argument("--opened", type=int, default=OPENED, help="widgets at the end")
    parser.add_argument("--changed", type=int, default=CHANGED, help="changes of a head at the end")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    give_back_at_once()
    if asked.round is not None and asked.only is None:
        parser.error("--round is one of a kind of widget: give --only as well")
    rounds = rounds_of(asked.messages, asked.only)
    if asked.round is not None:
        rounds = [Round(asked.only, asked.round, min(ROUND, asked.messages))]
    results = run_all(rounds, asked.seed, asked.log)
    figures, faults = tell(results), sum(one["fault"] is not None for one in results)
    if asked.only is None:
        many = f"{asked.stopped:,} messages"
        figures += tell_faults(f"{many} interrupted", stop(asked.stopped, asked.seed, KeyboardInterrupt))
        figures += tell_faults(f"{many} without memory", stop(asked.stopped, asked.seed, MemoryError))
        figures += tell_faults(f"{asked.asked:,} questions of four threads", ask_in_threads(asked.asked, asked.seed))
        faults += sum(round(one.value) for one in figures if one.name.endswith(", faults"))
        figures += tell_kept(f"{asked.opened} widgets opened and closed", *open_and_close(asked.opened))
        figures += tell_kept(f"{asked.changed} changes of the head", *change_heads(asked.changed))
    total = sum(one["sent"] for one in results)
    print(f"\n{total:,} messages and states, {faults or 'no'} faults")
    return finish(asked.json, figures, results) if not faults else 1


if __name__ == "__main__":
    raise SystemExit(main())
