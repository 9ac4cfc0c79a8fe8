"""Confidences of words as probabilities: the error and the fit against their definitions, and on a bundled corpus."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import pipeline

from hf_ngpulm import StreamingDecoder
from hf_ngpulm.cli.app import run
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.evaluation import Utterance, evaluate, read_recordings, tune_confidence
from hf_ngpulm.evaluation.calibration import calibration_error, fitted_calibration, judged_words
from hf_ngpulm.search.confidence import Calibration, logit

CLIPS = bundled("examples/speech/harbour") / "clips.jsonl"
MODELS = {name: str(bundled(f"examples/models/{name}")) for name in ("ctc", "tdt", "canary")}
RELAXED = settings(deadline=None, suppress_health_check=list(HealthCheck))
JUDGED = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=30)


@RELAXED
@given(JUDGED)
def test_the_error_is_the_mean_distance_over_bins(judged):
    bins: dict[int, list[tuple[float, bool]]] = {}
    for confidence, right in judged:
        bins.setdefault(min(int(confidence * 10), 9), []).append((confidence, right))
    means = [(len(own), sum(c for c, _ in own) / len(own), sum(r for _, r in own) / len(own)) for own in bins.values()]
    expected = sum(count / len(judged) * abs(confidence - right) for count, confidence, right in means)
    confidences, right = map(np.array, zip(*judged))
    assert calibration_error(confidences, right) == pytest.approx(expected)


@RELAXED
@given(JUDGED.filter(lambda judged: 0 < sum(right for _, right in judged) < len(judged)))
def test_no_other_curve_is_likelier(judged):
    confidences, right = map(np.array, zip(*judged))
    found = fitted_calibration(confidences, right, "gibbs")

    def loss(slope, offset):
        own = np.array([slope * logit(c) + offset for c in confidences])
        return np.logaddexp(0, np.where(right, -own, own)).sum() + 5e-4 * (slope**2 + offset**2)

    assert found.measure == "gibbs"
    for slope, offset in ((0.01, 0), (-0.01, 0), (0, 0.01), (0, -0.01), (1, 1), (-1, 2)):
        assert loss(*found[1:]) <= loss(found.slope + slope, found.offset + offset) + 1e-6
    assert all(0 < found.of(c) < 1 for c in (0.0, *confidences, 1.0))


def test_a_curve_through_known_points():
    calibration = Calibration("max_prob", 2.0, 1.0)
    assert calibration.of(0.5) == pytest.approx(1 / (1 + math.exp(-1)))
    assert Calibration("max_prob", 1.0, 0.0).of(0.3) == pytest.approx(0.3)
    with pytest.raises(ValueError, match="2 of 2 words are right"):
        fitted_calibration(np.array([0.1, 0.2]), np.array([True, True]), "max_prob")


def test_which_words_are_right():
    words = [("Call", 0.9), ("\N{EM DASH}", 0.1), ("twenty-one", 0.7), ("boats", 0.4)]
    said = Utterance("a", "call twenty one boots", "Call \N{EM DASH} twenty-one boats", confidences=words)
    others = [Utterance("b", None, "a", confidences=[("a", 0.5)]), Utterance("c", "", "a", confidences=[("a", 0.2)])]
    confidences, right, numbers = judged_words([said, *others, Utterance("d", "a", "a")], "lower,no-punctuation")
    assert confidences.tolist() == [0.9, 0.7, 0.4, 0.2]
    assert right.tolist()[0] and right.tolist()[2:] == [False, False]
    assert numbers.tolist() == [0, 0, 0, 2]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "measure"), [("ctc", "tsallis"), ("tdt", "tsallis"), ("canary", "renyi")])
def test_a_recogniser_is_calibrated(name, measure, tmp_path):
    asr = pipeline("automatic-speech-recognition", model=MODELS[name])
    recordings = read_recordings(CLIPS)[:24]
    found = tune_confidence(asr, recordings, measure)
    assert found.after < 0.25 < found.before
    assert sum(each.words for each in found.bins) == found.words > found.right > 0
    path = tmp_path / "calibration.json"
    found.save(path)
    raw, told = (
        asr(str(recordings[0].audio), return_timestamps="word", confidence=each)["chunks"] for each in (measure, str(path))
    )
    assert [found.calibration.of(each["confidence"]) for each in raw] == pytest.approx([each["confidence"] for each in told])
    measured = evaluate(asr, recordings, confidence=found.calibration)
    assert measured.calibration_error < 0.15 and measured.summary()["calibration_error"] == 100 * measured.calibration_error
    assert evaluate(asr, recordings[:1]).calibration_error is None
    if name == "canary":
        return
    # Streams have the same; tokens keep the measure itself.
    decoder = asr._forward_params.get("ngram_decoder") or asr._ngram_decoder({"confidence": found.calibration}, {})
    assert decoder.options.measure == "tsallis" and StreamingDecoder(decoder).decoder.writing.calibration == found.calibration


def test_mistakes():
    asr = pipeline("automatic-speech-recognition", model=MODELS["ctc"])
    recordings = read_recordings(CLIPS)[:1]
    with pytest.raises(ValueError, match=r"measure.*best"):
        tune_confidence(asr, recordings, "best")
    with pytest.raises(ValueError, match="or a file of one; there is no file 'best'"):
        asr(str(recordings[0].audio), confidence="best")


def test_command_line(tmp_path, capsys):
    saved, output = tmp_path / "calibration.json", tmp_path / "found.json"
    base = [MODELS["ctc"], str(CLIPS), "--limit", "12", "--num-beams", "4", "--device", "cpu"]
    assert run(["tune", *base, "--word-confidence", "max_prob", "--save-to", str(saved), "--output", str(output)]) == 0
    assert "Expected calibration error" in capsys.readouterr().out
    told = json.loads(output.read_text())
    assert told["saved_to"] == str(saved) and told["calibration"]["measure"] == "max_prob"
    results = tmp_path / "results.jsonl"
    assert run(["evaluate", *base, "--word-confidence", str(saved), "--output", str(results)]) == 0
    assert "calibration error of confidences" in capsys.readouterr().out
    line = json.loads(results.read_text().splitlines()[0])
    assert [word for word, _ in line["confidences"]] == line["hypothesis"].split()
    for wrong, why in (
        (["--save"], "calibrations go to a file of their own"),
        (["--weights", "1"], "no effect with --word-confidence"),
        (["--phrases", "from-entities"], "leave out from-entities"),
    ):
        assert run(["tune", *base, "--word-confidence", "max_prob", *wrong]) == 2
        assert why in capsys.readouterr().err
