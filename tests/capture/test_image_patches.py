"""Towers by name, and the patches of images among their positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from captured import bridge_tower
from torch import Tensor, nn

from attnwidget import Capture, capture
from attnwidget._capture.modules.towers import Towers

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

SMALL = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 64}
VISION = {**SMALL, "image_size": 32, "patch_size": 8}
LANGUAGE = {**SMALL, "vocab_size": 60, "max_position_embeddings": 64}
IMAGE, START, STOP, VIDEO = 55, 56, 57, 58  # ids
PATCHES = [f"row {row}, {column}" for row in range(4) for column in range(4)]
pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
text = torch.randint(3, 50, (2, 24), generator=torch.Generator().manual_seed(1))


class Words:
    """A tokenizer whose words tell their ids."""

    def id_to_token(self, one: int) -> str:
        return f"w{one}"


def seen(model: Any, **inputs: Any) -> Capture:
    with torch.no_grad(), capture(model.eval(), tokenizer=Words()) as cap:
        model(**inputs)
    return cap


@pytest.mark.parametrize(
    ("name", "more", "before"),
    [
        ("ViT", {}, ["[CLS]"]),
        ("DeiT", {}, ["[CLS]", "[DIST]"]),
        ("Dinov2WithRegisters", {"num_register_tokens": 3}, ["[CLS]", "[REG 0]", "[REG 1]", "[REG 2]"]),
        ("SiglipVision", {}, []),
    ],
)
def test_a_vision_models_positions_are_patches(name: str, more: Any, before: list[str], tmp_path: Path) -> None:
    config = getattr(transformers, f"{name}Config")(**VISION, **more)
    cap = seen(getattr(transformers, f"{name}Model")(config), pixel_values=pixels)
    assert cap.tokens == [[*before, *PATCHES]] * 2
    w = cap.widget()
    assert (w.grid, w.grid_start) == ((4, 4), len(before))
    assert w.as_strings("tokens") == [[*before, *PATCHES]] * 2
    cap.save(tmp_path / "image.safetensors")
    again = Capture.load(tmp_path / "image.safetensors")
    assert again.tokens == cap.tokens
    assert again.widget().grid == (4, 4)


def test_an_image_of_another_size_has_another_grid() -> None:
    model = transformers.ViTModel(transformers.ViTConfig(**VISION))
    cap = seen(model, pixel_values=torch.randn(1, 3, 24, 48), interpolate_pos_encoding=True)
    assert cap.widget().grid == (3, 6)
    assert cap.tokens is not None
    assert cap.tokens[0][-1] == "row 2, 5"


class Reduced(nn.Module):
    """Attention over patches whose keys are those of a coarser grid, as in a pyramid vision transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 8, 8)
        self.layers = nn.ModuleList(nn.ModuleDict({"attention": Pooled()}) for _ in range(2))

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images)
        for layer in self.layers:
            x = layer["attention"](x)  # type: ignore[index]
        return x


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(16, 16, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k = (y.flatten(2).mT[:, None] for y in (x, self.reduce(x)))
        return nn.functional.scaled_dot_product_attention(q, k, k)[:, 0].mT.unflatten(2, x.shape[2:])


def test_keys_that_are_fewer_than_patches_are_not_called_patches() -> None:
    cap = seen(Reduced(), images=pixels)
    (stack,) = cap.stacks().values()
    assert stack.tokens == [PATCHES] * 2
    assert stack.key_tokens is None


def test_two_towers_are_two_stacks() -> None:
    config = transformers.CLIPConfig(
        text_config={**LANGUAGE, "eos_token_id": 2, "bos_token_id": 1}, vision_config=VISION
    )
    cap = seen(transformers.CLIPModel(config), pixel_values=pixels, input_ids=text[:, :17])  # as long as the image
    assert set(cap.towers) == set(cap.stacks()) == {"vision_model", "text_model"}
    assert cap.stacks()["vision_model"].tokens == [["[CLS]", *PATCHES]] * 2
    assert cap.stacks()["text_model"].tokens == cap.tokens == [[f"w{i}" for i in one] for one in text[:, :17].tolist()]
    assert [name.split(".")[0] for name in cap["text_model"].names] == ["text_model"] * 2
    assert [name.split(".")[0] for name in cap["vision_model"].names] == ["vision_model"] * 2
    assert cap.widget(stack="text_model").grid is None


def test_what_a_text_and_an_image_attend_to_is_named_where_their_lengths_tell_it() -> None:
    """As many words as patches: the keys may be either, and have the names of neither."""
    ids = text[:, :5]
    names = {"text": [["[CLS]", *PATCHES]] * 2, "image": [[f"w{i}" for i in one] for one in ids.tolist()]}
    for image, expected in ((32, names), (16, {"text": None, "image": None})):
        cap = seen(bridge_tower(image), input_ids=ids, pixel_values=torch.randn(2, 3, image, image))
        assert [*cap.towers][:2] == ["text_model", "vision_model"]
        assert cap.stacks()["text_model"].tokens == names["image"]
        crossing = {one.tower.split("_")[2]: one.key_tokens for one in cap.stacks().values() if one.cross}
        assert crossing["text"] == expected["text"]
        assert crossing["image"] in (expected["image"], None)  # before transformers 5.20 the lengths do not tell it


@pytest.mark.parametrize("length", [17, 9])
def test_a_caption_attends_to_patches_in_each_step_of_it(length: int) -> None:
    """As many words as patches change nothing: the tables of both are in their towers."""
    decoder = transformers.GPT2Config(
        n_embd=32, n_head=4, n_layer=2, vocab_size=60, n_positions=64, add_cross_attention=True, is_decoder=True
    )
    both = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.ViTConfig(**VISION), decoder
    )
    model = transformers.VisionEncoderDecoderModel(both).eval()
    model.config.decoder_start_token_id = model.generation_config.decoder_start_token_id = 1
    how = {"min_new_tokens": length, "max_new_tokens": length, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad():
        unseen = model.get_encoder()(pixels.flip(0))
    with torch.no_grad(), capture(model, tokenizer=Words()) as cap:
        written = model.generate(pixels, **how)
        model(pixel_values=pixels, decoder_input_ids=written[:, :-1])
        given = model.get_encoder()(torch.randn(2, 3, 24, 24), interpolate_pos_encoding=True)
        model(encoder_outputs=given, decoder_input_ids=written[:, :-1])
        model(encoder_outputs=unseen, decoder_input_ids=written[:, :-1])
    expected = [[f"w{i}" for i in one[:-1]] for one in written.tolist()]
    assert len(cap) == 4
    assert (cap[3].tokens, cap[3].cross_tokens) == (expected, None)
    for one in (cap[0], cap[1]):
        assert one.tokens == expected
        assert one.cross_tokens == [["[CLS]", *PATCHES]] * 2
        assert one.widget(cross=True).grid == (4, 4)
    assert cap[2].tokens == expected
    assert cap[2].cross_tokens == [["[CLS]", *(f"row {i}, {j}" for i in range(3) for j in range(3))]] * 2


def llava() -> Any:
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**VISION),
        text_config=transformers.LlamaConfig(**LANGUAGE, num_key_value_heads=2),
        image_token_id=IMAGE,
    )
    return transformers.LlavaForConditionalGeneration(config).eval()


