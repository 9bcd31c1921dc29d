"""The widget in a real JupyterLab, and in a Jupyter Notebook 7: a click reaches Python, a trait reaches the picture."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from colors_by_hand import PAGE, SCORES, WEIGHTS, wrong_colors
from lab import Lab, LabNotebook
from playwright.sync_api import expect

pytestmark = pytest.mark.thorough

BANK = """
import attnwidget as aw
from attnwidget.samples import load_sample
q, k, v, tokens, mask = load_sample("bank")
shown = dict(tokens=tokens, mask=mask, layer=5, head=7)
w = aw.AttentionWidget(q, k, v, **shown)
w
"""


class View:
    """One drawn widget: the `index`-th on the page."""

    def __init__(self, notebook: LabNotebook, index: int = 0) -> None:
        self.notebook = notebook
        self.root = notebook.page.locator(".attnwidget").nth(index)
        self.picture = self.root.locator("[data-aw=picture]")
        self.root.locator("[data-aw=status]").get_by_text("float32").wait_for()

    def text(self, part: str) -> str:
        return " ".join(self.root.locator(f"[data-aw={part}]").inner_text().split())

    def at(self, query: int, key: int, queries: int = 20, keys: int = 20) -> dict[str, float]:
        """The middle of a cell, from the picture's corner."""
        box = self.picture.bounding_box()
        assert box is not None
        return {"x": (key + 0.5) * box["width"] / keys, "y": (query + 0.5) * box["height"] / queries}

    def click(self, query: int, key: int) -> None:
        self.picture.click(position=self.at(query, key))  # type: ignore[arg-type]

    def hover(self, query: int, key: int) -> None:
        self.picture.hover(position=self.at(query, key))  # type: ignore[arg-type]

    def head(self, head: int) -> Any:
        return self.root.get_by_role("radio", name=f"head {head}", exact=True)

    def label(self, side: str, text: str) -> Any:
        axis = self.root.locator(".aw-labels").nth(0 if side == "query" else 1)
        return axis.locator(".aw-label").filter(has_text=re.compile(f"^{re.escape(text)}$"))

    def choose(self, menu: str, item: str) -> None:
        self.root.locator(f".aw-menu[aria-label='{menu}'] > button").click()
        self.root.get_by_role("menuitemradio", name=item).click()

    def stepper(self, button: str) -> Any:
        return self.root.get_by_role("button", name=button, exact=True)

    def pixels(self) -> str:
        """The picture as a data URL, once it has come to rest: equal for equal pictures."""
        expect(self.root.locator(".aw-ghost")).to_have_count(0, timeout=30_000)
        url: str = self.picture.evaluate("(canvas) => canvas.toDataURL()")
        return url

    def changed(self, before: str) -> str:
        """The picture, once it is another than before."""
        handle = self.picture.element_handle()
        self.notebook.page.wait_for_function(
            "([canvas, before]) => canvas.toDataURL() !== before", arg=[handle, before], timeout=20_000
        )
        return self.pixels()


# Keeps the kernel busy until the test lets it go.
BUSY = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.02)\n"


def let_go(notebook: LabNotebook) -> None:
    (notebook.path.parent / "go").touch()


def python(notebook: LabNotebook, expression: str) -> str:
    return notebook.evaluate(f"print({expression})")


def soon(notebook: LabNotebook, expression: str, value: str) -> None:
    """In the kernel an expression takes a value: now, or when what the page has sent has arrived."""

    def is_not_yet() -> str:
        found = python(notebook, expression)
        return f"{expression} is {found}, not {value}" if found != value else ""

    wait_until_none(notebook, is_not_yet)


def wait_until_none(notebook: LabNotebook, amiss: Callable[[], Any], seconds: float = 30) -> None:
    """Wait until nothing is amiss any more."""
    until = time.monotonic() + seconds
    while found := amiss():
        assert time.monotonic() < until, found
        notebook.page.wait_for_timeout(20)  # and look again


