"""The second look at phrases: exact ratios, results as without it at a threshold of -inf, readings that return whole."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toys import Toy
from transformers import AutoTokenizer

from hf_ngpulm import CTCDecoder, NGramLM, Phrase, PhraseBooster, PhraseDecoder, TransducerDecoder
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.decoding.forced import ForcedScores, ctc_forced, transducer_forced
from hf_ngpulm.decoding.hypotheses import Hypothesis
from hf_ngpulm.decoding.second_look import PhraseList, _Region, entering_of
from hf_ngpulm.decoding.thresholds import THRESHOLDS, Thresholds
from hf_ngpulm.phrases.phrase import Forms, Match

BLANK = 256
NEVER, ALWAYS = Thresholds(1e6, 0, 0, 0), Thresholds(-math.inf, 0, 0, 0)
PHRASES = ["call anna", Phrase("Weather", aliases=["the day"]), ("new york", 2.0), "a", "to"]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))


@pytest.fixture(scope="module")
def lm(tokenizer):
    return NGramLM.from_arpa(bundled("examples/speech/harbour/lm.arpa.gz"), tokenizer, units="id")


def log_probs_of(frames, classes, seed):
    return torch.randn(frames, classes, generator=torch.Generator().manual_seed(seed)).double().log_softmax(-1)


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 5), st.lists(st.integers(1, 2), max_size=3), st.integers(0, 1000))
def test_ctc_readings_sum_all_alignments(frames, reading, seed):
    log_probs = log_probs_of(frames, 3, seed)
    scores = [-math.inf]
    for labels in itertools.product(range(3), repeat=frames):
        if [label for label, _ in itertools.groupby(labels) if label] == reading:
            scores.append(float(sum(log_probs[t, c] for t, c in enumerate(labels))))
    if frames:
        (found,) = ctc_forced(log_probs, [reading], 0).tolist()
        assert found == pytest.approx(float(torch.tensor(scores, dtype=torch.float64).logsumexp(0)), abs=1e-9)


def transducer_brute(model, frames, reading):
    """The probability of a reading: a sum over all alignments, one after the other."""
    predictions = [model.start(1, frames)]
    for token in reading:
        predictions.append(model.predict(torch.tensor([token]), predictions[-1][1]))
    total = []

    def go(time, place, score):
        if time >= len(frames):
            total.extend([score] if place == len(reading) else [])
            return
        logits = model.join(frames[time][None], predictions[place][0])[0].double()
        labels = logits[: model.vocab_size].log_softmax(0)
        steps = [(0, 0.0)] if model.durations is None else list(
            zip(model.durations, logits[model.vocab_size :].log_softmax(0).tolist())
        )  # fmt: skip
        for step, log_prob in steps:
            go(time + max(step, 1), place, score + float(labels[model.blank_id]) + log_prob)
            if place < len(reading):
                go(time + step, place + 1, score + float(labels[reading[place]]) + log_prob)

    go(0, 0, 0.0)
    return float(torch.tensor(total, dtype=torch.float64).logsumexp(0)) if total else -math.inf


@pytest.mark.parametrize("durations", [None, (0, 1, 2), (1, 2)])
def test_transducer_readings_sum_all_alignments(durations):
    model = Toy(5, 4, durations, seed=3)
    frames = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
    readings = [[], [0], [1, 2], [3, 3, 1], [2, 0, 1, 3]]
    found, internal = transducer_forced(model, frames, readings)
    assert found.tolist() == pytest.approx([transducer_brute(model, frames, each) for each in readings], abs=1e-5)
    prediction, state = model.start(1, frames)
    first = model.internal_lm(prediction)[0, 1]
    second = model.internal_lm(model.predict(torch.tensor([1]), state)[0])[0, 2]
    assert float(internal[2]) == pytest.approx(float(first + second), abs=1e-5) and float(internal[0]) == 0


def decoders(tokenizer, lm):
    """Decoders with frames for them."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(4, 30, 257, generator=generator)
    logits[..., BLANK] += 5 * torch.rand(4, 30, generator=generator)
    frames = torch.randn(4, 20, 6, generator=generator)
    rnnt = Toy(257, BLANK, seed=1, blank_bias=3.0)
    tdt = Toy(257, BLANK, (0, 1, 2), seed=2, blank_bias=3.0)
    models = {"lm": lm, "lm_weight": 0.4, "frame_seconds": 0.08}
    yield CTCDecoder(tokenizer, num_beams=4, frame_seconds=0.08), logits
    yield CTCDecoder(tokenizer, **models, num_beams=4, num_return_sequences=3), logits
    yield CTCDecoder(tokenizer, **models, num_beams=1), logits
    for model in (rnnt, tdt):
        yield TransducerDecoder(model, tokenizer, **models, strategy="alsd"), frames


