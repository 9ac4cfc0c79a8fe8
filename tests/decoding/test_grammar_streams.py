"""Streams that follow grammars, against the same frames understood at once; endpoints and partial slots."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from toys import Toy
from words_in_pieces import pieces

from hf_ngpulm import (
    CTCDecoder,
    Grammar,
    GrammarDecoder,
    GraphDecoder,
    NGramLM,
    StreamError,
    StreamingDecoder,
    TransducerDecoder,
)
from hf_ngpulm.errors import GrammarError
from hf_ngpulm.grammar.expressions import List, Optional, Sequence, Slot

TOKENIZER = pieces()
BLANK, CLASSES = 8, 9
TURN = Sequence("b", Slot("thing", List("things")), Optional("b"))
TURNS = Grammar({"turn": TURN}, {"things": [("a", 1), ("a b a", 2), ("ab", 3)]})
TELLS = Grammar({"tell": Sequence("ab", Slot("who", ["b a", "a"]))})
LM = NGramLM.from_texts(["b a", "b a b", "ab b a", "a a b"], TOKENIZER, order=3)
DECODERS = {
    "greedy": lambda **more: CTCDecoder(TOKENIZER, blank_id=BLANK, frame_seconds=0.1, **more),
    "beam with an LM": lambda **more: CTCDecoder(TOKENIZER, LM, 0.5, blank_id=BLANK, num_beams=8, lm_guard="off", **more),
    "reference": lambda **more: CTCDecoder(TOKENIZER, blank_id=BLANK, engine="reference", num_beams=8, **more),
    "graph": lambda **more: GraphDecoder(TOKENIZER, LM, blank_id=BLANK, max_active=64, **more),
    "transducer": lambda **more: TransducerDecoder(Toy(8, 7, (0, 1, 2), blank_bias=0.0), TOKENIZER, **more),
}
each = pytest.mark.parametrize("name", list(DECODERS))


def token_ids(text):
    return TOKENIZER(text, add_special_tokens=False).input_ids


def spoken(sentence, pause=0, sharpness=9.0):
    """Outputs of a recogniser that hears a sentence well, two frames a token, and then silence: `[T, C]`."""
    labels = [*(label for token in token_ids(sentence) for label in (BLANK, token)), *[BLANK] * pause]
    outputs = torch.zeros(len(labels), CLASSES)
    outputs[torch.arange(len(labels)), torch.tensor(labels, dtype=torch.int64)] = sharpness
    return outputs


def frames_for(name, seed):
    generator = torch.Generator().manual_seed(seed)
    if name == "transducer":
        return torch.randn(12, 6, generator=generator)
    return spoken("b a b" if seed % 2 else "ab b a") + torch.randn(6, CLASSES, generator=generator)


def fed(stream, chunks):
    """Feed streams in pieces of different lengths; return their last partials."""
    partials, begin, size = {}, 0, 1
    while begin < max(map(len, chunks.values())):
        partials |= stream.step({sid: frames[begin : begin + size] for sid, frames in chunks.items() if begin < len(frames)})
        begin, size = begin + size, size % 3 + 1
    return partials


def same(found, expected):
    (found,) = found
    assert (found.understood, found.text, found.intent, found.slots) == (
        expected.understood, expected.text, expected.intent, expected.slots,
    )  # fmt: skip
    assert found.free_text == expected.free_text
    assert found.evidence == (None if expected.evidence is None else pytest.approx(expected.evidence, abs=1e-4))
    assert found.confidence == pytest.approx(expected.confidence, abs=1e-4)
    assert [reading.text for reading in found.readings] == [reading.text for reading in expected.readings]


@each
@pytest.mark.parametrize("mode", ["reject", "strict", "soft", "free"])
def test_the_end_is_that_of_all_frames_at_once(name, mode):
    """Each stream with a grammar of its own, beside a stream without one."""
    decoder = DECODERS[name]()
    stream = StreamingDecoder(decoder, max_streams=4)
    frames = [frames_for(name, seed) for seed in range(4)]
    grammars = [TURNS, TELLS, None, TURNS]
    sids = [stream.open() if of is None else stream.open(grammar=of, grammar_mode=mode) for of in grammars]
    fed(stream, dict(zip(sids, frames)))
    for sid, rows, grammar in zip(sids, frames, grammars):
        if grammar is None:
            assert stream.close(sid)[0].text == decoder.decode(rows[None])[0][0].text
        else:
            same(stream.close(sid), GrammarDecoder(decoder, grammar, mode)(rows[None])[0])
    assert len(stream) == 0


@each
def test_a_new_utterance_may_follow_another_grammar(name):
    decoder = DECODERS[name]()
    stream = StreamingDecoder(decoder, max_streams=2)
    first, second = frames_for(name, 1), frames_for(name, 2)
    tells = TELLS.with_evidence(dict.fromkeys(("ctc", "transducer"), (-9.0, 4.0)))  # which goes with it
    sid = stream.open(grammar=TURNS)
    fed(stream, {sid: first[:3]})
    stream.set_grammar(sid, tells)
    fed(stream, {sid: first[3:]})
    same(stream.reset(sid), GrammarDecoder(decoder, TURNS)(first[None])[0])
    fed(stream, {sid: second})
    same(stream.reset(sid), GrammarDecoder(decoder, tells)(second[None])[0])
    stream.set_grammar(sid, TURNS)  # before its first frame: at once
    fed(stream, {sid: first})
    same(stream.close(sid), GrammarDecoder(decoder, TURNS)(first[None])[0])


def test_with_phrases_that_change():
    decoder = DECODERS["beam with an LM"]()
    stream = StreamingDecoder(decoder, max_streams=2)
    sid, frames = stream.open(grammar=TURNS, phrases=["a a"]), frames_for("ctc", 3)
    stream.set_context(sid, ["b a"])
    fed(stream, {sid: frames})
    same(stream.close(sid), GrammarDecoder(decoder, TURNS)(frames[None], phrases=["b a"])[0])


@pytest.mark.parametrize("name", ["beam with an LM", "graph", "transducer"])
def test_a_rescorer_ranks_no_meanings(name):
    def scores(lists, history=None):
        raise AssertionError("a stream with a grammar was rescored")

    more = {"strategy": "alsd", "num_beams": 4} if name == "transducer" else {}
    plain, rescorer = DECODERS[name](**more), SimpleNamespace(scores=scores)
    decoder = plain._with(options=replace(plain.options, rescorer=rescorer, word_bonus=1.0))
    stream = StreamingDecoder(decoder, max_streams=1)
    sid, frames = stream.open(grammar=TURNS), frames_for(name, 1)
    fed(stream, {sid: frames})
    same(stream.close(sid), GrammarDecoder(plain, TURNS)(frames[None])[0])
    with pytest.raises(ValueError, match="rescorer= ranks transcripts, a grammar meanings"):
        GrammarDecoder(decoder, TURNS)


def test_slots_are_told_while_they_are_said():
    stream = StreamingDecoder(DECODERS["greedy"](), max_streams=1)
    sid, told = stream.open(grammar=Grammar({"turn": TURN, "tell": TELLS.intents["tell"]}, TURNS.lists)), []
    for frame in spoken("b ab b"):
        partial = stream.step({sid: frame[None]})[sid]
        told.append((partial.intent, [(slot.name, slot.value, slot.text) for slot in partial.slots]))
        assert partial.stable_text == "" and "b ab b".startswith(partial.text)
    assert told[0] == (None, []) and told[-1] == ("turn", [("thing", 3, "ab")])
    assert told == sorted(told, key=lambda each: (each[0] is not None, len(each[1])))  # they are only added


def endpoint(sentence, grammar, pause=10, **more):
    """The number of frames of silence after which a sentence ends; None if it doesn't."""
    stream = StreamingDecoder(DECODERS["greedy"](), max_streams=1, endpoint_frames=8)
    sid = stream.open(**({} if grammar is None else {"grammar": grammar}), **more)
    stream.step({sid: spoken(sentence)})
    for frames in range(1, pause + 1):
        if stream.step({sid: spoken("", 1)})[sid].endpoint:
            return frames
    return None


