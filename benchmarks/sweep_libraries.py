"""Libraries that the sweep imports: with what stands in for parts that were compiled for another torch."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import types
from typing import Any

import torch


class NotHere(Exception):
    """A library or a model that cannot be had in this environment."""


def library(name: str) -> Any:
    """Import a library; of some, those parts are put aside that were compiled for another torch."""
    prepare()
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise NotHere(f"{name}: {type(error).__name__}: {error}"[:200]) from None


_prepared: list[Any] = []


def prepare() -> None:
    if _prepared:
        return
    _prepared.append(None)
    try:
        import torchvision  # noqa: F401
    except Exception:  # compiled for a torch with CUDA; no model here calls what is compiled
        for name in [one for one in sys.modules if one.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        operations = torch.library.Library("torchvision", "DEF")
        backward = [
            f"_{one}_backward" for one in ("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d")
        ]
        for name in (
            "nms",
            "qnms",
            "roi_align",
            "roi_pool",
            "ps_roi_align",
            "ps_roi_pool",
            "deform_conv2d",
            "qroi_align",
            *backward,
        ):
            with_schema = f"{name}(Tensor x) -> Tensor"
            with contextlib.suppress(RuntimeError):
                operations.define(with_schema)
        _prepared.append(operations)
    sound: Any = types.ModuleType("torchaudio._extension")
    sound._IS_TORCHAUDIO_EXT_AVAILABLE = sound._IS_ALIGN_AVAILABLE = sound._IS_RIR_AVAILABLE = False
    sound._IS_KALDI_AVAILABLE = False
    sound.lazy_import_sox_ext = sound._check_cuda_version = lambda: None
    sound.fail_if_no_align = sound.fail_if_no_rir = lambda function: function
    sys.modules["torchaudio._extension"] = sound
    if importlib.util.find_spec("torchao") is not None and importlib.util.find_spec("torchtune") is not None:
        number: Any = types.ModuleType("torchao.dtypes.nf4tensor")
        number.NF4Tensor = type("NF4Tensor", (torch.Tensor,), {})
        number.implements = lambda *_: lambda function: function
        number.linear_nf4 = number.to_nf4 = lambda *_: None
        sys.modules["torchao.dtypes.nf4tensor"] = number
