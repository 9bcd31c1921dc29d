"""What people give a widget first: it works where it is plain what is meant, else it gets the line to write."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn

from attnwidget import Attention, AttentionStack, AttentionWidget, capture, compare, scaled_dot_product_attention

WORDS = ["the", "bank", "lent", "money", "to", "her"]
N = len(WORDS)


@pytest.fixture
def weights() -> Tensor:
    return torch.randn(2, 4, N, N).softmax(-1)


@pytest.fixture
def qkv() -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = torch.randn(3, 2, 4, N, 8)
    return q, k, v


class Output(OrderedDict[str, Any]):
    """A model's output as transformers has it: a dict whose items are attributes too."""

    def __init__(self, **fields: Any) -> None:
        super().__init__({name: value for name, value in fields.items() if value is not None})
        self.__dict__.update(fields)


def tokenizer() -> Tokenizer:
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate([*WORDS, "[PAD]"])}, unk_token="[PAD]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.enable_padding()
    return made


def batch_encoding(*texts: str, tensors: str | None = None) -> Any:
    transformers = pytest.importorskip("transformers")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer(), pad_token="[PAD]", unk_token="[PAD]")
    return fast(texts[0] if len(texts) == 1 else list(texts), padding=True, return_tensors=tensors)


def tokens_of(widget: AttentionWidget) -> list[str]:
    found = widget._tokens_of("query")
    assert found is not None
    return found


