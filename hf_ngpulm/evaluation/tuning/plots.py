"""Error rates against weights, as an image that can be read in grey print too."""

from __future__ import annotations

import os
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ...common.files import write_beside
from ..results import EDITS

if TYPE_CHECKING:
    from .results import TuningPoint, TuningResult

# Lines differ in marker, dashes and grey.
STYLES: list[dict[str, Any]] = [
    {"color": "black", "linestyle": "-", "marker": "o"},
    {"color": "0.35", "linestyle": "--", "marker": "s"},
    {"color": "0.15", "linestyle": ":", "marker": "^"},
    {"color": "0.55", "linestyle": "-.", "marker": "D"},
    {"color": "0.45", "linestyle": (0, (5, 1, 1, 1, 1, 1)), "marker": "v"},
    {"color": "0.65", "linestyle": (0, (1, 3)), "marker": "x"},
]
NAMES = {"lm_weight": "LM weight", "phrase_weight": "phrase weight", "ilm_weight": "internal LM weight", "beta": "beta"}

Rate = Callable[["TuningPoint"], float]


def draw(result: TuningResult, path: str | os.PathLike[str]) -> None:
    """Draw one weight: the rates in one panel. Several: a panel for each rate, with a line for each value of a second
    weight; of further weights the best values."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    best = result.best.setting
    varied = [name for name in best if len({point.setting[name] for point in result.points}) > 1] or list(best)[:1]
    first, second = varied[0], varied[1] if len(varied) > 1 else None
    fixed = {name: value for name, value in best.items() if name not in (first, second)}
    points = [point for point in result.points if fixed.items() <= point.setting.items()]
    rates = _rates(result)
    if second is None:
        figure, panel = pyplot.subplots(figsize=(6.4, 4.4), layout="constrained")
        for (name, rate), style in zip(rates.items(), STYLES):
            _line(panel, points, first, rate, label=name, **style)
        _finish(panel, result, first, rates[_name_of(result.by)], "%")
        panel.legend()
    else:
        rows = (len(rates) + 1) // 2
        figure, panels = pyplot.subplots(rows, 2, figsize=(9.6, 3.6 * rows), layout="constrained", sharex=True, squeeze=False)
        for panel, (name, rate) in zip(panels.flat, rates.items()):
            for value, style in zip(_lines(result, points, second), STYLES):
                line = [point for point in points if point.setting[second] == value]
                _line(panel, line, first, rate, label=f"{NAMES[second]} {value:g}", **style)
            _finish(panel, result, first, rate, f"{name} (%)")
        for panel in panels.flat[len(rates) :]:
            panel.set_visible(False)
        panels.flat[0].legend(fontsize="small")
    figure.suptitle(f"best: {', '.join(f'{NAMES[name]} {value:g}' for name, value in best.items())}", fontsize="medium")
    with write_beside(path) as beside:
        figure.savefig(beside, dpi=150)
    pyplot.close(figure)


def _rates(result: TuningResult) -> dict[str, Rate]:
    words = result.best.words.length or 1
    found: dict[str, Rate] = {_name_of(by): attrgetter(by) for by in dict.fromkeys((result.by, "wer"))}
    return found | {name: lambda point, name=name: getattr(point.words, name) / words for name in EDITS}  # type: ignore[misc]


def _name_of(by: str) -> str:
    return {"wer": "WER", "cer": "CER", "entity_wer": "entity WER"}[by]


def _lines(result: TuningResult, points: list[TuningPoint], second: str) -> list[float]:
    """Return the values of the second weight that get a line: the best, and those that most points have, the closest to it
    first."""
    best = result.best.setting[second]
    values = [point.setting[second] for point in points]
    by_worth = sorted(set(values), key=lambda value: (value != best, -values.count(value), abs(value - best)))
    return sorted(by_worth[: len(STYLES)])


def _line(panel: Any, points: list[TuningPoint], name: str, rate: Rate, **style: Any) -> None:
    places = sorted((point.setting[name], 100 * rate(point)) for point in points)
    panel.plot(*zip(*places), markersize=4, **style)


def _finish(panel: Any, result: TuningResult, name: str, rate: Rate, label: str) -> None:
    panel.axhline(100 * rate(result.baseline), color="0.75", linewidth=1, zorder=0, label="without LM and phrases")
    panel.plot(result.best.setting[name], 100 * rate(result.best), marker="*", markersize=14, color="black", fillstyle="none")
    panel.set_xlabel(NAMES[name])
    panel.set_ylabel(label)
    panel.set_ylim(bottom=0)
    panel.grid(alpha=0.3)
