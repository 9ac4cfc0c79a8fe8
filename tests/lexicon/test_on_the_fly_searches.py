"""Searches with a language model that is composed as they come to its states find what those with the whole one find."""

import random

import pytest
import torch
from toys import Toy

from hf_ngpulm import CTCDecoder, LogLinear, NGramLM, StreamingDecoder, TransducerDecoder
from hf_ngpulm.language_model.training import train
from hf_ngpulm.lexicon import compose


def sentences(count, seed):
    """Texts of words that repeat, with beginnings in common."""
    choose = random.Random(seed)
    words = ["".join(choose.choices("abcdefh", k=choose.randint(1, 4))) for _ in range(40)]
    words += [word + choose.choice("abc") for word in words[:20]]
    weights = [1 / (n + 1) for n in range(len(words))]
    return [" ".join(choose.choices(words, weights, k=choose.randint(1, 7))) for _ in range(count)]


class Both:
    """A model of words, composed as a whole, and (anew each time) on the fly."""

    def __init__(self, tokenizer, order, seed=0, count=300, **how):
        self.training = train(sentences(count, seed), tokenizer, unit="word", order=order)
        self.table, self.words = self.training.of_words
        self.tokenizer, self.how = tokenizer, how
        self.static = self.made("static")

    def made(self, composition="on_the_fly"):
        return NGramLM(compose(self.table, self.words, self.tokenizer, composition=composition, **self.how))


@pytest.fixture(scope="module", params=["letters", "pieces"])
def both(request):
    return Both(request.getfixturevalue(request.param), 3)


def outputs(tokenizer, rows, frames, seed=0, classes=None, scale=2.0):
    made = torch.Generator().manual_seed(seed)
    return scale * torch.randn(rows, frames, classes or len(tokenizer), generator=made)


def facts(found):
    """Return all that hypotheses say, to the bit."""
    names = ("score", "acoustic_score", "lm_score", "phrase_score")
    return [[(h.token_ids, h.text, h.token_frames, *(getattr(h, name) for name in names)) for h in row] for row in found]


@pytest.mark.parametrize("settings", [{}, {"repeats": "label"}, {"num_beams": 6, "num_return_sequences": 6}])
def test_ctc(both, settings):
    lm = both.made()
    logits, lengths = outputs(both.tokenizer, 3, 24), torch.tensor([24, 17, 0])
    for _ in range(2):  # the second time most is there already
        found, expected = (CTCDecoder(both.tokenizer, model, 0.6, **settings)(logits, lengths) for model in (lm, both.static))
        assert facts(found) == facts(expected)
        logits = logits.flip(1) + 0.1 * logits
    assert len(lm.automaton.states.composed) > 1
    assert lm.num_states < both.static.num_states


@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}])
def test_ctc_on_the_gpu_engine(letters, settings):
    pytest.importorskip("triton")
    both = Both(letters, 2, count=60)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    lm, logits = both.made(), outputs(letters, 1, 8, seed=3).to(device)
    found, expected = (CTCDecoder(letters, model, 0.6, engine="gpu", **settings)(logits) for model in (lm, both.static))
    assert facts(found) == facts(expected)
    assert len(lm.automaton.states.composed) > 1


def test_several_models_weights_and_phrases(both):
    tokens = NGramLM.train(sentences(50, 3), tokenizer=both.tokenizer, order=3)
    lm, other = both.made(), both.made()
    logits = outputs(both.tokenizer, 4, 20, seed=5)
    for phrases in (None, ["cab", "a bad dad"]):
        for given, expected in (
            (
                [lm, None, LogLinear([tokens, other], [0.3, 0.6]), other],
                [both.static, None, LogLinear([tokens, both.static], [0.3, 0.6]), both.static],
            ),
            (LogLinear([lm, lm], [0.2, 0.5]), LogLinear([both.static, both.static], [0.2, 0.5])),
        ):
            for settings in ({}, {"num_beams": 5, "num_return_sequences": 5}):
                weights = torch.tensor([0.6, 0.4, 0.9, 0.1])
                ours, theirs = (
                    CTCDecoder(both.tokenizer, models, weights, phrases=phrases, **settings)(logits)
                    for models in (given, expected)
                )
                assert facts(ours) == facts(theirs)


