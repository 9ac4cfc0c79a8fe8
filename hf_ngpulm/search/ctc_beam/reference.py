"""Run CTC prefix beam search in plain torch. This is the definition against which the engines are tested."""

from __future__ import annotations

import torch
from torch import Tensor

from ...automaton import reference
from ...automaton.tensors import AutomatonTensors
from . import BLANK, INSIDE, BeamFrames, BeamRules, BeamState


def extend_hash(hashes: Tensor, tokens: Tensor) -> Tensor:
    """Return the hash of each prefix after one more token is appended.

    The hash takes a step of Knuth's linear congruential generator modulo 2**64 (products wrap around). Then a shift mixes the
    high bits into the low bits. The hash depends on the order of the tokens. The search compares hashes instead of tokens.
    """
    mixed = (hashes + tokens.to(torch.int64) + 1) * 6364136223846793005 + 1442695040888963407
    return mixed ^ (mixed >> 29)


def in_order(last_tokens: Tensor, parent_hashes: Tensor) -> Tensor:
    """Return the places of each row's prefixes, `[B, K]`, in the order that breaks ties between equal scores."""
    order = parent_hashes.argsort(dim=1, stable=True)
    return order.gather(1, last_tokens.gather(1, order).argsort(dim=1, stable=True))


def ctc_beam(
    automaton: AutomatonTensors, state: BeamState, logits: Tensor, lengths: Tensor, rules: BeamRules
) -> tuple[BeamState, BeamFrames]:
    batch_size, frames, _ = logits.shape
    links, labels, bad_frames = BeamFrames.still(batch_size, frames, state.last_tokens.shape[1], logits.device)
    for frame in range(frames):
        x = logits[:, frame].float()
        normalisers = torch.logsumexp(x, dim=1)
        inside = (frame < lengths) & (bad_frames < 0)
        bad = inside & ~torch.isfinite(normalisers)
        bad_frames = torch.where(bad, frame, bad_frames)
        going = inside & ~bad
        log_probs = torch.where(going[:, None], x - normalisers[:, None], 0.0)
        new, link, label = _one_frame(automaton, state, log_probs, rules)
        # If no prefix is possible, as sums with huge weights have overflowed, the row keeps its state, too.
        going = going & (new.blank_scores.maximum(new.token_scores).amax(1) > -torch.inf)
        state = BeamState(*(torch.where(going.view(-1, *[1] * (n.dim() - 1)), n, old) for n, old in zip(new, state)))
        links[:, frame] = torch.where(going[:, None], link, links[:, frame])
        labels[:, frame] = torch.where(going[:, None], label, labels[:, frame])
    return state, BeamFrames(links, labels, bad_frames)


