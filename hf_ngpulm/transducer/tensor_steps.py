"""What label looping does between two runs of the networks, with torch's operations alone."""

from __future__ import annotations

import torch
from torch import Tensor

from ..automaton.tensors import AutomatonTensors


def walk(
    automaton: AutomatonTensors,
    token_logits: Tensor,
    best: Tensor,
    normalisers: Tensor,
    durations: Tensor,
    duration_log_probs: Tensor,
    ends: Tensor,
    times: Tensor,
    symbols: Tensor,
    lm_states: Tensor,
    weights: Tensor,
    blank: int,
    vocab_size: int,
    max_symbols: int,
    acoustic_scores: Tensor,
    lm_scores: Tensor,
    bad_frames: Tensor,
    engine: str = "auto",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Follow the blanks of each row to its first token, and choose that with the LM.

    `A` rows, a window of `W` frames. `times`, `symbols`, `lm_states` and the last three tensors are changed in place.

    Args:
        token_logits: `[A, W, V]`.
        best, normalisers: `[A, W]`, the best class of each frame, and the log of the sum of exponentials.
        durations, duration_log_probs: `[A, W]`, frames that the model would move on, and their log-probability.
        ends, times: `[A]`, the row's number of frames, and the first frame of the window.
        symbols: `[A]`, tokens emitted at that frame already.
        lm_states, weights: `[A, M]`.
        max_symbols: tokens that may be emitted at one frame.
        acoustic_scores, lm_scores, bad_frames: `[A]`, `[A, M]`, `[A]`, of the rows so far.
        engine: of the LM's queries.

    Returns:
        For each row the token (-1 for none), its place in the window, its frame, and the frames moved on behind it.
    """
    window, classes = token_logits.shape[1:]
    num_automata, scored = lm_states.shape[1], min(vocab_size, classes)
    is_blank = best == blank
    log_probs = token_logits.gather(2, best[..., None])[..., 0] - normalisers + duration_log_probs
    steps = torch.where(is_blank, durations.clamp(min=1), durations)
    place = torch.zeros_like(times)
    for _ in range(window):
        at = place.clamp(max=window - 1)[:, None]
        inside = (place < window) & (times + place < ends) & (bad_frames < 0)
        broken = inside & ~torch.isfinite(normalisers.gather(1, at)[:, 0])
        bad_frames.copy_(torch.where(broken, times + place, bad_frames))
        passes = inside & ~broken & is_blank.gather(1, at)[:, 0]
        acoustic_scores += torch.where(passes, log_probs.gather(1, at)[:, 0], 0.0)
        place = place + torch.where(passes, steps.gather(1, at)[:, 0], 0)
    symbols.copy_(torch.where(place > 0, 0, symbols))
    times += place
    emits = (place < window) & (times < ends) & (bad_frames < 0)
    at = place.clamp(max=window - 1)[:, None]
    logits = token_logits.gather(1, at[..., None].expand(-1, -1, classes))[:, 0]
    token = best.gather(1, at)[:, 0]
    score = log_probs.gather(1, at)[:, 0]
    if num_automata:
        per_lm, targets = torch.ops.hf_ngpulm.advance(list(automaton), lm_states.flatten(), vocab_size, engine)
        per_lm, targets = (values.view(-1, num_automata, vocab_size)[..., :scored] for values in (per_lm, targets))
        fused = logits[:, :scored] + (weights[..., None] * per_lm).sum(1)
        if blank < scored:
            fused[:, blank] = -torch.inf
        highest, again = fused.max(-1)
        fusable = emits & (token < vocab_size)
        again = torch.where(fusable & (highest > -torch.inf), again, token)
        score = score + (logits.gather(1, again[:, None]) - logits.gather(1, token[:, None]))[:, 0]
        token = again
        picked = token.clamp(max=scored - 1)[:, None, None].expand(-1, num_automata, 1)
        lm_scores += torch.where(fusable[:, None], per_lm.gather(2, picked)[..., 0], 0.0)
        lm_states.copy_(torch.where(fusable[:, None], targets.gather(2, picked)[..., 0], lm_states))
    acoustic_scores += torch.where(emits, score, 0.0)
    move = durations.gather(1, at)[:, 0]
    count = symbols + emits.to(symbols.dtype)
    move = torch.where((move == 0) & (count >= max_symbols), 1, move)
    frame = times.clone()
    symbols.copy_(torch.where(emits & (move > 0), 0, count))
    times += torch.where(emits, move, 0)
    return torch.where(emits, token, -1), place, frame, move
