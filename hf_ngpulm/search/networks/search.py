"""TransducerSearch: the interface of transducer searches in all engines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...fusion.fusion import RowModels
from .model import TransducerModel

STILL = -1  # label of a step in which a hypothesis stands still


class SearchSettings(NamedTuple):
    """Settings of a search; see `hf_ngpulm.TransducerDecoder`.

    Args:
        num_beams: number of hypotheses.
        strategy: "greedy", "alsd" or "aes".
        blank_aware: whether the blank's score depends on the LM's weight (see `hf_ngpulm.search.transducer_beam`).
        late: whether LM scores are added before the best classes of a hypothesis are chosen, or after. In a TDT, early pruning
            chooses the `num_beams` classes that are best without LM and durations, and then their `num_beams` best pairs of
            class and duration with the LM.
        log_sum: whether merged hypotheses add their probabilities, or the best one counts.
        max_symbols: maximum number of tokens at one frame (greedy search and ALSD).
        aes_steps: maximum number of tokens at one frame in AES.
        aes_beta: in one step of AES a hypothesis is extended by at most `num_beams + aes_beta` classes.
        aes_gamma: these score at most this much less than the hypothesis's best class (natural log).
        confidence: confidence measure of tokens, see `hf_ngpulm.search.confidence`; None for none.
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
        """Return the maximum number of classes, or pairs of class and duration, that extend a hypothesis."""
        return self.num_beams + (self.aes_beta if self.strategy == "aes" else 0)


class TransducerSearch(ABC):
    """A search of `B` rows with up to `K` hypotheses each. Rows begin with `begin`, and `run_on` searches more frames.

    Args:
        model: the transducer.
        like: `[..., D]`, a tensor with the device and type of the frames.
        size: B.
        models: models of the rows; `begin` sets their states and weights.
        settings: settings of the search.

    Attributes:
        width: D, if the search accepts only frames of that width; else None.
        beam: the hypotheses, as arrays or tensors: `scores` (-inf for none) and `acoustic_scores`, float64 `[B, K]`; `times`
            (frames) and, in beam search, `sizes` (tokens), int64 `[B, K]`; `lm_states` and `lm_scores` (unweighted), int32 and
            float32 `[B, K, M]`; `bad_frames`, int64 `[B]`, the first frame with NaN or infinity in the logits, else -1.
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
        """Search as far as the frames reach.

        Args:
            frames: `[B, T, D]`; times of hypotheses count from the first one.
            lengths: int64 `[B]`, number of frames of each row.
            reaches: int64 `[B]`, the largest number of frames that a step can move on, if more frames may come; 0 if none will.
                In ALSD a row waits if a step might lead past its last frame, as the step's result depends on later frames.
        """

    @abstractmethod
    def steps(self) -> list[np.ndarray]:
        """Return the trace of the last run, `[S, B, K]` each: the place before the step, the label (`STILL` for none) and the
        frames moved on, int32; and the confidence of the token, float32."""

    @abstractmethod
    def shift(self, frames: np.ndarray) -> None:
        """Subtract `frames`, int64 `[B]`, from all times of each row: its first frames have been dropped."""

    def use(self, models: RowModels) -> None:
        """Use other tensors, in which the automata have the same places."""
        self.models = models

    @abstractmethod
    def widen(self, models: RowModels, shift: int) -> None:
        """Add a column for an automaton that no row has yet, and add `shift` to the states of the others."""

    @abstractmethod
    def switch(self, rows: np.ndarray, states: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> None:
        """Switch the hypotheses of some rows, int64 `[N]`, to other phrases.

        Args:
            states, scores: `[N, K]`, states of the new phrases, and the unweighted scores by which old phrases repay their
                bonus.
            weights: `[N]`, weights of the new phrases.
        """

    def carries(self) -> list[Any]:
        """Return the tensors and arrays that a run changes in place."""
        return []

    def saved(self) -> Any:
        """Return a copy of the search's state, for `restore`."""
        return [part.copy() if isinstance(part, np.ndarray) else part.clone() for part in self.carries()]

    def restore(self, saved: Any) -> None:
        """Restore a state that `saved` has returned."""
        for part, value in zip(self.carries(), saved):
            part[...] = value


def ilm_weights_of(models: RowModels) -> Tensor:
    """Return the weight of the internal LM in each row, float32 `[B]`; 0 without."""
    return torch.zeros_like(models.lm_weights) if models.ilm_weights is None else models.ilm_weights