def _one_frame(
    automaton: AutomatonTensors, state: BeamState, log_probs: Tensor, rules: BeamRules
) -> tuple[BeamState, Tensor, Tensor]:
    weights, bonuses, unscored, blank, vocab_size, threshold, skip, text_hashes = rules
    batch_size, classes = log_probs.shape
    num_beams, num_automata = state.lm_states.shape[1:]
    totals = torch.logaddexp(state.blank_scores, state.token_scores)
    alive = totals > -torch.inf
    last = state.last_tokens.clamp(min=0).to(torch.int64)
    last_log_probs = torch.where(state.last_tokens < 0, -torch.inf, log_probs.gather(1, last))

    # Extend every prefix by every token: compute the acoustic score, and the LM scores and the bonus of the token.
    per_lm, targets = reference.advance(automaton, state.lm_states.flatten(), vocab_size)
    shape = (batch_size, num_beams, num_automata, vocab_size)
    per_lm, targets = per_lm.view(shape)[..., :classes], targets.view(shape)[..., :classes]
    added = unscored[:, None, None].repeat(1, num_beams, classes)
    added[..., : per_lm.shape[-1]] = (weights[:, None, :, None] * per_lm).sum(2)
    added += bonuses[:, None, None]
    same = torch.arange(classes, device=log_probs.device) == state.last_tokens[..., None]
    extended = torch.where(same, state.blank_scores[..., None], totals[..., None]) + log_probs[:, None]
    extended[..., blank] = -torch.inf

    # A prefix stays the same after a blank, or after its last token once more. If the beam has the prefix's parent, one of the
    # parent's extensions is the same prefix. So the probability of this extension is added here, and the extension isn't a
    # candidate (`present`).
    by_blank = totals + log_probs[:, blank, None]
    by_token = state.token_scores + last_log_probs
    is_parent = (
        (state.hashes[:, None, :] == state.parent_hashes[:, :, None])
        & (state.sizes[:, None, :] + 1 == state.sizes[:, :, None])
        & alive[:, None, :]
        & alive[:, :, None]
    )  # [B, child, parent]
    from_parents = extended.gather(2, last[:, None, :].expand(-1, num_beams, -1)).transpose(1, 2)  # [B, child, parent]
    from_parents = torch.where(is_parent, from_parents, -torch.inf)
    from_parent, parents = from_parents.max(2)
    skipped = (log_probs[:, blank].exp() > skip)[:, None]
    by_token, from_parent = (torch.where(skipped, -torch.inf, scores) for scores in (by_token, from_parent))
    staying = torch.logaddexp(torch.logaddexp(by_blank, by_token), from_parent) + state.fused
    present = (same[:, :, None] & is_parent[..., None]).any(1)  # [B, parent, token]: this extension is in the beam
    extending = torch.where(present | skipped[..., None], -torch.inf, extended + state.fused[..., None] + added)

    # Choose the best candidates. Ties keep the order of the candidates, as the sort is stable.
    stay_order, by_hash = in_order(state.last_tokens, state.parent_hashes), state.hashes.argsort(dim=1, stable=True)
    extending = extending.gather(1, by_hash[..., None].expand_as(extending)).transpose(1, 2)
    ways = torch.cat([staying.gather(1, stay_order), extending.flatten(1)], dim=1)
    scores, chosen = (part[:, :num_beams] for part in ways.sort(dim=1, descending=True, stable=True))
    scores = torch.where(scores < scores[:, :1] - threshold, -torch.inf, scores)
    kept = scores > -torch.inf
    is_new = chosen >= num_beams
    place = torch.where(is_new, by_hash.gather(1, chosen % num_beams), stay_order.gather(1, chosen % num_beams))
    token = torch.where(is_new, chosen // num_beams - 1, 0)

    def of_place(values: Tensor) -> Tensor:
        return values.gather(1, place)

    new_blank = torch.where(is_new | ~kept, -torch.inf, of_place(by_blank))
    stayed = of_place(torch.logaddexp(by_token, from_parent))
    came = extended.flatten(1).gather(1, place * classes + token)
    new_token = torch.where(kept, torch.where(is_new, came, stayed), -torch.inf)
    last_tokens = torch.where(is_new, token, of_place(state.last_tokens)).to(torch.int32)
    fused = of_place(state.fused) + torch.where(is_new, added.flatten(1).gather(1, place * classes + token), 0.0)
    texts, hashes = of_place(state.texts), of_place(state.hashes)
    parent_hashes = torch.where(is_new, hashes, of_place(state.parent_hashes))
    if text_hashes is not None:
        texts = torch.where(is_new, texts * text_hashes[0][token] + text_hashes[1][token], texts)
        new_blank, new_token = join_texts(texts, last_tokens, parent_hashes, fused, new_blank, new_token)
    tops = torch.maximum(new_blank, new_token).amax(1)
    tops = torch.where(torch.isfinite(tops), tops, 0.0)

    lm_states, lm_scores = (
        values.gather(1, place[..., None].expand(-1, -1, num_automata)) for values in (state.lm_states, state.lm_scores)
    )
    scored = (is_new & (token < per_lm.shape[-1]))[..., None]
    at = (place[..., None] * num_automata + torch.arange(num_automata, device=place.device)) * per_lm.shape[-1]
    at = torch.where(scored, at + token[..., None], 0).flatten(1)
    if num_automata and per_lm.shape[-1]:
        lm_scores = lm_scores + torch.where(scored, per_lm.flatten(1).gather(1, at).view(lm_scores.shape), 0.0)
        lm_states = torch.where(scored, targets.flatten(1).gather(1, at).view(lm_states.shape), lm_states)
    new_state = BeamState(
        offsets=state.offsets + tops,
        blank_scores=new_blank - tops[:, None],
        token_scores=new_token - tops[:, None],
        last_tokens=last_tokens,
        hashes=torch.where(is_new, extend_hash(hashes, token), hashes),
        parent_hashes=parent_hashes,
        sizes=of_place(state.sizes) + is_new.to(torch.int32),
        fused=fused,
        lm_scores=lm_scores,
        lm_states=lm_states,
        texts=texts,
    )
    # The likeliest alignment of a prefix that stays comes from its parent if the parent's extension is likelier than the
    # prefix's own alignments.
    by_blank, by_token, from_parent, parents = (of_place(values) for values in (by_blank, by_token, from_parent, parents))
    anew = ~is_new & (from_parent > torch.logaddexp(by_blank, by_token))
    links = torch.where(anew, parents, place).to(torch.int32)
    inside = torch.where(by_token > by_blank, INSIDE, BLANK)
    labels = torch.where(is_new, token, torch.where(anew, new_state.last_tokens, inside)).to(torch.int32)
    return new_state, links, labels


def join_texts(
    texts: Tensor, last_tokens: Tensor, parent_hashes: Tensor, fused: Tensor, blank_scores: Tensor, token_scores: Tensor
) -> tuple[Tensor, Tensor]:
    """Merge the prefixes of a text.

    The best prefix of a text gets the sum of `p_b` over all prefixes of the text, because the future after a blank doesn't
    depend on how the text is cut into tokens. Among a text's prefixes with the same last token, the best prefix gets the sum of
    these prefixes' `p_t`.

    Args:
        texts, last_tokens, parent_hashes, fused, blank_scores, token_scores: `[B, K]`, see `BeamState`.

    Returns:
        New `blank_scores` and `token_scores`.
    """
    totals = torch.logaddexp(blank_scores, token_scores)
    alive = totals > -torch.inf
    order = in_order(last_tokens, parent_hashes)
    in_turn = order[:, None, :].expand(-1, order.shape[1], -1)
    same_text = (texts[:, :, None] == texts[:, None, :]) & alive[:, :, None] & alive[:, None, :]
    same_token = same_text & (last_tokens[:, :, None] == last_tokens[:, None, :])

    def joined(values: Tensor, same: Tensor) -> Tensor:
        best = order.gather(
            1, torch.where(same, (totals + fused)[:, None, :], -torch.inf).gather(2, in_turn).argmax(2)
        )  # [B, K]
        is_best = (best[:, None, :] == torch.arange(best.shape[1], device=best.device)[:, None]) & alive[:, None, :]
        return torch.where(is_best, values[:, None, :], -torch.inf).logsumexp(2)  # [B, to, from]

    return joined(blank_scores, same_text), joined(token_scores, same_token)
