"""Held to what pyctcdecode 0.5.0 made of the same outputs."""

import math

import numpy as np
import pytest

from hf_ngpulm.compat import build_ctcdecoder
from hf_ngpulm.compat.alphabet import Alphabet

CASES = ["defaults", "weights", "no boundary", "no model", "hotwords", "narrow", "history", "pieces"]


def decoded(golden, case, words_arpa):
    """For each utterance pyctcdecode's transcripts, and ours by their texts."""
    made_with = case["made_with"]
    arpa = None if made_with is None else words_arpa
    decoder = build_ctcdecoder(golden.labels[case["labels"]], arpa, **(made_with or {}))
    for row, theirs in enumerate(case["beams"]):
        logits = golden.logits[f"{case['labels']}_{row}"]
        yield row, theirs, decoder.decode_beams(logits, **case["given"])


@pytest.mark.parametrize("name", CASES)
def test_transcripts_and_scores(golden, words_arpa, name):
    """Clear speech: the same transcripts with the same scores. Unclear: one that scores no worse, but for a little."""
    for row, theirs, ours in decoded(golden, golden.cases[name], words_arpa):
        text, frames, logit_score, lm_score = theirs[0]
        if row % 2 == 0 and (name, row) != ("pieces", 4):  # where a better one is found
            assert ours[0].text == text
            assert ours[0].lm_score == pytest.approx(lm_score, abs=0.1)
            assert ours[0].logit_score == pytest.approx(logit_score, abs=0.1)
            for (word, ours_at), (their_word, theirs_at) in zip(ours[0].text_frames, frames, strict=True):
                assert word == their_word
                assert np.abs(np.subtract(ours_at, theirs_at)).max() <= 3
        assert ours[0].lm_score > lm_score - 1.0


@pytest.mark.parametrize("name", CASES)
def test_what_the_language_model_adds(golden, words_arpa, name):
    """The same for the same text, but where theirs ends in a space, which it takes for an unknown word."""
    case = golden.cases[name]
    settings = {"alpha": 0.5, "beta": 1.5, "unk_score_offset": -10.0, **(case["made_with"] or {})}
    compared, spaces = 0, []
    for _, theirs, ours in decoded(golden, case, words_arpa):
        by_text = {beam.text: beam for beam in ours}
        for text, _, logit_score, lm_score in theirs:
            if text not in by_text:
                continue
            compared += 1
            ours_added = by_text[text].lm_score - by_text[text].logit_score
            if ours_added != pytest.approx(lm_score - logit_score, abs=1e-3):
                spaces.append(lm_score - logit_score - ours_added)
    assert compared > 15
    # An unknown word: at least its offset (that of `<unk>` itself comes to it), and beta.
    penalty = settings["alpha"] * math.log(10) * settings["unk_score_offset"] + settings["beta"]
    assert all(penalty - 6.0 < space < penalty for space in spaces)
    assert len(spaces) < compared / 2


def test_labels(golden):
    for labels in golden.labels.values():
        built = Alphabet.build_alphabet(labels)
        assert built.labels == labels  # already in that notation, as pyctcdecode's decoder took them