# What works.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(N, N), (2, N, N), (2, 4, N, N), (3, 2, 4, N, N), (1, 1, 8, 5000)])
def test_weights_alone_are_shown_as_they_are(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    given = torch.randn(shape).mul(3).softmax(-1).to(dtype)
    shown = AttentionWidget(given)
    first = given if len(shape) < 5 else given[0]
    assert torch.equal(shown.weights(2), first.reshape(-1, *shape[-2:])[0, 2].to(shown.weights(2).dtype))


def test_weights_of_every_layer_are_shown_with_tokens_by_position(weights: Tensor) -> None:
    for shown in (
        AttentionWidget((weights, weights, weights), WORDS, layer=2),
        AttentionWidget([weights.numpy()] * 3, [WORDS, WORDS], layer=2),
        AttentionWidget.from_weights((weights, weights, weights), WORDS, layer=2),
        AttentionWidget((weights, weights, weights), np.array(WORDS), layer=2),
    ):
        assert repr(shown).startswith("AttentionWidget(layer 2 of 3, ")
        assert tokens_of(shown) == WORDS


def test_rows_that_may_attend_to_nothing_are_weights_too() -> None:
    given = torch.tensor([[0.0, 0.0], [0.25, 0.75]])
    assert AttentionWidget(given).weights(1).tolist() == [0.25, 0.75]


def test_what_a_model_returned_is_shown(weights: Tensor) -> None:
    output = Output(last_hidden_state=torch.randn(2, N, 8), attentions=(weights, weights), cross_attentions=None)
    for shown in (AttentionWidget(output), AttentionWidget(output, WORDS), AttentionWidget.from_weights(output, WORDS)):
        assert len(shown.attention) == 2  # type: ignore[arg-type]
        assert shown.stacks == ("",)


def test_an_encoder_decoder_is_shown_as_three_stacks_by_name() -> None:
    encoder, decoder, cross = (torch.randn(1, 2, q, k).softmax(-1) for q, k in ((N, N), (3, 3), (3, N)))
    output = Output(encoder_attentions=(encoder,) * 2, decoder_attentions=(decoder,), cross_attentions=(cross,))
    shown = AttentionWidget(output, tokens={"encoder": WORDS, "decoder": ["a", "b", "c"]})
    assert shown.stacks == ("encoder", "decoder", "decoder, cross-attention")
    assert tokens_of(shown) == WORDS
    shown.stack = "decoder, cross-attention"
    assert torch.equal(shown.weights(1), cross[0, 0, 1])


def test_a_model_of_two_towers_is_shown_as_two_stacks(weights: Tensor) -> None:
    text, vision = Output(attentions=(weights,)), Output(attentions=(weights, weights))
    assert AttentionWidget(Output(text_model_output=text, vision_model_output=vision)).stacks == ("text", "vision")


@pytest.mark.thorough
def test_the_stacks_of_bart_are_called_as_a_capture_calls_them() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {f"{part}_{what}": 2 for part in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    config = transformers.BartConfig(
        vocab_size=50, d_model=16, max_position_embeddings=32, encoder_ffn_dim=16, decoder_ffn_dim=16, **sizes
    )
    model = transformers.BartModel._from_config(config, attn_implementation="eager").eval()
    inputs = {"input_ids": torch.arange(3, 10)[None], "decoder_input_ids": torch.arange(3, 8)[None]}
    with torch.no_grad(), capture(model) as cap:
        output = model(**inputs, output_attentions=True)
    assert AttentionWidget(output).stacks == cap.widget().stacks


def test_an_attention_or_a_stack_is_shown(qkv: Any) -> None:
    att = Attention(*qkv, is_causal=True)
    assert AttentionWidget(att, WORDS).attention is att
    stack = AttentionStack([att, att])
    assert AttentionWidget(stack).attention is stack


def test_other_weights_can_be_put_in_their_place(weights: Tensor, qkv: Any) -> None:
    shown = AttentionWidget(*qkv, is_causal=True)
    shown.update(weights)
    assert torch.equal(shown.weights(3), weights[0, 0, 3])
    with pytest.raises(TypeError, match="update takes tensors at the same places, not tokens"):
        shown.update(weights, WORDS)  # type: ignore[arg-type]


# What a tokenizer returned.


@pytest.mark.parametrize("tensors", [None, "pt"])
def test_a_batch_encoding_is_read(qkv: Any, tensors: str | None) -> None:
    both = batch_encoding("the bank lent money to her", "money lent", tensors=tensors)
    shown = AttentionWidget(*qkv, tokens=both)
    assert tokens_of(shown) == WORDS
    shown.batch = 1
    assert tokens_of(shown) == ["money", "lent", "[PAD]", "[PAD]", "[PAD]", "[PAD]"]
    shown.tokens = batch_encoding("her the to the lent the")
    assert tokens_of(shown) == ["her", "the", "to", "the", "lent", "the"]


def test_an_encoding_of_tokenizers_is_read(qkv: Any, weights: Tensor) -> None:
    one, several = tokenizer().encode("the bank lent money to her"), tokenizer().encode_batch(["her to", "the " * 6])
    assert tokens_of(AttentionWidget(*qkv, tokens=one)) == WORDS
    assert tokens_of(AttentionWidget(weights, several, batch=1)) == ["the"] * N


def test_an_encoding_is_of_all_stacks_and_sides_and_not_a_mapping_by_name(qkv: Any) -> None:
    q, k, _ = qkv
    both = batch_encoding("the bank lent money to her")
    assert tokens_of(AttentionWidget.from_attention({"a": Attention(q, k), "b": Attention(q, k)}, tokens=both)) == WORDS
    assert tokens_of(compare(Attention(q, k), Attention(q, k), tokens=both)) == WORDS


def test_ids_alone_still_ask_for_their_tokenizer(weights: Tensor) -> None:
    with pytest.raises(TypeError, match="write tokens=encoding, tokenizer=tokenizer"):
        AttentionWidget(weights, tokens={"input_ids": [list(range(N))] * 2})
    ids = torch.arange(N)
    assert tokens_of(AttentionWidget(weights, ids, tokenizer=tokenizer())) == WORDS


# What is refused.


class Model(nn.Module):
    pass


Q = torch.randn(4, 8)
LINES = {
    "scores": (torch.randn(4, 4), r"number is -.*, below 0; give AttentionWidget\(q, k, v\) .*Widget.from_scores"),
    "positive": (torch.rand(4, 4) + 1, r"row 0 sums to .* AttentionWidget.from_weights\(weights\) for weights as they"),
    "not a number": (torch.full((4, 4), torch.nan), r"it holds NaN; .* AttentionWidget.from_weights\(weights\) for"),
    "none of one layer": ((torch.ones(1, 1), None), r"None at layer 1 of 2: .*\[one for one in weights if one is not"),
    "scores of layers": ([torch.randn(4, 4) - 9] * 2, r"Stack\(\[Attention.from_scores\(one\) for one in scores"),
    "integers": (torch.ones(4, 4, dtype=torch.int64), "it holds int64, not floating point"),
    "a row": (torch.ones(1), r"its shape is \(1,\), not \(queries, keys\)"),
    "all three": ((Q, Q, Q), r"AttentionWidget\(\*qkv\)"),
    "a tuple of outputs": ((Q, (Q, Q)), r"return_dict=False give outputs\[-1\]"),
    "nothing": (None, "attn_implementation='eager'"),
    "none of each layer": ((None, None), r"capture\(model\)"),
    "an empty tuple": ((), r"capture\(model\)"),
    "a model": (Model(), r"Model is a model, .*: with capture\(model, tokenizer=tokenizer\) as cap: model"),
    "a class": (Model, "Model is a model"),
    "a name": ("gpt2", r"from_pretrained\('gpt2'\); with capture\(model"),
    "inputs": ({"input_ids": torch.ones(1, 4)}, r"holds inputs of a model, not attention: with capture\(model"),
    "a capture": (capture(Model()), r"call its widget\(\), such as cap.widget\(\)"),
    "a dict": ({"a": Attention(Q, Q)}, r"AttentionWidget.from_attention\(\{'encoder': "),
    "no weights": (Output(logits=Q, attentions=None), r"no weights in attentions .* with capture\(model"),
    "no weights of each layer": (Output(attentions=(None, None)), "attn_implementation='eager'"),
    "no weights of each token": (Output(attentions=((), ())), "output_attentions=True"),
    "lists": ([[0.5, 0.5], [1.0, 0.0]], "is a list: give a torch tensor or a numpy array"),
}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
def test_what_is_not_plainly_weights_gets_the_line_to_write(name: str) -> None:
    given, line = LINES[name]
    for call in (lambda: AttentionWidget(given), lambda: AttentionWidget(given, ["a", "b", "c", "d"])):
        with pytest.raises((TypeError, ValueError), match=line):
            call()


def test_lists_a_tokenizer_and_a_cut_text_are_named_with_what_to_write(qkv: Any) -> None:
    q, k, _ = qkv
    with pytest.raises(TypeError, match=r"^q is a list whose first item is a list: .* such as torch.tensor\(q\)"):
        AttentionWidget([[1.0, 0.0]], [[1.0, 0.0]])
    assert repr(AttentionWidget(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0]])))  # as advised
    with pytest.raises(TypeError, match=r"tokens is a tokenizer, .*: give it as tokenizer=, and the text's ids"):
        AttentionWidget(q, k, tokens=tokenizer())
    with pytest.raises(TypeError, match="tokens is one string 'the bank lent money…'"):
        AttentionWidget(q, k, tokens="the bank lent money to her")


