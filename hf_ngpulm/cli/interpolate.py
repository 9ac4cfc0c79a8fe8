"""Define the command `hf-ngpulm interpolate`."""

from __future__ import annotations

from ..text import read_texts
from . import library
from .files import refuse_existing
from .models import load, load_tokenizer
from .options import MISSING, JsonOption, MaxNGramsOption, OverwriteOption, TokenizerOption, argument, option
from .output import interruptible, print_json


@interruptible(lambda: "nothing is saved")
def interpolate(
    *,
    lms: list[str] = argument("Two or more language models: saved folders, Hub repo ids, .nemo files."),
    output: str = option("Folder to save the mixture to.", "--output", "-o", default=MISSING),
    weights: str | None = option("A weight for each model, such as '0.7 0.3'; they sum to 1."),
    valid: list[str] | None = option("Text to fit the weights to, instead of --weights; needs --tokenizer; may be repeated."),
    tokenizer: TokenizerOption = None,
    max_ngrams: MaxNGramsOption = None,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Mix language models into one.

    hf-ngpulm interpolate general-lm domain-lm --valid transcripts.txt --tokenizer nvidia/parakeet-ctc-0.6b -o mixed-lm
    """
    if (weights is None) == (not valid):
        raise ValueError("add either --weights, or --valid with text to fit the weights to")
    if valid and tokenizer is None:
        raise ValueError("--valid needs --tokenizer: the folder or Hub id of the ASR model")
    refuse_existing([output], overwrite)
    models = [load(name, tokenizer) for name in lms]
    texts = read_texts(valid or [])
    used = library.fitted_weights(models, texts, load_tokenizer(tokenizer)) if weights is None else _numbers(weights)
    mixture = library.NGramLM.interpolate(models, used)
    if max_ngrams is not None:
        mixture = mixture.prune(max_ngrams)
    mixture.save_pretrained(output)
    if as_json:
        print_json({"output": output, "weights": dict(zip(lms, used)), "num_ngrams": mixture.num_ngrams})
        return
    parts = ", ".join(f"{weight:.3f} {name}" for name, weight in zip(lms, used))
    print(f"{output}: order {mixture.order}, {sum(mixture.num_ngrams):,} n-grams; {parts}")


def _numbers(text: str) -> list[float]:
    try:
        return [float(word) for word in text.replace(",", " ").split()]
    except ValueError:
        raise ValueError(f"--weights should be numbers, such as '0.7 0.3'; got {text!r}") from None
