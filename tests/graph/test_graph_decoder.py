"""GraphDecoder: hypotheses, phrases on arcs, streams, models per row, and what it refuses."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, Wav2Vec2CTCTokenizer

from hf_ngpulm import ArcBooster, CTCDecoder, GraphDecoder, InvalidLogitsError, LogLinear, NGramLM, PhraseBooster
from hf_ngpulm.bundled import bundled
from hf_ngpulm.graph.stream import BLOCK_FRAMES

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
    context = GraphDecoder(tokenizer, lm, incomplete="kept").context(PHRASES)
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
    with pytest.raises(ValueError, match="discount should be at least 0"):
        shared.with_phrases(PHRASES, -1.0)


@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_where_lists_of_token_sequences_are_exact_both_find_the_same(tokenizer, lm, engine):
    """Frames that leave little doubt: one alignment is all there is."""
    for text in ("what is the weather today", "call anna", "set an alarm"):
        logits = saying(tokenizer, text)
        found = GraphDecoder(tokenizer, lm, 0.1, beta=0.0, engine=engine, max_active=8)(logits)[0][0]
        assert found.token_ids == CTCDecoder(tokenizer, lm, 0.1, beta=0.0, num_beams=8)(logits)[0][0].token_ids
        assert found.text == text


def arcs_of(booster, lm):
    """States and tokens of a booster's arcs, as a context has them."""
    offsets, tokens = (getattr(lm, name).numpy() for name in ("arc_offsets", "arc_tokens"))
    return list(zip((np.searchsorted(offsets, booster.arcs, "right") - 1).tolist(), tokens[booster.arcs].tolist()))


def earned(context, token_ids):
    """The discount of each of some tokens by the definition: the largest of the state's and those that it backs off to."""
    lm = context.lm
    discounts = dict(zip(zip(context.states.tolist(), context.tokens.tolist()), context.discounts.tolist()))
    found, state = [], lm.starts[:1]
    for token in token_ids:
        chain = [int(state)]
        while int(lm.backoff_states[chain[-1]]) != chain[-1]:
            chain.append(int(lm.backoff_states[chain[-1]]))
        found.append(max(discounts.get((place, token), 0.0) for place in chain))
        state = lm.step(state, torch.tensor([token]))[1]
    return found


def test_phrases_earn_the_discounts_of_their_arcs(tokenizer, lm):
    """Without following phrases past what the LM has seen: the arcs are those that an ArcBooster finds."""
    discounts = {phrase: 0.5 + number for number, phrase in enumerate(PHRASES)}
    stopping = GraphDecoder(tokenizer, lm, 0.4, beta=BETA, phrases=discounts, incomplete="kept", unseen="stop")
    booster = ArcBooster(discounts, lm, tokenizer)
    found = stopping.context(discounts)
    assert list(zip(found.states.tolist(), found.tokens.tolist())) == arcs_of(booster, lm)
    assert found.seen == booster.seen
    logits = torch.cat([random_logits(8, 60), *(saying(tokenizer, " ".join([p] * 12))[:, :60] for p in PHRASES[2:4])])
    for decoder in (stopping, GraphDecoder(tokenizer, lm, 0.4, beta=BETA, phrases=discounts, incomplete="kept")):
        context, scores = decoder.context(discounts), []
        for (best,) in decoder(logits):
            scores.append(best.phrase_score)
            assert best.phrase_score == pytest.approx(sum(earned(context, best.token_ids)), abs=1e-3)
        assert min(scores) > 0 and len({round(score, 2) for score in scores}) > 4


def test_beginnings_earn_the_less_the_more_phrases_begin(tokenizer, lm):
    """Discounted unigrams' probabilities sum to 1, as before."""
    unigrams = lm.scores(lm.roots[:1])[0].double().exp()
    for phrases in (["weather"], PHRASES, [chr(ord("a") + n) for n in range(26)]):
        context = GraphDecoder(tokenizer, lm, incomplete="kept").context(phrases)
        at_root = context.states == int(lm.roots[0])
        beginnings = unigrams[torch.from_numpy(context.tokens[at_root]).long()]
        expected = 2.0 - np.log1p(float(beginnings.sum()) * np.expm1(2.0))
        assert context.discounts[at_root] == pytest.approx(expected, abs=1e-5)
        assert (context.discounts[~at_root] == 2.0).all() and 0 < expected < 2


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


