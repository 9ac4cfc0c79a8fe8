"""Ranking the prefixes of a beam as compiled loops: for one short utterance a few dozen torch operators take longer."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...automaton.compiled import arrays_of, borrowed_automaton, compiled, step_one
from ...fusion.fusion import RowModels
from . import BeamState
from .joining import add_logs


def rank_on_cpu(models: RowModels, state: BeamState, count: int, score_eos: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places, sizes and scores, see `Ranked`."""
    batch_size = len(state.offsets)
    places, sizes = np.zeros((batch_size, count), dtype=np.int32), np.zeros((batch_size, count), dtype=np.int32)
    scores = np.full((batch_size, count, 4), -np.inf)
    s = state
    of_beam = (s.offsets, s.blank_scores, s.token_scores, s.sizes, s.fused, s.lm_scores, s.lm_states)
    arguments: tuple[Any, ...] = (
        *arrays_of(models.tensors), models.vocab_size, models.weights.numpy(), models.present.numpy(), models.num_lms,
        *(tensor.numpy() for tensor in of_beam), score_eos, places, sizes, scores,
    )  # fmt: skip
    rank_rows(*arguments)
    return places, sizes, scores


@compiled
def rank_rows(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights, vocab_size, weights, present, num_lms,
    offsets, blank_scores, token_scores, all_sizes, fused, lm_scores, lm_states, score_eos, places, sizes, scores,
):  # fmt: skip
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights = borrowed_automaton(
        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights
    )
    num_beams, num_automata = lm_states.shape[1:]
    found = np.empty((num_beams, 4))
    for row in range(offsets.size):
        for k in range(num_beams):
            acoustic = np.float64(add_logs(blank_scores[row, k], token_scores[row, k])) + offsets[row]
            total, of_lms, of_phrases = acoustic + np.float64(fused[row, k]), 0.0, 0.0
            for m in range(num_automata):
                if total == -np.inf or not present[row, m]:
                    continue
                final = np.float32(0.0)
                if score_eos or m >= num_lms:
                    final, _ = step_one(
                        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                        lm_states[row, k, m], vocab_size, vocab_size + 1,
                    )  # fmt: skip
                total += np.float64(weights[row, m]) * np.float64(final)
                if m < num_lms:
                    of_lms += np.float64(lm_scores[row, k, m])
                else:
                    of_phrases += np.float64(lm_scores[row, k, m]) + np.float64(final)
            found[k, 0], found[k, 1], found[k, 2], found[k, 3] = total, acoustic, of_lms, of_phrases
        for n in range(places.shape[1]):
            best = -1
            for k in range(num_beams):
                if found[k, 0] > (found[best, 0] if best >= 0 else -np.inf):
                    best = k
            if best < 0:
                break
            places[row, n], sizes[row, n] = best, all_sizes[row, best]
            for part in range(4):
                scores[row, n, part] = found[best, part]
            found[best, 0] = -np.inf
