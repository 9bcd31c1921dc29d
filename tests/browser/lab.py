"""A real JupyterLab in a real Chromium, for tests: its own server, its own profile, nothing from outside.

`LabServer` is one JupyterLab with private settings, `Browser` one Chromium, `LabNotebook` one open notebook, `Page` any
page. The fixtures are in conftest.py.

To open a fresh page takes a second of processor time and JupyterLab five, more than most tests need for the rest. Tests
therefore use pages one after the other (`PagePool`); benchmarks open a fresh one each time.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, cast
from urllib.parse import quote

import nbformat
import psutil
from firefox import launcher
from playwright.sync_api import Browser as PlaywrightBrowser
from playwright.sync_api import BrowserContext, FloatRect, Locator, Playwright, Route
from playwright.sync_api import Page as PlaywrightPage

Theme = Literal["light", "dark", "contrast"]
Kind = Literal["lab", "notebook"]

SCREENSHOTS = Path(__file__).parents[2] / "test-artifacts" / "screenshots"

THEMES: dict[Theme, str] = {
    "light": "JupyterLab Light",
    "dark": "JupyterLab Dark",
    "contrast": "JupyterLab Dark High Contrast",
}

# What JupyterLab itself puts on the console. Each line: a pattern, and why it is not ours.
HOST_NOISE = [
    (r"reading 'schema'", "Notebook 7.6 opens its settings before they are loaded"),
    (r"^\[anywidget\] Failed to initialize model\.$", "so it says on a busy page; ours goes on: test_script_once.py"),
    (r"Could not restore the debugger state", "JupyterLab asks the old kernel for it while that one is restarted"),
    (r"Connection lost, reconnecting", "a restarted kernel closes its socket"),
    (r"^Plugin \S+ is taking too long to activate", "JupyterLab says so of its own parts on a busy machine"),
    (r"Menu entry for command '[\w:-]+' is duplicated", "Notebook 7.6's own menus"),
    (r"\[yjs#509\] Not same Y.Doc", "Notebook 7.6 loads the library twice"),
    (r"Command 'filebrowser:open-path' not registered", "Notebook 7.6 has it in another page"),
]

# Exceptions that the server itself logs. Each line: a pattern, and why it is not ours.
SERVER_NOISE = [
    (
        r"^tornado\.(websocket\.WebSocketClosedError|iostream\.StreamClosedError)",
        "a page was left while it was written to",
    ),
    (r"^zmq\.error\.ZMQError: Address already in use", "another kernel took its port first; Jupyter gives it others"),
]

# A page's scripts run so many times slower, as on a busy machine: what a test takes for granted shows.
SLOWER = float(os.environ.get("ATTNWIDGET_SLOWER", "1"))

# Chromium as root in a container, and silent: no telemetry, no component updates.
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class Message(NamedTuple):
    """One line on the browser's console."""

    kind: str  # "error", "warning", … or "pageerror" for an exception that nobody caught
    text: str


def find_chromium() -> str:
    """The system's Chromium or Chrome; ATTNWIDGET_BROWSER names another one."""
    if named := os.environ.get("ATTNWIDGET_BROWSER"):
        return named
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        if found := shutil.which(name):
            return found
    raise FileNotFoundError("no Chromium on the PATH: `sudo apt-get install -y chromium`, or set ATTNWIDGET_BROWSER")


# Any place but this machine. A pattern, not a function: with one, each request and each message of a socket would pass
# through the tests' own process.
HERE = r"(about|blob|chrome|chrome-extension|data|devtools|file):|(http|ws)s?://(127\.0\.0\.1|localhost|\[::1\])(:\d+)?(/|$)"
FAR = re.compile(f"^(?!{HERE})")


FIRST_BOX = """(selector) => {
  for (const element of document.querySelectorAll(selector)) {
    const { x, y, width, height } = element.getBoundingClientRect();
    if (width * height > 0) return { x, y, width, height };
  }
  return null;
}"""

