"""The language model of a decoder over the tokens of its labels, weighed as pyctcdecode weighs it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..language_model import NGramLM
from ..lexicon import compose
from ..lexicon.reweighing import reweighed
from ..lexicon.unknowns import grade_unknown_words
from ..word_summary import WordSummary
from .alphabet import LabelTokenizer
from .language_model import LanguageModel
from .word_files import Attrs, charged_to_unknown_words, piece_lengths, unknown_log_prob, whole_unknown_word

# Ways to cut a word into pieces, those with the fewest pieces, where no tokenizer says which one the recogniser learned.
CUTTINGS = 16


class FusedModel:
    """A word-level model composed with its words, spelled in labels, once; and weighed anew in milliseconds.

    Args:
        language_model: of words.
        tokenizer: of the labels, or of the recogniser.
        case: see `hf_ngpulm.lexicon.compose`.
    """

    def __init__(self, language_model: LanguageModel, tokenizer: Any, case: str) -> None:
        cuttings = CUTTINGS if isinstance(tokenizer, LabelTokenizer) and tokenizer.is_bpe else 1
        self.composed = compose(
            language_model.table, language_model.words, tokenizer, language_model.unigrams, case=case, unk_score_offset=0.0,
            unk_token_cost=0.0, cuttings=cuttings, composition="static",
        )  # fmt: skip
        assert self.composed.config.words is not None
        self.words: WordSummary = self.composed.config.words
        self.unknown = unknown_log_prob(language_model.table)
        self._lengths = piece_lengths(self.composed)
        self._weighed: tuple[Attrs, NGramLM] | None = None

    def weighed(self, attrs: Attrs) -> NGramLM:
        """The model whose log-probabilities are what a search adds: alpha * log p + beta, for unknown words with the offset."""
        if self._weighed is None or self._weighed[0] != attrs:
            composed = self.composed
            spaces, start = -math.log(composed.vocab_size), int(composed.starts[0])
            tensors = reweighed(composed.tensors, self.words, composed.vocab_size, attrs.alpha, attrs.beta, spaces, start)
            tensors = grade_unknown_words(
                tensors, self.words, self._lengths, attrs.alpha * self.unknown,
                charged_to_unknown_words(attrs, self.unknown), whole_unknown_word(attrs, self.unknown),
            )  # fmt: skip
            starts = composed.starts if attrs.score_boundary else composed.roots
            lm = NGramLM(composed.config, tensors, composed.roots, starts, composed.unk_tokens, composed.pieces)
            self._weighed = (attrs, lm)
        return self._weighed[1]

    def word_end_scores(self, lm: NGramLM, states: Tensor) -> Tensor:
        """What ending the last word adds, where `</s>`, which ends it, doesn't count.

        Args:
            lm: as weighed.
            states: int32 of any shape.
        """
        flat = states.flatten()
        if self.words.delimiter is not None:
            return lm.step(flat, torch.full_like(flat, self.words.delimiter))[0].view(states.shape)
        scores, at = torch.zeros(flat.shape, device=flat.device), flat.to(torch.int64)
        while bool((inside := at >= self.words.num_contexts).any()):
            scores += torch.where(inside, lm.tensors.backoff_weights[at], 0.0)
            at = torch.where(inside, lm.tensors.backoff_states[at].to(torch.int64), at)
        return scores.view(states.shape)

    def state_behind(self, start: int, tokens: list[int]) -> int:
        """The LM's state when the last word of some tokens has ended. It is the same whatever the model is weighed with."""
        delimiter, lm = self.words.delimiter, self.composed
        ended = tokens if delimiter is None or not tokens or tokens[-1] == delimiter else [*tokens, delimiter]
        state = torch.tensor([start], dtype=torch.int32, device=lm.device)
        for token in ended:
            _, state = lm.step(state, torch.tensor([token], dtype=torch.int32, device=lm.device))
        while int(state) >= self.words.num_contexts:  # a word with a mark ends when the next one begins: by backing off
            state = lm.tensors.backoff_states[state.to(torch.int64)]
        return int(state)


class LMState:
    """Where a language model stands behind a hypothesis: for `lm_start_state`, and of no other use."""

    def __init__(self, fused: FusedModel, start: int, tokens: list[int]) -> None:
        self._fused, self._start, self._tokens = fused, start, tokens

    def of(self, fused: FusedModel | None) -> int:
        """The state's number.

        Raises:
            ValueError: it is that of another decoder.
        """
        if fused is not self._fused:
            raise ValueError("lm_start_state is that of another decoder: states mean something to the one that gave them only")
        return self._fused.state_behind(self._start, self._tokens)
