"""Compare one capture with what the spy saw: right, in part, refused, wrong or vanished."""

from __future__ import annotations

import itertools
import random
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from sweep_spy import SeenAttention, Spied, spy_on
from torch import Tensor, nn

from attnwidget import capture

ALONE = 10  # times that a model which failed in two threads is tried without capture
ROUNDING = {torch.float64: 1e-9, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@dataclass
class Case:
    """A model, and how it is called.

    Attributes:
        model: the module.
        args, keywords: what it is called with; two samples, on the first axis of every tensor, or on `batch_axis`.
        call: calls it; None: by its `__call__`.
        cross: how many attentions are cross-attention; None: not known.
        generate: takes keywords of transformers' `generate`, and writes new tokens.
        channels: a pattern of the names of modules whose attention is over channels, not over places.
    """

    model: nn.Module
    args: tuple[Any, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)
    call: Callable[..., Any] | None = None
    cross: int | None = None
    generates: bool = False
    channels: str = "$^"
    batch_axis: int = 0
    single: bool = True  # whether the first sample can be computed alone
    trains: bool = True

    def run(self, args: Any = None, keywords: Any = None) -> Any:
        """Call the model."""
        args, keywords = self.args if args is None else args, self.keywords if keywords is None else keywords
        torch.manual_seed(1)
        random.seed(1)
        numpy.random.seed(1)  # noqa: NPY002  (what some models draw from)
        return (self.call or self.model)(*args, **keywords)

    def alone(self) -> tuple[Any, Any]:
        """Return what it is called with for the first sample only."""
        return torch.utils._pytree.tree_map(self._first, (self.args, self.keywords))

    def _first(self, x: Any) -> Any:
        if isinstance(x, Tensor) and x.ndim > self.batch_axis and x.shape[self.batch_axis] == 2:
            return x.narrow(self.batch_axis, 0, 1)
        return x


@dataclass
class Shown:
    """A map that capture shows."""

    name: str
    weights: Tensor  # (B, H, Q, K), float64
    cross: bool
    forward: int = 0
    sinks: bool = False

    def distance(self, one: SeenAttention) -> float | None:
        """Return the largest difference of what is shown and one that ran; None if their sizes differ.

        A learned sink may be computed as a factor of the output; the weights are then those among the keys alone.
        """
        size = distance(self.weights, one)
        if size is None or not self.sinks:
            return size
        among_keys = self.weights / self.weights.sum(-1, keepdim=True).clamp(min=1e-30)
        return min(size, distance(among_keys, one) or 0.0)


def shown_maps(cap: Any) -> list[Shown]:
    """Return all that a capture shows."""
    found = []
    for number, forward in enumerate(cap):
        crossing = {name for name, record in forward._records.items() if record.cross}
        for name, attention in forward.calls.items():
            found.append(Shown(name, all_weights(attention), name in crossing, number, attention.sinks is not None))
    return found


def all_weights(attention: Any) -> Tensor:
    """Return (B, H, Q, K) in float64, as attnwidget computes it."""
    B, H = attention.shape[:2]
    blocks = [[attention.block(batch=b, head=h).double() for h in range(H)] for b in range(B)]
    return torch.stack([torch.stack(one) for one in blocks])


def check(case: Case, option: str) -> dict[str, Any] | None:
    """Capture a model under one option, and compare; None where the option does not apply."""
    if option in ("generate", "beams"):
        return check_generated(case, option) if case.generates else None
    training = option == "train"
    if training and not (
        case.trains and any(isinstance(m, nn.Dropout) or getattr(m, "dropout", 0) for m in case.model.modules())
    ):
        return None
    keywords: dict[str, Any] = {}
    if option in ("values", "clone"):
        keywords = {option: False}
    if option in ("bfloat16", "float16"):
        keywords = {"dtype": getattr(torch, option)}
    case.model.train(training)
    try:
        if option == "threads":
            return check_threads(case)
        with torch.no_grad():
            try:
                plain = case.run()
            except Exception:
                return None  # the model does not run in this mode
            spied = spy_on(case.model, case.run)
            refusal, cap = None, capture(case.model, **keywords)
            try:
                with cap:
                    output = case.run()
            except (ValueError, RuntimeError) as error:
                if not str(error).startswith(("no attention", "none of")):
                    raise
                refusal, output = str(error), plain
            kept = keywords.get("dtype")
            single = single_run(case) if option == "default" and case.single else None
            result = compare(case, spied, cap, refusal, kept, single)
        if not same(plain, output) and result["status"] not in ("wrong", "vanished"):
            result["output"] = f"differs by {difference(plain, output):.2g}"
        return result
    finally:
        case.model.eval()


def single_run(case: Case) -> Spied | None:
    args, keywords = case.alone()
    try:
        return spy_on(case.model, lambda: case.run(args, keywords))
    except Exception:  # the model needs two samples
        return None


def bound_of(one: SeenAttention, kept: torch.dtype | None) -> float:
    own = 0 if one.dtype.itemsize > 2 else ROUNDING[one.dtype] * (2 + one.largest)
    return (
        own + ROUNDING[torch.float32] * (8 + one.largest) + (0 if kept is None else ROUNDING[kept] * (2 + one.largest))
    )


def compare(
    case: Case, spied: Spied, cap: Any, refusal: str | None, kept: torch.dtype | None, single: Spied | None
) -> dict[str, Any]:
    """Return the status of a capture of one call of the model."""
    ran, maps = spied.attention, shown_maps(cap)
    skipped = dict(cap.skipped)
    left = list(spied.seen)
    wrong, largest, found = [], 0.0, []
    for shown in maps:
        best: tuple[float, SeenAttention | None] = (float("inf"), None)
        for one in left:
            size = shown.distance(one)
            if size is None:
                continue
            if size <= bound_of(one, kept):
                best = (size, one)
                break
            if size < best[0]:
                best = (size, one)
        size, one = best
        if one is None or size > bound_of(one, kept):
            parts = of_pieces(shown, left, kept)
            if parts:
                left = [one for one in left if one not in parts]
                continue
        if one is None:
            wrong.append(f"{shown.name}: no attention of {tuple(shown.weights.shape)} ran")
            continue
        if size > bound_of(one, kept):
            wrong.append(
                f"{shown.name}: differs by {size:.3g} (scores up to {one.largest:.3g}, bound {bound_of(one, kept):.1g})"
            )
        elif re.search(case.channels, shown.name):
            wrong.append(f"{shown.name}: channels are shown as places")
        else:
            left.remove(one)
            largest = max(largest, size)
            found.append((shown, one))
    if single is not None and not wrong:
        wrong += samples_mixed(found, spied, single)
    missing = [one for one in ran if one in left and not is_named(one, skipped)]
    crossing = sum(shown.cross for shown in maps if case.cross or shown.weights.shape[2] > 1)  # one query pools
    if (
        case.cross is not None
        and not missing
        and not wrong
        and refusal is None
        and not skipped
        and crossing != case.cross
    ):
        wrong.append(f"{crossing} of {len(maps)} are called cross-attention, not {case.cross}")
    forwards = len(cap)
    numbers = {"ran": len(ran), "shown": len(maps), "off": float(f"{largest:.2g}")}
    loose = [one for one in spied.seen if one not in ran and one in left and not is_named(one, skipped)]
    if loose:
        numbers["loose"] = len(loose)
    if wrong:
        return {"status": "wrong", "why": "; ".join(wrong[:3]), "count": len(wrong), **numbers}
    if refusal is not None:
        if not ran:
            return {"status": "none", "why": refusal, **numbers}
        return {"status": "refused", "why": refusal, **numbers}
    if missing:
        names = dict.fromkeys((one.modules or ("?",))[0] for one in missing)
        kinds = dict.fromkeys(f"{one.kind} {one.sizes}{' changed' if one.changed else ''}" for one in missing)
        return {
            "status": "vanished",
            "why": f"{len(missing)} of {len(ran)}: {', '.join(names)} ({', '.join(kinds)})"[:300],
            **numbers,
        }
    if forwards > 1 and spied.forwards == 1 and maps:
        return {"status": "wrong", "why": f"one forward pass is shown as {forwards}", **numbers}
    if skipped:
        return {
            "status": "in part" if maps else "refused",
            "why": next(iter(skipped.values())),
            "skipped": len(skipped),
            **numbers,
        }
    return {"status": "right" if maps else "none", **numbers}


def is_named(one: SeenAttention, skipped: dict[str, str]) -> bool:
    """Return whether `cap.skipped` names the module that computed it, or one around it, or in it."""
    names = [re.sub(r"^forward \d+: | #\d+$", "", name) for name in skipped]
    own = [name for name in one.modules if name]
    if not own:
        return bool(names)
    return any(own[0] == name or own[0].startswith(f"{name}.") or name.startswith(f"{own[0]}.") for name in names)


def distance(shown: Tensor, one: SeenAttention) -> float | None:
    """Return the largest difference of a shown map and one that ran; None if their sizes differ."""
    B, H, Q, K = shown.shape
    if Q == 1 and one.sizes == (B * H, K):  # pooled: a row for each sample
        one = replace(one, weights=one.weights.reshape(B * H, 1, K), sizes=(B * H, 1, K), empty_rows=None)
    if one.weights.shape[-2:] != (Q, K) or one.weights.shape[0] != B * H:
        return None
    found = [shown.reshape(B * H, Q, K), shown.transpose(0, 1).reshape(B * H, Q, K)]
    for order in itertools.permutations(range(len(one.sizes) - 2)) if len(one.sizes) == 5 else ():  # blocks, and heads
        sizes = [one.sizes[axis] for axis in order]
        back = [*(order.index(axis) for axis in range(len(order))), len(order), len(order) + 1]
        found.append(shown.reshape(*sizes, Q, K).permute(back).reshape(B * H, Q, K))
    return min(_off(x, one) for x in found)


def of_pieces(shown: Shown, left: list[SeenAttention], kept: torch.dtype | None) -> list[SeenAttention]:
    """Return the parts of an attention that a module computed in pieces, if they are what is shown; else none."""
    (Q, K), own = shown.weights.shape[2:], re.sub(r" #\d+$", "", shown.name)
    parts = [one for one in left if own in one.modules[:1]]
    wholes = []
    if len(parts) < 2:
        return []
    if sum(one.weights.shape[1] for one in parts) == Q:  # one after another along the queries
        rows = [F.pad(one.weights, (0, K - one.weights.shape[2])) for one in parts if one.weights.shape[2] <= K]
        if len(rows) == len(parts) and len({len(one) for one in rows}) == 1:
            wholes.append(torch.cat(rows, 1))
    if all(one.weights.shape == parts[0].weights.shape for one in parts):  # heads, or samples
        each = torch.stack([one.weights for one in parts])
        wholes += [each.flatten(0, 1), each.transpose(0, 1).flatten(0, 1)]
    largest = max(parts, key=lambda one: one.largest)
    for weights in wholes:
        whole = replace(largest, weights=weights, sizes=tuple(weights.shape), empty_rows=None)
        size = shown.distance(whole)
        if size is not None and size <= bound_of(whole, kept):
            return parts
    return []


def _off(found: Tensor, one: SeenAttention) -> float:
    difference = (found - one.weights).abs().nan_to_num(0.0)
    if one.empty_rows is not None:  # of a row in which all is blocked, kernels make this or that
        difference = difference * ~one.empty_rows[..., None]
    return float(difference.max()) if difference.numel() else 0.0


def samples_mixed(found: list[tuple[Shown, SeenAttention]], spied: Spied, single: Spied) -> list[str]:
    """Return what is shown of the first sample, but is not what the model computes for that sample alone."""
    if len(spied.seen) != len(single.seen):
        return []
    wrong = []
    partner = {id(one): other for one, other in zip(spied.seen, single.seen, strict=True)}
    for shown, one in found:
        alone = partner[id(one)]
        n = len(alone.weights)
        if alone.weights.shape[1:] != shown.weights.shape[2:] or 2 * n != one.weights.shape[0] or one.dropped:
            continue
        # Rows, columns or windows may stand before the samples or after them, and the spy may see heads before both.
        halves = (shown.weights[: len(shown.weights) // 2], shown.weights[::2])
        firsts = [rows.flatten(0, 1) for half in halves for rows in (half, half.transpose(0, 1))]
        if min(_off(rows, alone) for rows in (one.weights[:n], one.weights[::2])) > 1e-3 * (1 + one.largest):
            continue  # the model itself computes something else for the sample alone
        if shown.weights.shape[0] * shown.weights.shape[1] != 2 * n:
            continue
        if shown.sinks:
            firsts += [first / first.sum(-1, keepdim=True) for first in firsts]
        off = min(_off(first, alone) for first in firsts if len(first) == n)
        if off > 1e-3 * (1 + one.largest):
            wrong.append(f"{shown.name}: samples and heads are mixed (differs by {off:.3g})")
    return wrong


# Options with a run of their own.


def in_two_threads(call: Callable[..., Any], *inputs: tuple[Any, Any]) -> list[Exception]:
    """Call a model in a thread for each of two inputs, begun together; return what was raised."""
    barrier, failed = threading.Barrier(2), []

    def act(args: Any, keywords: Any) -> None:
        try:
            with torch.no_grad():
                barrier.wait()
                call(*args, **keywords)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=act, args=one) for one in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed


def check_threads(case: Case) -> dict[str, Any] | None:
    """Run the model in two threads at once with other inputs: each forward pass holds the layers of one of them."""
    torch.manual_seed(5)
    other = torch.utils._pytree.tree_map(_shuffled, (case.args, case.keywords))
    with torch.no_grad():
        spied = [spy_on(case.model, case.run), spy_on(case.model, lambda: case.run(*other))]
        call = case.call or case.model
        unseeded = [call(*case.args, **case.keywords) for _ in range(2)]
        if not spied[0].attention or not same(*unseeded):
            return None
        cap, refusal, failed = capture(case.model), None, []
        try:
            with cap:
                failed = in_two_threads(call, (case.args, case.keywords), other)
        except ValueError as error:
            refusal = str(error)
        if failed and any(in_two_threads(call, (case.args, case.keywords), other) for _ in range(ALONE)):
            return None  # some keep what belongs to a call on the model: it cannot run in two threads at all
    if failed:
        return None if "thread" in str(failed[0]) else {"status": "broken", "why": f"in a thread: {failed[0]}"[:300]}
    if refusal is not None:
        return {"status": "refused", "why": refusal}
    wrong, count = [], 0
    for number, forward in enumerate(cap):
        origins: set[int] = set()
        for name, attention in forward.calls.items():
            shown = Shown(name, all_weights(attention), False, number, attention.sinks is not None)
            count += 1
            fitting = {
                i
                for i, run in enumerate(spied)
                for one in run.seen
                if (d := shown.distance(one)) is not None and d <= bound_of(one, None)
            }
            if not fitting:
                wrong.append(f"{name}: fits no attention that ran")
            elif len(fitting) == 1:
                origins |= fitting
        if len(origins) > 1:
            wrong.append(f"forward {number} holds layers of two inputs")
    if wrong:
        return {"status": "wrong", "why": "; ".join(wrong[:3]), "count": len(wrong)}
    missing = [one for run in spied for one in run.attention if not is_named(one, cap.skipped)]
    if count < len(missing) and not cap.skipped:
        return {"status": "vanished", "why": f"{count} shown of {len(missing)} that ran in two threads"}
    return {"status": "in part" if cap.skipped else "right", "shown": count}


def _shuffled(x: Any) -> Any:
    if not isinstance(x, Tensor) or x.ndim < 2 or x.dtype is torch.bool:
        return x
    if x.is_floating_point():
        return x + 0.3 * torch.randn_like(x) if x.numel() and float(x.min()) < 0 else x
    return x.flip(1) if x.unique().numel() > 2 else x


def in_steps(spied: Spied) -> list[SeenAttention]:
    """Return one map for each attention of a model that generates: the rows of all its calls, concatenated."""
    calls: dict[tuple[str, ...], list[SeenAttention]] = {}
    for one in spied.seen:
        before = [x for parts in calls.values() for x in parts if (x.modules, x.forward) == (one.modules, one.forward)]
        calls.setdefault((*one.modules, str(len(before))), []).append(one)
    maps = []
    for parts in calls.values():
        if any(len(part.weights) != len(parts[0].weights) for part in parts):
            continue
        read, befores = parts[0].weights.shape[-1] - parts[0].weights.shape[1], []
        fixed = read > 0 and len({part.weights.shape[-1] for part in parts}) == 1  # keys of another text: none is new
        for part in parts:  # a cache with a window gives the last keys that were read, a static one also those to come
            read += part.weights.shape[1]
            befores.append(0 if fixed else max(0, read - part.weights.shape[-1]))
        keys = max(before + part.weights.shape[-1] for before, part in zip(befores, parts, strict=True))
        rows = [
            torch.nn.functional.pad(part.weights, (before, keys - before - part.weights.shape[-1]))
            for before, part in zip(befores, parts, strict=True)
        ]
        empty = torch.cat([_empty_rows(part) for part in parts], 1)
        maps.append(
            replace(parts[0], weights=torch.cat(rows, 1), empty_rows=empty, largest=max(x.largest for x in parts))
        )
    return maps


def _empty_rows(seen: SeenAttention) -> Tensor:
    """Return which queries of each map may attend to nothing, (maps, queries) bool."""
    none = torch.zeros(seen.weights.shape[:2], dtype=torch.bool)
    return none if seen.empty_rows is None else seen.empty_rows.expand_as(none)


def check_generated(case: Case, option: str) -> dict[str, Any] | None:
    """Generate, and compare each returned sequence's map with that of one forward pass over it, seen by the spy."""
    model: Any = case.model
    beams = {"num_beams": 3, "num_return_sequences": 2} if option == "beams" else {}
    given = {
        name: x
        for name, x in case.keywords.items()
        if name not in ("decoder_input_ids", "labels", "use_cache", "attention_mask")
    }
    encoded = bool(getattr(model.config, "is_encoder_decoder", False))

    def act() -> Any:
        torch.manual_seed(1)
        return model.generate(**given, max_new_tokens=5, min_new_tokens=5, do_sample=False, **beams)

    with torch.no_grad():
        try:
            plain = act()
        except Exception:
            return None  # it does not generate in this way
        cap, refusal = capture(model), None
        try:
            with cap:
                output = act()
        except ValueError as error:
            if not str(error).startswith(("no attention", "none of")):
                raise
            refusal = str(error)
        if refusal is not None:
            return {"status": "refused", "why": refusal}
        if not torch.equal(plain, output):
            return {"status": "wrong", "why": "other tokens are generated"}
        if len(cap) > 1:
            return {"status": "in part", "why": f"{len(cap)} forward passes, each a map of its own"}
        step_by_step = in_steps(spy_on(model, act))
        times = 2 if beams else 1
        again = {
            name: x.repeat_interleave(times, 0) if isinstance(x, Tensor) and x.shape[:1] == (2,) else x
            for name, x in given.items()
        }
        if encoded:
            again["decoder_input_ids"] = output[:, :-1]
        else:
            again["input_ids"] = output[:, :-1]
        try:
            spied = spy_on(model, lambda: model(**again, use_cache=False))
        except Exception as error:
            return {"status": "unknown", "why": f"{type(error).__name__}: {error}"[:150]}
    maps = shown_maps(cap)
    rows = output.shape[1] - 1
    decoding = [one for one in maps if one.weights.shape[2] == rows] if encoded else maps
    wrong, largest = [], 0.0
    ran = spied.attention
    taken: set[int] = set()
    for shown in decoding:
        best = float("inf")
        for i, one in enumerate(spied.seen):
            if i in taken:
                continue
            size = shown.distance(one)
            if size is not None and size < best:
                best = size
                if size <= 20 * bound_of(one, None):
                    taken.add(i)
                    break
        if best == float("inf"):
            sizes = [tuple(one.weights.shape) for one in ran[:3]]
            wrong.append(f"{shown.name}: {tuple(shown.weights.shape)} is the shape of none of {sizes}")
        elif best > 1e-3:
            wrong.append(f"{shown.name}: differs by {best:.3g}")
        else:
            largest = max(largest, best)
    if wrong and beams:  # what attends to both sides gives no such rows in one pass
        one_by_one = check_generated(case, "generate")
        if one_by_one is None or "in steps" in one_by_one:
            return None
    off = [
        min((d for one in step_by_step if (d := distance(x.weights, one)) is not None), default=1.0) for x in decoding
    ]
    if wrong and not beams and max(off, default=1.0) < 1e-3:
        return {"status": "right", "shown": len(maps), "off": float(f"{max(off):.2g}"), "in steps": True}
    if wrong:
        return {"status": "wrong", "why": "; ".join(wrong[:3]), "count": len(wrong)}
    if not maps and not cap.skipped:
        return None
    return {"status": "in part" if cap.skipped else "right", "shown": len(maps), "off": float(f"{largest:.2g}")}


# Outputs.


def same(one: Any, other: Any) -> bool:
    return difference(one, other) == 0


def difference(one: Any, other: Any) -> float:
    """Return the largest difference of the tensors of two outputs."""
    pairs = zip(tensors_in(one), tensors_in(other), strict=False)
    sizes = [
        0.0 if torch.equal(x, y) else float((x.double() - y.double()).abs().nan_to_num(0.0).max())
        for x, y in pairs
        if x.shape == y.shape and x.numel()
    ]
    return max(sizes, default=0.0)


def tensors_in(x: Any) -> list[Tensor]:
    if isinstance(x, Tensor):
        return [x] if x.layout is torch.strided and not x.is_nested else []
    if isinstance(x, dict):
        return [y for one in x.values() for y in tensors_in(one)]
    if isinstance(x, list | tuple):
        return [y for one in x for y in tensors_in(one)]
    return []
