"""Files of q and k that vLLM-Hook wrote load by the lines of docs/scale.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from attnwidget import AttentionStack

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
H, G, D, RANKS = 8, 4, 16, 2
LENGTHS = [(7, 7), (3, 11)]  # queries and keys of each request; the second had a prefix in the cache
NAMES = [f"model.layers.{i}.self_attn.attn" for i in (0, 5)]


def lines() -> Any:
    """Run the lines of the page."""
    codes = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    (code,) = [one for one in codes if "def of_vllm" in one]
    assert len([line for line in code.split("def of_vllm")[1].splitlines() if line.strip()]) <= 18
    found: dict[str, Any] = {}
    exec(code, found)
    return found["of_vllm_hook"]


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, dict[str, list[tuple[Tensor, Tensor]]]]:
    """A run as two ranks of a server write it, and q and k of each layer and request, (tokens, heads, D)."""
    torch.manual_seed(0)
    tensors = {
        name: [(torch.randn(queries, H, D).half(), torch.randn(keys, G, D).half()) for queries, keys in LENGTHS]
        for name in NAMES
    }
    for rank in range(RANKS):
        folder = tmp_path / f"tp_rank_{rank}"
        folder.mkdir()
        flat, order = {}, []
        for name, requests in tensors.items():
            keys = {"key_q": name.replace(".", "__") + "__q", "key_k": name.replace(".", "__") + "__k"}
            order.append(
                {**keys, "module_name": name, "layer_num": int(name.split(".")[2]), "hookq_mode": "all_tokens"}
            )
            for key, at, heads in ((keys["key_q"], 0, H), (keys["key_k"], 1, G)):
                own = slice(rank * heads // RANKS, (rank + 1) * heads // RANKS)
                flat[key] = pad_sequence([one[at][:, own].flatten(1) for one in requests], batch_first=True)
        config = {"num_attention_heads": H, "num_key_value_heads": G, "hidden_size": H * D, "head_dim": D}
        about = {"config": {**config, "attention_multiplier": 0.3}, "layer_order": order, "batch_size": 2}
        about |= {"hookq_mode": "all_tokens", "tp_rank": rank}
        about |= {"q_seq_lens": [one for one, _ in LENGTHS], "k_seq_lens": [one for _, one in LENGTHS]}
        save_file(flat, folder / "qk.safetensors")
        (folder / "qk.json").write_text(json.dumps(about))
    return tmp_path, tensors


@pytest.mark.parametrize("request_number", [0, 1])
def test_a_run_of_two_ranks_is_a_stack(request_number: int, run: Any) -> None:
    folder, tensors = run
    stack: AttentionStack = lines()(folder, request_number)
    assert stack.names == tuple(NAMES)
    for name, att in zip(NAMES, stack, strict=True):
        q, k = (x.float().transpose(0, 1) for x in tensors[name][request_number])  # (heads, tokens, D)
        Q, K = q.shape[1], k.shape[1]
        assert (att.shape.H, att.shape.G, att.shape.Q, att.shape.K) == (H, G, Q, K)
        mask = torch.ones(Q, K, dtype=torch.bool).tril(K - Q)
        eye = torch.eye(K).expand(H, K, K)
        k = k.repeat_interleave(H // G, 0)
        expected = F.scaled_dot_product_attention(q, k, eye, attn_mask=mask, scale=0.3)
        torch.testing.assert_close(att.block(head=5), expected[5])


def test_a_missing_rank_is_an_error(run: Any) -> None:
    folder, _ = run
    (folder / "tp_rank_1").rename(folder / "elsewhere")
    with pytest.raises(ValueError, match="has not all heads: a folder tp_rank_… is missing"):
        lines()(folder)
