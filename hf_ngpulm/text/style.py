"""Compare the style of texts with a recogniser's style.

A language model trained on text with capitals is useless for a recogniser that writes only lowercase.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .words import WORD_MARKS

FEW, MANY = 0.02, 0.2  # shares of sentences or letters: below the first a feature is absent, above the second usual
_MARK = re.compile("|".join(map(re.escape, WORD_MARKS)))
CASED_PIECES = 0.05  # share of capitalised word-initial pieces that makes a vocabulary cased


@dataclass(frozen=True)
class TextStyle:
    """Describe the style of texts. An attribute is None if it isn't known."""

    upper: float | None  # share of capital letters among letters that have case
    cased: bool | None  # whether the texts have both lowercase and capital letters
    punctuated: float | None  # share of texts that end in a punctuation mark
    digits: float | None  # share of texts with digits


def style_of(texts: Iterable[str]) -> TextStyle:
    """Measure the style of texts."""
    small = capitals = ends = digits = total = 0
    for text in texts:
        total += 1
        small += sum(map(str.islower, text))
        capitals += sum(map(str.isupper, text))
        ends += ends_marked(text)
        digits += any(map(str.isdecimal, text))
    if not total:
        return TextStyle(None, None, None, None)
    letters = small + capitals
    upper = capitals / letters if letters else None
    return TextStyle(upper, None if upper is None else 0.005 < upper < 0.9, ends / total, digits / total)


def ends_marked(text: str) -> bool:
    """Return whether a text ends in a punctuation mark."""
    return unicodedata.category(text.rstrip()[-1:] or " ") == "Po"


def begins_capital(text: str) -> bool | None:
    """Return whether a text begins with a capital letter; None if it begins with a digit or a letter without case."""
    first = next((character for character in text if character.isalnum()), "")
    return True if first.isupper() else False if first.islower() else None


def style_written_by(tokenizer: Any) -> TextStyle:
    """Derive from a tokenizer's pieces the style of the texts that a recogniser was trained on."""
    special = set(tokenizer.all_special_tokens)
    pieces = [piece for piece in tokenizer.get_vocab() if piece not in special and not piece.startswith("<")]
    if _is_byte_level(pieces):  # such pieces are those of a text model, and can write anything
        return TextStyle(None, None, None, None)
    bare = [_MARK.sub("", piece) for piece in pieces]
    longer = [piece for piece in bare if len(piece) > 1 and piece.isalpha()]
    letters = "".join(bare)
    small, capital = any(map(str.islower, letters)), any(map(str.isupper, letters))
    marks = any(piece in (".", ",", "?", "!", "。", "،", "؟") for piece in bare)
    punctuated, digits = None if marks else 0.0, None if any(map(str.isdecimal, letters)) else 0.0
    if small != capital:
        return TextStyle(float(capital), False, punctuated, digits)
    cased = sum(piece[0].isupper() for piece in longer) / len(longer) > CASED_PIECES if longer and small else None
    return TextStyle(None, cased, punctuated, digits)


def mismatches(texts: Iterable[str], recogniser: Any) -> list[str]:
    """Return warnings about differences between the style of the texts and the recogniser's style. A warning names a remedy.

    Args:
        texts: a sample of the training text.
        recogniser: some of the recogniser's transcripts, or its tokenizer. A tokenizer shows less of the style.
    """
    here = style_of(texts)
    by_pieces = hasattr(recogniser, "get_vocab")
    there = style_written_by(recogniser) if by_pieces else style_of(recogniser)
    who = "the tokenizer's pieces show that the recogniser writes" if by_pieces else "the recogniser's transcripts are"
    warnings: list[str] = []
    if here.upper is not None:
        if there.cased is False:
            capitals = there.upper is not None and there.upper > 0.5
            share = 1 - here.upper if capitals else here.upper
            if share > FEW / 4:
                kind, remedy = ("capitals", "upper") if capitals else ("small letters", "lower")
                warnings.append(
                    f"{share:.0%} of the text's letters are {'small' if capitals else 'capitals'}, but {who} {kind} only; "
                    f"normalise the text with {remedy!r}"
                )
        elif there.cased and not here.cased:
            warnings.append(
                f"the text is all in {'capitals' if here.upper > 0.5 else 'small letters'}, but {who} mixed case; use text "
                "with its original case"
            )
    if here.punctuated is not None and there.punctuated is not None:
        if here.punctuated > MANY and there.punctuated < FEW:
            warnings.append(
                f"{here.punctuated:.0%} of the sentences end in a punctuation mark, but {who} none; "
                "normalise the text with 'no-punctuation'"
            )
        elif not by_pieces and here.punctuated < FEW and there.punctuated > MANY:
            warnings.append(f"the text has no punctuation, but {who} punctuated; use text with its punctuation")
    if here.digits is not None and there.digits is not None and here.digits > MANY / 4 and there.digits < FEW / 4:
        warnings.append(
            f"{here.digits:.0%} of the sentences have digits, but {who} {'none' if by_pieces else 'without'}; "
            "spell numbers as the recogniser does"
        )
    elif not by_pieces and here.digits is not None and there.digits is not None and here.digits < FEW and there.digits > MANY:
        warnings.append(
            f"the text has no digits, but {there.digits:.0%} of the recogniser's transcripts have; write the text's numbers, "
            "if there are any, as the recogniser does"
        )
    return warnings


def _is_byte_level(pieces: list[str]) -> bool:
    """Return whether pieces represent bytes by characters. Then "Ġ" represents a space, and "Ċ" a line end."""
    return "Ġ" in pieces and "Ċ" in pieces


def unwritable_letters(texts: Iterable[str], tokenizer: Any) -> tuple[float, list[str]]:
    """Return the share of letters that no piece of a tokenizer contains. Also return these letters, the most frequent first."""
    pieces = list(tokenizer.get_vocab())
    if _is_byte_level(pieces) or "<0x00>" in pieces:  # bytes write anything
        return 0.0, []
    written = set("".join(pieces))
    letters = Counter(character for text in texts for character in text if character.isalpha())
    strange = [(letter, count) for letter, count in letters.most_common() if letter not in written]
    return sum(count for _, count in strange) / max(sum(letters.values()), 1), [letter for letter, _ in strange]
