"""Texts -> token ids, in batches, ahead of whoever counts them."""

from __future__ import annotations

import os
import queue
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing import get_context
from typing import Any

import numpy as np

Encoded = tuple[np.ndarray, np.ndarray]
BATCHES_AHEAD = 4
# A Python tokenizer starts other processes only for texts of at least so many batches: they take seconds to start.
BATCHES_WORTH_PROCESSES = 8


@dataclass
class TextReport:
    """What a tokenizer made of texts.

    Args:
        num_sentences: texts with at least a token; `num_empty` have none.
        num_words: blank-separated.
        num_unknown: tokens that stand for something that the tokenizer can't write.
        unknown: these pieces of text, with how often each occurs.
    """

    num_sentences: int = 0
    num_empty: int = 0
    num_words: int = 0
    num_tokens: int = 0
    num_characters: int = 0
    num_unknown: int = 0
    unknown: Counter[str] = field(default_factory=Counter)


def encode_texts(
    texts: Iterable[str],
    tokenizer: Any,
    vocab_size: int,
    batch_size: int = 4096,
    workers: int | None = None,
    report: TextReport | None = None,
) -> Iterator[Encoded]:
    """Yield token ids of texts: for each batch int32 ids `[L]` of all its texts and int64 lengths `[S]`, 0 for those without
    a token.

    Unknown tokens, and ids from `vocab_size` up, become -1. Batches are encoded in the
    background while the caller works on earlier ones: on several threads by tokenizers that are written in Rust, in several
    processes by those written in Python.

    Args:
        workers: processes for the latter; all cores by default.
        report: is added to.
    """
    report = TextReport() if report is None else report
    silent = SilentlyDropped(tokenizer)
    for batch, (ids, lengths, unknown) in _ahead(_encoded_batches(iter(texts), tokenizer, vocab_size, batch_size, workers)):
        report.num_sentences += int((lengths > 0).sum())
        report.num_empty += int((lengths == 0).sum())
        report.num_words += sum(text.count(" ") + 1 for text in batch if text)
        report.num_tokens += ids.size
        report.num_characters += sum(map(len, batch))
        for pieces in unknown.values():
            report.unknown.update(pieces)
        report.unknown.update(silent.found_in(batch))
        report.num_unknown = report.unknown.total()
        yield ids, lengths


def _encoded_batches(
    texts: Iterator[str], tokenizer: Any, vocab_size: int, batch_size: int, workers: int | None
) -> Iterator[tuple[list[str], Any]]:
    batches = iter(lambda: list(islice(texts, batch_size)), [])
    workers = (os.cpu_count() or 1) if workers is None else workers
    if tokenizer.is_fast or workers < 2:
        for batch in batches:
            yield batch, encode_batch(batch, tokenizer, vocab_size)
        return
    first = list(islice(batches, BATCHES_WORTH_PROCESSES))
    if len(first) < BATCHES_WORTH_PROCESSES:
        for batch in first:
            yield batch, encode_batch(batch, tokenizer, vocab_size)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), _prepare_process, (tokenizer, vocab_size)) as pool:
        pending: list[tuple[list[str], Future[Any]]] = []
        try:
            for batch in (batch for part in (first, batches) for batch in part):
                pending.append((batch, pool.submit(_encode_in_process, batch)))
                if len(pending) > 2 * workers:
                    done, result = pending.pop(0)
                    yield done, result.result()
            for done, result in pending:
                yield done, result.result()
        finally:
            pool.shutdown(cancel_futures=True)


_in_process: dict[str, Any] = {}


def _prepare_process(tokenizer: Any, vocab_size: int) -> None:
    _in_process.update(tokenizer=tokenizer, vocab_size=vocab_size)


def _encode_in_process(batch: list[str]) -> Any:
    return encode_batch(batch, **_in_process)


def encode_batch(batch: list[str], tokenizer: Any, vocab_size: int) -> tuple[np.ndarray, np.ndarray, dict[int, list[str]]]:
    """Return ids `[L]`, lengths `[S]` (0 for texts without a token) and, by text, the pieces that are unknown to the
    tokenizer."""
    encoded = tokenizer(batch, add_special_tokens=False, return_attention_mask=False, verbose=False)
    rows = encoded["input_ids"]
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    ids = np.fromiter((token for row in rows for token in row), dtype=np.int32, count=int(lengths.sum()))
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
            spans = encoded.encodings[n].offsets  # the tokenizer knows them, though it wasn't asked
            unknown = is_unknown[ends[n] - lengths[n] : ends[n]].tolist()
            found = [batch[n][first:last] for (first, last), is_one in zip(spans, unknown) if is_one]
            pieces[n] = [piece.strip() or piece for piece in found]
    else:
        pieces = _unknown_units({n: batch[n] for n in which}, tokenizer, vocab_size)
    ids[is_unknown] = -1
    return ids, lengths, pieces


def _unknown_units(texts: dict[int, str], tokenizer: Any, vocab_size: int) -> dict[int, list[str]]:
    """Return the letters, or words, of texts that become unknown tokens, for tokenizers that don't say where tokens come
    from."""
    by_character = _by_character(tokenizer)
    units = {n: list(text.replace(" ", "")) if by_character else text.split() for n, text in texts.items()}
    each = list(dict.fromkeys(unit for found in units.values() for unit in found))
    rows = tokenizer(each, add_special_tokens=False, verbose=False)["input_ids"] if each else []
    unknown = {unit for unit, row in zip(each, rows) if any(t >= vocab_size or t == tokenizer.unk_token_id for t in row)}
    return {n: [unit for unit in found if unit in unknown] for n, found in units.items()}


def _by_character(tokenizer: Any) -> bool:
    """Return whether a tokenizer writes a word letter by letter, as those of wav2vec2 do."""
    return len(tokenizer.tokenize("ab")) == 2


class SilentlyDropped:
    """Characters that a tokenizer without an unknown token leaves out without a word."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.kept: set[str] = set()
        self.dropped: set[str] = set()

    def found_in(self, batch: list[str]) -> Counter[str]:
        found: Counter[str] = Counter()
        if self.tokenizer.unk_token_id is not None:
            return found
        new = list(set().union(*batch) - self.kept - self.dropped)
        rows = self.tokenizer(new, add_special_tokens=False)["input_ids"] if new else []
        for character, ids in zip(new, rows):
            (self.kept if ids or character.isspace() else self.dropped).add(character)
        if self.dropped:
            for text in batch:
                found.update(character for character in text if character in self.dropped)
        return found


def _ahead(items: Iterator[Any]) -> Iterator[Any]:
    """Yield items made in a thread, a few ahead. Its errors are raised here; it ends when the caller goes away."""
    ready: queue.Queue[tuple[str, Any]] = queue.Queue(BATCHES_AHEAD)
    gone = threading.Event()

    def put(entry: tuple[str, Any]) -> bool:
        while not gone.is_set():
            try:
                ready.put(entry, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def make() -> None:
        try:
            for item in items:
                if not put(("item", item)):
                    items.close()  # type: ignore[attr-defined]
                    return
            put(("end", None))
        except BaseException as error:
            put(("error", error))

    thread = threading.Thread(target=make, name="encoding", daemon=True)
    thread.start()
    try:
        while True:
            kind, value = ready.get()
            if kind == "end":
                return
            if kind == "error":
                raise value
            yield value
    finally:
        gone.set()
        thread.join()
