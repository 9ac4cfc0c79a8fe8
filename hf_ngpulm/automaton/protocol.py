"""What decoders may ask of anything that scores tokens: language models, phrases, automata static and lazy."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from .tensors import AutomatonTensors


class Automaton(Protocol):
    """A weighted automaton with backoff arcs; see `BackoffAutomaton` for shapes and units.

    Where one is lazy (composed as searches come to its states) is told by `is_lazy`; a search that doesn't look reads scores
    that are right up to the states that have been composed.
    """

    @property
    def vocab_size(self) -> int: ...
    @property
    def context_length(self) -> int: ...
    @property
    def engine(self) -> str: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def is_lazy(self) -> bool: ...
    @property
    def tensors(self) -> AutomatonTensors: ...
    @property
    def roots(self) -> Tensor: ...
    @property
    def starts(self) -> Tensor: ...

    def scores(self, states: Tensor) -> Tensor: ...
    def advance(self, states: Tensor) -> tuple[Tensor, Tensor]: ...
    def step(self, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]: ...
    def final_scores(self, states: Tensor) -> Tensor: ...
