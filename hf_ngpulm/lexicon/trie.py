"""Build one trie of all spellings of a lexicon, with nodes numbered in depth-first order."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ..engines.native import Function, Struct


class NgpulmSpellingTrie(Struct):
    """A `Trie` in the form that the core reads."""


_spelling_trie = Function("ngpulm_spelling_trie")

KEY = np.dtype(">i4")  # big-endian, so that the bytes sort like the tokens


class Trie(NamedTuple):
    """The prefixes of `F` distinct spellings. `N` inner nodes are the proper prefixes of spellings; node 0 is the root.

    Spellings are sorted by their tokens, so a walk through the spellings visits the nodes in the order of their numbers. Leaves
    have no number. An arc that leads to a leaf ends a word that isn't a prefix of another word.
    """

    path_offsets: np.ndarray  # int64 [F + 1]: the nodes along spelling f, the root not among them, begin at path_offsets[f]
    path_nodes: np.ndarray  # int32 [P]: inner node, or -1 for the leaf at the end of a path
    path_tokens: np.ndarray  # int32 [P]: the token that leads to that node
    depths: np.ndarray  # int32 [N]: length of the prefix in tokens
    child_offsets: np.ndarray  # int64 [N + 1]
    child_tokens: np.ndarray  # int32 [C], ascending within a node
    child_nodes: np.ndarray  # int32 [C]: inner node, or -1 for a leaf
    child_forms: np.ndarray  # int32 [C]: the spelling that a leaf completes, or -1
    end_forms: np.ndarray  # int32 [N]: end of the spellings through a node

    @property
    def num_forms(self) -> int:
        return len(self.path_offsets) - 1

    @property
    def num_nodes(self) -> int:
        return len(self.depths)

    @property
    def longest(self) -> int:
        """Length of the longest spelling in tokens."""
        return int(np.diff(self.path_offsets).max(initial=0))

    @property
    def native(self) -> NgpulmSpellingTrie:
        return NgpulmSpellingTrie(**self._asdict(), num_forms=self.num_forms, num_nodes=self.num_nodes)


def sorted_spellings(offsets: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the distinct spellings, sorted.

    Args:
        offsets: `[P + 1]`, start of each spelling.
        tokens: int32, all spellings concatenated.

    Returns:
        Three arrays: the index of each spelling in the sorted list, int64 `[P]`; the start of each spelling among the tokens of
        the sorted list, `[F + 1]`; and the tokens of the sorted list.
    """
    if len(offsets) == 1:
        return np.zeros(0, dtype=np.int64), offsets, tokens
    keys = spelling_keys(offsets, tokens)
    different = sorted(set(keys))
    numbers = dict(zip(different, range(len(different))))
    number = np.fromiter(map(numbers.__getitem__, keys), np.int64, len(keys))
    lengths = np.fromiter(map(len, different), np.int64, len(different)) // KEY.itemsize
    return number, np.concatenate([[0], np.cumsum(lengths)]), np.frombuffer(b"".join(different), KEY).astype(np.int32)


def spelling_keys(offsets: np.ndarray, tokens: np.ndarray) -> list[bytes]:
    """Return each spelling as bytes. The bytes sort like the tokens, without padding to the length of the longest spelling."""
    content, ends = tokens.astype(KEY).tobytes(), (KEY.itemsize * offsets).tolist()
    return [content[first:end] for first, end in pairwise(ends)]


def build_trie(offsets: np.ndarray, tokens: np.ndarray) -> Trie:
    """Return the trie of distinct, sorted spellings, as returned by `sorted_spellings`."""
    size = len(tokens) + 1
    path_nodes, depths, end_forms, child_tokens, child_nodes, child_forms = np.empty((6, size), dtype=np.int32)
    child_offsets, sizes = np.empty(size + 1, dtype=np.int64), np.empty(2, dtype=np.int64)
    of_children = (child_tokens, child_nodes, child_forms)
    _spelling_trie(offsets, tokens, len(offsets) - 1, path_nodes, depths, end_forms, child_offsets, *of_children, sizes)
    num_nodes, num_children = sizes.tolist()
    token, node, form = (column[:num_children].copy() for column in of_children)
    return Trie(
        offsets, path_nodes[:-1].copy(), tokens, depths[:num_nodes].copy(), child_offsets[: num_nodes + 1].copy(), token, node,
        form, end_forms[:num_nodes].copy(),
    )  # fmt: skip
