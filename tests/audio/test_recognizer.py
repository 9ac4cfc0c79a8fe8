"""From audio to text: what recognisers take, refuse, and say."""

from __future__ import annotations

import inspect
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from letters import Letters
from tiny_transducers import BLANK, FAMILIES, demo_transducer, tiny_model
from transformers import AutoModelForCTC, AutoProcessor

from hf_ngpulm import CTCDecoder, NGramLM, StreamError, TransducerDecoder
from hf_ngpulm.audio import StreamingRecognizer
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.decoding.families import encoded
from hf_ngpulm.sound.files import read_audio

DEMO = bundled("examples/speech/harbour")
COVERING = {"chunk_seconds": 0.64, "left_seconds": 30, "right_seconds": 30}
CUT = {"chunk_seconds": 0.64, "left_seconds": 1.28, "right_seconds": 0.32}


@pytest.fixture(scope="module")
def demo():
    processor = AutoProcessor.from_pretrained(bundled("examples/models/ctc"))
    return SimpleNamespace(
        processor=processor,
        model=AutoModelForCTC.from_pretrained(bundled("examples/models/ctc"), dtype=torch.float32).eval(),
        lm=NGramLM.from_arpa(DEMO / "lm.arpa.gz", processor.tokenizer, units="id"),
        clips=[read_audio(DEMO / "clips" / f"{number:02}.flac", 16000) for number in range(4)],
    )


def said(recognizer, audio, size=3000):
    """What is said in several recordings, their streams together."""
    sids = [recognizer.open() for _ in audio]
    for at in range(0, max(map(len, audio)), size):
        for sid, samples in zip(sids, audio):
            recognizer.push(sid, samples[at : at + size])
        recognizer.step()
    return [recognizer.close(sid) for sid in sids]


@torch.inference_mode()
def offline(decoder, model, processor, audio):
    inputs = processor.feature_extractor(audio, sampling_rate=16000, return_tensors="pt", padding=True)
    decode = decoder if isinstance(decoder, CTCDecoder) else decoder.decode
    return decode(*encoded(model, inputs["input_features"], inputs["attention_mask"]))


@pytest.mark.parametrize("search", [{}, {"num_beams": 4, "num_return_sequences": 2}])
def test_windows_that_cover_all_say_what_offline_recognition_says(demo, search):
    settings = {"lm": demo.lm, "lm_weight": 1.0, **search}
    found = said(StreamingRecognizer(demo.model, demo.processor, **COVERING, **settings), demo.clips)
    decoder = CTCDecoder(demo.processor.tokenizer, frame_seconds=0.08, **settings)
    for ours, theirs in zip(found, offline(decoder, demo.model, demo.processor, demo.clips)):
        assert [hypothesis.text for hypothesis in ours] == [hypothesis.text for hypothesis in theirs]
        assert ours[0].score == pytest.approx(theirs[0].score, abs=1e-2)
        assert [word[1:3] for word in ours[0].words] == [word[1:3] for word in theirs[0].words]


@pytest.mark.parametrize("name", [name for name in ("ParakeetForTDT", "ParakeetForRNNT") if name in dict(FAMILIES)])
def test_transducers_in_windows(name, demo):
    made = demo_transducer(name)
    model, processor = made["model"], SimpleNamespace(**made)
    recognizer = StreamingRecognizer(model, processor, **COVERING)
    found = said(recognizer, demo.clips)
    decoder = TransducerDecoder(model, processor)
    for (ours,), (theirs,) in zip(found, offline(decoder, model, processor, demo.clips)):
        assert ours.token_ids == theirs.token_ids and ours.token_frames == theirs.token_frames
    assert sum(len(ours.token_ids) for (ours,) in found) > 3
    assert recognizer.frame_seconds == pytest.approx(0.08)


def test_cache_aware_transducers(demo):
    families = [family for family in FAMILIES if family[0].startswith("Nemotron")]
    if not families:
        pytest.skip("Transformers without Nemotron")
    from transformers.models.nemotron_asr_streaming import feature_extraction_nemotron_asr_streaming as features

    extractor = features.NemotronAsrStreamingFeatureExtractor(feature_size=8)
    if "is_last_audio_chunk" not in inspect.signature(type(extractor).__call__).parameters:
        pytest.skip("Transformers that doesn't know the last chunk of a stream")
    for name, extra in families:
        model = tiny_model(name, extra, 1, 3)
        processor = SimpleNamespace(
            feature_extractor=extractor, tokenizer=Letters("abcdefghij_"), supported_num_lookahead_tokens=[3, 1],
            default_num_lookahead_tokens=3, prompt_dictionary={"en": 1, "de": 2},
        )  # fmt: skip
        told = {"language": "de"} if extra else {}
        for lookahead in (None, 1):
            recognizer = StreamingRecognizer(model, processor, 4, num_lookahead_tokens=lookahead, **told)
            assert recognizer.chunk_seconds == pytest.approx(0.08 * ((lookahead or 3) + 1))
            found = said(recognizer, demo.clips)
            inputs = extractor(demo.clips, sampling_rate=16000, return_tensors="pt")
            prompt = {"prompt_ids": torch.full((len(demo.clips),), 2)} if extra else {}
            theirs = TransducerDecoder(model, processor)(**inputs, num_lookahead_tokens=lookahead or 3, **prompt)
            assert [hypotheses[0].token_ids for hypotheses in found] == [hypotheses[0].token_ids for hypotheses in theirs]
            assert BLANK not in found[0][0].token_ids and found[0][0].token_ids
        for settings, message in (
            ({"num_lookahead_tokens": 2}, r"\[3, 1\]"), ({"language": "fr"}, "'de', 'en'"),
            ({"chunk_seconds": 1.0}, "chunk_seconds"),
        ):  # fmt: skip
            with pytest.raises(ValueError, match=message):
                StreamingRecognizer(model, processor, **settings)


