"""Grammars over the server's protocols: named ones and clients' own, and hostile ones refused."""

from __future__ import annotations

import asyncio
import json
import socket

import numpy as np
import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("wyoming")
from serving_clients import DONE, serving, until, update
from test_realtime import appended, connected, pcm24
from test_transcriptions import ask, wav
from test_wyoming import said
from transformers import pipeline
from wyoming.asr import Transcript
from wyoming.client import AsyncClient
from wyoming.event import Event
from wyoming.info import Describe, Info
from wyoming.intent import Intent, NotRecognized

import hf_ngpulm
from hf_ngpulm import Grammar
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.grammar.expressions import Number, Sequence, Slot
from hf_ngpulm.serving import Limits, Voices
from hf_ngpulm.serving.attention import STREAMED, AttentionRecognizer

TELL = Sequence("tell the", Slot("who", "harbour master", "hm"), "we will be", Slot("minutes", Number(1, 60)), "minutes late")
VOICES = Voices(grammars={"harbour": Grammar({"tell": TELL, "sail": ["drop the anchor"]})})
LIMITS = Limits(clients=2)
SENTENCE = "tell the harbour master we will be twenty minutes late"
SLOTS = [("who", "hm"), ("minutes", 20)]


def pairs(told):
    return [(slot["name"], slot["value"]) for slot in told["slots"]]


def run_with(demo, talk, voices=VOICES, limits=LIMITS, **settings):
    async def serve():
        async with serving(demo.recognizer(2, lm=None, lm_weight=None), limits, voices=voices, **settings) as server:
            await talk(server)

    asyncio.run(serve())


def test_recordings(demo):
    audio = wav(hf_ngpulm.demo_recording())

    async def talk(server):
        for form in ("json", "verbose_json"):
            told = await ask(server, audio, grammar="harbour", response_format=form)
            assert told["understood"] and told["intent"] == "tell" and pairs(told) == SLOTS and told["text"] == SENTENCE
            assert 0.5 < told["confidence"] <= 1 and told["slots"][0]["start"] < told["slots"][0]["end"]
        own = await ask(server, audio, grammar=json.dumps([SENTENCE, "all stop"]))
        assert own["understood"] and own["intent"] is None and own["text"] == SENTENCE
        why = (await ask(server, audio, grammar="harbour", explain="true"))["explanation"]
        assert why["readings"][0]["text"] == SENTENCE and why["evidence"] > why["least_evidence"] and why["free"]["score"] < 0
        assert (await ask(server, audio, 400, explain="true"))["error"]["param"] == "explain"
        other = await ask(server, audio, grammar='["drop the anchor"]')
        assert not other["understood"] and other["text"] == other["free_text"] and not other["slots"]
        assert "understood" not in await ask(server, audio)
        for wrong, message in (
            ("ship", "there is no grammar 'ship'; this server has 'harbour'"),
            (json.dumps(["a"] * 1001), "at most 1000 phrases are allowed, got 1001"),
            (json.dumps(["a"] * 1001, indent=1), "at most 1000 phrases are allowed, got 1001"),
            (json.dumps(["a" * 101]), "at most 100"),
            ('["[unk]"]', "no phrases besides"),
            ('[["a", 2.0]]', "each phrase should be a text"),
            ("[" * 20_000, "at most 100"),
        ):
            error = (await ask(server, audio, 400, grammar=wrong))["error"]
            assert message in error["message"] and error["param"] == "grammar", error

    run_with(demo, talk)


def test_live_audio(demo):
    async def talk(server):
        ws, _ = await connected(server)
        await ws.send_json(update(transcription={"grammar": "harbour", "partials": True}))
        for message in appended(pcm24(np.concatenate([hf_ngpulm.demo_recording(), np.zeros(8000, dtype=np.float32)]))):
            await ws.send_json(message)
        await ws.send_json({"type": "input_audio_buffer.commit"})
        *events, done = await until(ws, DONE)
        assert done["understood"] and done["intent"] == "tell" and pairs(done) == SLOTS and done["transcript"] == SENTENCE
        partials = [event for event in events if event["type"].endswith("transcription.partial")]
        assert pairs(partials[-1]) == SLOTS and all(event["stable"] == "" for event in partials)
        await ws.send_json(update(transcription={"grammar": "nothing"}))
        assert "there is no grammar 'nothing'" in (await until(ws, "error"))[-1]["error"]["message"]

    run_with(demo, talk)


def test_wyoming_knows_intents(demo):
    with socket.create_server(("127.0.0.1", 0)) as free:
        uri = f"tcp://127.0.0.1:{free.getsockname()[1]}"

    async def talk(server):
        async with AsyncClient.from_uri(uri) as client:
            await client.write_event(Describe().event())
            info = Info.from_event(await client.read_event())
            assert [model.name for model in info.intent[0].models] == ["harbour"]
            text = await said(client, (hf_ngpulm.demo_recording() * 32767).astype("<i2"))
            assert text == SENTENCE
            await client.write_event(Event("recognize", {"text": text}))
            intent = Intent.from_event(await client.read_event())
            assert intent.name == "tell" and [(each.name, each.value) for each in intent.entities] == SLOTS
            await client.write_event(Event("recognize", {"text": "make me a sandwich"}))
            assert NotRecognized.is_type((await client.read_event()).type)
            await client.write_event(Event("recognize", {"text": 3}))
            assert "should have a text" in (await client.read_event()).data["text"]

    run_with(demo, talk, wyoming=uri)


