"""Greedy transducer search with language models for one utterance, written plainly: the definition.

At each step the joint network says what follows at a frame. A blank, whose score no LM has a part in, moves on to the next
frame (RNN-T) or by the duration that the model predicts (TDT; at least one frame). Any other token is chosen anew among
those that the LM scores, by acoustic logit plus weighted LM score: an LM never flips blank and non-blank in greedy search. An
RNN-T stays at the frame, a TDT moves on by the duration. After `max_symbols` tokens at one frame the search moves on by force.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..automaton import reference
from ..automaton.tensors import AutomatonTensors
from .model import TransducerModel


class GreedyPath(NamedTuple):
    """Result for one utterance.

    Args:
        tokens, frames, durations: of each token: its id, its frame, and the frames that the search moved on behind it.
        acoustic_score: log-probability of the path, blanks and durations included.
        lm_scores: float32 `[M]`, each automaton's unweighted score of the tokens.
    """

    tokens: list[int]
    frames: list[int]
    durations: list[int]
    acoustic_score: float
    lm_scores: Tensor


def greedy(
    model: TransducerModel,
    frames: Tensor,
    automaton: AutomatonTensors,
    states: Tensor,
    weights: Tensor,
    vocab_size: int,
    max_symbols: int | None,
) -> GreedyPath:
    """Decode one utterance: `[T, D]` projected frames; states int32 `[M]` and weights `[M]` of the automata."""
    prediction, state = model.start(1, frames)
    lm_scores = torch.zeros(len(states))
    found = GreedyPath([], [], [], 0.0, lm_scores)
    score, time, symbols = 0.0, 0, 0
    scored = torch.arange(min(vocab_size, model.vocab_size))
    while time < len(frames):
        logits = model.join(frames[time], prediction[0]).float()
        token_logits, duration_logits = logits[: model.vocab_size], logits[model.vocab_size :]
        token = int(token_logits.argmax())
        if model.durations is None:
            duration = int(token == model.blank_id)
        else:
            best = int(duration_logits.argmax())
            duration = model.durations[best]
            score += float(duration_logits.log_softmax(0)[best])
        if token == model.blank_id:
            score += float(token_logits.log_softmax(0)[token])
            time += max(duration, 1)
            symbols = 0
            continue
        per_lm = torch.zeros(0)
        if token < vocab_size and len(states):
            per_lm, targets = reference.advance(automaton, states, vocab_size)
            fused = token_logits[scored] + (weights[:, None] * per_lm[:, : len(scored)]).sum(0)
            fused[scored == model.blank_id] = -torch.inf
            if bool(fused.max() > -torch.inf):
                token = int(fused.argmax())
            lm_scores += per_lm[:, token]
            states = targets[:, token]
        score += float(token_logits.log_softmax(0)[token])
        symbols += 1
        if duration == 0 and symbols == max_symbols:
            duration = 1
        found.tokens.append(token)
        found.frames.append(time)
        found.durations.append(duration)
        time += duration
        symbols = 0 if duration else symbols
        prediction, state = model.predict(torch.tensor([token], device=frames.device), state)
    return found._replace(acoustic_score=score)
