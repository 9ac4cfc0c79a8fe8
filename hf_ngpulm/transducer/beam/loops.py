"""What beam search for transducers does between two runs of the networks, as compiled loops over rows."""

from __future__ import annotations

import numpy as np

from ...automaton.cpu import borrowed_automaton, compiled, score_one, step_one
from ..cpu_networks import INFINITY, exp, magnitude_of, normaliser_of, number_of, order_of, sum_for_confidence, summing
from . import STILL

NEGLIGIBLE = 40.0  # a summand less likely than another by this power of e is lost in double precision


@compiled
def collect(scores, times, slots, limits, reaches, longest, places, open_slots, open_frames):
    """Number the hypotheses that go on: those before the limits, unless one of the row may get beyond (see `Search.run`)."""
    count = 0
    for row in range(scores.shape[0]):
        latest = -1
        for k in range(scores.shape[1]):
            if scores[row, k] > -np.inf:
                latest = max(latest, times[row, k])
        waits = latest + reaches[row] > limits[row]
        for k in range(scores.shape[1]):
            places[row, k] = -1
            if scores[row, k] > -np.inf and times[row, k] < limits[row] and not waits:
                places[row, k] = count
                open_slots[count] = row * 2 * scores.shape[1] + slots[row, k]
                open_frames[count] = row * longest + times[row, k]
                count += 1
    return count


