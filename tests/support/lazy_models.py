"""Word-level models composed as a whole and on the fly, of the same parts."""

from __future__ import annotations

import random
import sys
from contextlib import contextmanager

import torch
from two_level import Spelled

from hf_ngpulm import NGramLM
from hf_ngpulm.automaton import LMParts
from hf_ngpulm.config.config import NGramLMConfig
from hf_ngpulm.config.word_summary import WordSummary
from hf_ngpulm.lexicon import lazy_search, lazy_states
from hf_ngpulm.lexicon.composition import SpelledLM, compose_automaton
from hf_ngpulm.lexicon.lazy_model import LazyAutomaton


def both_ways(table, spelled: Spelled, words, offset=-10.0, cost=1.0, continued=None):
    """The same model of words, composed as a whole and on the fly."""
    parts = SpelledLM.of_table(table, spelled.lexicon(words), offset, cost)
    parts = parts if continued is None else parts.continued(continued)
    automaton = compose_automaton(parts)
    summary = WordSummary(
        num_words=len(words), num_spelled=len(words), num_spellings=parts.trie.num_forms, case="keep",
        closed_vocabulary=offset is None, unk_score_offset=offset or 0.0, unk_token_cost=cost,
        context_length=parts.context_length, num_contexts=parts.num_contexts, delimiter=spelled.delimiter,
    )  # fmt: skip
    config = NGramLMConfig(
        vocab_size=automaton.vocab_size, order=table.order, num_ngrams=table.num_ngrams, states_per_depth=(), words=summary
    )
    none = torch.zeros(0, dtype=torch.int32)
    static = NGramLM(LMParts(config, automaton, none))
    lazy = LazyAutomaton(parts)
    return static, NGramLM(LMParts(config, lazy, none))


def random_words(tokens, order=3, seed=0, count=400, delimiter=None, vocab_size=None):
    """Both ways, of words of some tokens, the first third of which begin a word unless there is a delimiter."""
    choose = random.Random(seed)
    first = tokens[: len(tokens) // 3] if delimiter is None else tokens
    rest = tokens[len(first) :] if delimiter is None else tokens
    ways = {(choose.choice(first), *choose.choices(rest, k=choose.randint(0, 3))) for _ in range(50)}
    ways |= {(*way, choose.choice(rest)) for way in list(ways)[:15]}
    ways = sorted(ways)
    weights = [1 / (n + 1) for n in range(len(ways))]
    texts = [choose.choices(range(len(ways)), weights, k=choose.randint(1, 7)) for _ in range(count)]
    table = NGramLM.train([*texts, list(range(len(ways)))], vocab_size=len(ways), order=order).to_table()
    words = [str(n) for n in range(len(ways))]
    marked = frozenset(first) if delimiter is None else frozenset()
    spelled = Spelled(list(zip(words, ways)), vocab_size or max(tokens) + 1, marked, delimiter)
    return both_ways(table, spelled, words)


@contextmanager
def threads_that_change_often(monkeypatch):
    """Threads take turns all the time, and room for states is made again and again."""
    for module, name in ((lazy_states, "SMALLEST"), (lazy_search, "LEAST_STATES"), (lazy_search, "LEAST_ARCS")):
        monkeypatch.setattr(module, name, 16)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
