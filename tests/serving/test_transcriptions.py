"""OpenAI's transcriptions, asked for with its own client, with curl, and by those who mean no good."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import shutil
import subprocess
from contextlib import asynccontextmanager

import numpy as np
import pytest
import torch

pytest.importorskip("aiohttp")
import soundfile
from aiohttp import FormData
from serving_clients import serving

from hf_ngpulm.serving import Limits, Voices
from hf_ngpulm.serving.answers import whole_words
from hf_ngpulm.serving.recordings import RecordingEngines, Take
from hf_ngpulm.sound.files import decode_audio

PATH = "/v1/audio/transcriptions"


def wav(samples, rate=16000, kind="WAV"):
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype="FLOAT" if kind == "WAV" else None)
    return file.getvalue()


@asynccontextmanager
async def client_of(server, **settings):
    openai = pytest.importorskip("openai")
    async with openai.AsyncOpenAI(base_url=f"{server.at}/v1", api_key="any", max_retries=0, **settings) as client:
        yield client


async def ask(server, audio, status=200, path=PATH, **fields):
    form = FormData()
    if audio is not None:
        form.add_field("file", audio, filename="clip.wav")
    for name, value in fields.items():
        for each in value if isinstance(value, list) else [value]:
            form.add_field(name, each, content_type="text/plain")  # as part of a multipart body
    async with server.session.post(server.at + path, data=form) as response:
        body = await response.read()
        assert response.status == status, body
        return json.loads(body) if response.content_type == "application/json" else body.decode()


async def busy(server):
    async with server.session.get(f"{server.at}/health") as response:
        return (await response.json())["recordings"]


def test_the_official_client_is_given_the_offline_transcript(demo, offline):
    async def talk():
        async with serving(demo.recognizer(1), Limits(clients=1)) as server, client_of(server) as client:
            assert [model.id async for model in client.models.list()] == ["hf-ngpulm"]
            assert (await client.models.retrieve("hf-ngpulm")).id == "hf-ngpulm"
            for samples in (*demo.clips[:3], np.concatenate(demo.clips[:6])):
                found, file = offline(samples), ("clip.wav", wav(samples))
                create = client.audio.transcriptions.create
                assert (await create(model="hf-ngpulm", file=file)).text == found.text
                verbose = await create(
                    model="hf-ngpulm", file=file, response_format="verbose_json",
                    timestamp_granularities=["word", "segment"], language="en", temperature=0.2,
                )  # fmt: skip
                assert verbose.text == found.text == " ".join(segment.text for segment in verbose.segments)
                assert [(word.word, word.start, word.end) for word in verbose.words] == [
                    (word.text, round(word.start, 3), round(word.end, 3)) for word in found.words
                ]
                assert verbose.duration == pytest.approx(len(samples) / 16000, abs=1e-3) and verbose.language == "en"
                assert verbose.segments[0].start == verbose.words[0].start and verbose.segments[-1].end == verbose.words[-1].end
                assert await create(model="hf-ngpulm", file=file, response_format="text") == found.text + "\n"
                srt = await create(model="hf-ngpulm", file=file, response_format="srt")
                assert re.match(r"1\n00:00:\d\d,\d{3} --> 00:00:\d\d,\d{3}\n\w", srt)
                assert " ".join(line for line in srt.splitlines() if re.match("[a-z]", line)) == found.text
                vtt = await create(model="hf-ngpulm", file=file, response_format="vtt")
                assert re.match(r"WEBVTT\n\n00:00:\d\d\.\d{3} --> ", vtt)
                events = [event async for event in await create(model="hf-ngpulm", file=file, stream=True)]
                assert events[-1].type == "transcript.text.done" and events[-1].text == found.text
                assert "".join(event.delta for event in events[:-1]) == found.text and len(events) > 1

    asyncio.run(talk())


def test_phrases_models_and_beams_of_a_recording(demo, offline):
    openai = pytest.importorskip("openai")
    name = "the coal lie house"

    async def talk():
        voices = Voices(["hf-ngpulm", "whisper-1"], {"harbour": demo.lm, "other": demo.other_lm})
        recognizer = demo.recognizer(1, lm=[demo.lm, demo.other_lm])
        async with serving(recognizer, Limits(clients=1), voices=voices) as server, client_of(server) as client:
            samples = demo.clips[1]

            async def text(**extra):
                keywords = {"keywords": extra.pop("keywords")} if "keywords" in extra else {}
                made = await client.audio.transcriptions.create(
                    model="whisper-1", file=("clip.wav", wav(samples)), extra_body=extra, **keywords
                )
                return made.text

            boosted = offline(samples, phrases=[name], phrase_weight=20.0).text
            both = offline(samples, phrases=["half speed", name], phrase_weight=20.0).text
            plain = offline(samples).text
            assert boosted != plain and "coal" in boosted
            assert await text() == plain
            assert await text(prompt=f"half speed, {name}.", phrase_weight="20") == both
            assert await text(hotwords=name, phrase_weight=20) == boosted
            assert await text(keywords=["half speed", name], phrase_weight=20) == both
            assert await text(hotwords=json.dumps([[name, 20.0]])) == boosted
            assert await text(lm="other") == offline(samples, lm=demo.other_lm).text
            assert await text(lm="none") == offline(samples, lm=None, lm_weight=None, num_beams=4).text
            assert await text(lm_weight=0.1) == offline(samples, lm_weight=0.1).text
            assert await text(num_beams=4) == offline(samples, num_beams=4).text == await text(num_beams="auto")
            for beams in (2, 3, 5, 6, 7):  # more than there may be recognisers for at a time
                assert await text(num_beams=beams) == offline(samples, num_beams=beams).text
            with pytest.raises(openai.BadRequestError) as caught:
                await text(lm="/etc/passwd")
            assert caught.value.param == "lm" and "'harbour', 'other', 'none'" in caught.value.message
            with pytest.raises(openai.NotFoundError) as missing:
                await client.audio.transcriptions.create(model="whisper-2", file=("clip.wav", wav(samples)))
            assert missing.value.code == "model_not_found"

    asyncio.run(talk())


def test_phrases_have_a_beam_where_the_server_has_no_lm(demo, offline):
    pytest.importorskip("openai")
    samples, name = demo.clips[1], "the coal lie house"

    async def talk():
        recognizer = demo.recognizer(1, lm=None, lm_weight=None)
        async with serving(recognizer, Limits(clients=1)) as server, client_of(server) as client:
            for extra, phrases, beams in (({}, None, 1), ({"hotwords": name, "phrase_weight": 20}, [name], 4)):
                settings = {"lm": None, "lm_weight": None, "phrases": phrases, "phrase_weight": 20.0 if phrases else None}
                file = ("clip.wav", wav(samples))
                made = await client.audio.transcriptions.create(model="hf-ngpulm", file=file, extra_body=extra)
                assert made.text == offline(samples, **settings, num_beams=beams).text

    asyncio.run(talk())


def whole(deltas, text):
    """Whether a text is made of deltas that end where its words do."""
    ends = np.cumsum([len(delta) for delta in deltas])
    return "".join(deltas) == text and all(end == len(text) or text[end] == " " for end in ends)


@pytest.mark.parametrize(
    "text, words",
    [("", ""), ("har", ""), ("the har", "the"), ("the harbour, ", "the harbour,"), ("a  b", "a"), ("今日は", "今日は"),
     ("今日\ufffd", "今日"), ("今日 ab", "今日"), ("สวัส", "สวัส"), ("안녕 하", "안녕"), (" ", "")],
)  # fmt: skip
def test_whole_words(text, words):
    assert whole_words(text) == words


def test_deltas_are_whole_words(demo):
    """Of a recording that is heard in several parts, at whose ends words are cut."""

    async def talk():
        async with serving(demo.recognizer(1), Limits(clients=1)) as server:
            for begin in range(3):
                long = np.concatenate([*demo.clips, *demo.clips])[begin * 4000 :]
                said = await ask(server, wav(long), stream="true")
                events = [json.loads(line[6:]) for line in said.split("\n\n") if line]
                deltas = [event["delta"] for event in events[:-1]]
                assert len(deltas) > 2 and whole(deltas, events[-1]["text"]), deltas

    asyncio.run(talk())


def test_phrases_that_cannot_be_written_are_told(demo):
    async def talk():
        async with serving(demo.recognizer(1), Limits(clients=1)) as server:
            audio, phrases = wav(demo.clips[0]), {"keywords": ["harbour", "日本"]}
            for more in ({}, {"response_format": "verbose_json"}):
                assert (await ask(server, audio, **phrases, **more))["warnings"] == [
                    "'日本' is ignored: the model can't write '日本'"
                ]
                assert "warnings" not in await ask(server, audio, keywords=["harbour"], **more)
            streamed = await ask(server, audio, **phrases, stream="true")
            assert "is ignored: the model" in streamed.split("\n\n")[-2]

    asyncio.run(talk())


def test_names_of_openai_are_known(demo):
    async def talk():
        async with serving(demo.recognizer(1), Limits(clients=1)) as server, client_of(server) as client:
            for name in ("whisper-1", "gpt-4o-transcribe", "gpt-4o-mini-transcribe"):
                assert (await ask(server, wav(demo.clips[0][:8000]), model=name))["text"] is not None
                assert (await client.models.retrieve(name)).id == name
            assert [model.id async for model in client.models.list()] == ["hf-ngpulm"]
            error = (await ask(server, wav(demo.clips[0]), 404, model="mine"))["error"]
            assert "'hf-ngpulm'" in error["message"] and "--served-name" in error["message"]

    asyncio.run(talk())


def test_many_at_once_share_batches_and_each_has_its_own_text(demo, offline):
    batches = []

    async def talk():
        recognizer = demo.recognizer(1)
        make = recognizer.for_recordings

        def watched(*args, **settings):
            made = make(*args, **settings)
            step = made.step
            made.step = lambda *sizes: (found := step(*sizes), batches.append(len(found)))[0]
            return made

        recognizer.for_recordings = watched
        async with serving(recognizer, Limits(clients=1)) as server:
            recordings = [*demo.clips, *(np.concatenate(demo.clips[n : n + 3]) for n in range(8))]
            long = np.concatenate([*demo.clips, *demo.clips[:8]])  # more than is heard at once
            answers = await asyncio.gather(ask(server, wav(long)), *(ask(server, wav(samples)) for samples in recordings))
            assert [found["text"] for found in answers[1:]] == [offline(samples).text for samples in recordings]
            assert len(long) / 16000 > 40 and len(answers[0]["text"].split()) > 80
            assert max(batches) > 4

    asyncio.run(talk())


@pytest.mark.parametrize("kind, rate", [("FLAC", 16000), ("OGG", 16000), ("MP3", 16000), ("WAV", 44100), ("WAV", 8000)])
def test_files_of_many_kinds(demo, kind, rate):
    import soxr

    async def talk():
        async with serving(demo.recognizer(1), Limits(clients=1, upload_memory=1000)) as server:  # it lies on the disk
            samples = demo.clips[0] if rate == 16000 else soxr.resample(demo.clips[0], 16000, rate)
            stereo = np.stack([samples, samples], axis=1)
            found = await ask(server, wav(stereo, rate, kind))
            assert len(found["text"].split()) > 5 and found["usage"]["seconds"] == pytest.approx(len(samples) / rate, abs=0.1)

    asyncio.run(talk())


@pytest.mark.parametrize("kind", ["webm", "m4a"])
def test_what_browsers_and_phones_record(demo, offline, kind):
    """Limits hold while it is decoded, whatever it says of itself; a damaged one is told."""
    pytest.importorskip("av")
    import containers
    import soxr

    data = containers.packed(soxr.resample(demo.clips[0], 16000, 48000), kind=kind)
    heard = offline(decode_audio(io.BytesIO(data), 16000)).text

    async def talk():
        async with serving(demo.recognizer(1), Limits(clients=1, upload_memory=1000)) as server:
            assert (await ask(server, data))["text"] == heard and len(heard.split()) > 5
            error = (await ask(server, data[:100] + bytes(1000), 400))["error"]
            assert error["message"].startswith("clip.wav: ") and error["param"] == "file"
        async with serving(demo.recognizer(1), Limits(clients=1, audio_seconds=1.0)) as server:
            assert "longer than 1 s" in (await ask(server, data, 400))["error"]["message"]

    asyncio.run(talk())


# Waits for ever where a file says so, and decodes others.
STUCK = """
import os, runpy, sys, time
if b"stuck" in os.read(0, 100):
    time.sleep(600)
