"""A transducer's networks for the native core (`csrc/networks.cpp`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...automaton.cpu import CPU
from ...automaton.tensors import AutomatonTensors
from ...engines.native import Function, Struct
from ...fusion.rows import RowModels
from ..confidence import ALPHA, MEASURES, confidence_of_sums
from .model import TransducerModel
from .networks import ACTIVATIONS, TransducerNetworks
from .search import STILL, SearchSettings, TransducerSearch


class Networks(Struct):
    """A copy of the weights of a transducer's networks, in a layout for fast matrix products."""

    @classmethod
    def of(cls, networks: TransducerNetworks) -> Networks:
        addresses = [
            [part.data_ptr() for part in (layer.weight_ih, layer.weight_hh, layer.bias_ih, layer.bias_hh)]
            for layer in networks.layers
        ]
        members: dict[str, Any] = {
            "layers": np.array(addresses, dtype=np.int64),
            "embedding": networks.embedding,
            "convolution": networks.convolution.contiguous(),
            "convolution_bias": networks.convolution_bias,
            "projection": networks.projection,
            "projection_bias": networks.projection_bias,
            "head": networks.head,
            "head_bias": networks.head_bias,
            "num_layers": len(networks.layers),
            "tokens": networks.embedding.shape[0],
            "embedded": networks.embedding.shape[1],
            "places": networks.convolution.shape[1],
            "size": networks.projection.shape[1],
            "width": networks.projection.shape[0],
            "outputs": networks.head.shape[0],
            "activation": ACTIVATIONS.index(networks.activation),
            "separate_blank": networks.separate_blank,
        }
        made = cls(**members, laid_out=None)
        made.put("laid_out", np.empty(_laid_out_size(made), dtype=np.float32))
        _lay_out(made)
        return made


class NgpulmSlots(Struct):
    """States `[P, N, H]` and predictions `[N, D]` of the prediction network in N slots.

    The P parts of a state are the hidden states of all layers, followed by the cells of all layers. For a convolution, the
    parts are the embeddings of the tokens before the last token.
    """

    @classmethod
    def of(cls, states: Tensor, predictions: Tensor) -> NgpulmSlots:
        return cls(states=states, predictions=predictions, slots=states.shape[1], parts=states.shape[0])


class Classes(Struct):
    """The classes of a joint network's outputs, and the confidence measure."""

    @classmethod
    def of(cls, model: TransducerModel, confidence: str | None) -> Classes:
        """Return the classes of a model. `confidence` is a confidence measure, or None."""
        durations = np.array(model.durations or (), dtype=np.int64)
        measure = -1 if confidence is None else MEASURES.index(confidence)
        return cls(
            durations=durations, num_durations=len(durations), tokens=model.vocab_size, blank=model.blank_id, measure=measure,
            alpha=ALPHA,
        )  # fmt: skip


class Steps(Struct):
    """`Trace` for the native core. Each row has room for `room` steps."""


class Trace:
    """Trace of a search.

    The trace has four values for each step, row and place in the beam: the place before the step (link), the label, the number
    of frames that the hypothesis advances, and the sum from which the token's confidence is computed (see
    `hf_ngpulm.search.confidence.confidence_of_sums`). Initially, every entry says that the hypothesis doesn't move. `used`
    counts the steps of each row. The arrays double in length whenever they are too short.
    """

    def __init__(self, batch_size: int, num_beams: int) -> None:
        self.used = np.zeros(batch_size, dtype=np.int64)
        self._shape = (batch_size, num_beams)
        self._arrays: list[np.ndarray] = []

    def _blocks(self, steps: int) -> list[np.ndarray]:
        shape = (steps, *self._shape)
        links, labels = np.empty(shape, dtype=np.int32), np.full(shape, STILL, dtype=np.int32)
        links[:] = np.arange(self._shape[1], dtype=np.int32)
        return [links, labels, np.zeros(shape, dtype=np.int32), np.zeros(shape, dtype=np.float32)]

    @property
    def room(self) -> int:
        """Return the number of steps per row that fit into the arrays."""
        return len(self._arrays[0]) if self._arrays else 0

    def native(self, steps: int) -> Steps:
        """Return the struct for the core, with room for `steps` more steps per row."""
        room, needed = self.room, self._size + steps
        if needed > room or not self._arrays:
            blocks = self._blocks(max(needed - room, room))
            self._arrays = [np.concatenate(both) for both in zip(self._arrays, blocks)] if room else blocks
        links, labels, moves, sums = self._arrays
        return Steps(
            used=self.used, links=links, labels=labels, moves=moves, sums=sums, room=self.room, batch=len(self.used)
        )  # fmt: skip

    @property
    def _size(self) -> int:
        return int(self.used.max(initial=0))

    def steps(self, confidence: str | None, classes: int) -> list[np.ndarray]:
        """Return the links, labels, moves and confidences of all steps, each `[steps, B, K]`."""
        *arrays, sums = (array[: self._size] for array in self._arrays)
        if confidence not in (None, "max_prob"):
            sums = confidence_of_sums(torch.from_numpy(sums), confidence, classes).numpy()
        return [*arrays, sums]

    def clear(self) -> None:
        """Remove all steps, but keep the room for steps."""
        if size := self._size:
            for array, new in zip(self._arrays, self._blocks(size)):
                array[:size] = new
            self.used[:] = 0


