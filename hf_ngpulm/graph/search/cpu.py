"""Token passing as compiled loops, rows in parallel.

At each frame candidates are gathered in an open-addressing table by search state, so that those that meet are compared at
once. What can't be among the best `K` any more is passed over: a hypothesis can't be extended to more than its own score plus
the frame's best token plus the most that any token adds in its state, and once there are twice as many candidates as may be
kept, all but the best are dropped and the lowest of these is the bound.

What each token adds (bonus, LM score, discount) in a state is kept in lines by state. A state's line is that of its backoff
state, shifted, with its own arcs written over it. Whether any of these has a discount tells one look into a table of states;
few have. So phrases cost something only where a line is made, hardly anything there, and nothing where one is read.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...automaton.cpu import arrays_of, borrowed, borrowed_automaton, compiled, in_threads, score_one, step_one
from ...automaton.tensors import AutomatonTensors
from ...batches import packed_frames
from ...ctc.beam.cpu import BLOCK, KEPT_SCORES, ROUNDING, any_above
from ..following import place_of
from . import BLANK, INSIDE, BiasedArcs, GraphFrames, GraphState

NONE = np.float32(-np.inf)


def graph_search(
    automaton: AutomatonTensors,
    state: GraphState,
    logits: Tensor,
    lengths: Tensor,
    weights: Tensor,
    bonuses: Tensor,
    biased: BiasedArcs,
    blank: int,
    vocab_size: int,
    threshold: float,
    skip: float,
) -> tuple[GraphState, GraphFrames]:
    batch_size, frames, classes = logits.shape
    max_active = state.scores.shape[1]
    state = GraphState(*(part.clone(memory_format=torch.contiguous_format) for part in state))
    labels = torch.full((batch_size, frames, max_active), BLANK, dtype=torch.int32)
    links = torch.arange(max_active, dtype=torch.int32).expand(labels.shape).contiguous()
    bad_frames = torch.full((batch_size,), -1, dtype=torch.int32)
    if frames and classes:
        # Without padding: what a row costs doesn't depend on how long others are.
        lengths = lengths.clamp(0, frames)
        starts, logits = packed_frames(logits, lengths)
        normalisers = torch.logsumexp(logits, dim=-1)
        parts = [part.amax(-1) for part in (logits[:, :blank], logits[:, blank + 1 :]) if part.shape[-1]]
        highest = torch.stack([torch.full_like(normalisers, -torch.inf), *parts]).amax(0)  # of the tokens
        arrays = (
            *arrays_of(automaton), starts.numpy(), logits.numpy(), normalisers.numpy(), highest.numpy(),
            *(tensor.contiguous().numpy() for tensor in (lengths, weights, bonuses, *biased)),
            blank, vocab_size, threshold, skip,
            *(tensor.numpy() for tensor in state), links.numpy(), labels.numpy(), bad_frames.numpy(),
        )  # fmt: skip
        in_threads(lambda first, last: _search_rows(first, last, *arrays), batch_size, frames * (classes + 64 * max_active))
    return state, GraphFrames(links, labels, bad_frames)


@compiled
def _line_of(state, num_kept):
    return ((np.int64(state) * np.int64(0x9E3779B1)) >> np.int64(15)) & (num_kept - 1)


@compiled
def _find_state(table, first, last, state):
    """The entry of a state (less the root) in a part of a table (see `table_of_states`), -1 if it has none."""
    if first == last:
        return -1
    mask = last - first - 1
    at = place_of(state, mask)
    while table[first + at, 2] > 0:
        if table[first + at, 0] == state:
            return at
        at = (at + 1) & mask
    return -1


@compiled
def _scatter(biased_tokens, longer, first_biased, first_entry, table, entry, carried, usual, undo):
    """Note what arcs of some states, linked in the table, add to arcs of longer contexts; or undo that."""
    while entry >= 0:
        first = first_biased + table[first_entry + entry, 1]
        for i in range(first, first + table[first_entry + entry, 2]):
            token = biased_tokens[i]
            if token < carried.size:
                carried[token] = usual[token] if undo else max(carried[token], longer[i])
        entry = table[first_entry + entry, 3]


@compiled
def _keep(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    state, weight, plain, root, of_roots, carrieds, first_biased, biased_arcs, biased_tokens, discounts, longer,
    first_entry, last_entry, table, blank, vocab_size, one, chain, added, highest, line_states, line_kinds, line_entries,
):  # fmt: skip
    """Have what each token adds in a state among the lines.

    Args:
        plain: `[C]`, the tokens' bonuses.
        of_roots: `[2, C]`, nothing, and what arcs of the root add to arcs of longer contexts.
        carrieds: a copy, to write into.
        highest: no less than the highest of a line.
        line_kinds: 1 if the line's state backs off to the root, 0 if to another.
        line_entries: the entry of the first of the states from the line's own on, but for the root, that have arcs which add
            to those of longer contexts; -1 for none.

    Returns:
        `chain`, grown if it was too small.
    """
    num_kept, classes = added.shape
    candidates = min(vocab_size, classes)
    depth = 0
    at = state
    line = _line_of(at, num_kept)
    while line_states[line] != at:
        if depth == chain.size:
            chain = np.concatenate((chain, np.empty_like(chain)))
        chain[depth] = at
        depth += 1
        if backoff_states[at] == at:
            break
        at = backoff_states[at]
        line = _line_of(at, num_kept)
    for level in range(depth - 1, -1, -1):
        state = chain[level]
        shorter, line = line, _line_of(state, num_kept)  # may be the same, which does no harm
        below = -1
        if backoff_states[state] == state:
            kind = 1 if state == root else 0
            score_one(
                arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                state, vocab_size, chain, one,
            )  # fmt: skip
            top = NONE
            for token in range(candidates):
                added[line, token] = plain[token] + weight * one[token]
                top = max(top, added[line, token])
        else:
            kind = line_kinds[shorter]
            below = line_entries[shorter]
            shift = weight * backoff_weights[state]
            for token in range(np.uintp(0), np.uintp(candidates)):
                added[line, token] = added[shorter, token] + shift
            top = highest[shorter] + shift
            _scatter(biased_tokens, longer, first_biased, first_entry, table, below, carrieds[kind], of_roots[kind], False)
            for arc in range(arc_offsets[state], arc_offsets[state + 1]):
                token = arc_tokens[arc]
                if token < candidates:
                    added[line, token] = plain[token] + weight * arc_weights[arc] + carrieds[kind, token]
                    top = max(top, added[line, token])
        for token in range(candidates, classes):
            added[line, token] = plain[token]
            top = max(top, plain[token])
        entry = _find_state(table, first_entry, last_entry, state - root)
        if entry >= 0:
            first = first_biased + table[first_entry + entry, 1]
            for i in range(first, first + table[first_entry + entry, 2]):
                token = biased_tokens[i]
                if token < candidates:
                    discount = max(discounts[i], carrieds[kind, token]) if state != root else discounts[i]
                    added[line, token] = plain[token] + weight * arc_weights[biased_arcs[i]] + discount
                    top = max(top, added[line, token])
        if backoff_states[state] != state:
            _scatter(biased_tokens, longer, first_biased, first_entry, table, below, carrieds[kind], of_roots[kind], True)
        if entry >= 0 and table[first_entry + entry, 4] > 0 and state != root:
            below = entry
        added[line, blank] = NONE
        highest[line], line_states[line], line_kinds[line], line_entries[line] = top, state, kind, below
    return chain


@compiled
def _offer(keys, stamps, stamp, numbers, count, states, lasts, scores, places, tokens, state, last, score, place, token):
    """Add a candidate, or let it take the place of a worse one with the same search state.

    Args:
        keys, stamps: `[2 ** n]`, a table of candidates by search state; entries with another stamp are empty.

    Returns:
        The number of candidates, and which one this has become, -1 if the one that was there is better.
    """
    mask = keys.size - 1
    key = (np.int64(state) << np.int64(32)) | np.int64(last + 1)
    mixed = key * np.int64(-7046029254386353131)
    at = (mixed ^ (mixed >> np.int64(29)) ^ (mixed >> np.int64(43))) & mask
    while stamps[at] == stamp:
        if keys[at] == key:
            n = numbers[at]
            if score <= scores[n]:
                return count, -1
            scores[n], places[n], tokens[n] = score, place, token
            return count, n
        at = (at + 1) & mask
    keys[at], stamps[at], numbers[at] = key, stamp, count
    states[count], lasts[count], scores[count], places[count], tokens[count] = state, last, score, place, token
    return count + 1, count


@compiled
def _highest_of(values, count, k, room):
    """The k-th highest of the first `count` values (Hoare's selection)."""
    for i in range(count):
        room[i] = values[i]
    low, high, k = 0, count - 1, k - 1
    while low < high:
        pivot = room[(low + high) >> 1]
        i, j = low, high
        while i <= j:
            while room[i] > pivot:
                i += 1
            while room[j] < pivot:
                j -= 1
            if i <= j:
                room[i], room[j] = room[j], room[i]
                i += 1
                j -= 1
        if k <= j:
            high = j
        elif k >= i:
            low = i
        else:
            break
    return room[k]


@compiled
def _drop(lowest, most, count, states, lasts, scores, places, tokens, lm_scores, extras):
    """Keep the candidates that score at least so much, as many as may be kept: returns their number."""
    kept = 0
    above = 0
    for i in range(count):
        above += scores[i] > lowest
    ties = most - above
    for i in range(count):
        if scores[i] > lowest or (scores[i] == lowest and ties > 0):
            ties -= scores[i] == lowest
            states[kept], lasts[kept], scores[kept] = states[i], lasts[i], scores[i]
            places[kept], tokens[kept] = places[i], tokens[i]
            lm_scores[kept], extras[kept] = lm_scores[i], extras[i]
            kept += 1
    return kept


@compiled
def _search_rows(
    first, last, arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    starts, logits, normalisers, highest_logits, lengths, weights, bonuses,
    ranges, biased_arcs, biased_tokens, discounts, longer, table_ranges, table, roots, blank, vocab_size, threshold, skip,
    all_scores, all_last, all_states, all_fused, all_lm_scores, all_phrase_scores, links, labels, bad_frames,
):  # fmt: skip
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights = borrowed_automaton(
        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights
    )
    logits, table = borrowed(logits), borrowed(table)
    biased_arcs, biased_tokens = borrowed(biased_arcs), borrowed(biased_tokens)
    discounts, longer = borrowed(discounts), borrowed(longer)
    max_active = all_scores.shape[1]
    classes = logits.shape[1]
    candidates = min(vocab_size, classes)
    num_kept = 4
    while num_kept < 4 * max_active or num_kept * classes < KEPT_SCORES:
        num_kept *= 2
    all_added = np.empty((num_kept, classes), dtype=np.float32)
    all_highest = np.empty(num_kept, dtype=np.float32)
    all_line_states = np.empty(num_kept, dtype=np.int32)
    all_line_kinds = np.empty(num_kept, dtype=np.int32)
    all_line_entries = np.empty(num_kept, dtype=np.int32)
    room_of_roots = np.zeros((4, classes), dtype=np.float32)
    room_one = np.empty(max(vocab_size, 1), dtype=np.float32)
    # Candidates: at most two for each hypothesis without new tokens, and some more.
    most = 4 * max_active
    size = 16
    while size < 4 * most:
        size *= 2
    table_keys = np.empty(size, dtype=np.int64)
    table_stamps = np.zeros(size, dtype=np.int64)
    table_numbers = np.empty(size, dtype=np.int32)
    of_candidates = np.empty((4, most), dtype=np.int32)
    singles = np.empty((2, most), dtype=np.float32)
    doubles = np.empty((2, most), dtype=np.float64)
    active_doubles = np.empty((8, max_active), dtype=np.float64)
    active_integers = np.empty((4, max_active), dtype=np.int32)

    added, highest = borrowed(all_added), borrowed(all_highest)
    line_states, line_kinds = borrowed(all_line_states), borrowed(all_line_kinds)
    line_entries, one = borrowed(all_line_entries), borrowed(room_one)
    of_roots, carrieds = borrowed(room_of_roots)[:2], borrowed(room_of_roots)[2:]
    keys, stamps, numbers = borrowed(table_keys), borrowed(table_stamps), borrowed(table_numbers)
    integers32, floats32, floats64 = borrowed(of_candidates), borrowed(singles), borrowed(doubles)
    c_states, c_lasts, c_places, c_tokens = integers32[0], integers32[1], integers32[2], integers32[3]
    c_lm_scores, c_extras = floats32[0], floats32[1]
    c_scores, sorting = floats64[0], floats64[1]
    double_rows, integer_rows = borrowed(active_doubles), borrowed(active_integers)
    chain = np.empty(16, dtype=np.int32)
    stamp = 0
    for row in range(first, last):
        plain, weight, root = bonuses[row], weights[row], roots[row]
        first_biased = ranges[row, 0]
        first_entry, last_entry = table_ranges[row, 0], table_ranges[row, 1]
        of_roots[1] = 0.0
        entry = _find_state(table, first_entry, last_entry, 0)
        if entry >= 0:
            begin = first_biased + table[first_entry + entry, 1]
            for i in range(begin, begin + table[first_entry + entry, 2]):
                if biased_tokens[i] < candidates:
                    of_roots[1, biased_tokens[i]] = longer[i]
        carrieds[1] = of_roots[1]
        line_states[:] = -1  # nothing is kept yet
        scores, fused, lm_scores, phrase_scores = double_rows[0], double_rows[1], double_rows[2], double_rows[3]
        new_scores, new_fused, new_lm_scores, new_phrase_scores = double_rows[4], double_rows[5], double_rows[6], double_rows[7]
        lasts, states, new_lasts, new_states = integer_rows[0], integer_rows[1], integer_rows[2], integer_rows[3]
        active = 0
        leader = 0  # the place of the best
        for k in range(max_active):
            if all_scores[row, k] > -np.inf:
                if all_scores[row, k] > (scores[leader] if active else -np.inf):
                    leader = active
                scores[active], fused[active] = all_scores[row, k], all_fused[row, k]
                lm_scores[active], phrase_scores[active] = all_lm_scores[row, k], all_phrase_scores[row, k]
                lasts[active], states[active] = all_last[row, k], all_states[row, k]
                active += 1
        for frame in range(lengths[row]):
            packed = starts[row] + frame
            normaliser = normalisers[packed]
            if not np.isfinite(normaliser):
                bad_frames[row] = frame
                break
            x = logits[packed]
            blank_log_prob = np.float64(x[blank]) - normaliser
            skipped = np.exp(blank_log_prob) > skip

            # Hypotheses without new tokens.
            count = 0
            stamp += 1
            best = -np.inf
            for k in range(active):
                score = scores[k] + blank_log_prob
                if score > -np.inf:
                    count, _ = _offer(
                        keys, stamps, stamp, numbers, count, c_states, c_lasts, c_scores, c_places, c_tokens,
                        states[k], -1, score, k, BLANK,
                    )  # fmt: skip
                    best = max(best, score)
                if lasts[k] >= 0 and not skipped:
                    score = scores[k] + (np.float64(x[lasts[k]]) - normaliser)
                    if score > -np.inf:
                        count, _ = _offer(
                            keys, stamps, stamp, numbers, count, c_states, c_lasts, c_scores, c_places, c_tokens,
                            states[k], lasts[k], score, k, INSIDE,
                        )  # fmt: skip
                        best = max(best, score)

            # New tokens. What scores no higher than `worst` isn't kept.
            if not skipped:
                worst = _highest_of(c_scores, count, max_active, sorting) if count >= max_active else -np.inf
                worst = max(worst, best - threshold)
                for turn in range(active):
                    k = leader if turn == 0 else turn if turn > leader else turn - 1  # the best one first
                    base = scores[k] - normaliser
                    state = states[k]
                    line = _line_of(state, num_kept)
                    if line_states[line] != state:
                        chain = _keep(
                            arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                            state, weight, plain, root, of_roots, carrieds, first_biased, biased_arcs, biased_tokens,
                            discounts, longer, first_entry, last_entry, table, blank, vocab_size,
                            one, chain, added, highest, line_states, line_kinds, line_entries,
                        )  # fmt: skip
                    if base + highest_logits[packed] + highest[line] <= worst:
                        continue
                    for block in range(0, classes, BLOCK):
                        end = min(block + BLOCK, classes)
                        if not any_above(x, added, line, block, end, np.float32(worst - base - ROUNDING)):
                            continue
                        for entry in range(np.uintp(block), np.uintp(end)):
                            score = base + x[entry] + added[line, entry]
                            token = np.int64(entry)
                            if score <= worst or token == lasts[k]:
                                continue
                            lm_score, target = np.float32(0.0), state
                            if token < candidates:
                                lm_score, target = step_one(
                                    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                                    state, token, vocab_size,
                                )  # fmt: skip
                            count, n = _offer(
                                keys, stamps, stamp, numbers, count, c_states, c_lasts, c_scores, c_places, c_tokens,
                                target, token, score, k, token,
                            )  # fmt: skip
                            if n < 0:
                                continue
                            c_lm_scores[n], c_extras[n] = lm_score, added[line, token]
                            best = max(best, score)
                            worst = max(worst, best - threshold)
                            if count == most:
                                worst = max(worst, _highest_of(c_scores, count, max_active, sorting))
                                count = _drop(
                                    worst, max_active, count, c_states, c_lasts, c_scores, c_places, c_tokens,
                                    c_lm_scores, c_extras,
                                )  # fmt: skip
                                stamp += 1
                                for i in range(count):
                                    _offer(
                                        keys, stamps, stamp, numbers, i, c_states, c_lasts, c_scores, c_places, c_tokens,
                                        c_states[i], c_lasts[i], c_scores[i], c_places[i], c_tokens[i],
                                    )  # fmt: skip
            if best == -np.inf:
                continue  # nothing is possible: weights so large that the sums overflow
            lowest = best - threshold
            if count > max_active:
                lowest = max(lowest, _highest_of(c_scores, count, max_active, sorting))
            kept = _drop(lowest, max_active, count, c_states, c_lasts, c_scores, c_places, c_tokens, c_lm_scores, c_extras)
            leader = 0
            for i in range(kept):
                k, token = c_places[i], c_tokens[i]
                new_scores[i], new_states[i], new_lasts[i] = c_scores[i], c_states[i], c_lasts[i]
                new_fused[i], new_lm_scores[i], new_phrase_scores[i] = fused[k], lm_scores[k], phrase_scores[k]
                if c_scores[i] > c_scores[leader]:
                    leader = i
                links[row, frame, i], labels[row, frame, i] = k, token
                if token >= 0:
                    new_fused[i] += c_extras[i]
                    new_lm_scores[i] += c_lm_scores[i]
                    if token < candidates and first_entry < last_entry:
                        # What is added beside the usual, but for rounding.
                        usual = plain[token] + weight * c_lm_scores[i]
                        if abs(c_extras[i] - usual) > 1e-4 + 1e-5 * abs(usual):
                            new_phrase_scores[i] += c_extras[i] - usual
            active = kept
            scores, new_scores, fused, new_fused = new_scores, scores, new_fused, fused
            lm_scores, new_lm_scores = new_lm_scores, lm_scores
            phrase_scores, new_phrase_scores = new_phrase_scores, phrase_scores
            lasts, new_lasts, states, new_states = new_lasts, lasts, new_states, states
        for k in range(max_active):
            all_scores[row, k] = -np.inf
        for k in range(active):
            all_scores[row, k], all_fused[row, k] = scores[k], fused[k]
            all_lm_scores[row, k], all_phrase_scores[row, k] = lm_scores[k], phrase_scores[k]
            all_last[row, k], all_states[row, k] = lasts[k], states[k]
    # What was borrowed from must last until here.
    return (
        all_added.size + all_highest.size + all_line_states.size + all_line_kinds.size + all_line_entries.size
        + room_one.size + room_of_roots.size + table_keys.size + table_stamps.size + table_numbers.size
        + of_candidates.size + singles.size + doubles.size + active_doubles.size + active_integers.size
    )  # fmt: skip
