"""The server with real clients: what they are sent, and what becomes of those that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("aiohttp")
from aiohttp import WSMsgType
from serving_clients import (
    COMMIT,
    DONE,
    PARTIAL,
    PATH,
    alone,
    append,
    encoded,
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

from hf_ngpulm.errors import StreamError
from hf_ngpulm.serving import Limits
from hf_ngpulm.serving.access import local_hosts
from hf_ngpulm.serving.realtime import Realtime

LISTS = [None, ["lighthouse", "half speed"], [["coast guard", 2.0], "weather"]]
QUICK = Limits(clients=8, hello_seconds=0.4, idle_seconds=0.6, heartbeat_seconds=5.0, send_seconds=1.0)


def test_a_client_is_sent_partials_and_its_transcript(demo):
    async def talk():
        async with serving(demo.recognizer(2), Limits(clients=2)) as server:
            data, heard = encoded(demo.clips[0], 48000)
            events = await speak(server, data, 48000, pause=0.1)
            assert transcript(events) == alone(demo.recognizer(1), heard, {})
            partials = [event for event in events if event["type"] == PARTIAL]
            assert partials and all(event["text"].startswith(event["stable"]) for event in partials)
            assert partials[0]["audio_end_ms"] == 1280
            (done,) = [event for event in events if event["type"] == DONE]
            assert [word["word"] for word in done["words"]] == done["transcript"].split()
            assert 0 <= done["words"][0]["start"] < done["words"][-1]["end"] <= len(heard) / 16000 + 0.1
            # The LM's weight is the client's own.
            events = await speak(server, data, 48000, {"lm_weight": 0, "partials": False})
            assert not any(event["type"] == PARTIAL for event in events)
            assert (
                transcript(events)
                == alone(demo.recognizer(1), heard, {"lm_weight": 0.0})
                != alone(demo.recognizer(1), heard, {})
            )

    asyncio.run(talk())


def test_words_have_times_of_the_session(demo):
    """The second item is the same clip again: its times come after the first one's."""

    async def talk():
        async with serving(demo.recognizer(1), Limits(clients=1)) as server:
            data, times = pcm(demo.clips[0]), []
            async with server.session.ws_connect(server.at + PATH) as ws:
                await ws.send_json(hello())
                for _ in range(2):
                    await ws.send_json(append(data))
                    await ws.send_json({"type": COMMIT})
                    times.append((await until(ws, DONE))[-1]["words"][0]["start"])
            assert times[1] == pytest.approx(times[0] + len(data) / 16000, abs=0.002)

    asyncio.run(talk())


def test_phrases_of_a_client_also_in_mid_utterance(demo):
    """A clip said twice: its phrases are the client's from the first, then none are. Others have none all the while."""

    async def talk():
        recognizer = demo.recognizer(2)
        async with serving(recognizer, Limits(clients=2)) as server:
            audio, heard = encoded(np.concatenate([demo.clips[1], demo.clips[1]]))
            name, half = "the coal lie house", len(demo.clips[1])
            async with server.session.ws_connect(server.at + PATH) as ws:
                await ws.send_json(hello(keywords=[[name, 20.0], "日本"]))
                updated = (await until(ws, "session.updated"))[-1]
                assert updated["warnings"] == ["'日本' is ignored: the model can't write '日本'"]
                other = asyncio.create_task(speak(server, audio))
                await ws.send_json(append(audio[:half]))
                while (await until(ws, PARTIAL))[-1]["audio_end_ms"] < 1300:
                    pass
                await ws.send_json(update(transcription={"keywords": []}))
                assert "warnings" not in (await until(ws, "session.updated"))[-1]
                await ws.send_json(append(audio[half:]))
                await ws.send_json({"type": COMMIT})
                boosted = transcript(await until(ws, DONE))
            plain = transcript(await other)
            assert plain == alone(demo.recognizer(1), heard, {})
            everywhere = alone(demo.recognizer(1), heard, {"phrases": [(name, 20.0)]})
            assert everywhere.count("coal") > boosted.count("coal") >= 1 and "coal" not in plain, (plain, boosted, everywhere)

    asyncio.run(talk())


