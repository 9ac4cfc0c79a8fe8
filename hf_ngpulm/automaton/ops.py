"""Define the queries as torch operators, which `torch.compile` and CUDA graph capture accept.

The last argument of an operator is the name of an engine (see `hf_ngpulm.engines.choice`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..engines import choice
from .checks import check_now
from .tensors import AutomatonTensors

_library = torch.library.Library("hf_ngpulm", "FRAGMENT")


def load_engine(
    package: str, name: str, device: torch.device, automaton: Sequence[Tensor] = (), elsewhere: str = "reference"
) -> Any:
    """Return the module of an operation's engine in `package`; arguments are as for `hf_ngpulm.engines.choice.load_engine`.

    `automaton` has the tensors that the operation reads. This function does the deferred checks of these tensors, unless the
    engine is the native core, which does the checks itself.
    """
    module = choice.load_engine(package, name, device, elsewhere)
    if automaton and not module.__name__.endswith(".cpu"):
        check_now(automaton)
    return module


def define_operator(schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Define an operator of `torch.ops.hf_ngpulm` that calls `run`. `fake` returns tensors of the right shapes for tracing."""
    name = schema.partition("(")[0]
    _library.define(schema)
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"hf_ngpulm::{name}", fake)


def _define_query(name: str, arguments: str, results: str, fake: Callable[..., Any]) -> None:
    """Define the operator of the query `name`. Each engine has a function of this name, with the states as second argument.

    `arguments` and `results` are parts of the operator's schema; `fake` is as for `define_operator`.
    """

    def run(automaton: list[Tensor], states: Tensor, *rest: Any) -> Any:
        *given, engine = rest
        return getattr(load_engine(__package__, engine, states.device, automaton), name)(
            AutomatonTensors(*automaton), states, *given
        )

    define_operator(f"{name}(Tensor[] automaton, {arguments}, int vocab_size, str engine) -> {results}", run, fake)


def _all_tokens(automaton: list[Tensor], states: Tensor, vocab_size: int, engine: str) -> tuple[Tensor, Tensor]:
    shape = (states.shape[0], vocab_size)
    return states.new_empty(shape, dtype=torch.float32), states.new_empty(shape, dtype=torch.int32)


def _given_tokens(automaton: list[Tensor], states: Tensor, tokens: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return states.new_empty(tokens.shape, dtype=torch.float32), states.new_empty(states.shape, dtype=torch.int32)


_define_query("scores", "Tensor states", "Tensor", lambda *arguments: _all_tokens(*arguments)[0])
_define_query("advance", "Tensor states", "(Tensor, Tensor)", _all_tokens)
_define_query("step", "Tensor states, Tensor tokens", "(Tensor, Tensor)", _given_tokens)
_define_query("walk", "Tensor states, Tensor token_ids, Tensor lengths", "(Tensor, Tensor)", _given_tokens)
_define_query(
    "states_after", "Tensor starts, Tensor roots, Tensor token_ids, Tensor lengths, int context_length", "Tensor",
    lambda automaton, starts, *rest: starts.new_empty(starts.shape, dtype=torch.int32),
)  # fmt: skip