def with_image(start: int) -> Tensor:
    ids = text.clone()
    ids[:, start : start + 16] = IMAGE
    return ids


@pytest.mark.parametrize("generates", [False, True])
def test_the_image_in_a_text_is_patches(generates: bool) -> None:
    model, ids = llava(), with_image(2)
    with torch.no_grad(), capture(model, tokenizer=Words()) as cap:
        if generates:
            ids = model.generate(input_ids=ids, pixel_values=pixels, max_new_tokens=3, do_sample=False, pad_token_id=0)
            ids = ids[:, :-1]
        else:
            model(input_ids=ids, pixel_values=pixels)
    expected = [[f"w{i}" for i in one] for one in ids.tolist()]
    for one in expected:
        one[2:18] = PATCHES
    assert set(cap.towers) == {"vision_tower", "language_model"}
    assert cap.tokens == expected
    assert cap.stacks()["vision_tower"].tokens == [["[CLS]", *PATCHES]] * 2
    w = cap.widget(stack="language_model")
    assert (w.grid, w.grid_start, w.as_strings("tokens")) == ((4, 4), 2, expected)
    assert cap["vision_tower"].names == cap["model.vision_tower"].names  # a part of its path will do


@pytest.mark.parametrize("tokenizer", [None, Words()])
def test_the_patches_of_an_image_are_not_one_and_the_same_token(tokenizer: Any) -> None:
    ids = torch.arange(3, 27).repeat(2, 1)
    ids[:, 2:18] = IMAGE
    ids[:, 23] = ids[:, 0]  # the only token of the text that stands there twice
    model = llava()
    with torch.no_grad(), capture(model, tokenizer=tokenizer) as cap:
        model(input_ids=ids, pixel_values=pixels)
    distinct = [f"word {0 if i == 23 else i}" for i in range(24)]
    found = [one for one in cap.metrics() if one["name"].startswith("model.language_model")]
    expected = cap["language_model"].metrics(tokens=distinct)
    assert len(found) == len(expected) == 2 * 2 * 4  # layers, samples, heads
    for name in ("same_token", "induction"):
        values = [one[name] for one in expected]
        assert None not in values
        assert [one[name] for one in found] == pytest.approx(values)


