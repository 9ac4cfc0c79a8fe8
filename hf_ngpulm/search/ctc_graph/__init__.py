"""Token passing over the product of the CTC topology and backoff automata, with an engine each for CPU and GPU.

This is the search in the composition T o G of WFST decoding (Mohri, Pereira and Riley, "Speech recognition with weighted
finite-state transducers", 2008), composed on the fly. A search state has two parts: the automata's states s (of a language
model, and of phrases if there are any), and a label l of the CTC topology T. The label is the last token while it continues, or
the blank, after which the same token is a new one. At each frame a hypothesis in (s, l) moves to

    (s, blank)   by a blank,
    (s, l)       by the token l once more, if l is a token,
    (s', t)      by any other token t, where s' are the states after t in s.

A new token adds its bonus and the automata's weighted scores. An automaton scores a token by the arc of the longest context
that has one (failure semantics: each token has one score per state, and there are no epsilon arcs). Of hypotheses that meet in
a search state only the best is kept (Viterbi), as their futures are the same. In `hf_ngpulm.search.ctc_beam`, by contrast,
different token sequences never meet, and the alignments of a sequence are summed.

Then the search drops hypotheses that score `threshold` less than the best one, and all but the best `K`. The order of ties is
part of the definition: hypotheses by a blank come first, then those that continue the last token, then those by other tokens in
the order of ids; among equals those that come from a blank, then from lower tokens, then from lower automaton states.

The search takes and returns its state as tensors, so cutting the frames into blocks changes nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...automaton.ops import load_engine
from ...automaton.tensors import AutomatonTensors
from ..ctc_beam import BeamFrames as GraphFrames

__all__ = ["GraphFrames", "GraphState", "graph_search", "in_order", "initial_state"]


class GraphState(NamedTuple):
    """State of the search: `B` rows with up to `K` hypotheses each. An empty place has the score -inf.

    Args:
        scores: float64 `[B, K]`, total scores.
        last_tokens: int32 `[B, K]`, the label: a token, or -1 for the blank.
        lm_states: int32 `[B, K, M]`, states of the language model, and of the phrases if M is 2.
        fused: float64 `[B, K]`, the part of `scores` from LMs and bonuses; the rest is acoustic.
        lm_scores: float64 `[B, K, M]`, the automata's unweighted scores.
    """

    scores: Tensor
    last_tokens: Tensor
    lm_states: Tensor
    fused: Tensor
    lm_scores: Tensor


def initial_state(max_active: int, lm_states: Tensor) -> GraphState:
    """Return the state before the first frame: one hypothesis per row, after a blank.

    Args:
        max_active: K.
        lm_states: int32 `[B, M]`, initial states of the rows' automata.
    """
    zeros = torch.zeros((len(lm_states), max_active), dtype=torch.float64, device=lm_states.device)
    states = lm_states.to(torch.int32)[:, None].repeat(1, max_active, 1)
    scores = torch.full_like(zeros, -torch.inf)
    scores[:, 0] = 0.0
    return GraphState(
        scores=scores,
        last_tokens=torch.full_like(zeros, -1, dtype=torch.int32),
        lm_states=states,
        fused=zeros,
        lm_scores=torch.zeros_like(states, dtype=torch.float64),
    )


def in_order(state: GraphState) -> Tensor:
    """Return the places of hypotheses, `[B, K]`, in the order of ties at an utterance's end: by label, then by states."""
    keys = (*reversed(state.lm_states.unbind(2)), state.last_tokens)
    order = torch.arange(keys[0].shape[1], device=keys[0].device).expand(keys[0].shape)
    for key in keys:
        order = order.gather(1, key.gather(1, order).argsort(dim=1, stable=True))
    return order


def graph_search(
    automaton: AutomatonTensors,
    state: GraphState,
    logits: Tensor,
    lengths: Tensor,
    weights: Tensor,
    bonuses: Tensor,
    blank: int,
    vocab_size: int,
    threshold: float = float("inf"),
    skip: float = float("inf"),
    engine: str = "auto",
) -> tuple[GraphState, GraphFrames]:
    """Search more frames of a batch.

    Args:
        automaton: one automaton, or several packed into one.
        state: state of the search; not changed.
        logits: `[B, T, C]`, floating point of any precision and layout; need not be normalised.
        lengths: int32 `[B]`, number of frames of each row.
        weights: float32 `[B, M]`, weights of the automata's scores.
        bonuses: float32 `[B, C]`, bonus of each class. Classes from `vocab_size` on have no other score, and keep the
            automata's states.
        blank: id of the blank class.
        vocab_size: the automata score the token ids `0 .. vocab_size - 1`, except the blank.
        threshold: drops hypotheses that score this much less than the best one (natural log).
        skip: frames whose blank has a higher probability than this can only be blanks.
        engine: "auto", "reference", "cpu" or "gpu".
    """
    module = load_engine(__package__, engine, logits.device)
    return module.graph_search(automaton, state, logits, lengths, weights, bonuses, blank, vocab_size, threshold, skip)
