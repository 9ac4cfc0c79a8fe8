"""Training on a real GPU: the same counts as on the CPU, and the same model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from on_gpu import sized

from hf_ngpulm import NGramLM
from hf_ngpulm.ngrams.counting import NGramCounter
from hf_ngpulm.ngrams.kneser_ney import estimate

pytestmark = pytest.mark.gpu


def sentences(vocab_size: int, num_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens `[L]` of which some are much more frequent than others, some unknown; lengths `[S]`."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 40, num_tokens // 20)
    tokens = (vocab_size * rng.random(lengths.sum()) ** 4).astype(np.int64)
    tokens[rng.random(tokens.size) < 0.01] = -1
    return tokens, lengths


@pytest.mark.parametrize(("vocab_size", "order"), [(1, 3), (256, 6), (1024, 10), (151_936, 4)])
@pytest.mark.parametrize("memory", ["4G", "2M"])
def test_counts_and_estimates_equal_the_cpu(vocab_size, order, memory):
    tokens, lengths = sentences(vocab_size, sized(200_000, 2000))
    counts = {}
    for device in ("cpu", "cuda"):
        with NGramCounter(vocab_size, order, device, int(memory[:-1]) << (30 if memory[-1] == "G" else 20)) as counter:
            half = len(lengths) // 2
            counter.add(tokens[: lengths[:half].sum()], lengths[:half])
            counter.add(tokens[lengths[:half].sum() :], lengths[half:])
            counts[device] = counter.finish()
    for ours, expected in zip(counts["cuda"].orders, counts["cpu"].orders, strict=True):
        for have, want in zip(ours, expected, strict=True):
            assert torch.equal(have.cpu(), want)
    ours, expected = estimate(counts["cuda"], (0, 0, 1)), estimate(counts["cpu"], (0, 0, 1))
    assert ours.discounts == expected.discounts
    for have_order, want_order in zip(ours.table.orders, expected.table.orders, strict=True):
        assert torch.equal(have_order.tokens.cpu(), want_order.tokens)
        assert torch.equal(have_order.prefixes.cpu(), want_order.prefixes)
        torch.testing.assert_close(have_order.log_probs.cpu(), want_order.log_probs, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(have_order.backoffs.cpu(), want_order.backoffs, rtol=1e-5, atol=1e-5)


def test_a_model_trained_there_is_that_of_the_cpu():
    rng = np.random.default_rng(1)
    texts = [(50 * rng.random(rng.integers(1, 20)) ** 2).astype(int).tolist() for _ in range(sized(3000, 300))]
    settings = {"vocab_size": 50, "order": 5, "max_ngrams": 5000}
    ours, expected = NGramLM.train(texts, **settings, device="cuda"), NGramLM.train(texts, **settings, device="cpu")
    assert ours.tensors.arc_tokens.device.type == "cuda"
    assert ours.num_ngrams == expected.num_ngrams
    sample = torch.randint(0, 50, (100, 12))
    torch.testing.assert_close(ours.score_sequences(sample).cpu(), expected.score_sequences(sample), rtol=1e-4, atol=1e-3)
