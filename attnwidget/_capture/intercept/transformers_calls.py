"""Read the arguments of transformers' attention functions as q, k, v and rules.

The rules depend on the implementation: each takes the mask in its own form, and without a mask is causal or not.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..._rules.row_spans import Spans, as_spans
from ..call.cache_growth import grown_keys
from ..call.flex_attention import is_block_mask, read_block_mask
from ..call.observed_call import EAGER, ObservedCall, Unreadable

PAGED = "cache", "read_index"  # keywords of a paged cache, which mixes the keys of several texts
CACHES = "cache", "past_key_values"  # keywords of a model's cache: in transformers 5.24 and later, and before
EAGER_FUNCTION = "eager_attention_forward"  # in the module of a model's own code


def cache_of(keywords: Mapping[str, Any]) -> Any:
    """Return the cache among a model's keywords; None if there is none."""
    return next((keywords[name] for name in CACHES if keywords.get(name) is not None), None)


def read_call(
    implementation: str | None,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,
    *,
    scaling: Any = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    position_bias: Tensor | None = None,
    **others: Any,
) -> ObservedCall:
    """Read one call of an attention function of transformers; the arguments after the first two are the call's.

    Args:
        implementation: the function's name in transformers: "eager", "sdpa", …
        module: that calls.
        query: (B, H, Q, D).
        key: (B, G, K, D).
        value: (B, G, K, Dv).
        attention_mask: in the form of the implementation, or None.
        scaling: the scale of the scores; None: 1/√D.
        softcap: of the scores.
        is_causal: None: the module's own.
        sliding_window: of FlashAttention.
        position_bias: added to the scores, (B or 1, H or 1, Q, K).
        others: the rest; learned sinks are read from it, and a paged cache is refused.

    Raises:
        Unreadable: a call that does more than q, k, v and rules express.
    """
    if any(others.get(name) is not None for name in PAGED):
        raise Unreadable("it reads a paged cache (continuous batching): call model.generate instead")
    if query.ndim != 4 or key.ndim != 4:
        raise Unreadable(f"its q has shape {tuple(query.shape)}, k {tuple(key.shape)}: 4 axes are read")
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    call = ObservedCall(
        query,
        key,
        value,
        _number(scaling),
        _number(softcap),
        bias=position_bias,
        cross=_is_cross(module),
        cached=causal,
        dropout=bool(others.get("dropout")) and module.training,
        grown=grown_keys(key),
    )
    kind = implementation or "eager"
    call.sinks = _sinks(kind, module, query.shape[1], others)
    if "flash" in kind:
        return _flash(call, attention_mask, causal, sliding_window, others)
    if is_block_mask(attention_mask):
        call.mask = read_block_mask(attention_mask)
        return call
    call.mask = None if attention_mask is None else attention_mask[:, :, :, : key.shape[2]]
    if attention_mask is not None and attention_mask.shape[3] == key.shape[2]:
        call.mask = attention_mask  # the same object in all layers
    if kind not in ("eager", "flex_attention") and attention_mask is None and causal and query.shape[2] > 1:
        # SDPA is causal from the upper left, so keys beyond the last query are not seen.
        call.is_causal, Q = True, query.shape[2]
        call.k, call.v = (key, value) if key.shape[2] == Q else (key[:, :, :Q], value[:, :, :Q])
        call.bias = None if position_bias is None else position_bias[:, :, :, :Q]
    return call


def _sinks(kind: str, module: nn.Module, heads: int, others: dict[str, Any]) -> Tensor | None:
    """Return the learned sink logits (H,) that the implementation adds to the softmax, passed or the module's own."""
    if kind == "sdpa":
        return None  # torch's function takes none
    given = (others.get("s_aux"), others.get("sinks"), getattr(module, "sinks", None))
    found = next((one for one in given if one is not None), None)
    if found is None or (isinstance(found, Tensor) and found.shape == (heads,)):
        return found
    raise Unreadable(f"its learned sinks are not one number for each head: {EAGER}")


def _number(value: Any) -> float | None:
    if value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise Unreadable("its scale is not one number") from None


def _is_cross(module: nn.Module) -> bool | None:
    found = getattr(module, "is_cross_attention", None)
    return found if isinstance(found, bool) and found else None


