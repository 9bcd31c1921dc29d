"""An atlas: exact numbers over texts, however the work is split, stopped, stored or shared out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from copying import CopyModel, repeated, trained
from torch import Tensor

import attnwidget
from attnwidget import Atlas, atlas
from attnwidget._atlas import build, layer_of_texts, worker
from attnwidget._atlas.bins import DISTANCES, SIDE, distance_bins, position_bins
from attnwidget._atlas.links import CONTENT

TOLERANCE = 2e-6


class Words:
    """A tokenizer whose words are letters; the first id is special."""

    all_special_tokens = ("<s>",)
    name_or_path = "letters"

    def convert_ids_to_tokens(self, ids: Any) -> Any:
        if isinstance(ids, int):
            return ("<s>", ",", *"abcdefghijklmnopqrstuvwxyz")[ids]
        return [self.convert_ids_to_tokens(one) for one in ids]

    def encode(self, text: str) -> list[int]:
        return [0, *(1 if one == "," else ord(one) - ord("a") + 2 for one in text)]

    def decode(self, ids: list[int]) -> str:
        return "".join(self.convert_ids_to_tokens(ids))


@pytest.fixture(scope="module")
def model() -> CopyModel:
    return trained()


def corpus(count: int, seed: int = 0) -> list[list[int]]:
    """Texts of 1 to 34 tokens, several of the same length."""
    make = torch.Generator().manual_seed(seed)
    texts, _ = repeated(count, 34, make)
    lengths = torch.randint(1, 35, (count,), generator=make).tolist()
    return [text[:n].tolist() for text, n in zip(texts, lengths, strict=True)]


def weights_of(model: CopyModel, ids: list[int], layer: int) -> tuple[Tensor, Tensor]:
    """Return weights (heads, n, n) and what each head adds (heads, n, d_model), in float64, by plain products."""
    double = CopyModel().double()
    double.load_state_dict({name: x.double() for name, x in model.state_dict().items()})
    with torch.no_grad():
        x, places = double.words(torch.tensor([ids])), double.places.weight[: len(ids)]
        for number, one in enumerate(double.layers):
            if number == layer:
                q, k = one.qk(x + places)[0].chunk(2, -1)
                q, k, v = (y.unflatten(-1, (4, -1)).transpose(0, 1) for y in (q, k, one.v(x)[0]))
                scores = q @ k.mT / q.shape[-1] ** 0.5
                scores = scores.masked_fill(torch.ones_like(scores[0]).triu(1).bool(), -torch.inf)
                W = scores.softmax(-1)
                w_o = one.out.weight.T.unflatten(0, (4, -1))
                return W, (W @ v) @ w_o
            x = one(x, places)
    raise IndexError(layer)


def expected(model: CopyModel, texts: list[list[int]], layer: int) -> dict[str, Tensor]:
    """Return the same numbers by a loop over texts and queries."""
    rows: dict[str, list[Tensor]] = {}
    for ids in texts:
        W, added = weights_of(model, ids, layer)
        n = len(ids)
        where = torch.arange(n)
        alike = torch.tensor([[a == b for b in ids] for a in ids])
        other = alike & (where[:, None] > where)
        after = torch.zeros(n, n, dtype=torch.bool)
        after[:, 1:] = other[:, :-1]
        after &= where[:, None] > where
        found = {
            "entropy": -torch.xlogy(W, W).sum(-1).div(torch.log(torch.tensor(2.0))).mean(1),
            "first_token": W[..., 0].mean(1),
            "itself": W.diagonal(dim1=1, dim2=2).mean(1),
            "previous_token": W[:, where[1:], where[1:] - 1].mean(1),
            "mean_distance": (W * (where[:, None] - where)).sum(-1).mean(1),
            "same_token": (W * other).sum(-1)[:, other.any(1)].mean(1),
            "induction": (W * after).sum(-1)[:, after.any(1)].mean(1),
            "sink": (W[:, 1:, 0] > 0.3).double().mean(1),
            "output": added.norm(dim=-1).mean(1),
        }
        for name, value in found.items():
            rows.setdefault(name, []).append(value)
        far, late = distance_bins(n)[(where[:, None] - where) + n - 1], position_bins(n).expand(n, n)
        for name, bins, count in (("by_distance", far, DISTANCES), ("by_position", late, SIDE)):
            means = torch.full((4, count), torch.nan, dtype=torch.float64)
            for one in bins.unique().tolist():
                pairs = (bins == one) & (where[:, None] >= where)
                means[:, one] = W[:, pairs].mean(1) if pairs.any() else torch.nan
            rows.setdefault(name, []).append(means.T)
    found = {name: torch.stack(value) for name, value in rows.items()}
    return {**found, **{name: found[name].nanmean(0).T for name in ("by_distance", "by_position")}}


def test_numbers_are_those_of_a_float64_loop_over_50_texts(model: CopyModel) -> None:
    texts = corpus(50)
    found = atlas(model, texts, progress=False)
    for layer in (0, 1):
        wanted = expected(model, texts, layer)
        for head in range(4):
            card = found.head(layer, head)
            for name in sorted(set(wanted) - {"by_distance", "by_position"}):
                own = wanted[name][:, head]
                own = own[~own.isnan()]
                over = card.metrics[name]
                numbers = (over.mean, over.std, over.least, over.most)
                again = (float(own.mean()), float(own.std()), float(own.min()), float(own.max()))
                assert numbers == pytest.approx(again, abs=TOLERANCE), (layer, head, name)
                assert over.n == len(own) == int(over.counts.sum())
            for name in ("by_distance", "by_position"):
                there = ~wanted[name][head].isnan()
                assert bool((there == ~getattr(card, name).isnan()).all())
                assert float((getattr(card, name) - wanted[name][head])[there].abs().max()) < TOLERANCE


def test_links_are_the_strongest_of_all_texts_at_most_two_of_one(model: CopyModel) -> None:
    texts = corpus(40, seed=3)
    found = atlas(model, texts, links=6, progress=False).head(1, 2)
    candidates = []
    for number, ids in enumerate(texts):
        W = weights_of(model, ids, 1)[0][2]
        least = max(2, min(8, len(ids)))
        own = sorted(((float(W[q].max()), q, int(W[q].argmax())) for q in range(least - 1, len(ids))), reverse=True)
        candidates += [(weight, number, q, k) for weight, q, k in own[:2]]
    wanted = sorted(candidates, reverse=True)[:6]
    assert [one.weight for one in found.strongest] == pytest.approx([one[0] for one in wanted], abs=TOLERANCE)
    for one in (*found.strongest, *found.ordinary):
        W = weights_of(model, texts[one.text], 1)[0][2]
        assert one.weight == pytest.approx(float(W[one.query].max()), abs=TOLERANCE)
        assert one.weights == pytest.approx(W[one.query][one.places].tolist(), abs=TOLERANCE)
        assert one.places == list(range(len(texts[one.text])))
    assert len({one.text for one in found.ordinary}) == 6


def test_content_links_have_neither_first_nor_special_tokens(model: CopyModel) -> None:
    texts = corpus(30, seed=4)
    found = atlas(model, texts, tokenizer=Words(), progress=False).head(0, 1)
    assert found.kinds[:2] == ["first token", "special"]
    for one in (*found.strongest_content, *found.ordinary_content):
        words = Words().convert_ids_to_tokens(texts[one.text])
        assert one.tokens == words
        assert one.key != 0
        assert "<s>" not in (words[one.key], words[one.query])
    aside = []
    for ids in texts:
        W = weights_of(model, ids, 0)[0][1]
        aside.append(float(W[:, [at == 0 or token == 0 for at, token in enumerate(ids)]].sum(1).mean()))
    assert found.set_aside == pytest.approx(sum(aside) / len(aside), abs=TOLERANCE)


def test_kinds_of_tokens_and_the_users_own(model: CopyModel) -> None:
    texts = corpus(12, seed=5)
    found = atlas(model, texts, tokenizer=Words(), kinds={"vowels": list("aeiou"), "late": "[q-z]"}, progress=False)
    assert found.kinds == ["first token", "special", "vowels", "late", "punctuation", "other"]
    card = found.head(0, 3)
    tables, shares, there = [], [], torch.zeros(6, dtype=torch.int64)
    for ids in texts:
        W = weights_of(model, ids, 0)[0][3]
        words = Words().convert_ids_to_tokens(ids)
        order = ("<s>", "aeiou", "qrstuvwxyz", ",")
        kinds = [next((i + 1 for i, own in enumerate(order) if word in own), 5) for word in words]
        kinds[0] = 0
        sums, rows = torch.zeros(6, 6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
        for q, kind in enumerate(kinds):
            rows[kind] += 1
            for k, other in enumerate(kinds):
                sums[kind, other] += W[q, k]
        tables.append(sums / rows[:, None])
        shares.append(sums.sum(0) / len(ids))
        there += torch.bincount(torch.tensor(sorted(set(kinds))), minlength=6)
    wanted = torch.stack(tables).nanmean(0)
    is_known = ~wanted.isnan()
    assert bool((is_known == ~card.by_kind.isnan()).all())
    assert float((card.by_kind - wanted)[is_known].abs().max()) < TOLERANCE
    assert [*card.on_kind.values()] == pytest.approx(torch.stack(shares).mean(0).tolist(), abs=TOLERANCE)
    assert card.texts_with == dict(zip(card.kinds, there.tolist(), strict=True))
    assert 0 < card.texts_with["punctuation"] < 12, "the texts are such that some have none"


def same(one: Atlas, other: Atlas) -> None:
    """Check that two atlases have the same numbers and the same links."""
    for a, b in zip(one.heads(), other.heads(), strict=True):
        assert a.keys() == b.keys()
        for name, value in a.items():
            if isinstance(value, float):
                assert value == pytest.approx(b[name], abs=TOLERANCE), name
            elif name != "sentence":
                assert value == b[name], name
        cards = [of.head(a["layer"], a["head"]) for of in (one, other)]
        for name in ("ordinary", "ordinary_content"):
            both = [[(link.text, link.query, link.key) for link in getattr(card, name)] for card in cards]
            assert both[0] == both[1], name
        weights = [[link.weight for link in card.strongest] for card in cards]
        assert weights[0] == pytest.approx(weights[1], abs=TOLERANCE)


@pytest.fixture(scope="module")
def whole(model: CopyModel) -> Atlas:
    return atlas(model, corpus(60), tokenizer=Words(), progress=False)


def test_texts_in_turn_or_together_give_the_same(model: CopyModel, whole: Atlas, monkeypatch: Any) -> None:
    monkeypatch.setattr(worker, "MOST_TOGETHER", 1)
    monkeypatch.setattr(layer_of_texts, "MOST_AT_ONCE", 1)  # no text at once: block by block
    same(whole, atlas(model, corpus(60), tokenizer=Words(), progress=False))


def test_other_chunks_give_the_same(model: CopyModel, whole: Atlas, monkeypatch: Any) -> None:
    monkeypatch.setattr("attnwidget._atlas.corpus.FIRST_CHUNKS", (1, 50, 3))
    same(whole, atlas(model, iter(corpus(60)), tokenizer=Words(), progress=False))


def test_threads_share_the_texts(model: CopyModel, whole: Atlas) -> None:
    with ThreadPoolExecutor(3) as executor:
        same(whole, atlas(model, corpus(60), tokenizer=Words(), executor=executor, progress=False))


@pytest.mark.processes
def test_processes_share_the_texts_and_a_killed_one_loses_none(model: CopyModel, whole: Atlas, tmp_path: Path) -> None:
    doomed = DoomedTexts(tmp_path / "killed")
    with ProcessPoolExecutor(2) as executor, pytest.warns(UserWarning, match="nothing is lost"):
        found = atlas(model, corpus(60), tokenizer=doomed, executor=executor, progress=False)
    assert (tmp_path / "killed").exists()
    same(whole, found)


class DoomedTexts(Words):
    """A tokenizer that kills the first worker that spells with it."""

    def __init__(self, mark: Path) -> None:
        self.mark, self.home = mark, os.getpid()

    def convert_ids_to_tokens(self, ids: Any) -> Any:
        if os.getpid() != self.home and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().convert_ids_to_tokens(ids)


def test_a_stopped_pass_goes_on(model: CopyModel, whole: Atlas, tmp_path: Path) -> None:
    texts = corpus(60)

    def stopping() -> Any:
        for number, text in enumerate(texts):
            if number == 40:
                raise KeyboardInterrupt
            yield text

    with pytest.raises(KeyboardInterrupt):
        atlas(model, stopping(), tokenizer=Words(), store=tmp_path / "a", progress=False)
    partial = Atlas.open(tmp_path / "a")
    assert partial.is_partial
    assert 0 < partial.texts < 60
    read = 0

    def counting() -> Any:
        nonlocal read
        for text in texts:
            read += 1
            yield text

    found = atlas(model, counting(), tokenizer=Words(), store=tmp_path / "a", progress=False)
    assert not found.is_partial
    assert read == 60
    same(whole, found)
    same(whole, Atlas.open(tmp_path / "a"))


@pytest.mark.processes
def test_a_killed_pass_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "pass.py"
    script.write_text(KILLED)
    folder = tmp_path / "a"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "helpers")}
    run = subprocess.Popen([sys.executable, str(script), str(folder)], env=environment)
    until = time.monotonic() + 120
    while not (folder / "atlas.safetensors").exists() and time.monotonic() < until and run.poll() is None:
        time.sleep(0.02)
    run.kill()
    run.wait()
    assert Atlas.open(folder).is_partial
    model = CopyModel().eval()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = CopyModel().eval()
    texts = [[1, 2, 3, 4 + number % 9] for number in range(200)]
    same(atlas(model, texts, progress=False), atlas(model, texts, store=folder, progress=False))


KILLED = """
import sys, time, torch
from copying import CopyModel
from attnwidget import atlas
from attnwidget._atlas import build
build.SAVE_EVERY = 0.0
torch.manual_seed(0)
def texts():
    for number in range(200):
        if number == 100:
            time.sleep(300)
        yield [1, 2, 3, 4 + number % 9]
