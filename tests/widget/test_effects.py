"""The widget runs a model that is at hand with edits: in slices, what was asked for first, and it can be stopped."""

from __future__ import annotations

import asyncio
import base64
import copy
import gc
import json
import re
import struct
import weakref
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from front_end import FrontEnd

from attnwidget import AttentionWidget, Capture, capture, effect
from attnwidget._capture.interventions import runner as runner_module
from attnwidget._widget.passes import effects as effects_module

transformers = pytest.importorskip("transformers")

LAYERS, HEADS, LENGTH, VOCABULARY = 2, 4, 20, 97
PARTS = {"document": (3, 8), "question": (8, 14), "answer": (14, 20)}
NAMES = ["first token", "other", "document", "question", "answer"]


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=LAYERS, n_head=HEADS, n_embd=32, vocab_size=VOCABULARY, n_positions=64, initializer_range=0.3,
        bos_token_id=1, eos_token_id=1,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).eval()


@pytest.fixture(scope="module")
def ids() -> torch.Tensor:
    return torch.randint(2, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def cap(model: Any, ids: torch.Tensor) -> Capture:
    return capture(model).run(ids)


def in_a_loop(work: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await work()

    asyncio.run(run())


async def settled(w: AttentionWidget, tries: int = 2000) -> dict[str, Any]:
    for _ in range(tries):
        await asyncio.sleep(0.005)
        if w.effects is not None and w.effects["state"] not in ("running",):
            return dict(w.effects)
    raise AssertionError(w.effects)


def send(w: AttentionWidget, **request: Any) -> None:
    w._handle_custom_msg({"requests": [{"id": "1", **request}]}, [])


def answer_of(front_end: FrontEnd) -> dict[str, Any]:
    replies = [
        one for message in front_end.messages for one in json.loads(message.text).get("content", {}).get("replies", [])
    ]
    found: dict[str, Any] = replies[-1]
    return found


def test_a_sweep_begins_when_effects_are_looked_at_and_has_each_segment_and_head(
    cap: Capture, model: Any, ids: torch.Tensor
) -> None:
    async def work() -> None:
        w = cap.widget(model=model, inputs=cap.inputs, segments=PARTS, view="segments", batch=1)
        assert w.effects["state"] == "idle"
        assert w.effects["heads"] is None
        w.segments_show = "effect"
        assert w.effects["state"] == "running"
        found = await settled(w)
        assert (found["state"], found["error"], found["batch"], found["unit"]) == ("done", None, 1, "nats")
        assert found["done"] == found["total"] == len(NAMES) + LAYERS * HEADS
        assert found["segments"]["names"] == NAMES
        assert found["segments"]["dropped"] == "keys dropped in 2 layers"
        assert found["heads"]["counts"] == [HEADS] * LAYERS
        assert found["run_seconds"] > 0
        at, token = found["at"], found["target"]["token"]
        assert at == LENGTH - 1
        inputs = {"input_ids": ids}
        for number, lost in enumerate(found["heads"]["lost"]):
            one = effect(model, inputs, {divmod(number, HEADS): "zero"}, target=token, batch=1)
            assert lost == pytest.approx(-one.change, rel=1e-3, abs=1e-5)
        for number, (start, stop) in enumerate(PARTS.values(), 2):
            edits = {"all": {"drop_keys": list(range(start, stop))}}
            one = effect(model, inputs, edits, target=token, batch=1)
            assert found["segments"]["lost"][number] == pytest.approx(-one.change, rel=1e-3, abs=1e-5)
            detail = w.effect_details[number]
            assert detail["of"] == {"segment": NAMES[number], "path": []}
            assert one.kl is not None
            kl = one.kl[13:19].mean()  # the positions that tell the answer, with that which is asked
            assert detail["kl"] == pytest.approx(float(one.kl[at]), rel=1e-3)
            assert detail["kl_answer"] == pytest.approx(float(kl), rel=1e-3)
            assert detail["vocabulary"] == VOCABULARY
            assert detail["tokens"][0][0] == found["target"]["text"]
            assert len(detail["tokens"]) == 10

    in_a_loop(work)


@pytest.mark.thorough
@pytest.mark.parametrize("asked", [{"order": "effect"}, {"bar": "effect"}])
@pytest.mark.parametrize("given", [True, False])
def test_heads_that_are_ordered_by_effect_have_one(
    cap: Capture, model: Any, asked: dict[str, str], given: bool
) -> None:
    async def work() -> None:
        w = cap.widget(model=model, inputs=cap.inputs, view="heads", **(asked if given else {}))
        assert w.effects["state"] == ("running" if given else "idle")
        for name, value in asked.items():
            setattr(w, name, value)
        found = await settled(w)
        assert (found["state"], found["error"]) == ("done", None)
        assert [len(found["heads"]["lost"]), None in found["heads"]["lost"]] == [LAYERS * HEADS, False]

    in_a_loop(work)


@pytest.mark.parametrize(
    ("of", "edits"),
    [
        ({"layer": 1, "head": 2}, {(1, 2): "zero"}),
        ({"layer": 1}, {1: "zero"}),
        ({"layer": 1, "head": 2, "query": 19, "key": 3}, {(1, 2): {"block": ([19], [3])}}),
        ({"key": 4}, {"all": {"drop_keys": [4]}}),
        ({"segment": "document", "path": []}, {"all": {"drop_keys": [3, 4, 5, 6, 7]}}),
    ],
)
def test_what_is_pinned_can_be_taken_away(
    cap: Capture, model: Any, ids: torch.Tensor, front_end: FrontEnd, of: Any, edits: Any
) -> None:
    async def work() -> None:
        w = cap.widget(model=model, segments=PARTS)
        send(w, kind="effect", of=of)
        assert answer_of(front_end)["ok"]
        await settled(w)
        (detail,) = w.effect_details
        one = effect(model, {"input_ids": ids}, edits, batch=0)
        assert detail["of"] == of
        assert detail["error"] is None
        assert (detail["token"], detail["at"], detail["edit"]) == (one.token, one.at, "zero")
        assert (detail["before"], detail["after"]) == pytest.approx((one.before, one.after), rel=1e-4)
        assert w.effects["state"] == "idle", "nothing else was asked for"

    in_a_loop(work)


@pytest.mark.thorough
def test_the_kernel_answers_between_runs_and_a_sweep_can_be_stopped_and_resumed(
    cap: Capture, model: Any, front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "SLICE_SECONDS", 0.0)  # one sample in each run
    monkeypatch.setattr(effects_module, "TELL", 0.0)

    async def work() -> None:
        w = cap.widget(model=model, segments=PARTS, view="segments", segments_show="effect")
        while not w.effects["done"]:
            await asyncio.sleep(0.001)
        send(w, kind="effect", of={"layer": 0, "head": 3})
        send(w, kind="effects", action="stop")
        assert answer_of(front_end)["ok"]
        found = await settled(w)
        assert found["state"] == "stopped"
        assert 0 < found["done"] < found["total"]
        assert None in found["heads"]["lost"], "a partial result shows what is missing"
        await asyncio.sleep(0.05)
        assert {"layer": 0, "head": 3} in [one["of"] for one in w.effect_details], "what was asked for is run"
        w.head = 1
        await asyncio.sleep(0.02)
        assert w.effects["state"] == "stopped", "and stays so"
        send(w, kind="effects", action="resume")
        assert (await settled(w))["state"] == "done"

    in_a_loop(work)


@pytest.mark.thorough
def test_another_head_that_is_looked_at_does_not_end_a_sweep(
    cap: Capture, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "SLICE_SECONDS", 0.0)

    async def work() -> None:
        w = cap.widget(model=model, segments=PARTS, segments_show="effect")
        for head in (1, 2, 3):
            await asyncio.sleep(0.005)
            w.head = head
        assert (await settled(w))["state"] == "done"

    in_a_loop(work)


@pytest.mark.thorough
def test_another_target_edit_or_sample_runs_anew_and_what_was_is_kept(cap: Capture, model: Any) -> None:
    async def work() -> None:
        w = cap.widget(model=model, segments=PARTS, segments_show="effect")
        first = await settled(w)
        w.effect_target = [5, 7]
        second = await settled(w)
        assert (second["at"], second["target"]["token"]) == (5, 7)
        assert second["heads"]["lost"] != first["heads"]["lost"]
        assert {"at": 5, "token": 7, "text": "7", "note": ""} in second["targets"]
        w.effect_edit = "uniform"
        third = await settled(w)
        assert (third["edit"], third["segments"]["dropped"]) == ("uniform", "keys made even in 2 layers")
        w.effect_edit = "cut"
        cut = await settled(w)
        assert (cut["edit"], cut["segments"]["dropped"]) == ("cut", "weights set to 0 in 2 layers")
        assert cut["heads"]["lost"] == second["heads"]["lost"]
        assert cut["segments"]["lost"] != second["segments"]["lost"]
        w.effect_edit = "uniform"
        w.batch = 1
        assert (await settled(w))["batch"] == 1
        w.batch, w.effect_edit, w.effect_target = 0, "zero", None
        assert (await settled(w))["heads"] == first["heads"]

    in_a_loop(work)


def test_in_a_script_it_waits_for_finish(cap: Capture, model: Any) -> None:
    w = cap.widget(model=model, segments=PARTS, segments_show="effect")
    assert w.effects["state"] == "running"
    w.finish()
    assert w.effects["state"] == "done"
    send(w, kind="effect", of={"layer": 0, "head": 1})
    assert w.effect_details[-1]["of"] == {"layer": 0, "head": 1}


@pytest.mark.thorough
def test_files_and_notebooks_keep_the_results(cap: Capture, model: Any, tmp_path: Path) -> None:
    w = cap.widget(model=model, segments=PARTS, segments_show="effect")
    w.finish()
    sent = w.get_state(["effects", "effect_details"])
    assert json.loads(json.dumps(sent)) == {"effects": w.effects, "effect_details": w.effect_details}
    assert len(json.dumps(sent)) < 64 * 1024
    path = w.to_html(tmp_path / "effects.html")
    assert path.stat().st_size < 4 << 20
    (data,) = re.findall(r'id="attnwidget-data">([^<]*)</script>', path.read_text(encoding="utf-8"))
    kept = zlib.decompress(base64.b64decode(data))
    state = json.loads(kept[4 : 4 + struct.unpack("<I", kept[:4])[0]])["state"]
    assert {name: state[name] for name in sent} == json.loads(json.dumps(sent))
    assert None not in state["effects"]["heads"]["lost"]


@pytest.mark.parametrize(
    ("request_", "match"),
    [
        ({"kind": "effect", "of": None}, "give a segment and its path"),
        ({"kind": "effect", "of": {"layer": 1, "query": 2}}, "give a segment and its path"),
        ({"kind": "effect", "of": {"layer": 1, "head": 2, "query": 3, "key": 4, "more": 5}}, "give a segment"),
        ({"kind": "effect", "of": {"key": -1}}, "key is -1"),
        ({"kind": "effect", "of": {"key": True}}, "key is True"),
        ({"kind": "effect", "of": {"segment": "nothing", "path": []}}, "there is no segment 'nothing'"),
        ({"kind": "effect", "of": {"segment": "document", "path": ["a"] * 99}}, "path is"),
        ({"kind": "effects", "action": "go"}, "give run, stop or resume"),
        ({"kind": "effects"}, "give run, stop or resume"),
    ],
)
def test_what_a_front_end_asks_is_checked(
    cap: Capture, model: Any, front_end: FrontEnd, request_: dict[str, Any], match: str
) -> None:
    w = cap.widget(model=model, segments=PARTS)
    send(w, **request_)
    reply = answer_of(front_end)
    assert not reply["ok"]
    assert match in reply["error"]


@pytest.mark.parametrize(
    "of", [{"layer": 9}, {"layer": 0, "head": 9}, {"key": 99}, {"layer": 0, "head": 0, "query": 99, "key": 0}]
)
def test_what_is_not_there_is_said_in_its_place(cap: Capture, model: Any, of: dict[str, int]) -> None:
    w = cap.widget(model=model, segments=PARTS)
    send(w, kind="effect", of=of)
    (detail,) = w.effect_details
    assert detail["error"]
    assert detail["before"] is None


def test_without_a_model_it_says_how_to_give_one(cap: Capture, front_end: FrontEnd) -> None:
    w = cap.widget(segments=PARTS, segments_show="effect")
    assert w.effects is None
    send(w, kind="effect", of={"layer": 0, "head": 0})
    assert "cap.widget(model=model, inputs=inputs)" in answer_of(front_end)["error"]


@pytest.mark.parametrize("short", [True, False])
def test_another_text_than_the_one_that_is_shown_is_refused(
    cap: Capture, model: Any, ids: torch.Tensor, short: bool
) -> None:
    inputs = {"input_ids": ids[:, :7] if short else ids.flip(1)}
    w = cap.widget(model=model, inputs=inputs, segments=PARTS, segments_show="effect")
    w.finish()
    assert w.effects["state"] == "failed"
    assert "inputs=cap.inputs" in w.effects["error"]


def test_another_model_than_the_one_that_is_shown_is_refused(cap: Capture, ids: torch.Tensor) -> None:
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4
    )
    other = transformers.LlamaForCausalLM(config).eval()
    w = cap.widget(model=other, inputs={"input_ids": ids}, segments=PARTS, segments_show="effect")
    w.finish()
    assert "give the model that was captured" in w.effects["error"]


def test_a_model_in_training_is_refused_at_once(cap: Capture, model: Any) -> None:
    model.train()
    try:
        with pytest.raises(ValueError, match="training mode"):
            cap.widget(model=model)
    finally:
        model.eval()


def test_inputs_without_a_model_are_refused(cap: Capture) -> None:
    with pytest.raises(ValueError, match="give model="):
        cap.widget(inputs=cap.inputs)


def test_a_function_of_the_output_is_a_target(cap: Capture, model: Any, ids: torch.Tensor) -> None:
    def size(output: Any) -> Any:
        return output.logits[0].norm()

    w = cap.widget(model=model, target=size, segments=PARTS, segments_show="effect")
    w.finish()
    assert (w.effects["unit"], w.effects["at"], w.effects["target"]) == (
        "change",
        None,
        {"token": None, "text": "size"},
    )
    one = effect(model, {"input_ids": ids}, {(1, 3): "zero"}, target=size)
    assert w.effects["heads"]["lost"][7] == pytest.approx(-one.change, rel=1e-3)
    assert w.effect_details[0]["tokens"] == []


def test_weights_that_have_changed_since_are_said_and_run_anew(cap: Capture, model: Any) -> None:
    own = copy.deepcopy(model)
    w = cap.widget(model=own, segments_show="effect")
    w.finish()
    first = w.effects["heads"]["lost"]
    with torch.no_grad():
        own.lm_head.weight.mul_(0.5)
    send(w, kind="effect", of={"layer": 0, "head": 1})
    assert w.effects["state"] == "failed"
    assert "weights have changed" in w.effects["error"]
    send(w, kind="effects", action="run")
    w.finish()
    assert w.effects["state"] == "done"
    assert w.effects["heads"]["lost"] != first


@pytest.mark.parametrize("goal", [[3, 10**6], [10**6, 3]])
def test_a_target_that_is_none_is_refused_once_the_model_has_run(cap: Capture, model: Any, goal: list[int]) -> None:
    w = cap.widget(model=model)
    send(w, kind="effect", of={"layer": 0, "head": 1})
    before = w.effects
    w.set_state({"effect_target": goal})
    assert w.effects["state"] == "failed"
    assert str(10**6) in w.effects["error"]
    send(w, kind="effect", of={"layer": 0, "head": 1})
    assert w.effects["state"] == "failed"
    w.set_state({"effect_target": None})
    assert w.effects == before


def test_tokens_that_are_given_name_those_that_they_are_of(cap: Capture, model: Any, ids: torch.Tensor) -> None:
    words = [[f"Ġw{one}" for one in sample] for sample in ids.tolist()]
    goal = (LENGTH - 2, int(ids[0, -1]))
    w = cap.widget(model=model, tokens=words, segments_show="effect", effect_target=goal)
    w.finish()
    assert w.effects["target"] == {"token": goal[1], "text": f" w{goal[1]}"}
    assert w.effects["text"].endswith(f"w{int(ids[0, -2])}")


# Words of one, two and three pieces; PARTS begin and end between words, but for two that begin amid one.
WORDS = "Ġa Ġb c Ġd e f Ġg Ġh i Ġj k Ġl Ġm n o Ġp Ġq r Ġs Ġt"
PIECES = WORDS.split()
ENDS = [0, 1, 3, 6, 7, 9, 11, 12, 15, 16, 18, 19, 20]


@pytest.mark.parametrize(
    ("of", "edits"),
    [
        ({"key": 2}, {"all": {"drop_keys": [3, 4, 5]}}),
        ({"key": 0}, {"all": {"drop_keys": [0]}}),
        (
            {"layer": 1, "head": 2, "query": 7, "key": 2},
            {(1, 2): {"block": ([12, 13, 14], [3, 4, 5])}},
        ),
        ({"layer": 1, "head": 2}, {(1, 2): "zero"}),
        ({"segment": "document", "path": []}, {"all": {"drop_keys": [3, 4, 5, 6, 7, 8]}}),  # by each word's first piece
    ],
)
def test_of_words_all_pieces_are_taken_away(
    cap: Capture, model: Any, ids: torch.Tensor, of: dict[str, Any], edits: Any
) -> None:
    w = cap.widget(model=model, segments=PARTS, tokens=[PIECES] * 2, pieces="words")
    assert w.facts["keys"] == len(ENDS) - 1
    send(w, kind="effect", of=of)
    (detail,) = w.effect_details
    one = effect(model, {"input_ids": ids}, edits, batch=0)
    assert (detail["of"], detail["error"]) == (of, None)
    assert (detail["before"], detail["after"]) == pytest.approx((one.before, one.after), rel=1e-4)


def test_with_words_every_segment_has_its_effect_and_pieces_have_their_own(
    cap: Capture, model: Any, ids: torch.Tensor
) -> None:
    shown = {"pieces": "words", "view": "segments", "segments_show": "effect"}
    w = cap.widget(model=model, segments=PARTS, tokens=[PIECES] * 2, **shown)
    w.finish()
    found = w.effects["segments"]
    assert found["names"] == w.mass["keys"]
    one = effect(model, {"input_ids": ids}, {"all": {"drop_keys": list(range(3, 9))}}, batch=0)
    assert found["lost"][found["names"].index("document")] == pytest.approx(-one.change, rel=1e-3, abs=1e-5)
    kl = effect(model, {"input_ids": ids}, {(0, 0): "zero"}, batch=0).kl
    send(w, kind="effect", of={"layer": 0, "head": 0})
    assert kl is not None
    assert w.effect_details[-1]["kl_answer"] == pytest.approx(float(kl[14:19].mean()), rel=1e-3), "of the words' pieces"
    send(w, kind="effect", of={"key": 4})
    words = w.effect_details[-1]["after"]
    w.pieces = "pieces"
    w.finish()
    assert {"key": 4} not in [detail["of"] for detail in w.effect_details], "key 4 is another one now"
    send(w, kind="effect", of={"key": 4})
    assert w.effect_details[-1]["after"] != words
    w.pieces = "words"
    assert {"key": 4} in [detail["of"] for detail in w.effect_details], "what was run is kept"


def test_a_word_that_is_not_there_is_refused_and_one_of_several_pieces_can_be_even(
    cap: Capture, model: Any, front_end: FrontEnd
) -> None:
    given = {"segments": PARTS, "tokens": [PIECES] * 2, "pieces": "words"}
    w = cap.widget(model=model, effect_edit="uniform", **given)
    send(w, kind="effect", of={"key": 12})
    assert "key 12 is not there: sample 0 has 12 words" in answer_of(front_end)["error"]
    send(w, kind="effect", of={"key": 2})
    assert answer_of(front_end)["ok"]
    assert w.effect_details[-1]["error"] is None
    for of in ({"key": 0}, {"layer": 0, "head": 0, "query": 11, "key": 2}):
        send(w, kind="effect", of=of)
        assert "choose another edit" in answer_of(front_end)["error"]


def test_heads_that_were_kept_are_edited_by_their_own_number(model: Any, ids: torch.Tensor) -> None:
    w = capture(model, heads=[1, 3]).run(ids).widget(model=model, segments_show="effect")
    w.finish()
    assert w.effects["heads"]["counts"] == [2, 2]
    one = effect(model, {"input_ids": ids}, {(1, 3): "zero"}, batch=0)
    assert w.effects["heads"]["lost"][3] == pytest.approx(-one.change, rel=1e-3, abs=1e-5)


@pytest.mark.thorough
def test_a_generated_text_is_run_as_it_was_read(model: Any, ids: torch.Tensor) -> None:
    with capture(model) as cap:
        text = model.generate(ids[:1, :6], max_new_tokens=4, do_sample=False, pad_token_id=0)
    w = cap.widget(model=model, segments_show="effect")
    w.finish()
    assert w.effects["state"] == "done"
    assert w.effects["target"]["token"] == int(text[0, -1]), "the token that was written last"
    assert w.effects["segments"]["names"][-1] == "answer"


@pytest.mark.thorough
def test_an_encoder_and_a_decoder_have_each_their_own(ids: torch.Tensor) -> None:
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, num_heads=4, num_layers=2, d_ff=64, decoder_start_token_id=0
    )
    t5 = transformers.T5ForConditionalGeneration(config).eval()
    inputs = {"input_ids": ids[:1, :9], "decoder_input_ids": ids[:1, 9:13]}
    w = capture(t5).run(**inputs).widget(model=t5, segments_show="effect")
    for name, edits in (
        ("encoder", {"encoder.block.1.layer.0.SelfAttention": "zero"}),
        ("decoder, cross-attention", None),
    ):
        w.stack = name
        w.finish()
        assert w.effects["state"] == "done", w.effects["error"]
        assert w.effects["at"] == 3
        send(w, kind="effect", of={"layer": 1})
        if edits is None:
            edits = {"decoder.block.1.layer.1.EncDecAttention": "zero"}
        one = effect(t5, inputs, edits)
        assert w.effect_details[-1]["after"] == pytest.approx(one.after, rel=1e-4)


@pytest.mark.thorough
def test_a_closed_widget_keeps_no_model(ids: torch.Tensor) -> None:
    own = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=VOCABULARY)
    ).eval()
    w = capture(own).run(ids).widget(model=own, segments_show="effect")
    w.finish()
    kept = weakref.ref(own)
    w.close()
    del w, own
    gc.collect()
    assert kept() is None


@pytest.mark.thorough
def test_tokens_that_were_given_read_as_text(model: Any, ids: torch.Tensor) -> None:
    """Without a tokenizer too: the words before the next token, and the tokens that can be chosen."""
    names = ["Ġthe", "Ġcat", "Ġsat", "Ġ", "Ċ", "Ġmat", ".", "ĠThe", "Ġdog", "ing"]
    tokens = [[names[one % len(names)] for one in sample] for sample in ids.tolist()]
    w = capture(model).run(ids).widget(model=model, inputs=ids, tokens=tokens, segments=PARTS, view="segments")
    w.segments_show = "effect"
    w.finish()
    told = dict(w.effects or {})
    texts = [told["text"], told["target"]["text"], *(one["text"] for one in told["targets"])]
    assert "cat" in "".join(texts)
    assert not [text for text in texts if "Ġ" in text or "Ċ" in text]
    w.close()
