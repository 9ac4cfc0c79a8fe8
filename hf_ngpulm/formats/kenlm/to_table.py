"""From KenLM's n-grams, by their last word first in tries and in any order in hash tables, to tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from ...errors import NGramFormatError
from ...ngrams.steps import TrieOrder, steps_for
from ...ngrams.table import NUM_SPECIAL, NGramOrder, NGramTable, one_thread
from ..arpa import LN10, LOG10_ZERO
from .trie import TrieLevel


class Ngrams(NamedTuple):
    """The n-grams of one order, in any order."""

    prefixes: np.ndarray  # int [N], index of the n-gram without its last word in the order below (0 for unigrams)
    last_words: np.ndarray  # int [N], word ids
    log_probs: np.ndarray  # float32 [N], log10
    backoffs: np.ndarray  # float32 [N], log10; empty in the highest order


@one_thread()
def table_from_ngrams(orders: Sequence[Ngrams], token_ids: np.ndarray, vocab_size: int) -> NGramTable:
    """Return the table of a model's n-grams.

    N-grams that KenLM put in to make its data structures whole (the suffixes that pruning had left out) stay: their
    log-probabilities are those that backing off gives.

    Args:
        orders: the n-grams, lowest order first.
        token_ids: int64 `[W]`, the id in the table of each word of the vocabulary; all different.
        vocab_size: token ids of the table.

    Raises:
        NGramFormatError: a weight that is no log-probability or backoff.
    """
    # Without a highest order that is empty, unless backing off from it costs something (as for ARPA files).
    while len(orders) > 1 and len(orders[-1].last_words) == 0 and not orders[-2].backoffs.any():
        orders = orders[:-1]
    num_ids = vocab_size + NUM_SPECIAL
    rows = torch.zeros(1, dtype=torch.int64)  # of the order below, in the table
    made = []
    for n, order in enumerate(orders, start=1):
        keys, by_key = torch.sort(
            rows[torch.from_numpy(order.prefixes)] * num_ids + torch.from_numpy(token_ids[order.last_words])
        )
        rows = torch.empty_like(by_key)
        rows[by_key] = torch.arange(len(by_key))
        log_probs = torch.from_numpy(_log_probs(order.log_probs, n))[by_key]
        backoffs = torch.zeros(len(keys))
        if n < len(orders):
            backoffs = torch.from_numpy(_backoffs(order.backoffs, n))[by_key]
        made.append(NGramOrder(keys // num_ids, (keys % num_ids).to(torch.int32), log_probs, backoffs))
    return NGramTable(vocab_size, tuple(made))


@one_thread()
def ngrams_of_levels(levels: Sequence[TrieLevel]) -> list[Ngrams]:
    """Return the n-grams of a trie's nodes.

    Raises:
        NGramFormatError: a context that isn't an n-gram of its own.
    """
    suffix_rows = steps_for(torch.device("cpu")).suffix_rows
    num_ids = len(levels[0].words) + 1
    words = levels[0].words
    orders = [Ngrams(np.zeros(len(words), dtype=np.int64), words, levels[0].log_probs, levels[0].backoffs)]
    below = TrieOrder(torch.zeros(len(words), dtype=torch.int64), torch.from_numpy(words), torch.empty(0))
    prefixes: torch.Tensor | None = None
    for n, level in enumerate(levels[1:], start=2):
        parents = np.repeat(np.arange(len(below.tokens)), np.diff(levels[n - 2].children))
        nodes = TrieOrder(torch.from_numpy(parents), torch.from_numpy(level.words), torch.empty(0))
        prefixes = _find_prefixes(suffix_rows, below, nodes, prefixes, num_ids, n)
        orders.append(Ngrams(prefixes.numpy(), orders[-1].last_words[parents], level.log_probs, level.backoffs))
        below = nodes
    return orders


def _find_prefixes(suffix_rows, below: TrieOrder, nodes: TrieOrder, prefixes: torch.Tensor | None, num_ids: int, n: int):
    """Return the node, in the order below, of each n-gram without its last word.

    It is the child, by the n-gram's first word, of the parent's prefix. Estimation asks the mirror image of that (there n-grams
    lie by their first word), and the core answers both.
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
    """Return natural logs of log10 values; minus infinity is log 0 as ARPA files write it."""
    values = np.where(np.isneginf(values), np.float32(LOG10_ZERO), values)
    _check(values, ~(np.isfinite(values) & (values <= 0)), n, "log-probability", " of at most 0")
    return _natural(values, n, "log-probability")


def _backoffs(values: np.ndarray, n: int) -> np.ndarray:
    """Return natural logs of log10 values. Minus zero, KenLM's mark of n-grams that no other begins with, is zero."""
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
