"""Split a batch's inputs into parts that are decoded separately, and join their outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def rows_of(model_inputs: dict[str, Any], rows: Sequence[int]) -> dict[str, Any]:
    """Return the inputs of some recordings of a batch."""

    def some(values: Any) -> Any:
        if isinstance(values, Tensor):
            return values[list(rows)]
        return [values[row] for row in rows] if isinstance(values, list) else values  # a batch of one has no lists

    return {name: some(values) for name, values in model_inputs.items()}


def rejoined(outs: Sequence[dict[str, Any]], parts: Sequence[Sequence[int]], tokenizer: Any) -> dict[str, Any]:
    """Join the outputs of a batch's parts in the order of the batch's rows.

    Args:
        outs: the outputs of each part, by name.
        parts: for each part, the batch's row of each output; -1 drops an output. If several parts have a row, the last
            part counts.
        tokenizer: the recogniser's tokenizer, whose padding token fills shorter rows.
    """
    places = {row: (part, place) for part, rows in enumerate(parts) for place, row in enumerate(rows) if row >= 0}
    if len(places) == 1:
        ((part, _),) = places.values()
        return outs[part]
    together: dict[str, Any] = {}
    for name, values in outs[0].items():
        if values is None:
            together[name] = None
            continue
        pieces = [_split(out[name], len(rows)) for out, rows in zip(outs, parts)]
        listed: Any = [each for _, (part, place) in sorted(places.items()) for each in pieces[part][place]]
        if isinstance(values, Tensor):
            ends = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0) if name == "tokens" else (0,)
            fill = next(token for token in ends if token is not None)
            listed = torch.nn.utils.rnn.pad_sequence(listed, batch_first=True, padding_value=fill)
        together[name] = listed
    return together


def _split(values: Any, count: int) -> list[Any]:
    """Divide values evenly among `count` recordings. With `num_return_sequences`, each recording has several values."""
    each = len(values) // count
    return [values[first : first + each] for first in range(0, len(values), each)]
