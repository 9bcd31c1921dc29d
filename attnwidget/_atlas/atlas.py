"""`Atlas`: every head of a model over many texts, to search, to compare, to read and to publish."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._analysis.head_card import AtlasLink, HeadCard, OverTexts
from .._analysis.plane import Plane, plane_of
from .._analysis.similar_heads import metric_distances, order_of, picture_distances
from .._capture.api.capture import Capture
from .._utils.files import as_path
from .._utils.indexing import as_index
from .._utils.validation import as_choice, as_size, kind_of
from . import storage
from .bins import SIDE, STARTS, distance_starts, edges_of
from .links import NAMES, excerpt_places
from .page.atlas_widget import AtlasWidget
from .page.site import write_site
from .reopening import capture_of_text
from .sentences import NEAR, OfKind, behavior_of
from .token_kinds import OTHER, PUNCTUATION, SPECIAL
from .worker import TextRead

UNFINISHED = "the pass over the texts is not finished"
SUMS = ("metric_count", "metric_sum", "metric_square")


class Atlas:
    """Every head of a model over many texts: made by `attnwidget.atlas`, or read by `Atlas.open`.

    Attributes:
        model_name: the class of the model.
        layers: the names of the layers, in order.
        texts: the number of texts measured.
        tokens: the number of their tokens.
        named: the number of these texts whose tokens have names; in the others special tokens and punctuation are not
            known.
        kinds: names of the kinds of tokens.
        metrics: names of the metrics.
        skipped: the reason, by the number of a text that was left out.
        unseen: the reason, by the name of a layer that was not recorded.
        is_partial: whether the pass was stopped before its end; the same call of `atlas` goes on.

    >>> import torch
    >>> from attnwidget import atlas
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    >>> found = atlas(model, [{"src": torch.randn(1, n, 8)} for n in (5, 9)], progress=False)
    >>> found.texts, found.tokens, len(found.heads())
    (2, 14, 2)
    """

    def __init__(
        self,
        facts: dict[str, Any],
        tensors: storage.Tensors,
        *,
        model: Any = None,
        tokenizer: Any = None,
        texts: Sequence[Any] | None = None,
    ) -> None:
        self._facts, self._tensors = facts, tensors
        self._model, self._tokenizer, self._texts = model, tokenizer, texts
        settings = facts["settings"]
        self.model_name: str = settings["model"]
        self.layers: list[str] = facts["layers"]
        self.texts: int = facts["texts"]
        self.tokens: int = facts["tokens"]
        self.named: int = facts["named"]
        self.kinds: list[str] = settings["kinds"]
        self.metrics: list[str] = settings["metrics"]
        self.skipped = {int(number): why for number, why in facts["skipped"].items()}
        self.unseen: dict[str, str] = facts["unseen"]
        self.is_partial = not facts["done"]

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        model: Any = None,
        tokenizer: Any = None,
        texts: Sequence[Any] | None = None,
    ) -> Atlas:
        """Open an atlas from its folder, and check all of it.

        Args:
            path: the folder, as given to `atlas(store=…)` or `save`.
            model, tokenizer, texts: the same as for `atlas`, to open texts in the widget; without them the atlas is
                complete, but its texts cannot be run again.

        Raises:
            FileNotFoundError: there is no atlas.
            PermissionError: the file may not be read.
            ValueError: it is damaged, or of another version.

        >>> Atlas.open("nothing here")
        Traceback (most recent call last):
        FileNotFoundError: ...
        """
        folder = as_path(path, "atlas")
        facts, tensors = storage.load(folder)
        return cls(facts, tensors, model=model, tokenizer=tokenizer, texts=texts)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the atlas into a folder, in the safetensors format, and return the folder.

        Raises:
            FileExistsError: the folder has an atlas.
            RuntimeError: another process writes one there.
            OSError: it cannot be written, with the reason; then nothing has changed.
        """
        folder = as_path(path, "atlas")
        with storage.writing(folder):
            if (folder / storage.FILE).exists():
                raise FileExistsError(f"{folder} has an atlas: give another folder, or delete this one")
            storage.write(folder, self._tensors.all(), self._facts)
        return folder

    def __repr__(self) -> str:
        heads, layers = sum(self._facts["heads"]), len(self.layers)
        partial = ", partial: the same call of atlas goes on" if self.is_partial else ""
        left_out = f", {len(self.skipped):,} left out" if self.skipped else ""
        return (
            f"Atlas of {self.model_name}: {layers} layer{'s' * (layers != 1)}, {heads:,} heads, {self.texts:,} "
            f"text{'s' * (self.texts != 1)}{left_out}, {self.tokens:,} tokens{partial}"
        )

    @property
    def heads_of_layers(self) -> list[int]:
        """The number of heads of each layer."""
        found: list[int] = self._facts["heads"]
        return found

    @property
    def can_open_texts(self) -> bool:
        """Whether the model and the texts are known, so that `open_text` can run them again."""
        return self._model is not None and self._texts is not None

    # Numbers of all heads.

    @property
    def sampled(self) -> int:
        """The number of texts in which only some rows of the heads were computed, because they are long."""
        found = [self._tensors.get(f"{number}.sampled") for number in range(len(self.layers))]
        return max((int(one.max()) for one in found if one is not None), default=0)

    def heads(self) -> list[dict[str, Any]]:
        """Return one dict for each head, ready for `pandas.DataFrame`.

        Returns:
            layer, name, head, texts, sentence, labels, and of each metric the mean over texts and its
            standard deviation, `entropy` and `entropy_std`; None if nothing counts.

        >>> import torch, attnwidget
        >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
        >>> found = attnwidget.atlas(model, [{"src": torch.randn(1, 9, 8)}], progress=False)
        >>> [(one["layer"], one["head"], one["texts"]) for one in found.heads()]
        [(0, 0, 1), (0, 1, 1)]
        """
        found = []
        for layer, head in self._all_heads():
            numbers = self._numbers[layer]
            record: dict[str, Any] = {"layer": layer, "name": self.layers[layer], "head": head}
            behavior = numbers.behavior(head)
            record |= {"texts": int(numbers.texts[head]), "sentence": behavior.sentence, "labels": behavior.labels}
            for at, name in enumerate(self.metrics):
                mean, std = numbers.mean[at, head].item(), numbers.std[at, head].item()
                record |= {name: None if mean != mean else mean, f"{name}_std": None if std != std else std}
            found.append(record)
        return found

    def distances(self) -> tuple[Tensor, Tensor]:
        """Return each head's mean weight by distance, and the number of texts with such pairs, (2, heads, bins) both.

        First of all links, then of those among content tokens. The weight is the mean over these texts of the mean over
        a text's pairs; NaN without any. The bins are those of `HeadCard.distances`, the heads in the order of `heads`.
        """
        weights, texts = zip(*(one.distances for one in self._numbers), strict=True)
        return torch.cat(weights, 1), torch.cat(texts, 1)

    @property
    def curves(self) -> Tensor:
        """Each head's mean weight by distance for a small picture, (2, heads, bars); see `distances`.

        The bars are the distances query − key from −8 to 8, and one for all larger distances on each side.
        """
        return torch.cat([one.curves for one in self._numbers], 1)

    def _all_heads(self) -> list[tuple[int, int]]:
        return [(layer, head) for layer, heads in enumerate(self._facts["heads"]) for head in range(heads)]

    @functools.cached_property
    def _numbers(self) -> list[LayerNumbers]:
        written = self._facts["extra"].get("written", {})
        return [
            LayerNumbers(self._tensors, number, self.kinds, self.metrics, written.get(name))
            for number, name in enumerate(self.layers)
        ]

    def _find(self, layer: int, head: int) -> tuple[int, int]:
        at = as_index(layer, len(self.layers), "layer", "layers")
        return at, as_index(head, self._facts["heads"][at], "head", "heads")

    # One head.

    def head(self, layer: int, head: int) -> HeadCard:
        """Return the card of a head: what it does, with distributions, examples, and what it writes.

        Raises:
            IndexError: there is no such layer or head.

        >>> import torch, attnwidget
        >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
        >>> found = attnwidget.atlas(model, [{"src": torch.randn(1, 9, 8)}], progress=False)
        >>> len(found.head(0, 1).strongest)
        2
        """
        layer, head = self._find(layer, head)
        numbers = self._numbers[layer]
        behavior = numbers.behavior(head)
        written = self._facts["extra"].get("written", {}).get(self.layers[layer])
        links = self._links(layer, head, written)
        return HeadCard(
            layer=layer,
            name=self.layers[layer],
            head=head,
            sentence=behavior.sentence,
            labels=behavior.labels,
            texts=int(numbers.texts[head]),
            metrics=self._over_texts(layer, head),
            distances=distance_starts(),
            by_distance=numbers.distances[0][0, head],
            share_by_distance=numbers.shares[head],
            content_by_distance=numbers.distances[0][1, head],
            positions=[*STARTS],
            by_position=numbers.positions[0, head],
            content_by_position=numbers.positions[1, head],
            kinds=self.kinds,
            by_kind=numbers.by_kind[head],
            on_kind={
                name: share if self.named or name not in (SPECIAL, PUNCTUATION, OTHER) else float("nan")
                for name, share in numbers.on_kind(head).items()
            },
            texts_with=numbers.texts_with(head),
            set_aside=numbers.mean[self.metrics.index("set_aside"), head].item(),
            **{name.replace(" ", "_"): links[name] for name in NAMES},
            writes=[] if written is None else written["tokens"][head],
            copied=None if written is None else tuple(written["copied"][head]),
            unwritten=UNFINISHED if self.is_partial else self._facts["extra"]["unwritten"].get(self.layers[layer]),
        )

    def _over_texts(self, layer: int, head: int) -> dict[str, OverTexts]:
        numbers, found = self._numbers[layer], {}
        counts = self._tensors.get(f"{layer}.metric_histogram", head, 1)
        assert counts is not None
        for at, name in enumerate(self.metrics):
            n = int(numbers.count[at, head])
            if n:
                std = numbers.std[at, head].item()
                found[name] = OverTexts(
                    numbers.mean[at, head].item(),
                    None if std != std else std,
                    numbers.least[at, head].item(),
                    numbers.most[at, head].item(),
                    n,
                    counts[at],
                    edges_of(name),
                )
        return found

    @functools.cached_property
    def _read(self) -> dict[int, TextRead]:
        return dict(storage.texts_from(self._tensors))

    def _links(self, layer: int, head: int, written: Any) -> dict[str, list[AtlasLink]]:
        names = ("order", "weight", "text", "query", "key", "row")
        parts = [self._tensors.get(f"{layer}.link_{name}", head, 1) for name in names]
        if any(part is None for part in parts):
            return {name: [] for name in NAMES}
        order, weight, text, query, key, row = (part for part in parts if part is not None)
        found: dict[str, list[AtlasLink]] = {}
        for which, name in enumerate(NAMES):
            found[name] = []
            for at in range(order.shape[1]):
                if order[which, at] == -torch.inf:
                    continue
                number = int(text[which, at])
                read = self._read[number]
                places = excerpt_places(query[which, at], key[which, at], read.length)
                there = [place for place in places.tolist() if place >= 0]
                writes = written["of_links"][head][at] if written is not None and name == "ordinary" else []
                weights = row[which, at, : len(there)].tolist()
                tokens = [read.tokens[place] for place in there]
                numbers = int(query[which, at]), int(key[which, at]), float(weight[which, at])
                found[name].append(AtlasLink(number, *numbers, tokens, there, weights, writes))
        return found

    def similar(self, layer: int, head: int, *, top: int | None = 5, by: str = "both") -> list[dict[str, Any]]:
        """Return the heads that resemble one most: a list of records, the nearest first.

        Args:
            layer, head: the one head.
            top: the number of heads; None for all.
            by: "metrics": the means over texts, in standard deviations over the heads; "picture": the shares of the
                weight by distance, as 1 − their cosine; or "both": the sum of both ranks.

        Returns:
            rank (from 1), layer, name, head, metrics and picture (distances; None if unknown), sentence.
        """
        layer, head = self._find(layer, head)
        as_choice(by, ("both", "metrics", "picture"), "by")
        heads = self._all_heads()
        own = heads.index((layer, head))
        means = self.means
        pictures = [self._numbers[at].shares[one][:, None] for at, one in heads]
        by_metrics, by_picture = metric_distances(means, own), picture_distances(pictures, own)
        found = []
        most = None if top is None else as_size(top, "top")
        for rank, place in enumerate(order_of(by_metrics, by_picture, own, by)[1:][:most], 1):
            where = heads[place]
            apart = {"metrics": float(by_metrics[place]), "picture": float(by_picture[place])}
            found.append(
                {
                    "rank": rank,
                    "layer": where[0],
                    "name": self.layers[where[0]],
                    "head": where[1],
                    **{name: None if x != x else x for name, x in apart.items()},
                    "sentence": self._numbers[where[0]].behavior(where[1]).sentence,
                }
            )
        return found

    @property
    def means(self) -> Tensor:
        """The mean of each metric over texts, (heads, metrics) float64, in the order of `heads` and `metrics`."""
        return torch.cat([one.mean.mT for one in self._numbers])

    @property
    def plane(self) -> Plane:
        """All heads in a plane, in which similar heads lie together: see `attnwidget.results.Plane`."""
        return self._plane

    @functools.cached_property
    def _plane(self) -> Plane:
        shares = [self._numbers[layer].shares[head] for layer, head in self._all_heads()]
        return plane_of(self.means, torch.stack(shares))

    def compare(self, other: Atlas, metric: str | None = None) -> list[dict[str, Any]]:
        """Return how each head differs in another atlas of the same texts, such as of a tuned model.

        Args:
            other: with the same layers and heads.
            metric: one metric; None: all, each in standard deviations over the heads of this atlas.

        Returns:
            layer, name, head, change (other − this; for all metrics, the root of the mean square), and of one metric
            before and after; the largest change first.

        Raises:
            ValueError: the layers, the heads or the texts differ.
        """
        if not isinstance(other, Atlas):
            raise TypeError(f"other is {kind_of(other)}: give an Atlas")
        if self._facts["heads"] != other._facts["heads"]:
            raise ValueError(
                f"the models have {self._facts['heads']} and {other._facts['heads']} heads in their layers: give "
                "atlases of models of the same shape"
            )
        if self._facts["digest"] != other._facts["digest"]:
            raise ValueError("the atlases are of different texts, so heads cannot be compared: use the same texts")
        alone = sorted(self.skipped.keys() ^ other.skipped.keys())
        if alone:
            raise ValueError(
                f"text {alone[0]} was left out of one atlas only, so their means are over different texts: leave it "
                "out of both"
            )
        if metric is not None:
            as_choice(metric, self.metrics, "metric")
        before, after = self.means, other.means
        found = []
        spread = before.sub(before.nanmean(0)).square().nanmean(0).sqrt()
        for at, (layer, head) in enumerate(self._all_heads()):
            record: dict[str, Any] = {"layer": layer, "name": self.layers[layer], "head": head}
            if metric is None:
                apart = ((after[at] - before[at]) / spread)[spread > 0]
                change = float(apart.square().nanmean().sqrt())
            else:
                which = self.metrics.index(metric)
                record |= {"before": float(before[at, which]), "after": float(after[at, which])}
                change = record["after"] - record["before"]
            found.append({**record, "change": change})
        return sorted(found, key=lambda one: -abs(one["change"]) if one["change"] == one["change"] else 0.0)

    # Texts.

    def open_text(self, number: int) -> Capture:
        """Run the model on one text again, and return its capture: `cap.widget(layer=…, head=…)` shows it.

        Args:
            number: of the text, as in the links.

        Raises:
            ValueError: the atlas does not know the model or the texts.
            IndexError: there is no such text.
        """
        if self._model is None or self._texts is None:
            missing = "model" if self._model is None else "texts"
            raise ValueError(
                f"this atlas does not know its {missing}: give Atlas.open(path, model=…, tokenizer=…, texts=[…])"
            )
        at = as_index(number, len(self._texts), "text", "texts")
        return capture_of_text(self._model, self._tokenizer, self._texts[at])

    # Pictures.

    def widget(self, other: Atlas | None = None, *, theme: str = "auto") -> AtlasWidget:
        """Return the atlas as a widget: a map of all heads, a plane of similar ones, and a card for each.

        Args:
            other: another atlas of the same texts, to compare with.
            theme: "auto", "light" or "dark".
        """
        return AtlasWidget(self, other, theme=theme)

    def to_html(self, folder: str | os.PathLike[str], *, other: Atlas | None = None, title: str | None = None) -> Path:
        """Write the atlas as pages that open from the disk, without a kernel or a network; return the first page.

        Args:
            folder: is made if it does not exist. `index.html` is the first page.
            other: another atlas of the same texts, to compare with.
            title: None: the model's name.
        """
        return write_site(self, folder, other=other, title=title)


