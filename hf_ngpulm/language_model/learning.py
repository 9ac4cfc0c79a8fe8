"""Let a language model learn from a few texts by exact counts and Witten-Bell smoothing. Leave-one-out fits the weight.

If a context h occurs before c(h) tokens of the texts, among them t(h) different tokens, the model of the texts has

    p(w | h) = (c(h w) + t(h) p(w | shorter h)) / (c(h) + t(h)),

(Witten and Bell 1991, interpolated as in Chen and Goodman 1998). The empty context is interpolated with the uniform
distribution over all tokens and `</s>`. Counts are whole numbers, so removing a text restores the earlier model exactly.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..automaton import LMParts
from ..common.checks import check, number, whole
from ..ngrams.counting import MAX_ORDER
from ..ngrams.kneser_ney import LOG_ZERO
from ..ngrams.table import NGramTable
from ..text import begins_with_blank, with_blank
from ..text.vocabulary import Vocabulary, tokenizer_of
from .interpolation import mixture

ORDER = 6
LEAST, MOST = 1e-4, 0.95  # weights of the learned counts in a mixture; a lower weight leaves the base model unchanged
_ITERATIONS = 100
SHARE = number(0.0, 1.0 - 1e-6, "a number from 0 to below 1")
Ids = tuple[int, ...]


class TextCounts:
    """Count the n-grams of texts of token ids.

    Args:
        vocab_size: V, the number of token ids. The id V is `<s>`, and V + 1 is `</s>`.
        order: length of the longest n-grams.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(self, vocab_size: int, order: int = ORDER) -> None:
        self.vocab_size = check("vocab_size", vocab_size, whole())
        self.order = check("order", order, whole(1, MAX_ORDER))
        self.texts: Counter[Ids] = Counter()
        self.ngrams: Counter[Ids] = Counter()
        self.totals: Counter[Ids] = Counter()  # by context
        self.kinds: Counter[Ids] = Counter()  # different tokens after each context

    def _ngrams_in(self, text: Ids) -> Counter[Ids]:
        """Count the n-grams of a text, with `<s>` before and `</s>` after the text. No n-gram ends with `<s>`."""
        padded = (self.vocab_size, *text, self.vocab_size + 1)
        ends = range(2, len(padded) + 1)
        return Counter(padded[first:end] for end in ends for first in range(max(0, end - self.order), end))

    def add(self, text: Sequence[int]) -> None:
        """Add a text. Raises ValueError if a token id is outside the vocabulary."""
        ids = tuple(text)
        if not all(0 <= token < self.vocab_size for token in ids):
            raise ValueError(f"token ids should be from 0 to {self.vocab_size - 1}, got {list(ids)}")
        self.texts[ids] += 1
        for ngram, count in self._ngrams_in(ids).items():
            self.kinds[ngram[:-1]] += ngram not in self.ngrams
            self.ngrams[ngram] += count
            self.totals[ngram[:-1]] += count

    def remove(self, text: Sequence[int]) -> None:
        """Remove a text. Raises ValueError if the text wasn't added before."""
        ids = tuple(text)
        if not self.texts[ids]:
            raise ValueError(f"this text isn't among those that were added: {list(ids)}")
        _subtract(self.texts, ids, 1)
        for ngram, count in self._ngrams_in(ids).items():
            _subtract(self.ngrams, ngram, count)
            _subtract(self.totals, ngram[:-1], count)
            _subtract(self.kinds, ngram[:-1], int(ngram not in self.ngrams))

    def probabilities(self, text: Sequence[int], without: bool = False) -> list[float]:
        """Return the probabilities of a text's tokens, and of `</s>` after the text.

        Args:
            without: whether to subtract one occurrence of the text from the counts; the text must have been added.
        """
        ids = tuple(text)
        own = self._ngrams_in(ids) if without else Counter[Ids]()
        own_totals: Counter[Ids] = Counter()
        own_kinds: Counter[Ids] = Counter()
        for ngram, count in own.items():
            own_totals[ngram[:-1]] += count
            own_kinds[ngram[:-1]] += count == self.ngrams[ngram]
        padded = (self.vocab_size, *ids, self.vocab_size + 1)
        found = []
        for end in range(2, len(padded) + 1):
            probability = 1.0 / (self.vocab_size + 1)
            for first in range(end - 1, max(0, end - self.order) - 1, -1):
                ngram, context = padded[first:end], padded[first : end - 1]
                total, kinds = self.totals[context] - own_totals[context], self.kinds[context] - own_kinds[context]
                if not total:
                    break
                probability = (self.ngrams[ngram] - own[ngram] + kinds * probability) / (total + kinds)
            found.append(probability)
        return found

    def evidence(self) -> float:
        """Return how well the texts predict each other, as a mean over tokens and `</s>`: the natural log of the probability
        divided by chance.

        A token's probability comes from the counts without its own text; chance is 1 / (V + 1). Without texts, return 0.
        """
        found = [p for text in self.texts.elements() for p in self.probabilities(text, without=True)]
        return sum(map(math.log, found)) / len(found) + math.log(self.vocab_size + 1) if found else 0.0

    def table(self) -> NGramTable:
        """Return the model as a table of n-grams."""
        bos, eos = self.vocab_size, self.vocab_size + 1
        uniform = 1.0 / (self.vocab_size + 1)
        kinds, total = self.kinds[()], self.totals[()]
        rest = kinds / (total + kinds) * uniform if total else uniform
        levels: list[dict[Ids, float]] = [{(token,): rest for token in (*range(self.vocab_size), eos)}]
        for (token,), count in ((ngram, count) for ngram, count in self.ngrams.items() if len(ngram) == 1):
            levels[0][token,] += count / (total + kinds)
        longest = max(map(len, self.ngrams), default=1)
        levels += [{} for _ in range(1, longest)]
        for ngram in sorted((ngram for ngram in self.ngrams if len(ngram) > 1), key=len):
            context, shorter = ngram[:-1], levels[len(ngram) - 2][ngram[1:]]
            of_context = self.totals[context] + self.kinds[context]
            levels[len(ngram) - 1][ngram] = (self.ngrams[ngram] + self.kinds[context] * shorter) / of_context
        rows = []
        for n, level in enumerate(levels, start=1):
            ngrams = list(level)
            log_probs = torch.tensor(list(level.values()), dtype=torch.float64).log().clamp(min=LOG_ZERO, max=0.0)
            if n == 1:
                ngrams.append((bos,))
                log_probs = torch.cat([log_probs, torch.tensor([LOG_ZERO])])
            shares = [self.kinds[g] / (self.totals[g] + self.kinds[g]) if self.totals[g] else 1.0 for g in ngrams]
            backoffs = torch.tensor(shares, dtype=torch.float64).log()
            rows.append((torch.tensor(ngrams, dtype=torch.int64).view(-1, n), log_probs, backoffs))
        return NGramTable.from_rows(self.vocab_size, rows)


