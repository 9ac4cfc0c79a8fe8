"""Word queries in plain torch: the definition, and what runs anywhere."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .tables import KEY_FACTOR, LONGEST_WORDS, MIDDLE_WORDS, WORD_FACTOR, ProbingStates, ProbingTables

LN10 = math.log(10.0)


def score(tables: ProbingTables, states: ProbingStates, words: Tensor, num_words: int) -> tuple[Tensor, ProbingStates]:
    """Natural log of p(word | context), float32 `[B]`, and the context after the word, for words `[B]`.

    KenLM's own way: the n-gram is lengthened to the left, from the word alone, as long as there are such n-grams; contexts
    longer than the one found add their backoffs. Of the new context only what some n-gram may need is kept.
    """
    width = states.words.shape[1]
    inside = (words >= 0) & (words < num_words)
    lengths = states.lengths.clamp(0, width)
    word = torch.where(inside, words, 0).to(torch.int64)
    log_prob, done = _log_prob(tables.entries[2 * word])
    backoff = _float(tables.entries[2 * word + 1])
    new_backoffs = torch.zeros_like(states.backoffs)
    new_backoffs[:, 0] = backoff
    new_lengths = _has_extension(backoff).to(torch.int32)
    matched = torch.ones_like(lengths)
    key = word
    looking = ~done
    for i in range(width):
        looking = looking & (i < lengths)
        key = key * KEY_FACTOR ^ (1 + states.words[:, i].to(torch.int64)) * WORD_FACTOR
        found_at, found = _find(tables, i, width, key, looking)
        value, ends = _log_prob(tables.entries[found_at + 2])
        log_prob = torch.where(found, value, log_prob)
        matched = torch.where(found, i + 2, matched)
        if i + 1 < width:
            backoff = _float(tables.entries[found_at + 3])
            new_backoffs[:, i + 1] = torch.where(found, backoff, 0.0)
            new_lengths = torch.where(found & _has_extension(backoff), i + 2, new_lengths)
        looking = found & ~ends
    for i in range(width):
        log_prob = log_prob + torch.where((i >= matched - 1) & (i < lengths), states.backoffs[:, i], 0.0)
    kept = torch.arange(width, device=words.device) < new_lengths[:, None]
    new_words = torch.cat([word[:, None].to(torch.int32), states.words[:, :-1]], dim=1)
    following = ProbingStates(torch.where(kept, new_words, 0), torch.where(kept, new_backoffs, 0.0), new_lengths)
    return (
        torch.where(inside, log_prob * LN10, 0.0),
        ProbingStates(*(torch.where(inside.view(-1, *[1] * (b.dim() - 1)), a, b) for a, b in zip(following, states))),
    )


def _find(tables: ProbingTables, i: int, width: int, key: Tensor, looking: Tensor) -> tuple[Tensor, Tensor]:
    """Where the bucket of each key begins in the entries, and whether there is one; the table is that of order `i + 2`."""
    begin, buckets, probes = (int(tensor[i]) for tensor in (tables.begins, tables.buckets, tables.probes))
    size = MIDDLE_WORDS if i + 1 < width else LONGEST_WORDS
    bucket = _unsigned_remainder(key, buckets)
    found = torch.zeros_like(looking)
    for _ in range(probes):
        if not bool(looking.any()):
            break
        at = begin + bucket * size
        stored = (tables.entries[at].to(torch.int64) & 0xFFFFFFFF) | (tables.entries[at + 1].to(torch.int64) << 32)
        found = found | (looking & (stored == key))
        looking = looking & (stored != key) & (stored != 0)
        bucket = torch.where(looking, torch.where(bucket + 1 == buckets, 0, bucket + 1), bucket)
    return begin + bucket * size, found & (key != 0)


def _unsigned_remainder(key: Tensor, buckets: int) -> Tensor:
    """`key mod buckets`, the key taken as a number without sign."""
    return ((key >> 1 & 2**63 - 1) % buckets * 2 + (key & 1)) % buckets


def _float(bits: Tensor) -> Tensor:
    return bits.contiguous().view(torch.float32)


def _log_prob(bits: Tensor) -> tuple[Tensor, Tensor]:
    """The log-probability, and whether no longer n-gram ends in this one."""
    return -_float(bits).abs(), bits < 0


def _has_extension(backoff: Tensor) -> Tensor:
    """Whether some n-gram may begin with this one: the backoff isn't minus zero."""
    return ~((backoff == 0) & torch.signbit(backoff))
