"""hf-ngpulm score"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Annotated

import typer

from .models import JsonOption, LMArgument, TokenizerOption, UnitsOption, load, load_tokenizer
from .output import console, print_json, print_line, progress

BATCH = 1024  # sentences scored at a time


def score(
    lm: LMArgument,
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[FILES]...", help="Text, one sentence a line; standard input if none.")
    ] = None,
    tokenizer: TokenizerOption = None,
    units: UnitsOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Log-probability of each sentence (</s> included) and perplexity of all. Empty lines are passed over.

    hf-ngpulm score my-lm sentences.txt --tokenizer nvidia/parakeet-ctc-0.6b

    echo "set an alarm" | hf-ngpulm score my-lm --tokenizer nvidia/parakeet-ctc-0.6b --json
    """
    if tokenizer is None:
        raise ValueError("--tokenizer is needed to turn text into token ids: the folder or Hub id of the ASR model")
    texts = list(_sentences(files))
    if not texts:
        raise ValueError("there is nothing to score: the input has no text")
    encoder = load_tokenizer(tokenizer)
    model = load(lm, encoder, units=units)
    if not as_json:
        print_line(f"{'log p':>10} {'log10 p':>10} {'tokens':>6}  sentence")
    with progress(len(texts), "sentences") as bar:
        for first in range(0, len(texts), BATCH):
            batch = texts[first : first + BATCH]
            for text, (log_prob, token_ids) in zip(batch, model.score_texts(batch, encoder), strict=True):
                log10_prob = log_prob / math.log(10)
                if as_json:
                    print_json(text=text, log_prob=log_prob, log10_prob=log10_prob, tokens=len(token_ids))
                else:
                    print_line(f"{log_prob:10.3f} {log10_prob:10.3f} {len(token_ids):6d}  {text}")
            bar.update(len(batch))
    total = model.perplexity(texts, encoder)
    if as_json:
        print_json(
            sentences=total.num_sentences,
            words=total.num_words,
            tokens=total.num_tokens,
            missing_tokens=total.num_missing,
            log_prob=total.log_prob,
            log10_prob=total.log_prob / math.log(10),
            perplexity_per_token=total.per_token,
            perplexity_per_word=total.per_word,
        )
        return
    from rich.table import Table

    table = Table()
    row = {
        "sentences": f"{total.num_sentences:,}",
        "words": f"{total.num_words:,}",
        "tokens": f"{total.num_tokens:,}",
        "without a unigram": f"{total.num_missing:,}",
        "log p": f"{total.log_prob:,.1f}",
        "perplexity per token": f"{total.per_token:,.2f}",
        "per word": f"{total.per_word:,.2f}" if total.per_word < 1e9 else f"{total.per_word:.2e}",
    }
    for heading in row:
        table.add_column(heading, justify="right")
    table.add_row(*row.values())
    console().print(table)


def _sentences(files: list[str] | None) -> Iterator[str]:
    for name in files or [None]:
        try:
            with nullcontext(sys.stdin) if name is None else open(name, encoding="utf-8-sig") as lines:
                for line in lines:
                    if line.strip():
                        yield line.strip()
        except UnicodeDecodeError as error:
            raise ValueError(f"{name or 'standard input'}: not UTF-8 text: {error}") from None
