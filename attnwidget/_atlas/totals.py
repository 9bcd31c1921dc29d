"""Totals of a layer over texts: they add up in any portions, and do not grow with the number of texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .bins import VALUES, bins_of_values
from .layer_of_texts import METRICS, LayerOfTexts
from .links import LinkLists

LINK = "link_"  # before the names of the links' tensors


@dataclass
class LayerTotals:
    """Totals of a layer's heads.

    name: of the layer.
    heads: the number of heads.
    size: the number of values of a head; 0 if they are unknown.
    count: links in each list.
    sums: over texts, by name, float64 or int64, (…, heads, …); a sum ÷ its count is a mean over texts. Of metrics,
        (metrics, heads): `metric_sum`, `metric_count`, `metric_square` and `metric_histogram`. Of a text's mean weight
        of pairs of a query and a key, (2, heads, bins), all pairs and those among content tokens: `distance_sum`,
        `curve_sum` (in fewer bins) and `position_sum`, with `distance_count`, … the texts that have such pairs. Of the
        mean weight from a text's queries of one kind to its keys of another: `kind_sum`, (heads, query's kind, key's
        kind), and `kind_count`, (heads, query's kind). Over the texts in which a query counts, whose
        number is `counted`, (1, heads): the shares of the weight, `share_sum`, (heads, bins of distances), and
        `on_kind_sum`, (heads, kinds); the mean output, `output_sum`, (heads, Dv); and the texts that have such keys,
        `kind_texts`, (heads, kinds). `texts`, and those with only some rows computed: `sampled`, (1, heads).
    least, most: (metrics, heads), over texts; NaN without any.
    links: see `LinkLists`.
    """

    name: str
    heads: int
    size: int
    count: int
    sums: dict[str, Tensor] = field(default_factory=dict)
    least: Tensor = field(init=False)
    most: Tensor = field(init=False)
    links: LinkLists | None = None

    def __post_init__(self) -> None:
        self.least = torch.full((len(METRICS), self.heads), torch.inf, dtype=torch.float64, device="cpu")
        self.most = -self.least

    def add(self, found: LayerOfTexts, effect: Tensor | None = None) -> None:
        """Add some texts.

        Args:
            found: their numbers.
            effect: (texts, heads) float64, the effect of each head on the loss, if measured.
        """
        metrics = found.metrics
        if effect is not None:
            metrics = torch.cat([metrics[:-1], effect[None]])
        there = ~metrics.isnan()
        values = metrics.where(there, 0)
        histogram = torch.zeros(len(METRICS), self.heads, VALUES, dtype=torch.int64, device="cpu")
        bins = bins_of_values(METRICS, values.flatten(1)).unflatten(1, values.shape[1:]).transpose(1, 2)
        histogram.scatter_add_(2, bins, there.transpose(1, 2).long())
        one = torch.full((1, self.heads), metrics.shape[1], dtype=torch.int64, device="cpu")
        sums = {
            **found.sums,
            "metric_count": there.sum(1),
            "metric_sum": values.sum(1),
            "metric_square": values.square().sum(1),
            "metric_histogram": histogram,
            "texts": one,
            "sampled": one * found.sampled,
        }
        self._add_sums(sums)
        self.least = torch.minimum(self.least, metrics.where(there, torch.inf).amin(1))
        self.most = torch.maximum(self.most, metrics.where(there, -torch.inf).amax(1))
        self._add_links(found.links)

    def merge(self, other: LayerTotals) -> None:
        """Add the totals of other, later texts."""
        self._add_sums(other.sums)
        self.least, self.most = torch.minimum(self.least, other.least), torch.maximum(self.most, other.most)
        if other.links is not None:
            self._add_links(other.links)

    def _add_sums(self, sums: Mapping[str, Tensor]) -> None:
        for name, x in sums.items():
            if name in self.sums:
                self.sums[name] += x
            else:
                self.sums[name] = x.clone()

    def _add_links(self, links: LinkLists) -> None:
        if self.links is None:
            self.links = LinkLists(*(None if x is None else x[:, :, :0] for x in links))  # type: ignore[arg-type]
        self.links = self.links.joined(links, self.count)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name."""
        links = {} if self.links is None else self.links.tensors()
        return {
            **self.sums,
            "metric_least": self.least,
            "metric_most": self.most,
            **{f"{LINK}{name}": x for name, x in links.items()},
        }

    @classmethod
    def of(cls, name: str, count: int, tensors: Mapping[str, Tensor]) -> LayerTotals:
        """Return totals from their tensors."""
        found = dict(tensors)
        links = {one: found.pop(f"{LINK}{one}", None) for one in LinkLists._fields}
        least, most = found.pop("metric_least"), found.pop("metric_most")
        output = found.get("output_sum")
        totals = cls(name, least.shape[1], 0 if output is None else output.shape[1], count, found)
        totals.least, totals.most = least, most
        totals.links = None if links["order"] is None else LinkLists(**links)  # type: ignore[arg-type]
        return totals
