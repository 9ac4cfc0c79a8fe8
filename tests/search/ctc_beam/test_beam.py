"""Beam search through CTCDecoder: the definition by brute force, independence of batch and blocks, options."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from letters import Letters
from transformers import AutoTokenizer

from hf_ngpulm import CTCDecoder, GraphDecoder, InvalidLogitsError, NGramLM
from hf_ngpulm.common.bundled import bundled
from hf_ngpulm.text.hashing import BASE, hashes_of_pieces, text_hashes

RELAXED = settings(deadline=None, suppress_health_check=list(HealthCheck))
ENGINES = ["reference", "cpu"]


def small_lm(vocab_size, seed):
    generator = torch.Generator().manual_seed(seed)
    sentences = [torch.randint(0, vocab_size, (int(n),), generator=generator).tolist() for n in (3, 5, 1, 4, 2, 6)]
    return NGramLM.train(sentences, vocab_size=vocab_size, order=3)


def brute_force(logits, blank, lm, weight, beta, eos, vocab_size):
    """Score of every token sequence that some alignment of the frames collapses to, best first."""
    log_probs = torch.log_softmax(logits, -1).tolist()
    paths: dict[tuple[int, ...], list[float]] = {}
    for path in itertools.product(range(logits.shape[1]), repeat=logits.shape[0]):
        sequence = tuple(label for label, _ in itertools.groupby(path) if label != blank)
        paths.setdefault(sequence, []).append(sum(log_probs[t][label] for t, label in enumerate(path)))
    found = []
    for sequence, scores in paths.items():
        acoustic = float(torch.logsumexp(torch.tensor(scores, dtype=torch.float64), 0))
        fused, lm_score = beta * len(sequence), 0.0
        if lm is not None:
            state = lm.initial_states(1)
            for token in sequence:
                if token < vocab_size:
                    score, state = lm.step(state, torch.tensor([token]))
                    lm_score += float(score)
                else:
                    fused -= weight * math.log(vocab_size)
            fused += weight * (lm_score + (float(lm.final_scores(state)) if eos else 0.0))
        if acoustic > -math.inf:
            found.append((acoustic + fused, acoustic, lm_score, list(sequence)))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("engine", ENGINES)
@given(st.data())
@settings(RELAXED, max_examples=25)
def test_a_beam_that_covers_everything_is_brute_force(engine, data):
    """Tokens beyond the LM's vocabulary, impossible classes and the blank in any place included."""
    classes, frames = data.draw(st.sampled_from([(2, 5), (3, 4), (4, 3)]))
    blank = data.draw(st.integers(0, classes - 1))
    logits = 2 * torch.randn(frames, classes, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 999))))
    if data.draw(st.booleans()):
        logits[0, (blank + 1) % classes] = -torch.inf
    with_lm, eos = data.draw(st.booleans()), data.draw(st.booleans())
    vocab_size = data.draw(st.integers(1, classes))
    lm = small_lm(vocab_size, data.draw(st.integers(0, 9))) if with_lm else None
    weight, beta = data.draw(st.sampled_from([0.0, 0.4, 1.3, -0.5])), data.draw(st.sampled_from([0.0, 1.1, -0.7]))
    expected = brute_force(logits, blank, lm, weight, beta, eos, vocab_size)
    most = sum((classes - 1) ** length for length in range(frames + 1))
    decoder = CTCDecoder(
        Letters("abcde"[:classes], blank, lm), lm, weight, num_beams=most, beta=beta, beam_threshold=math.inf,
        score_eos=eos, num_return_sequences=most, engine=engine,
    )  # fmt: skip
    (found,) = decoder(logits[None])
    assert len(found) == len(expected)
    assert {tuple(h.token_ids) for h in found} == {tuple(sequence) for *_, sequence in expected}
    by_sequence = {tuple(sequence): scores for *scores, sequence in expected}
    for hypothesis, (score, *_) in zip(found, expected):
        assert hypothesis.score == pytest.approx(score, abs=1e-4)
        _, acoustic, lm_score = by_sequence[tuple(hypothesis.token_ids)]
        assert hypothesis.acoustic_score == pytest.approx(acoustic, abs=1e-4)
        assert hypothesis.lm_score == pytest.approx(lm_score, abs=1e-4)


