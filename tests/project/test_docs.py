"""The documents name what is there: every file, package, trait and kind of request."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attnwidget._messages.answers.requests import ANSWERS

pytestmark = pytest.mark.thorough
ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGE, SOURCES = ROOT / "attnwidget", ROOT / "js" / "src"
ABOUT_CODE = ["docs/architecture.md", "docs/contract.md", "docs/extending.md", "CONTRIBUTING.md", "README.md"]
MADE = {"widget.js", "parts.json", "loader.js", "page.js", "widget.css", "dist/", "site/"}  # by make
NAME = re.compile(r"`([\w.*/-]+\.(?:py|tsx?|css|json|toml|md|cff|ipynb|npz|mjs|js)|[\w.-]+(?:/[\w.-]+)*/)`")
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def found(name: str) -> Iterator[Path]:
    """Yield the files that a name in a document may mean."""
    for folder in (
        ROOT,
        PACKAGE,
        SOURCES,
        SOURCES / "styles",
        ROOT / "tests" / "contract",
        ROOT / "tests" / "browser",
        ROOT / "js",
    ):
        if (folder / name).exists():
            yield folder / name


@pytest.mark.parametrize("document", ABOUT_CODE)
def test_every_file_that_is_named_is_there(document: str) -> None:
    names = set(NAME.findall(read(document))) - MADE
    missing = sorted(name for name in names if not any(found(name)))
    assert missing == []


def test_files_are_named_at_all() -> None:
    named = [len(set(NAME.findall(read(f"docs/{name}.md")))) for name in ("architecture", "extending")]
    assert min(named) > 20


PAGES = [f"docs/{path.name}" for path in sorted(DOCS.glob("*.md"))]


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", *PAGES])
def test_links_lead_somewhere(document: str) -> None:
    for target, anchor in LINK.findall(re.sub(r"^(`{3,}).*?^\1", "", read(document), flags=re.M | re.S)):
        path = (ROOT / document).parent / target if target else ROOT / document
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.M)
            assert anchor in [re.sub(r"[^\w -]", "", one).lower().replace(" ", "-") for one in headings], anchor


def test_the_readme_is_short() -> None:
    assert len(read("README.md").splitlines()) <= 120


def test_the_readme_says_how_a_widget_lets_go_of_its_tensors() -> None:
    """A cell that is run again keeps the old widget: nothing else on the first page says so."""
    (said,) = [part for part in read("README.md").split("\n\n") if "`w.close()`" in part]
    assert "`w.update(q, k, v)`" in said
    assert "holds its tensors until" in said


def test_the_first_five_lines_of_the_readme_run_without_a_model() -> None:
    _, _, rest = read("README.md").partition("## Five lines\n\n```python\n")
    names: dict[str, Any] = {}
    exec("\n".join(rest.partition("```")[0].splitlines()), names)
    assert names["w"].weights(14).shape == (20,)


def test_pages_show_only_code_that_runs() -> None:
    """Python on a page is run when the site is built; where that cannot be, the page says what it stands for."""
    plain = {page: len(re.findall(r"^```python$", read(page), re.M)) for page in PAGES}
    assert {page: count for page, count in plain.items() if count} == {
        "docs/carried.md": 1,
        "docs/gallery.md": 18,  # docs/gallery.py runs them, and photographs what they show
        "docs/images.md": 2,  # models of several gigabytes
        "docs/models.md": 1,
        "docs/scale.md": 3,
        "docs/atlas.md": 1,  # it takes a minute: the notebook runs it
        "docs/serving.md": 1,  # vLLM is in another environment
    }


def test_each_picture_of_the_gallery_is_there_with_its_few_lines() -> None:
    shown = re.findall(r"```python\n(.*?)```\n\n!\[[^\]]{20,}\]\((gallery/\w+\.webp)\)", read("docs/gallery.md"), re.S)
    assert len(shown) == 18
    assert max(len(code.strip().splitlines()) for code, _ in shown) <= 5
    assert {path for _, path in shown} == {f"gallery/{path.name}" for path in (DOCS / "gallery").iterdir()}


def test_architecture_is_one_page_that_names_every_package() -> None:
    page = read("docs/architecture.md")
    lines = page.splitlines()
    assert len(lines) <= 120
    assert max(map(len, lines)) <= 120
    words = set(re.findall(r"\w+", page))
    modules = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert sorted(modules - {"__init__"} - words) == []
    assert sorted({path.name for path in SOURCES.iterdir() if path.is_dir()} - {"styles"} - words) == []


def test_what_is_to_be_looked_for_in_a_file_is_in_it() -> None:
    rows = re.findall(r"^\| .* \| `(\S+)` \| (.*) \|$", read("docs/architecture.md"), re.M)
    assert len(rows) == 8
    for name, symbols in rows:
        text = read(name)
        for symbol in re.findall(r"`(\w+)`", symbols):
            assert re.search(rf"^(?:class |def )?{symbol}\b", text, re.M), (name, symbol)


def test_the_contract_has_every_trait_and_every_request() -> None:
    contract = read("docs/contract.md")
    roles = json.loads(read("tests/contract/traits.json"))
    traits, messages = contract.split("## Traits")[1].split("## Messages")
    told = {}
    for names, role in re.findall(r"^\| (`.*?) \|.*\| (\w+) \|$", traits, re.M):
        told |= dict.fromkeys(re.findall(r"`(\w+)`", names), role)
    told |= re.findall(r"^- `(\w+)` \((\w+)\): ", traits, re.M)
    assert told == roles
    details = set(re.findall(r"^- `(\w+)`", traits, re.M))
    assert {name for name, role in roles.items() if role == "derived"} <= details
    kinds = re.findall(r"^\| `(\w+)` \| .*\|.*\|$", messages, re.M)
    assert sorted(kinds) == sorted(ANSWERS)


# What is to be typed.

SHOWN = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md", *PAGES]


def typed(document: str) -> str:
    """Return the lines and words of a document that may be commands: code in a line, in blocks, and indented."""
    text = re.sub(r"<details>.*?</details>", "", read(document), flags=re.S)  # planted faults are no commands
    fenced = r"^```([^\n]*)\n(.*?)^```"
    blocks = [code for kind, code in re.findall(fenced, text, re.M | re.S) if kind in ("", "console", "bash")]
    text = re.sub(fenced, "", text, flags=re.M | re.S)
    return "\n".join([*blocks, *re.findall(r"`([^`\n]+)`", text), *re.findall(r"^ {4}(\S.*)", text, re.M)])


def unknown_commands(shown: str) -> list[str]:
    """Return what of some commands is not there: targets of make, scripts with their options, extras, npm's scripts."""
    targets = set(re.findall(r"^([a-z][\w-]*):", read("Makefile"), re.M))
    extras = read("pyproject.toml").split("[project.optional-dependencies]")[1].split("\n[")[0]
    found = [f"make {name}" for name in re.findall(r"\bmake ([a-z][\w-]*)", shown) if name not in targets]
    for names in re.findall(r"(?:attnwidget|\.)\[([a-z,]+)\]", shown):
        found += [f"[{name}]" for name in names.split(",") if not re.search(rf"^{name} = \[", extras, re.M)]
    for name, rest in re.findall(r"\bpython3? ((?:benchmarks|tools|docs|tests)/\S+\.py)(.*)", shown):
        options = re.findall(r"--[a-z][\w-]*", rest.split("#")[0].split(" -- ")[0])
        there = read(name) if (ROOT / name).is_file() else None
        found += [name] if there is None else [f"{name} {one}" for one in options if f'"{one}"' not in there]
    scripts = json.loads(read("js/package.json"))["scripts"]
    return [*found, *(f"npm run {name}" for name in re.findall(r"npm run ([\w:]+)", shown) if name not in scripts)]


