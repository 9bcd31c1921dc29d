"""Each finding with the fault planted, and without it; silence on what is sound."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from allocations import PeakBytes
from tolerance import approx, rounding, together

from attnwidget import Attention, capture, load_sample, masks
from attnwidget._analysis import diagnostics, parity
from attnwidget._engine.softmax import run_to_end

Q = 12


def make(**keywords: Any) -> Attention:
    q, k, v = torch.randn(3, Q, 16, generator=torch.Generator().manual_seed(5))
    return Attention(q, k, v, **keywords)


def kinds(att: Attention, **how: Any) -> list[str]:
    return [finding.kind for finding in att.check(**how)]


LOWER = torch.ones(Q, Q).tril().bool()
PADDED = (torch.arange(Q) < 8)[None, None, None]  # (B, H, Q, K), real keys

SOUND = {
    "nothing": {},
    "causal": {"is_causal": True},
    "causal mask": {"mask": LOWER},
    "float causal mask": {"mask": torch.zeros(Q, Q).masked_fill(~LOWER, -torch.inf)},
    "least finite number": {"mask": torch.zeros(Q, Q).masked_fill(~LOWER, torch.finfo(torch.float32).min)},
    "padding": {"mask": PADDED},
    "padding at the left": {"mask": PADDED.flip(3)},
    "window": {"window": 3},
    "causal window": {"window": 3, "is_causal": True},
    "own function": {"mask": lambda b, h, q_idx, kv_idx: (q_idx - kv_idx) % 2 == 0},
    "bias": {"bias": -torch.arange(Q).float().expand(Q, Q)},
    "softcap": {"softcap": 5.0},
    "prefix": {"mask": LOWER | (torch.arange(Q) < 8)},
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_attention_has_no_findings(name: str) -> None:
    assert make(**SOUND[name]).check() == []


FAULTS: dict[str, tuple[str, dict[str, Any]]] = {
    "causal turned round": ("inverted mask", {"mask": ~LOWER}),
    "causal with the wrong meaning": ("inverted mask", {"mask": LOWER.int(), "mask_means": "hide"}),
    "padding turned round": ("inverted mask", {"mask": ~PADDED}),
    "padding of queries": ("mask along the wrong axis", {"mask": PADDED.mT}),
    "off by one": ("look-ahead", {"mask": torch.ones(Q, Q).tril(1).bool()}),
    "one leak": ("look-ahead", {"mask": LOWER | (torch.eye(Q).roll(3, 1).bool() & (torch.arange(Q) == 7))}),
    "an empty row": ("nothing allowed", {"mask": LOWER & (torch.arange(Q) != 0)}),
    "the future alone": ("mask hides the past", {"mask": LOWER.mT}),
    "zero times infinity": ("NaN in masked scores", {"mask": (1 - LOWER.float()) * -torch.inf}),
    "plus infinity": ("infinite in masked scores", {"mask": torch.where(LOWER, 0.0, torch.inf)}),
    "minus a billion": ("masked row made uniform", {"mask": torch.where(torch.arange(Q) == 3, -1e9, 0.0)[:, None]}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_mask_is_found(name: str) -> None:
    kind, keywords = FAULTS[name]
    assert kinds(make(**{"mask_dims": None} | expanded(keywords))) == [kind]


def expanded(keywords: dict[str, Any]) -> dict[str, Any]:
    """Masks of one number a row are written out for all keys."""
    mask = keywords["mask"]
    return keywords | {"mask": mask.expand(Q, Q).clone() if mask.ndim == 2 else mask}


ADDED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "floats 0 and 1": ("error", "mask of only 0 and 1", {"mask": LOWER.float()}),
    "of a half type": ("error", "mask of only 0 and 1", {"mask": LOWER.half()}),
    "of another package": ("error", "mask of only 0 and 1", {"mask": LOWER.double().numpy()}),
    "0 and 1 for padding": ("error", "mask of only 0 and 1", {"mask": PADDED.float()}),
    "0 and −1": ("error", "mask of only −1 and 0", {"mask": LOWER.float() - 1}),
    "the wrong sign": ("error", "mask of only 0 and 1e+09", {"mask": torch.where(LOWER, 0, 1e9)}),
    "0 and −5": ("warning", "mask of only −5 and 0", {"mask": torch.where(LOWER, 0, -5.0)}),
    "one number": ("warning", "mask of only 1", {"mask": torch.ones(Q, Q)}),
    "padding added to −∞": (
        "warning",
        "mask of 0 and 1 beside blocked cells",
        {"mask": torch.where(LOWER, (torch.arange(Q) < 9).float(), -torch.inf)},
    ),
    "one number a query": (
        "warning",
        "mask of one number a query",
        {"mask": torch.arange(Q).float()[:, None].expand(Q, Q)},
    ),
    "nothing": ("note", "mask of only 0", {"mask": torch.zeros(Q, Q)}),
    "0 and 1 in a bias": ("warning", "bias of only 0 and 1", {"bias": LOWER.float()}),
}


@pytest.mark.parametrize("name", ADDED)
def test_a_mask_of_added_numbers_that_hides_nothing_is_the_first_finding(name: str) -> None:
    severity, kind, keywords = ADDED[name]
    found = make(**keywords).check()
    assert [(finding.severity, finding.kind) for finding in found] == [(severity, kind)]
    ways = (
        re.findall(r"mask=(.+?)(?=[;,.] |, mask_means|\.$|$)", found[0].advice)
        if "should hide" in found[0].advice
        else []
    )
    assert len(ways) == (2 if "should hide" in found[0].advice else 0)
    for way in ways:  # the advice, tried as it stands, hides one of the two numbers
        meant = eval(way, {**keywords})
        then = make(mask=meant)
        assert "of only" not in str(then.check())
        assert then.block("allowed").sum() in (LOWER.sum(), (~LOWER).sum(), 8 * Q)


def test_a_mask_of_0_and_1_is_found_in_the_sample_without_padding_and_before_all_else() -> None:
    q, k, v = torch.randn(3, 2, 4, Q, 8)
    padding = torch.ones(2, Q)
    padding[1, 9:] = 0
    q[0, 0, 3, 0] = torch.nan
    att = Attention(q, k, v, mask=padding)
    assert [finding.kind for finding in att.check()][:2] == ["mask of only 0 and 1", "NaN in q"]
    assert kinds(att.what_if({"mask": False}), head=1) == []
    by_head = torch.stack([LOWER.float(), torch.where(LOWER, 0, -torch.inf)])[None]
    att = Attention(*torch.randn(2, 1, 2, Q, 8), mask=by_head)
    assert (kinds(att), kinds(att, head=1)) == (["mask of only 0 and 1"], [])
    assert kinds(Attention.from_scores(torch.randn(Q, Q), mask=LOWER.float())) == ["mask of only 0 and 1"]


def test_a_mask_of_0_and_1_that_a_model_adds_is_found_and_its_zeros_for_a_text_without_padding_are_not() -> None:
    class Own(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    model, (q, k, v) = Own(), torch.randn(3, 1, 2, Q, 8)
    with capture(model) as cap:
        model(q, k, v, LOWER.float())
    found = cap.widget().findings[0]
    assert (found["severity"], found["kind"]) == ("warning", "mask of only 0 and 1")
    assert found["message"].startswith("the model added a mask of only 0 and 1 to the scores")
    with capture(model) as cap:
        model(q, k, v, torch.zeros(Q, Q))
    assert cap.widget().findings == []


def test_where_nothing_is_allowed_the_mask_that_is_inverted_is_named() -> None:
    (finding,) = make(mask=~LOWER, is_causal=True).check()
    assert (finding.kind, finding.severity) == ("nothing allowed", "error")
    assert finding.advice.startswith("By the mask alone queries may attend only to keys after them")
    assert make(mask=~LOWER, mask_means="hide", is_causal=True).check() == []  # as advised
    far = (torch.arange(Q)[:, None] - torch.arange(Q)).abs() >= 6
    (finding,) = make(mask=far, window=3).check()
    assert finding.advice == f"The mask alone allows {int(far.sum())} cells: it and window exclude each other."
    (finding,) = make(mask=torch.zeros(Q, Q).bool()).check()
    assert "True in a bool mask means may attend" in finding.advice


@pytest.mark.parametrize("mask", [~LOWER, torch.where(LOWER, -torch.inf, 0), LOWER.int(), lambda b, h, q, k: k > q])
def test_the_advice_for_an_inverted_mask_inverts_it(mask: Any) -> None:
    given: dict[str, Any] = {"mask": mask} | (
        {"mask_means": "hide"} if getattr(mask, "dtype", 0) == torch.int32 else {}
    )
    (finding,) = make(**given).check()
    if "mask_means=" in finding.advice:
        given["mask_means"] = "keep" if "'keep'" in finding.advice else "hide"
    elif "mask < 0" in finding.advice:
        given["mask"] = mask < 0
    else:
        assert finding.advice == "Invert it: let the function return the opposite."
        given["mask"] = lambda b, h, q, k: ~mask(b, h, q, k)
    assert torch.equal(make(**given).block("allowed"), LOWER)


def test_causal_alignment() -> None:
    q, k, v = torch.randn(3, 16), torch.randn(9, 16), torch.randn(9, 16)
    (finding,) = Attention(q, k, v, is_causal=True).check()
    assert (finding.kind, finding.severity, finding.where) == ("causal with Q ≠ K", "warning", "keys 3 to 8")
    assert Attention(q, k, v, mask=masks.causal_lower_right(3, 9)).check() == []
    (finding,) = Attention(k, q, q, is_causal=True).check()
    assert (finding.severity, finding.where) == ("note", "queries 3 to 8")


@pytest.mark.parametrize(
    ("name", "value", "word"), [("q", torch.nan, "NaN"), ("k", torch.inf, "infinite"), ("v", torch.nan, "NaN")]
)
def test_numbers_that_are_not_finite(name: str, value: float, word: str) -> None:
    tensors = dict(zip("qkv", torch.randn(3, 1, 1, Q, 16), strict=True))
    tensors[name][0, 0, 4, 2] = value
    (finding,) = Attention(**tensors).check()
    assert (finding.kind, finding.severity) == (f"{word} in {name}", "error")
    assert finding.where == ("query 4" if name == "q" else "key 4")


def test_products_beyond_float32() -> None:
    q, k = torch.randn(2, Q, 16)
    (finding,) = Attention(q * 1e30, k * 1e30).check()
    assert (finding.kind, finding.advice) == ("scores not finite", "Normalize q and k, or lower the scale.")
    assert finding.message.startswith("12 queries have scores")
    scores = q @ k.mT
    scores[7, 2] = torch.inf
    (finding,) = Attention.from_scores(scores).check()
    assert (finding.where, finding.advice) == ("query 7", "Look at what computes the scores.")
    assert finding.message == "1 query has scores that are NaN or infinite"


def test_attention_to_padding() -> None:
    tokens = ["a"] * 9 + ["[PAD]"] * 3
    (finding,) = make().check(tokens)
    weight = make().block("weights")[:9, 9:].sum(1).mean()
    assert finding.kind == "attention to padding"
    assert finding.message.endswith(f"with {weight:.1%} of the weight of the other queries")
    assert kinds(make(mask=masks.padding([9])), tokens=tokens) == []
    assert kinds(make(), tokens=["a", "pad me"] + ["b"] * 10) == []
    q, k, v = torch.randn(3, Q, 16)
    k[9:], v[9:] = k[9], v[9]
    (finding,) = Attention(q, k, v).check()
    assert (finding.kind, finding.where) == ("attention to padding", "keys 9, 10, 11")
    assert Attention(q, k, v, mask=masks.padding([9])).check() == []
    with pytest.raises(ValueError, match="there are 2 tokens but 12 keys"):
        make().check(["a", "b"])


def test_given_weights() -> None:
    weights = torch.softmax(torch.randn(Q, Q), 1)
    assert Attention.from_weights(weights).check() == []
    assert kinds(Attention.from_weights(weights.mT)) == ["softmax over the wrong axis"]
    assert kinds(Attention.from_weights(torch.dropout(weights, 0.5, train=True))) == ["rows do not sum to 1"]
    emptied = weights.masked_fill(torch.arange(Q)[:, None] == 3, 0)
    assert Attention.from_weights(emptied).check() == []
    (finding,) = Attention.from_weights(torch.where(torch.arange(Q)[:, None] == 5, 1.3, 1) * emptied).check()
    assert (finding.query, finding.message) == (5, "the row of query 5 sums to 1.3")


@pytest.mark.parametrize(
    "of", [pytest.param("words", marks=pytest.mark.thorough), "given weights", "a large finite number"]
)
def test_of_long_rows_only_a_few_are_held_together(of: str) -> None:
    source = torch.Generator().manual_seed(5)
    if of == "words":
        q, k = torch.randn(2, 9000, 4, generator=source)
        att = Attention(q, k, is_causal=True).merge([("▁a", "▁b", "c")[at % 3] for at in range(9000)])
    elif of == "given weights":
        att = Attention.from_weights(torch.rand(512, 8192, generator=source).softmax(1))
    else:
        q, k = torch.randn(512, 2, generator=source), torch.randn(8192, 2, generator=source)
        att = Attention(q, k, bias=torch.where(torch.arange(8192) % 9 == 0, -1e9, 0.0)[None])
    with PeakBytes() as held:
        assert att.check() == []
    assert held.peak < att.shape.K * 512 * 4  # bytes of the rows of one block of queries


def test_saturated_and_uniform_rows() -> None:
    q, k = torch.randn(2, 64, 64)
    (finding,) = Attention(q * 30, k * 30).check()
    assert (finding.kind, finding.severity) == ("saturation", "note")
    (finding,) = Attention(q, k, scale=50.0).check()
    assert (finding.kind, finding.severity) == ("saturation", "warning")
    assert kinds(Attention(q * 1e-5, k)) == ["uniform rows"]


def test_parity_with_torch() -> None:
    for keywords in SOUND.values():
        found = parity.parity(make(**keywords).head(0, 0))
        assert found is None if "softcap" in keywords else found is not None and found.equal
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        q, k, v = torch.randn(3, Q, 16).to(dtype)
        found = parity.parity(Attention(q, k, v, is_causal=True).head(0, 0))
        assert found is not None
        assert found.equal
        assert found.queries == Q


def test_parity_that_fails_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(parity.F, "scaled_dot_product_attention", lambda *args, **how: wrong(*args, **how) + 0.01)
    (finding,) = make().check()
    assert finding.kind == "not torch's result"


def test_it_does_not_cry_wolf_on_a_real_model() -> None:
    q, k, v, tokens, mask = load_sample("bank")
    for layer in range(len(q)):
        att = Attention(q[layer], k[layer], v[layer], mask=mask, mask_dims="bk")
        for batch in range(att.shape.B):
            for head in range(att.shape.H):
                found = att.check(tokens[batch], batch=batch, head=head)
                saturated = att.statistics(batch, head).peak.quantile(0.1) >= 0.99
                assert [(finding.kind, finding.severity) for finding in found] == (
                    [("saturation", "note")] if saturated else []
                )


def test_a_real_model_without_its_mask_attends_to_padding() -> None:
    q, k, v, tokens, _ = load_sample("bank")
    assert kinds(Attention(q[0], k[0], v[0]), tokens=tokens[1], batch=1) == ["attention to padding"]


def test_a_place_that_can_be_gone_to() -> None:
    q, k, v = torch.randn(3, Q, 16)
    q[4, 2] = torch.nan
    (finding,) = Attention(q, k, v).check()
    assert (finding.query, finding.key) == (4, None)
    (finding,) = make(mask=LOWER | (torch.eye(Q).roll(3, 1).bool() & (torch.arange(Q) == 7))).check()
    assert (finding.kind, finding.query, finding.key) == ("look-ahead", 4, 7)
    (finding,) = make(mask=LOWER & (torch.arange(Q) != 0)).check()
    assert (finding.query, finding.key) == (0, None)
    (finding,) = make().check(["a"] * 9 + ["[PAD]"] * 3)
    assert (finding.query, finding.key) == (None, 9)


def test_of_a_long_head_some_rows_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnostics, "MAX_CELLS", 100)
    for name in ("MAX_ROWS", "MIN_ROWS"):
        monkeypatch.setattr(parity, name, 5)
    q, k, v = torch.randn(3, 40, 64, generator=torch.Generator().manual_seed(0))
    assert Attention(q, k, v, is_causal=True).check() == []
    (finding,) = Attention(q * 30, k * 30, v).check()
    assert finding.kind == "saturation"
    assert finding.message.startswith("5 of the 5 queries with several keys that were looked at give ")
    assert kinds(Attention(q * 1e-5, k, v)) == ["uniform rows"]
    assert kinds(Attention(q, k, v, mask=torch.eye(40, dtype=torch.bool))) == []  # with one key there is no choice
    minus = torch.where(torch.arange(40) == 39, -1e9, 0.0)[:, None].expand(40, 40).clone()
    assert kinds(Attention(q, k, v, mask=minus)) == ["masked row made uniform"]


def test_why_there_is_nothing_to_compare_with() -> None:
    q, k, v = torch.randn(3, Q, 16)
    assert parity.why_not(Attention(q, k, v)) == ""
    assert "softcap" in parity.why_not(Attention(q, k, v, softcap=2.0))
    assert "no v" in parity.why_not(Attention(q, k))
    assert "only scores" in parity.why_not(Attention.from_scores(q @ k.mT, v))
    assert "function" in parity.why_not(Attention(q, k, v, bias=lambda score, b, h, q_idx, kv_idx: score))


def test_what_a_number_type_changes() -> None:
    att = make(is_causal=True)
    for dtype, most in (("float16", 1e-3), ("bfloat16", 1e-2), ("int8", 3e-2)):
        after = att.what_if({"dtype": dtype})
        found = run_to_end(parity.changing(att.head(0, 0), after))
        assert 0 < found.weights < most
        one, other = rounding(att), rounding(after)
        weights, output = (att.block() - after.block()).abs().max(), (att.output() - after.output()).abs().max()
        assert found.weights == approx(float(weights), together(one.weights, other.weights))
        assert found.output == approx(float(output), together(one.output, other.output))
        assert found.queries == Q
    assert run_to_end(parity.changing(att.head(0, 0), att.what_if({}))).weights == 0


def test_a_mask_that_hides_nothing_is_noted_unless_another_sample_needs_it() -> None:
    q, k, v = torch.randn(3, 2, 1, 6, 8)
    hides = torch.ones(2, 6).bool()
    assert "mask hides nothing" in kinds(Attention(q, k, v, mask=hides))
    hides[1, 5] = False
    assert "mask hides nothing" not in kinds(Attention(q, k, v, mask=hides))


def test_heads_with_the_same_weights_are_noted() -> None:
    q, k = torch.randn(2, 1, 4, 6, 8)
    q[:, 2], k[:, 2] = q[:, 0], k[:, 0]
    att = Attention(q, k)
    (found,) = [one for one in att.check(head=0) if one.kind == "identical heads"]
    assert found.message.startswith("head 2 has the same weights")
    assert [one.kind for one in att.check(head=1)] == []
    assert "identical heads" not in kinds(Attention(torch.zeros(1, 4, 6, 8), k))  # even rows are alike


def test_a_sink_that_leaves_nothing_is_noted() -> None:
    scores = torch.randn(8, 8)
    scores[:, 0] = 20
    assert "attention sink" in kinds(Attention.from_scores(scores, is_causal=True))
    scores[:, 0] = 2
    assert "attention sink" not in kinds(Attention.from_scores(scores, is_causal=True))