PIECES = ["a", "b", "ab", "aa", "ba"]


@pytest.mark.parametrize("engine", ENGINES)
@given(st.data())
@settings(RELAXED, max_examples=25)
def test_a_beam_of_texts_that_covers_everything_is_brute_force(engine, data):
    """A text has the probability of all token sequences that spell it, whose tokens in turn may be any of those in a text."""
    classes, frames = data.draw(st.sampled_from([(4, 4), (6, 3)]))
    blank = data.draw(st.integers(0, classes - 1))
    pieces = data.draw(st.permutations(PIECES))[: classes - 1]
    pieces.insert(blank, "_")
    logits = 2 * torch.randn(frames, classes, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 999))))
    expected: dict[str, float] = {}
    for _, acoustic, _, sequence in brute_force(logits, blank, None, 0.0, 0.0, False, classes):
        text = "".join(pieces[token] for token in sequence)
        expected[text] = float(torch.logaddexp(torch.tensor(expected.get(text, -math.inf)), torch.tensor(acoustic)))
    most = sum((classes - 1) ** length for length in range(frames + 1))
    decoder = CTCDecoder(
        Letters(pieces, blank), num_beams=most, beam_threshold=math.inf, merge="text", num_return_sequences=most, engine=engine
    )
    (found,) = decoder(logits[None])
    assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
    assert len(found) == len(expected) < most
    for hypothesis in found:
        assert hypothesis.acoustic_score == pytest.approx(expected[hypothesis.text], abs=1e-4)


def test_merging_texts_finds_what_their_tokens_hide():
    """Two ways to write a text, each less likely than another text."""
    tokenizer = Letters(["a", "b", "ab", "c", "_"], blank=4)
    logits = torch.tensor([[0.4, 1e-9, 0.35, 0.25, 1e-9], [1e-9, 0.4, 1e-9, 0.3, 0.3]]).log()[None]
    by_tokens, by_text = (
        CTCDecoder(tokenizer, num_beams=8, merge=merge, num_return_sequences=8)(logits)[0] for merge in (None, "text")
    )
    together = [h for h in by_tokens if h.text == "ab"]
    assert {tuple(h.token_ids) for h in together} >= {(0, 1), (2,)}
    best = next(h for h in by_text if h.text == "ab")
    assert best.score == pytest.approx(math.log(0.4 * 0.4 + 0.35 * 0.3), abs=1e-5)
    assert len({h.text for h in by_text}) == len(by_text) < len(by_tokens)


@given(st.lists(st.text(max_size=4), min_size=1, max_size=6), st.lists(st.text(max_size=4), min_size=1, max_size=6))
def test_hashes_are_those_of_texts(some, others):
    """However they are cut."""

    def hash_of(pieces):
        found = torch.zeros((), dtype=torch.int64)
        for factor, summand in hashes_of_pieces(pieces).T:
            found = found * factor + summand
        return int(found)

    some, others = ([piece for piece in pieces if piece] for pieces in (some, others))
    together = hash_of(["".join(some)]) if some else 0
    assert hash_of(some) == together
    assert (hash_of(some) == hash_of(others)) == ("".join(some) == "".join(others))


def test_tokens_that_are_not_written_are_like_no_others(tokenizer):
    """Special ones, and classes beyond the vocabulary."""
    factors, summands = text_hashes(tokenizer, 300)
    special = [*tokenizer.all_special_ids, *range(len(tokenizer), 300)]
    assert len(set(summands.tolist())) == 300
    assert set(factors[special].tolist()) == {BASE}


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))


@pytest.fixture(scope="module")
def lm(tokenizer):
    return NGramLM.from_arpa(bundled("examples/speech/harbour/lm.arpa.gz"), tokenizer, units="id")


def some_logits(batch_size=5, frames=60, seed=0):
    """Peaky, with many blanks, as a trained model's."""
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(batch_size, frames, 257, generator=generator)
    logits[..., 256] += 14 * (torch.rand(batch_size, frames, generator=generator) < 0.7)
    return logits


LENGTHS = torch.tensor([60, 0, 17, 59, 33])


