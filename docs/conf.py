"""The site: Sphinx with MyST, built offline by `make docs`, where every warning is an error.

Sphinx, because the reference comes from docstrings with their types, and a name that is not there, a broken link and a
missing picture are warnings of its own. MyST, because the pages are Markdown, as all other documents here.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import logging
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
logging.getLogger("fontTools").setLevel(logging.WARNING)  # what posters are written with tells every step

import live  # noqa: E402

import attnwidget  # noqa: E402

project = "attnwidget"
author = "attnwidget contributors"
project_copyright = "attnwidget contributors"
version = release = attnwidget.__version__

extensions = [
    "live",
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
exclude_patterns = ["_build", "_ext"]  # notebooks/ is a copy of examples/, made below
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb", ".rst": "restructuredtext"}

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3
# What the code beside a picture makes is made when the site is built (`live`); notebooks are shown as they are stored,
# which the tests hold fresh.
nb_execution_mode = "off"
nb_render_markdown_format = "myst"

autodoc_member_order = "groupwise"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_use_ivar = True
napoleon_use_rtype = False
default_role = "code"  # docstrings are prose with `names`

html_theme = "furo"
html_title = "attnwidget"
html_static_path = ["_static"]
html_css_files = ["live.css"]
html_js_files = ["live.js"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#2a5db0", "color-brand-content": "#2a5db0"},
    "dark_css_variables": {"color-brand-primary": "#8ab4f8", "color-brand-content": "#8ab4f8"},
}

# Where a link of a file in the repository leads on the site.
PLACES = {
    r"(?:\.\./)?CONTRIBUTING\.md": "contributing.md",
    r"(?:\.\./)?CHANGELOG\.md": "changelog.md",
    r"(?:\.\./)?benchmarks/README\.md": "benchmarks.md",
    r"(?:\.\./)?examples/(\w+\.ipynb)": r"notebooks/\1",
    r"(?:\.\./)?examples/lessons/(\w+\.ipynb)": r"notebooks/lesson_\1",
    r"docs/([\w.]+)": r"\1",
    r"\.\./docs/([\w.]+)": r"../\1",  # of a notebook
}


def lead_to_the_site(app: Any, *where: Any) -> None:
    """Change links that are right in the repository to those of the site."""
    content = where[-1]
    for link, place in PLACES.items():
        content[0] = re.sub(rf"\]\({link}\)", f"]({place})", content[0])


def copy_notebooks(app: Any) -> None:
    """Put the examples where Sphinx reads them, with live widgets in the lessons; an unchanged file keeps its time."""
    folder = HERE / "notebooks"
    folder.mkdir(exist_ok=True)
    for path in sorted((HERE.parent / "examples" / "lessons").glob("*.ipynb")):
        made = live.alive(path, Path(app.outdir))
        (folder / f"lesson_{path.name}").write_text(json.dumps(made, ensure_ascii=False), encoding="utf-8")
    for path in sorted((HERE.parent / "examples").glob("*.ipynb")):
        copy = folder / path.name
        if not copy.exists() or copy.read_bytes() != path.read_bytes():
            shutil.copy(path, copy)


def as_prose(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Keep signs that docstrings use as such, |x| and *, from being read as markup; fields of a class become a list."""
    in_example = False
    for at, line in enumerate(lines):
        in_example = line.lstrip().startswith(">>>") or (in_example and bool(line.strip()))
        if not in_example:
            lines[at] = "`".join(
                re.sub(r"([|*])", r"\\\1", part) if index % 2 == 0 else part
                for index, part in enumerate(line.split("`"))
            )
    if what == "class" and dataclasses.is_dataclass(value):
        fields = {field.name for field in dataclasses.fields(value)}
        first = next((at for at, line in enumerate(lines) if names_of(line) & fields), None)
        if first is not None and "Attributes:" not in lines[:first]:
            end = next((at for at in range(first, len(lines)) if not lines[at].strip()), len(lines))
            lines[first:end] = ["Attributes:", *(f"    {line}" for line in lines[first:end])]


def names_of(line: str) -> set[str]:
    """Return the names that a line of a docstring explains: "before, after: …"."""
    found = re.match(r"((?:\w+, )*\w+): ", line)
    return set(found[1].split(", ")) if found else set()


def own_signature(app: Any, what: str, name: str, value: Any, options: Any, signature: Any, returned: Any) -> Any:
    """Return the parameters of a class as Python has them: those of traitlets' `__new__` say nothing."""
    if what != "class" or signature is None or "t.Any" not in signature:
        return None
    parameters = inspect.signature(value).replace(return_annotation=inspect.Signature.empty)
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in parameters.parameters.values()]
    return str(parameters.replace(parameters=plain)), None


def setup(app: Any) -> None:
    """Connect them."""
    app.connect("autodoc-process-signature", own_signature)
    app.connect("autodoc-process-docstring", as_prose, priority=100)
    app.connect("builder-inited", copy_notebooks)
    app.connect("source-read", lead_to_the_site)
    app.connect("include-read", lead_to_the_site)