@pytest.mark.parametrize("name", ["a model", "a name", "a capture", "a dict", "no weights", "nothing", "inputs"])
def test_what_is_no_weights_gets_the_line_where_weights_were_asked_for(name: str) -> None:
    given, line = LINES[name]
    with pytest.raises(TypeError, match=line):
        AttentionWidget.from_weights(given)


def test_a_row_that_is_off_by_more_than_rounding_is_not_plainly_weights() -> None:
    given = torch.randn(3, 7, 9).softmax(-1)
    assert torch.equal(AttentionWidget(given, batch=2).weights(5), given[2, 5])
    given[2, 5] *= 1.02
    with pytest.raises(ValueError, match="row 5 sums to 1"):
        AttentionWidget(given)
    assert torch.equal(AttentionWidget.from_weights(given, batch=2).weights(5), given[2, 5])


def test_rules_beside_weights_are_refused(weights: Tensor, qkv: Any) -> None:
    with pytest.raises(TypeError, match=r"is_causal is given with weights, .*: leave it out"):
        AttentionWidget(weights, is_causal=True)
    with pytest.raises(TypeError, match="scale is given with an attention"):
        AttentionWidget(Attention(*qkv), scale=2.0)
    assert AttentionWidget(weights[0], dims="hqk").attention.shape.H == 4  # type: ignore[union-attr]


def test_weights_and_values_without_their_name_are_told_apart_from_q_and_k(weights: Tensor) -> None:
    with pytest.raises(ValueError, match=r"the rows of q sum to 1, .* AttentionWidget.from_weights\(q, v\)"):
        AttentionWidget(weights, torch.randn(2, 4, N, 8))


def test_queries_that_only_sum_to_1_are_not_taken_for_weights() -> None:
    q, mask = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]), torch.tril(torch.ones(3, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="mask_means=") as refused:  # 3 keys, and rows of 2 numbers
        AttentionWidget(q, torch.randn(3, 2), torch.randn(3, 2), mask=mask)
    assert "from_weights" not in str(refused.value)


def test_tokens_that_are_given_twice_are_refused(weights: Tensor) -> None:
    with pytest.raises(TypeError, match="tokens are given twice"):
        AttentionWidget(weights, WORDS, tokens=WORDS)
    with pytest.raises(TypeError, match="tokens are given twice"):
        AttentionWidget.from_weights(weights, WORDS, tokens=WORDS)


def test_integers_for_q_and_k_are_still_refused_as_such() -> None:
    with pytest.raises(TypeError, match="q holds int64: attention needs floating point"):
        AttentionWidget(torch.ones(4, 4, dtype=torch.int64), torch.ones(4, 4, dtype=torch.int64))


# Keywords of other libraries.


@pytest.mark.parametrize(
    ("keyword", "line"),
    [
        ("attention_mask", 'write mask=attention_mask, mask_means="keep"'),
        ("key_padding_mask", 'write mask=key_padding_mask, mask_means="hide"'),
        ("attn_mask", "write mask=attn_mask, if it is of scaled_dot_product_attention, where True may attend"),
        ("softmax_scale", "write scale=softmax_scale"),
        ("sliding_window", "write window=sliding_window"),
    ],
)
def test_a_keyword_of_another_library_gets_the_one_to_write(qkv: Any, keyword: str, line: str) -> None:
    other: dict[str, Any] = {keyword: torch.ones(2, N)}
    for call in (AttentionWidget, Attention, scaled_dot_product_attention):
        with pytest.raises(TypeError, match=f"no keyword is called {keyword!r}: {line}"):
            call(*qkv, **other)


def test_the_line_for_a_mask_of_transformers_works(qkv: Any) -> None:
    keep = torch.tensor([[1] * N, [1, 1, 0, 0, 0, 0]])
    shown = AttentionWidget(*qkv, mask=keep, mask_means="keep", batch=1)
    assert shown.weights(0)[2:].tolist() == [0] * 4


def test_keywords_of_other_viewers_are_told_where_there_are_tokens(weights: Tensor) -> None:
    with pytest.raises(TypeError, match=r"write AttentionWidget.from_weights\(attention, tokens=tokens\)"):
        AttentionWidget(weights, attention=weights)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="write tokens=labels"):
        AttentionWidget(weights, labels=WORDS)  # type: ignore[call-arg]
