"""Detect and end loops in transcripts. A row is in a loop if it ends in several repeats of a phrase.

Attention decoders sometimes fall into loops. A language model must not prolong a loop or cause an endless loop. So while a row
is in a loop, only the model's scores count. Some models never leave a loop. So after a long loop only the classes that end the
transcript stay possible, with the model's own scores.

Only the last `WINDOW` tokens of a row count. Tokens before the row's last START token, or before the last id that isn't a
class, don't count. A row is in a loop if it ends in `TIMES` repeats of a phrase of up to `LONGEST` tokens. The repeats must
have at least `SHORTEST` tokens in total, because people also say "no no no". The loop is ended after `ENDLESS_TIMES` repeats
with at least `ENDLESS` tokens in total. A share of `ENDLESS_OTHERS` of the repeated tokens may differ, because otherwise a beam
search would evade the rule with variants of the phrase.
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
    """Return whether each row is in a loop, bool `[B]`. In rows with a long loop, set the scores of all classes that aren't in
    `ends` to -inf.

    Args:
        scores: float32 `[B, C]`, contiguous, changed in place.
        input_ids: int64 `[B, L]`, contiguous: the tokens so far.
        roles: int8 `[C']`, roles of the classes (see `Roles`).
        rows: bool `[B]`, whether a row's scores may be changed.
        ends: int64 `[E]`, the classes that end a transcript. A row in which all of these classes score -inf isn't changed.
        engine: "auto", "reference", "cpu" or "gpu".

    Raises:
        IndexError: an id in `ends` isn't a class (only the CPU engine checks this).
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
