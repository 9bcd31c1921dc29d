"""An atlas as pages from the disk and as a widget in JupyterLab: by mouse and by keyboard, offline, with axe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from copying import CopyModel, repeated
from lab import Browser, Lab
from lanes import mostly_thorough
from test_axe import AXE, RUN

from attnwidget import Atlas, atlas

HOSTILE = "</script><img src=x onerror=window.hurt=1>"


class Letters:
    """A tokenizer with one hostile word."""

    def convert_ids_to_tokens(self, ids: Any) -> Any:
        if isinstance(ids, int):
            return HOSTILE if ids == 3 else "abcdefghijklmnopqrst"[ids]
        return [self.convert_ids_to_tokens(one) for one in ids]

    def decode(self, ids: list[int]) -> str:
        return "".join(self.convert_ids_to_tokens(ids))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Atlas, Atlas]:
    texts, _ = repeated(12, 30, torch.Generator().manual_seed(0))
    found = []
    for seed in (0, 1):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            found.append(atlas(CopyModel().eval(), [*texts], tokenizer=Letters(), progress=False))
    return found[0], found[1]


@pytest.fixture(scope="module")
def pages(two: tuple[Atlas, Atlas], tmp_path_factory: pytest.TempPathFactory) -> Path:
    one, other = two
    return one.to_html(tmp_path_factory.mktemp("atlas"), other=other, title=HOSTILE)


@pytest.fixture
def open_page(browser: Browser, pages: Path) -> Iterator[Any]:
    contexts = []

    def opened(width: int = 1100, theme: str = "light", place: str = "") -> Any:
        context = browser.context(width=width, color_scheme=theme, offline=True)  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        problems: list[str] = []
        setattr(page, "problems", problems)  # noqa: B010
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda one: problems.append(one.text) if one.type == "error" else None)
        page.on("request", lambda one: None if one.url.startswith("file:") else problems.append(one.url))
        page.goto(pages.as_uri() + place)
        page.wait_for_selector(".aw-atlas-tile")
        return page

    yield opened
    for context in contexts:
        context.close()


def test_a_page_from_the_disk_shows_a_card_and_runs_no_token(open_page: Any) -> None:
    page = open_page()
    assert page.locator(".aw-atlas-tile").count() == 8
    page.click("[data-head='1-2']")
    page.wait_for_selector(".aw-atlas-links li")
    assert page.locator(".aw-atlas-card h3").first.inner_text().startswith("Layer 1, head 2")
    assert page.locator(".aw-atlas-links li").count() == 5
    page.get_by_role("button", name="Show all 16").click()
    assert page.locator(".aw-atlas-links li").count() == 16
    assert page.locator("[data-mark=query], [data-mark=both]").count() == 16
    page.get_by_role("button", name="Ordinary links", exact=True).click()
    assert "Drawn at random" in page.inner_text(".aw-atlas-links")
    assert page.evaluate("() => window.hurt") is None
    assert HOSTILE in page.inner_text("h2")
    assert page.problems == []


def test_a_page_opens_at_the_head_in_its_address(open_page: Any) -> None:
    page = open_page(place="#0-3")
    page.wait_for_selector("[data-head='0-3'][data-chosen]")
    page.click(".aw-atlas-dot >> nth=6")
    page.wait_for_selector("[data-head='1-2'][data-chosen]")
    assert page.url.endswith("#1-2")


def test_by_keyboard_alone(open_page: Any) -> None:
    page = open_page()
    page.locator("[type=search]").focus()
    page.keyboard.type("layer 1")
    assert page.locator(".aw-atlas-tile:not([data-faded])").count() == 4
    assert "4 of 8 heads" in page.inner_text(".aw-atlas-legend")
    for _ in range(8):
        page.keyboard.press("Tab")
        if page.evaluate("() => document.activeElement.classList.contains('aw-atlas-tile')"):
            break
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
    assert page.evaluate("() => document.activeElement.dataset.head") == "1-1"
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-head='1-1'][data-chosen]")
    page.keyboard.press("Home")
    page.keyboard.press("Shift+Enter")  # as a click with shift
    page.wait_for_selector(".aw-atlas-card")


def test_two_heads_and_two_models_side_by_side(open_page: Any) -> None:
    page = open_page()
    page.click("[data-head='0-1']")
    page.click("[data-head='1-3']", modifiers=["Shift"])
    page.wait_for_function("() => document.querySelectorAll('.aw-atlas-links').length === 2")
    page.click(".aw-atlas-card >> text=Close")
    assert page.locator(".aw-atlas-card").count() == 1
    page.click(".aw-atlas-tools >> text=Change")
    page.wait_for_function("() => document.querySelectorAll('.aw-atlas-links').length === 2")
    numbers = page.locator(".aw-atlas-tile span").all_inner_texts()
    assert any(number.startswith("−") for number in numbers)
    titles = page.locator(".aw-atlas-card h3").all_inner_texts()
    assert titles[0] != titles[1]


def test_sorted_by_a_metric(open_page: Any) -> None:
    page = open_page()
    page.select_option("select", "entropy")
    page.check("text=Largest first")
    order = page.eval_on_selector_all(".aw-atlas-tile", "all => all.map(one => one.getAttribute('aria-label'))")
    values = [float(one.rsplit(" ", 1)[1]) for one in order]
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize(
    ("width", "theme"), mostly_thorough((1100, "light"), (320, "dark"), (600, "light"), (1600, "dark"), everyday=2)
)
def test_axe_finds_nothing_and_nothing_sticks_out(open_page: Any, width: int, theme: str) -> None:
    page = open_page(width, theme, "#1-2")
    page.wait_for_selector(".aw-atlas-links li")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    assert page.evaluate(RUN) == []
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


CELL = """
import torch
from attnwidget import atlas
torch.manual_seed(0)
model = torch.nn.TransformerEncoder(
    torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False
).eval()
found = atlas(model, [{"src": torch.randn(1, 12, 8)} for _ in range(4)], progress=False)
w = found.widget()
w
"""


def test_in_jupyterlab_a_card_comes_from_the_kernel_and_a_text_opens(lab: Lab) -> None:
    notebook = lab.open([CELL])
    notebook.run_cell(0)
    page = notebook.page
    page.wait_for_selector(".aw-atlas-tile")
    page.click("[data-head='1-1']")
    page.wait_for_selector(".aw-atlas-links li")
    assert notebook.evaluate("print(list(w.selected), w._card['key'])") == "[1, 1] 0-1-1"
    page.click("text=Open in the widget >> nth=0")
    page.wait_for_selector(".attnwidget [data-aw=picture] canvas, canvas[data-aw=picture]", timeout=30_000)
    place = "link = found.head(1, 1).strongest[0]; o = w.opened; "
    seen = notebook.evaluate(f"{place}print((o.layer, o.head, o.query, o.key) == (1, 1, link.query, link.key))")
    assert seen == "True"
    assert notebook.problems == []
