"""One attention call: `Attention` holds q, k and v, and computes exactly the weights that you ask for.

weights = softmax(q · kᵀ / √D)          Vaswani et al. 2017, eq. 1
output  = weights · v

`_engine` and `_analysis` do the computing for its methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from ._analysis.diagnostics import Finding, check
from ._analysis.explain import Explanation, explain
from ._analysis.gradients import Gradients, gradients, jacobian
from ._analysis.head_sampling import metrics
from ._analysis.keep import Kept, keep
from ._analysis.metrics import Metrics
from ._analysis.received import received
from ._analysis.segment_mass import SegmentMass, by_segment
from ._analysis.statistics import Statistics, statistics, top_keys
from ._analysis.why.reasons import distances
from ._analysis.why.results import DistanceProfile
from ._engine import overview as overviews
from ._engine import parts, softmax
from ._engine.axes import LETTERS, MATRIX, as_heads, as_matrix
from ._engine.base import AttentionBase, Head, Shape
from ._engine.carrying import carrying, with_target
from ._engine.combined_heads import combined
from ._engine.matmul import exact
from ._engine.merged_words import merged
from ._engine.overview import Overview
from ._engine.sources import STAGES, Given, Products, Stage
from ._engine.stages import allowed_cells, streamed
from ._engine.what_if import what_if
from ._rules.options import AttentionKeywords, AttentionOptions, MaskLike, TensorLike, with_keywords
from ._rules.rules import whole
from ._segments.segments import Segments
from ._utils.indexing import Indices, as_indices
from ._utils.validation import as_tensor, detached

if TYPE_CHECKING:
    from typing_extensions import Unpack

INPUTS = (
    "q",
    "k",
    "v",
    "shape",
    "scale",
    "softcap",
    "sinks",
    "is_causal",
    "window",
    "options",
    "dtype",
    "device",
    "stages",
)

__all__ = ["STAGES", "Attention", "Shape"]


class Attention(AttentionBase):
    """Scaled dot-product attention of q, k and v (Vaswani et al. 2017, §3.2.1), computed on demand.

    No (Q, K) tensor is kept: each method computes only the block, row or overview that it returns.

    Args:
        q: queries, (Q, D), (B, Q, D) or (B, H, Q, D); tensor, array, or anything with `__dlpack__` or `__array__`.
        k: keys, with the same axes as q, but K positions and G heads. H is a multiple of G, and query head h uses key
            head h // (H // G), as in torch's `enable_gqa` (Ainslie et al. 2023).
        v: values, like k but with size Dv instead of D, of any floating dtype. Outputs and contributions need v.
        dims: the order of the axes, e.g. "hqd" or "bqhd", if it differs from the default. The letter q also stands for
            the positions of k and v.
        mask: a bool tensor (True = may attend) or a float tensor (added; −∞ or the lowest finite number blocks). It
            broadcasts to (B, H, Q, K); 3-D is read as (B, Q, K), 2-D as (Q, K) or as padding (B, K). Or a function
            f(b, h, q_idx, kv_idx) -> bool, as in FlexAttention: see `attnwidget.masks`.
        mask_means: "keep" or "hide": the meaning of 1 in an integer mask, or of True in a bool mask.
        mask_dims: "qk", "bk", "bqk", "hqk" or "bhqk": the axes of a mask whose shape fits in two ways.
        bias: a floating tensor added to the scores. It broadcasts to (B, H, Q, K); 3-D is read as (H, Q, K). Or a
            function f(score, b, h, q_idx, kv_idx) -> score, as FlexAttention's score_mod: score and indices broadcast,
            b and h are 0-D. A result of −∞ or the lowest finite number blocks the cell.
        is_causal: key ≤ query, aligned at the upper left as in torch. A mask applies as well.
        window: |query − key| < window. With is_causal, each query sees `window` keys, its own included.
        scale: the factor of the scores; None for 1 / √D.
        softcap: capped = softcap · tanh(scaled / softcap), before bias and mask (Gemma 2, 2024, §2); None for no cap.
        sinks: learned sink logits, (H,), or one number for all heads (GPT-OSS, 2025, §2.2); None for no sinks. A sink
            adds the column "sink" to the softmax, without key or value, so a query's weights sum to
            1 − `sink_weights`. Scale, softcap, bias and mask do not change it. −∞: this head has no sink.

    Raises:
        TypeError, ValueError: an input has no reading, or more than one. The message tells what to give instead.

    Attributes:
        q, k, v: views (B, H, Q, D), (B, G, K, D) and (B, G, K, Dv), or None.
        shape: the sizes B, H, G, Q, K, D and Dv.
        scale, softcap, is_causal, window: the values in use.
        sinks: (H,) as given, or None.
        options: the keywords as given.
        dtype, device: of q and k. Results are float64 if q and k are, otherwise float32, on the same device.

    An attention is immutable, and can be copied and pickled. If you change a tensor in place, results follow its new
    values, after one UserWarning.

    >>> q, k = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    >>> att = Attention(q, k, scale=1.0)
    >>> att.block("scores")
    tensor([[2., 0.],
            [0., 2.]])
    >>> att.block(queries=0)
    tensor([[0.8808, 0.1192]])
    """

    def __dir__(self) -> list[str]:
        """Return the names that are meant for users; others are internal to the package."""
        names = {*vars(Attention), *INPUTS}
        return sorted(name for name in names if not name.startswith("_"))

    @with_keywords
    def __init__(
        self,
        q: TensorLike,
        k: TensorLike,
        v: TensorLike | None = None,
        *,
        dims: str | None = None,
        **options: Unpack[AttentionKeywords],
    ) -> None:
        found = AttentionOptions.of(options).detached()
        given = as_tensor(detached(q), "q")
        q, k, v = as_heads(given, detached(k), detached(v), dims)
        (B, H, Q, D), (_, G, K, _) = q.shape, k.shape
        super().__init__(Products(q, k), v, Shape(B, H, G, Q, K, D, None if v is None else v.shape[3]), found)
        self.as_read(dims, given.ndim, LETTERS)

    @classmethod
    @with_keywords
    def from_scores(
        cls,
        scores: TensorLike,
        v: TensorLike | None = None,
        *,
        dims: str | None = None,
        **options: Unpack[AttentionKeywords],
    ) -> Attention:
        """Make an attention from computed scores instead of q and k. The matrix is not copied.

        Args:
            scores: (Q, K), (B, Q, K) or (B, H, Q, K).
            v: values, as in `Attention`.
            mask, mask_means, mask_dims, bias, is_causal, window, softcap, sinks: as in `Attention`.
            scale: the factor of the scores before the softmax; None for 1.
            dims: the order of the axes b, h, q and k, e.g. "hqk"; the axes of v have the same order.

        Returns:
            An `Attention` without q and k.

        Raises:
            TypeError, ValueError: as in `Attention`.

        >>> Attention.from_scores(torch.zeros(1, 4), mask=torch.tensor([[True, True, False, False]])).block()
        tensor([[0.5000, 0.5000, 0.0000, 0.0000]])
        """
        found = AttentionOptions.of(options).detached()
        given = as_tensor(detached(scores), "scores")
        scores, v = as_matrix(given, detached(v), dims, "scores")
        return cls.of(Given(scores, "scores"), v, _shape_of(scores, v), found).as_read(dims, given.ndim, MATRIX)

    @classmethod
    def from_weights(cls, weights: TensorLike, v: TensorLike | None = None, *, dims: str | None = None) -> Attention:
        """Make an attention from computed weights. The matrix is neither copied nor changed.

        Args:
            weights: (Q, K), (B, Q, K) or (B, H, Q, K), 0 or more. Rows are not normalized: they need not sum to 1
                (dropout makes some larger), and NaN is shown. No cell counts as blocked, since the mask is unknown.
            v: values, as in `Attention`.
            dims: the order of the axes b, h, q and k, e.g. "hqk"; the axes of v have the same order. Without q, as in
                "bhk", each head has one query.

        Returns:
            An `Attention` with the stages "weights" and, with v, "contribution".

        Raises:
            ValueError: weights below 0. Methods that need the scores raise it too.

        >>> att = Attention.from_weights(torch.tensor([[0.9, 0.1]]), torch.tensor([[1.0], [3.0]]))
        >>> att.stages
        ('weights', 'contribution')
        >>> att.output()
        tensor([[1.2000]])
        """
        given = as_tensor(detached(weights), "weights")
        weights, v = as_matrix(given, detached(v), dims, "weights")
        least = float(weights.amin())
        if least < 0:
            raise ValueError(
                f"weights go down to {least:.4g}: give the result of a softmax, or use Attention.from_scores(scores); "
                "AttentionWidget.from_scores(scores, title=…) draws a signed map on a diverging scale"
            )
        made = cls.of(Given(weights, "weights"), v, _shape_of(weights, v), AttentionOptions())
        return made.as_read(dims, given.ndim, MATRIX)

    def block(
        self,
        stage: Stage | Literal["allowed"] = "weights",
        *,
        batch: int = 0,
        head: int = 0,
        queries: Any = slice(None),
        keys: Any = slice(None),
    ) -> Tensor:
        """Compute an exact block of one head at one stage.

        Args:
            stage: "scores", "scaled", "capped", "masked" (−∞ where blocked), "weights" (normalized over all keys, not
                only those of the block), "contribution" (weight × ‖v‖, Kobayashi et al. 2020, §3), "value_norm",
                "logit" or "saliency" (what a weight contributes downstream: see `carrying`), or "allowed" (bool).
            batch: which sample; negative counts from the end.
            head: which head; negative counts from the end.
            queries, keys: an int, a slice, a range, or a sequence or 1-D tensor of ints. keys="sink" is the column of
                the learned sink: its logit for "scaled" to "masked", its weights, and 0 for the stages after those.

        Returns:
            (queries, keys), always 2-D; float64 if q and k are, otherwise float32; bool for "allowed".

        Raises:
            IndexError: the batch, head, query or key does not exist.
            ValueError: the stage is unknown, or this attention lacks its inputs; or there is no sink.

        >>> att = Attention(torch.zeros(3, 4), torch.zeros(3, 4), is_causal=True)
        >>> att.block(queries=[0, 2], keys=slice(2))
        tensor([[1.0000, 0.0000],
                [0.3333, 0.3333]])
        """
        self.check_stage(stage, "allowed")
        found = self.head(batch, head)
        rows = as_indices(queries, self.shape.Q, "query", "queries", self.device)
        if isinstance(keys, str):
            return self._sink_column(found, rows, stage, keys)
        columns = as_indices(keys, self.shape.K, "key", "keys", self.device)
        cells = found.block(rows, columns)
        with exact(self.device):
            if stage == "allowed":
                allowed = whole(allowed_cells(self, cells), rows, columns, self.device)
                return allowed.clone(memory_format=torch.contiguous_format)
            normalizer = None
            if streamed(self, stage) != stage:
                if columns == range(self.shape.K):
                    return softmax.whole_rows(self, cells, stage)
                normalizer = softmax.normalizers(found, rows)
            return softmax.exact_block(self, cells, stage, normalizer)

    def sink_weights(self, batch: int = 0, head: int = 0) -> Tensor:
        """Compute the weight that each query gives to the learned sink: 1 minus the sum of its other weights.

        Args:
            batch: which sample; negative counts from the end.
            head: which head; negative counts from the end.

        Returns:
            (Q,): exp(sink − log-normalizer); 1 for a fully masked query, 0 in a head without a sink. For combined heads
            and merged words, their mean or maximum, like the weights.

        Raises:
            IndexError: the batch or head does not exist.
            ValueError: there are no learned sinks.

        >>> Attention(torch.zeros(1, 4), torch.zeros(3, 4), sinks=0.0).sink_weights()
        tensor([0.2500])
        """
        return self._sink_column(self.head(batch, head), range(self.shape.Q), "weights", "sink")[:, 0]

    def _sink_column(self, head: Head, queries: Indices, stage: str, name: str) -> Tensor:
        """Return the sink's column of a stage, (queries, 1)."""
        if name != "sink":
            raise ValueError(f'keys is {name!r}: give key numbers, or "sink" for the column of the learned sink')
        if not self.has_sinks:
            raise ValueError("there are no learned sinks: give Attention(q, k, v, sinks=…)")
        with exact(self.device):
            if stage == "allowed":
                return torch.ones(len(queries), 1, dtype=torch.bool, device=self.device)
            found = softmax.sink_column(head, queries, stage)
        if found is None:
            raise ValueError(f'a sink has no {stage}, because it has no key: ask for "scaled" or a later stage')
        return found[:, None]

    def log_normalizer(self, batch: int = 0, head: int = 0) -> Tensor:
        """Compute log Σ exp(masked) over the keys for each query: FlashAttention's logsumexp (Dao et al. 2022, §3.1).

        A learned sink is one more term of the sum.

        Args:
            batch: which sample; negative counts from the end.
            head: which head; negative counts from the end.

        Returns:
            (Q,), natural logarithms; −∞ for a fully masked query, unless there is a sink.

        Raises:
            IndexError: the batch or head does not exist.
            ValueError: the attention was made from weights, without scores.

        >>> Attention(torch.zeros(1, 4), torch.zeros(8, 4)).log_normalizer()
        tensor([2.0794])
        """
        self.check_stage("masked")
        found = self.head(batch, head)
        with exact(self.device):
            return softmax.head_logsumexp(found).log_normalizer()

    def output(self, batch: int = 0, head: int = 0) -> Tensor:
        """Compute weights · v of one head, streamed over the keys (Dao et al. 2022, algorithm 1).

        Args:
            batch: which sample; negative counts from the end.
            head: which head; negative counts from the end.

        Returns:
            (Q, Dv); 0 for a fully masked query.

        Raises:
            IndexError: the batch or head does not exist.
            ValueError: there is no v.

        >>> Attention(torch.zeros(1, 4), torch.zeros(2, 4), torch.tensor([[1.0], [3.0]])).output()
        tensor([[2.]])
        """
        if self.v is None:
            raise ValueError("there is no v, so no output: give Attention(q, k, v)")
        found = self.head(batch, head)
        with exact(self.device):
            out, normalizer = softmax.output(found)
        if normalizer is not None:
            self.remember(found.batch, found.head, normalizer)
        return out

    def overview(
        self,
        batch: int = 0,
        head: int = 0,
        *,
        size: int = 512,
        pool: Literal["max", "mean"] = "max",
        stage: Stage = "weights",
        progress: bool = False,
        executor: Executor | None = None,
    ) -> Overview:
        """Pool one stage of a head into at most size × size bins, in one streamed pass.

        Args:
            batch: which sample; negative counts from the end.
            head: which head; negative counts from the end.
            size: the most rows and columns. A bin has ⌈Q / size⌉ × ⌈K / size⌉ cells; the last bins may be smaller.
            pool: "max" keeps single strong links; for "logit" and "saliency" it is the largest absolute value, with its
                sign. "mean" averages all cells of a bin, with 0 for blocked weights, but only allowed cells for the
                stage "masked".
            stage: as in `block`.
            progress: draw a bar with the time left, if tqdm is installed.
            executor: an executor of threads, processes or a Dask cluster (`client.get_executor()`) whose workers
                compute it; the result is bit-identical: see docs/scale.md. After an interruption, the same call resumes
                the work.

        Returns:
            `Overview` with values (rows, columns) and allowed (rows, columns): True if any cell of the bin is allowed.

        Raises:
            IndexError: the batch or head does not exist.
            ValueError: the stage, pool or size is not valid.
            TypeError: executor is not an executor, or a mask function cannot be sent to another process.
            RuntimeError: a worker failed; the message names its queries and the reason.

        >>> Attention(*torch.zeros(2, 4, 8)).overview(size=2, pool="mean").values
        tensor([[0.2500, 0.2500],
                [0.2500, 0.2500]])
        """
        if executor is None:
            return overviews.overview(self, batch, head, size=size, pool=pool, stage=stage, progress=progress)
        sample, number, size = overviews.checked(self, batch, head, size, pool, stage)
        return parts.overviews([(None, self)], sample, [[number]], size, pool, stage, executor, progress)[0][0]

    def received(self, *, batch: int = 0, head: int | None = None) -> Tensor:
        """Return the mean weight that each key receives from the queries that may attend to it, exactly.

        Args:
            batch: which sample; negative counts from the end.
            head: which head; None for all.

        Returns:
            (K,), or (H, K) for all heads. NaN for a key that no query may attend to.

        Raises:
            IndexError: there is no such sample or head.

        >>> att = Attention.from_scores(torch.zeros(3, 3), is_causal=True)
        >>> att.received(head=0)  # the first key: (1 + 1/2 + 1/3) / 3
        tensor([0.6111, 0.4167, 0.3333])
        """
        sample, number = self.find(batch, 0 if head is None else head)
        found = received(self, sample, [*range(self.shape.H)] if head is None else [number])
        return found if head is None else found[0]

    def top_keys(self, query: int, count: int = 10, *, batch: int = 0, head: int = 0) -> tuple[Tensor, Tensor]:
        """Find the keys with the largest weights of a query, exactly, among all keys.

        Args:
            query: which query; negative counts from the end.
            count: how many keys at most; blocked keys are left out.
            batch: which sample; negative counts from the end.
            head: which head; negative counts from the end.

        Returns:
            keys (count,) int64 and weights (count,), the largest first; of equal weights, the lower key first. A
            learned sink is not a key: see `sink_weights`.

        Raises:
            IndexError: the batch, head or query does not exist.

        >>> att = Attention(torch.ones(1, 1), torch.tensor([[1.0], [3.0], [2.0]]), scale=1.0)
        >>> att.top_keys(0, 2)
        (tensor([1, 2]), tensor([0.6652, 0.2447]))
        """
        return top_keys(self.head(batch, head), query, count)

    def by_segment(
        self,
        queries: Any,
        keys: Segments | Mapping[str, Any] | None = None,
        *,
        batch: int = 0,
        head: int | None = None,
        stage: Literal["weights", "contribution", "value_norm", "logit", "saliency"] = "weights",
        measure: Literal["mass", "sum", "per_token", "lift"] | None = None,
        without: str | Iterable[str] = (),
        progress: bool = False,
        executor: Executor | None = None,
    ) -> SegmentMass:
        """Measure how much weight goes from segment to segment, exactly at any length, in one streamed pass.

        Args:
            queries: `segments(…)`, with a row for each name; the name of a segment of `keys`; or positions as in
                `block`, with a row for each.
            keys: `segments(…)`, with a column for each name; None: the same as `queries`. For both, spans by name are
                `segments(spans)`, such as {"doc 1": (1, 9)}; a list of numbers is a list of positions.
            batch: which sample; negative counts from the end.
            head: which head; None for all.
            stage: what to sum: the weights, or a later stage that this attention has.
            measure: the meaning of `values`. For weights: "mass", the weight on the keys of a segment, averaged over
                the queries; "per_token", the mass divided by the number of keys; or "lift", the mass divided by the
                mass under uniform attention. For other stages: "sum", the signed sum over the keys, averaged over the
                queries, or "per_token". None: mass, or sum.
            without: names of segments to leave out; "sink" is the first token and the learned sink, "self" is each
                query's own key. Masses are then shares of the remaining weight; sums stay as they are.
            progress: draw a bar with the time left, if tqdm is installed.
            executor: whose workers compute it, as in `overview`; their sums are added in float64.

        Returns:
            `SegmentMass`, with all three measures: values (S, T), or (H, S, T) for all heads. If there is a learned
            sink, its column "learned sink" is the last. For weights given without a mask, every key counts as allowed.
            A row of "logit" sums to what the head adds to the logit by the direct path.

        Raises:
            IndexError, KeyError: the batch, head, query or segment does not exist.
            TypeError, ValueError: segments have another length, this attention lacks the stage, the stage has no mass
                or lift, or an argument cannot be read.

        >>> from attnwidget import segments
        >>> att = Attention.from_weights(torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.125, 0.375]]))
        >>> found = att.by_segment(segments({"document": (1, 2), "answer": (2, 3)}), head=0)
        >>> found.keys, found.values[2]
        (('first token', 'document', 'answer'), tensor([0.5000, 0.1250, 0.3750]))
        >>> att.by_segment([2], segments({"a": (1, 2), "b": (2, 3)}), head=0, without="sink").values
        tensor([[0.2500, 0.7500]])
        >>> att = Attention.from_weights(torch.tensor([[0.5, 0.125, 0.375]]), torch.tensor([[1.0], [2.0], [-4.0]]))
        >>> att = att.carrying(w_o=torch.ones(1, 1), direction=torch.ones(1))
        >>> att.by_segment([0], segments({"a": (1, 2), "b": (2, 3)}), head=0, stage="logit").values
        tensor([[ 0.5000,  0.2500, -1.5000]])
        """
        how: dict[str, Any] = {"stage": stage, "measure": measure, "without": without}
        how |= {"progress": progress, "executor": executor}
        return by_segment(self, queries, keys, batch=batch, head=head, **how)

    def combine(self, heads: Sequence[int] | None = None, how: str = "mean") -> Attention:
        """Combine several heads into one: the mean or the maximum of their exact weights.

        Args:
            heads: their numbers; None for all.
            how: "mean" or "max", cell by cell.

        Returns:
            An `Attention` of one head with only the stage "weights", computed on demand at any length. Rows of a
            maximum can sum to more than 1. A cell is blocked if it is blocked in all of these heads.

        Raises:
            IndexError: a head does not exist.
            ValueError, TypeError: there are no heads, or `how` is something else.

        >>> att = Attention.from_weights(torch.tensor([[[[0.75, 0.25]], [[0.25, 0.75]]]]))
        >>> att.combine().block(), att.combine(how="max").block()
        (tensor([[0.5000, 0.5000]]), tensor([[0.7500, 0.7500]]))
        """
        return combined(self, heads, how)

    def carrying(
        self, *, w_o: Any = None, direction: Any = None, scale: Any = None, grad_output: Any = None
    ) -> Attention:
        """Return the same attention with stages for what its weights contribute downstream.

        - value_norm = weight · ‖v W_O‖ (Kobayashi et al. 2020, §3) needs `w_o`.
        - logit = weight · (v W_O · d) / s needs `w_o` and `direction`: what the cell adds along d in the residual
          stream by the direct path, such as to the logit of a token.
        - saliency = weight · (∂L/∂O · v) = A ⊙ ∂L/∂A needs `grad_output`.

        A captured attention has these stages already; the arguments given here replace its own.

        Args:
            w_o: the output projection, (H · Dv, d_model) or (H, Dv, d_model). The layer adds the concatenated outputs
                of its heads times w_o. It is not copied; after a change in place its stages raise an error.
            direction: d, (d_model,) or (B, d_model). For a token's logit: its row of the unembedding times the weights
                of the final norm, minus the mean of that if the norm subtracts the mean (LayerNorm).
            scale: s, (Q,) or (B, Q): what the final norm divides by at each query; None for 1.
            grad_output: ∂L/∂O, (B, H, Q, Dv); leading axes of size 1 may be left out.

        Returns:
            Another `Attention`; no tensor is copied.

        Raises:
            TypeError, ValueError: an argument is not a tensor or has the wrong shape, there is no v, or this attention
                is made of combined heads or merged words.

        >>> att = Attention.from_weights(torch.tensor([[0.75, 0.25]]), torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
        >>> att = att.carrying(w_o=torch.tensor([[3.0, 0.0], [0.0, 1.0]]), direction=torch.tensor([1.0, -1.0]))
        >>> att.block("value_norm"), att.block("logit")
        (tensor([[2.2500, 0.5000]]), tensor([[ 2.2500, -0.5000]]))
        """
        given = {"w_o": w_o, "direction": direction, "scale": scale, "grad_output": grad_output}
        return carrying(self, given)

    def with_target(self, token: int | Sequence[int]) -> Attention:
        """Return the same captured attention, with the stage "logit" for another token.

        Args:
            token: its id, or one id for each sample. The default target is the most likely next token of each sample.

        Returns:
            Another `Attention`; no tensor is copied.

        Raises:
            IndexError: there is no such token.
            TypeError: the ids are not integers.
            ValueError: the number of ids differs from the number of samples; or the unembedding is not known, as after
                making an attention from tensors or reading a file: use `carrying(direction=…)`.

        >>> import attnwidget
        >>> attnwidget.Attention(*torch.randn(3, 4, 8)).with_target(7)
        Traceback (most recent call last):
        ...
        ValueError: logit is not known: the direction of a token is not known: capture the model, or give ...
        """
        return with_target(self, token)

    def what_if(self, changes: Mapping[str, Any]) -> Attention:
        """Return the attention of the same tensors under other rules; this one stays as it is.

        Args:
            changes: any of

                - scale: a number
                - temperature: a number that divides the scale
                - softcap: a number, or None
                - mask: False removes it
                - causal: True, "lower right" or False
                - window: a number of keys, or None
                - drop_keys: a list of keys
                - sinks: None removes the learned sinks
                - keep: a dict of policy, budget and the other arguments of `Attention.keep`, for a smaller KV cache
                - dtype: "float16", "bfloat16" or "int8": q, k and v are rounded to that type, then computed with in
                  float32; int8 has a scale for each token (Dettmers et al. 2022, §2.1)

                {} changes nothing.

        Returns:
            Another `Attention`; only dtype copies tensors.

        Raises:
            TypeError, ValueError: an unknown change, or a value that it cannot have.
            IndexError: a key does not exist.

        >>> att = Attention(torch.eye(3), torch.eye(3), scale=1.0)
        >>> att.what_if({"drop_keys": [0], "temperature": 0.1}).block(queries=1)
        tensor([[0.0000e+00, 9.9995e-01, 4.5398e-05]])
        """
        return what_if(self, changes)

    def keep(
        self,
        policy: str | MaskLike,
        budget: int | float | None = None,
        *,
        batch: int = 0,
        head: int = 0,
        sinks: int | None = None,
        recent: int | None = None,
        prompt: int | None = None,
        observe: int | None = None,
    ) -> Kept:
        """Compute exactly which share of its weights each row keeps with a smaller KV cache.

        Args:
            policy: which keys the cache keeps. The named policies need causal self-attention.

                "window": the first `sinks` keys after padding, and the latest keys up to the query's own (Xiao et al.
                2024, StreamingLLM, §3.2).

                "heavy_hitters": greedy, for each head (Zhang et al. 2023, H2O, algorithm 1). Each query adds its
                weights over the cached keys to their sums. A full cache evicts the key with the smallest sum, but none
                of the last `recent` keys.

                "tova": greedy, the same for all heads of a layer (Oren et al. 2024, §4). A full cache evicts the key
                with the smallest weight of the current query, averaged over the heads.

                "snapkv": once at the end of the prompt, for each head (Li et al. 2024, §4). It keeps the prompt's last
                `observe` tokens, the earlier keys with most of their weight (summed, then max-pooled over 7 keys), and
                all later keys. Queries of the prompt see all keys.

                Or a mask: bools (Q, K) or (K,), True for a key to keep, or a function f(b, h, q_idx, kv_idx) -> bool.
            budget: the most keys for a query, its own included; or a share of all keys, a float up to 1. For "snapkv"
                it counts the keys of the prompt.
            batch: which sample; negative counts from the end.
            head: which head; negative counts from the end.
            sinks: for "window"; None for 4.
            recent: for "heavy_hitters"; None for half of the budget.
            prompt: for "snapkv", the number of tokens in the prompt.
            observe: for "snapkv"; None for 32.

        Returns:
            `Kept`: for each row its recall, its number of keys and the error of its output; the means, the worst rows,
            `records()`, and the mask. It takes two streamed passes at any length. The two greedy policies take one more
            pass over the scores, and Q steps of `budget` numbers each ("tova": for each head).

        Raises:
            IndexError: the batch or head does not exist.
            TypeError, ValueError: the policy, budget or mask does not fit, or the attention is not causal.

        >>> q, k = torch.zeros(6, 4), torch.zeros(6, 4)
        >>> found = Attention(q, k, is_causal=True).keep("window", 3, sinks=1)
        >>> found.recall
        tensor([1.0000, 1.0000, 1.0000, 0.7500, 0.6000, 0.5000])
        >>> found.worst(2), found.kept.tolist()
        ([5, 4], [1, 2, 3, 3, 3, 3])
        """
        numbers = {"budget": budget, "sinks": sinks, "recent": recent, "prompt": prompt, "observe": observe}
        return keep(self, policy, batch, head, numbers)

    def merge(self, words: Any, key_words: Any = None) -> Attention:
        """Merge subword tokens into words: sum the weights over a word's keys, and average them over its queries.

        Args:
            words: the number of each position's word, as in transformers' `encoding.word_ids()` (None: a word of its
                own); or each position's token, whose marks (Ġ, ▁, ##, </w>) show where words begin; or one such list
                for each sample. The subwords of a word must be adjacent.
            key_words: the same for the keys; None: the same as `words`.

        Returns:
            An `Attention` with only weights, computed on demand. Its rows still sum to 1 (Clark et al. 2019, §4.1). A
            word may attend to another if any subword of the first may attend to any subword of the second.

        Raises:
            TypeError, ValueError: words do not fit the positions, or the subwords of a word are not adjacent.

        >>> att = Attention.from_weights(torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [0.0, 0.5, 0.5]]))
        >>> att.merge(["a", "em", "##bed"]).block()
        tensor([[0.5000, 0.5000],
                [0.0000, 1.0000]])
        """
        return merged(self, words, key_words)

    def check(self, tokens: Sequence[str] | None = None, *, batch: int = 0, head: int = 0) -> list[Finding]:
        """Check one head for likely mistakes: masks, padding, NaN, saturation, parity with torch.

        Args:
            tokens: a string for each key, to recognize padding.
            batch: which sample; negative counts from the end.
            head: which head; negative counts from the end.

        Returns:
            A list of `Finding` with kind, severity ("error", "warning", "note"), where, message and advice, the most
            severe first; empty if nothing is wrong.

        Raises:
            IndexError: the batch or head does not exist.
            ValueError: the number of tokens differs from the number of keys.

        >>> att = Attention(torch.randn(4, 8), torch.randn(4, 8), mask=torch.ones(4, 4).triu(1).bool())
        >>> [finding.kind for finding in att.check()]
        ['inverted mask']
        """
        return check(self.head(batch, head), tokens)

    def explain(self, query: int, key: int, *, w_o: Any = None, batch: int = 0, head: int = 0) -> Explanation:
        """Explain one weight step by step: q · k by dimension, scale, softcap, each rule and bias, softmax, value.

        Args:
            query, key: the pair; negative counts from the end.
            w_o: (Dv, d_model), this head's part of the output projection. Contributions are then ‖weight · v · W_O‖
                (Kobayashi et al. 2020, §3).
            batch: which sample; negative counts from the end.
            head: which head; negative counts from the end.

        Returns:
            `Explanation`, which prints one step a line.

        Raises:
            IndexError: the batch, head, query or key does not exist.
            ValueError: w_o has another shape.

        >>> att = Attention(torch.eye(2), torch.eye(2), torch.eye(2), scale=1.0, is_causal=True)
        >>> print(att.explain(1, 0))
        score       q · k                              0
        scaled      score × 1                          0
                    causal: key ≤ query: allows
        masked                                         0
        weight      exp(masked − 1.31326)              0.268941
        share       of all ‖weight · v‖                0.268941
        """
        return explain(self.head(batch, head), query, key, w_o)

    def distance_profile(self, query: int, key: int, *, batch: int = 0, head: int = 0) -> DistanceProfile:
        """Compute the score of a query with one key's content at each other position, all else held.

        It says whether a head looks at content or at place: rotary positions (RoPE, Su et al. 2021) turn q and k by
        their positions, so a score depends on the content of both and on their distance.

        Args:
            query, key: the pair; negative counts from the end.
            batch: which sample; negative counts from the end.
            head: which head; negative counts from the end.

        Returns:
            `results.DistanceProfile`: distances (n,), the query's position less the other position, and scores (n,).

        Raises:
            ValueError: the rotation is not known: it takes capture(model, sources=True) of a model with RoPE.
            IndexError: the batch, head, query or key does not exist.

        >>> att = Attention(*torch.zeros(2, 3, 4))
        >>> att.distance_profile(2, 0)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: this attention has no sources: record it with capture(model, sources=True), ...
        """
        return distances(self, query, key, batch=batch, head=head)

    def gradients(self, grad_output: Any = None, *, batch: int = 0, head: int = 0) -> Gradients:
        """Compute the gradients of a loss L in q, k, v, weights and scores of one head, streamed over the queries.

        Args:
            grad_output: dL/dO, (Q, Dv); None for ones, so that L is the sum of the output.
            batch: which sample; negative counts from the end.
            head: which head; negative counts from the end.

        Returns:
            `Gradients` with q (Q, D), k (K, D), v (K, Dv), weights and scores (Q, K), and sink, in the dtype of
            results. With weights A and output O: dL/dV = Aᵀ · dL/dO, dL/dA = dL/dO · Vᵀ, and through a row's softmax
            dL/ds = (diag(p) − p pᵀ) · dL/dp (Bridle 1990).

        Raises:
            IndexError: the batch or head does not exist.
            ValueError: there is no v, or grad_output has another shape.

        >>> att = Attention(torch.zeros(1, 1), torch.zeros(2, 1), torch.tensor([[1.0], [3.0]]))
        >>> found = att.gradients()
        >>> found.weights, found.scores
        (tensor([[1., 3.]]), tensor([[-0.5000,  0.5000]]))
        """
        return gradients(self.head(batch, head), grad_output)

    def jacobian(self, query: int, *, batch: int = 0, head: int = 0) -> Tensor:
        """Compute the Jacobian of the softmax at one query, d weight / d masked score: diag(p) − p pᵀ (Bridle 1990).

        Args:
            query: which query; negative counts from the end.
            batch: which sample; negative counts from the end.
            head: which head; negative counts from the end.

        Returns:
            (K, K), symmetric. Each row and column sums to 0, or with a learned sink to weight × sink weight.

        Raises:
            IndexError: the batch, head or query does not exist.
            ValueError: there are more than 4,096 keys.

        >>> Attention(torch.zeros(1, 1), torch.zeros(2, 1)).jacobian(0)
        tensor([[ 0.2500, -0.2500],
                [-0.2500,  0.2500]])
        """
        return jacobian(self.head(batch, head), query)

    def statistics(self, batch: int = 0, head: int = 0) -> Statistics:
        """Compute the variances of q, k, v and scores of one head, and the entropy, peak and more of each row.

        Args:
            batch: which sample; negative counts from the end.
            head: which head; negative counts from the end.

        Returns:
            `Statistics`, computed in a few streamed passes.

        Raises:
            IndexError: the batch or head does not exist.

        >>> att = Attention(torch.zeros(2, 4), torch.zeros(8, 4))
        >>> att.statistics().entropy  # bits: 8 equal keys
        tensor([3., 3.])
        """
        return statistics(self.head(batch, head))

    def metrics(
        self, batch: int = 0, head: int = 0, *, tokens: Sequence[str] | None = None, rows: int | None = None
    ) -> Metrics:
        """Measure what one head attends to: the first, previous, last and own token, its entropy, and more.

        Args:
            batch: which sample; negative counts from the end.
            head: which head; negative counts from the end.
            tokens: a string for each token, for `same_token` and `induction`.
            rows: how many queries to measure, evenly spread, the last one included; each is exact. None: all queries
                of a head with up to 2²⁶ cells (8,192 × 8,192), and 64 of a larger one.

        Returns:
            `Metrics`, which defines each of them: means over the queries, as Python numbers.

        Raises:
            IndexError: the batch or head does not exist.
            ValueError: the number of tokens differs from the number of keys.

        >>> att = Attention(torch.zeros(4, 8), torch.zeros(4, 8), is_causal=True)
        >>> found = att.metrics(tokens=["a", "b", "a", "b"])
        >>> round(found.first_token, 4), round(found.same_token, 4), found.mean_distance, found.masked_share, found.rows
        (0.5208, 0.2917, 0.75, 0.375, 4)
        """
        return metrics(self, batch, head, tokens, rows)


def _shape_of(matrix: Tensor, v: Tensor | None) -> Shape:
    (B, H, Q, K), (G, Dv) = matrix.shape, (None, None) if v is None else (v.shape[1], v.shape[3])
    return Shape(B, H, H if G is None else G, Q, K, None, Dv)
