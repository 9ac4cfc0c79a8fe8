"""Streams end in what their decoder gives for all frames at once: any chunks, any company, streams that come and go."""

from __future__ import annotations

import functools

import pytest
import torch
from automata import seeds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from letters import Letters
from property_examples import examples
from toys import Modules, toys

from hf_ngpulm import CTCDecoder, GraphDecoder, NGramLM, StreamingDecoder, TransducerDecoder

RELAXED = settings(deadline=None, suppress_health_check=list(HealthCheck))
DURATIONS = (None, None, (0, 1, 2, 3, 4), (0, 1), (1, 2), (0, 3))


@functools.cache
def trained(vocab_size, seed):
    generator = torch.Generator().manual_seed(seed)
    return NGramLM.train(torch.randint(0, vocab_size, (60, 6), generator=generator).tolist(), vocab_size=vocab_size, order=3)


@st.composite
def options(draw, vocab_size, num_beams=(1,), **more):
    """A decoder's options, and for each of three kinds of streams what it is opened with, and what offline decoding takes."""
    found = {
        "engine": draw(st.sampled_from(["cpu", "cpu", "reference"])),
        "num_beams": draw(st.sampled_from(num_beams)),
        **more,
    }
    found["confidence"] = draw(st.sampled_from(["max_prob", "tsallis", None]))
    if found["num_beams"] > 1:
        found["num_return_sequences"] = draw(st.integers(1, found["num_beams"]))
        found["score_eos"] = draw(st.booleans())
    kind = draw(st.sampled_from(["none", "one", "each"]))
    if kind == "none":
        return found, [({}, {})]
    lms = [trained(vocab_size, seed) for seed in range(2)]
    if kind == "one":
        given_lm = {"lm": lms[0], "lm_weight": 0.6}
        return found | given_lm, [({}, given_lm), ({"lm_weight": 1.1}, given_lm | {"lm_weight": 1.1})]
    each = [{"lm": lm, "lm_weight": weight} for lm, weight in zip((*lms, None), (0.4, -0.3, 0.7))]
    return found | {"lm": lms}, [(one, one) for one in each]


@st.composite
def plays(draw, kinds):
    """Streams one after another in few slots: utterances of random frames, their kinds, and which take part in each step."""
    generator = torch.Generator().manual_seed(draw(seeds))
    most = draw(st.integers(1, 3))
    lengths = draw(st.lists(st.sampled_from([0, 1, 5, 13, 30]), min_size=1, max_size=5))
    chunk = draw(st.sampled_from([1, 3, 8, 40]))
    of_kind = [int(torch.randint(0, kinds, (), generator=generator)) for _ in lengths]
    return generator, most, lengths, chunk, of_kind


def played(decoder, play, kinds, frames_of, look=None):
    """What streams end in, and their frames. Streams that end are reset or closed; others take their places."""
    generator, most, lengths, chunk, of_kind = play
    stream = StreamingDecoder(decoder, max_streams=most)
    utterances = [frames_of(length, generator) for length in lengths]
    pending, going, found = list(range(len(lengths))), {}, {}
    while pending or going:
        while pending and len(going) < most:
            number = pending.pop(0)
            going[stream.open(**kinds[of_kind[number]][0])] = [number, 0]
        chunks = {}
        for sid, (number, at) in going.items():
            if torch.rand((), generator=generator) < 0.7:
                size = int(torch.randint(0, chunk + 1, (), generator=generator))
                chunks[sid] = utterances[number][at : at + size]
                going[sid][1] = min(at + size, lengths[number])
        partials = stream.step(chunks)
        assert list(partials) == list(chunks)
        for sid, partial in partials.items():
            if look is not None:
                look(partial, going[sid][1], (sid, going[sid][0]))
        for sid, (number, at) in list(going.items()):
            if at == lengths[number]:
                follower = next((n for n in pending if of_kind[n] == of_kind[number]), None)
                if follower is None:
                    found[number] = stream.close(sid)
                    del going[sid]
                else:
                    found[number] = stream.reset(sid)
                    pending.remove(follower)
                    going[sid] = [follower, 0]
    assert len(stream) == 0
    return [(found[number], utterances[number], of_kind[number]) for number in range(len(lengths))]


def assert_equal(ours, theirs):
    assert [h.token_ids for h in ours] == [h.token_ids for h in theirs]
    for a, b in zip(ours, theirs):
        assert (a.text, a.token_frames, a.token_ends) == (b.text, b.token_frames, b.token_ends)
        near = {"abs": 1e-3, "rel": 1e-4}
        assert (a.score, a.acoustic_score, a.lm_score) == pytest.approx((b.score, b.acoustic_score, b.lm_score), **near)
        assert a.token_confidences == pytest.approx(b.token_confidences, abs=2e-4)


