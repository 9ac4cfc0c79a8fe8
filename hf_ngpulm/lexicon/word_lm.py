"""The word-level LM as composition walks it: a backoff automaton over spelled forms in double precision."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..automaton import BackoffAutomaton
from ..automaton.convert import MISSING_LOG_PROB, automaton_from_table
from ..ngrams.table import NGramOrder, NGramTable


class FormArcs(NamedTuple):
    """What some states of a word-level LM know of spelled forms. `A` arcs."""

    states: np.ndarray  # int64 [A], which of the states, ascending
    forms: np.ndarray  # int32 [A], ascending within a state
    log_probs: np.ndarray  # float64 [A], natural log
    targets: np.ndarray  # int32 [A], the state of the LM behind the form
    ends: np.ndarray  # float64, one for each state: log p(</s> | state), NaN where the state has none of its own


class FormLM(NamedTuple):
    """p(form | LM state) of a lexicon's different spellings, `0 .. F - 1`. `S` states; state 0 is the root, which has them all.

    Words with the same spelling are one form, with the sum of their probabilities; the LM goes on as after the likeliest.
    """

    offsets: np.ndarray  # int64 [S + 1]: the arcs of state s
    forms: np.ndarray  # int32 [A], ascending within a state
    log_probs: np.ndarray  # float64 [A], natural log
    targets: np.ndarray  # int32 [A]
    ends: np.ndarray  # float64 [S]: log p(</s> | state), NaN where the state has none of its own
    backoff_states: np.ndarray  # int32 [S]
    backoff_weights: np.ndarray  # float64 [S]
    start: int
    unknown: float  # log p(<unk>)
    unknown_target: int  # the state behind <unk>

    @property
    def num_states(self) -> int:
        return len(self.backoff_states)


class WordLM:
    """A word-level LM as an automaton over words, in single precision, and which forms spell its words.

    Args:
        automaton: over the words `0 .. W - 1` that have a spelling, and an id behind them for all others.
        word_of, form_of: int64 `[P]`, pairs of a word and a form that spells it.
        num_forms: F.
    """

    def __init__(self, automaton: BackoffAutomaton, word_of: np.ndarray, form_of: np.ndarray, num_forms: int) -> None:
        self.automaton, self.word_of, self.form_of, self.num_forms = automaton, word_of, form_of, num_forms
        self.num_words = automaton.vocab_size - 1
        by_word = np.argsort(word_of, kind="stable")
        self._forms_of_word = form_of[by_word]
        self._first_form = np.searchsorted(word_of[by_word], np.arange(self.num_words + 1))
        by_form = np.argsort(form_of, kind="stable")
        self._words_of_form, self._first_word = word_of[by_form], np.searchsorted(form_of[by_form], np.arange(num_forms + 1))

    @classmethod
    def of_table(cls, table: NGramTable, word_of: np.ndarray, form_of: np.ndarray, num_forms: int) -> WordLM:
        """Build it of n-grams of words.

        Those with a word that has no spelling are left out: no text in tokens can meet them. So are those that end in `<unk>`:
        an unknown word has p(<unk>) by backing off to the unigram. Arguments as for the class; words as the table has them.
        """
        table, new_ids = _with_words(table, np.unique(word_of))
        has_unknown = table.row_of_unigram(table.unk) is not None  # the last id has no unigram and so is <unk>
        automaton, _ = automaton_from_table(table, "unk" if has_unknown else MISSING_LOG_PROB)
        return cls(automaton, new_ids[word_of], form_of, num_forms)

    @property
    def start(self) -> int:
        return int(self.automaton.starts[0])

    @property
    def spelled(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where the forms of each word begin, int64 `[W + 1]`, among those of all; and where the words of each form do."""
        return self._first_form, self._forms_of_word, self._first_word

    @property
    def unknown(self) -> float:
        """log p(<unk>)."""
        return float(self.automaton.tensors.arc_weights[self.num_words])

    @property
    def unknown_target(self) -> int:
        """The state behind `<unk>`."""
        return int(self.automaton.tensors.arc_targets[self.num_words])

    def forms(self, states: np.ndarray | None = None) -> FormArcs:
        """The arcs of some states, or of all, for the forms that spell their words."""
        t = self.automaton.tensors
        offsets = t.arc_offsets.numpy()
        if states is None:
            arcs: Any = slice(None)
            numbers = np.repeat(np.arange(t.num_states), np.diff(offsets))
            num_states = t.num_states
        else:
            counts = np.diff(np.stack([offsets[states], offsets[states + 1]]).astype(np.int64), axis=0)[0]
            arcs = np.repeat(offsets[states].astype(np.int64), counts) + _within(counts)
            numbers = np.repeat(np.arange(len(states)), counts)
            num_states = len(states)
        tokens = t.arc_tokens.numpy()[arcs].astype(np.int64)
        weights, behind = t.arc_weights.numpy()[arcs].astype(np.float64), t.arc_targets.numpy()[arcs]
        ends = np.full(num_states, np.nan)
        is_end = tokens == self.num_words + 1
        ends[numbers[is_end]] = weights[is_end]

        # A word's arc becomes one for each of its forms.
        is_word = tokens < self.num_words
        numbers, words, weights, behind = (column[is_word] for column in (numbers, tokens, weights, behind))
        ways = np.diff(self._first_form)[words]
        arc = np.repeat(np.arange(len(words)), ways)
        forms = self._forms_of_word[self._first_form[words[arc]] + _within(ways)]
        numbers, weights, behind = numbers[arc], weights[arc], behind[arc]
        shared = np.diff(self._first_word)[forms] > 1
        if shared.any():
            together = self._homographs(numbers[shared], forms[shared], states)
            numbers, forms, weights, behind = (
                np.concatenate([column[~shared], added])
                for column, added in zip((numbers, forms, weights, behind), together, strict=True)
            )
        order = np.argsort(numbers * self.num_forms + forms, kind="stable")
        return FormArcs(numbers[order], forms[order].astype(np.int32), weights[order], behind[order].astype(np.int32), ends)

    def _homographs(
        self, numbers: np.ndarray, forms: np.ndarray, states: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """State, form, log of the sum of its words' probabilities, and the state behind the likeliest of them."""
        pairs = np.unique(numbers.astype(np.int64) * self.num_forms + forms)
        numbers, forms = pairs // self.num_forms, pairs % self.num_forms
        counts = np.diff(self._first_word)[forms]
        pair = np.repeat(np.arange(len(pairs)), counts)
        words = self._words_of_form[self._first_word[forms[pair]] + _within(counts)]
        asked = (numbers if states is None else states[numbers])[pair]
        found = self.automaton.step(torch.from_numpy(asked.astype(np.int32)), torch.from_numpy(words.astype(np.int32)))
        scores, behind = found[0].double().numpy(), found[1].numpy()
        likeliest = np.lexsort((words, -scores, pair))[np.cumsum(counts) - counts]
        best = scores[likeliest]
        total = np.bincount(pair, np.exp(scores - best[pair]), minlength=len(pairs))
        return numbers, forms, best + np.log(total), behind[likeliest]


def form_lm(words: WordLM) -> FormLM:
    """All of it in double precision."""
    arcs, t = words.forms(), words.automaton.tensors
    return FormLM(
        offsets=np.concatenate([[0], np.cumsum(np.bincount(arcs.states, minlength=t.num_states))]),
        forms=arcs.forms,
        log_probs=arcs.log_probs,
        targets=arcs.targets,
        ends=arcs.ends,
        backoff_states=t.backoff_states.numpy(),
        backoff_weights=t.backoff_weights.double().numpy(),
        start=words.start,
        unknown=words.unknown,
        unknown_target=words.unknown_target,
    )


def _within(counts: np.ndarray) -> np.ndarray:
    """0, 1, ... within each of some runs."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _with_words(table: NGramTable, words: np.ndarray) -> tuple[NGramTable, np.ndarray]:
    """The n-grams of some words, renumbered, with an id behind them that has no unigram; and the new number of each word."""
    is_known = np.zeros(table.num_ids, dtype=bool)
    is_known[words] = True
    new_ids = np.cumsum(is_known) - 1
    is_known[table.vocab_size :] = True
    size = len(words) + 1
    new_ids[table.vocab_size :] = [size, size + 1, size + 2]
    known, numbers = torch.from_numpy(is_known), torch.from_numpy(new_ids.astype(np.int32))
    orders: list[NGramOrder] = []
    rows: Tensor | None = None  # new row of each n-gram of the order below, -1 for those that are left out
    for order in table.orders:
        tokens = order.tokens.to(torch.int64)
        prefixes = order.prefixes if rows is None else rows[order.prefixes]
        mask = known[tokens]
        if rows is not None:
            mask &= (prefixes >= 0) & (tokens != table.unk)
        orders.append(NGramOrder(prefixes[mask], numbers[tokens[mask]], order.log_probs[mask], order.backoffs[mask]))
        rows = torch.where(mask, torch.cumsum(mask, 0) - 1, -1)
    # Orders without n-grams stay: backing off from them may cost something.
    return NGramTable(size, tuple(orders)), new_ids
