"""What a StreamingDecoder's streams are told and tell: errors, endpoints, partials, texts, engines."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import pytest
import torch
from interpreted import needs_interpreter
from letters import Letters
from toys import Modules, Scripted, Toy, script
from transformers import AutoProcessor

from hf_ngpulm import CTCDecoder, GraphDecoder, Hypothesis, NGramLM, StreamError, StreamingDecoder, TransducerDecoder
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.decoding.hypotheses import Writing
from hf_ngpulm.decoding.partials import Spoken, Transcript
from hf_ngpulm.text.words import WordSplitter

LETTERS = Letters("abc|defg_", blank=8)
DECODERS = {
    "ctc greedy": lambda **more: CTCDecoder(LETTERS, **more),
    "ctc beam": lambda **more: CTCDecoder(LETTERS, num_beams=3, **more),
    "compiled greedy": lambda **more: TransducerDecoder(Modules(9, 8, (0, 1, 2)), LETTERS, **more),
    "greedy": lambda **more: TransducerDecoder(Toy(9, 8, (0, 1, 2), size=9), LETTERS, **more),
    "alsd": lambda **more: TransducerDecoder(Modules(9, 8, (0, 1, 2)), LETTERS, num_beams=3, **more),
    "alsd in torch": lambda **more: TransducerDecoder(Toy(9, 8, size=9), LETTERS, num_beams=3, engine="reference", **more),
    "aes": lambda **more: TransducerDecoder(Modules(9, 8), LETTERS, strategy="aes", num_beams=3, **more),
}
WIDTHS = {"ctc greedy": 9, "ctc beam": 9, "greedy": 9, "alsd in torch": 9}
each = pytest.mark.parametrize("name", list(DECODERS))


def frames_for(name, count, seed=0):
    return 1.5 * torch.randn(count, WIDTHS.get(name, 6), generator=torch.Generator().manual_seed(seed))


def offline(decoder, frames):
    return (decoder.decode if isinstance(decoder, TransducerDecoder) else decoder)(frames[None])[0][0]


@each
def test_a_bad_chunk_harms_no_stream(name):
    """The stream can go on with a better one, and others don't notice."""
    decoder = DECODERS[name]()
    stream = StreamingDecoder(decoder, max_streams=4)
    sids = [stream.open() for _ in range(4)]
    frames = [frames_for(name, 20, seed) for seed in range(4)]
    stream.step({sid: rows[:7] for sid, rows in zip(sids, frames)})
    for bad, message in (
        (torch.full_like(frames[1][7:], math.nan), "NaN or infinity at frame 7"),
        (torch.cat([frames[1][7:12], torch.full_like(frames[1][:1], math.inf)]), "NaN or infinity at frame 12"),
        (frames[1][7:, :-1], "should be"),
        (frames[1][None], "should be"),
        (frames[1][7:].long(), "should be"),
        ("frames", "should be a tensor"),
        (frames[1][7:].to("meta"), "is on meta"),
    ):
        before = stream.step({sids[1]: frames[1][:0]})[sids[1]]
        with pytest.raises(StreamError, match=f"stream {sids[1]}: .*{message}") as caught:
            stream.step({sids[0]: frames[0][7:7], sids[1]: bad, sids[2]: frames[2][7:7]})
        assert list(caught.value.partials) == [sids[0], sids[2]] and list(caught.value.problems) == [sids[1]]
        after = stream.step({sids[1]: frames[1][:0]})[sids[1]]
        assert (before.token_ids, before.frames) == (after.token_ids, after.frames) == (before.token_ids, 7)
    with pytest.raises(StreamError) as caught:
        stream.step({sids[3]: frames[3][7:], sids[1]: frames[1] * math.nan, sids[0]: frames[0][7:]})
    assert {sid: partial.frames for sid, partial in caught.value.partials.items()} == {sids[3]: 20, sids[0]: 20}
    stream.step({sids[1]: frames[1][7:], sids[2]: frames[2][7:]})
    for sid, rows in zip(sids, frames):
        (ours,), theirs = stream.close(sid), offline(decoder, rows)
        assert (ours.token_ids, ours.token_frames) == (theirs.token_ids, theirs.token_frames)
        assert ours.score == pytest.approx(theirs.score, abs=1e-3)


