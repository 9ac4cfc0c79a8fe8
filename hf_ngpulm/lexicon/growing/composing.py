"""Composing states of a word-level LM with its lexicon one by one: compiled loops.

What they compute is said in `hf_ngpulm.lexicon.composition`. All sums and quotients are those of `hf_ngpulm.lexicon.loops`, in
the same order, so that weights are the same to the bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from ...automaton.cpu import borrowed_arrays, compiled, find_arc
from ..loops import LARGEST, LARGEST_LOG, NOTHING, SMALLEST

# Why composing has stopped: it is done; there may be no room for the states and arcs of the next state; or for the words of the
# LM's state that it says; or several of these have one spelling, and are read otherwise.
DONE, NO_ROOM, NO_ROOM_FOR_WORDS, UNREAD = 0, 1, 2, 3
# Handing over so many arrays takes longer than what these functions do.
inlined = njit(inline="always", error_model="numpy")
# What `counts` counts.
STATES, ARCS, READ, WORD_ARCS, COMPOSED = 0, 1, 2, 3, 4


class OfWords(NamedTuple):
    """The LM over words, and which forms spell these."""

    arc_offsets: np.ndarray
    arc_tokens: np.ndarray
    arc_weights: np.ndarray
    arc_targets: np.ndarray
    backoff_states: np.ndarray
    backoff_weights: np.ndarray
    first_form: np.ndarray  # int64 [W + 1]: the forms of word w among those of all
    forms_of_word: np.ndarray  # int64
    first_word: np.ndarray  # int64 [F + 1]: the same the other way round


class OfTrie(NamedTuple):
    """The trie of forms."""

    path_offsets: np.ndarray
    path_nodes: np.ndarray
    path_tokens: np.ndarray
    depths: np.ndarray
    child_offsets: np.ndarray
    child_tokens: np.ndarray
    child_nodes: np.ndarray
    child_forms: np.ndarray
    end_forms: np.ndarray  # int32 [N]: behind the last form that goes through a node


class Grown(NamedTuple):
    """What there is so far. `K` states, the k-th of which has the number `2 * k`, so that its arcs may lie anywhere."""

    # Of the LM's states: their numbers among those that have been read, and their states of the empty prefix, more by one.
    read: np.ndarray
    own_state: np.ndarray
    # Of those that have been read, their forms.
    word_offsets: np.ndarray
    forms: np.ndarray
    log_probs: np.ndarray
    targets: np.ndarray
    probs: np.ndarray
    lower_probs: np.ndarray  # in the state that they back off to
    # Of each state: the LM's, the node, the log of its mass, its first form, and the state of the same node further down.
    of_lm: np.ndarray
    nodes: np.ndarray
    mass: np.ndarray
    first_word_arc: np.ndarray
    lower: np.ndarray
    composed: np.ndarray  # states in the order in which they have been composed
    unfinished: np.ndarray  # uint8, by number: those that have no arcs yet, or back off to such
    # The automaton.
    arc_offsets: np.ndarray
    arc_tokens: np.ndarray
    arc_weights: np.ndarray
    arc_targets: np.ndarray
    backoff_states: np.ndarray
    backoff_weights: np.ndarray


class Settings(NamedTuple):
    """What composition takes besides."""

    num_words: int
    vocab_size: int
    delimiter: int  # -1 for none
    start: int  # the LM's state that sentences begin in
    order: int  # states of the LM in a row of backoffs, at most
    begin: int  # the LM's state whose delimiters get no bonus, -1 for none
    unknown_token: float
    word_bonus: float
    delimiter_bonus: float


@compiled
def end_forms(path_offsets, path_nodes, num_nodes):
    """Behind the last form that goes through each node, int32."""
    ends = np.zeros(num_nodes, dtype=np.int32)
    ends[0] = path_offsets.size - 1
    for form in range(path_offsets.size - 1):
        for at in range(path_offsets[form], path_offsets[form + 1]):
            if path_nodes[at] >= 0:
                ends[path_nodes[at]] = form + 1
    return ends


@compiled
def _own_state(words, grown, counts, of_lm):
    """The state of the empty prefix under a state of the LM; it is made, with those that it backs off to, if there is none."""
    while grown.own_state[of_lm] == 0:
        state = of_lm
        while grown.own_state[words.backoff_states[state]] == 0:
            state = words.backoff_states[state]
        below = grown.own_state[words.backoff_states[state]] - 1
        made = _add_state(grown, counts, state, 0, 0.0, -1, below)
        grown.backoff_states[2 * made] = 2 * below
        grown.backoff_weights[2 * made] = words.backoff_weights[state]
        grown.own_state[state] = made + 1
    return np.int64(grown.own_state[of_lm]) - 1


@inlined
def _add_state(grown, counts, of_lm, node, mass, first_word_arc, lower):
    made = counts[STATES]
    counts[STATES] += 1
    grown.of_lm[made], grown.nodes[made], grown.mass[made] = of_lm, node, mass
    grown.first_word_arc[made], grown.lower[made] = first_word_arc, lower
    grown.unfinished[2 * made] = 1
    return made


@inlined
def _find_lower(words, grown, weight, state, token):
    """The state of a node's child under the first one of the LM's states below that has it, and a weight with those of backing
    off to it."""
    of_lm, state = np.int64(words.backoff_states[grown.of_lm[state]]), np.int64(grown.lower[state])
    while True:
        while of_lm != grown.of_lm[state]:
            weight += np.float64(words.backoff_weights[of_lm])
            of_lm = np.int64(words.backoff_states[of_lm])
        arc = find_arc(grown.arc_tokens, grown.arc_offsets[2 * state], grown.arc_offsets[2 * state + 1], token)
        if arc >= 0:
            found = np.int64(grown.arc_targets[arc]) >> 1
            while of_lm != grown.of_lm[found]:
                weight += np.float64(words.backoff_weights[of_lm])
                of_lm = np.int64(words.backoff_states[of_lm])
            return weight, found
        state = np.int64(grown.lower[state])


@compiled
def _score_form(words, grown, of_lm, form):
    """log p(form | state of the LM), all in a row of backoffs having been read; and where that is said."""
    score = 0.0
    while of_lm != 0:
        number = grown.read[of_lm] - 1
        arc = find_arc(grown.forms, grown.word_offsets[number], grown.word_offsets[number + 1], form)
        if arc >= 0:
            return score + grown.log_probs[arc], arc
        score += np.float64(words.backoff_weights[of_lm])
        of_lm = np.int64(words.backoff_states[of_lm])
    return score + grown.log_probs[form], np.int64(form)


@compiled
def _score_end(words, end, state):
    """log p(</s> | state of the LM): the last arc of those that have one of their own."""
    score = 0.0
    while words.arc_offsets[state] == words.arc_offsets[state + 1] or words.arc_tokens[words.arc_offsets[state + 1] - 1] != end:
        score += np.float64(words.backoff_weights[state])
        state = np.int64(words.backoff_states[state])
    return score + np.float64(words.arc_weights[words.arc_offsets[state + 1] - 1])


@compiled
def score_ends(words, end, states):
    """log p(</s> | state of the LM) of some, float64."""
    scores = np.empty(states.size)
    for i in range(states.size):
        scores[i] = _score_end(words, end, np.int64(states[i]))
    return scores


@compiled
def with_backoffs(backoff_states, states):
    """Some states of the LM and all that they back off to, in ascending order, int64."""
    found = np.zeros(backoff_states.size, dtype=np.bool_)
    for i in range(states.size):
        state = np.int64(states[i])
        while not found[state]:
            found[state] = True
            state = np.int64(backoff_states[state])
    return np.flatnonzero(found)


@compiled
def weigh_words(words, grown, counts, of_lm, end):
    """Finish reading a state of the LM, whose forms stand behind those of the others, before `end`: what they score further
    down. Until then nothing of them counts."""
    words, grown = borrowed_arrays(words), borrowed_arrays(grown)
    number = counts[READ]
    first = grown.word_offsets[number]
    below = np.int64(words.backoff_states[of_lm])
    at, below_end = np.int64(0), np.int64(0)
    if below != 0:
        at, below_end = grown.word_offsets[grown.read[below] - 1], grown.word_offsets[grown.read[below]]
    for arc in range(first, end):
        form = grown.forms[arc]
        grown.probs[arc] = np.exp(grown.log_probs[arc])
        if of_lm == 0:
            grown.lower_probs[arc] = 0.0
        elif below == 0:
            grown.lower_probs[arc] = grown.probs[form]
        else:
            low, high = at, below_end
            while low < high:
                middle = (low + high) >> 1
                if grown.forms[middle] < form:
                    low = middle + 1
                else:
                    high = middle
            at = low
            if low < below_end and grown.forms[low] == form:
                grown.lower_probs[arc] = grown.probs[low]
            else:
                score, _ = _score_form(words, grown, below, form)
                grown.lower_probs[arc] = np.exp(score)
    grown.word_offsets[number + 1] = end
    grown.read[of_lm] = number + 1
    counts[READ], counts[WORD_ARCS] = number + 1, end


@compiled
def _read(words, grown, counts, num_words, of_lm):
    """Read the forms of a state of the LM, and of those that it backs off to; why that has stopped, and where."""
    while grown.read[of_lm] == 0:
        state = of_lm
        while grown.read[words.backoff_states[state]] == 0:
            state = np.int64(words.backoff_states[state])
        if counts[READ] + 2 > grown.word_offsets.size:
            return NO_ROOM_FOR_WORDS, state
        first = at = counts[WORD_ARCS]
        is_sorted = True
        for arc in range(words.arc_offsets[state], words.arc_offsets[state + 1]):
            word = words.arc_tokens[arc]
            if word >= num_words:
                break
            for way in range(words.first_form[word], words.first_form[word + 1]):
                form = words.forms_of_word[way]
                if words.first_word[form + 1] - words.first_word[form] > 1:
                    return UNREAD, state
                if at == grown.forms.size:
                    return NO_ROOM_FOR_WORDS, state
                is_sorted &= at == first or grown.forms[at - 1] < form
                grown.forms[at] = form
                grown.log_probs[at] = np.float64(words.arc_weights[arc])
                grown.targets[at] = words.arc_targets[arc]
                at += 1
        if not is_sorted:
            order = first + np.argsort(grown.forms[first:at])
            for column in (grown.forms, grown.targets):
                column[first:at] = column[order]
            grown.log_probs[first:at] = grown.log_probs[order]
        weigh_words(words, grown, counts, state, at)
    return DONE, of_lm


@inlined
def _write(grown, counts, token, weight, target):
    at = counts[ARCS]
    grown.arc_tokens[at] = token
    grown.arc_weights[at] = weight
    grown.arc_targets[at] = 2 * target
    counts[ARCS] = at + 1


@inlined
def _add_child(words, grown, counts, state, token, node, first, end):
    """Make the state of a child's node, of the forms `first .. end - 1`."""
    of_lm = np.int64(grown.of_lm[state])
    own, below = 0.0, 0.0
    for arc in range(first, end):
        own += grown.probs[arc]
        below += grown.lower_probs[arc]
    weight, lower = _find_lower(words, grown, 0.0, state, token)
    backoff = np.float64(words.backoff_weights[of_lm])
    all_below = np.exp(min(weight + grown.mass[lower], LARGEST_LOG))
    rest = all_below - below
    if rest < NOTHING * all_below:
        rest = 0.0
    mass = np.log(min(max(own + np.exp(min(backoff, LARGEST_LOG)) * rest, SMALLEST), LARGEST))
    made = _add_state(grown, counts, of_lm, node, mass, first, lower)
    grown.backoff_states[2 * made] = 2 * lower
    grown.backoff_weights[2 * made] = weight + backoff + grown.mass[lower] - mass
    return made


