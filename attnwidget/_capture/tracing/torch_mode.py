"""A mode of torch that sees functions and does not change them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch.overrides import TorchFunctionMode


class WatchingMode(TorchFunctionMode):
    """A mode that only watches, and can be suspended."""

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Stop watching inside the block; this must be the last mode that was entered."""
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            self.__enter__()  # type: ignore[no-untyped-call]
