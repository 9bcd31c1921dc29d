"""The names inside vLLM that recording needs, and nothing else in the package knows. Tried with vLLM 0.32.

Another version works if its parts have the same names and arguments; else it is refused in one sentence.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..call.observed_call import ProcessHeads

TRIED = "0.32"
ARGUMENTS = ("layer", "query", "key", "value", "kv_cache", "attn_metadata", "output")
METADATA = ("query_start_loc", "seq_lens", "causal")
LAYERS = "vllm.model_executor.layers.attention"
NULL_BLOCK = 0  # of a block table: its keys are not in the cache any more

DECODER, ENCODER_ONLY = "decoder", "encoder_only"
OTHER_LAYERS = {
    "MLAAttention": "it caches a compressed form of keys and values (MLA), which is not read",
    "CrossAttention": "it attends to another text or recording (cross-attention), whose keys are not read",
    "ChunkedLocalAttention": "it cuts the text into chunks and attends within them, which is not read",
    "StaticSinkAttention": "it adds keys of its own to the cache, which are not read",
    "RSWAAttention": "its window depends on the length of the prompt, which is not read",
    "PrefillPrefixLMAttention": "it attends forward within the prompt, which is not read",
    "MMEncoderAttention": "it attends within images or recordings before the text begins, and is not read",
}
NOT_ATTENTION = "it has no attention weights: {} keeps a state in place of keys"
UNREAD = "its class {} is not read"
NO_GRAPHS = (
    "full CUDA graphs replay the model without calling Python, so nothing would be recorded: start the engine with "
    'enforce_eager=True, or with compilation_config={"cudagraph_mode": "PIECEWISE"}'
)
SHARED_CONTEXT = (
    "the keys of a request are split over several workers (context parallelism), which is not read: start the engine "
    "with decode_context_parallel_size=1 and prefill_context_parallel_size=1"
)


def version() -> str:
    """Return the version of vLLM that is installed."""
    return str(importlib.import_module("vllm").__version__)


def changed(what: str) -> str:
    """Return the sentence that refuses a version whose inside differs."""
    return f"vLLM {version()} is not read, because {what}: install vLLM {TRIED}, with which this was tried"


class ServedRules(NamedTuple):
    """The rules of an attention layer, as its kernel takes them.

    Attributes:
        scale: of the scores.
        softcap: of the scaled scores; None without one.
        slopes: of ALiBi, (H,); None without.
        sinks: the logits of one more column, (H,); None without.
        left: how many keys before its own a query may attend to; None: all.
        right: how many keys after its own, if the call is not causal; None: all.
    """

    scale: float
    softcap: float | None
    slopes: Tensor | None
    sinks: Tensor | None
    left: int | None
    right: int | None


class ServedLayer(NamedTuple):
    """An attention layer of a worker.

    Attributes:
        name: of its module.
        module: vLLM's layer, whose `impl.forward` computes the attention.
        heads: the heads that this worker computes.
        key_source: the layer whose keys and values it uses; None: its own.
        is_encoder: whether it attends in both directions and keeps no cache.
    """

    name: str
    module: Any
    heads: ProcessHeads
    key_source: str | None
    is_encoder: bool

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """H, G, D and Dv of this worker."""
        one = self.module
        return one.num_heads, one.num_kv_heads, one.head_size, getattr(one, "head_size_v", one.head_size)

    @property
    def cache_is_rounded(self) -> bool:
        """Whether keys and values are rounded when they enter the cache, as to 8 bits."""
        kind = str(getattr(self.module, "kv_cache_dtype", "auto"))
        return kind.startswith(("fp8", "int", "nvfp", "turbo", "ultra"))

    @property
    def cache_scales(self) -> tuple[float, float]:
        """The factors of the numbers in the cache, of keys and of values."""
        return float(getattr(self.module, "_k_scale_float", 1.0)), float(getattr(self.module, "_v_scale_float", 1.0))

    def rules(self) -> ServedRules:
        """Return its rules, read anew: the sinks are loaded after the layer is made."""
        impl = self.module.impl
        cap = getattr(impl, "logits_soft_cap", None)
        slopes, sinks = getattr(impl, "alibi_slopes", None), getattr(impl, "sinks", None)
        if slopes is not None and not isinstance(slopes, Tensor):
            slopes = torch.tensor(slopes, dtype=torch.float32, device="cpu")
        left, right = _window_of(getattr(impl, "sliding_window", None))
        return ServedRules(float(impl.scale), float(cap) if cap else None, slopes, sinks, left, right)


def _window_of(given: Any) -> tuple[int | None, int | None]:
    """Return how far a window reaches to the left and to the right; backends write it as a length or as two."""
    if isinstance(given, Sequence):
        left, right = (None if side is None or side < 0 else int(side) for side in given)
        return left, right
    return (None, None) if given is None or given <= 0 else (int(given) - 1, int(given) - 1)


def refusal(worker: Any) -> str | None:
    """Return why nothing can be recorded in a worker; None if it can."""
    runner = getattr(worker, "model_runner", None)
    if runner is None or not callable(getattr(runner, "execute_model", None)):
        return changed("its worker has no model_runner.execute_model")
    if not hasattr(runner, "input_batch") and not callable(getattr(runner, "prepare_inputs", None)):
        return changed("its model runner does not show which requests a step has")
    config = getattr(worker, "vllm_config", None)
    mode = getattr(getattr(config, "compilation_config", None), "cudagraph_mode", None)
    if getattr(worker, "device", None) is not None and worker.device.type == "cuda":
        has_full = getattr(mode, "has_full_cudagraphs", None)
        if callable(has_full) and has_full():
            return NO_GRAPHS
    parallel = getattr(config, "parallel_config", None)
    split = (getattr(parallel, f"{kind}_context_parallel_size", 1) for kind in ("decode", "prefill"))
    return SHARED_CONTEXT if any(size > 1 for size in split) else None


def layers_of(worker: Any) -> tuple[dict[str, ServedLayer], dict[str, str]]:
    """Return the attention layers of a worker that are read, by name, and why others are not."""
    kinds = importlib.import_module(LAYERS)
    readable = kinds.Attention, kinds.EncoderOnlyAttention
    base = importlib.import_module("vllm.model_executor.layers.attention_layer_base").AttentionLayerBase
    size, rank = _tensor_parallel(worker)
    found: dict[str, ServedLayer] = {}
    skipped: dict[str, str] = {}
    for name, module in worker.model_runner.get_model().named_modules():
        kind = type(module).__name__
        if type(module) in readable:
            why = _why_unreadable(module)
            if why is not None:
                skipped[name] = why
                continue
            heads = ProcessHeads(rank * module.num_heads, module.num_heads, size * module.num_heads)
            source = getattr(module, "kv_sharing_target_layer_name", None)
            is_encoder = _kind_of(module) == ENCODER_ONLY
            found[_name_of(module, name)] = ServedLayer(_name_of(module, name), module, heads, source, is_encoder)
        elif kind in OTHER_LAYERS:
            skipped[name] = OTHER_LAYERS[kind]
        elif isinstance(module, base):
            skipped[name] = NOT_ATTENTION.format(kind) if "mamba" in kind.lower() else UNREAD.format(kind)
    return found, skipped


def _name_of(module: Any, name: str) -> str:
    return str(getattr(module, "layer_name", name))


def _kind_of(module: Any) -> str:
    kind = getattr(module, "attn_type", DECODER)
    return str(getattr(kind, "value", kind))


def _why_unreadable(module: Any) -> str | None:
    """Return why a layer of a readable class is not read; None if it is."""
    if _kind_of(module) not in (DECODER, ENCODER_ONLY):
        return f"its attention is of the type {_kind_of(module)!r}, which is not read"
    given = list(inspect.signature(type(module.impl).forward).parameters)
    if given and given[0] == "self":
        given = given[1:]
    if tuple(given[: len(ARGUMENTS)]) != ARGUMENTS:
        return changed(f"{type(module.impl).__name__}.forward takes {', '.join(given)}")
    if getattr(module, "use_alibi_sqrt", False):
        return "its ALiBi takes the square root of distances, which is not read"
    return None


def _tensor_parallel(worker: Any) -> tuple[int, int]:
    """Return how many workers share the heads, and the number of this one."""
    size = int(getattr(worker.vllm_config.parallel_config, "tensor_parallel_size", 1))
    return size, int(getattr(worker, "rank", 0)) % size


def pipeline_size(worker: Any) -> int:
    """Return over how many workers the layers are split."""
    return int(getattr(worker.vllm_config.parallel_config, "pipeline_parallel_size", 1))


def workers_of(worker: Any) -> int:
    """Return how many workers share the machine's memory."""
    return max(1, int(getattr(worker.vllm_config.parallel_config, "world_size", 1)))


