"""Word queries as a Triton kernel. What it does is said in `reference`.

A program holds a block of rows and looks all of their keys up at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import reference, tables
from .tables import ProbingStates, ProbingTables

ROWS = 32
KEY_FACTOR = tl.constexpr(tables.KEY_FACTOR)
WORD_FACTOR = tl.constexpr(tables.WORD_FACTOR)
MIDDLE_WORDS = tl.constexpr(tables.MIDDLE_WORDS)
LONGEST_WORDS = tl.constexpr(tables.LONGEST_WORDS)
LN10 = tl.constexpr(reference.LN10)


def score(tables: ProbingTables, states: ProbingStates, words: Tensor, num_words: int) -> tuple[Tensor, ProbingStates]:
    rows, width = states.words.shape
    scores = torch.empty(words.shape, dtype=torch.float32, device=words.device)
    following = ProbingStates(*(torch.empty_like(tensor) for tensor in states))
    if rows:
        _score_kernel[(triton.cdiv(rows, ROWS),)](
            *tables, *(tensor.contiguous() for tensor in states), words.contiguous(), scores, *following,
            rows, num_words, width, ROWS=ROWS, num_warps=1,
        )  # fmt: skip
    return scores, following


@triton.jit
def _score_kernel(
    entries, begins, buckets, probes, context_words, backoffs, lengths, words, scores, new_words, new_backoffs, new_lengths,
    num_rows, num_words, width, ROWS: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = rows < num_rows
    starts = rows.to(tl.int64) * width
    word = tl.load(words + rows, mask=there, other=-1).to(tl.int64)
    given_length = tl.load(lengths + rows, mask=there, other=0)
    length = tl.minimum(given_length, width)
    inside = there & (word >= 0) & (word < num_words)
    bits = tl.load(entries + 2 * word, mask=inside, other=-1)
    log_prob = -tl.abs(bits.to(tl.float32, bitcast=True))
    backoff = tl.load(entries + 2 * word + 1, mask=inside, other=0)
    tl.store(new_backoffs + starts, backoff.to(tl.float32, bitcast=True), mask=inside)
    new_length = tl.where(backoff != -2147483648, 1, 0)
    zeros = tl.zeros((ROWS,), tl.int32)  # comparisons of blocks give blocks of truth values
    matched = zeros + 1
    key = word
    looking = inside & (bits >= 0)
    for i in range(width):
        looking = looking & (i < length)
        context_word = tl.load(context_words + starts + i, mask=looking, other=0).to(tl.int64)
        key = (key * KEY_FACTOR) ^ ((context_word + 1) * WORD_FACTOR)
        size = tl.where(i + 1 < width, MIDDLE_WORDS, LONGEST_WORDS)
        begin = tl.load(begins + i)
        num_buckets = tl.load(buckets + i)
        # The remainder of the key as a number without sign.
        bucket = (((key >> 1) & 0x7FFFFFFFFFFFFFFF) % num_buckets * 2 + (key & 1)) % num_buckets
        left = tl.load(probes + i)
        searching = looking & (key != 0)
        found = searching & (key == 0)
        while (left > 0) & (tl.max(searching.to(tl.int32), axis=0) > 0):
            at = begin + bucket * size
            low = tl.load(entries + at, mask=searching, other=0).to(tl.int64) & 0xFFFFFFFF
            high = tl.load(entries + at + 1, mask=searching, other=0).to(tl.int64)
            stored = low | (high << 32)
            found = found | (searching & (stored == key))
            searching = searching & (stored != key) & (stored != 0)
            bucket = tl.where(searching, tl.where(bucket + 1 == num_buckets, 0, bucket + 1), bucket)
            left -= 1
        at = begin + bucket * size
        bits = tl.load(entries + at + 2, mask=found, other=-1)
        log_prob = tl.where(found, -tl.abs(bits.to(tl.float32, bitcast=True)), log_prob)
        matched = tl.where(found, i + 2, matched)
        extending = found & (zeros + i + 1 < width)
        backoff = tl.load(entries + at + 3, mask=extending, other=0)
        tl.store(new_backoffs + starts + i + 1, backoff.to(tl.float32, bitcast=True), mask=extending)
        new_length = tl.where(extending & (backoff != -2147483648), i + 2, new_length)
        looking = found & (bits >= 0)
    for i in range(width):
        given_word = tl.load(context_words + starts + i, mask=there, other=0)
        given_backoff = tl.load(backoffs + starts + i, mask=there, other=0.0)
        log_prob += tl.where((i >= matched - 1) & (i < length), given_backoff, 0.0)
        before = tl.load(context_words + starts + i - 1, mask=inside & (zeros + i > 0), other=0)
        kept = tl.where(i < new_length, tl.where(i > 0, before, word.to(tl.int32)), 0)
        tl.store(new_words + starts + i, tl.where(inside, kept, given_word), mask=there)
        # The backoffs of a kept context have been written above.
        written = inside & (i < new_length)
        tl.store(new_backoffs + starts + i, tl.where(inside, 0.0, given_backoff), mask=there & (written == 0))
    tl.store(scores + rows, tl.where(inside, log_prob * LN10, 0.0), mask=there)
    tl.store(new_lengths + rows, tl.where(inside, new_length, given_length), mask=there)


def aot_signatures() -> Iterator[tuple[Any, dict[str, str], dict[str, Any]]]:
    """Every kernel with the argument types and constants it is launched with, for compiling ahead of time."""
    integers = dict.fromkeys(("entries", "context_words", "lengths", "new_words", "new_lengths"), "*i32")
    longs = dict.fromkeys(("begins", "buckets", "probes"), "*i64")
    floats = dict.fromkeys(("backoffs", "scores", "new_backoffs"), "*fp32")
    sizes = dict.fromkeys(("num_rows", "num_words", "width"), "i32")
    for word_type in ("*i32", "*i64"):
        yield _score_kernel, integers | longs | floats | sizes | {"words": word_type}, {"ROWS": ROWS}
