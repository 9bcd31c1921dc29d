"""A small engine with a paged cache that has vLLM's inside names: it computes real attention, in steps.

It stands in where vLLM is not installed. `make serving` runs the same code against vLLM itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

BLOCK, BLOCKS = 16, 64
HEADS, GROUPS, SIZE = 4, 2, 8


class AttentionLayerBase:
    """The base of layers with a cache."""


class Impl:
    """Attention over a paged cache, as a kernel for processors keeps it: keys as columns, then values."""

    def __init__(self, window: int | None, softcap: float | None, sinks: Tensor | None, slopes: Tensor | None) -> None:
        self.scale, self.sliding_window, self.logits_soft_cap = SIZE**-0.5, window or -1, softcap or 0
        self.sinks, self.alibi_slopes = sinks, slopes
        self.changes: Callable[[Tensor], Tensor] = lambda output: output  # what a kernel does beyond its rules

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Tensor,
        output_scale: Any = None,
    ) -> Tensor:
        """Attend within each request's own blocks."""
        keys, values = layer.halves()
        for row, start in enumerate(attn_metadata.query_start_loc.tolist()[:-1]):
            stop, length = int(attn_metadata.query_start_loc[row + 1]), int(attn_metadata.seq_lens[row])
            positions = torch.arange(length)
            at = attn_metadata.block_table[row][positions // BLOCK], positions % BLOCK
            k, v = (x[at[0], :, at[1]].float().repeat_interleave(HEADS // GROUPS, 1) for x in (keys, values))
            scores = torch.einsum("qhd,khd->hqk", query[start:stop].float(), k) * self.scale
            if self.logits_soft_cap:
                scores = self.logits_soft_cap * torch.tanh(scores / self.logits_soft_cap)
            own = torch.arange(length - (stop - start), length)[:, None]
            if self.alibi_slopes is not None:
                scores = scores + self.alibi_slopes[:, None, None] * (positions - own)
            hidden = positions > own
            if self.sliding_window > 0:
                hidden = hidden | (positions <= own - self.sliding_window)
            scores = scores.masked_fill(hidden, -torch.inf)
            if self.sinks is not None:
                scores = torch.cat([scores, self.sinks[:, None, None].expand(-1, stop - start, 1)], -1)
            weights = scores.softmax(-1)[..., :length]
            output[start:stop] = torch.einsum("hqk,khd->qhd", weights, v).to(output.dtype)
        output.copy_(self.changes(output))
        return output


class Attention(nn.Module, AttentionLayerBase):
    """One attention layer."""

    def __init__(self, name: str, dtype: torch.dtype = torch.float32, source: str | None = None, **rules: Any) -> None:
        super().__init__()
        self.layer_name, self.dtype, self.attn_type = name, torch.float32, "decoder"
        self.num_heads, self.num_kv_heads, self.head_size = HEADS, GROUPS, SIZE
        self.kv_cache_dtype = "auto" if dtype is torch.float32 else "fp8"
        self.kv_sharing_target_layer_name = source
        self._k_scale_float = self._v_scale_float = 1.0
        self.kv_cache = torch.zeros(BLOCKS, GROUPS, BLOCK, 2 * SIZE, dtype=dtype)
        window, softcap, sinks, slopes = (rules.get(one) for one in ("window", "softcap", "sinks", "slopes"))
        self.impl = Impl(window, softcap, sinks, slopes)

    def halves(self) -> tuple[Tensor, Tensor]:
        """Return the cached keys and values, (blocks, groups, BLOCK, size)."""
        keys, values = self.kv_cache.view(BLOCKS, GROUPS, 2 * BLOCK, SIZE).chunk(2, 2)
        return keys.view(BLOCKS, GROUPS, SIZE, BLOCK).mT, values


class EncoderOnlyAttention(Attention):
    """Attention of encoders, which this engine does not run."""


class MLAAttention(nn.Module, AttentionLayerBase):
    """A layer that is not read."""


@dataclass
class Request:
    """A request, and how far it is."""

    req_id: str
    prompt_token_ids: list[int]
    tokens: list[int] = field(default_factory=list)  # as the model reads them
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    lora_request: Any = None
    sampling_params: Any = None
    mm_features: tuple[Any, ...] = ()
    output_token_ids: list[int] = field(default_factory=list)


class Runner:
    """Runs the steps of the engine. Keys and queries of a token depend on it and on its position alone."""

    def __init__(self, layers: Sequence[nn.Module], vocabulary: int = 100) -> None:
        self.layers = nn.ModuleDict({f"{i}": layer for i, layer in enumerate(layers)})
        self.model_config = SimpleNamespace(hf_config=SimpleNamespace())
        self.input_batch = SimpleNamespace(req_ids=[])
        self.input_ids = torch.zeros(1024, dtype=torch.int64)
        self.requests: dict[str, Request] = {}
        generator = torch.Generator().manual_seed(0)
        sizes = (HEADS, GROUPS, GROUPS)
        self.tables = [[torch.randn(vocabulary, n, SIZE, generator=generator) for n in sizes] for _ in layers]
        self.forward = True  # False: the layers are not called, as in a graph that is replayed

    def get_model(self) -> nn.Module:
        """Return the model."""
        return self.layers

    def execute_model(self, scheduled: Any) -> Tensor | None:
        """Compute the attention of one step; return the output of the last layer."""
        running = [self.requests[name] for name in scheduled.num_scheduled_tokens]
        self.input_batch.req_ids = [one.req_id for one in running]
        counts = [*scheduled.num_scheduled_tokens.values()]
        ids = [token for one, n in zip(running, counts, strict=True) for token in one.tokens[one.computed :][:n]]
        self.input_ids[: len(ids)] = torch.tensor(ids)
        edges = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()])
        lengths = torch.tensor([one.computed + n for one, n in zip(running, counts, strict=True)])
        table = torch.zeros(len(running), 16, dtype=torch.int64)
        for row, one in enumerate(running):
            table[row, : len(one.blocks)] = torch.tensor(one.blocks)
        at = [
            (row, one.computed + i) for row, (one, n) in enumerate(zip(running, counts, strict=True)) for i in range(n)
        ]
        slots = torch.tensor([int(table[row, place // BLOCK]) * BLOCK + place % BLOCK for row, place in at])
        output = None
        for layer, tables in zip(self.layers.values(), self.tables, strict=True):
            if not self.forward or not isinstance(layer, Attention):
                continue
            metadata = SimpleNamespace(
                query_start_loc=edges, seq_lens=lengths, causal=True, block_table=table, slot_mapping=slots
            )
            turn = torch.tensor([0.01 * place for _, place in at])[:, None, None]
            q, k, v = (x[torch.tensor(ids)] + turn for x in tables)
            if layer.kv_sharing_target_layer_name is None:
                keys, values = layer.halves()
                keys[slots // BLOCK, :, slots % BLOCK] = k.to(keys.dtype)
                values[slots // BLOCK, :, slots % BLOCK] = v.to(values.dtype)
            else:
                source = next(
                    one for one in self.layers.values() if one.layer_name == layer.kv_sharing_target_layer_name
                )
                layer.kv_cache = source.kv_cache
                k = v = None  # type: ignore[assignment]
            output = torch.empty(len(ids), HEADS, SIZE)
            layer.impl.forward(layer, q, k, v, layer.kv_cache, metadata, output=output)
        for one, n in zip(running, counts, strict=True):
            one.computed += n
        return output


class Engine:
    """An engine whose steps a test decides, with vLLM's way to its workers."""

    def __init__(self, *layers: nn.Module, workers: dict[str, int] | None = None, device: str = "cpu") -> None:
        self.runner = Runner(layers)
        sizes = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "world_size": 1, **(workers or {})}
        self.vllm_config = SimpleNamespace(
            parallel_config=SimpleNamespace(worker_extension_cls="", data_parallel_size=1, **sizes),
            compilation_config=SimpleNamespace(cudagraph_mode=SimpleNamespace(has_full_cudagraphs=lambda: True)),
        )
        self.worker = SimpleNamespace(
            model_runner=self.runner, vllm_config=self.vllm_config, rank=0, device=torch.device(device)
        )
        self.engine_core = InprocClient()
        self.tokenizer = None
        self.output_processor = OutputProcessor()
        self._blocks = iter(range(1, BLOCKS))

    def collective_rpc(self, method: Any, args: tuple[Any, ...] = ()) -> list[Any]:
        """Call a function in the only worker."""
        return [method(self.worker, *args)]

    def add(self, name: str, prompt: Sequence[int], blocks: Sequence[int] = (), computed: int = 0) -> Request:
        """Add a request, with the blocks of a cached prefix."""
        request = Request(f"{name}-0123abcd", [*prompt], [*prompt], [*blocks], computed)
        self.runner.requests[request.req_id] = request
        self.output_processor.request_states[request.req_id] = request
        return request

    def step(self, *parts: tuple[Request, int], drafts: dict[str, list[int]] | None = None) -> Tensor | None:
        """Compute so many more tokens of each request."""
        new = []
        for request, count in parts:
            if not any(request.req_id == name for name in self._seen()):
                new.append(request)
                self._known.append(request.req_id)
            while len(request.blocks) * BLOCK < request.computed + count:
                request.blocks.append(next(self._blocks))
        scheduled = SimpleNamespace(
            scheduled_new_reqs=new,
            num_scheduled_tokens={request.req_id: count for request, count in parts},
            scheduled_spec_decode_tokens=drafts or {},
            finished_req_ids=set(),
        )
        return self.runner.execute_model(scheduled)

    def answer(self, request: Request, *tokens: int) -> None:
        """Give the user tokens of an answer, and let the model read them next."""
        request.tokens = [*request.tokens[: request.computed], *tokens]
        request.output_token_ids += tokens
        self.output_processor.process_outputs([SimpleNamespace(request_id=request.req_id, new_token_ids=[*tokens])])

    def _seen(self) -> list[str]:
        return vars(self).setdefault("_known", [])


class OutputProcessor:
    """Gives answers to their users."""

    def __init__(self) -> None:
        self.request_states: dict[str, Any] = {}

    def process_outputs(self, outputs: Sequence[Any]) -> None:
        """Take the outputs of a step."""


class InprocClient:
    """Says that the engine is in this process."""


@contextmanager
def installed() -> Iterator[None]:
    """Put modules with vLLM's names in place."""
    names = {
        "vllm": {"__version__": "0.32.0"},
        "vllm.model_executor": {},
        "vllm.model_executor.layers": {},
        "vllm.model_executor.layers.attention": {
            "Attention": Attention,
            "EncoderOnlyAttention": EncoderOnlyAttention,
            "MLAAttention": MLAAttention,
        },
        "vllm.model_executor.layers.attention_layer_base": {"AttentionLayerBase": AttentionLayerBase},
    }
    before = {name: sys.modules.get(name) for name in names}
    for name, members in names.items():
        module = ModuleType(name)
        vars(module).update(members)
        sys.modules[name] = module
    own = Engine.__module__
    Engine.__module__ = "vllm.v1.engine"  # `capture` knows engines by their package
    try:
        yield
    finally:
        Engine.__module__ = own
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
