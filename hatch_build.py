"""Build hook: the wheel, the sdist and an editable install all carry the front-end's bundle."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent / "tools"))

import js


class BundleHook(BuildHookInterface):  # type: ignore[type-arg]
    """Builds attnwidget/static from js/ when it is missing or made from other sources."""

    def dependencies(self) -> list[str]:
        """Return what the build needs beside hatchling: Node, if none is here and the bundle must be built."""
        return js.requirements()

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the bundle, or end the build with what to do."""
        try:
            js.bundle()
        except js.BuildError as error:
            self.app.abort(f"attnwidget: {error}")
