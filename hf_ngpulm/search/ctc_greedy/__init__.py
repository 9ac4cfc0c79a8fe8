"""Greedy CTC search with language models, as one torch operator with an engine each for CPU and GPU.

The operator labels frames; collapsing the labels (dropping blanks and repeats) gives the tokens.

A frame whose best acoustic class is the blank, or a class that no LM scores, gets that class. Here the LM has no say: every
token has an LM cost and the blank has none, so in greedy search an LM would turn tokens into blanks, and words would be lost.
At any other frame the label is the token with the best acoustic log-probability plus weighted LM score.

Such a frame may also continue the label of the frame before it. That is no new token and has no LM score. Three rules say when:

- "label": if the frame's best acoustic class is that label (NeMo's rule). If the LM chose another label than the acoustic best,
  the rest of the acoustic run isn't a repeat of it, and yields one more token.
- "run": if the frame's best acoustic class is that of the frame before. A label that the LM chose covers its acoustic run.
- "stay": if that scores better. The label competes at every frame with its acoustic score minus `stay_cost`.

In the first two rules a new label differs from the label of the frame before, since CTC would merge the two. Ties go to the
lower class id.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...automaton.ops import define_operator, load_engine
from ...automaton.tensors import AutomatonTensors

RULES = ("label", "run", "stay")


class GreedyLabels(NamedTuple):
    """Result of `ctc_greedy`, on the device of the logits.

    Args:
        labels: int32 `[B, T]`, class of each frame; blank in padding.
        acoustic_scores: float32 `[B]`, log-probability of the labels.
        lm_scores: float32 `[B, K]`, each automaton's unweighted score of the tokens.
        states: int32 `[B, K]`, the automata's states after the last token.
        bad_frames: int32 `[B]`, a row's first frame with NaN or infinity, else -1; the row is blank from there on.
        before: int32 `[B, 2]`, label and best acoustic class of each row's last frame.
    """

    labels: Tensor
    acoustic_scores: Tensor
    lm_scores: Tensor
    states: Tensor
    bad_frames: Tensor
    before: Tensor


def _run(automaton: list[Tensor], logits: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *given, engine = rest
    return load_engine(__package__, engine, logits.device).ctc_greedy(AutomatonTensors(*automaton), logits, *given)


def _fake(automaton: list[Tensor], logits: Tensor, lengths: Tensor, states: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    batch_size, frames, _ = logits.shape
    return (
        logits.new_empty((batch_size, frames), dtype=torch.int32),
        logits.new_empty((batch_size,), dtype=torch.float32),
        logits.new_empty(states.shape, dtype=torch.float32),
        logits.new_empty(states.shape, dtype=torch.int32),
        logits.new_empty((batch_size,), dtype=torch.int32),
        logits.new_empty((batch_size, 2), dtype=torch.int32),
    )


define_operator(
    "ctc_greedy(Tensor[] automaton, Tensor logits, Tensor lengths, Tensor states, Tensor weights, Tensor stay_costs,"
    " Tensor before, int blank, int vocab_size, str rule, str engine) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _run, _fake,
)  # fmt: skip


def ctc_greedy(
    automaton: list[Tensor],
    logits: Tensor,
    lengths: Tensor,
    states: Tensor,
    weights: Tensor,
    stay_costs: Tensor,
    before: Tensor,
    blank: int,
    vocab_size: int,
    rule: str,
    engine: str = "auto",
) -> GreedyLabels:
    """Label the frames of a batch.

    Args:
        automaton: tensors of one automaton, or of several packed into one.
        logits: `[B, T, C]`, floating point of any precision and layout; need not be normalised.
        lengths: int32 `[B]`, number of frames of each row.
        states: int32 `[B, K]`, initial states of each row's K automata.
        weights: float32 `[B, K]`, weights of the automata's scores.
        stay_costs: float32 `[B]`, cost of continuing a label under the rule "stay" (natural log).
        before: int32 `[B, 2]`, `GreedyLabels.before` of the preceding call; two blanks at the beginning.
        blank: id of the blank class.
        vocab_size: the automata score the token ids `0 .. vocab_size - 1`, except the blank.
        rule: "label", "run" or "stay".
        engine: "auto", "reference", "cpu" or "gpu".
    """
    return GreedyLabels(
        *torch.ops.hf_ngpulm.ctc_greedy(
            automaton, logits, lengths, states, weights, stay_costs, before, blank, vocab_size, rule, engine
        )
    )
