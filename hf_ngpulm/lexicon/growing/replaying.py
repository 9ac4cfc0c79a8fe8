"""Which states a search has entered, found by going its ways once more: compiled loops.

They go on until they come to states that are unfinished, which they write down, and are called again when these are composed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...automaton.cpu import borrowed_automaton, compiled, step_one


class Texts(NamedTuple):
    """Texts that are read, see `BackoffAutomaton.states_after`.

    Args:
        context_length: tokens of a context.
        vocab_size: of those that count.
        starts, roots: int32 `[B]`, where each begins, and where it does if that lies too far back; below 0 for none.
        tokens: int32 `[B, L]`.
        lengths: int32 `[B]`.
    """

    context_length: int
    vocab_size: int
    starts: np.ndarray
    roots: np.ndarray
    tokens: np.ndarray
    lengths: np.ndarray

    def beginnings(self) -> tuple[np.ndarray, np.ndarray]:
        """The states int32 `[B]` and the places int64 `[B]` from which the texts are read."""
        counted = (self.tokens >= 0) & (self.tokens < self.vocab_size)
        counted &= np.arange(self.tokens.shape[1]) < self.lengths[:, None]
        # From a place on so many tokens count; the last place from which that are enough.
        rest = np.cumsum(counted[:, ::-1], axis=1)[:, ::-1]
        places = (rest >= self.context_length).sum(axis=1) - 1
        is_far = (places >= 0) & (self.starts >= 0)
        return np.where(is_far, self.roots, self.starts).astype(np.int32), np.maximum(places, 0)


@compiled
def follow(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights, unfinished, vocab_size, now, steps,
    links, labels, not_tokens, wanted,
):  # fmt: skip
    """Write the unfinished states that a search's hypotheses enter next, see `GrowingAutomaton.replay`; how many.

    `now` are the states before step `steps` of each row (before -1 nothing has been looked at).
    """
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights = borrowed_automaton(
        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights
    )
    num_beams = now.shape[1]
    then = np.empty(num_beams, dtype=np.int32)
    count = 0
    for row in range(now.shape[0]):
        before = count
        for step in range(steps[row], labels.shape[1]):
            for k in range(num_beams):
                if step < 0:
                    then[k] = now[row, k]
                    if then[k] >= 0 and unfinished[then[k]]:
                        wanted[count] = then[k]
                        count += 1
                    continue
                then[k] = now[row, links[row, step, k]]
                label = labels[row, step, k]
                if label < 0 or label == not_tokens or then[k] < 0:
                    continue
                _, then[k] = step_one(
                    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                    then[k], label, vocab_size,
                )  # fmt: skip
                if unfinished[then[k]]:
                    wanted[count] = then[k]
                    count += 1
            now[row], steps[row] = then, step + 1
            if count > before:
                break
    return count


@compiled
def follow_texts(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights, unfinished, vocab_size, now, positions,
    texts, lengths, wanted,
):  # fmt: skip
    """The same for texts, of which so many tokens have been read."""
    count = 0
    for row in range(now.size):
        if now[row] < 0:
            continue
        while not unfinished[now[row]] and positions[row] < lengths[row]:
            _, now[row] = step_one(
                arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                now[row], texts[row, positions[row]], vocab_size,
            )  # fmt: skip
            positions[row] += 1
        if unfinished[now[row]]:
            wanted[count] = now[row]
            count += 1
    return count