atlas(CopyModel().eval(), texts(), store=sys.argv[1], progress=False)
"""


def test_more_texts_are_added_to_a_store(model: CopyModel, whole: Atlas, tmp_path: Path) -> None:
    atlas(model, corpus(60)[:25], tokenizer=Words(), store=tmp_path / "a", progress=False)
    same(whole, atlas(model, corpus(60), tokenizer=Words(), store=tmp_path / "a", progress=False))


def test_a_store_of_other_texts_or_weights_is_refused(model: CopyModel, tmp_path: Path) -> None:
    atlas(model, corpus(9), store=tmp_path / "a", progress=False)
    with pytest.raises(ValueError, match="other texts"):
        atlas(model, corpus(9, seed=7), store=tmp_path / "a", progress=False)
    with pytest.raises(ValueError, match="9 texts, but 5 are given"):
        atlas(model, corpus(9)[:5], store=tmp_path / "a", progress=False)
    with pytest.raises(ValueError, match="the model's weights"):
        atlas(CopyModel().eval(), corpus(9), store=tmp_path / "a", progress=False)
    with pytest.raises(ValueError, match=r"other arguments \(kinds\)"):
        atlas(model, corpus(9), kinds={"x": ["1"]}, store=tmp_path / "a", progress=False)


def test_the_file_is_one_that_others_read(model: CopyModel, whole: Atlas, tmp_path: Path) -> None:
    from safetensors import safe_open

    whole.save(tmp_path / "a")
    with safe_open(str(tmp_path / "a" / "atlas.safetensors"), "numpy") as file:
        facts = json.loads(file.metadata()["attnwidget.atlas"])
        total, count = file.get_tensor("1.metric_sum"), file.get_tensor("1.metric_count")
    at = facts["settings"]["metrics"].index("entropy")
    assert facts["version"] == 2
    assert total[at, 2] / count[at, 2] == pytest.approx(whole.heads()[6]["entropy"])
    with pytest.raises(FileExistsError, match="has an atlas"):
        whole.save(tmp_path / "a")


@pytest.mark.parametrize("content", [b"", b"\x08\0\0\0\0\0\0\0{}      ", b"nothing of the kind"])
def test_a_damaged_store_says_so(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "atlas.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="is not an atlas, or damaged"):
        Atlas.open(tmp_path)


def test_a_store_without_its_facts_is_damaged(whole: Atlas, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(1)}, str(tmp_path / "atlas.safetensors"), {"attnwidget.atlas": '{"version": 2}'})
    with pytest.raises(ValueError, match=r"is not an atlas, or damaged \('layers' is missing\)"):
        Atlas.open(tmp_path)


@pytest.mark.thorough
@pytest.mark.processes
def test_workers_of_dask_share_the_texts(model: CopyModel, whole: Atlas) -> None:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
        client.get_executor() as executor,
    ):
        same(whole, atlas(model, corpus(60), tokenizer=Words(), executor=executor, progress=False))


def test_a_newer_store_is_refused(whole: Atlas, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("attnwidget._atlas.storage.VERSION", 99)
    whole.save(tmp_path / "a")
    monkeypatch.undo()
    with pytest.raises(ValueError, match="version 99"):
        Atlas.open(tmp_path / "a")


def test_one_text(model: CopyModel) -> None:
    found = atlas(model, [[1, 2, 3, 1, 2]], progress=False)
    assert found.texts == 1
    assert found.heads()[0]["entropy_std"] is None
    assert len(found.head(0, 0).strongest) == 1  # one query has as many keys to choose from as any
    assert str(found.head(0, 0)).startswith("Layer 0, head 0 over 1 text: ")


def test_empty_texts_are_left_out_with_the_reason(model: CopyModel) -> None:
    with pytest.warns(UserWarning, match="2 of 4 texts were left out, such as text 1: the text has no tokens"):
        found = atlas(model, [[1, 2], [], torch.tensor([3, 4]), torch.zeros(1, 0, dtype=torch.int64)], progress=False)
    assert found.texts == 2
    assert found.skipped == dict.fromkeys((1, 3), "the text has no tokens")
    with pytest.raises(RuntimeError, match="none of the first 2 texts could be measured; text 0: the text has no tok"):
        atlas(model, [[], []], progress=False)


def test_texts_that_the_model_cannot_read_are_left_out_with_what_was_wrong(model: CopyModel) -> None:
    wrong: list[Any] = [[1] * 99, [1, 70_000], [1, -2], [[1], [2]], 3.5]
    with pytest.warns(
        UserWarning, match="5 of 7 texts were left out, such as text 1: the text has 99 tokens; the model"
    ):
        found = atlas(model, [[1, 2, 3], *wrong, [3, 4]], progress=False)
    assert found.texts == 2
    said = [found.skipped[number] for number in range(1, 6)]
    assert said[0].startswith("the text has 99 tokens; the model raised RuntimeError in layers.0 (forward, copying.py:")
    assert said[1].startswith(
        "position 1 has the token id 70,000, and the model's vocabulary has 20 tokens (words): make"
    )
    assert said[2].startswith("position 1 has the token id -2")
    assert said[3] == "a text has several samples: give each sample as a text of its own"
    assert said[4].startswith("a text is 3.5: give")


class Positions(torch.nn.Module):
    """One layer with learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = torch.nn.Embedding(20, 8), torch.nn.Embedding(6, 8)
        self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.layer(self.words(ids) + self.places(torch.arange(ids.shape[1])))
        return found


