"""Turn expressions into a network: a nondeterministic automaton whose arcs read a word, an entry of a list, or nothing.

Arcs that read nothing may carry an action: they open or close a slot, or name the intent. The search follows an automaton. This
automaton is made from the network without actions (`hf_ngpulm.grammar.words`, `hf_ngpulm.grammar.tokens`). After the search,
`Network.reading` finds the transcript's best path through the network. The path's actions give the intent and the slots.

The network is made from the end of the sentences to their beginning, so that states of an intent with the same arcs are one
state. If an intent uses a rule a thousand times, and the same words follow each time, the network has the rule only once.
"""

from __future__ import annotations

import copy
import heapq
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from ..common.extras import needed
from ..errors import GrammarError
from .expressions import Choice, Expression, List, Number, Repeat, Sequence, Slot, Value, Wildcard, Words

MOST_ARCS, MOST_NUMBERS, MOST_DEPTH = 2_000_000, 100_000, 100
FREE_WORD = -1e-6  # weight of a free word, so that a reading prefers the grammar's words to a wildcard


class Free:
    """The symbol of a free word, which is any word that a `Wildcard` matches."""


FREE = Free()
Symbol: TypeAlias = "str | List | Number | Free"
Entries = list[tuple[str, Value]]


class Action(NamedTuple):
    """Action between words: set the intent ("intent"), begin ("open") or end ("close") a slot, or set its value ("value")."""

    kind: str
    name: str | None
    value: Value = None


class Arc(NamedTuple):
    """An arc to the state `target`. The arc reads `symbol`. If `symbol` is None, the arc reads nothing."""

    target: int
    symbol: Symbol | None = None
    weight: float = 0.0
    action: Action | None = None


class Filled(NamedTuple):
    """A slot of a reading. The slot's words are the units `first .. last - 1` of the transcript. If `value` is None, these
    words are the slot's value.
    """

    name: str
    value: Value
    first: int
    last: int


class Reading(NamedTuple):
    """The meaning of a transcript: the intent, its slots, and the grammar's weight (natural log)."""

    intent: str | None
    slots: tuple[Filled, ...]
    weight: float


class Symbols:
    """The spellings of a network's symbols. A spelling is a sequence of units, which are tokens or whole words.

    Args:
        spellings: for each symbol except `FREE`, a dictionary from the symbol's spellings to the values of the entries with
            these spellings.
        free_end: function from a place to the end of the free word that begins there. If no free word begins there, the
            function returns the place.
        skipped: function from a place between words to the place of the next unit that isn't skipped.
        initial: more spellings of each symbol, which are valid only at the beginning of a transcript.
        separators: units that separate words; None if words need no separator.
    """

    def __init__(
        self,
        spellings: Mapping[Any, Mapping[tuple[int, ...], Value]],
        free_end: Callable[[list[int], int], int],
        skipped: Callable[[list[int], int], int],
        initial: Mapping[Any, Mapping[tuple[int, ...], Value]] | None = None,
        separators: frozenset[int] | None = None,
    ) -> None:
        self.spellings, self.free_end, self.skipped = spellings, free_end, skipped
        self.initial, self.separators = initial or {}, separators
        self._lengths = {symbol: sorted({len(each) for each in values}) for symbol, values in spellings.items()}
        self._initial_lengths = {symbol: sorted({len(each) for each in values}) for symbol, values in self.initial.items()}

    def matches(self, symbol: Any, units: list[int], place: int) -> Iterator[tuple[int, Value]]:
        """For each of a symbol's spellings that begins at `units[place]`, yield the index after the spelling, and its value.

        `units`: the units of the transcript.
        """
        tables = [(self.spellings.get(symbol, {}), self._lengths.get(symbol, ()))]
        if place == 0:
            tables.append((self.initial.get(symbol, {}), self._initial_lengths.get(symbol, ())))
        for values, lengths in tables:
            for length in lengths:
                spelling = tuple(units[place : place + length])
                if len(spelling) == length and spelling in values and self._may_end(units, place + length):
                    yield place + length, values[spelling]

    def _may_end(self, units: list[int], place: int) -> bool:
        return self.separators is None or place == len(units) or units[place] in self.separators