runpy.run_path({!r}, run_name="__main__")
"""


def test_containers_that_give_nothing_keep_nobody_waiting(demo, offline, monkeypatch, tmp_path):
    """More than there are threads; when those who sent them are gone, so are their processes and places."""
    pytest.importorskip("av")
    import containers as packing
    import soxr

    from hf_ngpulm.sound import containers

    (tmp_path / "unpack.py").write_text(STUCK.format(str(containers.UNPACK)))
    monkeypatch.setattr(containers, "UNPACK", tmp_path / "unpack.py")
    monkeypatch.setattr(containers, "PATIENCE", 600.0)
    samples = demo.clips[0]
    honest = packing.packed(soxr.resample(samples, 16000, 48000), kind="webm")

    async def talk():
        async with serving(demo.recognizer(1), Limits(clients=1, uploads=64)) as server:
            stuck = [asyncio.create_task(ask(server, honest[:12] + b"stuck")) for _ in range(os.cpu_count() + 8)]
            while (await busy(server)) < len(stuck):
                await asyncio.sleep(0.05)
            for _ in range(3):
                assert (await ask(server, wav(samples, kind="FLAC")))["text"] == offline(samples).text
            for task in stuck:
                task.cancel()
            while await busy(server):
                await asyncio.sleep(0.05)
            assert len((await ask(server, honest))["text"].split()) > 5

    asyncio.run(asyncio.wait_for(talk(), 120))


@pytest.mark.parametrize(
    "fields, status, param, said",
    [
        ({"response_format": "xml"}, 400, "response_format", "one of json, text"),
        ({"response_format": "diarized_json"}, 400, "response_format", "one of json, text"),
        ({"response_format": "srt", "stream": "true"}, 400, "stream", "not for srt"),
        ({"stream": "perhaps"}, 400, "stream", "true or false"),
        ({"timestamp_granularities[]": "word"}, 400, "timestamp_granularities", "verbose_json"),
        ({"timestamp_granularities[]": "line", "response_format": "verbose_json"}, 400, "timestamp_granularities", "line"),
        ({"temperature": "hot"}, 400, "temperature", "a number"),
        ({"temperature": "7"}, 400, "temperature", "from 0 to 1"),
        ({"lm_weight": "nan"}, 400, "lm_weight", "a number from 0 to 100"),
        ({"phrase_weight": "1e9"}, 400, "phrase_weight", "from -100 to 100"),
        ({"num_beams": "0"}, 400, "num_beams", "from 1 to 32"),
        ({"num_beams": "1e3"}, 400, "num_beams", "from 1 to 32, or auto"),
        ({"num_beams": "٣"}, 400, "num_beams", "from 1 to 32"),
        ({"lm": "../lm.arpa"}, 400, "lm", "there is no language model"),
        ({"hotwords": "x" * 101}, 400, "hotwords", "at most 100"),
        ({"keywords": ["word"] * 1001}, 400, "keywords", "at most 1000"),
        ({"hotwords": '[["a", "b"]]'}, 400, "hotwords", "weight"),
        ({"prompt": "x" * 200_000}, 413, "prompt", "too long"),
        ({"include[]": "logprobs"}, 400, "include", "log-probabilities aren't available"),
        ({"diarize": "true"}, 400, "diarize", "no such field"),
        ({"model": ["a", "b"]}, 400, "model", "2 times"),
        ({"model": "gpt"}, 404, "model", "doesn't exist"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_fields_are_told_by_name(demo, fields, status, param, said):
    async def talk():
        async with serving(demo.recognizer(1), Limits(clients=1)) as server:
            error = (await ask(server, wav(demo.clips[0][:1600]), status, **fields))["error"]
            assert error["param"] == param and said in error["message"] and error["type"] == "invalid_request_error"
            assert set(error) == {"message", "type", "param", "code"}

    asyncio.run(talk())


def bomb(rate, channels):
    """A header that promises much: WAV, PCM, 16 bits."""
    frame = 2 * channels
    head = b"fmt " + (16).to_bytes(4, "little") + (1).to_bytes(2, "little") + channels.to_bytes(2, "little")
    head += rate.to_bytes(4, "little") + (rate * frame & 0xFFFFFFFF).to_bytes(4, "little")
    head += (frame & 0xFFFF).to_bytes(2, "little") + (16).to_bytes(2, "little") + b"data" + (1 << 30).to_bytes(4, "little")
    return b"RIFF" + (1 << 30).to_bytes(4, "little") + b"WAVE" + head + bytes(4 * frame)


@pytest.mark.parametrize(
    "audio, status, said",
    [
        (None, 400, "should have a file"),
        (b"", 400, "can't be read as audio"),
        (b"#!/bin/sh\n" * 100, 400, "can't be read as audio"),
        (wav(np.zeros(0, dtype=np.float32)), 400, "holds no samples"),
        (wav(np.full(16000, np.nan, dtype=np.float32)), 400, "not a number"),
        (wav(np.full(16000, 1e30, dtype=np.float32)), 400, "the model's outputs for it are broken"),
        (wav(np.zeros(16000 * 13, dtype=np.float32)), 400, "longer than 12 s"),
        (bytes(1_100_000), 413, "larger than 1,000,000 bytes"),
        (bomb(2_000_000_000, 1), 400, "2000000000 Hz"),
        (bomb(10, 1), 400, "10 Hz"),
        (bomb(16000, 1000), 400, "1000 channels"),
    ],
    ids=lambda value: str(value)[:40] if not isinstance(value, bytes) else str(len(value)),
)
def test_recordings_that_are_none_or_too_much(demo, audio, status, said):
    async def talk():
        limits = Limits(clients=1, audio_seconds=12.0, upload_bytes=1_000_000)
        async with serving(demo.recognizer(1), limits) as server:
            error = (await ask(server, audio, status, model="hf-ngpulm"))["error"]
            assert said in error["message"] and "/tmp" not in error["message"]
            assert (await ask(server, wav(demo.clips[0])))["text"]  # and the next one is served

    asyncio.run(talk())


def test_bodies_that_are_no_forms(demo):
    async def talk():
        async with serving(demo.recognizer(1), Limits(clients=1)) as server:
            for body, kind in (
                (b"{}", "application/json"), (b"", "multipart/form-data"), (b"xyz", "multipart/form-data; boundary=a"),
                (b"--a\r\n\r\nno name\r\n--a--\r\n", "multipart/form-data; boundary=a"),
                (
                    b'--a\r\nContent-Disposition: form-data; name="prompt"\r\n\r\n\xff\r\n--a--\r\n',
                    "multipart/form-data; boundary=a",
                ),
            ):  # fmt: skip
                headers = {"Content-Type": kind}
                async with server.session.post(server.at + PATH, data=body, headers=headers) as response:
                    assert response.status == 400, (body, await response.text())
                    assert (await response.json())["error"]["type"] == "invalid_request_error"
            for method, path, status in (
                ("GET", PATH, 405),
                ("POST", "/v1/audio/translations", 404),
                ("GET", "/v1/models/x", 404),
            ):
                async with server.session.request(method, server.at + path) as response:
                    assert response.status == status and set((await response.json())["error"]) >= {"message", "param"}

    asyncio.run(talk())


@pytest.mark.slow
def test_who_is_slow_or_gone_loses_the_place(demo):
    head = (
        b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=a\r\n"
        b'Content-Length: 100000\r\n\r\n--a\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
    )

    async def talk():
        limits = Limits(clients=1, uploads=2, send_seconds=0.5, upload_seconds=1.5)
        async with serving(demo.recognizer(1), limits) as server:
            port = int(server.at.rsplit(":", 1)[1])
            silent, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head)
            dripping, slow = await asyncio.open_connection("127.0.0.1", port)
            slow.write(head)
            await asyncio.sleep(0.2)
            assert await busy(server) == 2
            error = (await ask(server, wav(demo.clips[0]), 503))["error"]
            assert error["code"] == "overloaded"
            for _ in range(12):
                slow.write(b"x")
                await asyncio.sleep(0.15)
            for reader in (silent, dripping):
                assert b" 408 " in await asyncio.wait_for(reader.readline(), 5)
            assert await busy(server) == 0
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head)
            await asyncio.sleep(0.1)
            writer.transport.abort()
            await asyncio.sleep(0.3)
            assert await busy(server) == 0
            assert (await ask(server, wav(demo.clips[0])))["text"]

    asyncio.run(talk())


def test_an_address_has_so_many_recordings_at_a_time(demo):
    async def talk():
        async with serving(demo.recognizer(1), Limits(clients=1, clients_per_address=1)) as server:
            headers = {"X-Forwarded-For": "192.0.2.1"}
            long = wav(np.concatenate(demo.clips))

            async def post():
                form = FormData()
                form.add_field("file", long, filename="x.wav")
                async with server.session.post(server.at + PATH, data=form, headers=headers) as response:
                    return response.status, response.headers.get("Retry-After")

            found = await asyncio.gather(*(post() for _ in range(3)))
            assert sorted(found) == [(200, None), (429, "1"), (429, "1")]

    asyncio.run(talk())


def test_a_server_that_stops_finishes_recordings(demo, offline):
    async def talk():
        async with serving(demo.recognizer(1), Limits(clients=1, shutdown_seconds=30.0)) as server:
            asking = asyncio.create_task(ask(server, wav(demo.clips[0])))
            while True:
                async with server.session.get(f"{server.at}/health") as response:
                    if asking.done() or (await response.json())["recordings"]:
                        break
            await server.runner.cleanup()
            assert (await asking)["text"] == offline(demo.clips[0]).text

    asyncio.run(talk())


@pytest.fixture
def threads():
    """Set how many threads torch has."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("lanes", [1, 2])
