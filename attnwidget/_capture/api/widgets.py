"""The parts of a capture's widget: stacks with their labels, samples without padding, and runs of the model."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..._segments.segments import Segments
from ..._utils.indexing import as_index
from ..._widget.stores.named_stacks import LabeledStack
from ..._widget.widget import AttentionWidget
from ...stack import AttentionStack
from ..carried.target_token import token_of, with_words
from ..interventions.comparing import TargetLike
from ..interventions.model_call import read_call
from ..interventions.runner import EffectRunner
from ..text.given_tokens import StackTokens
from ..text.labels import SavedWords, can_spell, ids_of
from ..text.stacks import NamedStack, inputs_of
from ..text.unpadded import TITLE, by_sample, sample_key


def labeled(
    stack: NamedStack, tokens: Mapping[str, StackTokens], name: str, effects: EffectRunner | None = None
) -> LabeledStack:
    """Return a stack with its tokens, an image's patches, its known segments, and its model, as a widget takes it."""
    own, parts = tokens[name], known_segments(stack)
    labels = {"tokens": own.tokens, "key_tokens": own.key_tokens, "segments": parts, **stack.grids()}
    return LabeledStack(with_words(stack.attention, stack.tokenizer), **labels, effects=effects, request=stack.request)


def words_of(stacks: Iterable[NamedStack], tokens: Sequence[Any]) -> SavedWords | None:
    """Return the words that a user has given for the ids of some texts; None if there are none."""
    words: dict[int, str] = {}
    for stack, given in zip(stacks, tokens, strict=True):
        ids = ids_of(stack.queries.ids)
        if ids is None or given is None:
            continue
        samples = given if len(given) and not isinstance(given[0], str) else [given] * len(ids)
        for own, texts in zip(ids, samples, strict=False):
            words |= {
                one: word for one, word in zip(own, texts, strict=False) if one is not None and isinstance(word, str)
            }
    return SavedWords(None, words) if words else None


def known_segments(stack: NamedStack) -> list[Segments] | None:
    """Return the sentences, or the prompt and the answer, of each sample as segments; None if they are not known."""
    if any(stack.keys.length != att.shape.K for att in stack.attention):
        return None
    try:
        return [stack.segments(None, batch) for batch in range(stack.attention[0].shape.B)]
    except (ValueError, TypeError, IndexError):
        return None


def widget_by_sample(
    stacks: dict[str, NamedStack],
    keys: dict[str, tuple[int, str]],
    tokens: Mapping[str, StackTokens],
    first: tuple[str, int | None],
    model: Any,
    show: dict[str, Any],
) -> AttentionWidget:
    """Return a widget whose picker has a stack for each sample, with padding removed.

    Args:
        stacks, keys, tokens: of the whole batches.
        first: the stack and the sample to show first; None: the sample that `batch` in `show` names.
        model: must be None: it cannot run with padding removed.
        show: the keywords of the widget.

    Raises:
        ValueError: a model was given; or a sample attends to its padding, or has no q and k.
        IndexError: there is no such sample.
    """
    if model is not None:
        raise ValueError("the model runs the whole batch, with its padding: leave out padding=False, or model=")
    name, batch = first
    chosen = as_index(
        show.pop("batch", 0) if batch is None else batch, stacks[name].queries.batches, "batch", "samples"
    )
    given = show.get("segments")
    if isinstance(given, list) and all(isinstance(one, Segments) for one in given):  # one for each sample, as of a chat
        del show["segments"]
    else:
        given = None

    def labels(one: str) -> tuple[Any, Any, Any]:
        own = tokens[one]
        parts = given if given is not None and one == name else known_segments(stacks[one])
        return own.tokens, own.key_tokens, parts

    show["forward"], show["stack"] = sample_key(keys[name], chosen, stacks[name])
    show.setdefault("title", TITLE)
    return AttentionWidget.from_attention(by_sample(keys, stacks, labels), **show)


def logit_token(target: TargetLike, stack: AttentionStack, tokenizer: Any, *, needed: bool) -> int | None:
    """Return the id of the token for the stage "logit".

    Args:
        target: as in `widget`.
        stack: the stack shown.
        tokenizer: turns texts into ids.
        needed: whether the target has no other use.

    Raises:
        TypeError, ValueError, IndexError: there is no such token.
    """
    known = [att.carries.readout for att in stack if att.carries is not None and att.carries.readout is not None]
    if target is None or callable(target) or not (known or needed):
        return None
    vocabulary = known[0].vocabulary if known else sys.maxsize
    return token_of(target, tokenizer, vocabulary)


def runners_of(
    stacks: dict[str, NamedStack],
    keys: dict[str, tuple[int, str]],
    forward: int,
    tokens: Mapping[str, StackTokens],
    given: tuple[Any, Any, TargetLike],
) -> dict[str, EffectRunner]:
    """Return the runner of the model for each stack; inputs given by the user belong to one forward pass.

    Raises:
        TypeError, ValueError: there is no model, or it is in training mode; inputs are not known, or given without it.
    """
    model, inputs, target = given
    if model is None:
        if inputs is not None or callable(target):
            what = "inputs=" if inputs is not None else "a function as target="
            raise ValueError(f"{what} needs a model: give model= as well")
        return {}
    found: dict[str, EffectRunner] = {}
    for number in {key[0] for key in keys.values()} if inputs is None else {forward}:
        own = {name: stacks[name] for name, key in keys.items() if key[0] == number}
        read = inputs_of(own) if inputs is None else inputs
        if inputs is None and not read:
            raise ValueError("the inputs of the model were not kept: give inputs=, as you called the model")
        tokenizer = next(iter(own.values())).tokenizer
        call = read_call(model, read, tokenizer if can_spell(tokenizer) else None)
        if not can_spell(call.tokenizer):
            call = replace(call, tokenizer=words_of(own.values(), [tokens[name].tokens for name in own]))
        found |= {name: EffectRunner(call, stack, target) for name, stack in own.items()}
    return found


def picker_keys(stacks: dict[str, NamedStack]) -> dict[str, tuple[int, str]]:
    """Return each stack's forward pass, as cap[i] counts them, and its name in that pass; "" if it is the only one."""
    numbers = list(dict.fromkeys(one.forward for one in stacks.values()))
    several = len(stacks) > len(numbers)
    return {name: (numbers.index(one.forward), one.label if several else "") for name, one in stacks.items()}
