"""Read grammars in the Java Speech Grammar Format, version 1.0 (https://www.w3.org/TR/2000/NOTE-jsgf-20000605/)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ..errors import GrammarError
from .expressions import Choice, Expression, Repeat, Sequence, Slot, Words, log_weights
from .rules import MOST_DEPTH, NOTHING, Rules, checked, place, text_and_name

_TOKEN = re.compile(
    r"(?P<blank>\s+|//[^\n]*|/\*.*?\*/)"
    r'|(?P<quoted>"(?:[^"\\\n]|\\.)*")'
    r"|(?P<tag>\{(?:[^}\\]|\\.)*\})"
    r"|<(?P<name>[^<>\s;=|*+()\[\]{}/\"]+\*?)>"
    r"|(?P<mark>[;=|*+()\[\]/])"
    r'|(?P<word>[^\s;=|*+<>()\[\]{}/"]+)',
    re.DOTALL,
)
_OPEN = {
    '"': "a quoted token isn't closed",
    "{": "a tag isn't closed",
    "<": "a rule's name isn't closed or has a wrong character",
}
_PAIR = re.compile(r"\s*([^\s=:]+)\s*[=:]\s*(.*?)\s*;?\s*", re.DOTALL)
SUFFIXES = (".jsgf", ".gram", ".jgram", ".grammar")


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


class _Part(NamedTuple):
    expression: Expression
    has_slots: bool


class _Rule(NamedTuple):
    is_public: bool
    name: _Token
    tokens: list[_Token]


def read_jsgf(source: str | Path, imports: str | Path | None = None) -> Rules:
    """Read a JSGF grammar.

    Each public rule is an intent with the rule's name. A tag `{name=value}` or `{name:value}` turns the expression before it
    into a slot. `{name=}` makes a slot whose value is the slot's words. Any other tag makes a slot "tag", whose value is the
    tag's text. If the expression already contains slots, the tag becomes a slot without words, after the expression.

    Args:
        source: a path, or the grammar's text, which begins with "#JSGF".
        imports: the folder with imported grammars; None refuses imports. `import <com.shop.names.*>` reads "names.jsgf",
            "com.shop.names.jsgf" or "com/shop/names.jsgf", or one of these files with another suffix from `SUFFIXES`.

    Raises:
        GrammarError: the grammar is invalid, or recursive; the message names the file, line and column.
    """
    text, where = text_and_name(source, "JSGF", lambda text: "\n" in text or text.lstrip().startswith("#JSGF"))
    grammar = _Grammar(text, where, None if imports is None else Path(imports), {})
    parts = {rule: grammar.rule(rule) for rule in grammar.rules}
    intents: dict[str | None, Expression] = {
        name: parts[name].expression for name, rule in grammar.rules.items() if rule.is_public
    }
    if not intents:
        raise GrammarError(f"{where}: no rule is public; write 'public' before the rules that may be said")
    return checked(Rules(intents, {}), where)


@dataclass
class _Grammar:
    """A grammar file. A rule is parsed when the first reference to the rule is resolved."""

    text: str
    where: str
    folder: Path | None
    known: dict[str, _Grammar]  # all grammars by name, including this one
    name: str = ""
    rules: dict[str, _Rule] = field(default_factory=dict)
    imported: list[str] = field(default_factory=list)  # qualified names of rules, or names of grammars followed by ".*"
    parts: dict[str, _Part] = field(default_factory=dict)
    inside: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        statements = self._statements()
        header = next(statements, [])
        if [token.text for token in header[:2]] not in (["#JSGF", "V1.0"], ["#JSGF", "v1.0"]):
            raise self.error(header[0].start if header else 0, "a grammar begins with '#JSGF V1.0;'")
        declared = next(statements, [])
        if [token.kind for token in declared] != ["word", "word"] or declared[0].text != "grammar":
            raise self.error(declared[0].start if declared else len(self.text), "after the header follows 'grammar NAME;'")
        self.name = declared[1].text
        self.known[self.name] = self
        for statement in statements:
            first, *rest = statement
            if first.text == "import" and len(rest) == 1 and rest[0].kind == "name":
                if self.rules:
                    raise self.error(first.start, "imports stand before rules")
                self._import(rest[0])
                continue
            is_public = first == _Token("word", "public", first.start)
            name, *body = rest if is_public else statement
            if name.kind != "name" or not body or body[0].text != "=":
                raise self.error(name.start, f"expected '<NAME> = ...;', got {name.text!r}")
            if name.text in self.rules or name.text in ("NULL", "VOID"):
                raise self.error(name.start, f"the rule <{name.text}> is defined already; give it another name")
            self.rules[name.text] = _Rule(is_public, name, body[1:])

    def error(self, at: int, problem: str) -> GrammarError:
        line = self.text.count("\n", 0, at) + 1
        return GrammarError(f"{place(self.where, line, at - (self.text.rfind(chr(10), 0, at) + 1) + 1)}: {problem}")

    def _tokens(self) -> Iterator[_Token]:
        at = 0
        while at < len(self.text):
            if self.text.startswith("/*", at) and "*/" not in self.text[at + 2 :]:
                raise self.error(at, "a comment isn't closed; end it with '*/'")
            match = _TOKEN.match(self.text, at)
            if match is None:
                character = self.text[at]
                raise self.error(at, _OPEN.get(character, f"{character!r} has no partner; remove it, or write it in quotes"))
            kind = str(match.lastgroup)
            if kind != "blank":
                yield _Token(kind, match[kind], at)
            at = match.end()

    def _statements(self) -> Iterator[list[_Token]]:
        statement: list[_Token] = []
        for token in self._tokens():
            if token.text == ";" and token.kind == "mark":
                if statement:
                    yield statement
                statement = []
            else:
                statement.append(token)
        if statement:
            raise self.error(statement[0].start, f"the statement that begins with {statement[0].text!r} has no ';' at its end")

    def _import(self, name: _Token) -> None:
        grammar = name.text.rpartition(".")[0]
        if self.folder is None or not grammar:
            raise self.error(name.start, f"<{name.text}> can't be imported; pass imports=FOLDER, or copy its rules")
        if grammar not in self.known:
            stems = (grammar, grammar.replace(".", "/"), grammar.rpartition(".")[2])
            paths = [self.folder / f"{stem}{suffix}" for stem in stems for suffix in SUFFIXES]
            path = next((path for path in paths if path.is_file()), None)
            if path is None:
                raise self.error(
                    name.start, f"the grammar {grammar!r} isn't in {str(self.folder)!r}; name its file {paths[0].name}"
                )
            self.known[grammar] = self  # a placeholder, as the imported grammar may import this one
            self.known[grammar] = _Grammar(*text_and_name(path, "", lambda text: False), self.folder, self.known)
        self.imported.append(name.text)

    def rule(self, name: str) -> _Part:
        """Return the expression of a rule of this grammar."""
        if name not in self.parts:
            if name in self.inside:
                around = " -> ".join([*self.inside[self.inside.index(name) :], name])
                raise self.error(self.rules[name].name.start, f"rules can't contain themselves: {around}; write it with * or +")
            self.inside.append(name)
            self.parts[name] = _Parser(self, self.rules[name]).whole()
            self.inside.pop()
        return self.parts[name]

    def referred(self, token: _Token) -> _Part:
        """Return the expression of the rule that the reference names."""
        if token.text in ("NULL", "VOID"):
            return _Part(Words("") if token.text == "NULL" else NOTHING, False)
        grammar, _, name = token.text.rpartition(".")
        if (grammar == "" and name in self.rules) or (
            grammar in (self.name, self.name.rpartition(".")[2]) and name in self.rules
        ):
            return self.rule(name)
        candidates = []
        for imported in self.imported:
            owner, _, what = imported.rpartition(".")
            if what in ("*", name) and grammar in ("", owner, owner.rpartition(".")[2]) and name in self.known[owner].rules:
                candidates.append((owner, self.known[owner]))
        candidates = [(owner, each) for owner, each in candidates if each.rules[name].is_public]
        if not candidates:
            raise self.error(token.start, f"the rule <{token.text}> is unknown (or not public); define or import it")
        if len({owner for owner, _ in candidates}) > 1:
            raise self.error(token.start, f"<{token.text}> is in several imported grammars; write <GRAMMAR.{name}>")
        return candidates[0][1].rule(name)


class _Parser:
    """Parse the expansion of a rule by recursive descent."""

    def __init__(self, grammar: _Grammar, rule: _Rule) -> None:
        self.grammar, self.tokens, self.at, self.depth = grammar, rule.tokens, 0, 0
        self.end = _Token("end", "the end of the rule", (rule.tokens[-1] if rule.tokens else rule.name).start)

    def whole(self) -> _Part:
        part = self._alternatives()
        if self._next.kind != "end":
            raise self.grammar.error(self._next.start, f"{self._next.text!r} has no partner, or stands in a wrong place")
        return part

    @property
    def _next(self) -> _Token:
        return self.tokens[self.at] if self.at < len(self.tokens) else self.end

    def _mark(self, *texts: str) -> str | None:
        """If the next token is a mark in `texts`, consume the token and return the mark. Otherwise return None."""
        token = self._next
        if token.kind != "mark" or token.text not in texts:
            return None
        self.at += 1
        return token.text

    def _alternatives(self) -> _Part:
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise self.grammar.error(self._next.start, f"groups are nested more than {MOST_DEPTH} deep; use rules")
        start = self._next.start
        weighted = [(self._weight(), self._sequence())]
        while self._mark("|"):
            weighted.append((self._weight(), self._sequence()))
        self.depth -= 1
        weights, parts = zip(*weighted)
        has_slots = any(part.has_slots for part in parts)
        if all(weight is None for weight in weights):
            return parts[0] if len(parts) == 1 else _Part(Choice(*(part.expression for part in parts)), has_slots)
        if None in weights:
            raise self.grammar.error(start, "some of the alternatives have a weight and some don't; weigh all of them, or none")
        said = [(weight, part.expression) for weight, part in weighted if weight]
        logs = log_weights([weight for weight, _ in said]) if said else None
        return _Part(Choice(*(part for _, part in said), weights=logs), has_slots)

    def _weight(self) -> float | None:
        if not self._mark("/"):
            return None
        token = self._next
        self.at += 1
        try:
            weight = float(token.text)
        except ValueError:
            weight = math.nan
        if not 0 <= weight < math.inf or not self._mark("/"):
            raise self.grammar.error(
                token.start, f"a weight is a number of at least 0 between slashes, as in /0.5/; got {token.text!r}"
            )
        return weight

    def _sequence(self) -> _Part:
        parts = []
        while self._next.kind != "end" and not (self._next.kind == "mark" and self._next.text in "|)]"):
            parts.append(self._item())
        if not parts:
            raise self.grammar.error(
                self._next.start, f"expected words or a rule before {self._next.text!r}; write <NULL> for nothing"
            )
        whole = parts[0].expression if len(parts) == 1 else Sequence(*(part.expression for part in parts))
        return _Part(whole, any(part.has_slots for part in parts))

    def _item(self) -> _Part:
        token = self._next
        self.at += 1
        if token.kind == "name":
            part = self.grammar.referred(token)
        elif token.kind == "quoted":
            part = _Part(Words(re.sub(r"\\(.)", r"\1", token.text[1:-1])), False)
        elif token.kind == "word":
            part = _Part(Words(token.text), False)
        elif token.kind == "mark" and token.text in "([":
            part = self._alternatives()
            closing = ")" if token.text == "(" else "]"
            if not self._mark(closing):
                raise self.grammar.error(token.start, f"{token.text!r} isn't closed; end it with {closing!r}")
            if closing == "]":
                part = part._replace(expression=Repeat(part.expression, 0, 1))
        else:
            raise self.grammar.error(token.start, f"{token.text!r} stands in a wrong place; write it in quotes if it is said")
        while True:
            if self._next.kind == "tag":
                part = self._tagged(part, self._next)
                self.at += 1
            elif mark := self._mark("*", "+"):
                part = part._replace(expression=Repeat(part.expression, int(mark == "+")))
            else:
                return part

    def _tagged(self, part: _Part, tag: _Token) -> _Part:
        text = re.sub(r"\\(.)", r"\1", tag.text[1:-1]).strip()
        pair = _PAIR.fullmatch(text)
        name, value = (pair[1], re.sub(r"^(['\"])(.*)\1$", r"\2", pair[2]) or None) if pair else ("tag", text)
        if not part.has_slots:
            return _Part(Slot(name, part.expression, value), True)
        if value is None:
            raise self.grammar.error(tag.start, f"the tag {tag.text} without a value is around other tags; give it a value")
        return _Part(Sequence(part.expression, Slot(name, Words(""), value)), True)
