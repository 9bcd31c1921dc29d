"""From heads' q, k or v back to what was written into the residual stream, at some positions of one sample.

Most of the way is the same linear map at all positions but for one factor, the scales of norms: it is pulled back once,
for all positions. The rest, such as a rotation of positions (RoPE) or a norm of q and k, differs between positions and
lies at
the end of the way: it is computed for a block of positions at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from .linear_steps import CHANGED, AllHeads, LinearStep, StreamPlace, Times, View, mixed
from .stream_graph import (
    Beginning,
    Join,
    Lost,
    Moved,
    Node,
    NotLinear,
    StreamSource,
    StreamStep,
    Sum,
    as_double,
    in_order,
    not_followed,
    parents_of,
    plain_numbers,
    version_of,
)

T = TypeVar("T")
UNREAD = RuntimeError, IndexError, KeyError  # of a way whose steps do not fit together
NOT_FOLLOWED = (
    "the way from the residual stream to this head could not be followed: its positions, samples or heads lie in an "
    "order that is not read here, so the score cannot be split into parts"
)
PROBED = 16  # positions, evenly spread, that show which features of a tensor a head reads


@dataclass(frozen=True, eq=False)
class Operand:
    """q, k or v of an attention call, (B, heads, positions, size), as the end of a way."""

    node: Node

    @property
    def length(self) -> int:
        """The number of positions."""
        return self.node.shape[2]


@dataclass(frozen=True, eq=False)
class Reach:
    """How a source reaches the fixed end of a way.

    Attributes:
        source: what was written.
        place: where it was written, for all positions asked for.
        rows: the numbers of these positions among those asked for.
        scales: the factors on the way that differ between positions.
        covectors: (P, features…) the fixed map.
        first: the number of its first covector among all of the bundle.
        under: the module with a dictionary that it passes on its way; None for none.
    """

    source: StreamSource | Cut
    place: StreamPlace
    rows: Tensor
    scales: tuple[tuple[StreamStep, StreamPlace], ...]
    covectors: Tensor
    first: int
    under: str | None = None

    @property
    def count(self) -> int:
        """The number of its parts: heads, or one."""
        axis = None if isinstance(self.source, Cut) else self.source.heads_axis
        return 1 if axis is None else self.source.shape[axis]

    @property
    def _heads(self) -> int:
        """The place of the axis of heads among the features."""
        assert isinstance(self.source, StreamSource)
        assert self.source.heads_axis is not None
        return self.place.features(self.source.shape).index(self.source.heads_axis)

    def at(self, chosen: Tensor) -> Reach:
        """Return it for some of its positions, by their numbers in `rows`."""
        scales = tuple((step, replace(place, at=place.at[chosen])) for step, place in self.scales)
        place = replace(self.place, at=self.place.at[chosen])
        return replace(self, place=place, rows=self.rows[chosen], scales=scales)

    def factor(self) -> Tensor | float:
        """Return the product of the scales, (m, 1)."""
        found: Tensor | float = 1.0
        for step, place in self.scales:
            how = step.how
            assert isinstance(how, Times)
            numbers = how.numbers(step, place)
            found = found * (numbers.reshape(-1, 1) if isinstance(numbers, Tensor) else numbers)
        return found

    def written(self) -> Tensor:
        """Return what was written, (parts, m or 1, features), float64."""
        assert isinstance(self.source, StreamSource)
        rows = rows_of(self.source, self.place)
        if self.source.heads_axis is None:
            return rows.flatten(1)[None]
        return rows.movedim(1 + self._heads, 0).flatten(2)

    def maps(self) -> Tensor:
        """Return the fixed map, (parts, features, P)."""
        found = self.covectors
        if isinstance(self.source, Cut) or self.source.heads_axis is None:
            return found.flatten(1).mT[None]
        return found.movedim(1 + self._heads, 0).flatten(2).mT

    def reached(self) -> Tensor:
        """Return the parts at the fixed end, (parts, m or 1, P)."""
        return self.written() @ self.maps() * self.factor()

    def summed(self, covectors: Tensor) -> Tensor:
        """Return the products of its parts with covectors of the fixed end, summed over the positions: (parts, P).

        Args:
            covectors: (m, P).
        """
        own = covectors[:, self.first : self.first + len(self.covectors)] * self.factor()
        written = self.written()
        if written.shape[1] == 1:
            own = own.sum(0, keepdim=True)
        return ((written.mT @ own) * self.maps()).sum(1)

    def along(self, covectors: Tensor, pulled: dict[Any, Tensor]) -> Tensor:
        """Return the products of its parts with covectors of the fixed end, (parts, m).

        Args:
            covectors: (m, P), or (1, P) for the same at all positions.
            pulled: covectors of the stream for these positions, which several sources share.
        """
        own = covectors[:, self.first : self.first + len(self.covectors)]
        if len(own) == 1:
            found = (self.written() @ (self.maps() @ own[0])[..., None])[..., 0]
        elif isinstance(self.source, StreamSource) and self.source.heads_axis is not None:
            found = (self.written() @ self.maps() * own).sum(-1)
        else:
            asked = self.covectors.data_ptr(), self.covectors.shape, self.first, len(self.rows), int(self.rows[0])
            if asked not in pulled:
                pulled[asked] = own @ self.maps()[0].mT
            found = (self.written()[0] * pulled[asked]).sum(-1)[None]
        factor = self.factor()
        found = found * (factor[:, 0] if isinstance(factor, Tensor) else factor)
        return found.expand(-1, len(self.rows))


class Cut(NamedTuple):
    """A tensor that a module returned, whose features have names.

    module: the name of the module.
    node: the tensor.
    """

    module: str
    node: Node

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return self.node.shape


def rows_of(source: StreamSource, place: StreamPlace) -> Tensor:
    """Return a source's numbers at a place, (m or 1, features…), float64.

    Raises:
        NotLinear: they were not kept, or the model's weights were changed since.
    """
    if source.values is None and source.lookup is None:
        raise NotLinear(source.why_missing)
    if version_of(source.values if source.lookup is None else source.lookup[1]) != source.version:
        raise NotLinear(CHANGED)
    if source.lookup is not None:
        ids, weight = source.lookup
        chosen = place.take(ids[..., None], source.shape)[..., 0]
        found = torch.nn.functional.embedding(chosen, plain_numbers(weight.detach()))
    else:
        assert source.values is not None
        found = place.take(plain_numbers(source.values.detach()), source.shape)
    found = as_double(found)
    found = found.reshape((1,) * (len(source.shape) - found.ndim) + tuple(found.shape))
    features = place.features(source.shape)
    found = found.expand([size if axis in features else -1 for axis, size in enumerate(source.shape)])
    leading = [axis for axis in range(found.ndim) if axis not in features]
    found = found.permute(*leading, *features)
    return found.reshape(-1, *(found.shape[len(leading) :]))


class Bundle:
    """All sources of heads' q, k or v at some positions, with the same way from the fixed end on.

    Args:
        operand: the end of the way.
        heads: the heads, of k and v the key heads.
        place: the positions asked for.
        rows: their numbers among all positions asked for.
        cuts: tensors whose features have names.
    """

    def __init__(
        self, operand: Node, heads: Sequence[int], place: StreamPlace, rows: Tensor, cuts: Sequence[Cut] = ()
    ) -> None:
        self._operand, self._heads, self.rows = operand, list(heads), rows
        self._cuts = {id(cut.node): cut for cut in cuts}
        self.size = operand.shape[3]
        self._places, twice = places_on_way(operand, place)
        self._tail = _tail(operand, self._places)
        inside = {id(node) for node in self._tail}
        ends = [parent for node in self._tail for parent in parents_of(node) if id(parent) not in inside]
        self._ends = [*{id(node): node for node in ends if id(node) in self._places}.values()] or [operand]
        if any(id(node) in twice for node in [*self._tail, *self._ends]):
            raise mixed("an index or an assignment")
        self._tail_places = self._narrowed(place) or self._places
        self._supports, owners = self._find_supports() if self._tail else self._own_features()
        self.owners = owners  # (P,) the place in `heads` of each covector of the fixed ends
        self.reaches = [*self._pull_all()]

    def _narrowed(self, place: StreamPlace) -> dict[int, StreamPlace] | None:
        """Return the places on the tail with these heads alone; None if they cannot be told apart there."""
        inside = {id(node) for node in [*self._tail, *self._ends]}
        found = {id(self._operand): replace(place, head=1, heads=tuple(self._heads))}
        try:
            for node in reversed(self._tail):
                own = found.get(id(node))
                if isinstance(node, Join) and own is not None and node.axis % len(node.shape) == own.head:
                    return None
                for parent, before in () if own is None else _places_before(node, own):
                    if id(parent) in inside:
                        found.setdefault(id(parent), before)
        except AllHeads:
            return None
        return found

    def _full_features(self, end: Node) -> Tensor:
        """Return the numbers of a fixed end's features that are there, among all of them."""
        place = self._tail_places[id(end)]
        features = place.features(end.shape)
        numbers = torch.arange(math.prod(end.shape[axis] for axis in features), device="cpu")
        numbers = numbers.view([end.shape[axis] for axis in features])
        if place.head is not None:
            numbers = numbers.index_select(features.index(place.head), torch.tensor(place.heads, device="cpu"))
        return numbers.flatten()

    def _own_features(self) -> tuple[list[Tensor], Tensor]:
        """Return the numbers of the heads' features among all of the operand, and the heads that they belong to."""
        heads = torch.tensor(self._heads, device="cpu")
        own = heads[:, None] * self.size + torch.arange(self.size, device="cpu")
        return [own.flatten()], torch.arange(len(heads), device="cpu").repeat_interleave(self.size)

    def _find_supports(self) -> tuple[list[Tensor], Tensor]:
        """Return for each fixed end the features that the heads read there, and the heads that they belong to."""
        n, count = len(self.rows), len(self._heads)
        some = torch.linspace(0, n - 1, min(PROBED, n), device="cpu").round().long()
        random = torch.Generator("cpu").manual_seed(0)
        covectors = torch.rand(len(some), self.size, generator=random, dtype=torch.float64, device="cpu") + 0.5
        each = covectors.new_zeros(count, len(some), count, self.size)
        each[range(count), :, range(count)] = covectors
        supports, owners = [], []
        for x in self._pull_tail(each, some):
            reads = x.abs().amax(1).cpu()  # (heads, features)
            supports.append(reads.amax(0).nonzero()[:, 0])
            owners.append(reads.argmax(0)[supports[-1]])
        return supports, torch.cat(owners)

    @property
    def rotates(self) -> bool:
        """Whether the way has a factor that differs between positions and is not the scale of a norm."""
        return any(isinstance(node, StreamStep) and self._is_rotation(node) for node in self._tail)

    def _is_rotation(self, node: StreamStep) -> bool:
        how = node.how
        return isinstance(how, Times) and not how.is_norm and how.turns(node, self._places[id(node)])

    def moved(self, covectors: Tensor, key: int, chosen: Tensor) -> Tensor:
        """Return covectors as `transported` does, for the vector of one position as if it were at others.

        Args:
            covectors: (1, 1, heads, size).
            key: the number of its position, whose scales of norms are held.
            chosen: the numbers of the other positions, whose rotations are used.
        """
        held = torch.full_like(chosen, key)
        at = {id(node) for node in self._tail if isinstance(node, StreamStep) and self._is_rotation(node)}
        places = {
            one: replace(place, at=place.at[chosen if one in at else held]) for one, place in self._tail_places.items()
        }
        found = self._pull_tail(covectors.expand(-1, len(chosen), -1, -1), chosen, places)
        return torch.cat([x[..., own.to(x.device)] for x, own in zip(found, self._supports, strict=True)], -1)

    def _pull_tail(
        self, covectors: Tensor, chosen: Tensor, places: dict[int, StreamPlace] | None = None
    ) -> list[Tensor]:
        """Pull covectors of the heads, (N, m, heads, size), back to each fixed end: (N, m, features)."""
        if places is None:
            places = {key: replace(place, at=place.at[chosen]) for key, place in self._tail_places.items()}
        own = places[id(self._operand)]
        start = covectors.new_zeros(len(covectors), *own.part(self._operand.shape))
        start[:, 0, slice(None) if own.head is not None else self._heads] = covectors.transpose(1, 2)
        found: dict[int, Tensor] = {id(self._operand): start}
        for node in reversed(self._tail):
            y = found.pop(id(node), None)
            if y is None:
                continue
            for parent, x in _pull(node, y, places):
                found[id(parent)] = found[id(parent)] + x if id(parent) in found else x
        return [_by_position(found[id(end)], end, places[id(end)]) for end in self._ends]

    def transported(self, covectors: Tensor, chosen: Tensor) -> Tensor:
        """Return covectors of the heads' vectors as covectors of the fixed ends, (N, m or 1, P).

        Args:
            covectors: (N, m or 1, heads, size).
            chosen: the numbers of positions in `rows`, (m,).
        """
        if not self._tail:
            return covectors.flatten(2)
        found = self._pull_tail(covectors.expand(-1, len(chosen), -1, -1), chosen)
        return torch.cat([x[..., own.to(x.device)] for x, own in zip(found, self._supports, strict=True)], -1)

    def _pull_all(self) -> Iterator[Reach]:
        """Pull each fixed end back to the sources."""
        first = 0
        for end, support in zip(self._ends, self._supports, strict=True):
            place = self._places[id(end)]
            one = replace(place, at=place.at[:1])
            features = place.features(end.shape)
            sizes = [end.shape[axis] for axis in features]
            flat = torch.zeros(len(support), math.prod(sizes), dtype=torch.float64, device="cpu")
            own = self._full_features(end)[support] if self._tail else support
            flat[torch.arange(len(support), device="cpu"), own] = 1
            covectors = _at_place(flat.reshape(len(support), *sizes), end, one)
            for reach in _pull_to_sources(end, place, covectors, self._cuts):
                yield replace(reach, first=first)
            first += len(support)


