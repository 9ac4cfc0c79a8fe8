"""Loops that transcripts fall into: a row that ends in a phrase that it has just said several times.

Decoders with attention do so by themselves now and then; a language model must neither keep a loop going nor lead into one
that doesn't end. In a row that is in one the language model has no say: the model alone decides, as it would without. Some
models have no way out of a loop once they are in it: where it has gone on for long, nothing is left but the transcript's end,
at the model's own price.

Only the last `WINDOW` tokens of a row are looked at, as far back as the transcript's last START token, or one that is no class.
A phrase has up to `LONGEST` tokens, has been said `TIMES` times, and that are `SHORTEST` tokens at least ("no no no no" is
said by people, too); `ENDLESS_TIMES` and `ENDLESS` are the same of a loop that is ended, of which a share of `ENDLESS_OTHERS`
may be other tokens: beams would find a way around the rule.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ....automaton.ops import define_operator, load_engine

LONGEST = 24
TIMES, SHORTEST = 3, 8
ENDLESS_TIMES, ENDLESS = 6, 24
ENDLESS_OTHERS = 1 / 8
WINDOW = ENDLESS_TIMES * LONGEST


def end_loops(scores: Tensor, input_ids: Tensor, roles: Tensor, rows: Tensor, ends: Tensor, engine: str = "auto") -> Tensor:
    """Return which rows are in a loop, bool `[B]`, and rule out all but `ends` in those where it has gone on for long.

    Args:
        scores: float32 `[B, C]`, contiguous, changed in place.
        input_ids: int64 `[B, L]`, contiguous: the tokens so far.
        roles: int8 `[C']`, what classes are (see `Roles`).
        rows: bool `[B]`, those whose scores may be changed.
        ends: int64 `[E]`, classes that end a transcript; a row in which none of them is possible stays as it is.
        engine: "auto", "reference", "cpu" or "gpu".

    Raises:
        IndexError: an end that is no class (on the CPU).
    """
    # Outside of torch.compile an operator is nothing but slower.
    run = torch.ops.hf_ngpulm.end_loops if torch.compiler.is_compiling() else _run
    return run(scores, input_ids, roles, rows, ends, engine)


def _run(scores: Tensor, input_ids: Tensor, roles: Tensor, rows: Tensor, ends: Tensor, engine: str) -> Tensor:
    return load_engine(__package__, engine, scores.device).end_loops(scores, input_ids, roles, rows, ends)


define_operator(
    "end_loops(Tensor(a!) scores, Tensor input_ids, Tensor roles, Tensor rows, Tensor ends, str engine) -> Tensor", _run,
    lambda scores, input_ids, roles, rows, *rest: torch.empty_like(rows),
)  # fmt: skip
