"""Each sentence about a head is true as it stands: tried on 500 random heads against its plain meaning, by loops."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import Any

import copying
import numpy as np
import pytest
import torch
from copying import CopyModel
from test_atlas import Words
from torch import Tensor

from attnwidget import Atlas, atlas
from attnwidget._atlas.page.contents import card_of, index_of

HEADS = 250  # of each of two layers
LENGTHS = (1, 2, 3, 5, 5, 8, 13, 13, 21, 30, 40, 40)
NUMBER = r"(\.\d\d|1\.0)"
CLAIMS = {  # each sentence is one or two of these
    "induction": r"attends to the token after an earlier occurrence of the query's token "
    rf"\({NUMBER} of its weight, where there is one\)",
    "same token": rf"attends to the same token elsewhere \({NUMBER} of its weight, where there is one\)",
    "previous token": rf"attends to the previous token \({NUMBER} of its weight, where there is one\)",
    "next token": rf"attends to the next token \({NUMBER} of its weight\)",
    "itself": rf"attends to the query's own token \({NUMBER} of its weight\)",
    "sink, first token": rf"rests on the first token \({NUMBER} of its weight\)",
    "last token": rf"attends to the last token \({NUMBER} of its weight\)",
    "punctuation": rf"attends to punctuation \({NUMBER} of its weight; 7 of 12 texts have any\)",
    "special tokens": rf"attends to special tokens \({NUMBER} of its weight; 8 of 12 texts have any\)",
    "vowels": rf"attends to vowels \({NUMBER} of its weight; \d+ of 12 texts have any\)",
    "nearby": rf"attends to tokens at most 4 away \({NUMBER} of its weight\)",
    "few keys": r"attends to few keys, as if to ([\d.]+) equal ones \(mean entropy ([\d.]+) bits\)",
    "spread": r"spreads its weight, as if over ([\d.]+) equal keys \(mean entropy ([\d.]+) bits\)",
}
LEAST = {"induction": 0.3, "same token": 0.3, "sink, first token": 0.4, "last token": 0.4, "nearby": 0.6}
FEATURES = 11


def features(ids: Tensor) -> Tensor:
    """What a head may look at, (features, n, n) float32."""
    n = len(ids)
    q, k = torch.arange(n)[:, None], torch.arange(n)[None]
    same = ids[:, None] == ids[None]
    after = torch.zeros_like(same)
    after[:, 1:] = same[:, :-1]
    columns = [ids == 0, ids == 1, ((ids - 2)[:, None] == torch.tensor([0, 4, 8, 14, 20])).any(1)]
    rows = [q - k == 1, k - q == 1, q == k, (k == 0).expand(n, n), (k == n - 1).expand(n, n), same & (q != k), after]
    return torch.stack([*rows, *(one.expand(n, n) for one in columns), (q - k).abs() <= 4]).float()


class Layer(torch.nn.Module):
    """Heads whose scores are random, and mostly for one thing that a head may look at."""

    def __init__(self, seed: int, is_causal: bool) -> None:
        super().__init__()
        make = torch.Generator().manual_seed(seed)
        likes = torch.randn(HEADS, FEATURES, generator=make)
        likes[torch.arange(HEADS), torch.arange(HEADS) % FEATURES] += 7 * torch.rand(HEADS, generator=make)
        self.likes, self.noise = likes, torch.randn(HEADS, 28, 28, generator=make)
        self.is_causal = is_causal

    def scores(self, ids: Tensor) -> Tensor:
        found = torch.einsum("hf,fqk->hqk", self.likes, features(ids)) + self.noise[:, ids][:, :, ids]
        n = len(ids)
        return found.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf) if self.is_causal else found

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        """Return attention whose q are rows of scores, and whose k are unit vectors."""
        n = ids.shape[1]
        q = torch.stack([self.scores(one).nan_to_num(neginf=0.0) for one in ids])
        q = torch.nn.functional.pad(q, (0, LENGTHS[-1] - n))
        k = torch.eye(LENGTHS[-1])[None, None, :n].expand(len(ids), HEADS, -1, -1)
        v = x[:, None].expand(-1, HEADS, -1, -1)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal, scale=1.0)


class RandomHeads(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(28, 2)
        self.layers = torch.nn.ModuleList([Layer(0, is_causal=False), Layer(1, is_causal=True)])

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids)
        for layer in self.layers:
            x = x + layer(input_ids, x).mean(1)
        return x


def random_texts() -> list[list[int]]:
    make = torch.Generator().manual_seed(0)
    found = []
    for number, n in enumerate(LENGTHS):
        ids = torch.randint(2, 28, (n,), generator=make)
        if n > 2:
            ids[torch.randint(1, n, (n // 4,), generator=make)] = 0
            ids[torch.randint(1, n, (n // 4 + 1,), generator=make)] = 1 if number % 3 else 5
        found.append(ids.tolist())
    return found


def plainly(layer: Layer, texts: list[list[int]]) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Return what the words mean, (heads,) float64 by label, and how many texts have a kind of token."""
    of_texts: dict[str, list[Tensor]] = defaultdict(list)
    have: Counter[str] = Counter()
    for ids in texts:
        n = len(ids)
        W = layer.scores(torch.tensor(ids)).double().softmax(-1)
        of_queries: dict[str, list[Tensor]] = defaultdict(list)
        names = [
            "first" if at == 0 else {0: "special tokens", 1: "punctuation"}.get(one, "") for at, one in enumerate(ids)
        ]
        names = [name or ("vowels" if ids[at] - 2 in (0, 4, 8, 14, 20) else "") for at, name in enumerate(names)]
        have.update(set(names))
        for q in range(n):
            row: dict[str, Tensor] = defaultdict(lambda: torch.zeros(HEADS, dtype=torch.float64))
            for k in range(q + 1 if layer.is_causal else n):
                w = W[:, q, k]
                row["entropy"] = row["entropy"] - torch.xlogy(w, w) / torch.tensor(2.0).log()
                what = [names[k], "first or special" if names[k] in ("first", "special tokens") else ""]
                what += ["sink, first token"] * (k == 0) + ["last token"] * (k == n - 1) + ["itself"] * (k == q)
                what += (
                    ["nearby"] * (abs(q - k) <= 4) + ["next token"] * (k == q + 1) + ["previous token"] * (k == q - 1)
                )
                what += ["same token"] * (k != q and ids[k] == ids[q]) + ["induction"] * (
                    0 < k < q and ids[k - 1] == ids[q]
                )
                for one in what:
                    row[one] = row[one] + w
            for one in ("induction", "same token", "previous token"):  # only where there is one
                if one in row:
                    of_queries[one].append(row.pop(one))
            for one in (*CLAIMS, "entropy", "first or special"):
                if one not in ("induction", "same token", "previous token"):
                    of_queries[one].append(row[one])
        for one, values in of_queries.items():
            of_texts[one].append(torch.stack(values).mean(0))
    return {one: torch.stack(values).mean(0) for one, values in of_texts.items()}, dict(have)


