"""Weights and outputs of another run put in place: right, or refused where that run is another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import edited_copies as copies
import pytest
import torch
from captured import DECODERS, SEQUENCES, batch, build
from torch import Tensor
from torch.testing import assert_close

from attnwidget import Attention, capture, intervene

IDS = batch()["input_ids"]
MODEL = copies.sharpened(build(DECODERS["Llama"], "sdpa"), 3.0)
ANOTHER = {"input_ids": IDS.flip(1)}


def run(source: Any, take: str, head: int = 2, inputs: Any = None) -> Tensor:
    """Logits of `IDS` with a head of layer 0 from another run."""
    with torch.no_grad(), intervene(MODEL, {(0, head): {"from": source, "take": take}}):
        found: Tensor = MODEL(**(inputs or {"input_ids": IDS})).logits
    return found


def of(model: Any = MODEL, inputs: Any = None, **how: Any) -> Any:
    with torch.no_grad():
        return capture(model, **how).run(**(inputs or ANOTHER))


def converted(dtype: torch.dtype) -> Any:
    return copies.sharpened(build(DECODERS["Llama"], "sdpa"), 3.0).to(dtype)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a shorter text": (lambda: of(inputs={"input_ids": IDS[:, :8]}), "capture a run of the same lengths"),
    "a longer text": (
        lambda: of(inputs={"input_ids": torch.cat([IDS, IDS], 1)}),
        "has 24 queries in .*, but this run had 12",
    ),
    "a stack of a longer text": (
        lambda: of(inputs={"input_ids": torch.cat([IDS, IDS], 1)}).attention,
        "has 24 queries in .*, but this run had 12",
    ),
    "an attention of a longer text": (
        lambda: of(inputs={"input_ids": torch.cat([IDS, IDS], 1)}).attention[0],
        "has 24 queries in .*, but this run had 12",
    ),
    "more samples": (lambda: of(inputs={"input_ids": torch.cat([IDS, IDS[:1]])}), "has 3 samples, but this run has 2"),
    "another model": (
        lambda: of(build(DECODERS["GPT-2"], "sdpa")),
        "has no call of 'model.layers.0.self_attn': it has 'transformer.h.0.attn'",
    ),
    "other layers": (lambda: of(layers=[1]), "has no call of 'model.layers.0.self_attn'"),
    "several passes": (lambda: twice(), "it has 'forward 0: model.layers.0.self_attn'"),
    "other heads": (lambda: of(heads=[0, 1]), r"has no head 2 of 'model.layers.0.self_attn': it has 0, 1"),
    "some queries": (lambda: of(queries=slice(-4, None)), "has only some queries"),
    "words": (lambda: of().attention[0].merge([0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]), "same lengths|no values"),
    "heads put together": (lambda: of().attention[0].combine(), "has no head 2"),
    "cross-attention": (
        lambda: of(build(SEQUENCES["BART"], "sdpa"), {"input_ids": IDS, "decoder_input_ids": IDS[:, :5]}).cross,
        "capture a run of the same lengths",
    ),
}
NO_VALUES: dict[str, Callable[[], Any]] = {
    "no values": lambda: of(values=False),
    "an overview": lambda: of(keep="overview"),
    "weights alone": lambda: Attention.from_weights(of().attention[0].block(head=2).expand(1, 4, -1, -1)),
}


def twice() -> Any:
    cap = capture(MODEL)
    with torch.no_grad(), cap:
        MODEL(IDS)
        MODEL(IDS.flip(1))
    return cap


@pytest.mark.parametrize("take", ["weights", "outputs"])
@pytest.mark.parametrize("name", REFUSED)
def test_another_run_that_does_not_fit_is_refused(name: str, take: str) -> None:
    make, why = REFUSED[name]
    source = make()
    with pytest.raises(ValueError, match=why):
        run(source, take)


@pytest.mark.parametrize("name", NO_VALUES)
def test_outputs_need_values_and_weights_do_not(name: str) -> None:
    source = NO_VALUES[name]()
    with pytest.raises(ValueError, match="has no values, so it has no outputs"):
        run(source, "outputs")
    if name == "weights alone":  # of sample 0, for both
        assert_close(run(source, "weights")[0], run(of(), "weights")[0], rtol=1e-4, atol=1e-4)
    else:
        assert_close(run(source, "weights"), run(of(), "weights"), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("take", ["weights", "outputs"])
def test_another_run_that_fits_is_the_same_whatever_it_kept(take: str) -> None:
    wanted = run(of(), take)
    with torch.no_grad():
        assert (wanted - MODEL(IDS).logits).abs().max() > 1e-2
    assert torch.equal(run(of(heads=[2, 3]), take), wanted)
    assert torch.equal(run(of().attention, take), wanted)
    assert torch.equal(run(of().attention[0], take), wanted)
    assert_close(run(of(converted(torch.float64)), take), wanted, rtol=1e-4, atol=1e-4)
    assert_close(run(of(converted(torch.bfloat16)), take), wanted, rtol=0.1, atol=0.1)
    one = {"input_ids": ANOTHER["input_ids"][:1]}
    both = {"input_ids": ANOTHER["input_ids"][:1].expand(2, -1)}
    assert_close(run(of(inputs=one), take), run(of(inputs=both), take), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("take", ["weights", "outputs"])
def test_another_run_is_that_of_a_loop(take: str) -> None:
    """The head's output is the other run's weights times this run's values, or the other run's output."""
    source, own = of().attention[0], of(inputs={"input_ids": IDS}).attention[0]
    seen: list[Tensor] = []
    hook = MODEL.model.layers[0].self_attn.o_proj.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    run(of(), take)
    hook.remove()
    found = seen[-1].unflatten(-1, (6, -1))[:, :, 2]
    for sample in range(2):
        weights, values = source.block(batch=sample, head=2), (own if take == "weights" else source).v[sample, 1]
        assert_close(found[sample], weights @ values, rtol=1e-4, atol=1e-5)