@compiled
def _compose_words(words, trie, grown, counts, settings, state):
    """Write the arcs of the state of a prefix that is no word, or the empty one."""
    of_lm, node = np.int64(grown.of_lm[state]), grown.nodes[state]
    delimiter, vocab_size, num_words = settings.delimiter, settings.vocab_size, settings.num_words
    end_word = num_words + 1
    arc = grown.first_word_arc[state]
    last, number = trie.end_forms[node], grown.read[of_lm] - 1
    end = grown.word_offsets[number + 1]
    depth = trie.depths[node]
    taken = grown.mass[state]
    is_start = node == 0
    looped = delimiter < 0 or not is_start
    has_end, at_end = False, 0.0
    first_arc = counts[ARCS]
    while arc < end and grown.forms[arc] < last:
        form = grown.forms[arc]
        at = trie.path_offsets[form] + depth
        token, child = trie.path_tokens[at], trie.path_nodes[at]
        if not looped and token > delimiter:
            looped = True
            _write(grown, counts, delimiter, settings.unknown_token, state)
        if child < 0:
            log_prob, target = grown.log_probs[arc], np.int64(grown.targets[arc])
            _write(grown, counts, token, log_prob - taken, _own_state(words, grown, counts, target))
            if token == delimiter:
                has_end, at_end = True, log_prob + _score_end(words, end_word, target)
            arc += 1
            continue
        first = arc
        while arc < end and grown.forms[arc] < trie.end_forms[child]:
            arc += 1
        made = _add_child(words, grown, counts, state, token, child, first, arc)
        _write(grown, counts, token, grown.mass[made] - taken, made)
    if not looped:
        _write(grown, counts, delimiter, settings.unknown_token, state)
    if is_start:
        last_arc = words.arc_offsets[of_lm + 1] - 1
        if last_arc >= words.arc_offsets[of_lm] and words.arc_tokens[last_arc] == end_word:
            has_end, at_end = True, np.float64(words.arc_weights[last_arc])
        # See `hf_ngpulm.lexicon.reweighing`.
        spaces = np.float32(0.0 if of_lm == settings.begin else settings.delimiter_bonus)
        for at in range(first_arc, counts[ARCS]):
            grown.arc_weights[at] += spaces if grown.arc_tokens[at] == delimiter else np.float32(settings.word_bonus)
    if has_end:
        _write(grown, counts, vocab_size, at_end - taken, np.int64(grown.own_state[settings.start]) - 1)