def test_a_threshold_of_minus_infinity_changes_nothing(tokenizer, lm):
    lengths = torch.tensor([20, 17, 9, 20])
    for decoder, frames in decoders(tokenizer, lm):
        flat = decoder.with_phrases(PHRASES, 3.0).decode(frames, lengths)
        looked = PhraseDecoder(decoder, PHRASES, 3.0, false_alarms_per_hour=None)
        assert looked.decode(frames, lengths) == flat
        assert any(report.ratio is not None for look in looked(frames, lengths) for report in look[0].phrases)


def test_where_no_phrase_enters_the_reading_without_them_returns(tokenizer, lm):
    lengths = torch.tensor([20, 17, 9, 20])
    for decoder, frames in decoders(tokenizer, lm):
        plain = PhraseDecoder(decoder, PHRASES, 3.0).without.decode(frames, lengths)
        found = PhraseDecoder(decoder, PHRASES, 3.0, thresholds=NEVER, explain=True)(frames, lengths)
        assert any(report.ratio is not None and not report.heard for of_row in found for report in of_row[0].phrases)
        written = Forms.of(PHRASES)
        assert found == [[of_row[0].written(written), *of_row[1:]] for of_row in plain]
        everything = PhraseDecoder(decoder, PHRASES, 3.0, thresholds=ALWAYS)(frames, lengths)
        for (best, *_), (without, *_) in zip(everything, plain):
            weighed = [report for report in best.phrases if report.ratio is not None]
            assert all(report.heard for report in weighed) and bool(weighed) == (best.token_ids != without.token_ids)


def test_what_is_spotted_has_the_ratio_of_forced_scores_and_the_scores_of_its_tokens(tokenizer, lm):
    lengths, seen = torch.tensor([20, 17, 9, 20]), 0
    for decoder, frames in list(decoders(tokenizer, lm))[:3]:
        looked = PhraseDecoder(decoder, PHRASES[:3], torch.tensor([3.0, 2.0, 3.0, 4.0]), thresholds=ALWAYS)
        for row, of_row in enumerate(looked(frames, lengths)):
            plain = looked.without.decode(frames, lengths)[row]
            best, before, entered = of_row[0], plain[0], [report for report in of_row[0].phrases if report.heard]
            scores = ForcedScores(looked.without, frames[row, : lengths[row]], row)
            acoustic, unweighted, added = (each[1] - each[0] for each in scores.parts([before.token_ids, best.token_ids]))
            if len(entered) == 1:
                seen += 1
                assert entered[0].ratio == pytest.approx(float(acoustic + added), abs=1e-3)
                assert best.token_frames == sorted(best.token_frames) and len(best.words) > 0
            assert best.acoustic_score - before.acoustic_score == pytest.approx(float(acoustic), abs=1e-3)
            assert best.lm_score - before.lm_score == pytest.approx(float(unweighted), abs=1e-3)
            bonus = looked.decoder.fusion.phrase_weight[row] * best.phrase_score
            assert best.score - before.score == pytest.approx(float(acoustic + added + bonus), abs=1e-3)
            assert of_row[1:] == plain[1:] and "the day" not in best.text
    assert seen > 2


