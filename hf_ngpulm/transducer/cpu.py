"""What label looping does between two runs of the networks, as compiled loops."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..automaton.cpu import arrays_of, borrowed_automaton, compiled, score_one, step_one
from ..automaton.tensors import AutomatonTensors


def walk(
    automaton: AutomatonTensors,
    token_logits: Tensor,
    best: Tensor,
    normalisers: Tensor,
    durations: Tensor,
    duration_log_probs: Tensor,
    ends: Tensor,
    times: Tensor,
    symbols: Tensor,
    lm_states: Tensor,
    weights: Tensor,
    blank: int,
    vocab_size: int,
    max_symbols: int,
    acoustic_scores: Tensor,
    lm_scores: Tensor,
    bad_frames: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    tokens, places, frames, moves = (torch.full_like(times, -1) for _ in range(4))
    inputs = (token_logits, best, normalisers, durations, duration_log_probs, ends, weights)
    changed = (times, symbols, lm_states, acoustic_scores, lm_scores, bad_frames, tokens, places, frames, moves)
    arrays = (
        *arrays_of(automaton), *(tensor.contiguous().numpy() for tensor in inputs), blank, vocab_size, max_symbols,
        *(tensor.numpy() for tensor in changed),
    )  # fmt: skip
    _walk_rows(*arrays)
    return tokens, places, frames, moves


@compiled
def _walk_rows(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    token_logits, best, normalisers, durations, duration_log_probs, ends, weights, blank, vocab_size, max_symbols,
    times, symbols, lm_states, acoustic_scores, lm_scores, bad_frames, tokens, places, frames, moves,
):  # fmt: skip
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights = borrowed_automaton(
        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights
    )
    window, classes = token_logits.shape[1:]
    scored = min(vocab_size, classes)
    fused = np.empty(scored, dtype=np.float32)
    one = np.empty(max(vocab_size, 1), dtype=np.float32)
    chain = np.empty(16, dtype=np.int32)
    for row in range(times.size):
        place = 0
        while place < window and times[row] + place < ends[row]:
            if not np.isfinite(normalisers[row, place]):
                bad_frames[row] = times[row] + place
                break
            if best[row, place] != blank:
                break
            acoustic_scores[row] += token_logits[row, place, blank] - normalisers[row, place] + duration_log_probs[row, place]
            place += max(durations[row, place], 1)
        if place > 0:
            symbols[row] = 0
        times[row] += place
        if place >= window or times[row] >= ends[row] or bad_frames[row] >= 0:
            continue
        x = token_logits[row, place]
        token = best[row, place]
        if token < vocab_size and lm_states.shape[1] > 0:
            fused[:] = 0.0
            for m in range(lm_states.shape[1]):
                if weights[row, m] != 0.0:
                    chain = score_one(
                        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                        lm_states[row, m], vocab_size, chain, one,
                    )  # fmt: skip
                    for other in range(scored):
                        fused[other] += weights[row, m] * one[other]
            chosen, highest = -1, np.float32(-np.inf)
            for other in range(scored):
                if other != blank and x[other] + fused[other] > highest:
                    chosen, highest = other, x[other] + fused[other]
            if chosen >= 0:  # unless weights are so large that nothing is possible
                token = chosen
            for m in range(lm_states.shape[1]):
                score, lm_states[row, m] = step_one(
                    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                    lm_states[row, m], token, vocab_size,
                )  # fmt: skip
                lm_scores[row, m] += score
        acoustic_scores[row] += x[token] - normalisers[row, place] + duration_log_probs[row, place]
        move = durations[row, place]
        symbols[row] += 1
        if move == 0 and symbols[row] >= max_symbols:
            move = 1
        tokens[row], places[row], frames[row], moves[row] = token, place, times[row], move
        if move > 0:
            symbols[row] = 0
            times[row] += move
