"""Greedy transducer search with language models for batches, by looping over labels (Bataev et al., "Label-Looping", SLT 2024).

The prediction network runs once for each label, not for each frame. And since its output doesn't change until the next
label, the joint network runs on a block of coming frames at once: the search follows the blanks (and their durations)
inside the block, so that the loop turns about once for each label. Rows that have ended are left out of the batch.

On the CPU, a transducer of the usual kind (see `networks`) is run by compiled loops as a whole.
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
from .rows import Rows, Rules

# Frames that are looked at in one go. The compiled loops, to which a turn costs next to nothing, look at fewer.
WINDOW = 4


class GreedySteps(NamedTuple):
    """Result of `greedy`. Entries from a row's number of steps on mean nothing.

    Args:
        counts: int64 `[B]`, number of steps, blanks too.
        tokens, durations: int64 `[B, S]`, the class of each step, and the frames that the search moved on behind it: the frame
            of a step is the sum of the durations before it. In an RNN-T a blank's is 1, a token's 0, or 1 where `max_symbols`
            made the search move on.
        confidences: float32 `[B, S]`, of the frame of each token, 0 for blanks; None if not asked for.
        acoustic_scores: float64 `[B]`, log-probability of the path, blanks and durations included.
        lm_scores: float32 `[B, M]`, each automaton's unweighted score of the tokens.
        ilm_scores: float64 `[B]`, the internal LM's unweighted score of the tokens; 0 where its weight is.
        bad_frames: int64 `[B]`, the first frame of a row at which logits can't be normalised, else -1.
    """

    counts: Tensor
    tokens: Tensor
    durations: Tensor
    confidences: Tensor | None
    acoustic_scores: Tensor
    lm_scores: Tensor
    ilm_scores: Tensor
    bad_frames: Tensor

    def by_token(self, blank: int) -> list[tuple[list[int], list[int], list[int], list[float]]]:
        """For each row what isn't blank: tokens, their frames, durations, and confidences (none if not asked for)."""
        inside = torch.arange(self.tokens.shape[1], device=self.tokens.device) < self.counts[:, None]
        emitted = (self.tokens != blank) & inside
        ends = emitted.sum(1).cumsum(0).tolist()
        frames = self.durations.cumsum(1) - self.durations
        columns = [part[emitted].tolist() for part in (self.tokens, frames, self.durations)]
        columns.append([] if self.confidences is None else self.confidences[emitted].tolist())
        return [tuple(column[begin:end] for column in columns) for begin, end in zip([0, *ends], ends)]  # type: ignore[misc]


def greedy(
    model: TransducerModel,
    frames: Tensor,
    lengths: Tensor,
    automaton: AutomatonTensors,
    states: Tensor,
    weights: Tensor,
    vocab_size: int,
    max_symbols: int | None,
    ilm_weight: float = 0.0,
    confidence: str | None = None,
    engine: str = "auto",
    window: int | None = None,
) -> GreedySteps:
    """Decode a batch.

    Args:
        frames: `[B, T, D]`, projected.
        lengths: int64 `[B]`.
        automaton: tensors of one automaton, or of several packed into one.
        states: int32 `[B, M]`, the states in which each row's automata begin.
        weights: float32 `[B, M]`.
        vocab_size: tokens that the automata score, `0 .. vocab_size - 1`.
        max_symbols: tokens that may be emitted at one frame; None for any number.
        ilm_weight: what the internal LM's scores are subtracted with.
        confidence: measure, see `hf_ngpulm.confidence`.
        window: frames that are looked at in one go, by default what suits the engine.
    """
    durations = torch.tensor(model.durations or (), dtype=torch.int64, device=frames.device)
    most_symbols = torch.iinfo(torch.int64).max if max_symbols is None else max_symbols
    rules = Rules(model.blank_id, model.vocab_size, durations, vocab_size, most_symbols, ilm_weight)
    rows = Rows.begin(lengths, states, weights)
    if engine_name(engine, frames.device) == "cpu":
        networks = model.networks()
        if networks is not None and networks.serve(frames, model.vocab_size, len(durations)):
            from .cpu import loop

            steps = loop(networks, frames, automaton, rules, rows, confidence, window)
            return _by_row(rows, steps, confidence is not None)
    rows, steps = _loop(model, frames, automaton, rules, rows, confidence, engine, window or WINDOW)
    return _by_row(rows, steps, confidence is not None)