def test_a_phrase_is_spotted_only_if_its_bonus_would_make_it_win(tokenizer):
    decoder, logits = next(decoders(tokenizer, None))
    for weight in (0.0, 1.0, 2.0):
        found = PhraseDecoder(decoder, PHRASES, weight, thresholds=ALWAYS, explain=True)(logits)
        reports = [report for of_row in found for report in of_row[0].phrases if report.ratio is not None]
        sizes = {item: len(tokenizer(item)["input_ids"]) for item in ("call anna", "a", "to")}
        assert all(report.ratio >= -weight * sizes[report.text] for report in reports if report.text in sizes)
        assert weight == 0 or reports


def test_each_region_is_decided_alone_and_scores_are_those_of_its_tokens(tokenizer):
    weak, strong = "bert", "anna"
    ids = [tokenizer(word)["input_ids"] for word in (weak, "now", strong)]
    other = [tokenizer(word)["input_ids"] for word in ("west", "now", "east")]
    rows = []
    for tokens, others, behind in zip(ids, other, (0.5, 0.0, 2.5)):
        for n in range(max(len(tokens), len(others))):
            frame = torch.full((BLANK + 1,), -15.0)
            frame[tokens[n] if n < len(tokens) else BLANK] = 0.0
            frame[others[n] if n < len(others) else BLANK] = behind
            rows += [frame, torch.nn.functional.one_hot(torch.tensor(BLANK), BLANK + 1) * 9.0]
    logits = torch.stack(rows)[None]
    base = CTCDecoder(tokenizer, num_beams=16, frame_seconds=0.1, beam_threshold=60.0)
    phrases = [Phrase(weak, threshold=-4.0), Phrase(strong, threshold=-6.0)]
    decoder = PhraseDecoder(base, phrases, 3.0)
    ((best, *_),) = decoder(logits)
    reports = best.phrases
    assert base(logits)[0][0].text == "west now east"
    assert [(report.text, report.heard, report.instead) for report in reports] == [
        ("bert", True, "west"),
        ("anna", False, "east"),
    ]
    assert best.text == "bert now east" and [word.text for word in best.words] == ["bert", "now", "east"]
    acoustic = ctc_forced(logits[0].log_softmax(-1), [best.token_ids], BLANK)
    assert best.acoustic_score == pytest.approx(float(acoustic[0]), abs=0.05)
    booster = PhraseBooster([weak, strong], tokenizer)
    bonus = float(booster.score_sequences(torch.tensor([best.token_ids]))[0])
    assert best.phrase_score == pytest.approx(bonus)
    assert best.score == pytest.approx(best.acoustic_score + 3 * bonus, abs=0.05)
    spans = {report.text: report for report in reports}
    assert spans["bert"].start == 0.0 and spans["anna"].ratio < -6 < -4 < spans["bert"].ratio
    assert PhraseDecoder(base, [phrases[::-1]], 3.0).select([0])(logits)[0][0].text == "bert now east"


def test_several_phrases_in_a_place_need_no_less_than_one():
    """The sum of their thresholds, or the highest of them: the sum of negative ones would let in what none alone may."""
    hypothesis = Hypothesis("a b", [0, 1], 0.0, 0.0, 0.0, [0, 1], [1, 2], splitter=SimpleNamespace(words=_two_words))
    matches = [Match(0, 1, "a"), Match(1, 2, "b")]
    region = _Region(0, 2, 0, 1, matches, "c")
    for own, threshold in ((2.0, 4.0), (-2.0, -2.0)):
        rule = PhraseList(["a", "b"]), Thresholds(own, 0.0, 0.0, 0.0), 1.0
        for ratio in (threshold - 0.1, threshold):
            entering, reports = entering_of(hypothesis, matches, [region], [ratio], *rule)
            assert bool(entering) == (ratio == threshold) and {each.threshold for each in reports} == {threshold}


def _two_words(token_ids):
    return [("a", 0, 1), ("b", 1, 2)]


def test_thresholds_grow_with_the_list_and_with_shortness_and_fall_with_the_rate():
    for thresholds in THRESHOLDS.values():
        usual = thresholds.of(1.0, 100, 4)
        assert thresholds.of(1.0, 1000, 4) > usual >= thresholds.of(1.0, 100, 5)
        assert thresholds.of(0.1, 100, 4) > usual > thresholds.of(10.0, 100, 4)


