"""Greedy transducer search: batches by label looping give what the plain loop over one utterance gives."""

from __future__ import annotations

import math

import pytest
import torch
from automata import automata, build_automaton, seeds
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from interpreted import needs_interpreter
from letters import Letters
from property_examples import examples
from row_weights import ilm_weights_of, weight_at
from toys import SHARES, Scripted, Toy, moved, noises, script, toys
from transducer_searches import greedy, greedy_of_one

from hf_ngpulm import InvalidLogitsError, NGramLM, TransducerDecoder
from hf_ngpulm.decoding.internal_lm import ILM_SHARE
from hf_ngpulm.fusion.rows import no_models
from hf_ngpulm.search.confidence import MEASURES

RELAXED = settings(deadline=None, suppress_health_check=list(HealthCheck))


# Kernels are compiled for each, which takes seconds: durations, number of automata, and the internal LM's weight.
FEW_KINDS = st.sampled_from([((0, 1, 2, 3, 4), 1, 0.0), (None, 2, 0.5), (None, 0, -0.25)])


@st.composite
def problems(draw, durations=(), num_automata=None):
    model = draw(toys((durations,)) if durations != () else toys())
    generator = torch.Generator().manual_seed(draw(seeds))
    batch_size, longest = draw(st.integers(1, 5)), draw(st.integers(0, 14))
    frames = 1.5 * torch.randn(batch_size, longest, 6, generator=generator)
    lengths = torch.randint(0, longest + 1, (batch_size,), generator=generator)
    automaton = draw(automata(st.integers(1, 14), most=3))
    shape = (batch_size, draw(st.integers(0, 2)) if num_automata is None else num_automata)
    states = torch.randint(0, automaton.num_states, shape, dtype=torch.int32, generator=generator)
    weights = torch.randint(-2, 5, shape, generator=generator) / 4
    return model, frames, lengths, automaton, states, weights, draw(st.sampled_from([1, 2, 10]))


@given(problems(), st.sampled_from([1, 2, 4, 7]), st.sampled_from(["reference", "cpu"]), st.sampled_from([0.0, 0.5, -0.25]))
@settings(RELAXED, max_examples=examples(150))
def test_batches_equal_the_plain_loop(problem, window, engine, ilm_weight):
    assert_equal_to_the_plain_loop(problem, window, engine, ilm_weight)


@needs_interpreter
@given(st.data(), st.sampled_from([1, 2, 4, 7]))
@settings(RELAXED, max_examples=12)
def test_kernels_equal_the_plain_loop(data, window):
    *kind, ilm_weight = data.draw(FEW_KINDS)
    assert_equal_to_the_plain_loop(data.draw(problems(*kind)), window, "gpu", ilm_weight)


@pytest.mark.slow
@needs_interpreter
@given(problems(), st.sampled_from([1, 2, 4, 7]), st.sampled_from([0.0, 0.5, -0.25]))
@settings(RELAXED, max_examples=30)
def test_kernels_equal_the_plain_loop_in_all_kinds(problem, window, ilm_weight):
    assert_equal_to_the_plain_loop(problem, window, "gpu", ilm_weight)


def assert_equal_to_the_plain_loop(problem, window, engine, ilm_weight):
    model, frames, lengths, automaton, states, weights, max_symbols = problem
    frames = frames.masked_fill((torch.arange(frames.shape[1]) >= lengths[:, None])[..., None], torch.nan)  # padding
    vocab_size = automaton.vocab_size if states.shape[1] else 0
    ilm_weights = ilm_weights_of(ilm_weight, len(frames))
    found = greedy(
        model, frames, lengths, automaton.tensors, states, weights, vocab_size, max_symbols, ilm_weights, engine=engine,
        window=window,
    )  # fmt: skip
    assert found.bad_frames.tolist() == [-1] * len(frames)
    for row in range(len(frames)):
        expected = greedy_of_one(
            model, frames[row, : lengths[row]], automaton.tensors, states[row], weights[row], vocab_size, max_symbols,
            weight_at(ilm_weights, row),
        )  # fmt: skip
        count = int(found.counts[row])
        assert found.tokens[row, :count].tolist() == expected.tokens
        assert found.durations[row, :count].tolist() == expected.durations
        scale = 1e-4 * (1 + count)
        assert float(found.acoustic_scores[row]) == pytest.approx(expected.acoustic_score, abs=scale, rel=1e-4)
        torch.testing.assert_close(found.lm_scores[row], expected.lm_scores, rtol=1e-4, atol=1e-3)
        assert float(found.ilm_scores[row]) == pytest.approx(expected.ilm_score, abs=scale, rel=1e-4)


