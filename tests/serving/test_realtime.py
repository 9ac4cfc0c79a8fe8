"""OpenAI's realtime transcription, spoken by its own client and by raw websockets."""

from __future__ import annotations

import asyncio
import base64
import json

import numpy as np
import pytest

pytest.importorskip("aiohttp")
import soxr
from serving_clients import DELTA, DONE, PATH, alone, nobody, refused, rounded, serving, until, update, vanish
from test_transcriptions import whole

from hf_ngpulm.decoding.thresholds import Thresholds
from hf_ngpulm.serving import Limits, Voices
from hf_ngpulm.serving.realtime import alaw, ulaw
from hf_ngpulm.sound.files import Resampler

QUIET = 1e-3 * np.random.default_rng(0).standard_normal(24000 * 2).astype(np.float32)


def pcm24(samples):
    return (np.clip(soxr.resample(samples, 16000, 24000), -1, 1) * 32767).astype("<i2")


def heard(data, rate=24000):
    """What the server hears of samples."""
    resample, samples = Resampler(rate, 16000), data.astype(np.float32) / 32768
    return np.concatenate([resample(samples), resample(samples[:0], last=True)])


def appended(data, size=4800):
    return [
        {"type": "input_audio_buffer.append", "audio": base64.b64encode(data[at : at + size].tobytes()).decode()}
        for at in range(0, len(data), size)
    ]


async def connected(server, path=PATH, **headers):
    ws = await server.session.ws_connect(server.at + path, headers=headers)
    created = await ws.receive_json()
    return ws, created


def test_the_official_client(demo):
    """Items that are committed, and one after the other: each is what a stream says that hears the same."""
    openai = pytest.importorskip("openai")

    async def talk():
        async with (
            serving(demo.recognizer(1, endpoint_seconds=0.6), Limits(clients=1)) as server,
            openai.AsyncOpenAI(base_url=f"{server.at}/v1", api_key="any") as client,
            client.realtime.connect(model="hf-ngpulm", extra_query={"intent": "transcription"}) as connection,
        ):
            assert (await connection.recv()).type == "session.created"
            await connection.session.update(
                session={
                    "type": "transcription",
                    "audio": {
                        "input": {
                            "format": {"type": "audio/pcm", "rate": 24000},
                            "transcription": {"model": "hf-ngpulm", "language": "en"},
                            "turn_detection": None,
                        }
                    },
                }
            )
            updated = await connection.recv()
            assert updated.type == "session.updated" and updated.session.audio.input.turn_detection is None
            previous = None
            for samples in demo.clips[:3]:
                data = pcm24(samples)
                for event in appended(data):
                    await connection.input_audio_buffer.append(audio=event["audio"])
                await connection.input_audio_buffer.commit()
                events = []
                while not events or events[-1].type != DONE:
                    events.append(await connection.recv())
                text = alone(demo.recognizer(1), heard(data), {})
                assert events[-1].transcript == text and len(text.split()) > 5
                assert whole([event.delta for event in events if event.type == DELTA], text)
                (committed,) = [event for event in events if event.type == "input_audio_buffer.committed"]
                assert (committed.item_id, committed.previous_item_id) == (events[-1].item_id, previous)
                assert [e.type for e in events if e.type.startswith("conversation.item.") and "input" not in e.type] == [
                    "conversation.item.added", "conversation.item.done",
                ]  # fmt: skip
                assert events[-1].usage.seconds == pytest.approx(len(samples) / 16000, abs=0.1)
                previous = committed.item_id

    asyncio.run(talk())


def test_whole_windows_give_the_offline_transcript(demo, offline):
    """Where all is heard at once, an item says what the decoder finds in the whole recording."""

    async def talk():
        recognizer = demo.recognizer(1, chunk_seconds=5.0, left_seconds=0.0, right_seconds=0.0)
        async with serving(recognizer, Limits(clients=1)) as server:
            ws, _ = await connected(server)
            for samples in demo.clips[:3]:
                data = pcm24(samples)
                for event in [*appended(data), {"type": "input_audio_buffer.commit"}]:
                    await ws.send_json(event)
                assert (await until(ws, DONE))[-1]["transcript"] == offline(heard(data)).text
            await ws.close()

    asyncio.run(talk())


