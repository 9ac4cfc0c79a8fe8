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
from typing import Any, NamedTuple

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


class Trie(NamedTuple):
    """N-grams as nodes. The compiled loops take these columns in this order."""

    first_child: np.ndarray  # int32 [contexts + 1]
    tokens: np.ndarray  # int32 [nodes]
    unigram_of: np.ndarray  # int32 [num_ids], the node of each token's unigram; 0 where it has none
    fail: np.ndarray  # int32 [contexts], the longest proper suffix that is a node (Aho and Corasick 1975)
    possible: np.ndarray  # bool [num_ids], what n-grams of order 2 and up that text can meet may end in
    followed: np.ndarray  # bool [contexts], whether text can go on behind them


def build(table: NGramTable, possible: Tensor, unk_tokens: Tensor, unk_share: float) -> Automaton:
    nodes = [(0, 1), *pairwise(table.offsets)]  # of each order
    trie = _trie(table, nodes, possible.numpy())
    blocks = [_blocks(trie.first_child, first, last) for first, last in nodes[: table.order]]
    for n in range(2, table.order):
        _in_blocks(_link, blocks[n - 1], (*trie, table.eos))

    # Of each block of each order: states, n-grams behind them that text can meet, and those of them that end in <unk>.
    counts: list[list[tuple[int, int, int]]] = [[(1, 0, 0)]]
    state_of = np.zeros(len(trie.fail), dtype=np.int32)
    for n in range(1, table.order):
        counts.append(_in_blocks(_mark_states, blocks[n], (*trie, table.unk, _backoffs(table, n), nodes[n][0], state_of)))
    states = [[states for states, _, _ in of_order] for of_order in counts]
    num_met = sum(met for of_order in counts for _, met, _ in of_order)
    more = max(unk_tokens.numel(), 1) - 1  # than one arc for an n-gram that ends in <unk>
    arcs = [[met + unks * more for _, met, unks in of_order] for of_order in counts]
    num_states, num_arcs = sum(map(sum, states)), table.vocab_size + 1 + sum(map(sum, arcs))
    check_arcs(num_arcs)

    tensors = _empty_tensors(num_states, num_arcs, table.vocab_size)
    arc_offsets, *arc_columns, backoff_states, backoff_weights = (tensor.numpy() for tensor in tensors)
    arc_offsets[0], arc_offsets[-1], backoff_states[0], backoff_weights[0] = 0, num_arcs, 0, 0.0
    first_states = _starts(states, 0)
    for n in range(1, table.order):
        arguments = (trie.fail, _backoffs(table, n), nodes[n][0], state_of, backoff_states, backoff_weights)
        _in_blocks(_number_states, blocks[n], arguments, first_states[n])
    start_state = int(state_of[trie.unigram_of[table.bos]])

    share = np.float32(unk_share)
    # As the definition adds 0 * share to the other arcs, which turns a weight of -0 into one of 0 where the share is 0.
    shares = (share, np.float32(0.0) * share if unk_tokens.numel() else np.float32(-0.0))
    first_arcs = _starts(arcs, table.vocab_size + 1)
    for n in range(1, table.order):
        log_probs = table.orders[n].log_probs.contiguous().numpy()
        given = (log_probs, nodes[n + 1][0], table.vocab_size, state_of, start_state, unk_tokens.numpy(), *shares)
        _in_blocks(_write_arcs, blocks[n], (*trie, *given, arc_offsets, *arc_columns), first_states[n], first_arcs[n])

    num_unigrams = len(table.orders[0])
    return Automaton(
        tensors,
        [sum(of_order) for of_order in states],
        torch.from_numpy(state_of[1 : 1 + num_unigrams].astype(np.int64)),
        start_state,
        sum(table.num_ngrams[1:]) - num_met,
    )


