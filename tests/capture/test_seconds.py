"""The parts of a sound are named by their seconds, from the strides of the model's own convolutions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from attnwidget import Capture, capture

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

SPEECH = {
    **{f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in (("layers", 1), ("ffn_dim", 16))},
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "d_model": 16,
    "vocab_size": 60,
    "max_target_positions": 20,
    "decoder_start_token_id": 1,
    "pad_token_id": 0,
    "eos_token_id": 2,
}
IDS = torch.tensor([[1, 5, 6, 7]])


def seen(model: Any, **inputs: Any) -> Capture:
    with torch.no_grad(), capture(model.eval()) as cap:
        model(**inputs)
    return cap


def test_whisper_hears_fiftieths_of_a_second_and_its_words_attend_to_them(tmp_path: Path) -> None:
    config = transformers.WhisperConfig(**SPEECH, num_mel_bins=8, max_source_positions=50)
    cap = seen(
        transformers.WhisperForConditionalGeneration(config),
        input_features=torch.rand(1, 8, 100),
        decoder_input_ids=IDS,
    )
    assert cap.stacks()["encoder"].tokens[0][:3] == ["0.00 s", "0.02 s", "0.04 s"]  # type: ignore[index]
    cross = cap.stacks()["decoder, cross-attention"]
    assert cross.key_tokens[0][-1] == "0.98 s"  # type: ignore[index]
    w = cap.widget(cross=True, tokens=[["<s>", "a", "word", "."]])
    assert (w.as_strings("key_tokens")[-1], w.grid) == ("0.98 s", None)
    cap.save(tmp_path / "sound.safetensors")
    again = Capture.load(tmp_path / "sound.safetensors").stacks()
    assert again["decoder, cross-attention"].key_tokens == cross.key_tokens


@pytest.mark.parametrize(("rate", "last"), [(None, "0.96 s"), (8000, "1.92 s")])
def test_a_waveform_has_the_rate_of_its_config_else_16_khz(rate: int | None, last: str) -> None:
    more = {} if rate is None else {"sampling_rate": rate}
    config = transformers.Wav2Vec2Config(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, conv_dim=(8,) * 7,
        num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2, **more,
    )  # fmt: skip
    cap = seen(transformers.Wav2Vec2Model(config), input_values=torch.rand(1, 16_000))
    assert cap.tokens[0][1::47] == [f"{float(last[:-2]) / 48:.2f} s", last]  # type: ignore[index]


def test_features_of_an_unknown_rate_are_counted() -> None:
    config = transformers.Wav2Vec2BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, feature_projection_input_dim=8
    )
    assert seen(transformers.Wav2Vec2BertModel(config), input_features=torch.rand(1, 20, 8)).tokens is None