def test_turns_end_where_nothing_is_said(demo):
    async def talk():
        async with serving(demo.recognizer(1, endpoint_seconds=0.6), Limits(clients=1)) as server:
            ws, created = await connected(server)
            turns = created["session"]["audio"]["input"]["turn_detection"]
            assert turns["type"] == "server_vad" and turns["silence_duration_ms"] == pytest.approx(600, abs=80)
            spoken = np.concatenate([demo.clips[0], QUIET[:32000], demo.clips[1], QUIET[:32000]])
            for event in appended(pcm24(spoken)):
                await ws.send_json(event)
            first, second = await until(ws, DONE), await until(ws, DONE)
            for events, begin, samples in ((first, 0, demo.clips[0]), (second, len(demo.clips[0]) + 32000, demo.clips[1])):
                kinds = [event["type"] for event in events if event["type"] != DELTA]
                assert kinds == [
                    "input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped", "input_audio_buffer.committed",
                    "conversation.item.added", "conversation.item.done", DONE,
                ]  # fmt: skip
                assert len({event["item_id"] for event in events if "item_id" in event}) == 1
                assert "".join(event["delta"] for event in events if event["type"] == DELTA) == events[-1]["transcript"]
                named = {event["type"]: event for event in events}
                assert named["input_audio_buffer.speech_started"]["audio_start_ms"] >= begin / 16 - 1300
                stopped = named["input_audio_buffer.speech_stopped"]["audio_end_ms"]
                assert begin / 16 < stopped < (begin + len(samples)) / 16 + 400
            await ws.send_json({"type": "input_audio_buffer.commit"})  # what is left
            third = await until(ws, DONE)
            assert third[-1]["item_id"] not in (first[-1]["item_id"], second[-1]["item_id"])
            ids = [event["event_id"] for event in (*first, *second)]
            assert len(set(ids)) == len(ids)
            await ws.close()

    asyncio.run(talk())


def test_keywords_at_any_time_and_formats(demo):
    """In mid-utterance, too; and audio as telephones have it."""
    name = "the coal lie house"

    async def talk():
        async with serving(demo.recognizer(2), Limits(clients=2)) as server:
            ws, created = await connected(server)
            assert created["type"] == "session.created"
            words = {"keywords": [[name, 20.0], "日本"]}
            await ws.send_json(update(format={"type": "audio/pcmu"}, transcription=words, turn_detection=None))
            (updated,) = await until(ws, "session.updated")
            assert updated["warnings"] == ["'日本' is ignored: the model can't write '日本'"]
            assert "audio/pcmu" in json.dumps(updated)
            codes = encoded_ulaw(soxr.resample(demo.clips[1], 16000, 8000))
            resample = Resampler(8000, 16000)
            sound = np.concatenate([resample(ulaw(codes)), resample(np.zeros(0, dtype=np.float32), last=True)])
            for event in [*appended(codes), {"type": "input_audio_buffer.commit"}]:
                await ws.send_json(event)
            boosted = (await until(ws, DONE))[-1]["transcript"]
            assert boosted == alone(demo.recognizer(1), sound, {"phrases": [(name, 20.0)]}) and "coal" in boosted
            for event in appended(codes)[:1]:  # amid the next item: none any more
                await ws.send_json(event)
            await ws.send_json(update(transcription={"keywords": [], "lm_weight": 0.9}))
            for event in [*appended(codes)[1:], {"type": "input_audio_buffer.commit"}]:
                await ws.send_json(event)
            plain = (await until(ws, DONE))[-1]["transcript"]
            assert plain == alone(demo.recognizer(1), sound, {}) != boosted
            await ws.close()

    asyncio.run(talk())


def encoded_ulaw(samples):
    """The nearest code of each sample."""
    levels = ulaw(np.arange(256, dtype=np.uint8))
    order = np.argsort(levels, kind="stable")
    edges = (levels[order][1:] + levels[order][:-1]) / 2
    return order[np.searchsorted(edges, samples)].astype(np.uint8)


