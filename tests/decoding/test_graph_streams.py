"""Streams in a language model's graph: phrases of each stream's own, beside the graph, switched at any time."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from hf_ngpulm import GraphDecoder, NGramLM, PhraseBooster, StreamingDecoder
from hf_ngpulm.common.bundled import bundled

CONTEXTS = [["a", "the", "to"], None, [("what", 3.0), "is", "in"], ["call anna", "new york"], {"weather": 2.0, "of": 4.0}]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))


@pytest.fixture(scope="module")
def lm(tokenizer):
    return NGramLM.from_arpa(bundled("examples/speech/harbour/lm.arpa.gz"), tokenizer, units="id")


@pytest.fixture(scope="module")
def other_lm():
    return NGramLM.train([[5, 7, 9, 5, 7], [9, 7, 5]] * 20, vocab_size=256, order=2)


def make(tokenizer, lm, **more):
    return GraphDecoder(tokenizer, lm, **{"lm_weight": 0.4, "max_active": 8, "discount": 3.0, **more})


def frames_of(count, length, seed):
    generator = torch.Generator().manual_seed(seed)
    frames = 2 * torch.randn(count, length, 257, generator=generator)
    frames[..., 256] += 4 * torch.rand(count, length, generator=generator)
    return frames


def same(found, expected):
    assert [best.token_ids for best in found] == [best.token_ids for best in expected]
    for mine, other in zip(found, expected):
        assert mine.token_frames == other.token_frames
        for name in ("score", "acoustic_score", "lm_score", "phrase_score"):
            assert getattr(mine, name) == pytest.approx(getattr(other, name), abs=1e-3), name


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 1000))
def test_each_stream_has_its_own_and_switches(tokenizer, lm, seed):
    """As a batch of the decoder's own that switches at the same frames, whatever the chunks."""
    frames, drawn = frames_of(len(CONTEXTS), 24, seed), random.Random(seed)
    decoder = make(tokenizer, lm, num_return_sequences=2)
    offline = decoder.stream(len(CONTEXTS), phrases=CONTEXTS)
    streams = StreamingDecoder(decoder, max_streams=len(CONTEXTS))
    opened = [streams.open(phrases=context) if context is not None else streams.open() for context in CONTEXTS]
    for turn in range(2):
        offline.add(frames[:, 12 * turn : 12 * turn + 12])
        sent = [0] * len(opened)
        while min(sent) < 12:
            chunks = {}
            for n, sid in enumerate(opened):
                size = drawn.randint(0, 12 - sent[n])
                first = 12 * turn + sent[n]
                chunks[sid] = frames[n, first : first + size]
                sent[n] += size
            partials = streams.step(chunks)
        assert all(partials[sid].frames == 12 * turn + 12 for sid in partials)
        if turn == 0:
            rows = drawn.sample(range(len(opened)), 3)
            given_now = {opened[row]: CONTEXTS[(row + 2) % len(CONTEXTS)] for row in rows}
            streams.set_contexts(given_now)
            for row in rows:
                offline.set_context(row, given_now[opened[row]])
    for sid, expected in zip(opened, offline.hypotheses()):
        same(streams.close(sid), expected)


def test_the_first_phrases_come_when_streams_are_open(tokenizer, lm):
    """Room for them is made in mid-utterance, streams without go on as they were, and slots are used again."""
    decoder = make(tokenizer, lm)
    frames = frames_of(3, 12, 7)
    streams = StreamingDecoder(decoder, max_streams=3)
    first, second = streams.open(), streams.open()
    streams.step({first: frames[0, :5], second: frames[1, :7]})
    third = streams.open(phrases=CONTEXTS[0], phrase_weight=5.0)
    streams.step({first: frames[0, 5:8], third: frames[2, :6]})
    streams.set_context(second, phrases=PhraseBooster(["zebra"], tokenizer))
    streams.step({first: frames[0, 8:], second: frames[1, 7:], third: frames[2, 6:]})
    more = dict.fromkeys(CONTEXTS[0], 5.0)
    for n, (sid, context) in enumerate(zip((first, second, third), (None, None, more))):
        same(streams.reset(sid), decoder(frames[n][None], None, context)[0])
    assert decoder(frames[2][None], None, more)[0][0].phrase_score > 0
    streams.step({third: frames[2]})
    same(streams.close(third), decoder(frames[2][None], None, more)[0])  # a reset leaves the phrases
    later = streams.open()
    streams.step({later: frames[2]})
    same(streams.close(later), decoder(frames[2][None])[0])
    assert len(decoder.fusion.held) == 1  # what the second stream has switched to