def test_contexts_on_arcs_change_in_mid_utterance(tokenizer, lm):
    """Tokens get the discounts of the context that they are found in."""
    decoder = GraphDecoder(tokenizer, lm, WEIGHT, max_active=16, beta=BETA, incomplete="kept")
    logits, contexts = random_logits(3, 90), [PHRASES, None, [("what", 6.0), "the day"]]
    prepared = [None if context is None else decoder.context(context) for context in contexts]
    stream = decoder.stream(3, phrases=contexts)
    for turn in range(3):
        stream.add(logits[:, 30 * turn : 30 * turn + 30])
        for row in range(3):
            stream.set_context(row, contexts[(row + turn + 1) % 3])
    total = 0.0
    for row, (best,) in enumerate(stream.hypotheses()):
        expected = 0.0
        for turn in range(3):
            context = prepared[(row + turn) % 3]
            if context is not None:
                of_tokens = zip(earned(context, best.token_ids), best.token_frames)
                expected += sum(share for share, frame in of_tokens if 30 * turn <= frame < 30 * turn + 30)
        assert best.phrase_score == pytest.approx(expected, abs=1e-3)
        total += expected
    assert total > 0
    unchanged = decoder(logits)
    again = decoder.stream(3, phrases=PHRASES)
    for row in range(3):
        again.set_context(row, None)
    again.add(logits)
    assert again.hypotheses() == unchanged


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
    """Automata, arcs and nothing, in one batch."""
    logits = random_logits(4, 50)
    arcs = GraphDecoder(tokenizer, lm, WEIGHT, incomplete="kept").context(PHRASES)
    contexts = [PHRASES, arcs, None, PhraseBooster(PHRASES[:2], tokenizer)]
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


def test_from_arcs_to_an_automaton_and_back(tokenizer, lm):
    """Discounts of arcs are kept, what was completed beside them too."""
    decoder = GraphDecoder(tokenizer, lm, WEIGHT, beta=BETA, max_active=16, incomplete="kept")
    booster = PhraseBooster([("call anna", 2.0)], tokenizer)
    said = saying(tokenizer, "call anna", 40.0)
    for engine in ("cpu", "reference"):
        decoder.engine = engine
        stream, alone = decoder.stream(2, phrases=PHRASES), decoder.stream(2, phrases=PHRASES)
        scores = []
        for context in (booster, PHRASES, None):
            for each in (stream, alone):
                each.add(torch.cat([said] * 2))
            stream.set_context(1, context)
            if context is booster:
                alone.set_context(1, None)
            scores.append([best.phrase_score for (best,) in stream.hypotheses()])
        (first, of_arcs), (_, both), (last, of_all) = scores
        assert first == of_arcs and stream.hypotheses()[0] == alone.hypotheses()[0]
        assert both == pytest.approx(of_arcs + 2.0 * len(tokenizer("call anna")["input_ids"]), abs=1e-3)
        assert of_all > both and last > first


def test_a_long_stream_keeps_little(tokenizer, lm):
    """Half an hour of frames of 80 ms: what is kept of the search is as long as hypotheses differ."""
    decoder = GraphDecoder(tokenizer, lm, WEIGHT, max_active=8, beta=BETA)
    stream = decoder.stream(1)
    logits = random_logits(1, 3000)
    kept = []
    for _ in range(8):
        stream.add(logits)
        kept.append((stream.slots.history.tails.ids.nbytes, int(stream.slots.history.sizes.max())))
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


@pytest.mark.parametrize("incomplete", ["taken_back", "kept"])
def test_contexts_are_found_again_by_what_is_in_them(tokenizer, lm, incomplete):
    decoder = GraphDecoder(tokenizer, lm, incomplete=incomplete)
    first = decoder.context(PHRASES)
    assert decoder.context(list(PHRASES)) is decoder.context(tuple(PHRASES)) is first
    assert decoder.context(PHRASES[:3]) is not first
    pairs = decoder.context(dict.fromkeys(PHRASES, 3.0))
    assert decoder.context([(phrase, 3.0) for phrase in PHRASES]) is pairs
    threes = GraphDecoder(tokenizer, lm, discount=3.0, incomplete=incomplete).context(PHRASES)
    given = "discounts" if incomplete == "kept" else "arc_weights"
    assert getattr(threes, given).tolist() == getattr(pairs, given).tolist() != getattr(first, given).tolist()
    assert decoder.with_phrases(PHRASES, 3.0).phrases is not decoder.with_phrases(PHRASES).phrases is first


