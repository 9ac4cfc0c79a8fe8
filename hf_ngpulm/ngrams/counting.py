"""Count n-grams of all orders in a stream of sentences, in bounded memory.

Every position of the text starts an n-gram of the highest order (cut at the end of its sentence). These n-grams are packed into
integers (words of 63 bits, see `Packing`), and sorted and counted chunk by chunk. A sorted run has the distinct n-grams of some
chunks. Runs are merged. If runs exceed the memory limit, they are stored on disk, and so are the resulting n-grams (see
`room`). The n-grams of the lower orders are prefixes of the counted n-grams, so one pass over the merged run yields all orders.
"""

from __future__ import annotations

import json
import mmap
import re
import shutil
import tempfile
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..common.files import write_beside
from ..engines.choice import is_native
from ..engines.devices import numbered
from .room import IN_MEMORY, Room, give_back_freed, map_file, no_room
from .steps import Packing, SortedRun, TrieOrder, steps_for

MAX_ORDER = 12
DEFAULT_MEMORY = 4 << 30
# Larger chunks are no faster.
MAX_CHUNK = 1 << 24
MIN_CHUNK = 1 << 10
STATE = "counted.json"
NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class NGramCounts:
    """The counts of the n-grams in a text."""

    vocab_size: int  # number of token ids; then `<s>`, `</s>` and `<unk>` follow
    # the n-grams of each order with their numbers of occurrences. `<s>` is counted once per sentence.
    orders: tuple[TrieOrder, ...]
    # num_sentences, num_tokens: size of the text; sentence ends don't count as tokens
    num_sentences: int
    num_tokens: int
    # int64 [vocab_size + 3], a number that grows with the position of each id's first occurrence in the text
    first_seen: Tensor
    room: Room = IN_MEMORY  # where the n-grams are, and where estimation works


def parse_bytes(size: int | str) -> int:
    """Return a number of bytes. The argument is a number, or a text such as "500M", "4G" or "1.5 GiB" (powers of 1,024). Raises
    ValueError if the text isn't a size, or the size is zero or negative.
    """
    units = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", str(size), re.IGNORECASE)
    value = int(float(match[1]) * units[match[2].lower()]) if match else 0
    if value <= 0:
        raise ValueError(f"memory should be a size such as 500M or 4G, got {size!r}")
    return value


