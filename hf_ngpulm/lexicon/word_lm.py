"""The word-level LM as composition walks it: a backoff automaton over spelled forms in double precision."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..automaton.convert import MISSING_LOG_PROB, automaton_from_table
from ..ngrams.table import NGramOrder, NGramTable


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


def form_lm(table: NGramTable, word_of: np.ndarray, form_of: np.ndarray, num_forms: int) -> FormLM:
    """Build it.

    Args:
        table: n-grams of words. Those with a word that has no spelling are left out: no text in tokens can meet them. So are
            those that end in `<unk>`: an unknown word has p(<unk>) by backing off to the unigram.
        word_of, form_of: pairs of a word and a form that spells it, `[P]`.
        num_forms: F.
    """
    table, new_ids = _with_words(table, np.unique(word_of))
    word_of = new_ids[word_of]
    num_words = table.vocab_size - 1  # the last id has no unigram and so is <unk>
    has_unknown = table.row_of_unigram(table.unk) is not None
    automaton, _ = automaton_from_table(table, "unk" if has_unknown else MISSING_LOG_PROB)
    t = automaton.tensors
    arc_offsets, tokens = t.arc_offsets.to(torch.int64).numpy(), t.arc_tokens.to(torch.int64).numpy()
    weights, targets = t.arc_weights.double().numpy(), t.arc_targets.numpy()
    states = np.repeat(np.arange(t.num_states), np.diff(arc_offsets))

    ends = np.full(t.num_states, np.nan)
    is_end = tokens == num_words + 1
    ends[states[is_end]] = weights[is_end]

    # A word's arc becomes one for each of its forms.
    is_word = tokens < num_words
    states, words, weights, behind = (column[is_word] for column in (states, tokens, weights, targets))
    by_word = np.argsort(word_of, kind="stable")
    forms_of_word = form_of[by_word]
    first_form = np.searchsorted(word_of[by_word], np.arange(num_words + 1))
    ways = np.diff(first_form)[words]
    arc = np.repeat(np.arange(len(words)), ways)
    forms = forms_of_word[first_form[words[arc]] + _within(ways)]
    states, weights, behind = states[arc], weights[arc], behind[arc]

    words_of_form = np.bincount(form_of, minlength=num_forms)
    shared = words_of_form[forms] > 1
    if shared.any():
        together = _homographs(automaton, states[shared], forms[shared], word_of, form_of, num_forms)
        states, forms, weights, behind = (
            np.concatenate([column[~shared], added])
            for column, added in zip((states, forms, weights, behind), together, strict=True)
        )
    order = np.argsort(states * num_forms + forms, kind="stable")
    return FormLM(
        offsets=np.concatenate([[0], np.cumsum(np.bincount(states, minlength=t.num_states))]),
        forms=forms[order].astype(np.int32),
        log_probs=weights[order],
        targets=behind[order].astype(np.int32),
        ends=ends,
        backoff_states=t.backoff_states.numpy(),
        backoff_weights=t.backoff_weights.double().numpy(),
        start=int(automaton.starts[0]),
        unknown=float(t.arc_weights[num_words]),
        unknown_target=int(t.arc_targets[num_words]),
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


def _homographs(
    automaton, states: np.ndarray, forms: np.ndarray, word_of: np.ndarray, form_of: np.ndarray, num_forms: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """State, form, log of the sum of its words' probabilities, and the state behind the likeliest of them."""
    pairs = np.unique(states.astype(np.int64) * num_forms + forms)
    by_form = np.argsort(form_of, kind="stable")
    words_of_form, first_word = word_of[by_form], np.searchsorted(form_of[by_form], np.arange(num_forms + 1))
    counts = np.diff(first_word)[pairs % num_forms]
    pair = np.repeat(np.arange(len(pairs)), counts)
    words = words_of_form[first_word[pairs[pair] % num_forms] + _within(counts)]
    scores, behind = automaton.step(
        torch.from_numpy((pairs[pair] // num_forms).astype(np.int32)), torch.from_numpy(words.astype(np.int32))
    )
    scores, behind = scores.double().numpy(), behind.numpy()
    likeliest = np.lexsort((words, -scores, pair))[np.cumsum(counts) - counts]
    best = scores[likeliest]
    total = np.bincount(pair, np.exp(scores - best[pair]), minlength=len(pairs))
    return pairs // num_forms, pairs % num_forms, best + np.log(total), behind[likeliest]
