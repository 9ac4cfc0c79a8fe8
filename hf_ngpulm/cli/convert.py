"""Define the command `hf-ngpulm convert`."""

from __future__ import annotations

import re

from . import library
from .files import refuse_existing
from .models import is_word_binary, load
from .options import (
    LMArgument,
    MaxNGramsOption,
    OverwriteOption,
    TokenizerOption,
    UnitsOption,
    VocabSizeOption,
    WordOptions,
    argument,
    given,
    option,
)
from .output import interruptible

ARPA_NAME = re.compile(r"\.arpa(\.gz|\.bz2|\.xz)?$")


@interruptible(lambda: "nothing is saved")
def convert(
    *,
    source: LMArgument,
    target: str = argument("A folder to save to, or an ARPA file (.arpa, .arpa.gz) to write."),
    words: WordOptions,
    tokenizer: TokenizerOption = None,
    vocab_size: VocabSizeOption = None,
    units: UnitsOption = "auto",
    to: str | None = option("Format: safetensors or arpa [default: by the target's ending]."),
    out_units: str | None = option("Units of a written ARPA file: piece, id or nemo."),
    max_ngrams: MaxNGramsOption = None,
    composition: str | None = option(
        "For word-level LMs: static, on_the_fly (for large models), or auto, by the number of n-grams."
    ),
    continued: float | None = option(
        "For word-level LMs: share of sentence ends after which another sentence begins, such as 0.5."
    ),
    overwrite: OverwriteOption = False,
) -> None:
    """Convert a language model (ARPA, NeMo, KenLM binary, or saved) to a saved model or an ARPA file.

    hf-ngpulm convert lm.arpa.gz my-lm --tokenizer nvidia/parakeet-ctc-0.6b
    hf-ngpulm convert words.bin words.arpa.gz

    hf-ngpulm convert words.arpa my-lm --tokenizer facebook/wav2vec2-base-960h --unit word --case upper
    """
    kind = to or ("arpa" if ARPA_NAME.search(target) else "safetensors")
    if kind not in ("arpa", "safetensors"):
        raise ValueError(f"--to must be arpa or safetensors, got {kind!r}")
    if target.endswith(".nemo"):
        raise ValueError(f"{target}: NeMo archives can be read, not written; write an ARPA file with --out-units nemo")
    if out_units is not None and kind != "arpa":
        raise ValueError(f"--out-units {out_units} is for ARPA files, but {target} will be a folder; add --to arpa")
    refuse_existing([target], overwrite)
    options = given(words, composition=composition, continued=continued)
    if is_word_binary(source, tokenizer, vocab_size, units):
        if options:
            raise ValueError(f"{', '.join(options)}: spelling words in tokens needs --tokenizer; add it")
        _convert_words(source, target, kind, out_units, max_ngrams)
        return
    lm = load(source, tokenizer, vocab_size, units, **options)
    if max_ngrams is not None:
        lm = lm.prune(max_ngrams)
    if kind == "arpa":
        lm.to_arpa(target, out_units)
    else:
        lm.save_pretrained(target)
    print(f"{target}: order {lm.order}, {sum(lm.num_ngrams):,} n-grams of {lm.config.unit}s, {lm.vocab_size:,} token ids")


def _convert_words(source: str, target: str, kind: str, out_units: str | None, max_ngrams: int | None) -> None:
    """Write the n-grams and words of a KenLM binary to an ARPA file."""
    if kind != "arpa":
        raise ValueError(
            f"{source}: a KenLM binary of words becomes an ARPA file (give a target that ends in .arpa); for a model of token "
            "ids, add the ASR model's --tokenizer"
        )
    if out_units is not None:
        raise ValueError(f"--out-units {out_units} is for token ids; the words of a KenLM binary are written as they are")
    file = library.KenLMFile(source)
    table = file.table()
    if max_ngrams is not None:
        table = library.prune_table(table, max_ngrams)
    library.write_arpa(table, target, "piece", file.words)
    print(f"{target}: order {table.order}, {sum(table.num_ngrams):,} n-grams, {file.num_words:,} words")
