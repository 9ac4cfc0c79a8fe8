"""`--corrections` and `--false-alarms-per-hour` in evaluate, tune and stream."""

from __future__ import annotations

import json

import pytest

from hf_ngpulm import CorrectionLog, NGramLM
from hf_ngpulm.cli.app import run
from hf_ngpulm.common.bundled import bundled

DEMO = bundled("examples/speech/harbour")
MODEL, CLIPS, CLIP = str(bundled("examples/models/ctc")), str(DEMO / "clips.jsonl"), str(DEMO / "clips" / "00.flac")
BASE = ["--device", "cpu", "--num-beams", "4"]


@pytest.fixture
def log(tmp_path):
    """What the model mishears in the first clip, corrected twice."""
    log = CorrectionLog(tmp_path / "me.jsonl")
    for text in ("and go half speed", "half speed please"):
        log.add(text.replace("half speed", "gohalf sped"), text)
    assert [phrase.text for phrase in log.phrases()] == ["half", "speed"]
    return str(log.path)


def test_stream(log, capsys):
    def final(*more):
        capsys.readouterr()
        assert run(["stream", MODEL, CLIP, "--no-wait", "--json", *BASE, *more]) == 0
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    assert " half speed" not in final()["text"]
    assert " half speed" in final("--corrections", log, "--phrase-weight", "3")["text"]
    look = ["--phrases", "lighthouse", "--phrase-weight", "3", "--false-alarms-per-hour", "1000", "--explain"]
    told = final("--corrections", log, *look)
    assert " half speed" in told["text"]
    assert {report["text"] for report in told["phrases"] if report["heard"]} >= {"half", "speed", "lighthouse"}
    capsys.readouterr()
    assert run(["stream", MODEL, CLIP, "--no-wait", "--false-alarms-per-hour", "1"]) == 2
    assert "needs phrases; add --phrases" in capsys.readouterr().err


def test_evaluate(log, tmp_path, capsys):
    output = tmp_path / "results.jsonl"
    arguments = ["evaluate", MODEL, CLIPS, "--limit", "1", "--output", str(output), *BASE]
    more = ["--corrections", log, "--phrase-weight", "3", "--baseline", "--json"]
    assert run([*arguments, *more]) == 0
    heard = [json.loads(path.read_text().splitlines()[-1])["hypothesis"] for path in sorted(tmp_path.glob("results*.jsonl"))]
    assert [" half speed" in text for text in heard] == [False, True]  # the baseline has learned nothing
    capsys.readouterr()
    # Another correction makes other results.
    CorrectionLog(log).add("a", "b")
    assert run([*arguments, *more]) == 2
    assert "settings" in capsys.readouterr().err
    output.unlink()
    assert run([*arguments, "--phrases", "lighthouse", "--phrase-weight", "3", "--false-alarms-per-hour", "1"]) == 0
    assert run([*arguments, "--phrases", "from-entities", "--false-alarms-per-hour", "1"]) == 2
    assert "leave out from-entities" in capsys.readouterr().err


def test_tune(log, tmp_path, capsys):
    saved = str(tmp_path / "lm")
    assert run(["convert", str(DEMO / "lm.arpa.gz"), saved, "--tokenizer", MODEL]) == 0
    before = NGramLM.from_pretrained(saved)
    arguments = ["tune", MODEL, CLIPS, "--limit", "2", "--refine", "0", "--phrase-weights", "3", *BASE]
    capsys.readouterr()
    assert run([*arguments, "--lm", saved, "--weights", "0.1", "--corrections", log, "--save", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    after = NGramLM.from_pretrained(saved)
    assert after.num_ngrams == before.num_ngrams and len(after.config.decoding) == 1  # what was learned isn't saved
    assert summary["best"]["phrase_weight"] == 3
    assert run([*arguments, "--corrections", log]) == 0


@pytest.mark.parametrize("command", [
    ["transcribe", CLIP, "--model", MODEL], ["evaluate", MODEL, CLIPS], ["evaluate", MODEL, CLIPS, "--ray", "auto"],
    ["tune", MODEL, CLIPS], ["stream", MODEL, CLIP],
])  # fmt: skip
def test_a_mistyped_path_is_refused(command, tmp_path, capsys):
    missing = tmp_path / "mee.jsonl"
    assert run([*command, "--corrections", str(missing)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--corrections" in line and f"there is no file '{missing}'" in line
    assert not missing.exists()
