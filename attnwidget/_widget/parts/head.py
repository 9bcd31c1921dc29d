"""The selected head: its picture, links, findings, and the facts about its layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import traitlets

from ..._analysis.all_heads import numbers_of_heads
from ..._analysis.top_links import LINK_CELLS, LINKS, strongest
from ..._engine import cost
from ..._engine.softmax import sink_weights
from ..._messages.codec import encoding
from ..._messages.pictures import picture
from ..._messages.pictures.tiles import TileQueue
from ..._utils.weak import weakly
from ...attention import Attention
from ..derived.derived_trait import DerivedTrait
from ..derived.findings_cache import FindingsCache
from ..derived.selection import Selection
from ..passes.exact_pass import ExactPass
from ..traits.trait_types import derived
from .look import LookPart

LINK_BYTES = 8  # a partner and a weight
MAX_TARGETS = 64  # samples whose target tokens are named

Made = dict[str, Any]


class HeadPart(LookPart):
    """The picture of the selected head, and other facts about it."""

    _tile_queue: TileQueue
    _exact_pass: ExactPass
    _findings: FindingsCache

    facts = traitlets.Dict(help="Sizes, dtype and device of the selected layer.").tag(sync=True, role="derived")
    picture = traitlets.Dict(help="The selected head, at most 512 × 512.").tag(
        sync=True, role="derived", to_json=lambda value, self: self._exact_pass.as_far_as_known(value)
    )
    progress = derived("The share of the exact picture that is done; None once all is.")
    links = derived("The strongest links of the chosen heads.")
    findings: Any = traitlets.List(default_value=None, allow_none=True, help="Likely faults of the head.").tag(
        sync=True, role="derived"
    )
    deviation = derived("The difference from torch's own output, and from the original's.")

    def _make(self) -> None:
        super()._make()
        send = weakly(self.send)  # type: ignore[attr-defined]  # of ipywidgets
        self._tile_queue = TileQueue(self._scheduler, send)
        self._exact_pass = ExactPass(
            self._scheduler, self._tile_queue, send, weakly(self._put), weakly(self._shown_picture)
        )
        self._findings = FindingsCache(self._scheduler)

    def _rules(self, at: Selection) -> dict[str, DerivedTrait]:
        head = (*at.sample, at.head)
        return {
            "facts": DerivedTrait((at.layer,), self._facts, required=True),
            "findings": DerivedTrait(head, self._found),
            "deviation": DerivedTrait(head, self._deviation),
            **super()._rules(at),
            "links": DerivedTrait(self._links_wanted(at), self._links),
            # the last: it ends what waits
            "picture": DerivedTrait((*at.sample, at.shown_head, at.stage, at.pool), self._picture, self._no_picture),
        }

    def _forget_tensors(self) -> None:
        super()._forget_tensors()
        self._findings.forget()

    def _forget_tokens(self) -> None:
        super()._forget_tokens()
        self._findings.forget()
        self._derived.forget("facts", "findings", "deviation")

    def _end(self) -> None:
        super()._end()
        self._cancel()

    def _cancel(self) -> None:
        self._exact_pass.cancel()

    def _facts(self, layer: int) -> Made:
        """Return the sizes, dtype, device and stages of a layer."""
        shown, att = self._shown, self._shown.layers[layer]
        shape, numbers = att.shape, numbers_of_heads(shown.given[layer])
        return {
            "version": shown.version,
            **shown.place._asdict(),
            "layers": shown.labels,
            "batches": shape.B,
            "heads": shape.H,
            "groups": shape.G,
            "queries": shape.Q,
            "keys": shape.K,
            "head_size": shape.D,
            "value_size": shape.Dv,
            "dtype": str(att.dtype).removeprefix("torch."),
            "device": str(att.device),
            "is_causal": att.is_causal,
            "stages": list(att.stages),
            "targets": _targets_of(att),
            "has_pieces": self._merges and shown.has_pieces(layer),
            "has_sinks": att.has_sinks,
            "why": att.sources is not None,
            "checked": None if att.witness is None else att.witness.checked,
            "axes_read": self._axes_read(layer),
            "head_numbers": None if numbers is None else list(numbers),
            "model_heads": shown.head_numbers,
            "across": None if shown.as_one is None else shown.as_one.stack[0].description[0],
            "every": len(shown.every),
        }

    def _axes_read(self, layer: int) -> str | None:
        """Return how the samples of a layer are read: as `Attention.axes_read`, or windows or other maps."""
        found, witness = self._patches(layer), self._shown.layers[layer].witness
        if found is not None and found.windows is not None:
            return "windows"
        return "maps" if witness is not None and witness.maps else self._shown.given[layer].axes_read

    def _picture(self, *of: Any) -> Made:
        return self._exact_pass.picture(self._shown, *of)

    def _no_picture(self, error: Exception, *of: Any) -> Made:
        return picture.failed(error, of, self._shown.stack[of[0]].shape)

    def _shown_picture(self) -> Made:
        return self.picture

    def _found(self, layer: int, batch: int, head: int) -> list[Made] | None:
        found = self._findings.of(self._shown, layer, batch, head)
        return None if found is None else found.findings

    def _finding(self) -> Iterator[None]:
        """Find the likely faults of the selected head in steps."""
        return self._findings.finding(self._shown, self.layer, self.batch, self.head)

    def _deviation(self, layer: int, batch: int, head: int) -> Made | None:
        found = self._findings.of(self._shown, layer, batch, head)
        return None if found is None else {"layer": layer, "batch": batch, "head": head, **found.deviation}

    def _links_wanted(self, at: Selection) -> tuple[Any, ...]:
        """Return which links to send; () if none are shown, or if a head is too long to look at all of them."""
        if at.view != "graph":
            return ()
        shape, shown = self._shown.stack[at.layer].shape, at.shown_head
        heads = (shown,) if isinstance(shown, str) else tuple(at.heads)
        count = min(at.top_k or LINKS, encoding.BUDGET // (LINK_BYTES * max(shape.Q, shape.K) * len(heads)))
        if count < 1 or shape.Q * shape.K > LINK_CELLS:
            return ()
        if len(heads) > 1 and sum(self._cells_of_links(at, head) for head in heads) > 3 * LINK_CELLS:
            return ()
        return (*at.sample, heads, at.direction, count, at.linked_stage)

    def _cells_of_links(self, at: Selection, name: int | str) -> int:
        levels, head = self._shown.source(at.layer, name)
        shape = levels.att.shape
        return cost.cells(levels.att, at.batch, head, range(shape.Q), range(shape.K), "weights")

    def _links(self, layer: int, batch: int, heads: tuple[int | str, ...], side: str, count: int, stage: str) -> Made:
        looked_at = [self._shown.source(layer, head) for head in heads]
        each = [levels.att.head(batch, at) for levels, at in looked_at]
        encoded = encoding.encode_links(
            [strongest(head, count=count, side=side, stage=stage) for head in each],
            [sink_weights(head, range(head.att.shape.Q)) for head in each] if stage == "weights" else (),
        )
        return {"layer": layer, "batch": batch, "heads": list(heads), "side": side, "stage": stage, **encoded}


def _targets_of(att: Attention) -> list[Made] | None:
    """Return each sample's target token, and the tokens to choose from; None if the layer has no logits."""
    carries = att.carries
    if carries is None or carries.targets is None:
        return None
    found = []
    for batch, target in enumerate(carries.targets[:MAX_TARGETS]):
        others = carries.choices[batch] if carries.readout is not None and carries.choices else ()
        choices = [[one, carries.named(one)] for one in dict.fromkeys((*others, target))] if others else []
        own: Made = {"token": target, "text": carries.named(target), "choices": choices}
        found.append(own | {"before_cap": True} if carries.is_before_cap else own)
    return found
