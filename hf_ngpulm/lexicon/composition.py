"""A word-level LM, composed with a lexicon into a backoff automaton over tokens.

The words that an LM state h has n-grams for, spelled in tokens, form a trie. Node (h, x), prefix x under state h, is a state
of the automaton, and backs off to (h', x), the same prefix under the state that h backs off to (or under the first one
further on that has the prefix; the root has all of them). The last token of a word leads to (g, empty), where g is the state
behind the word in h. Weights are pushed towards the start: with

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
the state behind <unk>. n-grams that end in <unk> are left out, so p(<unk> | h) is that of backing off to the unigram,
whatever the context, and so one state serves all unknown words. A word that the trie loses on its way backs off from (root,
x) to that state, for a weight that gives back what its prefix has scored. With marks, a token without one that no word goes
on with begins an unknown word of its own if what stands before it is a word (the word has been said, and its score stays);
otherwise the whole is unknown. So is a text's first word where it is written without a mark, as tokenizers of byte-level
vocabularies may do; speech recognisers put one there.

States: the LM's own, in their order, are (h, empty); then the unknown word; then the prefixes, by LM state and place in the
trie.
"""

from __future__ import annotations

import numpy as np
import torch

from ..automaton import BackoffAutomaton
from ..automaton.automaton import MAX_CONTEXT_LENGTH
from ..automaton.tensors import AutomatonTensors, token_dtype
from ..errors import NGramFormatError
from . import loops
from .spellings import Boundaries
from .trie import Trie
from .word_lm import FormLM


def compose_automaton(
    lm: FormLM, trie: Trie, boundaries: Boundaries, unknown_score: float, unknown_token_score: float, context_length: int
) -> BackoffAutomaton:
    """Compose a word-level LM with the trie of its words' spellings.

    Args:
        lm: over the spellings.
        trie: of these.
        boundaries: what ends or begins a word. Spellings end in the delimiter, or begin with the only token that has a mark.
        unknown_score: natural log-probability of an unknown word at the root, without its tokens.
        unknown_token_score: what each of its tokens adds.
        context_length: see `BackoffAutomaton`.

    Raises:
        NGramFormatError: the automaton would have more states or arcs than can be addressed.
    """
    vocab_size, delimiter = len(boundaries.begins_word), boundaries.delimiter_id
    paths, longest = (trie.path_offsets, trie.path_nodes), trie.longest
    every = (0, lm.num_states)
    first_place = np.empty(lm.num_states + 1, dtype=np.int64)
    loops.count_places(*every, lm.offsets, lm.forms, *paths, trie.num_nodes, first_place)
    size = int(first_place[-1])
    num_states = lm.num_states + size
    arcs_of_lm = (lm.offsets, lm.forms, lm.log_probs, lm.backoff_states, lm.backoff_weights)
    nodes, mass, word_arcs = np.empty(size, dtype=np.int32), np.empty(size), np.empty(size, dtype=np.int64)
    loops.weigh(*every, *arcs_of_lm, *paths, first_place, trie.num_nodes, longest, nodes, mass, word_arcs)
    arc_offsets = loops.count_arcs(
        *every, lm.offsets, lm.forms, lm.ends, *paths, trie.child_offsets, first_place, nodes, word_arcs, delimiter,
        vocab_size, boundaries.num_unknown_arcs, longest,
    )  # fmt: skip
    num_arcs = int(arc_offsets[-1])
    if max(num_states, num_arcs) >= 2**31:
        raise NGramFormatError(
            f"composed with its lexicon the language model would have {num_states} states and {num_arcs} arcs; at most "
            "2**31 - 1 can be addressed: prune it first"
        )
    arc_tokens = np.empty(num_arcs, dtype=np.int16 if token_dtype(vocab_size) == torch.int16 else np.int32)
    arc_weights, arc_targets = np.empty(num_arcs, dtype=np.float32), np.empty(num_arcs, dtype=np.int32)
    backoff_states, backoff_weights = np.empty(num_states, dtype=np.int32), np.empty(num_states, dtype=np.float32)
    behind = np.append(lm.targets, lm.unknown_target) if delimiter >= 0 else lm.targets[:0]
    ends_behind = loops.score_ends(lm.ends, lm.backoff_states, lm.backoff_weights, behind)
    own_ids, shifts = np.arange(lm.num_states), np.full(lm.num_states, lm.num_states)
    broken = loops.fill(
        *every, *arcs_of_lm, lm.ends, ends_behind, lm.targets, own_ids, shifts, lm.start, unknown_score, lm.unknown_target,
        ends_behind[-1] if delimiter >= 0 else 0.0, unknown_token_score,
        trie.path_offsets, trie.path_nodes, trie.path_tokens, trie.depths, trie.child_offsets,
        trie.child_tokens, trie.child_nodes, trie.child_forms,
        first_place, nodes, mass, word_arcs, boundaries.begins_word, delimiter, vocab_size, longest, arc_offsets,
        arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    )  # fmt: skip
    assert broken < 0, f"state {broken} has another number of arcs than were counted"
    tensors = AutomatonTensors(
        torch.from_numpy(arc_offsets.astype(np.int32)), torch.from_numpy(arc_tokens), torch.from_numpy(arc_weights),
        torch.from_numpy(arc_targets),
        torch.from_numpy(backoff_states), torch.from_numpy(backoff_weights),
    )  # fmt: skip
    start = torch.tensor([lm.start], dtype=torch.int32)
    return BackoffAutomaton(
        tensors, vocab_size, min(context_length, MAX_CONTEXT_LENGTH), torch.zeros(1, dtype=torch.int32), start
    )
