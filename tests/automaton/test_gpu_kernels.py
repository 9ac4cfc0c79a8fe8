"""The Triton engine, on a GPU or else in `support/ptx`; and all Triton kernels compiled ahead of time."""

import pytest
import torch
from automata import (
    PADDED_ROWS,
    answers,
    assert_same_answers,
    automata,
    batches,
    build_automaton,
    language_models,
    last_two_tokens,
    tolerance,
)
from compile_ahead import compile_ahead
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def ask_both(automaton, batch):
    expected = answers(automaton, batch, "reference")
    return expected, answers(automaton.to(DEVICE), batch, "gpu"), automaton.to("cpu")


@given(st.data())
@FEW
def test_gpu_agrees_with_the_reference(data):
    automaton = data.draw(automata(st.one_of(st.integers(1, 8), st.integers(9, 70)), most=3))
    assert_same_answers(*ask_both(automaton, data.draw(batches(automaton, longest=4))))


@given(st.data())
@settings(FEW, max_examples=4)
def test_gpu_agrees_with_the_reference_in_vocabularies_of_several_tiles(data):
    automaton = data.draw(automata(st.integers(1000, 3000), most=2))
    assert_same_answers(*ask_both(automaton, data.draw(batches(automaton, longest=2))))


@given(st.data())
@FEW
def test_the_last_tokens_decide_the_state_of_a_language_model(data):
    automaton = data.draw(language_models())
    batch = data.draw(batches(automaton, longest=8))
    automaton.engine = "reference"
    expected = automaton.states_after(batch.token_ids, batch.lengths, batch.bos, batch.which)
    automaton.to(DEVICE).engine = "gpu"
    found = automaton.states_after(batch.token_ids, batch.lengths, batch.bos, batch.which)
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=0)


def test_states_after_looks_past_ids_outside_the_vocabulary():
    automaton = last_two_tokens().to(DEVICE)
    automaton.engine = "gpu"
    token_ids = torch.tensor([row for row, _, _ in PADDED_ROWS])
    assert automaton.states_after(token_ids).tolist() == [state for _, state, _ in PADDED_ROWS]
    assert automaton.states_after(token_ids, bos=False).tolist() == [state for _, _, state in PADDED_ROWS]


@pytest.mark.parametrize("dense_root", [True, False])
@pytest.mark.parametrize("vocab_size", [1023, 1024, 1025, 2**15 - 1, 2**15])
def test_edges_of_tiles(vocab_size, dense_root):
    """Arcs for the tokens next to every bound, in contexts with few arcs and with more than a block of them."""
    edges = {t for bound in (0, 1024, 2048, 16384, vocab_size) for t in range(bound - 2, bound + 2) if 0 <= t < vocab_size}
    tokens = [range(vocab_size) if dense_root else sorted(edges)[::2], sorted(edges), range(0, vocab_size, 7)]
    arcs = [{t: (-1.0 - t % 11 - 100 * state, (t + state) % 3) for t in tokens[state]} for state in range(3)]
    for state, row in enumerate(arcs):
        row[vocab_size] = (-0.5 - state, state)
    automaton = build_automaton(vocab_size, arcs, [0, 0, 1], [-0.5, -0.25, -0.125])
    states = torch.tensor([2, 0, 1])
    automaton.engine = "reference"
    expected, final = automaton.advance(states), automaton.final_scores(states)
    automaton.to(DEVICE).engine = "gpu"
    scores, next_states = automaton.advance(states)
    torch.testing.assert_close(scores.cpu(), expected[0], **tolerance(automaton.to("cpu")))
    assert torch.equal(next_states.cpu(), expected[1])
    automaton.to(DEVICE)
    assert torch.equal(automaton.scores(states), scores)
    torch.testing.assert_close(automaton.final_scores(states).cpu(), final)


