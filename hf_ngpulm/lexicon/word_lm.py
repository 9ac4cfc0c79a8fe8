"""Prepare the word-level LM for composition: make it a backoff automaton over spellings, in double precision."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..automaton import BackoffAutomaton
from ..automaton.continuation import continued
from ..automaton.convert import MISSING_LOG_PROB, automaton_from_table
from ..automaton.cpu import Automaton
from ..config.word_summary import LARGEST_SCORE
from ..engines.native import Function, Struct
from ..engines.threads import block_bounds, in_blocks
from ..errors import NGramFormatError
from ..ngrams.table import NGramOrder, NGramTable

# Composing a state costs time in proportion to the spellings of its words, and to the words of these spellings.
MOST_SPELLINGS, MOST_HOMOGRAPHS = 1024, 16384

# For fewer states than this, a second thread costs more than it saves.
STATES_PER_THREAD = 1 << 15


class NgpulmWords(Struct):
    """The forms (distinct spellings) of a model's words, as arrays for the core."""


_count_forms = Function("ngpulm_count_forms")
_read_forms = Function("ngpulm_read_forms")
_score_ends = Function("ngpulm_score_ends")


class FormLM(NamedTuple):
    """The probabilities p(form | LM state) in `S` states. A form is a distinct spelling of a lexicon. The forms have the
    numbers `0 .. F - 1`.

    State 0, the root, has all forms. Words with the same spelling are one form, whose probability is the sum of the words'
    probabilities. After the form, the LM continues in the state after the likeliest of these words.
    """

    offsets: np.ndarray  # int64 [S + 1]: the arcs of state s
    forms: np.ndarray  # int32 [A], ascending within a state
    log_probs: np.ndarray  # float64 [A], natural log
    targets: np.ndarray  # int32 [A], the state of the LM after the form
    ends: np.ndarray  # float64 [S]: log p(</s> | state), NaN for a state without an own arc for </s>
    backoff_states: np.ndarray  # int32 [S]
    backoff_weights: np.ndarray  # float64 [S]
    start: int
    unknown_target: int  # the state after <unk>


