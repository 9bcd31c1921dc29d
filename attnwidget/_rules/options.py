"""The keywords of an attention call, declared once: as a dataclass, as types for editors, and for `help()`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Protocol, TypedDict, TypeVar

from torch import Tensor

from .._utils.validation import detached, refuse_unknown
from ..masks import Mask, MaskFunction


class SupportsArray(Protocol):
    """Anything that numpy can read, such as an array or a tensor."""

    def __array__(self, *args: Any, **keywords: Any) -> Any: ...


class SupportsDLPack(Protocol):
    """Anything that shares its memory by DLPack, such as a JAX or CuPy array."""

    def __dlpack__(self, *args: Any, **keywords: Any) -> Any: ...


TensorLike = SupportsArray | SupportsDLPack
ScoreFunctionLike = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
MaskLike = TensorLike | MaskFunction
BiasLike = TensorLike | ScoreFunctionLike
SinksLike = TensorLike | float
MaskMeans = Literal["keep", "hide"]
MaskDims = Literal["qk", "bk", "bqk", "hqk", "bhqk"]


class KeywordsBesideMask(TypedDict, total=False):
    """`AttentionKeywords` without mask, for functions that take mask by position."""

    mask_means: MaskMeans | None
    mask_dims: MaskDims | None
    bias: BiasLike | None
    is_causal: bool
    window: int | None
    scale: float | None
    softcap: float | None
    sinks: SinksLike | None


class AttentionKeywords(KeywordsBesideMask, total=False):
    """The keywords that `Attention`, `from_scores` and `scaled_dot_product_attention` share: see `Attention`."""

    mask: MaskLike | None


class LayeredKeywords(TypedDict, total=False):
    """`AttentionKeywords` for a stack of layers: one value for all, or a list with one for each."""

    mask: MaskLike | Sequence[MaskLike | None] | None
    mask_means: MaskMeans | Sequence[MaskMeans | None] | None
    mask_dims: MaskDims | Sequence[MaskDims | None] | None
    bias: BiasLike | Sequence[BiasLike | None] | None
    is_causal: bool | Sequence[bool]
    window: int | Sequence[int | None] | None
    scale: float | Sequence[float | None] | None
    softcap: float | Sequence[float | None] | None
    sinks: SinksLike | Sequence[SinksLike | None] | None
    dims: str | Sequence[str | None] | None


@dataclass(frozen=True, eq=False)
class AttentionOptions:
    """The keywords of `Attention` as the user gave them, and masks that `what_if` adds.

    extra_masks: named masks without a keyword; all of them apply.
    """

    mask: MaskLike | None = None
    mask_means: MaskMeans | None = None
    mask_dims: MaskDims | None = None
    bias: BiasLike | None = None
    is_causal: bool = False
    window: int | None = None
    scale: float | None = None
    softcap: float | None = None
    sinks: SinksLike | None = None
    extra_masks: tuple[tuple[str, Mask], ...] = ()

    @classmethod
    def of(cls, keywords: Mapping[str, Any]) -> AttentionOptions:
        """Make options from the keywords of a call.

        Raises:
            TypeError: a keyword is unknown; the message names the closest one.

        >>> AttentionOptions.of({"is_causal": True, "window": 4}).describe()
        ('causal', 'window 4')
        """
        refuse_unknown(keywords, KEYWORDS)
        return cls(**keywords)

    def detached(self) -> AttentionOptions:
        """Return the same options with detached tensors."""
        return replace(self, mask=detached(self.mask), bias=detached(self.bias), sinks=detached(self.sinks))

    def describe(self) -> tuple[str, ...]:
        """Return the options that differ from the default, each as a word or two."""
        given: dict[str, Any] = {
            "causal": self.is_causal,
            f"window {self.window}": self.window,
            "mask added" if "float" in str(getattr(self.mask, "dtype", "")) else "masked": self.mask is not None,
        }
        given |= {"biased": self.bias is not None, f"softcap {self.softcap}": self.softcap}
        given |= {"learned sinks": self.sinks is not None}
        extra = ("causal, lower right" if name == "causal" else str(mask) for name, mask in self.extra_masks)
        return (*(word for word, there in given.items() if there), *extra)


OPTIONS = tuple(field for field in fields(AttentionOptions) if field.name != "extra_masks")
KEYWORDS = (*(field.name for field in OPTIONS), "dims")
F = TypeVar("F", bound=Callable[..., Any])


def with_keywords(function: F) -> F:
    """Show the keywords and their defaults in `help()` and editors, instead of **options."""
    found = inspect.signature(function)
    before = [one for one in found.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    taken = {one.name for one in before}
    named = [one for one in before if one.kind is not inspect.Parameter.KEYWORD_ONLY]
    listed = [
        inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=one.type)
        for one in OPTIONS
        if one.name not in taken
    ]
    others = [one for one in before if one.kind is inspect.Parameter.KEYWORD_ONLY]
    function.__signature__ = found.replace(parameters=[*named, *listed, *others])  # type: ignore[attr-defined]
    return function
