"""Searches of transducers in batches by any engine, and of one utterance by the definitions, with all that they find."""

from __future__ import annotations

from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from hf_ngpulm.fusion.rows import RowModels
from hf_ngpulm.search.networks.opening import lent_search
from hf_ngpulm.search.networks.reference import Path, RowOfModels
from hf_ngpulm.search.networks.search import STILL, SearchSettings
from hf_ngpulm.search.transducer_beam import reference as beam_reference
from hf_ngpulm.search.transducer_greedy import cpu
from hf_ngpulm.search.transducer_greedy import reference as greedy_reference
from hf_ngpulm.search.transducer_greedy.buffers import LoopingBuffers


class Beams(NamedTuple):
    """Hypotheses `[B, K]`; of their steps, `[B, K, S]`, so many count as `counts` says."""

    scores: Tensor
    acoustic_scores: Tensor
    lm_scores: Tensor
    lm_states: Tensor
    sizes: Tensor
    bad_frames: Tensor
    counts: Tensor
    labels: Tensor
    frames: Tensor
    durations: Tensor
    confidences: Tensor


class Rows(NamedTuple):
    """What greedy search finds: the same for rows `[B]` with steps `[B, S]`, blanks without confidence."""

    counts: Tensor
    tokens: Tensor
    durations: Tensor
    confidences: Tensor | None
    acoustic_scores: Tensor
    lm_scores: Tensor
    lm_states: Tensor
    ilm_scores: Tensor
    bad_frames: Tensor


def models_of(automaton, states, weights, vocab_size, ilm_weights=None, num_lms=None) -> RowModels:
    num_lms = states.shape[1] if num_lms is None else num_lms
    present = torch.ones_like(states, dtype=torch.bool)
    return RowModels(automaton, vocab_size, states, weights, present, num_lms, ilm_weights=ilm_weights)


def traced(steps: list[np.ndarray]) -> tuple[Tensor, ...]:
    """Follow links back: counts, labels, frames, durations and confidences."""
    links, labels, moves, confidences = steps
    length, *shape = labels.shape
    counts, found = np.zeros(shape, dtype=np.int64), np.zeros((3, *shape, length), dtype=np.int64)
    measured = np.zeros((*shape, length), dtype=np.float32)
    for row, k in np.ndindex(*shape):
        place, taken = k, []
        for step in reversed(range(length)):
            if labels[step, row, place] != STILL:
                taken.insert(0, (step, place))
            place = links[step, row, place]
        time = 0
        for i, (step, at) in enumerate(taken):
            found[:, row, k, i] = labels[step, row, at], time, moves[step, row, at]
            measured[row, k, i] = confidences[step, row, at]
            time += moves[step, row, at]
        counts[row, k] = len(taken)
    most = int(counts.max(initial=0))
    return torch.from_numpy(counts), *(torch.from_numpy(part[..., :most]) for part in (*found, measured))


def beam_search(
    model, frames, lengths, automaton, states, weights, vocab_size, settings, engine="auto", kept=None, ilm_weights=None,
    num_lms=None,
) -> Beams:  # fmt: skip
    models = models_of(automaton, states, weights, vocab_size, ilm_weights, num_lms)
    with lent_search(model, frames, models, settings, engine, kept) as search:
        return searched(search, models, frames, lengths)


def searched(search, models, frames, lengths) -> Beams:
    """Whole utterances in an open search."""
    search.begin(np.arange(len(frames)), models)
    search.run_on(frames, lengths.cpu().numpy(), np.zeros(len(frames), dtype=np.int64))
    names = [name if hasattr(search.beam, name) else "times" for name in Beams._fields[:6]]  # greedy search counts no tokens
    values = [torch.from_numpy(search.array(name).copy()) for name in names]
    return Beams(*values, *traced(search.steps()))


def greedy(
    model, frames, lengths, automaton, states, weights, vocab_size, max_symbols, ilm_weights=None, confidence=None,
    engine="auto", window=None, kept=None,
) -> Rows:  # fmt: skip
    settings = SearchSettings(1, "greedy", max_symbols=max_symbols, confidence=confidence)
    models = models_of(automaton, states, weights, vocab_size, ilm_weights)
    of_gpu = patch.object(LoopingBuffers, "window", window or LoopingBuffers.window)
    with of_gpu, lent_search(model, frames, models, settings, engine, kept) as search:
        if window is not None and isinstance(search, cpu.Search):
            search.window = window
        found = searched(search, models, frames, lengths)
        plain = isinstance(search, greedy_reference.Search)
        ilm_scores = [path.ilm_score for (path,) in search.paths] if plain else search.rows.ilm_scores[: len(frames)]
        ilm_scores = torch.as_tensor(ilm_scores, dtype=torch.float64).clone()
    _, acoustic, lm_scores, lm_states, _, bad_frames, counts, labels, _, durations, confidences = found
    is_token = (labels != model.blank_id) & (torch.arange(labels.shape[2]) < counts[..., None])
    measured = None if confidence is None else confidences.masked_fill(~is_token, 0.0)[:, 0]
    rows = (part[:, 0] for part in (counts, labels, durations))
    return Rows(*rows, measured, acoustic[:, 0], lm_scores[:, 0], lm_states[:, 0], ilm_scores, bad_frames)


def row_of(automaton, weights, vocab_size, ilm_weight=0.0, num_lms=None) -> RowOfModels:
    return RowOfModels(lambda _: automaton, weights, vocab_size, len(weights) if num_lms is None else num_lms, ilm_weight)


class GreedyPath(NamedTuple):
    tokens: list[int]
    durations: list[int]
    acoustic_score: float
    lm_scores: Tensor
    ilm_score: float


def greedy_of_one(model, frames, automaton, states, weights, vocab_size, max_symbols, ilm_weight=0.0) -> GreedyPath:
    """The definition of greedy search: classes and durations of all steps, and scores."""
    row, settings = row_of(automaton, weights, vocab_size, ilm_weight), SearchSettings(1, "greedy", max_symbols=max_symbols)
    path = greedy_reference.greedy(model, frames, row, settings, Path.begin(model, frames, states))
    tokens, durations = [label for label, *_ in path.steps], [duration for *_, duration in path.steps]
    return GreedyPath(tokens, durations, path.acoustic_score, path.lm_scores, path.ilm_score)


def beam_of_one(model, frames, automaton, states, weights, vocab_size, settings, ilm_weight=0.0) -> list[Path]:
    """The definition of beam search: the beam, best first."""
    row = row_of(automaton, weights, vocab_size, ilm_weight)
    search = beam_reference.RowSearch(model, frames, row, settings)
    begin = [Path.begin(model, frames, states)]
    return (beam_reference.alsd if settings.strategy == "alsd" else beam_reference.aes)(search, begin)
