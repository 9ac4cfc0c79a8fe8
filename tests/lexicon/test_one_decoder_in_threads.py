"""A decoder that several threads use at once finds what it finds for each alone, to the bit."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from lazy_models import threads_that_change_often
from test_on_the_fly_searches import Both, facts, outputs, sentences
from toys import Toy

from hf_ngpulm import CTCDecoder, LogLinear, NGramLM, StreamingDecoder, TransducerDecoder
from hf_ngpulm.fusion import fusion

THREADS, BATCHES = 4, 40
PHRASES = [None, ["cab"], ["a bad dad"], ["fed", "abba"], ["had a"], ["dad"], ["bad", "cab", "fab"], ["a"]]


@pytest.fixture(scope="module")
def both(letters):
    return Both(letters, 3)


@pytest.fixture(autouse=True)
def changing_often(monkeypatch):
    with threads_that_change_often(monkeypatch):
        yield


def in_threads(run):
    """What `run` returns for each batch, all batches being run by some threads at once."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(run, range(BATCHES)))


def models(both, kind, lm):
    """A language model for the decoder, of ones that are composed lazily or as a whole."""
    tokens = both.tokens
    return {
        "one": lm,
        "several": LogLinear([lm, tokens], [0.6, 0.3]),
        "rows": [lm, tokens, None, LogLinear([tokens, lm], [0.3, 0.6])],
        "of tokens": tokens,
        "none": None,
    }[kind]


@pytest.fixture(scope="module", autouse=True)
def of_tokens(both):
    both.tokens = NGramLM.train(sentences(50, 3), tokenizer=both.tokenizer, order=3)


@pytest.mark.parametrize("kept", [1, 1024])
@pytest.mark.parametrize("settings", [{}, {"num_beams": 5, "num_return_sequences": 5}])
@pytest.mark.parametrize("kind", ["one", "several", "rows", "of tokens", "none"])
def test_ctc(both, kind, settings, kept, monkeypatch):
    monkeypatch.setattr(fusion, "KEPT_CONTEXTS", kept)

    def decode(decoder, number):
        rows = 4 if kind == "rows" else 1 + number % 3
        phrases = PHRASES[number % len(PHRASES)]
        if number % 5 == 1:
            phrases = [PHRASES[(number + row) % len(PHRASES)] for row in range(rows)]
        return facts(decoder(outputs(both.tokenizer, rows, 12 + number % 7, seed=number), phrases=phrases))

    whole = CTCDecoder(both.tokenizer, models(both, kind, both.static), 0.6, **settings)
    expected = [decode(whole, number) for number in range(BATCHES)]
    ours = CTCDecoder(both.tokenizer, models(both, kind, both.made()), 0.6, **settings)
    assert in_threads(lambda number: decode(ours, number)) == expected


def test_batches_of_other_sizes(both):
    """Without phrases the models of a batch are kept for the next one of the same kind."""
    for lm in (both.static, both.made()):
        decoder = CTCDecoder(both.tokenizer, lm, 0.6)
        logits = [outputs(both.tokenizer, 1 + number % 5, 1, seed=number) for number in range(BATCHES * 10)]
        expected = [facts(decoder(each)) for each in logits]
        with ThreadPoolExecutor(THREADS) as pool:
            assert [facts(found) for found in pool.map(decoder, logits)] == expected


@pytest.mark.parametrize("engine", ["cpu", pytest.param("reference", marks=pytest.mark.slow)])  # the same composing
@pytest.mark.parametrize("settings", [{}, {"strategy": "alsd", "num_beams": 3}])
def test_transducer(both, settings, engine):
    model = Toy(len(both.tokenizer), 0, seed=3, blank_bias=2.0)
    batches = 24 if engine == "cpu" else 12

    def decode(decoder, number):
        frames = torch.randn(1 + number % 3, 10 if engine == "cpu" else 5, 6, generator=torch.Generator().manual_seed(number))
        return facts(decoder.decode(frames, phrases=PHRASES[number % len(PHRASES)]))

    def made(lm):
        models = LogLinear([lm, both.tokens], [0.6, 0.3])
        return TransducerDecoder(model, both.tokenizer, lm=models, lm_weight=0.8, engine=engine, **settings)

    whole, ours = made(both.static), made(both.made())
    expected = [decode(whole, number) for number in range(batches)]
    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(lambda number: decode(ours, number), range(batches))) == expected


@pytest.mark.parametrize("settings", [{}, {"num_beams": 5}])
def test_streams(both, settings):
    """Each thread with streams of its own, which switch between phrases."""

    def decode(decoder, number):
        logits = outputs(both.tokenizer, 2, 20, seed=number)
        stream = decoder.stream(2, phrases=PHRASES[number % len(PHRASES)])
        for first in range(0, 20, 5):
            stream.add(logits[:, first : first + 5])
            stream.set_context(first // 5 % 2, PHRASES[(number + first) % len(PHRASES)])
        return facts(stream.hypotheses())

    whole, ours = (CTCDecoder(both.tokenizer, lm, 0.6, **settings) for lm in (both.static, both.made()))
    expected = [decode(whole, number) for number in range(BATCHES)]
    assert in_threads(lambda number: decode(ours, number)) == expected


@pytest.mark.parametrize("family", ["ctc", "transducer"])
def test_streams_that_share_steps(both, family):
    """As in a server, where live streams and recordings have a thread each: both with streams of one decoder."""
    model = Toy(len(both.tokenizer), 0, seed=3, blank_bias=2.0)

    def made(lm):
        if family == "ctc":
            return CTCDecoder(both.tokenizer, lm, 0.6, num_beams=5)
        return TransducerDecoder(model, both.tokenizer, lm=lm, lm_weight=0.8, strategy="alsd", num_beams=3)

    def decode(decoder, number):
        width = len(both.tokenizer) if family == "ctc" else 6
        frames = 2 * torch.randn(2, 12, width, generator=torch.Generator().manual_seed(number))
        streams = StreamingDecoder(decoder, max_streams=2)
        sids = [streams.open(), streams.open(phrases=PHRASES[number % len(PHRASES)])]
        for first in range(0, 12, 4):
            streams.step({sid: frames[row, first : first + 4] for row, sid in enumerate(sids)})
            streams.set_context(sids[0], PHRASES[(number + first) % len(PHRASES)])
        return facts([streams.close(sid) for sid in sids])

    whole, ours = made(both.static), made(both.made())
    expected = [decode(whole, number) for number in range(12)]
    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(lambda number: decode(ours, number), range(12))) == expected
