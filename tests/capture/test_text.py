"""What stands at the positions of a capture: ids from the model's own call, for each tower, named by a tokenizer."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from captured import DECODERS, GPT2, SEQUENCES, batch, build
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from attnwidget import AttentionWidget, Capture, capture, compare
from attnwidget._capture.text import text_watcher

transformers = pytest.importorskip("transformers")


class Words:
    """A tokenizer whose words tell their ids."""

    name_or_path = "words"

    def id_to_token(self, one: int) -> str:
        return f"w{one}"


def words(ids: Tensor | Sequence[Sequence[int]]) -> list[list[str]]:
    return [[f"w{one}" for one in sample] for sample in (ids.tolist() if isinstance(ids, Tensor) else ids)]


def shown(w: AttentionWidget, side: str = "query") -> Any:
    return [w._token_store.samples(side, w._selected.shape)[b] for b in range(w._selected.shape.B)]


SOURCE = torch.randint(3, 50, (2, 12), generator=torch.Generator().manual_seed(3))
TARGET = torch.randint(3, 50, (2, 12), generator=torch.Generator().manual_seed(4))
GREEDY = {"do_sample": False, "pad_token_id": 0}


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_knows_prompt_and_continuation(name: str) -> None:
    model, inputs = build(DECODERS[name], DECODERS[name].implementations[0]), batch("left")
    del inputs["position_ids"]
    with torch.no_grad(), capture(model, tokenizer=Words()) as cap:
        out = model.generate(**inputs, max_new_tokens=6, min_new_tokens=6, **GREEDY)
    expected = words(out[:, :-1])
    expected[1][:5] = ["[PAD]"] * 5
    assert cap.tokens == cap.key_tokens == expected
    assert cap.cross_tokens is None
    assert shown(cap.widget()) == expected
    real = torch.ones(2, 17, dtype=torch.long)
    real[1, :5] = 0
    assert torch.equal(cap.inputs["input_ids"], out[:, :-1])
    assert torch.equal(cap.inputs["attention_mask"], real)


@pytest.mark.parametrize("name", SEQUENCES)
@pytest.mark.parametrize("how", ["decoder_input_ids", "labels"])
def test_a_decoder_as_long_as_its_encoder_has_its_own_words(name: str, how: str) -> None:
    model = build(SEQUENCES[name], "sdpa")
    mask = torch.ones_like(SOURCE)
    mask[1, 9:] = 0
    with torch.no_grad(), capture(model, tokenizer=Words()) as cap:
        model(input_ids=SOURCE, attention_mask=mask, **{how: TARGET})
    read = TARGET if how == "decoder_input_ids" else model._shift_right(TARGET) if name == "T5" else shifted(model)
    source = words(SOURCE)
    source[1][9:] = ["[PAD]"] * 3
    assert cap.towers == ("encoder", "decoder")
    assert list(cap.stacks()) == ["encoder", "decoder", "decoder, cross-attention"]
    assert cap.stacks()["encoder"].tokens == source
    assert cap.tokens == cap.stacks()["decoder"].tokens == words(read)
    assert cap.cross_tokens == source
    assert shown(cap.widget()) == source
    assert shown(cap.widget(stack="decoder")) == words(read)
    crossing = cap.widget(cross=True)
    assert (shown(crossing), shown(crossing, "key")) == (words(read), source)
    assert torch.equal(cap.inputs["input_ids"], SOURCE)
    assert torch.equal(cap.inputs["decoder_input_ids"], read)
    assert torch.equal(cap.inputs["attention_mask"], mask)


def shifted(model: Any) -> Tensor:
    begin = torch.full((2, 1), model.config.decoder_start_token_id)
    return torch.cat([begin, TARGET[:, :-1]], 1)


@pytest.mark.parametrize("name", SEQUENCES)
def test_what_generate_lets_an_encoder_read_is_known(name: str) -> None:
    model = build(SEQUENCES[name], "sdpa")
    with torch.no_grad(), capture(model, tokenizer=Words()) as cap:
        out = model.generate(SOURCE, max_new_tokens=7, min_new_tokens=7, **GREEDY)
    assert len(cap) == 1
    assert cap.tokens == words(out[:, :-1])
    assert cap.cross_tokens == words(SOURCE)
    assert cap.stacks()["encoder"].tokens == words(SOURCE)


def test_other_encoder_outputs_than_those_that_were_seen_have_no_words() -> None:
    model = build(SEQUENCES["BART"], "sdpa")
    with torch.no_grad():
        given = model.get_encoder()(TARGET)
        with capture(model, tokenizer=Words()) as cap:
            model(input_ids=SOURCE, decoder_input_ids=TARGET)
            model(encoder_outputs=given, decoder_input_ids=TARGET)
    assert cap[0].cross_tokens == words(SOURCE)
    assert cap[1].cross_tokens is None
    assert cap[1].tokens == words(TARGET)


def test_embeddings_that_are_given_have_no_words() -> None:
    model = build(GPT2, "sdpa")
    embedded = torch.randn(2, 12, 32)
    with torch.no_grad(), capture(model, tokenizer=Words()) as cap:
        model(SOURCE)
        model(inputs_embeds=embedded)
    assert cap[0].tokens == words(SOURCE)
    assert cap[1].tokens is None
    assert cap[1].widget().tokens is None


@pytest.mark.parametrize("beside", ["attention_mask", "position_ids", "token_type_ids"])
def test_numbers_beside_embeddings_that_are_given_are_no_words(beside: str) -> None:
    model, embedded, numbers = build(GPT2, "sdpa"), torch.randn(2, 12, 32), torch.arange(12)[None].repeat(2, 1)
    numbers = numbers if beside == "position_ids" else torch.ones_like(numbers)
    with torch.no_grad(), capture(model, tokenizer=Words()) as cap:
        model(inputs_embeds=embedded, **{beside: numbers})
        model.transformer(None, None, *[numbers if beside == "attention_mask" else None], inputs_embeds=embedded)
    assert [one.tokens for one in cap] == [None, None]


def lxmert() -> Any:
    how = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 50}
    layers = {"l_layers": 1, "x_layers": 1, "r_layers": 1, "visual_feat_dim": 16}
    return transformers.LxmertModel(transformers.LxmertConfig(**how, **layers)).eval()


@pytest.mark.parametrize("boxes", [12, 9])
def test_regions_of_a_picture_do_not_have_the_words_of_a_text_as_long(boxes: int) -> None:
    """One tower reads both: where lengths do not tell which is which, none has names."""
    with torch.no_grad(), capture(lxmert(), tokenizer=Words()) as cap:
        cap._model(SOURCE, torch.randn(2, boxes, 16), torch.randn(2, boxes, 4))
    assert cap.skipped == {}
    found = sides(cap)
    text = None if boxes == 12 else words(SOURCE)
    expected = {
        "encoder.layer.0.attention.self": [text, text],
        "encoder.r_layers.0.attention.self": [None, None],
        "encoder.x_layers.0.lang_self_att.self": [text, text],
        "encoder.x_layers.0.visn_self_att.self": [None, None],
        "encoder.x_layers.0.visual_attention.att": [text, text and positions(boxes)],
        "encoder.x_layers.0.visual_attention.att #2": [None, text],
    }
    assert found == expected


def positions(count: int) -> list[list[str]]:
    return [[*map(str, range(count))]] * 2


class Heard(nn.Module):
    """Writes the words of what is given as features, such as of speech."""

    def __init__(self, table: str) -> None:
        super().__init__()
        setattr(self, table, nn.Embedding(50, 16))
        self.table, self.transformer = table, nn.Transformer(16, 2, 1, 1, 32, batch_first=True)

    def forward(self, features: Tensor, ids: Tensor) -> Tensor:
        return self.transformer(features, getattr(self, self.table)(ids))


def test_features_do_not_have_the_words_that_are_written_of_them() -> None:
    with torch.no_grad():
        for table, length, known in (("tgt_embed", 12, True), ("words", 12, False), ("words", 9, True)):
            with capture(Heard(table).eval(), tokenizer=Words()) as cap:
                cap._model(torch.randn(2, length, 16), TARGET)
            assert cap.stacks()["encoder"].tokens is None
            assert cap.tokens == (words(TARGET) if known else None)
            assert cap.cross_tokens is None


def test_ids_are_kept_without_a_tokenizer_and_named_later() -> None:
    model = build(GPT2, "sdpa")
    with torch.no_grad(), capture(model) as cap:
        model(SOURCE)
    assert cap.tokens == SOURCE.tolist()
    assert cap.widget().tokens is None  # ids would be taken for positions
    assert shown(cap.widget(tokenizer=Words())) == words(SOURCE)
    cap.tokenizer = Words()
    assert cap.tokens == words(SOURCE)
    with pytest.raises(TypeError, match="give one with convert_ids_to_tokens or decode"):
        cap.tokenizer = 3
    with pytest.raises(TypeError, match="give one with convert_ids_to_tokens or decode"):
        capture(nn.Linear(2, 2), tokenizer=3)


def record(tokenizer: Any) -> Capture:
    model = build(SEQUENCES["BART"], "sdpa")
    mask = torch.ones_like(SOURCE)
    mask[1, 9:] = 0
    with torch.no_grad(), capture(model, tokenizer=tokenizer) as cap:
        model(input_ids=SOURCE, attention_mask=mask, decoder_input_ids=TARGET)
    return cap


def test_a_file_holds_ids_words_and_towers(tmp_path: Path) -> None:
    cap = record(Words())
    cap.save(tmp_path / "a.safetensors")
    again = Capture.load(tmp_path / "a.safetensors")
    assert (again.tokens, again.key_tokens, again.cross_tokens) == (cap.tokens, cap.key_tokens, cap.cross_tokens)
    assert again.towers == cap.towers
    assert again.tokenizer.name_or_path == "words"
    assert shown(again.widget(stack="decoder")) == words(TARGET)
    for name, x in cap.inputs.items():
        assert torch.equal(again.inputs[name], x)
    again.save(tmp_path / "b.safetensors")
    assert Capture.load(tmp_path / "b.safetensors").tokens == cap.tokens


def test_a_tokenizers_name_is_written_and_never_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Any] = []
    for name in ("AutoTokenizer", "PreTrainedTokenizerBase"):
        monkeypatch.setattr(getattr(transformers, name), "from_pretrained", lambda *args, **_: loaded.append(args))
    cap = record("facebook/bart-base")
    assert cap.tokens == TARGET.tolist()
    assert cap.widget().tokens is None
    cap.save(tmp_path / "a.safetensors")
    again = Capture.load(tmp_path / "a.safetensors")
    assert again.tokenizer == "facebook/bart-base"
    assert again.tokens == TARGET.tolist()
    assert again.widget().tokens is None
    assert loaded == []
    again.tokenizer = Words()
    assert again.tokens == words(TARGET)


def test_a_file_of_before_has_no_words_and_opens(tmp_path: Path) -> None:
    record(None).save(tmp_path / "new.safetensors")
    with safe_open(tmp_path / "new.safetensors", framework="pt") as file:
        metadata = json.loads(file.metadata()["attnwidget"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    del metadata["towers"]
    for entry in metadata["forwards"][0]:
        del entry["text"]
    save_file(tensors, tmp_path / "old.safetensors", {"attnwidget": json.dumps(metadata)})
    old = Capture.load(tmp_path / "old.safetensors")
    assert (old.tokens, old.cross_tokens, old.inputs) == (None, None, {})
    assert old.towers == ("encoder", "decoder")


class Sorting(nn.Module):
    """A library that reads sentences by their length, the longest first, and gives them back in the caller's order."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.auto_model = model

    def forward(self, sentences: list[list[int]]) -> Tensor:
        order = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))
        longest = len(sentences[order[0]])
        ids = torch.tensor([sentences[i] + [0] * (longest - len(sentences[i])) for i in order])
        found = self.auto_model(input_ids=ids, attention_mask=(ids != 0).long()).last_hidden_state
        return found[torch.tensor(order).argsort()]


