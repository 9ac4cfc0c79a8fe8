"""ARPA files and KenLM binaries -> language models, over tokens or over words."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import torch

from ..errors import NGramFormatError
from ..formats.arpa import ArpaFile
from ..formats.kenlm import KenLMFile, is_kenlm_binary, read_binary
from ..formats.units import are_word_level
from ..lexicon.words import compose, refuse_options
from ..text.vocabulary import Vocabulary, tokenizer_of

if TYPE_CHECKING:
    from .model import NGramLM

logger = logging.getLogger(__name__)


def lm_from_arpa(
    path: str | os.PathLike[str],
    tokenizer: Any,
    vocab_size: int | None,
    units: str,
    missing_unigrams: str | float,
    device: str | torch.device | None,
    engine: str,
    of_words: dict[str, Any],
) -> NGramLM:
    """What `NGramLM.from_arpa` does. Arguments as there."""
    from .model import NGramLM

    tokenizer = tokenizer_of(tokenizer)
    vocabulary = Vocabulary.of(tokenizer, vocab_size)
    file: ArpaFile | KenLMFile = read_binary(path) if is_kenlm_binary(path) else ArpaFile(path)
    is_detected = units == "auto" and are_word_level(file.words, vocabulary)
    if units != "word" and not is_detected:
        refuse_options(of_words, f"{path} has the units of tokens; units='word' takes them for words")
        return NGramLM.from_table(file.table(vocabulary, units), vocabulary, missing_unigrams, device, engine)
    if missing_unigrams != "share":
        raise ValueError(
            f"missing_unigrams={missing_unigrams!r} is for tokens; unknown words score by unk_score_offset and unk_token_cost"
        )
    try:
        lm = compose(file.word_table(), file.words, tokenizer, vocab_size=vocab_size, device=device, engine=engine, **of_words)
    except NGramFormatError as error:
        raise NGramFormatError(f"{path}: {error}" if str(path) not in str(error) else str(error)) from None
    if is_detected:
        assert lm.config.words is not None
        logger.warning(
            '%s is a word-level language model; its words are spelled in tokens (units="word"): %s',
            path,
            "; ".join(f"{name}: {value}" for name, value in lm.config.words.lines()),
        )
    return lm
