"""hf-ngpulm info"""

from __future__ import annotations

from .models import JsonOption, LMArgument, TokenizerOption, UnitsOption, VocabSizeOption, load, load_tokenizer
from .output import console, print_json


def info(
    lm: LMArgument,
    tokenizer: TokenizerOption = None,
    vocab_size: VocabSizeOption = None,
    units: UnitsOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Show what a language model consists of. With --tokenizer, check that it is the one the LM was made for.

    hf-ngpulm info org/my-lm

    hf-ngpulm info lm.arpa.gz --tokenizer nvidia/parakeet-ctc-0.6b

    hf-ngpulm info ids.arpa --vocab-size 1024 --json
    """
    model = load(lm, None if tokenizer is None else load_tokenizer(tokenizer), vocab_size, units)
    total = sum(model.num_ngrams)
    missing = model.unk_tokens.numel()
    config = model.config
    if as_json:
        print_json(
            lm=lm,
            order=model.order,
            num_ngrams=list(model.num_ngrams),
            num_states=model.num_states,
            num_arcs=model.num_arcs,
            nbytes=model.nbytes,
            bytes_per_ngram=round(model.nbytes / total, 2),
            vocab_size=model.vocab_size,
            missing_unigrams=missing,
            tokenizer_id=config.tokenizer_id,
            tokenizer_fingerprint=config.tokenizer_fingerprint,
        )
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, show_header=False, title=escape(lm), title_justify="left", title_style="bold", pad_edge=False)
    table.add_column(style="cyan")
    table.add_column(overflow="fold")
    table.add_row("order", str(model.order))
    table.add_row("n-grams", f"{total:,}")
    for n, count in enumerate(model.num_ngrams, 1):
        table.add_row("", f"{count:{len(f'{total:,}')},}  {n}-grams")
    table.add_row("states", f"{model.num_states:,}")
    table.add_row("arcs", f"{model.num_arcs:,}")
    table.add_row("memory", f"{model.nbytes:,} bytes, {model.nbytes / total:.1f} per n-gram")
    table.add_row("vocabulary", f"{model.vocab_size:,} token ids, {missing:,} of them without a unigram")
    table.add_row("tokenizer", escape(config.tokenizer_id or "not known"))
    table.add_row("fingerprint", config.tokenizer_fingerprint or "none: any tokenizer with that many token ids is accepted")
    console().print(table)
