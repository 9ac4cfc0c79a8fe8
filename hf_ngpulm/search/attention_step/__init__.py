"""Add the weighted scores of a language model to the logits of one step of attention decoding, in place.

`fuse` computes a row's LM state from its last tokens, so a caller needn't keep states from step to step. A caller that tracks
the rows of hypotheses may keep the states instead: it calls `read` first, then `fuse_at` and `follow` at each step. Each token
id has a role:

- TEXT: the LM scores the token, and the token changes the LM state.
- END: the token ends the transcript. Its score is log p(`</s>`).
- UNSCORED: the LM neither scores the token nor changes its state.

A token id may also have one of two marks, START or HOLD. The transcript of a row begins after the row's last START token. From
a HOLD token to the next START token, no LM applies to the row. If no token of a row has a mark, the transcript is the whole
row.

With `shared` the LM redistributes the model's probability among the N classes that the LM scores. With the LM's weight w, a
scored class with the logit x gets `x + w * log p_LM + c`. The constant c restores the sum of exp(x) over the scored classes,
but is at most `|w| * log N`. So if the LM finds all of the model's candidates less likely than a random guess, the candidates
stay expensive. If the logit of the best scored class has fallen, the unscored classes fall by the same amount, so that no
unscored symbol wins merely because it has no LM cost. Otherwise unscored classes keep their logits. END counts as unscored
while the transcript is empty, so that the LM can't end an empty transcript. If the model gives END more than half of the
probability, the LM can't lower END. Without `shared` the scores are only added. Logits of -inf stay -inf.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...automaton.ops import define_operator, load_engine
from ...automaton.tensors import AutomatonTensors

UNSCORED, TEXT, END = range(3)
KINDS = 3  # bit mask of the three roles
START, HOLD = 4, 8


class Roles(NamedTuple):
    """Roles of a model's `C` classes."""

    roles: Tensor  # int8 [C]
    # unscored, ends: int32 [U] and [E], the UNSCORED classes and the END classes
    unscored: Tensor
    ends: Tensor
    holds: bool  # whether any class has the mark HOLD

    @classmethod
    def of(cls, roles: Tensor) -> Roles:
        kinds = roles & KINDS
        unscored, ends = (torch.nonzero(kinds == kind)[:, 0].to(torch.int32) for kind in (UNSCORED, END))
        return cls(roles, unscored, ends, bool((roles & HOLD).any()))

    @property
    def log_guess(self) -> float:
        """Return log N (natural log), the cost of a uniform guess among the N scored classes."""
        return math.log(max(self.roles.numel() - self.unscored.numel(), 1))

    def to(self, device: torch.device) -> Roles:
        return Roles(self.roles.to(device), self.unscored.to(device), self.ends.to(device), self.holds)


class FusedRows(NamedTuple):
    """The LMs of a batch of `B` rows, one per row."""

    tensors: AutomatonTensors  # tensors of one automaton, or of several automata in one pool
    vocab_size: int  # number of token ids that the automata score
    context_length: int  # largest context length of the automata
    # starts, roots: int32 [B], the LM's state after `<s>`, and the LM's state without context. A start of -1 means that the row
    # has no LM.
    starts: Tensor
    roots: Tensor
    weights: Tensor  # float32 [B], LM weights


def fuse(
    scores: Tensor,
    input_ids: Tensor,
    rows: FusedRows,
    roles: Roles,
    shared: bool = True,
    engine: str = "auto",
    keeps_sums: bool = False,
) -> None:
    """Add weighted LM scores to the scores of a model's classes, in place.

    Args:
        scores: float32 `[B, C]`, contiguous: logits or log-probabilities of the next token.
        input_ids: int64 `[B, L]`, contiguous: the tokens so far; L may be 0.
        rows, roles: the LMs of the rows and the roles of the classes, on the device of `scores`. Each token id that an LM
            scores must be a class.
        shared: whether the classes that the LM scores keep their total probability. If not, scores are only added.
        engine: "auto", "reference", "cpu" or "gpu".
        keeps_sums: whether to restore each row's sum of exp(scores), by subtracting a constant from the row.
    """
    module = load_engine(__package__, engine, scores.device, rows.tensors)
    if scores.numel():
        sums = torch.logsumexp(scores, 1) if keeps_sums else None
        module.fuse(scores, input_ids, rows, roles, shared)
        _restore_sums(scores, sums, rows)


def fuse_outside_loops(scores: Tensor, input_ids: Tensor, rows: FusedRows, roles: Roles, shared: bool, ends: Tensor) -> None:
    """Apply `loops.end_loops` to the rows with an LM. Then apply `fuse` to the rows that aren't in a loop.

    One call of the native core does both. `ends` is as for `end_loops`, the other arguments are as for `fuse`.
    """
    if scores.numel():
        load_engine(__package__, "cpu", scores.device).fuse(scores, input_ids, rows, roles, shared, ends)


def read(input_ids: Tensor, rows: FusedRows, roles: Roles, engine: str = "auto") -> Tensor:
    """Return each row's LM state after all tokens of the row, int32 `[B]`. A row without an LM has the state -1. The arguments
    are as for `fuse`.
    """
    if not input_ids.shape[1]:
        return rows.starts.clone()
    text, lengths, is_held = text_of(input_ids, roles)
    states = torch.ops.hf_ngpulm.states_after(
        list(rows.tensors), rows.starts.clamp(min=0), rows.roots, text, lengths, rows.context_length, rows.vocab_size, engine
    )
    return torch.where((rows.starts < 0) | is_held, -1, states).to(torch.int32)


