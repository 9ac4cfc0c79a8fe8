"""GraphDecoder: hypotheses, phrases on arcs, streams, models per row, and what it refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from hf_ngpulm import CTCDecoder, GraphDecoder, InvalidLogitsError, LogLinear, NGramLM, PhraseBooster
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.decoding.sessions.ctc import BLOCK_FRAMES

BLANK = 256
WEIGHT, BETA = 0.8, 2.0
PHRASES = ["the weather", "call anna", "what is the time", "new york", "alarm"]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))


@pytest.fixture(scope="module")
def lm(tokenizer):
    return NGramLM.from_arpa(bundled("examples/speech/harbour/lm.arpa.gz"), tokenizer, units="id")


@pytest.fixture(scope="module")
def decoder(tokenizer, lm):
    return GraphDecoder(tokenizer, lm, WEIGHT, max_active=16, beta=BETA)


def random_logits(batch_size=4, frames=40, classes=257, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(batch_size, frames, classes, generator=generator)
    logits[..., BLANK] += 5 * torch.rand(batch_size, frames, generator=generator)
    return logits


def saying(tokenizer, text, margin=6.0, repeats=2):
    """Logits that say a text, each token for some frames and then a blank."""
    labels = [label for token in tokenizer(text)["input_ids"] for label in [token] * repeats + [BLANK]]
    logits = torch.zeros(1, len(labels), 257)
    logits[0, torch.arange(len(labels)), torch.tensor(labels)] = margin
    return logits


def best_alignment(log_probs, tokens):
    """The score of the likeliest alignment of some tokens, by the CTC topology's definition."""
    labels = [BLANK, *(label for token in tokens for label in (token, BLANK))]
    scores = np.full(len(labels), -np.inf)
    scores[0] = 0.0
    for frame, x in enumerate(log_probs):
        before = scores.copy()
        for place, label in enumerate(labels):
            ways = [before[place]] if frame or place == 0 else []
            ways += [before[place - 1]] if place else []
            if place > 1 and label != BLANK and label != labels[place - 2]:
                ways.append(before[place - 2])
            scores[place] = max(ways, default=-np.inf) + x[label]
        if frame == 0 and len(labels) > 1:
            scores[1], scores[2:] = x[labels[1]], -np.inf
    return max(scores[-2:])


def test_hypothesis_fields(tokenizer, lm):
    logits, lengths = random_logits(), torch.tensor([40, 0, 7, 39])
    log_probs = torch.log_softmax(logits, -1).numpy()
    context = GraphDecoder(tokenizer, lm, WEIGHT).context(dict.fromkeys(PHRASES, 9.0))
    decoder = GraphDecoder(tokenizer, lm, WEIGHT, beta=BETA, phrases=context, frame_seconds=0.04)
    discounted = 0.0
    for row, (best,) in enumerate(decoder(logits, lengths)):
        ids = torch.tensor([best.token_ids or [-1]])
        assert best.text == tokenizer.decode(best.token_ids, group_tokens=False)
        assert best.lm_score == pytest.approx(float(lm.score_sequences(ids, eos=False)), abs=1e-3)
        assert best.acoustic_score == pytest.approx(best_alignment(log_probs[row, : lengths[row]], best.token_ids), abs=1e-3)
        end = float(lm.final_scores(lm.states_after(ids)))
        added = WEIGHT * (best.lm_score + end) + BETA * len(best.token_ids) + best.phrase_score
        assert best.score == pytest.approx(best.acoustic_score + added, abs=1e-3)
        assert all(0 <= a < b <= lengths[row] for a, b in zip(best.token_frames, best.token_ends))
        assert all(end <= start for end, start in zip(best.token_ends, best.token_frames[1:]))
        assert len(best.token_confidences) == len(best.token_ids)
        assert all(word.end > word.start for word in best.words)
        discounted += best.phrase_score
    assert discounted > 0


