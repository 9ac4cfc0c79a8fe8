"""Do what label looping does between two runs of the networks, with torch's operations alone."""

from __future__ import annotations

import torch
from torch import Tensor

from ...automaton.tensors import AutomatonTensors
from .rows import Rows, Rules


def walk(
    automaton: AutomatonTensors, rules: Rules, rows: Rows, logits: Tensor, internal: Tensor, engine: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Follow the blanks of each row to its first token, and choose that with the LM. The rows are changed in place.

    Args:
        logits: float32 `[A, W, C]`, of a window of coming frames.
        internal: float32 `[A, V]`, log-probabilities of the internal LM; anything if its weight is 0.
        engine: of the LM's queries.

    Returns:
        Class of the step at each place of the window, -1 for none, and the frames moved on after it: int64 `[A, W]`. A step
        that isn't a blank is a row's last.
    """
    token_logits = logits[..., : rules.classes]
    window, num_automata = logits.shape[1], rows.lm_states.shape[1]
    normalisers, best = torch.logsumexp(token_logits, -1), token_logits.argmax(-1)
    is_blank = best == rules.blank
    log_probs = token_logits.gather(2, best[..., None])[..., 0] - normalisers
    durations = is_blank.to(torch.int64)
    if len(rules.durations):
        duration_log_probs, chosen = torch.log_softmax(logits[..., rules.classes :], -1).max(-1)
        log_probs, normalisers = log_probs + duration_log_probs, normalisers + duration_log_probs  # to see what is broken
        durations = rules.durations[chosen]
    passing = durations.clamp(min=1)

    tokens, moves = torch.full_like(durations, -1), torch.zeros_like(durations)
    place = torch.zeros_like(rows.times)
    for _ in range(window):
        at = place.clamp(max=window - 1)[:, None]
        inside = (place < window) & (rows.times + place < rows.ends) & (rows.bad_frames < 0)
        broken = inside & ~torch.isfinite(normalisers.gather(1, at)[:, 0])
        rows.bad_frames.copy_(torch.where(broken, rows.times + place, rows.bad_frames))
        passes = inside & ~broken & is_blank.gather(1, at)[:, 0]
        rows.acoustic_scores.add_(torch.where(passes, log_probs.gather(1, at)[:, 0], 0.0))
        move = torch.where(passes, passing.gather(1, at)[:, 0], 0)
        tokens.scatter_(1, at, torch.where(passes[:, None], rules.blank, tokens.gather(1, at)))
        moves.scatter_(1, at, torch.where(passes[:, None], move[:, None], moves.gather(1, at)))
        place = place + move
    rows.symbols.masked_fill_(place > 0, 0)
    rows.times.add_(place)

    emits = (place < window) & (rows.times < rows.ends) & (rows.bad_frames < 0)
    at = place.clamp(max=window - 1)[:, None]
    logits = token_logits.gather(1, at[..., None].expand(-1, -1, rules.classes))[:, 0]
    token, score = best.gather(1, at)[:, 0], log_probs.gather(1, at)[:, 0]
    candidates = torch.where((rows.weights != 0).any(1), min(rules.vocab_size, rules.classes), rules.classes)
    chooses = emits & (token < candidates)
    fused = logits
    if num_automata:
        states = rows.lm_states.flatten()
        per_lm, targets = torch.ops.hf_ngpulm.advance(list(automaton), states, rules.vocab_size, engine)
        per_lm, targets = (
            values.view(-1, num_automata, rules.vocab_size)[..., : rules.classes] for values in (per_lm, targets)
        )
        # Classes that no LM scores get no score: they are candidates in rows without an LM.
        fused = fused + torch.nn.functional.pad((rows.weights[..., None] * per_lm).sum(1), (0, rules.classes - per_lm.shape[2]))
    if rules.has_ilm:
        fused = fused - torch.where(rows.ilm_weights[:, None] != 0, rows.ilm_weights[:, None] * internal, 0.0)
        fused = torch.where(fused.isnan(), -torch.inf, fused)  # classes that are impossible
    classes = torch.arange(rules.classes, device=logits.device)
    fused = fused.masked_fill((classes == rules.blank) | (classes >= candidates[:, None]), -torch.inf)
    highest, again = fused.max(-1)
    again = torch.where(chooses & (highest > -torch.inf), again, token)
    change = (logits.gather(1, again[:, None]) - logits.gather(1, token[:, None]))[:, 0]
    score = score + torch.where(again == token, 0.0, change)
    token = again
    if rules.has_ilm:
        heeds = chooses & (rows.ilm_weights != 0)
        rows.ilm_scores.add_(torch.where(heeds, internal.gather(1, token[:, None])[:, 0], 0.0))
    if num_automata and per_lm.shape[2]:
        known = (emits & (token < rules.vocab_size))[:, None]
        picked = token.clamp(max=per_lm.shape[2] - 1)[:, None, None].expand(-1, num_automata, 1)
        rows.lm_scores.add_(torch.where(known, per_lm.gather(2, picked)[..., 0], 0.0))
        rows.lm_states.copy_(torch.where(known, targets.gather(2, picked)[..., 0], rows.lm_states))
    rows.acoustic_scores.add_(torch.where(emits, score, 0.0))
    move = durations.gather(1, at)[:, 0]
    count = rows.symbols + emits.to(rows.symbols.dtype)
    move = torch.where((move == 0) & (count >= rules.max_symbols), 1, move)
    rows.symbols.copy_(torch.where(emits & (move > 0), 0, count))
    rows.times.add_(torch.where(emits, move, 0))
    tokens.scatter_(1, at, torch.where(emits[:, None], token[:, None], tokens.gather(1, at)))
    moves.scatter_(1, at, torch.where(emits[:, None], move[:, None], moves.gather(1, at)))
    return tokens, moves
