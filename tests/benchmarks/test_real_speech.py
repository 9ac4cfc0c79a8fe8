"""The bench of real speech: how decoders with attention are scored, which write numbers and capitals as they like."""

from __future__ import annotations

import json
import sys

import corpora
import measure
import numpy as np
import pytest
import recognisers

pytest.importorskip("jiwer")
pytest.importorskip("soundfile")
sys.path.insert(0, str(measure.ROOT / "benchmarks" / "real_speech"))

import families


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("twelve twenty nine fifty nine", "1229.59"),
        ("three zero two one", "302-1."),
        ("one five two", "1 5 2"),
        ("rubout g m e f three nine", "Rubout, G. M. E. F. 39."),
        ("it's a stake", "It is a stake."),
    ],
)
def test_a_number_counts_the_same_in_words_and_digits(said, written):
    assert families.plain(said) == families.plain(written)


def test_transcripts_are_compared_with_references_of_the_same_form(tmp_path):
    (source, *_) = sorted((corpora.SPEECH / "harbour" / "clips").glob("*.flac"))
    lines = [
        {"audio": str(source), "text": text, "speaker": split, "split": split, "group": "adults"}
        for text, split in (("go there", "train"), ("it's pier thirty five", "test"))
    ]
    manifest = tmp_path / "clips.jsonl"
    manifest.write_text("\n".join(map(json.dumps, lines)))
    corpus = families.Corpus(manifest, [], None, [])
    heard = [families.plain("It's Pier 35.")]
    assert corpus.figures(heard)["wer"] > 50
    assert corpus.normalised().figures(heard)["wer"] == 0
    assert corpus.clips[0].text == "it's pier thirty five"


def test_intervals_draw_speakers_not_clips():
    assert measure.interval([True] * 20) == [1.0, 1.0]
    low, high = measure.interval([0, 1] * 50)
    assert 0.35 < low < 0.45 and 0.55 < high < 0.65
    of_two = measure.interval([0] * 50 + [1] * 50, groups=["ann"] * 50 + ["bob"] * 50)
    assert of_two == [0.0, 1.0]  # both draws may be of the same speaker
    assert measure.interval([0, 3], [1, 3], ["ann", "ann"]) == [0.75, 0.75]


def test_frames_of_whisper_are_found_by_path(tmp_path):
    lines = [{"audio": "one.wav", "start": 0, "end": 2}, {"audio": "two.wav", "start": 2, "end": 5}]
    (tmp_path / "index.jsonl").write_text("\n".join(map(json.dumps, lines)))
    np.arange(20, dtype=np.float16).tofile(tmp_path / "frames.raw")
    frames = recognisers.Frames([tmp_path])
    assert frames["one.wav"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]] and len(frames["two.wav"]) == 3
