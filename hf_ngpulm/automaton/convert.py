"""NGramTable <-> BackoffAutomaton, on tensors: no Python loop per n-gram."""

from __future__ import annotations

import logging
import math

import torch
from torch import Tensor

from ..errors import NGramFormatError
from ..ngrams.table import NUM_SPECIAL, NGramOrder, NGramTable
from .automaton import BackoffAutomaton
from .tensors import AutomatonTensors, token_dtype

logger = logging.getLogger(__name__)

# What KenLM gives a model that lacks <unk>: log10 p = -100.
MISSING_LOG_PROB = -100.0 * math.log(10.0)


def automaton_from_table(
    table: NGramTable, missing_unigrams: str | float = "share"
) -> tuple[BackoffAutomaton, dict[str, object]]:
    """Build the automaton of a backoff language model.

    The contexts become states. One that no n-gram extends and whose backoff weight is 0 behaves as its own backoff state and
    is left out. A context's backoff state is its longest proper suffix that is a state, so a model whose n-grams lack some
    of their suffixes (SRILM prunes to such) is read as KenLM reads it: a suffix that isn't there has backoff weight 0.

    Args:
        table: the n-grams.
        missing_unigrams: score of token ids without a unigram: "share" divides the probability of `<unk>` evenly among
            them, so that all scores of a context sum to one with `</s>`; "unk" gives the whole of it to each, as KenLM
            scores unknown words; a number is taken as it is (natural log).

    Returns:
        The automaton, and what is needed to write the table again: `states_per_depth`, `unk_tokens`, `unk_log_prob`,
        `bos_log_prob`.
    """
    vocab_size, num_ids, device = table.vocab_size, table.num_ids, table.orders[0].tokens.device
    offsets = table.offsets
    num_nodes = offsets[-1]

    # Nodes: the empty context is 0, then the n-grams of all orders numbered through. Sorted by (prefix, token) per order,
    # they are sorted by (prefix node, token) over all.
    prefix = torch.cat([order.prefixes + (offsets[n - 1] if n else 0) for n, order in enumerate(table.orders)])
    token = torch.cat([order.tokens for order in table.orders]).to(torch.int64)
    log_prob = torch.cat([order.log_probs for order in table.orders])
    backoff = torch.cat([torch.zeros(1, device=device), *(order.backoffs for order in table.orders)])
    keys = prefix * num_ids + token
    fail = _failure_links(table, prefix, token, keys)

    has_child = torch.zeros(num_nodes, dtype=torch.bool, device=device)
    has_child[prefix] = True
    is_state = has_child | (backoff != 0)
    is_state[offsets[-2] :] = False  # n-grams of the highest order are no contexts
    is_state[0] = True
    state_of = torch.cumsum(is_state, 0) - 1
    for n in range(1, table.order + 1):  # a context that is no state stands for its longest suffix that is one
        rows = slice(offsets[n - 1], offsets[n])
        state_of[rows] = torch.where(is_state[rows], state_of[rows], state_of[fail[rows]])
    contexts = torch.nonzero(is_state)[:, 0]
    states_per_depth = [1] + [int(is_state[offsets[n - 1] : offsets[n]].sum()) for n in range(1, table.order)]
    backoff_states = state_of[fail[contexts]]
    backoff_weights = backoff[contexts]

    # Arcs. The root has one for every token; <s> and <unk> are no tokens.
    unigrams = table.orders[0]
    start, special = _special_unigrams(table)
    start_state = 0 if start is None else int(state_of[1 + start])
    present = token[: len(unigrams)] < vocab_size
    seen = token[: len(unigrams)][present]
    root_weights = torch.zeros(vocab_size + 1, device=device)
    root_targets = torch.zeros(vocab_size + 1, dtype=torch.int64, device=device)
    is_missing = torch.ones(vocab_size, dtype=torch.bool, device=device)
    is_missing[seen] = False
    unk_tokens = torch.nonzero(is_missing)[:, 0]
    if unk_tokens.numel():
        root_weights[unk_tokens] = _missing_weight(missing_unigrams, special["unk"], unk_tokens.numel())
    root_weights[seen] = unigrams.log_probs[present]
    root_targets[seen] = state_of[1 : len(unigrams) + 1][present]
    if special["eos"] is None:
        logger.warning("the language model has no </s>; its probability is taken as 1e-100")
    root_weights[vocab_size] = MISSING_LOG_PROB if special["eos"] is None else special["eos"]
    later = torch.nonzero(token[len(unigrams) :] <= table.eos)[:, 0] + len(unigrams)
    later = later[token[later] != table.bos]
    sources, arc_tokens = state_of[prefix[later]], token[later]
    arc_targets = torch.where(arc_tokens == table.eos, start_state, state_of[1 + later])
    arc_tokens = torch.where(arc_tokens == table.eos, vocab_size, arc_tokens)
    root_targets[vocab_size] = start_state
    num_arcs = vocab_size + 1 + later.numel()
    if num_arcs >= 2**31:
        raise NGramFormatError(f"{num_arcs} n-grams are more than the 2**31 - 1 arcs that can be addressed")
    arcs_per_state = torch.bincount(sources, minlength=contexts.numel())
    arcs_per_state[0] = vocab_size + 1
    arc_offsets = torch.cat([torch.zeros(1, dtype=torch.int64, device=device), torch.cumsum(arcs_per_state, 0)])

    automaton = BackoffAutomaton(
        AutomatonTensors(
            arc_offsets=arc_offsets.to(torch.int32),
            arc_tokens=torch.cat([torch.arange(vocab_size + 1, device=device), arc_tokens]).to(token_dtype(vocab_size)),
            arc_weights=torch.cat([root_weights, log_prob[later]]),
            arc_targets=torch.cat([root_targets, arc_targets]).to(torch.int32),
            backoff_states=backoff_states.to(torch.int32),
            backoff_weights=backoff_weights,
        ),
        vocab_size,
        table.order - 1,
        roots=torch.zeros(1, dtype=torch.int32, device=device),
        starts=torch.full((1,), start_state, dtype=torch.int32, device=device),
    )
    return automaton, {
        "states_per_depth": states_per_depth,
        "unk_tokens": unk_tokens.to(torch.int32),
        "unk_log_prob": special["unk"],
        "bos_log_prob": special["bos"],
    }


