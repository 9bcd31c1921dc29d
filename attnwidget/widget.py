"""`AttentionWidget`: the traits that the front-end draws from, checked at the door, kept in step with the tensors."""

from __future__ import annotations

import pathlib
import threading
import uuid
from typing import Any

import anywidget
import traitlets
from torch import Tensor

from . import pyramid, requests, wire
from .attention import Attention
from .places import as_index
from .source import STAGES
from .stack import AttentionStack, stack_layers
from .tensors import check_tokens, refuse_unknown
from .traits import Choice, ColorRange, Index, NotThere, WrongType, WrongValue

STATIC = pathlib.Path(__file__).parent / "static"
PICTURE_SIZE = 512  # cells along a side, at most
THUMBNAIL_SIZE = 32
PLURALS = {"layer": "layers", "batch": "samples", "head": "heads", "query": "queries", "key": "keys"}
SELECTION = tuple(PLURALS)
LOOKS = ("view", "stage", "pool", "color_scale", "color_range", "palette", "theme", "layout")
SHOW = ("title", "tokens", "key_tokens", *SELECTION, *LOOKS)  # the keywords about showing, of every way to make one
TENSOR_KEYWORDS = ("mask", "mask_means", "mask_dims", "is_causal", "scale", "dims")
FOLLOWED = ("layer", "batch", "head", "stage", "pool")  # a change of these needs another picture
FROM_KERNEL = ("uid", "title", "facts", "picture", "thumbnails", "tokens", "key_tokens")  # a front-end only reads these
NO_PICTURE = {"query_bin": 1, "key_bin": 1, "low": None, "high": None, "values": None, "blocked": None}


