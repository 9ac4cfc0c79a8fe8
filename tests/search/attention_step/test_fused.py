"""A step of attention decoding: every engine adds what the plain reference adds."""

from __future__ import annotations

import pytest
import torch
from automata import language_models, seeds, tolerance
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from property_examples import examples

from hf_ngpulm import NGramLM
from hf_ngpulm.search import attention_step as fused
from hf_ngpulm.search.attention_step import END, HOLD, START, TEXT, UNSCORED, FusedRows, Roles

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RELAXED = settings(deadline=None, suppress_health_check=list(HealthCheck))


def added(scores, input_ids, rows, roles, shared, engine):
    if engine == "gpu":
        pytest.importorskip("triton")  # there is none but on Linux
        rows = FusedRows(*(moved(part) for part in rows))
        roles, scores, input_ids = moved(roles), moved(scores), moved(input_ids)
    scores = scores.clone()
    fused.fuse(scores, input_ids, rows, roles, shared, engine)
    return scores.cpu()


def moved(part):
    if isinstance(part, torch.Tensor):
        return part.to(DEVICE)
    return type(part)(*map(moved, part)) if isinstance(part, tuple) else part


@st.composite
def problems(draw, sizes=None, longest=9, most_rows=4):
    """An automaton (or a pack), what each class is, and a batch of scores: all arguments of `added` but the engine."""
    lm = draw(language_models(sizes))
    generator = torch.Generator().manual_seed(draw(seeds))

    def integers(low, high, *shape):
        return torch.randint(low, high, shape, generator=generator)

    batch_size, length = draw(st.integers(1, most_rows)), draw(st.integers(0, longest))
    classes = lm.vocab_size + draw(st.sampled_from([0, 0, 1, 3, 9]))
    roles = torch.where(torch.rand(classes, generator=generator) < 0.8, TEXT, integers(0, 3, classes))
    roles[lm.vocab_size :] = torch.where(roles[lm.vocab_size :] == TEXT, UNSCORED, roles[lm.vocab_size :])
    for mark in draw(st.sampled_from([(), (START,), (START, HOLD)])):
        marked = (roles != TEXT) & (roles < START) & (torch.rand(classes, generator=generator) < 0.5)
        roles = torch.where(marked, roles + mark, roles)
    scores = draw(st.sampled_from([1.0, 4.0, 30.0])) * torch.randn(batch_size, classes, generator=generator)
    impossible = torch.rand(scores.shape, generator=generator) < draw(st.sampled_from([0.0, 0.2, 0.9, 1.0]))
    scores = torch.where(impossible, -torch.inf, scores)
    input_ids = integers(-1, classes + 1, batch_size, length)
    which = integers(0, lm.roots.numel(), batch_size)
    rows = FusedRows(
        lm.tensors,
        lm.vocab_size,
        lm.context_length,
        torch.where(torch.rand(batch_size, generator=generator) < 0.2, -1, lm.starts[which]),
        lm.roots[which],
        integers(-1, 4, batch_size) / 2,
    )
    return scores, input_ids, rows, Roles.of(roles.to(torch.int8)), draw(st.booleans()), lm


def check(problem, engine):
    *arguments, lm = problem
    expected = added(*arguments, "reference")
    atol = max(4 * tolerance(lm)["atol"], 1e-4)
    torch.testing.assert_close(added(*arguments, engine), expected, rtol=2e-5, atol=atol)


@given(problems())
@settings(RELAXED, max_examples=examples(200))
def test_cpu_equals_the_reference(problem):
    check(problem, "cpu")


@given(problems(st.integers(200, 3000)))
@settings(RELAXED, max_examples=examples(50))
def test_cpu_equals_the_reference_in_larger_vocabularies(problem):
    check(problem, "cpu")


@given(problems(longest=5, most_rows=3))
@settings(RELAXED, max_examples=30)
def test_gpu_equals_the_reference(problem):
    check(problem, "gpu")


@given(problems(st.integers(1000, 3000), longest=3, most_rows=2))
@settings(RELAXED, max_examples=5)
def test_gpu_equals_the_reference_in_vocabularies_of_several_tiles(problem):
    check(problem, "gpu")


@pytest.mark.parametrize("engine", ["reference", "cpu", "gpu"])
@given(problem=problems(longest=3))
@settings(RELAXED, max_examples=15)
def test_sums_can_be_kept(problem, engine):
    *(scores, input_ids, rows, roles, shared), _ = problem
    if engine == "gpu":
        pytest.importorskip("triton")
        scores, input_ids, rows, roles = map(moved, (scores, input_ids, rows, roles))
    plain, kept = scores.clone(), scores.clone()
    fused.fuse(plain, input_ids, rows, roles, shared, engine)
    fused.fuse(kept, input_ids, rows, roles, shared, engine, keeps_sums=True)
    sums, before = plain.logsumexp(1), scores.logsumexp(1)
    shift = torch.where((rows.starts < 0) | (rows.weights == 0) | (sums == -torch.inf), 0.0, sums - before)
    torch.testing.assert_close(kept, plain - shift[:, None], rtol=2e-5, atol=1e-4)
    torch.testing.assert_close(kept.logsumexp(1), before, rtol=1e-4, atol=1e-3)


