"""The public side of a capture: `capture`, `Capture` and `Forward`, which read what a `Recorder` has recorded."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor

from .._analysis.head_kinds import KindsLike
from .._analysis.output_path import OutputPath
from .._segments.chat import is_chat
from .._segments.segments import Segments
from .._utils.indexing import as_index
from .._utils.interrupts import surely
from .._widget.keywords import CaptureKeywords, Tokens, list_keywords
from .._widget.named_stacks import LabeledStack
from .._widget.widget import AttentionWidget
from ..attention import Attention
from ..stack import AttentionStack
from . import io
from .carried.paths import path_of
from .carried.targets import token_of, with_words
from .given_tokens import StackTokens, TokensOfStacks
from .interventions.comparing import TargetLike
from .interventions.model_call import read_call
from .interventions.runner import EffectRunner
from .io import LoadedRecord, tensors_of
from .joined_files import load_files
from .labels import Ids, Labels, SavedWords, can_spell, ids_of
from .options import Keep, read_options, read_tokenizer
from .own_positions import TITLE, by_sample, has_padding, sample_key, sample_named
from .provenance import CrossLike
from .recorder import Recorder
from .records import Record
from .reducing import reduce_records
from .stacks import NamedStack, find_stack, inputs_of, named_stacks
from .towers import Towers

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Capture", "Forward", "capture"]

NumbersLike = int | slice | range | Sequence[int]
HeadsLike = NumbersLike | Mapping[int | str | re.Pattern[str], NumbersLike]
NO_READOUT = "no unembedding is known, so no token can be chosen: cap.output_path says why"
NO_LOGITS_KEPT = (
    "there are no logits to go back from: capture(model, gradients=True), run a model that gives logits with gradients "
    "on, and call this once"
)
NOTHING_RECORDED = "nothing was recorded: enter the capture by `with`, and run the model inside the block"
LayersLike = int | str | slice | re.Pattern[str] | Sequence[int | str | slice | re.Pattern[str]]
RecordsByName = Mapping[str, Record | LoadedRecord]  # of one forward pass, by the name of the module


def capture(
    model: Any = None,
    *,
    tokenizer: Any = None,
    layers: LayersLike | None = None,
    queries: NumbersLike | None = None,
    heads: HeadsLike | None = None,
    cross: CrossLike | None = None,
    keep: Keep = "tensors",
    values: bool = True,
    gradients: bool = False,
    clone: bool = True,
    device: Any = None,
    dtype: torch.dtype | None = None,
    last: int | None = None,
    every: int | None = None,
    limit: int | str | None = None,
    strict: bool = True,
) -> Capture:
    """Record the attention of a model in a `with` block: q, k, v, masks and scales of every call, never the weights.

    Args:
        model: an `nn.Module`, or an object that has one as `.model`, such as a pipeline; only its calls are recorded.
            None: all calls of torch's attention functions in this thread; what q and k are made of is not seen then, so
            that lengths decide what is cross-attention, of which a warning tells, and there is no text.
        tokenizer: that has words for the ids that the model reads, as for `AttentionWidget`; they label `widget()`. Its
            name and its words for these ids are written into a file; it is never loaded. None: that of the object, as
            a pipeline has one; where there is none, ids are kept all the same, and named by `cap.tokenizer = …` or
            `cap.widget(tokenizer=…)`.
        layers: which to record: an int, counted as `cap.attention` and `cap.cross` count them, from the end if it is
            negative; a slice; a module's name or any dotted part of it ("decoder", "h.5"); a glob of these
            ("encoder.*"); a compiled regular expression; or a list of such. None: all.
        queries: whose rows to keep, with all their keys: an int, a slice, a range or a list, counted over all that
            continues, so that slice(-512, None) of a generated text is its last 512 tokens; until the end those are
            kept that may be among them. `att.part.queries` has their positions. None: all.
        heads: which to keep, of all layers or by layer, as in {0: [5, 7], "h.3": slice(4)}, where layers are named as
            for `layers`, by numbers from 0, and others keep all; of grouped heads only the key heads that they use.
            They are counted from 0 in what is kept, in `att.block(head=0)` and in the widget's `head`;
            `att.part.heads` has their numbers in the model, which the widget names beside: "head 0 (5 in the model)".
            None: all.
        cross: which modules are cross-attention, where what is found is not what you mean: True or False for all; a
            name, a dotted part or a glob, or several, of modules that are; or such names with True or False. None:
            decided by whether q and k come from the same tensor.
        keep: "tensors", or "overview": each call is reduced at once to an exact picture of at most 128 × 128 bins of
            each head, log-normalizers and metrics, and q, k and v are dropped. What they would be needed for is then
            refused: rows, single cells of a long text, stages, what-if; and the later calls of `generate`.
        values: whether to keep v, without which there are no outputs and contributions.
        gradients: whether to keep ∂L/∂O, the gradient of what each head gave, as `loss.backward()` or `cap.backward()`
            comes to it: it takes as much memory as q, and gives the stage "saliency".
        clone: copy the tensors. False keeps the model's own, where that takes no more memory, and shows changes in
            place.
        device: where to keep the tensors, e.g. "cpu"; None: where they are.
        dtype: the type to keep them in, e.g. torch.float16; None: as they are.
        last: how many forward passes to keep, the last ones; what continues one another, as `generate` does, is one.
            None: all.
        every: keep each n-th forward pass, from the first; the others are recorded while they run, then dropped.
        limit: bytes to keep at most, or such as "2GB"; None: half of the memory that is free. A warning tells when half
            of them are kept. Calls beyond are not kept but named in `cap.skipped`, and the model goes on.
        strict: whether to raise at the end of the block where nothing was seen, or a layer is not there. False: a
            warning tells it, and `cap.skipped`.

    Returns:
        `Capture`, to be entered; when the block ends it has `attention`, `cross`, `calls`, `widget()`, `save(path)`.
        It can be called in place of the model, and decorates a function: see `Capture`.

    Raises:
        TypeError, ValueError: an argument that is none of these; at the end of the block: nothing was seen, or there is
            no such layer; the message says what to try.

    The model keeps its kernels (SDPA, FlashAttention, FlexAttention, eager) and computes the same, bit by bit, with two
    exceptions: torch's own `nn.MultiheadAttention` and `nn.TransformerEncoder` take no short cut for inference inside
    the block, and compiled models are run as they are written; both may change last bits.

    Every call is verified by its output, of which three rows, or the one of a single token, are computed again from q,
    k, v, mask and scale: of the first and the last sample, in all heads, or, of a very long text, in some of them.
    What contradicts its output is not shown, but named in `skipped` with the reason, and so is attention that ran and
    could not be followed.

    In other threads than that which entered the block, calls of transformers' attention interface are recorded, each
    forward pass by itself; others are named in `skipped`. Samples of beam search are the sequences that it returns; of
    searches that are not followed, such as groups of beams, contrastive search (both `custom_generate` in transformers
    5) or one of your own, a warning tells.

    >>> import torch
    >>> model = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    >>> x = torch.randn(1, 5, 8)
    >>> with capture(model) as cap:
    ...     output, weights = model(x, x, x, average_attn_weights=False)
    >>> bool(torch.allclose(cap.attention[0].block(head=1), weights[0, 1]))
    True
    """
    options = read_options(
        tokenizer=tokenizer,
        layers=layers,
        queries=queries,
        heads=heads,
        cross=cross,
        keep=keep,
        values=values,
        gradients=gradients,
        clone=clone,
        device=device,
        dtype=dtype,
        last=last,
        every=every,
        limit=limit,
        strict=strict,
    )
    return Capture(Recorder(model, options), model=model)


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


class Forward:
    """The attention of one forward pass, or of several that continue one another, as while a text is generated.

    `forward["decoder"]` is the self-attention of a tower as an `AttentionStack`, where a model has several: an encoder
    and a decoder, a vision and a language model. `towers` names them, `stacks()` has all, with their labels.

    >>> model = torch.nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    >>> forward = capture(model).run(torch.randn(1, 3, 8), torch.randn(1, 2, 8))[0]
    >>> forward.towers, forward["encoder"][0].shape.Q, forward["decoder"][0].shape.Q
    (('encoder', 'decoder'), 3, 2)
    """

    def __init__(self, records: RecordsByName, source: Capture | None = None, number: int = 0) -> None:
        self._records, self._source, self._number = records, source, number

    @property
    def calls(self) -> dict[str, Attention]:
        """Return all attention calls, by the name of their module."""
        return {name: record.attention for name, record in self._records.items()}

    @property
    def attention(self) -> AttentionStack:
        """Return the self-attention, in the order of layers.

        Where some heads or queries are kept, each layer counts its own from 0, and `part` of a layer has their numbers
        in the model: of heads=[5, 7] `cap.attention[0].block(head=1)` is of head 7.

        Raises:
            ValueError: there is none.
        """
        return self._stack(cross=False)

    @property
    def cross(self) -> AttentionStack:
        """Return the cross-attention, in the order of layers.

        Raises:
            ValueError: there is none.
        """
        return self._stack(cross=True)

    @property
    def all(self) -> AttentionStack:
        """Return self- and cross-attention, in the order in which they ran; `all.names` are those of their modules.

        Raises:
            ValueError: nothing was recorded.
        """
        if not self._records:
            raise ValueError(NOTHING_RECORDED)
        return AttentionStack([record.attention for record in self._records.values()], self._records)

    @property
    def nbytes(self) -> int:
        """Return the bytes of all tensors that are kept, each counted once."""
        kept = {id(x): x for record in self._records.values() for x in tensors_of(record.attention).values()}
        return sum(x.numel() * x.element_size() for x in kept.values())

    # Its text.

    @property
    def tokenizer(self) -> Any:
        """The tokenizer that has words for the ids, or its name; None where none is known."""
        return None if self._source is None else self._source.tokenizer

    @property
    def output_path(self) -> OutputPath:
        """Where the outputs of the heads go: output projections, final norm and unembedding, as they were found.

        The stages "value_norm" and "logit" are made of these; what was not found is said with the reason. By
        `att.carrying` they are given by hand.

        >>> model = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        >>> x = torch.randn(1, 5, 8)
        >>> capture(model).run(x, x, x).output_path.projections
        {'MultiheadAttention': 'MultiheadAttention.out_proj'}
        """
        return path_of(self.calls)

    @property
    def towers(self) -> tuple[str, ...]:
        """The names of the towers that ran, in their order: ("encoder", "decoder"), ("vision_model", "text_model")."""
        return tuple(dict.fromkeys(one.tower for one in self.stacks().values()))

    def stacks(self) -> dict[str, NamedStack]:
        """Return each tower's self-attention and cross-attention by name, with what stands at its positions.

        >>> model = torch.nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
        >>> [*capture(model).run(torch.randn(1, 3, 8), torch.randn(1, 2, 8)).stacks()]
        ['encoder', 'decoder', 'decoder, cross-attention']
        """
        return named_stacks(self._records, self._towers(), self.tokenizer, self._number)

    def _towers(self) -> Towers:
        return Towers(self._records) if self._source is None else self._source._towers()  # noqa: SLF001

    @property
    def tokens(self) -> Labels | Ids | None:
        """The text that the model read, a list for each sample: of the decoder where there is an encoder too.

        The tokenizer's words, and "[PAD]" where there is padding, which keeps its places: all samples of a batch are as
        long as the longest, and padding is blocked as the model blocks it; `widget(padding=False)` shows each without
        it. Ids where there is no tokenizer, None in the place of one that is not known. None where nothing is known.
        They are the queries of the self-attention: after `generate` all tokens but the last, which was never read.
        """
        main = self._main_stack()
        return None if main is None else main.queries.tokens(self.tokenizer)

    @property
    def key_tokens(self) -> Labels | Ids | None:
        """As `tokens`, of the keys: more where a cache held what was read before the block."""
        main = self._main_stack()
        return None if main is None else main.keys.tokens(self.tokenizer)

    @property
    def cross_tokens(self) -> Labels | Ids | None:
        """As `tokens`, of the keys of the cross-attention, such as what the encoder read; None where there is none."""
        found = next((one for one in self.stacks().values() if one.cross), None)
        return None if found is None else found.keys.tokens(self.tokenizer)

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        """What the model was called with, as far as it is kept: ids and masks, by the names of transformers.

        After `generate` they hold all that was read. Other arguments, such as images, are not kept.
        """
        return inputs_of(self.stacks())

    def _main_stack(self) -> NamedStack | None:
        """Return the self-attention whose queries are the text: of the tower with cross-attention, else the last."""
        stacks = list(self.stacks().values())
        attending = {one.tower for one in stacks if one.cross}
        known = [one for one in stacks if not one.cross and one.queries.tokens(None) is not None]
        known.sort(key=lambda one: (one.tower in attending, one.queries.ids is not None))
        return known[-1] if known else None

    def __getitem__(self, name: str) -> AttentionStack:
        """Return the self-attention of a tower, or any of `stacks()`, by name.

        Raises:
            KeyError: there is no such tower.
        """
        return find_stack(self.stacks(), name, self._towers()).attention

    def widget(
        self,
        tokens: Tokens | None = None,
        *,
        cross: bool = False,
        model: Any = None,
        inputs: Any = None,
        target: TargetLike = None,
        padding: bool = True,
        **show: Unpack[CaptureKeywords],
    ) -> AttentionWidget:
        """Return a widget with the self-attention of a tower, or its cross-attention; it is labeled by itself.

        Args:
            tokens: in the place of what the model read, as in `AttentionWidget`: for the tower that is shown. Those of
                `generate`, whose last was never read, are cut; tokens without padding are put where there is none.
                Where some queries are kept, tokens of all or of these.
            cross: the cross-attention, whose queries are `tokens` and whose keys `key_tokens`.
            model: that was captured, in evaluation mode, to be run again with edits: what is lost without a head, a
                segment, a key or an edge (`segments_show="effect"`). The kernel answers between two runs.
            inputs: what it is called with, as `attnwidget.effect` takes it; None: what was read, `cap.inputs`.
            target: a token, by its id or its text, as in `attnwidget.effect`: whose log-probability is lost, and of
                whose logit the stage "logit" is; of the former also a function of the output. None: the most likely
                token after the last.
            show: the other keywords of `AttentionWidget.from_attention`, of which `segments` are, unless given, prompt
                and answer of a text that was generated token by token; `stack` is a tower or a name of
                `stacks()`, and `forward` a number as in cap[i]: which are shown first. The widget's picker has all.

        Raises:
            ValueError: nothing of this kind was recorded, or tokens that contradict what the model read; a model in
                training mode, or whose inputs are not known.
            KeyError: there is no such stack.

        A warning tells where one list is given for samples that have read different texts.

        >>> model = torch.nn.Transformer(8, 2, 1, 2, 16, batch_first=True)
        >>> with capture(model) as cap:
        ...     _ = model(torch.randn(1, 3, 8), torch.randn(1, 2, 8))
        >>> cap.widget(cross=True, tokens=["la", "banque"], key_tokens=["the", "bank", "."])
        AttentionWidget(stack 'decoder, cross-attention', layer 0 of 2, head 0 of 2, 2 queries × 3 keys)
        >>> cap.widget(stack="decoder", tokens=["la", "banque"])
        AttentionWidget(stack 'decoder', layer 0 of 2, head 0 of 2, 2 queries × 2 keys)
        """
        stacks, tokenizer = self.stacks(), show.get("tokenizer", self.tokenizer)
        stack, forward = show.pop("stack", None), show.pop("forward", None)
        alone = not padding and has_padding(stacks.values())
        stack, batch = sample_named(stack) if alone else (stack, None)
        shown = self._shown(stacks, cross, stack, forward)
        if tokenizer is not self.tokenizer:
            stacks = {name: replace(one, tokenizer=tokenizer) for name, one in stacks.items()}
        placed = TokensOfStacks(stacks, shown, tokens, show.pop("key_tokens", None), tokenizer)
        if stack is None and forward is None:  # the tokens may be those of another tower than the first
            shown = placed.given_for
        show["tokenizer"] = tokenizer if can_spell(tokenizer) and not isinstance(tokenizer, SavedWords) else None
        keys = self._keys(stacks)
        runners = self._runners(stacks, keys, keys[shown][0], placed, (model, inputs, target))
        sources: dict[Any, Any] = {
            (key if key[1] else key[0]): functools.partial(labeled, stacks[name], placed, name, runners.get(name))
            for name, key in keys.items()
        }
        if "grid" in show:  # one of the user's own, of which nothing else is known
            show = {"grid_start": None, "grid_side": "auto", **show}
        if is_chat(show.get("segments")):  # found by the capture's own ids
            many = stacks[shown].attention[0].shape.B
            show["segments"] = [stacks[shown].segments(show["segments"], batch) for batch in range(many)]
        show["forward"], show["stack"] = keys[shown]
        if alone:
            return self._widget_by_sample(stacks, keys, placed, (shown, batch), model, {**show})
        token = self._logit_of(target, stacks[shown].attention, tokenizer, needed=model is None)
        return AttentionWidget.from_attention(sources, target=token, **show)

    def _widget_by_sample(
        self,
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

    def _logit_of(self, target: TargetLike, stack: AttentionStack, tokenizer: Any, *, needed: bool) -> int | None:
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

    def _runners(
        self,
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

    def _keys(self, stacks: dict[str, NamedStack]) -> dict[str, tuple[int, str]]:
        """Return of each stack its forward pass, as cap[i] counts them, and its name there, "" of the only one."""
        numbers = list(dict.fromkeys(one.forward for one in stacks.values()))
        several = len(stacks) > len(numbers)
        return {name: (numbers.index(one.forward), one.label if several else "") for name, one in stacks.items()}

    def _shown(self, stacks: dict[str, NamedStack], cross: bool, stack: str | None, forward: Any = None) -> str:
        """Return the name of the stack that a widget shows first."""
        if stack is None:
            self._stack(cross=cross)  # raises where there is none
        if forward is not None:
            keys = self._keys(stacks)
            which = as_index(forward, max(keys.values(), default=(-1, ""))[0] + 1, "forward", "forwards")
            stacks = {name: one for name, one in stacks.items() if keys[name][0] == which}
        if stack is not None:
            return find_stack(stacks, stack, self._towers(), cross=cross).name
        found = (name for name, one in stacks.items() if one.cross == cross)
        return next(found, next(iter(stacks)))

    def segments(self, source: Any = None, *, batch: int = 0, cross: bool = False, unit: str = "tokens") -> Segments:
        """Return the named parts of the text that the model read, in tokens: by its own ids and tokenizer.

        Args:
            source: as in `attnwidget.segments`; None: the prompt and the answer of a text that was generated token by
                token, whose last token was never read.
            batch: which sample.
            cross: of what the cross-attention reads, such as the text of an encoder.
            unit: of spans: "tokens", or "characters", which takes `attnwidget.segments` with the text.

        Returns:
            `Segments` of all positions, where only some queries were kept too.

        Raises:
            IndexError: there is no such sample.
            TypeError, ValueError: as `attnwidget.segments`; or no source, and prompt and answer are not told apart.

        >>> model, x = torch.nn.MultiheadAttention(8, 2, batch_first=True), torch.zeros(1, 5, 8)
        >>> cap = capture(model).run(x, x, x)
        >>> found = cap.segments({"question": (1, 3), "answer": (3, 5)})
        >>> cap.attention.by_segment("answer", found).shape
        torch.Size([1, 2, 1, 3])
        """
        stacks = self.stacks()
        main = None if cross else self._main_stack()
        return (main or stacks[self._shown(stacks, cross, None)]).segments(source, batch, unit)

    def metrics(
        self,
        batch: int | None = None,
        *,
        tokens: Any = None,
        rows: int | None = None,
        kinds: KindsLike = (),
        cross: bool = False,
    ) -> list[dict[str, Any]]:
        """Measure what every head of every layer attends to: a list of records, as `pandas.DataFrame` takes it.

        Args:
            batch, rows, kinds: as in `AttentionStack.metrics`.
            tokens: in the place of what the model read, of the tower that they are of: see `widget`.
            cross: of the cross-attention.

        Raises:
            ValueError: nothing of this kind was recorded, or tokens that contradict what the model read.
            IndexError: there is no such sample.

        >>> model, x = torch.nn.MultiheadAttention(8, 2, batch_first=True), torch.zeros(1, 5, 8)
        >>> cap = capture(model).run(x, x, x)
        >>> [(one["head"], round(one["entropy"], 3)) for one in cap.metrics()]
        [(0, 2.322), (1, 2.322)]
        """
        stacks, number = self.stacks(), {name: i for i, name in enumerate(self._stack(cross=cross).names)}
        shown = self._shown(stacks, cross, None)
        placed = {} if tokens is None else TokensOfStacks(stacks, shown, tokens, None, self.tokenizer)
        prefixed = len(number) > 0 and next(iter(number)) not in stacks[shown].records
        found = []
        for name, one in stacks.items():
            if one.cross == cross:
                own = placed[name].of_keys if name in placed else one.keys.as_words(self.tokenizer)
                prefix = f"forward {one.forward}: " if prefixed else ""
                for record in one.attention.metrics(batch, tokens=own, rows=rows, kinds=kinds):
                    layer = f"{prefix}{record['name']}"
                    found.append({**record, "layer": number[layer], "name": layer})
        return sorted(found, key=lambda record: record["layer"])

    def weights(
        self, layer: int | str, batch: int | None = None, head: int | None = None, *, cross: bool = False
    ) -> Tensor:
        """Compute all weights of a layer as one tensor, where that is not too large.

        Args:
            layer: by number or name, as `attention` has it.
            batch: only this sample; None for all.
            head: only this head; None for all.
            cross: of the cross-attention.

        Returns:
            (B, H, Q, K), without the axis of what was chosen.

        Raises:
            IndexError, KeyError: a layer, batch or head that is not there.
            ValueError: nothing of this kind was recorded; or more than 2²⁸ weights, 1 GiB: ask for a block.

        >>> model, x = torch.nn.MultiheadAttention(8, 2, batch_first=True), torch.zeros(1, 5, 8)
        >>> capture(model).run(x, x, x).weights(0, head=1).shape
        torch.Size([1, 5, 5])
        """
        return (self.cross if cross else self.attention).weights(layer, batch, head)

    def pair(self, query: int, key: int, batch: int = 0, *, cross: bool = False) -> Tensor:
        """Compute the weight of one query on one key in all heads of all layers, exact.

        Args:
            query, key: the pair; negative counts from the end of each layer.
            batch: which sample.
            cross: of the cross-attention.

        Returns:
            (L, H); NaN where a layer has fewer heads than another.

        Raises:
            ValueError: nothing of this kind was recorded.
            IndexError: a batch, query or key that a layer does not have.

        >>> model, x = torch.nn.MultiheadAttention(8, 2, batch_first=True), torch.zeros(1, 5, 8)
        >>> capture(model).run(x, x, x).pair(query=-1, key=0)
        tensor([[0.2000, 0.2000]])
        """
        return (self.cross if cross else self.attention).pair(query, key, batch)

    def _stack(self, *, cross: bool) -> AttentionStack:
        records = self._of_kind(cross)
        if not self._records:
            raise ValueError(NOTHING_RECORDED)
        if not records:
            kinds = ("cross", "attention has the self") if cross else ("self", "cross has the cross")
            raise ValueError(f"no {kinds[0]}-attention was recorded: cap.{kinds[1]}-attention")
        return AttentionStack([record.attention for record in records.values()], records)

    def _of_kind(self, cross: bool) -> RecordsByName:
        return {name: record for name, record in self._records.items() if record.cross == cross}

    def __repr__(self) -> str:
        size = self.nbytes
        kept = f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size / 1e3:,.1f} kB"
        return f"{type(self).__name__}({', '.join([*self._counts(), kept])})"

    def _counts(self) -> list[str]:
        counts = {"self": len(self._of_kind(False)), "cross": len(self._of_kind(True))}
        return [f"{n} × {kind}-attention" for kind, n in counts.items() if n] or ["nothing recorded"]


class Capture(Forward):
    """The attention that `capture` recorded, and the block that records it; read it when the block has ended.

    One forward pass, or one generated text, is in `attention`, `cross` and `calls`. Of several, `cap[0]`, `cap[1]`, …
    are `Forward`s, each with the same names; `cap.attention` and the others then have all of them, told apart as
    "forward 1: …"; `cap.numbers` says which of all forward passes each is, where not all are kept.

    A block can also be written as a call: `capture(model).run(**inputs)` returns the capture, and `cap(**inputs)` what
    the model returns. As a decorator it records each call of a function, and is found again as its `.capture`:

    >>> model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> capture(model).run(torch.randn(1, 5, 8)).attention[0].shape.Q
    5
    >>> @capture(model, last=1)
    ... def step(x):
    ...     return model(x)
    >>> for n in (3, 4):
    ...     _ = step(torch.randn(1, n, 8))
    >>> step.capture.attention[0].shape.Q, step.capture.numbers
    (4, [1])
    """

    def __init__(
        self,
        recorder: Recorder | None,
        forwards: Sequence[RecordsByName] = (),
        skipped: Mapping[str, str] | None = None,
        *,
        model: Any = None,
        tokenizer: Any = None,
        towers: Sequence[str] = (),
    ) -> None:
        self._recorder, self._model = recorder, model
        self._skipped = recorder.skipped if recorder is not None else skipped or {}
        self._forwards: Sequence[RecordsByName] = forwards if recorder is None else recorder.matcher.forwards
        self._tokenizer = tokenizer if recorder is None else recorder.tokenizer
        self._tower_names = tuple(towers)
        self._source, self._number = self, 0
        self._target: int | None = None

    @property
    def skipped(self) -> dict[str, str]:
        """Return the calls that were seen but cannot be shown: by the module's name, the reason."""
        return dict(self._skipped)

    @property
    def _records(self) -> RecordsByName:  # type: ignore[override]
        forwards = self._forwards
        if len(forwards) == 1:
            return forwards[0]
        return {
            f"forward {number}: {name}": record
            for number, records in zip(self.numbers, forwards, strict=True)
            for name, record in records.items()
        }

    @property
    def numbers(self) -> list[int]:
        """Return of each forward pass that is kept which it was: 0, 1, … unless `last` or `every` left some out."""
        return [getattr(records, "number", i) for i, records in enumerate(self._forwards)]

    def _counts(self) -> list[str]:
        return [*super()._counts(), *([f"{len(self._skipped)} skipped"] if self._skipped else [])]

    def __len__(self) -> int:
        return len(self._forwards)

    @overload
    def __getitem__(self, which: int) -> Forward: ...
    @overload
    def __getitem__(self, which: str) -> AttentionStack: ...
    def __getitem__(self, which: int | str) -> Forward | AttentionStack:
        """Return a forward pass by number, or a tower's self-attention by name.

        Raises:
            IndexError: there is no such forward pass.
            KeyError: there is no such tower.
            ValueError: a tower of several forward passes.
        """
        if isinstance(which, str):
            if len(self) > 1 and which not in self.stacks():
                self._refuse_several(f"[{which!r}]")
            return super().__getitem__(which)
        forwards = self._forwards
        try:
            return Forward(forwards[which], self, self.numbers[which])
        except IndexError:
            last = len(forwards) - 1
            there = f"forwards 0 to {last}" if last > 0 else "forward 0 only" if last == 0 else "none"
            raise IndexError(f"forward {which} is not there: this capture has {there}") from None

    def __iter__(self) -> Iterator[Forward]:
        return (self[i] for i in range(len(self)))

    def _refuse_several(self, what: str) -> None:
        raise ValueError(f"this capture has {len(self)} forward passes: ask one of them, such as cap[0]{what}")

    # What weights carry.

    @property
    def target(self) -> int | None:
        """The token whose logit the stage "logit" is of, by id; None: of each sample the one that was most likely next.

        Assign its text, with the space before it, or its id; att.with_target(id) is of one attention alone.

        Raises:
            TypeError, ValueError, IndexError: no token; no unembedding is known: see `output_path`.
        """
        return self._target

    @target.setter
    def target(self, target: str | int | None) -> None:
        records = [one for records in self._forwards for one in records.values()]
        found = None
        if target is not None:
            known = [one.attention.carries for one in records]
            readout = next((one.readout for one in known if one is not None and one.readout is not None), None)
            if readout is None:
                raise ValueError(
                    next((why for one in known if one and (why := one.refusals.get("target"))), NO_READOUT)
                )
            found = token_of(target, self.tokenizer, readout.vocabulary)
        self._target = found
        for record in records:
            if isinstance(record, Record):
                record.target = found

    def backward(self, target: str | int | None = None, at: int = -1) -> None:
        """Run the model backwards from the logit of a token, of each sample by itself: gives the stage "saliency".

        Args:
            target: its text, or its id; None: of each sample the one that is most likely there.
            at: the position whose next token it is; negative counts from the end.

        Raises:
            ValueError: no gradients were asked for, there are no logits, or it was run before.
            TypeError, IndexError: no such token or position.

        >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        >>> cap = capture(torch.nn.Sequential(layer, torch.nn.Linear(8, 20)), gradients=True).run(torch.randn(1, 5, 8))
        >>> cap.backward(target=7)
        >>> cap.attention[0].block("saliency").shape
        torch.Size([5, 5])
        """
        steps = {id(call.step): call.step for record in self._kept_records() for call in record.calls[-1:]}
        facts = [step.facts for step in steps.values() if step.facts is not None and step.facts.logits is not None]
        if not facts:
            raise ValueError(NO_LOGITS_KEPT)
        for one in facts:
            logits, one.logits = one.logits, None  # with the graph, which is used up
            whole = logits if logits.ndim == 3 else logits[None]
            row = whole[:, as_index(at, whole.shape[1], "at", "positions")]
            chosen = None if target is None else token_of(target, self.tokenizer, row.shape[1])
            tokens = row.argmax(-1) if chosen is None else torch.full(row.shape[:1], chosen, device=row.device)
            row.gather(1, tokens[:, None]).sum().backward()

    def _kept_records(self) -> Iterator[Record]:
        for records in self._forwards:
            yield from (one for one in records.values() if isinstance(one, Record))

    # Its text, of all forward passes.

    @property
    def tokenizer(self) -> Any:
        """The tokenizer that has words for the ids, or its name; None where none is known. Assign one to name them.

        >>> model = torch.nn.MultiheadAttention(8, 2)
        >>> capture(model, tokenizer="gpt2").tokenizer
        'gpt2'
        """
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Any) -> None:
        self._tokenizer = read_tokenizer(tokenizer)

    def stacks(self) -> dict[str, NamedStack]:
        """Return each tower's self-attention and cross-attention by name; of several forward passes each by itself.

        >>> model = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        >>> with capture(model) as cap:
        ...     for n in (3, 4):
        ...         x = torch.randn(1, n, 8)
        ...         _ = model(x, x, x)
        >>> [*cap.stacks()]
        ['forward 0', 'forward 1']
        """
        if len(self) == 1:
            return self[0].stacks()
        found = {}
        for forward in self:
            own = forward.stacks()
            for name, one in own.items():
                numbered = f"forward {one.forward}" + (f", {name}" if len(own) > 1 else "")
                found[numbered] = replace(one, name=numbered)
        return found

    def _towers(self) -> Towers:
        names = [name for records in self._forwards for name in records]
        watched = None if self._recorder is None else self._recorder.texts
        return Towers([*(self._tower_names if watched is None else watched.towers.given), *names])

    def _main_stack(self) -> NamedStack | None:
        if len(self) > 1:
            self._refuse_several("")
        return super()._main_stack()

    @property
    def cross_tokens(self) -> Labels | Ids | None:
        """As `tokens`, of the keys of the cross-attention, such as what the encoder read; None where there is none."""
        if len(self) > 1:
            self._refuse_several(".cross_tokens")
        return super().cross_tokens

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        """What the model was called with, as far as it is kept: ids and masks, by the names of transformers.

        After `generate` they hold all that was read. Other arguments, such as images, are not kept.
        """
        if len(self) > 1:
            self._refuse_several(".inputs")
        return super().inputs

    def __bool__(self) -> bool:
        return True

    def __reduce__(self) -> Any:
        raise TypeError("a capture is not copied or pickled: cap.save(path) writes it, and Capture.load(path) reads it")

    def save(self, path: str | Path) -> None:
        """Write all that was recorded to a file in the safetensors format: tensors and text, nothing that runs.

        Args:
            path: where; by custom it ends in .safetensors. {rank} in it is the number of the process, where
                torch.distributed runs several, each of which saves its own part.

        Raises:
            ValueError: a mask or score function that has no form but its code; a pipe or a device as the path.
            OSError: a directory that is not there, a full disk, or anything else that keeps the file from being
                written. A file that is there is replaced at the end, so one that is loaded stays as it was, and one
                that cannot be replaced is left whole.

        >>> import tempfile
        >>> with capture() as cap:
        ...     _ = torch.nn.functional.scaled_dot_product_attention(*torch.randn(3, 1, 2, 5, 8), is_causal=True)
        >>> path = Path(tempfile.mkdtemp()) / "five.safetensors"
        >>> cap.save(path)
        >>> Capture.load(path).attention[0].is_causal
        True
        """
        io.save(self._forwards, self._skipped, path, tokenizer=self.tokenizer, towers=self._towers().given)

    @classmethod
    def load(cls, path: str | Path) -> Capture:
        """Open a file that `save` wrote, or those of several processes as one; the model's code is not needed.

        A pattern such as "run-*.safetensors" stands for the parts of one model that ran on several processes: they are
        laid together by layer, by head (tensor parallel) and by query (`capture(queries=…)`), in the order of these.

        A file of more than 64 MiB is mapped into memory, and read as it is looked at: replace it, as `save` does, or
        delete it, but do not cut it short or write into it, for then the system ends the process that looks at it.

        Args:
            path: of the file, or a pattern.

        Returns:
            A `Capture`, with what was saved.

        Raises:
            ValueError: it is not such a file, or cut short, or of a later version; of several: a part is missing or
                there twice, or they are not of one run. The message names the files.
            FileNotFoundError: no such file.

        >>> import tempfile
        >>> model, x = torch.nn.MultiheadAttention(8, 2, batch_first=True), torch.zeros(1, 5, 8)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     capture(model).run(x, x, x).save(f"{folder}/run.safetensors")
        ...     cap = Capture.load(f"{folder}/run.safetensors")
        ...     cap.attention[0].block(head=1, queries=0)
        tensor([[0.2000, 0.2000, 0.2000, 0.2000, 0.2000]])
        """
        loaded = load_files(path)
        return cls(None, loaded.forwards, loaded.skipped, tokenizer=loaded.tokenizer, towers=loaded.towers)

    def reduce(self, *, progress: bool = False, executor: Executor | None = None) -> Capture:
        """Reduce all that was recorded to what `capture(model, keep="overview")` keeps; this capture stays as it is.

        Args:
            progress: draw a bar with the time left, if tqdm is installed.
            executor: whose workers compute it: threads, processes, or those of a Dask cluster, `client.get_executor()`.
                Of a capture that was loaded only the path goes to them; see docs/scale.md. Whoever computes it, the
                numbers are the same.

        Returns:
            A capture of weights pooled by maximum to at most 128 × 128 bins, log-normalizers and metrics of all rows,
            without q, k and v; of calls of up to 128 tokens all weights.

        Raises:
            TypeError, RuntimeError: of an executor, as `Attention.overview`.

        >>> with capture() as cap:
        ...     _ = torch.nn.functional.scaled_dot_product_attention(*torch.randn(3, 1, 2, 300, 8), is_causal=True)
        >>> small = cap.reduce()
        >>> small.attention[0].overview(size=100).values.shape, small.nbytes < cap.nbytes
        (torch.Size([75, 75]), True)
        """
        found = reduce_records(self._forwards, executor, progress)
        tokenizer = self.tokenizer
        return Capture(None, found, self._skipped, tokenizer=tokenizer, towers=self._towers().given)

    def run(self, *inputs: Any, **keywords: Any) -> Capture:
        """Call the model in a block, and return the capture.

        Args:
            inputs: of the model.
            keywords: of the model.

        Returns:
            This capture.

        Raises:
            TypeError: there is no model to call.
            ValueError: as at the end of a block.

        >>> model, x = torch.nn.MultiheadAttention(8, 2, batch_first=True), torch.zeros(1, 5, 8)
        >>> capture(model).run(x, x, x).attention[0].shape.H
        2
        """
        self(*inputs, **keywords)
        return self

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        """Call the model in a block, and return its output; of a single function return one that is so recorded.

        Raises:
            TypeError: there is no model to call; a generator, which runs when its call has ended.
            ValueError: as at the end of a block.
        """
        if len(inputs) == 1 and not keywords and callable(inputs[0]) and not isinstance(inputs[0], torch.nn.Module):
            return self._decorated(inputs[0])
        if not callable(self._model):
            what = (
                "capture() was given no model"
                if self._model is None
                else f"a {type(self._model).__name__} is not called"
            )
            raise TypeError(f"{what}: give capture(model) one that is, or run it in a block, with capture(…) as cap:")
        with self:
            return self._model(*inputs, **keywords)

    def _decorated(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{function.__name__} is a generator, which runs when its call has long ended: write a block in it, "
                "with capture(…) as cap:"
            )

        @functools.wraps(function)
        def recorded(*arguments: Any, **keywords: Any) -> Any:
            with self:
                return function(*arguments, **keywords)

        @functools.wraps(function)
        async def awaited(*arguments: Any, **keywords: Any) -> Any:
            with self:
                return await function(*arguments, **keywords)

        found: Any = awaited if inspect.iscoroutinefunction(function) else recorded
        found.capture = self
        return found

    def __enter__(self) -> Capture:
        if self._recorder is None:
            raise ValueError("this capture was loaded from a file: enter a new one, capture(model), to record")
        before = self._recorder.open_blocks
        try:
            self._recorder.begin()
            return self
        except KeyboardInterrupt:
            if self._recorder.open_blocks > before:  # it came when all was open, and Python will not call `__exit__`
                surely(self._recorder.stop)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        assert self._recorder is not None
        surely(self._recorder.stop)
        self._recorder.settle()
        if kind is None:
            self._recorder.check()


list_keywords(Capture.widget, CaptureKeywords, AttentionWidget)
