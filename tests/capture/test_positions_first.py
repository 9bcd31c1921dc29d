"""Models whose layers compute with positions before samples: what weights carry is known, or is not said."""

from __future__ import annotations

import warnings

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.testing import assert_close

from attnwidget import Attention, Capture, capture, effect, intervene, sweep

SIZE, HEADS, WORDS = 16, 2, 11


class SmallModel(nn.Module):
    """One layer, a norm and an unembedding.

    Args:
        order: "samples" first everywhere; "inside" the layers positions first; "ids" and all that follows positions
            first; "logits": they alone positions first.
        norm: whether there is a final norm.
    """

    def __init__(self, order: str, norm: bool = True) -> None:
        super().__init__()
        self.order = order
        self.embed = nn.Embedding(WORDS, SIZE)
        self.before = nn.LayerNorm(SIZE)
        self.attend = nn.MultiheadAttention(SIZE, HEADS, batch_first=order in ("samples", "logits"))
        self.norm = nn.LayerNorm(SIZE) if norm else nn.Identity()
        self.head = nn.Linear(SIZE, WORDS, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        x = x.transpose(0, 1) if self.order == "inside" else x
        h = self.before(x)
        x = self.norm(x + self.attend(h, h, h, need_weights=False)[0])
        x = x.transpose(0, 1) if self.order in ("inside", "logits") else x
        return self.head(x)


def captured(
    order: str, samples: int, positions: int, norm: bool = True
) -> tuple[SmallModel, Tensor, Attention, object]:
    """A model, its ids (samples, positions), and what a capture has of its layer: attention and labels."""
    torch.manual_seed(0)
    model = SmallModel(order, norm).eval()
    ids = torch.randint(0, WORDS, (samples, positions))
    with torch.no_grad(), capture(model) as cap:
        model(ids.T if order == "ids" else ids)
    return model, ids, cap.attention[0], cap.tokens


def values_of(model: SmallModel, ids: Tensor) -> Tensor:
    """The values of each head, (samples, heads, positions, size)."""
    weight, bias = model.attend.in_proj_weight[2 * SIZE :], model.attend.in_proj_bias[2 * SIZE :]
    return (model.before(model.embed(ids)) @ weight.T + bias).unflatten(-1, (HEADS, -1)).transpose(1, 2).detach()


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize(("samples", "positions"), [(2, 5), (5, 5), (5, 3)])
@pytest.mark.parametrize("order", ["inside", "ids", "logits"])
def test_a_logit_whose_rows_are_not_known_is_refused(order: str, samples: int, positions: int, norm: bool) -> None:
    _, _, att, _ = captured(order, samples, positions, norm)
    assert "logit" not in att.stages
    with pytest.raises(ValueError, match="positions before samples"):
        att.block(batch=1, head=1, stage="logit")


@pytest.mark.parametrize(("samples", "positions"), [(2, 5), (5, 5), (5, 3)])
def test_a_logit_is_known_where_samples_come_first(samples: int, positions: int) -> None:
    model, ids, att, _ = captured("samples", samples, positions)
    v, weight = values_of(model, ids), model.attend.out_proj.weight.detach()
    with torch.no_grad():
        h = model.before(model.embed(ids))
        x = model.embed(ids) + model.attend(h, h, h, need_weights=False)[0]
        tokens = model(ids)[:, -1].argmax(-1)
    scale = (x - x.mean(-1, keepdim=True)).square().mean(-1).add(model.norm.eps).sqrt()
    for sample in range(samples):
        d = (model.head.weight[tokens[sample]] * model.norm.weight).detach()
        d = d - d.mean()
        for head in range(HEADS):
            carried = v[sample, head] @ weight[:, head * 8 : head * 8 + 8].T @ d
            wanted = att.block(batch=sample, head=head) * carried / scale[sample][:, None]
            found = att.block(batch=sample, head=head, stage="logit")
            assert_close(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("samples", "positions"), [(2, 5), (5, 5), (5, 3)])
@pytest.mark.parametrize("order", ["samples", "inside", "ids"])
def test_what_hangs_on_no_row_is_right_in_any_order(order: str, samples: int, positions: int) -> None:
    model, ids, att, _ = captured(order, samples, positions)
    v, weight = values_of(model, ids), model.attend.out_proj.weight.detach()
    for sample in range(samples):
        for head in range(HEADS):
            lengths = (v[sample, head] @ weight[:, head * 8 : head * 8 + 8].T).norm(dim=-1)
            wanted = att.block(batch=sample, head=head) * lengths
            assert_close(att.block(batch=sample, head=head, stage="value_norm"), wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("samples", "positions"), [(1, 1), (2, 5), (5, 5), (5, 3)])
@pytest.mark.parametrize("order", ["samples", "inside", "ids", "logits"])
def test_labels_are_those_of_the_sample_or_none(order: str, samples: int, positions: int) -> None:
    _, ids, _, labels = captured(order, samples, positions)
    own = {
        "samples": True,
        "logits": True,
        "inside": samples != positions or samples == 1,
        "ids": samples == positions == 1,
    }
    assert labels == (ids.tolist() if own[order] else None)


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
    how = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, "num_beams": beams}
    with torch.no_grad(), capture(model) as cap:
        model.generate(ids, **how)
    with torch.no_grad():
        out = model.generate(ids, **how, output_attentions=True, return_dict_in_generate=True)
    assert len(cap.cross) == 2
    for layer, att in enumerate(cap.cross):
        for sample in range(2):
            rows = [sample] * 5 if beams == 1 else out.beam_indices[sample, :5].tolist()  # from which each word came
            wanted = torch.cat([step[layer][row] for step, row in zip(out.cross_attentions, rows, strict=True)], 1)
            found = torch.stack([att.block(batch=sample, head=head) for head in range(4)])
            assert_close(found, wanted)


