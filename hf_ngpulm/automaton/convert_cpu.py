"""The nodes and arcs of `automaton_from_table` as compiled loops: the same tensors in a fraction of the time and memory."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numba import njit

from ..ngrams.table import NGramTable
from .convert import Built
from .tensors import token_dtype

compiled: Any = njit(nogil=True, cache=True, error_model="numpy")
ROWS_PER_THREAD = 1 << 18
# What a node is, as bits.
MET, FOLLOWED, STATE = np.uint8(1), np.uint8(2), np.uint8(4)


def build(table: NGramTable, unk_stands: bool) -> Built:
    """States and arcs of a table that lies on the CPU, as `convert.build_on_tensors` says.

    Args:
        unk_stands: whether n-grams with `<unk>` can be met. There must be none then that need copies.
    """
    offsets = table.offsets
    num_nodes, vocab_size = offsets[-1], table.vocab_size
    prefixes = [order.prefixes.numpy() for order in table.orders]
    tokens = np.concatenate([np.zeros(1, dtype=np.int32), *(order.tokens.numpy() for order in table.orders)])
    first_child = np.empty(num_nodes + 1, dtype=np.int32)
    first_child[0], first_child[offsets[-2] :] = 1, num_nodes
    for n in range(1, table.order):
        _first_children(prefixes[n], offsets[n - 1], offsets[n], first_child)
    fail = np.zeros(num_nodes, dtype=np.int32)
    for n in range(1, table.order):
        _in_blocks(_failure_links, len(prefixes[n]), prefixes[n], offsets[n - 1], offsets[n], tokens, first_child, fail)
    del first_child

    possible = np.zeros(table.num_ids, dtype=np.bool_)
    possible[tokens[1 : offsets[1]]] = True
    possible[[table.bos, table.eos, table.unk]] = False, True, unk_stands
    flags = np.zeros(num_nodes, dtype=np.uint8)
    flags[0] = MET | FOLLOWED | STATE
    met = 0
    for n in range(table.order):
        below, here, last = 0 if n == 0 else offsets[n - 1], offsets[n], n == table.order - 1
        backoffs = table.orders[n].backoffs.numpy()
        kept = _mark(prefixes[n], below, here, tokens, backoffs, possible, table.bos, table.eos, n == 0, last, flags)
        met += kept if n else 0
    state_of = np.zeros(num_nodes, dtype=np.int32)
    num_states = _number(flags, fail, state_of)
    depths = pairwise([0, *offsets[:-1]])
    states_per_depth = [int(np.count_nonzero(flags[first:last] & STATE)) for first, last in depths]
    backoff_states = np.zeros(num_states, dtype=np.int32)
    backoff_weights = np.zeros(num_states, dtype=np.float32)
    for n in range(table.order):
        _backoffs(table.orders[n].backoffs.numpy(), offsets[n], flags, fail, state_of, backoff_states, backoff_weights)
    del fail

    root_arcs, num_arcs = vocab_size + 1, vocab_size + 1 + met
    starts = np.flatnonzero(tokens[1 : offsets[1]] == table.bos)
    start = int(state_of[1 + starts[0]]) if starts.size else 0
    arc_counts = np.zeros(num_states + 1, dtype=np.int32)
    arc_counts[1] = root_arcs
    arc_tokens = torch.empty(num_arcs, dtype=token_dtype(vocab_size))
    arc_weights, arc_targets = np.empty(num_arcs, dtype=np.float32), np.empty(num_arcs, dtype=np.int32)
    at = root_arcs
    for n in range(1, table.order):
        log_probs = table.orders[n].log_probs.numpy()
        arcs = (arc_counts, arc_tokens.numpy(), arc_weights, arc_targets)
        at = _arcs(prefixes[n], offsets[n - 1], offsets[n], tokens, log_probs, flags, state_of, table.eos, start, at, *arcs)
    return Built(
        torch.from_numpy(state_of[1 : offsets[1]].astype(np.int64)),
        states_per_depth,
        num_nodes - offsets[1] - met,
        torch.from_numpy(np.cumsum(arc_counts, dtype=np.int32)),
        arc_tokens,
        torch.from_numpy(arc_weights),
        torch.from_numpy(arc_targets),
        torch.from_numpy(backoff_states),
        torch.from_numpy(backoff_weights),
    )


def _in_blocks(kernel: Any, size: int, *arguments: Any) -> None:
    threads = max(1, min(os.cpu_count() or 1, size // ROWS_PER_THREAD))
    bounds = [size * i // threads for i in range(threads + 1)]
    if threads == 1:
        kernel(0, size, *arguments)
        return
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(kernel, *block, *arguments) for block in pairwise(bounds)]:
            done.result()


@compiled
def _first_children(prefixes, below, here, first_child):
    """The node of the first n-gram behind each n-gram of the order below; where there is none, that of the next one's."""
    row = 0
    for parent in range(here - below):
        while row < len(prefixes) and prefixes[row] < parent:
            row += 1
        first_child[below + parent] = here + row


