"""Compose a decoder's language models over its labels, with pyctcdecode's weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..automaton import BackoffAutomaton
from ..automaton.tensors import AutomatonTensors
from ..config.word_summary import WordSummary
from ..formats.wav2vec2 import word_files
from ..formats.wav2vec2.alphabet import LabelTokenizer
from ..language_model.model import NGramLM
from ..lexicon import compose
from ..lexicon.weights import Grades, grade_unknown_words, reweighed
from .language_model import LanguageModel


class SpelledModel:
    """Compose a word-level model with the spellings of its words in labels. The composition runs once. Other weights take only
    milliseconds.

    If some words of the model aren't among the unigrams, a change of `unk_score_offset` composes the model again, because the
    probabilities of these words include the offset.

    Args:
        language_model: the word-level model.
        tokenizer: the tokenizer of the labels, or the recogniser's tokenizer.
        case: see `hf_ngpulm.lexicon.compose`.
    """

    def __init__(self, language_model: LanguageModel, tokenizer: Any, case: str) -> None:
        self.language_model, self.tokenizer, self.case = language_model, tokenizer, case
        self.unknown = word_files.unknown_log_prob(language_model.table)
        listed = language_model._unigram_set
        self.has_unlisted = bool(listed) and len(listed) < len(language_model.words)
        self._compose(language_model.attrs.offset)
        self._weighed: tuple[word_files.Attrs, NGramLM] | None = None

    def _compose(self, offset: float) -> None:
        lm, tokenizer = self.language_model, self.tokenizer
        cuttings = word_files.CUTTINGS if isinstance(tokenizer, LabelTokenizer) and tokenizer.is_bpe else 1
        table = word_files.with_unlisted(lm.table, lm.words, lm.unigrams, self.case, offset)
        parts = compose(
            table, lm.words, tokenizer, case=self.case, unk_score_offset=0.0, unk_token_cost=0.0, cuttings=cuttings,
            composition="static", may_be_empty=True,
        )  # fmt: skip
        assert parts.config.words is not None
        self.composed, self.words, self._offset = NGramLM(parts), parts.config.words, offset

    def weighed(self, attrs: word_files.Attrs) -> NGramLM:
        """Return a model with weights: its log-probabilities equal the scores that a search adds.

        A word adds alpha * log p + beta, where p is the word's probability. For an unknown word, log p includes the offset.
        `</s>` adds the score for the end of a transcript.
        """
        if self.has_unlisted and attrs.offset != self._offset:
            self._compose(attrs.offset)
        if self._weighed is None or self._weighed[0] != attrs:
            composed, words = self.composed.automaton, self.words
            spaces, start = -math.log(composed.vocab_size), int(composed.starts[0])
            tensors = reweighed(composed.tensors, words, composed.vocab_size, attrs.alpha, attrs.beta, spaces, start)
            charged = tuple(word_files.charged_to_unknown_words(attrs, self.unknown))
            whole, lengths = word_files.whole_unknown_word(attrs, self.unknown), word_files.piece_lengths(self.composed.parts)
            grades = Grades(tuple(lengths), attrs.alpha * self.unknown, charged, whole)
            tensors = grade_unknown_words(tensors, words.num_contexts, grades)
            automaton = composed.with_tensors(tensors)
            if not attrs.score_boundary:
                automaton = automaton.with_tensors(_without_end_of_text(automaton, words))
                automaton.starts = automaton.roots
            self._weighed = (attrs, NGramLM(replace(self.composed.parts, automaton=automaton)))
        return self._weighed[1]

    def ended(self, lm: NGramLM, state: int) -> tuple[float, int]:
        """Return the score for the end of a word within a text, and the state after the word. `lm`: the model with or without
        weights. `state`: the state after the word's last label.
        """
        if self.words.delimiter is not None:
            score, after = lm.step(*(torch.tensor([it], dtype=torch.int32) for it in (state, self.words.delimiter)))
            return float(score), int(after)
        added = 0.0
        while state >= self.words.num_contexts:  # if marks begin words, a word ends by backing off when the next word begins
            added += float(lm.tensors.backoff_weights[state])
            state = int(lm.tensors.backoff_states[state])
        return added, state

    def state_after(self, start: int, tokens: list[int]) -> int:
        """Return the language model's state after tokens and the end of their last word. `start`: the state before the tokens.
        States don't depend on the weights.
        """
        state = torch.tensor([start], dtype=torch.int32)
        for token in tokens:
            _, state = self.composed.step(state, torch.tensor([token], dtype=torch.int32))
        has_ended = not tokens or tokens[-1] == self.words.delimiter
        return int(state) if has_ended else self.ended(self.composed, int(state))[1]


def _without_end_of_text(automaton: BackoffAutomaton, words: WordSummary) -> AutomatonTensors:
    """Return an automaton's tensors, changed so that `</s>` adds only the score for the end of the last word."""
    tensors, end = automaton.tensors, automaton.vocab_size
    counts = tensors.arc_offsets.diff()
    sources = torch.repeat_interleave(torch.arange(len(counts)), counts)
    weights, is_end, inside = tensors.arc_weights.clone(), tensors.arc_tokens == end, sources >= words.num_contexts
    if words.delimiter is not None:
        states = sources[is_end & inside].to(torch.int32)
        weights[is_end & inside] = automaton.step(states, torch.full_like(states, words.delimiter))[0]
    # If marked pieces begin words, states within words back off to states between words. Each state between words gets an
    # arc for `</s>` with score 0.
    kept = ~is_end | (inside & (words.delimiter is not None))
    contexts = torch.arange(words.num_contexts)
    by_state = torch.argsort(torch.cat([sources[kept], contexts]), stable=True)

    def arcs(values: Tensor, added: float) -> Tensor:
        return torch.cat([values[kept], torch.full_like(values[:1], added).expand(len(contexts))])[by_state]

    counts = torch.bincount(torch.cat([sources[kept], contexts]), minlength=len(counts))
    return tensors._replace(
        arc_offsets=torch.cat([tensors.arc_offsets[:1], counts.cumsum(0).to(torch.int32)]),
        arc_tokens=arcs(tensors.arc_tokens, end),
        arc_weights=arcs(weights, 0.0),
        arc_targets=arcs(tensors.arc_targets, 0),
    )


Models = tuple[SpelledModel, ...]
"""The language models of a decoder, which uses the mean of their scores."""


class LMState:
    """Hold the language models' states after a hypothesis, to pass as `lm_start_state`."""

    def __init__(self, models: Models, starts: Sequence[int], tokens: list[int]) -> None:
        self._models, self._starts, self._tokens = models, starts, tokens

    def of(self, models: Models) -> tuple[int, ...]:
        """Return each model's state. Raises ValueError if the state is from another decoder."""
        if models is not self._models:
            raise ValueError("lm_start_state is from another decoder; pass a last_lm_state of this one")
        return tuple(model.state_after(start, self._tokens) for model, start in zip(models, self._starts, strict=True))