def test_n_best_lists(tokenizer, lm):
    """Each with the score that its tokens have; and the best of a wide search that there are."""
    logits = random_logits(3, 12)
    log_probs = torch.log_softmax(logits, -1).numpy()
    settings = {"beta": BETA, "beam_threshold": 60.0, "phrases": PHRASES}
    n_best_lists = GraphDecoder(tokenizer, lm, WEIGHT, max_active=300, num_return_sequences=20, **settings)(logits)
    wide = GraphDecoder(tokenizer, lm, WEIGHT, max_active=300, num_return_sequences=300, **settings)(logits)
    for row, n_best in enumerate(n_best_lists):
        scores = [hypothesis.score for hypothesis in n_best]
        assert scores == sorted(scores, reverse=True)
        assert len({tuple(hypothesis.token_ids) for hypothesis in n_best}) == 20
        assert wide[row][:20] == n_best and 150 <= len(wide[row]) < 300  # most sequences have come to two search states
        for hypothesis in n_best:
            ids = torch.tensor([hypothesis.token_ids or [-1]])
            acoustic = best_alignment(log_probs[row], hypothesis.token_ids)
            end = float(lm.final_scores(lm.states_after(ids)))
            added = WEIGHT * (hypothesis.lm_score + end) + BETA * len(hypothesis.token_ids) + hypothesis.phrase_score
            assert hypothesis.score == pytest.approx(hypothesis.acoustic_score + added, abs=1e-3)
            assert hypothesis.acoustic_score <= acoustic + 1e-3
    alone = GraphDecoder(tokenizer, lm, WEIGHT, max_active=300, **settings)(logits)
    assert alone == [n_best[:1] for n_best in n_best_lists]


def test_other_phrases_and_some_of_the_rows(tokenizer, lm):
    other = NGramLM.train([[5, 7, 9, 5, 7], [9, 7, 5]] * 20, vocab_size=256, order=2)
    logits, rows = random_logits(), [3, 1]
    weights, betas = torch.tensor([0.8, 0.5, 0.3, 1.2]), torch.tensor([2.0, 1.0, 0.0, 3.0])
    decoder = GraphDecoder(tokenizer, [lm, other, None, lm], weights, beta=betas)
    discounts = torch.tensor([1.0, 2.0, 3.0, 4.0])
    changed = decoder.with_phrases([PHRASES, ["what"], None, PHRASES[:2]], discounts)
    expected = decoder(logits, None, [dict.fromkeys(PHRASES, 1.0), {"what": 2.0}, None, dict.fromkeys(PHRASES[:2], 4.0)])
    assert changed(logits) == expected != decoder(logits)
    assert changed.select(rows)(logits[rows]) == [expected[row] for row in rows]
    shared = GraphDecoder(tokenizer, lm, WEIGHT, beta=BETA)
    one = shared.with_phrases(PHRASES, 3.0)
    assert one(logits) == shared(logits, None, dict.fromkeys(PHRASES, 3.0)) == one.select(range(4))(logits)
    assert shared.with_phrases(PHRASES)(logits) == shared(logits, None, PHRASES)
    each = shared.with_phrases(PHRASES, discounts)
    assert each(logits) == shared(logits, None, [dict.fromkeys(PHRASES, discount) for discount in discounts.tolist()])
    assert one.with_phrases(None)(logits) == shared(logits)
    with pytest.raises(ValueError, match=r"different numbers of rows: \[2, 4\]"):
        shared.with_phrases([PHRASES, None], discounts)
    with pytest.raises(ValueError, match="discount should be a finite number from 0"):
        shared.with_phrases(PHRASES, -1.0)


@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_where_lists_of_token_sequences_are_exact_both_find_the_same(tokenizer, lm, engine):
    """Frames that leave little doubt: one alignment is all there is."""
    for text in ("what is the weather today", "call anna", "set an alarm"):
        logits = saying(tokenizer, text)
        found = GraphDecoder(tokenizer, lm, 0.1, beta=0.0, engine=engine, max_active=8)(logits)[0][0]
        assert found.token_ids == CTCDecoder(tokenizer, lm, 0.1, beta=0.0, num_beams=8)(logits)[0][0].token_ids
        assert found.text == text


