"""The compiled loops of composition, see `hf_ngpulm.lexicon.composition` for what they compute.

Places are prefix states without the states that lie before them: place 0 is the unknown word, places 1 .. N - 1 are the trie's
inner nodes under the root of the LM, and those under its other states follow, state by state.

Each loop does its part for the LM states `first_state .. num_states - 1`; those before them, which they back off to, have been
done. Their composed states follow each other: the LM's own, then their places. `own_ids` says which state an LM's own is in the
whole automaton, `shifts` what is added to the number of a place for its state.
"""

from __future__ import annotations

import numpy as np

from ..automaton.cpu import compiled, find_arc

# Parts of a mass that are smaller than this are what rounding leaves of nothing.
NOTHING = 1e-12
SMALLEST, LARGEST, LARGEST_LOG = 1e-300, 1e300, 690.0


@compiled
def score_form(offsets, forms, log_probs, backoff_states, backoff_weights, state, form):
    """log p(form | state), and the arc that says where it leads."""
    score = 0.0
    while state != 0:
        arc = find_arc(forms, offsets[state], offsets[state + 1], form)
        if arc >= 0:
            return score + log_probs[arc], arc
        score += backoff_weights[state]
        state = backoff_states[state]
    return score + log_probs[form], np.int64(form)  # the root has all of them


@compiled
def score_end(ends, backoff_states, backoff_weights, state):
    """log p(</s> | state)."""
    score = 0.0
    while np.isnan(ends[state]):
        score += backoff_weights[state]
        state = backoff_states[state]
    return score + ends[state]


@compiled
def score_ends(ends, backoff_states, backoff_weights, states):
    """log p(</s> | state) of some states, float64."""
    scores = np.empty(states.size)
    for i in range(states.size):
        scores[i] = score_end(ends, backoff_states, backoff_weights, states[i])
    return scores


@compiled
def find_place(first_place, nodes, backoff_states, backoff_weights, state, node):
    """The place of a node under an LM state, or under the first one that it backs off to and that has the node; that state; and
    the weights of backing off that far."""
    weight = 0.0
    while state != 0:
        place = find_arc(nodes, first_place[state], first_place[state + 1], node)
        if place >= 0:
            return weight, place, state
        weight += backoff_weights[state]
        state = backoff_states[state]
    return weight, np.int64(node), state


@compiled
def count_places(first_state, num_states, offsets, forms, path_offsets, path_nodes, num_nodes, first_place):
    """Write where the places of each LM state begin, and where the last one's end."""
    if first_state == 0:
        first_place[0] = 0
        first_place[1] = num_nodes
    for state in range(max(first_state, 1), num_states):
        total = first_place[state]
        last = 0  # the highest node met: a walk in order meets each one first when it is higher than all before
        for arc in range(offsets[state], offsets[state + 1]):
            for at in range(path_offsets[forms[arc]], path_offsets[forms[arc] + 1]):
                if path_nodes[at] > last:
                    last = path_nodes[at]
                    total += 1
        first_place[state + 1] = total


@compiled
def weigh(
    first_state, num_states, offsets, forms, log_probs, backoff_states, backoff_weights,
    path_offsets, path_nodes, first_place, num_nodes, longest, nodes, mass, word_arcs,
):  # fmt: skip
    """Write the node at each place, the log of the probability of all words that go through it, and the arc of the LM for the
    word that ends there, -1 if the LM state has none of its own."""
    begin = first_place[first_state]
    size = first_place[num_states] - begin
    own = np.zeros(size)
    below = np.zeros(size)
    word_arcs[begin : begin + size] = -1
    if first_state == 0:
        mass[0] = 0.0
        for node in range(num_nodes):
            nodes[node] = node
    place_at = np.zeros(longest + 1, dtype=np.int64)
    for state in range(first_state, num_states):
        place = first_place[state] - 1
        last = 0
        for arc in range(offsets[state], offsets[state + 1]):
            form = forms[arc]
            first = path_offsets[form]
            probability = np.exp(log_probs[arc])
            lower = 0.0
            if state != 0:
                score, _ = score_form(offsets, forms, log_probs, backoff_states, backoff_weights, backoff_states[state], form)
                lower = np.exp(score)
            for at in range(first, path_offsets[form + 1]):
                node = path_nodes[at]
                if node < 0:
                    break
                depth = at - first
                if state == 0:
                    place_at[depth] = node
                elif node > last:
                    place += 1
                    last = node
                    nodes[place] = node
                    place_at[depth] = place
                own[place_at[depth] - begin] += probability
                below[place_at[depth] - begin] += lower
                if at + 1 == path_offsets[form + 1]:
                    word_arcs[place_at[depth]] = arc
        if state == 0:
            for node in range(1, num_nodes):
                mass[node] = np.log(min(max(own[node], SMALLEST), LARGEST))
            continue
        backoff = np.exp(min(backoff_weights[state], LARGEST_LOG))
        for place in range(first_place[state], first_place[state + 1]):
            weight, lower_place, _ = find_place(
                first_place, nodes, backoff_states, backoff_weights, backoff_states[state], nodes[place]
            )
            all_below = np.exp(min(weight + mass[lower_place], LARGEST_LOG))
            rest = all_below - below[place - begin]
            if rest < NOTHING * all_below:
                rest = 0.0
            mass[place] = np.log(min(max(own[place - begin] + backoff * rest, SMALLEST), LARGEST))


