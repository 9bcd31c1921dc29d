"""`AttentionWidget`: the traits that the front-end draws from, checked at the door, kept in step with the tensors."""

from __future__ import annotations

import base64
import contextlib
import functools
import math
import os
import pathlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import anywidget
import traitlets
from torch import Tensor

from . import images, ladder, picture, pyramid, requests, shown, slices, survey, wire
from .attention import Attention, Shape
from .check import examine
from .desk import Desk
from .explain import Explanation
from .export import to_html
from .heads import Glance, sample
from .levels import Key, Levels, Shelf
from .links import strongest
from .metrics import NAMES as METRICS
from .metrics import as_ids
from .parity import deviation
from .places import as_index
from .saved import LIMIT, Saved
from .sketches import Sketches
from .slices import Slices
from .source import STAGES
from .spelling import Spelling, spelling_of, word_ids
from .stack import AttentionStack, stack_layers
from .still import png_of
from .survey import ALL_HEADS, Surveys
from .tensors import as_size, check_tokens, refuse_unknown
from .tiles import PASS, Views
from .traits import (
    Choice,
    ColorRange,
    Heads,
    Index,
    NotThere,
    Pin,
    Pins,
    Text,
    Threshold,
    WhatIf,
    WrongType,
    WrongValue,
    refusing,
)
from .vocabulary import Vocabulary
from .what_if import Layers, what_if
from .words import Bounds, merged_tokens
from .words import bounds as word_bounds

STATIC = pathlib.Path(__file__).parent / "static"
THUMBNAIL_SIZE = 32
ROOM = 1 << 20  # cells of one head's thumbnail that are held at once; of more, block by block
THUMBNAIL_CELLS = 1 << 29  # of the sampled rows of all heads together: fewer rows of very long ones
PLURALS = {"layer": "layers", "batch": "samples", "head": "heads", "query": "queries", "key": "keys"}
SELECTION = tuple(PLURALS)
LOOKS = ("view", "stage", "pool", "color_scale", "color_range", "palette", "theme", "top_k", "threshold", "direction")
HEADS_VIEW = ("bar", "order", "combine")  # how all heads are shown, and several as one
LISTS = ("heads", "pins")  # several heads, several pinned places
SHOW = (
    "title",
    "tokens",
    "key_tokens",
    *SELECTION,
    *LISTS,
    *LOOKS,
    *HEADS_VIEW,
    "what_if",
    "pieces",
    "tokenizer",
    "grid",
    "grid_side",
    "grid_start",
    "image",
    "layout",
)  # keywords of every way to make one
FROM_FRONT_END = (*SELECTION, *LISTS, *LOOKS, *HEADS_VIEW, "what_if", "pieces")  # others a front-end only reads
TENSOR_KEYWORDS = ("mask", "mask_means", "mask_dims", "bias", "is_causal", "window", "scale", "softcap", "dims")
FOLLOWED = ("layer", "batch", "head", "stage", "pool")  # a change of these needs another picture
# And of these other links, or stages.
LINKED = ("view", "heads", "combine", "top_k", "direction", "query", "key", "what_if", "pieces")
LINKS = 3  # of every token, where nothing is pinned
LINK_BYTES = 8  # a partner and a weight
TOGETHER = 4  # several heads as one: of so many such sets the levels are kept
LINK_CELLS = 4096 * 4096  # of a head, beyond which not all its links are looked for
Derived = dict[str, tuple[tuple[Any, ...], Callable[..., Any]]]
CHECKED = 8  # lists of tokens that are known to be right
CHECKED_AT_ONCE = 1 << 20  # cells of a head, checked in about 30 ms; beyond, a moment later where a loop runs
UNBIDDEN = 1 << 22  # and beyond that only when asked to
EXAMINED = 256  # heads of which the findings are kept
PAUSE = 0.4  # seconds without another change, as while a scale is dragged, until what can wait is made
AFTERWARDS = -1.0  # urgency of what can wait a moment: before the exact picture of a long head
LEAST_INTERVAL = 0.08  # seconds from one update of the tensors to the next that is sent

Examined = tuple[list[dict[str, Any]], dict[str, Any]]  # the findings about a head, and how far others' results are


