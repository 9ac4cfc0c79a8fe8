"""Delayed fusion: a rescorer that takes part in the search."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.causal_lms import causal_lm, letters_tokenizer
from test_second_pass import CLIPS, model_of

from hf_ngpulm import CTCDecoder, Rescorer, StreamingDecoder
from hf_ngpulm.common.bundled import bundled

WEIGHT, BONUS = 0.7, 1.5
SETTINGS = {"rescorer_weight": WEIGHT, "word_bonus": BONUS}
EVERYTHING = {"beam_threshold": 1e6, "num_beams": 256, "num_return_sequences": 256}


def rescorer():
    return Rescorer(causal_lm(), letters_tokenizer())


@pytest.fixture(scope="module")
def ctc():
    return model_of("ctc")


@pytest.fixture(scope="module")
def logits(ctc):
    rows = [*ctc.frames(CLIPS)]
    return torch.stack([row[: min(map(len, rows))] for row in rows])


def words_of(text):
    return text.split()[:-1]


def plain_search(log_probs, blank, text_of, every, beams, scorer, best=None):
    """The definition: prefix beam search by dictionaries, whose prefixes carry what the rescorer has added."""
    found = {(): (0.0, -math.inf, 0.0)}  # log-probabilities with a blank and a token at the end, and the added score
    for frame, of_frame in enumerate(log_probs.tolist()):
        new = {}

        def add(prefix, added, with_blank=-math.inf, with_token=-math.inf, new=new):
            b, t, _ = new.get(prefix, (-math.inf, -math.inf, 0.0))
            new[prefix] = (np.logaddexp(b, with_blank), np.logaddexp(t, with_token), added)

        for prefix, (b, t, added) in found.items():
            total = np.logaddexp(b, t)
            last = of_frame[prefix[-1]] if prefix else -math.inf
            add(prefix, added, with_blank=total + of_frame[blank], with_token=t + last)
            for token, score in enumerate(of_frame):
                child = (*prefix, token)
                if token != blank:
                    before = b if prefix and token == prefix[-1] else total
                    add(child, found[child][2] if child in found else added, with_token=before + score)
        ranked = sorted(new.items(), key=lambda item: -(np.logaddexp(*item[1][:2]) + item[1][2]))
        found = dict(ranked[:beams])
        if (frame + 1) % every == 0:
            texts = {prefix: words_of(text_of(list(prefix))) for prefix in found}
            asked = list(dict.fromkeys(map(tuple, texts.values())))[:best]  # `found` is ranked
            scores = {p: scorer.scores([[" ".join(words)]])[0][0] for p, words in texts.items() if tuple(words) in asked}
            average = sum(scores.values()) / max(1, sum(len(texts[prefix]) for prefix in scores))
            for prefix, (b, t, _) in found.items():
                count = len(texts[prefix])
                found[prefix] = (b, t, WEIGHT * (scores.get(prefix, average * count) - average * count) + BONUS * count)
    ranked = sorted(found.items(), key=lambda item: -(np.logaddexp(*item[1][:2]) + item[1][2]))
    return {prefix: np.logaddexp(b, t) for prefix, (b, t, _) in ranked[:best]}


@pytest.mark.parametrize("engine", ["cpu", "reference"])
@pytest.mark.parametrize("every", [1, 5])
@pytest.mark.parametrize("best", [None, 2])
def test_the_search_is_that_of_the_definition(ctc, logits, engine, every, best):
    without_end = Rescorer(causal_lm(), letters_tokenizer(), end="")
    frames, seconds = logits[:1, :40], every * 0.08
    decoder = CTCDecoder(
        ctc.tokenizer, num_beams=4, num_return_sequences=best or 4, beam_threshold=1e6, rescorer=rescorer(), frame_seconds=0.08,
        rescorer_every="word" if every == 1 else seconds, engine=engine, rescorer_best=best, **SETTINGS,
    )  # fmt: skip
    text_of = decoder.writing.text
    right = plain_search(frames[0].log_softmax(1), decoder.blank_id, text_of, every, 4, without_end, best)
    found = decoder.stream(1)
    found.add(frames)
    (searched,) = found.searched()
    assert {tuple(each.token_ids): pytest.approx(each.score, abs=2e-3) for each in searched} == right
    plain = CTCDecoder(ctc.tokenizer, num_beams=4, num_return_sequences=4, beam_threshold=1e6)(frames)[0]
    assert {tuple(each.token_ids) for each in plain} != set(right)  # the rescorer has changed something


@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_with_every_hypothesis_kept_it_equals_rescoring_the_list(ctc, logits, engine):
    letters = [ctc.tokenizer.convert_tokens_to_ids(token) for token in ("▁the", "▁", "s")]
    blank = CTCDecoder(ctc.tokenizer).blank_id
    torch.manual_seed(0)
    few = torch.full((2, 5, logits.shape[2]), -torch.inf)
    few[..., [*letters, blank]] = torch.randn(2, 5, 4)
    settings = {"frame_seconds": 0.08, "engine": engine, "rescorer": rescorer()} | EVERYTHING
    listed = CTCDecoder(ctc.tokenizer, **settings, **SETTINGS)(few)
    assert min(map(len, listed)) > 100
    for every in ("word", 0.16):
        delayed = CTCDecoder(ctc.tokenizer, rescorer_every=every, **settings, **SETTINGS)(few)
        for ours, theirs in zip(delayed, listed):
            scores = {tuple(each.token_ids): pytest.approx(each.score, abs=2e-3) for each in theirs}
            assert {tuple(each.token_ids): each.score for each in ours} == scores


@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_language_models_and_phrases_keep_their_shares(ctc, logits, engine):
    """As above with a language model and phrases: their scores and what the rescorer has added can be told apart."""
    lm = str(bundled("examples/speech/harbour/lm.arpa.gz"))
    best = logits.amax(1).topk(4).indices[0].tolist()
    torch.manual_seed(1)
    few = torch.full((2, 5, logits.shape[2]), -torch.inf)
    blank = CTCDecoder(ctc.tokenizer).blank_id
    few[..., sorted({*best[:3], blank})] = torch.randn(2, 5, len({*best[:3], blank}))
    settings = {"frame_seconds": 0.08, "engine": engine, "rescorer": rescorer(), "lm": lm, "lm_guard": "off"} | EVERYTHING
    settings["phrases"] = ["the", ctc.tokenizer.decode(best[:2])]
    listed = CTCDecoder(ctc.tokenizer, **settings, **SETTINGS)(few)
    delayed = CTCDecoder(ctc.tokenizer, rescorer_every="word", **settings, **SETTINGS)(few)
    for ours, theirs in zip(delayed, listed):
        scores = {tuple(each.token_ids): pytest.approx(each.score, abs=2e-3) for each in theirs}
        assert {tuple(each.token_ids): each.score for each in ours} == scores


def test_block_sizes_change_nothing(ctc, logits):
    decoder = CTCDecoder(
        ctc.tokenizer, num_beams=4, frame_seconds=0.08, rescorer=rescorer(), rescorer_every=0.4, **SETTINGS
    )  # fmt: skip
    whole = decoder(logits)
    for size in (1, 7, 64):
        blocks = decoder.stream(2)
        for block in logits.split(size, 1):
            blocks.add(block)
        assert [row[0].token_ids for row in blocks.hypotheses()] == [row[0].token_ids for row in whole]
    streams = StreamingDecoder(decoder, max_streams=3)
    first = streams.open()
    streams.step({first: logits[0, :10]})
    second = streams.open()  # begins later, so that its turns come at other times
    streams.step({first: logits[0, 10:], second: logits[1, :3]})
    streams.step({second: logits[1, 3:]})
    closed = [streams.close(sid)[0] for sid in (first, second)]
    assert [each.token_ids for each in closed] == [row[0].token_ids for row in whole]
    assert [each.score for each in closed] == [pytest.approx(row[0].score, abs=1e-3) for row in whole]


def test_a_broken_frame_changes_nothing(ctc, logits):
    decoder = CTCDecoder(ctc.tokenizer, frame_seconds=0.08, rescorer=rescorer(), rescorer_every=0.4, **SETTINGS)
    streams = StreamingDecoder(decoder, max_streams=2)
    sids = [streams.open(), streams.open()]
    broken = logits[1].clone()
    broken[30] = torch.nan
    with pytest.raises(Exception, match="frame 30"):
        streams.step({sids[0]: logits[0], sids[1]: broken})
    streams.step({sids[1]: logits[1]})
    assert [streams.close(sid)[0].text for sid in sids] == [row[0].text for row in decoder(logits)]


@pytest.mark.parametrize("every", [None, 0.4])
def test_a_text_that_the_rescorer_cant_read_ends_its_utterance_alone(ctc, logits, every):
    short = rescorer()
    short.tokens = lambda text, end=None: refused(text) or Rescorer.tokens(short, text, end)
    unreadable: list[str] = []

    def refused(text):
        if text and any(text.startswith(each) for each in unreadable):
            raise ValueError("a text of 9 tokens")

    more = {} if every is None else {"rescorer_every": every}
    decoder = CTCDecoder(ctc.tokenizer, frame_seconds=0.08, num_beams=8, rescorer=short, **more, **SETTINGS)
    expected = [row[0].text for row in decoder(logits)]
    short._cached.clear()
    unreadable.append(expected[1].split()[0])
    assert not expected[0].startswith(unreadable[0])
    streams = StreamingDecoder(decoder, max_streams=2)
    good, bad = streams.open(), streams.open()
    streams.step({good: logits[0], bad: logits[1]})
    with pytest.raises(ValueError, match="9 tokens"):
        streams.reset(bad)
    streams.step({bad: logits[0]})  # in a new utterance
    assert streams.reset(bad)[0].text == expected[0]
    streams.step({bad: logits[1]})
    with pytest.raises(ValueError, match="9 tokens"):
        streams.close(bad)
    assert streams.close(good)[0].text == expected[0]
    assert len(streams) == 0


def test_fewer_tokens_are_read_than_for_long_lists(ctc, logits):
    read = []
    for more in ({"num_beams": 32}, {"num_beams": 8, "rescorer_every": 0.8}):
        scorer = rescorer()
        CTCDecoder(ctc.tokenizer, frame_seconds=0.08, rescorer=scorer, **SETTINGS, **more)(logits)
        read.append(scorer.read_tokens)
    assert read[1] < read[0]


def test_what_has_no_effect_is_refused(ctc):
    with pytest.raises(ValueError, match="rescorer_every given without rescorer="):
        CTCDecoder(ctc.tokenizer, num_beams=4, rescorer_every="word")
    with pytest.raises(ValueError, match="needs the duration of a frame; pass frame_seconds"):
        CTCDecoder(ctc.tokenizer, rescorer=rescorer(), rescorer_every=0.5)
    with pytest.raises(ValueError, match=r"rescorer_every should be .*'word'"):
        CTCDecoder(ctc.tokenizer, rescorer=rescorer(), rescorer_every="sentence")
