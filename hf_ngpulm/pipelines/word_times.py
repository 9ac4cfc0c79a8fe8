"""Compute word times of encoder-decoders: align tokens with the encoder's frames, and join the words of chunks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..generation.alignment import token_starts
from ..text.words import WordSplitter


@dataclass(frozen=True)
class TimedWord:
    """Hold a word, its tokens, and its start and end in seconds."""

    text: str
    token_ids: list[int]
    start: float
    end: float


def timed_words(
    model: Any, splitter: WordSplitter, encoded: Any, attention_mask: Tensor | None, length: int, tokens: Tensor, seconds: float
) -> list[list[TimedWord]]:
    """Return the words of each recording of a batch.

    Args:
        encoded: the encoder's outputs for the batch.
        attention_mask: mask of the encoder's inputs, `[B, N]`.
        length: N, the number of steps of the encoder's inputs (samples, or steps of a feature extractor).
        tokens: int64 `[B, L]`, output of `generate`.
        seconds: duration of a step, in seconds.
    """
    frames = encoded[0].shape[1]
    # Computed, because the strides in models' configs aren't always true.
    stride = max(round(length / frames), 1)
    lengths = [length] * len(tokens) if attention_mask is None else attention_mask.sum(-1).tolist()
    beams = len(encoded[0]) // len(tokens)  # `generate` has repeated the rows for beams in place
    words_of_rows = []
    for row, (ids, steps) in enumerate(zip(tokens.tolist(), lengths)):
        first = beams * row
        one = type(encoded)(**{name: value[first : first + 1] for name, value in encoded.items() if isinstance(value, Tensor)})
        mask = None if attention_mask is None else attention_mask[row : row + 1]
        text = [position for position, token in enumerate(ids) if token not in splitter.special]
        heard = min(max(-(-steps // stride), 1), frames)
        read = torch.tensor(ids[: text[-1] + 1] if text else [])
        starts = token_starts(model, one, mask, read, text, heard, stride * seconds)
        times = [round(min(start * stride, steps) * seconds, 6) for start in starts]
        of_text = [ids[position] for position in text]
        words = splitter.words(of_text)
        words_of_rows.append([TimedWord(word, of_text[first:last], times[first], times[last]) for word, first, last in words])
    return words_of_rows


def joined(pieces: Iterable[tuple[list[TimedWord], tuple[int, int, int] | None]], rate: int) -> list[TimedWord]:
    """Return the words of a chunked recording. Each chunk contributes the words whose middle is outside its overlaps.

    Args:
        pieces: the words and the stride of each chunk. The stride has the numbers of samples of the chunk,
            the left overlap and the right overlap. The stride is None for a recording that wasn't cut.
        rate: number of samples per second.
    """
    timed, begin, last = [], 0.0, 0.0  # `begin`: start of the chunk without its left overlap, in seconds
    for words, stride in pieces:
        total, left, right = (each / rate for each in stride or (0, 0, 0))
        for word in words:
            middle = (word.start + word.end) / 2
            if (not left or middle >= left) and (not right or middle < total - right):
                # Two chunks may give a word at their border different times; times never decrease.
                start, last = (max(last, round(begin + time - left, 6)) for time in (word.start, word.end))
                timed.append(TimedWord(word.text, word.token_ids, start, last))
        begin += total - left - right
    return timed
