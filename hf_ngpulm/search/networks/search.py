"""Define `TransducerSearch`, the interface of transducer searches in all engines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...fusion.rows import RowModels
from .model import TransducerModel

STILL = -1  # label of a step in which a hypothesis stands still


class SearchSettings(NamedTuple):
    """Settings of a search; see `hf_ngpulm.TransducerDecoder`."""

    num_beams: int = 4  # number of hypotheses
    strategy: str = "alsd"  # "greedy", "alsd" or "aes"
    blank_aware: bool = True  # whether the blank's score depends on the LM's weight (see `hf_ngpulm.search.transducer_beam`)
    # True (late pruning) adds LM scores before the best classes of a hypothesis are chosen. False (early pruning) adds LM
    # scores afterwards. In a TDT, early pruning first chooses the `num_beams` classes that are best without LM and durations.
    # Then, with the LM, early pruning chooses the `num_beams` best pairs of a duration and one of these classes.
    late: bool = True
    log_sum: bool = True  # True gives a merged hypothesis the sum of the probabilities. False gives it the highest probability.
    max_symbols: int = 10  # maximum number of tokens at one frame (greedy search and ALSD)
    aes_steps: int = 2  # maximum number of tokens at one frame in AES
    aes_beta: int = 1  # in a step of AES, at most `num_beams + aes_beta` classes extend a hypothesis
    # AES only: a class extends a hypothesis if the class's score is at most this much below the best class's score (natural
    # log)
    aes_gamma: float = 2.3
    confidence: str | None = None  # confidence measure of tokens (see `hf_ngpulm.search.confidence`); None for none

    @property
    def most_extensions(self) -> int:
        """Return the maximum number of extensions of a hypothesis in a step. An extension is a class; in a TDT, it is a pair of
        class and duration.
        """
        return self.num_beams + (self.aes_beta if self.strategy == "aes" else 0)


class TransducerSearch(ABC):
    """A search of `B` rows with up to `K` hypotheses each. Rows begin with `begin`, and `run_on` searches more frames.

    Args:
        model: the transducer.
        like: `[..., D]`, a tensor with the device and dtype of the frames.
        size: B.
        models: models of the rows; `begin` sets their states and weights.
        settings: settings of the search.

    Attributes:
        width: D if the search accepts only frames of this width, otherwise None.
        beam: the hypotheses, whose attributes are arrays or tensors. `scores` (-inf for an empty place) and `acoustic_scores`
            are float64 `[B, K]`. `times` (the present frame) and, in beam search, `sizes` (the number of tokens) are int64 `[B,
            K]`. `lm_states` and the unweighted `lm_scores` are int32 and float32 `[B, K, M]`. `bad_frames` is int64 `[B]`, the
            first frame with NaN or infinity in the logits, or -1 if there is none.
    """

    width: int | None = None
    beam: Any

    def __init__(self, model: TransducerModel, like: Tensor, size: int, models: RowModels, settings: SearchSettings) -> None:
        self.model, self.like, self.size, self.models, self.settings = model, like, size, models, settings
        self.has_ilm = models.ilm_weights is not None

    def array(self, name: str) -> np.ndarray:
        """Return an attribute of `beam` as a read-only array on the CPU."""
        values = getattr(self.beam, name)
        return values if isinstance(values, np.ndarray) else values[: self.size].cpu().numpy()

    @abstractmethod
    def begin(self, rows: np.ndarray, models: RowModels) -> None:
        """Begin new utterances in some rows, int64 `[N]`, with the states and weights of `models`."""

    @abstractmethod
    def run_on(self, frames: Tensor, lengths: np.ndarray, reaches: np.ndarray) -> None:
        """Search the given frames.

        Args:
            frames: `[B, T, D]`. The first frame has the time 0.
            lengths: int64 `[B]`, number of frames of each row.
            reaches: int64 `[B]`, the largest number of frames that a step can advance; 0 if no more frames will come. In ALSD,
                a row waits if a step might lead past the row's last frame, because the step's result depends on later frames.
        """

    def searched(self, models: RowModels, frames: Tensor, lengths: np.ndarray, reaches: np.ndarray) -> list[np.ndarray]:
        """Call `run_on` with the automata of `models`. Return the trace of the run, see `steps`."""
        self.run_on(frames, lengths, reaches)
        return self.steps()

    @abstractmethod
    def steps(self) -> list[np.ndarray]:
        """Return the trace of the last run: four arrays `[S, B, K]` for the S steps of the run. The arrays describe the
        hypothesis in each place.

        Three arrays are int32: the link (the place before the step), the label (`STILL` if the hypothesis doesn't move), and
        the number of frames that the hypothesis advances. The last array, float32, is the confidence of the token.
        """

    @abstractmethod
    def shift(self, frames: np.ndarray) -> None:
        """Subtract `frames`, int64 `[B]`, from all times of each row, after the row's first frames were dropped."""

    def use(self, models: RowModels) -> None:
        """Replace the automata's tensors by the tensors of `models`. The automata have the same states in the new tensors."""
        self.models = models

    @abstractmethod
    def widen(self, models: RowModels, shift: int) -> None:
        """Append a column to each array that has a column per automaton. No row has an automaton in the new column yet. Add
        `shift` to the states in the old columns.
        """

    @abstractmethod
    def switch(self, rows: np.ndarray, states: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> None:
        """Switch the hypotheses of some rows, int64 `[N]`, to other phrases.

        Args:
            states, scores: `[N, K]` each: the states of the new phrases, and the unweighted scores with which unfinished old
                phrases repay their bonus.
            weights: `[N]`, weights of the new phrases.
        """

    def share(self, rows: np.ndarray, shares: np.ndarray) -> None:
        """In beam search, set an extra score ("share") for each hypothesis of some rows. `rows` is int64 `[N]`, `shares` is
        float64 `[N, K]`.

        A share counts when the best hypotheses are chosen, but isn't part of the scores. Extensions of a hypothesis inherit its
        share. If alignments are merged, the share of the best alignment stays.
        """
        raise TypeError("greedy search has one hypothesis only")


def ilm_weights_of(models: RowModels) -> Tensor:
    """Return the weight of the internal LM in each row, float32 `[B]`. The weight is 0 if no internal LM is subtracted."""
    return torch.zeros_like(models.lm_weights) if models.ilm_weights is None else models.ilm_weights
