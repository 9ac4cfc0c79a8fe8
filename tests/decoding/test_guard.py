"""Language models are left out of the rows whose speech they don't know, and of no others."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from toys import Toy
from transformers import AutoTokenizer

from hf_ngpulm import CTCDecoder, LogLinear, NGramLM, StreamingDecoder, TransducerDecoder
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.config.word_summary import WordSummary
from hf_ngpulm.decoding import guard

# Constants of `guard`, which tests of other things switch off.
DEFAULTS = {"LEAST": 0.5, "LEAST_OF_WORDS": -0.5, "MOST": 1.0, "MOST_OF_WORDS": 2.0}
ALWAYS, NEVER = 1e6, -1e6
LINES = [[1, 2, 3, 4], [2, 3, 4], [5, 1, 2], [4, 4, 1]] * 5
CASES = {
    "greedy": {"num_beams": 1},
    "beams": {"num_beams": 4, "num_return_sequences": 3},
    "beams with a bonus": {"num_beams": 4, "beta": 2.0},
    "transducer": {"strategy": "greedy"},
    "transducer with beams": {"num_beams": 3, "ilm_weight": 0.2},
    "TDT with pauses": {"num_beams": 3, "pause_seconds": 0.3, "frame_seconds": 0.1},
}


@pytest.fixture(scope="module")
def lm():
    return NGramLM.from_texts(LINES, vocab_size=8, order=3)


@pytest.fixture(scope="module")
def other():
    return NGramLM.from_texts([[6, 6, 7], [7, 5, 6], [7, 7]] * 5, vocab_size=8, order=2)


def frames_of(case, rows=6):
    width = 6 if "transducer" in case or case.startswith("TDT") else 9
    return torch.randn(rows, 14, width, generator=torch.Generator().manual_seed(3))


def decoder_of(case, lm, lm_guard="off", **more):
    settings = {**CASES[case], **more}
    if lm is not None:
        settings |= {"lm_guard": lm_guard}
    if "transducer" in case or case.startswith("TDT"):
        toy = Toy(9, 8, (0, 1, 2) if case.startswith("TDT") else None, seed=1, blank_bias=1.0)
        if lm is None:
            settings.pop("ilm_weight", None)
        return TransducerDecoder(toy, None, lm, 0.8, **settings)
    if lm is None:
        settings.pop("beta", None)
    return CTCDecoder(None, lm, 0.8, blank_id=8, **settings)


def seen(hypotheses):
    return [(each.token_ids, pytest.approx(each.score, abs=1e-4), each.token_frames) for each in hypotheses]


def plain_log_prob(lm, tokens):
    """What the LM says of tokens, asked one by one."""
    state, total = lm.initial_states(1), 0.0
    for token in tokens:
        total += float(lm.scores(state)[0, token])
        _, state = lm.step(state, torch.tensor([token], dtype=torch.int32))
    return total


def test_entropy_is_that_of_the_unigrams(lm):
    root = torch.zeros(1, dtype=torch.int32)
    probabilities = lm.scores(root)[0].double().exp()
    probabilities /= probabilities.sum()
    assert lm.unigram_entropy == pytest.approx(sum(-p * math.log(p) for p in probabilities.tolist()), abs=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_rows_below_the_threshold_are_decoded_without_the_model(lm, case):
    frames = frames_of(case)
    whole, without = decoder_of(case, lm).decode(frames), decoder_of(case, None).decode(frames)
    evidence = []
    for best, *_ in whole:
        count = len(best.token_ids)
        evidence.append((plain_log_prob(lm, best.token_ids) + lm.unigram_entropy * count) / count if count else math.inf)
    ranked = sorted(evidence)
    for least in (ALWAYS, NEVER, (ranked[2] + ranked[3]) / 2):
        found = decoder_of(case, lm, least).decode(frames)
        for row, hypotheses in enumerate(found):
            is_out = evidence[row] < least
            assert [each.lm_left_out for each in hypotheses] == [is_out] * len(hypotheses)
            assert seen(hypotheses) == seen((without if is_out else whole)[row])
            assert all(each.lm_score == 0 for each in hypotheses if is_out)


@pytest.mark.parametrize("case", CASES)
def test_rows_in_which_the_model_costs_too_much_are_decoded_without_it(lm, case, monkeypatch):
    frames = frames_of(case)
    whole, without = decoder_of(case, lm).decode(frames), decoder_of(case, None).decode(frames)
    costs = [
        (free[0].acoustic_score - best[0].acoustic_score) / max(len(best[0].token_ids), 1) for free, best in zip(without, whole)
    ]
    ranked = sorted(costs)
    for most in (ranked[0] - 1e-3, (ranked[-3] + ranked[-2]) / 2, ranked[-1] + 1e-3):
        monkeypatch.setattr(guard, "MOST", most)
        found = decoder_of(case, lm, "auto").decode(frames)
        for row, hypotheses in enumerate(found):
            is_out = costs[row] > most
            assert [each.lm_left_out for each in hypotheses] == [is_out] * len(hypotheses)
            assert seen(hypotheses) == seen((without if is_out else whole)[row])
        assert not any(best.lm_left_out for best, *_ in decoder_of(case, lm, NEVER).decode(frames))


@pytest.mark.parametrize("case", ["greedy", "beams", "transducer with beams"])
def test_each_of_several_models_is_judged(lm, other, case):
    frames = frames_of(case)
    both = LogLinear([lm, other], [0.7, 0.3])
    whole = decoder_of(case, both).decode(frames)
    alone = {None: decoder_of(case, None).decode(frames), both: whole}
    for kept, share in ((lm, 0.7), (other, 0.3)):
        alone[kept] = decoder_of(case, LogLinear([kept], [share])).decode(frames)
    of_rows = [
        {
            each: plain_log_prob(each, best.token_ids) / len(best.token_ids) + each.unigram_entropy for each in (lm, other)
        }
        for best, *_ in whole
    ]  # fmt: skip
    values, kinds = sorted(value for evidence in of_rows for value in evidence.values()), set()
    for least in (values[1], values[len(of_rows)], values[-2]):
        found = decoder_of(case, both, least + 1e-3).decode(frames)
        for row, evidence in enumerate(of_rows):
            good = [each for each in (lm, other) if evidence[each] >= least + 1e-3]
            kept = both if len(good) == 2 else good[0] if good else None
            kinds.add(len(good))
            assert seen(found[row]) == seen(alone[kept][row])
            assert found[row][0].lm_left_out == (kept is not both)
    assert len(kinds) > 1


@pytest.mark.parametrize("case", ["greedy", "beams", "transducer"])
def test_rows_keep_their_own_weights_and_phrases(case):
    tokenizer = AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))
    toy = Toy(257, 256, seed=1, blank_bias=2.0)
    texts = (["the old lighthouse"] * 3, ["the harbour at night", "gull island"] * 3)
    one, two = (NGramLM.from_texts(lines, tokenizer, order=2) for lines in texts)
    lms, weights, phrases = [one, None, two], torch.tensor([0.8, 0.8, 0.3]), [["old lighthouse"], None, ["gull island"]]
    frames = torch.randn(3, 12, 6 if case == "transducer" else 257, generator=torch.Generator().manual_seed(1))

    def decoder(lms, weights, phrases, **more):
        settings = {**CASES[case], "phrases": phrases, "phrase_weight": 1.5, **more}
        if case == "transducer":
            return TransducerDecoder(toy, tokenizer, lms, weights, **settings)
        return CTCDecoder(tokenizer, lms, weights, **settings)

    alone = [decoder(None, None, phrases[row]).decode(frames[row : row + 1])[0] for row in range(3)]
    found = decoder(lms, weights, phrases, lm_guard=ALWAYS).decode(frames)
    assert [best.lm_left_out for best, *_ in found] == [True, False, True]
    assert [seen(of_row) for of_row in found] == [seen(of_row) for of_row in alone]
    of_call = decoder(lms, weights, None, lm_guard=ALWAYS).decode(frames, None, iter(["old lighthouse", "gull island"]))
    every = decoder(None, None, ["old lighthouse", "gull island"]).decode(frames)
    assert [seen(of_row) for of_row in of_call] == [seen(of_row) for of_row in every]


def test_a_weight_of_0_and_an_empty_transcript_are_not_judged(lm):
    frames = torch.full((1, 5, 9), -9.0)
    frames[..., 8] = 9.0
    assert not CTCDecoder(None, lm, 0.8, blank_id=8, lm_guard=ALWAYS)(frames)[0][0].lm_left_out
    frames = frames_of("greedy")
    assert not any(best.lm_left_out for best, *_ in CTCDecoder(None, lm, 0.0, blank_id=8, lm_guard=ALWAYS)(frames))


def test_it_is_on_by_default(lm, monkeypatch):
    monkeypatch.setattr(guard, "LEAST", ALWAYS)
    frames = frames_of("greedy")
    assert all(best.lm_left_out for best, *_ in CTCDecoder(None, lm, blank_id=8)(frames))
    assert not any(best.lm_left_out for best, *_ in CTCDecoder(None, lm, blank_id=8, lm_guard="off")(frames))


@pytest.mark.parametrize("wrong", ["on", None, math.nan, True])
def test_wrong_values_are_refused(lm, wrong):
    if wrong is None:  # as everywhere: the default
        assert CTCDecoder(None, lm, blank_id=8, lm_guard=None).options.lm_guard == "auto"
        return
    with pytest.raises(ValueError, match=r"lm_guard should be one of \('auto', 'off'\) or a"):
        CTCDecoder(None, lm, blank_id=8, lm_guard=wrong)


@pytest.mark.parametrize("case", ["greedy", "beams", "beams with a bonus", "transducer", "transducer with beams"])
def test_a_stream_does_without_the_model_after_utterances_that_it_does_not_know(lm, case):
    frames = frames_of(case, 4)
    whole, without = decoder_of(case, lm).decode(frames), decoder_of(case, None).decode(frames)
    for lm_guard, expected in ((ALWAYS, [whole[0], *without[1:]]), (NEVER, whole), ("off", whole)):
        stream = StreamingDecoder(decoder_of(case, lm, lm_guard), max_streams=2)
        free, sid = stream.open(lm=None), stream.open()
        for row in range(4):
            for chunk in frames[row].split(5):
                stream.step({sid: chunk, free: chunk})
            (best, *_), (other, *_) = stream.reset(sid), stream.reset(free)
            assert [best.token_ids, best.token_frames] == [expected[row][0].token_ids, expected[row][0].token_frames]
            assert best.lm_left_out == (lm_guard == ALWAYS and row > 0)
            if not CASES[case].keys() & {"beta", "ilm_weight"}:  # which act in streams that are opened without a model
                assert other.token_ids == without[row][0].token_ids
        stream.close(sid)
        sid = stream.open()  # what a stream has heard doesn't count in the next one
        stream.step({sid: frames[1]})
        assert stream.close(sid)[0].token_ids == whole[1][0].token_ids


@pytest.mark.parametrize("case", ["greedy", "beams"])
def test_a_stream_does_without_a_model_that_costs_too_much(lm, case, monkeypatch):
    frames = torch.cat([frames_of(case, 4)] * 2, 1)
    whole, without = decoder_of(case, lm).decode(frames), decoder_of(case, None).decode(frames)
    likeliest = frames[0].log_softmax(-1).amax(-1).sum()
    best = whole[0][0]
    cost = float(likeliest - best.acoustic_score) / len(best.token_ids)
    assert cost > 0 and len(best.token_ids) >= guard.ENOUGH_TOKENS
    for most, is_out in ((cost - 1e-3, True), (cost + 1e-3, False)):
        monkeypatch.setattr(guard, "MOST", most)
        stream = StreamingDecoder(decoder_of(case, lm, "auto"), max_streams=2)
        sid = stream.open()
        for row in range(2):
            for chunk in frames[row].split(5):
                stream.step({sid: chunk})
            (found, *_) = stream.reset(sid)
            expected = without if is_out and row else whole
            assert found.token_ids == expected[row][0].token_ids
            assert found.lm_left_out == (is_out and row == 1)


def test_the_model_comes_back_when_its_speech_does(lm):
    known = torch.full((1, 12, 9), -4.0)
    for frame, token in enumerate([1, 8, 2, 8, 3, 8, 4, 8, 8, 8, 8, 8]):
        known[0, frame, token] = 8.0
    unknown = torch.full((1, 12, 9), -4.0)
    for frame, token in enumerate([7, 8, 0, 8, 7, 8, 0, 8, 7, 8, 0, 8]):
        unknown[0, frame, token] = 8.0
    stream = StreamingDecoder(CTCDecoder(None, lm, 0.5, blank_id=8, num_beams=4, lm_guard=0.2), max_streams=1)
    sid, left_out = stream.open(), []
    for frames in (known, unknown, unknown, unknown, known, known, known, known):
        stream.step({sid: frames[0]})
        left_out.append(stream.reset(sid)[0].lm_left_out)
    assert left_out[0] is left_out[1] is left_out[-1] is False
    assert left_out[3] is True


def test_word_level_models_know_the_entropy_of_their_words(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))
    texts = ["the old lighthouse", "the harbour at night", "gull island"] * 4
    lm = NGramLM.from_texts(texts, tokenizer, order=2, unit="word")
    entropy = lm.unigram_entropy
    assert entropy == lm.config.words.unigram_entropy
    assert math.log(4) < entropy <= math.log(8) + 1e-6  # of eight words
    judged = guard.evidence(lm, -12.0, 6, 3)
    assert judged == pytest.approx((-12.0 + 3 * entropy) / 6)
    assert guard.least_evidence("auto", lm) == guard.LEAST_OF_WORDS
    lm.save_pretrained(tmp_path)
    assert NGramLM.from_pretrained(tmp_path).unigram_entropy == pytest.approx(entropy)
    values = lm.config.words.to_dict()
    del values["unigram_entropy"]  # as in files of older versions
    lm.config = replace(lm.config, words=WordSummary.from_dict(values, "config.json"))
    del lm.unigram_entropy
    assert lm.unigram_entropy is None
    assert guard.evidence(lm, -99.0, 6, 3) == math.inf


@pytest.mark.parametrize("unit", ["token", "word"])
def test_real_clips_keep_their_model_and_lose_a_foreign_one(unit, monkeypatch):
    """With the harbour's LM the bundled model's clips stay as they are; with one of other text they are decoded without it."""
    sf = pytest.importorskip("soundfile")
    from transformers import pipeline

    import hf_ngpulm  # noqa: F401

    for name, value in DEFAULTS.items():
        monkeypatch.setattr(guard, name, value)
    asr = pipeline("automatic-speech-recognition", model=str(bundled("examples/models/ctc")))
    clips = sorted(bundled("examples/speech/harbour/clips").glob("*.flac"))[:8]
    audio = [{"raw": sf.read(clip)[0], "sampling_rate": 16_000} for clip in clips]
    text = bundled("examples/speech/harbour/text.txt").read_text(encoding="utf-8").splitlines()
    other = ["one two three four five", "seven nine eleven", "zero zero one"] * 9
    lm, foreign = (NGramLM.from_texts(lines, asr.tokenizer, order=4, unit=unit) for lines in (text, other))
    known, off, none, unknown, harmed = (
        [result["text"] for result in asr([dict(each) for each in audio], num_beams=4, **settings)]
        for settings in (
            {"lm": lm}, {"lm": lm, "lm_guard": "off"}, {}, {"lm": foreign}, {"lm": foreign, "lm_guard": "off"}
        )
    )  # fmt: skip
    assert known == off != none
    assert unknown == none != harmed