def carried(scores, input_ids, rows, roles, shared, engine, known):
    """As `added`, the state being read off the first `known` tokens and carried along the others."""
    if engine == "gpu":
        pytest.importorskip("triton")
        rows = FusedRows(*(moved(part) for part in rows))
        roles, scores, input_ids = moved(roles), moved(scores), moved(input_ids)
    states = fused.read(input_ids[:, :known], rows, roles)
    for tokens in input_ids[:, known:].unbind(1):
        states = fused.follow(states, tokens.contiguous(), rows, roles, engine)
    scores = scores.clone()
    fused.fuse_at(scores, states, rows, roles, shared, engine)
    return scores.cpu()


def check_carried(problem, known, engine):
    *arguments, lm = problem
    expected = added(*arguments, "reference")
    atol = max(4 * tolerance(lm)["atol"], 1e-4)
    torch.testing.assert_close(carried(*arguments, engine, known), expected, rtol=2e-5, atol=atol)


@pytest.mark.parametrize("engine", ["reference", "cpu"])
@given(problem=problems(), known=st.integers(0, 9))
@settings(RELAXED, max_examples=examples(100))
def test_carried_states_are_those_read_off_the_tokens(problem, known, engine):
    check_carried(problem, known, engine)


@given(problem=problems(longest=5, most_rows=3), known=st.integers(0, 5))
@settings(RELAXED, max_examples=20)
def test_gpu_carries_states(problem, known):
    check_carried(problem, known, "gpu")


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_the_operators_are_what_they_say(engine):
    """`torch.compile` passes through them, and torch's own checks hold."""
    lm = NGramLM.train([[0, 1, 2, 3]] * 4, vocab_size=4, order=2)
    starts = lm.initial_states(3)
    roles = Roles.of(torch.tensor([TEXT, TEXT, TEXT, TEXT, UNSCORED + START, END], dtype=torch.int8))
    rows = FusedRows(lm.tensors, 4, lm.context_length, starts, torch.zeros_like(starts), torch.tensor([0.5, 1.0, 0.0]))
    scores, tokens = torch.randn(3, 6), torch.tensor([1, 4, 5])
    operators = torch.ops.hf_ngpulm
    torch.library.opcheck(operators.fuse_at.default, (scores, starts, *fused._flat(rows, roles), True, engine))
    torch.library.opcheck(operators.follow.default, (starts, tokens, *fused._flat(rows, roles), engine))

    @torch.compile(backend="eager", fullgraph=True)
    def step(scores, states, tokens):
        states = fused.follow(states, tokens, rows, roles, engine)
        fused.fuse_at(scores, states, rows, roles, True, engine)
        return states

    expected, found = scores.clone(), scores.clone()
    states = fused.follow(starts, tokens, rows, roles, engine)
    fused.fuse_at(expected, states, rows, roles, True, engine)
    assert torch.equal(step(found, starts, tokens), states) and torch.equal(found, expected)
    assert not torch.equal(found, scores)


def test_states_that_do_not_exist_are_refused():
    lm = NGramLM.train([[0, 1, 2], [2, 2, 1]], vocab_size=3, order=2)
    starts, weights = lm.starts[:1].to(torch.int32), torch.ones(1)
    rows = FusedRows(lm.tensors, 3, lm.context_length, starts, lm.roots[:1].to(torch.int32), weights)
    roles, none = Roles.of(torch.full((3,), TEXT, dtype=torch.int8)), torch.full((1,), lm.num_states, dtype=torch.int32)
    with pytest.raises(IndexError, match="no state"):
        fused.fuse_at(torch.zeros(1, 3), none, rows, roles, engine="cpu")
    with pytest.raises(IndexError, match="no state"):
        fused.follow(none, torch.zeros(1, dtype=torch.int64), rows, roles, engine="cpu")
    without_lm = rows._replace(starts=torch.full_like(starts, -1))
    fused.fuse_at(torch.zeros(1, 3), starts, without_lm, roles, engine="cpu")  # a carried state is enough


def test_states_that_do_not_exist_score_nan_on_a_gpu():
    """A kernel can't raise without waiting for it; it reads nothing that isn't there."""
    pytest.importorskip("triton")
    lm = NGramLM.train([[0, 1, 2], [2, 2, 1]], vocab_size=3, order=2)
    starts = lm.initial_states(3)
    rows = FusedRows(lm.tensors, 3, lm.context_length, starts, torch.zeros_like(starts), torch.tensor([1.0, 1.0, 0.5]))
    rows, roles = moved(rows), moved(Roles.of(torch.full((3,), TEXT, dtype=torch.int8)))
    for shared in (True, False):
        scores, states = moved(torch.zeros(3, 3)), moved(torch.tensor([0, lm.num_states, -1], dtype=torch.int32))
        fused.fuse_at(scores, states, rows, roles, shared, engine="gpu")
        assert scores.isnan().all(1).tolist() == [False, True, False] and not scores[2].any()
