"""Define the queries of an `NGramLM`. The model's automaton answers these queries."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from ..automaton import BackoffAutomaton
from ..automaton.tensors import AutomatonTensors


def _from_part(path: str, doc: str) -> Any:
    """Return a property that reads an attribute of the automaton or the config, such as "config.order" (`path`)."""
    return property(attrgetter(path), doc=doc)


class Queries:
    """Answer queries with a model's `automaton` and `config`. Also provide properties of the model, such as sizes."""

    automaton: BackoffAutomaton

    vocab_size: int = _from_part("automaton.vocab_size", "Token ids that it scores, V.")
    context_length: int = _from_part("automaton.context_length", "Tokens of context that matter at most.")
    tensors: AutomatonTensors = _from_part("automaton.tensors", "The tensors of the automaton.")
    searched: AutomatonTensors = _from_part("automaton.searched", "The same tensors for searches, which check what is left.")
    roots: Tensor = _from_part("automaton.roots", "int32 `[1]`, the state of the empty context.")
    starts: Tensor = _from_part("automaton.starts", "int32 `[1]`, the state after `<s>`.")
    device: torch.device = _from_part("automaton.device", "Where the tensors are.")
    is_lazy: bool = _from_part("automaton.is_lazy", "Whether states are composed as searches come to them.")
    num_states: int = _from_part("automaton.num_states", "States of the automaton; those composed so far if it is lazy.")
    num_arcs: int = _from_part("automaton.num_arcs", "Arcs of these states.")
    order: int = _from_part("config.order", "Length of the longest n-grams.")
    num_ngrams: tuple[int, ...] = _from_part("config.num_ngrams", "N-grams of each order.")

    def initial_states(self, batch_size: int, bos: bool = True) -> Tensor:
        """Return the states before the first token, int32 `[B]`: after `<s>`, or with an empty context if `bos=False`."""
        return self.automaton.initial_states(batch_size, bos)

    def scores(self, states: Tensor) -> Tensor:
        """Return the score of every token: `[B]` states -> float32 `[B, V]`."""
        return self.automaton.scores(states)

    def advance(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return the score and the next state of every token: `[B]` states -> float32 `[B, V]`, int32 `[B, V]`."""
        return self.automaton.advance(states)

    def step(self, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the score of one token per row, and the state after it: `[B]`, `[B]` -> float32 `[B]`, int32 `[B]`."""
        return self.automaton.step(states, tokens)

    def states_after(self, token_ids: Tensor, lengths: Tensor | None = None, bos: bool = True) -> Tensor:
        """Return the state after each row of tokens, `[B, L]` -> int32 `[B]`. Only the last `context_length` tokens matter."""
        return self.automaton.states_after(token_ids, lengths, bos)

    def final_scores(self, states: Tensor) -> Tensor:
        """Return log p(`</s>` | state): `[B]` -> float32 `[B]`."""
        return self.automaton.final_scores(states)

    def score_tokens(self, token_ids: Tensor, lengths: Tensor | None = None, bos: bool = True) -> tuple[Tensor, Tensor]:
        """Return the tokens' scores, `[B, L]` -> float32 `[B, L]` (0 after a row's end), and the last state of each row."""
        return self.automaton.score_tokens(token_ids, lengths, bos)

    def score_sequences(self, token_ids: Tensor, lengths: Tensor | None = None, bos: bool = True, eos: bool = True) -> Tensor:
        """Return the log-probability of each row, `[B, L]` -> `[B]`. If `eos`, the log-probability includes `</s>`."""
        return self.automaton.score_sequences(token_ids, lengths, bos, eos)

    def validate(self) -> None:
        """Check all tensors, so that tensors from a file can't crash an engine or cause an endless loop. Raises
        NGramFormatError if a tensor is invalid; the message names the first fault.
        """
        self.automaton.validate()