@pytest.fixture(scope="module")
def measured() -> tuple[Atlas, list[tuple[dict[str, Tensor], dict[str, int]]]]:
    model, texts = RandomHeads().eval(), random_texts()
    found = atlas(model, texts, tokenizer=Words(), kinds={"vowels": list("aeiou")}, links=1, progress=False)
    return found, [plainly(layer, texts) for layer in model.layers]


def test_sentences_of_500_heads_mean_what_they_say(measured: Any) -> None:
    found, plain = measured
    seen: Counter[str] = Counter()
    for record in found.heads():
        own, have = plain[record["layer"]]
        numbers = {name: float(values[record["head"]]) for name, values in own.items()}
        claims = re.fullmatch(r"(.*?)\.(?: It also (.*)\.)?", record["sentence"])
        assert claims is not None, record["sentence"]
        first, second = claims[1][0].lower() + claims[1][1:], claims[2]
        for claim, label in zip(filter(None, (first, second)), record["labels"], strict=False):
            told = re.fullmatch(CLAIMS[label], claim)
            assert told is not None, claim
            seen[label] += 1
            if label in ("few keys", "spread"):
                assert float(told[2]) == pytest.approx(numbers["entropy"], abs=0.0501)
                assert float(told[1]) == pytest.approx(
                    2 ** numbers["entropy"], abs=0.0501 if numbers["entropy"] < 3.3 else 0.501
                )
                assert (label == "few keys") == (numbers["entropy"] < 2)
            else:
                assert float(told[1]) == pytest.approx(numbers[label], abs=0.00501), (record, numbers)
            if label == "vowels":
                assert f"; {have['vowels']} of 12" in claim
        for label in set(CLAIMS) - {"few keys", "spread", "nearby", "special tokens"}:
            if abs(numbers[label] - LEAST.get(label, 0.35)) > 1e-5:
                assert (label in record["labels"]) == (numbers[label] > LEAST.get(label, 0.35)), (label, record)
    assert set(seen) == set(CLAIMS), "each kind of sentence is tried"
    assert (plain[0][1]["punctuation"], plain[0][1]["special tokens"]) == (7, 8), "some texts have none"


