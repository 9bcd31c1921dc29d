"""`AttentionWidget`: what a user calls.

Its traits are in `parts`, the flow from one trait to the others in `refreshing`, and the messages of the front-end in
`front_end.messages`.
"""

from __future__ import annotations

import base64
import contextlib
import os
import pathlib
import uuid
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
from .._rules.options import KEYWORDS, LayeredKeywords
from .._utils.assets import bundled
from .._utils.indexing import as_index
from .._utils.progress_bars import progress_bar
from .._utils.validation import as_size, refuse_unknown
from ..attention import Attention
from ..stack import AttentionStack, as_attention
from .arguments import ModelOutput, Shown, read_arguments, read_weights
from .front_end.front_ends import FrontEndTraits
from .front_end.messages import FrontEndMessages
from .stores.named_stacks import LabeledStack, Sources
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

# Set before the others, which are checked against these and are positions of words if tokens are merged into words.
FIRST = ("kinds", "layer", "batch", "tokenizer", "tokens", "key_tokens", "what_if", "target", "pieces")


class AttentionWidget(FrontEndTraits, FrontEndMessages):
    """Show the attention of q, k and v in the notebook: exact, clickable, at any length.

    Args:
        q: queries, (Q, D), (B, Q, D), (B, H, Q, D), with layers (L, B, H, Q, D) or a list with a tensor for each.
            Alone, or with tokens in the place of k: weights, as `from_weights` takes them, where all are 0 or more and
            each row sums to 1 (or is 0 throughout); what a model of transformers returned; an `Attention` or a stack.
        k: keys, as q, with K for Q and G for H.
        v: values, as k, with Dv for D; may be left out.
        mask, mask_means, mask_dims, bias, is_causal, window, scale, softcap, sinks, dims: as in `Attention`.
        tokens: a string for each query, or a list of such lists, one for each sample of the batch; with a tokenizer
            its ids as well, a list, an array or a tensor (Q,) or (B, Q); or what a tokenizer returned.
        key_tokens: the same for the keys; taken from `tokens` where there are as many keys as queries.
        tokenizer: whose ids the tokens are; of transformers, tokenizers, sentencepiece, tiktoken, or what has `decode`.
        pieces: "pieces", or "words": their weights summed and averaged as in `Attention.merge`; positions are then
            those of words.
        grid: (rows, columns) of image patches among the positions; they are the last ones, or begin at `grid_start`, of
            the queries, the keys or both (`grid_side`: "query", "key", "both", or "auto", where they fit).
        image: what was cut into them, as it went in: a path, an image of Pillow, or an array (H, W, 3); a list with one
            for each sample.
        title: a line above the picture.
        stack, forward: which stack is shown first, by name and by the number of its forward pass, where
            `from_attention` was given several.
        layer, batch, head: what is shown first.
        query, key: the pinned pair; None where nothing is pinned.
        heads: several heads, such as [0, 4]: those of the graph, and of `combine`; `head` is one of them.
        pins: several pinned pairs, such as [(14, 16), (3, None)]; the last is (`query`, `key`).
        view: "heatmap", "graph", "text", "image", "heads", "segments" or "stages"; with an image "image", unless told
            otherwise.
        stage: "weights", "scores", "scaled", "capped" (by a softcap), "masked" or "contribution" (weight × ‖v‖); and
            what a weight carries, where it is known: "value_norm", "logit", "saliency", see `Attention.carrying`.
        target: of which token the stage "logit" is, by its id; None: the model's most likely next token after each
            sample's last.
        pool: "max" or "mean", where a cell of the picture stands for several of the matrix.
        combine: "none", or the "mean" or "max" of `heads`, shown as one head.
        what_if: other rules to see the same tensors under, such as {"scale": 1.0}: those of `Attention.what_if`.
        color_scale: "linear" or "log".
        color_range: what the colors span: "head"; "row", each its own; "layer", all its heads; "view", what is in
            view where the heatmap is zoomed; "unit", 0 to 1; or (low, high).
        palette: "attnwidget" or "viridis".
        theme: "auto", "light", "dark" or "contrast".
        top_k: draw only so many links of each token in the graph; None: all.
        threshold: draw no link weaker than this, 0 to 1.
        direction: "query" shows what each query attends to, "key" which queries attend to each key.
        bar: the metric under each head where all heads are shown, a field of `Metrics`: "entropy", "first_token",
            "previous_token", "itself", "same_token", "last_token", "induction", "mean_distance", "masked_share" or
            "learned_sink"; "sink" or "streaming" of `find_heads`; "recall", where `what_if` says what a cache keeps;
            "effect", what is lost without the head, where a model is at hand; or "stage_sum" or "stage_size", the sum
            of what its weights carry over the keys of the pinned query, or of all, with signs or of sizes.
        order: "layer"; the metric by which all heads are ordered; or "similar", the heads most like the selected one
            first, as `AttentionStack.similar` finds them.
        kinds: more metrics of all heads, which `bar` and `order` then may name: functions of
            `attnwidget.results.HeadRows`, exact rows of some heads with the tokens and segments of their keys, that
            return a number for each head and row, by name, such as {"mine": function}; or kinds of `find_heads`, by
            name, such as "lookback", which needs segments.
        only_heads: which heads are shown where all are: (first layer, last layer, what `bar` is above), each None for
            no limit, such as (8, 12, None).
        segments: the named parts of the text, which the view "segments" compares: what `attnwidget.segments` takes or
            returns, such as {"document": (0, 40), "answer": (40, 52)}, the messages of a chat, or "sentences"; a list
            with one of these for each sample.
        key_segments: those of the keys, where they are others.
        measure: how the attention to a segment is read: "mass", the mean over the queries of the weight on its keys;
            "per_token", that for each of its keys; "lift", mass against that of even attention.
        aside: segments that are set aside, so that mass is a share of the rest: their names, "sink" (the first token
            and the learned sink), "self" (each query's own key).
        asking: the segment whose attention is looked at, by name, of a nested one by the names that lead to it, such as
            ["documents", "doc 3"]; None: the answer, else the last.
        segment: the pinned segment of the keys, or None.
        segment_path: segments whose own segments are shown, such as ["documents", "doc 3"].
        segments_show: what the view "segments" shows: "attention"; or "effect", what is lost of the next token's
            log-probability without each segment and each head, where a model is at hand: `cap.widget(model=model,
            inputs=inputs)`.
        effect_target: (position, token id) of the token whose probability is looked at; None: the most likely one after
            the last token.
        effect_edit: what is done to a head or a segment: "zero", a head gives nothing and a segment's keys are blocked,
            so that the others take over their weight; "cut", its weights are 0 and the others stay as they were;
            "uniform", its weights are made even.
        layout: of ipywidgets.

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
    >>> AttentionWidget(w.weights(2).expand(4, 4), ["the", "bank", "lent", "money"])
    AttentionWidget(layer 0 of 1, head 0 of 1, 4 queries × 4 keys)
    """

    _tensor_keywords: dict[str, Any]  # the keywords about tensors, which `update` keeps

    _own_layout: Any = None  # the layout that the widget made for itself

    still = True  # whether a saved notebook also holds a small picture, for GitHub and mails: for all widgets, or one

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
        """Show an `Attention` or an `AttentionStack` that is there already, or one of several, to choose among.

        Args:
            attention: what is shown; it is not copied. Several stacks are a mapping: by name ("encoder"), by the number
                of a forward pass (0, 1, …), or by both, (2, "encoder"). A function without arguments that returns one
                is called when it is first chosen.
            show: the keywords of `AttentionWidget` from `tokens` on. Of several stacks, `tokens` and `key_tokens` are
                those of the one that is shown first, or mappings by the same names; a stack without has positions.

        Raises:
            ValueError, TypeError, IndexError: as the widget does; a stack or forward pass that is not there.

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
        """Show weights that are in hand, such as a model's `output.attentions`.

        Args:
            weights: (Q, K), (B, Q, K), (B, H, Q, K), with layers (L, B, H, Q, K), or a list with a tensor for each; or
                what a model of transformers returned, whose `attentions` are taken: of an encoder–decoder all three,
                as the stacks "encoder", "decoder" and "decoder, cross-attention".
            v: values, for outputs and contributions; with layers, as many. Tokens may stand in their place.
            dims: other orders of axes, as in `Attention.from_weights`.
            show: the keywords of `AttentionWidget` from `tokens` on.

        Raises:
            ValueError, TypeError: as `Attention.from_weights` does; a model's output without weights, with the way to
                them.

        >>> import torch
        >>> AttentionWidget.from_weights(torch.randn(2, 1, 4, 6, 6).softmax(-1), layer=1)
        AttentionWidget(layer 1 of 2, head 0 of 4, 6 queries × 6 keys)
        """
        refuse_unknown(show, keywords_of(cls))
        widget = cls.__new__(cls)
        cls._open(widget, *read_weights(weights, v, dims, show), {})
        return widget

    @property
    def attention(self) -> Attention | AttentionStack:
        """The `Attention` or `AttentionStack` that is shown; assign another and the picture follows.

        What is pinned and chosen stays where it is still there; tokens whose number no longer fits are not shown.
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
        """Show other tensors in the same widget, as a training loop makes them; nothing of the old ones is kept.

        Args:
            q, k, v: as for the widget; weights alone, or what a model returned, as well.
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
        refuse_unknown(keywords, KEYWORDS)
        merged = {**self._tensor_keywords, **keywords} if k is not None else {**keywords}
        attention, show = read_arguments(q, k, v, merged, {})
        if show or isinstance(attention, Mapping):
            what = "tokens" if show else "several stacks"
            raise TypeError(f"update shows other numbers at the same places, not {what}: make another widget of them")
        self.attention = attention
        self._tensor_keywords = merged

    def weights(self, query: int) -> Tensor:
        """Compute the exact attention weights of one query in the selected head, over all keys.

        Args:
            query: its position; negative counts from the end.

        Returns:
            (K,), float32, or float64 where q is.

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
        """Compute what every head attends to, in a few numbers: a list of records, as `pandas.DataFrame` takes it.

        Args:
            batch: only this sample; None for all.
            rows: look at so many queries of each head, evenly spread; None for those of the heads view: all while all
                heads together have at most 2²⁸ cells, else up to 32 of each. Each is exact.
            kinds: more numbers of each head, beside those of the widget's own `kinds`: as there.

        Returns:
            A dict for each head: layer, name, batch, head, the fields of `Metrics`, rows, of how many queries they are
            means, and the kinds by name. What is not known is None.

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
        """Whose workers compute the exact pictures of long heads, between cells; None: this process.

        Any `concurrent.futures.Executor`, of threads, processes or a Dask cluster, `client.get_executor()`. The kernel
        only looks at what they have, so it answers meanwhile, and the picture says how many work and how long it takes.

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
        """Compute the exact picture of the selected head now, where it is still a sampled one: see `progress`.

        Of the heads view those that are missing, and the stages view's, too. In a notebook it comes by itself between
        cells; in a script, or before saving, call this. Once interrupted it goes on where it was.

        Args:
            progress: draw a bar with the time left, if tqdm is installed.
            executor: whose workers compute the exact picture, for this once; None: those of `w.executor`, if there are
                any, else this process. What is sampled is computed here.

        Raises:
            TypeError: something else than an executor.

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
        """Write what is shown into one HTML file, which draws it without Jupyter, without Python and without a network.

        All views, pins, zoom and both themes work there. Up to 512 tokens every number is in the file, and up to 1,024
        cells of a head every step of every pair; of longer heads the picture and what is pinned. For anything
        else the page says that the notebook has it.

        Args:
            path: of the file; an existing one is replaced.
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
        with self._lock:
            self._evictions.finish()
            return to_html(
                self._export_view(), path, title=title, layers=layers, heads=heads, samples=samples, limit=limit
            )

    def figure(
        self, *, width: float = 6.5, dpi: float = 200, theme: Literal["auto", "light", "dark"] | None = None
    ) -> Any:
        """Draw what is shown as a matplotlib figure: `w.figure().savefig("bank.svg")`, or .pdf, or .png.

        Every view has one; in a cell it shows itself. It is drawn in the widget's colors; text stays text in SVG and
        PDF. Labels shrink to 6 pt before any is left out.

        Args:
            width: inches, at most: the page ends where what is drawn ends, and so does its height.
            dpi: dots per inch, of what is not drawn as lines.
            theme: "dark" draws on dark paper, "light" and "auto" on white; the widget's own theme where None.

        Returns:
            A `matplotlib.figure.Figure`.

        Raises:
            ImportError: matplotlib is not there; `pip install "attnwidget[figure]"` brings it.
            ValueError: there is nothing to draw, with the reason; or a width, dpi or theme that cannot be.

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
        """Return the widget, and beside it a small picture for where no widget runs."""
        made = super()._repr_mimebundle_(**kwargs)
        still = preview_of(self._export_view()) if made is not None and self.still else None
        if made is None or still is None:
            return made
        data, metadata = made
        sizes = {"image/png": {"width": still.width, "height": still.height}}
        return {**data, "image/png": base64.b64encode(still.png).decode()}, {**metadata, **sizes}

    def close(self) -> None:
        """Take the widget off the page, and compute nothing more; its tensors go with the last name for it.

        >>> import torch
        >>> w = AttentionWidget(*torch.randn(3, 4, 8))
        >>> w.close()
        """
        if hasattr(self, "_lock"):
            with self._lock:
                self._end()
                self._scheduler.clear()
        super().close()
        if self._own_layout is not None and self.layout is self._own_layout:
            self._own_layout.close()  # ipywidgets knows it until then, and nobody else has it

    def __dir__(self) -> list[str]:
        """Return the names that are meant for users; those of ipywidgets can be called as well."""
        return offered_names(type(self))

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        raise TypeError(
            "a widget is not pickled: pickle its tensors, or save a capture by cap.save(path), and make it again; "
            "widget.to_html(path) writes a page that works without a kernel"
        )

    def __repr__(self) -> str:
        shape = self._selected.shape
        forward = f"forward {self.forward} of {self.forwards}, " if self.forwards > 1 else ""
        stack = f"stack {self.stack!r}, " if self.stack else ""
        sample = f"sample {self.batch} of {shape.B}, " if shape.B > 1 else ""
        own = in_model([self.head], all_heads.numbers_of_heads(self._selected))
        return (
            f"AttentionWidget({forward}{stack}layer {self.layer} of {len(self._shown.stack)}, {sample}"
            f"head {self.head} of {shape.H}{own}, {shape.Q:,} queries × {shape.K:,} keys)"
        )

    # Opening: whatever can be refused is refused before the front-end hears of a widget.

    def _open(
        self, attention: Attention | AttentionStack | Sources, show: dict[str, Any], tensor_keywords: dict[str, Any]
    ) -> None:
        bundled("widget.js")  # raises where there is none
        show = self._begin(attention, show)
        self._tensor_keywords = tensor_keywords
        self._make()
        self._show_layers(self._named_stacks.find(self._chosen).attention)
        show = {name: value for name, value in show.items() if value is not None or name not in ("query", "key")}
        show["title"] = show.get("title") or self._shown.title
        has_image = all(show.get(name) is not None for name in ("grid", "image"))
        if has_image and self.traits()["view"].default_value == "heatmap":
            show.setdefault("view", "image")
        for name in [name for name in FIRST if name in show]:
            setattr(self, name, show.pop(name))
        uid = uuid.uuid4().hex
        super().__init__(uid=uid, model_id=uid, **self._select(show))
        self._own_layout = None if show.get("layout") is self.layout else self.layout

    def open(self) -> None:
        """Compute what is shown, and open; ipywidgets calls this once all traits have passed their checks."""
        self._refresh()
        self._watch()
        super().open()


for _function, _keywords in (
    (AttentionWidget.__init__, WidgetKeywords),
    (AttentionWidget.from_attention, ShowKeywords),
    (AttentionWidget.from_weights, ShowKeywords),
    (AttentionWidget.update, LayeredKeywords),
):
    list_keywords(_function, _keywords, AttentionWidget)
