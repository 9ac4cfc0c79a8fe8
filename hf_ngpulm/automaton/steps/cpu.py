"""An automaton's states and arcs in compiled loops. What comes out is said in `reference`.

The table becomes a trie in compressed rows: the n-grams of all orders are numbered through as nodes, behind the empty
context (node 0), and what follows a node is the run `first_child[node] .. first_child[node + 1]`. The loops go through
runs of contexts, one order at a time, and note of each context no more than 13 bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from ...ngrams.table import NGramTable
from ..tensors import AutomatonTensors, token_dtype
from .reference import Automaton, check_arcs

compiled: Any = njit(nogil=True, cache=True, error_model="numpy")
# Runs of n-grams that a thread takes at a time; fewer aren't worth a second thread.
ELEMENTS_PER_BLOCK = 1 << 18


def build(table: NGramTable, possible: Tensor, unk_tokens: Tensor, unk_share: float) -> Automaton:
    offsets, order, vocab_size = table.offsets, table.order, table.vocab_size
    num_unigrams = len(table.orders[0])
    nodes = [(0, 1), *pairwise(offsets)]  # of each order
    may_end, copies = possible.numpy(), unk_tokens.numpy()

    tokens = np.zeros(offsets[-1], dtype=np.int32)
    for (first, last), columns in zip(nodes[1:], table.orders):
        tokens[first:last] = columns.tokens.numpy()
    unigrams = tokens[1 : 1 + num_unigrams]
    unigram_of = np.zeros(table.num_ids, dtype=np.int32)
    unigram_of[unigrams] = np.arange(1, 1 + num_unigrams)

    num_contexts = offsets[max(order, 2) - 1]  # unigrams count as contexts even where nothing is longer
    first_child = np.full(num_contexts + 1, offsets[-1], dtype=np.int32)
    first_child[0] = 1
    for n in range(1, order):
        prefixes = table.orders[n].prefixes.contiguous().numpy()
        _in_blocks(_first_children, _even_blocks(0, prefixes.size), (prefixes, *nodes[n], nodes[n + 1][0], first_child))

    fail = np.zeros(num_contexts, dtype=np.int32)
    followed = np.ones(num_contexts, dtype=np.bool_)
    followed[1 : 1 + num_unigrams] = (may_end[unigrams] | (unigrams == table.bos)) & (unigrams != table.eos)
    blocks = [_blocks(first_child, first, last) for first, last in nodes[:order]]
    trie = (first_child, tokens, unigram_of, fail)
    for n in range(2, order):
        _in_blocks(_link, blocks[n - 1], (*trie, may_end, table.eos, followed))

    state_of = np.zeros(num_contexts, dtype=np.int32)
    counts = [[(1, 0, 0)]]  # of each block of each order: states, n-grams behind them that are met, those that end in <unk>
    for n in range(1, order):
        backoffs = table.orders[n - 1].backoffs.contiguous().numpy()
        arguments = (first_child, tokens, may_end, table.unk, followed, backoffs, nodes[n][0], state_of)
        counts.append(_in_blocks(_mark_states, blocks[n], arguments))
    states_per_depth = [sum(states for states, _, _ in of_order) for of_order in counts]
    num_states = sum(states_per_depth)
    num_met = sum(met for of_order in counts for _, met, _ in of_order)
    num_copied = sum(unks for of_order in counts for _, _, unks in of_order) if copies.size else 0
    num_arcs = vocab_size + 1 + num_met + num_copied * (copies.size - 1)
    check_arcs(num_arcs)

    backoff_states = np.zeros(num_states, dtype=np.int32)
    backoff_weights = np.zeros(num_states, dtype=np.float32)
    first_state = 1
    first_states: list[list[int]] = [[0]]
    for n in range(1, order):
        *starts, first_state = accumulate((states for states, _, _ in counts[n]), initial=first_state)
        first_states.append(starts)
        backoffs = table.orders[n - 1].backoffs.contiguous().numpy()
        arguments = (fail, backoffs, nodes[n][0], state_of, backoff_states, backoff_weights)
        _in_blocks(_number_states, blocks[n], arguments, starts)
    start_state = int(state_of[unigram_of[table.bos]])

    arc_offsets = np.zeros(num_states + 1, dtype=np.int32)
    arc_offsets[-1] = num_arcs
    arc_tokens = torch.empty(num_arcs, dtype=token_dtype(vocab_size), device="cpu").numpy()
    arc_weights, arc_targets = np.empty(num_arcs, dtype=np.float32), np.empty(num_arcs, dtype=np.int32)
    share = np.float32(unk_share)
    # As the definition adds 0 * share to the other arcs, which turns a weight of -0 into one of 0 where the share is 0.
    no_share = np.float32(0.0) * share if copies.size else np.float32(-0.0)
    first_arc = vocab_size + 1
    for n in range(1, order):
        sizes = (met + (unks * (copies.size - 1) if copies.size else 0) for _, met, unks in counts[n])
        *starts, first_arc = accumulate(sizes, initial=first_arc)
        log_probs = table.orders[n].log_probs.contiguous().numpy()
        arguments = (
            *trie, may_end, followed, state_of, log_probs, nodes[n + 1][0], vocab_size, start_state, copies, share, no_share,
            arc_offsets, arc_tokens, arc_weights, arc_targets,
        )  # fmt: skip
        _in_blocks(_write_arcs, blocks[n], arguments, first_states[n], starts)

    columns = (arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights)
    return Automaton(
        AutomatonTensors(*map(torch.from_numpy, columns)),
        states_per_depth,
        torch.from_numpy(state_of[1 : 1 + num_unigrams].astype(np.int64)),
        start_state,
        offsets[-1] - 1 - num_unigrams - num_met,
    )


def _even_blocks(first: int, last: int) -> np.ndarray:
    return np.linspace(first, last, max(1, (last - first) // ELEMENTS_PER_BLOCK) + 1).astype(np.int64)


def _blocks(first_child: np.ndarray, first: int, last: int) -> np.ndarray:
    """Bounds of runs of contexts, with about as many n-grams behind each; a long run of contexts is cut in any case."""
    children = first_child[first : last + 1]
    by_children = _even_blocks(int(children[0]), int(children[-1]))[1:-1]
    inner = np.concatenate([first + np.searchsorted(children, by_children), _even_blocks(first, last)])
    return np.unique(np.append(inner, [first, last]))


def _in_blocks(kernel: Callable[..., Any], bounds: np.ndarray, arguments: tuple[Any, ...], *each: Iterable[int]) -> list[Any]:
    """Call `kernel(first, last, one of each, arguments)` for each block, on several threads."""
    blocks = [tuple(map(int, block)) for block in pairwise(bounds)]
    threads = min(os.cpu_count() or 1, len(blocks))
    if threads <= 1:
        return [kernel(*block, *own, *arguments) for block, *own in zip(blocks, *each)]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda block, *own: kernel(*block, *own, *arguments), blocks, *each))


@compiled
def _first_children(begin, end, prefixes, first, last, first_node, first_child):
    """Of the contexts `first .. last`, those behind the one whose n-grams end in front of this block."""
    context = first + prefixes[begin - 1] if begin else first - 1
    for row in range(begin, end):
        while context < first + prefixes[row]:
            context += 1
            first_child[context] = first_node + row
    if end == len(prefixes):
        while context < last:  # the first child of the node behind them is where theirs end
            context += 1
            first_child[context] = first_node + end


@compiled
def _at_least(tokens, low, high, token):
    """The first of the nodes `low .. high`, whose tokens ascend, with this token or a higher one; it is near `low`."""
    if low >= high or tokens[low] >= token:
        return low
    step = 1
    while low + step < high and tokens[low + step] < token:
        low += step
        step *= 2
    step //= 2
    while step > 0:
        if low + step < high and tokens[low + step] < token:
            low += step
        step //= 2
    return low + 1


@compiled
def _behind_suffix(first_child, tokens, unigram_of, fail, suffix, token):
    """The node of a token behind the longest suffix of a context that it follows; the root if it isn't even a unigram."""
    while suffix != 0:
        high = first_child[suffix + 1]
        at = _at_least(tokens, first_child[suffix], high, token)
        if at < high and tokens[at] == token:
            return at
        suffix = fail[suffix]
    return np.int64(unigram_of[token])


