"""Names of torch's functions, in words."""

from __future__ import annotations

from typing import Any

PLAIN = {  # names of operators, in words
    "getitem": "an index",
    "setitem": "an assignment to a part of a tensor",
    **{f"{way}{name}": name for name in ("add", "sub", "mul", "pow", "matmul", "mod") for way in ("i", "r", "")},
    **{f"{way}{name}div": "div" for name in ("true", "floor") for way in ("i", "r", "")},
    "concat": "cat",
    "concatenate": "cat",
    "true_divide": "div",
    "divide": "div",
    "subtract": "sub",
    "mm": "matmul",
    "bmm": "matmul",
    "numpy_T": "T",
}


def function_name(func: Any) -> str:
    """Return the name of a function of torch, in words."""
    name = str(getattr(func, "__name__", "") or func)
    if name in ("__get__", "__set__"):
        name = str(getattr(getattr(func, "__self__", None), "__name__", "a property"))
    bare = name.rpartition("::")[2].partition(".")[0].strip("_") or name
    return PLAIN.get(bare, bare)
