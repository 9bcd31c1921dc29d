"""What other services read: workflows, issue forms, updates, citation; by their schemas and a linter of workflows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
SCHEMAS = {
    "vendor.github-workflows": WORKFLOWS,
    "vendor.dependabot": [GITHUB / "dependabot.yml"],
    "vendor.github-issue-forms": [
        path for path in sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")) if path.stem != "config"
    ],
    "vendor.github-issue-config": [GITHUB / "ISSUE_TEMPLATE" / "config.yml"],
    "vendor.citation-file-format": [ROOT / "CITATION.cff"],
}

pytestmark = [pytest.mark.packaging, pytest.mark.thorough]


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True)


def tool(name: str) -> Path:
    """Return a program that is installed beside this Python."""
    return Path(sys.executable).parent / (f"{name}.exe" if os.name == "nt" else name)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_are_as_their_services_want_them(schema: str) -> None:
    assert SCHEMAS[schema]
    done = run(tool("check-jsonschema"), "--builtin-schema", schema, *SCHEMAS[schema])
    assert done.returncode == 0, done.stdout + done.stderr


def test_workflows_hold_no_known_weakness() -> None:
    done = run(tool("zizmor"), "--offline", "--no-progress", "--min-severity", "low", GITHUB)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_linter_finds_a_weakness(tmp_path: Path) -> None:
    text = (GITHUB / "workflows" / "checks.yml").read_text(encoding="utf-8")
    path = tmp_path / ".github" / "workflows" / "checks.yml"
    path.parent.mkdir(parents=True)
    path.write_text(re.sub(r"checkout@\w+", "checkout@main", text), encoding="utf-8")
    assert run(tool("zizmor"), "--offline", "--no-progress", path).returncode != 0


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_keep_no_secret_and_pin_what_they_use(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "secrets" not in text.replace("secrets: inherit", "")
    used = re.findall(r"uses: (\S+)", text)
    assert used
    assert [name for name in used if not re.search(r"@[0-9a-f]{40}$", name) and not name.startswith("./")] == []
    jobs = yaml.safe_load(text)["jobs"]
    assert yaml.safe_load(text)["permissions"] == {}
    assert all("permissions" in job for job in jobs.values()), "each job says what it may do"


def test_what_workflows_run_is_there() -> None:
    """Names of make's targets and of scripts: a workflow cannot be run here, but what it calls can."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    called = re.findall(r"run: (?:make (\w+)|(\.ci/run)|python (tools/\S+))", "".join(map(Path.read_text, WORKFLOWS)))
    assert {target for target, _, _ in called if target} <= targets
    assert all((ROOT / path).is_file() for _, *paths in called for path in paths if path)
    assert ("", ".ci/run", "") in called


def test_hooks_before_a_commit_call_what_make_has_installed() -> None:
    """ruff, import-linter and biome, as `make lint` does: one version of each."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert [one["repo"] for one in hooks] == ["local"], "nothing is fetched"
    lint = (ROOT / "Makefile").read_text(encoding="utf-8").split("\nlint:")[1].split("\n\n")[0]
    for hook in hooks[0]["hooks"]:
        program, *given = hook["entry"].removeprefix(".venv/bin/").split(" ")
        if program == "python":
            assert (ROOT / given[0]).is_file()
            assert f"run {given[-1]}" in lint
        else:
            assert f"bin/{' '.join([program, *given[:1]])}".strip() in lint


def test_editors_keep_the_line_length_of_the_linter() -> None:
    (editors,) = re.findall(r"^max_line_length = (\d+)$", (ROOT / ".editorconfig").read_text(encoding="utf-8"), re.M)
    (linter,) = re.findall(r"^line-length = (\d+)$", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    assert editors == linter


def test_forms_for_faults_ask_for_the_report() -> None:
    for name in ("wrong", "model"):
        form = yaml.safe_load((GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml").read_text(encoding="utf-8"))
        asked = [part for part in form["body"] if "attnwidget.report()" in part["attributes"]["label"]]
        assert [part["validations"]["required"] for part in asked] == [True]
