"""`AttentionWidget`: the traits that the front-end draws from, checked, and kept in step with the tensors."""

from __future__ import annotations

import base64
import contextlib
import os
import pathlib
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, get_args

import anywidget
import traitlets
from torch import Tensor

from .._analysis import all_heads
from .._analysis.head_kinds import KindsLike, read_names
from .._analysis.metrics import SURVEYED
from .._export.look.numbers import in_model
from .._export.page.html import to_html
from .._export.page.snapshot import DEFAULT_LIMIT
from .._export.still.preview import preview_of
from .._export.view import SavedHead, SavedTrait
from .._messages.answers import requests
from .._messages.codec.images import Illustration
from .._messages.pictures.heads_of_stage import STAGE_HEADS, STAGE_SUMS, StageSurvey
from .._messages.pictures.heads_overview import Survey, Surveys
from .._messages.pictures.tiles import TileQueue
from .._parallel.executors import workers_of
from .._rules.options import KEYWORDS, LayeredKeywords
from .._utils import scheduler
from .._utils.assets import bundled
from .._utils.failures import sentence_of
from .._utils.indexing import as_index
from .._utils.plain import as_plain, sendable
from .._utils.progress_bars import progress_bar
from .._utils.report import take_page
from .._utils.scheduler import Scheduler
from .._utils.throttle import Throttle
from .._utils.validation import as_size, refuse_unknown
from .._utils.weak import weakly
from ..attention import Attention
from ..stack import AttentionStack, as_attention
from .arguments import ModelOutput, Shown, read_arguments, read_weights
from .derived.derived_rules import TraitBuilders
from .derived.derived_trait import Derived, DerivedTrait
from .derived.findings_cache import FindingsCache
from .front_end.export_view import ExportView
from .front_end.front_ends import FrontEndTraits, answer_script, is_of_marimo
from .front_end.request_context import RequestContext
from .front_end.requested_files import Chosen, RequestedFiles
from .passes.effects import Effects
from .passes.eviction_pass import FOUND, EvictionPass
from .passes.exact_pass import ExactPass
from .passes.masses import Masses
from .stores.layers import ShownLayers, takes
from .stores.named_stacks import LabeledStack, Sources
from .stores.segment_store import GivenSegments, SegmentStore
from .stores.token_store import GivenTokens, TokenStore
from .traits.effect_traits import EffectTraits
from .traits.keywords import (
    WRITABLE,
    ColorScale,
    Combine,
    Direction,
    Palette,
    Pool,
    ShowKeywords,
    TensorsLike,
    Theme,
    Tokens,
    View,
    WidgetKeywords,
    keywords_of,
    list_keywords,
    names_of,
    offered_names,
)
from .traits.selection import Selection
from .traits.trait_types import (
    Choice,
    ColorRange,
    Count,
    Index,
    Kinds,
    MetricChoice,
    OnlyHeads,
    Text,
    Threshold,
    WhatIf,
    WholeOrNone,
    WrongValue,
    derived,
    refusing,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

FOLLOWED = (*Selection._fields, "what_if", "target", "pieces")  # a change of these needs other derived traits
# The others are checked beside these, and are positions of the words if there are words: traitlets sets in no order.
FIRST = ("kinds", "layer", "batch", "tokenizer", "tokens", "key_tokens", "what_if", "target", "pieces")
PAUSE = 0.4  # seconds without another change, as while a scale is dragged, until what can wait is made
EFFECT = "effect"  # of removing a head: a metric that comes from runs of the model
AFTERWARDS = -1.0  # urgency of what can wait a moment: before the exact picture of a long head


class AttentionWidget(FrontEndTraits, EffectTraits, anywidget.AnyWidget):
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

    _tensor_keywords: dict[str, Any]  # those about tensors, which `update` goes on with

    _own_layout: Any = None  # that nobody has given

    still = True  # whether a saved notebook holds a small picture too, for GitHub and mails: of all widgets, or of one

    uid = traitlets.Unicode().tag(sync=True, role="identity")
    title = Text(help="A line above the picture.").tag(sync=True, role="given")

    view: Choice[View] = Choice(*get_args(View), help="How the attention is drawn.").tag(sync=True, role="look")
    pool: Choice[Pool] = Choice(*get_args(Pool), help="What a cell shows that stands for several.").tag(
        sync=True, role="numbers"
    )
    color_scale: Choice[ColorScale] = Choice(*get_args(ColorScale), help="From number to color.").tag(
        sync=True, role="look"
    )
    color_range = ColorRange(help="What the colors span.").tag(sync=True, role="look")
    palette: Choice[Palette] = Choice(*get_args(Palette), help="The colors.").tag(sync=True, role="look")
    theme: Choice[Theme] = Choice(*get_args(Theme), help="The page's theme, or one of your own.").tag(
        sync=True, role="look"
    )

    top_k: WholeOrNone = Count(None, allow_none=True, help="Draw only so many links of each token; None: all.").tag(
        sync=True, role="look"
    )
    threshold = Threshold(help="Draw no link weaker than this.").tag(sync=True, role="look")
    what_if = WhatIf(help="Other rules to see the same tensors under; {} is as they are.").tag(
        sync=True, role="numbers"
    )
    target: WholeOrNone = Index(
        None, allow_none=True, help="The token whose logit the stage logit is of; None: the most likely next."
    ).tag(sync=True, role="numbers")
    direction: Choice[Direction] = Choice(
        *get_args(Direction), help="What a query attends to, or which queries attend to a key."
    ).tag(sync=True, role="look")

    kinds = Kinds(help="More metrics of all heads: functions of exact rows, by name.").tag(role="given")
    bar = MetricChoice(
        *SURVEYED, EFFECT, *STAGE_SUMS, help="The metric under each head, where all heads are shown."
    ).tag(sync=True, role="look")
    order = MetricChoice("layer", "similar", *SURVEYED, EFFECT, *STAGE_SUMS, help="By what all heads are ordered.").tag(
        sync=True, role="look"
    )
    only_heads = OnlyHeads(help="Which heads are shown where all are: layers from, to; and the least of `bar`.").tag(
        sync=True, role="look"
    )
    combine: Choice[Combine] = Choice(*get_args(Combine), help="Show several `heads` as one.").tag(
        sync=True, role="numbers"
    )

    facts = traitlets.Dict(help="Sizes, dtype and device of the selected layer.").tag(sync=True, role="derived")
    picture = traitlets.Dict(help="The selected head, at most 512 × 512.").tag(
        sync=True, role="derived", to_json=lambda value, self: self._exact_pass.as_far_as_known(value)
    )
    thumbnails = derived("All heads of the selected layer, small.")
    progress = derived("How far the exact picture is; None once it is there.")
    links = derived("The strongest links of the chosen heads.")

    errors = traitlets.Dict(help="Why derived traits could not be computed, by name.").tag(sync=True, role="derived")
    findings: Any = traitlets.List(default_value=None, allow_none=True, help="What is likely wrong with the head.").tag(
        sync=True, role="derived"
    )
    deviation = derived("How far torch's own output is, and the original's.")
    stages = derived("All stages of the selected head, small.")
    survey = derived("All heads of all layers, small.")
    stage_heads = derived("All heads of all layers in the chosen stage after the weights.")
    mass = derived("What segments give to segments in the selected head.")
    recall = derived("What each row of the head keeps of its weights, under a cache.")
    head_mass = derived("What one segment gives to each, in all heads.")
    pair = derived("The pinned pair's way through the stages.")

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
            self._exact_pass.cancel()
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
            self._surveys.finish()
            self._stage_surveys.finish()
            self._masses.finish()
            self._effects.finish()
            self._builders.finish_recall()
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
                more = self._builders.finish_stages()

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

    def _export_view(self) -> ExportView:
        """Return the widget as exports see it."""
        context = self._request_context()
        return ExportView(
            traits=self,
            shown=self._shown,
            exact_pass=self._exact_pass,
            context=context,
            derivations=self._derived,
            sent=self._sent_traits,
            masses=self._masses,
            recalls=self._builders.whole_recall,
            more=self._more_traits,
            find_patches=self._patches,
        )

    def _all_chosen(self) -> Chosen:
        """Return what a user has chosen and given, and of which tensors."""
        values = {name: getattr(self, name) for name in names_of(type(self), *WRITABLE)}
        given = tuple(getattr(self, name) for name in names_of(type(self), "given"))
        return Chosen({**values, "version": self._version, "versions": self._selected.versions()}, given)

    def _sent_traits(self) -> dict[str, Any]:
        return dict(self.get_state([*self.class_trait_names(role=lambda role: role is not None, sync=True)]))

    def _more_traits(self, heads: Sequence[SavedHead]) -> Iterable[SavedTrait]:
        """Return what another kind of widget saves of these heads."""
        return ()

    def close(self) -> None:
        """Take the widget off the page, and compute nothing more; its tensors go with the last name for it.

        >>> import torch
        >>> w = AttentionWidget(*torch.randn(3, 4, 8))
        >>> w.close()
        """
        if hasattr(self, "_lock"):
            with self._lock:
                self._exact_pass.cancel()
                self._forget_surveys()
                self._masses.forget()
                self._effects.use(None)
                self._files.forget()
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
        self._lock = threading.RLock()  # a front-end's message may come on another thread while a cell runs
        self._scheduler = Scheduler(self._lock)
        # What the widget owns calls it back weakly: no cycle keeps its tensors once it is closed and let go.
        send, put = weakly(self.send), weakly(self._put)
        self._tile_queue = TileQueue(self._scheduler, send)
        self._exact_pass = ExactPass(self._scheduler, self._tile_queue, send, put, weakly(self._shown_picture))
        self._evictions = EvictionPass(self._scheduler, put, weakly(self._show_evicted))
        self._surveys = Surveys[Survey](self._scheduler, weakly(self._put_survey))
        self._stage_surveys = Surveys[StageSurvey](self._scheduler, weakly(self._put_stage_heads), STAGE_HEADS)
        self._findings = FindingsCache(self._scheduler)
        self._files = RequestedFiles(weakly(self._export_view), weakly(self._all_chosen))
        self._token_store = TokenStore(weakly(self._given_tokens))
        self._illustration = Illustration()
        told, put_again = weakly(self._tell_error), weakly(self.set_trait)
        self._segment_store = SegmentStore(weakly(self._given_segments))
        self._masses = Masses(self._segment_store, self._scheduler, put_again, weakly(self._send_segments))
        self._effects = Effects(
            *(self._scheduler, put_again, weakly(self._effect_wish)),
            *(weakly(self._effect_columns), weakly(self._answer_positions), weakly(self._pieces_of)),
        )
        self._builders = TraitBuilders(
            *(self._exact_pass, self._surveys, self._stage_surveys, self._findings),
            *(self._masses, self._scheduler, put_again),
            merges=self._merges,
        )
        self._derived = Derived(weakly(self._rules), put_again, told, weakly(self._is_opening))
        self._throttle = Throttle(weakly(self._refresh), self._lock)
        self._awaited = self._rules_awaited = False  # while a front-end sets something, and while that is other rules
        self._version = 0  # of the tensors, which may be replaced
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
        self.on_msg(weakly(self._receive))
        self.observe(self._when_changed(self._refresh), FOLLOWED)
        self.observe(self._when_changed(self._send_soon, "key_tokens"), "tokens")  # they may be the same
        self.observe(self._when_changed(self._on_tokens), ["tokens", "key_tokens", "tokenizer"])
        self.observe(self._when_changed(self._on_segments), ["segments", "key_segments"])
        self.observe(self._when_changed(self._send_soon, "grid"), ["grid_side", "grid_start"])
        self.observe(self._when_changed(self._on_choice), ["stack", "forward"])
        self.observe(self._when_changed(self._on_kinds), ["kinds"])
        looked_at = ["segments_show", "order", "bar"]
        self.observe(self._when_changed(self._bring_effects), [*looked_at, "effect_target", "effect_edit"])
        super().open()

    @staticmethod
    def _when_changed(method: Callable[..., None], *given: str) -> Callable[[Any], None]:
        """Return an observer that calls a method, and does not keep the widget alive."""
        call = weakly(method)
        return lambda change: call(*given)

    # What is shown: all that is computed is of what is held.

    def _show_layers(self, attention: Attention | AttentionStack) -> None:
        merged = self.pieces == "words"
        self._shown = ShownLayers(
            attention,
            self._token_store,
            words=merged,
            rules=self.what_if,
            target=self.target,
            version=self._version,
            place=self._named_stacks.place(self._chosen),
        )
        self._builders.use(self._shown)
        self._forget_surveys()
        self._masses.forget()
        self._token_store.forget_ids()

    def _replace_layers(self, attention: Attention | AttentionStack) -> None:
        """Show other tensors or positions, or another stack: nothing of the old ones can be used again."""
        self._derived.forget()  # first: an interrupt in between must not leave the old ones as if they were of these
        self._findings.forget()
        self._builders.forget()
        self._version += 1
        self._show_layers(attention)

    def _on_choice(self) -> None:
        """Show another stack, all of it in one message."""
        if self._is_changing or (self.forward, self.stack) == self._chosen:
            return
        with self._lock, self.hold_sync():
            self._exact_pass.cancel()
            try:
                refused = self._show_chosen()
            finally:
                self._refresh()
        self._say_rules_are_off(refused)

    def _leave_rules_that_cannot_be(self) -> None:
        """Show the layer as it is where the other rules cannot be there, and say so."""
        if self.what_if:
            self._say_rules_are_off(self._keep_rules())

    def _say_rules_are_off(self, refused: str | None) -> None:
        if refused is not None:
            self._say_refused(f"the other rules are off, because they do not fit here: {refused}")

    def _say_refused(self, reason: object) -> None:
        """Tell the front-ends why something is not as it was set."""
        self.send({"refused": sendable(str(reason))})

    @traitlets.validate("what_if")
    def _rules_can_be(self, proposal: Any) -> dict[str, Any]:
        with refusing():
            return self._check_rules(proposal["value"])

    @traitlets.validate("target")
    def _token_is_there(self, proposal: Any) -> int | None:
        target: int | None = proposal["value"]
        layers = self._shown.given if hasattr(self, "_shown") else ()
        if target is None or not layers or any(takes(att, target) for att in layers):
            return target
        with refusing():
            for att in layers:
                att.with_target(target)  # raises, and says why
        return None

    @traitlets.observe("what_if", "target")
    def _on_what_if(self, change: Any) -> None:
        """Compute everything under other rules, as for other tensors."""
        if self._is_changing:
            return
        with self._lock:
            self._exact_pass.cancel()
            self._derived.forget()
            self._version += 1
            self._show_layers(self._shown.attention)

    @traitlets.observe("pieces")
    def _on_pieces(self, change: Any) -> None:
        """Show words or pieces; what is pinned becomes the word that a piece is of, or a word's first piece."""
        if self._is_changing:
            return
        with self._lock:
            self._exact_pass.cancel()
            held, where = self._shown, {"layer": self.layer, "batch": self.batch, "to_words": change["new"] == "words"}
            pins = [
                (held.across("query", query, **where), held.across("key", key, **where)) for query, key in self.pins
            ]
            self._replace_layers(held.attention)
            self.pins = pins

    def _on_tokens(self) -> None:
        """Compute again what depends on tokens, as they tell what is padding and what is the same."""
        if self._is_changing:
            return
        self._findings.forget()
        self._token_store.forget()
        if self.pieces == "words":
            self._replace_layers(self._shown.attention)
        self._forget_surveys()
        self._forget_segments()
        self._derived.forget("survey", "facts", "findings", "deviation")
        self._refresh()

    def _on_kinds(self) -> None:
        """Measure all heads again, with other metrics of the user's own."""
        with self._lock:
            self.bar = self.bar if self.bar in (*SURVEYED, EFFECT, *STAGE_SUMS, *self.kinds) else SURVEYED[0]
            orders = ("layer", "similar", *SURVEYED, EFFECT, *STAGE_SUMS, *self.kinds)
            self.order = self.order if self.order in orders else "layer"
            self._surveys.forget()
            self._derived.forget("survey")
            self._refresh()

    def _on_segments(self) -> None:
        """Compute again what segments give to segments, which are others now."""
        if self._is_changing:
            return
        self._forget_segments()
        self._refresh()

    def _forget_segments(self) -> None:
        self._segment_store.forget()
        self._masses.forget()
        self._effects.forget()
        self._derived.forget("mass", "head_mass")
        if self.kinds:  # these may look at segments
            self._surveys.forget()
            self._derived.forget("survey")

    def _send_segments(self) -> None:
        self._send_soon("segments", "key_segments")

    def _segments_by(self, unit: str) -> None:
        """Make segments of the tokens, as a front-end asks where there are none."""
        with self._waited_for(rules=False):
            self.segments = unit

    @traitlets.validate("view")
    def _view_is_there(self, proposal: Any) -> str:
        if proposal["value"] == "image" and self.grid is None:
            raise WrongValue("view is 'image' but no positions are patches: give grid=(rows, columns) as well")
        return str(proposal["value"])

    @traitlets.observe("grid")
    def _leave_the_image(self, change: Any) -> None:
        if change["new"] is None and self.view == "image":
            self.view = "heatmap"

    # Keeping the derived traits in step with the selection.

    def _refresh(self) -> None:
        """Bring every derived trait to the selection: each only where what it follows from has changed."""
        if self._is_changing:
            return
        with self._lock, self.hold_sync(), self._telling_of_interrupts():
            self._show_what_is_set()
            self._drop_what_is_gone()
            self._leave_rules_that_cannot_be()
            self._drop_a_stage_that_is_gone()
            self._send_soon(*self._to_send_again())
            if self._waits_for_evictions():
                return
            later = self._what_can_wait()
            for name in self._rules():
                if name not in later:
                    self._derived.bring(name)
            self._bring_effects()
            if later and self._scheduler.start("afterwards", self._afterwards(), AFTERWARDS):
                self._scheduler.hold_back(PAUSE if self._rules_awaited else scheduler.AFTER)

    def _show_what_is_set(self) -> None:
        """Show the layers under the rules, and between the words, that are set, where an interrupt came between."""
        shown, words = self._shown, self.pieces == "words"
        if (shown.rules, shown.target, shown.words) != (self.what_if, self.target, words):
            self._replace_layers(self._shown.attention)
        self._shown.kinds, self._shown.segments_of = self.kinds, weakly(self._known_segments)
        self._builders.use(self._shown)

    def _waits_for_evictions(self) -> bool:
        """Begin to find what a cache evicts in the layer, where that takes a while; return whether all waits for it."""
        at = Selection.of(self)
        of = (at.layer, at.batch, at.shown_head, at.stage, at.pool)
        if not self._evictions.begin(self._find_under_rules(), of):
            return False
        self._exact_pass.cancel()
        self._derived.hold_back(FOUND)
        self._evictions.resume()  # what ended with the picture before
        return True

    def _show_evicted(self) -> None:
        """Show what follows from the evictions, and have the front-end ask again for what had to wait."""
        with self._lock:
            self._version += 1
            self._shown.version = self._version
            self._derived.forget("facts")
            self._refresh()

    def _bring_what_is_missing(self) -> None:
        """Compute what an interrupt has left out."""
        if self.picture.get("sampled") is not None and not self._exact_pass.under_way:
            self._derived.forget("picture")
        self._refresh()

    @contextlib.contextmanager
    def _telling_of_interrupts(self) -> Iterator[None]:
        """Where what runs within is interrupted, or finds no more memory, say so in the place of what is not there."""
        try:
            yield
        except BaseException as error:
            is_mistake = isinstance(error, Exception) and not isinstance(error, MemoryError)
            if not is_mistake and self.comm is not None:
                with self.hold_sync():
                    self._drop_what_is_gone()
                    self._derived.interrupt(*([sentence_of(error)] if isinstance(error, MemoryError) else []))
                    self._send_soon(*names_of(type(self), *WRITABLE))  # some may have changed, and nobody was told
            raise

    def notify_change(self, change: Any) -> None:
        """Tell observers of a change; where they are interrupted, the widget says so in the place of their numbers."""
        can_be_set = change["name"] in FOLLOWED or self.trait_metadata(change["name"], "role") in WRITABLE
        if can_be_set and hasattr(self, "_derived") and not self._is_changing:
            with self._telling_of_interrupts():
                super().notify_change(change)
        else:
            super().notify_change(change)

    def _rules(self) -> dict[str, DerivedTrait]:
        return self._builders.rules(Selection.of(self))

    def _what_can_wait(self) -> tuple[str, ...]:
        """Return the traits that come a moment later, while a person waits for others: once for many changes."""
        if self._scheduler.find_loop() is None:
            return ()
        checks = ("findings", "deviation")
        if not self._rules_awaited:
            longer = self._findings.takes_long(self._shown, self.layer, self.batch, self.head)
            return checks if self._awaited or longer else ()
        return (*checks, "thumbnails", "picture") if self.view == "stages" else (*checks, "thumbnails")

    def _afterwards(self) -> Iterator[None]:
        for name in self._rules():
            if name == "findings":
                yield from self._finding()
            with self.hold_sync():
                made = self._derived.bring(name)
                if name == "findings":
                    self._derived.bring("deviation")
            if made:
                yield

    def _finding(self) -> Iterator[None]:
        """Find what is likely wrong with the head in steps, so that `findings` has only to be set."""
        with contextlib.suppress(Exception):  # what makes the trait fails as well, and says so
            yield from self._findings.finding(self._shown, self.layer, self.batch, self.head)

    def _tell_error(self, name: str, error: str | None) -> None:
        """Say why a trait could not be computed, or no longer say it."""
        others = {other: said for other, said in self.errors.items() if other != name}
        self.set_trait("errors", others if error is None else {**others, name: error})

    def _send_soon(self, *names: str) -> None:
        """Send traits whose values are as before but mean something else now."""
        with self.hold_sync():
            self._states_to_send.update(names)

    def _put_survey(self, found: Any) -> None:
        self.set_trait("survey", found)

    def _put_stage_heads(self, found: Any) -> None:
        self.set_trait("stage_heads", found)

    def _forget_surveys(self) -> None:
        self._surveys.forget()
        self._stage_surveys.forget()

    def _shown_picture(self) -> dict[str, Any]:
        return self.picture

    def _given_tokens(self) -> GivenTokens:
        return GivenTokens(self.tokens, self.key_tokens, self.tokenizer)

    def _given_segments(self) -> GivenSegments:
        return GivenSegments(self.segments, self.key_segments, self.tokenizer)

    def _is_opening(self) -> bool:
        return self.comm is None

    def _put(self, **traits: Any) -> None:
        """Set traits that only Python sets, all in one message."""
        with self.hold_sync():
            for name, value in traits.items():
                self.set_trait(name, value)

    # What the front-end sends: untrusted, and answered without a traceback in the kernel's log.

    def set_state(self, sync_data: dict[str, Any]) -> None:
        """Take what a front-end has set and may set; what cannot be is put back there, with the reason.

        Where that is stopped on the way, what holds is sent: it may be another value than that of the front-end.
        """
        with self._lock:
            try:
                self._take(sync_data if isinstance(sync_data, dict) else {})
            except MemoryError as error:  # nobody in Python has asked
                self._say_refused(sentence_of(error))
                self.send_state(names_of(type(self), *WRITABLE))
            except BaseException:
                self.send_state(names_of(type(self), *WRITABLE))
                raise
            finally:
                self._scheduler.hold_back()

    def _take(self, given: dict[str, Any]) -> None:
        names = [name for name in names_of(type(self), *WRITABLE) if name in given]
        with self._waited_for(rules="what_if" in names):
            try:
                super().set_state(self._read_traits(names, given))  # ipywidgets echoes this to all front-ends
            except traitlets.TraitError as error:
                self._say_refused(error)
                self.send_state(names)
            else:
                self._send_what_differs(names, given)

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> dict[str, Any]:
        """Return traits as they are sent, all of them where no key is given: see `ipywidgets.Widget.get_state`.

        In marimo what asks for all of them is `mo.ui.anywidget(w).value`: it is what a reader can choose, such as
        layer, head, query and key, without the pictures.
        """
        if key is None and is_of_marimo(self.comm):
            key = names_of(type(self), *WRITABLE)
        found: dict[str, Any] = super().get_state(key, drop_defaults)
        return found

    def send_state(self, key: Any = None) -> None:
        """Send traits, all of them where no key is given."""
        super().send_state(self.keys if key is None else key)

    def _read_traits(self, names: list[str], given: dict[str, Any]) -> dict[str, Any]:
        """Return what a front-end has set as plain, bounded values of the traits' own types."""
        traits: dict[str, Any] = self.traits()
        with refusing():
            return {name: traits[name].validate(self, as_plain(given[name], name)) for name in names}

    def _send_what_differs(self, names: list[str], given: dict[str, Any]) -> None:
        """Send what became another value than the front-end has set: it holds its own until then."""
        now = self.get_state(names)
        differing = [name for name in names if as_plain(now[name], name) != as_plain(given[name], name)]
        if differing:
            self.send_state(differing)

    def _receive(self, _: Any, content: Any, __: Any) -> None:
        script = answer_script(content)
        if script is not None:
            self.send(script)
            return
        if take_page(content):
            return
        with self._lock:
            try:
                if isinstance(content, dict) and "what_if" in content:
                    self._try_rules(content["what_if"])
                reply = requests.answer(self._request_context(), content)
            except requests.Interrupted as error:
                self.send(*error.reply)
                raise
            except KeyboardInterrupt:
                self._send_reply(requests.refuse(content, requests.INTERRUPTED))
                self.send_state("what_if")
                raise
            except MemoryError as error:
                reply = requests.refuse(content, sentence_of(error))
                self.send_state("what_if")
            finally:
                self._scheduler.hold_back()
        self._send_reply(reply)

    def _send_reply(self, reply: tuple[dict[str, Any], list[bytes]] | None) -> None:
        if reply is not None:
            self.send(*reply)

    def _try_rules(self, changes: Any) -> None:
        """Set other rules; all that follows goes as one message, for a scale that is dragged has many a second."""
        with self._waited_for(rules=True):
            try:
                with self.hold_sync():
                    self.set_trait("what_if", self._read_traits(["what_if"], {"what_if": changes})["what_if"])
            except traitlets.TraitError as error:
                self._say_refused(error)

    @contextlib.contextmanager
    def _waited_for(self, *, rules: bool) -> Iterator[None]:
        """Note, while it runs, that a person waits for what follows, and whether it is from other rules."""
        self._awaited, self._rules_awaited = True, rules
        try:
            yield
        finally:
            self._awaited = self._rules_awaited = False

    def _request_context(self) -> RequestContext:
        return RequestContext(
            shown=self._shown,
            token_store=self._token_store,
            tile_queue=self._tile_queue,
            exact_pass=self._exact_pass,
            evictions=self._evictions,
            findings=self._findings,
            derived=self._derived,
            selection=Selection.of(self),
            refresh=self._refresh,
            files=self._files,
            masses=self._masses,
            segments_by=self._segments_by,
            effects=self._effects,
        )


for _function, _keywords in (
    (AttentionWidget.__init__, WidgetKeywords),
    (AttentionWidget.from_attention, ShowKeywords),
    (AttentionWidget.from_weights, ShowKeywords),
    (AttentionWidget.update, LayeredKeywords),
):
    list_keywords(_function, _keywords, AttentionWidget)
