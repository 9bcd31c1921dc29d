"""What is asked about the parts: interventions agree, the copying model's circuit is found, dictionaries, distances."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import copying
import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from attnwidget import Attention, Capture, capture
from attnwidget.results import Composition


class Block(nn.Module):
    """A block of width 16 with two heads; `cut` changes what q and k read, with the norm's scale held."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.qkv = nn.Parameter(1 + 0.3 * torch.randn(16)), nn.Linear(16, 48)
        self.out, self.up, self.down = nn.Linear(16, 16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.cut: Callable[[Tensor], Tensor] = lambda x: x

    def forward(self, x: Tensor) -> Tensor:
        scale = x.square().mean(-1, keepdim=True).add(1e-6).rsqrt()
        read = self.cut(x) * scale * self.gain
        q, k, v = (one.unflatten(-1, (2, 8)).transpose(1, 2) for one in self.qkv(read).chunk(3, -1))
        found = self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        x = x + found
        return x + self.down(F.gelu(self.up(x)))


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(50, 16)
        self.blocks = nn.ModuleList([Block(), Block(), Block()])

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return x


TOKENS = torch.tensor([[3, 8, 1, 40, 8, 22, 5]])


def test_removing_a_part_changes_the_score_by_the_named_number() -> None:
    """In float64, for what heads, MLPs, biases and the embedding wrote, at the key and at the query."""
    model = Blocks().double().eval()
    cap = capture(model, sources=True).run(TOKENS)
    layer, head, query, key = 2, 1, 6, 4
    found = cap.why(layer, head, query, key)
    assert abs(found.rounding) < 1e-12
    first, second = model.blocks[0], model.blocks[1]
    heads = cap.attention[1].output(head=1)
    written = {
        "1·1": heads.double() @ second.out.weight[:, 8:].T,
        "token": model.words(TOKENS)[0],
        "bias of 0.out": first.out.bias.expand(7, 16),
    }
    for label, what in written.items():
        for at, parts, sums in ((key, found.key_parts, found.by_key), (query, found.query_parts, found.by_query)):

            def cut(x: Tensor, what: Tensor = what, at: int = at) -> Tensor:
                x = x.clone()
                x[0, at] -= what[at]
                return x

            model.blocks[2].cut = cut
            changed = capture(model).run(TOKENS).attention[layer]
            score = float(changed.block("scaled", head=head)[query, key])
            model.blocks[2].cut = lambda x: x
            named = float(sums[[part.label for part in parts].index(label)])
            assert found.score - score == pytest.approx(named, abs=1e-6 if label == "1·1" else 1e-10)


@pytest.fixture(scope="module")
def copied() -> tuple[Capture, Tensor]:
    text, _ = copying.repeated(1, 30, torch.Generator().manual_seed(5))
    with torch.enable_grad():
        model = copying.trained()
    return capture(model, sources=True).run(text), text


def test_the_circuit_of_the_copying_model_is_found_with_no_hint(copied: Any) -> None:
    """The head that copies reads, with its keys, what the head that looks at the token before has written."""
    cap, text = copied
    found: Composition = cap.composition()
    run = int((text[0] == text[0, 0]).nonzero()[1])
    at = 29
    weights = [float(cap.attention[1].block(head=h, queries=at)[0, at - run + 1]) for h in range(4)]
    copies = max(range(4), key=lambda h: weights[h])
    before = [float(cap.attention[0].block(head=h).diagonal(-1)[3:].mean()) for h in range(4)]
    largest = found.into(1, copies, "key")[0]
    assert largest.source.kind == "head"
    assert largest.source.head == max(range(4), key=lambda h: before[h])
    assert found.into(1, copies, "query")[0].source.label == "token"
    pair = cap.why(1, copies, at, at - run + 1, against="mean")
    assert pair.key_parts[int(pair.by_key.abs().argmax())].label == largest.source.label
    assert f"what head {largest.source.label} wrote" in str(pair)


def test_shares_are_of_the_centered_score_and_of_the_output() -> None:
    """Against sums over all parts, written out in float64."""
    model = Blocks().double().eval()
    cap = capture(model, sources=True).run(TOKENS)
    found = cap.composition()
    att = cap.attention[2]
    weights = att.block(head=1).double()
    even = torch.ones(7, 7, dtype=torch.float64).tril()
    centered = weights - even / even.sum(1, keepdim=True)
    by_part: dict[str, float] = {}
    for i in range(7):
        for j in range(i + 1):
            pair = cap.why(2, 1, i, j)
            for part, value in zip(pair.key_parts, pair.by_key.tolist(), strict=True):
                by_part[part.label] = by_part.get(part.label, 0.0) + value * float(centered[i, j])
    total = sum(by_part.values())
    for edge in found.into(2, 1, "key"):
        assert edge.share == pytest.approx(by_part[edge.source.label] / total, abs=1e-6)
        assert edge.score == pytest.approx(by_part[edge.source.label] / 7, abs=1e-6)
    for side in ("query", "key", "value"):
        assert sum(edge.share for edge in found.into(2, 1, side)) == pytest.approx(1.0)
    alone = cap.composition(layers=[2], at=6)
    assert alone.heads == ((2, 0), (2, 1))
    assert alone.queries == 1
    assert {one["side"] for one in alone.records()} == {"query", "key", "value"}
    with pytest.raises(ValueError, match="was not asked for"):
        alone.into(0, 0)


def test_a_dictionary_names_what_a_module_wrote() -> None:
    model = Blocks().double().eval()
    cap = capture(model, sources=True).run(TOKENS)
    plain = cap.why(2, 1, 6, 4)
    wrote = float(plain.by_key[[part.label for part in plain.key_parts].index("MLP 1")])
    made: list[Tensor] = []
    hook = model.blocks[1].down.register_forward_hook(lambda module, given, output: made.append(output.detach()))
    model(TOKENS)
    hook.remove()
    decoder = torch.linalg.qr(torch.randn(16, 16, dtype=torch.float64))[0][:5]
    activations = made[0] @ decoder.T
    activations[..., 3] = 0
    found = cap.why(2, 1, 6, 4, features={"blocks.1.down": (decoder, activations)})
    named = [part for part in found.key_parts if part.module == "blocks.1.down"]
    assert sorted(part.label for part in named) == [
        *(f"1.down feature {i}" for i in (0, 1, 2, 4)),
        "1.down, not in the dictionary",
    ]
    values = {part.label: float(x) for part, x in zip(found.key_parts, found.by_key, strict=True)}
    assert sum(values[part.label] for part in named) == pytest.approx(wrote)
    assert float(found.terms.sum()) == pytest.approx(plain.score)
    assert values["token"] == pytest.approx(float(plain.by_key[[p.label for p in plain.key_parts].index("token")]))
    with pytest.raises(ValueError, match="no module of that name returns a part of the residual stream"):
        cap.why(2, 1, 6, 4, features={"blocks.1.up.x": (decoder, activations)})
    with pytest.raises(ValueError, match=r"has shapes \(5, 16\) and \(1, 7, 4\)"):
        cap.why(2, 1, 6, 4, features={"blocks.1.down": (decoder, activations[..., :4])})
    with pytest.raises(TypeError, match="is Tensor: give"):
        cap.why(2, 1, 6, 4, features={"blocks.1.down": decoder})


def test_the_score_by_distance_is_of_the_same_content_at_other_places() -> None:
    """A text of one word has the same content everywhere in the first layer, so its scores are the profile."""
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.Qwen3Config(**sizes, head_dim=8, intermediate_size=64, vocab_size=100)
    model = transformers.Qwen3Model(config).eval()
    att = capture(model, sources=True).run(torch.full((1, 12), 7)).attention[0]
    found = att.distance_profile(9, 3, head=3)
    assert found.distances.tolist() == [9 - j for j in range(12)]
    scores = (att.k[0, 1].double() @ att.q[0, 3, 9].double()) * att.scale
    assert torch.allclose(found.scores, scores, atol=1e-5)
    assert found.score == pytest.approx(float(found.scores[3]), abs=1e-5)
    assert found.distance == 6
    learned = capture(Blocks().eval(), sources=True).run(TOKENS).attention[1]
    with pytest.raises(ValueError, match="no rotation of positions"):
        learned.distance_profile(3, 1)
    with pytest.raises(ValueError, match="sources=True"):
        Attention(*torch.zeros(2, 3, 4)).distance_profile(2, 0)


def test_a_person_reads_the_answer_and_pandas_the_records() -> None:
    cap = capture(Blocks().eval(), sources=True).run(TOKENS)
    found = cap.why(2, 1, 6, 4, against="mean")
    text = str(found)
    assert text.startswith("Head 2·1: position 6 → position 4, weight ")
    assert "not explained (rounding)" in text
    assert "Held as in this run" in text
    records = found.records()
    assert len(records) == found.terms.numel()
    assert records[0]["term"] == pytest.approx(float(found.terms.flatten()[found.terms.abs().argmax()]))
    assert sum(one["share"] for one in records) == pytest.approx(1.0)
    row = cap.why_row(2, 1, 6).records()
    assert {*row[0]} == {"key", "part", "term", "weight"}
    assert sum(one["term"] for one in row if one["key"] == 4) == pytest.approx(cap.why(2, 1, 6, 4).score, abs=1e-5)