# Counts the timers that a page waits for. Those of a second or more do not count: they end what is over, or tell Python
# which front-end and browser these are.
COUNT_TIMERS = """(() => {
  const due = new Set();
  const { setTimeout, clearTimeout } = window;
  window.setTimeout = (run, delay = 0, ...given) => {
    const timer = setTimeout(() => { due.delete(timer); run(...given); }, delay);
    if (delay < 1000) due.add(timer);
    return timer;
  };
  window.clearTimeout = (timer) => { due.delete(timer); clearTimeout(timer); };
  let still = 0;
  window.beginToRest = () => { still = 0; };
  window.isAtRest = () => { still = due.size || window.pending ? 0 : still + 1; return still > 3; };
})()"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class LabServer:
    """One JupyterLab on the loopback, without a token, with settings of its own. Use it as a context manager."""

    token = ""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="attnwidget-lab-"))
        self.root = self.home / "notebooks"  # what the server serves
        self.folder = self.root  # where it is started
        self.base = ""
        self._log = self.home / "server.log"

    def command(self, port: int) -> list[str]:
        """What serves on a port."""
        return [
            *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}"),
            "--ServerApp.ip=127.0.0.1",
            "--ServerApp.port_retries=0",
            f"--ServerApp.root_dir={self.root}",
            "--ServerApp.disable_check_xsrf=True",
            f"--IdentityProvider.token={self.token}",
            "--LabApp.expose_app_in_browser=True",
            "--JupyterNotebookApp.expose_app_in_browser=True",
            "--LabApp.news_url=",
            "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
            "--LabApp.extension_manager=readonly",
            # Should the test run be killed, so that nothing below is reached, the server ends by itself.
            "--MappingKernelManager.cull_idle_timeout=1800",
            "--MappingKernelManager.cull_connected=True",
            "--ServerApp.shutdown_no_activity_timeout=1800",
        ]

    def environment(self) -> dict[str, str]:
        """This process's, with all settings in folders of the server's own."""
        home = self.home
        return {
            **os.environ,
            "IPYTHONDIR": f"{home}/ipython",
            "JUPYTERLAB_SETTINGS_DIR": f"{home}/settings",
            "JUPYTERLAB_WORKSPACES_DIR": f"{home}/workspaces",
            "JUPYTER_CONFIG_DIR": f"{home}/config",
            "JUPYTER_PLATFORM_DIRS": "1",
            "JUPYTER_RUNTIME_DIR": f"{home}/runtime",
        }

    def settings(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Those of JupyterLab's own extensions: (extension, plugin): its settings."""
        # Else JupyterLab asks whether it may fetch its news.
        return {("apputils", "notification"): {"fetchNews": "false", "checkForUpdates": False}}

    def __enter__(self) -> LabServer:
        self.root.mkdir(exist_ok=True)
        port = free_port()
        self.base = f"http://127.0.0.1:{port}"
        for (extension, plugin), settings in self.settings().items():
            folder = self.home / "settings" / "@jupyterlab" / f"{extension}-extension"
            folder.mkdir(parents=True)
            (folder / f"{plugin}.jupyterlab-settings").write_text(json.dumps(settings), encoding="utf-8")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self.command(port),
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment(),
                cwd=self.folder,
                start_new_session=True,
            )
        try:
            self._wait()
        except BaseException:
            print(self._log.read_text(errors="replace")[-4000:])
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server and every kernel; a signal to the server's session does not reach a kernel's."""
        family = self.processes
        self.end_kernels()
        self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(8)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(8)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):  # psutil knows a reused process id
                process.kill()
        psutil.wait_procs(family, timeout=5)
        shutil.rmtree(self.home, ignore_errors=True)

    @property
    def log(self) -> str:
        """What the server has said, and the kernels on their standard error."""
        return self._log.read_text(errors="replace")

    def exceptions(self, since: int) -> list[str]:
        """The exceptions that have been logged from this place of the log on, but for SERVER_NOISE."""
        trace = r"^([ \t]*)Traceback \(most recent call last\):\n(?:\1[ \t].*\n|\s*\n)*\1(\S.*)"
        ends = [end for _, end in re.findall(trace, self.log[since:], re.MULTILINE)]
        return [end for end in ends if not any(re.search(pattern, end) for pattern, _ in SERVER_NOISE)]

    @property
    def processes(self) -> list[psutil.Process]:
        """The server and all that it started, kernels among them."""
        with contextlib.suppress(psutil.NoSuchProcess):
            server = psutil.Process(self._process.pid)
            return [server, *server.children(recursive=True)]
        return []

    def api(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"token {self.token}"} if self.token else {}
        request = urllib.request.Request(f"{self.base}/api/{path}", data=data, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            said = answer.read()
        return json.loads(said) if said else None

    def end_kernels(self) -> None:
        """Have all kernels end, and do not wait for them: a kernel takes two seconds to go."""
        with contextlib.suppress(OSError):
            for session in self.api("GET", "sessions"):
                threading.Thread(target=self._end_kernel, args=(session["id"],), daemon=True).start()

    def _end_kernel(self, session: str) -> None:
        with contextlib.suppress(OSError):  # it may have ended by itself
            self.api("DELETE", f"sessions/{session}")

    def _wait(self, seconds: float = 90) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise RuntimeError(f"JupyterLab ended with status {self._process.returncode} before it served anything")
            try:
                self.api("GET", "status")
                return
            except OSError:
                time.sleep(0.1)
        raise TimeoutError(f"JupyterLab did not serve within {seconds:.0f} s")


class Page:
    """A page in a fresh profile. It can reach nothing but this machine; what it tried is in `blocked`."""

    keeps_pictures: ClassVar[bool] = True  # whether `screenshot` does anything: tests take pictures only if asked to

    def __init__(self, context: BrowserContext) -> None:
        self.console: list[Message] = []
        self.blocked: list[str] = []
        self.context = context
        self._functions: dict[str, Callable[..., Any]] = {}
        context.route(FAR, self._refuse)
        context.route_web_socket(FAR, lambda socket: self.blocked.append(socket.url))
        self.page: PlaywrightPage = context.new_page()
        self.page.on("console", lambda message: self.console.append(Message(message.type, message.text)))
        self.page.on("pageerror", lambda error: self.console.append(Message("pageerror", str(error))))
        self._brake = None
        if SLOWER > 1 and context.browser and context.browser.browser_type.name == "chromium":
            self._brake = context.new_cdp_session(self.page)
        self.slow_down(SLOWER)

    def slow_down(self, rate: float) -> None:
        """Have the page's scripts run `rate` times slower; Chromium keeps a processor busy for that."""
        if self._brake:
            self._brake.send("Emulation.setCPUThrottlingRate", {"rate": rate})

    def _refuse(self, route: Route) -> None:
        self.blocked.append(route.request.url)
        route.abort()

    def expose(self, name: str, function: Callable[..., Any]) -> None:
        """Let the page's scripts call a function of this process as `window.name`."""
        if name not in self._functions:
            self.page.expose_function(name, lambda *given: self._functions[name](*given))
        self._functions[name] = function

    @property
    def problems(self) -> list[Message]:
        """Errors, warnings and uncaught exceptions, without what the host is known to say (HOST_NOISE)."""
        return [
            message
            for message in self.console
            if message.kind in ("error", "warning", "pageerror")
            and not any(re.search(pattern, message.text) for pattern, _ in HOST_NOISE)
        ]

    def box(self, selector: str) -> FloatRect:
        """The rectangle of the first element that is seen of those; asked in one go: answers replace elements."""
        found = self.page.wait_for_function(FIRST_BOX, arg=selector).json_value()
        return cast(FloatRect, found)

    def screenshot(self, name: str, *, of: str | Locator | None = None) -> None:
        """Save a picture of the page, or of the first element that `of` selects, below test-artifacts/screenshots."""
        if self.keeps_pictures:
            SCREENSHOTS.mkdir(parents=True, exist_ok=True)
            taken = self.page.locator(of).first if isinstance(of, str) else of or self.page
            taken.screenshot(path=SCREENSHOTS / f"{name}.png")

    def rest(self) -> None:
        """Wait until nothing is due on a plain page: no timer and no answer (`window.pending`), for some frames."""
        self.page.evaluate("() => window.beginToRest()")
        self.page.wait_for_function("() => window.isAtRest()")

    def leave_empty(self) -> None:
        """Close what is shown, and forget what it has said: the page is as one that has just been opened."""
        self.page.mouse.move(0, 0)
        self.page.goto("about:blank")
        self._forget()

    def _forget(self) -> None:
        for name in self._functions:
            self._functions[name] = _nothing
        self.console.clear()
        self.blocked.clear()

    def close(self) -> None:
        self.context.close()


