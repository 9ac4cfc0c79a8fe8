"""Find the language model for a call of `generate`: an object, a name, or the entry in the generation config."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ..language_model.loading import configured_lm, load_language_model, located
from ..language_model.model import NGramLM
from ..text.vocabulary import Vocabulary, tokenizer_of

GivenLM = NGramLM | str | os.PathLike[str] | Sequence[NGramLM | None] | Literal[False] | None
_KEPT_MODELS = 4
_language_models: dict[tuple[str, str, str | None], NGramLM] = {}


def given_lm(
    lm: GivenLM, weight: float | Tensor | None, generation_config: Any, processor: Any, device: torch.device, model: Any
) -> tuple[NGramLM | Sequence[NGramLM | None] | None, float | Tensor | None]:
    """Return the language models for decoding (None for none), and their weight (None if it isn't specified).

    Args:
        lm: a model or a list of models, or the name of a Hub repo, a folder or a file. None means `ngram_lm` in the generation
            config (with the weight `ngram_lm_weight`), if it is set. False decodes without a language model.
        weight: overrides the generation config's weight.
        processor: the recogniser's processor or tokenizer, which determines the token ids of a file's units.
        device: the device on which a named LM is loaded.
        model: the recogniser.
    """
    if lm is None:
        lm, configured = configured_lm(generation_config)
        lm = None if lm is None else located(lm, model)
        weight = configured if weight is None else weight
    if isinstance(lm, str | os.PathLike):
        lm = loaded(os.fspath(lm), None if processor is None else tokenizer_of(processor), device)
    return (None if lm is False else lm), weight


def loaded(source: str, tokenizer: Any, device: torch.device) -> NGramLM:
    """Load a language model by its name, and cache it for later calls.

    The cache key includes the tokenizer, which determines the token ids of an ARPA file's units.
    """
    key = (source, str(device), None if tokenizer is None else Vocabulary.of(tokenizer).fingerprint)
    lm = _language_models.pop(key, None)
    _language_models[key] = load_language_model(source, tokenizer, device) if lm is None else lm
    while len(_language_models) > _KEPT_MODELS:
        _language_models.pop(next(iter(_language_models)))
    return _language_models[key]
