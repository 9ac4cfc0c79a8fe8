"""Find the times of an encoder-decoder's tokens from its decoder's cross-attention.

The method is Whisper's (Radford et al., "Robust speech recognition via large-scale weak supervision", 2022; `timing.py` of
openai/whisper). In Whisper, certain attention heads are known to follow the audio. In other models such heads are unknown, so
all heads in the second half of the layers are averaged. The decoder reads the whole transcript a second time. The attention
weights of the steps that predict the tokens are normalised over the steps, and smoothed by a median over time. Dynamic time
warping then finds the monotonic path through these weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

SMOOTHED_SECONDS = 0.14  # width of the median: 7 frames of Whisper


def token_starts(
    model: Any,
    encoder_outputs: Any,
    attention_mask: Tensor | None,
    tokens: Tensor,
    text: Sequence[int],
    frames: int,
    frame_seconds: float,
) -> list[int]:
    """Return the first frame of each token of a transcript, followed by the frame at which the last token ends.

    Args:
        model: an encoder-decoder with cross-attention.
        encoder_outputs, attention_mask: inputs of the model's `forward`, for a single recording.
        tokens: int64 `[L]`, all tokens that the decoder reads.
        text: which tokens to align, as positions in `tokens`.
        frames: number of the encoder's frames without padding.
        frame_seconds: duration of a frame.

    Raises:
        ValueError: the model doesn't return its cross-attention.
    """
    if not text:
        return [0]
    layers = cross_attention(model, encoder_outputs, attention_mask, tokens)[..., :frames]
    steps = [max(position - 1, 0) for position in text] + [text[-1]]  # the last step predicts the end
    return warped(-followed(layers[len(layers) // 2 :], steps, frame_seconds)).tolist()


@torch.no_grad()
def cross_attention(model: Any, encoder_outputs: Any, attention_mask: Tensor | None, tokens: Tensor) -> Tensor:
    """Return the attention weights of each layer and head at each step, float32 `[layers, H, L, T]`.

    The arguments are as for `token_starts`.
    """
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
        raise ValueError(f"{type(model).__name__} returns no cross-attention, from which word times are computed")
    return torch.cat(layers).float().cpu()


def followed(layers: Tensor, steps: Sequence[int], frame_seconds: float) -> np.ndarray:
    """Return the attention of some steps to each frame, normalised over all steps, smoothed, and averaged over all heads:
    `[layers, H, L, T]` -> `[steps, T]`. `steps`: the indices of the steps to return.
    """
    weights = layers.flatten(0, 1)
    deviation, mean = torch.std_mean(weights, dim=1, keepdim=True, correction=0)
    weights = ((weights - mean) / deviation.clamp(min=1e-9))[:, list(steps)]
    return smoothed(weights, SMOOTHED_SECONDS / frame_seconds).mean(0).double().numpy()


def smoothed(weights: Tensor, width: float) -> Tensor:
    """Return running medians over about `width` frames (an odd number), `[H, L, T]` -> `[H, L, T]`."""
    half = min(round((width - 1) / 2), weights.shape[-1] - 1)
    if half < 1:
        return weights
    padded = torch.nn.functional.pad(weights, (half, half), mode="reflect")
    return padded.unfold(-1, 2 * half + 1, 1).median(-1).values


def warped(cost: np.ndarray) -> np.ndarray:
    """Find the cheapest path through a cost matrix `[L, T]`. Return the path's first column in each row, int64 `[L]`.

    A path leads from the first row and column to the last row and column. Each step advances by one row, one column, or both.
    Let c be the cumulative cost of a row, and e[k] the cost of entering the row at column k. Then reaching column j costs
    c[j] + min over k <= j of (e[k] - c[k - 1]). This is a running minimum, so a row needs no loop.
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
    """Switch the model to the attention implementation "eager", which returns attention weights, for the block."""
    every = (getattr(module, "config", None) for module in model.modules())
    configs: list[Any] = list({id(config): config for config in every if hasattr(config, "_attn_implementation")}.values())
    before = [config._attn_implementation for config in configs]
    try:
        for config in configs:
            config._attn_implementation = "eager"
        yield
    finally:
        for config, implementation in zip(configs, before):
            config._attn_implementation = implementation
