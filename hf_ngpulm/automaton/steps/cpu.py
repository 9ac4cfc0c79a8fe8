"""Build an automaton's states and arcs with the native core (`csrc/building.cpp`), as `reference` defines them.

The table becomes a trie in compressed rows. Node 0 is the empty context. The next nodes are the n-grams of all orders, one
order after the other. The children of a node are the nodes `first_child[node] .. first_child[node + 1] - 1`. The core processes
ranges of contexts, one order at a time, and stores at most 13 bytes per context.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ...engines.native import Function, Struct
from ...errors import NGramFormatError
from ...ngrams.room import IN_MEMORY, Room, pairs_of
from ...ngrams.table import NGramTable
from ..tensors import AutomatonTensors
from .reference import BuiltAutomaton, check_arcs

# Number of n-grams that a thread processes at a time; fewer aren't worth a second thread.
ELEMENTS_PER_BLOCK = 1 << 18


class NGramTrie(Struct):
    """The n-grams as nodes of a trie. A context is a node below the highest order; `num_ids` is the number of token ids.

    Members:
        first_child: `[contexts + 1]`, the first child of each context; the last element is the number of nodes.
        tokens: `[nodes]`, last token of each n-gram.
        unigram_of: `[num_ids]`, the node of each token's unigram; 0 for a token without a unigram.
        fail: `[contexts]`, the longest proper suffix that is a node (Aho and Corasick 1975).
        possible: bool `[num_ids]`, whether a token may be the last token of a reachable n-gram of order 2 or higher.
        followed: bool `[contexts]`, whether text can continue after each context.
        state_of: `[contexts]`, the state of each context.
    """


class ArcWriter(Struct):
    """The arrays of arcs that the core writes, and the values that determine the arcs' weights."""


_children = Function("ngpulm_trie_children")
_link = Function("ngpulm_trie_link")
_mark_states = Function("ngpulm_mark_states")
_number_states = Function("ngpulm_number_states")
_write_arcs = Function("ngpulm_write_arcs")


def build(table: NGramTable, possible: Tensor, unk_tokens: Tensor, unk_share: float, room: Room = IN_MEMORY) -> BuiltAutomaton:
    nodes = [(0, 1), *pairwise(table.offsets)]  # first node and end of each order
    arrays = _trie_arrays(table, possible, room)
    trie = NGramTrie(**arrays, num_contexts=len(arrays["fail"]), vocab_size=table.vocab_size)
    _fill_trie(table, nodes, trie, arrays, room)
    first_child = arrays["first_child"]
    blocks = [
        room.blocks_by_suffix(table.orders, n, ELEMENTS_PER_BLOCK) + nodes[n][0]
        if n and room.is_on_disk
        else _blocks(first_child, *nodes[n])
        for n in range(table.order)
    ]
    for n in range(2, table.order):
        room.in_blocks(_link, blocks[n - 1], (trie,))

    # For each block of each order: its states, the reachable n-grams after them, and the number of these that end in <unk>.
    counts = [np.array([[1, 0, 0]])]
    for n in range(1, table.order):
        counts.append(np.zeros((len(blocks[n]), 3), dtype=np.int64))
        room.in_blocks(_mark_states, blocks[n], (trie, _backoffs(table, n), nodes[n][0]), counts[n])
    more = max(unk_tokens.numel(), 1) - 1  # additional arcs for an n-gram that ends in <unk>
    states = [of_order[:, 0] for of_order in counts]
    arcs = [of_order[:, 1] + of_order[:, 2] * more for of_order in counts]
    num_met = sum(int(of_order[:, 1].sum()) for of_order in counts)
    num_states, num_arcs = (int(sum(map(np.sum, sizes))) for sizes in (states, arcs))
    num_arcs += table.vocab_size + 1
    check_arcs(num_arcs)

    tensors = AutomatonTensors.zeros(num_states, num_arcs, table.vocab_size, "cpu", room.zeros)
    tensors.arc_offsets[-1] = num_arcs
    first_states = _starts(blocks, states, 0)
    for n in range(1, table.order):
        arguments = (trie, _backoffs(table, n), nodes[n][0], tensors.backoff_states, tensors.backoff_weights)
        room.in_blocks(_number_states, blocks[n], arguments, first_states[n])
    state_of = arrays["state_of"]
    start_state = int(state_of[arrays["unigram_of"][table.bos]])

    share = float(np.float32(unk_share))
    writer = ArcWriter(
        **{name: getattr(tensors, name) for name in ("arc_offsets", "arc_tokens", "arc_weights", "arc_targets")},
        unk_tokens=unk_tokens, num_unk_tokens=unk_tokens.numel(), start_state=start_state,
        token_bytes=tensors.arc_tokens.element_size(), share=share,
        # The definition adds 0 * share to the other arcs. If the share is 0, this turns a weight of -0 into 0.
        no_share=0.0 * share if unk_tokens.numel() else -0.0,
    )  # fmt: skip
    first_arcs = _starts(blocks, arcs, table.vocab_size + 1)
    for n in range(1, table.order):
        of_order = (table.orders[n].log_probs.contiguous(), nodes[n + 1][0])
        room.in_blocks(_write_arcs, blocks[n], (trie, writer, *of_order), first_states[n], first_arcs[n])

    num_unigrams = len(table.orders[0])
    return BuiltAutomaton(
        tensors,
        [int(of_order.sum()) for of_order in states],
        torch.from_numpy(state_of[1 : 1 + num_unigrams].astype(np.int64)),
        start_state,
        sum(table.num_ngrams[1:]) - num_met,
    )


