"""Phrases of streams: each has its own, they are switched in mid-utterance, and others aren't disturbed."""

from __future__ import annotations

import math
import random
import threading
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import Toy
from transformers import AutoTokenizer

from hf_ngpulm import CTCDecoder, NGramLM, PhraseBooster, StreamingDecoder, TransducerDecoder
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.errors import StreamError

BLANK = 256
CONTEXTS = [["a", "the", "to"], None, [("what", 3.0), "is", "in"], ["call anna", "new york"], {"weather": 2.0, "of": 4.0}]
KINDS = ["ctc greedy", "ctc beam", "rnnt greedy", "rnnt alsd", "rnnt aes", "tdt greedy", "tdt alsd"]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))


@pytest.fixture(scope="module")
def lm(tokenizer):
    return NGramLM.from_arpa(bundled("examples/speech/harbour/lm.arpa.gz"), tokenizer, units="id")


def make(kind, tokenizer, lm, **extra):
    """A decoder, and the width of its frames."""
    models = {"lm": lm, "lm_weight": 0.4, "phrase_weight": 3.0, **extra}
    family, search = kind.split()
    if family == "ctc":
        return CTCDecoder(tokenizer, **models, num_beams=4 if search == "beam" else 1), 257
    toy = Toy(257, BLANK, (0, 1, 2) if family == "tdt" else None, seed=1, blank_bias=3.0)
    return TransducerDecoder(toy, tokenizer, **models, strategy=search, frame_seconds=0.08, ilm_weight=0.0), 6


def frames_of(count, length, size, seed):
    generator = torch.Generator().manual_seed(seed)
    frames = 2 * torch.randn(count, length, size, generator=generator)
    if size == 257:
        frames[..., BLANK] += 4 * torch.rand(count, length, generator=generator)
    return frames


def offline(decoder, frames, context):
    call = decoder if isinstance(decoder, CTCDecoder) else decoder.decode
    return call(frames[None], None, [context if context is not None else []])[0]


def same(found, expected):
    assert [best.token_ids for best in found] == [best.token_ids for best in expected]
    for mine, other in zip(found, expected):
        assert mine.token_frames == other.token_frames
        for name in ("score", "acoustic_score", "lm_score", "phrase_score"):
            assert getattr(mine, name) == pytest.approx(getattr(other, name), abs=1e-3), name


@pytest.mark.parametrize("with_lm", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=2, deadline=None)
@given(seed=st.integers(0, 1000))
def test_each_stream_has_its_own(kind, with_lm, tokenizer, lm, seed):
    decoder, size = make(kind, tokenizer, lm if with_lm else None)
    frames, drawn = frames_of(len(CONTEXTS), 7, size, seed), random.Random(seed)
    streams = StreamingDecoder(decoder, max_streams=len(CONTEXTS))
    opened = [streams.open(phrases=context) if context is not None else streams.open() for context in CONTEXTS]
    sent = [0] * len(CONTEXTS)
    while min(sent) < 7:
        chunks = {}
        for n, sid in enumerate(opened):
            step = drawn.randint(0, 7 - sent[n])
            chunks[sid] = frames[n, sent[n] : sent[n] + step]
            sent[n] += step
        streams.step(chunks)
    for n, sid in enumerate(opened):
        same(streams.close(sid), offline(decoder, frames[n], CONTEXTS[n]))


def greedy_by_hand(decoder, frames, switch, contexts, tokenizer):
    """CTC and RNN-T, frame by frame, with other phrases from one frame on: slow, and told in the order in which it happens."""
    boosters = [PhraseBooster([] if context is None else context, tokenizer) for context in contexts]
    fusion = decoder.fusion
    lm, weight, phrase_weight = fusion.models[0], fusion.weight, fusion.phrase_weight
    lm_state, booster, state = lm.initial_states(1), boosters[0], boosters[0].initial_states(1)
    tokens, earned = [], 0.0

    def scores():
        return weight * lm.scores(lm_state)[0] + phrase_weight * booster.scores(state)[0]

    def take(token):
        nonlocal lm_state, state, earned
        _, lm_state = lm.step(lm_state, torch.tensor([token]))
        gained, state = booster.step(state, torch.tensor([token]))
        earned += float(gained)
        tokens.append(token)

    before = BLANK
    if not isinstance(decoder, CTCDecoder):
        prediction, memory = decoder.model.start(1, frames)
    for time, frame in enumerate(frames):
        if time == switch:
            earned += float(booster.final_scores(state))
            booster = boosters[1]
            state = booster.initial_states(1, bos=not tokens)
        if isinstance(decoder, CTCDecoder):
            label = int(frame.argmax())
            if label != BLANK:
                fused = frame[:BLANK] + scores()
                if before != BLANK:
                    fused[before] = frame[before] - 3.0 * weight
                label = int(fused.argmax())
                if label != before:
                    take(label)
            before = label
            continue
        for _ in range(decoder.settings.max_symbols):
            logits = decoder.model.join(frame, prediction[0])
            if int(logits.argmax()) == BLANK:
                break
            take(int((logits[:BLANK] + scores()).argmax()))
            prediction, memory = decoder.model.predict(torch.tensor(tokens[-1:]), memory)
    return tokens, earned + float(booster.final_scores(state))


