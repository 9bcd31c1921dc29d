"""`effect`, `run.effect` and `sweep` against an eager copy of the model in float64 with its weights edited by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnwidget import Sweep, effect, intervene, results, sweep

transformers = pytest.importorskip("transformers")

LAYERS, HEADS, SIZE, VOCABULARY, LENGTH = 2, 4, 24, 97, 11
PAD = 0


def model_of(kind: str = "gpt2", **more: Any) -> Any:
    torch.manual_seed(0)
    if kind == "gpt2":
        config = transformers.GPT2Config(
            n_layer=LAYERS, n_head=HEADS, n_embd=SIZE, vocab_size=VOCABULARY, n_positions=32, bos_token_id=1,
            eos_token_id=1, initializer_range=0.3, **more,
        )  # fmt: skip
        return transformers.GPT2LMHeadModel(config).eval().double()
    sizes = {"vocab_size": VOCABULARY, "hidden_size": SIZE, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    sizes |= {"intermediate_size": 16, "initializer_range": 0.3, "max_position_embeddings": 32, "pad_token_id": PAD}
    if kind == "bert":
        return transformers.BertForMaskedLM(transformers.BertConfig(**sizes, **more)).eval().double()
    if kind == "sentence":
        return transformers.BertModel(transformers.BertConfig(**sizes, **more)).eval().double()
    if kind == "llama":
        config = transformers.LlamaConfig(**sizes, num_key_value_heads=2, bos_token_id=1, eos_token_id=1, **more)
        return transformers.LlamaForCausalLM(config).eval().double()
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=SIZE, d_kv=5, num_heads=HEADS, num_layers=LAYERS, d_ff=16,
        decoder_start_token_id=PAD, pad_token_id=PAD, eos_token_id=1, dropout_rate=0.0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config).eval().double()


def ids_of(batch: int = 1, length: int = LENGTH) -> Tensor:
    return torch.randint(2, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(1))


@contextmanager
def weights_changed(change: Callable[[int, Tensor], Tensor]) -> Iterator[None]:
    """Have eager attention go on with other weights: `change(number of the call, weights)`."""
    softmax, calls = nn.functional.softmax, [0]

    def changed(x: Tensor, *arguments: Any, **keywords: Any) -> Tensor:
        weights = softmax(x, *arguments, **{**keywords, "dtype": x.dtype})  # Llama's is in float32
        if weights.ndim != 4:
            return weights
        calls[0] += 1
        return change(calls[0] - 1, weights)

    nn.functional.softmax = changed
    try:
        yield
    finally:
        nn.functional.softmax = softmax


def eager(model: nn.Module) -> Any:
    other = copy.deepcopy(model).double()
    other.set_attn_implementation("eager")  # type: ignore[operator]
    return other


def without_head(layer: int, head: int) -> Callable[[int, Tensor], Tensor]:
    def change(number: int, weights: Tensor) -> Tensor:
        if number == layer:
            weights = weights.clone()
            weights[:, head] = 0
        return weights

    return change


def without_keys(keys: list[int], *, renormalize: bool = True) -> Callable[[int, Tensor], Tensor]:
    def change(number: int, weights: Tensor) -> Tensor:
        weights = weights.clone()
        weights[..., keys] = 0
        return weights / weights.sum(-1, keepdim=True).clamp_min(1e-300) if renormalize else weights

    return change


def spread_over(keys: list[int]) -> Callable[[int, Tensor], Tensor]:
    def change(number: int, weights: Tensor) -> Tensor:
        weights = weights.clone()
        for query in range(weights.shape[-2]):
            allowed = [key for key in keys if key <= query]
            if allowed:
                weights[..., query, allowed] = weights[..., query, allowed].mean(-1, keepdim=True)
        return weights

    return change


def log_probabilities(model: Any, inputs: dict[str, Tensor], change: Callable[[int, Tensor], Tensor]) -> Tensor:
    with torch.no_grad(), weights_changed(change):
        found: Tensor = eager(model)(**inputs).logits.double().log_softmax(-1)
    return found


def unchanged(number: int, weights: Tensor) -> Tensor:
    return weights


def assert_near(found: float | Tensor | None, expected: Tensor) -> None:
    """Compare numbers of two models in float64: torch's bounds of that dtype are far above their rounding."""
    assert found is not None
    torch.testing.assert_close(torch.as_tensor(found, dtype=torch.float64), expected, check_stride=False)