def test_a_bonus_for_words(tokenizer, lm):
    logits = random_logits(2, 60)
    found = GraphDecoder(tokenizer, lm, 0.5, beta=3.0, beta_per="word")(logits)
    for (best,) in found:
        words = sum(piece.startswith("▁") for piece in tokenizer.convert_ids_to_tokens(best.token_ids))
        ids = torch.tensor([best.token_ids])
        lm_score = float(lm.score_sequences(ids))
        assert best.score == pytest.approx(best.acoustic_score + 0.5 * lm_score + 3.0 * words, abs=1e-3)
    assert found != GraphDecoder(tokenizer, lm, 0.5, beta=3.0)(logits)


def test_phrases_behind_a_delimiter(tmp_path):
    """In vocabularies of characters a phrase begins where a word does."""
    pieces = [*"abcd", "|", "_", "<unk>"]
    (tmp_path / "vocab.json").write_text(json.dumps({piece: token for token, piece in enumerate(pieces)}))
    tokenizer = Wav2Vec2CTCTokenizer(
        str(tmp_path / "vocab.json"), pad_token="_", unk_token="<unk>", word_delimiter_token="|", bos_token=None, eos_token=None
    )
    lm = NGramLM.train([[0, 1, 4, 2, 3], [2, 0, 1, 4, 0, 1]] * 10, vocab_size=7, order=3)
    context = GraphDecoder(tokenizer, lm, incomplete="kept").context(["ab"])
    behind = int(lm.step(lm.roots, torch.tensor([4]))[1])
    arcs = dict(zip(zip(context.states.tolist(), context.tokens.tolist()), context.discounts.tolist()))
    assert arcs[behind, 0] == 2.0
    assert 4 not in context.tokens  # the delimiter earns nothing
    assert (int(lm.roots[0]), 0) not in arcs  # nor does an "a" in the midst of a word


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"max_active": 0}, "max_active"),
        ({"max_active": 4, "num_return_sequences": 5}, "num_return_sequences"),
        ({"beam_threshold": 0.0}, "beam_threshold"),
        ({"blank_threshold": 1.5}, "blank_threshold"),
        ({"frame_seconds": -1.0}, "frame_seconds"),
        ({"confidence": "sure"}, "confidence"),
        ({"beta_per": "character"}, "beta_per"),
        ({"unseen": "guess", "incomplete": "kept"}, "unseen"),
        ({"unseen": "stop"}, "pass incomplete='kept' too"),
        ({"incomplete": "lost"}, "incomplete"),
        ({"discount": -1.0}, "discount should be at least 0"),
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
    kept = GraphDecoder(tokenizer, lm, incomplete="kept")
    with pytest.raises(ValueError, match="row 1 has phrases, but no language model"):
        GraphDecoder(tokenizer, [lm, None], phrases=PHRASES, incomplete="kept")
    with pytest.raises(ValueError, match="another language model"):
        GraphDecoder(tokenizer, NGramLM.train([[1, 2]] * 9, vocab_size=256, order=2), phrases=kept.context(PHRASES))
    with pytest.raises(ValueError, match="each row has its own; pass the phrases themselves"):
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
    with pytest.raises(InvalidLogitsError, match="before they had 257"):
        stream.add(torch.zeros(1, 3, 300))
    with pytest.raises(ValueError, match="the stream was opened for 1"):
        stream.add(random_logits(2, 5))
    assert stream.hypotheses() == before and stream.frames == [5]


def test_several_language_models_at_once_are_refused(tokenizer, lm):
    with pytest.raises(ValueError, match="not of several as LogLinear"):
        GraphDecoder(tokenizer, LogLinear([lm, lm], [0.5, 0.5]))