def test_cards_of_500_heads_say_what_is_on_first_and_special_tokens(measured: Any) -> None:
    found, plain = measured
    index = index_of(found, None, None, live=False)
    assert index["setAside"] == "first and special tokens"
    for at, record in enumerate(found.heads()):
        wanted = float(plain[record["layer"]][0]["first or special"][record["head"]])
        assert index["aside"][at] == pytest.approx(wanted, abs=1e-4)
        card = found.head(record["layer"], record["head"])
        said = re.search(r"(\d+)% of its weight is on first and special tokens", str(card))
        assert said is not None
        assert float(said[1]) == pytest.approx(100 * wanted, abs=0.501)
        assert card.on_kind["punctuation"] == pytest.approx(
            float(plain[record["layer"]][0]["punctuation"][record["head"]]), abs=1e-5
        )


def test_the_plane_of_500_heads_shows_what_it_says(measured: Any) -> None:
    """A share of the variance of all metrics and of all weights by distance, each of them the same in total."""
    found, _ = measured
    records = found.heads()
    rows = [[record[name] if record[name] is not None else np.nan for name in found.metrics] for record in records]
    metrics = np.array(rows)
    metrics = metrics[:, [len(set(column[~np.isnan(column)].round(9))) > 1 for column in metrics.T]]
    metrics = np.nan_to_num(metrics - np.nanmean(metrics, 0))  # an unknown one counts as the mean
    metrics /= metrics.std(0)
    far = np.stack([found.head(one["layer"], one["head"]).share_by_distance.numpy() for one in records]) ** 0.5
    far -= far.mean(0)
    far *= (metrics.shape[1] * len(far) / (far**2).sum()) ** 0.5
    sizes = np.linalg.svd(np.concatenate([metrics, far], 1), compute_uv=False) ** 2
    assert found.plane.shown == pytest.approx(sizes[:2].sum() / sizes.sum(), abs=1e-3)


@pytest.mark.thorough
def test_learned_sinks_of_500_heads() -> None:
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 2, "vocab_size": 28, "head_dim": 2}
    heads = {"num_attention_heads": 250, "num_key_value_heads": 250, "layer_types": ["full_attention"] * 2}
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1, "pad_token_id": 0, "eos_token_id": 0}
    config = transformers.GptOssConfig(**small, **heads, **experts, attn_implementation="eager")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.GptOssForCausalLM(config).eval()
        for layer in model.model.layers:
            layer.self_attn.sinks.data.normal_(std=3.0)
    texts = random_texts()[2:5]
    found = atlas(model, texts, links=1, progress=False)
    with torch.no_grad():
        weights = [model(torch.tensor([ids]), output_attentions=True).attentions for ids in texts]
    tried = 0
    for record in found.heads():
        own = [1 - of_layers[record["layer"]][0, record["head"]].double().sum(1).mean() for of_layers in weights]
        wanted = float(torch.stack(own).mean())
        if abs(wanted - 0.4) > 1e-5:
            assert ("learned sink" in record["labels"]) == (wanted > 0.4)
        told = re.search(rf"ests on its learned sink \({NUMBER} of its weight\)", record["sentence"])
        if told is not None:
            tried += 1
            assert float(told[1]) == pytest.approx(wanted, abs=0.00501)
    assert 50 < tried < 450