@pytest.mark.parametrize("engine", ["cpu", "reference"])
@pytest.mark.parametrize("strategy", ["greedy", "alsd", "aes"])
def test_outputs_that_are_broken_end_a_stream(strategy, engine):
    """The frames are sound, the model says NaN to them: of that stream nothing is left but to close or reset it."""

    class Broken(Scripted):
        def join(self, frames, predictions):
            return torch.where(frames > 90, torch.nan, frames) + 0 * predictions

    once = {"aes_steps": 1} if strategy == "aes" else {}
    decoder = TransducerDecoder(Broken(3, max_symbols=1), Letters("ab_"), strategy=strategy, engine=engine, **once)
    stream = StreamingDecoder(decoder, 3)
    sids = [stream.open() for _ in range(3)]
    frames = script(0, 2, 1, 2, 0, classes=3)[0]
    bad = frames.clone()
    bad[3, 0] = 100.0
    stream.step({sid: frames[:2] for sid in sids})
    with pytest.raises(StreamError, match=r"stream 1: .* frame 3") as caught:
        stream.step(dict(zip(sids, (frames[2:], bad[2:], frames[2:]))))
    assert [partial.text for partial in caught.value.partials.values()] == ["aba", "aba"]
    with pytest.raises(StreamError, match="close or reset it"):
        stream.step({sids[1]: frames})
    assert stream.reset(sids[1]) == []
    stream.step({sids[1]: frames})
    assert [stream.close(sid)[0].text for sid in sids] == ["aba", "aba", "aba"]


def test_streams_that_are_not_open():
    stream = StreamingDecoder(DECODERS["ctc greedy"](), max_streams=1)
    frames = frames_for("ctc greedy", 4)
    with pytest.raises(StreamError, match="stream 0: no such stream"):
        stream.step({0: frames})
    sid = stream.open()
    with pytest.raises(ValueError, match="max_streams=1"):
        stream.open()
    stream.close(sid)
    for call, message in (
        (lambda: stream.step({sid: frames}), "a chunk after close"),
        (lambda: stream.close(sid), "isn't open"),
    ):
        with pytest.raises(StreamError, match=message):
            call()
    with pytest.raises(StreamError, match="isn't open"):
        stream.reset(7)
    assert stream.step({}) == {} and len(stream) == 0
    assert stream.open() != sid and len(stream) == 1


def test_wrong_arguments():
    ctc, transducer = DECODERS["ctc greedy"](), DECODERS["alsd"]()
    for call, error, message in (
        (lambda: StreamingDecoder(LETTERS), TypeError, "a CTCDecoder, a GraphDecoder or a TransducerDecoder, got Letters"),
        (lambda: StreamingDecoder(ctc, 0), ValueError, "max_streams"),
        (lambda: StreamingDecoder(ctc, endpoint_seconds=1.0), ValueError, "frame_seconds"),
        (lambda: StreamingDecoder(ctc, endpoint_frames=1, endpoint_seconds=1.0), ValueError, "one of them"),
        (lambda: StreamingDecoder(ctc, endpoint_frames=0), ValueError, "endpoint_frames"),
        (lambda: StreamingDecoder(transducer, endpoint_seconds=math.nan), ValueError, "endpoint_seconds"),
        (lambda: StreamingDecoder(ctc, dtype=torch.half), ValueError, "dtype"),
        (
            lambda: StreamingDecoder(DECODERS["ctc beam"](beta=torch.ones(64))),
            ValueError,
            "beta is a tensor with one number per row",
        ),
        (lambda: StreamingDecoder(ctc).open(lm_weight=1.0), ValueError, "lm_weight without a language model"),
        (lambda: StreamingDecoder(ctc).open(lm=NGramLM.train([[1]], vocab_size=9, order=1)), ValueError, "no language model"),
    ):
        with pytest.raises(error, match=message):
            call()