CASES: dict[str, tuple[Any, Callable[[int, Tensor], Tensor]]] = {
    "a head": ({(1, 2): "zero"}, without_head(1, 2)),
    "keys": ({"all": {"drop_keys": [2, 3, 4]}}, without_keys([2, 3, 4])),
    "weights of keys": (
        {"all": {"block": (None, [2, 3]), "renormalize": False}},
        without_keys([2, 3], renormalize=False),
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_it_is_that_of_the_same_edit_in_an_eager_model(kind: str, case: str) -> None:
    model, inputs = model_of(kind), {"input_ids": ids_of()}
    edits, change = CASES[case]
    plain, edited = log_probabilities(model, inputs, unchanged), log_probabilities(model, inputs, change)
    found = effect(model, inputs, edits)
    token = int(plain[0, -1].argmax())
    assert (found.token, found.at, found.target) == (token, LENGTH - 1, str(token))
    assert_near(found.before, plain[0, -1, token])
    assert_near(found.after, edited[0, -1, token])
    assert found.change == found.after - found.before
    kl = (plain[0].exp() * (plain[0] - edited[0])).sum(-1)
    assert found.kl is not None
    assert_near(found.kl, kl)
    moved = (edited[0, -1].exp() - plain[0, -1].exp()).abs().topk(10)
    assert [abs(one.change) for one in found.tokens] == pytest.approx(moved.values.tolist(), rel=1e-6)
    assert [(one.token, one.text) for one in found.tokens] == [(i, str(i)) for i in moved.indices.tolist()]
    first = int(moved.indices[0])
    assert_near(
        torch.tensor([found.tokens[0].before, found.tokens[0].after]),
        torch.stack([plain, edited])[:, 0, -1, first].exp(),
    )
    assert found.records()[0]["change"] == found.tokens[0].change
    assert isinstance(found, results.Effect)


@pytest.mark.parametrize("inside", [True, False])
def test_a_run_tells_its_own_effect(inside: bool) -> None:
    model, inputs = model_of(), {"input_ids": ids_of()}
    with intervene(model, {(1, 2): "zero"}) as run:
        output = model(**inputs)
        found = run.effect(target=5, at=3) if inside else None
        if inside:
            assert run.output is output
            assert torch.equal(model(**inputs).logits, output.logits), "the edits are made again"
    found = found or run.effect(target=5, at=3)
    expected = effect(model, inputs, {(1, 2): "zero"}, target=5, at=3)
    assert (found.before, found.after) == pytest.approx((expected.before, expected.after), rel=1e-9)
    assert (found.edits, found.at, found.token) == (expected.edits, 3, 5)
    assert "zero" in found.edits
    assert found.change != 0


def test_a_run_without_a_call_has_no_effect() -> None:
    with intervene(model_of(), {}) as run, pytest.raises(ValueError, match="has not run in the block"):
        run.effect()


# Positions.


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_last_position_is_that_of_the_text_and_not_of_the_padding(side: str) -> None:
    model, ids = model_of("llama"), ids_of(2)
    mask = torch.ones_like(ids)
    (mask[1, :3] if side == "left" else mask[1, -3:])[:] = 0
    ids = ids.where(mask == 1, PAD)
    found = effect(model, {"input_ids": ids, "attention_mask": mask}, {0: "zero"}, batch=1)
    last = LENGTH - 1 if side == "left" else LENGTH - 4
    assert found.at == last
    own = ids[1:, 3:] if side == "left" else ids[1:, :-3]
    alone = effect(model, own, {0: "zero"})
    assert (found.before, found.after) == pytest.approx((alone.before, alone.after), rel=1e-6)
    assert found.kl is not None
    assert found.kl.isnan().sum() == 3
    assert effect(model, {"input_ids": ids, "attention_mask": mask}, {0: "zero"}, batch=1, at=-2).at == last - 1


class Words:
    """A tokenizer of one word for each id, in which "bank s" is two."""

    mask_token_id = 4
    unk_token_id = 3

    def __init__(self) -> None:
        self.byte_decoder: dict[str, int] = {}  # its vocabulary is written in bytes
        self.words = [f"w{i}" for i in range(VOCABULARY)]
        self.words[5:8] = [" Paris", " bank", "s"]

    def convert_ids_to_tokens(self, one: int) -> str:
        return self.words[one].replace(" ", "Ġ")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        found = []
        while text:
            one = max((w for w in self.words if text.startswith(w)), key=len, default=None)
            found.append(3 if one is None else self.words.index(one))
            text = "" if one is None else text[len(one) :]
        return found


def test_a_masked_model_is_asked_at_its_mask() -> None:
    model, ids = model_of("bert"), ids_of()
    ids[ids == 4] = 9
    ids[0, 4] = 4
    found = effect(model, ids, {(1, 2): "zero"}, tokenizer=Words())
    assert found.at == 4
    with pytest.raises(ValueError, match="there is no tokenizer to identify it: give the position as at="):
        effect(model, ids, {(1, 2): "zero"})
    assert effect(model, ids, {(1, 2): "zero"}, at=4).before == found.before
    ids[0, 4] = 9
    with pytest.raises(ValueError, match="no token of the text is the mask"):
        effect(model, ids, {(1, 2): "zero"}, tokenizer=Words())


def test_an_encoder_and_decoder_is_asked_at_the_decoder() -> None:
    model, decoded = model_of("t5"), ids_of(1, 4)
    inputs = {"input_ids": ids_of(1, 9), "decoder_input_ids": decoded}
    found = effect(model, inputs, {0: {"drop_keys": [2, 3]}}, cross=True)
    assert found.at == 3
    assert found.change != 0
    records = sweep(model, inputs, over="heads", cross=True)
    assert [(one["layer"], one["head"]) for one in records] == [(i, h) for i in range(LAYERS) for h in range(HEADS)]
    assert "EncDecAttention" in records[0]["name"]
    keys = sweep(model, inputs, over="keys", cross=True, tokenizer=Words())
    assert [one["token"] for one in keys] == [Words().words[one] for one in inputs["input_ids"][0].tolist()]
    with pytest.raises(ValueError, match=r"several texts, layer 0 to 9 keys, layer 2 to 4 keys: say which are meant"):
        sweep(model, inputs, over="keys")
    assert len(sweep(model, inputs, over="keys", layers=[2, 3])) == 4


@pytest.mark.parametrize("at", [LENGTH, -LENGTH - 1])
def test_a_position_that_is_not_there_is_refused(at: int) -> None:
    with pytest.raises(IndexError, match="the output has the positions 0 to 10"):
        effect(model_of(), ids_of(), {0: "zero"}, at=at)


# Targets.


def test_a_target_is_a_token_by_its_text_or_its_id() -> None:
    model, ids = model_of(), ids_of()
    found = effect(model, ids, {0: "zero"}, target=" Paris", tokenizer=Words())
    assert (found.token, found.target) == (5, " Paris")
    assert found.before == effect(model, ids, {0: "zero"}, target=5).before
    assert found.text.endswith(Words().words[int(ids[0, -1])].strip())
    assert "change" in repr(found)
    assert "' Paris'" in repr(found)
    longer = effect(model, ids_of(1, 30), {0: "zero"}, tokenizer=Words(), at=28).text
    assert len(longer) == 60
    assert longer.startswith("…")
    assert longer.endswith(Words().words[int(ids_of(1, 30)[0, 28])].strip())


def test_a_text_of_several_tokens_is_refused_with_its_pieces() -> None:
    model, ids = model_of(), ids_of()
    with pytest.raises(
        ValueError, match=r"which is 2 tokens, ' bank' \(6\), 's' \(7\): give one of them, or first_piece"
    ):
        effect(model, ids, {0: "zero"}, target=" banks", tokenizer=Words())
    assert effect(model, ids, {0: "zero"}, target=" banks", tokenizer=Words(), first_piece=True).token == 6


@pytest.mark.parametrize(
    ("target", "more", "error", "match"),
    [
        (" Paris", {}, ValueError, "there is no tokenizer: give tokenizer="),
        ("?", {"tokenizer": Words()}, ValueError, "the tokenizer has no token for it"),
        (VOCABULARY, {}, IndexError, "there are 0 to 96"),
        (-1, {}, IndexError, "there are 0 to 96"),
        (1.5, {}, TypeError, "give a token's text, its id, None"),
        (True, {}, TypeError, "give a token's text, its id, None"),
        (lambda output: output.logits, {}, TypeError, "return one number"),
        (None, {"batch": 2}, IndexError, "batch 2 is not there"),
    ],
)
def test_what_is_no_target_is_refused(target: Any, more: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        effect(model_of(), ids_of(2), {0: "zero"}, target=target, **{"batch": 0, **more})


def test_several_samples_are_asked_one_by_one() -> None:
    model, ids = model_of(), ids_of(3)
    with pytest.raises(ValueError, match="inputs have 3 samples: say which, such as batch=0"):
        effect(model, ids, {0: "zero"})
    assert effect(model, ids, {0: "zero"}, batch=1).before == pytest.approx(effect(model, ids[1:2], {0: "zero"}).before)


def test_a_model_without_a_head_is_compared_by_a_function() -> None:
    model, ids = model_of("sentence"), ids_of(2)

    def cosine(output: Any) -> Tensor:
        one, other = output.last_hidden_state[:, 3]
        return nn.functional.cosine_similarity(one, other, dim=0)

    with pytest.raises(ValueError, match="has no logits of a next token: give the number to compare as target=lambda"):
        effect(model, {"input_ids": ids}, {0: "zero"}, batch=0)
    found = effect(model, {"input_ids": ids}, {(1, 2): "zero"}, target=cosine)
    with torch.no_grad():
        plain = cosine(model(input_ids=ids))
        with weights_changed(without_head(1, 2)):
            edited = cosine(eager(model)(input_ids=ids))
    assert_near(found.before, plain)
    assert_near(found.after, edited)
    assert (found.kl, found.tokens, found.token, found.at, found.target) == (None, (), None, None, "cosine")
    records = sweep(model, {"input_ids": ids}, target=cosine)
    assert len(records) == LAYERS * HEADS
    one = next(r for r in records if (r["layer"], r["head"]) == (1, 2))
    assert (one["after"], one["kl"], one["at"]) == (pytest.approx(found.after), None, None)


def test_hidden_states_are_not_taken_for_logits() -> None:
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.attend = nn.Embedding(9, 8), nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.embed(ids)
            found: Tensor = self.attend(x, x, x, need_weights=False)[0]
            return found

    with pytest.raises(ValueError, match="has no logits of a next token"):
        effect(Hidden().eval(), ids_of() % 9, {0: "zero"})


# What is refused before anything runs.


def test_a_model_in_training_is_refused() -> None:
    with pytest.raises(ValueError, match=r"training mode.*model\.eval\(\)"):
        effect(model_of().train(), ids_of(), {0: "zero"})


def test_a_cache_among_the_inputs_is_refused() -> None:
    model = model_of()
    cache = model(ids_of(), use_cache=True).past_key_values
    with pytest.raises(ValueError, match="inputs hold a cache, past_key_values"):
        effect(model, {"input_ids": ids_of(), "past_key_values": cache}, {0: "zero"})


@pytest.mark.parametrize("inputs", ["a text", ["two", "texts"]])
def test_a_text_needs_a_tokenizer(inputs: Any) -> None:
    with pytest.raises(ValueError, match="give its tokenizer too"):
        effect(model_of(), inputs, {0: "zero"})


class Encodes:
    """A tokenizer that has no more than `encode`, as one of the package tokenizers."""

    def encode(self, text: str) -> SimpleNamespace:
        return SimpleNamespace(ids=[int(one) for one in text.split()])

    def id_to_token(self, one: int) -> str:
        return f"{one} "


class Calls(Encodes):
    """One that is called, and pads several texts."""

    def __call__(self, texts: Any, return_tensors: str, padding: bool = False) -> dict[str, Tensor]:
        found = [self.encode(one).ids for one in ([texts] if isinstance(texts, str) else texts)]
        most = max(map(len, found))
        assert padding or all(len(one) == most for one in found)
        mask = [[1] * len(one) + [0] * (most - len(one)) for one in found]
        padded = [one + [PAD] * (most - len(one)) for one in found]
        return {"input_ids": torch.tensor(padded), "attention_mask": torch.tensor(mask)}


def test_inputs_are_given_in_many_ways() -> None:
    model, ids = model_of(), ids_of()
    text = " ".join(map(str, ids[0].tolist()))
    wanted = effect(model, ids, {(1, 2): "zero"})
    ways: list[tuple[Any, dict[str, Any]]] = [
        (lambda: model(ids), {}),
        (ids[0], {}),
        (ids[0].tolist(), {}),
        ((ids,), {}),
        ({"input_ids": ids}, {}),
        (text, {"tokenizer": Encodes()}),
        (text, {"tokenizer": Calls()}),
        ([text], {"tokenizer": Calls()}),
        (["2 3", text, "4"], {"tokenizer": Calls(), "batch": 1}),
    ]
    for inputs, how in ways:
        found = effect(model, inputs, {(1, 2): "zero"}, **how)
        assert (found.at, found.token) == (wanted.at, wanted.token)
        assert (found.before, found.after) == pytest.approx((wanted.before, wanted.after), rel=1e-9)
    pipeline = SimpleNamespace(model=model, tokenizer=Calls())
    assert effect(pipeline, text, {(1, 2): "zero"}).before == pytest.approx(wanted.before, rel=1e-9)
    assert sweep(pipeline, text, over="layers", target=7)[1]["before"] == pytest.approx(
        effect(model, ids, {1: "zero"}, target=7).before, rel=1e-9
    )
    with pytest.raises(ValueError, match="inputs are 2 texts: this tokenizer takes one"):
        effect(model, [text, text], {0: "zero"}, tokenizer=Encodes())
    with pytest.raises(TypeError, match="inputs are"):
        effect(model, {1, 2}, {0: "zero"})


def test_logits_are_found_in_what_a_model_of_ones_own_returns() -> None:
    class Own(nn.Module):
        def __init__(self, returned: str) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embed, self.attend = nn.Embedding(9, 6), nn.MultiheadAttention(6, 3, batch_first=True)
            self.returned, self.places = returned, nn.Embedding(16, 6)  # more than there are words

        def forward(self, ids: Tensor) -> Any:
            x = self.embed(ids) + self.places.weight[: ids.shape[1]]
            x = x + self.attend(x, x, x, need_weights=False)[0]
            logits = x @ self.embed.weight.T
            return {"alone": logits, "beside": (x, logits), "named": {"hidden": x, "logits": logits}}[self.returned]

    ids = ids_of(2) % 9
    one, two, three = (
        effect(Own(returned).eval(), ids, {(0, 2): "zero"}, target=4, batch=1, at=5)
        for returned in ("alone", "beside", "named")
    )
    assert one.change != 0
    assert (one.before, one.after) == (two.before, two.after) == (three.before, three.after)
    logits = Own("alone").eval()(ids)
    assert one.before == pytest.approx(float(logits[1, 5].double().log_softmax(-1)[4].detach()), rel=1e-6)


def test_classes_are_named() -> None:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": SIZE, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    names = {0: "good", 1: "bad", 2: "neither"}
    config = transformers.BertConfig(**sizes, intermediate_size=16, id2label=names, initializer_range=0.3)
    model, ids = transformers.BertForSequenceClassification(config).eval(), ids_of()
    found = effect(model, ids, {(1, 2): "zero"}, target="bad")
    assert (found.token, found.target, found.at) == (1, "bad", 0)
    assert found.before == effect(model, ids, {(1, 2): "zero"}, target=1).before
    assert {one.text for one in found.tokens} == set(names.values())
    with pytest.raises(ValueError, match=r"target is 'worse', which is not a class: there are .*good, bad, neither"):
        effect(model, ids, {0: "zero"}, target="worse")


# Sweeps.


@pytest.mark.parametrize("at_once", [None, 1, 3])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_sweep_is_each_effect_by_itself(kind: str, at_once: int | None) -> None:
    model, ids = model_of(kind), ids_of(3)
    records = sweep(model, ids, over="heads", target=7, batch=1, at_once=at_once)
    assert [(one["layer"], one["head"]) for one in records] == [(i, h) for i in range(LAYERS) for h in range(HEADS)]
    for one in records:
        alone = effect(model, ids, {(one["layer"], one["head"]): "zero"}, target=7, batch=1)
        assert alone.kl is not None
        numbers = one["before"], one["after"], one["change"], one["kl"]
        expected = alone.before, alone.after, alone.change, float(alone.kl[-1])
        assert numbers == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert max(abs(one["change"]) for one in records) > 1e-3
    assert not records.is_partial


@pytest.mark.parametrize("edit", ["zero", "cut", "uniform"])
def test_segments_are_taken_from_all_heads(edit: str) -> None:
    model, inputs, keys = model_of(), {"input_ids": ids_of()}, [3, 4, 5, 6]
    records = sweep(model, inputs, over="segments", segments={"document": (3, 7), "rest": (7, 11)}, edit=edit, target=7)
    assert [one["segment"] for one in records] == ["first token", "other", "document", "rest"]
    one = records[2]
    change = {"zero": without_keys(keys), "cut": without_keys(keys, renormalize=False), "uniform": spread_over(keys)}
    assert_near(one["before"], log_probabilities(model, inputs, unchanged)[0, -1, 7])
    assert_near(one["after"], log_probabilities(model, inputs, change[edit])[0, -1, 7])
    assert (one["tokens"], one["edit"], one["at"], one["target"]) == (4, edit, LENGTH - 1, "7")


def test_keys_and_layers_can_be_swept() -> None:
    model, inputs = model_of(), {"input_ids": ids_of()}
    keys = sweep(model, inputs, over="keys", target=7, tokenizer=Words())
    assert [one["key"] for one in keys] == list(range(LENGTH))
    assert keys[2]["token"] == Words().words[int(ids_of()[0, 2])]
    assert_near(keys[4]["after"], log_probabilities(model, inputs, without_keys([4]))[0, -1, 7])
    some = sweep(model, inputs, over="keys", layers=[-1, 1], edit="cut", target=7)
    cut = {1: {"block": (None, [4]), "renormalize": False}}
    assert some[4]["after"] == pytest.approx(effect(model, inputs, cut, target=7).after, rel=1e-6)
    layers = sweep(model, inputs, over="layers", edit="uniform", target=7)
    assert [one["layer"] for one in layers] == [0, 1]
    assert [one["layer"] for one in sweep(model, inputs, over="layers", layers=[1, -1, 0], target=7)] == [1, 0]
    assert layers[1]["after"] == pytest.approx(effect(model, inputs, {1: "uniform"}, target=7).after, rel=1e-6)


def test_keys_of_padding_are_left_out() -> None:
    mask = torch.ones(1, LENGTH, dtype=torch.int64)
    mask[:, :3] = 0
    records = sweep(model_of("llama"), {"input_ids": ids_of(), "attention_mask": mask}, over="keys")
    assert [one["key"] for one in records] == list(range(3, LENGTH))


def test_an_interrupted_sweep_says_that_it_is_partial_and_goes_on() -> None:
    model, ids, seen = model_of(), ids_of(), []

    def watch(done: int, total: int, seconds_left: float | None) -> bool:
        seen.append((done, total, seconds_left))
        return done < 3

    with pytest.warns(UserWarning, match=r"ended after 3 of 8 runs .*it is partial, and resume\(\) goes on"):
        records = sweep(model, ids, target=7, at_once=1, progress=watch)
    assert isinstance(records, Sweep)
    assert (len(records), records.is_partial, records.total) == (3, True, 8)
    assert "3 of 8 runs, partial" in repr(records)
    assert [one[:2] for one in seen] == [(1, 8), (2, 8), (3, 8)]
    assert records.resume() is records
    assert not records.is_partial
    assert records == list(sweep(model, ids, target=7, at_once=1))


def test_an_interrupt_keeps_what_there_is() -> None:
    def interrupt(done: int, total: int, seconds_left: float | None) -> None:
        raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="it is partial"):
        assert len(sweep(model_of(), ids_of(), at_once=1, progress=interrupt)) == 1


def test_a_model_whose_samples_depend_on_one_another_is_run_one_by_one() -> None:
    model = model_of()
    model.register_forward_hook(lambda *call: mixed(call[2]))

    def mixed(output: Any) -> Any:
        output.logits = output.logits - 3 * output.logits.mean(0, keepdim=True) + output.logits.std(0, correction=0)
        return output

    found, alone = sweep(model, ids_of(), target=7), sweep(model, ids_of(), target=7, at_once=1)
    assert list(found) == list(alone)


def test_a_model_that_gives_all_logits_whichever_are_asked_for_is_read_where_it_is_asked() -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model_of()

        def forward(self, input_ids: Tensor, logits_to_keep: Any = 0) -> Tensor:
            found: Tensor = self.model(input_ids, use_cache=False).logits
            return found

    found = sweep(Whole().eval(), ids_of(), target=7, at=4)
    for one, plain in zip(found, sweep(model_of(), ids_of(), target=7, at=4), strict=True):
        assert (one["at"], one["after"]) == (4, pytest.approx(plain["after"], rel=1e-9))


def test_a_batch_that_takes_too_much_memory_is_made_smaller() -> None:
    model, sizes = model_of(), []

    def watch(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        sizes.append(len(inputs[0]))
        if sizes[-1] > 2:
            raise torch.OutOfMemoryError

    model.transformer.wte.register_forward_pre_hook(watch)
    records = sweep(model, ids_of(), target=7)
    assert not records.is_partial
    assert max(sizes) > 4
    assert sizes[-1] == 2


def test_a_run_has_no_more_samples_than_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids, sizes = model_of(), ids_of(), []
    model.transformer.wte.register_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0])))
    found = []
    for free in (2**40, 1):
        monkeypatch.setattr("attnwidget._capture.interventions.runs.free_bytes", lambda device, free=free: free)
        sizes.clear()
        found.append(sweep(model, ids, target=7))
        assert (max(sizes) > 4) is (free > 1)
    for one, alone in zip(*found, strict=True):
        assert one["after"] == pytest.approx(alone["after"], rel=1e-9)


