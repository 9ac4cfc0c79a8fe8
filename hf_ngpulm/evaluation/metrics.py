"""Provide error rates as metrics of Hugging Face `evaluate`: `WER().compute(predictions=, references=)`. No download is needed.

The metrics have `add` and `add_batch`, like all metrics of this library. Undefined rates (such as an entity WER without
entities) are NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..common.extras import needed
from .counts import ErrorCounts, Normalisation, character_errors, word_errors
from .entities import entity_errors, per_utterance

with needed("eval", "metrics of `evaluate`"):
    import datasets
    import evaluate

_TEXTS = {"predictions": datasets.Value("string"), "references": datasets.Value("string")}
_INPUTS = """
Args:
    predictions: the recognised texts, one per utterance.
    references: the transcripts.
    normalise (in compute): normalisation of all texts: "lower", "lower,no-punctuation", "whisper-en", ..., a function, or a
        list of these.
"""
_ENTITIES = """    entities: phrases; a list for each utterance, or in compute and add_batch one for all.
"""


class WER(evaluate.Metric):
    """Compute the word error rate "wer" and counts: "substitutions", "deletions", "insertions", "hits", reference "words"."""

    def _info(self) -> evaluate.MetricInfo:
        return _info("Word error rate: (substitutions + deletions + insertions) / words of the references.")

    def _compute(self, predictions: list[str], references: list[str], normalise: Normalisation = None) -> dict[str, Any]:
        counts = word_errors(references, predictions, normalise)
        return {"wer": counts.rate, **_edits(counts, "words")}


class CER(evaluate.Metric):
    """Compute the character error rate "cer" and counts: "substitutions", "deletions", "insertions", "hits", "characters"."""

    def _info(self) -> evaluate.MetricInfo:
        return _info("Character error rate: (substitutions + deletions + insertions) / characters of the references.")

    def _compute(self, predictions: list[str], references: list[str], normalise: Normalisation = None) -> dict[str, Any]:
        counts = character_errors(references, predictions, normalise)
        return {"cer": counts.rate, **_edits(counts, "characters")}


class EntityWER(evaluate.Metric):
    """Compute error rates inside and outside of entities, and precision, recall and F1 of entities; see `entity_errors`.

    The result has the rates "entity_wer", "other_wer", "wer", "precision", "recall" and "f1". It also has counts: the counts
    for the first two rates ("entity_words", "entity_substitutions", "other_words", ...), "true_positives", "false_positives"
    and "false_negatives".
    """

    def _info(self) -> evaluate.MetricInfo:
        phrases = {"entities": datasets.Sequence(datasets.Value("string"))}
        return _info("Word error rate of entities and of other words; precision, recall and F1 of entities.", phrases)

    def add_batch(
        self,
        *,
        predictions: Sequence[str] | None = None,
        references: Sequence[str] | None = None,
        entities: Iterable[str] | Iterable[Iterable[str]] | None = None,
        **others: Any,
    ) -> None:
        """Add a batch of utterances.

        Args:
            entities: a list of phrases for each utterance, or one list for all utterances.

        Raises:
            ValueError: predictions, references or entities are missing, or the numbers of predictions, references and entities
                differ.
        """
        if predictions is None or references is None or entities is None:
            raise ValueError("predictions, references and entities belong together: give all to compute, or all to add_batch")
        lists = per_utterance(entities, len(references))
        super().add_batch(predictions=predictions, references=references, entities=lists, **others)

    def _compute(
        self, predictions: list[str], references: list[str], entities: list[list[str]], normalise: Normalisation = None
    ) -> dict[str, Any]:
        errors = entity_errors(references, predictions, entities, normalise)
        results: dict[str, Any] = {name: getattr(errors, name) for name in ("entity_wer", "other_wer", "wer")}
        results |= {name: getattr(errors.matches, name) for name in ("precision", "recall", "f1")}
        for kind, counts in (("entity", errors.entities), ("other", errors.others)):
            results |= {f"{kind}_{name}": number for name, number in _edits(counts, "words").items()}
        names = ("true_positives", "false_positives", "false_negatives")
        return results | {name: getattr(errors.matches, name) for name in names}


def _info(description: str, inputs: dict[str, Any] | None = None) -> evaluate.MetricInfo:
    features = datasets.Features({**_TEXTS, **(inputs or {})})
    described = _INPUTS + (_ENTITIES if inputs else "")
    return evaluate.MetricInfo(description=description, citation="", inputs_description=described, features=features)


def _edits(counts: ErrorCounts, units: str) -> dict[str, int]:
    names = ("substitutions", "deletions", "insertions", "hits")
    return {**{name: getattr(counts, name) for name in names}, units: counts.length}
