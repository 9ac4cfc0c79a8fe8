"""CTC prefix beam search with language models as compiled loops, rows in parallel.

Every extension competes with its LM score, and yet few are looked at: a prefix can't be extended to more than its own score
plus the token's acoustic score plus the best LM score of any token in its state. Tokens and prefixes for which that is less
than the worst of the best K so far are passed over, which changes nothing. At a frame that is surely blank none is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...automaton.compiled import arrays_of, borrowed, borrowed_automaton, compiled, step_one
from ...automaton.tensors import AutomatonTensors
from ...common.batches import packed_frames
from ...engines.threads import in_threads
from . import BLANK, INSIDE, BeamFrames, BeamState
from .added import KEPT_SCORES, ROUNDING, are_equal, keep, line_of, list_above, list_sums_above
from .joining import NONE, add_logs, join_texts, slots_for

if TYPE_CHECKING:
    from ...lexicon.lazy_search import Growth

FEW = 4  # tokens that are fewer than one in so many are gone through one by one for each prefix


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
    text_hashes: Tensor | None = None,
    growth: Growth | None = None,
) -> tuple[BeamState, BeamFrames]:
    """See `hf_ngpulm.search.ctc_beam.ctc_beam`. With a `growth` the automaton is that of its tensors, and grows meanwhile."""
    batch_size, frames, classes = logits.shape
    num_beams = state.last_tokens.shape[1]
    state = BeamState(*(tensor.clone(memory_format=torch.contiguous_format) for tensor in state))
    labels = torch.full((batch_size, frames, num_beams), BLANK, dtype=torch.int32)
    links = torch.arange(num_beams, dtype=torch.int32).expand(labels.shape).contiguous()
    bad_frames = torch.full((batch_size,), -1, dtype=torch.int32)
    if frames and classes:
        # Without padding: what a row costs doesn't depend on how long others are.
        lengths = lengths.clamp(0, frames)
        starts, logits = packed_frames(logits, lengths)
        normalisers = torch.logsumexp(logits, dim=-1)
        highest = highest_of_tokens(logits, blank)
        joins = np.empty((2, 0), dtype=np.int64) if text_hashes is None else text_hashes.numpy()
        stops = Stops.of(batch_size, num_beams, 0 if growth is None else state.lm_states.shape[2])
        arrays = (
            starts.numpy(), logits.numpy(), normalisers.numpy(), highest.numpy(),
            *(tensor.contiguous().numpy() for tensor in (lengths, weights, bonuses, unscored)),
            blank, vocab_size, threshold, skip, joins,
            *(tensor.numpy() for tensor in state), links.numpy(), labels.numpy(), bad_frames.numpy(), *stops,
        )  # fmt: skip
        work = elements_per_row(frames, classes, num_beams)

        def search(automaton: AutomatonTensors, unfinished: np.ndarray) -> None:
            arguments: tuple[Any, ...] = (*arrays_of(automaton), unfinished, *arrays)
            in_threads(lambda first, last: search_rows(first, last, *arguments), batch_size, work)

        if growth is None:
            search(automaton, ALL_KNOWN)
        else:
            growth.search(search, stops)
            of_beam = (tensor.numpy() for tensor in (state.blank_scores, state.token_scores, state.lm_states))
            growth.enter(states_in_beam(*of_beam))
    return state, BeamFrames(links, labels, bad_frames)


# What `search_rows` gets for `unfinished` where all states are what they are.
ALL_KNOWN = np.zeros(0, dtype=np.uint8)


class Stops(NamedTuple):
    """Where rows have stopped that have come to states which a language model hasn't composed yet.

    Args:
        frames: int64 `[B]`, the next one of each row.
        totals: float64 `[B, K]`, of each prefix, in double precision.
        states: int32 `[B, K * M]`, those that are unfinished.
        counts: int64 `[B]`, how many these are.
    """

    frames: np.ndarray
    totals: np.ndarray
    states: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, batch_size: int, num_beams: int, num_automata: int) -> Stops:
        """Where nothing has been searched yet."""
        frames, counts = np.zeros((2, batch_size), dtype=np.int64)
        states = np.empty((batch_size, num_beams * num_automata), dtype=np.int32)
        return cls(frames, np.empty((batch_size, num_beams)), states, counts)


def states_in_beam(blank_scores: np.ndarray, token_scores: np.ndarray, lm_states: np.ndarray) -> np.ndarray:
    """The states of the prefixes that there are, int32 `[N]`."""
    return lm_states[np.maximum(blank_scores, token_scores) > -np.inf].ravel()


def highest_of_tokens(logits: Tensor, blank: int) -> Tensor:
    """The highest logit of each frame but for the blank's: `[N, C]` -> `[N]`, -inf if there is no other class."""
    parts = [part.amax(-1) for part in (logits[:, :blank], logits[:, blank + 1 :]) if part.shape[-1]]
    if len(parts) == 2:
        return torch.maximum(*parts)
    return parts[0] if parts else torch.full(logits.shape[:1], -torch.inf)


