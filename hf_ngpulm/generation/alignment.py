"""Find when the tokens of an encoder-decoder's transcript were said, by what its decoder attends to.

Whisper's method (Radford et al., "Robust speech recognition via large-scale weak supervision", 2022; `timing.py` of
openai/whisper) for models of which nobody knows the heads that follow the audio: those of the last half of the layers are
averaged. The decoder reads the whole transcript once more. Of its steps those count that say the tokens, not those that have
read them; weights are normalised over the steps, smoothed by a median over time, and dynamic time warping finds the path
through them on which neither text nor time goes back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

SMOOTHED_SECONDS = 0.14  # the median's width: 7 frames of Whisper's


def token_starts(
    model: Any,
    encoder_outputs: Any,
    attention_mask: Tensor | None,
    tokens: Tensor,
    text: Sequence[int],
    frames: int,
    frame_seconds: float,
) -> list[int]:
    """Return the frame at which each token of a transcript begins, and that at which the last one has ended.

    Args:
        model: an encoder-decoder with cross-attention.
        encoder_outputs, attention_mask: of the one recording, as the model's `forward` takes them.
        tokens: int64 `[L]`, as the decoder reads them, from its first one on.
        text: the positions among them of those that are asked for.
        frames: those of the encoder that aren't padding.
        frame_seconds: what each of them lasts.

    Raises:
        ValueError: the model shows no cross-attention.
    """
    if not text:
        return [0]
    layers = cross_attention(model, encoder_outputs, attention_mask, tokens)[..., :frames]
    steps = [max(position - 1, 0) for position in text] + [text[-1]]  # the last one says that the transcript ends
    return warped(-followed(layers[len(layers) // 2 :], steps, frame_seconds)).tolist()


@torch.no_grad()
def cross_attention(model: Any, encoder_outputs: Any, attention_mask: Tensor | None, tokens: Tensor) -> Tensor:
    """Return the weights of each layer and head at each step, float32 `[layers, H, L, T]`. Arguments as for `token_starts`."""
    with _showing_attention(model):
        outputs = model(
            encoder_outputs=encoder_outputs,
            attention_mask=attention_mask,
            decoder_input_ids=tokens[None].to(model.device),
            output_attentions=True,
            use_cache=False,
            return_dict=True,
        )
    layers = [weights for weights in getattr(outputs, "cross_attentions", None) or () if weights is not None]
    if not layers:
        raise ValueError(f"{type(model).__name__} shows no cross-attention, which word times are read off")
    return torch.cat(layers).float().cpu()


def followed(layers: Tensor, steps: Sequence[int], frame_seconds: float) -> np.ndarray:
    """Return how much each of some steps attends to each frame, as against other steps, `[layers, H, L, T]` -> `[steps, T]`."""
    weights = layers.flatten(0, 1)
    deviation, mean = torch.std_mean(weights, dim=1, keepdim=True, correction=0)
    weights = ((weights - mean) / deviation.clamp(min=1e-9))[:, list(steps)]
    return smoothed(weights, SMOOTHED_SECONDS / frame_seconds).mean(0).double().numpy()


def smoothed(weights: Tensor, width: float) -> Tensor:
    """Return the median of the odd number of frames around each that is nearest to `width`, `[H, L, T]` -> the same."""
    half = min(round((width - 1) / 2), weights.shape[-1] - 1)
    if half < 1:
        return weights
    padded = torch.nn.functional.pad(weights, (half, half), mode="reflect")
    return padded.unfold(-1, 2 * half + 1, 1).median(-1).values


def warped(cost: np.ndarray) -> np.ndarray:
    """Return the first column of each row on the cheapest path from the first corner to the last one, `[L, T]` -> int64 `[L]`.

    A path's steps go on by a row, by a column, or by both. It enters a row at some column and leaves it at that or a later one:
    with c the row's running sum, to be at column j costs c[j] + min over k <= j of (what entering at k costs - c[k - 1]), in
    which the minimum runs along, too.
    """
    rows, columns = cost.shape
    total = np.full((rows + 1, columns + 1), np.inf)
    total[0, 0] = 0.0
    for row in range(rows):
        entering = np.minimum(total[row, :-1], total[row, 1:])
        running = np.cumsum(cost[row])
        total[row + 1, 1:] = running + np.minimum.accumulate(entering - (running - cost[row]))
    row, column = rows, columns
    firsts = np.zeros(rows, dtype=np.int64)
    while row:
        firsts[row - 1] = column - 1
        before = total[row - 1, column - 1], total[row - 1, column], total[row, column - 1]
        step = int(np.argmin(before))
        row, column = row - (step != 2), column - (step != 1)
    return firsts


@contextlib.contextmanager
def _showing_attention(model: Any) -> Iterator[None]:
    """Have the model's attention computed so that its weights can be seen."""
    found = (getattr(module, "config", None) for module in model.modules())
    configs: list[Any] = list({id(config): config for config in found if hasattr(config, "_attn_implementation")}.values())
    before = [config._attn_implementation for config in configs]
    try:
        for config in configs:
            config._attn_implementation = "eager"
        yield
    finally:
        for config, implementation in zip(configs, before):
            config._attn_implementation = implementation
