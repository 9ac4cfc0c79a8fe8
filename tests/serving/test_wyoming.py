"""Wyoming, spoken by the client of its own package, and by those who mean no good."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import numpy as np
import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("wyoming")
from serving_clients import serving
from wyoming.asr import Transcript
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncClient
from wyoming.error import Error
from wyoming.event import Event
from wyoming.info import Describe, Info

from hf_ngpulm.serving import Limits


@contextlib.asynccontextmanager
async def wyoming(recognizer, limits=None):
    with socket.create_server(("127.0.0.1", 0)) as free:
        uri = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    async with serving(recognizer, limits or Limits(clients=1), wyoming=uri) as server:
        yield uri, server


async def events_of(data, rate=16000, channels=1, asked=None):
    yield Event("transcribe", asked or {})  # older ones of the package don't know names
    yield AudioStart(rate, 2, channels).event()
    for at in range(0, len(data), 1024):
        yield AudioChunk(rate, 2, channels, data[at : at + 1024].tobytes()).event()
    yield AudioStop().event()


async def said(client, *args, **asked):
    async for event in events_of(*args, asked=asked):
        await client.write_event(event)
    answer = await asyncio.wait_for(client.read_event(), 60)
    assert Transcript.is_type(answer.type), answer
    return Transcript.from_event(answer).text


def test_the_official_client_is_given_the_offline_transcript(demo, offline):
    async def talk():
        async with wyoming(demo.recognizer(1)) as (uri, _), AsyncClient.from_uri(uri) as client:
            await client.write_event(Describe().event())
            (program,) = Info.from_event(await client.read_event()).asr
            assert program.installed and [model.name for model in program.models] == ["hf-ngpulm"]
            for samples in demo.clips[:3]:  # one after the other
                data = (samples * 32767).astype("<i2")
                heard = data.astype(np.float32) / 32768
                assert await said(client, data) == offline(heard).text
                stereo = np.repeat(data, 2).reshape(-1, 2)
                assert await said(client, stereo, 16000, 2) == offline(heard).text
            name = "the coal lie house"
            boosted = await said(client, data, name="hf-ngpulm", language="en", transcript_names=[name])
            assert boosted == offline(heard, phrases=[name]).text
            assert await said(client, data[:0]) == ""

    asyncio.run(talk())


@pytest.mark.parametrize(
    "event, message",
    [
        (Event("audio-chunk", {"rate": 16000, "width": 4, "channels": 1}, bytes(4)), "2 bytes per sample"),
        (Event("audio-chunk", {"rate": 16000, "width": 2, "channels": 2}, bytes(2)), "whole samples"),
        (Event("audio-chunk", {"rate": 10**12, "width": 2, "channels": 1}, bytes(2)), "Hz"),
        (Event("audio-chunk", {"rate": "x", "width": 2, "channels": 1}, bytes(2)), "Hz"),
        (b'{"type": "audio-chunk", "payload_length": 1000000000000}\n', "payload_length"),
        (b'{"type": "describe", "data_length": -1}\n', "data_length"),
        (b'{"type": "describe", "data_length": true}\n', "data_length"),
        (b'{"type": "describe", "data": 3}\n', "data should be a JSON object"),
        (b'{"type": 3}\n', "a type"),
        (b"[" * 5000 + b"\n", "JSON object"),
        (b"x" * 100_000, "a header may have at most 65536 bytes"),
        (b"\xff\n", "JSON object"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_no_wyoming_is_told_and_closed(demo, event, message):
    async def talk():
        async with wyoming(demo.recognizer(1)) as (uri, server), AsyncClient.from_uri(uri) as client:
            if isinstance(event, bytes):
                client._writer.write(event)
            else:
                await client.write_event(event)
            answer = await asyncio.wait_for(client.read_event(), 10)
            assert Error.is_type(answer.type) and message in answer.data["text"]
            assert await asyncio.wait_for(client.read_event(), 10) is None
            await idle(server)

    asyncio.run(talk())


@pytest.mark.parametrize(
    "asked, message",
    [
        ({"name": "gpt"}, "doesn't exist"),
        ({"name": ["hf-ngpulm"]}, "doesn't exist"),
        ({"name": {}}, "doesn't exist"),
        ({"transcript_names": [["x", 10**400]]}, "weight should be a number"),
        ({"transcript_names": [{}]}, "a phrase should be"),
        ({"transcript_names": ["x" * 101]}, "at most 100"),
        ({"transcript_terms": "word"}, "lists of texts"),
    ],
)
def test_what_is_asked_for_wrongly(demo, asked, message):
    async def talk():
        async with wyoming(demo.recognizer(1)) as (uri, _), AsyncClient.from_uri(uri) as client:
            await client.write_event(Event("transcribe", asked))
            await client.write_event(AudioStart(16000, 2, 1).event())
            answer = await asyncio.wait_for(client.read_event(), 10)
            assert Error.is_type(answer.type) and message in answer.data["text"]

    asyncio.run(talk())


async def idle(server):
    for _ in range(200):
        async with server.session.get(f"{server.at}/health") as response:
            if not (await response.json())["recordings"]:
                return
        await asyncio.sleep(0.02)
    raise AssertionError("a place is lost")


def test_limits_hold(demo):
    async def talk():
        limits = Limits(clients=1, uploads=2, hello_seconds=0.4, idle_seconds=0.6, audio_seconds=12.0)
        async with wyoming(demo.recognizer(1), limits) as (uri, server):
            async with AsyncClient.from_uri(uri) as silent:
                assert await asyncio.wait_for(silent.read_event(), 5) is None
            async with AsyncClient.from_uri(uri) as idling:
                await idling.write_event(AudioStart(16000, 2, 1).event())
                assert await asyncio.wait_for(idling.read_event(), 5) is None
            async with AsyncClient.from_uri(uri) as long:
                with contextlib.suppress(ConnectionError):
                    for _ in range(14):
                        await long.write_event(AudioChunk(16000, 2, 1, bytes(32000)).event())
                answer = await asyncio.wait_for(long.read_event(), 10)
                assert "longer than 12 s" in answer.data["text"]
            async with contextlib.AsyncExitStack() as stack:
                for _ in range(2):
                    client = await stack.enter_async_context(AsyncClient.from_uri(uri))
                    await client.write_event(Describe().event())
                    await client.read_event()
                third = await stack.enter_async_context(AsyncClient.from_uri(uri))
                assert "the server is full" in (await asyncio.wait_for(third.read_event(), 5)).data["text"]
            gone = AsyncClient.from_uri(uri)
            await gone.connect()
            await gone.write_event(AudioChunk(16000, 2, 1, bytes(32000)).event())
            gone._writer.transport.abort()
            await idle(server)

    asyncio.run(talk())


def test_who_is_cut_off_is_told(demo):
    async def talk():
        limits = Limits(clients=1, shutdown_seconds=0.3)
        async with wyoming(demo.recognizer(1), limits) as (uri, server), AsyncClient.from_uri(uri) as client:
            await client.write_event(AudioChunk(16000, 2, 1, bytes(32000)).event())
            await asyncio.sleep(0.2)
            await server.runner.cleanup()
            answer = await asyncio.wait_for(client.read_event(), 5)
            assert Error.is_type(answer.type) and "shutting down" in answer.data["text"]

    asyncio.run(talk())


def test_addresses_that_are_none(demo):
    from hf_ngpulm.serving import make_app

    for uri in ("tcp://127.0.0.1", "unix:///tmp/x", "127.0.0.1:1", "tcp://h:99999", ""):
        with pytest.raises(ValueError, match=r"wyoming should be tcp://HOST:PORT"):
            make_app(demo.recognizer(1), Limits(clients=1), wyoming=uri)
