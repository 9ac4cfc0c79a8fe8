"""Token streams with the statistics of text, for benchmarks: any length, any vocabulary, the same from the same seed.

A lexicon of words (frequent ones short, each one to six tokens), drawn by Zipf's law; two words in three are drawn from
their predecessor's own short list, so n-grams of all orders repeat as they do in text.

    python benchmarks/token_stream.py tokens.txt --tokens 10_000_000 --vocab-size 1024
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

LEXICON = 200_000
SUCCESSORS = 64
SENTENCES = 4096  # generated side by side


def sentences(num_tokens: int, vocab_size: int, seed: int = 0) -> Iterator[list[str]]:
    """Blocks of sentences as decimal ids, until there are about `num_tokens`."""
    random = np.random.default_rng(seed)
    words = _lexicon(random, vocab_size)
    lengths = np.array([word.count(" ") + 1 for word in words])
    cumulative = np.cumsum(1.0 / (np.arange(LEXICON) + 2.7))
    cumulative /= cumulative[-1]
    successors = _draw(random, cumulative, (LEXICON, SUCCESSORS))
    local = np.cumsum(1.0 / (np.arange(SUCCESSORS) + 1.0))
    local /= local[-1]
    made = 0
    while made < num_tokens:
        word = _draw(random, cumulative, SENTENCES)
        length = np.minimum(random.geometric(1 / 14, SENTENCES) + 2, 60)
        columns = [word]
        for _ in range(int(length.max()) - 1):
            own = successors[word, np.searchsorted(local, random.random(SENTENCES))]
            word = np.where(random.random(SENTENCES) < 0.67, own, _draw(random, cumulative, SENTENCES))
            columns.append(word)
        table = np.stack(columns, 1)
        there = np.arange(table.shape[1]) < length[:, None]
        made += int(lengths[table[there]].sum())
        yield [" ".join(words[i] for i in row[:size]) for row, size in zip(table.tolist(), length.tolist())]


def _draw(random: np.random.Generator, cumulative: np.ndarray, shape: int | tuple[int, ...]) -> np.ndarray:
    return np.searchsorted(cumulative, random.random(shape)).clip(max=len(cumulative) - 1)


def _lexicon(random: np.random.Generator, vocab_size: int) -> list[str]:
    pieces = np.cumsum(1.0 / (np.arange(vocab_size) + 10.0))
    sizes = np.minimum(1 + random.poisson(np.log2(np.arange(LEXICON) + 2) / 6), 6)
    tokens = _draw(random, pieces / pieces[-1], int(sizes.sum())).tolist()
    ends = np.cumsum(sizes).tolist()
    return [" ".join(map(str, tokens[end - size : end])) for end, size in zip(ends, sizes.tolist())]


def write_tokens(path: Path, num_tokens: int, vocab_size: int, seed: int = 0) -> None:
    """Write a stream as text, one sentence of decimal ids a line."""
    with open(path, "w", encoding="ascii") as file:
        for block in sentences(num_tokens, vocab_size, seed):
            file.write("\n".join(block) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--vocab-size", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    write_tokens(arguments.path, arguments.tokens, arguments.vocab_size, arguments.seed)
