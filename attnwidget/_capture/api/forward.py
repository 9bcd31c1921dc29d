"""`Forward`: the attention, text and widget of one forward pass."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from ..._analysis.head_kinds import KindsLike
from ..._analysis.output_path import OutputPath
from ..._analysis.why.contrasts import check_against
from ..._analysis.why.reasons import composing, pair, row, run
from ..._analysis.why.results import Composition, Why, WhyRow
from ..._segments.chat import is_chat
from ..._segments.segments import Segments
from ..._utils.indexing import as_index
from ..._widget.traits.keywords import CaptureKeywords, Tokens, list_keywords
from ..._widget.widget import AttentionWidget
from ...attention import Attention
from ...stack import AttentionStack
from ..carried.paths import path_of
from ..files.capture_file import LoadedRecord, tensors_of
from ..interventions.comparing import TargetLike
from ..modules.towers import Towers
from ..records.record import Record
from ..sources.record_sources import RecordSources
from ..text.given_tokens import TokensOfStacks
from ..text.labels import Ids, Labels, SavedWords, can_spell
from ..text.stacks import NamedStack, find_stack, inputs_of, named_stacks
from ..text.unpadded import has_padding, sample_named
from .reasons import number_of, refuse_too_long, refuse_weights_alone, run_with_bar, with_scores, words_at
from .widgets import labeled, logit_token, picker_keys, runners_of, widget_by_sample

if TYPE_CHECKING:
    from typing_extensions import Unpack

NOTHING_RECORDED = "nothing was recorded: enter the capture with `with`, and run the model inside the block"
RecordsByName = Mapping[str, Record | LoadedRecord]  # of one forward pass, by the name of the module


class Forward:
    """The attention of one forward pass, or of several that continue one another, such as the steps of `generate`.

    `forward["decoder"]` is the self-attention of a tower as an `AttentionStack`, if a model has several: an encoder and
    a decoder, a vision and a language model. `towers` names them; `stacks()` has all, with their labels.

    >>> from attnwidget import capture
    >>> model = torch.nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    >>> forward = capture(model).run(torch.randn(1, 3, 8), torch.randn(1, 2, 8))[0]
    >>> forward.towers, forward["encoder"][0].shape.Q, forward["decoder"][0].shape.Q
    (('encoder', 'decoder'), 3, 2)
    """

    def __init__(self, records: RecordsByName, source: Forward | None = None, number: int = 0) -> None:
        self._records, self._source, self._number = records, source, number

    @property
    def calls(self) -> dict[str, Attention]:
        """Return all attention calls, by the name of their module."""
        return {name: record.attention for name, record in self._records.items()}

    @property
    def attention(self) -> AttentionStack:
        """Return the self-attention, in the order of layers.

        If only some heads or queries are kept, each layer counts them from 0. A layer's `part` has their numbers in the
        model: with heads=[5, 7], `cap.attention[0].block(head=1)` is head 7.

        Raises:
            ValueError: no self-attention was recorded.
        """
        return self._stack(cross=False)

    @property
    def cross(self) -> AttentionStack:
        """Return the cross-attention, in the order of layers.

        Raises:
            ValueError: no cross-attention was recorded.
        """
        return self._stack(cross=True)

    @property
    def all(self) -> AttentionStack:
        """Return self- and cross-attention in the order in which they ran; `all.names` are the names of their modules.

        Raises:
            ValueError: nothing was recorded.
        """
        if not self._records:
            raise ValueError(self._nothing())
        return AttentionStack([record.attention for record in self._records.values()], self._records)

    @property
    def nbytes(self) -> int:
        """The bytes of all kept tensors; memory that several share counts once."""
        kept = {id(x): x for record in self._records.values() for x in tensors_of(record.attention).values()}
        bytes_of: dict[int, list[int]] = {}  # of each piece of memory, and of the tensors in it
        for x in kept.values():
            storage = x.untyped_storage()
            found = bytes_of.setdefault(storage._cdata, [storage.nbytes(), 0])
            found[1] += x.numel() * x.element_size()
        sources = [record.attention.sources for record in self._records.values()]
        streams = {id(one): one for own in sources if isinstance(own, RecordSources) for one in own.streams}
        return sum(min(found) for found in bytes_of.values()) + sum(one.nbytes for one in streams.values())

    # Its text.

    @property
    def tokenizer(self) -> Any:
        """The tokenizer that spells the ids, or its name; None if unknown."""
        return None if self._source is None else self._source.tokenizer

    @property
    def output_path(self) -> OutputPath:
        """The path of the heads' outputs: output projections, final norm and unembedding, if they were found.

        The stages "value_norm" and "logit" follow from them. A part that was not found has the reason.
        `att.carrying` sets them by hand.

        >>> from attnwidget import capture
        >>> model = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        >>> x = torch.randn(1, 5, 8)
        >>> capture(model).run(x, x, x).output_path.projections
        {'MultiheadAttention': 'MultiheadAttention.out_proj'}
        """
        return path_of(self.calls)

    @property
    def towers(self) -> tuple[str, ...]:
        """The names of the towers that ran, in order: ("encoder", "decoder"), ("vision_model", "text_model")."""
        return tuple(dict.fromkeys(one.tower for one in self.stacks().values()))

    def stacks(self) -> dict[str, NamedStack]:
        """Return each tower's self-attention and cross-attention by name, with the labels of its positions.

        >>> from attnwidget import capture
        >>> model = torch.nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
        >>> [*capture(model).run(torch.randn(1, 3, 8), torch.randn(1, 2, 8)).stacks()]
        ['encoder', 'decoder', 'decoder, cross-attention']
        """
        found, request = named_stacks(self._records, self._towers(), self.tokenizer, self._number), self.request
        return {name: replace(one, request=request) for name, one in found.items()}

    @property
    def request(self) -> str | None:
        """The name of this request of an engine that serves; None for other models."""
        names = () if self._source is None else self._source._request_names()  # noqa: SLF001
        return names[self._number] if self._number < len(names) else None

    def _request_names(self) -> Sequence[str]:
        return ()

    def _towers(self) -> Towers:
        return Towers(self._records) if self._source is None else self._source._towers()  # noqa: SLF001

    @property
    def tokens(self) -> Labels | Ids | None:
        """The text that the model read, a list for each sample: of the decoder if there is an encoder too.

        The tokenizer's words, with "[PAD]" for padding, which keeps its places: all samples of a batch are as long as
        the longest, and the model's mask blocks padding. `widget(padding=False)` removes it. Ids if there is no
        tokenizer; None for an unknown token, or if nothing is known. They are the queries of the self-attention: after
        `generate` all tokens but the last, which was never read.
        """
        main = self._main_stack()
        return None if main is None else main.queries.tokens(self.tokenizer)

    @property
    def key_tokens(self) -> Labels | Ids | None:
        """The tokens of the keys: more than `tokens` if a cache held earlier ones."""
        main = self._main_stack()
        return None if main is None else main.keys.tokens(self.tokenizer)

    @property
    def cross_tokens(self) -> Labels | Ids | None:
        """The tokens of the keys of the cross-attention, such as the encoder's text; None if there are none."""
        found = next((one for one in self.stacks().values() if one.cross), None)
        return None if found is None else found.keys.tokens(self.tokenizer)

    def labels_of_layer(self, layer: Any) -> tuple[Any, Any]:
        """Return the tokens of the queries and of the keys of a layer of `attention`, as its widget shows them.

        Args:
            layer: its number; negative counts from the end.

        Returns:
            Two lists of strings for each sample. Both are None if nothing is known of its text, or there is no such
            layer.

        >>> from attnwidget import capture
        >>> model, x = torch.nn.MultiheadAttention(8, 2, batch_first=True), torch.zeros(1, 5, 8)
        >>> capture(model).run(x, x, x).labels_of_layer(0)
        (None, None)
        """
        names, stacks = [*self.attention.names], self.stacks()
        if type(layer) is not int or not -len(names) <= layer < len(names):
            return None, None
        record = self._records[names[layer]]  # of several forward passes, stacks name theirs without a number
        has = {name: any(one is record for one in stack.records.values()) for name, stack in stacks.items()}
        own = next((name for name, stack in stacks.items() if has[name] and not stack.cross), None)
        if own is None:
            return None, None
        found = TokensOfStacks(stacks, own, None, None, self.tokenizer)[own]
        return found.tokens, found.of_keys

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        """The arguments of the model's call that are kept: ids and masks, by their names in transformers.

        After `generate` they hold the whole text that was read. Other arguments, such as images, are not kept.
        """
        return inputs_of(self.stacks())

    def _main_stack(self) -> NamedStack | None:
        """Return the self-attention of the text's own tower: the tower with cross-attention, else the last."""
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
        """Return a widget with the self-attention of a tower, or its cross-attention, already labeled.

        Args:
            tokens: for the tower shown, instead of the text that the model read, as in `AttentionWidget`. Of the tokens
                of `generate` the last, which was never read, is cut; tokens without padding get it. If only some
                queries were kept, give the tokens of all or of these.
            cross: show the cross-attention; its queries are `tokens` and its keys `key_tokens`.
            model: the captured model, in evaluation mode, to run it again with edits: the loss without a head, a
                segment, a key or an edge (`segments_show="effect"`). The kernel answers between two runs.
            inputs: the arguments of that run, as `attnwidget.effect` takes them; None: `cap.inputs`.
            target: a token, by its id or its text, as in `attnwidget.effect`. The loss is its log-probability, or a
                function of the output; the stage "logit" shows its logit. None: the most likely token after the last.
            show: the other keywords of `AttentionWidget.from_attention`. `segments` are by default prompt and answer of
                a generated text. `stack` is a tower or a name of `stacks()`, and `forward` a number as in cap[i]: the
                ones shown first. The widget's picker has all.

        Raises:
            ValueError: no attention of this kind was recorded; the tokens contradict the text that the model read; the
                model is in training mode, or its inputs are not known.
            KeyError: there is no such stack.

        A warning comes if one list of tokens is given for samples with different texts.

        >>> from attnwidget import capture
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
        if stack is None and forward is None and not cross:
            shown = self._stack_of_layer(stacks, shown, cast(dict[str, Any], show))
        placed = TokensOfStacks(stacks, shown, tokens, show.pop("key_tokens", None), tokenizer)
        if stack is None and forward is None:  # the tokens may belong to another tower than the first
            shown = placed.given_for
        show["tokenizer"] = tokenizer if can_spell(tokenizer) and not isinstance(tokenizer, SavedWords) else None
        keys = picker_keys(stacks)
        runners = runners_of(stacks, keys, keys[shown][0], placed, (model, inputs, target))
        sources: dict[Any, Any] = {
            (key if key[1] else key[0]): functools.partial(labeled, stacks[name], placed, name, runners.get(name))
            for name, key in keys.items()
        }
        if "grid" in show:  # a custom grid, and nothing else is known
            show = {"grid_start": None, "grid_side": "auto", **show}
        if is_chat(show.get("segments")):  # found by the capture's own ids
            many = stacks[shown].attention[0].shape.B
            show["segments"] = [stacks[shown].segments(show["segments"], batch) for batch in range(many)]
        show["forward"], show["stack"] = keys[shown]
        if alone:
            return widget_by_sample(stacks, keys, placed, (shown, batch), model, {**show})
        token = logit_token(target, stacks[shown].attention, tokenizer, needed=model is None)
        return AttentionWidget.from_attention(sources, target=token, **show)

    def _stack_of_layer(self, stacks: dict[str, NamedStack], shown: str, show: dict[str, Any]) -> str:
        """Return the stack with the wanted layer: one that the first stack lacks counts in `attention`.

        Args:
            stacks: by name.
            shown: the name of the first.
            show: the keywords; the layer gets its number in its stack.
        """
        names, layer = [*self._stack(cross=False).names], show.get("layer")
        if type(layer) is int and len(stacks[shown].records) <= layer < len(names):
            for name, one in stacks.items():
                if names[layer] in one.records and one.forward == stacks[shown].forward:
                    show["layer"] = [*one.records].index(names[layer])
                    return name
        return shown

    def _shown(self, stacks: dict[str, NamedStack], cross: bool, stack: str | None, forward: Any = None) -> str:
        """Return the name of the stack that a widget shows first."""
        if stack is None:
            self._stack(cross=cross)  # raises where there is none
        if forward is not None:
            keys = picker_keys(stacks)
            which = as_index(forward, max(keys.values(), default=(-1, ""))[0] + 1, "forward", "forwards")
            stacks = {name: one for name, one in stacks.items() if keys[name][0] == which}
        if stack is not None:
            return find_stack(stacks, stack, self._towers(), cross=cross).name
        found = [name for name, one in stacks.items() if one.cross == cross]
        reads = [name for name in found if stacks[name].queries.text.has_images]  # before the tower that sees them
        return next(iter((*reads, *found)), next(iter(stacks)))

    def segments(self, source: Any = None, *, batch: int = 0, cross: bool = False, unit: str = "tokens") -> Segments:
        """Return the named parts of the text that the model read, in tokens, found by its own ids and tokenizer.

        Args:
            source: as in `attnwidget.segments`; None: "sentence A" and "sentence B" as `token_type_ids` told them, or
                the prompt and the answer of a generated text, whose last token was never read.
            batch: the sample.
            cross: use the text of the cross-attention's keys, such as an encoder's.
            unit: of spans: "tokens", or "characters", which needs `attnwidget.segments` with the text.

        Returns:
            `Segments` of all positions, even if only some queries were kept.

        Raises:
            IndexError: there is no such sample.
            TypeError, ValueError: as in `attnwidget.segments`; or no source, and prompt and answer are not known.

        >>> from attnwidget import capture
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
        """Measure the attention of every head of every layer: a list of records, ready for `pandas.DataFrame`.

        Args:
            batch, rows, kinds: as in `AttentionStack.metrics`.
            tokens: instead of the text that the model read: see `widget`.
            cross: measure the cross-attention.

        Raises:
            ValueError: no attention of this kind was recorded; or the tokens contradict the text that the model read.
            IndexError: there is no such sample.

        >>> from attnwidget import capture
        >>> model, x = torch.nn.MultiheadAttention(8, 2, batch_first=True), torch.zeros(1, 5, 8)
        >>> cap = capture(model).run(x, x, x)
        >>> [(one["head"], round(one["entropy"], 3)) for one in cap.metrics()]
        [(0, 2.322), (1, 2.322)]
        """
        stacks, number = self.stacks(), {name: i for i, name in enumerate(self._stack(cross=cross).names)}
        shown = self._shown(stacks, cross, None)
        placed = {} if tokens is None else TokensOfStacks(stacks, shown, tokens, None, self.tokenizer)
        prefixed = len(number) > 0 and not any(next(iter(number)) in one.records for one in stacks.values())
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
        """Compute all weights of a layer as one tensor, if it is not too large.

        Args:
            layer: by number or name, as in `attention`.
            batch: one sample; None for all.
            head: one head; None for all.
            cross: use the cross-attention.

        Returns:
            (B, H, Q, K), without the axis of a chosen sample or head.

        Raises:
            IndexError, KeyError: there is no such layer, sample or head.
            ValueError: no attention of this kind was recorded; or there are more than 2²⁸ weights, 1 GiB: ask for a
                block.

        >>> from attnwidget import capture
        >>> model, x = torch.nn.MultiheadAttention(8, 2, batch_first=True), torch.zeros(1, 5, 8)
        >>> capture(model).run(x, x, x).weights(0, head=1).shape
        torch.Size([1, 5, 5])
        """
        return (self.cross if cross else self.attention).weights(layer, batch, head)

    def why(
        self,
        layer: int | str,
        head: int,
        query: int,
        key: int,
        against: int | str | None = None,
        *,
        features: Mapping[str, Any] | None = None,
        batch: int = 0,
        cross: bool = False,
    ) -> Why:
        """Split one score exactly into the parts of the residual stream at its query and at its key.

        score · scale = Σ_a Σ_b q^a · k^b · scale over what was written there: embeddings, each earlier head, biases,
        MLPs (Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"). The scales of norms are held as
        in this run. Mask, bias and softcap come after the score and are not part of it.

        Args:
            layer: the layer, by its number in `attention` or its name.
            head: the head.
            query, key: the pair; negative counts from the end.
            against: subtract the score of another key, by its position; of "others", the mean of the row's other keys
                under their weights, with a sum of 1; or of "mean", the row's mean under its weights, which has the
                key's own score in it. Parts that are alike for both then vanish. None: the score itself. A learned sink
                has no key, so no mean has it.
            features: names for the features of what modules write: {module name: (decoder, activations)}, as of a
                sparse autoencoder: (features, model size) and (samples, positions, features). The rest of the module's
                output is one part, "not in the dictionary".
            batch: the sample.
            cross: a layer of the cross-attention.

        Returns:
            `results.Why`, which prints as text, with `records()` for pandas.

        Raises:
            ValueError: there are no sources: give capture(model, sources=True); the way from the stream to q or k is
                not linear, with the module's name; the parts do not add up to the model's own q and k; no other key has
                a weight, so there is no mean of the others. IndexError, KeyError: there is no such layer, head, query,
                key or sample.

        >>> from attnwidget import capture
        >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        >>> model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
        >>> cap = capture(model, sources=True).run(torch.randn(1, 5, 8))
        >>> found = cap.why(layer=1, head=0, query=4, key=2)
        >>> [part.label for part in found.key_parts[:4]]
        ['input', '0·0', '0·1', 'MLP 0']
        >>> abs(found.score - float(found.terms.sum())) < 1e-5
        True
        """
        stack = self.cross if cross else self.attention
        number = number_of(stack, layer)
        refuse_weights_alone(stack, number)
        others = [against] if type(against) is int else []
        words = words_at(self.stacks(), stack.names[number], batch, query, [key, *others])
        how: dict[str, Any] = {"against": against, "features": features, "words": words}
        return run(pair(stack[number], query, key, batch=batch, head=head, **how))

    def why_row(
        self,
        layer: int | str,
        head: int,
        query: int,
        against: int | str | None = None,
        *,
        batch: int = 0,
        cross: bool = False,
    ) -> WhyRow:
        """Split the scores of one query with all keys into the parts of each key: see `why`.

        Args:
            layer: the layer, by its number in `attention` or its name.
            head: the head.
            query: the query; negative counts from the end.
            against: as of `why`, for each key. With "others", each key is compared with its own other keys; a key
                beside which no other has a weight has NaN.
            batch: the sample.
            cross: a layer of the cross-attention.

        Returns:
            `results.WhyRow`: terms (parts, keys), the largest part first.

        Raises:
            ValueError, IndexError, KeyError: as `why` does; ValueError also if the parts do not fit into memory, and if
                no key has a weight and there is a mean to compare with.

        >>> from attnwidget import capture
        >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        >>> model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
        >>> row = capture(model, sources=True).run(torch.randn(1, 5, 8)).why_row(layer=1, head=0, query=4)
        >>> bool(torch.allclose(row.terms.sum(0), row.scores, atol=1e-5))
        True
        """
        stack = self.cross if cross else self.attention
        number = number_of(stack, layer)
        refuse_weights_alone(stack, number)
        refuse_too_long(stack, number)
        if isinstance(against, str):
            check_against(against)
        return run(row(stack[number], query, batch=batch, head=head)).compared(against)

    def composition(
        self,
        layers: int | str | slice | Sequence[int | str] | None = None,
        at: int | Sequence[int] | None = None,
        *,
        batch: int = 0,
        progress: bool = False,
    ) -> Composition:
        """Compute which parts of the residual stream each head reads on this text: with its queries, keys and values.

        Of queries and keys: the share of each part in Σ_i Σ_j (w_ij − u_ij) q_i · k_j, the score by which a head
        prefers what it looks at to the average of its allowed keys (u is even over these). Of values: the share in Σ_i
        ‖o_i‖². It is Q-, K- and V-composition (Elhage et al. 2021), measured on the text and not on the weights.

        Args:
            layers: the heads of these layers, by number, name or slice; None: all.
            at: only these queries; None: all without padding.
            batch: the sample.
            progress: draw a bar with the time left, if tqdm is installed.

        Returns:
            `results.Composition`, with `records()` for pandas and `into(layer, head)` for one head.

        Raises:
            ValueError, IndexError, KeyError: as `why` does.

        >>> from attnwidget import capture
        >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        >>> model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
        >>> found = capture(model, sources=True).run(torch.randn(1, 5, 8)).composition(layers=1)
        >>> round(sum(edge.share for edge in found.into(1, 0, "key")), 6)
        1.0
        """
        stack = self.attention
        numbers, queries = with_scores(stack, layers), [at] if isinstance(at, int) else at
        steps = composing([stack[i] for i in numbers], numbers, batch=batch, at=queries)
        return run_with_bar(steps, progress=progress)

    def pair(self, query: int, key: int, batch: int = 0, *, cross: bool = False) -> Tensor:
        """Compute the exact weight of one query on one key in all heads of all layers.

        Args:
            query, key: the pair; negative counts from the end of each layer.
            batch: the sample.
            cross: use the cross-attention.

        Returns:
            (L, H); NaN where a layer has fewer heads than another.

        Raises:
            ValueError: no attention of this kind was recorded.
            IndexError: a layer has no such sample, query or key.

        >>> from attnwidget import capture
        >>> model, x = torch.nn.MultiheadAttention(8, 2, batch_first=True), torch.zeros(1, 5, 8)
        >>> capture(model).run(x, x, x).pair(query=-1, key=0)
        tensor([[0.2000, 0.2000]])
        """
        return (self.cross if cross else self.attention).pair(query, key, batch)

    def _nothing(self) -> str:
        """Return why there is nothing to show."""
        return NOTHING_RECORDED

    def _stack(self, *, cross: bool) -> AttentionStack:
        records = self._of_kind(cross)
        if not self._records:
            raise ValueError(self._nothing())
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


list_keywords(Forward.widget, CaptureKeywords, AttentionWidget)