@compiled
def _link(begin, end, first_child, tokens, unigram_of, fail, possible, eos, followed):
    """What follows a context follows its suffix too, mostly, and both lists ascend: walk them side by side."""
    for context in range(begin, end):
        suffix = fail[context]
        at, high = np.int64(first_child[suffix]), first_child[suffix + 1]
        for node in range(first_child[context], first_child[context + 1]):
            token = tokens[node]
            followed[node] = followed[context] and possible[token] and token != eos
            if suffix == 0:
                fail[node] = unigram_of[token]
                continue
            at = _at_least(tokens, at, high, token)
            if at < high and tokens[at] == token:
                fail[node] = at
            else:
                fail[node] = _behind_suffix(first_child, tokens, unigram_of, fail, fail[suffix], token)


@compiled
def _mark_states(begin, end, first_child, tokens, possible, unk, followed, backoffs, first, state_of):
    """Note which contexts are states. Counts them, what can be met behind them, and how much of that ends in <unk>."""
    states, met, unks = 0, 0, 0
    for context in range(begin, end):
        state_of[context] = 0
        if not followed[context]:
            continue
        low, high = first_child[context], first_child[context + 1]
        met_here = 0
        for node in range(low, high):
            met_here += possible[tokens[node]]
        if met_here > 0 or backoffs[context - first] != 0:
            state_of[context] = 1
            states += 1
            met += met_here
            unks += high > low and tokens[high - 1] == unk and possible[unk]
    return states, met, unks


