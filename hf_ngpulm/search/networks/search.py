"""Define what searches of transducers offer, whatever their engine: rows begin, go on with frames, and tell of their steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...fusion.fusion import RowModels
from .model import TransducerModel

STILL = -1  # a step's label where a hypothesis stands still


class SearchSettings(NamedTuple):
    """Say how a search goes.

    Args:
        num_beams: hypotheses that are kept.
        strategy: "greedy", "alsd" or "aes".
        blank_aware: whether the LM's weight is taken into account in the score of the blank.
        late: whether LM scores are added before the best classes of a hypothesis are chosen, or after. In a TDT with early
            pruning these are the `num_beams` classes that the model alone finds likeliest, whatever their durations; of their
            pairs of class and duration the `num_beams` best with the LM are taken.
        log_sum: whether ways to the same hypothesis are summed, or the best one counts.
        max_symbols: tokens that may be emitted at one frame (greedy search and ALSD).
        aes_steps: the same for AES.
        aes_beta: classes that a hypothesis may be extended by in one step of AES, more than `num_beams`.
        aes_gamma: how much less (natural log) than its best class a class may score to be among them.
        confidence: measure of the confidence in tokens, see `hf_ngpulm.search.confidence`; None for none.
    """

    num_beams: int = 4
    strategy: str = "alsd"
    blank_aware: bool = True
    late: bool = True
    log_sum: bool = True
    max_symbols: int = 10
    aes_steps: int = 2
    aes_beta: int = 1
    aes_gamma: float = 2.3
    confidence: str | None = None

    @property
    def most_extensions(self) -> int:
        """Return by how many classes, or pairs of class and duration, a hypothesis is extended at most."""
        return self.num_beams + (self.aes_beta if self.strategy == "aes" else 0)


class TransducerSearch(ABC):
    """A search of `B` rows with up to `K` hypotheses each. Rows begin, and go on whenever there are more frames.

    Args:
        model: whose networks run.
        like: `[..., D]`, of the device and type of all frames.
        size: B.
        models: what rows are fused with, in some states and with some weights: `begin` says which.
        settings: how the search goes.

    Attributes:
        width: D, where the search takes frames of that width only; else None.
        beam: has the hypotheses, as arrays or tensors: `scores` (-inf for none) and `acoustic_scores`, float64 `[B, K]`;
            `times` (frames) and, of beams, `sizes` (tokens), int64 `[B, K]`; `lm_states` and `lm_scores` (unweighted), int32
            and float32 `[B, K, M]`; `bad_frames`, int64 `[B]`, the first frame at which logits can't be normalised, else -1.
    """

    width: int | None = None
    beam: Any

    def __init__(self, model: TransducerModel, like: Tensor, size: int, models: RowModels, settings: SearchSettings) -> None:
        self.model, self.like, self.size, self.models, self.settings = model, like, size, models, settings
        self.has_ilm = models.ilm_weights is not None

    def array(self, name: str) -> np.ndarray:
        """Return what `beam` has by this name, on the CPU; it isn't to be changed."""
        values = getattr(self.beam, name)
        return values if isinstance(values, np.ndarray) else values[: self.size].cpu().numpy()

    @abstractmethod
    def begin(self, rows: np.ndarray, models: RowModels) -> None:
        """Begin anew in some rows, int64 `[N]`, with the states and weights of these models."""

    @abstractmethod
    def run_on(self, frames: Tensor, lengths: np.ndarray, reaches: np.ndarray) -> None:
        """Go on as far as the frames reach.

        Args:
            frames: `[B, T, D]`; times of hypotheses count from the first one.
            lengths: int64 `[B]`, frames of each row.
            reaches: int64 `[B]`, the farthest that a step may lead where more frames may come, 0 where none will. In ALSD a row
                waits if a step may lead beyond its last frame, since where that leads to depends on what comes.
        """

    @abstractmethod
    def steps(self) -> list[np.ndarray]:
        """Return what the last run did with each place of the beam: the place before each step, the label (`STILL` for none)
        and the frames moved on, int32, and the confidence in a token, float32: `[S, B, K]`."""

    @abstractmethod
    def shift(self, frames: np.ndarray) -> None:
        """Have times count from later frames, by so many in each row, int64 `[B]`."""

    def use(self, models: RowModels) -> None:
        """Go on with automata that may lie in other tensors, at the same places."""
        self.models = models

    @abstractmethod
    def widen(self, models: RowModels, shift: int) -> None:
        """Have one automaton more, which no row has yet; the states of the others are larger by `shift`."""

    @abstractmethod
    def switch(self, rows: np.ndarray, states: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> None:
        """Have the hypotheses of some rows, int64 `[N]`, follow other phrases.

        Args:
            states, scores: `[N, K]`, where they begin, and what the old ones give back, unweighted.
            weights: of the new ones, `[N]`.
        """

    def carries(self) -> list[Any]:
        """Return the tensors and arrays that a run changes in place."""
        return []

    def saved(self) -> Any:
        """Return where the search stands, for `restore`."""
        return [part.copy() if isinstance(part, np.ndarray) else part.clone() for part in self.carries()]

    def restore(self, saved: Any) -> None:
        """Go back to where the search stood."""
        for part, value in zip(self.carries(), saved):
            part[...] = value


def ilm_weights_of(models: RowModels) -> Tensor:
    """Return with what weights the internal LM is subtracted in each row, float32 `[B]`."""
    return torch.zeros_like(models.lm_weights) if models.ilm_weights is None else models.ilm_weights
