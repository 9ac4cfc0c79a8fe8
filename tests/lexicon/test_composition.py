import math

import pytest
import torch
from arpa_models import ArpaModel, arpa_models
from automata import answers, assert_same_answers, batches
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from two_level import Spelled, TwoLevel, spellings

from hf_ngpulm.formats.arpa import ArpaFile
from hf_ngpulm.lexicon.composition import SpelledLM, compose_automaton

slow_to_draw = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
offsets = st.sampled_from([-10.0, 0.0, -2.5, None])
costs = st.sampled_from([0.0, 1.5, math.log(5)])


def read(path, text):
    path.write_text(text)
    file = ArpaFile(path)
    return file.word_table(), file.words


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("arpa") / "words.arpa"


@st.composite
def composed(draw, path, **how):
    """A word-level model, spellings of some of its words, and the two composed, with the slow reference."""
    model = draw(arpa_models(**{name: how.pop(name) for name in ("specials", "orders") if name in how}))
    _, words = file = read(path, model.text) if any(has_words(model)) else (None, None)
    assume(words)
    spelled = draw(spellings(words, **how))
    offset, cost = draw(offsets), draw(costs)
    automaton = compose_automaton(SpelledLM.of_table(file[0], spelled.lexicon(words), offset, cost))
    automaton.validate()
    return automaton, TwoLevel(model.text, spelled, offset, cost)


def has_words(model: ArpaModel):
    section = model.text.split("\\1-grams:")[1].split("\\2-grams:")[0].split("\\end\\")[0]
    return (line.split()[1] not in ("<s>", "</s>", "<unk>") for line in section.splitlines() if line)


def close(found, expected):
    return found == pytest.approx(expected, rel=2e-6, abs=1e-4)


@given(st.data())
@slow_to_draw
def test_paths_total_what_the_words_score(path, data):
    automaton, reference = data.draw(composed(path))
    tokens = data.draw(st.lists(st.integers(0, automaton.vocab_size - 1), max_size=12))
    bos = data.draw(st.booleans())
    scores, states = automaton.score_tokens(torch.tensor([tokens], dtype=torch.int64).view(1, -1), bos=bos)
    expected, with_end = reference.totals(tokens, bos)
    running = scores[0].double().cumsum(0)
    assert close(running.tolist(), expected)
    assert close(float(running[-1:].sum() + automaton.final_scores(states)[0]), with_end)


@given(st.data())
@slow_to_draw
def test_words_that_are_spelled_score_as_the_words_do(path, data):
    """With one spelling a word the score of a sentence is nothing but the word-level model's."""
    automaton, reference = data.draw(composed(path, unique=True))
    pairs = data.draw(st.lists(st.sampled_from(reference.spelled.pairs), max_size=6))
    tokens = [token for _, way in pairs for token in reference.spelled.written(way)]
    history, expected = reference.start, 0.0
    for word in [*(word for word, _ in pairs), "</s>"]:
        expected += reference.lm.score(history, word) * math.log(10)
        history = (*history, word)
    found = [tokens]
    if reference.spelled.delimiter is not None and tokens:
        found.append(tokens[:-1])  # the last word may lack its delimiter
    for way in found:
        assert close(float(automaton.score_sequences(torch.tensor([way], dtype=torch.int64).view(1, -1))), expected)


@given(st.data())
@slow_to_draw
def test_engines_agree(path, data):
    """All queries, full-vocabulary ones and single steps, and states after long texts."""
    automaton, _ = data.draw(composed(path))
    batch = data.draw(batches(automaton))
    assert_same_answers(answers(automaton, batch, "reference"), answers(automaton, batch, "cpu"), automaton)


@given(st.data())
@slow_to_draw
def test_states_behind_long_texts(path, data):
    automaton, _ = data.draw(composed(path))
    tokens = data.draw(st.lists(st.integers(0, automaton.vocab_size - 1), min_size=40, max_size=150))
    rows = torch.tensor([tokens])
    assert int(automaton.states_after(rows)) == int(automaton.score_tokens(rows)[1])


@given(st.data())
@slow_to_draw
def test_scores_of_a_beginning_sum_to_one(path, data):
    """Where the words' do: a model of unigrams whose words all have a spelling, and next to nothing for unknown words."""
    weights = data.draw(st.lists(st.integers(1, 9), min_size=2, max_size=6))
    probabilities = [weight / sum(weights) for weight in weights]
    rows = zip([math.log10(p) for p in probabilities], ["</s>", *(str(n) for n in range(len(weights) - 1))])
    lines = "\n".join(f"{value:.9f}\t{word}" for value, word in rows)
    text = f"\\data\\\nngram 1={len(weights)}\n\n\\1-grams:\n{lines}\n\n\\end\\\n"
    table, words = read(path, text)
    spelled = data.draw(spellings(words, unique=True))
    assume(len(spelled.pairs) == len(words))
    automaton = compose_automaton(SpelledLM.of_table(table, spelled.lexicon(words), None, 0.0))
    states = torch.arange(automaton.num_states)
    total = automaton.scores(states).exp().sum(1)
    if spelled.delimiter is None:
        total += automaton.final_scores(states).exp()
    else:  # </s> in place of the last delimiter is another way to write the same; a second delimiter says nothing
        total[0] += automaton.final_scores(states[:1]).exp()[0] - 1.0
    total = torch.cat([total[:1], total[2:]])  # that of the unknown word doesn't: the end of such words has no probability
    assert torch.allclose(total, torch.ones(len(total)), atol=1e-4)


BIGRAMS = """\\data\\
ngram 1=6
ngram 2=4

\\1-grams:
-0.9\t<unk>\t0
-99\t<s>\t-0.3
-0.8\t</s>
-0.7\t0\t-0.2
-0.6\t1\t-0.4
-1.1\t2\t0

\\2-grams:
-0.5\t<s> 0
-0.4\t0 1
-0.9\t0 0
-0.2\t1 </s>

\\end\\
"""


@pytest.mark.parametrize("delimiter", [None, 4])
def test_a_word_that_begins_another(path, delimiter):
    """`a` and `ab`, by hand."""
    table, words = read(path, BIGRAMS)
    spelled = Spelled([("0", (0,)), ("1", (0, 1))], 5, frozenset([0]) if delimiter is None else frozenset(), delimiter)
    automaton = compose_automaton(SpelledLM.of_table(table, spelled.lexicon(words), -10.0, 1.0))
    end = () if delimiter is None else (delimiter,)

    def score(*tokens):
        return float(automaton.score_sequences(torch.tensor([tokens]))) / math.log(10)

    assert score(0, *end, 0, 1, *end) == pytest.approx(-0.5 - 0.4 - 0.2, abs=1e-5)
    assert score(0, 1, *end, 0, *end) == pytest.approx((-0.3 - 0.6) + (-0.4 - 0.7) + (-0.2 - 0.8), abs=1e-5)
    assert score(0, *end, 0, *end) == pytest.approx(-0.5 - 0.9 + (-0.2 - 0.8), abs=1e-5)
    if delimiter is not None:
        assert score(0, *end, 0, 1) == score(0, *end, 0, 1, *end)
    unknown = (-0.3 - 0.9) + (-10.0 - 3.0) / math.log(10) - 0.8
    assert score(0, 1, 2, *end) == pytest.approx(
        (-0.3 - 0.6 - 0.4 - 0.9) - 11 / math.log(10) - 0.8 if not end else unknown, abs=1e-5
    )
    assert score(2, 3, 3, *end) == pytest.approx(unknown, abs=1e-5)
