"""Search CTC logits greedily on the GPU, with two Triton kernels.

`_best_kernel` finds the best class, the normaliser and the tokens near the best class, for all frames of all rows in parallel.
`_label_kernel` runs a program per utterance, which walks the frames. It passes many frames of blanks and repeats at a time, and
labels the other frames one by one. At these other frames the automata score only the tokens near the best class. If another
token might still win, the automata score the full vocabulary. There are no launches per frame, and nothing waits for the host.
A program is a single warp, so no warp waits for another one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...automaton.gpu import EXACT, REGISTERS, automaton_signature, fill_row, step_rows
from ...automaton.tensors import AutomatonTensors
from ...engines.devices import current
from . import RULES, LabelRules

LABEL, RUN, STAY = (tl.constexpr(i) for i in range(len(RULES)))
ONE_WARP = {"BLOCK": 512, "num_warps": 1, **REGISTERS}
WALK = ONE_WARP | dict.fromkeys(REGISTERS.keys() - EXACT.keys(), 168)  # with fewer registers, two automata cause spills
# The tokens near the best class: at most NEAR tokens, with log-probabilities less than DISTANCE below that of the best class.
NEAR, DISTANCE = tl.constexpr(32), tl.constexpr(10.0)
SPAN = tl.constexpr(32)  # frames that a program passes at a time, one for each thread of its warp


def ctc_greedy(
    automaton: AutomatonTensors, logits: Tensor, lengths: Tensor, states: Tensor, before: Tensor, rules: LabelRules
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    weights, stay_costs, blank, vocab_size, rule = rules
    batch_size, frames, classes = logits.shape
    num_automata, device = states.shape[1], logits.device
    labels = torch.full((batch_size, frames), blank, dtype=torch.int32, device=device)
    acoustic_scores = torch.zeros(batch_size, device=device)
    lm_scores = torch.zeros((batch_size, num_automata), device=device)
    last_states = states.to(torch.int32).clone(memory_format=torch.contiguous_format)
    bad_frames = torch.full((batch_size,), -1, dtype=torch.int32, device=device)
    last = before.to(torch.int32).clone(memory_format=torch.contiguous_format)
    if batch_size and frames and classes:
        # Scores and targets of all tokens in the row's present states. Each new token makes the kernel rewrite them.
        scratch_scores = torch.empty((batch_size, num_automata, vocab_size), device=device)
        scratch_targets = torch.empty((batch_size, num_automata, vocab_size), dtype=torch.int32, device=device)
        most = _most_added(automaton, weights).maximum(-stay_costs).contiguous()
        best, counts = (torch.empty((batch_size, frames), dtype=torch.int32, device=device) for _ in range(2))
        near = torch.empty((batch_size, frames, NEAR.value), dtype=torch.int32, device=device)
        normalisers = torch.empty((batch_size, frames), device=device)
        of_frames = logits, *logits.stride(), lengths.contiguous(), best, normalisers, near, counts
        sizes = frames, classes, blank, vocab_size
        with current(device):
            _best_kernel[(batch_size * frames,)](*of_frames, *sizes, **ONE_WARP)
            _label_kernel[(batch_size,)](
                *automaton, *of_frames, weights.contiguous(), stay_costs.contiguous(), most, last_states,
                scratch_scores, scratch_targets, labels, acoustic_scores, lm_scores, bad_frames, last,
                *sizes, automaton.num_states, RULE=RULES.index(rule), NUM_AUTOMATA=num_automata, **WALK,
            )  # fmt: skip
    return labels, acoustic_scores, lm_scores, last_states, bad_frames, last


def _most_added(automaton: AutomatonTensors, weights: Tensor) -> Tensor:
    """Return an upper bound of the score that the automata add to a token, `[B]`; infinity if no bound is known."""
    highest = automaton.arc_weights.amax() if automaton.arc_weights.numel() else weights.new_tensor(-torch.inf)
    backoff = automaton.backoff_weights.amax()
    # Positive backoff weights may add up along a chain of backoffs, so they give no bound.
    most = torch.where(backoff > 0, torch.inf, torch.maximum(highest, backoff))
    return torch.where(weights > 0, weights * most, torch.where(weights < 0, torch.inf, 0.0)).sum(1)


# These sizes change from batch to batch, and kernels compiled for multiples of 16 aren't faster.
@triton.jit(do_not_specialize=["row_stride", "frame_stride", "frames", "classes", "blank", "vocab_size"])
def _best_kernel(
    logits, row_stride, frame_stride, class_stride, lengths, best_classes, normalisers, near, counts,
    frames, classes, blank, vocab_size, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write each frame's best class, the logsumexp of the frame's logits, and the tokens whose logits are near the highest one.

    The tokens are written only if the best class is a token that automata score.
    """
    at = tl.program_id(0).to(tl.int64)
    row = at // frames
    frame = at % frames
    if frame < tl.load(lengths + row):
        x = logits + row * row_stride + frame * frame_stride
        lanes = tl.arange(0, BLOCK)
        best = 0
        highest = float("-inf")
        total = tl.zeros((BLOCK,), tl.float32)
        for block in range(0, classes, BLOCK):
            values = tl.load(x + (block + lanes).to(tl.int64) * class_stride, mask=block + lanes < classes, other=float("-inf"))
            values = values.to(tl.float32)
            block_highest = tl.max(values, axis=0)
            block_best = tl.min(tl.where(values == block_highest, lanes, BLOCK - 1), axis=0)
            best = tl.where(block_highest > highest, block + block_best, best)
            new_highest = tl.maximum(highest, block_highest)
            shift = tl.where(new_highest > float("-inf"), new_highest, 0.0)  # all values of a block may be -inf
            total = total * tl.exp(highest - shift) + tl.exp(values - shift)
            highest = new_highest
        tl.store(best_classes + at, best)
        tl.store(normalisers + at, highest + tl.log(tl.sum(total, axis=0)))
        if (best != blank) & (best < vocab_size):
            count = 0
            for block in range(0, tl.minimum(vocab_size, classes), BLOCK):
                tokens = block + lanes
                is_token = (tokens < tl.minimum(vocab_size, classes)) & (tokens != blank)
                values = tl.load(x + tokens.to(tl.int64) * class_stride, mask=is_token, other=float("-inf")).to(tl.float32)
                is_near = (values > highest - DISTANCE).to(tl.int32)
                places = count + tl.cumsum(is_near, axis=0) - is_near
                tl.store(near + at * NEAR + places, tokens, mask=(is_near > 0) & (places < NEAR))
                count += tl.sum(is_near, axis=0)
            tl.store(counts + at, count)


