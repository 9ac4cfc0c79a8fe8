"""One step of attention decoding with a language model: its weighted scores, added into the logits in place.

Nothing is carried from step to step: a row's state is read off the tokens that it has so far, of which only the last few
matter. What a token id is to the LM is its role:

- TEXT: scored by the LM, and read into its state;
- END: ends the transcript, and scores log p(`</s>`);
- UNSCORED: anything else. It is passed over when the state is read.

Two marks may be added to them: the transcript begins after the last START of a row, and from a HOLD to the next START a row
has no LM. A row with neither is all transcript.

With `weighted` the symbols that no LM scores follow the blank-aware rule (Grigoryan et al. 2025): p being the softmax of a row,
scored ones get `log p + w * (log(1 - p_unscored) + log p_LM)`, the others `(1 + w) * log p`, p_unscored being the probability
of all of these together. Otherwise they keep the score they have. Up to a constant per row, that is: what comes in may be
raw logits, and what goes out isn't normalised. What is -inf stays so.
"""

from __future__ import annotations

import importlib
from typing import NamedTuple

import torch
from torch import Tensor

from ...automaton.ops import engine_name
from ...automaton.tensors import AutomatonTensors

UNSCORED, TEXT, END = range(3)
KINDS = 3  # the bits that tell these
START, HOLD = 4, 8


class Roles(NamedTuple):
    """What each of a model's `C` classes is.

    Args:
        roles: int8 `[C]`.
        unscored, ends: int32 `[U]`, `[E]`, the classes that are UNSCORED and END.
        holds: whether any is a HOLD.
    """

    roles: Tensor
    unscored: Tensor
    ends: Tensor
    holds: bool

    @classmethod
    def of(cls, roles: Tensor) -> Roles:
        kinds = roles & KINDS
        unscored, ends = (torch.nonzero(kinds == kind)[:, 0].to(torch.int32) for kind in (UNSCORED, END))
        return cls(roles, unscored, ends, bool((roles & HOLD).any()))

    def to(self, device: torch.device) -> Roles:
        return Roles(self.roles.to(device), self.unscored.to(device), self.ends.to(device), self.holds)


class Rows(NamedTuple):
    """What the LM of each row is.

    Args:
        tensors: one automaton, or several packed into one.
        vocab_size, context_length: of these, the longest.
        starts, roots: int32 `[B]`, the states behind `<s>` and without context; a row whose start is -1 has no LM.
        weights: float32 `[B]`.
    """

    tensors: AutomatonTensors
    vocab_size: int
    context_length: int
    starts: Tensor
    roots: Tensor
    weights: Tensor


def fuse(
    scores: Tensor,
    input_ids: Tensor,
    rows: Rows,
    roles: Roles,
    weighted: bool = True,
    engine: str = "auto",
) -> None:
    """Add the LM's scores to those of a model's classes, in place.

    Args:
        scores: float32 `[B, C]`, contiguous: logits or log-probabilities of the next token.
        input_ids: int64 `[B, L]`, contiguous: the tokens so far; L may be 0.
        rows, roles: on the same device; the LM's tokens must all be classes.
        weighted: whether unscored classes follow the blank-aware rule.
        engine: "auto", "reference", "cpu" or "gpu".
    """
    module = importlib.import_module(f"{__package__}.{engine_name(engine, scores.device)}")
    if scores.numel():
        module.fuse(scores, input_ids, rows, roles, weighted)