@pytest.fixture
def opened(lab: Lab) -> Any:
    """Opens notebooks; in the end nothing must have gone wrong in any of them."""
    notebooks: list[LabNotebook] = []
    before = len(lab.server.log)

    def open_(cells: list[str], **keywords: Any) -> LabNotebook:
        notebooks.append(lab.open(cells, **{"width": 1400, "height": 1100, **keywords}))
        return notebooks[-1]

    yield open_
    for notebook in notebooks:
        assert notebook.problems == []
        assert notebook.blocked == []
    assert lab.server.exceptions(since=before) == []


Open = Callable[..., LabNotebook]


def test_selecting(opened: Open) -> None:
    notebook = opened([BANK, "aw.AttentionWidget(q, k, v, **{**shown, 'head': 3})", "w.head = 3"])
    notebook.run_cell(0)
    view = View(notebook)

    # cells
    view.click(14, 16)
    soon(notebook, "w.query, w.key", "14 16")
    assert view.text("panel").startswith("bank14 attends to 16 lent .2283 8 river .2242")
    assert view.root.locator(".aw-ring[data-pinned]").count() == 1
    notebook.screenshot("lab-light", of=".attnwidget")
    view.click(14, 16)
    soon(notebook, "w.query, w.key", "None None")
    view.click(5, 8)
    soon(notebook, "w.query, w.key", "5 8")
    notebook.page.keyboard.press("ArrowRight")
    soon(notebook, "w.query, w.key", "5 9")
    notebook.page.keyboard.press("Escape")
    soon(notebook, "w.query, w.key", "None None")
    notebook.page.keyboard.press("ArrowDown")
    content = "window.jupyterapp.shell.currentWidget.content"
    cell = f"() => [{content}.activeCellIndex, {content}.mode]"
    assert notebook.page.evaluate(cell) == [0, "command"], "a key pressed on the picture is not the notebook's"
    notebook.page.keyboard.press("Escape")
    soon(notebook, "w.query, w.key", "None None")

    # labels
    view.label("query", "river").click()
    soon(notebook, "w.query, w.key", "8 None")
    view.label("key", "lent").click()
    soon(notebook, "w.query, w.key", "None 16")
    view.label("key", "lent").click()
    soon(notebook, "w.query, w.key", "None None")

    # from Python, and back
    before = view.pixels()
    notebook.run_cell(2)
    third = view.changed(before)
    assert view.head(3).get_attribute("aria-checked") == "true"
    assert view.head(7).get_attribute("aria-checked") == "false"
    notebook.run_cell(1)
    assert View(notebook, 1).pixels() == third
    view.head(9).click()
    soon(notebook, "w.head", "9")
    view.changed(third)
    notebook.evaluate("w.query, w.key = 2, 3")
    view.root.locator(".aw-ring[data-pinned]").wait_for()
    assert view.text("panel").startswith("sat attends to")

    # layer, sample
    before = view.pixels()
    view.root.get_by_role("radio", name="layer 2", exact=True).click()
    soon(notebook, "w.layer", "2")
    before = view.changed(before)
    view.stepper("next sample").click()
    soon(notebook, "w.batch", "1")
    view.changed(before)
    view.label("query", "lend").wait_for()
    assert python(notebook, "w.picture['layer'], w.picture['batch'], w.picture['head']") == "2 1 9"


