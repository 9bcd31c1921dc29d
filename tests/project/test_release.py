"""The steps of docs/releasing.md, as far as they can be taken without publishing anything."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import rehearse
import yaml

import attnwidget

ROOT = Path(__file__).parents[2]
STEPS = (ROOT / "docs" / "releasing.md").read_text(encoding="utf-8")

pytestmark = [pytest.mark.packaging, pytest.mark.thorough]


def test_a_release_is_built_put_into_an_index_installed_and_used(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "rehearse.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    version, *_, total, size = done.stdout.split()
    assert version == attnwidget.__version__
    assert float(total) == pytest.approx(1, abs=1e-5)
    assert int(size) > 100_000, "a page with the widget's script in it"


def test_a_folder_without_both_files_is_refused(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, ROOT / "tools" / "rehearse.py", tmp_path], capture_output=True, text=True)
    assert done.returncode != 0
    assert "should hold one wheel and one sdist" in done.stderr


@pytest.mark.parametrize("reach", ["create_connection(('127.0.0.1', 9))", "getaddrinfo('localhost', 80)"])
def test_a_cell_that_reaches_for_a_network_would_be_found(reach: str) -> None:
    program = f"{rehearse.OFFLINE}\nimport socket\nsocket.{reach}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode != 0
    assert "there is no network here" in done.stderr


def test_what_the_steps_name_is_there() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    assert set(re.findall(r"`make (\w+)`", STEPS)) <= targets
    named = re.findall(r"`(?:\S*python )?((?:tools|tests)/[\w/]+\.py)", STEPS)
    assert len(named) >= 3
    assert [name for name in named if not (ROOT / name).is_file()] == []
    assert (ROOT / ".github" / "workflows" / re.findall(r"`(\w+\.yml)`", STEPS)[0]).is_file()


def test_the_changelog_has_a_section_for_what_is_not_released() -> None:
    sections = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert sections[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+(rc\d+)?\] - \d{4}-\d\d-\d\d", name) for name in sections[1:])


def test_the_recipe_of_conda_has_the_version_and_all_requirements(tmp_path: Path) -> None:
    run = [sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", tmp_path, ROOT]
    assert subprocess.run(run, capture_output=True).returncode == 0
    done = subprocess.run([sys.executable, ROOT / "tools" / "conda.py", tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    recipe = yaml.safe_load((tmp_path / "recipe" / "recipe.yaml").read_text(encoding="utf-8"))
    assert recipe["package"]["version"] == attnwidget.__version__
    needed = {one.split()[0] for one in recipe["requirements"]["run"]}
    assert needed == {
        "python",
        "anywidget",
        "ipywidgets",
        "numpy",
        "pillow",
        "pytorch",
        "regex",
        "safetensors",
        "traitlets",
    }
    assert all(">=" in one for one in recipe["requirements"]["run"])
