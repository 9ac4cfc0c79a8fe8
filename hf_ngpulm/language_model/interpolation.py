"""Several models in one backoff model, whose n-grams have p(w | h) = sum of weight * p(w | h) over them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..automaton import BackoffAutomaton
from ..ngrams.kneser_ney import LOG_ZERO
from ..ngrams.table import NGramOrder, NGramTable
from .backoffs import Walk, keep, renormalised

MAX_ITERATIONS = 1000


def interpolate(
    tables: Sequence[NGramTable], automata: Sequence[tuple[BackoffAutomaton, Tensor]], weights: Sequence[float]
) -> NGramTable:
    """Mix models linearly.

    The n-grams are those of all models. Each model says its probability of each of them, by backing off where it lacks it;
    the backoff weights then make every context sum to one (Stolcke 2002, section 2, "static" interpolation). What no model has
    as an n-gram is backed off to in the mixture, which isn't the sum of what the models give it by backing off. A token that
    one model has a unigram for has, in the others, its part of their `<unk>`; `<unk>` keeps what is left for tokens that
    none of them knows.

    Args:
        tables: the n-grams of each.
        automata: each model's automaton and the token ids that it has no unigram for.
        weights: of each, summing to one.
    """
    tables = [_without_unknown_context(table) for table in tables]
    vocab_size = tables[0].vocab_size
    device = tables[0].orders[0].tokens.device
    walks = [Walk(automaton, unknown) for automaton, unknown in automata]
    rows_of: list[Tensor | None] = [None] * len(tables)  # row in the mixture of each model's n-grams
    states: list[Tensor | None] = [None] * len(tables)
    orders: list[NGramOrder] = []
    num_ids = tables[0].num_ids
    for n in range(1, max(table.order for table in tables) + 1):
        keys = [_keys(table, n, rows, num_ids) for table, rows in zip(tables, rows_of)]
        union, where = torch.unique(torch.cat(keys), return_inverse=True)
        rows_of = list(torch.split(where, [len(key) for key in keys]))
        order = NGramOrder(union // num_ids, (union % num_ids).to(torch.int32), torch.empty(0), torch.empty(0))
        mixed = torch.zeros(len(union), dtype=torch.float64, device=device)
        for i, walk in enumerate(walks):
            states[i], scores = walk.states_of(order, states[i])
            mixed += weights[i] * scores.to(torch.float64).exp()
        if n == 1:
            mixed[order.tokens == vocab_size + 2] = _unknown_mass(tables, automata, weights)
        log_probs = mixed.log().clamp(min=LOG_ZERO, max=0.0).to(torch.float32)
        orders.append(NGramOrder(order.prefixes, order.tokens, log_probs, torch.zeros_like(log_probs)))
    return renormalised(NGramTable(vocab_size, tuple(orders)))


def _without_unknown_context(table: NGramTable) -> NGramTable:
    """Return the n-grams that have no `<unk>`, and its unigram: it stands for other tokens in each model."""
    kept: list[Tensor] = []
    for n, order in enumerate(table.orders, start=1):
        if n == 1:
            kept.append(torch.ones(len(order), dtype=torch.bool, device=order.tokens.device))
        else:
            known = table.orders[0].tokens != table.unk if n == 2 else kept[-1]
            kept.append((order.tokens != table.unk) & known[order.prefixes])
    return table if all(bool(mask.all()) for mask in kept) else keep(table, kept)


def _keys(table: NGramTable, n: int, rows_below: Tensor | None, num_ids: int) -> Tensor:
    """Return `prefix * num_ids + token` of a model's n-grams, prefixes as rows of the mixture."""
    if n > table.order:
        return torch.zeros(0, dtype=torch.int64, device=table.orders[0].tokens.device)
    order = table.orders[n - 1]
    return (order.prefixes if rows_below is None else rows_below[order.prefixes]) * num_ids + order.tokens


def _unknown_mass(
    tables: Sequence[NGramTable], automata: Sequence[tuple[BackoffAutomaton, Tensor]], weights: Sequence[float]
) -> float:
    """Return what is left of each model's `<unk>` for the tokens that none of them knows."""
    missing = [set(unknown.tolist()) for _, unknown in automata]
    nowhere = len(set.intersection(*missing))
    mass = 0.0
    for table, unknown, weight in zip(tables, missing, weights):
        is_unk = table.orders[0].tokens == table.unk
        if bool(is_unk.any()):
            part = nowhere / len(unknown) if unknown else float(nowhere == 0)
            mass += weight * part * math.exp(float(table.orders[0].log_probs[is_unk][0]))
    return mass


def fit_weights(token_log_probs: Tensor) -> list[float]:
    """Return the weights with which models together predict a text best, by expectation maximisation (Jelinek and Mercer 1980).

    Args:
        token_log_probs: `[models, tokens]`, each model's log-probability of each token of the text.
    """
    probabilities = token_log_probs.to(torch.float64).exp().clamp(min=1e-300)
    weights = torch.full((len(probabilities),), 1.0 / len(probabilities), dtype=torch.float64, device=probabilities.device)
    for _ in range(MAX_ITERATIONS):
        shares = weights[:, None] * probabilities
        renewed = (shares / shares.sum(0)).mean(1)
        change = float((renewed - weights).abs().max())
        weights = renewed
        if change < 1e-7:
            break
    return weights.tolist()