def test_runs_that_are_no_grid_are_counted() -> None:
    ids = text.clone()
    ids[:, 4:9] = IMAGE
    ids[:, 12:14] = IMAGE
    cap = seen(llava(), input_ids=ids)
    assert cap.tokens is not None
    assert cap.tokens[0][4:9] == [f"image token {i}" for i in range(5)]
    assert cap.tokens[0][12:14] == ["image token 5", "image token 6"]
    assert cap.widget().grid is None


def qwen() -> Any:
    """A model that is told the grid of each image and video."""
    config = transformers.Qwen2VLConfig(
        text_config={
            **LANGUAGE,
            "num_key_value_heads": 2,
            "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4},
        },
        vision_config={
            "depth": 2,
            "embed_dim": 32,
            "hidden_size": 32,
            "num_heads": 4,
            "mlp_ratio": 2,
            "patch_size": 4,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "in_channels": 3,
        },
        image_token_id=IMAGE,
        vision_start_token_id=START,
        vision_end_token_id=STOP,
        video_token_id=VIDEO,
    )
    return transformers.Qwen2VLForConditionalGeneration(config)


def pixels_of(grids: Tensor) -> Tensor:
    """What the processor of that model makes of images or videos."""
    return torch.randn(int(grids.prod(1).sum()), 3 * 2 * 4 * 4)


def test_several_images_of_unequal_grids() -> None:
    grids = torch.tensor([[1, 4, 8], [1, 4, 4]])
    ids = text[:1].clone()
    ids[0, 2], ids[0, 3:11], ids[0, 11] = START, IMAGE, STOP
    ids[0, 14], ids[0, 15:19], ids[0, 19] = START, IMAGE, STOP
    cap = seen(
        qwen(),
        input_ids=ids,
        pixel_values=pixels_of(grids),
        image_grid_thw=grids,
        mm_token_type_ids=(ids == IMAGE).long(),
    )
    assert cap.tokens is not None
    found = cap.tokens[0]
    assert found[3:11] == [f"image 0, row {row}, {column}" for row in range(2) for column in range(4)]
    assert found[15:19] == [f"image 1, row {row}, {column}" for row in range(2) for column in range(2)]
    assert found[2] == f"w{START}"


def test_an_image_beside_a_video_has_its_own_grid() -> None:
    image, video = torch.tensor([[1, 4, 8]]), torch.tensor([[2, 8, 4]])
    ids = torch.full((1, 34), 5)
    ids[0, 2], ids[0, 3:11], ids[0, 11] = START, IMAGE, STOP
    ids[0, 13], ids[0, 14:30], ids[0, 30] = START, VIDEO, STOP
    cap = seen(
        qwen(),
        input_ids=ids,
        pixel_values=pixels_of(image),
        image_grid_thw=image,
        pixel_values_videos=pixels_of(video),
        video_grid_thw=video,
        mm_token_type_ids=(ids == IMAGE).long() + 2 * (ids == VIDEO).long(),
    )
    assert cap.tokens is not None
    assert cap.tokens[0][3:11] == [f"row {row}, {column}" for row in range(2) for column in range(4)]
    assert cap.widget(stack="language_model").grid == (2, 4)
    frames = [f"frame {at}, row {row}, {column}" for at in range(2) for row in range(4) for column in range(2)]
    assert cap.tokens[0][14:30] == frames
    assert [*cap.stacks()] == ["visual", "visual #2", "visual #3", "language_model"]  # the image, and two frames
    assert [one.shape.Q for one in cap["visual #3"]] == [32, 32]