def _failure_links(table: NGramTable, prefix: Tensor, token: Tensor, keys: Tensor) -> Tensor:
    """Each node's longest proper suffix that is a node (Aho and Corasick 1975), order by order."""
    offsets, num_ids = table.offsets, table.num_ids
    fail = torch.zeros(offsets[-1], dtype=torch.int64, device=keys.device)
    for n in range(2, table.order + 1):
        rows = torch.arange(offsets[n - 1], offsets[n], device=keys.device)
        suffix, last = fail[prefix[rows - 1]], token[rows - 1]
        while rows.numel():
            wanted = suffix * num_ids + last
            at = torch.searchsorted(keys, wanted).clamp_(max=keys.numel() - 1)
            found = keys[at] == wanted
            fail[rows[found]] = at[found] + 1
            left = ~found & (suffix != 0)
            rows, suffix, last = rows[left], fail[suffix[left]], last[left]
    return fail


def _special_unigrams(table: NGramTable) -> tuple[int | None, dict[str, float | None]]:
    """Row of `<s>` if it can be a context, and the log-probs of `<s>`, `</s>` and `<unk>`."""
    unigrams = table.orders[0]
    rows: dict[str, int | None] = {}
    values: dict[str, float | None] = {}
    for name, token_id in (("bos", table.bos), ("eos", table.eos), ("unk", table.unk)):
        row = int(torch.searchsorted(unigrams.tokens, token_id))
        there = row < len(unigrams) and int(unigrams.tokens[row]) == token_id
        rows[name] = row if there else None
        values[name] = float(unigrams.log_probs[row]) if there else None
    return (rows["bos"] if table.order > 1 else None), values