@pytest.mark.parametrize("count", [1, 16, 17, 257])
def test_contexts_of_any_size_are_searched(count):
    """Every token, in a context of so many arcs and in the root that it backs off to."""
    vocab_size = 310
    some = sorted({(i * vocab_size) // count for i in range(count)})
    arcs = [{token: (-1.0 - token, 0) for token in some[::2]}]
    arcs.append({token: (-2.0 - token, token % 2) for token in some})
    automaton = build_automaton(vocab_size, arcs, [0, 0], [-0.5, -0.25])
    tokens = torch.arange(-1, vocab_size + 1).repeat(2)
    states = torch.tensor([0, 1]).repeat_interleave(vocab_size + 2)
    automaton.engine = "reference"
    expected = automaton.step(states, tokens)
    automaton.to(DEVICE).engine = "gpu"
    for found, want in zip(automaton.step(states, tokens), expected):
        assert torch.equal(found.cpu(), want)


@pytest.mark.parametrize("dense_root", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_chains_of_any_length_are_walked(dense_root):
    """Of long chains not all contexts are kept at once."""
    depth, vocab_size = 40, 50
    arcs = [{token: (-1.0, min(1, depth)) for token in (range(vocab_size) if dense_root else range(0, vocab_size, 3))}]
    arcs += [{token: (-2.0 - state, state) for token in (state % vocab_size, 7)} for state in range(1, depth + 1)]
    weights = [-0.5, *(-1 / 2**10 * state for state in range(1, depth + 1))]
    automaton = build_automaton(vocab_size, arcs, [0, *range(depth)], weights)
    states = torch.arange(depth + 1)
    automaton.engine = "reference"
    expected = automaton.advance(states)
    automaton.to(DEVICE).engine = "gpu"
    for found, want in zip(automaton.advance(states), expected):
        torch.testing.assert_close(found.cpu(), want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rows", [31, 32, 33, 70])
def test_rows_beyond_a_warp(rows):
    automaton = build_automaton(3, [{0: (-1.0, 1), 1: (-2.0, 2), 3: (-4.0, 0)}, {1: (-0.5, 2)}, {}], [0, 0, 1], [-3, -2, -1])
    generator = torch.Generator().manual_seed(rows)
    states = torch.randint(0, 3, (rows,), generator=generator)
    token_ids = torch.randint(-1, 5, (rows, 4), generator=generator)
    lengths = torch.randint(0, 5, (rows,), generator=generator)
    results = {}
    for engine, device in (("reference", "cpu"), ("gpu", DEVICE)):
        automaton.to(device).engine = engine
        results[engine] = (*automaton.step(states, token_ids[:, 0]), *automaton.score_tokens(token_ids, lengths))
    for found, expected in zip(results["gpu"], results["reference"]):
        assert torch.equal(found.cpu(), expected)


def test_states_outside_the_automaton_score_nan_and_stay():
    """A kernel can't raise without waiting for it: a wrong state shows in the scores."""
    automaton = build_automaton(3, [{0: (-1.0, 0)}], [0], [-2.0]).to(DEVICE)
    automaton.engine = "gpu"
    states = torch.tensor([-1, 0, 1, 2**40])
    scores, next_states = automaton.advance(states)
    assert torch.isnan(scores).all(dim=1).tolist() == [True, False, True, True]
    assert scores[1].tolist() == [-1.0, -2.0, -2.0]
    assert next_states.tolist() == [[-1] * 3, [0] * 3, [1] * 3, [2**31 - 1] * 3]
    assert torch.isnan(automaton.scores(states)).all(dim=1).tolist() == [True, False, True, True]
    scores, next_states = automaton.step(states, torch.zeros_like(states))
    assert torch.isnan(scores).tolist() == [True, False, True, True]
    assert next_states.tolist() == [-1, 0, 1, 2**31 - 1]
    assert torch.isnan(automaton.final_scores(states)).tolist() == [True, False, True, True]


@pytest.mark.slow  # the first signature of each: tests/test_tritons.py
@pytest.mark.parametrize(
    "module, kernels",
    [
        ("hf_ngpulm.automaton.gpu", ["_rows_kernel", "_states_after_kernel", "_step_kernel", "_walk_kernel"]),
        ("hf_ngpulm.search.ctc_greedy.gpu", ["_label_kernel"]),
        ("hf_ngpulm.search.ctc_beam.gpu", ["_search_kernel"]),
        ("hf_ngpulm.search.transducer_greedy.gpu", ["_window_kernel"]),
        ("hf_ngpulm.search.transducer_beam.gpu", ["_choose_kernel", "_extend_kernel"]),
        ("hf_ngpulm.search.attention_step.gpu", ["_add_kernel", "_follow_kernel", "_read_kernel"]),
    ],
)
def test_kernels_compile_ahead_of_time(module, kernels, tmp_path):
    """For sm_80 and sm_90, with 16- and 32-bit tokens, without a GPU."""
    printed = compile_ahead([module], tmp_path)
    assert printed.strip()
    compiled = [line for line in printed.splitlines() if not line.endswith(" ")]  # others than those of automata
    assert compiled == [f"{kernel} {token_type}" for kernel in kernels for token_type in ("*i16", "*i32")]
