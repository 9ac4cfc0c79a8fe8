"""Grids: how they are written, and how the search goes from coarse to fine."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_ngpulm.evaluation.tuning.grids import GridSearch, grid_values


@pytest.mark.parametrize(
    ("written", "values"),
    [
        ("0:1:0.25", (0, 0.25, 0.5, 0.75, 1)),
        ("0:0.3:0.1", (0, 0.1, 0.2, 0.3)),  # 0.1 + 0.1 + 0.1 isn't 0.3
        ("0:1:0.4", (0, 0.4, 0.8)),
        ("0.5", (0.5,)),
        ("2, 0.5 1", (0.5, 1, 2)),
        ("0:0.2:0.1,5", (0, 0.1, 0.2, 5)),
        ([0.5, 0.1, 0.5], (0.1, 0.5)),
        (0.7, (0.7,)),
    ],
)
def test_how_grids_are_written(written, values):
    assert grid_values("lm_weight", written) == values


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ("", "the grid of lm_weight is empty"),
        ([], "is empty"),
        ("0:1", "can't be read: '0:1'; write it such as \"0:2:0.1\""),
        ("0:1:0.1:2", "can't be read"),
        ("a:b:c", "can't be read"),
        ("low", "can't be read: 'low'"),
        ("1:0:0.1", "should go up"),
        ("0:1:0", "step above 0"),
        ("0:1:-0.1", "step above 0"),
        ("0:inf:1", "can't be read"),
        ("0:1:1e-9", "more than 1000; take a larger step"),
        ([math.nan], "lm_weight should be a number from 0 to 1000, got nan"),
        ("nan", "got nan"),
        ([math.inf], "got inf"),
        ("-1:1:0.5", "got -1.0 in its grid"),
        ([-0.1], "got -0.1"),
        ([True], "got True"),
        (["0.1"], "got '0.1'"),
    ],
)
def test_grids_that_cannot_be(grid, message):
    with pytest.raises(ValueError) as error:
        grid_values("lm_weight", grid)
    assert message in str(error.value)


def test_a_bonus_may_be_below_0():
    assert grid_values("beta", "-1:1:1") == (-1, 0, 1)


def bowl(*centre):
    """Errors that grow with the distance from a centre."""
    asked = []

    def errors(points):
        asked.extend(points)
        return [round(1000 * sum((value - middle) ** 2 for value, middle in zip(point, centre))) for point in points]

    return errors, asked


def test_coarse_to_fine():
    search = GridSearch({"lm_weight": grid_values("lm_weight", "0:2:0.4")}, {}, refine=2)
    errors, asked = bowl(0.93)
    assert search.run(errors) == ((0.9,), [])
    assert asked == [(0.0,), (0.4,), (0.8,), (1.2,), (1.6,), (2.0,), (0.6,), (1.0,), (0.9,), (1.1,)]


def test_the_grid_grows_where_the_best_lies_at_its_edge():
    errors, asked = bowl(1.3)
    search = GridSearch({"lm_weight": (0.0, 0.2, 0.4)}, {}, refine=0)
    assert search.run(errors) == ((1.2,), [])
    assert max(asked) == (1.6,)
    assert GridSearch({"lm_weight": (0.0, 0.2, 0.4)}, {}, refine=0, extend=False).run(bowl(1.3)[0]) == ((0.4,), ["lm_weight"])
    # It stops somewhere, and says so.
    assert search.run(bowl(100.0)[0]) == ((1.6,), ["lm_weight"])
    # Weights don't fall below 0, and 0 is no edge; a bonus does.
    errors, asked = bowl(-3.0)
    assert GridSearch({"lm_weight": (0.5, 1.5)}, {}, refine=0).run(errors) == ((0.0,), [])
    assert min(asked) == (0.0,)
    assert GridSearch({"beta": (0.0, 1.0)}, {}, refine=0).run(bowl(-3.0)[0]) == ((-3.0,), [])


def test_of_equals_the_lowest_weights():
    search = GridSearch({"lm_weight": (0.0, 0.5, 1.0), "beta": (-1.0, 0.0, 1.0)}, {}, refine=1)
    best, _ = search.run(lambda points: [int(point[0] < 0.5) for point in points])
    assert best[0] == 0.5
    assert search.run(lambda points: [0] * len(points))[0][0] == 0.0


def test_one_value_stays_as_it_is():
    errors, asked = bowl(0.7, 3.0)
    search = GridSearch({"lm_weight": (0.0, 0.4, 0.8, 1.2), "beta": (1.0,)}, {})
    (weight, beta), at_edge = search.run(errors)
    assert (weight, beta, at_edge) == (0.7, 1.0, []) and {point[1] for point in asked} == {1.0}


def test_three_weights_are_swept_one_after_another():
    grids = {"lm_weight": (0.0, 0.5, 1.0, 1.5), "phrase_weight": (0.0, 1.0, 2.0), "ilm_weight": (0.0, 0.25, 0.5)}
    errors, asked = bowl(0.8, 1.3, 0.2)
    search = GridSearch(grids, {"lm_weight": 0.6, "phrase_weight": 1.0}, refine=2)
    assert search.start == (0.5, 1.0, 0.25)
    best, at_edge = search.run(errors)
    assert best == (0.75, 1.25, 0.1875) and not at_edge
    assert len(asked) <= search.most_settings < 4 * 3 * 3 * 3


axes = st.sampled_from(["lm_weight", "phrase_weight", "ilm_weight", "beta"])
values = st.lists(st.integers(0, 40).map(lambda i: i / 8), min_size=1, max_size=5, unique=True)


@settings(deadline=None, max_examples=150)
@given(st.dictionaries(axes, values, min_size=1, max_size=4), st.integers(0, 3), st.booleans(), st.data())
def test_whatever_the_errors(grids, refine, extend, data):
    """Each setting is asked for once, no more of them than was said, and the best of them is found."""
    grids = {name: tuple(sorted(values)) for name, values in grids.items()}
    search = GridSearch(grids, {}, refine, extend)
    seed = data.draw(st.integers(0, 1000))
    known = {}

    def errors(points):
        assert points and not set(points) & known.keys() and len(set(points)) == len(points)
        known.update({point: hash((seed, point)) % 7 for point in points})
        return [known[point] for point in points]

    best, at_edge = search.run(errors)
    assert len(known) <= search.most_settings
    assert best == min(known, key=lambda point: (known[point], point))
    assert all(len(point) == len(grids) for point in known)
    floors = [-1000 if name == "beta" else 0 for name in grids]
    assert all(value >= floor for point in known for value, floor in zip(point, floors))
    assert set(at_edge) <= {name for name, values in grids.items() if len(values) > 1}
