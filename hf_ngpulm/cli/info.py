"""hf-ngpulm info"""

from __future__ import annotations

import json
import os
from typing import Any

from rich.console import Console
from rich.table import Table

from ..formats.kenlm import read_binary
from .models import is_word_binary, load
from .options import JsonOption, LMArgument, TokenizerOption, UnitsOption, VocabSizeOption


def info(
    lm: LMArgument,
    tokenizer: TokenizerOption = None,
    vocab_size: VocabSizeOption = None,
    units: UnitsOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Show what a language model consists of.

    hf-ngpulm info org/my-lm
    """
    if is_word_binary(lm, tokenizer, vocab_size, units):
        facts, rows = _kenlm_facts(lm)
    else:
        facts, rows = _facts(lm, tokenizer, vocab_size, units)
    if as_json:
        print(json.dumps({"lm": lm, **facts}))
        return
    table = Table(show_header=False, title=lm)
    for name, value in rows.items():
        table.add_row(name, value)
    Console().print(table)


def _facts(lm: str, tokenizer: str | None, vocab_size: int | None, units: str) -> tuple[dict[str, Any], dict[str, str]]:
    model = load(lm, tokenizer, vocab_size, units)
    total = sum(model.num_ngrams)
    facts: dict[str, Any] = {
        "order": model.order,
        "vocab_size": model.vocab_size,
        "num_ngrams": list(model.num_ngrams),
        "num_states": model.num_states,
        "num_arcs": model.num_arcs,
        "nbytes": model.nbytes,
        "bytes_per_ngram": round(model.nbytes / total, 2),
        "missing_unigrams": model.unk_tokens.numel(),
        "tokenizer_id": model.config.tokenizer_id,
        "tokenizer_fingerprint": model.config.tokenizer_fingerprint,
        "unit": model.config.unit,
        "words": None if model.config.words is None else model.config.words.to_dict(),
        "training": None if model.config.training is None else model.config.training.to_dict(),
    }
    if model.config.decoding:
        facts["decoding"] = [entry.to_dict() for entry in model.config.decoding]
    rows = {
        "order": str(model.order),
        "n-grams": f"{total:,} of {model.config.unit}s  ({' + '.join(f'{count:,}' for count in model.num_ngrams)})",
        "states, arcs": f"{model.num_states:,}, {model.num_arcs:,}",
        "memory": f"{model.nbytes:,} bytes, {model.nbytes / total:.1f} per n-gram",
        "token ids": f"{model.vocab_size:,}, of which {model.unk_tokens.numel():,} have "
        + ("no unigram" if model.config.words is None else "no place in a word"),
        "tokenizer": model.config.tokenizer_id or "not known",
        "fingerprint": model.config.tokenizer_fingerprint or "none: it fits any tokenizer of that size",
        **dict(model.config.lines()),
    }
    for entry in model.config.decoding:
        rows[f"tuned for {entry.model.name}"] = ", ".join(f"{name}={value}" for name, value in entry.settings.items())
    return facts, rows


def _kenlm_facts(path: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what a KenLM binary says of itself; its n-grams aren't read."""
    file = read_binary(path)
    total, size = sum(file.counts), os.path.getsize(path)
    facts = {
        "kenlm": file.model_type,
        "order": file.order,
        "num_ngrams": list(file.counts),
        "num_words": file.num_words,
        "has_words": file.has_words,
        "quantised_bits": file.quantised_bits,
        "nbytes": size,
    }
    values = "whole floats"
    if file.quantised_bits is not None:
        values = f"log-probabilities in {file.quantised_bits[0]} bits, backoffs in {file.quantised_bits[1]}"
    words = ", ".join(file.words[:5]) + ", ..." if file.has_words else "their hashes alone (build_binary -v)"
    rows = {
        "file": f"KenLM binary, {file.model_type}",
        "order": str(file.order),
        "n-grams": f"{total:,}  ({' + '.join(f'{count:,}' for count in file.counts)})",
        "values": values,
        "vocabulary": f"{file.num_words:,} words: {words}",
        "size": f"{size:,} bytes, {size / total:.1f} per n-gram",
    }
    return facts, rows
