"""Transducer searches in buffers of fixed shapes, for a GPU.

Within a step, the host never waits for the device. A step computes all rows, even rows that have ended. So a block of steps can
be a CUDA graph (see `graphs`). After each block, the host checks whether any row must continue. The trace of a block says for
each step where each hypothesis came from and which label it got (see `TransducerSearch.steps`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...automaton.tensors import AutomatonTensors
from ...engines.devices import current, on_host
from ...fusion.rows import RowModels
from .graphs import Repeated, Work, addresses
from .model import TransducerModel
from .search import SearchSettings, TransducerSearch

STEPS = 8  # number of steps per block
REPORTED = ("times", "scores", "sizes", "bad_frames")  # attributes of a beam that the host reads after each run


class BufferedSearch(TransducerSearch):
    """A search in buffers. The host waits for the device once per block, and reads all results in one copy.

    Args:
        longest: maximum number of frames per row. With a maximum, the search copies the frames of up to `size` rows to a
            buffer, and callers may set the attribute `size` to fewer rows. If `longest` is None, the search reads the frames
            without a copy.
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
        self.untold: list[tuple[Tensor, ...]] = []  # traces of blocks that haven't been copied to the host
        self.traced: list[list[np.ndarray]] = []
        # The host's copies of arrays of `beam`. Times are always there, so that a run doesn't begin with a wait.
        self.told = {"times": np.zeros((size, settings.num_beams), dtype=np.int64)}
        self.make_buffers(size, models.states.shape[1])
        self.make_room()

    @abstractmethod
    def carries(self) -> list[Tensor]:
        """Return the tensors that a run changes in place. Callers restore these tensors before they repeat a run."""

    @abstractmethod
    def make_buffers(self, rows: int, num_automata: int) -> None:
        """Make the buffers that don't depend on the automata's tensors."""

    def make_room(self) -> None:
        """Make the buffers whose shapes depend on the number of automata. Drop the graph of the old buffers."""
        self.block = Repeated(self.take_steps, self.carries, self.capture)
        self.known = addresses((self.frames, *self.automaton))

    @property
    def automaton(self) -> AutomatonTensors:
        return self.models.tensors

    @property
    def vocab_size(self) -> int:
        return self.models.vocab_size

    def array(self, name: str) -> np.ndarray:
        return self.told[name][: self.size] if name in self.told else super().array(name)

    def changed(self) -> None:
        """Forget the host's copies of `beam`'s arrays, except the copy of the times. The host has changed `beam`, so the other
        copies are outdated.
        """
        self.told = {name: values for name, values in self.told.items() if name == "times"}

    def set_times(self, rows: np.ndarray | slice, less: np.ndarray | None = None) -> None:
        """Subtract `less`, int64 `[N]`, from some rows' times in the host's copy. If `less` is None, set the times to 0."""
        if "times" in self.told:
            times = self.told["times"]
            times[rows] = 0 if less is None else times[rows] - less[:, None]

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
        self.traced, self.untold, self.told = [], [], {}
        with current(self.device):
            self.block.prepare(self.device)
            self.run_blocks(int(lengths.max(initial=0)))

    def searched(self, models: RowModels, frames: Tensor, lengths: np.ndarray, reaches: np.ndarray) -> list[np.ndarray]:
        if models.lazy is None:
            return super().searched(models, frames, lengths, reaches)
        states = torch.from_numpy(self.array("lm_states").copy())
        saved = [part.clone() for part in self.carries()]

        def search(tensors: AutomatonTensors) -> list[np.ndarray]:
            self.use(models._replace(tensors=tensors))
            for part, before in zip(self.carries(), saved):
                part.copy_(before)
            self.told = {}
            return TransducerSearch.searched(self, models, frames, lengths, reaches)

        def trace(steps: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
            links, labels = (array.swapaxes(0, 1) for array in steps[:2])
            return links, labels

        return models.settled(search, states, trace, self.model.blank_id)

    @abstractmethod
    def limit(self, lengths: Tensor, reaches: Tensor) -> None:
        """Set two values of each row: the number of frames, and the largest number of frames that a step can advance; see
        `run_on`.
        """

    def run_blocks(self, longest: int) -> None:
        """Run blocks of steps until no row must continue. `longest` is the largest number of frames of a row."""
        while True:
            self.run_block()
            if not self.look():
                return

    def run_block(self) -> None:
        self.block()
        self.untold.append(tuple(part.clone() for part in self.traces()))

    def look(self) -> bool:
        """Copy the results and the traces of new blocks to the host. Return whether any row must continue."""
        names = [name for name in REPORTED if name != "sizes" or self.settings.strategy != "greedy"]
        of_beam = [getattr(self.beam, name) for name in names]
        is_open, *arrays = on_host([self.is_open, *of_beam, *(trace for block in self.untold for trace in block)])
        self.told = dict(zip(names, arrays))
        traces, count = arrays[len(names) :], len(self.traces())
        self.traced += [traces[first : first + count] for first in range(0, len(traces), count)]
        self.untold = []
        return bool(is_open)

    @abstractmethod
    def take_steps(self) -> None:
        """Run a block of steps, and write to `is_open` whether any row must continue."""

    @abstractmethod
    def traces(self) -> tuple[Tensor, ...]:
        """Return the buffers to which a block of steps writes its trace."""

    def places(self, *values: np.ndarray) -> list[Any]:
        """Convert arrays to tensors on the device."""
        return [torch.from_numpy(part).to(self.device) for part in values]


def _automata_of(models: RowModels) -> RowModels:
    """Return models without the fields `lease` and `lazy`. A search may outlive its batch, and must not hold the memory of
    these fields.
    """
    return models._replace(lease=None, lazy=None)
