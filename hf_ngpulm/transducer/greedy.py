"""Greedy transducer search with language models for batches, by looping over labels (Bataev et al., "Label-Looping", SLT 2024).

The prediction network runs once for each label, not for each frame. And since its output doesn't change until the next
label, the joint network runs on a block of coming frames at once: the search follows the blanks (and their durations)
inside the block, so that the loop turns about once for each label. Rows that have ended are left out of the batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..automaton.ops import engine_name
from ..automaton.tensors import AutomatonTensors
from ..confidence import frame_confidence
from . import tensor_steps
from .model import TransducerModel

# Frames that are looked at in one go.
WINDOW = 4


class GreedyTokens(NamedTuple):
    """Result of `greedy`. Entries from a row's number of tokens on mean nothing.

    Args:
        counts: int64 `[B]`, number of tokens.
        tokens, frames, durations: int64 `[B, L]`, of each token: its id, its frame, the frames moved on behind it.
        confidences: float32 `[B, L]`, of the frame of each token; None if not asked for.
        acoustic_scores: float64 `[B]`, log-probability of the path, blanks and durations included.
        lm_scores: float32 `[B, M]`, each automaton's unweighted score of the tokens.
        bad_frames: int64 `[B]`, the first frame of a row at which logits can't be normalised, else -1.
    """

    counts: Tensor
    tokens: Tensor
    frames: Tensor
    durations: Tensor
    confidences: Tensor | None
    acoustic_scores: Tensor
    lm_scores: Tensor
    bad_frames: Tensor


def greedy(
    model: TransducerModel,
    frames: Tensor,
    lengths: Tensor,
    automaton: AutomatonTensors,
    states: Tensor,
    weights: Tensor,
    vocab_size: int,
    max_symbols: int | None,
    confidence: str | None = None,
    engine: str = "auto",
    window: int = WINDOW,
) -> GreedyTokens:
    """Decode a batch.

    Args:
        frames: `[B, T, D]`, projected.
        lengths: int64 `[B]`.
        automaton: tensors of one automaton, or of several packed into one.
        states: int32 `[B, M]`, the states in which each row's automata begin.
        weights: float32 `[B, M]`.
        vocab_size: tokens that the automata score, `0 .. vocab_size - 1`.
        max_symbols: tokens that may be emitted at one frame; None for any number.
        confidence: measure, see `hf_ngpulm.confidence`.
    """
    batch_size, device = frames.shape[0], frames.device
    walk = _walk_of(engine, device)
    duration_values = None if model.durations is None else torch.tensor(model.durations, device=device)
    places = torch.arange(window, device=device)
    most_symbols = torch.iinfo(torch.int64).max if max_symbols is None else max_symbols
    emitted: list[tuple[Tensor, ...]] = []  # rows, tokens, frames, durations, confidences
    ended: list[tuple[Tensor, ...]] = []  # rows and what is known of them in the end

    rows = torch.arange(batch_size, device=device)  # those that go on
    ends = lengths.to(torch.int64)
    times, symbols = torch.zeros_like(rows), torch.zeros_like(rows)
    bad_frames = torch.full_like(rows, -1)
    acoustic_scores = torch.zeros(len(rows), dtype=torch.float64, device=device)
    lm_scores = torch.zeros(states.shape, dtype=torch.float32, device=device)
    lm_states = states.to(torch.int32).clone(memory_format=torch.contiguous_format)
    prediction, state = model.start(len(rows), frames)
    while True:
        going = (times < ends) & (bad_frames < 0)
        if not bool(going.all()):
            ended.append(tuple(part[~going] for part in (rows, acoustic_scores, lm_scores, bad_frames)))
            rows, ends, times, symbols, bad_frames, acoustic_scores, lm_scores, lm_states, weights, prediction = (
                part[going]
                for part in (
                    rows, ends, times, symbols, bad_frames, acoustic_scores, lm_scores, lm_states, weights, prediction
                )
            )  # fmt: skip
            state = tuple(part[going] for part in state)
        if not rows.numel():
            break
        ahead = (times[:, None] + places).clamp(max=frames.shape[1] - 1)
        logits = model.join(frames[rows[:, None], ahead], prediction[:, None]).float()
        token_logits = logits[..., : model.vocab_size]
        best = token_logits.argmax(-1)
        if duration_values is None:
            durations = (best == model.blank_id).to(torch.int64)
            duration_log_probs = torch.zeros(durations.shape, device=device)
        else:
            duration_log_probs, chosen = torch.log_softmax(logits[..., model.vocab_size :], -1).max(-1)
            durations = duration_values[chosen]
        tokens, at, emission_frames, moves = walk(
            automaton, token_logits, best, torch.logsumexp(token_logits, -1), durations, duration_log_probs, ends, times,
            symbols, lm_states, weights, model.blank_id, vocab_size, most_symbols, acoustic_scores, lm_scores, bad_frames,
        )  # fmt: skip
        found = torch.nonzero(tokens >= 0)[:, 0]
        if found.numel():
            tokens = tokens[found]
            confidences = tokens
            if confidence is not None:
                confidences = frame_confidence(token_logits[found, at[found]][None], confidence)[0]
            emitted.append((rows[found], tokens, emission_frames[found], moves[found], confidences))
            if found.numel() == rows.numel():
                prediction, state = model.predict(tokens, state)
            else:
                new_prediction, new_state = model.predict(tokens, tuple(part[found] for part in state))
                prediction = prediction.index_copy(0, found, new_prediction)
                state = tuple(part.index_copy(0, found, new) for part, new in zip(state, new_state))
    in_order = torch.argsort(torch.cat([part[0] for part in ended])) if ended else rows
    _, acoustic_scores, lm_scores, bad_frames = (
        torch.cat(parts)[in_order] for parts in zip(*ended or [(rows, acoustic_scores, lm_scores, bad_frames)])
    )
    return _gathered(batch_size, emitted, confidence is not None, acoustic_scores, lm_scores, bad_frames)


def _walk_of(engine: str, device: torch.device) -> Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]:
    if engine_name(engine, device) == "cpu":
        from .cpu import walk

        return walk
    return functools.partial(tensor_steps.walk, engine=engine)


def _gathered(
    batch_size: int,
    emitted: list[tuple[Tensor, ...]],
    with_confidence: bool,
    acoustic_scores: Tensor,
    lm_scores: Tensor,
    bad_frames: Tensor,
) -> GreedyTokens:
    """What was emitted, by row; each row's own is in order already."""
    device = acoustic_scores.device
    if emitted:
        rows, *columns = (torch.cat(parts) for parts in zip(*emitted))
    else:
        rows = torch.zeros(0, dtype=torch.int64, device=device)
        columns = [rows, rows, rows, rows.float()]
    counts = torch.bincount(rows, minlength=batch_size)
    order = torch.argsort(rows, stable=True)
    places = torch.arange(rows.numel(), device=device) - (torch.cumsum(counts, 0) - counts)[rows[order]]
    longest = int(counts.max()) if batch_size else 0
    tables = []
    for column in columns:
        table = torch.zeros((batch_size, longest), dtype=column.dtype, device=device)
        table[rows[order], places] = column[order]
        tables.append(table)
    tokens, frames, durations, confidences = tables
    return GreedyTokens(
        counts, tokens, frames, durations, confidences if with_confidence else None, acoustic_scores, lm_scores, bad_frames
    )
