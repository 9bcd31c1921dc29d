"""The stages view in a browser: every number that it shows is the reference's, at every width, by mouse and by keys."""

from __future__ import annotations

import itertools
import re
from math import isinf
from typing import Any

import nbformat
import pytest
import torch
from gallery import Gallery, show
from ipywidgets.embed import dependency_state, embed_data
from lab import Lab, OfflinePages
from lanes import mostly_thorough
from nbformat.sign import NotebookNotary
from playwright.sync_api import Locator
from reference import dense

from attnwidget import Attention, AttentionWidget, load_sample

TOKENS = ["river", "water", "bank", "money", "lent"]
N, D = 5, 4
SOFTCAP = 3.0
KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}


def tensors() -> tuple[Any, ...]:
    source = torch.Generator().manual_seed(2)
    q, k, v = torch.randn(3, 1, 1, N, D, generator=source) * 1.6
    mask = torch.ones(N, N).bool()
    mask[3, 1] = mask[0, 3] = False
    mask[4] = False
    return q, k, v, mask, torch.linspace(-1, 1, N * N).view(N, N)


def widget(**more: Any) -> AttentionWidget:
    q, k, v, mask, bias = tensors()
    how = {"mask": mask, "bias": bias, "softcap": SOFTCAP, "tokens": TOKENS, "view": "stages"}
    return AttentionWidget(q, k, v, **{**how, **more})


def reference() -> dict[str, Any]:
    q, k, v, mask, bias = tensors()
    how = {"allowed": mask, "bias": bias, "scale": D**-0.5, "softcap": SOFTCAP}
    return {**dense(q[0, 0], k[0, 0], v[0, 0], **how), "q": q[0, 0].double(), "k": k[0, 0].double()}


def said(value: float, decimals: int) -> str:
    """A number as the widget says it."""
    if isinf(value):
        return "−∞" if value < 0 else "∞"
    if value == 0:
        return "0"
    size = abs(value)
    if size < 1e-4 or float(f"{size:.{decimals}f}") == 0:
        text = f"{size:.1e}".replace("e-0", "e−").replace("e-", "e−").replace("e+0", "e")
    else:
        text = f"{size:.{decimals}f}"
    if decimals == 4:
        text = re.sub(r"^0(?=\.)", "", text)
    return ("−" if value < 0 else "") + text


