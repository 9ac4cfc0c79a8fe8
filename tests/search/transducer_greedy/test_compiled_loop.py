"""The whole greedy search in the native core gives what the plain loop over torch's networks gives."""

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
from torch import nn
from toys import ACTIVATIONS, Modules
from transducer_searches import greedy, greedy_of_one

from hf_ngpulm import InvalidLogitsError, NGramLM, TransducerDecoder
from hf_ngpulm.search.confidence import MEASURES
from hf_ngpulm.search.networks.networks import LSTMLayer, TransducerNetworks, networks_of

RELAXED = settings(deadline=None, suppress_health_check=list(HealthCheck))


class InTorch(Modules):
    def networks(self):
        return None


@st.composite
def problems(draw):
    vocab_size = draw(st.integers(2, 12))
    blank_id = draw(st.sampled_from([0, vocab_size // 2, vocab_size - 1]))
    durations = draw(st.sampled_from([None, None, (0, 1, 2, 3, 4), (0, 1), (1, 2), (0, 2), (3,), (3, 0, 2)]))
    arguments = {
        "layers": draw(st.integers(1, 3)),
        "sizes": draw(st.sampled_from([(5, 7, 6), (1, 1, 1), (9, 2, 3), (8, 16, 32)])),
        "activation": draw(st.sampled_from(list(ACTIVATIONS))),
        "seed": draw(seeds),
        "bias": draw(st.booleans()),
    }
    generator = torch.Generator().manual_seed(draw(seeds))
    batch_size, longest = draw(st.sampled_from([1, 2, 5, 21])), draw(st.integers(0, 14))
    frames = 1.5 * torch.randn(batch_size, longest, arguments["sizes"][2], generator=generator)
    lengths = torch.randint(0, longest + 1, (batch_size,), generator=generator)
    automaton = draw(automata(st.integers(1, 14), most=3))
    shape = (batch_size, draw(st.integers(0, 2)))
    states = torch.randint(0, automaton.num_states, shape, dtype=torch.int32, generator=generator)
    weights = torch.randint(-2, 5, shape, generator=generator) / 4
    rest = (draw(st.sampled_from([1, 2, 10])), draw(st.sampled_from([0.0, 0.0, 0.5, -0.25])))
    return (vocab_size, blank_id, durations), arguments, frames, lengths, automaton, states, weights, *rest


@given(problems(), st.sampled_from([1, 2, 4, 7]), st.sampled_from([None, *MEASURES]))
@settings(RELAXED, max_examples=examples(120))
@torch.no_grad()
def test_equal_to_the_plain_loop_and_to_torch(problem, window, measure):
    shape, arguments, frames, lengths, automaton, states, weights, max_symbols, ilm_weight = problem
    frames = frames.masked_fill((torch.arange(frames.shape[1]) >= lengths[:, None])[..., None], torch.nan)  # padding
    vocab_size = automaton.vocab_size if states.shape[1] else 0
    ilm_weights = ilm_weights_of(ilm_weight, len(frames))
    given = (frames, lengths, automaton.tensors, states, weights, vocab_size, max_symbols, ilm_weights, measure)
    found = greedy(Modules(*shape, **arguments), *given, engine="cpu", window=window)
    in_torch = greedy(InTorch(*shape, **arguments), *given, engine="cpu", window=window)
    assert found.bad_frames.tolist() == [-1] * len(frames)
    for name in ("counts", "tokens", "durations"):
        assert torch.equal(getattr(found, name), getattr(in_torch, name))
    for name in ("acoustic_scores", "lm_scores", "ilm_scores"):
        torch.testing.assert_close(getattr(found, name), getattr(in_torch, name), rtol=1e-4, atol=1e-3)
    if measure is not None:
        torch.testing.assert_close(found.confidences, in_torch.confidences, rtol=1e-4, atol=2e-4)
    for row in range(min(len(frames), 3)):
        expected = greedy_of_one(
            InTorch(*shape, **arguments), frames[row, : lengths[row]], automaton.tensors, states[row], weights[row],
            vocab_size, max_symbols, weight_at(ilm_weights, row),
        )  # fmt: skip
        count = int(found.counts[row])
        assert found.tokens[row, :count].tolist() == expected.tokens
        assert found.durations[row, :count].tolist() == expected.durations


def test_weights_that_change_are_seen():
    model, frames = Modules(9, 8, seed=2), 1.5 * torch.randn(3, 30, 6, generator=torch.Generator().manual_seed(0))
    decoder, plain = TransducerDecoder(model, Letters("abcdefgh")), InTorch(9, 8, seed=2)
    texts = set()
    for part in ("embedding", "lstm", "projector", "head"):
        for parameter, twin in zip(getattr(model, part).parameters(), getattr(plain, part).parameters()):
            parameter.data.mul_(-1.3)  # which no version counter tells of
            twin.data.mul_(-1.3)
        found = [best.text for (best,) in decoder.decode(frames)]
        assert found == [best.text for (best,) in TransducerDecoder(plain, Letters("abcdefgh")).decode(frames)]
        texts.add(tuple(found))
    assert len(texts) == 4


def test_in_threads():
    model, frames = Modules(40, 39, sizes=(16, 32, 64)), torch.randn(37, 200, 64, generator=torch.Generator().manual_seed(0))
    decoder = TransducerDecoder(model, Letters([chr(200 + i) for i in range(39)]))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = decoder.decode(frames)
        torch.set_num_threads(3)
        for (together,), (expected,) in zip(decoder.decode(frames), alone):
            assert (together.token_ids, together.token_frames) == (expected.token_ids, expected.token_frames)
            assert together.score == pytest.approx(expected.score, rel=1e-4)
    finally:
        torch.set_num_threads(before)


def test_defaults_of_torch_do_not_matter():
    frames = torch.randn(2, 20, 6, generator=torch.Generator().manual_seed(1), requires_grad=True)
    lm = NGramLM.train([[0, 1, 2]] * 3, vocab_size=4, order=2)
    for options in ({}, {"num_beams": 3}):
        decoder = TransducerDecoder(Modules(5, 4, (0, 1, 2), bias=False), Letters("abcd"), lm, ilm_weight=0.2, **options)
        expected = decoder.decode(frames)
        try:
            torch.set_default_dtype(torch.float64)
            with torch.device("meta"):
                assert decoder.decode(frames) == expected
        finally:
            torch.set_default_dtype(torch.float32)


def test_long_rows_and_no_guard():
    """More steps than were made room for."""
    model, frames = Modules(5, 4, seed=3), torch.randn(1, 400, 6, generator=torch.Generator().manual_seed(1))
    ((found,),) = TransducerDecoder(model, Letters("abcd")).decode(frames)
    ((expected,),) = TransducerDecoder(InTorch(5, 4, seed=3), Letters("abcd")).decode(frames)
    assert found.token_ids == expected.token_ids and found.token_frames == expected.token_frames
    assert found.acoustic_score == pytest.approx(expected.acoustic_score, rel=1e-4)


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
@pytest.mark.parametrize("durations", [None, (0, 1, 2)])
def test_broken_frames_and_weights(activation, durations):
    frames = torch.randn(3, 9, 6, generator=torch.Generator().manual_seed(0))
    for value in (math.nan, -math.nan):
        model = Modules(5, 4, durations, activation=activation)
        broken = frames.clone()
        broken[1, 0] = value
        with pytest.raises(InvalidLogitsError, match=r"row 1 .* frame 0"):
            TransducerDecoder(model, Letters("abcd")).decode(broken)
        for parameter in (model.lstm.weight_hh_l0, model.lstm.bias_ih_l0, model.head.bias):
            with torch.no_grad():
                old = parameter.clone()
                parameter[-1] = value
            with pytest.raises(InvalidLogitsError, match="row 0"):
                TransducerDecoder(model, Letters("abcd")).decode(frames)
            with torch.no_grad():
                parameter.copy_(old)
    impossible = Modules(5, 4, durations, activation=activation)
    with torch.no_grad():
        impossible.head.bias[:3] = -math.inf  # classes that are never said do no harm
    for decoder in (TransducerDecoder(impossible, Letters("abcd"), ilm_weight=weight) for weight in (0.0, 0.5)):
        assert {token for (best,) in decoder.decode(frames) for token in best.token_ids} <= {3}


def test_unusual_networks_are_left_to_torch():
    def parts(**changes):
        lstm = changes.pop("lstm", nn.LSTM(4, 4))
        made = {"embedding": nn.Embedding(5, 4), "lstm": lstm, "projector": nn.Linear(4, 3), "activation": nn.ReLU()}
        return {**made, "head": nn.Linear(3, 5), **changes}

    assert networks_of(**parts()) is not None

    class Doubled(nn.Linear):
        def forward(self, input):
            return 2 * super().forward(input)

    hooked = nn.Linear(3, 5)
    hooked.register_forward_hook(lambda *_: None)
    for changes in (
        {"lstm": nn.LSTM(4, 4, bidirectional=True)},
        {"lstm": nn.LSTM(4, 4, proj_size=2)},
        {"lstm": nn.LSTM(4, 4, 2, dropout=0.5)},
        {"lstm": nn.GRU(4, 4)},
        {"lstm": nn.LSTM(4, 4).double()},
        {"embedding": nn.Embedding(5, 4, max_norm=1.0)},
        {"embedding": nn.Embedding(5, 4, device="meta")},
        {"activation": nn.GELU()},
        {"projector": nn.Linear(4, 3).to(torch.bfloat16)},
        {"head": Doubled(3, 5)},
        {"head": hooked},
    ):
        assert networks_of(**parts(**changes)) is None
    layer = LSTMLayer(torch.zeros(16, 4), torch.zeros(16, 4), torch.zeros(16), torch.zeros(16))
    with pytest.raises(ValueError, match="don't fit together"):
        TransducerNetworks(
            torch.zeros(5, 3), (layer,), torch.zeros(3, 4), torch.zeros(3), "relu", torch.zeros(5, 3), torch.zeros(5)
        )
    with pytest.raises(ValueError, match="doesn't fit"):
        TransducerNetworks(
            torch.zeros(5, 4), (layer,), torch.zeros(3, 4), torch.zeros(3), "relu", torch.zeros(5, 4), torch.zeros(5)
        )
