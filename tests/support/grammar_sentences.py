"""Draws sentences from a grammar, with their meaning, by the definition of its expressions."""

from __future__ import annotations

import random
from typing import NamedTuple

from hf_ngpulm.grammar.expressions import Choice, List, Number, Repeat, Sequence, Slot, Wildcard, Words
from hf_ngpulm.grammar.network import number_entries
from hf_ngpulm.grammar.rules import Rules


class Sentence(NamedTuple):
    text: str
    intent: str | None
    slots: tuple
    weight: float


class CannotBeSaid(Exception):
    pass


def sentences(rules: Rules, rng: random.Random, free=("alpha", "beta", "gamma")):
    """Yields sentences without end. Wildcards are filled with one or two of the free words."""
    intents = list(rules.intents)
    while True:
        intent = rng.choice(intents)
        try:
            words, _, slots, weight = _drawn(rules.intents[intent], rules, rng, free)
        except CannotBeSaid:
            continue
        yield Sentence(" ".join(words), intent, tuple(slots), weight)


def _drawn(part, rules, rng, free):
    """The words, the last value heard, the slots and the weight of one way through a part."""
    if isinstance(part, str):
        return part.split(), None, [], 0.0
    if isinstance(part, Words):
        return part.text.split(), None, [], 0.0
    if isinstance(part, Wildcard):
        return rng.choices(free, k=rng.randint(1, 2)), None, [], 0.0
    if isinstance(part, Choice):
        places = list(range(len(part.options)))
        rng.shuffle(places)
        for place in places:
            try:
                words, value, slots, weight = _drawn(part.options[place], rules, rng, free)
            except CannotBeSaid:
                continue
            return words, value, slots, weight + (part.weights[place] if part.weights else 0.0)
        raise CannotBeSaid
    if isinstance(part, Slot):
        words, value, slots, weight = _drawn(part.part, rules, rng, free)
        value = part.value if part.value is not None else value if value is not None else " ".join(words)
        return words, None, [*slots, (part.name, value)], weight
    if isinstance(part, List | Number):
        said, value = rng.choice(rules.lists[part.name] if isinstance(part, List) else list(number_entries(part)))
        words, inner, slots, weight = _drawn(said, rules, rng, free)
        return words, inner if value is None else value, slots, weight
    if isinstance(part, Repeat):
        times = part.least + rng.randint(0, 2 if part.most is None else part.most - part.least)
        try:
            drawn = [_drawn(part.part, rules, rng, free) for _ in range(times)]
        except CannotBeSaid:
            if part.least:
                raise
            drawn = []
        needed = max(part.least, 1)  # later repetitions say something
        drawn = drawn[:needed] + [each for each in drawn[needed:] if each[0]]
    else:
        assert isinstance(part, Sequence)
        drawn = [_drawn(each, rules, rng, free) for each in part.parts]
    values = [value for _, value, _, _ in drawn if value is not None]
    return (
        [word for words, *_ in drawn for word in words],
        values[-1] if values else None,
        [slot for _, _, slots, _ in drawn for slot in slots],
        sum(weight for *_, weight in drawn),
    )
