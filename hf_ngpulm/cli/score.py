"""Define the command `hf-ngpulm score`."""

from __future__ import annotations

import math
import sys

from ..text.sources import read_texts
from .models import load, load_tokenizer
from .options import JsonOption, LMArgument, TokenizerOption, UnitsOption, argument, option
from .output import print_json


def score(
    *,
    lm: LMArgument,
    files: list[str] | None = argument(
        "Text with one sentence per line, or manifests, as for train; without files, standard input.", default=None
    ),
    tokenizer: TokenizerOption = None,
    units: UnitsOption = "auto",
    summary: bool = option("Print only the perplexity of all sentences.", "--summary", default=False),
    as_json: JsonOption = False,
) -> None:
    """Score sentences (natural log, </s> included), and print the perplexity of all sentences together.

    echo "set an alarm" | hf-ngpulm score my-lm --tokenizer nvidia/parakeet-ctc-0.6b
    """
    if tokenizer is None:
        raise ValueError("--tokenizer is needed to turn text into token ids: the folder or Hub id of the ASR model")
    model = load(lm, tokenizer, None, units)
    encoder = load_tokenizer(tokenizer)
    texts = list(read_texts(files)) if files else [line.strip() for line in sys.stdin]
    if not any(texts):
        raise ValueError("there is nothing to score: the input has no text")
    scored = [] if summary else zip(texts, model.score_texts(texts, encoder), strict=True)
    for text, (log_prob, token_ids) in scored:
        if as_json:
            log10 = log_prob / math.log(10)
            print_json({"text": text, "log_prob": log_prob, "log10_prob": log10, "tokens": len(token_ids)})
        else:
            print(f"{log_prob:10.3f}  {len(token_ids):4d} tokens  {text}")
    total = model.perplexity(texts, encoder)
    if as_json:
        print_json({"sentences": total.num_sentences, "tokens": total.num_tokens, "words": total.num_words,
                    "log_prob": total.log_prob, "perplexity_per_token": total.per_token,
                    "perplexity_per_word": total.per_word, "missing_tokens": total.num_missing,
                    "perplexity_per_token_known": total.per_token_known,
                    "perplexity_per_word_known": total.per_word_known})  # fmt: skip
        return
    print(
        f"{total.num_sentences} sentence{'s' * (total.num_sentences != 1)}, {total.num_words} words, {total.num_tokens} tokens "
        f"({total.num_missing} without a unigram); "
        f"perplexity {total.per_token:.3f} per token, {total.per_word:.3f} per word"
    )
    if total.num_missing:
        print(f"without these: perplexity {total.per_token_known:.3f} per token, {total.per_word_known:.3f} per word")