class Watch:
    """Looks at partials: what is stable stays, frames are counted, texts are those of the tokens."""

    def __init__(self, tokenizer):
        self.tokenizer, self.before, self.stable = tokenizer, {}, {}

    def __call__(self, partial, frames, utterance):
        assert partial.frames == frames and 0 <= partial.stable <= len(partial.token_ids)
        fixed = self.stable.get(utterance, [])
        assert partial.token_ids[: len(fixed)] == fixed and partial.stable >= len(fixed)
        self.stable[utterance] = partial.token_ids[: partial.stable]
        assert partial.text == self.tokenizer.decode(partial.token_ids)
        assert partial.stable_text == self.tokenizer.decode(partial.token_ids[: partial.stable])

    def check_ends(self, ends):
        assert all(any(hypothesis.token_ids[: len(fixed)] == fixed for hypothesis in ends[number]) for (_, number), fixed in (
            self.stable.items()
        ))  # fmt: skip


def check(decoder_of, kinds, given_options, play, frames_of, decode, tokenizer):
    watch = Watch(tokenizer)
    ends = played(decoder_of(given_options), play, kinds, frames_of, watch)
    for ours, frames, kind in ends:
        without = {name: value for name, value in given_options.items() if name not in ("lm", "lm_weight")}
        (theirs,) = decode(decoder_of(without | kinds[kind][1]), frames[None])
        assert_equal(ours, theirs)
    watch.check_ends([ours for ours, *_ in ends])


@given(st.data())
@settings(RELAXED, max_examples=40)
def test_ctc(data):
    tokenizer = Letters(["a", "b", "ab", "|", "ba", "aa", "c", "d", "_"], blank=8)
    given_options, kinds = data.draw(options(8, (1, 1, 2, 5)))
    if given_options["num_beams"] == 1:
        given_options["repeats"] = data.draw(st.sampled_from(["stay", "label", "run"]))
    else:
        given_options["merge"] = data.draw(st.sampled_from(["tokens", "text"]))

    def frames_of(length, generator):
        return 2.5 * torch.randn(length, 9, generator=generator) + torch.eye(9)[8] * 2

    play = data.draw(plays(len(kinds)))
    given_options["engine"] = data.draw(st.sampled_from(["cpu", "reference"]))
    check(
        lambda chosen: CTCDecoder(tokenizer, **chosen), kinds, given_options, play, frames_of,
        lambda decoder, frames: decoder(frames), tokenizer,
    )  # fmt: skip


@given(st.data())
@settings(RELAXED, max_examples=examples(25))
def test_graphs(data):
    tokenizer = Letters(["a", "b", "ab", "|", "ba", "aa", "c", "d", "_"], blank=8)
    given_options, kinds = data.draw(options(8, (3, 8)).filter(lambda drawn: "lm" in drawn[0]))
    kinds = [kind for kind in kinds if kind[1]["lm"] is not None]  # a graph needs one
    given_options["max_active"] = given_options.pop("num_beams")
    given_options["beta"] = data.draw(st.sampled_from([None, 1.5]))

    def frames_of(length, generator):
        return 2.5 * torch.randn(length, 9, generator=generator) + torch.eye(9)[8] * 2

    def decode(decoder, frames):
        return decoder(frames)

    play = data.draw(plays(len(kinds)))
    check(lambda chosen: GraphDecoder(tokenizer, **chosen), kinds, given_options, play, frames_of, decode, tokenizer)


def transducer(data, model, strategy, num_beams, examples_of_width):
    pieces = "abc|defghijklm"[: model.vocab_size]
    given_options, kinds = data.draw(options(max(1, model.vocab_size - 1), num_beams, strategy=strategy))
    given_options["ilm_weight"] = data.draw(st.sampled_from([0.0, 0.0, 0.3]))
    given_options["max_symbols"] = data.draw(st.sampled_from([1, 2, 10]))
    tokenizer = Letters(pieces)
    if "lm" in given_options:
        tokenizer = Letters(pieces, lm=next(lm for lm in [given_options["lm"]] if lm) if not isinstance(
            given_options["lm"], list) else given_options["lm"][0])  # fmt: skip

    def frames_of(length, generator):
        return 1.5 * torch.randn(length, examples_of_width, generator=generator)

    play = data.draw(plays(len(kinds)))
    check(
        lambda chosen: TransducerDecoder(model, tokenizer, **chosen), kinds, given_options, play, frames_of,
        lambda decoder, frames: decoder.decode(frames), tokenizer,
    )  # fmt: skip


@given(st.data())
@settings(RELAXED, max_examples=examples(40))
def test_greedy_transducers(data):
    transducer(data, data.draw(toys(DURATIONS)), "greedy", (1,), 6)


@given(st.data(), st.integers(1, 2), st.sampled_from(DURATIONS), seeds)
@settings(RELAXED, max_examples=examples(25))
def test_networks_of_the_usual_kind(data, layers, durations, seed):
    """Which compiled loops run as a whole."""
    model = Modules(9, 8, durations, layers, (5, 7, 6), seed=seed)
    transducer(data, model, "greedy", (1,), 6)


@given(st.data())
@settings(RELAXED, max_examples=examples(25))
def test_alsd(data):
    model = data.draw(toys(DURATIONS))
    transducer(data, model, "alsd", (2, 3, 5), 6)


@given(st.data())
@settings(RELAXED, max_examples=examples(25))
def test_aes(data):
    transducer(data, data.draw(toys((None,))), "aes", (2, 3, 5), 6)
