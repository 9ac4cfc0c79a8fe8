"""Change a language model of single sentences so that it can continue into the next sentence.

A language model of single sentences expects only `</s>` after a sentence. So it gives low probability to the first words of the
next sentence. In the changed model, a context that often ends a sentence backs off to the start of the next sentence. This
backoff reads `</s>` and `<s>` in one step of the automaton. If the context has no arc for a token, the token then scores p(</s>
| context) * share * p(token | <s>). If the new backoff has a larger weight than the backoff to the shorter context, the context
uses the new backoff. The end of the transcript keeps the remaining probability, 1 - share.

The result is an automaton with backoff arcs, as large and as fast as before.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .automaton import BackoffAutomaton
from .tensors import AutomatonTensors


def check_share(share: float, name: str = "share") -> None:
    """Raise ValueError if the share isn't between 0.000001 and 0.999999, the range that a config allows."""
    if not 1e-6 <= share <= 1 - 1e-6:
        raise ValueError(f"{name} should be between 0 and 1, got {share!r}; 0.000001 to 0.999999 will do")


def continued(automaton: BackoffAutomaton, share: float, context_length: int) -> BackoffAutomaton:
    """Return an automaton in which another sentence may follow after the end of a sentence.

    Args:
        automaton: the automaton of a single language model.
        share: probability that another sentence follows after the end of a sentence, between 0 and 1.
        context_length: number of tokens that determine a state. This number may have to exceed the longest context, because the
            last sentence may have begun earlier.
    """
    t = _with_start_first(automaton)
    start = min(int(automaton.starts[0]), 1)
    is_end = t.arc_tokens == automaton.vocab_size
    state_of_arc = torch.repeat_interleave(torch.arange(t.num_states, device=automaton.device), t.arc_offsets.diff().long())
    begins = torch.full_like(t.backoff_weights, -math.inf)
    begins[state_of_arc[is_end]] = t.arc_weights[is_end] + math.log(share)
    likelier = begins > t.backoff_weights
    likelier[: start + 1] = False  # the root has no shorter context, and no sentence ends before its first word
    weights = t.arc_weights.clone()
    weights[is_end] += math.log1p(-share)
    return BackoffAutomaton(
        t._replace(
            arc_weights=weights,
            backoff_states=torch.where(likelier, start, t.backoff_states).to(torch.int32),
            backoff_weights=torch.where(likelier, begins, t.backoff_weights),
        ),
        automaton.vocab_size,
        context_length,
        automaton.roots,
        torch.full_like(automaton.starts, start),
        automaton.engine,
    )


def _with_start_first(automaton: BackoffAutomaton) -> AutomatonTensors:
    """Move the start to the place after the root, and return the new tensors. The start must come early because a state may
    back off only to states with a smaller number.
    """
    t, start = automaton.tensors, int(automaton.starts[0])
    if start <= 1:
        return t

    def renumbered(states: Tensor) -> Tensor:
        moved = states + ((states >= 1) & (states < start)).to(states.dtype)
        return torch.where(states == start, 1, moved).to(torch.int32)

    def reordered(values: Tensor, first: int, begin: int, end: int) -> Tensor:
        """Move the elements `begin .. end - 1` to the position `first`."""
        return torch.cat([values[:first], values[begin:end], values[first:begin], values[end:]])

    arcs = [int(t.arc_offsets[state]) for state in (1, start, start + 1)]
    sizes = reordered(t.arc_offsets.diff(), 1, start, start + 1)
    return AutomatonTensors(
        arc_offsets=torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]).to(torch.int32),
        arc_tokens=reordered(t.arc_tokens, *arcs),
        arc_weights=reordered(t.arc_weights, *arcs),
        arc_targets=renumbered(reordered(t.arc_targets, *arcs)),
        backoff_states=renumbered(reordered(t.backoff_states, 1, start, start + 1)),
        backoff_weights=reordered(t.backoff_weights, 1, start, start + 1),
    )
