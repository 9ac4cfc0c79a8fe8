"""The command line: each command, JSON output, and users' mistakes, which are one line on stderr and status 2."""

import io
import json
import os
import random
import subprocess
import sys
import time

import pytest
import soundfile
import torch
import typer

from hf_ngpulm import NGramLM
from hf_ngpulm.cli.app import app, run
from hf_ngpulm.cli.demo import AFTER_ORDERS, NEXT, _marked
from hf_ngpulm.cli.models import read_phrases
from hf_ngpulm.common.bundled import bundled

DEMO = bundled("examples/speech/harbour")
MODEL, ARPA = str(bundled("examples/models/ctc")), str(DEMO / "lm.arpa.gz")
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


WORDS = """\\data\\
ngram 1=5
ngram 2=3

\\1-grams:
-99\t<s>\t-0.5
-0.9\t</s>
-2\t<unk>
-0.6\tcoast\t-0.4
-0.7\tguard\t-2.0

\\2-grams:
-0.2\t<s> coast
-0.1\tcoast guard
-0.1\tguard </s>

\\end\\
"""


def test_train_writes_nothing_of_text_that_the_tokenizer_cannot_write(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("SET A COURSE\nCALL THE COAST GUARD\n")
    arguments = ["train", str(tmp_path / "text.txt"), "--tokenizer", MODEL, "--output", str(tmp_path / "lm"), "--order", "2"]
    assert run(arguments) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("(--normalise lower), which leaves 0% unknown")
    assert not (tmp_path / "lm").exists()
    assert run([*arguments, "--normalise", "lower", "--json"]) == 0 and lines(capsys)[0]["num_unknown"] == 0
    assert run([*arguments, "--output", str(tmp_path / "all the same"), "--allow-unknown", "--json"]) == 0
    assert lines(capsys)[0]["num_unknown"] == 7


def test_convert_words_in_sentences_that_follow_one_another(tmp_path, capsys):
    arpa, tokenizer = tmp_path / "words.arpa", bundled_tokenizer()
    arpa.write_text(WORDS)
    command = ["convert", str(arpa), str(tmp_path / "lm"), "--tokenizer", MODEL, "--unit", "word"]
    command += ["--overwrite", "--continued"]
    assert run([*command, "0.4"]) == 0
    found = NGramLM.from_pretrained(tmp_path / "lm")
    expected, single = (NGramLM.from_arpa(arpa, tokenizer, units="word", **of) for of in ({"continued": 0.4}, {}))
    assert found.config.continued == 0.4
    rows = torch.tensor([tokenizer("coast guard coast guard coast guard").input_ids])
    scores = [float(lm.score_sequences(rows, eos=False)) for lm in (found, expected, single)]
    assert scores[0] == scores[1] > scores[2]
    capsys.readouterr()
    assert run([*command, "1.5"]) == 2
    assert "continued should be between 0 and 1, got 1.5" in capsys.readouterr().err


def bundled_tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(MODEL)


def test_models_that_are_there_are_not_overwritten(saved, tmp_path, capsys):
    """One rule for all commands that write models; what else a folder holds is no model."""
    (tmp_path / "text.txt").write_text("set a course\n")
    (tmp_path / "lm").mkdir()
    (tmp_path / "lm" / "notes.txt").write_text("")
    folder, arpa, tokenizer = str(tmp_path / "lm"), str(tmp_path / "lm.arpa"), ["--tokenizer", MODEL]
    train = ["train", str(tmp_path / "text.txt"), *tokenizer, "--order", "2", "--output", folder]
    assert run(train) == 0 and run(["convert", saved, arpa]) == 0
    clips = ["tune", MODEL, str(DEMO / "clips.jsonl"), "--lm", saved, "--limit", "1", "--lm-weight", "1", "--device", "cpu"]
    for command, there in (
        (train, "config.json"),
        ([*train[:-1], str(tmp_path / "new"), "--arpa", arpa], "lm.arpa"),
        (["convert", saved, folder], "config.json"),
        (["convert", saved, arpa], "lm.arpa"),
        (["interpolate", saved, saved, "--weights", "0.5 0.5", "--output", folder], "config.json"),
        ([*clips, "--save-to", folder], "config.json"),
    ):
        capsys.readouterr()
        before = {path: path.read_bytes() for path in (tmp_path / "lm.arpa", *(tmp_path / "lm").iterdir())}
        assert run(command) == 2, command
        assert f"{there} exists already; write somewhere else, or add --overwrite" in capsys.readouterr().err
        assert all(path.read_bytes() == content for path, content in before.items())
        assert run([*command, "--overwrite"]) == 0, command


def test_an_interrupted_command_says_what_is_kept(saved, tmp_path, capsys, monkeypatch):
    from hf_ngpulm.cli import library

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    (tmp_path / "text.txt").write_text("set a course\n")
    for name in ("train", "evaluate"):
        monkeypatch.setattr(library, name, interrupted)
    evaluate = ["evaluate", MODEL, str(DEMO / "clips.jsonl"), "--device", "cpu"]
    capsys.readouterr()
    for command, message in (
        (["train", str(tmp_path / "text.txt"), "--tokenizer", MODEL, "-o", str(tmp_path / "lm")], "; nothing is saved"),
        (
            [*evaluate, "-o", "found.jsonl"],
            "; finished results are kept beside found.jsonl: run the same command again to resume",
        ),
        (evaluate, "; nothing is kept; with --output results.jsonl, a run keeps its results and can resume"),
    ):
        assert run(command) == 130 and capsys.readouterr().err == f"hf-ngpulm: interrupted{message}\n"


def test_phrases_and_names_of_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lists").mkdir()
    for name in ("names.txt", "lists/ships.tsv"):
        (tmp_path / name).write_text("Anna Kowalska\n\nBob\n")
    said = ["node.js", "St. Gallen", "asp.net", "AC/DC", "24/7", "apple.tv", "U.S.", "v1.2", "names", "yahoo.com", "e.g. text"]
    assert read_phrases([*said, "names.txt", "lists/ships.tsv"]) == [*said, *["Anna Kowalska", "Bob"] * 2]
    for wrong, meant in (
        ("names.txtt", "; names.txt is there"), ("name.text", "; names.txt is there"), ("nothing.csv", ""),
        ("lists/ships.tv", "; lists/ships.tsv is there"), ("lists/else", ""),
    ):  # fmt: skip
        with pytest.raises(FileNotFoundError) as error:
            read_phrases([wrong])
        assert str(error.value) == f"--phrases {wrong}: no such file{meant}"


def test_info(saved, capsys):
    assert run(["info", saved, "--json"]) == 0
    (facts,) = lines(capsys)
    assert facts["order"] == 6 and sum(facts["num_ngrams"]) == 45054 and facts["bytes_per_ngram"] < 20
    assert run(["info", ARPA, "--vocab-size", "256"]) == 0
    assert "45,054" in capsys.readouterr().out


def test_score_reads_files_and_standard_input(saved, capsys, tmp_path, monkeypatch):
    text = "call the coast guard\nset a course\n"
    (tmp_path / "text").write_text(text)
    assert run(["score", saved, str(tmp_path / "text"), "--tokenizer", MODEL, "--json"]) == 0
    first, second, total = lines(capsys)
    assert first["text"] == "call the coast guard" and total["sentences"] == 2
    assert total["log_prob"] == pytest.approx(first["log_prob"] + second["log_prob"])
    assert first["log10_prob"] == pytest.approx(first["log_prob"] / 2.302585)
    rows = [{"audio": "a.wav", "text": sentence} for sentence in text.splitlines()]
    (tmp_path / "manifest.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert run(["score", saved, str(tmp_path / "manifest.jsonl"), "--tokenizer", MODEL, "--json"]) == 0
    assert lines(capsys) == [first, second, total]
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert run(["score", saved, "--tokenizer", MODEL]) == 0
    assert "2 sentences" in capsys.readouterr().out
    assert run(["score", saved, str(tmp_path / "text"), "--tokenizer", MODEL, "--summary", "--json"]) == 0
    assert lines(capsys) == [total]
    (tmp_path / "blank").write_text("\n" + text)
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n" + text))
    for files in ([str(tmp_path / "blank")], []):
        assert run(["score", saved, *files, "--tokenizer", MODEL, "--json"]) == 0
        blank, *others, total = lines(capsys)
        assert others == [first, second] and blank["tokens"] == 0 and total["sentences"] == 3
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n \n"))
    assert run(["score", saved, "--tokenizer", MODEL]) == 2
    assert "nothing to score" in capsys.readouterr().err


def test_train(tmp_path, capsys):
    texts = (DEMO / "text.txt").read_text().splitlines()[:600]
    (tmp_path / "a.txt").write_text("\n".join(texts[:300]))
    (tmp_path / "b.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts[300:]))
    out, arpa = str(tmp_path / "lm"), str(tmp_path / "lm.arpa.gz")
    inputs = [str(tmp_path / "a.txt"), str(tmp_path / "b.jsonl")]
    options = ["--tokenizer", MODEL, "--order", "4", "--prune", "0 0 1", "--valid", inputs[0], "--arpa", arpa]
    assert run(["train", *inputs, "-o", out, *options, "--json"]) == 0
    (facts,) = lines(capsys)
    lm = NGramLM.from_pretrained(out)
    assert lm.num_ngrams == tuple(facts["num_ngrams"]) and facts["num_sentences"] == 600
    assert lm.config.training.prune == (0, 0, 1, 1)
    wanted = NGramLM.train(texts, tokenizer=bundled_tokenizer(), order=4, prune=(0, 0, 1))
    again = NGramLM.from_arpa(arpa, tokenizer=bundled_tokenizer())
    for ours, theirs, written in zip(lm.buffers(), wanted.buffers(), again.buffers()):
        assert torch.equal(ours, theirs) and torch.equal(written, theirs)
    assert run(["train", *inputs, "-o", out, *options, "--overwrite"]) == 0
    shown = capsys.readouterr().out
    assert "validation perplexity" in shown and "D3+" in shown and "600 sentences" in shown
    assert run(["info", out]) == 0
    assert "600 sentences" in capsys.readouterr().out


def test_train_in_the_style_of_a_recogniser(tmp_path, capsys):
    text, transcripts, out = tmp_path / "text.txt", tmp_path / "transcripts.txt", str(tmp_path / "lm")
    text.write_text("TURN [to] port\nset a course\n" * 10)
    transcripts.write_text("set a course\nno.\n")
    command = ["train", str(text), "--tokenizer", MODEL, "-o", out, "--overwrite", "-n", "2", "--style-of"]
    for style in ([MODEL], [MODEL, "--outputs", str(transcripts)], [str(transcripts)]):
        assert run([*command, *style, "--json"]) == 0
        (line, *_) = json.loads(capsys.readouterr().out)["adapted"]
        assert line == "small letters: 10 of 20 texts, such as 'TURN [to] port' -> 'turn [to] port'"
    assert run([*command, MODEL]) == 0
    assert "small letters: 10 of 20 texts, such as 'TURN [to] port'" in capsys.readouterr().out
    assert run([*command, "./nowhere"]) == 2
    assert "./nowhere: no such folder" in capsys.readouterr().err


def test_train_on_ids(tmp_path, capsys):
    (tmp_path / "ids").write_text("1 2 3\n2 2\n" * 20)
    assert (
        run(
            [
                "train",
                str(tmp_path / "ids"),
                "-o",
                str(tmp_path / "lm"),
                "--vocab-size",
                "4",
                "--valid",
                str(tmp_path / "ids"),
                "--json",
            ]
        )
        == 0
    )
    (facts,) = lines(capsys)
    assert facts["num_tokens"] == 100 and facts["perplexity_per_token"] > 1 and facts["perplexity_per_word"] is None


def test_interpolate_and_prune(tmp_path, capsys):
    texts = (DEMO / "text.txt").read_text().splitlines()
    for name, part in (("a", texts[:200]), ("b", texts[200:400])):
        NGramLM.train(part, tokenizer=bundled_tokenizer(), order=3).save_pretrained(tmp_path / name)
    (tmp_path / "valid.txt").write_text("\n".join(texts[150:250]))
    models, out = [str(tmp_path / "a"), str(tmp_path / "b")], str(tmp_path / "c")
    assert run(["interpolate", *models, "-o", out, "--weights", "0.25,0.75", "--max-ngrams", "900"]) == 0
    assert "900 n-grams; 0.250" in capsys.readouterr().out
    assert (
        run(
            [
                "interpolate",
                *models,
                "-o",
                out,
                "--overwrite",
                "--valid",
                str(tmp_path / "valid.txt"),
                "--tokenizer",
                MODEL,
                "--json",
            ]
        )
        == 0
    )
    (facts,) = lines(capsys)
    assert sum(facts["weights"].values()) == pytest.approx(1)
    assert run(["convert", out, str(tmp_path / "d"), "--max-ngrams", "700"]) == 0
    assert sum(NGramLM.from_pretrained(tmp_path / "d").num_ngrams) == 700


@pytest.mark.slow
def test_an_interrupted_training_leaves_nothing(tmp_path):
    command = [sys.executable, "-m", "hf_ngpulm.cli", "train", "-", "-o", "out", "--vocab-size", "9", "--memory", "1k"]
    process = subprocess.Popen(
        [*command, "--temporary", str(tmp_path)], cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(os.path.dirname(__file__)))},
    )  # fmt: skip
    digits = random.Random(0).choices("12345678", k=100_000)
    process.stdin.write(" ".join(digits).encode() + b"\n")
    process.stdin.flush()
    for _ in range(600):
        if list(tmp_path.iterdir()):
            break
        time.sleep(0.1)
    assert list(tmp_path.glob("hf_ngpulm-*"))
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert not list(tmp_path.iterdir())


def test_transcribe(saved, capsys):
    assert run(["transcribe", *CLIPS, "-m", MODEL, "--lm", saved, "--lm-weight", "0.9", "--device", "cpu", "--json"]) == 0
    with_lm = lines(capsys)
    assert run(["transcribe", *CLIPS, "-m", MODEL, "--device", "cpu", "--json"]) == 0
    without = lines(capsys)
    assert [row["audio"] for row in with_lm] == [row["audio"] for row in without] == CLIPS
    assert [row["text"] for row in with_lm] != [row["text"] for row in without]


def test_transcribe_with_a_beam_and_times(saved, capsys):
    command = ["transcribe", *CLIPS, "-m", MODEL, "--device", "cpu", "--timestamps", "word"]
    assert run([*command, "--lm", saved, "--num-beams", "6", "--beta", "2", "--n-best", "3", "--json"]) == 0
    for row in lines(capsys):
        assert len(row["hypotheses"]) == 3 and row["hypotheses"][0]["text"] == row["text"]
        assert " ".join(chunk["text"] for chunk in row["chunks"]) == row["text"]
    assert run(command) == 0  # without an LM too
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) > len(CLIPS) and printed[0].startswith(CLIPS[0]) and printed[1].split()[2] in printed[0]


