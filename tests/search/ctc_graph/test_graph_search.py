"""Token passing: the reference finds what trying all alignments finds, and the engines find what the reference finds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import groupby, product

import numpy as np
import pytest
import torch
from automata import as_dictionaries, automata, build_automaton, language_models, packed_automaton, seeds, step_by_hand
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from property_examples import examples
from torch import Tensor
from toys import SHARES, moved, noises

from hf_ngpulm.automaton import BackoffAutomaton
from hf_ngpulm.decoding.options import GraphOptions
from hf_ngpulm.phrases.automaton import Spellings, phrase_automaton
from hf_ngpulm.search import ctc_graph as graph

RELAXED = settings(deadline=None, suppress_health_check=list(HealthCheck))


@dataclass(frozen=True)
class Problem:
    automaton: BackoffAutomaton
    state: graph.GraphState
    logits: Tensor
    lengths: Tensor
    weights: Tensor
    bonuses: Tensor
    blank: int
    threshold: float = math.inf
    skip: float = math.inf

    def of(self, row: int) -> Problem:
        """One row alone, without padding."""
        rows = slice(row, row + 1)
        return replace(
            self,
            state=graph.GraphState(*(part[rows] for part in self.state)),
            logits=self.logits[rows, : int(self.lengths[row])],
            lengths=self.lengths[rows],
            weights=self.weights[rows],
            bonuses=self.bonuses[rows],
        )


def search(problem: Problem, engine: str) -> tuple[graph.GraphState, graph.GraphFrames]:
    p = problem
    before = [part.clone() for part in p.state]
    rules = graph.GraphRules(p.weights, p.bonuses, p.blank, p.automaton.vocab_size, p.threshold, p.skip)
    found = graph.graph_search(p.automaton.tensors, p.state, p.logits, p.lengths, rules, engine)
    assert all(torch.equal(old, part) for old, part in zip(before, p.state))
    return found


def traced(frames: graph.GraphFrames, row: int, place: int) -> list[int]:
    """A hypothesis's label at each frame: a token where it begins, INSIDE or BLANK."""
    found = []
    for frame in reversed(range(frames.links.shape[1])):
        found.append(int(frames.labels[row, frame, place]))
        place = int(frames.links[row, frame, place])
    return found[::-1]


def hypotheses(
    state: graph.GraphState, frames: graph.GraphFrames
) -> list[dict[tuple[int, ...], tuple[list[int], list[float]]]]:
    """Labels and scores of each row's hypotheses by search state."""
    rows = []
    for row in range(len(state.scores)):
        found = {}
        for place in range(state.scores.shape[1]):
            if state.scores[row, place] > -math.inf:
                key = (*state.lm_states[row, place].tolist(), int(state.last_tokens[row, place]))
                assert key not in found
                scores = [float(getattr(state, name)[row, place]) for name in ("scores", "fused")]
                scores += state.lm_scores[row, place].tolist()
                found[key] = (traced(frames, row, place), scores)
        rows.append(found)
    return rows


def assert_same(found, expected):
    for ours, theirs in zip(hypotheses(*found), hypotheses(*expected), strict=True):
        assert ours.keys() == theirs.keys()
        for key, (labels, scores) in ours.items():
            assert labels == theirs[key][0]
            assert scores == pytest.approx(theirs[key][1], rel=1e-4, abs=3e-4)
    assert found[1].bad_frames.tolist() == expected[1].bad_frames.tolist()


def assume_no_ties(problem: Problem) -> None:
    """Scores that are so close that rounding orders them are no part of the definition: a little noise may change nothing."""
    noise = 2e-5 * torch.randn(problem.logits.shape, generator=torch.Generator().manual_seed(0))
    results = [
        hypotheses(*search(replace(problem, logits=problem.logits.float() + sign * noise), "reference")) for sign in (1, -1)
    ]
    for some, others in zip(*results, strict=True):
        assume(some.keys() == others.keys())
        assume(all(labels == others[key][0] for key, (labels, _) in some.items()))


