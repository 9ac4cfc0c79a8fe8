"""Apply settings per recording of a call: lists with a language model, or a weight, for each recording.

    asr([audio_a, audio_b, audio_c], lm=[lm_a, lm_b, None], batch_size=2)

Transformers' pipelines have settings per call, and their batches mix chunks of several recordings. So recordings are numbered
on input, and every chunk carries its recording's number. These numbers select the settings of a batch's rows. This module only
distinguishes lists of values from single values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..common.checks import WEIGHT, check
from ..phrases.contexts import is_per_row

RECORDING = "ngram_recording"  # key in the model's inputs and outputs


@dataclass(frozen=True)
class Numbered:
    """Hold a recording and its index in the call."""

    audio: Any
    number: int


class NumberedInputs:
    """Number the recordings of a call, without reading them all at once.

    Args:
        inputs: a pipeline's inputs: a list, a generator, a data set.
        counts: the number of values of each setting that has a value per recording.

    Raises:
        ValueError: the number of recordings isn't the number of values. If the inputs have no length, the error is raised at
            their end.
    """

    def __init__(self, inputs: Iterable[Any], counts: dict[str, int]) -> None:
        self.inputs, self.counts = inputs, counts
        if isinstance(inputs, Sized):
            self._check(len(inputs))
        elif len(set(counts.values())) > 1:
            listed = " and ".join(f"{name} {count}" for name, count in counts.items())
            raise ValueError(f"each list should have one value per recording, but the lengths differ: {listed}")

    def __iter__(self) -> Iterator[Numbered]:
        number = -1
        for number, audio in enumerate(self.inputs):
            if number >= min(self.counts.values()):
                self._check(number + 1, "at least ")
            yield Numbered(audio, number)
        self._check(number + 1)

    def __len__(self) -> int:
        return len(self.inputs)  # type: ignore[arg-type]  # a TypeError for generators is right

    def _check(self, recordings: int, qualified: str = "") -> None:
        for name, count in self.counts.items():
            if count != recordings:
                raise ValueError(
                    f"{name} lists {count} values, one per recording, but there are {qualified}{recordings} recordings"
                )


def numbered(pieces: Iterable[dict[str, Any]], number: int | None) -> Iterator[dict[str, Any]]:
    """Yield the chunks of a recording. If the recording has a number, add the number to each chunk."""
    for piece in pieces:
        yield piece if number is None else {**piece, RECORDING: number}


def numbers_in(model_inputs: dict[str, Any]) -> list[int] | None:
    """Remove the numbers of a batch's recordings (or of a single recording) from the inputs, and return the numbers."""
    numbers = model_inputs.pop(RECORDING, None)
    return [numbers] if isinstance(numbers, int) else numbers


def listed_values(settings: dict[str, Any]) -> dict[str, Sequence[Any] | Tensor]:
    """Return the settings that have a value per recording."""
    lists = {name: as_list(name, settings[name]) for name, as_list in PER_ITEM.items() if name in settings}
    return {name: values for name, values in lists.items() if values is not None}


def _objects(name: str, value: Any) -> list[Any] | None:
    return list(value) if isinstance(value, list | tuple) else None


def _contexts(name: str, value: Any) -> list[Any] | None:
    return list(value) if is_per_row(value) else None


def _numbers(name: str, value: Any) -> Tensor | None:
    if isinstance(value, Tensor | np.ndarray) and value.ndim == 1:
        value = value.tolist()
    if not isinstance(value, list | tuple):
        return None
    return torch.tensor([check(name, number, WEIGHT) for number in value], dtype=torch.float32, device="cpu")


# For each setting, a function that returns the list of values per recording, or None for a single value.
PER_ITEM: dict[str, Callable[[str, Any], Sequence[Any] | Tensor | None]] = {
    "lm": _objects, "lm_weight": _numbers, "source_weight": _numbers, "ilm_weight": _numbers, "beta": _numbers,
    "phrases": _contexts, "phrase_weight": _numbers,
}  # fmt: skip
