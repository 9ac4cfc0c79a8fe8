"""Load language models by name or path. Also find the language model that a recogniser's generation config names."""

from __future__ import annotations

import os
import re
from numbers import Real
from typing import Any

import torch

from ..formats.files import is_named_like_a_file
from ..formats.wav2vec2.repository import is_with_lm
from .hub import saved_files
from .model import NGramLM


def load_language_model(
    source: str | os.PathLike[str], tokenizer: Any = None, device: str | torch.device | None = None
) -> NGramLM:
    """Load a model from a Hub repo, a folder, or a file (ARPA, KenLM binary or NeMo checkpoint).

    Repos and folders of a `Wav2Vec2ProcessorWithLM` are also accepted.

    Raises:
        NGramFormatError: the source isn't a language model, or is damaged.
        FileNotFoundError: there is no such file, folder or repo id.
    """
    if os.path.isfile(source):
        return NGramLM.from_arpa(source, tokenizer, device=device)
    if not os.path.isdir(source) and is_named_like_a_file(source):
        raise FileNotFoundError(f"{source}: no such file")
    with_lm = is_with_lm(source)
    if with_lm:
        return NGramLM.from_wav2vec2_with_lm(source, tokenizer, device=device)
    # If the Hub couldn't be reached a moment ago, don't wait for it again.
    return NGramLM.from_pretrained(source, local_files_only=with_lm is None, device=device)


def loaded_models(lm: Any, tokenizer: Any = None, device: str | torch.device | None = None) -> Any:
    """Replace names and paths by their language models. Each model is loaded only once.

    Args:
        lm: a name, a path or a model, or a list of names, paths and models. Models stay unchanged.
        tokenizer, device: see `load_language_model`.

    Returns:
        A model, or a list of models if `lm` is a list.
    """
    sources = lm if isinstance(lm, list | tuple) else [lm]
    read: dict[Any, NGramLM] = {}
    for source in sources:
        if isinstance(source, str | os.PathLike) and source not in read:
            read[source] = load_language_model(source, tokenizer, device)
    models = [read[source] if isinstance(source, str | os.PathLike) else source for source in sources]
    return models if isinstance(lm, list | tuple) else models[0]


BESIDE = "./"  # prefix of a folder in the recogniser's own repo


def configured_lm(config: Any) -> tuple[str | None, float | None]:
    """Return two entries of a generation config: `ngram_lm` (a Hub id or path) and `ngram_lm_weight`. Raises ValueError if
    `ngram_lm` isn't a string, or `ngram_lm_weight` isn't a number.
    """
    name, weight = (getattr(config, key, None) for key in ("ngram_lm", "ngram_lm_weight"))
    if name is not None and not isinstance(name, str):
        raise ValueError(f"generation_config.ngram_lm should be a Hub id or a path, got {name!r}")
    if weight is not None and (isinstance(weight, bool) or not isinstance(weight, Real)):
        raise ValueError(f"generation_config.ngram_lm_weight should be a number, got {weight!r}")
    return name, None if weight is None else float(weight)


def located(name: str, model: Any) -> str:
    """Return the location of a language model that a recogniser's config names.

    `./name` is a folder in the recogniser's own repo. The folder is downloaded at the recogniser's commit.

    Raises:
        ValueError: the name isn't a folder directly inside the recogniser's repo.
        NGramFormatError, FileNotFoundError: the folder holds no language model, or doesn't exist.
    """
    if not name.startswith(BESIDE):
        return name
    subfolder = name.removeprefix(BESIDE)
    if not re.fullmatch(r"[\w-][\w.-]*", subfolder):
        raise ValueError(f"generation_config.ngram_lm should name a folder beside the model as ./name, got {name!r}")
    config, _, _ = saved_files(model.name_or_path, subfolder, revision=getattr(model.config, "_commit_hash", None))
    return str(config.parent)