def test_language_models_of_streams():
    lms = [NGramLM.train([[i, i + 1, i]] * 5, vocab_size=9, order=2) for i in range(3)]
    letters = Letters("abc|defg_", blank=8, lm=lms[0])
    listed = StreamingDecoder(CTCDecoder(letters, lm=lms[:2], lm_weight=torch.ones(2)), 2)
    for given, message in (
        ({}, "2 language models"),
        ({"lm": lms[0]}, "lm_weight="),
        ({"lm": lms[2], "lm_weight": 1.0}, "isn't among"),
        ({"lm": lms[0], "lm_weight": math.inf}, "finite"),
    ):
        with pytest.raises(ValueError, match=message):
            listed.open(**given)
    assert len(listed) == 0
    sid = listed.open(lm=None, lm_weight=1.0)
    listed.step({sid: frames_for("ctc greedy", 9)})
    assert listed.close(sid)[0].lm_score == 0.0


@pytest.mark.parametrize("engine", ["cpu", "reference"])
@pytest.mark.parametrize("strategy", ["greedy", "alsd", "aes"])
def test_endpoints_and_times(strategy, engine):
    model = Scripted(3, max_symbols=1, frame_seconds=0.5)
    once = {"aes_steps": 1} if strategy == "aes" else {}
    decoder = TransducerDecoder(model, Letters("ab_"), strategy=strategy, engine=engine, frame_seconds=0.5, **once)
    stream = StreamingDecoder(decoder, 2, endpoint_seconds=1.0)
    quiet, sid = stream.open(), stream.open()
    frames = script(2, 2, 0, 2, 2, 2, 1, 2, 2, 2, classes=3, margin=9.0)[0]
    frames[[2, 6], 2] = 8.0  # a blank follows the token
    said = []
    for frame in frames:
        partials = stream.step({sid: frame[None], quiet: frames[:1]})
        said.append((partials[sid].text, partials[sid].endpoint))
        assert not partials[quiet].endpoint  # there is no token
    expected = ["", "", "a", "a", "a", "a", "ab", "ab", "ab", "ab"]
    if strategy != "alsd":  # whose hypotheses of more tokens are after those of fewer
        assert said == [(text, frame in (4, 5, 8, 9)) for frame, text in enumerate(expected)]
    assert said[-1] == ("ab", True)
    (word,) = partials[sid].words
    assert (word.text, word.start, word.end) == ("ab", 1.0, 3.5) and word.confidence == pytest.approx(0.731, abs=1e-3)
    assert stream.reset(sid)[0].text == "ab"
    partial = stream.step({sid: frames[2:4]})[sid]
    assert (partial.text, partial.frames, partial.endpoint) == ("a", 2, False)
    assert stream.close(sid)[0].token_frames == [0]


def test_a_label_of_greedy_ctc_that_may_go_on_is_not_stable():
    frames = 9 * torch.eye(9)[[8, 0, 0, 1, 8, 1]]
    stream = StreamingDecoder(CTCDecoder(LETTERS, frame_seconds=1.0), 1)
    sid = stream.open()
    found = []
    for frame in frames:
        partial = stream.step({sid: frame[None]})[sid]
        found.append((partial.text, partial.stable, partial.stable_text, [word.end for word in partial.words]))
    assert found == [
        ("", 0, "", []), ("a", 0, "", [2.0]), ("a", 0, "", [3.0]), ("ab", 1, "a", [4.0]), ("ab", 2, "ab", [4.0]),
        ("abb", 2, "ab", [6.0]),
    ]  # fmt: skip