class AttentionWidget(anywidget.AnyWidget):
    """Show the attention of q, k and v in the notebook: exact, clickable, at any length.

    Args:
        q: queries, (Q, D), (B, Q, D), (B, H, Q, D), with layers (L, B, H, Q, D) or a list with a tensor for each.
        k: keys, as q, with K for Q and G for H.
        v: values, as k, with Dv for D; may be left out.
        mask, mask_means, mask_dims, bias, is_causal, window, scale, softcap, dims: as in `Attention`.
        tokens: a string for each query, or a list of such lists, one for each sample of the batch; with a tokenizer
            its ids as well, a list, an array or a tensor (Q,) or (B, Q).
        key_tokens: the same for the keys; taken from `tokens` where there are as many keys as queries.
        tokenizer: whose ids the tokens are; of transformers, tokenizers, sentencepiece, tiktoken, or what has `decode`.
        pieces: "pieces", or "words": their weights summed and averaged as in `Attention.merge`; positions are then
            those of words.
        grid: (rows, columns) of image patches among the positions; they are the last ones, or begin at `grid_start`, of
            the queries, the keys or both (`grid_side`).
        image: what was cut into them, as it went in: a path, an image of Pillow, or an array (H, W, 3); a list with one
            for each sample.
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

    # Traits with the text, not paths: anywidget would watch those, and keep every widget alive to be told of changes.
    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)
    _from_front_end: tuple[str, ...] = FROM_FRONT_END
    _ids: tuple[list[str], Tensor] | None = None  # the tokens that were last asked for, as numbers

    still = True  # whether a saved notebook holds a small picture too, for GitHub and mails: of all widgets, or of one

    uid = traitlets.Unicode().tag(sync=True)
    title = Text(help="A line above the picture.").tag(sync=True)

    layer = Index(help="The selected layer.").tag(sync=True)
    batch = Index(help="The selected sample of the batch.").tag(sync=True)
    head = Index(help="The selected head.").tag(sync=True)
    query = Index(None, allow_none=True, help="The pinned query, or None.").tag(sync=True)
    key = Index(None, allow_none=True, help="The pinned key, or None.").tag(sync=True)

    heads = Heads(help="The heads that the graph shows; `head` is one of them.").tag(sync=True)
    pins = Pins(help="All pinned places (query, key); the last is `query`, `key`.").tag(sync=True)

    view = Choice("heatmap", "graph", "text", "image", "heads", "stages", help="How the attention is drawn.").tag(
        sync=True
    )
    stage = Choice("weights", *(s for s in STAGES if s != "weights"), help="Which stage is shown.").tag(sync=True)
    pool = Choice("max", "mean", help="What a cell shows that stands for several.").tag(sync=True)
    color_scale = Choice("linear", "log", help="From number to colour.").tag(sync=True)
    color_range = ColorRange(help="What the colours span.").tag(sync=True)
    palette = Choice("attnwidget", "viridis", help="The colours.").tag(sync=True)
    theme = Choice("auto", "light", "dark", "contrast", help="The page's theme, or one of your own.").tag(sync=True)

    top_k = Index(None, allow_none=True, help="Draw only so many links of each token; None: all.").tag(sync=True)
    threshold = Threshold(help="Draw no link weaker than this.").tag(sync=True)
    what_if = WhatIf(help="Other rules to see the same tensors under; {} is as they are.").tag(sync=True)
    direction = Choice("query", "key", help="What a query attends to, or which queries attend to a key.").tag(sync=True)

    bar = Choice(*METRICS, help="The metric under each head, where all heads are shown.").tag(sync=True)
    order = Choice("layer", *METRICS, help="By what all heads are ordered.").tag(sync=True)
    combine = Choice("none", "mean", "max", help="Show several `heads` as one.").tag(sync=True)

    tokens = traitlets.Any(None, help="The queries' tokens: one list, or one for each sample.").tag(
        sync=True, to_json=lambda value, widget: widget._tokens_message("query")
    )
    key_tokens = traitlets.Any(None, help="The keys' tokens; None: as the queries'.").tag(
        sync=True, to_json=lambda value, widget: widget._tokens_message("key")
    )

    tokenizer = traitlets.Any(None, help="Whose ids the tokens are, where they are ids.")
    pieces = Choice("pieces", "words", help="Whether tokens are shown one by one or merged into words.").tag(sync=True)
    grid = traitlets.Any(None, help="Rows and columns of image patches, or None.").tag(
        sync=True, to_json=lambda value, widget: widget._grid_message()
    )
    grid_side = Choice(*images.SIDES, help="Which positions are patches: queries, keys, or both.")
    grid_start = Index(None, allow_none=True, help="The position of the first patch; None: they are the last ones.")
    image = traitlets.Any(None, help="The image that the patches are of: one, or one for each sample.").tag(
        sync=True, to_json=lambda value, widget: widget._image_message()
    )

    facts = traitlets.Dict(help="Sizes, dtype and device of the selected layer.").tag(sync=True)
    picture = traitlets.Dict(help="The selected head, at most 512 × 512.").tag(
        sync=True, to_json=lambda value, widget: widget._as_far_as_known(value)
    )
    thumbnails = traitlets.Dict(None, allow_none=True, help="All heads of the selected layer, small.").tag(sync=True)
    progress = traitlets.Dict(None, allow_none=True, help="How far the exact picture is; None once it is there.").tag(
        sync=True
    )
    links = traitlets.Dict(None, allow_none=True, help="The strongest links of the chosen heads.").tag(sync=True)

    findings: Any = traitlets.List(default_value=None, allow_none=True, help="What is likely wrong with the head.").tag(
        sync=True
    )
    deviation = traitlets.Dict(None, allow_none=True, help="How far torch's own output is, and the original's.").tag(
        sync=True
    )
    stages = traitlets.Dict(None, allow_none=True, help="All stages of the selected head, small.").tag(sync=True)
    survey = traitlets.Dict(None, allow_none=True, help="All heads of all layers, small.").tag(sync=True)
    pair = traitlets.Dict(None, allow_none=True, help="The pinned pair's way through the stages.").tag(sync=True)

    @traitlets.default("_esm")
    def _script(self) -> str:
        return _bundled("widget.js")

    @traitlets.default("_css")
    def _style(self) -> str:
        return _bundled("widget.css")

    def __init__(
        self,
        q: Any,
        k: Any,
        v: Any = None,
        *,
        mask: Any = None,
        mask_means: str | None = None,
        mask_dims: str | None = None,
        bias: Any = None,
        is_causal: bool = False,
        window: Any = None,
        scale: Any = None,
        softcap: Any = None,
        dims: str | None = None,
        **show: Any,
    ) -> None:
        refuse_unknown(show, [*SHOW, *TENSOR_KEYWORDS])
        keywords = {"mask": mask, "mask_means": mask_means, "mask_dims": mask_dims, "bias": bias}
        keywords |= {"is_causal": is_causal, "window": window, "scale": scale, "softcap": softcap, "dims": dims}
        self._keywords = keywords
        self._open(_attention_of(q, k, v, keywords), show)

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
        widget._keywords = {}
        widget._open(attention, show)
        return widget

    @classmethod
    def from_weights(cls, weights: Any, v: Any = None, *, dims: str | None = None, **show: Any) -> AttentionWidget:
        """Show weights that are in hand, such as a model's `output.attentions`; keywords as for the widget itself.

        Args:
            weights: (Q, K), (B, Q, K), (B, H, Q, K), with layers (L, B, H, Q, K), or a list with a tensor for each.
            v: values, for outputs and contributions; with layers, as many.
            dims: other orders of axes, as in `Attention.from_weights`.

        Raises:
            ValueError, TypeError: as `Attention.from_weights` does.

        >>> import torch
        >>> AttentionWidget.from_weights(torch.randn(2, 1, 4, 6, 6).softmax(-1), layer=1)
        AttentionWidget(layer 1 of 2, head 0 of 4, 6 queries × 6 keys)
        """
        if isinstance(weights, list | tuple) or getattr(weights, "ndim", 0) == 5:
            values = [None] * len(weights) if v is None else v
            if len(values) != len(weights):
                raise ValueError(f"v has {len(values)} layers but weights have {len(weights)}: give one for each layer")
            layers = zip(weights, values, strict=True)
            stack = AttentionStack([Attention.from_weights(w, v, dims=dims) for w, v in layers])
            return cls.from_attention(stack, **show)
        return cls.from_attention(Attention.from_weights(weights, v, dims=dims), **show)

    @property
    def attention(self) -> Attention | AttentionStack:
        """The `Attention` or `AttentionStack` that is shown; assign another and the picture follows.

        What is pinned and chosen stays where it is still there; tokens whose number no longer fits are not shown.
        """
        return self._attention

    @attention.setter
    def attention(self, attention: Attention | AttentionStack) -> None:
        if not isinstance(attention, Attention | AttentionStack):
            raise TypeError(
                f"attention is {type(attention).__name__}: give an Attention or an AttentionStack, "
                "or call update(q, k, v) with tensors"
            )
        with self._guard:
            self._cancel()
            self._hold_anew(attention)
            self._refresh_soon()

    def update(self, q: Any, k: Any, v: Any = None, **keywords: Any) -> None:
        """Show other tensors in the same widget, as a training loop makes them; nothing of the old ones is kept.

        Args:
            q, k, v: as for the widget.
            keywords: mask, is_causal and the others about tensors; those not given stay as they were.

        Raises:
            ValueError, TypeError: as the widget does; then it goes on showing what it showed.

        Updates that come faster than they can be drawn are skipped, all but the last.

        >>> import torch
        >>> w = AttentionWidget(*torch.randn(3, 4, 8), is_causal=True)
        >>> w.update(*torch.randn(3, 4, 8))
        >>> int(w.weights(0).argmax())
        0
        """
        refuse_unknown(keywords, TENSOR_KEYWORDS)
        merged = self._keywords | keywords
        self.attention = _attention_of(q, k, v, merged)
        self._keywords = merged

    def weights(self, query: int) -> Tensor:
        """The exact attention weights of one query in the selected head, over all keys.

        Args:
            query: its position; negative counts from the end.

        Returns:
            (K,), float32, or float64 where q is.

        Raises:
            IndexError: there is no such query.
        """
        query = as_index(query, self._selected.shape.Q, "query", "queries")
        return self._selected.block("weights", batch=self.batch, head=self.head, queries=query)[0]

    def metrics(self, batch: int | None = None, *, rows: int | None = None) -> list[dict[str, Any]]:
        """What every head attends to, in a few numbers: a list of records, as `pandas.DataFrame` takes it.

        Args:
            batch: only this sample; None for all.
            rows: look at so many queries of each head, evenly spread; None for those of the heads view: all while all
                heads together have at most 2²⁸ cells, else up to 32 of each. Each is exact.

        Returns:
            A dict for each head: layer, name, batch, head, the fields of `Metrics`, and rows, of how many queries they
            are means. What is not known is None.

        Raises:
            IndexError: there is no such sample.

        >>> import torch
        >>> w = AttentionWidget(*torch.zeros(2, 1, 2, 4, 8), is_causal=True)
        >>> [(one["layer"], one["head"], one["mean_distance"]) for one in w.metrics()]
        [(0, 0, 0.75), (0, 1, 0.75)]
        """
        batches = None if batch is None else [as_index(batch, self._there_are("batch"), "batch", "batches")]
        rows = None if rows is None else as_size(rows, "rows")
        return survey.records(self._layers, self._stack.names, batches, rows, self._ids_of)

    def finish(self, progress: bool = False) -> None:
        """Compute the exact picture of the selected head now, where it is still a sampled one: see `progress`.

        Of the heads view those that are missing, too. In a notebook it comes by itself between cells; in a script, or
        before saving, call this. `progress=True` draws a bar with the time left, if tqdm is installed. Once interrupted
        it goes on where it was.

        >>> import torch
        >>> w = AttentionWidget(*torch.randn(2, 10_000, 4))
        >>> w.picture["sampled"]["every"]
        24
        >>> w.finish()
        >>> w.picture["sampled"], w.progress
        (None, None)
        """
        with self._guard:
            self._surveys.finish()
        with contextlib.ExitStack() as stack:
            bar = stack.enter_context(pyramid.progress_bar()(total=100, unit="%", desc="picture")) if progress else None
            while (refinement := self._refinement) is not None:
                steps = refinement.steps()
                while True:
                    with self._guard:  # a front-end's message may come in between
                        if self._refinement is not refinement or next(steps, steps) is steps:
                            break
                    if bar is not None:
                        bar.update(round(100 * refinement.share) - bar.n)
            if bar is not None:
                bar.update(100 - bar.n)

    def to_html(
        self,
        path: str | os.PathLike[str],
        *,
        title: str | None = None,
        layers: Any = None,
        heads: Any = None,
        samples: Any = "selected",
        limit: int = LIMIT,
    ) -> pathlib.Path:
        """Write what is shown into one HTML file, which draws it without Jupyter, without Python and without a network.

        All views, pins, zoom and both themes work there. Up to 512 tokens every number is in the file, and up to 1,024
        cells of a head every step of every pair; of longer heads the picture is, and what is pinned. What else a reader
        asks for is said to be in the notebook.

        Args:
            path: of the file; one that is there is written over.
            title: a line above the picture, in the place of the widget's own.
            layers, heads, samples: which a reader can switch to: "selected", "all", or a list of numbers; what is
                selected is always among them. Where layers or heads are None: all, or as many as take 4 MiB at most.
            limit: bytes that the file may have.

        Returns:
            The path.

        Raises:
            ValueError: it would take more than `limit`.
            FileNotFoundError, IsADirectoryError: there is no such directory, or it is one.
            IndexError, TypeError: what is to be saved is not there.

        >>> import tempfile, torch
        >>> w = AttentionWidget(*torch.randn(3, 4, 8), tokens=["the", "bank", "lent", "money"])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     w.to_html(f"{folder}/bank.html").name
        'bank.html'
        """
        with self._guard:
            return to_html(self, path, title=title, layers=layers, heads=heads, samples=samples, limit=limit)

    def figure(self, *, width: float = 6.5, dpi: float = 200) -> Any:
        """What is shown, as a matplotlib figure: `w.figure().savefig("bank.svg")`, or .pdf, or .png.

        It is drawn in the widget's colours, on dark paper where `theme` is "dark"; text stays text in SVG and PDF.

        Args:
            width: inches; the height follows.
            dpi: dots per inch, of what is not drawn as lines.

        Returns:
            A `matplotlib.figure.Figure`.

        Raises:
            ImportError: matplotlib is not there; `pip install "attnwidget[figure]"` brings it.
            ValueError: there is nothing to draw, with the reason; or a width or dpi that cannot be.
        """
        from .figure import figure_of  # only who draws one needs matplotlib

        with self._guard:
            return figure_of(self, width=width, dpi=dpi)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The widget, and beside it a small picture for where no widget runs."""
        made = super()._repr_mimebundle_(**kwargs)
        still = self._still() if made is not None and self.still else None
        if made is None or still is None:
            return made
        data, metadata = made
        return {**data, "image/png": base64.b64encode(still).decode()}, metadata

    def _still(self) -> bytes | None:
        """A small PNG of the picture; None where there is none."""
        try:
            seen = shown.of_picture(self._as_far_as_known(self.picture))
            looks = {name: getattr(self, name) for name in ("color_scale", "color_range", "palette", "theme")}
            return png_of(seen, **looks)
        except Exception:  # displaying a widget must not fail for want of a picture of it
            return None

    def _save_more(self, saved: Saved) -> None:
        """What another kind of widget adds to a file."""

    def close(self) -> None:
        """Take the widget off the page, and forget what is under way."""
        if hasattr(self, "_guard"):
            with self._guard:
                self._cancel()
                self._slices.clear()
        super().close()

    def __repr__(self) -> str:
        shape = self._selected.shape
        return (
            f"AttentionWidget(layer {self.layer} of {len(self._stack)}, head {self.head} of {shape.H}, "
            f"{shape.Q:,} queries × {shape.K:,} keys)"
        )

    # Opening: whatever can be refused is refused before the front-end hears of a widget.

    def _open(self, attention: Attention | AttentionStack, show: dict[str, Any]) -> None:
        _bundled("widget.js")  # raises where there is none
        self._guard = threading.RLock()  # a front-end's message may come on another thread while a cell runs
        self._slices = Slices(self._guard)
        self._views = Views(self._slices, self.send)
        self._surveys = Surveys(self._slices, lambda found: self.set_trait("survey", found))
        self._refinement: picture.Refinement | None = None  # while the picture is a sampled one
        self._spelled: tuple[Any, Spelling | None] = (None, None)
        self._words: dict[tuple[int, int, int], tuple[Any, Bounds]] = {}  # of tokens, by who they are
        self._word_tokens: dict[tuple[int, int], tuple[Bounds, list[str], list[str]]] = {}
        self._hold(attention)
        self._version = 0  # of the tensors, which may be replaced
        self._later: threading.Timer | None = None
        self._last_update = -LEAST_INTERVAL
        self._made: dict[str, Any] = {}  # which selection each derived trait was last made for
        self._checked: dict[tuple[int, int, int], tuple[Any, list[list[str]] | None]] = {}  # tokens, by who they are
        self._examined: dict[tuple[Any, ...], Examined] = {}
        self._sketches = Sketches()
        self._was: dict[tuple[Any, ...], Explanation] = {}  # the explanation without other rules that was made last
        self._in_haste = self._changing = False  # while a front-end sets something, and while that is other rules
        self._told: dict[str, list[str] | None] = {}  # the tokens that were last sent
        self._vocabularies: dict[str, Vocabulary] = {}
        self._shown: tuple[Any, Any] = (None, None)  # the grid and the image that were last sent
        self._sent_image: tuple[Any, dict[str, Any] | None] = (None, None)  # the one that was encoded last
        show = {name: value for name, value in show.items() if value is not None or name not in ("query", "key")}
        super().__init__(uid=uuid.uuid4().hex, **show)

    def _hold(self, attention: Attention | AttentionStack) -> None:
        self._attention = attention
        self._whole = attention if isinstance(attention, AttentionStack) else AttentionStack([attention])
        self._stack = self._whole
        if self.pieces == "words":
            self._stack = AttentionStack([self._merge(*layer) for layer in enumerate(self._whole)], self._whole.names)
        self._layers = Layers(self._whole, self.what_if, self._merge if self.pieces == "words" else None)
        self._shelf = Shelf()
        self._levels: dict[int, Levels] = {}
        self._together: dict[tuple[int, str], Levels] = {}  # several heads as one, those that were shown last
        self._forget_heads()

    def open(self) -> None:
        """Called by ipywidgets once all traits have passed their checks: the picture goes with the opening state."""
        self._refresh()
        self.on_msg(self._receive)
        self.observe(lambda change: self._refresh(), [*FOLLOWED, *LINKED])
        self.observe(lambda change: self._send_soon("key_tokens"), "tokens")  # they may be the same
        self.observe(lambda change: self._check_anew(), ["tokens", "key_tokens", "tokenizer"])
        self.observe(lambda change: self._send_soon("grid"), ["grid_side", "grid_start"])
        super().open()

    # The selection: checked against the tensors, whoever sets it.

    @property
    def _selected(self) -> Attention:
        return self._layers[self.layer]

    def _there_are(self, name: str) -> int:
        if name == "layer":
            return len(self._stack)
        shape = self._selected.shape
        return {"batch": shape.B, "head": shape.H, "query": shape.Q, "key": shape.K}[name]

    @traitlets.validate("layer", "batch", "head", "query", "key")
    def _is_there(self, proposal: Any) -> int | None:
        return self._index(proposal["trait"].name, proposal["value"])

    def _index(self, name: str, value: int | None) -> int | None:
        if value is None:
            return None
        with refusing():
            return as_index(value, self._there_are(name), name, PLURALS[name])

    @traitlets.validate("stage")
    def _stage_is_there(self, proposal: Any) -> str:
        stage = str(proposal["value"])
        with refusing():  # also a layer set at the same time, that is not there
            self._selected.check_stage(stage)
        return stage

    @traitlets.validate("what_if")
    def _can_be(self, proposal: Any) -> dict[str, Any]:
        changes: dict[str, Any] = proposal["value"]
        with refusing():
            what_if(self._whole[self.layer], changes)
        return changes

    @traitlets.observe("what_if")
    def _see_anew(self, change: Any) -> None:
        """Under other rules all is another, as with other tensors."""
        with self._guard:
            self._cancel()
            self._hold(self._attention)
            self._version += 1
            self._made.clear()

    # Pieces merged into words.

    _merges = True  # a comparison does not

    @traitlets.validate("pieces")
    def _can_merge(self, proposal: Any) -> str:
        value = str(proposal["value"])
        if value == "words" and not self._merges:
            raise WrongValue("a comparison does not merge pieces: compare att.merge(words) of both sides")
        if value == "words" and self.tokens is None and self.key_tokens is None:
            raise WrongValue("pieces is 'words' but there are no tokens: give tokens= as well")
        return value

    @traitlets.observe("pieces")
    def _regroup(self, change: Any) -> None:
        """Positions are others now: what is pinned is the word that the piece is of, or a word's first piece."""
        with self._guard:
            self._cancel()
            pins = [
                (self._across("query", query, change["new"]), self._across("key", key, change["new"]))
                for query, key in self.pins
            ]
            self._hold_anew(self._attention)
            self.pins = pins

    def _hold_anew(self, attention: Attention | AttentionStack) -> None:
        self._hold(attention)
        self._version += 1
        self._sketches = Sketches()
        for kept in (self._made, self._examined, self._was):
            kept.clear()

    def _across(self, side: str, index: int | None, now: str) -> int | None:
        words = self._bounds_of(side, self.layer)
        if index is None or words is None:
            return index
        return words.word_of(index, self.batch) if now == "words" else words.first_of(index, self.batch)

    def _merge(self, layer: int, att: Attention) -> Attention:
        """A layer between words; as it is where no tokens fit it."""
        words, key_words = self._bounds_of("query", layer), self._bounds_of("key", layer)
        if words is None and key_words is None:
            return att
        return att.merge(words or range(att.shape.Q), key_words or range(att.shape.K))

    def _bounds_of(self, side: str, layer: int) -> Bounds | None:
        """The words of a layer's queries or keys; None where it has no tokens."""
        shape = self._whole[layer].shape
        samples = self._samples_of(side, shape)
        if samples is None:
            return None
        length = shape.Q if side == "query" else shape.K
        key = (id(samples), shape.B, length)
        if key not in self._words or self._words[key][0] is not samples:
            if len(self._words) >= CHECKED:
                self._words.clear()
            distinct = samples[:1] if all(one is samples[0] for one in samples) else samples
            ids = [word_ids(sample, self._spelling) for sample in distinct]
            self._words[key] = samples, word_bounds(ids, shape.B, length, "tokens", self._whole[layer].device)
        return self._words[key][1]

    @property
    def _spelling(self) -> Spelling | None:
        if self._spelled[0] is not self.tokenizer:  # a fast one writes out its whole vocabulary to tell
            self._spelled = self.tokenizer, spelling_of(self.tokenizer)
        return self._spelled[1]

    # Image patches among the positions.

    @traitlets.validate("grid")
    def _grid_fits(self, proposal: Any) -> tuple[int, int] | None:
        if proposal["value"] is None:
            return None
        with refusing():  # also a layer set at the same time, that is not there
            grid = images.as_grid(proposal["value"])
            shape = self._whole[self.layer].shape
            images.place(grid, self.grid_side, self.grid_start, shape.Q, shape.K)
        return grid

    @traitlets.validate("image")
    def _image_can_be_shown(self, proposal: Any) -> Any:
        with refusing():
            samples = images.as_images(proposal["value"], self._there_are("batch"))
            for one in samples or ():
                images.as_pixels(one)
                if one is proposal["value"]:  # the same for all samples
                    break
        return proposal["value"]

    def _grid_message(self) -> dict[str, Any] | None:
        """Where the selected layer has patches; None where they do not fit it, or tokens are merged."""
        if self.grid is None or self.pieces == "words":
            return None
        shape = self._whole[self.layer].shape
        try:
            return images.place(self.grid, self.grid_side, self.grid_start, shape.Q, shape.K)._asdict()
        except ValueError:  # it was checked for another layer
            return None

    def _image_message(self) -> dict[str, Any] | None:
        samples = images.as_images(self.image, self._there_are("batch")) if self.grid is not None else None
        image = None if samples is None else samples[min(self.batch, len(samples) - 1)]
        if self._sent_image[0] is not image:
            self._sent_image = image, images.encode_image(image)
        return self._sent_image[1]

    @traitlets.validate("heads")
    def _heads_are_there(self, proposal: Any) -> list[int | None]:
        return [self._index("head", head) for head in proposal["value"]]

    @traitlets.validate("pins")
    def _pins_are_there(self, proposal: Any) -> list[Pin]:
        return [(self._index("query", query), self._index("key", key)) for query, key in proposal["value"]]

    @traitlets.observe("head", "heads")
    def _keep_heads_together(self, change: Any) -> None:
        """`head` is one of `heads`: whichever was set last decides."""
        if self.head not in self.heads:
            if change["name"] == "head":
                self.heads = [self.head]
            else:
                self.head = self.heads[0]

    @traitlets.observe("query", "key", "pins")
    def _keep_pins_together(self, change: Any) -> None:
        """(`query`, `key`) is the last of `pins`: whichever was set last decides."""
        last = self.pins[-1] if self.pins else (None, None)
        if (self.query, self.key) == last:
            return
        if change["name"] == "pins":
            with self.hold_trait_notifications():
                self.query, self.key = last
        else:
            self.pins = [] if self.query is None and self.key is None else [(self.query, self.key)]

    @traitlets.validate("tokens", "key_tokens")
    def _fits(self, proposal: Any) -> Any:
        name = proposal["trait"].name
        try:
            shape = self._whole[self.layer].shape
            self._samples(proposal["value"], shape.B, shape.Q if name == "tokens" else shape.K, name)
        except IndexError as error:  # a layer set at the same time, that is not there
            raise NotThere(str(error)) from None
        except TypeError as error:
            raise WrongType(str(error)) from None
        except ValueError as error:
            raise WrongValue(str(error)) from None
        return proposal["value"]

    def _samples(self, tokens: Any, batches: int, length: int, name: str) -> list[list[str]] | None:
        """Tokens once checked, of which there may be millions: checked again only if they are others."""
        key = (id(tokens), batches, length)
        held, samples = self._checked.get(key, (None, None))
        if held is not tokens:
            samples = check_tokens(tokens, batches, length, name, self.tokenizer)
            if len(self._checked) >= CHECKED:
                self._checked.clear()
            self._checked[key] = tokens, samples
        return samples

    def _tokens_of(self, side: str, layer: int | None = None, batch: int | None = None) -> list[str] | None:
        """A sample's tokens, the selected one's unless said otherwise; None where the layer has another length."""
        layer = self.layer if layer is None else layer
        batch = self.batch if batch is None else batch
        samples = self._samples_of(side, self._whole[layer].shape)
        if samples is None or self._stack[layer] is self._whole[layer]:
            return None if samples is None else samples[batch]
        words = self._bounds_of(side, layer)
        assert words is not None
        kept = self._word_tokens.get((id(samples[batch]), batch))
        if kept is None or kept[0] is not words or kept[1] is not samples[batch]:
            if len(self._word_tokens) >= CHECKED:
                self._word_tokens.clear()
            kept = words, samples[batch], merged_tokens(samples[batch], words, batch)
            self._word_tokens[id(samples[batch]), batch] = kept
        return kept[2]

    def _samples_of(self, side: str, shape: Shape) -> list[list[str]] | None:
        """The tokens of all samples of a layer of this shape; None where it has another length."""
        only = self.key_tokens is not None or shape.Q != shape.K
        tokens = self.key_tokens if side == "key" and only else self.tokens
        try:
            return self._samples(tokens, shape.B, shape.Q if side == "query" else shape.K, "tokens")
        except ValueError:  # they were checked for another layer
            return None

    def as_strings(self, name: str) -> Any:
        """`tokens` or `key_tokens` as they were given; where those were ids, the tokenizer's words for them."""
        tokens = getattr(self, name)
        if tokens is None or self.tokenizer is None:
            return tokens
        shape = self._whole[self.layer].shape
        return self._samples(tokens, shape.B, shape.Q if name == "tokens" else shape.K, name)

    def _tokens_message(self, side: str) -> dict[str, Any] | None:
        """A sample's tokens, and how its vocabulary is written, where the tokenizer tells."""
        message, spelling = wire.encode_tokens(self._tokens_of(side)), self._spelling
        return message if message is None or spelling is None else {**message, "spelling": spelling}

    # Keeping the derived traits in step with the selection.

    def _refresh(self) -> None:
        """Bring facts, thumbnails, tokens and picture to the selection: each only where its selection has changed."""
        with self._guard, self.hold_sync():
            self._drop_what_is_gone()
            self._send_tokens()
            later = self._what_can_wait()
            for name in self._derived():
                if name not in later:
                    self._make(name)
            if later and self._slices.start("afterwards", self._afterwards(), AFTERWARDS):
                self._slices.hold_back(PAUSE if self._changing else slices.AFTER)

    def _derived(self) -> Derived:
        """The traits that follow from the others: of which selection each is, and what makes it."""
        of = tuple(getattr(self, name) for name in FOLLOWED)  # read once: another thread may set one meanwhile
        shown = (*of[:2], self._shown_head, *of[3:])
        return {
            "facts": (of[:1], self._make_facts),
            "stages": (of[:3] if self.view == "stages" else (), self._make_stages),
            "pair": (self._pair_wanted(*of[:3]), self._make_pair),
            "findings": (of[:3], self._make_findings),
            "deviation": (of[:3], self._make_deviation),
            "thumbnails": (of[:2], self._make_thumbnails),
            "links": (self._links_wanted(*of[:2]), self._make_links),
            "survey": (of[1:2] if self.view == "heads" else (), self._make_survey),
            "picture": (shown, self._make_picture),  # the last: it ends what waits
        }

    def _make(self, name: str) -> bool:
        """Bring one of them to the selection; False where it is there already."""
        of, make = self._derived()[name]
        if self._made.get(name) == of:
            return False
        setattr(self, name, make(*of))
        self._made[name] = of
        return True

    def _what_can_wait(self) -> tuple[str, ...]:
        """While a person waits, what is not in sight comes a moment later; of many changes, once for all of them."""
        if self._slices.find_loop() is None:
            return ()
        checks = ("findings", "deviation")
        if not self._changing:
            longer = _cells(self._selected) > CHECKED_AT_ONCE and self._is_checked(
                self._selected, self.batch, self.head
            )
            return checks if self._in_haste or longer else ()
        return (*checks, "thumbnails", "picture") if self.view == "stages" else (*checks, "thumbnails")

    def _afterwards(self) -> Iterator[None]:
        for name in self._derived():
            with self.hold_sync():
                made = self._make(name)
                if name == "findings":
                    self._make("deviation")
            if made:
                yield

    def _refresh_soon(self) -> None:
        """At once, or, where updates come faster than they can be drawn, a moment later for all of them together."""
        if self._later is not None:
            return
        wait = self._last_update + LEAST_INTERVAL - time.monotonic()
        if wait > 0:
            self._later = threading.Timer(wait, self._refresh_late)
            self._later.daemon = True
            self._later.start()
        else:
            self._refresh()
            self._last_update = time.monotonic()

    def _refresh_late(self) -> None:
        with self._guard:
            self._later = None
            self._refresh()
            self._last_update = time.monotonic()

    def _drop_what_is_gone(self) -> None:
        """Another layer, or other tensors, may have fewer of everything."""
        self.layer = min(self.layer, len(self._stack) - 1)
        for name in ("batch", "head", "query", "key"):
            value = getattr(self, name)
            if value is not None and value >= self._there_are(name):
                setattr(self, name, None if name in ("query", "key") else 0)
        if self.stage not in (*self._selected.stages, "capped"):
            self.stage = "weights"
        shape = self._selected.shape
        self.heads = [head for head in self.heads if head < shape.H] or [self.head]
        self.pins = [(q, k) for q, k in self.pins if (q is None or q < shape.Q) and (k is None or k < shape.K)]

    def _send_soon(self, *names: str) -> None:
        """Send traits whose values are as before but mean something else now."""
        with self.hold_sync():
            self._states_to_send.update(names)

    def _send_tokens(self) -> None:
        """Send the tokens of another sample, or layer, if they are others."""
        for name, side in (("tokens", "query"), ("key_tokens", "key")):
            now = self._tokens_of(side)
            if name not in self._told or self._told[name] is not now:
                self._told[name] = now
                self._send_soon(name)
        if self.grid is not None:
            grid, samples = self._grid_message(), images.as_images(self.image, self._there_are("batch"))
            shown = grid, None if samples is None else id(samples[self.batch])
            if self._shown != shown:
                self._shown = shown
                self._send_soon("grid", "image")

    def _make_facts(self, layer: int) -> dict[str, Any]:
        att, shape = self._layers[layer], self._layers[layer].shape
        return {
            "version": self._version,
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
            "has_pieces": self._has_pieces(layer),
        }

    def _has_pieces(self, layer: int) -> bool:
        """Whether merging tokens into words would change anything, as far as the first of them tell."""
        tokens = (self._samples_of(side, self._whole[layer].shape) for side in ("query", "key"))
        firsts = [samples[0][: wire.PAGE] for samples in tokens if samples]
        return self._merges and any(len(set(word_ids(some, self._spelling))) < len(some) for some in firsts)

    # What cannot be computed (out of memory, a lost device) is refused while opening; later the picture says why.

    def _make_thumbnails(self, layer: int, batch: int) -> dict[str, Any] | None:
        att = self._layers[layer]
        try:
            values = wire.encode_thumbnails(_thumbnails(att, batch))
        except Exception:
            if self.comm is None:
                raise
            return None
        return {"layer": layer, "batch": batch, "values": values}

    def _make_findings(self, layer: int, batch: int, head: int) -> list[dict[str, Any]] | None:
        found = self._examine(layer, batch, head)
        return None if found is None else found[0]

    def _make_deviation(self, layer: int, batch: int, head: int) -> dict[str, Any] | None:
        found = self._examine(layer, batch, head)
        return None if found is None else {"layer": layer, "batch": batch, "head": head, **found[1]}

    def _examine(self, layer: int, batch: int, head: int, asked: bool = False) -> Examined | None:
        """What is likely wrong with a head, and how far others' results are; of a long one only when asked."""
        att, before = self._layers[layer], self._stack[layer] if self.what_if else None
        key = (layer, batch, head, repr(sorted(self.what_if.items())), att.versions())
        if key in self._examined:
            return self._examined[key]
        if not asked and not self._is_checked(att, batch, head):
            return None
        tokens = self._tokens_of("key", layer, batch)
        try:
            found, same = examine(att, tokens, batch, head)
            beside = deviation(att, before, same, batch, head)
        except Exception:
            if self.comm is None or asked:
                raise
            return None
        if len(self._examined) >= EXAMINED:
            self._examined.clear()
        self._examined[key] = [asdict(one) for one in found], beside
        return self._examined[key]

    def _is_checked(self, att: Attention, batch: int, head: int) -> bool:
        """Whether a head is checked without being asked."""
        most = CHECKED_AT_ONCE if self._slices.find_loop() is None else UNBIDDEN
        return _cells(att) <= most and not picture.is_long(att, Key(batch, head, "weights", "max"))

    def _check_anew(self) -> None:
        """Tokens tell what is padding, and what is the same."""
        self._examined.clear()
        self._checked.clear()
        if self.pieces == "words":
            self._hold_anew(self._attention)
        self._forget_heads()
        self._made.pop("survey", None)
        for name in ("facts", "findings", "deviation"):
            self._made.pop(name, None)
        self._refresh()

    def _links_wanted(self, layer: int, batch: int) -> tuple[Any, ...]:
        """Which links are to be sent; () while none are, or where a head is too long to look for all of them."""
        shape = self._stack[layer].shape
        heads = (self._shown_head,) if isinstance(self._shown_head, str) else tuple(self.heads)
        count = min(self.top_k or LINKS, wire.BUDGET // (LINK_BYTES * max(shape.Q, shape.K) * len(heads)))
        if self.view != "graph" or count < 1 or shape.Q * shape.K > LINK_CELLS:
            return ()
        return (layer, batch, heads, self.direction, count)

    def _make_links(self, *wanted: Any) -> dict[str, Any] | None:
        if not wanted:
            return None
        layer, batch, heads, side, count = wanted
        try:
            looked_at = [self._source(layer, head) for head in heads]
            found = [strongest(levels.att, batch, at, count=count, side=side) for levels, at in looked_at]
        except Exception:
            if self.comm is None:
                raise
            return None
        return {"layer": layer, "batch": batch, "heads": list(heads), "side": side, **wire.encode_links(found)}

    def _make_stages(self, *of: Any) -> dict[str, Any] | None:
        if not of:
            return None
        layer, batch, head = of
        att, where = self._layers[layer], {"layer": layer, "batch": batch, "head": head}
        try:
            made = self._sketches.draw(att, batch, head, (layer, att.versions()), self.what_if)
        except Exception:
            if self.comm is None:
                raise
            return None
        return {**where, **made}

    def _pair_wanted(self, layer: int, batch: int, head: int) -> tuple[Any, ...]:
        if self.view != "stages" or self.query is None or self.key is None:
            return ()
        return (layer, batch, head, self.query, self.key)

    def _make_pair(self, *of: Any) -> dict[str, Any] | None:
        if not of:
            return None
        layer, batch, head, query, key = of
        try:
            before = (self._stack[layer], self._before(*of)) if self.what_if else None
            found = ladder.pair(self._layers[layer], query, key, batch, head, before)
        except Exception:
            if self.comm is None:
                raise
            return None
        return {"layer": layer, "batch": batch, "head": head, **found}

    def _before(self, *of: int) -> Explanation:
        """Of a pair what it is under no other rules: the same for all values that a scale is dragged to."""
        layer, batch, head, query, key = of
        att = self._stack[layer]
        known = (*of, att.versions())
        if known not in self._was:
            self._was = {known: att.explain(query, key, batch=batch, head=head)}
        return self._was[known]

    def _make_picture(self, *of: Any) -> dict[str, Any]:
        self._cancel()
        try:
            return self._picture_of(of, self._look_at(*of))
        except Exception as error:
            self._cancel()
            if self.comm is None:
                raise
            return self._picture_of(of, picture.NOTHING | {"error": str(error) or type(error).__name__})

    def _picture_of(self, of: tuple[Any, ...], made: dict[str, Any]) -> dict[str, Any]:
        shape = self._stack[of[0]].shape
        return {**dict(zip(FOLLOWED, of, strict=True)), "queries": shape.Q, "keys": shape.K, **made}

    def _look_at(self, *of: Any) -> dict[str, Any]:
        """The exact picture where it is quick or its level is kept, else a sampled one; the exact one follows."""
        layer, batch, name, stage, pool = of
        levels, head = self._source(layer, name)
        att, key = levels.att, Key(batch, head, stage, pool)
        if not picture.is_long(att, key):
            return picture.exact_now(att, key)
        kept = levels.find(key)
        if kept is not None:
            return picture.from_level(levels, key, kept)
        self._refining = of
        self._refinement = picture.Refinement(
            levels,
            key,
            band=lambda band: self._send_band(of, band),
            tell=self._tell,
            done=lambda made: self._end(of, made),
            failed=lambda error: self._end(of, picture.NOTHING | {"error": str(error) or type(error).__name__}),
        )
        self._run()
        return self._refinement.picture()

    def _levels_of(self, layer: int) -> Levels:
        return self._levels.setdefault(layer, Levels(self._layers[layer], shelf=self._shelf))

    # Several heads as one.

    @property
    def _shown_head(self) -> int | str:
        """The head that is shown; of several as one their name, such as "mean 0 4"."""
        alone = len(self.heads) < 2 or self.stage != "weights" or self.view == "stages"
        return self.head if self.combine == "none" or alone else " ".join([self.combine, *map(str, sorted(self.heads))])

    def _source(self, layer: int, head: int | str) -> tuple[Levels, int]:
        """What is kept of the attention that a head is of, and its number there."""
        if isinstance(head, int):
            return self._levels_of(layer), head
        found = self._together.pop((layer, head), None)
        if found is None:
            how, *heads = head.split()
            att = self._layers[layer].combine([int(one) for one in heads], how)
            found = Levels(att, shelf=self._shelf)
        self._together[layer, head] = found  # the last
        while len(self._together) > TOGETHER:
            self._together.pop(next(iter(self._together)))
        return found, 0

    # All heads at a glance.

    def _ids_of(self, layer: int, batch: int) -> Tensor | None:
        """The tokens of a layer's places as numbers, where each place has one."""
        tokens = self._tokens_of("key", layer, batch)
        if tokens is None or len(tokens) != self._stack[layer].shape.Q:
            return None
        if self._ids is None or self._ids[0] is not tokens:
            self._ids = tokens, as_ids(tokens)
        return self._ids[1]

    def _forget_heads(self) -> None:
        self._ids = None
        self._surveys.forget()

    def _make_survey(self, *of: Any) -> dict[str, Any] | None:
        if not of:
            self._surveys.leave()
            return None
        (batch,) = of
        try:
            return self._surveys.look(self._layers, batch, lambda layer: self._ids_of(layer, batch))
        except Exception as error:
            if self.comm is None:
                raise
            return self._surveys.failed(error)

    # The exact picture of a long head, by and by.

    def _run(self) -> None:
        """Go on with the exact picture, where there is an event loop to do so."""
        assert self._refinement is not None
        runs = self._slices.start(PASS, self._refinement.steps(), math.inf)
        self._tell(self._refinement.share, None, "running" if runs else "stopped")

    def _tell(self, share: float, seconds_left: float | None, state: str = "running") -> None:
        refinement = self._refinement
        if refinement is None:
            return
        of = dict(zip(FOLLOWED, self._refining, strict=True))
        self._views.arrived(refinement.visit)
        self.progress = {**of, "share": share, "seconds_left": seconds_left, "state": state}

    def _as_far_as_known(self, value: dict[str, Any]) -> dict[str, Any]:
        """The picture with the rows that are exact by now, for a front-end that asks for all there is."""
        refinement = self._refinement
        if refinement is None or refinement.ready == 0 or value.get("sampled") is None:
            return value
        return value | refinement.picture()

    def _send_band(self, of: tuple[Any, ...], band: dict[str, Any]) -> None:
        buffers: list[bytes] = []
        values = wire.detach(band["values"], buffers)
        where = dict(zip(FOLLOWED, of, strict=True))
        self.send({"band": {**where, "version": self._version, **band, "values": values}}, buffers)

    def _end(self, of: tuple[Any, ...], made: dict[str, Any]) -> None:
        """The exact picture is there, or will not be."""
        refinement, self._refinement = self._refinement, None
        self._slices.drop(PASS)
        if refinement is not None:
            self._views.arrived(refinement.visit)
        with self.hold_sync():
            self.picture = self._picture_of(of, made)
            self.set_trait("progress", None)

    def _cancel(self) -> None:
        """Compute nothing more of what was selected before."""
        self._refinement = None
        for job in self._slices.names:
            if job != ALL_HEADS:
                self._slices.drop(job)
        self._views.forget()
        self.set_trait("progress", None)

    # What the front-end sends: untrusted, and never a traceback in the kernel's log.

    def set_state(self, sync_data: dict[str, Any]) -> None:
        """Take what a front-end has set and may set; what cannot be is put back there, with the reason."""
        given = sync_data if isinstance(sync_data, dict) else {}
        wanted = {name: given[name] for name in self._from_front_end if name in given}
        with self._guard:
            try:
                for name, value in wanted.items():
                    self.traits()[name].validate(self, value)  # before ipywidgets echoes it to all front-ends
                self._in_haste, self._changing = True, "what_if" in wanted
                super().set_state(wanted)
            except traitlets.TraitError as error:
                self.send({"refused": str(error)[:500]})
                self.send_state(list(wanted))
            finally:
                self._in_haste = self._changing = False
            self._slices.hold_back()

    def _receive(self, _: Any, content: Any, __: Any) -> None:
        with self._guard:
            if isinstance(content, dict) and "what_if" in content:
                self._try(content["what_if"])
            reply = requests.answer(self._desk(), content)
            self._slices.hold_back()
        if reply is not None:
            self.send(*reply)

    def _try(self, changes: Any) -> None:
        """Other rules, as a scale that is dragged has many a second; all that follows goes as one message."""
        try:
            self._in_haste = self._changing = True
            with self.hold_sync():
                self.what_if = changes
        except traitlets.TraitError as error:
            self.send({"refused": str(error)[:500]})
        finally:
            self._in_haste = self._changing = False

    def _desk(self) -> Desk:
        return Desk(self)


def _attention_of(q: Any, k: Any, v: Any, keywords: dict[str, Any]) -> Attention | AttentionStack:
    """One attention, or a stack of layers where there are five dimensions or a list."""
    if isinstance(q, list | tuple) or getattr(q, "ndim", 0) == 5:
        return stack_layers(q, k, v, **keywords)
    return Attention(q, k, v, **keywords)


def _cells(att: Attention) -> int:
    return att.shape.Q * att.shape.K


def _thumbnails(att: Attention, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Every head small: all of it, or of a long one exact queries, evenly spread."""
    shape = att.shape
    size = min(THUMBNAIL_SIZE, math.isqrt(wire.BUDGET // shape.H))
    most = max(1, min(size, THUMBNAIL_CELLS // (shape.H * shape.K)))
    if most * shape.K > ROOM:
        long = (pyramid.sampled(att, batch, head, rows=most, columns=size) for head in range(shape.H))
        return ((seen.values, seen.allowed) for seen in long)
    queries = sample(shape.Q, shape.Q if shape.Q * shape.K <= picture.SIZE * picture.SIZE else most)
    seen = Glance(att, batch, range(shape.H), queries, size=size, measured=False)
    for _ in seen.steps():
        pass
    return zip(seen.values, seen.allowed, strict=True)


@functools.cache
def _bundled(name: str) -> str:
    """The text of a part of the front-end."""
    try:
        return (STATIC / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileNotFoundError(
            "the front-end is not built: run `make bundle` in the checkout, or install attnwidget from a wheel"
        ) from None
