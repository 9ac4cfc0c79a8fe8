"""CTC beam search with language models: every engine finds the prefixes that the plain reference finds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from automata import automata, seeds
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from hf_ngpulm.automaton import BackoffAutomaton
from hf_ngpulm.ctc import beam

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


def search(problem: Problem, engine: str) -> tuple[beam.BeamState, beam.BeamFrames]:
    if engine == "gpu":
        pytest.importorskip("triton")  # there is none but on Linux
    device = DEVICE.get(engine, "cpu")
    p = problem
    state, frames = beam.ctc_beam(
        [tensor.to(device) for tensor in p.automaton.tensors],
        beam.BeamState(*(tensor.to(device) for tensor in p.state)),
        *(tensor.to(device) for tensor in (p.logits, p.lengths, p.weights, p.bonuses, p.unscored)),
        p.blank,
        p.automaton.vocab_size,
        p.threshold,
        p.skip,
        engine,
    )
    return beam.BeamState(*(tensor.cpu() for tensor in state)), beam.BeamFrames(*(tensor.cpu() for tensor in frames))


def search_in_two(problem: Problem, frames_before: int, engines: tuple[str, str]) -> tuple[beam.BeamState, beam.BeamFrames]:
    first_lengths = problem.lengths.clamp(max=frames_before)
    first = replace(problem, logits=problem.logits[:, :frames_before], lengths=first_lengths)
    state, first_frames = search(first, engines[0])
    lengths = torch.where(first_frames.bad_frames < 0, problem.lengths - first_lengths, 0)
    rest = replace(problem, logits=problem.logits[:, frames_before:], lengths=lengths.to(torch.int32), state=state)
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
    """Scores that are so close that rounding orders them are no part of the definition: a little noise may change nothing."""
    noise = 1e-4 * torch.randn(problem.logits.shape, generator=torch.Generator().manual_seed(0))
    results = [
        prefixes(*search(replace(problem, logits=problem.logits.float() + sign * noise), "reference")) for sign in (1, -1)
    ]
    for some, others in zip(*results, strict=True):
        assume(some.keys() == others.keys())
        assume(all(prefix.labels == others[key].labels for key, prefix in some.items()))


@st.composite
def problems(draw, longest=10, most_classes=30, most_rows=4):
    """A batch of logits for an automaton, or for rows that have one or two of several, or none."""
    automaton = draw(automata(st.integers(1, most_classes), most=3))
    for values in (automaton.arc_weights, automaton.backoff_weights):
        if values.numel():  # beside scores of thousands single precision knows no acoustic ones
            values.mul_(min(1.0, 20.0 / max(1.0, float(values.abs().max()))))
    generator = torch.Generator().manual_seed(draw(seeds))

    def uniform(low, high, *shape):
        return low + (high - low) * torch.rand(shape, generator=generator)

    batch_size, frames, classes = (
        draw(st.integers(1, most_rows)),
        draw(st.integers(0, longest)),
        draw(st.integers(2, most_classes)),
    )
    if draw(st.booleans()):
        classes = automaton.vocab_size + 1
    blank = draw(st.sampled_from([0, classes // 2, classes - 1]))
    num_automata = draw(st.integers(0, 2))
    logits = 3 * torch.randn(batch_size, frames, classes, generator=generator)
    blank_more = draw(st.sampled_from([-3.0, 1.0, 4.0, 8.0]))
    logits[..., blank] += blank_more * (uniform(0, 1, batch_size, frames) < 0.7)
    if draw(st.booleans()):  # some classes can't be
        logits = torch.where(torch.rand(logits.shape, generator=generator) < 0.2, -torch.inf, logits)
        if draw(st.booleans()):
            logits[..., blank] = logits[..., blank].clamp(min=-9.0)
    lengths = torch.randint(0, frames + 1, (batch_size,), dtype=torch.int32, generator=generator)
    if frames and draw(st.booleans()):
        logits[0, draw(st.integers(0, frames - 1)), draw(st.integers(0, classes - 1))] = draw(
            st.sampled_from([torch.nan, torch.inf])
        )
    if frames and draw(st.booleans()):
        logits[-1, draw(st.integers(0, frames - 1))] = -torch.inf
    if draw(st.booleans()):  # whatever is in the padding
        padding = torch.arange(frames) >= lengths[:, None]
        logits = logits.masked_fill(padding[..., None], torch.nan)
    logits = logits.to(draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16])))
    layout = draw(st.sampled_from(["plain", "time first", "sliced", "classes first"]))
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
        beam.initial_state(draw(st.one_of(st.integers(1, 9), st.just(2 * classes))), states),
        logits,
        lengths,
        weights=uniform(-0.5, 1.5, *shape),
        bonuses=uniform(-1, 2, batch_size),
        unscored=uniform(-4, 1, batch_size),
        blank=blank,
        threshold=draw(st.sampled_from([math.inf, math.inf, 8.0, 2.0, 0.1])),
        skip=draw(st.sampled_from([math.inf, math.inf, 0.9, 0.5])),
    )


@given(problems())
@settings(RELAXED, max_examples=150)
def test_cpu_equals_the_reference(problem):
    assume_no_ties(problem)
    assert_same(search(problem, "cpu"), search(problem, "reference"))


@given(problems(longest=6, most_classes=12, most_rows=2), st.booleans())
@settings(RELAXED, max_examples=40)
def test_gpu_equals_the_reference(problem, in_small_blocks):
    gpu = pytest.importorskip("hf_ngpulm.ctc.beam.gpu")
    assume_no_ties(problem)
    with pytest.MonkeyPatch.context() as patch:
        if in_small_blocks:
            patch.setattr(gpu, "TILE", 1)
            patch.setattr(gpu, "SMALLEST_BLOCK", 2)
        found = search(problem, "gpu")
    assert_same(found, search(problem, "reference"))


@given(problems(), st.sampled_from(["reference", "cpu"]), st.data())
@settings(RELAXED, max_examples=60)
def test_cutting_the_frames_in_two_changes_nothing(problem, engine, data):
    assume_no_ties(problem)
    cut = data.draw(st.integers(0, problem.logits.shape[1]))
    assert_same(search_in_two(problem, cut, (engine, engine)), search(problem, "reference"))


@given(problems(longest=6, most_classes=12, most_rows=2), st.data())
@settings(RELAXED, max_examples=10)
def test_going_on_on_the_gpu(problem, data):
    assume_no_ties(problem)
    cut = data.draw(st.integers(0, problem.logits.shape[1]))
    engines = data.draw(st.sampled_from([("gpu", "gpu"), ("cpu", "gpu"), ("gpu", "cpu")]))
    assert_same(search_in_two(problem, cut, engines), search(problem, "reference"))
