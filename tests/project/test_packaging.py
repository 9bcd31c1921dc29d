"""What is committed, what is built and what a user installs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from rehearse import borrowed, environment, run

import attnwidget
import native

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "attnwidget" / "static"
BUILT = "attnwidget/static", "attnwidget/_engine/compiled"

pytestmark = pytest.mark.packaging


# --- what is committed ------------------------------------------------------------------------------------------------


def committed() -> Iterator[tuple[str, str]]:
    """The name and text of each file that git has or would take."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    names = run("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", cwd=ROOT)
    for name in filter(None, names.split("\0")):
        path = ROOT / name
        if path.is_file():
            data = path.read_bytes()
            if b"\0" not in data:
                yield name, data.decode(errors="replace")


# Put together here, so that this file does not contain what it looks for.
HOSTS = [".".join(parts) for parts in (["registry", "npmjs"], ["registry", "yarnpkg"], ["pypi", "org"])]
HOSTS += [".".join(parts) for parts in (["files", "pythonhosted"], ["download", "pytorch"])]
HOMES = [f"/{folder}/" for folder in ("root", "home", "Users")]


def test_no_file_names_a_registry_or_a_place_on_one_machine() -> None:
    found = [(name, text) for name, content in committed() for text in HOSTS + HOMES if text in content]
    assert found == []


def test_lock_file_pins_contents_and_names_no_server() -> None:
    packages = json.loads((ROOT / "js" / "package-lock.json").read_text())["packages"]
    del packages[""]
    assert packages
    for name, package in packages.items():
        assert package["integrity"].startswith("sha512-"), name
        assert "resolved" not in package, name
        assert "hasInstallScript" not in package or name.endswith(("/esbuild", "/fsevents")), name


@pytest.mark.thorough
def test_the_version_is_written_in_one_place(wheel: Path) -> None:
    written = [
        name for name, text in committed() if re.search(r"^\s*(__version__|version) *[=:] *\W?\d+\.\d", text, re.M)
    ]
    assert written == ["attnwidget/__init__.py"]
    version = attnwidget.__version__
    assert importlib.metadata.version("attnwidget") == version, "make installs again: make .venv/.dev"
    assert wheel.name.split("-")[1] == version


# --- the bundle -------------------------------------------------------------------------------------------------------


def test_bundle_is_fresh_small_and_fetches_nothing() -> None:
    js = load_js(ROOT)
    assert js.is_fresh(), "js/build.mjs and tools/js.py disagree on the sources, or `make bundle` was not run"
    assert js.requirements() == []
    script = (STATIC / "widget.js").read_text(encoding="utf-8")
    assert len(script.encode()) <= 204_800
    (core,) = re.findall(r'parts\.core = "([^"]+)"', script)
    parts = json.loads((STATIC / "parts.json").read_text(encoding="utf-8"))["parts"]
    assert len(script.encode()) + sum(map(len, parts.values())) <= 327_680
    inside = "".join(map(unpacked, [core, *parts.values()]))
    addresses = set(re.findall(r"\w+://[\w.]+", script + inside + (STATIC / "widget.css").read_text(encoding="utf-8")))
    assert addresses <= {"http://www.w3.org"}, "names of XML namespaces only"
    assert "preact" in (STATIC / "THIRD-PARTY.txt").read_text(encoding="utf-8")


