"""hf-ngpulm tune: from recordings to an LM that pipelines decode with as was found best."""

import json
from importlib.util import find_spec

import pytest
from transformers import pipeline

from hf_ngpulm import NGramLM
from hf_ngpulm.cli.app import run
from hf_ngpulm.common.bundled import bundled

DEMO = bundled("examples/speech/harbour")
MODEL, ARPA, CLIPS = str(bundled("examples/models/ctc")), str(DEMO / "lm.arpa.gz"), str(DEMO / "clips.jsonl")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("lm") / "saved")
    assert run(["convert", ARPA, folder, "--tokenizer", MODEL]) == 0
    return folder


@pytest.mark.slow
def test_tune_and_decode_with_what_was_found(saved, tmp_path, capsys):
    output, plot = tmp_path / "points.json", tmp_path / "wer.png"
    arguments = ["tune", MODEL, CLIPS, "--lm", saved, "--limit", "5", "--num-beams", "4", "--device", "cpu"]
    capsys.readouterr()
    grid = ["--weights", "0:1.5:0.5", "--refine", "1", "--held-out", "0.4"]
    drawn = ["--plot", str(plot)] if find_spec("matplotlib") else []
    assert run([*arguments, *grid, "--output", str(output), *drawn, "--save", "--json"]) == 0
    *points, summary = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    best = summary["best"]
    assert len(points) > 4 and best in points and summary["utterances"] == 3 and summary["saved_to"] == saved
    assert {"wer", "cer", "substitutions", "deletions", "insertions", "words", "lm_weight"} <= best.keys()
    assert summary["held_out"]["wer"] <= summary["held_out_baseline"]["wer"]
    assert json.loads(output.read_text())["points"] == points and plot.exists() == bool(drawn)
    (entry,) = NGramLM.from_pretrained(saved).config.decoding
    assert entry.settings == {"lm_weight": best["lm_weight"], "num_beams": 4} and entry.measured["rate"] == round(
        best["wer"], 6
    )
    made = pipeline("automatic-speech-recognition", model=MODEL, lm=saved, device="cpu")
    assert made._forward_params["ngram_decoder"].options.num_beams == 4
    assert made._forward_params["ngram_decoder"].fusion.weight == best["lm_weight"]
    # What was tuned before plays no part in the next tuning, and stands beside it.
    assert run([*arguments[:-3], "1", "--device", "cpu", "--weights", "0.4,0.8", "--refine", "0", "--save"]) == 0
    out = capsys.readouterr().out
    assert "5 utterances" in out and "Best: lm_weight" in out and "without" in out and f"Saved in {saved}" in out
    first, second = NGramLM.from_pretrained(saved).config.decoding
    assert first == entry and second.settings["num_beams"] == 1
    assert run(["info", saved]) == 0
    assert "tuned for ctc" in capsys.readouterr().out


@pytest.mark.parametrize("grid, name", [("--betas", "beta"), ("--phrase-weights", "phrase_weight")])
def test_the_weight_of_the_lm_is_tuned_whatever_else_is(grid, name, saved, capsys):
    """And not left at some number that nobody gave; a single value is one that somebody gave."""
    arguments = ["tune", MODEL, CLIPS, "--lm", saved, "--limit", "2", "--num-beams", "4", "--device", "cpu", "--refine", "0"]
    arguments += [*(["--phrases", "harbour master"] if name == "phrase_weight" else []), grid, "0,1", "--json"]

    def points():
        capsys.readouterr()
        assert run(arguments) == 0
        *found, _ = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return found

    found = points()
    assert {round(0.2 * i, 9) for i in range(11)} <= {point["lm_weight"] for point in found}
    assert {(point["lm_weight"], point[name]) for point in found} >= {(0.0, 0.0), (0.0, 1.0), (2.0, 0.0), (2.0, 1.0)}
    arguments += ["--lm-weight", "0.5"]
    assert {point["lm_weight"] for point in points()} == {0.5}


def test_phrases_of_each_recording_and_an_arpa_file(tmp_path, capsys):
    lines = [json.loads(line) for line in (DEMO / "clips.jsonl").read_text().splitlines()[:3]]
    for line, entities in zip(lines, (["old lighthouse"], [], ["green buoy"])):
        line |= {"audio": str(DEMO / line["audio"]), "entities": entities}
    del lines[1]["text"]
    data = tmp_path / "data.jsonl"
    data.write_text("\n".join(map(json.dumps, lines)))
    arguments = ["tune", MODEL, str(data), "--phrases", "from-entities", "--phrase-weights", "0,2", "--device", "cpu"]
    capsys.readouterr()
    assert run([*arguments, "--by", "entity_wer", "--refine", "0", "--json"]) == 0
    *points, summary = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert summary["by"] == "entity_wer" and summary["utterances"] == 2 and len(points) >= 2
    assert summary["best"]["entity_wer"] <= summary["baseline"]["entity_wer"]
    folder = tmp_path / "with weights"
    assert run([*arguments, "--lm", ARPA, "--weights", "0.8", "--refine", "0", "--save-to", str(folder)]) == 0
    (entry,) = NGramLM.from_pretrained(folder).config.decoding
    assert entry.settings.keys() == {"lm_weight", "phrase_weight", "num_beams"}


def test_users_mistakes(saved, tmp_path, capsys):
    other = tmp_path / "other"
    NGramLM.train([[0, 1]], vocab_size=9999, order=1).save_pretrained(other)
    (tmp_path / "none.jsonl").write_text(json.dumps({"audio": str(DEMO / "clips" / "00.flac")}))
    (tmp_path / "empty.jsonl").write_text("")
    for arguments, message in (
        ([MODEL, CLIPS], "there is nothing to weigh: add --lm, --phrases, --corrections or --rescorer"),
        ([MODEL, CLIPS, "--lm", saved, "--weights", "0-2"], "the grid of lm_weight can't be read: '0-2'"),
        ([MODEL, CLIPS, "--lm", saved, "--weights", "nan"], "lm_weight should be a number from 0 to 1000, got nan"),
        ([MODEL, CLIPS, "--lm", saved, "--weights", "-1:1:0.5"], "got -1.0 in its grid"),
        (
            [MODEL, CLIPS, "--lm", saved, "--num-beams", "1", "--betas", "0:2:1"],
            "beta can't be tuned",
        ),
        ([MODEL, CLIPS, "--lm", ARPA, "--save"], "--save writes to the LM's folder, but"),
        ([MODEL, CLIPS, "--phrases", "a", "--save"], "add --lm"),
        ([MODEL, CLIPS, "--lm", str(other)], "scores 9999 token ids"),
        ([MODEL, str(tmp_path / "none.jsonl"), "--lm", saved], "has a transcript"),
        ([MODEL, str(tmp_path / "empty.jsonl"), "--lm", saved], "empty.jsonl"),
        ([MODEL, CLIPS, "--lm", saved, "--by", "ser"], "by should be one of"),
    ):
        capsys.readouterr()
        assert run(["tune", *arguments, "--device", "cpu", "--limit", "1"]) == 2, arguments
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("hf-ngpulm: error: ") and message in error, error
