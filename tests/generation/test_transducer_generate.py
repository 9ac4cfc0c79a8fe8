"""`model.generate(custom_generate=...)` for transducers: what `generate` returns, with a language model and a beam."""

from __future__ import annotations

import importlib.metadata
import shutil

import pytest
import torch
from letters import Letters
from tiny_transducers import BLANK, FAMILIES, PROMPTS, VOCAB_SIZE, generated, tiny_model
from transformers import LogitsProcessor

from hf_ngpulm import NGramLM, TokenizerMismatchError
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.decoding.transducer import TransducerDecoder
from hf_ngpulm.generation import transducer_generate
from hf_ngpulm.generation.lm_argument import _language_models, loaded

LETTERS = Letters("abcdefghij")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The repo as it would lie on the Hub."""
    copied = tmp_path_factory.mktemp("repo") / "custom_generate"
    shutil.copytree(bundled("examples/custom_generate"), copied)
    try:
        importlib.metadata.distribution("hf_ngpulm")
    except importlib.metadata.PackageNotFoundError:  # the source tree, which Transformers doesn't take for an installed package
        (copied / "custom_generate/requirements.txt").unlink()
    return str(copied)


@pytest.fixture(scope="module")
def lm():
    generator = torch.Generator().manual_seed(0)
    return NGramLM.train(torch.randint(0, 10, (80, 6), generator=generator).tolist(), vocab_size=10, order=3)


def inputs(extra, length=200, rows=1, seed=0):
    features = 3 * torch.randn(rows, length, 8, generator=torch.Generator().manual_seed(seed))
    prompts = {"prompt_ids": torch.tensor([2] * rows)} if extra == PROMPTS else {}
    return {"input_features": features, "attention_mask": torch.ones(rows, length, dtype=torch.int64), **prompts}


def tokens_and_frames(output, row=0):
    found, frame = [], 0
    for token, duration in zip(output.sequences[row].tolist()[1:], output.durations[row].tolist()[1:]):
        if token != BLANK:
            found.append((token, frame))
        frame += duration
    return found


@pytest.mark.parametrize(("name", "extra"), FAMILIES)
def test_without_lm_it_is_generate(name, extra):
    model = tiny_model(name, extra, layers=1, seed=0)
    for seed in range(2):
        given = inputs(extra, seed=seed)
        stock = model.generate(**given, max_new_tokens=2000)
        ours = model.generate(**given, custom_generate=transducer_generate)
        assert type(ours) is type(stock)
        assert torch.equal(ours.sequences, stock.sequences) and torch.equal(ours.durations, stock.durations)
        assert ours.sequences.unique().numel() > 2


@pytest.mark.parametrize(("name", "extra"), FAMILIES)
def test_with_lm_and_beam_it_is_the_decoder(name, extra, lm, folder):
    model = tiny_model(name, extra, layers=2, seed=1)
    given = inputs(extra, rows=3)
    settings = {"lm_weight": 1.5, "num_beams": 4, "num_return_sequences": 2, "ilm_weight": 0.2}
    decoder = TransducerDecoder(model, LETTERS, lm, confidence=None, **settings)
    expected = [n_best for row in decoder(**given) for n_best in row]
    for strategy in ({"custom_generate": transducer_generate}, {"custom_generate": folder, "trust_remote_code": True}):
        output = model.generate(**given, **strategy, lm=lm, **settings)
        assert output.sequences.shape == output.durations.shape and len(output.sequences) == 6
        for row, hypothesis in enumerate(expected):
            found, tokens = tokens_and_frames(output, row), list(zip(hypothesis.token_ids, hypothesis.token_frames))
            assert found[: len(tokens)] == tokens
            assert {token for token, _ in found[len(tokens) :]} <= {model.config.pad_token_id}
    assert not hasattr(model, "_step_durations")


@pytest.mark.parametrize(("name", "extra"), FAMILIES[:1])
def test_language_models_by_name_are_loaded_once(name, extra, lm, tmp_path):
    model = tiny_model(name, extra, layers=1, seed=0)
    lm.save_pretrained(tmp_path)
    given = inputs(extra)
    expected = model.generate(**given, custom_generate=transducer_generate, lm=lm, lm_weight=2.0).sequences
    before = set(_language_models)
    for _ in range(2):
        found = model.generate(**given, custom_generate=transducer_generate, lm=str(tmp_path), lm_weight=2.0).sequences
        assert torch.equal(found, expected)
    assert len(set(_language_models) - before) == 1
    assert not torch.equal(expected, model.generate(**given, custom_generate=transducer_generate).sequences)


def test_a_file_is_read_anew_for_another_tokenizer(tmp_path):
    """Its units are pieces: which ids they are only a tokenizer can tell."""
    (tmp_path / "lm.arpa").write_text("\\data\\\nngram 1=4\n\n\\1-grams:\n-1\t<s>\n-1\t</s>\n-0.2\tab\n-0.9\tba\n\n\\end\\\n")
    scores = []
    for pieces in (["ab", "ba"], ["ba", "ab"]):
        lm = loaded(str(tmp_path / "lm.arpa"), Letters(pieces), torch.device("cpu"))
        scores.append(lm.scores(lm.initial_states(1))[0, :2])
    torch.testing.assert_close(scores[0], scores[1].flip(0))
    assert scores[0][0] > scores[0][1]


@pytest.mark.parametrize(("name", "extra"), FAMILIES[:1])
def test_the_generation_config_may_name_an_lm(name, extra, lm, tmp_path):
    model = tiny_model(name, extra, layers=1, seed=0)
    lm.save_pretrained(tmp_path)
    given = {**inputs(extra), "custom_generate": transducer_generate}
    expected = model.generate(**given, lm=lm, lm_weight=2.0).sequences
    half, plain = model.generate(**given, lm=lm, lm_weight=0.5).sequences, model.generate(**given).sequences
    model.generation_config.ngram_lm, model.generation_config.ngram_lm_weight = str(tmp_path), 2.0
    assert torch.equal(model.generate(**given).sequences, expected)
    assert torch.equal(model.generate(**given, lm_weight=0.5).sequences, half)
    assert torch.equal(model.generate(**given, lm=False).sequences, plain)
    model.generation_config.ngram_lm_weight = "heavy"
    with pytest.raises(ValueError, match="ngram_lm_weight should be a number, got 'heavy'"):
        model.generate(**given)


@pytest.mark.parametrize(("name", "extra"), FAMILIES[:1])
def test_no_frames_and_few_steps(name, extra, lm):
    model = tiny_model(name, extra, layers=1, seed=0)
    given = inputs(extra)
    whole = model.generate(**given, custom_generate=transducer_generate, lm=lm)
    first = model.generate(**given, custom_generate=transducer_generate, lm=lm, max_new_tokens=5)
    assert torch.equal(first.sequences, whole.sequences[:, :6]) and torch.equal(first.durations, whole.durations[:, :6])
    assert generated(model, given["input_features"]) == tokens_and_frames(
        model.generate(**given, custom_generate=transducer_generate)
    )


class Nothing(LogitsProcessor):
    def __call__(self, input_ids, scores):
        return scores


@pytest.mark.parametrize(("name", "extra"), FAMILIES[:1])
def test_what_means_nothing_to_a_search_is_refused(name, extra, lm, folder):
    model, given = tiny_model(name, extra, layers=1, seed=0), inputs(extra)
    large = NGramLM.train([[0, 1]], vocab_size=VOCAB_SIZE + 1, order=1)
    for settings, error, message in (
        ({"do_sample": True}, ValueError, "only supports"),
        ({"logits_processor": [Nothing()]}, ValueError, "Nothing can't be used"),
        ({"suppress_tokens": [3]}, ValueError, "SuppressTokensLogitsProcessor can't be used"),
        ({"lm": large}, ValueError, "has 12 tokens"),
        ({"lm": large, "processor": LETTERS}, TokenizerMismatchError, "12"),
        ({"strategy": "beam"}, ValueError, "strategy should be one of"),
        ({"num_beams": 3, "num_return_sequences": 4}, ValueError, "num_return_sequences should be"),
    ):
        with pytest.raises(error, match=message):
            model.generate(**given, custom_generate=transducer_generate, **settings)
    with pytest.raises(ValueError, match="trust_remote_code"):
        model.generate(**given, custom_generate=folder, trust_remote_code=False)