@pytest.mark.parametrize("document", SHOWN)
def test_commands_that_are_shown_can_be_typed(document: str) -> None:
    assert unknown_commands(typed(document)) == []


def test_a_command_that_cannot_be_typed_is_found() -> None:
    assert sum(len(re.findall(r"\bmake [a-z]|\bpython \w+/", typed(document))) for document in SHOWN) > 40
    wrong = "make tests\npip install 'attnwidget[quick]'\npython tools/no.py\npython benchmarks/wire.py --longest\n"
    assert unknown_commands(f"{wrong}npm run watch\nmake test\npython benchmarks/wire.py --long 4096") == [
        "make tests", "[quick]", "tools/no.py", "benchmarks/wire.py --longest", "npm run watch",
    ]  # fmt: skip


# What users read.


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("Error displaying widget: model not found", "Save Widget State Automatically"),
        ("VS Code asks to download widget scripts", "Restart the kernel"),
    ],
)
def test_what_a_front_end_says_stands_beside_what_to_do(words: str, remedy: str) -> None:
    (row,) = [line for line in read("README.md").splitlines() if line.startswith("|") and words in line]
    assert remedy in row
    assert remedy.lower() in read("docs/frontends.md").lower()


def test_it_is_said_which_rules_of_relevance_are_left_out_and_why() -> None:
    """Rules of patented methods are no part of the package, and the page says why."""
    part = " ".join(read("docs/carried.md").split("**What is left out.**")[1].split("\n\n")[0].split())
    for words in ("AttnLRP", "a patented technology", "free for personal and scientific purposes only", "a license"):
        assert words in part
    assert "AttnLRP" not in "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
