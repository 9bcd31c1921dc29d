"""The traits of what is at the positions, tokens or image patches: checked against the layers, and as they are sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import traitlets

from ..._messages.codec import images
from ..._messages.codec.images import Illustration, Patches
from ..stores.token_store import TokenStore
from .keywords import GridSide, Pieces
from .selection import SelectionTraits
from .trait_types import Choice, Index, WholeOrNone, WrongValue, refusing


class TokenTraits(SelectionTraits):
    """The traits of tokens, one by one or merged into words, and of image patches; those of the selection are sent."""

    _token_store: TokenStore
    _illustration: Illustration
    _merges = True  # whether pieces can be merged; those of a comparison cannot

    tokens = traitlets.Any(None, help="The queries' tokens: one list, or one for each sample.").tag(
        sync=True, role="given", to_json=lambda value, self: self._token_store.message(self._tokens_of("query"))
    )
    key_tokens = traitlets.Any(None, help="The keys' tokens; None: as the queries'.").tag(
        sync=True, role="given", to_json=lambda value, self: self._token_store.message(self._tokens_of("key"))
    )
    tokenizer = traitlets.Any(None, help="Whose ids the tokens are, where they are ids.").tag(role="given")
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
    image = traitlets.Any(None, help="The image that the patches are of: one, or one for each sample.").tag(
        sync=True, role="given", to_json=lambda value, self: self._image_message()
    )

    @traitlets.validate("tokens", "key_tokens")
    def _fits(self, proposal: Any) -> Any:
        name = proposal["trait"].name
        with refusing():  # also a layer set at the same time, that is not there
            shape = self._shown.given[self.layer].shape
            self._token_store.check(proposal["value"], shape.B, shape.Q if name == "tokens" else shape.K, name)
        return proposal["value"]

    @traitlets.validate("pieces")
    def _can_merge(self, proposal: Any) -> str:
        value = str(proposal["value"])
        if value == "words" and not self._merges:
            raise WrongValue("a comparison does not merge pieces: compare att.merge(words) of both sides")
        if value == "words" and self.tokens is None and self.key_tokens is None:
            raise WrongValue("pieces is 'words' but there are no tokens: give tokens= as well")
        return value

    @traitlets.validate("grid")
    def _grid_fits(self, proposal: Any) -> tuple[int, int] | None:
        if proposal["value"] is None:
            return None
        with refusing():
            grid = images.as_grid(proposal["value"])
            shape = self._shown.given[self.layer].shape
            images.place(grid, self.grid_side, self.grid_start, shape.Q, shape.K)
        return grid

    @traitlets.validate("image")
    def _image_can_be_shown(self, proposal: Any) -> Any:
        with refusing():
            images.check_images(proposal["value"], self._there_are("batch"))
        return proposal["value"]

    def as_strings(self, name: str) -> Any:
        """Return `tokens` or `key_tokens` as they were given; of ids the tokenizer's strings for them."""
        return self._token_store.as_strings(name, self._shown.given[self.layer].shape)

    def _tokens_of(self, side: str) -> list[str] | None:
        return self._shown.tokens(side, self.layer, self.batch)

    def _patches(self) -> Patches | None:
        """Return where the selected layer has patches; None where they do not fit it, or tokens are merged."""
        if self.grid is None or self.pieces == "words":
            return None
        shape = self._shown.given[self.layer].shape
        return images.fitting(self.grid, self.grid_side, self.grid_start, shape.Q, shape.K)

    def _grid_message(self) -> dict[str, Any] | None:
        patches = self._patches()
        return None if patches is None else patches._asdict()

    def _image_message(self) -> dict[str, Any] | None:
        image = None if self.grid is None else self.image
        return self._illustration.message(image, self.batch, self._there_are("batch"))

    def _to_send_again(self) -> Iterator[str]:
        """Yield the traits that are to be sent again, as another sample or layer is selected."""
        for name, side in (("tokens", "query"), ("key_tokens", "key")):
            if self._token_store.is_new(name, self._tokens_of(side)):
                yield name
        if self.grid is not None:
            batches = self._there_are("batch")
            if self._illustration.is_new(self._patches(), self.image, self.batch, batches):
                yield from ("grid", "image")
