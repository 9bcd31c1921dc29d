"""The configurations that `sweep.py` tries: how each is made, with random weights, and what it is called with."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import torch
from sweep_check import Case
from sweep_libraries import NotHere, library
from sweep_teaching import TEACHING
from sweep_transformers import TRANSFORMERS
from torch import nn

CASES: dict[str, Callable[[], Case]] = {}


def case(name: str) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    def register(make: Callable[[], Case]) -> Callable[[], Case]:
        CASES[name] = make
        return make

    return register


def ids(*sizes: int, vocabulary: int = 50, first: int = 3) -> torch.Tensor:
    return torch.randint(first, vocabulary, sizes, generator=torch.Generator().manual_seed(2))


def noise(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(3))


def spread(model: nn.Module) -> nn.Module:
    """Give a model weights that make its attention uneven, so that what is mixed up is seen."""
    torch.manual_seed(4)
    with torch.no_grad():
        for name, x in model.named_parameters():
            if x.ndim >= 2 and x.is_floating_point() and "emb" not in name:
                x.mul_(1.0).add_(torch.randn_like(x) * (0.6 / max(x[0].numel(), 1) ** 0.5))
            elif name.endswith(("gamma", "gamma_1", "gamma_2", "ls1", "layer_scale")) and x.is_floating_point():
                x.fill_(0.5)
    return model.eval()


# timm.

TIMM = {
    "vit_tiny_patch16_224": {},
    "deit_tiny_distilled_patch16_224": {},
    "deit3_small_patch16_224": {},
    "beit_base_patch16_224": {},
    "beitv2_base_patch16_224": {},
    "eva02_tiny_patch14_224": {"img_size": 56},
    "cait_xxs24_224": {},
    "xcit_nano_12_p16_224": {"channels": r"^blocks\."},
    "swin_tiny_patch4_window7_224": {},
    "swinv2_tiny_window8_256": {},
    "swinv2_cr_tiny_224": {},
    "mvitv2_tiny": {},
    "pvt_v2_b0": {},
    "twins_svt_small": {},
    "twins_pcpvt_small": {},
    "levit_128s": {},
    "maxvit_tiny_tf_224": {},
    "maxvit_rmlp_pico_rw_256": {},
    "coatnet_0_rw_224": {},
    "coat_tiny": {},
    "coat_lite_tiny": {},
    "convit_tiny": {},
    "crossvit_tiny_240": {},
    "davit_tiny": {"channels": r"blocks\.\d+\.1\.attn"},
    "edgenext_xx_small": {"channels": "xca"},
    "efficientformer_l1": {},
    "efficientformerv2_s0": {},
    "efficientvit_b0": {},
    "efficientvit_m0": {},
    "gcvit_xxtiny": {},
    "hiera_tiny_224": {},
    "hieradet_small": {},
    "mobilevit_xxs": {},
    "mobilevitv2_050": {},
    "mobilenetv4_hybrid_medium": {},
    "nest_tiny": {},
    "nextvit_small": {},
    "pit_ti_224": {},
    "pit_ti_distilled_224": {},
    "poolformer_s12": {},
    "repvit_m0_9": {},
    "rdnet_tiny": {},
    "samvit_base_patch16": {"img_size": 64},
    "sequencer2d_s": {},
    "tiny_vit_5m_224": {},
    "tnt_s_patch16_224": {},
    "visformer_tiny": {},
    "vit_relpos_small_patch16_224": {},
    "vit_srelpos_small_patch16_224": {},
    "volo_d1_224": {},
    "fastvit_t8": {},
    "fastvit_sa12": {},
    "botnet26t_256": {},
    "halonet26t": {},
    "lambda_resnet26t": {},
    "sebotnet33ts_256": {},
    "eca_botnext26ts_256": {},
    "halo2botnet50ts_256": {},
    "resnetv2_50": {},
    "convnext_atto": {},
    "mixer_s32_224": {},
    "caformer_s18": {},
    "convformer_s18": {},
    "metaformer": {},
    "vit_base_patch16_siglip_224": {},
    "vit_small_patch16_dinov3": {"img_size": 64},
    "vit_small_patch14_reg4_dinov2": {"img_size": 56},
    "naflexvit_base_patch16_gap": {"img_size": 64},
    "vit_wee_patch16_reg1_gap_256": {},
    "vit_medium_patch16_rope_reg1_gap_256": {},
    "flexivit_small": {},
    "shvit_s1": {},
    "swiftformer_xs": {},
    "starnet_s1": {},
    "vitamin_small_224": {},
    "vit_base_patch16_clip_224": {},
    "vit_small_patch16_18x2_224": {},
    "vit_base_patch16_rope_mixed_224": {},
    "inception_next_atto": {},
    "focalnet_tiny_srf": {},
    "mambaout_femto": {},
    "resnet50_gn": {},
    "nfnet_l0": {},
    "gcresnet33ts": {},
    "ghostnetv3_050": {},
    "csatv2": {},
    "lsnet_t": {},
    "aimv2_large_patch14_224": {"img_size": 56},
    "vit_pe_core_tiny_patch16_384": {"img_size": 64},
    "tresnet_m": {},
    "vovnet39a": {},
    "vit_intern300m_patch14_448": {"img_size": 56},
    "vit_little_patch16_reg4_gap_256": {},
    "beit3_base_patch16_224": {},
}


def timm_case(name: str, keywords: dict[str, Any], fused: bool = True) -> Case:
    timm = library("timm")
    channels = keywords.get("channels", "$^")
    shape = {key: value for key, value in keywords.items() if key != "channels"}
    if not timm.list_models(name):
        raise NotHere(f"timm has no {name}")
    if hasattr(timm.layers, "set_fused_attn"):
        timm.layers.set_fused_attn(fused)
    model = None
    for small in ({"depth": 2}, {"depths": (1, 1, 1, 1)}, {"depths": (2, 2, 2, 2)}, {}):
        try:
            model = timm.create_model(name, num_classes=5, **shape, **small)
            break
        except (TypeError, RuntimeError, AssertionError, IndexError, ValueError):
            continue
    if model is None:
        raise NotHere(f"timm's {name} cannot be made")
    size = shape.get("img_size") or model.default_cfg.get("input_size", (3, 224, 224))[-1]
    if not shape and hasattr(model, "set_input_size"):
        patch = getattr(getattr(model, "patch_embed", None), "patch_size", (16, 16))[0]
        try:
            small = timm.create_model(name, num_classes=5, img_size=patch * 6, **small)
            with torch.no_grad():
                small.eval()(noise(1, 3, patch * 6, patch * 6))
            model, size = small, patch * 6
        except Exception:
            pass
    return Case(
        spread(model),
        (noise(2, 3, size, size),),
        cross=None if name.startswith(("crossvit", "coat_", "vit_base_patch16_siglip", "vit_pe_core")) else 0,
        channels=channels,
    )


for _name, _keywords in TIMM.items():
    CASES[f"timm {_name}"] = lambda n=_name, k=_keywords: timm_case(n, k)
for _name in (
    "vit_tiny_patch16_224",
    "swin_tiny_patch4_window7_224",
    "pvt_v2_b0",
    "cait_xxs24_224",
    "volo_d1_224",
    "eva02_tiny_patch14_224",
    "mvitv2_tiny",
):
    CASES[f"timm {_name}, not fused"] = lambda n=_name, k=TIMM[_name]: timm_case(n, k, False)


# torchvision.


def _smaller(make: Any, size: int, **keywords: Any) -> Any:
    return make(**(keywords | {"spatial_size": (size, size), "temporal_size": 8}))


def torchvision_case(name: str, size: int, video: bool = False) -> Case:
    models = library("torchvision.models")
    owner = models.video if video else models
    if name.startswith("mvit"):
        maker = library("torchvision.models.video.mvit")
        with mock.patch.object(maker, "_mvit", partial(_smaller, maker._mvit, size)):
            model = getattr(owner, name)(weights=None)
    else:
        model = getattr(owner, name)(weights=None)
    x = noise(2, 3, 8, size, size) if video else noise(2, 3, size, size)
    return Case(spread(model), (x,), cross=0)


TORCHVISION: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "ViT": (
        "vision_transformer",
        "VisionTransformer",
        {
            "image_size": 32,
            "patch_size": 8,
            "num_layers": 2,
            "num_heads": 4,
            "hidden_dim": 32,
            "mlp_dim": 48,
            "dropout": 0.1,
            "attention_dropout": 0.1,
            "num_classes": 5,
        },
        32,
    ),
    "Swin": (
        "swin_transformer",
        "SwinTransformer",
        {
            "patch_size": [2, 2],
            "embed_dim": 16,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": [4, 4],
            "num_classes": 5,
        },
        32,
    ),
    "Swin V2": (
        "swin_transformer",
        "SwinTransformer",
        {
            "patch_size": [2, 2],
            "embed_dim": 16,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": [4, 4],
            "num_classes": 5,
            "block": "SwinTransformerBlockV2",
            "downsample_layer": "PatchMergingV2",
        },
        32,
    ),
    "MaxViT": (
        "maxvit",
        "MaxVit",
        {
            "input_size": (32, 32),
            "stem_channels": 8,
            "partition_size": 4,
            "block_channels": [8, 16],
            "block_layers": [1, 1],
            "head_dim": 4,
            "stochastic_depth_prob": 0.0,
            "num_classes": 5,
        },
        32,
    ),
}


def torchvision_small(file: str, kind: str, keywords: dict[str, Any], size: int) -> Case:
    module = library(f"torchvision.models.{file}")
    given = {key: getattr(module, x) if key in ("block", "downsample_layer") else x for key, x in keywords.items()}
    return Case(spread(getattr(module, kind)(**given)), (noise(2, 3, size, size),), cross=0)


for _name, _given in TORCHVISION.items():
    CASES[f"torchvision {_name}"] = lambda g=_given: torchvision_small(*g)
CASES["torchvision resnet18"] = lambda: torchvision_case("resnet18", 64)
for _name, _size in {"mvit_v1_b": 64, "mvit_v2_s": 64, "swin3d_t": 64}.items():
    CASES[f"torchvision {_name}"] = lambda n=_name, s=_size: torchvision_case(n, s, True)


# vit-pytorch: every module of the package that has a class which looks like a ViT.

VIT = {
    "image_size": 32,
    "patch_size": 8,
    "num_classes": 5,
    "dim": 32,
    "depth": 2,
    "heads": 4,
    "mlp_dim": 48,
    "dim_head": 8,
}
VIT_PYTORCH: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ViT": ("vit", "ViT", VIT),
    "SimpleViT": ("simple_vit", "SimpleViT", VIT),
    "flash": ("simple_flash_attn_vit", "SimpleViT", VIT),
    "patch dropout": ("simple_vit_with_patch_dropout", "SimpleViT", VIT),
    "register tokens": ("simple_vit_with_register_tokens", "SimpleViT", VIT),
    "qk norm": ("simple_vit_with_qk_norm", "SimpleViT", VIT),
    "hyper connections": ("simple_vit_with_hyper_connections", "SimpleViT", VIT | {"num_residual_streams": 2}),
    "value residual": ("simple_vit_with_value_residual", "SimpleViT", VIT),
    "fft": ("simple_vit_with_fft", "SimpleViT", VIT | {"freq_patch_size": 8}),
    "DeepViT": ("deepvit", "DeepViT", VIT),
    "CaiT": ("cait", "CaiT", VIT | {"cls_depth": 1}),
    "T2T": ("t2t", "T2TViT", {"dim": 32, "image_size": 64, "depth": 2, "heads": 4, "mlp_dim": 48, "num_classes": 5}),
    "CCT": (
        "cct",
        "CCT",
        {"img_size": 32, "embedding_dim": 32, "num_layers": 2, "num_heads": 4, "mlp_ratio": 2, "num_classes": 5},
    ),
    "CrossViT": (
        "cross_vit",
        "CrossViT",
        {
            "image_size": 64,
            "num_classes": 5,
            "depth": 1,
            "sm_dim": 32,
            "sm_patch_size": 16,
            "lg_dim": 48,
            "lg_patch_size": 32,
            "sm_enc_heads": 2,
            "lg_enc_heads": 2,
            "cross_attn_heads": 2,
        },
    ),
    "PiT": ("pit", "PiT", VIT | {"image_size": 64, "patch_size": 16, "depth": (1, 1), "heads": 2}),
    "LeViT": (
        "levit",
        "LeViT",
        {"image_size": 64, "num_classes": 5, "stages": 2, "dim": (32, 48), "depth": 1, "heads": (2, 4), "mlp_mult": 2},
    ),
    "CvT": ("cvt", "CvT", {"num_classes": 5}),
    "TwinsSVT": ("twins_svt", "TwinsSVT", {"num_classes": 5}),
    "RegionViT": ("regionvit", "RegionViT", {"num_classes": 5, "dim": (16, 32, 32, 32), "depth": (1, 1, 1, 1)}),
    "CrossFormer": ("crossformer", "CrossFormer", {"num_classes": 5, "dim": (16, 32, 32, 32), "depth": (1, 1, 1, 1)}),
    "ScalableViT": (
        "scalable_vit",
        "ScalableViT",
        {
            "num_classes": 5,
            "dim": 16,
            "heads": (1, 1, 2, 2),
            "depth": (1, 1, 1, 1),
            "ssa_dim_key": 8,
            "ssa_dim_value": 8,
            "reduction_factor": (8, 4, 2, 1),
            "window_size": (7, 7, None, None),
        },
    ),
    "SepViT": (
        "sep_vit",
        "SepViT",
        {"num_classes": 5, "dim": 16, "dim_head": 8, "heads": (1, 2, 2, 2), "depth": (1, 1, 1, 1), "window_size": 7},
    ),
    "MaxViT": (
        "max_vit",
        "MaxViT",
        {"num_classes": 5, "dim": 16, "dim_head": 8, "depth": (1, 1), "window_size": 7, "dim_conv_stem": 16},
    ),
    "NesT": (
        "nest",
        "NesT",
        {
            "image_size": 64,
            "patch_size": 4,
            "dim": 16,
            "heads": 2,
            "num_hierarchies": 3,
            "block_repeats": (1, 1, 1),
            "num_classes": 5,
        },
    ),
    "MobileViT": (
        "mobile_vit",
        "MobileViT",
        {
            "image_size": (64, 64),
            "dims": [16, 24, 32],
            "channels": [16, 16, 24, 24, 32, 32, 48, 48, 64, 64, 80],
            "num_classes": 5,
        },
    ),
    "XCiT": ("xcit", "XCiT", VIT | {"cls_depth": 1}),
    "parallel": ("parallel_vit", "ViT", VIT | {"num_parallel_branches": 2}),
    "LearnableMemory": ("learnable_memory_vit", "ViT", VIT),
    "small dataset": ("vit_for_small_dataset", "ViT", VIT),
    "LocalViT": ("local_vit", "LocalViT", VIT),
    "RvT": ("rvt", "RvT", VIT),
    "patch merger": ("vit_with_patch_merger", "ViT", VIT | {"patch_merge_layer": 1}),
    "AdaptiveTokenSampling": ("ats_vit", "ViT", VIT | {"max_tokens_per_depth": (16, 8)}),
    "jumbo": ("jumbo_vit", "JumboViT", VIT | {"num_jumbo_cls": 1, "jumbo_cls_k": 2, "jumbo_ff_mult": 2}),
    "normalized": ("normalized_vit", "nViT", VIT),
    "decorrelation": ("vit_with_decorr", "ViT", VIT),
    "LookViT": (
        "look_vit",
        "LookViT",
        {
            "dim": 32,
            "image_size": 64,
            "num_classes": 5,
            "depth": 2,
            "patch_size": 16,
            "heads": 2,
            "dim_head": 8,
            "highres_patch_size": 8,
            "highres_heads": 2,
            "highres_dim_head": 8,
            "cross_attn_heads": 2,
            "cross_attn_dim_head": 8,
        },
    ),
    "ViT 1d": (
        "vit_1d",
        "ViT",
        {
            "seq_len": 64,
            "patch_size": 8,
            "num_classes": 5,
            "dim": 32,
            "depth": 2,
            "heads": 4,
            "mlp_dim": 48,
            "dim_head": 8,
        },
    ),
    "ViViT": (
        "vivit",
        "ViViT",
        {
            "image_size": 32,
            "frames": 4,
            "image_patch_size": 16,
            "frame_patch_size": 2,
            "num_classes": 5,
            "dim": 32,
            "spatial_depth": 2,
            "temporal_depth": 2,
            "heads": 2,
            "mlp_dim": 32,
            "dim_head": 8,
        },
    ),
    "ViViT factorized": (
        "vivit",
        "ViViT",
        {
            "image_size": 32,
            "frames": 4,
            "image_patch_size": 16,
            "frame_patch_size": 2,
            "num_classes": 5,
            "dim": 32,
            "spatial_depth": 2,
            "temporal_depth": 2,
            "heads": 2,
            "mlp_dim": 32,
            "dim_head": 8,
            "variant": "factorized_self_attention",
        },
    ),
    "ViT 3d": (
        "vit_3d",
        "ViT",
        {
            "image_size": 32,
            "frames": 4,
            "image_patch_size": 16,
            "frame_patch_size": 2,
            "num_classes": 5,
            "dim": 32,
            "depth": 2,
            "heads": 2,
            "mlp_dim": 32,
            "dim_head": 8,
        },
    ),
    "AcceptVideo simple 3d": (
        "simple_vit_3d",
        "SimpleViT",
        {
            "image_size": 32,
            "frames": 4,
            "image_patch_size": 16,
            "frame_patch_size": 2,
            "num_classes": 5,
            "dim": 32,
            "depth": 2,
            "heads": 2,
            "mlp_dim": 32,
            "dim_head": 8,
        },
    ),
    "SimpleUViT": ("simple_uvit", "SimpleUViT", VIT),
}


def vit_pytorch_case(file: str, kind: str, keywords: dict[str, Any]) -> Case:
    found = getattr(library(f"vit_pytorch.{file}"), kind)
    accepted = inspect.signature(found.__init__).parameters
    open_ended = any(one.kind is one.VAR_KEYWORD for one in accepted.values())
    model = found(**{key: value for key, value in keywords.items() if key in accepted or open_ended})
    if file == "vit_1d":
        x = noise(2, 3, 64)
    elif "frames" in keywords:
        x = noise(2, 3, keywords["frames"], 32, 32)
    else:
        size = keywords.get("image_size", keywords.get("img_size", 224))
        size = size if isinstance(size, int) else size[0]
        x = noise(2, 3, size, size)
    return Case(spread(model), (x,), channels=r"^xcit_transformer" if kind == "XCiT" else "$^")


for _name, (_file, _kind, _keywords) in VIT_PYTORCH.items():
    CASES[f"vit_pytorch {_name}"] = lambda f=_file, k=_kind, w=_keywords: vit_pytorch_case(f, k, w)


# x-transformers.

X_LAYERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "flash": {"attn_flash": True},
    "rotary": {"rotary_pos_emb": True},
    "alibi": {"alibi_pos_bias": True},
    "relative": {"rel_pos_bias": True},
    "talking heads": {"attn_pre_talking_heads": True, "attn_post_talking_heads": True},
    "pre talking heads": {"attn_pre_talking_heads": True},
    "sparse topk": {"attn_sparse_topk": 3},
    "qk norm": {"attn_qk_norm": True},
    "one kv head": {"attn_one_kv_head": True},
    "grouped": {"attn_kv_heads": 2},
    "memory kv": {"attn_num_mem_kv": 3},
    "gate values": {"attn_gate_values": True},
    "head scale": {"attn_head_scale": True},
    "softclamp": {"attn_softclamp_logits": True},
    "sigmoid": {"attn_sigmoid": True},
    "dynamic position": {"dynamic_pos_bias": True},
    "cog signed": {"attn_cog_signed": True},
    "selective": {"attn_selective": True},
    "custom zero kv": {"attn_add_zero_kv": True},
    "post norm": {"pre_norm": False},
    "sandwich": {"sandwich_norm": True},
    "macaron": {"macaron": True},
    "gate residual": {"gate_residual": True},
    "shift tokens": {"shift_tokens": 1},
    "linear": {"attn_laser": True},
    "hard": {"attn_hard": True},
    "data dependent alibi": {"attn_data_dependent_alibi": True},
    "cope": {"attn_use_cope": True},
    "learned value gate": {"attn_gate_value_heads": True},
    "kv lora": {"attn_latent_kv_dim": 8} if False else {"attn_dim_latent_kv": 8},
    "orthog": {"attn_orthog_projected_values": True},
}


def x_case(kind: str, keywords: dict[str, Any]) -> Case:
    x = library("x_transformers")
    layers = (x.Decoder if kind == "decoder" else x.Encoder)(dim=32, depth=2, heads=4, attn_dim_head=8, **keywords)
    model = x.TransformerWrapper(num_tokens=50, max_seq_len=32, attn_layers=layers)
    return Case(spread(model), (ids(2, 9),), cross=0)


for _kind in ("decoder", "encoder"):
    for _name, _keywords in X_LAYERS.items():
        if _kind == "decoder" or _name in ("plain", "flash", "talking heads", "memory kv", "rotary", "sigmoid"):
            CASES[f"x_transformers {_kind}, {_name}"] = lambda k=_kind, w=_keywords: x_case(k, w)


def x_both(source: int, target: int, **keywords: Any) -> Case:
    x = library("x_transformers")
    model = x.XTransformer(
        dim=32,
        enc_num_tokens=50,
        enc_depth=2,
        enc_heads=4,
        enc_max_seq_len=32,
        dec_num_tokens=50,
        dec_depth=2,
        dec_heads=4,
        dec_max_seq_len=32,
        enc_attn_dim_head=8,
        dec_attn_dim_head=8,
        **keywords,
    )
    return Case(spread(model), (ids(2, source), ids(2, target + 1)), cross=2)


CASES["x_transformers XTransformer"] = lambda: x_both(9, 6)
CASES["x_transformers XTransformer, equally long"] = lambda: x_both(9, 9)
CASES["x_transformers XTransformer, flash, equally long"] = lambda: x_both(
    9, 9, enc_attn_flash=True, dec_attn_flash=True
)


@case("x_transformers cross attender")
def _() -> Case:
    x = library("x_transformers")
    return Case(
        spread(x.CrossAttender(dim=32, depth=2, heads=4, attn_dim_head=8)),
        (noise(2, 9, 32),),
        {"context": ids(2, 9, 32).float() / 50},
        cross=2,
    )


@case("x_transformers decoder, padded")
def _() -> Case:
    made = x_case("decoder", {})
    made.keywords = {"mask": torch.tensor([[True] * 9, [True] * 6 + [False] * 3])}
    return made


@case("x_transformers ViT")
def _() -> Case:
    x = library("x_transformers")
    model = x.ViTransformerWrapper(
        image_size=32, patch_size=8, num_classes=5, attn_layers=x.Encoder(dim=32, depth=2, heads=4, attn_dim_head=8)
    )
    return Case(spread(model), (noise(2, 3, 32, 32),), cross=0)


# TransformerLens.

LENS: dict[str, dict[str, Any]] = {
    "standard": {"positional_embedding_type": "standard"},
    "rotary": {"positional_embedding_type": "rotary", "rotary_dim": 8},
    "shortformer": {"positional_embedding_type": "shortformer"},
    "alibi": {"positional_embedding_type": "alibi"},
    "bidirectional": {"attention_dir": "bidirectional"},
    "split qkv": {"use_split_qkv_input": True},
    "attention result": {"use_attn_result": True},
    "grouped": {"n_key_value_heads": 2, "positional_embedding_type": "rotary", "rotary_dim": 8},
    "softcap": {"attn_scores_soft_cap": 5.0},
    "local": {"use_local_attn": True, "attn_types": ["global", "local"], "window_size": 3},
}


def lens_case(keywords: dict[str, Any]) -> Case:
    lens = library("transformer_lens")
    config = lens.HookedTransformerConfig(
        **(
            {
                "n_layers": 2,
                "d_model": 32,
                "n_heads": 4,
                "d_head": 8,
                "n_ctx": 32,
                "d_vocab": 50,
                "d_mlp": 48,
                "act_fn": "gelu",
                "seed": 0,
                "device": "cpu",
            }
            | keywords
        )
    )
    return Case(spread(lens.HookedTransformer(config)), (ids(2, 9),), cross=0)


for _name, _keywords in LENS.items():
    CASES[f"transformer_lens {_name}"] = lambda k=_keywords: lens_case(k)


# speechbrain.


def speech_case(kind: str, source: int, target: int, **keywords: Any) -> Case:
    both = library("speechbrain.lobes.models.transformer.TransformerASR")
    model = both.TransformerASR(
        tgt_vocab=50,
        input_size=20,
        d_model=32,
        nhead=4,
        normalize_before=True,
        num_encoder_layers=2,
        num_decoder_layers=2,
        d_ffn=48,
        dropout=0.1,
        encoder_module=kind,
        **keywords,
    )
    return Case(spread(model), (noise(2, source, 20), ids(2, target)), {"pad_idx": 0}, cross=2)


for _name, _given in {
    "transformer": ("transformer", 11, 6, {}),
    "transformer, equally long": ("transformer", 9, 9, {}),
    "conformer": ("conformer", 11, 6, {"attention_type": "RelPosMHAXL", "positional_encoding": "fixed_abs_sine"}),
    "conformer, regular": ("conformer", 9, 9, {"attention_type": "regularMHA"}),
    "branchformer": ("branchformer", 40, 6, {"attention_type": "RelPosMHAXL"}),
    "RoPE": ("conformer", 11, 6, {"attention_type": "RoPEMHA"}),
    "hypermixing": ("conformer", 11, 6, {"attention_type": "hypermixing"}),
}.items():
    CASES[f"speechbrain {_name}"] = lambda g=_given: speech_case(*g[:3], **g[3])


def speech_part(name: str) -> Case:
    parts = library("speechbrain.lobes.models.transformer.Transformer")
    attention = library("speechbrain.nnet.attention")
    if name == "encoder":
        return Case(spread(parts.TransformerEncoder(2, 4, 48, d_model=32, dropout=0.1)), (noise(2, 9, 32),), cross=0)
    if name == "decoder":
        return Case(
            spread(parts.TransformerDecoder(2, 4, 48, d_model=32, dropout=0.1)),
            (noise(2, 9, 32), ids(2, 9, 32).float() / 50),
            cross=2,
        )
    if name == "content":
        return Case(
            spread(attention.ContentBasedAttention(20, 32, 16, 32, scaling=1.0)),
            (noise(2, 9, 20), torch.tensor([9, 9]), noise(2, 32)),
        )
    return Case(
        spread(attention.KeyValueAttention(20, 32, 16, 32)), (noise(2, 9, 20), torch.tensor([9, 9]), noise(2, 32))
    )


for _name in ("encoder", "decoder", "content", "key value"):
    CASES[f"speechbrain {_name}"] = lambda n=_name: speech_part(n)


# Whisper, ESM, CLIP in their own code.


@case("whisper")
def _() -> Case:
    whisper = library("whisper")
    sizes = whisper.model.ModelDimensions(20, 16, 32, 4, 2, 50, 12, 32, 4, 2)
    return Case(spread(whisper.model.Whisper(sizes)), (noise(2, 20, 32), ids(2, 7)), cross=2)


@case("whisper, weights wanted")
def _() -> Case:
    whisper = library("whisper")
    made = CASES["whisper"]()

    def call(*args: Any) -> Any:
        with whisper.model.disable_sdpa():
            return made.model(*args)

    made.call = call
    return made


@case("whisper, equally long")
def _() -> Case:
    made = CASES["whisper"]()
    made.args = (noise(2, 20, 32), ids(2, 12)) if False else (made.args[0], ids(2, 12))
    return made


def esm_case(number: int, **keywords: Any) -> Case:
    esm = library("esm")
    if number == 2:
        model = esm.ESM2(num_layers=2, embed_dim=32, attention_heads=4)
    elif number == 1:
        import argparse

        data = esm.data.Alphabet.from_architecture("roberta_large")
        given = argparse.Namespace(
            layers=2,
            embed_dim=32,
            ffn_embed_dim=48,
            attention_heads=4,
            arch="roberta_large",
            max_positions=64,
            final_bias=True,
            token_dropout=False,
            emb_layer_norm_before=True,
        )
        model = esm.ProteinBertModel(given, data)
    else:
        import argparse

        data = esm.data.Alphabet.from_architecture("msa_transformer")
        given = argparse.Namespace(
            layers=2,
            embed_dim=32,
            ffn_embed_dim=48,
            attention_heads=4,
            dropout=0.1,
            attention_dropout=0.1,
            activation_dropout=0.1,
            max_tokens=2**14,
            max_positions=64,
            embed_positions_msa=True,
            max_tokens_per_msa=2**14,
            logit_bias=True,
        )
        model = esm.MSATransformer(given, data)
        return Case(spread(model), (ids(2, 3, 9, vocabulary=20, first=4),), keywords, cross=0)
    return Case(spread(model), (ids(2, 9, vocabulary=20, first=4),), keywords, cross=0)


CASES["esm ESM-2"] = lambda: esm_case(2)
CASES["esm ESM-2, weights wanted"] = lambda: esm_case(2, need_head_weights=True)
CASES["esm ESM-1"] = lambda: esm_case(1)
CASES["esm MSA"] = lambda: esm_case(3)


def clip_case(name: str) -> Case:
    clip = library("open_clip")
    config = clip.get_model_config(name)
    if config is None:
        raise NotHere(f"open_clip has no {name}")
    for tower in ("vision_cfg", "text_cfg", "multimodal_cfg"):
        one = config.get(tower)
        if isinstance(one, dict):
            if isinstance(one.get("layers"), int):
                one["layers"] = 2
            if tower == "vision_cfg":
                one["image_size"] = 64
            else:
                one["vocab_size"], one["context_length"] = 50, 12
    custom = config.pop("custom_text", False)
    model = getattr(clip, "CoCa" if "multimodal_cfg" in config else "CustomTextCLIP" if custom else "CLIP")(**config)
    return Case(spread(model), (noise(2, 3, 64, 64), ids(2, 12)))


for _name in ("ViT-B-32", "ViT-B-16", "RN50", "coca_ViT-B-32"):
    CASES[f"open_clip {_name}"] = lambda n=_name: clip_case(n)


# diffusers.


def diffusers_case(
    name: str, config: dict[str, Any], inputs: Callable[[], dict[str, Any]], cross: int | None = None
) -> Case:
    diffusers = library("diffusers")
    model = getattr(diffusers, name)(**config)
    return Case(spread(model), (), inputs(), cross=cross)


BLOCKS = {"block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4}
DIFFUSERS: dict[str, tuple[str, dict[str, Any], Callable[[], dict[str, Any]], int | None]] = {
    "UNet2DConditionModel": (
        "UNet2DConditionModel",
        BLOCKS
        | {
            "sample_size": 8,
            "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
            "cross_attention_dim": 16,
            "attention_head_dim": 4,
        },
        lambda: {"sample": noise(2, 4, 8, 8), "timestep": torch.tensor(3), "encoder_hidden_states": noise(2, 5, 16)},
        None,
    ),
    "UNet2DModel": (
        "UNet2DModel",
        BLOCKS
        | {
            "sample_size": 8,
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
            "attention_head_dim": 4,
        },
        lambda: {"sample": noise(2, 3, 8, 8), "timestep": torch.tensor(3)},
        0,
    ),
    "AutoencoderKL": (
        "AutoencoderKL",
        {
            "block_out_channels": (8, 16),
            "norm_num_groups": 4,
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
            "latent_channels": 4,
        },
        lambda: {"sample": noise(2, 3, 16, 16)},
        0,
    ),
    "DiTTransformer2DModel": (
        "DiTTransformer2DModel",
        {
            "num_attention_heads": 4,
            "attention_head_dim": 8,
            "num_layers": 2,
            "sample_size": 8,
            "patch_size": 2,
            "in_channels": 4,
            "out_channels": 8,
            "num_embeds_ada_norm": 10,
            "norm_num_groups": 4,
        },
        lambda: {
            "hidden_states": noise(2, 4, 8, 8),
            "timestep": torch.tensor([3, 3]),
            "class_labels": torch.tensor([1, 2]),
        },
        0,
    ),
    "PixArtTransformer2DModel": (
        "PixArtTransformer2DModel",
        {
            "num_attention_heads": 4,
            "attention_head_dim": 8,
            "num_layers": 2,
            "sample_size": 8,
            "patch_size": 2,
            "in_channels": 4,
            "out_channels": 8,
            "cross_attention_dim": 32,
            "caption_channels": 16,
            "norm_num_groups": 4,
            "use_additional_conditions": False,
        },
        lambda: {
            "hidden_states": noise(2, 4, 8, 8),
            "timestep": torch.tensor([3, 3]),
            "encoder_hidden_states": noise(2, 5, 16),
            "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
        },
        2,
    ),
    "SD3Transformer2DModel": (
        "SD3Transformer2DModel",
        {
            "sample_size": 8,
            "patch_size": 2,
            "in_channels": 4,
            "num_layers": 2,
            "attention_head_dim": 8,
            "num_attention_heads": 4,
            "joint_attention_dim": 16,
            "caption_projection_dim": 32,
            "pooled_projection_dim": 16,
            "out_channels": 4,
        },
        lambda: {
            "hidden_states": noise(2, 4, 8, 8),
            "timestep": torch.tensor([3, 3]),
            "encoder_hidden_states": noise(2, 5, 16),
            "pooled_projections": noise(2, 16),
        },
        0,
    ),
    "FluxTransformer2DModel": (
        "FluxTransformer2DModel",
        {
            "patch_size": 1,
            "in_channels": 4,
            "num_layers": 1,
            "num_single_layers": 1,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "joint_attention_dim": 32,
            "pooled_projection_dim": 32,
            "axes_dims_rope": [4, 4, 8],
        },
        lambda: {
            "hidden_states": noise(2, 16, 4),
            "timestep": torch.tensor([0.3, 0.3]),
            "encoder_hidden_states": noise(2, 5, 32),
            "pooled_projections": noise(2, 32),
            "txt_ids": torch.zeros(5, 3),
            "img_ids": torch.zeros(16, 3),
        },
        0,
    ),
    "AuraFlowTransformer2DModel": (
        "AuraFlowTransformer2DModel",
        {
            "sample_size": 8,
            "patch_size": 2,
            "in_channels": 4,
            "num_mmdit_layers": 1,
            "num_single_dit_layers": 1,
            "joint_attention_dim": 32,
            "caption_projection_dim": 32,
            "attention_head_dim": 8,
            "num_attention_heads": 4,
            "pos_embed_max_size": 64,
        },
        lambda: {
            "hidden_states": noise(2, 4, 8, 8),
            "timestep": torch.tensor([0.3, 0.3]),
            "encoder_hidden_states": noise(2, 5, 32),
        },
        0,
    ),
    "SanaTransformer2DModel": (
        "SanaTransformer2DModel",
        {
            "patch_size": 1,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 2,
            "attention_head_dim": 8,
            "num_attention_heads": 4,
            "num_cross_attention_heads": 4,
            "cross_attention_head_dim": 8,
            "cross_attention_dim": 32,
            "caption_channels": 16,
            "sample_size": 8,
        },
        lambda: {
            "hidden_states": noise(2, 4, 8, 8),
            "timestep": torch.tensor([3, 3]),
            "encoder_hidden_states": noise(2, 5, 16),
        },
        2,
    ),
    "HunyuanDiT2DModel": (
        "HunyuanDiT2DModel",
        {
            "sample_size": 8,
            "patch_size": 2,
            "in_channels": 4,
            "num_layers": 2,
            "attention_head_dim": 8,
            "num_attention_heads": 4,
            "cross_attention_dim": 16,
            "cross_attention_dim_t5": 16,
            "pooled_projection_dim": 4,
            "hidden_size": 32,
            "text_len": 4,
            "text_len_t5": 4,
            "activation_fn": "gelu-approximate",
        },
        lambda: {
            "hidden_states": noise(2, 4, 8, 8),
            "timestep": torch.tensor([3, 3]),
            "encoder_hidden_states": noise(2, 4, 16),
            "encoder_hidden_states_t5": noise(2, 4, 16),
            "text_embedding_mask": torch.ones(2, 4),
            "text_embedding_mask_t5": torch.ones(2, 4),
            "image_meta_size": torch.zeros(2, 6).float(),
            "style": torch.zeros(2, dtype=torch.long),
            "image_rotary_emb": [torch.ones(16, 8), torch.zeros(16, 8)],
        },
        None,
    ),
    "CogVideoXTransformer3DModel": (
        "CogVideoXTransformer3DModel",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 16,
            "in_channels": 4,
            "out_channels": 4,
            "time_embed_dim": 2,
            "text_embed_dim": 16,
            "num_layers": 2,
            "sample_width": 8,
            "sample_height": 8,
            "sample_frames": 9,
            "patch_size": 2,
            "temporal_compression_ratio": 4,
            "max_text_seq_length": 5,
        },
        lambda: {
            "hidden_states": noise(2, 3, 4, 8, 8),
            "timestep": torch.tensor([3, 3]),
            "encoder_hidden_states": noise(2, 5, 16),
        },
        0,
    ),
    "WanTransformer3DModel": (
        "WanTransformer3DModel",
        {
            "patch_size": (1, 2, 2),
            "num_attention_heads": 2,
            "attention_head_dim": 12,
            "in_channels": 4,
            "out_channels": 4,
            "text_dim": 16,
            "freq_dim": 32,
            "ffn_dim": 32,
            "num_layers": 2,
            "cross_attn_norm": True,
            "qk_norm": "rms_norm_across_heads",
            "rope_max_seq_len": 32,
        },
        lambda: {
            "hidden_states": noise(2, 4, 2, 8, 8),
            "timestep": torch.tensor([3, 3]),
            "encoder_hidden_states": noise(2, 5, 16),
        },
        2,
    ),
    "PriorTransformer": (
        "PriorTransformer",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "num_layers": 2,
            "embedding_dim": 8,
            "num_embeddings": 5,
            "additional_embeddings": 4,
        },
        lambda: {
            "hidden_states": noise(2, 8),
            "timestep": 3,
            "proj_embedding": noise(2, 8),
            "encoder_hidden_states": noise(2, 5, 8),
        },
        0,
    ),
    "StableCascadeUNet": (
        "StableCascadeUNet",
        {
            "block_out_channels": (16, 32),
            "in_channels": 4,
            "out_channels": 4,
            "conditioning_dim": 16,
            "clip_text_in_channels": 16,
            "clip_text_pooled_in_channels": 16,
            "clip_image_in_channels": 16,
            "num_attention_heads": (2, 4),
            "down_num_layers_per_block": (1, 1),
            "up_num_layers_per_block": (1, 1),
            "down_blocks_repeat_mappers": (1, 1),
            "up_blocks_repeat_mappers": (1, 1),
            "block_types_per_layer": (("SDCascadeResBlock", "SDCascadeTimestepBlock", "SDCascadeAttnBlock"),) * 2,
            "switch_level": (False,),
            "timestep_ratio_embedding_dim": 16,
        },
        lambda: {
            "sample": noise(2, 4, 8, 8),
            "timestep_ratio": torch.tensor([0.3, 0.3]),
            "clip_text_pooled": noise(2, 1, 16),
            "clip_text": noise(2, 5, 16),
            "clip_img": noise(2, 1, 16),
        },
        None,
    ),
    "Transformer2DModel": (
        "Transformer2DModel",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "in_channels": 8,
            "num_layers": 2,
            "norm_num_groups": 4,
            "cross_attention_dim": 16,
        },
        lambda: {"hidden_states": noise(2, 8, 4, 4), "encoder_hidden_states": noise(2, 5, 16)},
        2,
    ),
    "Transformer2DModel, equally long": (
        "Transformer2DModel",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "in_channels": 8,
            "num_layers": 2,
            "norm_num_groups": 4,
            "cross_attention_dim": 16,
        },
        lambda: {"hidden_states": noise(2, 8, 4, 4), "encoder_hidden_states": noise(2, 16, 16)},
        2,
    ),
}

for _name, _given in DIFFUSERS.items():
    CASES[f"diffusers {_name}"] = lambda g=_given: diffusers_case(*g)


# litgpt, torchtune, fairseq.


def litgpt_case(name: str) -> Case:
    litgpt = library("litgpt")
    small = {
        "n_layer": 2,
        "n_embd": 32,
        "n_head": 4,
        "block_size": 32,
        "vocab_size": 50,
        "padded_vocab_size": 50,
        "intermediate_size": 48,
        "head_size": 8,
    }
    found = litgpt.Config.from_name(name)
    small["n_query_groups"] = 4 if found.n_query_groups == found.n_head else 1 if found.n_query_groups == 1 else 2
    if found.n_expert:
        small |= {"n_expert": 2, "n_expert_per_token": 1, "moe_intermediate_size": 32}
    config = litgpt.Config.from_name(name, **small)
    return Case(spread(litgpt.GPT(config)), (ids(2, 9),), cross=0)


for _name in (
    "pythia-14m",
    "Llama-2-7b-hf",
    "Llama-3-8B",
    "phi-2",
    "Phi-3-mini-4k-instruct",
    "gemma-2b",
    "Gemma-2-2b",
    "Gemma-3-1b-it",
    "falcon-7b",
    "stablelm-3b-4e1t",
    "Mistral-7B-v0.1",
    "Mixtral-8x7B-v0.1",
    "Qwen2.5-0.5B",
    "Qwen3-0.6B",
    "OLMo-2-1124-7B",
    "SmolLM2-135M",
    "CodeLlama-7b-hf",
):
    CASES[f"litgpt {_name}"] = lambda n=_name: litgpt_case(n)


def torchtune_case(name: str) -> Case:
    models = library("torchtune.models")
    small = {
        "vocab_size": 50,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "embed_dim": 32,
        "max_seq_len": 32,
        "intermediate_dim": 48,
        "head_dim": 8,
    }
    make = getattr(library(f"torchtune.models.{name}"), name)
    accepted = inspect.signature(make).parameters
    given = {key: value for key, value in small.items() if key in accepted}
    del models
    for key, one in accepted.items():
        if one.default is one.empty and key not in given:
            raise NotHere(f"torchtune's {name} wants {key}")
    return Case(spread(make(**given)), (ids(2, 9),), cross=0)


for _name in ("llama2", "llama3", "llama3_1", "mistral", "gemma", "gemma2", "phi3", "qwen2"):
    CASES[f"torchtune {_name}"] = lambda n=_name: torchtune_case(n)


def fairseq_case(name: str, source: int = 9, target: int = 9) -> Case:
    import argparse

    fairseq = library("fairseq")
    del fairseq
    words = library("fairseq.data").Dictionary()
    for i in range(46):
        words.add_symbol(f"w{i}")
    transformer = library("fairseq.models.transformer")
    given = argparse.Namespace(
        encoder_embed_dim=32,
        encoder_ffn_embed_dim=48,
        encoder_layers=2,
        encoder_attention_heads=4,
        decoder_layers=2,
        decoder_embed_dim=32,
        decoder_ffn_embed_dim=48,
        decoder_attention_heads=4,
        dropout=0.1,
        attention_dropout=0.1,
        max_source_positions=64,
        max_target_positions=64,
        share_all_embeddings=True,
        share_decoder_input_output_embed=True,
        source_lang="a",
        target_lang="b",
    )
    if name == "transformer":
        transformer.base_architecture(given)
        task = types.SimpleNamespace(source_dictionary=words, target_dictionary=words)
        model = transformer.TransformerModel.build_model(given, task)
        return Case(spread(model), (ids(2, source), torch.tensor([source] * 2), ids(2, target)), cross=2)
    language = library("fairseq.models.transformer_lm")
    given.tokens_per_sample = 64
    language.base_lm_architecture(given)
    given.decoder_embed_dim = given.decoder_input_dim = given.decoder_output_dim = 32
    task = types.SimpleNamespace(source_dictionary=words, target_dictionary=words)
    return Case(spread(language.TransformerLanguageModel.build_model(given, task)), (ids(2, target),), cross=0)


CASES["fairseq transformer"] = lambda: fairseq_case("transformer", 9, 6)
CASES["fairseq transformer, equally long"] = lambda: fairseq_case("transformer")
CASES["fairseq language model"] = lambda: fairseq_case("language")


# Models that another library wraps, hooks into or changes.


def small_llama(implementation: str = "sdpa") -> Any:
    """A language model of two layers."""
    transformers = library("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=50,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=1,
    )
    torch.manual_seed(4)
    return spread(transformers.LlamaForCausalLM._from_config(config, attn_implementation=implementation))


def peft_case(kind: str) -> Case:
    peft = library("peft")
    config = (
        peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=4, init_lora_weights=False)
        if kind == "LoRA"
        else peft.PrefixTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM")
        if kind == "prefix tuning"
        else peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM")
    )
    return Case(peft.get_peft_model(small_llama(), config).eval(), (), {"input_ids": ids(2, 9)}, cross=0)


def accelerate_case(how: str) -> Case:
    accelerate = library("accelerate")
    model = small_llama()
    if how == "offload":
        accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    else:
        accelerate.hooks.attach_align_device_hook(model)
    return Case(model, (), {"input_ids": ids(2, 9)}, cross=0)


@case("wrapped torchao int8")
def _() -> Case:
    library("torchao")
    quantization = library("torchao.quantization")
    model = small_llama()
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    return Case(model, (), {"input_ids": ids(2, 9)}, cross=0)


@case("wrapped NNsight")
def _() -> Case:
    nnsight = library("nnsight")
    model = small_llama()
    wrapped = nnsight.NNsight(model)

    def call(**keywords: Any) -> Any:
        with wrapped.trace(**keywords):
            output = wrapped.output.save()
        return output  # noqa: RET504  (what the block assigns is there only after it)

    return Case(model, (), {"input_ids": ids(2, 9)}, call=call, cross=0)


for _name in ("LoRA", "prefix tuning", "prompt tuning"):
    CASES[f"wrapped PEFT {_name}"] = lambda n=_name: peft_case(n)
for _name in ("offload", "hooks"):
    CASES[f"wrapped Accelerate {_name}"] = lambda n=_name: accelerate_case(n)
CASES["wrapped torch.compile"] = lambda: Case(torch.compile(small_llama()), (), {"input_ids": ids(2, 9)}, cross=0)

_libraries = dict(CASES)
CASES.clear()
CASES |= TEACHING | _libraries | TRANSFORMERS
