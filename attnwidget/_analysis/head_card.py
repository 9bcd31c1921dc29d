"""The card of a head: all that an atlas knows about it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .._utils.readable import Readable


@dataclass(frozen=True)
class OverTexts:
    """A metric over texts; each text counts the same.

    mean, std: std with n − 1; None for one text.
    least, most: exact.
    n: the number of texts in which the metric has something to average.
    counts: texts by bins of the metric, int64.
    edges: of the bins, one more; smaller and larger values are in the first and the last bin.

    >>> import torch
    >>> from attnwidget import atlas
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    >>> found = atlas(model, [{"src": torch.randn(1, n, 8)} for n in (5, 9)], progress=False)
    >>> entropy = found.head(0, 1).metrics["entropy"]
    >>> entropy.n, int(entropy.counts.sum()), entropy.least <= entropy.mean <= entropy.most
    (2, 2, True)
    """

    mean: float
    std: float | None
    least: float
    most: float
    n: int
    counts: Tensor
    edges: Tensor


@dataclass(frozen=True)
class AtlasLink:
    """A link in its text.

    text: the number of the text, as given to `atlas`.
    query, key: positions in the text.
    weight: of the query on the key.
    tokens: of the excerpt.
    places: the position of each of these tokens.
    weights: of the query on each of these tokens.
    writes: tokens whose logits the key's value raises most; empty if unknown.

    >>> import torch
    >>> from attnwidget import atlas
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    >>> found = atlas(model, [{"src": torch.randn(1, n, 8)} for n in (5, 9)], progress=False)
    >>> link = found.head(0, 1).strongest[0]
    >>> 0 <= link.weight <= 1, len(link.weights) == len(link.places)
    (True, True)
    """

    text: int
    query: int
    key: int
    weight: float
    tokens: list[str]
    places: list[int]
    weights: list[float]
    writes: list[str]

    def __str__(self) -> str:
        words = dict(zip(self.places, self.tokens, strict=True))
        there = f"query {self.query:,} {words[self.query]!r} → key {self.key:,} {words[self.key]!r}"
        return f"text {self.text:,}, {there}: {short(self.weight)}"


@dataclass(frozen=True, repr=False)
class HeadCard(Readable):
    """One head over all texts of an atlas; each number is a mean over texts, in which each text counts the same.

    sentence: what it does, in words with the numbers of this card.
    labels: the same in two or three words each, to search by.
    metrics: over texts, by name: those of `Metrics`, "sink", "streaming" (as in `find_heads`), "output" (the mean size
        of what the head writes into the residual stream; of its own output if W_O is unknown) and "effect".
    distances: the least and the greatest query − key of each bin.
    by_distance: the mean weight of a text's pairs in each bin, (bins,), over the texts with such pairs; NaN without
        any. Also among content tokens alone, which are neither the first nor special: `content_by_distance`.
    share_by_distance: the share of the weight in each bin, (bins,).
    positions: the first key of each bin.
    by_position: the mean weight that a key receives from a query that may attend to it, (bins,), over the texts with
        such keys; among content tokens alone: `content_by_position`.
    kinds: names of kinds of tokens.
    by_kind: the mean weight that queries of a kind (rows) give to keys of a kind (columns), over the texts with such
        queries; NaN without any. A text without such keys counts as 0.
    on_kind: the share of the weight on keys of each kind; a text without such keys counts as 0. NaN for special
        tokens, punctuation and others if the tokens have no names.
    texts_with: the number of texts that have tokens of each kind.
    set_aside: the share of the weight on first and special tokens, which content links leave out, the mean over texts.
    strongest: links with the largest weights, at most two of one text, of queries that may attend to eight keys or, in
        shorter texts, to the most.
    ordinary: links drawn at random: a random such query of a random text, and its strongest key.
    strongest_content, ordinary_content: the same, with query and key neither first nor special.
    writes: tokens whose logits the mean output raises most; empty if unknown.
    copied: among the ordinary links, how many raise the key's own token most, or nearly (ten tokens), and their number;
        None if unknown.
    unwritten: why `writes` is unknown; None if it is known.
    texts: the number of texts.

    >>> import torch
    >>> from attnwidget import atlas
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    >>> found = atlas(model, [{"src": torch.randn(1, n, 8)} for n in (5, 9)], progress=False)
    >>> card = found.head(0, 1)
    >>> card.layer, card.head, card.texts
    (0, 1, 2)
    """

    layer: int
    name: str
    head: int
    sentence: str
    labels: list[str]
    texts: int
    metrics: dict[str, OverTexts]
    distances: list[tuple[int, int]]
    by_distance: Tensor
    share_by_distance: Tensor
    content_by_distance: Tensor
    positions: list[int]
    by_position: Tensor
    content_by_position: Tensor
    kinds: list[str]
    by_kind: Tensor
    on_kind: dict[str, float]
    texts_with: dict[str, int]
    set_aside: float
    strongest: list[AtlasLink]
    ordinary: list[AtlasLink]
    strongest_content: list[AtlasLink]
    ordinary_content: list[AtlasLink]
    writes: list[str]
    copied: tuple[int, int] | None
    unwritten: str | None

    def __str__(self) -> str:
        texts = f"{self.texts:,} text{'s' * (self.texts != 1)}"
        lines = [f"Layer {self.layer}, head {self.head} over {texts}: {self.sentence}"]
        width = max(map(len, self.metrics), default=0)
        for name, one in self.metrics.items():
            spread = "" if one.std is None else f" ± {one.std:.3g}"
            lines.append(f"  {name:{width}}  {one.mean:.4g}{spread}")
        if self.set_aside == self.set_aside:
            unknown = self.on_kind["special"] != self.on_kind["special"]
            which = "first tokens" if unknown else "first and special tokens"
            lines.append(f"  {self.set_aside:.0%} of its weight is on {which}")
        lines += [f"  strongest: {one}" for one in self.strongest[:3]]
        lines += [f"  ordinary: {one}" for one in self.ordinary[:3]]
        if self.writes:
            lines.append(f"  writes {', '.join(map(repr, self.writes[:5]))}")
        return "\n".join(lines)


def short(number: float) -> str:
    """Return a share with two digits, as in the widget: .23, 1.0.

    >>> short(0.234), short(0.999), short(0.001)
    ('.23', '1.0', '.00')
    """
    text = f"{number:.2f}"
    return text[1:] if text.startswith("0") else text[:-1]
