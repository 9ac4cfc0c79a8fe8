"""Phrases in decoders: each row has its own, beside the language model, and a row's result is the same alone and in a batch."""

from __future__ import annotations

import pytest
import torch
from toys import Toy
from transformers import AutoTokenizer

import hf_ngpulm.fusion.fusion as fusion_module
import hf_ngpulm.phrases.contexts as contexts_module
from hf_ngpulm import CTCDecoder, NGramLM, PhraseBooster, TokenizerMismatchError, TransducerDecoder
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.fusion.fusion import Fusion

BLANK = 256
CONTEXTS = [
    ["call anna", "new york"], None, [("what", 3.0), "the day"], {"weather": 2.0, "alarm": -1.0}, ["a", "the", "to"],
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))


@pytest.fixture(scope="module")
def lm(tokenizer):
    return NGramLM.from_arpa(bundled("examples/speech/harbour/lm.arpa.gz"), tokenizer, units="id")


def frames_of(batch_size, length, size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    frames = 2 * torch.randn(batch_size, length, size, generator=generator)
    if size == BLANK + 1:
        frames[..., BLANK] += 5 * torch.rand(batch_size, length, generator=generator)
    lengths = torch.randint(length // 2, length + 1, (batch_size,), generator=generator)
    return frames, lengths


def decoders(tokenizer, lm, **settings):
    """One of each kind, with a function that decodes frames."""
    toy = Toy(257, BLANK, seed=1, blank_bias=3.0)
    tdt = Toy(257, BLANK, (0, 1, 2), seed=2, blank_bias=3.0)
    models = {"lm": lm, "lm_weight": 0.4}
    yield CTCDecoder(tokenizer, **models, num_beams=1, **settings), 257
    yield CTCDecoder(tokenizer, **models, num_beams=4, num_return_sequences=2, **settings), 257
    for model, strategies in ((toy, ("greedy", "alsd", "aes")), (tdt, ("greedy", "alsd"))):
        for strategy in strategies:
            yield TransducerDecoder(model, tokenizer, **models, strategy=strategy, frame_seconds=0.08, **settings), 6


def decode(decoder, frames, lengths, phrases=None):
    call = decoder if isinstance(decoder, CTCDecoder) else decoder.decode
    return call(frames, lengths, phrases)


def close(found, expected):
    assert found.token_ids == expected.token_ids and found.token_frames == expected.token_frames
    for name in ("score", "acoustic_score", "lm_score", "phrase_score"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), abs=1e-3), name


@pytest.mark.parametrize("with_lm", [True, False])
def test_each_row_has_its_own_context(tokenizer, lm, with_lm):
    boosted = 0
    for decoder, size in decoders(tokenizer, lm if with_lm else None, phrase_weight=2.0):
        frames, lengths = frames_of(len(CONTEXTS), 12, size)
        together = decode(decoder, frames, lengths, CONTEXTS)
        plain = decode(decoder, frames, lengths)
        for row, context in enumerate(CONTEXTS):
            alone = decode(decoder, frames[row : row + 1], lengths[row : row + 1], [context])[0]
            for found, expected in zip(together[row], alone, strict=True):
                close(found, expected)
            if not context:
                assert [best.token_ids for best in together[row]] == [best.token_ids for best in plain[row]]
            for best in together[row]:
                earned = 0.0
                if context:
                    booster = PhraseBooster(context, tokenizer)
                    earned = float(booster.score_sequences(torch.tensor([best.token_ids], dtype=torch.int64)))
                assert best.phrase_score == pytest.approx(earned, abs=1e-3)
                boosted += earned > 0
    assert boosted  # otherwise this says nothing


@pytest.mark.parametrize("num_beams", [1, 4])
def test_sixty_four_contexts_in_one_batch(tokenizer, lm, num_beams):
    words = ["a", "the", "to", "what", "is", "in", "of", "and", "for", "day", "call", "new", "old", "on", "off", "up"]
    contexts = [[words[n % 16], f"{words[n // 4]} {words[n % 7]}", (words[-1 - n % 16], 1.0 + n / 16)] for n in range(64)]
    decoder = CTCDecoder(tokenizer, lm, 0.4, phrase_weight=2.0, num_beams=num_beams)
    frames, lengths = frames_of(64, 16, 257, seed=4)
    together = decoder(frames, lengths, contexts)
    assert sum(best.phrase_score > 0 for (best,) in together) > 16
    for row in range(64):
        close(together[row][0], decoder(frames[row : row + 1], lengths[row : row + 1], [contexts[row]])[0][0])


def test_scores_are_the_sum_of_their_parts(tokenizer, lm):
    frames, lengths = frames_of(3, 24, 257)
    phrases = ["a", "the", "to", "what", "is", "in", "of", "and"]
    found = [
        best for (best,) in CTCDecoder(tokenizer, lm, 0.4, phrases=phrases, phrase_weight=3.0, num_beams=1)(frames, lengths)
    ]
    assert any(best.phrase_score > 0 for best in found)
    for best in found:
        assert best.score == pytest.approx(best.acoustic_score + 0.4 * best.lm_score + 3.0 * best.phrase_score, abs=1e-3)


def test_weights_per_row(tokenizer, lm):
    for decoder, size in decoders(tokenizer, lm, phrases=["a", "the", "to"], phrase_weight=torch.tensor([0.0, 3.0])):
        row = frames_of(1, 8, size, seed=3)[0]
        frames, lengths = row.repeat(2, 1, 1), torch.full((2,), 8)
        found = decode(decoder, frames, lengths)
        for number, weight in enumerate((0.0, 3.0)):
            kind = {"phrases": ["a", "the", "to"], "phrase_weight": weight}
            alone = next(
                decode(other, row, lengths[:1])
                for (other, _), (mine, _) in zip(decoders(tokenizer, lm, **kind), decoders(tokenizer, lm))
                if type(mine) is type(decoder) and settings_of(mine) == settings_of(decoder)
            )
            close(found[number][0], alone[0][0])


def settings_of(decoder):
    if isinstance(decoder, CTCDecoder):
        return decoder.options.num_beams
    return decoder.settings, decoder.model.durations


def test_the_blank_and_other_classes_pay_nothing_for_phrases(tokenizer):
    """Only a language model's weight makes blanks and unscored classes dearer."""
    frames, lengths = frames_of(2, 8, 6)
    model = Toy(257, BLANK, seed=1, blank_bias=3.0)
    for engine in ("reference", "cpu"):
        plain, boosted = (
            TransducerDecoder(model, tokenizer, phrases=phrases, strategy="alsd", engine=engine).decode(frames, lengths)
            for phrases in (None, ["zebra crossing ahead"])
        )
        for (before,), (after,) in zip(plain, boosted):
            if after.phrase_score == 0 and after.token_ids == before.token_ids:
                assert after.score == pytest.approx(before.score, abs=1e-3)
                break
        else:
            raise AssertionError("no row was left alone by the phrase")


def test_a_booster_for_all_is_a_context_for_each(tokenizer, lm):
    booster = PhraseBooster(["a", "the", "to"], tokenizer)
    for (one, size), (listed, _) in zip(
        decoders(tokenizer, lm, phrases=booster), decoders(tokenizer, lm, phrases=[booster, booster, booster])
    ):
        frames, lengths = frames_of(3, 16, size)
        assert decode(one, frames, lengths) == decode(listed, frames, lengths)


def test_phrases_may_be_any_iterable(tokenizer, lm):
    frames, lengths = frames_of(2, 16, 257)
    expected = CTCDecoder(tokenizer, phrases=["a", "the", "to"], phrase_weight=3.0)(frames, lengths)
    decoder = CTCDecoder(tokenizer, phrases=(word for word in ("a", "the", "to")), phrase_weight=3.0)
    assert decoder(frames, lengths) == expected == decoder(frames, lengths)
    assert decoder(frames, lengths, (word for word in ("a", "the", "to"))) == expected


def test_contexts_are_kept_by_content_and_others_stay(tokenizer, lm):
    fusion = Fusion(lm, tokenizer=tokenizer)
    cpu = torch.device("cpu")
    first = fusion.rows(2, cpu, [["anna"], ["new york"]])
    again = fusion.rows(3, cpu, [["new york"], ["call me"], {"anna": 1.0}])
    assert again.states[0, 1] == first.states[1, 1] and again.states[2, 1] == first.states[0, 1]
    assert again.tensors.arc_tokens.data_ptr() == first.tensors.arc_tokens.data_ptr()  # room for one more


def test_contexts_that_nobody_uses_make_room(tokenizer, monkeypatch):
    monkeypatch.setattr(fusion_module, "KEPT_CONTEXTS", 8)
    fusion = Fusion(tokenizer=tokenizer)
    cpu = torch.device("cpu")
    anna, bob = (fusion.contexts.booster([name]).fingerprint for name in ("anna", "bob"))
    first, second = fusion.rows(1, cpu, ["anna"]), fusion.rows(1, cpu, ["bob"])
    assert fusion.held == {anna, bob}
    del second
    assert fusion.held == first.lease.fingerprints == {anna}
    for number in range(20):
        fusion.rows(1, cpu, [("x", 1.0 + number)])
    pool = fusion._pools[cpu]
    assert len(pool.places) == 8 and anna in pool.places and bob not in pool.places


def test_large_contexts_make_room_sooner(tokenizer, monkeypatch):
    monkeypatch.setattr(fusion_module, "KEPT_ARCS", 3000)
    fusion = Fusion(tokenizer=tokenizer)
    cpu = torch.device("cpu")
    for number in range(12):
        rows = fusion.rows(1, cpu, [f"{'abcdefghijkl'[number]}ye {word}" for word in ("york", "to", "day")])
    (pool,) = fusion._pools.values()
    assert 1 < len(pool.places) <= 8 and sum(place.arcs[1] for place in pool.places.values()) <= 3000
    assert int(rows.states[0, 0]) == list(pool.places.values())[-1].start


def test_boosters_are_kept_within_bounds(tokenizer, monkeypatch):
    contexts = contexts_module.Contexts(tokenizer)
    first = contexts.booster(["anna"])
    assert contexts.booster(["anna"]) is first
    monkeypatch.setattr(contexts_module, "MOST_BYTES", 2 * first.nbytes)
    second = contexts.booster(["bob"])
    assert contexts.booster(["bob"]) is second
    for name in ("carl", "dora", "emil"):
        contexts.booster([name])
    assert contexts.booster(["anna"]) is not first
    kept = contexts._kept
    assert sum(booster.nbytes for booster, _ in kept.made.values()) == kept.nbytes <= 2 * first.nbytes + 20_000


def test_what_is_refused(tokenizer, lm):
    frames, lengths = frames_of(2, 8, 257)
    decoder = CTCDecoder(tokenizer)
    with pytest.raises(ValueError, match="3 contexts, the batch has 2 rows"):
        decoder(frames, lengths, [["a"], None, ["b"]])
    with pytest.raises(ValueError, match="phrase 0 is empty"):
        decoder(frames, lengths, [[""], None])
    with pytest.raises(ValueError, match="phrase_weight"):
        CTCDecoder(tokenizer, phrases=["a"], phrase_weight=float("nan"))
    with pytest.raises(ValueError, match="phrase_weight has the shape"):
        CTCDecoder(tokenizer, phrases=["a"], phrase_weight=torch.ones(3))(frames, lengths)
    with pytest.raises(TypeError, match="list of texts"):
        CTCDecoder(tokenizer, phrases="new york")
    with pytest.raises(ValueError, match="vocab_size=256"):
        CTCDecoder(tokenizer, lm, phrases=PhraseBooster(["a"], tokenizer, vocab_size=200))
    letters = AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))
    letters.add_tokens(["zzz"])
    other = PhraseBooster(["a"], letters, vocab_size=258)
    with pytest.raises((TokenizerMismatchError, ValueError)):
        decoder(frames, lengths, other)


def test_a_batch_of_some_of_the_rows(tokenizer, lm):
    rows, weights = [3, 0, 1], torch.tensor([0.5, 1.0, 2.0, 3.0, 0.1])
    for decoder, size in decoders(tokenizer, lm, phrases=CONTEXTS, phrase_weight=weights):
        frames, lengths = frames_of(len(CONTEXTS), 20, size)
        every = decode(decoder, frames, lengths)
        for row, found in zip(rows, decode(decoder.select(rows), frames[rows], lengths[rows])):
            close(found[0], every[row][0])