class Score(float):
    """A number that equals others near it: rounded ones may differ however near they are."""

    __hash__ = None

    def __eq__(self, other):
        return abs(self - other) < 1e-3


def in_detail(results):
    return [[(h.token_ids, h.token_frames, h.token_ends, Score(h.score)) for h in n_best] for n_best in results]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("settings", [{}, {"num_beams": 6, "num_return_sequences": 3}, {"num_beams": 6, "merge": "text"}])
def test_a_row_does_not_depend_on_its_batch_or_padding(tokenizer, lm, engine, settings):
    decoder = CTCDecoder(tokenizer, lm, 0.7, engine=engine, **settings)
    logits = some_logits()
    padded = logits.masked_fill((torch.arange(60) >= LENGTHS[:, None])[..., None], torch.nan)
    together = in_detail(decoder(padded, LENGTHS))
    for row in range(5):
        assert in_detail(decoder(logits[row : row + 1, : LENGTHS[row]]))[0] == together[row]
    assert together[1][0][0] == [] and together[0][0][0] != []


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "settings", [{"repeats": "label"}, {"repeats": "run"}, {}, {"num_beams": 5, "num_return_sequences": 5}]
)
def test_blocks_of_frames_give_what_one_call_gives(tokenizer, lm, engine, settings):
    """Blocks of any size, rows that pause, and hypotheses asked for in between."""
    decoder = CTCDecoder(tokenizer, lm, 0.7, engine=engine, confidence="gibbs", **settings)
    logits = some_logits(seed=1).half()
    expected = decoder(logits, LENGTHS)
    stream = decoder.stream(5)
    assert [n_best[0].text for n_best in stream.hypotheses()] == [""] * 5
    at = torch.zeros(5, dtype=torch.int64)
    generator = torch.Generator().manual_seed(2)
    while bool((at < LENGTHS).any()):
        counts = torch.minimum(torch.randint(0, 9, (5,), generator=generator), LENGTHS - at)
        block = torch.full((5, 9, 257), torch.nan, dtype=torch.float16)
        for row in range(5):
            block[row, : counts[row]] = logits[row, at[row] : at[row] + counts[row]]
        stream.add(block, counts)
        stream.hypotheses()
        at += counts
    found = stream.hypotheses()
    assert in_detail(found) == in_detail(expected)
    for ours, theirs in zip(found, expected):
        assert [h.token_confidences for h in ours] == [pytest.approx(h.token_confidences, abs=1e-5) for h in theirs]
        assert [h.acoustic_score for h in ours] == [pytest.approx(h.acoustic_score, abs=1e-3) for h in theirs]


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("with_lm", [False, True])
def test_a_broken_block_leaves_a_stream_as_it_was(tokenizer, lm, num_beams, with_lm):
    decoder = CTCDecoder(tokenizer, lm if with_lm else None, num_beams=num_beams)
    logits, stream = some_logits(), decoder.stream(5)
    stream.add(logits[:, :20])
    broken = logits[:, 20:].clone()
    broken[2, 3, 1] = math.nan
    with pytest.raises(InvalidLogitsError, match=r"row 2 .* frame 3"):
        stream.add(broken)
    stream.add(logits[:, 20:])
    assert in_detail(stream.hypotheses()) == in_detail(decoder(logits))


def test_without_lm_a_beam_finds_at_least_the_greedy_sequence(tokenizer):
    logits = some_logits(seed=3)
    for greedy, found in zip(CTCDecoder(tokenizer)(logits, LENGTHS), CTCDecoder(tokenizer, num_beams=8)(logits, LENGTHS)):
        assert found[0].acoustic_score >= greedy[0].acoustic_score - 1e-3
        assert found[0].score == pytest.approx(found[0].acoustic_score) and found[0].lm_score == 0.0


def test_the_acoustic_score_is_the_ctc_loss(tokenizer):
    """With a beam wide enough the sum over alignments is all but whole."""
    logits = some_logits(3, 30, seed=4)
    for row, (best,) in enumerate(CTCDecoder(tokenizer, num_beams=64)(logits)):
        log_probs = torch.log_softmax(logits[row], -1)[:, None]
        targets = torch.tensor([best.token_ids])
        loss = torch.nn.functional.ctc_loss(log_probs, targets, (30,), (len(best.token_ids),), blank=256, reduction="sum")
        assert best.acoustic_score == pytest.approx(-float(loss), abs=0.02)