def test_looks(opened: Open) -> None:
    notebook = opened([BANK, "import torch\naw.AttentionWidget(*torch.randn(2, 2, 8))"], height=1500)
    notebook.run_cell(0)
    view = View(notebook)
    seen = {view.pixels()}

    def choose(menu: str, item: str, trait: str, value: str, *, redraws: bool = True) -> None:
        before = view.pixels()
        view.choose(menu, item)
        soon(notebook, f"w.{trait}", value)
        if redraws:
            seen.add(view.changed(before))

    choose("Color", "log", "color_scale", "log")
    choose("Color", "row", "color_range", "row")
    choose("Color", "linear", "color_scale", "linear")
    choose("Color", "0 to 1", "color_range", "unit")
    choose("More", "viridis", "palette", "viridis")
    choose("More", "zero is the background", "palette", "attnwidget")
    choose("More", "dark", "theme", "dark")
    assert view.root.get_attribute("data-theme") == "dark"
    choose("Show", "scores", "stage", "scores")
    choose("More", "as the notebook", "theme", "auto")
    assert view.root.get_attribute("data-theme") == "light"
    choose("Show", "weights", "stage", "weights")
    view.root.locator(".aw-menu[aria-label=Color] > button").click()
    view.root.get_by_label("Low end of the colors").fill("0.05")
    view.root.get_by_label("High end of the colors").fill("0.3")
    before = view.pixels()
    view.root.get_by_role("button", name="Set").click()
    soon(notebook, "w.color_range", "(0.05, 0.3)")
    seen.add(view.changed(before))
    assert "above .3: 10 cells" in view.text("legend")
    assert len(seen) > 9

    # a menu is seen whole, also where the output is shorter
    notebook.run_cell(1)
    short = View(notebook, 1)
    short.root.locator(".aw-menu[aria-label=More] > button").click()
    notebook.screenshot("lab-menu-of-a-short-widget")
    corners = """(popup) => {
      const { left, right, top, bottom } = popup.getBoundingClientRect();
      return [[left, top], [right, top], [left, bottom], [right, bottom]].map(([x, y]) => {
        const inside = [x + (x === left ? 9 : -9), y + (y === top ? 9 : -9)];
        return popup.contains(document.elementFromPoint(...inside));
      });
    }"""
    assert short.root.locator(".aw-popup").evaluate(corners) == [True] * 4


def test_colors_of_a_known_matrix(opened: Open) -> None:
    notebook = opened(
        [
            "import torch, attnwidget as aw\n"
            f"weights = torch.tensor({WEIGHTS.tolist()})\n"
            "w = aw.AttentionWidget(weights.log().clamp(min=-300), torch.eye(4), scale=1.0)\n"
            "w",
            f"s = aw.AttentionWidget(torch.tensor({SCORES.tolist()}), torch.eye(4), scale=1.0, stage='scores')\ns",
        ]
    )
    notebook.run_all()
    weights, scores = View(notebook, 0), View(notebook, 1)
    for theme in ("light", "dark"):
        before = weights.pixels()
        notebook.set_theme(theme)
        if theme == "dark":
            weights.changed(before)
        notebook.page.wait_for_function(
            "(theme) => [...document.querySelectorAll('.attnwidget')].every((root) => root.dataset.theme === theme)",
            arg=theme,
        )
        wait_for_page(weights, PAGE[theme])
        # The look is read once more when the host's style sheet has arrived.
        wait_until_none(notebook, partial(wrong_colors, weights.picture, scores.picture, theme))
    notebook.screenshot("lab-4x4-dark")


def wait_for_page(view: View, page: tuple[int, int, int]) -> None:
    """Wait until the widget's own background is that of the page, and its zero is the page's plate."""
    wanted = f"rgb({page[0]}, {page[1]}, {page[2]})"
    handle = view.root.element_handle()
    view.notebook.page.wait_for_function(
        "([root, wanted]) => getComputedStyle(root).backgroundColor === wanted", arg=[handle, wanted], timeout=10_000
    )


BEHIND = """(root) => {
  for (let at = root.parentElement; at; at = at.parentElement) {
    const color = getComputedStyle(at).backgroundColor;
    if (!/rgba\\(.*, 0\\)|transparent/.test(color)) return color;
  }
}"""


