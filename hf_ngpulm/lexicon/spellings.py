"""Spell the words of an LM in the tokens of a speech recogniser."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..common.checks import check, one_of
from ..errors import NGramFormatError
from ..text.spelling import Speller, speller_of
from ..text.vocabulary import tokenizer_name

CASES = ("auto", "keep", "lower", "upper")
LexiconSource = Mapping[str, Any] | Iterable[str] | str | os.PathLike[str] | None
WORDS_PER_BATCH = 1 << 14
SAMPLE = 2000  # words whose case is compared with the tokenizer's
SHOWN = 5  # words named in messages
# Words count as in the wrong case if another case takes this factor fewer tokens.
LONGER = 1.5


class Boundaries(NamedTuple):
    """Word boundaries in a vocabulary of `V` tokens. A boundary is after a delimiter, or before a token with a mark."""

    begins_word: np.ndarray  # bool [V], whether each token has the mark; all false for a vocabulary with a delimiter
    delimiter: int | None  # id of the delimiter, or None

    @property
    def delimiter_id(self) -> int:
        """The id of the delimiter for the native core, or -1 if there is no delimiter."""
        return -1 if self.delimiter is None else self.delimiter


class BadSpelling(ValueError):
    """Raised if tokens don't spell a single word. The message says why."""


@dataclass(frozen=True)
class Lexicon:
    """The spellings of words."""

    boundaries: Boundaries  # word boundaries in the vocabulary
    words: np.ndarray  # int64 [P], the index of each spelling's word
    offsets: np.ndarray  # int64 [P + 1], start of each spelling in `tokens`
    tokens: np.ndarray  # int32, all spellings concatenated
    # words without a spelling, because the tokenizer can't write them or the caller's lexicon lacks them
    unspelled: tuple[str, ...]
    unknown: tuple[str, ...]  # words of the caller's lexicon that the LM lacks; they stay unknown

    @property
    def num_words(self) -> int:
        """Number of words with a spelling."""
        return len(np.unique(self.words))


def make_lexicon(
    words: Sequence[str],
    tokenizer: Any,
    source: LexiconSource = None,
    vocab_size: int | None = None,
    case: str = "auto",
    cuttings: int = 1,
    may_be_empty: bool = False,
) -> Lexicon:
    """Spell the words of an LM.

    Args:
        words: the LM's words, without duplicates.
        tokenizer: the speech recogniser's tokenizer. It spells words that have no spelling in `source`.
        source: the words and their spellings. None lets the tokenizer spell all words. A list of words makes all other words
            unknown. A dictionary maps words to one or several spellings (text for the tokenizer, or lists of token ids or
            pieces). A path names a file in flashlight's format, with lines of a word, a tab and the pieces of a spelling.
        vocab_size: number of token ids that the recogniser's LMs score; by default the size of the tokenizer's vocabulary.
        case: "lower" or "upper" changes the LM's words before they are spelled. "keep" leaves the words unchanged. "auto"
            (default) also leaves the words unchanged, but raises an error for words in a case that the tokenizer doesn't write.
        cuttings: number of segmentations per word: the tokenizer's own segmentation, and further segmentations with the fewest
            pieces. Uncertain recognisers mix segmentations.
        may_be_empty: whether to accept that no word has a spelling.

    Raises:
        ValueError: `cuttings` isn't 1 for a vocabulary of letters (with a delimiter between words).
        NGramFormatError: no word can be spelled, words are in another case, or the lexicon is empty or can't be read.
    """
    check("case", case, one_of(*CASES))
    speller = speller_of(tokenizer, vocab_size)
    boundaries = boundaries_of(speller)
    if cuttings != 1 and boundaries.delimiter is not None:
        raise ValueError(
            f"cuttings={cuttings} is for vocabularies of pieces with a mark where words begin; the tokenizer "
            f"{tokenizer_name(tokenizer)!r} has a delimiter between words, which are spelled in one way"
        )
    change: Callable[[str], str] = {"lower": str.lower, "upper": str.upper}.get(case, str)
    written = list(map(change, words))
    ways, unknown = (list(enumerate(written)), ()) if source is None else _ways(source, words, written)
    by_tokenizer = [way for way in ways if isinstance(way[1], str)]
    pairs: list[tuple[int, tuple[int, ...]]] = []
    for n, spelling in (way for way in ways if not isinstance(way[1], str)):
        try:
            pairs.append((n, bounded(_ids(spelling, speller), boundaries)))
        except BadSpelling as problem:
            raise NGramFormatError(f"the spelling {list(spelling)} of {words[n]!r} in the lexicon {problem}") from None
    spelled = _spelled(by_tokenizer, speller, boundaries, cuttings)
    if case == "auto" and by_tokenizer:
        _check_case(by_tokenizer, spelled, speller, boundaries)
    pairs = sorted(dict.fromkeys([*pairs, *spelled]), key=lambda pair: pair[0])
    if not pairs and not may_be_empty:
        raise NGramFormatError(
            f"the tokenizer {tokenizer_name(speller.tokenizer)!r} can't write any of the LM's {len(words)} words, such as "
            f"{_shown(words)}; is this the tokenizer of the ASR model?"
        )
    numbers = np.array([n for n, _ in pairs], dtype=np.int64)
    offsets = np.cumsum([0, *(len(spelling) for _, spelling in pairs)], dtype=np.int64)
    tokens = np.array([token for _, spelling in pairs for token in spelling], dtype=np.int32)
    has_spelling = set(numbers.tolist())
    unspelled = tuple(word for n, word in enumerate(words) if n not in has_spelling)
    return Lexicon(boundaries, numbers, offsets, tokens, unspelled, unknown)