def test_transcribe_with_phrases(capsys, tmp_path):
    (tmp_path / "names.txt").write_text("harbour master\n\nminutes late\n")
    command = ["transcribe", *CLIPS, "-m", MODEL, "--device", "cpu", "--json"]
    assert run(command) == 0
    plain = [line["text"] for line in lines(capsys)]
    assert run([*command, "--phrases", str(tmp_path / "names.txt"), "--phrases", "lighthouse", "--phrase-weight", "3"]) == 0
    boosted = [line["text"] for line in lines(capsys)]
    wanted = ("harbour master", "minutes late", "lighthouse")
    counts = [sum(phrase in text for text in texts for phrase in wanted) for texts in (boosted, plain)]
    assert counts[0] > counts[1]


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


def test_what_cannot_be_audio_or_is_hardly_any(capsys, tmp_path):
    """Of audio that is too short for a frame nothing is recognised; what is beside it in the batch is as ever."""
    soundfile.write(tmp_path / "short.wav", soundfile.read(CLIPS[0])[0][:100], 16000)
    audio = [CLIPS[0], str(tmp_path / "short.wav"), str(tmp_path / "none.wav")]
    assert run(["transcribe", *audio, "-m", MODEL, "--device", "cpu", "--lm", ARPA, "--num-beams", "2"]) == 1
    printed = capsys.readouterr()
    assert [line.partition(": ")[0] for line in printed.out.splitlines()] == audio[:2]
    assert "course" in printed.out and "none.wav: no such audio file; skipped" in printed.err


