"""ArcBooster: discounts on a language model's own arcs."""

from __future__ import annotations

import pytest
import torch
from automata import as_dictionaries
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from hf_ngpulm import ArcBooster, CTCDecoder, NGramLM, TokenizerMismatchError
from hf_ngpulm.common.bundled import bundled

TEXT = ["what is new in new york", "new york is what it is", "the weather in york", "is it new", "what is the weather today"]
WORDS = [*sorted({word for line in TEXT for word in line.split()}), "zebra", "mind"]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))


@pytest.fixture(scope="module")
def lm(tokenizer):
    return NGramLM.train(TEXT, tokenizer=tokenizer, order=4)


def tokens_of(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def followed(tokenizer, lm, phrases):
    """By hand: the arcs that phrases take from the empty context, as the tokens of their contexts and their own."""
    states = as_dictionaries(lm)
    depths = [depth for depth, count in enumerate(lm.config.states_per_depth) for _ in range(count)]
    found = {}
    for phrase, discount in phrases:
        tokens, state = tokens_of(tokenizer, phrase), int(lm.roots[0])
        for i, token in enumerate(tokens):
            if token not in states[state].arcs or (i and state == int(lm.roots[0])):
                break
            context = tuple(tokens[i - depths[state] : i + 1])
            found[context] = max(discount, found.get(context, discount))
            state = states[state].arcs[token][1]
    return found


phrases = st.lists(
    st.tuples(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join), st.sampled_from([0.5, 2.0, 3.0])),
    max_size=4,
    unique_by=lambda pair: pair[0],
)
transcripts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=8).map(" ".join)


@given(phrases, transcripts)
@settings(max_examples=80, deadline=None)
def test_tokens_that_take_a_followed_arc_are_discounted(tokenizer, lm, phrases, transcript):
    booster = ArcBooster(phrases, lm, tokenizer)
    booster.validate()
    tokens = tokens_of(tokenizer, transcript)
    arcs = followed(tokenizer, lm, phrases)
    scores, states = booster.score_tokens(torch.tensor([tokens]))
    for i in range(len(tokens)):
        hits = [d for context, d in arcs.items() if tuple(tokens[max(0, i + 1 - len(context)) : i + 1]) == context]
        assert float(scores[0, i]) == pytest.approx(max(hits, default=0.0))
    assert float(booster.final_scores(states)) == 0.0


def test_the_arcs_are_the_models_own(tokenizer, lm):
    booster = ArcBooster(["new york", ("zebra", 1.0)], lm, tokenizer)
    arcs = booster.arcs.tolist()
    assert arcs == sorted(set(arcs)) and 0 < len(arcs) < 30
    tokens = tokens_of(tokenizer, "new york")
    assert booster.seen["new york"] == len(tokens)
    assert booster.seen["zebra"] < len(tokens_of(tokenizer, "zebra"))
    state = int(lm.roots[0])
    for token in tokens:
        first, end = lm.tensors.arc_offsets[state : state + 2].tolist()
        (arc,) = [arc for arc in range(first, end) if int(lm.tensors.arc_tokens[arc]) == token]
        assert arc in arcs
        state = int(lm.tensors.arc_targets[arc])


def test_in_a_decoder(tokenizer, lm):
    """Beside the LM, and never for what the LM hasn't seen."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 30, 257, generator=generator)
    boosted = CTCDecoder(tokenizer, lm, 0.3, phrases=ArcBooster(["new york", "weather"], lm, tokenizer, 4.0), num_beams=4)
    unseen = CTCDecoder(tokenizer, lm, 0.3, phrases=ArcBooster([], lm, tokenizer), num_beams=4)
    plain = CTCDecoder(tokenizer, lm, 0.3, num_beams=4)
    assert any(best.phrase_score > 0 for (best,) in boosted(logits))
    assert [best.token_ids for (best,) in unseen(logits)] == [best.token_ids for (best,) in plain(logits)]


def test_what_it_refuses(tokenizer, lm):
    with pytest.raises(ValueError, match="weight"):
        ArcBooster(["a"], lm, tokenizer, discount=float("nan"))
    with pytest.raises(ValueError, match="empty"):
        ArcBooster([""], lm, tokenizer)
    with pytest.warns(UserWarning, match="can't write"):
        assert ArcBooster(["東京"], lm, tokenizer).left_out
    changed = AutoTokenizer.from_pretrained(bundled("examples/models/ctc"))
    other = NGramLM.train([[1, 2, 3]], vocab_size=3000, order=2)
    with pytest.raises(TokenizerMismatchError):
        ArcBooster(["a"], other, changed)
