"""Results that read well as the last line of a cell."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

from torch import Tensor


class Readable:
    """A result whose `repr`, in a cell and elsewhere, is the text that `print` shows.

    A class without its own `__str__` lists its fields, tensors by dtype and shape.
    """

    def __str__(self) -> str:
        names = self.__dataclass_fields__  # type: ignore[attr-defined]
        return listed(type(self).__name__, ((name, getattr(self, name)) for name in names))

    def __repr__(self) -> str:
        return str(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("…" if cycle else str(self))

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def listed(title: str, fields: Iterable[tuple[str, Any]]) -> str:
    """Return a title and a line for each field, with aligned values.

    >>> print(listed("Metrics", [("entropy", 1.23456), ("rows", 20), ("sink", None)]))
    Metrics
      entropy  1.235
      rows     20
      sink     none
    """
    pairs = [(name, brief(value)) for name, value in fields]
    width = max((len(name) for name, _ in pairs), default=0)
    return "\n".join([title, *(f"  {name:{width}}  {value}" for name, value in pairs)])


def brief(value: Any) -> str:
    """Return a value in a few words: a tensor by dtype and shape, a number with four digits.

    >>> import torch
    >>> brief(torch.zeros(2, 3)), brief(torch.arange(3)), brief(0.5), brief([["a", "b"], ["c"]])
    ('float32 (2, 3)', 'int64 [0, 1, 2]', '0.5', '2 lists of 2 and 1')
    """
    match value:
        case None:
            return "none"
        case Tensor():
            dtype = str(value.dtype).removeprefix("torch.")
            if value.ndim == 1 and len(value) <= 8:
                return f"{dtype} [{', '.join(brief(x) for x in value.tolist())}]"
            mean = f", mean {value.nanmean():.4g}" if value.ndim == 1 and value.is_floating_point() else ""
            return f"{dtype} {tuple(value.shape)}{mean}"
        case float():
            return f"{value:.4g}"
        case [[*_], *_]:
            lengths = [str(len(one)) for one in value]
            return f"{len(value)} list{'s' * (len(value) > 1)} of {' and '.join(dict.fromkeys(lengths))}"
        case _:
            return str(value)