def text_of(input_ids: Tensor, roles: Roles) -> tuple[Tensor, Tensor, Tensor]:
    """Move each row's transcript to the front of the row. Return three tensors: the moved tokens, int64 `[B, L]`; the number of
    tokens in each transcript, int64 `[B]`; and whether a HOLD token suspends the row's LM, bool `[B]`.
    """
    inside = (input_ids >= 0) & (input_ids < roles.roles.numel())
    kinds = torch.where(inside, roles.roles[torch.where(inside, input_ids, 0)], UNSCORED)
    places = torch.arange(1, input_ids.shape[1] + 1, device=input_ids.device)
    started, held = ((((kinds & mark) != 0) * places).amax(1) for mark in (START, HOLD))
    is_text = ((kinds & KINDS) == TEXT) & (places > started[:, None])
    text = input_ids.gather(1, torch.argsort(~is_text, dim=1, stable=True))
    return text, is_text.sum(1), held > started


def fuse_at(
    scores: Tensor,
    states: Tensor,
    rows: FusedRows,
    roles: Roles,
    shared: bool = True,
    engine: str = "auto",
    keeps_sums: bool = False,
) -> None:
    """Do the same as `fuse`, but take the LM states from `states`, int32 `[B]`. A state of -1 means that the row has no LM."""
    if scores.numel():
        sums = torch.logsumexp(scores, 1) if keeps_sums else None
        torch.ops.hf_ngpulm.fuse_at(scores, states, *_flat(rows, roles), shared, engine)
        _restore_sums(scores, sums, rows)


def fuse_less(
    scores: Tensor, less: Tensor, states: Tensor, rows: FusedRows, roles: Roles, shared: bool = True, engine: str = "auto"
) -> None:
    """Do the same as `fuse_at`, and subtract weighted scores of other LMs from the TEXT classes.

    Nothing is subtracted from END, because the subtracted LMs don't know where a transcript ends. An internal LM gets no audio,
    and the texts of a source LM may have been cut at other places.

    A beam search compares hypotheses by the scores after the subtraction. So with `shared`, no constant raises the scored
    classes to their old total probability. Instead, the unscored classes fall by f. The number f is the larger of two numbers:
    how far the best scored class has fallen, and how far the log of the scored classes' total probability has fallen. Then all
    classes rise by f times the probability that the model gives to unscored classes.

    Args:
        less: float32 `[B, C]`, weighted scores of the LMs that are subtracted (internal LM or source LM).
    """
    fused, kinds = scores.clone(), roles.roles & KINDS
    fuse_at(fused, states, rows, roles, False, engine)
    fused -= less.masked_fill((kinds != TEXT) | (states < 0)[:, None], 0.0)
    if shared and scores.numel():
        others = (kinds == UNSCORED) | ((kinds == END) & (states == rows.starts)[:, None])
        before, after = (part.masked_fill(others, -torch.inf) for part in (scores, fused))
        sums, sum_before = torch.logsumexp(scores, 1), torch.logsumexp(before, 1)
        lost = (after.amax(1) - before.amax(1)).minimum(torch.logsumexp(after, 1) - sum_before)
        lost = torch.where(torch.isfinite(lost), lost, 0.0).clamp(max=0.0)
        expected = -torch.expm1(torch.where(sums > -torch.inf, sum_before - sums, 0.0).clamp(max=0.0))
        fused = torch.where(others, scores + lost[:, None], fused) - (expected * lost)[:, None]
    scores.copy_(fused)


def _restore_sums(scores: Tensor, sums: Tensor | None, rows: FusedRows) -> None:
    if sums is not None:
        gained = torch.logsumexp(scores, 1) - sums
        idle = (rows.starts < 0) | (rows.weights == 0) | ~torch.isfinite(gained)
        scores.sub_(gained.masked_fill(idle, 0.0)[:, None])


def follow(states: Tensor, tokens: Tensor, rows: FusedRows, roles: Roles, engine: str = "auto") -> Tensor:
    """Return each row's LM state after one more token. `states`: int32 `[B]`, the LM states before the token. `tokens`: int64
    `[B]`, the token of each row.
    """
    return torch.ops.hf_ngpulm.follow(states, tokens, *_flat(rows, roles), engine) if len(states) else states


# These are operators, so that `torch.compile` doesn't trace into the engines. An operator can't take named tuples, so each
# tensor is an argument of its own.

_FLAT = "Tensor[] automaton, int vocab_size, Tensor starts, Tensor weights, Tensor roles, Tensor unscored, Tensor ends"


def _flat(rows: FusedRows, roles: Roles) -> tuple[Any, ...]:
    return list(rows.tensors), rows.vocab_size, rows.starts, rows.weights, roles.roles, roles.unscored, roles.ends


def _grouped(flat: list[Any]) -> tuple[FusedRows, Roles]:
    automaton, vocab_size, starts, weights, roles, unscored, ends = flat
    return FusedRows(AutomatonTensors(*automaton), vocab_size, 0, starts, starts, weights), Roles(roles, unscored, ends, False)


def _fuse_at(scores: Tensor, states: Tensor, *rest: Any) -> None:
    *flat, shared, engine = rest
    load_engine(__package__, engine, scores.device, flat[0]).fuse_at(scores, states, *_grouped(flat), shared)


def _follow(states: Tensor, tokens: Tensor, *rest: Any) -> Tensor:
    *flat, engine = rest
    return load_engine(__package__, engine, states.device, flat[0]).follow(states, tokens, *_grouped(flat))


define_operator(
    f"fuse_at(Tensor(a!) scores, Tensor states, {_FLAT}, bool shared, str engine) -> ()", _fuse_at, lambda *arguments: None
)
define_operator(
    f"follow(Tensor states, Tensor tokens, {_FLAT}, str engine) -> Tensor",
    _follow,
    lambda states, *rest: torch.empty_like(states),
)
