"""Encode texts as token ids in batches, in the background."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from itertools import chain, islice, repeat, tee
from multiprocessing import get_context
from typing import Any

import numpy as np

Encoded = tuple[np.ndarray, np.ndarray]
BATCHES_AHEAD = 4
# Least number of batches for which a Python tokenizer starts other processes, because they take seconds to start.
BATCHES_WORTH_PROCESSES = 8


def encode_texts(
    texts: Iterable[str],
    tokenizer: Any,
    vocab_size: int,
    batch_size: int = 4096,
    workers: int | None = None,
    unknown: Counter[str] | None = None,
) -> Iterator[Encoded]:
    """Yield two arrays for each batch of texts: the token ids, int32 `[L]`, and the number of tokens of each text, int64 `[S]`.

    Unknown tokens, and ids of `vocab_size` or more, become -1. Batches are encoded in the background while the caller works on
    earlier batches. Tokenizers written in Rust use several threads. Tokenizers written in Python use several processes.

    Args:
        workers: number of processes for a tokenizer written in Python; by default the number of cores.
        unknown: a counter, to which this function adds the parts of the texts that the tokenizer can't write.
    """
    unknown = Counter() if unknown is None else unknown
    silent = SilentlyDropped(tokenizer)
    rest = iter(texts)
    batches = iter(lambda: list(islice(rest, batch_size)), [])
    encoded = _encoded_batches(batches, tokenizer, vocab_size, (os.cpu_count() or 1) if workers is None else workers)
    with closing(_ahead(ThreadPoolExecutor(1, "encoding"), repeat((next, encoded, None)), BATCHES_AHEAD)) as ready:
        for batch, (ids, lengths, pieces) in ready:
            unknown.update(chain.from_iterable(pieces.values()))
            unknown.update(silent.found_in(batch))
            yield ids, lengths


def _ahead(pool: Executor, calls: Iterable[tuple[Any, ...]], count: int) -> Generator[Any, None, None]:
    """Yield the results of calls until a call returns None. Up to `count` calls run ahead. Errors of calls are raised."""
    pending: deque[Future[Any]] = deque()
    calls = iter(calls)
    try:
        while True:
            pending.extend(pool.submit(*call) for call in islice(calls, count - len(pending)))
            if not pending or (found := pending.popleft().result()) is None:
                return
            yield found
    finally:
        pool.shutdown(cancel_futures=True)


def _encoded_batches(
    batches: Iterator[list[str]], tokenizer: Any, vocab_size: int, workers: int
) -> Iterator[tuple[list[str], Any]]:
    first = [] if tokenizer.is_fast or workers < 2 else list(islice(batches, BATCHES_WORTH_PROCESSES))
    batches = chain(first, batches)
    if len(first) < BATCHES_WORTH_PROCESSES:
        for batch in batches:
            yield batch, encode_batch(batch, tokenizer, vocab_size)
        return
    batches, copies = tee(batches)
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _prepare_process, (tokenizer, vocab_size))
    with closing(_ahead(pool, ((_encode_in_process, batch) for batch in copies), 2 * workers)) as ready:
        yield from zip(batches, ready)


_in_process: list[Any] = []


def _prepare_process(*settings: Any) -> None:
    _in_process[:] = settings


def _encode_in_process(batch: list[str]) -> Any:
    return encode_batch(batch, *_in_process)


def encode_batch(batch: list[str], tokenizer: Any, vocab_size: int) -> tuple[np.ndarray, np.ndarray, dict[int, list[str]]]:
    """Return the ids `[L]` (-1 for unknown tokens) and the lengths `[S]`. Also return the parts of texts that the tokenizer
    can't write, by the text's index.
    """
    encoded = tokenizer(batch, add_special_tokens=False, return_attention_mask=False, verbose=False)
    rows = encoded["input_ids"]
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    ids = np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(lengths.sum()))
    is_unknown = ids >= vocab_size
    if tokenizer.unk_token_id is not None:
        is_unknown |= ids == tokenizer.unk_token_id
    if not is_unknown.any():
        return ids, lengths, {}
    ends = np.cumsum(lengths)
    which = np.unique(np.searchsorted(ends, np.flatnonzero(is_unknown), side="right")).tolist()
    if tokenizer.is_fast:
        pieces = {}
        for n in which:
            spans = encoded.encodings[n].offsets  # available although `return_offsets_mapping` wasn't set
            unknown = is_unknown[ends[n] - lengths[n] : ends[n]].tolist()
            missing = [batch[n][first:last] for (first, last), is_one in zip(spans, unknown) if is_one]
            pieces[n] = [piece.strip() or piece for piece in missing]
    else:
        pieces = _unknown_units({n: batch[n] for n in which}, tokenizer, vocab_size)
    ids[is_unknown] = -1
    return ids, lengths, pieces


def _unknown_units(texts: dict[int, str], tokenizer: Any, vocab_size: int) -> dict[int, list[str]]:
    """Return the letters or words that become unknown tokens, by the text's index, for tokenizers that don't report offsets.
    `texts`: the texts, by index.
    """
    by_character = len(tokenizer.tokenize("ab")) == 2  # tokens are letters, as in wav2vec2
    units = {n: list(text.replace(" ", "")) if by_character else text.split() for n, text in texts.items()}
    each = list(dict.fromkeys(unit for found in units.values() for unit in found))
    rows = tokenizer(each, add_special_tokens=False, verbose=False)["input_ids"] if each else []
    unknown = {unit for unit, row in zip(each, rows) if any(t >= vocab_size or t == tokenizer.unk_token_id for t in row)}
    return {n: [unit for unit in found if unit in unknown] for n, found in units.items()}


class SilentlyDropped:
    """Find the characters that a tokenizer without an unknown token drops without an error."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.kept: set[str] = set()
        self.dropped: set[str] = set()

    def found_in(self, batch: list[str]) -> Counter[str]:
        counts: Counter[str] = Counter()
        if self.tokenizer.unk_token_id is not None:
            return counts
        new = list(set().union(*batch) - self.kept - self.dropped)
        rows = self.tokenizer(new, add_special_tokens=False)["input_ids"] if new else []
        for character, ids in zip(new, rows):
            (self.kept if ids or character.isspace() else self.dropped).add(character)
        if self.dropped:
            for text in batch:
                counts.update(character for character in text if character in self.dropped)
        return counts