def test_one_long_text_does_not_decide() -> None:
    """Of 21 texts one has punctuation, and it has most of the tokens."""
    model = RandomHeads().eval()
    model.layers[0].likes[:] = 20 * torch.eye(FEATURES)[8]  # punctuation
    texts = [[2, 3, 4]] * 20 + [[5, *[1, 6, 7] * 13]]
    found = atlas(model, texts, tokenizer=Words(), links=1, progress=False)
    card = found.head(0, 0)
    assert card.on_kind["punctuation"] == pytest.approx(1 / 21, abs=1e-3)
    assert card.texts_with["punctuation"] == 1
    assert "punctuation" not in found.heads()[0]["labels"]
    assert card_of(found, 0, 0)["byKind"][3][2] == pytest.approx(1 / 21, abs=1e-3)  # queries of other kinds are in all


def test_without_names_special_tokens_and_punctuation_are_not_known() -> None:
    found = atlas(RandomHeads().eval(), random_texts()[2:5], links=1, progress=False)
    index = index_of(found, None, None, live=False)
    assert index["setAside"] == "first tokens"
    assert any("In 3 texts the tokens have no names" in note for note in index["notes"])
    assert str(found.head(0, 0)).count(" of its weight is on first tokens") == 1
    assert found.head(0, 0).on_kind["punctuation"] != found.head(0, 0).on_kind["punctuation"], "unknown, not 0"


def test_what_500_heads_write_and_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "WIDTH", 500)
    monkeypatch.setattr(copying, "HEADS", 250)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = CopyModel().eval()
    texts = [
        torch.randint(0, 20, (n,), generator=torch.Generator().manual_seed(n)).tolist()
        for n in (3, 5, 8, 9, 12, 13, 14, 15)
    ]
    found = atlas(model, texts, tokenizer=Words(), links=8, progress=False)
    records = {(one["layer"], one["head"]): one for one in found.heads()}
    said, tried = model.said.weight.double(), 0
    streams = [streams_of(model, ids) for ids in texts]
    for (number, head), record in records.items():
        layer, part = model.layers[number], slice(2 * head, 2 * head + 2)
        v, out = layer.v.weight.double()[part], layer.out.weight.double()[:, part]
        card = found.head(number, head)
        hits = 0
        for link in card.ordinary:
            logits = said @ (out @ (v @ streams[link.text][number][0][link.key]))
            hits += texts[link.text][link.key] in logits.topk(10).indices.tolist()
        assert card.copied == (hits, len(card.ordinary))
        sentence = f"opies: in {hits} of 8 ordinary links the key's own token is among the ten that it raises most."
        assert ("copies" in record["labels"]) == (hits >= 4)
        if len(record["labels"]) < 3 and hits >= 4:
            assert sentence in record["sentence"]
            tried += 1
        means = []
        for of_text in streams:
            x, q, k = of_text[number]
            scores = q[:, part] @ k[:, part].T / 2**0.5
            W = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf).softmax(-1)
            means.append((W @ (x @ v.T)).mean(0))
        logits = said @ (out @ torch.stack(means).mean(0))
        told = [Words().convert_ids_to_tokens([*range(20)]).index(word) for word in card.writes]
        assert logits[told].tolist() == pytest.approx(logits.topk(8).values.tolist(), abs=1e-5)
    assert tried > 100


@torch.no_grad()
def streams_of(model: CopyModel, ids: list[int]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return a text's residual stream before each layer, (n, WIDTH) float64, and all of its q and k."""
    x, places = model.words(torch.tensor([ids])), model.places.weight[: len(ids)]
    found = []
    for layer in model.layers:
        q, k = layer.qk(x + places)[0].double().chunk(2, -1)
        found.append((x[0].double(), q, k))
        x = layer(x, places)
    return found
