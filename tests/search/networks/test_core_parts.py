"""Functions, sums and products of the native core are what they stand for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from automata import seeds
from core_parts import function, highest, product, softmax_parts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

RELAXED = settings(deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("name", ["exp", "sigmoid", "tanh"])
def test_functions(name):
    theirs = getattr(torch, name)
    around_zero = torch.logspace(-30, 0, 300)
    numbers = torch.cat([torch.linspace(-87, 87, 2000), around_zero, -around_zero])
    torch.testing.assert_close(function(name, numbers).double(), theirs(numbers.double()), rtol=3e-7, atol=0)
    beyond = function(name, torch.tensor([math.nan, -math.inf, math.inf])).tolist()
    assert math.isnan(beyond[0])
    assert beyond[1:] == pytest.approx([float(theirs(torch.tensor(number))) for number in (-88.0, 88.3)], rel=1e-5, abs=1e-37)


def test_tanh_of_gates():
    numbers = torch.cat([torch.linspace(-12, 12, 4001), torch.logspace(-30, 0, 300)])
    found = function("gate_tanh", numbers)
    torch.testing.assert_close(found.double(), numbers.double().tanh(), rtol=4e-7, atol=0)
    assert float(found.abs().max()) <= 1.0
    beyond = function("gate_tanh", torch.tensor([math.nan, -math.inf, math.inf])).tolist()
    assert math.isnan(beyond[0]) and beyond[1:] == pytest.approx([-1.0, 1.0], rel=4e-7)


@given(st.integers(0, 40), st.integers(1, 100), st.integers(1, 40), seeds)
@settings(RELAXED, max_examples=80)
def test_products(rows, size, inputs, seed):
    generator = torch.Generator().manual_seed(seed)
    x, weights, biases = (torch.randn(shape, generator=generator) for shape in ((rows, inputs), (size, inputs), (size,)))
    out = product(x, weights, biases)
    torch.testing.assert_close(out[:, :size], torch.addmm(biases, x, weights.T), rtol=1e-4, atol=1e-4)
    assert (out[:, size:] == 0.0).all()
    alone = torch.cat([product(row, weights, biases) for row in x[:, None]]) if rows else out
    assert torch.equal(out, alone)  # in every bit, whatever is beside it


@given(st.integers(1, 150), st.sampled_from([1.0, 30.0]), st.sampled_from([0.0, 0.5]), seeds)
@settings(RELAXED, max_examples=60)
def test_sums_of_exponentials(size, scale, impossible, seed):
    generator = torch.Generator().manual_seed(seed)
    x = scale * torch.randn(size, generator=generator)
    x[torch.rand(size, generator=generator) < impossible] = -torch.inf
    highest, total, place, log_sum = softmax_parts(x)
    if x.max() == -torch.inf:
        assert highest == -np.inf and np.isnan(log_sum)
        return
    assert (highest, place) == (x.max(), int(x.argmax()))
    assert total == pytest.approx(float((x.double() - x.max()).exp().sum()), rel=2e-7)
    assert log_sum == pytest.approx(float(x.double().logsumexp(0)), rel=1e-7, abs=2e-7)
    for broken in (torch.nan, -torch.nan, torch.inf):
        with_it = x.clone()
        with_it[int(torch.randint(size, (), generator=generator))] = broken
        assert np.isnan(softmax_parts(with_it)[3])


@given(st.integers(1, 80), st.integers(1, 20), st.sampled_from([1, 3, 1000]), seeds)
@settings(RELAXED, max_examples=80)
def test_highest_sums(size, most, values, seed):
    generator = torch.Generator().manual_seed(seed)
    numbers, others = torch.randint(0, values, (2, size + 1), generator=generator).float()
    numbers[::7], others[::5], others[::35] = -math.inf, 1.0, math.inf  # and what is impossible in two ways
    places = highest(numbers, others, most)
    sums = (numbers + others)[:-1].nan_to_num(-math.inf, math.inf, -math.inf)
    possible = sums[sums > -math.inf]
    assert places == sorted(set(places)) and all(sums[place] > -math.inf for place in places)
    top = possible.sort(descending=True).values[:most]
    assert torch.equal(sums[places].sort(descending=True).values[:most], top)
