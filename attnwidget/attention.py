"""One attention call: q, k and v as they are, and exactly the part of the weights that is asked for.

weights = softmax(q · kᵀ / √D)          Vaswani et al. 2017, eq. 1
output  = weights · v

What can be asked of one attention is a method of `Attention`; `_engine` and `_analysis` compute the answers.
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
from ._analysis.segment_mass import SegmentMass, by_segment
from ._analysis.statistics import Statistics, statistics, top_keys
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
    """Scaled dot-product attention of q, k and v (Vaswani et al. 2017, §3.2.1), computed where it is looked at.

    No tensor (Q, K) is held: each method computes the block, row or overview that it is asked for.

    Args:
        q: queries, (Q, D), (B, Q, D) or (B, H, Q, D); tensor, array, or anything with `__dlpack__` or `__array__`.
        k: keys, with the axes of q, K for Q and G for H. H is a multiple of G, and query head h uses key head
            h // (H // G), as torch's `enable_gqa` (Ainslie et al. 2023).
        v: values, as k with Dv for D; without v there are no outputs and no contributions.
        dims: the axes by name where the default for their number is wrong, e.g. "hqd" or "bqhd"; q is the position in
            k and v too.
        mask: bool (True = may attend) or float (added; −∞ or the least finite number blocks), which broadcasts to
            (B, H, Q, K); 3-D is (B, Q, K), 2-D is (Q, K) or padding (B, K). Or a function
            f(b, h, q_idx, kv_idx) -> bool, as FlexAttention's: see `attnwidget.masks`.
        mask_means: "keep" or "hide": what 1 means in an integer mask, and True in a bool one.
        mask_dims: "qk", "bk", "bqk", "hqk" or "bhqk", where a mask fits in two ways.
        bias: added to the scores, a floating tensor that broadcasts to (B, H, Q, K); 3-D is (H, Q, K). Or a function
            f(score, b, h, q_idx, kv_idx) -> score, as FlexAttention's score_mod: score and indices broadcast, b and h
            are 0-D. A cell that gets −∞ or the least finite number is blocked.
        is_causal: key ≤ query, from the upper left as in torch; with a mask, both apply.
        window: |query − key| < window, so with is_causal the window keys up to the query's own.
        scale: what the scores are multiplied by; 1 / √D where None.
        softcap: capped = softcap · tanh(scaled / softcap), before bias and mask (Gemma 2, 2024, §2); none where None.
        sinks: learned sink logits, (H,), or one number for all heads (GPT-OSS, 2025, §2.2): one more column of the
            softmax, "sink", without a key and without a value, so that the weights of a query's keys sum to 1 less
            `sink_weights`. Neither scale nor softcap, bias or mask changes it. −∞ is a head without; none where None.

    Raises:
        TypeError, ValueError: an input that cannot be read in exactly one way, with what was wanted instead.

    Attributes:
        q, k, v: views (B, H, Q, D), (B, G, K, D) and (B, G, K, Dv), or None.
        shape: the sizes B, H, G, Q, K, D and Dv.
        scale, softcap, is_causal, window: what applies.
        sinks: (H,) as they were given, or None.
        options: the keywords as they were given.
        dtype, device: of the tensors. Results are float64 for float64, else float32, on the same device.

    An attention does not change, and can be copied and pickled. Tensors that change in place afterwards are shown as
    they then are, after one UserWarning.

    >>> q, k = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    >>> att = Attention(q, k, scale=1.0)
    >>> att.block("scores")
    tensor([[2., 0.],
            [0., 2.]])
    >>> att.block(queries=0)
    tensor([[0.8808, 0.1192]])
    """

    def __dir__(self) -> list[str]:
        """Return the names that are meant for users; the package asks attentions more than that."""
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
        """Make an attention of scores that are there already, in the place of q and k; the matrix is never copied.

        Args:
            scores: (Q, K), (B, Q, K) or (B, H, Q, K).
            v: values, as in `Attention`.
            mask, mask_means, mask_dims, bias, is_causal, window, softcap, sinks: as in `Attention`.
            scale: what the scores are multiplied by before the softmax; 1 where None.
            dims: their axes by name, of b, h, q and k, e.g. "hqk"; those of v are in the same order.

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
        """Make an attention of weights that are there already; the matrix is never copied, and never changed.

        Args:
            weights: (Q, K), (B, Q, K) or (B, H, Q, K), from 0 up. Rows are taken as they are: they need not sum to 1
                (dropout makes some larger), and NaN is shown. Which cells were blocked is not known: none is.
            v: values, as in `Attention`.
            dims: the axes by name, of b, h, q and k, e.g. "hqk"; those of v are in the same order.

        Returns:
            An `Attention` with the stages "weights" and, with v, "contribution".

        Raises:
            ValueError: weights below 0; later, whatever needs the scores.

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
                f"weights go down to {least:.4g}: give what the softmax gives, or Attention.from_scores(scores)"
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
        """Compute an exact block of a stage of one head.

        Args:
            stage: "scores", "scaled", "capped", "masked" (−∞ where blocked), "weights" (over all keys, also if few are
                asked for), "contribution" (weight × ‖v‖, Kobayashi et al. 2020, §3), "value_norm", "logit", "saliency"
                (what a weight carries: see `carrying`) or "allowed" (bool).
            batch: which sample; negative counts from the end.
            head: which head; negative counts from the end.
            queries, keys: an int, a slice, a range, or a sequence or 1-D tensor of ints. keys="sink" is the column of
                the learned sink: its logit from "scaled" to "masked", its weights, and 0 of all that weights carry.

        Returns:
            (queries, keys), always 2-D; in float32, or float64 where the tensors are, and bool for "allowed".

        Raises:
            IndexError: a batch, head, query or key that is not there.
            ValueError: there is no such stage, or not for what this attention was made of; no sink.

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
        """Compute the weight that each query gives to the learned sink: what the weights of its keys leave of 1.

        Args:
            batch: which sample; negative counts from the end.
            head: which head; negative counts from the end.

        Returns:
            (Q,): exp(sink − log-normalizer); 1 for a query that may attend to nothing, 0 in a head without a sink. Of
            combined heads or merged words their mean, or maximum, as of their weights.

        Raises:
            IndexError: a batch or head that is not there.
            ValueError: there are no learned sinks.

        >>> Attention(torch.zeros(1, 4), torch.zeros(3, 4), sinks=0.0).sink_weights()
        tensor([0.2500])
        """
        return self._sink_column(self.head(batch, head), range(self.shape.Q), "weights", "sink")[:, 0]

    def _sink_column(self, head: Head, queries: Indices, stage: str, name: str) -> Tensor:
        """Return the sink's column of a stage, (queries, 1)."""
        if name != "sink":
            raise ValueError(f'keys is {name!r}: give keys by number, or "sink" for the column of the learned sink')
        if not self.has_sinks:
            raise ValueError("there are no learned sinks: give Attention(q, k, v, sinks=…)")
        with exact(self.device):
            if stage == "allowed":
                return torch.ones(len(queries), 1, dtype=torch.bool, device=self.device)
            found = softmax.sink_column(head, queries, stage)
        if found is None:
            raise ValueError(f'a sink has no {stage}, for it has no key: ask for one of the stages from "scaled" on')
        return found[:, None]

    def log_normalizer(self, batch: int = 0, head: int = 0) -> Tensor:
        """Compute log Σ exp(masked) over the keys for each query: FlashAttention's logsumexp (Dao et al. 2022, §3.1).

        A learned sink is one more term of the sum.

        Args:
            batch: which sample; negative counts from the end.
            head: which head; negative counts from the end.

        Returns:
            (Q,), natural logarithms; −∞ for a query that may attend to nothing, unless there is a sink.

        Raises:
            IndexError: a batch or head that is not there.
            ValueError: only weights are there.

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
            (Q, Dv); 0 for a query that may attend to nothing.

        Raises:
            IndexError: a batch or head that is not there.
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
        """Pool a stage of one head to at most size × size bins, in one streamed pass.

        Args:
            batch: which sample; negative counts from the end.
            head: which head; negative counts from the end.
            size: rows and columns, at most; a bin is ⌈Q / size⌉ × ⌈K / size⌉ cells, the last of them ragged.
            pool: "max" keeps single strong links, of "logit" and "saliency" the largest absolute value, with its sign;
                "mean" is over all cells of a bin, blocked weights being 0, but over the allowed ones only for the stage
                "masked".
            stage: which, as in `block`.
            progress: draw a bar with the time left, if tqdm is installed.
            executor: whose workers compute it, bit by bit as this process would: threads, processes, or those of a Dask
                cluster, `client.get_executor()`; see docs/scale.md. Once interrupted, the same call goes on where it
                was.

        Returns:
            Overview with values (rows, columns) and allowed (rows, columns), True where any cell of the bin is.

        Raises:
            IndexError: a batch or head that is not there.
            ValueError: a stage, pool or size that is not.
            TypeError: no executor, or a mask function that no other process can be sent.
            RuntimeError: a worker failed, with the queries that it had and the reason.

        >>> Attention(*torch.zeros(2, 4, 8)).overview(size=2, pool="mean").values
        tensor([[0.2500, 0.2500],
                [0.2500, 0.2500]])
        """
        if executor is None:
            return overviews.overview(self, batch, head, size=size, pool=pool, stage=stage, progress=progress)
        sample, number, size = overviews.checked(self, batch, head, size, pool, stage)
        return parts.overviews([(None, self)], sample, [[number]], size, pool, stage, executor, progress)[0][0]

    def top_keys(self, query: int, count: int = 10, *, batch: int = 0, head: int = 0) -> tuple[Tensor, Tensor]:
        """Find the keys to which a query gives most weight: exact, among all keys.

        Args:
            query: which; negative counts from the end.
            count: how many, at most; blocked keys are never among them.
            batch: which sample; negative counts from the end.
            head: which head; negative counts from the end.

        Returns:
            keys (count,) int64 and weights (count,), the largest first, of equal ones the lower key. A learned sink is
            not a key: see `sink_weights`.

        Raises:
            IndexError: a batch, head or query that is not there.

        >>> att = Attention(torch.ones(1, 1), torch.tensor([[1.0], [3.0], [2.0]]), scale=1.0)
        >>> att.top_keys(0, 2)
        (tensor([1, 2]), tensor([0.6652, 0.2447]))
        """
        return top_keys(self.head(batch, head), query, count)

    def by_segment(
        self,
        queries: Any,
        keys: Segments | None = None,
        *,
        batch: int = 0,
        head: int | None = None,
        stage: Literal["weights", "contribution", "value_norm", "logit", "saliency"] = "weights",
        measure: Literal["mass", "sum", "per_token", "lift"] | None = None,
        without: str | Iterable[str] = (),
        progress: bool = False,
        executor: Executor | None = None,
    ) -> SegmentMass:
        """Measure how much weight goes from segment to segment: exact at any length, in one streamed pass.

        Args:
            queries: `segments(…)`, with a row for each name; the name of a segment of `keys`; or positions as in
                `block`, with a row for each.
            keys: `segments(…)`, with a column for each name; as `queries` where None.
            batch: which sample; negative counts from the end.
            head: which head; None for all.
            stage: what is summed: the weights, or a stage after them, what a weight carries, as it is known here.
            measure: what `values` are: "mass", the mean over the queries of the weight on the keys of a segment;
                "per_token", that divided by the number of keys; or "lift", divided by what even attention gives. Of
                another stage "sum", the mean over the queries of its sum over the keys, with signs, or "per_token".
                None: mass, or sum.
            without: names of segments to set aside; "sink" is the first token and the learned sink, "self" each query's
                own key. Masses are then shares of what is left; sums stay as they are.
            progress: draw a bar with the time left, if tqdm is installed.
            executor: whose workers compute it, as in `overview`; their sums are added in float64.

        Returns:
            `SegmentMass`, which has all three measures: values (S, T), or (H, S, T) for all heads; "learned sink" is
            the last column where there is one. Weights that were given without a mask count every key as allowed. The
            sums of "logit" over a row are what the head adds to the logit by the direct path.

        Raises:
            IndexError, KeyError: a batch, head, query or segment that is not there.
            TypeError, ValueError: segments of another length, a stage that is not known here, a mass or lift of what is
                no share, or what cannot be read.

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
        """Combine several heads into one: the mean, or the maximum, of their exact weights.

        Args:
            heads: which; None for all.
            how: "mean" or "max", cell by cell.

        Returns:
            An `Attention` of one head that has the stage "weights" alone, computed where it is looked at: rows, tiles,
            overview and rankings at any length. Rows of a maximum sum to more than 1. A cell is blocked where it is in
            all of these heads.

        Raises:
            IndexError: a head that is not there.
            ValueError, TypeError: no heads, or another way than these.

        >>> att = Attention.from_weights(torch.tensor([[[[0.75, 0.25]], [[0.25, 0.75]]]]))
        >>> att.combine().block(), att.combine(how="max").block()
        (tensor([[0.5000, 0.5000]]), tensor([[0.7500, 0.7500]]))
        """
        return combined(self, heads, how)

    def carrying(
        self, *, w_o: Any = None, direction: Any = None, scale: Any = None, grad_output: Any = None
    ) -> Attention:
        """Return the same attention with what its weights carry on, which gives the stages named here.

        value_norm = weight · ‖v W_O‖ (Kobayashi et al. 2020, §3), of `w_o`. logit = weight · (v W_O · d) / s, of `w_o`
        and `direction`: what the cell adds to what d reads of the residual stream, as the logit of a token, by the
        direct path. saliency = weight · (∂L/∂O · v), which is A ⊙ ∂L/∂A, of `grad_output`. A captured attention has
        them by itself; what is given here is put in their place.

        Args:
            w_o: the output projection, (H · Dv, d_model) or (H, Dv, d_model): what the layer adds is the outputs of the
                heads side by side, times it. It is kept as it is: a stage is refused once it was changed in place.
            direction: d, (d_model,) or (B, d_model): of a token's logit its row of the unembedding times the weights of
                the final norm, less its mean where that norm takes the mean away (LayerNorm).
            scale: s, (Q,) or (B, Q): what the final norm divides by at each query; 1 where None.
            grad_output: ∂L/∂O, (B, H, Q, Dv), or its last axes where those before are 1.

        Returns:
            Another `Attention`; no tensor is copied.

        Raises:
            TypeError, ValueError: no tensors, shapes that do not fit, no v, or weights of several heads or words as
                one.

        >>> att = Attention.from_weights(torch.tensor([[0.75, 0.25]]), torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
        >>> att = att.carrying(w_o=torch.tensor([[3.0, 0.0], [0.0, 1.0]]), direction=torch.tensor([1.0, -1.0]))
        >>> att.block("value_norm"), att.block("logit")
        (tensor([[2.2500, 0.5000]]), tensor([[ 2.2500, -0.5000]]))
        """
        given = {"w_o": w_o, "direction": direction, "scale": scale, "grad_output": grad_output}
        return carrying(self, given)

    def with_target(self, token: int | Sequence[int]) -> Attention:
        """Return the same captured attention, whose stage "logit" is of another token.

        Args:
            token: its id, or one for each sample. Before anything is chosen it is the token that the model held most
                likely after the last of each sample.

        Returns:
            Another `Attention`; no tensor is copied.

        Raises:
            IndexError: there is no such token.
            TypeError: something else than ids.
            ValueError: another number of them than of samples; or an attention of which no unembedding is known, as one
                that was made of tensors, or read from a file: give `carrying(direction=…)`.

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
            changes: any of scale (a number), temperature (divides the scale), softcap (a number or None), mask (False
                takes it away), causal (True, "lower right" or False), window (keys, or None), drop_keys (a list), sinks
                (None takes the learned ones away), keep (a dict of `Attention.keep`'s policy, budget and the others, of
                which keys a cache has), and dtype ("float16", "bfloat16", "int8": q, k and v as that type
                holds them, computed in float32; int8 has a scale for each token, Dettmers et al. 2022, §2.1). {}
                changes nothing.

        Returns:
            Another `Attention`; no tensor is copied but where dtype rounds them.

        Raises:
            TypeError, ValueError: a change that there is not, or a value that it cannot have.
            IndexError: a key that is not there.

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
        """Compute what the rows of one head keep of their weights where a cache holds some of the keys only: exact.

        Args:
            policy: which keys are kept, of causal self-attention.

                "window": the first `sinks` keys that are no padding, and the last ones up to the query's own (Xiao et
                al. 2024, StreamingLLM, §3.2).

                "heavy_hitters": greedy, query after query (Zhang et al. 2023, H2O, algorithm 1): each query's weights
                over the keys that are there are added to the sums of these, and where the cache is full, the key with
                the least sum is evicted, but none of the last `recent`. By head.

                "tova": greedy as well (Oren et al. 2024, §4): the key with the least weight of the last query is
                evicted, the mean over the heads of the layer, which all evict the same.

                "snapkv": once, where the prompt ends (Li et al. 2024, §4): its last `observe` queries and those keys
                before with most of their weights, summed and pooled by maximum over 7 keys, are kept, and what is
                written after. By head; queries of the prompt have all keys.

                Or a mask: bools (Q, K) or (K,), True where a key is kept, or a function f(b, h, q_idx, kv_idx) -> bool.
            budget: how many keys a query has at most, its own among them; or a share of all keys, a float up to 1. Of
                "snapkv", of the prompt's keys.
            batch: which sample; negative counts from the end.
            head: which head; negative counts from the end.
            sinks: of "window", 4 where None.
            recent: of "heavy_hitters", half of the budget where None.
            prompt: of "snapkv", how many tokens the prompt has.
            observe: of "snapkv", 32 where None.

        Returns:
            `Kept`: of each row its recall, the keys that it has, and the error of its output; their means, the worst
            rows, `records()`, and the mask. Two streamed passes at any length; for the two greedy policies one more
            over the scores, and Q steps of `budget` numbers each (of "tova", times the heads).

        Raises:
            IndexError: a batch or head that is not there.
            TypeError, ValueError: a policy, budget or mask that does not fit, or attention that is not causal.

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
        """Return the attention between words rather than pieces: to a word summed over its pieces, from one averaged.

        Args:
            words: for each position the number of its word, as transformers' `encoding.word_ids()` gives them (None: a
                word of its own), or its token, whose marks (Ġ, ▁, ##, </w>) say where words begin; or such a list for
                each sample. Pieces of a word follow one another.
            key_words: the same for the keys; as `words` where None.

        Returns:
            An `Attention` of weights alone, computed where it is looked at as this one is. Its rows still sum to 1
            (Clark et al. 2019, §4.1). A word may attend to another if any of its pieces may to any of the other's.

        Raises:
            TypeError, ValueError: words that do not fit the positions, or lie apart.

        >>> att = Attention.from_weights(torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [0.0, 0.5, 0.5]]))
        >>> att.merge(["a", "em", "##bed"]).block()
        tensor([[0.5000, 0.5000],
                [0.0000, 1.0000]])
        """
        return merged(self, words, key_words)

    def check(self, tokens: Sequence[str] | None = None, *, batch: int = 0, head: int = 0) -> list[Finding]:
        """Look for what is likely wrong with one head: masks, padding, NaN, saturation, parity with torch.

        Args:
            tokens: a string for each key, by which padding is known.
            batch: which sample; negative counts from the end.
            head: which head; negative counts from the end.

        Returns:
            A list of `Finding` with kind, severity ("error", "warning", "note"), where, message and advice, the gravest
            first; empty if all is as it should be.

        Raises:
            IndexError: a batch or head that is not there.
            ValueError: another number of tokens than of keys.

        >>> att = Attention(torch.randn(4, 8), torch.randn(4, 8), mask=torch.ones(4, 4).triu(1).bool())
        >>> [finding.kind for finding in att.check()]
        ['inverted mask']
        """
        return check(self.head(batch, head), tokens)

    def explain(self, query: int, key: int, *, w_o: Any = None, batch: int = 0, head: int = 0) -> Explanation:
        """Explain one weight: q · k by dimension, scale, softcap, each rule and bias, softmax, value.

        Args:
            query, key: the pair; negative counts from the end.
            w_o: (Dv, d_model), the part of the output projection that belongs to this head: contributions are then
                ‖weight · v · W_O‖ (Kobayashi et al. 2020, §3).
            batch: which sample; negative counts from the end.
            head: which head; negative counts from the end.

        Returns:
            `Explanation`, which prints as a ladder of steps.

        Raises:
            IndexError: a batch, head, query or key that is not there.
            ValueError: w_o of another shape.

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

    def gradients(self, grad_output: Any = None, *, batch: int = 0, head: int = 0) -> Gradients:
        """Compute how a loss reaches q, k, v, weights and scores of one head: the backward pass, streamed over queries.

        Args:
            grad_output: dL/dO, (Q, Dv); ones where None, so that L is the sum of the output.
            batch: which sample; negative counts from the end.
            head: which head; negative counts from the end.

        Returns:
            `Gradients` with q (Q, D), k (K, D), v (K, Dv), weights and scores (Q, K), and sink, in the dtype of
            results. With weights A and output O: dL/dV = Aᵀ · dL/dO, dL/dA = dL/dO · Vᵀ, and through a row's softmax
            dL/ds = (diag(p) − p pᵀ) · dL/dp (Bridle 1990).

        Raises:
            IndexError: a batch or head that is not there.
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
            query: which; negative counts from the end.
            batch: which sample; negative counts from the end.
            head: which head; negative counts from the end.

        Returns:
            (K, K), symmetric; each row and column sums to 0, or with a learned sink to weight × that of the sink.

        Raises:
            IndexError: a batch, head or query that is not there.
            ValueError: more than 4,096 keys.

        >>> Attention(torch.zeros(1, 1), torch.zeros(2, 1)).jacobian(0)
        tensor([[ 0.2500, -0.2500],
                [-0.2500,  0.2500]])
        """
        return jacobian(self.head(batch, head), query)

    def statistics(self, batch: int = 0, head: int = 0) -> Statistics:
        """Compute variances of q, k, v and scores of one head, and of each row its entropy, peak and more.

        Args:
            batch: which sample; negative counts from the end.
            head: which head; negative counts from the end.

        Returns:
            `Statistics`, computed in a few streamed passes.

        Raises:
            IndexError: a batch or head that is not there.

        >>> att = Attention(torch.zeros(2, 4), torch.zeros(8, 4))
        >>> att.statistics().entropy  # bits: 8 keys alike
        tensor([3., 3.])
        """
        return statistics(self.head(batch, head))

    def metrics(
        self, batch: int = 0, head: int = 0, *, tokens: Sequence[str] | None = None, rows: int | None = None
    ) -> Metrics:
        """Measure what one head attends to: entropy, first, previous and last token, itself, and more.

        Args:
            batch: which sample; negative counts from the end.
            head: which head; negative counts from the end.
            tokens: a string for each token, for `same_token` and `induction`.
            rows: look at so many queries, evenly spread, the last among them; None for all of a head of up to 2²⁶
                cells (8,192 × 8,192), and 64 of a longer one. Each is exact.

        Returns:
            `Metrics`, whose definitions are written there: means over the queries, as Python numbers.

        Raises:
            IndexError: a batch or head that is not there.
            ValueError: another number of tokens than of keys.

        >>> att = Attention(torch.zeros(4, 8), torch.zeros(4, 8), is_causal=True)
        >>> found = att.metrics(tokens=["a", "b", "a", "b"])
        >>> round(found.first_token, 4), round(found.same_token, 4), found.mean_distance, found.masked_share, found.rows
        (0.5208, 0.2917, 0.75, 0.375, 4)
        """
        return metrics(self, batch, head, tokens, rows)


def _shape_of(matrix: Tensor, v: Tensor | None) -> Shape:
    (B, H, Q, K), (G, Dv) = matrix.shape, (None, None) if v is None else (v.shape[1], v.shape[3])
    return Shape(B, H, H if G is None else G, Q, K, None, Dv)