def test_an_n_best_list_is_sorted_and_without_repeats(tokenizer, lm):
    for n_best in CTCDecoder(tokenizer, lm, 0.6, num_beams=12, num_return_sequences=12)(some_logits(), LENGTHS):
        scores = [hypothesis.score for hypothesis in n_best]
        assert scores == sorted(scores, reverse=True)
        assert len({tuple(hypothesis.token_ids) for hypothesis in n_best}) == len(n_best)


def test_the_bonus_is_nearly_what_chance_would_cost_up_to_a_weight(tokenizer, lm):
    logits, weights = some_logits(), torch.tensor([0.5, 0.7, 0.0, 1.0, 1.5])
    betas = torch.tensor([*(0.85 * math.log(256) * weight for weight in (0.5, 0.7, 0.0, 0.8)), 4.5])
    for kind, beams in ((CTCDecoder, {"num_beams": 4}), (GraphDecoder, {"max_active": 8})):
        told = kind(tokenizer, lm, weights, beta=betas, **beams)(logits, LENGTHS)
        assert in_detail(kind(tokenizer, lm, weights, **beams)(logits, LENGTHS)) == in_detail(told)


def test_one_model_weight_and_bonus_a_row(tokenizer, lm):
    logits, models = some_logits(), [lm, None, lm, small_lm(256, 1), lm]
    weights, betas = torch.tensor([0.5, 0.5, 0.0, 1.0, 1.5]), torch.tensor([0.0, 1.0, 2.0, 3.0, -1.0])
    together = in_detail(CTCDecoder(tokenizer, models, weights, num_beams=4, beta=betas)(logits))
    for row in range(5):
        decoder = CTCDecoder(tokenizer, models[row], float(weights[row]), num_beams=4, beta=float(betas[row]))
        assert in_detail(decoder(logits[row : row + 1]))[0] == together[row]


def test_skipping_blanks_changes_what_it_must_only(tokenizer, lm):
    logits = some_logits(seed=5)
    plain = CTCDecoder(tokenizer, lm, 0.7, num_beams=8)(logits)
    same = CTCDecoder(tokenizer, lm, 0.7, num_beams=8, blank_threshold=1.0)(logits)
    assert in_detail(same) == in_detail(plain)
    for (best,) in CTCDecoder(tokenizer, lm, 0.7, num_beams=8, blank_threshold=1e-30)(logits):
        assert best.token_ids == []


def test_the_end_of_the_sentence_counts_if_asked(tokenizer):
    """After "a b" the LM has seen no end of sentence, after "a" always."""
    lm = NGramLM.train([[0], [0], [0], [0, 1, 2], [0, 1, 2], [0, 1, 2]], vocab_size=3, order=3)
    logits = torch.log(torch.tensor([[[0.97, 0.01, 0.01, 0.01], [0.01, 0.5, 0.01, 0.48]]]))
    letters = Letters("abc_", 3, lm)
    texts = {
        eos: CTCDecoder(letters, lm, 0.8, num_beams=4, beta=0.0, score_eos=eos)(logits)[0][0].text for eos in (True, False)
    }
    assert texts[True] == "a"
    best = CTCDecoder(letters, lm, 0.8, num_beams=4, beta=0.0)(logits)[0][0]
    final = float(lm.final_scores(lm.states_after(torch.tensor([best.token_ids]))))
    assert best.score == pytest.approx(best.acoustic_score + 0.8 * (best.lm_score + final), abs=1e-4)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_times_of_words(num_beams):
    """Two frames of a token and its blank; the next word at once."""
    letters = Letters("ab|_", 3)
    path = [3, 0, 0, 3, 1, 2, 2, 1, 1, 1, 3]
    logits = torch.nn.functional.one_hot(torch.tensor([path]), 4).float() * 20
    decoder = CTCDecoder(letters, num_beams=num_beams, frame_seconds=0.04)
    ((best,),) = decoder(logits)
    assert best.text == "ab b" and best.token_frames == [1, 4, 5, 7] and best.token_ends == [3, 5, 7, 10]
    assert [(word.text, word.start, word.end) for word in best.words] == [("ab", 0.04, 0.2), ("b", 0.28, 0.4)]
    assert [word.text for word in best.characters] == ["a", "b", " ", "b"]
    assert all(0.99 < word.confidence <= 1 for word in best.words)
    ((best,),) = CTCDecoder(letters, num_beams=num_beams, confidence=None)(logits)
    assert best.words[0] == ("ab", None, None, None)