@compiled
def _compose_word(words, trie, grown, counts, state):
    """Write the arcs of the state of a word that others begin with, and what it backs off to: the next word."""
    of_lm, node = np.int64(grown.of_lm[state]), grown.nodes[state]
    word_arc = grown.first_word_arc[state]
    end = grown.word_offsets[grown.read[of_lm]]
    depth, taken = trie.depths[node], grown.mass[state]
    arc = word_arc + 1
    for child in range(trie.child_offsets[node], trie.child_offsets[node + 1]):
        token, below = trie.child_tokens[child], trie.child_nodes[child]
        is_own = False
        if arc < end and grown.forms[arc] < trie.end_forms[node]:
            is_own = trie.path_tokens[trie.path_offsets[grown.forms[arc]] + depth] == token
        if below < 0:
            weight, said = _score_form(words, grown, of_lm, trie.child_forms[child])
            _write(grown, counts, token, weight - taken, _own_state(words, grown, counts, np.int64(grown.targets[said])))
            arc += is_own
        elif is_own:
            first = arc
            while arc < end and grown.forms[arc] < trie.end_forms[below]:
                arc += 1
            made = _add_child(words, grown, counts, state, token, below, first, arc)
            _write(grown, counts, token, grown.mass[made] - taken, made)
        else:
            backoff = np.float64(words.backoff_weights[of_lm])
            weight, lower = _find_lower(words, grown, backoff, state, token)
            _write(grown, counts, token, weight + grown.mass[lower] - taken, lower)
    grown.backoff_states[2 * state] = 2 * _own_state(words, grown, counts, np.int64(grown.targets[word_arc]))
    grown.backoff_weights[2 * state] = grown.log_probs[word_arc] - taken


