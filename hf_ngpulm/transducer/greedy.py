"""Greedy transducer search with language models for batches, by looping over labels (Bataev et al., "Label-Looping", SLT 2024).

The prediction network runs once for each label, not for each frame. And since its output doesn't change until the next
label, the joint network runs on a block of coming frames at once: the search follows the blanks (and their durations)
inside the block, so that the loop turns about once for each label. Rows that have ended are left out of the batch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..automaton.tensors import AutomatonTensors
from ..confidence import frame_confidence
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
    num_automata = states.shape[1]
    scored = min(vocab_size, model.vocab_size)
    duration_values = None if model.durations is None else torch.tensor(model.durations, device=device)
    places = torch.arange(window, device=device)
    acoustic_scores = torch.zeros(batch_size, dtype=torch.float64, device=device)
    lm_scores = torch.zeros((batch_size, num_automata), device=device)
    bad_frames = torch.full((batch_size,), -1, dtype=torch.int64, device=device)
    emitted: list[tuple[Tensor, ...]] = []  # rows, tokens, frames, durations, confidences

    rows = torch.nonzero(lengths > 0)[:, 0]  # those that go on
    times = torch.zeros_like(rows)
    symbols = torch.zeros_like(rows)
    prediction, state = model.start(len(rows), frames)
    lm_states = states[rows]
    while rows.numel():
        ahead = (times[:, None] + places).clamp(max=frames.shape[1] - 1)
        logits = model.join(frames[rows[:, None], ahead], prediction[:, None]).float()
        token_logits = logits[..., : model.vocab_size]
        best = token_logits.argmax(-1)
        normalisers = torch.logsumexp(token_logits, -1)
        log_probs = token_logits.gather(2, best[..., None])[..., 0] - normalisers
        blank = best == model.blank_id
        if duration_values is None:
            durations = blank.to(torch.int64)
        else:
            duration_log_probs, chosen = torch.log_softmax(logits[..., model.vocab_size :], -1).max(-1)
            log_probs = log_probs + duration_log_probs
            durations = duration_values[chosen]
            durations = torch.where(blank, durations.clamp(min=1), durations)
        # Follow the blanks to the first other token.
        ends = lengths[rows]
        place = torch.zeros_like(times)
        for _ in range(window):
            at = place.clamp(max=window - 1)[:, None]
            inside = (place < window) & (times + place < ends)
            broken = inside & ~torch.isfinite(normalisers.gather(1, at)[:, 0])
            bad_frames[rows] = torch.where(broken & (bad_frames[rows] < 0), times + place, bad_frames[rows])
            passes = inside & ~broken & blank.gather(1, at)[:, 0]
            acoustic_scores[rows] += torch.where(passes, log_probs.gather(1, at)[:, 0], 0.0)
            place = place + torch.where(passes, durations.gather(1, at)[:, 0], 0)
        symbols = torch.where(place > 0, 0, symbols)
        times = times + place
        good = bad_frames[rows] < 0
        found = torch.nonzero((place < window) & (times < ends) & good)[:, 0]
        if found.numel():
            at, of = place[found], rows[found]
            row_logits = token_logits[found, at]
            tokens, moves = best[found, at], durations[found, at]
            score = log_probs[found, at]
            if num_automata:
                fusable = tokens < vocab_size
                per_lm, targets = torch.ops.hf_ngpulm.advance(
                    list(automaton), lm_states[found].flatten().contiguous(), vocab_size, engine
                )
                per_lm = per_lm.view(-1, num_automata, vocab_size)[..., :scored]
                fused = row_logits[:, :scored] + (weights[of][..., None] * per_lm).sum(1)
                if model.blank_id < scored:
                    fused[:, model.blank_id] = -torch.inf
                highest, again = fused.max(-1)
                again = torch.where(fusable & (highest > -torch.inf), again, tokens)
                score = score + (row_logits.gather(1, again[:, None]) - row_logits.gather(1, tokens[:, None]))[:, 0]
                tokens = again
                picked = tokens.clamp(max=scored - 1)[:, None, None].expand(-1, num_automata, 1)
                gained = per_lm.gather(2, picked)[..., 0]
                lm_scores[of] += torch.where(fusable[:, None], gained, 0.0)
                moved = targets.view(-1, num_automata, vocab_size).gather(2, picked)[..., 0]
                lm_states[found] = torch.where(fusable[:, None], moved, lm_states[found])
            acoustic_scores[of] += score
            count = symbols[found] + 1
            if max_symbols is not None:
                moves = torch.where((moves == 0) & (count >= max_symbols), 1, moves)
            symbols[found] = torch.where(moves > 0, 0, count)
            confidences = tokens if confidence is None else frame_confidence(row_logits[None], confidence)[0]
            emitted.append((of, tokens, times[found], moves, confidences))
            times[found] = times[found] + moves
            new_prediction, new_state = model.predict(tokens, tuple(part[found] for part in state))
            prediction = prediction.index_copy(0, found, new_prediction)
            state = tuple(part.index_copy(0, found, new) for part, new in zip(state, new_state))
        going = torch.nonzero((times < ends) & good)[:, 0]
        if going.numel() < rows.numel():
            rows, times, symbols, prediction = rows[going], times[going], symbols[going], prediction[going]
            lm_states, state = lm_states[going], tuple(part[going] for part in state)
    return _gathered(batch_size, emitted, confidence is not None, acoustic_scores, lm_scores, bad_frames)


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
