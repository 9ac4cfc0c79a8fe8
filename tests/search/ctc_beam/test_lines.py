"""Lines of LM scores that a kernel gives to prefixes."""

from __future__ import annotations

import pytest
import torch
from automata import build_automaton
from interpreted import needs_interpreter

triton = pytest.importorskip("triton")
tl = triton.language

from hf_ngpulm.search.ctc_beam.gpu import lines_of  # noqa: E402

pytestmark = needs_interpreter


@triton.jit
def lines_kernel(
    arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights, lm_states, prefixes,
    line_states, line_peaks, line_scores, line_targets, weights, found, PLACES: tl.constexpr,
):  # fmt: skip
    places = tl.arange(0, PLACES)
    lines, next_line, _ = lines_of(
        arc_offsets, arc_tokens, arc_weights, arc_targets, backoff_states, backoff_weights,
        lm_states, places < prefixes, places * 0 - 1, 0, line_states, line_peaks, line_scores, line_targets,
        weights, 2, 2, 2, 1, PLACES, 16,
    )  # fmt: skip
    tl.store(found + places, lines)
    tl.store(found + PLACES, next_line)


@pytest.mark.parametrize(
    "held, lines, next_line",
    [([-1, 2, 1, 0], [1, 2, 1, -1], 0), ([-1, 2, -1, 0], [1, 0, 1, -1], 1), ([-1, -1, -1, 0], [0, 1, 0, -1], 2)],
    ids=["all are held", "one is missing", "all are missing"],
)
def test_where_free_lines_are_looked_for_goes_on_by_those_that_are_taken(held, lines, next_line):
    automaton = build_automaton(2, [{0: (-1.0, 1), 1: (-2.0, 2)}, {}, {}], [0, 0, 0], [0.0, -1.0, -1.5])
    line_states = torch.tensor([*held, -1, -1, -1, -1], dtype=torch.int32)  # of twice as many lines as places
    scores, targets = torch.zeros(8, 2), torch.zeros(8, 2, dtype=torch.int32)
    found = torch.zeros(5, dtype=torch.int32)
    states = torch.tensor([2, 1, 2, 0], dtype=torch.int32)
    lines_kernel[(1,)](
        *automaton.tensors, states, 3, line_states, torch.zeros(8), scores, targets, torch.ones(1), found, PLACES=4
    )
    assert found.tolist() == [*lines, next_line]
    assert [int(line_states[line]) for line in lines[:3]] == [2, 1, 2]
