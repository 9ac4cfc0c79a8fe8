"""Decode rows again without a language model if the model was made for other speech.

An LM that was made for other speech pulls every transcript towards its own text. After the search, two measures detect such
rows, both in natural log per token of the best hypothesis:

    evidence = log-probability of the LM + entropy of the LM's unigrams
    cost     = acoustic score of the best hypothesis without LMs - acoustic score of the best hypothesis

The evidence is 0 if the LM predicts the text no better than the LM's unigrams predict their own text. For speech that suits the
LM, the evidence is 1.5 to 2. A low evidence detects an unsuitable LM over tokens. A high cost detects an unsuitable word-level
LM, which may turn any speech into words that the LM predicts well. Such rows are decoded again without the LM. Acoustic scores
are at most 0, so the cost can be high only in rows with a low acoustic score. Only these rows are decoded without LMs to
compute the cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..fusion.fusion import Fusion
from ..language_model.log_linear import LogLinear, parts_of
from ..language_model.model import NGramLM

# The least evidence, in nats per token, if `lm_guard` is "auto": for models over tokens, and for word-level models. The second
# value is lower because every unknown word is costly. Chosen on real speech (benchmarks/real_speech/families.py --ways guard).
LEAST, LEAST_OF_WORDS = 0.5, -0.5
# The highest cost if `lm_guard` is "auto", chosen likewise. A word-level LM costs more because it can't write unknown words.
MOST, MOST_OF_WORDS = 1.0, 2.0
AUTO, OFF = "auto", "off"
ENOUGH_TOKENS = 8  # of a stream, before an utterance does without a language model


Changed = dict[int, "NGramLM | LogLinear | None"]  # the models that remain in some rows


class Judged(NamedTuple):
    """A row's best hypothesis: tokens, number of words, the LMs' unweighted log-probability, and the acoustic score."""

    tokens: Sequence[int]
    words: int
    lm_score: float
    acoustic_score: float


NOTHING = Judged((), 0, 0.0, 0.0)  # no hypothesis, which no model is left out for


def least_evidence(lm_guard: float | str, lm: NGramLM) -> float:
    """Return the least evidence with which a language model is kept. `lm_guard`: the decoder's option, "auto" or a number."""
    if isinstance(lm_guard, str):
        return LEAST if lm.config.words is None else LEAST_OF_WORDS
    return lm_guard


def highest_cost(lm_guard: float | str, models: Sequence[NGramLM], tokens: float) -> float:
    """Return the highest acoustic cost, natural log, that language models may cause in a hypothesis of `tokens` tokens."""
    if not isinstance(lm_guard, str) or not models:
        return math.inf
    return max(MOST if lm.config.words is None else MOST_OF_WORDS for lm in models) * max(tokens, 1)


def evidence(lm: NGramLM, log_prob: float, tokens: float, words: float) -> float:
    """Return how much better an LM predicts a transcript than the LM's unigrams predict their own text, in nats per token.

    Args:
        log_prob: the LM's log-probability of the transcript, natural log.
        tokens, words: number of tokens and of words in the transcript.

    Returns:
        The evidence. It is infinity if there is no token (no word for a word-level LM). It is also infinity for a word-level LM
        that was saved without the entropy of its unigrams.
    """
    entropy, summary = lm.unigram_entropy, lm.config.words
    units = tokens if summary is None else words
    if not units or entropy is None:
        return math.inf
    bonus = 0.0 if summary is None else summary.word_bonus * words
    return (log_prob - bonus + entropy * units) / tokens


