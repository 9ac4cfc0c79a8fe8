"""Words on the command line, and in a pipeline."""

import json

import pytest

from hf_ngpulm import LogLinear, NGramLM
from hf_ngpulm.cli.app import run
from hf_ngpulm.common.bundled import bundled

MODEL = str(bundled("examples/models/ctc"))
TEXTS = ["call the coast guard", "set a course", "call the guard", "set the course for the coast"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("words")
    (folder / "text").write_text("\n".join(TEXTS))
    command = ["train", str(folder / "text"), "-o", str(folder / "lm"), "--tokenizer", MODEL, "--unit", "word", "-n", "2"]
    assert run([*command, "--arpa", str(folder / "words.arpa"), "--valid", str(folder / "text")]) == 0
    return folder


def test_train_convert_and_info(trained, tmp_path, capsys):
    convert = ["convert", str(trained / "words.arpa"), str(tmp_path / "lm"), "--tokenizer", MODEL]
    assert run([*convert, "--unit", "word", "--case", "lower", "--unk-score-offset", "-5"]) == 0
    ours, theirs = NGramLM.from_pretrained(trained / "lm"), NGramLM.from_pretrained(tmp_path / "lm")
    assert ours.config.words.num_words == theirs.config.words.num_words == 8
    assert theirs.config.words.unk_score_offset == -5 and theirs.config.words.case == "lower"
    assert ours.num_states == theirs.num_states
    capsys.readouterr()
    assert run(["info", str(trained / "lm"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["unit"] == "word" and facts["words"]["num_spelled"] == 8 and facts["training"]["num_sentences"] == 4
    assert run(["info", str(trained / "lm")]) == 0
    shown = capsys.readouterr().out
    assert "of words" in shown and "unknown words" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--units", "id", "--closed-vocabulary"], "closed_vocabulary applies to word-level"),
        (["--unit", "word", "--case", "title"], "case should be one of"),
    ],
)
def test_mistakes(trained, tmp_path, capsys, arguments, message):
    assert run(["convert", str(trained / "words.arpa"), str(tmp_path / "lm"), "--tokenizer", MODEL, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_saved_model_is_no_arpa_file(trained, tmp_path, capsys):
    assert run(["convert", str(trained / "lm"), str(tmp_path / "out.arpa")]) == 2
    assert "word-level one composed with a lexicon" in capsys.readouterr().err
    assert run(["convert", str(trained / "lm"), str(tmp_path / "lm"), "--case", "lower"]) == 2
    assert "case apply to word-level ARPA files and KenLM binaries only" in capsys.readouterr().err


def test_words_and_tokens_together_in_a_pipeline(trained):
    soundfile = pytest.importorskip("soundfile")
    from transformers import pipeline

    words = NGramLM.from_pretrained(trained / "lm")
    asr = pipeline("automatic-speech-recognition", model=MODEL, lm=words, lm_weight=0.5, num_beams=4)
    tokens = NGramLM.from_arpa(bundled("examples/speech/harbour/lm.arpa.gz"), tokenizer=asr.tokenizer)
    audio = [soundfile.read(bundled(f"examples/speech/harbour/clips/{i:02}.flac"), dtype="float32")[0] for i in range(2)]
    both = asr(audio, lm=LogLinear([words, tokens], [0.0, 1.0]), lm_weight=0.5, batch_size=2)
    assert both == asr(audio, lm=tokens, lm_weight=0.5, batch_size=2)
    each = asr(audio, lm=[LogLinear([words, tokens], [0.0, 1.0]), words], lm_weight=0.5, batch_size=2)
    assert each == [both[0], asr(audio[1])]