@st.composite
def beside_phrases(draw, automaton: BackoffAutomaton, batch_size: int, generator) -> tuple[BackoffAutomaton, Tensor]:
    """An automaton with some of random phrases packed after it; and states of these, in which rows begin, `[B, 1]`."""
    packed = automaton
    firsts = []
    for _ in range(draw(st.integers(1, 2))):
        tokens = st.integers(0, automaton.vocab_size - 1)
        phrases = draw(st.lists(st.lists(tokens, min_size=1, max_size=4), max_size=6))
        length = sum(map(len, phrases))
        spellings = Spellings(
            np.array([token for phrase in phrases for token in phrase], dtype=np.int64),
            np.array([len(phrase) for phrase in phrases], dtype=np.int64),
            3 * torch.rand(length, generator=generator).double().numpy(),
            4 * torch.rand(len(phrases), generator=generator).double().numpy() - 1,
            torch.rand(len(phrases), generator=generator).numpy() < 0.5,
            np.zeros(len(phrases), dtype=bool),
        )
        begins_word = torch.rand(automaton.vocab_size, generator=generator).numpy() < 0.5
        of_phrases = phrase_automaton(spellings, automaton.vocab_size, begins_word)
        firsts.append((packed.num_states, of_phrases.num_states))
        packed = packed_automaton([packed, of_phrases])
    which = torch.randint(0, len(firsts), (batch_size,), generator=generator).tolist()
    states = [firsts[n][0] + int(torch.randint(0, firsts[n][1], (), generator=generator)) for n in which]
    return packed, torch.tensor(states, dtype=torch.int32)[:, None]


DTYPES = [torch.float32, torch.float16, torch.bfloat16]
KINDS = st.tuples(st.one_of(st.integers(1, 9), st.just(40)), st.sampled_from(DTYPES), st.booleans())