def _at_place(features: Tensor, node: Node, place: StreamPlace) -> Tensor:
    """Return features (P, …) of one position in the shape of a tensor's part."""
    return features.reshape(len(features), *place.part(node.shape))


def _by_position(x: Tensor, node: Node, place: StreamPlace) -> Tensor:
    """Return covectors of a tensor's part as (P, m, features)."""
    features = [axis + 1 for axis in place.features(node.shape)]
    others = [axis for axis in range(1, x.ndim) if axis not in features]
    found = x.permute(0, *others, *features)
    return found.reshape(len(x), -1, math.prod(x.shape[axis] for axis in features))


def places_on_way(operand: Node, place: StreamPlace) -> tuple[dict[int, StreamPlace], set[int]]:
    """Return the place in each tensor on a way, by identity, and the tensors that are read at several places.

    Raises:
        NotLinear: the way cannot be followed.
        Apart: the positions have different ways.
    """
    found, twice = {id(operand): place}, set()
    for node in reversed(in_order(operand)):
        own = found.get(id(node))
        if own is not None:
            for parent, before in _places_before(node, own):
                first = found.setdefault(id(parent), before)
                if first is not before and not first.is_as(before):
                    twice.add(id(parent))
    return found, twice


def _places_before(node: Node, place: StreamPlace) -> Iterator[tuple[Node, StreamPlace]]:
    """Yield the tensors that one is made from, with their places."""
    if isinstance(node, Lost):
        raise node.refusal()
    if isinstance(node, StreamStep):
        yield node.parent, _told(node, lambda how: how.before(node, place))
    elif isinstance(node, Sum):
        yield from ((parent, place) for parent in node.parents)
    elif isinstance(node, Beginning):
        yield _source_of(node), place
    elif isinstance(node, Join | Moved):
        yield from ((parent, piece) for parent, piece, _ in _pieces(node, place) if len(piece.at))


