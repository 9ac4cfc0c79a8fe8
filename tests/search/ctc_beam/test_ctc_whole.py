"""Beam search of whole utterances on the CPU: what a stream of the same frames and the plain reference find."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from automata import seeds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from hf_ngpulm import CTCDecoder, InvalidLogitsError, NGramLM
from hf_ngpulm.common.bundled import bundled

BLANK = 256
RELAXED = settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
PHRASES = ["pilot on board", "tow", "harbour"]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))


@pytest.fixture(scope="module")
def lm(tokenizer):
    return NGramLM.from_arpa(bundled("examples/speech/harbour/lm.arpa.gz"), tokenizer, units="id")


def random_logits(batch_size, frames, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(batch_size, frames, BLANK + 1, generator=generator)
    logits[..., BLANK] += 6 * torch.rand(batch_size, frames, generator=generator)
    logits[..., :40] += 3 * torch.rand(40, generator=generator)
    return logits


def told(hypotheses):
    return [[(h.token_ids, h.token_frames, h.token_ends, h.text) for h in n_best] for n_best in hypotheses]


def scores(hypotheses):
    return torch.tensor(
        [[h.score, h.acoustic_score, h.lm_score, h.phrase_score] for n_best in hypotheses for h in n_best],
        dtype=torch.float64,
    ).view(-1, 4)


def streamed(decoder, logits, lengths):
    stream = decoder.stream(len(logits))
    stream.add(logits, lengths)
    return stream.hypotheses()


@RELAXED
@given(seeds, st.data())
def test_it_is_what_a_stream_finds(tokenizer, lm, seed, data):
    batch_size = data.draw(st.integers(0, 4))
    logits = random_logits(batch_size, data.draw(st.integers(0, 20)), seed)
    lengths = torch.tensor([data.draw(st.integers(0, logits.shape[1])) for _ in range(batch_size)], dtype=torch.int64)
    num_beams = data.draw(st.sampled_from([2, 5, 16]))
    weight = data.draw(st.sampled_from([0.0, 0.6, -0.4]))
    decoder = CTCDecoder(
        tokenizer,
        data.draw(st.sampled_from([None, lm, [lm, None, lm, lm][:batch_size] if batch_size in (1, 3) else lm])),
        torch.linspace(0.2, 0.9, batch_size) if data.draw(st.booleans()) else weight,
        phrases=data.draw(st.sampled_from([None, PHRASES])),
        num_beams=num_beams,
        num_return_sequences=data.draw(st.integers(1, num_beams)),
        beam_threshold=data.draw(st.sampled_from([2.0, 12.0, None])),
        blank_threshold=data.draw(st.sampled_from([None, 0.8])),
        score_eos=data.draw(st.booleans()),
        merge=data.draw(st.sampled_from([None, "text"])),
        confidence=data.draw(st.sampled_from([None, "max_prob"])),
    )
    found, expected = decoder(logits, lengths), streamed(decoder, logits, lengths)
    assert told(found) == told(expected)
    torch.testing.assert_close(scores(found), scores(expected), atol=1e-6, rtol=1e-6)
    assert [h.token_confidences for n in found for h in n] == [h.token_confidences for n in expected for h in n]
    decoder.options = replace(decoder.options, engine="reference")
    best = [n_best[0] for n_best in found]
    reference = [n_best[0] for n_best in decoder(logits, lengths)]
    torch.testing.assert_close(scores([best]), scores([reference]), atol=2e-3, rtol=1e-4)


def test_what_is_prepared_for_a_batch_serves_its_like_alone(tokenizer, lm):
    """The LM of the batch before stays ready; other rows, weights, settings and phrases don't get it."""
    logits = random_logits(3, 12, 1)
    decoder = CTCDecoder(tokenizer, lm, 0.5, num_beams=8)
    kinds = [
        lambda: decoder,
        lambda: decoder.with_weights(lm_weight=1.5),
        lambda: decoder.with_weights(beta=5.0),
        lambda: decoder.with_weights(lm_weight=torch.tensor([0.1, 0.5, 2.0])),
        lambda: decoder.with_phrases(PHRASES, 4.0),
    ]
    found = [told(make()(logits)) for make in kinds]
    assert len({str(texts) for texts in found}) == len(kinds), "settings that make no difference show nothing"
    for make, expected in zip(kinds, found):
        assert told(decoder(logits[:1])) == found[0][:1]
        assert told(make()(logits)) == expected == told(streamed(make(), logits, None))
    decoder.options = replace(decoder.options, num_return_sequences=4)
    assert [len(n_best) for n_best in decoder(logits)] == [4, 4, 4]
    assert [n_best[:1] for n_best in told(decoder(logits))] == found[0]
    assert told(decoder(logits, phrases=PHRASES)) == told(decoder.with_phrases(PHRASES)(logits))