class CoreSearch(TransducerSearch):
    """A transducer search whose state is in arrays that the core reads and writes.

    The core also runs the networks, if it can (see `served`). The core copies the model's weights again whenever rows begin,
    because the weights may have changed. PyTorch runs all other networks, and the core does the work between the calls of the
    networks. A slot holds a prediction and the prediction network's state after the same tokens.

    Args:
        slots: number of slots.

    Attributes:
        predictions: `[slots, D]`.
        state: the prediction network's state in all slots. If the core runs the networks, `state` has a single tensor for all
            parts of the state.
        laid_out: the weights in the core's layout; None if PyTorch runs the networks.
    """

    def __init__(
        self, model: TransducerModel, like: Tensor, size: int, models: RowModels, settings: SearchSettings, slots: int
    ) -> None:
        super().__init__(model, like, size, models, settings)
        self.trace, self.classes = Trace(size, settings.num_beams), Classes.of(model, settings.confidence)
        self.networks, self.slots = served(model, like), slots
        self.laid_out: Networks | None = None
        self.predictions: Tensor | None = None
        self.state: tuple[Tensor, ...] = ()
        if self.networks is not None:
            projection = self.networks.projection
            self.width = projection.shape[0]
            self.predictions = projection.new_empty((slots, self.width))
            self.state = (projection.new_empty((self.networks.num_parts, slots, projection.shape[1])),)

    def use(self, models: RowModels) -> None:
        super().use(on_the_cpu(models))

    def keep_start(self, slots: Tensor) -> None:
        """Store the prediction and the state before the first token in the slots with the indices `slots`, int64 `[N]`."""
        prediction, state = self.model.start(len(slots), self.like)
        if self.predictions is None:
            self.predictions = prediction.new_zeros((self.slots, *prediction.shape[1:]))
            self.state = tuple(part.new_zeros((self.slots, *part.shape[1:])) for part in state)
        self.keep(slots, prediction, state)

    def keep(self, slots: Tensor, predictions: Tensor, state: tuple[Tensor, ...]) -> None:
        """Store new predictions and states in the slots with the indices `slots`, int64 `[N]`."""
        assert self.predictions is not None
        places = slots.to(predictions.device)
        for buffer, values in zip((self.predictions, *self.state), (predictions, *state)):
            buffer.index_copy_(0, places, values)

    def steps(self) -> list[np.ndarray]:
        return self.trace.steps(self.settings.confidence, self.model.vocab_size)


def served(model: TransducerModel, like: Tensor) -> TransducerNetworks | None:
    """Return a model's networks. If the core can't run the networks on frames with the dtype, device and width of `like`,
    return None.

    If the width of `like` is 0, the width of the frames isn't known yet.
    """
    if like.device.type != CPU.type:
        return None
    networks = model.networks()
    if networks is None:
        return None
    frames = like if like.shape[-1] else like.new_empty((0, networks.head.shape[1]))
    return networks if networks.serve(frames, model.vocab_size, len(model.durations or ())) else None


def on_the_cpu(models: RowModels) -> RowModels:
    """Return the models with all tensors on the CPU."""
    if models.states.device.type == CPU.type:
        return models
    ilm_weights = None if models.ilm_weights is None else models.ilm_weights.cpu()
    on_cpu = {name: getattr(models, name).cpu() for name in ("states", "weights", "present")}
    tensors = AutomatonTensors(*(tensor.cpu() for tensor in models.tensors))
    return models._replace(tensors=tensors, ilm_weights=ilm_weights, **on_cpu)


def wider(values: np.ndarray) -> np.ndarray:
    """Append a column of zeros: `[..., M]` becomes `[..., M + 1]`."""
    return np.concatenate([values, np.zeros((*values.shape[:-1], 1), values.dtype)], -1)


_laid_out_size = Function("ngpulm_laid_out_size")
_lay_out = Function("ngpulm_lay_out")
