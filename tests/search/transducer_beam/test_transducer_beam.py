"""Beam search for transducers: brute force over all paths, the plain definition, and what batches, options and bad input do."""

from __future__ import annotations

import gc
import math

import numpy as np
import pytest
import torch
from automata import automata, build_automaton, seeds
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from interpreted import has_triton, needs_interpreter
from letters import Letters
from property_examples import examples
from row_weights import ilm_weights_of, weight_at
from toys import SHARES, Scripted, Toy, moved, noises, script, toys
from transducer_searches import beam_of_one, beam_search, models_of, searched
from transformers import AutoTokenizer

from hf_ngpulm import InvalidLogitsError, NGramLM, TransducerDecoder
from hf_ngpulm.automaton import reference as queries
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.fusion.rows import no_models
from hf_ngpulm.search.confidence import frame_confidence
from hf_ngpulm.search.networks import buffers
from hf_ngpulm.search.networks.graphs import MOST_KEPT, Repeated
from hf_ngpulm.search.networks.opening import lent_search, search_kind
from hf_ngpulm.search.networks.search import SearchSettings
from hf_ngpulm.search.transducer_beam import buffers as beam_buffers

RELAXED = settings(deadline=None, suppress_health_check=list(HealthCheck))
ENGINES = ["reference", "cpu"]
EVERY = [*ENGINES, pytest.param("gpu", marks=needs_interpreter)]
# Kernels are compiled for each, which takes seconds: durations, number of automata, the internal LM's weight, and options.
USUAL = {"num_beams": 3, "late": True, "blank_aware": True, "log_sum": True, "aes_beta": 1}
PLAIN = {"num_beams": 2, "late": False, "blank_aware": False, "log_sum": False, "aes_beta": 0}
FEW_KINDS = {
    "alsd": [((0, 1, 2), 1, 0.3, USUAL), (None, 1, 0.0, USUAL), (None, 0, 0.0, PLAIN)],
    "aes": [(None, 2, 0.3, USUAL), (None, 0, 0.0, PLAIN)],
}


@pytest.fixture
def short_blocks(monkeypatch):
    """Fewer steps between two looks whether anything is left to do: each takes long."""
    if has_triton():
        from hf_ngpulm.search.transducer_beam import gpu

        for module in (buffers, beam_buffers, gpu):
            monkeypatch.setattr(module, "STEPS", 2)


@st.composite
def problems(draw, model, longest=9, num_automata=None, ilm_weight=None):
    generator = torch.Generator().manual_seed(draw(seeds))
    batch_size, frames = draw(st.integers(1, 4)), draw(st.integers(0, longest))
    lengths = torch.randint(0, frames + 1, (batch_size,), generator=generator)
    automaton = draw(automata(st.integers(1, 14), most=3))
    shape = (batch_size, draw(st.integers(0, 2)) if num_automata is None else num_automata)
    states = torch.randint(0, automaton.num_states, shape, dtype=torch.int32, generator=generator)
    weights = torch.randint(-1, 5, shape, generator=generator) / 4
    vocab_size = automaton.vocab_size if shape[1] else 0
    frames = 1.5 * torch.randn(batch_size, frames, 6, generator=generator)
    ilm_weights = ilm_weights_of(draw(st.sampled_from([0.0, 0.3])) if ilm_weight is None else ilm_weight, batch_size)
    return frames, lengths, automaton.tensors, states, weights, vocab_size, ilm_weights


@st.composite
def beam_settings(draw, strategies=("alsd", "aes"), **fixed):
    options = {
        "num_beams": st.sampled_from([1, 2, 3, 5, 8]),
        "strategy": st.sampled_from(strategies),
        "blank_aware": st.booleans(),
        "late": st.booleans(),
        "log_sum": st.booleans(),
        "max_symbols": st.sampled_from([1, 2, 10]),
        "aes_steps": st.integers(1, 3),
        "aes_beta": st.integers(0, 2),
        "aes_gamma": st.sampled_from([0.5, 2.3, 100.0]),
    }
    return SearchSettings(**{name: draw(option) for name, option in options.items() if name not in fixed}, **fixed)


def found_in(found, row):
    """Score, acoustic score, LM scores, and steps of each hypothesis."""
    hypotheses = []
    for place in range(found.scores.shape[1]):
        if found.scores[row, place] > -math.inf:
            count = int(found.counts[row, place])
            steps = (values[row, place, :count].tolist() for values in (found.labels, found.frames, found.durations))
            scores = (float(values[row, place]) for values in (found.scores, found.acoustic_scores))
            hypotheses.append((*scores, found.lm_scores[row, place].tolist(), list(zip(*steps))))
    return hypotheses


