"""Bonuses for words, and the charges of unknown ones, held to counting words in the plainest way."""

import math

import pytest
import torch
from arpa_models import arpa_models
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from two_level import TwoLevel, spellings

from hf_ngpulm import NGramLM
from hf_ngpulm.automaton import BackoffAutomaton
from hf_ngpulm.config.word_summary import WordSummary
from hf_ngpulm.formats.arpa import ArpaFile
from hf_ngpulm.language_model.training import train
from hf_ngpulm.lexicon.composition import SpelledLM, compose_automaton
from hf_ngpulm.lexicon.weights import Grades, grade_unknown_words, reweighed

LN10 = math.log(10)
slow_to_draw = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


class Counting(TwoLevel):
    """What has been said after each token: words begun, unknown ones that have ended, characters of one that goes on, and
    delimiters without a word."""

    def __init__(self, *args, lengths):
        super().__init__(*args)
        self.lengths = lengths

    def totals(self, tokens, bos=True):
        self.ended = self.unknown_ended = self.idle = 0
        self.seen = []
        return super().totals(tokens, bos)

    def read(self, token):
        self.idle += token == self.spelled.delimiter and not self.prefix
        super().read(token)

    def close(self):
        self.ended += bool(self.prefix)
        self.unknown_ended += bool(self.prefix) and not (self.is_known and self.prefix in self.words_of)
        super().close()

    def open_word(self):
        lost = bool(self.prefix) and not self.is_known
        characters = sum(self.lengths[token] for token in self.prefix) if lost else None
        self.seen.append((self.ended + bool(self.prefix), self.unknown_ended, characters, self.idle))
        return super().open_word()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("arpa") / "words.arpa"


@given(st.data())
@slow_to_draw
def test_every_path(path, data):
    model = data.draw(arpa_models())
    path.write_text(model.text)
    file = ArpaFile(path)
    assume(file.words)
    spelled = data.draw(spellings(file.words))
    lexicon = spelled.lexicon(file.words)
    parts = SpelledLM.of_table(file.word_table(), lexicon, 0.0, 0.0)
    automaton, num_spellings, num_contexts = compose_automaton(parts), parts.trie.num_forms, parts.num_contexts
    words = WordSummary(
        len(file.words), 1, num_spellings, "keep", False, 0.0, 0.0, automaton.context_length, 0.0, num_contexts,
        lexicon.boundaries.delimiter,
    )  # fmt: skip
    scale, bonus = data.draw(st.sampled_from([1.0, 0.5])), data.draw(st.sampled_from([0.0, 2.0, -1.5]))
    offset = data.draw(st.sampled_from([-3.0, 0.0]))
    charged = [-1.0, -2.0, -4.0, -8.0]
    lengths = [1 + token % 2 for token in range(spelled.vocab_size)]
    reference = Counting(model.text, spelled, 0.0, 0.0, lengths=lengths)
    unknown = reference.lm.log_probs.get(("<unk>",), -100.0) * LN10

    idle = data.draw(st.sampled_from([0.0, -2.5]))
    tensors = reweighed(automaton.tensors, words, spelled.vocab_size, scale, bonus, idle)
    whole = scale * (unknown + offset)
    graded = grade_unknown_words(tensors, num_contexts, Grades(lengths, scale * unknown, charged, whole))
    tokens = data.draw(st.lists(st.integers(0, spelled.vocab_size - 1), max_size=12))
    row = torch.tensor([tokens], dtype=torch.int64).view(1, -1)
    expected, with_end = reference.totals(tokens)
    for weighed in (tensors, graded):
        asked = BackoffAutomaton(weighed, spelled.vocab_size, 1023, automaton.roots, automaton.starts)
        asked.validate()
        scores, states = asked.score_tokens(row)
        running = scores[0].double().cumsum(0)
        sums = []
        for total, (begun, ended, characters, delimiters) in zip(expected, reference.seen, strict=True):
            sums.append(scale * total + bonus * begun + idle * delimiters)
            if weighed is graded:
                sums[-1] += ended * scale * offset
                if characters is not None:
                    sums[-1] += charged[min(characters, 3)] - scale * unknown
        assert running.tolist() == pytest.approx(sums, rel=2e-6, abs=2e-4)
        end = scale * with_end + bonus * reference.ended + idle * reference.idle
        end += reference.unknown_ended * scale * offset if weighed is graded else 0.0
        assert float(running[-1:].sum() + asked.final_scores(states)[0]) == pytest.approx(end, rel=2e-6, abs=2e-4)


def test_a_bonus_is_no_probability(letters, texts, tmp_path):
    """Texts and their perplexity are those of the model; decoders see the bonus; it is saved."""
    plain = NGramLM(train(texts, letters, unit="word", order=2).parts)
    with_bonus = NGramLM(train(texts, letters, unit="word", order=2, word_bonus=1.5).parts)
    assert with_bonus.perplexity(texts, letters) == plain.perplexity(texts, letters)
    row = torch.tensor([letters("a bad cab")["input_ids"]])
    assert float(with_bonus.score_sequences(row)) == pytest.approx(float(plain.score_sequences(row)) + 3 * 1.5, abs=1e-4)
    with_bonus.save_pretrained(tmp_path)
    again = NGramLM.from_pretrained(tmp_path)
    assert again.config == with_bonus.config and again.config.words.word_bonus == 1.5
    assert again.perplexity(texts, letters) == plain.perplexity(texts, letters)
    assert ("bonus for each word", "+1.5 (natural log)") in again.config.lines()
    with pytest.raises(ValueError, match="word_bonus should be a finite number"):
        train(texts, letters, unit="word", order=2, word_bonus=math.inf)


def test_delimiters_at_the_start(letters, texts):
    """Where nothing has been said they cost nothing, if the start is named."""
    lm = NGramLM(train(texts, letters, unit="word", order=2, unk_token_cost=0.0).parts)
    start = int(lm.starts[0])
    tensors = reweighed(lm.tensors, lm.config.words, lm.vocab_size, delimiter=-2.0, start=start)
    asked = BackoffAutomaton(tensors, lm.vocab_size, 1023, lm.roots, lm.starts)
    words = letters("a cab")["input_ids"]
    bar = letters.word_delimiter_token_id
    plain, before, within = (
        float(asked.score_sequences(torch.tensor([row]))) for row in (words, [bar, bar, *words], [*words, bar, bar])
    )
    assert before == pytest.approx(plain, abs=1e-5)
    assert within == pytest.approx(plain - 2.0, abs=1e-5)