def image_token_of(worker: Any) -> int | None:
    """Return the id that stands for a patch of an image in a prompt; None if the model reads no images."""
    config = getattr(worker.model_runner.model_config, "hf_config", None)
    found = (getattr(config, name, None) for name in ("image_token_id", "image_token_index"))
    return next((one for one in found if isinstance(one, int)), None)


class NewRequest(NamedTuple):
    """A request as a worker knows it.

    Attributes:
        id: given by the engine; it ends with eight random characters.
        prompt: the ids of its prompt; None if it came as embeddings.
        known: the ids of all its tokens when recording began, the prompt first.
        adapter: the name of its LoRA adapter, or None.
        sampling: its `SamplingParams`, or None.
    """

    id: str
    prompt: list[int] | None
    known: list[int]
    adapter: str | None
    sampling: Any


def new_requests(scheduled: Any) -> list[NewRequest]:
    """Return the requests that a step has for the first time."""
    return [_request_of(one.req_id, one) for one in scheduled.scheduled_new_reqs]


def running_request(runner: Any, name: str) -> NewRequest:
    """Return a request that was running before recording began."""
    known = getattr(runner, "requests", {}).get(name)
    if known is not None:
        found = _request_of(name, known)
        return found._replace(known=[*found.known, *(one for one in known.output_token_ids if one >= 0)])
    states = getattr(runner, "req_states", None)
    place = None if states is None else states.req_id_to_index.get(name)
    if states is None or place is None:
        return NewRequest(name, None, [], None, None)
    count = int(states.prompt_len.np[place])
    known_ids = states.all_token_ids.gpu[place, :count].tolist()
    return NewRequest(name, known_ids, list(known_ids), None, None)


