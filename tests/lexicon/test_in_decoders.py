"""Words in searches: what a decoder finds with a composed model is what asking the words finds."""

import itertools
import math

import numpy as np
import pytest
import torch
from arpa_models import BruteForce
from toys import Toy
from two_level import Spelled, TwoLevel

from hf_ngpulm import CTCDecoder, LogLinear, NGramLM, StreamingDecoder, TransducerDecoder
from hf_ngpulm.formats.arpa import write_arpa
from hf_ngpulm.language_model.training import train

WEIGHT, BETA = 0.7, 1.0


@pytest.fixture(scope="module")
def words(letters, texts, tmp_path_factory):
    """A model, and its words asked one by one."""
    training = train(texts, letters, unit="word", order=2)
    lm = NGramLM(training.parts)
    path = tmp_path_factory.mktemp("words") / "words.arpa"
    write_arpa(training.of_words[0], path, "piece", training.of_words[1])
    spellings = [(word, tuple(letters(word)["input_ids"])) for word in training.of_words[1]]
    spelled = Spelled([(str(n), tokens) for n, (_, tokens) in enumerate(spellings)], lm.vocab_size, delimiter=4)
    reference = TwoLevel(path.read_text(), Spelled([], 1), -10.0, math.log(lm.vocab_size))
    reference.spelled, reference.lm = spelled, BruteForce(path.read_text())
    reference.words_of = {tokens: [word] for word, tokens in spellings}
    return lm, reference


@pytest.fixture(scope="module")
def tokens(letters, texts):
    return NGramLM.train(texts, tokenizer=letters, order=3)


def frames(seed, count, classes=12):
    """Outputs that allow blank, `|`, `a`, `b`, `c` and `d` only."""
    logits = torch.full((1, count, classes), -1e4)
    logits[:, :, [0, 4, 5, 6, 7, 8]] = 1.5 * torch.randn(1, count, 6, generator=torch.Generator().manual_seed(seed))
    return logits


def every_transcript(logits):
    """Log-probability of all that CTC outputs can stand for."""
    log_probs = logits[0].log_softmax(-1)
    found = {}
    for path in itertools.product([0, 4, 5, 6, 7, 8], repeat=len(log_probs)):
        score = math.fsum(float(log_probs[t, label]) for t, label in enumerate(path))
        labels = tuple(label for label, _ in itertools.groupby(path) if label)
        found[labels] = float(np.logaddexp(found.get(labels, -math.inf), score))
    return found


@pytest.mark.parametrize("seed", range(3))
def test_the_best_transcripts_are_those_of_two_levels(letters, words, seed):
    lm, reference = words
    logits = frames(seed, 5)
    expected = {
        labels: score + WEIGHT * reference.totals(labels)[1] + BETA * len(labels)
        for labels, score in every_transcript(logits).items()
    }
    decoder = CTCDecoder(
        letters, lm, WEIGHT, num_beams=1024, beta=BETA, num_return_sequences=20, beam_threshold=1e9, engine="cpu"
    )
    (found,) = decoder(logits)
    best = sorted(expected.items(), key=lambda item: -item[1])[:20]
    assert [h.score for h in found] == pytest.approx([score for _, score in best], abs=1e-3)
    assert tuple(found[0].token_ids) == best[0][0]