HOME = {
    "language": "en",
    "intents": {
        "HassLightSet": {"data": [{
            "sentences": ["dim [the] {name} (to|by) {0..100,5:brightness}[[ ]%| percent]"],
            "slots": {"domain": ["light", "switch"]},
        }]},
        "HassShoppingListAddItem": {"data": [{"sentences": ["add {item} to [my] shopping list"]}]},
        "HassNevermind": {"data": [{"sentences": ["never mind"]}]},
    },
    "lists": {
        "name": {"values": ["lamp", {"in": "telly", "out": "media_player.living_room"}]},
        "item": {"wildcard": True},
    },
}  # fmt: skip


@pytest.mark.parametrize("text", [
    "Dim the telly to 25%.", "dim lamp by seventy five percent", "Never mind!", "add Brown bread, to my shopping list.",
    "dim the lamp to 26 percent", "make me a sandwich",
])  # fmt: skip
def test_home_assistant_is_told_what_its_own_recogniser_says(demo, text):
    """As its Wyoming integration asks: a transcript, answered by an intent whose entities are the slots. hassil is its own."""
    hassil = pytest.importorskip("hassil")
    with socket.create_server(("127.0.0.1", 0)) as free:
        uri = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    wanted = hassil.recognize(text, hassil.Intents.from_dict(HOME), language="en")
    sentences = Grammar.from_phrases([text.casefold().rstrip(".!")])  # which has no intents
    voices = Voices(grammars={"sentences": sentences, "home": Grammar.from_templates(HOME)})

    async def talk(server):
        async with AsyncClient.from_uri(uri) as client:
            await client.write_event(Transcript(text, context={"conversation_id": "1"}, language="en").event())
            event = await asyncio.wait_for(client.read_event(), 20)
            if wanted is None:
                assert NotRecognized.is_type(event.type)
                return
            told = Intent.from_event(event)
            assert told.name == wanted.intent.name and told.context == {"conversation_id": "1"}
            slots = {entity.name: entity.value for entity in told.entities}
            theirs = {entity.name: entity.value for entity in wanted.entities_list}
            fold = lambda each: each.strip().casefold().rstrip(",") if isinstance(each, str) else each  # noqa: E731
            assert {name: fold(value) for name, value in slots.items()} == {name: fold(value) for name, value in theirs.items()}

    run_with(demo, talk, voices=voices, wyoming=uri)


@pytest.mark.slow
def test_models_with_attention_understand_as_their_pipeline_does(demo):
    """Each client has its own grammar, in one batch; Wyoming has the first. A recording must fit into one piece."""
    asr = pipeline("automatic-speech-recognition", model=str(bundled("examples/models/canary")))
    clip = hf_ngpulm.demo_recording()
    other = Grammar({"sail": ["drop the anchor"]})
    with socket.create_server(("127.0.0.1", 0)) as free:
        uri = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    wanted = {name: asr(clip.copy(), grammar=of) for name, of in {**VOICES.grammars, "other": other}.items()}
    plain = asr(clip.copy())["text"].strip()
    assert wanted["harbour"]["understood"] and not wanted["other"]["understood"]

    async def talk():
        voices = Voices(grammars={**VOICES.grammars, "other": other})
        async with serving(AttentionRecognizer(asr), Limits(clients=1), voices=voices, wyoming=uri) as server:
            asked = [ask(server, wav(clip), grammar=name) for name in (*wanted, "harbour")]
            *told, free = await asyncio.gather(*asked, ask(server, wav(clip)))
            for name, each in zip((*wanted, "harbour"), told, strict=True):
                close = {"confidence": pytest.approx(wanted[name]["confidence"], abs=1e-5)}  # sums differ in batches
                assert {k: v for k, v in each.items() if k != "usage"} == {**wanted[name], **close}
            assert free["text"] == plain and "understood" not in free
            own = await ask(server, wav(clip), grammar=json.dumps([SENTENCE]), explain="true")
            assert own["understood"] and own["text"] == own["explanation"]["readings"][0]["text"] == SENTENCE
            verbose = await ask(server, wav(clip), grammar="harbour", response_format="verbose_json")
            assert verbose["intent"] == "tell" and [each["text"] for each in verbose["segments"]] == [SENTENCE]
            error = await ask(server, wav(np.tile(clip, 11)), 400, grammar="harbour")
            assert "recordings of at most 30 s" in error["error"]["message"]
            for_words = {"grammar": "harbour", "response_format": "verbose_json", "timestamp_granularities": ["word"]}
            assert "no word times" in (await ask(server, wav(clip), 400, **for_words))["error"]["message"]
            async with server.session.get(server.at + "/v1/realtime") as response:
                assert response.status == 400 and STREAMED in await response.text()
            async with AsyncClient.from_uri(uri) as client:
                assert await said(client, (clip * 32767).astype("<i2")) == SENTENCE

    asyncio.run(talk())


def test_silence_is_not_understood(demo):
    silent = wav(np.zeros(1, dtype=np.float32))

    async def talk(server):
        told = await ask(server, silent, grammar="harbour")
        assert told["text"] == "" and told["understood"] is False and told["intent"] is None and told["slots"] == []
        assert "understood" not in await ask(server, silent)

    run_with(demo, talk)