def test_utterances_end_where_nothing_is_said(demo):
    def finals(events):
        return [event for event in events if event["type"] == DONE and event["transcript"]]

    async def talk():
        async with serving(demo.recognizer(1, endpoint_seconds=0.6), Limits(clients=1)) as server:
            quiet = 1e-3 * np.random.default_rng(0).standard_normal(40000).astype(np.float32)
            first, second = finals(await speak(server, pcm(np.concatenate([demo.clips[0], quiet, demo.clips[1]]))))
            assert first["words"][-1]["end"] < len(demo.clips[0]) / 16000 + 0.3 < second["words"][-1]["start"]
        async with serving(demo.recognizer(1), Limits(clients=1, utterance_seconds=1.0)) as server:
            assert len(finals(await speak(server, pcm(demo.clips[0])))) > 1  # cut, however long it goes on

    asyncio.run(talk())


@pytest.mark.parametrize(
    "sent, code, reason",
    [
        ([], 1008, "no message came within 0.4 s"),
        ([hello()], 1008, "no message came within 0.6 s"),
        (["garbage"], 1008, "no message came within 0.6 s"),
        ([hello(), bytes(300_000)], 1009, ""),
    ],
    ids=lambda value: str(value)[:30],
)
def test_clients_that_break_the_rules_are_closed_with_a_reason(demo, sent, code, reason):
    async def talk():
        async with serving(demo.recognizer(8), QUICK, tick=0.02) as server:
            async with server.session.ws_connect(server.at + PATH) as ws:
                for message in sent:
                    if isinstance(message, dict):
                        await ws.send_json(message)
                    elif isinstance(message, bytes):
                        await ws.send_bytes(message)
                    else:
                        await ws.send_str(message)
                closed_with, why = await refused(ws)
            assert closed_with == code and reason in (why or "")
            await asyncio.wait_for(nobody(server), 5)

    asyncio.run(talk())


def test_audio_that_breaks_the_model_closes_its_client_alone(demo):
    recognizer = demo.recognizer(2)
    step = recognizer.step

    def broken(*sizes):
        if (ready := recognizer.ready()) and ready[0] == 0:
            raise StreamError({0: "NaN"}, {})
        return step(*sizes)

    recognizer.step = broken

    async def talk():
        async with serving(recognizer, Limits(clients=2)) as server:
            async with server.session.ws_connect(server.at + PATH) as ws:
                await ws.send_json(hello())
                await ws.send_json(append(pcm(demo.clips[0])))
                assert await refused(ws) == (1008, "the audio can't be decoded: the model's outputs for it are broken")
            data, heard = encoded(demo.clips[1])
            assert transcript(await speak(server, data)) == alone(demo.recognizer(1), heard, {})

    asyncio.run(talk())


def test_a_transcript_that_the_rescorer_cant_read_closes_its_client_alone(demo):
    class Unreadable:
        def scores(self, lists, history=None):
            if max(len(text) for texts in lists for text in texts) > 3:
                raise ValueError("a text of 9,999 tokens")
            return [[0.0 for _ in texts] for texts in lists]

    recognizer = demo.recognizer(2, rescorer=Unreadable())

    async def talk():
        async with serving(recognizer, Limits(clients=2)) as server:
            quiet = await server.session.ws_connect(server.at + PATH)
            await quiet.send_json(hello())
            await quiet.send_json(append(pcm(np.zeros(16000, dtype=np.float32))))
            for _ in range(3):  # more than there are places
                async with server.session.ws_connect(server.at + PATH) as ws:
                    await ws.send_json(hello())
                    await ws.send_json(append(pcm(demo.clips[0])))
                    await ws.send_json({"type": COMMIT})
                    assert await refused(ws) == (1008, "a text of 9,999 tokens")
            async with server.session.ws_connect(server.at + PATH) as ws:  # and one that is gone before the end
                await ws.send_json(hello())
                await ws.send_json(append(pcm(demo.clips[0])))
                await until(ws, PARTIAL)
            await quiet.send_json({"type": COMMIT})
            await until(quiet, DONE)
            async with server.session.get(f"{server.at}/health") as response:
                assert response.status == 200

    asyncio.run(talk())


def test_a_full_server_says_so_and_has_room_again(demo):
    async def talk():
        async with serving(demo.recognizer(2), Limits(clients=2)) as server:
            for _ in range(2):
                first, second = [await server.session.ws_connect(server.at + PATH) for _ in range(2)]
                await first.send_json(hello())
                await first.receive()
                async with server.session.ws_connect(server.at + PATH) as third:
                    assert await refused(third) == (1013, "the server is full; try again later")
                vanish(first)
                await second.close()
                await asyncio.wait_for(nobody(server), 5)

    asyncio.run(talk())


