"""Segments of a chat, by templates that tokenizers write it with, and of texts in characters."""

from __future__ import annotations

from typing import Any

import pytest

from attnwidget import segments
from attnwidget.results import Segments

tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")
pytest.importorskip("jinja2")

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
INSTRUCT = (  # the system message stands in the first turn, and texts are trimmed
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {% if loop.index0 == 1 %}"
    "{{ messages[0].content | trim }}\n\n{% endif %}{{ m.content | trim }} [/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content | trim }}{{ eos_token }}{% endif %}{% endfor %}"
)
TEXT = "You are helpful.\nBe kind. user assistant The key hangs on a nail. Héllo 🙂. Where is the key? It hangs there. "
MESSAGES = [
    {"role": "system", "content": "You are helpful.\nBe kind."},
    {"role": "user", "content": "The key hangs on a nail. Héllo 🙂.\n\nWhere is the key?"},
]
ANSWER = {"role": "assistant", "content": "It hangs there."}


@pytest.fixture(scope="module")
def trained() -> Any:
    """A byte-level tokenizer, as GPT-2 and most chat models have one."""
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator([TEXT] * 10, trainer)
    return inner


def tokenizer_of(trained: Any, template: str = CHATML, **keywords: Any) -> Any:
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<|endoftext|>", **keywords}
    found = transformers.PreTrainedTokenizerFast(
        tokenizer_object=trained, additional_special_tokens=["<|im_start|>", "<|im_end|>"], **special
    )
    found.chat_template = template
    return found


def ids_of(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def prompt_of(tokenizer: Any, messages: Any, *, prompts: bool = True) -> list[int]:
    return ids_of(tokenizer, tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompts))


def said(tokenizer: Any, ids: list[int], found: Segments, name: str) -> str:
    return str(tokenizer.decode([ids[at] for at in found.positions(name)]))


class TestTurns:
    def test_each_says_what_its_message_does(self, trained: Any) -> None:
        tokenizer = tokenizer_of(trained)
        ids = prompt_of(tokenizer, MESSAGES)
        found = segments(MESSAGES, tokenizer=tokenizer)
        assert found.distinct == ("first token", "template", "system", "user")
        assert found.length == len(ids)
        for message in MESSAGES:
            assert said(tokenizer, ids, found, message["role"]) == message["content"]
        assert found == segments(MESSAGES, tokenizer=tokenizer, ids=ids)

    def test_what_follows_is_the_answer(self, trained: Any) -> None:
        tokenizer = tokenizer_of(trained)
        ids = [*prompt_of(tokenizer, MESSAGES), *ids_of(tokenizer, ANSWER["content"])]
        found = segments(MESSAGES, tokenizer=tokenizer, ids=ids)
        assert found.answer == "answer"
        assert said(tokenizer, ids, found, "answer") == ANSWER["content"]

    def test_the_answer_may_be_a_message_and_its_end_never_read(self, trained: Any) -> None:
        tokenizer = tokenizer_of(trained)
        ids = prompt_of(tokenizer, [*MESSAGES, ANSWER], prompts=False)
        for part in (ids, ids[:-2], ids[:-3]):  # as they are; without the line break; without the end of the turn
            found = segments([*MESSAGES, ANSWER], tokenizer=tokenizer, ids=part)
            assert found.answer == "assistant"
            whole = said(tokenizer, part, found, "assistant")
            assert whole == ANSWER["content"][: len(whole)]
            assert len(whole) > 10

    def test_an_answer_in_other_tokens_is_found_by_its_characters(self, trained: Any) -> None:
        tokenizer = tokenizer_of(trained)
        bytewise = [tokenizer.convert_tokens_to_ids(one) for one in "ItĠhangsĠthere."]
        ids = [*prompt_of(tokenizer, MESSAGES), *bytewise]
        assert ids != prompt_of(tokenizer, [*MESSAGES, ANSWER], prompts=False)[: len(ids)]
        found = segments([*MESSAGES, ANSWER], tokenizer=tokenizer, ids=ids)
        assert found.positions("assistant").tolist() == list(range(len(ids) - len(bytewise), len(ids)))
        assert said(tokenizer, ids, found, "user") == MESSAGES[1]["content"]

    def test_padding_around_it(self, trained: Any) -> None:
        tokenizer = tokenizer_of(trained)
        pad, own = [tokenizer.pad_token_id], prompt_of(tokenizer, MESSAGES)
        found = segments(MESSAGES, tokenizer=tokenizer, ids=pad * 3 + own + pad * 2)
        assert found.names[:2] == ("padding", "first token")
        assert found.spans[:2] == ((0, 3), (3, 4))
        assert said(tokenizer, pad * 3 + own + pad * 2, found, "user") == MESSAGES[1]["content"]
        assert "answer" not in found

    def test_turns_of_one_role_are_numbered(self, trained: Any) -> None:
        chat = [*MESSAGES, ANSWER, {"role": "user", "content": "Where is the key?"}]
        found = segments(chat, tokenizer=tokenizer_of(trained))
        assert found.distinct == ("first token", "template", "system", "user 1", "assistant", "user 2")

    def test_a_template_that_moves_and_trims(self, trained: Any) -> None:
        tokenizer = tokenizer_of(trained, INSTRUCT)
        chat = [MESSAGES[0], {"role": "user", "content": "  Where is the key? "}, ANSWER]
        found = segments(chat, tokenizer=tokenizer)
        ids = prompt_of(tokenizer, chat, prompts=False)
        for name, text in (
            ("system", MESSAGES[0]["content"]),
            ("user", "Where is the key?"),
            ("assistant", "It hangs there."),
        ):
            assert said(tokenizer, ids, found, name).strip() == text

    def test_parts_of_a_message_are_inside_its_turn(self, trained: Any) -> None:
        template = CHATML.replace("{{ m.content }}", "{% for p in m.content %}{{ p.text }}\n{% endfor %}")
        parts = [{"type": "text", "text": "The key hangs.", "name": "doc"}, {"type": "text", "text": "Where is it?"}]
        found = segments([{"role": "user", "content": parts}], tokenizer=tokenizer_of(trained, template))
        assert found.distinct == ("first token", "template", "user")
        assert found["user"].distinct == ("doc", "rest of user", "part 2")

    def test_turn_document_paragraph(self, trained: Any) -> None:
        found = segments(MESSAGES, tokenizer=tokenizer_of(trained)).divide("paragraphs", "user")
        found = found.divide("sentences", "paragraph 1")
        assert [one.name for one in found if one.level] == ["paragraph 1", "sentence 1", "sentence 2", "paragraph 2"]
        assert found.depth == 3