def _told(node: StreamStep, ask: Callable[[LinearStep], T]) -> T:
    """Return what a step says; an error of torch becomes a sentence that names the step's function and module."""
    try:
        return ask(node.how)
    except UNREAD as error:
        raise not_followed(node.how.name, node.module, "its numbers do not fit those of this head alone") from error


def _source_of(node: Beginning) -> StreamSource:
    if node.source is None:
        raise node.lost.refusal()
    return node.source


class Apart(Exception):
    """The positions of a tensor come from several pieces, such as the calls that filled a cache."""

    def __init__(self, groups: Sequence[Tensor]) -> None:
        super().__init__()
        self.groups = groups


def _pieces(node: Join | Moved, place: StreamPlace) -> Iterator[tuple[Node, StreamPlace, Tensor | None]]:
    """Yield the parents of joined tensors with their places, and which of the positions they have; None for all."""
    if isinstance(node, Moved):
        owner, index = _moves_at(node, place)
        for number, parent in enumerate(node.parents):
            chosen = (owner == number).nonzero()[:, 0]
            yield parent, replace(place, at=index[chosen]), chosen
        return
    axis = node.axis % len(node.shape)
    if axis == place.sample:
        raise NotLinear("the model joins samples on the way from the residual stream, so the score cannot be split")
    if axis != place.position:
        yield from ((parent, place, None) for parent in node.parents)
        return
    start = 0
    for parent in node.parents:
        size = parent.shape[axis]
        chosen = ((place.at >= start) & (place.at < start + size)).nonzero()[:, 0]
        yield parent, replace(place, at=place.at[chosen] - start), chosen
        start += size