class Raising(Words):
    """A tokenizer that does not know a word."""

    def encode(self, text: str) -> list[int]:
        raise KeyError(text)


def test_a_text_longer_than_the_positions_and_a_tokenizer_that_raises_are_told() -> None:
    with pytest.warns(UserWarning, match="2 of 3 texts"):
        found = atlas(Positions().eval(), [[1, 2], [1] * 7, "unknown"], tokenizer=Raising(), progress=False)
    assert found.skipped[1] == (
        "the text has 7 tokens, and the model has 6 positions (places): give a shorter text, or parts of it as texts "
        "of their own"
    )
    assert found.skipped[2].startswith("a function raised KeyError in encode, test_atlas.py:")


def test_weights_that_are_not_finite_are_left_out() -> None:
    model = CopyModel().eval()
    with torch.no_grad():
        model.words.weight[7] = torch.nan
    with pytest.warns(UserWarning, match="1 of 3 texts"):
        found = atlas(model, [[1, 2, 3], [1, 7, 3], [3, 4, 1]], progress=False)
    assert list(found.skipped) == [1]


def test_a_long_text_has_exact_rows_evenly_spread(model: CopyModel) -> None:
    text = corpus(40, seed=3)
    ids = max(text, key=len)
    found = atlas(model, [ids], rows=7, progress=False)
    assert found.sampled == 1
    W = weights_of(model, ids, 1)[0]
    queries = [*range((len(ids) - 1) % -(-len(ids) // 7), len(ids), -(-len(ids) // 7))]
    for head in range(4):
        card = found.head(1, head)
        entropy = -torch.xlogy(W, W).sum(-1)[head, queries].mean() / torch.log(torch.tensor(2.0))
        assert card.metrics["entropy"].mean == pytest.approx(float(entropy), abs=TOLERANCE)
        share = card.share_by_distance[SIDE : SIDE + 15]
        wanted = [float(sum(W[head, q, q - d] for q in queries if q >= d)) / len(queries) for d in range(1, 16)]
        assert share.tolist() == pytest.approx(wanted, abs=TOLERANCE)


class Rotary(torch.nn.Module):
    """One layer without a limit of length."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.qkv = torch.nn.Embedding(60_000, 8), torch.nn.Linear(8, 24)

    def forward(self, input_ids: Tensor) -> Tensor:
        q, k, v = (x.unflatten(-1, (2, 4)).transpose(1, 2) for x in self.qkv(self.words(input_ids)).chunk(3, -1))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_a_text_of_60_000_tokens_beside_short_ones() -> None:
    ids = torch.arange(60_000)
    found = atlas(Rotary().eval(), [[1, 2, 3], ids, [4] * 70], progress=False)
    assert (found.texts, found.sampled) == (3, 1)
    link = found.head(0, 0).strongest[0]
    assert {link.query, link.key} <= set(link.places)
    assert len(link.tokens) == len(link.weights) <= 64


def test_the_induction_head_is_told_as_one(model: CopyModel, tmp_path: Path) -> None:
    texts, _ = repeated(40, 34, torch.Generator().manual_seed(1))
    found = atlas(model, [*texts], tokenizer=Words(), progress=False)
    heads = [one for one in found.heads() if "induction" in one["labels"]]
    assert heads
    assert {one["layer"] for one in heads} == {1}
    best = max(heads, key=lambda one: one["induction"])
    assert best["sentence"].startswith("Attends to the token after an earlier occurrence of the query's token (.")
    assert " of its weight, where there is one)." in best["sentence"]
    assert any("previous token" in one["labels"] for one in found.heads() if one["layer"] == 0)
    card = found.head(1, best["head"])
    assert card.unwritten is None
    assert card.copied is not None
    hits, links = card.copied
    assert hits > links / 2, "it copies what it finds"
    assert set(card.writes) <= set(Words().convert_ids_to_tokens([*range(20)]))


def test_effects_on_the_loss_are_those_of_a_head_set_to_zero(model: CopyModel) -> None:
    texts, _ = repeated(6, 34, torch.Generator().manual_seed(2))
    found = atlas(model, [*texts], effects=4, progress=False)
    assert found.head(0, 0).metrics["effect"].n == 4
    changes = []
    for text in texts[:4]:
        out = model.layers[1].out.weight
        losses = []
        for zero in (False, True):
            before = out.detach().clone()
            with torch.no_grad():
                if zero:
                    out[:, 16:32] = 0
                losses.append(torch.nn.functional.cross_entropy(model(text[None])[0, :-1], text[1:]).item())
                out.copy_(before)
        changes.append(losses[1] - losses[0])
    assert found.head(1, 1).metrics["effect"].mean == pytest.approx(sum(changes) / 4, abs=1e-5)


def test_effects_need_a_model_that_predicts_the_next_token() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    with pytest.raises(RuntimeError, match=r"effects=True compares the loss|gave no logits"):
        atlas(layer, [{"src": torch.randn(1, 5, 8)}], effects=True, progress=False)
    found = atlas(layer, [{"src": torch.randn(1, 5, 8)}], effects=lambda out, inputs: out.norm(), progress=False)
    assert found.heads()[0]["effect"] is not None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"texts": []}, "there are no texts"),
        ({"texts": 3}, "texts is an int"),
        ({"kinds": {"other": ["a"]}}, "another string"),
        ({"kinds": {"x": "("}}, "not a regular expression"),
        ({"kinds": ["x"]}, "kinds is a list"),
        ({"effects": "all"}, "effects is a str"),
        ({"links": 0}, "links"),
        ({"model": 3}, "model is an int"),
        ({"store": 3}, "path is int"),
    ],
)
def test_wrong_arguments_say_what_to_give(model: CopyModel, given: dict[str, Any], message: str) -> None:
    whole = {"model": model, "texts": [[1, 2]], **given}
    with pytest.raises((TypeError, ValueError), match=message):
        atlas(whole.pop("model"), whole.pop("texts"), progress=False, **whole)


def test_a_model_in_training_mode_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model.eval\(\)"):
        atlas(CopyModel(), [[1, 2]], progress=False)


def test_a_function_that_loads_the_model(whole: Atlas, model: CopyModel) -> None:
    same(whole, atlas(lambda: (model, Words()), corpus(60), progress=False))


def test_similar_heads_and_comparison(whole: Atlas, model: CopyModel) -> None:
    near = whole.similar(0, 1, top=3)
    assert [one["rank"] for one in near] == [1, 2, 3]
    assert all((one["layer"], one["head"]) != (0, 1) for one in near)
    assert {one["change"] for one in whole.compare(whole)} == {0.0}
    changed = CopyModel().eval()
    changed.load_state_dict(model.state_dict())
    with torch.no_grad():
        changed.layers[1].qk.weight[:16] *= 0  # the queries of head 0 of layer 1
    other = atlas(changed, corpus(60), tokenizer=Words(), progress=False)
    first = whole.compare(other)[0]
    assert (first["layer"], first["head"]) == (1, 0)
    one = whole.compare(other, "entropy")[0]
    assert one["change"] == one["after"] - one["before"]
    with pytest.raises(ValueError, match="different texts"):
        whole.compare(atlas(model, corpus(5), progress=False))
    texts = [[1, 2, 3], [1, 7, 3]]
    with torch.no_grad():
        changed.words.weight[7] = torch.nan
    with pytest.warns(UserWarning, match="1 of 2 texts"):
        fewer = atlas(changed, texts, progress=False)
    with pytest.raises(ValueError, match="text 1 was left out of one atlas only"):
        atlas(model, texts, progress=False).compare(fewer)


def test_a_text_is_opened_with_the_model(model: CopyModel, whole: Atlas, tmp_path: Path) -> None:
    texts = corpus(60)
    link = whole.head(1, 2).strongest[0]
    cap = whole.open_text(link.text)
    weight = cap.attention[1].block(head=2, queries=slice(link.query, link.query + 1))[0, link.key]
    assert float(weight) == pytest.approx(link.weight, abs=TOLERANCE)
    whole.save(tmp_path / "a")
    with pytest.raises(ValueError, match="does not know its model"):
        Atlas.open(tmp_path / "a").open_text(0)
    opened = Atlas.open(tmp_path / "a", model=model, tokenizer=Words(), texts=texts)
    assert len(texts[0]) == opened.open_text(0).attention[0].shape.Q


def test_names_are_public() -> None:
    assert {"atlas", "Atlas"} <= set(attnwidget.__all__)
    assert CONTENT == 1
    assert build.SAVE_EVERY > 0
