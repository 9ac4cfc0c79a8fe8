"""hf-ngpulm convert"""

from __future__ import annotations

import os
import re
from typing import Annotated

import typer

from .models import KINDS, LMArgument, TokenizerOption, UnitsOption, VocabSizeOption, load, load_tokenizer
from .output import working

ARPA_NAME = re.compile(r"\.arpa(\.gz)?$")
OUT_UNITS = ("piece", "id", "nemo")


def convert(
    source: LMArgument,
    target: Annotated[
        str, typer.Argument(metavar="OUT", help="A folder to save to, or an ARPA file (.arpa, .arpa.gz) to write.")
    ],
    from_: Annotated[
        str | None, typer.Option("--from", help="arpa, nemo or safetensors, where the content doesn't tell.")
    ] = None,
    to: Annotated[str | None, typer.Option("--to", help="arpa or safetensors, where OUT's name doesn't tell.")] = None,
    tokenizer: TokenizerOption = None,
    vocab_size: VocabSizeOption = None,
    units: UnitsOption = "auto",
    out_units: Annotated[
        str | None,
        typer.Option("--out-units", help="Units of a written ARPA file: piece (where the pieces are known), id or nemo."),
    ] = None,
) -> None:
    """Convert a language model: from ARPA, NeMo, a saved folder or the Hub to a saved folder or ARPA.

    hf-ngpulm convert lm.arpa.gz my-lm --tokenizer nvidia/parakeet-ctc-0.6b

    hf-ngpulm convert lm.nemo my-lm --tokenizer nvidia/parakeet-ctc-0.6b

    hf-ngpulm convert org/my-lm lm.arpa.gz --out-units nemo
    """
    if target.endswith(".nemo"):
        raise ValueError(f"{target}: NeMo archives can be read, not written; write an ARPA file with --out-units nemo")
    if re.search(r"\.arpa\.\w+$", target) and not ARPA_NAME.search(target):
        raise ValueError(f"{target}: ARPA files are written plain or as .gz")
    to = to or ("arpa" if ARPA_NAME.search(target) else "safetensors")
    for option, value, choices in (
        ("--from", from_, KINDS),
        ("--to", to, ("arpa", "safetensors")),
        ("--out-units", out_units, OUT_UNITS),
    ):
        if value is not None and value not in choices:
            raise ValueError(f"{option} must be one of {', '.join(choices)}, got {value!r}")
    if out_units is not None and to != "arpa":
        raise ValueError(f"--out-units {out_units} is for ARPA files, but {target} will be a folder; add --to arpa")
    if os.path.isdir(target) if to == "arpa" else os.path.exists(target) and not os.path.isdir(target):
        raise ValueError(f"{target} is {'a folder' if to == 'arpa' else 'a file'} already; give OUT another name")
    lm = load(source, None if tokenizer is None else load_tokenizer(tokenizer), vocab_size, units, from_)
    if out_units == "piece" and lm.pieces is None:
        raise ValueError(f"--out-units piece needs pieces, and {source} has bare token ids; add --tokenizer, or write ids")
    with working(f"writing {target}"):
        if to == "arpa":
            lm.to_arpa(target, out_units)
        else:
            lm.save_pretrained(target)
    print(f"{target}: order {lm.order}, {sum(lm.num_ngrams):,} n-grams, {lm.vocab_size:,} token ids")