def test_the_time_left_is_that_of_the_runs_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run of the model takes 5 seconds, by a clock of its own."""
    model, now, seen = model_of(), [100.0], []

    def runs(*_: Any) -> None:
        now[0] += 5

    monkeypatch.setattr("attnwidget._capture.interventions.sweep.time", SimpleNamespace(monotonic=lambda: now[0]))
    model.register_forward_hook(runs)
    sweep(model, ids_of(), target=7, at_once=1, progress=lambda *one: seen.append(one))
    assert [one[:2] for one in seen] == [(done, 8) for done in range(1, 9)]
    lefts = [left for _, _, left in seen]
    assert lefts[-1] == pytest.approx(0)
    for (done, _, left), after in zip(seen[1:-1], lefts[2:], strict=True):
        assert left == pytest.approx(5 * (8 - done), rel=0.5)  # with one run more at first, without edits
        assert after < left


def test_a_progress_bar_goes_from_what_is_done_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    bars: list[Any] = []

    class Bar:
        def __init__(self, **keywords: Any) -> None:
            self.told, self.updates, self.is_closed = keywords, 0, False
            bars.append(self)

        def update(self, count: int) -> None:
            self.updates += count
            if len(bars) == 1:
                raise KeyboardInterrupt

        def close(self) -> None:
            self.is_closed = True

    monkeypatch.setattr("attnwidget._capture.interventions.sweep.progress_bar", lambda: Bar)
    with pytest.warns(UserWarning, match="it is partial"):
        found = sweep(model_of(), ids_of(), target=7, at_once=3, progress=True)
    done = len(found)
    assert 0 < done < 8
    found.resume(progress=True)
    assert [(one.told["initial"], one.told["total"], one.updates) for one in bars] == [
        (0, 8, done),
        (done, 8, 8 - done),
    ]
    assert all(one.is_closed for one in bars)


@pytest.mark.parametrize("over", ["heads", "layers", "segments", "keys"])
def test_records_are_rows_of_plain_values(over: Any) -> None:
    """As `pandas.DataFrame` makes a table of them: the same columns in each, and nothing nested."""
    records = sweep(model_of(), ids_of(), over=over, segments={"document": (3, 7)}, target=7, tokenizer=Words())
    places = {
        "heads": ["layer", "name", "head"],
        "layers": ["layer", "name"],
        "segments": ["segment", "tokens"],
        "keys": ["key", "token"],
    }
    columns = [*places[over], "edit", "target", "at", "before", "after", "change", "kl"]
    assert [list(one) for one in records] == [columns] * len(records)
    assert {type(value) for one in records for value in one.values()} == {int, float, str}


@pytest.mark.parametrize(
    ("more", "error", "match"),
    [
        ({"over": "head"}, ValueError, "heads"),
        ({"over": "segments"}, ValueError, "give segments="),
        ({"over": "keys", "edit": "mean"}, ValueError, "keys and segments take 'zero', 'cut' and 'uniform'"),
        ({"over": "keys", "edit": "uniform"}, ValueError, "is even already"),
        ({"layers": [2]}, IndexError, "there are 0 to 1"),
        ({"layers": 0}, TypeError, r"layers is 0: give numbers of layers, such as \[0, 1\]"),
        ({"layers": "all"}, TypeError, "layers is 'all': give numbers of layers"),
        ({"layers": [0.5]}, TypeError, "layers has 0.5: give numbers of layers"),
        ({"layers": []}, ValueError, "layers is empty: name one or more"),
        ({"layers": [], "over": "keys"}, ValueError, "layers is empty: name one or more"),
        ({"progress": "yes"}, TypeError, "progress is 'yes': give True for a bar"),
        ({"cross": True}, ValueError, "no cross-attention was captured"),
        ({"at_once": 0}, ValueError, "at_once"),
    ],
)
def test_what_cannot_be_swept_is_refused(more: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        sweep(model_of(), ids_of(), **more)


def test_the_model_is_as_it_was() -> None:
    model, ids = model_of(), ids_of()
    before = model(ids).logits
    sweep(model, ids)
    assert torch.equal(model(ids).logits, before)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
