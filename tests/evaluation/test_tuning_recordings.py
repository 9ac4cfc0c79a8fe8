"""Recordings as they come: `tune` skips what can't be read and says so in the words of `evaluate`, and takes all the rest."""

from __future__ import annotations

import json

import numpy as np
import pytest
import soundfile
import torch
import transformers
from transformers import pipeline

from hf_ngpulm.cli.app import run
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.evaluation import evaluate, read_recordings, tune_weights, word_errors
from hf_ngpulm.sound.files import read_audio

DEMO = bundled("examples/speech/harbour")
MODEL = str(bundled("examples/models/ctc"))
FEW = {"refine": 0, "extend": False, "least_words": 0}


@pytest.fixture(scope="module")
def asr():
    return pipeline(
        "automatic-speech-recognition",
        model=MODEL,
        dtype=torch.float32,
        device="cpu",
        lm=str(DEMO / "lm.arpa.gz"),
        lm_weight=0.9,
    )


@pytest.fixture
def mixed(tmp_path):
    """A manifest of clips in many forms, with two that can't be read in the middle; and the same clips without these."""
    lines = [json.loads(line) for line in (DEMO / "clips.jsonl").read_text().splitlines()[:5]]
    audio = [read_audio(DEMO / line["audio"], 16000) for line in lines]
    files = [tmp_path / f"{name}.wav" for name in ("stereo", "8khz", "24bit", "empty")]
    soundfile.write(files[0], np.stack([audio[0], audio[0]], 1), 16000)
    soundfile.write(files[1], audio[1][::2], 8000)
    soundfile.write(files[2], audio[2], 16000, subtype="PCM_24")
    soundfile.write(files[3], audio[3][:0], 16000)
    (tmp_path / "broken.flac").write_bytes(b"fLaC" + bytes(range(100)))
    good = [{"audio": str(file), "text": line["text"]} for file, line in zip(files, lines)]
    good.append({"audio": str(DEMO / lines[4]["audio"]), "text": lines[4]["text"]})
    bad = [{"audio": str(tmp_path / name), "text": "no"} for name in ("broken.flac", "missing.flac")]
    silent = {"audio": good[0]["audio"]}  # without a transcript
    for name, rows in (("all", [*good[:2], *bad, silent, *good[2:]]), ("good", good), ("bad", bad)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def test_what_cant_be_read_is_skipped_counted_and_said(mixed, asr, capsys):
    told = []
    found = tune_weights(asr, read_recordings(mixed / "all.jsonl"), [0.0, 0.9], **FEW, report=told.append)
    expected = tune_weights(asr, read_recordings(mixed / "good.jsonl"), [0.0, 0.9], **FEW)
    assert found.points == expected.points and found.baseline == expected.baseline and expected.unreadable == ()
    assert (found.recordings, found.utterances, expected.recordings) == (7, 5, 5)
    assert [f"{problem}; skipped" for problem in found.unreadable] == told and len(told) == 2
    assert "broken.flac" in told[0] and "missing.flac" in told[1]
    # In the words of `evaluate`, and with its exit status.
    words = []
    for command in ("evaluate", "tune"):
        arguments = [command, MODEL, str(mixed / "all.jsonl"), "--lm", str(DEMO / "lm.arpa.gz"), "--device", "cpu", "--json"]
        assert run([*arguments, *(["--weights", "0.9", "--refine", "0"] if command == "tune" else [])]) == 3
        printed = capsys.readouterr()
        words.append(sorted(line for line in printed.err.splitlines() if "skipped" in line))
        assert "hf-ngpulm: 2 of " in printed.err and " recordings could not be read" in printed.err
    assert words[0] == words[1] == sorted(f"hf-ngpulm: {line}" for line in told)
    summary = json.loads(printed.out.splitlines()[-1])
    assert summary["unreadable"] == list(found.unreadable) and summary["recordings"] == 7
    assert run(["tune", MODEL, str(mixed / "bad.jsonl"), "--phrases", "a", "--device", "cpu"]) == 2
    assert "none of 2 recordings can be read: " in capsys.readouterr().err


def test_what_is_listed_for_utterances_stays_theirs(mixed, asr):
    names = [["course"], ["hull"], None, ["nobody"], ["minutes"], None, ["engine"]]  # one for each with a transcript
    parts = {"tokenizer": asr.tokenizer, "feature_extractor": asr.feature_extractor, "device": "cpu"}
    with_phrases = type(asr)(asr.model, **parts, phrases=names)
    found = tune_weights(with_phrases, read_recordings(mixed / "all.jsonl"), phrase_weights=[0.0, 6.0], **FEW)
    only = type(asr)(asr.model, **parts, phrases=[*names[:2], *names[4:]])
    expected = tune_weights(only, read_recordings(mixed / "good.jsonl"), phrase_weights=[0.0, 6.0], **FEW)
    assert found.points == expected.points and found.points[0].words.errors != found.points[1].words.errors
    half = tune_weights(asr, read_recordings(mixed / "all.jsonl"), [0.9], **FEW, held_out=0.5)
    same = tune_weights(asr, read_recordings(mixed / "good.jsonl"), [0.9], **FEW, held_out=0.5)
    assert half.held_out == same.held_out and half.points == same.points


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ctc", "canary"])
def test_long_audio_is_cut_as_evaluate_cuts_it(kind, asr, tmp_path):
    """A minute stands for an hour: what the model is given at once is bounded."""
    if kind == "canary":
        if not hasattr(transformers, "CanaryForConditionalGeneration"):
            pytest.skip("this version of Transformers has no Canary")
        settings = {"lm": str(DEMO / "lm.arpa.gz"), "lm_weight": 0.5, "num_beams": 1, "max_new_tokens": 20}
        model = str(bundled("examples/models/canary"))
        asr = pipeline("automatic-speech-recognition", model=model, dtype=torch.float32, device="cpu", **settings)
    clip = read_audio(DEMO / "clips" / "01.flac", 16000)
    long = np.concatenate([clip, np.zeros(4000, dtype=np.float32)] * 40)[: 60 * 16000]
    rows = [{"audio": long, "sampling_rate": 16000, "text": "a"}, {"audio": clip, "sampling_rate": 16000, "text": "b"}]
    given, forward = [], asr.forward

    def watched(inputs, **kwargs):
        given.append(inputs["input_features"].shape[1])  # frames of 10 ms
        return forward(inputs, **kwargs)

    asr.forward = watched
    try:
        result = tune_weights(asr, rows, [asr._ngram_settings["lm_weight"]], **FEW)
    finally:
        del asr.forward
    assert max(given) <= 4010 and len(given) > 2
    for i, row in enumerate(rows):
        soundfile.write(tmp_path / f"{i}.wav", row["audio"], 16000, subtype="FLOAT")
    lines = [{"audio": str(tmp_path / f"{i}.wav"), "text": row["text"]} for i, row in enumerate(rows)]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, lines)))
    said = [utterance.hypothesis for utterance in evaluate(asr, tmp_path / "m.jsonl", batch_size=1).utterances]
    assert result.best.words.errors == word_errors(["a", "b"], said).errors > 10
