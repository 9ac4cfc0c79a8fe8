"""The strategy under Whisper's own ways: what it decides by and which language model it takes in each window."""

from __future__ import annotations

import pytest
import torch
from speech_models import MEL, TEXT
from test_logits_processor import favouring, trained
from test_whisper import PREVIOUS, WINDOWS, Judge, long, plain, words

from hf_ngpulm import NGramLogitsProcessor
from hf_ngpulm.generation import seq2seq_generate


@pytest.fixture(scope="module")
def lm():
    return trained(0)


def both(family, lm, weight=0.7, **settings):
    """What `generate` gives with a processor, and with the strategy."""
    found = []
    for way in (
        {"logits_processor": [NGramLogitsProcessor(lm, weight, model=family.model)]},
        {"custom_generate": seq2seq_generate, "lm": lm, "lm_weight": weight},
    ):
        torch.manual_seed(0)
        found.append(family.model.generate(**{**family.inputs, **settings}, **way))
    return found


@pytest.mark.parametrize("num_beams", [1, 4])
def test_timestamps_and_prompts(num_beams, lm):
    family = plain()
    prompt = torch.tensor([PREVIOUS, 5, 6, 7, 8, 9])
    for settings in ({"return_timestamps": True}, {"prompt_ids": prompt}, {"prompt_ids": prompt, "return_timestamps": True}):
        fused, ours = both(family, lm, num_beams=num_beams, **settings)
        assert torch.equal(fused, ours)


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("context", [False, True])
def test_a_prompt_may_be_context(num_beams, context, lm):
    family = plain()
    settings = {"prompt_ids": torch.tensor([PREVIOUS, *[5, 6] * 4]), "num_beams": num_beams}
    processor = NGramLogitsProcessor(lm, 0.9, model=family.model, prompt_context=context)
    fused = family.model.generate(**family.inputs, **settings, logits_processor=[processor])
    ours = family.model.generate(
        **family.inputs, **settings, custom_generate=seq2seq_generate, lm=lm, lm_weight=0.9, prompt_context=context
    )
    assert torch.equal(fused, ours)


@pytest.mark.parametrize("num_beams", [1, 2])
def test_long_recordings(num_beams, lm):
    family = long(plain(), [WINDOWS * MEL, MEL + 50], condition_on_prev_tokens=True, return_timestamps=True)
    fused, ours = both(family, lm, num_beams=num_beams)
    assert torch.equal(fused, ours) and fused.shape[1] > 20


@pytest.mark.parametrize("weight", [30.0, torch.full((4,), 30.0)], ids=["number", "tensor"])
@pytest.mark.parametrize("num_beams", [1, 2])
def test_every_row_of_a_long_batch_has_its_own_lm(num_beams, weight):
    """Also in the very first window, of which some rows are decoded again: as many as there could be of other recordings."""
    family = long(plain(Judge), [MEL + 20, WINDOWS * MEL, 2 * MEL, WINDOWS * MEL], return_timestamps=True)
    asked = []
    family.model.again = lambda passes, row: asked.append((passes, row)) or (passes, row) in ((0, 1), (0, 2), (1, 1))
    tokens = [5, 6, 7, 8]
    result = family.model.generate(
        **family.inputs, temperature=(0.0, 0.4, 0.8), num_beams=num_beams, top_k=0, custom_generate=seq2seq_generate,
        lm=[favouring(token) for token in tokens], lm_weight=weight,
    )  # fmt: skip
    assert [words(row) for row in result.tolist()] == [{token} for token in tokens]
    assert asked[:7] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (2, 0)]


def test_several_sequences_of_a_long_recording():
    family = long(plain(), [2 * MEL, WINDOWS * MEL], return_timestamps=True, num_return_sequences=2, do_sample=True)
    settings = {**family.inputs, "custom_generate": seq2seq_generate, "temperature": 0.1}
    result = family.model.generate(**settings, lm=[favouring(5), favouring(6)], lm_weight=30.0)
    assert [words(row) for row in result.tolist()] == [{5}, {5}, {6}, {6}]
    with pytest.raises(ValueError, match="3 language models or weights, but 4 recordings"):
        family.model.generate(**settings, lm=[favouring(5)] * 3)


@pytest.mark.parametrize("num_beams", [1, 2])
def test_a_batch_of_fixed_size(num_beams):
    """A static cache has rows left over once recordings have ended."""
    family = long(plain(), [MEL + 20, WINDOWS * MEL, 2 * MEL], return_timestamps=True)
    lms = [favouring(token) for token in (5, 6, 7)]
    result = family.model.generate(
        **family.inputs, cache_implementation="static", num_beams=num_beams, custom_generate=seq2seq_generate, lm=lms,
        lm_weight=30.0,
    )  # fmt: skip
    assert [words(row) for row in result.tolist()] == [{5}, {6}, {7}]


@pytest.mark.parametrize("temperature", [0.0, 0.6])
@pytest.mark.parametrize("unscored", ["kept", "none"])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_the_models_own_scores_decide_what_is_decoded_again(num_beams, unscored, temperature, lm):
    """The same mean log-probabilities as with a processor, which takes away what was added."""
    judged = []
    for way in ("processor", "strategy"):
        family = plain(Judge)
        lms, weight = [lm, trained(1)], torch.tensor([0.9, 0.5])
        if way == "processor":
            given = {"logits_processor": [NGramLogitsProcessor(lms, weight, model=family.model, unscored=unscored)]}
        else:
            given = {"custom_generate": seq2seq_generate, "lm": lms, "lm_weight": weight, "unscored": unscored}
        torch.manual_seed(0)
        family.model.generate(
            **family.inputs, **given, logprob_threshold=-1.0, return_timestamps=True, num_beams=num_beams,
            temperature=temperature,
        )  # fmt: skip
        judged.append([
            (sequence.tolist(), float(family.model._retrieve_avg_logprobs(output["scores"], sequence, temperature)))
            for sequence, output in family.model.judged
        ])  # fmt: skip
    assert len(judged[0]) == len(judged[1]) >= 2
    for (theirs, expected), (ours, found) in zip(*judged, strict=True):
        assert theirs == ours
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_a_threshold_without_a_language_model_and_with_both_kinds(lm):
    family = long(plain(), [MEL + 20, WINDOWS * MEL], return_timestamps=True)
    settings = {**family.inputs, "logprob_threshold": -1.0, "temperature": (0.0, 0.4)}
    torch.manual_seed(0)
    expected = family.model.generate(**settings)
    torch.manual_seed(0)
    assert torch.equal(family.model.generate(**settings, custom_generate=seq2seq_generate), expected)
    processor = NGramLogitsProcessor(lm, model=family.model)
    with pytest.raises(ValueError, match="pass lm= or an NGramLogitsProcessor, not both"):
        family.model.generate(**settings, custom_generate=seq2seq_generate, lm=lm, logits_processor=[processor])


def test_silence_is_still_detected(lm):
    """Whisper's detector reads scores before all else, and is given the same tensors."""
    family = long(plain(), [MEL + 20, WINDOWS * MEL], return_timestamps=True)
    settings = {"logprob_threshold": 0.0, "no_speech_threshold": 1e-9, "temperature": 0.0}
    fused, ours = both(family, lm, **settings)
    assert torch.equal(fused, ours)
    assert not set(fused.flatten().tolist()) & set(TEXT)
