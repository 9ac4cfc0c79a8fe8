"""Greedy CTC search with language models as compiled loops. The automata are asked only at frames that may emit a token."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...automaton.cpu import arrays_of, borrowed_automaton, compiled, score_one, step_one
from ...automaton.tensors import AutomatonTensors
from ...automaton.threads import in_threads
from ...batches import packed_frames
from . import RULES

LABEL, RUN, STAY = range(len(RULES))


def ctc_greedy(
    automaton: AutomatonTensors,
    logits: Tensor,
    lengths: Tensor,
    states: Tensor,
    weights: Tensor,
    stay_costs: Tensor,
    before: Tensor,
    blank: int,
    vocab_size: int,
    rule: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    batch_size, frames, classes = logits.shape
    labels = torch.full((batch_size, frames), blank, dtype=torch.int32)
    acoustic_scores = torch.zeros(batch_size)
    lm_scores = torch.zeros(states.shape)
    last_states = states.to(torch.int32).clone()
    bad_frames = torch.full((batch_size,), -1, dtype=torch.int32)
    last = before.to(torch.int32).clone(memory_format=torch.contiguous_format)
    if frames and classes:
        # Without padding: what a row costs doesn't depend on how long others are.
        lengths = lengths.clamp(0, frames)
        starts, logits = packed_frames(logits, lengths)
        normalisers = torch.logsumexp(logits, dim=-1)
        arrays = (
            *arrays_of(automaton), starts.numpy(), logits.numpy(), normalisers.numpy(),
            lengths.numpy(), weights.numpy(), stay_costs.numpy(),
            blank, vocab_size, RULES.index(rule),
            labels.numpy(), acoustic_scores.numpy(), lm_scores.numpy(), last_states.numpy(), bad_frames.numpy(), last.numpy(),
        )  # fmt: skip
        in_threads(lambda first, last: _label_rows(first, last, *arrays), batch_size, frames * classes)
    return labels, acoustic_scores, lm_scores, last_states, bad_frames, last


@compiled
def _label_rows(
    first, last, arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    starts, logits, normalisers, lengths, weights, stay_costs, blank, vocab_size, rule,
    labels, acoustic_scores, lm_scores, states, bad_frames, ends,
):  # fmt: skip
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights = borrowed_automaton(
        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights
    )
    classes = logits.shape[1]
    candidates = min(vocab_size, classes)
    fused = np.empty(vocab_size, dtype=np.float32)
    one = np.empty(vocab_size, dtype=np.float32)
    chain = np.empty(16, dtype=np.int32)
    for row in range(first, last):
        before, best_before = ends[row, 0], ends[row, 1]
        stale = True  # whether `fused` belongs to other states than the row's
        for frame in range(lengths[row]):
            packed = starts[row] + frame
            normaliser = normalisers[packed]
            if not np.isfinite(normaliser):
                bad_frames[row] = frame
                break
            x = logits[packed]
            best, highest = 0, x[0]
            for c in range(1, classes):
                if x[c] > highest:
                    best, highest = c, x[c]
            label = best
            if best != blank and best < vocab_size:
                repeats = before != blank and ((rule == LABEL and best == before) or (rule == RUN and best == best_before))
                if repeats:
                    label = before
                else:
                    if stale:
                        stale = False
                        fused[:] = 0.0
                        for k in range(states.shape[1]):
                            if weights[row, k] != 0.0:
                                chain = score_one(
                                    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                                    states[row, k], vocab_size, chain, one,
                                )  # fmt: skip
                                for token in range(vocab_size):
                                    fused[token] += weights[row, k] * one[token]
                    chosen, highest = -1, np.float32(-np.inf)
                    for token in range(candidates):
                        score = x[token] + fused[token]
                        if token == before:
                            score = x[token] - stay_costs[row] if rule == STAY else np.float32(-np.inf)
                        if score > highest and token != blank:
                            chosen, highest = token, score
                    label = chosen
                    if chosen < 0:  # nothing is possible
                        label = before if before != blank else best
                    if label != before:
                        stale = True
                        for k in range(states.shape[1]):
                            score, states[row, k] = step_one(
                                arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                                states[row, k], label, vocab_size,
                            )  # fmt: skip
                            lm_scores[row, k] += score
            labels[row, frame] = label
            acoustic_scores[row] += x[label] - normaliser
            before, best_before = label, best
        ends[row, 0], ends[row, 1] = before, best_before