def memory_left(limit: int | str) -> int:
    """Return the limit minus the memory that the process already uses (if Linux tells it), but at least half of the limit."""
    limit = parse_bytes(limit)
    try:
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    except OSError:  # another system
        resident = 0
    return max(limit // 2, limit - resident)


class NGramCounter:
    """Count the n-grams of sentences. Sentences are added in batches.

    Use the counter as a context manager, which always removes its files on disk.

    Args:
        vocab_size: number of token ids, `0 .. vocab_size - 1`. The id -1 means an unknown token, `<unk>`.
        order: length of the longest n-grams, at most 12.
        device: the device that sorts and merges.
        memory: limit in bytes. Sorted runs beyond the limit are kept on disk. On a CPU, the result is then also on disk.
        folder: folder for the files; by default the system's folder for temporary files.
        resume: whether to keep the files until `forget` is called, and to continue from files that an earlier process left in
            the folder. `num_sentences` is then the number of sentences counted so far. First add the first batch again,
            unchanged. Then add the batches after the counted sentences.
        from_last: whether to pack n-grams from their last token to their first (see `Packing`). Then call `run` for the result,
            not `finish`.

    Raises:
        ValueError: an argument is out of range, or the files were written for another vocabulary size or order.
    """

    def __init__(
        self,
        vocab_size: int,
        order: int,
        device: str | torch.device = "cpu",
        memory: int = DEFAULT_MEMORY,
        folder: str | Path | None = None,
        engine: str = "auto",
        resume: bool = False,
        from_last: bool = False,
    ) -> None:
        if not 1 <= order <= MAX_ORDER:
            raise ValueError(f"order must be 1 to {MAX_ORDER}, got {order}")
        if vocab_size < 1:
            raise ValueError(f"vocab_size must be at least 1, got {vocab_size}")
        self.packing = Packing(vocab_size, order, from_last)
        self.device = numbered(device)  # with its index, since each thread has its own current GPU
        self.steps = steps_for(self.device, engine)
        self.num_sentences = self.num_tokens = self.num_unknown = 0
        self.first_seen = np.full(vocab_size + 3, NEVER, dtype=np.int64)
        # Bytes per position: its digit, three copies of its words while sorting, and the permutation.
        per_position = 4 + 8 * (3 * len(self.packing.digits) + 3)
        self._workers = 1 if self.device.type != "cpu" else min(2, torch.get_num_threads())
        self._chunk = int(min(MAX_CHUNK, max(MIN_CHUNK, memory // (3 * self._workers * per_position))))
        self._memory_of_runs = memory // 5  # merging needs the same amount again
        self._buffer = np.empty(self._chunk + order - 1, dtype=np.int32)
        self._filled = 0
        self._pool = ThreadPoolExecutor(self._workers)
        self._pending: deque[Future[SortedRun]] = deque()
        self._runs: list[SortedRun] = []
        self._spilled: list[Path] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._parent = folder
        self._first_batch: int | None = None  # checksum of the first batch
        self._kept = Path(folder or tempfile.gettempdir(), "hf_ngpulm-counts") if resume else None
        self.is_resumed = self._kept is not None and (self._kept / STATE).is_file() and self._resume(self._kept)
        self.room = Room(memory if self.device.type == "cpu" and is_native(engine, self.device) else None, folder)

    def __enter__(self) -> NGramCounter:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._pending.clear()
        self._runs.clear()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def add(self, token_ids: Any, lengths: Any, first_sentence: int | None = None) -> None:
        """Count more sentences.

        Args:
            token_ids: int `[L]`, the tokens of all sentences concatenated; -1 for an unknown token.
            lengths: int `[S]`, number of tokens of each sentence.
            first_sentence: index of the first added sentence in the whole text, if several processes share the text.

        Raises:
            ValueError: a token id is outside -1 .. vocab_size - 1, or the lengths don't add up to L.
        """
        token_ids, lengths = np.asarray(token_ids), np.asarray(lengths, dtype=np.int64)
        if lengths.size == 0:
            return
        checksum = zlib.crc32(token_ids.tobytes(), zlib.crc32(lengths.tobytes()))
        if self.is_resumed:
            self.is_resumed = False
            if checksum != self._first_batch:
                raise ValueError(f"{self._kept} has counts of another text; leave resume out, or delete that folder")
            return
        self._first_batch = checksum if self._first_batch is None else self._first_batch
        if lengths.min() < 0 or int(lengths.sum()) != token_ids.size:
            raise ValueError(f"the lengths add up to {int(lengths.sum())}, but there are {token_ids.size} token ids")
        vocab_size = self.packing.vocab_size
        if token_ids.size and (token_ids.min() < -1 or token_ids.max() >= vocab_size):
            strange = int(token_ids.min() if token_ids.min() < -1 else token_ids.max())
            raise ValueError(f"token id {strange} is outside the vocabulary 0..{vocab_size - 1} (-1 stands for unknown)")
        number = self.num_sentences if first_sentence is None else first_sentence
        self._note_first_seen(token_ids, lengths, number)
        self.num_sentences += lengths.size
        self.num_tokens += token_ids.size
        # Each sentence becomes <s>, its tokens, </s>; one array holds all sentences.
        begins = np.zeros(lengths.size, dtype=np.int64)
        np.cumsum(lengths[:-1] + 2, out=begins[1:])
        digits = np.empty(token_ids.size + 2 * lengths.size, dtype=np.int32)
        is_token = np.ones(digits.size, dtype=bool)
        ends = begins + lengths + 1
        is_token[begins] = False
        is_token[ends] = False
        digits[begins], digits[ends] = self.packing.begin, self.packing.end
        unknown = token_ids < 0
        self.num_unknown += int(unknown.sum())
        digits[is_token] = np.where(unknown, self.packing.unknown, token_ids + 1)
        self._append(digits[::-1] if self.packing.from_last else digits)
        if self._kept is not None and self._is_full():
            self._save()

    def _is_full(self) -> bool:
        return sum(_nbytes(run) for run in self._runs) > self._memory_of_runs

    def _save(self) -> None:
        """Write all counts to disk, so that another process can continue."""
        assert self._kept is not None
        self._drain()
        if self._runs:
            self._spill()
        number, known = len(self._spilled), (self.packing.vocab_size, self.packing.order)
        self._kept.mkdir(exist_ok=True)
        np.save(self._kept / f"seen-{number}.npy", self.first_seen)
        counted = (self.num_sentences, self.num_tokens, self.num_unknown)
        state = {"of": known, "runs": number, "counted": counted, "first_batch": self._first_batch}
        with write_beside(self._kept / STATE) as path:
            path.write_text(json.dumps(state))

    def _resume(self, folder: Path) -> bool:
        state = json.loads((folder / STATE).read_text())
        if state["of"] != [self.packing.vocab_size, self.packing.order]:
            raise ValueError("{} has counts of a vocabulary of {} and order {}; resume with these".format(folder, *state["of"]))
        self.num_sentences, self.num_tokens, self.num_unknown = state["counted"]
        self._first_batch = state["first_batch"]
        self._spilled = [folder / f"{number}.run" for number in range(state["runs"])]
        self.first_seen = np.load(folder / f"seen-{state['runs']}.npy")
        return True

    def forget(self) -> None:
        """Remove the files that were kept for another process."""
        if self._kept is not None:
            shutil.rmtree(self._kept, ignore_errors=True)

    def _note_first_seen(self, token_ids: np.ndarray, lengths: np.ndarray, number: int) -> None:
        unseen = np.append(self.first_seen[: self.packing.vocab_size] == NEVER, False)  # the index -1 reads this last entry
        new = np.flatnonzero(unseen[token_ids]) if unseen.any() else np.zeros(0, dtype=np.int64)
        if new.size:
            ids, first = np.unique(token_ids[new], return_index=True)
            at = new[first]
            ends = np.cumsum(lengths)
            sentence = np.searchsorted(ends, at, side="right")
            within = at - (ends - lengths)[sentence]
            self.first_seen[ids] = (number + sentence) * 2**31 + within

    def _append(self, digits: np.ndarray) -> None:
        while digits.size:
            taken = min(digits.size, self._buffer.size - self._filled)
            self._buffer[self._filled : self._filled + taken] = digits[:taken]
            self._filled += taken
            digits = digits[taken:]
            if self._filled == self._buffer.size:
                self._count_chunk(self._chunk)

    def _count_chunk(self, num_starts: int) -> None:
        """Count the n-grams that start at the first `num_starts` positions of the buffer, and keep the other positions."""
        overlap = self.packing.order - 1
        digits = np.zeros(num_starts + overlap, dtype=np.int32)
        digits[: min(self._filled, digits.size)] = self._buffer[: min(self._filled, digits.size)]
        rest = self._filled - num_starts
        self._buffer[:rest] = self._buffer[num_starts : self._filled].copy()
        self._filled = rest
        while len(self._pending) >= self._workers:
            self._take_run(self._pending.popleft().result())
        self._pending.append(self._pool.submit(self._count_digits, digits, num_starts))

    def _count_digits(self, digits: np.ndarray, num_starts: int) -> SortedRun:
        on_device = torch.from_numpy(digits).to(self.device)
        return self.steps.count(self.steps.pack(on_device, num_starts, self.packing))

    def _take_run(self, run: SortedRun) -> None:
        """Merge a sorted run with stored runs of up to twice its size (so each n-gram is merged few times), and store it."""
        while self._runs and len(self._runs[-1]) <= 2 * len(run):
            run = self.steps.merge(self._runs.pop(), run)
        self._runs.append(run)
        if self._kept is None and self._is_full():  # with `resume`, runs are written at the end of each batch
            self._spill()

    def _drain(self) -> None:
        """Count the n-grams at the remaining positions in the buffer, and wait for all chunks."""
        if self._filled:
            self._count_chunk(self._filled)
        while self._pending:
            self._take_run(self._pending.popleft().result())

    def _spill(self) -> None:
        run = self.merged(self._runs)
        self._runs = []
        folder = self._kept
        if folder is None:
            self._folder = self._folder or tempfile.TemporaryDirectory(prefix="hf_ngpulm-", dir=self._parent)
            folder = Path(self._folder.name)
        folder.mkdir(exist_ok=True)
        path = folder / f"{len(self._spilled)}.run"
        try:
            with open(path, "wb") as file:
                for column in (*run.words, run.counts):
                    file.write(column.cpu().numpy().data)
        except OSError as error:
            raise no_room(error, path.parent, _nbytes(run)) from None
        self._spilled.append(path)
        del run
        give_back_freed()

    def merged(self, runs: list[SortedRun]) -> SortedRun:
        """Merge all runs into one run and return it. The shortest runs are merged first."""
        runs = sorted(runs, key=len, reverse=True)
        while len(runs) > 1:
            last = runs.pop()
            runs.append(self.steps.merge(runs.pop(), last))
            runs.sort(key=len, reverse=True)
        if runs:
            return runs[0]
        none = torch.zeros(len(self.packing.digits) + 1, 0, dtype=torch.int64, device=self.device)
        return SortedRun(none[:-1], none[-1])

    def run(self) -> SortedRun:
        """Return all distinct n-grams in ascending order with their counts. Nothing can be added afterwards."""
        if self._kept is not None:
            self._save()
        self._drain()
        self._buffer = np.empty(0, dtype=np.int32)
        if not self._spilled:
            merged, self._runs = self.merged(self._runs), []
            return merged
        if self._runs:
            self._spill()
        return self._merged_on_disk()

    def _merged_on_disk(self) -> SortedRun:
        """Merge the runs on disk and remove their files. The result is also on disk if the room has a limit."""
        num_words = len(self.packing.digits)
        most = sum(path.stat().st_size for path in self._spilled) // (8 * (num_words + 1))
        if self.room.memory is None:
            words, counts = zip(*self._merged_parts(most))
            return SortedRun(torch.cat(words, 1), torch.cat(counts))
        # The columns have room for all rows. Files have holes where nothing is written.
        size = 0
        try:
            with tempfile.TemporaryFile(dir=self._parent) as file:
                file.truncate(8 * most * (num_words + 1))
                for part in self._merged_parts(most):
                    for number, column in enumerate((*part.words, part.counts)):
                        file.seek(8 * (number * most + size))
                        file.write(column.numpy().data)
                    size += len(part)
                file.flush()
                columns = torch.frombuffer(map_file(file, 8 * most * (num_words + 1)), dtype=torch.int64)
        except OSError as error:
            raise no_room(error, self.room.folder, 8 * most * (num_words + 1)) from None
        self.room.is_on_disk = True
        if self._kept is None:
            for path in self._spilled:
                path.unlink()
        give_back_freed()
        by_column = columns.view(num_words + 1, most)
        return SortedRun(by_column[:-1], by_column[-1, :size])

    def _merged_parts(self, total: int) -> Iterator[SortedRun]:
        """Merge the runs on disk in ranges of the n-grams' first packed integers. Yield the merged n-grams of each range.
        `total`: the number of rows in all runs.
        """
        for cuts in self._cuts(total):
            runs = []
            for path, (first, last, size) in zip(self._spilled, cuts):
                block = torch.empty(len(self.packing.digits) + 1, last - first, dtype=torch.int64)
                with open(path, "rb") as opened:
                    for number, column in enumerate(block):
                        opened.seek(8 * (number * size + first))
                        opened.readinto(memoryview(column.numpy()).cast("B"))
                block = block.to(self.device)
                runs.append(SortedRun(block[:-1], block[-1]))
            yield self.merged(runs)

    def _cuts(self, total: int) -> list[list[tuple[int, int, int]]]:
        """Cut the runs on disk into ranges of the first packed integers. Return a list per range. It has three numbers for each
        file: the range's first row, the range's end (exclusive), and the file's number of rows. `total`: the rows of all files.
        """
        num_columns = len(self.packing.digits) + 1
        num_parts = max(1, -(-total * 8 * num_columns * 3 // max(1, self._memory_of_runs)))

        def of_each_file(run: Callable[[np.ndarray], Any]) -> list[Any]:
            """Call `run` on the n-grams' first packed integers in each file. Return the results. Files are mapped one at a
            time, because mapped pages take memory.
            """
            return [run(np.memmap(path, np.int64, "r").reshape(num_columns, -1)[0]) for path in self._spilled]

        sample = np.sort(np.concatenate(of_each_file(lambda words: words[:: max(1, len(words) // (8 * num_parts))].copy())))
        bounds = np.unique(sample[[len(sample) * i // num_parts for i in range(1, num_parts)]])
        cuts = of_each_file(lambda words: [0, *np.searchsorted(words, bounds).tolist(), len(words)])
        return [[(cut[part], cut[part + 1], cut[-1]) for cut in cuts] for part in range(len(bounds) + 1)]

    def finish(self, accelerator: Any = None) -> NGramCounts:
        """Return all counts. Nothing can be added afterwards.

        Args:
            accelerator: `accelerate.Accelerator` of several processes, each of which has counted its share of the text. Every
                process returns the counts of the whole text.

        Raises:
            ValueError: no sentence was added.
        """
        run = self.run() if accelerator is None else self._gathered(accelerator)
        if self.num_sentences == 0:
            raise ValueError("there is no text to count n-grams in: no sentence was given")
        orders, first_seen = tuple(self.steps.trie(run, self.packing, self.room)), torch.from_numpy(self.first_seen.copy())
        return NGramCounts(self.packing.vocab_size, orders, self.num_sentences, self.num_tokens, first_seen, self.room)

    def _gathered(self, accelerator: Any) -> SortedRun:
        run = self.run()
        totals = torch.tensor([[self.num_sentences, self.num_tokens, self.num_unknown, len(run)]], device=accelerator.device)
        sentences, tokens, unknown, sizes = accelerator.gather(totals).T.tolist()
        self.num_sentences, self.num_tokens, self.num_unknown = sum(sentences), sum(tokens), sum(unknown)
        first_seen = torch.from_numpy(self.first_seen)[None].to(accelerator.device)
        self.first_seen = accelerator.gather(first_seen).min(0).values.cpu().numpy()
        columns = torch.cat([run.words, run.counts[None]])
        padded = columns.new_zeros(len(columns), max(sizes), device=accelerator.device)
        padded[:, : len(run)] = columns
        everyone = accelerator.gather(padded[None]).to(self.device)
        return self.merged(
            [SortedRun(part[:-1, :size].contiguous(), part[-1, :size].contiguous()) for part, size in zip(everyone, sizes)]
        )


def _nbytes(run: SortedRun) -> int:
    return 8 * (run.words.numel() + run.counts.numel())