def all_paths(model, frames, automaton, states, weights, vocab_size, options, ilm_weight):
    """Score of every token sequence, and of its best path: by a walk over all paths."""
    total = float(weights.sum()) - ilm_weight
    ended: dict[tuple[int, ...], list[tuple[float, float]]] = {}

    def walk(time, tokens, prediction, state, lm_states, score, acoustic):
        if time >= len(frames):
            ended.setdefault(tokens, []).append((score, acoustic))
            return
        logits = model.join(frames[time], prediction[0])
        log_probs = logits[: model.vocab_size].log_softmax(0)
        durations = [(None, 0.0)]
        if model.durations is not None:
            durations = list(zip(model.durations, logits[model.vocab_size :].log_softmax(0).tolist()))
        others = log_probs.double()
        others[model.blank_id] = -math.inf
        ilm = model.internal_lm(prediction[0])
        per_lm, targets = queries.advance(automaton, lm_states, vocab_size)
        for label, log_prob in enumerate(log_probs.tolist()):
            if log_prob == -math.inf:
                continue
            for duration, of_duration in durations:
                gain = log_prob + of_duration
                if label == model.blank_id:
                    extra = total * log_prob if options.blank_aware else 0.0
                    walk(
                        time + max(1, duration or 0), tokens, prediction, state, lm_states, score + gain + extra,
                        acoustic + gain,
                    )  # fmt: skip
                    continue
                extra = total * float(others.logsumexp(0)) if options.blank_aware else 0.0
                next_states = lm_states
                if label < vocab_size:
                    extra += float((weights * per_lm[:, label]).sum())
                    next_states = targets[:, label]
                elif len(weights):
                    extra -= float(weights.sum()) * math.log(vocab_size)
                extra -= ilm_weight * float(ilm[label])
                after = model.predict(torch.tensor([label]), state)
                walk(time + (duration or 0), (*tokens, label), *after, next_states, score + gain + extra, acoustic + gain)

    walk(0, (), *model.start(1, frames), states, 0.0, 0.0)
    return ended


@pytest.mark.parametrize("engine", ENGINES)
@given(st.data())
@settings(RELAXED, max_examples=20)
def test_a_beam_that_covers_everything_is_brute_force(engine, data):
    model = data.draw(toys((None, (0, 1), (1, 2), (0, 2)), most_classes=3, most_tokens=data.draw(st.sampled_from([1, 2]))))
    frames, _, automaton, states, weights, vocab_size, ilm_weights = data.draw(problems(model, longest=3))
    strategies = ("alsd", "aes") if model.durations is None else ("alsd",)
    options = data.draw(beam_settings(strategies, num_beams=64, max_symbols=10, aes_steps=2, aes_gamma=math.inf))
    lengths = torch.tensor([frames.shape[1]] * len(frames))
    given = (model, frames, lengths, automaton, states, weights, vocab_size, options, engine)
    found = beam_search(*given, ilm_weights=ilm_weights)
    ilm_weight = weight_at(ilm_weights, 0)
    expected = all_paths(model, frames[0], automaton, states[0], weights[0], vocab_size, options, ilm_weight)
    hypotheses = found_in(found, 0)
    assert len(hypotheses) == len(expected)
    for score, acoustic, _, steps in hypotheses:
        paths = torch.tensor(expected[tuple(label for label, *_ in steps if label != model.blank_id)], dtype=torch.float64)
        near = {"abs": 1e-4 * (1 + float(paths.abs().max())), "rel": 1e-5}
        if options.log_sum:
            assert (score, acoustic) == tuple(pytest.approx(float(total), **near) for total in paths.logsumexp(0))
        else:
            assert (score, acoustic) == tuple(pytest.approx(float(value), **near) for value in paths[paths[:, 0].argmax()])


@pytest.mark.parametrize("engine", ENGINES)
@given(st.data())
@settings(RELAXED, max_examples=examples(60))
def test_batches_equal_the_definition(engine, data):
    model = data.draw(toys())
    options = data.draw(beam_settings(("alsd", "aes") if model.durations is None else ("alsd",)))
    assert_equal_to_the_definition(model, data.draw(problems(model)), options, engine)


@needs_interpreter
@pytest.mark.parametrize("strategy", ["alsd", "aes"])
@given(st.data())
@settings(RELAXED, max_examples=12)
def test_kernels_equal_the_definition(strategy, short_blocks, data):
    durations, num_automata, ilm_weight, fixed = data.draw(st.sampled_from(FEW_KINDS[strategy]))
    model = data.draw(toys((durations,), fewest_classes=4))
    problem = data.draw(problems(model, 3, num_automata, ilm_weight))
    assert_equal_to_the_definition(model, problem, data.draw(beam_settings((strategy,), **fixed)), "gpu")


@pytest.mark.slow
@needs_interpreter
@pytest.mark.parametrize("strategy", ["alsd", "aes"])
@given(st.data())
@settings(RELAXED, max_examples=30)
def test_kernels_equal_the_definition_in_all_kinds(strategy, short_blocks, data):
    model = data.draw(toys() if strategy == "alsd" else toys((None,)))
    options = data.draw(beam_settings((strategy,), num_beams=data.draw(st.sampled_from([1, 2, 3]))))
    assert_equal_to_the_definition(model, data.draw(problems(model, longest=3)), options, "gpu")


