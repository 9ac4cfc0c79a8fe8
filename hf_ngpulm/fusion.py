"""Which language models a batch of rows follows, and with what weight."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import NamedTuple

import torch
from torch import Tensor

from .automaton import BackoffAutomaton
from .automaton.tensors import AutomatonTensors
from .language_model import NGramLM

LARGEST_WEIGHT = torch.finfo(torch.float32).max


class RowModels(NamedTuple):
    """What the rows of a batch are fused with.

    Args:
        tensors: those of one automaton, or of several packed into one.
        vocab_size: tokens that they score.
        states: int32 `[B, M]`, the states in which each row's automata begin.
        weights: float32 `[B, M]`; 0 for a row without a model.
        present: bool `[B, M]`, whether a row has a model.
    """

    tensors: AutomatonTensors
    vocab_size: int
    states: Tensor
    weights: Tensor
    present: Tensor


def no_models(batch_size: int, device: torch.device) -> RowModels:
    """For decoding without a language model: M = 0."""
    integers = torch.zeros(1, dtype=torch.int32, device=device)
    numbers = torch.zeros(1, device=device)
    tensors = AutomatonTensors(
        arc_offsets=integers.repeat(2),
        arc_tokens=integers[:0].to(torch.int16),
        arc_weights=numbers[:0],
        arc_targets=integers[:0],
        backoff_states=integers,
        backoff_weights=numbers,
    )
    none = torch.zeros((batch_size, 0), device=device)
    return RowModels(tensors, 0, none.to(torch.int32), none, none.to(torch.bool))


class Fusion:
    """One language model for all rows, or one per row (None for a row without), and its weight.

    Packs are kept: a second batch with the same models costs nothing.

    Args:
        lm: a model, or a sequence with one (or None) per row.
        weight: a number, or a tensor `[B]` with one per row.

    Raises:
        ValueError: models over vocabularies of different sizes, none at all, or a weight that isn't a finite number.
    """

    def __init__(self, lm: NGramLM | Sequence[NGramLM | None], weight: float | Tensor) -> None:
        self.per_row = list(lm) if isinstance(lm, Sequence) else None
        models = [model for model in lm if model is not None] if isinstance(lm, Sequence) else [lm]
        self.models = list({id(model): model for model in models}.values())
        if not self.models:
            raise ValueError("lm is an empty list, or one of None only; pass a language model, or lm=None")
        for model in self.models:
            if not isinstance(model, BackoffAutomaton):
                raise TypeError(f"lm should be an NGramLM (see hf_ngpulm.NGramLM.from_pretrained), got {type(model).__name__}")
        sizes = sorted({model.vocab_size for model in self.models})
        if len(sizes) > 1:
            raise ValueError(f"language models over vocabularies of different sizes {sizes} can't serve one batch")
        self.weight = check_weight(weight, "lm_weight")
        self._packs: dict[torch.device, BackoffAutomaton] = {}

    def rows(self, batch_size: int, device: torch.device) -> RowModels:
        """The models of `batch_size` rows, on the device of their logits.

        Raises:
            ValueError: a list of models, or weights, for another number of rows.
        """
        weights = self.weight if isinstance(self.weight, Tensor) else torch.full((batch_size,), self.weight, device=device)
        weights = weights.detach().to(device, torch.float32, copy=True)
        if weights.shape != (batch_size,):
            raise ValueError(f"lm_weight has the shape {tuple(weights.shape)}, the batch has {batch_size} rows")
        which = torch.zeros(batch_size, dtype=torch.int64, device="cpu")
        if self.per_row is not None:
            if len(self.per_row) != batch_size:
                raise ValueError(f"lm lists {len(self.per_row)} language models, the batch has {batch_size} rows")
            place = {id(model): index for index, model in enumerate(self.models)}
            which = torch.tensor([place.get(id(model), -1) for model in self.per_row], device="cpu")
        present = (which >= 0).to(device)
        automaton = self._pack(device)
        states = automaton.initial_states(batch_size, bos=True, which=which.clamp(min=0))
        weights = torch.where(present, weights, 0.0)
        states, weights = states[:, None].contiguous(), weights[:, None].contiguous()
        return RowModels(automaton.tensors, automaton.vocab_size, states, weights, present[:, None])

    def _pack(self, device: torch.device) -> BackoffAutomaton:
        first = self.models[0]
        if len(self.models) == 1 and first.device == device:
            return first  # not kept: the caller may move it
        if device not in self._packs:  # a copy: the caller's models stay where they are
            copies = [BackoffAutomaton.pack([model]).to(device) for model in self.models]
            self._packs[device] = copies[0] if len(copies) == 1 else BackoffAutomaton.pack(copies)
        return self._packs[device]


def check_weight(weight: float | Tensor, name: str) -> float | Tensor:
    """A finite number, or a tensor `[B]` of them."""
    if isinstance(weight, Tensor):
        if weight.dim() != 1 or not bool(torch.isfinite(weight.to(torch.float32)).all()):
            raise ValueError(f"{name} should be a number, or a tensor [B] of finite numbers, got {weight}")
        return weight
    return check_number(weight, name)


def check_number(weight: float, name: str) -> float:
    if isinstance(weight, bool) or not isinstance(weight, Real) or not abs(weight) <= LARGEST_WEIGHT:
        raise ValueError(f"{name} should be a finite number, got {weight!r}")
    return float(weight)
