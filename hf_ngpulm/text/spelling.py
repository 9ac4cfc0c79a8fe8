"""Spell phrases with a tokenizer: find the token sequences that a speech recogniser may output for each phrase."""

from __future__ import annotations

import copy
import re
import unicodedata
import weakref
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from .encoding import SilentlyDropped, encode_batch
from .vocabulary import Vocabulary, tokenizer_of
from .words import UNSPACED, WordSplitter

_UNSPACED = re.compile(f"[{UNSPACED}\uac00-\ud7af]")  # in Hangul particles follow a word without a blank
_BYTE = re.compile("<0x[0-9A-F]{2}>")
CASES = ("auto", "keep", "any")


class Spelling(NamedTuple):
    """Hold one spelling of a phrase."""

    phrase: int  # index of the phrase
    tokens: tuple[int, ...]  # token ids
    length: int  # number of tokens in the tokenizer's own spelling of the phrase, without the first `free` tokens
    free: int  # number of leading tokens that only mark the beginning of a word
    bounded: bool  # whether a word must end after the phrase
    initial: bool  # whether this spelling occurs only at the beginning of a transcript


class Speller:
    """Spell phrases with a tokenizer. `tokenizer`: the tokenizer of a speech recogniser. `vocab_size`: number of token ids that
    spellings may use, from 0; by default the size of the tokenizer's vocabulary.
    """

    def __init__(self, tokenizer: Any, vocab_size: int | None = None) -> None:
        self.tokenizer = tokenizer
        self.vocabulary = Vocabulary.of(tokenizer, vocab_size)
        splitter = WordSplitter(tokenizer)
        self.mark = splitter.mark
        pieces = self.vocabulary.pieces or ()
        special = set(tokenizer.all_special_ids)
        self.ids = {piece: token for token, piece in enumerate(pieces) if piece and token not in special}
        self.longest = max(map(len, self.ids), default=0)
        self.delimiter = None
        if self.mark is None and splitter.delimiter in pieces:
            self.delimiter = pieces.index(splitter.delimiter)
        self.begins_word = [self._begins_word(piece) for piece in pieces]
        self.silent = SilentlyDropped(tokenizer)
        self.has_words = self.mark is not None or self.delimiter is not None

    def _begins_word(self, piece: str | None) -> bool:
        """Return whether a word ends before this piece."""
        if not piece or _BYTE.fullmatch(piece):
            return not piece
        if self.mark is None:
            return self.delimiter is not None and piece == self.vocabulary.pieces[self.delimiter]  # type: ignore[index]
        if piece.startswith(self.mark):
            return True
        if self.mark == "Ġ":  # characters stand for bytes; only ASCII characters stand for themselves
            return piece[0] in "Ċĉ" or (piece[0].isascii() and not piece[0].isalnum())
        return unicodedata.category(piece[0])[0] not in "LNM"

    def spell(
        self, texts: Sequence[str], whole_words: bool, case: str = "auto", tokenizations: int = 1
    ) -> tuple[list[Spelling], dict[int, str]]:
        """Return the spellings of phrases. Also return a mapping from the index of each phrase without a spelling to the
        characters that the tokenizer can't write.

        Args:
            texts: the phrases.
            whole_words: whether a phrase must begin where a word begins, and end where a word ends.
            case: "auto" spells a phrase as it is. If the tokenizer can't write it, "auto" tries lowercase, then uppercase.
                "any" spells a phrase in every case. Any other value spells phrases only as they are.
            tokenizations: maximum number of segmentations of a phrase into pieces. The tokenizer's own segmentation comes
                first.
        """
        spellings: dict[int, list[Spelling]] = {}
        unknown: dict[int, str] = {}
        forms = [(n, form) for n, text in enumerate(texts) for form in (_forms(text) if case == "any" else [text])]
        self._spell_forms(forms, whole_words, tokenizations, spellings, unknown)
        for change in (str.lower, str.upper) if case == "auto" else ():
            others = [(n, change(text)) for n, text in enumerate(texts) if n not in spellings and change(text) != text]
            self._spell_forms(others, whole_words, tokenizations, spellings, unknown)
        return [spelling for n in sorted(spellings) for spelling in spellings[n]], {
            n: unknown[n] for n in unknown if n not in spellings
        }

    def _spell_forms(
        self,
        forms: list[tuple[int, str]],
        whole_words: bool,
        tokenizations: int,
        found: dict[int, list[Spelling]],
        unknown: dict[int, str],
    ) -> None:
        blank = " " if self.mark == "Ġ" else ""
        for (phrase, form), tokens, missing in zip(forms, *self.encode([blank + form for _, form in forms])):
            if missing or not tokens:
                unknown.setdefault(phrase, missing or form)
                continue
            bounded = whole_words and not _UNSPACED.match(form[-1])
            starts = [(0, tokens)]
            if self.delimiter is not None and whole_words and not _UNSPACED.match(form[0]):
                starts = [(1, [self.delimiter, *tokens])]
            elif self.mark is not None and _UNSPACED.match(form[0]):  # begins anywhere
                starts += [(0, each) for each in self.segmentations(self.surface(tokens).removeprefix(self.mark), 1)]
            spellings = found.setdefault(phrase, [])
            spellings += [Spelling(phrase, tuple(start), len(tokens), free, bounded, False) for free, start in starts]
            if tokenizations > 1 and self.delimiter is None:
                others = self.segmentations(self.surface(tokens), tokenizations)
                others = [each for each in others if each != tokens][: tokenizations - 1]
                spellings += [Spelling(phrase, tuple(each), len(tokens), 0, bounded, False) for each in others]
        if self.mark == "Ġ":  # a transcript may begin without a blank
            known = [(phrase, form) for phrase, form in forms if phrase in found]
            for (phrase, form), tokens, missing in zip(known, *self.encode([form for _, form in known])):
                if tokens and not missing:
                    bounded = whole_words and not _UNSPACED.match(form[-1])
                    found[phrase].append(Spelling(phrase, tuple(tokens), len(tokens), 0, bounded, True))

    def encode(self, texts: list[str]) -> tuple[list[list[int]], list[str]]:
        """Return the token ids of each text, and the characters that the tokenizer can't write."""
        if not texts:
            return [], []
        ids, lengths, unknown = encode_batch(texts, self.tokenizer, self.vocabulary.size)
        self.silent.found_in(texts)
        values, ends = ids.tolist(), lengths.cumsum().tolist()
        rows, missing = [values[first:last] for first, last in pairwise([0, *ends])], [""] * len(texts)
        for n, text in enumerate(texts) if self.silent.dropped else ():
            missing[n] = " ".join(character for character in text if character in self.silent.dropped)
        for n, letters in unknown.items():
            missing[n] = " ".join(dict.fromkeys(letters)) or texts[n]
        return rows, missing

    def surface(self, tokens: Iterable[int]) -> str:
        return "".join(self.vocabulary.pieces[token] or "" for token in tokens)  # type: ignore[index]

    def segmentations(self, surface: str, count: int) -> list[list[int]]:
        """Return up to `count` + 1 segmentations of a text into pieces, with the fewest pieces first."""
        best: list[list[tuple[int, ...]]] = [[()]]
        for end in range(1, len(surface) + 1):
            ways = []
            for begin in range(max(0, end - self.longest), end):
                token = self.ids.get(surface[begin:end])
                if token is not None:
                    ways += [(*way, token) for way in best[begin]]
            best.append(sorted(ways, key=lambda way: (len(way), way))[: count + 1])
        return [list(way) for way in best[-1] if way]


def _forms(text: str) -> list[str]:
    """Return a phrase unchanged, in lowercase, in uppercase and in title case."""
    capitalised = " ".join(word[:1].upper() + word[1:].lower() for word in text.split())
    return list(dict.fromkeys([text, text.lower(), text.upper(), capitalised]))


_spellers: weakref.WeakKeyDictionary[Any, dict[tuple[int, int | None], Speller]] = weakref.WeakKeyDictionary()


def speller_of(tokenizer: Any, vocab_size: int | None = None) -> Speller:
    """Return the speller of a tokenizer or of a processor's tokenizer.

    Spellers are cached, because it takes long to read a large vocabulary.
    """
    tokenizer = tokenizer_of(tokenizer)
    kept = _spellers.setdefault(tokenizer, {})
    key = (len(tokenizer), vocab_size)
    if key not in kept:
        kept[key] = Speller(copy.copy(tokenizer), vocab_size)  # a copy, so that the cache doesn't keep the tokenizer alive
    return kept[key]