@compiled
def count_arcs(
    first_state, num_states, offsets, forms, ends, path_offsets, path_nodes, child_offsets, first_place, nodes, word_arcs,
    delimiter, vocab_size, num_unknown, longest,
):  # fmt: skip
    """Where the arcs of each of the composed states begin, int64, counted from the first one's."""
    size = first_place[num_states] - first_place[first_state]
    own_states = num_states - first_state
    # In `counts` a state is one further on than in the result.
    of_state, of_place = 1 - first_state, 1 + own_states - first_place[first_state]
    counts = np.zeros(own_states + size + 1, dtype=np.int64)
    place_at = np.zeros(longest + 1, dtype=np.int64)
    if first_state == 0:
        counts[of_state] = vocab_size + 1
        counts[of_place] = num_unknown
    for place in range(max(first_place[first_state], 1), first_place[num_states]):
        node = nodes[place]
        if place < first_place[1] or word_arcs[place] >= 0:
            counts[of_place + place] = child_offsets[node + 1] - child_offsets[node]
    for state in range(first_state, num_states):
        last = 0
        place = first_place[state] - 1
        if state:
            counts[of_state + state] = (delimiter >= 0) + (not np.isnan(ends[state]))
        before = -1  # the path before this one
        for arc in range(offsets[state], offsets[state + 1]):
            form = forms[arc]
            first, end = path_offsets[form], path_offsets[form + 1]
            shared = shared_depth(path_offsets, path_nodes, before, form)
            before = form
            for at in range(first, end):
                depth = at - first
                node = path_nodes[at]
                if node >= 0:
                    if state == 0:
                        place_at[depth] = node
                    elif node > last:
                        place += 1
                        last = node
                        place_at[depth] = place
                if depth < shared or state == 0:
                    continue
                if depth == 0:
                    counts[of_state + state] += 1
                    continue
                parent = place_at[depth - 1]
                if word_arcs[parent] < 0:
                    counts[of_place + parent] += 1
            if delimiter >= 0:
                counts[of_place + place_at[end - first - 2]] += 1  # </s> in place of the delimiter
    return np.cumsum(counts)


@compiled
def shared_depth(path_offsets, path_nodes, before, form):
    """How many nodes two paths share; leaves are nobody else's."""
    if before < 0:
        return 0
    shared = 0
    first, other = path_offsets[form], path_offsets[before]
    most = min(path_offsets[form + 1] - first, path_offsets[before + 1] - other)
    while shared < most and path_nodes[first + shared] >= 0 and path_nodes[first + shared] == path_nodes[other + shared]:
        shared += 1
    return shared


