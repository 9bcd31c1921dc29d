"""How large the tensors are that a computation makes."""

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attnwidget._engine.matmul import Product


class Largest(TorchDispatchMode):
    """Records the largest tensor that any operation makes or views."""

    cells = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for x in made if isinstance(made, tuple | list) else (made,):
            if isinstance(x, torch.Tensor):
                self.cells = max(self.cells, x.untyped_storage().nbytes() // x.element_size())
        return made


class PeakBytes(TorchDispatchMode):
    """Records how many bytes of the tensors that are made inside live at the same time, at most."""

    peak = 0

    def __init__(self):
        super().__init__()
        Product(torch.zeros(1, 16))  # on some processors the first of a process makes a block that nobody writes to
        self._live = {}  # bytes of each storage that was made, by its weak reference

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        made = func(*args, **(kwargs or {}))
        for x in tree_leaves(made):
            if isinstance(x, torch.Tensor) and x.untyped_storage()._cdata not in given:
                storage = x.untyped_storage()
                self._live[StorageWeakRef(storage)] = storage.nbytes()
        self._live = {ref: size for ref, size in self._live.items() if not ref.expired()}
        self.peak = max(self.peak, sum(self._live.values()))
        return made
