"""Texts that look like markup, and traits and replies of any kind, in a real page: nothing runs, nothing leaves."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gallery
import pytest
import torch
from gallery import portable, show, state_of
from lab import OfflinePages, Page
from payloads import PAYLOADS, SHORT
from test_effects_view import detail, with_effects

from attnwidget import Attention, AttentionStack, AttentionWidget, compare

pytestmark = pytest.mark.thorough

VIEWS: Any = ("heatmap", "graph", "text", "image", "heads", "segments", "stages", "compare")
COUNT = len(PAYLOADS)
# What no text may ever become; `img` and `canvas` of the widget's own are made by it.
FOREIGN = "script, iframe, meta, base, link, style, object, form, marquee, video, details, math, [onerror], [onload], a"


def attentions() -> AttentionStack:
    q, k, v = torch.randn(3, 1, 2, COUNT, 4, generator=torch.Generator().manual_seed(0))
    return AttentionStack([Attention(q, k, v), Attention(k, q, v)], names=PAYLOADS[:2])


def stacks(**more: Any) -> AttentionWidget:
    return AttentionWidget.from_attention(
        {PAYLOADS[0]: attentions(), PAYLOADS[12]: attentions()}, tokens=PAYLOADS, title=PAYLOADS[13], query=3, key=5,
        **more,
    )  # fmt: skip


def patches(**more: Any) -> AttentionWidget:
    """Most tokens are patches of an image."""
    return stacks(grid=(8, 8), grid_start=1, **more)


def compared(**more: Any) -> AttentionWidget:
    """Names of sides, all markup."""
    one, other = attentions(), attentions()
    return compare({PAYLOADS[1]: one[0], PAYLOADS[12]: other[1]}, tokens=PAYLOADS, title=PAYLOADS[0], query=3, **more)


def of_view(view: str) -> AttentionWidget:
    """A widget of markup that has this view, and shows it."""
    return {"image": patches, "segments": parts, "compare": compared}.get(view, stacks)(view=view)


PARTS = {
    PAYLOADS[1]: {PAYLOADS[2]: (1, 4), PAYLOADS[3]: (4, 9)},
    PAYLOADS[12]: (9, 20),
    SHORT: (20, 40),
    PAYLOADS[15]: (40, COUNT),
}


def parts(**more: Any) -> AttentionWidget:
    """Names of towers in two forwards, of segments, of metrics of one's own, and of what is asked for, all markup."""
    kinds: Any = {PAYLOADS[4]: lambda rows: rows.weights.amax(-1), PAYLOADS[16]: lambda rows: rows.weights.amin(-1)}
    at = {"asking": PAYLOADS[15], "segment": PAYLOADS[12], "query": 50, "bar": PAYLOADS[4], "order": PAYLOADS[16]}
    return AttentionWidget.from_attention(
        {(forward, PAYLOADS[name]): attentions() for forward in range(2) for name in (0, 12)},
        tokens=PAYLOADS, segments=PARTS, kinds=kinds, title=PAYLOADS[13], **{**at, **more},
    )  # fmt: skip


def told_effects(w: AttentionWidget) -> AttentionWidget:
    """A widget that has been told of edits of a model whose tokens and sentences are markup."""
    told = with_effects(w, [0.24, 0.03, None, -0.13])  # two layers of two heads
    texts = iter(PAYLOADS * 20)
    path = list(w.segment_path)
    names = w._column_names(path)
    effects: Any = {**(told.effects or {}), "text": next(texts), "target": {"token": 17, "text": next(texts)}}
    effects["targets"] = [
        {"at": 50, "token": n, "text": next(texts), "note": next(texts)} for n in range(17, 17 + COUNT)
    ]
    effects["edits"] = [{**one, "name": next(texts), "of": next(texts)} for one in effects["edits"]]
    effects["segments"] = {"path": path, "names": names, "lost": [0.5] * len(names), "dropped": next(texts)}
    told.set_trait("effects", effects)
    few: Any = {"target": next(texts), "tokens": [[next(texts), 0.5, 0.25] for _ in range(10)]}
    told.set_trait("effect_details", [detail({"segment": name, "path": path}, 0.5, **few) for name in names])
    return told


def heard(page: Page) -> list[str]:
    """What a page does that only markup could make it do."""
    found: list[str] = []

    def dismiss(dialog: Any) -> None:
        found.append(f"dialog {dialog.message}")
        dialog.dismiss()

    page.page.on("dialog", dismiss)
    page.page.on("framenavigated", lambda frame: found.append(f"went to {frame.url}"))
    page.page.on("popup", lambda popup: found.append(f"opened {popup.url}"))
    return found


def assert_nothing_ran(page: Page, found: list[str]) -> None:
    assert found == []
    assert page.blocked == []
    assert page.page.evaluate("() => window.ran ?? null") is None
    assert page.page.locator(".attnwidget").locator(FOREIGN).count() == 0
    assert page.problems == []


def put(shown: gallery.Gallery) -> None:
    """Bring the page to what the widget shows in Python."""
    tell(shown)
    shown.settle()


