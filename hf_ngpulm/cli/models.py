"""Language models and recognisers as the commands take them: options shared by several commands, and loading."""

from __future__ import annotations

import os
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .output import working

if TYPE_CHECKING:
    from ..language_model import NGramLM

KINDS = ("arpa", "nemo", "safetensors")

LMArgument = Annotated[
    str, typer.Argument(metavar="LM", help="A saved folder, a Hub repo id, an ARPA file (also compressed) or a .nemo file.")
]
TokenizerOption = Annotated[
    str | None, typer.Option("--tokenizer", help="Folder or Hub id of the ASR model whose token ids the LM is over.")
]
VocabSizeOption = Annotated[
    int | None,
    typer.Option(
        "--vocab-size",
        min=1,
        max=10_000_000,
        show_default=False,
        help="Number of token ids of an ARPA file, where there is no tokenizer.",
    ),
]
UnitsOption = Annotated[str, typer.Option("--units", help="How an ARPA file writes tokens: auto, piece, id, nemo or char.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON lines.")]


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a folder or repo."""
    from transformers import AutoTokenizer

    _silence_transformers()
    with _told_of(name, "a tokenizer"):
        return AutoTokenizer.from_pretrained(name)


def load(
    source: str,
    tokenizer: Any = None,
    vocab_size: int | None = None,
    units: str = "auto",
    kind: str | None = None,
    device: Any = None,
) -> NGramLM:
    """Load whatever a command was given; `kind` is one of `KINDS`, or None to find out."""
    from ..language_model import NGramLM, load_language_model

    kind = kind or _kind_of(source)
    if kind != "arpa" and (vocab_size is not None or units != "auto"):
        raise ValueError(f"--vocab-size and --units are for ARPA files, and {source} isn't one")
    if kind == "arpa" and tokenizer is None and vocab_size is None:
        raise ValueError(
            f"{source}: an ARPA file doesn't say which token ids its units are; add --tokenizer (the ASR model's), "
            "or --vocab-size if its units are decimal ids or NeMo's characters"
        )
    # A download has a progress bar of its own.
    with working(f"loading {source}") if os.path.exists(source) else nullcontext():
        if kind == "arpa":
            return NGramLM.from_arpa(source, tokenizer, vocab_size, units, device=device)
        if kind == "nemo":
            return NGramLM.from_nemo(source, tokenizer, device=device)
        with _told_of(source, "a language model"):
            lm = load_language_model(source, device=device)
    if tokenizer is not None:
        lm.check_tokenizer(tokenizer)
    return lm


def load_recogniser(model: str, device: str, **settings: Any) -> Any:
    """A speech recognition pipeline."""
    import torch
    import transformers

    from .. import register

    register()
    _silence_transformers()
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {device} can't be used: {str(error).splitlines()[0]}") from None
    with _told_of(model, "a speech recogniser"):
        return transformers.pipeline("automatic-speech-recognition", model=model, device=device, **settings)


def _kind_of(source: str) -> str:
    if os.path.basename(source) in ("config.json", "model.safetensors"):
        raise ValueError(f"{source}: give the saved model's folder, {os.path.dirname(source) or '.'}, not a file in it")
    if os.path.isdir(source) or not os.path.exists(source):
        return "safetensors"
    # Of a pipe nothing may be read twice.
    return "nemo" if source.endswith(".nemo") or (os.path.isfile(source) and tarfile.is_tarfile(source)) else "arpa"


def _silence_transformers() -> None:
    """No advice, and no progress bar for weights being loaded; downloads show theirs on a terminal."""
    from huggingface_hub.utils import enable_progress_bars
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()  # turns off the Hub's too
    if sys.stderr.isatty() and "HF_HUB_DISABLE_PROGRESS_BARS" not in os.environ:
        enable_progress_bars()


@contextmanager
def _told_of(name: str, what: str) -> Iterator[None]:
    """Name what couldn't be loaded: the messages of the Hub's client don't, and broken folders raise anything at all."""
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    try:
        yield
    except Exception as error:
        chain: list[BaseException] = [error]
        while (before := chain[-1].__cause__ or chain[-1].__context__) is not None and before not in chain:
            chain.append(before)

        def caused_by(*kinds: type[BaseException]) -> bool:
            return any(isinstance(one, kinds) for one in chain)

        if caused_by(GatedRepoError):
            raise ValueError(f"{name}: access to this repo must be asked for on its page; then `hf auth login`") from None
        if caused_by(RepositoryNotFoundError):
            raise ValueError(f"{name}: no such repo on the Hub, or a private one (`hf auth login`)") from None
        if caused_by(LocalEntryNotFoundError, OfflineModeIsEnabled):
            raise ValueError(f"{name}: no such folder, not in the cache, and the Hub can't be reached") from None
        if isinstance(error, ValueError) and not isinstance(error, EntryNotFoundError) and name in str(error):
            raise
        message = str(error).split("See the original errors")[0].strip()
        message = f"{type(error).__name__}: {message}" if isinstance(error, KeyError) else message
        if name in message and isinstance(error, OSError):
            raise
        raise ValueError(f"{name} can't be loaded as {what}: {message}") from error
