"""Triton kernels that all transducer searches use: gather frames, find a frame's best class, and score the internal LM."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...automaton.gpu import EXACT, REGISTERS
from ..confidence import ALPHA, MEASURES
from .model import TransducerModel

NO_MEASURE = -1
GIBBS, TSALLIS, RENYI = (tl.constexpr(MEASURES.index(name)) for name in ("gibbs", "tsallis", "renyi"))
ORDER = tl.constexpr(ALPHA)
LARGEST_BLOCK = 2048
ELEMENTS_PER_WARP = 256
LARGEST_TILE = 1024
ONE_WARP = {"num_warps": 1, **EXACT}


def block_of(classes: int) -> dict[str, int]:
    """Return a kernel's settings: the number of classes that a program reads at a time, the number of warps, and the number of
    registers per thread.
    """
    block = min(triton.next_power_of_2(max(classes, 32)), LARGEST_BLOCK)
    return {"BLOCK": block, "num_warps": max(block // ELEMENTS_PER_WARP, 1), **REGISTERS}


def measure_of(confidence: str | None) -> int:
    return NO_MEASURE if confidence is None else MEASURES.index(confidence)


def entropy_bounds(classes: int) -> tuple[float, float]:
    """Return two numbers about the entropies of a frame: the maximum of Shannon's entropy, which is also the maximum of Rényi's
    entropy, and exp(-m), where m is the maximum of Tsallis's entropy.
    """
    return math.log(classes), math.exp(-(classes ** (1 - ALPHA) - 1) / (1 - ALPHA))


def gather_frames(frames: Tensor, times: Tensor, window: int) -> Tensor:
    """For each time, return `window` frames, which begin at this time. `frames` is `[R, T, D]`, `times` is int64 `[R, P]`, and
    the result is `[R, P, window, D]`.

    A time outside the range `0 .. T - 1` gives the nearest frame.
    """
    rows, longest, width = frames.shape
    places = times[0].numel()
    out = frames.new_empty((rows, places, window, width))
    tile = min(triton.next_power_of_2(width), LARGEST_TILE)
    _gather_kernel[(rows * places * window,)](frames, times, out, places, window, longest, width, TILE=tile, **ONE_WARP)
    return out


@triton.jit(do_not_specialize=["places", "window", "longest"])
def _gather_kernel(frames, times, out, places, window, longest, width, TILE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64)
    place = at // window
    frame = tl.load(times + place) + at % window
    frame = tl.maximum(tl.minimum(frame, longest - 1), 0)
    source = frames + (place // places * longest + frame) * width
    for begin in range(0, width, TILE):
        lanes = begin + tl.arange(0, TILE)
        tl.store(out + at * width + lanes, tl.load(source + lanes, mask=lanes < width, other=0.0), mask=lanes < width)


@triton.jit
def best_class(x, classes, without, BLOCK: tl.constexpr):
    """Return three values for a frame: the best token class, its logit, and the logsumexp of the logits. The class `without` is
    ignored.
    """
    lanes = tl.arange(0, BLOCK)
    best = 0
    highest = float("-inf")
    total = 0.0
    for block in range(0, classes, BLOCK):
        inside = (block + lanes < classes) & (block + lanes != without)
        values = tl.load(x + block + lanes, mask=inside, other=float("-inf")).to(tl.float32)
        block_highest = tl.max(values, axis=0)
        best = tl.where(block_highest > highest, block + tl.argmax(values, axis=0), best)
        new_highest = tl.maximum(highest, block_highest)
        shift = tl.where(new_highest > float("-inf"), new_highest, 0.0)  # all values of a block may be -inf
        total = total * tl.exp(highest - shift) + tl.sum(tl.exp(values - shift), axis=0)  # NaN stays NaN
        highest = new_highest
    shift = tl.where(highest > float("-inf"), highest, 0.0)
    return best, highest, shift + tl.log(total)


def internal_lm(model: TransducerModel, predictions: Tensor) -> Tensor:
    """Return the same as `model.internal_lm(predictions)`: `[N, D]` -> float32 `[N, V]`.

    If the model doesn't override `internal_lm`, a single kernel computes the result from the joint network's logits.
    """
    if type(model).internal_lm is not TransducerModel.internal_lm:
        return model.internal_lm(predictions).contiguous()
    logits, classes = model.join(torch.zeros_like(predictions), predictions).contiguous(), model.vocab_size
    out = torch.empty((len(logits), classes), dtype=torch.float32, device=logits.device)
    _internal_kernel[(len(logits),)](
        logits, out, logits.shape[1], classes, model.blank_id, model.least_internal, **block_of(classes)
    )
    return out


@triton.jit(do_not_specialize=["width", "classes", "blank"])
def _internal_kernel(logits, out, width, classes, blank, least, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x = logits + row * width
    _, _, normaliser = best_class(x, classes, blank, BLOCK)
    for block in range(0, classes, BLOCK):
        lanes = block + tl.arange(0, BLOCK)
        values = tl.load(x + lanes, mask=lanes < classes, other=0.0).to(tl.float32) - normaliser
        values = tl.where(values < least, least, values)
        tl.store(out + row * classes + lanes, tl.where(lanes == blank, float("-inf"), values), mask=lanes < classes)


@triton.jit
def is_finite(value):
    return (value > float("-inf")) & (value < float("inf"))


@triton.jit
def confidence_of(
    x, classes, highest, normaliser, greatest, least, MEASURE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Return the confidence of a frame, see `hf_ngpulm.search.confidence`.

    `greatest` and `least` are the results of `entropy_bounds`.
    """
    result = tl.exp(highest - normaliser)
    if MEASURE > 0:
        lanes = tl.arange(0, BLOCK)
        sums = 0.0
        for block in range(0, classes, BLOCK):
            values = tl.load(x + block + lanes, mask=block + lanes < classes, other=float("-inf")).to(tl.float32) - normaliser
            if MEASURE == GIBBS:
                sums += tl.sum(tl.where(values > float("-inf"), tl.exp(values) * values, 0.0), axis=0)
            else:
                sums += tl.sum(tl.exp(values * ORDER), axis=0)
        if MEASURE == GIBBS:
            result = 1.0 + sums / greatest
        if MEASURE == RENYI:
            result = 1.0 - tl.log(sums) / (1.0 - ORDER) / greatest
        if MEASURE == TSALLIS:
            result = (tl.exp((1.0 - sums) / (1.0 - ORDER)) - least) / (1.0 - least)
        result = tl.where(classes == 1, 1.0, tl.minimum(tl.maximum(result, 0.0), 1.0))
    return result


def aot_signatures() -> Iterator[tuple[Any, dict[str, str], dict[str, Any]]]:
    """Yield every kernel with its argument types and constants, for compiling ahead of time."""
    sizes = dict.fromkeys(("places", "window", "longest", "width"), "i32")
    for kind in ("*fp32", "*bf16"):
        yield _gather_kernel, {"frames": kind, "times": "*i64", "out": kind} | sizes, {"TILE": LARGEST_TILE, **ONE_WARP}
        of_internal = {"logits": kind, "out": "*fp32"} | dict.fromkeys(("width", "classes", "blank"), "i32")
        of_internal["least"] = "fp32"
        yield _internal_kernel, of_internal, block_of(1024)
