"""Whisper's own ways: timestamps, prompts, long recordings in windows, and windows decoded again at other temperatures."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from speech_models import MEL, TEXT, whisper
from test_logits_processor import Oracle, Spy, check, favouring, spied, trained
from transformers import WhisperForConditionalGeneration

from hf_ngpulm import NGramLogitsProcessor
from hf_ngpulm.generation.whisper import WINDOW

SOT, PREVIOUS, TIMESTAMPS = 29, 36, range(40, 91)
WINDOWS = 3  # that the longest recording takes


class Judge(WhisperForConditionalGeneration):
    """Decodes those windows again of which `again` says so, and keeps the scores that it could judge by."""

    again = staticmethod(lambda passes, row: False)

    def generate_with_fallback(self, *args, **kwargs):
        self.passes = -1
        return super().generate_with_fallback(*args, **kwargs)

    def _need_fallback(self, seek_sequence, seek_outputs, index, *args, **kwargs):
        self.passes += index == 0
        self.__dict__.setdefault("judged", []).append((seek_sequence, seek_outputs[index]))
        super()._need_fallback(seek_sequence, seek_outputs, index, *args, **kwargs)
        return self.again(self.passes, index), False


@pytest.fixture(scope="module")
def lm():
    return trained(0)


@pytest.fixture(scope="module")
def oracle(lm, tmp_path_factory):
    return Oracle(lm, tmp_path_factory.mktemp("arpa") / "lm.arpa")


def plain(kind=WhisperForConditionalGeneration, **settings):
    """A model that says text, and timestamps if asked for; as often the same as it likes."""
    family = whisper(kind)
    config = family.model.generation_config
    config.suppress_tokens = [0, 1, 2, 3, *range(29, 40)]
    config.no_repeat_ngram_size = None
    for name, value in settings.items():
        setattr(config, name, value)
    return family


def long(family, lengths, **settings):
    """Recordings of so many frames."""
    longest = max(lengths)
    features_of_all = torch.randn(len(lengths), 8, longest, generator=torch.Generator().manual_seed(3))
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    family.inputs |= {"input_features": features_of_all * mask[:, None], "attention_mask": mask.long(), **settings}
    return family


def words(tokens):
    return set(tokens) & set(TEXT)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_timestamps(num_beams, lm, oracle):
    family = plain()
    processor = NGramLogitsProcessor(lm, 0.7, model=family.model)
    _, before, after = spied(family, [processor], return_timestamps=True, num_beams=num_beams)
    assert any(set(ids[3:]) & set(TIMESTAMPS) for ids in before[-1][0].tolist())
    check(before, after, family, oracle, 0.7, prompt_length=3)


def test_a_prompt_is_no_transcript_unless_asked_for(lm, oracle):
    family = plain(suppress_tokens=[0, 1, 2, 3, *range(29, 40), *range(45, 91)])
    text = [5, 6, 7, 8, 9]
    settings = {"prompt_ids": torch.tensor([PREVIOUS, *text]), "num_beams": 2}
    _, before, after = spied(family, [NGramLogitsProcessor(lm, 0.7, model=family.model)], **settings)
    assert before[0][0][0].tolist()[:7] == [PREVIOUS, *text, SOT]
    check(before, after, family, oracle, 0.7, prompt_length=10)
    _, before, after = spied(family, [NGramLogitsProcessor(lm, 0.7, model=family.model, prompt_context=True)], **settings)
    check(before, after, family, oracle, 0.7, prompt_length=1)


def test_long_recordings(lm, oracle):
    """Each window's transcript begins anew, after what was said before it."""
    family = long(plain(), [WINDOWS * MEL, MEL + 50], condition_on_prev_tokens=True, return_timestamps=True)
    processor = NGramLogitsProcessor(lm, 0.7, model=family.model)
    _, before, after = spied(family, [processor])
    prompts = set()
    for step, fused in zip(before, after):
        prompt = int((step[0][0] == SOT).nonzero()) + 3
        check([step], [fused], family, oracle, 0.7, prompt_length=prompt, least=0)
        prompts.add(prompt)
    assert len(prompts) > 1


@pytest.mark.parametrize("num_beams", [1, 2])
def test_every_row_of_a_long_batch_has_its_own_lm(num_beams):
    """Recordings of different length, of which some rows are decoded again: rows vanish in both ways."""
    family = long(plain(Judge), [MEL + 20, WINDOWS * MEL, 2 * MEL, WINDOWS * MEL], return_timestamps=True)
    family.model.again = lambda passes, row: (passes, row) in ((0, 1), (0, 2), (1, 1))
    tokens = [5, 6, 7, 8]
    processor = NGramLogitsProcessor([favouring(token) for token in tokens], torch.full((4,), 30.0), model=family.model)
    settings = {"temperature": (0.0, 0.4, 0.8), "num_beams": num_beams, "top_k": 0}
    result, before, _ = spied(family, [processor], **settings)
    assert {len(ids) for ids, _ in before} > {1, 2 * num_beams, 4 * num_beams} - {1 if num_beams > 1 else 0}
    assert [words(row) for row in result.tolist()] == [{token} for token in tokens]
    assert WINDOW.get() is None


