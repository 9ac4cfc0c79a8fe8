"""The command line: each command, JSON output, and users' mistakes, which are one line on stderr and status 2."""

import io
import json
import os
import subprocess
import sys

import pytest
import soundfile
import torch

from hf_ngpulm import NGramLM
from hf_ngpulm.bundled import bundled
from hf_ngpulm.cli.app import run

DEMO = bundled("examples/demo")
MODEL, ARPA = str(DEMO / "model"), str(DEMO / "lm.arpa.gz")
CLIPS = [str(DEMO / "clips" / f"{i:02}.flac") for i in range(3)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lm") / "saved"
    assert run(["convert", ARPA, str(folder), "--tokenizer", MODEL]) == 0
    return str(folder)


def lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_convert_there_and_back_keeps_every_probability(saved, tmp_path):
    for units in ("id", "nemo", "piece"):
        arpa = str(tmp_path / f"{units}.arpa.gz")
        assert run(["convert", saved, arpa, "--out-units", units]) == 0
        again = NGramLM.from_arpa(arpa, tokenizer=bundled_tokenizer(), units=units)
        for ours, theirs in zip(again.buffers(), NGramLM.from_pretrained(saved).buffers()):
            assert torch.equal(ours, theirs)


def bundled_tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(MODEL)


def test_info(saved, capsys):
    assert run(["info", saved, "--json"]) == 0
    (facts,) = lines(capsys)
    assert facts["order"] == 6 and sum(facts["num_ngrams"]) == 45709 and facts["bytes_per_ngram"] < 20
    assert run(["info", ARPA, "--vocab-size", "256"]) == 0
    assert "45,709" in capsys.readouterr().out


def test_score_reads_files_and_standard_input(saved, capsys, tmp_path, monkeypatch):
    text = "call the coast guard\nset a course\n"
    (tmp_path / "text").write_text(text)
    assert run(["score", saved, str(tmp_path / "text"), "--tokenizer", MODEL, "--json"]) == 0
    first, second, total = lines(capsys)
    assert first["text"] == "call the coast guard" and total["sentences"] == 2
    assert total["log_prob"] == pytest.approx(first["log_prob"] + second["log_prob"])
    assert first["log10_prob"] == pytest.approx(first["log_prob"] / 2.302585)
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert run(["score", saved, "--tokenizer", MODEL]) == 0
    assert "2 sentences" in capsys.readouterr().out


def test_transcribe(saved, capsys):
    assert run(["transcribe", *CLIPS, "-m", MODEL, "--lm", saved, "--lm-weight", "0.9", "--device", "cpu", "--json"]) == 0
    with_lm = lines(capsys)
    assert run(["transcribe", *CLIPS, "-m", MODEL, "--device", "cpu", "--json"]) == 0
    without = lines(capsys)
    assert [row["audio"] for row in with_lm] == [row["audio"] for row in without] == CLIPS
    assert [row["text"] for row in with_lm] != [row["text"] for row in without]


def test_transcribe_resamples_and_mixes(capsys, tmp_path):
    samples, rate = soundfile.read(CLIPS[0], dtype="float32")
    import numpy as np
    import soxr

    louder = soxr.resample(samples, rate, 44_100)
    soundfile.write(tmp_path / "stereo.wav", np.stack([louder, louder], axis=1), 44_100)
    assert run(["transcribe", str(tmp_path / "stereo.wav"), CLIPS[0], "-m", MODEL, "--device", "cpu", "--json"]) == 0
    ours, original = (row["text"].split() for row in lines(capsys))
    assert len(set(ours) & set(original)) > len(original) / 2


def test_a_broken_file_in_the_middle_is_skipped_and_counted(capsys, tmp_path):
    (tmp_path / "broken.wav").write_bytes(b"RIFF but not audio")
    command = ["transcribe", CLIPS[0], str(tmp_path / "broken.wav"), str(tmp_path / "none.wav"), CLIPS[1]]
    assert run([*command, "-m", MODEL, "--device", "cpu"]) == 1
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 2
    assert "broken.wav" in printed.err and "none.wav" in printed.err and "2 of 4" in printed.err


def test_demo(capsys):
    assert run(["demo", "--json"]) == 0
    *clips, summary = lines(capsys)
    assert len(clips) == 16
    assert summary["wer_with_lm"] < 0.75 * summary["wer_without_lm"]
    assert run(["demo", "--lm-weight", "0.5"]) == 0
    printed = capsys.readouterr().out
    assert "word error rate" in printed and "[" in printed and printed.count("reference") == 16


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nonsense"], "nonsense"),
        (["info"], "LM"),
        (["info", "no/such/thing/here"], "neither a folder nor the id"),
        (["info", "/nowhere/lm"], "neither a folder nor the id"),
        (["info", ARPA], "--tokenizer"),
        (["info", MODEL], "model_type"),
        (["info", CLIPS[0], "--vocab-size", "9"], "not an ARPA file"),
        (["info", ARPA, "--vocab-size", "100"], "outside the vocabulary"),
        (["info", ARPA, "--vocab-size", "none"], "--vocab-size"),
        (["info", ARPA, "--vocab-size", "256", "--units", "words"], "words"),
        (["convert", ARPA, "lm.nemo", "--vocab-size", "256"], "can be read, not written"),
        (["convert", ARPA, "lm", "--vocab-size", "256", "--out-units", "id"], "--to arpa"),
        (["convert", ARPA, "lm", "--vocab-size", "256", "--to", "bin"], "--to"),
        (["score", ARPA], "--tokenizer"),
        (["score", ARPA, "nothing.txt", "--tokenizer", MODEL], "nothing.txt"),
        (["transcribe", CLIPS[0], "-m", MODEL, "--lm", ARPA, "--lm-weight", "nan"], "lm_weight"),
        (["transcribe", CLIPS[0], "-m", MODEL, "--lm-weight", "0.3"], "without lm="),
        (["transcribe", CLIPS[0], "-m", MODEL, "--timestamps", "word"], "tokenizer"),
        (["transcribe", CLIPS[0], "-m", MODEL, "--timestamps", "sentence"], "word or char"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(arguments, expected, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1 and printed.err.startswith("hf-ngpulm: error: "), printed.err
    assert expected in printed.err
    assert list(tmp_path.iterdir()) == []


def test_as_a_process():
    environment = {**os.environ, "PYTHONPATH": str(bundled("hf_ngpulm").parent), "NO_COLOR": "1"}

    def call(*arguments):
        command = [sys.executable, "-m", "hf_ngpulm.cli", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)

    assert "transcribe" in call("--help").stdout
    assert call("--version").stdout.startswith("hf-ngpulm")
    wrong = call("info", MODEL)
    assert wrong.returncode == 2 and "Traceback" not in wrong.stderr and wrong.stderr.count("\n") == 1