def _moves_at(node: Moved, place: StreamPlace) -> tuple[Tensor, Tensor]:
    """Return the parent that has each of the positions, −1 for none, and its position there."""
    if place.position is None or place.is_merged or node.axis not in (None, place.position):
        raise mixed("an index or an assignment")
    owner, index = node.owner, node.index
    for axis in range(owner.ndim):
        if axis == place.sample and owner.shape[axis] > 1:
            inner = owner.shape[axis] // place.samples
            owner, index = (x.narrow(axis, place.which * inner, inner) for x in (owner, index))
            if any(bool((x != x.narrow(axis, 0, 1)).any()) for x in (owner, index)):
                raise mixed("an index or an assignment")
            owner, index = (x.narrow(axis, 0, 1) for x in (owner, index))
        elif axis != place.position and owner.shape[axis] > 1:
            raise mixed("an index or an assignment")
    size = node.shape[place.position]
    owner, index = (x.reshape(-1).expand(size)[place.at] for x in (owner, index))
    return owner, place.at if node.axis is None else index


def _tail(operand: Node, places: dict[int, StreamPlace]) -> list[Node]:
    """Return the tensors after the first step that differs between positions, each after those it is made from.

    Raises:
        Apart: one of them joins positions.
    """
    turned: set[int] = set()
    found = []
    for node in in_order(operand, lambda node: id(node) in places):
        place = places.get(id(node))
        if place is None:
            continue
        is_turn = isinstance(node, StreamStep) and (
            (isinstance(node.how, Times) and node.how.turns(node, place))
            or (isinstance(node.how, View) and node.how.is_complex)  # covectors of a complex tensor stay in the tail
        )
        if is_turn or any(id(parent) in turned for parent in parents_of(node)):
            turned.add(id(node))
            found.append(node)
            if isinstance(node, Join | Moved):
                groups = [chosen for _, _, chosen in _pieces(node, place) if chosen is not None and len(chosen)]
                if isinstance(node, Moved) and sum(map(len, groups)) < len(place.at):
                    raise mixed("an assignment to a part of new positions")
                if len(groups) > 1:
                    raise Apart(groups)
    return found


