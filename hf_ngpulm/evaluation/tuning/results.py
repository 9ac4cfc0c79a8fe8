"""What tuning found."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...common.files import write_beside
from ...config.tuned import ModelIdentity, TunedDecoding
from ..counts import Normalisation, character_errors, word_errors
from ..entities import EntityErrors, entity_errors
from ..results import Scores
from ..significance import Interval

MEASURES = ("wer", "cer", "entity_wer")


@dataclass(frozen=True)
class TuningPoint(Scores):
    """How good transcripts are with a setting.

    Args:
        words, characters: errors; `words.rate` is the WER.
        entities: errors on entities, where the dataset lists any.
        setting: the weights, by name.
    """

    setting: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        of_entities = {"entity_wer": self.entity_wer, **self.of_matches} if self.entities is not None else {}
        rates = {name: None if math.isnan(rate) else rate for name, rate in of_entities.items()}
        return {**self.setting, "wer": self.wer, "cer": self.cer, **self.edits, **rates}


@dataclass(frozen=True)
class TuningResult:
    """What `tune_weights` found.

    Args:
        by: what the setting was chosen by: "wer", "cer" or "entity_wer".
        best: the setting with the fewest errors, of several such the one with the lowest weights.
        interval: a confidence interval of its rate, by bootstrap. (Chosen as the best of many on the same utterances, it looks
            a little better than it is; see `held_out`.)
        points: all settings that were tried, ascending.
        baseline: the same search without language model and phrases: all weights 0.
        search: settings of the search that the weights are for, such as `num_beams`.
        fixed: weights that weren't tuned, as far as they are one number.
        model: which recogniser, if that is known.
        utterances: how many the setting was chosen on.
        held_out: the best setting on utterances that had no part in the choice, and
        held_out_baseline: the baseline on these; None if none were held out.
        recordings: how many there were, with a transcript: those that couldn't be read and those held out among them.
        unreadable: of each recording that couldn't be read and was skipped, why.
        warnings: what makes the choice doubtful.
    """

    by: str
    best: TuningPoint
    interval: Interval
    points: tuple[TuningPoint, ...]
    baseline: TuningPoint
    search: dict[str, Any]
    fixed: dict[str, float]
    model: ModelIdentity | None
    utterances: int
    held_out: TuningPoint | None = None
    held_out_baseline: TuningPoint | None = None
    recordings: int = 0
    unreadable: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def tuned(self) -> TunedDecoding:
        """The best setting as a language model can remember it: `lm.remember(result.tuned)`, then `lm.save_pretrained(...)`.

        Raises:
            ValueError: it isn't known what model it is for, since a decoder alone was tuned; or no language model was used.
        """
        if self.model is None:
            raise ValueError(
                "it isn't known what model the settings are for: tune a pipeline, or pass model= to tune_weights, too"
            )
        weights = {**self.fixed, **self.best.setting}
        if "lm_weight" not in weights:
            raise ValueError("there is no one weight of a language model that it could remember")
        counts = self.best.counts[self.by]
        measured: dict[str, float | int | str] = {"by": self.by, "rate": round(counts.rate, 6), "length": counts.length}
        return TunedDecoding(self.model, {**weights, **self.search}, measured)

    def to_dict(self) -> dict[str, Any]:
        found = dict(vars(self)) | {"model": None if self.model is None else self.model.name, "interval": vars(self.interval)}
        for name in ("best", "baseline", "held_out", "held_out_baseline"):
            found[name] = None if found[name] is None else found[name].to_dict()
        found |= {name: list(found[name]) for name in ("unreadable", "warnings")}
        return found | {"points": [point.to_dict() for point in found.pop("points")]}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to a JSON file."""
        with write_beside(path) as beside:
            beside.write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the error rates against the weights; needs matplotlib (`pip install 'hf-ngpulm[plots]'`).

        Args:
            path: of the image; its ending says the kind (`.png`, `.pdf`, `.svg`).
        """
        from .plots import draw

        draw(self, path)


class Scorer:
    """Counts errors. Transcripts that come again, with another setting, are counted once.

    Args:
        references: what was said, of each utterance.
        entities: its entities; None if there are none anywhere.
        normalise: as in `word_errors`.
    """

    def __init__(
        self, references: Sequence[str], entities: Sequence[tuple[str, ...]] | None, normalise: Normalisation = None
    ) -> None:
        self.references, self.entities, self.normalise = references, entities, normalise
        self._known: dict[tuple[int, str], tuple[Any, ...]] = {}

    def point(self, setting: dict[str, float], numbers: Sequence[int], texts: Sequence[str]) -> TuningPoint:
        """Return how good the transcripts of some utterances are."""
        pairs = list(zip(numbers, texts))
        new = [pair for pair in pairs if pair not in self._known]
        if new:
            said, heard = [self.references[number] for number, _ in new], [text for _, text in new]
            counted: list[Any] = [count(said, heard, self.normalise) for count in (word_errors, character_errors)]
            if self.entities is not None:
                errors = entity_errors(said, heard, [self.entities[number] for number, _ in new], self.normalise)
                counted += [errors.entities, errors.others, errors.matches]
            self._known.update(zip(new, zip(*(counts.utterances for counts in counted))))
        words, characters, *of_entities = (type(part[0]).together(part) for part in zip(*(self._known[pair] for pair in pairs)))
        return TuningPoint(words, characters, EntityErrors(*of_entities) if of_entities else None, setting)
