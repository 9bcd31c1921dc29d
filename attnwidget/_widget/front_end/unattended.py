"""Kernels that no person watches, such as those of `jupyter nbconvert --execute`: their pages may start no widget.

Such a page loads its widgets from a network. Without one, the reader would see nothing, although the picture lies in
the same output. There the picture is therefore written as an output of its own, which hides as soon as a widget starts.
"""

from __future__ import annotations

import base64
import functools
import os
import re
from pathlib import Path

from ..._export.still.preview import Still

UNATTENDED = re.compile(
    r"nbconvert|nbclient|papermill|jupyter[-_ ]execute|quarto|jupyter[-_]book|sphinx", re.IGNORECASE
)
CHECKS = "[1500,3000,6000,12000,24000]"  # milliseconds after which the page is looked at

HTML = """<div id="{name}" style="display:none"><img alt="{alt}" width="{width}" height="{height}" \
src="data:image/png;base64,{data}"><p style="margin:4px 0;font:12px sans-serif;opacity:.75">{note}</p></div>
<noscript><style>#{name}{{display:block!important}}</style></noscript>
<script>(()=>{{const box=document.getElementById("{name}");if(!box)return;
const look=()=>{{box.style.display=document.querySelector(".attnwidget")?"none":"block"}};
for(const after of {checks})setTimeout(look,after)}})()</script>"""
NOTE = "The widget did not start on this page. This is its picture."


@functools.cache
def is_unattended() -> bool:
    """Return whether the process that started this kernel only runs notebooks."""
    parent = os.environ.get("JPY_PARENT_PID", "")
    return parent.isdigit() and UNATTENDED.search(_command(int(parent))) is not None


def _command(pid: int) -> str:
    """Return the command line of a process; "" if it is not known."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace").replace("\0", " ")
    except OSError:
        pass
    try:
        import psutil

        return " ".join(psutil.Process(pid).cmdline())
    except Exception:  # not installed, or the process has ended
        return ""


def fallback_of(still: Still, name: str) -> str:
    """Return the picture as HTML that shows itself only where no widget starts."""
    data = base64.b64encode(still.png).decode()
    size = {"width": still.width, "height": still.height}
    return HTML.format(
        name=f"attnwidget-still-{name}", alt="The widget's picture", data=data, note=NOTE, checks=CHECKS, **size
    )


def show_fallback(still: Still, name: str) -> None:
    """Write the picture as an output of its own."""
    from IPython.display import publish_display_data

    publish_display_data({"text/html": fallback_of(still, name), "text/plain": NOTE})  # type: ignore[no-untyped-call]
