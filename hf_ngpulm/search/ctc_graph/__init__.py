"""Token passing over the product of the CTC topology and backoff automata, with an engine each for CPU and GPU.

A search state is a pair of the automata's states (a language model's, and that of phrases if there are any) and a label: the
last token while its frames go on, or the blank (after which the same token may come again). At each frame a hypothesis at
(s, l) goes on to

    (s, blank)   by a blank,
    (s, l)       by the token l once more, if l is a token,
    (s', t)      by any other token t, where s' are the states after t in s.

Tokens are read as the automaton defines it: the arc of the longest context that has one (there are no epsilon arcs; each
token has one arc in each state). A token adds its bonus and the weighted scores of the automata. Of hypotheses that meet in a
search state the best one stays (Viterbi): nothing that follows could tell them apart. That is what sets this search apart from
`hf_ngpulm.search.ctc_beam`, where different token sequences never meet and alignments of the same one are summed.

Then hypotheses that score `threshold` less than the best one are dropped, and all but the best `K`. The order of what scores
the same is part of the definition, too: first the ways by a blank, then those by the last token once more, then those by other
tokens, by their ids; and of each kind first what comes from a blank or else from the lower token, then from the lower states.

The search is described by tensors that it takes and returns: cutting the frames into blocks changes nothing.
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
    """Hold where the search of `B` rows with up to `K` hypotheses each stands. An empty place has the score -inf.

    Args:
        scores: float64 `[B, K]`, what is maximised.
        last_tokens: int32 `[B, K]`, the label: a token, or -1 for the blank.
        lm_states: int32 `[B, K, M]`, of the language model, and of the phrases if M is 2.
        fused: float64 `[B, K]`, what LM scores and bonuses make of `scores`; the rest is acoustic.
        lm_scores: float64 `[B, K, M]`, the automata's unweighted scores.
    """

    scores: Tensor
    last_tokens: Tensor
    lm_states: Tensor
    fused: Tensor
    lm_scores: Tensor


def initial_state(max_active: int, lm_states: Tensor) -> GraphState:
    """Return the state before the first frame: one hypothesis a row, after a blank.

    Args:
        max_active: K.
        lm_states: int32 `[B, M]`, the states in which the rows' automata begin.
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
    """Return the places of hypotheses `[B, K]` in the order of what scores the same where utterances end: by label, then by
    states.
    """
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
    """Go on with the search of a batch over more frames.

    Args:
        automaton: one automaton, or several packed into one.
        state: where the search stands; left as it is.
        logits: `[B, T, C]`, floating point of any precision and layout; need not be normalised.
        lengths: int32 `[B]`, frames of each row.
        weights: float32 `[B, M]`, weights of the automata's scores.
        bonuses: float32 `[B, C]`, what each token adds besides; for classes from `vocab_size` on, which the automata don't
            score and which leave their states, in place of a score too.
        blank: id of the blank class.
        vocab_size: token ids that the automata score, `0 .. vocab_size - 1`; a blank among them is left out.
        threshold, skip: hypotheses that score so much less than the best one are dropped; frames whose blank has a probability
            above `skip` can only be blanks.
        engine: "auto", "reference", "cpu" or "gpu".
    """
    module = load_engine(__package__, engine, logits.device)
    return module.graph_search(automaton, state, logits, lengths, weights, bonuses, blank, vocab_size, threshold, skip)
