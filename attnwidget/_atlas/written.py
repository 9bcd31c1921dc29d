"""The tokens that heads write: their outputs and values, by the path to the logits, without the norms' scales."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._capture.text.labels import labels_of
from .worker import ChunkTotals

MOST = 8  # tokens that are named
AMONG = 10  # a head copies a token if it is among so many that its value raises most
BLOCK = 4096  # tokens of the vocabulary at once
ORDINARY = 1  # the list of links whose values are looked at


class Written(NamedTuple):
    """What a layer's heads write.

    tokens: of each head, the tokens that its mean output raises most, from the most.
    of_links: of each head and ordinary link, the tokens that the key's value raises most.
    copied: of each head, among the ordinary links of texts whose tokens are known, how many raise the key's own token,
        and the number of these links.
    """

    tokens: list[list[str]]
    of_links: list[list[list[str]]]
    copied: list[tuple[int, int]]

    def as_facts(self) -> dict[str, Any]:
        """Return it for a file's JSON."""
        return self._asdict()


def written_by(cap: Any, totals: ChunkTotals, tokenizer: Any) -> tuple[dict[str, Written], dict[str, str]]:
    """Return what each layer's heads write, by layer; and the reason, by layer, where that is unknown.

    Args:
        cap: a capture of the model on any text, which knows its output projections and its unembedding.
        totals: with the outputs and the links.
        tokenizer: names the tokens.
    """
    found: dict[str, Written] = {}
    unknown: dict[str, str] = {}
    attention = dict(zip(cap.attention.names, cap.attention, strict=True))
    for name, layer in totals.layers.items():
        att = attention.get(name)
        why = "the layer was not recorded again" if att is None else _missing(att, tokenizer)
        if why is None and (layer.links is None or layer.links.values is None):
            why = "the values of its keys were not kept"
        if why is not None:
            unknown[name] = why
            continue
        found[name] = _of_layer(att, layer, totals, tokenizer)
    return found, unknown


def _missing(att: Any, tokenizer: Any) -> str | None:
    carries = att.carries
    if carries is None or carries.w_o is None or carries.readout is None:
        refusals = {} if carries is None else carries.refusals
        return str(refusals.get("logit") or refusals.get("target") or "no unembedding is known")
    return "there is no tokenizer to name tokens" if tokenizer is None or isinstance(tokenizer, str) else None


def _of_layer(att: Any, layer: Any, totals: ChunkTotals, tokenizer: Any) -> Written:
    carries, links = att.carries, layer.links
    w_o = carries.w_o.detach().double().cpu()
    if carries.heads is not None:
        w_o = w_o[list(carries.heads)]
    mean = layer.sums["output_sum"] / layer.sums["counted"][0, :, None].clamp(min=1)  # (heads, Dv), over texts
    values = torch.cat([mean[:, None], links.values[ORDINARY].double()], 1)  # (heads, 1 + count, Dv)
    written = torch.bmm(values, w_o).float()  # (heads, 1 + count, d_model)
    best = _top_tokens(written.flatten(0, 1), carries.readout)
    words = labels_of(best.clamp(max=carries.readout.vocabulary - 1), None, tokenizer)
    count = values.shape[1]
    tokens, of_links, copied = [], [], []
    for head in range(layer.heads):
        own = words[head * count : (head + 1) * count]
        tokens.append(own[0][:MOST])
        there = (links.order[ORDINARY, head] > -torch.inf).tolist()
        named = [own[1 + at] if is_there else [] for at, is_there in enumerate(there)]
        of_links.append([one[:MOST] for one in named])
        keys = zip(links.text[ORDINARY, head].tolist(), links.key[ORDINARY, head].tolist(), named, strict=True)
        known = [
            (totals.texts[text].tokens.get(key), one) for text, key, one in keys if one and totals.texts[text].named
        ]
        copied.append((sum(token in one for token, one in known), len(known)))
    return Written(tokens, of_links, copied)


def _top_tokens(written: Tensor, readout: Any) -> Tensor:
    """Return the tokens whose logits some vectors raise most, (vectors, up to AMONG) int64."""
    best: Tensor | None = None
    ids: Tensor | None = None
    for first in range(0, readout.vocabulary, BLOCK):
        block = range(first, min(first + BLOCK, readout.vocabulary))
        scores = written @ readout.directions(block).cpu().T
        top, at = scores.topk(min(AMONG, len(block)), 1)
        at = at + first
        if best is not None and ids is not None:
            top, at = torch.cat([best, top], 1), torch.cat([ids, at], 1)
            top, order = top.topk(min(AMONG, top.shape[1]), 1)
            at = at.gather(1, order)
        best, ids = top, at
    assert ids is not None
    return ids