def test_a_client_that_is_gone_without_a_word_is_noticed(demo):
    """One answers pings, since it reads; the other doesn't."""

    async def talk():
        async with serving(demo.recognizer(2), Limits(clients=2, heartbeat_seconds=0.4)) as server:
            gone = await server.session.ws_connect(server.at + PATH, autoping=False)
            await gone.send_json(hello())
            there = await server.session.ws_connect(server.at + PATH)
            await there.send_json(hello())
            await until(there, "session.updated")
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(there.receive(), 1.5)
            async with server.session.get(f"{server.at}/health") as response:
                assert (await response.json())["clients"] == 1
            await there.close()

    asyncio.run(talk())


@pytest.mark.parametrize("stalls", [True, False])
def test_a_client_that_takes_nothing_is_dropped(demo, stalls):
    """What is sent to it doesn't leave; or (it is slow) more has been said than is kept for it."""
    aborted, entered, left = [], [], []

    class Socket:
        async def receive(self):
            if not entered:
                return SimpleNamespace(type=WSMsgType.TEXT, data=json.dumps(append(pcm(demo.clips[0][:2400]))))
            await asyncio.sleep(60)

        async def send_json(self, event):
            if entered:
                await asyncio.sleep(60)

    async def talk():
        limits = Limits(send_seconds=0.1 if stalls else 60.0, unsent=3)
        transport = SimpleNamespace(abort=lambda: aborted.append(True), is_closing=lambda: bool(aborted))
        connection = Realtime(Socket(), engine_of(entered, left), limits, transport)
        running = asyncio.create_task(connection.run())
        while not entered:
            await asyncio.sleep(0.01)
        for _ in range(1 if stalls else 6):
            entered[0].deliver({"type": "final", "text": "", "words": []})
        await asyncio.wait({running}, timeout=0.5)
        assert aborted
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(talk())
    assert left == entered


def test_a_client_that_sends_faster_than_it_is_decoded_is_read_slowly(demo):
    """Ten times what may wait, sent at once: all of it is decoded, little of it is held."""
    recognizer, waited = demo.recognizer(1), []
    push = recognizer.push
    recognizer.push = lambda sid, samples: (push(sid, samples), waited.append(recognizer.waiting_seconds(sid)))[0]

    async def talk():
        async with serving(recognizer, Limits(clients=1, buffered_seconds=3.0)) as server:
            audio, heard = encoded(np.concatenate(demo.clips[:8]))
            assert transcript(await speak(server, audio, seconds=0.2)) == alone(demo.recognizer(1), heard, {})
            assert len(audio) / 16000 > 20 and max(waited) < 3.0 + 2 * recognizer.latency_seconds

    asyncio.run(talk())


def test_pages_and_who_may_connect(demo):
    async def talk():
        settings = {"origins": ["https://friend.example"], "hosts": local_hosts("127.0.0.1")}
        async with serving(demo.recognizer(8), QUICK, **settings) as server:
            for path, kind in (("/", "text/html"), ("/page.js", "text/javascript"), ("/worklet.js", "text/javascript")):
                async with server.session.get(server.at + path) as response:
                    assert (response.status, response.content_type) == (200, kind)
                    assert "default-src 'none'" in response.headers["Content-Security-Policy"]
                    text = await response.text()
                    assert "http" not in text.replace("https:", "")  # nothing of it lies elsewhere
            for origin, status in (
                (None, 101), (server.at, 101), ("https://friend.example", 101), ("https://friend.example.org", 403),
                ("null", 403), ("http://127.0.0.1:1", 403),
            ):  # fmt: skip
                headers = {} if origin is None else {"Origin": origin}
                if status == 101:
                    async with server.session.ws_connect(server.at + PATH, headers=headers):
                        pass
                else:
                    async with server.session.get(server.at + PATH, headers=headers) as response:
                        assert response.status == status
            async with server.session.get(server.at, headers={"Host": "evil.example"}) as response:
                assert response.status == 403
            async with server.session.get(f"{server.at}/../../etc/passwd") as response:
                assert response.status == 404

    asyncio.run(talk())
    assert local_hosts("0.0.0.0") is None and local_hosts("example.org") is None and "localhost" in local_hosts("::1")


def test_an_error_that_nobody_expected_ends_its_streams_alone(demo, caplog):
    recognizer = demo.recognizer(2)
    step, broken = recognizer.step, [True]

    def once(*sizes):
        if recognizer.ready() and broken.pop() if broken else False:
            raise RuntimeError("out of memory")
        return step(*sizes)

    recognizer.step = once

    async def talk():
        async with serving(recognizer, Limits(clients=2)) as server:
            async with server.session.ws_connect(server.at + PATH) as ws:
                await ws.send_json(hello())
                await ws.send_json(append(pcm(demo.clips[0])))
                assert await refused(ws) == (1011, "decoding failed")
            data, heard = encoded(demo.clips[1])
            assert transcript(await speak(server, data)) == alone(demo.recognizer(1), heard, {})

    asyncio.run(talk())
    assert "out of memory" in caplog.text


