"""Read Home Assistant's sentence templates, as hassil parses them (https://github.com/OHF-Voice/hassil)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..common.extras import needed
from ..errors import GrammarError
from .expressions import Choice, Expression, Repeat, Sequence, Slot, Words
from .fillers import MOST_FILLERS
from .gluing import AnyOf, AnyOrder, Gluer, Part, Run, cleaned
from .marked import load_yaml, place_of
from .rules import Entry, Rules, checked
from .template_lists import ListReader, Lists, plain_value


def read_templates(
    source: str | Path | Mapping[str, Any] | Iterable[str],
    lists: Lists | None = None,
    language: str | None = None,
    context: Mapping[str, Any] | None = None,
) -> Rules:
    """Read sentence templates.

    Args:
        source: a YAML file in Home Assistant's format; a folder of such files; the contents of a file as a mapping; or a list
            of templates, which have no intent.
        lists: the entries of lists, by name; these entries replace the file's entries. An entry is a text, or a pair of a text
            and its value. None makes a list empty, and removes the sentences that need this list.
        language: language of number words; the default is the file's language, or else "en".
        context: the situation in which the sentences are spoken, such as `{"area": "kitchen"}`. Sentences that require another
            value, or exclude this value, are ignored. By default all sentences are read.

    Raises:
        GrammarError: the templates are invalid. The message names the file, line and column if they are known.
        ImportError: hassil is missing.
    """
    if isinstance(source, Mapping):
        contents, where = dict(source), "templates"
    elif isinstance(source, str | Path):
        contents, where = _read_files(Path(source)), str(source)
    else:
        contents, where = {"intents": {None: {"data": [{"sentences": list(source)}]}}}, "templates"
    return _Reader(contents, where, lists or {}, language, context).read()


def _read_files(path: Path) -> dict[str, Any]:
    """Return the merged contents of a file or folder."""
    if not path.exists():
        raise GrammarError(f"{str(path)!r} doesn't exist; pass a YAML file or folder, or a list of templates")
    files = sorted([*path.rglob("*.yaml"), *path.rglob("*.yml")]) if path.is_dir() else [path]
    if not files:
        raise GrammarError(f"the folder {str(path)!r} has no .yaml files")
    merged: dict[str, Any] = {}
    with needed("grammar", "sentence templates"):
        from hassil.util import merge_dict
    for file in files:
        try:
            contents = load_yaml(file.read_text(encoding="utf-8-sig"), str(file))
            merge_dict(merged, contents)
        except (OSError, UnicodeDecodeError, AssertionError, AttributeError) as error:
            raise GrammarError(f"{file}: this isn't a file of Home Assistant's intents: {error}") from None
    return merged


class _Scope(NamedTuple):
    """The rules and lists that a block of sentences can use. `parts`: the rules that were read so far."""

    rules: Mapping[str, Any]
    lists: ListReader
    parts: dict[str, Part]


class _Reader:
    """Read the contents of one source."""

    def __init__(
        self, contents: Mapping[str, Any], where: str, lists: Lists, language: str | None, context: Mapping[str, Any] | None
    ) -> None:
        with needed("grammar", "sentence templates"):
            import hassil.expression
            import hassil.parse_expression
            import hassil.parser
        self.hassil, self.contents, self.where, self.context = hassil, contents, where, context
        language = language or str(contents.get("language") or "en")
        made: dict[str, list[Entry]] = {}
        own = ListReader(self._mapping(contents, "lists"), lists, language, where, made)
        self.scope = _Scope(self._mapping(contents, "expansion_rules"), own, {})
        self.gluer, self.inside = Gluer(), list[str]()
        skipped = [Words(word) for each in contents.get("skip_words") or [] if (word := cleaned(str(each).strip()))]
        self.skip = Repeat(Choice(*skipped), most=MOST_FILLERS) if skipped else Words("")

    def read(self) -> Rules:
        """Read all intents."""
        intents: dict[str | None, Expression] = {}
        for intent, content in self._mapping(self.contents, "intents").items():
            blocks = content.get("data") if isinstance(content, Mapping) else None
            if not isinstance(blocks, list):
                raise GrammarError(f"{self.where}: the intent {intent!r} should have a list of blocks under 'data'")
            options = [option for block in blocks for option in self._block(block, intent)]
            if options:
                intents[None if intent is None else str(intent)] = Choice(*options)
        if not intents:
            raise GrammarError(f"{self.where}: there are no sentences; write intents: NAME: data: - sentences: [...]")
        return checked(Rules(intents, self.scope.lists.made), self.where)

    def _block(self, block: Any, intent: str | None) -> Iterator[Expression]:
        """Yield the expressions of a block of sentences. If the block requires another context, yield nothing."""
        sentences = block.get("sentences") if isinstance(block, Mapping) else None
        if not isinstance(sentences, list) or not sentences:
            raise GrammarError(f"{self.where}: a block of intent {intent!r} should have a list of templates under 'sentences'")
        slots = dict(self._mapping(block, "slots"))
        if self.context is not None:
            from hassil.util import check_excluded_context, check_required_context

            required = self._mapping(block, "requires_context")
            if not check_required_context(dict(required), dict(self.context), allow_missing_keys=True):
                return
            if not check_excluded_context(dict(self._mapping(block, "excludes_context")), dict(self.context)):
                return
            for name, what in required.items():
                if isinstance(what, Mapping) and what.get("slot") and name in self.context:
                    slots.setdefault(name, self.context[name])
        rules, lists = self._mapping(block, "expansion_rules"), self._mapping(block, "lists")
        scope = _Scope({**self.scope.rules, **rules}, self.scope.lists.with_local(lists), {}) if rules or lists else self.scope
        filled = [Slot(str(name), Words(""), plain_value(value)) for name, value in slots.items()]
        by_ends: dict[tuple[bool, bool], list[Expression]] = {}
        for template in sentences:
            ends, expression = self._sentence(template, scope)
            by_ends.setdefault(ends, []).append(expression)
        for (begins_free, ends_free), options in by_ends.items():
            before, after = (Words("") if is_free else self.skip for is_free in (begins_free, ends_free))
            yield Sequence(before, Choice(*options), after, *filled)

    def _sentence(self, template: Any, scope: _Scope) -> tuple[tuple[bool, bool], Expression]:
        """Return ((first, last), expression). `first` and `last`: whether the sentence begins and ends with a wildcard."""
        at = place_of(template, self.where)
        try:
            parsed = self._parsed(template, at)
            items = parsed.items if isinstance(parsed, self.hassil.expression.Sequence) else [None]
            part = self._part(parsed, scope, at)
            first, last = (
                isinstance(item, self.hassil.expression.ListReference) and scope.lists.is_wildcard(item.list_name)
                for item in (items[0], items[-1])
            )
            return (first, last), self.gluer.expression(part)
        except (ValueError, RecursionError) as error:
            if isinstance(error, GrammarError):
                raise
            raise GrammarError(f"{at}: the template {str(template)[:200]!r} is too complicated: {_told(error)}") from None

    def _parsed(self, template: Any, at: str) -> Any:
        if not isinstance(template, str) or not template.strip():
            raise GrammarError(f"{at}: a template should be a text, got {template!r}")
        try:
            return self.hassil.parse_expression.parse_sentence(template).expression
        except (self.hassil.parser.ParseError, AssertionError, RecursionError) as error:
            raise GrammarError(
                f"{at}: the template {str(template)[:200]!r} is invalid: {_told(error)}; brackets should be closed, and names "
                "not empty"
            ) from None

    def _part(self, parsed: Any, scope: _Scope, at: str) -> Part:
        kinds = self.hassil.expression
        if isinstance(parsed, kinds.TextChunk):
            return parsed.text
        if isinstance(parsed, kinds.Group):
            kind: Any = {kinds.Alternative: AnyOf, kinds.Permutation: AnyOrder}.get(type(parsed), Run)
            return kind(tuple(self._part(each, scope, at) for each in parsed.items))
        if isinstance(parsed, kinds.RuleReference):
            return self._rule(parsed.rule_name, scope, at)
        return scope.lists.fill(parsed, at)

    def _rule(self, name: str, scope: _Scope, at: str) -> Part:
        if name in self.inside:
            around = " -> ".join([*self.inside[self.inside.index(name) :], name])
            raise GrammarError(f"{at}: rules can't contain themselves: {around}")
        if name not in scope.parts:
            if name not in scope.rules:
                raise GrammarError(f"{at}: the rule <{name}> is unknown; define it under expansion_rules")
            at = place_of(scope.rules[name], f"{self.where}, rule {name!r}")
            self.inside.append(name)
            scope.parts[name] = self._part(self._parsed(scope.rules[name], at), scope, at)
            self.inside.pop()
        return scope.parts[name]

    def _mapping(self, values: Mapping[str, Any], name: str) -> Mapping[Any, Any]:
        value = values.get(name) or {}
        if not isinstance(value, Mapping):
            raise GrammarError(f"{place_of(value, self.where)}: {name!r} should be a mapping, got {str(value)[:80]!r}")
        return value


def _told(error: Exception) -> str:
    chunk = getattr(error, "chunk", None)
    return f"{chunk.text!r}" if chunk is not None else str(error) or type(error).__name__
