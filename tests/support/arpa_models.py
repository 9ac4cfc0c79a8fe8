"""Random ARPA models for hypothesis, and a plain Python reading of the format that owes nothing to the package."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from hypothesis import strategies as st

Words = tuple[str, ...]


class BruteForce:
    """p(word | context) by the textbook recursion (Katz 1987) over a dictionary, log10. Unknown words are `<unk>`."""

    def __init__(self, text: str) -> None:
        self.log_probs: dict[Words, float] = {}
        self.backoffs: dict[Words, float] = {}
        self.order = 0
        for line in text.split("\\data\\", 1)[1].splitlines():
            if line.startswith("\\") and line.endswith("-grams:"):
                self.order = int(line[1:-7])
            elif self.order and line and not line.startswith("\\"):
                log_prob, *rest = line.split()
                words = tuple(rest[: self.order])
                self.log_probs[words] = float(log_prob)
                self.backoffs[words] = float(rest[self.order]) if len(rest) > self.order else 0.0

    def score(self, context: Words, word: str) -> float:
        """KenLM's score: an unknown word has the whole of `<unk>`, or 1e-100."""
        known = (self._known(word),)
        context = tuple(map(self._known, context))
        return self._score(context[max(0, len(context) - self.order + 1) :], known)

    def _score(self, context: Words, word: Words) -> float:
        if (*context, *word) in self.log_probs:
            return self.log_probs[(*context, *word)]
        if not context:
            return -100.0
        return self.backoffs.get(context, 0.0) + self._score(context[1:], word)

    def _known(self, word: str) -> str:
        return word if (word,) in self.log_probs or word == "</s>" else "<unk>"


@dataclass(frozen=True)
class ArpaModel:
    """An ARPA text in units of decimal ids."""

    text: str
    vocab_size: int
    order: int

    @property
    def missing(self) -> list[int]:
        """Token ids without a unigram."""
        known = BruteForce(self.text).log_probs
        return [token for token in range(self.vocab_size) if (str(token),) not in known]

    def contexts(self, most: int = 300) -> list[tuple[bool, list[int]]]:
        """Whether `<s>` comes first, and token ids: all contexts of up to `order` tokens, or a sample of them."""
        found: list[tuple[bool, list[int]]] = []
        for bos, length in itertools.product((True, False), range(self.order + 1)):
            found += [(bos, list(tokens)) for tokens in itertools.product(range(self.vocab_size), repeat=length)]
        return found if len(found) <= most else random.Random(0).sample(found, most)


@st.composite
def arpa_models(
    draw: st.DrawFn,
    orders: st.SearchStrategy[int] | None = None,
    specials: Words | None = None,
    highest_backoff: float = 1.0,
) -> ArpaModel:
    """A backoff model that lacks no prefix. Suffixes, backoffs, unigrams and special symbols may be missing.

    Args:
        orders: which orders; 1 to 5 if left out.
        specials: the special symbols that the model has; any of them if left out.
        highest_backoff: backoffs lie between -2 and this (log10).
    """
    order = draw(st.integers(1, 5) if orders is None else orders)
    vocab_size = draw(st.integers(1, 4))
    if specials is None:
        specials = draw(st.sets(st.sampled_from(("<s>", "</s>", "<unk>"))).map(sorted).map(tuple))
    missing_backoffs = draw(st.sampled_from(("none", "zeros", "some")))
    rng = random.Random(draw(st.integers(0, 2**32)))
    tokens = [str(token) for token in range(vocab_size)]
    unigrams = rng.sample(tokens, rng.randint(0 if specials else 1, vocab_size))
    last = [*unigrams, *(symbol for symbol in ("</s>", "<unk>") if symbol in specials)]

    levels: list[list[Words]] = [[(word,) for word in (*unigrams, *specials)]]
    for _ in range(order - 1):
        contexts = [words for words in levels[-1] if words[-1] != "</s>"]
        extended = [(*words, word) for words in contexts for word in last]
        levels.append(rng.sample(extended, min(len(extended), rng.randint(0, 12))))

    lines = ["\\data\\", *(f"ngram {n}={len(level)}" for n, level in enumerate(levels, start=1)), ""]
    for n, level in enumerate(levels, start=1):
        lines.append(f"\\{n}-grams:")
        for words in sorted(level):
            fields = [f"{-99.0 if words == ('<s>',) else round(-rng.random() * 4, 5)}", " ".join(words)]
            kind = rng.choice(("none", "zeros", "some", "some")) if missing_backoffs == "some" else missing_backoffs
            if n < order and kind != "none":
                fields.append("0" if kind == "zeros" else f"{round(rng.uniform(-2, highest_backoff), 5)}")
            lines.append("\t".join(fields))
        lines.append("")
    return ArpaModel("\n".join([*lines, "\\end\\", ""]), vocab_size, order)
