"""What a language model consists of: readers, training and composition make it, `hf_ngpulm.NGramLM` is its face."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ..config.config import NGramLMConfig
from ..ngrams.table import NGramTable
from ..text.vocabulary import Vocabulary
from .automaton import BackoffAutomaton
from .convert import automaton_from_table


@dataclass(frozen=True)
class LMParts:
    """The parts of a language model over tokens.

    Args:
        config: what is known of it.
        automaton: static, or one that is composed while searches go on (`hf_ngpulm.lexicon.lazy_states`).
        unk_tokens: int32 `[N]`, ascending: token ids without a unigram, or that are in no word.
        pieces: of the tokenizer, by token id, where they are known.
    """

    config: NGramLMConfig
    automaton: BackoffAutomaton
    unk_tokens: Tensor
    pieces: tuple[str | None, ...] | None = None

    @classmethod
    def of_table(
        cls,
        table: NGramTable,
        vocabulary: Vocabulary | None = None,
        missing_unigrams: str | float = "share",
        engine: str = "auto",
    ) -> LMParts:
        """Return the parts of a table of n-grams. Arguments as for `NGramLM.from_arpa`."""
        vocabulary = vocabulary or Vocabulary(table.vocab_size)
        automaton, found = automaton_from_table(table, missing_unigrams, engine)
        config = NGramLMConfig(
            vocab_size=table.vocab_size,
            order=table.order,
            num_ngrams=table.num_ngrams,
            states_per_depth=tuple(found["states_per_depth"]),
            unk_log_prob=found["unk_log_prob"],
            bos_log_prob=found["bos_log_prob"],
            missing_unigrams=missing_unigrams,
            tokenizer_id=vocabulary.tokenizer_id,
            tokenizer_fingerprint=vocabulary.fingerprint,
        )
        pieces = None if vocabulary.pieces is None else tuple(vocabulary.pieces)
        return cls(config, automaton, found["unk_tokens"], pieces)

    def with_config(self, **changed: Any) -> LMParts:
        """Return the same with other fields of the config."""
        return replace(self, config=replace(self.config, **changed))
