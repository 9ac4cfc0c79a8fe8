"""Recordings to models with attention: what the pipeline says offline, for each with its own LM, phrases and times."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("aiohttp")
from causal_lms import causal_lm, letters_tokenizer
from serving_clients import rounded, serving
from speech_models import whisper_parts
from test_transcriptions import PATH, ask, client_of, wav
from transformers import pipeline

from hf_ngpulm import Grammar, NGramLM, Rescorer
from hf_ngpulm.cli.models import load_recogniser, load_serving, warm_up
from hf_ngpulm.cli.options import Chunks, Decoding
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.decoding.thresholds import Thresholds
from hf_ngpulm.serving import Limits, Voices
from hf_ngpulm.serving.attention import STREAMED, AttentionRecognizer
from hf_ngpulm.sound.files import read_audio

TASK = "automatic-speech-recognition"
LIMITS = Limits(clients=1)


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    """A tiny Whisper, which hears 1 s at a time."""
    parts = whisper_parts(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")
    lm = NGramLM.train(["play the next song", "turn the light off", "jazz quickly vexed him big fop"] * 5,
                       tokenizer=parts["tokenizer"], order=3)  # fmt: skip
    other = NGramLM.train(["what's the weather"] * 5, tokenizer=parts["tokenizer"], order=2)
    asr = pipeline(TASK, **parts, max_new_tokens=9)
    generator = np.random.default_rng(0)
    clips = [generator.standard_normal(length).astype(np.float32) / 9 for length in (16000, 9000, 12000, 15000)]
    return SimpleNamespace(asr=asr, lm=lm, other=other, clips=clips)


def offline(asr, samples, **settings):
    return asr(samples.copy(), **settings)


def test_the_offline_transcript_whoever_asks_beside(whisper):
    """Clients whose LMs, weights, phrases and beams differ share batches."""
    wanted, asked = [], []
    for samples in whisper.clips:
        for fields, settings in (
            ({}, {"lm": whisper.lm, "lm_weight": 0.9}), ({"lm": "none"}, {"lm": None}),
            ({"lm": "other", "lm_weight": "3"}, {"lm": whisper.other, "lm_weight": 3.0}),
            (
                {"hotwords": "jazz, fop", "phrase_weight": "4"},
                {"lm": whisper.lm, "lm_weight": 0.9, "phrases": ["jazz", "fop"], "phrase_weight": 4.0},
            ),
            ({"lm": "none", "keywords": ["jazz"]}, {"lm": None, "phrases": ["jazz"]}),
            ({"num_beams": "3"}, {"lm": whisper.lm, "lm_weight": 0.9, "num_beams": 3}),
            ({"num_beams": "auto"}, {"lm": whisper.lm, "lm_weight": 0.9, "num_beams": "auto"}),
        ):  # fmt: skip
            wanted.append(offline(whisper.asr, samples, **settings)["text"].strip())
            asked.append((samples, fields))
    recognizer = AttentionRecognizer(whisper.asr, [whisper.lm, whisper.other], lm_weight=0.9)

    async def talk():
        voices = Voices(lms={"default": whisper.lm, "other": whisper.other})
        async with serving(recognizer, LIMITS, voices=voices) as server:
            return [found["text"] for found in await asyncio.gather(*(ask(server, wav(s), **f) for s, f in asked))]

    assert asyncio.run(talk()) == wanted and len(set(wanted)) > len(wanted) // 2


def test_a_rescorer(whisper):
    """Recordings are what the pipeline makes of them; those with a grammar do without."""
    more = {"rescorer": Rescorer(causal_lm(), letters_tokenizer()), "rescorer_weight": 20.0, "num_beams": 4}
    plain, wanted = ([whisper.asr(s.copy(), **settings)["text"].strip() for s in whisper.clips] for settings in ({}, more))
    assert wanted != plain
    recognizer = AttentionRecognizer(whisper.asr, **more)

    async def talk():
        async with serving(recognizer, LIMITS) as server:
            return [found["text"] for found in await asyncio.gather(*(ask(server, wav(s)) for s in whisper.clips))]

    assert asyncio.run(talk()) == wanted
    sid = recognizer.open(grammar=Grammar({"play": ["play the song"]}))
    recognizer.push(sid, whisper.clips[0])
    recognizer.end(sid)
    recognizer.step()
    assert "understood" in recognizer._recordings[sid].meant
    with pytest.raises(ValueError, match="word_bonus given without rescorer="):
        AttentionRecognizer(whisper.asr, word_bonus=1.0)
    with pytest.raises(ValueError, match="pass num_beams=8"):
        AttentionRecognizer(whisper.asr, rescorer=more["rescorer"])
    with pytest.raises(ValueError, match="pass num_beams=8"):
        recognizer.for_recordings(1, 30.0, 0.0, num_beams=1)


def test_phrases_are_looked_at_again(whisper):
    """What the pipeline says; a recording of several pieces tells of each phrase once unless it was weighed."""
    fields = {"keywords": ["jazz", "fop"], "phrase_weight": "6", "false_alarms_per_hour": "100", "explain": "true"}
    settings = {"phrases": ["jazz", "fop"], "phrase_weight": 6.0, "false_alarms_per_hour": 100.0, "explain": True}
    everything = Thresholds(-1e6, 0.0, 0.0, 0.0)

    async def talk(thresholds, *clips):
        async with serving(AttentionRecognizer(whisper.asr), LIMITS, voices=Voices(thresholds=thresholds)) as server:
            assert (await ask(server, wav(clips[0]), **{**fields, "keywords": []}, status=400))["error"]["param"]
            return await asyncio.gather(*(ask(server, wav(samples), **fields) for samples in clips))

    for thresholds in (None, everything):
        given = {} if thresholds is None else {"thresholds": thresholds}
        wanted = [whisper.asr(samples.copy(), **settings, **given) for samples in whisper.clips]
        told = asyncio.run(talk(thresholds, *whisper.clips))
        assert [each["text"] for each in told] == [each["text"].strip() for each in wanted]
        assert [rounded(each["phrases"]) for each in told] == [rounded(each["phrases"]) for each in wanted]
    assert any(report["heard"] for each in told for report in each["phrases"])
    long = asyncio.run(talk(everything, np.concatenate(whisper.clips)))[0]["phrases"]
    assert {report["text"] for report in long} == {"jazz", "fop"}
    assert all("ratio" in report or report["heard"] or sum(r["text"] == report["text"] for r in long) == 1 for report in long)


def test_confidences(whisper):
    """JSON has the words of a pipeline that measures how sure it is; times of words do without."""
    model = str(bundled("examples/models/canary"))
    sure = load_serving(model, "cpu", Decoding(), Chunks(), 1, [], word_confidence="max_prob")
    clip = bundled("examples/speech/harbour") / "clips" / "00.flac"
    wanted = sure.pipeline(read_audio(clip, 16000))["words"]

    async def talk():
        async with serving(sure, LIMITS) as server:
            plain = {"response_format": "verbose_json"}
            return await ask(server, clip.read_bytes()), await ask(server, clip.read_bytes(), **plain)

    told, verbose = asyncio.run(talk())
    assert [word["word"] for word in told["words"]] == told["text"].split() == [word["text"] for word in wanted]
    assert [word["confidence"] for word in told["words"]] == pytest.approx([word["confidence"] for word in wanted], abs=2e-3)
    assert verbose["text"] == told["text"]
    whispers = pipeline(TASK, model=whisper.asr.model, tokenizer=whisper.asr.tokenizer, confidence="max_prob",
                        feature_extractor=whisper.asr.feature_extractor, max_new_tokens=9)  # fmt: skip

    async def talk_of_times():
        async with serving(AttentionRecognizer(whispers), LIMITS) as server:
            words = {"response_format": "verbose_json", "timestamp_granularities[]": ["word", "segment"]}
            return await ask(server, wav(whisper.clips[0])), await ask(server, wav(whisper.clips[0]), **words)

    told, timed = asyncio.run(talk_of_times())
    assert all(0 <= word["confidence"] <= 1 and "start" not in word for word in told["words"])
    assert all("confidence" not in word for word in timed["words"])


def test_times(whisper):
    async def talk():
        async with serving(AttentionRecognizer(whisper.asr), LIMITS) as server, client_of(server) as client:
            for samples in whisper.clips:
                create, file = client.audio.transcriptions.create, ("clip.wav", wav(samples))
                verbose = await create(model="hf-ngpulm", file=file, response_format="verbose_json")
                seconds, chunks = len(samples) / 16000, offline(whisper.asr, samples, return_timestamps=True)["chunks"]
                assert [(s.text, s.start) for s in verbose.segments] == [
                    (chunk["text"].strip(), round(min(seconds, chunk["timestamp"][0]), 3))
                    for chunk in chunks
                    if chunk["text"].strip()
                ]
                assert all(0 <= s.start <= s.end <= seconds + 1e-3 for s in verbose.segments)
                words = await create(
                    model="hf-ngpulm", file=file, response_format="verbose_json", timestamp_granularities=["word"]
                )
                chunks = offline(whisper.asr, samples, return_timestamps="word")["chunks"]
                assert [w.word for w in words.words] == [c["text"].strip() for c in chunks]
                assert "-->" in await create(model="hf-ngpulm", file=file, response_format="srt")
                assert (await create(model="hf-ngpulm", file=file, response_format="vtt")).startswith("WEBVTT")

    asyncio.run(talk())


def test_longer_recordings_are_cut_where_it_is_quiet(whisper):
    """Three parts with silence between; the times of each follow the ones before."""
    quiet = np.zeros(2400, dtype=np.float32)
    parts = [np.concatenate([samples[:11000], quiet]) for samples in whisper.clips[:1] + whisper.clips[2:]]
    whole = np.concatenate(parts)

    async def talk():
        async with serving(AttentionRecognizer(whisper.asr), LIMITS) as server:
            verbose = await ask(server, wav(whole), response_format="verbose_json")
            streamed = await ask(server, wav(whole), stream="true")
            return verbose, streamed, await ask(server, wav(whole))

    verbose, streamed, plain = asyncio.run(talk())
    starts = [segment["start"] for segment in verbose["segments"]]
    assert starts == sorted(starts) and starts[-1] > 1.4 and verbose["duration"] == pytest.approx(len(whole) / 16000, abs=1e-3)
    assert streamed.count("transcript.text.delta") >= 2 and plain["text"] in streamed


def test_what_it_has_not_is_told(whisper):
    async def talk():
        async with serving(AttentionRecognizer(whisper.asr), LIMITS) as server:
            for path in ("/v1/realtime",):
                async with server.session.get(server.at + path) as response:
                    assert response.status == 400 and STREAMED in await response.text()
            error = (await ask(server, wav(whisper.clips[0]), 400, language="xx"))["error"]
            assert error["param"] == "language" and "de, en" in error["message"]
            german = (await ask(server, wav(whisper.clips[0]), language="de"))["text"]
            assert german == offline(whisper.asr, whisper.clips[0], generate_kwargs={"language": "de"})["text"].strip()
            assert (await ask(server, b"junk", 400))["error"]["param"] == "file"
            assert (await ask(server, wav(whisper.clips[0][:10])))["text"] is not None

    asyncio.run(talk())
    with pytest.raises(ValueError, match="lm_weight without a language model"):
        AttentionRecognizer(whisper.asr, lm_weight=1.0)


TRANSLATIONS = "/v1/audio/translations"


def test_whisper_translates(whisper):
    """As `generate` does that is told the task; what is asked for beside it is transcribed."""
    both = []

    async def talk():
        async with serving(AttentionRecognizer(whisper.asr), LIMITS) as server, client_of(server) as client:
            for samples in whisper.clips:
                file = ("clip.wav", wav(samples))
                wanted = offline(whisper.asr, samples, generate_kwargs={"task": "translate"})["text"].strip()
                made, plain = await asyncio.gather(
                    client.audio.translations.create(model="whisper-1", file=file),
                    client.audio.transcriptions.create(model="whisper-1", file=file),
                )
                assert made.text == wanted and plain.text == offline(whisper.asr, samples)["text"].strip()
                both.append((made.text, plain.text))
            german = await ask(server, wav(samples), path=TRANSLATIONS, language="de", response_format="verbose_json")
            told = {"task": "translate", "language": "de"}
            wanted = offline(whisper.asr, samples, generate_kwargs=told, return_timestamps=True)
            assert german["text"] == wanted["text"].strip()
            assert (german["task"], german["language"]) == ("translate", "english")

    asyncio.run(talk())
    assert any(made != plain for made, plain in both)


@pytest.mark.slow
def test_canary_translates_what_it_is_told_the_language_of():
    """By its prompt. The bundled one's tokenizer has no languages; here it gets some."""
    asr = load_recogniser(str(bundled("examples/models/canary")), "cpu")
    names = ("startofcontext", "emo:undefined", "de", "en", "pnc", "noitn", "notimestamp", "nodiarize")
    asr.tokenizer.add_special_tokens({"additional_special_tokens": [f"<|{name}|>" for name in names]})
    asr.model.resize_token_embeddings(len(asr.tokenizer), mean_resizing=False)
    embeddings, generator = asr.model.get_input_embeddings().weight, torch.Generator().manual_seed(2)
    with torch.no_grad():  # so large that a language makes a difference
        new = torch.randn(len(names), embeddings.shape[1], generator=generator)
        embeddings[-len(names) :] = 3 * embeddings[: -len(names)].std() * new
    clip = read_audio(bundled("examples/speech/harbour") / "clips" / "00.flac", 16000)

    def prompted(source, target):
        prompt = f"<|startofcontext|><|startoftranscript|><|emo:undefined|><|{source}|><|{target}|>"
        ids = asr.tokenizer(prompt + "<|pnc|><|noitn|><|notimestamp|><|nodiarize|>", add_special_tokens=False).input_ids
        assert len(ids) == 9
        return asr(clip, generate_kwargs={"decoder_input_ids": torch.tensor([ids])})["text"].strip()

    assert prompted("de", "en") != prompted("de", "de")

    async def talk():
        async with serving(AttentionRecognizer(asr), LIMITS) as server:
            for path, target in ((TRANSLATIONS, "en"), (PATH, "de")):
                found = await asyncio.gather(*(ask(server, wav(clip), path=path, language="de") for _ in range(2)))
                assert [each["text"] for each in found] == [prompted("de", target)] * 2
            error = (await ask(server, wav(clip), 400, path=TRANSLATIONS))["error"]
            assert error["param"] == "language" and "add language" in error["message"]
            assert (await ask(server, wav(clip)))["text"] == asr(clip)["text"].strip()

    asyncio.run(talk())