def _pull(node: Node, y: Tensor, places: dict[int, StreamPlace]) -> Iterator[tuple[Node, Tensor]]:
    """Yield the parents of a tensor with their covectors."""
    place = places[id(node)]
    if isinstance(node, StreamStep):
        before = places[id(node.parent)]
        yield node.parent, _told(node, lambda how: how.pull(node, y, before, place))
    elif isinstance(node, Sum):
        yield from ((parent, y) for parent in node.parents)
    elif isinstance(node, Beginning):
        yield _source_of(node), y
    elif isinstance(node, Moved):
        yield from ((parent, y) for parent, piece, _ in _pieces(node, place) if len(piece.at))
    elif isinstance(node, Join):
        axis, start = node.axis % len(node.shape), 0
        for parent, piece, chosen in _pieces(node, place):
            if chosen is None:
                size = parent.shape[axis]
                yield parent, y.narrow(axis + 1, start, size)
                start += size
            elif len(piece.at):
                yield parent, y


@dataclass(frozen=True, eq=False)
class _State:
    """Covectors of a tensor on the fixed part of a way."""

    place: StreamPlace
    rows: Tensor
    scales: tuple[tuple[StreamStep, StreamPlace], ...]
    covectors: Tensor
    under: str | None = None

    def fits(self, other: _State) -> bool:
        """Return whether the covectors of both can be added."""
        steps = [step for step, _ in self.scales] == [step for step, _ in other.scales]
        axes = (self.place.sample, self.place.position) == (other.place.sample, other.place.position)
        return (
            steps
            and axes
            and self.under == other.under
            and torch.equal(self.rows, other.rows)
            and torch.equal(self.place.at, other.place.at)
        )


