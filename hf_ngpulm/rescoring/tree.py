"""Arrange token sequences with common prefixes in a tree, so that a model reads each prefix once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np


class Tree(NamedTuple):
    """Hold a tree of prefixes. The sequences with these prefixes follow one context.

    A node is a prefix after which another token follows. The model's output at a node has the scores of the next tokens. So the
    last token of a sequence needs no node.
    """

    tokens: np.ndarray  # last token of each node, int64 [N]; first the context's tokens, and parents before children
    depths: np.ndarray  # number of tokens before each node, int64 [N]
    ancestors: np.ndarray  # whether node j is node i or one of its ancestors, bool [N, N] (i, j)
    edges: np.ndarray  # for each different scored token, its node and the token, int64 [E, 2]
    paths: list[list[int]]  # for each sequence, the numbers of its edges


def tree_of(context: Sequence[int], sequences: Sequence[Sequence[int]]) -> Tree:
    """Return the tree of token sequences that follow one context. Each sequence and the context have at least one token."""
    tokens, parents = list(context), list(range(-1, len(context) - 1))
    nodes: dict[tuple[int, int], int] = {}
    edges: dict[tuple[int, int], int] = {}
    paths = []
    for sequence in sequences:
        node, path = len(context) - 1, []
        for place, token in enumerate(sequence):
            path.append(edges.setdefault((node, token), len(edges)))
            if place + 1 == len(sequence):
                break
            child = nodes.setdefault((node, token), len(tokens))
            if child == len(tokens):
                tokens.append(token)
                parents.append(node)
            node = child
        paths.append(path)
    ancestors = np.eye(len(tokens), dtype=bool)
    depths = np.zeros(len(tokens), np.int64)
    for node, parent in enumerate(parents[1:], start=1):
        ancestors[node] |= ancestors[parent]
        depths[node] = depths[parent] + 1
    return Tree(np.array(tokens), depths, ancestors, np.array([*edges]).reshape(-1, 2), paths)


def trees_of(context: Sequence[int], sequences: Sequence[Sequence[int]], most: int) -> Iterator[tuple[list[int], Tree]]:
    """Yield trees of up to `most` nodes, and the indices of each tree's sequences. A longer sequence gets its own tree."""
    every = sorted(range(len(sequences)), key=lambda number: list(sequences[number]))  # neighbours begin alike
    waiting = [every] if every else []
    while waiting:
        numbers = waiting.pop()
        tree = tree_of(context, [sequences[number] for number in numbers])
        if len(tree.tokens) <= most or len(numbers) == 1:
            yield numbers, tree
        else:
            half = len(numbers) // 2
            waiting += [numbers[half:], numbers[:half]]