class TestWhatIsRefused:
    def test_a_template_that_changes_what_is_said(self, trained: Any) -> None:
        changing = tokenizer_of(trained, CHATML.replace("m.content", "m.content | upper"))
        with pytest.raises(ValueError, match="changes the text of 'system'"):
            segments(MESSAGES, tokenizer=changing)

    def test_a_template_that_leaves_out_or_repeats(self, trained: Any) -> None:
        with pytest.raises(ValueError, match="leaves out the text of 'user'"):
            segments(MESSAGES, tokenizer=tokenizer_of(trained, "{{ messages[0].content }}"))
        with pytest.raises(ValueError, match="writes the text of 'system' 2 times"):
            segments(MESSAGES, tokenizer=tokenizer_of(trained, "{{ messages[0].content }}" + CHATML))

    def test_a_template_that_refuses(self, trained: Any) -> None:
        with pytest.raises(ValueError, match="refuses these messages: no system"):
            segments(MESSAGES, tokenizer=tokenizer_of(trained, "{{ raise_exception('no system') }}"))

    def test_tokens_of_another_text(self, trained: Any) -> None:
        tokenizer = tokenizer_of(trained)
        with pytest.raises(ValueError, match="not those of the messages"):
            segments(MESSAGES, tokenizer=tokenizer, ids=ids_of(tokenizer, "Where is the key?"))
        with pytest.raises(ValueError, match="the tokens end before"):
            segments(MESSAGES, tokenizer=tokenizer, ids=prompt_of(tokenizer, MESSAGES)[:12])

    def test_no_template(self, trained: Any) -> None:
        with pytest.raises(ValueError, match="no tokenizer: give tokenizer= with a chat_template"):
            segments(MESSAGES)
        with pytest.raises(ValueError, match="without a chat template"):
            segments(MESSAGES, tokenizer=tokenizer_of(trained, ""))

    def test_messages_without_a_text(self, trained: Any) -> None:
        with pytest.raises(ValueError, match="have no text"):
            segments([{"role": "user", "content": " "}], tokenizer=tokenizer_of(trained))


class TestCharacters:
    TEXT = "The key hangs there. Where is the key?"

    def test_they_are_those_of_the_text(self, trained: Any) -> None:
        tokenizer = tokenizer_of(trained)
        spans = {"document": (3, 20), "question": (21, 38)}
        ids = ids_of(tokenizer, self.TEXT)
        for tokens in (self.TEXT, tokenizer(self.TEXT), tokenizer(self.TEXT, return_offsets_mapping=True)):
            found = segments(spans, tokenizer=tokenizer, tokens=tokens, unit="characters")
            assert said(tokenizer, ids, found, "document") == " key hangs there."
            assert said(tokenizer, ids, found, "question").strip() == "Where is the key?"
        assert found == segments(spans, tokenizer=trained, tokens=self.TEXT, unit="characters")
        assert found == segments(spans, tokens=trained.encode(self.TEXT), unit="characters")

    def test_a_token_across_a_border_is_told(self, trained: Any) -> None:
        with pytest.raises(ValueError, match=r"token \d+, characters \d+ to \d+, lies across a border of 'a'"):
            segments({"a": (3, 11)}, tokenizer=trained, tokens=self.TEXT, unit="characters")

    def test_borders_outside_of_the_text(self, trained: Any) -> None:
        for span in ((4, 39), (7, 7), (-1, 4)):
            with pytest.raises(ValueError, match="give 0 ≤ start < stop ≤ 38"):
                segments({"a": span}, tokenizer=trained, tokens=self.TEXT, unit="characters")

    def test_where_tokens_stand_must_be_known(self, trained: Any) -> None:
        with pytest.raises(ValueError, match="the places of the tokens in the text are unknown"):
            segments({"a": (0, 3)}, tokens=["The", "key"], unit="characters")
        with pytest.raises(TypeError, match="does not tell where tokens stand"):
            segments({"a": (0, 3)}, tokens=self.TEXT, unit="characters")

    def test_the_text_must_be_that_of_the_ids(self, trained: Any) -> None:
        tokenizer = tokenizer_of(trained)
        ids = ids_of(tokenizer, self.TEXT)
        assert segments("sentences", tokenizer=tokenizer, tokens=self.TEXT, ids=ids).length == len(ids)
        with pytest.raises(ValueError, match="not the 3 ids"):
            segments("sentences", tokenizer=tokenizer, tokens=self.TEXT, ids=[1, 2, 3])
