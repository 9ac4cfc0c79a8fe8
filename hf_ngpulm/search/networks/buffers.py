"""Searches in buffers of fixed shapes, for a GPU.

Nothing is asked of the device within a step, and a step does the same for rows that have ended as for others, so that a block
of steps can be a CUDA graph (see `graphs`). The host looks after each block whether anything is left to do.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...automaton.tensors import AutomatonTensors
from ...engines.devices import current
from ...fusion.fusion import RowModels
from .graphs import Repeated, Work, addresses
from .model import TransducerModel
from .search import SearchSettings, TransducerSearch

STEPS = 8  # of a block


class BufferedSearch(TransducerSearch):
    """A search in buffers.

    Args:
        longest: make room for so many frames, which are copied there, of up to `size` rows: `size` may then be set to fewer.
            None: frames are searched where they lie.
        capture: see `Repeated`.
    """

    def __init__(
        self,
        model: TransducerModel,
        like: Tensor,
        size: int,
        models: RowModels,
        settings: SearchSettings,
        longest: int | None = None,
        capture: Callable[[Work], Work] | None = None,
    ) -> None:
        super().__init__(model, like, size, _automata_of(models), settings)
        self.device, self.copies, self.capture = like.device, longest is not None, capture
        self.frames = like.new_zeros((size, longest or 1, like.shape[-1]))
        self.durations = torch.tensor(model.durations or (), dtype=torch.int64, device=self.device)
        self.is_open = torch.zeros((), dtype=torch.bool, device=self.device)
        self.traced: list[tuple[Tensor, ...]] = []
        self.make_buffers(size, models.states.shape[1])
        self.make_room()

    @abstractmethod
    def make_buffers(self, rows: int, num_automata: int) -> None:
        """Make what doesn't depend on the automata's tensors."""

    def make_room(self) -> None:
        """Make what depends on the number of automata, and forget graphs of what there was before."""
        self.block = Repeated(self.take_steps, self.carries, self.capture)
        self.known = addresses((self.frames, *self.automaton))

    @property
    def automaton(self) -> AutomatonTensors:
        return self.models.tensors

    @property
    def vocab_size(self) -> int:
        return self.models.vocab_size

    def use(self, models: RowModels) -> None:
        super().use(_automata_of(models))
        if addresses((self.frames, *self.automaton)) != self.known:
            self.make_room()

    def run_on(self, frames: Tensor, lengths: np.ndarray, reaches: np.ndarray) -> None:
        if self.copies:
            self.frames[: len(frames), : frames.shape[1]] = frames
        elif frames is not self.frames:
            self.frames = frames
            self.use(self.models)
        self.limit(*(torch.from_numpy(part).to(self.device) for part in (lengths, reaches)))
        self.traced = []
        with current(self.device):
            self.block.prepare(self.device)
            self.run_blocks(int(lengths.max(initial=0)))

    @abstractmethod
    def limit(self, lengths: Tensor, reaches: Tensor) -> None:
        """Take the lengths and reaches of the rows that are in use, for a new run."""

    def run_blocks(self, longest: int) -> None:
        """Take blocks of steps until nothing is left to do; no row has more frames than `longest`."""
        while True:
            self.run_block()
            if not bool(self.is_open):
                return

    def run_block(self) -> None:
        self.block()
        self.traced.append(tuple(part.clone() for part in self.traces()))

    @abstractmethod
    def take_steps(self) -> None:
        """Take a block of steps, and write to `is_open` whether any row goes on."""

    @abstractmethod
    def traces(self) -> tuple[Tensor, ...]:
        """Return the buffers in which a block writes what it has done."""

    def places(self, *values: np.ndarray) -> list[Any]:
        """Return arrays as tensors on the device."""
        return [torch.from_numpy(part).to(self.device) for part in values]


def _automata_of(models: RowModels) -> RowModels:
    """Return models without what holds phrases and lazy states: a search may be kept for long after its batch."""
    return models._replace(lease=None, lazy=None)
