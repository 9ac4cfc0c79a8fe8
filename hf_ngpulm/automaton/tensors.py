"""Define the tensors of an automaton."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class AutomatonTensors(NamedTuple):
    """A weighted automaton with backoff arcs in compressed sparse rows, with `S` states and `A` arcs.

    If a state has an arc for a token, the token's score is the weight of that arc. Otherwise the score is the state's backoff
    weight plus the token's score in the backoff state. A root backs off to itself: a token without an arc scores the root's
    backoff weight and leads back to the root.

    `</s>` is the token after the vocabulary, with the id `V`. An arc with this token holds log p(</s> | state) and leads to the
    start of the next sentence. Most contexts never end a sentence, so such arcs take less memory than a final weight per state.
    """

    arc_offsets: Tensor  # int32 [S + 1]: the arcs of state s are arc_offsets[s] .. arc_offsets[s + 1] - 1
    arc_tokens: Tensor  # [A], ascending within a state; int16 where the vocabulary allows it, else int32
    arc_weights: Tensor  # float32 [A], natural log
    arc_targets: Tensor  # int32 [A]
    backoff_states: Tensor  # int32 [S], smaller than the state itself unless it is a root
    backoff_weights: Tensor  # float32 [S], natural log

    @classmethod
    def zeros(
        cls,
        num_states: int,
        num_arcs: int,
        vocab_size: int,
        device: torch.device | str,
        zeros: Callable[[int, torch.dtype], Tensor] | None = None,
    ) -> AutomatonTensors:
        """Return tensors of zeros for an automaton of the given size. `zeros`: a function that makes each tensor."""
        sizes = (num_states + 1, num_arcs, num_arcs, num_arcs, num_states, num_states)
        dtypes = (torch.int32, token_dtype(vocab_size), torch.float32, torch.int32, torch.int32, torch.float32)
        make = zeros or (lambda size, dtype: torch.zeros(size, dtype=dtype, device=device))
        return cls(*map(make, sizes, dtypes))

    @property
    def num_states(self) -> int:
        return self.backoff_states.numel()

    @property
    def num_arcs(self) -> int:
        return self.arc_tokens.numel()


def token_dtype(vocab_size: int) -> torch.dtype:
    """Return the dtype of `arc_tokens` for a vocabulary. The id of `</s>` must also fit into this dtype."""
    return torch.int16 if vocab_size < 2**15 else torch.int32