def test_recordings_of_several_threads_with_one_processor():
    """Which have come to an end, and how many rows are left, is another matter in each."""
    tokens, lengths = [5, 6, 7, 8], [MEL + 20, WINDOWS * MEL, 2 * MEL, WINDOWS * MEL]
    family = long(plain(), lengths, return_timestamps=True)
    inputs = [family.inputs, {**long(plain(), lengths[::-1], return_timestamps=True).inputs}]
    processor = NGramLogitsProcessor([favouring(token) for token in tokens], torch.full((4,), 30.0), model=family.model)

    def generate(number):
        return family.model.generate(**inputs[number % 2], logits_processor=[processor])

    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(generate, range(8)):
            assert [words(row) for row in result.tolist()] == [{token} for token in tokens]


def test_several_sequences_of_a_long_recording():
    family = long(plain(), [2 * MEL, WINDOWS * MEL], return_timestamps=True, num_return_sequences=2, do_sample=True)
    processor = NGramLogitsProcessor([favouring(5), favouring(6)], torch.tensor([30.0, 30.0]), model=family.model)
    result, *_ = spied(family, [processor], temperature=0.1)
    assert [words(row) for row in result.tolist()] == [{5}, {5}, {6}, {6}]
    wrong = NGramLogitsProcessor([favouring(5)] * 3, model=family.model)
    with pytest.raises(ValueError, match="3 language models or weights, but 4 recordings"):
        family.model.generate(**family.inputs, logits_processor=[wrong])


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("unscored", ["kept", "none"])
def test_the_models_own_scores_decide_what_is_decoded_again(unscored, num_beams, lm):
    family = plain(Judge)
    processors = [
        NGramLogitsProcessor(each, weight, model=family.model, unscored=unscored)
        for each, weight in ((lm, torch.tensor([0.9, 0.5])), ([trained(1), trained(2)], 0.3))
    ]
    settings = {"logprob_threshold": -1.0, "return_timestamps": True, "num_beams": num_beams, "temperature": 0.0}
    _, before, _ = spied(family, processors, **settings)
    seen = {}  # the model's own scores by what had been said
    for input_ids, scores in before:
        for ids, own in zip(input_ids.tolist(), scores):
            seen.setdefault(tuple(ids), []).append(own)
    assert len(family.model.judged) >= 2
    for sequence, output in family.model.judged:
        for step, scores in enumerate(output["scores"][: len(sequence)]):
            said = tuple(output["sequences"].tolist()[: 3 + step])
            assert any(torch.allclose(own, scores, rtol=1e-3, atol=1e-3) for own in seen[said])


def test_the_decision_is_that_without_an_lm(lm):
    """With a weight of 0 in all that matters: the same mean log-probabilities, the same rows decoded again."""
    family = plain(Judge)
    settings = {"logprob_threshold": -1.0, "return_timestamps": True, "temperature": (0.0, 0.4)}
    spied(family, [NGramLogitsProcessor(lm, 0.0, model=family.model)], **settings)
    with_lm, family.model.judged = family.model.judged, []
    family.model.generate(**family.inputs, **settings)
    for (ours, output), (theirs, stock) in zip(with_lm, family.model.judged, strict=True):
        assert ours.tolist() == theirs.tolist()
        torch.testing.assert_close(output["scores"], stock["scores"])


def test_a_model_without_a_processor_is_left_as_it_was(lm):
    family = plain()
    expected = family.model.generate(**family.inputs)
    NGramLogitsProcessor(lm, 0.9, model=family.model)
    assert torch.equal(family.model.generate(**family.inputs), expected)
    NGramLogitsProcessor(lm, 0.9, model=family.model)  # a second time changes nothing
    assert torch.equal(family.model.generate(**family.inputs, logits_processor=[Spy()]), expected)
    for copied in (copy.deepcopy(family.model), pickle.loads(pickle.dumps(family.model))):
        assert torch.equal(copied.generate(**family.inputs), expected)
        NGramLogitsProcessor(lm, 0.9, model=copied)
        assert copied.generate_with_fallback.__self__ is copied


def test_a_model_within_another(lm):
    family = long(plain(Judge), [MEL + 20, WINDOWS * MEL], return_timestamps=True)
    wrapper = torch.nn.Sequential(family.model)
    wrapper.config = family.model.config
    wrapper.generation_config = family.model.generation_config
    NGramLogitsProcessor(lm, model=wrapper)
    assert family.model.generate_with_fallback.__func__.__module__ == "hf_ngpulm.generation.whisper"


def test_a_batch_of_fixed_size():
    """A static cache has rows left over once recordings have ended."""
    family = long(plain(), [MEL + 20, WINDOWS * MEL, 2 * MEL], return_timestamps=True)
    lms = [favouring(token) for token in (5, 6, 7)]
    processor = NGramLogitsProcessor(lms, torch.full((3,), 30.0), model=family.model)
    result, *_ = spied(family, [processor], cache_implementation="static")
    assert [words(row) for row in result.tolist()] == [{5}, {6}, {7}]


def test_a_prompt_of_any_length(lm):
    family = plain()
    processor = NGramLogitsProcessor(lm, 0.7, model=family.model, prompt_context=True)
    prompt = torch.tensor([PREVIOUS, *[5, 6] * 10])
    assert len(family.model.generate(**family.inputs, prompt_ids=prompt, logits_processor=[processor])) == 2
    with pytest.raises(ValueError, match="max_target_positions"):  # Whisper's own limit
        family.model.generate(**family.inputs, prompt_ids=torch.cat([prompt] * 2), logits_processor=[processor])


def test_without_a_known_beginning_there_is_no_context(lm):
    family = plain(prev_sot_token_id=None, suppress_tokens=None)
    with pytest.raises(ValueError, match="prev_sot_token_id isn't set"):
        NGramLogitsProcessor(lm, model=family.model, prompt_context=True)