def test_alsd_waits_for_what_its_steps_depend_on():
    """A blank of two frames that leads to the end merges with one of one frame there, but not if more comes."""
    model = Scripted(3, (0, 1, 2, 3, 4))
    decoder = TransducerDecoder(model, Letters("ab_"), num_beams=2, num_return_sequences=2)
    frames = script(2, 2, 2, 0, classes=3, durations=[1, 1, 1, 1])[0]
    frames[:, 4] = 2.0  # durations of one and two frames, about as likely
    frames[:, 5] = 1.9
    for cut in range(1, 5):
        stream = StreamingDecoder(decoder, 1)
        sid = stream.open()
        stream.step({sid: frames[:cut]})
        ours, (theirs,) = stream.close(sid), decoder.decode(frames[None, :cut])
        assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=1e-6)
        assert [h.token_ids for h in ours] == [h.token_ids for h in theirs]


@each
def test_a_partial_keeps_what_it_told(name):
    stream = StreamingDecoder(DECODERS[name](), 1)
    sid = stream.open()
    frames = frames_for(name, 60)
    read = [stream.step({sid: chunk})[sid] for chunk in frames.split(5)]
    told = [(partial.text, partial.token_ids, partial.stable_text) for partial in read]
    stream.close(sid)
    sid = stream.open()
    late = [stream.step({sid: chunk})[sid] for chunk in frames.split(5)]
    stream.reset(sid)
    stream.step({sid: frames.flip(0)})
    assert [(partial.text, partial.token_ids, partial.stable_text) for partial in late] == told
    assert len(told[-1][1]) > 5 and len({text for text, *_ in told}) > 5


@pytest.mark.parametrize("name", ["ctc beam", "compiled greedy", "alsd", "aes"])
def test_what_a_stream_holds_does_not_grow(name):
    """Tails and waiting frames stay short, so that a step costs the same however long a stream has been open."""
    stream = StreamingDecoder(DECODERS[name](), 2)
    sids = [stream.open(), stream.open()]
    for number in range(60):
        partials = stream.step({sid: frames_for(name, 25, number + sid) for sid in sids})
    slots = stream._slots
    assert slots.history.sizes.max() < 0.25 * min(len(partial.token_ids) for partial in partials.values())
    assert min(partial.stable for partial in partials.values()) > 300
    if hasattr(slots, "waiting"):
        assert slots.waiting.shape[1] <= 64 and slots.held.max() < 30


def bytes_held(value, seen):
    """Of all tensors and arrays that something holds, but for what utterances consist of, which has to grow."""
    if id(value) in seen or isinstance(value, Transcript | torch.nn.Module):
        return 0
    seen[id(value)] = value
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.nbytes
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set | deque) else ()
    return sum(bytes_held(part, seen) for part in (*parts, *getattr(value, "__dict__", {}).values()))


# But for CTC beams: their tails begin where the closest calls were of those that they still hold open.
@pytest.mark.slow
@pytest.mark.parametrize("name", [*sorted({*DECODERS, "graph"} - {"ctc beam"})])
def test_what_all_parts_of_a_stream_hold_does_not_grow(name):
    if name == "graph":
        decoder = GraphDecoder(LETTERS, NGramLM.train([[0, 1, 2, 4], [1, 0, 4]], vocab_size=9, order=2), 0.5)
    else:
        decoder = DECODERS[name]()
    stream = StreamingDecoder(decoder, 1)
    sid = stream.open()
    generator = torch.Generator().manual_seed(0)
    held = []
    for number in range(400):
        frames = 3 * frames_for(name, 25, number)  # so that hypotheses soon agree
        if name == "graph":
            frames = 9 * torch.nn.functional.one_hot(torch.randint(9, (25,), generator=generator), 9).float()
        partial = stream.step({sid: frames})[sid]
        if number in (39, 399):
            held.append((bytes_held(stream, {}), len(partial.token_ids)))
    (early, few), (late, many) = held
    assert many > 8 * few and late <= 2 * early  # room is doubled where hypotheses differ for longer than before