def _ways(source: LexiconSource, words: Sequence[str], written: Sequence[str]) -> tuple[list[tuple[int, Any]], tuple[str, ...]]:
    """Return pairs of a word's index and a spelling. Also return the words of `source` that the LM lacks.

    A spelling comes from `source`, or is a text that the tokenizer must spell. `written`: the LM's words after `make_lexicon`
    has changed their case.
    """
    if isinstance(source, str | os.PathLike):
        source = read_lexicon_file(source)
    entries: Mapping[str, Any] = source if isinstance(source, Mapping) else dict.fromkeys(() if source is None else source, ())
    if not entries:
        raise NGramFormatError("the lexicon is empty: it should have a word at least; lexicon=None spells all of the LM's")
    ways: list[tuple[int, Any]] = []
    lm_words: set[str] = set()
    for n, names in enumerate(zip(words, written)):
        name = next((name for name in names if name in entries), None)
        if name is None:
            continue
        lm_words.update(names)
        entry = entries[name]
        if not isinstance(entry, str) and (entry is None or not len(entry)):
            entry = written[n]
        one = isinstance(entry, str) or isinstance(entry[0], int | np.integer)
        ways += [(n, entry)] if one else [(n, way) for way in entry]
    if not lm_words:
        shown = _shown(list(entries)), _shown(words)
        raise NGramFormatError(f"no word of the lexicon (such as {shown[0]}) is among the LM's (such as {shown[1]})")
    return ways, tuple(word for word in entries if word not in lm_words)


def boundaries_of(speller: Speller) -> Boundaries:
    """Return the word boundaries in a tokenizer's vocabulary. Raises NGramFormatError if the vocabulary has neither marks of
    word beginnings nor a delimiter.
    """
    if not speller.has_words:
        raise NGramFormatError(
            f"the tokenizer {tokenizer_name(speller.tokenizer)!r} doesn't say where words end: it has no pieces that begin "
            "with ▁ or Ġ, and no word delimiter; use an LM over its tokens"
        )
    pieces = speller.vocabulary.pieces or ()
    marked = [speller.mark is not None and piece is not None and piece.startswith(speller.mark) for piece in pieces]
    return Boundaries(np.array(marked, dtype=bool), speller.delimiter)


def bounded(tokens: Sequence[int], boundaries: Boundaries) -> tuple[int, ...]:
    """Return tokens as a spelling. If the vocabulary has a delimiter, the spelling ends in the delimiter. Raises BadSpelling if
    the tokens don't spell a single word.
    """
    delimiter = boundaries.delimiter
    if delimiter is None:
        if not tokens or not boundaries.begins_word[tokens[0]] or boundaries.begins_word[list(tokens[1:])].any():
            raise BadSpelling("should begin with a piece that has the mark of words' beginnings (▁, Ġ), and have no other such")
        return tuple(tokens)
    letters = tuple(tokens[:-1] if tokens and tokens[-1] == delimiter else tokens)
    if not letters or delimiter in letters:
        raise BadSpelling("should have at least one token, and the delimiter of words at its end only")
    return (*letters, delimiter)


