"""A word-level LM, composed with a lexicon into a backoff automaton over tokens.

The words that an LM state h has n-grams for, spelled in tokens, form a trie. Node (h, x), prefix x under state h, is a state
of the automaton, and backs off to (h', x), the same prefix under the state that h backs off to (or under the first one
further on that has the prefix; the root has all of them). The last token of a word leads to (g, empty), where g is the state
after the word in h. Weights are pushed towards the start: with

    mass(h, x) = sum of p(w | h) over all words w, known to h or not, whose spellings begin with x;    mass(h, empty) = 1

an arc weighs the quotient of the masses at its ends, a word's last arc p(w | h) / mass(h, x), and backing off from (h, x)
weighs b(h) * mass(h', x) / mass(h, x). Whatever way a path takes, these cancel out but for the probabilities of its words:
the sum over a path is the LM's own log-probability, however well the masses are known. Where every word has one spelling of
its own, the scores are those of the LM's true marginal over tokens, and those of a prefix sum to one. Masses come from short
contexts to long ones,

    mass(h, x) = sum over h's own words of p(w | h) + b(h) * (mass(h', x) - sum over h's own words of p(w | h'))

in double precision. The bracket is a difference of what may be nearly equal numbers: below 1e-12 of the first it counts as
none, as it does below zero, which models that don't sum to one give. So a mass is never less than that of h's own words, nor
zero.

**Where words end.** With a *delimiter* (`|`, vocabularies of characters) it is the last token of each spelling, and no
spelling is another's prefix. An utterance's last word may lack it: `</s>` at a node before a delimiter scores p(w | h) *
p(</s> | g). A delimiter where no word has begun says nothing: it scores as a token of an unknown word does, and leaves the
state as it is.

With a *mark* at the start of words (`▁`, `Ġ`) a word ends when the next one starts, or at `</s>`; and `▁a` may go on to
`▁ab`. A token with a mark can't go on with a word, one without can't begin one. A word that no other begins with leads to (g,
empty) by its last token: nothing else can follow. Where x is a word w and goes on to others, (h, x) has to back off to (h',
x) for what goes on, by one weight, and for a next word to (g, empty), by another; but a state has one backoff. If h has no
n-gram with w, both come to the same: (h', x) knows g, and p(w | h) is b(h) * p(w | h'). If it has one, (h, x) backs off to
(g, empty), which weighs p(w | h) / mass(h, x), and has arcs for *all* tokens that words go on with, whichever context knows
these words. (Arcs for all beginnings of next words would be several times as many.)

**Unknown words.** One of n tokens (its delimiter not among them) scores log p(<unk> | h) + offset - n * cost, and leads to
the state after <unk>. n-grams that end in <unk> are left out, so p(<unk> | h) is that of backing off to the unigram,
whatever the context, and so one state serves all unknown words. A word that the trie loses on its way backs off from (root,
x) to that state, for a weight that gives back what its prefix has scored. With marks, a token without one that no word goes
on with begins an unknown word of its own if what stands before it is a word (the word has been said, and its score stays);
otherwise the whole is unknown. So is a text's first word where it is written without a mark, as tokenizers of byte-level
vocabularies may do; speech recognisers put one there.

**Sentences that follow one another** (`NGramLM.continued`). Nothing above asks what a state backs off to. So the LM over words
is changed as one over tokens is (see `hf_ngpulm.automaton.continuation`), a context that often ends a sentence backing off to
the start of the next one, and then composed: b(h) is p(</s> | h) * share there, and (h, x) backs off to (start, x).

States: the LM's own, in their order, are (h, empty); then the unknown word; then the prefixes, by LM state and place in the
trie.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from ..automaton import BackoffAutomaton
from ..automaton.automaton import MAX_CONTEXT_LENGTH
from ..automaton.tensors import AutomatonTensors, token_dtype
from ..engines.native import Function, Struct
from ..engines.threads import block_bounds, in_blocks
from ..errors import NGramFormatError
from ..ngrams.table import NGramTable
from .spellings import Boundaries, Lexicon
from .trie import Trie, build_trie, sorted_spellings
from .word_lm import STATES_PER_THREAD, FormLM, WordLM

# Score of a forbidden unknown word: finite, so that no engine computes with infinities, and far below any path within the
# lexicon. A search without such a path still returns its best hypothesis.
FORBIDDEN = -1e4


class NgpulmFormLM(Struct):
    """A language model over spellings, and what is said of unknown words, as the core reads them.

    Members:
        ends_after: `[A + 1]`, log p(</s>) after each arc and, last, after `<unk>`; None where that is to be looked up.
        unknown, unknown_token: natural log-probability of an unknown word at the root, and what each token adds.
    """


class NgpulmBoundaries(Struct):
    """Word boundaries, see `Boundaries`; -1 stands for no delimiter."""


class NgpulmPlaces(Struct):
    """Prefix states before they have arcs, numbered consecutively after the LM's own states.

    Members:
        first_place: `[S + 1]`, first prefix state under each state of the LM.
        nodes: their nodes in the trie.
        mass: natural log of the probability of all words with the prefix.
        word_arcs: the LM's arc for the word that ends there, -1 if the LM's state has none.
        lower: the prefix state of the same node under the first state down the backoff chain that has it.
    """


class NgpulmComposed(Struct):
    """The composed automaton, written by the core."""


_count_places = Function("ngpulm_count_places")
_weigh_places = Function("ngpulm_weigh_places")
_compose = Function("ngpulm_compose")


class SpelledLM(NamedTuple):
    """A word-level LM and the spellings of its words, ready for composition.

    Args:
        lm: the LM over words.
        trie: of the spellings, each of which ends in the delimiter, or has a mark on its first token only.
        boundaries: the tokens that end or begin words.
        unknown_score: natural log-probability of an unknown word at the root, without its tokens.
        unknown_token_score: added for each of its tokens.
        context_length: see `BackoffAutomaton`.
    """

    lm: WordLM
    trie: Trie
    boundaries: Boundaries
    unknown_score: float
    unknown_token_score: float
    context_length: int

    @classmethod
    def of(
        cls, lm: WordLM, trie: Trie, boundaries: Boundaries, unk_score_offset: float | None, unk_token_cost: float
    ) -> SpelledLM:
        """Combine an LM with spellings. Unknown words as for `hf_ngpulm.lexicon.compose`; `None` as offset closes the
        vocabulary."""
        unknown = FORBIDDEN if unk_score_offset is None else lm.unknown + unk_score_offset
        # A state may depend on more than `order` words of the lexicon: where words are cut at delimiters (the end of a long
        # unknown word may look like a known word), or where the context decides between words of one spelling.
        is_local = boundaries.delimiter is None and len(lm.form_of) == trie.num_forms
        length = (lm.automaton.context_length + 2) * (trie.longest + 1) if is_local else MAX_CONTEXT_LENGTH
        return cls(lm, trie, boundaries, unknown, -unk_token_cost, min(length, MAX_CONTEXT_LENGTH))

    @classmethod
    def of_table(cls, table: NGramTable, lexicon: Lexicon, unk_score_offset: float | None, unk_token_cost: float) -> SpelledLM:
        """Build it from n-grams over words."""
        form_of, offsets, tokens = sorted_spellings(lexicon.offsets, lexicon.tokens)
        lm = WordLM.of_table(table, lexicon.words, form_of, len(offsets) - 1)
        return cls.of(lm, build_trie(offsets, tokens), lexicon.boundaries, unk_score_offset, unk_token_cost)

    def continued(self, share: float) -> SpelledLM:
        """Return a copy in which sentences follow one another: `</s>` and `<s>` are one step between two words."""
        return self._replace(lm=self.lm.continued(share))

    @property
    def num_contexts(self) -> int:
        """Number of the LM's own states, between words."""
        return self.lm.automaton.num_states

    @property
    def vocab_size(self) -> int:
        return len(self.boundaries.begins_word)


def compose_automaton(spelled: SpelledLM) -> BackoffAutomaton:
    """Compose a word-level LM with the trie of its words' spellings.

    Raises:
        NGramFormatError: the automaton would have more states or arcs than can be addressed.
    """
    tensors, _ = compose_states(spelled.lm.over_forms(spelled.num_contexts), spelled)
    start = torch.tensor([spelled.lm.start], dtype=torch.int32)
    root = torch.zeros(1, dtype=torch.int32)
    return BackoffAutomaton(tensors, spelled.vocab_size, spelled.context_length, root, start)


def compose_states(
    lm: FormLM, spelled: SpelledLM, ends_after: np.ndarray | None = None, more_states: int = 0
) -> tuple[AutomatonTensors, np.ndarray]:
    """Return composed states, those of the LM first, and the mass of each prefix, float64.

    Args:
        lm: the LM over forms, or only its first states.
        ends_after: log p(</s>) after each arc and, last, after `<unk>`; for an LM without the target states.
        more_states: spare room for states without arcs yet.
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