def kept_models(fusion: Fusion, judged: Sequence[Judged], lm_guard: float | str) -> tuple[Changed, dict[int, float]]:
    """Find the rows that must be decoded without a language model, and the rows in which the cost of a model must be checked.

    Args:
        fusion: the models of the rows, `[B]`.
        judged: each row's best hypothesis, `[B]`.
        lm_guard: the option, which isn't "off".

    Returns:
        Two dictionaries by row. The first has the rows in which a model has too little evidence. Its values are the remaining
        models, or None. The second has the other rows whose models may cost too much. Its values are bounds: the models cost
        too much if the best hypothesis without the models has an acoustic score above the bound.
    """
    models: list[Any] = [fusion.of_all] * len(judged) if fusion.per_row is None else fusion.per_row
    weights = fusion.weight.tolist() if isinstance(fusion.weight, Tensor) else [fusion.weight] * len(judged)
    changed: Changed = {}
    doubted: dict[int, float] = {}
    for row, (lm, weight, (tokens, words, lm_score, acoustic_score)) in enumerate(zip(models, weights, judged, strict=True)):
        parts = [(model, share) for model, share in parts_of(lm) if share * weight > 0]
        # With a single model the search has the log-probability already.
        is_single = len(parts_of(lm)) == 1 and fusion.source is None
        kept = []
        for model, share in parts:
            of_model = lm_score if is_single else log_prob(model, tokens)
            if evidence(model, of_model, len(tokens), words) >= least_evidence(lm_guard, model):
                kept.append((model, share))
        if len(kept) < len(parts):
            rest = [part for part in parts_of(lm) if part[1] * weight <= 0]
            changed[row] = LogLinear(*zip(*kept, *rest)) if kept else None
            continue
        threshold = acoustic_score + highest_cost(lm_guard, [model for model, _ in parts], len(tokens))
        if -math.inf < threshold < 0:
            doubted[row] = threshold
    return changed, doubted


def log_prob(lm: NGramLM, tokens: Sequence[int]) -> float:
    """Return an LM's log-probability of tokens, natural log, without `</s>`."""
    ids = torch.tensor([list(tokens)], dtype=torch.int64, device=lm.device)
    return float(lm.automaton.score_sequences(ids, eos=False)) if len(tokens) else 0.0


def by_rest(changed: Changed, doubted: Iterable[int]) -> list[tuple[list[int], list[Any] | None]]:
    """Make batches of the rows to decode again. Return each batch's row numbers and language models (None: no models).

    `changed`, `doubted`: the two dictionaries of `kept_models`. Doubted rows are decoded without models, to learn the cost.
    """
    without = [*(row for row, lm in changed.items() if lm is None), *doubted]
    others = [row for row, lm in changed.items() if lm is not None]
    batches: list[tuple[list[int], list[Any] | None]] = [(without, None)] if without else []
    return [*batches, (others, [changed[row] for row in others])] if others else batches


class Memory:
    """Remember how well a language model predicted a stream's utterances, to decide whether the next utterance needs the model.

    Each new utterance halves the weight of earlier utterances. An utterance isn't decoded again without the LM, because its
    frames aren't kept. So the cost is measured against the score of the likeliest alignment (known for CTC outputs only).

    Args:
        lm: the stream's language model or models.
        lm_guard: the option, which isn't "off".
    """

    def __init__(self, lm: NGramLM | LogLinear, lm_guard: float | str) -> None:
        self.lm_guard, self.models = lm_guard, [model for model, _ in parts_of(lm)]
        self.tokens = self.words = self.cost = 0.0
        self.likeliest: Tensor | float = 0.0  # score of the likeliest alignment of the present utterance, natural log
        self.log_probs = [0.0] * len(self.models)

    def hear(self, logits: Tensor) -> None:
        """Hear frames of the present utterance: CTC outputs `[T, C]`."""
        logits = logits.float()
        self.likeliest = self.likeliest + (logits.amax(-1) - logits.logsumexp(-1)).sum()

    def add(self, tokens: Sequence[int], words: int, acoustic_score: float) -> None:
        """End an utterance. The arguments are the best hypothesis's tokens, number of words, and acoustic score."""
        if isinstance(self.likeliest, Tensor):
            self.cost = self.cost / 2 + max(float(self.likeliest) - acoustic_score, 0.0)
        self.tokens, self.words = self.tokens / 2 + len(tokens), self.words / 2 + words
        self.log_probs = [before / 2 + log_prob(lm, tokens) for lm, before in zip(self.models, self.log_probs)]

    @property
    def leaves_out(self) -> bool:
        """Return whether the next utterance is decoded without the LM, because the evidence is too low or the cost too high."""
        if self.tokens < ENOUGH_TOKENS:
            return False
        if self.cost > highest_cost(self.lm_guard, self.models, self.tokens):
            return True
        of_models = zip(self.models, self.log_probs)
        return all(evidence(lm, of, self.tokens, self.words) < least_evidence(self.lm_guard, lm) for lm, of in of_models)
