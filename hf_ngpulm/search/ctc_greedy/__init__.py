"""Greedy CTC search with language models, as one torch operator with an engine each for CPU and GPU.

The operator labels frames; collapsing the labels (dropping blanks and repeats) gives the tokens.

A frame whose own best class is blank, or a class that no language model scores, keeps it: an LM must never flip blank and
non-blank in greedy search, or words get lost. At any other frame the label is chosen anew among the tokens that the LM
scores, by acoustic log-probability plus weighted LM score. What the rules differ in is when such a frame goes on with the
label before it (a repeat, which the LM isn't asked about), if that label stands in the frame just before:

- "label": when the frame's own best class is that label (NeMo's rule). A re-chosen label is not repeated by the rest of
  its acoustic run, which then yields another token.
- "run": when the frame's own best class is that of the frame before: a re-chosen label swallows its acoustic run.
- "stay": when that scores better: the label competes at every frame by its acoustic score alone, less `stay_cost`.

In the first two rules a new label differs from the one just before it, since CTC would merge the two. Wherever several classes
score the same the first one, by its id, is the best.
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
        labels: int32 `[B, T]`, class of each frame; blank from the row's length on.
        acoustic_scores: float32 `[B]`, log-probability of the labels.
        lm_scores: float32 `[B, K]`, each automaton's unweighted score of the tokens.
        states: int32 `[B, K]`, the automata's states after the last token.
        bad_frames: int32 `[B]`, the first frame of a row whose logits can't be normalised (NaN, infinity), else -1; such a
            row is blank from there on.
        before: int32 `[B, 2]`, label and best class of each row's last frame.
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
        lengths: int32 `[B]`, frames of each row.
        states: int32 `[B, K]`, the states in which each row's K automata begin.
        weights: float32 `[B, K]`, weight of each one's scores.
        stay_costs: float32 `[B]`, what it costs to go on with a label, for the rule "stay".
        before: int32 `[B, 2]`, label and best class of the frame before the first one, from the result of the call that ended
            there; two blanks if there is none.
        blank: id of the blank class.
        vocab_size: token ids that the automata score, `0 .. vocab_size - 1`; a blank among them is left out.
        rule: "label", "run" or "stay".
        engine: "auto", "reference", "cpu" or "gpu".
    """
    return GreedyLabels(
        *torch.ops.hf_ngpulm.ctc_greedy(
            automaton, logits, lengths, states, weights, stay_costs, before, blank, vocab_size, rule, engine
        )
    )