def _flash(
    call: ObservedCall, attention_mask: Any, causal: bool, window: int | None, others: dict[str, Any]
) -> ObservedCall:
    """Add FlashAttention's rules: causal from the lower right, a window, padding (B, K) with 1 for real keys."""
    if others.get("cu_seq_lens_q") is not None:
        raise Unreadable("it reads packed sequences: give them one at a time, or as a padded batch")
    Q, K, device = call.q.shape[2], call.k.shape[2], call.q.device
    rows = torch.arange(Q, device=device, dtype=torch.int32)[None, None] + (K - Q)
    starts = torch.zeros_like(rows)
    stops = rows + 1 if causal else torch.full_like(rows, K)
    if window is not None and window < K:
        starts = (rows - window + 1).clamp(min=0)
        stops = stops if causal else (rows + window).clamp(max=K)
    if isinstance(attention_mask, Tensor):
        real = as_spans(attention_mask[:, -K:].bool()[:, None, None, :])
        if real is None:
            raise Unreadable("its padding mask has holes: give a batch that is padded at one end")
        starts, stops = torch.maximum(starts, real.starts), torch.minimum(stops, real.stops)
        if Q == K:  # FlashAttention leaves padding out of the queries too
            is_real = (rows >= real.starts) & (rows < real.stops)
            starts, stops = starts * is_real, stops * is_real
    call.mask = Spans(starts, torch.maximum(stops, starts))
    return call


# The functions that transformers looks up.

Wrap = Callable[[Any, Callable[..., Any]], Callable[..., Any]]


class InterfaceWrapper:
    """Wraps the attention functions that transformers looks up for each call, until it is removed.

    Before transformers 5.1 models did not look up eager attention, but used the function in their own module: with
    these versions it is wrapped in each loaded module.

    Args:
        wrap: takes the implementation's name and the function, and returns the function to call instead.
    """

    def __init__(self, wrap: Wrap) -> None:
        interface = getattr(sys.modules.get("transformers.modeling_utils"), "AttentionInterface", None)
        self._own: list[tuple[Any, str, Any]] = []  # module, name and original of each wrapped function
        for name in ("get_interface", "__getitem__"):
            found = getattr(interface, name, None)
            if found is not None:
                self._put(interface, name, _wrapped_look_up(found, wrap))
        if interface is not None and not hasattr(interface, "get_interface"):
            for module in list(sys.modules.values()):
                found = getattr(module, "__dict__", {}).get(EAGER_FUNCTION)
                if callable(found) and not hasattr(found, "reports_calls"):
                    self._put(module, EAGER_FUNCTION, wrap("eager", found))

    def _put(self, where: Any, name: str, wrapped: Callable[..., Any]) -> None:
        self._own.append((where, name, vars(where).get(name)))
        setattr(where, name, wrapped)

    def remove(self) -> None:
        """Put transformers' own look-up and functions back."""
        for where, name, own in self._own:
            if own is None:
                delattr(where, name)
            else:
                setattr(where, name, own)


def _wrapped_look_up(look_up: Callable[..., Any], wrap: Wrap) -> Callable[..., Any]:
    wrapped: dict[tuple[Any, int], tuple[Any, Any]] = {}  # for each function found, its replacement
    latest: dict[Any, tuple[Any, Any]] = {}  # the last of them by name: models look it up for each call

    @functools.wraps(look_up)
    def looked_up(self: Any, implementation: Any, *default: Any, **named: Any) -> Any:
        found = look_up(self, implementation, *default, **named)
        known = latest.get(implementation)
        if known is None or known[0] is not found:
            known = (found, found) if hasattr(found, "reports_calls") else wrapped.get((implementation, id(found)))
            if known is None:  # otherwise it belongs to a look-up within this one, or is known
                known = wrapped[implementation, id(found)] = found, wrap(implementation, found)
            latest[implementation] = known
        return known[1]

    return looked_up


# Searches of transformers.

DRAFT = "get_candidates"
Following = Callable[[nn.Module], contextlib.AbstractContextManager[Any]]