def read_lexicon_file(path: str | os.PathLike[str]) -> dict[str, list[list[str]]]:
    """Return words and their spellings in pieces, from a file of lines `word<TAB>piece piece ...`. Raises NGramFormatError if a
    line lacks the tab or the spelling, or the file has no entry or isn't UTF-8.
    """
    entries: dict[str, list[list[str]]] = {}
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise NGramFormatError(f"{path}: not UTF-8 text: {error}") from None
    for number, line in enumerate(lines, start=1):
        word, _, spelling = (part.strip() for part in line.partition("\t"))
        if word and spelling:
            entries.setdefault(word, []).append(spelling.split())
        elif line.strip():
            raise NGramFormatError(f"{path}, line {number}: expected a word, a tab and its pieces, got {line[:60]!r}")
    if not entries:
        raise NGramFormatError(f"{path}: the lexicon is empty; it should have a line for each spelling of a word")
    return entries


def _ids(spelling: Sequence[Any], speller: Speller) -> list[int]:
    pieces = speller.vocabulary.pieces or ()
    by_piece = speller.ids if speller.delimiter is None else {**speller.ids, str(pieces[speller.delimiter]): speller.delimiter}
    ids = []
    for token in spelling:
        if isinstance(token, str):
            if token not in by_piece:
                raise BadSpelling(f"has {token!r}, which is no piece of the tokenizer")
            ids.append(by_piece[token])
        elif not 0 <= int(token) < speller.vocabulary.size:
            raise BadSpelling(f"has the id {token}, which is outside the vocabulary 0..{speller.vocabulary.size - 1}")
        else:
            ids.append(int(token))
    return ids


def _spelled(
    texts: Sequence[tuple[int, str]], speller: Speller, boundaries: Boundaries, cuttings: int = 1
) -> list[tuple[int, tuple[int, ...]]]:
    """Return the tokenizer's spellings of texts that it can write as single words, up to `cuttings` per text.

    `texts` and the result are pairs of a word's index and the text or spelling.
    """
    blank = " " if speller.mark == "Ġ" else ""
    spellings = []
    for first in range(0, len(texts), WORDS_PER_BATCH):
        batch = texts[first : first + WORDS_PER_BATCH]
        for (n, _), tokens, missing in zip(batch, *speller.encode([blank + text for _, text in batch])):
            if missing:
                continue
            ways = [tokens]
            if cuttings > 1:
                others = speller.segmentations(speller.surface(tokens), cuttings)
                ways += [way for way in others if way != tokens][: cuttings - 1]
            for way in ways:
                try:
                    spellings.append((n, bounded(way, boundaries)))
                except BadSpelling:
                    continue
    return spellings


def _check_case(
    texts: Sequence[tuple[int, str]], spelled: Sequence[tuple[int, tuple[int, ...]]], speller: Speller, boundaries: Boundaries
) -> None:
    """Raise an error if another case suits the tokenizer better. `texts` has pairs of a word's index and the word's text,
    `spelled` has pairs of a word's index and its spelling.

    Another case is better if the tokenizer can write most words only in that case, or with far fewer tokens in that case.
    """
    lengths = {n: len(tokens) for n, tokens in spelled}
    step = max(1, len(texts) // SAMPLE)
    sample = [(n, text) for n, text in texts[::step] if text.lower() != text.upper()]
    for name, change in (("lower", str.lower), ("upper", str.upper)):
        other = [(n, change(text)) for n, text in sample if change(text) != text]
        if len(other) <= len(sample) / 2:
            continue
        changed = {n: len(tokens) for n, tokens in _spelled(other, speller, boundaries)}
        better = [n for n, _ in other if n in changed and (n not in lengths or lengths[n] >= LONGER * changed[n])]
        if len(better) > len(other) / 2:
            here = "capitals" if name == "lower" else "small letters"
            there = "small letters" if name == "lower" else "capitals"
            raise NGramFormatError(
                f"the LM's words are in {here} ({_shown([text for _, text in texts])}), which the tokenizer "
                f"{tokenizer_name(speller.tokenizer)!r} can't write, or only letter by letter; it writes {there}. Pass "
                f'case="{name}" (--case {name}) to spell the words so, or case="keep" to take them as they are'
            )


def _shown(words: Sequence[str]) -> str:
    return ", ".join(map(repr, words[:SHOWN]))
