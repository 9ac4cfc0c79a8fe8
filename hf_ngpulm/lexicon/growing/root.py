"""The part of a composed automaton that any other begins with: the LM's root, with all nodes of the trie."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from ...automaton.tensors import AutomatonTensors, token_dtype
from .. import loops
from ..spellings import Boundaries
from ..trie import Trie
from ..word_lm import FormArcs


class Root(NamedTuple):
    """State 0 is the LM's root, state 1 the unknown word, and those of the inner nodes 1, 2, ... follow."""

    tensors: AutomatonTensors  # with states that have no arcs yet behind these
    mass: np.ndarray  # float64 `[N]`, by node


def compose_root(
    arcs: FormArcs,
    trie: Trie,
    boundaries: Boundaries,
    behind: np.ndarray,
    ends_behind: np.ndarray,
    start: int,
    unknown: tuple[float, int, float, float],
    num_states: int,
) -> Root:
    """Compose the LM's root, see `hf_ngpulm.lexicon.composition`.

    Args:
        arcs: of the root.
        trie, boundaries: as there.
        behind, ends_behind: int64 and float64 `[F]`, the state behind each form, and log p(</s>) there.
        start: the state behind `<s>`.
        unknown: the score of an unknown word, the state behind it and log p(</s>) there, and what each token adds.
        num_states: with those that have no arcs yet.
    """
    size, vocab_size, delimiter = trie.num_nodes, len(boundaries.begins_word), boundaries.delimiter_id
    offsets, none = np.array([0, len(arcs.forms)]), (np.zeros(1, dtype=np.int32), np.zeros(1))
    paths, every = (trie.path_offsets, trie.path_nodes), (0, 1)
    known = (offsets, arcs.forms, arcs.log_probs, *none)
    first_place = np.array([0, size], dtype=np.int64)
    nodes, mass, word_arcs = np.empty(size, dtype=np.int32), np.empty(size), np.empty(size, dtype=np.int64)
    arguments: tuple[Any, ...] = (*every, *known, *paths, first_place, size, trie.longest, nodes, mass, word_arcs)
    loops.weigh(*arguments)
    arguments = (*every, *known[:2], arcs.ends, *paths, trie.child_offsets, first_place, nodes, word_arcs, delimiter,
                 vocab_size, boundaries.num_unknown_arcs, trie.longest)  # fmt: skip
    arc_offsets = loops.count_arcs(*arguments)
    num_arcs = int(arc_offsets[-1])
    written = (
        np.empty(num_arcs, dtype=np.int16 if token_dtype(vocab_size) == torch.int16 else np.int32),
        np.empty(num_arcs, dtype=np.float32),
        np.empty(num_arcs, dtype=np.int32),
        np.zeros(num_states, dtype=np.int32),
        np.zeros(num_states, dtype=np.float32),
    )
    score, unknown_state, unknown_end, token_score = unknown
    arguments = (
        *every, *known, arcs.ends, ends_behind, behind, np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64), start, score,
        unknown_state, unknown_end, token_score,
        *paths, trie.path_tokens, trie.depths, trie.child_offsets, trie.child_tokens, trie.child_nodes, trie.child_forms,
        first_place, nodes, mass, word_arcs, boundaries.begins_word, delimiter, vocab_size, trie.longest, arc_offsets, *written,
    )  # fmt: skip
    broken = loops.fill(*arguments)
    assert broken < 0, f"state {broken} of {1 + size} has another number of arcs than were counted"
    all_offsets = np.full(num_states + 1, num_arcs, dtype=np.int32)
    all_offsets[: len(arc_offsets)] = arc_offsets
    return Root(AutomatonTensors(*map(torch.from_numpy, (all_offsets, *written))), mass)
