"""Interpolation: the mixture's probabilities are the models', mixed; contexts sum to one; weights fit a text."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples
from test_pruning import VOCAB, all_scores, check_sums, sentences, trained

from hf_ngpulm import NGramLM, TokenizerMismatchError


@settings(deadline=None, max_examples=examples(40))
@given(st.data())
def test_n_grams_have_the_mixed_probability(data):
    models = [trained(data.draw(sentences), data.draw(st.integers(1, 4))) for _ in range(data.draw(st.integers(2, 3)))]
    weights = torch.tensor([data.draw(st.floats(0.1, 1.0)) for _ in models], dtype=torch.float64)
    weights = (weights / weights.sum()).tolist()
    mixture = NGramLM.interpolate(models, weights)
    assert mixture.order == max(model.order for model in models)
    check_sums(mixture)
    table = mixture.to_table()
    for n in range(1, table.order + 1):
        for gram, log_prob in zip(table.rows(n).tolist(), table.orders[n - 1].log_probs.tolist()):
            if gram[-1] in (VOCAB, VOCAB + 2):
                continue
            from_start = gram[0] == VOCAB
            tokens = gram[int(from_start) : -1]
            wanted = 0.0
            for model, weight in zip(models, weights):
                state = model.states_after(torch.tensor([tokens or [0]]), torch.tensor([len(tokens)]), bos=from_start)
                scores = model.final_scores(state) if gram[-1] == VOCAB + 1 else model.scores(state)[:, gram[-1]]
                wanted += weight * float(scores.double().exp())
            assert float(torch.tensor(log_prob).exp()) == pytest.approx(wanted, rel=1e-4)


def test_what_no_model_has_is_backed_off_to():
    """Static interpolation, as the docstring says: there the mixture isn't the sum of what the models give by backing off."""
    models, weights = [trained([[0, 1], [0, 1], [2], [3]], 2), trained([[3, 2], [1], [1], [3]], 2)], [0.3, 0.7]
    mixture = NGramLM.interpolate(models, weights)
    assert (0, 3) not in [tuple(row) for row in mixture.to_table().rows(2).tolist()]
    context = [model.states_after(torch.tensor([[0]]), bos=False) for model in (*models, mixture)]
    first, second, mixed = (float(model.scores(state)[0, 3]) for model, state in zip((*models, mixture), context))
    state = int(context[2])
    backoff = float(mixture.tensors.backoff_weights[state]) + float(
        mixture.scores(mixture.tensors.backoff_states[state : state + 1])[0, 3]
    )
    assert mixed == pytest.approx(backoff)
    exact = torch.tensor([first, second]).exp() @ torch.tensor(weights)
    assert abs(mixed - float(exact.log())) > 0.01
    total = float(mixture.scores(context[2])[0].exp().sum() + mixture.final_scores(context[2]).exp())
    assert total == pytest.approx(1.0, abs=0.1)  # what <unk> has stays with it


def test_tokens_that_only_one_model_knows():
    first, second = trained([[0, 1]] * 3, 2), trained([[2, 3], [3]], 3)
    mixture = NGramLM.interpolate([first, second], [0.25, 0.75])
    check_sums(mixture)
    root = [model.scores(torch.tensor([0]))[0].exp() for model in (first, second, mixture)]
    torch.testing.assert_close(root[2], 0.25 * root[0] + 0.75 * root[1])
    assert mixture.unk_tokens.tolist() == [4]


def test_models_that_know_everything():
    everything = [[0, 1, 2, 3, 4]] * 2
    mixture = NGramLM.interpolate([trained(everything, 2), trained([[0, 1], [1]], 2)], [0.5, 0.5])
    assert mixture.unk_tokens.numel() == 0
    totals = all_scores(mixture)[0].exp().sum()
    assert float(totals) == pytest.approx(1.0, abs=0.1)  # what <unk> has stays with it


def test_unknown_tokens_inside_n_grams():
    mixture = NGramLM.interpolate([trained([[0, -1, 1], [0]], 3), trained([[4, 4], [1, 2]], 2)], [0.5, 0.5])
    check_sums(mixture)


def test_weights_are_fitted():
    first, second = trained([[0, 1, 0, 1]] * 5 + [[2]], 3), trained([[2, 3, 2, 3]] * 5 + [[0]], 3)
    text = [[0, 1, 0, 1]] * 9 + [[2, 3]]
    fitted = NGramLM.interpolate([first, second], texts=text)
    best = fitted.perplexity(text).per_token
    for weight in (0.05, 0.3, 0.5, 0.7, 0.99):
        mixture = NGramLM.interpolate([first, second], [weight, 1 - weight])
        assert best <= mixture.perplexity(text).per_token * 1.02
    assert best < first.perplexity(text).per_token


def test_models_of_other_tokens():
    with pytest.raises(ValueError, match="over 5 and 6 token ids"):
        NGramLM.interpolate([trained([[0]], 2), NGramLM.train([[0]], vocab_size=6, order=2)], [0.5, 0.5])
    models = [trained([[0]], 2) for _ in range(2)]
    for i, model in enumerate(models):
        model.config = dataclasses.replace(model.config, tokenizer_fingerprint=str(i) * 64, tokenizer_id=f"org/{i}")
    with pytest.raises(TokenizerMismatchError, match="different tokenizers: 'org/0' and 'org/1'"):
        NGramLM.interpolate(models, [0.5, 0.5])


@pytest.mark.parametrize("weights", [[0.5], [0.5, 0.6], [1.0, 0.0], [1.5, -0.5], [float("nan"), 0.5]])
def test_bad_weights(weights):
    with pytest.raises(ValueError, match="weights should be one for each of the 2 models"):
        NGramLM.interpolate([trained([[0]], 2)] * 2, weights)


def test_neither_weights_nor_text():
    with pytest.raises(ValueError, match="needs weights, or texts"):
        NGramLM.interpolate([trained([[0]], 2)] * 2)
    with pytest.raises(ValueError, match="no text to fit"):
        NGramLM.interpolate([trained([[0]], 2)] * 2, texts=[])
    with pytest.raises(ValueError, match="two models or more, got 1"):
        NGramLM.interpolate([trained([[0]], 2)], [1.0])