def test_frames_may_be_cut_anywhere(decoder):
    logits, lengths = random_logits(frames=BLOCK_FRAMES + 90), torch.tensor([BLOCK_FRAMES + 90, 3, 0, 301])
    expected = decoder(logits, lengths, PHRASES)
    for sizes in ([1] * 40 + [400], [7, 0, 250, 200], [300, 300]):
        stream, first = decoder.stream(4, phrases=PHRASES), 0
        for size in sizes:
            block = logits[:, first : first + size]
            stream.add(block, (lengths - first).clamp(0, block.shape[1]))
            first += size
        assert stream.frames == lengths.tolist()
        for (found,), (best,) in zip(stream.hypotheses(), expected):
            assert (found.token_ids, found.token_frames, found.token_ends) == (
                best.token_ids,
                best.token_frames,
                best.token_ends,
            )
            assert found.score == pytest.approx(best.score) and found.text == best.text
            assert found.token_confidences == pytest.approx(best.token_confidences)


def test_partials_are_the_best_so_far(tokenizer, lm, decoder):
    without_end = GraphDecoder(tokenizer, lm, WEIGHT, max_active=16, beta=BETA, score_eos=False)
    logits = random_logits(2, 30)
    stream = decoder.stream(2)
    for frame in range(30):
        stream.add(logits[:, frame : frame + 1])
        assert stream.partials() == [best for (best,) in without_end(logits[:, : frame + 1])]


def test_what_is_not_completed_is_taken_back(tokenizer, lm):
    """Each phrase that was said earns its discount for each token, and what the LM charges beyond ln(V); others nothing."""
    discounts = {"call anna": 1.5, "the weather": 1.0, "the weatherman": 3.0, "new york": 2.0}
    decoder = GraphDecoder(tokenizer, lm, WEIGHT, beta=BETA, phrases=discounts, max_active=16)
    for text in ("call anna", "what is the weather today", "call the weather new yorker", "the time"):
        best = decoder(saying(tokenizer, text, margin=40.0))[0][0]
        assert best.text == text
        expected = 0.0
        for phrase in (phrase for phrase in discounts if f" {phrase} " in f" {text} "):
            state = lm.roots[:1]
            for token in tokenizer(phrase)["input_ids"]:
                score, state = lm.step(state, torch.tensor([token]))
                expected += discounts[phrase] + WEIGHT * max(0.0, -math.log(256) - float(score))
        assert best.phrase_score == pytest.approx(expected, abs=1e-3)


def test_an_unknown_phrase_costs_no_more_than_if_all_tokens_were_equally_likely(tokenizer):
    """Neither is anything paid before the LM charges for it."""
    lm = NGramLM.train([tokenizer("what is the weather today")["input_ids"]] * 30, vocab_size=256, order=3)
    booster = GraphDecoder(tokenizer, lm, 1.0, discount=0.0).context(["the xylophone"])
    state, at = lm.roots[:1], booster.roots[:1]
    paid = 0.0
    for token in tokenizer("the xylophone")["input_ids"]:
        score, state = lm.step(state, torch.tensor([token]))
        earns, at = booster.step(at, torch.tensor([token]))
        assert float(score + earns) == pytest.approx(max(float(score), -math.log(256)), abs=1e-4)
        paid += float(earns)
    assert paid > 1.0