@pytest.mark.parametrize("engine", ["reference", "cpu", pytest.param("gpu", marks=needs_interpreter)])
@given(st.data())
@settings(RELAXED, max_examples=25)
def test_the_first_of_those_that_score_the_same_is_chosen(engine, data):
    """Classes, whether an LM scores them the same or not, and durations."""
    vocab_size, durations = data.draw(st.integers(2, 6)), data.draw(st.sampled_from([None, (0, 1, 2), (2, 1)]))
    model = Scripted(vocab_size, durations)
    model.blank_id = data.draw(st.sampled_from([0, vocab_size // 2, vocab_size - 1]))
    generator = torch.Generator().manual_seed(data.draw(seeds))
    size = 2, data.draw(st.integers(1, 5))
    parts = [torch.randint(-1, 2, (*size, width), generator=generator).float() for width in (vocab_size, len(durations or ()))]
    moves = [noises(size, generator) for _ in parts]
    arcs = [{token: (-1.37, token % 2) for token in range(vocab_size)}, {0: (-0.61, 0)}]
    automaton = build_automaton(vocab_size, arcs, [0, 0], [0.0, -0.83])
    states, weights = torch.zeros((2, 1), dtype=torch.int32), torch.tensor([[0.71], [0.0]])

    def plain(share):
        frames = torch.cat([moved(part, share * noise) for part, noise in zip(parts, moves)], -1)
        of_rows = zip(frames, states, weights)
        paths = [greedy_of_one(model, row, automaton.tensors, *of_row, vocab_size, 2) for row, *of_row in of_rows]
        return frames, [(path.tokens, path.durations) for path in paths]

    (frames, expected), *others = (plain(share) for share in SHARES)
    assume(all(other == expected for _, other in others))  # no tie of rounding alone
    lengths = torch.tensor([size[1]] * 2)
    found = greedy(model, frames, lengths, automaton.tensors, states, weights, vocab_size, 2, engine=engine)
    steps = zip(found.counts.tolist(), found.tokens.tolist(), found.durations.tolist())
    assert [(tokens[:count], moved_on[:count]) for count, tokens, moved_on in steps] == expected


@needs_interpreter
@pytest.mark.parametrize("search", [{}, {"num_beams": 2}])
def test_kernels_take_what_a_model_says_itself_for_its_internal_lm(search):
    class Opinionated(Toy):
        def internal_lm(self, predictions):
            scores = super().internal_lm(predictions)
            return torch.where(scores.isinf(), scores, -math.log(4))

    frames = 1.5 * torch.randn(2, 6, 6, generator=torch.Generator().manual_seed(3))
    found = {}
    for kind in (Toy, Opinionated):
        for engine in ("gpu", "reference"):
            decoder = TransducerDecoder(kind(5, 4, seed=1), Letters("abcd"), ilm_weight=0.7, engine=engine, **search)
            found[kind, engine] = [n_best[0].score for n_best in decoder.decode(frames)]
    for kind in (Toy, Opinionated):
        assert found[kind, "gpu"] == pytest.approx(found[kind, "reference"], abs=1e-4)
    assert found[Toy, "gpu"] != pytest.approx(found[Opinionated, "gpu"], abs=1e-2)


@needs_interpreter
@pytest.mark.parametrize(("durations", "confidence", "ilm_weight"), [(None, None, 0.4), ((0, 1, 2), "max_prob", 0.0)])
def test_buffers_serve_batches_of_other_sizes(durations, confidence, ilm_weight):
    """What a CUDA graph relies on: steps work on the same tensors each time, and a batch leaves nothing behind for the next."""
    model, kept = Toy(7, 3, durations, seed=2), {}
    for seed, (size, longest) in enumerate([(3, 9), (4, 4), (3, 12), (4, 1)]):
        generator = torch.Generator().manual_seed(seed)
        frames = 1.5 * torch.randn(size, longest, 6, generator=generator)
        lengths = torch.randint(0, longest + 1, (size,), generator=generator)
        padded = frames.masked_fill((torch.arange(longest) >= lengths[:, None])[..., None], torch.nan)
        models = no_models(size, frames.device)
        ilm_weights = ilm_weights_of(ilm_weight, size)
        arguments = (lengths, models.tensors, models.states, models.weights, 0, 3, ilm_weights, confidence)
        found = greedy(model, padded, *arguments, "gpu", kept=kept)
        expected = greedy(model, frames, *arguments, "cpu")
        assert torch.equal(found.counts, expected.counts) and torch.equal(found.tokens, expected.tokens)
        assert torch.equal(found.durations, expected.durations)
        torch.testing.assert_close(found.acoustic_scores, expected.acoustic_scores, rtol=1e-4, atol=1e-3)
        if confidence is not None:
            torch.testing.assert_close(found.confidences, expected.confidences, rtol=1e-4, atol=1e-4)
    assert len(kept) == 1


@needs_interpreter
@pytest.mark.parametrize("measure", [None, *(pytest.param(measure, marks=pytest.mark.slow) for measure in MEASURES)])
def test_kernels_equal_the_core(measure):
    """In batches of several sizes, with two automata a row, more classes than a program looks at in one go, and half precision
    on the way."""
    generator = torch.Generator().manual_seed(0)
    lm = NGramLM.train(torch.randint(0, 2050, (60, 6), generator=generator).tolist(), vocab_size=2050, order=3)
    durations = (0, 1, 2, 3, 4) if measure in ("max_prob", "tsallis") else None
    model, kept = Toy(2060, 2059, durations, seed=3, blank_bias=6.0), {}
    for size, longest in ((3, 7), (1, 3), (4, 0)):
        frames = 1.5 * torch.randn(size, longest, 6, generator=generator)
        lengths = torch.randint(0, longest + 1, (size,), generator=generator)
        states, weights = lm.starts[:1].expand(size, 2).contiguous(), torch.tensor([0.4, -0.1]).expand(size, 2).contiguous()
        weights[0] = 0.0
        arguments = (model, frames, lengths, lm.tensors, states, weights, 2050, 3, ilm_weights_of(0.1, size), measure)
        found, expected = (greedy(*arguments, engine, kept=kept) for engine in ("gpu", "cpu"))
        for name, ours, theirs in zip(found._fields, found, expected):
            if name in ("tokens", "durations", "confidences") and theirs is not None:
                taken = torch.arange(theirs.shape[1]) < expected.counts[:, None]
                ours, theirs = ours[taken], theirs[taken]
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert len(kept) == 2


@needs_interpreter
def test_kernels_name_broken_frames_and_take_half_precision():
    decoder = TransducerDecoder(Toy(5, 4, seed=1), Letters("abcd"), engine="gpu")
    frames = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(4))
    expected = TransducerDecoder(Toy(5, 4, seed=1), Letters("abcd"), engine="cpu").decode(frames)
    assert [best.token_ids for (best,) in decoder.decode(frames)] == [best.token_ids for (best,) in expected]
    frames[1, 2] = math.nan
    with pytest.raises(InvalidLogitsError, match="row 1 hold NaN or infinity at frame 2"):
        decoder.decode(frames)
    model = Scripted(3, (0, 1, 2, 3, 4), max_symbols=2)
    labels, durations = [0, 1, 2, 1, 1, 0, 1], [2, 0, 3, 0, 0, 0, 1]
    scripted = script(*labels, classes=3, durations=durations)
    for frames in (scripted, scripted.bfloat16(), scripted.half()):
        ((best,),) = TransducerDecoder(model, Letters("ab_"), engine="gpu")(frames)
        assert best.token_ids == [0, 0, 0, 1] and best.token_frames == [0, 5, 5, 6]
    scripted[0, 2, 4] = math.inf
    with pytest.raises(InvalidLogitsError, match="row 0 hold NaN or infinity at frame 2"):
        TransducerDecoder(model, Letters("ab_"), engine="gpu")(scripted)


def test_a_model_that_never_says_blank_is_moved_on():
    model = Scripted(3, max_symbols=4)
    ((best,),) = TransducerDecoder(model, Letters("ab_"))(script(0, 1, classes=3))
    assert best.token_ids == [0] * 4 + [1] * 4 and best.token_frames == [0] * 4 + [1] * 4
    ((best,),) = TransducerDecoder(model, Letters("ab_"), max_symbols=1)(script(0, 1, 2, 0, classes=3))
    assert best.token_ids == [0, 1, 0] and best.token_ends == [1, 2, 4]


def test_durations_are_followed_and_times_told():
    """A TDT says a token of two frames, skips a blank of three, and a token of none at the frame of the next."""
    model = Scripted(3, (0, 1, 2, 3, 4), frame_seconds=0.1)
    labels, durations = [0, 1, 2, 1, 1, 0, 1], [2, 0, 3, 0, 0, 0, 1]
    decoder = TransducerDecoder(model, Letters("ab_"), max_symbols=2)
    ((best,),) = decoder(script(*labels, classes=3, durations=durations))
    assert best.token_ids == [0, 0, 0, 1] and best.token_frames == [0, 5, 5, 6] and best.token_ends == [2, 6, 6, 7]
    assert [(word.text, word.start, word.end) for word in best.words] == [("aaab", 0.0, 0.7)]
    assert all(0.9 < confidence < 1 for confidence in best.token_confidences)
    assert best.text == "aaab"


def test_no_token_ends_behind_its_row():
    model = Scripted(3, (0, 1, 2, 3, 4))
    ((best,),) = TransducerDecoder(model, Letters("ab_"))(script(2, 0, classes=3, durations=[1, 4]))
    assert best.token_frames == [1] and best.token_ends == [2] and len(best.token_confidences) == 1


def test_an_lm_changes_tokens_never_blanks():
    lm = NGramLM.train([[1]] * 20 + [[0, 1]], vocab_size=2, order=2)
    frames = script(2, 0, 2, 0, 2, classes=3, margin=1.0)
    plain = TransducerDecoder(Scripted(3, max_symbols=1), Letters("ab_"))(frames)[0][0]
    fused = TransducerDecoder(Scripted(3, max_symbols=1), Letters("ab_"), lm, 3.0, ilm_weight=0.0, num_beams=1)(frames)[0][0]
    assert plain.token_ids == [0, 0] and fused.token_ids == [1, 1] and fused.token_frames == plain.token_frames == [1, 3]
    assert fused.lm_score == pytest.approx(float(lm.score_sequences(torch.tensor([[1, 1]]), eos=False)), abs=1e-4)
    assert fused.score == pytest.approx(fused.acoustic_score + 3.0 * fused.lm_score, abs=1e-4)
    subtracted = TransducerDecoder(Scripted(3, max_symbols=1), Letters("ab_"), lm, 3.0, num_beams=1)(frames)[0][0]
    internal = 2 * Scripted(3).internal_lm(torch.zeros(1, 6))[0, 1]
    assert subtracted.token_ids == [1, 1] and subtracted.score == pytest.approx(
        fused.score - ILM_SHARE * 3.0 * float(internal), abs=1e-4
    )
    against = TransducerDecoder(Scripted(3, max_symbols=1), Letters("ab_"), lm, -3.0, num_beams=1)
    negative = against(script(1, 1, classes=3, margin=0.5))
    assert negative[0][0].token_ids == [0, 0]


def test_one_model_and_weight_a_row():
    torch.manual_seed(0)
    model, frames = Toy(9, 8, seed=3), 1.5 * torch.randn(4, 20, 6)
    lms = [NGramLM.train([[i, i + 1, i]] * 5, vocab_size=8, order=2) for i in range(2)]
    models, weights = [lms[0], None, lms[1], lms[0]], torch.tensor([0.5, 1.0, 2.0, 0.0])
    tokenizer = Letters("abcdefgh")
    together = TransducerDecoder(model, tokenizer, models, weights, num_beams=1).decode(frames)
    for row, lm in enumerate(models):
        own = TransducerDecoder(model, tokenizer, lm, float(weights[row]), num_beams=1)
        ((alone,),) = own.decode(frames[row : row + 1])
        assert together[row][0].token_ids == alone.token_ids and together[row][0].token_frames == alone.token_frames
        assert together[row][0].score == pytest.approx(alone.score, abs=1e-3)
    assert together[1][0].lm_score == 0.0


def test_classes_that_no_lm_scores_stay():
    """Class 2 is beyond the LM's vocabulary."""
    automaton = build_automaton(2, [{0: (-50.0, 0), 1: (0.0, 0)}], [0], [0.0])
    model, frames = Scripted(4, max_symbols=1), script(3, 2, 0, 3, classes=4)
    states, weights = torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, 1)
    found = greedy(model, frames, torch.tensor([4]), automaton.tensors, states, weights, 2, 1)
    assert found.tokens[0].tolist() == [3, 2, 1, 3] and found.lm_scores.tolist() == [[0.0]]


def test_bad_and_odd_input():
    decoder = TransducerDecoder(Toy(5, 4, seed=1), Letters("abcd"))
    frames = torch.randn(3, 9, 6)
    assert decoder.decode(torch.zeros(0, 4, 6)) == []
    assert [n_best[0].text for n_best in decoder.decode(torch.zeros(2, 0, 6))] == ["", ""]
    assert [n_best[0].token_ids for n_best in decoder.decode(frames, torch.tensor([0, 9, 0]))][::2] == [[], []]
    broken = frames.clone()
    broken[1, 4] = math.nan
    with pytest.raises(InvalidLogitsError, match=r"row 1 .* frame"):
        decoder.decode(broken)
    assert len(decoder.decode(broken, torch.tensor([9, 4, 9]))) == 3
    for wrong, error, message in (
        ((frames[0],), InvalidLogitsError, r"\[B, T, D\].* add a batch dimension"),
        ((frames, torch.tensor([9, 9])), ValueError, "3 integers"),
        ((frames, torch.tensor([9, 10, 1])), ValueError, r"0\.\.9"),
    ):
        with pytest.raises(error, match=message):
            decoder.decode(*wrong)
    for arguments, message in (
        ({"max_symbols": 0}, "max_symbols"),
        ({"lm_weight": math.inf}, "lm_weight"),
        ({"ilm_weight": math.nan}, "ilm_weight"),
        ({"confidence": "high"}, "high"),
        ({"frame_seconds": -1.0}, "frame_seconds"),
        ({"engine": "fast"}, "engine"),
    ):
        with pytest.raises(ValueError, match=message):
            TransducerDecoder(Toy(5, 4), Letters("abcd"), **arguments)
    for sizes, message in (((5, 5), "should lie in 0..4"), ((5, 4, ()), "durations"), ((5, 4, (0,)), "durations")):
        with pytest.raises(ValueError, match=message):
            Toy(*sizes)
    with pytest.raises(ValueError, match=r"ilm_weight has the shape \(2,\), the batch has 3 rows"):
        TransducerDecoder(Toy(5, 4), Letters("abcd"), ilm_weight=torch.ones(2)).decode(frames)
    with pytest.raises(ValueError, match="isn't a transducer"):
        TransducerDecoder(torch.nn.Linear(1, 1), Letters("ab"))


@given(problems(), st.data())
@settings(RELAXED, max_examples=40)
def test_a_row_does_not_depend_on_its_batch(problem, data):
    model, frames, lengths, *_ = problem
    assume(len(frames) > 1)
    row = data.draw(st.integers(0, len(frames) - 1))
    decoder = TransducerDecoder(model, Letters([chr(97 + i) for i in range(model.vocab_size)]))
    together = decoder.decode(frames, lengths)[row][0]
    ((alone,),) = decoder.decode(frames[row : row + 1, : lengths[row]])
    assert (together.token_ids, together.token_frames) == (alone.token_ids, alone.token_frames)
    assert together.acoustic_score == pytest.approx(alone.acoustic_score, abs=2e-5, rel=1e-5)  # in its last bits