def _subtract(counter: Counter[Ids], key: Ids, count: int) -> None:
    """Subtract `count` from a key's count in place. If the count becomes 0, remove the key, so that equal counters are `==`."""
    counter[key] -= count
    if not counter[key]:
        del counter[key]


def fitted_weight(counts: TextCounts, base: Iterable[tuple[Sequence[int], Sequence[float]]]) -> float:
    """Return the weight of the counts in a mixture with a base model, from 0 to `MOST`.

    The weight maximises the probability of all texts by expectation maximisation. Each text is predicted from the counts of the
    other texts.

    Args:
        base: the texts, each with the base model's natural log-probabilities of its tokens and `</s>`.
    """
    ours: list[float] = []
    theirs: list[float] = []
    for ids, log_probs in base:
        ours += counts.probabilities(ids, without=True)
        theirs += log_probs
    if not ours:
        return 0.0
    mine = torch.tensor(ours, dtype=torch.float64)
    other = torch.tensor(theirs, dtype=torch.float64).exp().clamp(min=1e-300)
    weight = 0.5
    for _ in range(_ITERATIONS):
        share = weight * mine
        weight = float((share / (share + (1 - weight) * other)).mean())
    return min(weight, MOST)


class Learning:
    """Define the method with which an `NGramLM` learns from texts."""

    def learn(self: Any, texts: Iterable[Any], tokenizer: Any = None, weight: float | None = None) -> Any:
        """Return a model that has also learned from a few texts, such as corrected transcripts. The new model is a mixture of
        this model and a small model of the texts (see `hf_ngpulm.language_model.learning`). The time is proportional to this
        model's number of n-grams.

        Settings that were tuned for this model stay. `hf_ngpulm.CorrectionLog` stores such texts, and can remove them.

        Args:
            texts: sentences, or lists of token ids.
            tokenizer: the model's tokenizer, for sentences.
            weight: share of the texts in the mixture, from 0 to below 1. By default the share that best predicts each text from
                the other texts, so a single text changes nothing.

        Raises:
            ValueError: the weight is out of range, or this model has no n-grams of tokens, because it is a word-level model or
                a continued model.
            TokenizerMismatchError: the tokenizer isn't this model's.
        """
        if tokenizer is not None:
            self.check_tokenizer(tokenizer)
        counts = TextCounts(self.vocab_size)
        training = self.config.training
        for ids in encoded_texts(texts, tokenizer, None if training is None else training.leading_blank):
            counts.add([token for token in ids if token < self.vocab_size])
        share = weight_for(self, counts) if weight is None else check("weight", weight, SHARE)
        return with_counts(self, counts, share)


