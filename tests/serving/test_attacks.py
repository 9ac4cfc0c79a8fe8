"""Clients that would have the server to themselves: the others don't notice, and every place comes back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("aiohttp")
from aiohttp import ClientError, WSMsgType
from serving_clients import (
    COMMIT,
    DONE,
    PATH,
    append,
    engine_of,
    hello,
    nobody,
    pcm,
    refused,
    serving,
    speak,
    transcript,
    until,
    update,
    vanish,
)

from hf_ngpulm.serving import Limits
from hf_ngpulm.serving.access import local_hosts
from hf_ngpulm.serving.realtime import Realtime
from hf_ngpulm.text import spelling

LOCAL = {"X-Forwarded-For": "192.0.2.1"}  # as if through a proxy


async def flood(server, audio, seconds):
    """Send as fast as the server takes it, and be gone."""
    ws = await server.session.ws_connect(server.at + PATH)
    await ws.send_json(hello())

    async def send():
        while True:
            await ws.send_json(audio)

    sending = asyncio.create_task(send())
    await asyncio.sleep(seconds)
    vanish(ws)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)


def floods(demo, rounds, seconds):
    generator = random.Random(0)
    audio = append(pcm(np.concatenate(demo.clips[:2])[:32000]))

    async def talk():
        limits = Limits(clients=64, buffered_seconds=1.0)
        async with serving(demo.recognizer(64), limits) as server:
            for _ in range(rounds):
                # Those of the round before have places until it is noticed that they are gone.
                await asyncio.wait_for(nobody(server), 60)
                await asyncio.gather(*(flood(server, audio, seconds * generator.random()) for _ in range(16)))
            await asyncio.wait_for(nobody(server), 60)
            begin = time.monotonic()
        assert time.monotonic() - begin < limits.shutdown_seconds

    asyncio.run(talk())


def test_clients_that_upload_fast_and_disappear_leave_their_places(demo):
    floods(demo, 4, 0.6)


@pytest.mark.slow
def test_two_thousand_clients_that_upload_fast_and_disappear(demo):
    floods(demo, 125, 0.4)


SECOND = json.dumps(append(np.zeros(24_000, dtype="<i2")))


@pytest.mark.parametrize("later", range(8))
def test_who_has_to_go_goes(later):
    """Also if a message comes at that very moment: the reader would wait for room that nobody makes any more."""
    entered, left = [], []

    class Socket:
        async def receive(self):
            if not entered:
                return SimpleNamespace(type=WSMsgType.TEXT, data=SECOND)
            await self.message
            return SimpleNamespace(type=WSMsgType.TEXT, data=SECOND)

        async def send_json(self, event):
            if entered:
                await self.broken

    async def talk():
        ws, loop = Socket(), asyncio.get_running_loop()
        ws.message, ws.broken = loop.create_future(), loop.create_future()
        running = asyncio.create_task(Realtime(ws, engine_of(entered, left), Limits(buffered_seconds=1.5), None).run())
        while not entered:
            await asyncio.sleep(0.01)
        entered[0].deliver({"type": "final", "text": "", "words": []})
        await asyncio.sleep(0.05)
        ws.broken.set_exception(ConnectionResetError())
        for _ in range(later):
            await asyncio.sleep(0)
        if not ws.message.done():  # cancelled by now
            ws.message.set_result(None)
        await asyncio.wait_for(running, 5)

    asyncio.run(talk())
    assert left == entered


def test_what_may_wait_is_enough_to_be_decoded(demo):
    """Less than a chunk takes: nothing would be decoded, and nothing more be read."""

    async def talk():
        async with serving(demo.recognizer(1), Limits(clients=1, buffered_seconds=0.1)) as server:
            audio = np.concatenate(demo.clips[:3])
            events = await asyncio.wait_for(speak(server, pcm(audio), seconds=1.0), 60)
            assert len(transcript(events).split()) > 10

    asyncio.run(talk())


def test_who_says_nothing_has_no_place_for_longer(demo):
    """Nor do pings help, nor does not answering the goodbye."""

    async def talk():
        limits = Limits(clients=4, hello_seconds=1.0, close_seconds=4.0, heartbeat_seconds=60.0, send_seconds=60.0)
        async with serving(demo.recognizer(4), limits) as server, sockets(server, limits.clients) as raws:
            begin, receive = time.monotonic(), asyncio.get_running_loop().sock_recv
            async with server.session.ws_connect(server.at + PATH) as late:
                assert await refused(late) == (1013, "the server is full; try again later")
            while time.monotonic() < begin + 0.8:
                for raw in raws:
                    await asyncio.get_running_loop().sock_sendall(raw, PING)
                await asyncio.sleep(0.1)
            await nobody(server)
            assert time.monotonic() - begin < limits.hello_seconds + limits.close_seconds - 1
            async with server.session.ws_connect(server.at + PATH) as ws:
                await ws.send_json(hello())
                await until(ws, "session.updated")
            for raw in raws:  # one pong after the other, the goodbye, and the end
                while await asyncio.wait_for(receive(raw, 1000), limits.close_seconds + 5):
                    pass

    asyncio.run(talk())


@contextlib.asynccontextmanager
async def sockets(server, count):
    """Clients that do nothing by themselves."""
    with contextlib.ExitStack() as stack:
        raws, loop = [], asyncio.get_running_loop()
        for _ in range(count):
            raw = stack.enter_context(socket.create_connection(("127.0.0.1", int(server.at.rsplit(":", 1)[1]))))
            raw.setblocking(False)
            await loop.sock_sendall(raw, UPGRADE)
            assert (await loop.sock_recv(raw, 1000)).startswith(b"HTTP/1.1 101")
            raws.append(raw)
        yield raws


UPGRADE = (
    b"GET /v1/realtime HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
PING = b"\x89\x80" + bytes(4)


def test_an_address_has_so_many_places(demo):
    async def talk():
        async with serving(demo.recognizer(4), Limits(clients=4, clients_per_address=2)) as server:
            stream = server.at + PATH
            first, second = [await server.session.ws_connect(stream, headers=LOCAL) for _ in range(2)]
            async with server.session.ws_connect(stream, headers=LOCAL) as third:
                reason = "2 clients of 192.0.2.1 are connected, the most from one address; try again later"
                assert await refused(third) == (1013, reason)
            for headers in ({"X-Forwarded-For": "192.0.2.2"}, {}):
                async with server.session.ws_connect(stream, headers=headers) as other:
                    await other.send_json(hello())
                    await until(other, "session.updated")
            vanish(first)
            await second.close()
            await asyncio.wait_for(nobody(server), 5)
            async with server.session.ws_connect(stream, headers=LOCAL) as again:
                await again.send_json(hello())
                await until(again, "session.updated")

    asyncio.run(talk())


def test_headers_that_cannot_be_read(demo, caplog):
    async def talk():
        async with serving(demo.recognizer(1), Limits(clients=1), hosts=local_hosts("127.0.0.1")) as server:
            for headers, status in (
                ({"Host": "["}, 400), ({"Host": "[::1"}, 400), ({"Origin": "http://["}, 403), ({"Origin": "http://[::1"}, 403),
                ({"Host": "evil.example", "Origin": "http://evil.example"}, 403),
            ):  # fmt: skip
                async with server.session.get(server.at + PATH, headers=headers) as response:
                    assert response.status == status, headers
            async with server.session.ws_connect(server.at + PATH, headers={"X-Forwarded-For": "["}) as ws:
                await ws.send_json(hello())
                await until(ws, "session.updated")

    asyncio.run(talk())
    assert not caplog.records


def test_phrases_that_are_no_text(demo, caplog):
    async def talk():
        async with serving(demo.recognizer(1), Limits(clients=1)) as server, server.session.ws_connect(server.at + PATH) as ws:
            for sent, said in (
                (hello(keywords=["a\ud800"]), "valid Unicode"),
                (hello(keywords=[["\udfff", 1]]), "valid Unicode"),
                (hello(**{"\ud800": 1}), "unknown field in transcription"),  # in a name that the message quotes
            ):
                await ws.send_json(sent)
                assert said in (await until(ws, "error"))[-1]["error"]["message"]

    asyncio.run(talk())
    assert not caplog.records


def test_others_go_on_while_phrases_are_made(demo, monkeypatch):
    """However long that takes; and the audio of the client whose phrases they are waits for them."""
    threads, encode = set(), spelling.encode_batch

    def slow(texts, *others):
        threads.add(threading.current_thread().name)
        if any("harbour master" in text for text in texts):
            time.sleep(3.0)
        return encode(texts, *others)

    monkeypatch.setattr(spelling, "encode_batch", slow)

    async def talk():
        async with serving(demo.recognizer(2), Limits(clients=2)) as server, server.session.ws_connect(server.at + PATH) as ws:
            await ws.send_json(hello())
            await until(ws, "session.updated")
            begin = time.monotonic()
            await ws.send_json(update(transcription={"keywords": ["harbour master"]}))
            await ws.send_json(append(pcm(demo.clips[1])))
            await ws.send_json({"type": COMMIT})
            assert transcript(await speak(server, pcm(demo.clips[0]))) and time.monotonic() - begin < 3.0
            events = await until(ws, DONE)
            assert events[0]["type"] == "session.updated" and time.monotonic() - begin >= 3.0

    asyncio.run(talk())
    assert threads == {"hf-ngpulm-contexts"}


def test_who_changes_phrases_too_fast_is_read_slowly(demo):
    async def talk():
        limits = Limits(clients=1, phrases=10, phrase_seconds=2.0)
        async with serving(demo.recognizer(1), limits) as server, server.session.ws_connect(server.at + PATH) as ws:
            await ws.send_json(hello(keywords=["lighthouse"] * 5))
            await until(ws, "session.updated")
            begin = time.monotonic()
            for number in range(4):
                await ws.send_json(update(transcription={"keywords": [f"{'abcd'[number]} half speed"] * 5}))
            for _ in range(4):
                await until(ws, "session.updated")
            assert time.monotonic() - begin > 2.9  # a half was left, three more are a second each

    asyncio.run(talk())


async def change_phrases(server, texts, pause):
    """A client that changes its phrases all the time, and comes again when it is closed."""
    while True:
        try:
            async with server.session.ws_connect(server.at + PATH) as ws:
                await ws.send_json(hello())

                async def listen(ws=ws):
                    async for _ in ws:
                        pass

                listening, number = asyncio.create_task(listen()), 0
                while not listening.done():
                    await ws.send_str(texts[number % len(texts)])
                    number += 1
                    await asyncio.sleep(pause)
        except (ConnectionError, ClientError):
            await asyncio.sleep(0.1)


def waits(demo, attackers, pause, lists, seconds):
    """Seconds from the end of what healthy clients say to their transcripts, while others change their phrases all the time."""
    texts = [json.dumps(update(transcription={"keywords": phrases})) for phrases in lists]
    found = []

    async def healthy(server, phrases):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            async with server.session.ws_connect(server.at + PATH) as ws:
                await ws.send_json(hello(keywords=phrases))
                await until(ws, "session.updated")
                for at in range(0, 16000, 1600):
                    await ws.send_json(append(pcm(demo.clips[0][at : at + 1600])))
                    await asyncio.sleep(0.02)
                begin = time.monotonic()
                await ws.send_json({"type": COMMIT})
                await until(ws, DONE)
                found.append(time.monotonic() - begin)

    async def talk():
        async with serving(demo.recognizer(16), Limits(clients=16)) as server:
            await speak(server, pcm(demo.clips[0]), context={"keywords": ["lighthouse"]})
            bad = [asyncio.create_task(change_phrases(server, texts, pause)) for _ in range(attackers)]
            await asyncio.sleep(0.2)
            await asyncio.gather(healthy(server, []), healthy(server, ["half speed"]))
            assert not any(task.done() for task in bad)
            for task in bad:
                task.cancel()
            await asyncio.gather(*bad, return_exceptions=True)

    asyncio.run(talk())
    return np.percentile(found, 99)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["unwritable", "long"])
def test_a_client_that_changes_its_phrases_all_the_time_stalls_nobody(demo, kind):
    generator = random.Random(0)
    if kind == "unwritable":
        lists = [[f"w{first + number} x" for number in range(1000)] for first in range(0, 20_000, 1000)]
        attackers, pause = 1, 0.2
    else:
        lists = [["".join(generator.choices("abcdefgh ", k=30)) + "x" for _ in range(1000)] for _ in range(20)]
        attackers, pause = 4, 0.0
    alone = waits(demo, 0, 0.0, [], 8.0)
    attacked = waits(demo, attackers, pause, lists, 20.0)
    assert attacked < max(0.3, alone + 0.2), (alone, attacked)  # a machine may be slow without them


def test_a_server_that_stops_does_not_wait_for_who_does_not_listen(demo):
    """Clients that take nothing and don't say goodbye, while their phrases are made."""

    async def talk():
        limits = Limits(clients=8, shutdown_seconds=1.0, close_seconds=0.5, send_seconds=60.0)
        async with contextlib.AsyncExitStack() as stack:
            async with serving(demo.recognizer(8), limits) as server:
                raws = await stack.enter_async_context(sockets(server, limits.clients))
                for letter, raw in zip("abcdefgh", raws):
                    said = json.dumps(hello(keywords=[f"{letter} x {n}" for n in range(500)]))
                    await asyncio.get_running_loop().sock_sendall(raw, framed(said.encode()))
                await asyncio.sleep(0.3)
                begin = time.monotonic()
            assert time.monotonic() - begin < limits.shutdown_seconds + limits.close_seconds + 3

    asyncio.run(talk())


def framed(text):
    """A text message of a client, masked with zeros."""
    return b"\x81\xfe" + len(text).to_bytes(2, "big") + bytes(4) + text
