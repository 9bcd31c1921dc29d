"""An atlas in a notebook: the kernel sends a card when its head is chosen, and opens texts in the widget."""

from __future__ import annotations

import base64
import logging
from typing import Any

import traitlets

from ..._utils.assets import bundled
from ..._utils.failures import sentence_of
from ..._utils.indexing import as_index
from ..._utils.validation import as_choice
from ..._widget.traits.closing import ClosedForGood
from ..._widget.widget import AttentionWidget
from .atlas_view import AtlasView
from .contents import card_of, index_of
from .still import still_of

log = logging.getLogger(__name__)
PLACE = ("layer", "head", "query", "key")


class AtlasWidget(ClosedForGood):
    """An atlas: a map of all heads, a plane of similar ones, search, and a card for each head.

    Attributes:
        selected: (layer, head) of the open card; None if there is none. Two-way.
        opened: the `AttentionWidget` of the text opened last; None before.
        theme: "auto", "light" or "dark".

    >>> import torch
    >>> from attnwidget import atlas
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    >>> found = atlas(model, [{"src": torch.randn(1, n, 8)} for n in (5, 9)], progress=False)
    >>> w = found.widget()
    >>> w.selected = (0, 1)
    >>> w.theme
    'auto'
    """

    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)
    _index = traitlets.Dict().tag(sync=True)
    _card = traitlets.Dict(default_value=None, allow_none=True).tag(sync=True)
    selected: Any = traitlets.List(default_value=None, allow_none=True).tag(sync=True)
    theme = traitlets.Unicode("auto").tag(sync=True)
    opened = traitlets.Instance(AttentionWidget, allow_none=True).tag(
        sync=True, to_json=lambda shown, widget: None if shown is None else f"IPY_MODEL_{shown.model_id}"
    )

    def __init__(self, atlas: AtlasView, other: AtlasView | None = None, *, theme: str = "auto") -> None:
        self._atlas, self._other = atlas, other
        script = f"{bundled('atlas.js')}\nexport default {{ render: attnwidgetAtlas.render }};\n"
        super().__init__(
            _esm=script,
            _css=bundled("atlas.css"),
            _index=index_of(atlas, other, None, live=atlas.can_open_texts),
            theme=as_choice(theme, ("auto", "light", "dark"), "theme"),
        )
        self.on_msg(AtlasWidget._answer)

    def __repr__(self) -> str:
        return super().__repr__() if self._is_closed else f"AtlasWidget({self._atlas!r})"

    @traitlets.validate("selected")
    def _check_selected(self, proposal: dict[str, Any]) -> list[int] | None:
        given = proposal["value"]
        if given is None:
            return None
        if len(given) != 2:
            raise traitlets.TraitError(f"selected is {given!r}: give (layer, head)")
        counts = self._atlas.heads_of_layers
        try:
            layer = as_index(given[0], len(counts), "layer", "layers")
            return [layer, as_index(given[1], counts[layer], "head", "heads")]
        except (IndexError, TypeError) as error:
            raise traitlets.TraitError(str(error)) from error

    @traitlets.validate("theme")
    def _check_theme(self, proposal: dict[str, Any]) -> str:
        if proposal["value"] not in ("auto", "light", "dark"):
            raise traitlets.TraitError(f"theme is {proposal['value']!r}: give 'auto', 'light' or 'dark'")
        return str(proposal["value"])

    @traitlets.observe("selected")
    def _keep_card(self, change: dict[str, Any]) -> None:
        """Keep the open card in the widget's state, so that a saved notebook shows it."""
        if change["new"] is not None:
            layer, head = change["new"]
            self._card = {"key": f"0-{layer}-{head}", "card": card_of(self._atlas, layer, head)}

    def _answer(self, content: Any, buffers: Any) -> None:
        """Answer a message of the front-end: a result, or the reason why there is none."""
        if self._is_closed or not isinstance(content, dict) or not isinstance(content.get("id"), int):
            return
        try:
            self.send({"id": content["id"], "result": self._result(content)})
        except Exception as error:
            log.debug("a message of the atlas failed", exc_info=error)
            self.send({"id": content["id"], "error": sentence_of(error)})

    def _result(self, content: dict[str, Any]) -> Any:
        if content.get("kind") == "card":
            atlas = self._other if content.get("side") == 1 and self._other is not None else self._atlas
            return card_of(atlas, content["layer"], content["head"])
        if content.get("kind") == "open":
            return self.open_text(content["text"], **{name: content[name] for name in PLACE})
        raise ValueError(f"there is no message {content.get('kind')!r}: give 'card' or 'open'")

    def open_text(self, text: int, layer: int, head: int, query: int | None = None, key: int | None = None) -> str:
        """Run the model on a text and keep its widget as `opened`, with a head and a pair chosen.

        Returns:
            A sentence that says where it is.
        """
        cap = self._atlas.open_text(text)
        name = self._atlas.layers[layer]
        shown = cap.widget()
        names = [*cap.attention.names]
        at = names.index(name)
        shown.layer, shown.head = at, head
        shown.query, shown.key = query, key
        self.opened = shown
        return "Opened below. Python has it as opened of this widget."

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """Return the widget, with a small picture for places where no widget runs."""
        made = super()._repr_mimebundle_(**kwargs)
        if made is None:
            return None
        data, metadata = made if isinstance(made, tuple) else (made, {})
        return {**data, "image/png": base64.b64encode(still_of(self._index)).decode()}, metadata
