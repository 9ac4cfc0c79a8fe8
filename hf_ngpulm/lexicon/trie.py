"""All spellings of a lexicon as one trie, its nodes numbered in the order in which a walk in depth meets them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..automaton.cpu import compiled


class Trie(NamedTuple):
    """The prefixes of `F` different spellings. `N` inner nodes (those that a longer spelling has as a prefix); 0 is the root.

    Spellings are in ascending order of their tokens, so that walking some of them in order of their numbers meets the nodes
    in order of theirs. A leaf has no number: the arc that leads there ends a word, and nothing can follow in it.
    """

    path_offsets: np.ndarray  # int64 [F + 1]: the nodes along spelling f, the root not among them, begin at path_offsets[f]
    path_nodes: np.ndarray  # int32 [P]: inner node, or -1 for the leaf at the end of a path
    path_tokens: np.ndarray  # int32 [P]: the token that leads there
    depths: np.ndarray  # int32 [N]: tokens of the prefix
    child_offsets: np.ndarray  # int64 [N + 1]
    child_tokens: np.ndarray  # int32 [C], ascending within a node
    child_nodes: np.ndarray  # int32 [C]: inner node, or -1 for a leaf
    child_forms: np.ndarray  # int32 [C]: the spelling that a leaf completes, or -1

    @property
    def num_forms(self) -> int:
        return len(self.path_offsets) - 1

    @property
    def num_nodes(self) -> int:
        return len(self.depths)

    @property
    def longest(self) -> int:
        """Tokens of the longest spelling."""
        return int(np.diff(self.path_offsets).max())


def sorted_spellings(offsets: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The different ones of some spellings, in ascending order.

    Args:
        offsets: `[P + 1]`, where each spelling begins.
        tokens: int32, of all of them.

    Returns:
        The number of each given spelling among the sorted ones, int64 `[P]`; their offsets `[F + 1]` and tokens.
    """
    lengths = np.diff(offsets)
    padded = np.full((len(lengths), int(lengths.max())), -1, dtype=np.int32)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    padded[rows, np.arange(len(tokens)) - offsets[rows]] = tokens
    order = np.lexsort(padded.T[::-1])
    padded = padded[order]
    is_new = np.ones(len(order), dtype=bool)
    is_new[1:] = (padded[1:] != padded[:-1]).any(axis=1)
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.cumsum(is_new) - 1
    padded, kept = padded[is_new], lengths[order][is_new]
    return number, np.concatenate([[0], np.cumsum(kept)]), padded[padded >= 0]


def build_trie(offsets: np.ndarray, tokens: np.ndarray) -> Trie:
    """The trie of spellings that are different and sorted, as `sorted_spellings` gives them."""
    path_nodes, depths, parents = _walk(offsets, tokens)
    of_node = np.argsort(parents[:, 0], kind="stable")
    counts = np.bincount(parents[:, 0], minlength=len(depths))
    node, token, form = parents[of_node, 1:].T
    return Trie(
        offsets, path_nodes, tokens, depths, np.concatenate([[0], np.cumsum(counts)]),
        np.ascontiguousarray(token), np.ascontiguousarray(node), np.ascontiguousarray(form),
    )  # fmt: skip


@compiled
def _walk(offsets, tokens):
    """Inner nodes along each path; the depth of each; and for each node its parent, number, token and form."""
    num_forms = offsets.size - 1
    path_nodes = np.empty(tokens.size, dtype=np.int32)
    depths = np.zeros(tokens.size + 1, dtype=np.int32)
    parents = np.empty((tokens.size, 4), dtype=np.int32)
    inner, nodes = 1, 0
    for form in range(num_forms):
        first, last = offsets[form], offsets[form + 1]
        shared = 0
        if form:
            before = offsets[form - 1]
            while before + shared < first and tokens[before + shared] == tokens[first + shared]:
                path_nodes[first + shared] = path_nodes[before + shared]
                shared += 1
        following = 0  # tokens that the next spelling shares
        if form + 1 < num_forms:
            while (
                first + following < last
                and last + following < offsets[form + 2]
                and (tokens[first + following] == tokens[last + following])
            ):
                following += 1
        for at in range(first + shared, last):
            is_leaf = at + 1 == last and following < last - first
            parents[nodes, 0] = 0 if at == first else path_nodes[at - 1]
            parents[nodes, 1] = -1 if is_leaf else inner
            parents[nodes, 2] = tokens[at]
            parents[nodes, 3] = form if is_leaf else -1
            nodes += 1
            path_nodes[at] = -1
            if not is_leaf:
                path_nodes[at] = inner
                depths[inner] = at + 1 - first
                inner += 1
    return path_nodes, depths[:inner].copy(), parents[:nodes].copy()