def test_contexts_change_in_mid_utterance(tokenizer, lm, decoder):
    """What is in progress is taken back, a row's switch changes no other row, and what is switched to counts from there on."""
    first, later = saying(tokenizer, "call anna", 40.0), saying(tokenizer, "what is the time", 40.0)
    stream = decoder.stream(3)
    stream.add(torch.cat([first] * 3))
    stream.set_context(0, ["what is the time"])
    stream.set_context(1, [("anna what", 5.0), ("call anna", 5.0)])
    stream.add(torch.cat([later] * 3))
    stream.set_context(0, None)
    found = [best for (best,) in stream.hypotheses()]
    assert {best.text for best in found} == {"call anna what is the time"}
    booster = decoder.context(["what is the time"])
    earned, at = 0.0, booster.roots[:1]
    for token in tokenizer("what is the time")["input_ids"]:
        score, at = booster.step(at, torch.tensor([token]))
        earned += float(score)
    assert found[0].phrase_score == pytest.approx(earned, abs=1e-3) and earned > 3.0
    assert found[1].phrase_score == found[2].phrase_score == 0.0
    unchanged = decoder(torch.cat([first, later], 1))[0][0]
    assert found[2] == unchanged and found[1].score == pytest.approx(unchanged.score, abs=1e-3)


def test_all_contexts_at_once_and_switched_to_at_the_beginning(tokenizer, lm, decoder):
    """Automata of its own and of others, and nothing, in one batch."""
    logits = random_logits(4, 50)
    contexts = [PHRASES, decoder.context(dict.fromkeys(PHRASES, 9.0)), None, PhraseBooster(PHRASES[:2], tokenizer)]
    together = decoder(logits, None, contexts)
    stream = decoder.stream(4)
    for row, context in enumerate(contexts):
        (alone,) = decoder(logits[row : row + 1], None, context)
        assert together[row][0].token_ids == alone[0].token_ids
        assert together[row][0].score == pytest.approx(alone[0].score, abs=1e-3)
        stream.set_context(row, context)
    stream.add(logits)
    for (found,), (best,) in zip(stream.hypotheses(), together):
        assert (found.token_ids, found.score) == (best.token_ids, pytest.approx(best.score, abs=1e-3))
    assert together[1][0].phrase_score > 0 == together[2][0].phrase_score


def test_a_long_stream_keeps_little(tokenizer, lm):
    """Half an hour of frames of 80 ms: what is kept of the search is as long as hypotheses differ."""
    decoder = GraphDecoder(tokenizer, lm, WEIGHT, max_active=8, beta=BETA)
    stream = decoder.stream(1)
    logits = random_logits(1, 3000)
    kept = []
    for _ in range(8):
        stream.add(logits)
        kept.append((stream.slots.history.tails.nbytes, int(stream.slots.history.sizes.max())))
    assert stream.frames == [24000]
    assert max(size for _, size in kept) < 100
    assert kept[-1][0] == kept[1][0]
    best = stream.hypotheses()[0][0]
    assert len(best.token_ids) > 1000 and best.token_frames == sorted(best.token_frames)


def test_models_weights_and_contexts_of_rows(tokenizer, lm):
    other = NGramLM.train([[5, 7, 9, 5, 7], [9, 7, 5]] * 20, vocab_size=256, order=2)
    models, weights, betas = [lm, other, None, lm], torch.tensor([0.8, 0.5, 0.3, 1.2]), torch.tensor([2.0, 1.0, 0.0, 3.0])
    contexts = [dict.fromkeys(PHRASES, 9.0), ["what"], None, None]
    logits = random_logits()
    together = GraphDecoder(tokenizer, models, weights, beta=betas, phrases=contexts)(logits)
    for row, (model, context) in enumerate(zip(models, contexts)):
        given = model or lm
        weight = float(weights[row]) if model else 0.0
        alone = GraphDecoder(tokenizer, given, weight, beta=float(betas[row]), phrases=context)(logits[row : row + 1])[0][0]
        assert together[row][0].token_ids == alone.token_ids
        assert together[row][0].score == pytest.approx(alone.score, abs=1e-3)
        assert together[row][0].phrase_score == pytest.approx(alone.phrase_score, abs=1e-3)
    assert together[0][0].phrase_score > 0


def test_prepared_contexts_and_texts_are_the_same(tokenizer, lm, decoder):
    logits = random_logits()
    expected = decoder(logits, None, PHRASES)
    prepared = decoder.context(iter(PHRASES))
    assert decoder(logits, None, prepared) == expected
    assert decoder(logits, None, [prepared, PHRASES, prepared, dict.fromkeys(PHRASES, 1.0)]) == expected
    assert decoder(logits, None, iter(PHRASES)) == expected
    assert decoder(logits, None, []) == decoder(logits)


