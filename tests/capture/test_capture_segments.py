"""What a capture knows of its own text: prompt and answer, padding, turns; whichever queries were kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from captured import GPT2, build
from torch import Tensor

from attnwidget import Capture, capture, segments
from attnwidget._capture.call.call_text import RecordText

WORDS = [f"word{i}" for i in range(50)]


class Words:
    """A tokenizer of a word for each id."""

    def convert_ids_to_tokens(self, one: int) -> str:
        return "." if one == 9 else WORDS[one]


@pytest.fixture(scope="module")
def prompted() -> dict[str, Any]:
    """Twelve tokens of a prompt, and six of an answer of which the last was never read."""
    model: Any = build(GPT2, "sdpa")
    ids: Tensor = torch.arange(3, 15)[None]
    found = {}
    for name, keywords in {"all": {}, "some": {"queries": slice(-4, None)}}.items():
        with torch.no_grad(), capture(model, tokenizer=Words(), **keywords) as cap:
            model.generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0)
        found[name] = cap
    return found


class TestPromptAndAnswer:
    def test_they_are_told_apart(self, prompted: Any) -> None:
        found = prompted["all"].segments()
        assert (found.names, found.spans) == (("first token", "prompt", "answer"), ((0, 1), (1, 12), (12, 17)))
        assert found == segments(prompted["all"]) == prompted["all"][0].segments()
        assert found.answer == "answer"
        mass = prompted["all"].attention.by_segment("answer", found)
        weights = prompted["all"].weights(1)[0, 2].double()
        torch.testing.assert_close(mass.mass[1, 2, 0, 1].double(), weights[12:, 1:12].sum(1).mean(), rtol=1e-5, atol=0)

    def test_where_some_queries_are_kept_they_stand_at_their_places(self, prompted: Any) -> None:
        cap = prompted["some"]
        assert cap.attention[0].shape.Q < cap.attention[0].shape.K == 17
        parts = cap.segments()
        assert parts == prompted["all"].segments()
        few = cap.attention.by_segment("answer", parts, without=("sink", "self"))
        last = prompted["all"].attention.by_segment(range(13, 17), parts, without=("sink", "self"))
        raw, whole = (
            cap.attention.by_segment("answer", parts),
            prompted["all"].attention.by_segment(range(13, 17), parts),
        )
        torch.testing.assert_close(raw.mass[:, :, 0], whole.mass.mean(2))
        assert few.keys == last.keys

    def test_a_file_knows_it_too(self, prompted: Any, tmp_path: Path) -> None:
        prompted["all"].save(tmp_path / "five.safetensors")
        loaded = Capture.load(tmp_path / "five.safetensors")
        assert loaded.segments() == prompted["all"].segments()
        assert loaded.segments("sentences").distinct == prompted["all"].segments("sentences").distinct

    def test_its_own_words_are_the_text(self, prompted: Any) -> None:
        assert prompted["all"].segments("sentences").spans[0] == (0, 1)
        named = prompted["all"].segments({"four": "word5 word6 word7 word8"})
        assert named.positions("four").tolist() == [2, 3, 4, 5]


def test_padding_is_known_without_a_tokenizer() -> None:
    model: Any = build(GPT2, "sdpa")
    ids = torch.tensor([[0, 0, 3, 4, 5], [6, 7, 8, 9, 10]])
    with torch.no_grad(), capture(model) as cap:
        model(ids, attention_mask=(ids > 0).long())
    assert cap.segments({"a": (3, 5)}).names == ("padding", "first token", "a")
    assert cap.segments({"a": (3, 5)}, batch=1).names == ("first token", "other", "a")
    with pytest.raises(ValueError, match="prompt and answer are not known"):
        cap.segments()
    with pytest.raises(IndexError, match="batch 2 is not there"):
        cap.segments({"a": (3, 5)}, batch=2)


@pytest.mark.parametrize(
    ("calls", "prompt"),
    [
        ([12, 1, 1, 1], 12),
        ([8, 8, 3, 1, 1], 19),  # the prompt in parts
        ([12], None),
        ([1, 1, 1], None),
        ([12, 1, 1, 5, 1], None),  # a second question on the same cache
        ([12, 4, 4], None),
    ],
)
def test_only_what_was_read_token_by_token_is_an_answer(calls: list[int], prompt: int | None) -> None:
    text = RecordText.of(None, 1, calls[0], cross=False)
    for count in calls[1:]:
        text.append(None, 1, count)
    assert text.prompt == prompt
    assert text.copy().prompt == prompt


def test_what_was_rejected_is_forgotten() -> None:
    text = RecordText.of(None, 1, 12, cross=False)
    for count in (1, 1, 4):
        text.append(None, 1, count)
    text.shorten(15)
    assert (text.calls, text.prompt) == ([12, 1, 1, 1], 12)


def test_sentences_are_known_by_their_token_types(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = transformers.BertModel(transformers.BertConfig(**sizes, intermediate_size=16)).eval()
    ids = torch.tensor([[2, 5, 6, 3, 7, 8, 3], [2, 5, 3, 7, 3, 0, 0], [2, 5, 6, 7, 8, 9, 3]])
    types = torch.tensor([[0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0, 0]])
    with torch.no_grad(), capture(model) as cap:
        model(ids, attention_mask=(ids > 0).long(), token_type_ids=types)
    cap.save(tmp_path / "pair.safetensors")
    for known in (cap, Capture.load(tmp_path / "pair.safetensors")):
        one, two, three = (known.segments(batch=batch) for batch in range(3))
        assert one.names == ("first token", "sentence A", "sentence B")
        assert (one.positions("sentence A").tolist(), one.positions("sentence B").tolist()) == ([1, 2, 3], [4, 5, 6])
        assert two.names == ("first token", "sentence A", "sentence B", "padding")
        assert two.positions("sentence B").tolist() == [3, 4]
        assert three.names == ("first token", "sentence A")
        assert known.widget().segments[1] == two  # by themselves
    with torch.no_grad(), capture(model) as alone:
        model(ids, token_type_ids=types * 0)
    with pytest.raises(ValueError, match="prompt and answer are not known"):
        alone.segments()
