"""Build hooks: every wheel carries what is built, and a description whose links work on a package page."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

sys.path.insert(0, str(Path(__file__).parent / "tools"))

import js
import native


class BundleHook(BuildHookInterface):  # type: ignore[type-arg]
    """Builds attnwidget/static from js/ and the compiled pass from native/, when missing or made from other sources."""

    def dependencies(self) -> list[str]:
        """Return what the build needs beside hatchling and is not here: Node, and zig to compile for all systems."""
        return js.requirements() + native.requirements()

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build both, or end the build with what to do."""
        try:
            js.bundle()
            native.build()
        except (js.BuildError, native.CompileError) as error:
            self.app.abort(f"attnwidget: {error}")


PICTURE = re.compile(r'<picture>.*?<img alt="([^"]*)" src="([^"]*)".*?</picture>', re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)]*)\)")  # of a file here


def described(text: str, repository: str, revision: str) -> str:
    """Return a README for a package page, where no file of the repository lies beside it.

    Args:
        text: of the README.
        repository: its address, such as "https://…/attnwidget"; "" while it is not known: links become plain words,
            and pictures go.
        revision: a tag or a branch.
    """

    def link(found: re.Match[str]) -> str:
        is_picture, words, path = found[1] == "!", found[2], found[3]
        if not repository:
            return "" if is_picture else words
        return f"{found[1]}[{words}]({repository}/{'raw' if is_picture else 'blob'}/{revision}/{path})"

    return LINK.sub(link, PICTURE.sub(r"![\1](\2)", text))


class DescriptionHook(MetadataHookInterface):
    """Makes the links of the README absolute, and lists the addresses of the project once they are known."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the description and the addresses."""
        repository = str(self.config.get("repository", "")).rstrip("/")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        made = described(text, repository, str(self.config.get("revision", "main")))
        metadata["readme"] = {"content-type": "text/markdown", "text": made}
        if repository:
            pages = {"Source": "", "Issues": "/issues", "Changelog": "/blob/main/CHANGELOG.md"}
            metadata["urls"] = {name: f"{repository}{path}" for name, path in pages.items()}
