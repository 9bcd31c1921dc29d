"""Two directives for pages: `run` shows code with what it printed, `live` shows code with the widget that it made.

    ```{live} A heatmap of the sample "bank"
    :height: 620
    AttentionWidget(**load_sample("bank")._asdict())
    ```

`:notebook: interventions 5` first runs the first five code cells of that example, unseen: the page links to it.

Code runs when the site is built, in one namespace for each page, from top to bottom, so that no picture can be older
than the code beside it. An error in it is an error of the build. The value of the last line is what is shown: of a
widget its file of `to_html`, in a frame, behind a poster that `figure` draws for light and for dark pages; of anything
else its repr.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import io
import json
import re
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.osutil import relative_uri

FOLDER = "live"
HEIGHT = 620  # pixels of a frame for which none is given


class Run(SphinxDirective):
    """Show code, run it, and show what it printed."""

    has_content = True
    required_arguments = 0
    optional_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar[dict[str, Any]] = {
        "hide-output": directives.flag,
        "hide-code": directives.flag,
        "notebook": directives.unchanged,
    }

    def run(self) -> list[nodes.Node]:
        """Return the nodes of the code and of what it printed."""
        said, value = self.evaluated()
        if value is not None:
            said += f"{value!r}\n"
        shown = [] if "hide-output" in self.options or not said else [self.literal(said, "text", "output")]
        return [*self.code(), *shown]

    def code(self) -> list[nodes.Node]:
        """Return the node of the code, none where it is hidden."""
        if "hide-code" in self.options:
            return []
        return [self.literal("\n".join(self.content), "python", "code")]

    def literal(self, text: str, language: str, kind: str) -> nodes.Node:
        """Return a block of text."""
        node = nodes.literal_block(text, text.rstrip("\n"), language=language, classes=[kind])
        self.set_source_info(node)
        return node

    def evaluated(self) -> tuple[str, Any]:
        """Run the code in the page's namespace; return what it printed, and the value of a last expression."""
        names = namespace(self.env, self.env.docname)
        self.run_notebook(names)
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                value = executed("\n".join(self.content), f"{self.env.docname}:{self.lineno}", names)
        except Exception as error:
            raise self.error(f"the code of this page failed: {type(error).__name__}: {error}") from error
        return printed.getvalue(), value

    def run_notebook(self, names: dict[str, Any]) -> None:
        """Run the first code cells of an example, where the option asks for them."""
        if "notebook" not in self.options:
            return
        name, count = self.options["notebook"].split()
        path = Path(self.env.app.srcdir).parent / "examples" / f"{name}.ipynb"
        self.env.note_dependency(str(path))
        cells = [cell["source"] for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
        with contextlib.redirect_stdout(io.StringIO()):
            for at, cell in enumerate(cells[: int(count)]):
                exec(compile("".join(cell), f"{name}.ipynb[{at}]", "exec"), names)


class Live(Run):
    """Show code, and the widget that its last line gives: alive, in a frame."""

    required_arguments = 1  # what the picture shows, for readers who do not see it
    optional_arguments = 0
    option_spec: ClassVar[dict[str, Any]] = {
        **Run.option_spec,
        "height": directives.positive_int,
        "save": directives.unchanged,  # keywords of to_html
    }

    def run(self) -> list[nodes.Node]:
        """Return the nodes of the code and of the frame."""
        _, widget = self.evaluated()
        if not hasattr(widget, "to_html"):
            raise self.error(f"the last line gives {type(widget).__name__}, no widget to show")
        name = f"{self.env.docname.replace('/', '-')}-{digest(self.content, self.lineno)}"
        save = eval(f"dict({self.options.get('save', '')})", namespace(self.env, self.env.docname))
        page = written(widget, Path(self.env.app.outdir), name, **save)
        here = self.env.app.builder.get_target_uri(self.env.docname)
        alt, height = self.arguments[0], self.options.get("height", HEIGHT)
        frame = frame_of(relative_uri(here, page), alt, height)
        widget.close()
        return [*self.code(), nodes.raw("", frame, format="html")]


def alive(path: Path, outdir: Path) -> dict[str, Any]:
    """Run a notebook; return it with the page of each widget in the place of its picture.

    Other outputs stay as they are stored.
    """
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] != "code":
            continue
        with contextlib.redirect_stdout(io.StringIO()):
            value = executed("".join(cell["source"]), f"{path.name}, cell {number}", names)
        if hasattr(value, "to_html"):
            title = "".join(notebook["cells"][0]["source"]).splitlines()[0].lstrip("# ")
            frame = frame_of(f"../{written(value, outdir, f'{path.stem}-{number}')}", title, HEIGHT)
            cell["outputs"] = [{"output_type": "display_data", "data": {"text/html": frame}, "metadata": {}}]
    return notebook


def executed(source: str, place: str, names: dict[str, Any]) -> Any:
    """Run code; return the value of its last line, if that is an expression."""
    body = ast.parse(source).body
    last = body[-1] if body and isinstance(body[-1], ast.Expr) else None
    body = body if last is None else body[:-1]
    exec(compile(ast.Module(body, []), place, "exec"), names)
    return eval(compile(ast.Expression(last.value), place, "eval"), names) if last else None


def written(widget: Any, outdir: Path, name: str, **save: Any) -> str:
    """Write the page of a widget and its two posters; return its path below the site, without the ending."""
    folder = outdir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    widget.to_html(folder / f"{name}.html", **save)
    for theme in ("light", "dark"):
        widget.figure(theme=theme, width=7.0).savefig(folder / f"{name}-{theme}.svg")
    return f"{FOLDER}/{name}"


def digest(content: Any, line: int) -> str:
    """Return a name for a block of code that changes with it."""
    return hashlib.sha256("\n".join([str(line), *content]).encode()).hexdigest()[:10]


def namespace(env: Any, docname: str) -> dict[str, Any]:
    """Return the names that the page's code has made so far."""
    spaces: dict[str, dict[str, Any]] = env.temp_data.setdefault("live-names", {})
    return spaces.setdefault(docname, {"__name__": "__main__"})


def frame_of(base: str, alt: str, height: int) -> str:
    """Return the figure: a poster, and a button that puts the page's frame in its place."""
    text = re.sub(r"[&<>\"]", lambda found: f"&#{ord(found[0])};", alt)
    return (
        f'<figure class="live" style="--height:{height}px" data-page="{base}.html">'
        f'<button type="button" class="live-poster" aria-label="Open the live widget: {text}">'
        f'<img class="only-light" src="{base}-light.svg" alt="{text}" loading="lazy">'
        f'<img class="only-dark" src="{base}-dark.svg" alt="{text}" loading="lazy">'
        f"<span>Click to explore</span></button>"
        f'<figcaption>{text}. <a href="{base}.html">Open it alone</a></figcaption></figure>'
    )


def setup(app: Sphinx) -> dict[str, bool]:
    """Give Sphinx the directives."""
    app.add_directive("run", Run)
    app.add_directive("live", Live)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
