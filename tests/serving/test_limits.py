"""Who has a place, and how many phrases a client may be given."""

from __future__ import annotations

import pytest

from hf_ngpulm.serving.limits import Full, Limits, PhraseBudget, Places


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_places_in_all_and_by_address():
    places = Places(Limits(clients=3, clients_per_address=1))
    with places.taken("192.0.2.1"):
        with (
            pytest.raises(Full, match=r"1 clients of 192\.0\.2\.1 are connected, the most from one address"),
            places.taken("192.0.2.1"),
        ):
            pass
        assert len(places) == 1
        with places.taken(None), places.taken(None):  # this machine's own
            assert len(places) == 3
            with pytest.raises(Full, match="the server is full"), places.taken("192.0.2.2"):
                pass
    assert len(places) == 0
    with pytest.raises(KeyError), places.taken("192.0.2.1"):
        raise KeyError
    with places.taken("192.0.2.1"):
        assert len(places) == 1


def test_a_budget_comes_back_as_time_goes_by():
    clock = Clock()
    budget = PhraseBudget(Limits(phrases=10, phrase_bytes=100, phrase_seconds=4.0), clock=clock)
    assert budget.cost(0, 0) == budget.cost(1, 5) == 0.1  # changes cost something even where there is nothing in them
    assert budget.cost(2, 50) == budget.cost(5, 10) == 0.5
    assert budget.is_full and budget.take(1.0) == 0.0
    assert not budget.is_full and budget.take(0.5) == 2.0
    clock.now += 2.0
    assert budget.take(0.25) == 1.0
    clock.now += 5.0
    assert budget.is_full
    clock.now += 1000.0
    assert [budget.take(0.5) for _ in range(3)] == [0.0, 0.0, 2.0]
    assert [budget.take(1.0) for _ in range(3)] == [4.0, 4.0, 4.0]  # nobody is locked out for longer
    clock.now += 4.0
    assert budget.take(0.0) == 0.0


def test_who_leaves_and_comes_again_has_no_new_budget():
    clock = Clock()
    places = Places(Limits(clients_per_address=2, phrase_seconds=4.0), clock)

    def come(address):
        with places.taken(address) as budget:
            return budget.take(1.0)

    assert [come("192.0.2.1") for _ in range(4)] == [0.0, 0.0, 2.0, 4.0]  # two clients' budget
    assert come("192.0.2.2") == 0.0
    assert [come(None) for _ in range(3)] == [0.0] * 3  # who is known to nobody has one of its own
    clock.now += 100.0
    assert come("192.0.2.1") == 0.0
    assert list(places._budgets) == ["192.0.2.1"]  # nothing is kept of others
