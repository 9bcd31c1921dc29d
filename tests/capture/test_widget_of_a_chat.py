"""A chat in the widget: its turns are found in what the model read, by ids or by the tokens' characters."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attnwidget import AttentionWidget, capture

tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")
pytest.importorskip("jinja2")

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MESSAGES = [
    {"role": "system", "content": "You are kind."},
    {"role": "user", "content": "The key hangs on a nail. Where is the key?"},
    {"role": "assistant", "content": "It hangs there."},
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator([one["content"] for one in MESSAGES] * 5, trainer)
    found = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", additional_special_tokens=["<|im_start|>", "<|im_end|>"]
    )
    found.chat_template = TEMPLATE
    return found


@pytest.fixture(scope="module")
def ids(tokenizer: Any) -> list[int]:
    return list(tokenizer(tokenizer.apply_chat_template(MESSAGES, tokenize=False), add_special_tokens=False).input_ids)


def test_a_capture_finds_the_turns_by_its_own_ids(tokenizer: Any, ids: list[int]) -> None:
    config = transformers.GPT2Config(vocab_size=400, n_layer=1, n_head=2, n_embd=8, n_positions=len(ids))
    model = transformers.GPT2Model(config).eval()
    with torch.no_grad(), capture(model, tokenizer=tokenizer) as cap:
        model(torch.tensor([ids]))
    w = cap.widget(segments=MESSAGES, view="segments")
    assert w.mass["keys"] == ["first token", "template", "system", "user", "assistant"]
    assert w.mass["asking"] == "assistant"
    assert w.segments == [cap.segments(MESSAGES)]


def test_a_widget_finds_them_in_its_tokens(tokenizer: Any, ids: list[int]) -> None:
    q, k = torch.randn(2, len(ids), 4)
    w = AttentionWidget(q, k, is_causal=True, tokens=ids, tokenizer=tokenizer, segments=MESSAGES, view="segments")
    assert w.mass["keys"] == ["first token", "template", "system", "user", "assistant"]
    assert w.mass["total"] == len(tokenizer(MESSAGES[2]["content"], add_special_tokens=False).input_ids)