def unpacked(part: str) -> str:
    """Return a part of the script: deflated, and written with two of 91 letters for 13 bits."""
    size, _, data = part.partition(":")
    places = {chr(code): at for at, code in enumerate(code for code in range(32, 127) if chr(code) not in '":<\\')}
    held = sum(
        (places[one] + 91 * places[other]) << (13 * at)
        for at, (one, other) in enumerate(zip(data[::2], data[1::2], strict=True))
    )
    return zlib.decompress(held.to_bytes(len(data) * 13 // 16 + 1, "little")[: int(size)], wbits=-15).decode()


def load_js(root: Path) -> ModuleType:
    """tools/js.py of a checkout."""
    spec = importlib.util.spec_from_file_location("attnwidget_tools_js", root / "tools" / "js.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the bundle is made from, and of the bundle."""
    for name in ("tools", "js/src", "attnwidget/static"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("js/build.mjs", "js/package.json", "js/package-lock.json"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.thorough
def test_only_a_changed_source_makes_the_bundle_stale(checkout: Path) -> None:
    js = load_js(checkout)
    for path in (checkout / "js").rglob("*"):
        os.utime(path)
    assert js.is_fresh()
    style = checkout / "js" / "src" / "styles" / "theme.css"
    before = style.read_bytes()
    style.write_bytes(before + b"/**/")
    assert not js.is_fresh()
    style.write_bytes(before)
    assert js.is_fresh()
    (checkout / "attnwidget" / "static" / "widget.css").unlink()
    assert not js.is_fresh()


@pytest.mark.thorough
@pytest.mark.skipif(os.name == "nt", reason="the stand-ins are shell scripts")
@pytest.mark.parametrize(
    ("version", "says"),
    [
        (
            None,
            r"`npm ci --omit=dev` in js/ needs Node >= 20\.19 with npm, and none was found: install it, or run `.*pip",
        ),
        ("v18.20.4", r"needs Node >= 20\.19"),
        ("v22.12.0", r"`npm ci --omit=dev` in js/ ended with status 3: check that npm reaches its registry"),
    ],
)
def test_a_failed_build_says_what_to_do(checkout: Path, version: str | None, says: str) -> None:
    (checkout / "attnwidget" / "static" / "widget.js").unlink()
    commands = checkout / "bin"
    commands.mkdir()
    if version:
        for name, script in {"node": f"echo {version}", "npm": "exit 3"}.items():
            (commands / name).write_text(f"#!/bin/sh\n{script}\n")
            (commands / name).chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-S", "tools/js.py", "bundle"],  # -S: without a Node that pip has installed
        cwd=checkout,
        env={"PATH": str(commands)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert re.search(says, done.stderr), done.stderr
    assert "Traceback" not in done.stderr


# --- wheel and sdist --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of this checkout, built twice with the same bytes, and checked by twine."""
    folder = tmp_path_factory.mktemp("dist") / "files"
    said = run(sys.executable, ROOT / "tools" / "dist.py", "--to", folder, cwd=folder.parent)
    assert len(re.findall(r"PASSED", said)) == 2, said
    assert len(re.findall(r"^[0-9a-f]{64}  ", said, re.M)) == 2, said
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.mark.thorough
def test_wheel_carries_bundle_types_and_samples(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        for name in load_js(ROOT).BUNDLE:
            assert archive.read(f"attnwidget/static/{name}") == (STATIC / name).read_bytes()
    assert "attnwidget/py.typed" in names
    assert any(re.fullmatch(r"attnwidget/samples/\w+\.npz", name) for name in names)
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.thorough
def test_wheel_carries_the_compiled_pass_of_every_system(wheel: Path) -> None:
    """By the first bytes of each library, and no absolute path of this machine."""
    starts = {"so": b"\x7fELF", "dylib": b"\xcf\xfa\xed\xfe", "dll": b"MZ"}
    with zipfile.ZipFile(wheel) as archive:
        for name in native.SYSTEMS:
            library = archive.read(f"attnwidget/_engine/compiled/{name}")
            assert library.startswith(starts[name.rpartition(".")[2]])
            assert b"finish_" in library
            assert str(ROOT).encode() not in library
            assert len(library) < 60_000


@pytest.mark.thorough
def test_a_build_without_a_compiler_says_so_and_goes_on(tmp_path: Path) -> None:
    for name in ("tools", "native"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "attnwidget" / "_engine").mkdir(parents=True)
    command = [sys.executable, "-S", "tools/native.py", "here"]  # -S: without the compiler that pip has installed
    done = subprocess.run(command, cwd=tmp_path, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 0
    assert "for want of a C compiler: `python -m pip install 'ziglang" in done.stderr
    assert "long pictures take up to twice the time" in done.stderr


def test_the_compiled_pass_is_of_the_present_sources() -> None:
    assert native.is_fresh(native.here()), "run `make bundle`"


@pytest.mark.thorough
def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    """A file of git is in it, what is built is in it, and no file that lies about in a checkout."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    in_git = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "attnwidget", cwd=ROOT)
    package = {name for name in in_git.split("\0") if name and (ROOT / name).is_file()}
    built = {f"{folder}/{path.name}" for folder in BUILT for path in (ROOT / folder).iterdir()}
    licenses = {f"licenses/licenses/{path.name}" for path in (ROOT / "licenses").iterdir()}
    about = {"METADATA", "WHEEL", "RECORD", "licenses/LICENSE"} | licenses
    info = f"attnwidget-{attnwidget.__version__}.dist-info"
    assert set(names) == package | built | {f"{info}/{name}" for name in about}
    assert len(names) == len(set(names))


def test_the_licenses_of_others_are_those_that_they_give() -> None:
    """Of each package that the front-end's script holds, and of the letters that stills are written with."""
    package = json.loads((ROOT / "js" / "package.json").read_text(encoding="utf-8"))
    held = set(package["dependencies"]) - {"esbuild"}  # it makes the script, and is not in it
    given = {name.replace("@", "").replace("/", "-"): ROOT / "js" / "node_modules" / name / "LICENSE" for name in held}
    texts = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "licenses").glob("*.txt")}
    assert texts.keys() == given.keys() | {"DejaVu"}
    for name, path in given.items():
        assert not path.exists() or texts[name] == path.read_text(encoding="utf-8")
    assert "Bitstream" in texts["DejaVu"]


@pytest.mark.thorough
def test_sdist_holds_what_git_has_and_what_is_built(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {member.name.split("/", 1)[1] for member in archive.getmembers() if member.isfile()}
    in_git = set(run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).split("\0"))
    static = {f"{folder}/{path.name}" for folder in BUILT for path in (ROOT / folder).iterdir()}
    assert names - in_git - static == {"PKG-INFO"}
    assert {"README.md", "LICENSE", "pyproject.toml", "hatch_build.py", "tools/js.py", "CHANGELOG.md"} | static <= names


@pytest.mark.thorough
def test_sdist_builds_without_node(built: Path, wheel: Path, tmp_path: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    assert {"js/src/widget.ts", "js/package-lock.json", "attnwidget/static/widget.js", "LICENSE"} <= names
    assert not [name for name in names if "node_modules" in name or name.startswith((".venv", "test-artifacts"))]

    (source,) = (path for path in tmp_path.iterdir() if path.is_dir())
    for path in source.rglob("*"):
        os.utime(path)  # as an installer leaves it that does not keep times
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path, source]
    run(*build, cwd=tmp_path, PATH=os.devnull)
    with zipfile.ZipFile(wheel) as ours, zipfile.ZipFile(tmp_path / wheel.name) as theirs:
        assert set(ours.namelist()) == set(theirs.namelist())


@pytest.mark.thorough
def test_installed_wheel_makes_a_widget_without_node(wheel: Path, tmp_path: Path) -> None:
    python, packages = environment(tmp_path / "venv")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel]
    run(*install, cwd=tmp_path)
    # torch and the rest come from the environment that runs this test: too large to install again.
    (packages / "borrowed.pth").write_text(borrowed(), encoding="utf-8")

    program = tmp_path / "program.py"
    program.write_text(
        "from pathlib import Path\n"
        "import sys\n"
        "import attnwidget, numpy\n"
        "assert 'torch._dynamo' not in sys.modules, 'it takes longer to import than all the rest'\n"
        "q = numpy.random.default_rng(0).normal(size=(5, 4))\n"
        "widget = attnwidget.AttentionWidget(q, q)\n"
        "print(Path(attnwidget.__file__).parent)\n"
        "static = Path(attnwidget.__file__).parent / 'static'\n"
        "assert widget._esm == (static / 'loader.js').read_text(encoding='utf-8')\n"
        "assert widget._front_end.code == (static / 'widget.js').read_text(encoding='utf-8')\n"
        "assert widget._front_end.parts.keys() >= {'graph', 'text', 'heads', 'segments', 'stages', 'compare'}\n"
        "assert widget._front_end.style == (static / 'widget.css').read_text(encoding='utf-8')\n"
    )
    said = run(python, "-I", program, cwd=tmp_path, PATH=os.devnull)
    assert Path(said.strip().splitlines()[-1]) == packages / "attnwidget"


def test_the_description_of_the_package_has_no_dead_link() -> None:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    relative = hooks.LINK.findall(text)
    assert len(relative) > 20
    plain = hooks.described(text, "", "main")
    assert hooks.LINK.findall(plain) == []
    assert all(words in plain for sign, words, _ in relative if sign != "!")
    assert "docs/" not in re.sub(r"`[^`]*`", "", plain)
    absolute = hooks.described(text, "https://example.org/attnwidget", "v1.0")
    assert hooks.LINK.findall(absolute) == []
    for sign, words, path in relative:
        kind = "raw" if sign == "!" else "blob"
        assert f"{sign}[{words}](https://example.org/attnwidget/{kind}/v1.0/{path})" in absolute
    assert "](https://example.org/attnwidget/raw/v1.0/docs/first-minute-light.webp)" in absolute