class WordLM:
    """A word-level LM as an automaton over words in single precision, and the forms (distinct spellings) of the words.

    Args:
        automaton: automaton over the words with a spelling, `0 .. W - 1`, and one more id for all other words.
        word_of, form_of: int64 `[P]`, pairs of a word and a form of this word.
        num_forms: F, the number of forms.

    Raises:
        NGramFormatError: a word has too many spellings for a search, a spelling has too many words, or the scores of n-grams
            overflow single precision.
    """

    def __init__(self, automaton: BackoffAutomaton, word_of: np.ndarray, form_of: np.ndarray, num_forms: int) -> None:
        self.automaton, self.word_of, self.form_of, self.num_forms = automaton, word_of, form_of, num_forms
        self.num_words = automaton.vocab_size - 1
        by_word = np.argsort(word_of, kind="stable")
        self._forms_of_word = form_of[by_word]
        self._first_form = np.searchsorted(word_of[by_word], np.arange(self.num_words + 1))
        by_form = np.argsort(form_of, kind="stable")
        self._words_of_form, self._first_word = word_of[by_form], np.searchsorted(form_of[by_form], np.arange(num_forms + 1))
        for what, first, most in (
            ("a word has {} spellings", self._first_form, MOST_SPELLINGS),
            ("{} words have the same spelling", self._first_word, MOST_HOMOGRAPHS),
        ):
            if (found := int(np.diff(first).max(initial=0))) > most:
                raise NGramFormatError(f"{what.format(found)}; at most {most} can be used")
        for weights in (automaton.tensors.arc_weights, automaton.tensors.backoff_weights):
            largest = max(abs(float(bound)) for bound in weights.aminmax())
            if not largest <= LARGEST_SCORE:
                raise NGramFormatError(f"the score {largest:g} of an n-gram is more than {LARGEST_SCORE:g} in size")

    @classmethod
    def of_table(cls, table: NGramTable, word_of: np.ndarray, form_of: np.ndarray, num_forms: int) -> WordLM:
        """Build the LM from n-grams over words. The values of `word_of` are the table's word ids; see `WordLM` for the
        arguments.

        N-grams with a word that has no spelling are dropped, because no text in tokens reaches them. N-grams that end in
        `<unk>` are also dropped, because an unknown word backs off to the unigram's p(<unk>).
        """
        table, new_ids = _with_words(table, np.unique(word_of))
        has_unknown = table.row_of_unigram(table.unk) is not None  # the last id has no unigram and so is <unk>
        automaton, _ = automaton_from_table(table, "unk" if has_unknown else MISSING_LOG_PROB)
        return cls(automaton, new_ids[word_of], form_of, num_forms)

    def continued(self, share: float) -> WordLM:
        """Return a copy in which another sentence follows with the probability `share` (see `automaton.continuation`)."""
        longest = max(self.automaton.context_length, 2)  # a word, the start of its sentence, the root
        return WordLM(continued(self.automaton, share, longest), self.word_of, self.form_of, self.num_forms)

    @property
    def start(self) -> int:
        return int(self.automaton.starts[0])

    @property
    def native(self) -> tuple[Automaton, NgpulmWords]:
        """The automaton and the forms of its words, as structs for the core."""
        words = NgpulmWords(
            first_form=self._first_form, forms_of_word=self._forms_of_word, first_word=self._first_word,
            words_of_form=self._words_of_form, num_words=self.num_words,
        )  # fmt: skip
        return Automaton.of(self.automaton.tensors, self.automaton.vocab_size), words

    @property
    def unknown(self) -> float:
        """Natural log-probability of the unigram `<unk>`."""
        return float(self.automaton.tensors.arc_weights[self.num_words])

    @property
    def unknown_target(self) -> int:
        """The state after `<unk>`."""
        return int(self.automaton.tensors.arc_targets[self.num_words])

    def over_forms(self, last: int) -> FormLM:
        """Return the first `last` states in double precision. Their arcs are for forms instead of words."""
        counts, bounds, native = np.empty(last, dtype=np.int64), block_bounds(last, STATES_PER_THREAD), self.native
        in_blocks(_count_forms, bounds, (*native, counts))
        offsets = np.concatenate([[0], np.cumsum(counts)])
        size = int(offsets[-1])
        forms, targets = np.empty(size, dtype=np.int32), np.empty(size, dtype=np.int32)
        log_probs, ends = np.empty(size), np.empty(last)
        in_blocks(_read_forms, bounds, (*native, offsets, forms, log_probs, targets, ends))
        t = self.automaton.tensors
        backoffs = t.backoff_states[:last].numpy(), t.backoff_weights[:last].double().numpy()
        return FormLM(offsets, forms, log_probs, targets, ends, *backoffs, self.start, self.unknown_target)

    def score_ends(self, states: np.ndarray) -> np.ndarray:
        """Return log p(</s>) in each state of `states` (int32), as float64."""
        scores = np.empty(len(states))
        _score_ends(0, len(states), *self.native, states, scores)
        return scores


def _with_words(table: NGramTable, words: np.ndarray) -> tuple[NGramTable, np.ndarray]:
    """Select the n-grams over the words with the ids `words`, and give these words new ids. Return the n-grams, and the new id
    of each old id. All other words get one more new id, which has no unigram.
    """
    is_known = np.zeros(table.num_ids, dtype=bool)
    is_known[words] = True
    new_ids = np.cumsum(is_known) - 1
    is_known[table.vocab_size :] = True
    size = len(words) + 1
    new_ids[table.vocab_size :] = [size, size + 1, size + 2]
    known, numbers = torch.from_numpy(is_known), torch.from_numpy(new_ids.astype(np.int32))
    orders: list[NGramOrder] = []
    rows: Tensor | None = None  # new row of each n-gram one token shorter, -1 if it is left out
    for order in table.orders:
        tokens = order.tokens.to(torch.int64)
        prefixes = order.prefixes if rows is None else rows[order.prefixes]
        mask = known[tokens]
        if rows is not None:
            mask &= (prefixes >= 0) & (tokens != table.unk)
        orders.append(NGramOrder(prefixes[mask], numbers[tokens[mask]], order.log_probs[mask], order.backoffs[mask]))
        rows = torch.where(mask, torch.cumsum(mask, 0) - 1, -1)
    # Keep orders without n-grams, since backing off from them may cost something.
    return NGramTable(size, tuple(orders)), new_ids
