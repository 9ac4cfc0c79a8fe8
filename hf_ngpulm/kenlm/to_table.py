"""From KenLM's tries, which begin with the last word, to tables, which begin with the first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..errors import NGramFormatError
from ..ngrams.arpa import LN10, LOG10_ZERO
from ..ngrams.packing import TrieOrder
from ..ngrams.steps import steps_for
from ..ngrams.table import NUM_SPECIAL, NGramOrder, NGramTable, one_thread
from .trie import TrieLevel


@one_thread()
def table_from_levels(levels: Sequence[TrieLevel], token_ids: np.ndarray, vocab_size: int) -> NGramTable:
    """The table of a trie's n-grams.

    N-grams that KenLM put in to make the trie whole (the suffixes that pruning had left out) stay: their log-probabilities
    are those that backing off gives.

    Args:
        levels: the nodes of each order, see `trie`.
        token_ids: int64 `[W]`, the id in the table of each word of the vocabulary; all different.
        vocab_size: token ids of the table.

    Raises:
        NGramFormatError: a context that isn't an n-gram of its own, or a weight that is no log-probability or backoff.
    """
    levels = _without_empty_orders(levels)
    suffix_rows = steps_for(torch.device("cpu")).suffix_rows
    num_ids = vocab_size + NUM_SPECIAL
    last_tokens = token_ids
    # Of each node of the order below: the node of its n-gram without the last word, and its row in the table.
    prefixes: torch.Tensor | None = None
    rows = torch.empty(0, dtype=torch.int64)
    below: TrieOrder | None = None
    orders = []
    for n, level in enumerate(levels, start=1):
        if n == 1:
            nodes = TrieOrder(torch.zeros(len(level.words), dtype=torch.int64), torch.from_numpy(level.words), torch.empty(0))
            prefix_rows = torch.zeros(len(level.words), dtype=torch.int64)
        else:
            assert below is not None
            parents = np.repeat(np.arange(len(below.tokens)), np.diff(levels[n - 2].children))
            last_tokens = last_tokens[parents]
            nodes = TrieOrder(torch.from_numpy(parents), torch.from_numpy(level.words), torch.empty(0))
            prefixes = _find_prefixes(suffix_rows, below, nodes, prefixes, num_ids, n)
            prefix_rows = rows[prefixes]
        keys, by_key = torch.sort(prefix_rows * num_ids + torch.from_numpy(last_tokens))
        rows = torch.empty_like(by_key)
        rows[by_key] = torch.arange(len(by_key))
        highest = n == len(levels)
        orders.append(
            NGramOrder(
                prefixes=keys // num_ids,
                tokens=(keys % num_ids).to(torch.int32),
                log_probs=torch.from_numpy(_log_probs(level.log_probs, n))[by_key],
                backoffs=torch.zeros(len(keys)) if highest else torch.from_numpy(_backoffs(level.backoffs, n))[by_key],
            )
        )
        below = nodes
    return NGramTable(vocab_size, tuple(orders))


def _without_empty_orders(levels: Sequence[TrieLevel]) -> Sequence[TrieLevel]:
    """Without a highest order that is empty, unless backing off from it costs something (as for ARPA files)."""
    while len(levels) > 1 and len(levels[-1].words) == 0 and not levels[-2].backoffs.any():
        levels = levels[:-1]
    return levels


def _find_prefixes(suffix_rows, below: TrieOrder, nodes: TrieOrder, prefixes: torch.Tensor | None, num_ids: int, n: int):
    """The node, in the order below, of each n-gram without its last word.

    It is the child, by the n-gram's first word, of the parent's prefix. Estimation asks the mirror image of that (there n-grams
    lie by their first word), and its compiled loop answers both.
    """
    found = suffix_rows(below, nodes, prefixes, num_ids)
    inside = found.clamp(max=max(len(below.tokens) - 1, 0))
    there = (found == inside) & (below.tokens[inside] == nodes.tokens) if len(below.tokens) else found < 0
    if prefixes is not None:
        there &= below.prefixes[inside] == prefixes[nodes.prefixes]
    if not bool(there.all()):
        lost = int(torch.nonzero(~there)[0, 0])
        raise NGramFormatError(f"the context of {n}-gram {lost} of the trie isn't among the {n - 1}-grams: a damaged file")
    return inside


def _log_probs(values: np.ndarray, n: int) -> np.ndarray:
    """Natural logs of log10 values; minus infinity is log 0 as ARPA files write it."""
    values = np.where(np.isneginf(values), np.float32(LOG10_ZERO), values)
    _check(values, ~(np.isfinite(values) & (values <= 0)), n, "log-probability", " of at most 0")
    return _natural(values, n, "log-probability")


def _backoffs(values: np.ndarray, n: int) -> np.ndarray:
    """Natural logs of log10 values. Minus zero, KenLM's mark of n-grams that no other begins with, is zero."""
    _check(values, ~np.isfinite(values), n, "backoff", "")
    return _natural(values + np.float32(0), n, "backoff")


def _natural(values: np.ndarray, n: int, what: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        natural = (values.astype(np.float64) * LN10).astype(np.float32)
    _check(values, ~np.isfinite(natural), n, what, "")
    return natural


def _check(values: np.ndarray, bad: np.ndarray, n: int, what: str, limit: str) -> None:
    if bad.any():
        at = int(bad.argmax())
        raise NGramFormatError(f"{n}-gram {at} has the {what} {values[at]:g}, which should be a finite number{limit}")