@triton.jit
def _choose(
    x, class_stride, candidates, blank, before, stay_cost, lm_scores, vocab_size, weights,
    RULE: tl.constexpr, NUM_AUTOMATA: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the token in `0 .. candidates - 1` that has the best score at a frame; -1 if no token is possible. `before`: the
    previous label.
    """
    chosen = -1
    best = float("-inf")
    for block in range(0, candidates, BLOCK):
        tokens = block + tl.arange(0, BLOCK)
        inside = tokens < candidates
        values = tl.load(x + tokens.to(tl.int64) * class_stride, mask=inside, other=float("-inf")).to(tl.float32)
        fused = tl.zeros((BLOCK,), tl.float32)
        for k in tl.static_range(NUM_AUTOMATA):
            fused += tl.load(weights + k) * tl.load(lm_scores + k * vocab_size + tokens, mask=inside, other=0.0)
        again = values - stay_cost if RULE == STAY else tl.full((BLOCK,), float("-inf"), tl.float32)
        fused = tl.where(tokens == before, again, values + fused)
        fused = tl.where(inside & (tokens != blank), fused, float("-inf"))
        block_best = tl.max(fused, axis=0)
        block_chosen = block + tl.argmax(fused, axis=0)
        chosen = tl.where(block_best > best, block_chosen, chosen)
        best = tl.maximum(best, block_best)
    return chosen


@triton.jit
def _choose_near(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    x, class_stride, before, stay_cost, highest, most, near, count, lm_scores, targets, states, weights,
    num_states, vocab_size, RULE: tl.constexpr, NUM_AUTOMATA: tl.constexpr,
):  # fmt: skip
    """Return the same as `_choose`, but score only the tokens whose logits are near the highest logit (`highest`). `near` has
    these tokens, and `count` is their number.

    Return -1 if another token might win. `most`: the largest score that the LMs can add to a token. The LMs' scores and targets
    of the near tokens are written to `lm_scores` and `targets`, at the tokens' ids.
    """
    tl.debug_barrier()  # the states after the last label must have been written
    lanes = tl.arange(0, NEAR)
    asked = lanes < tl.where(count <= NEAR, count, 0)
    tokens = tl.load(near + lanes, mask=asked, other=0)
    asked = asked & ((tokens != before) | (RULE == STAY))
    values = tl.load(x + tokens.to(tl.int64) * class_stride, mask=asked, other=float("-inf")).to(tl.float32)
    fused = tl.zeros((NEAR,), tl.float32)
    for k in tl.static_range(NUM_AUTOMATA):
        here = tl.zeros((NEAR,), tl.int32) + tl.load(states + k)
        scores, ends = step_rows(
            arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
            here, tokens, asked, num_states, vocab_size,
        )  # fmt: skip
        tl.store(lm_scores + k * vocab_size + tokens, scores, mask=asked)
        tl.store(targets + k * vocab_size + tokens, ends, mask=asked)
        fused += tl.load(weights + k) * scores
    fused = tl.where(tokens == before, values - stay_cost, values + fused)  # only STAY keeps `before`
    fused = tl.where(asked, fused, float("-inf"))
    best = tl.max(fused, axis=0)
    chosen = tl.sum(tl.where(lanes == tl.argmax(fused, axis=0), tokens, 0), axis=0)
    tl.debug_barrier()
    return tl.where(best > highest - DISTANCE + most + 1e-3, chosen, -1)  # 1e-3 exceeds rounding


@triton.jit(do_not_specialize=["row_stride", "frame_stride", "frames", "classes", "blank", "num_states", "vocab_size"])
def _label_kernel(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    logits, row_stride, frame_stride, class_stride, lengths, best_classes, normalisers, near, counts,
    weights, stay_costs, most, states,
    scratch_scores, scratch_targets, labels, acoustic_scores, lm_scores, bad_frames, last,
    frames, classes, blank, vocab_size, num_states,
    RULE: tl.constexpr, NUM_AUTOMATA: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    span = tl.arange(0, SPAN)
    length = tl.minimum(tl.load(lengths + row), frames)
    stay_cost = tl.load(stay_costs + row)
    most_added = tl.load(most + row)
    before = tl.load(last + 2 * row)
    best_before = tl.load(last + 2 * row + 1)
    logits += row * row_stride
    labels += row * frames
    best_classes += row * frames
    normalisers += row * frames
    states += row * NUM_AUTOMATA
    weights += row * NUM_AUTOMATA
    lm_scores += row * NUM_AUTOMATA
    near += row * frames * NEAR
    counts += row * frames
    scratch_scores += row * NUM_AUTOMATA * vocab_size
    scratch_targets += row * NUM_AUTOMATA * vocab_size
    stale = True  # whether the scratch tensors are for other states than the row's present states
    acoustic_score = 0.0
    frame = length * 0  # Triton's interpreter needs a tensor here
    while frame < length:
        # Pass the frames that need no LM score.
        numbers = frame + span
        inside = numbers < length
        best = tl.load(best_classes + numbers, mask=inside, other=-1)
        normaliser = tl.load(normalisers + numbers, mask=inside, other=0.0)
        is_scored = (best != blank) & (best < vocab_size)
        repeats = is_scored & (span < 0)
        if RULE != STAY:
            # Among the passed frames only the first ones can continue a label, and all of them continue the same label.
            previous = tl.load(best_classes + numbers - 1, mask=inside & (span > 0), other=-1)
            previous = tl.where(span > 0, previous, before if RULE == LABEL else best_before)
            repeats = is_scored & (best == previous) & ((span > 0) | (before != blank))
        is_broken = (normaliser > float("-inf")) & (normaliser < float("inf")) == 0
        stops = (inside == 0) | is_broken | (is_scored & (repeats == 0))
        count = tl.min(tl.where(stops, span, SPAN), axis=0)
        passed = span < count
        label_of = tl.where(repeats, before, best)
        at = numbers.to(tl.int64) * frame_stride + label_of.to(tl.int64) * class_stride
        log_probs = tl.load(logits + at, mask=passed, other=0.0).to(tl.float32) - normaliser
        acoustic_score += tl.sum(tl.where(passed, log_probs, 0.0), axis=0)
        tl.store(labels + numbers, label_of, mask=passed)
        before = tl.where(count > 0, tl.sum(tl.where(span == count - 1, label_of, 0), axis=0), before)
        best_before = tl.where(count > 0, tl.sum(tl.where(span == count - 1, best, 0), axis=0), best_before)
        frame += count
        if (count < SPAN) & (frame < length):
            x = logits + frame.to(tl.int64) * frame_stride
            own = tl.sum(tl.where(span == count, best, 0), axis=0)
            own_normaliser = tl.load(normalisers + frame)
            if (own_normaliser > float("-inf")) & (own_normaliser < float("inf")):
                chosen = -1
                if stale:
                    own_logit = tl.load(x + own.to(tl.int64) * class_stride).to(tl.float32)
                    chosen = _choose_near(
                        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                        x, class_stride, before, stay_cost, own_logit, most_added, near + frame * NEAR, tl.load(counts + frame),
                        scratch_scores, scratch_targets, states, weights, num_states, vocab_size, RULE, NUM_AUTOMATA,
                    )  # fmt: skip
                if chosen < 0:
                    if stale:
                        for k in tl.static_range(NUM_AUTOMATA):
                            fill_row(
                                arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                                tl.load(states + k), scratch_scores + k * vocab_size, scratch_targets + k * vocab_size,
                                0, vocab_size, vocab_size, True, BLOCK,
                            )  # fmt: skip
                        tl.debug_barrier()
                        stale = False
                    chosen = _choose(
                        x, class_stride, tl.minimum(vocab_size, classes), blank, before, stay_cost,
                        scratch_scores, vocab_size, weights, RULE, NUM_AUTOMATA, BLOCK,
                    )  # fmt: skip
                label = tl.where(chosen >= 0, chosen, tl.where(before != blank, before, own))
                if label != before:
                    stale = True
                    for k in tl.static_range(NUM_AUTOMATA):
                        score = tl.load(scratch_scores + k * vocab_size + label)
                        target = tl.load(scratch_targets + k * vocab_size + label)
                        sum_so_far = tl.load(lm_scores + k)
                        tl.debug_barrier()
                        tl.store(lm_scores + k, sum_so_far + score)
                        tl.store(states + k, target)
                tl.store(labels + frame, label)
                acoustic_score += tl.load(x + label.to(tl.int64) * class_stride).to(tl.float32) - own_normaliser
                before = label
                best_before = own
                frame += 1
            else:
                tl.store(bad_frames + row, frame)
                length = 0
    tl.debug_barrier()  # all threads must have read the initial values, even if a row has no frames
    tl.store(acoustic_scores + row, acoustic_score)
    tl.store(last + 2 * row, before)
    tl.store(last + 2 * row + 1, best_before)


def aot_signatures() -> Iterator[tuple[Any, dict[str, str], dict[str, Any]]]:
    """Yield every kernel with its argument types and constants, for compiling ahead of time."""
    sizes = ("row_stride", "frame_stride", "class_stride", "frames", "classes", "blank", "vocab_size")
    frames = dict.fromkeys(sizes, "i32") | dict.fromkeys(("lengths", "best_classes", "near", "counts"), "*i32")
    frames |= {"normalisers": "*fp32"}
    more = dict.fromkeys(("weights", "stay_costs", "most", "scratch_scores", "acoustic_scores", "lm_scores"), "*fp32")
    more |= dict.fromkeys(("states", "scratch_targets", "labels", "bad_frames", "last"), "*i32") | {"num_states": "i32"}
    every, one = [*itertools.product(range(len(RULES)), (1, 2))], [(RULES.index("stay"), 1)]
    for token_type, logit_type, kinds in (("*i16", "*fp32", every), ("*i32", "*fp16", one), ("*i16", "*bf16", one)):
        of_frames = frames | {"logits": logit_type}
        yield _best_kernel, of_frames, ONE_WARP
        for rule, num_automata in kinds:
            signature = automaton_signature(token_type) | of_frames | more
            yield _label_kernel, signature, {"RULE": rule, "NUM_AUTOMATA": num_automata, **WALK}
