"""The checks at the door of a store: an atlas that is opened can be looked at, whoever made the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .._utils.untrusted import (
    as_flag,
    as_list,
    as_object,
    as_text,
    as_texts,
    as_whole,
    check_tensor,
    part_of,
    tensor_of,
)
from .bins import CURVE, DISTANCES, SIDE, VALUES
from .layer_of_texts import METRICS
from .links import LISTS, WIDTH, excerpt_places
from .token_kinds import FIRST, OTHER, PUNCTUATION, SPECIAL
from .totals import LINK

MOST = 1 << 20  # entries of a list
LARGE = 1e30  # numbers up to here can be squared and summed
WIDEST = 64.0  # bits of entropy, of as many keys as there can be
DOUBLE, INTEGER = (torch.float64,), (torch.int64,)
TEXTS = ("bytes", "offsets", "first", "places", "numbers", "lengths", "named")


def check_store(facts: Any, tensors: Mapping[str, Tensor]) -> None:
    """Check the facts and the tensors of a file.

    Args:
        facts: its JSON.
        tensors: by name.

    Raises:
        ValueError: something is missing, or is not what it should be.
    """
    counts = _Counts(facts, tensors)
    known = set(counts.texts())
    for number, (name, heads) in enumerate(zip(counts.layers, counts.heads, strict=True)):
        known |= {f"{number}.{one}" for one in counts.layer(number, name, heads)}
    unknown = next((name for name in tensors if name not in known), None)
    if unknown is not None:
        raise ValueError(f"the tensor {unknown:.40} has no meaning here")


class _Counts:
    """The numbers of layers, heads, kinds and texts that a file's JSON gives, and checks of tensors against them."""

    def __init__(self, facts: Any, tensors: Mapping[str, Tensor]) -> None:
        self.facts, self._tensors = facts, tensors
        self.layers = as_texts(part_of(facts, "layers"), "the layers", MOST)
        if not self.layers or len(set(self.layers)) < len(self.layers):
            raise ValueError("there are no layers, or two have the same name")
        heads = as_list(part_of(facts, "heads"), "the heads", MOST, len(self.layers))
        self.heads = [as_whole(one, "the heads of a layer", MOST, least=1) for one in heads]
        self.links = as_whole(part_of(facts, "links"), "the number of links", MOST, least=1)
        self._settings()
        self._numbers_of_texts()
        self._extra = self._written()

    def _settings(self) -> None:
        settings = as_object(part_of(self.facts, "settings"), "the settings", MOST)
        as_text(part_of(settings, "model"), "the model's name")
        self.kinds = as_texts(part_of(settings, "kinds"), "the kinds", MOST)
        ends = self.kinds[:2], self.kinds[-2:]
        if ends != ([FIRST, SPECIAL], [PUNCTUATION, OTHER]) or len(set(self.kinds)) < len(self.kinds):
            raise ValueError(
                f"the kinds of tokens do not have {FIRST} and {SPECIAL} first, {PUNCTUATION} and {OTHER} last"
            )
        if part_of(settings, "metrics") != [*METRICS]:
            raise ValueError("the metrics are others than those that this version measures")

    def _numbers_of_texts(self) -> None:
        counted = ("texts", "tokens", "named", "given")
        self.all_texts, _, named, given = (
            as_whole(part_of(self.facts, name), f"the number {name!r}") for name in counted
        )
        skipped = as_object(part_of(self.facts, "skipped"), "the texts left out", given)
        for number, why in skipped.items():
            as_text(why, "the reason of a text left out")
            if (
                not number.isascii()
                or not number.isdecimal()
                or str(int(number[:20])) != number
                or int(number) >= given
            ):
                raise ValueError(f"a text left out has the number {number!r:.40}")
        if self.all_texts < 1 or self.all_texts + len(skipped) != given or named > self.all_texts:
            raise ValueError(
                f"{self.all_texts:,} texts and {len(skipped):,} left out are not the {given:,} that were read"
            )
        for why in as_object(part_of(self.facts, "unseen"), "the layers not recorded", MOST).values():
            as_text(why, "the reason of a layer not recorded")
        as_text(part_of(self.facts, "digest"), "the digest")
        as_flag(part_of(self.facts, "done"), "whether the pass is done")

    def _written(self) -> Mapping[str, Any]:
        extra = as_object(part_of(self.facts, "extra"), "what was found at the end", MOST)
        if not self.facts["done"]:
            return {} if not extra else self._of_layers(extra)
        found = self._of_layers(extra)
        if {*found} | {*extra["unwritten"]} != {*self.layers} or {*found} & {*extra["unwritten"]}:
            raise ValueError("it does not say of each layer what its heads write, or why that is unknown")
        return found

    def _of_layers(self, extra: Any) -> Mapping[str, Any]:
        for why in as_object(part_of(extra, "unwritten"), "the layers whose words are unknown", MOST).values():
            as_text(why, "the reason of unknown words")
        return as_object(part_of(extra, "written"), "what heads write", len(self.layers))

    # Tensors.

    def layer(self, number: int, name: str, heads: int) -> list[str]:
        """Check a layer, and return the names of its tensors."""
        metrics, kinds, start = len(METRICS), len(self.kinds), f"{number}."
        sums = {
            "distance": ((2, heads, DISTANCES), None),
            "curve": ((2, heads, CURVE), None),
            "position": ((2, heads, SIDE), None),
            "kind": ((heads, kinds, kinds), (heads, kinds)),
            "metric": ((metrics, heads), None),
        }
        counted = self._count(f"{start}counted", (1, heads))
        for one, (shape, shape_of_count) in sums.items():
            count = self._count(f"{start}{one}_count", shape_of_count or shape)
            self._sum(f"{start}{one}_sum", shape, count if shape_of_count is None else count[..., None])
        names = [f"{one}_{part}" for one in sums for part in ("sum", "count")]
        optional = (
            {"output": (heads, self._size(f"{start}output_sum", 2))} if f"{start}output_sum" in self._tensors else {}
        )
        for one, shape in {"share": (heads, DISTANCES), "on_kind": (heads, kinds), **optional}.items():
            self._sum(f"{start}{one}_sum", shape, counted.mT)
            names.append(f"{one}_sum")
        for one, shape in {"texts": (1, heads), "sampled": (1, heads), "kind_texts": (heads, kinds)}.items():
            self._count(f"{start}{one}", shape)
        self._metrics(start, heads)
        names += ["counted", "texts", "sampled", "kind_texts", "metric_square", "metric_histogram", "metric_least"]
        links = self._links(start, heads)
        self._check_written(name, heads, links)
        values = [f"{LINK}values"] if f"{start}{LINK}values" in self._tensors else []
        return [*names, "metric_most", *(f"{LINK}{one}" for one in LINKS), *values]

    def _metrics(self, start: str, heads: int) -> None:
        shape = len(METRICS), heads
        count, total = self._tensors[f"{start}metric_count"], self._tensors[f"{start}metric_sum"]
        self._sum(f"{start}metric_square", shape, count)
        histogram = self._count(f"{start}metric_histogram", (*shape, VALUES))
        if not torch.equal(histogram.sum(-1), count):
            raise ValueError(f"{start}metric_histogram does not have as many texts as {start}metric_count")
        for one in ("metric_least", "metric_most"):
            x = tensor_of(self._tensors, f"{start}{one}", f"{start}{one}", shape, DOUBLE, finite=False)
            if not bool((x.abs() <= LARGE)[count > 0].all()):
                raise ValueError(f"{start}{one} has numbers that are not finite, or too large")
        at = METRICS.index("entropy")
        if not bool((total[at] <= WIDEST * count[at]).all()):
            raise ValueError(f"{start}metric_sum has more bits of entropy than any row of weights")

    def _links(self, start: str, heads: int) -> int:
        """Check a layer's links, and return the number in each list."""
        count = self._size(f"{start}{LINK}order", 3)
        if count > self.links:
            raise ValueError(f"{start}{LINK}order has {count:,} links where at most {self.links:,} are expected")
        shape = LISTS, heads, count
        found: dict[str, Tensor] = {}
        for one, (dtypes, more) in LINKS.items():
            name = f"{start}{LINK}{one}"
            found[one] = tensor_of(self._tensors, name, name, (*shape, *more), dtypes, finite=one in ("weight", "row"))
        if not bool((found["order"] < torch.inf).all()):
            raise ValueError(f"{start}{LINK}order has numbers by which links cannot be sorted")
        if bool((found["row"].abs() > LARGE).any()) or bool((found["weight"].abs() > LARGE).any()):
            raise ValueError(f"{start}{LINK}row or {start}{LINK}weight has numbers that are too large")
        name = f"{start}{LINK}values"
        if name in self._tensors:
            tensor_of(self._tensors, name, name, (*shape, self._size(name, 4)), (torch.float32,))
        there = found["order"] > -torch.inf
        self._check_places(start, *(found[one][there] for one in ("text", "query", "key")))
        return count

    def _check_places(self, start: str, text: Tensor, query: Tensor, key: Tensor) -> None:
        """Check that the tokens of each link's excerpt are in the file."""
        numbers, lengths = self._tensors["text.numbers"], self._tensors["text.lengths"]
        at = torch.searchsorted(numbers, text.contiguous()).clamp(max=max(0, len(numbers) - 1))
        if not len(numbers):
            is_there = torch.zeros_like(text, dtype=torch.bool)
        else:
            own = lengths[at]
            is_there = (numbers[at] == text) & (query >= 0) & (query < own) & (key >= 0) & (key < own)
        if not bool(is_there.all()):
            raise ValueError(f"a link of {start}{LINK}text is in a text, or at a place, that is not in the file")
        first, places = self._tensors["text.first"], self._tensors["text.places"]
        kept = first[1:] - first[:-1]
        for i in (kept[at] < lengths[at]).nonzero()[:, 0].tolist() if len(numbers) else []:  # texts kept in part
            which = int(at[i])
            wanted = excerpt_places(query[i], key[i], int(lengths[which]))
            if not bool(torch.isin(wanted[wanted >= 0], places[first[which] : first[which + 1]]).all()):
                raise ValueError(f"a link of {start}{LINK}text has words around it that are not in the file")

    def _check_written(self, layer: str, heads: int, links: int) -> None:
        """Check the tokens that the heads of a layer write."""
        entry = self._extra.get(layer)
        if entry is None:
            return
        name = f"what heads of {layer!r:.40} write"
        for words in as_list(part_of(entry, "tokens"), name, MOST, heads):
            as_texts(words, name, MOST)
        for of_head in as_list(part_of(entry, "of_links"), name, MOST, heads):
            for words in as_list(of_head, name, MOST, links):
                as_texts(words, name, MOST)
        for pair in as_list(part_of(entry, "copied"), name, MOST, heads):
            hits, of = as_list(pair, name, 2, 2)
            as_whole(hits, name, as_whole(of, name, links + 1) + 1)

    def texts(self) -> list[str]:
        """Check the words around the links, and return the names of their tensors."""
        names = {one: f"text.{one}" for one in TEXTS}
        sizes = {one: self._size(name, 1) for one, name in names.items()}
        texts, tokens = sizes["numbers"], sizes["places"]
        shapes = {"offsets": tokens + 1, "first": texts + 1, "lengths": texts}
        dtypes = {"bytes": (torch.uint8,), "named": (torch.bool,)}
        found = {
            one: tensor_of(self._tensors, name, name, (shapes.get(one, sizes[one]),), dtypes.get(one, INTEGER))
            for one, name in names.items()
        }
        check_tensor(found["named"].shape, torch.bool, "text.named", (texts,), (torch.bool,))
        _check_cuts(found["offsets"], sizes["bytes"], "text.offsets")
        _check_cuts(found["first"], tokens, "text.first")
        numbers, lengths = found["numbers"], found["lengths"]
        if not _rises(numbers) or (texts and not 0 <= int(numbers[0]) <= int(numbers[-1]) < self.facts["given"]):
            raise ValueError("text.numbers are not numbers of texts in their order")
        kept = found["first"][1:] - found["first"][:-1]
        if bool((lengths < kept).any()) or bool((lengths > MOST_TOKENS).any()):
            raise ValueError("text.lengths has a text that is shorter than its words, or too long")
        own = torch.arange(texts, device="cpu").repeat_interleave(kept)
        places = found["places"]
        within = (places >= 0) & (places < lengths[own])
        if not bool(within.all()) or not bool(((places[1:] > places[:-1]) | (own[1:] > own[:-1])).all()):
            raise ValueError("text.places are not places of their texts in their order")
        return [*names.values()]

    def _size(self, name: str, axes: int) -> int:
        """Return the last size of a tensor."""
        x = self._tensors.get(name)
        if x is None:
            raise ValueError(f"{name} is missing")
        if x.ndim != axes:
            raise ValueError(f"{name} has {x.ndim} axes in place of {axes}")
        return x.shape[-1]

    def _count(self, name: str, shape: Sequence[int]) -> Tensor:
        """Return a tensor that counts texts."""
        x = tensor_of(self._tensors, name, name, shape, INTEGER)
        if x.numel() and not 0 <= int(x.min()) <= int(x.max()) <= self.all_texts:
            raise ValueError(f"{name} counts texts that are not there")
        return x

    def _sum(self, name: str, shape: Sequence[int], count: Tensor) -> None:
        """Check a tensor of sums over so many texts."""
        x = tensor_of(self._tensors, name, name, shape, DOUBLE)
        if bool((x.abs() > LARGE).any()):
            raise ValueError(f"{name} has numbers that are too large")
        if bool((x.where(count == 0, 0) != 0).any()):
            raise ValueError(f"{name} is a sum over no text, and not 0")


MOST_TOKENS = 1 << 40
LINKS: dict[str, tuple[tuple[torch.dtype, ...], tuple[int, ...]]] = {  # types, and axes after (lists, heads, links)
    "order": (DOUBLE, ()),
    "weight": (DOUBLE, ()),
    "text": (INTEGER, ()),
    "query": (INTEGER, ()),
    "key": (INTEGER, ()),
    "row": ((torch.float32,), (WIDTH,)),
}


def _check_cuts(x: Tensor, stop: int, name: str) -> None:
    """Raise ValueError unless numbers go from 0 to `stop` and never fall."""
    if not len(x) or int(x[0]) != 0 or int(x[-1]) != stop or bool((x[1:] < x[:-1]).any()):
        raise ValueError(f"{name} does not go from 0 to {stop:,} in order")


def _rises(x: Tensor) -> bool:
    return not bool((x[1:] <= x[:-1]).any())
