"""Define the command `hf-ngpulm info`."""

from __future__ import annotations

import os
from typing import Any

from . import library
from .models import is_word_binary, load
from .options import JsonOption, LMArgument, TokenizerOption, UnitsOption, VocabSizeOption
from .output import print_json, print_table


def info(
    lm: LMArgument,
    tokenizer: TokenizerOption = None,
    vocab_size: VocabSizeOption = None,
    units: UnitsOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Show the order, size, training and tuned settings of a language model.

    hf-ngpulm info org/my-lm
    """
    if is_word_binary(lm, tokenizer, vocab_size, units):
        facts, rows = _kenlm_facts(lm)
    else:
        facts, rows = _facts(load(lm, tokenizer, vocab_size, units))
    if as_json:
        print_json({"lm": lm, **facts})
    else:
        print_table(rows.items(), title=lm)


def _facts(lm: Any) -> tuple[dict[str, Any], dict[str, str]]:
    total, config, missing = sum(lm.num_ngrams), lm.config, lm.unk_tokens.numel()
    names = ("order", "vocab_size", "num_ngrams", "num_states", "num_arcs", "nbytes")
    facts: dict[str, Any] = {name: getattr(lm, name) for name in names}
    facts |= {"bytes_per_ngram": round(lm.nbytes / total, 2), "missing_unigrams": missing}
    facts |= {name: getattr(config, name) for name in ("tokenizer_id", "tokenizer_fingerprint", "unit")}
    parts = {name: getattr(config, name) for name in ("words", "training")}
    facts |= {name: None if part is None else part.to_dict() for name, part in parts.items()}
    if config.decoding:
        facts["decoding"] = [entry.to_dict() for entry in config.decoding]
    rows = {
        "order": str(lm.order),
        "n-grams": f"{total:,} of {config.unit}s  {_sum_of(lm.num_ngrams)}",
        "states, arcs": f"{lm.num_states:,}, {lm.num_arcs:,}",
        "memory": f"{lm.nbytes:,} bytes, {lm.nbytes / total:.1f} per n-gram",
        "token ids": f"{lm.vocab_size:,}; {missing:,} of them "
        + ("have no unigram" if config.words is None else "occur in no word"),
        "tokenizer": config.tokenizer_id or "not known",
        "fingerprint": config.tokenizer_fingerprint or "none: it fits any tokenizer of that size",
        **dict(config.lines()),
    }
    for entry in config.decoding:
        rows[f"tuned for {entry.model.name}"] = ", ".join(f"{name}={value}" for name, value in entry.settings.items())
    return facts, rows


def _kenlm_facts(path: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Read only the header of a KenLM binary. Return the entries twice: as values for JSON, and as texts for a table."""
    file = library.KenLMFile(path)
    total, size = sum(file.counts), os.path.getsize(path)
    facts: dict[str, Any] = {"kenlm": file.model_type, "order": file.order, "num_ngrams": list(file.counts)}
    facts |= {name: getattr(file, name) for name in ("num_words", "has_words", "quantised_bits")} | {"nbytes": size}
    values = "whole floats"
    if file.quantised_bits is not None:
        values = f"log-probabilities in {file.quantised_bits[0]} bits, backoffs in {file.quantised_bits[1]}"
    words = ", ".join(file.words[:5]) + ", ..." if file.has_words else "only their hashes (build_binary -v)"
    rows = {
        "file": f"KenLM binary, {file.model_type}",
        "order": str(file.order),
        "n-grams": f"{total:,}  {_sum_of(file.counts)}",
        "values": values,
        "vocabulary": f"{file.num_words:,} words: {words}",
        "size": f"{size:,} bytes, {size / total:.1f} per n-gram",
    }
    return facts, rows


def _sum_of(counts: Any) -> str:
    return f"({' + '.join(f'{count:,}' for count in counts)})"