async def misbehave(server, kind, audio, times):
    """Vanishes, sends garbage, stalls; again and again, until it is cancelled. What becomes of it, others test."""
    while True:
        with contextlib.suppress(Exception):
            ws = await server.session.ws_connect(server.at + PATH, autoping=False)
            times[kind] += 1
            if kind != "silent":
                await ws.send_json(hello())
            if kind == "silent":
                await refused(ws)
            elif kind == "vanish":
                await ws.send_json(append(audio[:30000]))
                await asyncio.sleep(0.1)
                vanish(ws)
            elif kind == "garbage":
                await ws.send_bytes(random.Random(0).randbytes(4000))
                await ws.send_str("{" * 1000)
                await ws.send_bytes(bytes(300_000))
                await refused(ws)
            elif kind == "half":  # a websocket frame that never ends
                with socket.create_connection(("127.0.0.1", int(server.at.rsplit(":", 1)[1]))) as raw:
                    raw.sendall(f"GET {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n".encode())
                    await asyncio.sleep(1.0)
            else:  # stalls: sends, and reads nothing
                for at in range(0, 40000, 4000):
                    await ws.send_json(append(audio[at : at + 4000]))
                    await asyncio.sleep(0.05)
                await asyncio.sleep(2.0)
                await ws.close()


BAD = ["vanish", "vanish", "garbage", "garbage", "stall", "stall", "half", "silent", "garbage"]


def load(demo, clients, seconds, pause):
    """Each of many clients says its own clips in its own way; ten others misbehave all the while."""
    # Those that misbehave come again before the server has noticed that they are gone.
    places = clients + 2 * len(BAD)
    limits = Limits(
        clients=places, hello_seconds=1.0, idle_seconds=60.0, heartbeat_seconds=10.0, send_seconds=5.0, shutdown_seconds=10.0
    )
    rates = [16000, 24000, 48000, 8000, 44100]
    said, expected, single = [], [], demo.recognizer(1)
    known: dict = {}
    for number in range(clients - len(BAD)):
        first, rate, phrases = number % 16, rates[number % 5], LISTS[number % len(LISTS)]
        key = first % 4, rate, str(phrases)
        if key not in known:
            clips = [demo.clips[(first % 4 + more) % 16] for more in range(16)]
            samples = np.concatenate(clips * (int(seconds) // 30 + 1))[: int(seconds * 16000)]
            data, heard = encoded(samples, rate)
            own = [tuple(phrase) if isinstance(phrase, list) else phrase for phrase in phrases or ()]
            known[key] = data, alone(single, heard, {"phrases": own} if own else {})
        data, text = known[key]
        said.append((data, rate, {"keywords": phrases or []}))
        expected.append(text)

    async def talk():
        async with serving(demo.recognizer(places), limits) as server:
            times: Counter[str] = Counter()
            bad = [asyncio.create_task(misbehave(server, kind, pcm(demo.clips[0]), times)) for kind in BAD]
            await asyncio.sleep(0.2)
            good = [speak(server, *client, pause=pause, seed=number) for number, client in enumerate(said)]
            found = await asyncio.gather(*good)
            assert not any(task.done() for task in bad) and min(times[kind] for kind in BAD) > 0 and times["garbage"] > 3
            for task in bad:
                task.cancel()
            await asyncio.gather(*bad, return_exceptions=True)
            return [transcript(events) for events in found]

    found = asyncio.run(talk())
    wrong = [number for number, (ours, theirs) in enumerate(zip(found, expected)) if ours != theirs]
    assert not wrong, [(found[number], expected[number]) for number in wrong[:2]]
    assert all(len(text.split()) > 3 for text in found)


@pytest.mark.slow
def test_many_clients_of_which_some_misbehave(demo):
    load(demo, 64, 3.0, 0.5)


@pytest.mark.slow
def test_many_clients_for_a_minute(demo):
    load(demo, 64, 60.0, 1.0)


def test_a_recogniser_with_streams_is_refused(demo):
    from hf_ngpulm.serving import make_app

    recognizer = demo.recognizer(2)
    recognizer.open()
    with pytest.raises(ValueError, match="has 1 streams open; close them"):
        make_app(recognizer, Limits(clients=1))
