"""Define `Grammar`: the sentences that may be said, with intents and slots."""

from __future__ import annotations

import copy
import os
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..common.collector import collector_paused
from ..errors import GrammarError
from ..text.spelling import speller_of
from ..text.vocabulary import tokenizer_of
from . import saving
from .compiled import FORBIDDEN, CompiledGrammar
from .expressions import Expression, Value, expression_of
from .fillers import PRICE, between_fillers
from .jsgf import SUFFIXES, read_jsgf
from .marked import load_yaml
from .network import FREE, Network, Reading, Symbols
from .rhino import read_rhino
from .rules import Evidence, Rules, evidence_of, text_and_name
from .template_lists import glued
from .templates import read_templates
from .vosk import read_vosk

_MARKS = ".,?!;:…。、，？！；："
KEPT = 8  # number of compiled grammars kept per tokenizer


class Grammar:
    """Sentences that may be said, each with an intent and the slots that it fills.

        grammar = Grammar(
            {"TurnOn": Sequence("turn on", Optional("the"), Slot("device", List("devices")))},
            lists={"devices": ["lamp", ("telly", "media_player.living_room")]},
        )
        pipeline("automatic-speech-recognition", model, grammar=grammar)(audio)

    A grammar doesn't depend on a recogniser. It is compiled once for each tokenizer that it is used with. Case and punctuation
    marks between words are ignored.

    Args:
        intents: the expression of each intent, by name (see `hf_ngpulm.grammar.expressions`). A text is an expression; a list
            of expressions is a choice.
        lists: the entries of each list that the expressions name: texts, pairs of a text and the slot's value, or a mapping
            from texts to values.
        evidence: a dictionary from families of recognisers ("ctc", "transducer", "attention") to curves. A curve turns evidence
            into confidence, and is a pair of a middle and a width. `hf_ngpulm.evaluation.tune_grammar` finds these numbers.
            Other families have the default curve.

    Raises:
        GrammarError: `lists` lacks a list, a list is empty or contains itself, or the grammar is too large or nested too
            deeply.
    """

    def __init__(
        self,
        intents: Mapping[str | None, Any],
        lists: Mapping[str, Any] | None = None,
        evidence: Mapping[str, Evidence] | None = None,
    ) -> None:
        if not intents:
            raise GrammarError("the grammar has no intent; pass one, with its sentences")
        self.intents: dict[str | None, Expression] = {name: expression_of(of) for name, of in intents.items()}
        self.lists = {name: _entries(name, entries) for name, entries in (lists or {}).items()}
        self.evidence = evidence_of(evidence or {}, "the grammar")
        with collector_paused():
            self._network = Network(self.intents, self.lists)
        self._compiled: weakref.WeakKeyDictionary[Any, dict[Any, CompiledGrammar]] = weakref.WeakKeyDictionary()
        self._symbols: Symbols | None = None  # in words, for `reading`

    @classmethod
    def of_rules(cls, rules: Rules) -> Grammar:
        """Make a grammar from the rules that a reader of files returns."""
        return cls(rules.intents, rules.lists, rules.evidence)

    @classmethod
    def from_templates(cls, source: Any, **options: Any) -> Grammar:
        """Return the grammar of Home Assistant's sentence templates; see `hf_ngpulm.grammar.templates.read_templates`."""
        with collector_paused():
            return cls.of_rules(read_templates(source, **options))

    @classmethod
    def from_jsgf(cls, source: Any, **options: Any) -> Grammar:
        """Return the grammar of a JSGF file or text. The arguments are as for `hf_ngpulm.grammar.jsgf.read_jsgf`."""
        return cls.of_rules(read_jsgf(source, **options))

    @classmethod
    def from_rhino(cls, source: Any, **options: Any) -> Grammar:
        """Return the grammar of a Rhino context (YAML). The arguments are as for `hf_ngpulm.grammar.rhino.read_rhino`."""
        return cls.of_rules(read_rhino(source, **options))

    @classmethod
    def from_phrases(cls, source: Any) -> Grammar:
        """Return the grammar of Vosk's list of sentences: a list, or its JSON text (see `hf_ngpulm.grammar.vosk.read_vosk`)."""
        return cls.of_rules(read_vosk(source))

    @classmethod
    def from_text(cls, text: str) -> Grammar:
        """Read a grammar from a text: JSGF without imports, Home Assistant's templates or a Rhino context in YAML or JSON, or
        Vosk's list. Raises GrammarError if the text is in another format, or invalid.
        """
        if text.lstrip().startswith("#JSGF"):
            return cls.from_jsgf(text)
        if text.lstrip().startswith("["):
            return cls.from_phrases(text)
        contents = load_yaml(text, "grammar")
        if not isinstance(contents, dict):
            raise GrammarError("the grammar is neither JSGF nor YAML with 'intents' (templates) or 'context' (Rhino)")
        return cls.from_rhino(contents) if "context" in contents else cls.from_templates(contents)

    @classmethod
    def load(cls, source: str | os.PathLike[str]) -> Grammar:
        """Read a grammar from a file, or from a folder of sentence templates. The suffix and the content determine the format.

        Raises:
            GrammarError: the format is unknown, or the file is invalid. The message names the line and column if they are
                known.
        """
        path = Path(source)
        if path.suffix in SUFFIXES:
            return cls.from_jsgf(path)
        if path.suffix == ".json":
            return cls.of_rules(saving.load(path)) if path.name == saving.FILE else cls.from_phrases(path)
        if path.suffix in (".yaml", ".yml"):
            text, where = text_and_name(path, "", lambda text: False)
            contents = load_yaml(text, where)
            is_rhino = isinstance(contents, dict) and "context" in contents
            return cls.from_rhino(path) if is_rhino else cls.from_templates(path)
        if path.is_dir():
            return cls.from_pretrained(path) if (path / saving.FILE).exists() else cls.from_templates(path)
        raise GrammarError(
            f"{path}: unknown format; grammars are .jsgf (JSGF), .yml (Rhino, Home Assistant), .json (Vosk), or a folder of "
            "templates"
        )

    @classmethod
    def from_pretrained(
        cls, name: str | os.PathLike[str], *, revision: str | None = None, token: str | bool | None = None
    ) -> Grammar:
        """Read a saved grammar from a folder or from the Hub.

        Raises:
            GrammarError: the file is damaged, too large, or holds no grammar.
            FileNotFoundError: there is no such folder or repo, or it has no grammar.
        """
        return cls.of_rules(saving.load(saving.located(name, revision, token)))

    def save_pretrained(self, save_directory: str | os.PathLike[str]) -> None:
        """Write `grammar.json` to a folder."""
        saving.save(Rules(self.intents, self.lists, self.evidence), save_directory)

    def push_to_hub(self, repo_id: str, *, private: bool | None = None, token: str | bool | None = None) -> str:
        """Upload the grammar to a repo of the Hub, and return the commit's URL. Creates the repo if it doesn't exist."""
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            return saving.push(Path(folder), repo_id, private, token)

    def with_fillers(self, fillers: str | Iterable[str], price: float = PRICE) -> Grammar:
        """Return a copy in which up to four fillers, such as "um" and "please", may stand before and after each sentence.

        Args:
            fillers: words, or the code of a language in `hf_ngpulm.grammar.fillers.FILLERS`.
            price: the penalty of each filler (natural log).

        Raises:
            GrammarError: a filler has no words, or the language has no fillers.
        """
        given = fillers if isinstance(fillers, str) else list(fillers)
        intents = {name: between_fillers(expression, given, price) for name, expression in self.intents.items()}
        return Grammar(intents, self.lists, self.evidence)

    def with_evidence(self, evidence: Mapping[str, Evidence]) -> Grammar:
        """Return a copy with other curves of confidence for some families of recognisers. The copy shares compiled grammars."""
        changed = copy.copy(self)
        changed.evidence = self.evidence | evidence_of(evidence, "the grammar")
        return changed

    def with_lists(self, lists: Mapping[str, Any]) -> Grammar:
        """Return a copy with other entries in some lists. Only the new entries are spelled again.

        Raises:
            GrammarError: the grammar has no list of this name, or the list is empty.
        """
        changed = copy.copy(self)
        new = {name: _entries(name, entries) for name, entries in lists.items()}
        unknown = sorted(new.keys() - self.lists.keys())
        if unknown:
            raise GrammarError(f"the grammar has no list {unknown[0]!r}; it has {sorted(self.lists)}")
        new |= glued(new, self.lists)  # derived lists of templates: these lists with letters before or after each entry
        changed.lists = {**self.lists, **new}
        are_texts = all(isinstance(text, str) for name in new for text, _ in (*new[name], *self.lists[name]))
        changed._network = self._network.with_lists(new) if are_texts else Network(self.intents, changed.lists)
        changed._compiled, changed._symbols = weakref.WeakKeyDictionary(), None
        return changed

    def compiled(
        self, tokenizer_or_processor: Any, vocab_size: int | None = None, price: float = FORBIDDEN, strict: bool = False
    ) -> CompiledGrammar:
        """Compile the grammar to the tokens of a recogniser. The result is cached.

        Args:
            tokenizer_or_processor: the recogniser's tokenizer or processor.
            vocab_size: number of token ids of the language model that is used with the grammar.
            price: the penalty (natural log) for leaving the grammar, subtracted once. With the default, a transcript only
                leaves the grammar if no path in the grammar remains.
            strict: whether words that the recogniser can't write raise an error instead of a warning.

        Raises:
            GrammarError: the recogniser can write no sentence.
        """
        tokenizer = tokenizer_of(tokenizer_or_processor)
        kept = self._compiled.setdefault(tokenizer, {})
        key = (len(tokenizer), vocab_size, price, strict)
        if key not in kept:
            while len(kept) >= KEPT:
                del kept[next(iter(kept))]
            kept[key] = CompiledGrammar(self._network, speller_of(tokenizer, vocab_size), price, strict)
        return kept[key]

    def reading(self, text: str) -> Reading | None:
        """Return the meaning of a text; None if the text isn't in the grammar.

        Case and punctuation marks after words are ignored. `first` and `last` of slots are word indices; a punctuation mark
        between spaces doesn't count as a word.
        """

        def units(said: str) -> tuple[Any, ...]:
            return tuple(bare for word in said.casefold().split() if (bare := word.lstrip("¿¡").rstrip(_MARKS)))

        if self._symbols is None:
            spellings: dict[Any, dict[tuple[Any, ...], Value]] = {}
            for symbol in self._network.symbols - {FREE}:
                for said, value in self._network.entries(symbol):
                    spellings.setdefault(symbol, {}).setdefault(units(said) or ("",), value)
            self._symbols = Symbols(spellings, lambda units, place: min(place + 1, len(units)), lambda units, place: place)
        return self._network.reading(list(units(text)), self._symbols)

    def __repr__(self) -> str:
        lists = {name: len(entries) for name, entries in self.lists.items()}
        return f"Grammar(intents={[*self.intents]}, lists={lists})"

    def __copy__(self) -> Grammar:
        """Return a copy that shares everything. (The default copy would build the network again, in `__setstate__`.)"""
        changed = Grammar.__new__(Grammar)
        changed.__dict__.update(self.__dict__)
        return changed

    def __getstate__(self) -> dict[str, Any]:
        return {"intents": self.intents, "lists": self.lists, "evidence": self.evidence}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def _entries(name: str, entries: Any) -> list[tuple[Any, Value]]:
    """Return a list's entries as pairs (spoken text, value). Raises GrammarError if the list is empty or an entry invalid."""
    if isinstance(entries, str):
        raise GrammarError(f"the list {name!r} should be a list of texts, got the text {entries!r}; write [{entries!r}]")
    items: Iterable[Any] = entries.items() if isinstance(entries, Mapping) else entries
    pairs: list[tuple[Any, Value]] = []
    for item in items:
        said, value = item if isinstance(item, tuple) and len(item) == 2 else (item, None)
        if isinstance(said, str):
            if not said.strip():
                raise GrammarError(f"the list {name!r} has an empty entry; leave it out")
            pairs.append((said, said if value is None else value))
        else:
            try:
                pairs.append((expression_of(said), value))
            except TypeError as error:
                raise GrammarError(f"the list {name!r}: {error}") from None
    if not pairs:
        raise GrammarError(f"the list {name!r} is empty; give it an entry")
    return pairs