def test_blocks_of_frames(both):
    """Beside each other, in one pool, with the model starting anew in between."""
    lm = both.made()
    lm.automaton.most_bytes = 0
    decoders = [CTCDecoder(both.tokenizer, model, 0.6, num_beams=6) for model in (lm, both.static)]
    logits = outputs(both.tokenizer, 2, 30, seed=2)
    streams = [decoder.stream(2) for decoder in decoders]
    for first in range(0, 30, 4):
        for stream in streams:
            stream.add(logits[:, first : first + 4])
        before = lm.automaton.states
        decoders[0](logits.flip(1)[:, :9])  # another search between two blocks: the states of the first one stay
        assert lm.automaton.states is before
    assert facts(streams[0].hypotheses()) == facts(streams[1].hypotheses())
    before = lm.automaton.states
    del streams, stream
    assert facts(decoders[0](logits)) == facts(decoders[1](logits))
    assert lm.automaton.states is not before


def transducers(both, engine, strategy, durations=None, **more):
    model = Toy(len(both.tokenizer), 0, seed=3, blank_bias=2.0, **({} if durations is None else {"durations": durations}))
    settings = {"strategy": strategy, "engine": engine, **({} if strategy == "greedy" else {"num_beams": 4}), **more}
    lm = both.made()
    return lm, *(TransducerDecoder(model, both.tokenizer, lm=m, lm_weight=0.8, **settings) for m in (lm, both.static))


# Without compiled loops a search for pieces, or with phrases, takes long.
KINDS = [("letters", "cpu"), ("pieces", "cpu")]
SLOW_KIND = ("letters", "reference")


@pytest.mark.parametrize(("both", "engine"), [*KINDS, pytest.param(*SLOW_KIND, marks=pytest.mark.slow)], indirect=["both"])
@pytest.mark.parametrize("strategy", ["greedy", "alsd", "aes"])
def test_transducers(both, engine, strategy):
    lm, ours, theirs = transducers(both, engine, strategy)
    inputs, mask = torch.randn(3, 14, 6, generator=torch.Generator().manual_seed(0)), torch.ones(3, 14, dtype=torch.int64)
    mask[1, 9:] = 0
    for _ in range(2):
        assert facts(ours(inputs, mask)) == facts(theirs(inputs, mask))
        inputs = inputs.flip(1)
    assert len(lm.automaton.states.composed) > 1


def in_streams(decoder, chunks, phrases):
    """Texts, scores and partial results of two streams, one of them with phrases from the middle on."""
    streams = StreamingDecoder(decoder, max_streams=3)
    first, second = streams.open(), streams.open()
    said = []
    for n, chunk in enumerate(chunks):
        if n == 2 and phrases:
            streams.set_context(second, phrases)
        partials = streams.step({first: chunk[0], second: chunk[1]})
        said.append([(partial.text, partial.score) for partial in partials.values()])
    said.append(facts([streams.reset(first), streams.close(second)]))
    said.append([partial.text for partial in streams.step({first: chunks[0][1]}).values()])
    return said, facts([streams.close(first)])


@pytest.mark.parametrize("phrases", [None, ["a bad dad"]])
@pytest.mark.parametrize("settings", [{}, {"num_beams": 5}])
def test_streams_of_ctc(both, settings, phrases):
    logits = outputs(both.tokenizer, 2, 28, seed=4)
    chunks = logits.split(6, 1)
    ours, theirs = (
        in_streams(CTCDecoder(both.tokenizer, lm, 0.6, **settings), chunks, phrases) for lm in (both.made(), both.static)
    )
    assert ours == theirs


@pytest.mark.parametrize(
    ("both", "engine", "phrases"),
    [(*kind, phrases) for kind in KINDS for phrases in (None, ["a bad dad"])]
    + [pytest.param(*SLOW_KIND, None, marks=pytest.mark.slow)],
    indirect=["both"],
)
@pytest.mark.parametrize("strategy", ["greedy", "alsd", "aes"])
def test_streams_of_transducers(both, engine, strategy, phrases):
    lm, ours, theirs = transducers(both, engine, strategy)
    inputs, mask = torch.randn(2, 12, 6, generator=torch.Generator().manual_seed(1)), torch.ones(2, 12, dtype=torch.int64)
    frames, _ = ours.model.encode(inputs, mask)
    chunks = frames.split(3, 1)
    assert in_streams(ours, chunks, phrases) == in_streams(theirs, chunks, phrases)
    assert len(lm.automaton.states.composed) > 1