def sorting() -> Sorting:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=32, num_attention_heads=4, num_hidden_layers=2, intermediate_size=64, vocab_size=50
    )
    return Sorting(transformers.BertModel(config).eval())


def test_sentences_that_a_library_sorts_have_their_own_words() -> None:
    model = sorting()
    with torch.no_grad(), capture(model, tokenizer=Words()) as cap:
        model([[5, 6, 7], [8, 9, 10, 11, 12], [13, 14]])
    first, second, third = words([[8, 9, 10, 11, 12], [5, 6, 7], [13, 14]])
    assert cap.tokens == [first, [*second, "[PAD]", "[PAD]"], [*third, *["[PAD]"] * 3]]


class Seq2Seq(nn.Module):
    """A transformer as it is taught: tables of its own at the root, for words and for positions."""

    def __init__(self, *, shared: bool) -> None:
        super().__init__()
        self.src_embed = nn.Embedding(50, 16)
        self.tgt_embed = self.src_embed if shared else nn.Embedding(50, 16)
        self.positional = nn.Embedding(64, 16)
        self.transformer = nn.Transformer(16, 2, 1, 1, 32, batch_first=True)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        places = torch.arange(src.shape[1])[None].expand_as(src)
        return self.transformer(
            self.src_embed(src) + self.positional(places), self.tgt_embed(tgt) + self.positional(places)
        )