def test_models_of_streams_and_phrases_of_the_decoder(tokenizer, lm, other_lm):
    """The decoder's phrases hold on whatever language model a stream has, at whatever weight."""
    frames = frames_of(2, 14, 3)
    decoder = make(tokenizer, [lm, other_lm])
    for given_phrases in (None, ["what", "the"]):
        mixed = make(tokenizer, [lm, other_lm], phrases=None) if given_phrases is None else decoder
        streams = StreamingDecoder(mixed, max_streams=2)
        more = {} if given_phrases is None else {"phrases": given_phrases}
        opened = [streams.open(lm=model, lm_weight=weight, **more) for model, weight in ((lm, 0.7), (other_lm, 0.2))]
        streams.step({sid: part for sid, part in zip(opened, frames)})
        for sid, part, model, weight in zip(opened, frames, (lm, other_lm), (0.7, 0.2)):
            alone = make(tokenizer, model, lm_weight=weight, phrases=given_phrases)
            same(streams.close(sid), alone(part[None])[0])
    with_phrases = make(tokenizer, lm, phrases=["what", "the"])
    streams = StreamingDecoder(with_phrases, max_streams=1)
    for weight in (0.4, 0.9):
        sid = streams.open(lm_weight=weight)
        streams.step({sid: frames[0]})
        same(streams.close(sid), make(tokenizer, lm, lm_weight=weight, phrases=["what", "the"])(frames[:1])[0])


def test_contexts_made_before(tokenizer, lm, monkeypatch):
    """They depend on the weights of their stream."""
    decoder, frames = make(tokenizer, lm), frames_of(1, 16, 3)[0]
    settings = [{}, {"lm_weight": 0.9}, {"phrase_weight": 1.0}, {"lm": None, "phrase_weight": 2.0}]
    streams, found = StreamingDecoder(decoder, max_streams=2), []
    for own in settings:
        sid, other = streams.open(phrases=CONTEXTS[2], **own), streams.open(phrases=CONTEXTS[0], **own)
        streams.set_context(other, CONTEXTS[2])
        streams.step({sid: frames, other: frames})
        found.append([streams.close(sid), streams.close(other)])
    streams = StreamingDecoder(make(tokenizer, lm), max_streams=2)
    made = [(streams.context(CONTEXTS[2], **own), streams.context(CONTEXTS[0], **own)) for own in settings]
    assert streams.context(None) is None and made[0][0].left_out == {}
    monkeypatch.setattr("hf_ngpulm.phrases.contexts.GraphBooster", None)
    for own, (first, second), (theirs, others) in zip(settings, made, found):
        sid, other = streams.open(phrases=first, **own), streams.open(phrases=second, **own)
        streams.set_context(other, first)
        streams.step({sid: frames, other: frames})
        same(streams.close(sid), theirs)
        same(streams.close(other), others)


def test_what_is_refused(tokenizer, lm):
    with pytest.raises(ValueError, match="phrases or phrase_weight are listed"):
        StreamingDecoder(make(tokenizer, lm, phrases=CONTEXTS))
    with pytest.raises(ValueError, match="beta is a tensor with one number per row"):
        StreamingDecoder(make(tokenizer, lm, beta=torch.ones(2)))
    streams = StreamingDecoder(make(tokenizer, lm), max_streams=1)
    with pytest.raises(ValueError, match="discount should be at least 0"):
        streams.open(phrases=[("what", -1.0)])
    with pytest.raises(ValueError, match="discount should be a finite number from 0"):
        streams.open(phrases=["what"], phrase_weight=-2.0)
    assert len(streams) == 0
    sid = streams.open(phrases=["what"])
    frames = frames_of(1, 10, 3)[0]
    streams.step({sid: frames[:5]})
    with pytest.raises(ValueError, match="empty"):
        streams.set_context(sid, phrases=[""])
    streams.step({sid: frames[5:]})
    same(streams.close(sid), make(tokenizer, lm)(frames[None], None, ["what"])[0])
