"""Define the queries in plain torch on any device. The other engines are tested against this module."""

from __future__ import annotations

import torch
from torch import Tensor

from .tensors import AutomatonTensors


def step(automaton: AutomatonTensors, states: Tensor, tokens: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    """Return the score and next state of one token per state. `states` and `tokens` have the same shape, which may be any
    shape.
    """
    if states.numel() and (int(states.min()) < 0 or int(states.max()) >= automaton.num_states):
        raise IndexError(f"states should lie in 0..{automaton.num_states - 1}, got {int(states.min())}..{int(states.max())}")
    if automaton.num_arcs == 0:  # one unused arc, so that the indices below stay valid
        arcs = {name: getattr(automaton, name).new_zeros(1) for name in ("arc_tokens", "arc_weights", "arc_targets")}
        automaton = automaton._replace(**arcs)
    current = states.to(torch.int64)
    scores = torch.zeros(states.shape, dtype=torch.float32, device=states.device)
    next_states = current
    looking = (tokens >= 0) & (tokens < vocab_size)
    while bool(looking.any()):
        arc, found = find_arc(automaton, current, tokens)
        backoff = automaton.backoff_states[current].to(torch.int64)
        at_root = backoff == current
        weight = torch.where(found, automaton.arc_weights[arc], automaton.backoff_weights[current])
        scores = torch.where(looking, scores + weight, scores)
        target = torch.where(found, automaton.arc_targets[arc].to(torch.int64), current)
        next_states = torch.where(looking & (found | at_root), target, next_states)
        looking = looking & ~found & ~at_root
        current = torch.where(looking, backoff, current)
    return scores, next_states.to(torch.int32)


def find_arc(automaton: AutomatonTensors, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """For each pair of state and token, return the index of the state's arc for the token, and whether this arc exists."""
    low = automaton.arc_offsets[states].to(torch.int64)
    end = automaton.arc_offsets[states + 1].to(torch.int64)
    high = end
    last = automaton.num_arcs - 1
    while bool((low < high).any()):
        middle = (low + high) // 2
        right = (automaton.arc_tokens[middle.clamp(max=last)] < tokens) & (low < high)
        low, high = torch.where(right, middle + 1, low), torch.where(right, high, torch.minimum(middle, high))
    arc = low.clamp(max=last)
    return arc, (low < end) & (automaton.arc_tokens[arc] == tokens)


def advance(automaton: AutomatonTensors, states: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    every_token = torch.arange(vocab_size, device=states.device).expand(states.shape[0], vocab_size)
    return step(automaton, states[:, None].expand(-1, vocab_size), every_token, vocab_size)


def scores(automaton: AutomatonTensors, states: Tensor, vocab_size: int) -> Tensor:
    return advance(automaton, states, vocab_size)[0]


def walk(
    automaton: AutomatonTensors, states: Tensor, token_ids: Tensor, lengths: Tensor, vocab_size: int
) -> tuple[Tensor, Tensor]:
    """Read texts `[B, L]`, beginning in `states`. Return the score of each token, and the last state of each row."""
    all_scores = torch.zeros(token_ids.shape, dtype=torch.float32, device=states.device)
    states = states.to(torch.int32, copy=True)  # an operator must not return its argument
    for position in range(token_ids.shape[1]):
        token_scores, next_states = step(automaton, states, token_ids[:, position], vocab_size)
        inside = position < lengths
        all_scores[:, position] = torch.where(inside, token_scores, 0.0)
        states = torch.where(inside, next_states, states)
    return all_scores, states


def states_after(
    automaton: AutomatonTensors,
    starts: Tensor,
    roots: Tensor,
    token_ids: Tensor,
    lengths: Tensor,
    context_length: int,
    vocab_size: int,
) -> Tensor:
    # The definition reads all tokens; engines may start in `roots`, `context_length` tokens before the end.
    return walk(automaton, starts, token_ids, lengths, vocab_size)[1]
