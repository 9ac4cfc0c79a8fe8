"""Training beyond memory: time, peak memory and disk for a stream of generated text.

    python benchmarks/out_of_core.py --books books/*.txt --tokens 100_000_000 --order 5 --memory 4G --folder /scratch

The text: words of the given books follow each other as they do there (two times in three; each follower as often as there),
else words are drawn by a Zipf-Mandelbrot law over 200,000 words, of which the books' are the most frequent. Each word is
spelled with one to six of 1,024 tokens. Every run is a process of its own, without reading or writing the text, and ends with
the saved model.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import shutil
import subprocess
import sys
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


def one(args: argparse.Namespace) -> dict[str, Any]:
    """Train once in this process."""
    from hf_ngpulm import NGramLM

    held, most, stop = Path(args.folder), [0], threading.Event()

    def watch() -> None:  # the space of all files of this process, those without names included
        while not stop.wait(1):
            files = {}
            for path in [*Path("/proc/self/fd").iterdir(), *held.rglob("*")]:
                try:
                    found = path.stat()
                    files[found.st_ino] = found.st_blocks * 512 if str(path.resolve()).startswith(str(held)) else 0
                except OSError:
                    continue
            most[0] = max(most[0], sum(files.values()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    begin, cpu = time.perf_counter(), time.process_time()
    lm = NGramLM.train(
        stream(args.books, args.tokens), vocab_size=VOCAB, order=args.order, memory=args.memory, folder=args.folder
    )
    lm.save_pretrained(held / "lm")
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    stop.set()
    watcher.join()
    return {
        "tokens": lm.config.training.num_tokens, "order": args.order, "memory": args.memory, "seconds": seconds,
        "cpu_seconds": cpu, "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "disk_bytes": most[0], "num_ngrams": lm.num_ngrams, "model_bytes": lm.nbytes,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--books", nargs="+", required=True)
    parser.add_argument("--tokens", type=int, default=100_000_000)
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--memory", nargs="+", default=["4G"])
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--out", type=Path, help="results; printed without it")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        args.memory = args.memory[0]
        print(json.dumps(one(args)))
        return
    results = []
    for memory in args.memory:
        folder = tempfile.mkdtemp(dir=args.folder)
        options = ["--tokens", str(args.tokens), "--order", str(args.order), "--memory", memory, "--folder", folder]
        command = [sys.executable, __file__, "--here", *options, "--books", *args.books]
        try:
            done = subprocess.run(command, check=True, capture_output=True, text=True)
        finally:
            shutil.rmtree(folder)
        results.append(json.loads(done.stdout.splitlines()[-1]))
        print(results[-1], file=sys.stderr, flush=True)
    if args.out:
        args.out.write_text(json.dumps({"machine": measure.machine(), "runs": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