def _request_of(name: str, one: Any) -> NewRequest:
    prompt = None if one.prompt_token_ids is None else list(one.prompt_token_ids)
    adapter = getattr(getattr(one, "lora_request", None), "lora_name", None)
    known = list(getattr(one, "prefill_token_ids", None) or prompt or ())
    return NewRequest(name, prompt, known, adapter, getattr(one, "sampling_params", None))


def drafted(scheduled: Any) -> Mapping[str, Sequence[int]]:
    """Return the draft tokens of a step, by request."""
    return scheduled.scheduled_spec_decode_tokens or {}


def requests_in_order(runner: Any, batch: Any) -> list[str]:
    """Return the requests of the running step, in the order of its tokens.

    Args:
        runner: of the worker.
        batch: what `prepare_inputs` has returned, of a runner that has one.
    """
    return [str(name) for name in (runner.input_batch if batch is None else batch).req_ids]


def tokens_of(runner: Any, batch: Any, count: int) -> Tensor:
    """Return a copy of the token ids of the running step, (count,)."""
    given = runner.input_ids if batch is None else batch.input_ids
    return (given if isinstance(given, Tensor) else given.gpu)[:count].clone()


class StepPlaces(NamedTuple):
    """Where the tokens of each request of a step are.

    Attributes:
        edges: the first token of each, and the number of all.
        lengths: the length of each text with these tokens.
    """

    edges: tuple[int, ...]
    lengths: tuple[int, ...]

    @classmethod
    def of(cls, metadata: Any, requests: int) -> StepPlaces:
        """Return the places of a step's requests; ValueError if the backend does not show them."""
        lacking = next((name for name in METADATA if not hasattr(metadata, name)), None)
        if lacking is not None:
            raise ValueError(
                f"the attention backend does not show its {lacking} ({type(metadata).__name__}): start the engine with "
                'attention_backend="FLASH_ATTN" or "TRITON_ATTN"'
            )
        edges, lengths = metadata.query_start_loc[: requests + 1], metadata.seq_lens[:requests]
        return cls(tuple(edges.tolist()), tuple(lengths.tolist()))