@compiled
def _number_states(begin, end, state, fail, backoffs, first, state_of, backoff_states, backoff_weights):
    for context in range(begin, end):
        suffix = state_of[fail[context]]
        if state_of[context] == 0:
            state_of[context] = suffix
            continue
        state_of[context] = state
        backoff_states[state] = suffix
        backoff_weights[state] = backoffs[context - first]
        state += 1


@compiled
def _write_arcs(
    begin, end, state, arc, first_child, tokens, unigram_of, fail, possible, followed, state_of, log_probs, first,
    vocab_size, start_state, unk_tokens, share, no_share, arc_offsets, arc_tokens, arc_weights, arc_targets,
):  # fmt: skip
    for context in range(begin, end):
        if not followed[context] or state_of[context] != state:  # those that are no states have the numbers of shorter ones
            continue
        arc_offsets[state] = arc
        state += 1
        suffix = fail[context]
        at, suffix_end = np.int64(first_child[suffix]), first_child[suffix + 1]
        first_arc = arc
        for node in range(first_child[context], first_child[context + 1]):
            token = tokens[node]
            if not possible[token]:
                continue
            if token == vocab_size + 1:
                target = np.int64(start_state)
            elif node < len(state_of):
                target = np.int64(state_of[node])
            elif suffix == 0:
                target = np.int64(state_of[unigram_of[token]])
            else:
                # The highest order's links are needed here alone, see _link.
                at = _at_least(tokens, at, suffix_end, token)
                if at < suffix_end and tokens[at] == token:
                    target = np.int64(state_of[at])
                else:
                    behind = _behind_suffix(first_child, tokens, unigram_of, fail, fail[suffix], token)
                    target = np.int64(state_of[behind])
            weight = log_probs[node - first]
            if token == vocab_size + 2:
                _merge_copies(first_arc, arc, unk_tokens, weight + share, target, arc_tokens, arc_weights, arc_targets)
                arc += len(unk_tokens)
            else:
                arc_tokens[arc] = min(token, vocab_size)
                arc_weights[arc] = weight + no_share
                arc_targets[arc] = target
                arc += 1


@compiled
def _merge_copies(begin, end, unk_tokens, weight, target, arc_tokens, arc_weights, arc_targets):
    """Put an arc for each token of <unk> among a state's arcs `begin .. end`, from the last one down."""
    arc, at = end - 1, end + len(unk_tokens) - 1
    for i in range(len(unk_tokens) - 1, -1, -1):
        while arc >= begin and arc_tokens[arc] > unk_tokens[i]:
            arc_tokens[at], arc_weights[at], arc_targets[at] = arc_tokens[arc], arc_weights[arc], arc_targets[arc]
            arc -= 1
            at -= 1
        arc_tokens[at], arc_weights[at], arc_targets[at] = unk_tokens[i], weight, target
        at -= 1