def test_texts_are_those_of_all_tokens():
    """Read word by word, of a tokenizer whose words bring their spaces, and with tokens that break the pattern."""
    tokenizer = AutoProcessor.from_pretrained(bundled("examples/models/ctc")).tokenizer
    splitter = WordSplitter(tokenizer)
    read: list[int] = []
    splitter.text = lambda ids: (read.append(len(ids)), WordSplitter.text(splitter, ids))[1]  # type: ignore[method-assign]
    for ids in (
        tokenizer("now call the station and give my wife a ring " * 20, add_special_tokens=False).input_ids,
        torch.randint(0, len(tokenizer), (300,), generator=torch.Generator().manual_seed(0)).tolist(),
    ):
        transcript = Transcript(Writing(splitter, None, False))
        read.clear()
        for first in range(0, len(ids) - 3, 3):
            transcript.extend(ids[first : first + 3], [0] * 3, [1] * 3, [1.0] * 3)
            count = len(transcript.ids)
            tail = ids[count : count + 2]
            assert transcript.text(count, tail) == tokenizer.decode(ids[: count + len(tail)], group_tokens=False)
        assert sum(read) < 60 * len(ids)  # not its square
    assert transcript.text(5, []) == tokenizer.decode(ids[:5], group_tokens=False)
    nothing = Spoken(*(torch.zeros(0).numpy() for _ in range(4)))
    assert isinstance(transcript.hypothesis(3, nothing, 9, (0.0, 0.0, 0.0, 0.0)), Hypothesis)


@needs_interpreter
@pytest.mark.parametrize("num_beams", [1, 3])
def test_kernels_of_the_gpu(num_beams):
    lm = NGramLM.train(torch.randint(0, 8, (60, 6), generator=torch.Generator().manual_seed(0)).tolist(), vocab_size=8, order=3)
    letters = Letters("abc|defg", blank=8, lm=lm)
    decoder = CTCDecoder(letters, lm=lm, num_beams=num_beams, engine="gpu")
    stream = StreamingDecoder(decoder, 2)
    sids = [stream.open(), stream.open()]
    frames = [frames_for("ctc greedy", 9, seed) for seed in range(2)]
    stream.step({sids[0]: frames[0][:4], sids[1]: frames[1][:7]})
    stream.step({sids[1]: frames[1][7:]})
    stream.step({sids[0]: frames[0][4:], sids[1]: frames[1][:0]})
    for sid, rows in zip(sids, frames):
        (ours,), theirs = stream.close(sid), offline(decoder, rows)
        assert (ours.token_ids, ours.token_frames, ours.token_ends) == (
            theirs.token_ids,
            theirs.token_frames,
            theirs.token_ends,
        )
        assert ours.score == pytest.approx(theirs.score, abs=1e-3)


@needs_interpreter
@pytest.mark.parametrize("strategy", ["greedy", "alsd", "aes"])
def test_kernels_of_transducers(strategy):
    """What torch's operations find, with phrases that come in between."""
    tokenizer = AutoProcessor.from_pretrained(bundled("examples/models/ctc")).tokenizer
    lm = NGramLM.from_arpa(bundled("examples/speech/harbour/lm.arpa.gz"), tokenizer, units="id")
    model = Toy(257, 256, None if strategy == "aes" else (0, 1, 2), size=9, blank_bias=3.0)
    beams = {} if strategy == "greedy" else {"num_beams": 2, "strategy": strategy}
    frames, found = [frames_for("greedy", 3, seed) for seed in range(2)], []
    for engine in ("gpu", "reference"):
        decoder = TransducerDecoder(model, tokenizer, lm, 0.4, engine=engine, max_symbols=2, **beams)
        stream = StreamingDecoder(decoder, 2)
        sids = [stream.open(), stream.open()]
        stream.step({sids[0]: frames[0][:1], sids[1]: frames[1][:2]})
        stream.set_context(sids[0], phrases=["a", "what"])
        stream.step({sids[0]: frames[0][1:], sids[1]: frames[1][2:]})
        found.append([stream.close(sid)[0] for sid in sids])
    for ours, theirs in zip(*found):
        assert ours.token_ids and (ours.token_ids, ours.token_frames) == (theirs.token_ids, theirs.token_frames)
        assert (ours.score, ours.lm_score) == pytest.approx((theirs.score, theirs.lm_score), abs=1e-4)


