"""Token passing as compiled loops, rows in parallel.

At each frame candidates are gathered in an open-addressing table by search state, so that those that meet are compared at
once. What can't be among the best `K` any more is passed over: a hypothesis can't be extended to more than its own score plus
the frame's best token plus the most that any token adds in its state, and once there are twice as many candidates as may be
kept, all but the best are dropped and the lowest of these is the bound.

What each token adds in a state apart from phrases (bonus and LM score) is kept in lines by state, for all rows that weigh the
same. A state's line is that of its backoff state, shifted, with its own arcs written over it. Discounts are lines of their own,
of the states that have any, which are few: the others share that of the next one that they back off to, or the root's. Which
one it is is looked up once a row. In an automaton of phrases most states have an arc or two before they back off to its root:
what tokens earn there is added to the frame's logits once for all hypotheses, and the few arcs are followed one by one. So
phrases cost little but for the hypotheses that they bring forth.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...automaton.compiled import arrays_of, borrowed, borrowed_automaton, compiled, score_one, step_one
from ...automaton.tensors import AutomatonTensors
from ...common.batches import packed_frames
from ...engines.threads import in_threads
from ...phrases.following import owner_above, owner_of
from . import BLANK, INSIDE, GraphFrames, GraphState

NONE = np.float32(-np.inf)
KEPT_SCORES = 1 << 18
BLOCK = 64  # tokens that are looked at together
ROUNDING = 1e-3  # of sums in single precision
OWNER_LINES = 128  # kept lines of discounts
KEPT_MOST = 1024  # states of phrases of which it is kept what a token earns there at most


def graph_search(
    automaton: AutomatonTensors,
    state: GraphState,
    logits: Tensor,
    lengths: Tensor,
    weights: Tensor,
    bonuses: Tensor,
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
            *(tensor.contiguous().numpy() for tensor in (lengths, weights, bonuses)), *_no_discounts(batch_size),
            blank, vocab_size, threshold, skip,
            *(tensor.numpy() for tensor in state), np.zeros((batch_size, max_active)),
            links.numpy(), labels.numpy(), bad_frames.numpy(),
        )  # fmt: skip
        in_threads(lambda first, last: _search_rows(first, last, *arrays), batch_size, frames * (classes + 64 * max_active))
    return state, GraphFrames(links, labels, bad_frames)


def _no_discounts(batch_size: int) -> tuple[np.ndarray, ...]:
    ints = np.zeros(0, dtype=np.int32)
    return (
        np.zeros((batch_size, 3, 2), dtype=np.int32), ints, np.zeros((0, 3), dtype=np.int32), np.zeros(0, dtype=np.uint8), ints,
        np.zeros(0, dtype=np.float32), np.zeros(batch_size, dtype=np.int32),
    )  # fmt: skip


@compiled
def _line_of(state, num_kept):
    return ((np.int64(state) * np.int64(0x9E3779B1)) >> np.int64(15)) & (num_kept - 1)


@compiled
def _highest(values):
    """The highest of some values, in four independent chains of comparisons."""
    size, a, b, c, d = values.size, NONE, NONE, NONE, NONE
    for i in range(0, size - 3, 4):
        a, b, c, d = max(a, values[i]), max(b, values[i + 1]), max(c, values[i + 2]), max(d, values[i + 3])
    for i in range(size - size % 4, size):
        a = max(a, values[i])
    return max(max(a, b), max(c, d))


@compiled
def _most_earned(arc_offsets, arc_tokens, arc_weights, backoff_states, backoff_weights, state, candidates):
    """What a token scores in a state of phrases at most, if its arcs are worth more than backing off; never less than 0."""
    most, back = np.float32(0.0), np.float32(0.0)
    while True:
        for arc in range(arc_offsets[state], arc_offsets[state + 1]):
            if arc_tokens[arc] < candidates:
                most = max(most, back + arc_weights[arc])
        back += backoff_weights[state]
        most = max(most, back)
        if backoff_states[state] == state:
            return most
        state = backoff_states[state]


@compiled
def any_above(x, added, line, first, last, bound):
    """Whether a sum is above a bound. (Counting becomes vector instructions, which a maximum or an early end doesn't.)"""
    count = 0
    for token in range(np.uintp(first), np.uintp(last)):  # what may be negative is checked at every step
        count += x[token] + added[line, token] > bound
    return count > 0


@compiled
def _any_above(x, given, owner_line, added, line, first, last, bound):
    """Whether a sum is above a bound (see `any_above`), with discounts."""
    count = 0
    for token in range(np.uintp(first), np.uintp(last)):
        count += x[token] + given[owner_line, token] + added[line, token] > bound
    return count > 0


@compiled
def _give(tokens, discounts, first_arc, spans, first_state, owner, candidates, given, owner_line):
    """Write the discounts of a state, and of those that it backs off to and is linked to, over those that are there."""
    while owner >= 0:
        for arc in range(first_arc + spans[first_state + owner, 0], first_arc + spans[first_state + owner, 1]):
            if tokens[arc] < candidates:
                given[owner_line, tokens[arc]] = max(given[owner_line, tokens[arc]], discounts[arc])
        owner = spans[first_state + owner, 2]


@compiled
def _keep(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    state, weight, plain, blank, vocab_size, one, chain, added, highest, line_states, line_rows,
):  # fmt: skip
    """Have what each token adds in a state among the lines.

    Args:
        plain: `[C]`, the tokens' bonuses.
        highest: no less than the highest of a line.
        line_rows: the row whose discounts have been looked up for a line; -1 for none.

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
        if backoff_states[state] == state:
            score_one(
                arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                state, vocab_size, chain, one,
            )  # fmt: skip
            top = NONE
            for token in range(candidates):
                added[line, token] = plain[token] + weight * one[token]
                top = max(top, added[line, token])
        else:
            shift = weight * backoff_weights[state]
            for token in range(np.uintp(0), np.uintp(candidates)):
                added[line, token] = added[shorter, token] + shift
            top = highest[shorter] + shift
            for arc in range(arc_offsets[state], arc_offsets[state + 1]):
                token = arc_tokens[arc]
                if token < candidates:
                    added[line, token] = plain[token] + weight * arc_weights[arc]
                    top = max(top, added[line, token])
        for token in range(candidates, classes):
            added[line, token] = plain[token]
            top = max(top, plain[token])
        added[line, blank] = NONE
        highest[line], line_states[line], line_rows[line] = top, state, -1
    return chain


@compiled
def _offer(
    keys, stamps, stamp, numbers, count, states, phrases, lasts, scores, places, tokens,
    state, phrase, last, score, place, token,
):  # fmt: skip
    """Add a candidate, or let it take the place of a worse one with the same search state.

    Args:
        keys, stamps: `[2 ** n]`, a table of candidates by search state; entries with another stamp are empty.

    Returns:
        The number of candidates, and which one this has become, -1 if the one that was there is better.
    """
    mask = keys.size - 1
    key = (np.int64(state) << np.int64(32)) | np.int64(last + 1)
    mixed = (key ^ (np.int64(phrase) * np.int64(0x9E3779B97F4A7))) * np.int64(-7046029254386353131)
    at = (mixed ^ (mixed >> np.int64(29)) ^ (mixed >> np.int64(43))) & mask
    while stamps[at] == stamp:
        n = numbers[at]
        if keys[at] == key and phrases[n] == phrase:
            if score <= scores[n]:
                return count, -1
            scores[n], places[n], tokens[n] = score, place, token
            return count, n
        at = (at + 1) & mask
    keys[at], stamps[at], numbers[at] = key, stamp, count
    states[count], phrases[count], lasts[count] = state, phrase, last
    scores[count], places[count], tokens[count] = score, place, token
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
def _extend(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights, vocab_size,
    keys, stamps, stamp, numbers, count, states, phrases, lasts, scores, places, tokens,
    lm_scores, extras, shares, sorting, most_active, threshold, best, worst,
    state, phrase, place, token, score, extra, earns,
):  # fmt: skip
    """Add a hypothesis with a new token, by an arc of a phrase, to the candidates; too many are dropped but for the best.

    It isn't inlined as what the others do is, whose loop is the hotter one.

    Returns:
        The number of candidates, the stamp of the table, the best score, and the one below which nothing is kept.
    """
    lm_score, target = step_one(
        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights, state, token, vocab_size
    )
    count, n = _offer(
        keys, stamps, stamp, numbers, count, states, phrases, lasts, scores, places, tokens,
        target, phrase, token, score, place, token,
    )  # fmt: skip
    if n < 0:
        return count, stamp, best, worst
    lm_scores[n], shares[n], extras[n] = lm_score, earns, extra
    best = max(best, score)
    worst = max(worst, best - threshold)
    if count == scores.size:
        worst = max(worst, _highest_of(scores, count, most_active, sorting))
        count = _drop(worst, most_active, count, states, phrases, lasts, scores, places, tokens, lm_scores, extras, shares)
        stamp += 1
        for i in range(count):
            _offer(
                keys, stamps, stamp, numbers, i, states, phrases, lasts, scores, places, tokens,
                states[i], phrases[i], lasts[i], scores[i], places[i], tokens[i],
            )  # fmt: skip
    return count, stamp, best, worst


@compiled
def _drop(lowest, most, count, states, phrases, lasts, scores, places, tokens, lm_scores, extras, shares):
    """Keep the candidates that score at least so much, as many as may be kept: returns their number."""
    kept = 0
    above = 0
    for i in range(count):
        above += scores[i] > lowest
    ties = most - above
    for i in range(count):
        if scores[i] > lowest or (scores[i] == lowest and ties > 0):
            ties -= scores[i] == lowest
            states[kept], phrases[kept], lasts[kept], scores[kept] = states[i], phrases[i], lasts[i], scores[i]
            places[kept], tokens[kept] = places[i], tokens[i]
            lm_scores[kept], extras[kept], shares[kept] = lm_scores[i], extras[i], shares[i]
            kept += 1
    return kept


@compiled
def _search_rows(
    first, last, arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    starts, logits, normalisers, highest_logits, lengths, weights, bonuses,
    ranges, biased_states, spans, filters, biased_tokens, discounts, roots, blank, vocab_size, threshold, skip,
    all_scores, all_last, all_states, all_fused, all_lm_scores, all_phrase_scores, links, labels, bad_frames,
):  # fmt: skip
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights = borrowed_automaton(
        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights
    )
    logits, bonuses, filters = borrowed(logits), borrowed(bonuses), borrowed(filters)
    biased_states, spans = borrowed(biased_states), borrowed(spans)
    biased_tokens, discounts = borrowed(biased_tokens), borrowed(discounts)
    max_active = all_scores.shape[1]
    has_phrases = all_states.shape[2] > 1  # an automaton of them
    classes = logits.shape[1]
    candidates = min(vocab_size, classes)
    unscored = classes - candidates > (1 if blank >= candidates else 0)
    num_kept = 4
    while num_kept < 4 * max_active or num_kept * classes < KEPT_SCORES:
        num_kept *= 2
    all_added = np.empty((num_kept, classes), dtype=np.float32)
    all_highest = np.empty(num_kept, dtype=np.float32)
    all_line_states = np.empty(num_kept, dtype=np.int32)
    all_line_rows = np.empty(num_kept, dtype=np.int32)
    all_line_owners = np.empty(num_kept, dtype=np.int32)
    # What tokens score at the root of the phrases' automaton, and lead to; logits with that; and which hypothesis has arcs.
    all_root_scores = np.zeros(classes, dtype=np.float32)
    all_root_targets = np.zeros(classes, dtype=np.int32)
    all_lifted = np.empty(classes, dtype=np.float32)
    all_marks = np.zeros(classes, dtype=np.int64)
    all_known_most = np.full(KEPT_MOST, -1, dtype=np.int32)
    all_most_earned = np.empty(KEPT_MOST, dtype=np.float32)
    all_given = np.zeros((1 + OWNER_LINES, classes), dtype=np.float32)
    all_given_owners = np.empty(1 + OWNER_LINES, dtype=np.int32)
    room_one = np.empty(max(vocab_size, 1), dtype=np.float32)
    # Candidates: at most two for each hypothesis without new tokens, and some more.
    most = 4 * max_active
    size = 16
    while size < 4 * most:
        size *= 2
    table_keys = np.empty(size, dtype=np.int64)
    table_stamps = np.zeros(size, dtype=np.int64)
    table_numbers = np.empty(size, dtype=np.int32)
    of_candidates = np.empty((5, most), dtype=np.int32)
    singles = np.empty((3, most), dtype=np.float32)
    doubles = np.empty((2, most), dtype=np.float64)
    active_doubles = np.empty((10, max_active), dtype=np.float64)
    active_integers = np.empty((6, max_active), dtype=np.int32)

    added, highest = borrowed(all_added), borrowed(all_highest)
    line_states, line_rows = borrowed(all_line_states), borrowed(all_line_rows)
    line_owners, one = borrowed(all_line_owners), borrowed(room_one)
    given, given_owners = borrowed(all_given), borrowed(all_given_owners)
    root_scores, root_targets = borrowed(all_root_scores), borrowed(all_root_targets)
    lifted, marks = borrowed(all_lifted), borrowed(all_marks)
    known_most, most_earned = borrowed(all_known_most), borrowed(all_most_earned)
    keys, stamps, numbers = borrowed(table_keys), borrowed(table_stamps), borrowed(table_numbers)
    integers32, floats32, floats64 = borrowed(of_candidates), borrowed(singles), borrowed(doubles)
    c_states, c_lasts, c_places, c_tokens = integers32[0], integers32[1], integers32[2], integers32[3]
    c_phrases = integers32[4]
    c_lm_scores, c_extras, c_shares = floats32[0], floats32[1], floats32[2]
    c_scores, sorting = floats64[0], floats64[1]
    double_rows, integer_rows = borrowed(active_doubles), borrowed(active_integers)
    chain = np.empty(16, dtype=np.int32)
    stamp = 0
    mark = np.int64(0)
    known_root = -1
    for row in range(first, last):
        plain, weight, root = bonuses[row], weights[row, 0], roots[row]
        phrase_weight = weights[row, 1] if has_phrases else np.float32(0.0)
        first_arc, last_arc = ranges[row, 0, 0], ranges[row, 0, 1]
        first_state, last_state = ranges[row, 1, 0], ranges[row, 1, 1]
        first_byte, last_byte = ranges[row, 2, 0], ranges[row, 2, 1]
        biased = first_arc < last_arc
        follows = has_phrases and not biased
        most_given = np.float32(0.0)
        given[0] = 0.0
        if biased:
            for arc in range(first_arc, last_arc):
                most_given = max(most_given, discounts[arc])
            owner = owner_of(biased_states, first_state, last_state, 0)
            _give(biased_tokens, discounts, first_arc, spans, first_state, owner, candidates, given, 0)
            given_owners[:] = -1
        line_rows[:] = -1  # nothing is known of the row yet
        fits = row > first and weight == weights[row - 1, 0]
        for token in range(classes):
            fits = fits and plain[token] == bonuses[row - 1, token]
        if not fits:
            line_states[:] = -1  # nothing is kept yet
        scores, fused, lm_scores, phrase_scores = double_rows[0], double_rows[1], double_rows[2], double_rows[3]
        new_scores, new_fused, new_lm_scores, new_phrase_scores = double_rows[4], double_rows[5], double_rows[6], double_rows[7]
        followed, new_followed = double_rows[8], double_rows[9]
        lasts, states, new_lasts, new_states = integer_rows[0], integer_rows[1], integer_rows[2], integer_rows[3]
        phrases, new_phrases = integer_rows[4], integer_rows[5]
        active = 0
        leader = 0  # the place of the best
        for k in range(max_active):
            if all_scores[row, k] > -np.inf:
                if all_scores[row, k] > (scores[leader] if active else -np.inf):
                    leader = active
                scores[active], fused[active] = all_scores[row, k], all_fused[row, k]
                lm_scores[active] = all_lm_scores[row, k, 0]
                phrase_scores[active] = all_phrase_scores[row, k]
                followed[active] = all_lm_scores[row, k, 1] if has_phrases else 0.0
                lasts[active], states[active] = all_last[row, k], all_states[row, k, 0]
                phrases[active] = all_states[row, k, 1] if has_phrases else 0
                active += 1
        if follows and active:
            phrase_root = phrases[0]
            while backoff_states[phrase_root] != phrase_root:
                phrase_root = backoff_states[phrase_root]
            if phrase_root != known_root:
                known_root = phrase_root
                for token in range(candidates):
                    root_scores[token], root_targets[token] = step_one(
                        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                        phrase_root, token, vocab_size,
                    )  # fmt: skip
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
                        keys, stamps, stamp, numbers, count, c_states, c_phrases, c_lasts, c_scores, c_places, c_tokens,
                        states[k], phrases[k], -1, score, k, BLANK,
                    )  # fmt: skip
                    best = max(best, score)
                if lasts[k] >= 0 and not skipped:
                    score = scores[k] + (np.float64(x[lasts[k]]) - normaliser)
                    if score > -np.inf:
                        count, _ = _offer(
                            keys, stamps, stamp, numbers, count, c_states, c_phrases, c_lasts, c_scores, c_places, c_tokens,
                            states[k], phrases[k], lasts[k], score, k, INSIDE,
                        )  # fmt: skip
                        best = max(best, score)

            # New tokens. What scores no higher than `worst` isn't kept.
            if not skipped:
                worst = _highest_of(c_scores, count, max_active, sorting) if count >= max_active else -np.inf
                worst = max(worst, best - threshold)
                sums, highest_sum = x, highest_logits[packed]
                is_lifted = False
                for turn in range(active):
                    k = leader if turn == 0 else turn if turn > leader else turn - 1  # the best one first
                    base = scores[k] - normaliser
                    state = states[k]
                    line = _line_of(state, num_kept)
                    if line_states[line] != state:
                        chain = _keep(
                            arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                            state, weight, plain, blank, vocab_size, one, chain, added, highest, line_states, line_rows,
                        )  # fmt: skip
                    if follows:
                        place = phrases[k] & (KEPT_MOST - 1)
                        if known_most[place] != phrases[k]:
                            known_most[place] = phrases[k]
                            most_earned[place] = _most_earned(
                                arc_offsets, arc_tokens, arc_weights, backoff_states, backoff_weights, phrases[k], candidates
                            )
                        share = phrase_weight * most_earned[place]
                        if phrase_weight >= 0 and base + highest_logits[packed] + highest[line] + share <= worst:
                            continue
                        if not is_lifted:  # by what tokens earn that begin a phrase
                            is_lifted = True
                            for token in range(np.uintp(0), np.uintp(classes)):
                                lifted[token] = x[token] + phrase_weight * root_scores[token]
                            lifted[blank] = NONE
                            sums, highest_sum = lifted, _highest(lifted)
                    back = np.float32(0.0)  # what the phrases in progress give back but where an arc goes on with one
                    if follows and phrases[k] != known_root:
                        mark += 1
                        at_phrase = phrases[k]
                        while at_phrase != known_root and backoff_states[at_phrase] != at_phrase:
                            for arc in range(arc_offsets[at_phrase], arc_offsets[at_phrase + 1]):
                                token = np.int64(arc_tokens[arc])
                                if token >= candidates or marks[token] == mark:
                                    continue
                                marks[token] = mark
                                earns = back + arc_weights[arc]
                                share = phrase_weight * earns
                                score = base + x[token] + (added[line, token] + share)
                                if score <= worst or token == lasts[k]:
                                    continue
                                behind = arc_targets[arc]
                                count, stamp, best, worst = _extend(
                                    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                                    vocab_size, keys, stamps, stamp, numbers, count, c_states, c_phrases, c_lasts, c_scores,
                                    c_places, c_tokens, c_lm_scores, c_extras, c_shares, sorting, max_active, threshold, best,
                                    worst, state, behind, k, token, score, added[line, token] + share, earns,
                                )  # fmt: skip
                            back += backoff_weights[at_phrase]
                            at_phrase = backoff_states[at_phrase]
                    lower = phrase_weight * back
                    if unscored:  # classes that give nothing back
                        lower = max(lower, np.float32(0.0))
                    if base + highest_sum + highest[line] + (lower + most_given) <= worst:
                        continue
                    owner_line = np.int64(0)
                    if biased:
                        if line_rows[line] != row:
                            line_rows[line] = row
                            line_owners[line] = owner_above(
                                biased_states, first_state, last_state, filters, first_byte, last_byte,
                                backoff_states, root, state,
                            )  # fmt: skip
                        owner = line_owners[line]
                        if owner >= 0:
                            owner_line = 1 + (owner & (OWNER_LINES - 1))
                            if given_owners[owner_line] != owner:
                                given_owners[owner_line] = owner
                                given[owner_line] = given[0]
                                _give(
                                    biased_tokens, discounts, first_arc, spans, first_state, owner, candidates,
                                    given, owner_line,
                                )  # fmt: skip
                    for block in range(0, classes, BLOCK):
                        end = min(block + BLOCK, classes)
                        bound = np.float32(worst - base - lower - ROUNDING)
                        if biased:
                            if not _any_above(x, given, owner_line, added, line, block, end, bound):
                                continue
                        elif not any_above(sums, added, line, block, end, bound):
                            continue
                        for at in range(np.uintp(block), np.uintp(end)):
                            token = np.int64(at)
                            if follows:
                                if marks[token] == mark and phrases[k] != known_root:
                                    continue
                                earns, behind = np.float32(0.0), phrases[k]
                                if token < candidates:
                                    earns, behind = back + root_scores[token], root_targets[token]
                                share = phrase_weight * earns
                            else:
                                earns, behind = given[owner_line, at], phrases[k]
                                share = earns
                            score = base + x[at] + (added[line, at] + share)
                            if score <= worst or token == lasts[k]:
                                continue
                            lm_score, target = np.float32(0.0), state
                            if token < candidates:
                                lm_score, target = step_one(
                                    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                                    state, token, vocab_size,
                                )  # fmt: skip
                            count, n = _offer(
                                keys, stamps, stamp, numbers, count, c_states, c_phrases, c_lasts, c_scores, c_places, c_tokens,
                                target, behind, token, score, k, token,
                            )  # fmt: skip
                            if n < 0:
                                continue
                            c_lm_scores[n], c_shares[n], c_extras[n] = lm_score, earns, added[line, token] + share
                            best = max(best, score)
                            worst = max(worst, best - threshold)
                            if count == most:
                                worst = max(worst, _highest_of(c_scores, count, max_active, sorting))
                                count = _drop(
                                    worst, max_active, count, c_states, c_phrases, c_lasts, c_scores, c_places, c_tokens,
                                    c_lm_scores, c_extras, c_shares,
                                )  # fmt: skip
                                stamp += 1
                                for i in range(count):
                                    _offer(
                                        keys, stamps, stamp, numbers, i, c_states, c_phrases, c_lasts, c_scores, c_places,
                                        c_tokens, c_states[i], c_phrases[i], c_lasts[i], c_scores[i], c_places[i], c_tokens[i],
                                    )  # fmt: skip
            if best == -np.inf:
                continue  # nothing is possible: weights so large that the sums overflow
            lowest = best - threshold
            if count > max_active:
                lowest = max(lowest, _highest_of(c_scores, count, max_active, sorting))
            kept = _drop(
                lowest, max_active, count, c_states, c_phrases, c_lasts, c_scores, c_places, c_tokens,
                c_lm_scores, c_extras, c_shares,
            )  # fmt: skip
            leader = 0
            for i in range(kept):
                k, token = c_places[i], c_tokens[i]
                new_scores[i], new_states[i], new_phrases[i], new_lasts[i] = c_scores[i], c_states[i], c_phrases[i], c_lasts[i]
                new_fused[i], new_lm_scores[i], new_phrase_scores[i] = fused[k], lm_scores[k], phrase_scores[k]
                new_followed[i] = followed[k]
                if c_scores[i] > c_scores[leader]:
                    leader = i
                links[row, frame, i], labels[row, frame, i] = k, token
                if token >= 0:
                    new_fused[i] += c_extras[i]
                    new_lm_scores[i] += c_lm_scores[i]
                    if follows:
                        new_followed[i] += c_shares[i]
                    else:
                        new_phrase_scores[i] += c_shares[i]
            active = kept
            scores, new_scores, fused, new_fused = new_scores, scores, new_fused, fused
            lm_scores, new_lm_scores = new_lm_scores, lm_scores
            phrase_scores, new_phrase_scores = new_phrase_scores, phrase_scores
            lasts, new_lasts, states, new_states = new_lasts, lasts, new_states, states
            phrases, new_phrases, followed, new_followed = new_phrases, phrases, new_followed, followed
        for k in range(max_active):
            all_scores[row, k] = -np.inf
        for k in range(active):
            all_scores[row, k], all_fused[row, k] = scores[k], fused[k]
            all_lm_scores[row, k, 0] = lm_scores[k]
            all_last[row, k], all_states[row, k, 0] = lasts[k], states[k]
            all_phrase_scores[row, k] = phrase_scores[k]
            if has_phrases:
                all_lm_scores[row, k, 1], all_states[row, k, 1] = followed[k], phrases[k]
    # What was borrowed from must last until here.
    return (
        all_added.size + all_highest.size + all_line_states.size + all_line_rows.size + all_line_owners.size
        + all_root_scores.size + all_root_targets.size + all_lifted.size + all_marks.size
        + all_known_most.size + all_most_earned.size
        + room_one.size + all_given.size + all_given_owners.size + table_keys.size + table_stamps.size + table_numbers.size
        + of_candidates.size + singles.size + doubles.size + active_doubles.size + active_integers.size
    )  # fmt: skip