def tell(shown: gallery.Gallery) -> None:
    """Tell the page what the widget shows in Python, whatever it draws of it."""
    shown.page.evaluate(
        "(state) => window.mounted[0].host.fromPython(attnwidgetHost.reviveState(state))",
        portable(state_of(shown.widgets[0])),
    )


def test_there_are_enough() -> None:
    assert len(set(PAYLOADS)) >= 60


def many() -> AttentionWidget:
    """So many tokens that the strongest pairs are listed, and nothing is pinned."""
    q, k, v = torch.randn(3, 1, 2, 800, 4, generator=torch.Generator().manual_seed(0))
    return AttentionWidget(q, k, v, tokens=(PAYLOADS * 12)[:800], is_causal=True)


def pinned_block() -> AttentionWidget:
    """A block of segments is pinned, and no token."""
    return parts(query=None, view="heatmap", asking=SHORT, segment=SHORT)


SHOWN: dict[Callable[..., AttentionWidget], Any] = {
    stacks: ("heatmap", "graph", "text", "heads", "stages"),
    patches: ("image", "text"),
    parts: ("heatmap", "graph", "text", "heads", "stages", "segments"),
    many: ("heatmap",),
    pinned_block: ("heatmap", "text"),
    compared: ("compare", "heatmap", "graph", "text", "heads", "stages"),
}


@pytest.mark.parametrize("make", SHOWN)
def test_no_text_becomes_markup_in_any_view(make: Callable[..., AttentionWidget], offline_page: OfflinePages) -> None:
    shown = show(offline_page, make(), width=900)
    found, w = heard(shown.shown), shown.widgets[0]
    for view in SHOWN[make]:
        w.view = view
        put(shown)
        for fraction in (0.1, 0.5, 0.9):
            box = shown.shown.box("[data-aw=picture]")
            shown.page.mouse.move(box["x"] + fraction * box["width"], box["y"] + fraction * box["height"])
            shown.shown.rest()
        assert_nothing_ran(shown.shown, found)
    w.view = "heatmap"
    for payload in PAYLOADS:
        shown.page.evaluate(
            "(text) => { const { host } = window.mounted[0]; const facts = host.get('facts');"
            " host.fromPython({ title: text, errors: { thumbnails: text }, facts: { ...facts, layers: [text, text],"
            " dtype: text, device: text } }); host.tell({ refused: text }); }",
            payload,
        )
    shown.shown.rest()
    assert_nothing_ran(shown.shown, found)


@pytest.mark.parametrize("shows", ["attention", "effect"])
@pytest.mark.parametrize("path", [(), (PAYLOADS[1],)], ids=["outside", "inside"])
def test_no_name_of_a_part_becomes_markup(path: Any, shows: Any, offline_page: OfflinePages) -> None:
    more = {} if not path else {"segment": PAYLOADS[2]}
    w = parts(view="segments", segments_show=shows, segment_path=path, **more)
    shown = show(offline_page, told_effects(w) if shows == "effect" else w, width=900)
    found = heard(shown.shown)
    shown.wait_for_lines()
    assert PAYLOADS[2 if path else 12] in shown.page.locator(".attnwidget").first.inner_text()
    for view in ("heatmap", "heads", "segments"):
        w.view = view
        tell(shown)
        shown.shown.rest()
        assert shown.page.locator("[data-aw=broken]").all_inner_texts() == []
        shown.screenshot(f"parts-{shows}-{len(path)}-{view}")
        box = shown.shown.box("[data-aw=picture]")
        for fraction in (0.2, 0.6):
            shown.page.mouse.move(box["x"] + fraction * box["width"], box["y"] + fraction * box["height"])
            shown.shown.rest()
        assert_nothing_ran(shown.shown, found)


@pytest.mark.parametrize("view", VIEWS)
def test_no_text_becomes_markup_in_a_file(view: str, offline_page: OfflinePages, tmp_path: Path) -> None:
    name = "<img src=x onerror=window.ran=1>.html"
    path = of_view(view).to_html(tmp_path / name, title=PAYLOADS[12] + PAYLOADS[0])
    page = offline_page(path, over="file", offline=True, width=900, height=900, reduced_motion="reduce")
    found = heard(page)
    page.page.wait_for_selector("[data-aw=picture][aria-label]", timeout=20_000)
    page.rest()
    assert page.page.locator("meta[http-equiv=refresh]").count() == 0
    assert page.page.title() == PAYLOADS[12] + PAYLOADS[0]
    assert_nothing_ran(page, found)


