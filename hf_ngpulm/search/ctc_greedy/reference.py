"""Search CTC logits greedily in plain torch. This is the definition against which the engines are tested."""

from __future__ import annotations

import torch
from torch import Tensor

from ...automaton import reference
from ...automaton.tensors import AutomatonTensors
from . import LabelRules


def ctc_greedy(
    automaton: AutomatonTensors, logits: Tensor, lengths: Tensor, states: Tensor, before: Tensor, rules: LabelRules
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    weights, stay_costs, blank, vocab_size, rule = rules
    batch_size, frames, classes = logits.shape
    labels = torch.full((batch_size, frames), blank, dtype=torch.int32, device=logits.device)
    acoustic_scores = torch.zeros(batch_size, device=logits.device)
    lm_scores = torch.zeros(states.shape, device=logits.device)
    last_states = states.to(torch.int32).clone()
    bad_frames = torch.full((batch_size,), -1, dtype=torch.int32, device=logits.device)
    last = before.to(torch.int32).clone()
    candidates = torch.arange(min(vocab_size, classes), device=logits.device)
    for row in range(batch_size):
        label_before, best_before = before[row].tolist()
        for frame in range(int(lengths[row])):
            x = logits[row, frame].float()
            normaliser = torch.logsumexp(x, 0)
            if not bool(torch.isfinite(normaliser)):
                bad_frames[row] = frame
                break
            best = int(x.argmax())  # from the raw logits, as rounding may make normalised logits equal
            label = best
            if best != blank and best < vocab_size:
                per_lm, next_states = reference.advance(automaton, last_states[row], len(candidates))
                scores = x[candidates] + (weights[row][:, None] * per_lm).sum(0)
                scores[candidates == blank] = -torch.inf
                if label_before != blank and label_before < len(candidates):
                    scores[label_before] = x[label_before] - stay_costs[row] if rule == "stay" else -torch.inf
                repeats = {"label": best == label_before, "run": best == best_before, "stay": False}[rule]
                label = label_before if repeats and label_before != blank else int(scores.argmax())
                if not bool(scores.max() > -torch.inf):  # sums with huge weights overflowed
                    label = label_before if label_before != blank else best
                if label != label_before:
                    lm_scores[row] += per_lm[:, label]
                    last_states[row] = next_states[:, label]
            labels[row, frame] = label
            acoustic_scores[row] += x[label] - normaliser
            label_before, best_before = label, best
        last[row, 0], last[row, 1] = label_before, best_before
    return labels, acoustic_scores, lm_scores, last_states, bad_frames, last