@st.composite
def tied_problems(draw, longest=6, few_kinds=False):
    """A model that says few different numbers at a frame, and an LM with the same score for several tokens."""
    vocab_size = draw(st.integers(4 if few_kinds else 2, 6))
    if few_kinds:
        durations, num_automata, _, fixed = draw(st.sampled_from(FEW_KINDS["alsd"]))
    else:
        durations, num_automata, fixed = draw(st.sampled_from([None, None, (0, 1, 2), (1, 2)])), draw(st.integers(0, 1)), {}
    model = Scripted(vocab_size, durations)
    model.blank_id = draw(st.sampled_from([0, vocab_size // 2, vocab_size - 1]))
    generator = torch.Generator().manual_seed(draw(seeds))
    size = draw(st.integers(1, 3)), draw(st.integers(1, longest))
    logits = torch.randint(-1, 2, (*size, vocab_size + len(durations or ())), generator=generator).float()
    lengths = torch.randint(1, size[1] + 1, size[:1], generator=generator)
    arcs = [{token: (-1.37, token % 2) for token in range(vocab_size)}, {0: (-0.61, 0)}]
    automaton = build_automaton(vocab_size, arcs, [0, 0], [0.0, -0.83])
    shape = (size[0], num_automata)
    states = torch.zeros(shape, dtype=torch.int32)
    weights = torch.full(shape, 0.71)
    moves = noises(size, generator), noises(size, generator)
    # One token a frame: tokens that change places would sum up to the same but for rounding.
    strategies = ("alsd",) if durations or (few_kinds and num_automata) else ("alsd", "aes")
    options = draw(beam_settings(strategies, max_symbols=1, aes_steps=1, **fixed))
    return model, logits, moves, lengths, automaton.tensors, states, weights, vocab_size if shape[1] else 0, options


def paths_of(model, logits, lengths, automaton, states, weights, vocab_size, options):
    return [
        [path.steps for path in beam_of_one(model, row[:length], automaton, *of_row, vocab_size, options)]
        for row, length, *of_row in zip(logits, lengths.tolist(), states, weights)
    ]


def assert_ties_are_those_of_the_definition(problem, engine):
    model, logits, moves, *rest = problem
    parts = logits[..., : model.vocab_size], logits[..., model.vocab_size :]
    several = [torch.cat([moved(part, share * move) for part, move in zip(parts, moves)], -1) for share in SHARES]
    expected, *others = (paths_of(model, each, *rest) for each in several)
    assume(all(other == expected for other in others))  # what only rounding tells apart is no tie
    found = beam_search(model, several[0], *rest, engine)
    assert [[tuple(steps) for *_, steps in found_in(found, row)] for row in range(len(logits))] == expected


@pytest.mark.parametrize("engine", ENGINES)
@given(tied_problems())
@settings(RELAXED, max_examples=examples(60))
def test_ties(engine, problem):
    assert_ties_are_those_of_the_definition(problem, engine)


@needs_interpreter
@given(tied_problems(longest=3, few_kinds=True))
@settings(RELAXED, max_examples=12)
def test_ties_in_kernels(short_blocks, problem):
    assert_ties_are_those_of_the_definition(problem, "gpu")


@pytest.mark.slow
@needs_interpreter
@given(tied_problems(longest=3))
@settings(RELAXED, max_examples=30)
def test_ties_in_kernels_of_all_kinds(short_blocks, problem):
    assert_ties_are_those_of_the_definition(problem, "gpu")


@needs_interpreter
@pytest.mark.parametrize("late", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("strategy", "durations"),
    [pytest.param("alsd", None, marks=pytest.mark.slow), ("alsd", (0, 1, 2, 3, 4)), ("aes", None)],
)
def test_kernels_equal_the_core(strategy, durations, late, short_blocks):
    """With several automata a row, more classes than a program looks at in one go, and more beams than a power of two."""
    generator = torch.Generator().manual_seed(1)
    lm = NGramLM.train(torch.randint(0, 2050, (60, 6), generator=generator).tolist(), vocab_size=2050, order=3)
    model = Toy(2060, 2059, durations, seed=3, blank_bias=7.0)
    frames, lengths = 1.5 * torch.randn(2, 2, 6, generator=generator), torch.tensor([2, 1])
    states, weights = lm.starts[:1].expand(2, 2).contiguous(), torch.tensor([[0.4, 0.1], [0.0, 0.3]])
    measure = "tsallis" if late else "gibbs"
    options = SearchSettings(5, strategy, late=late, log_sum=late, max_symbols=2, confidence=measure)
    arguments = (model, frames, lengths, lm.tensors, states, weights, 2050, options)
    more = {"num_lms": 1, "ilm_weights": torch.tensor([0.1, 0.2])}
    found, expected = (beam_search(*arguments, engine, **more) for engine in ("gpu", "cpu"))
    alive = expected.scores > -math.inf
    assert torch.equal(found.scores > -math.inf, alive)
    for name in ("scores", "acoustic_scores", "lm_scores", "lm_states", "counts"):
        torch.testing.assert_close(getattr(found, name)[alive], getattr(expected, name)[alive], rtol=1e-5, atol=1e-5)
    taken = (torch.arange(expected.labels.shape[2]) < expected.counts[..., None]) & alive[..., None]
    for name in ("labels", "frames", "durations"):
        assert torch.equal(getattr(found, name)[taken], getattr(expected, name)[taken])
    of_tokens = taken & (expected.labels != model.blank_id)
    assert of_tokens.any()
    torch.testing.assert_close(found.confidences[of_tokens], expected.confidences[of_tokens], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("engine", [pytest.param("gpu", marks=needs_interpreter), "cpu"])
@pytest.mark.parametrize("strategy", ["alsd", "aes"])
def test_shares_choose_hypotheses_and_leave_the_scores_alone(engine, strategy, short_blocks):
    durations, num_automata, ilm_weight, fixed = FEW_KINDS[strategy][0]
    model, generator = Toy(6, 5, durations, seed=2, blank_bias=0.0), torch.Generator().manual_seed(3)
    lm = NGramLM.train(torch.randint(0, 5, (40, 6), generator=generator).tolist(), vocab_size=5, order=2)
    frames, lengths = 1.5 * torch.randn(2, 6, 6, generator=generator), np.array([6, 5])
    states = lm.starts[:1].expand(2, num_automata).contiguous()
    models = models_of(lm.tensors, states, torch.full(states.shape, 0.3), 5, ilm_weights_of(ilm_weight, 2))
    shares = np.arange(fixed["num_beams"]) * np.array([[4.0], [30.0]])  # favour the worst
    options = SearchSettings(strategy=strategy, **fixed)

    def found(engine, shares):
        with lent_search(model, frames, models, options, engine, None) as search:
            search.begin(np.arange(2), models)
            search.run_on(frames, lengths // 2, np.full(2, max(durations or (1,))))
            search.share(np.arange(2), shares)
            search.run_on(frames, lengths, np.zeros(2, dtype=np.int64))
            return [search.array(name).copy() for name in ("scores", "acoustic_scores", "shares", "sizes", "lm_states")]

    expected = found("reference", shares)
    live = expected[0] > -np.inf
    for ours, theirs in zip(found(engine, shares), expected):
        np.testing.assert_allclose(ours[live], theirs[live], rtol=1e-4, atol=1e-4)
    ranks = np.where(live, expected[0] + expected[2], -np.inf)
    assert (np.diff(ranks) <= 1e-6).all()
    plain = found("reference", 0 * shares)
    assert not np.allclose(plain[0], expected[0])


def assert_equal_to_the_definition(model, problem, options, engine):
    frames, lengths, automaton, states, weights, vocab_size, ilm_weights = problem
    padded = frames.masked_fill((torch.arange(frames.shape[1]) >= lengths[:, None])[..., None], torch.nan)
    given = (model, padded, lengths, automaton, states, weights, vocab_size, options, engine)
    found = beam_search(*given, ilm_weights=ilm_weights)
    assert found.bad_frames.tolist() == [-1] * len(frames)
    for row in range(len(frames)):
        expected = beam_of_one(
            model, frames[row, : lengths[row]], automaton, states[row], weights[row], vocab_size, options,
            weight_at(ilm_weights, row),
        )  # fmt: skip
        hypotheses = found_in(found, row)
        assert len(hypotheses) == len(expected)
        for (score, acoustic, lm_scores, steps), path in zip(hypotheses, expected):
            near = {"abs": 1e-4 * (1 + len(steps)), "rel": 1e-4}
            assert score == pytest.approx(path.score, **near) and acoustic == pytest.approx(path.acoustic_score, **near)
            assert lm_scores == pytest.approx(path.lm_scores.tolist(), abs=1e-3, rel=1e-4)
            assert steps == list(path.steps)


def early_tdt(model, frames, automaton, states, weights, vocab_size, options):
    """Scores of the token sequences that ALSD with early pruning finds for a TDT, written down once more."""
    beam = [(0.0, (), 0, 0)]  # score, tokens, frame, tokens at it
    while any(time < len(frames) for _, _, time, _ in beam):
        ways = {}
        for score, tokens, time, symbols in beam:
            if time == len(frames):
                ways.setdefault((tokens, time), []).append((score, symbols))
                continue
            prediction, state = model.start(1, frames)
            lm_states = states
            for token in tokens:
                prediction, state = model.predict(torch.tensor([token]), state)
                if token < vocab_size:
                    lm_states = queries.advance(automaton, lm_states, vocab_size)[1][:, token]
            logits = model.join(frames[time], prediction[0])
            log_probs, of_durations = logits[: model.vocab_size].log_softmax(0), logits[model.vocab_size :].log_softmax(0)
            possible = [label for label in range(model.vocab_size) if label == model.blank_id or symbols < options.max_symbols]
            likeliest = sorted(possible, key=lambda label: -log_probs[label])[: options.num_beams]  # the model's own
            pairs = []
            for label in likeliest:
                gain = float(log_probs[label])
                total = float(weights.sum()) if options.blank_aware else 0.0
                if label == model.blank_id:
                    gain += total * gain
                else:
                    others = float(log_probs.exp().sum() - log_probs[model.blank_id].exp())
                    gain += total * math.log(others) if total and others > 0 else 0.0
                    if label < vocab_size:
                        gain += float((weights * queries.advance(automaton, lm_states, vocab_size)[0][:, label]).sum())
                    elif len(weights):
                        gain -= float(weights.sum()) * math.log(vocab_size)
                pairs += [(gain + float(of), label, frames_on) for of, frames_on in zip(of_durations, model.durations)]
            for gain, label, frames_on in sorted(pairs, key=lambda pair: -pair[0])[: options.num_beams]:  # with the LM
                is_blank = label == model.blank_id
                frames_on = max(frames_on, 1) if is_blank else frames_on
                way = (score + gain, 0 if is_blank or frames_on else symbols + 1)
                ways.setdefault((tokens if is_blank else (*tokens, label), min(time + frames_on, len(frames))), []).append(way)
        found = []
        for (tokens, time), together in ways.items():
            score, symbols = max(together)
            if options.log_sum:
                score = math.log(sum(math.exp(other - score) for other, _ in together)) + score
            found.append((score, tokens, time, symbols))
        beam = sorted(found, reverse=True)[: options.num_beams]
    return {tokens: score for score, tokens, _, _ in beam}


@pytest.mark.parametrize("engine", ENGINES)
@given(st.data())
@settings(RELAXED, max_examples=examples(45))
def test_early_pruning_of_a_tdt_takes_tokens_then_pairs(engine, data):
    model = data.draw(toys(((0, 1, 2, 3, 4), (0, 1), (1, 2), (0, 2))))
    # Each hypothesis is said again from its beginning at each step: short rows.
    frames, _, automaton, states, weights, vocab_size, _ = data.draw(problems(model, longest=5))
    options = data.draw(beam_settings(("alsd",), late=False))
    lengths = torch.full((len(frames),), frames.shape[1])
    found = beam_search(model, frames, lengths, automaton, states, weights, vocab_size, options, engine)
    for row in range(len(frames)):
        expected = early_tdt(model, frames[row], automaton, states[row], weights[row], vocab_size, options)
        hypotheses = {
            tuple(label for label, *_ in steps if label != model.blank_id): score for score, _, _, steps in found_in(found, row)
        }
        assert hypotheses == pytest.approx(expected, abs=1e-3, rel=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_early_pruning_of_a_tdt_leaves_the_lm_other_tokens(engine):
    """And not one token with several durations."""
    frames = torch.full((1, 2, 3 + 5), -20.0)
    frames[0, 0, :2] = torch.tensor([2.0, 1.0])  # "a" is likelier than "b",
    frames[0, 0, 4:6] = torch.tensor([1.0, 0.9])  # and one frame hardly likelier than two
    frames[0, 1, 2], frames[0, 1, 4] = 0.0, 0.0
    lm = NGramLM.train([[1]] * 9 + [[0]], vocab_size=2, order=1)
    decoder = TransducerDecoder(
        Scripted(3, (0, 1, 2, 3, 4), max_symbols=1), Letters("ab_"), lm, 2.0, num_beams=2, pruning="early", engine=engine
    )
    assert decoder(frames)[0][0].text == "b"


@needs_interpreter
@pytest.mark.parametrize(("strategy", "durations"), [("alsd", None), ("alsd", (0, 1, 2)), ("aes", None)])
@pytest.mark.parametrize("ilm_weight", [0.0, 0.3])
def test_buffers_serve_batches_of_other_sizes(strategy, durations, ilm_weight, short_blocks):
    """What a CUDA graph relies on: a block of steps works on the same tensors each time, and leaves nothing behind."""
    generator = torch.Generator().manual_seed(7)
    model = Toy(7, 3, durations, seed=2)
    lm = NGramLM.train(torch.randint(0, 6, (40, 6), generator=generator).tolist(), vocab_size=6, order=3)
    options, used, kept = SearchSettings(3, strategy), [], {}

    def models(size, has_ilm=ilm_weight > 0):
        states = torch.randint(0, lm.num_states, (size, 1), dtype=torch.int32, generator=generator)
        weights = torch.randint(0, 4, (size, 1), generator=generator) / 4
        return models_of(lm.tensors, states, weights, 6, torch.full((size,), ilm_weight) if has_ilm else None)

    search = search_kind(options, "gpu", torch.device("cpu"))(
        model, torch.zeros(1, 1, 6), 4, models(4), options, 8, lambda work: lambda: (used.append(1), work())[1]
    )
    for size, longest in ((3, 5), (1, 8), (4, 3)):
        frames = 1.5 * torch.randn(size, longest, 6, generator=generator)
        lengths = torch.randint(0, longest + 1, (size,), generator=generator)
        padded = frames.masked_fill((torch.arange(longest) >= lengths[:, None])[..., None], torch.nan)
        addresses = [tensor.data_ptr() for tensor in (search.frames, search.trace, *search.carries())]
        search.size, of_rows = size, models(size)
        found = searched(search, of_rows, padded, lengths)
        assert addresses == [tensor.data_ptr() for tensor in (search.frames, search.trace, *search.carries())]
        with lent_search(model, frames, of_rows, options, "cpu", kept) as other:
            expected = searched(other, of_rows, frames, lengths)
        for row in range(size):
            assert [h[3] for h in found_in(found, row)] == [h[3] for h in found_in(expected, row)]
    assert used and not kept


def test_what_cannot_be_recorded_runs_as_it_is(caplog):
    done = []

    def refuse(work):
        raise RuntimeError("operation not permitted when stream is capturing")

    for _ in range(2):  # which is told once
        block = Repeated(lambda: done.append(1), capture=refuse)
        for _ in range(3):
            block.prepare(torch.device("cpu"))
            block()
        assert not block.is_recorded
    assert len(done) == 6 and caplog.text.count("not permitted") == 1


def test_recording_changes_nothing():
    carried, kinds = torch.zeros(3), []

    def record(work):
        work()
        return lambda: (kinds.append("graph"), work())[1]

    block = Repeated(lambda: (kinds.append("work"), carried.add_(1))[1], lambda: [carried], record)
    for uses in range(1, 4):
        block.prepare(torch.device("cpu"))
        block()
        assert carried.tolist() == [uses] * 3
    assert kinds == ["work", "work", "graph", "work", "graph", "work"]


@needs_interpreter
@pytest.mark.parametrize("strategy", ["greedy", "alsd", "aes"])
def test_nothing_is_recorded_anew_for_the_same_tensors(strategy):
    models, settings = no_models(2, torch.device("cpu")), SearchSettings(2, strategy)
    frames, lengths = torch.zeros(2, 1, 6), np.zeros(2, dtype=np.int64)
    search = search_kind(settings, "gpu", frames.device)(Toy(5, 4, seed=1), frames, 2, models, settings)
    search.run_on(frames, lengths, lengths)
    block = search.block
    search.run_on(frames, lengths, lengths)
    search.use(models._replace(tensors=models.tensors._replace(arc_tokens=models.tensors.arc_tokens.view(-1))))
    assert search.block is block
    search.run_on(frames.clone(), lengths, lengths)
    assert search.block is not block


@needs_interpreter
def test_searches_are_kept_until_others_take_their_places():
    model, kept = Toy(5, 4, seed=1), {}
    models = no_models(2, torch.device("cpu"))

    def lend(longest, settings):
        with lent_search(model, torch.zeros(2, longest, 6), models, settings, "gpu", kept) as search:
            return search

    found = [lend(longest, SearchSettings()) for longest in (3, 3, 70, 200)]
    assert len(kept) == 3 and found[0] is found[1] is not found[2]
    model.head = model.head.clone()  # another tensor: what was recorded with the old one doesn't serve
    for num_beams in range(1, 10):
        lend(3, SearchSettings(num_beams=num_beams))
    assert len(kept) == MOST_KEPT == 8


@needs_interpreter
@pytest.mark.parametrize("strategy", ["greedy", "alsd"])
def test_searches_that_are_kept_hold_no_phrases(strategy):
    """Or contexts would never leave the pools."""
    tokenizer = AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))
    decoder = TransducerDecoder(Toy(257, 256, seed=1, blank_bias=3.0), tokenizer, strategy=strategy, engine="gpu")
    decoder.decode(torch.randn(1, 2, 6), phrases=["call anna"])
    gc.collect()
    assert decoder._kept and not decoder.fusion.held


@pytest.mark.parametrize("strategy", ["alsd", "aes"])
def test_beams_that_kernels_cannot_hold_are_searched_on_the_cpu(strategy):
    pytest.importorskip("triton")
    kinds = [search_kind(SearchSettings(size, strategy), "gpu", torch.device("cpu")) for size in (44, 45)]
    assert [kind.__module__.rpartition(".")[2] for kind in kinds] == ["gpu", "cpu"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("settings_of", [{"strategy": "alsd"}, {"strategy": "aes"}, {"num_beams": 3, "merging": "max"}])
def test_a_row_does_not_depend_on_its_batch(engine, settings_of):
    generator = torch.Generator().manual_seed(5)
    frames, lengths = 1.5 * torch.randn(5, 24, 6, generator=generator), torch.tensor([24, 0, 11, 1, 19])
    if engine == "reference":  # row by row in any case
        frames, lengths = frames[:3, :8], torch.tensor([8, 0, 5])
    lm = NGramLM.train(torch.randint(0, 8, (60, 6), generator=generator).tolist(), vocab_size=8, order=3)
    for durations in (None, (0, 1, 2)):
        if durations and settings_of.get("strategy") == "aes":
            continue
        decoder = TransducerDecoder(
            Toy(9, 8, durations, seed=2), Letters("abcdefgh"), lm, 0.7, engine=engine, num_return_sequences=2,
            **{"num_beams": 4, **settings_of},
        )  # fmt: skip
        together = decoder.decode(frames, lengths)
        for row, length in enumerate(lengths.tolist()):
            (alone,) = decoder.decode(frames[row : row + 1, :length])
            assert len(alone) == len(together[row]) == (2 if length else 1)
            for a, b in zip(alone, together[row]):
                assert (a.token_ids, a.token_frames, a.token_ends) == (b.token_ids, b.token_frames, b.token_ends)
                assert (a.score, a.lm_score) == pytest.approx((b.score, b.lm_score), abs=1e-4)
                assert a.token_confidences == pytest.approx(b.token_confidences, abs=1e-5)


def test_scores_of_hypotheses_add_up_and_rank_them():
    generator = torch.Generator().manual_seed(1)
    frames = 1.5 * torch.randn(2, 20, 6, generator=generator)
    lm = NGramLM.train(torch.randint(0, 8, (60, 6), generator=generator).tolist(), vocab_size=8, order=3)
    common = {"blank_scoring": "none", "merging": "max", "num_beams": 8, "num_return_sequences": 6, "ilm_weight": 0.0}
    model, letters = Toy(9, 8, seed=3), Letters("abcdefgh")
    for eos in (False, True):
        for normalized in (False, True):
            decoder = TransducerDecoder(model, letters, lm, 0.4, score_eos=eos, length_normalization=normalized, **common)
            for n_best in decoder.decode(frames):
                ranks = [h.score / (len(h.token_ids) + 1 if normalized else 1) for h in n_best]
                assert len(n_best) == 6 and ranks == sorted(ranks, reverse=True)
                for h in n_best:
                    ids = torch.tensor([h.token_ids])
                    assert h.lm_score == pytest.approx(float(lm.score_sequences(ids, eos=False)), abs=1e-3)
                    total = h.acoustic_score + 0.4 * float(lm.score_sequences(ids, eos=eos))
                    assert h.score == pytest.approx(total, abs=1e-3)
                    assert h.text == "".join(letters.pieces[i] for i in h.token_ids)


def test_confidences_are_those_of_the_frames_of_tokens():
    model, frames = Toy(7, 3, (0, 1, 2), seed=8), 1.5 * torch.randn(2, 15, 6, generator=torch.Generator().manual_seed(3))
    for measure in ("max_prob", "tsallis"):
        decoder = TransducerDecoder(model, Letters("abcdefg"), num_beams=3, confidence=measure)
        for row, (best,) in enumerate(decoder.decode(frames)):
            prediction, state = model.start(1, frames)
            expected = []
            for token, frame in zip(best.token_ids, best.token_frames):
                logits = model.join(frames[row, frame], prediction[0])[:7]
                expected.append(float(frame_confidence(logits[None, None], measure)))
                prediction, state = model.predict(torch.tensor([token]), state)
            assert best.token_ids and best.token_confidences == pytest.approx(expected, abs=1e-5)
    assert (
        TransducerDecoder(model, Letters("abcdefg"), num_beams=3, confidence=None).decode(frames)[0][0].token_confidences == []
    )


def test_blank_aware_scoring_keeps_tokens_that_a_heavy_lm_would_drop():
    lm = NGramLM.train([[i] for i in range(26)] * 2, vocab_size=26, order=1)  # it finds no token likely
    frames = script(26, 0, 26, 1, 26, 0, 26, classes=27, margin=6.0)
    letters = Letters("abcdefghijklmnopqrstuvwxyz_")
    counts = {
        scoring: [
            len(
                TransducerDecoder(Scripted(27, max_symbols=1), letters, lm, weight, num_beams=6, blank_scoring=scoring)
                .decode(frames)[0][0]
                .token_ids
            )
            for weight in (0.5, 4.0)
        ]
        for scoring in ("lm_weighted", "none")
    }
    assert counts["lm_weighted"] == [3, 3] and counts["none"][0] == 3 > counts["none"][1]


@pytest.mark.parametrize("engine", EVERY)
def test_a_model_that_never_says_blank_is_moved_on(engine):
    """The guard allows nothing but blanks, however unlikely they are."""
    model = Scripted(3, max_symbols=2)
    frames = script(0, 1, classes=3, margin=6.0)
    frames[..., 2] = -20.0
    for strategy in ("alsd", "aes"):
        decoder = TransducerDecoder(
            model, Letters("ab_"), strategy=strategy, num_beams=3, length_normalization=False, engine=engine
        )
        ((best,),) = decoder(frames)
        assert best.token_ids == [0, 0, 1, 1] and best.token_frames == [0, 0, 1, 1]
    frames[..., 2] = -math.inf  # not even then: nothing is found, and nothing hangs
    ((best,),) = TransducerDecoder(model, Letters("ab_"), num_beams=3, engine=engine)(frames)
    assert best.text == "" and best.score == -math.inf


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("strategy", ["alsd", "aes"])
def test_more_beams_than_tokens_and_none_that_can_be(engine, strategy):
    decoder = TransducerDecoder(
        Toy(2, 1, seed=1), Letters("a"), strategy=strategy, num_beams=9, num_return_sequences=9, engine=engine
    )
    (one,) = decoder.decode(torch.randn(1, 1, 6, generator=torch.Generator().manual_seed(0)))
    assert 2 <= len(one) <= 9 and len({h.text for h in one}) == len(one)
    assert [h.text for (h,) in decoder.decode(torch.zeros(2, 0, 6))] == ["", ""]
    assert decoder.decode(torch.zeros(0, 3, 6)) == []


def test_one_model_and_weight_a_row():
    model, frames = Toy(9, 8, seed=3), 1.5 * torch.randn(4, 20, 6, generator=torch.Generator().manual_seed(0))
    lms = [NGramLM.train([[i, i + 1, i]] * 5, vocab_size=8, order=2) for i in range(2)]
    models, weights = [lms[0], None, lms[1], lms[0]], torch.tensor([0.5, 1.0, 2.0, 0.0])
    together = TransducerDecoder(model, Letters("abcdefgh"), models, weights, num_beams=4).decode(frames)
    for row, lm in enumerate(models):
        ((alone,),) = TransducerDecoder(model, Letters("abcdefgh"), lm, float(weights[row]), num_beams=4).decode(
            frames[row : row + 1]
        )
        assert together[row][0].token_ids == alone.token_ids and together[row][0].score == pytest.approx(alone.score, abs=1e-3)
    assert together[1][0].lm_score == 0.0


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("strategy", ["alsd", "aes"])
def test_broken_outputs_are_named(engine, strategy):
    decoder = TransducerDecoder(Toy(5, 4, seed=1), Letters("abcd"), strategy=strategy, engine=engine)
    frames = torch.randn(3, 9, 6, generator=torch.Generator().manual_seed(4))
    frames[1, 4, 0] = math.nan
    with pytest.raises(InvalidLogitsError, match="row 1 hold NaN or infinity at frame 4"):
        decoder.decode(frames)
    assert len(decoder.decode(frames, torch.tensor([9, 4, 9]))) == 3


@pytest.mark.parametrize("engine", EVERY)
@pytest.mark.parametrize("strategy", ["greedy", "alsd"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_broken_durations_are_named(engine, strategy, value):
    decoder = TransducerDecoder(Scripted(3, (0, 1, 2, 3, 4)), Letters("ab_"), strategy=strategy, engine=engine)
    frames = script(0, 2, 1, classes=3, durations=[1, 1, 1])
    assert decoder.decode(frames)[0][0].token_ids == [0, 1]
    frames[0, 1, 4] = value
    with pytest.raises(InvalidLogitsError, match="row 0 hold NaN or infinity at frame 1"):
        decoder.decode(frames)


@pytest.mark.parametrize("engine", EVERY)
def test_the_first_broken_frame_is_named(engine):
    """Hypotheses of a TDT are at several frames at once."""
    frames = script(2, 2, 2, 2, classes=3, durations=[1, 1, 1, 1])
    frames[0, 0, 3:] = torch.tensor([-20.0, 2.0, 1.5, -20.0, -20.0])  # a blank of one frame, or of two
    frames[0, 1:3, 0] = math.nan
    decoder = TransducerDecoder(Scripted(3, (0, 1, 2, 3, 4)), Letters("ab_"), num_beams=2, engine=engine)
    with pytest.raises(InvalidLogitsError, match="row 0 hold NaN or infinity at frame 1"):
        decoder.decode(frames)


@given(st.data())
@settings(RELAXED, max_examples=15)
def test_a_beam_of_one_without_lm_is_greedy_search(data):
    """Where no symbol guard and no internal LM come between."""
    model = data.draw(toys((None,)))
    frames, lengths, *_ = data.draw(problems(model))
    models = no_models(len(frames), frames.device)
    options = SearchSettings(num_beams=1, max_symbols=30)
    found = beam_search(model, frames, lengths, models.tensors, models.states, models.weights, 0, options)
    greedy = TransducerDecoder(model, Letters([chr(97 + i) for i in range(12)]), max_symbols=30).decode(frames, lengths)
    assume(all(len(best.token_ids) < 30 for (best,) in greedy))
    for row, (best,) in enumerate(greedy):
        ((score, acoustic, _, steps),) = found_in(found, row)
        assert [label for label, *_ in steps if label != model.blank_id] == best.token_ids
        assert score == pytest.approx(best.score, abs=1e-3) and acoustic == pytest.approx(best.acoustic_score, abs=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"strategy": "beam"}, "strategy should be one of"),
        ({"num_beams": 0}, "num_beams should be a whole number from 1"),
        ({"num_beams": 4, "num_return_sequences": 5}, r"from 1 to 4 \(num_beams\)"),
        ({"num_return_sequences": 2}, r"from 1 to 1 \(num_beams\)"),
        ({"strategy": "greedy", "num_beams": 4}, "num_beams without a beam search"),
        ({"pruning": "late"}, "pruning without a beam search"),
        ({"num_beams": 4, "pruning": "never"}, "pruning should be one of"),
        ({"num_beams": 4, "blank_scoring": "some"}, "blank_scoring should be one of"),
        ({"num_beams": 4, "merging": "sum"}, "merging should be one of"),
        ({"num_beams": 4, "aes_steps": 2}, 'aes_steps without strategy="aes"'),
        ({"strategy": "aes", "aes_steps": 0}, "aes_steps should be"),
        ({"strategy": "aes", "aes_beta": -1}, "aes_beta should be"),
        ({"strategy": "aes", "aes_gamma": 0.0}, "aes_gamma should be above 0"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        TransducerDecoder(Toy(5, 4), Letters("abcd"), **arguments)


def test_aes_is_for_rnnt():
    with pytest.raises(ValueError, match='TDT model skips frames; use strategy="alsd"'):
        TransducerDecoder(Toy(5, 4, (0, 1, 2)), Letters("abcd"), strategy="aes")