def test_videos_of_a_batch_are_told_apart(tmp_path: Path) -> None:
    videos = torch.tensor([[2, 4, 4], [1, 4, 8], [1, 4, 4]])
    ids = torch.full((2, 30), 5)
    ids[0, 3:11] = ids[0, 14:22] = VIDEO
    ids[1, 4:8] = VIDEO
    how = {"pixel_values_videos": pixels_of(videos), "mm_token_type_ids": 2 * (ids == VIDEO).long()}
    cap = seen(qwen(), input_ids=ids, video_grid_thw=videos, **how)
    cap.save(tmp_path / "videos.safetensors")
    for one in (cap, Capture.load(tmp_path / "videos.safetensors")):
        assert one.tokens is not None
        first = [
            f"video 0, frame {at}, row {row}, {column}" for at in range(2) for row in range(2) for column in range(2)
        ]
        assert one.tokens[0][3:11] == first
        assert one.tokens[0][14:22] == [
            f"video 1, frame 0, row {row}, {column}" for row in range(2) for column in range(4)
        ]
        assert one.tokens[1][4:8] == [f"frame 0, row {row}, {column}" for row in range(2) for column in range(2)]


def test_each_image_that_a_tower_sees_is_a_stack_of_its_own(tmp_path: Path) -> None:
    """The order of patches is that of the positions that the model itself computes: by squares that it joins later."""
    positions = pytest.importorskip("transformers.vision_utils").get_vision_position_ids
    grids = torch.tensor([[1, 4, 8], [1, 8, 4], [1, 4, 4]])
    ids = torch.full((1, 34), 5)
    ids[0, 2:10] = ids[0, 12:20] = ids[0, 22:26] = IMAGE
    how = {"pixel_values": pixels_of(grids), "mm_token_type_ids": (ids == IMAGE).long()}
    cap = seen(qwen(), input_ids=ids, image_grid_thw=grids, **how)
    cap.save(tmp_path / "images.safetensors")
    for one in (cap, Capture.load(tmp_path / "images.safetensors")):
        assert [*one.stacks()] == ["visual", "visual #2", "visual #3", "language_model"]
        for at, (name, grid) in enumerate(zip([*one.stacks()][:3], grids, strict=True)):
            stack, number = one.stacks()[name], f" #{at + 1}" * (at > 0)
            assert [*stack.attention.names] == [f"model.visual.blocks.{layer}.attn{number}" for layer in range(2)]
            assert stack.tokens == [[f"row {row}, {column}" for row, column in positions(grid[None], 2).tolist()]]
            assert one.widget(stack=name).grid is None  # patches do not stand row by row


def test_patches_that_windows_reorder_have_no_names() -> None:
    config = qwen().config.to_dict()
    vision = {**config["vision_config"], "window_size": 16, "fullatt_block_indexes": [1], "out_hidden_size": 32}
    config = transformers.Qwen2_5_VLConfig(
        **{name: config[name] for name in ("text_config", "image_token_id", "vision_start_token_id", "video_token_id")},
        vision_config=vision,
    )
    model = transformers.Qwen2_5_VLForConditionalGeneration(config)
    grids = torch.tensor([[1, 8, 8], [1, 4, 4]])
    ids = torch.full((1, 34), 5)
    ids[0, 2:18] = ids[0, 20:24] = IMAGE
    how = {"pixel_values": pixels_of(grids), "mm_token_type_ids": (ids == IMAGE).long()}
    cap = seen(model, input_ids=ids, image_grid_thw=grids, **how)
    assert cap.tokens is not None
    assert cap.tokens[0][2] == "image 0, row 0, 0"
    assert cap.skipped == {}
    assert all(stack.tokens is None for name, stack in cap.stacks().items() if name.startswith("visual"))
    whole = [att.shape.Q for name, att in cap.calls.items() if name.startswith("model.visual.blocks.1")]
    assert whole == [64, 16]


def test_images_of_a_batch_have_each_its_own_grid() -> None:
    grids = torch.tensor([[1, 4, 8], [1, 8, 4]])  # as many tokens
    ids = torch.full((2, 24), 5)
    ids[:, 2], ids[:, 3:11], ids[:, 11] = START, IMAGE, STOP
    how = {"pixel_values": pixels_of(grids), "mm_token_type_ids": (ids == IMAGE).long()}
    cap = seen(qwen(), input_ids=ids, image_grid_thw=grids, **how)
    assert cap.tokens is not None
    assert cap.tokens[0][3:11] == [f"row {row}, {column}" for row in range(2) for column in range(4)]
    assert cap.tokens[1][3:11] == [f"row {row}, {column}" for row in range(4) for column in range(2)]
    assert cap.widget(stack="language_model").grid is None  # no one grid for both


