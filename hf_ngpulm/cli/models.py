"""Language models as the commands take them: options shared by several commands, and loading."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ..language_model.model import NGramLM

LMArgument = Annotated[
    str,
    typer.Argument(
        metavar="LM", help="A saved folder, a Hub repo id, an ARPA file (also compressed), a .nemo file or a KenLM binary."
    ),
]
TokenizerOption = Annotated[
    str | None, typer.Option("--tokenizer", help="Folder or Hub id of the ASR model whose token ids the LM is over.")
]
VocabSizeOption = Annotated[int | None, typer.Option("--vocab-size", help="Number of token ids, where there is no tokenizer.")]
UnitsOption = Annotated[
    str,
    typer.Option(
        "--units", "--unit", help="How an ARPA file writes tokens: auto, piece, id, nemo, char, or word (whole words)."
    ),
]
LexiconOption = Annotated[
    str | None,
    typer.Option("--lexicon", help="For words: a file with a word, a tab and the pieces of its spelling a line."),
]
CaseOption = Annotated[
    str | None, typer.Option("--case", help="For words: lower or upper, to spell them so; keep, to take them as they are.")
]
ClosedOption = Annotated[bool, typer.Option("--closed-vocabulary", help="For words: forbid unknown ones.")]
CuttingsOption = Annotated[
    int | None,
    typer.Option("--cuttings", help="For words: in how many ways each may be cut into pieces; 1. Several suit merge='text'."),
]
UnkOffsetOption = Annotated[
    float | None,
    typer.Option("--unk-score-offset", help="For words: what unknown ones score beside <unk>, natural log; -10."),
]
CompositionOption = Annotated[
    str | None,
    typer.Option("--composition", help="For words: static, on_the_fly (for large models), or auto, by the number of n-grams."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON lines.")]


def load_tokenizer(name: str | None):
    """The tokenizer of a folder or repo, or None."""
    if name is None:
        return None
    from transformers import AutoTokenizer

    check_folder(name)
    return AutoTokenizer.from_pretrained(name)


def check_folder(model: str) -> None:
    """Refuse a path that leads nowhere and can't be the id of a repo, either; Transformers' own words don't say so."""
    is_path = model.startswith((".", "/", "~")) or model.count("/") > 1 or "\\" in model
    if is_path and not os.path.exists(model):
        raise FileNotFoundError(f"{model}: no such folder (and no id of a model on the Hub, which looks like org/name)")


def of_words(
    lexicon: str | None,
    case: str | None,
    closed: bool,
    unk_score_offset: float | None,
    cuttings: int | None,
    composition: str | None = None,
) -> dict[str, Any]:
    """What was said of words, as arguments of `NGramLM.from_arpa` and `NGramLM.train`."""
    given = {"lexicon": lexicon, "case": case, "closed_vocabulary": closed or None, "unk_score_offset": unk_score_offset}
    given |= {"cuttings": cuttings, "composition": composition}
    return {name: value for name, value in given.items() if value is not None}


def is_word_binary(source: str, tokenizer: str | None, vocab_size: int | None, units: str) -> bool:
    """Whether a KenLM binary was given, to be taken with the words that it is over and not as a model of token ids."""
    from ..formats.kenlm import is_kenlm_binary

    if not is_kenlm_binary(source) or tokenizer is not None or vocab_size is not None:
        return False
    if units != "auto":
        raise ValueError(f"--units {units} says how words stand for token ids; give --tokenizer or --vocab-size with it")
    return True


def load(
    source: str, tokenizer: str | None = None, vocab_size: int | None = None, units: str = "auto", **of_words: Any
) -> NGramLM:
    """Load whatever a command was given."""
    from ..language_model.loading import load_language_model
    from ..language_model.model import NGramLM

    if os.path.isfile(source) and not source.endswith(".nemo"):
        if is_word_binary(source, tokenizer, vocab_size, units):
            raise ValueError(
                f"{source}: a KenLM binary doesn't say which token ids its words are; add --tokenizer (the ASR model's) or "
                "--vocab-size if they are tokens. A word-level one can be shown (info) or made an ARPA file (convert)"
            )
        if tokenizer is None and vocab_size is None:
            raise ValueError(
                f"{source}: an ARPA file doesn't say which token ids its units are; add --tokenizer (the ASR model's), "
                "or --vocab-size if its units are decimal ids or NeMo's characters"
            )
        return NGramLM.from_arpa(source, load_tokenizer(tokenizer), vocab_size, units, **of_words)
    if of_words:
        raise ValueError(f"{source}: {', '.join(of_words)} have a meaning for word-level ARPA files and KenLM binaries only")
    return load_language_model(source, load_tokenizer(tokenizer))


def load_recogniser(model: str, device: str, **settings: Any) -> Any:
    """A speech recognition pipeline, without the progress bar of its weights."""
    import transformers

    from ..pipelines import register

    check_folder(model)
    register()
    transformers.utils.logging.disable_progress_bar()
    return transformers.pipeline("automatic-speech-recognition", model=model, device=device, **settings)
