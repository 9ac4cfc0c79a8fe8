"""Run CTC prefix beam search on the CPU, with the native core (`csrc/ctc_beam.cpp`).

An array with the dtype from `beams_of` holds the states of all rows, one element per row. The core reads and writes this array.
So the state of a whole batch is a single allocation.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...automaton.cpu import Automaton
from ...automaton.tensors import AutomatonTensors
from ...engines.native import Function, Struct
from ...engines.threads import on_rows
from ..ctc_rows import CtcModels, CtcRows, Frames
from ..history import Tails
from . import FIRST_HASH, BeamFrames, BeamRules, BeamState


class NgpulmBeamRules(Struct):
    """`BeamRules` for the native core."""

    @classmethod
    def of(cls, rules: BeamRules, num_beams: int) -> NgpulmBeamRules:
        return cls(
            weights=rules.weights.contiguous(), bonuses=rules.bonuses.contiguous(), unscored=rules.unscored.contiguous(),
            text_hashes=rules.text_hashes, num_automata=rules.weights.shape[1], num_beams=num_beams, threshold=rules.threshold,
            skip=rules.skip,
        )  # fmt: skip


class NgpulmRanked(Struct):
    """`hf_ngpulm.search.ctc_beam.ranking.Ranked` for the native core, and the number of tokens of each prefix."""


_search = Function("ngpulm_ctc_beam")
_rank = Function("ngpulm_ctc_beam_rank")
REFUSAL = "prefixes of row {} name states or tokens that don't exist".format


@functools.lru_cache(maxsize=64)
def beams_of(num_beams: int, num_automata: int) -> np.dtype[Any]:
    """Return the dtype of a row's state: the layout of `Prefixes` in `csrc/ctc_beam.hpp`, with the fields of `BeamState`."""
    k, m = (num_beams,), (num_beams, num_automata)
    fields = [
        ("offsets", "f8"), ("hashes", "i8", k), ("parent_hashes", "i8", k), ("texts", "i8", k), ("blank_scores", "f4", k),
        ("token_scores", "f4", k), ("fused", "f4", k), ("lm_scores", "f4", m), ("last_tokens", "i4", k), ("sizes", "i4", k),
        ("lm_states", "i4", m),
    ]  # fmt: skip
    return np.dtype(fields, align=True)


def empty_beams(num_beams: int, states: Tensor) -> np.ndarray:
    """Return `N` beams, each with only the empty prefix. `states`, int32 `[N, M]`, has the automata's states of each beam."""
    beams = np.empty(len(states), dtype=beams_of(num_beams, states.shape[1]))
    beams[...] = _empty_prefix(num_beams, states.shape[1])
    beams["lm_states"] = states.numpy()[:, None]
    return beams


@functools.lru_cache(maxsize=64)
def _empty_prefix(num_beams: int, num_automata: int) -> np.ndarray:
    beam = np.zeros((), dtype=beams_of(num_beams, num_automata))
    beam["blank_scores"][1:] = beam["token_scores"] = -np.inf
    beam["last_tokens"], beam["hashes"] = -1, FIRST_HASH
    return beam


def search(
    automaton: Automaton, frames: Frames, rules: NgpulmBeamRules, batch: CtcRows, shape: tuple[int, int],
    confidences: np.ndarray | None, are_max_probs: bool, tails: Tails | None, happened: BeamFrames | None,
) -> np.ndarray:  # fmt: skip
    """Search the frames of a batch.

    Args:
        batch: the rows; the search updates their states.
        shape: (N, T), the numbers of rows and frames. T includes padding.
        confidences: float32 `[N, T]`, confidences of the frames; None if they aren't measured.
        are_max_probs: whether the measure is "max_prob"; the search then writes `confidences`.
        tails: tails with room for the new tokens (`History.with_room`). If None, the trace is written to `happened` instead.
        happened: the trace, `BeamFrames`; needed only without `tails`.

    Returns:
        int32 `[N]`, see `BeamFrames.bad_frames`. The state of a row with a bad frame is undefined, so the caller must restore
        the state.
    """
    rows, width = shape
    bad_frames = np.full(rows, -1, dtype=np.int32) if happened is None else happened.bad_frames.numpy()
    links, labels = (None, None) if happened is None else happened[:2]
    arguments = (automaton, frames, rules, batch, width, confidences, are_max_probs, tails, links, labels, bad_frames)
    on_rows(_search, arguments, rows, width * (frames.classes + 64 * rules.num_beams), REFUSAL)
    return bad_frames


def is_there(beams: np.ndarray) -> np.ndarray:
    """Return whether each place of the beams contains a prefix, bool `[S, K]`."""
    return np.maximum(beams["blank_scores"], beams["token_scores"]) > -np.inf


def rank(
    automaton: Automaton, models: CtcModels, batch: CtcRows, rows: int, num_beams: int, joins_texts: bool, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return three arrays about the `count` best prefixes of each row: places in the beam, numbers of tokens, and scores.

    See `ranking.Ranked` for places and scores. `rows` is the number of rows in the batch. `joins_texts` says whether to merge
    the prefixes of each text first.
    """
    places, sizes = np.empty((rows, count), dtype=np.int32), np.empty((rows, count), dtype=np.int32)
    scores = np.empty((rows, count, 4))
    ranked = NgpulmRanked(places=places, sizes=sizes, scores=scores, count=count)
    on_rows(_rank, (automaton, models, batch, num_beams, joins_texts, ranked), rows, 0, REFUSAL)
    return places, sizes, scores


def ctc_beam(
    automaton: AutomatonTensors, state: BeamState, logits: Tensor, lengths: Tensor, rules: BeamRules
) -> tuple[BeamState, BeamFrames]:
    """Search more frames of a batch; see `hf_ngpulm.search.ctc_beam.ctc_beam`."""
    batch_size, frames, classes = logits.shape
    num_beams = state.lm_states.shape[1]
    happened = BeamFrames.still(batch_size, frames, num_beams)
    if not (frames and classes):
        return BeamState(*(tensor.clone(memory_format=torch.contiguous_format) for tensor in state)), happened
    beams = packed(state)
    search(
        Automaton.lent(automaton, rules.vocab_size), Frames.of(logits, lengths, rules.blank),
        NgpulmBeamRules.of(rules, num_beams), CtcRows.of(None, beams), (batch_size, frames), None, False, None, happened,
    )  # fmt: skip
    return unpacked(beams), happened


def packed(state: BeamState) -> np.ndarray:
    """Return a copy of a state as an array of dtype `beams_of`, which the core reads."""
    batch_size, num_beams, num_automata = state.lm_states.shape
    beams = np.empty(batch_size, dtype=beams_of(num_beams, num_automata))
    for name, tensor in state._asdict().items():
        beams[name] = tensor.numpy()
    return beams


def unpacked(beams: np.ndarray) -> BeamState:
    """Return a copy of an array of dtype `beams_of` as a `BeamState`."""
    return BeamState(*(torch.from_numpy(beams[name].copy()) for name in BeamState._fields))
