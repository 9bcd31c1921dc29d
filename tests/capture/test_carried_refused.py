"""What weights carry is refused with the reason wherever it would be wrong, and said by `cap.output_path`."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from captured import COMMON, DECODERS, GPT2, TEXT, Kind, batch, build, transformers
from tolerance import rounding
from torch import Tensor, nn
from torch.testing import assert_close

from attnwidget import Attention, Capture, capture

IDS = {"input_ids": batch()["input_ids"]}


def captured(model: nn.Module, **how: Any) -> Capture:
    with torch.no_grad():
        return capture(model, **how).run(**IDS)


def why(att: Attention, stage: str) -> str:
    with pytest.raises(ValueError, match=f"{stage} is not known") as error:
        att.block(stage)
    return str(error.value)


def test_it_is_said_which_modules_were_found() -> None:
    cap = captured(build(GPT2, "sdpa"))
    path = cap.output_path
    assert path.projections["transformer.h.0.attn"] == "transformer.h.0.attn.c_proj"
    assert (path.norm, path.unembedding) == ("transformer.ln_f (LayerNorm)", "transformer.wte.weight")
    told = str(path).split("\n")
    assert told[0] == "transformer.h.0.attn → transformer.h.0.attn.c_proj"
    assert told[2] == "final norm: transformer.ln_f (LayerNorm); unembedding: transformer.wte.weight"
    assert told[3].startswith("no saliency of transformer.h.0.attn and 1 more: no gradient came back to it")
    assert captured(build(DECODERS["Llama"], "sdpa")).output_path.norm == "model.norm (RMSNorm)"


def test_a_layer_between_is_no_direct_path() -> None:
    config = transformers.BertConfig(**COMMON, **TEXT, is_decoder=False)
    cap = captured(build(Kind(transformers.BertForMaskedLM, config), "sdpa"))
    assert cap.output_path.projections == {
        f"bert.encoder.layer.{i}.attention.self": f"bert.encoder.layer.{i}.attention.output.dense" for i in range(2)
    }
    assert "does not reach the final norm by additions and norms alone" in why(cap.attention[0], "logit")
    assert cap.attention[0].block("value_norm").isfinite().all()


def test_a_model_without_logits_has_none() -> None:
    model = build(GPT2, "sdpa").transformer
    cap = captured(model)
    assert "the model gave no logits" in why(cap.attention[0], "logit") or "one linear map" in why(
        cap.attention[0], "logit"
    )
    with pytest.raises(ValueError, match="no unembedding is known, so no token can be chosen"):
        cap.target = 3


H, D, DV, E = 5, 3, 7, 16


class Own(nn.Module):
    """Attention of one's own, whose outputs go through something before they are projected."""

    def __init__(self, between: Any = None, beside: bool = False, after: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.qkv, self.out = nn.Embedding(50, E), nn.Linear(E, H * (2 * D + DV)), nn.Linear(H * DV, E)
        self.between, self.beside, self.after = between, nn.Linear(H * DV, E) if beside else None, after
        self.norm, self.head = nn.LayerNorm(E), nn.Linear(E, 50, bias=False)

    def heads(self, x: Tensor) -> Tensor:
        """What the heads give, side by side."""
        parts = self.qkv(x).split([H * D, H * D, H * DV], -1)
        q, k, v = (y.unflatten(-1, (H, -1)).transpose(1, 2) for y in parts)
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        y = self.heads(x)
        y = y if self.between is None else self.between(y)
        added = self.out(y) if self.beside is None else self.out(y) + self.beside(y)
        logits = self.head(self.norm(x + added))
        return logits if self.after is None else self.after(logits)


class Doubling(nn.Linear):
    """A linear map that does more than its weight says."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_a_model_of_ones_own_is_followed() -> None:
    cap = captured(Own())
    assert cap.attention[0].stages[-2:] == ("value_norm", "logit")
    assert str(cap.output_path).startswith("Own → out\nfinal norm: norm (LayerNorm); unembedding: head.weight")


def test_logits_that_are_a_product_are_read_as_those_of_a_module() -> None:
    class Tied(Own):
        def forward(self, input_ids: Tensor) -> Tensor:
            x = self.embed(input_ids)
            return self.norm(x + self.out(self.heads(x))) @ self.head.weight.T  # type: ignore[no-any-return]

    one, other = captured(Own()), captured(Tied())
    assert str(other.output_path).split("\n")[1] == str(one.output_path).split("\n")[1]
    found, wanted = (x.attention[0].with_target(4).block("logit", batch=1, head=3) for x in (other, one))
    assert_close(found, wanted)


def test_a_softcap_on_logits_is_said_and_read_before() -> None:
    plain, cap = captured(Own()), captured(Own(after=lambda x: 3.0 * torch.tanh(x / 3.0)))
    assert "a softcap follows: the stage logit is the logit before the cap" in str(cap.output_path)
    assert torch.equal(*(x.attention[0].with_target(4).block("logit") for x in (plain, cap)))
    half = captured(Own(after=lambda x: x / 2))
    assert "logits are multiplied by 0.5" in str(half.output_path)
    found, wanted = (x.attention[0].with_target(4).block("logit") for x in (half, plain))
    assert_close(2 * found, wanted)


def test_a_gate_between_is_refused() -> None:
    told = why(captured(Own(between=torch.sigmoid)).attention[0], "value_norm")
    assert "no module was found that reads the outputs of the heads directly" in told


class TwoWays(Own):
    """What attention adds reaches the final norm by itself and through a norm, which is no sum of one direction."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.again, self.other = again, nn.LayerNorm(E)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        added = self.out(self.heads(x))
        x = x + self.other(added) + added
        return self.head(self.norm(x + added if self.again else x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("again", [False, True])
def test_two_ways_that_are_no_sum_are_refused(again: bool) -> None:
    assert "does not reach the final norm by additions and norms alone" in why(
        captured(TwoWays(again)).attention[0], "logit"
    )


class Changed(Own):
    """What attention adds goes through something on its way into the residual stream."""

    def __init__(self, change: Callable[[Tensor, Tensor, bool], Tensor]) -> None:
        super().__init__()
        self.change = change

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        added = self.out(self.heads(x))
        return self.head(self.norm(x + self.change(added, x, self.training)))  # type: ignore[no-any-return]


Change = Callable[[Tensor, Tensor, bool], Tensor]


def with_first_at_zero(added: Tensor, x: Tensor, training: bool) -> Tensor:
    added[:, 0] = 0
    return added


ENDS: dict[str, Change] = {
    "a gate": lambda added, x, training: added * x.sigmoid(),
    "a gate before it": lambda added, x, training: x.sigmoid() * added,
    "a number for each feature": lambda added, x, training: added * torch.linspace(0.5, 2, E),
    "a division": lambda added, x, training: added / (1 + x.square()),
    "a division without a rest": lambda added, x, training: torch.div(added, 0.01, rounding_mode="floor"),
    "an addition of a part": lambda added, x, training: torch.add(added, added, alpha=0.5),
    "a change in place": lambda added, x, training: added.relu_(),
    "an entry that is set": with_first_at_zero,
    "a bend": lambda added, x, training: added.tanh(),
    "dropout": lambda added, x, training: nn.functional.dropout(added, 0.5, training),
}
STAYS: dict[str, tuple[Change, float]] = {
    "dropout that is off": (lambda added, x, training: nn.functional.dropout(added, 0.5, training), 1.0),
    "a number": (lambda added, x, training: added * 0.5, 0.5),
    "a negative number before it": (lambda added, x, training: -0.5 * added, -0.5),
    "a number in a tensor": (lambda added, x, training: torch.tensor(0.5) * added, 0.5),
    "a number in place": (lambda added, x, training: added.mul_(0.5), 0.5),
    "a division": (lambda added, x, training: added / 4, 0.25),
    "a division in place": (lambda added, x, training: added.div_(4), 0.25),
    "several": (lambda added, x, training: torch.mul(torch.div(added, 2), 3), 1.5),
    "a sum with itself": (lambda added, x, training: added + added * 0.5, 1.5),
    "another shape": (lambda added, x, training: added.flatten(0, 1).double().view(added.shape).float(), 1.0),
}


@pytest.mark.parametrize("name", ENDS)
def test_what_changes_the_sum_on_its_way_leaves_no_logit(name: str) -> None:
    att = captured(Changed(ENDS[name]).train(name == "dropout")).attention[0]
    assert "does not reach the final norm by additions and norms alone" in why(att, "logit")
    assert att.block("value_norm").isfinite().all()


@pytest.mark.parametrize("name", STAYS)
def test_what_changes_no_number_or_all_alike_is_followed(name: str) -> None:
    change, factor = STAYS[name]
    att, plain = (captured(model.eval()).attention[0] for model in (Changed(change), Changed(lambda y, *_: y)))
    for found, own in zip(heads_of(att), heads_of(plain), strict=True):
        assert_close(found[0], factor * own[0] * own[1] / found[1], rtol=1e-4, atol=1e-6)


def heads_of(att: Attention) -> list[tuple[Tensor, Tensor]]:
    """Of each head the logits of token 4, and what the final norm divides by at each query."""
    assert att.carries is not None
    scale = att.carries.scale
    assert scale is not None
    return [(att.with_target(4).block("logit", head=head), scale[0][:, None]) for head in range(att.shape.H)]


def test_an_adapter_beside_the_projection_is_refused() -> None:
    told = why(captured(Own(beside=True)).attention[0], "value_norm")
    assert "out and beside both read the outputs of the heads, as with an adapter" in told


def test_a_projection_that_does_more_than_its_weight_is_refused() -> None:
    model = Own()
    model.out = Doubling(H * DV, E)
    assert "out reads the outputs of the heads, but its output is not these times its weight" in why(
        captured(model).attention[0], "value_norm"
    )


def test_training_after_the_capture_is_noticed() -> None:
    model = build(GPT2, "sdpa")
    cap = captured(model)
    att = cap.attention[0]
    att.block("logit")
    with torch.no_grad():
        model.transformer.ln_f.weight.add_(0.5)
    assert "final norm or the unembedding were changed after the capture" in why(att, "logit")
    other = captured(model).attention[0]
    with torch.no_grad():
        model.transformer.wte.weight.mul_(2)
    assert "final norm or the unembedding were changed after the capture" in why(other, "logit")
    with torch.no_grad():
        model.transformer.h[0].attn.c_proj.weight.mul_(2)
    assert "one of its tensors was changed in place" in why(att, "value_norm")
    assert cap.attention[1].block("value_norm").isfinite().all()


def test_dropout_is_refused() -> None:
    config = transformers.GPT2Config(**GPT2.config.to_diff_dict() | {"attn_pdrop": 0.5})
    model = build(Kind(GPT2.model, config), "sdpa").train()
    with capture(model, gradients=True) as cap:
        model(**IDS).logits.sum().backward()
    for stage in ("value_norm", "saliency"):
        assert "dropout" in why(cap.attention[0], stage) or "dropped" in why(cap.attention[0], stage)


def test_generated_text_and_beams_carry_what_the_whole_text_does() -> None:
    model = build(DECODERS["Llama"], "sdpa")
    for how in ({}, {"num_beams": 3}):
        with torch.no_grad(), capture(model) as cap:
            text = model.generate(**IDS, max_new_tokens=5, min_new_tokens=5, do_sample=False, pad_token_id=0, **how)
        with torch.no_grad():
            whole = capture(model).run(input_ids=text[:, :-1])
        for one, other in zip(cap.attention, whole.attention, strict=True):
            assert one.shape == other.shape
            for stage in ("value_norm", "logit"):
                found, wanted = (x.with_target(9).block(stage, batch=1, head=3) for x in (one, other))
                assert_close(found, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))


def test_some_heads_and_queries_carry_their_own() -> None:
    model = build(DECODERS["Llama"], "sdpa")
    whole = captured(model).attention[1]
    part = captured(model, heads=[3], queries=slice(-4, None)).attention[1]
    for stage in ("value_norm", "logit"):
        assert_close(part.block(stage), whole.block(stage, head=3)[-4:], rtol=1e-5, atol=1e-7)


def test_some_heads_and_queries_have_their_own_gradients() -> None:
    model = build(DECODERS["Llama"], "sdpa")
    found = []
    for how in ({}, {"heads": [3, 0], "queries": slice(-5, -1)}):
        cap = capture(model, gradients=True, **how).run(**IDS)
        cap.backward(target=7, at=-2)
        found.append(cap.attention[0])
    whole, part = found
    assert part.part is not None
    assert part.part.heads is not None
    for number, head in enumerate(part.part.heads):
        for sample in range(2):
            wanted = whole.block("saliency", batch=sample, head=head)[-5:-1]
            assert_close(part.block("saliency", batch=sample, head=number), wanted, rtol=1e-5, atol=1e-7)
            assert wanted.abs().amax(-1).min() > 0


def test_a_target_is_chosen_for_all_layers_or_one() -> None:
    model = build(GPT2, "sdpa")
    cap = captured(model)
    with torch.no_grad():
        likely = model(**IDS).logits[:, -1].argmax(-1).tolist()
    first = cap.attention[0]
    assert list(first.carries.targets) == likely
    cap.target = 7
    assert cap.target == 7
    assert all(att.carries.targets == (7, 7) for att in cap.attention)
    assert torch.equal(cap.attention[0].block("logit"), first.with_target(7).block("logit"))
    each = first.with_target([7, 9])
    assert torch.equal(each.block("logit", batch=1), first.with_target(9).block("logit", batch=1))
    cap.target = None
    assert list(cap.attention[0].carries.targets) == likely
    for wrong, error, told in (
        (50, IndexError, "token 50 is not there"),
        ("nail", ValueError, "there is no tokenizer: set cap.tokenizer"),
        (1.5, TypeError, "give a token's text, or its id"),
    ):
        with pytest.raises(error, match=told):
            cap.target = wrong
    with pytest.raises(ValueError, match="there are 3 tokens for 2 samples"):
        first.with_target([1, 2, 3])


def test_padding_has_no_most_likely_token() -> None:
    model, inputs = build(GPT2, "sdpa"), batch("right")
    with torch.no_grad():
        cap = capture(model).run(**inputs)
        logits = model(**inputs).logits
    wanted = (int(logits[0, -1].argmax()), int(logits[1, 6].argmax()))
    assert cap.attention[0].carries.targets == wanted


def test_a_file_keeps_the_stages_and_no_other_token(tmp_path: Path) -> None:
    model = build(DECODERS["Llama"], "sdpa")
    cap = capture(model, gradients=True).run(**IDS)
    cap.backward(target=5)
    cap.target = 7
    cap.save(tmp_path / "one.safetensors")
    loaded = Capture.load(tmp_path / "one.safetensors")
    for one, other in zip(cap.attention, loaded.attention, strict=True):
        assert one.stages == other.stages
        for stage in ("value_norm", "logit", "saliency"):
            found, wanted = (x.block(stage, batch=1, head=2) for x in (other, one))
            assert_close(found, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))
    with pytest.raises(ValueError, match="a file has only the logit of the token that was chosen when it was saved"):
        loaded.target = 9
    with pytest.raises(ValueError, match="a file has only the logit of the token"):
        loaded.attention[0].with_target(9)
    assert loaded.output_path.projections == cap.output_path.projections


def test_backward_is_that_of_the_logit() -> None:
    model = build(GPT2, "sdpa")
    one, other = (capture(model, gradients=True) for _ in range(2))
    one.run(**IDS).backward(target=5, at=4)
    other(**IDS).logits[:, 4, 5].sum().backward()
    for a, b in zip(one.attention, other.attention, strict=True):
        assert torch.equal(a.block("saliency"), b.block("saliency"))
        assert not bool(a.block("saliency")[5:].any())
    with pytest.raises(ValueError, match="there are no logits to run backwards from"):
        one.backward()
    with pytest.raises(ValueError, match="there are no logits to run backwards from"):
        captured(model).backward()
    with pytest.raises(IndexError, match="at 12 is not there"):
        capture(model, gradients=True).run(**IDS).backward(at=12)


def test_logits_are_let_go_with_the_first_backward_pass() -> None:
    model = build(GPT2, "sdpa")
    with capture(model, gradients=True) as cap:
        logits = model(**IDS).logits
    kept = weakref.ref(logits)
    logits[:, -1, 5].sum().backward(retain_graph=True)
    first = cap.attention[0].block("saliency")
    logits[:, -1, 7].sum().backward()
    assert not torch.equal(cap.attention[0].block("saliency"), first)  # it is of the last backward pass
    with pytest.raises(ValueError, match="there are no logits to run backwards from"):
        cap.backward()
    del logits
    gc.collect()
    assert kept() is None


def test_what_gradients_need_is_said() -> None:
    model = build(GPT2, "sdpa")
    for how, told in (
        ({"values": False}, "leave values=False out"),
        ({"keep": "overview"}, "leave keep='overview' out"),
    ):
        with pytest.raises(ValueError, match=told):
            capture(model, gradients=True, **how)
    with pytest.raises(TypeError, match="gradients is 1"):
        capture(model, gradients=1)
    assert "no gradient came back to it" in why(captured(model, gradients=True).attention[0], "saliency")


def test_a_model_that_is_captured_computes_the_same() -> None:
    model = build(GPT2, "sdpa")
    plain = model(**IDS).logits
    plain[:, -1, 3].sum().backward()
    before = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    with capture(model, gradients=True):
        logits = model(**IDS).logits
    logits[:, -1, 3].sum().backward()
    assert torch.equal(logits, plain)
    assert all(torch.equal(p.grad, before[name]) for name, p in model.named_parameters())


def test_multi_head_attention_and_its_slow_path() -> None:
    model, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(2, 5, 8)
    for need in (False, True):
        with capture(model, gradients=True) as cap:
            model(x, x, x, need_weights=need)[0].square().sum().backward()
        att = cap.attention[0]
        assert att.stages[-2:] == ("value_norm", "saliency")
        weights, written = att.block(head=1), att.v[0, 1] @ model.out_proj.weight.detach().mT[4:]
        assert_close(att.block("value_norm", head=1), weights * written.norm(dim=1), **rounding(att)["contribution"])


def test_a_text_that_a_tokenizer_does_not_know_is_no_target() -> None:
    class Words:
        """Knows two words; its unknown token is 0."""

        unk_token_id = 0

        def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
            return [{"nail": 1, "hook": 2}.get(word, 0) for word in text.split()]

        def convert_ids_to_tokens(self, one: int) -> str:
            return ("[UNK]", "nail", "hook")[one]

    cap = captured(build(GPT2, "sdpa"), tokenizer=Words())
    cap.target = "hook"
    assert cap.target == 2
    assert cap.attention[1].carries.targets == (2, 2)
    with pytest.raises(ValueError, match=r"which is 2 tokens, 'nail' \(1\), 'hook' \(2\): give one of them"):
        cap.target = "nail hook"
    for text in ("peg", "nail peg"):
        with pytest.raises(ValueError, match="which is not a token: give an id"):
            cap.target = text
    assert cap.target == 2