def is_causal(metadata: Any) -> bool:
    """Return whether a call is causal; ValueError if that differs by request or by image."""
    mixed = getattr(metadata, "dynamic_causal", None)
    ranges = [getattr(metadata, name, None) for name in ("mm_prefix_range", "mm_prefix_query_range_tensor")]
    if mixed is not None or isinstance(metadata.causal, Tensor):
        raise ValueError("some of its requests are causal and others are not in one step, which is not read")
    if any(one is not None for one in ranges):
        raise ValueError("the tokens of an image attend to each other in both directions, which is not read")
    return bool(metadata.causal)


class CacheBlocks(NamedTuple):
    """Where a request's keys are in the cache of one layer.

    Attributes:
        table: the numbers of its blocks, in the order of its text.
        slots: of the tokens of the running step, -1 where there is none.
    """

    table: Tensor
    slots: Tensor


def cache_blocks(metadata: Any, row: int) -> CacheBlocks | None:
    """Return the blocks of a request; None if the backend does not show them."""
    table, slots = getattr(metadata, "block_table", None), getattr(metadata, "slot_mapping", None)
    return None if table is None or slots is None else CacheBlocks(table[row], slots)


CACHE_TYPES = {"e5m2": torch.float8_e5m2}


def cache_type(layer: ServedLayer) -> torch.dtype:
    """Return the type of the numbers in a rounded cache, whose tensor may hold them as bytes."""
    kind = str(layer.module.kv_cache_dtype)
    return next((dtype for name, dtype in CACHE_TYPES.items() if name in kind), torch.float8_e4m3fn)


# In the notebook.


def in_this_process(engine: Any) -> bool:
    """Return whether the engine of an `LLM` runs in the process of the notebook."""
    return type(getattr(engine, "engine_core", None)).__name__ == "InprocClient"


def engine_of(model: Any) -> Any:
    """Return the engine of an `LLM`, an `LLMEngine` or an `AsyncLLM`; None for anything else."""
    if type(model).__module__.partition(".")[0] != "vllm" and not _is_of_vllm(model):
        return None
    engine = getattr(model, "llm_engine", model)
    return engine if callable(getattr(engine, "collective_rpc", None)) and hasattr(engine, "engine_core") else None


def _is_of_vllm(model: Any) -> bool:
    return any(one.__module__.partition(".")[0] == "vllm" for one in type(model).__mro__)


def extension_of(engine: Any) -> str:
    """Return the class that the workers of an engine were extended with; "" for none."""
    return str(getattr(engine.vllm_config.parallel_config, "worker_extension_cls", "") or "")


def data_parallel_size(engine: Any) -> int:
    """Return how many engines share the requests."""
    return int(getattr(engine.vllm_config.parallel_config, "data_parallel_size", 1))


def tokenizer_of(model: Any) -> Any:
    """Return the tokenizer of an engine; None if it has none."""
    engine = engine_of(model)
    found = getattr(engine, "tokenizer", None)
    if found is None:
        found = getattr(getattr(engine, "output_processor", None), "tokenizer", None)
    return found


def finished_ids(processor: Any, outputs: Sequence[Any], known: dict[str, list[int]]) -> None:
    """Add the tokens that a step of the engine gave to the known answers, by request.

    A request that has ended, as by a stop string, takes no more of them.

    Args:
        processor: of the engine's outputs, before it has read these.
        outputs: of the step.
        known: the answers so far.
    """
    for one in outputs:
        if one.request_id in processor.request_states:
            known.setdefault(one.request_id, []).extend(one.new_token_ids)


def is_rounded_alike(read: Tensor, given: Tensor, *, rounded: bool) -> bool:
    """Return whether numbers from a cache are those that were written into it, rounded if the cache rounds."""
    if not rounded:
        return torch.equal(read, given)
    apart, size = (read.float() - given.float()).abs(), given.float().abs()
    return bool((apart <= 0.13 * size + 2**-6 * float(size.max() if size.numel() else math.inf)).all())
