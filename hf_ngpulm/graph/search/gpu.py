"""Token passing as tensor operations, all rows and hypotheses at once: nothing waits for the host before the last frame.

At each frame all extensions of all hypotheses are scored over the whole vocabulary (`advance`), those that lead to the same
search state are brought together by sorting, and the best `K` of what is left are kept. Discounts come from a Triton kernel, a
program for each hypothesis, that goes from the root to the hypothesis's state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...automaton.gpu import automaton_signature
from ...automaton.tensors import AutomatonTensors
from . import BLANK, INSIDE, BiasedArcs, GraphFrames, GraphState

BLOCK = 128


def graph_search(
    automaton: AutomatonTensors,
    state: GraphState,
    logits: Tensor,
    lengths: Tensor,
    weights: Tensor,
    bonuses: Tensor,
    biased: BiasedArcs,
    blank: int,
    vocab_size: int,
    threshold: float,
    skip: float,
) -> tuple[GraphState, GraphFrames]:
    batch_size, frames, _ = logits.shape
    max_active, device = state.scores.shape[1], logits.device
    state = GraphState(*(part.clone(memory_format=torch.contiguous_format) for part in state))
    links = torch.arange(max_active, dtype=torch.int32, device=device).repeat(batch_size, frames, 1)
    labels = torch.full_like(links, BLANK)
    bad_frames = torch.full((batch_size,), -1, dtype=torch.int32, device=device)
    if not (batch_size and frames):
        return state, GraphFrames(links, labels, bad_frames)
    numbers = torch.arange(frames, device=device)
    inside = numbers < lengths[:, None]
    normalisers = torch.logsumexp(logits.float(), -1)
    bad = inside & ~torch.isfinite(normalisers)
    bad_frames = torch.where(bad.any(1), bad.int().argmax(1), -1).to(torch.int32)
    going = inside & ((numbers < bad_frames[:, None]) | (bad_frames[:, None] < 0))
    normalisers = torch.where(going, normalisers, 0.0)
    for frame in range(frames):
        log_probs = logits[:, frame].float() - normalisers[:, frame, None]
        log_probs = torch.where(going[:, frame, None], log_probs, 0.0).double()
        new, link, label = _one_frame(automaton, state, log_probs, weights, bonuses, biased, blank, vocab_size, threshold, skip)
        # A row whose weights are so large that nothing is possible stands still, too.
        moves = (going[:, frame] & (new.scores.amax(1) > -torch.inf))[:, None]
        state = GraphState(*(torch.where(moves, part, old) for part, old in zip(new, state)))
        links[:, frame] = torch.where(moves, link, links[:, frame])
        labels[:, frame] = torch.where(moves, label, labels[:, frame])
    return state, GraphFrames(links, labels, bad_frames)


def _one_frame(
    automaton: AutomatonTensors,
    state: GraphState,
    log_probs: Tensor,
    weights: Tensor,
    bonuses: Tensor,
    biased: BiasedArcs,
    blank: int,
    vocab_size: int,
    threshold: float,
    skip: float,
) -> tuple[GraphState, Tensor, Tensor]:
    """One frame of all rows: log-probabilities float64 `[B, C]` -> the new state, links and labels."""
    (batch_size, max_active), classes = state.scores.shape, log_probs.shape[1]
    device, shape = log_probs.device, (batch_size, max_active, classes)
    scores, last = state.scores, state.last_tokens.to(torch.int64)
    tokens = torch.arange(classes, device=device)

    # What each token scores, adds and leads to, `[B, K, C]`.
    lm_scores = torch.zeros(shape, device=device)
    discounts = torch.zeros(shape, device=device)
    targets = state.lm_states[..., None].expand(shape).contiguous()
    scored = min(vocab_size, classes)
    if scored:
        states = state.lm_states.flatten()
        of_lm, behind = torch.ops.hf_ngpulm.advance(list(automaton), states, vocab_size, "auto")
        lm_scores[..., :scored] = of_lm.view(batch_size, max_active, vocab_size)[..., :scored]
        targets[..., :scored] = behind.view(batch_size, max_active, vocab_size)[..., :scored]
        if len(biased.arcs):
            of_phrases = _discounts(automaton, states, biased, max_active, vocab_size)
            discounts[..., :scored] = of_phrases.view(batch_size, max_active, vocab_size)[..., :scored]
    added = bonuses[:, None] + weights[:, None, None] * lm_scores + discounts

    # All candidates: hypotheses without new tokens (first those that end in a blank), then with one.
    skipped = (log_probs[:, blank].exp() > skip)[:, None]
    repeats = scores + torch.where(last >= 0, log_probs.gather(1, last.clamp(min=0)), -torch.inf)
    repeats = torch.where(skipped, -torch.inf, repeats)
    extended = scores[..., None] + log_probs[:, None] + added
    impossible = (tokens == blank) | (tokens == last[..., None]) | skipped[..., None]
    extended = torch.where(impossible, -torch.inf, extended)
    candidates = torch.cat([scores + log_probs[:, blank, None], repeats, extended.flatten(1)], 1)
    # Their search states as numbers.
    own = state.lm_states.to(torch.int64) * (classes + 1)
    keys = torch.cat([own, own + last + 1, (targets.to(torch.int64) * (classes + 1) + tokens + 1).flatten(1)], 1)

    # Of those with the same search state the best one stays. (That where both parts of a candidate are -inf is no number.)
    candidates = torch.where(candidates > -torch.inf, candidates, -torch.inf)
    keys, order = keys.sort(1)
    candidates = candidates.gather(1, order)
    is_first = torch.cat([torch.ones_like(keys[:, :1], dtype=torch.bool), keys[:, 1:] != keys[:, :-1]], 1)
    groups = is_first.long().cumsum(1) - 1
    best = torch.full_like(candidates, -torch.inf).scatter_reduce(1, groups, candidates, "amax")
    places = torch.arange(candidates.shape[1], device=device).expand_as(candidates)
    is_best = candidates == best.gather(1, groups)
    first_best = torch.full_like(places, candidates.shape[1]).scatter_reduce(
        1, groups, torch.where(is_best, places, candidates.shape[1]), "amin"
    )
    candidates = torch.where(places == first_best.gather(1, groups), candidates, -torch.inf)

    if candidates.shape[1] < max_active:  # fewer than there is room for
        missing = max_active - candidates.shape[1]
        candidates = torch.nn.functional.pad(candidates, (0, missing), value=-torch.inf)
        order = torch.nn.functional.pad(order, (0, missing))
    new_scores, chosen = candidates.topk(max_active, 1)
    new_scores = torch.where(new_scores < new_scores[:, :1] - threshold, -torch.inf, new_scores)
    number = order.gather(1, chosen)
    is_new = number >= 2 * max_active
    number_new = torch.where(is_new, number - 2 * max_active, 0)
    place = torch.where(is_new, number_new // classes, number % max_active)
    token = torch.where(is_new, number_new % classes, 0)
    is_repeat = ~is_new & (number >= max_active)

    def of_place(values: Tensor) -> Tensor:
        return values.gather(1, place)

    def of_token(values: Tensor) -> Tensor:
        found = values.flatten(1).gather(1, place * classes + token)
        return torch.where(is_new, found, torch.zeros_like(found))

    of_last = torch.where(is_repeat, of_place(last), -1)
    new = GraphState(
        scores=new_scores,
        last_tokens=torch.where(is_new, token, of_last).to(torch.int32),
        lm_states=torch.where(is_new, targets.flatten(1).gather(1, place * classes + token), of_place(state.lm_states)),
        fused=of_place(state.fused) + of_token(added),
        lm_scores=of_place(state.lm_scores) + of_token(lm_scores),
        phrase_scores=of_place(state.phrase_scores) + of_token(discounts),
    )
    live = new_scores > -torch.inf
    empty = torch.arange(max_active, device=device).expand_as(place)
    links = torch.where(live, place, empty).to(torch.int32)
    labels = torch.where(is_new, token, torch.where(is_repeat, INSIDE, BLANK))
    return new, links, torch.where(live, labels, BLANK).to(torch.int32)


def _discounts(automaton: AutomatonTensors, states: Tensor, biased: BiasedArcs, max_active: int, vocab_size: int) -> Tensor:
    """The discount of every token in some states, `max_active` a row: int32 `[N]` -> float32 `[N, V]`."""
    found = torch.zeros((len(states), vocab_size), device=states.device)
    carried = torch.zeros_like(found)
    _discount_kernel[(len(states),)](
        automaton.arc_offsets, automaton.arc_tokens, automaton.backoff_states, states,
        biased.ranges, biased.arcs, biased.tokens, biased.discounts, biased.longer, found, carried,
        max_active, vocab_size, BLOCK=BLOCK,
    )  # fmt: skip
    return found


@triton.jit
def _first_from(arcs, low, high, arc):
    """The first of some ascending arcs that isn't less than another."""
    while low < high:
        middle = (low + high) // 2
        less = tl.load(arcs + middle) < arc
        low = tl.where(less, middle + 1, low)
        high = tl.where(less, high, middle)
    return low


