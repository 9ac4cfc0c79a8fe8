"""CTC beam search with language models: every engine finds the prefixes that the plain reference finds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from automata import automata, build_automaton, language_models, seeds
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from interpreted import aligned
from property_examples import examples
from torch import Tensor
from toys import SHARES, moved, noises

from hf_ngpulm.automaton import BackoffAutomaton
from hf_ngpulm.search import ctc_beam as beam
from hf_ngpulm.text.hashing import hashes_of_pieces

DEVICE = {"cpu": "cpu", "gpu": "cuda" if torch.cuda.is_available() else "cpu"}
RELAXED = settings(deadline=None, suppress_health_check=list(HealthCheck))


@dataclass(frozen=True)
class Problem:
    automaton: BackoffAutomaton
    state: beam.BeamState
    logits: Tensor
    lengths: Tensor
    weights: Tensor
    bonuses: Tensor
    unscored: Tensor
    blank: int
    threshold: float = math.inf
    skip: float = math.inf
    text_hashes: Tensor | None = None


@contextmanager
def blocks(engine: str, small: bool = True) -> Iterator[None]:
    """Have the GPU look at two classes at a time."""
    with pytest.MonkeyPatch.context() as patch:
        if engine == "gpu":
            gpu = pytest.importorskip("hf_ngpulm.search.ctc_beam.gpu")  # there is no Triton but on Linux
            if small:
                patch.setattr(gpu, "TILE", 1)
                patch.setattr(gpu, "SMALLEST_BLOCK", 2)
        yield


def search(problem: Problem, engine: str, in_small_blocks: bool = False) -> tuple[beam.BeamState, beam.BeamFrames]:
    """Search. On the GPU three beams look at two classes at a time, whatever is asked for."""
    device = DEVICE.get(engine, "cpu")
    p = problem
    with blocks(engine, in_small_blocks or p.state.sizes.shape[1] == 3):
        state, frames = beam.ctc_beam(
            [tensor.to(device) for tensor in p.automaton.tensors],
            beam.BeamState(*(tensor.to(device) for tensor in p.state)),
            p.logits.to(device),
            p.lengths.to(device),
            beam.BeamRules(
                *(tensor.to(device) for tensor in (p.weights, p.bonuses, p.unscored)), p.blank, p.automaton.vocab_size,
                p.threshold, p.skip, None if p.text_hashes is None else p.text_hashes.to(device),
            ),
            engine,
        )  # fmt: skip
    return beam.BeamState(*(tensor.cpu() for tensor in state)), beam.BeamFrames(*(tensor.cpu() for tensor in frames))


def search_in_two(problem: Problem, frames_before: int, engines: tuple[str, str]) -> tuple[beam.BeamState, beam.BeamFrames]:
    first_lengths = problem.lengths.clamp(max=frames_before)
    first = replace(problem, logits=problem.logits[:, :frames_before], lengths=first_lengths)
    state, first_frames = search(first, engines[0])
    lengths = torch.where(first_frames.bad_frames < 0, problem.lengths - first_lengths, 0)
    rest = replace(problem, logits=aligned(problem.logits[:, frames_before:]), lengths=lengths.to(torch.int32), state=state)
    state, frames = search(rest, engines[1])
    later = torch.where(frames.bad_frames < 0, -1, frames.bad_frames + frames_before)
    return state, beam.BeamFrames(
        torch.cat([first_frames.links, frames.links], dim=1),
        torch.cat([first_frames.labels, frames.labels], dim=1),
        torch.where(first_frames.bad_frames < 0, later, first_frames.bad_frames).to(torch.int32),
    )


def traced(frames: beam.BeamFrames, row: int, place: int) -> list[tuple[int, int]]:
    """Tokens of the prefix in a place, each with the frame of its first label, and the frames of other labels than blanks."""
    found = []
    for frame in reversed(range(frames.links.shape[1])):
        label = int(frames.labels[row, frame, place])
        if label != beam.BLANK:
            found.append((frame, label))
        place = int(frames.links[row, frame, place])
    return found[::-1]


@dataclass
class Prefix:
    labels: list[tuple[int, int]]
    states: list[int]
    scores: list[float]


def prefixes(state: beam.BeamState, frames: beam.BeamFrames) -> list[dict[tuple[int, int, int], Prefix]]:
    """The beam of each row by length, last token and hash, whatever the order of the places."""
    rows = []
    for row in range(len(state.offsets)):
        found = {}
        for place in range(state.sizes.shape[1]):
            parts = torch.stack([state.blank_scores[row, place], state.token_scores[row, place]])
            if parts.max() == -math.inf:
                continue
            total = float(torch.logsumexp(parts.double(), 0) + state.offsets[row] + state.fused[row, place])
            scores = [total, float(state.fused[row, place]), *state.lm_scores[row, place].tolist()]
            scores += [max(float(part + state.offsets[row]), -1e4) for part in parts]
            labels = traced(frames, row, place)
            key = tuple(int(values[row, place]) for values in (state.sizes, state.last_tokens, state.hashes))
            assert key not in found
            found[key] = Prefix(labels, state.lm_states[row, place].tolist(), scores)
        rows.append(found)
    return rows


def assert_same(found, expected):
    for ours, theirs in zip(prefixes(*found), prefixes(*expected), strict=True):
        assert ours.keys() == theirs.keys()
        for key, prefix in ours.items():
            assert prefix.labels == theirs[key].labels
            assert prefix.states == theirs[key].states
            torch.testing.assert_close(torch.tensor(prefix.scores), torch.tensor(theirs[key].scores), rtol=1e-4, atol=3e-4)
    assert found[1].bad_frames.tolist() == expected[1].bad_frames.tolist()


def assume_no_ties(problem: Problem) -> None:
    """Scores that are so close that rounding orders them are no part of the definition: a little noise may change nothing.

    Also not a score, as it does where a way to a prefix that is kept anyhow is dropped or not.
    """
    noise = 2e-5 * torch.randn(problem.logits.shape, generator=torch.Generator().manual_seed(0))
    assume_alike([search(replace(problem, logits=problem.logits.float() + sign * noise), "reference") for sign in (1, -1)])


def assume_alike(results: list[tuple[beam.BeamState, beam.BeamFrames]]) -> None:
    for some, others in zip(*(prefixes(*result) for result in results), strict=True):
        assume(some.keys() == others.keys())
        assume(all(prefix.labels == others[key].labels for key, prefix in some.items()))
        pairs = [(prefix.scores, others[key].scores) for key, prefix in some.items()]
        assume(all(abs(a - b) <= 1e-3 + 1e-4 * abs(a) for mine, theirs in pairs for a, b in zip(mine, theirs)))


DTYPES = [torch.float32, torch.float16, torch.bfloat16]
LAYOUTS = ["plain", "time first", "sliced", "classes first"]
NUM_BEAMS = st.one_of(st.integers(1, 9), st.none())
KINDS = st.tuples(st.integers(0, 2), NUM_BEAMS, st.sampled_from(DTYPES), st.booleans(), st.sampled_from(LAYOUTS))
# Kernels are compiled for each, which takes seconds.
FEW_KINDS = st.sampled_from(
    [(1, 3, DTYPES[0], True, "plain"), (2, 9, DTYPES[1], False, "classes first"), (0, 2, DTYPES[2], False, "sliced")]
)
TIES = st.tuples(st.integers(0, 1), st.integers(1, 6), st.booleans())  # automata, beams, whether there are texts
FEW_TIES = st.sampled_from([(1, 3, True), (0, 2, False)])


@st.composite
def problems(draw, longest=10, most_classes=30, most_rows=4, kinds=KINDS):
    """A batch of logits for an automaton, or for rows that have one or two of several, or none.

    Args:
        kinds: numbers of automata and of beams (None: twice as many as classes), type of the logits, whether there are texts,
            and how the logits lie in memory. With few kinds there are two frames or more: strides of one would be a kind.
    """
    sizes = st.integers(1, most_classes)
    automaton = draw(st.one_of(automata(sizes, most=3), language_models(sizes)))
    for values in (automaton.arc_weights, automaton.backoff_weights):
        if values.numel():  # beside scores of thousands single precision knows no acoustic ones
            values.mul_(min(1.0, 20.0 / max(1.0, float(values.abs().max()))))
    generator = torch.Generator().manual_seed(draw(seeds))

    def uniform(low, high, *shape):
        return low + (high - low) * torch.rand(shape, generator=generator)

    batch_size, frames = draw(st.integers(1, most_rows)), draw(st.integers(1 if kinds is KINDS else 2, longest))
    classes = draw(st.one_of(st.just(automaton.vocab_size + 1), st.integers(2, most_classes)))
    blank = draw(st.sampled_from([0, classes // 2, classes - 1]))
    num_automata, num_beams, dtype, has_texts, layout = draw(kinds)
    logits = 3 * torch.randn(batch_size, frames, classes, generator=generator)
    blank_more = draw(st.sampled_from([-3.0, 1.0, 4.0, 8.0]))
    logits[..., blank] += blank_more * (uniform(0, 1, batch_size, frames) < 0.7)
    if draw(st.booleans()):  # some classes can't be
        logits = torch.where(torch.rand(logits.shape, generator=generator) < 0.2, -torch.inf, logits)
        if draw(st.booleans()):
            logits[..., blank] = logits[..., blank].clamp(min=-9.0)
    lengths = torch.randint(max(frames - 4, 0), frames + 1, (batch_size,), dtype=torch.int32, generator=generator)
    bad = draw(st.sampled_from([None, None, None, None, torch.nan, torch.inf, -torch.inf]))
    if bad is not None:
        logits[0, draw(st.integers(frames // 2, frames - 1)), slice(None) if bad < 0 else classes // 2] = bad
    if draw(st.booleans()):  # whatever is in the padding
        padding = torch.arange(frames) >= lengths[:, None]
        logits = logits.masked_fill(padding[..., None], torch.nan)
    logits = logits.to(dtype)
    if layout == "time first":
        logits = logits.transpose(0, 1).contiguous().transpose(0, 1)
    elif layout == "sliced":
        logits = torch.nn.functional.pad(logits, (2, 3), value=99.0)[..., 2 : 2 + classes]
    elif layout == "classes first":
        logits = logits.transpose(1, 2).contiguous().transpose(1, 2)
    shape = (batch_size, num_automata)
    states = torch.randint(0, automaton.num_states, shape, dtype=torch.int32, generator=generator)
    return Problem(
        automaton,
        beam.initial_state(num_beams or 2 * classes, states),
        logits,
        lengths,
        weights=uniform(-0.5, 1.5, *shape),
        bonuses=uniform(-1, 2, batch_size),
        unscored=uniform(-4, 1, batch_size),
        blank=blank,
        threshold=draw(st.sampled_from([math.inf, math.inf, 8.0, 2.0, 0.1])),
        skip=draw(st.sampled_from([math.inf, math.inf, 0.9, 0.5])),
        text_hashes=hashes_of_pieces(pieces(draw, classes)) if has_texts else None,
    )


def pieces(draw, classes):
    """Few letters, so that many token sequences spell the same text; several tokens may have the same letters, or none."""
    piece = st.one_of(st.text("ab", min_size=1, max_size=3), st.none())
    return draw(st.lists(piece, min_size=classes, max_size=classes))


@given(problems())
@settings(RELAXED, max_examples=examples(150))
def test_cpu_equals_the_reference(problem):
    assume_no_ties(problem)
    assert_same(search(problem, "cpu"), search(problem, "reference"))


@given(problems(longest=6, most_classes=12, most_rows=2, kinds=FEW_KINDS))
@settings(RELAXED, max_examples=examples(30))
def test_gpu_equals_the_reference(problem):
    assume_no_ties(problem)
    assert_same(search(problem, "gpu"), search(problem, "reference"))


@pytest.mark.slow
@given(problems(longest=6, most_classes=12, most_rows=2), st.booleans())
@settings(RELAXED, max_examples=40)
def test_gpu_equals_the_reference_in_all_kinds(problem, in_small_blocks):
    assume_no_ties(problem)
    assert_same(search(problem, "gpu", in_small_blocks), search(problem, "reference"))


@st.composite
def tied_problems(draw, longest, kinds):
    """Whole numbers as logits, an LM that gives many tokens the same score, and noise that leaves the same what is the same."""
    classes = draw(st.integers(2, 6))
    generator = torch.Generator().manual_seed(draw(seeds))
    size = draw(st.integers(1, 2)), draw(st.integers(1, longest))
    num_automata, num_beams, has_texts = draw(kinds)
    arcs = [{token: (-1.37, token % 2) for token in range(classes)}, {0: (-0.61, 0)}]
    problem = Problem(
        build_automaton(classes, arcs, [0, 0], [0.0, -0.83]),
        beam.initial_state(num_beams, torch.zeros((size[0], num_automata), dtype=torch.int32)),
        torch.randint(-1, 2, (*size, classes), generator=generator).float(),
        torch.full(size[:1], size[1], dtype=torch.int32),
        weights=torch.full((size[0], num_automata), 0.71),
        bonuses=torch.full(size[:1], 0.43),
        unscored=torch.zeros(size[0]),
        blank=draw(st.sampled_from([0, classes // 2, classes - 1])),
        threshold=draw(st.sampled_from([math.inf, math.inf, 2.03])),
        text_hashes=hashes_of_pieces(pieces(draw, classes)) if has_texts else None,
    )
    return problem, noises(size, generator), 0.1 * torch.rand(size, generator=generator)


@pytest.mark.parametrize(
    "engine, longest, kinds", [("cpu", 8, TIES), ("gpu", 4, FEW_TIES), pytest.param("gpu", 4, TIES, marks=pytest.mark.slow)]
)
@given(st.data())
@settings(RELAXED, max_examples=examples(100))
def test_ties_are_those_of_the_reference(engine, longest, kinds, data):
    problem, moves, of_blank = data.draw(tied_problems(longest, kinds))
    several = [replace(problem, logits=moved(problem.logits, share * moves)) for share in SHARES]
    for each in several:  # else tokens could begin a frame later for the same score, but for rounding
        each.logits[..., problem.blank] += of_blank
    found = [search(each, "reference") for each in several]
    for other in found[1:]:
        assume_alike([found[0], other])  # no tie of rounding alone
    assert_same(search(several[0], engine), found[0])


@given(problems(), st.sampled_from(["reference", "cpu"]), st.data())
@settings(RELAXED, max_examples=examples(60))
def test_cutting_the_frames_in_two_changes_nothing(problem, engine, data):
    assume_no_ties(problem)
    cut = data.draw(st.integers(0, problem.logits.shape[1]))
    assert_same(search_in_two(problem, cut, (engine, engine)), search(problem, "reference"))


@given(problems(longest=6, most_classes=12, most_rows=2, kinds=FEW_KINDS), st.data())
@settings(RELAXED, max_examples=7)
def test_going_on_on_the_gpu(problem, data):
    assume_no_ties(problem)
    cut = data.draw(st.integers(0, problem.logits.shape[1]))
    engines = data.draw(st.sampled_from([("gpu", "gpu"), ("cpu", "gpu"), ("gpu", "cpu")]))
    assert_same(search_in_two(problem, cut, engines), search(problem, "reference"))


@given(problems(longest=5, most_classes=9, kinds=FEW_KINDS), st.data())
@settings(RELAXED, max_examples=15)
def test_a_row_does_not_depend_on_its_batch(problem, data):
    row = data.draw(st.integers(0, len(problem.lengths) - 1))
    engine = data.draw(st.sampled_from(["reference", "cpu", "gpu"]))
    length, alone = int(problem.lengths[row]), slice(row, row + 1)
    of_row = {name: aligned(getattr(problem, name)[alone]) for name in ("lengths", "weights", "bonuses", "unscored")}
    state = beam.BeamState(*(tensor[alone] for tensor in problem.state))
    logits = aligned(problem.logits[alone, :length])
    single = prefixes(*search(replace(problem, state=state, logits=logits, **of_row), engine))[0]
    whole = prefixes(*search(problem, engine))[row]
    assert single.keys() == whole.keys()
    for key, prefix in single.items():
        assert prefix.labels == whole[key].labels
        torch.testing.assert_close(torch.tensor(prefix.scores), torch.tensor(whole[key].scores), rtol=1e-5, atol=1e-4)


def some_problem(num_beams, vocab_size=4, classes=6, frames=6, batch_size=3, blank=5, seed=0, **other) -> Problem:
    """Two automata with three states each, in every row."""
    arcs = [{t: (-0.3 * t - state, (t + state) % 3) for t in range(state, vocab_size, 2)} for state in range(3)]
    automaton = build_automaton(vocab_size, arcs, [0, 0, 1], [-2.0, -1.0, -0.5])
    generator = torch.Generator().manual_seed(seed)
    return Problem(
        automaton,
        beam.initial_state(num_beams, torch.tensor([[0, 1], [2, 2], [1, 0]], dtype=torch.int32)[:batch_size]),
        2 * torch.randn(batch_size, frames, classes, generator=generator),
        torch.full((batch_size,), frames, dtype=torch.int32),
        weights=torch.tensor([[0.5, 0.25], [1.0, -0.3], [0.1, 0.4]])[:batch_size],
        bonuses=torch.tensor([1.0, 0.5, 2.0])[:batch_size],
        unscored=torch.tensor([-1.0, 0.5, -2.0])[:batch_size],
        blank=blank,
        **other,
    )


@pytest.mark.parametrize(
    ("engine", "num_beams"),
    [
        ("cpu", 3),
        ("cpu", 8),
        ("cpu", 17),
        ("gpu", 3),
        *(pytest.param("gpu", beams, marks=pytest.mark.slow) for beams in (8, 17)),
    ],
)
def test_longer_rows(engine, num_beams):
    """Many frames with tokens, in which states come back, and an automaton with long and short contexts."""
    rng = np.random.default_rng(num_beams)
    num_states, vocab_size = 12, 14
    arcs = [{t: (-0.5 - 2 * rng.random(), int(rng.integers(num_states))) for t in range(vocab_size)}]
    for _ in range(num_states - 1):
        tokens = rng.permutation(vocab_size)[: rng.integers(1, 9)].tolist()
        arcs.append({t: (-1.5 * rng.random(), int(rng.integers(num_states))) for t in tokens})
    backoff_states = [0, *(int(rng.integers(state)) for state in range(1, num_states))]
    automaton = build_automaton(vocab_size, arcs, backoff_states, (-rng.random(num_states)).tolist())
    problem = some_problem(num_beams, vocab_size, classes=16, frames=20, batch_size=2, blank=3, seed=num_beams)
    problem = replace(problem, automaton=automaton, lengths=torch.tensor([20, 17], dtype=torch.int32))
    problem.logits[..., 3] += 1.5
    problem.logits[:, 1::3, 3] += 3.0
    assume_no_ties(problem)
    assert_same(search(problem, engine), search(problem, "reference"))


@pytest.mark.parametrize("engine", ["cpu", pytest.param("gpu", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("vocab_size", "classes", "blank"), [(2500, 2600, 2599), (2700, 2600, 0), (2048, 2049, 1024)])
def test_more_classes_than_a_block(engine, vocab_size, classes, blank):
    problem = some_problem(6, vocab_size, classes, batch_size=2, blank=blank)
    problem.logits[..., 2047:] += 1.0
    problem.logits[0, 1, :1500] = -torch.inf  # nothing is possible in whole blocks
    problem.logits[1, 3, blank] += 12.0
    assume_no_ties(problem)
    assert_same(search(problem, engine), search(problem, "reference"))


@pytest.mark.parametrize("engine", ["cpu", "gpu"])
def test_arguments_in_any_layout(engine):
    """Everything with gaps or transposed."""

    def spread(tensor):
        if tensor.dim() == 0:
            return tensor
        return torch.stack([tensor, tensor], dim=tensor.dim()).transpose(0, -1).contiguous().transpose(0, -1)[..., 0]

    problem = some_problem(3)
    names = ("lengths", "weights", "bonuses", "unscored", *(["logits"] if engine == "cpu" else []))  # there: `problems`
    gaps = {name: spread(getattr(problem, name)) for name in names}
    assert not gaps["weights"].is_contiguous()
    state = beam.BeamState(*map(spread, problem.state))
    assert_same(search(replace(problem, state=state, **gaps), engine), search(problem, "reference"))


@pytest.mark.parametrize("engine", ["reference", "cpu", "gpu"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_broken_logits_are_reported_unless_they_are_padding(engine, value):
    problem = some_problem(3, batch_size=2)
    logits = problem.logits.clone()
    logits[0, 4, 1] = value
    logits[1, 2, 5] = value
    for lengths, expected in (([6, 6], [4, 2]), ([4, 2], [-1, -1]), ([5, 0], [4, -1])):
        state, frames = search(replace(problem, logits=logits, lengths=torch.tensor(lengths, dtype=torch.int32)), engine)
        assert frames.bad_frames.tolist() == expected
        until = [bad if bad >= 0 else length for bad, length in zip(expected, lengths)]
        before = replace(problem, lengths=torch.tensor(until, dtype=torch.int32))
        assert_same((state, frames._replace(bad_frames=torch.tensor([-1, -1]))), search(before, "reference"))


@pytest.mark.parametrize("engine", ["reference", "cpu", "gpu"])
def test_frames_at_which_nothing_is_possible_are_passed_over(engine):
    """With weights so large that the sums overflow no token has a chance, and without a blank nothing else has."""
    problem = some_problem(3, batch_size=1, classes=5, blank=4)
    logits = problem.logits.clone()
    logits[0, 2, 4] = -torch.inf
    automaton = build_automaton(4, [{t: (-5.0, 1) for t in range(4)}, {}, {}], [0, 0, 0], [0.0] * 3)
    overflowing = replace(problem, automaton=automaton, logits=logits, weights=torch.tensor([[3e38, 1e38]]))
    state, frames = search(overflowing, engine)
    without = replace(overflowing, logits=torch.cat([logits[:, :2], logits[:, 3:]], dim=1), lengths=problem.lengths - 1)
    expected_state, _ = search(without, "reference")
    (found,) = prefixes(state, frames)
    assert [(size, prefix.labels) for (size, _, _), prefix in found.items()] == [(0, [])]
    torch.testing.assert_close(state.offsets, expected_state.offsets, rtol=0, atol=1e-5)
    assert frames.bad_frames.tolist() == [-1]


def test_beams_that_are_too_large_for_the_kernel(monkeypatch):
    gpu = pytest.importorskip("hf_ngpulm.search.ctc_beam.gpu")
    monkeypatch.setattr(gpu, "MOST_BEAMS", 4)
    problem = some_problem(5, frames=3)
    assert_same(search(problem, "gpu"), search(problem, "reference"))
    monkeypatch.setattr(gpu.cpu, "ctc_beam", lambda *given: (problem.state, beam.BeamFrames.still(3, 3, 5)))
    assert torch.equal(search(problem, "gpu")[0].hashes, problem.state.hashes)  # it is the core that is asked


@pytest.mark.parametrize("engine", ["reference", "cpu", "gpu"])
def test_nothing_to_search(engine):
    problem = some_problem(3)
    for frames in (0, 6):
        lengths = torch.zeros(3, dtype=torch.int32)
        state, found = search(replace(problem, logits=problem.logits[:, :frames], lengths=lengths), engine)
        for ours, before in zip(state, problem.state, strict=True):
            assert torch.equal(ours, before)
        assert found.links.shape == found.labels.shape == (3, frames, 3)
    no_rows = {name: getattr(problem, name)[:0] for name in ("logits", "lengths", "weights", "bonuses", "unscored")}
    state, found = search(replace(problem, state=beam.BeamState(*(t[:0] for t in problem.state)), **no_rows), engine)
    assert found.links.shape == (0, 6, 3) and state.hashes.shape == (0, 3)


@pytest.mark.parametrize("name, value", [("lm_states", 99), ("lm_states", -1), ("last_tokens", 5), ("last_tokens", -2)])
def test_prefixes_that_name_what_there_is_not_are_refused(name, value):
    problem = some_problem(3, classes=5, blank=4)
    values = getattr(problem.state, name).clone()
    values[1, 0] = value
    with pytest.raises(IndexError, match="prefixes of row 1 name states or tokens that don't exist"):
        search(replace(problem, state=problem.state._replace(**{name: values})), "cpu")


@pytest.mark.parametrize("engine", ["reference", "cpu", "gpu"])
def test_opcheck(engine):
    p = some_problem(3, frames=3, batch_size=2)
    arguments = (list(p.automaton.tensors), list(p.state), p.logits, p.lengths, p.weights, p.bonuses, p.unscored)
    device = DEVICE.get(engine, "cpu")
    arguments = torch.utils._pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), arguments)
    with blocks(engine):
        torch.library.opcheck(torch.ops.hf_ngpulm.ctc_beam.default, (*arguments, p.blank, 4, 5.0, 0.9, None, engine))


def test_torch_compile_passes_through():
    p = some_problem(3)

    def decode(x, n):
        rules = beam.BeamRules(p.weights, p.bonuses, p.unscored, p.blank, 4)
        state, frames = beam.ctc_beam(list(p.automaton.tensors), p.state, x, n, rules, engine="cpu")
        return frames.labels + 0, state.fused * 2

    compiled = torch.compile(decode, fullgraph=True, backend="aot_eager")
    for found, expected in zip(compiled(p.logits, p.lengths), decode(p.logits, p.lengths)):
        assert torch.equal(found, expected)
    torch._dynamo.reset()
