"""Read the lists of Home Assistant's sentence templates: texts, ranges of numbers, and wildcards."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import count, islice
from typing import Any

from ..errors import GrammarError
from .expressions import Expression, List, Slot, Value, Wildcard
from .gluing import Fill
from .marked import place_of
from .rules import NOTHING, Entry

Lists = Mapping[str, "Iterable[str | Entry] | None"]
MOST_TEXTS, MOST_NUMBERS = 10_000, 20_000


class ListReader:
    """Read the lists that templates refer to.

    Args:
        written: the contents of the file's lists, by name.
        given: the user's entries by list; they replace the file's entries.
        language: language of number words.
        where: the file's name in error messages.
        made: a dictionary to which the reader adds the entries of each list that it reads.
    """

    def __init__(
        self, written: Mapping[str, Any], given: Lists, language: str, where: str, made: dict[str, list[Entry]]
    ) -> None:
        self.written, self.language, self.where, self.made = written, language, where, made
        self.given: dict[str, list[Entry] | None] = {}
        for name, entries in given.items():
            pairs = None if entries is None else [(each, each) if isinstance(each, str) else each for each in entries]
            self.given[name] = pairs
            if pairs is not None:
                made[name] = pairs
        self.fills: dict[tuple[str, str | None], Fill] = {}
        self.contents: dict[str, str | Wildcard | None] = {}
        self.ranges: set[str] = set()

    def with_local(self, written: Mapping[str, Any]) -> ListReader:
        """Return a reader that also knows the lists of a block of sentences (`written`)."""
        reader = ListReader({**self.written, **written}, {}, self.language, self.where, self.made)
        reader.given = self.given
        return reader

    def fill(self, reference: Any, at: str) -> Fill:
        """Return the part for a reference to a list in a template. `at`: the template's place for error messages."""
        name, slot = reference.list_name, None if reference.is_capture else reference.slot_name
        if (name, slot) not in self.fills:
            if name not in self.contents:
                self.contents[name] = self._content(reference, at)
            self.fills[name, slot] = _fill(self, self.contents[name], slot)
        return self.fills[name, slot]

    def is_wildcard(self, name: str) -> bool:
        """Return whether a list is a wildcard. The reader must have read a reference to this list before."""
        return isinstance(self.contents.get(name), Wildcard)

    def _content(self, reference: Any, at: str) -> str | Wildcard | None:
        """Read the list that a reference names. Return the key of the list's entries in the dictionary `made`. Return a
        `Wildcard` for a wildcard, None for an empty list. `at`: the template's place for error messages.
        """
        name = reference.list_name
        if name in self.given:
            return None if self.given[name] is None else name
        written = self.written.get(name)
        if written is None and reference.is_inline_range:
            least, most, step = reference.get_inline_range()
            written = {"range": {"from": least, "to": most, "step": step}}
        if written is None:
            known = ", ".join(sorted({*self.written, *self.given})) or "none"
            raise GrammarError(f"{at}: the list {{{name}}} is unknown; pass lists={{{name!r}: [...]}}. Known lists: {known}")
        if not isinstance(written, Mapping) or not {"values", "range", "wildcard"} & written.keys():
            raise GrammarError(f"{self.where}: the list {name!r} should have 'values', a 'range' or 'wildcard: true'")
        if "values" in written:
            entries = list(self._texts(name, written["values"]))
        elif "range" in written:
            entries = self._numbers(name, written["range"])
        elif written["wildcard"]:
            return Wildcard()
        else:
            raise GrammarError(f"{self.where}: the list {name!r} has 'wildcard: false' and no values; give it values")
        names = (f"{name} {number}" if number > 1 else name for number in count(1))
        key = next(each for each in names if self.made.get(each, entries) == entries)
        self.made[key] = entries
        if "range" in written:
            self.ranges.add(key)
        return key

    def _texts(self, name: str, values: Any) -> Iterator[Entry]:
        """Yield the entries of a list of texts. A template yields all texts that it can produce."""
        from hassil.errors import HassilError
        from hassil.parse_expression import parse_sentence
        from hassil.parser import ParseError
        from hassil.sample import sample_expression
        from hassil.util import is_template, normalize_text

        for value in values or ():
            text = value.get("in") if isinstance(value, Mapping) else value
            at = place_of(text, self.where)
            if not isinstance(text, str) or not text.strip():
                raise GrammarError(f"{at}: the entry {value!r} of the list {name!r} should be a text, or have one under 'in'")
            out = plain_value(value.get("out")) if isinstance(value, Mapping) else None if is_template(text) else str(text)
            try:
                said = sample_expression(parse_sentence(text).expression) if is_template(text) else [text]
                texts = list(dict.fromkeys(" ".join(normalize_text(each).split()) for each in islice(said, MOST_TEXTS + 1)))
            except (ParseError, HassilError, AssertionError, RecursionError) as error:
                raise GrammarError(
                    f"{at}: the entry {str(text)[:200]!r} of the list {name!r} is invalid: entries can have choices and "
                    f"optional parts, but no lists and rules ({error})"
                ) from None
            if len(texts) > MOST_TEXTS:
                raise GrammarError(f"{at}: an entry of the list {name!r} stands for more than {MOST_TEXTS:,} texts; split it")
            yield from ((each, out) for each in texts if each)

    def _numbers(self, name: str, written: Any) -> list[Entry]:
        """Return the entries of a range: each number in digits, and in all spellings in words that hassil has."""
        from hassil.intents import RangeFractionType, RangeSlotList

        try:
            fractions, multiplier = written.get("fractions"), written.get("multiplier")
            numbers = RangeSlotList(
                name, int(written["from"]), int(written["to"]), int(written.get("step", 1)),
                fraction_type=None if fractions is None else RangeFractionType(fractions),
                multiplier=None if multiplier is None else float(multiplier),
                digits=bool(written.get("digits", True)), words=bool(written.get("words", True)),
            )  # fmt: skip
        except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise GrammarError(
                f"{self.where}: the range of the list {name!r} is invalid ({error}); it should have whole numbers 'from' and "
                "'to', and perhaps 'step', 'multiplier', and 'fractions' of 'halves' or 'tenths'"
            ) from None
        size = ((numbers.stop - numbers.start) // numbers.step + 1) * {"halves": 2, "tenths": 10}.get(str(fractions), 1)
        if size > MOST_NUMBERS:
            raise GrammarError(f"{self.where}: the list {name!r} has {size:,} numbers; at most {MOST_NUMBERS:,} are possible")
        entries: list[Entry] = []
        for number in numbers.get_numbers():
            value = number if multiplier is None else number * float(multiplier)
            texts = [str(number)] if numbers.digits else []
            if numbers.words:
                texts += self._spoken(name, written.get("words_language") or self.language, number, numbers.digits)
            entries += [(text, value) for text in texts]
        return entries

    def _spoken(self, name: str, language: str, number: float, has_digits: bool) -> tuple[str, ...]:
        try:
            return _spoken(language, number)
        except ValueError:
            if has_digits:  # so does hassil
                return ()
            raise GrammarError(
                f"{self.where}: hassil has no words in {language!r} for the number {number} of the list {name!r}; write "
                "its 'values'"
            ) from None


def _fill(reader: ListReader, content: str | Wildcard | None, slot: str | None) -> Fill:
    def slotted(part: Expression) -> Expression:
        return part if slot is None else Slot(slot, part)

    if not isinstance(content, str):
        return Fill(NOTHING if content is None else slotted(content))

    def within(before: str, after: str) -> Expression:
        """Return the list with the letters `before` and `after` around each entry. Signs like "%" are added only to numbers in
        digits.
        """
        name = f"{before}{{{content}}}{after}"
        if name not in reader.made:
            only_digits = content in reader.ranges and not any(map(str.isalpha, before + after))
            entries = [each for each in reader.made[content] if not (only_digits and any(map(str.isalpha, str(each[0]))))]
            reader.made[name] = _with_letters(before, entries, after)
        return slotted(List(name)) if reader.made[name] else NOTHING

    return Fill(slotted(List(content)), within)


def glued(new: Mapping[str, list[Entry]], known: Iterable[str]) -> dict[str, list[Entry]]:
    """Return the entries of derived lists, by name. A derived list adds letters to each entry of a list in `new`.

    `new`: the new entries of lists, by name. `known`: the names of all lists, including derived lists.
    """
    derived = {}
    for name in known:
        match = re.fullmatch(r"(.*)\{(.+)\}(.*)", name)
        if match and match[2] in new:
            before, of, after = match.groups()
            derived[name] = _with_letters(before, new[of], after)
    return derived


def _with_letters(before: str, entries: list[Entry], after: str) -> list[Entry]:
    return [(f"{before}{text}{after}", text if value is None else value) for text, value in entries if isinstance(text, str)]


def plain_value(value: Any) -> Value:
    """Return a value for a slot: lists and mappings become JSON text."""
    if isinstance(value, str):
        return str(value)
    return value if value is None or isinstance(value, int | float) else json.dumps(value, ensure_ascii=False)


@lru_cache(maxsize=100_000)
def _spoken(language: str, number: float) -> tuple[str, ...]:
    """Return the spellings of a number in words, with and without hyphens. Raises ValueError if the language is unknown."""
    from hassil.numbers import get_rbnf_engine

    if not language.replace("-", "").replace("_", "").isalnum():  # it names a file
        raise ValueError(f"{language!r} isn't a language's code")
    said = [" ".join(text.split()) for text in get_rbnf_engine(language).format_number(number).text_by_ruleset.values()]
    return tuple(dict.fromkeys(each for text in said for each in (text, text.replace("-", " "))))
