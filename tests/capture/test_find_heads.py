"""Heads that are found in models, over a set of texts: in one that learned to copy, its induction heads come first."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from copying import LONGEST, CopyModel, repeated, trained

from attnwidget import Attention, AttentionStack, capture, find_heads, segments
from attnwidget.results import HeadRows


@pytest.fixture(scope="module")
def model() -> CopyModel:
    return trained()


@pytest.fixture(scope="module")
def texts() -> list[torch.Tensor]:
    return list(repeated(6, LONGEST, torch.Generator().manual_seed(9))[0])


def places(records: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(one["layer"], one["head"]) for one in records]


def test_a_model_that_copies_shows_its_induction_heads_first(model: CopyModel, texts: list[torch.Tensor]) -> None:
    found = find_heads(model, texts, kind=["induction", "previous_token"], top=None)
    induction, previous = ([one for one in found if one["kind"] == kind] for kind in ("induction", "previous_token"))
    assert {layer for layer, _ in places(induction)[:4]} == {1}  # the second layer, above all heads of the first
    assert induction[0]["mean"] > 0.7
    assert places(previous)[0][0] == 0  # a head of the first layer tells what came before
    assert [one["rank"] for one in induction] == list(range(1, 9))
    assert all(one["n"] == 6 and one["std"] > 0 and one["rows"] == 6 * LONGEST for one in found)


def test_its_retrieval_heads_are_those_that_copy_a_needle(model: CopyModel) -> None:
    """The needle is the only place where the words of the answer were: a head that writes them looks there."""
    make = torch.Generator().manual_seed(3)
    texts = []
    for _ in range(4):
        words = torch.randperm(20, generator=make)
        hay, needle = words[:14], words[14:]
        texts.append(torch.cat([hay[:5], needle, hay[5:], needle]))
    segments = {"needle": (5, 11), "answer": (21, 26)}  # the first word of the needle is the question
    found = find_heads(model, texts, kind="retrieval", segments=segments, top=None)
    assert found[0]["layer"] == 1
    assert found[0]["mean"] > 0.7
    assert all(one["mean"] < found[0]["mean"] for one in found if one["layer"] == 0)
    after = model(torch.stack(texts))[:, 20:25].argmax(-1)
    assert float((after == torch.stack(texts)[:, 21:26]).float().mean()) > 0.7  # and the model does copy it


def test_captures_stacks_and_models_give_the_same(model: CopyModel, texts: list[torch.Tensor]) -> None:
    keywords: dict[str, Any] = {"kind": ["induction", "sink", "entropy"], "top": None}
    of_model = find_heads(model, texts, **keywords)
    one_by_one = capture(model)
    for text in texts:
        one_by_one(text[None])
    together = capture(model).run(torch.stack(texts))
    stack: AttentionStack = together.attention
    words = [[str(int(word)) for word in text] for text in texts]
    for found in (
        find_heads(one_by_one, **keywords),
        find_heads(together, **keywords),
        find_heads(together[0], **keywords),
        find_heads(stack, words, **keywords),
    ):
        for ours, theirs in zip(found, of_model, strict=True):
            assert [ours[key] for key in ("kind", "n", "rows")] == [theirs[key] for key in ("kind", "n", "rows")]
        means = {(one["kind"], one["layer"], one["head"]): one["mean"] for one in found}
        for one in of_model:
            assert means[one["kind"], one["layer"], one["head"]] == pytest.approx(one["mean"], rel=1e-3, abs=1e-3)


def test_models_are_compared(model: CopyModel, texts: list[torch.Tensor]) -> None:
    torch.manual_seed(1)
    untrained = CopyModel()
    found = find_heads({"before": untrained, "after": model}, texts, kind="induction", top=1)
    before, after = found
    assert (before["model"], after["model"]) == ("before", "after")
    assert after["mean"] > 2 * before["mean"]
    assert [one["model"] for one in find_heads([untrained, model], texts, kind="induction", top=1)] == [0, 1]
    cap = capture(model).run(texts[0][None])
    with pytest.raises(ValueError, match="texts are for models"):
        find_heads(cap, texts, kind="induction")


def test_texts_are_strings_with_a_tokenizer_ids_or_arguments() -> None:
    torch.manual_seed(0)
    model = CopyModel()

    class Words:
        def __call__(self, text: str, return_tensors: str) -> dict[str, torch.Tensor]:
            return {"input_ids": torch.tensor([[ord(letter) - 97 for letter in text]])}

        def convert_ids_to_tokens(self, one: int) -> str:
            return chr(one + 97)

    class Encodes:
        def encode(self, text: str) -> list[int]:
            return [ord(letter) - 97 for letter in text]

        def decode(self, ids: list[int]) -> str:
            return chr(ids[0] + 97)

    ids = [ord(letter) - 97 for letter in "abcabcabc"]
    ways: list[tuple[Any, Any]] = [
        (["abcabcabc"], Words()),
        ("abcabcabc", Encodes()),
        ([ids], None),
        (torch.tensor([ids]), None),
        ([{"input_ids": torch.tensor([ids])}], None),
    ]
    found = [find_heads(model, texts, tokenizer=tokenizer, kind="induction") for texts, tokenizer in ways]
    assert all(one == found[0] for one in found)
    with pytest.raises(ValueError, match="give the tokenizer as well"):
        find_heads(model, ["abc"], kind="induction")
    with pytest.raises(ValueError, match="needs texts, and there are none"):
        find_heads(model, kind="induction")
    with pytest.raises(TypeError, match=r"give an nn\.Module"):
        find_heads(3, ["abc"], kind="induction")
    with pytest.raises(TypeError, match="give a string, ids, or a dict"):
        find_heads(model, [[0.5]], kind="induction")


def test_what_a_capture_has_reduced_is_refused_for_whole_rows() -> None:
    model, x = torch.nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(1, 300, 8)
    cap = capture(model, keep="overview").run(x, x, x)
    assert find_heads(cap, kind="entropy")[0]["n"] == 1
    with pytest.raises(ValueError, match="capture again with keep='tensors'"):
        find_heads(cap, kind="sink")


def test_a_part_of_the_heads_has_the_models_numbers() -> None:
    torch.manual_seed(0)
    model = CopyModel()
    cap = capture(model, heads=[1, 3]).run(torch.arange(20)[None])
    found = find_heads(cap, kind="sink", top=None)
    assert {(one["head"], one["model_head"]) for one in found} == {(0, 1), (1, 3)}


def weight_on_key_2(rows: HeadRows) -> torch.Tensor:
    """The weight on key 2; no number of a row that has all its weight on one key."""
    found: torch.Tensor = rows.weights[..., 2].masked_fill((rows.weights == 1).any(-1), torch.nan)
    return found


def test_numbers_of_heads_are_the_means_and_spreads_over_the_texts() -> None:
    B, H, K = 3, 5, 7
    make = torch.Generator().manual_seed(0)
    layers = [torch.randn(B, H, K, K, generator=make).double().softmax(-1) for _ in range(2)]
    layers[1][:, 0] = layers[0][:, 4] = layers[0][:, 3]  # of the same number the first layer and head comes first
    layers[1][1, 2] = torch.eye(K)  # a text in which this head has no row that counts
    stack = AttentionStack(map(Attention.from_weights, layers), names=["low", "high"])
    kinds: dict[str, Any] = {"on key 2": {"on key 2": weight_on_key_2}, "previous_token": "previous_token"}
    of_texts = {
        "on key 2": torch.stack(layers)[..., 2].mean(-1),
        "previous_token": torch.stack(layers).diagonal(-1, -2, -1).mean(-1),
    }
    for kind, values in of_texts.items():
        wanted = []
        for layer in range(2):
            for head in range(H):
                own = values[layer, :, head]
                own = own[[0, 2]] if (kind, layer, head) == ("on key 2", 1, 2) else own
                wanted.append((float(own.mean()), float(own.std()), len(own), layer, head))
        wanted.sort(key=lambda one: (-one[0], *one[3:]))
        found = find_heads(stack, kind=kinds[kind], top=None)
        assert [(x["n"], x["layer"], x["head"]) for x in found] == [one[2:] for one in wanted]
        assert [(x["kind"], x["name"]) for x in found] == [(kind, ("low", "high")[one[3]]) for one in wanted]
        assert [x["rank"] for x in found] == list(range(1, 2 * H + 1))
        for number, name in enumerate(("mean", "std")):
            assert [x[name] for x in found] == pytest.approx([one[number] for one in wanted], rel=1e-5, abs=1e-6)
        assert {one["rows"] for one in found} == {B * K}
        assert find_heads(stack, kind=kinds[kind], top=3) == found[:3]
    some = find_heads(stack, kind=kinds["on key 2"], rows=2, top=1)
    assert some[0]["rows"] == B * 2
    alone = find_heads(Attention.from_weights(layers[0][2:]), kind=kinds["on key 2"], top=1)
    assert [(one["n"], one["std"]) for one in alone] == [(1, None)]
    assert alone[0]["mean"] == pytest.approx(float(of_texts["on key 2"][0, 2].max()), rel=1e-5)


class Letters:
    """A tokenizer of single letters, spaces and stops."""

    letters = "ABCDEFGHab. "

    def __call__(self, text: str, return_tensors: str = "pt") -> dict[str, torch.Tensor]:
        return {"input_ids": torch.tensor([[self.letters.index(one) for one in text]])}

    def convert_ids_to_tokens(self, one: int) -> str:
        return self.letters[one]


SENTENCES = " Aa. Bb. Ca. Db. Ea. Fb. Ga."


def test_sentences_are_found_in_each_text() -> None:
    torch.manual_seed(0)
    model = CopyModel()
    texts = [SENTENCES, " Aab. Ba. Cb. Db. Ea. Fa. Gb. Ha."]
    found = find_heads(model, texts, tokenizer=Letters(), kind="receiver", segments="sentences", top=None)
    given = [segments("sentences", tokenizer=Letters(), ids=Letters()(text)["input_ids"]) for text in texts]
    by_hand = [
        {f"{i}": (one.start, one.stop) for i, one in enumerate(known) if one.name.startswith("sentence")}
        for known in given
    ]
    assert [len(runs) for runs in by_hand] == [7, 8]
    for places in (given, by_hand):
        again = find_heads(model, texts, tokenizer=Letters(), kind="receiver", segments=places, top=None)
        assert again == found
    cap = capture(model, tokenizer=Letters())
    for text in texts:
        cap(**Letters()(text))
    assert find_heads(cap, kind="receiver", segments="sentences", top=None) == found


def test_segments_know_their_answer_and_roles_name_others() -> None:
    torch.manual_seed(0)
    model, ids = CopyModel(), torch.arange(20)[None]
    known = segments({"prompt": (1, 12), "reply": (12, 20)}, length=20)
    found = find_heads(model, [ids], kind="lookback", segments=known)
    assert found == find_heads(model, [ids], kind="lookback", segments={"answer": (12, 20)})
    places = {"passage": (1, 6), "asked": (8, 12)}
    asked = {"query": "asked", "documents": ["passage"]}
    other = ids.clone()
    other[0, 8:12] = 0
    first = find_heads(model, [ids], kind="query_focused", segments=places, roles=asked, null=[other])
    nested = segments({"text": [(1, 7), {"passage": (1, 6)}], "asked": (8, 12)}, length=20)
    assert find_heads(model, [ids], kind="query_focused", segments=nested, roles=asked, null=[other]) == first
    caps = capture(model).run(ids), capture(model).run(other)
    assert find_heads(caps[0], kind="query_focused", segments=places, roles=asked, null=caps[1]) == first
    same = find_heads(model, [ids], kind="query_focused", segments=places, roles=asked, null=[ids])
    assert {one["mean"] for one in same} == {0.0}  # less itself


def test_segments_that_do_not_fit_are_refused_with_the_text() -> None:
    torch.manual_seed(0)
    model = CopyModel()
    with pytest.raises(ValueError, match="segments of text 0: "):
        find_heads(model, [torch.arange(20)], kind="receiver", segments="sentences")
    with pytest.raises(ValueError, match="lookback needs to know which tokens are the answer"):
        find_heads(model, [SENTENCES], tokenizer=Letters(), kind="lookback", segments="sentences")
    with pytest.raises(ValueError, match="null holds texts, but"):
        find_heads(capture(model).run(torch.arange(20)[None]), kind="query_focused", null=["a"])


def test_each_text_is_compared_with_its_own_null_query() -> None:
    """One text too few would leave a difference out, one too many would be a text of its own: both without a word."""
    torch.manual_seed(0)
    model, texts = CopyModel(), [torch.randint(0, 20, (20,)) for _ in range(3)]
    how: dict[str, Any] = {"kind": "query_focused", "segments": {"query": (13, 17), "doc": (2, 6)}}
    for null in (texts[:1], [*texts, texts[0]], iter(texts[:2])):
        with pytest.raises(ValueError, match=r"null has \d texts? for 3 texts: give each text once more"):
            find_heads(model, texts, null=null, **how)
    cap = capture(model).run(torch.stack(texts))
    with pytest.raises(ValueError, match="null has 1 text for 3 texts"):
        find_heads(cap, null=capture(model).run(texts[0][None]), **how)
    found = find_heads({"a": model, "b": model}, iter(texts), null=iter(texts), **how)
    assert {(one["model"], one["mean"], one["n"]) for one in found} == {("a", 0.0, 3), ("b", 0.0, 3)}


@pytest.mark.parametrize(
    ("keywords", "error", "told"),
    [
        ({"roles": {"anser": "answer"}}, ValueError, "roles has 'anser': did you mean 'answer'"),
        ({"roles": "answer"}, TypeError, "roles is 'answer': give names of segments by role"),
        ({"roles": {"answer": 3}}, TypeError, "roles has 3 as the answer"),
        (
            {"segments": {"answer": (12, 20), "doc": (5, 50)}},
            ValueError,
            "the doc is at tokens 5 to 50, and there are 20",
        ),
        ({"segments": {"answer": (12, 20), "doc": (9, 5)}}, ValueError, "the doc is at tokens 9 to 5"),
        ({"segments": {"answer": (12, 20), "doc": [(1, 2), (-3, 4)]}}, ValueError, "the doc is at tokens -3 to 4"),
        ({"texts": []}, ValueError, "there are no texts: give one or more"),
    ],
)
def test_what_names_nothing_that_is_there_is_refused(keywords: dict[str, Any], error: Any, told: str) -> None:
    """Of a metric of one's own too, which is given the runs as they are."""
    torch.manual_seed(0)
    how = {"texts": [torch.arange(20)], "segments": {"answer": (12, 20)}, **keywords}
    for kind in ("lookback", {"mine": lambda rows: rows.weights[..., 0]}):
        with pytest.raises(error, match=told):
            find_heads(CopyModel(), kind=kind, **how)  # type: ignore[arg-type]


def test_a_generated_text_knows_its_answer() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_embd=32, n_head=4, n_layer=2, vocab_size=50, n_positions=64)
    model = transformers.GPT2LMHeadModel(config).eval()
    with capture(model) as cap:
        model.generate(torch.arange(3, 13)[None], max_new_tokens=8, do_sample=False, pad_token_id=0)
    found = find_heads(cap, kind="lookback", top=None)
    assert found == find_heads(cap, kind="lookback", segments={"answer": (10, 17)}, top=None)
    assert {one["rows"] for one in found} == {7}  # the last token that was written was never read