def _nothing(*_: object) -> None:
    """What a page gets that calls a function of a test that is over."""


class LabNotebook(Page):
    """A notebook that is open in JupyterLab or in Jupyter Notebook 7, its kernel connected and idle."""

    def __init__(self, context: BrowserContext, server: LabServer, path: Path, kind: Kind = "lab") -> None:
        super().__init__(context)
        self.server = server
        self.path = path
        self.kind = kind

    @property
    def url(self) -> str:
        at = {"lab": "lab/tree/{}?reset", "notebook": "notebooks/{}"}[self.kind]
        return f"{self.server.base}/{at.format(self._place)}"

    @property
    def _place(self) -> str:
        return quote(self.path.relative_to(self.server.root).as_posix())

    def load(self) -> None:
        """(Re)load the page on this notebook."""
        self.page.goto(self.url, wait_until="domcontentloaded", timeout=90_000)
        self._wait_open()

    def open_another(self, path: Path) -> None:
        """Open another notebook in this JupyterLab, as a double-click in its list of files does."""
        self.path = path
        self.command("docmanager:open", {"path": self._place, "factory": "Notebook"})
        self._wait_open()

    def _wait_open(self) -> None:
        self.page.wait_for_selector(".jp-NotebookPanel .jp-Notebook .jp-CodeCell", timeout=90_000)
        self.wait_idle()

    def leave_empty(self) -> None:
        """Close all that is open in JupyterLab, saved or not, and forget what it has said."""
        self.page.evaluate(
            """() => {
              const { shell } = window.jupyterapp;
              for (const area of ["main", "down"]) for (const widget of [...shell.widgets(area)]) widget.dispose();
            }"""
        )
        self.page.wait_for_selector(".jp-NotebookPanel", state="detached")
        self.page.mouse.move(0, 0)
        self._forget()

    def wait_idle(self, seconds: float = 90) -> None:
        """Wait until the kernel is connected and idle: before that JupyterLab silently drops what it is to run."""
        self.page.wait_for_function(
            """() => {
              const kernel = window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel;
              return kernel?.connectionStatus === "connected" && kernel.status === "idle";
            }""",
            timeout=seconds * 1000,
        )

    def command(self, name: str, arguments: Mapping[str, Any] | None = None) -> None:
        """Run one of JupyterLab's commands and wait until it is done."""
        self.page.evaluate(
            "([name, args]) => window.jupyterapp.commands.execute(name, args).then(() => null)",
            [name, dict(arguments or {})],
        )

    def activate(self, index: int) -> None:
        self.page.evaluate(
            """(index) => {
              const notebook = window.jupyterapp.shell.currentWidget.content;
              notebook.deselectAll();
              notebook.activeCellIndex = index;
            }""",
            index,
        )

    def run_cell(self, index: int, *, allow_error: bool = False) -> None:
        """Run a cell and wait for the kernel's reply. An exception in it is raised here, unless `allow_error`."""
        self.activate(index)
        self.command("notebook:run-cell")
        self._raise_errors(index, allow_error=allow_error)

    def start_cell(self, index: int) -> None:
        """Run a cell and do not wait for it: to look at the page while the kernel is busy."""
        self.activate(index)
        self.page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-cell'); }")

    def run_all(self, *, allow_error: bool = False) -> None:
        self.command("notebook:run-all-cells")
        for index in range(self.page.evaluate(f"() => {_CELLS}.length")):
            self._raise_errors(index, allow_error=allow_error)

    def set_source(self, index: int, source: str) -> None:
        self.page.evaluate(
            f"([index, source]) => {{ {_CELLS}.get(index).sharedModel.setSource(source); }}", [index, source]
        )

    def outputs_json(self, index: int) -> list[dict[str, Any]]:
        outputs: list[dict[str, Any]] = self.page.evaluate(
            f"(index) => {_CELLS}.get(index).outputs?.toJSON() ?? []", index
        )
        return outputs

    def output(self, index: int) -> str:
        """What a cell printed and returned, as text; an exception as `Name: message`."""
        parts = []
        for output in self.outputs_json(index):
            if output["output_type"] == "error":
                parts.append(f"{output['ename']}: {output['evalue']}")
            else:
                parts.append(_joined(output.get("text") or output["data"].get("text/plain", "")))
        return "".join(parts)

    def evaluate(self, code: str) -> str:
        """Run code in the kernel, outside of any cell, and return what it prints."""
        printed: str = self.page.evaluate(
            """async (code) => {
              const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
              const future = kernel.requestExecute({ code, store_history: false });
              let printed = "";
              future.onIOPub = ({ content, header }) => {
                if (header.msg_type === "stream") printed += content.text;
                if (header.msg_type === "error") printed += `${content.ename}: ${content.evalue}`;
              };
              await future.done;
              return printed;
            }""",
            code,
        )
        return printed.strip()

    def set_theme(self, theme: Theme) -> None:
        name = THEMES[theme]
        self.command("apputils:change-theme", {"theme": name})
        self.page.wait_for_function("(name) => document.body.dataset.jpThemeName === name", arg=name, timeout=30_000)

    def restart_kernel(self) -> None:
        """Restart without asking; returns when the new kernel is idle."""
        context = "window.jupyterapp.shell.currentWidget.sessionContext"
        self.page.evaluate(f"() => {context}.restartKernel().then(() => null)")
        self.wait_idle()

    def second_view(self, index: int) -> None:
        """Show a cell's output once more, in a panel of its own ("Create New View for Cell Output")."""
        self.activate(index)
        self.command("notebook:create-output-view")
        self.page.wait_for_selector(".jp-LinkedOutputView", timeout=30_000)
        # The new panel is in front now; the notebook must be the current one again for the next command.
        self.page.evaluate(
            """() => {
              const { shell } = window.jupyterapp;
              for (const widget of shell.widgets("main")) if (widget.content?.activeCell) shell.activateById(widget.id);
            }"""
        )

    def clear_outputs(self) -> None:
        self.command("notebook:clear-all-cell-outputs")

    def clear_output(self, index: int) -> None:
        self.activate(index)
        self.command("notebook:clear-cell-output")

    def leave(self) -> None:
        """Bring another tab to the front."""
        self.command("launcher:create")
        self.page.wait_for_selector(".jp-NotebookPanel", state="hidden")

    def come_back(self) -> None:
        """Bring the notebook to the front again."""
        self.page.evaluate(
            """() => {
              const { shell } = window.jupyterapp;
              for (const widget of shell.widgets("main")) if (widget.content?.activeCell) shell.activateById(widget.id);
            }"""
        )
        self.page.wait_for_selector(".jp-NotebookPanel", state="visible")

    def send_as_front_end(self, model_id: str, data: Mapping[str, Any]) -> None:
        """Send a widget's kernel side a message as a front-end would, whatever it says."""
        self.page.evaluate(
            """([id, data]) => {
              const { kernel } = window.jupyterapp.shell.currentWidget.sessionContext.session;
              return kernel._comms.get(id).send(data).done;
            }""",
            [model_id, dict(data)],
        )

    def save(self) -> nbformat.NotebookNode:
        """Save, and return what is in the file."""
        self.command("docmanager:save")
        saved: nbformat.NotebookNode = nbformat.read(self.path, as_version=4)
        return saved

    def _raise_errors(self, index: int, *, allow_error: bool) -> None:
        for output in self.outputs_json(index):
            if output["output_type"] == "error" and not allow_error:
                trace = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(output["traceback"]))
                raise AssertionError(f"cell {index} raised {output['ename']}: {output['evalue']}\n{trace}")


