"""One attention call in the engine: its source of numbers, its rules, and its cached log-normalizers."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, TypeVar

import torch
from torch import Tensor

from .._rules.options import AttentionOptions
from .._rules.parsing import MaskAndBias, read_mask_and_bias, read_sinks, rules_of
from .._rules.rules import Rules
from .._utils.indexing import Block, Indices, as_index
from .._utils.mutation import MutationGuard
from .._utils.validation import as_choice, as_number, as_positive
from .carried import GIVE, Carrying
from .logsumexp import LogSumExp, LogSumExpCache
from .sources import CARRIED, STAGES, Source, Stage

if TYPE_CHECKING:
    from typing_extensions import Self


A = TypeVar("A", bound="AttentionBase")
MAX_LISTED = 8  # the most heads or queries to list one by one


class Shape(NamedTuple):
    """Sizes of one attention call; D is None without q and k, Dv without v."""

    B: int
    H: int
    G: int
    Q: int
    K: int
    D: int | None
    Dv: int | None


class OnlyWeightsError(ValueError):
    """Raised for a stage before the weights, which combined heads and merged words do not have."""


def longest(x: Tensor) -> float:
    """Return the largest norm of vectors (n, D); 0 if there are none, NaN or ∞ if they contain it."""
    wide = torch.promote_types(x.dtype, torch.float32)
    if len(x) == 0:
        return 0.0
    parts = [torch.linalg.vector_norm(part.to(wide), dim=1).amax() for part in x.split(1 << 13)]  # cast in small parts
    return float(torch.stack(parts).amax())


class Part(NamedTuple):
    """Which part of a model's call an attention covers.

    heads, queries: their numbers in the call; None for all.
    keys_before: how many keys come before the first query's own key, as with a KV cache; None: queries and keys have
        the same positions if there are as many of both, otherwise unrelated ones.
    elsewhere: whether keys have other positions than queries, as in cross-attention.
    """

    heads: tuple[int, ...] | None = None
    queries: tuple[int, ...] | None = None
    keys_before: int | None = None
    elsewhere: bool = False

    def describe(self) -> str:
        """Return the part as text; "" for all.

        >>> Part((0, 5), tuple(range(1536, 2048))).describe(), Part(queries=(0, 2)).describe()
        ('heads 0, 5; queries 1,536 to 2,047', 'queries 0, 2')
        """
        both = (("head", self.heads), ("query", self.queries))
        return "; ".join(_listed(name, numbers) for name, numbers in both if numbers is not None)


def _listed(name: str, numbers: tuple[int, ...]) -> str:
    plural = {"head": "heads", "query": "queries"}[name] if len(numbers) > 1 else name
    if len(numbers) > 2 and numbers == tuple(range(numbers[0], numbers[-1] + 1)):
        return f"{plural} {numbers[0]:,} to {numbers[-1]:,}"
    some = [f"{number:,}" for number in numbers]
    if len(some) > MAX_LISTED:
        some = [*some[: MAX_LISTED - 2], "…", some[-1]]
    return f"{plural} {', '.join(some)}"


def witnessed(att: A, witness: CallWitness) -> A:
    """Return the same attention with what a capture knows about its call."""
    found = copy.copy(att)
    found.__dict__["witness"] = witness
    return found


def with_sources(att: A, sources: Any) -> A:
    """Return the same attention with the ways to its q, k and v from the residual stream."""
    found = copy.copy(att)
    found.__dict__["sources"] = sources
    return found


def read_as(att: A, letters: str) -> A:
    """Return the same attention with the letters of its 3 axes, which its tokens told."""
    found = copy.copy(att)
    found.__dict__["axes_read"] = letters
    return found


def find_head(att: AttentionBase, head: Any) -> int:
    """Return a head's number from 0; otherwise raise IndexError, with the numbers of the heads in the model."""
    try:
        return as_index(head, att.shape.H, "head", "heads")
    except IndexError as error:
        if att.part is None or att.part.heads is None:
            raise
        own = _listed("head", att.part.heads)
        raise IndexError(f"{error}, counted from 0 among the kept heads: {own} of the model") from None