def test_few_searches_are_kept(demo, lanes, threads):
    threads(lanes)

    async def talk():
        recordings = RecordingEngines(demo.recognizer(1), Limits(clients=1))

        def kept():
            return [beams for beams, _ in recordings._engines]

        for beams in (None, 2, 3):
            async with recordings.engine(beams) as engine:
                pass
            async with recordings.engine(beams) as again:
                assert again is engine
        assert kept() == [None, 2, 3]
        async with recordings.engine(None):
            for beams in (4, 5, 6):
                async with recordings.engine(beams) as one, recordings.engine(beams) as other:
                    assert (one is other) == (lanes == 1)
        assert kept() == [None, *(beams for beams in (4, 5, 6) for _ in range(lanes))]
        recordings.stop()

    asyncio.run(talk())


def test_recordings_at_the_same_time_share_threads(demo, threads):
    """One has both threads, two have one each, on engines of their own; a third joins one of these."""
    threads(2)

    async def talk():
        recordings = RecordingEngines(demo.recognizer(1), Limits(clients=1))
        async with recordings.engine(None) as first:
            assert first.threads == 2
            async with recordings.engine(None) as second:
                assert second is not first and [first.threads, second.threads] == [1, 1]
                async with recordings.engine(None) as third:
                    assert third in (first, second)
            assert first.threads == 2
        async with recordings.engine(None) as again:
            assert again is first
        recordings.stop()

    asyncio.run(talk())


