"""What is never written: `Phrase(..., weight=-inf)` in all families, and longer words that begin alike."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, pipeline

import hf_ngpulm
from hf_ngpulm import ArcBooster, CTCDecoder, GraphDecoder, NGramLM, Phrase, PhraseBooster, StreamingDecoder
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.phrases.booster import NEVER_BONUS
from hf_ngpulm.phrases.phrase import Forms

NEVER = -math.inf
BLANK = 256
TASK = "automatic-speech-recognition"


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))


def logits_of(tokenizer, said, otherwise):
    """Logits that say a text clearly, and another one of as many tokens less so."""
    frames = []
    for token, other in zip(*(tokenizer(text)["input_ids"] for text in (said, otherwise)), strict=True):
        frame = torch.zeros(BLANK + 1)
        frame[other], frame[token] = 6.0, 10.0
        frames += [frame, 10 * torch.nn.functional.one_hot(torch.tensor(BLANK), BLANK + 1).float()]
    return torch.stack(frames)[None]


def spelled(tokenizer, *pieces):
    ids = tokenizer.convert_tokens_to_ids(list(pieces))
    assert None not in ids and tokenizer.unk_token_id not in ids
    return ids


def test_the_bonus_is_for_the_whole_word(tokenizer):
    booster = PhraseBooster([("the", NEVER)], tokenizer)
    the, t, h, e, n = spelled(tokenizer, "▁the", "▁t", "h", "e", "n")

    def score(*ids):
        return float(booster.score_sequences(torch.tensor([ids])))

    assert score(the) == score(t, h, e) == score(the, t) == NEVER_BONUS  # in any tokens
    assert score(the, the) == 2 * NEVER_BONUS
    assert score(the, n) == score(t, h, e, n) == score(t, h) == 0  # "then" is another word
    assert booster.phrases == {"the": NEVER}


@pytest.fixture(scope="module")
def booster(tokenizer):
    return PhraseBooster([("the", NEVER), ("then", 1.0)], tokenizer)


@settings(deadline=None)
@given(pieces=st.lists(st.sampled_from(["▁the", "▁t", "h", "e", "n", "▁", "s"]), max_size=7))
def test_the_search_sees_what_is_read(tokenizer, booster, pieces):
    assert set(pieces) <= tokenizer.get_vocab().keys()
    ids = tokenizer.convert_tokens_to_ids(pieces)
    words = "".join(pieces).replace("▁", " ").split()
    begins = not pieces or pieces[0].startswith("▁")  # otherwise the first piece is part of a word before
    score = float(booster.score_sequences(torch.tensor([ids], dtype=torch.int64))) if ids else 0.0
    expected = words[0 if begins else 1 :].count("the")
    assert round(score / NEVER_BONUS) == expected


def test_ctc(tokenizer):
    decoder = CTCDecoder(tokenizer, num_beams=8)
    logits = logits_of(tokenizer, "the the", "a the")
    assert decoder(logits)[0][0].text == "the the"
    for phrases in ([("the", NEVER)], [Phrase("The", weight=NEVER)], {"the": NEVER}):
        best = decoder(logits, phrases=phrases)[0][0]
        assert "the" not in best.text.split() and "the" not in [word.text for word in best.words]
    assert decoder(logits, phrases=[("then", NEVER)])[0][0].text == "the the"


@pytest.mark.parametrize("beams", [1, 4])
def test_nothing_else_was_heard(tokenizer, beams):
    """What can't be avoided in the search is left out."""
    ids = [step for token in tokenizer("drop the anchor")["input_ids"] for step in (token, BLANK)]
    logits = torch.full((1, len(ids), BLANK + 1), -1e30).scatter(2, torch.tensor(ids)[None, :, None], 0.0)
    decoder = CTCDecoder(tokenizer, num_beams=beams, phrases=[("the", NEVER)])
    best = decoder(logits)[0][0]
    assert best.text == "drop anchor" and [word.text for word in best.words] == ["drop", "anchor"]


@pytest.mark.parametrize(
    ("heard", "written"),
    [
        ("the boat", "boat"),
        ("well, the, boat", "well,, boat"),
        ("a the", "a"),
        ("the", ""),
        ("then  other", "then  other"),
        ("the old man", "the old man"),
        ("in the sea the old", "in sea old"),
    ],
)
def test_forms(heard, written):
    assert Forms.of([("the", NEVER), ("the old man", 1.0), "boat"]).written(heard) == written