def _loop(
    model: TransducerModel,
    frames: Tensor,
    automaton: AutomatonTensors,
    rules: Rules,
    rows: Rows,
    confidence: str | None,
    engine: str,
    window: int,
) -> tuple[Rows, list[tuple[Tensor, ...]]]:
    """The rows in the end, and all steps: row, class, duration and confidence, in order within each row."""
    walk = _walk_of(engine, frames.device)
    places = torch.arange(window, device=frames.device)
    steps: list[tuple[Tensor, ...]] = []
    ended: list[Rows] = []
    prediction, state = model.start(len(rows.numbers), frames)
    none = prediction.new_zeros((len(prediction), 0), dtype=torch.float32)
    internal = model.internal_lm(prediction) if rules.ilm_weight else none
    while True:
        going = (rows.times < rows.ends) & (rows.bad_frames < 0)
        if not bool(going.all()):
            ended.append(rows.at(~going))
            rows, prediction, internal = rows.at(going), prediction[going], internal[going]
            state = tuple(part[going] for part in state)
        if not rows.numbers.numel():
            break
        ahead = (rows.times[:, None] + places).clamp(max=frames.shape[1] - 1)
        logits = model.join(frames[rows.numbers[:, None], ahead], prediction[:, None]).float()
        tokens, moves = walk(automaton, rules, rows, logits, internal)
        emissions = (tokens >= 0) & (tokens != rules.blank)
        confidences = torch.zeros(tokens.shape, dtype=torch.float32, device=frames.device)
        if confidence is not None:
            confidences[emissions] = frame_confidence(logits[..., : rules.classes][emissions][None], confidence)[0]
        taken = tokens >= 0
        numbers = rows.numbers[:, None].expand_as(taken)
        steps.append(tuple(part[taken] for part in (numbers, tokens, moves, confidences)))
        found = torch.nonzero(emissions)[:, 0]
        if found.numel():
            new_prediction, new_state = model.predict(tokens[emissions], tuple(part[found] for part in state))
            prediction = prediction.index_copy(0, found, new_prediction)
            state = tuple(part.index_copy(0, found, new) for part, new in zip(state, new_state))
            if rules.ilm_weight:
                internal = internal.index_copy(0, found, model.internal_lm(new_prediction))
    if ended:
        rows = Rows(*(torch.cat(parts) for parts in zip(*ended)))
        rows = rows.at(torch.argsort(rows.numbers))
    return rows, steps


def _walk_of(engine: str, device: torch.device) -> Callable[..., tuple[Tensor, Tensor]]:
    if engine_name(engine, device) == "cpu":
        from .cpu import walk

        return walk
    return functools.partial(tensor_steps.walk, engine=engine)


def _by_row(rows: Rows, steps: list[tuple[Tensor, ...]], with_confidence: bool) -> GreedySteps:
    batch_size, device = len(rows.numbers), rows.numbers.device
    if steps:
        numbers, *columns = (torch.cat(parts) for parts in zip(*steps))
    else:
        numbers = rows.numbers[:0]
        columns = [numbers, numbers, numbers.float()]
    counts = torch.bincount(numbers, minlength=batch_size)
    order = torch.argsort(numbers, stable=True)
    places = torch.arange(len(numbers), device=device) - (torch.cumsum(counts, 0) - counts)[numbers[order]]
    longest = int(counts.max()) if batch_size else 0
    tables = []
    for column in columns:
        table = torch.zeros((batch_size, longest), dtype=column.dtype, device=device)
        table[numbers[order], places] = column[order]
        tables.append(table)
    tokens, durations, confidences = tables
    return GreedySteps(
        counts, tokens, durations, confidences if with_confidence else None, rows.acoustic_scores, rows.lm_scores,
        rows.ilm_scores, rows.bad_frames,
    )  # fmt: skip
