"""Measure how well a language model predicts texts."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import torch

from ..automaton import BackoffAutomaton, LMParts
from ..lexicon.lazy_model import LazyAutomaton
from ..lexicon.weights import reweighed
from ..text import with_blank


@dataclass(frozen=True)
class Perplexity:
    """Hold the perplexity of a language model on texts.

    Args:
        per_token: exp(-log_prob / N), where N is the number of tokens and sentence ends.
        per_word: exp(-log_prob / N), where N is the number of words (separated by spaces) and sentence ends; None if texts were
            lists of token ids.
        per_token_known, per_word_known: the same values without tokens that have no unigram in the model. If a word contains
            such a token, the word's other tokens still count.
        log_prob: natural log-probability of all texts.
        num_tokens, num_words, num_sentences: size of the texts; sentence ends don't count as tokens or words.
        num_missing: number of the texts' tokens without a unigram.
    """

    per_token: float
    per_word: float | None
    per_token_known: float
    per_word_known: float | None
    log_prob: float
    num_tokens: int
    num_words: int
    num_sentences: int
    num_missing: int


class ScoredText(NamedTuple):
    """Hold a text with the scores of its tokens."""

    log_probs: list[float]  # natural log-probabilities of the text's tokens and of `</s>`
    token_ids: list[int]  # the text's tokens
    text: str | None  # the string; None if the text was a list of token ids


def without_word_bonus(parts: LMParts) -> BackoffAutomaton:
    """Return the automaton without bonuses for words, so that its scores are probabilities."""
    words, automaton = parts.config.words, parts.automaton
    if words is None or not words.word_bonus:
        return automaton
    if isinstance(automaton, LazyAutomaton):
        return automaton.changed(automaton.bonuses._replace(word=0.0))
    tensors = reweighed(automaton.tensors, words, automaton.vocab_size, word=-words.word_bonus)
    return automaton.with_tensors(tensors)


def scored_texts(
    automaton: BackoffAutomaton,
    texts: Iterable[str | Sequence[int]],
    tokenizer: Any = None,
    leading_blank: bool = False,
    batch_size: int = 1024,
) -> Iterator[ScoredText]:
    """Compute the scores of texts in batches. Yield each text with the scores of its tokens.

    Args:
        automaton: the automaton of the language model.
        texts: strings, or lists of token ids.
        tokenizer: for strings.
        leading_blank: whether each string gets a leading space.

    Raises:
        ValueError: the texts are strings, but there is no tokenizer.
    """
    rest = iter(texts)
    while batch := list(islice(rest, batch_size)):
        if all(isinstance(text, str) for text in batch):
            if tokenizer is None:
                raise ValueError("texts need the ASR model's tokenizer (tokenizer=...); without one, pass lists of token ids")
            written = [with_blank(str(text)) for text in batch] if leading_blank else batch
            rows = tokenizer(written, add_special_tokens=False)["input_ids"]
        else:
            rows = [list(map(int, row)) for row in batch]
        lengths = torch.tensor([len(row) for row in rows])
        token_ids = torch.full((len(rows), max(1, int(lengths.max()))), -1)
        for i, row in enumerate(rows):
            token_ids[i, : len(row)] = torch.tensor(row, dtype=torch.int64)
        scores, states = automaton.score_tokens(token_ids, lengths)
        ends = automaton.final_scores(states).tolist()
        for text, row, values, end in zip(batch, rows, scores.tolist(), ends, strict=True):
            yield ScoredText([*values[: len(row)], end], row, text if isinstance(text, str) else None)


def perplexity_of(scored: Iterable[ScoredText], vocab_size: int, missing: Collection[int]) -> Perplexity:
    """Return the perplexity of scored texts. `scored`: texts from `scored_texts`. `vocab_size`: number of token ids. `missing`:
    token ids without a unigram. Raises ValueError if there are no texts.
    """
    total: list[float] = []
    unknown: list[float] = []
    num_sentences = num_words = 0
    are_texts = True
    for scores, row, text in scored:
        num_sentences += 1
        total += scores
        unknown += [score for score, token in zip(scores, row) if token in missing or not 0 <= token < vocab_size]
        are_texts &= text is not None
        num_words += len(text.split()) if text is not None else 0
    if not num_sentences:
        raise ValueError("perplexity needs at least one text, got none")
    log_prob, num_tokens = math.fsum(total), len(total) - num_sentences
    known = log_prob - math.fsum(unknown)
    return Perplexity(
        per_token=_perplexity(log_prob, num_tokens + num_sentences),
        per_word=_perplexity(log_prob, num_words + num_sentences) if are_texts else None,
        per_token_known=_perplexity(known, num_tokens - len(unknown) + num_sentences),
        per_word_known=_perplexity(known, num_words + num_sentences) if are_texts else None,
        log_prob=log_prob,
        num_tokens=num_tokens,
        num_words=num_words if are_texts else 0,
        num_sentences=num_sentences,
        num_missing=len(unknown),
    )


def _perplexity(log_prob: float, count: int) -> float:
    try:
        return math.exp(-log_prob / count)
    except OverflowError:
        return math.inf