@pytest.mark.parametrize(("samples", "positions"), [(2, 5), (4, 4), (5, 3)])
@pytest.mark.parametrize("order", ["samples", "inside", "ids"])
def test_an_effect_is_of_the_position_it_names_or_refused(order: str, samples: int, positions: int) -> None:
    torch.manual_seed(0)
    model, ids = SmallModel(order).eval(), torch.randint(0, WORDS, (samples, positions))
    given = ids.T if order == "ids" else ids
    with torch.no_grad(), intervene(model, {(0, 1): "zero"}) as run:
        model(given)
    if order == "ids" or (order == "inside" and samples == positions):
        for ask in (
            lambda: effect(model, given, {(0, 1): "zero"}, target=3, batch=1),
            lambda: run.effect(target=3, batch=1),
        ):
            with pytest.raises(ValueError, match="positions before samples"):
                ask()
        if order == "ids":
            with pytest.raises(ValueError, match="positions before samples"):
                sweep(model, given, target=3, batch=1)
        return
    with torch.no_grad():
        wanted = model(given).log_softmax(-1)[1, -1, 3]
    for found in (effect(model, given, {(0, 1): "zero"}, target=3, batch=1), run.effect(target=3, batch=1)):
        assert found.before == pytest.approx(float(wanted), abs=1e-5)


@pytest.mark.parametrize("order", ["inside", "ids"])
def test_that_a_square_has_no_names_is_said_with_the_way_on(order: str) -> None:
    torch.manual_seed(0)
    model, ids = SmallModel(order).eval(), torch.randint(0, WORDS, (4, 4))

    def run_twice() -> Capture:
        with torch.no_grad(), capture(model) as cap:
            model(ids)
            model(ids)
        return cap

    with pytest.warns(UserWarning, match=r"'attend' have no names.*\(4\).*tokens=\[\[") as told:
        cap = run_twice()
    assert len(told) == 1
    assert cap[0].tokens is None
    words = [[f"{b}{i}" for i in range(4)] for b in range(4)]
    assert cap[0].widget(tokens=words).tokens == words


@pytest.mark.parametrize(("order", "samples"), [("samples", 4), ("inside", 3), ("vectors", 4)])
def test_nothing_is_said_where_names_are_known_or_nothing_was_read(order: str, samples: int) -> None:
    torch.manual_seed(0)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        if order == "vectors":
            layer = nn.MultiheadAttention(SIZE, HEADS).eval()
            with capture(layer) as cap:
                layer(*[torch.randn(samples, 4, SIZE)] * 3, need_weights=False)
            assert cap.tokens is None
        else:
            ids = torch.randint(0, WORDS, (samples, 4))
            with capture(model := SmallModel(order).eval()) as cap:
                model(ids)
            assert cap.tokens == ids.tolist()