def test_themes_change_live(opened: Open) -> None:
    notebook = opened([BANK])
    notebook.run_cell(0)
    view = View(notebook)
    view.click(14, 16)
    seen = view.pixels()
    for theme in ("dark", "contrast", "light"):
        notebook.set_theme(theme)
        seen = view.changed(seen)
        assert view.root.get_attribute("data-theme") == theme
        handle = view.root.element_handle()
        notebook.page.wait_for_function(
            f"(root) => getComputedStyle(root).backgroundColor === ({BEHIND})(root)", arg=handle, timeout=5000
        )
        notebook.screenshot(f"lab-theme-{theme}")


def test_tokens_and_errors(opened: Open) -> None:
    hostile = [
        '<img src=x onerror="window.hacked=1">',
        "</script><script>window.hacked=1</script>",
        "مرحبا",
        "\u202egnitirw",
        "\x00\x1b[31m",
        "<style>*{display:none}</style>",
    ]
    notebook = opened(
        [
            f"import torch, attnwidget as aw\nq, k = torch.randn(2, 6, 8)\ntokens = {hostile!r}\n"
            "aw.AttentionWidget(q, k, tokens=tokens, title=tokens[0], query=0, key=1)",
            "aw.AttentionWidget(q, k, head=99)",
            "aw.AttentionWidget(q, torch.randn(6, 5))",
            "aw.AttentionWidget(q, k, tokens=['a'])",
            "aw.AttentionWidget(q, k, haed=1)",
        ]
    )
    notebook.run_cell(0)
    view = View(notebook)
    view.hover(0, 0)
    notebook.screenshot("lab-tokens", of=".attnwidget")
    assert notebook.page.locator(".attnwidget :is(img, script, style, iframe)").count() == 0
    assert notebook.page.evaluate("() => window.hacked") is None
    assert view.text("toolbar").startswith("Heatmap")
    assert view.root.locator(".aw-title").inner_text() == hostile[0]
    labels = view.root.locator(".aw-labels").first.locator("bdi").all_inner_texts()
    assert len(labels) == 6
    assert not any(character in "".join(labels) for character in "\x00\x1b\u202e")

    errors = {
        1: ("NotThere|IndexError", "head 99"),
        2: ("ValueError", "8.*5|5.*8"),
        3: ("WrongValue|ValueError", "tokens"),
        4: ("TypeError", "haed.*head"),
    }
    for index, (name, text) in errors.items():
        notebook.run_cell(index, allow_error=True)
        outputs = notebook.outputs_json(index)
        assert [output["output_type"] for output in outputs] == ["error"], "one error, and no widget"
        assert re.search(name, outputs[0]["ename"]), outputs[0]["ename"]
        assert re.search(text, outputs[0]["evalue"]), outputs[0]["evalue"]
    assert notebook.page.locator(".attnwidget").count() == 1


def test_views_of_one_widget(opened: Open) -> None:
    notebook = opened([BANK, "w", BUSY + "w.head = 5\npathlib.Path('gone').touch()"])
    notebook.run_cell(0)
    notebook.run_cell(1)
    first, second = View(notebook, 0), View(notebook, 1)
    first.click(3, 3)
    second.root.locator(".aw-ring[data-pinned]").wait_for()
    assert second.text("status").startswith("on 3 → on 3")
    second.head(2).click()
    soon(notebook, "w.head", "2")
    first.root.locator("[data-aw=status]").get_by_text("head 2").wait_for()
    assert first.pixels() == second.pixels()

    # the output of one is cleared: the other lives
    notebook.clear_output(0)
    notebook.page.wait_for_function("() => document.querySelectorAll('.attnwidget').length === 1")
    left = View(notebook, 0)
    left.click(14, 16)
    soon(notebook, "w.query, w.key, w.head", "14 16 2")
    before = left.pixels()
    left.head(4).click()
    before = left.changed(before)

    # another tab in front while the head changes
    notebook.start_cell(2)
    notebook.leave()
    let_go(notebook)
    gone = notebook.path.parent / "gone"
    wait_until_none(notebook, lambda: not gone.exists())
    notebook.come_back()
    notebook.wait_idle()
    left.root.locator("[data-aw=status]").get_by_text("head 5").wait_for()
    left.changed(before)
    box = left.picture.bounding_box()
    assert box is not None
    assert box["width"] > 300

    # one more view, in a panel of its own
    notebook.second_view(1)
    notebook.page.wait_for_function("() => document.querySelectorAll('.attnwidget').length === 2")
    panel = notebook.page.locator(".jp-LinkedOutputView .attnwidget")
    panel.locator(".aw-ring[data-pinned]").wait_for(state="attached")

    # the page is loaded again, the kernel lives
    notebook.save()
    notebook.load()
    again = View(notebook, 0)
    again.root.locator("[data-aw=status]").get_by_text("head 5").wait_for()
    again.click(0, 1)
    soon(notebook, "w.query, w.key", "0 1")
    notebook.screenshot("lab-reloaded")


