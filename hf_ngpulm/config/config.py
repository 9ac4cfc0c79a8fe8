"""Describe a saved language model: its `config.json`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ..common.checks import COUNT, NULL, TEXT, check_entries, either, list_of, number, one_of, whole
from ..errors import NGramFormatError
from .training_summary import TrainingSummary
from .tuned import TunedDecoding, decoding_from, settings_from
from .word_summary import WordSummary

MODEL_TYPE = "ngram_lm"
FORMAT_VERSION = 1
# The time of full-vocabulary queries is quadratic in the length of a backoff chain, so a file may not exceed this.
MAX_CONTEXT_LENGTH = 1023
# If sentences may follow one another, the last sentence may have begun up to this many context lengths earlier.
READ_BACK = 4


@dataclass(frozen=True)
class NGramLMConfig:
    """Hold the contents of `config.json`.

    Args:
        vocab_size: number of token ids that are scored.
        order: number of tokens (or words) in the longest n-grams.
        num_ngrams: number of n-grams of each order.
        states_per_depth: number of states with contexts of 0, 1, ... tokens; empty if the n-grams consist of words.
        unk_log_prob: natural log-probability of `<unk>`; None if the model has no `<unk>`.
        bos_log_prob: natural log-probability of `<s>` in the model's source file; None if that file had no such value.
        missing_unigrams: score of token ids that have no unigram: "share", "unk" or a natural log-probability.
        tokenizer_id: name or path of the tokenizer.
        tokenizer_fingerprint: SHA-256 of the tokenizer's first `vocab_size` pieces.
        training: summary of the model's training by hf_ngpulm; None for models from other tools.
        words: summary of the words, if the n-grams consist of words and were composed with a lexicon; otherwise None.
        decoding: tuned settings for speech recognisers, newest last (see `hf_ngpulm.config.tuned`).
        defaults: settings from the model's source, such as pyctcdecode's alpha and beta. The settings apply to CTC recognisers
            without tuned settings.
        continued: probability that another sentence follows, see `NGramLM.continued`; None in a model of single sentences.
    """

    vocab_size: int
    order: int
    num_ngrams: tuple[int, ...]
    states_per_depth: tuple[int, ...]
    unk_log_prob: float | None = None
    bos_log_prob: float | None = None
    missing_unigrams: str | float = "share"
    tokenizer_id: str | None = None
    tokenizer_fingerprint: str | None = None
    training: TrainingSummary | None = None
    words: WordSummary | None = None
    decoding: tuple[TunedDecoding, ...] = ()
    defaults: dict[str, float | int | str | bool] = field(default_factory=dict)
    continued: float | None = None
    model_type: str = field(default=MODEL_TYPE)
    format_version: int = field(default=FORMAT_VERSION)

    @property
    def unit(self) -> str:
        """Return the unit of the n-grams: "token" or "word"."""
        return "token" if self.words is None else "word"

    @property
    def context_length(self) -> int:
        """Return the maximum number of previous tokens that a state depends on."""
        length = self.order - 1 if self.words is None else self.words.context_length
        return length if self.continued is None else min(max(READ_BACK * length, 2), MAX_CONTEXT_LENGTH)

    def lines(self) -> list[tuple[str, str]]:
        """Return rows (name, value) about words and training, for tables."""
        words = [] if self.words is None else self.words.lines()
        return words + ([] if self.training is None else self.training.lines(self.unit))

    def to_dict(self) -> dict[str, Any]:
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        del values["decoding"]
        for name in ("defaults", "continued"):
            if not values[name]:
                del values[name]
        values["unit"] = self.unit
        return values | ({"decoding": [entry.to_dict() for entry in self.decoding]} if self.decoding else {})

    @classmethod
    def from_dict(cls, values: Any, where: str) -> NGramLMConfig:
        """Read and check a config. `values`: the config's JSON. `where`: the config's file, for messages.

        Raises:
            NGramFormatError: an entry is wrong. The message names the entry and the permitted values.
        """
        model_type = values.get("model_type") if isinstance(values, dict) else type(values).__name__
        if model_type != MODEL_TYPE:
            raise NGramFormatError(
                f"{where}: not an n-gram language model: model_type should be {MODEL_TYPE!r}, is {model_type!r}"
            )
        if values.get("format_version") != FORMAT_VERSION:
            raise NGramFormatError(
                f"{where}: format_version {values.get('format_version')!r} can't be read by this version of hf_ngpulm, which "
                f"reads {FORMAT_VERSION}"
            )
        names = {entry.name for entry in fields(cls)}
        values = {"missing_unigrams": "share"} | {name: value for name, value in values.items() if name in names}
        check_entries(values, dict.fromkeys(("vocab_size", "order"), whole(1)), where)
        if values.get("words") is not None:
            values["words"] = WordSummary.from_dict(values["words"], where)
        depths = values["order"] if values.get("words") is None else 0
        kinds = {"num_ngrams": list_of(COUNT, values["order"]), "states_per_depth": list_of(COUNT, depths)}
        kinds |= dict.fromkeys(("unk_log_prob", "bos_log_prob"), either(number(), NULL))
        kinds |= dict.fromkeys(("tokenizer_id", "tokenizer_fingerprint"), either(TEXT, NULL))
        kinds["continued"] = either(number(1e-6, 1 - 1e-6), NULL)
        check_entries(values, kinds | {"missing_unigrams": either(one_of("share", "unk"), number())}, where)
        values |= {name: tuple(values[name]) for name in ("num_ngrams", "states_per_depth")}
        if values.get("training") is not None:
            values["training"] = TrainingSummary.from_dict(values["training"], where)
        if "decoding" in values:
            values["decoding"] = decoding_from(values["decoding"], where)
        if "defaults" in values:
            values["defaults"] = settings_from(values["defaults"], where, "defaults")
        return cls(**values)