def _pull_to_sources(end: Node, place: StreamPlace, covectors: Tensor, cuts: Mapping[int, Cut]) -> Iterator[Reach]:
    states: dict[int, list[_State]] = {
        id(end): [_State(place, torch.arange(len(place.at), device="cpu"), (), covectors)]
    }
    for node in reversed(in_order(end)):
        for state in _merged(states.pop(id(node), [])):
            cut = cuts.get(id(node)) if state.under is None else None
            if cut is not None:
                yield _reach(cut, state)
                state = replace(state, under=cut.module)
            if isinstance(node, StreamSource):
                yield _reach(node, state)
            else:
                for parent, before in _before(node, state):
                    states.setdefault(id(parent), []).append(before)


def _reach(source: StreamSource | Cut, state: _State) -> Reach:
    features = [axis + 1 for axis in state.place.features(source.shape)]
    others = [axis for axis in range(1, state.covectors.ndim) if axis not in features]
    found = state.covectors.permute(0, *features, *others).flatten(1 + len(features))
    found = found[..., 0] if others else found  # one position of one sample: the same memory for like sources
    return Reach(source, state.place, state.rows, state.scales, found, 0, state.under)


def _merged(states: list[_State]) -> list[_State]:
    found: list[_State] = []
    for state in states:
        for i, other in enumerate(found):
            if other.fits(state):
                found[i] = replace(other, covectors=other.covectors + state.covectors)
                break
        else:
            found.append(state)
    return found


def _before(node: Node, state: _State) -> Iterator[tuple[Node, _State]]:
    """Yield the parents of a tensor with their covectors."""
    place = state.place
    if isinstance(node, StreamStep):
        how: LinearStep = node.how
        before = _told(node, lambda how: how.before(node, place))
        if isinstance(how, Times) and how.is_scale(node, place):
            yield node.parent, replace(state, place=before, scales=(*state.scales, (node, place)))
            return
        one, one_before = replace(place, at=place.at[:1]), replace(before, at=before.at[:1])
        pulled = _told(node, lambda how: how.pull(node, state.covectors, one_before, one))
        yield node.parent, replace(state, place=before, covectors=pulled)
    elif isinstance(node, Sum):
        yield from ((parent, state) for parent in node.parents)
    elif isinstance(node, Beginning):
        yield _source_of(node), state
    elif isinstance(node, Join | Moved):
        axis, start = 0 if isinstance(node, Moved) else node.axis % len(node.shape), 0
        for parent, piece, chosen in _pieces(node, place):
            if chosen is None:
                size = parent.shape[axis]
                yield parent, replace(state, covectors=state.covectors.narrow(axis + 1, start, size))
                start += size
            elif len(chosen):
                scales = tuple((step, replace(own, at=own.at[chosen])) for step, own in state.scales)
                yield parent, replace(state, place=piece, rows=state.rows[chosen], scales=scales)
    elif isinstance(node, Lost):
        raise node.refusal()


def bundles_of(
    operand: Node, heads: Sequence[int], which: int, positions: Tensor, cuts: Sequence[Cut] = ()
) -> list[Bundle]:
    """Return the sources of heads' vectors at some positions of a sample, in bundles of like ways.

    Args:
        operand: (B, heads, positions, size).
        heads: the heads.
        which: the sample.
        positions: (m,).
        cuts: tensors whose features have names.

    Raises:
        NotLinear: the way cannot be followed, with the module's name.
    """
    waiting, found = [torch.arange(len(positions), device="cpu")], []
    while waiting:
        rows = waiting.pop()
        place = StreamPlace(0 if operand.shape[0] > 1 else None, 2, operand.shape[0], which, positions[rows])
        try:
            found.append(Bundle(operand, heads, place, rows, cuts))
        except Apart as apart:
            waiting += [rows[own] for own in reversed(apart.groups)]
        except UNREAD as error:
            raise NotLinear(NOT_FOLLOWED) from error
    return found