@compiled
def packed(new, counts):
    """Move the new tokens of all rows together; returns their number."""
    num_beams = new.shape[2]
    count = 0
    for row in range(counts.size):
        for i in range(counts[row]):
            for field in range(3):
                new[field, count // num_beams, count % num_beams] = new[field, row, i]
            count += 1
    return count


@compiled
def first_lines(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    rows, lm_states, weights, num_lms, vocab_size, slots_of_row, lines,
):  # fmt: skip
    one, chain = np.empty(max(vocab_size, 1), dtype=np.float32), np.empty(16, dtype=np.int32)
    if lines.shape[0]:
        for row in rows:
            chain = _fill_line(
                arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                lm_states, row, 0, weights, num_lms, vocab_size, one, chain, lines, row * slots_of_row,
            )  # fmt: skip


@compiled
def lines_of_rows(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    rows, scores, slots, lm_states, weights, num_lms, vocab_size, slots_of_row, lines,
):  # fmt: skip
    """The lines of all hypotheses of some rows anew."""
    one, chain = np.empty(max(vocab_size, 1), dtype=np.float32), np.empty(16, dtype=np.int32)
    for row in rows:
        for place in range(scores.shape[1]):
            if scores[row, place] > -np.inf:
                chain = _fill_line(
                    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                    lm_states, row, place, weights, num_lms, vocab_size, one, chain, lines,
                    row * slots_of_row + slots[row, place],
                )  # fmt: skip


@compiled
def _fill_line(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    lm_states, row, place, weights, num_lms, vocab_size, one, chain, lines, line,
):  # fmt: skip
    """What the LMs of a hypothesis add to the score of each class."""
    classes = lines.shape[1]
    scored = min(vocab_size, classes)
    total = np.float32(0.0)
    for m in range(num_lms):
        total += weights[row, m]
    for label in range(np.uintp(0), np.uintp(scored)):
        lines[line, label] = 0.0
    for label in range(scored, classes):  # as likely as one of V tokens that are equally likely
        lines[line, label] = -total * np.log(np.float32(vocab_size)) if vocab_size else np.float32(0.0)
    for m in range(weights.shape[1]):
        weight = weights[row, m]
        if weight != 0.0:
            chain = score_one(
                arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                lm_states[row, place, m], vocab_size, chain, one,
            )  # fmt: skip
            for label in range(np.uintp(0), np.uintp(scored)):
                lines[line, label] += weight * one[label]
    return chain


@compiled
def _add(a, b):
    """log(exp(a) + exp(b))"""
    if a < b:
        a, b = b, a
    return a if b < a - NEGLIGIBLE or b == -np.inf else a + np.log1p(np.exp(b - a))


@compiled
def _extend_hash(prefix_hash, token):
    mixed = (prefix_hash + np.int64(token) + np.int64(1)) * np.int64(6364136223846793005) + np.int64(1442695040888963407)
    return mixed ^ (mixed >> np.int64(29))


@summing
def _log_sums(logits, at, classes, blank):
    """Log of the sum of exponentials of all classes, and of all but the blank; NaN if there is none."""
    top, widest = np.int32(-(2**31)), np.int32(0)
    for label in range(np.uintp(0), np.uintp(classes)):
        if label != np.uintp(blank):
            top = max(top, order_of(logits[at, label]))
        widest = max(widest, magnitude_of(logits[at, label]))
    highest = number_of(top)
    if widest > INFINITY or max(highest, logits[at, blank]) == np.inf:
        return np.float64(np.nan), np.float64(np.nan)
    others = -np.inf
    if highest > -np.inf:
        total = np.float32(0.0)
        for label in range(np.uintp(0), np.uintp(blank)):
            total += exp(logits[at, label] - highest)
        for label in range(np.uintp(blank + 1), np.uintp(classes)):
            total += exp(logits[at, label] - highest)
        others = np.float64(highest) + np.log(np.float64(total))
    return _add(others, np.float64(logits[at, blank])), others


@compiled
def _sum_for_confidence(logits, at, classes, log_sum, measure, alpha):
    best = 0
    if measure == 0:
        for label in range(1, classes):
            if logits[at, label] > logits[at, best]:
                best = label
    return sum_for_confidence(logits, at, classes, np.float32(log_sum), best, measure, alpha)


@compiled
def _insert(ranks, entries, size, most, rank, entry):
    """Put an entry in a list that is sorted, the highest rank first, and holds `most`; returns its new size."""
    if size == most:
        if rank <= ranks[size - 1]:
            return size
        size -= 1
    at = size
    while at > 0 and ranks[at - 1] < rank:
        ranks[at], entries[at] = ranks[at - 1], entries[at - 1]
        at -= 1
    ranks[at], entries[at] = rank, entry
    return size + 1


@compiled
def search_rows(
    first, last, arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    logits, places, limits, lengths, durations, blank, classes, vocab_size, weights, num_lms, totals,
    aes, merges_prefixes, blank_aware, late, log_sum, most_symbols, most_extensions, gamma, measure, alpha,
    all_scores, all_acoustic, all_times, all_symbols, all_sizes, all_last, all_hashes, all_parent_hashes, all_slots,
    all_lm_states, all_lm_scores, lines, bad_frames, new_sources, new_tokens, new_targets, new_counts,
    links, labels, moves, sums,
):  # fmt: skip
    """Take one step with each row; returns the number of steps that the longest trace of it has."""
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights = borrowed_automaton(
        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights
    )
    num_beams, num_automata = all_lm_states.shape[1:]
    num_durations = durations.size
    scored = min(vocab_size, classes)
    most_extensions = min(most_extensions, classes * max(num_durations, 1))
    room = num_beams * (most_extensions + 1)
    num_buckets = 8
    while num_buckets < 2 * room:
        num_buckets *= 2
    # Candidates: the hypothesis that each comes from, label, frames moved on, and the group of those that are the same.
    parents, c_labels, c_moves = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    c_scores, c_acoustic, c_times = np.empty(room, np.float64), np.empty(room, np.float64), np.empty(room, np.int64)
    c_hashes, c_sizes = np.empty(room, np.int64), np.empty(room, np.int64)
    buckets = np.empty(num_buckets, np.int64)
    g_scores, g_acoustic, g_best = np.empty(room, np.float64), np.empty(room, np.float64), np.empty(room, np.int64)
    log_sums, other_sums, duration_sums = np.empty(num_beams), np.empty(num_beams), np.empty(num_beams)
    fused = np.empty(classes, np.float32)
    ranks, entries = np.empty(most_extensions + 1, np.float64), np.empty(most_extensions + 1, np.int64)
    pair_ranks, pairs = np.empty(most_extensions + 1, np.float64), np.empty(most_extensions + 1, np.int64)
    duration_scores = np.zeros(max(num_durations, 1))
    chosen_scores, chosen = np.empty(num_beams + 1), np.empty(num_beams + 1, np.int64)
    of_int = np.empty((6, num_beams), np.int64)
    old_lm_states, old_lm_scores = (
        np.empty((num_beams, num_automata), np.int32),
        np.empty((num_beams, num_automata), np.float32),
    )
    occupied = np.empty(2 * num_beams, np.bool_)
    depths, by_size = np.empty(num_beams, np.int64), np.empty(num_beams, np.int64)
    one, chain = np.empty(max(vocab_size, 1), np.float32), np.empty(16, np.int32)
    has_lines = lines.shape[0] > 0
    longest_trace = 0
    for row in range(first, last):
        new_counts[row] = 0
        any_open = False
        broken = False
        for k in range(num_beams):
            if places[row, k] >= 0:
                any_open = True
                log_sums[k], other_sums[k] = _log_sums(logits, places[row, k], classes, blank)
                duration_sums[k] = 0.0
                if num_durations:
                    _, duration_sums[k] = normaliser_of(logits, places[row, k], classes, classes + num_durations)
                if not np.isfinite(log_sums[k] + duration_sums[k]):
                    bad_frames[row] = min(bad_frames[row], all_times[row, k]) if broken else all_times[row, k]
                    broken = True
        if broken:
            lengths[row] = 0
            for k in range(num_beams):
                all_times[row, k] = limits[row]
            continue
        if not any_open:
            continue
        total = np.float64(totals[row]) if blank_aware else 0.0
        at_step = 0
        scores, acoustic = all_scores[row], all_acoustic[row]

        if merges_prefixes:
            # Shorter ones first: what they gain goes on.
            for i in range(num_beams):
                at = i
                while at > 0 and all_sizes[row, by_size[at - 1]] > all_sizes[row, i]:
                    by_size[at] = by_size[at - 1]
                    at -= 1
                by_size[at] = i
                depths[i] = 0
            deepest = 0
            for i in range(num_beams):
                k = by_size[i]
                if places[row, k] < 0 or all_sizes[row, k] == 0:
                    continue
                for j in range(num_beams):
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
                        if has_lines:
                            score += lines[row * 2 * num_beams + all_slots[row, j], token]
                        if score > scores[k]:
                            depths[k] = depths[j] + 1
                            deepest = max(deepest, depths[k])
                            links[depths[k] - 1, row, k], labels[depths[k] - 1, row, k] = j, token
                            if measure >= 0:
                                sums[depths[k] - 1, row, k] = _sum_for_confidence(
                                    logits, places[row, j], classes, log_sums[j], measure, alpha
                                )
                        if log_sum:
                            scores[k] = _add(scores[k], score)
                            acoustic[k] = _add(acoustic[k], acoustic[j] + gain)
                        elif score > scores[k]:
                            scores[k], acoustic[k] = score, acoustic[j] + gain
                        break
            at_step = deepest

        # Candidates.
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
            line = row * 2 * num_beams + all_slots[row, k]
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
                if late:
                    if has_lines:
                        for label in range(np.uintp(0), np.uintp(classes)):
                            fused[label] = logits[at, label] + lines[line, label]
                    else:
                        for label in range(np.uintp(0), np.uintp(classes)):
                            fused[label] = logits[at, label]
                else:
                    for label in range(np.uintp(0), np.uintp(classes)):
                        fused[label] = logits[at, label]
                fused[blank] = -np.inf
                offset = common if late else -log_sums[k]
                worst = np.float32(-np.inf)
                for label in range(classes):
                    if fused[label] > worst:
                        size = _insert(ranks, entries, size, most_extensions, np.float64(fused[label]) + offset, label)
                        if size == most_extensions:
                            worst = np.float32(ranks[size - 1] - offset)
            if blank_log_prob > -np.inf:
                size = _insert(ranks, entries, size, most_extensions, of_blank if late else blank_log_prob, blank)
            if num_durations:
                for d in range(num_durations):
                    duration_scores[d] = np.float64(logits[at, classes + d]) - duration_sums[k]
                num_pairs = 0
                for i in range(size):
                    for d in range(num_durations):
                        num_pairs = _insert(
                            pair_ranks, pairs, num_pairs, most_extensions, ranks[i] + duration_scores[d],
                            entries[i] * num_durations + d,
                        )  # fmt: skip
                size = num_pairs
            for i in range(size):
                if num_durations:
                    label, d = pairs[i] // num_durations, pairs[i] % num_durations
                    move, of_duration = durations[d], duration_scores[d]
                else:
                    label, of_duration = entries[i], 0.0
                    move = np.int64(label == blank)
                    if aes and ranks[i] <= ranks[0] - gamma:
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
                    if aes:
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
                c_times[count] = min(all_times[row, k] + move, lengths[row])
                if c_scores[count] > -np.inf:
                    count += 1

        # Those that are the same become one.
        buckets[:] = -1
        groups = 0
        for i in range(count):
            bucket = (c_hashes[i] ^ (c_times[i] * np.int64(0x9E3779B1))) & np.int64(num_buckets - 1)
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
                        g_scores[group] = _add(g_scores[group], c_scores[i])
                        g_acoustic[group] = _add(g_acoustic[group], c_acoustic[i])
                    elif better:
                        g_scores[group], g_acoustic[group] = c_scores[i], c_acoustic[i]
                    if better:
                        g_best[group] = i
                    break
                bucket = (bucket + 1) & (num_buckets - 1)
        size = 0
        for group in range(groups):
            size = _insert(chosen_scores, chosen, size, num_beams, g_scores[group], group)

        # The new beam.
        for k in range(num_beams):
            of_int[0, k], of_int[1, k], of_int[2, k] = all_slots[row, k], all_symbols[row, k], all_sizes[row, k]
            of_int[3, k], of_int[4, k], of_int[5, k] = all_last[row, k], all_hashes[row, k], all_parent_hashes[row, k]
            for m in range(num_automata):
                old_lm_states[k, m], old_lm_scores[k, m] = all_lm_states[row, k, m], all_lm_scores[row, k, m]
        occupied[:] = False
        for k in range(num_beams):
            if scores[k] > -np.inf:
                occupied[all_slots[row, k]] = True
        free = 0
        num_new = 0
        for place in range(num_beams):
            if place >= size:
                scores[place] = acoustic[place] = -np.inf
                continue
            group = chosen[place]
            i = g_best[group]
            k, label = parents[i], c_labels[i]
            scores[place], acoustic[place], all_times[row, place] = g_scores[group], g_acoustic[group], c_times[i]
            links[at_step, row, place], labels[at_step, row, place], moves[at_step, row, place] = k, label, c_moves[i]
            all_slots[row, place], all_symbols[row, place], all_sizes[row, place] = of_int[0, k], of_int[1, k], of_int[2, k]
            all_last[row, place], all_hashes[row, place] = of_int[3, k], of_int[4, k]
            all_parent_hashes[row, place] = of_int[5, k]
            for m in range(num_automata):
                all_lm_states[row, place, m], all_lm_scores[row, place, m] = old_lm_states[k, m], old_lm_scores[k, m]
            if label == blank:
                all_symbols[row, place] = 0
            elif label >= 0:
                all_symbols[row, place] = 0 if c_moves[i] > 0 else of_int[1, k] + 1
                all_sizes[row, place] = of_int[2, k] + 1
                if measure >= 0:
                    sums[at_step, row, place] = _sum_for_confidence(
                        logits, places[row, k], classes, log_sums[k], measure, alpha
                    )
                all_last[row, place], all_hashes[row, place] = label, c_hashes[i]
                all_parent_hashes[row, place] = of_int[4, k]
                if label < scored:
                    for m in range(num_automata):
                        score, all_lm_states[row, place, m] = step_one(
                            arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                            old_lm_states[k, m], label, vocab_size,
                        )  # fmt: skip
                        all_lm_scores[row, place, m] += score
                # Its prediction: one for all new hypotheses with the same tokens.
                source = row * 2 * num_beams + of_int[0, k]
                slot = -1
                for j in range(num_new):
                    if new_sources[row, j] == source and new_tokens[row, j] == label:
                        slot = new_targets[row, j]
                        break
                if slot < 0:
                    while occupied[free]:
                        free += 1
                    occupied[free] = True
                    slot = row * 2 * num_beams + free
                    new_sources[row, num_new], new_tokens[row, num_new], new_targets[row, num_new] = source, label, slot
                    num_new += 1
                    if has_lines:
                        chain = _fill_line(
                            arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                            all_lm_states, row, place, weights, num_lms, vocab_size, one, chain, lines, slot,
                        )  # fmt: skip
                all_slots[row, place] = slot - row * 2 * num_beams
        new_counts[row] = num_new
        longest_trace = max(longest_trace, at_step + 1)
    return longest_trace
