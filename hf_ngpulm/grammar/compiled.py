"""Compile a grammar to the tokens of one recogniser. Searches use the result like boosted phrases."""

from __future__ import annotations

from functools import cached_property

import torch

from ..common.collector import collector_paused
from ..errors import GrammarError
from ..phrases.phrases import Booster, Written
from ..text.spelling import Speller
from .network import Network, Reading
from .progress import Beginnings, Progress
from .spelling import spelled
from .tokens import compile_words
from .words import determinised, minimised

# Penalty for leaving the grammar (natural log) where no words outside the grammar may be said. The penalty exceeds the cost of
# any path in the grammar. It is finite, so that a search still returns its best hypothesis if no path in the grammar remains.
FORBIDDEN = 1e4
WALKS, STEPS = 128, 64


class CompiledGrammar(Booster):
    """Hold a grammar's automaton over tokens, and the network that finds the meaning of transcripts.

    Args:
        network: the grammar's network.
        speller: spells words in the recogniser's tokens.
        price: subtracted once from the score of a transcript that leaves the grammar (natural log).
        strict: whether words that the recogniser can't write raise an error instead of a warning.
        engine: "auto" (by device), "reference", "cpu" or "gpu".

    Attributes:
        marks: token ids of punctuation marks, which may stand after any word.

    Raises:
        GrammarError: the recogniser can write no sentence, or the automaton is too large.
    """

    def __init__(
        self, network: Network, speller: Speller, price: float = FORBIDDEN, strict: bool = False, engine: str = "auto"
    ) -> None:
        with collector_paused():
            symbols = spelled(network, speller, strict)
            key = frozenset(symbols.classes.items())
            if key not in network.automata:
                words = minimised(determinised(network, symbols.classes))
                if not any(words.arcs) and not any(words.defaults):
                    raise GrammarError("the grammar has only the empty sentence; add a sentence with a word")
                network.automata[key] = words
            built = compile_words(network.automata[key], symbols, speller, price)
        super().__init__(built, Written({}, [], symbols.left_out), speller.vocabulary, engine)
        self.network, self.symbols, self.price = network, symbols.symbols(speller), price
        self.marks = symbols.marks
        self._between = symbols.marks if speller.delimiter is None else {*symbols.marks, speller.delimiter}

    @property
    def is_empty(self) -> bool:
        return False

    def reading(self, token_ids: list[int]) -> Reading | None:
        """Return the reading of a transcript in token ids, or None if it isn't in the grammar."""
        return self.network.reading(list(token_ids), self.symbols)

    def progress(self, token_ids: list[int]) -> Progress | None:
        """Return the progress of an unfinished transcript; None if no sentence begins with this transcript."""
        return self._beginnings.progress(list(token_ids))

    @cached_property
    def branching(self) -> float:
        """Return the mean natural log of the number of possible continuations per token.

        The mean is taken over random walks through the grammar. At each token, a walk chooses a possible continuation (or the
        end) with equal probability. Punctuation marks and blanks don't count.
        """
        generator = torch.Generator().manual_seed(0)
        start = self.starts[:1].cpu().repeat(WALKS)
        states, ways, tokens = start, 0.0, 0
        between = torch.tensor(sorted(self._between), dtype=torch.int64)
        for _ in range(STEPS):
            scores, targets = (of.cpu() for of in self.advance(states))
            may_follow = (scores > -self.price / 2).index_fill(1, between, False)
            may_end = self.final_scores(states).cpu() > -self.price / 2
            possible = torch.cat([may_follow, may_end[:, None]], 1).float()
            counts = possible.sum(1)
            possible[counts == 0, -1] = 1.0  # a free word without continuations can only end
            ways += float(counts.clamp(min=1).log().sum())
            chosen = torch.multinomial(possible, 1, generator=generator)
            ends = chosen[:, 0] == self.vocab_size
            tokens += int((~ends).sum())
            states = torch.where(ends, start, targets.gather(1, chosen.clamp(max=self.vocab_size - 1))[:, 0])
        return ways / max(tokens, 1)

    @cached_property
    def _beginnings(self) -> Beginnings:
        return Beginnings(self.network, self.symbols)
