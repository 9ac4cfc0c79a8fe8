"""Refuse texts with too many tokens that are unknown to the tokenizer, and find a normalisation that helps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from .encoding import encode_texts
from .normalisation import normaliser

MOST_UNKNOWN = 0.3  # share of unknown tokens above which a text is refused
SHOWN = 12  # unknown pieces that are named
MENDING = ("lower", "upper", "nfc", "nfkc", "no-punctuation", "lower,no-punctuation", "upper,no-punctuation", "nfkc,lower")
HARDLY = 0.01  # a simpler normalisation is preferred if its share of unknown tokens is at most this much larger
SAMPLE = 1000  # texts that normalisations are tried on


def told(pieces: Counter[str]) -> str:
    """Return the most frequent unknown parts of a text, for a message."""
    most = ", ".join(f"{piece!r} ({count:,} times)" for piece, count in pieces.most_common(SHOWN))
    return most + (f" and {len(pieces) - SHOWN} more" if len(pieces) > SHOWN else "")


def refuse_unwritable(
    tokens: int, unknown: int, pieces: Counter[str], sample: Sequence[str], tokenizer: Any, vocab_size: int, given: Any
) -> None:
    """Refuse a text if too many of its tokens are unknown to the tokenizer.

    Args:
        tokens, unknown: the text's number of tokens, and its number of unknown tokens.
        pieces: counts of the parts that the tokenizer can't write, from `encode_texts`.
        sample: some of the texts, after normalisation.
        given: the normalisation that the caller chose.

    Raises:
        ValueError: more than 30% of the tokens are unknown; the error names a normalisation that helps, if there is one.
    """
    share = _share(tokens, unknown, pieces)
    if share <= MOST_UNKNOWN:
        return
    message = (
        f"{share:.0%} of the text's {tokens:,} tokens are unknown to the tokenizer, and a language model of the rest is of no "
        f"use: {told(pieces)}. To train it all the same pass allow_unknown=True (--allow-unknown); "
    )
    name, left = _mending(sample[:SAMPLE], tokenizer, vocab_size)
    if left > MOST_UNKNOWN:
        raise ValueError(f"{message}no normalisation helps: is this the tokenizer of the ASR model, and text of its language?")
    name = f"{given},{name}" if isinstance(given, str) else name
    also = " beside yours" if given is not None and not isinstance(given, str) else ""
    raise ValueError(
        f"{message}to mend it, pass normalise={name!r}{also} (--normalise {name}), which leaves {left:.0%} unknown"
    )


def _mending(texts: Sequence[str], tokenizer: Any, vocab_size: int) -> tuple[str, float]:
    """Return the simplest normalisation that leaves hardly more unknown tokens than the best normalisation. Also return the
    share of unknown tokens after the returned normalisation.
    """
    shares = {}
    for name in MENDING:
        pieces: Counter[str] = Counter()
        encoded = list(encode_texts(map(normaliser(name), texts), tokenizer, vocab_size, unknown=pieces, workers=1))
        tokens, unknown = (sum(counts) for counts in zip((0, 0), *((ids.size, (ids < 0).sum()) for ids, _ in encoded)))
        shares[name] = _share(tokens, int(unknown), pieces)
    least = min(shares.values())
    return next((name, share) for name, share in shares.items() if share <= least + HARDLY)


def _share(tokens: int, unknown: int, pieces: Counter[str]) -> float:
    """Return the share of unknown tokens. Characters that the tokenizer drops count as one token each. `pieces`: counts of the
    parts that the tokenizer can't write, including dropped characters.
    """
    dropped = max(pieces.total() - unknown, 0)
    return (unknown + dropped) / max(tokens + dropped, 1)
