"""Hold what a greedy transducer search knows of its rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Rules(NamedTuple):
    """Hold what is the same for all rows.

    Args:
        blank: class of the blank.
        classes: number of token classes; logits of the durations come after theirs.
        durations: int64 `[K]`, frames that each duration class stands for; none for an RNN-T.
        vocab_size: tokens that the automata score, `0 .. vocab_size - 1`.
        max_symbols: tokens that may be emitted at one frame.
        has_ilm: whether an internal LM's scores are subtracted in any row.
    """

    blank: int
    classes: int
    durations: Tensor
    vocab_size: int
    max_symbols: int
    has_ilm: bool


class Rows(NamedTuple):
    """Rows of a batch, and how far each has come.

    Args:
        numbers: int64 `[A]`, places in the batch.
        ends: int64 `[A]`, number of frames.
        weights: float32 `[A, M]`, of the automata.
        ilm_weights: float32 `[A]`, what the internal LM's scores are subtracted with.
        times, symbols: int64 `[A]`, the frame that is next, and tokens emitted at it already.
        lm_states: int32 `[A, M]`.
        acoustic_scores, lm_scores, ilm_scores: float64 `[A]`, float32 `[A, M]`, float64 `[A]`.
        bad_frames: int64 `[A]`, the first frame at which logits can't be normalised, else -1.
    """

    numbers: Tensor
    ends: Tensor
    weights: Tensor
    ilm_weights: Tensor
    times: Tensor
    symbols: Tensor
    lm_states: Tensor
    acoustic_scores: Tensor
    lm_scores: Tensor
    ilm_scores: Tensor
    bad_frames: Tensor

    @classmethod
    def begin(cls, lengths: Tensor, states: Tensor, weights: Tensor, ilm_weights: Tensor) -> Rows:
        """Return all rows of a batch, before the first frame."""
        numbers = torch.arange(len(lengths), device=lengths.device)
        return cls(
            numbers=numbers,
            ends=lengths.to(torch.int64, copy=True),
            weights=weights.to(torch.float32).contiguous(),
            ilm_weights=ilm_weights.to(torch.float32).contiguous(),
            times=torch.zeros_like(numbers),
            symbols=torch.zeros_like(numbers),
            lm_states=states.to(torch.int32).clone(memory_format=torch.contiguous_format),
            acoustic_scores=torch.zeros(len(lengths), dtype=torch.float64, device=lengths.device),
            lm_scores=torch.zeros(states.shape, dtype=torch.float32, device=lengths.device),
            ilm_scores=torch.zeros(len(lengths), dtype=torch.float64, device=lengths.device),
            bad_frames=torch.full_like(numbers, -1),
        )

    def at(self, which: Tensor | slice) -> Rows:
        return Rows(*(part[which] for part in self))


class GreedySteps(NamedTuple):
    """Result of `greedy`. Entries from a row's number of steps on mean nothing.

    Args:
        counts: int64 `[B]`, number of steps, blanks too.
        tokens, durations: int64 `[B, S]`, the class of each step, and the frames that the search moved on after it: the frame
            of a step is the sum of the durations before it. In an RNN-T a blank's is 1, a token's 0, or 1 where `max_symbols`
            made the search move on.
        confidences: float32 `[B, S]`, of the frame of each token, 0 for blanks; None if not asked for.
        acoustic_scores: float64 `[B]`, log-probability of the path, blanks and durations included.
        lm_scores: float32 `[B, M]`, each automaton's unweighted score of the tokens.
        lm_states: int32 `[B, M]`, where they have led.
        ilm_scores: float64 `[B]`, the internal LM's unweighted score of the tokens; 0 where its weight is.
        bad_frames: int64 `[B]`, the first frame of a row at which logits can't be normalised, else -1.
    """

    counts: Tensor
    tokens: Tensor
    durations: Tensor
    confidences: Tensor | None
    acoustic_scores: Tensor
    lm_scores: Tensor
    lm_states: Tensor
    ilm_scores: Tensor
    bad_frames: Tensor