@st.composite
def problems(draw, longest=8, most_classes=20, most_rows=4, kinds=KINDS):
    """A batch of logits for a graph, alone or beside an automaton of phrases.

    Args:
        kinds: most hypotheses, type of the logits, whether there are phrases.
    """
    sizes = st.integers(1, most_classes)
    automaton = draw(st.one_of(automata(sizes, most=3), language_models(sizes)))
    for values in (automaton.arc_weights, automaton.backoff_weights):
        if values.numel():  # beside scores of thousands single precision knows no acoustic ones
            values.mul_(min(1.0, 20.0 / max(1.0, float(values.abs().max()))))
    generator = torch.Generator().manual_seed(draw(seeds))

    def uniform(low, high, *shape):
        return low + (high - low) * torch.rand(shape, generator=generator)

    batch_size, frames = draw(st.integers(1, most_rows)), draw(st.integers(1, longest))
    classes = draw(st.one_of(st.just(automaton.vocab_size + 1), st.integers(2, most_classes)))
    blank = draw(st.sampled_from([0, classes // 2, classes - 1]))
    logits = 3 * torch.randn(batch_size, frames, classes, generator=generator)
    logits[..., blank] += draw(st.sampled_from([-3.0, 1.0, 4.0, 8.0])) * (uniform(0, 1, batch_size, frames) < 0.7)
    if draw(st.booleans()):  # some classes can't be
        logits = torch.where(torch.rand(logits.shape, generator=generator) < 0.2, -torch.inf, logits)
        if draw(st.booleans()):
            logits[..., blank] = logits[..., blank].clamp(min=-9.0)
    lengths = torch.randint(max(frames - 4, 0), frames + 1, (batch_size,), dtype=torch.int32, generator=generator)
    bad = draw(st.sampled_from([None, None, None, None, torch.nan, torch.inf, -torch.inf]))
    if bad is not None:
        logits[0, draw(st.integers(frames // 2, frames - 1)), slice(None) if bad < 0 else classes // 2] = bad
    if draw(st.booleans()):  # whatever is in the padding
        logits = logits.masked_fill((torch.arange(frames) >= lengths[:, None])[..., None], torch.nan)
    max_active, dtype, has_phrases = draw(kinds)
    logits = logits.to(dtype)
    if draw(st.booleans()):
        logits = logits.transpose(0, 1).contiguous().transpose(0, 1)
    states = torch.randint(0, automaton.num_states, (batch_size, 1), dtype=torch.int32, generator=generator)
    weights = uniform(-0.5, 1.5, batch_size, 1)
    if has_phrases:
        automaton, columns = draw(beside_phrases(automaton, batch_size, generator))
        states, weights = torch.cat([states, columns], 1), torch.cat([weights, uniform(-0.3, 1.5, batch_size, 1)], 1)
    return Problem(
        automaton,
        graph.initial_state(max_active, states),
        logits,
        lengths,
        weights=weights,
        bonuses=uniform(-1, 2, batch_size, classes),
        blank=blank,
        threshold=draw(st.sampled_from([math.inf, math.inf, 8.0, 2.0, 0.1])),
        skip=draw(st.sampled_from([math.inf, math.inf, 0.9, 0.5])),
    )


def all_alignments(problem: Problem) -> dict[tuple[int, ...], tuple[float, tuple[int, ...]]]:
    """The best of all labellings of the one row for each search state: its score and its tokens."""
    p, automaton = problem, problem.automaton
    states = as_dictionaries(automaton)
    log_probs = torch.log_softmax(p.logits[0].double(), -1).tolist()
    best: dict[tuple[int, ...], tuple[float, tuple[int, ...]]] = {}
    classes = p.logits.shape[2]
    for path in product(range(classes), repeat=len(log_probs)):
        tokens = [label for label, _ in groupby(path) if label != p.blank]
        score, at = sum(x[label] for x, label in zip(log_probs, path)), p.state.lm_states[0, 0].tolist()
        for token in tokens:
            score += float(p.bonuses[0, token])
            if token < automaton.vocab_size:
                steps = [step_by_hand(states, state, token, automaton.vocab_size) for state in at]
                score += sum(weight * lm_score for weight, (lm_score, _) in zip(p.weights[0].tolist(), steps))
                at = [state for _, state in steps]
        key = (*at, path[-1] if path and path[-1] != p.blank else -1)
        if score > best.get(key, (-math.inf,))[0]:
            best[key] = (score, tuple(tokens))
    return best


@given(problems(longest=4, most_classes=4, most_rows=1))
@settings(RELAXED, max_examples=30)
def test_all_alignments_are_tried(problem):
    """Without a limit the search is exact: of each search state, and so of the whole, it finds the best alignment there is."""
    length = int(problem.lengths[0])
    problem = replace(
        problem,
        state=graph.initial_state(400, problem.state.lm_states[:, 0]),
        logits=torch.nan_to_num(problem.logits.float(), 0.0, 5.0, -9.0)[:, :length],
        threshold=math.inf,
        skip=math.inf,
    )
    assume_no_ties(problem)
    expected = all_alignments(problem)
    for engine in ("reference", "cpu"):
        found = hypotheses(*search(problem, engine))[0]
        assert found.keys() == expected.keys()
        for key, (labels, scores) in found.items():
            assert scores[0] == pytest.approx(expected[key][0], rel=1e-4, abs=3e-4)
            assert tuple(label for label in labels if label >= 0) == expected[key][1]


@given(problems())
@settings(RELAXED, max_examples=examples(80))
def test_cpu_equals_the_reference(problem):
    assume_no_ties(problem)
    assert_same(search(problem, "cpu"), search(problem, "reference"))


@st.composite
def tied_problems(draw, longest=7):
    """Whole numbers as logits, an LM that gives many tokens the same score, and noise that leaves the same what is the same."""
    classes = draw(st.integers(2, 6))
    generator = torch.Generator().manual_seed(draw(seeds))
    size = draw(st.integers(1, 2)), draw(st.integers(1, longest))
    arcs = [{token: (-1.37, token % 3) for token in range(classes)}, {0: (-0.61, 0)}, {1: (-0.61, 2)}]
    problem = Problem(
        build_automaton(classes, arcs, [0, 0, 0], [0.0, -0.83, -0.83]),
        graph.initial_state(draw(st.integers(1, 6)), torch.zeros((size[0], 1), dtype=torch.int32)),
        torch.randint(-1, 2, (*size, classes), generator=generator).float(),
        torch.full(size[:1], size[1], dtype=torch.int32),
        weights=torch.full((size[0], 1), 0.71),
        bonuses=torch.full((size[0], classes), 0.43),
        blank=draw(st.sampled_from([0, classes // 2, classes - 1])),
        threshold=draw(st.sampled_from([math.inf, math.inf, 2.03])),
    )
    return problem, noises(size, generator), 0.1 * torch.rand(size, generator=generator)


@given(tied_problems())
@settings(RELAXED, max_examples=60)
def test_ties_are_those_of_the_reference(tied):
    problem, moves, of_blank = tied
    several = [replace(problem, logits=moved(problem.logits, share * moves)) for share in SHARES]
    for each in several:  # else tokens could begin a frame later for the same score, but for rounding
        each.logits[..., problem.blank] += of_blank
    found = [search(each, "reference") for each in several]
    labels = [[{key: labels for key, (labels, _) in row.items()} for row in hypotheses(*each)] for each in found]
    assume(all(other == labels[0] for other in labels))  # no tie of rounding alone
    assert_same(search(several[0], "cpu"), found[0])


@given(problems(), st.data())
@settings(RELAXED, max_examples=30)
def test_cutting_the_frames_in_two_changes_nothing(problem, data):
    assume_no_ties(problem)
    engines = data.draw(st.sampled_from([("cpu", "cpu"), ("reference", "cpu"), ("cpu", "reference")]))
    cut_and_whole(problem, data.draw(st.integers(0, problem.logits.shape[1])), engines)


def cut_and_whole(problem: Problem, cut: int, engines: tuple[str, str]) -> None:
    first_lengths = problem.lengths.clamp(max=cut)
    state, before = search(replace(problem, logits=problem.logits[:, :cut], lengths=first_lengths), engines[0])
    lengths = torch.where(before.bad_frames < 0, problem.lengths - first_lengths, 0).to(torch.int32)
    state, after = search(replace(problem, logits=problem.logits[:, cut:], lengths=lengths, state=state), engines[1])
    later = torch.where(after.bad_frames < 0, -1, after.bad_frames + cut)
    frames = graph.GraphFrames(
        torch.cat([before.links, after.links], dim=1),
        torch.cat([before.labels, after.labels], dim=1),
        torch.where(before.bad_frames < 0, later, before.bad_frames).to(torch.int32),
    )
    assert_same((state, frames), search(problem, "reference"))


@given(problems(longest=5, most_classes=9), st.data())
@settings(RELAXED, max_examples=20)
def test_a_row_does_not_depend_on_its_batch(problem, data):
    row = data.draw(st.integers(0, len(problem.lengths) - 1))
    engine = data.draw(st.sampled_from(["reference", "cpu"]))
    (alone,), whole = hypotheses(*search(problem.of(row), engine)), hypotheses(*search(problem, engine))[row]
    cut = int(problem.lengths[row])
    assert alone == {key: (labels[:cut], scores) for key, (labels, scores) in whole.items()}


def some_problem(max_active: int, frames: int) -> Problem:
    """Contexts of one and two tokens, and hypotheses that meet in them."""
    arcs = [{t: (-0.3 * t - state, (t + state) % 3) for t in range(state, 5, 2)} for state in range(3)]
    automaton = build_automaton(5, arcs, [0, 0, 1], [-2.0, -1.0, -0.5])
    logits = 2 * torch.randn(2, frames, 7, generator=torch.Generator().manual_seed(0))
    return Problem(
        automaton, graph.initial_state(max_active, torch.tensor([[0], [2]], dtype=torch.int32)), logits,
        torch.full((2,), frames, dtype=torch.int32), torch.tensor([[0.5], [1.0]]), torch.ones(2, 7), blank=6,
    )  # fmt: skip


def test_other_devices(monkeypatch):
    """There is no engine for GPUs; if the environment names it, the CPU's is taken."""
    problem = some_problem(max_active=5, frames=4)
    expected = search(problem, "reference")
    for engine in ("gpu", "reference", "cpu"):
        monkeypatch.setenv("HF_NGPULM_ENGINE", engine)
        assert_same(search(problem, "auto"), expected)
    for refused in (lambda: search(problem, "gpu"), lambda: GraphOptions(engine="gpu")):
        with pytest.raises(
            ValueError, match="engine='gpu': graph searches run on the CPU, wherever the logits are; pass 'auto'"
        ):
            refused()


@pytest.mark.parametrize("name, value", [("lm_states", 2), ("lm_states", -1), ("last_tokens", 3), ("last_tokens", -2)])
def test_hypotheses_that_name_what_there_is_not_are_refused(name, value):
    automaton = build_automaton(2, [{0: (-1.0, 1)}, {}], [0, 0], [0.0, 0.0])
    state = graph.initial_state(2, torch.zeros((2, 1), dtype=torch.int32))
    values = getattr(state, name).clone()
    values[1, 0] = value
    rows = torch.zeros(2, 4, 3), torch.full((2,), 4, dtype=torch.int32)
    rules = graph.GraphRules(torch.ones(2, 1), torch.zeros(2, 3), 2, 2)
    with pytest.raises(IndexError, match="hypotheses of row 1 name states or tokens that don't exist"):
        graph.graph_search(automaton.tensors, state._replace(**{name: values}), *rows, rules, engine="cpu")