@pytest.mark.slow
def test_a_warning_is_a_line_without_its_place_in_the_source(tmp_path):
    command = [sys.executable, "-m", "hf_ngpulm.cli", "transcribe", CLIPS[0], "-m", MODEL, "--phrases", "Z\u00fcrich"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.startswith("hf-ngpulm: the tokenizer can't write 1 of 1 phrases") and done.stderr.count("\n") == 1


def test_demo(capsys):
    assert run(["demo", "--json", "--model", "ctc"]) == 0
    found = {(line["set"], line["search"]): line for line in lines(capsys)}
    assert len(found) == 7 and all(line["transcripts"] and line["rtfx"] > 0 for line in found.values())
    harbour = [found["harbour", search]["wer"] for search in ("alone", "LM, greedy", "LM")]
    assert 10 < harbour[0] < 40 and harbour[1] < 0.85 * harbour[0] and harbour[2] < 0.7 * harbour[0]
    for name in ("callsigns", "contacts"):
        assert found[name, "phrases"]["entity_wer"] < 0.85 * found[name, "beam"]["entity_wer"]
    assert run(["demo", "--model", "stateless", "--clips", "2"]) == 0
    printed, progress = capsys.readouterr()
    assert "1 of 1: stateless RNN-T" in progress
    assert "Word error rate" in printed and "[" in printed and printed.count("stateless RNN-T, LM, greedy") == 2
    assert run(["demo", "--model", "whisper"]) == 2
    assert "there is no such model" in capsys.readouterr().err


def test_demo_of_any_model_hears_people(capsys):
    """The bundled models make nothing of people's voices, whatever they are given: that isn't hidden."""
    assert run(["demo", "--json", "--model", MODEL]) == 0
    alone, with_lm = lines(capsys)
    assert (alone["set"], alone["search"], with_lm["search"]) == ("orders", "alone", "LM")
    assert len(alone["transcripts"]) == 3 and min(alone["wer"], with_lm["wer"]) > 80
    assert alone["transcripts"] != with_lm["transcripts"]
    assert run(["demo", "--model", MODEL]) == 0
    printed = capsys.readouterr().out
    assert "ctc, 3 orders by people: word error rate" in printed and "Can I get a light roast" in printed


def test_what_was_put_right_is_green():
    found = _marked("the red buoy is here", "the red boy is", "a red boy is here")
    assert found.plain == "the red [boy] is (here)"
    assert {found.plain[one.start : one.end]: str(one.style) for one in found.spans if one.style} == {
        "the": "green", "[boy]": "bold red", "(here)": "yellow",
    }  # fmt: skip
    assert _marked("the red buoy", "", "the").plain == "(the red buoy)"
    assert [str(one.style) for one in _marked("red", "red", "").spans if one.style] == ["green"]


def test_the_commands_that_the_demo_names_can_be_given():
    group = typer.main.get_command(app)
    assert len(NEXT) == 3
    for command in [*NEXT, *AFTER_ORDERS]:
        program, *arguments = command.split()
        assert program == "hf-ngpulm"
        with group.make_context(program, arguments, resilient_parsing=True) as context:
            name, found, rest = group.resolve_command(context, arguments)
            found.make_context(name, rest, parent=context)


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
        (["info", ARPA, "--vocab-size", "100"], "a vocabulary of 100 ids"),
        (["info", ARPA, "--vocab-size", "none"], "--vocab-size"),
        (["info", ARPA, "--vocab-size", "256", "--units", "words"], "words"),
        (["convert", ARPA, "lm.nemo", "--vocab-size", "256"], "can be read, not written"),
        (["convert", ARPA, "lm", "--vocab-size", "256", "--out-units", "id"], "--to arpa"),
        (["convert", ARPA, "lm", "--vocab-size", "256", "--to", "bin"], "--to"),
        (["score", ARPA], "--tokenizer"),
        (["train", CLIPS[0], "-o", "lm", "--tokenizer", MODEL], "not UTF-8 text"),
        (["train", "missing.txt", "-o", "lm", "--tokenizer", MODEL], "missing.txt: no such file"),
        (["train", ARPA, "-o", "lm"], "--vocab-size"),
        (["train", ARPA, "-o", "lm", "--vocab-size", "256"], "expected decimal token ids"),
        (["train", ARPA, "-o", "lm", "--tokenizer", MODEL, "--prune", "0 x"], "--prune"),
        (["train", ARPA, "-o", "lm", "--tokenizer", MODEL, "--prune", "0 2 1"], "may not fall"),
        (["train", ARPA, "-o", "lm", "--tokenizer", MODEL, "--order", "13"], "1 to 12"),
        (["train", ARPA, "-o", "lm", "--tokenizer", MODEL, "--memory", "some"], "4G"),
        (["train", ARPA, "-o", "lm", "--tokenizer", MODEL, "--normalise", "loud"], "'loud'"),
        (["interpolate", ARPA, ARPA, "-o", "lm"], "--weights"),
        (["interpolate", ARPA, ARPA, "-o", "lm", "--weights", "a b", "--tokenizer", MODEL], "'a b'"),
        (["interpolate", ARPA, ARPA, "-o", "lm", "--valid", "x.txt"], "--tokenizer"),
        (["score", ARPA, "nothing.txt", "--tokenizer", MODEL], "nothing.txt"),
        (["transcribe", CLIPS[0], "-m", MODEL, "--lm", ARPA, "--lm-weight", "nan"], "lm_weight"),
        (["transcribe", CLIPS[0], "-m", MODEL, "--lm-weight", "0.3"], "without lm="),
        (["transcribe", CLIPS[0], "-m", MODEL, "--phrase-weight", "0.3"], "without phrases="),
        (["transcribe", CLIPS[0], "-m", MODEL, "--phrases", "names.txt"], "--phrases names.txt: no such file"),
        (["transcribe", CLIPS[0], "-m", "/nowhere/model"], "/nowhere/model: no such folder"),
        (["score", ARPA, CLIPS[0], "--tokenizer", "./model"], "./model: no such folder"),
        (["transcribe", CLIPS[0], "-m", MODEL, "--n-best", "3"], "num_beams"),
        (["transcribe", CLIPS[0], "-m", MODEL, "--strategy", "alsd"], "strategy given without lm="),
        (["transcribe", CLIPS[0], "-m", MODEL, "--timestamps", "sentence"], "word or char"),
        (["transcribe", CLIPS[0], "-m", MODEL, "--device", "gpu"], "the device 'gpu' can't be used here"),
        (["transcribe", CLIPS[0], "-m", MODEL, "--device", "cuda:99"], "the device 'cuda:99' can't be used here"),
        (["tune", MODEL, "clips.jsonl", "--lm", ARPA, "--plot", "wer.jpeg"], ".png, .pdf or .svg"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(arguments, expected, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1 and printed.err.startswith("hf-ngpulm: error: "), printed.err
    assert expected in printed.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_as_a_process():
    environment = {**os.environ, "PYTHONPATH": str(bundled("hf_ngpulm").parent), "NO_COLOR": "1"}

    def call(*arguments):
        command = [sys.executable, "-m", "hf_ngpulm.cli", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)

    assert "transcribe" in call("--help").stdout
    assert call("--version").stdout.startswith("hf-ngpulm")
    wrong = call("info", MODEL)
    assert wrong.returncode == 2 and "Traceback" not in wrong.stderr and wrong.stderr.count("\n") == 1


def test_accelerate_that_starts_one_process_is_told_of(monkeypatch, capsys):
    from hf_ngpulm.cli.train import _accelerator

    for name in ("WORLD_SIZE", "RANK", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert _accelerator() is None and capsys.readouterr().err == ""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert _accelerator() is None and "torchrun" in capsys.readouterr().err
