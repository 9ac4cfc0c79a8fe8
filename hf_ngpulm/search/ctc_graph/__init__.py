"""Search the product of the CTC topology and backoff automata by token passing, always on the CPU.

This is the search in the composition T o G of WFST decoding (Mohri, Pereira and Riley, "Speech recognition with weighted
finite-state transducers", 2008), composed on the fly. A search state has two parts. The first part s is the automata's states:
the state of a language model, and the state of the phrases if there are any. The second part l is a label of the CTC topology
T: the last token if it may continue, otherwise the blank. After a blank the same token counts as a new token. At each frame a
hypothesis in (s, l) moves to

    (s, blank)   by a blank,
    (s, l)       by the token l once more, if l is a token,
    (s', t)      by any other token t, where s' are the automata's states that t leads to from s.

A new token adds its bonus and the automata's weighted scores. An automaton scores a token by the token's arc in the longest
context that has such an arc. These are failure semantics: each token has one score per state, and there are no epsilon arcs. If
several hypotheses meet in a search state, only the best hypothesis is kept (Viterbi), because all have the same future. In
`hf_ngpulm.search.ctc_beam`, by contrast, different token sequences never meet, and the alignments of a sequence are summed.

Then the search drops hypotheses whose score is lower than the best score by more than `threshold`, and keeps the best `K` of
the other hypotheses. The order of hypotheses with equal scores is part of the definition. Blanks come first, then repeats of
the last token, then new tokens in the order of their ids. In a further tie, hypotheses that come from a blank come first, then
lower last tokens, then lower automaton states.

The search takes and returns its state as tensors, so it gives the same result if the frames are cut into blocks.

There is no engine for GPUs, because a frame is a long chain of small steps. According to a model of an H100, a kernel with one
program per row would take longer for 32 rows than the native core takes on two threads (`docs/graph.md`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ...automaton.ops import load_engine
from ...automaton.tensors import AutomatonTensors
from ...engines.choice import engine_name
from ..ctc_beam import BeamFrames as GraphFrames

__all__ = ["GraphFrames", "GraphRules", "GraphState", "graph_engine", "graph_search", "in_order", "initial_state"]
CPU = torch.device("cpu")


class GraphState(NamedTuple):
    """State of a search of `B` rows with `K` places for hypotheses per row. An empty place has the score -inf.

    Args:
        scores: float64 `[B, K]`, total scores.
        last_tokens: int32 `[B, K]`, the label of the CTC topology: a token, or -1 for the blank.
        lm_states: int32 `[B, K, M]`, the automata's states.
        fused: float64 `[B, K]`, the part of `scores` that comes from LMs and bonuses. The rest is acoustic.
        lm_scores: float64 `[B, K, M]`, the automata's unweighted scores.
    """

    scores: Tensor
    last_tokens: Tensor
    lm_states: Tensor
    fused: Tensor
    lm_scores: Tensor


class GraphRules(NamedTuple):
    """Weights and pruning settings of a search of `B` rows with `M` automata and `C` classes.

    Args:
        weights: float32 `[B, M]`, weights of the automata's scores.
        bonuses: float32 `[B, C]`, bonus of each class. Classes from `vocab_size` on get only the bonus, and don't change the
            automata's states.
        blank: id of the blank class.
        vocab_size: the automata score the token ids `0 .. vocab_size - 1`, except the blank.
        threshold: maximum difference between the best score and a hypothesis's score (natural log). Worse hypotheses are
            dropped.
        skip: if the blank's probability exceeds this value, only the blank is possible at the frame.
    """

    weights: Tensor
    bonuses: Tensor
    blank: int
    vocab_size: int
    threshold: float = float("inf")
    skip: float = float("inf")


def initial_state(max_active: int, lm_states: Tensor) -> GraphState:
    """Return the state before the first frame. Each row has one hypothesis, whose label is the blank.

    Args:
        max_active: K, the maximum number of hypotheses per row.
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
    """Return the places of each row's hypotheses, int64 `[B, K]`, in the order that breaks ties at an utterance's end: by
    label, then by the automata's states.
    """
    keys = (*reversed(state.lm_states.unbind(2)), state.last_tokens)
    order = torch.arange(keys[0].shape[1], device=keys[0].device).expand(keys[0].shape)
    for key in keys:
        order = order.gather(1, key.gather(1, order).argsort(dim=1, stable=True))
    return order


def graph_engine(name: str) -> str:
    """Return the engine for a graph search: "reference" if `name` is "reference", otherwise "cpu".

    Raises:
        ValueError: `name` is "gpu", or no engine has this name.
    """
    if name == "gpu":
        raise ValueError(
            "engine='gpu': graph searches run on the CPU, wherever the logits are; pass 'auto', 'cpu' or 'reference'"
        )
    return "reference" if engine_name(name, CPU) == "reference" else "cpu"


def graph_search(
    automaton: AutomatonTensors, state: GraphState, logits: Tensor, lengths: Tensor, rules: GraphRules, engine: str = "auto"
) -> tuple[GraphState, GraphFrames]:
    """Search more frames of a batch.

    Tensors on another device are copied to the CPU, and the results are copied to the device of the logits. If several calls
    search the same automaton, keep the automaton on the CPU, so that no call copies it.

    Args:
        automaton: tensors of one automaton, or of several automata in one pool.
        state: state of the search, which isn't changed.
        logits: `[B, T, C]`, floating point of any precision and layout; need not be normalised.
        lengths: int32 `[B]`, number of frames of each row.
        rules: weights and pruning.
        engine: "auto", "reference" or "cpu".

    Raises:
        ValueError: there is no such engine.
        IndexError: `state` contains automaton states or tokens that don't exist.
    """
    results = load_engine(__package__, graph_engine(engine), CPU, automaton).graph_search(
        AutomatonTensors(*_moved(automaton, CPU)), GraphState(*_moved(state, CPU)),
        *_moved((logits, lengths), CPU), rules._replace(weights=rules.weights.to(CPU), bonuses=rules.bonuses.to(CPU)),
    )  # fmt: skip
    after, happened = (_moved(part, logits.device) for part in results)
    return GraphState(*after), GraphFrames(*happened)


def _moved(tensors: Iterable[Tensor], device: torch.device) -> Iterator[Tensor]:
    return (tensor.to(device) for tensor in tensors)
