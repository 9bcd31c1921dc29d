"""What the widget of a capture is made of: stacks with their labels, samples without padding, and runs of the model."""

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
    """Return a stack as a widget takes it: with its tokens, an image's patches, prompt and answer, and its model."""
    own, parts = tokens[name], prompt_and_answer(stack)
    labels = {"tokens": own.tokens, "key_tokens": own.key_tokens, "segments": parts, **stack.grids()}
    return LabeledStack(with_words(stack.attention, stack.tokenizer), **labels, effects=effects)


def words_of(stacks: Iterable[NamedStack], tokens: Sequence[Any]) -> SavedWords | None:
    """Return the words that a user has given for the ids of some texts; None where there are none."""
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


def prompt_and_answer(stack: NamedStack) -> list[Segments] | None:
    """Return the prompt and the answer of each sample as segments; None where they are not told apart."""
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
    """Return a widget in whose picker each sample is a stack of its own, without its padding.

    Args:
        stacks, keys, tokens: of the whole batches.
        first: the stack and the sample that are shown first; None: the one that `batch` in `show` says.
        model: that cannot be run without the padding.
        show: the keywords of the widget.

    Raises:
        ValueError: a model; a sample that attends to its padding, or of which no q and k were kept.
        IndexError: there is no such sample.
    """
    if model is not None:
        raise ValueError("a model is run with the whole batch, padding and all: leave out padding=False, or model=")
    name, batch = first
    chosen = as_index(
        show.pop("batch", 0) if batch is None else batch, stacks[name].queries.batches, "batch", "samples"
    )
    given = show.get("segments")
    if isinstance(given, list) and all(isinstance(one, Segments) for one in given):  # of each sample, as of a chat
        del show["segments"]
    else:
        given = None

    def labels(one: str) -> tuple[Any, Any, Any]:
        own = tokens[one]
        parts = given if given is not None and one == name else prompt_and_answer(stacks[one])
        return own.tokens, own.key_tokens, parts

    show["forward"], show["stack"] = sample_key(keys[name], chosen, stacks[name])
    show.setdefault("title", TITLE)
    return AttentionWidget.from_attention(by_sample(keys, stacks, labels), **show)


def logit_token(target: TargetLike, stack: AttentionStack, tokenizer: Any, *, needed: bool) -> int | None:
    """Return the id of the token that the stage "logit" is of.

    Args:
        target: as in `widget`.
        stack: that is shown.
        tokenizer: that has ids for texts.
        needed: whether the target is for nothing else.

    Raises:
        TypeError, ValueError, IndexError: no token.
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
    """Return what runs the model again for each stack: with inputs that were given, for those of one forward pass.

    Raises:
        TypeError, ValueError: no model, or one in training mode; inputs that are not known, or without a model.
    """
    model, inputs, target = given
    if model is None:
        if inputs is not None or callable(target):
            what = "inputs=" if inputs is not None else "a function as target="
            raise ValueError(f"{what} goes with a model: give model= as well")
        return {}
    found: dict[str, EffectRunner] = {}
    for number in {key[0] for key in keys.values()} if inputs is None else {forward}:
        own = {name: stacks[name] for name, key in keys.items() if key[0] == number}
        read = inputs_of(own) if inputs is None else inputs
        if inputs is None and not read:
            raise ValueError("what the model was called with is not kept: give inputs=, as it was called")
        tokenizer = next(iter(own.values())).tokenizer
        call = read_call(model, read, tokenizer if can_spell(tokenizer) else None)
        if not can_spell(call.tokenizer):
            call = replace(call, tokenizer=words_of(own.values(), [tokens[name].tokens for name in own]))
        found |= {name: EffectRunner(call, stack, target) for name, stack in own.items()}
    return found


def picker_keys(stacks: dict[str, NamedStack]) -> dict[str, tuple[int, str]]:
    """Return of each stack its forward pass, as cap[i] counts them, and its name there, "" of the only one."""
    numbers = list(dict.fromkeys(one.forward for one in stacks.values()))
    several = len(stacks) > len(numbers)
    return {name: (numbers.index(one.forward), one.label if several else "") for name, one in stacks.items()}
