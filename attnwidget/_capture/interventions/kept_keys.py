"""The keys that a cache policy keeps for each query of an edited call, as in `Attention.what_if`, streamed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from ..._engine.cache_policies import POLICIES, WindowAndFirst, policy_mask, read_policy
from ..._engine.what_if import KEEP
from ..._rules.row_spans import Spans, simplify
from ..._utils.validation import as_choice, told
from ...attention import Attention
from ...masks import Mask, as_mask
from ..intercept.output_edits import EditRefused
from .added_mask import cells_of
from .seen_call import SeenCall

BEGUN = (
    "{} cannot be edited by keep: it needs the first keys of the text, but these were read before the block: run the "
    "whole text inside it"
)
SHARE = (
    "keep's budget is a fraction of all keys, whose number is unknown while the text grows: give a number of keys, "
    "such as budget=8"
)


def read_keep(given: Any) -> dict[str, Any]:
    """Read a policy and check it before the model runs.

    Raises:
        TypeError, ValueError: there is no such policy.
    """
    if not isinstance(given, Mapping):
        raise TypeError(f"keep is {told(given)}: give {{'policy': 'window', 'budget': 64}}")
    unknown = [name for name in given if name not in KEEP]
    if unknown:
        raise ValueError(f"keep has {told(unknown[0])}: there are {', '.join(KEEP)}")
    as_choice(given.get("policy"), POLICIES, "policy")
    if given.get("budget") is None:
        raise ValueError("keep needs a budget: give the maximum number of keys of a query, or a fraction below 1")
    return dict(given)


class KeptKeys:
    """The keys that a policy keeps for the queries of a call.

    Args:
        seen: the call.
        given: the policy.
        rules: the rules that the policy applies under: keywords of `Attention` other than q and k.
        own: f(b, h, rows, keys) -> bool, additional rules.
        q, k: the call's tensors, rounded as edits require.
        firsts: where the text of each sample begins, by layer name; filled when the start of the text is read.

    Raises:
        EditRefused: the policy cannot be applied to this call.
    """

    def __init__(
        self,
        seen: SeenCall,
        given: Mapping[str, Any],
        rules: Mapping[str, Any],
        own: Callable[..., Tensor],
        q: Tensor,
        k: Tensor,
        firsts: dict[str, tuple[int, ...]],
    ) -> None:
        (B, _, Q, _), K = q.shape, k.shape[2]
        before = seen.queries.start - seen.keys.start if K > Q and not seen.cross else None
        mask = rules.get("mask")
        mask = simplify(mask, B, Q, K) if isinstance(mask, Spans) else mask
        if isinstance(given.get("budget"), float) and K != Q:
            raise EditRefused(f"{seen.name}: {SHARE}")
        try:
            att = Attention(q, k, **{**rules, "mask": mask}).as_part(None, None, before, seen.cross)
            extra = (*att.options.extra_masks, ("edit", as_mask(own)))
            att = att.replaced(replace(att.options, extra_masks=extra), att.source, att.v)
            self._mask: Mask = policy_mask(att, read_policy(att, given))
        except (TypeError, ValueError) as error:
            raise EditRefused(f"{seen.name} cannot be edited by keep: {error}") from None
        if isinstance(self._mask, WindowAndFirst):
            self._mask = _from_the_first(self._mask, seen, firsts)

    def cells(self, samples: Sequence[int], heads: Sequence[int], rows: Tensor, keys: Tensor) -> Tensor:
        """Return which keys some queries keep, (samples, heads, rows, keys) bool."""
        return cells_of(self._mask, samples, heads, rows, keys)


def _from_the_first(mask: WindowAndFirst, seen: SeenCall, firsts: dict[str, tuple[int, ...]]) -> WindowAndFirst:
    """Return a mask that keeps the text's first keys even after the window has passed them."""
    if not seen.queries.start:
        firsts[seen.name] = tuple(one + seen.keys.start for one in mask.firsts)
        return mask
    known = firsts.get(seen.name, ())
    if len(known) != seen.samples:
        raise EditRefused(BEGUN.format(seen.name))
    return replace(mask, firsts=tuple(one - seen.keys.start for one in known))
