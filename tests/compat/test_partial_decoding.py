"""Decoding in parts, as pyctcdecode does since its last release."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from hf_ngpulm import InvalidLogitsError
from hf_ngpulm.compat import Beam, BeamSearchDecoderCTC, HotwordScorer, LMBeam, MultiLanguageModel, build_ctcdecoder
from hf_ngpulm.compat.language_model import LanguageModel


def decoded(decoder, logits, cuts, change=lambda beams: beams, **given):
    """The last beams of logits that come in parts, cut at some frames."""
    beams, *caches = decoder.get_starting_state()
    for first, last in zip([0, *cuts], [*cuts, len(logits)]):
        is_end = last == len(logits)
        beams = decoder.partial_decode_beams(logits[first:last], *caches, change(beams), first, is_end=is_end, **given)
    return beams


@pytest.mark.parametrize("kind", ["letters", "pieces"])
@pytest.mark.parametrize("with_lm", [True, False])
@pytest.mark.parametrize("hotwords", [None, ["radio", "zermatt lane"]])
def test_however_it_is_cut(golden, words_arpa, kind, with_lm, hotwords):
    """It comes to what all at once comes to."""
    decoder = build_ctcdecoder(golden.labels[kind], words_arpa if with_lm else None)
    scorer = None if hotwords is None else HotwordScorer.build_scorer(hotwords, 5.0)
    for row in range(4):
        logits = golden.logits[f"{kind}_{row}"]
        (*_, whole) = [decoder.decode_beams(logits, hotwords=hotwords, hotword_weight=5.0)]
        for cuts in ([], [40], [1, 2, 3, 50, 50], list(range(7, len(logits), 7))):
            found = decoded(decoder, logits, cuts, hotword_scorer=scorer)
            assert [beam.text for beam in found[:5]] == [beam.text for beam in whole[:5]]
            assert [beam.lm_score for beam in found[:5]] == pytest.approx([beam.lm_score for beam in whole[:5]], abs=2e-3)
            assert found[0].logit_score == pytest.approx(whole[0].logit_score, abs=2e-3)
            assert found[0].text_frames == [frames for _, frames in whole[0].text_frames]
            assert (found[0].partial_word, found[0].partial_frames, found[0].last_char) == ("", (-1, -1), None)


@pytest.mark.parametrize("boundary", [True, False])
def test_weights_and_several_models(golden, arpas, boundary):
    logits, labels = golden.logits["letters_1"], golden.labels["letters"]
    alphabet = build_ctcdecoder(labels)._alphabet
    models = [
        LanguageModel(arpas["o3"], None, 0.8, 0.5, -4.0, boundary),
        LanguageModel(arpas["o2"], None, 0.3, 1.0, -2.0, False),
    ]
    for decoder in (BeamSearchDecoderCTC(alphabet, MultiLanguageModel(models)), BeamSearchDecoderCTC(alphabet, models[0])):
        whole = decoder.decode_beams(logits, beam_width=20, beam_prune_logp=-8, token_min_logp=-4)
        found = decoded(decoder, logits, [10, 60], beam_width=20, beam_prune_logp=-8, token_min_logp=-4)
        assert [beam.text for beam in found[:5]] == [beam.text for beam in whole[:5]]
        assert found[0].lm_score == pytest.approx(whole[0].lm_score, abs=2e-3)
        assert len(found) <= 20 and found[-1].lm_score >= found[0].lm_score - 8


def stripped(beams):
    """Beams as they would come from elsewhere: nothing but what is public."""
    names = [field.name for field in dataclasses.fields(LMBeam) if not field.name.startswith("_")]
    return [
        LMBeam(*(getattr(beam, name) for name in names)) if isinstance(beam, LMBeam) else Beam(*dataclasses.astuple(beam)[:7])
        for beam in beams
    ]


@pytest.mark.parametrize("kind", ["letters", "pieces"])
def test_beams_that_come_from_elsewhere(golden, words_arpa, kind):
    """Where a language model stands is found anew from the text."""
    decoder = build_ctcdecoder(golden.labels[kind], words_arpa)
    for row in (0, 2):
        logits = golden.logits[f"{kind}_{row}"]
        for cuts in ([30], [25, 47], list(range(5, len(logits), 5))):
            found, changed = (decoded(decoder, logits, cuts, change) for change in (list, stripped))
            assert changed[0].text == found[0].text
            added = [beam.lm_score - beam.logit_score for beam in (changed[0], found[0])]
            assert added[0] == pytest.approx(added[1], abs=2e-3)
            assert changed[0].logit_score == pytest.approx(found[0].logit_score, abs=0.5)


def test_some_of_the_beams(golden, words_arpa):
    """A search goes on from those that it is given."""
    decoder, logits = build_ctcdecoder(golden.labels["letters"], words_arpa), golden.logits["letters_1"]
    beams, *caches = decoder.get_starting_state()
    beams = decoder.partial_decode_beams(logits[:60], *caches, beams, 0)
    assert len(beams) > 5 and len({(beam.text, beam.partial_word) for beam in beams}) == len(beams)
    for beam in beams[:5]:
        said = f"{beam.text} {beam.partial_word}".strip()
        for one in (beam, Beam.from_lm_beam(beam)):
            found = decoder.partial_decode_beams(logits[60:], *caches, [one], 60, is_end=True)
            assert all(other.text.startswith(said) for other in found)
            assert found[0].text_frames[: len(beam.text_frames)] == beam.text_frames
    again = decoder.partial_decode_beams(logits[60:], *caches, beams, 60, is_end=True)  # what was asked before changes nothing
    assert again == decoded(decoder, logits, [60])
    narrow = decoder.partial_decode_beams(logits[60:], *caches, beams, 60, beam_width=2, is_end=True)
    assert len(narrow) <= 2


def test_what_beams_say(golden):
    """The words that have ended, the beginning of the next, and their frames."""
    labels = golden.labels["letters"]
    decoder = build_ctcdecoder(labels)
    spelled = [*"stop", " ", " ", "", *"ra", "", "a"]
    logits = np.full((len(spelled), len(labels)), -20.0, dtype=np.float32)
    logits[range(len(spelled)), [labels.index(label) for label in spelled]] = 0.0
    seen, beams = [], decoder.get_starting_state()[0]
    for frame in range(len(spelled)):
        (beam, *_) = beams = decoder.partial_decode_beams(logits[frame : frame + 1], {}, {}, beams, 100 + frame)
        assert beam.next_word == "" and isinstance(beam, LMBeam)
        seen.append((beam.text, beam.partial_word, beam.last_char, beam.text_frames, beam.partial_frames))
    assert seen[3] == ("", "stop", "p", [], (100, 104))
    assert seen[4] == seen[5] == ("stop", "", " ", [(100, 104)], (-1, -1))
    assert seen[6] == ("stop", "", "", [(100, 104)], (-1, -1))
    assert seen[8] == ("stop", "ra", "a", [(100, 104)], (107, 109))
    assert seen[9][2] == "" and seen[10] == ("stop", "raa", "a", [(100, 104)], (107, 111))
    (empty,) = decoder.partial_decode_beams(logits[:0], {}, {}, decoder.get_starting_state()[0], 0)
    assert dataclasses.astuple(empty)[:7] == ("", "", "", None, [], (-1, -1), 0.0)


@pytest.mark.parametrize("kind", ["letters", "pieces"])
def test_a_word_that_is_ended_by_force(golden, words_arpa, kind):
    """What follows is another word, for the language model, too."""
    labels = golden.labels[kind]
    decoder = build_ctcdecoder(labels, words_arpa)
    spelled = [*"stop"] if kind == "letters" else ["▁st", "o", "p"]
    following = [*"radio"] if kind == "letters" else ["▁ra", "d", "i", "o"]
    logits = np.full((len(spelled) + len(following), len(labels)), -20.0, dtype=np.float32)
    logits[range(len(logits)), [labels.index(label) for label in spelled + following]] = 0.0
    beams, *caches = decoder.get_starting_state()
    (ended, *_) = beams = decoder.partial_decode_beams(logits[: len(spelled)], *caches, beams, 0, force_next_word=True)
    assert (ended.text, ended.partial_word, ended.last_char) == ("stop", "", None)
    for going_on in (beams, stripped(beams)):
        (best, *_) = decoder.partial_decode_beams(logits[len(spelled) :], *caches, going_on, len(spelled), is_end=True)
        assert best.text == "stop radio"
        assert best.text_frames == [(0, len(spelled)), (len(spelled), len(logits))]
        row = [decoder._tokenizer("stop radio")["input_ids"]]
        (model,) = decoder._searches.models
        lm = model.weighed(model.language_model.attrs)
        assert best.lm_score - best.logit_score == pytest.approx(float(lm.score_sequences(torch.tensor(row))), abs=1e-3)
    if kind == "pieces":  # a piece without a mark begins a word where one has been ended
        (best, *_) = decoder.partial_decode_beams(logits[-3:], *caches, beams, len(spelled), is_end=True)
        assert best.text == "stop dio"


def test_other_hotwords(golden):
    """Those before count no more, wherever they stand."""
    decoder, logits = build_ctcdecoder(golden.labels["letters"]), golden.logits["letters_0"]
    scorer = HotwordScorer.build_scorer(["radio", "cellar"], 3.0)
    beams, *caches = decoder.get_starting_state()
    (best, *_) = beams = decoder.partial_decode_beams(logits[:70], *caches, beams, 0, hotword_scorer=scorer)
    assert best.text.startswith("cellar radio") and best.lm_score - best.logit_score == pytest.approx(6.0, abs=1e-3)
    for other, earned in ((None, 0.0), (HotwordScorer.build_scorer(["radio"], 4.0), 4.0)):
        found = decoder.partial_decode_beams(logits[70:], *caches, beams, 70, hotword_scorer=other, is_end=True)
        assert found[0].lm_score - found[0].logit_score == pytest.approx(earned, abs=1e-3)


def test_history(golden):
    decoder, logits = build_ctcdecoder(golden.labels["letters"]), golden.logits["letters_1"]
    pruned = decoded(decoder, logits, [40], prune_history=True)
    ends = [beam.text.split()[-1] for beam in pruned]
    assert len(set(ends)) == len(ends) < len(decoded(decoder, logits, [40]))


def test_what_is_refused(golden):
    decoder, logits = build_ctcdecoder(golden.labels["letters"]), golden.logits["letters_0"]
    beams, *caches = decoder.get_starting_state()
    with pytest.raises(ValueError, match="beams is empty"):
        decoder.partial_decode_beams(logits, *caches, [], 0)
    with pytest.raises(InvalidLogitsError, match=r"\[T, 29\]"):
        decoder.partial_decode_beams(logits[:, 1:], *caches, beams, 0)
    broken = logits.copy()
    broken[3] = np.nan
    with pytest.raises(InvalidLogitsError, match="NaN or infinity at frame 13"):
        decoder.partial_decode_beams(broken, *caches, beams, 10)
    with pytest.raises(ValueError, match="hotword_weight should be a finite number"):
        decoder.partial_decode_beams(logits, *caches, beams, 0, hotword_scorer=HotwordScorer.build_scorer(["a"], math.nan))
