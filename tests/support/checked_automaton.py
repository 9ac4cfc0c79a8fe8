"""An engine of plain Python for automata, as the native core does it, on arrays that check every index."""

from __future__ import annotations

import numpy as np
import torch


class CheckedArray(np.ndarray):
    """Refuses negative indices too, which numpy would count from the end."""

    def __getitem__(self, index):
        assert index >= 0, f"index {index}"
        return super().__getitem__(index)


class Checked:
    """One automaton's queries, a state and a token at a time."""

    def __init__(self, tensors):
        arrays = (tensor.numpy().view(CheckedArray) for tensor in tensors)
        self.offsets, self.tokens, self.weights, self.targets, self.backoff_states, self.backoff_weights = arrays

    def arc_of(self, state, token, vocab_size):
        low, high = self.offsets[state], self.offsets[state + 1]
        is_root = self.backoff_states[state] == state
        if is_root and high - low >= vocab_size and self.tokens[low + vocab_size - 1] == vocab_size - 1:
            return low + token
        while low < high:
            middle = (low + high) >> 1
            if self.tokens[middle] < token:
                low = middle + 1
            else:
                high = middle
        return low if low < self.offsets[state + 1] and self.tokens[low] == token else -1

    def step(self, state, token, vocab_size):
        score = np.float32(0.0)
        if not 0 <= token < vocab_size:
            return score, state
        while True:
            arc = self.arc_of(state, token, vocab_size)
            if arc >= 0:
                return score + self.weights[arc], self.targets[arc]
            score += self.backoff_weights[state]
            if self.backoff_states[state] == state:
                return score, state
            state = self.backoff_states[state]

    def walk(self, state, tokens, vocab_size):
        scores = []
        for token in tokens:
            score, state = self.step(state, token, vocab_size)
            scores.append(score)
        return scores, state


def advance(tensors, states, vocab_size):
    checked = Checked(tensors)
    found = [[checked.step(state, token, vocab_size) for token in range(vocab_size)] for state in states.tolist()]
    shape = (len(states), vocab_size, 2)
    scores, targets = torch.tensor(found, dtype=torch.float64).reshape(shape).unbind(2)
    return scores.float(), targets.to(torch.int32)


def walk(tensors, states, token_ids, lengths, vocab_size):
    checked = Checked(tensors)
    scores, last = torch.zeros(token_ids.shape), torch.empty_like(states)
    for row, (state, tokens, length) in enumerate(zip(states.tolist(), token_ids.tolist(), lengths.tolist())):
        found, last[row] = checked.walk(state, tokens[:length], vocab_size)
        scores[row, :length] = torch.tensor(found)
    return scores, last


def states_after(tensors, starts, roots, token_ids, lengths, context_length, vocab_size):
    checked = Checked(tensors)
    last = torch.empty_like(starts)
    for row, (tokens, length) in enumerate(zip(token_ids.tolist(), lengths.tolist())):
        begin, seen = length, 0
        while begin > 0 and seen < context_length:
            begin -= 1
            seen += 0 <= tokens[begin] < vocab_size
        first = roots[row] if seen == context_length else starts[row]
        _, last[row] = checked.walk(int(first), tokens[begin:length], vocab_size)
    return last
