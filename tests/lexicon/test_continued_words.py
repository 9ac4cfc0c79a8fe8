"""Models of words whose sentences follow one another, composed as a whole and on the fly."""

import math
from pathlib import Path

import pytest
import torch
from arpa_models import arpa_models
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from lazy_models import both_ways
from property_examples import examples
from several_sentences import SeveralSentences
from transformers import AutoTokenizer
from two_level import spellings

from hf_ngpulm import CTCDecoder, NGramLM
from hf_ngpulm.config.config import MAX_CONTEXT_LENGTH
from hf_ngpulm.formats.arpa import ArpaFile

CTC = Path(__file__).parents[2] / "examples" / "models" / "ctc"
TEXTS = ["a day", "a night", "the day and the night"] * 4 + ["and a day"]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("arpa") / "words.arpa"


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(CTC)


@st.composite
def models(draw, path):
    """A model of words both ways, with sentences that follow one another, and the slow reference."""
    model = draw(arpa_models())
    unigrams = model.text.split("\\1-grams:")[1].split("\\2-grams:")[0].split("\\end\\")[0].split("\n")
    assume(any(line.split()[1] not in ("<s>", "</s>", "<unk>") for line in unigrams if line))
    path.write_text(model.text)
    file, share = ArpaFile(path), draw(st.floats(0.05, 0.95))
    spelled = draw(spellings(file.words))
    offset, cost = draw(st.sampled_from([-10.0, 0.0, None])), draw(st.sampled_from([0.0, 1.5]))
    made = both_ways(file.word_table(), spelled, file.words, offset, cost, share)
    return *made, SeveralSentences(model.text, spelled, offset, cost, share=share)


@given(st.data())
@settings(deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_they_say_what_their_definition_says(engine, path, data):
    static, lazy, reference = data.draw(models(path))
    static.automaton.validate()
    tokens = data.draw(st.lists(st.integers(0, static.vocab_size - 1), max_size=12))
    expected, with_end = reference.totals(tokens)
    assume(reference.closest > 1e-4)  # no more than rounding decides between the two ways on
    rows = torch.tensor([tokens], dtype=torch.int64).view(1, -1)
    found = []
    for lm in (static, lazy):
        lm.automaton.engine = engine
        scores, states = lm.score_tokens(rows)
        running, end = scores[0].double().cumsum(0), lm.final_scores(states)
        assert running.tolist() == pytest.approx(expected, rel=2e-6, abs=1e-4)
        assert float(running[-1:].sum() + end[0]) == pytest.approx(with_end, rel=2e-6, abs=1e-4)
        found.append((scores.tolist(), end.tolist()))
    assert found[0] == found[1]


def said(lm, tokenizer, text):
    return float(lm.score_sequences(torch.tensor([tokenizer(text).input_ids]), eos=False))


@pytest.mark.parametrize("composition", ["static", "on_the_fly"])
def test_a_second_sentence_becomes_likelier_and_the_first_stays(composition, tokenizer):
    how = {"unit": "word", "order": 3, "composition": composition}
    plain, changed = (NGramLM.train(TEXTS, tokenizer, **how, **more) for more in ({}, {"continued": 0.5}))
    assert said(changed, tokenizer, "a day") == pytest.approx(said(plain, tokenizer, "a day"), abs=1e-4)
    both = "a day the day and the night"
    assert said(changed, tokenizer, both) > said(plain, tokenizer, both) + 1
    assert changed.config.continued == 0.5


def test_one_that_is_composed_on_the_fly_is_changed_and_equals_the_whole(tokenizer):
    how = {"unit": "word", "order": 3, "word_bonus": 0.5}
    lazy = NGramLM.train(TEXTS, tokenizer, **how, composition="on_the_fly").continued(0.3)
    static = NGramLM.train(TEXTS, tokenizer, **how, composition="static", continued=0.3)
    assert lazy.config.continued == static.config.continued == 0.3
    assert lazy.context_length == static.context_length == static.config.context_length <= MAX_CONTEXT_LENGTH
    rows = torch.randint(0, static.vocab_size, (20, 12), generator=torch.Generator().manual_seed(0))
    assert torch.equal(lazy.score_sequences(rows), static.score_sequences(rows))
    assert torch.equal(lazy.scores(lazy.states_after(rows)), static.scores(static.states_after(rows)))
    logits = torch.randn(3, 40, len(tokenizer), generator=torch.Generator().manual_seed(1))
    ours, theirs = (CTCDecoder(tokenizer, lm, 0.7, num_beams=8)(logits) for lm in (lazy, static))
    assert [[(h.text, h.score) for h in row] for row in ours] == [[(h.text, h.score) for h in row] for row in theirs]


@pytest.mark.parametrize("composition", ["static", "on_the_fly"])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_they_are_saved_and_loaded(composition, order, tokenizer, tmp_path):
    lm = NGramLM.train(TEXTS, tokenizer, unit="word", order=order, composition=composition, continued=0.25)
    lm.save_pretrained(tmp_path)
    loaded = NGramLM.from_pretrained(tmp_path)
    assert loaded.config.continued == 0.25
    assert loaded.context_length == lm.context_length
    rows = torch.randint(0, lm.vocab_size, (5, 9), generator=torch.Generator().manual_seed(0))
    assert torch.equal(loaded.score_sequences(rows), lm.score_sequences(rows))
    assert torch.equal(loaded.scores(loaded.states_after(rows)), lm.scores(lm.states_after(rows)))


def test_what_is_composed_already_or_goes_on_is_refused(tokenizer):
    how = {"unit": "word", "order": 2}
    with pytest.raises(ValueError, match=r"pass continued=0\.4 where it is made"):
        NGramLM.train(TEXTS, tokenizer, **how, composition="static").continued(0.4)
    for composition in ("static", "on_the_fly"):
        changed = NGramLM.train(TEXTS, tokenizer, **how, composition=composition, continued=0.4)
        with pytest.raises(ValueError, match=r"already, with the share 0\.4"):
            changed.continued()


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, math.nan])
def test_a_share_that_is_none_is_refused(share, tokenizer):
    with pytest.raises(ValueError, match=f"continued should be between 0 and 1, got {share}"):
        NGramLM.train(TEXTS, tokenizer, unit="word", order=2, continued=share)
    with pytest.raises(ValueError, match="continued applies to word-level language models only"):
        NGramLM.train(TEXTS, tokenizer, order=2, continued=share)
