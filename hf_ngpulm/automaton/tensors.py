"""The tensors of an automaton."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class AutomatonTensors(NamedTuple):
    """A weighted automaton with backoff arcs, in compressed sparse rows. `S` states, `A` arcs.

    A token's score in a state is the weight of the state's own arc for it, or else the state's backoff weight plus the score
    in its backoff state. A root backs off to itself: a token without an arc scores the root's backoff weight and leads
    back to the root.

    `</s>` is the token after the vocabulary: an arc with token `V` holds log p(</s> | state) and leads to where the next
    sentence begins. Most contexts never end a sentence, so this takes less room than a final weight per state.
    """

    arc_offsets: Tensor  # int32 [S + 1]: the arcs of state s are arc_offsets[s] .. arc_offsets[s + 1] - 1
    arc_tokens: Tensor  # [A], ascending within a state; int16 where the vocabulary allows it, else int32
    arc_weights: Tensor  # float32 [A], natural log
    arc_targets: Tensor  # int32 [A]
    backoff_states: Tensor  # int32 [S], smaller than the state itself unless it is a root
    backoff_weights: Tensor  # float32 [S], natural log

    @classmethod
    def zeros(cls, num_states: int, num_arcs: int, vocab_size: int, device: torch.device | str) -> AutomatonTensors:
        """Return room for an automaton."""
        sizes = (num_states + 1, num_arcs, num_arcs, num_arcs, num_states, num_states)
        dtypes = (torch.int32, token_dtype(vocab_size), torch.float32, torch.int32, torch.int32, torch.float32)
        return cls(*(torch.zeros(size, dtype=dtype, device=device) for size, dtype in zip(sizes, dtypes)))

    @property
    def num_states(self) -> int:
        return self.backoff_states.numel()

    @property
    def num_arcs(self) -> int:
        return self.arc_tokens.numel()


def token_dtype(vocab_size: int) -> torch.dtype:
    """Return what `arc_tokens` are stored as; `</s>` has to fit too."""
    return torch.int16 if vocab_size < 2**15 else torch.int32
