"""Search CTC logits greedily on the CPU, with the native core (`csrc/ctc_greedy.cpp`)."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...automaton.cpu import Automaton
from ...automaton.tensors import AutomatonTensors
from ...engines.native import Function
from ...engines.threads import on_rows
from ..ctc_rows import CtcRows, Frames
from ..history import Tails
from . import RULES, GreedyLabels, LabelRules

_search = Function("ngpulm_ctc_greedy")


@functools.lru_cache(maxsize=64)
def greedy_of(num_automata: int) -> np.dtype[Any]:
    """Return the dtype of a row's state, which equals `Row` in `csrc/ctc_greedy.cpp`. See `GreedyLabels` for the fields."""
    m = (1, num_automata)  # `[K, M]` with K = 1, the same layout as in beams
    return np.dtype(
        [("acoustic_scores", "f8"), ("lm_scores", "f8", m), ("before", "i4", (2,)), ("lm_states", "i4", m)], align=True
    )


def search(
    automaton: Automaton, frames: Frames, rules: LabelRules, batch: CtcRows, states: np.ndarray, shape: tuple[int, int],
    confidences: np.ndarray | None, are_max_probs: bool, tails: Tails | None, labels: np.ndarray | None,
) -> np.ndarray:  # fmt: skip
    """Label the frames of a batch. The `N` rows of the batch are selected from `S` rows that have a state.

    Args:
        batch: the rows; the search updates their states.
        states: int32 `[S, M]`, the automata's states of all rows, for the error message.
        shape: (N, T), the numbers of rows and frames. T includes padding.
        confidences, are_max_probs: as for `hf_ngpulm.search.ctc_beam.cpu.search`.
        tails: arrays for the tokens (see `History.with_room`). If None, the classes are written to `labels` instead.
        labels: int32 `[N, T]`, filled with the blank.

    Returns:
        int32 `[N]`, see `GreedyLabels.bad_frames`. The caller must restore the state of a row that has a bad frame.
    """
    rows, width = shape
    bad_frames = np.full(rows, -1, dtype=np.int32)
    arguments = (
        automaton, frames, rules.weights.contiguous(), rules.stay_costs.contiguous(), rules.weights.shape[1],
        RULES.index(rules.rule), batch, width, confidences, are_max_probs, tails, labels, bad_frames,
    )  # fmt: skip
    on_rows(
        _search, arguments, rows, width * frames.classes,
        lambda row: f"states {states[row].tolist()} in row {row} should lie in 0..{automaton.num_states - 1}",
    )  # fmt: skip
    return bad_frames


def ctc_greedy(
    automaton: AutomatonTensors, logits: Tensor, lengths: Tensor, states: Tensor, before: Tensor, rules: LabelRules
) -> GreedyLabels:
    """Label the frames of a batch, see `hf_ngpulm.search.ctc_greedy.ctc_greedy`."""
    batch_size, frames, classes = logits.shape
    rows = np.zeros(batch_size, dtype=greedy_of(states.shape[1]))
    rows["lm_states"], rows["before"] = states.numpy()[:, None], before.numpy()
    labels, bad_frames = np.full((batch_size, frames), rules.blank, dtype=np.int32), np.full(batch_size, -1, dtype=np.int32)
    if frames and classes:
        bad_frames = search(
            Automaton.lent(automaton, rules.vocab_size), Frames.of(logits, lengths, rules.blank), rules, CtcRows.of(None, rows),
            rows["lm_states"][:, 0], (batch_size, frames), None, False, None, labels,
        )  # fmt: skip
    acoustic_scores, lm_scores = rows["acoustic_scores"].astype(np.float32), rows["lm_scores"][:, 0].astype(np.float32)
    arrays = (labels, acoustic_scores, lm_scores, rows["lm_states"][:, 0].copy(), bad_frames, rows["before"].copy())
    return GreedyLabels(*map(torch.from_numpy, arrays))
