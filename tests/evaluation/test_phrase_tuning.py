"""Thresholds of a second look for one recogniser: what they let in is what a pipeline lets in with them."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from transformers import pipeline

from hf_ngpulm.cli.app import run
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.config.of_models import read_of_models, save_of_model
from hf_ngpulm.config.tuned import ModelIdentity
from hf_ngpulm.decoding.thresholds import KINDS, NAME, THRESHOLDS, Thresholds, thresholds_for
from hf_ngpulm.evaluation import Recording, read_recordings, tune_phrases
from hf_ngpulm.evaluation.phrases import _weigh, _Weighed

CLIPS = bundled("examples/speech/harbour") / "clips.jsonl"
MODELS = {name: str(bundled(f"examples/models/{name}")) for name in ("ctc", "tdt")}
SAID = ["lighthouse", "harbour master", "captain"]
OTHERS = [
    f"{a} {b}" for a in ("call", "tell", "cell", "hull") for b in ("the mast", "her", "hours", "speed", "minute", "cause")
]
WEIGHT = 6.0  # so that even of these few many are weighed
OTHERS += ["late", "coarse", "have", "light", "house", "hat", "twelve", "men", "four", "ten", "fort", "minuets", "speeds"]


@pytest.fixture(scope="module", params=["ctc", "tdt"])
def asr(request):
    return pipeline("automatic-speech-recognition", model=MODELS[request.param])


def entering(asr, recordings, phrases, weight, **settings):
    """Return which phrases enter by the second look: false alarms, and such that were said."""
    found = Counter()
    for recording in recordings:
        given = {"phrases": phrases, "phrase_weight": weight, "explain": True, **settings}
        for report in asr(str(recording.audio), **given)["phrases"]:
            if report["heard"] and "ratio" in report:
                found[f" {report['text']} " in f" {recording.text} "] += 1
    return found


@pytest.mark.slow
def test_the_curve_tells_what_enters(asr):
    recordings = read_recordings(CLIPS)[:16]
    found = tune_phrases(asr, recordings, [*SAID, *OTHERS], phrase_weight=WEIGHT, false_alarms_per_hour=300)
    assert found.hours * 3600 == pytest.approx(sum(each.seconds for each in recordings), rel=1e-3)
    assert found.phrases == len(SAID) + len(OTHERS) and found.weighed >= 10 and found.chosen in found.curve
    assert found.said == sum(f" {each.text} ".count(f" {name} ") for each in recordings for name in [*SAID, *OTHERS])
    assert [point.threshold for point in found.curve] == sorted((point.threshold for point in found.curve), reverse=True)
    looked = {"false_alarms_per_hour": 300, "thresholds": found.thresholds}
    told = entering(asr, recordings, [*SAID, *OTHERS], WEIGHT, **looked)
    # What wants the same place depends on the thresholds, so that one more or less may enter.
    assert abs(told[False] - found.chosen.false_alarms) <= 1
    assert abs(told[True] - (found.chosen.heard - found.heard_anyway)) <= 1


def report(text, ratio=None, threshold=None):
    return {"text": text, "heard": True} | ({} if ratio is None else {"ratio": ratio, "threshold": threshold})


def test_what_nobody_said_is_a_false_alarm():
    weighed = []
    reports = [report("a"), report("a", 2.0, -1e6 - 3), report("a", 5.0, -1e6 - 3), report("b", 1.0, -1e6 - 7)]
    reports += [report("b", 0.5, -1e6 - 7)] * 2  # of one region
    reports.append(report("c", 1.0, 0.5))  # has a threshold of its own
    assert _weigh(reports, Counter(a=2, d=1), weighed) == 1
    assert [tuple(each) for each in weighed] == [
        (5.0, 3, 1, True),
        (2.0, 3, 1, False),
        (1.0, 7, 2, False),
        *[(0.5, 7, 2, False)] * 2,
    ]
    for offset, of_b in ((7.25, [True] * 3), (7.26, [True, False, False]), (7.51, [False] * 3)):
        thresholds = Thresholds(offset, 0.0, 0.0, 1.0)  # of 7 tokens, twice in a region: 0.5 and more
        assert [each.enters(thresholds, 1.0, 10) for each in weighed] == [True, False, *of_b]
    low = Thresholds(6.6, 0.0, 0.0, 1.0)  # -0.4: for two phrases, too
    assert not _Weighed(-0.5, 7, 2, False).enters(low, 1.0, 10) and _Weighed(-0.4, 7, 2, False).enters(low, 1.0, 10)


def test_thresholds_of_a_file(tmp_path):
    path = tmp_path / "thresholds.json"
    other = ModelIdentity("two", "whisper", "2")
    save_of_model(path, NAME, KINDS, other, THRESHOLDS["attention"]._asdict())
    asr = pipeline("automatic-speech-recognition", model=MODELS["ctc"])
    audio = str(read_recordings(CLIPS)[0].audio)
    with pytest.raises(ValueError, match="has thresholds for two, none for ctc; fit them with hf-ngpulm tune"):
        asr(audio, phrases=SAID, false_alarms_per_hour=1, thresholds=str(path))
    with pytest.raises(ValueError, match="thresholds given without false_alarms_per_hour="):
        asr(audio, phrases=SAID, thresholds=str(path))
    with pytest.raises(TypeError, match="thresholds should be"):
        thresholds_for(asr.model, 3)
    own = Thresholds(1e5, 0.0, 0.0, 0.0)
    save_of_model(path, NAME, KINDS, ModelIdentity.of(asr.model), own._asdict())
    assert thresholds_for(asr.model, path) == own and thresholds_for(asr.model, own) is own
    assert thresholds_for(asr.model, None) is None


def test_command_line(tmp_path, capsys):
    lines = [json.loads(line) for line in CLIPS.read_text().splitlines()[:16]]
    data, names = tmp_path / "speech.jsonl", tmp_path / "names.txt"
    rows = [line | {"audio": str(CLIPS.parent / line["audio"]), "entities": SAID[:1]} for line in lines]
    data.write_text("\n".join(map(json.dumps, [*rows, rows[0] | {"text": None}])))
    names.write_text("\n".join(OTHERS))
    saved, output = tmp_path / "thresholds.json", tmp_path / "found.json"
    arguments = ["tune", MODELS["ctc"], str(data), "--phrases", str(names), "--phrases", "from-entities", "--device", "cpu"]
    more = ["--false-alarms-per-hour", "300", "--phrase-weight", str(WEIGHT), "--save-to", str(saved), "--output", str(output)]
    assert run([*arguments, *more]) == 0
    shown = capsys.readouterr()
    assert "Fitted to" in shown.out and "1 recordings have no transcript" in shown.err
    told = json.loads(output.read_text())
    assert told["phrases"] == len(OTHERS) + 1 and told["said"] > 0 and told["saved_to"] == str(saved)
    ((model, thresholds),) = read_of_models(saved, NAME, KINDS)
    assert model.name == "ctc" and thresholds == told["thresholds"]
    speech = ["transcribe", rows[0]["audio"], "--model", MODELS["ctc"], "--phrases", "lighthouse", "--device", "cpu"]
    assert run([*speech, "--false-alarms-per-hour", "1", "--thresholds", str(saved)]) == 0
    for wrong, why in (
        (["--save"], "thresholds go to a file of their own"),
        (["--lm-weight", "1"], "no effect with --false-alarms-per-hour"),
        (["--overwrite", "--memory", "1G"], "--memory, --overwrite has no effect with --false-alarms-per-hour"),
        (["--save-to", str(names)], "isn't a file that hf-ngpulm tune"),
        (["--save-to", str(tmp_path)], "should be a file in a folder that exists"),
        (["--phrase-weight", "1,2"], "should be one number"),
        (["--phrase-weight", "0"], "false alarms are too few"),
    ):
        capsys.readouterr()
        assert run([*arguments, "--false-alarms-per-hour", "1", *wrong]) == 2
        assert why in capsys.readouterr().err


def test_without_speech():
    asr = pipeline("automatic-speech-recognition", model=MODELS["ctc"])
    told = []
    with pytest.raises(ValueError, match="no recording has a transcript and can be read"):
        tune_phrases(asr, [Recording("missing", CLIPS.parent / "nothing.wav", text="a")], SAID, report=told.append)
    assert "nothing.wav" in told[0]