def test_a_model_as_it_is_taught_has_its_words() -> None:
    model = Seq2Seq(shared=False).eval()
    with torch.no_grad(), capture(model, tokenizer=Words()) as cap:
        model(SOURCE, TARGET)
    assert cap.stacks()["encoder"].tokens == words(SOURCE)
    assert cap.tokens == words(TARGET)
    assert cap.cross_tokens == words(SOURCE)


def test_of_two_texts_that_could_be_a_towers_none_is_taken() -> None:
    model = Seq2Seq(shared=True).eval()
    with torch.no_grad(), capture(model, tokenizer=Words()) as cap:
        model(SOURCE, TARGET)
        model(SOURCE, SOURCE)
        model(SOURCE[:, :9], SOURCE[:, :9])
    assert cap[0].stacks()["decoder"].tokens is None
    assert cap[1].stacks()["encoder"].tokens == words(SOURCE)
    assert cap[2].tokens == words(SOURCE[:, :9])


class Attend(nn.Module):
    """Attention as it is taught."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        other = x if other is None else other
        q, k, v = (y.unflatten(-1, (2, 8)).transpose(1, 2) for y in (self.q(x), self.k(other), self.v(other)))
        return ((q @ k.mT / 8**0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)


class Decoder(nn.Module):
    """A layer of a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.cross_attn = Attend(), Attend()

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.cross_attn(self.self_attn(x), memory)


