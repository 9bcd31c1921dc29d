"""What weights carry: by the papers' formulas written out, block by block, and refused where it is not known.

That every bin, tile, row and comparison of these stages is that of the dense matrix, under every mask, bias, window,
softcap and sink, in grouped heads and in every dtype, is tested with the other stages: `reference.dense` has them.
"""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from allocations import Largest
from carrying import carrying, parts_of
from hypothesis import given
from reference import Case, cases
from tolerance import approx, rounding
from torch import Tensor
from torch.testing import assert_close

from attnwidget._engine import overview, softmax, stages, stripe_choice, stripes
from attnwidget._engine.base import OnlyWeightsError
from attnwidget._engine.level_cache import LevelCache
from attnwidget._engine.sources import CARRIED
from attnwidget.attention import Attention
from examples import examples


def kobayashi(weights: Tensor, v: Tensor, w_o: Tensor) -> Tensor:
    """‖α · f(x)‖ of one head, cell by cell (Kobayashi et al. 2020, §3)."""
    return torch.stack([torch.stack([(a * (x @ w_o)).norm() for a, x in zip(row, v, strict=True)]) for row in weights])


B, H, G, Q, K, D, Dv = 2, 6, 3, 9, 11, 4, 8


def of(*, heads: int = H, groups: int = G, queries: int = Q, keys: int = K, causal: bool = True) -> Attention:
    make = torch.Generator().manual_seed(0)
    shapes = ((heads, queries, D), (groups, keys, D), (groups, keys, Dv))
    q, k, v = (torch.randn(B, *shape, generator=make) for shape in shapes)
    return Attention(q, k, v, is_causal=causal)


def parts() -> dict[str, Tensor]:
    """What the weights of `carrying(of())` carry."""
    return parts_of(B, H, Q, Dv, torch.float32)


