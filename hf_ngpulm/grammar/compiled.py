"""Compile a grammar to the tokens of one recogniser. Searches use the result like boosted phrases."""

from __future__ import annotations

from functools import cached_property

from ..phrases.phrases import Booster, Written
from ..text.spelling import Speller
from .network import Network, Reading
from .progress import Beginnings, Progress
from .spelling import spelled
from .tokens import compile_words
from .words import determinised, minimised

# What a transcript outside the grammar costs (natural log), where nothing else may be said: far more than any path in it, and
# finite, so that a search without such a path still returns its best hypothesis.
FORBIDDEN = 1e4


class CompiledGrammar(Booster):
    """A grammar's automaton over tokens, and its network, which finds the meaning of transcripts.

    Args:
        network: the grammar's network.
        speller: spells words in the recogniser's tokens.
        price: subtracted once from the score of a transcript that leaves the grammar (natural log).
        strict: raise an error for words that the recogniser can't write, instead of a warning.
        engine: "auto" (by device), "reference", "cpu" or "gpu".

    Raises:
        GrammarError: the recogniser can write no sentence, or the automaton is too large.
    """

    def __init__(
        self, network: Network, speller: Speller, price: float = FORBIDDEN, strict: bool = False, engine: str = "auto"
    ) -> None:
        symbols = spelled(network, speller, strict)
        key = frozenset(symbols.classes.items())
        if key not in network.automata:
            network.automata[key] = minimised(determinised(network, symbols.classes))
        words = network.automata[key]
        built = compile_words(words, symbols, speller, price)
        super().__init__(built, Written({}, [], symbols.left_out), speller.vocabulary, engine)
        self.network, self.symbols, self.price = network, symbols.symbols(speller), price

    @property
    def is_empty(self) -> bool:
        return False

    def reading(self, token_ids: list[int]) -> Reading | None:
        """Return the reading of a transcript in token ids, or None if it isn't in the grammar."""
        return self.network.reading(list(token_ids), self.symbols)

    def progress(self, token_ids: list[int]) -> Progress | None:
        """Return how far the beginning of a transcript has come, or None if no sentence begins with it."""
        return self._beginnings.progress(list(token_ids))

    @cached_property
    def _beginnings(self) -> Beginnings:
        return Beginnings(self.network, self.symbols)