class Flat(nn.Module):
    """A transformer as tutorials write it in one class: two tables and two lists of layers beside one another.

    Both texts are looked up before any attention runs.
    """

    def __init__(self, lists: tuple[str, str], tables: tuple[str, str], sizes: tuple[int, int]) -> None:
        super().__init__()
        self.of = (*lists, *tables)
        for name, size in zip(tables, sizes, strict=True):
            setattr(self, name, nn.Embedding(size, 16))
        for name, kind in zip(lists, (Attend, Decoder), strict=True):
            setattr(self, name, nn.ModuleList(kind() for _ in range(2)))

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        encoder, decoder, of_source, of_target = (getattr(self, name) for name in self.of)
        memory, x = of_source(src), of_target(tgt)
        for layer in encoder:
            memory = layer(memory)
        for layer in decoder:
            x = layer(x, memory)
        return x


@pytest.mark.parametrize("sizes", [(50, 60), (60, 50)])
@pytest.mark.parametrize("length", [12, 9])
@pytest.mark.parametrize(
    ("lists", "tables"),
    [
        (("encoder_layers", "decoder_layers"), ("encoder_embedding", "decoder_embedding")),
        (("enc_blocks", "dec_blocks"), ("src_embed", "tgt_embed")),
        (("encoder_layers", "decoder_layers"), ("embedding", "embedding_of_other")),
        (("first", "second"), ("encoder_embedding", "decoder_embedding")),
        (("first", "second"), ("embedding", "embedding_of_other")),
    ],
)
def test_source_and_target_of_one_class_have_each_its_own_words_or_none(
    lists: tuple[str, str], tables: tuple[str, str], sizes: tuple[int, int], length: int
) -> None:
    """Where as many words and nothing else tells them apart, none: never those of the other text."""
    torch.manual_seed(0)
    target = TARGET[:, :length]
    with torch.no_grad(), capture(Flat(lists, tables, sizes), tokenizer=Words()) as cap:
        cap._model(SOURCE, target)
    known = length != 12 or (lists[0] != "first" and tables[0] != "embedding")
    read = {lists[0]: words(SOURCE), lists[1]: words(target)}
    assert cap.skipped == {}
    found = sides(cap)
    assert len(found) == 6
    for name, (queries, keys) in found.items():
        own = read[name.split(".")[0]] if known else None
        assert queries == own, name
        assert keys == (words(SOURCE) if known and "cross" in name else own), name
    if lists[0] == "encoder_layers":
        assert cap.towers == ("encoder", "decoder")
        assert cap["decoder"].names == cap["decoder_layers"].names == cap.attention.names[2:]


def sides(cap: Capture) -> dict[str, Any]:
    """The labels of queries and keys as a widget has them, of each layer."""
    found = {}
    for stack in cap.stacks():
        w = cap.widget(stack=stack)
        for layer, (name, att) in enumerate(zip(cap.stacks()[stack].records, w.attention, strict=True)):  # type: ignore[arg-type]
            w.layer = layer
            of_layer = [w._token_store.samples(side, att.shape) for side in ("query", "key")]
            found[name] = [None if one is None else [one[b] for b in range(att.shape.B)] for one in of_layer]
    return found


def stack_of_layers(kind: Any = nn.TransformerEncoder, layer: Any = nn.TransformerEncoderLayer) -> Any:
    return kind(layer(16, 2, 32, batch_first=True), 2)


class Seen(nn.Module):
    """Reads a picture, cut into patches, and a text that it looks up outside of both of its towers, first or last."""

    def __init__(self, first: bool, crosses: bool) -> None:
        super().__init__()
        self.first, self.crosses = first, crosses
        self.patches, self.words = nn.Conv2d(3, 16, 8, 8), nn.Embedding(50, 16)
        self.a = stack_of_layers()
        self.b = stack_of_layers(nn.TransformerDecoder, nn.TransformerDecoderLayer) if crosses else stack_of_layers()

    def forward(self, picture: Tensor, ids: Tensor) -> Tensor:
        text = self.words(ids) if self.first else None
        memory = self.a(self.patches(picture).flatten(2).mT)
        text = self.words(ids) if text is None else text
        return self.b(text, memory) if self.crosses else self.b(text)