# Each trait has each odd value once, and then several are odd at a time; now and then what is due is drawn.
GARBLE = """async ([names, rounds]) => {
  const { host } = window.mounted[0];
  const good = Object.fromEntries(names.map((name) => [name, host.get(name)]));
  const odd = [null, true, -1, 1.5, NaN, "", "x", [], [null], [[1, 2, 3]], {}, { length: -1 }, { layers: 3 },
    { values: { shape: null } }, { data: "", dtype: "float32", shape: [1e9, 1e9], deflated: false },
    { rows: 1e9, columns: 1e9, query: 0, key: 0 }, { names: 3, rows: [], columns: [{}], lost: null },
    { error: null, at: 1e9, targets: [null], edits: [[]], segments: { names: [null], lost: ["x"] }, heads: {} },
    [{ of: null, tokens: [[null]] }], [{ of: { segment: 3, path: null }, tokens: [["x", NaN, 1e300]] }],
    [1e9, -1, null], ["x".repeat(1e5)], "<img src=x onerror=window.ran=1>"];
  let state = 7;
  const lot = (from) => from[(state = (Math.imul(state, 1664525) + 1013904223) >>> 0) % from.length];
  const soon = () => new Promise((done) => setTimeout(done));
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const thrown = [];
  const told = (traits) => {
    try {
      host.fromPython(traits);
    } catch (error) {
      thrown.push(`${Object.keys(traits)}: ${error}`);
    }
  };
  const isBroken = () => document.querySelector("[data-aw=broken]") !== null;
  for (const name of names) {
    for (const one of odd) {
      told({ [name]: one });
      await soon();
    }
    await frame();
    told(good);
    await frame();
    if (isBroken()) thrown.push(`${name}: good traits were not drawn`);
  }
  for (let n = 0; n < rounds; n++) {
    told({ [lot(names)]: lot(odd), [lot(names)]: lot(odd) });
    await (n % 4 === 3 ? frame() : soon());
    if (n % 5 === 0) told(good);
  }
  told(good);
  return thrown;
}"""


def short(view: Any) -> AttentionWidget:
    """A small widget that has this view, and shows it."""
    q, k, v = torch.randn(3, 1, 3, 12, 4, generator=torch.Generator().manual_seed(0))
    at: Any = {"tokens": list("abcdefghijkl"), "query": 3, "key": 5, "view": view}
    if view == "compare":
        return compare(Attention(q, k, v), Attention(q, k, v, is_causal=True), **at)
    if view == "segments":
        at["segments"] = {"documents": {"one": (1, 4), "two": (4, 6)}, "answer": (8, 12)}
    elif view == "image":
        at |= {"grid": (3, 3), "grid_start": 2}
    return AttentionWidget(q, k, v, **at)


@pytest.mark.parametrize("view", VIEWS)
def test_traits_of_any_kind_leave_a_page_that_good_ones_draw(view: Any, offline_page: OfflinePages) -> None:
    shown = show(offline_page, w := short(view), width=900)
    found = heard(shown.shown)
    names = [name for name in state_of(w) if name != "uid"]
    assert shown.page.evaluate(GARBLE, [names, 400]) == []
    shown.shown.rest()
    assert shown.page.locator("[data-aw=broken]").count() == 0
    assert shown.page.locator("[data-aw=picture]").count() > 0
    assert_nothing_ran(shown.shown, found)


def garbling(seed: int, answerer_as_it_is: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return an `answerer` whose replies are of any kind."""
    dice = random.Random(seed)
    odd: list[Any] = [
        None,
        {},
        [],
        "x",
        -1,
        {"values": 3},
        {"values": {"dtype": "float32", "shape": [2, 2], "data": "AA=="}},
    ]

    def answerer(widgets: Any) -> Any:
        real = answerer_as_it_is(widgets)

        def answer(index: int, request: dict[str, Any]) -> Any:
            reply = real(index, request)
            if dice.random() < 0.5:
                return dice.choice(odd)
            return {name: dice.choice([inner, *odd]) for name, inner in reply.items()}

        return answer

    return answerer


def middle(view: Any) -> AttentionWidget:
    """A widget of as many tokens as need answers, that has this view and shows it."""
    q, k, v = torch.randn(3, 1, 3, 600, 4, generator=torch.Generator().manual_seed(0))
    if view == "compare":
        return compare(Attention(q, k, v), Attention(q, k, v, is_causal=True), view=view)
    more: Any = {"image": {"grid": (20, 29), "grid_start": 20}}.get(view, {})
    if view == "segments":
        more = {"segments": {"a": (1, 200), "b": (200, 500), "c": (500, 600)}}
    return AttentionWidget(q, k, v, is_causal=True, view=view, **more)


@pytest.mark.parametrize("view", VIEWS)
def test_replies_of_any_kind_are_said_or_left_out(
    view: Any, offline_page: OfflinePages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "answerer", garbling(3, gallery.answerer))
    shown = show(offline_page, middle(view), width=900)
    found = heard(shown.shown)
    for step in range(12):
        box = shown.shown.box("[data-aw=picture]")
        at = (step + 1) / 14
        shown.page.mouse.move(box["x"] + at * box["width"], box["y"] + (1 - at) * box["height"])
        if step % 3 == 0:
            shown.page.mouse.click(box["x"] + at * box["width"], box["y"] + at * box["height"])
        shown.shown.rest()
    assert shown.page.locator("[data-aw=picture]").count() > 0
    assert_nothing_ran(shown.shown, found)