def _trie(table: NGramTable, nodes: list[tuple[int, int]], possible: np.ndarray) -> Trie:
    """The n-grams as nodes. `fail` and `followed` are told for unigrams only."""
    num_nodes, num_unigrams = table.offsets[-1], len(table.orders[0])
    num_contexts = table.offsets[max(table.order, 2) - 1]  # unigrams count as contexts even where nothing is longer
    tokens = np.zeros(num_nodes, dtype=np.int32)
    for (first, last), columns in zip(nodes[1:], table.orders):
        tokens[first:last] = columns.tokens.numpy()
    first_child = np.full(num_contexts + 1, num_nodes, dtype=np.int32)
    first_child[0] = 1
    for n in range(1, table.order):
        prefixes = table.orders[n].prefixes.contiguous().numpy()
        _in_blocks(_first_children, _even_blocks(0, prefixes.size), (prefixes, *nodes[n], nodes[n + 1][0], first_child))
    unigrams = tokens[1 : 1 + num_unigrams]
    unigram_of = np.zeros(table.num_ids, dtype=np.int32)
    unigram_of[unigrams] = np.arange(1, 1 + num_unigrams)
    followed = np.ones(num_contexts, dtype=np.bool_)
    followed[1 : 1 + num_unigrams] = (possible[unigrams] | (unigrams == table.bos)) & (unigrams != table.eos)
    return Trie(first_child, tokens, unigram_of, np.zeros(num_contexts, dtype=np.int32), possible, followed)


def _backoffs(table: NGramTable, n: int) -> np.ndarray:
    return table.orders[n - 1].backoffs.contiguous().numpy()


def _empty_tensors(num_states: int, num_arcs: int, vocab_size: int) -> AutomatonTensors:
    def empty(size: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(size, dtype=dtype, device="cpu")

    return AutomatonTensors(
        arc_offsets=empty(num_states + 1, torch.int32),
        arc_tokens=empty(num_arcs, token_dtype(vocab_size)),
        arc_weights=empty(num_arcs, torch.float32),
        arc_targets=empty(num_arcs, torch.int32),
        backoff_states=empty(num_states, torch.int32),
        backoff_weights=empty(num_states, torch.float32),
    )


def _starts(sizes: list[list[int]], first: int) -> list[list[int]]:
    """Where each block of each order begins, given the sizes of all of them."""
    starts = []
    for of_order in sizes:
        *begins, first = accumulate(of_order, initial=first)
        starts.append(begins)
    return starts


def _even_blocks(first: int, last: int) -> np.ndarray:
    return np.linspace(first, last, max(1, (last - first) // ELEMENTS_PER_BLOCK) + 1).astype(np.int64)


def _blocks(first_child: np.ndarray, first: int, last: int) -> np.ndarray:
    """Bounds of runs of contexts, with about as many n-grams behind each; a long run of contexts is cut in any case."""
    children = first_child[first : last + 1]
    by_children = _even_blocks(int(children[0]), int(children[-1]))[1:-1].astype(children.dtype)  # else numpy copies those
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
def _link(begin, end, first_child, tokens, unigram_of, fail, possible, followed, eos):
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
def _mark_states(
    begin, end, first_child, tokens, unigram_of, fail, possible, followed, unk, backoffs, first, state_of,
):  # fmt: skip
    """Note which contexts are states. Counts them, what can be met behind them, and how much of that ends in <unk>."""
    states, met, unks = 0, 0, 0
    for context in range(begin, end):
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
    """Give contexts that are states their numbers, and the others that of their longest suffix that is one."""
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
    begin, end, state, arc, first_child, tokens, unigram_of, fail, possible, followed, log_probs, first, vocab_size,
    state_of, start_state, unk_tokens, share, no_share, arc_offsets, arc_tokens, arc_weights, arc_targets,
):  # fmt: skip
    """The arcs of a run of contexts: `state` is the first of their states, `arc` where its arcs begin."""
    for context in range(begin, end):
        if not followed[context] or state_of[context] != state:  # one that is no state has the number of a shorter one
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