_CELLS = "window.jupyterapp.shell.currentWidget.content.model.cells"


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)


class Browser:
    """One Chromium for the whole run; every page gets a fresh profile in it."""

    def __init__(self, playwright: Playwright) -> None:
        self.playwright = playwright
        self._launched = self._launch()

    def _launch(self) -> PlaywrightBrowser:
        return self.playwright.chromium.launch(
            executable_path=find_chromium(),
            headless=False,  # FLAGS say --headless=new: the browser that users have, only without a window
            args=FLAGS,
            chromium_sandbox=False,
        )

    @property
    def version(self) -> str:
        return self._launched.version

    def context(
        self,
        *,
        width: int = 1200,
        height: int = 900,
        device_scale_factor: float = 2,
        color_scheme: Literal["light", "dark"] = "light",
        reduced_motion: Literal["reduce", "no-preference"] = "no-preference",
        forced_colors: Literal["active", "none"] = "none",
        touch: bool = False,
        offline: bool = False,
        scripts: bool = True,
    ) -> BrowserContext:
        return self._launched.new_context(
            viewport={"width": width, "height": height},
            device_scale_factor=device_scale_factor,
            color_scheme=color_scheme,
            reduced_motion=reduced_motion,
            forced_colors=forced_colors,
            has_touch=touch,
            offline=offline,
            java_script_enabled=scripts,
        )

    def close(self) -> None:
        self._launched.close()