@compiled
def _failure_links(begin, last, prefixes, below, here, tokens, first_child, fail):
    """Each node's longest proper suffix that is a node (Aho and Corasick 1975)."""
    context, at, behind = np.int64(-1), np.int64(0), np.int64(0)
    for row in range(begin, last):
        token = tokens[here + row]
        suffix = np.int64(fail[below + prefixes[row]])
        if prefixes[row] != context:
            context = prefixes[row]
            at, behind = np.int64(first_child[suffix]), np.int64(first_child[suffix + 1])
        # What follows a context mostly follows its suffix too, and both lists ascend: gallop along the one beside the other.
        step = np.int64(1)
        while at + step < behind and tokens[at + step] <= token:
            at += step
            step *= 2
        while step > 0:
            if at + step < behind and tokens[at + step] <= token:
                at += step
            step //= 2
        if at < behind and tokens[at] == token:
            fail[here + row] = at
            continue
        # Not behind this suffix: behind a shorter one?
        found = np.int64(0)
        while suffix != 0 and found == 0:
            suffix = np.int64(fail[suffix])
            low, high = np.int64(first_child[suffix]), np.int64(first_child[suffix + 1])
            while low < high:
                middle = (low + high) // 2
                if tokens[middle] < token:
                    low = middle + 1
                else:
                    high = middle
            if low < first_child[suffix + 1] and tokens[low] == token:
                found = low
        fail[here + row] = found


@compiled
def _mark(prefixes, below, here, tokens, backoffs, possible, bos, eos, first, last, flags):
    """Note which n-grams of an order text can hold, which of these something can follow, and which contexts are states."""
    met = 0
    for row in range(len(prefixes)):
        parent, token = (0 if first else below + prefixes[row]), tokens[here + row]
        if flags[parent] & FOLLOWED and (possible[token] or (first and token == bos)):
            met += 1
            flags[parent] |= STATE
            flag = MET
            if token != eos:
                flag |= FOLLOWED
                if backoffs[row] != 0 and not last:
                    flag |= STATE
            flags[here + row] = flag
    return met


@compiled
def _number(flags, fail, state_of):
    states = 0
    for node in range(len(flags)):
        if flags[node] & STATE:
            state_of[node] = states
            states += 1
        else:  # a context that is no state stands for its longest suffix that is one
            state_of[node] = state_of[fail[node]]
    return states


@compiled
def _backoffs(backoffs, here, flags, fail, state_of, backoff_states, backoff_weights):
    for row in range(len(backoffs)):
        node = here + row
        if flags[node] & STATE:
            backoff_states[state_of[node]] = state_of[fail[node]]
            backoff_weights[state_of[node]] = backoffs[row]


@compiled
def _arcs(prefixes, below, here, tokens, log_probs, flags, state_of, eos, start, at, counts, arc_tokens, weights, targets):
    for row in range(len(prefixes)):
        node = here + row
        if not flags[node] & MET:
            continue
        is_end = tokens[node] == eos
        arc_tokens[at] = eos - 1 if is_end else tokens[node]  # </s> is the token behind the vocabulary
        weights[at] = log_probs[row]
        targets[at] = start if is_end else state_of[node]
        counts[state_of[below + prefixes[row]] + 1] += 1
        at += 1
    return at
