"""Error rates against weights, as an image that can be read in grey print too."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...common.files import write_beside

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

    axes_names = [name for name in result.best.setting if len({point.setting[name] for point in result.points}) > 1]
    axes_names = axes_names or list(result.best.setting)[:1]
    first, second = axes_names[0], axes_names[1] if len(axes_names) > 1 else None
    points = [
        point
        for point in result.points
        if all(value == result.best.setting[name] for name, value in point.setting.items() if name not in (first, second))
    ]
    rates = _rates(result)
    if second is None:
        figure, panel = pyplot.subplots(figsize=(6.4, 4.4), layout="constrained")
        for (name, rate), style in zip(rates.items(), STYLES):
            _line(panel, points, first, rate, style, name)
        _finish(panel, result, first, rates[_name_of(result.by)], "%")
        panel.legend()
    else:
        values = _lines(result, points, second)
        rows = (len(rates) + 1) // 2
        figure, panels = pyplot.subplots(rows, 2, figsize=(9.6, 3.6 * rows), layout="constrained", sharex=True, squeeze=False)
        for panel, (name, rate) in zip(panels.flat, rates.items()):
            for value, style in zip(values, STYLES):
                line = [point for point in points if point.setting[second] == value]
                _line(panel, line, first, rate, style, f"{NAMES[second]} {value:g}")
            _finish(panel, result, first, rate, f"{name} (%)")
        for panel in panels.flat[len(rates) :]:
            panel.set_visible(False)
        panels.flat[0].legend(fontsize="small")
    figure.suptitle(
        f"best: {', '.join(f'{NAMES[name]} {value:g}' for name, value in result.best.setting.items())}", fontsize="medium"
    )
    with write_beside(path) as beside:
        figure.savefig(beside, dpi=150)
    pyplot.close(figure)


def _rates(result: TuningResult) -> dict[str, Rate]:
    words = result.best.words.length or 1
    found: dict[str, Rate] = {} if result.by == "wer" else {_name_of(result.by): lambda point: getattr(point, result.by)}
    return found | {
        "WER": lambda point: point.wer,
        "substitutions": lambda point: point.words.substitutions / words,
        "deletions": lambda point: point.words.deletions / words,
        "insertions": lambda point: point.words.insertions / words,
    }


def _name_of(by: str) -> str:
    return {"wer": "WER", "cer": "CER", "entity_wer": "entity WER"}[by]


def _lines(result: TuningResult, points: list[TuningPoint], second: str) -> list[float]:
    """Return the values of the second weight that get a line: the best, and those that most points have, the closest to it
    first."""
    best = result.best.setting[second]
    values = [point.setting[second] for point in points]
    by_worth = sorted(set(values), key=lambda value: (value != best, -values.count(value), abs(value - best)))
    return sorted(by_worth[: len(STYLES)])


def _line(panel: Any, points: list[TuningPoint], name: str, rate: Rate, style: dict[str, Any], label: str) -> None:
    points = sorted(points, key=lambda point: point.setting[name])
    x = [point.setting[name] for point in points]
    panel.plot(x, [100 * rate(point) for point in points], label=label, markersize=4, **style)


def _finish(panel: Any, result: TuningResult, name: str, rate: Rate, label: str) -> None:
    panel.axhline(100 * rate(result.baseline), color="0.75", linewidth=1, zorder=0, label="without LM and phrases")
    panel.plot(result.best.setting[name], 100 * rate(result.best), marker="*", markersize=14, color="black", fillstyle="none")
    panel.set_xlabel(NAMES[name])
    panel.set_ylabel(label)
    panel.set_ylim(bottom=0)
    panel.grid(alpha=0.3)
