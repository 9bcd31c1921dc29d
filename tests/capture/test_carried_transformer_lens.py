"""The stage `logit` is TransformerLens's direct logit attribution, by its own function, where it is installed."""

from __future__ import annotations

import pytest
import torch
from captured import GPT2, batch, build
from test_carried_of_models import LOGIT, randomized
from torch.testing import assert_close

from attnwidget import capture

TOKEN = 7


@pytest.mark.filterwarnings("ignore")
def test_it_is_direct_logit_attribution() -> None:
    lens = pytest.importorskip("transformer_lens", exc_type=ImportError)
    conversions = pytest.importorskip("transformer_lens.pretrained.weight_conversions", exc_type=ImportError)
    model, ids = randomized(build(GPT2, "sdpa")), batch()["input_ids"]
    size = model.config
    config = lens.HookedTransformerConfig(
        n_layers=size.n_layer, d_model=size.n_embd, n_ctx=size.n_positions, d_head=size.n_embd // size.n_head,
        n_heads=size.n_head, d_mlp=4 * size.n_embd, d_vocab=size.vocab_size, act_fn="gelu_new",
        eps=size.layer_norm_epsilon, normalization_type="LN", original_architecture="GPT2LMHeadModel",
        attention_dir="causal", device="cpu",
    )  # fmt: skip
    theirs = lens.HookedTransformer(config)
    weights = {name: x.detach().clone() for name, x in conversions.convert_gpt2_weights(model, config).items()}
    theirs.load_and_process_state_dict(
        weights, fold_ln=True, center_writing_weights=True, center_unembed=False, fold_value_biases=False
    )
    theirs.eval().set_use_attn_result(True)
    with torch.no_grad():
        _, cache = theirs.run_with_cache(ids)
        cap = capture(model).run(input_ids=ids)
        results = cache.stack_head_results(layer=-1)  # (layers · heads, B, Q, d_model)
    for place in (2, 11):
        wanted = cache.logit_attrs(
            results[:, :, place : place + 1], tokens=torch.full((2, 1), TOKEN), pos_slice=slice(place, place + 1)
        )
        layers = [att.with_target(TOKEN) for att in cap.attention]
        found = [
            [att.block("logit", batch=b, head=h, queries=place).sum() for b in range(2)]
            for att in layers
            for h in range(4)
        ]
        assert_close(torch.tensor(found)[..., None], wanted.detach(), rtol=LOGIT, atol=LOGIT)
        assert float(wanted.abs().max()) > 100 * LOGIT