def test_g711_is_what_others_say():
    """Against Python's own, where it still has it; and the ends of the tables of G.711."""
    codes = np.arange(256, dtype=np.uint8)
    assert list(ulaw(np.array([0x00, 0x80, 0x7F, 0xFF], dtype=np.uint8)) * 32768) == [-32124, 32124, 0, 0]
    assert list(alaw(np.array([0x2A, 0xAA, 0x55, 0xD5], dtype=np.uint8)) * 32768) == [-32256, 32256, -8, 8]
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        audioop = pytest.importorskip("audioop")
    for ours, theirs in ((ulaw, audioop.ulaw2lin), (alaw, audioop.alaw2lin)):
        assert np.array_equal(ours(codes) * 32768, np.frombuffer(theirs(codes.tobytes(), 2), dtype="<i2"))


def test_cleared_audio_is_never_heard(demo):
    async def talk():
        async with serving(demo.recognizer(1), Limits(clients=1)) as server:
            ws, _ = await connected(server)
            await ws.send_json(update(turn_detection=None))
            data = pcm24(demo.clips[0])
            for event in [*appended(pcm24(demo.clips[1])), {"type": "input_audio_buffer.clear"}, *appended(data)]:
                await ws.send_json(event)
            await ws.send_json({"type": "input_audio_buffer.commit"})
            events = await until(ws, DONE)
            assert "input_audio_buffer.cleared" in [event["type"] for event in events]
            assert events[-1]["transcript"] == alone(demo.recognizer(1), heard(data), {})
            await ws.close()

    asyncio.run(talk())


