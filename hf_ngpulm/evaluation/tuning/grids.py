"""Search for the best weights on a coarse grid, beyond the grid if the best value is at its edge, and around the best value."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...config.tuned import SETTINGS

MOST_VALUES = 1000
# A grid is extended up to EXTENSIONS times, by BEYOND values each time.
BEYOND, EXTENSIONS = 2, 3
# Up to JOINT weights are tried in all combinations; more weights are swept one after another, CYCLES times.
JOINT, CYCLES = 2, 2

Setting = tuple[float, ...]
Values = str | float | Iterable[float]


@dataclass(frozen=True)
class Grids:
    """Hold the grids of `tune_weights`. If a grid is None, the default for the weight applies.

    Args:
        lm_weights: weights of the language model.
        phrase_weights: weights of the phrases.
        ilm_weights: weights of the subtracted internal LM.
        source_weights: weights of the subtracted source LM.
        betas: bonuses for each token of a CTC model's hypothesis.
        rescorer_weights: weights of the rescorer.
        word_bonuses: bonuses for each word of a rescored hypothesis.
    """

    lm_weights: Values | None = None
    phrase_weights: Values | None = None
    ilm_weights: Values | None = None
    source_weights: Values | None = None
    betas: Values | None = None
    rescorer_weights: Values | None = None
    word_bonuses: Values | None = None

    def values(self) -> dict[str, tuple[float, ...]]:
        """Return the values of each grid, by the weight's name. Grids that are None are left out. Raises ValueError if a grid
        is invalid.
        """
        return {name: grid_values(name, grid) for name, grid in zip(WEIGHTS, vars(self).values()) if grid is not None}


# The weights of the fields of `Grids`, in their order.
WEIGHTS = ("lm_weight", "phrase_weight", "ilm_weight", "source_weight", "beta", "rescorer_weight", "word_bonus")


def grid_values(name: str, values: Values) -> tuple[float, ...]:
    """Return the values of a grid, ascending.

    Args:
        name: the weight, such as "lm_weight". `hf_ngpulm.config.tuned` defines the bounds of the weight.
        values: numbers, or a text such as "0:2:0.1" (from, to, step), "0.2,0.5,1" (a list), or "0:1:0.5,2" (both).
    """
    example = 'such as "0:2:0.1" (from, to, step), "0.2,0.5,1", or numbers'
    if isinstance(values, str):
        grid = [number for part in values.replace(",", " ").split() for number in _parsed(name, part, example)]
    else:
        grid = list(values) if isinstance(values, Iterable) else [values]
    if not grid:
        raise ValueError(f"the grid of {name} is empty: {values!r}; give one {example}")
    for value in grid:
        if not SETTINGS[name].is_right(value):
            raise ValueError(f"{name} should be {SETTINGS[name].right}, got {value!r} in its grid")
    if len(grid) > MOST_VALUES:
        raise ValueError(f"the grid of {name} has {len(grid)} values, more than {MOST_VALUES}; take a larger step")
    return tuple(sorted({_rounded(float(value)) for value in grid}))


def _parsed(name: str, part: str, example: str) -> list[float]:
    try:
        numbers = [float(number) for number in part.split(":")]
    except ValueError:
        numbers = []
    if len(numbers) == 1:
        return numbers
    if len(numbers) != 3 or not all(map(math.isfinite, numbers)):
        raise ValueError(f"the grid of {name} can't be read: {part!r}; write it {example}")
    first, last, step = numbers
    if step <= 0 or last < first:
        raise ValueError(f"the grid of {name} should go up, from, to, step, with a step above 0; got {part!r}")
    count = math.floor((last - first) / step + 1e-6) + 1
    if count > MOST_VALUES:
        raise ValueError(f"the grid {part!r} of {name} has {count} values, more than {MOST_VALUES}; take a larger step")
    return [first + i * step for i in range(count)]


def _rounded(value: float) -> float:
    return round(value, 9) + 0.0  # no -0.0


class GridSearch:
    """Searches for the setting with the fewest errors. A setting is a tuple with the value of each weight.

    Args:
        grids: the coarse grid of each weight. A single value stays fixed.
        start: the decoder's own weights. A sweep of one weight after another starts at the closest grid values.
        refine: number of refinements. Each refinement halves the distance between the values around the best value.
        extend: whether to search beyond the edge of a grid if the best value is at this edge.
        joint: whether one or two weights are tried in all combinations. If False, the weights are swept one after another.
            More than two weights are always swept one after another.
    """

    def __init__(
        self,
        grids: Mapping[str, tuple[float, ...]],
        start: Mapping[str, Any],
        refine: int = 2,
        extend: bool = True,
        joint: bool = True,
    ) -> None:
        self.names = tuple(grids)
        self.grids = tuple(grids.values())
        self.swept = [axis for axis, values in enumerate(self.grids) if len(values) > 1]
        self.joint = joint and len(self.swept) <= JOINT
        self.refine, self.extend = refine, extend
        # A weight that the decoder doesn't have starts at its middle value.
        self.start = tuple(
            values[len(values) // 2] if start.get(name) is None else min(values, key=lambda value: abs(value - start[name]))
            for name, values in grids.items()
        )

    @property
    def most_settings(self) -> int:
        """Return an upper bound of the number of settings that `run` tries."""
        axes = len(self.swept)
        sizes = [len(self.grids[axis]) for axis in self.swept]
        if self.joint:
            coarse, around = math.prod(sizes), 3**axes - 1
            beyond = EXTENSIONS * axes * BEYOND * 3 ** max(axes - 1, 0)
        else:
            coarse, around, beyond = CYCLES * sum(sizes), 2 * axes, EXTENSIONS * axes * BEYOND
        return coarse + self.refine * around + (beyond if self.extend else 0)

    def run(self, errors: Callable[[list[Setting]], list[int]]) -> tuple[Setting, list[str]]:
        """Find the best setting.

        Args:
            errors: function from a list of settings to the number of errors with each setting. No setting is passed twice.

        Returns:
            A pair. The first item is the setting with the fewest errors. If several settings have the fewest errors, the
            setting with the lowest weights is returned. The second item names the weights whose best value is still at an edge
            of the grid.
        """
        tried: dict[Setting, int] = {}  # the number of errors with each setting

        def best_with(settings: Iterable[Setting]) -> Setting:
            new = [setting for setting in dict.fromkeys(settings) if setting not in tried]
            if new:
                tried.update(zip(new, errors(new), strict=True))
            return min(tried, key=lambda setting: (tried[setting], setting))

        if self.joint:
            best = best_with(itertools.product(*self.grids))
        else:
            best = self.start
            for _, axis in itertools.product(range(CYCLES), self.swept):
                best = best_with(_combined(best, {axis: self.grids[axis]}))
        for _ in range(EXTENSIONS if self.extend else 0):
            beyond = {axis: values for axis in self.swept if (values := self._beyond(axis, best, tried))}
            if not beyond:
                break
            best = best_with(setting for axis in beyond for setting in self._around(best, tried, {axis: beyond[axis]}))
        at_edge = [self.names[axis] for axis in self.swept if self._beyond(axis, best, tried)]
        for _ in range(self.refine):
            # Up to two weights are refined in all combinations, more weights one after another.
            for axes in [self.swept] if self.joint else [[axis] for axis in self.swept]:
                between = {axis: [best[axis], *_between(best[axis], _on(axis, tried))] for axis in axes}
                best = best_with(_combined(best, between))
        return best, at_edge

    def _beyond(self, axis: int, best: Setting, tried: Iterable[Setting]) -> list[float]:
        """If the best value is at an edge of the grid, return values beyond this edge. Otherwise return an empty list. `axis`:
        the weight's index in a setting.
        """
        values = _on(axis, tried)
        if best[axis] == values[-1]:
            step = values[-1] - values[-2]
        elif best[axis] == values[0]:
            step = values[0] - values[1]
        else:
            return []
        new = [_rounded(best[axis] + i * step) for i in range(1, BEYOND + 1)]
        # A weight that may not be negative stops at 0, even if 0 isn't a whole number of steps away.
        is_right = SETTINGS[self.names[axis]].is_right
        floor = -math.inf if is_right(-1.0) else 0.0
        new = [max(value, floor) for value in new if value > floor or best[axis] > floor]
        return [value for value in dict.fromkeys(new) if is_right(value)]

    def _around(self, best: Setting, tried: Iterable[Setting], values: dict[int, list[float]]) -> Iterable[Setting]:
        """Combine new values of some weights with the best values of the other weights. In a joint search, also use neighbours
        of the best values. `values`: the new values, by the weight's index in a setting.
        """
        if self.joint:
            others = {axis: _next_to(best[axis], _on(axis, tried)) for axis in self.swept if axis not in values}
            return _combined(best, values | others)
        return _combined(best, values)


def _combined(setting: Setting, values: Mapping[int, Iterable[float]]) -> Iterable[Setting]:
    """Return all combinations of new values of some weights. The other weights have the values in `setting`. `values`: the new
    values, by the weight's index.
    """
    return itertools.product(*(values.get(axis, (value,)) for axis, value in enumerate(setting)))


def _on(axis: int, settings: Iterable[Setting]) -> list[float]:
    """Return the values of a weight in settings, in ascending order. `axis`: the weight's index in a setting."""
    return sorted({setting[axis] for setting in settings})


def _next_to(value: float, values: list[float]) -> list[float]:
    place = values.index(value)
    return values[max(place - 1, 0) : place + 2]


def _between(value: float, values: list[float]) -> list[float]:
    """Return the midpoints between a value and its neighbours among `values`."""
    return [_rounded((value + other) / 2) for other in _next_to(value, values) if other != value]
