"""Scores of a causal language model: many texts at once equal each text alone."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.causal_lms import LETTERS, causal_lm, letters_tokenizer

from hf_ngpulm import Rescorer
from hf_ngpulm.rescoring import load_rescorer, loading
from hf_ngpulm.rescoring.tree import tree_of, trees_of

TOKENIZER = letters_tokenizer()
MODELS = {kind: causal_lm(kind) for kind in ("llama", "gpt2", "bloom", "mamba")}
RESCORERS = {kind: Rescorer(model, TOKENIZER, max_tokens=64) for kind, model in MODELS.items()}
TEXTS = st.text([*LETTERS[:8], "h", "e", " "], max_size=24)
LISTS = st.lists(st.lists(TEXTS, max_size=6), max_size=5)


@torch.inference_mode()
def alone(model, text, history=(), end="\n"):
    """The definition: the log-probabilities of a text's tokens, and of `end`, after those before."""

    def ids(text):
        return TOKENIZER(text, add_special_tokens=False)["input_ids"]

    before = [TOKENIZER.bos_token_id, *(token for text in history for token in ids(text) + ids(end))]
    tokens = ids(text) + ids(end)
    if not tokens:
        return 0.0
    scores = model(input_ids=torch.tensor([before + tokens])).logits[0].double().log_softmax(1)
    return sum(float(scores[len(before) - 1 + place, token]) for place, token in enumerate(tokens))


@pytest.mark.parametrize("kind", MODELS)
@settings(max_examples=25, deadline=None)
@given(lists=LISTS, history=st.lists(TEXTS, max_size=2), end=st.sampled_from(["\n", "</s>", ""]), most=st.integers(1, 80))
def test_many_equal_each_alone(kind, lists, history, end, most):
    rescorer = copy.copy(RESCORERS[kind])
    rescorer._cached, rescorer.end, rescorer._end, rescorer.max_tokens = type(rescorer._cached)(), end, rescorer._ids(end), most
    found = rescorer.scores(lists, [history] * len(lists))
    assert [len(each) for each in found] == [len(each) for each in lists]
    for texts, scores in zip(lists, found):
        assert scores == pytest.approx([alone(MODELS[kind], text, history, end) for text in texts], abs=1e-4, rel=1e-5)


def test_models_that_read_trees():
    assert {kind: rescorer.shares_prefixes for kind, rescorer in RESCORERS.items()} == {
        "llama": True, "gpt2": True, "bloom": False, "mamba": False,
    }  # fmt: skip


def test_a_shared_beginning_is_read_once():
    texts = ["the long beginning and a", "the long beginning and b", "the long beginning and c"]
    tokens = len(TOKENIZER(texts[0], add_special_tokens=False)["input_ids"])
    for kind, factor in (("llama", 1), ("mamba", 3)):
        rescorer = Rescorer(MODELS[kind], TOKENIZER)
        rescorer.scores([texts])
        assert tokens * factor <= rescorer.read_tokens <= (tokens + 3) * factor


def test_no_more_tokens_at_once_than_allowed(monkeypatch):
    rescorer = Rescorer(MODELS["llama"], TOKENIZER, max_tokens=40)
    read = []
    own = rescorer.model.forward
    monkeypatch.setattr(rescorer.model, "forward", lambda **kw: read.append(kw["input_ids"].numel()) or own(**kw))
    rescorer.scores([[f"{a}{b} text that is different" for a in "abcd"] for b in "abc"])
    assert len(read) > 3 and max(read) <= 40


def test_a_text_of_several_lists_is_read_once():
    rescorer = Rescorer(MODELS["llama"], TOKENIZER)
    (one,) = rescorer.scores([["some text", "other text"]])
    read, rescorer._cached = rescorer.read_tokens, type(rescorer._cached)()
    assert rescorer.scores([["some text", "other text"]] * 3) == [pytest.approx(one, abs=1e-5)] * 3
    assert rescorer.read_tokens == 2 * read


def test_scores_are_kept():
    rescorer = Rescorer(MODELS["llama"], TOKENIZER)
    first = rescorer.scores([["a", "b"], ["a"]])
    read = rescorer.read_tokens
    assert rescorer.scores([["b"], ["a", "a"]]) == [[first[0][1]], [first[0][0]] * 2]
    assert rescorer.read_tokens == read
    assert pickle.loads(pickle.dumps(rescorer)).score("a") == pytest.approx(first[0][0], abs=1e-5)