def test_batches_of_other_classes_have_rules_of_their_own(tokenizer, lm):
    """Hashes of texts have one for each class: those of a batch with fewer classes end too early."""
    narrow = random_logits(2, 12, 3)
    wide = torch.cat([narrow, narrow.new_full((2, 12, 40), -3.0)], -1)
    decoder, fresh = (CTCDecoder(tokenizer, lm, 0.5, num_beams=8, merge="text") for _ in range(2))
    decoder(narrow)
    rules = decoder._kept[2].slots.prepared
    assert told(decoder(wide)) == told(fresh(wide))
    assert {classes: rules.beam_rules(classes)._alive["text_hashes"].shape[1] for classes in (257, 297)} == {257: 257, 297: 297}


def test_it_works_in_and_out_of_inference_mode(tokenizer, lm):
    logits = random_logits(2, 12, 2)
    decoder = CTCDecoder(tokenizer, lm, 0.5, num_beams=8)
    with torch.inference_mode():
        inside = told(decoder(logits))
    assert told(decoder(logits)) == inside == told(decoder(logits.clone().requires_grad_()))


def test_half_precision_and_layouts(tokenizer, lm):
    logits = random_logits(2, 12, 3).half()
    decoder = CTCDecoder(tokenizer, lm, 0.5, num_beams=8)
    turned = logits.transpose(1, 2).contiguous().transpose(1, 2)
    assert told(decoder(logits)) == told(decoder(logits.float())) == told(decoder(turned))


def test_broken_logits_name_row_and_frame(tokenizer, lm):
    logits = random_logits(3, 12, 4)
    logits[1, 5, 3] = torch.nan
    with pytest.raises(InvalidLogitsError, match="row 1 hold NaN or infinity at frame 5"):
        CTCDecoder(tokenizer, lm, 0.5, num_beams=8)(logits)


def test_one_text_in_two_cuttings(tokenizer):
    vocabulary = tokenizer.get_vocab()
    whole, first, rest = next(
        (vocabulary[piece], vocabulary[piece[:n]], vocabulary[piece[n:]])
        for piece in sorted(vocabulary)
        for n in range(2, len(piece))
        if piece.startswith("▁") and {piece[:n], piece[n:]} <= vocabulary.keys()
    )
    logits = torch.full((1, 2, BLANK + 1), -20.0)
    logits[0, 0, [whole, first]] = torch.tensor([3.0, 2.0])
    logits[0, 1, [BLANK, rest]] = torch.tensor([3.0, 2.9])
    log_probs = torch.log_softmax(logits[0].double(), -1)
    by_tokens, by_text = (CTCDecoder(tokenizer, num_beams=8, num_return_sequences=4, merge=m) for m in ("tokens", "text"))
    ways = {tuple(h.token_ids): h.acoustic_score for h in by_tokens(logits)[0]}
    assert ways.keys() >= {(whole,), (first, rest)}
    found = by_text(logits)[0]
    assert found[0].token_ids == [whole] and (first, rest) not in {tuple(h.token_ids) for h in found}
    both = torch.logaddexp(log_probs[0, whole] + log_probs[1, BLANK], log_probs[0, first] + log_probs[1, rest])
    assert found[0].acoustic_score == pytest.approx(float(both), abs=1e-5)
    assert told([found]) == told(streamed(by_text, logits, None))
