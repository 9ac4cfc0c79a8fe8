"""CTC prefix beam search with language models as compiled loops, rows in parallel.

Every extension competes with its LM score, and yet few are looked at: a prefix can't be extended to more than its own score
plus the token's acoustic score plus the best LM score of any token in its state. Tokens and prefixes for which that is less
than the worst of the best K so far are passed over, which changes nothing. At a frame that is surely blank none is left.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...automaton.cpu import arrays_of, compiled, in_threads, score_one, step_one
from ...automaton.tensors import AutomatonTensors
from . import BLANK, INSIDE, BeamFrames, BeamState

NONE = np.float32(-np.inf)


def ctc_beam(
    automaton: AutomatonTensors,
    state: BeamState,
    logits: Tensor,
    lengths: Tensor,
    weights: Tensor,
    bonuses: Tensor,
    unscored: Tensor,
    blank: int,
    vocab_size: int,
    threshold: float,
    skip: float,
) -> tuple[BeamState, BeamFrames]:
    batch_size, frames, classes = logits.shape
    num_beams = state.last_tokens.shape[1]
    state = BeamState(*(tensor.clone(memory_format=torch.contiguous_format) for tensor in state))
    links = torch.arange(num_beams, dtype=torch.int32).repeat(batch_size, frames, 1)
    labels = torch.full_like(links, BLANK)
    bad_frames = torch.full((batch_size,), -1, dtype=torch.int32)
    logits = logits.detach().to(torch.float32).contiguous()
    if frames and classes:
        normalisers = torch.logsumexp(logits, dim=-1)
        arrays = (
            *arrays_of(automaton), logits.numpy(), normalisers.numpy(),
            *(tensor.contiguous().numpy() for tensor in (lengths, weights, bonuses, unscored)),
            blank, vocab_size, threshold, skip,
            *(tensor.numpy() for tensor in state), links.numpy(), labels.numpy(), bad_frames.numpy(),
        )  # fmt: skip
        in_threads(lambda first, last: _search_rows(first, last, *arrays), batch_size, frames * (classes + 64 * num_beams))
    return state, BeamFrames(links, labels, bad_frames)


@compiled
def _add(a, b):
    """log(exp(a) + exp(b))"""
    if a < b:
        a, b = b, a
    return a if b == -np.inf else a + np.log1p(np.exp(b - a))


@compiled
def _extend_hash(prefix_hash, token):
    mixed = (prefix_hash + np.int64(token) + np.int64(1)) * np.int64(6364136223846793005) + np.int64(1442695040888963407)
    return mixed ^ (mixed >> np.int64(29))


@compiled
def _sift_down(scores, places, tokens, size):
    """Put the first entry of a heap, whose lowest score should come first, where it belongs."""
    score, place, token = scores[0], places[0], tokens[0]
    at = 0
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        if below + 1 < size and scores[below + 1] < scores[below]:
            below += 1
        if scores[below] >= score:
            break
        scores[at], places[at], tokens[at] = scores[below], places[below], tokens[below]
        at = below
    scores[at], places[at], tokens[at] = score, place, token


@compiled
def _push(scores, places, tokens, size, score, place, token):
    """Add an entry to a heap that has room."""
    at = size
    while at > 0 and scores[(at - 1) >> 1] > score:
        above = (at - 1) >> 1
        scores[at], places[at], tokens[at] = scores[above], places[above], tokens[above]
        at = above
    scores[at], places[at], tokens[at] = score, place, token


@compiled
def _search_rows(
    first, last, arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    logits, normalisers, lengths, weights, bonuses, unscored, blank, vocab_size, threshold, skip,
    offsets, all_blank_scores, all_token_scores, all_last, all_hashes, all_parent_hashes, all_sizes, all_fused,
    all_lm_scores, all_lm_states, links, labels, bad_frames,
):  # fmt: skip
    classes = logits.shape[2]
    num_beams, num_automata = all_lm_states.shape[1:]
    candidates = min(vocab_size, classes)
    # What each token adds in a state of the automata: kept by state, since prefixes with the same last tokens share it.
    num_kept = 4
    while num_kept < 4 * num_beams:
        num_kept *= 2
    added = np.empty((num_kept, classes), dtype=np.float32)
    added_highest = np.empty(num_kept, dtype=np.float32)
    added_states = np.empty((num_kept, num_automata), dtype=np.int32)
    one = np.empty(max(vocab_size, 1), dtype=np.float32)
    chain = np.empty(16, dtype=np.int32)
    highest_added = np.empty(num_beams, dtype=np.float32)  # by place, of the prefix's state
    known = np.empty(num_beams, dtype=np.bool_)
    totals = np.empty(num_beams, dtype=np.float64)
    by_blank = np.empty(num_beams, dtype=np.float64)
    by_token = np.empty(num_beams, dtype=np.float64)
    from_parent = np.empty(num_beams, dtype=np.float64)
    parents = np.empty(num_beams, dtype=np.int32)
    heap_scores = np.empty(num_beams, dtype=np.float64)
    heap_places = np.empty(num_beams, dtype=np.int32)
    heap_tokens = np.empty(num_beams, dtype=np.int32)
    tokens = np.empty(classes, dtype=np.int32)
    stays = np.empty(num_beams, dtype=np.bool_)
    old_blank_scores = np.empty(num_beams, dtype=np.float32)
    old_last = np.empty(num_beams, dtype=np.int32)
    old_sizes = np.empty(num_beams, dtype=np.int32)
    old_fused = np.empty(num_beams, dtype=np.float32)
    old_hashes = np.empty(num_beams, dtype=np.int64)
    old_lm_scores = np.empty((num_beams, num_automata), dtype=np.float32)
    old_lm_states = np.empty((num_beams, num_automata), dtype=np.int32)
    for row in range(first, last):
        blank_scores, token_scores, last_tokens = all_blank_scores[row], all_token_scores[row], all_last[row]
        hashes, parent_hashes, sizes = all_hashes[row], all_parent_hashes[row], all_sizes[row]
        fused, lm_scores, lm_states = all_fused[row], all_lm_scores[row], all_lm_states[row]
        added_highest[:] = np.inf  # nothing is kept yet
        known[:] = False
        for frame in range(min(lengths[row], logits.shape[1])):
            normaliser = normalisers[row, frame]
            if not np.isfinite(normaliser):
                bad_frames[row] = frame
                break
            x = logits[row, frame]
            blank_log_prob = np.float64(x[blank]) - normaliser
            skipped = np.exp(blank_log_prob) > skip

            # The prefixes as they are: by a blank, by their last token once more, or anew from their parents.
            size = 0
            best = -np.inf
            for k in range(num_beams):
                totals[k] = _add(np.float64(blank_scores[k]), np.float64(token_scores[k]))
            for k in range(num_beams):
                if totals[k] == -np.inf:
                    continue
                by_blank[k] = totals[k] + blank_log_prob
                by_token[k] = from_parent[k] = -np.inf
                parents[k] = -1
                if last_tokens[k] >= 0:
                    token = last_tokens[k]
                    log_prob = np.float64(x[token]) - normaliser
                    for j in range(num_beams):
                        if hashes[j] == parent_hashes[k] and sizes[j] + 1 == sizes[k] and totals[j] > -np.inf:
                            parents[k] = j
                            if not skipped:
                                before = blank_scores[j] if last_tokens[j] == token else totals[j]
                                from_parent[k] = before + log_prob
                            break
                    if not skipped:
                        by_token[k] = token_scores[k] + log_prob
                score = _add(_add(by_blank[k], by_token[k]), from_parent[k]) + fused[k]
                if score > -np.inf:
                    _push(heap_scores, heap_places, heap_tokens, size, score, k, -1)
                    size += 1
                    best = max(best, score)

            # Their extensions. What scores no higher than `worst` has no place in the beam.
            num_new = 0
            if not skipped:
                worst = heap_scores[0] if size == num_beams else -np.inf
                worst = max(worst, best - threshold)
                reach = -np.inf  # what a token with the acoustic score 0 could come to
                for k in range(num_beams):
                    if totals[k] > -np.inf:
                        if not known[k]:
                            line = _line_of(lm_states[k], num_kept)
                            if added_highest[line] == np.inf or not _equal(added_states[line], lm_states[k]):
                                chain = _fill_line(
                                    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                                    lm_states[k], weights[row], bonuses[row], unscored[row], blank, vocab_size, candidates,
                                    one, chain, line, added, added_highest, added_states,
                                )  # fmt: skip
                            highest_added[k], known[k] = added_highest[line], True
                        reach = max(reach, totals[k] + fused[k] + highest_added[k])
                num_tokens = 0
                least = np.float32(worst - reach + normaliser) - np.float32(1e-3)  # rounding may not hide a token
                for token in range(classes):
                    if x[token] > least and token != blank:
                        tokens[num_tokens] = token
                        num_tokens += 1
                highest = -np.inf
                for i in range(num_tokens):
                    highest = max(highest, np.float64(x[tokens[i]]) - normaliser)
                for k in range(num_beams):
                    if totals[k] == -np.inf or totals[k] + fused[k] + highest_added[k] + highest <= worst:
                        continue
                    line = _line_of(lm_states[k], num_kept)
                    if not _equal(added_states[line], lm_states[k]):  # another state has taken its place
                        chain = _fill_line(
                            arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                            lm_states[k], weights[row], bonuses[row], unscored[row], blank, vocab_size, candidates,
                            one, chain, line, added, added_highest, added_states,
                        )  # fmt: skip
                    extra = added[line]
                    base = totals[k] + fused[k] - normaliser
                    for i in range(num_tokens):
                        token = tokens[i]
                        score = base + x[token] + extra[token]
                        if score <= worst:
                            continue
                        if token == last_tokens[k]:
                            score = blank_scores[k] + fused[k] - normaliser + x[token] + extra[token]
                            if score <= worst:
                                continue
                        present = False
                        for j in range(num_beams):
                            if totals[j] > -np.inf and parents[j] == k and last_tokens[j] == token:
                                present = True
                                break
                        if present:
                            continue
                        if size < num_beams:
                            _push(heap_scores, heap_places, heap_tokens, size, score, k, token)
                            size += 1
                        else:
                            num_new -= heap_tokens[0] >= 0
                            heap_scores[0], heap_places[0], heap_tokens[0] = score, k, token
                            _sift_down(heap_scores, heap_places, heap_tokens, size)
                        num_new += 1
                        best = max(best, score)
                        worst = max(worst, best - threshold)
                        if size == num_beams:
                            worst = max(worst, heap_scores[0])
            if best == -np.inf:
                continue  # nothing is possible: weights so large that the sums overflow

            # The new beam. A prefix that stays keeps its place; new ones take those of prefixes that go.
            lowest = best - threshold
            old_blank_scores[:] = blank_scores
            if num_new:
                old_last[:], old_sizes[:], old_fused[:] = last_tokens, sizes, fused
                old_hashes[:] = hashes
                old_lm_scores[:], old_lm_states[:] = lm_scores, lm_states
            stays[:] = False
            blank_scores[:] = NONE
            token_scores[:] = NONE
            for i in range(size):
                if heap_tokens[i] < 0 and heap_scores[i] >= lowest:
                    k = heap_places[i]
                    stays[k] = True
                    blank_scores[k], token_scores[k] = by_blank[k], _add(by_token[k], from_parent[k])
                    if from_parent[k] > _add(by_blank[k], by_token[k]):
                        links[row, frame, k], labels[row, frame, k] = parents[k], last_tokens[k]
                    else:
                        labels[row, frame, k] = INSIDE if by_token[k] > by_blank[k] else BLANK
            place = -1
            for i in range(size):
                if heap_tokens[i] < 0 or heap_scores[i] < lowest:
                    continue
                place += 1
                while stays[place]:
                    place += 1
                k, token = heap_places[i], heap_tokens[i]
                before = np.float64(old_blank_scores[k]) if token == old_last[k] else totals[k]
                token_scores[place] = before + x[token] - normaliser
                extra = bonuses[row] if token < candidates else bonuses[row] + unscored[row]
                for m in range(num_automata):
                    lm_scores[place, m], lm_states[place, m] = old_lm_scores[k, m], old_lm_states[k, m]
                    if token < candidates:
                        score, lm_states[place, m] = step_one(
                            arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                            old_lm_states[k, m], token, vocab_size,
                        )  # fmt: skip
                        lm_scores[place, m] += score
                        extra += weights[row, m] * score
                fused[place] = old_fused[k] + extra
                last_tokens[place], sizes[place] = token, old_sizes[k] + 1
                parent_hashes[place], hashes[place] = old_hashes[k], _extend_hash(old_hashes[k], token)
                known[place] = False
                links[row, frame, place], labels[row, frame, place] = k, token
            top = NONE
            for k in range(num_beams):
                top = max(top, blank_scores[k], token_scores[k])
            for k in range(num_beams):
                blank_scores[k] -= top
                token_scores[k] -= top
            offsets[row] += top


@compiled
def _line_of(states, num_kept):
    mixed = np.int64(0)
    for state in states:
        mixed = (mixed ^ np.int64(state)) * np.int64(0x9E3779B1)
    return (mixed >> np.int64(15)) & (num_kept - 1)


@compiled
def _equal(a, b):
    different = 0
    for i in range(a.size):
        different |= a[i] ^ b[i]
    return different == 0


@compiled
def _fill_line(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    states, weights, bonus, unscored, blank, vocab_size, candidates, one, chain, line, added, added_highest, added_states,
):  # fmt: skip
    """Keep what each token adds in some states of the automata."""
    extra = added[line]
    extra[:candidates] = bonus
    extra[candidates:] = bonus + unscored
    for m in range(states.size):
        added_states[line, m] = states[m]
        if weights[m] != 0.0:
            chain = score_one(
                arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                states[m], vocab_size, chain, one,
            )  # fmt: skip
            for token in range(candidates):
                extra[token] += weights[m] * one[token]
    extra[blank] = NONE
    highest = NONE
    for token in range(extra.size):
        highest = max(highest, extra[token])
    added_highest[line] = highest
    return chain
