"""What beam search for transducers does between two runs of the networks, as compiled loops over rows."""

from __future__ import annotations

import numpy as np

from ...automaton.compiled import borrowed, compiled, step_one
from ..networks.cpu_networks import all_borrowed, normaliser_of
from ..networks.cpu_vectors import BLOCK
from . import STILL
from .classes import add, best_classes, confidence_sum, fuse, insert, normalisers
from .lines import fill_line

ANY_NUMBER = np.iinfo(np.int64).max
DURATION_BITS = 16  # of a class and a duration in one number


@compiled
def open_of(row, num_beams, scores, times, limit, reach, found):
    """Put the hypotheses of a row that go on into `found`: those before the limit, unless one of the row may get beyond it (see
    `Search.run_on`); returns their number.
    """
    latest = -1
    for k in range(num_beams):
        if scores[row, k] > -np.inf:
            latest = max(latest, times[row, k])
    count = 0
    if latest + reach <= limit:
        for k in range(num_beams):
            if scores[row, k] > -np.inf and times[row, k] < limit:
                found[count] = k
                count += 1
    return count


@compiled
def collect(scores, times, slots, limits, reaches, longest, slots_of_row, places, open_slots, open_frames):
    """Number the hypotheses of all rows that go on."""
    count = 0
    room = np.empty(scores.shape[1], np.int64)
    for row in range(scores.shape[0]):
        places[row] = -1
        for i in range(open_of(row, scores.shape[1], scores, times, limits[row], reaches[row], room)):
            k = room[i]
            places[row, k] = count
            open_slots[count] = row * slots_of_row + slots[row, k]
            open_frames[count] = row * longest + times[row, k]
            count += 1
    return count


@compiled
def _extend_hash(prefix_hash, token):
    mixed = (prefix_hash + np.int64(token) + np.int64(1)) * np.int64(6364136223846793005) + np.int64(1442695040888963407)
    return mixed ^ (mixed >> np.int64(29))