def test_history_that_does_not_fit_is_left_out():
    rescorer = Rescorer(MODELS["llama"], TOKENIZER, max_history=8)
    assert rescorer.score("a", ["far too long a text", "abc"]) == pytest.approx(alone(MODELS["llama"], "a", ["abc"]), abs=1e-4)


def test_style():
    rescorer = Rescorer(MODELS["llama"], TOKENIZER, style=str.lower)
    assert rescorer.score("ABC") == pytest.approx(alone(MODELS["llama"], "abc"), abs=1e-4)


@given(sequences=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=8), most=st.integers(1, 20))
def test_a_tree_holds_each_prefix_once(sequences, most):
    tree = tree_of([7, 8], sequences)
    prefixes = {tuple(sequence[:end]) for sequence in sequences for end in range(1, len(sequence))}
    assert len(tree.tokens) == 2 + len(prefixes)
    for sequence, path in zip(sequences, tree.paths):
        assert [int(tree.edges[edge, 1]) for edge in path] == sequence
        for place, edge in enumerate(path):  # its node has read what stands before the token
            read = tree.ancestors[tree.edges[edge, 0]].nonzero()[0]
            assert tree.tokens[read].tolist() == [7, 8, *sequence[:place]]
            assert tree.depths[read].tolist() == [*range(place + 2)]
    cut = [*trees_of([7, 8], sequences, most)]
    assert sorted(number for numbers, _ in cut for number in numbers) == [*range(len(sequences))]
    assert all(len(tree.tokens) <= most or len(numbers) == 1 for numbers, tree in cut)


# Bad input


def test_an_encoder_is_refused():
    with pytest.raises(ValueError, match=r"isn't causal: .*pass a causal language model"):
        Rescorer(causal_lm("bert"), TOKENIZER)


def test_a_model_of_another_kind_is_refused(tmp_path):
    from transformers import Wav2Vec2Config

    Wav2Vec2Config().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="of the type 'wav2vec2', which isn't a causal language model"):
        load_rescorer(tmp_path)
    with pytest.raises(ValueError, match="rescorer should be a Hub id, a folder"):
        load_rescorer(7)


def test_characters_without_tokens_are_named():
    with pytest.raises(ValueError, match=r"has no token for 'Aé' in 'Ané'.*pass style="):
        RESCORERS["llama"].score("Ané")


def test_an_encoder_that_would_get_a_random_head_is_refused(tmp_path, caplog):
    causal_lm("bert").bert.save_pretrained(tmp_path)
    letters_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"has no weights .* so it wasn't saved as a causal language model"):
        load_rescorer(str(tmp_path))
    assert "MISSING" not in caplog.text


def test_a_model_larger_than_memory_is_refused(tmp_path, monkeypatch):
    MODELS["llama"].save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    assert load_rescorer(tmp_path).score("abc") == pytest.approx(alone(MODELS["llama"], "abc"), abs=1e-4)
    monkeypatch.setattr(loading, "_free", lambda device: 1000)
    with pytest.raises(
        ValueError, match=r"needs 0\.0 GB \(0 M parameters in float32\), but only 0\.0 GB are free on cpu; pass"
    ):
        load_rescorer(tmp_path)


def test_a_text_longer_than_the_model_is_refused():
    rescorer = Rescorer(MODELS["gpt2"], TOKENIZER)
    with pytest.raises(ValueError, match="a text of 601 tokens, but GPT2LMHeadModel reads at most 512"):
        rescorer.score("ab" * 300)


def test_other_mistakes():
    with pytest.raises(ValueError, match="got 1 histories for 2 lists"):
        RESCORERS["llama"].scores([["a"], ["b"]], [[]])
    with pytest.raises(ValueError, match="got the text 'abc'"):
        RESCORERS["llama"].scores([["a"]], ["abc"])
    with pytest.raises(ValueError, match="max_tokens should be"):
        Rescorer(MODELS["llama"], TOKENIZER, max_tokens=0)
    small = copy.deepcopy(MODELS["llama"])
    small.resize_token_embeddings(20)
    with pytest.raises(ValueError, match="pass the model's own"):
        Rescorer(small, TOKENIZER)
    with pytest.raises(ValueError, match="max_tokens: given beside a Rescorer"):
        load_rescorer(RESCORERS["llama"], max_tokens=4)