class SearchWrapper:
    """Wraps the searches of transformers' models, until it is removed.

    Args:
        follow_beams: returns a context with a list of `BeamSearch` for a model that searches with beams.
        follow_rejections: returns a context with a list of `RecordMatcher` for a model that rejects tokens.
        ignore_drafts: returns a context for a model that drafts tokens by some of its own layers.
    """

    def __init__(self, follow_beams: Following, follow_rejections: Following, ignore_drafts: Following) -> None:
        drafts = sys.modules.get("transformers.generation.candidate_generator")
        self._drafts: Any = getattr(drafts, "EarlyExitCandidateGenerator", None)
        self._own_drafts = None if self._drafts is None else vars(self._drafts).get(DRAFT)
        if callable(self._own_drafts):
            setattr(self._drafts, DRAFT, _wrapped_drafts(self._own_drafts, ignore_drafts))
        self._mixin = getattr(sys.modules.get("transformers.generation.utils"), "GenerationMixin", None)
        self._own: dict[str, Any] = {}
        wrappers = {"_beam_search": _wrapped_beam_search, "_assisted_decoding": _wrapped_assistance}
        for (name, wrapper), follow in zip(wrappers.items(), (follow_beams, follow_rejections), strict=True):
            found = vars(self._mixin).get(name) if self._mixin is not None else None
            if callable(found):
                self._own[name] = found
                setattr(self._mixin, name, wrapper(found, follow))

    def remove(self) -> None:
        """Put transformers' own functions back."""
        if callable(self._own_drafts):
            setattr(self._drafts, DRAFT, self._own_drafts)
        for name, own in self._own.items():
            setattr(self._mixin, name, own)


def length_of_cache(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> int | None:
    """Return the number of positions in the cache of a model's call; None if no cache reports it."""
    placed = (one for one in arguments if callable(getattr(one, "get_seq_length", None)))
    cache = next((one for one in (cache_of(keywords), *placed) if one is not None), None)
    try:
        return int(cache.get_seq_length())  # type: ignore[union-attr]
    except Exception:  # there is none, or one of an unknown kind
        return None


def _wrapped_drafts(draft: Callable[..., Any], ignore: Following) -> Callable[..., Any]:
    """Return a method that drafts tokens unseen: the model then reads the drafted tokens, and rejects some."""

    @functools.wraps(draft)
    def unseen(generator: Any, *arguments: Any, **keywords: Any) -> Any:
        with ignore(generator.assistant_model):
            return draft(generator, *arguments, **keywords)

    return unseen


def _wrapped_assistance(search: Callable[..., Any], follow: Following) -> Callable[..., Any]:
    @functools.wraps(search)
    def following(model: Any, input_ids: Tensor, *arguments: Any, **keywords: Any) -> Any:
        with follow(model) as matchers:
            result = search(model, input_ids, *arguments, **keywords)
            left = length_of_cache((), keywords)
            if left is None:  # the search was given no cache
                left = _read_by(result, input_ids, keywords)
            for one in matchers:
                one.reject_beyond(left)
            return result

    return following


def _read_by(result: Any, input_ids: Tensor, keywords: Mapping[str, Any]) -> int:
    """Return the number of positions that a search has read when it ends: all but the last token that it wrote."""
    written = getattr(result, "sequences", result).shape[1] - input_ids.shape[1]
    embedded = keywords.get("inputs_embeds")
    return int((input_ids if embedded is None else embedded).shape[1] + written - 1)


def _wrapped_beam_search(search: Callable[..., Any], follow: Following) -> Callable[..., Any]:
    @functools.wraps(search)
    def following(model: Any, input_ids: Any, *arguments: Any, **keywords: Any) -> Any:
        config, processors = keywords.get("generation_config"), keywords.get("logits_processor")
        if config is None or not isinstance(processors, list):
            return search(model, input_ids, *arguments, **keywords)
        with follow(model) as searches:
            asked = config.return_dict_in_generate
            keywords["generation_config"] = _with_beam_indices(config)
            keywords["logits_processor"] = copy.copy(processors)
            keywords["logits_processor"].insert(0, _TokenCounter(searches))
            result = search(model, input_ids, *arguments, **keywords)
            found = getattr(result, "beam_indices", None)
            for one in searches if isinstance(found, Tensor) else ():
                one.returned(found, len(input_ids))
        return result if asked else result.sequences

    return following


def _with_beam_indices(config: Any) -> Any:
    """Return settings with which a search returns its beams, and nothing else that was not requested."""
    told = copy.copy(config)
    if not config.return_dict_in_generate:
        told.output_scores = told.output_logits = told.output_attentions = told.output_hidden_states = False
        told.return_dict_in_generate = True
    return told


class _TokenCounter:
    """A logits processor that changes nothing: it is called once for each token."""

    def __init__(self, searches: Any) -> None:
        self._searches = searches

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        for one in self._searches:
            one.next_token()
        return scores
