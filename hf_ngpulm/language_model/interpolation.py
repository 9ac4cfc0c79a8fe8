"""Interpolate backoff models into one model. Each n-gram gets p(w | h) = sum over the models of weight * p(w | h)."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..automaton import BackoffAutomaton
from ..errors import TokenizerMismatchError
from ..ngrams.kneser_ney import LOG_ZERO
from ..ngrams.table import NGramOrder, NGramTable
from .pruning import Walk, renormalised

MAX_ITERATIONS = 1000


def mixture(models: Sequence[Any], weights: Sequence[float]) -> NGramTable:
    """Return the table of a mixture of `NGramLM`s. For the arguments see `NGramLM.interpolate`."""
    _check_models(models)
    if len(weights) != len(models) or not all(weight > 0 for weight in weights) or abs(sum(weights) - 1) > 1e-6:
        raise ValueError(
            f"weights should be one for each of the {len(models)} models, above 0, summing to 1; got {list(weights)}, "
            f"which sum to {sum(weights):g}"
        )
    tables = [model.to_table() for model in models]
    # `Module.to` would move the caller's model, too.
    on_cpu = [model if model.device.type == "cpu" else copy.deepcopy(model).to("cpu") for model in models]
    return interpolate(tables, [(model.automaton, model.unk_tokens) for model in on_cpu], weights)


def fitted_weights(models: Sequence[Any], texts: Iterable[Any] | None, tokenizer: Any = None) -> list[float]:
    """Return the interpolation weights that maximise the probability of texts (Jelinek and Mercer 1980). The weights are fitted
    by expectation maximisation. For the arguments see `NGramLM.interpolate`.
    """
    _check_models(models)
    if texts is None:
        raise ValueError("interpolation needs weights, or texts to fit them to")
    texts = list(texts)
    scores = [[score for values, *_ in model.scored(texts, tokenizer) for score in values] for model in models]
    if not scores[0]:
        raise ValueError("there is no text to fit the weights to")
    probabilities = torch.tensor(scores, dtype=torch.float64).exp().clamp(min=1e-300)
    weights = torch.full((len(models),), 1.0 / len(models), dtype=torch.float64)
    for _ in range(MAX_ITERATIONS):
        shares = weights[:, None] * probabilities
        renewed = (shares / shares.sum(0)).mean(1)
        change = float((renewed - weights).abs().max())
        weights = renewed
        if change < 1e-7:
            break
    return weights.tolist()


def _check_models(models: Sequence[Any]) -> None:
    if len(models) < 2:
        raise ValueError(f"interpolation takes two models or more, got {len(models)}")
    first = models[0]
    for other in models[1:]:
        prints = [model.config.tokenizer_fingerprint for model in (first, other)]
        if other.vocab_size != first.vocab_size:
            raise ValueError(f"the models are over {first.vocab_size} and {other.vocab_size} token ids; they must be the same")
        if None not in prints and prints[0] != prints[1]:
            raise TokenizerMismatchError(
                f"the models were made for different tokenizers: {first.config.tokenizer_id!r} and "
                f"{other.config.tokenizer_id!r} (fingerprints {str(prints[0])[:12]} and {str(prints[1])[:12]})"
            )


def interpolate(
    tables: Sequence[NGramTable], automata: Sequence[tuple[BackoffAutomaton, Tensor]], weights: Sequence[float]
) -> NGramTable:
    """Mix models linearly.

    The mixture has the n-grams of all models. The probability of an n-gram is the weighted sum of the models' probabilities. (A
    model without the n-gram backs off.) New backoff weights make every context sum to one (Stolcke 2002, section 2, "static"
    interpolation). If no model has an n-gram, the mixture backs off, so the probability differs from the weighted sum of the
    models' backed-off probabilities. If a model has no unigram for a token, but another model has one, the token gets a share
    of the first model's `<unk>`. The remaining share stays at `<unk>`, for tokens that no model knows.

    Args:
        tables: the n-grams of each model.
        automata: the automaton of each model, and the model's token ids without a unigram.
        weights: a weight per model; the weights sum to one.
    """
    tables = [_without_unknown_context(table) for table in tables]
    vocab_size = tables[0].vocab_size
    device = tables[0].orders[0].tokens.device
    walks = [Walk(automaton, unknown) for automaton, unknown in automata]
    rows_of: list[Tensor | None] = [None] * len(tables)  # for each model, the rows of its n-grams in the mixture
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
        orders.append(replace(order, log_probs=log_probs, backoffs=torch.zeros_like(log_probs)))
    return renormalised(NGramTable(vocab_size, tuple(orders)))


def _without_unknown_context(table: NGramTable) -> NGramTable:
    """Return the unigrams, and the longer n-grams without `<unk>`. `<unk>` represents different tokens in each model."""
    kept: list[Tensor] = []
    for order in table.orders:
        known = order.tokens != table.unk
        kept.append(known & kept[-1][order.prefixes] if kept else known)
    return table.keep([torch.ones_like(kept[0]), *kept[1:]])


def _keys(table: NGramTable, n: int, rows_below: Tensor | None, num_ids: int) -> Tensor:
    """Return the keys of a model's n-grams of order `n`. A key is `prefix * num_ids + token`, where `prefix` is the row of the
    prefix in the mixture. `rows_below`: the mixture's rows for the model's (n-1)-grams; None for unigrams.
    """
    if n > table.order:
        return torch.zeros(0, dtype=torch.int64, device=table.orders[0].tokens.device)
    order = table.orders[n - 1]
    return (order.prefixes if rows_below is None else rows_below[order.prefixes]) * num_ids + order.tokens


def _unknown_mass(
    tables: Sequence[NGramTable], automata: Sequence[tuple[BackoffAutomaton, Tensor]], weights: Sequence[float]
) -> float:
    """Return the probability of `<unk>` in the mixture. From each model, take the part of its `<unk>` probability that is for
    tokens that no model knows. The result is the sum of these parts, each multiplied by the model's weight.
    """
    missing = [set(unknown.tolist()) for _, unknown in automata]
    nowhere = len(set.intersection(*missing))
    mass = 0.0
    for table, unknown, weight in zip(tables, missing, weights):
        is_unk = table.orders[0].tokens == table.unk
        if bool(is_unk.any()):
            part = nowhere / len(unknown) if unknown else float(nowhere == 0)
            mass += weight * part * math.exp(float(table.orders[0].log_probs[is_unk][0]))
    return mass
