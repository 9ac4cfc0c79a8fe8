"""Prune a finished model by relative entropy (Stolcke 1998, "Entropy-based pruning of backoff language models")."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from ..automaton import BackoffAutomaton, automaton_from_table
from ..ngrams.table import NGramOrder, NGramTable

# Probabilities are stored in single precision, so sums of many probabilities may be wrong by this much.
ROUNDING = 1e-6


def prune_table(table: NGramTable, max_ngrams: int | None = None, threshold: float | None = None) -> NGramTable:
    """Drop the n-grams whose removal changes the model least, and return the table. Every context again sums to one.

    The criterion for an n-gram is the growth of the model's own perplexity if only this n-gram is dropped (section 3.2). A
    kept n-gram also keeps its prefixes.

    Args:
        table: a model without unreachable n-grams. The probabilities after each context sum to one.
        max_ngrams: number of n-grams of all orders to keep. Unigrams are always kept.
        threshold: an n-gram is dropped if its removal raises the perplexity by less than this fraction (SRILM's `-prune`).

    Raises:
        ValueError: neither or both limits are passed, `max_ngrams` is below the number of unigrams, or `threshold` is below 0.
    """
    if (max_ngrams is None) == (threshold is None):
        raise ValueError("pass either max_ngrams (number to keep) or threshold (relative growth of the perplexity)")
    num_unigrams = len(table.orders[0])
    if max_ngrams is not None and max_ngrams < num_unigrams:
        raise ValueError(f"max_ngrams={max_ngrams} is below the {num_unigrams} unigrams, which can't be dropped")
    if threshold is not None and not threshold >= 0:
        raise ValueError(f"threshold should be 0 or more, got {threshold}")
    if max_ngrams is not None and sum(table.num_ngrams) <= max_ngrams:
        return table
    worth = relative_entropies(table)
    for n in range(len(worth) - 1, 0, -1):  # each n-gram is worth at least as much as its extensions
        worth[n - 1].scatter_reduce_(0, table.orders[n + 1].prefixes, worth[n], "amax")
    if threshold is not None:
        kept = [values >= math.log1p(threshold) for values in worth]
    else:
        assert max_ngrams is not None
        # A stable sort puts a prefix before its extensions if both are worth the same.
        best = torch.sort(torch.cat(worth), descending=True, stable=True)[1][: max_ngrams - num_unigrams]
        chosen = torch.zeros(sum(table.num_ngrams) - num_unigrams, dtype=torch.bool, device=best.device)
        chosen[best] = True
        kept = list(torch.split(chosen, [len(values) for values in worth]))
    unigrams = torch.ones(num_unigrams, dtype=torch.bool, device=table.orders[0].tokens.device)
    return renormalised(table.keep([unigrams, *kept]))


def relative_entropies(table: NGramTable) -> list[Tensor]:
    """Return D(p || p') for each n-gram of order 2 or higher, where p' is the model without this n-gram (equations 3 to 6). The
    result has a tensor float64 `[N]` for each order.
    """
    automaton, parts = automaton_from_table(table)
    history: Tensor | None = None  # log p of each n-gram as a context
    found = []
    for below, order, _, shorter in Walk(automaton, parts["unk_tokens"]).contexts(table):
        log_probs = below.log_probs.to(torch.float64)
        if history is None:  # <s> is as frequent as </s>
            is_end = below.tokens == table.eos
            end = log_probs[is_end][0] if bool(is_end.any()) else log_probs.new_tensor(-math.inf)
            history = torch.where(below.tokens == table.bos, end, log_probs)
        else:
            history = history[below.prefixes] + log_probs
        contexts, own, lower = order.prefixes, order.log_probs.to(torch.float64), shorter.to(torch.float64)
        left, left_below = (_left_over(contexts, values, len(below)).clamp(min=ROUNDING)[contexts] for values in (own, lower))
        weight = left.log() - left_below.log()
        without = (left + own.exp()).log() - (left_below + lower.exp()).log()  # equation 6
        loss = own.exp() * (own - lower - without) + left * (weight - without)
        found.append(history[contexts].exp() * loss)
    return found


class Walk:
    """Read all n-grams of a table with an automaton. Unigrams are read first, then the longer orders one by one.

    `automaton`: a language model. `unk_tokens`: the token ids without a unigram. The first of these ids is read for `<unk>`.
    """

    def __init__(self, automaton: BackoffAutomaton, unk_tokens: Tensor) -> None:
        self.automaton = automaton
        self.unknown = int(unk_tokens[0]) if unk_tokens.numel() else -1

    def step(self, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of tokens, and the states after the tokens.

        `<s>` scores 0 and leads to the start state. `tokens`: token ids of a table. In a table, V is `<s>`, and V + 1 is
        `</s>`.
        """
        vocab_size = self.automaton.vocab_size
        tokens = tokens.to(torch.int64)
        ids = torch.where(tokens < vocab_size, tokens, torch.where(tokens == vocab_size + 1, vocab_size, self.unknown))
        scores, after = torch.ops.hf_ngpulm.step(
            list(self.automaton.tensors), states, ids.clamp(min=0).to(torch.int32), vocab_size + 1, self.automaton.engine
        )
        is_start = tokens == vocab_size
        return torch.where(is_start, 0.0, scores), torch.where(is_start, self.automaton.starts[0], after)

    def states_of(self, order: NGramOrder, below: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the states after the n-grams of one order, and the log-probabilities of the n-grams' last tokens. `below`: the
        states after the n-grams of the order below; None for unigrams.
        """
        roots = self.automaton.roots[:1].expand(len(order))
        return self.step(roots if below is None else below[order.prefixes], order.tokens)[::-1]

    def contexts(self, table: NGramTable) -> Iterator[tuple[NGramOrder, NGramOrder, Tensor, Tensor]]:
        """Yield a tuple for each order: the contexts, the n-grams that are one token longer, the contexts' states, and the
        n-grams' lower scores. A lower score is the last token's score in the state to which the context backs off.
        """
        states: Tensor | None = None
        for order, above in pairwise(table.orders):
            states, _ = self.states_of(order, states)
            shorter = self.automaton.tensors.backoff_states[states.to(torch.int64)]
            yield order, above, states, self.step(shorter[above.prefixes], above.tokens)[0]


def renormalised(table: NGramTable) -> NGramTable:
    """Return the table with new backoff weights, so that every context sums to one.

    The weights are computed first for short contexts, then for longer contexts. A weight is a quotient (Katz 1987). The
    numerator is 1 minus the probability of the context's n-grams. The denominator is 1 minus the probability of the n-grams'
    last tokens in the shorter context.
    """
    has_children = []
    for order, above in zip(table.orders, (*table.orders[1:], None)):
        has_children.append(torch.zeros(len(order), dtype=torch.bool, device=order.tokens.device))
        if above is not None:
            has_children[-1][above.prefixes] = True
    orders = [replace(order, backoffs=torch.where(children, -1.0, 0.0)) for order, children in zip(table.orders, has_children)]
    # A context with n-grams is a state whatever its weight, so writing weights doesn't change the states.
    automaton, parts = automaton_from_table(NGramTable(table.vocab_size, tuple(orders)))
    weights = automaton.tensors.backoff_weights
    for n, (order, above, states, lower) in enumerate(Walk(automaton, parts["unk_tokens"]).contexts(table)):
        left = _left_over(above.prefixes, above.log_probs, len(order))
        left_below = _left_over(above.prefixes, lower, len(order))
        backoffs = torch.where(left_below > ROUNDING, left.clamp(min=ROUNDING * 1e-3) / left_below, 1.0).log().to(torch.float32)
        orders[n] = replace(order, backoffs=torch.where(has_children[n], backoffs, 0.0))
        weights[states[has_children[n]].to(torch.int64)] = backoffs[has_children[n]]
    return NGramTable(table.vocab_size, tuple(orders))


def _left_over(contexts: Tensor, log_probs: Tensor, num_contexts: int) -> Tensor:
    """Return 1 minus the probability of each context's n-grams, float64 `[num_contexts]`. `contexts`: the number of each
    n-gram's context.
    """
    total = torch.zeros(num_contexts, dtype=torch.float64, device=contexts.device)
    return 1.0 - total.index_add_(0, contexts, log_probs.to(torch.float64).exp())
