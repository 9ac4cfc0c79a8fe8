"""Search CTC logits greedily with language models. The search is a torch operator with an engine for CPU and an engine for GPU.

The operator labels frames. Collapsing the labels (dropping blanks and repeats) gives the tokens.

If a frame's best acoustic class is the blank, or a class that no LM scores, the frame gets that class. No LM takes part in this
decision, because tokens have an LM cost and the blank has none. An LM would turn tokens into blanks, and words would be lost.
At any other frame the label is the token with the best sum of acoustic log-probability and weighted LM score.

Instead of getting a new token, such a frame may continue the label of the previous frame. A continued label isn't a new token,
so it has no LM score. Three rules define when a frame continues the label of the previous frame:

- "label": if this label is the frame's best acoustic class (NeMo's rule). Suppose the LM chooses b in the first of several
  frames whose best acoustic class is a. The next of these frames doesn't continue b, so the frames yield a second token.
- "run": if the two frames have the same best acoustic class. A label that the LM has chosen then covers its acoustic run.
- "stay": if the continued label scores better than any new token. Its score is its acoustic score minus `stay_cost`.

Under the first two rules a new label always differs from the label of the previous frame, because CTC would merge equal labels.
In a tie, the lower class id wins.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...automaton.ops import define_operator, load_engine
from ...automaton.tensors import AutomatonTensors

RULES = ("label", "run", "stay")


class LabelRules(NamedTuple):
    """Weights, and the rule that decides whether a frame continues the label of the previous frame."""

    weights: Tensor  # float32 [B, K], weights of the automata's scores
    stay_costs: Tensor  # float32 [B], cost of continuing a label under the rule "stay" (natural log)
    blank: int  # id of the blank class
    vocab_size: int  # the automata score the token ids `0 .. vocab_size - 1`, except the blank.
    rule: str  # "label", "run" or "stay"


class GreedyLabels(NamedTuple):
    """Result of `ctc_greedy`, on the device of the logits."""

    labels: Tensor  # int32 [B, T], class of each frame; blank in padding
    acoustic_scores: Tensor  # float32 [B], log-probability of the labels
    lm_scores: Tensor  # float32 [B, K], each automaton's unweighted score of the tokens
    states: Tensor  # int32 [B, K], the automata's states after the last token
    # int32 [B], a row's first frame with NaN or infinity, or -1 if it has none. From this frame on, all labels are blank.
    bad_frames: Tensor
    before: Tensor  # int32 [B, 2], label and best acoustic class of each row's last frame


def _run(automaton: list[Tensor], logits: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *rows, rules, engine = *rest[:3], LabelRules(*rest[3:-1]), rest[-1]
    return load_engine(__package__, engine, logits.device, automaton).ctc_greedy(
        AutomatonTensors(*automaton), logits, *rows, rules
    )


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
    "ctc_greedy(Tensor[] automaton, Tensor logits, Tensor lengths, Tensor states, Tensor before, Tensor weights,"
    " Tensor stay_costs, int blank, int vocab_size, str rule, str engine) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _run, _fake,
)  # fmt: skip


def ctc_greedy(
    automaton: list[Tensor],
    logits: Tensor,
    lengths: Tensor,
    states: Tensor,
    before: Tensor,
    rules: LabelRules,
    engine: str = "auto",
) -> GreedyLabels:
    """Label the frames of a batch.

    Args:
        automaton: tensors of one automaton, or of several automata in one pool.
        logits: `[B, T, C]`, floating point of any precision and layout; need not be normalised.
        lengths: int32 `[B]`, number of frames of each row.
        states: int32 `[B, K]`, initial states of each row's K automata.
        before: int32 `[B, 2]`, `GreedyLabels.before` of the previous call; two blanks in the first call.
        rules: weights, and the rule for continued labels.
        engine: "auto", "reference", "cpu" or "gpu".
    """
    return GreedyLabels(*torch.ops.hf_ngpulm.ctc_greedy(automaton, logits, lengths, states, before, *rules, engine))
