"""`corrections=` in pipelines and on the command line: what a log teaches is heard at the next call."""

from __future__ import annotations

import json

import pytest
from transformers import pipeline

import hf_ngpulm
from hf_ngpulm import CorrectionLog, NGramLM, PhraseBooster
from hf_ngpulm.cli.app import run
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.evaluation import word_errors

AUDIO = str(bundled("examples/speech/harbour") / "clips/00.flac")
MODEL = str(bundled("examples/models/ctc"))
TASK = "automatic-speech-recognition"
SAID = "tell the harbour master we will be twenty minutes late"


@pytest.fixture(scope="module", params=["ctc", "rnnt", "tdt", "canary"])
def asr(request):
    return pipeline(TASK, model=str(bundled("examples/models") / request.param))


@pytest.fixture
def log(tmp_path):
    return CorrectionLog(tmp_path / "corrections.jsonl")


def teach(log, heard):
    for _ in range(2):
        log.add(heard, SAID)
    log.add(heard.replace("tel", "please tell"), f"please {SAID}")


def test_what_was_corrected_is_heard(asr, log):
    audio = hf_ngpulm.demo_recording()
    plain = asr(audio)["text"]
    assert asr(audio, corrections=log)["text"].strip() == plain.strip()  # nothing was learned yet
    teach(log, plain)
    learned = asr(audio, corrections=str(log.path))["text"].strip()
    assert learned != plain.strip()
    errors = [word_errors([SAID], [text.lower()]).errors for text in (plain, learned)]
    assert errors[1] < errors[0]
    assert asr(audio)["text"] == plain  # off, unless asked for
    assert asr([audio], corrections=log, phrases=[["lighthouse"]])[0]["text"].strip()
    for _ in range(3):
        log.undo()
    assert asr(audio, corrections=log)["text"].strip() == plain.strip()


def test_a_pipeline_learns_while_it_is_used(log):
    asr = pipeline(TASK, model=str(bundled("examples/models/ctc")), corrections=log, lm_weight=0.7, phrase_weight=1.5)
    audio = hf_ngpulm.demo_recording()
    before = asr(audio)["text"]
    teach(log, before)
    after = asr(audio)["text"]
    assert after == SAID
    assert asr(audio, corrections=None)["text"] == before


def test_a_language_model_learns_too(log):
    asr = pipeline(TASK, model=str(bundled("examples/models/ctc")))
    teach(log, asr(hf_ngpulm.demo_recording())["text"])
    lm = NGramLM.from_texts(["set a course for the old lighthouse"] * 3, asr.tokenizer, order=3)
    one, other = asr([hf_ngpulm.demo_recording()] * 2, corrections=log, lm=[lm, None])
    assert one["text"] == other["text"] == SAID


def test_a_graph_learns_phrases(log):
    asr = pipeline(TASK, model=MODEL)
    audio = hf_ngpulm.demo_recording()
    words = NGramLM.from_texts([SAID, "tell the sailors we will be late"], asr.tokenizer, unit="word", order=2)
    log.add("call the haber master", "call the harbour master")
    log.add("the haber", "the harbour")
    found = asr(audio, corrections=log, lm=words, strategy="graph")["text"]
    assert found == asr(audio, phrases=log.phrases(), lm=words, strategy="graph")["text"] != ""


def test_wrong_corrections_are_refused(asr, log):
    with pytest.raises(TypeError, match="corrections should be a CorrectionLog or the path of its file, got 3"):
        asr(hf_ngpulm.demo_recording(), corrections=3)
    booster = PhraseBooster(["harbour"], asr.tokenizer)
    with pytest.raises(TypeError, match="can't add phrases to a PhraseBooster"):
        asr(hf_ngpulm.demo_recording(), corrections=log, phrases=booster)
    with pytest.raises(FileNotFoundError, match=r"there is no file .*corrections.jsonl; pass CorrectionLog\(path\)"):
        asr(hf_ngpulm.demo_recording(), corrections=str(log.path))
    log.path.write_text("nothing\n")
    with pytest.raises(ValueError, match=r"corrections.jsonl:1: a line should be"):
        asr(hf_ngpulm.demo_recording(), corrections=str(log.path))


def test_on_the_command_line(tmp_path, capsys):
    log, folder = str(tmp_path / "me.jsonl"), tmp_path / "learned"

    def told(*arguments):
        assert run(["learn", log, *arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert told() == {"corrections": 0, "mishearings": 0, "terms": []}
    told("call anna koval ska", "call Anna Kowalska")
    assert told("is koval ska in", "is Kowalska in")["terms"] == [{"text": "Kowalska", "aliases": ["koval ska"]}]
    assert told("he drives a car", "vehicles move at speed") | {"terms": 0} == {"corrections": 3, "mishearings": 2, "terms": 0}
    assert run(["learn", log, "--undo"]) == 0
    shown = capsys.readouterr()
    assert "removed: 'he drives a car'" in shown.err
    assert shown.out == "2 corrections, 2 of them mishearings\n  Kowalska  (heard as koval ska)\n"
    for _ in range(5):
        told("call the harber master", "call the harbour master")
    lm = tmp_path / "lm"
    NGramLM.from_texts(["call the lighthouse", "set a course"], MODEL, order=3).save_pretrained(lm)
    assert run(["learn", log, "--lm", str(lm), "--tokenizer", MODEL, "-o", str(folder)]) == 0
    learned, base = NGramLM.from_pretrained(folder), NGramLM.from_pretrained(lm)
    assert learned.perplexity(["call the harbour"], MODEL).log_prob > base.perplexity(["call the harbour"], MODEL).log_prob
    # A second attempt after a mistake would count a correction twice.
    wrong = ["learn", log, "hale the master", "hail the master", "--tokenizer", MODEL, "-o", str(folder)]
    for more in (["--lm", str(lm)], ["--lm", str(tmp_path / "none"), "--overwrite"]):
        assert run([*wrong, *more]) == 2
    capsys.readouterr()
    assert told()["corrections"] == 7
    common = ["transcribe", AUDIO, "--model", MODEL]
    assert run([*common, "--phrases", str(folder / "phrases.json"), "--lm", str(folder)]) == 0
    assert run([*common, "--corrections", log]) == 0
    assert capsys.readouterr().out.count("\n") == 2


def test_words_that_are_never_written_on_the_command_line(tmp_path, capsys):
    plain = ["transcribe", AUDIO, "--model", MODEL]
    assert run(plain) == 0
    first, *_, last = capsys.readouterr().out.split()
    (tmp_path / "never.txt").write_text(f"{first}\n")
    assert run([*plain, "--never", str(tmp_path / "never.txt"), "--never", last]) == 0
    assert not {first, last} & set(capsys.readouterr().out.split())
    assert run([*plain, "--never", "never.txtt"]) == 2
    assert "--never never.txtt: no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["heard"], "a correction has two texts"),
        (["a", "b", "--undo"], "--undo removes a correction, but one to add is given, too"),
        (["--undo"], "has no correction to undo"),
        (["--lm", "x"], "--lm names the language model to mix, and --output the folder for the result; give both"),
        (["--overwrite"], "--overwrite has no effect without a folder to write; add --output"),
        (["a", ""], "meant is empty"),
    ],
)
def test_mistakes_on_the_command_line(tmp_path, capsys, arguments, message):
    assert run(["learn", str(tmp_path / "me.jsonl"), *arguments]) == 2
    assert message in capsys.readouterr().err
