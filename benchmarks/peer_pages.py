"""Makes pages with one tool's picture of one head; peers.py starts a process of it for each tool and length.

Runs in the peers' environment, attnwidget in its own: only torch is in both, so all else is imported by its tool. Each
line on standard input is the path of a page to be made; each line on standard output says in JSON how long the tool's
own call took.
"""

from __future__ import annotations

import argparse
import base64
import importlib.metadata
import io
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

ROOT = Path(__file__).parents[1]
HEAD_SIZE = 64
WARM = 16  # tokens of the call that is not counted: it imports what the tool imports late


class Tool(NamedTuple):
    """A tool's call, which is timed, and what makes a page of its result, which is not."""

    call: Callable[[], Any]
    page: Callable[[Any], str] = str
    facts: dict[str, int] | None = None  # what is to be said of its bytes


class Head(NamedTuple):
    q: Tensor
    k: Tensor
    weights: Tensor
    tokens: list[str]


def head(length: int, *, dense: bool) -> Head:
    """A causal head that attends to its neighbors and to the first token; `dense`: with its weights."""
    source = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, length, HEAD_SIZE, generator=source)
    angle = torch.arange(length)[:, None] * 0.5 ** torch.linspace(2, 9, HEAD_SIZE // 2)
    places = torch.cat([angle.cos(), angle.sin()], 1)  # products fall off with the distance
    q, k = 0.7 * q + 1.5 * places, 0.7 * k + places
    k[0] += q.mean(0) / q.mean(0).norm() * 12
    weights = torch.empty(0)
    if dense:
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = (q @ k.mT / HEAD_SIZE**0.5).masked_fill(later, float("-inf")).softmax(1)
    return Head(q, k, weights, [f"token{n}" for n in range(length)])


# The tools: each its natural call for one head, and the page that a notebook would show.


def attnwidget(given: Head) -> Tool:
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "browser")]
    import comm
    from comm.base_comm import BaseComm
    from gallery import portable, state_of
    from wire import SCRIPT

    from attnwidget import AttentionWidget
    from attnwidget._utils.assets import bundled, whole_script

    facts: dict[str, int] = {}

    class Opening(BaseComm):
        """Makes of each message what a kernel sends, and counts it."""

        def publish_msg(
            self, msg_type: str, data: Any = None, metadata: Any = None, buffers: Any = None, **_: Any
        ) -> None:
            state = {name: part for name, part in (data or {}).get("state", {}).items() if name not in SCRIPT}
            size = len(json.dumps({**(data or {}), "state": state}, ensure_ascii=False).encode())
            size += sum(memoryview(buffer).nbytes for buffer in buffers or [])
            facts["opening"] = facts.get("opening", 0) + size

    comm.create_comm = Opening

    def call() -> AttentionWidget:
        facts.clear()
        return AttentionWidget(given.q, given.k, tokens=given.tokens, is_causal=True)

    def page(shown: AttentionWidget) -> str:
        html = standalone(whole_script(), bundled("widget.css"), json.dumps(portable(state_of(shown))))
        shown.close()
        return html

    return Tool(call, page, facts)


def standalone(script: str, style: str, state: str) -> str:
    """The widget on a page of its own: the bundle imported from a blob, as anywidget does it."""
    host = (ROOT / "js" / "dist" / "host.js").read_text(encoding="utf-8")
    state = state.replace("<", "\\u003c")
    source = json.dumps(script).replace("<", "\\u003c")
    return f"""<style>{style}</style><div class="mount"></div>
<script>{host}</script>
<script type="application/json" id="state">{state}</script>
<script type="module">
const source = {source};
performance.mark("begin");
const state = attnwidgetHost.reviveState(document.querySelector("#state").textContent);
performance.mark("revived");
const module = await import(URL.createObjectURL(new Blob([source], {{ type: "text/javascript" }})));
performance.mark("imported");
await attnwidgetHost.mount(module, document.querySelector(".mount"), state, {{ answer: () => ({{}}) }}); // a kernel
performance.mark("mounted");
</script>"""


def bertviz(view: str) -> Callable[[Head], Tool]:
    def prepare(given: Head) -> Tool:
        import bertviz

        draw = getattr(bertviz, view)
        weights = [given.weights[None, None]]
        return Tool(lambda: draw(weights, given.tokens, html_action="return").data)

    return prepare


def circuitsvis(given: Head) -> Tool:
    from circuitsvis.attention import attention_pattern

    # With its own script inside, as it shows itself where there is no network.
    return Tool(lambda: attention_pattern(tokens=given.tokens, attention=given.weights).local_src)


def inspectus(given: Head) -> Tool:
    import inspectus
    import IPython.display

    shown: list[Any] = []
    IPython.display.display = shown.append

    def call() -> str:
        shown.clear()
        inspectus.attention(given.weights, given.tokens)
        return "".join(part.data for part in shown)

    return Tool(call)


def treescope(given: Head) -> Tool:
    import treescope

    weights = given.weights.numpy()  # of a tensor it wants names, which torch 2.13 no longer has
    return Tool(lambda: treescope.render_array(weights)._repr_html_())


def plotly(given: Head) -> Tool:
    import plotly.express

    return Tool(lambda: plotly.express.imshow(given.weights.numpy()).to_html())


def seaborn(given: Head) -> Tool:
    import matplotlib

    matplotlib.use("Agg")
    import seaborn
    from matplotlib import pyplot

    def call() -> bytes:
        figure = pyplot.figure()
        seaborn.heatmap(given.weights.numpy())
        picture = io.BytesIO()
        figure.savefig(picture, format="png")
        pyplot.close(figure)
        return picture.getvalue()

    return Tool(call, lambda picture: f'<img src="data:image/png;base64,{base64.b64encode(picture).decode()}">')


TOOLS: dict[str, Callable[[Head], Tool]] = {
    "attnwidget": attnwidget,
    "bertviz head_view": bertviz("head_view"),
    "bertviz model_view": bertviz("model_view"),
    "circuitsvis": circuitsvis,
    "inspectus": inspectus,
    "treescope": treescope,
    "plotly": plotly,
    "seaborn": seaborn,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tool", choices=TOOLS)
    parser.add_argument("length", type=int)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    dense = asked.tool != "attnwidget"
    TOOLS[asked.tool](head(WARM, dense=dense)).call()
    tool = TOOLS[asked.tool](head(asked.length, dense=dense))
    version = "" if asked.tool == "attnwidget" else importlib.metadata.version(asked.tool.split()[0])
    print(json.dumps({"version": version, "torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        made = tool.call()
        seconds = time.perf_counter() - start
        html = f'<!doctype html><meta charset="utf-8"><title>{asked.tool}</title>\n{tool.page(made)}'
        Path(line.strip()).write_text(html, encoding="utf-8")
        print(json.dumps({"seconds": seconds, **(tool.facts or {})}), flush=True)


if __name__ == "__main__":
    main()