class CallWitness(Protocol):
    """What a capture knows about the output of the model's own call."""

    @property
    def checked(self) -> str:
        """How many rows were compared: "all", "rows" if each can be compared now, or "some"."""

    @property
    def missing(self) -> list[str]:
        """What the capture lacks, in lines."""

    @property
    def maps(self) -> bool:
        """Whether its samples are not those of the module's input, but windows, groups or heads."""

    def lost_rows(self, batch: int, head: int) -> list[int]:
        """Return the queries whose weights are NaN in the model, because their products overflowed."""

    def rows_that_differ(self, att: AttentionBase, batch: int, head: int) -> Iterator[list[int]]:
        """Yield the queries of a head, some at a time, that do not give the output of the model's call."""


class AttentionBase:
    """An immutable attention with any source. It makes no (Q, K) tensor of its own."""

    q: Tensor | None
    k: Tensor | None
    v: Tensor | None
    shape: Shape
    scale: float
    softcap: float | None
    sinks: Tensor | None
    is_causal: bool
    window: int | None
    rules: Rules
    source: Source
    options: AttentionOptions
    part: Part | None = None
    carries: Carrying | None = None  # what its weights contribute downstream, if known
    witness: CallWitness | None = None  # of a captured call
    sources: Any = None  # the ways to q, k and v from the residual stream, `_analysis.why.parts.WaysOfHeads`
    axes_read: str | None = None  # the letters assumed for 3 unnamed axes, if they may be read otherwise
    _read: MaskAndBias
    _memory: LogSumExpCache
    _guard: MutationGuard

    def __init__(
        self,
        source: Source,
        v: Tensor | None,
        shape: Shape,
        options: AttentionOptions,
        *,
        rules: Rules | None = None,
        known: tuple[AttentionOptions, MaskAndBias] | None = None,
    ) -> None:
        """Make an attention.

        Args:
            source: where the numbers of a block come from.
            v: (B, G, K, Dv), or None.
            shape: the sizes of source and v.
            options: the keywords that the user gave.
            rules: None to read them from the options.
            known: other options for the same tensors, with their mask and bias, to reuse.

        Raises:
            TypeError, ValueError: the options cannot be read.
        """
        matrix = next(iter(source.tensors().values()))
        read = MaskAndBias()
        if rules is None:
            read = read_mask_and_bias(
                options, (shape.B, shape.H, shape.Q, shape.K), matrix.dtype, matrix.device, known=known
            )
            rules = rules_of(options, read, matrix.device)
        scale = source.default_scale if options.scale is None else as_number(options.scale, "scale")
        self.__setstate__(
            {
                "source": source,
                "q": source.tensors().get("q"),
                "k": source.tensors().get("k"),
                "v": v,
                "shape": shape,
                "options": options,
                "rules": rules,
                "scale": scale,
                "softcap": None if options.softcap is None else as_positive(options.softcap, "softcap"),
                "sinks": read_sinks(options, shape.H),
                "is_causal": bool(options.is_causal),
                "window": options.window,
                "_read": read,
            }
        )

    @classmethod
    def of(
        cls,
        source: Source,
        v: Tensor | None,
        shape: Shape,
        options: AttentionOptions,
        *,
        rules: Rules | None = None,
        known: tuple[AttentionOptions, MaskAndBias] | None = None,
    ) -> Self:
        """Make an attention of any source; a subclass takes other arguments. See `AttentionBase`."""
        found = cls.__new__(cls)
        AttentionBase.__init__(found, source, v, shape, options, rules=rules, known=known)
        return found

    def as_part(
        self,
        heads: Sequence[int] | None,
        queries: Sequence[int] | None,
        keys_before: int | None = None,
        elsewhere: bool = False,
    ) -> Self:
        """Return the same attention, that knows which part of a model's call it has: see `Part`; None for all."""
        if heads is None and queries is None and keys_before is None and not elsewhere:
            return self
        found = copy.copy(self)
        chosen = [None if x is None else tuple(x) for x in (heads, queries)]
        found.__dict__["part"] = Part(chosen[0], chosen[1], keys_before, elsewhere)
        return found

    def as_carrying(self, carries: Carrying) -> Self:
        """Return the same attention with `carries`."""
        found = copy.copy(self)
        found.__setstate__({"carries": carries})
        found.__dict__["_memory"] = self._memory  # log-normalizers do not depend on it
        return found

    def as_read(self, dims: str | None, axes: int, letters: Iterable[str]) -> Self:
        """Note how 3 unnamed axes were read, if the first could be heads as well as samples."""
        if dims is None and axes == 3 and self.shape.B > 1:
            batch, _, *others = letters
            self.__dict__["axes_read"] = "".join((batch, *others))
        return self

    def own_keys(self, queries: range) -> Sequence[int] | None:
        """Return each query's own key, at the same position; None if keys have other positions."""
        part = self.part or Part()
        if part.elsewhere:
            return None
        if part.keys_before is None:
            return queries if part.queries is None and self.shape.Q == self.shape.K else None
        there = queries if part.queries is None else [part.queries[query] for query in queries]
        return [part.keys_before + query for query in there]

    def replaced(self, options: AttentionOptions, source: Source, v: Tensor | None) -> Self:
        """Return this attention with other options, source and values; reads only a new mask or bias."""
        found = self.of(source, v, self.shape, options, known=(self.options, self._read))
        found = found if self.part is None else found.as_part(*self.part)
        return found if self.carries is None else found.as_carrying(self.carries)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_memory", "_guard")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Fill a new attention or a copy, with an empty cache and a new guard of its tensors."""
        self.__dict__.update(state, _memory=LogSumExpCache())
        others = {name: x for name, x in (("v", self.v), ("sinks", self.sinks)) if x is not None}
        self.__dict__.update(_guard=MutationGuard({**self.source.tensors(), **others, **self.rules.tensors()}))

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"an Attention is immutable, so {name} cannot be set: make a new one")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"an Attention is immutable, so {name} cannot be deleted: make a new one")

    def __repr__(self) -> str:
        B, H, G, Q, K, D, Dv = self.shape
        parts = ["" if D else f"from {self.source.gives}"]
        heads = f"{B} sample{'s' * (B > 1)} × {H} head{'s' * (H > 1)}"
        parts += [heads + (f" in {G} groups" if G != H else ""), f"{Q:,} queries × {K:,} keys"]
        sizes = [str(size) for size in (D, Dv) if size]
        parts += [f"head size {' and '.join(dict.fromkeys(sizes))}" if sizes else "", "" if Dv else "no v"]
        parts += [self.part.describe() if self.part else "", *self.description]
        kinds = dict.fromkeys(str(x.dtype).removeprefix("torch.") for x in (self._matrix, self.v) if x is not None)
        parts += [", v in ".join(kinds), str(self.device)]
        return f"Attention({', '.join(part for part in parts if part)})"

    @property
    def description(self) -> tuple[str, ...]:
        """How the attention was derived, or the options given with its tensors, each as a word or two."""
        return self.source.description or self.options.describe()

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the given q."""
        return self._matrix.dtype

    @property
    def result_dtype(self) -> torch.dtype:
        """The dtype of results: float64 for q and k in float64, otherwise float32. Values are converted to it."""
        return torch.promote_types(self.dtype, torch.float32)

    @property
    def device(self) -> torch.device:
        """The device of q, k and v, and of all results."""
        return self._matrix.device

    @property
    def _matrix(self) -> Tensor:
        return next(iter(self.source.tensors().values()))

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The available stages, in the order of computation.

        Stages before the given numbers are missing. "contribution" needs v, and "capped" a softcap (without one it
        equals "scaled"). For "value_norm", "logit" and "saliency", see `Attention.carrying`.

        >>> from attnwidget import Attention
        >>> Attention(torch.zeros(1, 2), torch.zeros(1, 2)).stages
        ('scores', 'scaled', 'masked', 'weights')
        """
        there = STAGES[STAGES.index(self.source.gives) :]
        without = {"contribution"} if self.v is None else set()
        without |= {"capped"} if self.softcap is None else set()
        without |= {stage for stage in CARRIED if self.why_not(stage) is not None}
        return tuple(stage for stage in there if stage not in without)

    @property
    def scores_are_products(self) -> bool:
        """Whether the scores before biases are scale · q · kᵀ: there are q and k, and no softcap."""
        return self.q is not None and self.softcap is None

    @property
    def has_sinks(self) -> bool:
        """Whether a learned sink takes a share of the weights, here or in the attention that this is derived from."""
        return self.sinks is not None or self.source.has_sinks

    def head(self, batch: Any, head: Any) -> Head:
        """Return a head; raise IndexError if it does not exist, and warn if the tensors have changed."""
        return Head(self, *self.find(batch, head))

    def find(self, batch: Any, head: Any) -> tuple[int, int]:
        """Return batch and head, counted from 0; raise IndexError, or warn, as `head` does."""
        self._guard.check()
        return as_index(batch, self.shape.B, "batch", "batches"), find_head(self, head)

    def check_stage(self, stage: str, *also: str) -> None:
        """Raise ValueError, with what to give, unless this stage is available."""
        as_choice(stage, (*STAGES, *also), "stage")
        if stage in STAGES and STAGES.index(stage) < STAGES.index(self.source.gives):
            if self.source.derived:
                raise OnlyWeightsError(
                    f"combined heads and merged words have only weights, so {stage} is not known: ask single heads "
                    "and subword tokens"
                )
            raise ValueError(f"only weights were given, so {stage} is not known: give Attention(q, k) or from_scores")
        if stage == "contribution" and self.v is None:
            raise ValueError("there is no v, so no contribution: give Attention(q, k, v)")
        why_not = self.why_not(stage) if stage in CARRIED else None
        if why_not is not None:
            raise (OnlyWeightsError if self.source.derived else ValueError)(f"{stage} is not known: {why_not}")

    def why_not(self, stage: str) -> str | None:
        """Return why a stage of `CARRIED` is missing; None if it is available."""
        if self.source.derived:
            return "combined heads and merged words have only weights: ask single heads and subword tokens"
        if self.v is None:
            return "there is no v: give Attention(q, k, v)"
        return GIVE[stage] if self.carries is None else self.carries.refusal(stage)

    def group(self, head: int) -> int:
        """Return the key head that a query head uses."""
        return head // (self.shape.H // self.shape.G)

    def known_rows(self, batch: int, head: int, queries: Indices) -> LogSumExp | None:
        """Return the cached log-normalizers of some queries; None unless all are known for the present tensors."""
        return self._memory.get((batch, head), self._guard.versions(), queries)

    def versions(self) -> tuple[int, ...]:
        """Return version numbers of the tensors; they change with any change in place."""
        return self._guard.versions()

    def longest_key(self, batch: int, group: int) -> float:
        """Return the largest ‖k‖ of a key head, cached until the tensors change; NaN or ∞ if k contains it."""
        versions = self._guard.versions()
        known = self._memory.number((batch, group), versions)
        if known is None:
            assert self.k is not None
            known = longest(self.k[batch, group])
            self._memory.put_number((batch, group), versions, known)
        return known

    def remember(self, batch: int, head: int, normalizers: LogSumExp) -> None:
        """Cache the log-normalizers of all queries of a head."""
        self.remember_rows(batch, head, range(self.shape.Q), normalizers)

    def remember_rows(
        self, batch: int, head: int, queries: Indices, normalizers: LogSumExp, versions: tuple[int, ...] | None = None
    ) -> None:
        """Cache the log-normalizers of some queries, unless the tensors have changed since `versions`."""
        now = self._guard.versions()
        if versions is None or versions == now:
            self._memory.put((batch, head), now, self.shape.Q, queries, normalizers)


class Head(NamedTuple):
    """One head of one sample of an attention, both counted from 0."""

    att: AttentionBase
    batch: int
    head: int

    @property
    def group(self) -> int:
        """The key head that it uses."""
        return self.att.group(self.head)

    @property
    def q(self) -> Tensor | None:
        """Its queries (Q, D), as given."""
        return None if self.att.q is None else self.att.q[self.batch, self.head]

    @property
    def k(self) -> Tensor | None:
        """Its keys (K, D), as given."""
        return None if self.att.k is None else self.att.k[self.batch, self.group]

    @property
    def v(self) -> Tensor | None:
        """Its values (K, Dv), as given."""
        return None if self.att.v is None else self.att.v[self.batch, self.group]

    @property
    def sink(self) -> float | None:
        """The logit of its learned sink; None if it has none."""
        found = -inf if self.att.sinks is None else float(self.att.sinks[self.head])
        return None if found == -inf else found

    def block(self, queries: Indices, keys: Indices | None = None) -> Block:
        """Return the cells of some queries and keys; None for all keys."""
        return Block(self.batch, self.head, queries, range(self.att.shape.K) if keys is None else keys)