class Network:
    """The network of a grammar's intents. State 0 is the start, state 1 the end."""

    def __init__(self, intents: Mapping[str | None, Expression], lists: Mapping[str, list[tuple[Any, Value]]]) -> None:
        self.arcs: list[list[Arc]] = [[], []]
        self.lists, self.count, self.depth = lists, 0, 0
        self.inlined: list[str] = []
        self.are_texts: dict[str, bool] = {}  # for each list, whether all its entries are plain texts
        self.automata: dict[Any, Any] = {}  # deterministic automata by classes of symbols; `with_lists` shares them
        # Of one intent: states by their arcs; arcs and states before an expression, by its identity and the state after it.
        self._states: dict[Any, int] = {}
        self._parts: dict[tuple[int, int], tuple[Expression, list[Arc]]] = {}
        self._entries: dict[tuple[int, int], int] = {}
        for intent, expression in intents.items():
            first = self._added([])  # the least number of the intent's states
            self.arcs[0].append(Arc(first, action=Action("intent", intent)))
            self.arcs[first] = self._from(expression, 1)
            for kept in (self._states, self._parts, self._entries):
                kept.clear()

    def with_lists(self, lists: Mapping[str, list[tuple[Any, Value]]]) -> Network:
        """Return a copy with other entries in some lists; the entries must be texts. The copy shares everything else."""
        changed = copy.copy(self)
        changed.lists = {**self.lists, **lists}
        return changed

    @property
    def symbols(self) -> set[Any]:
        """All symbols that the network reads."""
        return {arc.symbol for of_state in self.arcs for arc in of_state if arc.symbol is not None}

    def entries(self, symbol: Any) -> Entries:
        """Return the texts of a symbol, with their values."""
        if isinstance(symbol, str):
            return [(symbol, None)]
        if isinstance(symbol, List):
            return self.lists[symbol.name]
        return list(number_entries(symbol))

    def _added(self, arcs: list[Arc]) -> int:
        self.count += len(arcs)
        if self.count > MOST_ARCS:
            raise GrammarError(f"the grammar has more than {MOST_ARCS:,} arcs; write repeated parts as lists")
        self.arcs.append(arcs)
        return len(self.arcs) - 1

    def _state(self, arcs: list[Arc], value: Value = None) -> int:
        """Return the current intent's state that has these arcs. If there is no such state, add it. `value`: the value of the
        action in `arcs`; None if there is none. The values 1 and True count as different, although they are equal in Python.
        """
        key = (*arcs, repr(value))  # 1 and True are equal, and have different representations
        if key not in self._states:
            self._states[key] = self._added(arcs)
        return self._states[key]

    def _before(self, expression: Expression, target: int) -> int:
        """Return the state from which the paths of an expression lead to the state `target`."""
        key = id(expression), target
        if key not in self._entries:
            self._entries[key] = self._state(self._from(expression, target))
        return self._entries[key]

    def _from(self, expression: Expression, target: int) -> list[Arc]:
        """Return the arcs of the state from which the paths of an expression lead to the state `target`."""
        if (id(expression), target) in self._parts:
            return self._parts[id(expression), target][1]
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise GrammarError(f"the grammar is nested more than {MOST_DEPTH} deep; flatten it")
        match expression:
            case Words(text):
                arcs = [Arc(target)]
                for place, word in enumerate(reversed(text.split())):
                    arcs = [Arc(self._state(arcs) if place else target, sys.intern(word))]  # `reading` compares identities
            case Sequence(parts):
                for part in reversed(parts[1:]):
                    target = self._before(part, target)
                arcs = self._from(parts[0], target) if parts else [Arc(target)]
            case Choice(options, weights):
                each = zip(options, weights or [0.0] * len(options), strict=True)
                arcs = [Arc(self._before(option, target), None, weight) for option, weight in each]
            case Repeat(part, least, most):
                arcs = self._repeat(part, least, most, target)
            case Slot(name, part, value):
                last = self._state([Arc(target, action=Action("close", name, value))], value)
                arcs = [Arc(self._before(part, last), action=Action("open", name))]
            case List(name):
                arcs = self._list(expression, name, target)
            case Number():
                arcs = [Arc(target, expression)]
            case Wildcard():
                inside = self._states.get((FREE, target))
                if inside is None:
                    inside = self._states[FREE, target] = self._added([])
                    self.arcs[inside] = [Arc(inside, FREE), Arc(target)]
                arcs = [Arc(inside, FREE)]
        self.depth -= 1
        self._parts[id(expression), target] = expression, arcs  # an expression that is kept keeps its identity
        return arcs

    def _repeat(self, part: Expression, least: int, most: int | None, target: int) -> list[Arc]:
        if most is None:
            inside = self._added([])
            self.arcs[inside] = [*self._from(part, self._state([Arc(inside)])), Arc(target)]
            arcs = [Arc(inside)]
        else:
            arcs, end = [Arc(target)], target
            for _ in range(most - least):
                arcs = [Arc(end), *self._from(part, self._state(arcs))]
        for _ in range(least):
            arcs = self._from(part, self._state(arcs))
        return arcs

    def _list(self, expression: List, name: str, target: int) -> list[Arc]:
        if name not in self.lists:
            raise GrammarError(f"the grammar refers to the list {name!r}, which isn't given; pass lists={{{name!r}: [...]}}")
        if not self.lists[name]:
            raise GrammarError(f"the list {name!r} is empty; give it an entry")
        if name not in self.are_texts:
            self.are_texts[name] = all(isinstance(text, str) for text, _ in self.lists[name])
        if self.are_texts[name]:
            return [Arc(target, expression)]
        if name in self.inlined:
            raise GrammarError(f"the list {name!r} contains itself: {' -> '.join([*self.inlined, name])}")
        self.inlined.append(name)
        arcs = []
        for text, value in self.lists[name]:  # some entry is an expression, so all entries become paths
            last = self._state([Arc(target, action=Action("value", None, value))], value)
            arcs.append(Arc(self._before(Words(text) if isinstance(text, str) else text, last)))
        self.inlined.pop()
        return arcs

    def reading(self, units: list[int], symbols: Symbols) -> Reading | None:
        """Return the transcript's reading with the largest weight; in a tie, the reading whose arcs come first. Return None if
        the transcript isn't in the grammar.
        """
        best, before = self.reached(units, symbols)
        last = (len(units), 1)
        return self.traced(last, before, best[last]) if last in best else None

    def reached(self, units: list[int], symbols: Symbols) -> tuple[dict[tuple[int, int], float], dict[Any, Any]]:
        """Return two dictionaries. The keys are the (place, state) pairs that paths reach. The values are the weight of the
        best path to the pair, and the last step of this path (for `traced`).
        """
        # Dijkstra's algorithm: paths are taken by place, then by weight, then by their order. A weight above 0 can improve the
        # path to a pair that was already taken; such a pair is taken again.
        best: dict[tuple[int, int], float] = {(symbols.skipped(units, 0), 0): 0.0}
        before: dict[tuple[int, int], tuple[tuple[int, int], Action | None, Value, int]] = {}
        waiting: list[tuple[int, float, int, int]] = [(symbols.skipped(units, 0), 0.0, 0, 0)]
        matched: dict[int, dict[int, list[tuple[int, Value]]]] = {}  # by place and identity of the symbol
        order, steps, last_place = 0, 0, -1
        while waiting:
            place, cost, _, state = heapq.heappop(waiting)
            here = (place, state)
            if -cost < best[here]:
                continue
            steps, last_place = (steps + 1 if place == last_place else 1), place
            if steps > MOST_ARCS:
                raise GrammarError("a part that may be empty is repeated with a weight above 0; make the weight at most 0")
            if place not in matched:
                matched[place] = {id(None): [(place, None)]}
            matched_here = matched[place]
            for target, symbol, more, action in self.arcs[state]:
                ends = matched_here.get(id(symbol))
                if ends is None:  # many arcs read the same symbol at a place; it is matched once
                    ends = matched_here[id(symbol)] = [*self._ends(symbol, units, place, symbols)]
                for end, value in ends:
                    weight = -cost + more + (FREE_WORD if symbol is FREE else 0.0)
                    there = (symbols.skipped(units, end) if end > place else place, target)
                    if weight > best.get(there, -math.inf):
                        best[there], before[there] = weight, (here, action, value, end)
                        order += 1
                        heapq.heappush(waiting, (there[0], -weight, order, target))
        return best, before

    def _ends(self, symbol: Symbol | None, units: list[int], place: int, symbols: Symbols) -> Iterable[tuple[int, Value]]:
        if symbol is FREE:
            end = symbols.free_end(units, place)
            return [(end, None)] if end > place else []
        return symbols.matches(symbol, units, place)

    def traced(self, last: tuple[int, int], before: Mapping[Any, Any], weight: float) -> Reading:
        steps = []
        while last in before:
            steps.append(before[last])
            last = steps[-1][0]
        intent, slots = None, []
        opened, heard, read = 0, None, 0  # `read` is the end of the last word, without skipped units
        for (place, _), action, value, end in reversed(steps):
            heard = value if value is not None else heard
            read = end if end > place else read
            if action is None:
                continue
            if action.kind == "intent":
                intent = action.name
            elif action.kind == "open":
                opened, heard = place, None
            elif action.kind == "value":
                heard = action.value if action.value is not None else heard
            else:
                filled = heard if action.value is None else action.value
                slots.append(Filled(str(action.name), filled, opened, max(opened, read)))
        return Reading(intent, tuple(slots), weight)


def number_entries(number: Number) -> Iterator[tuple[str, Value]]:
    """Yield the texts and values of a range's numbers: in words, with and without "and", and in digits. Raises GrammarError if
    the range has too many numbers, or num2words lacks the language.
    """
    count = (number.most - number.least) // number.step + 1
    if count > MOST_NUMBERS:
        raise GrammarError(
            f"the range {number.least} to {number.most} has {count:,} numbers; at most {MOST_NUMBERS:,} are possible"
        )
    words = _number_words(number.language)
    for value in range(number.least, number.most + 1, number.step):
        text = words(value)
        forms = {text, text.replace(" and ", " "), text.replace("-", " "), text.replace(" and ", " ").replace("-", " ")}
        for form in sorted(forms):
            yield form, value
        yield str(value), value


def _number_words(language: str) -> Callable[[int], str]:
    with needed("text", "numbers in words"):
        from num2words import num2words

    def words(value: int) -> str:
        return num2words(value, lang=language).replace(",", "")

    try:
        words(1)
    except NotImplementedError:
        raise GrammarError(f"num2words has no numbers in {language!r}; write them as a list") from None
    return words
