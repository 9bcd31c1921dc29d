"""How large the tensors are that a computation makes."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Largest(TorchDispatchMode):
    """Records the largest tensor that any operation makes or views."""

    cells = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for x in made if isinstance(made, tuple | list) else (made,):
            if isinstance(x, torch.Tensor):
                self.cells = max(self.cells, x.untyped_storage().nbytes() // x.element_size())
        return made
