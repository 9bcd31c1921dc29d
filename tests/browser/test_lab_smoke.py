"""The harness itself, on a widget of a few lines: what a test of attnwidget may rely on."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from lab import SCREENSHOTS, Browser, Lab, LabServer, OfflinePages, Page, PagePool
from lanes import mostly_thorough

COUNTER = '''
import anywidget, traitlets

class Counter(anywidget.AnyWidget):
    _esm = """
    export default { render({ model, el }) {
      const button = document.createElement("button");
      button.className = "counter";
      const draw = () => { button.textContent = `count ${model.get("count")}`; };
      button.onclick = () => { model.set("count", model.get("count") + 1); model.save_changes(); };
      model.on("change:count", draw);
      draw();
      el.append(button);
    } };
    """
    count = traitlets.Int(0).tag(sync=True)
'''


@pytest.mark.thorough
def test_a_click_in_the_page_reaches_python(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = lab.open([COUNTER, "w = Counter(); w", "print('count is', w.count)"])
    notebook.run_cell(0)
    notebook.run_cell(1)
    button = notebook.page.locator("button.counter")
    button.wait_for()
    button.click()
    notebook.page.wait_for_function("() => document.querySelector('button.counter').textContent === 'count 1'")
    notebook.run_cell(2)
    assert notebook.output(2) == "count is 1\n"
    assert "application/vnd.jupyter.widget-view+json" in notebook.outputs_json(1)[0]["data"]
    assert notebook.evaluate("print(w.count)") == "1"

    notebook.second_view(1)
    notebook.page.wait_for_function("() => document.querySelectorAll('button.counter').length === 2")
    notebook.run_cell(2)

    saved = notebook.save()
    assert saved.cells[2].outputs[0]["text"] == "count is 1\n"
    monkeypatch.setattr(Page, "keeps_pictures", True)
    notebook.screenshot("smoke-counter")
    assert (SCREENSHOTS / "smoke-counter.png").stat().st_size > 1000

    notebook.restart_kernel()
    notebook.run_cell(2, allow_error=True)
    assert notebook.output(2).startswith("NameError")
    with pytest.raises(AssertionError, match="cell 2 raised NameError"):
        notebook.run_cell(2)
    assert notebook.problems == []
    assert notebook.blocked == []


@pytest.mark.thorough
def test_themes_and_sizes(lab: Lab) -> None:
    notebook = lab.open(["1 + 1"], theme="contrast", width=700, height=500, device_scale_factor=1)
    page = notebook.page
    assert page.evaluate("() => [innerWidth, innerHeight, devicePixelRatio]") == [700, 500, 1]
    assert page.evaluate("() => document.body.dataset.jpThemeName") == "JupyterLab Dark High Contrast"
    notebook.set_theme("dark")
    assert page.evaluate("() => document.body.dataset.jpThemeLight") == "false"
    notebook.set_theme("light")
    assert page.evaluate("() => document.body.dataset.jpThemeLight") == "true"
    notebook.run_all()
    assert notebook.output(0) == "2"


@pytest.mark.parametrize("over", mostly_thorough("file", "http"))
def test_an_offline_page_reaches_nothing_outside(offline_page: OfflinePages, over: Literal["http", "file"]) -> None:
    # .invalid is reserved: it can never resolve
    page = offline_page(
        '<p id="out"></p><script src="beside.js"></script>',
        files={"beside.js": "document.querySelector('#out').textContent = 'from beside';"},
        over=over,
        width=400,
    )
    assert page.page.inner_text("#out") == "from beside"
    assert page.blocked == []
    page.page.evaluate("() => fetch('https://example.invalid/x').catch(() => null)")
    page.page.evaluate(
        """() => new Promise((done) => {
          const socket = new WebSocket("wss://example.invalid/y");
          socket.onopen = socket.onclose = done;
        })"""
    )
    assert page.blocked == ["https://example.invalid/x", "wss://example.invalid/y"]
    with page.page.expect_event("pageerror"):
        page.page.evaluate("() => { setTimeout(() => { throw new Error('on purpose'); }); }")
    assert ("pageerror", "on purpose") in page.problems


@pytest.mark.thorough
def test_a_closed_server_leaves_no_process_behind() -> None:
    with LabServer() as server:
        server.api("POST", "kernels", {"name": "python3"})
        processes = server.processes
        assert len(processes) >= 2
    assert [process for process in processes if process.is_running()] == []
    assert not server.home.exists()


def test_exceptions_in_the_log_are_told_but_for_those_of_the_server_itself() -> None:
    server = LabServer()
    begun = "[I ServerApp] begun\nTraceback (most recent call last):\n  before\nKeyError: 1\n"
    trace = "Traceback (most recent call last):\n  File 'a.py', line 3\n\n    fut.result()\n"
    left = f"{trace}tornado.iostream.StreamClosedError: Stream is closed\n\nDuring this, another:\n\n"
    nested = (
        "[E ServerApp] in a callback\n    Traceback (most recent call last):\n      File 'b.py'\n    ValueError: 2\n"
    )
    (server.home / "server.log").write_text(
        f"{begun}{left}{trace}tornado.websocket.WebSocketClosedError\n{nested}[I ServerApp] ended\n"
    )
    assert server.exceptions(since=len(begun)) == ["ValueError: 2"]
    assert server.exceptions(since=0) == ["KeyError: 1", "ValueError: 2"]


@pytest.mark.thorough
def test_a_page_that_is_used_again_shows_nothing_of_its_last_use(browser: Browser, tmp_path: Path) -> None:
    pool = PagePool()
    with OfflinePages(browser, tmp_path, pool) as pages:
        first = pages("<button id=it style='position:fixed;inset:0'>a</button>", width=300)
        first.expose("told", lambda: "first")
        assert first.page.evaluate("() => window.told()") == "first"
        first.page.hover("#it")
        first.page.evaluate("() => { window.mine = 1; console.error('first'); fetch('https://example.invalid/') }")
        first.page.wait_for_function("() => document.querySelector('#it:hover')")
        pages.close(keep=True)
        second = pages("<button id=it style='position:fixed;inset:100px'>b</button>", width=500, color_scheme="dark")
        assert second is first
        assert (second.console, second.blocked) == ([], [])
        looks = "() => [innerWidth, window.mine, matchMedia('(prefers-color-scheme: dark)').matches]"
        assert second.page.evaluate(looks) == [500, None, True]
        assert second.page.locator("#it:hover").count() == 0
        assert second.page.evaluate("() => window.told()") is None
        other = pages("c", width=300)
        assert other is not second