def test_fitted_thresholds_let_through_as_many_false_alarms_as_they_say():
    torch.manual_seed(0)
    draws = torch.distributions.Exponential(0.5).sample((4000,)).tolist()
    before = Thresholds(0.0, 0.0, 1.5, 0.7)
    alarms = [(draw - 9 + before.of(1.0, 50, 3), 50, 3) for draw in draws]
    fitted = before.fitted(alarms, 10.0)
    assert fitted.slope == pytest.approx(2.0, rel=0.15)
    for rate in (5.0, 50.0):
        passed = sum(ratio >= fitted.of(rate, size, tokens) for ratio, size, tokens in alarms)
        assert passed / 10 == pytest.approx(rate, rel=0.35)
    with pytest.raises(ValueError, match="too few"):
        before.fitted(alarms[:5], 10.0)


def test_what_cannot_be_looked_at_is_refused(tokenizer, lm):
    with pytest.raises(ValueError, match="CTCDecoder or a TransducerDecoder"):
        PhraseDecoder(CTCDecoder(tokenizer, lm, source_lm=lm, num_beams=4), ["a"])
    with pytest.raises(ValueError, match="knows no scores of a rescorer"):
        PhraseDecoder(CTCDecoder(tokenizer, num_beams=4, rescorer=SimpleNamespace(scores=None)), ["a"])
    with pytest.raises(TypeError, match="pass their texts"):
        PhraseDecoder(CTCDecoder(tokenizer), PhraseBooster(["a"], tokenizer))
    with pytest.raises(ValueError, match="false_alarms_per_hour"):
        PhraseDecoder(CTCDecoder(tokenizer), ["a"], false_alarms_per_hour=0)
    with pytest.raises(ValueError, match="threshold of 'a' needs a second look"):
        CTCDecoder(tokenizer, phrases=[Phrase("a", threshold=-1.0)])


def test_a_language_model_that_was_left_out_weighs_no_phrase(tokenizer, lm):
    models = {"frame_seconds": 0.08, "num_beams": 4}
    logits = next(iter(decoders(tokenizer, lm)))[1]
    guarded = PhraseDecoder(CTCDecoder(tokenizer, lm=lm, lm_weight=0.4, lm_guard=100.0, **models), PHRASES, 3.0, explain=True)
    alone = PhraseDecoder(CTCDecoder(tokenizer, **models), PHRASES, 3.0, explain=True)
    for found, expected in zip(guarded(logits), alone(logits)):
        assert found[0].lm_left_out and found[0].text == expected[0].text
        ratios = [[report.ratio for report in each[0].phrases if report.ratio] for each in (found, expected)]
        assert ratios[0] == pytest.approx(ratios[1], abs=1e-4)
    for model in (Toy(257, BLANK, seed=1, blank_bias=3.0), Toy(257, BLANK, (0, 1, 2), seed=2, blank_bias=3.0)):
        decoder = TransducerDecoder(model, tokenizer, lm=lm, lm_weight=0.4, strategy="alsd")
        frames = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
        best = SimpleNamespace(lm_left_out=True, lm_score=0.0)
        found = ForcedScores(decoder, frames, 0, best).parts([[1, 2], [3]])
        assert found[1].tolist() == found[2].tolist() == [0.0, 0.0]
        found = ForcedScores(decoder, frames, 0, SimpleNamespace(lm_left_out=False, lm_score=0.0)).parts([[1, 2], [3]])
        assert all(found[1].tolist())


def test_logits_of_another_layout_or_precision_are_looked_at_alike(tokenizer):
    logits = torch.stack([log_probs_of(40, 257, seed).float() for seed in range(3)])
    decoder = PhraseDecoder(CTCDecoder(tokenizer, num_beams=4), PHRASES, 3.0, thresholds=ALWAYS)
    wanted, of_half = decoder(logits), decoder(logits.half())
    assert any(report.heard for best, *_ in wanted for report in best.phrases)
    assert decoder(logits.transpose(1, 2).contiguous().transpose(1, 2)) == wanted
    assert of_half == decoder(logits.half().float())
