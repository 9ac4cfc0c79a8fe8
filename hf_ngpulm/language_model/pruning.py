"""Pruning of a finished model by relative entropy (Stolcke 1998, "Entropy-based pruning of backoff language models")."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..automaton import automaton_from_table
from ..ngrams.table import NGramTable
from .backoffs import ROUNDING, Walk, renormalised


def prune_table(table: NGramTable, max_ngrams: int | None = None, threshold: float | None = None) -> NGramTable:
    """Drop the n-grams whose loss changes the model least, and make the rest sum to one again.

    An n-gram is judged by how much the perplexity of the model's own text grows if it alone is dropped (section 3.2). One
    that longer n-grams begin with stays as long as one of them.

    Args:
        table: a model whose contexts sum to one, without n-grams that no text can meet.
        max_ngrams: keep the most telling n-grams, so many of all orders together. Unigrams stay.
        threshold: drop those whose loss makes the perplexity grow by less than this part of it (SRILM's `-prune`).

    Raises:
        ValueError: neither or both are given, a target below the number of unigrams, or a threshold below 0.
    """
    if (max_ngrams is None) == (threshold is None):
        raise ValueError("name either max_ngrams (how many to keep) or threshold (of the growth of the perplexity)")
    num_unigrams = len(table.orders[0])
    if max_ngrams is not None and max_ngrams < num_unigrams:
        raise ValueError(f"max_ngrams={max_ngrams} is below the {num_unigrams} unigrams, which can't be dropped")
    if threshold is not None and not threshold >= 0:
        raise ValueError(f"threshold should be 0 or more, got {threshold}")
    if max_ngrams is not None and sum(table.num_ngrams) <= max_ngrams:
        return table
    worth = relative_entropies(table)
    for n in range(len(worth) - 1, 0, -1):  # of each, the most of those that begin with it
        worth[n - 1].scatter_reduce_(0, table.orders[n + 1].prefixes, worth[n], "amax")
    if threshold is not None:
        kept = [values >= math.log1p(threshold) for values in worth]
    else:
        assert max_ngrams is not None
        # The stable order keeps a prefix in front of its extensions where both are worth the same.
        best = torch.sort(torch.cat(worth), descending=True, stable=True)[1][: max_ngrams - num_unigrams]
        chosen = torch.zeros(sum(table.num_ngrams) - num_unigrams, dtype=torch.bool, device=best.device)
        chosen[best] = True
        kept = list(torch.split(chosen, [len(values) for values in worth]))
    unigrams = torch.ones(num_unigrams, dtype=torch.bool, device=table.orders[0].tokens.device)
    return renormalised(table.keep([unigrams, *kept]))


def relative_entropies(table: NGramTable) -> list[Tensor]:
    """Return D(p || p') for each n-gram of orders 2 and up, where p' is the model without that n-gram (equations 3 to 6).

    Returns:
        float64 `[N]` for each order.
    """
    automaton, parts = automaton_from_table(table)
    walk = Walk(automaton, parts["unk_tokens"])
    states: Tensor | None = None
    history: Tensor | None = None  # log p of each n-gram as a context
    found = []
    for below, order in zip(table.orders, table.orders[1:]):
        states, _ = walk.states_of(below, states)
        log_probs = below.log_probs.to(torch.float64)
        if history is None:  # <s> is as frequent as </s>
            is_end = below.tokens == table.eos
            end = log_probs[is_end][0] if bool(is_end.any()) else log_probs.new_tensor(-math.inf)
            history = torch.where(below.tokens == table.bos, end, log_probs)
        else:
            history = history[below.prefixes] + log_probs
        contexts = order.prefixes
        own = order.log_probs.to(torch.float64)
        shorter = automaton.tensors.backoff_states[states.to(torch.int64)]
        lower = walk.step(shorter[contexts], order.tokens)[0].to(torch.float64)

        def total(values: Tensor, contexts: Tensor = contexts, size: int = len(below)) -> Tensor:
            return torch.zeros(size, dtype=torch.float64, device=values.device).index_add_(0, contexts, values)

        left = (1.0 - total(own.exp())).clamp(min=ROUNDING)[contexts]
        left_below = (1.0 - total(lower.exp())).clamp(min=ROUNDING)[contexts]
        weight = left.log() - left_below.log()
        without = (left + own.exp()).log() - (left_below + lower.exp()).log()  # equation 6
        loss = own.exp() * (own - lower - without) + left * (weight - without)
        found.append(history[contexts].exp() * loss)
    return found
