"""Summarise the words of a saved language model that was composed with a lexicon."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from ..common.checks import NULL, SWITCH, either, number, one_of, read_entries, whole

CASES = ("keep", "lower", "upper")
COMPOSITIONS = ("static", "on_the_fly")
# Natural log. Sums of numbers up to this size stay finite in single precision.
LARGEST_SCORE = 1e30


@dataclass(frozen=True)
class WordSummary:
    """Describe a word-level model that was composed into a token-level model. `config.json` stores the description."""

    num_words: int  # number of words of the word-level model
    num_spelled: int  # number of words that the lexicon spells; the other words stay unknown
    num_spellings: int  # number of different spellings
    case: str  # change of the words before they were spelled: "keep", "lower" or "upper"
    closed_vocabulary: bool  # whether unknown words are forbidden
    unk_score_offset: float  # natural log, added to the score of `<unk>` for each unknown word, if unknown words are permitted
    unk_token_cost: float  # natural log, cost of each token of an unknown word
    context_length: int  # maximum number of tokens that a state depends on
    word_bonus: float = 0.0  # natural log, added to the log-probability of every word, known or not
    num_contexts: int = 0  # number of states between words. These states come first.
    delimiter: int | None = None  # id of the token between words; None if the first piece of a word is marked instead
    composition: str = "static"  # "static", or "on_the_fly" if the files contain the word-level model and the lexicon
    # entropy of the words' unigram probabilities, in nats; None in files of older versions
    unigram_entropy: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any, where: str) -> WordSummary:
        """Read and check the summary in a config. `where`: the config's file. Raises NGramFormatError if an entry is wrong; the
        message names the entry and the file.
        """
        score, count = number(-LARGEST_SCORE, LARGEST_SCORE), whole(0, 2**31 - 1)
        kinds = {entry.name: count for entry in fields(cls)} | {
            "case": one_of(*CASES),
            "composition": one_of(*COMPOSITIONS),
            "closed_vocabulary": SWITCH,
            "unk_score_offset": score,
            "word_bonus": score,
            "unk_token_cost": number(0, LARGEST_SCORE),
            "delimiter": either(count, NULL),
            "unigram_entropy": either(number(0, LARGEST_SCORE), NULL),
        }
        return read_entries(cls, values, kinds, where, "words")

    def lines(self) -> list[tuple[str, str]]:
        """Return rows (name, value) for tables."""
        left_out = self.num_words - self.num_spelled
        unknown = (
            "forbidden"
            if self.closed_vocabulary
            else f"`<unk>` {self.unk_score_offset:+g}, and {-self.unk_token_cost or 0.0:.3g} for each token (natural logs)"
        )
        return [
            ("words", f"{self.num_words:,}, of which {left_out:,} have no spelling; {self.num_spellings:,} spellings"),
            ("unknown words", unknown),
            *([("composition", "on the fly, as searches come to its states")] if self.composition != "static" else []),
            *([("bonus for each word", f"{self.word_bonus:+.4g} (natural log)")] if self.word_bonus else []),
        ]
