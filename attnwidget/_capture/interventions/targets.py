"""The number that is compared: the log-probability of a token at a position, or a custom function of the output."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..._tokens import running
from ..._tokens.display import Style, spaced_text
from ..._tokens.tokenizers import ids_of_text, spell, spelling_of
from ..._utils.validation import told
from ..text.labels import SavedWords, can_spell
from .model_call import RepeatableCall

FUNCTION = "target=lambda output: …, a function that returns one number"
KEPT = ("logits_to_keep", "num_logits_to_keep")
TEXT = 60  # maximum characters of the words up to a position


@dataclass(frozen=True)
class ComparedTarget:
    """The number that is compared.

    Attributes:
        name: the token's text, or the function's name.
        token: its id, or the number of its class; None for a function.
        at: the position in the output; None for a function.
        function: takes an output and returns one number.
    """

    name: str
    token: int | None = None
    at: int | None = None
    function: Callable[[Any], Any] | None = None

    def number(self, output: Any) -> float:
        """Return the function's number for an output.

        Raises:
            TypeError: the function returns something else.
        """
        assert self.function is not None
        with torch.no_grad():
            found = self.function(output)
        try:
            return float(found.detach() if isinstance(found, Tensor) else found)
        except (TypeError, ValueError, RuntimeError):
            shape = f" {tuple(found.shape)}" if isinstance(found, Tensor) else ""
            raise TypeError(
                f"target returned {told(type(found).__name__)}{shape}: return one number, such as a cosine"
            ) from None


def find_logits(output: Any, call: RepeatableCall) -> Tensor:
    """Return the logits in a model's output, (B, n, V), or (B, 1, V) for classes.

    Raises:
        ValueError: there are no logits, or they cannot be distinguished from hidden states.
    """
    logits = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
    if isinstance(logits, Tensor) and logits.ndim in (2, 3):
        return logits[:, None] if logits.ndim == 2 else logits
    parts = [output] if isinstance(output, Tensor) else list(output) if isinstance(output, list | tuple) else []
    sizes = vocabulary_sizes(call.model)
    fits = [x for x in parts if isinstance(x, Tensor) and x.ndim == 3 and x.is_floating_point() and x.shape[2] in sizes]
    if len(fits) == 1:
        return fits[0]
    raise ValueError(
        f"the output of {type(call.model).__name__} has no logits of a next token: give the number to compare as "
        f"{FUNCTION}, or a model with a language-model head, such as AutoModelForCausalLM"
    )


def refuse_positions_first(call: RepeatableCall, sizes: Collection[tuple[int, int]]) -> None:
    """Raise ValueError if the ids may have the axes (positions, samples).

    Args:
        call: the call of the model.
        sizes: the numbers of samples and queries of self-attention calls.
    """
    if call.ids is None or call.ids.ndim != 2 or not sizes:
        return
    samples, queries = call.ids.shape
    layers = (x for x in call.model.modules() if isinstance(x, nn.MultiheadAttention))
    is_either = 1 < samples == queries and any(not layer.batch_first for layer in layers)
    if is_either or ((samples, queries) not in sizes and (queries, samples) in sizes):
        raise ValueError(
            f"the ids have the shape {samples} × {queries}, and some layers put positions before samples, so the axes "
            f"of the output are ambiguous: give the number to compare as {FUNCTION}"
        )


def vocabulary_sizes(model: nn.Module) -> set[int]:
    """Return possible vocabulary sizes: the config's, or row counts of embeddings that are not an embedding's width."""
    config = getattr(model, "config", None)
    for one in (config, getattr(config, "text_config", None)):
        if isinstance(size := getattr(one, "vocab_size", None), int):
            return {size}
    found = [x for x in model.modules() if isinstance(x, nn.Embedding)]
    counts, widths = {x.num_embeddings for x in found}, {x.embedding_dim for x in found}
    return (counts - widths) | {max(counts, default=0)}


def is_masked_model(model: nn.Module) -> bool:
    """Return whether the output at a position predicts the token there, not the next one."""
    return "MaskedLM" in type(model).__name__


def read_at(at: Any, call: RepeatableCall, batch: int, length: int) -> int:
    """Return the position in the output.

    Args:
        at: from 0; negative ones count from the end of the sample's text, before its padding. In a masked model, −1 is
            the last masked token.
        call: has the mask that marks padding.
        batch: the sample.
        length: the number of positions of the output.

    Raises:
        TypeError, IndexError: not a position, or one that does not exist.
        ValueError: −1 in a masked model without a mask; the output has only some positions.
    """
    kept = next((name for name in KEPT if isinstance(given := call.kwargs.get(name), Tensor) or given), None)
    if kept is not None:
        raise ValueError(
            f"inputs have {kept}, so the output has other positions than the text: leave it out, and choose the "
            "position by at="
        )
    try:
        if isinstance(at, bool):
            raise TypeError
        place = operator.index(at)
    except TypeError:
        raise TypeError(f"at is {told(at)}: give a position, such as −1, the last of the text") from None
    if length == 1:  # classes, or one token
        places = [0]
    else:
        real = call.real(batch)
        fits = real is not None and len(real) == length
        places = real.nonzero().flatten().tolist() if fits and real is not None else list(range(length))
    if place == -1 and is_masked_model(call.model):
        return _last_mask(call, batch)
    if place < 0 and -len(places) <= place:
        return int(places[place])
    if not 0 <= place < length:
        raise IndexError(f"at is {place}, which does not exist: the output has the positions 0 to {length - 1}")
    return place


def _last_mask(call: RepeatableCall, batch: int) -> int:
    ids, mask = call.ids, getattr(call.tokenizer, "mask_token_id", None)
    found = [] if ids is None or mask is None else (ids[batch] == mask).nonzero().flatten().tolist()
    if not found:
        why = "there is no tokenizer to identify it" if mask is None else "no token of the text is the mask"
        raise ValueError(
            f"{type(call.model).__name__} predicts the token at a mask, and {why}: give the "
            "position as at=" + (", or tokenizer=" if mask is None else "")
        )
    return int(found[-1])


def read_target(
    target: Any, call: RepeatableCall, row: Tensor, at: int, *, first_piece: bool = False, name: str = "target"
) -> ComparedTarget:
    """Return the target.

    Args:
        target: a token's text, its id, or None for the most likely token of the row.
        call: has the tokenizer.
        row: (V,) logits at the position.
        at: the position.
        first_piece: whether a text of several tokens means its first token.
        name: the name used in errors.

    Raises:
        TypeError, ValueError, IndexError: the target is not a token.
    """
    size = len(row)
    if target is None:
        token = int(row.argmax())
    elif isinstance(target, str):
        token = _token_of(target, call, size, first_piece, name)
    else:
        try:
            if isinstance(target, bool):
                raise TypeError
            token = operator.index(target)
        except TypeError:
            raise TypeError(
                f"{name} is {told(target)}: give a token's text, its id, None for the most likely one, or a function "
                "of the output that returns one number"
            ) from None
        if not 0 <= token < size:
            raise IndexError(f"{name} is {token}, which is not a token: there are 0 to {size - 1}")
    return ComparedTarget(texts_of([token], call, size)[0], token, at)


def _token_of(text: str, call: RepeatableCall, size: int, first_piece: bool, name: str) -> int:
    labels = _class_names(call.model, size)
    if labels is not None:
        found = [number for number, label in labels.items() if label == text]
        if not found:
            raise ValueError(f"{name} is {text!r}, which is not a class: there are {told(', '.join(labels.values()))}")
        return found[0]
    vocabularies = vocabulary_sizes(call.model)
    if any(vocabularies) and size < min(vocabularies):
        raise ValueError(f"{name} is a text, but the output has {size:,} classes, not a vocabulary: give a number")
    if not can_spell(call.tokenizer) or isinstance(call.tokenizer, SavedWords):
        raise ValueError(f"{name} is a text, {text!r}, but there is no tokenizer: give tokenizer=, or the token's id")
    pieces = ids_of_text(text, call.tokenizer)
    if not pieces:
        raise ValueError(f"{name} is {text!r}, but the tokenizer has no token for it: give a token's text or id")
    if len(pieces) > 1 and not first_piece:
        words = [f"{word!r} ({one})" for word, one in zip(texts_of(pieces, call, size), pieces, strict=True)]
        raise ValueError(
            f"{name} is {text!r}, which is {len(pieces)} tokens, {', '.join(words)}: give one of them, or "
            "first_piece=True for the first"
        )
    if not 0 <= pieces[0] < size:
        raise ValueError(f"{name} is {text!r}, token {pieces[0]} of the tokenizer, but the output has {size:,} tokens")
    return pieces[0]


def texts_of(tokens: Sequence[int], call: RepeatableCall, size: int) -> list[str]:
    """Return the text of each token, including a leading space; its number if it has no text."""
    labels = _class_names(call.model, size)
    if labels is not None:
        return [labels.get(token, str(token)) for token in tokens]
    if not can_spell(call.tokenizer):
        return [str(token) for token in tokens]
    spelling = spelling_of(call.tokenizer)
    style: Style = "words" if spelling in ("text", None) else spelling
    if isinstance(call.tokenizer, SavedWords):
        style = "bytes" if call.tokenizer.spelling == "bytes" else "text"
    return [_text_of(token, call.tokenizer, style) for token in tokens]


def _text_of(token: int, tokenizer: Any, style: Style) -> str:
    try:
        return spaced_text(spell([token], tokenizer, "tokens")[0], style)
    except (TypeError, ValueError):  # a row without a token, as in a padded vocabulary
        return str(token)


def _class_names(model: nn.Module, size: int) -> dict[int, str] | None:
    """Return the names of classes by number; None if the output is a vocabulary."""
    config = getattr(model, "config", None)
    names = getattr(config, "id2label", None)
    classifies = "Classification" in type(model).__name__
    return {int(k): str(v) for k, v in names.items()} if classifies and isinstance(names, dict) and names else None


def text_before(call: RepeatableCall, batch: int, at: int) -> str:
    """Return the last words up to and including a position; "" if unknown."""
    ids = call.ids
    if ids is None or not can_spell(call.tokenizer) or at >= ids.shape[1]:
        return ""
    try:
        spelled = spell(ids[batch, max(0, at - 40) : at + 1].tolist(), call.tokenizer, "tokens")
    except (TypeError, ValueError):
        return ""
    pieces = running.pieces_of(spelled, spelling_of(call.tokenizer))
    words = "".join(f"{' ' * one.gap}{one.text}" for one in pieces).strip()
    return words if len(words) <= TEXT else "…" + words[1 - TEXT :]
