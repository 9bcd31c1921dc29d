"""The facts that help to find a fault: versions, the front-end, and the errors of its page."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

# The packages attnwidget builds on or meets, and the programs that show it; installed ones are listed.
PACKAGES = (
    *("torch", "numpy", "anywidget", "ipywidgets", "traitlets", "safetensors"),
    *("transformers", "matplotlib", "distributed", "pandas"),
    *("ipykernel", "ipython", "jupyterlab", "jupyterlab_widgets", "notebook", "marimo", "voila", "jupyter_server"),
)
NOTES: dict[str, Callable[[], str]] = {}  # notes of other modules about this machine, once they are imported
MAX_PAGES = 16
MAX_ERRORS = 8  # of one page, the newest
MAX_TEXT = 300  # characters


@dataclass(frozen=True)
class Report:
    """Versions, the machine, the kernel, and the reports of pages that have shown a widget of this kernel.

    Printed, it is text to paste into an issue. It holds no tokens, no numbers of a model and no file names.

    Attributes:
        versions: of attnwidget, Python and each package that matters and is installed.
        machine: the system, the processor, torch's threads and devices, and the fused pass once an attention was made.
        host: the program that runs this Python: "Jupyter kernel", "marimo", "Google Colab", "IPython" or "Python".
        pages: the report of each page, the newest last: `front_end`, `browser` and `errors`, a list of sentences.

    >>> import attnwidget
    >>> sorted(attnwidget.report().versions)[:2]
    ['Python', 'anywidget']
    """

    versions: Mapping[str, str]
    machine: Mapping[str, str]
    host: str
    pages: tuple[Mapping[str, Any], ...]

    def __str__(self) -> str:
        lines = [f"{name} {version}" for name, version in self.versions.items()]
        lines += [f"{name}: {value}" for name, value in self.machine.items()]
        lines.append(f"runs in: {self.host}")
        for page in self.pages:
            lines.append(f"page: {page['front_end']}, {page['browser']}")
            lines += [f"  error: {error}" for error in page["errors"]]
        if not self.pages:
            lines.append("page: none has shown a widget of this kernel (or it could not load its script)")
        return "\n".join(lines)

    __repr__ = __str__


def report() -> Report:
    """Return a report for an issue: versions, machine, front-end, and the errors of its page.

    Returns:
        A report, which prints as text. It holds no tokens, no numbers of a model and no file names. It imports nothing,
        and nothing leaves this machine.

    Example:
        >>> import attnwidget
        >>> print(attnwidget.report())  # doctest: +ELLIPSIS
        attnwidget ...
        >>> attnwidget.report().versions["attnwidget"] == attnwidget.__version__
        True
    """
    return Report(versions=versions(), machine=machine(), host=host(), pages=PAGES.all())


def versions() -> dict[str, str]:
    """Return the versions of attnwidget, Python and the packages that are installed, by name."""
    found = {"attnwidget": version_of("attnwidget") or "not installed", "Python": platform.python_version()}
    for name in PACKAGES:
        version = version_of(name)
        if version is not None:
            found[name] = version
    return found


def version_of(package: str) -> str | None:
    """Return the version of an installed package, None if it is not there."""
    if package == "attnwidget":
        return str(sys.modules["attnwidget"].__version__)
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def machine() -> dict[str, str]:
    """Return the system, the processor's kind, and what torch computes with."""
    devices = [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        devices.append("mps")
    return {
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "processors": str(os.cpu_count()),
        "torch": f"{torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}, "
        + (", ".join(devices) or "no GPU"),
        **{name: note() for name, note in NOTES.items()},
    }


def host() -> str:
    """Return the program that runs this Python, judged by its imports."""
    loaded = sys.modules
    if "google.colab" in loaded:
        return "Google Colab"
    marimo: Any = loaded.get("marimo")
    if marimo is not None and getattr(marimo, "running_in_notebook", bool)():
        return "marimo"
    if "ipykernel.kernelapp" in loaded or "ipykernel.ipkernel" in loaded:
        return "Jupyter kernel" + (" of VS Code" if "VSCODE_PID" in os.environ else "")
    if "IPython" in loaded and loaded["IPython"].get_ipython() is not None:
        return "IPython"
    return "Python"


@dataclass
class Pages:
    """The reports of pages, bounded, because they come from a front-end."""

    _pages: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, said: Any) -> None:
        """Keep a page's report: `front_end`, `browser` and maybe an `error`; anything else is left out."""
        if not isinstance(said, dict):
            return
        name = (line_of(said.get("front_end")) or "unknown", line_of(said.get("browser")) or "unknown browser")
        error = line_of(said.get("error"))
        with self._lock:
            errors = self._pages.pop(name, [])
            if error and error not in errors:
                errors = [*errors, error][-MAX_ERRORS:]
            self._pages[name] = errors
            while len(self._pages) > MAX_PAGES:
                self._pages.pop(next(iter(self._pages)))

    def all(self) -> tuple[dict[str, Any], ...]:
        """Return the report of each page, the newest last."""
        with self._lock:
            return tuple(
                {"front_end": front_end, "browser": browser, "errors": list(errors)}
                for (front_end, browser), errors in self._pages.items()
            )


def line_of(text: Any) -> str:
    """Return a text as one short line that can be printed; "" for anything else."""
    if not isinstance(text, str):
        return ""
    line = " ".join(text[: 2 * MAX_TEXT].split())[:MAX_TEXT]
    return "".join(letter if letter.isprintable() else "?" for letter in line)


PAGES = Pages()


def take_page(content: Any) -> bool:
    """Keep a page's report about itself; return whether the message was one."""
    if not isinstance(content, dict) or "page" not in content:
        return False
    PAGES.note(content["page"])
    return True