@needs_interpreter
@pytest.mark.parametrize("strategy", ["greedy", "alsd", "aes"])
def test_graphs_are_made_of_what_streams_read(strategy, monkeypatch):
    """What is recorded for a GPU works on the tensors of the streams, and recording it changes nothing of them."""
    from hf_ngpulm.search.networks import graphs

    runs = []

    def capture(work):
        work()  # as recording does
        return lambda: (runs.append(1), work())[1]

    record = graphs.Repeated.record
    monkeypatch.setattr(
        graphs.Repeated, "record", lambda self, device: (setattr(self, "_capture", capture), record(self, device))[1]
    )
    model = Toy(9, 8, None if strategy == "aes" else (0, 1, 2), size=9)
    beams = {} if strategy == "greedy" else {"num_beams": 2}
    decoder = TransducerDecoder(model, LETTERS, strategy=strategy, engine="gpu", **beams)
    stream = StreamingDecoder(decoder, 2)
    sids = [stream.open(), stream.open()]
    frames = [frames_for("greedy", 24, seed) for seed in range(2)]
    stream.step({sids[0]: frames[0][:3], sids[1]: frames[1][:2]})
    stream.step({sids[0]: frames[0][3:22]})  # more than there was room for
    stream.step({sids[0]: frames[0][22:], sids[1]: frames[1][2:9]})
    stream.step({sids[1]: frames[1][9:]})
    for sid, rows in zip(sids, frames):
        assert stream.close(sid)[0].token_ids == offline(decoder, rows).token_ids
    assert len(runs) > 3


@pytest.mark.parametrize("with_lm", [False, True])
def test_phrases_of_all_streams(with_lm):
    """Unfinished phrases give back what they got at the end of a stream, and not in between."""
    tokenizer = AutoProcessor.from_pretrained(bundled("examples/models/ctc")).tokenizer
    lm = {"lm": NGramLM.from_arpa(bundled("examples/speech/harbour/lm.arpa.gz"), tokenizer, units="id"), "lm_weight": 0.4}
    settings = {**(lm if with_lm else {}), "phrases": ["call anna", ("what", 3.0), "a"], "phrase_weight": 2.0}
    generator = torch.Generator().manual_seed(3)
    rnnt, tdt = Toy(257, 256, seed=1, blank_bias=3.0), Toy(257, 256, (0, 1, 2), seed=2, blank_bias=3.0)
    decoders = [(CTCDecoder(tokenizer, num_beams=beams, **settings), 257) for beams in (1, 4)]
    for model, strategy in ((rnnt, "greedy"), (tdt, "greedy"), (tdt, "alsd"), (rnnt, "aes")):
        for engine in ("cpu", "reference"):
            decoders.append((TransducerDecoder(model, tokenizer, strategy=strategy, engine=engine, **settings), 6))
    boosted = 0
    for decoder, width in decoders:
        frames = 2 * torch.randn(15, width, generator=generator)
        stream = StreamingDecoder(decoder, 2)
        sid = stream.open()
        for chunk in frames.split(4):
            stream.step({sid: chunk})
        (ours, *_), theirs = stream.close(sid), offline(decoder, frames)
        assert (ours.token_ids, ours.token_frames) == (theirs.token_ids, theirs.token_frames)
        for name in ("score", "acoustic_score", "lm_score", "phrase_score"):
            assert getattr(ours, name) == pytest.approx(getattr(theirs, name), abs=1e-3), name
        boosted += ours.phrase_score > 0
    assert boosted > 3
    with pytest.raises(ValueError, match="listed per row of a batch"):
        StreamingDecoder(CTCDecoder(tokenizer, phrases=[["call"], ["anna"]]), 2)
