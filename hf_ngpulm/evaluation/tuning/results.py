"""Define the results of tuning, and plot the results."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from ...common.extras import needed
from ...common.files import write_beside
from ...config.tuned import ModelIdentity, TunedDecoding
from ..counts import Normalisation, character_errors, word_errors
from ..entities import EntityErrors, entity_errors
from ..results import EDITS, Scores
from ..significance import Interval

MEASURES = {"wer": "WER", "cer": "CER", "entity_wer": "entity WER"}
# Lines differ in marker, dashes and grey level, so that lines are distinct in black-and-white print, too.
STYLES: list[dict[str, Any]] = [
    {"color": "black", "linestyle": "-", "marker": "o"},
    {"color": "0.35", "linestyle": "--", "marker": "s"},
    {"color": "0.15", "linestyle": ":", "marker": "^"},
    {"color": "0.55", "linestyle": "-.", "marker": "D"},
    {"color": "0.45", "linestyle": (0, (5, 1, 1, 1, 1, 1)), "marker": "v"},
    {"color": "0.65", "linestyle": (0, (1, 3)), "marker": "x"},
]
NAMES = {
    "lm_weight": "LM weight",
    "phrase_weight": "phrase weight",
    "ilm_weight": "internal LM weight",
    "source_weight": "source LM weight",
    "beta": "beta",
}

Rate = Callable[[Scores], float]


@dataclass(frozen=True)
class TuningPoint(Scores):
    """Hold a setting of the weights, and the errors that hypotheses with this setting have.

    Args:
        words, characters: errors. `words.rate` is the WER.
        entities: errors on entities; None if the dataset has no entities.
        setting: the values of the weights, by name.
    """

    setting: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        of_entities = {"entity_wer": self.entity_wer, **self.of_matches} if self.entities is not None else {}
        rates = {name: None if math.isnan(rate) else rate for name, rate in of_entities.items()}
        return {**self.setting, "wer": self.wer, "cer": self.cer, **self.edits, **rates}


@dataclass(frozen=True)
class TuningResult:
    """Hold the result of `tune_weights`.

    Args:
        by: the rate that was minimised: "wer", "cer" or "entity_wer".
        best: the setting with the fewest errors. If several settings have the fewest errors, `best` is the setting with the
            lowest weights.
        interval: bootstrap confidence interval of the best setting's rate. (The rate is slightly too good, because the setting
            was chosen on the same utterances; see `held_out`.)
        points: all tried settings and the errors of each setting, in ascending order of the weights.
        baseline: the errors of the same search without language model and phrases (all weights 0).
        search: settings of the search, such as `num_beams`.
        fixed: weights that weren't tuned and have the same value for all utterances.
        model: the recogniser; None if it isn't known.
        utterances: number of utterances for tuning.
        held_out, held_out_baseline: the errors of the best setting and of the baseline on the held-out utterances; None without
            held-out utterances.
        recordings: number of recordings with a transcript, including unreadable and held-out recordings.
        unreadable: the reason for each unreadable recording.
        warnings: reasons why the choice may be unreliable.
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
        """Return the best setting. An LM can store it: `lm.remember(result.tuned)`, then `lm.save_pretrained(...)`.

        Raises:
            ValueError: the model isn't known, because only a decoder was tuned. Or there is no single language model.
        """
        if self.model is None:
            raise ValueError("the settings' model isn't known: tune a pipeline, or pass model= to tune_weights, too")
        weights = {**self.fixed, **self.best.setting}
        if "lm_weight" not in weights:
            raise ValueError("there is no single weight of a language model to remember: tune a decoder with one lm=")
        counts = self.best.counts[self.by]
        measured: dict[str, float | int | str] = {"by": self.by, "rate": round(counts.rate, 6), "length": counts.length}
        return TunedDecoding(self.model, {**weights, **self.search}, measured)

    def to_dict(self) -> dict[str, Any]:
        entries = vars(self) | {"model": None if self.model is None else self.model.name, "interval": vars(self.interval)}
        for name in ("best", "baseline", "held_out", "held_out_baseline"):
            entries[name] = None if entries[name] is None else entries[name].to_dict()
        entries |= {name: list(entries[name]) for name in ("unreadable", "warnings")}
        return entries | {"points": [point.to_dict() for point in entries.pop("points")]}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the whole result to a JSON file."""
        with write_beside(path) as beside:
            beside.write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the error rates against the weights. This needs matplotlib (`pip install 'hf-ngpulm[plots]'`).

        Args:
            path: an image file (`.png`, `.pdf`, `.svg`).
        """
        _draw(self, path)