@pytest.mark.parametrize("cut", [COVERING, CUT], ids=["covering", "cut"])
def test_a_stream_says_the_same_however_its_audio_comes_and_whatever_others_do(demo, cut):
    """Pieces of any size, streams that come and go, break and are dropped."""
    alone = StreamingRecognizer(demo.model, demo.processor, 1, lm=demo.lm, lm_weight=1.0, **cut)
    expected = [said(alone, [samples])[0][0].text for samples in demo.clips]
    recognizer = StreamingRecognizer(demo.model, demo.processor, 6, lm=demo.lm, lm_weight=1.0, **cut)
    generator, found, live = np.random.default_rng(0), {}, {}
    coming = list(range(len(demo.clips)))
    while coming or live:
        if coming and len(live) < 3:
            live[recognizer.open()] = [coming.pop(), 0]
        dropped, loud = recognizer.open(), recognizer.open()
        recognizer.push(dropped, demo.clips[0][:20000])
        recognizer.push(loud, demo.clips[0][:30000] * np.float32(1e30))
        recognizer.end(loud)
        for sid, place in live.items():
            clip, at = place
            place[1] += int(generator.integers(0, 20000))
            recognizer.push(sid, demo.clips[clip][at : place[1]])
        with pytest.raises(StreamError) as caught:
            while recognizer.ready():
                recognizer.step()
        assert list(caught.value.problems) == [loud] and loud not in caught.value.partials
        assert recognizer.discard(loud)[0].text == ""
        recognizer.discard(dropped)
        for sid in [sid for sid, (clip, at) in live.items() if at >= len(demo.clips[clip])]:
            clip = live.pop(sid)[0]
            found[clip] = recognizer.close(sid)[0].text
    assert [found[clip] for clip in range(len(demo.clips))] == expected


def test_end_lets_steps_decode_the_rest(demo):
    recognizer = StreamingRecognizer(demo.model, demo.processor, 2, **CUT)
    closed = said(recognizer, demo.clips[:1])[0][0].text
    sid = recognizer.open()
    recognizer.push(sid, demo.clips[0])
    while recognizer.step():
        pass
    waiting = recognizer.waiting_seconds(sid)
    assert 0 < waiting < recognizer.latency_seconds and not recognizer.ready()
    recognizer.end(sid)
    texts = [partials[sid].text for partials in iter(recognizer.step, {})]
    assert texts and texts[-1] == recognizer.discard(sid)[0].text == closed


@pytest.mark.parametrize("most, seconds", [(2, None), (None, 7.0), (3, 7.0), (1, 0.1)])
def test_a_step_takes_the_first_of_the_queue_and_others_like_it(demo, most, seconds):
    """As many as it may, in batches that differ; each says what it says alone, and none waits for ever."""
    recognizer = StreamingRecognizer(demo.model, demo.processor, **COVERING | {"chunk_seconds": 30}, max_streams=8)
    audio = [np.tile(demo.clips[number % 4], 1 + number % 3) for number in range(8)]
    sids = [recognizer.open() for _ in audio]
    for sid, samples in zip(sids, audio):
        recognizer.push(sid, samples)
        recognizer.end(sid)
    length, waiting = dict(zip(sids, (len(samples) / 16000 for samples in audio))), list(sids)
    while waiting:
        taken = list(recognizer.step(most, seconds))
        assert waiting[0] in taken
        room = len(taken) < (most or 8)
        nearest = [abs(length[sid] - length[waiting[0]]) for sid in waiting if sid not in taken]
        farthest = max(abs(length[sid] - length[waiting[0]]) for sid in taken)
        assert all(farthest <= distance for distance in nearest)
        if seconds is not None:
            assert len(taken) == 1 or max(length[sid] for sid in taken) * len(taken) <= seconds
        else:
            assert not room or len(taken) == len(waiting)
        waiting = [sid for sid in waiting if sid not in taken]
    texts = [recognizer.close(sid)[0].text for sid in sids]
    assert texts == [said(StreamingRecognizer(demo.model, demo.processor, 1, **COVERING), [each])[0][0].text for each in audio]


