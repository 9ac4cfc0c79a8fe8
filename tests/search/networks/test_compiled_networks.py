"""HAT and the stateless transducer: the compiled networks say what the plain steps say, in all searches."""

from __future__ import annotations

from itertools import compress

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from letters import Letters
from torch import nn

from hf_ngpulm import NGramLM, StreamingDecoder, TransducerDecoder
from hf_ngpulm.models import HatConfig, HatForASR, StatelessTransducerConfig, StatelessTransducerForASR
from hf_ngpulm.search.networks.model import transducer_of

LETTERS = Letters("abcdefghij")
BLANK, SIZE = 10, 12
ENCODER = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "num_mel_bins": 16,
    "subsampling_conv_channels": 4, "conv_kernel_size": 3, "layerdrop": 0.0,
}  # fmt: skip


def made(kind, number, activation, seed):
    """A model that says something; `number` is that of layers, or of tokens that are seen."""
    own = {"num_decoder_layers": number} if kind is HatForASR else {"context_size": number}
    config = {HatForASR: HatConfig, StatelessTransducerForASR: StatelessTransducerConfig}[kind](
        vocab_size=11, blank_token_id=BLANK, pad_token_id=BLANK, decoder_hidden_size=SIZE, encoder_config=dict(ENCODER),
        hidden_act=activation, **own,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = kind(config).eval()
    with torch.no_grad():
        for part in (model.decoder, model.joint):
            for parameter in part.parameters():
                parameter.normal_(std=1.5 / parameter[0].numel() ** 0.5 if parameter.dim() > 1 else 0.5)
    return model


def plain(model):
    """The same for decoders, but without the compiled networks."""
    found = transducer_of(model)
    found.networks = lambda: None
    return found


def said(hypotheses):
    return [[(best.token_ids, best.token_frames) for best in n_best] for n_best in hypotheses]


@pytest.fixture(scope="module")
def lm():
    generator = torch.Generator().manual_seed(0)
    return NGramLM.train(torch.randint(0, 10, (80, 6), generator=generator).tolist(), vocab_size=10, order=3)


KINDS = (HatForASR, StatelessTransducerForASR)
# With more tokens at a frame, the same steps in another order (a a b a, a b a a) would score the same.
BEAM = {"num_beams": 3, "max_symbols": 2}
SEARCHES = ({}, {"confidence": "tsallis"}, {"ilm_weight": 0.3}, BEAM, {**BEAM, "ilm_weight": 0.3})


@pytest.mark.parametrize("kind", KINDS)
@given(
    st.integers(1, 4), st.sampled_from(["relu", "tanh", "sigmoid", "silu"]), st.integers(0, 2**31), st.sampled_from(SEARCHES),
    st.sampled_from([1, 3, 40]),
)  # fmt: skip
@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=15)
def test_equal_to_the_plain_steps(kind, lm, number, activation, seed, search, rows):
    model = made(kind, number, activation, seed)
    assert transducer_of(model).networks() is not None
    generator = torch.Generator().manual_seed(seed)
    frames = 1.5 * torch.randn(rows, 14, SIZE, generator=generator)
    lengths = torch.randint(0, 15, (rows,), generator=generator)
    found, expected = (
        TransducerDecoder(one, LETTERS, lm, lm_weight=0.6, num_return_sequences=search.get("num_beams", 1), **search)
        for one in (model, plain(model))
    )
    # Scores that are so close that rounding orders them are nobody's right: there a little noise changes the transcripts.
    noise = 2e-5 * torch.randn(frames.shape, generator=generator)
    steady = [one == other for one, other in zip(*(said(expected.decode(frames + n, lengths)) for n in (noise, -noise)))]
    assume(sum(steady) > rows / 2)
    found, expected = ([*compress(one.decode(frames, lengths), steady)] for one in (found, expected))
    assert said(found) == said(expected)
    for row, other in zip(found, expected):
        for name in ("score", "acoustic_score", "lm_score", "token_confidences"):
            values = [torch.tensor(getattr(best, name)) for best in (*row, *other)]
            for value, right in zip(values[: len(row)], values[len(row) :]):
                torch.testing.assert_close(value, right, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("search", [{}, {"num_beams": 3}])
def test_streams_go_on_where_they_were(kind, search, lm):
    model = made(kind, 3, "tanh", 1)
    frames = 1.5 * torch.randn(3, 30, SIZE, generator=torch.Generator().manual_seed(0))
    offline = TransducerDecoder(plain(model), LETTERS, lm, lm_weight=0.6, **search).decode(frames)
    stream = StreamingDecoder(TransducerDecoder(model, LETTERS, lm, lm_weight=0.6, **search), max_streams=4)
    sids = [stream.open() for _ in frames]
    for begin, end in ((0, 1), (1, 2), (2, 13), (13, 30)):
        stream.step({sid: row[begin:end] for sid, row in zip(sids, frames)})
    assert said([stream.close(sid) for sid in sids]) == said(offline)


def test_the_blank_of_a_hat_keeps_its_probability():
    model = made(HatForASR, 1, "relu", 0)
    frames, predictions = torch.randn(2, 7, SIZE).unbind(0)
    found = model.joint(frames, predictions)
    torch.testing.assert_close(
        found[:, BLANK].exp(), torch.sigmoid(model.joint.blank_head(nn.ReLU()(frames + predictions))[:, 0])
    )


@pytest.mark.parametrize("kind", KINDS)
def test_what_isnt_known_is_left_to_torch(kind):
    class Other(nn.Linear):
        pass

    changes = {
        "a hook": lambda model: model.joint.register_forward_hook(lambda *_: None),
        "a class": lambda model: setattr(model.joint, "head", Other(SIZE, model.joint.head.out_features)),
        "an activation": lambda model: setattr(model.joint, "activation", nn.GELU()),
        "a type": lambda model: model.decoder.decoder_projector.to(torch.bfloat16),
        "an embedding": lambda model: setattr(model.decoder.embedding, "max_norm", 1.0),
    }
    if kind is HatForASR:
        changes["a blank"] = lambda model: setattr(model.joint, "blank_head", Other(SIZE, 1))
    else:
        changes["between"] = lambda model: setattr(model.decoder, "activation", nn.Tanh())
        changes["a convolution"] = lambda model: setattr(model.decoder, "convolution", nn.Conv1d(SIZE, SIZE, 2))
    for what, change in changes.items():
        model = made(kind, 2, "relu", 0)
        change(model)
        assert transducer_of(model).networks() is None, what


def test_frames_that_arent_numbers_are_found(lm):
    from hf_ngpulm import InvalidLogitsError

    for kind in KINDS:
        decoder = TransducerDecoder(made(kind, 2, "relu", 0), LETTERS, lm, lm_weight=0.5)
        frames = torch.randn(2, 5, SIZE)
        frames[1, 3, 2] = torch.nan
        with pytest.raises(InvalidLogitsError, match="3"):
            decoder.decode(frames)
