"""A spy of our own: what attention a model computes, as torch's lowest operations tell it, without attnwidget.

It sees every operation below torch's functions (ATen), so that neither a module's name nor the way its code is written
matters. A kernel of attention is computed again in float64 from its arguments. Elsewhere it follows the product of two
activations through a softmax, or another function that is not linear, to a second product: that is an attention.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MOST_HEADS = 16
PRODUCTS = {"bmm", "mm", "baddbmm", "addmm", "matmul", "linear"}
SOFTMAX = {"_softmax", "_safe_softmax", "special_softmax", "softmax"}
NOT_LINEAR = {
    "exp",
    "exp_",
    "exp2",
    "sigmoid",
    "sigmoid_",
    "_log_softmax",
    "relu",
    "relu_",
    "softplus",
    "elu",
    "square",
    "pow",
    "log_softmax",
}
REDUCTIONS = {
    "sum",
    "mean",
    "amax",
    "max",
    "min",
    "logsumexp",
    "linalg_vector_norm",
    "norm",
    "var_mean",
    "var",
    "std",
    "argmax",
    "prod",
}
RANDOM = {"native_dropout", "bernoulli_", "dropout", "_fused_dropout"}


@dataclass(eq=False)
class SeenAttention:
    """An attention that ran.

    Attributes:
        kind: "kernel", "softmax", or "other" where the weights come of another function than a softmax.
        weights: float64, (matrices, queries, keys), in the order of the model's own tensor.
        sizes: of the model's own tensor, queries and keys last.
        modules: the names of the modules that were running, the innermost first.
        forward: in which call of the model.
        met: whether the weights have met values.
        changed: whether what met the values was not the softmax's result.
        largest: the largest finite score, in size.
        dropped: whether some weights were set to 0 at random in between.
    """

    kind: str
    weights: Tensor
    sizes: tuple[int, ...]
    modules: tuple[str, ...]
    forward: int
    product: bool = True
    met: bool = False
    changed: bool = False
    largest: float = 0.0
    dropped: bool = False
    dtype: torch.dtype = torch.float32  # the shortest on the way from q and k
    empty_rows: Tensor | None = None  # (matrices, queries): rows in which all is blocked


@dataclass(eq=False)
class Trace:
    """What is known of a tensor: scores of a product; weights, once a function that is not linear was applied."""

    seen: SeenAttention | None = None
    not_linear: bool = False
    dropped: bool = False
    dtype: torch.dtype = torch.float32
    product: bool = True
    modules: tuple[str, ...] = ()


class Spy(TorchDispatchMode):
    """Collects the attention of one model while it is entered.

    Attributes:
        seen: every attention, in the order in which its weights were computed.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.seen: list[SeenAttention] = []
        self.forwards = 0
        self._model = model
        self._names = {id(module): name for name, module in model.named_modules()}
        self._fixed = {_place(x) for x in (*model.parameters(), *model.buffers()) if _readable(x)} - {0}
        self._traces: dict[int, Trace] = {}
        self._alive: list[Any] = []  # so that no memory is used twice
        self._open: list[str] = []
        self._hooks: list[Any] = []
        self._busy = False
        self._constants: set[int] = set()  # of numbers made of nothing that is given to the model
        self._random: set[int] = set()  # of numbers drawn at random, as dropout draws them

    def __enter__(self) -> Any:
        before = nn.modules.module.register_module_forward_pre_hook(self._begin)
        after = nn.modules.module.register_module_forward_hook(self._end, always_call=True)
        self._hooks = [before, after]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        super().__exit__(*error)
        self._traces.clear()
        self._alive.clear()

    def _begin(self, module: nn.Module, _: Any) -> None:
        if id(module) in self._names:
            self._open.append(self._names[id(module)])
            if module is self._model and self._open.count("") == 1:
                self.forwards += 1

    def _end(self, module: nn.Module, *_: Any) -> None:
        if id(module) in self._names and self._open:
            self._open.pop()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.split("::")[-1]
        result = func(*args, **kwargs)
        if self._busy:
            return result
        self._busy = True
        try:
            with torch.no_grad():
                self._note(name, result, args, kwargs)
        finally:
            self._busy = False
        return result

    def _note(self, name: str, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if "scaled_dot_product" in name and "backward" not in name:
            self._kernel(name, args, kwargs)
            return
        given = [x for x in tree_leaves((args, kwargs)) if _readable(x)]
        made = [x for x in tree_leaves(result) if _readable(x)]
        if name.endswith("_like") or name.startswith("new_"):
            return  # of the size only
        if name in RANDOM and given and made and _place(given[0]) not in self._traces:
            self._keep(made)
            self._random.update(map(_place, made))
        if made and all(_place(x) in self._constants for x in given):
            self._keep(made)
            self._constants.update(map(_place, made))
            return
        self._constants.difference_update(map(_place, made))
        if not made or not given:
            return
        if name == "_to_copy" and _place(given[0]) in self._fixed:  # a parameter in another type
            self._keep(made)
            self._fixed.update(map(_place, made))
            return
        if name in PRODUCTS:
            self._product(name, made[0], given)
            return
        known = [(x, self._traces[_place(x)]) for x in given if _place(x) in self._traces]
        if name in SOFTMAX:
            self._softmax(made[0], given[0], int(args[1]), known[0][1] if known else None)
            return
        drawn = any(_place(x) in self._random for x in given)
        if not known:
            if drawn:
                self._keep(made)
                self._random.update(map(_place, made))
            return
        trace = next((one for _, one in known if one.seen is not None), known[0][1])
        if "convolution" in name and trace.seen is None and trace.not_linear:
            return  # features of a next layer
        weights = next(x for x, one in known if one is trace)
        if name == "mul" and trace.seen is not None and weights.shape[-1] == 1 and made[0].numel() > weights.numel():
            self._met(trace, weights.squeeze(-1), False)  # values are weighted one by one, to be summed up
            return
        drawn = drawn or name in RANDOM
        if name in NOT_LINEAR or drawn:
            trace = replace(
                trace,
                not_linear=trace.not_linear or name in NOT_LINEAR,
                dropped=trace.dropped or drawn,
                modules=trace.modules or tuple(reversed(self._open)),
            )
        for x in made:
            wide = x.dtype.is_floating_point and not _is_reduced(name, args)
            if (wide and _place(x) not in self._traces) or (name in NOT_LINEAR | RANDOM and _place(x) in self._traces):
                self._keep([x])
                self._traces[_place(x)] = trace

    def _keep(self, tensors: list[Tensor]) -> None:
        self._alive.extend(x.untyped_storage() for x in tensors)

    def _product(self, name: str, result: Tensor, given: list[Tensor]) -> None:
        one, other = given[-2:]
        known = [(x, self._traces.get(_place(x))) for x in (one, other)]
        fixed = any(_place(x) in self._fixed | self._constants for x in (one, other))
        for at, (x, trace) in enumerate(known):
            if fixed and trace is not None:
                mixer = one if at else other
                if result.numel() == x.numel() and mixer.shape[-1] == mixer.shape[-2] <= MOST_HEADS:
                    self._keep([result])  # heads that are mixed by a parameter
                    self._traces[_place(result)] = trace
                return
            if trace is not None and trace.seen is not None:
                self._met(trace, x, bool(at))
                return
            if trace is not None and trace.not_linear:
                weights = (x.mT if at else x).detach().double().clone()
                self.seen.append(
                    SeenAttention(
                        "other",
                        weights.reshape(-1, *weights.shape[-2:]),
                        tuple(weights.shape),
                        trace.modules,
                        self.forwards,
                        trace.product,
                        True,
                        dropped=trace.dropped,
                        dtype=trace.dtype,
                    )
                )
                return
        if fixed or min(result.shape[-2:], default=0) < 1 or not result.dtype.is_floating_point:
            return
        self._keep([result])
        self._traces[_place(result)] = Trace(dtype=result.dtype)

    def _met(self, trace: Trace, operand: Tensor, transposed: bool) -> None:
        seen = trace.seen
        assert seen is not None
        if operand.ndim < 2:
            return
        seen.met, seen.dropped = True, seen.dropped or trace.dropped
        if seen.dropped:
            return
        x = (operand.mT if transposed else operand).detach().double()
        n = seen.weights.numel()
        plain = seen.weights.nan_to_num()
        near = 1e-3 if operand.dtype is not torch.float32 else 1e-5
        if x.numel() == n:
            for y in (x, x.mT):
                if y.numel() == n and bool((y.reshape(plain.shape).nan_to_num() - plain).abs().max() < near * 10):
                    return
            # The same matrices in another order are not changed ones.
            alike = x.ndim == 3 and x.shape[1:] == plain.shape[1:]
            if alike and all(
                bool(((plain - one).abs().flatten(1).amax(1) < near * 10).any()) for one in x.nan_to_num()
            ):
                return
        seen.changed = True
        seen.weights, seen.sizes, seen.empty_rows = x.reshape(-1, *x.shape[-2:]).clone(), tuple(x.shape), None

    def _softmax(self, result: Tensor, x: Tensor, axis: int, trace: Trace | None) -> None:
        if x.ndim < 2 or x.shape[axis] < 1:
            return
        scores = x.detach().double().movedim(axis, -1)
        finite = scores[torch.isfinite(scores) & (scores.abs() < 1e4)]
        largest = float(finite.abs().max()) if finite.numel() else 0.0
        dtype = x.dtype if trace is None else min(trace.dtype, x.dtype, key=lambda one: one.itemsize)
        seen = SeenAttention(
            "softmax",
            scores.softmax(-1).reshape(-1, *scores.shape[-2:]),
            tuple(scores.shape),
            tuple(reversed(self._open)),
            self.forwards,
            trace is not None,
            largest=largest,
            dtype=dtype,
            empty_rows=((scores <= -9e3).all(-1) | scores.isnan().any(-1)).reshape(-1, scores.shape[-2]),
        )
        self.seen.append(seen)
        self._keep([result])
        self._traces[_place(result)] = Trace(seen, True, dtype=dtype)

    def _kernel(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        q, k = (x.detach().double() for x in args[:2])
        rest = list(args[3:])
        mask, causal, scale, dropout = kwargs.get("attn_mask"), False, kwargs.get("scale"), 0.0
        if "flash_attention_for_cpu" in name:
            dropout, causal = (*rest, *[0.0, False][len(rest) :])[:2]
        elif "math" in name:
            mask, dropout, causal = (*rest, *[None, 0.0, False][len(rest) :])[:3]
        else:
            raise NotImplementedError(name)
        causal, dropout = kwargs.get("is_causal", causal), kwargs.get("dropout_p", dropout)
        if k.shape[-3] != q.shape[-3]:
            k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
        scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else float(scale))
        largest = float(scores.abs().max()) if scores.numel() else 0.0
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask.double()
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
        self.seen.append(
            SeenAttention(
                "kernel",
                scores.softmax(-1).reshape(-1, *scores.shape[-2:]),
                tuple(scores.shape),
                tuple(reversed(self._open)),
                self.forwards,
                met=True,
                largest=largest,
                dropped=bool(dropout),
                dtype=args[0].dtype,
                empty_rows=(scores <= -9e3).all(-1).reshape(-1, scores.shape[-2]),
            )
        )


def _readable(x: Any) -> bool:
    return (
        type(x) in (Tensor, nn.Parameter, nn.Buffer)
        and x.layout is torch.strided
        and x.device.type == "cpu"
        and not x.is_nested
    )


def _is_reduced(name: str, args: tuple[Any, ...]) -> bool:
    """Return whether an operation sums up the last axis, so that what is left is neither scores nor weights."""
    if name not in REDUCTIONS:
        return False
    axes = args[1] if len(args) > 1 else []
    axes = [axes] if isinstance(axes, int) else axes
    return not isinstance(axes, list | tuple) or not axes or any(axis in (-1, args[0].ndim - 1) for axis in axes)


def _place(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


@dataclass
class Spied:
    """All that a spy saw of one run."""

    seen: list[SeenAttention]
    forwards: int
    output: Any = field(default=None, repr=False)

    @property
    def attention(self) -> list[SeenAttention]:
        """Return what is attention beyond doubt: scores that are a product, weights that met values.

        An indexer scores which keys a sparse attention takes; what its scores meet are weights of heads, not values.
        """
        return [one for one in self.seen if one.product and one.met and "indexer" not in "".join(one.modules[:1])]


def spy_on(model: nn.Module, run: Any) -> Spied:
    """Run a model under a spy, without torch's shortcuts for inference."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with Spy(model) as spy:
            output = run()
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return Spied(spy.seen, spy.forwards, output)