class Scorer:
    """Counts the errors of hypotheses, and caches the counts. The lists `references` and `entities` have an item for each
    utterance, by the utterance's number. If no utterance has entities, `entities` is None.
    """

    def __init__(
        self, references: Sequence[str], entities: Sequence[tuple[str, ...]] | None, normalise: Normalisation = None
    ) -> None:
        self.references, self.entities, self.normalise = references, entities, normalise
        self._counts: dict[tuple[int, str], tuple[Any, ...]] = {}  # by the utterance's number and the hypothesis

    def point(self, setting: dict[str, float], numbers: Sequence[int], texts: Sequence[str]) -> TuningPoint:
        """Return a setting's errors. `numbers`: the utterances' numbers. `texts`: the hypotheses with this setting."""
        pairs = list(zip(numbers, texts))
        new = [pair for pair in pairs if pair not in self._counts]
        if new:
            said, heard = [self.references[number] for number, _ in new], [text for _, text in new]
            counted: list[Any] = [count(said, heard, self.normalise) for count in (word_errors, character_errors)]
            if self.entities is not None:
                errors = entity_errors(said, heard, [self.entities[number] for number, _ in new], self.normalise)
                counted += [errors.entities, errors.others, errors.matches]
            self._counts.update(zip(new, zip(*(counts.utterances for counts in counted))))
        of_pairs = zip(*(self._counts[pair] for pair in pairs))
        words, characters, *of_entities = (type(counts[0]).together(counts) for counts in of_pairs)
        return TuningPoint(words, characters, EntityErrors(*of_entities) if of_entities else None, setting)


def _draw(result: TuningResult, path: str | os.PathLike[str]) -> None:
    """Draw a panel for each rate. The horizontal axis shows the first weight that has several values. Each line shows the rates
    for one value of the second weight that has several values. Other weights have their best values.
    """
    with needed("plots", "plots"):
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

    best = result.best.setting
    varied = [name for name in best if len({point.setting[name] for point in result.points}) > 1] or list(best)
    first, second = varied[0], varied[1] if len(varied) > 1 else None
    fixed = {name: value for name, value in best.items() if name not in (first, second)}
    points = [point for point in result.points if fixed.items() <= point.setting.items()]
    points.sort(key=lambda point: point.setting[first])
    values = [None] if second is None else _lines(result, points, second)
    rates = _rates(result)
    rows = (len(rates) + 1) // 2
    figure, panels = pyplot.subplots(rows, 2, figsize=(9.6, 3.6 * rows), layout="constrained", sharex=True, squeeze=False)
    for panel, (name, rate) in zip(panels.flat, rates.items()):
        for value, style in zip(values, STYLES):
            line = [point for point in points if second is None or point.setting[second] == value]
            label = None if second is None else f"{NAMES[second]} {value:g}"
            places = [point.setting[first] for point in line], [100 * rate(point) for point in line]
            panel.plot(*places, label=label, markersize=4, **style)
        panel.axhline(100 * rate(result.baseline), color="0.75", linewidth=1, zorder=0, label="without LM and phrases")
        panel.plot(best[first], 100 * rate(result.best), marker="*", markersize=14, color="black", fillstyle="none")
        panel.set(xlabel=NAMES[first], ylabel=f"{name} (%)")
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    for panel in panels.flat[len(rates) :]:
        panel.set_visible(False)
    panels.flat[0].legend(fontsize="small")
    figure.suptitle(f"best: {', '.join(f'{NAMES[name]} {value:g}' for name, value in best.items())}", fontsize="medium")
    with write_beside(path) as beside:
        figure.savefig(beside, dpi=150)
    pyplot.close(figure)


def _rates(result: TuningResult) -> dict[str, Rate]:
    words = result.best.words.length or 1
    rates: dict[str, Rate] = {MEASURES[by]: attrgetter(by) for by in dict.fromkeys((result.by, "wer"))}
    return rates | {name: lambda point, name=name: getattr(point.words, name) / words for name in EDITS}  # type: ignore[misc]


def _lines(result: TuningResult, points: list[TuningPoint], second: str) -> list[float]:
    """Return the values of the weight `second` that get a line in the plot, in ascending order. There are at most as many
    values as styles of lines.

    The best value has a line. Other lines are for the values with the most points. In a tie, values closer to the best value
    are preferred.
    """
    best = result.best.setting[second]
    values = [point.setting[second] for point in points]
    by_worth = sorted(set(values), key=lambda value: (value != best, -values.count(value), abs(value - best)))
    return sorted(by_worth[: len(STYLES)])
