"""Beam search with the networks in the native core gives what the plain definition gives, and steps over torch's networks."""

from __future__ import annotations

import math

import pytest
import torch
from automata import automata, seeds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from letters import Letters
from property_examples import examples
from row_weights import ilm_weights_of, weight_at
from toys import ACTIVATIONS, Modules
from transducer_searches import beam_of_one, beam_search, searched
from transformers import AutoTokenizer

from hf_ngpulm import InvalidLogitsError, NGramLM, StreamingDecoder, TransducerDecoder
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.search.confidence import MEASURES
from hf_ngpulm.search.networks.search import SearchSettings
from hf_ngpulm.search.transducer_beam.cpu import SLOTS, Search

FIELDS = ("labels", "frames", "durations")
RELAXED = settings(deadline=None, suppress_health_check=list(HealthCheck))


class InTorch(Modules):
    def networks(self):
        return None


@st.composite
def problems(draw):
    durations = draw(st.sampled_from([None, None, (0, 1, 2, 3, 4), (0, 1), (1, 2), (0, 2), (3,)]))
    vocab_size = draw(st.sampled_from([2, 5, 12, 40]))
    blank_id = draw(st.sampled_from([0, vocab_size // 2, vocab_size - 1]))
    activation = draw(st.sampled_from(list(ACTIVATIONS)))
    # Few units of a ReLU may all be off; then all orders of some tokens are equally likely.
    sizes = (8, 16, 32) if activation == "relu" else draw(st.sampled_from([(5, 7, 6), (9, 2, 5), (8, 16, 32)]))
    arguments = {"layers": draw(st.integers(1, 3)), "sizes": sizes, "activation": activation, "seed": draw(seeds)}
    generator = torch.Generator().manual_seed(draw(seeds))
    batch_size, longest = draw(st.sampled_from([1, 2, 5, 17])), draw(st.integers(0, 9))
    frames = 1.5 * torch.randn(batch_size, longest, sizes[2], generator=generator)
    lengths = torch.randint(0, longest + 1, (batch_size,), generator=generator)
    automaton = draw(automata(st.integers(1, 14), most=3))
    shape = (batch_size, draw(st.integers(0, 2)))
    states = torch.randint(0, automaton.num_states, shape, dtype=torch.int32, generator=generator)
    weights = torch.randint(-1, 5, shape, generator=generator) / 4
    of_search = SearchSettings(
        num_beams=draw(st.sampled_from([1, 2, 3, 6, 20])),
        strategy=draw(st.sampled_from(["alsd"] if durations else ["alsd", "aes"])),
        blank_aware=draw(st.booleans()),
        late=draw(st.booleans()),
        log_sum=draw(st.booleans()),
        max_symbols=draw(st.sampled_from([1, 2, 10])),
        aes_steps=draw(st.integers(1, 3)),
        aes_beta=draw(st.integers(0, 2)),
        aes_gamma=draw(st.sampled_from([0.5, 2.3, 100.0])),
    )
    of_automata = (automaton.tensors, states, weights, automaton.vocab_size if shape[1] else 0)
    ilm_weights = ilm_weights_of(draw(st.sampled_from([0.0, 0.0, 0.3])), batch_size)
    return (vocab_size, blank_id, durations), arguments, frames, lengths, of_automata, of_search, ilm_weights


@given(problems(), st.sampled_from([None, *MEASURES]))
@settings(RELAXED, max_examples=examples(40))
@torch.no_grad()
def test_equal_to_the_definition_and_to_torch(problem, measure):
    shape, arguments, frames, lengths, (tensors, states, weights, vocab_size), of_search, ilm_weights = problem
    padded = frames.masked_fill((torch.arange(frames.shape[1]) >= lengths[:, None])[..., None], torch.nan)
    of_search = of_search._replace(confidence=measure)
    given = (padded, lengths, tensors, states, weights, vocab_size, of_search, "cpu", None, ilm_weights)
    model = InTorch(*shape, **arguments)
    found, in_torch = beam_search(Modules(*shape, **arguments), *given), beam_search(model, *given)
    assert found.bad_frames.tolist() == [-1] * len(frames)
    assert torch.equal(found.scores == -math.inf, in_torch.scores == -math.inf)
    live = found.scores > -math.inf
    assert torch.equal(found.counts[live], in_torch.counts[live])
    assert found.labels.shape == in_torch.labels.shape
    inside = (torch.arange(found.labels.shape[2]) < found.counts[..., None]) & live[..., None]
    for name in FIELDS:
        assert torch.equal(getattr(found, name)[inside], getattr(in_torch, name)[inside])
    torch.testing.assert_close(found.confidences[inside], in_torch.confidences[inside], rtol=1e-3, atol=2e-4)
    for name in ("scores", "acoustic_scores", "lm_scores"):
        torch.testing.assert_close(getattr(found, name)[live], getattr(in_torch, name)[live], rtol=1e-4, atol=1e-3)
    for row in range(min(len(frames), 2)):
        expected = beam_of_one(
            model, frames[row, : lengths[row]], tensors, states[row], weights[row], vocab_size, of_search,
            weight_at(ilm_weights, row),
        )  # fmt: skip
        assert int(live[row].sum()) == len(expected)
        for place, path in enumerate(expected):
            steps = zip(*(getattr(found, name)[row, place, : found.counts[row, place]].tolist() for name in FIELDS))
            assert list(steps) == list(path.steps)
            assert float(found.scores[row, place]) == pytest.approx(path.score, abs=1e-3 * (1 + len(path.steps)), rel=1e-4)


def test_a_row_does_not_depend_on_its_batch_in_any_bit():
    generator = torch.Generator().manual_seed(3)
    frames, lengths = torch.randn(21, 40, 32, generator=generator), torch.randint(1, 41, (21,), generator=generator)
    lm = NGramLM.train(torch.randint(0, 8, (60, 6), generator=generator).tolist(), vocab_size=8, order=3)
    before = torch.get_num_threads()
    for durations, strategy in ((None, "alsd"), (None, "aes"), ((0, 1, 2), "alsd")):
        model = Modules(9, 8, durations, sizes=(8, 16, 32), seed=2)
        decoder = TransducerDecoder(model, Letters("abcdefgh"), lm, 0.7, strategy=strategy, num_beams=5, ilm_weight=0.1)
        try:
            torch.set_num_threads(3)
            together = decoder.paths(frames.repeat(9, 1, 1), lengths.repeat(9))
        finally:
            torch.set_num_threads(before)
        for row, length in enumerate(lengths.tolist()):
            alone = decoder.paths(frames[row : row + 1, :length])
            for other in range(row, 9 * 21, 21):
                assert together[other][0].scores == alone[0][0].scores
                for ours, theirs in zip(together[other][0].steps, alone[0][0].steps):
                    assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize("strategy", ["alsd", "aes"])
def test_many_tokens_at_a_frame(strategy):
    """More steps than were made room for."""
    models = [kind(5, 4, seed=3, activation="tanh") for kind in (Modules, InTorch)]
    for model in models:
        model.head.bias.data[4] = -3.0
    frames = torch.randn(3, 60, 6, generator=torch.Generator().manual_seed(1))
    found, expected = (
        TransducerDecoder(model, Letters("abcd"), strategy=strategy, num_beams=3, length_normalization=False).decode(frames)
        for model in models
    )
    for (best,), (other,) in zip(found, expected):
        assert best.token_ids == other.token_ids and best.token_frames == other.token_frames
        assert best.score == pytest.approx(other.score, abs=1e-2)
    if strategy == "alsd":
        assert max(len(best.token_ids) for (best,) in found) > 180  # 2 steps a frame are expected


def test_predictions_are_kept_for_those_who_come_to_the_same_tokens():
    """Of a TDT, hypotheses with the same tokens at several frames. Whatever is kept, all slots say what they say they do."""
    model = Modules(6, 5, (0, 1, 2, 3), seed=4, activation="tanh")
    frames = torch.randn(2, 12, 6, generator=torch.Generator().manual_seed(2))
    lm = NGramLM.train([[0, 1, 2], [2, 1, 0], [3, 4]] * 3, vocab_size=5, order=3)
    models = TransducerDecoder(model, Letters("abcde"), lm).fusion.rows(2, frames.device, None)
    search = Search(model, frames, 2, models, SearchSettings(num_beams=4))
    found = searched(search, models, frames, torch.tensor([12, 9]))
    beam = search.beam
    for row in range(2):
        assert len(set(beam.slot_hashes[row][beam.slot_sizes[row] >= 0].tolist())) == (beam.slot_sizes[row] >= 0).sum()
        for place in range(4):
            slot = beam.slots[row, place]
            assert beam.slot_hashes[row, slot] == beam.hashes[row, place]
            assert beam.slot_sizes[row, slot] == beam.sizes[row, place]
            labels = found.labels[row, place, : found.counts[row, place]]
            prediction, state = model.start(1, frames)
            for token in labels[labels != 5].tolist():
                prediction, state = model.predict(torch.tensor([token]), state)
            kept = search.predictions[row * SLOTS * 4 + slot]
            torch.testing.assert_close(kept, prediction[0].detach(), rtol=1e-4, atol=1e-5)


def test_weights_that_change_are_seen():
    models = [kind(9, 8, seed=2, activation="tanh") for kind in (Modules, InTorch)]
    frames = 1.5 * torch.randn(3, 30, 6, generator=torch.Generator().manual_seed(0))
    decoder = TransducerDecoder(models[0], Letters("abcdefgh"), num_beams=3)
    texts = set()
    for part in ("embedding", "lstm", "projector", "head"):
        for model in models:
            for parameter in getattr(model, part).parameters():
                parameter.data.mul_(-1.3)  # which no version counter tells of
        found = [best.text for (best,) in decoder.decode(frames)]
        assert found == [best.text for (best,) in TransducerDecoder(models[1], Letters("abcdefgh"), num_beams=3).decode(frames)]
        texts.add(tuple(found))
    assert len(texts) == 4


@pytest.mark.parametrize("strategy", ["alsd", "aes"])
def test_broken_outputs_are_named(strategy):
    decoder = TransducerDecoder(Modules(5, 4, seed=1, activation="tanh"), Letters("abcd"), strategy=strategy, num_beams=3)
    frames = torch.randn(3, 9, 6, generator=torch.Generator().manual_seed(4))
    frames[1, 4, 0] = math.nan
    with pytest.raises(InvalidLogitsError, match="row 1 hold NaN or infinity at frame 4"):
        decoder.decode(frames)
    assert len(decoder.decode(frames, torch.tensor([9, 4, 9]))) == 3


@pytest.mark.parametrize("durations", [None, (0, 1, 2)])
@pytest.mark.parametrize("ilm_weight", [0.0, 0.2])
def test_phrases_that_change_in_mid_stream(durations, ilm_weight):
    """What is kept from before knows of the old phrases."""
    frames = torch.randn(2, 24, 6, generator=torch.Generator().manual_seed(6))
    tokenizer = AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))
    lm = NGramLM.from_arpa(bundled("examples/speech/harbour/lm.arpa.gz"), tokenizer, units="id")
    contexts = [["a", "the", "to"], [("what", 3.0), "is", "in"], {"weather": 2.0, "of": 4.0}]
    found = []
    for kind in (Modules, InTorch):
        model = kind(257, 256, durations, seed=5, activation="tanh")
        decoder = TransducerDecoder(model, tokenizer, lm, 0.5, contexts[0], 3.0, num_beams=4, ilm_weight=ilm_weight)
        streams = StreamingDecoder(decoder, max_streams=2)
        sids = [streams.open() for _ in range(2)]
        for first in range(0, 24, 3):
            streams.step({sid: frames[row, first : first + 3] for row, sid in enumerate(sids)})
            streams.set_context(sids[0], contexts[first % 9 // 3])
        found.append([streams.close(sid)[0] for sid in sids])
    for best, expected in zip(*found):
        assert best.token_ids == expected.token_ids and best.token_frames == expected.token_frames
        assert (best.score, best.phrase_score) == pytest.approx((expected.score, expected.phrase_score), abs=1e-3)
