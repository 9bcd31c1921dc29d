"""The folder of the user's caches in which attnwidget keeps what it has compiled."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder, which may not exist yet."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "attnwidget" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "attnwidget"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attnwidget"