@pytest.mark.parametrize("kind", ["ctc", "canary", "whisper"])
def test_models_that_do_not_translate_say_so(demo, whisper, kind, monkeypatch):
    monkeypatch.setattr(whisper.asr.model.generation_config, "is_multilingual", False)
    recognizer = {
        "ctc": lambda: demo.recognizer(1),
        "canary": lambda: AttentionRecognizer(load_recogniser(str(bundled("examples/models/canary")), "cpu")),
        "whisper": lambda: AttentionRecognizer(whisper.asr),
    }[kind]()

    async def talk():
        async with serving(recognizer, LIMITS) as server:
            error = (await ask(server, wav(whisper.clips[0]), 404, path=TRANSLATIONS))["error"]
            assert "can't translate" in error["message"] and "/v1/audio/transcriptions" in error["message"]

    asyncio.run(talk())


def test_one_that_fails_fails_alone(whisper):
    recognizer = AttentionRecognizer(whisper.asr)
    made = recognizer.for_recordings

    def for_recordings(*args, **settings):
        found = made(*args, **settings)
        own = found._transcribed

        def broken(pieces):
            if any(len(samples) == 9000 for samples in pieces.values()):
                raise RuntimeError("broken")
            return own(pieces)

        found._transcribed = broken
        return found

    recognizer.for_recordings = for_recordings

    async def talk():
        async with serving(recognizer, LIMITS) as server:
            return await asyncio.gather(*(ask(server, wav(c), 400 if len(c) == 9000 else 200) for c in whisper.clips))

    found = asyncio.run(talk())
    assert "error" in found[1] and found[0]["text"] == offline(whisper.asr, whisper.clips[0])["text"].strip()


