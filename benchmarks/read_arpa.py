"""Reading and writing ARPA files: CPU seconds of this package and of KenLM's module, by turns, on one thread.

    python benchmarks/read_arpa.py --ngrams 1_180_000

Files are made by `make_arpa.py`, their lines as they come, sorted by the last word first as lmplz has them, and at random. This
package reads them into a table of n-grams (from which automata are made), KenLM into its hash table. Medians.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from make_arpa import estimate, text_with, write_arpa
from measure import save, table

from hf_ngpulm.formats import arpa


def cpu_seconds(run: Callable[..., Any], *arguments: Any) -> float:
    begin = time.process_time()
    run(*arguments)
    return time.process_time() - begin


def read(path: Path) -> Any:
    return arpa.ArpaFile(path).word_table()


def rewrite(path: Path, out: Path, order: Callable[[list[str]], None]) -> None:
    """Copy an ARPA file with the lines of each section in another order."""
    head, *sections = path.read_text(encoding="utf-8").split("\n\\")
    parts = []
    for section in sections:
        heading, *lines = section.rstrip("\n").split("\n")
        order(lines)
        parts.append("\n".join([heading, *lines, ""]))
    out.write_text("\n\\".join([head, *parts]), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ngrams", type=int, default=1_180_000)
    parser.add_argument("--vocab-size", type=int, default=20_000)
    parser.add_argument("--order", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=7)
    settings = parser.parse_args()
    torch.set_num_threads(1)
    try:
        import kenlm
    except ImportError:
        kenlm = None
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tables = estimate(
            *text_with(settings.ngrams, settings.vocab_size, settings.order, 0), settings.vocab_size, settings.order
        )
        write_arpa(tables, [*map(str, range(settings.vocab_size)), "<s>", "</s>", "<unk>"], folder / "as it comes.arpa")
        rewrite(folder / "as it comes.arpa", folder / "by last word.arpa", lambda lines: lines.sort(key=_reversed))
        rewrite(folder / "as it comes.arpa", folder / "at random.arpa", random.Random(0).shuffle)
        for path in sorted(folder.glob("*.arpa")):
            reading: dict[str, list[float]] = {"this package": [], "KenLM": []}
            for _ in range(settings.rounds):
                reading["this package"].append(cpu_seconds(read, path))
                if kenlm is not None:
                    reading["KenLM"].append(cpu_seconds(kenlm.Model, str(path)))
            for reader, seconds in reading.items():
                if seconds:
                    results.append({"what": f"read, {path.stem}", "by": reader, "seconds": sorted(seconds)[len(seconds) // 2]})
        file, ngrams = arpa.ArpaFile(path), read(path)
        writing = [cpu_seconds(arpa.write_arpa, ngrams, folder / "out.arpa", "piece", file.words) for _ in range(3)]
        results.append({"what": "write", "by": "this package", "seconds": sorted(writing)[1]})
    print(table(["", "by", "CPU seconds"], [[row["what"], row["by"], row["seconds"]] for row in results]))
    print(save("read_arpa_cpu", {"num_ngrams": ngrams.num_ngrams, "results": results}))


def _reversed(line: str) -> list[str]:
    return line.split("\t")[1].split(" ")[::-1] if "\t" in line else []


if __name__ == "__main__":
    main()
