"""The reference against the definition, and the engines against the reference."""

import copy
import pickle

import numpy as np
import pytest
import torch
from automata import (
    PADDED_ROWS,
    answers,
    as_dictionaries,
    assert_same_answers,
    automata,
    batches,
    build_automaton,
    language_models,
    last_two_tokens,
    packed_automaton,
    step_by_hand,
    tolerance,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from hf_ngpulm import NGramLM
from hf_ngpulm.engines import threads

QUERIES = {
    "scores": lambda automaton, states: automaton.scores(states),
    "advance": lambda automaton, states: automaton.advance(states),
    "step": lambda automaton, states: automaton.step(states, torch.zeros_like(states)),
    "final_scores": lambda automaton, states: automaton.final_scores(states),
}


def random_automaton(vocab_size, depth, dense_root, seed=0):
    """A chain of contexts, each with a few arcs and `</s>`, over a root with all arcs or few."""
    rng = np.random.default_rng(seed)
    arcs = []
    for state in range(depth + 1):
        tokens = np.arange(vocab_size) if state == 0 and dense_root else rng.permutation(vocab_size)[:3]
        targets = rng.integers(0, depth + 1, len(tokens) + 1)
        row = dict(zip(tokens.tolist(), zip(rng.standard_normal(len(tokens)).tolist(), targets.tolist())))
        arcs.append(row | {vocab_size: (-1.5, int(targets[-1]))})
    backoff_states = [max(state - 1, 0) for state in range(depth + 1)]
    return build_automaton(vocab_size, arcs, backoff_states, rng.standard_normal(depth + 1).tolist())


@given(st.data())
@settings(max_examples=examples(60), deadline=None)
def test_reference_is_the_definition(data):
    automaton = data.draw(automata())
    batch = data.draw(batches(automaton))
    found = answers(automaton, batch, "reference")
    states, vocab_size = as_dictionaries(automaton), automaton.vocab_size

    def table(rows):
        scores, next_states = zip(*rows) if rows else ((), ())
        return torch.tensor(scores, dtype=torch.float32), torch.tensor(next_states, dtype=torch.int32)

    expected = {}
    everything = [step_by_hand(states, s, v, vocab_size) for s in batch.states.tolist() for v in range(vocab_size)]
    scores, next_states = table(everything)
    expected["scores"] = expected["advance scores"] = scores.reshape(-1, vocab_size)
    expected["advance states"] = next_states.reshape(-1, vocab_size)
    pairs = zip(batch.states.tolist(), batch.tokens.tolist())
    expected["step scores"], expected["step states"] = table([step_by_hand(states, *pair, vocab_size) for pair in pairs])
    ends = [step_by_hand(states, state, vocab_size, vocab_size + 1) for state in batch.states.tolist()]
    expected["final_scores"] = table(ends)[0]

    size, longest = batch.token_ids.shape
    which = [0] * size if batch.which is None else batch.which.tolist()
    current = [(automaton.starts if batch.bos else automaton.roots).tolist()[number] for number in which]
    lengths = [longest] * size if batch.lengths is None else batch.lengths.tolist()
    walked = torch.zeros(size, longest, dtype=torch.float64)
    for row in range(size):
        for position, token in enumerate(batch.token_ids[row, : max(lengths[row], 0)].tolist()):
            walked[row, position], current[row] = step_by_hand(states, current[row], token, vocab_size)
    final = [step_by_hand(states, state, vocab_size, vocab_size + 1)[0] for state in current]
    expected["score_tokens"] = walked.to(torch.float32)
    expected["score_tokens states"] = torch.tensor(current, dtype=torch.int32)
    expected["score_sequences without </s>"] = walked.sum(1).to(torch.float32)
    expected["score_sequences"] = (walked.sum(1) + torch.tensor(final, dtype=torch.float64)).to(torch.float32)

    assert expected.keys() == found.keys()
    assert_same_answers(expected, found, automaton)


@given(st.data())
@settings(max_examples=examples(150), deadline=None)
def test_cpu_agrees_with_the_reference(data):
    automaton = data.draw(automata())
    batch = data.draw(batches(automaton))
    assert_same_answers(answers(automaton, batch, "reference"), answers(automaton, batch, "cpu"), automaton)


@given(st.data())
@settings(max_examples=examples(150), deadline=None)
def test_the_last_tokens_decide_the_state_of_a_language_model(data):
    """`states_after` of an engine begins near the end; the reference reads everything, as `score_tokens` does."""
    automaton = data.draw(language_models())
    automaton.validate()
    batch = data.draw(batches(automaton, longest=12))
    states = {}
    for engine in ("reference", "cpu"):
        automaton.engine = engine
        states[engine] = automaton.states_after(batch.token_ids, batch.lengths, batch.bos, batch.which)
        walked = automaton.score_tokens(batch.token_ids, batch.lengths, batch.bos, batch.which)[1]
        torch.testing.assert_close(states[engine], walked, rtol=0, atol=0)
    torch.testing.assert_close(states["cpu"], states["reference"], rtol=0, atol=0)


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_language_models_have_the_same_answers_on_all_engines(data):
    automaton = data.draw(language_models())
    batch = data.draw(batches(automaton))
    assert_same_answers(answers(automaton, batch, "reference"), answers(automaton, batch, "cpu"), automaton)


@pytest.mark.parametrize("dense_root", [True, False])
@pytest.mark.parametrize("depth", [0, 1, 15, 16, 17, 31, 32, 33, 100])
def test_chains_of_any_depth(depth, dense_root):
    automaton = random_automaton(7, depth, dense_root)
    states = torch.arange(automaton.num_states, dtype=torch.int32)
    automaton.engine = "reference"
    expected = automaton.advance(states)
    automaton.engine = "cpu"
    for _ in range(2):
        found = automaton.advance(states)
        torch.testing.assert_close(found[0], expected[0], **tolerance(automaton))
        assert torch.equal(found[1], expected[1])
        torch.testing.assert_close(automaton.scores(states), expected[0], **tolerance(automaton))


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_states_after_looks_past_ids_outside_the_vocabulary(engine):
    automaton = last_two_tokens()
    automaton.engine = engine
    token_ids = torch.tensor([row for row, _, _ in PADDED_ROWS])
    assert automaton.states_after(token_ids).tolist() == [state for _, state, _ in PADDED_ROWS]
    assert automaton.states_after(token_ids, bos=False).tolist() == [state for _, _, state in PADDED_ROWS]


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_an_automaton_without_arcs(engine):
    automaton = build_automaton(2, [{}, {}], [0, 0], [-1.0, -0.5])
    automaton.engine = engine
    scores, next_states = automaton.advance(torch.tensor([0, 1]))
    assert scores.tolist() == [[-1.0, -1.0], [-1.5, -1.5]]
    assert next_states.tolist() == [[0, 0], [0, 0]]
    assert automaton.score_sequences(torch.tensor([[1, 0], [2, -1]])).tolist() == [-3.0, -1.0]


@pytest.mark.parametrize("vocab_size", [2**15 - 1, 2**15, 40_000])
@pytest.mark.parametrize("dense_root", [True, False])
def test_vocabularies_around_the_limit_of_int16(vocab_size, dense_root):
    automaton = random_automaton(vocab_size, 3, dense_root)
    automaton.validate()
    assert automaton.arc_tokens.dtype == (torch.int16 if vocab_size < 2**15 else torch.int32)
    states = torch.arange(4)
    tokens = torch.tensor([0, vocab_size - 1, vocab_size, 2**15 - 1])
    token_ids = torch.stack([automaton.arc_tokens[-9:].to(torch.int64), torch.arange(9) + vocab_size - 9])
    expected, found = {}, {}
    for engine, results in (("reference", expected), ("cpu", found)):
        automaton.engine = engine
        results["scores"] = automaton.scores(states)
        results["advance scores"], results["advance states"] = automaton.advance(states)
        results["step scores"], results["step states"] = automaton.step(states, tokens)
        results["walk scores"], results["walk states"] = automaton.score_tokens(token_ids)
        results["final scores"] = automaton.final_scores(states)
        automaton.states_after(token_ids)
    assert_same_answers(expected, found, automaton)


@pytest.mark.parametrize("engine", ["reference", "cpu"])
@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("state", [-1, 4, 2**31 - 1, 2**32, -(2**63)])
def test_states_outside_the_automaton_are_refused(engine, query, state):
    automaton = random_automaton(7, 3, True)
    automaton.engine = engine
    with pytest.raises(IndexError, match=r"0\.\.3"):
        QUERIES[query](automaton, torch.tensor([0, state, 1]))


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_rows_do_not_depend_on_their_batch(engine):
    automaton = random_automaton(70, 5, False)
    automaton.engine = engine
    states = torch.arange(6, dtype=torch.int32)
    scores, next_states = automaton.advance(states)
    for row in range(6):
        alone = automaton.advance(states[row : row + 1])
        assert torch.equal(alone[0][0], scores[row])
        assert torch.equal(alone[1][0], next_states[row])


def test_several_threads_give_the_same(monkeypatch):
    automaton = packed_automaton([random_automaton(70, 5, dense, seed) for seed, dense in enumerate([True, False])])
    automaton.engine = "cpu"
    generator = torch.Generator().manual_seed(0)
    states = torch.randint(0, automaton.num_states, (101,), generator=generator)
    token_ids = torch.randint(-1, 72, (101, 5), generator=generator)
    queries = [
        lambda: automaton.scores(states),
        lambda: torch.cat(automaton.advance(states)),
        lambda: torch.cat(automaton.step(states, token_ids[:, 0])),
        lambda: automaton.score_tokens(token_ids, which=states % 2)[0],
        lambda: automaton.states_after(token_ids, which=states % 2),
    ]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    expected = [query() for query in queries]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(threads, "ELEMENTS_PER_THREAD", 1)
    for query, values in zip(queries, expected):
        assert torch.equal(query(), values)
    states[90] = 1000
    with pytest.raises(IndexError, match="state 1000 in row 90"):
        automaton.scores(states)


def test_layouts_of_arguments_do_not_matter():
    """Slices and transposes give the same, and don't have the loops compiled anew."""
    automaton = random_automaton(70, 5, True)
    automaton.engine = "cpu"
    token_ids = torch.randint(0, 70, (6, 9), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    states, lengths = torch.arange(6, dtype=torch.int32), torch.tensor([9, 0, 3, 4, 5, 8], dtype=torch.int32)
    gaps = torch.stack([states, lengths], dim=1)

    def ask(states, token_ids, lengths):
        return [
            automaton.scores(states),
            *automaton.advance(states),
            *automaton.step(states, token_ids[:, 0]),
            *automaton.score_tokens(token_ids, lengths),
            automaton.states_after(token_ids, lengths),
        ]

    expected = ask(states, token_ids.contiguous(), lengths)
    for layout in (token_ids.t().contiguous().t(), token_ids.repeat_interleave(2, dim=1)[:, ::2]):
        for found, values in zip(ask(gaps[:, 0], layout, gaps[:, 1]), expected):
            assert torch.equal(found, values)


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_the_default_device_does_not_matter(engine):
    automaton = random_automaton(7, 2, True)
    automaton.engine = engine
    states = torch.arange(3)
    expected = automaton.advance(states)
    token_ids = states[:, None]
    with torch.device("meta"):
        found = automaton.advance(states)
        results = [
            automaton.scores(states),
            *automaton.step(states, states),
            *automaton.score_tokens(token_ids),
            automaton.states_after(token_ids),
            automaton.final_scores(states),
        ]
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    assert all(result.device.type == "cpu" for result in results)


def test_queries_leave_models_that_can_be_copied_and_pickled():
    """What queries keep with the tensors stays behind, and is made anew for other tensors."""
    lm = NGramLM.train([[0, 1, 2, 1]] * 3, vocab_size=3, order=2)
    states = lm.initial_states(2)
    expected = lm.scores(states)
    for other in (copy.deepcopy(lm), pickle.loads(pickle.dumps(lm))):
        assert torch.equal(other.scores(states), expected)
    lm.tensors.arc_weights.sub_(1.0)  # in place
    assert not torch.equal(lm.scores(states), expected)
    assert torch.equal(other.scores(states), expected)