class AttentionWidget(anywidget.AnyWidget):
    """Show the attention of q, k and v in the notebook: exact, clickable, at any length.

    Args:
        q: queries, (Q, D), (B, Q, D), (B, H, Q, D), with layers (L, B, H, Q, D) or a list with a tensor for each.
        k: keys, as q, with K for Q and G for H.
        v: values, as k, with Dv for D; may be left out.
        mask, mask_means, mask_dims, is_causal, scale, dims: as in `Attention`.
        tokens: a string for each query, or a list of such lists, one for each sample of the batch.
        key_tokens: the same for the keys; taken from `tokens` where there are as many keys as queries.
        title: a line above the picture.
        layer, batch, head: what is shown first.
        query, key: the pinned pair; None where nothing is pinned.
        stage: "scores", "scaled", "masked" or "weights".
        pool: "max" or "mean", where a cell of the picture stands for several of the matrix.
        color_scale: "linear" or "log"; color_range: "head", "row", "unit" or (low, high).
        palette: "attnwidget" or "viridis"; theme: "auto", "light", "dark" or "contrast".

    Raises:
        ValueError, TypeError: an input that cannot be shown, with what was wanted instead.
        IndexError: a layer, batch, head, query or key that is not there.

    The softmax is that of Vaswani et al. 2017, eq. 1. Every argument from `tokens` on is a trait of the same name: set
    it and the picture follows, click and it follows the picture.

    >>> import torch
    >>> q, k, v = torch.randn(3, 1, 2, 4, 8)
    >>> w = AttentionWidget(q, k, v, tokens=["the", "bank", "lent", "money"], head=1)
    >>> w.query = 2
    >>> w.weights(2).shape
    torch.Size([4])
    """

    _esm = STATIC / "widget.js"
    _css = STATIC / "widget.css"

    uid = traitlets.Unicode().tag(sync=True)
    title = traitlets.Unicode("", help="A line above the picture.").tag(sync=True)

    layer = Index(help="The selected layer.").tag(sync=True)
    batch = Index(help="The selected sample of the batch.").tag(sync=True)
    head = Index(help="The selected head.").tag(sync=True)
    query = Index(None, allow_none=True, help="The pinned query, or None.").tag(sync=True)
    key = Index(None, allow_none=True, help="The pinned key, or None.").tag(sync=True)

    view = Choice("heatmap", help="How the attention is drawn.").tag(sync=True)
    stage = Choice("weights", *(s for s in STAGES if s != "weights"), help="Which stage is shown.").tag(sync=True)
    pool = Choice("max", "mean", help="What a cell shows that stands for several.").tag(sync=True)
    color_scale = Choice("linear", "log", help="From number to colour.").tag(sync=True)
    color_range = ColorRange(help="What the colours span.").tag(sync=True)
    palette = Choice("attnwidget", "viridis", help="The colours.").tag(sync=True)
    theme = Choice("auto", "light", "dark", "contrast", help="The page's theme, or one of your own.").tag(sync=True)

    tokens = traitlets.Any(None, help="The queries' tokens: one list, or one for each sample.").tag(
        sync=True, to_json=lambda value, widget: wire.encode_tokens(widget._sample_of(value, "queries"))
    )
    key_tokens = traitlets.Any(None, help="The keys' tokens; None: as the queries'.").tag(
        sync=True, to_json=lambda value, widget: wire.encode_tokens(widget._sample_of(value, "keys"))
    )

    facts = traitlets.Dict(help="Sizes, dtype and device of the selected layer.").tag(sync=True)
    picture = traitlets.Dict(help="The selected head, at most 512 × 512.").tag(sync=True)
    thumbnails = traitlets.Dict(help="All heads of the selected layer, small.").tag(sync=True)

    def __init__(
        self,
        q: Any,
        k: Any,
        v: Any = None,
        *,
        mask: Any = None,
        mask_means: str | None = None,
        mask_dims: str | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        dims: str | None = None,
        **show: Any,
    ) -> None:
        refuse_unknown(show, [*SHOW, *TENSOR_KEYWORDS])
        keywords = {"mask": mask, "mask_means": mask_means, "mask_dims": mask_dims}
        keywords |= {"is_causal": is_causal, "scale": scale, "dims": dims}
        if isinstance(q, list | tuple) or getattr(q, "ndim", 0) == 5:
            self._open(stack_layers(q, k, v, **keywords), show)
        else:
            self._open(Attention(q, k, v, **keywords), show)

    @classmethod
    def from_attention(cls, attention: Attention | AttentionStack, **show: Any) -> AttentionWidget:
        """Show an `Attention` or an `AttentionStack` that is there already; keywords as for the widget itself.

        >>> import torch
        >>> att = Attention(*torch.randn(3, 4, 8), is_causal=True)
        >>> AttentionWidget.from_attention(att, tokens=["the", "bank", "lent", "money"])
        AttentionWidget(layer 0 of 1, head 0 of 1, 4 queries × 4 keys)
        """
        if not isinstance(attention, Attention | AttentionStack):
            raise TypeError(
                f"attention is {type(attention).__name__}: give an Attention or an AttentionStack, "
                "or call AttentionWidget(q, k, v) with tensors"
            )
        refuse_unknown(show, SHOW)
        widget = cls.__new__(cls)
        widget._open(attention, show)
        return widget

    @property
    def attention(self) -> Attention | AttentionStack:
        """The `Attention` or `AttentionStack` that is shown."""
        return self._attention

    def weights(self, query: int) -> Tensor:
        """The exact attention weights of one query in the selected head, over all keys.

        Args:
            query: its position; negative counts from the end.

        Returns:
            (K,), float32, or float64 where q is.

        Raises:
            IndexError: there is no such query.
        """
        return self._selected.block("weights", batch=self.batch, head=self.head, queries=query)[0]

    def __repr__(self) -> str:
        shape = self._selected.shape
        return (
            f"AttentionWidget(layer {self.layer} of {len(self._stack)}, head {self.head} of {shape.H}, "
            f"{shape.Q:,} queries × {shape.K:,} keys)"
        )

    # Opening: whatever can be refused is refused before the front-end hears of a widget.

    def _open(self, attention: Attention | AttentionStack, show: dict[str, Any]) -> None:
        if not (STATIC / "widget.js").exists():
            raise FileNotFoundError(
                "the front-end is not built: run `make bundle` in the checkout, or install attnwidget from a wheel"
            )
        self._attention = attention
        self._stack = attention if isinstance(attention, AttentionStack) else AttentionStack([attention])
        self._guard = threading.RLock()  # a front-end's message may come on another thread while a cell runs
        self._sent: dict[str, Any] = {}  # which selection each derived trait was last made for
        super().__init__(uid=uuid.uuid4().hex, **show)

    def open(self) -> None:
        """Called by ipywidgets once all traits have passed their checks: the picture goes with the opening state."""
        self._refresh()
        self.on_msg(self._receive)
        self.observe(lambda change: self._refresh(), FOLLOWED)
        super().open()

    # The selection: checked against the tensors, whoever sets it.

    @property
    def _selected(self) -> Attention:
        return self._stack[self.layer]

    def _there_are(self, name: str) -> int:
        if name == "layer":
            return len(self._stack)
        shape = self._stack[min(self.layer, len(self._stack) - 1)].shape
        return {"batch": shape.B, "head": shape.H, "query": shape.Q, "key": shape.K}[name]

    @traitlets.validate("layer", "batch", "head", "query", "key")
    def _is_there(self, proposal: Any) -> int | None:
        name, value = proposal["trait"].name, proposal["value"]
        if value is None:
            return None
        try:
            return as_index(value, self._there_are(name), name, PLURALS[name])
        except IndexError as error:
            raise NotThere(str(error)) from None

    @traitlets.validate("tokens", "key_tokens")
    def _fits(self, proposal: Any) -> Any:
        name, shape = proposal["trait"].name, self._stack[min(self.layer, len(self._stack) - 1)].shape
        try:
            check_tokens(proposal["value"], shape.B, shape.Q if name == "tokens" else shape.K, name)
        except TypeError as error:
            raise WrongType(str(error)) from None
        except ValueError as error:
            raise WrongValue(str(error)) from None
        return proposal["value"]

    def _sample_of(self, tokens: Any, side: str) -> list[str] | None:
        """The selected sample's tokens, or None where the selected layer has another length."""
        shape = self._selected.shape
        length = shape.Q if side == "queries" else shape.K
        if tokens is None and side == "keys" and shape.Q == shape.K:
            tokens = self.tokens
        try:
            samples = check_tokens(tokens, shape.B, length, "tokens")
        except ValueError:  # they were checked for another layer
            return None
        return None if samples is None else samples[self.batch]

    # Keeping the derived traits in step with the selection.

    def _refresh(self) -> None:
        """Bring facts, thumbnails, tokens and picture to the selection: each only where its selection has changed."""
        with self._guard, self.hold_sync():
            for name in ("batch", "head", "query", "key"):  # a layer may have fewer of them than the last one
                value = getattr(self, name)
                if value is not None and value >= self._there_are(name):
                    setattr(self, name, None if name in ("query", "key") else 0)
            if self._is_new("facts", self.layer):
                self.facts = self._make_facts()
            if self._is_new("tokens", (self.layer, self.batch)):
                self.send_state(["tokens", "key_tokens"])
            if self._is_new("thumbnails", (self.layer, self.batch)):
                self.thumbnails = self._make_thumbnails()
            if self._is_new("picture", (self.layer, self.batch, self.head, self.stage, self.pool)):
                self.picture = self._make_picture()

    def _is_new(self, name: str, selection: Any) -> bool:
        is_new = self._sent.get(name) != selection
        self._sent[name] = selection
        return is_new

    def _make_facts(self) -> dict[str, Any]:
        att, shape = self._selected, self._selected.shape
        return {
            "layers": list(self._stack.names),
            "batches": shape.B,
            "heads": shape.H,
            "groups": shape.G,
            "queries": shape.Q,
            "keys": shape.K,
            "head_size": shape.D,
            "value_size": shape.Dv,
            "dtype": str(att.dtype).removeprefix("torch."),
            "device": str(att.device),
            "is_causal": att.is_causal,
            "stages": list(att.stages),
        }

    def _make_thumbnails(self) -> dict[str, Any]:
        heads = (self._thumbnail(head) for head in range(self._selected.shape.H))
        values = wire.encode_thumbnails((small.values, small.allowed) for small in heads)
        return {"layer": self.layer, "batch": self.batch, "values": values}

    def _thumbnail(self, head: int) -> pyramid.Overview:
        att, size = self._selected, THUMBNAIL_SIZE
        if att.shape.Q * att.shape.K <= PICTURE_SIZE * PICTURE_SIZE:
            return pyramid.overview(att, self.batch, head, size=size)
        return pyramid.sampled(att, self.batch, head, rows=size, columns=size)

    def _make_picture(self) -> dict[str, Any]:
        of = {name: getattr(self, name) for name in ("layer", "batch", "head", "stage", "pool")}
        shape = self._selected.shape
        picture = {**of, "queries": shape.Q, "keys": shape.K}
        try:
            return picture | self._look_at(**of)
        except Exception as error:  # out of memory, a lost device: the widget says so and stays usable
            if self.comm is None:
                raise
            return picture | NO_PICTURE | {"error": str(error) or type(error).__name__}

    def _look_at(self, layer: int, batch: int, head: int, stage: str, pool: str) -> dict[str, Any]:
        seen = pyramid.overview(self._stack[layer], batch, head, size=PICTURE_SIZE, pool=pool, stage=stage)
        blocked = ~seen.allowed if stage in requests.MASKED_STAGES and not bool(seen.allowed.all()) else None
        finite = seen.values[seen.values.isfinite() if blocked is None else seen.values.isfinite() & ~blocked]
        values, bits = wire.encode_picture(seen.values, blocked, signed=stage != "weights")
        return {
            "query_bin": seen.query_bin,
            "key_bin": seen.key_bin,
            "low": float(finite.min()) if finite.numel() else None,
            "high": float(finite.max()) if finite.numel() else None,
            "values": values,
            "blocked": bits,
            "error": None,
        }

    # What the front-end sends: untrusted, and never a traceback in the kernel's log.

    def set_state(self, sync_data: dict[str, Any]) -> None:
        """Take what a front-end has set; what cannot be is put back there, with the reason."""
        wanted = {name: value for name, value in sync_data.items() if name not in FROM_KERNEL}
        try:
            super().set_state(wanted)
        except traitlets.TraitError as error:
            self.send({"refused": str(error)})
            self.send_state([name for name in wanted if self.has_trait(name)])

    def _receive(self, _: Any, content: Any, __: Any) -> None:
        with self._guard:
            reply = requests.answer(self._stack, content, self._retry)
        if reply is not None:
            self.send(*reply)

    def _retry(self) -> None:
        self._sent.clear()
        self._refresh()
