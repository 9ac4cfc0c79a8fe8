"""Delayed fusion in the beams of transducers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.causal_lms import causal_lm, letters_tokenizer
from support.letters import Letters
from support.toys import Toy
from test_second_pass import CLIPS, model_of

from hf_ngpulm import NGramLM, Rescorer, StreamingDecoder, TransducerDecoder
from hf_ngpulm.common.bundled import bundled

WEIGHT, BONUS, MOST_SYMBOLS = 0.7, 1.5, 3
SETTINGS = {"rescorer_weight": WEIGHT, "word_bonus": BONUS, "frame_seconds": 0.08}
PIECES = ["a", "|", "t", "_"]  # the last one is the blank
ENGINES = ["cpu", "reference"]


def rescorer(end="\n"):
    return Rescorer(causal_lm(), letters_tokenizer(), end=end)


def toy(durations, **more):
    return Toy(len(PIECES), len(PIECES) - 1, durations, seed=4, blank_bias=1.0, **more), Letters(PIECES, 3)


def frames_of(rows, length, seed=0):
    return 1.5 * torch.randn(rows, length, 6, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def tdt():
    asr = model_of("tdt")
    rows = [*asr.frames(CLIPS)]
    lengths = torch.tensor([len(row) for row in rows])
    return asr, torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths


def plain_search(model, frames, every, beams, scorer, best=None):
    """The definition: ALSD by dictionaries, from tokens and frame to the score, the share, and the tokens at this frame."""
    found, turn, end = {((), 0): (0.0, 0.0, 0)}, every, len(frames)
    durations, waits = model.durations or (None,), max(model.durations or (1,))

    def steps_of(tokens, time, score, share, symbols):
        prediction, state = model.start(1, frames)
        for token in tokens:
            prediction, state = model.predict(torch.tensor([token]), state)
        logits = model.join(frames[time], prediction[0])
        of_durations = logits[model.vocab_size :].log_softmax(0).tolist() if model.durations else [0.0]
        for label, log_prob in enumerate(logits[: model.vocab_size].log_softmax(0).tolist()):
            for duration, of_duration in zip(durations, of_durations):
                way = score + log_prob + of_duration, share
                if label == model.blank_id:
                    yield (*way, 0), tokens, time + max(1, duration or 0)
                elif symbols < MOST_SYMBOLS:
                    yield (*way, 0 if duration else symbols + 1), (*tokens, label), time + (duration or 0)

    while True:
        limit, reach = (turn, waits) if turn <= end else (end, 0)
        while min(time for _, time in found) < limit and max(time for _, time in found) + reach <= limit:
            ways = {}
            for (tokens, time), values in found.items():
                if time == end:
                    ways.setdefault((tokens, time), []).append(values)
                    continue
                for way, longer, after in sorted(steps_of(tokens, time, *values), reverse=True)[:beams]:
                    ways.setdefault((longer, min(after, end)), []).append(way)
            merged = {key: (np.logaddexp.reduce([way[0] for way in of]), *max(of)[1:]) for key, of in ways.items()}
            found = dict(sorted(merged.items(), key=lambda item: -sum(item[1][:2]))[:beams])
        if not reach:
            ranked = sorted(found.items(), key=lambda item: -sum(item[1][:2]) / (len(item[0][0]) + 1))
            return {tokens: values[0] for (tokens, _), values in ranked[:best]}
        texts = {key: Letters(PIECES).decode(key[0]).split()[:-1] for key in found}
        asked = list(dict.fromkeys(tuple(texts[key]) for key in sorted(found, key=lambda key: -sum(found[key][:2]))))[:best]
        scores = {key: scorer.scores([[" ".join(words)]])[0][0] for key, words in texts.items() if tuple(words) in asked}
        average = sum(scores.values()) / max(1, sum(len(texts[key]) for key in scores))
        for key, (score, _, symbols) in found.items():
            count = len(texts[key])
            found[key] = score, WEIGHT * (scores.get(key, average * count) - average * count) + BONUS * count, symbols
        turn += every


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("durations", [None, (0, 1, 2)])
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("best", [None, 2])
def test_the_search_is_that_of_the_definition(engine, durations, every, best):
    model, tokenizer = toy(durations)
    frames, beams = frames_of(1, 14, seed=2), 4
    right = plain_search(model, frames[0], every, beams, rescorer(end=""), best)
    more = {"num_beams": beams, "num_return_sequences": best or beams, "max_symbols": MOST_SYMBOLS, "engine": engine}
    decoder = TransducerDecoder(
        model,
        tokenizer,
        rescorer=rescorer(),
        rescorer_every="word" if every == 1 else every * 0.08,
        rescorer_best=best,
        **more,
        **SETTINGS,
    )
    found = {}
    for each in decoder.decode(frames)[0]:
        added = WEIGHT * each.rescorer_score + BONUS * len(each.text.split())
        found[tuple(each.token_ids)] = each.score - added
    assert found == {tokens: pytest.approx(score, abs=2e-3) for tokens, score in right.items()}
    plain = TransducerDecoder(model, tokenizer, **more).decode(frames)[0]
    assert {tuple(each.token_ids) for each in plain} != set(right)  # the rescorer has changed something


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "more",
    [
        {}, {"durations": (0, 1, 2)}, {"strategy": "aes", "aes_steps": 3, "aes_gamma": 1e4}, {"merging": "max"},
        {"lm": True},
    ],
)  # fmt: skip
def test_with_every_hypothesis_kept_it_equals_rescoring_the_list(engine, more):
    more = dict(more)
    model, tokenizer = toy(more.pop("durations", None), most_tokens=3)
    frames = frames_of(2, 4)
    if more.pop("lm", False):
        more |= {"lm": NGramLM.train([[0, 2, 1, 0], [2, 0, 1], [0, 1, 0]], vocab_size=3, order=2), "lm_guard": "off"}
        tokenizer.size = 3
    settings = {"num_beams": 150, "num_return_sequences": 150, "engine": engine, "rescorer": rescorer(), **SETTINGS, **more}
    listed = TransducerDecoder(model, tokenizer, **settings).decode(frames)
    assert [len(of_row) for of_row in listed] == [40, 40]
    for every in ("word", 0.16):
        delayed = TransducerDecoder(model, tokenizer, rescorer_every=every, **settings).decode(frames)
        for ours, theirs in zip(delayed, listed):
            scores = {tuple(each.token_ids): pytest.approx(each.score, abs=2e-3) for each in theirs}
            assert {tuple(each.token_ids): each.score for each in ours} == scores


def test_batches_and_block_sizes_change_nothing(tdt):
    asr, frames, lengths = tdt
    decoder = TransducerDecoder(
        asr.model, asr.tokenizer, num_beams=4, rescorer=rescorer(), rescorer_every=0.4, **SETTINGS
    )  # fmt: skip
    whole = [row[0] for row in decoder.decode(frames, lengths)]
    plain = TransducerDecoder(asr.model, asr.tokenizer, num_beams=4, rescorer=rescorer(), **SETTINGS).decode(frames, lengths)
    assert [each.text for each in whole] != [row[0].text for row in plain]
    rows = [row[:length] for row, length in zip(frames, lengths.tolist())]
    assert [decoder.decode(row[None])[0][0].token_ids for row in rows] == [each.token_ids for each in whole]
    streams = StreamingDecoder(decoder, max_streams=2)
    for size in (1, 7):
        first = streams.open()
        streams.step({first: rows[0][:3]})
        second = streams.open()  # begins later, so that its turns come at other times
        for begin in range(0, int(lengths.max()), size):
            chunks = {first: rows[0][3:][begin : begin + size], second: rows[1][begin : begin + size]}
            streams.step({sid: chunk for sid, chunk in chunks.items() if len(chunk)})
        closed = [streams.close(sid)[0] for sid in (first, second)]
        assert [each.token_ids for each in closed] == [each.token_ids for each in whole]
        assert [each.score for each in closed] == [pytest.approx(each.score, abs=1e-3) for each in whole]


def test_weights_of_rows_and_pauses(tdt):
    asr, frames, lengths = tdt
    decoder = TransducerDecoder(asr.model, asr.tokenizer, num_beams=4, rescorer=rescorer(), rescorer_every=0.4, **SETTINGS)
    of_rows = decoder.with_weights(rescorer_weight=torch.tensor([0.0, 0.7]), word_bonus=torch.tensor([0.0, 1.5]))
    texts = [row[0].text for row in of_rows.decode(frames, lengths)]
    assert texts[0] == TransducerDecoder(asr.model, asr.tokenizer, num_beams=4).decode(frames, lengths)[0][0].text
    assert texts[1] == decoder.decode(frames, lengths)[1][0].text
    twice = torch.cat([frames[1, : lengths[1]], torch.zeros(30, frames.shape[2]), frames[1, : lengths[1]]])[None]
    pausing = TransducerDecoder(
        asr.model, asr.tokenizer, num_beams=4, rescorer=rescorer(), rescorer_every=0.4, pause_seconds=0.8,
        **SETTINGS | {"rescorer_weight": torch.tensor([0.7])},
    )  # fmt: skip
    assert pausing.decode(twice)[0][0].text.startswith(texts[1].split()[0])


def test_a_broken_frame_ends_its_stream_only(tdt):
    asr, frames, lengths = tdt
    decoder = TransducerDecoder(asr.model, asr.tokenizer, num_beams=4, rescorer=rescorer(), rescorer_every=0.4, **SETTINGS)
    streams = StreamingDecoder(decoder, max_streams=2)
    sids = [streams.open(), streams.open()]
    broken = frames[1].clone()
    broken[20] = torch.nan
    with pytest.raises(Exception, match="frame 20"):
        streams.step({sids[0]: frames[0, : lengths[0]], sids[1]: broken})
    streams.step({sids[1]: frames[1, : lengths[1]]})
    assert [streams.close(sid)[0].text for sid in sids] == [row[0].text for row in decoder.decode(frames, lengths)]


def test_the_bundled_example_reads_fewer_tokens_than_a_long_list(tdt):
    asr, frames, lengths = tdt
    lm, read = str(bundled("examples/speech/harbour/lm.arpa.gz")), []
    for more in ({"num_beams": 32}, {"num_beams": 8, "rescorer_every": 0.8}):
        scorer = rescorer()
        TransducerDecoder(asr.model, asr.tokenizer, lm=lm, rescorer=scorer, **SETTINGS, **more).decode(frames, lengths)
        read.append(scorer.read_tokens)
    assert read[1] < read[0]


def test_what_has_no_effect_is_refused(tdt):
    asr, *_ = tdt
    with pytest.raises(ValueError, match="rescorer_every given without rescorer="):
        TransducerDecoder(asr.model, asr.tokenizer, num_beams=4, rescorer_every="word")
    with pytest.raises(ValueError, match="one hypothesis only"):
        TransducerDecoder(asr.model, asr.tokenizer, strategy="greedy", rescorer=rescorer(), rescorer_every="word")
    best = {"rescorer": rescorer(), "num_beams": 4, "rescorer_best": 2}
    for given, message in (
        ({"num_beams": 4, "rescorer_best": 2}, "rescorer_best given without rescorer="),
        (best | {"num_return_sequences": 3}, r"rescorer_best should be a whole number from 3 \(num_return_sequences\) to 4"),
        (best | {"rescorer_best": 5}, r"from 1 \(num_return_sequences\) to 4 \(num_beams\)"),
    ):
        with pytest.raises(ValueError, match=message):
            TransducerDecoder(asr.model, asr.tokenizer, **given)


def test_the_best_few_of_a_wide_beam_are_read(tdt):
    """A narrow beam prunes what the rescorer would have chosen; a wide one of which it reads as few doesn't."""
    asr, frames, lengths = tdt
    read, lists = [], []
    for more in ({"num_beams": 12}, {"num_beams": 12, "rescorer_best": 3}, {"num_beams": 3}):
        scorer = rescorer()
        decoder = TransducerDecoder(asr.model, asr.tokenizer, rescorer=scorer, num_return_sequences=3, **SETTINGS, **more)
        lists.append([{tuple(each.token_ids) for each in row} for row in decoder.decode(frames, lengths)])
        read.append(scorer.read_tokens)
    first = TransducerDecoder(asr.model, asr.tokenizer, num_beams=12, num_return_sequences=3).decode(frames, lengths)
    assert lists[1] == [{tuple(each.token_ids) for each in row} for row in first]
    assert lists[1] != lists[2] and read[1] < read[0]
