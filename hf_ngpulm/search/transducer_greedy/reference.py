"""Greedy transducer search with language models for one utterance, written plainly: the definition.

At each step the joint network says what follows at a frame. A blank, whose score no LM has a part in, moves on to the next
frame (RNN-T) or by the duration that the model predicts (TDT; at least one frame). Any other token is chosen anew among
those that the LM scores, by acoustic logit plus weighted LM score: an LM never flips blank and non-blank in greedy search. An
RNN-T stays at the frame, a TDT moves on by the duration. After `max_symbols` tokens at one frame the search moves on by force.

What the transducer itself has learned of the language (its internal LM) may be subtracted, with a weight of its own. Without
an LM, or with one of the weight 0, all tokens are chosen among by that.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...automaton import reference
from ...automaton.tensors import AutomatonTensors
from ..networks.model import TransducerModel


class GreedyPath(NamedTuple):
    """Result for one utterance.

    Args:
        tokens, durations: of each step, blanks too: its class, and the frames that the search moved on after it.
        acoustic_score: log-probability of the path, blanks and durations included.
        lm_scores: float32 `[M]`, each automaton's unweighted score of the tokens.
        ilm_score: the internal LM's unweighted score of the tokens that were chosen with it; 0 where its weight is.
    """

    tokens: list[int]
    durations: list[int]
    acoustic_score: float
    lm_scores: Tensor
    ilm_score: float


def greedy(
    model: TransducerModel,
    frames: Tensor,
    automaton: AutomatonTensors,
    states: Tensor,
    weights: Tensor,
    vocab_size: int,
    max_symbols: int | None,
    ilm_weight: float = 0.0,
) -> GreedyPath:
    """Decode one utterance: `[T, D]` projected frames; states int32 `[M]` and weights `[M]` of the automata."""
    prediction, state = model.start(1, frames)
    lm_scores = torch.zeros(len(states))
    tokens, durations = [], []
    score, ilm_score, time, symbols = 0.0, 0.0, 0, 0
    listens = bool((weights != 0).any())
    candidates = torch.arange(min(vocab_size, model.vocab_size) if listens else model.vocab_size)
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
            tokens.append(token)
            durations.append(max(duration, 1))
            time += durations[-1]
            symbols = 0
            continue
        if token < len(candidates):
            fused = token_logits[candidates]
            if listens:
                per_lm = reference.scores(automaton, states, vocab_size)
                fused = fused + (weights[:, None] * per_lm[:, : len(candidates)]).sum(0)
            if ilm_weight:
                internal = model.internal_lm(prediction[0])
                fused = fused - ilm_weight * internal[candidates]
                fused[fused.isnan()] = -torch.inf  # classes that are impossible
            fused[candidates == model.blank_id] = -torch.inf
            if bool(fused.max() > -torch.inf):
                token = int(fused.argmax())
            if ilm_weight:
                ilm_score += float(internal[token])
        per_lm, states = reference.step(automaton, states, torch.full_like(states, token), vocab_size)
        lm_scores += per_lm
        score += float(token_logits.log_softmax(0)[token])
        symbols += 1
        if duration == 0 and symbols == max_symbols:
            duration = 1
        tokens.append(token)
        durations.append(duration)
        time += duration
        symbols = 0 if duration else symbols
        prediction, state = model.predict(torch.tensor([token], device=frames.device), state)
    return GreedyPath(tokens, durations, score, lm_scores, ilm_score)
