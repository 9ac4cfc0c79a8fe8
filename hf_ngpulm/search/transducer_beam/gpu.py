"""Run beam search for transducers on the GPU, with Triton kernels between the networks.

`_extend_kernel` runs a program per hypothesis, which normalises the logits, adds the LM scores, and writes the best extensions.
Then `_choose_kernel` runs a program per row, which merges equal hypotheses, keeps the best ones, and follows their tokens
through the language models. PyTorch runs the networks. A step launches these two kernels, a kernel that gathers frames, the
joint network, the prediction network, and two operators for each part of the prediction network's state.

Scores are float64. In log(sum of exp) the difference from the largest term is computed in float32. If the sum has a single
term, this difference is exactly 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl

from ...automaton.gpu import REGISTERS, automaton_signature, fill_row, step_rows
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
from ..networks.graphs import overwrite, replace_where
from ..networks.search import STILL, SearchSettings
from .buffers import BeamBuffers

MOST_CANDIDATES = 2048  # maximum number per row (44 beams need fewer), as a program compares all pairs
FEWEST_PLACES, FEWEST_CANDIDATES = 4, 16
MOST_SYMBOLS = 2**31 - 1
CANDIDATES_PER_WARP = 64
MOST_WARPS = 16

NOTHING = tl.constexpr(STILL)
CLOSED, OPEN, BROKEN = (tl.constexpr(i) for i in range(3))
NEVER = tl.constexpr(1 << 62)
# Hypotheses are identified by hashes of their tokens, as in the core. Each token is a step of a linear congruential generator.
MIX, ADD = tl.constexpr(6364136223846793005), tl.constexpr(1442695040888963407)


def holds(settings: SearchSettings) -> bool:
    """Return whether a program can hold all candidates of a row. The candidates are the hypotheses and all their extensions."""
    return settings.num_beams * (settings.most_extensions + 1) <= MOST_CANDIDATES


class Search(BeamBuffers):
    """Beam search with kernels between the networks."""

    def make_room(self) -> None:
        super().make_room()
        device, settings, model = self.device, self.settings, self.model
        (rows, num_beams), num_automata = self.beam.scores.shape, self.beam.lm_states.shape[2]
        hypotheses, extended = rows * num_beams, (rows * num_beams, self.most_extensions + 1)

        def room(dtype: torch.dtype, *shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.line_scores = room(torch.float32, hypotheses, num_automata, self.vocab_size)
        self.fused = room(torch.float32, hypotheses, model.vocab_size)
        self.normalisers, self.of_model = (room(torch.float32, hypotheses) for _ in range(2))
        self.conditions = room(torch.int32, hypotheses)
        # Keys and gains of each hypothesis's extensions. The last column is for the hypothesis itself. Equal keys mean equal
        # hypotheses. A gain is added to a score.
        self.keys = room(torch.int64, *extended)
        self.gains, self.acoustic_gains = (room(torch.float64, *extended) for _ in range(2))
        self.labels, self.moves = (room(torch.int32, *extended) for _ in range(2))
        self.parents, self.tokens = (room(torch.int64, hypotheses) for _ in range(2))
        self.gets_token, self.open_rows = room(torch.bool, hypotheses), room(torch.bool, rows)
        self.no_internal = room(torch.float32, 0)
        self.sizes = {
            "NUM_AUTOMATA": num_automata,
            "PLACES": max(triton.next_power_of_2(num_beams), FEWEST_PLACES),
            "AES": settings.strategy == "aes",
        }

    def take_steps(self) -> None:
        if self.settings.strategy == "aes":
            self.take_frames()
            return
        for number in range(STEPS):
            self.take_step(number, number, self.settings.max_symbols)
        torch.any(self.open_rows, out=self.is_open)

    def take_frames(self) -> None:
        steps, merging = self.settings.aes_steps, self.settings.num_beams - 1
        for frame in range(STEPS):
            first = frame * (merging + steps + 1)
            for turn in range(steps):
                self.take_step(first + (merging + turn if turn else 0), frame + 1, MOST_SYMBOLS, merges_prefixes=turn == 0)
            self.take_step(first + merging + steps, frame + 1, 0)  # only the blank is left
        self.time += STEPS

    def take_step(self, number: int, offset: int, most_symbols: int, merges_prefixes: bool = False) -> None:
        """Take one step: run the joint network, extend the hypotheses, choose the best ones, and run the prediction network on
        their tokens.

        Args:
            number: index of the step in the block's trace. With `merges_prefixes` the call may write several steps, and
                `number` is the index of the first step.
            offset: number of frames since the block's first frame (AES).
            most_symbols: maximum number of tokens at a frame; 0 allows only the blank.
            merges_prefixes: whether to merge prefixes first, see `_merge_prefixes`.
        """
        beam, model = self.beam, self.model
        frames = gather_frames(self.frames, beam.times, 1).flatten(0, 2)
        logits = model.join(frames, beam.predictions).contiguous()
        self.extend(logits, offset, most_symbols)
        self.choose(logits, number, merges_prefixes)
        olds = [part.index_select(0, self.parents) for part in (beam.predictions, *beam.state)]
        buffers = (beam.predictions, *beam.state)
        if most_symbols == 0:  # no hypothesis has got a token
            overwrite(buffers, tuple(olds))
            return
        predictions, state = model.predict(self.tokens, tuple(olds[1:]))
        replace_where(self.gets_token, buffers, (predictions, *state), tuple(olds))

    def extend(self, logits: torch.Tensor, offset: int, most_symbols: int) -> None:
        beam, model, settings = self.beam, self.model, self.settings
        classes, durations = model.vocab_size, self.durations.numel()
        internal = internal_lm(model, beam.predictions) if self.has_ilm else self.no_internal
        picked = min(self.most_extensions, classes)
        _extend_kernel[(len(logits),)](
            *self.automaton, logits, internal, self.durations, self.weights, self.totals, self.ilm_weights, self.lengths,
            self.reaches, self.time, beam.scores, beam.times, beam.symbols, beam.sizes, beam.hashes, beam.lm_states,
            self.line_scores, self.fused, self.normalisers, self.of_model, self.conditions, self.keys, self.gains,
            self.acoustic_gains, self.labels, self.moves, self.automaton.num_states, settings.num_beams, classes, durations,
            self.vocab_size, model.blank_id, picked, self.most_extensions, min(most_symbols, MOST_SYMBOLS),
            self.models.num_lms, offset,
            float(settings.aes_gamma), -math.log(max(self.vocab_size, 1)), *entropy_bounds(classes),
            DURATIONS=triton.next_power_of_2(durations) if durations else 0, PICKS=triton.next_power_of_2(picked),
            EXTENSIONS=triton.next_power_of_2(self.most_extensions), LATE=settings.late, BLANK_AWARE=settings.blank_aware,
            HAS_ILM=self.has_ilm, MEASURE=measure_of(settings.confidence), **self.sizes, **block_of(classes),
        )  # fmt: skip

    def choose(self, logits: torch.Tensor, number: int, merges_prefixes: bool) -> None:
        beam, settings = self.beam, self.settings
        rows, num_beams = beam.scores.shape
        _choose_kernel[(rows,)](
            *self.automaton, logits, self.lengths, self.reaches, *beam[:11], beam.bad_frames, self.fused, self.normalisers,
            self.of_model, self.conditions, self.keys, self.gains, self.acoustic_gains, self.labels, self.moves, *self.trace,
            self.confidences, self.parents, self.tokens, self.gets_token.view(torch.int8), self.open_rows.view(torch.int8),
            self.automaton.num_states, num_beams, self.model.vocab_size, logits.shape[1], self.vocab_size, self.model.blank_id,
            self.most_extensions, number, rows,
            LOG_SUM=settings.log_sum, MERGES_PREFIXES=merges_prefixes, **self.sizes, **_tiles(num_beams, self.most_extensions),
        )  # fmt: skip


def _tiles(num_beams: int, most_extensions: int) -> dict[str, int]:
    """Return settings of `_choose_kernel`: the size of the arrays of a row's candidates, and the number of warps."""
    candidates = max(triton.next_power_of_2(num_beams * (most_extensions + 1)), FEWEST_CANDIDATES)
    warps = min(max(candidates // CANDIDATES_PER_WARP, 1), MOST_WARPS)
    return {"CANDIDATES": candidates, "num_warps": warps, **REGISTERS}


@triton.jit
def _extend_hash(hashes, tokens):
    mixed = (hashes + tokens.to(tl.int64) + 1) * MIX + ADD
    return mixed ^ (mixed >> 29)


@triton.jit
def _take(values, at):
    """Return `values[at]`, or 0 if `at` isn't the index of a place."""
    is_place = (at >= 0) & (at < values.shape[0])
    return tl.where(is_place, tl.gather(values, tl.where(is_place, at, 0), 0), 0)


@triton.jit
def _limit_of(scores, times, length, reach):
    """Return the frame at which ALSD stops a row's hypotheses. If a step of up to `reach` frames might lead past the last
    frame, no hypothesis may move, and the result is 0. Otherwise the result is `length`.
    """
    latest = tl.max(tl.where(scores > float("-inf"), times, 0), axis=0)
    return tl.where(latest + reach > length, 0, length)


@triton.jit
def _add(a, b):
    """Return log(exp(a) + exp(b))"""
    highest = tl.maximum(a, b)
    difference = tl.minimum(a, b) - tl.where(highest > float("-inf"), highest, 0.0)
    return highest + tl.log(1.0 + tl.exp(difference.to(tl.float32))).to(tl.float64)


@triton.jit
def _fuse(
    x, line, fused, internal, weights, normaliser, total, unscored, blank, classes, vocab_size, num_lms, ilm_weight,
    NUM_AUTOMATA: tl.constexpr, HAS_ILM: tl.constexpr, BLANK_AWARE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the scores of a hypothesis's classes to `fused`, including LM scores.

    `line` has the automata's scores of all tokens, `internal` the internal LM's scores. `unscored` is the score of a class that
    LMs don't score. `total` is the sum of the LMs' weights, minus the internal LM's weight.
    """
    lanes = tl.arange(0, BLOCK)
    of_blank = tl.load(x + blank).to(tl.float32) - normaliser
    others = total * 0.0
    if BLANK_AWARE and total != 0.0:
        _, _, of_others = best_class(x, classes, blank, BLOCK)
        others = total * (of_others - normaliser)
        of_blank += tl.where(of_blank > float("-inf"), total * of_blank, 0.0)
    beyond = total * 0.0
    for m in tl.static_range(NUM_AUTOMATA):
        beyond += tl.where(m < num_lms, tl.load(weights + m), 0.0)
    for block in range(0, classes, BLOCK):
        tokens = block + lanes
        inside = tokens < classes
        log_probs = tl.load(x + tokens, mask=inside, other=float("-inf")).to(tl.float32) - normaliser
        added = tl.zeros((BLOCK,), tl.float32)
        for m in tl.static_range(NUM_AUTOMATA):
            weight = tl.load(weights + m)
            scores = tl.load(line + m * vocab_size + tokens, mask=inside & (tokens < vocab_size), other=0.0)
            added += tl.where(weight != 0.0, weight * scores, 0.0)
        if NUM_AUTOMATA > 0:
            added = tl.where(tokens < vocab_size, added, unscored * beyond)
        if HAS_ILM:
            of_internal = tl.load(internal + tokens, mask=inside, other=0.0)
            added -= tl.where(ilm_weight != 0.0, ilm_weight * of_internal, 0.0)
        values = tl.where(log_probs > float("-inf"), log_probs + added + others, float("-inf"))
        tl.store(fused + tokens, tl.where(tokens == blank, of_blank, values), mask=inside)


@triton.jit
def _picks(
    x, fused, normaliser, begin, end, picked, LATE: tl.constexpr, PICKS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Return the classes in `begin .. end - 1` that have the highest ranks, the best class first. Also return the ranks of
    these classes. `picked`: number of classes to return.

    The rank of a class is its score in `fused` if LATE, otherwise its log-probability.
    """
    lanes = tl.arange(0, BLOCK)
    picks = tl.arange(0, PICKS)
    ranks = tl.full((PICKS,), float("-inf"), tl.float32)
    labels = tl.zeros((PICKS,), tl.int32)
    last_rank = float("inf")
    last_label = -1
    for pick in range(0, picked):
        best = begin
        highest = float("-inf")
        for block in range(begin, end, BLOCK):
            tokens = block + lanes
            inside = tokens < end
            if LATE:
                values = tl.load(fused + tokens, mask=inside, other=float("-inf"))
            else:
                values = tl.load(x + tokens, mask=inside, other=float("-inf")).to(tl.float32) - normaliser
            after = (values < last_rank) | ((values == last_rank) & (tokens > last_label))
            values = tl.where(after, values, float("-inf"))
            block_highest = tl.max(values, axis=0)
            best = tl.where(block_highest > highest, block + tl.argmax(values, axis=0), best)
            highest = tl.maximum(highest, block_highest)
        ranks = tl.where(picks == pick, highest, ranks)
        labels = tl.where(picks == pick, best, labels)
        last_rank = highest
        last_label = best
    return labels, ranks


@triton.jit
def _pairs(gains, labels, of_durations, most, DURATIONS: tl.constexpr, PICKS: tl.constexpr, EXTENSIONS: tl.constexpr):
    """Return the best pairs of class and duration as three arrays: the class's index in `labels`, the duration's index, and the
    pair's gain. `most`: how many pairs to return. `gains` has the score that each class adds, `of_durations` has the score that
    each duration adds.
    """
    extensions = tl.arange(0, EXTENSIONS)
    numbers = tl.arange(0, PICKS)[:, None] * DURATIONS + tl.arange(0, DURATIONS)[None, :]
    left = gains[:, None] + of_durations.to(tl.float64)[None, :]
    pairs = tl.zeros((EXTENSIONS,), tl.int32)
    found = tl.full((EXTENSIONS,), float("-inf"), tl.float64)
    for extension in range(0, most):
        highest = tl.max(tl.max(left, axis=1), axis=0)
        best = tl.min(tl.min(tl.where(left == highest, numbers, PICKS * DURATIONS - 1), axis=1), axis=0)
        pairs = tl.where(extensions == extension, best, pairs)
        found = tl.where(extensions == extension, highest, found)
        left = tl.where(numbers == best, float("-inf"), left)
    return pairs // DURATIONS, pairs % DURATIONS, found


# Kernels compiled for multiples of 16 aren't faster.
@triton.jit(
    do_not_specialize=[
        "num_states", "num_beams", "classes", "num_durations", "vocab_size", "blank", "picked", "most", "most_symbols",
        "num_lms", "offset",
    ]
)  # fmt: skip
def _extend_kernel(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    logits, internal, durations, weights, totals, ilm_weights, lengths, reaches, clock, beam_scores, beam_times, beam_symbols,
    beam_sizes, beam_hashes, lm_states, line_scores, fused, normalisers, confidences, conditions, keys, gains, acoustic_gains,
    labels, moves, num_states, num_beams, classes, num_durations, vocab_size, blank, picked, most, most_symbols, num_lms,
    offset, gamma, unscored, greatest_entropy, least_entropy,
    NUM_AUTOMATA: tl.constexpr, DURATIONS: tl.constexpr, PLACES: tl.constexpr, PICKS: tl.constexpr, EXTENSIONS: tl.constexpr,
    AES: tl.constexpr, LATE: tl.constexpr, BLANK_AWARE: tl.constexpr, HAS_ILM: tl.constexpr, MEASURE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64)
    row = at // num_beams
    places = tl.arange(0, PLACES)
    extensions = tl.arange(0, EXTENSIONS)
    inside = places < num_beams
    row_scores = tl.load(beam_scores + row * num_beams + places, mask=inside, other=float("-inf"))
    row_times = tl.load(beam_times + row * num_beams + places, mask=inside, other=0)
    length = tl.load(lengths + row)
    if AES:
        limit = tl.minimum(length, tl.load(clock) + offset)
    else:
        limit = _limit_of(row_scores, row_times, length, tl.load(reaches + row))
    time = tl.load(beam_times + at)
    size = tl.load(beam_sizes + at)
    own = tl.load(beam_hashes + at)
    first = at * (most + 1)
    tl.store(keys + first + most, (own * MIX + time) * MIX + size)
    tl.store(labels + first + most, NOTHING)
    tl.store(moves + first + most, 0)
    condition = CLOSED
    if (tl.load(beam_scores + at) > float("-inf")) & (time < limit):
        condition = OPEN
        width = classes + num_durations
        x = logits + at * width
        _, highest, normaliser = best_class(x, classes, -1, BLOCK)
        is_right = is_finite(normaliser)
        lanes = tl.arange(0, DURATIONS if DURATIONS > 0 else 1)
        of_durations = tl.load(x + classes + lanes, mask=lanes < num_durations, other=float("-inf")).to(tl.float32)
        if DURATIONS > 0:
            of_durations -= tl.max(of_durations, axis=0)
            of_durations -= tl.log(tl.sum(tl.exp(of_durations), axis=0))
            is_right = is_right & (tl.max((of_durations != of_durations).to(tl.int32), axis=0) == 0)
        if is_right:
            for m in tl.static_range(NUM_AUTOMATA):
                line = line_scores + (at * NUM_AUTOMATA + m) * vocab_size
                state = tl.load(lm_states + at * NUM_AUTOMATA + m)
                if (state >= 0) & (state < num_states):
                    fill_row(
                        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                        state, line, line, 0, vocab_size, vocab_size, False, BLOCK,
                    )  # fmt: skip
            tl.debug_barrier()
            line = line_scores + at * NUM_AUTOMATA * vocab_size
            _fuse(
                x, line, fused + at * classes, internal + at * classes, weights + row * NUM_AUTOMATA, normaliser,
                tl.load(totals + row), unscored, blank, classes, vocab_size, num_lms, tl.load(ilm_weights + row),
                NUM_AUTOMATA, HAS_ILM, BLANK_AWARE, BLOCK,
            )  # fmt: skip
            tl.debug_barrier()
            exhausted = tl.load(beam_symbols + at) >= most_symbols  # if so, only the blank is left
            begin = tl.where(exhausted, blank, 0)
            end = tl.where(exhausted, blank + 1, classes)
            label, rank = _picks(x, fused + at * classes, normaliser, begin, end, picked, LATE, PICKS, BLOCK)
            gain = tl.load(fused + at * classes + label).to(tl.float64)
            gain = tl.where(rank > float("-inf"), gain, float("-inf"))
            move = (label == blank).to(tl.int64)
            if DURATIONS > 0:
                which, duration, gain = _pairs(gain, label, of_durations, most, DURATIONS, PICKS, EXTENSIONS)
                label = _take(label, which)
                move = tl.load(durations + duration, mask=gain > float("-inf"), other=0)
                move = tl.where(label == blank, tl.maximum(move, 1), move)
            elif AES:
                gain = tl.where(rank.to(tl.float64) > tl.max(rank, axis=0).to(tl.float64) - gamma, gain, float("-inf"))
            acoustic_gain = (tl.load(x + label).to(tl.float32) - normaliser).to(tl.float64)
            if DURATIONS > 0:
                acoustic_gain += _take(of_durations, duration).to(tl.float64)
            is_token = label != blank
            hashes = tl.where(is_token, _extend_hash(own, label), own)
            sizes = size + is_token.to(tl.int64)
            if AES:  # an extension that equals a hypothesis of the beam isn't a candidate
                row_hashes = tl.load(beam_hashes + row * num_beams + places, mask=inside, other=0)
                row_sizes = tl.load(beam_sizes + row * num_beams + places, mask=inside, other=-1)
                same = (hashes[:, None] == row_hashes[None, :]) & (sizes[:, None] == row_sizes[None, :])
                known = tl.max((same & (row_scores > float("-inf"))[None, :]).to(tl.int32), axis=1) > 0
                gain = tl.where(known & is_token, float("-inf"), gain)
            times = tl.minimum(time + move, length)
            tl.store(keys + first + extensions, (hashes * MIX + times) * MIX + sizes, mask=extensions < most)
            tl.store(gains + first + extensions, gain, mask=extensions < most)
            tl.store(acoustic_gains + first + extensions, acoustic_gain, mask=extensions < most)
            tl.store(labels + first + extensions, label, mask=extensions < most)
            tl.store(moves + first + extensions, move.to(tl.int32), mask=extensions < most)
            if MEASURE != -1:
                confidence = confidence_of(x, classes, highest, normaliser, greatest_entropy, least_entropy, MEASURE, BLOCK)
                tl.store(confidences + at, confidence)
            tl.store(normalisers + at, normaliser)
        else:
            condition = BROKEN
    tl.store(conditions + at, condition)


@triton.jit
def _merge_prefixes(
    x, width, fused, classes, normalisers, scores, acoustic, is_open, last_tokens, hashes, parent_hashes, sizes, confidences,
    links, labels, moves, found_confidences, step_stride, num_beams, places, LOG_SUM: tl.constexpr,
):  # fmt: skip
    """Add the probability of the parent's extension to each hypothesis whose parent is in the beam. The parent is the
    hypothesis without its last token. Shorter hypotheses are processed first.

    Return the new scores and acoustic scores. If the best alignment of a hypothesis now comes from the parent, this change is
    written as a step of the trace. If the parent's best alignment has changed, too, the parent's change is an earlier step.
    """
    inside = places < num_beams
    last = tl.load(last_tokens + places, mask=inside, other=0)
    own = tl.load(hashes + places, mask=inside, other=0)
    of_parent = tl.load(parent_hashes + places, mask=inside, other=0)
    size = tl.load(sizes + places, mask=inside, other=0)
    is_parent = (of_parent[:, None] == own[None, :]) & (size[:, None] == size[None, :] + 1)
    is_parent = is_parent & is_open[:, None] & is_open[None, :]
    parents = tl.min(tl.where(is_parent, places[None, :], num_beams), axis=1)
    has_parent = parents < num_beams
    parents = tl.where(has_parent, parents, places)
    levels = places * 0  # the number of ancestors in the beam
    for _ in range(1, num_beams):
        levels = tl.where(has_parent, _take(levels, parents) + 1, 0)
    token = tl.maximum(last, 0)
    gain = tl.load(fused + parents * classes + token, mask=has_parent, other=0.0).to(tl.float64)
    log_prob = tl.load(x + parents * width + token, mask=has_parent, other=0.0).to(tl.float32)
    log_prob -= tl.load(normalisers + parents, mask=has_parent, other=0.0)
    depths = places * 0
    for level in range(1, num_beams):
        gaining = has_parent & (levels == level)
        score = tl.where(gaining, _take(scores, parents) + gain, float("-inf"))
        of_model = tl.where(gaining, _take(acoustic, parents) + log_prob.to(tl.float64), float("-inf"))
        better = score > scores
        depths = tl.where(better, _take(depths, parents) + 1, depths)
        if LOG_SUM:
            scores = tl.where(gaining, _add(scores, score), scores)
            acoustic = tl.where(gaining, _add(acoustic, of_model), acoustic)
        else:
            scores = tl.where(better, score, scores)
            acoustic = tl.where(better, of_model, acoustic)
    for depth in range(1, num_beams):
        moved = depths == depth
        at = (depth - 1) * step_stride + places
        confidence = tl.load(confidences + parents, mask=inside & moved, other=0.0)
        tl.store(links + at, tl.where(moved, parents, places), mask=inside)
        tl.store(labels + at, tl.where(moved, token, NOTHING).to(tl.int32), mask=inside)
        tl.store(moves + at, places * 0, mask=inside)
        tl.store(found_confidences + at, confidence, mask=inside)
    return scores, acoustic


@triton.jit
def _merge(keys, scores, acoustic, own_keys, own_scores, own_acoustic, numbers, count, LOG_SUM: tl.constexpr):
    """Return the merged scores and acoustic scores of a thread's own candidates. Candidates with equal keys are merged.

    Among equal candidates, the best one gets the merged score, the others get -inf. Each thread compares its own candidates
    (`own_...`, with the indices `numbers`) with all candidates in memory (`count` of them), so no thread waits for another one.
    """
    best = own_scores
    of_model = own_acoustic
    first = numbers
    alike = numbers * 0
    for other in range(0, count):
        alike += (own_keys == tl.load(keys + other)).to(tl.int32)
    most = tl.max(alike, axis=0)
    if most > 1:
        for other in range(0, count):
            key = tl.load(keys + other)  # loads come first, so that they wait together
            score = tl.load(scores + other)
            score_of_model = tl.load(acoustic + other)
            same = own_keys == key
            best = tl.where(same, tl.maximum(best, score), best)
            of_model = tl.where(same, tl.maximum(of_model, score_of_model), of_model)
        shift = tl.where(best > float("-inf"), best, 0.0)
        shift_acoustic = tl.where(of_model > float("-inf"), of_model, 0.0)
        first = numbers * 0 + count
        total = numbers.to(tl.float32) * 0.0
        total_acoustic = total
        for other in range(0, count):
            key = tl.load(keys + other)
            score = tl.load(scores + other)
            score_of_model = tl.load(acoustic + other)
            same = own_keys == key
            first = tl.where(same & (score == best), tl.minimum(first, other), first)
            if LOG_SUM:
                total += tl.where(same, tl.exp((score - shift).to(tl.float32)), 0.0)
                total_acoustic += tl.where(same, tl.exp((score_of_model - shift_acoustic).to(tl.float32)), 0.0)
        if LOG_SUM:
            best += tl.log(total).to(tl.float64)
            of_model += tl.log(total_acoustic).to(tl.float64)
        else:
            of_model = own_acoustic
    kept = (first == numbers) & (own_scores > float("-inf"))
    return tl.where(kept, best, float("-inf")), of_model


@triton.jit(
    do_not_specialize=["num_states", "num_beams", "classes", "width", "vocab_size", "blank", "most", "number", "num_rows"]
)
def _choose_kernel(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    logits, lengths, reaches, beam_scores, beam_acoustic, beam_shares, beam_times, beam_symbols, beam_sizes, beam_last,
    beam_hashes, beam_parent_hashes, lm_states, lm_scores, bad_frames, fused, normalisers, confidences, conditions, keys, gains,
    acoustic_gains, labels, moves, links, found_labels, found_moves, found_confidences, parents, tokens, emissions, open_rows,
    num_states, num_beams, classes, width, vocab_size, blank, most, number, num_rows,
    NUM_AUTOMATA: tl.constexpr, PLACES: tl.constexpr, AES: tl.constexpr, LOG_SUM: tl.constexpr, MERGES_PREFIXES: tl.constexpr,
    CANDIDATES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, PLACES)
    inside = places < num_beams
    base = row * num_beams
    first = base * (most + 1)
    count = num_beams * (most + 1)
    step_stride = (row * 0 + num_rows) * num_beams
    at_step = number * step_stride + base

    # A row whose logits can't be normalised ends at this frame.
    condition = tl.load(conditions + base + places, mask=inside, other=CLOSED)
    old_times = tl.load(beam_times + base + places, mask=inside, other=0)
    worst = tl.max(condition, axis=0)
    where = tl.min(tl.where(condition == BROKEN, old_times, NEVER), axis=0)
    bad = tl.load(bad_frames + row)
    tl.debug_barrier()
    tl.store(bad_frames + row, tl.where((worst == BROKEN) & (bad < 0), where, bad))
    worst = tl.where(worst == BROKEN, worst, CLOSED)
    condition = tl.maximum(condition, worst)
    tl.store(beam_times + base + places, tl.zeros((PLACES,), tl.int64) + NEVER, mask=inside & (condition == BROKEN))
    if MERGES_PREFIXES:
        score = tl.load(beam_scores + base + places, mask=inside, other=float("-inf"))
        acoustic = tl.load(beam_acoustic + base + places, mask=inside, other=float("-inf"))
        is_open = condition == OPEN
        score, acoustic = _merge_prefixes(
            logits + base * width, width, fused + base * classes, classes, normalisers + base, score, acoustic, is_open,
            beam_last + base, beam_hashes + base, beam_parent_hashes + base, beam_sizes + base, confidences + base,
            links + at_step, found_labels + at_step, found_moves + at_step, found_confidences + at_step, step_stride,
            num_beams, places, LOG_SUM,
        )  # fmt: skip
        at_step += (num_beams - 1) * step_stride
        tl.debug_barrier()
        tl.store(beam_scores + base + places, score, mask=inside)
        tl.store(beam_acoustic + base + places, acoustic, mask=inside)
    tl.debug_barrier()

    # The candidates are the extensions, and the hypotheses that stand still.
    numbers = tl.arange(0, CANDIDATES)
    there = numbers < count
    parent = numbers // (most + 1)
    stays = numbers % (most + 1) == most
    condition = tl.maximum(tl.load(conditions + base + parent, mask=there, other=CLOSED), worst)
    extends = there & (condition == OPEN) & (stays == 0)
    possible = extends | (there & (condition != OPEN) & stays)
    gain = tl.load(gains + first + numbers, mask=extends, other=0.0)
    acoustic_gain = tl.load(acoustic_gains + first + numbers, mask=extends, other=0.0)
    total = tl.load(beam_scores + base + parent, mask=possible, other=float("-inf")) + gain
    possible = possible & (total > float("-inf"))
    total = tl.where(possible, total, float("-inf"))
    of_model = tl.load(beam_acoustic + base + parent, mask=possible, other=float("-inf")) + acoustic_gain
    of_model = tl.where(possible, of_model, float("-inf"))
    key = tl.load(keys + first + numbers, mask=there, other=0)
    key = tl.where(possible, key, numbers)  # an impossible candidate equals no other
    tl.debug_barrier()
    tl.store(keys + first + numbers, key, mask=there)
    tl.store(gains + first + numbers, total, mask=there)
    tl.store(acoustic_gains + first + numbers, of_model, mask=there)
    tl.debug_barrier()
    merged, of_model = _merge(
        keys + first, gains + first, acoustic_gains + first, key, total, of_model, numbers, count, LOG_SUM
    )  # fmt: skip
    tl.debug_barrier()
    tl.store(gains + first + numbers, merged, mask=there)
    tl.store(acoustic_gains + first + numbers, of_model, mask=there)
    merged += tl.load(beam_shares + base + parent, mask=there, other=0.0)

    # Choose the best candidates.
    chosen = places * 0
    score = tl.full((PLACES,), float("-inf"), tl.float64)
    for place in range(0, num_beams):
        highest = tl.max(merged, axis=0)
        best = tl.min(tl.where(merged == highest, numbers, CANDIDATES - 1), axis=0)
        chosen = tl.where(places == place, best, chosen)
        score = tl.where(places == place, highest, score)
        merged = tl.where(numbers == best, float("-inf"), merged)
    chosen = tl.minimum(chosen, count - 1)
    tl.debug_barrier()

    # Load the parents, labels and moves of the chosen candidates.
    parent = chosen // (most + 1)
    label = tl.load(labels + first + chosen)
    move = tl.load(moves + first + chosen)
    alive = score > float("-inf")
    label = tl.where(alive, label, NOTHING)
    gets_token = inside & (label >= 0) & (label != blank)
    time = tl.load(beam_times + base + parent)
    symbols = tl.load(beam_symbols + base + parent)
    size = tl.load(beam_sizes + base + parent)
    last = tl.load(beam_last + base + parent)
    own = tl.load(beam_hashes + base + parent)
    of_parent = tl.load(beam_parent_hashes + base + parent)
    score = tl.where(alive, tl.load(gains + first + chosen), float("-inf"))
    new_acoustic = tl.load(acoustic_gains + first + chosen)
    share = tl.load(beam_shares + base + parent)
    confidence = tl.load(confidences + base + parent, mask=gets_token, other=0.0)
    length = tl.load(lengths + row)
    time = tl.where(label >= 0, tl.minimum(time + move, length), time)
    symbols = tl.where(gets_token, tl.where(move > 0, 0, symbols + 1), tl.where(label >= 0, 0, symbols))
    tl.debug_barrier()
    tl.store(beam_scores + base + places, score, mask=inside)
    tl.store(beam_acoustic + base + places, tl.where(alive, new_acoustic, float("-inf")), mask=inside)
    tl.store(beam_shares + base + places, share, mask=inside)
    tl.store(beam_times + base + places, time, mask=inside)
    tl.store(beam_symbols + base + places, symbols, mask=inside)
    tl.store(beam_sizes + base + places, size + gets_token.to(tl.int64), mask=inside)
    tl.store(beam_last + base + places, tl.where(gets_token, label.to(tl.int64), last), mask=inside)
    tl.store(beam_hashes + base + places, tl.where(gets_token, _extend_hash(own, label), own), mask=inside)
    tl.store(beam_parent_hashes + base + places, tl.where(gets_token, own, of_parent), mask=inside)
    tl.store(links + at_step + places, parent, mask=inside)
    tl.store(found_labels + at_step + places, label, mask=inside)
    tl.store(found_moves + at_step + places, move, mask=inside)
    tl.store(found_confidences + at_step + places, confidence, mask=inside)
    tl.store(parents + base + places, base + parent, mask=inside)
    tl.store(tokens + base + places, tl.where(gets_token, label, blank).to(tl.int64), mask=inside)
    tl.store(emissions + base + places, gets_token, mask=inside)
    if AES == 0:
        limit = _limit_of(tl.where(inside, score, float("-inf")), time, length, tl.load(reaches + row))
        tl.store(open_rows + row, tl.max((inside & alive & (time < limit)).to(tl.int32), axis=0) > 0)
    followed = tl.where(gets_token & (label < tl.minimum(vocab_size, classes)), label, -1)
    for m in tl.static_range(NUM_AUTOMATA):
        from_parent = (base + parent) * NUM_AUTOMATA + m
        to = (base + places) * NUM_AUTOMATA + m
        state = tl.load(lm_states + from_parent)
        so_far = tl.load(lm_scores + from_parent)
        gained, state = step_rows(
            arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
            state, followed, inside, num_states, vocab_size,
        )  # fmt: skip
        tl.debug_barrier()
        tl.store(lm_states + to, state, mask=inside)
        tl.store(lm_scores + to, so_far + gained, mask=inside)


def aot_signatures() -> Iterator[tuple[Any, dict[str, str], dict[str, Any]]]:
    """Yield every kernel with its argument types and constants, for compiling ahead of time."""
    beam = dict.fromkeys(("beam_times", "beam_symbols", "beam_sizes", "beam_hashes", "lengths", "reaches", "keys"), "*i64")
    beam |= {"beam_scores": "*fp64", "gains": "*fp64", "acoustic_gains": "*fp64", "labels": "*i32", "moves": "*i32"}
    beam |= {"lm_states": "*i32", "fused": "*fp32", "normalisers": "*fp32", "confidences": "*fp32", "conditions": "*i32"}
    beam |= dict.fromkeys(("num_states", "num_beams", "classes", "vocab_size", "blank", "most"), "i32")
    extending = {"durations": "*i64", "clock": "*i64"}
    extending |= dict.fromkeys(("internal", "weights", "totals", "ilm_weights", "line_scores"), "*fp32")
    extending |= dict.fromkeys(("num_durations", "picked", "most_symbols", "num_lms", "offset"), "i32")
    extending |= dict.fromkeys(("gamma", "unscored", "greatest_entropy", "least_entropy"), "fp32")
    choosing = {"beam_acoustic": "*fp64", "beam_shares": "*fp64", "lm_scores": "*fp32", "found_confidences": "*fp32"}
    choosing |= dict.fromkeys(("beam_last", "beam_parent_hashes", "bad_frames", "parents", "tokens"), "*i64")
    choosing |= dict.fromkeys(("links", "found_labels", "found_moves"), "*i32") | {"emissions": "*i8", "open_rows": "*i8"}
    choosing |= dict.fromkeys(("width", "number", "num_rows"), "i32")
    for token_type, logit_type, num_beams, num_automata, durations, aes in (
        ("*i16", "*fp32", 8, 1, 0, False), ("*i32", "*bf16", 6, 2, 8, False), ("*i16", "*fp32", 8, 1, 0, True),
        ("*i16", "*fp16", 2, 0, 0, False),
    ):  # fmt: skip
        signature = automaton_signature(token_type) | {"logits": logit_type} | beam
        places = max(triton.next_power_of_2(num_beams), FEWEST_PLACES)
        picks = triton.next_power_of_2(num_beams + aes)
        both = {"NUM_AUTOMATA": num_automata, "PLACES": places, "AES": aes}
        constants = {"DURATIONS": durations, "PICKS": picks, "EXTENSIONS": picks, "LATE": not durations}
        constants |= {"BLANK_AWARE": True, "HAS_ILM": num_automata > 0, "MEASURE": 1 if aes else NO_MEASURE}
        yield _extend_kernel, signature | extending, both | constants | block_of(1024)
        constants = {"LOG_SUM": num_automata != 2, "MERGES_PREFIXES": aes}
        yield _choose_kernel, signature | choosing, both | constants | _tiles(num_beams, num_beams + aes)