class Firefox(Browser):
    """The system's Firefox, `program`. It takes no media features: pages are light, and motion is not reduced."""

    def __init__(self, playwright: Playwright, program: str) -> None:
        self._program = program
        super().__init__(playwright)

    def _launch(self) -> PlaywrightBrowser:
        return self.playwright.firefox.launch(channel="moz-firefox", executable_path=launcher(self._program))


class PagePool:
    """Pages that tests have done with, for the next ones."""

    def __init__(self) -> None:
        self._pages: dict[Hashable, list[Any]] = {}

    def take(self, kind: Hashable) -> Any:
        """A page of this kind, or None if there is none."""
        pages = self._pages.get(kind)
        page = pages.pop() if pages else None
        if page:
            page.slow_down(SLOWER)
        return page

    def put(self, kind: Hashable, page: Page) -> None:
        page.leave_empty()
        page.slow_down(1)
        self._pages.setdefault(kind, []).append(page)


class Lab:
    """Opens notebooks, and closes them again at the end of a test; in a JupyterLab of the pool, if one is given."""

    def __init__(self, browser: Browser, server: LabServer, pool: PagePool | None = None) -> None:
        self._browser = browser
        self._pool = pool
        self._open: list[tuple[Hashable, LabNotebook]] = []
        self.server = server

    def open(self, cells: Sequence[str], *, theme: Theme = "light", kind: Kind = "lab", **context: Any) -> LabNotebook:
        """Open a new notebook with these code cells. Further keywords are those of `Browser.context`."""
        folder = Path(tempfile.mkdtemp(dir=self.server.root))
        path = folder / "notebook.ipynb"
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
            metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        )
        nbformat.write(notebook, path)
        return self.open_file(path, theme=theme, kind=kind, **context)

    def open_file(
        self,
        path: Path,
        *,
        theme: Theme = "light",
        kind: Kind = "lab",
        width: int = 1200,
        height: int = 900,
        **context: Any,
    ) -> LabNotebook:
        """Open a notebook that lies below `server.root`."""
        alike = (LabNotebook, kind, *sorted(context.items()))
        opened: LabNotebook | None = self._pool.take(alike) if self._pool and kind == "lab" else None
        if opened:
            self._open.append((alike, opened))
            opened.page.set_viewport_size({"width": width, "height": height})
            opened.open_another(path)
        else:
            made = self._browser.context(width=width, height=height, **context)
            opened = LabNotebook(made, self.server, path, kind)
            self._open.append((alike, opened))
            opened.load()
        opened.set_theme(theme)
        return opened

    def close(self, *, keep: bool = False) -> None:
        """Close all notebooks and end their kernels; with `keep`, give JupyterLab back to the pool."""
        try:
            for alike, opened in self._open:
                if self._pool and keep and opened.kind == "lab":
                    self._pool.put(alike, opened)
                else:
                    opened.close()
        finally:
            self._open.clear()
            self.server.end_kernels()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


