"""What a saved language model says of the words that it was composed of."""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from ..errors import NGramFormatError

CASES = ("keep", "lower", "upper")
COMPOSITIONS = ("static", "on_the_fly")
# Natural log, of anything that is added to scores: their sums are still numbers in single precision.
LARGEST_SCORE = 1e30


@dataclass(frozen=True)
class WordSummary:
    """A word-level model in token form. Stored in `config.json`.

    Args:
        num_words: of the word-level model.
        num_spelled: how many of them the lexicon spells; the others stay unknown.
        num_spellings: different spellings.
        case: what was done to words before they were spelled: "keep", "lower" or "upper".
        closed_vocabulary: whether unknown words are forbidden.
        unk_score_offset: natural log, added to `<unk>` for each unknown word, where they aren't.
        unk_token_cost: natural log, what each token of an unknown word costs.
        context_length: tokens that a state depends on at most.
        word_bonus: natural log, added to the probability of every word, known or not, so that it isn't one any more.
        num_contexts: states in which no word has begun; they come first.
        delimiter: id of the token between words, None where words begin with a mark.
        composition: "static", or "on_the_fly": then its files hold the model over words and the lexicon.
    """

    num_words: int
    num_spelled: int
    num_spellings: int
    case: str
    closed_vocabulary: bool
    unk_score_offset: float
    unk_token_cost: float
    context_length: int
    word_bonus: float = 0.0
    num_contexts: int = 0
    delimiter: int | None = None
    composition: str = "static"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any, where: str) -> WordSummary:
        """Read a summary from a config, refusing what isn't one.

        Raises:
            NGramFormatError: says which entry is wrong.
        """
        if not isinstance(values, dict):
            raise NGramFormatError(f"{where}: words should be an object, is {type(values).__name__}")
        found: dict[str, Any] = {}
        for entry in fields(cls):
            value: Any = values.get(entry.name, None if entry.default is MISSING else entry.default)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            good = {
                "case": value in CASES,
                "composition": value in COMPOSITIONS,
                "closed_vocabulary": isinstance(value, bool),
                "unk_score_offset": is_number and abs(value) <= LARGEST_SCORE,
                "word_bonus": is_number and abs(value) <= LARGEST_SCORE,
                "delimiter": value is None or (isinstance(value, int) and is_number and 0 <= value < 2**31),
                "unk_token_cost": is_number and 0 <= value <= LARGEST_SCORE,
            }.get(entry.name, isinstance(value, int) and is_number and 0 <= value < 2**31)
            if not good:
                raise NGramFormatError(f"{where}: words.{entry.name} can't be {str(value)[:80]!r}")
            found[entry.name] = value
        return cls(**found)

    def lines(self) -> list[tuple[str, str]]:
        """Return names and values for tables."""
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
