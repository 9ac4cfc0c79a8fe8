"""Greedy CTC search with language models as one Triton kernel: a program per utterance walks its frames.

There are no launches per frame and nothing waits for the host. Full-vocabulary work is done only at frames that may emit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...automaton.gpu import automaton_signature, fill_row
from ...automaton.tensors import AutomatonTensors
from . import RULES

LABEL, RUN, STAY = (tl.constexpr(i) for i in range(len(RULES)))
LARGEST_BLOCK = 2048


def ctc_greedy(
    automaton: AutomatonTensors,
    logits: Tensor,
    lengths: Tensor,
    states: Tensor,
    weights: Tensor,
    stay_costs: Tensor,
    before: Tensor,
    blank: int,
    vocab_size: int,
    rule: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    batch_size, frames, classes = logits.shape
    num_automata, device = states.shape[1], logits.device
    labels = torch.full((batch_size, frames), blank, dtype=torch.int32, device=device)
    acoustic_scores = torch.zeros(batch_size, device=device)
    lm_scores = torch.zeros((batch_size, num_automata), device=device)
    last_states = states.to(torch.int32).clone(memory_format=torch.contiguous_format)
    bad_frames = torch.full((batch_size,), -1, dtype=torch.int32, device=device)
    last = before.to(torch.int32).clone(memory_format=torch.contiguous_format)
    if batch_size and frames and classes:
        # Scores and targets of every token in the row's present states, rewritten after each new token.
        scratch_scores = torch.empty((batch_size, num_automata, vocab_size), device=device)
        scratch_targets = torch.empty((batch_size, num_automata, vocab_size), dtype=torch.int32, device=device)
        block = min(triton.next_power_of_2(max(classes, vocab_size, 32)), LARGEST_BLOCK)
        _label_kernel[(batch_size,)](
            *automaton, logits, *logits.stride(),
            lengths.contiguous(), weights.contiguous(), stay_costs.contiguous(), last_states,
            scratch_scores, scratch_targets, labels, acoustic_scores, lm_scores, bad_frames, last,
            frames, classes, blank, vocab_size,
            RULE=RULES.index(rule), NUM_AUTOMATA=num_automata, BLOCK=block, num_warps=max(block // 256, 1),
        )  # fmt: skip
    return labels, acoustic_scores, lm_scores, last_states, bad_frames, last


@triton.jit
def _label_kernel(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
    logits, row_stride, frame_stride, class_stride, lengths, weights, stay_costs, states,
    scratch_scores, scratch_targets, labels, acoustic_scores, lm_scores, bad_frames, last,
    frames, classes, blank, vocab_size,
    RULE: tl.constexpr, NUM_AUTOMATA: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    length = tl.minimum(tl.load(lengths + row), frames)
    stay_cost = tl.load(stay_costs + row)
    candidates = tl.minimum(vocab_size, classes)
    before = tl.load(last + 2 * row)
    best_before = tl.load(last + 2 * row + 1)
    stale = True  # whether the scratch belongs to other states than the row's
    acoustic_score = 0.0
    frame = length * 0  # a tensor, also in the interpreter
    while frame < length:
        x = logits + row * row_stride + frame.to(tl.int64) * frame_stride
        best = 0
        highest = float("-inf")
        total = 0.0
        for block in range(0, classes, BLOCK):
            values = tl.load(x + (block + lanes).to(tl.int64) * class_stride, mask=block + lanes < classes, other=float("-inf"))
            values = values.to(tl.float32)
            block_highest = tl.max(values, axis=0)
            block_best = block + tl.argmax(values, axis=0)
            best = tl.where(block_highest > highest, block_best, best)
            new_highest = tl.maximum(highest, block_highest)
            shift = tl.where(new_highest > float("-inf"), new_highest, 0.0)  # a block may be -inf all over
            total = total * tl.exp(highest - shift) + tl.sum(tl.exp(values - shift), axis=0)
            highest = new_highest
        normaliser = highest + tl.log(total)
        if (normaliser > float("-inf")) & (normaliser < float("inf")):
            label = best
            if (best != blank) & (best < vocab_size):
                repeats = False
                if RULE == LABEL:
                    repeats = (before != blank) & (best == before)
                if RULE == RUN:
                    repeats = (before != blank) & (best == best_before)
                if repeats:
                    label = before
                else:
                    if stale:
                        tl.debug_barrier()  # everybody has read the scratch before it is rewritten
                        for k in tl.static_range(NUM_AUTOMATA):
                            at = row * NUM_AUTOMATA + k
                            fill_row(
                                arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
                                tl.load(states + at), scratch_scores + at * vocab_size, scratch_targets + at * vocab_size,
                                0, vocab_size, vocab_size, True, BLOCK,
                            )  # fmt: skip
                        tl.debug_barrier()
                        stale = False
                    chosen = -1
                    best_fused = float("-inf")
                    for block in range(0, candidates, BLOCK):
                        tokens = block + lanes
                        inside = tokens < candidates
                        values = tl.load(x + tokens.to(tl.int64) * class_stride, mask=inside, other=float("-inf")).to(
                            tl.float32
                        )
                        fused = tl.zeros((BLOCK,), tl.float32)
                        for k in tl.static_range(NUM_AUTOMATA):
                            at = row * NUM_AUTOMATA + k
                            score = tl.load(scratch_scores + at * vocab_size + tokens, mask=inside, other=0.0)
                            fused += tl.load(weights + at) * score
                        fused = values + fused
                        again = float("-inf")
                        if RULE == STAY:
                            fused = tl.where(tokens == before, values - stay_cost, fused)
                        else:
                            fused = tl.where(tokens == before, again, fused)
                        fused = tl.where(inside & (tokens != blank), fused, float("-inf"))
                        block_highest = tl.max(fused, axis=0)
                        block_chosen = block + tl.argmax(fused, axis=0)
                        chosen = tl.where(block_highest > best_fused, block_chosen, chosen)
                        best_fused = tl.maximum(best_fused, block_highest)
                    label = tl.where(chosen >= 0, chosen, tl.where(before != blank, before, best))
                    if label != before:
                        stale = True
                        for k in tl.static_range(NUM_AUTOMATA):
                            at = row * NUM_AUTOMATA + k
                            score = tl.load(scratch_scores + at * vocab_size + label)
                            target = tl.load(scratch_targets + at * vocab_size + label)
                            sum_so_far = tl.load(lm_scores + at)
                            tl.debug_barrier()
                            tl.store(lm_scores + at, sum_so_far + score)
                            tl.store(states + at, target)
            tl.store(labels + row * frames + frame, label)
            acoustic_score += tl.load(x + label.to(tl.int64) * class_stride).to(tl.float32) - normaliser
            before = label
            best_before = best
            frame += 1
        else:
            tl.store(bad_frames + row, frame)
            length = 0
    tl.store(acoustic_scores + row, acoustic_score)
    tl.store(last + 2 * row, before)
    tl.store(last + 2 * row + 1, best_before)


def aot_signatures() -> Iterator[tuple[Any, dict[str, str], dict[str, Any]]]:
    """Yield every kernel with the argument types and constants it is launched with, for compiling ahead of time."""
    for token_type, logit_type in (("*i16", "*fp32"), ("*i32", "*fp16"), ("*i16", "*bf16")):
        for rule in range(len(RULES)):
            for num_automata in (1, 2):
                signature = automaton_signature(token_type) | {"logits": logit_type}
                signature |= dict.fromkeys(("row_stride", "frame_stride", "class_stride"), "i32")
                signature |= {"lengths": "*i32", "weights": "*fp32", "stay_costs": "*fp32", "states": "*i32"}
                signature |= {"scratch_scores": "*fp32", "scratch_targets": "*i32", "labels": "*i32"}
                signature |= {"acoustic_scores": "*fp32", "lm_scores": "*fp32", "bad_frames": "*i32", "last": "*i32"}
                signature |= dict.fromkeys(("frames", "classes", "blank", "vocab_size"), "i32")
                yield _label_kernel, signature, {"RULE": rule, "NUM_AUTOMATA": num_automata, "BLOCK": 512}
