"""One step of attention decoding with a language model: adds the LM's weighted scores to the logits in place.

`fuse` computes a row's LM state from its last tokens, so nothing is carried from step to step. A caller that tracks which row a
hypothesis moves to may carry the states instead (`read` first, then `fuse_at` and `follow` at each step). Each token id has a
role:

- TEXT: the LM scores it and reads it into the state;
- END: ends the transcript; its score is log p(`</s>`);
- UNSCORED: anything else. It isn't read into the state.

Two marks can be added to a role. The transcript begins after the last START of a row. From a HOLD to the next START a row has
no LM. A row without marks is all transcript.

With `shared` the LM redistributes the model's probability among the N classes that it scores. A scored class with the logit x
gets `x + w * log p_LM + c`, where c keeps the sum of exp(x) over the scored classes, but is at most `|w| * log N`: if the LM
finds all of the model's candidates less likely than a guess would, they stay expensive. Unscored classes keep their logits, or
fall as far as the best scored class has fallen: unscored symbols must not win merely because they cost nothing. END counts as
unscored while the transcript is empty, so that the LM can't end it there. If the model gives END more than half the
probability, the LM can't lower it. Without `shared` scores are only added. Logits of -inf stay -inf.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...automaton.ops import define_operator, load_engine
from ...automaton.tensors import AutomatonTensors

UNSCORED, TEXT, END = range(3)
KINDS = 3  # bit mask of these three
START, HOLD = 4, 8


class Roles(NamedTuple):
    """Roles of a model's `C` classes.

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

    @property
    def log_guess(self) -> float:
        """Return log N for N scored classes: the cost of a guess."""
        return math.log(max(self.roles.numel() - self.unscored.numel(), 1))

    def to(self, device: torch.device) -> Roles:
        return Roles(self.roles.to(device), self.unscored.to(device), self.ends.to(device), self.holds)


class Rows(NamedTuple):
    """The LM of each row.

    Args:
        tensors: one automaton, or several packed into one.
        vocab_size, context_length: of the automata; the context length is the largest one.
        starts, roots: int32 `[B]`, the states after `<s>` and without context; a start of -1 means no LM.
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
    shared: bool = True,
    engine: str = "auto",
    keeps_sums: bool = False,
) -> None:
    """Add the LM's scores to those of a model's classes, in place.

    Args:
        scores: float32 `[B, C]`, contiguous: logits or log-probabilities of the next token.
        input_ids: int64 `[B, L]`, contiguous: the tokens so far; L may be 0.
        rows, roles: on the same device; the LM's tokens must all be classes.
        shared: whether the classes that the LM scores keep their total probability; otherwise scores are only added.
        engine: "auto", "reference", "cpu" or "gpu".
        keeps_sums: whether to subtract a constant from each row that keeps its sum of exp(scores).
    """
    module = load_engine(__package__, engine, scores.device)
    if scores.numel():
        sums = torch.logsumexp(scores, 1) if keeps_sums else None
        module.fuse(scores, input_ids, rows, roles, shared)
        _restore_sums(scores, sums, rows)


def fuse_outside_loops(scores: Tensor, input_ids: Tensor, rows: Rows, roles: Roles, shared: bool, ends: Tensor) -> None:
    """Apply `loops.end_loops` to rows with an LM, and `fuse` to those that are in no loop, in one call of the native core."""
    if scores.numel():
        load_engine(__package__, "cpu", scores.device).fuse(scores, input_ids, rows, roles, shared, ends)


def read(input_ids: Tensor, rows: Rows, roles: Roles, engine: str = "auto") -> Tensor:
    """Return the LM states after `input_ids`, int32 `[B]`; -1 for rows without an LM. Arguments as for `fuse`."""
    if not input_ids.shape[1]:
        return rows.starts.clone()
    text, lengths, is_held = text_of(input_ids, roles)
    states = torch.ops.hf_ngpulm.states_after(
        list(rows.tensors), rows.starts.clamp(min=0), rows.roots, text, lengths, rows.context_length, rows.vocab_size, engine
    )
    return torch.where((rows.starts < 0) | is_held, -1, states).to(torch.int32)


def text_of(input_ids: Tensor, roles: Roles) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tokens int64 `[B, L]` with those of the transcripts first, the number of these, and whether a row is held."""
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
    rows: Rows,
    roles: Roles,
    shared: bool = True,
    engine: str = "auto",
    keeps_sums: bool = False,
) -> None:
    """Do as `fuse`, in given LM states, int32 `[B]`; -1 means no LM."""
    if scores.numel():
        sums = torch.logsumexp(scores, 1) if keeps_sums else None
        torch.ops.hf_ngpulm.fuse_at(scores, states, *_flat(rows, roles), shared, engine)
        _restore_sums(scores, sums, rows)


def fuse_less(
    scores: Tensor, less: Tensor, states: Tensor, rows: Rows, roles: Roles, shared: bool = True, engine: str = "auto"
) -> None:
    """Do as `fuse_at`, and subtract the weighted scores `less`, float32 `[B, C]`, of other LMs (internal or source LM) from
    TEXT.

    END keeps its score: an internal LM, which hears nothing, can't know where a transcript ends, nor can an LM of text that was
    cut into other pieces. With `shared` what the LM doesn't score goes down as far as the best scored class has, or all of
    them together; and all of that is made up for by as much as the model expects something that the LM doesn't score. Nothing
    else holds of what is said above: what text costs is what tells the hypotheses of a beam apart.
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


def _restore_sums(scores: Tensor, sums: Tensor | None, rows: Rows) -> None:
    if sums is not None:
        gained = torch.logsumexp(scores, 1) - sums
        idle = (rows.starts < 0) | (rows.weights == 0) | ~torch.isfinite(gained)
        scores.sub_(gained.masked_fill(idle, 0.0)[:, None])


def follow(states: Tensor, tokens: Tensor, rows: Rows, roles: Roles, engine: str = "auto") -> Tensor:
    """Return the LM states after one more token of each row, int64 `[B]`."""
    return torch.ops.hf_ngpulm.follow(states, tokens, *_flat(rows, roles), engine) if len(states) else states


# Operators, so that `torch.compile` doesn't trace into the engines. They take tensors one by one.

_FLAT = "Tensor[] automaton, int vocab_size, Tensor starts, Tensor weights, Tensor roles, Tensor unscored, Tensor ends"


def _flat(rows: Rows, roles: Roles) -> tuple[Any, ...]:
    return list(rows.tensors), rows.vocab_size, rows.starts, rows.weights, roles.roles, roles.unscored, roles.ends


def _grouped(flat: list[Any]) -> tuple[Rows, Roles]:
    automaton, vocab_size, starts, weights, roles, unscored, ends = flat
    return Rows(AutomatonTensors(*automaton), vocab_size, 0, starts, starts, weights), Roles(roles, unscored, ends, False)


def _fuse_at(scores: Tensor, states: Tensor, *rest: Any) -> None:
    *flat, shared, engine = rest
    load_engine(__package__, engine, scores.device).fuse_at(scores, states, *_grouped(flat), shared)


def _follow(states: Tensor, tokens: Tensor, *rest: Any) -> Tensor:
    *flat, engine = rest
    return load_engine(__package__, engine, states.device).follow(states, tokens, *_grouped(flat))


define_operator(
    f"fuse_at(Tensor(a!) scores, Tensor states, {_FLAT}, bool shared, str engine) -> ()", _fuse_at, lambda *arguments: None
)
define_operator(
    f"follow(Tensor states, Tensor tokens, {_FLAT}, str engine) -> Tensor",
    _follow,
    lambda states, *rest: torch.empty_like(states),
)
