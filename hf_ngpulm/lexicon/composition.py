"""Compose a word-level LM with a lexicon into a backoff automaton over tokens.

The words in the n-grams after an LM state h, spelled in tokens, form a trie. Each node of this trie is a state of the
automaton, named (h, x) for the prefix x. It backs off to (h', x), where h' is the first state in h's backoff chain that has the
same prefix. The root has all prefixes. The last token of a word leads to (g, empty), where g is the state after the word in h.
Weights are pushed towards the start of words. With

    mass(h, x) = sum of p(w | h) over all words w, in h's n-grams or not, whose spellings begin with x;    mass(h, empty) = 1

an arc weighs the mass at its end divided by the mass at its start, a word's last arc weighs p(w | h) / mass(h, x), and backing
off from (h, x) weighs b(h) * mass(h', x) / mass(h, x). On any path the masses cancel, and the probabilities of the words
remain. So the sum over a path is the LM's own log-probability, even if the masses are inexact. If each word has exactly one
spelling, and no spelling belongs to two words, the scores are the LM's true marginal over tokens. The probabilities after a
prefix then sum to one. Masses are computed from short contexts to long ones,

    mass(h, x) = sum over h's own words of p(w | h) + b(h) * (mass(h', x) - sum over h's own words of p(w | h'))

in double precision. The bracket may be a difference of nearly equal numbers. If the bracket is below 1e-12 of its first term,
it counts as zero. It also counts as zero if it is negative, which happens in models that don't sum to one. So a mass is never
less than the mass of h's own words, and never zero.

**Ends of words.** A *delimiter* (`|`, in vocabularies of characters) is the last token of each spelling, so no spelling is a
prefix of another. The last word of an utterance may lack its delimiter. In this case, `</s>` at the node before the delimiter
scores p(w | h) * p(</s> | g). A delimiter where no word has begun scores like a token of an unknown word and leaves the state
unchanged.

With a *mark* at the start of words (`▁`, `Ġ`) a word ends when the next word starts, or at `</s>`. The word `▁a` may also
continue to `▁ab`. A token with a mark can't continue a word, and a token without a mark can't begin a word. If a word isn't a
prefix of another word, its last token leads to (g, empty), since nothing else can follow. If x is a word w and a prefix of
longer words, (h, x) needs two backoffs with different weights: to (h', x) for continuing the word, and to (g, empty) for the
next word. But a state has only one backoff. If h has no n-gram with w, both backoffs agree: (h', x) leads to g, and p(w | h) is
b(h) * p(w | h'). If h has such an n-gram, (h, x) backs off to (g, empty) with the weight p(w | h) / mass(h, x). The state
(h, x) then has arcs for *all* tokens that continue words, also for words that occur only in n-grams of other contexts. (Arcs
for all tokens that begin a next word would be several times as many.)

**Unknown words.** An unknown word of n tokens (without its delimiter) scores log p(<unk> | h) + offset - n * cost, and leads to
the state after <unk>. N-grams that end in <unk> are dropped. So p(<unk> | h) always results from backing off to the unigram,
and one state is enough for all unknown words. If a word leaves the trie, (root, x) backs off to that state with a weight that
cancels the score of the word's prefix. With marks, a token without a mark may come where no known word continues with this
token. If the tokens before this token are a word, that word is finished and keeps its score, and this token begins a separate
unknown word. Otherwise all these tokens together are one unknown word. The first word of a text is also unknown if it has no
mark. Tokenizers of byte-level vocabularies may omit the mark of the first word; speech recognisers write it.

**Sentences that follow one another** (`NGramLM.continued`). The composition works for any backoff state. So the LM over words
is changed in the same way as an LM over tokens (see `hf_ngpulm.automaton.continuation`) and then composed. A context that often
ends a sentence backs off to the start of the next sentence. In such a context b(h) is p(</s> | h) * share, and (h, x) backs off
to (start, x).

The states are numbered in this order: first the LM's own states (h, empty), in the order of the LM, then the unknown word, then
the prefixes, by LM state and place in the trie.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from ..automaton import BackoffAutomaton
from ..automaton.tensors import AutomatonTensors, token_dtype
from ..config.config import MAX_CONTEXT_LENGTH
from ..engines.native import Function, Struct
from ..engines.threads import block_bounds, in_blocks
from ..errors import NGramFormatError
from ..ngrams.table import NGramTable
from .spellings import Boundaries, Lexicon
from .trie import Trie, build_trie, sorted_spellings
from .word_lm import STATES_PER_THREAD, FormLM, WordLM

# Score of a forbidden unknown word. It is finite, so that no engine computes with infinities, and far below the score of every
# path within the lexicon. A search that finds no path within the lexicon still returns its best hypothesis.
FORBIDDEN = -1e4


class NgpulmFormLM(Struct):
    """A language model over spellings, and the scores of unknown words, in the form that the core reads.

    Members:
        ends_after: `[A + 1]`, log p(</s>) after each arc; the last element is log p(</s>) after `<unk>`. If None, the core
            looks up these values.
        unknown: natural log-probability of an unknown word at the root.
        unknown_token: natural log, added for each token of an unknown word.
    """


class NgpulmBoundaries(Struct):
    """Word boundaries; see `Boundaries`. The delimiter is -1 if the vocabulary has no delimiter."""


class NgpulmPlaces(Struct):
    """Prefix states. A prefix state (h, x) combines a state h of the LM with a prefix x that isn't empty. Prefix states are
    numbered after the LM's own states. Prefix states have no arcs yet.

    Members:
        first_place: `[S + 1]`, the first prefix state under each state h of the LM, and the end of all prefix states.
        nodes: the trie's node of each prefix state.
        mass: natural log of the probability of all words with the prefix.
        word_arcs: the arc of h for the word that equals the prefix, or -1 if h has no such arc.
        lower: the next prefix state in the backoff chain, (h', x).
    """


class NgpulmComposed(Struct):
    """The arrays of the composed automaton, which the core writes."""


_count_places = Function("ngpulm_count_places")
_weigh_places = Function("ngpulm_weigh_places")
_compose = Function("ngpulm_compose")


class SpelledLM(NamedTuple):
    """A word-level LM and the spellings of its words, ready for composition."""

    lm: WordLM  # the LM over words
    trie: Trie  # the trie of the spellings. Each spelling ends in the delimiter, or has a mark on its first token only.
    boundaries: Boundaries  # the tokens that end or begin words
    unknown_score: float  # natural log-probability of an unknown word at the root, without its tokens
    unknown_token_score: float  # natural log, added for each token of an unknown word
    context_length: int  # see `BackoffAutomaton`

    @classmethod
    def of(
        cls, lm: WordLM, trie: Trie, boundaries: Boundaries, unk_score_offset: float | None, unk_token_cost: float
    ) -> SpelledLM:
        """Combine an LM with spellings.

        Unknown words are scored as in `hf_ngpulm.lexicon.compose`. If `unk_score_offset` is None, unknown words are forbidden.
        """
        unknown = FORBIDDEN if unk_score_offset is None else lm.unknown + unk_score_offset
        # In two cases a state may depend on more than `order` words of the lexicon: if words end at delimiters (the end of a
        # long unknown word may look like a known word), or if the context decides between words with the same spelling.
        is_local = boundaries.delimiter is None and len(lm.form_of) == trie.num_forms
        length = (lm.automaton.context_length + 2) * (trie.longest + 1) if is_local else MAX_CONTEXT_LENGTH
        return cls(lm, trie, boundaries, unknown, -unk_token_cost, min(length, MAX_CONTEXT_LENGTH))

    @classmethod
    def of_table(cls, table: NGramTable, lexicon: Lexicon, unk_score_offset: float | None, unk_token_cost: float) -> SpelledLM:
        """Build the spelled LM from n-grams over words and a lexicon. The other arguments are as for `of`."""
        form_of, offsets, tokens = sorted_spellings(lexicon.offsets, lexicon.tokens)
        lm = WordLM.of_table(table, lexicon.words, form_of, len(offsets) - 1)
        return cls.of(lm, build_trie(offsets, tokens), lexicon.boundaries, unk_score_offset, unk_token_cost)

    def continued(self, share: float) -> SpelledLM:
        """Return a copy in which another sentence follows with the probability `share`. The automaton reads `</s>` and `<s>` in
        one step.
        """
        return self._replace(lm=self.lm.continued(share))

    @property
    def num_contexts(self) -> int:
        """Number of the LM's own states (states between words)."""
        return self.lm.automaton.num_states

    @property
    def vocab_size(self) -> int:
        return len(self.boundaries.begins_word)


def compose_automaton(spelled: SpelledLM) -> BackoffAutomaton:
    """Compose a word-level LM with the trie of its spellings. Raises NGramFormatError if there are too many states."""
    tensors, _ = compose_states(spelled.lm.over_forms(spelled.num_contexts), spelled)
    start = torch.tensor([spelled.lm.start], dtype=torch.int32)
    root = torch.zeros(1, dtype=torch.int32)
    return BackoffAutomaton(tensors, spelled.vocab_size, spelled.context_length, root, start)


def compose_states(
    lm: FormLM, spelled: SpelledLM, ends_after: np.ndarray | None = None, more_states: int = 0
) -> tuple[AutomatonTensors, np.ndarray]:
    """Return the composed states, starting with the LM's own states. Also return the mass of each prefix state, float64.

    Args:
        lm: the LM over forms, or only its first states.
        spelled: the LM over words, its spellings and the scores of unknown words.
        ends_after: log p(</s>) after each arc; the last element is log p(</s>) after `<unk>`. It is required if `lm` lacks the
            target states of its arcs.
        more_states: number of additional states to reserve, which have no arcs yet.
    """
    trie, boundaries, own_states = spelled.trie, spelled.boundaries, len(lm.backoff_states)
    native = (
        NgpulmFormLM(
            **lm._asdict(), ends_after=ends_after, num_states=own_states, unknown=spelled.unknown_score,
            unknown_token=spelled.unknown_token_score,
        ),
        trie.native,
        NgpulmBoundaries(
            begins_word=boundaries.begins_word, delimiter=boundaries.delimiter_id, vocab_size=spelled.vocab_size
        ),
    )  # fmt: skip
    first_place = np.empty(own_states + 1, dtype=np.int64)
    num_places = _count_places(*native[:2], first_place)
    num_states = own_states + num_places
    _check_size(num_states, len(lm.forms))
    of_places: dict[str, Any] = {name: np.empty(num_places, dtype=np.int32) for name in ("nodes", "word_arcs", "lower")}
    mass = np.empty(num_places)
    places = NgpulmPlaces(first_place=first_place, mass=mass, **of_places)
    arc_offsets = torch.empty(num_states + more_states + 1, dtype=torch.int32)
    num_arcs = _weigh_places(*native, places, arc_offsets)
    _check_size(num_states, num_arcs)
    arc_offsets[num_states:] = num_arcs
    tensors = AutomatonTensors(
        arc_offsets=arc_offsets,
        arc_tokens=torch.empty(num_arcs, dtype=token_dtype(spelled.vocab_size)),
        arc_weights=torch.empty(num_arcs),
        arc_targets=torch.empty(num_arcs, dtype=torch.int32),
        backoff_states=torch.zeros(num_states + more_states, dtype=torch.int32),
        backoff_weights=torch.zeros(num_states + more_states),
    )
    out = NgpulmComposed(**tensors._asdict(), token_bytes=tensors.arc_tokens.element_size())
    for broken in in_blocks(_compose, block_bounds(own_states, STATES_PER_THREAD), (*native, places, out)):
        assert broken < 0, f"state {broken} has another number of arcs than were counted"
    return tensors, mass


def _check_size(num_states: int, num_arcs: int) -> None:
    if max(num_states, num_arcs) >= 2**31:
        raise NGramFormatError(
            f"composed with its lexicon the language model would have {num_states} states and {num_arcs} arcs; at most "
            "2**31 - 1 can be addressed: prune it first"
        )
