"""With what weight a transducer's internal language model is subtracted, row by row."""

from __future__ import annotations

import math

import pytest
import torch
from letters import Letters
from toys import Modules, Toy

from hf_ngpulm import LogLinear, NGramLM, StreamingDecoder, TransducerDecoder

SEARCHES = [{"strategy": "greedy"}, {"num_beams": 3}, {"num_beams": 3, "strategy": "aes"}]
LETTERS = Letters("abcdefgh")


@pytest.fixture(scope="module")
def lms():
    draws = torch.Generator().manual_seed(1)
    return [NGramLM.train(torch.randint(0, 8, (60, 6), generator=draws).tolist(), vocab_size=8, order=3) for _ in range(2)]


@pytest.fixture(scope="module")
def frames():
    return 1.5 * torch.randn(3, 24, 6, generator=torch.Generator().manual_seed(2))


def found(model, frames, *arguments, **settings):
    hypotheses = TransducerDecoder(model, LETTERS, *arguments, **settings).decode(frames)
    return [(n_best[0].token_ids, pytest.approx(n_best[0].score, abs=1e-3)) for n_best in hypotheses]


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("engine", ["cpu", pytest.param("reference", marks=pytest.mark.slow)])
def test_a_share_of_the_lms_weight_where_nothing_is_said(search, engine, lms, frames):
    model, settings = Modules(9, 8, seed=3), {**search, "engine": engine}
    lm, other = lms
    frames = frames if engine == "cpu" else frames[:2, :4]
    assert found(model, frames, lm, 0.8, **settings) == found(model, frames, lm, 0.8, ilm_weight=0.56, **settings)
    assert found(model, frames, lm, 0.8, **settings) != found(model, frames, lm, 0.8, ilm_weight=0.0, **settings)
    both = LogLinear([lm, other], [0.75, 0.5])
    assert found(model, frames, both, 0.8, **settings) == found(model, frames, both, 0.8, ilm_weight=0.7, **settings)
    for none in ((), (lm, 0.0), (lm, -0.5)):
        assert found(model, frames, *none, **settings) == found(model, frames, *none, ilm_weight=0.0, **settings)
    of_source = {"source_lm": other, "source_weight": 0.2, **settings}
    assert found(model, frames, lm, 0.8, **of_source) == found(model, frames, lm, 0.8, ilm_weight=0.0, **of_source)


@pytest.mark.parametrize("search", SEARCHES)
def test_each_row_has_its_own(search, lms, frames):
    model = Toy(9, 8, seed=3)
    models, weights = [lms[0], None, lms[1]], torch.tensor([0.5, 1.0, 1.5])
    alone = [found(model, frames[row : row + 1], lm, w, **search) for row, (lm, w) in enumerate(zip(models, weights.tolist()))]
    assert found(model, frames, models, weights, **search) == [row for (row,) in alone]
    given = torch.tensor([0.0, 0.3, -0.2])
    alone = [found(model, frames[row : row + 1], lms[0], 0.7, ilm_weight=w, **search) for row, w in enumerate(given.tolist())]
    decoder = TransducerDecoder(model, LETTERS, lms[0], 0.7, ilm_weight=given, **search)
    assert found(model, frames, lms[0], 0.7, ilm_weight=given, **search) == [row for (row,) in alone]
    (last,) = decoder.select([2]).decode(frames[2:])
    assert (last[0].token_ids, last[0].score) == alone[2][0]
    with pytest.raises(ValueError, match="ilm_weight is a tensor with one number per row of a batch"):
        StreamingDecoder(decoder)


@pytest.mark.parametrize("search", SEARCHES)
def test_each_stream_has_its_own(search, lms, frames):
    decoder = TransducerDecoder(Toy(9, 8, seed=3), LETTERS, lms, 0.7, **search)
    streams = StreamingDecoder(decoder, max_streams=3)
    weights = [0.5, 0.0, 1.5]
    sids = [streams.open(lm=lms[row % 2] if weight else None, lm_weight=weight or None) for row, weight in enumerate(weights)]
    for first in range(0, 24, 5):
        streams.step({sid: frames[row, first : first + 5] for row, sid in enumerate(sids)})
    for row, sid in enumerate(sids):
        best = streams.close(sid)[0]
        lm = lms[row % 2] if weights[row] else None
        assert [(best.token_ids, best.score)] == found(decoder.model, frames[row : row + 1], lm, weights[row], **search)


def test_no_token_earns_more_than_from_a_uniform_internal_lm():
    """A token that a weak model never expects would otherwise be worth more than it costs, again and again."""
    model = Toy(9, 8, seed=2, blank_bias=0.0)
    model.head *= 20  # an internal LM that is sure of one token, and very unsure of all others
    predictions = torch.randn(5, 7)
    found = model.internal_lm(predictions)
    plain = torch.log_softmax(model.join(torch.zeros_like(predictions), predictions)[:, :8].float(), -1)
    assert bool((plain < -20).any())
    torch.testing.assert_close(found[:, :8], plain.clamp(min=-math.log(8)))
    assert bool((found[:, 8] == -torch.inf).all())
