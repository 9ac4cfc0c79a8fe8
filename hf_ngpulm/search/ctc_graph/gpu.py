"""Run token passing on the GPU, with a Triton kernel whose programs each search the frames of one utterance.

The kernel uses functions of `hf_ngpulm.search.ctc_beam.gpu`. There are no launches per frame, and nothing waits for the host.
At each frame the hypotheses without a new token get their places first. A hypothesis that ends in a blank keeps its place, the
others take free places. Then the extensions follow, the best one first. If the beam has a hypothesis in the extension's search
state, the better of the two gets that place. Otherwise the extension replaces the worst hypothesis.

Hypotheses are compared by their worth, which is the score relative to the best score, in single precision. Scores are summed in
double precision.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...automaton.tensors import AutomatonTensors
from ...engines.devices import current
from ..ctc_beam import BLANK
from ..ctc_beam.gpu import (
    HIGHEST_KEY,
    LABEL_BLANK,
    LABEL_INSIDE,
    MOST_BEAMS,
    NOTHING,
    STAYING,
    TILE,
    best_extensions,
    count_before,
    extension_of,
    key_of,
    lines_of,
    on_the_cpu,
    peaks_of,
    place_in_order,
    room_for_lines,
    score_of,
    search_signature,
    take,
    tiling,
)  # fmt: skip
from . import GraphFrames, GraphState, cpu


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
    max_active, num_automata = state.lm_states.shape[1:]
    if max_active > MOST_BEAMS:
        return on_the_cpu(
            cpu.graph_search, automaton, state, logits, lengths, weights, bonuses, blank, vocab_size, threshold, skip
        )
    state = GraphState(*(part.clone(memory_format=torch.contiguous_format) for part in state))
    links = torch.arange(max_active, dtype=torch.int32, device=logits.device).repeat(batch_size, frames, 1)
    labels = torch.full_like(links, BLANK)
    bad_frames = torch.full((batch_size,), -1, dtype=torch.int32, device=logits.device)
    if batch_size and frames and classes:
        tiles = tiling(max_active, classes)
        lines = room_for_lines(state.lm_states, tiles["PLACES"], min(vocab_size, classes))
        lengths = lengths.contiguous()
        with current(logits.device):
            peaks = peaks_of(logits, lengths, blank, tiles)
            _pass_kernel[(batch_size,)](
                *automaton, logits, *logits.stride(), *peaks, lengths, weights.contiguous(), bonuses.contiguous(),
                *state, *lines, links, labels, bad_frames,
                frames, classes, max_active, blank, vocab_size, float(threshold), float(skip),
                NUM_AUTOMATA=num_automata, **tiles,
            )  # fmt: skip
    return state, GraphFrames(links, labels, bad_frames)


@triton.jit
def _search_states(states, places, inside, NUM_AUTOMATA: tl.constexpr):
    """Return the automata's states of each hypothesis (at most two) as one integer."""
    pairs = tl.load(states + places * NUM_AUTOMATA, mask=inside, other=0).to(tl.int64)
    if NUM_AUTOMATA == 2:
        pairs = (pairs << 32) | tl.load(states + places * NUM_AUTOMATA + 1, mask=inside, other=0)
    return pairs


@triton.jit
def _targets_of(keys, line_targets, lines, pairs, order, alive, places, candidates, NUM_AUTOMATA: tl.constexpr):
    """Return the automata's states after extensions, as `_search_states` returns states, from the extensions' keys."""
    PLACES: tl.constexpr = places.shape[0]
    token, number = extension_of(keys, PLACES)
    place = place_in_order(number, order, alive, places)
    scored = (keys > NOTHING) & (token < candidates)
    at = take(lines, place) * (NUM_AUTOMATA * candidates) + token
    targets = tl.load(line_targets + at, mask=scored, other=0).to(tl.int64)
    if NUM_AUTOMATA == 2:
        targets = (targets << 32) | tl.load(line_targets + at + candidates, mask=scored, other=0)
    return tl.where(scored, targets, take(pairs, place))