def test_a_step_has_the_threads_that_there_are_then(demo, threads):
    """An engine that waited while another one worked has both threads from its first step on."""
    threads(2)

    async def talk():
        recordings, had = RecordingEngines(demo.recognizer(1), Limits(clients=1)), []
        async with recordings.engine(None) as engine:
            step = engine.recognizer.step
            engine.recognizer.step = lambda *most: (had.append(torch.get_num_threads()), step(*most))[1]

            async def heard():
                had.clear()
                with Take(engine, {}, Limits(), lambda: False) as take:
                    assert [event async for event in take.events([demo.clips[0]])]
                return set(had)

            async with recordings.engine(None):
                assert await heard() == {1}
            await asyncio.sleep(0.1)  # it waits by then
            assert await heard() == {2}
        recordings.stop()

    asyncio.run(talk())


def test_transcripts_are_the_same_on_several_engines(demo, offline, threads):
    threads(2)

    async def talk():
        async with serving(demo.recognizer(1), Limits(clients=1)) as server:
            found = await asyncio.gather(*(ask(server, wav(clip)) for clip in demo.clips[:8]))
            assert [answer["text"] for answer in found] == [offline(clip).text for clip in demo.clips[:8]]

    asyncio.run(talk())


def test_a_recording_has_so_much_work(demo):
    async def talk():
        async with serving(demo.recognizer(1), Limits(clients=1, work_seconds=1e-4)) as server:
            error = (await ask(server, wav(np.concatenate([*demo.clips] * 2)), 400))["error"]
            assert "decoding took more than" in error["message"]

    asyncio.run(talk())


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl(demo, offline, tmp_path):
    (tmp_path / "clip.flac").write_bytes(wav(demo.clips[0], kind="FLAC"))

    async def talk():
        async with serving(demo.recognizer(1), Limits(clients=1)) as server:
            command = ["curl", "-sS", server.at + PATH, "-F", f"file=@{tmp_path}/clip.flac", "-F", "response_format=text"]
            done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
            assert done.stdout == offline(demo.clips[0]).text + "\n"

    asyncio.run(talk())