class OfflinePages:
    """Opens plain pages, with no Jupyter behind them, from a loopback server or from file://; those of the pool, if one
    is given."""

    def __init__(self, browser: Browser, folder: Path, pool: PagePool | None = None) -> None:
        self._browser = browser
        self._folder = folder
        self._pool = pool
        self._open: list[tuple[Hashable, Page]] = []
        self._count = 0

    def __call__(
        self,
        html: str | Path,
        *,
        files: Mapping[str, str | bytes | Path] | None = None,
        over: Literal["http", "file"] = "http",
        **context: Any,
    ) -> Page:
        """Open a page: its text, or a file that holds it. `files` (name: content or file) are put beside it."""
        folder = self._write(files or {})
        self._count += 1
        path = folder / f"{self._count}.html"
        path.write_bytes(_bytes(html))
        page = self._take(over, **context)
        served = f"{self._base}/{folder.name}/{path.name}"
        page.page.goto(path.as_uri() if over == "file" else served, wait_until="load")
        return page

    def _write(self, files: Mapping[str, str | bytes | Path]) -> Path:
        """The folder with these files. What is the same has the same address: a browser compiles it once."""
        contents = {name: _bytes(content) for name, content in files.items()}
        folder = self._folder / hashlib.sha256(repr(sorted(contents.items())).encode()).hexdigest()[:16]
        if not folder.exists():
            folder.mkdir(parents=True)
            for name, content in contents.items():
                (folder / name).write_bytes(content)
        return folder

    def _take(
        self,
        over: str,
        *,
        width: int = 1200,
        height: int = 900,
        color_scheme: Literal["light", "dark"] = "light",
        reduced_motion: Literal["reduce", "no-preference"] = "no-preference",
        forced_colors: Literal["active", "none"] = "none",
        **context: Any,
    ) -> Page:
        """A page of the pool, looking as wanted, or a fresh one."""
        alike = (Page, over, *sorted(context.items()))
        page: Page | None = self._pool.take(alike) if self._pool else None
        if page is None:
            page = Page(self._browser.context(width=width, height=height, **context))
            page.context.add_init_script(COUNT_TIMERS)
        self._open.append((alike, page))
        page.page.set_viewport_size({"width": width, "height": height})
        page.page.emulate_media(color_scheme=color_scheme, reduced_motion=reduced_motion, forced_colors=forced_colors)
        return page

    def close(self, *, keep: bool = False) -> None:
        """Close all pages; with `keep`, give them back to the pool."""
        for alike, page in self._open:
            if self._pool and keep:
                self._pool.put(alike, page)
            else:
                page.close()
        self._open.clear()

    def __enter__(self) -> OfflinePages:
        self._server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), partial(_Quiet, directory=os.fspath(self._folder))
        )
        self._base = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._server.shutdown()
        self._server.server_close()


def _bytes(content: str | bytes | Path) -> bytes:
    if isinstance(content, Path):
        return content.read_bytes()
    return content.encode() if isinstance(content, str) else content


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = Browser(playwright)
        try:
            yield browser
        finally:
            browser.close()
