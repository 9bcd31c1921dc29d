"""Models whose layers compute with positions before samples: what weights carry is known, or is not said."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch.testing import assert_close

from attnwidget import capture


@pytest.mark.parametrize("beams", [1, 5])
def test_a_generation_of_positions_first_is_shown_step_by_step(beams: int) -> None:
    torch.manual_seed(0)
    config = transformers.FSMTConfig(
        langs=["en", "de"], src_vocab_size=40, tgt_vocab_size=40, d_model=32, max_position_embeddings=64,
        encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=48, decoder_ffn_dim=48, decoder_start_token_id=2,
    )  # fmt: skip
    model = transformers.FSMTForConditionalGeneration(config).eval()
    ids = torch.randint(3, 40, (2, 9))
    with torch.no_grad(), capture(model) as cap:
        out = model.generate(ids, max_new_tokens=5, min_new_tokens=5, do_sample=False, num_beams=beams)
    with torch.no_grad():
        wanted = model(input_ids=ids, decoder_input_ids=out[:, :-1], output_attentions=True).cross_attentions
    assert len(cap.cross) == 2
    for att, weights in zip(cap.cross, wanted, strict=True):
        for sample in range(2):
            found = torch.stack([att.block(batch=sample, head=head) for head in range(4)])
            assert_close(found, weights[sample], rtol=0, atol=1e-3)  # one pass rounds otherwise than steps do