def test_a_busy_kernel_and_a_lost_one(opened: Open) -> None:
    notebook = opened([BANK, BUSY])
    notebook.run_cell(0)
    view = View(notebook)
    before = view.pixels()
    waiting = view.root.get_by_text("Waiting for the kernel")

    notebook.start_cell(1)
    view.head(3).click()
    waiting.wait_for()
    view.click(14, 16)
    view.hover(5, 8)
    assert view.text("status").startswith("bank 5 → river 8")
    assert view.text("panel").startswith("bank14 attends to 16 lent .2283"), "the last picture's numbers"
    assert view.pixels() == before
    notebook.screenshot("lab-waiting", of=".attnwidget")
    let_go(notebook)
    waiting.wait_for(state="detached")
    third = view.changed(before)
    soon(notebook, "w.head, w.query, w.key", "3 14 16")

    notebook.restart_kernel()
    assert view.pixels() == third, "the old picture stays"
    assert view.root.get_by_text("The kernel is gone").count() == 0
    view.head(8).click()
    view.root.get_by_text("The kernel is gone").wait_for()
    view.hover(5, 8)
    assert view.text("status").startswith("bank 5 → river 8")
    assert view.pixels() == third
    notebook.screenshot("lab-gone", of=".attnwidget")

    notebook.run_cell(0)
    again = View(notebook)
    assert again.root.get_by_text("The kernel is gone").count() == 0
    assert again.pixels() == before
    again.click(14, 16)
    soon(notebook, "w.query, w.key", "14 16")


def test_what_python_refuses(opened: Open) -> None:
    notebook = opened([BANK])
    notebook.run_cell(0)
    view = View(notebook)
    model = python(notebook, "w.model_id")
    picture = view.pixels()
    for state in (
        {"head": 99},
        {"head": "two"},
        {"stage": "nonsense"},
        {"color_range": [2, 1]},
        {"query": -1000},
        {"query": 1e300},
        {"theme": None},
        {"picture": {}, "facts": {}, "uid": "x"},
        {"nothing": 1},
    ):
        notebook.send_as_front_end(model, {"method": "update", "state": state, "buffer_paths": []})
    contents: list[Any] = [
        None,
        [],
        {"requests": "x"},
        {"requests": [1, None, {"kind": "nope", "id": "a"}, {"kind": "row", "id": "b", "query": 1e9}]},
        {"requests": [{"kind": "cells", "id": "c", "layer": 0, "batch": 0, "head": 0, "stage": "weights"}] * 200},
    ]
    for content in contents:
        notebook.send_as_front_end(model, {"method": "custom", "content": content})
    traits = "w.layer, w.batch, w.head, w.query, w.key, w.stage, w.color_range, w.theme"
    assert python(notebook, traits) == "5 0 7 None None weights head auto"
    view.root.get_by_text("Python refused this").wait_for()
    notebook.screenshot("lab-refused", of=".attnwidget")
    assert view.pixels() == picture
    view.head(3).click()
    soon(notebook, "w.head", "3")
    view.changed(picture)
    assert view.root.get_by_text("Python refused this").count() == 0
    assert len(notebook.outputs_json(0)) == 1, "nothing beside the widget"


