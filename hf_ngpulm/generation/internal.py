"""Compute the internal language model (ILM) of a decoder: the decoder's prediction of the next token without audio.

The encoder's states are set to zero (Meng et al., "Internal language model estimation for domain-adaptive end-to-end speech
recognition", SLT 2021, section 3.2). All frames are then equal, so one frame is enough. The prediction depends only on the
tokens. So it is computed only once for rows with equal tokens, even if the rows belong to different recordings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from ..decoding.families import CACHE
from .transcripts import configs_of


@dataclass
class Silence(BaseModelOutput):
    """Encoder outputs that are all zeros. Some decoders read the field `attention_mask`, which is None."""

    attention_mask: Tensor | None = None


class InternalLM:
    """Run a decoder without audio.

    Each call caches its keys and values, so the next call reads only one new token per row. A row is identified by its tokens,
    because a search may move it to another index.

    Args:
        model: an encoder-decoder.

    Raises:
        ValueError: the model isn't an encoder-decoder, or the width of its encoder's states is unknown.
    """

    def __init__(self, model: Any) -> None:
        name = type(model).__name__
        if not getattr(model.config, "is_encoder_decoder", False):
            raise ValueError(f"ilm_weight: {name} has no encoder whose states could be zeroed; leave it out")
        config = getattr(model.get_encoder(), "config", model.config)
        width = getattr(config, "output_hidden_size", None) or getattr(config, "hidden_size", None)
        if not isinstance(width, int):
            raise ValueError(f"ilm_weight: the encoder of {name} doesn't say how wide its states are (hidden_size)")
        self.model, self.width = model, width
        # Shorter rows of a batch begin with padding. (In some models the first token is the padding token.)
        pad, start = (
            next((value for value in (getattr(part, what, None) for part in configs_of(model)) if value is not None), None)
            for what in ("pad_token_id", "decoder_start_token_id")
        )
        self.fill = {-1} if pad == start else {-1, pad}
        self._read: dict[int, tuple[dict[tuple[int, ...], int], Any]] = {}  # by length: each row's index, the cache

    @torch.no_grad()
    def logits(self, input_ids: Tensor) -> Tensor:
        """Return the logits of the next token, float32 `[R, C]`, after the tokens int64 `[R, L]`."""
        rows = [self._without_padding(row) for row in input_ids.tolist()]
        alike: dict[int, dict[tuple[int, ...], int]] = {}  # by length: the index of each distinct row
        for row in sorted(rows, key=len):
            places = alike.setdefault(len(row), {})
            places.setdefault(row, len(places))
        known, self._read, found = self._read, {}, {}
        for length, places in alike.items():
            found[length] = self._step(places, known, self._read)
        return torch.stack([found[len(row)][alike[len(row)][row]] for row in rows]).to(input_ids.device)

    def _without_padding(self, row: list[int]) -> tuple[int, ...]:
        first = next((place for place, token in enumerate(row) if token not in self.fill), len(row) - 1)
        return tuple(row[first:])

    def _step(self, places: dict[tuple[int, ...], int], *read: dict[int, Any]) -> Tensor:
        """Return the next token's logits, `[N, C]`, after N distinct rows of equal length.

        Args:
            places: a dictionary from the tokens of each row to the row's index.
            read: caches. Each cache is a dictionary from lengths to entries. If a single entry has the beginnings of all rows,
                this entry is reused and removed.
        """
        model, length = self.model, len(next(iter(places)))
        device, cache = model.device, EncoderDecoderCache(DynamicCache(), DynamicCache())
        new = list(places)
        for by_length in read:
            before, of_these = by_length.get(length - 1, ({}, None))
            parents = [before.get(row[:-1], -1) for row in places]
            if min(parents) >= 0:
                del by_length[length - 1]
                cache, new = of_these, [row[-1:] for row in places]
                cache.reorder_cache(torch.tensor(parents, device=device))
                break
        outputs = model(
            encoder_outputs=Silence(torch.zeros((len(new), 1, self.width), dtype=model.dtype, device=device)),
            decoder_input_ids=torch.tensor(new, device=device),
            use_cache=True,
            return_dict=True,
            **{CACHE: cache},
        )
        self._read[length] = (places, outputs[CACHE])
        return outputs.logits[:, -1].float()