@compiled
def fill(
    first_state, num_states, offsets, forms, log_probs, backoff_states, backoff_weights, ends, ends_behind, ids_behind, own_ids,
    shifts, start, unknown, unknown_target, unknown_end, unknown_token,
    path_offsets, path_nodes, path_tokens, depths, child_offsets, child_tokens, child_nodes, child_forms,
    first_place, nodes, mass, word_arcs, begins_word, delimiter, vocab_size, longest, arc_offsets,
    arc_tokens, arc_weights, arc_targets, all_backoff_states, all_backoff_weights,
):  # fmt: skip
    """Write the arcs and backoffs of the composed states; -1, or the first one with another number of arcs than was counted.

    `ids_behind` says of each arc of the LM which state the LM's own behind it is in the whole automaton; `ends_behind` of those
    from the first state's on what log p(</s>) is there. `start`, `unknown_target` and `unknown_end` say it of <s> and <unk>.
    """
    begin = first_place[first_state]
    end_place = first_place[num_states]
    of_place = num_states - first_state - begin  # from a place to the row of its state
    cursor = arc_offsets[:-1].copy()
    end_of = np.full(end_place - begin, np.nan)
    place_at = np.zeros(longest + 1, dtype=np.int64)
    unknown_id = shifts[0]

    if first_state == 0:
        # The unknown word: any token goes on with it, and what ends a word leads on to the LM's state behind <unk>.
        all_backoff_states[of_place] = unknown_target
        all_backoff_weights[of_place] = 0.0
        at_arc = cursor[of_place]
        for token in range(vocab_size):
            if delimiter < 0 and begins_word[token]:
                continue
            arc_tokens[at_arc] = token
            arc_weights[at_arc] = 0.0 if token == delimiter else unknown_token
            arc_targets[at_arc] = unknown_target if token == delimiter else unknown_id
            at_arc += 1
        if delimiter >= 0:
            arc_tokens[at_arc] = vocab_size
            arc_weights[at_arc] = unknown_end
            arc_targets[at_arc] = start

        # The root has an arc for every token.
        for token in range(vocab_size + 1):
            arc_tokens[token] = token
            arc_weights[token] = unknown + unknown_token
            arc_targets[token] = unknown_id
        if delimiter >= 0:
            arc_weights[delimiter] = unknown_token
            arc_targets[delimiter] = own_ids[0]
        arc_weights[vocab_size] = ends[0]
        arc_targets[vocab_size] = start
        for child in range(child_offsets[0], child_offsets[1]):
            token = child_tokens[child]
            if child_nodes[child] < 0:
                arc_weights[token] = log_probs[child_forms[child]]
                arc_targets[token] = ids_behind[child_forms[child]]
            else:
                arc_weights[token] = mass[child_nodes[child]]
                arc_targets[token] = shifts[0] + child_nodes[child]
        all_backoff_states[0] = own_ids[0]
        all_backoff_weights[0] = 0.0

    for state in range(first_state, num_states):
        own_row = state - first_state
        if state:
            all_backoff_states[own_row] = own_ids[backoff_states[state]]
            all_backoff_weights[own_row] = backoff_weights[state]
        last = 0
        place = first_place[state] - 1
        before = -1
        looped = delimiter < 0 or state == 0
        for arc in range(offsets[state], offsets[state + 1]):
            form = forms[arc]
            first, end = path_offsets[form], path_offsets[form + 1]
            shared = shared_depth(path_offsets, path_nodes, before, form)
            before = form
            for at in range(first, end):
                depth = at - first
                node = path_nodes[at]
                if node >= 0:
                    if state == 0:
                        place_at[depth] = node
                    elif node > last:
                        place += 1
                        last = node
                        place_at[depth] = place
                if depth < shared or state == 0:
                    continue
                if depth == 0:
                    parent = own_row
                    taken = 0.0
                    if not looped and path_tokens[at] > delimiter:
                        looped = True
                        cursor[own_row] = _write(
                            arc_tokens, arc_weights, arc_targets, cursor[own_row], delimiter, unknown_token, own_ids[state]
                        )
                else:
                    parent = of_place + place_at[depth - 1]
                    if word_arcs[place_at[depth - 1]] >= 0:
                        continue  # written below, with the words that only shorter contexts know
                    taken = mass[place_at[depth - 1]]
                if node >= 0:
                    weight, target = mass[place_at[depth]], shifts[state] + place_at[depth]
                else:
                    weight, target = log_probs[arc], np.int64(ids_behind[arc])
                cursor[parent] = _write(
                    arc_tokens, arc_weights, arc_targets, cursor[parent], path_tokens[at], weight - taken, target
                )
            if delimiter >= 0:
                end_of[place_at[end - first - 2] - begin] = log_probs[arc] + ends_behind[arc - offsets[first_state]]
        if not looped:
            cursor[own_row] = _write(
                arc_tokens, arc_weights, arc_targets, cursor[own_row], delimiter, unknown_token, own_ids[state]
            )
        if state and not np.isnan(ends[state]):
            cursor[own_row] = _write(arc_tokens, arc_weights, arc_targets, cursor[own_row], vocab_size, ends[state], start)
        for place in range(first_place[state] if state else 1, first_place[state + 1]):
            node = nodes[place]
            row = of_place + place
            word_arc = word_arcs[place]
            if state == 0 or word_arc >= 0:
                for child in range(child_offsets[node], child_offsets[node + 1]):
                    if child_nodes[child] < 0:
                        weight, arc_behind = score_form(
                            offsets, forms, log_probs, backoff_states, backoff_weights, state, child_forms[child]
                        )
                        target = np.int64(ids_behind[arc_behind])
                    else:
                        weight, lower, under = find_place(
                            first_place, nodes, backoff_states, backoff_weights, state, child_nodes[child]
                        )
                        weight, target = weight + mass[lower], shifts[under] + lower
                    cursor[row] = _write(
                        arc_tokens, arc_weights, arc_targets, cursor[row], child_tokens[child], weight - mass[place], target
                    )
            if not np.isnan(end_of[place - begin]):
                cursor[row] = _write(
                    arc_tokens, arc_weights, arc_targets, cursor[row], vocab_size, end_of[place - begin] - mass[place], start
                )
            if word_arc >= 0:  # what doesn't go on with the word begins the next one
                weight, target = log_probs[word_arc], np.int64(ids_behind[word_arc])
            elif state == 0:  # the word is none that is known: what has been scored of it is given back
                weight, target = unknown + depths[node] * unknown_token, unknown_id
            else:
                weight, lower, under = find_place(
                    first_place, nodes, backoff_states, backoff_weights, backoff_states[state], node
                )
                weight, target = weight + backoff_weights[state] + mass[lower], shifts[under] + lower
            all_backoff_states[row] = target
            all_backoff_weights[row] = weight - mass[place]
    for row in range(cursor.size):
        if not (first_state == 0 and (row == 0 or row == of_place)) and cursor[row] != arc_offsets[row + 1]:
            return row
    return -1


@compiled
def _write(arc_tokens, arc_weights, arc_targets, at, token, weight, target):
    arc_tokens[at] = token
    arc_weights[at] = weight
    arc_targets[at] = target
    return at + 1