def test_thirty_widgets(opened: Open) -> None:
    ten = "ws += [aw.AttentionWidget(*torch.randn(3, 1, 2, 12, 8)) for _ in range(10)]; display(*ws[-10:])"
    notebook = opened(["import torch, attnwidget as aw\nfrom IPython.display import display\nws = []", *[ten] * 3])
    notebook.run_cell(0)
    for index in (1, 2, 3):
        notebook.run_cell(index)
        notebook.page.wait_for_function(
            """(count) => {
              const pictures = [...document.querySelectorAll("[data-aw=picture]")];
              return pictures.length === count && pictures.every((canvas) => canvas.style.width);
            }""",
            arg=10 * index,
            timeout=60_000,
        )
    blank = """(canvas) => {
      const empty = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
      return canvas.toDataURL() === empty.toDataURL();
    }"""
    assert not any(picture.evaluate(blank) for picture in notebook.page.locator("[data-aw=picture]").all())
    assert notebook.page.locator("style", has_text=".attnwidget").count() <= 2, "one style sheet, not one for each"
    last = View(notebook, 29)
    last.picture.click(position=last.at(3, 4, 12, 12))  # type: ignore[arg-type]
    soon(notebook, "ws[29].query, ws[29].key, ws[28].query", "3 4 None")


def test_two_thousand_tokens(opened: Open) -> None:
    notebook = opened(
        [
            "import torch, attnwidget as aw\n"
            "q, k = torch.randn(2, 2048, 16, generator=torch.Generator().manual_seed(0)) * 1.3\n"
            "w = aw.AttentionWidget(q, k, tokens=[f't{i}' for i in range(2048)])\nw",
            *["print('\\n' * 40)"] * 2,
        ]
    )
    notebook.run_all()
    view = View(notebook)
    assert "the maximum of 4 × 4 cells" in view.text("legend")
    place = view.at(193, 160, 512, 512)  # the middle of a pooled cell
    view.picture.hover(position=place)  # type: ignore[arg-type]
    status = view.root.locator("[data-aw=status]")
    status.get_by_text("maximum").wait_for()
    sentence = r"queries (\S+)–(\S+) → keys (\S+)–(\S+) maximum (\S+) at query ([\d,]+), key ([\d,]+)"
    said = re.search(sentence, view.text("status"))
    assert said is not None, view.text("status")
    a, b, c, d, query, key = (int(said[i].replace(",", "")) for i in (1, 2, 3, 4, 6, 7))
    assert (a, b, c, d) == (772, 775, 640, 643)
    block = f"w.attention.block('weights', queries=slice({a}, {b + 1}), keys=slice({c}, {d + 1}))"
    assert float(said[5].replace("−", "-")) == pytest.approx(float(python(notebook, f"{block}.max().item()")), rel=2e-3)
    assert python(notebook, f"divmod({block}.argmax().item(), 4)") == f"({query - a}, {key - c})"
    notebook.screenshot("lab-2048", of=".attnwidget")
    view.picture.click(position=place)  # type: ignore[arg-type]
    soon(notebook, "w.query, w.key", f"{query} {key}")

    # the wheel scrolls the notebook; with Ctrl it zooms
    outer = "() => Math.max(...[...document.querySelectorAll('.jp-NotebookPanel *')].map((node) => node.scrollTop))"
    top = notebook.page.evaluate(outer)
    before = view.pixels()
    notebook.page.mouse.wheel(0, 120)
    notebook.page.wait_for_function(f"(top) => ({outer})() > top", arg=top)
    assert view.pixels() == before
    view.root.get_by_text("+ scroll to zoom").wait_for()
    view.picture.hover(position=place)  # type: ignore[arg-type]
    top = notebook.page.evaluate(outer)
    notebook.page.keyboard.down("Control")
    notebook.page.mouse.wheel(0, -120)
    notebook.page.keyboard.up("Control")
    view.root.locator(".aw-plot[data-zoomed]").wait_for()
    view.changed(before)
    assert notebook.page.evaluate(outer) == top
    notebook.screenshot("lab-2048-zoomed", of=".attnwidget")


