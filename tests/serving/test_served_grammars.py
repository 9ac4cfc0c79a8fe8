"""Grammars over the server's protocols: named ones and clients' own, and hostile ones refused."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("wyoming")
from serving_clients import DONE, serving, until, update
from test_realtime import appended, connected, pcm24
from test_transcriptions import ask, wav
from test_wyoming import said
from wyoming.client import AsyncClient
from wyoming.event import Event
from wyoming.info import Describe, Info
from wyoming.intent import Intent, NotRecognized

import hf_ngpulm
from hf_ngpulm import Grammar
from hf_ngpulm.grammar.expressions import Number, Sequence, Slot
from hf_ngpulm.serving import Limits, Voices

TELL = Sequence("tell the", Slot("who", "harbour master", "hm"), "we will be", Slot("minutes", Number(1, 60)), "minutes late")
VOICES = Voices(grammars={"harbour": Grammar({"tell": TELL, "sail": ["drop the anchor"]})})
SENTENCE = "tell the harbour master we will be twenty minutes late"
SLOTS = [("who", "hm"), ("minutes", 20)]


def pairs(told):
    return [(slot["name"], slot["value"]) for slot in told["slots"]]


def run_with(demo, talk, **settings):
    async def serve():
        async with serving(demo.recognizer(2, lm=None, lm_weight=None), Limits(clients=2), voices=VOICES, **settings) as server:
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
            (json.dumps(["a"] * 1001), "1001 phrases; at most 1000"),
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
    import socket

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
            assert "recognize should have a text" in (await client.read_event()).data["text"]

    run_with(demo, talk, wyoming=uri)
