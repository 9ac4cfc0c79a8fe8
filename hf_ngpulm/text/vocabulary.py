"""Define the vocabulary of a language model: the tokenizer's piece for each token id."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import TokenizerMismatchError


@dataclass(frozen=True)
class Vocabulary:
    """Hold the token ids that a language model scores.

    Args:
        size: number of ids, `0 .. size - 1`.
        pieces: the piece of each id (None for an id without a piece); None without a tokenizer.
        tokenizer_id: the tokenizer's name or path, for messages and configs.
    """

    size: int
    pieces: tuple[str | None, ...] | None = None
    tokenizer_id: str | None = None

    @classmethod
    def of(cls, tokenizer: Any = None, vocab_size: int | None = None) -> Vocabulary:
        """Return the vocabulary of a tokenizer or processor. Without a tokenizer, return a vocabulary of `vocab_size` ids
        without pieces.

        If `vocab_size` is None, the vocabulary ends with the last ordinary token. Later special tokens (`<pad>` as CTC blank,
        Whisper's timestamps) are left out.

        Raises:
            ValueError: neither a tokenizer with tokens nor a size is given, or the size isn't positive.
        """
        if vocab_size is not None and vocab_size < 1:
            raise ValueError(f"vocab_size must be at least 1, got {vocab_size}")
        if tokenizer is None:
            if vocab_size is None:
                raise ValueError("pass the ASR model's tokenizer (tokenizer=...) or its number of token ids (vocab_size=...)")
            return cls(vocab_size)
        tokenizer = tokenizer_of(tokenizer)
        by_piece = tokenizer.get_vocab()
        if not by_piece:
            raise ValueError(f"the tokenizer {tokenizer_name(tokenizer)!r} has no tokens")
        # Transformers 5 counts the token between words as a special token, but it is text.
        special_ids = set(tokenizer.all_special_ids) - {getattr(tokenizer, "word_delimiter_token_id", None)}
        ordinary = [token_id for token_id in by_piece.values() if token_id not in special_ids]
        size = vocab_size or max(ordinary or by_piece.values()) + 1
        pieces: list[str | None] = [None] * size
        for piece, token_id in by_piece.items():
            if 0 <= token_id < size:
                pieces[token_id] = piece
        return cls(size, tuple(pieces), tokenizer_name(tokenizer))

    @cached_property
    def fingerprint(self) -> str | None:
        """Return the SHA-256 of the pieces in order of their ids; None without a tokenizer."""
        if self.pieces is None:
            return None
        digest = hashlib.sha256()
        for piece in self.pieces:
            encoded = b"" if piece is None else piece.encode("utf-8", "surrogatepass")
            digest.update(len(encoded).to_bytes(4, "little") + encoded)
        return digest.hexdigest()


def tokenizer_of(tokenizer_or_processor: Any) -> Any:
    """Return a tokenizer unchanged, or the tokenizer of a processor, repo or folder."""
    if isinstance(tokenizer_or_processor, str):
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(tokenizer_or_processor)
    return getattr(tokenizer_or_processor, "tokenizer", tokenizer_or_processor)


def tokenizer_name(tokenizer: Any) -> str | None:
    """Return the tokenizer's repo id. For a local folder, return only its name, because the result may be published."""
    name = getattr(tokenizer, "name_or_path", None) or None
    return Path(name).resolve().name if name is not None and os.path.isdir(name) else name


def check_tokenizer(
    lm_vocab_size: int, fingerprint: str | None, lm_tokenizer_id: str | None, tokenizer: Any, what: str = "the language model"
) -> None:
    """Refuse a tokenizer if its first `lm_vocab_size` pieces differ from the pieces of a model's tokenizer.

    If the model was made from ids without a tokenizer, it has no fingerprint, and the pieces aren't checked. `what`: the model,
    for messages.

    Raises:
        TokenizerMismatchError: the pieces differ, or the tokenizer has fewer ids than the model.
    """
    tokenizer = tokenizer_of(tokenizer)
    name = tokenizer_name(tokenizer) or type(tokenizer).__name__
    trained_with = f"the tokenizer of {lm_tokenizer_id!r}" if lm_tokenizer_id else "another tokenizer"
    if len(tokenizer) < lm_vocab_size:
        raise TokenizerMismatchError(
            f"{what} scores {lm_vocab_size} token ids ({trained_with}), but the tokenizer {name!r} has "
            f"only {len(tokenizer)}; use one made for this tokenizer"
        )
    if fingerprint is None:
        return
    here = Vocabulary.of(tokenizer, lm_vocab_size)
    if here.fingerprint != fingerprint:
        pieces: Sequence[str | None] = here.pieces or ()
        raise TokenizerMismatchError(
            f"{what} was made for {trained_with} (fingerprint {fingerprint[:12]}), but the ASR tokenizer "
            f"{name!r} (fingerprint {(here.fingerprint or '')[:12]}) gives its first {lm_vocab_size} ids other "
            f"pieces, such as {list(pieces[-3:])} for the last three; use one made for this tokenizer"
        )