def test_jupyter_notebook(opened: Open) -> None:
    notebook = opened([BANK], kind="notebook")
    notebook.run_cell(0)
    view = View(notebook)
    view.click(14, 16)
    soon(notebook, "w.query, w.key", "14 16")
    assert view.text("panel").startswith("bank14 attends to 16 lent .2283")
    before = view.pixels()
    notebook.evaluate("w.head = 3")
    view.changed(before)
    notebook.screenshot("notebook-7")


def column(view: View, side: str, index: int) -> Any:
    """A token of the graph: the `index`-th from the top."""
    return view.root.locator(f".aw-graph-columns .aw-label[style*='{'right' if side == 'query' else 'left'}:']").nth(
        index
    )


def texts(locator: Any) -> list[str]:
    return [" ".join(text.split()) for text in locator.all_inner_texts()]


def test_the_graph(opened: Open) -> None:
    notebook = opened([BANK.replace("layer=5, head=7", "layer=2, head=9, view='graph'")])
    notebook.run_cell(0)
    view = View(notebook)
    pills = view.root.locator(".aw-graph-columns .aw-pill")

    # labels: one pin, then two
    column(view, "query", 14).click()
    soon(notebook, "w.query, w.key, w.pins", "14 None [(14, None)]")
    view.root.locator(".aw-graph-row > span").nth(5).get_by_text(".9209").wait_for()
    column(view, "query", 3).click(modifiers=["Shift"])
    soon(notebook, "w.query, w.pins", "3 [(14, None), (3, None)]")
    assert texts(pills) == ["on"]
    assert texts(view.root.locator(".aw-graph-columns .aw-pill-outline")) == ["bank14"]

    # a band: its end at the key is in the key's row
    column(view, "query", 14).click()
    soon(notebook, "w.pins", "[(14, None)]")
    box = view.picture.bounding_box()
    assert box is not None
    view.picture.click(position={"x": box["width"] - 3, "y": 5.5 * box["height"] / 20})
    soon(notebook, "w.query, w.key, w.pins", "14 5 [(14, 5)]")
    assert re.match(r"bank 14 → bank 5 ?head 9 weight 0\.9208\d\d", view.text("status"))

    # heads, here and there
    thumbnail = view.root.get_by_role("checkbox", name="head 4", exact=True)
    before = view.pixels()
    thumbnail.click(modifiers=["Shift"])
    soon(notebook, "w.head, w.heads", "9 [4, 9]")
    before = view.changed(before)
    notebook.evaluate("w.heads = [0, 4, 8]")
    view.root.locator(".aw-graph-key").get_by_text("head 8").wait_for()
    before = view.changed(before)
    notebook.evaluate("w.pins = [(3, None), (8, 0)]")
    view.root.locator(".aw-graph-columns .aw-pill-outline").wait_for()
    assert texts(pills) == ["river", "[CLS]"]
    notebook.screenshot("lab-graph", of=".attnwidget")
    view.picture.focus()
    notebook.page.keyboard.press("Escape")
    soon(notebook, "w.pins", "[]")
    notebook.evaluate("w.view = 'heatmap'")
    view.root.locator(".aw-ramp, [data-aw=panel]").first.wait_for()
    assert view.head(0).get_attribute("aria-checked") == "true"
    notebook.evaluate("w.view = 'graph'; w.direction = 'key'; w.top_k = 1")
    view.root.get_by_text("The strongest query of each key").wait_for()


