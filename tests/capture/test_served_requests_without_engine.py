"""Requests of an engine that serves, joined from its steps: with an engine of our own that has vLLM's inside names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import paged_engine
import pytest
import small_server
import torch
from paged_engine import GROUPS, HEADS, SIZE, Attention, Engine, MLAAttention
from torch import Tensor

from attnwidget import Capture, capture, serving
from attnwidget._capture.serving import engine_calls

TEXT = [(7 * i + 3) % 100 for i in range(40)]


@pytest.fixture(autouse=True)
def names() -> Iterator[None]:
    with paged_engine.installed():
        yield


def engine(*layers: Any, **how: Any) -> Engine:
    return Engine(*(layers or (Attention("layers.0.attn"), Attention("layers.1.attn"))), **how)


def weights(served: Engine, tokens: list[int], number: int = 0, **rules: Any) -> Tensor:
    """Return the weights of a layer for a text, (HEADS, n, n), from its tables alone."""
    q, k, _ = (table[torch.tensor(tokens)] for table in served.runner.tables[number])
    turn = torch.tensor([0.01 * i for i in range(len(tokens))])[:, None, None]
    scores = torch.einsum("qhd,khd->hqk", q + turn, (k + turn).repeat_interleave(HEADS // GROUPS, 1)) * SIZE**-0.5
    place = torch.arange(len(tokens))
    hidden = place[None] > place[:, None]
    if "softcap" in rules:
        scores = rules["softcap"] * torch.tanh(scores / rules["softcap"])
    if "slopes" in rules:
        scores = scores + rules["slopes"][:, None, None] * place
    if "window" in rules:
        hidden |= place[None] <= place[:, None] - rules["window"]
    scores = scores.masked_fill(hidden, -torch.inf)
    if "sinks" in rules:
        scores = torch.cat([scores, rules["sinks"][:, None, None].expand(-1, len(tokens), 1)], -1)
    return scores.softmax(-1)[..., : len(tokens)]


def assert_same(forward: Any, expected: Tensor, layer: int = 0) -> None:
    part = forward.attention[layer].part
    rows = slice(None) if part is None or part.queries is None else list(part.queries)
    heads = slice(None) if part is None or part.heads is None else list(part.heads)
    torch.testing.assert_close(forward.attention.weights(layer)[0], expected[heads][:, rows])


def captured(served: Any, *parts: tuple[Any, int], **how: Any) -> Capture:
    """Return the capture of one step, or of none."""
    with capture(served, **how) as cap:
        if parts:
            served.step(*parts)
    return cap


def test_pieces_of_a_batch_are_joined_by_request() -> None:
    served = engine()
    with capture(served) as cap:
        a, b = served.add("a", TEXT), served.add("b", TEXT[:5])
        served.step((a, 16), (b, 5))
        served.answer(b, 50)
        served.step((b, 1), (a, 24))  # in another order
        served.answer(a, 60)
        served.answer(b, 51)
    assert (cap.requests, cap.skipped) == (["a", "b"], {})
    for layer in range(2):
        assert_same(cap["a"], weights(served, TEXT, layer), layer)
        assert_same(cap["b"], weights(served, [*TEXT[:5], 50], layer), layer)
    assert str(cap["b"].segments()).endswith("prompt 4, answer 1")
    assert cap["b"].inputs["input_ids"].tolist() == [[*TEXT[:5], 50]]
    assert (cap[1].request, capture(torch.nn.Linear(1, 1)).requests) == ("b", [])
    widget = cap.widget(forward=1)
    assert (widget.facts["request"], widget.facts["forwards"]) == ("b", 2)
    with pytest.raises(KeyError, match="no request has 'c': there are 'a', 'b'"):
        cap["c"]


@pytest.mark.parametrize(
    "rules",
    [
        {"window": 6},
        {"softcap": 1.5},
        {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
        {"slopes": torch.tensor([0.5, 0.25, 0.125, 0.0625])},
    ],
    ids=lambda rules: next(iter(rules)),
)
def test_rules_of_a_kernel_are_those_of_the_attention(rules: dict[str, Any]) -> None:
    served = engine(Attention("layers.0.attn", **rules))
    with capture(served) as cap:
        request = served.add("a", TEXT)
        served.step((request, 40))
    assert cap.skipped == {}
    assert_same(cap[0], weights(served, TEXT, **rules))


def test_a_layer_may_use_the_keys_of_another() -> None:
    served = engine(Attention("layers.0.attn"), Attention("layers.1.attn", source="layers.0.attn"))
    with capture(served, layers=1) as cap:
        request = served.add("a", TEXT)
        served.step((request, 40))
    assert cap[0].attention.names == ("layers.1.attn",)
    served.runner.tables[1][1] = served.runner.tables[0][1]
    assert_same(cap[0], weights(served, TEXT, 1))


def test_keys_of_a_cached_prefix_come_from_the_cache() -> None:
    served = engine()
    first = served.add("first", TEXT)
    served.step((first, 40))
    with capture(served) as cap:
        second = served.add("second", [*TEXT[:32], 1, 2, 3], blocks=first.blocks[:2], computed=32)
        served.step((second, 3))
    att = cap[0].attention[0]
    assert (att.part.queries, att.shape.K) == ((32, 33, 34), 35)
    assert_same(cap[0], weights(served, [*TEXT[:32], 1, 2, 3]))
    assert cap[0].inputs["input_ids"].tolist() == [[*TEXT[:32], 1, 2, 3]]


def test_keys_that_a_window_has_left_may_be_lost_and_no_others() -> None:
    served = engine(Attention("near.attn", window=8), Attention("far.attn"))
    first = served.add("first", TEXT)
    served.step((first, 40))
    second = served.add("second", [*TEXT[:32], 1, 2, 3], blocks=[0, first.blocks[1]], computed=32)
    with pytest.warns(UserWarning, match="not in the cache any more"):
        cap = captured(served, (second, 3))
    assert [*cap.skipped] == ["far.attn"]
    assert_same(cap[0], weights(served, [*TEXT[:32], 1, 2, 3], window=8))


def test_rounded_keys_are_those_of_the_cache() -> None:
    served = engine(Attention("layers.0.attn", dtype=torch.float8_e4m3fn))
    with capture(served) as cap:
        a = served.add("a", TEXT)
        served.step((a, 40))
    k = cap[0].attention[0].k
    assert torch.equal(k, k.to(torch.float8_e4m3fn).float())
    assert cap.skipped == {}
    with capture(served) as cap:
        b = served.add("b", [*TEXT[:32], 5], blocks=a.blocks[:2], computed=32)
        served.step((b, 1))
    assert cap.skipped == {}
    assert torch.equal(cap[0].attention[0].k[:, :, :32], k[:, :, :32])


def test_a_cache_of_unknown_layout_is_not_read() -> None:
    served = engine(Attention("layers.0.attn"))
    first = served.add("first", TEXT)
    served.step((first, 40))
    halves = served.runner.layers["0"].halves
    served.runner.layers["0"].halves = lambda: tuple(x.flip(-1) for x in halves())  # type: ignore[method-assign, assignment]
    second = served.add("second", [*TEXT[:32], 1], blocks=first.blocks[:2], computed=32)
    with pytest.raises(ValueError, match="enable_prefix_caching=False"):
        captured(served, (second, 1))


def test_drafts_that_were_rejected_are_not_in_the_map() -> None:
    served = engine()
    with capture(served) as cap:
        request = served.add("a", TEXT[:6])
        served.step((request, 6))
        for drafts, taken in (([11, 12, 13], [10, 11, 30]), ([31, 32], [31, 40])):
            start = request.computed
            request.tokens = [*request.tokens[:start], *(taken[:1] if start == 6 else [30]), *drafts]
            served.step((request, 1 + len(drafts)), drafts={request.req_id: drafts})
            request.computed = start + 2
            served.answer(request, *taken)
    read = [*TEXT[:6], 10, 11, 30, 31]
    assert cap[0].inputs["input_ids"].tolist() == [read]
    assert_same(cap[0], weights(served, read))


def test_without_the_answers_the_last_drafts_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_calls.EngineOfProcess, "answers", lambda self: None)
    served = engine()
    with capture(served) as cap:
        request = served.add("a", TEXT[:6])
        served.step((request, 6))
        request.tokens += [10, 11, 12]
        served.step((request, 3), drafts={request.req_id: [11, 12]})
    assert cap[0].inputs["input_ids"].tolist() == [[*TEXT[:6], 10]]


def test_a_preempted_request_counts_once_and_must_agree() -> None:
    served = engine(Attention("layers.0.attn"))

    def twice(change: float) -> Capture:
        request = served.add("a", TEXT)
        with capture(served) as cap:
            served.step((request, 20))
            request.computed = 0
            served.runner.tables[0][1] = served.runner.tables[0][1] + change
            served.step((request, 40))
        return cap

    cap = twice(1e-7)
    assert_same(cap[0], weights(served, TEXT))
    served.runner.requests.clear()
    with pytest.raises(ValueError, match="its token 0 was computed twice, and its keys differ by more than rounding"):
        twice(0.1)


def test_tokens_from_before_the_block_are_keys_if_the_cache_has_them() -> None:
    served = engine(Attention("layers.0.attn"))
    request = served.add("a", TEXT[:20])
    served.step((request, 20))
    served.answer(request, 70)
    with capture(served) as cap:
        served.step((request, 1))
        served.answer(request, 71)
        served.step((request, 1))
    read = [*TEXT[:20], 70, 71]
    assert cap[0].attention[0].part.queries == (20, 21)
    assert cap[0].inputs["input_ids"].tolist() == [read]
    assert_same(cap[0], weights(served, read))


def test_tokens_after_the_end_of_an_answer_are_left_out() -> None:
    served = engine()
    with capture(served) as cap:
        request = served.add("a", TEXT[:6])
        served.step((request, 6))
        served.answer(request, 10)
        served.output_processor.request_states.clear()  # a stop string has ended it
        served.step((request, 1))
        served.answer(request, 12)
        served.step((request, 1))
    assert cap[0].inputs["input_ids"].tolist() == [[*TEXT[:6], 10]]


def test_an_output_that_its_rules_do_not_give_is_not_shown() -> None:
    served = engine()
    served.runner.layers["0"].impl.changes = lambda output: output * 1.001
    with pytest.warns(UserWarning, match="do not give its output"):
        cap = captured(served, (served.add("a", TEXT), 40))
    assert [*cap.skipped] == ["layers.0.attn"]
    assert cap[0].attention.names == ("layers.1.attn",)


def test_steps_that_are_replayed_without_python_are_not_taken_for_recorded() -> None:
    served = engine()
    served.runner.forward = False
    with pytest.raises(ValueError, match="no request was recorded"):
        captured(served, (served.add("a", TEXT[:6]), 6))
    graphs = r'enforce_eager=True, or with compilation_config=\{"cudagraph_mode": "PIECEWISE"\}'
    with pytest.raises(ValueError, match=graphs), capture(engine(device="cuda")):
        pass


def test_layers_that_are_not_read_are_named() -> None:
    odd = Attention("layers.1.attn")
    odd.attn_type = "encoder_decoder"
    served = engine(Attention("layers.0.attn"), odd, MLAAttention())
    with pytest.warns(UserWarning, match="2 modules cannot"):
        cap = captured(served, (served.add("a", TEXT), 40))
    assert "encoder_decoder" in cap.skipped["1"]
    assert "MLA" in cap.skipped["2"]
    assert len(cap[0].attention) == 1


def test_another_vllm_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: Any, query: Any, key: Any) -> None: ...

    monkeypatch.setattr(paged_engine.Impl, "forward", forward)
    with pytest.raises(ValueError, match=r"vLLM 0\.32\.0 is not read, because Impl\.forward takes query, key: install"):
        captured(engine())


def test_workers_that_share_keys_or_layers_are_told() -> None:
    with pytest.raises(ValueError, match="context parallelism"):
        captured(engine(workers={"decode_context_parallel_size": 2}))
    with pytest.raises(ValueError, match="name the layers"):
        captured(engine(workers={"pipeline_parallel_size": 2}), layers=0)


def test_each_worker_keeps_its_own_heads() -> None:
    served = engine(Attention("layers.0.attn"), workers={"tensor_parallel_size": 2, "world_size": 2})
    served.worker.rank = 1
    with capture(served, heads=[1, 5]) as cap:
        request = served.add("a", TEXT)
        served.step((request, 40))
    assert cap[0].attention[0].part.heads == (5,)
    torch.testing.assert_close(cap[0].attention.weights(0)[0], weights(served, TEXT)[[1]])
    with pytest.raises(ValueError, match="head 8 is not there: it has heads 0 to 7"):
        captured(served, heads=[8])


def test_an_engine_of_its_own_process_needs_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    served = engine()
    served.engine_core = SimpleNamespace()  # type: ignore[assignment]
    with pytest.raises(
        ValueError, match=r'start the engine with worker_extension_cls="attnwidget\.serving\.Extension"'
    ):
        capture(served)
    served.vllm_config.parallel_config.worker_extension_cls = "mine.Extension"

    def unknown(method: Any, args: Any) -> None:
        raise AttributeError(method)

    monkeypatch.setattr(served, "collective_rpc", unknown)
    with pytest.raises(ValueError, match=r"mine\.Extension must inherit from attnwidget\.serving\.Extension"):
        captured(served)
    served.vllm_config.parallel_config.data_parallel_size = 2
    with pytest.raises(ValueError, match="2 engines share the requests"):
        capture(served)


def test_code_is_taken_from_bytes_only() -> None:
    served = engine()
    extension = type("Worker", (serving.Extension,), {})()
    vars(extension).update(vars(served.worker))
    assert extension.attnwidget_answer('{"do": "release", "session": ""}', "text") == {"ended": []}
    assert "error" in extension.attnwidget_answer('{"do": "begin"}')


# A server.


def test_a_server_is_captured_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    served = engine(Attention("layers.0.attn"))

    def reply(told: dict[str, Any]) -> list[Any]:
        extension = type("Worker", (serving.Extension,), {})()
        extension.__dict__ = vars(served.worker)
        return [extension.attnwidget_answer(json.dumps(told))]

    monkeypatch.setenv("VLLM_API_KEY", "secret")
    with small_server.running() as server:
        server.reply = reply
        with capture(f"{server.address}/v1", requests=["chat-*"]) as cap:
            chat, other = served.add("chat-1", TEXT), served.add("cmpl-1", TEXT[:9])
            served.step((chat, 40), (other, 9))
        assert cap.requests == ["chat-1"]
        assert_same(cap[0], weights(served, TEXT))
        assert server.headers["Authorization"] == "Bearer secret"
        block = capture(server.address, requests=["zz"])
        block.__enter__()
        served.step((served.add("b", TEXT), 40))
        with pytest.raises(ValueError, match=r"requests=\['zz'\] wants none of those that ran, such as 'b'"):
            block.__exit__(None, None, None)


def test_options_of_an_engine_are_refused_for_other_models() -> None:
    with pytest.raises(TypeError, match="or the address of a server, such as 'http://localhost:8000'"):
        capture("localhost:8000")
    for how in ({"requests": "a"}, {"folder": "maps"}):
        with pytest.raises(ValueError, match="is for an engine that serves, such as an LLM of vLLM"):
            capture(torch.nn.Linear(1, 1), **how)  # type: ignore[arg-type]
