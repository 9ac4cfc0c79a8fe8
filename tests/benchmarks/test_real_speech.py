"""The bench of real speech: how decoders with attention are scored, which write numbers and capitals as they like."""

from __future__ import annotations

import json
import sys

import corpora
import measure
import pytest

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