def weight_for(lm: Any, counts: TextCounts) -> float:
    """Return the weight of counts in a mixture with an `NGramLM`; see `fitted_weight`."""
    texts = list(counts.texts.elements())
    return fitted_weight(counts, ((ids, log_probs) for log_probs, ids, _ in lm.scored(texts)))


def with_counts(lm: Any, counts: TextCounts, share: float) -> Any:
    """Return the mixture of an `NGramLM` and a model of counts. `share`: weight of the counts. If the share is below
    `LEAST`, return the `NGramLM` itself.
    """
    if share < LEAST or not counts.texts:
        return lm
    small = type(lm)(model_of(counts, Vocabulary(lm.vocab_size, lm.pieces, lm.config.tokenizer_id)))
    mixed = type(lm)._with_table(mixture([lm, small], [1 - share, share]), lm, lm.device, lm.engine)
    mixed.config = replace(mixed.config, decoding=lm.config.decoding, defaults=lm.config.defaults)
    return mixed


def model_of(counts: TextCounts, vocabulary: Vocabulary) -> LMParts:
    """Return the parts of a language model made only from counts."""
    return LMParts.of_table(counts.table(), vocabulary)


def encoded_texts(texts: Iterable[Any], tokenizer: Any, leading_blank: bool | None = None) -> list[Ids]:
    """Return texts as token ids. Lists of ids stay unchanged. Tokens that are unknown to the tokenizer are left out.

    Raises:
        ValueError: there are strings, but no tokenizer.
    """
    listed = list(texts)
    written = [text for text in listed if isinstance(text, str)]
    if not written:
        return [tuple(map(int, text)) for text in listed]
    if tokenizer is None:
        raise ValueError("texts need the ASR model's tokenizer (tokenizer=...); without one, pass lists of token ids")
    tokenizer = tokenizer_of(tokenizer)
    if begins_with_blank(tokenizer) if leading_blank is None else leading_blank:
        written = [with_blank(text) for text in written]
    rows = iter(tokenizer(written, add_special_tokens=False)["input_ids"])
    special = set(tokenizer.all_special_ids) - {getattr(tokenizer, "word_delimiter_token_id", None)}
    return [
        tuple(t for t in next(rows) if t not in special) if isinstance(text, str) else tuple(map(int, text)) for text in listed
    ]
