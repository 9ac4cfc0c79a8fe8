"""The parts of a word-level language model that is to be composed with its words' spellings, and its composition as a whole."""

from __future__ import annotations

from typing import NamedTuple

from ..automaton import BackoffAutomaton
from ..automaton.automaton import MAX_CONTEXT_LENGTH
from ..ngrams.table import NGramTable
from .composition import compose_automaton
from .spellings import Boundaries, Lexicon
from .trie import Trie, build_trie, sorted_spellings
from .word_lm import WordLM, form_lm

# What an unknown word scores where there may be none: finite, so that no engine computes with infinities, and far below any
# path that keeps to the lexicon. A search none of whose hypotheses keeps to it still returns its best one.
FORBIDDEN = -1e4


class WordParts(NamedTuple):
    """What composition takes, see `hf_ngpulm.lexicon.composition.compose_automaton`."""

    lm: WordLM
    trie: Trie
    boundaries: Boundaries
    unknown_score: float
    unknown_token_score: float
    context_length: int


def compose_spelled(
    table: NGramTable, lexicon: Lexicon, unk_score_offset: float | None, unk_token_cost: float
) -> tuple[BackoffAutomaton, int, int]:
    """Return the automaton, the number of different spellings, and that of the LM's own states, which come first.

    Arguments as for `compose`; no offset closes the vocabulary.
    """
    return compose_parts(spelled_parts(table, lexicon, unk_score_offset, unk_token_cost))


def compose_parts(parts: WordParts) -> tuple[BackoffAutomaton, int, int]:
    """Compose what `spelled_parts` gives. Returns what `compose_spelled` does."""
    lm = form_lm(parts.lm)
    automaton = compose_automaton(
        lm, parts.trie, parts.boundaries, parts.unknown_score, parts.unknown_token_score, parts.context_length
    )
    return automaton, parts.trie.num_forms, lm.num_states


def spelled_parts(table: NGramTable, lexicon: Lexicon, unk_score_offset: float | None, unk_token_cost: float) -> WordParts:
    """Return what is composed. Arguments as for `compose_spelled`."""
    form_of, offsets, tokens = sorted_spellings(lexicon.offsets, lexicon.tokens)
    trie = build_trie(offsets, tokens)
    lm = WordLM.of_table(table, lexicon.words, form_of, trie.num_forms)
    return parts_of_words(lm, trie, lexicon.boundaries, unk_score_offset, unk_token_cost)


def parts_of_words(
    lm: WordLM, trie: Trie, boundaries: Boundaries, unk_score_offset: float | None, unk_token_cost: float
) -> WordParts:
    """Return the same of a model and a lexicon that are made already."""
    unknown = FORBIDDEN if unk_score_offset is None else lm.unknown + unk_score_offset
    # What a state depends on may lie further back than `order` words of the lexicon where words are cut at delimiters (the end
    # of a long unknown one may look like a known one), or where the context decides which word of one spelling it was.
    is_local = boundaries.delimiter is None and len(lm.form_of) == trie.num_forms
    order = lm.automaton.context_length + 1
    context_length = (order + 1) * (trie.longest + 1) if is_local else MAX_CONTEXT_LENGTH
    return WordParts(lm, trie, boundaries, unknown, -unk_token_cost, min(context_length, MAX_CONTEXT_LENGTH))
