"""A comparison in JupyterLab: the numbers on the page are those of the attentions, and the selection is one."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
import torch
from gallery import show
from lab import Lab, LabNotebook, OfflinePages
from lanes import mostly_thorough
from test_lab import python, soon

from attnwidget import Attention, AttentionWidget, compare, load_sample

DIGITS = 5e-7 + 1e-6  # half of the sixth digit that is said, and what two kernels round of a weight in float32

COMPARE = """
import json, torch
import attnwidget as aw
q, k, v, tokens, _ = aw.load_sample("bank")
layers = list(zip(q, k, v))
a = aw.AttentionStack([aw.Attention(*x) for x in layers])
b = aw.AttentionStack([aw.Attention(*x, is_causal=True) for x in layers])
c = aw.AttentionStack([aw.Attention(*x, window=4) for x in layers])
w = aw.compare({"no mask": a, "causal": b, "window 4": c}, tokens=tokens, layer=5, head=7)
w
"""


class Compared:
    """The drawn comparison."""

    def __init__(self, notebook: LabNotebook) -> None:
        self.notebook = notebook
        self.root = notebook.page.locator(".attnwidget").first
        self.root.locator("[data-aw=picture-change]").wait_for()
        self.root.locator("[data-aw=status]").get_by_text("float32").wait_for()

    def picture(self, name: str = "picture") -> Any:
        return self.root.locator(f"[data-aw={name}]")

    def at(self, query: int, key: int, name: str = "picture", size: int = 20) -> dict[str, float]:
        box = self.picture(name).bounding_box()
        assert box is not None
        return {"x": (key + 0.5) * box["width"] / size, "y": (query + 0.5) * box["height"] / size}

    def click(self, query: int, key: int, name: str = "picture") -> None:
        self.picture(name).click(position=self.at(query, key, name))

    def hover(self, query: int, key: int, name: str = "picture") -> None:
        self.picture(name).hover(position=self.at(query, key, name))

    def text(self, part: str) -> str:
        return " ".join(self.root.locator(f"[data-aw={part}]").inner_text().split())

    def rows(self) -> list[list[str]]:
        found: list[list[str]] = self.root.locator(".aw-change-list button").evaluate_all(
            "(rows) => rows.map((row) => [0, 2, 3, 4].map((at) => row.children[at].textContent))"
        )
        return found

    def said(self) -> tuple[float | None, float | None, float | None]:
        """A, B and the change that the status line says; None where masked."""
        line = self.text("status")
        found = re.search(r"A (masked|[\d.−e]+) B (masked|[\d.−e]+)(?: change ([+−]?[\d.−e]+))?", line)
        assert found is not None, line
        a, b, change = (part and part.replace("−", "-") for part in found.groups())
        return tuple(None if part in (None, "masked") else float(part) for part in (a, b, change))  # type: ignore[return-value]


def tokens_of_the_sample() -> list[str]:
    tokens = load_sample("bank")[3]
    return list(tokens[0]) if isinstance(tokens[0], list) else list(tokens)


def exact(notebook: LabNotebook, side: str, layer: int, head: int, rest: str = "") -> Any:
    """Weights as the kernel computes them, and which are allowed."""
    block = f"{side}[{layer}].block('%s', head={head}{rest}).tolist()"
    return [np.array(json.loads(python(notebook, f"json.dumps({block % stage})"))) for stage in ("weights", "allowed")]


@pytest.fixture
def opened(lab: Lab) -> Any:
    notebooks: list[LabNotebook] = []
    before = len(lab.server.log)

    def open_(cells: list[str], **keywords: Any) -> LabNotebook:
        notebooks.append(lab.open(cells, **{"width": 1500, "height": 1200, **keywords}))
        return notebooks[-1]

    yield open_
    for notebook in notebooks:
        assert notebook.problems == []
        assert notebook.blocked == []
    assert lab.server.exceptions(since=before) == []


@pytest.mark.thorough
def test_every_number_is_the_kernels(opened: Any) -> None:
    notebook = opened([COMPARE])
    notebook.run_cell(0)
    view = Compared(notebook)
    one, one_allowed = exact(notebook, "a", 5, 7)
    other, other_allowed = exact(notebook, "b", 5, 7)

    # every kind of cell under the pointer, in each of the three pictures
    for query, key, name in ((14, 5, "picture"), (0, 0, "picture-b"), (3, 12, "picture-change"), (19, 2, "picture")):
        view.hover(query, key, name)
        view.root.locator("[data-aw=status]").get_by_text(f" {query} → ").wait_for()
        a, b, change = view.said()
        assert a == pytest.approx(one[query, key], abs=DIGITS)
        assert b == (pytest.approx(other[query, key], abs=DIGITS) if other_allowed[query, key] else None)
        assert change == pytest.approx(other[query, key] - one[query, key], abs=DIGITS)
    assert one_allowed.all()

    # the list of what is pinned: every row
    view.click(14, 5, "picture-b")
    soon(notebook, "w.query, w.key", "14 5")
    view.root.locator(".aw-changes .aw-pill").get_by_text("bank").first.wait_for()
    assert view.root.locator(".aw-ring[data-pinned]").count() == 3
    assert view.said() == (0.159312, 0.208241, 0.048929)
    keys = np.argsort(-np.maximum(one[14], other[14]), kind="stable")[:12]
    labels = tokens_of_the_sample()
    for row, key in zip(view.rows(), keys, strict=True):
        assert row[0].startswith(labels[key])
        first, second, both = (part.replace("−", "-") for part in row[1:])
        assert float(first) == pytest.approx(one[14, key], abs=6e-5)
        if other_allowed[14, key]:
            assert float(second) == pytest.approx(other[14, key], abs=6e-5)
        else:
            assert second == "masked"
        assert float(both) == pytest.approx(other[14, key] - one[14, key], abs=6e-5)
    rest = view.root.locator(".aw-change.aw-rest").inner_text().split()
    left = np.setdiff1d(np.arange(20), keys)
    assert float(rest[-3]) == pytest.approx(one[14, left].sum(), abs=6e-5)
    assert float(rest[-2]) == pytest.approx(other[14, left].sum(), abs=6e-5)
    notebook.screenshot("lab-compare", of=".attnwidget")


@pytest.mark.thorough
def test_selection_sides_and_views(opened: Any) -> None:
    notebook = opened([COMPARE])
    notebook.run_cell(0)
    view = Compared(notebook)
    view.click(9, 4)
    soon(notebook, "w.query, w.key", "9 4")

    # another head, layer and side: the numbers follow
    view.root.get_by_role("radio", name="head 2", exact=True).click()
    view.root.get_by_role("radio", name="layer 1", exact=True).click()
    soon(notebook, "w.layer, w.head, w.comparison['layer'], w.comparison['head']", "1 2 1 2")
    view.root.locator(".aw-menu[aria-label=Against] > button").click()
    view.root.get_by_role("menuitemradio", name="window 4").click()
    soon(notebook, "w.against, w.comparison['against']", "window 4 window 4")
    view.root.locator(".aw-compare-head").get_by_text("window 4").wait_for()
    one, _ = exact(notebook, "a", 1, 2, ", queries=9, keys=4")
    _, allowed = exact(notebook, "c", 1, 2, ", queries=9, keys=4")
    assert not allowed[0, 0]
    notebook.page.wait_for_function(
        "(text) => document.querySelector('[data-aw=status]').textContent.includes(text)", arg=f"{one[0, 0]:.6f}"[:-2]
    )
    of_a, of_b, change = view.said()
    assert of_b is None
    assert of_a == pytest.approx(one[0, 0], abs=DIGITS)
    assert change == pytest.approx(-one[0, 0], abs=DIGITS)

    # from Python, and by the keys
    notebook.evaluate("w.query, w.key = 6, 5")
    view.root.locator(".aw-key-pin").first.get_by_text("bank").wait_for()
    view.picture("picture-b").focus()
    notebook.page.keyboard.press("ArrowDown")
    soon(notebook, "w.query, w.key", "7 5")
    notebook.page.keyboard.press("Escape")
    soon(notebook, "w.query, w.key", "None None")
    view.hover(7, 5)
    view.root.locator(".aw-changes").get_by_text("attends to").wait_for()

    # the other views show the first side, and say so
    view.root.get_by_role("tab", name="Heatmap").click()
    view.root.locator("[data-aw=status]").get_by_text("A: no mask").wait_for()
    view.root.get_by_role("tab", name="Compare").click()
    view.root.locator("[data-aw=picture-change]").wait_for()
    soon(notebook, "w.comparison is not None", "True")


def sides() -> dict[str, Attention]:
    q, k, v = torch.randn(3, 1, 3, 18, 8, generator=torch.Generator().manual_seed(1))
    return {"no mask": Attention(q, k, v), "a rather long name of a side": Attention(q, k, v, is_causal=True)}


TOKENS = [f"token{i}" for i in range(18)]


def test_without_a_kernel_all_is_as_it_was_saved(offline_page: OfflinePages) -> None:
    a, b = sides().values()
    shown = show(offline_page, compare(sides(), tokens=TOKENS, query=9, key=2), live=False)
    x, y = (float(att.block(queries=9, keys=2)) for att in (a, b))
    assert f"A {x:.6f} B {y:.6f} change" in " ".join(shown.page.locator("[data-aw=status]").inner_text().split())
    assert shown.page.locator(".aw-change-list button").count() == 12
    shown.hover(4, 1)
    shown.settle()
    assert f"{float(b.block(queries=4, keys=1)):.6f}" in shown.page.locator("[data-aw=status]").inner_text()
    shown.check()


@pytest.mark.thorough
@pytest.mark.parametrize("host", ["jupyter-light", "jupyter-dark", "jupyter-contrast", "vscode-dark"])
@pytest.mark.parametrize("width", [360, 600, 760, 1250])
def test_widths_and_hosts(offline_page: OfflinePages, host: str, width: int) -> None:
    shown = show(offline_page, compare(sides(), tokens=TOKENS, query=9, key=2), host=host, width=width)
    shown.screenshot(f"compare-{width}-{host}")
    assert shown.page.locator(".aw-plot:not([hidden])").count() == (3 if width >= 720 else 1)
    shown.check()


@pytest.mark.parametrize("host", mostly_thorough("jupyter-light", "jupyter-dark", "jupyter-contrast"))
@pytest.mark.parametrize("width", mostly_thorough(900, 320))
def test_until_something_is_pinned_it_says_where_they_differ_most(
    offline_page: OfflinePages, host: str, width: int
) -> None:
    bank = load_sample("bank")
    one, other = (AttentionWidget(**bank._asdict(), layer=5, batch=1, head=head) for head in (7, 2))
    widget = compare({"head 7": one, "head 2": other})
    shown = show(offline_page, widget, host=host, width=width)
    read = int(bank.mask[1].sum())  # padding, which is hatched, is not listed
    layer = Attention(bank.q[5], bank.k[5], bank.v[5], mask=bank.mask)
    change = (layer.block(batch=1, head=2) - layer.block(batch=1, head=7)).numpy()[:read]
    rows = shown.page.locator(".aw-change-pairs button")
    assert rows.count() == (8 if width == 320 else 11)
    strongest = np.argsort(-np.abs(change), axis=None)[: rows.count()]
    for row, at in zip(rows.all(), strongest, strict=True):
        number = row.locator(".aw-number").inner_text().replace("−", "-")
        assert float(number) == pytest.approx(change.flat[at], abs=6e-5)
    shown.screenshot(f"differ-most-{width}-{host}")
    shown.check()
    height = shown.page.locator(".attnwidget").bounding_box()
    rows.nth(1).click()
    shown.settle()
    assert (widget.query, widget.key) == tuple(int(part) for part in np.unravel_index(strongest[1], change.shape))
    assert shown.page.locator(".aw-change-pairs").count() == 0
    assert shown.page.locator(".attnwidget").bounding_box() == height


@pytest.mark.thorough
@pytest.mark.parametrize(("host", "width"), [("plain-light", 900), ("plain-dark", 900), ("plain-light", 320)])
def test_of_long_heads_too_it_says_where_they_differ_most(offline_page: OfflinePages, host: str, width: int) -> None:
    length, make = 1200, torch.Generator().manual_seed(1)
    q, k = (1.5 * torch.randn(1, 2, length, 8, generator=make) for _ in range(2))
    heads = Attention(q, k)
    tokens = [f"t{at}" for at in range(length)]
    widget = compare((heads, 0, 0), (heads, 0, 1), tokens=tokens)
    shown = show(offline_page, widget, host=host, width=width)
    shown.finish()
    rows = shown.page.locator(".aw-change-pairs button")
    rows.first.wait_for()
    many, bins = (8 if width == 320 else 11), -(-length // 512)
    assert rows.count() == many
    assert f"one of each {bins} × {bins} cells" in shown.page.locator(".aw-changes-head").inner_text()
    change = (heads.block(head=1) - heads.block(head=0)).numpy()
    padded = np.zeros((-(-length // bins) * bins,) * 2)
    padded[:length, :length] = np.abs(change)
    cells = padded.reshape(len(padded) // bins, bins, -1, bins).max((1, 3))
    strongest = np.sort(cells, axis=None)[::-1][:many]
    sizes = [abs(float(row.locator(".aw-number").inner_text().replace("−", "-"))) for row in rows.all()]
    assert sizes == sorted(sizes, reverse=True)
    step = 2 * strongest[0] / 254  # the picture's numbers are rounded, those of the list are not
    for size, wanted in zip(sizes, strongest, strict=True):
        assert wanted - step - 1e-4 <= size <= wanted + 1e-4
        assert np.abs(cells - size).min() < 6e-5
    shown.screenshot(f"long-differ-most-{width}-{host}")
    shown.check()
    height = shown.page.locator(".attnwidget").bounding_box()
    rows.nth(1).click()
    shown.settle()
    assert widget.query is not None
    assert widget.key is not None
    assert abs(change[widget.query, widget.key]) == pytest.approx(sizes[1], abs=6e-5)
    assert shown.page.locator(".attnwidget").bounding_box() == height
    assert rows.count() == 0


@pytest.mark.parametrize("length", mostly_thorough(24, 700))
@pytest.mark.parametrize("stage", mostly_thorough("masked", "scores", "contribution"))
@pytest.mark.parametrize(
    ("host", "width"), mostly_thorough(("jupyter-dark", 900), ("plain-light", 320), ("plain-light", 1600))
)
def test_of_every_stage_it_says_where_they_differ_most(
    offline_page: OfflinePages, host: str, width: int, stage: Any, length: int
) -> None:
    make = torch.Generator().manual_seed(2)
    q, k, v = (3 * torch.randn(1, 2, length, 8, generator=make) for _ in range(3))
    heads = Attention(q, k, v, is_causal=True)
    widget = compare((heads, 0, 0), (heads, 0, 1), tokens=[f"t{at}" for at in range(length)], stage=stage)
    shown = show(offline_page, widget, host=host, width=width)
    shown.finish()
    rows = shown.page.locator(".aw-change-pairs button")
    rows.first.wait_for()
    a, b = (heads.block(stage, head=head) for head in (0, 1))
    allowed = heads.block("allowed", head=0) if stage != "scores" else torch.ones(length, length, dtype=torch.bool)
    change = torch.where(allowed, b - a, 0).numpy()
    numbers = [
        [float(cell.replace("−", "-").replace("masked", "nan")) for cell in row.locator("> span").all_inner_texts()[2:]]
        for row in rows.all()
    ]
    sizes = [abs(found) for *_, found in numbers]
    assert sizes == sorted(sizes, reverse=True)
    largest = np.abs(change).max()
    assert sizes[0] == pytest.approx(largest, abs=1e-3)
    for one, other, found in numbers:
        query, key = divmod(int(np.abs(change - found).argmin()), length)
        assert found == pytest.approx(float(change[query, key]), abs=1e-3)
        assert (one, other) == pytest.approx((float(a[query, key]), float(b[query, key])), abs=1e-3, rel=0.06)
    title = shown.page.locator(".aw-changes-head").inner_text()
    word = {"scores": "scores", "masked": "masked scores", "contribution": "contributions"}[stage]
    assert f"Where their {word} differ most" in title or f"largest differences of {word}, one of each 2 × 2" in title
    shown.screenshot(f"differ-most-{stage}-{length}-{width}-{host}")
    shown.check()
    height = shown.page.locator(".attnwidget").bounding_box()
    rows.nth(1).click()
    shown.settle()
    assert abs(change[widget.query, widget.key]) == pytest.approx(sizes[1], abs=1e-3)
    shown.page.wait_for_function("document.querySelectorAll('.aw-change-pairs').length === 0")
    assert shown.page.locator(".attnwidget").bounding_box() == height


@pytest.mark.thorough
def test_while_rows_stand_for_others_it_says_where_these_differ_most(offline_page: OfflinePages) -> None:
    length, make = 9000, torch.Generator().manual_seed(2)
    q, k = (2 * torch.randn(1, 2, length, 8, generator=make) for _ in range(2))
    heads = Attention(q, k)
    widget = compare((heads, 0, 0), (heads, 0, 1))
    sampled = widget.comparison["sampled"]
    assert sampled is not None
    shown = show(offline_page, widget)
    rows = shown.page.locator(".aw-change-pairs button")
    rows.first.wait_for()
    assert "largest differences so far" in shown.page.locator(".aw-changes-head").inner_text()
    asked = "() => window.mounted[0].host.get('comparison').sampled"
    before = shown.page.evaluate(asked)
    rows.first.click()
    shown.settle()
    assert widget.query is not None
    of = [one for one in (sampled, before, shown.page.evaluate(asked)) if one is not None]  # the pass may have gone on
    assert any((widget.query - one["first"]) % one["every"] == 0 for one in of)


@pytest.mark.thorough
@pytest.mark.parametrize("width", [320, 900])
def test_a_long_comparison_without_a_kernel_leaves_no_hole(offline_page: OfflinePages, width: int) -> None:
    q, k = torch.randn(2, 1, 2, 1200, 8, generator=torch.Generator().manual_seed(1))
    heads = Attention(q, k)
    widget = compare((heads, 0, 0), (heads, 0, 1))
    widget.finish()
    shown = show(offline_page, widget, width=width, live=False)
    said = shown.page.get_by_text("The changes of a query in a long head need a running kernel.")
    said.wait_for()
    shown.screenshot(f"long-differ-most-gone-{width}")
    assert shown.page.locator(".aw-changes").bounding_box()["height"] < 100  # type: ignore[index]


@pytest.mark.thorough
@pytest.mark.parametrize("width", [320, 900])
def test_a_comparison_that_was_not_saved_leaves_no_hole(offline_page: OfflinePages, width: int) -> None:
    shown = show(offline_page, compare(sides(), tokens=TOKENS, view="heatmap"), width=width, live=False)
    if width == 320:
        shown.menu("View")
    shown.page.get_by_role("menuitemradio" if width == 320 else "tab", name="Compare").click()
    said = shown.page.get_by_text(
        "The comparison was not saved: a notebook that is saved with this view open keeps it."
    )
    said.wait_for()
    assert shown.page.locator(".aw-compare").bounding_box()["height"] < 40  # type: ignore[index]
    assert shown.faults == []