def test_canary():
    """A decoder that knows no times: segments are what was heard at a time."""
    model = str(bundled("examples/models/canary"))
    asr = load_recogniser(model, "cpu")
    clip = bundled("examples/speech/harbour") / "clips" / "00.flac"

    async def talk():
        async with serving(AttentionRecognizer(asr), LIMITS) as server:
            data = clip.read_bytes()
            error = (await ask(server, data, 400, response_format="verbose_json", **{"timestamp_granularities[]": "word"}))[
                "error"
            ]
            assert "no word times" in error["message"]
            return await ask(server, data), await ask(server, data, response_format="srt")

    plain, srt = asyncio.run(talk())
    assert plain["text"] == asr(read_audio(clip, 16000))["text"].strip() and len(plain["text"].split()) > 5
    assert srt.startswith("1\n00:00:00,000 --> 00:00:0") and plain["text"] in srt


def test_the_command_loads_them():
    """With an LM, and without what only streams are told."""
    options = {name: None for name in ("chunk_seconds", "left_seconds", "right_seconds", "num_lookahead_tokens", "language")}
    chunks = Chunks(**options, endpoint_seconds=1.0)
    canary, lm = str(bundled("examples/models/canary")), str(bundled("examples/speech/harbour") / "lm.arpa.gz")
    loaded = load_serving(canary, "cpu", Decoding(lm, 2, None, lm_weight=0.3), chunks, 4, [])
    assert isinstance(loaded, AttentionRecognizer) and loaded.settings == {"lm_weight": 0.3, "num_beams": 2}
    warm_up(loaded)
    assert len(loaded) == 0
    with pytest.raises(ValueError, match="strategy: no settings for Canary"):
        load_serving(canary, "cpu", Decoding(None, None, "alsd", lm_weight=None), chunks, 4, [])