@pytest.mark.parametrize(
    "sent, said",
    [
        ("{", "JSON object"),
        (b"\0\1", "in base64"),
        ({"type": "response.create"}, "unknown type"),
        ({"type": "input_audio_buffer.append", "audio": "?"}, "in base64"),
        ({"type": "input_audio_buffer.append", "audio": 3}, "in base64"),
        ({"type": "input_audio_buffer.append", "audio": "AAAA"}, "2-byte samples"),
        ({"type": "input_audio_buffer.commit"}, "no audio to commit"),
        ({"type": "session.update"}, "session should be an object"),
        ({"type": "session.update", "session": {"type": "realtime"}}, "session.type should be transcription"),
        ({"type": "session.update", "session": {"include": ["x"]}}, "log-probabilities"),
        (update(format={"type": "audio/mp3"}), "audio/pcm at 4000"),
        (update(format={"type": "audio/pcm", "rate": 10**9}), "audio/pcm at 4000"),
        (update(transcription={"model": "gpt"}), "doesn't exist"),
        (update(transcription={"keywords": ["x" * 101]}), "at most 100"),
        (update(transcription={"keywords": [3]}), "a phrase should be"),
        (update(transcription={"lm": "/etc/passwd"}), "there is no language model"),
        (update(transcription={"num_beams": 4}), "unknown field in transcription"),
        (update(turn_detection={"type": "semantic_vad"}), "server_vad"),
        (update(turn_detection={"type": "server_vad"}), "doesn't detect turns"),
        (update(vad=True), "unknown field in session.audio.input: vad"),
        (update(transcription={"partials": 1}), "partials should be true or false"),
        ({"type": "transcription_session.update", "session": {}}, "unknown type: transcription_session.update"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_mistakes_are_told_and_the_session_goes_on(demo, sent, said):
    async def talk():
        async with serving(demo.recognizer(1), Limits(clients=1)) as server:
            ws, _ = await connected(server)
            if isinstance(sent, dict):
                await ws.send_json({**sent, "event_id": "mine"})
            elif isinstance(sent, bytes):
                await ws.send_bytes(sent)
            else:
                await ws.send_str(sent)
            (event,) = await until(ws, "error")
            assert said in event["error"]["message"] and event["error"]["type"] == "invalid_request_error"
            assert event["error"]["event_id"] == ("mine" if isinstance(sent, dict) else None)
            for message in [*appended(pcm24(demo.clips[0])), {"type": "input_audio_buffer.commit"}]:
                await ws.send_json(message)
            assert len((await until(ws, DONE))[-1]["transcript"].split()) > 5
            await ws.close()

    asyncio.run(talk())


ODD = [[], {}, [[]], {"a": []}, "x", "\ud800", -1, 10**400, 1.5, True, None]


def test_fields_of_any_type_are_told_or_taken(demo):
    """Each field, at each depth, with values of each type: an answer to each, and the session goes on."""
    texts = ("model", "prompt", "hotwords", "keywords", "lm", "lm_weight", "phrase_weight", "language", "delay", "partials")
    sessions = [
        *(update(transcription={name: value}) for name in texts for value in ODD),
        *(update(format={name: value, "type": "audio/pcm", **{name: value}}) for name in ("type", "rate") for value in ODD),
        *(update(turn_detection={name: value}) for name in ("type", "threshold") for value in ODD),
        *(update(**{name: value}) for name in ("transcription", "format", "turn_detection") for value in ODD),
        *({"type": "session.update", "session": {"type": "transcription", "audio": value}} for value in ODD),
        *({"type": "session.update", "session": value} for value in ODD),
        *({"type": "session.update", "session": {"type": value}} for value in ODD),
        *({"type": "input_audio_buffer.append", "audio": value, "event_id": value} for value in ODD),
        *({"type": value} for value in ODD),
    ]  # fmt: skip

    async def talk():
        limits = Limits(clients=1, phrase_seconds=1e-3)
        async with serving(demo.recognizer(1), limits) as server:
            ws, _ = await connected(server)
            for sent in sessions:
                await ws.send_json(sent)
                answer = await ws.receive_json(timeout=10)
                assert answer["type"] in ("error", "session.updated"), (sent, answer)
            await ws.close()

    asyncio.run(talk())


def test_limits_hold(demo):
    async def talk():
        limits = Limits(clients=2, hello_seconds=0.4, idle_seconds=0.6, send_seconds=1.0, message_bytes=20_000)
        async with serving(demo.recognizer(2), limits) as server:
            silent, _ = await connected(server)
            assert await refused(silent) == (1008, "no message came within 0.4 s")
            idle, _ = await connected(server)
            await idle.send_json(update(turn_detection=None))
            assert await refused(idle) == (1008, "no message came within 0.6 s")
            large, _ = await connected(server)
            await large.send_json({"type": "input_audio_buffer.append", "audio": "A" * 30_000})
            assert (await refused(large))[0] == 1009
            first, _ = await connected(server)
            second, _ = await connected(server)
            third = await server.session.ws_connect(server.at + PATH)
            assert await refused(third) == (1013, "the server is full; try again later")
            for message in appended(pcm24(demo.clips[0])):
                await first.send_json(message)
            vanish(first)
            await second.close()
            await asyncio.wait_for(nobody(server), 5)
            for query, status in (("intent=conversation", 400), ("model=gpt", 404)):
                async with server.session.get(f"{server.at}/v1/realtime?{query}") as response:
                    assert response.status == status

    asyncio.run(talk())


def test_a_server_that_stops_completes_what_was_said(demo):
    async def talk():
        async with serving(demo.recognizer(2), Limits(clients=2)) as server:
            ws, _ = await connected(server)
            data = pcm24(demo.clips[0])
            for message in appended(data):
                await ws.send_json(message)
            await until(ws, DELTA)
            other, _ = await connected(server)
            stopping = asyncio.create_task(server.runner.cleanup())
            events = await until(ws, DONE)
            assert events[-1]["transcript"] == alone(demo.recognizer(1), heard(data), {})
            assert (await refused(ws))[0] == 1001 and (await refused(other))[0] == 1001
            await stopping

    asyncio.run(talk())


def test_language_models_of_items(demo):
    async def talk():
        voices = Voices(lms={"harbour": demo.lm, "other": demo.other_lm})
        recognizer = demo.recognizer(1, lm=[demo.lm, demo.other_lm])
        async with serving(recognizer, Limits(clients=1), voices=voices) as server:
            ws, _ = await connected(server)
            data, found = pcm24(demo.clips[0]), {}
            for name in ("harbour", "other", "none"):
                await ws.send_json(update(transcription={"lm": name}, turn_detection=None))
                for message in [*appended(data), {"type": "input_audio_buffer.commit"}]:
                    await ws.send_json(message)
                found[name] = (await until(ws, DONE))[-1]["transcript"]
            for name, lm in (("harbour", demo.lm), ("other", demo.other_lm), ("none", None)):
                weight = {} if lm is None else {"lm_weight": 0.9}
                single = demo.recognizer(1, **({"lm": lm, **weight} if lm else {"lm": None, "lm_weight": None}))
                assert found[name] == alone(single, heard(data), {})
            assert found["harbour"] != found["none"]
            await ws.close()

    asyncio.run(talk())


@pytest.mark.parametrize("lm", [True, False])
def test_phrases_are_looked_at_again_at_the_end_of_each_item(demo, lm):
    """Each item is what a stream of the library says that looks at the same phrases; nothing is told before."""
    phrases, samples = ["starboard", "speed", "lighthouse", ["zebra", 2.0]], [demo.clips[0], demo.clips[2]]
    look = {"phrase_weight": 3.0, "false_alarms_per_hour": 1e5, "explain": True}

    own = {} if lm else {"lm": None, "lm_weight": None}

    async def talk(**settings):
        found = []
        async with serving(demo.recognizer(1, **own), Limits(clients=1), **settings) as server:
            ws, _ = await connected(server)
            await ws.send_json(update(transcription={"keywords": phrases, "partials": True, **look}))
            assert (await until(ws, "session.updated"))[-1]["session"]["audio"]["input"][
                "transcription"
            ].items() >= look.items()
            for clip in samples:
                data = pcm24(clip)
                for event in [*appended(data), {"type": "input_audio_buffer.commit"}]:
                    await ws.send_json(event)
                events = await until(ws, DONE)
                deltas = [number for number, event in enumerate(events) if event["type"] == DELTA]
                (committed,) = [n for n, event in enumerate(events) if event["type"] == "input_audio_buffer.committed"]
                assert len(deltas) <= 1 and all(number > committed for number in deltas)
                found.append((events[-1]["transcript"], events[-1]["phrases"], heard(data), events[-1]["words"]))
            await ws.close()
        return found

    told = asyncio.run(talk())
    listed = [tuple(each) if isinstance(each, list) else each for each in phrases]
    begin = 0.0
    for text, reports, audio, words in told:
        recognizer = demo.recognizer(1, **own)
        sid = recognizer.open(phrases=listed, **look)
        recognizer.push(sid, audio)
        while recognizer.step():
            pass
        best = recognizer.close(sid)[0]
        assert text == best.text != ""
        assert rounded(reports) == rounded(report.as_dict() for report in best.phrases)
        assert {each["text"] for each in reports} == {"starboard", "speed", "lighthouse", "zebra"}
        assert all(begin <= each["start"] <= words[-1]["end"] + 0.1 for each in reports if "start" in each)
        begin += len(audio) / 16000
    assert lm or any(each["heard"] and "ratio" in each for _, reports, *_ in told for each in reports)
    if not lm:  # with an LM all is heard without
        more = asyncio.run(talk(voices=Voices(thresholds=Thresholds(1e6, 0.0, 0.0, 0.0))))  # none enters
        assert [text for text, *_ in more] == [alone(demo.recognizer(1, **own), audio, {}) for *_, audio, _ in more]
        assert all("lighthouse" not in text for text, *_ in more)


def test_a_second_look_that_cannot_be_is_refused(demo):
    async def talk():
        async with serving(demo.recognizer(1), Limits(clients=1)) as server:
            ws, _ = await connected(server)

            async def refusal(**transcription):
                await ws.send_json(update(transcription=transcription))
                return (await until(ws, "error"))[-1]["error"]["message"]

            assert "needs phrases; add keywords" in await refusal(false_alarms_per_hour=1)
            assert "should be a number from 1e-06 to 1e+06" in await refusal(keywords=["a"], false_alarms_per_hour=0)
            both = {"keywords": ["harbour"], "grammar": '["all stop"]', "false_alarms_per_hour": 1}
            assert "doesn't apply to grammars" in await refusal(**both)
            await ws.send_json(update(transcription={"keywords": ["harbour"], "false_alarms_per_hour": 1}))
            await until(ws, "session.updated")
            data = appended(pcm24(demo.clips[0]))
            await ws.send_json(data[0])
            assert "can't change within an utterance" in await refusal(false_alarms_per_hour=2)
            assert "can't change within an utterance" in await refusal(false_alarms_per_hour=None)
            await ws.send_json(update(transcription={"keywords": ["starboard", "port"]}))  # other phrases may come
            await until(ws, "session.updated")
            for event in [*data[1:], {"type": "input_audio_buffer.commit"}]:
                await ws.send_json(event)
            assert {report["text"] for report in (await until(ws, DONE))[-1].get("phrases", [])} <= {"starboard", "port"}
            await ws.send_json(update(transcription={"false_alarms_per_hour": None}))
            await until(ws, "session.updated")
            await ws.close()

    asyncio.run(talk())
