"""Loops of transcripts: each engine says the same as the definition, and rules out the same."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from hf_ngpulm import NGramLM
from hf_ngpulm.search.attention_step import END, START, FusedRows, Roles, fuse, fuse_outside_loops
from hf_ngpulm.search.attention_step import TEXT as SCORED
from hf_ngpulm.search.attention_step.loops import LONGEST, WINDOW, end_loops

CLASSES, ENDS = 12, (10, 11)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@st.composite
def transcripts(draw):
    """A row that may be in a loop, with tokens of its own before it, and slips."""
    before = draw(st.lists(st.integers(1, 9), max_size=30))
    phrase = draw(st.lists(st.integers(1, 9), min_size=1, max_size=LONGEST + 2))
    said = (phrase * WINDOW)[: draw(st.integers(0, WINDOW + 30))]
    for place in draw(st.lists(st.integers(0, WINDOW + 29), max_size=3)):
        if place < len(said):
            said[place] = draw(st.integers(1, 9))
    return before + draw(st.sampled_from([[], [0], [-1], [CLASSES]])) + said


def batch(rows):
    longest = max(map(len, rows))
    return torch.tensor([[-1] * (longest - len(row)) + row for row in rows], dtype=torch.int64).reshape(len(rows), longest)


def ended(engine, ids, fused, ends=ENDS, impossible=False):
    roles = torch.full((CLASSES,), SCORED, dtype=torch.int8)
    roles[0] = START
    scores = torch.arange(len(ids) * CLASSES, dtype=torch.float32).reshape(len(ids), CLASSES)
    if impossible:
        scores[:, list(ends)] = -torch.inf
    if engine == "gpu":
        pytest.importorskip("triton")  # there is none but on Linux
    device = DEVICE if engine == "gpu" else "cpu"
    scores, ids, roles, fused = (tensor.to(device) for tensor in (scores, ids, roles, fused))
    begun = end_loops(scores, ids, roles, fused, torch.tensor(ends, dtype=torch.int64, device=device), engine)
    return begun.tolist(), scores.tolist()


def agree(engine, rows, impossible):
    ids, fused = batch(rows), torch.arange(len(rows)) % 3 != 1
    assert ended(engine, ids, fused, impossible=impossible) == ended("reference", ids, fused, impossible=impossible)


@given(st.lists(transcripts(), min_size=1, max_size=4), st.booleans())
@settings(deadline=None, max_examples=examples(300))
def test_the_core_agrees_with_the_definition(rows, impossible):
    agree("cpu", rows, impossible)


@given(st.lists(transcripts(), min_size=1, max_size=3), st.booleans())
@settings(deadline=None, max_examples=20)
def test_the_kernel_agrees_with_the_definition(rows, impossible):
    agree("gpu", rows, impossible)


@given(st.lists(transcripts(), min_size=1, max_size=4), st.data())
@settings(deadline=None, max_examples=examples(100))
def test_one_call_ends_loops_and_fuses_what_is_in_none(rows, data):
    ids, size = batch(rows), len(rows)
    lm = NGramLM.train([[1, 2, 3], [3, 2, 5, 1]], vocab_size=10, order=2)
    kinds = torch.full((CLASSES,), SCORED, dtype=torch.int8)
    kinds[0], kinds[10:] = START, END
    starts = torch.tensor(data.draw(st.lists(st.sampled_from([-1, int(lm.starts[0])]), min_size=size, max_size=size)))
    weights = torch.tensor(data.draw(st.lists(st.sampled_from([0.0, 0.5]), min_size=size, max_size=size)))
    lms = FusedRows(
        lm.tensors, 10, lm.context_length, starts.to(torch.int32), lm.roots[:1].repeat(size).to(torch.int32), weights
    )
    expected, ends = torch.randn(size, CLASSES), torch.tensor(ENDS)
    found = expected.clone()
    begun = end_loops(expected, ids, kinds, (lms.starts >= 0) & (weights != 0), ends, "reference")
    fuse(expected, ids, lms._replace(starts=lms.starts.masked_fill(begun, -1)), Roles.of(kinds), engine="reference")
    fuse_outside_loops(found, ids, lms, Roles.of(kinds), True, ends)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_one_call_refuses_ends_that_are_no_class():
    lm = NGramLM.train([[1, 2, 3]], vocab_size=10, order=2)
    one = torch.zeros(1, dtype=torch.int32)
    rows = FusedRows(lm.tensors, 10, lm.context_length, one, one, torch.ones(1))
    with pytest.raises(IndexError, match=r"an end among \[12\] is no class"):
        fuse_outside_loops(
            torch.zeros(1, CLASSES), torch.ones(1, 1).long(), rows, Roles.of(torch.ones(CLASSES).to(torch.int8)), True,
            torch.tensor([CLASSES]),
        )  # fmt: skip


def test_what_is_a_loop():
    often = [[1, 2, 3] * 3, [1, 2, 3] * 2 + [1, 2], [7] * 8, [7] * 7, [5, 6] * 4, [0, *[5, 6] * 4], [5, 6, 5, 0, 6, 5, 6, 5, 6]]
    begun, _ = ended("reference", batch(often), torch.ones(len(often), dtype=torch.bool))
    assert begun == [True, False, True, False, True, True, False]


def test_a_long_loop_is_left_nothing_but_its_end():
    ids = batch([[1, 2, 3, 4] * 6, [1, 2, 3, 4] * 5, [1, 2, 3, 4] * 3 + [9] + [2, 3, 4] + [1, 2, 3, 4] * 4])
    _, scores = ended("reference", ids, torch.ones(3, dtype=torch.bool))
    assert [score == -torch.inf for score in scores[0]] == [True] * 10 + [False] * 2
    assert -torch.inf not in scores[1]
    assert [score == -torch.inf for score in scores[2]] == [True] * 10 + [False] * 2  # one token in eight may be another
    _, scores = ended("reference", ids, torch.tensor([False, True, True]))
    assert -torch.inf not in scores[0]
    _, scores = ended("reference", ids, torch.ones(3, dtype=torch.bool), impossible=True)
    assert [score == -torch.inf for score in scores[0]] == [False] * 10 + [True] * 2


def test_no_tokens_yet():
    ids = torch.zeros((2, 0), dtype=torch.int64)
    for engine in ("reference", "cpu", "gpu"):
        assert ended(engine, ids, torch.ones(2, dtype=torch.bool))[0] == [False, False]


def test_an_end_that_is_no_class_is_refused():
    with pytest.raises(IndexError, match=f"none of {CLASSES} classes"):
        ended("cpu", batch([[1, 2]]), torch.ones(1, dtype=torch.bool), ends=(CLASSES,))