def test_an_endpoint_begins_a_new_utterance(demo):
    """Silence between two clips; times count from the utterance's begin, which is known."""
    silence = np.zeros(32000, dtype=np.float32)
    noise = np.random.default_rng(0).standard_normal(32000).astype(np.float32) * 1e-3
    audio = np.concatenate([demo.clips[0], silence + noise, demo.clips[1]])
    recognizer = StreamingRecognizer(demo.model, demo.processor, 1, endpoint_seconds=0.8, **CUT)
    sid, utterances = recognizer.open(), []
    for at in range(0, len(audio), 5000):
        recognizer.push(sid, audio[at : at + 5000])
        for partials in iter(recognizer.step, {}):
            if partials[sid].endpoint:
                begin = recognizer.utterance_begin(sid)
                utterances.append((begin, recognizer.reset(sid)[0]))
    begin = recognizer.utterance_begin(sid)
    utterances.append((begin, recognizer.close(sid)[0]))
    assert len(utterances) == 2
    seam = len(demo.clips[0]) / 16000
    assert utterances[0][0] == 0 and seam < utterances[1][0] < seam + 2.1
    last_word = utterances[1][1].words[-1]
    assert len(audio) / 16000 - 1 < utterances[1][0] + last_word.end <= len(audio) / 16000 + 0.08


def test_phrases_of_each_stream(demo):
    """Those of a stream count as the decoder's own would; it may be given others."""
    contexts = [["coal lie house"], None, [("coast god", 3.0), "lighthouse"]]
    recognizer = StreamingRecognizer(demo.model, demo.processor, 3, lm=demo.lm, lm_weight=1.0, **COVERING)
    sids = [recognizer.open(phrases=phrases, phrase_weight=20.0) for phrases in contexts]
    for sid in sids:
        recognizer.push(sid, demo.clips[0])
    for sid, phrases in zip(sids, contexts):
        decoder = CTCDecoder(demo.processor.tokenizer, lm=demo.lm, lm_weight=1.0, phrases=phrases, phrase_weight=20.0)
        ((theirs,),) = offline(decoder, demo.model, demo.processor, demo.clips[:1])
        (ours,) = recognizer.close(sid)
        assert ours.text == theirs.text and ours.phrase_score == pytest.approx(theirs.phrase_score)
    sids = [recognizer.open(phrases=contexts[0], phrase_weight=20.0) for _ in range(2)]
    recognizer.set_context(sids[1], None)
    for sid in sids:
        recognizer.push(sid, demo.clips[0])
    boosted, plain = (recognizer.close(sid)[0].text for sid in sids)
    assert boosted != plain == said(recognizer, demo.clips[:1])[0][0].text
    with pytest.raises(StreamError, match="isn't open"):
        recognizer.set_context(sids[0], None)


def test_phrases_that_cannot_be_written_are_named(demo):
    recognizer = StreamingRecognizer(demo.model, demo.processor, 1, **CUT)
    with pytest.warns(UserWarning, match="can't write 1 of 2"):
        assert recognizer.unwritable(["lighthouse", "日本"]) == {"日本": "日本"}
    assert recognizer.unwritable(None) == {}


def test_what_is_refused(demo):
    recognizer = StreamingRecognizer(demo.model, demo.processor, 2, max_waiting_seconds=2.0, **CUT)
    sid = recognizer.open()
    clip = demo.clips[0]
    nan = clip[:100].copy()
    nan[7] = math.nan
    for samples, message in (
        (nan, "NaN or infinity"),
        (clip[None], r"shape \[N\]"),
        ((clip * 100).astype(np.int16), "floating point"),
        (np.zeros(32001, dtype=np.float32), "more than 2 s of audio wait"),
    ):
        with pytest.raises(StreamError, match=message):
            recognizer.push(sid, samples)
    assert recognizer.waiting_seconds(sid) == 0
    recognizer.push(sid, torch.from_numpy(clip[:16000]))
    recognizer.push(sid, clip[:0])
    recognizer.end(sid)
    with pytest.raises(StreamError, match="after its end"):
        recognizer.push(sid, clip)
    recognizer.open()
    with pytest.raises(ValueError, match="max_streams=2"):
        recognizer.open()
    assert len(recognizer) == 2
    recognizer.close(sid)
    for call in (recognizer.close, recognizer.end, recognizer.reset, recognizer.discard, recognizer.waiting_seconds):
        with pytest.raises(StreamError, match="isn't open"):
            call(sid)
    empty = recognizer.open()
    assert recognizer.close(empty)[0].text == ""
    for settings, message in (
        ({"num_lookahead_tokens": 1}, "num_lookahead_tokens: no settings for ParakeetForCTC"),
        ({"language": "en"}, "language"),
        ({"max_waiting_seconds": 0}, "max_waiting_seconds"),
        ({"lm_weight": math.nan, "lm": demo.lm}, "lm_weight"),
    ):
        with pytest.raises(ValueError, match=message):
            StreamingRecognizer(demo.model, demo.processor, **settings)
    with pytest.raises(ValueError, match="feature_extractor and a tokenizer"):
        StreamingRecognizer(demo.model, demo.processor.tokenizer)
    with pytest.raises(ValueError, match="neither a CTC model nor a transducer"):
        StreamingRecognizer(torch.nn.Linear(1, 1), demo.processor)
