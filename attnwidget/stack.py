"""The layers of a model: a sequence of `Attention`, indexed by number or name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor

from ._analysis import all_heads
from ._analysis.head_kinds import KindsLike, read_names
from ._analysis.keep import kept_by, key_mask
from ._analysis.metrics import as_ids
from ._analysis.rollout import rollout
from ._analysis.segment_mass import SegmentMass, by_segment_of_layers
from ._analysis.similar_heads import similar
from ._engine.combined_heads import combined_layers
from ._engine.overview import Overview, checked
from ._engine.parts import overviews
from ._engine.sources import Stage
from ._engine.step_weights import is_by_step, joined_steps
from ._rules.options import KEYWORDS, AttentionKeywords, LayeredKeywords, MaskLike, with_keywords
from ._segments.segments import Segments
from ._tokens.inputs import check_tokens
from ._utils.choices import is_glob, matches_name
from ._utils.indexing import as_index
from ._utils.validation import as_choice, as_size, as_tensor, closest, kind_of
from .attention import Attention

if TYPE_CHECKING:
    from typing_extensions import Unpack

LAYER_PARTS = ("q", "k", "v", *KEYWORDS)
LAYER_EXAMPLE = '{"q": …, "k": …, "v": …}, where v may be left out'


class AttentionStack(Sequence[Attention]):
    """An immutable sequence of `Attention`, one for each layer. Layers may differ in heads and lengths.

    Args:
        layers: one `Attention` for each layer.
        names: a string for each layer; None for "layer 0", "layer 1", ….

    Raises:
        TypeError, ValueError: there are no layers, one is not an `Attention`, or the names do not fit.

    >>> import torch
    >>> stack = AttentionStack([Attention(*torch.randn(2, 3, 4)) for _ in range(2)], names=["first", "second"])
    >>> stack["second"] is stack[-1]
    True
    """

    layers: tuple[Attention, ...]
    names: tuple[str, ...]

    def __init__(self, layers: Iterable[Attention], names: Iterable[str] | None = None) -> None:
        if isinstance(layers, Attention):
            raise TypeError("layers is a single Attention: give a list of Attention")
        layers = tuple(layers)
        for i, layer in enumerate(layers):
            if not isinstance(layer, Attention):
                raise TypeError(f"layer {i} is {kind_of(layer)}: give an Attention for each layer")
        if not layers:
            raise ValueError("layers is empty: give at least one Attention")
        names = _check_names(names, len(layers))
        self.__dict__.update(layers=layers, names=names)

    @classmethod
    @with_keywords
    def from_arrays(
        cls,
        arrays: Mapping[str, Mapping[str, Any]],
        *,
        dims: str | None = None,
        **keywords: Unpack[AttentionKeywords],
    ) -> AttentionStack:
        """Make a stack from named arrays, as files and servers hold them.

        Args:
            arrays: maps the name of each layer, in order, to a mapping with "q", "k" and optionally "v", each (Q, D),
                (B, Q, D) or (B, H, Q, D) as for `Attention`. The mapping may also hold keywords of `Attention`, such as
                "is_causal" or "mask".
            dims: the order of the axes in all layers, as for `Attention`.
            keywords: for all layers, as for `Attention`; keywords of a layer override them.

        Raises:
            TypeError, ValueError: there are no layers, or a layer lacks q or k or has an unknown entry; or as in
                `Attention`, with the name of the layer first.

        >>> import torch
        >>> saved = {f"model.layers.{i}": {"q": torch.randn(8, 5, 4), "k": torch.randn(2, 5, 4)} for i in range(2)}
        >>> stack = AttentionStack.from_arrays(saved, dims="hqd", is_causal=True)
        >>> stack.names, stack[1].shape.H, stack[1].shape.G
        (('model.layers.0', 'model.layers.1'), 8, 2)
        """
        if not isinstance(arrays, Mapping):
            raise TypeError(f"arrays is {kind_of(arrays)}: give a mapping of names to {LAYER_EXAMPLE}")
        shared = {"dims": dims, **keywords}
        return cls([_layer_of(name, one, shared) for name, one in arrays.items()], arrays)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"an AttentionStack is immutable, so {name} cannot be set: make a new one")

    def __len__(self) -> int:
        return len(self.layers)

    @overload
    def __getitem__(self, where: int) -> Attention: ...
    @overload
    def __getitem__(self, where: str) -> Any: ...
    @overload
    def __getitem__(self, where: slice | re.Pattern[str] | Sequence[int | str]) -> AttentionStack: ...
    def __getitem__(self, where: Any) -> Any:
        """Return one layer by number or name, or a stack of several by slice, glob, regular expression or list.

        Args:
            where: for one layer, a number (negative counts from the end), a name, or a dotted part of only one name
                ("h.5"). For several layers, a slice, a glob of names or their parts ("encoder.*"), a compiled regular
                expression, or a list of numbers and names.

        Raises:
            IndexError: there is no such layer.
            KeyError: no layer matches the name, or several do.

        >>> import torch
        >>> layers = [Attention(*torch.randn(2, 3, 4)) for _ in range(3)]
        >>> stack = AttentionStack(layers, names=["encoder.0.attn", "encoder.1.attn", "decoder.0.attn"])
        >>> stack["encoder.1"] is stack[1], stack["encoder.*"].names, stack[[0, -1]].names
        (True, ('encoder.0.attn', 'encoder.1.attn'), ('encoder.0.attn', 'decoder.0.attn'))
        """
        if isinstance(where, slice):
            return self._part(range(len(self))[where])
        if isinstance(where, re.Pattern) or (isinstance(where, str) and is_glob(where) and where not in self.names):
            return self._part(self._matching(where))
        if isinstance(where, str):
            return self.layers[self._find(where)]
        if isinstance(where, list | tuple | range):
            return self._part([self._find(one) if isinstance(one, str) else self._number(one) for one in where])
        return self.layers[self._number(where)]

    def _part(self, numbers: Iterable[int]) -> AttentionStack:
        numbers = list(dict.fromkeys(numbers))
        return AttentionStack([self.layers[i] for i in numbers], [self.names[i] for i in numbers])

    def _number(self, where: Any) -> int:
        try:
            return range(len(self))[where]
        except IndexError:
            there = f"layers 0 to {len(self) - 1}" if len(self) > 1 else "layer 0 only"
            raise IndexError(f"layer {where} is not there: this stack has {there}") from None

    def _matching(self, where: str | re.Pattern[str]) -> list[int]:
        found = [i for i, name in enumerate(self.names) if matches_name(where, name)]
        if not found:
            wanted = where.pattern if isinstance(where, re.Pattern) else where
            raise KeyError(f"no layer matches {wanted!r}: the first is {self.names[0]!r}, and .names lists all")
        return found

    def metrics(
        self,
        batch: int | None = None,
        *,
        tokens: Any = None,
        rows: int | None = None,
        kinds: KindsLike = (),
        progress: bool = False,
        executor: Executor | None = None,
    ) -> list[dict[str, Any]]:
        """Measure what every head of every layer attends to, as a list of records for `pandas.DataFrame`.

        Args:
            batch: only this sample; None for all.
            tokens: a string for each position, or one such list for each sample, for `same_token` and `induction`.
                Layers with another length get neither.
            rows: how many queries of each head to measure, evenly spread; each is exact. None: all queries if all heads
                together have at most 2²⁸ cells, otherwise up to 32 of each head.
            kinds: more numbers for each head: "sink", "streaming", or custom functions of
                `attnwidget.results.HeadRows`, named as in {"mine": function} or by their own names: see `find_heads`.
            progress: draw a bar with the time left, if tqdm is installed.
            executor: whose workers compute it, as in `Attention.overview`; their sums are added in float64.

        Returns:
            A dict for each head: layer, name, batch, head, the fields of `Metrics`, rows (the number of queries
            measured), and the kinds. Unknown values are None. If a capture kept only some heads, model_head is the
            head's number in the model.

        Raises:
            IndexError: no layer has the sample.
            ValueError: a kind is unknown, or needs segments; for these, use `find_heads`.
            TypeError: tokens are not strings.

        >>> import torch
        >>> stack = AttentionStack([Attention(*torch.zeros(2, 1, 2, 4, 8), is_causal=True)])
        >>> [(one["name"], one["head"], one["mean_distance"]) for one in stack.metrics()]
        [('layer 0', 0, 0.75), ('layer 0', 1, 0.75)]
        """
        most = max(att.shape.B for att in self)
        batches = None if batch is None else [as_index(batch, most, "batch", "batches")]
        rows = None if rows is None else as_size(rows, "rows")
        more = read_names(kinds, "kinds") if kinds else None
        ids = self._ids_of(tokens)
        if executor is None and not progress:
            return all_heads.records(self, self.names, batches, rows, ids, more)
        return all_heads.records_by_workers(self, self.names, batches, rows, ids, more, executor, progress)

    def similar(
        self,
        layer: int | str,
        head: int,
        *,
        batch: int = 0,
        by: Literal["both", "metrics", "picture"] = "both",
        top: int | None = 10,
        tokens: Any = None,
    ) -> list[dict[str, Any]]:
        """Find the heads most similar to one head, by their metrics and by the picture of their weights.

        Args:
            layer: by number or name.
            head: which head; negative counts from the end.
            batch: which sample.
            by: "metrics": the root mean squared difference of all metrics, each in units of its standard deviation over
                all heads. "picture": 1 − the cosine of the weights, max-pooled to at most 32 × 32 bins. "both": the sum
                of both ranks.
            top: how many heads; None for all others.
            tokens: as in `metrics`.

        Returns:
            A dict for each head, the nearest first: rank, layer, name, head, and the distances metrics and picture. An
            unknown distance is None, for example between pictures of layers with different lengths. Long heads are
            measured on evenly spread rows, as in `metrics`.

        Raises:
            IndexError, KeyError: the layer, batch or head does not exist.
            ValueError: `by` is something else.

        >>> import torch
        >>> first, same = torch.eye(8)[[0] * 8], torch.eye(8)
        >>> stack = AttentionStack([Attention.from_weights(torch.stack([first, same, same])[None])])
        >>> [one["head"] for one in stack.similar(0, 1)]
        [2, 0]
        """
        way = as_choice(by, ("both", "metrics", "picture"), "by")
        number = self._find(layer) if isinstance(layer, str) else self._number(layer)
        sample = as_index(batch, max(att.shape.B for att in self), "batch", "batches")
        top = None if top is None else as_size(top, "top")
        return similar(self, self.names, number, head, sample, way, top, self._ids_of(tokens))

    def _ids_of(self, tokens: Any) -> Callable[[int, int], Tensor | None]:
        """Return a function that gives the token ids of a layer and sample."""
        known: dict[tuple[int, int], list[Tensor | None] | None] = {}

        def ids(layer: int, sample: int) -> Tensor | None:
            shape = self[layer].shape
            if (shape.B, shape.K) not in known:
                known[shape.B, shape.K] = _ids_of(tokens, shape.B, shape.K)
            found = known[shape.B, shape.K]
            return None if found is None else found[sample]

        return ids

    def keep(
        self,
        policy: str | MaskLike,
        budget: int | float | None = None,
        *,
        batch: int = 0,
        sinks: int | None = None,
        recent: int | None = None,
        prompt: int | None = None,
        observe: int | None = None,
    ) -> list[dict[str, Any]]:
        """Compute what every head of every layer keeps with a smaller KV cache, as a list of records for pandas.

        Args:
            policy, budget, sinks, recent, prompt, observe: as in `Attention.keep`.
            batch: which sample; negative counts from the end.

        Returns:
            A dict for each head: layer, name, head, recall (averaged over the rows that lose a key; 1 if none does),
            worst (the smallest recall of a row), worst_query, output_error (averaged over the same rows; None without
            v), and cut (the number of rows that lose a key).

        Raises:
            IndexError: there is no such sample.
            TypeError, ValueError: as in `Attention.keep`.

        >>> import torch
        >>> stack = AttentionStack([Attention(*torch.zeros(2, 1, 2, 6, 4), is_causal=True)])
        >>> [(one["head"], round(one["recall"], 4), one["worst_query"]) for one in stack.keep("window", 3, sinks=1)]
        [(0, 0.6167, 5), (1, 0.6167, 5)]
        """
        numbers = {"budget": budget, "sinks": sinks, "recent": recent, "prompt": prompt, "observe": observe}
        found = []
        for layer, (name, att) in enumerate(zip(self.names, self, strict=True)):
            mask = key_mask(att, policy, numbers)  # which heads may share
            for head in range(att.shape.H):
                kept = kept_by(att.head(batch, head), mask, str(mask))
                where = {"layer": layer, "name": name, **all_heads.head_numbers(att, head)}
                worst = kept.worst(1)
                least = {
                    "worst": float(kept.recall[worst[0]]) if worst else 1.0,
                    "worst_query": worst[0] if worst else None,
                }
                numbers_of = {"recall": kept.mean, **least, "output_error": kept.mean_error}
                found.append({**where, **numbers_of, "cut": int(kept.cut.sum())})
        return found

    def by_segment(
        self,
        queries: Any,
        keys: Segments | Mapping[str, Any] | None = None,
        *,
        batch: int = 0,
        stage: Literal["weights", "contribution", "value_norm", "logit", "saliency"] = "weights",
        measure: Literal["mass", "sum", "per_token", "lift"] | None = None,
        without: str | Iterable[str] = (),
        progress: bool = False,
        executor: Executor | None = None,
    ) -> SegmentMass:
        """Measure exactly how much weight goes from segment to segment, in all heads of all layers.

        Args:
            queries, keys, batch, stage, measure, without, progress, executor: as in `Attention.by_segment`.

        Returns:
            `SegmentMass` with values (L, H, S, T); NaN for heads that a layer does not have.

        Raises:
            IndexError, KeyError, TypeError, ValueError: as in `Attention.by_segment`, with the name of the layer.

        >>> import torch
        >>> from attnwidget import segments
        >>> stack = AttentionStack([Attention(*torch.zeros(2, 1, 2, 4, 8), is_causal=True)] * 3)
        >>> found = stack.by_segment("answer", segments({"document": (1, 3), "answer": (3, 4)}))
        >>> found.shape, found.values[2, 1]
        (torch.Size([3, 2, 1, 3]), tensor([[0.2500, 0.5000, 0.2500]]))
        """
        how: dict[str, Any] = {"stage": stage, "measure": measure, "without": without}
        how |= {"progress": progress, "executor": executor}
        return by_segment_of_layers(self, self.names, queries, keys, batch=batch, **how)

    def overviews(
        self,
        batch: int = 0,
        *,
        size: int = 128,
        pool: Literal["max", "mean"] = "max",
        stage: Stage = "weights",
        progress: bool = False,
        executor: Executor | None = None,
    ) -> list[list[Overview]]:
        """Pool one stage of all heads of all layers into at most size × size bins, each in one streamed pass.

        Args:
            batch: which sample; negative counts from the end.
            size, pool, stage, progress, executor: as in `Attention.overview`.

        Returns:
            A list for each layer, with an `Overview` for each head.

        Raises:
            IndexError, ValueError: as in `Attention.overview`, with the name of the layer.
            TypeError, RuntimeError: from an executor, as in `Attention.overview`.

        >>> import torch
        >>> stack = AttentionStack([Attention(*torch.zeros(2, 1, 2, 4, 8), is_causal=True)] * 3)
        >>> stack.overviews(size=2)[2][1].values
        tensor([[1.0000, 0.0000],
                [0.3333, 0.3333]])
        """
        asked = []
        for name, att in zip(self.names, self, strict=True):
            try:
                sample, _, size = checked(att, batch, 0, size, pool, stage)
            except (IndexError, ValueError) as error:
                raise type(error)(f"{name}: {error}") from error
            asked.append((name, att))
        heads = [range(att.shape.H) for att in self]
        return overviews(asked, sample, heads, size, pool, stage, executor, progress)

    def pair(self, query: int, key: int, batch: int = 0) -> Tensor:
        """Compute the exact weight of one query on one key, in all heads of all layers.

        Args:
            query, key: the pair; negative counts from the end of each layer.
            batch: which sample; negative counts from the end.

        Returns:
            (L, H); NaN for heads that a layer does not have.

        Raises:
            IndexError: a layer does not have the batch, query or key.

        >>> import torch
        >>> stack = AttentionStack([Attention(*torch.zeros(2, 1, 2, 4, 8), is_causal=True)] * 3)
        >>> stack.pair(query=1, key=0)
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000],
                [0.5000, 0.5000]])
        """
        return all_heads.pair(self, self.names, query, key, batch)

    def weights(self, layer: int | str, batch: int | None = None, head: int | None = None) -> Tensor:
        """Compute all weights of a layer as one tensor, up to 1 GiB.

        Args:
            layer: by number or name.
            batch: only this sample; None for all.
            head: only this head; None for all.

        Returns:
            (B, H, Q, K); a chosen batch or head removes its axis.

        Raises:
            IndexError, KeyError: the layer, batch or head does not exist.
            ValueError: there are more than 2²⁸ weights (1 GiB): use `Attention.block`.

        >>> import torch
        >>> stack = AttentionStack([Attention(*torch.zeros(2, 1, 2, 4, 8))])
        >>> stack.weights(0).shape, stack.weights(0, batch=0, head=1)[0]
        (torch.Size([1, 2, 4, 4]), tensor([0.2500, 0.2500, 0.2500, 0.2500]))
        """
        found = self[layer]
        if not isinstance(found, Attention):
            raise TypeError(f"layer is {layer!r}, which names {len(found)} layers: give one")
        return all_heads.weights(found, batch, head)

    def rollout(
        self, batch: int = 0, heads: Literal["mean", "max"] | Sequence[int] = "mean", residual: float = 0.5
    ) -> Attention:
        """Compute attention rollout: how much each token reaches every other through all layers.

        Each layer has A = residual · I + (1 − residual) · W, normalized so that rows sum to 1. The result is the
        product of all A, the first layer on the right (Abnar & Zuidema 2020, §3). The share of a learned sink is
        divided among the keys.

        Args:
            batch: which sample.
            heads: W is the "mean" or "max" over all heads, or the mean over a list of heads. Rows of a maximum are
                first normalized to sum to 1.
            residual: the share of the residual connection; 0.5 in the paper.

        Returns:
            An `Attention` of one head, from weights (n, n). A fully masked query keeps only itself.

        Raises:
            ValueError: a layer (named in the message) has another length than the first, or keys other than its
                queries; or there are more than 4,096 tokens, because the product is dense.
            IndexError: the batch or head does not exist.

        >>> import torch
        >>> stack = AttentionStack([Attention.from_weights(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))] * 2)
        >>> stack.rollout().block()
        tensor([[1.0000, 0.0000],
                [0.7500, 0.2500]])
        """
        return Attention.from_weights(rollout(self.layers, self.names, batch, heads, residual))

    def combine(
        self,
        layers: Any = None,
        heads: Sequence[int] | None = None,
        how: Literal["mean", "max"] = "mean",
        *,
        grids: Sequence[tuple[int, int]] | None = None,
    ) -> Attention:
        """Combine heads of several layers into one map: the mean or the maximum of their exact weights.

        Several forward passes or time steps are layers of one stack too:
        `AttentionStack([att for forward in cap for att in forward.attention]).combine()`.

        Args:
            layers: numbers, names or a slice, as in `stack[…]`; None for all.
            heads: numbers of heads in each layer; None for all.
            how: "mean" or "max", cell by cell.
            grids: for an image model whose layers have different sizes, the (rows, columns) of each layer's patches,
                which are its queries. All are brought to the largest grid by area; their rows still sum to 1.

        Returns:
            An `Attention` of one head with only the stage "weights", computed on demand at any length. A cell is
            blocked if it is blocked in all of these heads.

        Raises:
            ValueError, TypeError: layers have different sizes; or as in `Attention.combine`.
            IndexError, KeyError: a layer or a head does not exist.

        >>> import torch
        >>> stack = AttentionStack(
        ...     [Attention.from_weights(torch.tensor([[a, 1 - a]])) for a in (0.25, 0.5, 0.75)]
        ... )
        >>> stack.combine().block(), stack.combine(layers=[0, 1], how="max").block()
        (tensor([[0.5000, 0.5000]]), tensor([[0.5000, 0.7500]]))
        >>> stack.combine().description[0]
        'the mean of 3 heads, layers 0–2'
        """
        if layers is None:
            numbers = list(range(len(self)))
        elif isinstance(layers, slice):
            numbers = list(range(len(self)))[layers]
        else:
            given = [layers] if isinstance(layers, int | str) else list(layers)
            numbers = sorted({self._find(one) if isinstance(one, str) else self._number(one) for one in given})
        if not numbers:
            raise ValueError(f"layers is {layers!r:.60}: give at least one layer, or None for all")
        own = None if grids is None else [_as_grid(grids, number, len(self)) for number in numbers]
        return combined_layers([self.layers[number] for number in numbers], numbers, heads, how, own)

    def by_layer(self, query: int, *, batch: int = 0) -> Attention:
        """Return the row of one query in every layer: how what a token attends to changes from layer to layer.

        Args:
            query: which query; negative counts from the end, so -1 is the last token.
            batch: which sample; negative counts from the end.

        Returns:
            An `Attention` of exact weights (1, H, layers, K): its queries are the layers. Give their names as tokens,
            `AttentionWidget(stack.by_layer(-1), tokens=stack.names, key_tokens=tokens)`.

        Raises:
            IndexError: there is no such query or sample.
            ValueError: layers differ in heads or keys.

        >>> import torch
        >>> stack = AttentionStack([Attention(*torch.zeros(2, 3, 4), is_causal=True) for _ in range(2)])
        >>> stack.by_layer(1).block()
        tensor([[0.5000, 0.5000, 0.0000],
                [0.5000, 0.5000, 0.0000]])
        """
        sizes = {(att.shape.H, att.shape.K) for att in self.layers}
        if len(sizes) > 1:
            told = " and ".join(f"{heads} heads and {keys:,} keys" for heads, keys in sorted(sizes)[:2])
            raise ValueError(f"layers have {told}: choose layers of one size, such as stack[:2].by_layer({query})")
        rows = []
        for att in self.layers:
            at = as_index(query, att.shape.Q, "query", "queries")
            sample = as_index(batch, att.shape.B, "batch", "batches")
            rows.append(torch.cat([att.block(batch=sample, head=head, queries=[at]) for head in range(att.shape.H)]))
        return Attention.from_weights(torch.stack([row.to(rows[0]) for row in rows], 1)[None])

    def _find(self, name: str) -> int:
        if name in self.names:
            return self.names.index(name)
        holding = [i for i, known in enumerate(self.names) if matches_name(name, known)]
        if len(holding) == 1:
            return holding[0]
        if holding:
            raise KeyError(
                f"{len(holding)} layers have {name!r} in their names, such as {self.names[holding[0]]!r}: give a full "
                f"name, or '*{name}*' for a stack of them"
            )
        close = closest(name, self.names) or self.names[0]
        raise KeyError(f"no layer is called {name!r}: the nearest is {close!r}, and .names lists all")

    def __repr__(self) -> str:
        lines = [f"  {name}: {layer!r}" for name, layer in zip(self.names, self.layers, strict=True)]
        if len(lines) > 6:
            lines[3:-2] = [f"  … {len(lines) - 5} more"]
        return "\n".join([f"AttentionStack of {len(self)} layer{'s' * (len(self) > 1)}", *lines])


def _ids_of(tokens: Any, batches: int, length: int) -> list[Tensor | None] | None:
    """Return the token ids of each sample, None for unknown ones; None if the tokens do not fit this length."""
    try:
        samples = check_tokens(tokens, batches, length, "tokens")
    except ValueError:  # the tokens fit another layer
        return None
    known: dict[int, Tensor | None] = {}
    return None if samples is None else [known.setdefault(id(one), as_ids(one)) for one in samples]


def _check_names(names: Iterable[str] | None, count: int) -> tuple[str, ...]:
    if names is None:
        return tuple(f"layer {i}" for i in range(count))
    if isinstance(names, str):
        raise TypeError(f"names is the string {names!r}: give a list with one string for each layer")
    names = tuple(names)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"names holds {name!r}: give strings")
        if names.count(name) > 1:
            raise ValueError(f"names holds {name!r} twice: give each layer its own name")
    if len(names) != count:
        strings = f"{len(names)} string{'s' * (len(names) != 1)}"
        raise ValueError(f"names has {strings} but there are {count} layers: give one for each")
    return names


def as_attention(given: Any, otherwise: str) -> Attention | AttentionStack:
    """Return `given` if it is an attention or a stack; otherwise raise TypeError that names `otherwise`."""
    if isinstance(given, Attention | AttentionStack):
        return given
    raise TypeError(
        f"attention is {type(given).__name__}: give an Attention or an AttentionStack, such as the `attention` of a "
        f"capture, or call {otherwise} with tensors"
    )


def attention_of(q: Any, k: Any, v: Any, keywords: Mapping[str, Any]) -> Attention | AttentionStack:
    """Make one attention, or a stack of layers from a list or 5 dimensions: see `Attention` and `stack_layers`."""
    if isinstance(q, list | tuple) or getattr(q, "ndim", 0) == 5:
        return stack_layers(q, k, v, **keywords)
    return Attention(q, k, v, **keywords)


def is_missing(weights: Any) -> bool:
    """Return whether a model returned no weights: None, or a nested list or tuple without any."""
    return weights is None or (isinstance(weights, list | tuple) and all(map(is_missing, weights)))


def _layer_of(name: str, arrays: Any, keywords: Mapping[str, Any]) -> Attention:
    """Make one layer from named arrays: see `AttentionStack.from_arrays`."""
    if not isinstance(arrays, Mapping):
        raise TypeError(f"layer {name!r} is {kind_of(arrays)}: give {LAYER_EXAMPLE}")
    missing = [part for part in ("q", "k") if arrays.get(part) is None]
    if missing:
        there = ", ".join(map(repr, arrays)) or "nothing"
        raise ValueError(f"layer {name!r} has no {' and no '.join(missing)}, but {there}: give {LAYER_EXAMPLE}")
    unknown = next((one for one in arrays if one not in LAYER_PARTS), None)
    if unknown is not None:
        known = closest(unknown, LAYER_PARTS)
        advice = f"is {known!r} meant?" if known else f"give {LAYER_EXAMPLE}"
        raise ValueError(f"layer {name!r} has {unknown!r}, which Attention does not take: {advice}")
    try:
        return Attention(**{**keywords, **arrays})
    except (TypeError, ValueError) as error:
        raise type(error)(f"layer {name!r}: {error}") from error


def attention_from_weights(weights: Any, v: Any, dims: str | None) -> Attention | AttentionStack:
    """Make one attention from weights, or a stack of layers from a list or 5 dimensions."""
    if is_by_step(weights):
        weights = joined_steps(weights)
    if is_missing(weights):
        raise TypeError(
            "weights is None or empty or holds only None, so the model returned no weights: load it with "
            "attn_implementation='eager' and call it with output_attentions=True, or record it unchanged with "
            "capture(model)"
        )
    absent = [layer for layer, one in enumerate(weights) if one is None] if isinstance(weights, list | tuple) else []
    if absent:
        raise TypeError(
            f"weights is None at layer {absent[0]} of {len(weights)}: record the model with capture(model), which "
            "names its layers; or give the layers with weights, which are then counted without the others: "
            "[one for one in weights if one is not None]"
        )
    if isinstance(weights, list | tuple) or getattr(weights, "ndim", 0) == 5:
        values = [None] * len(weights) if v is None else v
        if len(values) != len(weights):
            raise ValueError(f"v has {len(values)} layers but weights have {len(weights)}: give one for each layer")
        layers = zip(weights, values, strict=True)
        return AttentionStack([Attention.from_weights(w, v, dims=dims) for w, v in layers])
    return Attention.from_weights(weights, v, dims=dims)


def stack_layers(
    q: Any, k: Any, v: Any = None, *, names: Iterable[str] | None = None, **keywords: Unpack[LayeredKeywords]
) -> AttentionStack:
    """Make a stack from tensors with a layer axis.

    Args:
        q, k, v: (L, B, H, Q, D), as for `Attention` with one more axis in front; or a list with a tensor for each
            layer.
        names: as for `AttentionStack`.
        keywords: as for `Attention`: one value for all layers, or a list with a value or None for each. sinks may be
            (L, H); dims names the axes after the first.

    Raises:
        TypeError, ValueError: as in `Attention`, with the layer first.

    >>> import torch
    >>> stack = stack_layers(*torch.randn(2, 6, 1, 12, 20, 32), is_causal=True, window=[None, 4] * 3)
    >>> [att.window for att in stack]
    [None, 4, None, 4, None, 4]
    """
    parts = {"q": _as_layers(q, "q"), "k": _as_layers(k, "k")}
    parts |= {} if v is None else {"v": _as_layers(v, "v")}
    parts |= {name: list(value) for name, value in keywords.items() if isinstance(value, list | tuple)}
    if getattr(keywords.get("sinks"), "ndim", 0) == 2:  # (L, H)
        parts["sinks"] = list(as_tensor(keywords["sinks"], "sinks"))
    count = len(parts["q"])
    for name, part in parts.items():
        if len(part) != count:
            raise ValueError(f"{name} has {len(part)} layers but q has {count}: give one for each")
    layers = []
    for i in range(count):
        try:
            layers.append(Attention(**{**keywords, **{name: part[i] for name, part in parts.items()}}))
        except (TypeError, ValueError) as error:
            raise type(error)(f"layer {i}: {error}") from error
    return AttentionStack(layers, names)


def _as_layers(x: Any, name: str) -> list[Any]:
    if isinstance(x, list | tuple):
        if x and isinstance(x[0], list | tuple | int | float):
            raise TypeError(
                f"{name} is {kind_of(x)} whose first item is {kind_of(x[0])}: give a torch tensor or a numpy array, "
                f"such as torch.tensor({name}), or a list with a tensor for each layer"
            )
        return list(x)
    x = as_tensor(x, name)
    if x.ndim != 5:
        raise ValueError(f"{name} has {x.ndim} axes: give 5, layers first, or a list with a tensor for each layer")
    return list(x.unbind(0))


def _as_grid(grids: Sequence[tuple[int, int]], layer: int, layers: int) -> tuple[int, int]:
    """Return the rows and columns of a layer's patches, checked."""
    if len(grids) != layers:
        raise ValueError(f"grids has {len(grids)} entries but there are {layers} layers: give (rows, columns) for each")
    try:
        rows, columns = grids[layer]
    except (TypeError, ValueError):
        raise TypeError(f"grids[{layer}] is {grids[layer]!r:.40}: give (rows, columns), such as (16, 16)") from None
    return as_size(rows, f"grids[{layer}] rows"), as_size(columns, f"grids[{layer}] columns")