@triton.jit
def _bonus_peaks(bonuses, classes, candidates, BLOCK: tl.constexpr):
    """Return the highest bonus of the classes that automata score, and the highest bonus of the other classes."""
    scored = tl.full((BLOCK,), float("-inf"), tl.float32)
    unscored = tl.full((BLOCK,), float("-inf"), tl.float32)
    for first in range(0, classes, BLOCK):
        tokens = first + tl.arange(0, BLOCK)
        values = tl.load(bonuses + tokens, mask=tokens < classes, other=float("-inf"))
        scored = tl.maximum(scored, tl.where(tokens < candidates, values, float("-inf")))
        unscored = tl.maximum(unscored, tl.where(tokens < candidates, float("-inf"), values))
    return tl.max(scored, axis=0), tl.max(unscored, axis=0)


@triton.jit
def _without_tokens(by_blank, by_token, pairs, order, places, inside, max_active):
    """Give places to the best hypotheses without a new token. `order` decides between hypotheses of equal worth.

    Returns, by place: the place before the frame, whether the last token goes on, and the worth of the hypothesis.
    """
    earlier = order[None, :] < order[:, None]
    # If hypotheses have the same states after a blank, only the best one stays.
    alike = (pairs[:, None] == pairs[None, :]) & (by_blank > float("-inf"))[None, :]
    better = by_blank[None, :] > by_blank[:, None]
    first = (by_blank[None, :] == by_blank[:, None]) & earlier
    beaten = tl.max((alike & (better | first)).to(tl.int32), axis=1) > 0
    by_blank = tl.where(beaten, float("-inf"), by_blank)
    # For each hypothesis, count the better hypotheses.
    better = (by_blank[None, :] > by_blank[:, None]) | ((by_blank[None, :] == by_blank[:, None]) & earlier)
    better = better.to(tl.int32) + (by_token[None, :] > by_blank[:, None]).to(tl.int32)
    blank_stays = (by_blank > float("-inf")) & (tl.sum(better, axis=1) < max_active)
    better = (by_token[None, :] > by_token[:, None]) | ((by_token[None, :] == by_token[:, None]) & earlier)
    better = better.to(tl.int32) + (by_blank[None, :] >= by_token[:, None]).to(tl.int32)
    token_stays = (by_token > float("-inf")) & (tl.sum(better, axis=1) < max_active)
    free = inside & (blank_stays == 0)
    turn = tl.where(token_stays, tl.cumsum(token_stays.to(tl.int32), axis=0) - 1, -1)
    number = tl.where(free, tl.cumsum(free.to(tl.int32), axis=0) - 1, -2)
    matches = number[:, None] == turn[None, :]
    goes_on = tl.max(matches.to(tl.int32), axis=1) > 0
    from_places = tl.where(goes_on, tl.sum(tl.where(matches, places[None, :], 0), axis=1), places)
    worth = tl.where(goes_on, take(by_token, from_places), tl.where(blank_stays, by_blank, float("-inf")))
    return from_places, goes_on, worth


