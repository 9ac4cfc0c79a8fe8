"""Run token passing with a dictionary of search states per frame.

This is the definition against which the engines are tested.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ...automaton.tensors import AutomatonTensors
from ..ctc_beam import BLANK, INSIDE
from . import GraphFrames, GraphRules, GraphState


def graph_search(
    automaton: AutomatonTensors, state: GraphState, logits: Tensor, lengths: Tensor, rules: GraphRules
) -> tuple[GraphState, GraphFrames]:
    weights, bonuses, blank, vocab_size, threshold, skip = rules
    batch_size, frames, _ = logits.shape
    max_active = state.scores.shape[1]
    state = GraphState(*(part.clone() for part in state))
    happened = GraphFrames.still(batch_size, frames, max_active)
    links, labels, bad_frames = happened
    normalisers = torch.logsumexp(logits.float(), dim=-1)
    log_probs = logits.float() - normalisers[..., None]
    graph = _Graph(automaton)
    for row, length in enumerate(lengths.tolist()):
        row_weights, added = weights[row].tolist(), bonuses[row].tolist()
        columns = [part[row].tolist() for part in state]
        places = [place for place in zip(*columns) if place[0] > -math.inf]
        for frame in range(min(length, frames)):
            if not bool(torch.isfinite(normalisers[row, frame])):
                bad_frames[row] = frame
                break
            x = log_probs[row, frame].tolist()
            met: dict[Any, Any] = {}  # the best hypothesis in each search state: Viterbi recombination

            def offer(states: list[int], label: int, candidate: Any, met: dict[Any, Any] = met) -> None:
                key = (*states, label)
                if candidate[0] > -math.inf and (key not in met or _rank(candidate) < _rank(met[key])):
                    met[key] = candidate

            in_order = sorted(enumerate(places), key=lambda numbered: numbered[1][1:3])  # by last token and states
            for order, (k, (score, last, states, fused, lm_scores)) in enumerate(in_order):
                offer(states, -1, (score + x[blank], fused, lm_scores, k, BLANK, order))
                if math.exp(x[blank]) > skip:
                    continue
                if last >= 0:
                    offer(states, last, (score + x[last], fused, lm_scores, k, INSIDE, order))
                for token, log_prob in enumerate(x):
                    if token in (blank, last):
                        continue
                    read, targets = [0.0] * len(states), states
                    if token < vocab_size:
                        read, targets = map(list, zip(*(graph.read(lm_state, token) for lm_state in states)))
                    extra = added[token] + sum(w * lm for w, lm in zip(row_weights, read))
                    sums = [before + lm for before, lm in zip(lm_scores, read)]
                    parts = (score + log_prob + extra, fused + extra, sums)
                    offer(targets, token, (*parts, k, token, order))
            if not met:
                continue  # no hypothesis is possible, as sums with huge weights overflowed
            kept = sorted(met.items(), key=lambda item: _rank(item[1]))[:max_active]
            kept = [item for item in kept if item[1][0] >= kept[0][1][0] - threshold]
            places = [(c[0], last, states, *c[1:3]) for (*states, last), c in kept]
            for k, (_, candidate) in enumerate(kept):
                links[row, frame, k], labels[row, frame, k] = candidate[3:5]
        for values, part in zip(zip(*places), state):
            part[row, : len(places)] = torch.tensor(values, dtype=part.dtype)
        state.scores[row, len(places) :] = -torch.inf
    return state, happened


def _rank(candidate: Any) -> Any:
    score, *_, label, order = candidate
    return -score, label, order


class _Graph:
    """An automaton whose tensors are copied to Python lists."""

    def __init__(self, automaton: AutomatonTensors) -> None:
        offsets, tokens, self.weights, self.targets, self.backoffs, self.backoff_weights = (t.tolist() for t in automaton)
        self.arcs = [{tokens[arc]: arc for arc in range(*bounds)} for bounds in pairwise(offsets)]

    def read(self, state: int, token: int) -> tuple[float, int]:
        """Return the score of a token in a state, and the state after the token."""
        score = 0.0
        while True:
            arc = self.arcs[state].get(token)
            if arc is not None:
                return score + self.weights[arc], self.targets[arc]
            score += self.backoff_weights[state]
            if self.backoffs[state] == state:
                return score, state
            state = self.backoffs[state]
