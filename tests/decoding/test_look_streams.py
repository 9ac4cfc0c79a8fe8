"""Streams whose phrases are looked at again, against `PhraseDecoder` for all frames of the utterance at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_second_look import BLANK, PHRASES, decoders, lm, tokenizer  # noqa: F401

from hf_ngpulm import CTCDecoder, GraphDecoder, Phrase, PhraseDecoder, StreamError, StreamingDecoder
from hf_ngpulm.decoding.thresholds import Thresholds

LOOK = {"false_alarms_per_hour": 10.0, "thresholds": Thresholds(-9.0, 1.0, 0.5, 1.0), "explain": True}
OTHERS = ["the", "and", ("see", 2.0), ("a", -1.0)]


def fed(stream, frames, *sids):
    """Feed the frames of each stream in chunks of various sizes."""
    at, size, partials = 0, 1, {}
    while at < len(frames[0]):
        partials = stream.step({sid: of[at : at + size] for sid, of in zip(sids, frames)})
        at, size = at + size, size % 7 + 3
    return partials


def assert_equal(found, expected):
    assert [replace(each, score=0, acoustic_score=0, lm_score=0, phrases=()) for each in found] == [
        replace(each, score=0, acoustic_score=0, lm_score=0, phrases=()) for each in expected
    ]
    for name in ("score", "acoustic_score", "lm_score"):
        assert [getattr(each, name) for each in found] == pytest.approx([getattr(each, name) for each in expected], abs=1e-3)
    assert [report.text for report in found[0].phrases] == [report.text for report in expected[0].phrases]
    assert [report.heard for report in found[0].phrases] == [report.heard for report in expected[0].phrases]


def test_streams_equal_the_look_at_whole_utterances(tokenizer, lm):  # noqa: F811
    entered = 0
    for decoder, frames in decoders(tokenizer, lm):
        offline = decoder if not decoder.fusion.lms else decoder._with(options=replace(decoder.options, lm_guard="off"))
        stream = StreamingDecoder(offline, max_streams=3)
        lists = [PHRASES, OTHERS]
        sids = [stream.open(phrases=of, phrase_weight=3.0, **LOOK) for of in lists]
        plain = stream.open()
        expected = [
            PhraseDecoder(offline, of, 3.0, **LOOK)(frames[row : row + 1])[0] for row, of in enumerate(lists)
        ]  # fmt: skip
        for _ in range(2):  # the second time after a reset
            partials = fed(stream, [frames[0], frames[1], frames[2]], *sids, plain)
            assert partials[sids[0]].stable == 0 and partials[plain].frames == frames.shape[1]
            for sid, hypotheses in zip(sids, expected):
                found = stream.reset(sid)
                assert_equal(found, hypotheses)
                entered += sum(report.heard and report.ratio is not None for report in found[0].phrases)
            assert_equal(stream.reset(plain), offline.decode(frames[2:3])[0])
        # Other phrases: the whole utterance is looked at for them.
        stream.set_context(sids[0], OTHERS)
        fed(stream, [frames[1]], sids[0])
        assert_equal(stream.close(sids[0]), expected[1])
        assert stream.close(sids[1])[0].text == ""
    assert entered > 10


def test_each_stream_has_its_language_model(tokenizer, lm):  # noqa: F811
    logits = next(iter(decoders(tokenizer, lm)))[1]
    decoder = CTCDecoder(tokenizer, lm=[lm, None], lm_weight=0.4, num_beams=4, frame_seconds=0.08, lm_guard="off")
    stream = StreamingDecoder(decoder, max_streams=2)
    alone = {"num_beams": 4, "frame_seconds": 0.08, "lm_guard": "off"}
    for own, weight in ((lm, 0.7), (None, None)):
        sid = stream.open(lm=own, lm_weight=weight, phrases=PHRASES, phrase_weight=3.0, **LOOK)
        fed(stream, [logits[0]], sid)
        expected = PhraseDecoder(CTCDecoder(tokenizer, lm=own, lm_weight=weight, **alone), PHRASES, 3.0, **LOOK)
        assert_equal(stream.close(sid), expected(logits[:1])[0])


def test_phrases_after_a_switch_have_the_streams_weight(tokenizer, lm):  # noqa: F811
    decoder, logits = next(iter(decoders(tokenizer, lm)))
    stream = StreamingDecoder(decoder, max_streams=1)
    sid = stream.open(phrases=["the"], phrase_weight=3.0, **LOOK)
    negative = [("a", -2.0), ("i", -2.0), ("e", -2.0)]
    stream.set_context(sid, negative)
    stream.step({sid: logits[0]})
    assert_equal(stream.close(sid), PhraseDecoder(decoder, negative, 3.0, **LOOK)(logits[:1])[0])


def test_a_buffer_may_be_used_again(tokenizer, lm):  # noqa: F811
    decoder, logits = next(iter(decoders(tokenizer, lm)))
    stream = StreamingDecoder(decoder, max_streams=1)
    sid = stream.open(phrases=PHRASES, phrase_weight=3.0, **LOOK)
    buffer = np.zeros((10, 257), dtype=np.float32)
    for at in range(0, 30, 10):
        buffer[:] = logits[0, at : at + 10].numpy()
        stream.step({sid: buffer})
    assert_equal(stream.close(sid), PhraseDecoder(decoder, PHRASES, 3.0, **LOOK)(logits[:1])[0])


def test_wrong_phrases_switch_no_stream(tokenizer, lm):  # noqa: F811
    decoder, logits = next(iter(decoders(tokenizer, lm)))
    stream = StreamingDecoder(decoder, max_streams=2)
    looked, plain = stream.open(phrases=PHRASES, phrase_weight=3.0, **LOOK), stream.open()
    with pytest.raises(ValueError, match="empty"):
        stream.set_contexts({looked: OTHERS, plain: [" "]})
    stream.step({looked: logits[0]})
    assert_equal(stream.close(looked), PhraseDecoder(decoder, PHRASES, 3.0, **LOOK)(logits[:1])[0])


def test_broken_frames_and_mistakes(tokenizer, lm):  # noqa: F811
    decoder, logits = next(iter(decoders(tokenizer, lm)))
    stream = StreamingDecoder(decoder, max_streams=2)
    sid = stream.open(phrases=PHRASES, **LOOK)
    with pytest.raises(StreamError, match="NaN"):
        stream.step({sid: torch.full((3, 257), torch.nan)})
    stream.step({sid: logits[0]})
    stream.close(sid)
    with pytest.raises(ValueError, match="false_alarms_per_hour given without phrases"):
        stream.open(false_alarms_per_hour=1)
    with pytest.raises(ValueError, match="thresholds"):
        stream.open(phrases=PHRASES, thresholds=LOOK["thresholds"])
    with pytest.raises(ValueError, match="a second look"):
        stream.open(phrases=[Phrase("a", threshold=1.0)])
    with pytest.raises(ValueError, match="not a GraphDecoder"):
        words = GraphDecoder.__new__(GraphDecoder)
        other = StreamingDecoder(decoder, max_streams=1)
        other.decoder = words
        other.open(phrases=PHRASES, false_alarms_per_hour=1)
    assert len(stream) == 0
