"""Read ARPA files and KenLM binaries, of tokens or of words."""

from __future__ import annotations

import logging
import os
from typing import Any

from ..automaton import LMParts
from ..common.files import naming
from ..lexicon.words import compose, refuse_options
from ..text.vocabulary import Vocabulary, tokenizer_of
from .arpa import ArpaFile
from .kenlm import is_kenlm_binary, read_binary
from .units import are_word_level

logger = logging.getLogger(__name__)


def parts_of_ngram_file(
    path: str | os.PathLike[str],
    tokenizer: Any,
    vocab_size: int | None,
    units: str,
    missing_unigrams: str | float,
    engine: str,
    of_words: dict[str, Any],
) -> LMParts:
    """Read what `NGramLM.from_arpa` returns. Arguments as there."""
    tokenizer = tokenizer_of(tokenizer)
    vocabulary = Vocabulary.of(tokenizer, vocab_size)
    file = read_binary(path) if is_kenlm_binary(path) else ArpaFile(path)
    is_detected = units == "auto" and are_word_level(file.words, vocabulary)
    if units != "word" and not is_detected:
        refuse_options(of_words, f"{path} has the units of tokens; units='word' takes them for words")
        return LMParts.of_table(file.table(vocabulary, units), vocabulary, missing_unigrams, engine)
    if missing_unigrams != "share":
        raise ValueError(
            f"missing_unigrams={missing_unigrams!r} is for tokens; unknown words score by unk_score_offset and unk_token_cost"
        )
    with naming(path):
        parts = compose(file.word_table(), file.words, tokenizer, vocab_size=vocab_size, engine=engine, **of_words)
    if is_detected:
        assert parts.config.words is not None
        logger.warning(
            '%s is a word-level language model; its words are spelled in tokens (units="word"): %s',
            path,
            "; ".join(f"{name}: {value}" for name, value in parts.config.words.lines()),
        )
    return parts
