"""hf-ngpulm info"""

from __future__ import annotations

import json
from typing import Any

from .models import JsonOption, LMArgument, TokenizerOption, UnitsOption, VocabSizeOption, load


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
        "training": None if model.config.training is None else model.config.training.to_dict(),
    }
    if model.config.decoding:
        facts["decoding"] = [entry.to_dict() for entry in model.config.decoding]
    if as_json:
        print(json.dumps({"lm": lm, **facts}))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, title=lm)
    rows = {
        "order": str(model.order),
        "n-grams": f"{total:,}  ({' + '.join(f'{count:,}' for count in model.num_ngrams)})",
        "states, arcs": f"{model.num_states:,}, {model.num_arcs:,}",
        "memory": f"{model.nbytes:,} bytes, {model.nbytes / total:.1f} per n-gram",
        "token ids": f"{model.vocab_size:,}, of which {model.unk_tokens.numel():,} have no unigram",
        "tokenizer": model.config.tokenizer_id or "not known",
        "fingerprint": model.config.tokenizer_fingerprint or "none: it fits any tokenizer of that size",
        **dict(model.config.training.lines() if model.config.training is not None else ()),
    }
    for entry in model.config.decoding:
        rows[f"tuned for {entry.model.name}"] = ", ".join(f"{name}={value}" for name, value in entry.settings.items())
    for name, value in rows.items():
        table.add_row(name, value)
    Console().print(table)
