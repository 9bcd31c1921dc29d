"""`AttentionWidget`, the class that users call.

Its traits are in `parts`, the flow from one trait to the others in `refreshing`, and the front-end's messages in
`front_end.messages`.
"""

from __future__ import annotations

import base64
import contextlib
import os
import pathlib
import uuid
import warnings
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

import traitlets
from torch import Tensor

from .._analysis import all_heads
from .._analysis.head_kinds import KindsLike, read_names
from .._export.look.numbers import in_model
from .._export.page.html import to_html
from .._export.page.snapshot import DEFAULT_LIMIT
from .._export.still.preview import preview_of
from .._parallel.executors import workers_of
from .._rules.options import KEYWORDS, LayeredKeywords, TensorLike
from .._tokens.inputs import is_tokens
from .._utils.assets import bundled
from .._utils.indexing import as_index
from .._utils.progress_bars import progress_bar
from .._utils.validation import as_size, refuse_unknown
from ..attention import Attention
from ..stack import AttentionStack, as_attention
from .arguments import ModelOutput, Shown, least_of, read_arguments, read_weights
from .front_end.front_ends import FrontEndTraits
from .front_end.messages import FrontEndMessages
from .front_end.unattended import is_unattended, show_fallback
from .stores.named_stacks import LabeledStack, Sources
from .traits.closing import ClosedForGood
from .traits.keywords import (
    ShowKeywords,
    TensorsLike,
    Tokens,
    WidgetKeywords,
    keywords_of,
    list_keywords,
    offered_names,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

SIGNED = (
    "these numbers go down to {:.4g}, so they are not weights: they are shown as scores, on a diverging scale. "
    "AttentionWidget.from_scores(…, title=…) does that without this warning"
)
# Set first: the other traits are checked against these, and count words if subwords are merged into words.
FIRST = (
    *("kinds", "layer", "batch", "grid_side", "grid_start", "grid", "image", "boxes", "across"),
    *("tokenizer", "tokens", "key_tokens", "what_if", "target", "words", "pieces"),
)


class AttentionWidget(FrontEndTraits, FrontEndMessages, ClosedForGood):
    """Show the attention of q, k and v in the notebook: exact and clickable, at any length.

    Args:
        q: queries, (Q, D), (B, Q, D), (B, H, Q, D), with layers (L, B, H, Q, D) or a list with a tensor for each layer.
            Without k, or with tokens in place of k: attention weights whose rows sum to 1 (see `from_weights`), the
            output of a transformers model, an `Attention` or a stack.
        k: keys, in the shape of q, with K for Q and G for H.
        v: values, in the shape of k, with Dv for D; optional.
        mask, mask_means, mask_dims, bias, is_causal, window, scale, softcap, sinks, dims: as in `Attention`.
        tokens: a string for each query, or a list of such lists for a batch. With a tokenizer also its ids: a list, an
            array or a tensor (Q,) or (B, Q), or the tokenizer's output.
        key_tokens: the same for the keys; default: `tokens`, if there are as many keys as queries.
        tokenizer: decodes ids: a tokenizer of transformers, tokenizers, sentencepiece or tiktoken, or any object with
            `decode`.
        pieces: "pieces" for subwords, or "words": weights are then summed and averaged as in `Attention.merge`, and
            positions count words.
        words: the word of each token, for pieces="words", which it then is by default: a list of numbers, as
            transformers' `encoding.word_ids()`, one for each sample, or a function that returns it for the tokens.
        grid: (rows, columns) of image patches; (frames, rows, columns) of a video; or a list with one of these, or
            None, for each layer. They are the last positions, or begin at `grid_start`, of the queries, the keys or
            both (`grid_side`: "query", "key", "both"; "auto": the sides that they fit).
        image: the image of these patches: a path, a Pillow image or an array (H, W, 3); for a video a list or an array
            of its pictures, or one for all; or a list with one image or video for each sample.
        boxes: (n, 4) numbers, left, top, right and bottom in pixels of the image, if queries or keys are regions of it,
            as in LXMERT and DETR; or one such list for each sample.
        title: a line above the picture.
        stack, forward: the first stack shown, by name and number of its forward pass, if `from_attention` got several.
        layer, batch, head: the first ones shown; layer="mean" or "max" is across="mean" or "max".
        across: several layers, heads and forward passes as one exact map: "mean" or "max" for all layers and heads, or
            a dict with `how`, `layers`, `heads` (None: all) and `forwards` (None: the one shown, "all", or a list).
        query, key: the pinned pair; None: nothing is pinned.
        heads: several heads, such as [0, 4], for the graph and for `combine`; they include `head`.
        pins: several pinned pairs, such as [(14, 16), (3, None)]; the last one is (`query`, `key`).
        view: "heatmap", "graph", "text", "image", "heads", "segments", "stages" or "why" (of a capture with sources);
            default: "image" if there is an image, else "heatmap".
        stage: "weights", "scores", "scaled", "capped" (by a softcap), "masked" or "contribution" (weight × ‖v‖); or, if
            known, what a weight contributes downstream: "value_norm", "logit", "saliency" (see `Attention.carrying`).
        target: the token id for the stage "logit"; None: the model's most likely next token after each sample.
        pool: "max" or "mean", for pictures whose cells stand for several cells of the matrix.
        combine: "none", or "mean" or "max" to show `heads` as one head.
        what_if: other rules for the same tensors, such as {"scale": 1.0}; see `Attention.what_if`.
        color_scale: "linear" or "log".
        color_range: the range of the colors: "head"; "row", each row its own; "layer", all heads of the layer; "view",
            the visible part of a zoomed heatmap; "unit", 0 to 1; or (low, high).
        palette: "attnwidget", "viridis", any colormap of matplotlib by its name, or a list of colors from 0 on. A
            warning comes if it is not uniform.
        theme: "auto", "light", "dark" or "contrast".
        top_k: the number of links drawn for each token in the graph; None: all.
        threshold: the least weight of a drawn link, 0 to 1.
        overlay: how weights are drawn over an image: "patches", or "smooth", interpolated between their centers.
        opacity: of the weights over an image, 0 to 1.
        direction: "query" shows the keys that each query attends to; "key" shows the queries that attend to each key.
        bar: the metric below each head in the heads view: "entropy", "first_token", "previous_token", "itself",
            "same_token", "last_token", "induction", "mean_distance", "masked_share" or "learned_sink" (see `Metrics`);
            "sink" or "streaming" (see `find_heads`); "recall", if `what_if` has a cache policy; "effect", the loss
            without the head, if the widget has a model; "stage_sum" or "stage_size", the sum of a stage over the keys
            of the pinned query (or of all queries), signed or by size.
        order: the order in the heads view: "layer"; a metric; or "similar", the heads most like the selected one first
            (see `AttentionStack.similar`).
        kinds: more metrics for `bar` and `order`, by name: functions such as {"mine": function}, which take
            `attnwidget.results.HeadRows` (exact rows of some heads, with tokens and segments) and return a number for
            each head and row; or kinds of `find_heads`, such as "lookback", which needs segments.
        only_heads: limits on the heads in the heads view: (first layer, last layer, least value of `bar`), such as (8,
            12, None); None means no limit.
        segments: the named parts of the text for the view "segments", in any form that `attnwidget.segments` takes or
            returns: {"document": (0, 40), "answer": (40, 52)}, the messages of a chat, or "sentences"; or a list with
            one for each sample.
        key_segments: segments of the keys, if they differ.
        measure: the measure of attention to a segment: "mass", the weight on its keys, mean over queries; "per_token",
            mass divided by its number of keys; "lift", mass divided by the mass of even attention.
        aside: segments to exclude, so that mass is a share of the rest: names of segments, "sink" (the first token and
            the learned sink), "self" (each query's own key).
        asking: the segment of the queries, by name; a nested one by its path, such as ["documents", "doc 3"]; None: the
            answer, or else the last segment.
        segment: the pinned segment of the keys; None: nothing is pinned.
        segment_path: the path to the segment whose nested segments are shown, such as ["documents", "doc 3"].
        segments_show: "attention"; or "effect", the loss of the next token's log-probability without each segment and
            each head, if the widget has a model: `cap.widget(model=model, inputs=inputs)`.
        effect_target: (position, token id) of the target token; None: the most likely one after the last token.
        effect_edit: the edit of a head or segment: "zero", a head outputs 0 and a segment's keys are blocked, so that
            other keys take their weight; "cut", its weights are 0 and the others stay; "uniform", its weights are even.
        layout: an ipywidgets layout.

    Raises:
        ValueError, TypeError: an input cannot be shown; the message says what was expected.
        IndexError: there is no such layer, batch, head, query or key.

    The softmax is that of Vaswani et al. 2017, eq. 1. Every argument from `tokens` on is also a trait. Set it, and the
    picture follows; click, and the trait follows.

    >>> import torch
    >>> q, k, v = torch.randn(3, 1, 2, 4, 8)
    >>> w = AttentionWidget(q, k, v, tokens=["the", "bank", "lent", "money"], head=1)
    >>> w.query = 2
    >>> w.weights(2).shape
    torch.Size([4])
    >>> AttentionWidget(w.weights(2).expand(4, 4), ["the", "bank", "lent", "money"])
    AttentionWidget(layer 0 of 1, head 0 of 1, 4 queries × 4 keys)
    """

    _tensor_keywords: dict[str, Any]  # the keywords for tensors, which `update` keeps

    _own_layout: Any = None  # the layout made by the widget

    still = True  # whether saved notebooks also store a small picture, for GitHub and mails; for the class or a widget

    uid = traitlets.Unicode().tag(sync=True, role="identity")

    def __init__(
        self,
        q: Shown,
        k: TensorsLike | Tokens | None = None,
        v: TensorsLike | None = None,
        **keywords: Unpack[WidgetKeywords],
    ) -> None:
        refuse_unknown(keywords, [*keywords_of(type(self)), *KEYWORDS])
        given: dict[str, Any] = {**keywords}
        about_tensors = {name: given.pop(name) for name in KEYWORDS if name in given}
        self._open(*read_arguments(q, k, v, about_tensors, given), about_tensors)

    @classmethod
    def from_attention(
        cls, attention: Attention | AttentionStack | Sources, **show: Unpack[ShowKeywords]
    ) -> AttentionWidget:
        """Show an `Attention`, an `AttentionStack`, or one of several stacks to choose from.

        Args:
            attention: the attention, which is not copied. Several stacks are a mapping by name ("encoder"), by the
                number of a forward pass (0, 1, …), or by both, (2, "encoder"). A function without arguments that
                returns a stack is called when the stack is first chosen.
            show: the keywords of `AttentionWidget` from `tokens` on. For several stacks, `tokens` and `key_tokens`
                belong to the first stack shown, or are mappings by the same names; a stack without tokens shows
                positions.

        Raises:
            ValueError, TypeError, IndexError: as the widget raises them; or there is no such stack or forward pass.

        >>> import torch
        >>> att = Attention(*torch.randn(3, 4, 8), is_causal=True)
        >>> AttentionWidget.from_attention(att, tokens=["the", "bank", "lent", "money"])
        AttentionWidget(layer 0 of 1, head 0 of 1, 4 queries × 4 keys)
        >>> w = AttentionWidget.from_attention({"encoder": att, "cross": Attention(*torch.randn(3, 2, 8))})
        >>> w.stack = "cross"
        >>> w
        AttentionWidget(stack 'cross', layer 0 of 1, head 0 of 1, 2 queries × 2 keys)
        """
        refuse_unknown(show, keywords_of(cls))
        widget = cls.__new__(cls)
        cls._open(widget, attention, {**show}, {})
        return widget

    @classmethod
    def from_weights(
        cls,
        weights: TensorsLike | ModelOutput,
        v: TensorsLike | Tokens | None = None,
        *,
        dims: str | None = None,
        **show: Unpack[ShowKeywords],
    ) -> AttentionWidget:
        """Show existing attention weights, such as a model's `output.attentions`.

        Args:
            weights: (Q, K), (B, Q, K), (B, H, Q, K), with layers (L, B, H, Q, K), or a list with a tensor for each
                layer; or the output of a transformers model, whose `attentions` are used (the three of an
                encoder–decoder become the stacks "encoder", "decoder" and "decoder, cross-attention").
            v: values, for outputs and contributions, with as many layers; tokens may be given in its place.
            dims: another order of axes, as in `Attention.from_weights`.
            show: the keywords of `AttentionWidget` from `tokens` on.

        Numbers below 0 are not weights: a signed map is shown as `from_scores` shows it, after a warning.

        Raises:
            ValueError, TypeError: as `Attention.from_weights` raises them; or a model's output has no weights (the
                message says how to get them).

        >>> import torch
        >>> AttentionWidget.from_weights(torch.randn(2, 1, 4, 6, 6).softmax(-1), layer=1)
        AttentionWidget(layer 1 of 2, head 0 of 4, 6 queries × 6 keys)
        """
        refuse_unknown(show, keywords_of(cls))
        if (least := least_of(weights)) < 0:
            warnings.warn(SIGNED.format(least), stacklevel=2)
            given: Any = {**show, "dims": dims} | ({"tokens": v} if is_tokens(v) else {})
            signed: Any = weights
            return cls.from_scores(signed, None if is_tokens(v) else v, **given)  # type: ignore[arg-type]
        widget = cls.__new__(cls)
        cls._open(widget, *read_weights(weights, v, dims, show), {})
        return widget

    @classmethod
    def from_scores(
        cls, scores: TensorLike, v: TensorLike | None = None, **show: Unpack[WidgetKeywords]
    ) -> AttentionWidget:
        """Show a matrix of scores, or any signed map such as the contacts of a protein, on a diverging scale.

        Args:
            scores: (Q, K), (B, Q, K) or (B, H, Q, K), of any sign.
            v: values, as in `Attention.from_scores`.
            show: the keywords of `AttentionWidget`, with `dims` and the rules that apply to scores. The stage is
                "scores", the numbers as given, unless another is named; "weights" is their softmax.

        Raises:
            ValueError, TypeError: as `Attention.from_scores` raises them.

        >>> import torch
        >>> weights = torch.rand(7, 7).softmax(-1)
        >>> both = weights + weights.T  # ESM's contacts: symmetric, less the average product (Dunn et al. 2008)
        >>> contacts = both - both.sum(1, keepdim=True) * both.sum(0, keepdim=True) / both.sum()
        >>> w = AttentionWidget.from_scores(contacts, tokens=list("MKTAYIA"), title="Contacts after APC")
        >>> w.stage, w.title
        ('scores', 'Contacts after APC')
        """
        refuse_unknown(show, [*keywords_of(cls), *KEYWORDS])
        given: dict[str, Any] = {"stage": "scores", **show}
        about_tensors = {name: given.pop(name) for name in KEYWORDS if name in given}
        widget = cls.__new__(cls)
        cls._open(widget, Attention.from_scores(scores, v, **about_tensors), given, {})
        return widget

    @property
    def attention(self) -> Attention | AttentionStack:
        """The `Attention` or `AttentionStack` on display; assign another one to show it.

        Pins and choices stay if the new attention has them. Tokens whose number no longer fits are not shown.
        """
        return self._shown.attention

    @attention.setter
    def attention(self, attention: Attention | AttentionStack) -> None:
        attention = as_attention(attention, "update(q, k, v)")
        with self._lock:
            self._cancel()
            titled_so = self.title == self._shown.title
            self._named_stacks.keep(self._chosen, LabeledStack(attention))
            self._replace_layers(attention)
            self.title = self._shown.title if titled_so else self.title
            self._throttle.soon()

    def update(
        self, q: Shown, k: TensorsLike | None = None, v: TensorsLike | None = None, **keywords: Unpack[LayeredKeywords]
    ) -> None:
        """Show other tensors in the same widget, for example in a training loop; the old tensors are released.

        Args:
            q, k, v: as for the widget; weights alone or a model's output work too.
            keywords: mask, is_causal and the other keywords for tensors; those not given stay.

        Raises:
            ValueError, TypeError: as the widget raises them; the widget then keeps its old tensors.

        If updates come faster than they can be drawn, only the last one is drawn.

        >>> import torch
        >>> w = AttentionWidget(*torch.randn(3, 4, 8), is_causal=True)
        >>> w.update(*torch.randn(3, 4, 8))
        >>> int(w.weights(0).argmax())
        0
        """
        refuse_unknown(keywords, KEYWORDS)
        merged = {**self._tensor_keywords, **keywords} if k is not None else {**keywords}
        attention, show = read_arguments(q, k, v, merged, {})
        if show or isinstance(attention, Mapping):
            what = "tokens" if show else "several stacks"
            raise TypeError(f"update takes tensors at the same places, not {what}: make another widget for it")
        self.attention = attention
        self._tensor_keywords = merged

    def weights(self, query: int) -> Tensor:
        """Compute the exact attention weights of one query in the selected head, over all keys.

        Args:
            query: its position; negative numbers count from the end.

        Returns:
            (K,), float32; float64 if q is float64.

        Raises:
            IndexError: there is no such query.

        >>> import torch
        >>> w = AttentionWidget(torch.zeros(3, 4), torch.zeros(3, 4), is_causal=True)
        >>> w.weights(1)
        tensor([0.5000, 0.5000, 0.0000])
        """
        query = as_index(query, self._selected.shape.Q, "query", "queries")
        return self._selected.block("weights", batch=self.batch, head=self.head, queries=query)[0]

    def metrics(
        self, batch: int | None = None, *, rows: int | None = None, kinds: KindsLike = ()
    ) -> list[dict[str, Any]]:
        """Compute metrics of every head, as a list of records for `pandas.DataFrame`.

        Args:
            batch: only this sample; None: all.
            rows: the number of evenly spread queries used in each head; None: all, if all heads together have at most
                2²⁸ cells, else up to 32. Each row is exact.
            kinds: more metrics, in addition to the widget's own `kinds` and in the same form.

        Returns:
            A dict for each head: layer, name, batch, head, the fields of `Metrics`, rows (the number of queries in the
                means), and the kinds by name. An unknown number is None.

        Raises:
            IndexError: there is no such sample.

        >>> import torch
        >>> w = AttentionWidget(*torch.zeros(2, 1, 2, 4, 8), is_causal=True)
        >>> [(one["layer"], one["head"], one["mean_distance"]) for one in w.metrics()]
        [(0, 0, 0.75), (0, 1, 0.75)]
        """
        batches = None if batch is None else [as_index(batch, self._there_are("batch"), "batch", "batches")]
        rows = None if rows is None else as_size(rows, "rows")
        more = {**self.kinds, **(read_names(kinds, "kinds") if kinds else {})}
        shown = self._shown
        return all_heads.records(shown.layers, shown.stack.names, batches, rows, shown.ids, more, shown.text)

    @property
    def executor(self) -> Executor | None:
        """The executor that computes the exact pictures of long heads between cells; None: this process.

        Any `concurrent.futures.Executor` works: threads, processes, or a Dask cluster (`client.get_executor()`). The
        kernel stays free to answer. The picture shows the number of workers and the time left.

        >>> import torch
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> w = AttentionWidget(*torch.randn(2, 10_000, 4))
        >>> w.executor = ThreadPoolExecutor(2)
        >>> w.finish()
        >>> w.picture["sampled"]
        """
        return self._exact_pass.executor

    @executor.setter
    def executor(self, executor: Executor | None) -> None:
        with self._lock:
            self._exact_pass.give_to(executor)

    def finish(self, progress: bool = False, *, executor: Executor | None = None) -> None:
        """Compute the exact picture of the selected head now, if it is still a sampled one; see `progress`.

        This includes missing pictures of the heads view and of the stages view. A notebook computes them between cells;
        call this in a script or before saving. After an interrupt, the next call continues.

        Args:
            progress: draw a bar with the time left, if tqdm is installed.
            executor: the executor for this call; None: `w.executor` if it is set, else this process. Samples are always
                computed here.

        Raises:
            TypeError: it is not an executor.

        >>> import torch
        >>> w = AttentionWidget(*torch.randn(2, 10_000, 4))
        >>> w.picture["sampled"]["every"]
        24
        >>> w.finish()
        >>> w.picture["sampled"], w.progress
        (None, None)
        """
        workers_of(executor)
        with self._lock:
            self._evictions.finish()
            self._bring_what_is_missing()
            self._finish()
        with contextlib.ExitStack() as stack:
            bar = stack.enter_context(progress_bar()(total=100, unit="%", desc="picture")) if progress else None
            for share in self._exact_pass.rest(self._lock, executor):
                if bar is not None:
                    bar.update(round(100 * share) - bar.n)
            if bar is not None:
                bar.update(100 - bar.n)
        more = True
        while more:
            with self._lock:
                more = self._stages_pass.finish()

    def to_html(
        self,
        path: str | os.PathLike[str],
        *,
        title: str | None = None,
        layers: Any = None,
        heads: Any = None,
        samples: Any = "selected",
        limit: int = DEFAULT_LIMIT,
    ) -> pathlib.Path:
        """Write one HTML file that shows the widget without Jupyter, Python or a network.

        All views, pins, zoom and both themes work in the file. It holds every number up to 512 tokens, and every step
        of every pair up to 1,024 cells of a head. For longer heads it holds the picture and the pinned numbers; for
        anything else the page refers to the notebook.

        Args:
            path: the file; an existing one is replaced.
            title: a line above the picture, instead of the widget's title.
            layers, heads, samples: the ones a reader can choose: "selected", "all", or a list of numbers; the selected
                one is always included. None for layers or heads: all, or as many as fit into 4 MiB.
            limit: the greatest size of the file, bytes.

        Returns:
            The path.

        Raises:
            ValueError: the file would be larger than `limit`.
            FileNotFoundError, IsADirectoryError: there is no such directory, or the path is a directory.
            IndexError, TypeError: a layer, head or sample does not exist.

        >>> import tempfile, torch
        >>> w = AttentionWidget(*torch.randn(3, 4, 8), tokens=["the", "bank", "lent", "money"])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     w.to_html(f"{folder}/bank.html").name
        'bank.html'
        """
        with self._lock:
            self._evictions.finish()
            return to_html(
                self._export_view(), path, title=title, layers=layers, heads=heads, samples=samples, limit=limit
            )

    def figure(
        self, *, width: float = 6.5, dpi: float = 200, theme: Literal["auto", "light", "dark"] | None = None
    ) -> Any:
        """Draw the widget as a matplotlib figure: `w.figure().savefig("bank.svg")`, or .pdf, or .png.

        Every view can be drawn, in the widget's colors. A cell displays the figure. Text stays text in SVG and PDF.
        Labels shrink to 6 pt before any is left out.

        Args:
            width: the greatest width, inches; the page is as large as the drawing.
            dpi: resolution of the parts that are not drawn as lines, dots per inch.
            theme: "dark", "light" or "auto" (on white); None: the widget's theme.

        Returns:
            A `matplotlib.figure.Figure`.

        Raises:
            ImportError: matplotlib is missing; `pip install "attnwidget[figure]"` installs it.
            ValueError: there is nothing to draw (the message has the reason), or the width, dpi or theme is invalid.

        >>> import torch
        >>> w = AttentionWidget(*torch.randn(3, 4, 8), tokens=["the", "bank", "lent", "money"])
        >>> figure = w.figure(width=3.3)
        >>> float(figure.get_figwidth()) <= 3.3
        True
        """
        from .._export.figure import figure_of

        with self._lock:
            self._evictions.finish()
            return figure_of(self._export_view(), width=width, dpi=dpi, theme=theme)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Return the widget, with a small picture for places where no widget runs."""
        made = super()._repr_mimebundle_(**kwargs)
        still = preview_of(self._export_view()) if made is not None and self.still else None
        if made is None or still is None:
            return made
        if is_unattended():
            show_fallback(still, self.uid)
        data, metadata = made
        sizes = {"image/png": {"width": still.width, "height": still.height}}
        return {**data, "image/png": base64.b64encode(still.png).decode()}, {**metadata, **sizes}

    def close(self) -> None:
        """Remove the widget from the page and stop its computations; it holds its tensors no longer.

        Its selection can still be read. Everything else raises `RuntimeError`; closing it again does nothing.

        >>> import torch
        >>> w = AttentionWidget(*torch.randn(3, 4, 8), head=0)
        >>> w.close()
        >>> w, w.head
        (AttentionWidget(closed: run its cell again, or make a new widget), 0)
        """
        if self._is_closed:
            return
        with getattr(self, "_lock", contextlib.nullcontext()):
            if hasattr(self, "_lock"):
                self._end()
                self._scheduler.clear()
            own_layout = self._own_layout
            super().close()
        if own_layout is not None and self.layout is own_layout:
            own_layout.close()  # otherwise ipywidgets keeps it

    def __dir__(self) -> list[str]:
        """Return the names for users; those of ipywidgets work as well but are not listed."""
        return offered_names(type(self))

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        raise TypeError(
            "a widget cannot be pickled: pickle its tensors, or save a capture with cap.save(path), and make a new "
            "widget; widget.to_html(path) writes a page that works without a kernel"
        )

    def __repr__(self) -> str:
        return super().__repr__() if self._is_closed else f"{type(self).__name__}({self._described()})"

    def _described(self) -> str:
        """Return what is selected, in words."""
        shape = self._selected.shape
        forward = f"forward {self.forward} of {self.forwards}, " if self.forwards > 1 else ""
        stack = f"stack {self.stack!r}, " if self.stack else ""
        called = {"maps": "map", "windows": "window"}.get(self._axes_read(self.layer) or "", "sample")
        sample = f"{called} {self.batch} of {shape.B}, " if shape.B > 1 else ""
        own = in_model([self.head], all_heads.numbers_of_heads(self._selected))
        return (
            f"{forward}{stack}layer {self.layer} of {len(self._shown.stack)}, {sample}"
            f"head {self.head} of {shape.H}{own}, {shape.Q:,} queries × {shape.K:,} keys"
        )

    # Opening: everything that can be refused is refused before the front-end is informed.

    def _open(
        self, attention: Attention | AttentionStack | Sources, show: dict[str, Any], tensor_keywords: dict[str, Any]
    ) -> None:
        bundled("widget.js")  # raises if it is missing
        show = self._begin(attention, show)
        self._tensor_keywords = tensor_keywords
        self._make()
        self._show_layers(self._named_stacks.find(self._chosen).attention)
        show = {name: value for name, value in show.items() if value is not None or name not in ("query", "key")}
        if show.get("words") is not None:
            show.setdefault("pieces", "words")
        if show.get("layer") in ("mean", "max"):
            show["across"] = show.pop("layer")
        has_image = show.get("image") is not None and any(show.get(name) is not None for name in ("grid", "boxes"))
        if has_image and self.traits()["view"].default_value == "heatmap":
            show.setdefault("view", "image")
        for name in [name for name in FIRST if name in show]:
            setattr(self, name, show.pop(name))
        show["title"] = show.get("title") or self._shown.title
        uid = uuid.uuid4().hex
        super().__init__(uid=uid, model_id=uid, **self._select(show))
        self._own_layout = None if show.get("layout") is self.layout else self.layout

    def open(self) -> None:
        """Compute the picture and open; ipywidgets calls this after all traits have been checked."""
        self._refresh()
        self._watch()
        super().open()


for _function, _keywords in (
    (AttentionWidget.__init__, WidgetKeywords),
    (AttentionWidget.from_attention, ShowKeywords),
    (AttentionWidget.from_weights, ShowKeywords),
    (AttentionWidget.from_scores, WidgetKeywords),
    (AttentionWidget.update, LayeredKeywords),
):
    list_keywords(_function, _keywords, AttentionWidget)