def elements_per_row(frames: int, classes: int, num_beams: int) -> int:
    """How much work a row is, see `in_threads`."""
    return frames * (classes + 64 * num_beams)


@compiled
def _find_families(totals, hashes, parent_hashes, sizes, by_hash, alive, parents, first_child, next_child):
    """List the prefixes in the beam; find the parent of each, if that is in it, too, and the children. Returns their number."""
    last_slot = by_hash.size - 1
    by_hash[:] = -1
    count = 0
    for k in range(totals.size):
        if totals[k] > -np.inf:
            alive[count] = k
            count += 1
            first_child[k] = -1
            slot = (hashes[k] ^ (hashes[k] >> np.int64(32))) & last_slot
            while by_hash[slot] >= 0:
                slot = (slot + 1) & last_slot
            by_hash[slot] = k
    for i in range(count):
        k = alive[i]
        parents[k] = -1
        slot = (parent_hashes[k] ^ (parent_hashes[k] >> np.int64(32))) & last_slot
        while by_hash[slot] >= 0:
            j = by_hash[slot]
            if hashes[j] == parent_hashes[k] and sizes[j] + 1 == sizes[k]:
                parents[k], next_child[k], first_child[j] = j, first_child[j], k
                break
            slot = (slot + 1) & last_slot
    return count


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
def search_rows(
    first, last, arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights, unfinished,
    starts, logits, normalisers, highest_logits, lengths, weights, bonuses, unscored, blank, vocab_size, threshold, skip,
    text_hashes, offsets, all_blank_scores, all_token_scores, all_last, all_hashes, all_parent_hashes, all_sizes, all_fused,
    all_lm_scores, all_lm_states, all_texts, links, labels, bad_frames, next_frames, all_totals, stop_states, stop_counts,
):  # fmt: skip
    """Search each row from its next frame on, to its end or to the first frame at which a prefix is in an unfinished state."""
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights = borrowed_automaton(
        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights
    )
    logits, weights = borrowed(logits), borrowed(weights)
    all_blank_scores, all_token_scores, all_last = borrowed(all_blank_scores), borrowed(all_token_scores), borrowed(all_last)
    all_hashes, all_parent_hashes, all_sizes = borrowed(all_hashes), borrowed(all_parent_hashes), borrowed(all_sizes)
    all_fused, all_lm_scores, all_lm_states = borrowed(all_fused), borrowed(all_lm_scores), borrowed(all_lm_states)
    all_texts = borrowed(all_texts)
    classes = logits.shape[1]
    num_beams, num_automata = all_lm_states.shape[1:]
    candidates = min(vocab_size, classes)
    # What each token adds in a state of the automata: kept by state, since prefixes with the same last tokens share it, and
    # those that leave the beam come back.
    num_kept = 4
    while num_kept < 4 * num_beams or num_kept * classes < KEPT_SCORES:
        num_kept *= 2
    all_added = np.empty((num_kept, classes), dtype=np.float32)
    all_added_highest = np.empty(num_kept, dtype=np.float32)
    all_added_states = np.empty((num_kept, num_automata), dtype=np.int32)
    room = np.empty(max(vocab_size, 1), dtype=np.float32)
    doubles = np.empty((8, num_beams), dtype=np.float64)
    singles = np.empty((3, num_beams), dtype=np.float32)
    integers = np.empty((8, num_beams), dtype=np.int32)
    families = np.empty(slots_for(num_beams), dtype=np.int32)
    tokens = np.empty((2, classes), dtype=np.int32)
    longs = np.empty((2, num_beams), dtype=np.int64)
    flags = np.empty((2, num_beams), dtype=np.bool_)
    of_automata = np.empty((num_beams, num_automata), dtype=np.float32)
    states_of_automata = np.empty((num_beams + 1, num_automata), dtype=np.int32)

    added, added_highest, added_states, one = (
        borrowed(all_added), borrowed(all_added_highest), borrowed(all_added_states), borrowed(room)
    )  # fmt: skip
    rows64, rows32, rows_int, rows_flag = borrowed(doubles), borrowed(singles), borrowed(integers), borrowed(flags)
    totals, by_blank, by_token, from_parent = rows64[0], rows64[1], rows64[2], rows64[3]
    stayed, together, heap_scores, old_totals = rows64[4], rows64[5], rows64[6], rows64[7]
    highest_added = rows32[0]  # by place, of the prefix's state
    old_blank_scores, old_fused = rows32[1], rows32[2]
    parents, heap_places, heap_tokens, old_last, old_sizes = rows_int[0], rows_int[1], rows_int[2], rows_int[3], rows_int[4]
    alive, first_child, next_child = rows_int[5], rows_int[6], rows_int[7]
    by_hash, likely, looked_at = borrowed(families), borrowed(tokens)[0], borrowed(tokens)[1]
    old_hashes, old_texts = borrowed(longs)[0], borrowed(longs)[1]
    known, stays = rows_flag[0], rows_flag[1]
    old_lm_scores, old_lm_states = borrowed(of_automata), borrowed(states_of_automata)[:num_beams]
    at = borrowed(states_of_automata)[num_beams:]
    chain = np.empty(16, dtype=np.int32)
    joins = text_hashes.size > 0
    table = np.full((2, slots_for(num_beams)), -1, dtype=np.int32)
    slots = np.empty((2, num_beams), dtype=np.int32)
    for row in range(first, last):
        stop_counts[row], next_frame, next_frames[row] = 0, next_frames[row], lengths[row]
        if next_frame >= lengths[row]:
            continue
        blank_scores, token_scores, last_tokens = all_blank_scores[row], all_token_scores[row], all_last[row]
        hashes, parent_hashes, sizes = all_hashes[row], all_parent_hashes[row], all_sizes[row]
        fused, lm_scores, lm_states, texts = all_fused[row], all_lm_scores[row], all_lm_states[row], all_texts[row]
        added_highest[:] = np.inf  # nothing is kept yet
        known[:] = stays[:] = False
        changed, num_alive, used = True, 0, num_beams
        for k in range(num_beams):
            totals[k] = all_totals[row, k]
            if next_frame == 0:
                totals[k] = add_logs(np.float64(blank_scores[k]), np.float64(token_scores[k]))
        for frame in range(next_frame, lengths[row]):
            packed = starts[row] + frame
            normaliser = normalisers[packed]
            if not np.isfinite(normaliser):
                bad_frames[row] = frame
                break
            x = logits[packed]
            blank_log_prob = np.float64(x[blank]) - normaliser
            skipped = np.exp(blank_log_prob) > skip

            # The prefixes as they are: by a blank, by their last token once more, or anew from their parents.
            if changed:
                num_alive = _find_families(
                    totals, hashes, parent_hashes, sizes, by_hash, alive, parents, first_child, next_child
                )
            size = 0
            best = -np.inf
            for i in range(num_alive):
                k = alive[i]
                by_blank[k] = totals[k] + blank_log_prob
                by_token[k] = from_parent[k] = -np.inf
                if last_tokens[k] >= 0 and not skipped:
                    token, j = last_tokens[k], parents[k]
                    log_prob = np.float64(x[token]) - normaliser
                    by_token[k] = token_scores[k] + log_prob
                    if j >= 0:
                        from_parent[k] = (blank_scores[j] if last_tokens[j] == token else totals[j]) + log_prob
                stayed[k] = add_logs(by_token[k], from_parent[k])
                together[k] = add_logs(by_blank[k], stayed[k])
                score = together[k] + fused[k]
                if score > -np.inf:
                    _push(heap_scores, heap_places, heap_tokens, size, score, k, -1)
                    size += 1
                    best = max(best, score)

            if unfinished.size and not skipped:
                count = 0
                for i in range(num_alive):
                    for m in range(num_automata if not known[alive[i]] else 0):
                        if unfinished[lm_states[alive[i], m]]:
                            stop_states[row, count] = lm_states[alive[i], m]
                            count += 1
                if count:
                    stop_counts[row], next_frames[row] = count, frame
                    all_totals[row] = totals
                    break

            # Their extensions. What scores no higher than `worst` has no place in the beam.
            num_new = 0
            if not skipped:
                worst = heap_scores[0] if size == num_beams else -np.inf
                worst = max(worst, best - threshold)
                highest = np.float64(highest_logits[packed]) - normaliser
                most = -np.inf
                for i in range(num_alive):
                    k = alive[i]
                    if not known[k]:
                        line = line_of(lm_states, k, num_kept)
                        if added_highest[line] == np.inf or not are_equal(added_states, line, lm_states, k):
                            chain = keep(
                                arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                                lm_states, k, weights, row, bonuses[row], unscored[row], blank, vocab_size, candidates,
                                one, chain, at, added, added_highest, added_states,
                            )  # fmt: skip
                        highest_added[k], known[k] = added_highest[line], True
                    most = max(most, totals[k] + fused[k] + highest_added[k])
                if most + highest > worst:
                    num_likely = list_above(x, worst - most + normaliser - ROUNDING, classes, likely)
                    few = num_likely * FEW < classes
                    for i in range(num_alive):
                        k = alive[i]
                        if totals[k] + fused[k] + highest_added[k] + highest <= worst:
                            continue
                        line = line_of(lm_states, k, num_kept)
                        if not are_equal(added_states, line, lm_states, k):  # another state's has taken its place
                            chain = keep(
                                arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                                lm_states, k, weights, row, bonuses[row], unscored[row], blank, vocab_size, candidates,
                                one, chain, at, added, added_highest, added_states,
                            )  # fmt: skip
                        base = totals[k] + fused[k] - normaliser
                        listed, num_listed = likely, num_likely
                        if not few:
                            listed = looked_at
                            num_listed = list_sums_above(x, added, line, worst - base - ROUNDING, classes, looked_at)
                        for n in range(num_listed):
                            token = listed[n]
                            score = base + x[token] + added[line, token]
                            if score <= worst:
                                continue
                            if token == last_tokens[k]:
                                score = blank_scores[k] + fused[k] - normaliser + x[token] + added[line, token]
                                if score <= worst:
                                    continue
                            child = first_child[k]
                            while child >= 0 and last_tokens[child] != token:
                                child = next_child[child]
                            if child >= 0:
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
            for i in range(num_alive):
                k = alive[i]
                old_blank_scores[k], old_totals[k] = blank_scores[k], totals[k]
                blank_scores[k] = token_scores[k] = NONE
                totals[k], stays[k] = -np.inf, False
                if num_new:
                    old_last[k], old_sizes[k], old_fused[k], old_hashes[k] = last_tokens[k], sizes[k], fused[k], hashes[k]
                    old_texts[k] = texts[k]
                    for m in range(num_automata):
                        old_lm_scores[k, m], old_lm_states[k, m] = lm_scores[k, m], lm_states[k, m]
            num_staying = used = 0
            for i in range(size):
                if heap_tokens[i] < 0 and heap_scores[i] >= lowest:
                    k = heap_places[i]
                    stays[k] = True
                    num_staying, used = num_staying + 1, max(used, k + 1)
                    blank_scores[k], token_scores[k], totals[k] = by_blank[k], stayed[k], together[k]
                    if from_parent[k] > by_blank[k] and from_parent[k] > add_logs(by_blank[k], by_token[k]):
                        links[row, frame, k], labels[row, frame, k] = parents[k], last_tokens[k]
                    else:
                        labels[row, frame, k] = INSIDE if by_token[k] > by_blank[k] else BLANK
            changed = num_new > 0 or num_staying < num_alive
            place = -1
            for i in range(size):
                if heap_tokens[i] < 0 or heap_scores[i] < lowest:
                    continue
                place += 1
                while stays[place]:
                    place += 1
                k, token = heap_places[i], heap_tokens[i]
                before = np.float64(old_blank_scores[k]) if token == old_last[k] else old_totals[k]
                totals[place] = token_scores[place] = before + x[token] - normaliser
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
                texts[place] = old_texts[k] * text_hashes[0, token] + text_hashes[1, token] if joins else 0
                known[place] = False
                links[row, frame, place], labels[row, frame, place] = k, token
                used = max(used, place + 1)
            if joins and join_texts(texts, last_tokens, fused, blank_scores, token_scores, totals, table, slots):
                changed, stays[:] = True, False  # also of those that have just gone
            top = NONE
            for k in range(used):
                top = max(top, blank_scores[k], token_scores[k])
            for k in range(used):
                blank_scores[k] -= top
                token_scores[k] -= top
                totals[k] -= top
            offsets[row] += top
    # What was borrowed from must last until here.
    return (
        all_added.size + all_added_highest.size + all_added_states.size + room.size + doubles.size + singles.size
        + integers.size + families.size + tokens.size + longs.size + flags.size + of_automata.size + states_of_automata.size
    )  # fmt: skip
