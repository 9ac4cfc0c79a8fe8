"""Loops in transcripts: a row that ends in several repeats of a phrase.

Attention decoders fall into loops now and then, and a language model must neither prolong one nor cause an endless one. While a
row is in a loop, the LM has no effect: the model alone decides. Some models never leave a loop by themselves. So after a long
loop only the transcript's end remains, with the model's own score.

Only the last `WINDOW` tokens of a row count, back to the transcript's last START token or to an id that is no class. A row is
in a loop if it ends in `TIMES` repeats of a phrase of up to `LONGEST` tokens, `SHORTEST` tokens or more in total (people say
"no no no", too). The loop is ended after `ENDLESS_TIMES` repeats and `ENDLESS` tokens. There a share of `ENDLESS_OTHERS` of the
tokens may differ, since a beam would otherwise find variants around the rule.
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
    """Return whether a row is in a loop, bool `[B]`; in rows with a long loop set all scores except those of `ends` to -inf.

    Args:
        scores: float32 `[B, C]`, contiguous, changed in place.
        input_ids: int64 `[B, L]`, contiguous: the tokens so far.
        roles: int8 `[C']`, what classes are (see `Roles`).
        rows: bool `[B]`, those whose scores may be changed.
        ends: int64 `[E]`, classes that end a transcript; a row in which all of them are -inf isn't changed.
        engine: "auto", "reference", "cpu" or "gpu".

    Raises:
        IndexError: an end isn't a class (checked on the CPU only).
    """
    # Only torch.compile needs the operator; the direct call is faster.
    run = torch.ops.hf_ngpulm.end_loops if torch.compiler.is_compiling() else _run
    return run(scores, input_ids, roles, rows, ends, engine)


def _run(scores: Tensor, input_ids: Tensor, roles: Tensor, rows: Tensor, ends: Tensor, engine: str) -> Tensor:
    return load_engine(__package__, engine, scores.device).end_loops(scores, input_ids, roles, rows, ends)


define_operator(
    "end_loops(Tensor(a!) scores, Tensor input_ids, Tensor roles, Tensor rows, Tensor ends, str engine) -> Tensor", _run,
    lambda scores, input_ids, roles, rows, *rest: torch.empty_like(rows),
)  # fmt: skip
