"""What the searches of many streams offer, whatever they search: streams lie in slots, whose states are rows of tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..fusion import RowModels

if TYPE_CHECKING:
    from .history import History


class Found(NamedTuple):
    """A hypothesis of a stream: its place in the beam (-1 for none), and its scores as in `hf_ngpulm.Hypothesis`."""

    place: int
    score: float
    acoustic_score: float
    lm_score: float
    phrase_score: float


class Slots(ABC):
    """Searches of `S` streams. A slot begins anew with each utterance.

    Args:
        models: what each slot is fused with. Rows may be replaced at any time; an utterance begins with what is there then.
        history: the hypotheses.
        frames: int64 `[S]`, frames of each slot's utterance so far.
    """

    def __init__(self, models: RowModels, history: History) -> None:
        self.models = models
        self.history = history
        self.frames = np.zeros(len(models.states), dtype=np.int64)

    def place(self, slot: int, models: RowModels) -> None:
        """Have a slot fused with what one row is fused with."""
        for name in ("states", "weights", "present"):
            getattr(self.models, name)[slot] = getattr(models, name)[0]

    def begin(self, slot: int) -> None:
        """Begin an utterance."""
        self.frames[slot] = 0
        self.history.begin(slot)

    @abstractmethod
    def refusal(self, chunk: Tensor) -> str | None:
        """What is wrong with a chunk by its shape and type; None if nothing is."""

    @abstractmethod
    def step(self, slots: np.ndarray, chunks: Sequence[Tensor]) -> np.ndarray:
        """Decode a chunk `[T, ...]` of each of some slots, int64 `[N]`, no two of them the same.

        Returns:
            int64 `[N]`, for each the first frame (of the utterance) whose outputs were broken, else -1. Slots with one are as
            they were, or `is_broken`.
        """

    @abstractmethod
    def live(self) -> np.ndarray:
        """Which places of the beams hold a hypothesis, bool `[S, K]`."""

    @abstractmethod
    def best(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The place of the best hypothesis of each of some slots, and its score, as long as more frames may come."""

    @abstractmethod
    def finish(self, slot: int) -> list[Found]:
        """End the utterance of a slot; its hypotheses, the best one first."""

    def goes_on(self, slots: np.ndarray) -> np.ndarray:
        """Whether the last token of a slot's only hypothesis may go on, bool `[N]`."""
        return np.zeros(len(slots), dtype=np.bool_)

    def is_broken(self, slot: int) -> bool:
        """Whether the slot's utterance can't go on, since the model's outputs were broken."""
        return False


def broken_frames(frames: Tensor, lengths: np.ndarray) -> np.ndarray:
    """The first frame with NaN or infinity of each of some rows that lie one behind the other `[N, D]`; -1 for none."""
    is_broken = ~torch.isfinite(frames.sum(-1, dtype=torch.float32))
    found = np.full(len(lengths), -1, dtype=np.int64)
    if bool(is_broken.any()):
        for row, part in enumerate(is_broken.cpu().split(lengths.tolist())):
            if bool(part.any()):
                found[row] = int(part.int().argmax())
    return found
