"""Read a file of n-grams as the parts of a language model. The units of the n-grams are tokens or words."""

from __future__ import annotations

import logging
import os
from typing import Any

from ..automaton import LMParts
from ..common.files import naming
from ..lexicon.words import compose, refuse_options
from ..text.vocabulary import Vocabulary, check_tokenizer, tokenizer_of
from .files import FileFormat, format_of
from .units import NGramFile, are_word_level

logger = logging.getLogger(__name__)


def parts_of_ngram_file(
    path: str | os.PathLike[str],
    tokenizer: Any,
    vocab_size: int | None = None,
    units: str = "auto",
    missing_unigrams: str | float = "share",
    engine: str = "auto",
    of_words: dict[str, Any] | None = None,
    format: FileFormat | None = None,
) -> LMParts:
    """Return the parts of the language model in a file of any format.

    Args:
        path, tokenizer, vocab_size, units, missing_unigrams, engine: see `NGramLM.from_arpa`.
        of_words: options of `NGramLM.from_arpa` for word-level models, by name.
        format: the file's format; if None, the file's name and content decide.
    """
    tokenizer, of_words = tokenizer_of(tokenizer), of_words or {}
    file = (format or format_of(path)).open(path)
    if not isinstance(file, NGramFile):
        if (vocab_size, units, missing_unigrams, of_words) != (None, "auto", "share", {}):
            raise ValueError(f"{path} holds token ids; leave out vocab_size, units, missing_unigrams and options for words")
        if tokenizer is not None:
            check_tokenizer(file.vocab_size, None, None, tokenizer)
        return LMParts.of_table(file, Vocabulary.of(tokenizer, file.vocab_size), engine=engine)
    vocabulary = Vocabulary.of(tokenizer, vocab_size)
    is_detected = units == "auto" and are_word_level(file.words, vocabulary)
    if units != "word" and not is_detected:
        refuse_options(of_words, f"{path} is token-level (units='word' reads it as words)")
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
