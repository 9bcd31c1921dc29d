"""Results and samples as the last line of a cell."""

from __future__ import annotations

import pickle

import pytest
import torch
from IPython.lib.pretty import pretty

from attnwidget import Attention, AttentionWidget, load_sample

ATTENTION = Attention(*torch.randn(3, 1, 2, 5, 4, generator=torch.Generator().manual_seed(0)), is_causal=True)
RESULTS = {
    "sample": load_sample("cat"),
    "explanation": ATTENTION.explain(3, 1, head=1),
    "metrics": ATTENTION.metrics(head=1),
    "statistics": ATTENTION.statistics(head=1),
    "findings": Attention(torch.full((4, 2), float("nan")), torch.zeros(4, 2)).check(),
    "gradients": ATTENTION.gradients(head=1),
    "overview": ATTENTION.overview(head=1),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_in_a_cell_is_the_text_that_print_shows(name: str) -> None:
    text = pretty(RESULTS[name])
    assert text == str(RESULTS[name])
    assert "tensor(" not in text
    assert len(text) < 800


def test_the_fields_of_metrics_stand_below_one_another_and_a_page_shows_them_as_they_are() -> None:
    metrics = ATTENTION.metrics(head=1)
    assert f"  masked_share    {metrics.masked_share:.4g}\n" in str(metrics)
    assert "\n  same_token      none\n" in str(metrics)
    assert Attention(torch.zeros(2, 1), torch.zeros(2, 1)).explain(1, 0)._repr_html_().startswith("<pre>score ")


def test_a_widget_is_not_pickled_and_says_what_to_save() -> None:
    with pytest.raises(TypeError, match=r"cap\.save\(path\).*to_html\(path\)"):
        pickle.dumps(AttentionWidget(torch.zeros(3, 2), torch.zeros(3, 2)))
