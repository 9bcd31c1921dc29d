"""Several layers, heads and forward passes as one exact map."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from traitlets import TraitError

from attnwidget import Attention, AttentionStack, AttentionWidget, load_sample

SAMPLE = load_sample("bank")._asdict()


def of_all(stack: Any, batch: int = 0) -> Tensor:
    return torch.stack([att.block(batch=batch, head=head) for att in stack for head in range(att.shape.H)])


@pytest.mark.parametrize("given", ["mean", {"how": "mean"}])
def test_the_mean_of_all_layers_is_exact_and_said_in_the_title(given: Any) -> None:
    w = AttentionWidget(**SAMPLE, batch=1, layer=3, head=5)
    w.across = given
    torch.testing.assert_close(w.weights(4), of_all(w.attention, 1).mean(0)[4], atol=1e-6, rtol=0)
    assert w.title == "The mean of 72 heads, layers 0–5"
    assert (w.facts["across"], w.facts["every"], w.facts["heads"]) == ("the mean of 72 heads, layers 0–5", 6, 1)
    assert w.batch == 1
    w.across = None
    assert (w.layer, w.title, w.facts["across"]) == (3, "", None)


def test_a_layer_called_mean_or_max_is_all_of_them() -> None:
    w = AttentionWidget(**SAMPLE)
    w.layer = "max"
    assert w.across is not None
    torch.testing.assert_close(w.weights(4), of_all(w.attention).amax(0)[4], atol=1e-5, rtol=0)
    assert AttentionWidget(**SAMPLE, layer="max").title == w.title == "The maximum of 72 heads, layers 0–5"
    assert AttentionWidget(**SAMPLE, layer="max", title="mine").title == "mine"


def test_chosen_layers_and_heads() -> None:
    w = AttentionWidget(**SAMPLE, across={"how": "max", "layers": [1, 4], "heads": [0, 2]})
    each = torch.stack([w.attention[layer].block(head=head) for layer in (1, 4) for head in (0, 2)])
    torch.testing.assert_close(w.weights(4), each.amax(0)[4], atol=1e-5, rtol=0)
    assert w.title == "The maximum of 4 heads, layers 1, 4"


def test_a_front_end_chooses_and_goes_back() -> None:
    w = AttentionWidget(**SAMPLE, layer=2)
    w.set_state({"across": {"how": "mean", "forwards": None}})
    assert w.get_state("across")["across"] == {"how": "mean", "layers": None, "heads": None, "forwards": None}
    assert w.facts["layers"] == ["mean of all layers"]
    w.set_state({"across": {"how": "median"}})
    assert w.facts["layers"] == ["mean of all layers"]
    w.set_state({"across": None})
    assert (w.layer, len(w.facts["layers"])) == (2, 6)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("median", "did you mean 'mean'"),
        (3, 'give "mean" or "max"'),
        ({"layer": [1]}, 'give "mean" or "max"'),
        ({"layers": [9]}, "layer 9 is not there"),
        ({"heads": [99]}, "head 99"),
        ({"layers": []}, "give a list of numbers"),
        ({"forwards": [1]}, "forward 1 is not there"),
    ],
)
def test_what_is_refused_leaves_the_picture_as_it_is(value: Any, says: str) -> None:
    w = AttentionWidget(**SAMPLE, layer=1)
    with pytest.raises(TraitError, match=says):
        w.across = value
    assert (w.across, w.layer) == (None, 1)


def test_forward_passes_and_time_steps_are_one_map_too() -> None:
    passes = [AttentionStack([Attention(*torch.rand(2, 1, 2, 5, 4)) for _ in range(3)]) for _ in range(4)]
    w = AttentionWidget.from_attention(dict(enumerate(passes)), across={"how": "mean", "forwards": "all"})
    torch.testing.assert_close(w.weights(1), torch.stack([of_all(one).mean(0) for one in passes]).mean(0)[1])
    w.across = {"how": "mean", "layers": [2], "forwards": [1, 3]}
    torch.testing.assert_close(w.weights(1), torch.stack([of_all(passes[i][2:]).mean(0) for i in (1, 3)]).mean(0)[1])
    assert w.facts["layers"] == ["mean of layers 2, 2 forward passes"]
    w.forward = 2
    torch.testing.assert_close(w.weights(1), torch.stack([of_all(passes[i][2:]).mean(0) for i in (1, 3)]).mean(0)[1])


def test_another_stack_whose_layers_differ_is_shown_layer_by_layer() -> None:
    fits = AttentionStack([Attention(*torch.rand(2, 1, 2, 5, 4)) for _ in range(2)])
    differs = AttentionStack([Attention(*torch.rand(2, 1, 2, n, 4)) for n in (5, 3)])
    w = AttentionWidget.from_attention({"a": fits, "b": differs}, across="mean")
    w.stack = "b"
    assert (w.across, len(w.facts["layers"])) == (None, 2)


def by_area(small: tuple[int, int], large: tuple[int, int]) -> Tensor:
    """Return the share of each small cell in each large one, by counting points of a fine grid."""
    fine = 60
    row, column = (torch.arange(fine) * 2 + 1).double() / (2 * fine), (torch.arange(fine) * 2 + 1).double() / (2 * fine)
    place = [
        ((row * rows).long()[:, None] * columns + (column * columns).long()[None]).flatten()
        for rows, columns in (small, large)
    ]
    found = torch.zeros(large[0] * large[1], small[0] * small[1], dtype=torch.float64)
    found.index_put_((place[1], place[0]), torch.ones(fine * fine, dtype=torch.float64), accumulate=True)
    return found / found.sum(1, keepdim=True)


@pytest.mark.parametrize("small", [(2, 3), (3, 2), (4, 6)])
def test_layers_of_other_sizes_are_brought_to_the_largest_grid_by_area(small: tuple[int, int]) -> None:
    large = (4, 6)
    q = [torch.rand(1, 2, rows * columns, 4) for rows, columns in (large, small)]
    w = AttentionWidget(q, q, grid=[large, small], layer="mean", view="image")
    share = by_area(small, large)
    spread = (share / share.sum(0)).mT  # the weight of a key is divided among the patches that it covers
    ups = [share @ w.attention[1].block(head=head).double() @ spread for head in (0, 1)]
    mean = (of_all(w.attention[:1]).double().sum(0) + sum(ups)) / 4
    torch.testing.assert_close(w.weights(5).double(), mean[5], atol=1e-6, rtol=0)
    assert float(w.weights(5).sum()) == pytest.approx(1, abs=1e-5)
    assert w.get_state("grid")["grid"]["rows"] == 4
    assert ("on 4 × 6 patches by area" in w.title) == (small != large)


def test_a_word_over_the_image_keeps_its_keys_and_masks() -> None:
    words = torch.rand(1, 2, 3, 4)
    q = [torch.rand(1, 2, n, 4) for n in (16, 4)]
    stack = AttentionStack([Attention(one, words, mask=torch.tensor([[True, True, False]])) for one in q])
    found = stack.combine(grids=[(4, 4), (2, 2)])
    ups = [by_area((2, 2), (4, 4)) @ stack[1].block(head=head).double() for head in (0, 1)]
    mean = (of_all(stack[:1]).double().sum(0) + sum(ups)) / 4
    torch.testing.assert_close(found.block().double(), mean, atol=1e-6, rtol=0)
    assert float(found.block()[:, 2].max()) == 0
    with pytest.raises(ValueError, match="grids has 1 entries but there are 2 layers"):
        stack.combine(grids=[(4, 4)])
    with pytest.raises(ValueError, match=r"4 × 4 does not have 4 patches"):
        stack.combine(grids=[(8, 8), (4, 4)])


def test_windows_of_an_image_are_not_added_up_where_they_lie_elsewhere() -> None:
    from attnwidget._messages.codec.patches import LayerGrid

    q = [torch.rand(4, 2, 4, 4)] * 2
    windows = ((0, 1, 4, 5), (2, 3, 6, 7), (8, 9, 12, 13), (10, 11, 14, 15))
    w = AttentionWidget(q, q, grid=[LayerGrid(4, 4, windows=windows)] * 2)
    with pytest.raises(TraitError, match="samples are windows"):
        w.across = "mean"