def test_a_longer_phrase_may_have_it(tokenizer):
    booster = PhraseBooster([("the", NEVER), "the anchor"], tokenizer)
    ids = tokenizer("drop the anchor")["input_ids"]
    assert float(booster.score_sequences(torch.tensor([ids]))) > 0
    assert booster.forms.written("drop the anchor") == "drop the anchor"


def test_what_is_never_written_comes_first(tokenizer):
    assert PhraseBooster([("the", NEVER), ("the", 2.0)], tokenizer).phrases == {"the": NEVER}
    assert PhraseBooster([Phrase("boat", aliases=["the"]), ("the", NEVER)], tokenizer).forms.written("the boat") == "boat"


@pytest.fixture(scope="module", params=["ctc", "rnnt", "tdt", "canary"])
def asr(request):
    return pipeline(TASK, model=str(bundled("examples/models") / request.param))


def test_all_families(asr):
    audio = hf_ngpulm.demo_recording()
    plain = asr(audio)["text"].lower()
    word = next(word for word in plain.split() if len(word) > 3)
    free = asr(audio, phrases=[Phrase(word, weight=NEVER)], return_timestamps="word")
    assert word not in free["text"].lower().split() and free["text"].strip()
    assert word not in [chunk["text"].strip().lower() for chunk in free["chunks"]]
    lm = NGramLM.from_texts([plain] * 3, asr.tokenizer, order=3)
    assert word in asr(audio, lm=lm)["text"].lower().split()
    both = asr([audio] * 2, lm=lm, phrases=[[(word, NEVER)], None])
    assert word not in both[0]["text"].lower().split() and word in both[1]["text"].lower().split()


@pytest.mark.parametrize("family", ["ctc", "rnnt"])
def test_with_a_second_look(family):
    asr, audio = pipeline(TASK, model=str(bundled("examples/models") / family)), hf_ngpulm.demo_recording()
    plain = asr(audio, num_beams=4)["text"]
    word = next(word for word in plain.split() if len(word) > 3)
    found = asr(audio, phrases=[(word, NEVER), "lighthouse"], phrase_weight=3.0, false_alarms_per_hour=1.0, num_beams=4)
    assert word not in found["text"].split() and "lighthouse" not in found["text"]


def test_graphs(tokenizer):
    words = NGramLM.from_texts(["drop the anchor", "drop a anchor"], tokenizer, unit="word", order=2)
    decoder = GraphDecoder(tokenizer, words)
    logits = logits_of(tokenizer, "drop the anchor", "drop the anchor")
    assert decoder(logits)[0][0].text == "drop the anchor"
    assert "the" not in decoder(logits, phrases=[("the", NEVER)])[0][0].text.split()


def test_streams(tokenizer):
    decoder = CTCDecoder(tokenizer, num_beams=8)
    logits = logits_of(tokenizer, "the the", "a the")
    stream = StreamingDecoder(decoder, max_streams=1)
    sid = stream.open(phrases=[("the", NEVER)])
    stream.step({sid: logits[0]})
    assert "the" not in stream.close(sid)[0].text.split()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda t: Phrase("a", weight=NEVER, threshold=1.0), "'a' is never written"),
        (lambda t: Phrase("a", weight=math.inf), "the weight of 'a' should be a finite number .* or -inf"),
        (lambda t: PhraseBooster([("a", math.nan)], t), "the weight of phrase 0"),
        (lambda t: PhraseBooster(["a"], t, weight=NEVER), "weight should be a finite number"),
        (lambda t: ArcBooster([("a", NEVER)], NGramLM.from_texts(["a"], t), t), "an ArcBooster doesn't support"),
    ],
)
def test_bad_input(tokenizer, make, message):
    with pytest.raises(ValueError, match=message):
        make(tokenizer)


@pytest.mark.parametrize("weight", [-1.0, torch.tensor([-1.0])])
def test_a_negative_phrase_weight_is_refused(tokenizer, weight):
    """It would turn what is never written into a bonus."""
    decoder, never = CTCDecoder(tokenizer), [("the", NEVER)]
    logits = torch.zeros((1, 4, len(tokenizer)))
    for refusing in (
        lambda: CTCDecoder(tokenizer, phrases=never, phrase_weight=weight)(logits),
        lambda: decoder.with_phrases(never, weight)(logits),
        lambda: decoder.with_phrases(never).with_weights(phrase_weight=weight)(logits),
        lambda: StreamingDecoder(decoder, max_streams=1).open(phrases=never, phrase_weight=float(weight)),
    ):
        with pytest.raises(ValueError, match=r"phrase_weight=-1\.0 would favour the phrases that are never written"):
            refusing()
    decoder.with_phrases(["the"], weight)(logits)