@pytest.mark.parametrize("kind", ["ctc greedy", "rnnt greedy"])
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 1000), switch=st.integers(0, 14), first=st.sampled_from(CONTEXTS), second=st.sampled_from(CONTEXTS))
def test_a_switch_at_any_frame_is_the_slow_reference(kind, tokenizer, lm, seed, switch, first, second):
    decoder, size = make(kind, tokenizer, lm)
    frames = frames_of(2, 14, size, seed)
    streams = StreamingDecoder(decoder, max_streams=2)
    sid = streams.open(phrases=first)
    other = streams.open(phrases=["of", "to"])
    streams.step({sid: frames[0, :switch], other: frames[1, :3]})
    streams.set_context(sid, phrases=second)
    streams.step({sid: frames[0, switch:], other: frames[1, 3:]})
    (best,) = streams.close(sid)
    tokens, earned = greedy_by_hand(decoder, frames[0], switch, (first, second), tokenizer)
    assert best.token_ids == tokens
    assert best.phrase_score == pytest.approx(earned, abs=1e-3)
    same(streams.close(other), offline(decoder, frames[1], ["of", "to"]))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 1000), switch=st.integers(0, 12))
def test_hypotheses_are_worth_their_parts_after_a_switch(kind, tokenizer, lm, seed, switch):
    """And what the phrases earned is what the plain automata say of the tokens before the switch and after it."""
    decoder, size = make(kind, tokenizer, lm, **({"num_return_sequences": 3} if "greedy" not in kind else {}))
    if "ctc" not in kind:
        decoder.options = replace(decoder.options, blank_scoring="none")
    frames = frames_of(1, 12, size, seed)[0]
    streams = StreamingDecoder(decoder, max_streams=1)
    sid = streams.open(phrases=["a", "the", "to"])
    streams.step({sid: frames[:switch]})
    streams.set_context(sid, phrases=["of", "the", "in", "is"])
    streams.step({sid: frames[switch:]})
    boosters = [PhraseBooster(context, tokenizer) for context in (["a", "the", "to"], ["of", "the", "in", "is"])]
    for best in streams.close(sid):
        totals = []
        for cut in range(len(best.token_ids) + 1):
            parts = (best.token_ids[:cut], best.token_ids[cut:])
            rows = [torch.tensor([part], dtype=torch.int64) for part in parts]
            totals.append(sum(float(booster.score_sequences(row)) for booster, row in zip(boosters, rows)))
        assert any(best.phrase_score == pytest.approx(total, abs=1e-3) for total in totals)
        finals = float(lm.final_scores(lm.states_after(torch.tensor([best.token_ids], dtype=torch.int64))))
        expected = best.acoustic_score + 0.4 * best.lm_score + 3.0 * best.phrase_score
        if kind == "ctc beam":
            expected += 0.4 * 0.85 * math.log(256) * len(best.token_ids)
        if "greedy" not in kind:
            expected += 0.4 * finals
        assert best.score == pytest.approx(expected, abs=1e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_switch_to_the_same_phrases_before_the_first_frame_changes_nothing(kind, tokenizer, lm):
    decoder, size = make(kind, tokenizer, lm)
    frames = frames_of(1, 12, size, 5)[0]
    streams = StreamingDecoder(decoder, max_streams=2)
    sid = streams.open(phrases=["zebra"])
    streams.set_context(sid, phrases=CONTEXTS[0])
    streams.step({sid: frames})
    first = streams.reset(sid)  # the context stays
    same(first, offline(decoder, frames, CONTEXTS[0]))
    streams.step({sid: frames})
    same(streams.close(sid), first)


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_phrases_come_when_streams_are_open(kind, tokenizer, lm):
    """Room for them is made in mid-utterance, and streams without go on as they were."""
    for model in (lm, None):
        decoder, size = make(kind, tokenizer, model)
        frames = frames_of(3, 12, size, 7)
        streams = StreamingDecoder(decoder, max_streams=3)
        first, second = streams.open(), streams.open()
        streams.step({first: frames[0, :5], second: frames[1, :7]})
        third = streams.open(phrases=CONTEXTS[0])
        streams.step({first: frames[0, 5:8], third: frames[2, :6]})
        streams.set_context(second, phrases=[])
        streams.step({first: frames[0, 8:], second: frames[1, 7:], third: frames[2, 6:]})
        for n, (sid, context) in enumerate(zip((first, second, third), (None, None, CONTEXTS[0]))):
            same(streams.close(sid), offline(decoder, frames[n], context))
        later = streams.open()
        streams.step({later: frames[0]})
        same(streams.close(later), offline(decoder, frames[0], None))


def test_tensors_may_be_replaced(tokenizer, lm):
    """A context so large that the pool grows."""
    for kind in KINDS:
        decoder, size = make(kind, tokenizer, lm)
        frames = frames_of(2, 12, size, 3)
        streams = StreamingDecoder(decoder, max_streams=2)
        sid, other = streams.open(phrases=CONTEXTS[0]), streams.open()
        streams.step({sid: frames[0, :6], other: frames[1, :6]})
        letters = "abcdefghijklmnopqrstuvwxyz"
        streams.set_context(other, phrases=[f"{a}{b} {c}" for a in letters for b in letters for c in letters[:6]])
        streams.set_context(other, phrases=[])
        streams.step({sid: frames[0, 6:], other: frames[1, 6:]})
        same(streams.close(sid), offline(decoder, frames[0], CONTEXTS[0]))


def test_phrases_are_held_as_long_as_streams_need_them(tokenizer, lm):
    decoder, _ = make("ctc greedy", tokenizer, lm)
    streams = StreamingDecoder(decoder, max_streams=2)
    booster = PhraseBooster(["anna"], tokenizer)
    first, second = streams.open(phrases=["anna"]), streams.open(phrases=booster)
    assert decoder.fusion.held == {booster.fingerprint}
    streams.set_context(first, phrases=["bob"])
    bob = decoder.fusion.contexts.booster(["bob"]).fingerprint
    assert decoder.fusion.held == {booster.fingerprint, bob}
    streams.reset(second)
    assert decoder.fusion.held == {booster.fingerprint, bob}
    streams.close(second)
    assert decoder.fusion.held == {bob}
    del streams
    assert not decoder.fusion.held


def test_phrases_of_streams_may_be_any_iterable(tokenizer, lm):
    decoder, size = make("ctc beam", tokenizer, lm)
    frames = frames_of(1, 10, size, 3)[0]
    streams = StreamingDecoder(decoder, max_streams=1)
    sid = streams.open(phrases=iter(["zebra"]))
    streams.set_context(sid, iter(CONTEXTS[0]))
    streams.step({sid: frames})
    same(streams.close(sid), offline(decoder, frames, CONTEXTS[0]))


def test_contexts_may_be_made_by_another_thread(tokenizer, lm, monkeypatch):
    """While one decodes; what streams are given then, they follow without anything being written or looked up."""
    decoder, size = make("ctc beam", tokenizer, lm, phrases=CONTEXTS[3])
    frames = frames_of(2, 12, size, 5)
    streams = StreamingDecoder(decoder, max_streams=2)
    assert streams.context(None) is None
    with pytest.warns(UserWarning, match="can't write"):
        assert streams.context(["日本"]).left_out == {"日本": "日本"}
    with pytest.raises(ValueError, match="empty"):
        streams.context([" "])
    made, begun, stopping = [], threading.Barrier(4), threading.Event()

    def prepare():
        begun.wait()
        number = 0
        while not stopping.is_set():
            streams.context([f"anna {'abcdefghij'[number % 10]}", "zappa"])
            number += 1
        made.append({number: streams.context(context) for number, context in enumerate(CONTEXTS) if context is not None})

    threads = [threading.Thread(target=prepare) for _ in range(3)]
    for thread in threads:
        thread.start()
    begun.wait()
    first = streams.open()
    for frame in frames[0]:
        streams.step({first: frame[None]})
    same(streams.close(first), offline(decoder, frames[0], CONTEXTS[3]))
    stopping.set()
    for thread in threads:
        thread.join()
    assert made[0] == made[1] == made[2]  # the same objects

    def of_nothing(phrases, *others, **more):
        assert not phrases
        return PhraseBooster(phrases, *others, **more)

    monkeypatch.setattr("hf_ngpulm.phrases.contexts.PhraseBooster", of_nothing)
    monkeypatch.setattr("hf_ngpulm.phrases.phrases.check_tokenizer", None)
    for number in (0, 2, 4):
        sid, other = streams.open(phrases=made[0][number]), streams.open(phrases=made[0][3])
        streams.set_context(other, made[0][number])
        streams.step({sid: frames[0], other: frames[1]})
        same(streams.close(sid), offline(decoder, frames[0], made[0][number]))
        same(streams.close(other), offline(decoder, frames[1], made[0][number]))


def test_what_is_refused(tokenizer, lm):
    decoder, size = make("ctc greedy", tokenizer, lm)
    streams = StreamingDecoder(decoder, max_streams=1)
    with pytest.raises(ValueError, match="empty"):
        streams.open(phrases=["", "x"])
    with pytest.raises(ValueError, match="phrase_weight"):
        streams.open(phrases=["x"], phrase_weight=float("inf"))
    assert len(streams) == 0
    sid = streams.open(phrases=CONTEXTS[0])
    frames = frames_of(1, 10, size, 3)[0]
    streams.step({sid: frames[:5]})
    with pytest.raises(ValueError, match="finite"):
        streams.set_context(sid, phrases=[("x", float("nan"))])
    streams.step({sid: frames[5:]})
    same(streams.close(sid), offline(decoder, frames, CONTEXTS[0]))
    with pytest.raises(StreamError, match="isn't open"):
        streams.set_context(sid, phrases=["x"])
