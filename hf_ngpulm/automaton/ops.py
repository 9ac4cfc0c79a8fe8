"""The queries as torch operators: `torch.compile` and CUDA graph capture pass through them.

An operator is given the name of an engine, see `hf_ngpulm.engines.choice`.
"""

from __future__ import annotations

import importlib
from types import ModuleType

import torch
from torch import Tensor

from ..engines.choice import engine_name
from .tensors import AutomatonTensors


def load_engine(name: str, device: torch.device) -> ModuleType:
    return importlib.import_module(f"{__package__}.{engine_name(name, device)}")


_library = torch.library.Library("hf_ngpulm", "DEF")
_library.define("scores(Tensor[] automaton, Tensor states, int vocab_size, str engine) -> Tensor")
_library.define("advance(Tensor[] automaton, Tensor states, int vocab_size, str engine) -> (Tensor, Tensor)")
_library.define("step(Tensor[] automaton, Tensor states, Tensor tokens, int vocab_size, str engine) -> (Tensor, Tensor)")
_library.define(
    "walk(Tensor[] automaton, Tensor states, Tensor token_ids, Tensor lengths, int vocab_size, str engine) -> (Tensor, Tensor)"
)
_library.define(
    "states_after(Tensor[] automaton, Tensor starts, Tensor roots, Tensor token_ids, Tensor lengths,"
    " int context_length, int vocab_size, str engine) -> Tensor"
)


@torch.library.impl(_library, "scores", "CompositeExplicitAutograd")
def _scores(automaton: list[Tensor], states: Tensor, vocab_size: int, engine: str) -> Tensor:
    return load_engine(engine, states.device).scores(AutomatonTensors(*automaton), states, vocab_size)


@torch.library.impl(_library, "advance", "CompositeExplicitAutograd")
def _advance(automaton: list[Tensor], states: Tensor, vocab_size: int, engine: str) -> tuple[Tensor, Tensor]:
    return load_engine(engine, states.device).advance(AutomatonTensors(*automaton), states, vocab_size)


@torch.library.impl(_library, "step", "CompositeExplicitAutograd")
def _step(automaton: list[Tensor], states: Tensor, tokens: Tensor, vocab_size: int, engine: str) -> tuple[Tensor, Tensor]:
    return load_engine(engine, states.device).step(AutomatonTensors(*automaton), states, tokens, vocab_size)


@torch.library.impl(_library, "walk", "CompositeExplicitAutograd")
def _walk(
    automaton: list[Tensor], states: Tensor, token_ids: Tensor, lengths: Tensor, vocab_size: int, engine: str
) -> tuple[Tensor, Tensor]:
    return load_engine(engine, states.device).walk(AutomatonTensors(*automaton), states, token_ids, lengths, vocab_size)


@torch.library.impl(_library, "states_after", "CompositeExplicitAutograd")
def _states_after(
    automaton: list[Tensor],
    starts: Tensor,
    roots: Tensor,
    token_ids: Tensor,
    lengths: Tensor,
    context_length: int,
    vocab_size: int,
    engine: str,
) -> Tensor:
    return load_engine(engine, starts.device).states_after(
        AutomatonTensors(*automaton), starts, roots, token_ids, lengths, context_length, vocab_size
    )


@torch.library.register_fake("hf_ngpulm::scores")
def _(automaton: list[Tensor], states: Tensor, vocab_size: int, engine: str) -> Tensor:
    return states.new_empty((states.shape[0], vocab_size), dtype=torch.float32)


@torch.library.register_fake("hf_ngpulm::advance")
def _(automaton: list[Tensor], states: Tensor, vocab_size: int, engine: str) -> tuple[Tensor, Tensor]:
    shape = (states.shape[0], vocab_size)
    return states.new_empty(shape, dtype=torch.float32), states.new_empty(shape, dtype=torch.int32)


@torch.library.register_fake("hf_ngpulm::step")
def _(automaton: list[Tensor], states: Tensor, tokens: Tensor, vocab_size: int, engine: str) -> tuple[Tensor, Tensor]:
    return states.new_empty(states.shape, dtype=torch.float32), states.new_empty(states.shape, dtype=torch.int32)


@torch.library.register_fake("hf_ngpulm::walk")
def _(
    automaton: list[Tensor], states: Tensor, token_ids: Tensor, lengths: Tensor, vocab_size: int, engine: str
) -> tuple[Tensor, Tensor]:
    return states.new_empty(token_ids.shape, dtype=torch.float32), states.new_empty(states.shape, dtype=torch.int32)


@torch.library.register_fake("hf_ngpulm::states_after")
def _(
    automaton: list[Tensor],
    starts: Tensor,
    roots: Tensor,
    token_ids: Tensor,
    lengths: Tensor,
    context_length: int,
    vocab_size: int,
    engine: str,
) -> Tensor:
    return starts.new_empty(starts.shape, dtype=torch.int32)