def weighed(h, parts):
    """The weighted scores of some LMs for a hypothesis, `</s>` included."""
    row = torch.tensor([h.token_ids], dtype=torch.int64).view(1, -1)
    return sum(weight * float(lm.score_sequences(row)) for lm, weight in parts)


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_words_and_tokens_together_in_ctc(letters, words, tokens, engine):
    lm = words[0]
    together = LogLinear([lm, tokens], [0.6, 0.3])
    settings = {"num_beams": 8, "beta": BETA, "num_return_sequences": 4, "beam_threshold": 1e9, "engine": engine}
    logits = torch.cat([frames(seed, 12) for seed in range(4)])
    found = CTCDecoder(letters, together, WEIGHT, **settings)(logits)
    for n_best in found:
        for h in n_best:
            fused = WEIGHT * weighed(h, [(lm, 0.6), (tokens, 0.3)])
            assert h.score == pytest.approx(h.acoustic_score + fused + BETA * len(h.token_ids), abs=1e-2)
    weights = torch.tensor([0.6, 0.3, 0.9, 0.0])
    each = [CTCDecoder(letters, together, float(w), **settings)(logits[i : i + 1])[0] for i, w in enumerate(weights)]
    assert_same(CTCDecoder(letters, together, weights, **settings)(logits), each)
    alone = CTCDecoder(letters, [together, lm, None, LogLinear([tokens], [0.5])], WEIGHT, **settings)(logits)
    half = CTCDecoder(letters, tokens, 0.5 * WEIGHT, **settings)(logits[3:])
    assert_same([alone[0], alone[1], alone[3]], [found[0], *CTCDecoder(letters, lm, WEIGHT, **settings)(logits[1:2]), *half])


def assert_same(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert [h.token_ids for h in ours] == [h.token_ids for h in theirs]
        assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=1e-4)


def test_the_same_model_twice_is_the_model(letters, words):
    lm, logits = words[0], torch.cat([frames(seed, 12) for seed in range(4)])
    for settings in ({}, {"num_beams": 8}):
        once = CTCDecoder(letters, lm, 0.8, **settings)(logits)
        twice = CTCDecoder(letters, LogLinear([lm, lm], [0.5, 0.3]), 1.0, **settings)(logits)
        assert [h[0].token_ids for h in twice] == [h[0].token_ids for h in once]
        assert [h[0].score for h in twice] == pytest.approx([h[0].score for h in once], abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["reference", "cpu"])
@pytest.mark.parametrize("strategy", ["greedy", "alsd"])
def test_words_and_tokens_together_in_transducers(letters, words, tokens, strategy, engine):
    lm = words[0]
    model = Toy(len(letters), 0, seed=3, blank_bias=2.0)
    inputs, mask = torch.randn(3, 14, 6, generator=torch.Generator().manual_seed(0)), torch.ones(3, 14, dtype=torch.int64)
    settings = {"strategy": strategy, "engine": engine, **({"num_beams": 4} if strategy == "alsd" else {})}
    once = TransducerDecoder(model, letters, lm=lm, lm_weight=0.8, **settings)(inputs, mask)
    twice = TransducerDecoder(model, letters, lm=LogLinear([lm, lm], [0.5, 0.3]), lm_weight=1.0, **settings)(inputs, mask)
    assert [h[0].token_ids for h in twice] == [h[0].token_ids for h in once]
    both = LogLinear([lm, tokens], [0.6, 0.4])
    together = TransducerDecoder(model, letters, lm=both, lm_weight=1.0, **settings)(inputs, mask)
    words_only = LogLinear([lm, tokens], [1.0, 0.0])
    alone = TransducerDecoder(model, letters, lm=words_only, lm_weight=0.8, **settings)(inputs, mask)
    assert [h[0].token_ids for h in alone] == [h[0].token_ids for h in once]
    for (h,) in together:
        row = torch.tensor([h.token_ids], dtype=torch.int64).view(1, -1)
        assert h.lm_score == pytest.approx(sum(float(m.score_sequences(row, eos=False)) for m in (lm, tokens)), abs=1e-3)


def test_words_and_tokens_together_in_streams(letters, words, tokens):
    together = LogLinear([words[0], tokens], [0.6, 0.3])
    decoder = CTCDecoder(letters, together, WEIGHT, num_beams=8, beta=BETA)
    logits = frames(5, 24)
    stream = StreamingDecoder(decoder, max_streams=2)
    sid = stream.open()
    for first in range(0, 24, 7):
        stream.step({sid: logits[0, first : first + 7]})
    assert stream.close(sid)[0].text == decoder(logits)[0][0].text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(([], []), "got 0 and 0"), ((["lm"], [1.0]), "takes NGramLMs"), (("ab", [1.0]), "got 2 and 1")],
)
def test_what_log_linear_refuses(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        LogLinear(*arguments)