@compiled
def work_space(rules, beam):
    """Room that `search_rows` works in."""
    durations, classes, vocab_size, most_extensions = rules[0], rules[2], rules[3], rules[9]
    num_beams, num_automata = beam[9].shape[1:]
    most_extensions = min(most_extensions, classes * max(durations.size, 1))
    room, buckets, blocks = num_beams * (most_extensions + 1), 8, -(-classes // BLOCK)
    while buckets < 2 * room:
        buckets *= 2
    longest = max(most_extensions, num_beams, durations.size) + 1
    return (
        np.empty((7, room), np.int64), np.empty((4, room), np.float64), np.empty(buckets, np.int64),
        np.empty((8, num_beams), np.int64), np.empty((4, num_beams), np.float64),
        np.empty((num_beams, num_automata), np.int32), np.empty((num_beams, num_automata), np.float32),
        np.empty(beam[13].shape[1], np.bool_), np.empty((3, longest), np.int64), np.empty((4, longest), np.float64),
        np.full(blocks * BLOCK, np.float32(-np.inf)), np.empty(max(vocab_size, 1), np.float32), np.empty(BLOCK, np.float32),
        np.empty(16, np.int32),
    )  # fmt: skip


@compiled
def step_rows(first, last, automaton, logits, places, of_rows, rules, beam, trace, new):
    """`search_rows` of a run of rows, whose new tokens are put behind `first * num_beams`; returns that and their number."""
    space, rows, begin = work_space(rules, beam), np.arange(first, last), first * places.shape[1]
    end = search_rows(
        rows, rows.size, all_borrowed(automaton), borrowed(logits), borrowed(places), all_borrowed(of_rows), rules,
        all_borrowed(beam), all_borrowed(trace), all_borrowed(space), borrowed(new), begin,
    )  # fmt: skip
    kept = len(space)  # what was borrowed from must last until here
    return begin, end - begin, kept


@compiled
def search_rows(rows, num_rows, automaton, logits, places, of_rows, rules, beam, trace, space, new, num_new):
    """Take one step with each row.

    Args:
        rows: int64, the first `num_rows` of them.
        logits: float32 `[N, C]`; those of hypothesis k of a row are in line `places[row, k]`, -1 where it doesn't go on.
        of_rows: lengths, limits, phases, weights `[B, M]` and totals.
        rules: see `hf_ngpulm.search.transducer_beam.cpu.Search.rules`.
        beam: the arrays of `hf_ngpulm.search.transducer_beam.cpu.Beam`.
        trace: steps that each row has taken (int64 `[B]`), and room for links, labels, moves and sums.
        new: int64 `[3, N]`, where new tokens are put, from `num_new` on: the slot that each is read from, the token, and the
            slot that its prediction goes to.

    Returns:
        The new `num_new`.
    """
    lengths, limits, used = of_rows[0], of_rows[1], trace[0]
    times, bad_frames = beam[2], beam[12]
    for i in range(num_rows):
        row = rows[i]
        heard = _hear(row, logits, places, rules, times, bad_frames, space)
        if heard < 0:
            lengths[row] = 0
            for k in range(places.shape[1]):
                times[row, k] = limits[row]
        elif heard > 0:
            if rules[4] and of_rows[2][row] == 0:
                used[row] += _merge_prefixes(row, logits, places, of_rows, rules, beam, trace, space)
            count = _candidates(row, logits, places, of_rows, rules, beam, space)
            groups = _join_those_that_are_same(count, rules, space)
            num_new = _renew(row, groups, automaton, logits, places, of_rows, rules, beam, trace, space, new, num_new)
            used[row] += 1
    return num_new


@compiled
def _hear(row, logits, places, rules, times, bad_frames, space):
    """Normalise what is said to the hypotheses of a row; 1 if there is anything, -1 if it is broken."""
    durations, blank, classes = rules[:3]
    log_sums, other_sums, duration_sums, highest = space[4]
    found = 0
    for k in range(places.shape[1]):
        at = places[row, k]
        if at >= 0:
            log_sums[k], other_sums[k], highest[k] = normalisers(logits, at, classes, blank)
            duration_sums[k] = 0.0
            if durations.size:
                _, duration_sums[k] = normaliser_of(logits, at, classes, classes + durations.size)
            if not np.isfinite(log_sums[k] + duration_sums[k]):
                bad_frames[row] = min(bad_frames[row], times[row, k]) if found < 0 else times[row, k]
                found = -1
            elif found == 0:
                found = 1
    return found


@compiled
def _merge_prefixes(row, logits, places, of_rows, rules, beam, trace, space):
    """Have hypotheses that are another one and a token be reached from there too; returns the steps that this takes."""
    _, _, classes, _, _, blank_aware, _, log_sum, _, _, _, measure, alpha, _, _ = rules
    all_scores, all_acoustic, _, _, all_sizes, all_last, all_hashes, all_parent_hashes, all_slots = beam[:9]
    lines, slots_of_row = beam[11], beam[13].shape[1]
    used, links, labels, _, sums = trace
    depths, by_size = space[3][6], space[3][7]
    log_sums, other_sums, _, highest = space[4]
    total = np.float64(of_rows[4][row]) if blank_aware else 0.0
    scores, acoustic = all_scores[row], all_acoustic[row]
    # Shorter ones first: what they gain goes on.
    for i in range(scores.size):
        at = i
        while at > 0 and all_sizes[row, by_size[at - 1]] > all_sizes[row, i]:
            by_size[at] = by_size[at - 1]
            at -= 1
        by_size[at] = i
        depths[i] = 0
    deepest = 0
    for k in by_size:
        if places[row, k] < 0 or all_sizes[row, k] == 0:
            continue
        for j in range(scores.size):
            if (
                places[row, j] >= 0
                and all_hashes[row, j] == all_parent_hashes[row, k]
                and all_sizes[row, j] + 1 == all_sizes[row, k]
            ):
                token = all_last[row, k]
                gain = np.float64(logits[places[row, j], token]) - log_sums[j]
                if gain == -np.inf:
                    break
                score = scores[j] + gain
                if total != 0.0:
                    score += total * (other_sums[j] - log_sums[j])
                if lines.shape[0]:
                    score += lines[row * slots_of_row + all_slots[row, j], token]
                if score > scores[k]:
                    depths[k] = depths[j] + 1
                    deepest = max(deepest, depths[k])
                    step = used[row] + depths[k] - 1
                    links[step, row, k], labels[step, row, k] = j, token
                    if measure >= 0:
                        sums[step, row, k] = confidence_sum(
                            logits, places[row, j], classes, log_sums[j], highest[j], measure, alpha
                        )
                if log_sum:
                    scores[k] = add(scores[k], score)
                    acoustic[k] = add(acoustic[k], acoustic[j] + gain)
                elif score > scores[k]:
                    scores[k], acoustic[k] = score, acoustic[j] + gain
                break
    return deepest


@compiled
def _candidates(row, logits, places, of_rows, rules, beam, space):
    """What the hypotheses of a row may become; returns their number."""
    durations, blank, classes, _, aes_steps, blank_aware, late, _, max_symbols, most_extensions, gamma, _, _, _, _ = rules
    all_scores, all_acoustic, all_times, all_symbols, all_sizes, _, all_hashes, _, all_slots = beam[:9]
    lines, slots_of_row = beam[11], beam[13].shape[1]
    parents, c_labels, c_moves, c_times, c_hashes, c_sizes, _ = space[0]
    c_scores, c_acoustic = space[1][0], space[1][1]
    log_sums, other_sums, duration_sums, _ = space[4]
    entries, pairs, _ = space[8]
    ranks, pair_ranks, _, duration_scores = space[9]
    fused, tops = space[10], space[12]
    scores, acoustic, has_lines, num_beams = all_scores[row], all_acoustic[row], lines.shape[0] > 0, places.shape[1]
    total = np.float64(of_rows[4][row]) if blank_aware else 0.0
    length, num_durations = of_rows[0][row], durations.size
    most_extensions, most_symbols = min(most_extensions, classes * max(num_durations, 1)), max_symbols
    if aes_steps:
        most_symbols = ANY_NUMBER if of_rows[2][row] < aes_steps else 0
    count = 0
    for k in range(num_beams):
        if scores[k] == -np.inf:
            continue
        at = places[row, k]
        if at < 0:  # it has ended
            parents[count], c_labels[count], c_moves[count] = k, STILL, 0
            c_scores[count], c_acoustic[count], c_times[count] = scores[k], acoustic[k], all_times[row, k]
            c_hashes[count], c_sizes[count] = all_hashes[row, k], all_sizes[row, k]
            count += 1
            continue
        line = row * slots_of_row + all_slots[row, k]
        # What all tokens, or the blank, get on top of their logits.
        common = -log_sums[k]
        if total != 0.0:
            common += total * (other_sums[k] - log_sums[k])
        blank_log_prob = np.float64(logits[at, blank]) - log_sums[k]
        of_blank = blank_log_prob
        if total != 0.0 and blank_log_prob > -np.inf:
            of_blank += total * blank_log_prob
        size = 0
        if all_symbols[row, k] < most_symbols:
            fuse(logits, at, lines, line, late and has_lines, classes, blank, fused)
            size = best_classes(fused, tops, most_extensions, common if late else -log_sums[k], ranks, entries)
        if blank_log_prob > -np.inf:
            size = insert(ranks, entries, size, most_extensions, of_blank if late else blank_log_prob, blank)
        if num_durations:
            if not late:  # the classes are chosen; LMs have a say in which of their durations are
                for i in range(size):
                    label = entries[i]
                    if label == blank:
                        ranks[i] = of_blank
                    else:
                        fused_score = np.float64(logits[at, label]) + common
                        if has_lines:
                            fused_score += lines[line, label]
                        ranks[i] = fused_score if fused_score == fused_score else -np.inf  # impossible in two ways
            for d in range(num_durations):
                duration_scores[d] = np.float64(logits[at, classes + d]) - duration_sums[k]
            num_pairs, likeliest = 0, 0
            for d in range(1, num_durations):
                likeliest = d if duration_scores[d] > duration_scores[likeliest] else likeliest
            for i in range(size):
                # Where the likeliest duration brings an entry no place, no other does.
                if num_pairs == most_extensions and ranks[i] + duration_scores[likeliest] <= pair_ranks[num_pairs - 1]:
                    continue
                for d in range(num_durations):
                    num_pairs = insert(
                        pair_ranks, pairs, num_pairs, most_extensions, ranks[i] + duration_scores[d],
                        entries[i] << DURATION_BITS | d,
                    )  # fmt: skip
            size = num_pairs
        for i in range(size):
            if num_durations:
                label, d = pairs[i] >> DURATION_BITS, pairs[i] & ((1 << DURATION_BITS) - 1)
                move, of_duration = durations[d], duration_scores[d]
            else:
                label, of_duration = entries[i], 0.0
                move = np.int64(label == blank)
                if aes_steps and ranks[i] <= ranks[0] - gamma:
                    break
            gain = np.float64(logits[at, label]) - log_sums[k] + of_duration
            if label == blank:
                move = max(move, 1)
                score = of_blank + of_duration
                c_hashes[count], c_sizes[count] = all_hashes[row, k], all_sizes[row, k]
            else:
                score = np.float64(logits[at, label]) + common + of_duration
                if has_lines:
                    score += lines[line, label]
                c_hashes[count], c_sizes[count] = _extend_hash(all_hashes[row, k], label), all_sizes[row, k] + 1
                if aes_steps:
                    known = False
                    for j in range(num_beams):
                        known |= (
                            scores[j] > -np.inf
                            and all_hashes[row, j] == c_hashes[count]
                            and all_sizes[row, j] == c_sizes[count]
                        )
                    if known:
                        continue
            parents[count], c_labels[count], c_moves[count] = k, label, move
            c_scores[count], c_acoustic[count] = scores[k] + score, acoustic[k] + gain
            c_times[count] = min(all_times[row, k] + move, length)
            if c_scores[count] > -np.inf:
                count += 1
    return count


@compiled
def _join_those_that_are_same(count, rules, space):
    """Groups of candidates with the same tokens at the same frame; returns their number."""
    log_sum = rules[7]
    _, _, _, c_times, c_hashes, c_sizes, g_best = space[0]
    c_scores, c_acoustic, g_scores, g_acoustic = space[1]
    buckets = space[2]
    buckets[:] = -1
    groups = 0
    for i in range(count):
        bucket = (c_hashes[i] ^ (c_times[i] * np.int64(0x9E3779B1))) & np.int64(buckets.size - 1)
        while True:
            group = buckets[bucket]
            if group < 0:
                buckets[bucket] = groups
                g_scores[groups], g_acoustic[groups], g_best[groups] = c_scores[i], c_acoustic[i], i
                groups += 1
                break
            other = g_best[group]
            if c_hashes[other] == c_hashes[i] and c_times[other] == c_times[i] and c_sizes[other] == c_sizes[i]:
                better = c_scores[i] > c_scores[other]
                if log_sum:
                    g_scores[group] = add(g_scores[group], c_scores[i])
                    g_acoustic[group] = add(g_acoustic[group], c_acoustic[i])
                elif better:
                    g_scores[group], g_acoustic[group] = c_scores[i], c_acoustic[i]
                if better:
                    g_best[group] = i
                break
            bucket = (bucket + 1) & (buckets.size - 1)
    return groups


@compiled
def _renew(row, groups, automaton, logits, places, of_rows, rules, beam, trace, space, new, num_new):
    """Make the best groups the new beam of a row; returns the new number of new tokens."""
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights = automaton
    _, blank, classes, vocab_size, _, _, _, _, _, _, _, measure, alpha, num_lms, has_ilm = rules
    all_scores, all_acoustic, all_times, all_symbols, all_sizes, all_last, all_hashes, all_parent_hashes, all_slots = beam[:9]
    all_lm_states, all_lm_scores, lines, _, slot_hashes, slot_sizes, slot_uses = beam[9:]
    used, links, labels, moves, sums = trace
    parents, c_labels, c_moves, c_times, c_hashes, _, g_best = space[0]
    _, _, g_scores, g_acoustic = space[1]
    old_slots, old_symbols, old_sizes, old_last, old_hashes, old_parent_hashes, _, _ = space[3]
    log_sums, highest = space[4][0], space[4][3]
    old_lm_states, old_lm_scores, occupied = space[5], space[6], space[7]
    chosen, chosen_scores, one, chain = space[8][2], space[9][2], space[11], space[13]
    weights = of_rows[3]
    scores, acoustic, step = all_scores[row], all_acoustic[row], used[row]
    num_beams, num_automata = all_lm_states.shape[1:]
    slots_of_row, scored = slot_hashes.shape[1], min(vocab_size, classes)
    size = 0
    for group in range(groups):
        size = insert(chosen_scores, chosen, size, num_beams, g_scores[group], group)
    for slot in range(slots_of_row):
        occupied[slot] = False
    for k in range(num_beams):
        old_slots[k], old_symbols[k], old_sizes[k] = all_slots[row, k], all_symbols[row, k], all_sizes[row, k]
        old_last[k], old_hashes[k], old_parent_hashes[k] = all_last[row, k], all_hashes[row, k], all_parent_hashes[row, k]
        for m in range(num_automata):
            old_lm_states[k, m], old_lm_scores[k, m] = all_lm_states[row, k, m], all_lm_scores[row, k, m]
        if scores[k] > -np.inf:
            occupied[all_slots[row, k]] = True
        else:
            old_slots[k] = -1
    for place in range(num_beams):
        if place >= size:
            scores[place] = acoustic[place] = -np.inf
            continue
        group = chosen[place]
        i = g_best[group]
        k, label = parents[i], c_labels[i]
        scores[place], acoustic[place], all_times[row, place] = g_scores[group], g_acoustic[group], c_times[i]
        links[step, row, place], labels[step, row, place], moves[step, row, place] = k, label, c_moves[i]
        all_slots[row, place], all_symbols[row, place], all_sizes[row, place] = old_slots[k], old_symbols[k], old_sizes[k]
        all_last[row, place], all_hashes[row, place] = old_last[k], old_hashes[k]
        all_parent_hashes[row, place] = old_parent_hashes[k]
        for m in range(num_automata):
            all_lm_states[row, place, m], all_lm_scores[row, place, m] = old_lm_states[k, m], old_lm_scores[k, m]
        if label == blank:
            all_symbols[row, place] = 0
        elif label >= 0:
            all_symbols[row, place] = 0 if c_moves[i] > 0 else old_symbols[k] + 1
            all_sizes[row, place] = old_sizes[k] + 1
            if measure >= 0:
                sums[step, row, place] = confidence_sum(
                    logits, places[row, k], classes, log_sums[k], highest[k], measure, alpha
                )
            all_last[row, place], all_hashes[row, place] = label, c_hashes[i]
            all_parent_hashes[row, place] = old_hashes[k]
            if label < scored:
                for m in range(num_automata):
                    score, all_lm_states[row, place, m] = step_one(
                        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                        old_lm_states[k, m], label, vocab_size,
                    )  # fmt: skip
                    all_lm_scores[row, place, m] += score
            # Its prediction: one for all hypotheses with the same tokens, as long as nobody else has taken its slot.
            slot = oldest = -1
            for other in range(slots_of_row):
                if slot_hashes[row, other] == c_hashes[i] and slot_sizes[row, other] == all_sizes[row, place]:
                    slot = other
                    break
                if not occupied[other] and (oldest < 0 or slot_uses[row, other] < slot_uses[row, oldest]):
                    oldest = other
            if slot < 0:
                slot = oldest
                slot_hashes[row, slot], slot_sizes[row, slot] = c_hashes[i], all_sizes[row, place]
                target = row * slots_of_row + slot
                new[0, num_new], new[1, num_new], new[2, num_new] = row * slots_of_row + old_slots[k], label, target
                num_new += 1
                same = -1  # a slot of the row in which LMs add the same
                if not has_ilm:
                    for other in range(num_beams):
                        if same < 0 and old_slots[other] >= 0:
                            same = old_slots[other]
                            for m in range(num_automata):
                                same = same if old_lm_states[other, m] == all_lm_states[row, place, m] else -1
                if same >= 0 and lines.shape[0]:
                    source = row * slots_of_row + same
                    for other in range(np.uintp(classes)):
                        lines[target, other] = lines[source, other]
                elif lines.shape[0]:
                    chain = fill_line(
                        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                        all_lm_states, row, place, weights, num_lms, vocab_size, one, chain, lines, target,
                    )  # fmt: skip
            occupied[slot] = True
            all_slots[row, place] = slot
    slot_uses[row, slots_of_row] += 1  # a clock
    for place in range(size):
        slot_uses[row, all_slots[row, place]] = slot_uses[row, slots_of_row]
    return num_new
