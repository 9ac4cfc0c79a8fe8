"""The same as compiled loops for the CPU."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...automaton.compiled import CPU, borrowed, compiled
from ...engines.threads import in_threads

BLOCK = 128  # elements whose largest is found at once, in vector instructions


def best_tokens(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    values = torch.empty((len(scores), count), dtype=torch.float32, device=CPU)
    tokens = torch.empty((len(scores), count), dtype=torch.int64, device=CPU)
    arrays = scores.contiguous().numpy(), values.numpy(), tokens.numpy()
    in_threads(lambda first, last: _best_of_rows(first, last, *arrays), *scores.shape)
    return values, tokens


@compiled
def _best_of_rows(first, last, scores, values, tokens):
    count, classes = values.shape[1], scores.shape[1]
    whole = classes // BLOCK * BLOCK
    for row in range(first, last):
        x, best, where = borrowed(scores[row]), borrowed(values[row]), borrowed(tokens[row])
        for place in range(count):
            best[place] = -np.inf
            where[place] = place
        for block in range(0, classes, BLOCK):
            limit = best[count - 1]
            if block < whole:
                part = x[block : block + BLOCK]
                above = 0
                for lane in range(BLOCK):
                    above += part[lane] > limit
                if not above:
                    continue
            for i in range(block, min(block + BLOCK, classes)):
                score = x[i]
                if score > best[count - 1]:
                    place = count - 1
                    while place > 0 and score > best[place - 1]:
                        best[place] = best[place - 1]
                        where[place] = where[place - 1]
                        place -= 1
                    best[place] = score
                    where[place] = i
