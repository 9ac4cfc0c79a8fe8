"""Training beyond memory: time, peak memory and disk for a stream of generated text.

    python benchmarks/out_of_core.py --books books/*.txt --tokens 100_000_000 --order 5 --memory 4G --folder /scratch

The text: words of the given books follow each other as they do there (two times in three; each follower as often as there),
else words are drawn by a Zipf-Mandelbrot law over 200,000 words, of which the books' are the most frequent. Each word is
spelled with one to six of 1,024 tokens. Every run is a process of its own, without reading or writing the text, and ends with
the saved model.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import measure
import numpy as np
from synthetic import LEXICON, SENTENCES, _draw, _lexicon

from hf_ngpulm import NGramLM

VOCAB = 1024


def stream(books: list[str], num_tokens: int, seed: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Blocks of sentences until there are about `num_tokens`: token ids `[L]` and lengths `[S]`."""
    random = np.random.default_rng(seed)
    words = re.findall(r"[a-z']+", " ".join(Path(book).read_text(errors="replace").lower() for book in books))
    rank = {word: i for i, (word, _) in enumerate(Counter(words).most_common(LEXICON))}
    text = np.array([rank[word] for word in words])
    by_word = np.argsort(text[:-1], kind="stable")  # places of each word, whose next word follows it
    first = np.searchsorted(text[:-1][by_word], np.arange(LEXICON + 1))
    pieces = [np.fromstring(word, np.int64, sep=" ") for word in _lexicon(random, VOCAB)]
    sizes = np.array([len(word) for word in pieces])
    starts, pieces = np.cumsum(sizes) - sizes, np.concatenate(pieces)
    law = np.cumsum(1.0 / (np.arange(LEXICON) + 2.7))
    made = 0
    while made < num_tokens:
        word = _draw(random, law / law[-1], SENTENCES)
        columns = [word]
        for _ in range(59):
            seen = first[word + 1] - first[word]
            place = by_word[np.minimum(first[word] + (random.random(SENTENCES) * seen).astype(np.int64), len(by_word) - 1)]
            follows = (random.random(SENTENCES) < 0.67) & (seen > 0)
            word = np.where(follows, text[place + 1], _draw(random, law / law[-1], SENTENCES))
            columns.append(word)
        length = np.minimum(random.geometric(1 / 14, SENTENCES) + 2, 60)
        there = np.arange(60) < length[:, None]
        each = sizes[chosen := np.stack(columns, 1)[there]]
        ends = np.cumsum(each)
        ids = pieces[np.repeat(starts[chosen] - ends + each, each) + np.arange(ends[-1])]
        yield ids, np.diff(ends[np.cumsum(length) - 1], prepend=0)
        made += len(ids)


def one(books: list[str], tokens: int, order: int, memory: str, parent: str) -> dict[str, Any]:
    """Train once in this process."""
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        most, stop = [0], threading.Event()

        def watch() -> None:  # the space of all files of this process, those without names included
            while not stop.wait(1):
                files = {}
                for path in [*Path("/proc/self/fd").iterdir(), *Path(folder).rglob("*")]:
                    with contextlib.suppress(OSError):
                        found = path.stat()
                        files[found.st_ino] = found.st_blocks * 512 if str(path.resolve()).startswith(folder) else 0
                most[0] = max(most[0], sum(files.values()))

        watcher = threading.Thread(target=watch)
        watcher.start()
        begin, cpu = time.perf_counter(), time.process_time()
        try:
            lm = NGramLM.train(stream(books, tokens), vocab_size=VOCAB, order=order, memory=memory, folder=folder)
            lm.save_pretrained(Path(folder, "lm"))
        finally:
            stop.set()
        times = {"seconds": time.perf_counter() - begin, "cpu_seconds": time.process_time() - cpu}
        watcher.join()
        found = {"tokens": lm.config.training.num_tokens, "order": order, "memory": memory, **times}
        found |= {"peak_bytes": measure.resident("VmHWM"), "disk_bytes": most[0]}
        return found | {"num_ngrams": lm.num_ngrams, "model_bytes": lm.nbytes}


def main() -> None:
    about = {"books": {"required": True}, "folder": "for the runs' files"}
    args = measure.arguments(
        __doc__, "out_of_core", None, about, threads=None, books=(str,), tokens=100_000_000, order=5, memory=("4G",),
        folder=tempfile.gettempdir(),
    ).parse_args()  # fmt: skip
    given = args.books, args.tokens, args.order
    measure.report((measure.apart(one, *given, memory, args.folder) for memory in args.memory), args, key="runs")


if __name__ == "__main__":
    main()