@triton.jit(
    do_not_specialize=["row_stride", "frame_stride", "frames", "classes", "max_active", "blank", "vocab_size"],
)
def _pass_kernel(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    logits, row_stride, frame_stride, class_stride, normalisers, frame_peaks, block_peaks, lengths, weights, bonuses,
    scores, last_tokens, lm_states, fused, lm_scores,
    line_states, line_peaks, line_scores, line_targets, links, labels, bad_frames,
    frames, classes, max_active, blank, vocab_size, threshold, skip,
    NUM_AUTOMATA: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, PLACES)
    inside = places < max_active
    length = tl.minimum(tl.load(lengths + row), frames)
    candidates = tl.minimum(vocab_size, classes)
    num_blocks = (classes + BLOCK - 1) // BLOCK
    scores += row * max_active
    last_tokens += row * max_active
    lm_states += row * max_active * NUM_AUTOMATA
    fused += row * max_active
    lm_scores += row * max_active * NUM_AUTOMATA
    weights += row * NUM_AUTOMATA
    bonuses += row * classes
    line_states += row * (2 * PLACES) * NUM_AUTOMATA
    line_peaks += row * (2 * PLACES)
    line_scores += row * (2 * PLACES) * NUM_AUTOMATA * candidates
    line_targets += row * (2 * PLACES) * NUM_AUTOMATA * candidates

    score = tl.load(scores + places, mask=inside, other=float("-inf"))
    last = tl.load(last_tokens + places, mask=inside, other=-1)
    pairs = _search_states(lm_states, places, inside, NUM_AUTOMATA)
    lines = places * 0 - 1  # the line with the LM scores of each hypothesis's states; -1 if there is no line yet
    next_line = 0
    bonus_peak, unscored_peak = _bonus_peaks(bonuses, classes, candidates, BLOCK)
    highest_added = tl.zeros((PLACES,), tl.float32)  # upper bound of the LM scores and bonus of a token
    never = tl.full((PLACES,), float("-inf"), tl.float32)
    frame = length * 0  # Triton's interpreter needs a tensor here
    while frame < length:
        at_frame = row * frames + frame
        x = logits + row * row_stride + frame.to(tl.int64) * frame_stride
        top = tl.max(score, axis=0)
        top = tl.where(top > float("-inf"), top, 0.0)
        worth = (score - top).to(tl.float32)
        alive = worth > float("-inf")
        # Start all loads that every frame needs together, so that they overlap.
        normaliser = tl.load(normalisers + at_frame)
        frame_peak = tl.load(frame_peaks + at_frame)
        blank_log_prob = tl.load(x + (row * 0 + blank) * class_stride).to(tl.float32)
        repeatable = alive & (last >= 0)
        last_log_probs = tl.load(x + last.to(tl.int64) * class_stride, mask=repeatable, other=float("-inf")).to(tl.float32)
        if (normaliser > float("-inf")) & (normaliser < float("inf")):
            blank_log_prob -= normaliser
            possible = tl.exp(blank_log_prob) <= skip  # whether the frame may be anything except a blank
            last_log_probs -= tl.where(possible, normaliser, float("inf"))
            order = tl.where(alive, count_before(last, pairs, alive), -1)
            from_places, goes_on, new_worth = _without_tokens(
                worth + blank_log_prob, worth + last_log_probs, pairs, order, places, inside, max_active
            )
            staying = STAYING + PLACES - 1 - take(order, from_places) + tl.where(goes_on, 0, PLACES)
            # An extension takes the first free place.
            staying = tl.where(new_worth > float("-inf"), staying, STAYING - PLACES + places)
            new_last = tl.where(goes_on, take(last, from_places), -1)
            new_pairs = take(pairs, from_places)
            is_new = places < 0
            keys = tl.where(inside, key_of(new_worth, staying), HIGHEST_KEY)
            lowest = tl.min(keys, axis=0)
            best = tl.max(new_worth, axis=0)
            worst = tl.maximum(score_of(lowest), best - threshold)
            if possible:
                unknown = tl.max((alive & (lines < 0)).to(tl.int32), axis=0) > 0
                if unknown:
                    lines, next_line, peaks = lines_of(
                        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                        lm_states, alive, lines, next_line, line_states, line_peaks, line_scores, line_targets,
                        weights, blank, candidates, vocab_size, NUM_AUTOMATA, PLACES, BLOCK,
                    )  # fmt: skip
                    highest_added = tl.maximum(peaks + bonus_peak, unscored_peak)
                reach = tl.where(alive, worth + highest_added, float("-inf"))
                highest_reach = tl.max(reach, axis=0)
                slack = 1e-3 + 1e-6 * tl.abs(highest_reach)  # rounding must not hide a token
                slack = tl.where(slack < float("inf"), slack, 0.0) - normaliser
                limits = tl.full((GROUPS,), HIGHEST_KEY, tl.int64)
                while frame_peak + slack + highest_reach > worst:
                    offered = best_extensions(
                        x, class_stride, classes, normaliser, slack, block_peaks + at_frame * num_blocks, num_blocks, blank,
                        never, worth, last, order, reach, highest_reach, worst, limits,
                        line_scores, lines * (NUM_AUTOMATA * candidates), weights, candidates, bonuses, 0.0, 0.0,
                        NUM_AUTOMATA, True, PLACES, BLOCK, GROUPS,
                    )  # fmt: skip
                    targets = _targets_of(offered, line_targets, lines, pairs, order, alive, places, candidates, NUM_AUTOMATA)
                    limits = tl.full((GROUPS,), NOTHING, tl.int64)
                    highest = tl.max(offered, axis=0)
                    offered_worth = score_of(highest)
                    while (highest > lowest) & (offered_worth >= worst) & (offered_worth > float("-inf")):
                        token, number = extension_of(highest, PLACES)
                        taken = offered == highest
                        pair = tl.sum(tl.where(taken, targets, 0), axis=0)
                        meets = (new_pairs == pair) & (new_last == token) & (new_worth > float("-inf"))
                        is_met = tl.max(meets.to(tl.int32), axis=0) > 0
                        replaced = tl.where(is_met, meets & (keys < highest), keys == lowest)
                        keys = tl.where(replaced, highest, keys)
                        new_worth = tl.where(replaced, offered_worth, new_worth)
                        new_pairs = tl.where(replaced, pair, new_pairs)
                        new_last = tl.where(replaced, token, new_last)
                        from_places = tl.where(replaced, tl.sum(tl.where(order == number, places, 0), axis=0), from_places)
                        is_new = is_new | replaced
                        lowest = tl.min(keys, axis=0)
                        best = tl.maximum(best, offered_worth)
                        worst = tl.maximum(score_of(lowest), best - threshold)
                        limits = tl.where(taken, highest, limits)
                        offered = tl.where(taken, NOTHING, offered)
                        highest = tl.max(offered, axis=0)
                        offered_worth = score_of(highest)
                    highest_reach = tl.where(tl.max(limits, axis=0) > NOTHING, highest_reach, float("-inf"))

            if best > float("-inf"):  # no hypothesis is possible if the sums overflow, as very large weights make them
                kept = (new_worth > float("-inf")) & (new_worth >= best - threshold)
                is_new = is_new & kept
                label = tl.where(new_last < 0, blank, new_last)
                log_probs = tl.load(x + label.to(tl.int64) * class_stride, mask=kept, other=0.0).to(tl.float32) - normaliser
                label = tl.where(is_new, new_last, tl.where(new_last < 0, LABEL_BLANK, LABEL_INSIDE))
                tl.store(links + at_frame * max_active + places, tl.where(kept, from_places, places), mask=inside)
                tl.store(labels + at_frame * max_active + places, tl.where(kept, label, LABEL_BLANK), mask=inside)
                scored = is_new & (new_last < candidates)
                entry = take(lines, from_places) * (NUM_AUTOMATA * candidates) + new_last
                extra = tl.load(bonuses + new_last, mask=is_new, other=0.0).to(tl.float64)
                old_fused = tl.load(fused + from_places, mask=kept, other=0.0)
                for m in tl.static_range(NUM_AUTOMATA):
                    at = from_places * NUM_AUTOMATA + m
                    lm_score = tl.load(line_scores + entry + m * candidates, mask=scored, other=0.0).to(tl.float64)
                    target = tl.load(line_targets + entry + m * candidates, mask=scored, other=0)
                    extra += tl.load(weights + m).to(tl.float64) * lm_score
                    old_score = tl.load(lm_scores + at, mask=kept, other=0.0)
                    old_state = tl.load(lm_states + at, mask=kept, other=0)
                    tl.debug_barrier()  # all threads must have read the old values before they change
                    tl.store(lm_scores + places * NUM_AUTOMATA + m, old_score + lm_score, mask=kept)
                    tl.store(lm_states + places * NUM_AUTOMATA + m, tl.where(scored, target, old_state), mask=kept)
                tl.store(fused + places, old_fused + extra, mask=kept)
                score = take(score, from_places) + log_probs.to(tl.float64) + extra
                score = tl.where(kept, score, float("-inf"))
                lines = tl.where(is_new, -1, take(lines, from_places))
                last = new_last
                pairs = new_pairs
                tl.debug_barrier()  # the next frame reads values that other threads have written
            frame += 1
        else:
            tl.store(bad_frames + row, frame)
            length = 0
    tl.debug_barrier()  # all threads must have read the initial values, even if a row has no frames
    tl.store(scores + places, score, mask=inside)
    tl.store(last_tokens + places, last, mask=inside)


def aot_signatures() -> Iterator[tuple[Any, dict[str, str], dict[str, Any]]]:
    """Yield every kernel with the argument types and constants it is launched with, for compiling ahead of time."""
    more = {"scores": "*fp64", "fused": "*fp64", "lm_scores": "*fp64", "bonuses": "*fp32", "max_active": "i32"}
    combinations = (("*i16", "*fp32", 64, 2), ("*i32", "*fp16", 8, 1), ("*i16", "*bf16", 16, 2))
    for token_type, logit_type, places, num_automata in combinations:
        constants = {"NUM_AUTOMATA": num_automata, **tiling(places, TILE)}
        yield _pass_kernel, search_signature(token_type, logit_type) | more, constants
