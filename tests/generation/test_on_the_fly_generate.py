"""`generate` with a language model that is composed as searches come to its states: as with the whole one, to the bit."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from lazy_models import random_words, threads_that_change_often
from speech_models import FAMILIES, TEXT
from test_logits_processor import silenced

from hf_ngpulm import NGramLogitsProcessor
from hf_ngpulm.generation import seq2seq_generate

SEARCHES = {
    "greedy": {},
    "beams": {"num_beams": 4, "num_return_sequences": 2},
    "drawn": {"do_sample": True, "num_return_sequences": 2},
}
TOLD = {"return_dict_in_generate": True, "output_scores": True}


@pytest.fixture(scope="module")
def lms():
    return random_words(list(TEXT), order=3)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", ["whisper", "speech_to_text"])
def test_generate(lms, name, search):
    family = silenced(FAMILIES[name])
    settings = {**family.inputs, **SEARCHES[search], **TOLD}
    static, lazy = lms
    lazy.forget()
    found = []
    for lm in (static, lazy):
        torch.manual_seed(0)
        processor = NGramLogitsProcessor([lm, lm], torch.tensor([0.9, 0.5]), model=family.model)
        in_processor = family.model.generate(**settings, logits_processor=[processor])
        torch.manual_seed(0)
        in_strategy = family.model.generate(**settings, custom_generate=seq2seq_generate, lm=lm, lm_weight=0.9)
        found.append((in_processor, in_strategy))
    assert len(lazy.automaton.states.composed) > 1
    for ours, theirs in zip(found[-1], found[0], strict=True):
        assert torch.equal(ours.sequences, theirs.sequences)
        for mine, whole in zip(ours.scores, theirs.scores, strict=True):
            assert torch.equal(mine, whole)


@pytest.fixture
def changing_often(monkeypatch):
    with threads_that_change_often(monkeypatch):
        yield


def test_a_processor_that_several_threads_use(lms, changing_often):
    """Each with a text of its own, and batches of different sizes."""
    model = silenced(FAMILIES["speech_to_text"]).model
    static, lazy = lms

    def fused(processor, number):
        generator = torch.Generator().manual_seed(number)
        rows = 1 + number % 3
        input_ids = torch.randint(4, 28, (rows, 1 + number % 11), generator=generator)
        return processor(input_ids, torch.randn(rows, model.config.vocab_size, generator=generator))

    expected = [fused(NGramLogitsProcessor(static, 0.7, model=model), number) for number in range(100)]
    for lm in (static, lazy):
        lazy.forget()
        processor = NGramLogitsProcessor(lm, 0.7, model=model)
        with ThreadPoolExecutor(4) as pool:
            found = pool.map(lambda number: fused(processor, number), range(100))  # noqa: B023
            assert all(map(torch.equal, found, expected))


def test_a_processor_lets_the_model_start_anew(lms):
    family = silenced(FAMILIES["speech_to_text"])
    static, lazy = lms
    lazy.forget()
    processor = NGramLogitsProcessor(lazy, 0.7, model=family.model)
    lazy.automaton.most_bytes = 0
    expected = family.model.generate(**family.inputs, logits_processor=[NGramLogitsProcessor(static, 0.7, model=family.model)])
    for _ in range(2):
        before = lazy.automaton.states
        assert torch.equal(family.model.generate(**family.inputs, logits_processor=[processor]), expected)
        assert lazy.automaton.states is not before