@triton.jit(do_not_specialize=["max_active", "vocab_size"])
def _discount_kernel(
    arc_offsets, arc_tokens, backoff_states, states, ranges, biased_arcs, biased_tokens, discounts, longer,
    found, carried, max_active, vocab_size, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64)
    row = at // max_active
    columns = tl.arange(0, BLOCK)
    found += at * vocab_size
    carried += at * vocab_size
    first = tl.load(ranges + 2 * row)
    last = tl.load(ranges + 2 * row + 1)
    if first < last:
        state = tl.load(states + at)
        depth = state * 0
        current = state
        backoff = tl.load(backoff_states + current)
        while backoff != current:
            depth += 1
            current = backoff
            backoff = tl.load(backoff_states + current)
        level = depth
        while level >= 0:
            current = state
            for _ in range(0, level):
                current = tl.load(backoff_states + current)
            begin = tl.load(arc_offsets + current)
            end = tl.load(arc_offsets + current + 1)
            # Own arcs override those of shorter contexts, of which only `carried` is left.
            if level < depth:
                for block in range(begin, end, BLOCK):
                    arcs = block + columns
                    tokens = tl.load(arc_tokens + arcs, mask=arcs < end, other=0).to(tl.int32)
                    inside = (arcs < end) & (tokens < vocab_size)
                    values = tl.load(carried + tokens, mask=inside, other=0.0)
                    tl.store(found + tokens, values, mask=inside)
                tl.debug_barrier()
            low = _first_from(biased_arcs, first, last, begin)
            high = _first_from(biased_arcs, low, last, end)
            for block in range(low, high, BLOCK):
                numbers = block + columns
                tokens = tl.load(biased_tokens + numbers, mask=numbers < high, other=0)
                inside = (numbers < high) & (tokens < vocab_size)
                before = tl.load(carried + tokens, mask=inside, other=0.0)
                taken = tl.load(discounts + numbers, mask=inside, other=0.0)
                more = tl.load(longer + numbers, mask=inside, other=0.0)
                tl.store(found + tokens, tl.maximum(taken, before), mask=inside)
                tl.store(carried + tokens, tl.maximum(more, before), mask=inside)
            tl.debug_barrier()
            level -= 1


def aot_signatures() -> Iterator[tuple[Any, dict[str, str], dict[str, Any]]]:
    """Every kernel with the argument types and constants it is launched with, for compiling ahead of time."""
    for token_type in ("*i16", "*i32"):
        of_automaton = automaton_signature(token_type)
        signature = {name: of_automaton[name] for name in ("arc_offsets", "arc_tokens", "backoff_states")}
        signature |= dict.fromkeys(("states", "ranges", "biased_arcs", "biased_tokens"), "*i32")
        signature |= dict.fromkeys(("discounts", "longer", "found", "carried"), "*fp32")
        signature |= dict.fromkeys(("max_active", "vocab_size"), "i32")
        yield _discount_kernel, signature, {"BLOCK": BLOCK}
