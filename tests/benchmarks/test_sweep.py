"""The loop that experiments on recordings share: its clips, what it chooses, and what it keeps."""

from __future__ import annotations

import json

import corpora
import experiments
import measure
import numpy as np
import pytest
import recognisers
import sweep
from corpora import Clip
from ways import Way, grid

pytest.importorskip("jiwer")
pytest.importorskip("soundfile")


@pytest.fixture(scope="module")
def heard():
    return recognisers.Recogniser("ctc").hear(corpora.load("harbour", 6))


def test_a_manifest_says_who_speaks_and_what_is_for_what(tmp_path):
    (source, *_) = sorted((corpora.SPEECH / "harbour" / "clips").glob("*.flac"))
    line = {"audio": str(source), "text": "one two", "entities": ["two"]}
    lines = [line, {**line, "speaker": "ann", "split": "test"}, {**line, "voice": "en-gb"}]
    manifest = tmp_path / "clips.jsonl"
    manifest.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    clips = corpora.load(tmp_path)
    assert [(clip.speaker, clip.split) for clip in clips] == [("", "even"), ("ann", "test"), ("en-gb", "even")]
    assert corpora.splits(clips) == {"even": [0, 2], "test": [1], "all": [0, 1, 2]}
    assert len(corpora.load(manifest, 2)) == 2 and clips[0].entities == ("two",)


def test_joined_clips_are_one_after_the_other():
    clips = [Clip(np.full(4, number, np.float32), f"word{number}", split="odd") for number in range(5)]
    first, second = corpora.joined(clips, 2)
    assert (first.text, second.text, second.split) == ("word0 word1", "word2 word3", "odd")
    assert second.audio.tolist() == [2, 2, 2, 2, 3, 3, 3, 3]


def test_rates_are_of_each_split():
    clips = [Clip(np.zeros(1), "a b c d", split="even"), Clip(np.zeros(1), "a b", ("b",), split="odd")]
    rates = corpora.figures(clips, ["a b c", "a x"], entities=True)
    assert (rates["even"], rates["odd"], rates["all"]) == pytest.approx((25, 50, 100 / 3))
    assert (rates["deletions"], rates["substitutions"], rates["insertions"]) == pytest.approx((100 / 6, 100 / 6, 0))
    assert rates["entities, odd"] == 100 and rates["F1, odd"] == 0


def test_batches_change_no_transcript(heard):
    decoder = heard.recogniser.decoder(num_beams=1)
    assert heard.decode(decoder, 1) == heard.decode(decoder, 4)
    assert recognisers.Recogniser("ctc").hear(heard.clips, 1).decode(decoder) == heard.decode(decoder)


def test_the_best_on_the_first_split_is_the_row(heard):
    lm = heard.recogniser.lm(str(corpora.SPEECH / "harbour" / "lm.arpa.gz"))
    points = grid(lm_weight=(0.0, 0.9, 40.0))
    every = Way("greedy", heard, points, {"lm": lm, "num_beams": 1}, every=True).rows()
    (best,) = Way("greedy", heard, points, {"lm": lm, "num_beams": 1}).rows()
    assert [row["lm_weight"] for row in every] == [0.0, 0.9, 40.0]
    assert best["even"] == min(row["even"] for row in every) < max(row["even"] for row in every)


def row(phrases, even, entities, weight=None):
    of_weight = {} if weight is None else {"phrase_weight": weight}
    return {"model": "m", "decoder": "d", "phrases": phrases, **of_weight, "even": even, "entities, even": entities}


def test_a_weight_of_phrases_that_does_harm_is_not_chosen(capsys):
    rows = [row("none", 50.0, 80.0)]
    rows += [row("own", 45.0, 60.0, 0.5), row("own", 40.0, 40.0, 1.0), row("own", 39.0, 20.0, 2.0)]
    rows += [row("distractors", 50.0, 80.0, 0.5), row("distractors", 50.9, 80.0, 1.0), row("distractors", 51.1, 80.0, 2.0)]
    chosen = experiments.harmless(rows)["chosen"]
    assert [(each["phrases"], each.get("phrase_weight")) for each in chosen] == [
        ("none", None),
        ("own", 1.0),
        ("distractors", 1.0),
    ]


def test_the_knee_is_where_the_line_bends_most():
    points = [(1, 1.0, 40.0), (2, 2.0, 22.0), (4, 4.0, 20.0), (8, 8.0, 19.0)]
    rows = [{"model": "m", "beams": beams, "ms a clip": ms, "all": errors} for beams, ms, errors in points]
    assert experiments.knees(rows)["knees"] == {"m": 2}


def test_an_experiment_keeps_its_rows_and_times(tmp_path, capsys):
    sweep.main(["ctc_beam", "--limit", "4", "--beams", "4", "--batch-sizes", "2", "--repeats", "1", "--out", str(tmp_path)])
    kept = json.loads((tmp_path / "ctc_beam.json").read_text())
    assert [row["decoder"] for row in kept["rows"]] == ["argmax", "greedy", "beam 4"]
    assert kept["clips"] == 4 and kept["machine"]["command"]
    for each in kept["rows"]:
        assert each["rtfx"]["2"] == pytest.approx(kept["audio_seconds"] / each["decoder_seconds"]["2"])
    assert "beam 4" in capsys.readouterr().out


@pytest.mark.parametrize("name", sweep.EXPERIMENTS)
def test_every_experiment_says_what_it_takes(name, capsys):
    with pytest.raises(SystemExit) as ended:
        sweep.main([name, "--help"])
    assert ended.value.code == 0
    assert "--models" in capsys.readouterr().out and sweep.EXPERIMENTS[name].ways.__doc__


def test_what_is_known_when_a_run_breaks_off_is_kept(tmp_path, capsys):
    def rows():
        yield {"errors": 1.5, "each": [1, 2]}
        raise KeyboardInterrupt

    args = measure.arguments(None, "broken").parse_args(["--out", str(tmp_path)])
    with pytest.raises(KeyboardInterrupt):
        measure.report(rows(), args, {"clips": 3})
    kept = json.loads((tmp_path / "broken.json").read_text())
    assert (kept["clips"], kept["rows"]) == (3, [{"errors": 1.5, "each": [1, 2]}])
