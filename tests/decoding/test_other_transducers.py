"""Transducers that aren't of Transformers, each in a few lines: a stateless prediction network, and a HAT."""

from __future__ import annotations

import math

import pytest
import torch
from letters import Letters
from transducer_searches import beam_of_one, beam_search, greedy_of_one

from hf_ngpulm import NGramLM, TransducerDecoder
from hf_ngpulm.fusion.rows import no_models
from hf_ngpulm.search.networks.model import TransducerModel
from hf_ngpulm.search.networks.search import SearchSettings

SIZE, CLASSES, BLANK = 8, 7, 6


class Stateless(TransducerModel):
    """The prediction sees the last two tokens only (Ghodsi et al., "RNN-transducer with stateless prediction network")."""

    def __init__(self):
        super().__init__(CLASSES, BLANK)
        torch.manual_seed(0)
        self.embeddings, self.head = torch.nn.Embedding(2 * CLASSES, SIZE), torch.nn.Linear(SIZE, CLASSES)

    def encode(self, input_features, attention_mask=None):
        return input_features, attention_mask.sum(-1)

    def start(self, batch_size, like):
        return self.predict(torch.full((batch_size,), BLANK), (torch.full((batch_size,), BLANK),))

    def predict(self, tokens, state):
        return self.embeddings(tokens) + self.embeddings(CLASSES + state[0]), (tokens,)

    def join(self, frames, predictions):
        return 3 * self.head(torch.tanh(frames + predictions))


class HybridAutoregressive(Stateless):
    """Blank or not is a decision of its own (Variani et al., ICASSP 2020): its logits are log-probabilities."""

    def labels(self, frames, predictions):
        return super().join(frames, predictions)[..., :BLANK].log_softmax(-1)

    def join(self, frames, predictions):
        blank = super().join(frames, predictions)[..., BLANK:] + 1.0
        labels = torch.nn.functional.logsigmoid(-blank) + self.labels(frames, predictions)
        return torch.cat([labels, torch.nn.functional.logsigmoid(blank)], -1)


@pytest.mark.parametrize("kind", [Stateless, HybridAutoregressive])
@torch.inference_mode()
def test_they_are_decoded_as_any(kind):
    model = kind()
    frames = 2 * torch.randn(3, 18, SIZE, generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor([18, 5, 12])
    models = no_models(3, frames.device)
    found = TransducerDecoder(model, Letters("abcdef")).decode(frames, lengths)
    beams = beam_search(model, frames, lengths, models.tensors, models.states, models.weights, 0, SearchSettings())
    for row, length in enumerate(lengths):
        arguments = (model, frames[row, :length], models.tensors, models.states[row], models.weights[row], 0)
        expected = [token for token in greedy_of_one(*arguments, 10).tokens if token != BLANK]
        assert found[row][0].token_ids == expected
        best = beam_of_one(*arguments, SearchSettings())[0]
        assert float(beams.scores[row, 0]) == pytest.approx(best.score, abs=1e-3)  # there are ties
    assert sum(len(best.token_ids) for (best,) in found) > 5
    lm = NGramLM.train([[0, 1, 2]] * 5, vocab_size=6, order=3)
    for strategy in ("greedy", "alsd", "aes"):
        fused = TransducerDecoder(model, Letters("abcdef"), lm, 2.0, strategy=strategy).decode(frames, lengths)
        assert [best.token_ids for best, *_ in fused] != [best.token_ids for (best,) in found]


@torch.inference_mode()
def test_the_internal_lm_of_a_hat_is_its_own():
    model = HybridAutoregressive()
    prediction, _ = model.predict(torch.tensor([3, 1]), (torch.tensor([2, 6]),))
    expected = model.labels(torch.zeros(1, SIZE), prediction)
    expected = expected.clamp(min=-math.log(BLANK))  # no token has less than its share of a uniform distribution
    torch.testing.assert_close(model.internal_lm(prediction)[:, :BLANK], expected, rtol=1e-5, atol=1e-5)
