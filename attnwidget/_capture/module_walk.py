"""The modules of a model as one list: torch's own `named_modules` hands each name up through all levels above it."""

from __future__ import annotations

from torch import nn


def named_modules(model: nn.Module, *, each_once: bool = True) -> list[tuple[str, nn.Module]]:
    """Return what `model.named_modules()` yields.

    Args:
        model: the model.
        each_once: leave out further names of a module that has several.
    """
    found: list[tuple[str, nn.Module]] = []
    seen: set[int] = set()
    left: list[tuple[str, nn.Module]] = [("", model)]
    while left:
        name, module = left.pop()
        if each_once and id(module) in seen:
            continue
        seen.add(id(module))
        found.append((name, module))
        prefix = f"{name}." if name else ""
        children = module._modules  # noqa: SLF001  # `named_children` leaves second names out
        left += [(f"{prefix}{key}", child) for key, child in reversed(children.items()) if child is not None]
    return found


def modules(model: nn.Module) -> list[nn.Module]:
    """Return what `model.modules()` yields."""
    return [module for _, module in named_modules(model)]
