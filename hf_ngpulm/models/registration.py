"""Make the auto classes of Transformers know the models of this package, each when that part of Transformers is loaded.

Loading a module here may be what loads that part: then the module isn't complete yet, and enters its classes when it is.
"""

from __future__ import annotations

import importlib
from typing import Any

import transformers


def register() -> None:
    """Enter all classes; again does no harm."""
    register_configurations()
    register_feature_extractors()
    register_tokenizers()
    register_models()


def register_configurations() -> None:
    """Enter the configurations."""
    for config in _configurations():
        transformers.AutoConfig.register(config.model_type, config, exist_ok=True)


def register_feature_extractors() -> None:
    """Enter the feature extractor."""
    for config in _configurations():
        transformers.AutoFeatureExtractor.register(config, transformers.ParakeetFeatureExtractor, exist_ok=True)


def register_tokenizers() -> None:
    """Enter the class of tokenizers."""
    for config in _configurations():
        transformers.AutoTokenizer.register(config, fast_tokenizer_class=transformers.PreTrainedTokenizerFast, exist_ok=True)


def register_models() -> None:
    """Enter the models, also with the auto class by which the speech recognition pipeline finds them."""
    for config, model in zip(_configurations(), _classes("transducers", "HatForASR", "StatelessTransducerForASR")):
        transformers.AutoModel.register(config, model, exist_ok=True)
        transformers.AutoModelForRNNT.register(config, model, exist_ok=True)


def _configurations() -> list[Any]:
    return _classes("configuration", "HatConfig", "StatelessTransducerConfig")


def _classes(module: str, *names: str) -> list[Any]:
    """Return classes of one of the modules beside this one; none while it is being loaded."""
    loaded = importlib.import_module(f"{__package__}.{module}")
    return [getattr(loaded, name) for name in names] if hasattr(loaded, names[-1]) else []