@pytest.mark.parametrize("kind", ["link", "jslink"])
def test_linked_widgets(opened: Open, kind: str) -> None:
    linked = f"""
import ipywidgets
other = aw.AttentionWidget(q, k, v, **{{**shown, "head": 0}})
links = [ipywidgets.{kind}((w, name), (other, name)) for name in ("layer", "head", "query", "key")]
other
"""
    notebook = opened([BANK, linked, BUSY], height=1600)
    notebook.run_cell(0)
    notebook.run_cell(1)
    one, two = View(notebook), View(notebook, 1)
    one.label("query", "river").click()
    two.root.locator(".aw-labels .aw-pill").get_by_text("river").wait_for()
    soon(notebook, "w.query, w.key, other.query, other.key", "8 None 8 None")
    two.click(14, 16)
    one.root.locator(".aw-ring[data-pinned]").wait_for()
    soon(notebook, "w.query, w.key, w.pins, other.pins", "14 16 [(14, 16)] [(14, 16)]")
    two.head(3).click()
    soon(notebook, "w.head, w.heads, other.heads", "3 [3] [3]")
    one.root.get_by_role("radio", name="layer 2", exact=True).click()
    soon(notebook, "w.layer, other.layer", "2 2")
    two.root.locator("[data-aw=status]").get_by_text("layer 2").wait_for()
    if kind == "jslink":  # needs no kernel: it is busy
        running = notebook.page.locator(".jp-InputPrompt").nth(2).get_by_text("[*]:")
        notebook.start_cell(2)
        running.wait_for()
        one.click(3, 5)
        two.root.locator(".aw-labels .aw-pill").get_by_text("on", exact=True).wait_for()
        assert running.is_visible()
        let_go(notebook)
        assert texts(two.root.locator(".aw-labels .aw-pill")) == texts(one.root.locator(".aw-labels .aw-pill"))
        notebook.wait_idle()
        soon(notebook, "w.query, w.key, other.query, other.key", "3 5 3 5")
    assert notebook.problems == []


def test_a_training_loop(opened: Open) -> None:
    loop = """
import time, torch
steps = torch.randn(41, 2, 1, 4, 20, 16, generator=torch.Generator().manual_seed(0))
w = aw.AttentionWidget(*steps[0], tokens=tokens[0] if isinstance(tokens[0], list) else tokens, query=7)
w
"""
    run = """
import itertools, pathlib
for q, k in itertools.cycle(steps[1:]):
    w.update(q, k)
    time.sleep(0.05)
    if pathlib.Path("go").exists():
        break
w.update(*steps[-1])
"""
    last = "aw.AttentionWidget(*steps[-1], tokens=w.tokens, query=7)"
    other = "w.attention = aw.Attention(*steps[0][..., :9, :])"
    notebook = opened([BANK.replace("\nw\n", "\n"), loop, run, last, other], height=1600)
    notebook.run_cell(0)
    notebook.run_cell(1)
    view = View(notebook)
    view.picture.evaluate(
        """(canvas) => {
          window.seen = new Set();
          const look = () => {
            window.seen.add(canvas.toDataURL());
            if (canvas.isConnected) requestAnimationFrame(look);
          };
          look();
        }"""
    )
    notebook.start_cell(2)
    notebook.page.wait_for_function("() => window.seen.size > 10")  # it redraws live
    let_go(notebook)
    notebook.run_cell(3)
    fresh = View(notebook, 1)
    wanted = fresh.pixels()
    notebook.page.wait_for_function(
        "([canvas, wanted]) => canvas.toDataURL() === wanted",
        arg=[view.picture.element_handle(), wanted],
        timeout=10_000,
    )
    assert view.text("panel") == fresh.text("panel")
    assert view.text("legend") == fresh.text("legend")

    # other tensors, of another length
    notebook.run_cell(4)
    view.root.locator("[data-aw=status]").get_by_text("9 × 9").wait_for()
    assert view.pixels() != wanted
    assert python(notebook, "w.query, len(w.weights(7))") == "7 9"
