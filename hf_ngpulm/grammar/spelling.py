"""Spell the symbols of a grammar in the tokens of a recogniser.

Each word may have any case that the recogniser can write. An entry of a list is spelled as a whole. Punctuation marks and word
delimiters between words are skipped.
"""

from __future__ import annotations

import unicodedata
import warnings
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

from ..errors import GrammarError
from ..text.spelling import Speller
from .expressions import Value
from .network import FREE, Network, Symbols

MARKS = (".", ",", "?", "!", ";", ":", "...", "…", "-")
# Words that recognisers which write digits write as a number (English).
_NUMBERS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
)  # fmt: skip
_TENS = ("thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
DIGITS = {word: str(number) for number, word in enumerate(_NUMBERS)} | {word: f"{tens}0" for tens, word in enumerate(_TENS, 3)}
NAMED = 5  # maximum number of unwritable texts in a message
Spellings = dict[tuple[int, ...], Value]
Sequences: TypeAlias = "list[tuple[int, ...]]"
_Sequences: TypeAlias = "dict[str, tuple[tuple[int, ...], ...]]"


class SpelledSymbols(NamedTuple):
    """The spellings of a network's symbols."""

    classes: dict[Any, tuple]  # from symbols to classes of spellings; each spelling is in one class
    members: dict[Any, tuple[Sequences, Sequences]]  # each class's token sequences: anywhere, and only at the beginning
    spellings: dict[Any, Spellings]  # each writable symbol's token sequences, with the entry's value
    initial: dict[Any, Spellings]  # those only at the beginning of a transcript, where the blank before a word may be missing
    marks: frozenset[int]  # token ids of punctuation marks, which may stand after any word
    left_out: dict[str, str]  # texts that the recogniser can't write, with the characters that it lacks

    def symbols(self, speller: Speller) -> Symbols:
        """Return the symbols for `Network.reading` of transcripts in token ids."""
        between = self.marks if speller.delimiter is None else {speller.delimiter, *self.marks}
        size, begins, delimiter = len(speller.begins_word), speller.begins_word, speller.delimiter

        def skipped(units: list[int], place: int) -> int:
            while place < len(units) and units[place] in between:
                place += 1
            return place

        def free_end(units: list[int], place: int) -> int:
            if place == len(units) or units[place] in between:
                return place
            # The first word may lack its blank.
            if delimiter is None and not _begins(units[place]) and place != skipped(units, 0):
                return place
            place += 1
            while place < len(units):
                # Without a delimiter, a mark within a word belongs to it ("Est-ce").
                after = place if delimiter is not None else skipped(units, place)
                if after == len(units) or units[after] in between or _begins(units[after]):
                    break
                place = after + 1
            return place

        def _begins(token: int) -> bool:
            return 0 <= token < size and begins[token]

        separators = None if delimiter is None else frozenset(between)
        return Symbols(self.spellings, free_end, skipped, self.initial, separators)


def spelled(network: Network, speller: Speller, strict: bool) -> SpelledSymbols:
    """Spell all symbols of a network.

    Args:
        strict: whether texts that the recogniser can't write raise an error instead of a warning.

    Raises:
        GrammarError: with `strict`, the recogniser can't write a text.
    """
    every = sorted((symbol for symbol in network.symbols if symbol is not FREE), key=repr)
    entries = {symbol: network.entries(symbol) for symbol in every}
    texts = dict.fromkeys(text for of_symbol in entries.values() for text, _ in of_symbol)
    inside, beginning, unknown = _token_sequences(texts, speller)
    left_out: dict[str, str] = {}
    for of_symbol in entries.values() if unknown else ():
        # A value with several texts, such as a number in words and in digits, needs only one writable text.
        writable = {text if value is None else value for text, value in of_symbol if text in inside}
        left_out |= {text: unknown[text] for text, value in of_symbol if (text if value is None else value) not in writable}
    if left_out:
        few = ", ".join(f"{text!r} ({what!r})" for text, what in list(left_out.items())[:NAMED])
        message = f"the recogniser can't write {len(left_out)} of the grammar's {len(texts)} words and entries: {few}"
        if strict:
            raise GrammarError(f"{message}; write them differently")
        warnings.warn(f"{message}; sentences with them are left out", stacklevel=4)
    spellings: dict[Any, Spellings] = {}
    initial: dict[Any, Spellings] = {}
    for into, sequences in ((spellings, inside), (initial, beginning)):
        for symbol, of_symbol in entries.items() if sequences else ():
            kept: Spellings = {}
            for text, value in of_symbol:
                for tokens in sequences.get(text, ()):
                    kept.setdefault(tokens, value)
            if kept:
                into[symbol] = kept
    marks = frozenset(speller.ids[mark] for mark in MARKS if mark in speller.ids and speller.delimiter != speller.ids[mark])
    return SpelledSymbols(*_disjoint(_merged(spellings), spellings, initial), spellings, initial, marks, left_out)


def _merged(spellings: dict[Any, Spellings]) -> dict[Any, Any]:
    """Return the class of each symbol. Words that share a spelling have the same class.

    `spellings` is changed: each word gets the spellings of all words of its class.
    """
    classes: dict[Any, Any] = {}
    owners: dict[tuple[int, ...], str] = {}
    members: dict[str, list[str]] = {}
    for symbol in spellings:
        if not isinstance(symbol, str):
            classes[symbol] = symbol
            continue
        others = {classes[owners[tokens]] for tokens in spellings[symbol] if tokens in owners}
        name = min(others, default=symbol)
        members.setdefault(name, []).append(symbol)
        for other in others - {name}:
            members[name] += members.pop(other)
        for member in members[name]:
            classes[member] = name
        owners.update(dict.fromkeys(spellings[symbol], symbol))
    for words in members.values():
        if len(words) > 1:
            union = {tokens: value for word in words for tokens, value in spellings[word].items()}
            spellings.update(dict.fromkeys(words, union))
    return classes


def _disjoint(
    names: dict[Any, Any], *tables: dict[Any, Spellings]
) -> tuple[dict[Any, tuple], dict[Any, tuple[Sequences, Sequences]]]:
    """Divide the spellings of all symbols into classes, so that equal spellings lead to one state.

    Spellings that belong to the same set of names form a class. For example, if a word and an entry share a spelling, this
    spelling is in another class than the word's other spellings.

    Args:
        names: the name of each symbol. Symbols with the same name have the same spellings.
        tables: the spellings of each symbol anywhere in a transcript, and at its beginning.

    Returns:
        The classes of each symbol, and for each class its spellings in each of the two tables.
    """
    symbols = {name: symbol for symbol, name in names.items()}
    members: dict[Any, tuple[Sequences, Sequences]] = defaultdict(lambda: ([], []))
    parts: dict[Any, dict[Any, None]] = {name: {} for name in symbols}
    for number, table in enumerate(tables):
        seen: dict[tuple[int, ...], Any] = {}
        shared: dict[tuple[int, ...], list[Any]] = {}
        for name, symbol in symbols.items():
            spellings = table.get(symbol, {})
            for tokens in seen.keys() & spellings.keys():
                shared.setdefault(tokens, [seen[tokens]]).append(name)
            seen.update(dict.fromkeys(spellings, name))
        for tokens, of in shared.items():
            members[frozenset(of)][number].append(tokens)
            for name in of:
                parts[name][frozenset(of)] = None
        for name, symbol in symbols.items():
            spellings = table.get(symbol, {})
            rest = [tokens for tokens in spellings if tokens not in shared] if shared else spellings
            if rest:
                members[name][number].extend(rest)
                parts[name][name] = None
    return {symbol: tuple(parts[name]) for symbol, name in names.items()}, members


def _token_sequences(texts: Iterable[str], speller: Speller) -> tuple[_Sequences, _Sequences, dict[str, str]]:
    """Return three mappings from texts. The first has each text's token sequences anywhere in a transcript. The second has
    further token sequences for the beginning of a transcript. The third has the unknown characters of texts that can't be
    written.
    """
    inside: _Sequences = {}  # tuples, which the garbage collector stops tracking, unlike lists
    beginning: _Sequences = {}
    unknown: dict[str, str] = {}
    writes = _Writes(*(not speller.encode([letter])[1][0] for letter in "Aa1-"))
    forms = [(text, form) for text in texts for form in _forms(unicodedata.normalize("NFC", text), writes)]
    cut = str.split if speller.has_words else _whole
    # Each word is spelled once, as the names in a long list share most words.
    words = list(dict.fromkeys(word for _, form in forms for word in cut(form)))
    blank = " " if speller.mark == "Ġ" else ""
    delimiter = () if speller.delimiter is None else (speller.delimiter,)
    later, unwritable = _spelled_words(words, blank, speller)
    firsts = dict.fromkeys(word for _, form in forms for word in cut(form)[:1]) if blank else {}
    first = _spelled_words(list(firsts), "", speller)[0]
    for text, form in forms:
        each = cut(form)
        missing = " ".join([unwritable[word] for word in each if word in unwritable]) if unwritable else ""
        if missing or not each:
            unknown.setdefault(text, missing or form)
            continue
        rest = tuple([token for word in each[1:] for token in (*delimiter, *later[word])])
        inside[text] = (*inside.get(text, ()), (*later[each[0]], *rest))
        if each[0] in first:
            beginning[text] = (*beginning.get(text, ()), (*first[each[0]], *rest))
    return inside, beginning, unknown


def _whole(text: str) -> list[str]:
    return [text]


def _spelled_words(words: list[str], before: str, speller: Speller) -> tuple[dict[str, list[int]], dict[str, str]]:
    """Return the tokens of each word after the text `before`, and the unknown characters of each word that can't be written."""
    every = list(zip(words, *speller.encode([before + word for word in words])))
    tokens = {word: ids for word, ids, missing in every if ids and not missing}
    return tokens, {word: missing or word for word, ids, missing in every if missing or not ids}


class _Writes(NamedTuple):
    """The characters that a recogniser can write."""

    capitals: bool
    small: bool
    digits: bool
    hyphens: bool


def _forms(text: str, writes: _Writes) -> Iterable[str]:
    """Return the forms of a text that a recogniser may write."""
    if not (writes.capitals and writes.small):
        forms = [text.upper() if writes.capitals else text.lower() if writes.small else text]
    else:
        words, low = text.split(" "), text.lower()
        each = " ".join(word[:1].upper() + word[1:] for word in words)
        forms = [text, low, each, text[:1].upper() + text[1:], low[:1].upper() + low[1:]]
    if writes.digits and not DIGITS.keys().isdisjoint(text.lower().split()):
        forms += [changed for form in forms for changed in _in_digits(form, writes.hyphens)]
    return dict.fromkeys(forms)


def _in_digits(text: str, hyphens: bool) -> Iterable[str]:
    """Yield a text with its numbers in digits, as in "12 ounce" and "12-ounce"."""
    words = [DIGITS.get(word.lower(), word) for word in text.split()]
    yield " ".join(words)
    if hyphens and len(words) > 1:
        yield "".join(word + ("-" if word.isdecimal() else " ") for word in words[:-1]) + words[-1]
