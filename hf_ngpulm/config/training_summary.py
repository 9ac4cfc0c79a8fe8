"""Summarise the training of a saved language model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..common.checks import COUNT, NULL, SWITCH, either, list_of, number, read_entries


@dataclass(frozen=True)
class TrainingSummary:
    """Summarise the estimation of a language model. `config.json` stores the summary, and the model card shows it.

    Args:
        num_sentences, num_tokens: number of sentences and of tokens in the text. Sentence ends don't count as tokens.
        num_unknown: number of the text's tokens that aren't in the vocabulary.
        prune: for each order, a count. N-grams with this count or a smaller count were dropped.
        num_counted: number of distinct n-grams of each order in the text.
        discounts: for each order, the discounts of adjusted counts 1, 2, and 3 or more.
        fallback_orders: orders that use the fallback discounts, because no discounts could be computed from the counts of these
            orders.
        max_ngrams: number of n-grams that pruning by relative entropy kept; None without this pruning.
        perplexity_per_token, perplexity_per_word: perplexities on the validation text; None without validation text.
        leading_blank: whether each sentence got a leading space.
    """

    num_sentences: int
    num_tokens: int
    num_unknown: int
    prune: tuple[int, ...]
    num_counted: tuple[int, ...]
    discounts: tuple[tuple[float, float, float], ...]
    fallback_orders: tuple[int, ...] = ()
    max_ngrams: int | None = None
    perplexity_per_token: float | None = None
    perplexity_per_word: float | None = None
    leading_blank: bool = False

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any, where: str) -> TrainingSummary:
        """Read and check the summary in a config. `values`: the summary's JSON. `where`: the config's file, for messages.

        Raises:
            NGramFormatError: an entry is wrong. The message names the entry.
        """
        counts, rate = list_of(COUNT), either(number(-1e300, 1e300), NULL)
        kinds = dict.fromkeys(("prune", "num_counted", "fallback_orders"), counts)
        kinds |= {"discounts": list_of(list_of(number(-1e300, 1e300), 3)), "max_ngrams": either(COUNT, NULL)}
        kinds |= {"perplexity_per_token": rate, "perplexity_per_word": rate, "leading_blank": SWITCH}
        return read_entries(cls, values, kinds, where, "training")

    def lines(self, unit: str = "token") -> list[tuple[str, str]]:
        """Return rows (name, value) for tables. `unit` is the unit of the n-grams, "token" or "word"."""
        dropped = self.num_unknown and f", {self.num_unknown:,} of them unknown"
        rows = [
            ("text", f"{self.num_sentences:,} sentences, {self.num_tokens:,} {unit}s{dropped or ''}"),
            ("n-grams in the text", ", ".join(f"{count:,}" for count in self.num_counted)),
            ("pruning", self._pruning()),
            ("discounts", "; ".join(" ".join(f"{value:.3f}" for value in order) for order in self.discounts)),
        ]
        if self.fallback_orders:
            rows.append(("fallback discounts", "orders " + ", ".join(map(str, self.fallback_orders))))
        if self.perplexity_per_token is not None:
            words = "" if self.perplexity_per_word is None else f", {self.perplexity_per_word:.2f} per word"
            rows.append(("validation perplexity", f"{self.perplexity_per_token:.3f} per token{words}"))
        return rows

    def _pruning(self) -> str:
        counts = f"counts up to {' '.join(map(str, self.prune))}" if any(self.prune) else ""
        entropy = f"relative entropy, to {self.max_ngrams:,} n-grams" if self.max_ngrams is not None else ""
        return "; ".join(filter(None, (counts, entropy))) or "none"