def steps(page: Gallery) -> dict[str, tuple[str, str]]:
    """Each step's result and what stands below it."""
    found = page.page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll(".aw-step")].map((step) => [
          step.querySelector("h4").textContent,
          [step.querySelector("output").textContent, step.querySelector("output + div").textContent],
        ]))"""
    )
    return {name: tuple(texts) for name, texts in found.items()}


def pin(page: Gallery, query: int, key: int) -> None:
    box = page.page.locator(".aw-small-picture").first.bounding_box()
    assert box is not None
    page.page.mouse.click(box["x"] + (key + 0.5) * box["width"] / N, box["y"] + (query + 0.5) * box["height"] / N)
    names = [TOKENS[query], TOKENS[key]]
    page.page.wait_for_function(
        """(names) => {
          const pills = [...document.querySelectorAll(".aw-steps-pair .aw-pill")];
          return pills.map((pill) => pill.textContent).join() === names;
        }""",
        arg=",".join(names),
    )


def test_every_number_is_the_reference(offline_page: OfflinePages) -> None:
    page, book = show(offline_page, widget(), width=960), reference()
    for query, key in itertools.product(range(N), range(N)):
        pin(page, query, key)
        number = {
            stage: float(book[stage][query, key]) for stage in ("scores", "scaled", "capped", "masked", "weights")
        }
        allowed, log = bool(book["allowed"][query, key]), float(book["normalizer"][query])
        shown, total = steps(page), float(book["contribution"][query].sum())
        assert shown["Dot product"] == (said(number["scores"], 3), "score")
        assert shown["Scale"] == (said(number["scaled"], 3), "scaled")
        assert shown["Softcap"] == (said(number["capped"], 3), "capped")
        assert shown["Mask"] == (said(number["masked"], 3), "masked")
        weight, below = shown["Softmax"]
        assert weight == said(number["weights"], 4)
        assert below == (f"exp({said(number['masked'], 3)} − {said(log, 3)})" if allowed else "blocked: no weight")
        share = float(book["contribution"][query, key]) / total if total else 0
        assert shown["Value"][0] == (f"{100 * share:.{3 if share < 0.001 else 1}f} %" if share else "0")
        heads = page.page.locator(".aw-small-head span").all_inner_texts()
        blocked = "masked"
        assert heads == [
            said(number["scores"], 3), said(number["scaled"], 3), said(number["capped"], 3),
            said(number["masked"], 3) if allowed else blocked, said(number["weights"], 4) if allowed else blocked,
            f"{N} × {D}",
        ]  # fmt: skip
        products = book["q"][query] * book["k"][key]
        order = sorted(range(D), key=lambda d: -float(products[d]))
        titles = page.page.locator(".aw-step").first.locator("rect title").all_text_contents()
        sums = list(itertools.accumulate(float(products[d]) for d in order))
        assert titles == [
            f"dimension {d}: {said(float(products[d]), 3)}, sum {said(total, 3)}"
            for d, total in zip(order, sums, strict=True)
        ]
        bars = page.page.locator(".aw-step[aria-label^=Softmax] title").all_text_contents()
        assert bars == [
            f"{TOKENS[at]} {at}: " + (said(float(w), 4) if bool(open_) else "masked")
            for at, (w, open_) in enumerate(zip(book["weights"][query], book["allowed"][query], strict=True))
        ]
        rules = page.page.locator(".aw-rules p").all_inner_texts()
        bias = float(tensors()[4][query, key])
        assert rules[0] == (
            "The mask allows this pair." if allowed else "The mask blocks this pair: its score becomes −∞."
        )
        adds = "adds 0." if bias == 0 else f"{'takes' if bias < 0 else 'adds'} {said(abs(bias), 3)}."
        assert rules[1] == f"The bias {adds}"
    page.check()


@pytest.mark.parametrize("width", mostly_thorough(750, 960, 600, 360))
@pytest.mark.parametrize("host", mostly_thorough("jupyter-light", "jupyter-dark"))
def test_nothing_collides(offline_page: OfflinePages, width: int, host: str) -> None:
    q, k, v, tokens, mask = load_sample("bank")
    shown = AttentionWidget(q, k, v, tokens=tokens, mask=mask, layer=5, head=7, view="stages", query=14, key=16)
    page = show(offline_page, shown, width=width + 16, host=host, height=1200)
    page.page.wait_for_selector(".aw-ladder")
    for section in ("Scaling", "Gradients"):
        page.page.get_by_role("button", name=re.compile(f"^{section}")).click()
        page.page.wait_for_selector(f"[data-aw=section-{section.lower()}] canvas")
    page.wait_for_lines()
    page.check()
    formulas = page.page.evaluate(
        """() => [...document.querySelectorAll(".aw-step-name")].map((name) => {
          const [own, next] = [name.getBoundingClientRect(), name.nextElementSibling.getBoundingClientRect()];
          const beside = own.bottom > next.top;
          const fits = name.lastChild.scrollWidth <= name.lastChild.clientWidth;
          return [fits || !beside, !beside || own.right <= next.left];
        })"""
    )
    assert all(fits and apart for fits, apart in formulas)
    page.shown.screenshot(f"stages-{width}-{host}")


def test_the_keys_move_the_pin(offline_page: OfflinePages) -> None:
    page = show(offline_page, widget(query=2, key=3), width=960)
    page.page.locator(".aw-small-picture canvas").first.focus()
    page.page.keyboard.press("ArrowDown")
    page.page.keyboard.press("ArrowLeft")
    page.page.wait_for_function("() => document.querySelector('.aw-steps-pair')?.textContent.startsWith('money→bank')")
    shown = page.widgets[0]
    assert (shown.query, shown.key) == (3, 2)
    page.page.keyboard.press("Escape")
    page.page.get_by_text("Click a cell to see how").wait_for()
    page.page.get_by_role("button", name=re.compile("^Cost")).focus()
    page.page.keyboard.press("Enter")
    page.page.get_by_role("button", name="Measure", exact=True).wait_for()
    page.check()


def test_a_finding_pins_its_place_from_any_view(offline_page: OfflinePages) -> None:
    page = show(offline_page, widget(view="heatmap"), width=960)
    badge = page.page.locator("[data-aw=badge]")
    assert badge.inner_text().split() == ["!", "1", "finding"]
    badge.click()
    page.page.wait_for_selector("[data-aw=findings] li")
    assert page.widgets[0].view == "stages"
    page.page.get_by_role("button", name="query 4", exact=True).click()
    page.page.get_by_text("fully masked: weights and output are 0").wait_for()
    assert (page.widgets[0].query, page.widgets[0].key) == (4, 4)
    assert "Every key is blocked for lent" in page.page.locator(".aw-ladder").inner_text()
    page.check()


def centre(part: Locator) -> tuple[float, float]:
    box = part.bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_the_scale_is_dragged(offline_page: OfflinePages) -> None:
    page = show(offline_page, widget(query=2, key=4), width=960)
    grip = page.page.locator(".aw-grip")
    start, middle = centre(grip)
    page.page.mouse.move(start, middle)
    page.page.mouse.down()
    for step in range(1, 9):
        page.page.mouse.move(start + 10 * step, middle)
    page.page.mouse.up()
    page.page.wait_for_selector(".aw-changed")
    page.wait_for_lines()
    shown = page.widgets[0]
    scale = shown.what_if["scale"]
    assert scale > D**-0.5
    page.page.wait_for_function(
        "(scale) => Math.abs(Number(document.querySelector('.aw-grip').getAttribute('aria-valuenow')) - scale) < 1e-3",
        arg=scale,
    )
    assert isinstance(shown.attention, Attention)
    changed = shown.attention.what_if({"scale": scale}).explain(2, 4)
    assert changed.scaled is not None
    assert steps(page)["Scale"][0] == said(changed.scaled, 3)
    assert steps(page)["Softmax"][0] == said(changed.weight, 4)
    assert page.page.locator(".aw-step-before").count() >= 3
    page.page.mouse.move(*centre(grip))
    page.page.mouse.down()
    for far in (400, 1400):
        page.page.mouse.move(far, middle)
    page.page.mouse.up()
    page.page.wait_for_function("() => Number(document.querySelector('.aw-grip').getAttribute('aria-valuenow')) > 1")
    page.wait_for_lines()
    scale = shown.what_if["scale"]
    grip.focus()
    page.page.keyboard.press("ArrowRight")
    page.page.wait_for_function(
        "(scale) => Number(document.querySelector('.aw-grip').getAttribute('aria-valuenow')) > scale", arg=scale
    )
    page.page.locator(".aw-changed").get_by_role("button", name="Reset").click()
    page.page.wait_for_selector(".aw-changed", state="detached")
    page.settle()
    assert shown.what_if == {}
    page.check()


@pytest.mark.thorough
def test_numbers_of_ones_own(offline_page: OfflinePages) -> None:
    page = show(offline_page, widget(query=2, key=4), width=960)
    page.page.get_by_role("button", name="What if").click()
    page.page.get_by_role("textbox", name="Temperature").fill("0")
    page.page.get_by_role("button", name="Set").click()
    page.page.get_by_text("Temperature must be above 0").wait_for()
    page.page.get_by_role("textbox", name="Temperature").fill("2")
    page.page.get_by_role("textbox", name="Softcap").fill("none")
    page.page.get_by_role("textbox", name="Window").fill("2")
    page.page.get_by_role("button", name="Set").click()
    page.page.wait_for_selector(".aw-changed")
    assert page.widgets[0].what_if == {"temperature": 2, "softcap": None, "window": 2}
    page.wait_for_lines()
    page.page.get_by_text("Blocked by window 2").wait_for()
    page.check()


@pytest.mark.thorough
def test_a_saved_notebook_shows_the_pair(lab: Lab) -> None:
    shown = widget(query=2, key=4)
    cell = nbformat.v4.new_code_cell("w", execution_count=1)
    view = {"version_major": 2, "version_minor": 0, "model_id": shown.model_id}
    cell.outputs = [nbformat.v4.new_output("display_data", {"application/vnd.jupyter.widget-view+json": view})]
    state = embed_data(views=[shown], state=dependency_state([shown], drop_defaults=False))["manager_state"]
    saved = {"application/vnd.jupyter.widget-state+json": state}  # with the script, whatever this page has shown before
    written = nbformat.v4.new_notebook(cells=[cell], metadata={"widgets": saved, **KERNEL})
    path = lab.server.root / "saved.ipynb"
    nbformat.write(written, path)
    NotebookNotary().sign(nbformat.read(path, as_version=4))  # widgets of others' notebooks are not shown
    notebook = lab.open_file(path)
    notebook.page.locator(".attnwidget .aw-ladder").wait_for()
    book, results = reference(), notebook.page.locator(".aw-step output").all_inner_texts()
    stages = [said(float(book[stage][2, 4]), 3) for stage in ("scores", "scaled", "capped", "masked")]
    assert results[:5] == [*stages, said(float(book["weights"][2, 4]), 4)]
    assert "no softcap" in notebook.page.locator(".aw-parity").inner_text()
    assert notebook.page.locator("[data-aw=findings] li").count() == 1
    notebook.page.get_by_role("tab", name="Heads").click()  # nothing runs, and this kernel knows no such widget
    notebook.page.get_by_text("No kernel has this widget").wait_for()
    assert "Waiting for the kernel" not in notebook.page.locator(".attnwidget").inner_text()
    assert notebook.page.get_by_text("Run the cell again to compute more.").count() == 1
