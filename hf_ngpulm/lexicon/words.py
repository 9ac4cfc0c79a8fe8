"""Make a language model over tokens from n-grams over words."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from ..automaton import BackoffAutomaton, LMParts
from ..automaton.continuation import check_share
from ..common.checks import WEIGHT, check, one_of, whole
from ..config.config import NGramLMConfig
from ..config.word_summary import COMPOSITIONS, LARGEST_SCORE, WordSummary
from ..engines.choice import check_engine
from ..ngrams.table import NGramTable, one_thread
from ..text.vocabulary import Vocabulary, tokenizer_of
from .composition import SpelledLM, compose_automaton
from .lazy_model import LazyAutomaton
from .lazy_states import Bonuses
from .spellings import SHOWN, Lexicon, LexiconSource, make_lexicon
from .weights import reweighed

logger = logging.getLogger(__name__)

MOST_CUTTINGS = 64
OPTIONS = (
    "lexicon", "case", "cuttings", "closed_vocabulary", "unk_score_offset", "unk_token_cost", "word_bonus", "composition",
    "continued",
)  # fmt: skip
# Larger models are composed on the fly by default, because static composition would take more than 0.7 GB and half a minute.
MOST_STATIC_NGRAMS = 5_000_000


@one_thread()
def compose(
    table: NGramTable,
    words: Sequence[str],
    tokenizer: Any,
    lexicon: LexiconSource = None,
    vocab_size: int | None = None,
    case: str = "auto",
    closed_vocabulary: bool = False,
    unk_score_offset: float = -10.0,
    unk_token_cost: float | None = None,
    word_bonus: float = 0.0,
    engine: str = "auto",
    cuttings: int = 1,
    composition: str = "auto",
    may_be_empty: bool = False,
    continued: float | None = None,
) -> LMParts:
    """Compose a language model over words with a lexicon. Return a model over tokens (see `hf_ngpulm.lexicon.composition`).

    Args:
        table: n-grams over words; its `vocab_size` is the number of words.
        words: the words of the table's ids.
        tokenizer: the ASR model's tokenizer, a processor that holds it, or the name of a repo that has it.
        lexicon, vocab_size, case: see `hf_ngpulm.lexicon.spellings.make_lexicon`.
        closed_vocabulary: whether unknown words are forbidden. A forbidden word scores -1e4 minus `unk_token_cost` for each
            token, not minus infinity.
        unk_score_offset: natural log, added to log p(<unk>) for each unknown word. (pyctcdecode's default offset is also -10,
            but in log10; this is -23.03 as a natural log.)
        unk_token_cost: natural log, cost of each token of an unknown word; by default log V, the cost of a uniform choice.
        word_bonus: natural log, added to the log-probability of every word, known or not, and multiplied by the LM's weight
            (pyctcdecode's beta divided by its alpha). Scores and perplexity of texts don't include it.
        engine: as for `NGramLM.from_arpa`.
        cuttings: number of segmentations of a word into pieces, up to 64, see `hf_ngpulm.lexicon.spellings.make_lexicon`. Each
            segmentation gets the word's score. With several segmentations, let CTC beam search merge the segmentations:
            `CTCDecoder(..., merge="text")`.
        composition: "static" makes all states now. "on_the_fly" makes a state when a search reaches it. Only the model over
            words is then stored, which is a tenth as large, and the scores are the same (see
            `hf_ngpulm.lexicon.lazy_model`). "auto" is static for up to 5 million n-grams.
        may_be_empty: whether to accept that no word has a spelling. In this case, all words are unknown, and a warning is
            logged.
        continued: for models of single sentences, the probability that another sentence follows, see `NGramLM.continued`.

    Raises:
        NGramFormatError: no word can be spelled, words are in another case, the lexicon is invalid, or the model would have
            more states than can be addressed.
        ValueError: the offset, the cost or the bonus isn't a finite number, `cuttings` or `continued` is out of range, or
            `cuttings` isn't 1 for a vocabulary of letters.
    """
    if len(words) != table.vocab_size:
        raise ValueError(f"words should name the {table.vocab_size} ids of the table, got {len(words)}")
    tokenizer = tokenizer_of(tokenizer)
    if tokenizer is None:
        raise ValueError("a word-level language model needs the ASR model's tokenizer to spell its words: pass tokenizer=...")
    vocabulary = Vocabulary.of(tokenizer, vocab_size)
    cost = math.log(vocabulary.size) if unk_token_cost is None else float(unk_token_cost)
    if not abs(unk_score_offset) <= LARGEST_SCORE:
        raise ValueError(
            f"unk_score_offset should be a finite number, got {unk_score_offset}; closed_vocabulary=True forbids unknown words"
        )
    if not 0 <= cost <= LARGEST_SCORE:
        raise ValueError(f"unk_token_cost should be a finite number of at least 0, got {unk_token_cost}")
    check("word_bonus", word_bonus, WEIGHT)
    if continued is not None:
        check_share(continued, "continued")
    check("composition", composition, one_of("auto", *COMPOSITIONS))
    if composition == "auto":
        composition = "static" if sum(table.num_ngrams) <= MOST_STATIC_NGRAMS else "on_the_fly"
        if composition == "on_the_fly":
            logger.info(
                "%s n-grams of words are composed with their lexicon as searches come to them, for more than %s make a large "
                'whole; composition="static" makes it',
                f"{sum(table.num_ngrams):,}",
                f"{MOST_STATIC_NGRAMS:,}",
            )
    cuttings = check("cuttings", cuttings, whole(1, MOST_CUTTINGS))
    spellings = make_lexicon(words, tokenizer, lexicon, vocab_size, case, cuttings, may_be_empty)
    _tell(spellings, len(words), given=lexicon is not None)
    spelled = SpelledLM.of_table(table, spellings, None if closed_vocabulary else unk_score_offset, cost)
    if continued is not None:
        spelled = spelled.continued(continued)
    summary = WordSummary(
        num_words=len(words),
        num_spelled=spellings.num_words,
        num_spellings=spelled.trie.num_forms,
        case="keep" if case == "auto" else case,
        closed_vocabulary=closed_vocabulary,
        unk_score_offset=float(unk_score_offset),
        unk_token_cost=cost,
        context_length=spelled.context_length,
        word_bonus=float(word_bonus),
        num_contexts=spelled.num_contexts if composition == "static" else 0,
        delimiter=spellings.boundaries.delimiter,
        composition=composition,
        unigram_entropy=_unigram_entropy(table),
    )
    special = {token: table.row_of_unigram(token) for token in (table.unk, table.bos)}
    log_probs = {token: None if row is None else float(table.orders[0].log_probs[row]) for token, row in special.items()}
    config = NGramLMConfig(
        vocab_size=vocabulary.size,
        order=table.order,
        num_ngrams=table.num_ngrams,
        states_per_depth=(),
        unk_log_prob=log_probs[table.unk],
        bos_log_prob=log_probs[table.bos],
        tokenizer_id=vocabulary.tokenizer_id,
        tokenizer_fingerprint=vocabulary.fingerprint,
        words=summary,
        continued=continued,
    )
    spelled = spelled._replace(context_length=config.context_length)
    automaton: BackoffAutomaton
    if composition == "on_the_fly":
        automaton = LazyAutomaton(spelled, engine, Bonuses(word=float(word_bonus)))
    else:
        automaton = compose_automaton(spelled)
        automaton.engine = check_engine(engine)
        if word_bonus:
            automaton = automaton.with_tensors(reweighed(automaton.tensors, summary, vocabulary.size, word=word_bonus))
    unused = np.ones(vocabulary.size, dtype=bool)
    unused[spellings.tokens] = False
    in_no_word = torch.from_numpy(np.flatnonzero(unused).astype(np.int32))
    return LMParts(config, automaton, in_no_word, vocabulary.pieces)


def refuse_options(options: Iterable[str], why: str) -> None:
    """Raise an error if options for word-level models are passed for a model over tokens. Raises TypeError if an option doesn't
    exist, or ValueError if an option exists, but has no effect. The message gives the reason `why`.
    """
    for name in options:
        if name not in OPTIONS:
            raise TypeError(f"there is no argument {name!r}")
        raise ValueError(f"{name} applies to word-level language models only; {why}")


def _tell(lexicon: Lexicon, num_words: int, given: bool) -> None:
    """Log a warning with the words that have no spelling. `given`: whether the caller gave a lexicon."""
    no_spelling = "aren't in the lexicon" if given else "can't be written by the tokenizer as one word"
    for left_out, why in ((lexicon.unspelled, no_spelling), (lexicon.unknown, "of the lexicon aren't in the language model")):
        if left_out:
            shown = ", ".join(map(repr, left_out[:SHOWN]))
            capitals = sum(word != word.lower() for word in left_out) > len(left_out) / 2
            hint = ' (most have capitals: case="lower" writes them small)' if capitals and not given else ""
            logger.warning("%s words %s, such as %s%s; they stay unknown", f"{len(left_out):,}", why, shown, hint)


def _unigram_entropy(table: NGramTable) -> float:
    """Return the entropy of a table's unigrams (natural log), without special tokens."""
    log_probs = table.orders[0].log_probs[table.orders[0].tokens < table.bos].double()
    log_probs = torch.log_softmax(log_probs, -1)
    return float(-(log_probs.exp() * log_probs).nansum())