# The names of towers.


def layers(path: str, attention: str = "self_attn") -> list[str]:
    return [f"{path}.{i}.{attention}" for i in range(2)]


@pytest.mark.parametrize(
    ("names", "towers"),
    [
        (layers("transformer.h", "attn"), {"transformer": "transformer"}),
        (["MultiheadAttention"], {"": "model"}),
        (["encoder.groups.0.layers.0.attention"], {"encoder.groups.0": "groups"}),
        (layers("0.auto_model.encoder.layer", "attention.self"), {"0.auto_model.encoder": "encoder"}),
        (
            layers("model.encoder.layers") + layers("model.decoder.layers") + layers("model.decoder.layers", "cross"),
            {"model.encoder": "encoder", "model.decoder": "decoder"},
        ),
        (
            layers("model.language_model.layers") + layers("model.vision_tower.vision_model.encoder.layers"),
            {"model.language_model": "language_model", "model.vision_tower.vision_model.encoder": "vision_tower"},
        ),
        (
            layers("text_model.encoder.layers")
            + layers("vision_model.encoder.layers")
            + ["vision_model.head.attention"],
            {"text_model.encoder": "text_model", "vision_model.encoder": "vision_model"},
        ),
        (
            layers("model.vision_tower.blocks")
            + layers("model.language_model.encoder.layers")
            + layers("model.language_model.decoder.layers"),
            {
                "model.vision_tower": "vision_tower",
                "model.language_model.encoder": "language_model.encoder",
                "model.language_model.decoder": "language_model.decoder",
            },
        ),
        (
            [
                *layers("down_blocks", "attentions.0.attn1"),
                "mid_block.attentions.0.attn1",
                *layers("up_blocks", "attentions.0.attn1"),
            ],
            {"": "model"},
        ),
        (
            layers("encoder_layers") + layers("decoder_layers") + layers("decoder_layers", "cross_attn"),
            {"encoder_layers": "encoder", "decoder_layers": "decoder"},
        ),
        (
            layers("text_model.encoder.layer", "attention.self")
            + layers("vision_model.visual.transformer.resblocks", "attn")
            + layers("cross_modal_image_layers", "attention.self")
            + layers("cross_modal_text_layers", "attention.self"),
            {
                "text_model.encoder": "text_model",
                "vision_model.visual.transformer": "vision_model",
                "cross_modal_image_layers": "cross_modal_image",
                "cross_modal_text_layers": "cross_modal_text",
            },
        ),
        (layers("blocks", "attn") + layers("vision_blocks", "attn"), {"": "model", "vision_blocks": "vision"}),
        (layers("encoder_layers"), {"": "model"}),
        (["attn_layers", "attn_layers.layers.0.1", "attn_layers.layers.2.1"], {"": "model"}),
        (layers("transformer", "attn") + layers("visual.transformer", "attn"), {"": "model", "visual": "visual"}),
    ],
)
def test_towers_are_told_by_the_names_of_modules(names: list[str], towers: dict[str, str]) -> None:
    assert Towers(names).names == towers


def test_a_tower_that_did_not_run_still_tells_the_others_apart() -> None:
    config = transformers.CLIPConfig(
        text_config={**LANGUAGE, "eos_token_id": 2, "bos_token_id": 1}, vision_config=VISION
    )
    model = transformers.CLIPModel(config).eval()
    with torch.no_grad(), capture(model, tokenizer=Words(), layers="text_model") as cap:
        model(pixel_values=pixels, input_ids=text)
    assert cap.towers == ("text_model",)
    assert cap["text_model"].names == cap.attention.names


@pytest.mark.parametrize("generates", [False, True])
def test_a_vision_language_model_opens_with_its_text_and_the_image_is_a_segment(generates: bool) -> None:
    model, ids = llava(), with_image(2)
    with torch.no_grad(), capture(model, tokenizer=Words()) as cap:
        if generates:
            model.generate(input_ids=ids, pixel_values=pixels, max_new_tokens=3, do_sample=False, pad_token_id=0)
        else:
            model(input_ids=ids, pixel_values=pixels)
    w = cap.widget()
    assert w.stack == "language_model"
    parts = [(one.name, one.start, one.stop) for one in w.segments[0].entries]
    assert ("image", 2, 18) in parts
    assert [name for name, *_ in parts] == [
        "first token", *(("prompt", "image", "prompt", "answer") if generates else ("other", "image", "other"))
    ]  # fmt: skip
