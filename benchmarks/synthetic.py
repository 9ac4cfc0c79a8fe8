"""Synthetic text of any size, the same on every machine.

`text_with`: random text in which every token has favourite successors, cut off at a number of n-grams. `write_tokens`: streams
of tokens with the statistics of text, from a lexicon of words (frequent ones short, each one to six tokens) by Zipf's law; two
words in three are drawn from their predecessor's own short list, so that n-grams of all orders repeat as they do in text.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

SENTENCE_LENGTH = 20  # tokens, on average
LEXICON = 200_000
SUCCESSORS = 64
SENTENCES = 4096  # generated side by side


def random_text(vocab_size: int, num_tokens: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Sentences one after the other, `<s>` (V) and `</s>` (V + 1) included.

    Returns:
        Token ids `[M]`, and each one's place in its sentence `[M]`, `<s>` being 0.
    """
    favourites = zipf(vocab_size, vocab_size * 16, rng).reshape(vocab_size, 16)
    lengths = rng.integers(SENTENCE_LENGTH // 2, SENTENCE_LENGTH * 3 // 2, max(1, num_tokens // (SENTENCE_LENGTH + 2)))
    words = np.empty((len(lengths), lengths.max() + 2), np.int64)
    words[:, 0], words[:, 1] = vocab_size, zipf(vocab_size, len(lengths), rng)
    for place in range(2, words.shape[1]):
        habit = favourites[words[:, place - 1], zipf(16, len(lengths), rng)]
        words[:, place] = np.where(rng.random(len(lengths)) < 0.85, habit, zipf(vocab_size, len(lengths), rng))
    words[np.arange(len(lengths)), lengths + 1] = vocab_size + 1
    places = np.broadcast_to(np.arange(words.shape[1]), words.shape)
    inside = places <= lengths[:, None] + 1
    return words[inside], places[inside]


def zipf(size: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw `count` numbers below `size`, number i with a probability proportional to 1 / (i + 2)."""
    mass = np.cumsum(1.0 / np.arange(2, size + 2))
    return np.searchsorted(mass / mass[-1], rng.random(count), side="right").clip(max=size - 1)


def ngram_ids(tokens: np.ndarray, places: np.ndarray, vocab_size: int, order: int) -> list[np.ndarray]:
    """For each order n an id `[M]` of the n-gram that ends at each token, -1 where the sentence is too short yet."""
    ids = [tokens]
    for n in range(2, order + 1):
        keys = np.full(len(tokens), -1)
        keys[1:] = ids[-1][:-1] * (vocab_size + 3) + tokens[1:]
        keys[places < n - 1] = -1
        ids.append(np.unique(np.append(keys, -1), return_inverse=True)[1][:-1] - 1)
    return ids


@functools.lru_cache(maxsize=1)
def text_with(ngrams: int, vocab_size: int, order: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return random text, token ids `[L]` and lengths of sentences `[S]`, cut off where it has as many different n-grams as
    asked for (or up to `order - 1` fewer)."""
    num_tokens = 2 * ngrams // order + 1000
    while True:
        tokens, places = random_text(vocab_size, num_tokens, np.random.default_rng(seed))
        new = np.zeros(len(tokens), np.int64)
        for ids in ngram_ids(tokens, places, vocab_size, order):
            values, first = np.unique(ids, return_index=True)
            np.add.at(new, first[values >= 0], 1)
        total = np.cumsum(new)
        if total[-1] >= ngrams:
            tokens = tokens[: int(np.searchsorted(total, ngrams, side="right"))]
            said = tokens < vocab_size
            return tokens[said], np.bincount(np.cumsum(tokens == vocab_size)[said] - 1)
        num_tokens *= 2


def sentences(num_tokens: int, vocab_size: int, seed: int = 0) -> Iterator[list[str]]:
    """Blocks of sentences as decimal ids, until there are about `num_tokens`."""
    random = np.random.default_rng(seed)
    words = _lexicon(random, vocab_size)
    lengths = np.array([word.count(" ") + 1 for word in words])
    cumulative, local = (np.cumsum(1.0 / (np.arange(size) + shift)) for size, shift in ((LEXICON, 2.7), (SUCCESSORS, 1.0)))
    cumulative, local = cumulative / cumulative[-1], local / local[-1]
    successors = _draw(random, cumulative, (LEXICON, SUCCESSORS))
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
