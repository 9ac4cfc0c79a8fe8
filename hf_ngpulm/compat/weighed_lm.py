"""The language models of a decoder over the tokens of its labels, weighed as pyctcdecode weighs them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..config.word_summary import WordSummary
from ..formats.wav2vec2.alphabet import LabelTokenizer
from ..formats.wav2vec2.word_files import (
    CUTTINGS,
    Attrs,
    charged_to_unknown_words,
    piece_lengths,
    unknown_log_prob,
    whole_unknown_word,
    with_unlisted,
)
from ..language_model.log_linear import LogLinear
from ..language_model.model import NGramLM
from ..lexicon import compose
from ..lexicon.weights import Grades, grade_unknown_words, reweighed
from .language_model import LanguageModel, MultiLanguageModel


class SpelledModel:
    """A word-level model composed with its words, spelled in labels, once; and weighed anew in milliseconds.

    Where some of its words aren't among the unigrams it is composed anew for another `unk_score_offset`: that is part of their
    probabilities then.

    Args:
        language_model: of words.
        tokenizer: of the labels, or of the recogniser.
        case: see `hf_ngpulm.lexicon.compose`.
    """

    def __init__(self, language_model: LanguageModel, tokenizer: Any, case: str) -> None:
        self.language_model, self.tokenizer, self.case = language_model, tokenizer, case
        self.unknown = unknown_log_prob(language_model.table)
        listed = language_model._unigram_set
        self.has_unlisted = bool(listed) and len(listed) < len(language_model.words)
        self._compose(language_model.attrs.offset)
        self._lengths = piece_lengths(self.composed.parts)
        self._weighed: tuple[Attrs, NGramLM] | None = None

    def _compose(self, offset: float) -> None:
        lm, tokenizer = self.language_model, self.tokenizer
        cuttings = CUTTINGS if isinstance(tokenizer, LabelTokenizer) and tokenizer.is_bpe else 1
        table = with_unlisted(lm.table, lm.words, lm.unigrams, self.case, offset)
        parts = compose(
            table, lm.words, tokenizer, case=self.case, unk_score_offset=0.0, unk_token_cost=0.0, cuttings=cuttings,
            composition="static", may_be_empty=True,
        )  # fmt: skip
        assert parts.config.words is not None
        self.composed = NGramLM(parts)
        self.words: WordSummary = parts.config.words
        self._offset = offset

    def weighed(self, attrs: Attrs) -> NGramLM:
        """Return the model whose log-probabilities are what a search adds: alpha * log p + beta, for unknown words with the
        offset."""
        if self.has_unlisted and attrs.offset != self._offset:
            self._compose(attrs.offset)
        if self._weighed is None or self._weighed[0] != attrs:
            composed = self.composed.automaton
            spaces, start = -math.log(composed.vocab_size), int(composed.starts[0])
            tensors = reweighed(composed.tensors, self.words, composed.vocab_size, attrs.alpha, attrs.beta, spaces, start)
            charged, whole = charged_to_unknown_words(attrs, self.unknown), whole_unknown_word(attrs, self.unknown)
            grades = Grades(tuple(self._lengths), attrs.alpha * self.unknown, tuple(charged), whole)
            tensors = grade_unknown_words(tensors, self.words.num_contexts, grades)
            automaton = composed.with_tensors(tensors)
            if not attrs.score_boundary:
                automaton.starts = automaton.roots
            self._weighed = (attrs, NGramLM(replace(self.composed.parts, automaton=automaton)))
        return self._weighed[1]

    def word_end_scores(self, lm: NGramLM, states: Tensor) -> Tensor:
        """Return what ending the last word adds, where `</s>`, which ends it, doesn't count.

        Args:
            lm: as weighed.
            states: int32 `[N]`.
        """
        if self.words.delimiter is not None:
            return lm.step(states, torch.full_like(states, self.words.delimiter))[0]
        scores, at = torch.zeros(states.shape, device=states.device), states.to(torch.int64)
        while bool((inside := at >= self.words.num_contexts).any()):
            scores += torch.where(inside, lm.tensors.backoff_weights[at], 0.0)
            at = torch.where(inside, lm.tensors.backoff_states[at].to(torch.int64), at)
        return scores

    def ended(self, lm: NGramLM, state: int) -> tuple[float, int]:
        """Return what ending the last word adds, where no text ends, and the state after it.

        Args:
            lm: as weighed.
        """
        states = torch.tensor([state], dtype=torch.int32, device=lm.device)
        score = float(self.word_end_scores(lm, states))
        if self.words.delimiter is not None:
            return score, int(lm.step(states, torch.full_like(states, self.words.delimiter))[1])
        return score, self._without_word(lm, state)

    def _without_word(self, lm: NGramLM, state: int) -> int:
        """Return a word with a mark ends when the next one begins: by backing off."""
        while state >= self.words.num_contexts:
            state = int(lm.tensors.backoff_states[state])
        return state

    def state_after(self, start: int, tokens: list[int]) -> int:
        """Return the LM's state when the last word of some tokens has ended. It is the same whatever the model is weighed
        with."""
        delimiter, lm = self.words.delimiter, self.composed
        ended = tokens if delimiter is None or not tokens or tokens[-1] == delimiter else [*tokens, delimiter]
        state = torch.tensor([start], dtype=torch.int32, device=lm.device)
        for token in ended:
            _, state = lm.step(state, torch.tensor([token], dtype=torch.int32, device=lm.device))
        return self._without_word(lm, int(state))


class FusedModel:
    """The language model of a decoder, or several, of whose scores the mean counts.

    Args:
        language_model: of words.
        tokenizer, case: as for `SpelledModel`.

    Attributes:
        parts: each model that there is.
        shares: of each in the mean.
    """

    def __init__(self, language_model: LanguageModel | MultiLanguageModel, tokenizer: Any, case: str) -> None:
        listed = [language_model] if isinstance(language_model, LanguageModel) else language_model.language_models
        each = {id(lm): lm for lm in listed}
        self.parts = [SpelledModel(lm, tokenizer, case) for lm in each.values()]
        self.shares = [sum(lm is other for other in listed) / len(listed) for lm in each.values()]

    @property
    def vocab_size(self) -> int:
        return self.parts[0].composed.vocab_size

    @property
    def attrs(self) -> tuple[Attrs, ...]:
        """Return what each model is weighed with at the moment.

        Raises:
            ValueError: a number that isn't finite, or too large.
        """
        return tuple(part.language_model.attrs for part in self.parts)

    def weighed(self, attrs: tuple[Attrs, ...]) -> list[NGramLM]:
        """Return each model as a search adds it, see `SpelledModel.weighed`."""
        return [part.weighed(of_part) for part, of_part in zip(self.parts, attrs, strict=True)]

    def together(self, lms: Sequence[NGramLM]) -> NGramLM | LogLinear:
        """Return what a decoder takes of weighed models."""
        return lms[0] if len(lms) == 1 else LogLinear(lms, self.shares)

    def end_scores(self, attrs: tuple[Attrs, ...], lms: Sequence[NGramLM], states: Tensor, is_end: bool) -> Tensor:
        """Return what the end of the last word adds, and that of the transcript.

        Args:
            lms: as weighed.
            states: int32 `[K, P]`, of each model.
            is_end: whether the transcript ends, so that `</s>` counts where it does.

        Returns:
            float32 `[K]`.
        """
        total = torch.zeros(len(states), device=states.device)
        for place, (part, of_part, lm, share) in enumerate(zip(self.parts, attrs, lms, self.shares, strict=True)):
            at = states[:, place].to(lm.device).contiguous()
            scores = lm.final_scores(at) if is_end and of_part.score_boundary else part.word_end_scores(lm, at)
            total += share * scores.to(total.device)
        return total


class LMState:
    """Where language models stand after a hypothesis: for `lm_start_state`, and of no other use."""

    def __init__(self, fused: FusedModel, starts: Sequence[int], tokens: list[int]) -> None:
        self._fused, self._starts, self._tokens = fused, starts, tokens

    def of(self, fused: FusedModel | None) -> tuple[int, ...]:
        """Return the number of each model's state.

        Raises:
            ValueError: it is that of another decoder.
        """
        if fused is not self._fused:
            raise ValueError("lm_start_state is that of another decoder: states mean something to the one that gave them only")
        return tuple(part.state_after(start, self._tokens) for part, start in zip(self._fused.parts, self._starts, strict=True))
