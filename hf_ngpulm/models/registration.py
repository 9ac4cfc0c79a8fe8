"""Register this package's models with Transformers' auto classes. Each registration runs when its part of Transformers is
loaded.

If loading a module of this package loads that part, the module isn't complete yet. It then registers its classes at its end.
"""

from __future__ import annotations

import importlib
from typing import Any

import transformers


def register() -> None:
    """Register all classes; repeated calls are harmless."""
    register_configurations()
    register_feature_extractors()
    register_tokenizers()
    register_models()


def register_configurations() -> None:
    """Register the configurations."""
    for config in _configurations():
        transformers.AutoConfig.register(config.model_type, config, exist_ok=True)


def register_feature_extractors() -> None:
    """Register the feature extractor."""
    for config in _configurations():
        transformers.AutoFeatureExtractor.register(config, transformers.ParakeetFeatureExtractor, exist_ok=True)


def register_tokenizers() -> None:
    """Register the tokenizer class."""
    for config in _configurations():
        transformers.AutoTokenizer.register(config, fast_tokenizer_class=transformers.PreTrainedTokenizerFast, exist_ok=True)


def register_models() -> None:
    """Register the models, also with the auto class of the speech recognition pipeline."""
    for config, model in zip(_configurations(), _classes("transducers", "HatForASR", "StatelessTransducerForASR")):
        transformers.AutoModel.register(config, model, exist_ok=True)
        transformers.AutoModelForRNNT.register(config, model, exist_ok=True)


def _configurations() -> list[Any]:
    return _classes("configuration", "HatConfig", "StatelessTransducerConfig")


def _classes(module: str, *names: str) -> list[Any]:
    """Return classes of another module of this package; an empty list while that module is being loaded."""
    loaded = importlib.import_module(f"{__package__}.{module}")
    return [getattr(loaded, name) for name in names] if hasattr(loaded, names[-1]) else []
