"""Run label looping on the GPU, with Triton kernels between the networks.

PyTorch runs the networks. A step launches a kernel that gathers the frames of the windows, the joint network, `_window_kernel`,
the prediction network, and one operator for each part of the prediction network's state. `_window_kernel` runs a program per
row, which follows the blanks in the row's window and chooses the token after the blanks with the language model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl

from ...automaton.gpu import automaton_signature, fill_row
from ..networks.buffers import STEPS
from ..networks.gpu import (
    NO_MEASURE,
    best_class,
    block_of,
    confidence_of,
    entropy_bounds,
    gather_frames,
    internal_lm,
    is_finite,
    measure_of,
)
from ..networks.graphs import replace_where
from .buffers import LoopingBuffers

MOST = 2**31 - 1


class Search(LoopingBuffers):
    """Label looping with kernels between the networks."""

    def make_room(self) -> None:
        super().make_room()
        rows, num_automata = self.rows.lm_states.shape
        # LM scores and targets of all tokens in each row's states.
        self.scores = torch.empty((rows, num_automata, self.vocab_size), device=self.device)
        self.targets = torch.empty_like(self.scores, dtype=torch.int32)
        self.emits, self.open_rows = (torch.zeros(rows, dtype=torch.bool, device=self.device) for _ in range(2))
        self.labels = torch.zeros(rows, dtype=torch.int64, device=self.device)

    def take_steps(self) -> None:
        for number in range(STEPS):
            self.step(number)
        torch.any(self.open_rows, out=self.is_open)

    def step(self, number: int) -> None:
        """Take step `number` of the block: run the networks, and the kernel between them."""
        rows, model, window = self.rows, self.model, self.tokens.shape[2]
        frames = gather_frames(self.frames, rows.times[:, None], window)[:, 0]
        logits = self.model.join(frames, self.prediction[:, None]).contiguous()
        durations = len(self.durations)
        _window_kernel[(len(logits),)](
            *self.automaton, logits, self.internal, self.durations, *rows, self.scores, self.targets,
            self.tokens, self.moves, self.confidences, self.labels, self.emits.view(torch.int8),
            self.open_rows.view(torch.int8), self.automaton.num_states, number, len(logits), window, model.vocab_size,
            durations, self.vocab_size, model.blank_id, min(self.settings.max_symbols, MOST),
            *entropy_bounds(model.vocab_size),
            NUM_AUTOMATA=rows.lm_states.shape[1], DURATIONS=triton.next_power_of_2(durations) if durations else 0,
            HAS_ILM=self.has_ilm, MEASURE=measure_of(self.settings.confidence), **block_of(model.vocab_size),
        )  # fmt: skip
        prediction, state = model.predict(self.labels, self.state)
        internal = internal_lm(model, prediction) if self.has_ilm else self.internal
        news = (prediction, *state, internal)
        replace_where(self.emits, (self.prediction, *self.state, self.internal), news)


@triton.jit
def _says(x, durations, classes, num_durations, DURATIONS: tl.constexpr, BLOCK: tl.constexpr):
    """Return six values for a frame: the best class, its logit, the logsumexp of the logits, the class's log-probability, the
    number of frames to advance, and whether the logits are valid (see `hf_ngpulm.search.networks.reference.check`).

    In a TDT, the log-probability includes the log-probability of the best duration.
    """
    best, highest, normaliser = best_class(x, classes, -1, BLOCK)
    log_prob = highest - normaliser
    move = (best * 0).to(tl.int64)
    checked = normaliser
    if DURATIONS > 0:
        lanes = tl.arange(0, DURATIONS)
        values = tl.load(x + classes + lanes, mask=lanes < num_durations, other=float("-inf")).to(tl.float32)
        of_duration = -tl.log(tl.sum(tl.exp(values - tl.max(values, axis=0)), axis=0))
        move = tl.load(durations + tl.argmax(values, axis=0))
        log_prob += of_duration
        checked += of_duration
    return best, highest, normaliser, log_prob, move, is_finite(checked)


# Kernels compiled for multiples of 16 aren't faster.
@triton.jit(
    do_not_specialize=[
        "num_states", "number", "num_rows", "window", "classes", "num_durations", "vocab_size", "blank", "max_symbols",
    ]
)  # fmt: skip
def _window_kernel(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    logits, internal, durations, ends, weights, ilm_weights, times, symbols, lm_states, acoustic_scores, lm_scores, ilm_scores,
    bad_frames, scratch_scores, scratch_targets, tokens, moves, confidences, labels, emissions, open_rows,
    num_states, number, num_rows, window, classes, num_durations, vocab_size, blank, max_symbols,
    greatest_entropy, least_entropy,
    NUM_AUTOMATA: tl.constexpr, DURATIONS: tl.constexpr, HAS_ILM: tl.constexpr, MEASURE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    end = tl.load(ends + row)
    time = tl.load(times + row)
    bad = tl.load(bad_frames + row)
    score = tl.load(acoustic_scores + row)
    count = tl.load(symbols + row)
    width = classes + num_durations
    x = logits + row * window * width
    at = (number * num_rows + row) * window
    for begin in range(0, window, BLOCK):
        tl.store(tokens + at + begin + lanes, tl.zeros((BLOCK,), tl.int32) - 1, mask=begin + lanes < window)
        tl.store(moves + at + begin + lanes, tl.zeros((BLOCK,), tl.int32), mask=begin + lanes < window)
        tl.store(confidences + at + begin + lanes, tl.zeros((BLOCK,), tl.float32), mask=begin + lanes < window)
    tl.debug_barrier()

    # Follow the blanks.
    last = tl.where(bad < 0, tl.minimum(end - time, window), 0)
    limit = last
    place = time * 0
    while place < limit:
        best, _, _, log_prob, move, is_right = _says(
            x + place * width, durations, classes, num_durations, DURATIONS, BLOCK
        )  # fmt: skip
        passes = is_right & (best == blank)
        move = tl.maximum(move, 1)
        score += tl.where(passes, log_prob, 0.0).to(tl.float64)
        tl.store(tokens + at + place, blank, mask=passes)
        tl.store(moves + at + place, move.to(tl.int32), mask=passes)
        bad = tl.where(is_right, bad, time + place)
        limit = tl.where(passes, limit, 0)
        place = tl.where(passes, place + move, place)
    time += place
    count = tl.where(place > 0, 0, count)

    # Choose the token after the blanks.
    emits = (place < last) & (bad < 0)
    label = blank
    if emits:
        heard = x + place * width
        token, highest, normaliser, log_prob, move, _ = _says(heard, durations, classes, num_durations, DURATIONS, BLOCK)
        if MEASURE != -1:
            confidence = confidence_of(heard, classes, highest, normaliser, greatest_entropy, least_entropy, MEASURE, BLOCK)
            tl.store(confidences + at + place, confidence)
        listens = row < 0
        valid = row >= 0
        for m in tl.static_range(NUM_AUTOMATA):
            of_row = row * NUM_AUTOMATA + m
            state = tl.load(lm_states + of_row)
            listens = listens | (tl.load(weights + of_row) != 0.0)
            valid = valid & (state >= 0) & (state < num_states)
        if valid:
            for m in tl.static_range(NUM_AUTOMATA):
                of_row = row * NUM_AUTOMATA + m
                fill_row(
                    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                    tl.load(lm_states + of_row), scratch_scores + of_row * vocab_size, scratch_targets + of_row * vocab_size,
                    0, vocab_size, vocab_size, True, BLOCK,
                )  # fmt: skip
        tl.debug_barrier()
        candidates = tl.where(listens, tl.minimum(vocab_size, classes), classes)
        chosen = token
        if valid & (token < candidates):
            best_fused = float("-inf")
            ilm_weight = tl.load(ilm_weights + row)
            broken = 0  # whether any score is NaN; then the model's own choice stays
            for block in range(0, candidates, BLOCK):
                classes_of_block = block + lanes
                inside = classes_of_block < candidates
                added = tl.zeros((BLOCK,), tl.float32)
                for m in tl.static_range(NUM_AUTOMATA):
                    of_row = row * NUM_AUTOMATA + m
                    known = inside & (classes_of_block < vocab_size)
                    lm = tl.load(scratch_scores + of_row * vocab_size + classes_of_block, mask=known, other=0.0)
                    added += tl.load(weights + of_row) * lm
                fused = tl.load(heard + classes_of_block, mask=inside, other=0.0).to(tl.float32) + added
                if HAS_ILM:
                    of_internal = tl.load(internal + row * classes + classes_of_block, mask=inside, other=0.0)
                    fused -= tl.where(ilm_weight != 0.0, ilm_weight * of_internal, 0.0)
                    fused = tl.where(fused == fused, fused, float("-inf"))  # impossible classes
                fused = tl.where(inside & (classes_of_block != blank), fused, float("-inf"))
                broken = tl.maximum(broken, tl.max((fused != fused).to(tl.int32), axis=0))
                block_highest = tl.max(fused, axis=0)
                chosen = tl.where(block_highest > best_fused, block + tl.argmax(fused, axis=0), chosen)
                best_fused = tl.maximum(best_fused, block_highest)
            chosen = tl.where(broken > 0, token, chosen)
            if HAS_ILM:
                so_far = tl.load(ilm_scores + row)
                of_token = tl.load(internal + row * classes + chosen).to(tl.float64)
                tl.debug_barrier()  # all threads must have read the old values
                tl.store(ilm_scores + row, so_far + tl.where(ilm_weight != 0.0, of_token, 0.0))
        change = tl.load(heard + chosen).to(tl.float32) - tl.load(heard + token).to(tl.float32)
        score += (log_prob + tl.where(chosen == token, 0.0, change)).to(tl.float64)
        for m in tl.static_range(NUM_AUTOMATA):
            of_row = row * NUM_AUTOMATA + m
            known = chosen < vocab_size
            target = tl.load(scratch_targets + of_row * vocab_size + chosen, mask=known & valid, other=0)
            gain = tl.load(scratch_scores + of_row * vocab_size + chosen, mask=known & valid, other=float("nan"))
            so_far = tl.load(lm_scores + of_row)
            tl.debug_barrier()
            tl.store(lm_scores + of_row, so_far + gain, mask=known)
            tl.store(lm_states + of_row, target, mask=known & valid)
        count += 1
        move = tl.where((move == 0) & (count >= max_symbols), 1, move)
        count = tl.where(move > 0, 0, count)
        time += move
        tl.store(tokens + at + place, chosen)
        tl.store(moves + at + place, move.to(tl.int32))
        label = chosen
    tl.store(labels + row, label)
    tl.store(emissions + row, emits)
    tl.store(open_rows + row, (time < end) & (bad < 0))
    tl.store(times + row, time)
    tl.store(symbols + row, count)
    tl.store(bad_frames + row, bad)
    tl.store(acoustic_scores + row, score)


def aot_signatures() -> Iterator[tuple[Any, dict[str, str], dict[str, Any]]]:
    """Yield every kernel with its argument types and constants, for compiling ahead of time."""
    integers = ("durations", "ends", "times", "symbols", "bad_frames", "labels")
    sizes = ("num_states", "number", "num_rows", "window", "classes", "num_durations", "vocab_size", "blank", "max_symbols")
    for token_type, logit_type, num_automata, durations, measure in (
        ("*i16", "*fp32", 1, 0, NO_MEASURE), ("*i32", "*bf16", 2, 8, 3), ("*i16", "*fp16", 0, 8, 0), ("*i16", "*fp32", 1, 0, 1),
    ):  # fmt: skip
        signature = automaton_signature(token_type) | {"logits": logit_type, "internal": "*fp32"}
        signature |= dict.fromkeys(integers, "*i64") | dict.fromkeys(sizes, "i32")
        signature |= {"lm_states": "*i32", "lm_scores": "*fp32", "acoustic_scores": "*fp64", "ilm_scores": "*fp64"}
        signature |= {"scratch_scores": "*fp32", "scratch_targets": "*i32", "tokens": "*i32", "moves": "*i32"}
        signature |= {"emissions": "*i8", "open_rows": "*i8", "greatest_entropy": "fp32", "least_entropy": "fp32"}
        signature |= dict.fromkeys(("weights", "ilm_weights", "confidences"), "*fp32")
        constants = {"NUM_AUTOMATA": num_automata, "DURATIONS": durations, "HAS_ILM": num_automata > 0, "MEASURE": measure}
        yield _window_kernel, signature, constants | block_of(1024)
