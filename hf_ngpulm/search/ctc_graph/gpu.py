"""Token passing as tensor operations, all rows and hypotheses at once: nothing waits for the host before the last frame.

At each frame all extensions of all hypotheses are scored over the whole vocabulary (`advance`), those that lead to the same
search state are brought together by sorting, and the best `K` of what is left are kept.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...automaton.tensors import AutomatonTensors
from . import BLANK, INSIDE, GraphFrames, GraphState


def graph_search(
    automaton: AutomatonTensors,
    state: GraphState,
    logits: Tensor,
    lengths: Tensor,
    weights: Tensor,
    bonuses: Tensor,
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
        new, link, label = _one_frame(automaton, state, log_probs, weights, bonuses, blank, vocab_size, threshold, skip)
        # A row whose weights are so large that nothing is possible stands still, too.
        moves = (going[:, frame] & (new.scores.amax(1) > -torch.inf))[:, None]
        state = GraphState(
            *(torch.where(moves if part.dim() == 2 else moves[..., None], part, old) for part, old in zip(new, state))
        )
        links[:, frame] = torch.where(moves, link, links[:, frame])
        labels[:, frame] = torch.where(moves, label, labels[:, frame])
    return state, GraphFrames(links, labels, bad_frames)


def _one_frame(
    automaton: AutomatonTensors,
    state: GraphState,
    log_probs: Tensor,
    weights: Tensor,
    bonuses: Tensor,
    blank: int,
    vocab_size: int,
    threshold: float,
    skip: float,
) -> tuple[GraphState, Tensor, Tensor]:
    """Return one frame of all rows: log-probabilities float64 `[B, C]` -> the new state, links and labels."""
    (batch_size, max_active), classes = state.scores.shape, log_probs.shape[1]
    device, shape = log_probs.device, (batch_size, max_active, classes)
    scores, last = state.scores, state.last_tokens.to(torch.int64)
    tokens = torch.arange(classes, device=device)

    # What each token scores, adds and leads to, `[B, K, C]`.
    num_models = state.lm_states.shape[2]
    lm_scores = torch.zeros((batch_size, max_active, num_models, classes), device=device)
    targets = state.lm_states[..., None].repeat(1, 1, 1, classes)
    scored = min(vocab_size, classes)
    if scored:
        every = (batch_size, max_active, num_models, vocab_size)
        scores_found, behind = torch.ops.hf_ngpulm.advance(list(automaton), state.lm_states.flatten(), vocab_size, "auto")
        lm_scores[..., :scored] = scores_found.view(every)[..., :scored]
        targets[..., :scored] = behind.view(every)[..., :scored]
    added = bonuses[:, None] + (weights[:, None, :, None] * lm_scores).sum(2)

    # All candidates: hypotheses without new tokens (first those that end in a blank), then with one.
    skipped = (log_probs[:, blank].exp() > skip)[:, None]
    repeats = scores + torch.where(last >= 0, log_probs.gather(1, last.clamp(min=0)), -torch.inf)
    repeats = torch.where(skipped, -torch.inf, repeats)
    extended = scores[..., None] + log_probs[:, None] + added
    impossible = (tokens == blank) | (tokens == last[..., None]) | skipped[..., None]
    extended = torch.where(impossible, -torch.inf, extended)
    candidates = torch.cat([scores + log_probs[:, blank, None], repeats, extended.flatten(1)], 1)
    # Their search states as numbers: of pairs of an LM's and the phrases' state as many as there are.
    pairs = torch.cat([state.lm_states, targets.movedim(2, 3).flatten(1, 2)], 1).to(torch.int64)
    pairs = pairs[..., 0] if num_models == 1 else _numbered((pairs[..., 0] << 32) | pairs[..., 1])
    own = pairs[:, :max_active] * (classes + 1)
    extended_keys = pairs[:, max_active:].view(shape) * (classes + 1) + tokens + 1
    keys = torch.cat([own, own + last + 1, extended_keys.flatten(1)], 1)

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
        return values.gather(1, place if values.dim() == 2 else place[..., None].expand(-1, -1, num_models))

    def of_token(values: Tensor) -> Tensor:
        found = values.flatten(1).gather(1, place * classes + token)
        return torch.where(is_new, found, torch.zeros_like(found))

    def of_models(values: Tensor) -> Tensor:
        """Return `[B, K, M, C]` -> `[B, K, M]`."""
        values = values.movedim(2, 3).flatten(1, 2)
        return values.gather(1, (place * classes + token)[..., None].expand(-1, -1, num_models))

    more_states = is_new[..., None]
    of_last = torch.where(is_repeat, of_place(last), -1)
    new = GraphState(
        scores=new_scores,
        last_tokens=torch.where(is_new, token, of_last).to(torch.int32),
        lm_states=torch.where(more_states, of_models(targets), of_place(state.lm_states)),
        fused=of_place(state.fused) + of_token(added),
        lm_scores=of_place(state.lm_scores) + torch.where(more_states, of_models(lm_scores), 0.0),
    )
    live = new_scores > -torch.inf
    empty = torch.arange(max_active, device=device).expand_as(place)
    links = torch.where(live, place, empty).to(torch.int32)
    labels = torch.where(is_new, token, torch.where(is_repeat, INSIDE, BLANK))
    return new, links, torch.where(live, labels, BLANK).to(torch.int32)


def _numbered(keys: Tensor) -> Tensor:
    """Return numbers for the keys of each row `[B, N]`, the same for the same ones and below N."""
    ordered, order = keys.sort(1)
    changes = torch.zeros_like(keys)
    changes[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return torch.zeros_like(keys).scatter(1, order, changes.cumsum(1))