class LayerNumbers:
    """The numbers of a layer's heads, read once."""

    def __init__(
        self,
        tensors: storage.Tensors,
        number: int,
        kinds: Sequence[str],
        metrics: Sequence[str],
        written: Any,
    ) -> None:
        self._tensors, self._number, self._kinds, self._metrics = tensors, number, kinds, metrics
        self._written = written
        self.count, total, square = (self._get(name) for name in SUMS)
        self.mean = total / self.count
        variance = (square - total * self.mean).clamp(min=0) / (self.count - 1)
        self.std = variance.sqrt().masked_fill(self.count < 2, torch.nan)
        self.least, self.most = self._get("metric_least"), self._get("metric_most")
        self.texts = self._get("texts")[0]

    def _get(self, name: str) -> Tensor:
        found = self._tensors.get(f"{self._number}.{name}")
        assert found is not None
        return found

    @functools.cached_property
    def distances(self) -> tuple[Tensor, Tensor]:
        """The mean weight by distance, NaN without pairs, and the texts with such pairs, (2, heads, bins) both."""
        return self._mean("distance"), self._get("distance_count")

    @functools.cached_property
    def curves(self) -> Tensor:
        """The mean weight by distance in few bins, (2, heads, bins); NaN without pairs."""
        return self._mean("curve")

    @functools.cached_property
    def positions(self) -> Tensor:
        """The mean weight that keys receive, by bins of positions, (2, heads, bins); NaN without any."""
        return self._mean("position")

    @functools.cached_property
    def shares(self) -> Tensor:
        """The share of the weight in each bin of distances, (heads, bins)."""
        return self._get("share_sum") / self.counted[:, None]

    @functools.cached_property
    def by_kind(self) -> Tensor:
        """The mean weight from queries of a kind to keys of a kind, (heads, kinds, kinds); NaN without such queries."""
        return self._get("kind_sum") / self._get("kind_count")[..., None]

    @functools.cached_property
    def kind_shares(self) -> Tensor:
        """The share of the weight on each kind of token, (heads, kinds)."""
        return self._get("on_kind_sum") / self.counted[:, None]

    @functools.cached_property
    def counted(self) -> Tensor:
        """The texts in which a query counts, (heads,)."""
        return self._get("counted")[0]

    def _mean(self, name: str) -> Tensor:
        return self._get(f"{name}_sum") / self._get(f"{name}_count")

    def on_kind(self, head: int) -> dict[str, float]:
        """Return the share of the weight on each kind of token."""
        return dict(zip(self._kinds, self.kind_shares[head].tolist(), strict=True))

    def texts_with(self, head: int) -> dict[str, int]:
        """Return the number of texts that have tokens of each kind, among those in which a query counts."""
        return dict(zip(self._kinds, self._get("kind_texts")[head].tolist(), strict=True))

    def behavior(self, head: int) -> Any:
        """Return what a head does, in words."""
        means: dict[str, float | None] = {
            name: None if (x := self.mean[at, head].item()) != x else x for at, name in enumerate(self._metrics)
        }
        shares = self.shares[head]
        known = bool(shares.sum() > 0)
        means["next_token"] = float(shares[SIDE - 2]) if known else None
        near = float(shares[SIDE - 1 - NEAR : SIDE + NEAR].sum()) if known else None
        copied = None if self._written is None else tuple(self._written["copied"][head])
        kinds = {
            name: OfKind(share, there, int(self.counted[head]))
            for (name, share), there in zip(self.on_kind(head).items(), self.texts_with(head).values(), strict=True)
        }
        return behavior_of(means, kinds, near, copied)