@compiled
def compose_states(words, trie, grown, counts, settings, wanted, stack, done):
    """Compose some states, by their numbers, and all that their scores hang on, unless they are.

    Args:
        counts: int64, see `STATES` and so on.
        wanted: int32, their numbers.
        stack: int64, room for the states that others wait for.
        done: how many of them are.

    Returns:
        Why it has stopped, how many of them are done, and the state of the LM that it has stopped at.
    """
    words, trie, grown = borrowed_arrays(words), borrowed_arrays(trie), borrowed_arrays(grown)
    for place in range(done, wanted.size):
        stack[0], depth = np.int64(wanted[place]) >> 1, 1
        while depth:
            state = stack[depth - 1]
            if not grown.unfinished[2 * state]:
                depth -= 1
                continue
            of_lm, node = np.int64(grown.of_lm[state]), grown.nodes[state]
            room = trie.child_offsets[node + 1] - trie.child_offsets[node] + 3
            # Behind each arc there may be a state of the empty prefix, with others that it backs off to.
            if counts[STATES] + (1 + settings.order) * room > grown.of_lm.size or counts[ARCS] + room > grown.arc_weights.size:
                return NO_ROOM, place, of_lm
            next_word = np.int64(-1)
            if of_lm == 0:  # has arcs, and backs off to the next word
                next_word = np.int64(grown.backoff_states[2 * state]) >> 1
            else:
                why, at = _read(words, grown, counts, settings.num_words, of_lm)
                if why != DONE:
                    return why, place, at
                if node == 0:
                    grown.first_word_arc[state] = grown.word_offsets[grown.read[of_lm] - 1]
                first = grown.first_word_arc[state]
                lower = np.int64(grown.lower[state])
                if grown.unfinished[2 * lower]:
                    stack[depth] = lower
                    depth += 1
                    continue
                if node != 0:
                    form = grown.forms[first]
                    if trie.path_offsets[form] + trie.depths[node] == trie.path_offsets[form + 1]:
                        next_word = _own_state(words, grown, counts, np.int64(grown.targets[first]))
            if next_word >= 0 and grown.unfinished[2 * next_word]:
                stack[depth] = next_word
                depth += 1
                continue
            if of_lm != 0:
                begin = counts[ARCS]
                if next_word >= 0:
                    _compose_word(words, trie, grown, counts, state)
                else:
                    _compose_words(words, trie, grown, counts, settings, state)
                grown.arc_offsets[2 * state], grown.arc_offsets[2 * state + 1] = begin, counts[ARCS]
            grown.unfinished[2 * state] = 0
            grown.composed[counts[COMPOSED]] = state
            counts[COMPOSED] += 1
            depth -= 1
    return DONE, wanted.size, np.int64(0)