@given(cases(longest=20))
@examples(60)
def test_every_block_is_that_of_the_definitions(case: Case) -> None:
    att, within = case.attention(), case.rounding()
    batch, head = case.q.shape[0] - 1, case.q.shape[1] - 1
    wanted = case.dense(batch, head)
    Q, K = att.shape.Q, att.shape.K
    for stage in CARRIED:
        some = {"queries": range(Q // 2, Q), "keys": [K - 1, 0]}
        assert_close(att.block(stage, batch=batch, head=head).double(), wanted[stage], **within[stage])
        found = att.block(stage, batch=batch, head=head, **some).double()
        assert_close(found, wanted[stage][Q // 2 :][:, [K - 1, 0]], **within[stage])


def test_value_norm_is_that_of_the_paper_in_grouped_heads() -> None:
    plain = of()
    att = carrying(plain)
    w_o = parts()["w_o"]
    for head in range(H):
        weights = plain.block(batch=1, head=head).double()
        wanted = kobayashi(weights, plain.v[1, head // 2].double(), w_o[head].double())
        assert_close(att.block("value_norm", batch=1, head=head).double(), wanted, **rounding(att)["value_norm"])


def test_saliency_is_the_weight_times_its_gradient() -> None:
    q, k, v = (torch.randn(1, 2, n, d, dtype=torch.float64) for n, d in ((7, 4), (9, 4), (9, 5)))
    weights = (q @ k.mT / 2).softmax(-1).requires_grad_()
    output = weights @ v
    loss = (output.sin() * torch.randn(output.shape, dtype=torch.float64)).sum()
    by_weight, by_output = torch.autograd.grad(loss, (weights, output))
    att = Attention(q, k, v).carrying(grad_output=by_output)
    for head in range(2):
        wanted = (weights * by_weight)[0, head].detach()
        assert_close(att.block("saliency", head=head), wanted, **rounding(carrying(att))["saliency"])


def test_the_logits_of_a_row_sum_to_what_the_head_adds() -> None:
    att, given_ = carrying(of()), parts()
    for head in range(H):
        written = att.output(1, head).double() @ given_["w_o"][head].double()
        wanted = written @ given_["direction"][1].double() / given_["scale"][1].double()
        found = att.block("logit", batch=1, head=head).double().sum(1)
        assert_close(found, wanted, rtol=0, atol=K * rounding(att)["logit"]["atol"])


def test_several_parts_are_given_one_after_the_other() -> None:
    plain, given_ = of(), parts()
    assert plain.stages[-1] == "contribution"
    one = plain.carrying(w_o=given_["w_o"])
    assert one.stages[-1:] == ("value_norm",)
    two = one.carrying(direction=given_["direction"], scale=given_["scale"])
    three = two.carrying(grad_output=given_["grad_output"])
    assert three.stages[-3:] == CARRIED
    for stage in CARRIED:
        assert torch.equal(three.block(stage, head=3), carrying(plain).block(stage, head=3))
    without_scale = two.carrying(direction=given_["direction"])  # another direction, whose scale nobody says
    times = given_["scale"][0][:, None]
    assert_close(without_scale.block("logit") / times, two.block("logit"), **rounding(three)["logit"])
    flat = plain.carrying(w_o=given_["w_o"].flatten(0, 1))
    assert torch.equal(flat.block("value_norm"), one.block("value_norm"))


def test_copies_and_pickles_carry_the_same() -> None:
    att = carrying(of())
    for other in (copy.copy(att), copy.deepcopy(att), pickle.loads(pickle.dumps(att))):
        for stage in CARRIED:
            assert torch.equal(other.block(stage), att.block(stage))


def test_log_normalizers_are_computed_once_for_all_directions() -> None:
    att = carrying(of())
    att.log_normalizer(0, 0)
    other = att.carrying(direction=torch.ones(7))
    assert other.known_rows(0, 0, range(9)) is not None


def test_a_projection_that_was_changed_afterwards_is_refused_by_name() -> None:
    att, w_o = of(), parts()["w_o"]
    found = att.carrying(w_o=w_o, direction=torch.ones(7), grad_output=torch.ones(B, H, Q, Dv))
    found.block("value_norm")
    w_o.mul_(2)
    for stage in ("value_norm", "logit"):
        assert stage not in found.stages
        with pytest.raises(ValueError, match=f"{stage} is not known: one of its tensors was changed in place"):
            found.block(stage)
    assert found.block("saliency").isfinite().all()  # which needs none
    with pytest.raises(ValueError, match="one of its tensors was changed in place"):
        found.overview(stage="value_norm")
    for other in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert other.stages == found.stages
    with pytest.raises(ValueError, match="one of its tensors was changed in place"):
        found.carrying(direction=torch.ones(7)).block("value_norm")
    again = found.carrying(w_o=w_o)
    assert torch.equal(again.block("value_norm"), att.carrying(w_o=w_o.clone()).block("value_norm"))


def test_under_other_rules_a_gradient_is_no_gradient_any_more() -> None:
    att = carrying(of())
    changed = att.what_if({"causal": False})
    assert changed.stages[-2:] == ("value_norm", "logit")
    assert torch.equal(changed.block("logit"), carrying(of(causal=False)).block("logit"))
    with pytest.raises(ValueError, match=r"saliency is not known: .* is of the original attention"):
        changed.block("saliency")
    assert torch.equal(att.what_if({}).block("saliency"), att.block("saliency"))


def test_heads_and_words_put_together_carry_nothing() -> None:
    att = carrying(of())
    for other in (att.combine(), att.merge([0, 0, 1, 2, 3, 4, 5, 6, 6], [0, *range(10)])):
        assert other.stages == ("weights",)
        for stage in CARRIED:
            with pytest.raises(OnlyWeightsError, match=f"{stage} is not known: combined heads and merged words"):
                other.block(stage)
        with pytest.raises(OnlyWeightsError, match="call carrying on single heads"):
            other.carrying(grad_output=torch.ones(B, 1, Q, Dv))


REFUSED = [
    ({}, "carrying has no argument: give one of w_o, direction, scale, grad_output"),
    ({"w_o": torch.ones(47, 5)}, r"w_o has shape \(47, 5\): give \(48, d_model\), or \(6, 8, d_model\)"),
    ({"w_o": torch.ones(8, 6, 5)}, r"w_o has shape \(8, 6, 5\): give \(48, d_model\), or \(6, 8, d_model\)"),
    ({"grad_output": torch.ones(9, 8)}, r"grad_output has shape \(9, 8\): give ∂L/∂O of all heads, \(2, 6, 9, 8\)"),
    ({"w_o": torch.ones(48, 5), "direction": torch.ones(6)}, r"direction has shape \(6,\): give \(5,\) or \(2, 5\)"),
    ({"direction": torch.ones(3, 5)}, r"direction has shape \(3, 5\): give \(d_model,\) or \(2, d_model\)"),
    ({"scale": torch.ones(8)}, r"scale has shape \(8,\): give \(9,\) or \(2, 9\)"),
]


@pytest.mark.parametrize(("given_", "told"), REFUSED)
def test_what_does_not_fit_is_refused(given_: dict[str, Tensor], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        of().carrying(**given_)


def test_what_is_not_known_says_how_to_give_it() -> None:
    att = of()
    for stage, told in (("value_norm", "w_o=…"), ("logit", "direction=…"), ("saliency", r"gradients=True")):
        with pytest.raises(ValueError, match=f"{stage} is not known: .*{told}"):
            att.block(stage)
    with pytest.raises(ValueError, match="saliency is not known: there is no v"):
        Attention(att.q, att.k).block("saliency")
    with pytest.raises(ValueError, match="carrying needs v"):
        Attention(att.q, att.k).carrying(grad_output=torch.ones(B, H, Q, Dv))


def test_a_value_that_is_infinite_or_nan_reaches_only_who_gives_it_weight() -> None:
    plain = of(heads=1, groups=1, keys=Q)
    v = plain.v.clone()
    v[0, 0, 5] = torch.inf
    att = carrying(Attention(plain.q, plain.k, v, is_causal=True))
    for stage in ("contribution", *CARRIED):
        block, pooled = att.block(stage), att.overview(size=9, stage=stage).values
        for found in (block, pooled):
            assert found[:5].isfinite().all()
            assert (found[:5, 5] == 0).all()
            assert not found[5:, 5].isfinite().any()


@pytest.mark.parametrize("stage", ["logit", "saliency"])
def test_a_level_that_is_kept_folds_to_the_largest_by_size(stage: str) -> None:
    att = carrying(of(queries=50, keys=50, heads=1, groups=1, causal=False))
    levels = LevelCache(att, largest=25)
    list(levels.build(0, 0, stage=stage, seconds=0))
    found = levels.find(next(iter(key for _, key in levels._store._levels)))
    folded = found.fold(slice(None), slice(None), 4, 4).values
    wanted = att.overview(0, 0, size=-(-50 // folded_bin(found, 4)), stage=stage).values
    assert_close(folded, wanted, **rounding(att)[stage])
    assert (folded < 0).any()
    assert (folded > 0).any()


def folded_bin(level, times: int) -> int:
    return level.overview.query_bin * times


def test_of_a_bin_the_number_of_largest_size_is_shown_with_its_sign() -> None:
    weights = torch.full((1, 4), 0.25)
    att = Attention.from_weights(weights, torch.tensor([[1.0], [-3.0], [2.0], [0.5]]))
    att = att.carrying(grad_output=torch.tensor([[4.0]]))
    assert att.overview(stage="saliency", size=2).values.tolist() == [[-3.0, 2.0]]
    assert att.overview(stage="saliency", size=2, pool="mean").values.tolist() == [[-1.0, 1.25]]


def test_memory_is_that_of_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (overview, softmax, stages, stripe_choice):
        monkeypatch.setattr(module, "QUERIES", 64)
    for module in (stages, stripes):
        monkeypatch.setattr(module, "KEYS", 128)
    att = carrying(Attention(*torch.randn(3, 600, 2), is_causal=True))
    with Largest() as largest:
        for stage in CARRIED:
            att.overview(stage=stage, size=60)
    assert 0 < largest.cells <= 64 * 128 < 600 * 600 // 20


def test_an_explanation_says_what_the_weight_carries() -> None:
    att = carrying(of())
    found = att.explain(5, 2, batch=1, head=4)
    within = rounding(att)
    for stage in CARRIED:
        wanted = float(att.block(stage, batch=1, head=4, queries=5, keys=2))
        assert found.carried[stage] == approx(wanted, within[stage])
        assert found.per_weight[stage] * found.weight == approx(wanted, within[stage])
    told = str(found)
    assert "value norm  weight × ‖v W_O‖" in told
    assert "logit       weight × v W_O · d / s" in told
    assert "saliency    weight × ∂L/∂O · v" in told
    assert of().explain(5, 2).carried == {}
