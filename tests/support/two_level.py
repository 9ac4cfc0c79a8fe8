"""Words and their spellings, scored by asking a word-level model and adding up over its words: slow and obvious."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from arpa_models import BruteForce
from hypothesis import strategies as st

from hf_ngpulm.lexicon.spellings import Boundaries, Lexicon

LN10 = math.log(10)
FORBIDDEN = -1e4


@dataclass
class Spelled:
    """Some spellings, `(word, tokens)`, the delimiter not written, over `vocab_size` tokens."""

    pairs: list[tuple[str, tuple[int, ...]]]
    vocab_size: int
    marked: frozenset[int] = frozenset()
    delimiter: int | None = None

    def lexicon(self, words: list[str]) -> Lexicon:
        """As composition takes it."""
        numbers = {word: n for n, word in enumerate(words)}
        pairs = sorted({(numbers[word], self.written(tokens)) for word, tokens in self.pairs})
        begins = np.array([token in self.marked for token in range(self.vocab_size)])
        return Lexicon(
            Boundaries(begins, self.delimiter),
            np.array([n for n, _ in pairs]),
            np.concatenate([[0], np.cumsum([len(tokens) for _, tokens in pairs])]),
            np.array([token for _, tokens in pairs for token in tokens], dtype=np.int32),
            (),
            (),
        )

    def written(self, tokens):
        return tokens if self.delimiter is None else (*tokens, self.delimiter)


class TwoLevel:
    """log p of token sequences: what has been said of words, and of the word that is being said the sum over what it may be."""

    def __init__(self, arpa: str, spelled: Spelled, offset: float | None, cost: float) -> None:
        self.lm, self.spelled, self.offset, self.cost = BruteForce(arpa), spelled, offset, cost
        known = {word for word, _ in spelled.pairs} | {"<s>", "</s>", "<unk>"}
        for words in list(self.lm.log_probs):  # what no text can meet, and <unk> at the end of n-grams
            if not known.issuperset(words) or "<unk>" in words[1:]:
                del self.lm.log_probs[words], self.lm.backoffs[words]
        self.start = ("<s>",) if ("<s>",) in self.lm.log_probs else ()
        self.words_of: dict[tuple[int, ...], list[str]] = {}
        for word, tokens in sorted(set(spelled.pairs), key=lambda pair: int(pair[0])):
            self.words_of.setdefault(tokens, []).append(word)

    def totals(self, tokens, bos=True) -> tuple[list[float], float]:
        """log p of each beginning of the tokens, and of all of them with `</s>` after."""
        self.history = self.start if bos else ()
        self.total, self.prefix, self.is_known = 0.0, (), True
        found = []
        for token in tokens:
            self.read(token)
            found.append(self.total + self.open_word())
        self.close()
        return found, self.total + self.p("</s>")

    def read(self, token):
        marks, delimiter = self.spelled.marked, self.spelled.delimiter
        longer = (*self.prefix, token)
        if token == delimiter:
            if self.prefix:
                self.close()
            else:
                self.total -= self.cost
        elif delimiter is None and token in marks:
            self.close()
            self.prefix, self.is_known = (token,), self.begins_words((token,))
        elif self.is_known and self.begins_words(longer) and (delimiter is not None or self.prefix):
            self.prefix = longer
        elif delimiter is None and self.is_known and self.prefix in self.words_of:
            self.close()
            self.prefix, self.is_known = (token,), False
        else:
            self.prefix, self.is_known = longer, False

    def begins_words(self, prefix):
        return any(tokens[: len(prefix)] == prefix for tokens in self.words_of)

    def open_word(self) -> float:
        if not self.prefix:
            return 0.0
        if not self.is_known:
            return self.unknown()
        going = [word for tokens, words in self.words_of.items() if tokens[: len(self.prefix)] == self.prefix for word in words]
        return math.log(math.fsum(math.exp(self.p(word)) for word in going))

    def close(self) -> None:
        if not self.prefix:
            return
        words = self.words_of.get(self.prefix, []) if self.is_known else []
        if words:
            self.total += math.log(math.fsum(math.exp(self.p(word)) for word in words))
            self.history = (*self.history, max(words, key=self.p))
        else:
            self.total += self.unknown()
            self.history = (*self.history, "<unk>")
        self.prefix, self.is_known = (), True

    def unknown(self) -> float:
        score = self.p("<unk>") + self.offset if self.offset is not None else FORBIDDEN + self.backed_off()
        return score - len(self.prefix) * self.cost

    def backed_off(self) -> float:
        """What backing off to the unigrams costs."""
        if ("<unk>",) in self.lm.log_probs:
            return self.p("<unk>") - self.lm.log_probs[("<unk>",)] * LN10
        return self.p("<unk>") + 100 * LN10

    def p(self, word) -> float:
        return self.lm.score(self.history, word) * LN10


@st.composite
def spellings(draw, words: list[str], delimited: bool | None = None, unique: bool = False) -> Spelled:
    """Spellings of some words, of one to three tokens, with words of several and spellings of several words unless `unique`."""
    vocab_size = draw(st.integers(3, 6))
    delimited = draw(st.booleans()) if delimited is None else delimited
    delimiter, marked = None, frozenset()
    if delimited:
        delimiter = draw(st.integers(0, vocab_size - 1))
        first = rest = [token for token in range(vocab_size) if token != delimiter]
    else:
        first = draw(st.lists(st.integers(0, vocab_size - 1), min_size=1, max_size=vocab_size - 1, unique=True))
        marked = frozenset(first)
        rest = [token for token in range(vocab_size) if token not in marked]
    tokens = st.builds(lambda a, b: (a, *b), st.sampled_from(first), st.lists(st.sampled_from(rest), max_size=2))
    if unique:
        ways = draw(st.lists(tokens, min_size=1, max_size=len(words), unique=True))
        return Spelled(list(zip(words, ways)), vocab_size, marked, delimiter)
    pairs = draw(st.lists(st.tuples(st.sampled_from(words), tokens), min_size=1, max_size=8))
    return Spelled(pairs, vocab_size, marked, delimiter)