def _missing_weight(missing_unigrams: str | float, unk_log_prob: float | None, count: int) -> float:
    if isinstance(missing_unigrams, float | int) and not isinstance(missing_unigrams, bool):
        if not math.isfinite(missing_unigrams):
            raise ValueError(f"missing_unigrams should be a finite log-probability, got {missing_unigrams}")
        return float(missing_unigrams)
    if missing_unigrams not in ("share", "unk"):
        raise ValueError(f"missing_unigrams must be 'share', 'unk' or a number, got {missing_unigrams!r}")
    if unk_log_prob is None:
        logger.warning("%d token ids have no unigram and the language model has no <unk>; they score log10 p = -100", count)
        return MISSING_LOG_PROB
    return unk_log_prob - (math.log(count) if missing_unigrams == "share" else 0.0)


def table_from_automaton(
    automaton: BackoffAutomaton,
    states_per_depth: list[int],
    unk_tokens: Tensor,
    unk_log_prob: float | None,
    bos_log_prob: float | None,
) -> NGramTable:
    """The n-grams that an automaton was built from: the inverse of `automaton_from_table`.

    Raises:
        NGramFormatError: the automaton isn't that of a language model (the counts of its states don't fit its arcs).
    """
    t = AutomatonTensors(*(tensor.cpu() for tensor in automaton.tensors))
    vocab_size, start = automaton.vocab_size, int(automaton.starts[0])
    bos, eos, unk = vocab_size, vocab_size + 1, vocab_size + 2
    if sum(states_per_depth) != t.num_states or states_per_depth[0] != 1 or min(states_per_depth) < 0:
        raise NGramFormatError(f"{t.num_states} states can't have the depths {states_per_depth}")
    depth = torch.repeat_interleave(torch.arange(len(states_per_depth)), torch.tensor(states_per_depth))
    sources = torch.repeat_interleave(torch.arange(t.num_states), t.arc_offsets.diff().to(torch.int64))
    arc_tokens = t.arc_tokens.to(torch.int64)
    is_end = arc_tokens == vocab_size
    arc_tokens[is_end] = eos
    # An arc to a context one token longer is the n-gram of that very context; all others lead to a suffix.
    targets = t.arc_targets.to(torch.int64)
    to_own_context = ~is_end & (depth[targets] == depth[sources] + 1)

    written = torch.ones(t.num_arcs, dtype=torch.bool)
    written[unk_tokens.to(torch.int64).cpu()] = False
    row_of_state = torch.zeros(t.num_states, dtype=torch.int64)
    orders = []
    for n in range(1, automaton.context_length + 2):
        arcs = torch.nonzero((depth[sources] == n - 1) & written)[:, 0]
        prefixes, tokens, log_probs = row_of_state[sources[arcs]], arc_tokens[arcs], t.arc_weights[arcs]
        contexts = torch.where(to_own_context[arcs], targets[arcs], -1)
        if n == 1:
            special = [(bos, bos_log_prob, start or -1), (unk, unk_log_prob, -1)]
            special = [(token, value, context) for token, value, context in special if value is not None]
            prefixes = torch.cat([prefixes, torch.zeros(len(special), dtype=torch.int64)])
            tokens = torch.cat([tokens, torch.tensor([s[0] for s in special], dtype=torch.int64)])
            log_probs = torch.cat([log_probs, torch.tensor([s[1] for s in special], dtype=torch.float32)])
            contexts = torch.cat([contexts, torch.tensor([s[2] for s in special], dtype=torch.int64)])
        by_key = torch.argsort(prefixes * (vocab_size + NUM_SPECIAL) + tokens)
        contexts = contexts[by_key]
        is_context = contexts >= 0
        backoffs = torch.where(is_context, t.backoff_weights[contexts], 0.0)
        orders.append(NGramOrder(prefixes[by_key], tokens[by_key].to(torch.int32), log_probs[by_key], backoffs))
        if int(is_context.sum()) != (states_per_depth[n] if n < len(states_per_depth) else 0):
            raise NGramFormatError(f"the states of depth {n} aren't those that depth {n - 1} leads to")
        row_of_state[contexts[is_context]] = torch.nonzero(is_context)[:, 0]
    return NGramTable(vocab_size, tuple(orders))
