"""Build an automaton's states and arcs in plain torch, which also runs on a GPU. This module is the definition."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...errors import NGramFormatError
from ...ngrams.room import IN_MEMORY, Room
from ...ngrams.table import NGramTable
from ..tensors import AutomatonTensors, token_dtype


class BuiltAutomaton(NamedTuple):
    """A built automaton, and the states after the unigrams.

    The tensors have room for the root's arcs, one for each token and one for `</s>`. The caller fills these arcs in.
    """

    tensors: AutomatonTensors
    states_per_depth: list[int]
    unigram_states: Tensor  # the state after each unigram
    start_state: int
    unmet: int  # number of n-grams of order 2 and up that are left out


def build(table: NGramTable, possible: Tensor, unk_tokens: Tensor, unk_share: float, room: Room = IN_MEMORY) -> BuiltAutomaton:
    """Return the states of an automaton, and the arcs of all states except the root.

    Args:
        table: the n-grams.
        possible: bool `[num_ids]`, whether a token may be the last token of a reachable n-gram of order 2 or higher.
        unk_tokens: int64, tokens that `<unk>` replaces. Each token gets a copy of every n-gram that ends in `<unk>`.
        unk_share: natural log, added to the weights of these copies.
        room: where the native core works and stores the tensors. This module ignores `room`: it works in memory.

    Raises:
        NGramFormatError: the automaton would have more arcs than can be addressed.
    """
    vocab_size, num_ids, device = table.vocab_size, table.num_ids, table.orders[0].tokens.device
    offsets = table.offsets
    num_nodes, num_unigrams = offsets[-1], len(table.orders[0])

    # Node 0 is the empty context; the n-grams of all orders follow. They are sorted by (prefix, token) in each order, so all
    # nodes together are sorted by (prefix node, token). Row i - 1 of each column belongs to node i.
    prefix = torch.cat([order.prefixes + (offsets[n - 1] if n else 0) for n, order in enumerate(table.orders)])
    token = torch.cat([order.tokens for order in table.orders]).to(torch.int64)
    log_prob = torch.cat([order.log_probs for order in table.orders])
    backoff = torch.cat([torch.zeros(1, device=device), *(order.backoffs for order in table.orders)])
    fail = _failure_links(table, prefix, token, prefix * num_ids + token)
    met, followed = _what_text_can_meet(table, prefix, token, possible)

    is_state = torch.zeros(num_nodes, dtype=torch.bool, device=device)
    is_state[prefix[met[1:]]] = True
    is_state |= backoff != 0
    is_state &= followed
    is_state[offsets[-2] :] = False  # n-grams of the highest order aren't contexts
    is_state[0] = True
    state_of = torch.cumsum(is_state, 0) - 1
    for n in range(1, table.order + 1):  # a context without a state uses that of its longest suffix with a state
        rows = slice(offsets[n - 1], offsets[n])
        state_of[rows] = torch.where(is_state[rows], state_of[rows], state_of[fail[rows]])
    contexts = torch.nonzero(is_state)[:, 0]
    states_per_depth = [1] + [int(is_state[offsets[n - 1] : offsets[n]].sum()) for n in range(1, table.order)]
    start_row = table.row_of_unigram(table.bos)
    start_state = 0 if start_row is None else int(state_of[1 + start_row])

    later = torch.nonzero(met[1 + num_unigrams :])[:, 0] + num_unigrams
    is_end = token[later] == table.eos
    sources = state_of[prefix[later]]
    arc_tokens = torch.where(is_end, vocab_size, token[later])
    arc_weights = log_prob[later]
    arc_targets = torch.where(is_end, start_state, state_of[1 + later])
    if unk_tokens.numel():
        is_unk = arc_tokens == table.unk
        copies = torch.where(is_unk, unk_tokens.numel(), 1)
        copied = torch.repeat_interleave(copies)
        number = torch.arange(copied.numel(), device=device) - (torch.cumsum(copies, 0) - copies)[copied]
        sources, arc_targets, is_unk = sources[copied], arc_targets[copied], is_unk[copied]
        arc_tokens = torch.where(is_unk, unk_tokens[torch.where(is_unk, number, 0)], arc_tokens[copied])
        arc_weights = arc_weights[copied] + is_unk * unk_share
        by_key = torch.argsort(sources * num_ids + arc_tokens)
        sources, arc_tokens, arc_weights, arc_targets = (
            column[by_key] for column in (sources, arc_tokens, arc_weights, arc_targets)
        )
    check_arcs(vocab_size + 1 + sources.numel())
    arcs_per_state = torch.bincount(sources, minlength=contexts.numel())
    arcs_per_state[0] = vocab_size + 1

    def behind_root(arcs: Tensor) -> Tensor:
        return torch.cat([arcs.new_zeros(vocab_size + 1), arcs])

    tensors = AutomatonTensors(
        arc_offsets=torch.cat([arcs_per_state.new_zeros(1), torch.cumsum(arcs_per_state, 0)]).to(torch.int32),
        arc_tokens=behind_root(arc_tokens).to(token_dtype(vocab_size)),
        arc_weights=behind_root(arc_weights),
        arc_targets=behind_root(arc_targets).to(torch.int32),
        backoff_states=state_of[fail[contexts]].to(torch.int32),
        backoff_weights=backoff[contexts],
    )
    unmet = num_nodes - 1 - num_unigrams - later.numel()
    return BuiltAutomaton(tensors, states_per_depth, state_of[1 : 1 + num_unigrams], start_state, unmet)


def check_arcs(num_arcs: int) -> None:
    if num_arcs >= 2**31:
        raise NGramFormatError(f"{num_arcs} n-grams are more than the 2**31 - 1 arcs that can be addressed")


def _what_text_can_meet(table: NGramTable, prefix: Tensor, token: Tensor, possible: Tensor) -> tuple[Tensor, Tensor]:
    """Return two masks over the nodes of all n-grams: whether a text can reach a node, and whether text can follow the node.

    `prefix` and `token` have each node's prefix node and last token.
    """
    unigrams = token[: len(table.orders[0])]
    ends_possibly = possible[token]
    ends_possibly[: len(unigrams)] |= unigrams == table.bos
    met = torch.ones(table.offsets[-1], dtype=torch.bool, device=token.device)
    followed = met.clone()
    for first, last in zip(table.offsets, table.offsets[1:]):
        met[first:last] = followed[prefix[first - 1 : last - 1]] & ends_possibly[first - 1 : last - 1]
        followed[first:last] = met[first:last] & (token[first - 1 : last - 1] != table.eos)
    return met, followed


def _failure_links(table: NGramTable, prefix: Tensor, token: Tensor, keys: Tensor) -> Tensor:
    """Return each node's longest proper suffix that is a node (Aho and Corasick 1975), computed one order at a time.

    `prefix` and `token` have each node's prefix node and last token. `keys` combine prefix node and token, in ascending order.
    """
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
