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
from ...engines.devices import current, on_host
from ...fusion.fusion import RowModels
from .graphs import Repeated, Work, addresses
from .model import TransducerModel
from .search import SearchSettings, TransducerSearch

STEPS = 8  # of a block
REPORTED = ("times", "scores", "sizes", "bad_frames")  # what the host asks of a beam after each run


class BufferedSearch(TransducerSearch):
    """A search in buffers. The host waits for the device once a block: all that it asks for comes in one copy.

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
        self.untold: list[tuple[Tensor, ...]] = []  # traces of blocks that the host doesn't know yet
        self.traced: list[list[np.ndarray]] = []
        # Of `beam`, as it is now; times are known from the first one on, so that a run doesn't begin with a wait.
        self.told = {"times": np.zeros((size, settings.num_beams), dtype=np.int64)}
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

    def array(self, name: str) -> np.ndarray:
        return self.told[name][: self.size] if name in self.told else super().array(name)

    def changed(self) -> None:
        """Forget what is told of `beam`, but for times: it was changed by the host."""
        self.told = {name: values for name, values in self.told.items() if name == "times"}

    def set_times(self, rows: np.ndarray | slice, less: np.ndarray | None = None) -> None:
        """Have the host know of times of some rows that they are less by so many frames; None: that they are 0."""
        if "times" in self.told:
            times = self.told["times"]
            times[rows] = 0 if less is None else times[rows] - less[:, None]

    def restore(self, saved: Any) -> None:
        super().restore(saved)
        self.told = {}

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

    @abstractmethod
    def limit(self, lengths: Tensor, reaches: Tensor) -> None:
        """Take the lengths and reaches of the rows that are in use, for a new run."""

    def run_blocks(self, longest: int) -> None:
        """Take blocks of steps until nothing is left to do; no row has more frames than `longest`."""
        while True:
            self.run_block()
            if not self.look():
                return

    def run_block(self) -> None:
        self.block()
        self.untold.append(tuple(part.clone() for part in self.traces()))

    def look(self) -> bool:
        """Have the host know what all blocks so far have done; return whether any row goes on."""
        names = [name for name in REPORTED if name != "sizes" or self.settings.strategy != "greedy"]
        of_beam = [getattr(self.beam, name) for name in names]
        is_open, *parts = on_host([self.is_open, *of_beam, *(part for block in self.untold for part in block)])
        self.told = dict(zip(names, parts))
        traces, count = parts[len(names) :], len(self.traces())
        self.traced += [traces[first : first + count] for first in range(0, len(traces), count)]
        self.untold = []
        return bool(is_open)

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