@pytest.mark.parametrize("engine", ENGINES)
def test_bad_and_odd_input(tokenizer, lm, engine):
    decoder = CTCDecoder(tokenizer, lm, 0.7, num_beams=8, engine=engine)
    logits = some_logits()
    for value in (math.nan, math.inf):
        broken = logits.clone()
        broken[3, 21, 7] = value
        with pytest.raises(InvalidLogitsError, match=r"row 3 .* frame 21"):
            decoder(broken)
        assert len(decoder(broken, torch.tensor([60, 60, 60, 21, 60]))) == 5
    assert [n_best[0].text for n_best in decoder(torch.zeros(2, 0, 257))] == ["", ""]
    assert decoder(torch.zeros(0, 4, 257)) == []
    blanks = torch.full((2, 9, 257), -30.0)
    blanks[..., 256] = 0.0
    assert [n_best[0].token_ids for n_best in decoder(blanks)] == [[], []]
    only_blank = CTCDecoder(Letters("_", 0), num_beams=8, num_return_sequences=8, engine=engine)
    assert [h.token_ids for h in only_blank(torch.zeros(1, 5, 1))[0]] == [[]]
    one_token = NGramLM.train([[0, 0], [0]], vocab_size=1, order=2)
    ((*found,),) = CTCDecoder(
        Letters("a_", 1, one_token), one_token, num_beams=100, num_return_sequences=100, beam_threshold=math.inf, engine=engine
    )(torch.zeros(1, 5, 2), [5])
    assert sorted(len(h.token_ids) for h in found) == [0, 1, 2, 3]
    huge = CTCDecoder(tokenizer, lm, 1e6, num_beams=4, beta=0.0, engine=engine)(logits)
    assert all(math.isfinite(n_best[0].acoustic_score) for n_best in huge)


def test_wrong_settings(tokenizer, lm):
    for arguments, message in (
        ({"num_beams": 0}, "num_beams .* 1 to 1024, or .auto., got 0"),
        ({"num_beams": 2.5}, "2.5"),
        ({"num_beams": True}, "True"),
        ({"num_beams": 4, "num_return_sequences": 5}, r"num_return_sequences .* 1 to 4 \(num_beams\), got 5"),
        ({"num_beams": 1, "num_return_sequences": 2}, "num_return_sequences"),
        ({"num_beams": 1, "beta": 1.0}, "beta without a beam"),
        ({"num_beams": 1, "beam_threshold": 1.0, "score_eos": False}, "beam_threshold, score_eos without a beam"),
        ({"num_beams": 1, "merge": "text"}, "merge without a beam"),
        ({"num_beams": 4, "merge": "words"}, "merge should be one of"),
        ({"num_beams": 4, "repeats": "stay"}, "is for greedy search only"),
        ({"num_beams": 4, "beam_threshold": 0.0}, "beam_threshold"),
        ({"num_beams": 4, "beam_threshold": math.nan}, "beam_threshold"),
        ({"num_beams": 4, "blank_threshold": 1.5}, "blank_threshold"),
        ({"num_beams": 4, "beta": math.inf}, "beta"),
        ({"frame_seconds": 0.0}, "frame_seconds"),
        ({"confidence": "high"}, "high"),
    ):
        with pytest.raises(ValueError, match=message):
            CTCDecoder(tokenizer, lm, **arguments)
    with pytest.raises(ValueError, match=r"beta has the shape \(3,\), the batch has 5 rows"):
        CTCDecoder(tokenizer, lm, num_beams=4, beta=torch.ones(3))(some_logits())
    stream = CTCDecoder(tokenizer, lm).stream(4)
    with pytest.raises(ValueError, match="5 rows, the stream was opened for 4"):
        stream.add(some_logits())
