"""The traits of the positions: tokens, single or merged into words, and image patches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import traitlets

from ..._messages.codec import images, patches
from ..._messages.codec.images import Boxes, Illustration
from ..._messages.codec.patches import Patches
from ..._utils.weak import weakly
from ..stores.token_store import GivenTokens, TokenStore, as_words
from ..traits.keywords import GridSide, Pieces
from ..traits.trait_types import Choice, Index, WholeOrNone, WrongValue, refusing
from .selection import SelectionPart


class TokensPart(SelectionPart):
    """Tokens and image patches; those of the selected sample are sent."""

    _token_store: TokenStore
    _illustration: Illustration
    _merges = True  # whether subwords can be merged into words: not in a comparison

    tokens = traitlets.Any(None, help="The queries' tokens: one list, or one for each sample.").tag(
        sync=True, role="given", to_json=lambda value, self: self._token_store.message(self._tokens_of("query"))
    )
    key_tokens = traitlets.Any(None, help="The keys' tokens; None: as the queries'.").tag(
        sync=True, role="given", to_json=lambda value, self: self._token_store.message(self._tokens_of("key"))
    )
    tokenizer = traitlets.Any(None, help="The tokenizer of token ids.").tag(role="given")
    words = traitlets.Any(None, help="The word of each token, in place of the tokenizer's own.").tag(role="given")
    pieces: Choice[Pieces] = Choice(
        *get_args(Pieces), help="Whether tokens are shown one by one or merged into words."
    ).tag(sync=True, role="numbers")

    grid = traitlets.Any(None, help="Rows and columns of image patches, or None.").tag(
        sync=True, role="given", to_json=lambda value, self: self._grid_message()
    )
    grid_side: Choice[GridSide] = Choice(
        *get_args(GridSide), help="Which positions are patches: queries, keys, or both."
    ).tag(role="given")
    grid_start: WholeOrNone = Index(
        None, allow_none=True, help="The position of the first patch; None: they are the last ones."
    ).tag(role="given")
    boxes = traitlets.Any(None, help="The boxes on the image that are queries or keys, in pixels.").tag(
        sync=True, role="given", to_json=lambda value, self: self._boxes_message()
    )
    image = traitlets.Any(None, help="The image that was cut into patches: one, or one for each sample.").tag(
        sync=True, role="given", to_json=lambda value, self: self._image_message()
    )

    def _make(self) -> None:
        super()._make()
        self._token_store, self._illustration = TokenStore(weakly(self._given_tokens)), Illustration()

    def _given_tokens(self) -> GivenTokens:
        return GivenTokens(self.tokens, self.key_tokens, self.tokenizer, self.words)

    def _forget_layers(self) -> None:
        super()._forget_layers()
        self._token_store.forget_ids()

    def _forget_tokens(self) -> None:
        super()._forget_tokens()
        self._token_store.forget()
        self._forget_segments()

    def _watch(self) -> None:
        super()._watch()
        self.observe(self._when_changed(self._send_soon, "key_tokens"), "tokens")  # they may be the same
        self.observe(self._when_changed(self._on_tokens), ["tokens", "key_tokens", "tokenizer", "words"])
        self.observe(self._when_changed(self._send_soon, "grid"), ["grid_side", "grid_start"])

    def _on_tokens(self) -> None:
        """Compute again what depends on tokens: where padding is, and which tokens are equal."""
        if self._is_changing:
            return
        self._forget_tokens()
        if self.pieces == "words":
            self._replace_layers(self._shown.attention)
        self._refresh()

    @traitlets.observe("pieces")
    def _on_pieces(self, change: Any) -> None:
        """Show words or subwords; a pinned subword becomes its word, a pinned word its first subword."""
        if self._is_changing:
            return
        with self._lock:
            self._cancel()
            held, where = self._shown, {"layer": self.layer, "batch": self.batch, "to_words": change["new"] == "words"}
            pins = [
                (held.across("query", query, **where), held.across("key", key, **where)) for query, key in self.pins
            ]
            self._replace_layers(held.attention)
            self.pins = pins

    @traitlets.validate("tokens", "key_tokens")
    def _fits(self, proposal: Any) -> Any:
        name = proposal["trait"].name
        with refusing():  # also a layer set at the same time, that is not there
            shape = self._shown.given[self.layer].shape
            self._token_store.check(proposal["value"], shape.B, shape.Q if name == "tokens" else shape.K, name)
        return proposal["value"]

    @traitlets.validate("words")
    def _are_words(self, proposal: Any) -> Any:
        with refusing():
            return as_words(proposal["value"])

    @traitlets.validate("pieces")
    def _can_merge(self, proposal: Any) -> str:
        value = str(proposal["value"])
        if value == "words" and not self._merges:
            raise WrongValue("a comparison does not merge pieces: compare att.merge(words) of both sides")
        if value == "words" and self.tokens is None and self.key_tokens is None:
            raise WrongValue("pieces is 'words' but there are no tokens: give tokens= as well")
        return value

    @traitlets.validate("grid")
    def _grid_fits(self, proposal: Any) -> patches.Grid | None:
        if proposal["value"] is None:
            return None
        with refusing():
            grid, layers = patches.as_grid(proposal["value"]), self._shown.every
            if not isinstance(grid[0], int) and len(grid) != len(layers):
                raise ValueError(f"grid has {len(grid)} entries but there are {len(layers)} layers: give one for each")
            for layer in (self.layer,) if isinstance(grid[0], int) else range(len(grid)):
                own = patches.of_layer(grid, layer, self.grid_start, self.grid_side)
                if own is not None:
                    patches.place(own, layers[layer].shape.Q, layers[layer].shape.K)
        return grid

    @traitlets.validate("boxes")
    def _boxes_fit(self, proposal: Any) -> Any:
        with refusing():
            if proposal["value"] is not None:
                self._boxes_of(proposal["value"])
        return proposal["value"]

    def _boxes_of(self, boxes: Any) -> Boxes:
        shape = self._shown.given[self.layer].shape
        return images.boxes_of(boxes, self.image, self.batch, shape.B, shape.Q, shape.K)

    def _boxes_message(self) -> dict[str, Any] | None:
        try:
            return None if self.boxes is None or self.image is None else self._boxes_of(self.boxes).message()
        except ValueError:  # of a layer with other positions
            return None

    @traitlets.validate("image")
    def _image_can_be_shown(self, proposal: Any) -> Any:
        with refusing():
            images.check_images(proposal["value"], self._there_are("batch"), self._patches())
        return proposal["value"]

    def as_strings(self, name: str) -> Any:
        """Return `tokens` or `key_tokens` as given; for ids, the tokenizer's strings."""
        return self._token_store.as_strings(name, self._shown.given[self.layer].shape)

    def _tokens_of(self, side: str) -> list[str] | None:
        return self._shown.tokens(side, self.layer, self.batch)

    def _patches(self, layer: int | None = None) -> Patches | None:
        """Return where a layer, by default the selected one, has patches that are not merged; None without any."""
        if self.grid is None:
            return None
        layer = self.layer if layer is None else layer
        shape = self._shown.given[layer].shape
        own = patches.of_layer(self.grid, self._shown.grid_layer(layer), self.grid_start, self.grid_side)
        found = patches.fitting(own, shape.Q, shape.K)
        if found is None or self._shown.stack[layer] is self._shown.given[layer]:
            return found
        query, key = (
            None if self._token_store.samples(side, shape) is not None else first
            for side, first in (("query", found.query), ("key", found.key))
        )
        return None if query is None and key is None else found._replace(query=query, key=key)

    def _grid_message(self) -> dict[str, Any] | None:
        found = self._patches()
        return None if found is None else found.message()

    def _image_message(self) -> dict[str, Any] | None:
        image = None if self.grid is None and self.boxes is None else self.image
        return self._illustration.message(image, self.batch, self._there_are("batch"), self._patches())

    def _to_send_again(self) -> Iterator[str]:
        yield from super()._to_send_again()
        for name, side in (("tokens", "query"), ("key_tokens", "key")):
            if self._token_store.is_new(name, self._tokens_of(side)):
                yield name
        if self.boxes is not None:
            yield "boxes"
        if self.grid is not None or self.boxes is not None:
            batches = self._there_are("batch")
            if self._illustration.is_new(self._patches(), self.image, self.batch, batches):
                yield from ("grid", "image")