def test_a_sentence_ends_once_the_grammar_says_so():
    assert endpoint("b a b", None) == 8
    assert endpoint("b ab b", TURNS) == endpoint("b a b a b", TURNS) == 2  # nothing may follow
    assert endpoint("b a b", TURNS) == 4  # "a" may follow
    assert endpoint("b ab", TURNS) == 4  # "b" may follow
    assert endpoint("b", TURNS) == 8  # it isn't a sentence
    assert endpoint("a a a b b", TURNS) == 8  # nor is this, whatever the grammar makes of it
    assert endpoint("a a a b b", TURNS, grammar_mode="strict") in (2, 4)
    assert endpoint("b ab b", TURNS, grammar_mode="free") == 2
    assert endpoint("", TURNS) is None


def test_silence_is_no_speech():
    stream = StreamingDecoder(DECODERS["greedy"](), max_streams=2)
    plain, sid = stream.open(), stream.open(grammar=TURNS)
    stream.step({sid: spoken("", 5), plain: spoken("b")})
    assert not stream.has_heard(sid) and not stream.has_heard(plain)
    stream.step({sid: spoken("b")})
    assert stream.has_heard(sid)
    stream.reset(sid)
    assert not stream.has_heard(sid)


def test_bad_streams_are_named():
    stream = StreamingDecoder(DECODERS["greedy"](), max_streams=2)
    with pytest.raises(ValueError, match="sensitivity is about a grammar"):
        stream.open(sensitivity=0.3)
    with pytest.raises(TypeError, match=r"Grammar.load reads files"):
        stream.open(grammar="x.jsgf")
    with pytest.raises(ValueError, match="mode"):
        stream.open(grammar=TURNS, grammar_mode="perhaps")
    with pytest.raises(GrammarError), pytest.warns(UserWarning):
        stream.open(grammar=Grammar({"x": "q"}))
    plain, other = stream.open(), stream.open(grammar=TURNS)
    with pytest.raises(ValueError, match="2 streams are open"):
        stream.open(grammar=TURNS)
    with pytest.raises(StreamError, match="without a grammar"):
        stream.set_grammar(plain, TURNS)
    with pytest.raises(StreamError, match="isn't open"):
        stream.set_grammar(99, TURNS)
    bad = spoken("b")
    bad[1, 0] = float("nan")
    with pytest.raises(StreamError, match="NaN or infinity at frame 1") as error:
        stream.step({plain: spoken("b a"), other: bad})
    assert list(error.value.partials) == [plain] and list(error.value.problems) == [other]
    stream.step({other: spoken("b a b")})
    assert stream.close(other)[0].text == "b a b"
