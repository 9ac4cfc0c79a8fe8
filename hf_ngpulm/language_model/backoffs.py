"""Walking the n-grams of a table through an automaton, and making the contexts of a table sum to one."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..automaton import BackoffAutomaton, automaton_from_table
from ..ngrams.table import NGramOrder, NGramTable

# Probabilities are stored in single precision: a sum of many is this far from what it should be.
ROUNDING = 1e-6


class Walk:
    """An automaton that reads all n-grams of a table, order by order from 1 up.

    Args:
        automaton: a language model.
        unk_tokens: the token ids that it has no unigram for. The first of them is read for `<unk>`.
    """

    def __init__(self, automaton: BackoffAutomaton, unk_tokens: Tensor) -> None:
        self.automaton = automaton
        self.unknown = int(unk_tokens[0]) if unk_tokens.numel() else -1

    def step(self, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of tokens as tables have them, and the states after them. `<s>` leads to the start at no
        cost."""
        vocab_size = self.automaton.vocab_size
        tokens = tokens.to(torch.int64)
        ids = torch.where(tokens < vocab_size, tokens, torch.where(tokens == vocab_size + 1, vocab_size, self.unknown))
        scores, behind = torch.ops.hf_ngpulm.step(
            list(self.automaton.tensors), states, ids.clamp(min=0).to(torch.int32), vocab_size + 1, self.automaton.engine
        )
        is_start = tokens == vocab_size
        return torch.where(is_start, 0.0, scores), torch.where(is_start, self.automaton.starts[0], behind)

    def states_of(self, order: NGramOrder, below: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the states after the n-grams of one order and their log-probabilities, given the states of the order
        below."""
        roots = self.automaton.roots[:1].expand(len(order))
        return self.step(roots if below is None else below[order.prefixes], order.tokens)[::-1]


def renormalised(table: NGramTable) -> NGramTable:
    """Return the same probabilities, with the backoff weights that make every context sum to one.

    From short contexts to long ones: what a context's own n-grams leave over, over what the shorter context leaves over for
    the same tokens (Katz 1987).
    """
    has_children = [_has_children(order, above) for order, above in zip(table.orders, (*table.orders[1:], None))]
    orders = [replace(order, backoffs=torch.where(children, -1.0, 0.0)) for order, children in zip(table.orders, has_children)]
    # Contexts with n-grams are states whatever their weight, so the weights can be filled in while the states stay.
    automaton, parts = automaton_from_table(NGramTable(table.vocab_size, tuple(orders)))
    walk, weights = Walk(automaton, parts["unk_tokens"]), automaton.tensors.backoff_weights
    states: Tensor | None = None
    for n in range(1, table.order):
        states, _ = walk.states_of(orders[n - 1], states)
        above = orders[n]
        shorter = automaton.tensors.backoff_states[states.to(torch.int64)]
        lower, _ = walk.step(shorter[above.prefixes], above.tokens)
        left = _left_over(above.prefixes, above.log_probs, len(states))
        left_below = _left_over(above.prefixes, lower, len(states))
        backoffs = torch.where(left_below > ROUNDING, left.clamp(min=ROUNDING * 1e-3) / left_below, 1.0).log().to(torch.float32)
        backoffs = torch.where(has_children[n - 1], backoffs, 0.0)
        weights[states[has_children[n - 1]].to(torch.int64)] = backoffs[has_children[n - 1]]
        orders[n - 1] = replace(orders[n - 1], backoffs=backoffs)
    return NGramTable(table.vocab_size, tuple(orders))


def _has_children(order: NGramOrder, above: NGramOrder | None) -> Tensor:
    found = torch.zeros(len(order), dtype=torch.bool, device=order.tokens.device)
    if above is not None:
        found[above.prefixes] = True
    return found


def _left_over(contexts: Tensor, log_probs: Tensor, num_contexts: int) -> Tensor:
    """Return what the n-grams of each context leave over of its probability, float64 `[num_contexts]`."""
    total = torch.zeros(num_contexts, dtype=torch.float64, device=contexts.device)
    return 1.0 - total.index_add_(0, contexts, log_probs.to(torch.float64).exp())
