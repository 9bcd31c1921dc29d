"""Where patches lie, as the features around a call show it: windows, videos, U-Nets, grids that change by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from traitlets import TraitError

from attnwidget import AttentionWidget, Capture, capture
from attnwidget._capture.call.patch_grid import PatchGrid, Windows

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
SWIN = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 2], "window_size": 4}


def seen(model: nn.Module, *inputs: Tensor) -> Capture:
    with torch.no_grad(), capture(model.eval()) as cap:
        model(*inputs)
    return cap


def noise(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


def patches_of(cap: Capture) -> list[PatchGrid | None]:
    return [record.text.patches for stack in cap.stacks().values() for record in stack.records.values()]


@pytest.mark.parametrize("kind", ["Swin", "Swinv2"])
def test_windows_lie_on_the_image_shifted_ones_too(kind: str, tmp_path: Path) -> None:
    config = getattr(transformers, f"{kind}Config")(**SWIN)
    cap = seen(getattr(transformers, f"{kind}Model")(config), noise(2, 3, 32, 32))
    plain, shifted, *smaller = patches_of(cap)
    assert plain == PatchGrid(8, 8, windows=Windows(4, 4))
    assert shifted == PatchGrid(8, 8, windows=Windows(4, 4, 2, 2))
    assert smaller == [PatchGrid(4, 4)] * 2  # the window is the image
    w = cap.widget(layer=1, batch=7, image=list(noise(2, 3, 32, 32)), view="image")
    sent = w.get_state("grid")["grid"]
    cells = np.roll(np.arange(64).reshape(8, 8), (-2, -2), (0, 1))[4:, 4:]
    assert sent["windows"][3] == tuple(cells.flatten())
    assert w.get_state("facts")["facts"]["axes_read"] == "windows"
    w.layer = 2  # other samples: two images
    assert "windows" not in w.get_state("grid")["grid"]
    cap.save(tmp_path / "swin.safetensors")
    assert patches_of(Capture.load(tmp_path / "swin.safetensors")) == [plain, shifted, *smaller]


def test_windows_of_an_image_whose_patches_are_all_alike_are_not_guessed() -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cut = nn.Conv2d(3, 16, 4, 4)
            self.block = Block()

        def forward(self, x: Tensor) -> Any:
            return self.block(self.cut(x).permute(0, 2, 3, 1))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(16)
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, x: Tensor) -> Any:
            x = torch.roll(self.norm(x), (-2, -2), (1, 2))
            x = x.reshape(-1, 2, 4, 2, 4, 16).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, 16)
            return self.attention(x, x, x)[0]

    model = Constant()
    assert patches_of(seen(model, noise(1, 3, 32, 32))) == [PatchGrid(8, 8, windows=Windows(4, 4, 2, 2))]
    assert patches_of(seen(model, torch.ones(1, 3, 32, 32))) == [None]
    with torch.no_grad():
        half = noise(1, 3, 32, 32)
        half[..., 16:] = 1
    assert patches_of(seen(model, half)) == [PatchGrid(8, 8, windows=Windows(4, 4, 2, 2))]


def test_windows_with_padding_are_those_of_the_image() -> None:
    config = transformers.SamVisionConfig(
        **{**SMALL, "num_hidden_layers": 2, "mlp_dim": 16, "output_channels": 16},
        image_size=64,
        patch_size=8,
        window_size=3,
        global_attn_indexes=[1],
    )
    cap = seen(transformers.SamVisionModel(config), noise(1, 3, 64, 64))
    assert patches_of(cap) == [PatchGrid(8, 8, windows=Windows(3, 3)), PatchGrid(8, 8)]
    w = cap.widget(batch=8)
    assert w.get_state("grid")["grid"]["windows"][8] == (54, 55, -1, 62, 63, -1, -1, -1, -1)


@pytest.mark.parametrize("kind", ["VideoMAE", "Vivit", "VJEPA2"])
def test_a_video_has_frames_of_rows_and_columns(kind: str) -> None:
    frames = {"num_frames": 4, "patch_size": 8, "tubelet_size": 2, "image_size": 32}
    more: dict[str, Any] = {
        "VideoMAE": frames,
        "Vivit": {**frames, "tubelet_size": [2, 8, 8]},
        "VJEPA2": {"frames_per_clip": 4, "crop_size": 32, "patch_size": 8, "tubelet_size": 2, "hidden_size": 24}
        | {f"pred_{name}": value for name, value in SMALL.items() if name.startswith("num")}
        | {"pred_hidden_size": 24, "mlp_ratio": 1.0},
    }[kind]
    config = getattr(transformers, f"{kind}Config")(**{**SMALL, **more})
    cap = seen(getattr(transformers, f"{kind}Model")(config), noise(1, 4, 3, 32, 32))
    w = cap.widget(view="image", image=noise(4, 3, 32, 32), query=20)
    assert w.grid == (2, 4, 4)
    assert w.as_strings("tokens")[-1] == "frame 1: 3, 3"
    sent = w.get_state("image")["image"]
    assert (sent["across"], sent["width"], sent["height"]) == (2, 32, 32)


def test_space_and_time_are_apart_and_time_is_a_strip_of_frames() -> None:
    config = transformers.TimesformerConfig(image_size=32, patch_size=8, num_frames=3, **SMALL)
    cap = seen(transformers.TimesformerModel(config), noise(1, 3, 3, 32, 32))
    time, space = patches_of(cap)
    assert (time, space) == (PatchGrid(1, 1, frames=3), PatchGrid(4, 4, ("[CLS]",)))
    assert cap.widget().as_strings("tokens") == ["frame 0", "frame 1", "frame 2"]
    assert cap.widget(layer=1).stack == "encoder, attention"  # the layer as `cap.attention` numbers it
    with pytest.raises(TraitError, match="layer 7 is not there"):
        cap.widget(layer=7)


def test_a_layers_grid_is_that_of_the_features_it_is_given() -> None:
    config = transformers.SegformerConfig(
        hidden_sizes=[16] * 4, depths=[1] * 4, num_attention_heads=[1] * 4, sr_ratios=[8, 4, 2, 1]
    )
    cap = seen(transformers.SegformerModel(config), noise(1, 3, 64, 96))
    assert [(one.rows, one.columns) for one in patches_of(cap) if one] == [(16, 24), (8, 12), (4, 6), (2, 3)]
    w = cap.widget()
    assert w.get_state("grid")["grid"]["columns"] == 24
    w.layer = 2
    assert w.get_state("grid")["grid"]["columns"] == 6


class Joint(nn.Module):
    """An image and a text in one attention, as in Stable Diffusion 3 and Flux."""

    def __init__(self, *, text_first: bool) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(16, 16) for _ in range(3))
        self.add_q, self.add_k, self.add_v = (nn.Linear(16, 16) for _ in range(3))
        self.text_first = text_first

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        own = [made(image) for made in (self.to_q, self.to_k, self.to_v)]
        others = [made(text) for made in (self.add_q, self.add_k, self.add_v)]
        pairs = zip(others, own, strict=True) if self.text_first else zip(own, others, strict=True)
        q, k, v = (torch.cat(pair, 1).unflatten(2, (2, 8)).transpose(1, 2) for pair in pairs)
        return nn.functional.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("text_first", [False, True])
def test_the_values_of_a_joint_attention_show_whether_the_image_or_the_text_is_first(text_first: bool) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.attn = nn.Conv2d(4, 16, 2, 2), Joint(text_first=text_first)

        def forward(self, latents: Tensor, text: Tensor) -> Tensor:
            return self.attn(self.embed(latents).flatten(2).transpose(1, 2), text)

    (found,) = patches_of(seen(Model(), noise(1, 4, 8, 6), noise(1, 5, 16)))
    names = tuple(f"text {i}" for i in range(5))
    assert found == (PatchGrid(4, 3, names) if text_first else PatchGrid(4, 3, after=names))


def test_cells_of_windows_are_those_that_rolling_and_cutting_gives() -> None:
    for height, width, down, across in [(2, 3, 0, 0), (2, 3, 1, 1), (4, 2, 2, 0)]:
        padded = np.full((-(-5 // height) * height, -(-7 // width) * width), -1)
        padded[:5, :7] = np.arange(35).reshape(5, 7)
        rolled = np.roll(padded, (-down, -across), (0, 1))
        rows, columns = padded.shape[0] // height, padded.shape[1] // width
        cut = rolled.reshape(rows, height, columns, width).transpose(0, 2, 1, 3).reshape(-1, height * width)
        assert Windows(height, width, down, across).cells(5, 7) == cut.tolist()
    spread = np.arange(32).reshape(2, 2, 2, 4).transpose(1, 3, 0, 2).reshape(8, 4)  # MaxViT: 4 × 8 patches by 2 × 2
    assert Windows(2, 2, spread=True).cells(4, 8) == spread.tolist()


# In the widget.


def test_a_grid_for_each_layer_changes_with_the_layer() -> None:
    q = [noise(1, 2, 16, 4), noise(1, 2, 4, 4)]
    w = AttentionWidget(q, q, grid=[(4, 4), (2, 2)])
    assert w.get_state("grid")["grid"]["rows"] == 4
    w.layer = 1
    assert w.get_state("grid")["grid"]["rows"] == 2
    with pytest.raises(ValueError, match="3 entries but there are 2 layers"):
        w.grid = [(4, 4), (2, 2), None]
    with pytest.raises(ValueError, match=r"4 × 4 = 16 patches but there are 4 queries"):
        w.grid = [(4, 4), (4, 4)]


def test_a_video_of_more_pictures_than_frames_shows_the_first_of_each() -> None:
    pictures = [np.full((2, 2, 3), shade, np.uint8) for shade in (0, 10, 200, 210)]
    q = noise(1, 8, 4)
    w = AttentionWidget(q, q, grid=(2, 2, 2), image=pictures)
    import io

    from PIL import Image

    sent = w.get_state("image")["image"]
    assert np.unique(np.asarray(Image.open(io.BytesIO(sent["data"])))).tolist() == [0, 200]
    with pytest.raises(ValueError, match="3 pictures but the grid has 2 frames"):
        w.image = pictures[:3]
    w.image = pictures[0]  # one for all
    assert w.get_state("image")["image"]["across"] == 2