@pytest.mark.parametrize("crosses", [False, True])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("width", [24, 32])
def test_patches_do_not_have_the_words_of_a_text_as_long(width: int, first: bool, crosses: bool) -> None:
    with torch.no_grad(), capture(Seen(first, crosses).eval(), tokenizer=Words()) as cap:
        cap._model(torch.randn(2, 3, 32, width), SOURCE)
    known = not first or width != 24  # after four by three patches have been attended to, it is no text of theirs
    patches = [[f"row {row}, {column}" for row in range(4) for column in range(width // 8)]] * 2
    assert cap.stacks()["a"].tokens == (patches if known else None)
    assert cap.stacks()["b"].tokens == (words(SOURCE) if known else None)
    assert cap.cross_tokens in (None, patches if crosses else None)


class Classes(nn.Module):
    """Looks up one number for each sample, and as many samples as positions."""

    def __init__(self) -> None:
        super().__init__()
        self.classes, self.layer = nn.Embedding(50, 16), nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        return self.layer(x + self.classes(ids)[:, None])


def test_classes_of_samples_are_no_words() -> None:
    with torch.no_grad(), capture(Classes().eval(), tokenizer=Words()) as cap:
        cap._model(torch.randn(12, 12, 16), SOURCE[0])
    assert cap.tokens is None


class Beside(nn.Module):
    """Adds what it looks up in two tables, neither of which tells by its name that it has no words."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.one, self.other = nn.Embedding(50, 16), nn.Embedding(rows, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, ids: Tensor, others: Tensor) -> Tensor:
        return self.layer(self.one(ids) + self.other(others))


def test_of_two_tables_that_may_have_words_none_is_taken() -> None:
    places, kinds = torch.arange(12)[None].expand(2, -1), torch.randint(0, 3, (2, 12))
    with torch.no_grad():
        for rows, others, known in ((50, places, True), (3, kinds, True), (50, TARGET, False)):
            with capture(Beside(rows).eval(), tokenizer=Words()) as cap:
                cap._model(SOURCE, others)
            assert cap.tokens == (words(SOURCE) if known else None)


class Own(nn.Module):
    """Reads its ids as a matrix product, so that no table is looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(50, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        return self.layer(nn.functional.one_hot(ids, 50).float() @ self.table)


def test_a_model_that_looks_nothing_up_is_labeled_by_its_argument() -> None:
    model = Own().eval()
    with torch.no_grad(), capture(model, tokenizer=Words()) as cap:
        model(SOURCE)
    assert cap.tokens == words(SOURCE)


def test_the_readme_goes_from_a_text_to_a_labeled_picture() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    _, _, rest = readme.partition("Your own model:\n\n```python\n")
    lines = rest.partition("```")[0].splitlines()
    assert len(lines) <= 5
    *block, last = (line for line in lines if line)
    given: dict[str, Any] = {"model": build(GPT2, "sdpa"), "tokenizer": Words(), "inputs": {"input_ids": SOURCE}}
    exec("\n".join(block), given)
    assert shown(eval(last, given)) == words(SOURCE)


def test_an_error_of_ours_does_not_reach_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(GPT2, "sdpa")

    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("ours")

    with torch.no_grad():
        plain = model(SOURCE)[0]
        for name in ("_looked_up", "_begin", "_end", "_text_of"):
            monkeypatch.setattr(text_watcher.TextWatcher, name, fails)
        with capture(model) as cap:
            assert torch.equal(model(SOURCE)[0], plain)
    assert cap.tokens is None
    assert len(cap.attention) == 2


def test_hooks_leave_with_the_block() -> None:
    model = build(GPT2, "sdpa")
    with torch.no_grad(), capture(model):
        model(SOURCE)
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())


# Tokens that are given by hand.


def decoded(new: int = 6) -> tuple[Capture, Tensor]:
    model, inputs = build(GPT2, "sdpa"), batch("left")
    del inputs["position_ids"]
    with torch.no_grad(), capture(model) as cap:
        out = model.generate(**inputs, max_new_tokens=new, min_new_tokens=new, **GREEDY)
    return cap, out


def test_what_generate_returns_is_cut_by_what_was_never_read() -> None:
    cap, out = decoded()
    with pytest.warns(UserWarning, match="tokens has 18 tokens but the model read 17: the last token that generate"):
        w = cap.widget(tokens=out, tokenizer=Words())
    assert shown(w) == words(out[:, :-1])
    with pytest.warns(UserWarning, match="the first 17 are shown"):
        w = cap.widget(tokens=words(out))
    assert shown(w) == words(out[:, :-1])


def test_one_list_for_samples_of_different_texts_warns() -> None:
    cap, out = decoded()
    with pytest.warns(UserWarning, match="one list but the 2 samples have read different texts: give a list for each"):
        cap.widget(tokens=words(out)[0][:-1])
    model = build(GPT2, "sdpa")
    with torch.no_grad(), capture(model) as same:
        model(SOURCE[:1].expand(2, -1))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # older versions of anywidget have others, of their own
        assert shown(same.widget(tokens=words(SOURCE)[0])) == [words(SOURCE)[0]] * 2


def test_what_a_tokenizer_returns_is_taken_as_it_is() -> None:
    model = build(GPT2, "sdpa")
    encoded = transformers.BatchEncoding({"input_ids": SOURCE, "attention_mask": torch.ones_like(SOURCE)})
    with torch.no_grad(), capture(model) as cap:
        model(**encoded)
    for tokens in (encoded, SOURCE, SOURCE.tolist(), SOURCE.numpy()):
        assert shown(cap.widget(tokens=tokens, tokenizer=Words())) == words(SOURCE)


def test_tokens_without_padding_are_put_where_there_is_none() -> None:
    model = sorting()
    with torch.no_grad(), capture(model) as cap:
        model([[8, 9, 10, 11, 12], [5, 6, 7]])
    assert shown(cap.widget(tokens=[list("abcde"), list("fgh")])) == [list("abcde"), ["f", "g", "h", "[PAD]", "[PAD]"]]


def test_tokens_in_another_order_than_they_were_read_are_refused() -> None:
    model = sorting()
    with torch.no_grad(), capture(model) as cap:
        model([[5, 6, 7], [8, 9, 10, 11, 12]])
    given = [["w5", "w6", "w7"], ["w8", "w9", "w10", "w11", "w12"]]
    with pytest.raises(ValueError, match="the samples were read in another order: give them in the order"):
        cap.widget(tokens=given)
    padded = [[*given[0], "[PAD]", "[PAD]"], given[1]]
    with pytest.raises(
        ValueError, match="where sample 0 that the model read has no padding: a library may have sorted"
    ):
        cap.widget(tokens=padded)
    cap.tokenizer = Words()
    with torch.no_grad(), capture(model, tokenizer=Words()) as cap:
        model([[5, 6], [8, 9]])
    with pytest.raises(ValueError, match="tokens\\[0\\] is the text of sample 1"):
        cap.widget(tokens=[["w8", "w9"], ["w5", "w6"]])
    with pytest.raises(ValueError, match="tokens\\[0\\]\\[1\\] is id 7 but the model read 6 there"):
        cap.widget(tokens=torch.tensor([[5, 7], [8, 9]]))


def test_tokens_by_hand_label_the_tower_that_they_are_of() -> None:
    cap = record(None)
    names = [[f"a{i}" for i in range(12)]] * 2
    w = cap.widget(tokens=SOURCE, tokenizer=Words())
    assert shown(w) == words(SOURCE)
    w = cap.widget(tokens=TARGET, tokenizer=Words())
    assert w.facts["layers"] == list(cap["decoder"].names)
    assert shown(w) == words(TARGET)
    with pytest.warns(UserWarning, match="tokens label 'encoder'; 'decoder', as long, may have read another text"):
        w = cap.widget(tokens=names)
    assert w.facts["layers"][0] == "model.encoder.layers.0.self_attn"
    with pytest.warns(UserWarning, match="tokens label 'decoder'"):
        assert shown(cap.widget(stack="decoder", tokens=names, key_tokens=names)) == names


def test_a_later_turn_of_a_chat_has_its_queries_last() -> None:
    model = build(DECODERS["Llama"], "sdpa")
    cache = transformers.DynamicCache()
    with torch.no_grad():
        model(SOURCE[:, :7], past_key_values=cache)
        with capture(model, tokenizer=Words()) as cap:
            model(SOURCE[:, 7:], past_key_values=cache)
    known = words(SOURCE[:, 7:])
    assert cap.tokens == known
    assert cap.key_tokens == [[*map(str, range(7)), *sample] for sample in known]
    w = cap.widget(tokens=words(SOURCE))
    assert (shown(w), shown(w, "key")) == (known, words(SOURCE))


def test_several_forward_passes_are_told_apart() -> None:
    model = build(GPT2, "sdpa")
    with torch.no_grad(), capture(model, tokenizer=Words()) as cap:
        model(SOURCE)
        model(TARGET)
    assert list(cap.stacks()) == ["forward 0", "forward 1"]
    assert [one.tokens for one in cap] == [words(SOURCE), words(TARGET)]
    assert cap.widget().facts["layers"] == list(cap[0].attention.names)
    w = cap.widget(stack="forward 1")
    assert shown(w) == words(TARGET)
    assert w.facts["layers"] == list(cap[1].attention.names)
    for ask in (lambda: cap.tokens, lambda: cap.inputs, lambda: cap.cross_tokens, lambda: cap["transformer"]):
        with pytest.raises(ValueError, match=r"this capture has 2 forward passes: ask one of them, such as cap\[0\]"):
            ask()
    assert cap[1]["transformer"].names == cap[1].attention.names
    with pytest.raises(
        KeyError, match="no tower or stack is called 'decoder': there are 'self-attention', 'transformer'"
    ):
        cap[0]["decoder"]


def test_metrics_compare_what_each_tower_read() -> None:
    torch.manual_seed(0)
    source, target = torch.randint(3, 6, (2, 12)), torch.randint(3, 6, (2, 12))
    for how in ({}, {"tokenizer": Words()}):
        model = build(SEQUENCES["BART"], "sdpa")
        with torch.no_grad(), capture(model, **how) as cap:
            model(input_ids=source, decoder_input_ids=target)
        found = {(one["name"], one["batch"], one["head"]): one["induction"] for one in cap.metrics()}
        assert [one["layer"] for one in cap.metrics(batch=0)] == [layer for layer in range(4) for _ in range(4)]
        for tower, ids in (("encoder", source), ("decoder", target)):
            stack = cap[tower]
            for name, att in zip(stack.names, stack, strict=True):
                own = att.metrics(batch=1, head=2, tokens=words(ids)[1])
                assert found[name, 1, 2] == own.induction is not None
    alone = {(one["name"], one["batch"]): one["same_token"] for one in cap.metrics(tokens=words(target))}
    assert alone["model.decoder.layers.0.self_attn", 0] is not None


def test_metrics_of_several_forward_passes_are_told_apart() -> None:
    model = build(GPT2, "sdpa")
    with torch.no_grad(), capture(model) as cap:
        model(SOURCE)
        model(TARGET)
    found = cap.metrics(batch=0)
    assert [one["name"] for one in found][::4] == list(cap.attention.names)
    assert [one["layer"] for one in found] == [layer for layer in range(4) for _ in range(4)]


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("Llama", {"num_return_sequences": 2}),
        ("GPT-2", {"length_penalty": -4.0, "early_stopping": True}),
        ("BART", {"num_return_sequences": 2}),
        ("T5", {"length_penalty": -4.0, "early_stopping": True}),
        *(
            pytest.param(name, more, marks=pytest.mark.thorough)
            for name in ("GPT-2", "Llama", *SEQUENCES)
            for more in ({}, {"num_return_sequences": 2}, {"length_penalty": -4.0, "early_stopping": True})
        ),
    ],
)
def test_samples_of_a_beam_search_have_the_words_of_the_sequences_that_are_returned(name: str, more: Any) -> None:
    torch.manual_seed(0)
    model = build(SEQUENCES.get(name) or DECODERS[name], "sdpa")
    with torch.no_grad():
        for one in model.parameters():
            one.mul_(3)  # beams then end at different lengths
    with torch.no_grad(), capture(model, tokenizer=Words()) as cap:
        out = model.generate(SOURCE, num_beams=3, max_new_tokens=9, do_sample=False, pad_token_id=0, **more)
    assert len(cap) == 1
    start, end = 12 if name in DECODERS else 1, model.generation_config.eos_token_id
    tokens = cap.tokens
    assert tokens is not None
    assert len(tokens) == len(out)
    for given, ids in zip(tokens, out.tolist(), strict=True):
        stop = start + next((i for i, one in enumerate(ids[start:]) if one == end), len(ids) - start)
        read = min(stop, len(ids) - 1, len(given))
        assert given[:read] == [f"w{one}" for one in ids[:read]]
        assert set(given[stop + 1 :]) <= {"[PAD]"}
    if name in SEQUENCES:
        assert cap.cross_tokens == [words(SOURCE)[i * 2 // len(out)] for i in range(len(out))]


def test_the_picker_has_each_tower_with_its_own_words() -> None:
    cap = record(Words())
    w = cap.widget()
    assert list(w.stacks) == ["encoder", "decoder", "decoder, cross-attention"]
    assert (w.stack, w.forwards) == ("encoder", 1)
    source = words(SOURCE)
    source[1][9:] = ["[PAD]"] * 3
    assert shown(w) == source
    w.stack = "decoder"
    assert shown(w) == words(TARGET)
    w.stack = "decoder, cross-attention"
    assert (shown(w), shown(w, "key")) == (words(TARGET), source)
    with pytest.warns(UserWarning, match="tokens label 'encoder'; 'decoder', as long"):
        w = record(None).widget(tokens=words(SOURCE))
    assert shown(w) == words(SOURCE)
    w.stack = "decoder"
    assert w.tokens is None  # the encoder's are not those of the decoder, as long as it may be


def test_forward_passes_are_chosen_and_no_layers_of_a_longer_model() -> None:
    model, texts = build(GPT2, "sdpa"), [SOURCE, TARGET, SOURCE[:, :5]]
    with torch.no_grad(), capture(model, tokenizer=Words()) as cap:
        for ids in texts:
            model(ids)
    w = cap.widget()
    assert (w.forwards, w.forward, len(w.attention)) == (3, 0, 2)
    for i in (2, 1, 0):
        w.forward = i
        assert shown(w) == words(texts[i])
    w = cap.widget(forward=-1)
    assert (w.forward, shown(w)) == (2, words(texts[2]))
    assert cap[1].widget().forwards == 1
    with pytest.raises(IndexError, match="forward 3 is not there"):
        cap.widget(forward=3)


def test_tokens_of_a_tower_label_its_cross_attention_and_never_its_keys() -> None:
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True).eval()
    with torch.no_grad(), capture(model) as cap:
        model(torch.randn(1, 3, 8), torch.randn(1, 3, 8))
    with pytest.warns(UserWarning, match="tokens label 'decoder'; 'encoder', as long"):
        w = cap.widget(tokens=["la", "banque", "prête"], stack="decoder")
    assert w.tokens == ["la", "banque", "prête"]
    w.stack = "decoder, cross-attention"
    assert shown(w) == [["la", "banque", "prête"]]
    assert shown(w, "key") == [["0", "1", "2"]]
    w.stack = "encoder"
    assert w.tokens is None


def test_what_comes_with_a_tokenizer_needs_none() -> None:
    class Pipeline:
        def __init__(self, tokenizer: Any) -> None:
            self.model, self.tokenizer = build(GPT2, "sdpa"), tokenizer

    for given, expected in ((Words(), words(SOURCE)), (3, SOURCE.tolist()), (None, SOURCE.tolist())):
        pipe = Pipeline(given)
        with torch.no_grad(), capture(pipe) as cap:
            pipe.model(SOURCE)
        assert cap.tokens == expected


def test_threads_have_words_of_their_own() -> None:
    model, texts = build(GPT2, "sdpa"), [SOURCE, TARGET]
    looked_up, both = threading.Barrier(2, timeout=60), []

    def wait(*_: Any) -> None:
        looked_up.wait()  # until both have read, and none has attended

    model.transformer.drop.register_forward_hook(wait)

    def run(ids: Tensor) -> None:
        with torch.no_grad():
            both.append(model(ids))

    with capture(model, tokenizer=Words()) as cap:
        threads = [threading.Thread(target=run, args=(ids,)) for ids in texts]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert len(both) == 2
    found = [one.tokens for forward in cap for one in forward.stacks().values()]
    assert sorted(found) == sorted(map(words, texts))


class Siamese(nn.Module):
    """Reads two texts with one encoder, in one forward pass."""

    def __init__(self) -> None:
        super().__init__()
        config = transformers.BertConfig(
            hidden_size=32, num_attention_heads=4, num_hidden_layers=2, intermediate_size=64, vocab_size=50
        )
        self.encoder = transformers.BertModel(config)

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        a, b = (self.encoder(input_ids=ids).last_hidden_state[:, 0] for ids in (one, other))
        return (a * b).sum(-1)


def test_two_texts_of_one_tower_are_two_stacks() -> None:
    torch.manual_seed(0)
    model = Siamese().eval()
    with torch.no_grad(), capture(model, tokenizer=Words()) as cap:
        model(SOURCE, TARGET)
        model(SOURCE, SOURCE)
    first, again = cap
    assert [one.tokens for one in first.stacks().values()] == [words(SOURCE), words(TARGET)]
    assert [len(one.attention) for one in first.stacks().values()] == [2, 2]
    assert [one.tokens for one in again.stacks().values()] == [words(SOURCE)]
    assert len(again.attention) == 4


class Twins(Siamese):
    """Looks both texts up before it reads either."""

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        a, b = (self.encoder.embeddings(input_ids=ids) for ids in (one, other))
        return (self.encoder.encoder(a)[0] * self.encoder.encoder(b)[0]).sum(-1)


def test_two_texts_that_are_looked_up_at_once_have_no_words() -> None:
    torch.manual_seed(0)
    with torch.no_grad(), capture(Twins().eval(), tokenizer=Words()) as cap:
        cap._model(SOURCE, TARGET)
    assert len(cap.attention) == 4
    assert [one.tokens for one in cap.stacks().values()] == [None]


def test_two_texts_of_one_tower_that_differ_in_length_are_two_stacks() -> None:
    torch.manual_seed(0)
    with torch.no_grad(), capture(Siamese().eval(), tokenizer=Words()) as cap:
        cap._model(SOURCE, TARGET[:, :9])
    assert [one.tokens for one in cap.stacks().values()] == [words(SOURCE), words(TARGET[:, :9])]
    assert [len(one.attention) for one in cap.stacks().values()] == [2, 2]


def test_a_comparison_of_a_captures_heads_has_its_words() -> None:
    model = build(GPT2, "sdpa")
    with torch.no_grad():
        cap, longer = (capture(model, tokenizer=Words()).run(ids) for ids in (SOURCE, torch.cat([SOURCE, TARGET], 1)))
    assert shown(compare((cap, 0, 1), (cap, 1, 0))) == words(SOURCE)
    both = compare({"short": cap[0], "long": (longer, 1, 0)})  # of different lengths: at equal tokens
    assert shown(both) == words(SOURCE)
    assert both.comparison["error"] is None
    assert shown(compare((cap.widget(), 0, 1), (cap, 1, 0))) == words(SOURCE)
    with torch.no_grad(), capture(model, tokenizer=Words()) as two:
        for ids in (TARGET, SOURCE):
            model(ids)
    layers = len(two[0].attention)
    assert shown(compare((two, layers, 0), (two, layers + 1, 0))) == words(SOURCE)  # layers of the second pass
    with torch.no_grad():
        unknown = capture(model).run(inputs_embeds=torch.randn(2, 12, model.config.hidden_size))
    assert compare((unknown, 0, 1), (unknown, 1, 0)).tokens is None


class Prompted(nn.Module):
    """Learned vectors beside the embeddings of a text, as prompt tuning has them."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.words, self.where = nn.Embedding(50, 16), where
        self.prompt = nn.Parameter(torch.randn(1, 3, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids)
        prompt = self.words(torch.full((1, 3), 7)) if self.where == "a word" else self.prompt
        parts = [prompt.expand(len(x), -1, -1), x]
        found: Tensor = self.encoder(torch.cat(parts[::-1] if self.where == "after" else parts, 1))
        return found


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_text_beside_learned_vectors_keeps_its_words_at_their_places(where: str) -> None:
    with torch.no_grad():
        cap = capture(Prompted(where).eval(), tokenizer=Words()).run(SOURCE)
    numbers = [f"{at}" for at in (range(3) if where == "before" else range(12, 15))]
    expected = [numbers + own if where == "before" else own + numbers for own in words(SOURCE)]
    assert shown(cap.widget()) == expected
    assert "input_ids" not in cap.inputs  # the positions are more than the ids that it was called with


def test_a_text_that_could_be_at_several_places_has_none() -> None:
    same = torch.full((2, 4), 7)
    model = Prompted("a word").eval()
    with torch.no_grad():
        cap = capture(model, tokenizer=Words()).run(same)
    assert cap.tokens is None