def _trie_arrays(table: NGramTable, possible: Tensor, room: Room) -> dict[str, np.ndarray]:
    num_nodes = table.offsets[-1]
    num_contexts = table.offsets[max(table.order, 2) - 1]  # unigrams count as contexts even in a model of order 1
    sizes = {"first_child": num_contexts + 1, "tokens": num_nodes, "fail": num_contexts, "state_of": num_contexts}
    arrays = {name: room.zeros(size, torch.int32).numpy() for name, size in sizes.items()}
    followed = room.zeros(num_contexts, torch.bool).numpy()
    for rows in room.spans(num_contexts):
        arrays["first_child"][rows], followed[rows] = num_nodes, True
    arrays["first_child"][-1] = num_nodes
    unigram_of = np.zeros(table.num_ids, dtype=np.int32)
    return arrays | {"followed": followed, "unigram_of": unigram_of, "possible": possible.numpy()}


def _fill_trie(
    table: NGramTable, nodes: list[tuple[int, int]], trie: NGramTrie, arrays: dict[str, np.ndarray], room: Room
) -> None:
    """Write the n-grams into the trie's nodes, and store the node of each token's unigram. For each order from 0 on, `nodes`
    has a pair: the order's first node, and the node after its last node. `arrays` are the trie's members.

    Raises NGramFormatError if n-grams aren't sorted by (prefix, token), or a prefix or token doesn't exist.
    """
    for n, columns in enumerate(table.orders, start=1):
        arguments = (trie, columns.prefixes.contiguous(), columns.tokens.contiguous(), len(columns), *nodes[n - 1], nodes[n][0])
        for row in room.in_blocks(_children, room.blocks(len(columns), ELEMENTS_PER_BLOCK), arguments):
            if row >= 0:
                wrong = f"prefix {int(columns.prefixes[row])} and token {int(columns.tokens[row])}"
                raise NGramFormatError(
                    f"row {row} of the {n}-grams, {wrong}: rows should ascend by (prefix, token), with prefixes below "
                    f"{nodes[n - 1][1] - nodes[n - 1][0]} and tokens below {table.num_ids}"
                )
    num_unigrams = len(table.orders[0])
    unigrams = arrays["tokens"][1 : 1 + num_unigrams]
    arrays["unigram_of"][unigrams] = np.arange(1, 1 + num_unigrams)
    arrays["followed"][1 : 1 + num_unigrams] = (arrays["possible"][unigrams] | (unigrams == table.bos)) & (
        unigrams != table.eos
    )


def _backoffs(table: NGramTable, n: int) -> Tensor:
    return table.orders[n - 1].backoffs.contiguous()


def _starts(blocks: list[np.ndarray], sizes: list[np.ndarray], first: int) -> list[list[int]]:
    """For each order, return the index of each block's first state (or arc). `blocks` has the ranges of contexts. `sizes` has
    the number of states (or arcs) of each block. `first` is the smallest index.
    """
    starts = []
    for of_order, own in zip(blocks, sizes):
        by_row = np.argsort(of_order[:, 0])
        begins = np.empty(len(own), dtype=np.int64)
        begins[by_row] = first + np.cumsum(own[by_row]) - own[by_row]
        starts.append(begins.tolist())
        first += int(own.sum())
    return starts


def _even_blocks(first: int, last: int) -> np.ndarray:
    return np.linspace(first, last, max(1, (last - first) // ELEMENTS_PER_BLOCK) + 1).astype(np.int64)


def _blocks(first_child: np.ndarray, first: int, last: int) -> np.ndarray:
    """Cut the contexts `first .. last - 1` into ranges `[B, 2]`, so that no range has many children or many contexts."""
    children = first_child[first : last + 1]
    # With another dtype numpy would copy `children`.
    by_children = _even_blocks(int(children[0]), int(children[-1]))[1:-1].astype(children.dtype)
    inner = np.concatenate([first + np.searchsorted(children, by_children), _even_blocks(first, last)])
    return pairs_of(np.unique(np.append(inner, [first, last])))