def test_contexts_are_found_again_by_what_is_in_them(tokenizer, lm):
    decoder = GraphDecoder(tokenizer, lm)
    first = decoder.context(PHRASES)
    assert decoder.context(list(PHRASES)) is decoder.context(tuple(PHRASES)) is first
    assert decoder.context(PHRASES[:3]) is not first
    pairs = decoder.context(dict.fromkeys(PHRASES, 3.0))
    assert decoder.context([(phrase, 3.0) for phrase in PHRASES]) is pairs
    threes = GraphDecoder(tokenizer, lm, discount=3.0).context(PHRASES)
    assert threes.arc_weights.tolist() == pairs.arc_weights.tolist() != first.arc_weights.tolist()
    assert decoder.with_phrases(PHRASES, 3.0).phrases is not decoder.with_phrases(PHRASES).phrases is first


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"max_active": 0}, "max_active"),
        ({"max_active": 4, "num_return_sequences": 5}, "num_return_sequences"),
        ({"beam_threshold": 0.0}, "beam_threshold"),
        ({"blank_threshold": 1.5}, "blank_threshold"),
        ({"frame_seconds": -1.0}, "frame_seconds"),
        ({"confidence": "sure"}, "confidence"),
        ({"discount": -1.0}, "discount should be a finite number from 0"),
        ({"phrases": [("alarm", -1.0)]}, "a discount should be at least 0, that of 'alarm'"),
        ({"phrases": [""]}, "empty"),
        ({"engine": "fast"}, "engine"),
    ],
)
def test_bad_arguments(tokenizer, lm, arguments, words):
    with pytest.raises(ValueError, match=words):
        GraphDecoder(tokenizer, lm, **arguments)


def test_what_it_refuses(tokenizer, lm, decoder):
    with pytest.raises(ValueError, match="CTCDecoder decodes without"):
        GraphDecoder(tokenizer, None)
    with pytest.raises(ValueError, match="differs by row; pass the phrases instead"):
        GraphDecoder(tokenizer, lm, torch.tensor([0.5, 0.6])).context(PHRASES)
    with pytest.raises(ValueError, match="phrases lists 2 contexts"):
        decoder(random_logits(), None, [PHRASES, None])
    with pytest.raises(ValueError, match=r"row should lie in 0\.\.1"):
        decoder.stream(2).set_context(2, None)
    with pytest.raises(InvalidLogitsError, match="only 200 classes"):
        decoder(torch.zeros(1, 3, 200))
    stream = decoder.stream(1)
    stream.add(random_logits(1, 5))
    before = stream.hypotheses()
    broken = random_logits(1, 5)
    broken[0, 3, 7] = torch.nan
    with pytest.raises(InvalidLogitsError, match="row 0 hold NaN or infinity at frame 3"):
        stream.add(broken)
    with pytest.raises(InvalidLogitsError, match=f"row 0 hold NaN or infinity at frame {BLOCK_FRAMES + 3}"):
        stream.add(torch.cat([random_logits(1, BLOCK_FRAMES), broken], 1))
    with pytest.raises(ValueError, match="this lm isn't among"):
        decoder.context(PHRASES, NGramLM.train([[1, 2]] * 9, vocab_size=256, order=2))
    with pytest.raises(InvalidLogitsError, match="but 257 in earlier blocks"):
        stream.add(torch.zeros(1, 3, 300))
    with pytest.raises(ValueError, match="the stream was opened for 1"):
        stream.add(random_logits(2, 5))
    assert stream.hypotheses() == before and stream.frames == [5]


def test_several_language_models_at_once_are_refused(tokenizer, lm):
    with pytest.raises(ValueError, match="one language model per row, got LogLinear"):
        GraphDecoder(tokenizer, LogLinear([lm, lm], [0.5, 0.5]))
