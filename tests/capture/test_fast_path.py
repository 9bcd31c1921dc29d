"""Torch's own encoders give inside a capture what they give outside, at padded places too."""

from __future__ import annotations

import itertools

import pytest
import torch
from tolerance import sums
from torch import Tensor, nn

from attnwidget import capture

LENGTHS = {"at the end": (7, 4), "at the start": (-7, -4), "of nothing": (7, 7), "nowhere": (0, 0)}


def padding(kind: str) -> Tensor | None:
    """Return which places of two texts are padded, (2, 7) bool."""
    if kind == "nowhere":
        return None
    places = torch.arange(7)
    return torch.stack([places >= n if n > 0 else places < 7 + n for n in LENGTHS[kind]])


def encoder(layers: int, norm: bool, nested: bool, **how: bool) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, **how)
    last = nn.LayerNorm(32) if norm else None
    if last is not None:
        nn.init.normal_(last.bias)
    return nn.TransformerEncoder(layer, layers, last, enable_nested_tensor=nested)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.parametrize(
    ("training", "gradients", "nested", "first"),
    [
        (False, False, True, False),
        (False, False, False, True),
        *(
            pytest.param(*training, *nested, marks=pytest.mark.thorough)
            for training in ((False, False), (False, True), (True, False))
            for nested in ((True, False), (False, False), (True, True))
        ),
    ],
)
def test_an_encoder_gives_the_same_at_padded_places(
    kind: str, training: bool, gradients: bool, nested: bool, first: bool
) -> None:
    x, padded = torch.randn(2, 7, 32, generator=torch.Generator().manual_seed(1)), padding(kind)
    for layers, norm in itertools.product((1, 2, 3), (False, True)):
        model = encoder(layers, norm, nested, norm_first=first).train(training)
        with torch.set_grad_enabled(gradients):
            plain = model(x, src_key_padding_mask=padded)
            with capture(model) as cap:
                output = model(x, src_key_padding_mask=padded)
            again = model(x, src_key_padding_mask=padded)
        # Sums of 64 terms in each layer, whose rounding the next one passes on, a norm makes no number larger than √32.
        torch.testing.assert_close(output, plain, **sums(64 * layers, size=32.0))
        assert (len(cap.attention), cap.skipped) == (layers, {})
        torch.testing.assert_close(again, plain, rtol=0, atol=0)
        assert torch.backends.mha.get_fastpath_enabled()


def test_a_float_padding_and_an_encoder_inside_a_model() -> None:
    torch.manual_seed(0)
    model = nn.Transformer(32, 4, 2, 2, 64, dropout=0.0, batch_first=True).eval()
    x, y = torch.randn(2, 7, 32), torch.randn(2, 5, 32)
    padded = padding("at the end")
    for mask in (padded, torch.zeros(2, 7).masked_fill(padded, -torch.inf)):
        with torch.no_grad():
            plain = model.encoder(x, src_key_padding_mask=mask)
            whole = model(x, y, src_key_padding_mask=mask, memory_key_padding_mask=mask)
            with capture(model):
                output = model(x, y, src_key_padding_mask=mask, memory_key_padding_mask=mask)
            with capture() as cap:
                torch.testing.assert_close(model.encoder(x, src_key_padding_mask=mask), plain, **sums(128, size=32.0))
        torch.testing.assert_close(output, whole, **sums(256, size=32.0))
        assert len(cap.attention) == 2


def test_a_layer_and_an_attention_alone() -> None:
    torch.manual_seed(0)
    layer, x = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval(), torch.randn(2, 7, 32)
    padded = padding("at the end")
    with torch.no_grad():
        plain, alone = layer(x, src_key_padding_mask=padded), layer.self_attn(x, x, x, key_padding_mask=padded)[0]
        with capture(layer):
            torch.testing.assert_close(layer(x, src_key_padding_mask=padded), plain, **sums(64, size=32.0))
            found = layer.self_attn(x, x, x, key_padding_mask=padded)[0]
    torch.testing.assert_close(found, alone, **sums(64, size=32.0))
