"""Texts that grow: their scores equal those of each text alone, and no token is read twice."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.causal_lms import causal_lm, letters_tokenizer
from test_rescorer import alone

from hf_ngpulm import Rescorer
from hf_ngpulm.rescoring import growing

TOKENIZER = letters_tokenizer()
MODELS = {kind: causal_lm(kind) for kind in ("llama", "gpt2", "bloom", "mamba")}
WORDS = st.lists(st.sampled_from(["the", "hen", "in", "a", "ran"]), max_size=3).map(" ".join)


def grown(data, texts):
    """Some hypotheses of the next step: each continues one of the texts, as those of a beam do."""
    parents = data.draw(st.lists(st.sampled_from(texts), min_size=1, max_size=4))
    return [f"{text} {more}".strip() for text, more in zip(parents, data.draw(st.lists(WORDS, min_size=4, max_size=4)))]


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("slack", [64, 0])
@settings(max_examples=15, deadline=None)
@given(data=st.data(), most=st.integers(1, 60))
def test_scores_equal_those_of_each_text_alone(kind, slack, data, most):
    growing.SLACK, model = slack, MODELS[kind]
    rescorer = Rescorer(model, TOKENIZER, max_tokens=most)
    trees, texts = rescorer.growing(2), [[""], [""]]
    for _ in range(data.draw(st.integers(1, 4))):
        rows = data.draw(st.sampled_from([[0], [1], [0, 1], [1, 0]]))
        if data.draw(st.integers(0, 9)) == 0:
            trees.begin(rows[0])
            texts[rows[0]] = [""]
        for row in rows:
            texts[row] = grown(data, texts[row])
        for row, scores in zip(rows, trees.scores(rows, [texts[row] for row in rows])):
            assert scores == pytest.approx([alone(model, text, end="") for text in texts[row]], abs=1e-4, rel=1e-5)
    read = rescorer.read_tokens
    ended = trees.scores([1, 0], [texts[1], texts[0]], ended=True)
    assert ended == [pytest.approx([alone(model, text) for text in texts[row]], abs=1e-4, rel=1e-5) for row in (1, 0)]
    read = rescorer.read_tokens
    assert rescorer.scores([texts[1], texts[0]]) == ended and rescorer.read_tokens == read  # remembered
    growing.SLACK = 64


def test_no_token_is_read_twice():
    for kind, reads_on in (("llama", True), ("gpt2", True), ("bloom", False), ("mamba", False)):
        rescorer = Rescorer(MODELS[kind], TOKENIZER)
        trees = rescorer.growing(1)
        assert trees.reads_on is reads_on
        texts = ["the", "the hen", "the hen ran", "the hen ran in the inn"]
        for text in texts:
            trees.scores([0], [[text, text + " a"]])
        tokens = len(rescorer.tokens(texts[-1], []))
        assert (rescorer.read_tokens <= tokens + 2 * len(texts)) is reads_on


def test_a_model_is_probed_once(monkeypatch):
    rescorer = Rescorer(MODELS["llama"], TOKENIZER)
    assert rescorer.growing(1).reads_on
    monkeypatch.setattr(growing.GrowingTexts, "_can_read_on", None)
    assert rescorer.growing(3).reads_on


def test_forgotten_texts_leave_no_memory():
    rescorer = Rescorer(MODELS["llama"], TOKENIZER)
    trees = rescorer.growing(1)
    text = ""
    for number in range(60):
        text += f" {'abcdefg'[number % 7]}"
        trees.scores([0], [[text, text + " other hypotheses that end here"]])
    (tree,) = trees.trees
    assert tree.length <= 2 * len(tree.tokens) + growing.SLACK
    assert len(tree.tokens) < 2 * len(rescorer.tokens(text, [])) + 2 * growing.SLACK < 60 * 30
