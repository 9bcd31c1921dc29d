"""Serve a tiny model of one family, and write its capture and its answers; a process of its own for each engine.

    python one_family.py gemma2 folder

vLLM changes classes of transformers in the process that serves them, so the reference is computed in another.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from compared import LONG, SHORT, greedy
from conftest import SMALL
from tiny_models import IMAGE_FAMILY, picture, write_model
from vllm import LLM

from attnwidget import capture


def serve(family: str, folder: Path) -> None:
    """Serve two requests, and write `served.safetensors` and `answers.json` into the folder."""
    write_model(family, folder)
    prompts: list[Any] = [LONG, SHORT]
    if family == IMAGE_FAMILY:
        prompts = [{"prompt": SHORT, "multi_modal_data": {"image": picture()}}]
    llm = LLM(str(folder), enforce_eager=True, **SMALL)
    with capture(llm) as cap:
        outputs = llm.generate(prompts, greedy(6), use_tqdm=False)
    cap.save(folder / "served.safetensors")
    answers = {one.request_id: [*one.prompt_token_ids, *one.outputs[0].token_ids] for one in outputs}
    (folder / "answers.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]))
