"""Compute weights from scores under the rules of a call and its edits, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..._engine.what_if import round_to
from ..._rules.row_spans import Spans
from ..._utils.validation import FLOATS
from ..call.flex_attention import ScoreMod
from ..intercept.output_edits import EditRefused
from .edits import REMOVING, HeadEdit
from .kept_keys import KeptKeys
from .seen_call import SeenCall

KEEP_AND_ADDED = "keep works with bool masks only, but a mask here is added to scores: give it as bools"


class SoftmaxRules:
    """The rules of some heads of a call with all edits applied.

    Args:
        seen: the call.
        samples, heads: their indices in the call.
        edits: applied in this order.
    """

    def __init__(self, seen: SeenCall, samples: Sequence[int], heads: Sequence[int], edits: Sequence[HeadEdit]) -> None:
        call, device = seen.call, seen.call.q.device
        self._seen, self._edits = seen, edits
        self._samples, self._heads = tuple(samples), tuple(heads)
        self._b = torch.tensor(samples, device=device)[:, None, None, None]
        self._h = torch.tensor(heads, device=device)[:, None, None]
        self._keys = torch.arange(len(seen.keys), device=device)
        self._mask, self._bias, self._softcap = call.mask, call.bias, call.softcap
        self._is_causal = call.is_causal
        self._causal: bool | str = False  # set by an edit
        self._window: int | None = None
        self._sinks = None if call.sinks is None else call.sinks[list(heads)][:, None, None]
        self.scale = call.q.shape[-1] ** -0.5 if call.scale is None else call.scale
        self.number_types: list[str] = []
        for one in edits:
            self._change(one)
        self._dropped = self._any_of([one.dropped for one in edits])
        self._masks = [one.mask for one in edits if one.mask is not None]
        self._kept = [self._kept_of(one) for one in edits if one.keep is not None]

    def _change(self, edit: HeadEdit) -> None:
        changes, there = edit.changes, self._there()
        removed = (name for name, value in REMOVING.items() if name in changes and changes[name] is value)
        edit.changed.update(name for name in removed if there[name])
        self.scale = changes.get("scale", self.scale) / changes.get("temperature", 1.0)
        self._softcap = changes.get("softcap", self._softcap)
        self._window = changes.get("window", self._window)
        if "causal" in changes:
            self._is_causal, self._causal = False, changes["causal"]
        if changes.get("mask") is False:
            self._mask = None
        if changes.get("sinks") is False:
            self._sinks = None
        if "dtype" in changes:
            self.number_types.append(changes["dtype"])

    def _there(self) -> dict[str, bool]:
        """Return which removable rules exist, by the keyword that removes them."""
        return {
            "mask": self._mask is not None,
            "causal": self._is_causal or bool(self._causal),
            "window": self._window is not None,
            "softcap": self._softcap is not None,
            "sinks": self._sinks is not None,
        }

    def _any_of(self, places: Sequence[Any]) -> Tensor | None:
        """Return which keys are named by any of these positions, bool (K,); None if there are no positions."""
        found = [self._of_keys(one) for one in places if one is not None]
        return torch.stack(found).any(0) if found else None

    def _of_keys(self, places: Any) -> Tensor:
        keys = self._seen.keys
        named: Tensor = places.mask(keys.start, len(keys), self._seen.key_length, self._keys.device)
        return named

    def _of_queries(self, places: Any, rows: Tensor) -> Tensor:
        queries = self._seen.queries
        named: Tensor = places.mask(queries.start, len(queries), self._seen.query_length, rows.device)
        return named[rows]

    def scaled(self, scores: Tensor) -> Tensor:
        """Return scores after scale and softcap."""
        scores = scores * self.scale
        return scores if self._softcap is None else self._softcap * (scores / self._softcap).tanh()

    def weights(self, scores: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights of some queries, and which cells are allowed.

        Args:
            scores: (samples, heads, rows, K), scaled.
            rows: the indices of the queries in the call.
        """
        scores, allowed = self._under_rules(scores, rows[:, None])
        filled = allowed.any(-1, keepdim=True)
        scores = scores.masked_fill(~allowed, -torch.inf).masked_fill(~filled, 0)
        if self._sinks is not None:
            column = self._sinks.to(scores).expand(*scores.shape[:-1], 1)
            scores = torch.cat([scores, column], -1)
        weights = scores.softmax(-1)[..., : allowed.shape[-1]]
        return weights.masked_fill(~allowed, 0), allowed

    def _under_rules(self, scores: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        indices = self._b, self._h, rows, self._keys
        allowed = torch.ones_like(scores, dtype=torch.bool)
        for rule in (self._bias, self._mask):
            if isinstance(rule, ScoreMod):
                scores = rule(scores, *indices)
                allowed &= scores > -torch.inf
            elif isinstance(rule, Tensor):
                cells = rule[tuple(i * (n > 1) for i, n in zip(indices, rule.shape, strict=True))]
                is_added = cells.dtype in FLOATS
                allowed &= cells > torch.finfo(cells.dtype).min if is_added else cells
                scores = scores + cells.to(scores) if is_added else scores
            elif rule is not None:
                rule = (
                    Spans(rule.starts.to(rows.device), rule.stops.to(rows.device)) if isinstance(rule, Spans) else rule
                )
                allowed &= rule(*indices)
        for mask in self._masks:
            cells = mask.cells(self._seen, self._samples, self._heads, rows[:, 0])
            allowed &= self._allowed_by(cells)
            scores = scores + cells.to(scores) if mask.is_added else scores
        for kept in self._kept:
            allowed &= kept.cells(self._samples, self._heads, rows[:, 0], self._keys)
        own = self._own_rules(rows)
        return scores, allowed if own is None else allowed & own

    def _allowed_by(self, cells: Tensor) -> Tensor:
        """Return where a custom mask allows attention: numbers at the minimum of its dtype or q's dtype block."""
        if cells.dtype is torch.bool:
            return cells
        types = (cells.dtype, self._seen.call.q.dtype)
        return cells > max(torch.finfo(one).min for one in types)

    def _kept_of(self, edit: HeadEdit) -> KeptKeys:
        """Return the keys that a policy keeps under all other edits.

        Raises:
            EditRefused: the policy cannot be applied to this call.
        """
        seen, key = self._seen, (id(edit), tuple(map(id, self._edits)))
        if key not in seen.kept:
            if any(mask.is_added for mask in self._masks):
                raise EditRefused(KEEP_AND_ADDED)
            call, sinks = seen.call, None if self._sinks is None else seen.call.sinks
            q, k = call.q, call.k
            for name in self.number_types:
                q, k = round_to(q, name), round_to(k, name)
            rules = {"mask": self._mask, "bias": self._bias, "scale": self.scale, "softcap": self._softcap}
            assert edit.keep is not None
            rules["sinks"] = sinks
            seen.kept[key] = KeptKeys(seen, edit.keep, rules, self._own_cells, q, k, edit.firsts)
        found: KeptKeys = seen.kept[key]
        return found

    def _own_cells(self, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        """Return which cells of one head are allowed by custom masks and rules other than the call's masks."""
        rows = q_idx.reshape(-1)
        own = self._own_rules(rows[:, None])
        allowed = torch.ones(len(rows), len(self._keys), dtype=torch.bool, device=rows.device) if own is None else own
        for mask in self._masks:
            allowed = allowed & mask.cells(self._seen, [int(b)], [int(h)], rows)[0, 0]
        return allowed[torch.arange(len(rows), device=rows.device).reshape(q_idx.shape), kv_idx]

    def _own_rules(self, rows: Tensor) -> Tensor | None:
        """Return which cells are allowed by rules other than the call's masks, (rows, K); None if all are."""
        keys, seen = self._keys, self._seen
        places, key_places = rows + seen.queries.start, keys + seen.keys.start
        found = []
        if self._is_causal:
            found.append(keys <= rows)
        if self._causal == "lower right":
            found.append(keys <= rows + len(seen.keys) - len(seen.queries))
        elif self._causal:
            found.append(key_places <= places)
        if self._window is not None:
            found.append((places - key_places).abs() < self._window)
        if self._dropped is not None:
            found.append(~self._dropped.expand(len(rows), -1))
        found += [~one for one in self._blocks(rows, renormalize=True)]
        allowed = None
        for one in found:
            allowed = one if allowed is None else allowed & one
        return allowed

    def _blocks(self, rows: Tensor, *, renormalize: bool) -> list[Tensor]:
        """Return the blocked cells of each block, (rows, K)."""
        blocks = [one for edit in self._edits for one in edit.blocks if one.renormalize is renormalize]
        return [self._of_queries(one.queries, rows) & self._of_keys(one.keys) for one in blocks]

    def set_to_zero(self, rows: Tensor) -> Tensor | None:
        """Return which weights become 0 without renormalizing the others, (rows, K); None if there are none."""
        blocks = self._blocks(rows[:, None], renormalize=False)
        return torch.stack(blocks).any(0) if blocks else None
