"""Read contexts of Picovoice's Rhino in YAML (https://picovoice.ai/docs/tips/syntax-cheat-sheet/)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..common.extras import needed
from ..errors import GrammarError
from .expressions import Choice, Expression, List, Number, Repeat, Sequence, Slot, Words
from .marked import load_yaml, place_of
from .rules import MOST_DEPTH, Entry, Rules, checked, text_and_name

_TOKEN = re.compile(r"\s*(?:(?P<mark>[\[\](),])|\$(?P<slot>[\w.]+:\w+)|@(?P<macro>\w+)|(?P<word>[^\s\[\](),$@]+)|$)")
_CLOSING = {"[": "]", "(": ")"}
_LETTERS = [chr(number) for number in range(ord("a"), ord("z") + 1)]


def read_rhino(source: str | Path | Mapping[str, Any], language: str = "en") -> Rules:
    """Read a context of Rhino.

    Args:
        source: a path, the YAML text itself, or its contents as a mapping.
        language: language of the numbers in built-in slots.

    Raises:
        GrammarError: the context is invalid; the message names the file, and the line and column of the expression.
    """
    if isinstance(source, Mapping):
        contents, where = dict(source), "context"
    else:
        text, where = text_and_name(source, "context", lambda text: "\n" in text)
        contents = load_yaml(text, where)
    context = contents.get("context", contents) if isinstance(contents, dict) else None
    if not isinstance(context, Mapping) or not isinstance(context.get("expressions"), Mapping) or not context["expressions"]:
        raise GrammarError(f"{where}: a context should have 'context: expressions: INTENT: [...]'")
    reader = _Reader(context, where, language)
    intents: dict[str | None, Expression] = {
        str(intent): Choice(*reader.parsed_all(texts, f"the intent {str(intent)!r}"))
        for intent, texts in context["expressions"].items()
    }
    return checked(Rules(intents, reader.lists), where)


class _Reader:
    """Read the expressions of a context."""

    def __init__(self, context: Mapping[str, Any], where: str, language: str) -> None:
        self.where, self.language = where, language
        self.macros, slots = (context.get(name) or {} for name in ("macros", "slots"))
        for name, values in (("macros", self.macros), ("slots", slots)):
            if not isinstance(values, Mapping):
                raise GrammarError(f"{where}: {name!r} should be a mapping of names to lists, got {str(values)[:80]!r}")
        self.lists: dict[str, list[Entry]] = {
            str(name): [(text, text) for text in map(" ".join, map(str.split, self._texts(values, f"the slot {name!r}")))]
            for name, values in slots.items()
        }
        self.known: dict[str, Expression] = {}
        self.inside: list[str] = []

    def _texts(self, values: Any, what: str) -> list[str]:
        """Return the texts of a list in YAML. `what`: the list's name in error messages."""
        if not isinstance(values, list) or not values or not all(isinstance(each, str | int | float) for each in values):
            raise GrammarError(f"{self.where}: {what} should have a list of texts, got {str(values)[:80]!r}")
        if wrong := next((each for each in values if isinstance(each, bool)), None):
            raise GrammarError(
                f"{self.where}: {what} has the value {wrong}, which YAML reads from a bare 'yes' or 'on'; quote it"
            )
        return [each if isinstance(each, str) else str(each) for each in values]

    def parsed_all(self, texts: Any, what: str) -> list[Expression]:
        """Return the expressions of a list of texts. `what`: the list's name in error messages."""
        return [self._parsed(text) for text in self._texts(texts, what)]

    def _parsed(self, text: str) -> Expression:
        tokens = list(self._tokens(text))
        expression, at = self._sequence(text, tokens, 0, 0)
        if at < len(tokens):
            raise self._error(text, tokens[at][2], f"{tokens[at][1]!r} has no partner, or stands in a wrong place")
        if expression == Sequence():
            raise self._error(text, 0, "the expression is empty; remove it")
        return expression

    def _error(self, text: str, at: int, problem: str) -> GrammarError:
        return GrammarError(f"{place_of(text, self.where)}: {str(text)[:200]!r}, character {at + 1}: {problem}")

    def _tokens(self, text: str) -> Iterator[tuple[str, str, int]]:
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                at += len(text[at:]) - len(text[at:].lstrip())
                right = "$SLOT:NAME" if text[at] == "$" else "@MACRO"
                raise self._error(text, at, f"{text[at:].split()[0]!r} should be {right}")
            if match.lastgroup:
                yield match.lastgroup, match[match.lastgroup], match.start(match.lastgroup)
            at = match.end()

    def _sequence(self, text: str, tokens: list[tuple[str, str, int]], at: int, depth: int) -> tuple[Expression, int]:
        """Parse the sequence of parts that begins at the token `at`. Return the sequence, and the index after the sequence."""
        parts: list[Expression] = []
        while at < len(tokens):
            kind, content, start = tokens[at]
            if kind == "mark" and content not in _CLOSING:
                break
            at += 1
            if kind == "word":
                parts.append(Words(content))
            elif kind == "slot":
                parts.append(self._slot(text, content, start))
            elif kind == "macro":
                parts.append(self._macro(text, content, start))
            else:
                if depth == MOST_DEPTH:
                    raise self._error(text, start, f"brackets are nested more than {MOST_DEPTH} deep; use macros")
                options: list[Expression] = []
                while not options or (at < len(tokens) and tokens[at][1] == "," and tokens[at][0] == "mark"):
                    option, at = self._sequence(text, tokens, at + bool(options), depth + 1)
                    if option == Sequence():
                        raise self._error(text, start, f"a choice after {content!r} is empty; write optional parts as (PART)")
                    options.append(option)
                if at == len(tokens) or tokens[at][:2] != ("mark", _CLOSING[content]):
                    raise self._error(text, start, f"{content!r} isn't closed; end it with {_CLOSING[content]!r}")
                at += 1
                choice = options[0] if len(options) == 1 else Choice(*options)
                parts.append(choice if content == "[" else Repeat(choice, 0, 1))
        return (parts[0] if len(parts) == 1 else Sequence(*parts)), at

    def _macro(self, text: str, name: str, start: int) -> Expression:
        if name in self.inside:
            around = " -> ".join([*self.inside[self.inside.index(name) :], name])
            raise self._error(text, start, f"macros can't contain themselves: {around}")
        if name not in self.known:
            if name not in self.macros:
                raise self._error(text, start, f"the macro @{name} is unknown; define it under macros")
            self.inside.append(name)
            self.known[name] = Choice(*self.parsed_all(self.macros[name], f"the macro {name!r}"))
            self.inside.pop()
        return self.known[name]

    def _slot(self, text: str, content: str, start: int) -> Expression:
        kind, _, name = content.partition(":")
        if kind.startswith("pv."):
            return self._built_in(text, kind, name, start)
        if kind not in self.lists:
            known = ", ".join(self.lists) or "none"
            raise self._error(text, start, f"the slot ${kind} is unknown; define it under slots. Known slots: {known}")
        return Slot(name, List(kind))

    def _built_in(self, text: str, kind: str, name: str, start: int) -> Expression:
        most = {"pv.SingleDigitInteger": 9, "pv.TwoDigitInteger": 99, "pv.SingleDigitOrdinal": 9, "pv.TwoDigitOrdinal": 99}
        if kind in ("pv.SingleDigitInteger", "pv.TwoDigitInteger"):
            return Slot(name, Number(0, most[kind], language=self.language))
        if kind == "pv.Percent" and self.language == "en":
            self.lists.setdefault(kind, [(f"{number}%", number) for number in range(101)])
            return Slot(name, Choice(Sequence(Number(0, 100), "percent"), List(kind)))
        if kind in ("pv.SingleDigitOrdinal", "pv.TwoDigitOrdinal") and self.language == "en":
            with needed("text", "ordinals"):
                from num2words import num2words
            said = [
                (num2words(number, to=to), number) for number in range(1, most[kind] + 1) for to in ("ordinal", "ordinal_num")
            ]
            spaced = [(said_.replace("-", " "), number) for said_, number in said if "-" in said_]
            self.lists.setdefault(kind, [*said, *spaced])
        elif kind in ("pv.Alphabetic", "pv.Alphanumeric"):
            self.lists.setdefault(kind, [(letter, letter) for letter in _LETTERS])
            if kind == "pv.Alphanumeric":
                return Slot(name, Choice(List(kind), Number(0, 9, language=self.language)))
        else:
            raise self._error(
                text, start, f"the built-in slot ${kind} isn't known in {self.language!r}; write a slot of your own"
            )
        return Slot(name, List(kind))
